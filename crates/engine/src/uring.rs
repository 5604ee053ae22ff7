//! The engine over io_uring: one `io_uring_enter` a turn hands over everything that was asked and brings what completed.
//!
//! Receives take no buffer: the kernel picks one from a ring of provided buffers when bytes are there. The buffer that
//! comes out of the ring is an ordinary pooled one, and a fresh one takes its place at once. The first receive of a
//! connection is one-shot, so that a short connection can end by one send linked to its close; an armed multishot
//! receive would keep the socket open. Running out of buffers arms the receive again and never ends a connection.
//!
//! io_uring has no sendfile: a send that holds a file, or something else for the kernel's TLS, is made at once with calls of
//! its own, and a poll waits for the socket to drain. Addresses of peers are not asked for when accepting, since a multishot
//! accept cannot tell them.
//!
//! Needs Linux 6.1: deferred task work, multishot accept and receive, provided buffer rings; [`probe`] tells.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use base::slab::Key;
use io_uring::types::{BufRingEntry, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::net::SocketAddrAny;

use crate::buffer::{self, Buffer};
use crate::engine::{
    Completion, Ending, Engine, Notifier, Op, OpKind, Outcome, Outgoing, Stop, Token,
};
use crate::net::{Address, Segment};
use crate::sys;

/// Operations that are handed over by one call at most; more take another call.
const SUBMISSIONS: u32 = 1024;

/// The one group of provided buffers.
const BUFFER_GROUP: u16 = 0;

/// Most bytes that are sent linked to the close. A link wants the send to be whole, so progress of a larger one could not
/// be seen, and a slow peer would be taken for a dead one.
const LINKED_SEND_MAX: usize = 256 * 1024;

/// How often the engine waits for operations to come back when it ends, 10 ms each.
const DRAIN_ROUNDS_MAX: usize = 100;

pub(crate) struct Uring {
    ring: IoUring,
    notifier: Notifier,
    buffers: BufferRing,
    /// By the index of the stream's key.
    sources: Vec<Source>,
    /// By the index of the listener's key.
    listeners: Vec<Listener>,
    /// Datagram sockets that are watched, by the index of their key.
    datagrams: Vec<Key>,
    /// Completions taken from the kernel and not yet looked at.
    arrived: Vec<cqueue::Entry>,
    /// Receives that found no buffer.
    starved: VecDeque<Key>,
    /// Records of finished sends, to be used again.
    #[expect(
        clippy::vec_box,
        reason = "they move between here and the streams as boxes"
    )]
    spare: Vec<Box<Sending>>,
    /// Operations that the kernel has, or will have, and that have not come back.
    outstanding: usize,
}

/// What is known of one connected socket.
#[derive(Default)]
struct Source {
    generation: u32,
    socket: RawFd,
    receiving: bool,
    keep: bool,
    /// The receive was told to end: it must not be armed again.
    ending: bool,
    sending: Option<Box<Sending>>,
    /// The address that a connect in flight points to.
    address: Option<Box<SocketAddrAny>>,
}

/// A send in flight, and everything that the kernel reads for it.
struct Sending {
    outgoing: Box<Outgoing>,
    chunk: u64,
    /// Whether the connection ends with it.
    last: Ending,
    /// It was told to end.
    ending: bool,
    /// What a send that is linked to a close has returned, while the close is awaited.
    linked: Option<i32>,
    header: libc::msghdr,
    parts: Vec<libc::iovec>,
}

#[derive(Default)]
struct Listener {
    generation: u32,
    socket: RawFd,
    accepting: bool,
    ending: bool,
}

/// Kinds of submissions; the first six are those of [`OpKind`].
const ACCEPT: u64 = OpKind::Accept as u64;
const CONNECT: u64 = OpKind::Connect as u64;
const RECV: u64 = OpKind::Recv as u64;
const SEND: u64 = OpKind::Send as u64;
const CLOSE: u64 = OpKind::Close as u64;
const READABLE: u64 = OpKind::Readable as u64;
/// Waits until a socket can be written to: for sendfile(2), and where a send came back too early.
const WRITABLE: u64 = 6;
/// The close that a send is linked to.
const LINKED_CLOSE: u64 = 7;
/// The notifier's poll, and cancellations, whose own completion says nothing.
const OTHER: u64 = 8;

/// Bits of a submission's data that tell its kind, and those that tell the key's generation.
const KIND_BITS: u32 = 4;
const KIND_MASK: u64 = (1 << KIND_BITS) - 1;

const GENERATION_BITS: u32 = 32 - KIND_BITS;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;
const NOTIFIER: u64 = OTHER | 1 << 32;

fn user_data(kind: u64, key: Key) -> u64 {
    kind | u64::from(key.generation & GENERATION_MASK) << KIND_BITS | u64::from(key.index) << 32
}

/// Whether this engine can work here; if not, why, in words for the log.
pub(crate) fn probe() -> Result<(), String> {
    let ring = build(SUBMISSIONS).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no io_uring".to_owned(),
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden (kernel.io_uring_disabled or a seccomp filter)".to_owned()
        }
        Some(libc::EINVAL) => "io_uring of this kernel is older than Linux 6.1".to_owned(),
        Some(libc::ENOMEM) => {
            "the limit of locked memory (ulimit -l) has no room for io_uring".to_owned()
        }
        _ => format!("io_uring cannot be set up: {error}"),
    })?;
    let mut probe = io_uring::Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| format!("io_uring cannot be probed: {error}"))?;
    let needed = [
        ("ACCEPT", opcode::AcceptMulti::CODE),
        ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
        ("CLOSE", opcode::Close::CODE),
        ("CONNECT", opcode::Connect::CODE),
        ("POLL_ADD", opcode::PollAdd::CODE),
        ("RECV", opcode::RecvMulti::CODE),
        ("SEND", opcode::Send::CODE),
        ("SENDMSG", opcode::SendMsg::CODE),
    ];
    for (name, code) in needed {
        if !probe.is_supported(code) {
            return Err(format!("io_uring of this kernel lacks {name}"));
        }
    }
    if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
        return Err("io_uring of this kernel is older than Linux 6.1".to_owned());
    }
    BufferRing::new(&ring, 1)
        .map(drop)
        .map_err(|error| format!("io_uring has no rings of provided buffers: {error}"))
}

fn build(submissions: u32) -> io::Result<IoUring> {
    IoUring::builder()
        // All completion work is done on this thread when it waits: no interrupts, no locks in the kernel.
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_cqsize(submissions * 4)
        .build(submissions)
}

impl Uring {
    pub(crate) fn new(connections: usize) -> io::Result<Uring> {
        let ring = build(SUBMISSIONS)?;
        // A burst may use it up; then receives wait for the next turn. Each entry costs a buffer.
        let entries = (connections / 8).next_power_of_two().clamp(32, 256) as u16;
        let buffers = BufferRing::new(&ring, entries)?;
        let mut uring = Uring {
            ring,
            notifier: Notifier::new()?,
            buffers,
            sources: Vec::new(),
            listeners: Vec::new(),
            datagrams: Vec::new(),
            arrived: Vec::new(),
            starved: VecDeque::new(),
            spare: Vec::new(),
            outstanding: 0,
        };
        uring.watch_notifier();
        Ok(uring)
    }

    /// Queues a submission.
    ///
    /// # Safety
    /// What `entry` points to must stay where it is until its last completion has come.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        self.outstanding += 1;
        loop {
            // SAFETY: the caller's promise.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            self.hand_over();
        }
    }

    /// Makes room for `count` submissions that must be handed over by the same call.
    fn reserve(&mut self, count: usize) {
        let queue = self.ring.submission();
        let room = queue.capacity() - queue.len();
        drop(queue);
        if room < count {
            self.hand_over();
        }
    }

    /// Gives the queue to the kernel without waiting.
    fn hand_over(&mut self) {
        if self.ring.submit().is_err() {
            // Busy: the kernel wants its completions to be taken first. Anything else comes again in `wait`.
            self.collect();
        }
    }

    fn collect(&mut self) {
        self.arrived.extend(self.ring.completion());
    }

    fn watch_notifier(&mut self) {
        let fd = Fd(self.notifier.fd().as_fd().as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32)
            .multi(true)
            .build()
            .user_data(NOTIFIER);
        // SAFETY: a poll points to nothing.
        unsafe { self.push(&entry) };
    }

    /// The record of the socket; a fresh one when the place has changed hands.
    fn source(&mut self, key: Key, socket: RawFd) -> &mut Source {
        let index = key.index as usize;
        if index >= self.sources.len() {
            self.sources.resize_with(index + 1, Source::default);
        }
        let source = &mut self.sources[index];
        if source.socket != socket || source.generation != key.generation {
            *source = Source {
                generation: key.generation,
                socket,
                ..Source::default()
            };
        }
        source
    }

    fn accept(&mut self, socket: RawFd, key: Key) {
        let index = key.index as usize;
        if index >= self.listeners.len() {
            self.listeners.resize_with(index + 1, Listener::default);
        }
        self.listeners[index] = Listener {
            generation: key.generation,
            socket,
            accepting: true,
            ending: false,
        };
        let entry = opcode::AcceptMulti::new(Fd(socket))
            .flags(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)
            .build()
            .user_data(user_data(ACCEPT, key));
        // SAFETY: it points to nothing: no address is asked for.
        unsafe { self.push(&entry) };
    }

    fn connect(&mut self, socket: RawFd, address: &Address, key: Key) -> io::Result<()> {
        let address = match address {
            Address::Inet(address) => SocketAddrAny::from(*address),
            Address::Unix(path) => SocketAddrAny::from(sys::unix_address(path)?),
        };
        let length = address.addr_len();
        let address = self.source(key, socket).address.insert(Box::new(address));
        let entry = opcode::Connect::new(Fd(socket), address.as_ptr().cast(), length)
            .build()
            .user_data(user_data(CONNECT, key));
        // SAFETY: the address lies in a box that the source keeps until the connect has completed.
        unsafe { self.push(&entry) };
        Ok(())
    }

    fn receive(&mut self, key: Key) {
        let Some(source) = self.sources.get_mut(key.index as usize) else {
            return;
        };
        source.receiving = true;
        source.ending = false;
        let socket = Fd(source.socket);
        let entry = if source.keep {
            opcode::RecvMulti::new(socket, BUFFER_GROUP).build()
        } else {
            opcode::Recv::new(socket, std::ptr::null_mut(), self.buffers.size)
                .buf_group(BUFFER_GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
        };
        // SAFETY: it points to nothing: the kernel takes a buffer from the ring, which outlives all operations.
        unsafe { self.push(&entry.user_data(user_data(RECV, key))) };
    }

    fn send(
        &mut self,
        socket: RawFd,
        mut outgoing: Box<Outgoing>,
        chunk: u64,
        ending: Ending,
        key: Key,
    ) -> Option<Outcome> {
        let takes_calls = outgoing.takes_calls();
        if takes_calls {
            let (taken, stop) = sys::transmit(socket, &mut outgoing, chunk, false);
            if taken > 0 || !matches!(stop, Stop::Blocked) {
                return Some(self.sent_directly(key, outgoing, taken, stop, ending));
            }
        }
        let mut sending = match self.spare.pop() {
            Some(mut sending) => {
                sending.outgoing = outgoing;
                sending
            }
            None => Box::new(Sending::new(outgoing)),
        };
        sending.chunk = chunk;
        sending.last = ending;
        sending.ending = false;
        sending.linked = None;
        if takes_calls {
            self.await_writable(socket, key);
        } else {
            self.send_bytes(socket, &mut sending, key);
        }
        self.source(key, socket).sending = Some(sending);
        None
    }

    fn watch_datagram(&mut self, socket: RawFd, key: Key) {
        let index = key.index as usize;
        if index >= self.datagrams.len() {
            self.datagrams.resize(index + 1, key);
        }
        self.datagrams[index] = key;
        let entry = opcode::PollAdd::new(Fd(socket), libc::POLLIN as u32)
            .build()
            .user_data(user_data(READABLE, key));
        // SAFETY: a poll points to nothing.
        unsafe { self.push(&entry) };
    }

    /// Has [`Self::writable`] go on with the send in flight when the socket has room.
    fn await_writable(&mut self, socket: RawFd, key: Key) {
        let entry = opcode::PollAdd::new(Fd(socket), libc::POLLOUT as u32)
            .build()
            .user_data(user_data(WRITABLE, key));
        // SAFETY: a poll points to nothing.
        unsafe { self.push(&entry) };
    }

    /// Queues a send of byte strings, linked to a close if that is wanted and can be.
    fn send_bytes(&mut self, socket: RawFd, sending: &mut Sending, key: Key) {
        let (entry, total) = sending.entry(socket);
        let whole = sending.parts.len() == sending.outgoing.segments().count();
        let entry = entry.user_data(user_data(SEND, key));
        if !sending.last.closes() || !whole || total > LINKED_SEND_MAX {
            sending.last = Ending::Never;
            // SAFETY: the strings, their list and the header lie in `sending`, a box that the source keeps until the
            // completion has come; byte strings do not move when what holds them does.
            unsafe { self.push(&entry) };
            return;
        }
        self.reserve(2);
        let close = opcode::Close::new(Fd(socket))
            .build()
            .user_data(user_data(LINKED_CLOSE, key));
        // SAFETY: as above; the close points to nothing.
        unsafe {
            self.push(&entry.flags(squeue::Flags::IO_LINK));
            self.push(&close);
        }
    }

    /// The outcome of a send that was made without the ring.
    fn sent_directly(
        &mut self,
        key: Key,
        outgoing: Box<Outgoing>,
        taken: u64,
        stop: Stop,
        ending: Ending,
    ) -> Outcome {
        let stop = match stop {
            Stop::Empty if ending.closes() => {
                if let Some(source) = self.sources.get_mut(key.index as usize) {
                    sys::close(source.socket);
                }
                Stop::Closed
            }
            stop => stop,
        };
        Outcome::Sent {
            outgoing,
            taken,
            stop,
        }
    }

    /// Asks the kernel to end one operation. Its completion comes all the same.
    fn end(&mut self, kind: u64, key: Key) {
        let entry = opcode::AsyncCancel::new(user_data(kind, key))
            .build()
            .user_data(OTHER);
        // SAFETY: a cancellation points to nothing.
        unsafe { self.push(&entry) };
    }

    /// Turns one completion of the kernel into one of ours, or none.
    fn process(&mut self, entry: &cqueue::Entry, completions: &mut Vec<Completion>) {
        let more = cqueue::more(entry.flags());
        if !more {
            self.outstanding -= 1;
        }
        let data = entry.user_data();
        if data == NOTIFIER {
            self.notifier.clear();
            if !more {
                self.watch_notifier();
            }
            return;
        }
        let kind = data & KIND_MASK;
        let index = (data >> 32) as u32;
        let generation = (data as u32) >> KIND_BITS;
        if kind == ACCEPT {
            self.accepted(Key { index, generation }, entry.result(), more, completions);
            return;
        }
        if kind == OTHER {
            return;
        }
        if kind == READABLE {
            // It keeps its place until this completion, so the key is its own.
            completions.extend(self.datagrams.get(index as usize).map(|key| Completion {
                token: Token {
                    key: *key,
                    kind: OpKind::Readable,
                },
                outcome: Outcome::Ready,
                more: false,
            }));
            return;
        }
        // A stream keeps its place until its last completion has come, so this is its own record.
        let Some(source) = self.sources.get(index as usize) else {
            return;
        };
        let key = Key {
            index,
            generation: source.generation,
        };
        let outcome = match kind {
            RECV => self.received(key, entry, more),
            SEND => self.sent(key, entry.result()),
            WRITABLE => self.writable(key, entry.result()),
            LINKED_CLOSE => self.closed_after_send(key, entry.result()),
            CONNECT => {
                self.sources[index as usize].address = None;
                let result = check(entry.result()).map(drop);
                Some((OpKind::Connect, Outcome::Connected(result)))
            }
            _ => Some((OpKind::Close, Outcome::Closed)),
        };
        if let Some((kind, outcome)) = outcome {
            let token = Token { key, kind };
            let more = more && kind == OpKind::Recv;
            completions.push(Completion {
                token,
                outcome,
                more,
            });
        }
    }

    fn accepted(&mut self, key: Key, result: i32, more: bool, completions: &mut Vec<Completion>) {
        let mut ours = key;
        let mut again = false;
        if let Some(listener) = self.listeners.get_mut(key.index as usize)
            && listener.generation & GENERATION_MASK == key.generation
        {
            ours.generation = listener.generation;
            listener.accepting = more;
            // A connection that ended before it was accepted ends the operation, and is nobody's loss.
            again = !more
                && !listener.ending
                && matches!(-result, libc::ECONNABORTED | libc::EINTR | libc::EAGAIN);
        }
        if again {
            let socket = self.listeners[key.index as usize].socket;
            self.accept(socket, ours);
            return;
        }
        completions.push(Completion {
            token: Token {
                key: ours,
                kind: OpKind::Accept,
            },
            outcome: Outcome::Accepted(check(result).map(|socket| (socket, None))),
            more,
        });
    }

    fn received(
        &mut self,
        key: Key,
        entry: &cqueue::Entry,
        more: bool,
    ) -> Option<(OpKind, Outcome)> {
        let source = self.sources.get_mut(key.index as usize)?;
        source.receiving = more;
        let chosen = cqueue::buffer_select(entry.flags());
        let result = match check(entry.result()) {
            Ok(count) => match chosen {
                Some(id) => {
                    let buffer = self.buffers.exchange(id, count as usize);
                    Ok(if count == 0 { Buffer::empty() } else { buffer })
                }
                None => Ok(Buffer::empty()),
            },
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) && !source.ending => {
                self.starved.push_back(key);
                return None;
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                Err(io::Error::from_raw_os_error(libc::ECANCELED))
            }
            Err(error) => Err(error),
        };
        Some((OpKind::Recv, Outcome::Received(result)))
    }

    fn sent(&mut self, key: Key, result: i32) -> Option<(OpKind, Outcome)> {
        let source = self.sources.get_mut(key.index as usize)?;
        let mut sending = source.sending.take()?;
        if sending.last.closes() {
            // The completion of the close, which always follows, tells the rest.
            sending.linked = Some(result);
            source.sending = Some(sending);
            return None;
        }
        if -result == libc::EAGAIN && !sending.ending {
            // The kernel waits for room itself, but not under all circumstances.
            let socket = source.socket;
            source.sending = Some(sending);
            self.await_writable(socket, key);
            return None;
        }
        Some(self.sent_outcome(sending, result, false))
    }

    fn closed_after_send(&mut self, key: Key, result: i32) -> Option<(OpKind, Outcome)> {
        let sending = self.sources.get_mut(key.index as usize)?.sending.take()?;
        let sent = sending.linked.unwrap_or(-libc::ECANCELED);
        Some(self.sent_outcome(sending, sent, result != -libc::ECANCELED))
    }

    fn sent_outcome(
        &mut self,
        mut sending: Box<Sending>,
        result: i32,
        closed: bool,
    ) -> (OpKind, Outcome) {
        let mut outgoing = std::mem::take(&mut sending.outgoing);
        self.give_sending(sending);
        let (taken, stop) = match check(result) {
            Ok(count) => {
                outgoing.advance(count as u64);
                (
                    count as u64,
                    if outgoing.is_empty() {
                        Stop::Empty
                    } else {
                        Stop::Blocked
                    },
                )
            }
            // Too early, and tried again.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) =>
            {
                (0, Stop::Blocked)
            }
            Err(error) => (0, Stop::Failed(error)),
        };
        let stop = if closed { Stop::Closed } else { stop };
        (
            OpKind::Send,
            Outcome::Sent {
                outgoing,
                taken,
                stop,
            },
        )
    }

    /// A socket can be written to again: goes on with a file.
    fn writable(&mut self, key: Key, result: i32) -> Option<(OpKind, Outcome)> {
        let source = self.sources.get_mut(key.index as usize)?;
        let socket = source.socket;
        let mut sending = source.sending.take()?;
        let outgoing = std::mem::take(&mut sending.outgoing);
        let (chunk, ending) = (sending.chunk, sending.last);
        self.give_sending(sending);
        if let Err(error) = check(result) {
            let stop = Stop::Failed(error);
            return Some((
                OpKind::Send,
                Outcome::Sent {
                    outgoing,
                    taken: 0,
                    stop,
                },
            ));
        }
        let outcome = self.send(socket, outgoing, chunk, ending, key)?;
        Some((OpKind::Send, outcome))
    }

    fn give_sending(&mut self, mut sending: Box<Sending>) {
        sending.parts.clear();
        if self.spare.len() < base::limits::SPARE_BUFFERS_MAX {
            self.spare.push(sending);
        }
    }
}

impl Engine for Uring {
    fn submit(&mut self, op: Op, token: Token) -> Option<Outcome> {
        let key = token.key;
        match op {
            // Always several: the kernel accepts as they come, which costs no call at all.
            Op::Accept { socket, many: _ } => {
                self.accept(socket, key);
                None
            }
            Op::Connect { socket, address } => match self.connect(socket, &address, key) {
                Ok(()) => None,
                Err(error) => Some(Outcome::Connected(Err(error))),
            },
            Op::Recv { socket, keep } => {
                self.source(key, socket).keep = keep;
                self.receive(key);
                None
            }
            Op::Send {
                socket,
                outgoing,
                chunk,
                ending,
            } => {
                self.source(key, socket);
                self.send(socket, outgoing, chunk, ending, key)
            }
            Op::Close { socket } => {
                self.source(key, socket);
                let entry = opcode::Close::new(Fd(socket))
                    .build()
                    .user_data(user_data(CLOSE, key));
                // SAFETY: a close points to nothing.
                unsafe { self.push(&entry) };
                None
            }
            Op::Readable { socket } => {
                self.watch_datagram(socket, key);
                None
            }
        }
    }

    fn cancel(&mut self, token: Token) -> Option<Outcome> {
        let index = token.key.index as usize;
        if token.kind == OpKind::Accept {
            let listener = self.listeners.get_mut(index)?;
            if listener.generation == token.key.generation && listener.accepting {
                listener.ending = true;
                self.end(ACCEPT, token.key);
            }
            return None;
        }
        if token.kind == OpKind::Readable {
            self.end(READABLE, token.key);
            return None;
        }
        let source = self.sources.get_mut(index)?;
        if source.generation != token.key.generation {
            return None;
        }
        match token.kind {
            OpKind::Recv if source.receiving => {
                source.ending = true;
                self.end(RECV, token.key);
            }
            OpKind::Connect if source.address.is_some() => self.end(CONNECT, token.key),
            OpKind::Send if source.sending.is_some() => {
                if let Some(sending) = &mut source.sending {
                    sending.ending = true;
                }
                // Only one of them is in flight; the other cancellation finds nothing.
                self.end(SEND, token.key);
                self.end(WRITABLE, token.key);
            }
            _ => {}
        }
        None
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        let timeout = if self.arrived.is_empty() {
            timeout
        } else {
            Some(Duration::ZERO)
        };
        let result = match timeout {
            None => self.ring.submit_and_wait(1),
            Some(timeout) => {
                let timeout = Timespec::from(timeout);
                self.ring
                    .submitter()
                    .submit_with_args(1, &SubmitArgs::new().timespec(&timeout))
            }
        };
        match result {
            Ok(_) => {}
            Err(error) => match error.raw_os_error() {
                // Time is over; a signal came; the kernel wants its completions to be taken first, or is short of memory.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                _ => return Err(error),
            },
        }
        self.collect();
        let mut arrived = std::mem::take(&mut self.arrived);
        for entry in arrived.drain(..) {
            self.process(&entry, completions);
        }
        // Processing may have taken more in, if the queue of submissions ran full; they wait for the next turn.
        arrived.append(&mut self.arrived);
        self.arrived = arrived;
        self.buffers.publish();
        while let Some(key) = self.starved.pop_front() {
            self.receive(key);
        }
        Ok(())
    }

    fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }
}

impl Drop for Uring {
    /// Waits for what the kernel still has: it may read and write memory that is freed here.
    fn drop(&mut self) {
        let everything = io_uring::types::CancelBuilder::any();
        let entry = opcode::AsyncCancel2::new(everything)
            .build()
            .user_data(OTHER);
        for _ in 0..DRAIN_ROUNDS_MAX {
            // SAFETY: a cancellation points to nothing.
            unsafe { self.push(&entry) };
            let timeout = Timespec::new().nsec(10_000_000);
            let _ = self
                .ring
                .submitter()
                .submit_with_args(1, &SubmitArgs::new().timespec(&timeout));
            self.collect();
            for entry in std::mem::take(&mut self.arrived) {
                if !cqueue::more(entry.flags()) {
                    self.outstanding -= 1;
                }
                if entry.user_data() & KIND_MASK == ACCEPT && entry.result() >= 0 {
                    sys::close(entry.result());
                }
                if let Some(id) = cqueue::buffer_select(entry.flags()) {
                    drop(self.buffers.exchange(id, 0));
                }
            }
            if self.outstanding == 0 {
                return;
            }
        }
        // Something does not come back: better lose the memory than let the kernel write where others live.
        std::mem::forget(std::mem::take(&mut self.sources));
        self.buffers.leak();
    }
}

/// A result of the kernel: a count, or an error number below zero.
fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::from_raw_os_error(-result))
    } else {
        Ok(result)
    }
}

impl Sending {
    fn new(outgoing: Box<Outgoing>) -> Sending {
        Sending {
            outgoing,
            chunk: 0,
            last: Ending::Never,
            ending: false,
            linked: None,
            // SAFETY: `msghdr` is plain numbers and pointers, for which zero is a valid value.
            header: unsafe { std::mem::zeroed() },
            parts: Vec::new(),
        }
    }

    /// The submission that sends the byte strings at the front, and how many bytes that is.
    fn entry(&mut self, socket: RawFd) -> (squeue::Entry, usize) {
        self.parts.clear();
        let mut segments = self.outgoing.segments();
        let mut total = 0;
        while self.parts.len() < sys::PARTS_MAX
            && let Some(Segment::Bytes(bytes)) = segments.next()
        {
            total += bytes.len();
            self.parts.push(libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            });
        }
        let mut flags = libc::MSG_NOSIGNAL;
        let end_follows = self.last == Ending::Quick && total <= LINKED_SEND_MAX;
        if end_follows || segments.next().is_some() {
            flags |= libc::MSG_MORE;
        }
        if self.last.closes() {
            // A short send would not break the link without this, and the close would cut the rest off.
            flags |= libc::MSG_WAITALL;
        }
        if let [part] = &self.parts[..]
            && let Ok(length) = u32::try_from(part.iov_len)
        {
            let entry = opcode::Send::new(Fd(socket), part.iov_base.cast(), length);
            return (entry.flags(flags).build(), total);
        }
        self.header.msg_iov = self.parts.as_mut_ptr();
        self.header.msg_iovlen = self.parts.len() as _;
        let entry = opcode::SendMsg::new(Fd(socket), &raw const self.header);
        (entry.flags(flags as u32).build(), total)
    }
}

/// The ring from which the kernel takes buffers to receive into.
struct BufferRing {
    /// `count` entries that the kernel shares; the tail lies inside the first one.
    entries: NonNull<BufRingEntry>,
    count: u16,
    /// Entries given to the kernel so far, modulo 2^16.
    tail: u16,
    /// Bytes of each buffer.
    size: u32,
    /// By buffer number: memory that the kernel may write to. Raw, because ours it is only after it came back.
    memory: Vec<*mut MaybeUninit<u8>>,
}

impl BufferRing {
    fn new(ring: &IoUring, count: u16) -> io::Result<BufferRing> {
        let layout = BufferRing::layout(count);
        // SAFETY: the layout is not empty.
        let Some(entries) = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<BufRingEntry>())
        else {
            handle_alloc_error(layout)
        };
        let size = buffer::size();
        let mut buffers = BufferRing {
            entries,
            count,
            tail: 0,
            size: u32::try_from(size).unwrap_or(u32::MAX),
            memory: vec![std::ptr::null_mut(); usize::from(count)],
        };
        // SAFETY: the memory is page-aligned, holds `count` entries, and is freed only after the ring has been drained
        // (see the destructor of `Uring`), or leaked.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(
                entries.as_ptr().addr() as u64,
                count,
                BUFFER_GROUP,
                0,
            )?;
        }
        for id in 0..count {
            buffers.provide(id);
        }
        buffers.publish();
        Ok(buffers)
    }

    fn layout(count: u16) -> Layout {
        let bytes = usize::from(count) * size_of::<BufRingEntry>();
        // A power of two and a size below 1 MiB: the layout is valid.
        Layout::from_size_align(bytes, 4096).unwrap_or(Layout::new::<[u8; 4096]>())
    }

    /// Puts fresh memory into the ring as number `id`; the kernel sees it after [`publish`](Self::publish).
    fn provide(&mut self, id: u16) {
        let memory = Box::into_raw(buffer::take()).cast::<MaybeUninit<u8>>();
        self.memory[usize::from(id)] = memory;
        let index = usize::from(self.tail & (self.count - 1));
        // SAFETY: the index is below `count`, and the kernel does not read the entry before the tail moves past it.
        let entry = unsafe { &mut *self.entries.as_ptr().add(index) };
        entry.set_addr(memory.addr() as u64);
        entry.set_len(self.size);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the kernel all entries that were provided.
    fn publish(&self) {
        // SAFETY: the tail lies in the first entry, where nothing else of ours is, and is aligned for its type.
        let tail =
            unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.entries.as_ptr()).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// Takes buffer `id`, which the kernel has filled with `length` bytes, and puts a fresh one in its place.
    fn exchange(&mut self, id: u16, length: usize) -> Buffer {
        let Some(&memory) = self.memory.get(usize::from(id)) else {
            return Buffer::empty();
        };
        let whole = std::ptr::slice_from_raw_parts_mut(memory, self.size as usize);
        // SAFETY: it came from a box of this size, and the kernel has given it back with this completion; the next line
        // replaces it, so it is made into a box once.
        let filled = unsafe { Box::from_raw(whole) };
        self.provide(id);
        // SAFETY: the kernel says that it has written that many bytes; `filled` keeps to the memory's end.
        unsafe { Buffer::filled(filled, length) }
    }

    /// Gives all memory up, because the kernel may still write to it.
    fn leak(&mut self) {
        self.memory.clear();
        self.count = 0;
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        // Null where making the ring failed before it was filled.
        for &memory in self.memory.iter().filter(|memory| !memory.is_null()) {
            let whole = std::ptr::slice_from_raw_parts_mut(memory, self.size as usize);
            // SAFETY: each came from a box of this size, and the owner has seen to it that no operation is in flight.
            drop(unsafe { Box::from_raw(whole) });
        }
        if self.count > 0 {
            // SAFETY: allocated with this layout. The registration ends with the ring; without operations in flight the
            // kernel reads no entries.
            unsafe { dealloc(self.entries.as_ptr().cast(), BufferRing::layout(self.count)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_small() {
        assert!(size_of::<Source>() <= 32, "{}", size_of::<Source>());
    }

    #[test]
    fn user_data_holds_kind_place_and_generation() {
        let key = Key {
            index: u32::MAX - 1,
            generation: GENERATION_MASK,
        };
        let data = user_data(CLOSE, key);
        assert_eq!(data & KIND_MASK, CLOSE);
        assert_eq!((data >> 32) as u32, key.index);
        assert_eq!((data as u32) >> KIND_BITS, key.generation);
        assert_ne!(data, NOTIFIER);
    }
}
