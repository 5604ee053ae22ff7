//! The body of an upstream's response while it is received.
//!
//! Without buffering, the body is read only as fast as the client takes it. With buffering
//! (`proxy_buffering`) it is read at the upstream's pace: bytes that the client is slow to read are
//! kept in a [`Spill`], and the upstream connection is released as soon as the response is
//! complete. If the client keeps up, nothing is kept.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::{Buffer, Sleep};
use http::exchange::abort::Abort;
use http::h1::intake::{take_data, take_front};
use http::response::Field;
use http::response::piece::Piece;
use http::response::source::{BodyError, DeferredLog, Source, SourceEvent};
use http::response::spill::Spill;
use logs::Level;
use proto::h1::chunked::Decoder;
use proto::h1::response::BodyFraming;

use super::READING_BODY;
use super::answer_framing::{AnswerFraming, FramedPart};
use super::attempts::Attempts;
use super::connection::UpstreamConnection;
use super::http2::body::StreamBody;
use super::pace::ReadPace;
use super::settings::PassSettings;
use super::trailers::TrailerReader;
use super::upload::Uploaded;
use crate::activity::{READING, SENDING, WHILE_READING};
use crate::failures::client_closed_log;

/// How long a client that has kept up so far may be slow before its data is written to a file. The
/// event loop needs a few turns to send data, so even a client as fast as its upstream lags for a
/// moment.
const SLOW_CLIENT_WAIT: Duration = Duration::from_millis(1);

/// The part of the body that has not been received.
enum Remaining {
    Nothing,
    /// Nothing: the last chunk has been received.
    NothingAfterChunks,
    /// Nothing: the trailers have been received.
    NothingAfterTrailers,
    /// This many bytes.
    Length(u64),
    /// The rest of a chunked body.
    Chunked(Box<Decoder>),
    /// The trailers of a chunked body.
    Trailers(Box<TrailerReader>),
    /// All bytes until the connection is closed.
    UntilClose,
    /// The body has a framing of its own.
    Framed(Box<dyn AnswerFraming>),
}

/// What determines the end of a body.
pub enum BodyDelimiter {
    /// HTTP/1: the length, the chunks or the end of the connection.
    Http(BodyFraming),
    /// The framing of another protocol.
    Own(Box<dyn AnswerFraming>),
    /// The HTTP/2 stream of the response.
    Stream(StreamBody),
}

impl BodyDelimiter {
    /// The framing, if it is not that of HTTP/1.
    pub(super) fn framing(&mut self) -> Option<&mut dyn AnswerFraming> {
        match self {
            BodyDelimiter::Http(_) => None,
            BodyDelimiter::Own(framing) => Some(&mut **framing),
            BodyDelimiter::Stream(body) => Some(body),
        }
    }
}

impl Remaining {
    /// Whether the framing is known to be broken off after the received bytes.
    fn is_broken_off(&self) -> bool {
        matches!(self, Remaining::Framed(framing) if framing.is_broken_off())
    }

    fn is_nothing(&self) -> bool {
        matches!(
            self,
            Remaining::Nothing | Remaining::NothingAfterChunks | Remaining::NothingAfterTrailers
        )
    }
}

/// How a body has ended.
#[derive(Clone, Copy)]
enum BodyEnd {
    /// The body is complete.
    Whole,
    /// The body was broken off.
    Broken(BodyError),
}

/// The body of an upstream's response.
pub struct UpstreamBody {
    /// The connection, until the body has ended.
    peer: Option<UpstreamConnection>,
    /// Whether the connection may serve another request afterwards.
    may_reuse: bool,
    /// The history for `$upstream_*`, in which the body records how it ends.
    seen: Rc<Attempts>,
    /// The `*_pass` settings of the scope.
    passing: Arc<PassSettings>,
    remaining: Remaining,
    /// Received bytes that have not been decoded.
    received: Buffer,
    /// Limits the rate of reading, if there is a limit.
    pace: Option<ReadPace>,
    /// How the upstream has stopped sending, once that is known.
    stopped: Option<io::Result<()>>,
    /// Bytes that were received with the head; 0 once they have been counted.
    received_with_head: u64,
    /// See [`BodyPrefix::beyond`]; 0 once the bytes have been counted.
    beyond: u64,
    /// The deadline of the current wait.
    deadline: Option<Instant>,
    /// Every part is sent at once (`proxy_buffering off`, `X-Accel-Buffering: no`), and nothing is
    /// read ahead of the client.
    flush: bool,
    /// A flush follows the last part.
    flush_next: bool,
    /// The bytes that were read ahead of the client.
    ahead: Spill,
    /// The timer for a slow client, while the memory of `ahead` is full and no file is used.
    slow_client_timer: Option<Sleep>,
    /// Lines that have not been logged yet.
    deferred_log: VecDeque<DeferredLog>,
    /// Whether the request's body was sent before the response was read in the last poll.
    was_upload_first: bool,
    /// How the body has ended, after the bytes in `ahead`.
    ending: Option<BodyEnd>,
    /// The activity for log lines about received bytes: see [`body_activity`].
    doing: &'static str,
}

impl std::fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpstreamBody")
    }
}

/// The part of a body that was received with the head.
pub struct BodyPrefix {
    /// The bytes behind the head.
    pub rest: Buffer,
    /// How many bytes were received beyond `proxy_buffer_size`: as nginx reads these only for the
    /// body, `$upstream_bytes_received` counts them once they are read.
    pub beyond: u64,
    /// Whether the upstream keeps the connection alive after the body.
    pub may_reuse: bool,
}

/// The activity for log lines about a body that was received with its head. As in nginx, an
/// unbuffered body still belongs to the head then.
pub fn body_activity(buffered: bool) -> &'static str {
    if buffered { READING_BODY } else { READING }
}

/// The log line about bytes beyond the length that the head has announced.
pub fn excess_body_log(doing: &str) -> DeferredLog {
    let text =
        format!("upstream sent more data than specified in \"Content-Length\" header {doing}");
    DeferredLog::new(Level::Warn, text)
}

impl UpstreamBody {
    pub(crate) fn new(
        peer: UpstreamConnection,
        seen: Rc<Attempts>,
        passing: &Arc<PassSettings>,
        delimited: BodyDelimiter,
        mut arrived: BodyPrefix,
        buffered: bool,
        rate: u64,
    ) -> UpstreamBody {
        let received_with_head = arrived.rest.len() as u64;
        let decoder = if passing.pass_trailers {
            Decoder::keeping_trailers
        } else {
            Decoder::new
        };
        let remaining = match delimited {
            BodyDelimiter::Http(BodyFraming::None | BodyFraming::Length(0)) => Remaining::Nothing,
            BodyDelimiter::Http(BodyFraming::Length(length)) => Remaining::Length(length),
            BodyDelimiter::Http(BodyFraming::Chunked) => Remaining::Chunked(Box::new(decoder())),
            BodyDelimiter::Http(BodyFraming::UntilClose) => Remaining::UntilClose,
            BodyDelimiter::Own(framing) => Remaining::Framed(framing),
            BodyDelimiter::Stream(body) => Remaining::Framed(Box::new(body)),
        };
        let mut body = UpstreamBody {
            peer: Some(peer),
            may_reuse: arrived.may_reuse,
            seen,
            remaining,
            stopped: None,
            received_with_head,
            beyond: arrived.beyond,
            pace: ReadPace::begin(rate, &mut arrived.rest, arrived.beyond, engine::now()),
            received: arrived.rest,
            deadline: None,
            flush: !buffered,
            flush_next: false,
            ahead: Spill::new(&passing.buffers.limits),
            slow_client_timer: None,
            deferred_log: VecDeque::new(),
            was_upload_first: false,
            ending: None,
            doing: body_activity(buffered),
            passing: Arc::clone(passing),
        };
        // An empty body has ended already: the connection is released without a poll.
        if matches!(body.remaining, Remaining::Nothing) && body.received.is_empty() {
            body.release_connection();
        }
        body
    }

    /// Records the end of the body. The upstream connection is released, even if the client has yet
    /// to read buffered bytes.
    fn end(&mut self) {
        self.note_received(0, 0);
        if let Remaining::Framed(framing) = &mut self.remaining {
            let trailers = framing.trailers();
            self.seen.borrow_mut().trailers = trailers;
        }
        self.remaining = Remaining::Nothing;
        self.note_end();
        self.release_connection();
        self.ending = Some(BodyEnd::Whole);
    }

    /// Releases the connection for another request, or closes it.
    fn release_connection(&mut self) {
        if let Some(peer) = self.peer.take() {
            let is_read = self.pace.as_ref().is_none_or(ReadPace::is_empty);
            release_connection(peer, &self.seen, self.may_reuse && is_read);
        }
    }

    /// Counts `length` bytes of the body, of which `beyond` are not in `$upstream_bytes_received`
    /// yet. A framing with counts of its own replaces both counts.
    fn note_received(&self, length: u64, beyond: u64) {
        let counted = match &self.remaining {
            Remaining::Framed(framing) => framing.received(),
            _ => None,
        };
        self.seen.borrow_mut().note(|attempt, _| match counted {
            Some(received) => {
                attempt.bytes_received = received.in_all;
                attempt.response_length = received.behind_head;
            }
            None => {
                attempt.bytes_received += beyond;
                attempt.response_length += length;
            }
        });
    }

    /// Records the time until the end of the response.
    fn note_end(&self) {
        let mut seen = self.seen.borrow_mut();
        seen.note(|attempt, began| attempt.response_time = began.elapsed());
    }

    /// Handles the end of the connection: the body ends if its framing is the end of the
    /// connection; otherwise the response is broken off.
    fn stop(&mut self, stopped: io::Result<()>) {
        let text: Cow<'static, str> = match stopped {
            Ok(()) if matches!(self.remaining, Remaining::UntilClose) => {
                self.may_reuse = false;
                return self.end();
            }
            Ok(()) => match &mut self.remaining {
                Remaining::Framed(framing) => match framing.closed() {
                    Ok(()) => {
                        self.may_reuse = false;
                        return self.end();
                    }
                    Err((broken, text)) => {
                        let text = format!("{text} {READING_BODY}");
                        return self.break_off(broken, DeferredLog::new(Level::Error, text));
                    }
                },
                _ => "upstream prematurely closed connection while reading upstream".into(),
            },
            Err(error) => match error.kind() {
                ErrorKind::TimedOut => {
                    "upstream timed out (110: Connection timed out) while reading upstream".into()
                }
                ErrorKind::InvalidData => {
                    format!("SSL_read() failed (SSL: {error}) while reading upstream").into()
                }
                _ => {
                    // nginx reads into several buffers if it buffers.
                    let call = if self.flush { "recv()" } else { "readv()" };
                    let error = logs::Errno(&error);
                    format!("{call} failed {error} while reading upstream").into()
                }
            },
        };
        self.break_off(BodyError::Unfinished, DeferredLog::new(Level::Error, text));
    }

    /// Ends an incomplete response.
    fn break_off(&mut self, broken: BodyError, deferred_log: impl Into<Option<DeferredLog>>) {
        self.remaining = Remaining::Nothing;
        self.received = Buffer::default();
        self.peer = None;
        self.note_end();
        self.deferred_log.extend(deferred_log.into());
        self.ending = Some(BodyEnd::Broken(broken));
    }

    /// Takes the next part of the body from the received bytes; `None` if they contain no further
    /// part.
    fn take(&mut self) -> Option<Bytes> {
        let taken = self.decode();
        // The client may send its next request as soon as it has the last byte.
        if self.has_come()
            && let Some(peer) = &mut self.peer
        {
            peer.at_end = None;
        }
        taken
    }

    /// Decodes the next part of the body from the received bytes.
    fn decode(&mut self) -> Option<Bytes> {
        while !self.received.is_empty() {
            match &mut self.remaining {
                Remaining::Nothing => self.leave_out(excess_body_log(self.doing)),
                Remaining::NothingAfterChunks => {
                    let text = format!("upstream sent data after final chunk {}", self.doing);
                    self.leave_out(DeferredLog::new(Level::Warn, text));
                }
                Remaining::NothingAfterTrailers => {
                    let text = format!("upstream sent data after trailers {}", self.doing);
                    self.leave_out(DeferredLog::new(Level::Warn, text));
                }
                Remaining::Trailers(reader) => {
                    let read = reader.read(&mut self.received);
                    self.seen.borrow_mut().trailers = reader.fields();
                    match read {
                        Ok(false) => reader.was_received_later = true,
                        Ok(true) if reader.was_received_later => {
                            self.remaining = Remaining::NothingAfterTrailers;
                        }
                        Ok(true) => self.remaining = Remaining::NothingAfterChunks,
                        Err(text) => {
                            let text = format!("{text} {READING_BODY}");
                            self.break_off(
                                BodyError::Framing,
                                DeferredLog::new(Level::Error, text),
                            );
                        }
                    }
                }
                Remaining::UntilClose => {
                    return Some(std::mem::take(&mut self.received).into_bytes());
                }
                Remaining::Framed(framing) => match framing.next(&mut self.received) {
                    FramedPart::Bytes(bytes) => return Some(bytes),
                    FramedPart::Nothing => return None,
                    FramedPart::Told(level, text) => {
                        let text = format!("{text} {}", self.doing);
                        self.deferred_log.push_back(DeferredLog::new(level, text));
                    }
                    FramedPart::End { may_reuse } => {
                        self.may_reuse &= may_reuse;
                        self.received = Buffer::default();
                        self.remaining = Remaining::Nothing;
                    }
                    FramedPart::Broken(broken, text) => {
                        let text = format!("{text} {}", self.doing);
                        self.break_off(broken, DeferredLog::new(Level::Error, text));
                        return None;
                    }
                },
                Remaining::Length(left) => {
                    let taken = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(self.received.len());
                    *left -= taken as u64;
                    if *left == 0 {
                        self.remaining = Remaining::Nothing;
                    }
                    return Some(take_front(&mut self.received, taken));
                }
                Remaining::Chunked(decoder) => {
                    let Ok(decoded) = decoder.gather(&mut self.received) else {
                        let text = "upstream sent invalid chunked response while reading upstream";
                        self.break_off(BodyError::Framing, DeferredLog::new(Level::Error, text));
                        return None;
                    };
                    let bytes = take_data(&mut self.received, &decoded);
                    if decoded.done {
                        self.remaining = if self.passing.pass_trailers {
                            let mut reader = TrailerReader::new(self.passing.buffer_size);
                            reader.was_received_later = self.received.is_empty();
                            Remaining::Trailers(Box::new(reader))
                        } else {
                            Remaining::NothingAfterChunks
                        };
                    }
                    if bytes.is_some() {
                        return bytes;
                    }
                }
            }
        }
        None
    }

    /// Discards bytes that were received after the end of the body.
    fn leave_out(&mut self, deferred_log: DeferredLog) {
        self.may_reuse = false;
        self.received = Buffer::default();
        self.deferred_log.push_back(deferred_log);
    }

    /// Whether the body is complete by its framing.
    fn has_come(&self) -> bool {
        self.remaining.is_nothing()
    }

    /// Whether everything but the end of the body has been passed on.
    pub(super) fn has_passed_all(&self) -> bool {
        let broken = matches!(self.ending, Some(BodyEnd::Broken(_)));
        self.has_come() && !broken && self.ahead.is_empty()
    }

    /// Checks, when all received bytes have been taken, whether the body has ended.
    fn settle(&mut self) {
        if self.ending.is_some() {
            return;
        }
        if self.has_come() {
            self.end();
        } else if let Some(stopped) = self.stopped.take() {
            self.stop(stopped);
        }
    }

    /// Continues to send the request's body, if a part is left. Ready if a failure of the upload
    /// has broken off the response.
    fn poll_upload(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(peer) = &mut self.peer else {
            return Poll::Pending;
        };
        let Some(mut upload) = peer.upload.take() else {
            return Poll::Pending;
        };
        let before = upload.sent();
        let polled = upload.poll(peer.stream(), context);
        let sent = upload.sent() - before;
        if sent > 0 {
            self.deadline = None; // the upstream is not idle
            let mut seen = self.seen.borrow_mut();
            seen.note(|attempt, _| attempt.bytes_sent += sent);
        }
        match polled {
            Poll::Pending => peer.upload = Some(upload),
            Poll::Ready(Uploaded::Whole) => peer.asked = true,
            // A response that outlives its client has no sender that would notice the client's end.
            Poll::Ready(Uploaded::Left)
                if self.outlives_client() || self.passing.store.is_some() =>
            {
                let deferred_log =
                    client_closed_log(&Abort::Closed(ErrorKind::ConnectionReset.into()), SENDING);
                self.break_off(BodyError::Request, deferred_log);
                return Poll::Ready(());
            }
            Poll::Ready(Uploaded::Ended | Uploaded::Left) => {}
            Poll::Ready(Uploaded::Broken(deferred_log)) => {
                self.break_off(BodyError::Request, deferred_log);
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Alternates between the request's body and the response, so that neither delays the other
    /// however fast it is.
    fn is_upload_turn(&mut self) -> bool {
        self.was_upload_first = !self.was_upload_first;
        self.was_upload_first
    }

    /// The client has left: stops sending a body that comes from the client.
    pub(super) fn abort_client_upload(&mut self) {
        if let Some(peer) = &mut self.peer {
            peer.upload.take_if(|upload| upload.is_of_client());
        }
    }

    /// Reads ahead of the client, unless every part is sent at once.
    fn poll_read_ahead(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<DeferredLog, BodyError>> {
        if self.flush && self.ending.is_none() {
            return Poll::Pending;
        }
        loop {
            if let Some(deferred_log) = self.deferred_log.pop_front() {
                return Poll::Ready(Ok(deferred_log));
            }
            if self.ahead.is_writing() && self.poll_written(context).is_ready() {
                continue;
            }
            match self.ending {
                Some(BodyEnd::Broken(broken @ (BodyError::BufferFailed | BodyError::Request))) => {
                    return Poll::Ready(Err(broken));
                }
                Some(_) => return Poll::Pending,
                None => {}
            }
            while let Some(bytes) = self.take() {
                self.ahead.push(bytes);
            }
            self.settle();
            if !self.deferred_log.is_empty() || self.ending.is_some() {
                continue;
            }
            if self.may_read_ahead() {
                ready!(self.poll_receive(context));
                continue;
            }
            if !self.ahead.may_write() {
                return Poll::Pending; // the upstream waits for the disk, or for the client
            }
            if !self.ahead.is_in_file() {
                let slow_client_timer = self
                    .slow_client_timer
                    .get_or_insert_with(|| engine::sleep(SLOW_CLIENT_WAIT));
                ready!(Pin::new(slow_client_timer).poll(context));
            }
            self.ahead.start_writing();
        }
    }

    /// Whether more bytes may be received. Bytes on a shared connection are already in memory,
    /// within the window of the stream, and taking them lets the peer send more. So they are only
    /// taken if the memory has room for a whole window besides, if a file can take bytes, or if the
    /// stream has ended.
    fn may_read_ahead(&mut self) -> bool {
        let shared = self.peer.as_mut().and_then(UpstreamConnection::shared);
        let Some(stream) = shared else {
            return self.ahead.has_room();
        };
        let window = stream.window();
        stream.has_ended() || self.ahead.has_room_beside(window) || self.ahead.may_begin_write()
    }

    /// Receives more of the body, no faster than `pace` permits, unless the body has ended.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Some(pace) = &mut self.pace {
            ready!(pace.poll_ready(engine::now(), context));
            if pace.is_empty() {
                break;
            }
            self.received = pace.release(engine::now());
            if !self.received.is_empty() {
                return Poll::Ready(());
            }
        }
        let Some(peer) = &mut self.peer else {
            return Poll::Ready(()); // there is nothing to wait for
        };
        let read_timeout = self.passing.read_timeout;
        let deadline = self
            .deadline
            .get_or_insert_with(|| engine::now() + read_timeout);
        let received = ready!(peer.poll_recv(Some(*deadline), context));
        self.deadline = None;
        match received {
            Ok(buffer) if buffer.is_empty() => self.stopped = Some(Ok(())),
            Ok(buffer) => {
                let length = buffer.len() as u64;
                self.note_received(length, length);
                match &mut self.pace {
                    Some(pace) => {
                        pace.hold(buffer);
                        self.received = pace.release(engine::now());
                    }
                    None => self.received = buffer,
                }
                self.doing = READING_BODY;
            }
            Err(error) => self.stopped = Some(Err(error)),
        }
        Poll::Ready(())
    }

    /// Waits until a part has been written to the temporary file.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let written = ready!(self.ahead.poll_written(context));
        if let Some(path) = written.made {
            let path = path.display();
            let text = format!(
                "an upstream response is buffered to a temporary file {path} while reading upstream"
            );
            self.deferred_log
                .push_back(DeferredLog::new(Level::Warn, text));
        }
        if let Some(failure) = written.failure {
            let text = format!("{failure} while reading upstream");
            self.break_off(BodyError::BufferFailed, DeferredLog::new(Level::Crit, text));
        }
        Poll::Ready(())
    }
}

/// Ends the use of the connection after a complete response. The connection serves another request
/// if `may_reuse`; otherwise it is closed.
pub(super) fn release_connection(mut peer: UpstreamConnection, seen: &Attempts, may_reuse: bool) {
    if let Some(lease) = &mut peer.lease {
        seen.borrow_mut().note(|attempt, began| {
            lease.answer_came(began.elapsed().unwrap_or_default());
            lease.note_bytes(attempt.bytes_sent, attempt.bytes_received);
        });
    }
    peer.done(may_reuse);
}

impl Source for UpstreamBody {
    fn next(&mut self) -> SourceEvent {
        self.slow_client_timer = None;
        if self.received_with_head > 0 {
            let length = std::mem::take(&mut self.received_with_head);
            let beyond = std::mem::take(&mut self.beyond);
            self.note_received(length, beyond);
        }
        loop {
            if let Some(deferred_log) = self.deferred_log.pop_front() {
                return SourceEvent::Told(deferred_log);
            }
            if std::mem::take(&mut self.flush_next) {
                return SourceEvent::Piece(Piece::Flush);
            }
            if let Some(piece) = self.ahead.take() {
                return SourceEvent::Piece(piece);
            }
            if self.ahead.is_writing() {
                return SourceEvent::Nothing;
            }
            match self.ending {
                Some(BodyEnd::Whole) => return SourceEvent::End,
                Some(BodyEnd::Broken(broken)) => return SourceEvent::Broken(broken),
                None => {}
            }
            if let Some(bytes) = self.take() {
                self.flush_next = self.flush && !self.remaining.is_broken_off();
                return SourceEvent::Piece(Piece::Bytes(bytes));
            }
            self.settle();
            if self.deferred_log.is_empty() && self.ending.is_none() {
                return SourceEvent::Nothing;
            }
        }
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let was_upload_first = self.is_upload_turn();
        if was_upload_first && self.poll_upload(context).is_ready() {
            return Poll::Ready(());
        }
        let come = if self.ahead.is_writing() {
            self.poll_written(context)
        } else {
            self.poll_receive(context)
        };
        if come.is_ready() || was_upload_first {
            return come;
        }
        let waited_until = self.deadline;
        match self.poll_upload(context) {
            // The deadline has changed.
            Poll::Pending if self.deadline != waited_until => self.poll_receive(context),
            polled => polled,
        }
    }

    fn poll_prefetch(&mut self, context: &mut Context<'_>) -> Poll<Result<DeferredLog, BodyError>> {
        let was_upload_first = self.is_upload_turn();
        if was_upload_first && self.poll_upload(context).is_ready() {
            return self.poll_read_ahead(context);
        }
        let ahead = self.poll_read_ahead(context);
        if ahead.is_ready() || was_upload_first {
            return ahead;
        }
        let waited_until = self.deadline;
        let is_broken = self.poll_upload(context).is_ready();
        if is_broken || self.deadline != waited_until {
            self.poll_read_ahead(context)
        } else {
            ahead
        }
    }

    fn queued_max(&self) -> Option<usize> {
        let goes_on = self.ending.is_none() && !self.has_come();
        let busy_size = if self.flush {
            0
        } else {
            self.passing.buffers.busy_size
        };
        goes_on.then_some(busy_size)
    }

    /// Whether the body is complete. Always false if every part is sent at once: as in nginx, the
    /// end then follows once the last part has been sent.
    fn is_whole(&self) -> bool {
        self.has_passed_all() && !self.flush
    }

    fn trailers(&mut self) -> Vec<Field> {
        self.passing.passed_trailers(&self.seen)
    }

    fn outlives_client(&self) -> bool {
        self.passing.tries.ignore_client_abort
    }

    fn give_up(&mut self, left: &Abort) -> DeferredLog {
        self.note_end();
        client_closed_log(left, READING_BODY)
    }

    fn beginning(&self) -> &'static str {
        WHILE_READING
    }
}
