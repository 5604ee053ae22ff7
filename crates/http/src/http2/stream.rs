//! The state that the requests of an HTTP/2 connection share with the connection's task.
//!
//! Each stream has a [`Flow`]: the received part of its request's body, the queued part of its
//! response, and wakers. Only the connection's task touches the transport; the tasks of requests
//! queue data here and wake it.

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

/// Bytes that may be in the transport at once: enough to keep a fast client busy, few enough that
/// more urgent frames do not wait long behind them.
pub const IN_TRANSPORT_MAX: usize = 128 * 1024;

/// Queued bytes of a stream's body at which its task stops reading from the source.
pub const AHEAD_MAX: usize = 16 * 1024;

/// Queued bytes of a stream's body at which its task stops reading while the connection's other
/// streams have much queued.
const AHEAD_MIN: u64 = 4 * 1024;

/// Queued bytes of all streams beyond which [`AHEAD_MIN`] applies.
const QUEUED_MAX: u64 = 2 * IN_TRANSPORT_MAX as u64;

/// Concurrent requests beyond which the thread returns memory when the connection has ended.
const BUSY: usize = 32;

/// Bytes that are read of a file at least, however small the client's windows are.
const READ_MIN: u64 = 1024;

/// Length of a segment above which it is sent without a copy; shorter ones are copied behind their
/// frame heads.
const COPIED_MAX: usize = 4 * 1024;

/// Initial capacity of the trailers' buffer, in bytes.
const TRAILERS_USUAL: usize = 64;

/// One stream of a connection.
#[derive(Default)]
pub struct Flow {
    /// The number of the flow.
    pub number: u32,
    /// The unread part of the request's body, joined however small the frames were.
    received: RefCell<Vec<u8>>,
    /// The request's body has ended.
    received_all: Cell<bool>,
    /// Bytes of the request's body that were read beside the exchange.
    uploaded: Cell<u64>,
    /// The body is being read beside the exchange.
    is_uploaded: Cell<bool>,
    /// The queued part of the response's body.
    queue: RefCell<Queue<Segment>>,
    queued: Cell<u64>,
    /// Queued bytes that the end of the stream has discarded.
    lost: Cell<u64>,
    /// The stream's task has nothing queued and waits for permission to read more.
    asks: Cell<bool>,
    granted: Cell<Option<u64>>,
    /// Bytes that its task has permission to read and has not queued yet.
    promised: Cell<u64>,
    /// A part of the body has been sent, or was permitted to be read.
    has_begun: Cell<bool>,
    /// Other streams have already waited for this stream's task since it last queued something.
    was_waited_for: Cell<bool>,
    /// The body ends with the queue; with the encoded trailers, which may be empty.
    end: RefCell<Option<Vec<u8>>>,
    /// The last frame has been given to the transport.
    ended: Cell<bool>,
    /// The client has ended the stream, or the connection has.
    gone: Cell<bool>,
    /// Bytes of the body in one DATA frame at most (`http2_chunk_size`).
    chunk_size: Cell<usize>,
    /// A fault of the request's body that has not been reported yet.
    fault: Cell<Option<StreamFault>>,
    /// The request is malformed: its stream is reset after the response.
    is_malformed: Cell<bool>,
    reader: Cell<Option<Waker>>,
    writer: Cell<Option<Waker>>,
}

impl Flow {
    /// A stream that has begun.
    pub fn new(number: u32) -> Flow {
        Flow {
            number,
            ..Flow::default()
        }
    }

    /// Receives a part of the request's body. After a complete response only its end matters.
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

    /// Counts bytes of the body that were read beside the exchange.
    pub fn note_uploaded(&self, bytes: u64) {
        self.uploaded.set(self.uploaded.get() + bytes);
    }

    /// How many bytes of the body were read beside the exchange.
    pub fn uploaded(&self) -> u64 {
        self.uploaded.get()
    }

    /// Sets whether the body is read beside the exchange.
    pub fn set_uploaded(&self, is_uploaded: bool) {
        self.is_uploaded.set(is_uploaded);
    }

    /// Whether the body is being read beside the exchange.
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

    /// Whether some of the body has left, or was allowed to.
    pub fn has_begun(&self) -> bool {
        self.has_begun.get()
    }

    /// Takes the permission to read, in bytes, if the task has been given one.
    pub fn take_granted(&self) -> Option<u64> {
        self.granted.take()
    }

    /// Whether the client has ended the stream, or the connection has.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Whether its last frame has been given to the transport.
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Queued bytes of the response's body.
    pub fn queued(&self) -> u64 {
        self.queued.get()
    }

    /// Whether bytes of the request's body, or its end, are there.
    pub fn is_readable(&self) -> bool {
        self.received_all.get() || !self.received.borrow().is_empty()
    }

    /// Whether the client has sent all of the request.
    pub fn has_come(&self) -> bool {
        self.received_all.get()
    }

    /// Whether nothing of the request's body is still to be read.
    pub fn is_read(&self) -> bool {
        self.received_all.get() && self.received.borrow().is_empty()
    }

    /// Takes the received part of the request's body; `None` if there is none, now or any more.
    pub fn take_received(&self) -> Option<Bytes> {
        let received = self.received.take();
        (!received.is_empty()).then(|| received.into())
    }

    /// Waits for the request's body, or for the end of the stream.
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

    /// Waits until the queue has been sent, or the stream has ended.
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

    /// Whether the queue is empty and the stream's task should queue more before the next stream
    /// has its turn; true once.
    fn may_queue_more(&self) -> bool {
        let is_whole = self.end.borrow().is_some() || self.ended.get() || self.gone.get();
        self.queued() == 0 && !is_whole && !self.was_waited_for.replace(true)
    }

    /// Takes `most` bytes at most off the front of the queue.
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
            _ => return None, // bodies are bytes and files
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
    /// The transport is full, and more is queued.
    Full,
    /// The task of the current stream may queue more in a moment; the other streams wait for that
    /// moment.
    ForNow,
}

/// A connection as its task and the tasks of its requests share it.
pub struct SharedConnection {
    /// The client's connection of the shared connection.
    pub connection: Rc<Connection>,
    machine: RefCell<h2::Connection<Rc<Flow>>>,
    /// Frames that have not been given to the transport: heads, and the bodies that came with them.
    out: RefCell<Vec<u8>>,
    /// Bytes that are queued on all streams, or will be.
    queued: Cell<u64>,
    /// Bytes of bodies that have been given to the transport.
    sent: Cell<u64>,
    /// A request of the client has said how urgent it is.
    has_priorities: Cell<bool>,
    /// Many requests have been under way at once.
    has_been_busy: Cell<bool>,
    /// Streams that have ended, or that the client has ended, whose tasks have not released them.
    ending: Cell<usize>,
    /// How many streams have ended so, since the connection began.
    endings: Cell<u64>,
    /// Streams that wait for a reset after a complete response.
    answered: Cell<usize>,
    /// The waker of the connection's task.
    waker: Cell<Option<Waker>>,
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

    /// Calls `look` with the protocol machine. `look` must not call `with` again.
    pub fn with<T>(&self, look: impl FnOnce(&mut h2::Connection<Rc<Flow>>) -> T) -> T {
        look(&mut self.machine.borrow_mut())
    }

    /// Takes note of how many requests are under way.
    pub fn note_live(&self) {
        if self.with(|machine| machine.live()) >= BUSY {
            self.has_been_busy.set(true);
        }
    }

    /// Whether many have been at once.
    pub fn has_been_busy(&self) -> bool {
        self.has_been_busy.get()
    }

    /// Has the connection's task look at what there is to send.
    pub fn call(&self) {
        self.is_called.set(true);
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Ends the connection in order: no stream is served that begins from now on.
    pub fn send_goaway(&self) {
        self.with(|machine| machine.send_goaway());
        self.call();
    }

    /// Whether it was called since it last asked; else it will be woken.
    pub fn is_called(&self, waker: &Waker) -> bool {
        if self.is_called.take() {
            return true;
        }
        self.waker.set(Some(waker.clone()));
        false
    }

    /// Answers a request at once, head and body, where the windows let them go; whether they do.
    #[must_use]
    pub fn answer(&self, stream: u32, block: &[u8], body: &[u8], chunk_size: usize) -> bool {
        let mut out = self.out.borrow_mut();
        self.with(|machine| machine.answer(stream, block, body, chunk_size, &mut out))
    }

    /// How urgent the client says that a request is. Responses for one that never says such things
    /// take turns, as nginx has them.
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

    /// Sends the head of a response; `ends` where no body follows.
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
            // What has no bytes needs no window.
            0 => self.put_end(flow, &mut self.out.borrow_mut()),
            _ => self.with(|machine| machine.wants_to_send(flow.number)),
        }
        self.call();
    }

    /// The end of a body of which all has been sent.
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

    /// The last frame of a stream has been given to the transport.
    fn note_ended(&self, flow: &Flow) {
        self.count_ending(flow);
        flow.ended.set(true);
    }

    /// Counts a stream that is about to end, in whatever way; once.
    fn count_ending(&self, flow: &Flow) {
        if !flow.has_ended() && !flow.is_gone() {
            self.ending.set(self.ending.get() + 1);
            self.endings.set(self.endings.get() + 1);
        }
    }

    /// The client has ended its request: where the response had ended before, it may begin another
    /// stream from now on.
    pub fn note_request_ended(&self, flow: &Flow) {
        if flow.has_ended() {
            self.endings.set(self.endings.get() + 1);
        }
    }

    /// Whether requests are under way, those aside that only wait for the resets of their streams.
    pub fn is_serving(&self) -> bool {
        self.with(|machine| machine.live()) > self.answered.get()
    }

    /// A stream begins to wait for its reset; [`resets`](Self::resets) follows.
    pub fn awaits_reset(&self) {
        self.answered.set(self.answered.get() + 1);
    }

    /// A stream does not wait for its reset any more.
    pub fn resets(&self) {
        self.answered.set(self.answered.get() - 1);
    }

    /// Bytes of bodies that the transport has got, in all.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Whether bytes that are for the client have not left.
    pub fn has_backlog(&self) -> bool {
        self.waiting() > 0 || self.connection.stream.backlog() > 0
    }

    /// How many streams have ended, or the client has ended, in all.
    pub fn endings(&self) -> u64 {
        self.endings.get()
    }

    /// Whether another stream would be refused only because tasks of streams that have ended, for
    /// the client, have not had their turn since.
    pub fn is_full_of_ended(&self) -> bool {
        self.ending.get() > 0 && self.with(|machine| machine.is_full())
    }

    /// Resets a stream with an error code.
    pub fn reset(&self, flow: &Flow, code: ErrorCode) {
        self.with(|machine| machine.reset(flow.number, code));
        self.call();
    }

    /// Gives the transport what may leave, as far as it takes it. `is_patient`: a task that may go
    /// on at once is waited for.
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
            // Settings and pings are answered before the rest of a body.
            self.put_control(&mut out);
            if is_patient && flow.may_queue_more() {
                break Flushed::ForNow;
            }
        };
        if !out.is_empty() {
            transport.push(Segment::Bytes(out.into()));
        }
        // What may follow at once leaves along with it.
        if flushed != Flushed::ForNow && transport.backlog() > 0 {
            self.connection.finish_response();
            self.connection.send_finished();
        }
        flushed
    }

    /// Gives the transport what may leave without waiting for tasks that are about to queue more.
    pub fn flush_now(&self) {
        self.flush(false);
    }

    /// Frames that go before all else.
    fn put_control(&self, out: &mut Vec<u8>) {
        self.with(|machine| machine.move_control(out));
    }

    /// Sends a part of a stream whose turn it is, in one frame. Bytes that went to the transport by
    /// themselves.
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

    /// Bytes of frames that have not been given to the transport.
    pub fn waiting(&self) -> usize {
        self.out.borrow().len()
    }

    /// How many bytes a stream's task may read now, for they could leave soon; `None` where it has
    /// to wait.
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

    /// How much of its body a stream may have ready before it can leave.
    pub fn ahead_max(&self) -> u64 {
        if self.queued.get() < QUEUED_MAX {
            AHEAD_MAX as u64
        } else {
            AHEAD_MIN
        }
    }

    /// Counts what a stream's task will queue, instead of what it was to queue before.
    fn promise(&self, flow: &Flow, bytes: u64) {
        let before = flow.promised.replace(bytes);
        let others = self.queued.get().saturating_sub(before);
        self.queued.set(others + bytes);
    }

    /// Tells a stream's task when it is its turn, and that the client's windows are open
    /// ([`Flow::take_granted`]).
    pub fn ask(&self, flow: &Flow) {
        flow.asks.set(true);
        self.with(|machine| machine.wants_to_send(flow.number));
        self.call();
    }

    /// Waits for something about the response of a stream, for as long as the client takes some of
    /// it, or of others whose turn comes before its own.
    ///
    /// # Errors
    /// `TimedOut` where it takes nothing for `timeout`; `ConnectionReset` where it has ended the
    /// stream.
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

    /// A stream has ended before its end.
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

    fn forget(&self, flow: &Flow) -> u64 {
        self.promise(flow, 0);
        let forgotten = flow.forget();
        self.queued.set(self.queued.get().saturating_sub(forgotten));
        forgotten
    }

    /// Lets go of a stream: its place is free for another.
    pub fn release(&self, flow: &Flow) {
        self.forget(flow);
        if flow.has_ended() || flow.is_gone() {
            self.ending.set(self.ending.get() - 1);
        }
        self.with(|machine| machine.release(flow.number));
        self.call();
    }

    /// All streams have ended with their connection.
    pub fn end_all_streams(&self) {
        let flows: Vec<Rc<Flow>> = self.with(|machine| machine.users().map(Rc::clone).collect());
        for flow in flows {
            self.lose(&flow);
        }
    }
}
