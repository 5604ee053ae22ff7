//! A protocol in memory, for tests: many streams on one connection, as HTTP/2 has them, without
//! bytes on a wire.
//!
//! Each end may send as many bytes as the other end has given credit for, on a stream and, from the
//! server, on the whole connection. Bytes without credit wait in their stream, and the other
//! streams go on. Either end may reset a stream without an effect on the other streams. Handlers
//! and filters are tested with this protocol through the same calls as with the real protocols (see
//! the tests of [`request`](crate::request)). Tests can tell pieces apart here, which no client
//! sees on the wire.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use engine::net::Segment;
use engine::select::{Either, either};
use proto::head::{ControlData, Head};

use crate::exchange::Exchange;
use crate::exchange::abort::Abort;
use crate::exchange::fields::{self, HeadLine};
use crate::exchange::sender::Wire;
use crate::request::Request;

/// Maximum number of bytes of a request's body that are received before some of them are read.
const RECEIVED_MAX: usize = 16;

/// Sets a request's head from `text`: a request line, and the fields behind it. The head is set
/// without HTTP/1 parsing, like that of HTTP/2; the host is `site`. `None` if the head is invalid.
pub fn take_head(request: &mut Request, text: &str) -> Option<()> {
    let (line, fields) = text.split_once("\r\n").unwrap_or((text, ""));
    let mut words = line.split(' ').map(str::as_bytes);
    let control = ControlData {
        method: words.next()?,
        target: words.next()?,
        authority: Some(b"site"),
        protocol: words.next()?,
    };
    let fields: Option<Vec<_>> = fields.lines().map(|line| line.split_once(": ")).collect();
    let fields = fields?.into_iter();
    let fields = fields.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let client = request.client_mut();
    let head = Head::new(&control, fields, true, &mut client.bytes).ok()?;
    client.take_fields(head);
    Some(())
}

/// The response that a client has received on a stream.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    /// Status of the response; 0 before its head.
    pub status: u16,
    /// Header fields in order, including those that [`Response`](crate::response::Response) has a
    /// field of its own for.
    pub fields: Vec<(Bytes, Bytes)>,
    /// Bytes of the body, without those that were sent as ranges of files.
    pub body: Vec<u8>,
    /// Bytes of the body that were sent as ranges of files.
    pub file_bytes: u64,
    /// The number of flushes.
    pub flushes: usize,
    /// The trailer fields of the response.
    pub trailers: Vec<(Bytes, Bytes)>,
    /// Whether the body has ended.
    pub ended: bool,
    /// Why the server has reset the stream.
    pub reset: Option<Reason>,
}

/// Why a server resets a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The response is complete, and the rest of the request's body is not needed.
    Enough,
    /// The client has left, or is too slow.
    Cancelled,
    /// The response cannot be completed.
    Internal,
}

/// The state of a stream, which its client and its server share.
#[derive(Default)]
struct Flow {
    recorder: Recorder,
    /// Segments of the body that the server has queued for the client.
    queue: VecDeque<Segment>,
    queued: u64,
    /// The number of queued bytes that have been flushed, so that they may be sent.
    released: u64,
    /// The number of bytes that the client still allows on this stream.
    credit: u64,
    /// The trailer fields, once the server has ended the body; the queue may still hold bytes.
    end: Option<Vec<(Bytes, Bytes)>>,
    /// The bytes that are missing to the announced length of the body.
    announced: Option<u64>,
    /// Parts of the request's body for which the server has not given credit.
    unsent: VecDeque<Bytes>,
    /// Parts of the request's body that have been received and not read.
    received: VecDeque<Bytes>,
    /// Whether the client sends no more parts than those in `unsent`.
    is_last: bool,
    /// Whether the client has reset the stream.
    reset: bool,
}

impl Flow {
    /// Moves parts from `unsent` to `received`, as far as there is room.
    fn receive(&mut self) {
        while let Some(part) = self.unsent.front_mut() {
            let there: usize = self.received.iter().map(Bytes::len).sum();
            let taken = RECEIVED_MAX.saturating_sub(there).min(part.len());
            if taken == 0 {
                return;
            }
            let part = part.split_to(taken);
            self.received.push_back(part);
            self.unsent.pop_front_if(|part| part.is_empty());
        }
    }

    fn has_ended(&self) -> bool {
        self.is_last && self.unsent.is_empty() && self.received.is_empty()
    }
}

/// The connection, which both ends share.
#[derive(Default)]
struct Link {
    flows: Vec<Flow>,
    /// The number of bytes that the client still allows on all streams together.
    credit: u64,
    /// The numbers of the streams on which bytes were sent, in order.
    turns: Vec<usize>,
    /// Tasks of the server that wait for a change.
    waiting: Vec<Waker>,
}

impl Link {
    /// Sends flushed bytes, as far as there is credit.
    fn flow(&mut self) {
        for (number, flow) in self.flows.iter_mut().enumerate() {
            while flow.released > 0
                && let Some(segment) = flow.queue.front_mut()
            {
                let allowed = flow.credit.min(self.credit).min(flow.released);
                let sent = match segment {
                    Segment::Bytes(bytes) => {
                        let length = allowed.min(bytes.len() as u64);
                        let part = bytes.split_to(length as usize);
                        flow.recorder.body.extend_from_slice(&part);
                        length
                    }
                    Segment::File { offset, length, .. } => {
                        let sent = allowed.min(*length);
                        *offset += sent;
                        *length -= sent;
                        flow.recorder.file_bytes += sent;
                        sent
                    }
                    _ => unreachable!("bodies are bytes and files"),
                };
                if sent == 0 && allowed == 0 {
                    break;
                }
                self.turns.push(number);
                self.credit -= sent;
                flow.credit -= sent;
                flow.queued -= sent;
                flow.released -= sent;
                flow.queue.pop_front_if(|segment| match segment {
                    Segment::Bytes(bytes) => bytes.is_empty(),
                    Segment::File { length, .. } => *length == 0,
                    _ => true,
                });
            }
            if flow.queued == 0
                && let Some(trailers) = flow.end.take()
            {
                flow.recorder.trailers = trailers;
                flow.recorder.ended = true;
            }
        }
        self.waiting.drain(..).for_each(Waker::wake);
    }
}

/// A client with one connection.
#[derive(Clone, Default)]
pub struct Client(Rc<RefCell<Link>>);

impl Client {
    /// A client that gives this much credit, in bytes, for all streams together.
    pub fn new(credit: u64) -> Client {
        let client = Client::default();
        client.0.borrow_mut().credit = credit;
        client
    }

    /// A client that gives unlimited credit.
    pub fn greedy() -> Client {
        Client::new(u64::MAX / 2)
    }

    /// Begins a request without a body, with `credit` bytes for its stream. Returns its exchange
    /// and the number of its stream.
    pub fn begin(&self, credit: u64) -> (Exchange, usize) {
        let mut link = self.0.borrow_mut();
        link.flows.push(Flow {
            credit,
            is_last: true,
            ..Flow::default()
        });
        let number = link.flows.len() - 1;
        let stream = Stream {
            link: Rc::clone(&self.0),
            number,
            send_timeout: Duration::from_secs(60),
        };
        (Exchange::memory(stream), number)
    }

    /// Sends a part of the request's body, as far as the server gives credit for the part.
    pub fn send(&self, number: usize, part: &'static [u8], is_last: bool) {
        self.with(number, |flow| {
            flow.unsent.push_back(Bytes::from_static(part));
            flow.is_last = is_last;
            flow.receive();
        });
    }

    /// The number of bytes of the body that the server has not given credit for.
    pub fn unsent(&self, number: usize) -> usize {
        self.with(number, |flow| flow.unsent.iter().map(Bytes::len).sum())
    }

    /// Gives credit for this many bytes more, on the stream and on the connection.
    pub fn allow(&self, number: usize, bytes: u64) {
        self.0.borrow_mut().credit += bytes;
        self.with(number, |flow| flow.credit += bytes);
    }

    /// Resets a stream from the client's side.
    pub fn reset(&self, number: usize) {
        self.with(number, |flow| flow.reset = true);
    }

    /// The part of the response that the client has received so far.
    pub fn received(&self, number: usize) -> Recorder {
        self.with(number, |flow| flow.recorder.clone())
    }

    /// The numbers of the streams on which bytes were received, in order.
    pub fn turns(&self) -> Vec<usize> {
        self.0.borrow().turns.clone()
    }

    fn with<T>(&self, number: usize, look: impl FnOnce(&mut Flow) -> T) -> T {
        let mut link = self.0.borrow_mut();
        let seen = look(&mut link.flows[number]);
        link.flow();
        seen
    }
}

/// The server's end of a stream.
pub struct Stream {
    link: Rc<RefCell<Link>>,
    number: usize,
    send_timeout: Duration,
}

impl Stream {
    fn with<T>(&self, look: impl FnOnce(&mut Flow) -> T) -> T {
        look(&mut self.link.borrow_mut().flows[self.number])
    }

    /// Waits until `look` returns a value.
    async fn wait<T>(&self, mut look: impl FnMut(&mut Flow) -> Option<T>) -> T {
        poll_fn(|context| {
            let found = self.with(&mut look);
            if found.is_none() {
                let waker = context.waker().clone();
                self.link.borrow_mut().waiting.push(waker);
            }
            found.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Waits for the next part of the body. Reading makes room for more parts.
    pub async fn read_body(&mut self, request: &mut Request) -> Result<Option<Bytes>, Abort> {
        let timeout = request.plan.core.client_body_timeout;
        let deadline = request.body.wait_until(timeout);
        let next = self.wait(|flow| {
            if flow.reset {
                return Some(Err(Abort::Closed(io::ErrorKind::ConnectionReset.into())));
            }
            let part = flow.received.pop_front();
            flow.receive();
            match part {
                Some(part) => Some(Ok(Some(part))),
                None => flow.has_ended().then_some(Ok(None)),
            }
        });
        match either(next, engine::sleep_until(deadline)).await {
            Either::First(Ok(Some(part))) => {
                request.body.note_received(part.len() as u64);
                Ok(Some(part))
            }
            Either::First(next) => {
                request.body.note_end();
                next
            }
            Either::Second(()) => Err(Abort::BodyTimedOut),
        }
    }

    /// See `Exchange::has_buffered_body`.
    pub fn has_buffered_body(&self) -> bool {
        self.with(|flow| !flow.received.is_empty() || flow.has_ended())
    }

    /// See `Exchange::discard_received_body`.
    pub fn discard_received_body(&mut self, request: &mut Request) {
        let ended = self.with(|flow| {
            if flow.has_ended() {
                return None;
            }
            flow.received.clear();
            Some(flow.is_last && flow.unsent.is_empty())
        });
        if let Some(ended) = ended {
            request.body.note_skipped();
            if ended {
                request.body.note_end();
            }
        }
    }

    /// See `Exchange::send_head`.
    pub fn send_head(&mut self, request: &mut Request) {
        let mut taken = Vec::new();
        fields::for_each(request, |line| {
            if let HeadLine::Field(name, value) = line {
                let name = Bytes::copy_from_slice(name);
                taken.push((name, value.concat().into()));
            }
        });
        self.with(|flow| {
            flow.recorder.status = request.response.status;
            flow.recorder.fields = taken;
            flow.announced = request.response.content_length;
        });
    }

    /// See `Exchange::has_sent_head`.
    pub fn has_sent_head(&self) -> bool {
        self.with(|flow| flow.recorder.status != 0)
    }

    /// See `Exchange::has_unsent`: the client has not even received a head.
    pub fn has_unsent(&self) -> bool {
        !self.has_sent_head()
    }

    /// Ends the stream with the outcome of its request, as the owner of a connection does.
    pub fn finish(self, outcome: &Result<(), Abort>) {
        self.with(|flow| {
            flow.recorder.reset = match outcome {
                Ok(()) if flow.is_last && flow.unsent.is_empty() => None,
                Ok(()) => Some(Reason::Enough),
                Err(Abort::Closed(_) | Abort::TimedOut | Abort::BodyTimedOut | Abort::Silently) => {
                    Some(Reason::Cancelled)
                }
                Err(_) => Some(Reason::Internal),
            };
        });
    }
}

impl Wire for Stream {
    const FRAMING_IS_OF_BODY: bool = true;

    fn push(&mut self, segment: Segment, length: u64) -> u64 {
        self.with(|flow| {
            flow.queue.push_back(segment);
            flow.queued += length;
            if let Some(announced) = &mut flow.announced {
                *announced = announced.saturating_sub(length);
            }
        });
        0
    }

    fn push_end(&mut self, request: &Request) -> u64 {
        let trailers = request.response.trailers.iter();
        let trailers = trailers.map(|field| (field.name.clone(), field.value.clone()));
        self.with(|flow| flow.end = Some(trailers.collect()));
        0
    }

    fn start_send(&self) {
        self.with(|flow| {
            flow.recorder.flushes += 1;
            flow.released = flow.queued;
        });
        self.link.borrow_mut().flow();
    }

    fn backlog(&self) -> usize {
        self.with(|flow| flow.queued as usize)
    }

    async fn drained(&mut self, limit: usize) -> io::Result<()> {
        self.start_send();
        loop {
            let before = self.backlog();
            let progress = self.wait(|flow| match flow.queued as usize {
                _ if flow.reset => Some(Err(io::ErrorKind::ConnectionReset.into())),
                queued if queued <= limit => Some(Ok(true)),
                queued => (queued < before).then_some(Ok(false)),
            });
            match either(progress, engine::sleep(self.send_timeout)).await {
                Either::First(Ok(true)) => return Ok(()),
                Either::First(Ok(false)) => {}
                Either::First(Err(error)) => return Err(error),
                Either::Second(()) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    fn set_send_timeout(&mut self, timeout: Duration, _: bool) {
        self.send_timeout = timeout;
    }

    async fn client_gone(&mut self) -> Abort {
        self.wait(|flow| flow.reset.then_some(())).await;
        Abort::Closed(io::ErrorKind::ConnectionReset.into())
    }

    fn finish(&mut self) {
        self.start_send();
    }

    fn is_whole(&self) -> bool {
        self.with(|flow| flow.announced.is_none_or(|left| left == 0))
    }
}
