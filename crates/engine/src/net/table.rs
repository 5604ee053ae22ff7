//! The thread's table of streams: their state, and the handling of completed operations.
//!
//! An entry stays until its handle is dropped, its socket is closed and no operation is in flight.
//! It has four independent states: what its owner has requested ([`HandleState`]), whether the
//! socket is open ([`SocketState`]), what was last received ([`ReceiveState`]) and why nothing can
//! be sent now ([`SendState`]).

mod splicing;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use base::limits::{RECEIVE_BUFFERS_PER_CONNECTION_MAX, SENDFILE_CHUNK_DEFAULT};
use base::pieces::SMALL_MAX;
use base::slab::Key;
use base::wheel::Entry;

use super::stored_error::StoredError;
use super::stream_state::{HandleState, ReceiveState, SendState, SocketState};
use super::{Address, Segment};
use crate::blocking::{self, Weight};
use crate::buffer::Buffer;
use crate::clock::Deadline;
use crate::engine::{Control, Op, OpKind, OperationOutcome, Outgoing, SendStop, Socket, Token};
use crate::file::residency;
use crate::sys::PARTS_MAX;
use crate::worker::{Reactor, Timer, enter};

/// nginx's default of `send_timeout`.
const SEND_TIMEOUT_MS_DEFAULT: u32 = 60_000;

const NEVER: u64 = u64::MAX;

/// The number of streams that may wait for the end of a turn to send. Beyond it they send at once,
/// which limits the delay of the first of them.
const LEAVE_SOON_MAX: usize = 32;

/// When more segments than this wait behind a send in flight, small ones are joined.
const BLOCKED_SEGMENTS_MAX: usize = 8;

/// The state of one stream. A test below limits its size, because a thread may have ten thousand
/// connections.
pub(crate) struct StreamState {
    handle: HandleState,
    socket: SocketState,
    send: SendState,
    receive: ReceiveState,
    /// A receive is in flight.
    receiving: bool,
    /// A connect is in flight, even if the socket has been closed meanwhile.
    connecting: bool,
    /// The connection counts among [`outgoing`](super::outgoing).
    outgoing: bool,
    /// The queue is sent at the end of the turn, together with those of other streams.
    is_flush_scheduled: bool,

    // Set by the owner.
    /// Shut down the sending side after the queue has been sent.
    shutdown: bool,
    /// After a send timeout the connection is closed with a reset.
    resets_late: bool,
    nodelay: bool,
    nopush: bool,

    /// The permanent error that receives return, or `NONE`.
    receive_failure: StoredError,
    /// The permanent error that sends return, or `NONE`.
    send_failure: StoredError,

    send_timeout_ms: u32,
    /// Maximum number of bytes of files to send in one turn.
    chunk: u32,

    /// The task that waits to receive, or for a connect.
    reader: Option<Waker>,
    reader_deadline_ms: u64,
    /// Boxed, since few streams have a waiting writer, and most are idle.
    writer: Option<Box<Writer>>,

    /// The first received buffer that no task has taken yet.
    arrived: Option<Buffer>,
    /// The buffers after `arrived`.
    #[expect(clippy::box_collection, reason = "rarely there, and 24 bytes smaller")]
    more_received: Option<Box<VecDeque<Buffer>>>,
    /// Queued segments that are not part of a send in flight.
    pending: Option<Box<Outgoing>>,
    /// Queued bytes that the kernel has not taken yet.
    backlog: u64,
    /// Bytes that the kernel has taken since the stream was created.
    pub(crate) sent: u64,
    /// When the kernel last took data, or when the backlog began, in milliseconds.
    progress_ms: u64,

    /// The stream's entry in the timer wheel, filed for `timer_ms`.
    timer: Option<Entry>,
    timer_ms: u64,

    /// The address of an IPv4 client, if accepting returned it.
    pub(crate) peer: Option<SocketAddrV4>,
    /// The addresses that were queried, or an IPv6 client's address.
    pub(crate) addresses: Option<Box<Addresses>>,
}

/// A task that waits until the backlog is at most `limit` bytes.
struct Writer {
    waker: Waker,
    limit: u64,
}

/// Cached addresses, since querying them takes a call.
#[derive(Default)]
pub(crate) struct Addresses {
    pub(crate) peer: Option<Address>,
    pub(crate) local: Option<Address>,
}

impl StreamState {
    pub(crate) fn new(peer: Option<SocketAddr>, nodelay: bool) -> StreamState {
        let (peer, addresses) = match peer {
            Some(SocketAddr::V4(peer)) => (Some(peer), None),
            Some(peer) => {
                let addresses = Addresses {
                    peer: Some(Address::Inet(peer)),
                    local: None,
                };
                (None, Some(Box::new(addresses)))
            }
            None => (None, None),
        };
        StreamState {
            handle: HandleState::Held,
            socket: SocketState::Open,
            send: SendState::Idle,
            receive: ReceiveState::Nothing,
            receiving: false,
            connecting: false,
            outgoing: false,
            is_flush_scheduled: false,
            shutdown: false,
            resets_late: false,
            nodelay,
            nopush: false,
            receive_failure: StoredError::NONE,
            send_failure: StoredError::NONE,
            send_timeout_ms: SEND_TIMEOUT_MS_DEFAULT,
            chunk: SENDFILE_CHUNK_DEFAULT as u32,
            reader: None,
            reader_deadline_ms: NEVER,
            writer: None,
            arrived: None,
            more_received: None,
            pending: None,
            backlog: 0,
            sent: 0,
            progress_ms: 0,
            timer: None,
            timer_ms: 0,
            peer,
            addresses,
        }
    }

    /// Takes the first received buffer.
    #[inline]
    fn take_arrived(&mut self) -> Option<Buffer> {
        let first = self.arrived.take()?;
        if self.more_received.is_some() {
            self.move_up();
        }
        Some(first)
    }

    /// Moves the next received buffer to the front.
    #[cold]
    fn move_up(&mut self) {
        if let Some(more) = &mut self.more_received {
            self.arrived = more.pop_front();
            if more.is_empty() {
                self.more_received = None;
            }
        }
    }

    /// Adds a received buffer behind the others.
    fn put_arrived(&mut self, buffer: Buffer) {
        let more = &mut self.more_received;
        let last = match more.as_mut().and_then(|more| more.back_mut()) {
            None => self.arrived.as_mut(),
            last => last,
        };
        match last {
            None => self.arrived = Some(buffer),
            // A few bytes are appended instead of keeping a buffer of their own.
            Some(last) => {
                if buffer.len() > SMALL_MAX || !last.append(&buffer) {
                    more.get_or_insert_default().push_back(buffer);
                }
            }
        }
    }

    /// Puts taken bytes back in front of all others.
    fn put_back(&mut self, buffer: Buffer) {
        if let Some(next) = self.arrived.replace(buffer) {
            self.more_received.get_or_insert_default().push_front(next);
        }
    }

    /// The number of received buffers that no task has taken yet.
    fn arrived_count(&self) -> usize {
        usize::from(self.arrived.is_some())
            + self.more_received.as_ref().map_or(0, |more| more.len())
    }

    /// The earliest deadline of the stream's waiting tasks.
    fn deadline_ms(&self) -> u64 {
        let receive = if self.reader.is_some() {
            self.reader_deadline_ms
        } else {
            NEVER
        };
        let waited_for = self.writer.is_some() || self.handle.is_finishing();
        receive.min(if waited_for {
            self.send_deadline_ms()
        } else {
            NEVER
        })
    }

    /// When the send timeout ends; `NEVER` if all data has been sent.
    fn send_deadline_ms(&self) -> u64 {
        if self.backlog == 0 {
            return NEVER;
        }
        // The time of progress is rounded down to a millisecond, and no timeout may fire early.
        self.progress_ms + 1 + u64::from(self.send_timeout_ms)
    }

    /// Whether an operation of the stream is still to complete, so that the entry must stay.
    fn in_flight(&self) -> bool {
        self.receiving
            || self.connecting
            || self.socket == SocketState::Closing
            || self.send.is_in_flight()
            || self.send == SendState::Warming
    }

    /// Whether the next bytes can be submitted to the engine.
    fn can_send(&self) -> bool {
        self.send == SendState::Idle && self.socket == SocketState::Open && !self.connecting
    }
}

// Receiving.
impl Reactor {
    /// Returns received data, or starts a receive and registers the task.
    #[inline(always)] // Every request goes through this function.
    pub(crate) fn poll_recv(
        &mut self,
        key: Key,
        deadline: Deadline,
        idle: bool,
        waker: &Waker,
    ) -> Poll<io::Result<Buffer>> {
        loop {
            let Some(state) = self.streams.get_mut(key) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            if let Some(buffer) = state.take_arrived() {
                return Poll::Ready(Ok(buffer));
            }
            if state.receive == ReceiveState::Ended {
                return Poll::Ready(Ok(Buffer::empty()));
            }
            if let Some(error) = state.receive_failure.error() {
                return Poll::Ready(Err(error));
            }
            if !state.receiving {
                state.receiving = true;
                let keep = idle && state.receive == ReceiveState::Bytes;
                let op = Op::Recv { keep };
                match self.engine.submit(
                    op,
                    Token {
                        key,
                        kind: OpKind::Recv,
                    },
                ) {
                    // The common case on a busy server: return the buffer without storing it.
                    Some(OperationOutcome::Received(Ok(buffer))) if !buffer.is_empty() => {
                        if let Some(state) = self.streams.get_mut(key) {
                            state.receiving = false;
                            state.receive = ReceiveState::Bytes;
                        }
                        return Poll::Ready(Ok(buffer));
                    }
                    Some(OperationOutcome::Received(result)) => {
                        self.received(key, Some(result), false);
                        continue;
                    }
                    Some(_) => {
                        self.received(key, None, false);
                        continue;
                    }
                    None => {}
                }
            }
            let deadline_ms = deadline.ms();
            if deadline_ms <= self.clock.now_ms() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if let Some(state) = self.streams.get_mut(key) {
                state.reader = Some(waker.clone());
                state.reader_deadline_ms = deadline_ms;
            }
            self.arm_timer(key);
            return Poll::Pending;
        }
    }

    /// Makes the next receive return these bytes.
    pub(crate) fn put_back(&mut self, key: Key, buffer: Buffer) {
        if let Some(state) = self.streams.get_mut(key)
            && !buffer.is_empty()
        {
            state.put_back(buffer);
        }
    }

    /// Notes that no task waits for data any more. Data that arrives is kept for the next receive.
    pub(crate) fn forget_reader(&mut self, key: Key) {
        if let Some(state) = self.streams.get_mut(key) {
            state.reader = None;
        }
    }

    /// Handles a completed receive; `None` if it only reports readability.
    pub(crate) fn received(&mut self, key: Key, result: Option<io::Result<Buffer>>, more: bool) {
        let Some(state) = self.streams.get_mut(key) else {
            return;
        };
        state.receiving = more;
        if state.handle != HandleState::Held {
            self.release(key);
            return;
        }
        match result {
            None => {}
            Some(Ok(buffer)) if buffer.is_empty() => state.receive = ReceiveState::Ended,
            Some(Ok(mut buffer)) => {
                state.receive = ReceiveState::Bytes;
                if state.reader.is_none() && state.backlog > 0 {
                    buffer.fit(); // the buffer may be kept for long
                }
                state.put_arrived(buffer);
            }
            // Cancelled because of the limit below: the received data is valid, and the next
            // receive continues.
            Some(Err(error)) if error.raw_os_error() == Some(libc::ECANCELED) => {}
            Some(Err(error)) => state.receive_failure = StoredError::of(&error),
        }
        self.after.wakes.extend(state.reader.take());
        // Do not read ahead from a peer that does not read what it is sent.
        let count_max = match state.backlog {
            0 => RECEIVE_BUFFERS_PER_CONNECTION_MAX,
            _ => 1,
        };
        if more && state.arrived_count() >= count_max {
            self.cancel_receive(key);
        }
    }

    fn cancel_receive(&mut self, key: Key) {
        let token = Token {
            key,
            kind: OpKind::Recv,
        };
        if self.engine.cancel(token).is_some()
            && let Some(state) = self.streams.get_mut(key)
        {
            state.receiving = false;
        }
    }
}

// Sending.
impl Reactor {
    /// Schedules the queue to be sent at the end of the turn, after the streams that were scheduled
    /// before.
    ///
    /// If an engine makes a call for each send, those of a turn are made in succession: the code of
    /// the request handlers and that of the kernel stay in the processor's cache for longer, and a
    /// peer on this machine is woken once for several sends. An engine that batches sends itself
    /// gets them at once, and so do files, whose calls take long.
    pub(crate) fn send_soon(&mut self, key: Key) {
        let Some(state) = self.streams.get_mut(key) else {
            return;
        };
        let is_short = |queue: &Outgoing| !queue.takes_calls();
        if !self.engine.sends_at_once() || !state.pending.as_deref().is_some_and(is_short) {
            self.start_send(key);
            return;
        }
        if !state.is_flush_scheduled {
            state.is_flush_scheduled = true;
            self.streams_to_flush.push(key);
        }
        if self.streams_to_flush.len() >= LEAVE_SOON_MAX {
            self.flush_streams();
        }
    }

    /// Sends the queues that were scheduled for the end of the turn.
    pub(crate) fn flush_streams(&mut self) {
        let mut keys = std::mem::take(&mut self.streams_to_flush);
        for key in keys.drain(..) {
            if let Some(state) = self.streams.get_mut(key)
                && std::mem::take(&mut state.is_flush_scheduled)
            {
                self.start_send(key);
            }
        }
        self.streams_to_flush = keys;
    }

    pub(crate) fn push(&mut self, key: Key, segment: Segment) {
        let useful = |state: &&mut StreamState| {
            !segment.is_empty() && !state.shutdown && state.send_failure == StoredError::NONE
        };
        let Some(state) = self.streams.get_mut(key).filter(useful) else {
            self.after.spent.push(segment);
            return;
        };
        if state.backlog == 0 {
            state.progress_ms = self.clock.now_ms();
        }
        state.backlog += segment.len();
        let spare = &mut self.spare_queues;
        let queue = state
            .pending
            .get_or_insert_with(|| spare.pop().unwrap_or_default());
        // Small segments that cannot be sent in this turn (a send is in flight) or in one call
        // (there are too many) are joined: copying them costs less than another call.
        let many = if state.send.is_in_flight() {
            BLOCKED_SEGMENTS_MAX
        } else {
            PARTS_MAX
        };
        queue.push_or_join(segment, many, &mut self.after.spent);
    }

    /// Submits the queue to the engine, as far as is possible now.
    pub(crate) fn start_send(&mut self, key: Key) {
        loop {
            let Some(state) = self.streams.get_mut(key) else {
                return;
            };
            if !state.can_send() {
                return;
            }
            let Some(mut outgoing) = state.pending.take() else {
                self.all_sent(key);
                return;
            };
            if outgoing.warm == 0 && !self.warm_up(key, &mut outgoing) {
                if let Some(state) = self.streams.get_mut(key) {
                    state.pending = Some(outgoing);
                }
                return;
            }
            let Some(state) = self.streams.get_mut(key) else {
                return;
            };
            state.send = if state.handle.is_finishing() {
                SendState::LastInFlight
            } else {
                SendState::InFlight
            };
            outgoing.fills_segments = state.nopush;
            let op = Op::Send {
                outgoing,
                chunk: u64::from(state.chunk),
                ending: state.handle.close_mode(),
            };
            match self.engine.submit(
                op,
                Token {
                    key,
                    kind: OpKind::Send,
                },
            ) {
                Some(OperationOutcome::Sent {
                    outgoing,
                    taken,
                    stop,
                }) => {
                    self.sent(key, outgoing, taken, stop);
                }
                _ => return,
            }
        }
    }

    /// Handles the progress of a send. The caller then continues with
    /// [`start_send`](Self::start_send).
    pub(crate) fn sent(
        &mut self,
        key: Key,
        mut outgoing: Box<Outgoing>,
        taken: u64,
        stop: SendStop,
    ) {
        self.take_spent(&mut outgoing);
        let now_ms = self.clock.now_ms();
        let Some(state) = self.streams.get_mut(key) else {
            self.recycle_queue(outgoing);
            return;
        };
        state.send = SendState::Idle;
        state.sent += taken;
        state.backlog -= taken.min(state.backlog);
        if taken > 0 {
            state.progress_ms = now_ms;
        }
        if let SendStop::Failed(error) = &stop {
            state.send_failure = StoredError::of(error);
            state.backlog = 0;
        }
        let failed = state.send_failure != StoredError::NONE;
        let backlog = state.backlog;
        let writer = state.writer.take_if(|w| failed || backlog <= w.limit);
        self.after.wakes.extend(writer.map(|writer| writer.waker));
        match stop {
            SendStop::Chunk => {
                state.send = SendState::NextTurn;
                self.next_turn.push(key);
            }
            SendStop::Closed => {
                state.socket = SocketState::Closed;
                state.handle = HandleState::Dropped;
            }
            SendStop::Empty | SendStop::Blocked | SendStop::Cold | SendStop::Failed(_) => {}
        }
        let dropped = state.handle == HandleState::Dropped;
        if failed || dropped {
            let later = state.pending.take();
            self.recycle_queue(outgoing);
            later
                .into_iter()
                .for_each(|queue| self.recycle_queue(queue));
            if dropped {
                self.close(key);
            }
        } else if outgoing.is_empty() {
            self.recycle_queue(outgoing);
        } else {
            // Segments queued meanwhile go behind the unsent ones.
            if let Some(mut later) = state.pending.take() {
                outgoing.append(&mut later, BLOCKED_SEGMENTS_MAX, &mut self.after.spent);
                state.pending = Some(outgoing);
                self.recycle_queue(later);
            } else {
                state.pending = Some(outgoing);
            }
        }
    }

    /// The queue is empty, or the stream has failed: closes or shuts down, if that was requested.
    fn all_sent(&mut self, key: Key) {
        let Some(state) = self.streams.get_mut(key) else {
            return;
        };
        if state.handle.is_finishing() {
            self.close(key);
        } else if state.shutdown {
            // This fails only if the connection is gone, which the next receive reports.
            let _ = self.engine.control(key, Control::ShutdownWrite);
        }
    }

    /// Continues sending a file in a new turn of the loop.
    pub(crate) fn next_chunk(&mut self, key: Key) {
        if let Some(state) = self.streams.get_mut(key) {
            state.send = SendState::Idle;
            self.start_send(key);
        }
    }

    /// Determines how much of the next file range is in memory. False if a pool thread must read it
    /// first; the read has then been started.
    fn warm_up(&mut self, key: Key, outgoing: &mut Outgoing) -> bool {
        let Some(Segment::File {
            file,
            offset,
            length,
        }) = outgoing.first_file()
        else {
            return true;
        };
        let Some(state) = self.streams.get_mut(key) else {
            return true;
        };
        let (file, offset) = (file.clone(), *offset);
        let length = (*length).min(u64::from(state.chunk));
        let warm = residency::warm_prefix(&file, offset, length);
        if warm > 0 || !matches!(outgoing.front(), Some(Segment::File { .. })) {
            outgoing.warm = warm;
            return true;
        }
        if self.blocks_inline {
            residency::warm(&file, offset, length);
            outgoing.warm = length;
            return true;
        }
        state.send = SendState::Warming;
        let remote = self.remote.clone();
        let job = Box::new(move || {
            residency::warm(&file, offset, length);
            remote.post(Box::new(move || {
                residency::note_warm(&file, offset, length);
                enter(|worker| worker.warmed(key, length));
            }));
        });
        blocking::run(Weight::of_read(length), job);
        false
    }

    /// A pool thread has read the first `length` bytes of the range that is sent next.
    fn warmed(&mut self, key: Key, length: u64) {
        let now_ms = self.clock.now_ms();
        let Some(state) = self.streams.get_mut(key) else {
            return;
        };
        state.send = SendState::Idle;
        if state.handle == HandleState::Dropped {
            self.release(key);
            return;
        }
        // The disk was slow, not the peer.
        state.progress_ms = now_ms;
        if let Some(outgoing) = &mut state.pending {
            outgoing.warm = length;
        }
        self.start_send(key);
    }

    pub(crate) fn poll_drained(
        &mut self,
        key: Key,
        limit: u64,
        waker: &Waker,
    ) -> Poll<io::Result<()>> {
        self.start_send(key);
        let now_ms = self.clock.now_ms();
        let Some(state) = self.streams.get_mut(key) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        if let Some(error) = state.send_failure.error() {
            return Poll::Ready(Err(error));
        }
        if state.backlog <= limit {
            return Poll::Ready(Ok(()));
        }
        if state.send_deadline_ms() <= now_ms && state.send != SendState::Warming {
            self.note_late(key);
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        state.writer = Some(Box::new(Writer {
            waker: waker.clone(),
            limit,
        }));
        self.arm_timer(key);
        Poll::Pending
    }

    /// Handles a send timeout: the peer has read nothing for too long.
    fn note_late(&mut self, key: Key) {
        if self.streams.get(key).is_some_and(|state| state.resets_late) {
            // This fails only if the connection is gone.
            let _ = self.engine.control(key, Control::ResetOnClose);
        }
    }

    /// Notes that no task waits for the backlog to shrink any more.
    pub(crate) fn forget_writer(&mut self, key: Key) {
        if let Some(state) = self.streams.get_mut(key) {
            state.writer = None;
        }
    }

    pub(crate) fn backlog(&self, key: Key) -> u64 {
        self.streams.get(key).map_or(0, |state| state.backlog)
    }

    pub(crate) fn set_send_timeout(&mut self, key: Key, timeout: Duration, resets: Option<bool>) {
        if let Some(state) = self.streams.get_mut(key) {
            state.resets_late = resets.unwrap_or(state.resets_late);
            state.send_timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        }
    }

    pub(crate) fn set_chunk(&mut self, key: Key, bytes: usize) {
        if let Some(state) = self.streams.get_mut(key) {
            state.chunk = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        }
    }

    pub(crate) fn shutdown_write(&mut self, key: Key) {
        if let Some(state) = self.streams.get_mut(key)
            && !state.shutdown
        {
            state.shutdown = true;
            self.start_send(key);
        }
    }

    pub(crate) fn set_nopush(&mut self, key: Key, on: bool) {
        if let Some(state) = self.streams.get_mut(key) {
            state.nopush = on;
        }
    }

    pub(crate) fn set_nodelay(&mut self, key: Key, on: bool) {
        let Some(state) = self.streams.get_mut(key) else {
            return;
        };
        if state.nodelay != on {
            // This fails for Unix sockets, which have no delay.
            let _ = self.engine.control(key, Control::NoDelay(on));
            state.nodelay = on;
        }
    }
}

// The life of an entry.
impl Reactor {
    /// Adds an entry, and gives its socket to the engine.
    pub(crate) fn insert_stream(
        &mut self,
        socket: Socket,
        peer: Option<SocketAddr>,
        nodelay: bool,
    ) -> Key {
        let key = self.streams.insert(StreamState::new(peer, nodelay));
        self.engine.adopt(key, socket);
        key
    }

    pub(crate) fn connect(&mut self, key: Key, address: Address) {
        let Some(state) = self.streams.get_mut(key) else {
            return;
        };
        state.connecting = true;
        state.outgoing = true;
        self.outgoing += 1;
        let op = Op::Connect { address };
        if let Some(OperationOutcome::Connected(result)) = self.engine.submit(
            op,
            Token {
                key,
                kind: OpKind::Connect,
            },
        ) {
            self.connected(key, result);
        }
    }

    /// Handles a completed connect.
    pub(crate) fn connected(&mut self, key: Key, result: io::Result<()>) {
        let Some(state) = self.streams.get_mut(key) else {
            return;
        };
        state.connecting = false;
        if let Err(error) = result {
            state.receive_failure = StoredError::of(&error);
            state.send_failure = state.receive_failure;
        }
        self.after.wakes.extend(state.reader.take());
        if state.handle == HandleState::Dropped {
            self.release(key);
        }
    }

    pub(crate) fn poll_connect(
        &mut self,
        key: Key,
        deadline: Option<Instant>,
        waker: &Waker,
    ) -> Poll<io::Result<()>> {
        let deadline_ms = Deadline::from(deadline).ms();
        let now_ms = self.clock.now_ms();
        let Some(state) = self.streams.get_mut(key) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        if !state.connecting {
            return Poll::Ready(state.receive_failure.error().map_or(Ok(()), Err));
        }
        if deadline_ms <= now_ms {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        state.reader = Some(waker.clone());
        state.reader_deadline_ms = deadline_ms;
        self.arm_timer(key);
        Poll::Pending
    }

    /// The handle is dropped: sends the queue, then closes.
    pub(crate) fn finish(&mut self, key: Key, peer_is_done: bool) {
        let Some(state) = self.streams.get_mut(key) else {
            return;
        };
        if state.handle == HandleState::Dropped {
            return; // it was closed with all others
        }
        state.handle = HandleState::Finishing { peer_is_done };
        state.reader = None;
        state.writer = None;
        state.arrived = None;
        state.more_received = None;
        if state.send_failure != StoredError::NONE {
            self.close(key);
            return;
        }
        if state.receiving {
            self.cancel_receive(key);
        }
        self.send_soon(key);
        self.arm_timer(key);
    }

    /// The handle is dropped: passes a queue scheduled for the end of the turn to the kernel, then
    /// closes.
    pub(crate) fn drop_stream(&mut self, key: Key) {
        if let Some(state) = self.streams.get_mut(key)
            && std::mem::take(&mut state.is_flush_scheduled)
        {
            self.start_send(key);
        }
        self.close(key);
    }

    /// Closes the socket and cancels operations in flight. The entry is removed when the last
    /// operation has completed.
    pub(crate) fn close(&mut self, key: Key) {
        let Some(state) = self.streams.get_mut(key) else {
            return;
        };
        state.handle = HandleState::Dropped;
        if std::mem::take(&mut state.outgoing) {
            self.outgoing -= 1;
        }
        state.reader = None;
        state.writer = None;
        state.arrived = None;
        state.more_received = None;
        let (receiving, connecting) = (state.receiving, state.connecting);
        let sending = state.send.is_in_flight();
        if let Some(queue) = state.pending.take() {
            self.recycle_queue(queue);
        }
        if receiving {
            self.cancel_receive(key);
        }
        if connecting
            && self
                .engine
                .cancel(Token {
                    key,
                    kind: OpKind::Connect,
                })
                .is_some()
            && let Some(state) = self.streams.get_mut(key)
        {
            state.connecting = false;
        }
        if sending
            && let Some(OperationOutcome::Sent {
                outgoing, taken, ..
            }) = self.engine.cancel(Token {
                key,
                kind: OpKind::Send,
            })
        {
            self.sent(key, outgoing, taken, SendStop::Blocked);
        }
        let Some(state) = self.streams.get_mut(key) else {
            return;
        };
        if state.socket == SocketState::Open && state.send != SendState::LastInFlight {
            state.socket = SocketState::Closing;
            if self
                .engine
                .submit(
                    Op::Close,
                    Token {
                        key,
                        kind: OpKind::Close,
                    },
                )
                .is_some()
            {
                state.socket = SocketState::Closed;
            }
        }
        self.release(key);
    }

    /// Handles a completed close.
    pub(crate) fn closed(&mut self, key: Key) {
        if let Some(state) = self.streams.get_mut(key) {
            state.socket = SocketState::Closed;
            self.release(key);
        }
    }

    /// The number of streams whose handle is dropped and that are still sending.
    pub(crate) fn finishing(&self) -> usize {
        let finishing = |(_, state): &(Key, &StreamState)| state.handle.is_finishing();
        self.streams.iter().filter(finishing).count()
    }

    /// Closes all remaining streams when the runtime ends.
    pub(crate) fn close_all(&mut self) {
        let keys: Vec<Key> = self.streams.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.close(key));
    }

    /// Removes the entry if nothing needs it any more.
    fn release(&mut self, key: Key) {
        let Some(state) = self.streams.get(key) else {
            return;
        };
        let is_gone = state.handle == HandleState::Dropped && state.socket != SocketState::Open;
        if !is_gone || state.in_flight() {
            return;
        }
        if let Some(state) = self.streams.remove(key)
            && let Some(entry) = state.timer
        {
            self.timers.cancel(entry);
        }
    }

    /// Makes sure that a timer fires no later than the stream's next deadline.
    ///
    /// A timer filed for an earlier time stays where it is, and checks the deadline when it fires.
    /// So the common case, a deadline that moves further away with each request, costs only the
    /// store of a number.
    fn arm_timer(&mut self, key: Key) {
        let Some(state) = self.streams.get_mut(key) else {
            return;
        };
        let deadline_ms = state.deadline_ms();
        if deadline_ms == NEVER || (state.timer.is_some() && state.timer_ms <= deadline_ms) {
            return;
        }
        if let Some(entry) = state.timer.take() {
            self.timers.cancel(entry);
        }
        state.timer_ms = deadline_ms;
        state.timer = Some(self.timers.schedule(deadline_ms, Timer::Stream(key)));
    }

    /// The stream's timer fired: wakes the tasks whose deadline has passed, and files the timer
    /// again for the others.
    pub(crate) fn stream_timer(&mut self, key: Key) {
        let now_ms = self.clock.now_ms();
        let Some(state) = self.streams.get_mut(key) else {
            return;
        };
        state.timer = None;
        if state.reader.is_some() && state.reader_deadline_ms <= now_ms {
            self.after.wakes.extend(state.reader.take());
        }
        if state.send == SendState::Warming {
            state.progress_ms = now_ms;
        }
        if state.send_deadline_ms() <= now_ms {
            if state.handle.is_finishing() {
                self.note_late(key);
                self.close(key);
                return;
            }
            let writer = state.writer.take();
            self.after.wakes.extend(writer.map(|writer| writer.waker));
        }
        self.arm_timer(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory of an idle connection is this entry, a task, and a few dozen bytes in the engine
    /// and the timer wheel: together about 700 bytes.
    #[test]
    fn a_stream_is_small() {
        assert!(
            size_of::<StreamState>() <= 168,
            "{}",
            size_of::<StreamState>()
        );
    }
}
