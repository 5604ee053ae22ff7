//! The upstream's body as it comes: as fast as it is asked for, and no faster.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::Buffer;
use http::exchange::Abort;
use http::exchange::h1::{take_data, take_front};
use http::log::{self, Level};
use http::output::Piece;
use http::response::Field;
use http::source::{Break, Given, Source, Told};
use proto::h1::chunked::Decoder;
use proto::h1::response::ResponseBody;

use super::attempts::Attempts;
use super::pace::Pace;
use super::response::{READING, WHILE_READING, is_hidden};
use super::trailers::TrailerReader;
use super::{READING_BODY, Settings, UpstreamConnection, told_left};

/// What of the body is still to come.
enum Remaining {
    Nothing,
    /// Nothing: the last chunk has come.
    NothingAfterChunks,
    /// Nothing: the trailers behind it have come.
    NothingAfterTrailers,
    Length(u64),
    Chunked(Box<Decoder>),
    Trailers(Box<TrailerReader>),
    UntilClose,
}

impl Remaining {
    fn is_nothing(&self) -> bool {
        matches!(
            self,
            Remaining::Nothing | Remaining::NothingAfterChunks | Remaining::NothingAfterTrailers
        )
    }
}

/// The body of an upstream's response.
pub(super) struct UpstreamBody {
    /// Until the body has come to its end.
    peer: Option<UpstreamConnection>,
    /// Whether the connection may serve another request after this.
    may_go_on: bool,
    /// What `$upstream_*` tell, of which the body goes on to write the end.
    seen: Rc<Attempts>,
    remaining: Remaining,
    received: Buffer,
    /// How fast it is read, where that is limited.
    pace: Option<Pace>,
    /// How the upstream has stopped sending, once that has been found out.
    stopped: Option<io::Result<()>>,
    /// How much came along with the head; 0 once that counts.
    came_with_head: u64,
    /// See [`Arrived::beyond`]; 0 once that counts.
    beyond: u64,
    read_timeout: Duration,
    /// When the wait under way ends.
    deadline: Option<Instant>,
    ignore_client_abort: bool,
    /// Every part leaves at once (`proxy_buffering off`, `X-Accel-Buffering: no`).
    flush: bool,
    flush_next: bool,
    /// What is to be said once the log has been told why.
    broken: Option<Break>,
    /// What is being done, for log lines about what is too much: as nginx has it, what comes along with the head still
    /// belongs to reading that, where every part leaves at once.
    doing: &'static str,
    settings: Arc<Settings>,
}

impl std::fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpstreamBody")
    }
}

/// What of a body has come along with the head.
pub(super) struct Arrived {
    pub rest: Buffer,
    /// How many bytes came beyond `proxy_buffer_size`: as nginx reads them only for the body, `$upstream_bytes_received`
    /// has them once that is read.
    pub beyond: u64,
    /// Whether the upstream goes on with the connection behind the body.
    pub may_go_on: bool,
}

/// What there is to log where more has come than the head of the answer has announced.
pub(super) fn told_excess(doing: &str) -> Told {
    let text =
        format!("upstream sent more data than specified in \"Content-Length\" header {doing}");
    Told::new(Level::Warn, text)
}

impl UpstreamBody {
    pub(super) fn new(
        peer: UpstreamConnection,
        seen: Rc<Attempts>,
        settings: &Arc<Settings>,
        framing: ResponseBody,
        mut arrived: Arrived,
        buffered: bool,
        rate: u64,
    ) -> UpstreamBody {
        let came_with_head = arrived.rest.len() as u64;
        let decoder = match settings.pass_trailers {
            true => Decoder::keeping_trailers,
            false => Decoder::new,
        };
        let mut body = UpstreamBody {
            peer: Some(peer),
            may_go_on: arrived.may_go_on,
            seen,
            remaining: match framing {
                ResponseBody::None | ResponseBody::Length(0) => Remaining::Nothing,
                ResponseBody::Length(length) => Remaining::Length(length),
                ResponseBody::Chunked => Remaining::Chunked(Box::new(decoder())),
                ResponseBody::UntilClose => Remaining::UntilClose,
            },
            stopped: None,
            came_with_head,
            beyond: arrived.beyond,
            pace: Pace::begin(rate, &mut arrived.rest, arrived.beyond, engine::now()),
            received: arrived.rest,
            read_timeout: settings.read_timeout,
            deadline: None,
            ignore_client_abort: settings.ignore_client_abort,
            flush: !buffered,
            flush_next: false,
            broken: None,
            doing: match buffered {
                true => READING_BODY,
                false => READING,
            },
            settings: Arc::clone(settings),
        };
        // Nothing may ask for the end of nothing.
        if matches!(body.remaining, Remaining::Nothing) && body.received.is_empty() {
            body.let_go();
        }
        body
    }

    /// Whether all of it has been given that is to be given, but for its end.
    pub(super) fn has_given_all(&self) -> bool {
        self.remaining.is_nothing()
    }

    /// The body has come to its end.
    fn end(&mut self) -> Given {
        self.remaining = Remaining::Nothing;
        self.note_end();
        self.let_go();
        Given::End
    }

    /// Its connection serves another request, or ends.
    fn let_go(&mut self) {
        let Some(mut peer) = self.peer.take() else {
            return;
        };
        self.seen.borrow_mut().note(|attempt, elapsed| {
            let header = attempt.header_time.unwrap_or_default();
            if let Some(lease) = &mut peer.lease {
                lease.answer_came(header, elapsed.unwrap_or_default());
            }
        });
        peer.done(self.may_go_on);
    }

    fn note_end(&self) {
        let mut seen = self.seen.borrow_mut();
        seen.note(|attempt, elapsed| attempt.response_time = elapsed);
    }

    /// The upstream sends no more: the end where nothing else marks it, else a broken response.
    fn stop(&mut self, stopped: io::Result<()>) -> Given {
        let text = match stopped {
            Ok(()) if matches!(self.remaining, Remaining::UntilClose) => {
                self.may_go_on = false;
                return self.end();
            }
            Ok(()) => "upstream prematurely closed connection while reading upstream".into(),
            Err(error) => match error.kind() {
                io::ErrorKind::TimedOut => {
                    "upstream timed out (110: Connection timed out) while reading upstream".into()
                }
                io::ErrorKind::InvalidData => {
                    format!("SSL_read() failed (SSL: {error}) while reading upstream").into()
                }
                _ => format!(
                    "recv() failed {} while reading upstream",
                    log::Errno(&error)
                )
                .into(),
            },
        };
        self.break_off(Break::Unfinished, text)
    }

    /// Ends a response that lacks its end.
    fn break_off(&mut self, broken: Break, text: std::borrow::Cow<'static, str>) -> Given {
        self.remaining = Remaining::Nothing;
        self.note_end();
        self.broken = Some(broken);
        Given::Told(Told::new(Level::Error, text))
    }

    /// What of the received bytes comes next; `None` where they end before a piece does.
    fn take(&mut self) -> Option<Given> {
        while !self.received.is_empty() {
            match &mut self.remaining {
                Remaining::Nothing => {
                    self.may_go_on = false;
                    self.received = Buffer::default();
                    return Some(Given::Told(told_excess(self.doing)));
                }
                Remaining::NothingAfterChunks => {
                    self.may_go_on = false;
                    self.received = Buffer::default();
                    let text = format!("upstream sent data after final chunk {}", self.doing);
                    return Some(Given::Told(Told::new(Level::Warn, text)));
                }
                Remaining::NothingAfterTrailers => {
                    self.may_go_on = false;
                    self.received = Buffer::default();
                    let text = format!("upstream sent data after trailers {}", self.doing);
                    return Some(Given::Told(Told::new(Level::Warn, text)));
                }
                Remaining::Trailers(reader) => {
                    let read = reader.read(&mut self.received);
                    self.seen.borrow_mut().trailers = reader.fields();
                    match read {
                        Ok(false) => reader.came_later = true,
                        Ok(true) if reader.came_later => {
                            self.remaining = Remaining::NothingAfterTrailers;
                        }
                        Ok(true) => self.remaining = Remaining::NothingAfterChunks,
                        Err(text) => {
                            let text = format!("{text} {READING_BODY}");
                            return Some(self.break_off(Break::Framing, text.into()));
                        }
                    }
                }
                Remaining::UntilClose => {
                    let bytes = std::mem::take(&mut self.received).into_bytes();
                    return Some(self.piece(bytes));
                }
                Remaining::Length(left) => {
                    let taken = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(self.received.len());
                    *left -= taken as u64;
                    if *left == 0 {
                        self.remaining = Remaining::Nothing;
                    }
                    let bytes = take_front(&mut self.received, taken);
                    return Some(self.piece(bytes));
                }
                Remaining::Chunked(decoder) => {
                    let Ok(decoded) = decoder.gather(&mut self.received) else {
                        let text = "upstream sent invalid chunked response while reading upstream";
                        return Some(self.break_off(Break::Framing, text.into()));
                    };
                    let bytes = take_data(&mut self.received, &decoded);
                    if decoded.done {
                        self.remaining = match self.settings.pass_trailers {
                            true => {
                                let mut reader = TrailerReader::new(self.settings.buffer_size);
                                reader.came_later = self.received.is_empty();
                                Remaining::Trailers(Box::new(reader))
                            }
                            false => Remaining::NothingAfterChunks,
                        };
                    }
                    match bytes {
                        Some(bytes) => return Some(self.piece(bytes)),
                        None if decoded.done && self.remaining.is_nothing() => return None,
                        None => {}
                    }
                }
            }
        }
        None
    }

    fn piece(&mut self, bytes: Bytes) -> Given {
        self.flush_next = self.flush;
        Given::Piece(Piece::Bytes(bytes))
    }
}

impl Source for UpstreamBody {
    fn next(&mut self) -> Given {
        if self.came_with_head > 0 {
            let length = std::mem::take(&mut self.came_with_head);
            let beyond = std::mem::take(&mut self.beyond);
            self.seen.borrow_mut().note(|attempt, _| {
                attempt.response_length += length;
                attempt.bytes_received += beyond;
            });
        }
        if let Some(broken) = self.broken {
            return Given::Broken(broken);
        }
        if std::mem::take(&mut self.flush_next) {
            return Given::Piece(Piece::Flush);
        }
        if let Some(pace) = &mut self.pace
            && self.received.is_empty()
        {
            self.received = pace.release(engine::now());
        }
        if let Some(given) = self.take() {
            // The client may ask again as soon as it has the last byte.
            if matches!(
                self.remaining,
                Remaining::Nothing | Remaining::NothingAfterChunks
            ) && let Some(peer) = &mut self.peer
            {
                peer.at_end = None;
            }
            return given;
        }
        if self.remaining.is_nothing() {
            return self.end();
        }
        match self.stopped.take() {
            Some(stopped) => self.stop(stopped),
            None => Given::Nothing,
        }
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(pace) = &mut self.pace {
            ready!(pace.poll_ready(engine::now(), context));
            if !pace.is_empty() {
                return Poll::Ready(());
            }
        }
        let read_timeout = self.read_timeout;
        let deadline = self
            .deadline
            .get_or_insert_with(|| engine::now() + read_timeout);
        let Some(peer) = &self.peer else {
            return Poll::Ready(()); // there is nothing to wait for
        };
        let received = ready!(peer.stream.poll_recv(Some(*deadline), context));
        self.deadline = None;
        match received {
            Ok(buffer) if buffer.is_empty() => self.stopped = Some(Ok(())),
            Ok(buffer) => {
                let length = buffer.len() as u64;
                self.seen.borrow_mut().note(|attempt, _| {
                    attempt.bytes_received += length;
                    attempt.response_length += length;
                });
                match &mut self.pace {
                    Some(pace) => pace.hold(buffer),
                    None => self.received = buffer,
                }
                self.doing = READING_BODY;
            }
            Err(error) => self.stopped = Some(Err(error)),
        }
        Poll::Ready(())
    }

    /// Not where every part leaves at once: as in nginx the end comes once that has left.
    fn is_whole(&self) -> bool {
        self.remaining.is_nothing() && !self.flush
    }

    fn trailers(&mut self) -> Vec<Field> {
        if !self.settings.pass_trailers {
            return Vec::new();
        }
        let seen = self.seen.borrow();
        let passed = |field: &&Field| !is_hidden(&self.settings, &field.name);
        seen.trailers.iter().filter(passed).cloned().collect()
    }

    fn outlives_client(&self) -> bool {
        self.ignore_client_abort
    }

    fn give_up(&mut self, left: &Abort) -> Told {
        self.note_end();
        told_left(left, READING_BODY)
    }

    fn beginning(&self) -> &'static str {
        WHILE_READING
    }
}
