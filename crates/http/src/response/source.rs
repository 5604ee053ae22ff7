//! Sources of response bodies, which yield one piece after another.
//!
//! A source knows no client. The driver takes the pieces that are ready, and else waits for more;
//! it decides what else ends the wait. A source knows no request either: it yields its log lines as
//! events, and the driver writes them about its own request.
//!
//! A source lives on one thread. A body that several threads read is shared, and each reader has a
//! source of its own.

use std::borrow::Cow;
use std::fmt;
use std::task::{Context, Poll};

use bytes::Bytes;
use engine::file::File;
use logs::{Level, Subject};

use crate::exchange::abort::Abort;
use crate::response::Field;
use crate::response::piece::Piece;

/// Where a response's body comes from.
#[derive(Debug, Default)]
pub enum Body {
    /// A response without any body byte.
    #[default]
    Empty,
    /// Pieces at hand, without `Last`.
    Pieces(Vec<Piece>),
    /// A source of pieces.
    Source(Box<dyn Source>),
}

impl Body {
    /// A body of bytes.
    pub fn bytes(bytes: impl Into<Bytes>) -> Body {
        Body::Pieces(vec![Piece::Bytes(bytes.into())])
    }

    /// A range of a file.
    pub fn file(file: File, offset: u64, length: u64) -> Body {
        Body::Pieces(vec![Piece::File {
            file,
            offset,
            length,
        }])
    }
}

/// An event of a source.
#[derive(Debug)]
pub enum SourceEvent {
    /// The next piece of the body; never [`Piece::Last`].
    Piece(Piece),
    /// Something for the error log.
    Told(DeferredLog),
    /// No piece is ready: wait for [`Source::poll_more`].
    Nothing,
    /// The body has ended as it should.
    End,
    /// The body is broken off; no event follows.
    Broken(BodyError),
}

/// How a body is broken off. It has been logged by an earlier event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The end is missing: the received part is valid.
    Unfinished,
    /// The upstream has reset it: the received part is valid, and the client learns that the body
    /// is incomplete.
    Reset,
    /// The framing is invalid.
    Framing,
    /// The received part could not be buffered.
    BufferFailed,
    /// The body of the request that it answers is broken off.
    Request,
}

/// A source of a body; see the module.
pub trait Source: fmt::Debug {
    /// The next event, without waiting.
    fn next(&mut self) -> SourceEvent;

    /// Waits for more after `Nothing`. Cancel-safe: dropping the wait loses no data.
    ///
    /// A source that is always ready must itself observe the task's budget, as the engine's
    /// receives do.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()>;

    /// Goes on by itself while its reader waits for something else: a slow client, its turn, a
    /// response that stands within the body. Wakes the task where it could go further; what comes
    /// of it is given when the source is asked again. Ready with what is to be logged at once; or
    /// with how the body is broken off, where nothing more of it is to leave.
    fn poll_prefetch(&mut self, _: &mut Context<'_>) -> Poll<Result<DeferredLog, BodyError>> {
        Poll::Pending
    }

    /// How many bytes of it may wait for a slow client outside of it, as far as there is a choice:
    /// 0 where nothing of it is buffered. `None` for as many as of any response.
    fn queued_max(&self) -> Option<usize> {
        None
    }

    /// Whether nothing follows the piece that came last, as far as is known without waiting. The
    /// end may be told later all the same.
    fn is_whole(&self) -> bool {
        false
    }

    /// Whether it goes on to its end though its client has left (`proxy_ignore_client_abort`).
    fn outlives_client(&self) -> bool {
        false
    }

    /// The fields that follow the body, once that has ended.
    fn trailers(&mut self) -> Vec<Field> {
        Vec::new()
    }

    /// Cancels the source, since its client has left. Returns the log line.
    fn give_up(&mut self, left: &Abort) -> DeferredLog;

    /// What is being done when the response begins, as log lines say it with a space before it.
    fn beginning(&self) -> &'static str;
}

/// A line for the error log, about whatever has asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredLog {
    /// The level of the deferred log.
    pub level: Level,
    /// The text of the deferred log.
    pub text: Cow<'static, str>,
}

impl DeferredLog {
    /// A line of this level.
    pub fn new(level: Level, text: impl Into<Cow<'static, str>>) -> DeferredLog {
        DeferredLog {
            level,
            text: text.into(),
        }
    }

    /// Writes it down, about a request or whatever else the source was asked for.
    pub fn write(&self, subject: &dyn Subject) {
        logs::write(subject, self.level, format_args!("{}", self.text));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};
    use std::task::{Wake, Waker};
    use std::thread::{self, Thread};

    use bytes::Bytes;

    use super::*;
    use crate::exchange::memory::Client;
    use crate::response::output;
    use crate::testing::{serve, site};

    /// A source that gives what is written down, and has nothing wherever that says so, once.
    #[derive(Debug)]
    struct Script {
        given: VecDeque<SourceEvent>,
        waits: usize,
    }

    impl Source for Script {
        fn next(&mut self) -> SourceEvent {
            self.given.pop_front().unwrap_or(SourceEvent::End)
        }

        fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
            self.waits += 1;
            context.waker().wake_by_ref();
            match self.waits % 2 {
                0 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        }

        fn give_up(&mut self, _: &Abort) -> DeferredLog {
            DeferredLog::new(Level::Info, "given up")
        }

        fn beginning(&self) -> &'static str {
            " while testing"
        }
    }

    /// What comes of a response with this body: how it ends, what was sent of it, and whether it
    /// counts as complete.
    fn sent(given: impl IntoIterator<Item = SourceEvent>) -> (Result<(), Abort>, Vec<u8>, bool) {
        let given = given.into_iter().collect();
        serve(&site(""), "GET / HTTP/1.1", async |mut request| {
            let client = Client::greedy();
            let (mut exchange, stream) = client.begin(u64::MAX / 2);
            request.response.status = 200;
            let body = Body::Source(Box::new(Script { given, waits: 0 }));
            let outcome = output::respond(&mut request, &mut exchange, body).await;
            // What has been queued leaves at least when something is waited for.
            let _ = exchange.flush(&mut request).await;
            (
                outcome.map(|_| ()),
                client.received(stream).body,
                request.sent.complete,
            )
        })
    }

    fn piece(text: &'static str) -> SourceEvent {
        SourceEvent::Piece(Piece::Bytes(text.into()))
    }

    #[test]
    fn any_source_is_sent_to_its_end() {
        let told = SourceEvent::Told(DeferredLog::new(Level::Warn, "odd"));
        let (outcome, body, _) = sent([
            piece("a"),
            SourceEvent::Nothing,
            told,
            piece("b"),
            SourceEvent::Nothing,
        ]);
        assert!(outcome.is_ok());
        assert_eq!(body, b"ab");
    }

    #[test]
    fn a_source_that_breaks_off_ends_its_response() {
        let (outcome, body, complete) =
            sent([piece("a"), SourceEvent::Broken(BodyError::Unfinished)]);
        assert!(matches!(outcome, Err(Abort::Upstream)));
        assert_eq!((&*body, complete), (&b"a"[..], true));
        let (outcome, body, complete) = sent([piece("a"), SourceEvent::Broken(BodyError::Framing)]);
        assert!(matches!(outcome, Err(Abort::UpstreamFraming)));
        assert_eq!((&*body, complete), (&b"a"[..], false));
        let (outcome, body, complete) = sent([piece("a"), SourceEvent::Broken(BodyError::Reset)]);
        assert!(matches!(outcome, Err(Abort::UpstreamFraming)));
        assert_eq!((&*body, complete), (&b"a"[..], false));
    }

    /// A body that is filled once and read by many, each at its own pace.
    #[derive(Debug, Default)]
    struct Fill(Mutex<Filled>);

    #[derive(Debug, Default)]
    struct Filled {
        pieces: Vec<Bytes>,
        ended: bool,
        waiting: Vec<Waker>,
    }

    impl Fill {
        fn put(&self, piece: Option<Bytes>) {
            let mut filled = self.0.lock().unwrap();
            filled.ended |= piece.is_none();
            filled.pieces.extend(piece);
            filled.waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// A reader of the fill.
    #[derive(Debug)]
    struct Reader {
        fill: Arc<Fill>,
        at: usize,
    }

    impl Source for Reader {
        fn next(&mut self) -> SourceEvent {
            let filled = self.fill.0.lock().unwrap();
            match filled.pieces.get(self.at) {
                Some(piece) => {
                    self.at += 1;
                    SourceEvent::Piece(Piece::Bytes(piece.clone()))
                }
                None if filled.ended => SourceEvent::End,
                None => SourceEvent::Nothing,
            }
        }

        fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
            let mut filled = self.fill.0.lock().unwrap();
            if self.at < filled.pieces.len() || filled.ended {
                return Poll::Ready(());
            }
            filled.waiting.push(context.waker().clone());
            Poll::Pending
        }

        fn give_up(&mut self, _: &Abort) -> DeferredLog {
            DeferredLog::new(Level::Info, "a reader has left")
        }

        fn beginning(&self) -> &'static str {
            ""
        }
    }

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// Reads at most so many pieces on the thread that it is called on.
    fn read(source: &mut dyn Source, pieces_max: usize) -> Vec<u8> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let (mut bytes, mut pieces) = (Vec::new(), 0);
        while pieces < pieces_max {
            match source.next() {
                SourceEvent::Piece(Piece::Bytes(piece)) => {
                    bytes.extend_from_slice(&piece);
                    pieces += 1;
                }
                SourceEvent::Nothing => {
                    while source.poll_more(&mut context).is_pending() {
                        thread::park();
                    }
                }
                _ => break,
            }
        }
        bytes
    }

    #[test]
    fn what_is_filled_once_is_read_by_several_on_several_threads() {
        let fill = Arc::new(Fill::default());
        let readers: Vec<_> = [usize::MAX, usize::MAX, 10]
            .map(|pieces_max| {
                let fill = Arc::clone(&fill);
                thread::spawn(move || read(&mut Reader { fill, at: 0 }, pieces_max))
            })
            .into();
        let pieces: Vec<Bytes> = (0..500).map(|n| format!("{n} ").into()).collect();
        for (n, piece) in pieces.iter().enumerate() {
            fill.put(Some(piece.clone()));
            if n % 50 == 0 {
                thread::yield_now();
            }
        }
        fill.put(None);
        let read_by: Vec<Vec<u8>> = readers.into_iter().map(|r| r.join().unwrap()).collect();
        let whole = pieces.concat();
        assert_eq!(
            read_by,
            [whole.clone(), whole.clone(), pieces[..10].concat()]
        );
        // One that comes late reads all the same, without waiting.
        assert_eq!(read(&mut Reader { fill, at: 0 }, usize::MAX), whole);
    }
}
