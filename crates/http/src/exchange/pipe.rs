//! The exchange of an included subrequest, which runs ahead: its response goes into a pipe, from
//! which the including request reads it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::rc::Rc;
use std::task::{Poll, Waker};

use base::pieces::join;

use crate::exchange::abort::Abort;
use crate::request::Request;
use crate::response::piece::Piece;

/// The writing end of the pipe, which is the exchange of the subrequest.
pub struct Writer {
    pub(crate) pipe: Rc<Pipe>,
}

#[derive(Default)]
pub(crate) struct Pipe {
    pieces: RefCell<VecDeque<Piece>>,
    /// The length in bytes of the pieces in memory.
    length: Cell<usize>,
    /// The reader needs the whole response in memory.
    in_memory: bool,
    /// Whether the response has ended.
    ended: Cell<bool>,
    /// The client has left.
    pub(crate) client_gone: Cell<bool>,
    /// The waker of the reader, which waits for a piece.
    reader: RefCell<Option<Waker>>,
    /// The waker of the subrequest, which waits until the pipe is less full or the client leaves.
    writer: RefCell<Option<Waker>>,
}

impl Writer {
    /// Writes a piece to the pipe; waits while the pipe is full.
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

    /// Stores a piece of a response that the reader needs whole, if it fits.
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
    /// An empty pipe. With `in_memory`, the reader needs the whole response in memory.
    pub(crate) fn new(in_memory: bool) -> Pipe {
        Pipe {
            in_memory,
            ..Pipe::default()
        }
    }

    /// Appends a piece. Small pieces are joined. Queued pieces are sent together anyway, so a flush
    /// between two joined pieces moves behind both.
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

    /// Waits for the next piece; `None` at the end of the response.
    pub(crate) async fn next(&self) -> Option<Piece> {
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

    /// Notifies the subrequest that the client has left.
    pub(crate) fn tell_client_gone(&self) {
        self.client_gone.set(true);
        wake(&self.writer);
    }
}

fn wake(waiting: &RefCell<Option<Waker>>) {
    let waker = waiting.take();
    waker.into_iter().for_each(Waker::wake);
}
