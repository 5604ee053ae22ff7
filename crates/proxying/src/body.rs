//! The upstream's body as it comes.
//!
//! Without buffering as fast as it is asked for, and no faster. With it (`proxy_buffering`) at the
//! upstream's own pace: what the client is slow to take is kept in a [`Spill`], and the upstream is
//! let go as soon as its answer has come whole. Where the client keeps up, nothing is kept.

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
use http::response::source::{Break, DeferredLog, Source, SourceEvent};
use http::response::spill::Spill;
use logs::Level;
use proto::h1::chunked::Decoder;
use proto::h1::response::BodyFraming;

use super::READING_BODY;
use super::answer_framing::{AnswerFraming, Framed};
use super::attempts::Attempts;
use super::connection::UpstreamConnection;
use super::http2::body::StreamBody;
use super::pace::ReadPace;
use super::settings::Passing;
use super::trailers::TrailerReader;
use super::upload::Uploaded;
use crate::activity::{READING, SENDING, WHILE_READING};
use crate::failures::told_left;

/// How long a client that has kept up so far may leave what it is given before anything is written
/// to a file for it: what leaves by the event loop takes a few turns, and a client that is as fast
/// as its upstream a moment.
const PATIENCE: Duration = Duration::from_millis(1);

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
    /// It lies in a framing of its own.
    Framed(Box<dyn AnswerFraming>),
}

/// What tells where a body ends.
pub enum Delimited {
    /// HTTP/1's, by length, chunks or the connection's end.
    Http(BodyFraming),
    /// The framing of another protocol.
    Own(Box<dyn AnswerFraming>),
    /// The stream that it came on.
    Stream(StreamBody),
}

impl Delimited {
    /// A framing that is not HTTP/1's.
    pub(super) fn framing(&mut self) -> Option<&mut dyn AnswerFraming> {
        match self {
            Delimited::Http(_) => None,
            Delimited::Own(framing) => Some(&mut **framing),
            Delimited::Stream(body) => Some(body),
        }
    }
}

impl Remaining {
    /// Whether it is known already that nothing follows what has been received, nor the end.
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

/// How the body has ended.
#[derive(Clone, Copy)]
enum BodyEnd {
    Whole,
    Broken(Break),
}

/// The body of an upstream's response.
pub struct UpstreamBody {
    /// Until the body has ended.
    peer: Option<UpstreamConnection>,
    /// Whether the connection may serve another request after this.
    may_go_on: bool,
    /// What `$upstream_*` tell, of which the body goes on to write the end.
    seen: Rc<Attempts>,
    passing: Arc<Passing>,
    remaining: Remaining,
    received: Buffer,
    /// How fast it is read, where that is limited.
    pace: Option<ReadPace>,
    /// How the upstream has stopped sending, once that has been found out.
    stopped: Option<io::Result<()>>,
    /// How much came along with the head; 0 once that counts.
    came_with_head: u64,
    /// See [`Arrived::beyond`]; 0 once that counts.
    beyond: u64,
    /// When the wait under way ends.
    deadline: Option<Instant>,
    /// Every part leaves at once (`proxy_buffering off`, `X-Accel-Buffering: no`), and nothing is
    /// read ahead.
    flush: bool,
    flush_next: bool,
    /// What has been read ahead of the client.
    ahead: Spill,
    /// Where that is full and no file has any of it: how long the client has yet to take some.
    patience: Option<Sleep>,
    /// What the log has not been told yet.
    told: VecDeque<DeferredLog>,
    /// Whether the request's body has gone before the answer the last time.
    upload_first: bool,
    /// How the body has ended, behind what has been read ahead.
    ending: Option<BodyEnd>,
    /// What is being done, for log lines about what has come: see [`doing_behind_head`].
    doing: &'static str,
}

impl std::fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpstreamBody")
    }
}

/// What of a body has come along with the head.
pub struct Arrived {
    /// What has come behind the head.
    pub rest: Buffer,
    /// How many bytes came beyond `proxy_buffer_size`: as nginx reads them only for the body,
    /// `$upstream_bytes_received` has them once that is read.
    pub beyond: u64,
    /// Whether the upstream goes on with the connection behind the body.
    pub may_go_on: bool,
}

/// What is being done, for log lines, while an answer is looked at that came along with its head:
/// as nginx has it, that still belongs to the head where every part leaves at once.
pub fn doing_behind_head(buffered: bool) -> &'static str {
    if buffered { READING_BODY } else { READING }
}

/// What there is to log where more has come than the head of the answer has announced.
pub fn told_excess(doing: &str) -> DeferredLog {
    let text =
        format!("upstream sent more data than specified in \"Content-Length\" header {doing}");
    DeferredLog::new(Level::Warn, text)
}

impl UpstreamBody {
    pub(crate) fn new(
        peer: UpstreamConnection,
        seen: Rc<Attempts>,
        passing: &Arc<Passing>,
        delimited: Delimited,
        mut arrived: Arrived,
        buffered: bool,
        rate: u64,
    ) -> UpstreamBody {
        let came_with_head = arrived.rest.len() as u64;
        let decoder = if passing.pass_trailers {
            Decoder::keeping_trailers
        } else {
            Decoder::new
        };
        let remaining = match delimited {
            Delimited::Http(BodyFraming::None | BodyFraming::Length(0)) => Remaining::Nothing,
            Delimited::Http(BodyFraming::Length(length)) => Remaining::Length(length),
            Delimited::Http(BodyFraming::Chunked) => Remaining::Chunked(Box::new(decoder())),
            Delimited::Http(BodyFraming::UntilClose) => Remaining::UntilClose,
            Delimited::Own(framing) => Remaining::Framed(framing),
            Delimited::Stream(body) => Remaining::Framed(Box::new(body)),
        };
        let mut body = UpstreamBody {
            peer: Some(peer),
            may_go_on: arrived.may_go_on,
            seen,
            remaining,
            stopped: None,
            came_with_head,
            beyond: arrived.beyond,
            pace: ReadPace::begin(rate, &mut arrived.rest, arrived.beyond, engine::now()),
            received: arrived.rest,
            deadline: None,
            flush: !buffered,
            flush_next: false,
            ahead: Spill::new(&passing.buffers.limits),
            patience: None,
            told: VecDeque::new(),
            upload_first: false,
            ending: None,
            doing: doing_behind_head(buffered),
            passing: Arc::clone(passing),
        };
        // Nothing may ask for the end of nothing.
        if matches!(body.remaining, Remaining::Nothing) && body.received.is_empty() {
            body.let_go();
        }
        body
    }

    /// The body has come to its end: the upstream has done its part, however much of it the client
    /// has yet to take.
    fn end(&mut self) {
        self.note_received(0, 0);
        if let Remaining::Framed(framing) = &mut self.remaining {
            let trailers = framing.trailers();
            self.seen.borrow_mut().trailers = trailers;
        }
        self.remaining = Remaining::Nothing;
        self.note_end();
        self.let_go();
        self.ending = Some(BodyEnd::Whole);
    }

    /// Its connection serves another request, or ends.
    fn let_go(&mut self) {
        if let Some(peer) = self.peer.take() {
            let is_read = self.pace.as_ref().is_none_or(ReadPace::is_empty);
            let_go(peer, &self.seen, self.may_go_on && is_read);
        }
    }

    /// Counts received bytes; `beyond` of them did not come with the head.
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

    fn note_end(&self) {
        let mut seen = self.seen.borrow_mut();
        seen.note(|attempt, began| attempt.response_time = began.elapsed());
    }

    /// The upstream sends no more: the end where nothing else marks it, else a broken response.
    fn stop(&mut self, stopped: io::Result<()>) {
        let text: Cow<'static, str> = match stopped {
            Ok(()) if matches!(self.remaining, Remaining::UntilClose) => {
                self.may_go_on = false;
                return self.end();
            }
            Ok(()) => match &mut self.remaining {
                Remaining::Framed(framing) => match framing.closed() {
                    Ok(()) => {
                        self.may_go_on = false;
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
                    // nginx reads into several buffers where it buffers.
                    let call = if self.flush { "recv()" } else { "readv()" };
                    let error = logs::Errno(&error);
                    format!("{call} failed {error} while reading upstream").into()
                }
            },
        };
        self.break_off(Break::Unfinished, DeferredLog::new(Level::Error, text));
    }

    /// Ends a response that lacks its end.
    fn break_off(&mut self, broken: Break, told: impl Into<Option<DeferredLog>>) {
        self.remaining = Remaining::Nothing;
        self.received = Buffer::default();
        self.peer = None;
        self.note_end();
        self.told.extend(told.into());
        self.ending = Some(BodyEnd::Broken(broken));
    }

    /// What of the received bytes comes next; `None` where they end before a piece does.
    fn take(&mut self) -> Option<Bytes> {
        let taken = self.decode();
        // The client may ask again as soon as it has the last byte.
        if self.has_come()
            && let Some(peer) = &mut self.peer
        {
            peer.at_end = None;
        }
        taken
    }

    /// What of the received bytes is the body's and comes next.
    fn decode(&mut self) -> Option<Bytes> {
        while !self.received.is_empty() {
            match &mut self.remaining {
                Remaining::Nothing => self.leave_out(told_excess(self.doing)),
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
                        Ok(false) => reader.came_later = true,
                        Ok(true) if reader.came_later => {
                            self.remaining = Remaining::NothingAfterTrailers;
                        }
                        Ok(true) => self.remaining = Remaining::NothingAfterChunks,
                        Err(text) => {
                            let text = format!("{text} {READING_BODY}");
                            self.break_off(Break::Framing, DeferredLog::new(Level::Error, text));
                        }
                    }
                }
                Remaining::UntilClose => {
                    return Some(std::mem::take(&mut self.received).into_bytes());
                }
                Remaining::Framed(framing) => match framing.next(&mut self.received) {
                    Framed::Bytes(bytes) => return Some(bytes),
                    Framed::Nothing => return None,
                    Framed::Told(level, text) => {
                        let text = format!("{text} {}", self.doing);
                        self.told.push_back(DeferredLog::new(level, text));
                    }
                    Framed::End { may_go_on } => {
                        self.may_go_on &= may_go_on;
                        self.received = Buffer::default();
                        self.remaining = Remaining::Nothing;
                    }
                    Framed::Broken(broken, text) => {
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
                        self.break_off(Break::Framing, DeferredLog::new(Level::Error, text));
                        return None;
                    };
                    let bytes = take_data(&mut self.received, &decoded);
                    if decoded.done {
                        self.remaining = if self.passing.pass_trailers {
                            let mut reader = TrailerReader::new(self.passing.buffer_size);
                            reader.came_later = self.received.is_empty();
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

    /// Passes over what has come behind the end.
    fn leave_out(&mut self, told: DeferredLog) {
        self.may_go_on = false;
        self.received = Buffer::default();
        self.told.push_back(told);
    }

    /// Whether all of the body has come, as its framing says.
    fn has_come(&self) -> bool {
        self.remaining.is_nothing()
    }

    /// Whether all of it has been given that is to be given, but for its end.
    pub(super) fn has_given_all(&self) -> bool {
        let broken = matches!(self.ending, Some(BodyEnd::Broken(_)));
        self.has_come() && !broken && self.ahead.is_empty()
    }

    /// What has been received has been taken: finds out whether that was the end.
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

    /// Goes on with the rest of the request's body, if there is any; ready where that has broken
    /// off the answer.
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
            // Nothing else finds it out.
            Poll::Ready(Uploaded::Left)
                if self.outlives_client() || self.passing.store.is_some() =>
            {
                let told = told_left(&Abort::Closed(ErrorKind::ConnectionReset.into()), SENDING);
                self.break_off(Break::Request, told);
                return Poll::Ready(());
            }
            Poll::Ready(Uploaded::Ended | Uploaded::Left) => {}
            Poll::Ready(Uploaded::Broken(told)) => {
                self.break_off(Break::Request, told);
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Whether the request's body goes first this time: neither way holds up the other, however
    /// quick it is.
    fn is_turn_of_upload(&mut self) -> bool {
        self.upload_first = !self.upload_first;
        self.upload_first
    }

    /// The client has gone: nothing more of a body that comes from it is sent.
    pub(super) fn lose_client(&mut self) {
        if let Some(peer) = &mut self.peer {
            peer.upload.take_if(|upload| upload.is_of_client());
        }
    }

    /// Reads ahead of the client, unless every part is to leave at once.
    fn poll_read_ahead(&mut self, context: &mut Context<'_>) -> Poll<Result<DeferredLog, Break>> {
        if self.flush && self.ending.is_none() {
            return Poll::Pending;
        }
        loop {
            if let Some(told) = self.told.pop_front() {
                return Poll::Ready(Ok(told));
            }
            if self.ahead.is_writing() && self.poll_written(context).is_ready() {
                continue;
            }
            match self.ending {
                Some(BodyEnd::Broken(broken @ (Break::Unkept | Break::Request))) => {
                    return Poll::Ready(Err(broken));
                }
                Some(_) => return Poll::Pending,
                None => {}
            }
            while let Some(bytes) = self.take() {
                self.ahead.push(bytes);
            }
            self.settle();
            if !self.told.is_empty() || self.ending.is_some() {
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
                let patience = self.patience.get_or_insert_with(|| engine::sleep(PATIENCE));
                ready!(Pin::new(patience).poll(context));
            }
            self.ahead.start_writing();
        }
    }

    /// Whether there is room for what may be received. On a shared connection that lies in memory
    /// already, within the window that its stream has, and more comes for what is taken: it is
    /// taken where both have room, where a file takes it, or where nothing follows it.
    fn may_read_ahead(&mut self) -> bool {
        let shared = self.peer.as_mut().and_then(UpstreamConnection::shared);
        let Some(stream) = shared else {
            return self.ahead.has_room();
        };
        let window = stream.window();
        stream.has_ended() || self.ahead.has_room_beside(window) || self.ahead.may_begin_write()
    }

    /// Receives more, at the body's pace, unless the body has ended.
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

    /// Waits for a part on its way to the temporary file.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let written = ready!(self.ahead.poll_written(context));
        if let Some(path) = written.made {
            let path = path.display();
            let text = format!(
                "an upstream response is buffered to a temporary file {path} while reading upstream"
            );
            self.told.push_back(DeferredLog::new(Level::Warn, text));
        }
        if let Some(failure) = written.failure {
            let text = format!("{failure} while reading upstream");
            self.break_off(Break::Unkept, DeferredLog::new(Level::Crit, text));
        }
        Poll::Ready(())
    }
}

/// The answer has come whole: its connection serves another request, if it may go on, or ends.
pub(super) fn let_go(mut peer: UpstreamConnection, seen: &Attempts, may_go_on: bool) {
    if let Some(lease) = &mut peer.lease {
        seen.borrow_mut().note(|attempt, began| {
            lease.answer_came(began.elapsed().unwrap_or_default());
            lease.note_bytes(attempt.bytes_sent, attempt.bytes_received);
        });
    }
    peer.done(may_go_on);
}

impl Source for UpstreamBody {
    fn next(&mut self) -> SourceEvent {
        self.patience = None;
        if self.came_with_head > 0 {
            let length = std::mem::take(&mut self.came_with_head);
            let beyond = std::mem::take(&mut self.beyond);
            self.note_received(length, beyond);
        }
        loop {
            if let Some(told) = self.told.pop_front() {
                return SourceEvent::Told(told);
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
            if self.told.is_empty() && self.ending.is_none() {
                return SourceEvent::Nothing;
            }
        }
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let upload_first = self.is_turn_of_upload();
        if upload_first && self.poll_upload(context).is_ready() {
            return Poll::Ready(());
        }
        let come = if self.ahead.is_writing() {
            self.poll_written(context)
        } else {
            self.poll_receive(context)
        };
        if come.is_ready() || upload_first {
            return come;
        }
        let waited_until = self.deadline;
        match self.poll_upload(context) {
            // The wait begins anew.
            Poll::Pending if self.deadline != waited_until => self.poll_receive(context),
            polled => polled,
        }
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) -> Poll<Result<DeferredLog, Break>> {
        let upload_first = self.is_turn_of_upload();
        if upload_first && self.poll_upload(context).is_ready() {
            return self.poll_read_ahead(context);
        }
        let ahead = self.poll_read_ahead(context);
        if ahead.is_ready() || upload_first {
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

    /// Not where every part leaves at once: as in nginx the end comes once that has left.
    fn is_whole(&self) -> bool {
        self.has_given_all() && !self.flush
    }

    fn trailers(&mut self) -> Vec<Field> {
        self.passing.passed_trailers(&self.seen)
    }

    fn outlives_client(&self) -> bool {
        self.passing.tries.ignore_client_abort
    }

    fn give_up(&mut self, left: &Abort) -> DeferredLog {
        self.note_end();
        told_left(left, READING_BODY)
    }

    fn beginning(&self) -> &'static str {
        WHILE_READING
    }
}
