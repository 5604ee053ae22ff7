//! The state that the requests of an HTTP/2 connection share with the connection's task.
//!
//! Each stream has a [`Flow`]: the received part of the request's body, the queued part of the
//! response, and wakers. Only the connection's task writes to the transport; the tasks of requests
//! queue data here and wake the connection's task.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use base::queue::Queue;
use bytes::Bytes;
use engine::net::Segment;
use engine::select::{Either, either};
use proto::h2::priority::Priority;
use proto::h2::{self, ErrorCode, StreamFault};

use crate::connection::Connection;
use crate::http2::head;
use crate::request::Request;
use crate::response::Field;
use crate::response::piece::READ_SIZE;

/// Maximum number of bytes in the transport: enough to keep a fast client busy, and few enough that
/// more urgent frames do not wait long behind them.
pub const IN_TRANSPORT_MAX: usize = 128 * 1024;

/// Queued bytes of a stream's body at which its task stops reading from the source.
pub const AHEAD_MAX: usize = 16 * 1024;

/// Queued bytes of a stream's body at which its task stops reading from the source while the
/// connection's streams together have queued more than [`QUEUED_MAX`].
const AHEAD_MIN: u64 = 4 * 1024;

/// Queued bytes of all streams from which on [`AHEAD_MIN`] applies instead of [`AHEAD_MAX`].
const QUEUED_MAX: u64 = 2 * IN_TRANSPORT_MAX as u64;

/// Number of concurrent requests from which on the thread returns memory when the connection has
/// ended.
const BUSY: usize = 32;

/// Minimum number of bytes that are read of a file at once, however small the client's windows are.
const READ_MIN: u64 = 1024;

/// Maximum length of a segment that is copied behind its frame's header; longer segments are sent
/// without a copy.
const COPIED_MAX: usize = 4 * 1024;

/// Initial capacity of the trailers' buffer, in bytes.
const TRAILERS_USUAL: usize = 64;

/// The state of one stream, which its task and the connection's task share.
#[derive(Default)]
pub struct Flow {
    /// The identifier of the stream.
    pub number: u32,
    /// The unread part of the request's body. The payloads of small frames are joined.
    received: RefCell<Vec<u8>>,
    /// Whether the request's body has ended.
    received_all: Cell<bool>,
    /// Bytes of the request's body that an upload has read.
    uploaded: Cell<u64>,
    /// Whether an upload is reading the body.
    is_uploaded: Cell<bool>,
    /// The queued part of the response's body.
    queue: RefCell<Queue<Segment>>,
    /// The number of bytes in `queue`.
    queued: Cell<u64>,
    /// Queued bytes that were discarded because the client or the connection has ended the stream.
    lost: Cell<u64>,
    /// Whether the stream's task has an empty queue and waits for permission to read more.
    asks: Cell<bool>,
    /// The number of bytes that the stream's task has been permitted to read, until the task takes
    /// the permission.
    granted: Cell<Option<u64>>,
    /// Bytes that the stream's task has permission to read and has not queued yet.
    promised: Cell<u64>,
    /// Whether a part of the body has been sent, or its task had permission to read a part.
    has_begun: Cell<bool>,
    /// Whether other streams have already waited for this stream's task since the task last queued
    /// something.
    was_waited_for: Cell<bool>,
    /// The encoded trailers, possibly empty, once the end of the body is queued.
    end: RefCell<Option<Vec<u8>>>,
    /// Whether the last frame has been given to the transport.
    ended: Cell<bool>,
    /// Whether the client or the connection has ended the stream.
    gone: Cell<bool>,
    /// Maximum number of bytes of the body in one DATA frame (`http2_chunk_size`).
    chunk_size: Cell<usize>,
    /// A fault of the request's body that has not been reported yet.
    fault: Cell<Option<StreamFault>>,
    /// Whether the request is malformed, so that its stream is reset after the response.
    is_malformed: Cell<bool>,
    /// The waker of the task that reads the request's body or waits for the end of the stream.
    reader: Cell<Option<Waker>>,
    /// The waker of the task that waits for the queue to be sent.
    writer: Cell<Option<Waker>>,
}

impl Flow {
    /// The state of a stream that has been opened.
    pub fn new(number: u32) -> Flow {
        Flow {
            number,
            ..Flow::default()
        }
    }

    /// Receives a part of the request's body. After a complete response the bytes are discarded,
    /// and only `ends` matters.
    pub fn receive(&self, bytes: &[u8], ends: bool) {
        if !bytes.is_empty() && !self.has_ended() {
            self.received.borrow_mut().extend_from_slice(bytes);
        }
        if ends {
            self.received_all.set(true);
        }
        self.wake_reader();
    }

    /// Notes that the request's body contradicts its head.
    pub fn receive_fault(&self, fault: StreamFault) {
        self.fault.set(Some(fault));
        self.is_malformed.set(true);
        self.received_all.set(true);
        self.wake_reader();
    }

    /// Takes the fault of the body.
    pub fn take_fault(&self) -> Option<StreamFault> {
        self.fault.take()
    }

    /// Whether the request is malformed.
    pub fn is_malformed(&self) -> bool {
        self.is_malformed.get()
    }

    /// Counts bytes of the body that an upload has read.
    pub fn note_uploaded(&self, bytes: u64) {
        self.uploaded.set(self.uploaded.get() + bytes);
    }

    /// The number of bytes of the body that an upload has read.
    pub fn uploaded(&self) -> u64 {
        self.uploaded.get()
    }

    /// Sets whether an upload is reading the body.
    pub fn set_uploaded(&self, is_uploaded: bool) {
        self.is_uploaded.set(is_uploaded);
    }

    /// Whether an upload is reading the body.
    pub fn is_uploaded(&self) -> bool {
        self.is_uploaded.get()
    }

    /// Notes that the request has no body.
    pub fn receive_nothing(&self) {
        self.received_all.set(true);
    }

    /// Discards the queue, and returns its length.
    fn forget(&self) -> u64 {
        self.queue.borrow_mut().clear();
        self.queued.take()
    }

    /// Bytes of the response's body that were queued when the client ended the stream.
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }

    /// Whether a part of the body has been sent, or the stream's task had permission to read a
    /// part.
    pub fn has_begun(&self) -> bool {
        self.has_begun.get()
    }

    /// Takes the permission to read this many bytes, if the stream's task has been given one.
    pub fn take_granted(&self) -> Option<u64> {
        self.granted.take()
    }

    /// Whether the client or the connection has ended the stream.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Whether the stream's last frame has been given to the transport.
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Queued bytes of the response's body.
    pub fn queued(&self) -> u64 {
        self.queued.get()
    }

    /// Whether bytes of the request's body, or its end, have been received.
    pub fn is_readable(&self) -> bool {
        self.received_all.get() || !self.received.borrow().is_empty()
    }

    /// Whether the client has sent the whole request.
    pub fn has_come(&self) -> bool {
        self.received_all.get()
    }

    /// Whether the request's body has ended, and all of it has been read.
    pub fn is_read(&self) -> bool {
        self.received_all.get() && self.received.borrow().is_empty()
    }

    /// Takes the received part of the request's body; `None` if it is empty.
    pub fn take_received(&self) -> Option<Bytes> {
        let received = self.received.take();
        (!received.is_empty()).then(|| received.into())
    }

    /// Waits until `look` returns a value, for a reader of the request's body. Woken by received
    /// bytes and by the end of the stream.
    pub fn poll_received<T>(
        &self,
        waker: &Waker,
        look: impl FnOnce(&Flow) -> Option<T>,
    ) -> Poll<T> {
        match look(self) {
            Some(found) => Poll::Ready(found),
            None => {
                self.reader.set(Some(waker.clone()));
                Poll::Pending
            }
        }
    }

    /// Waits until `look` returns a value, for a writer of the response's body. Woken by sent bytes
    /// and by the end of the stream.
    pub fn poll_sent<T>(&self, waker: &Waker, look: impl FnOnce(&Flow) -> Option<T>) -> Poll<T> {
        match look(self) {
            Some(found) => Poll::Ready(found),
            None => {
                self.writer.set(Some(waker.clone()));
                Poll::Pending
            }
        }
    }

    fn wake_reader(&self) {
        self.reader.take().into_iter().for_each(Waker::wake);
    }

    fn wake_writer(&self) {
        self.writer.take().into_iter().for_each(Waker::wake);
    }

    /// Whether the queue is empty and the next stream's turn should wait a moment, since the
    /// stream's task may queue more. True only once until the task queues more.
    fn may_queue_more(&self) -> bool {
        let is_whole = self.end.borrow().is_some() || self.ended.get() || self.gone.get();
        self.queued() == 0 && !is_whole && !self.was_waited_for.replace(true)
    }

    /// Takes at most `most` bytes from the front of the queue.
    fn take_queued(&self, most: usize) -> Option<(Segment, usize)> {
        let mut queue = self.queue.borrow_mut();
        let first = queue.front_mut()?;
        let (part, length) = match first {
            Segment::Bytes(bytes) if bytes.len() <= most => {
                let length = bytes.len();
                (queue.pop_front()?, length)
            }
            Segment::Bytes(bytes) => (Segment::Bytes(bytes.split_to(most)), most),
            Segment::File {
                file,
                offset,
                length,
            } => {
                let taken = (*length).min(most as u64);
                let part = Segment::File {
                    file: file.clone(),
                    offset: *offset,
                    length: taken,
                };
                *offset += taken;
                *length -= taken;
                if *length == 0 {
                    queue.pop_front();
                }
                (part, taken as usize)
            }
            _ => return None, // no other segments are queued
        };
        self.queued
            .set(self.queued.get().saturating_sub(length as u64));
        Some((part, length))
    }
}

/// The outcome of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Everything that could be sent is in the transport.
    All,
    /// The transport is full, and streams may have more to send.
    Full,
    /// The task of the current stream may queue more in a moment, and the turns of the other
    /// streams wait for it.
    ForNow,
}

/// The state that a connection's task and the tasks of its requests share.
pub struct SharedConnection {
    /// The client's connection.
    pub connection: Rc<Connection>,
    /// The state machine of the protocol.
    machine: RefCell<h2::Connection<Rc<Flow>>>,
    /// Frames that have not been given to the transport: heads, with the bodies of responses that
    /// were answered at once.
    out: RefCell<Vec<u8>>,
    /// Bytes that are queued on all streams, or that their tasks have permission to read.
    queued: Cell<u64>,
    /// Bytes of bodies that have been given to the transport.
    sent: Cell<u64>,
    /// Whether a request of the client had a `Priority` field.
    has_priorities: Cell<bool>,
    /// Whether [`BUSY`] requests have been open at once.
    has_been_busy: Cell<bool>,
    /// Number of streams that have ended, and that their tasks have not released yet.
    ending: Cell<usize>,
    /// Number of streams that have ended since the connection began. A stream counts twice if its
    /// request ends after its response.
    endings: Cell<u64>,
    /// Number of streams that wait for a reset after a complete response.
    answered: Cell<usize>,
    /// The waker of the connection's task.
    waker: Cell<Option<Waker>>,
    /// Whether [`call`](Self::call) was called since the connection's task last ran.
    is_called: Cell<bool>,
}

impl SharedConnection {
    /// The shared state of a new connection.
    pub fn new(connection: &Rc<Connection>, limits: h2::Limits) -> SharedConnection {
        SharedConnection {
            connection: Rc::clone(connection),
            machine: RefCell::new(h2::Connection::new(limits)),
            out: RefCell::default(),
            queued: Cell::new(0),
            sent: Cell::new(0),
            has_priorities: Cell::new(false),
            has_been_busy: Cell::new(false),
            ending: Cell::new(0),
            endings: Cell::new(0),
            answered: Cell::new(0),
            waker: Cell::new(None),
            is_called: Cell::new(false),
        }
    }

    /// Calls `look` with the state machine of the protocol. `look` must not call `with` again.
    pub fn with<T>(&self, look: impl FnOnce(&mut h2::Connection<Rc<Flow>>) -> T) -> T {
        look(&mut self.machine.borrow_mut())
    }

    /// Updates `has_been_busy` after a stream has been opened.
    pub fn note_live(&self) {
        if self.with(|machine| machine.live()) >= BUSY {
            self.has_been_busy.set(true);
        }
    }

    /// Whether many requests have been open at once.
    pub fn has_been_busy(&self) -> bool {
        self.has_been_busy.get()
    }

    /// Wakes the connection's task, so that it sends what is queued.
    pub fn call(&self) {
        self.is_called.set(true);
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Ends the connection in order: streams that the client opens from now on are not served.
    pub fn send_goaway(&self) {
        self.with(|machine| machine.send_goaway());
        self.call();
    }

    /// Whether [`call`](Self::call) was called since the last time; else `waker` will be woken by
    /// the next call.
    pub fn is_called(&self, waker: &Waker) -> bool {
        if self.is_called.take() {
            return true;
        }
        self.waker.set(Some(waker.clone()));
        false
    }

    /// Sends a complete response, head and body, if the flow-control windows permit it. Returns
    /// whether they did.
    #[must_use]
    pub fn answer(&self, stream: u32, block: &[u8], body: &[u8], chunk_size: usize) -> bool {
        let mut out = self.out.borrow_mut();
        self.with(|machine| machine.answer(stream, block, body, chunk_size, &mut out))
    }

    /// The priority that the client asks for in the field `Priority`. While a client has sent no
    /// such field, its responses are sent in turns, as in nginx.
    pub fn priority_of(&self, request: &Request) -> Priority {
        match request.client.value_named(b"priority") {
            Some(value) => {
                self.has_priorities.set(true);
                Priority::parse(value)
            }
            None => Priority {
                incremental: !self.has_priorities.get(),
                ..Priority::default()
            },
        }
    }

    /// Sends the head of a response. With `ends`, no body follows.
    pub fn send_head(&self, flow: &Flow, block: &[u8], ends: bool, chunk_size: usize) {
        flow.chunk_size.set(chunk_size);
        let mut out = self.out.borrow_mut();
        self.with(|machine| machine.put_head(flow.number, block, ends, &mut out));
        drop(out);
        if ends {
            self.note_ended(flow);
        }
        self.call();
    }

    /// Queues a part of a response's body.
    pub fn send(&self, flow: &Flow, segment: Segment, length: u64) {
        if flow.is_gone() || length == 0 {
            return;
        }
        self.promise(flow, 0);
        flow.queued.set(flow.queued.get() + length);
        flow.was_waited_for.set(false);
        self.queued.set(self.queued.get() + length);
        flow.queue.borrow_mut().push_back(segment);
        self.with(|machine| machine.wants_to_send(flow.number));
        self.call();
    }

    /// Ends a response's body, with these trailers.
    pub fn send_end(&self, flow: &Flow, trailers: &[Field]) {
        if flow.has_ended() || flow.is_gone() || flow.end.borrow().is_some() {
            return;
        }
        let mut block = match trailers {
            [] => Vec::new(),
            _ => Vec::with_capacity(TRAILERS_USUAL),
        };
        head::write_fields(trailers, &mut block);
        flow.end.replace(Some(block));
        match flow.queued() {
            // An end without bytes needs no flow-control window.
            0 => self.put_end(flow, &mut self.out.borrow_mut()),
            _ => self.with(|machine| machine.wants_to_send(flow.number)),
        }
        self.call();
    }

    /// Sends the end of a body whose bytes have all been sent.
    fn put_end(&self, flow: &Flow, out: &mut Vec<u8>) {
        let mut machine = self.machine.borrow_mut();
        let trailers = flow.end.take().unwrap_or_default();
        if trailers.is_empty() {
            let head = machine.sent(flow.number, 0, true, false);
            out.extend_from_slice(&head);
        } else {
            machine.put_head(flow.number, &trailers, true, out)
        }
        self.note_ended(flow);
    }

    /// Notes that the last frame of a stream has been given to the transport.
    fn note_ended(&self, flow: &Flow) {
        self.count_ending(flow);
        flow.ended.set(true);
    }

    /// Counts a stream that is about to end for any reason, if it has not been counted yet.
    fn count_ending(&self, flow: &Flow) {
        if !flow.has_ended() && !flow.is_gone() {
            self.ending.set(self.ending.get() + 1);
            self.endings.set(self.endings.get() + 1);
        }
    }

    /// Notes that the client has ended its request. If the response had ended before, the client
    /// may open another stream from now on.
    pub fn note_request_ended(&self, flow: &Flow) {
        if flow.has_ended() {
            self.endings.set(self.endings.get() + 1);
        }
    }

    /// Whether streams are open, not counting those that only wait for their reset.
    pub fn is_serving(&self) -> bool {
        self.with(|machine| machine.live()) > self.answered.get()
    }

    /// Notes that a stream begins to wait for its reset. [`resets`](Self::resets) must follow.
    pub fn awaits_reset(&self) {
        self.answered.set(self.answered.get() + 1);
    }

    /// Notes that a stream has stopped waiting for its reset.
    pub fn resets(&self) {
        self.answered.set(self.answered.get() - 1);
    }

    /// The total number of bytes of bodies that have been given to the transport.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Whether bytes for the client have not been sent yet.
    pub fn has_backlog(&self) -> bool {
        self.waiting() > 0 || self.connection.stream.backlog() > 0
    }

    /// The number of times that the client could have regarded another stream as closed, since the
    /// connection began.
    pub fn endings(&self) -> u64 {
        self.endings.get()
    }

    /// Whether another stream would be refused only because the tasks of streams that the client
    /// regards as closed have not run since.
    pub fn is_full_of_ended(&self) -> bool {
        self.ending.get() > 0 && self.with(|machine| machine.is_full())
    }

    /// Resets a stream with an error code.
    pub fn reset(&self, flow: &Flow, code: ErrorCode) {
        self.with(|machine| machine.reset(flow.number, code));
        self.call();
    }

    /// Gives frames to the transport until it is full. With `is_patient`, stops at a stream whose
    /// task may queue more in a moment.
    pub fn flush(&self, is_patient: bool) -> Flushed {
        let transport = &self.connection.stream;
        let mut out = std::mem::take(&mut *self.out.borrow_mut());
        let mut in_transport = transport.backlog();
        self.put_control(&mut out);
        let flushed = loop {
            if in_transport + out.len() >= IN_TRANSPORT_MAX {
                break Flushed::Full;
            }
            let Some((number, allowed)) = self.with(h2::Connection::turn) else {
                break Flushed::All;
            };
            let flow = self.with(|machine| {
                let stream = machine.stream(number)?;
                Some(Rc::clone(&stream.user))
            });
            let Some(flow) = flow else {
                continue;
            };
            in_transport += self.send_part(&flow, allowed.min(flow.chunk_size.get()), &mut out);
            // Acknowledgements of SETTINGS and PING go before the rest of a body.
            self.put_control(&mut out);
            if is_patient && flow.may_queue_more() {
                break Flushed::ForNow;
            }
        };
        if !out.is_empty() {
            transport.push(Segment::Bytes(out.into()));
        }
        // With `ForNow`, nothing is sent yet: the bytes are sent together with those that may be
        // queued in a moment.
        if flushed != Flushed::ForNow && transport.backlog() > 0 {
            self.connection.finish_response();
            self.connection.send_finished();
        }
        flushed
    }

    /// Gives frames to the transport without waiting for tasks that may queue more in a moment.
    pub fn flush_now(&self) {
        self.flush(false);
    }

    /// Moves control frames to `out`, before all other frames.
    fn put_control(&self, out: &mut Vec<u8>) {
        self.with(|machine| machine.move_control(out));
    }

    /// Sends a part of the stream whose turn it is, in one frame. Returns the number of bytes that
    /// went to the transport without passing through `out`, or that the stream's task was permitted
    /// to read.
    fn send_part(&self, flow: &Rc<Flow>, most: usize, out: &mut Vec<u8>) -> usize {
        let length = usize::try_from(flow.queued())
            .unwrap_or(usize::MAX)
            .min(most);
        if length == 0 {
            if flow.queued() > 0 {
                return 0;
            }
            if flow.end.borrow().is_some() {
                self.put_end(flow, out);
            } else if flow.asks.take() {
                let room = self.with(|machine| machine.allowance(flow.number, 0));
                let room = room.min(self.ahead_max()).max(READ_MIN);
                self.promise(flow, room);
                flow.granted.set(Some(room));
                flow.has_begun.set(true);
                flow.wake_writer();
                return room as usize;
            }
            return 0;
        }
        let is_last = flow.queued() == length as u64;
        let (has_end, has_trailers) = match &*flow.end.borrow() {
            Some(trailers) => (true, !trailers.is_empty()),
            None => (false, false),
        };
        let ends = is_last && has_end && !has_trailers;
        let head = self.with(|machine| machine.sent(flow.number, length, ends, !is_last));
        out.extend_from_slice(&head);
        self.queued
            .set(self.queued.get().saturating_sub(length as u64));
        self.sent.set(self.sent.get() + length as u64);
        flow.has_begun.set(true);
        let (mut left, mut passed_on) = (length, 0);
        while left > 0
            && let Some((part, taken)) = flow.take_queued(left)
        {
            left -= taken;
            match part {
                Segment::Bytes(bytes) if taken <= COPIED_MAX => out.extend_from_slice(&bytes),
                part => {
                    let before = std::mem::take(out);
                    passed_on += before.len() + taken;
                    self.connection.stream.push(Segment::Bytes(before.into()));
                    self.connection.stream.push(part);
                }
            }
        }
        if ends {
            flow.end.take();
            self.note_ended(flow);
        } else if is_last && has_trailers {
            self.put_end(flow, out);
        }
        flow.wake_writer();
        passed_on
    }

    /// Number of bytes of frames that have not been given to the transport.
    pub fn waiting(&self) -> usize {
        self.out.borrow().len()
    }

    /// The number of bytes that a stream's task may read now, since they could be sent soon; `None`
    /// if the task must wait.
    pub fn room(&self, flow: &Flow) -> Option<u64> {
        self.promise(flow, 0);
        let waiting = flow.queued();
        let ahead = self.connection.stream.backlog() as u64 + self.queued.get();
        if waiting > AHEAD_MAX as u64 || ahead >= IN_TRANSPORT_MAX as u64 {
            return None;
        }
        let allowance = self.with(|machine| machine.allowance(flow.number, waiting));
        (allowance > 0).then(|| {
            let room = allowance.clamp(READ_MIN, READ_SIZE);
            self.promise(flow, room);
            room
        })
    }

    /// The number of bytes of its body that a stream's task may queue ahead.
    pub fn ahead_max(&self) -> u64 {
        if self.queued.get() < QUEUED_MAX {
            AHEAD_MAX as u64
        } else {
            AHEAD_MIN
        }
    }

    /// Sets the number of bytes that a stream's task is permitted to read, in place of its last
    /// permission, and counts them as queued.
    fn promise(&self, flow: &Flow, bytes: u64) {
        let before = flow.promised.replace(bytes);
        let others = self.queued.get().saturating_sub(before);
        self.queued.set(others + bytes);
    }

    /// Asks for a permission to read ([`Flow::take_granted`]), which the stream gets at its turn if
    /// the client's windows are open.
    pub fn ask(&self, flow: &Flow) {
        flow.asks.set(true);
        self.with(|machine| machine.wants_to_send(flow.number));
        self.call();
    }

    /// Waits until `look` returns a value for a stream's response. The timeout begins again while
    /// bytes of the stream are sent, or bytes of other streams whose turn comes first.
    ///
    /// # Errors
    /// `TimedOut` if no such bytes are sent for `timeout`; `ConnectionReset` if the client has
    /// ended the stream.
    pub async fn wait<T>(
        &self,
        flow: &Flow,
        timeout: Duration,
        look: impl Fn(&Flow) -> Option<T>,
    ) -> io::Result<T> {
        loop {
            let (before, sent_before) = (flow.queued(), self.sent.get());
            let progress = poll_fn(|context| {
                flow.poll_sent(context.waker(), |flow| {
                    if flow.is_gone() && !flow.has_ended() {
                        return Some(Err(io::ErrorKind::ConnectionReset.into()));
                    }
                    match look(flow) {
                        Some(found) => Some(Ok(Some(found))),
                        None => (flow.queued() < before).then_some(Ok(None)),
                    }
                })
            });
            match either(progress, engine::sleep(timeout)).await {
                Either::First(Ok(Some(found))) => return Ok(found),
                Either::First(Ok(None)) => {}
                Either::First(Err(error)) => return Err(error),
                Either::Second(()) => {
                    let awaits_turn = self.with(|machine| machine.awaits_turn(flow.number));
                    if !awaits_turn || self.sent.get() == sent_before {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
    }

    /// Ends a stream that the client has reset or whose connection has ended, and discards its
    /// queues.
    pub fn lose(&self, flow: &Flow) {
        let lost = self.forget(flow);
        flow.lost.set(flow.lost.get() + lost);
        self.count_ending(flow);
        self.note_request_ended(flow);
        flow.gone.set(true);
        flow.received.take();
        flow.wake_reader();
        flow.wake_writer();
    }

    /// Discards the stream's queue and its permission to read, and returns the length of the queue
    /// in bytes.
    fn forget(&self, flow: &Flow) -> u64 {
        self.promise(flow, 0);
        let forgotten = flow.forget();
        self.queued.set(self.queued.get().saturating_sub(forgotten));
        forgotten
    }

    /// Releases a stream, so that the client may open another.
    pub fn release(&self, flow: &Flow) {
        self.forget(flow);
        if flow.has_ended() || flow.is_gone() {
            self.ending.set(self.ending.get() - 1);
        }
        self.with(|machine| machine.release(flow.number));
        self.call();
    }

    /// Ends all streams, because their connection has ended.
    pub fn end_all_streams(&self) {
        let flows: Vec<Rc<Flow>> = self.with(|machine| machine.users().map(Rc::clone).collect());
        for flow in flows {
            self.lose(&flow);
        }
    }
}
