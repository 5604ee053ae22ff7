//! Included subrequests, which run ahead of the place that they stand in.
//!
//! Every include of a piece is started at once; each puts its response into a pipe, from which it
//! is taken when the text before it has been sent. A pipe holds `subrequest_output_buffer_size` and
//! one piece, then its subrequest waits: what a page includes is never in memory as a whole.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::rc::Rc;
use std::task::{Poll, Waker};

use base::pieces::join;
use engine::select::{Either, either};

use crate::exchange::{Abort, Exchange};
use crate::logging::request_log;
use crate::request::Request;
use crate::request::shared::MainRequestState;
use crate::response::output::Piece;
use crate::subrequest::background::{AccessLogTiming, Completed, RunningSubrequest};

/// Subrequests of one main request that may run at once before their turn. A page that includes
/// itself twice would have more of them than anybody has memory for.
const AHEAD_MAX: usize = 64;

/// A subrequest that has been started, and the end of the pipe that its response comes out of.
pub struct Ahead {
    running: RunningSubrequest,
    pipe: Rc<Pipe>,
    shared: Rc<MainRequestState>,
}

/// The other end: the exchange of such a subrequest.
pub struct Writer {
    pipe: Rc<Pipe>,
}

#[derive(Default)]
struct Pipe {
    pieces: RefCell<VecDeque<Piece>>,
    /// Bytes in memory among the pieces.
    length: Cell<usize>,
    /// The response is wanted as a whole.
    in_memory: bool,
    ended: Cell<bool>,
    /// The client has left.
    client_gone: Cell<bool>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
}

impl Ahead {
    /// Whether one more of a main request's subrequests may run before its turn.
    pub fn has_room(request: &Request) -> bool {
        request.shared.ahead.get() < AHEAD_MAX
    }

    /// Starts a subrequest, which begins when the caller waits next. One whose response is wanted
    /// `in_memory` does not wait for anybody to take it, and fails if it is too big.
    pub fn start(request: &Request, child: Box<Request>) -> Ahead {
        let shared = Rc::clone(&request.shared);
        shared.ahead.set(shared.ahead.get() + 1);
        let pipe = Rc::new(Pipe {
            in_memory: child.nesting.in_memory,
            ..Pipe::default()
        });
        let writer = Writer {
            pipe: Rc::clone(&pipe),
        };
        Ahead {
            running: RunningSubrequest::start(
                child,
                Exchange::ahead(writer),
                AccessLogTiming::InItsTurn,
            ),
            pipe,
            shared,
        }
    }

    /// The next piece of the response, without `Last`; `None` at its end. A client that leaves
    /// meanwhile is made known to the subrequest.
    pub async fn next(&self, exchange: &mut Exchange) -> Option<Piece> {
        if !self.pipe.client_gone.get() {
            match either(self.pipe.next(), exchange.client_gone()).await {
                Either::First(piece) => return piece,
                Either::Second(_) => self.pipe.tell_client_gone(),
            }
        }
        self.pipe.next().await
    }

    /// Waits for the end of the subrequest, and writes its line of the access log.
    pub async fn ended(&self) -> Result<Completed, Abort> {
        let mut ended = self.running.ended().await?;
        if let Some(mut child) = ended.unlogged.take() {
            request_log::log(&mut child);
        }
        Ok(ended)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let ahead = &self.shared.ahead;
        ahead.set(ahead.get().saturating_sub(1));
    }
}

impl Writer {
    /// Puts a piece into the pipe; waits while there is enough in it.
    pub async fn send(&self, request: &mut Request, piece: Piece) -> Result<(), Abort> {
        let pipe = &self.pipe;
        match &piece {
            Piece::Bytes(bytes) => {
                request.sent.bytes += bytes.len() as u64;
                request.sent.body_bytes += bytes.len() as u64;
                pipe.length.set(pipe.length.get() + bytes.len());
            }
            Piece::File { length, .. } => {
                request.sent.bytes += length;
                request.sent.body_bytes += length;
            }
            Piece::Flush => {}
            Piece::Include(_) | Piece::Last => return Ok(()),
        }
        let room = request.plan.core.subrequest_output_buffer_size;
        if pipe.in_memory {
            return self.keep(request, piece, room);
        }
        pipe.put(piece);
        poll_fn(|context| {
            if pipe.length.get() <= room {
                return Poll::Ready(());
            }
            pipe.writer.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
        Ok(())
    }

    /// Keeps a piece of a response that is wanted as a whole, where there is room for it.
    fn keep(&self, request: &Request, piece: Piece, room: usize) -> Result<(), Abort> {
        if let Some(announced) = request.response.content_length
            && announced > room as u64
        {
            logs::error!(
                request,
                Error,
                "too big subrequest response: {announced}{}",
                request.activity.sending
            );
            return Err(Abort::Filter);
        }
        if request.sent.body_bytes > room as u64 {
            logs::error!(
                request,
                Error,
                "too big subrequest response{}",
                request.activity.sending
            );
            return Err(Abort::Filter);
        }
        self.pipe.put(piece);
        Ok(())
    }

    /// Resolves when the client has left.
    pub async fn client_gone(&self) -> Abort {
        poll_fn(|context| {
            if self.pipe.client_gone.get() {
                return Poll::Ready(());
            }
            self.pipe.writer.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
        Abort::Closed(ErrorKind::ConnectionAborted.into())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.pipe.ended.set(true);
        wake(&self.pipe.reader);
    }
}

impl Pipe {
    /// Appends a piece. Small ones are copied together: what waits here would leave together
    /// anyway, so a flush between them moves behind both.
    fn put(&self, piece: Piece) {
        let pieces = &mut *self.pieces.borrow_mut();
        let flush = pieces.pop_back_if(|last| matches!(last, Piece::Flush));
        let joined = match (pieces.back_mut(), &piece) {
            (Some(Piece::Bytes(last)), Piece::Bytes(more)) => join(last, more).is_some(),
            (_, piece) => matches!(piece, Piece::Flush) && flush.is_some(),
        };
        if joined {
            pieces.extend(flush);
        } else {
            pieces.extend(flush);
            pieces.push_back(piece);
        }
        wake(&self.reader);
    }

    async fn next(&self) -> Option<Piece> {
        poll_fn(|context| {
            if let Some(piece) = self.pieces.borrow_mut().pop_front() {
                if let Piece::Bytes(bytes) = &piece {
                    self.length
                        .set(self.length.get().saturating_sub(bytes.len()));
                }
                wake(&self.writer);
                return Poll::Ready(Some(piece));
            }
            if self.ended.get() {
                return Poll::Ready(None);
            }
            self.reader.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await
    }

    fn tell_client_gone(&self) {
        self.client_gone.set(true);
        wake(&self.writer);
    }
}

fn wake(waiting: &RefCell<Option<Waker>>) {
    let waker = waiting.take();
    waker.into_iter().for_each(Waker::wake);
}
