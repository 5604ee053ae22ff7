//! Sources of response bodies, which yield one piece after another.
//!
//! A source does not know its client. The reader of a source takes the pieces that are ready, and
//! else waits for more. The reader decides what else ends the wait. A source does not know its
//! request either: it yields its log lines as events, and the reader writes them about its own
//! request.
//!
//! A source is used by one thread. If several threads read one body, the body is shared, and each
//! reader has a source of its own.

use std::borrow::Cow;
use std::fmt;
use std::task::{Context, Poll};

use bytes::Bytes;
use engine::file::File;
use logs::{Level, Subject};

use crate::exchange::abort::Abort;
use crate::response::Field;
use crate::response::piece::Piece;

/// The body of a response.
#[derive(Debug, Default)]
pub enum Body {
    /// A body without any bytes.
    #[default]
    Empty,
    /// Pieces that are ready, without `Last`.
    Pieces(Vec<Piece>),
    /// A source that yields the pieces.
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
    /// A line for the error log.
    Told(DeferredLog),
    /// No piece is ready: wait for [`Source::poll_more`].
    Nothing,
    /// The body has ended completely.
    End,
    /// The body is broken off. No event follows.
    Broken(BodyError),
}

/// The reason why a body is broken off. An earlier event has logged the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    /// The end of the body is missing, and the received part is valid.
    Unfinished,
    /// The upstream has reset the stream. The received part is valid, and the client learns that
    /// the body is incomplete.
    Reset,
    /// The framing is invalid.
    Framing,
    /// The received part could not be buffered.
    BufferFailed,
    /// The request's body is broken off.
    Request,
}

/// A source of a response's body; see the module documentation.
pub trait Source: fmt::Debug {
    /// The next event, without waiting.
    fn next(&mut self) -> SourceEvent;

    /// Waits for more after [`SourceEvent::Nothing`]. Cancel-safe: dropping the wait loses no data.
    ///
    /// A source that is always ready must itself observe the task's budget, like the engine's
    /// receives.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()>;

    /// Lets the source read ahead while its reader waits for something else: a slow client, the
    /// reader's turn, or a response that is included in the body. Wakes the task when the source
    /// can continue; the data is yielded by later calls of [`next`](Self::next). Ready with a line
    /// to log at once, or with the reason why the body is broken off if no more of it may be sent.
    fn poll_prefetch(&mut self, _: &mut Context<'_>) -> Poll<Result<DeferredLog, BodyError>> {
        Poll::Pending
    }

    /// Maximum number of bytes of the body that may wait for a slow client outside the source, as
    /// far as there is a choice: 0 if the body is not buffered. `None` for the usual limit.
    fn queued_max(&self) -> Option<usize> {
        None
    }

    /// Whether the last piece ended the body, as far as this is known without waiting. False does
    /// not mean that more data follows.
    fn is_whole(&self) -> bool {
        false
    }

    /// Whether the source continues to its end after the client has left
    /// (`proxy_ignore_client_abort`).
    fn outlives_client(&self) -> bool {
        false
    }

    /// The trailer fields, once the body has ended.
    fn trailers(&mut self) -> Vec<Field> {
        Vec::new()
    }

    /// Cancels the source because the client has left. Returns the line to log.
    fn give_up(&mut self, left: &Abort) -> DeferredLog;

    /// The activity for log lines when the response begins, with a leading space.
    fn beginning(&self) -> &'static str;
}

/// A line for the error log, which the reader of a source writes about its own request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredLog {
    /// The level of the line.
    pub level: Level,
    /// The text of the line.
    pub text: Cow<'static, str>,
}

impl DeferredLog {
    /// A line with this level and text.
    pub fn new(level: Level, text: impl Into<Cow<'static, str>>) -> DeferredLog {
        DeferredLog {
            level,
            text: text.into(),
        }
    }

    /// Writes the line about a request, or about whatever else has read the source.
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
