//! The engine over io_uring: one `io_uring_enter` per turn submits all queued operations and
//! returns the completions.
//!
//! Receives take no buffer: the kernel picks one from a ring of provided buffers when data arrives.
//! That buffer becomes an ordinary pooled one, and a fresh one replaces it in the ring at once. The
//! first receive of a connection is one-shot, so that a short connection can end with a send linked
//! to its close; an armed multishot receive would keep the socket open. Running out of buffers
//! re-arms the receive later and never ends a connection.
//!
//! io_uring has no sendfile: a send that contains a file, or keys or records for kernel TLS, is
//! made at once by direct system calls, and a poll waits for room in the socket. So is a send in a
//! turn with next to nothing else to do (`DIRECT_MAX`). Datagrams, too, are received and sent by
//! direct calls, one per batch, and a poll waits for readability or room. Accepting does not return
//! the peers' addresses, since a multishot accept cannot.
//!
//! A descriptor that is given to the kernel to be closed is removed from the stream's record in the
//! same step. Completions in flight then find no descriptor: the number may already be that of
//! another connection. Nor is a descriptor closed by a direct call while a submission that names it
//! may still lie in the queue.
//!
//! See `ring.rs` for submissions that the kernel does not accept, and `buffers.rs` for the memory
//! of receives.
//!
//! Needs Linux 6.1: deferred task work, multishot accept and receive, provided buffer rings;
//! [`probe`] checks for them.
#![allow(unsafe_code)]

mod buffers;
mod datagrams;
mod ring;
mod sending;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use base::slab::Key;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode, squeue};
use rustix::net::SocketAddrAny;

use crate::buffer::Buffer;
use crate::engine::{
    CloseMode, Completion, Engine, Op, OpKind, OperationOutcome, Outgoing, SendStop, Socket, Token,
};
use crate::messages::Messages;
use crate::net::Address;
use crate::notifier::Notifier;
use crate::reserve::Reserve;
use crate::sys;
use buffers::{BUFFER_GROUP, BufferRing};
use datagrams::Datagrams;
use ring::Ring;
use sending::{LINKED_SEND_MAX, Sending};

/// When the engine ends, it waits for operations in flight in at most this many rounds of this
/// length.
const DRAIN_ROUNDS_MAX: usize = 100;
const DRAIN_ROUND: Duration = Duration::from_millis(10);

/// If at most this many completions arrived in a turn, its sends are made at once, by a direct call
/// each. A send through the ring completes as soon as the kernel has processed it, so the call that
/// submits it does not wait, and a quiet loop needs another turn just to wait. In a busy turn one
/// call submits all sends, and their completions arrive with the next turn's work.
const DIRECT_MAX: usize = 1;

pub(crate) struct Uring {
    ring: Ring,
    notifier: Notifier,
    buffers: BufferRing,
    /// By the index of the stream's key.
    sources: Vec<Source>,
    /// By the index of the listener's key.
    listeners: Vec<Listener>,
    /// By the index of the datagram socket's key.
    datagrams: Vec<Datagrams>,
    /// Allocated when datagrams are first used.
    messages: Option<Box<Messages>>,
    reserve: Reserve,
    /// Reused buffer for completions; empty except while they are processed.
    arrived: Vec<cqueue::Entry>,
    /// Streams whose receives found no buffer.
    starved: VecDeque<Key>,
    /// Whether so few completions arrived in this turn that sends are made directly: see
    /// [`DIRECT_MAX`].
    is_quiet: bool,
    /// Records of finished sends, for reuse.
    #[expect(
        clippy::vec_box,
        reason = "they move between here and the streams as boxes"
    )]
    spare: Vec<Box<Sending>>,
}

/// The state of one connected socket.
#[derive(Default)]
struct Source {
    generation: u32,
    /// `None` as soon as the kernel has been told to close the socket.
    socket: Option<OwnedFd>,
    /// A receive, or a poll for bytes, is in flight.
    receiving: bool,
    /// Receives are multishot: see [`Op::Recv`].
    keep: bool,
    /// The receive has been cancelled: it must not be re-armed.
    ending: bool,
    /// The send in flight.
    sending: Option<Box<Sending>>,
    /// The address that a connect in flight reads.
    address: Option<Box<SocketAddrAny>>,
}

/// The state of one listening socket.
#[derive(Default)]
struct Listener {
    generation: u32,
    /// `Some` while an accept is in flight.
    socket: Option<Rc<Socket>>,
    /// An accept is in flight.
    accepting: bool,
    ending: bool,
}

/// Kinds of submissions; the first six are those of [`OpKind`].
const ACCEPT: u64 = OpKind::Accept as u64;
const CONNECT: u64 = OpKind::Connect as u64;
const RECV: u64 = OpKind::Recv as u64;
const SEND: u64 = OpKind::Send as u64;
const CLOSE: u64 = OpKind::Close as u64;
/// A poll for readability of a datagram socket, or of another watched descriptor.
const READABLE: u64 = OpKind::Readable as u64;
/// A poll for room in a stream's socket: for sendfile(2), and after a send that could not proceed.
const WRITABLE: u64 = 6;
/// The close that is linked to a send.
const LINKED_CLOSE: u64 = 7;
/// The notifier's poll, cancellations, and closes for which no stream waits. Only the notifier's
/// completion matters.
const OTHER: u64 = 8;
/// A poll for room in a datagram socket.
const ROOM: u64 = 9;

/// A poll for bytes in a stream's socket that are not received into memory.
const BYTES: u64 = 10;

/// The bits of a submission's user data for its kind, and those for the key's generation.
const KIND_BITS: u32 = 4;
const KIND_MASK: u64 = (1 << KIND_BITS) - 1;

const GENERATION_BITS: u32 = 32 - KIND_BITS;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;
const NOTIFIER: u64 = OTHER | 1 << 32;

/// The user data of a submission: its kind, and the index and generation of its key.
fn user_data(kind: u64, key: Key) -> u64 {
    kind | u64::from(key.generation & GENERATION_MASK) << KIND_BITS | u64::from(key.index) << 32
}

/// Checks whether this engine works here; if not, returns the reason in words for the log.
pub(crate) fn probe() -> Result<(), String> {
    let ring = ring::build().map_err(|error| match error.raw_os_error() {
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
    for (name, code) in ring::OPERATIONS {
        if !probe.is_supported(code) {
            return Err(format!("io_uring of this kernel lacks {name}"));
        }
    }
    if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
        return Err("io_uring of this kernel is older than Linux 6.1".to_owned());
    }
    BufferRing::new(&ring.submitter(), 1)
        .map(drop)
        .map_err(|error| format!("io_uring has no rings of provided buffers: {error}"))?;
    ring::confine(&ring).map_err(|error| format!("io_uring cannot be restricted: {error}"))
}

impl Uring {
    pub(crate) fn new(connections: usize) -> io::Result<Uring> {
        let ring = Ring::new()?;
        // A burst may exhaust the buffers; then receives wait for the next turn. Each entry costs
        // one buffer.
        let entries = (connections / 8).next_power_of_two().clamp(32, 256) as u16;
        let buffers = BufferRing::new(&ring.submitter(), entries)?;
        ring.confine()?;
        let mut uring = Uring {
            ring,
            notifier: Notifier::new()?,
            buffers,
            sources: Vec::new(),
            listeners: Vec::new(),
            datagrams: Vec::new(),
            messages: None,
            reserve: Reserve::default(),
            arrived: Vec::new(),
            starved: VecDeque::new(),
            is_quiet: false,
            spare: Vec::new(),
        };
        uring.watch_notifier();
        Ok(uring)
    }

    fn watch_notifier(&mut self) {
        let fd = Fd(self.notifier.fd().as_fd().as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32)
            .multi(true)
            .build()
            .user_data(NOTIFIER);
        // SAFETY: a poll has no pointers; the notifier lives as long as the engine.
        unsafe { self.ring.push(entry) };
    }

    /// The record of the stream `key`; `None` if the place has been reused.
    fn source(&mut self, key: Key) -> Option<&mut Source> {
        let source = self.sources.get_mut(key.index as usize)?;
        (source.generation == key.generation).then_some(source)
    }

    /// Queues an accept. False if the socket is not a kernel socket.
    fn accept(&mut self, socket: &Rc<Socket>, key: Key) -> bool {
        let Some(descriptor) = socket.descriptor() else {
            return false;
        };
        let index = key.index as usize;
        if index >= self.listeners.len() {
            self.listeners.resize_with(index + 1, Listener::default);
        }
        self.listeners[index] = Listener {
            generation: key.generation,
            socket: Some(Rc::clone(socket)),
            accepting: true,
            ending: false,
        };
        let entry = opcode::AcceptMulti::new(Fd(descriptor.as_raw_fd()))
            .flags(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)
            .build()
            .user_data(user_data(ACCEPT, key));
        // SAFETY: the accept has no pointers, since no address is requested. The listener's record
        // keeps the descriptor open, and its place reserved, until the last completion.
        unsafe { self.ring.push(entry) };
        true
    }

    fn connect(&mut self, address: &Address, key: Key) -> io::Result<()> {
        let address = match address {
            Address::Inet(address) => SocketAddrAny::from(*address),
            Address::Unix(path) => SocketAddrAny::from(sys::unix_address(path)?),
        };
        let length = address.addr_len();
        let source = self.source(key).ok_or(io::ErrorKind::NotConnected)?;
        let socket = source.fd().ok_or(io::ErrorKind::NotConnected)?;
        let address = source.address.insert(Box::new(address));
        let entry = opcode::Connect::new(socket, address.as_ptr().cast(), length)
            .build()
            .user_data(user_data(CONNECT, key));
        // SAFETY: the address lies in a box that the source keeps until the connect has completed.
        // The source's descriptor is only closed by a close that is queued later.
        unsafe { self.ring.push(entry) };
        Ok(())
    }

    /// Queues a receive. False if the socket is closed.
    fn receive(&mut self, key: Key) -> bool {
        let size = self.buffers.size;
        let Some(source) = self.source(key) else {
            return false;
        };
        let Some(socket) = source.fd() else {
            return false;
        };
        source.receiving = true;
        source.ending = false;
        let entry = if source.keep {
            opcode::RecvMulti::new(socket, BUFFER_GROUP).build()
        } else {
            opcode::Recv::new(socket, std::ptr::null_mut(), size)
                .buf_group(BUFFER_GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT)
        };
        // SAFETY: the receive has no pointers: the kernel takes a buffer from the ring, which
        // outlives all operations. The source's descriptor is only closed by a close that is queued
        // later.
        unsafe { self.ring.push(entry.user_data(user_data(RECV, key))) };
        true
    }

    /// Queues a poll for bytes. False if the socket is closed.
    fn watch_bytes(&mut self, key: Key) -> bool {
        let Some(source) = self.source(key) else {
            return false;
        };
        let Some(socket) = source.fd() else {
            return false;
        };
        source.receiving = true;
        source.ending = false;
        let entry = opcode::PollAdd::new(socket, (libc::POLLIN | libc::POLLRDHUP) as u32)
            .build()
            .user_data(user_data(BYTES, key));
        // SAFETY: a poll has no pointers. The source's descriptor is only closed by a close that is
        // queued later.
        unsafe { self.ring.push(entry) };
        true
    }

    fn send(
        &mut self,
        mut outgoing: Box<Outgoing>,
        chunk: u64,
        ending: CloseMode,
        key: Key,
    ) -> Option<OperationOutcome> {
        let takes_calls = outgoing.takes_calls();
        let directly = takes_calls || self.is_quiet && !ending.closes();
        let open = self.source(key).and_then(|source| source.socket.as_ref());
        let Some(socket) = open else {
            return Some(OperationOutcome::Sent {
                outgoing,
                taken: 0,
                stop: SendStop::Failed(io::ErrorKind::NotConnected.into()),
            });
        };
        if directly {
            let (taken, stop) = sys::transmit(socket.as_fd(), &mut outgoing, chunk, false);
            if taken > 0 || !matches!(stop, SendStop::Blocked) {
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
            self.await_writable(key);
        } else {
            self.send_bytes(&mut sending, key);
        }
        if let Some(source) = self.source(key) {
            source.sending = Some(sending);
        }
        None
    }

    /// Waits for room in the socket; [`Self::writable`] then continues the send.
    fn await_writable(&mut self, key: Key) {
        let Some(socket) = self.source(key).and_then(|source| source.fd()) else {
            return;
        };
        let entry = opcode::PollAdd::new(socket, libc::POLLOUT as u32)
            .build()
            .user_data(user_data(WRITABLE, key));
        // SAFETY: a poll has no pointers. The source's descriptor is only closed by a close that is
        // queued later.
        unsafe { self.ring.push(entry) };
    }

    /// Queues a send of byte strings, linked to a close if that is requested and possible.
    fn send_bytes(&mut self, sending: &mut Sending, key: Key) {
        let Some(source) = self.sources.get_mut(key.index as usize) else {
            return;
        };
        let Some(socket) = source.fd() else {
            return;
        };
        let (entry, total) = sending.entry(socket);
        let whole = sending.parts.len() == sending.outgoing.segments().count();
        let entry = entry.user_data(user_data(SEND, key));
        if !sending.last.closes() || !whole || total > LINKED_SEND_MAX {
            sending.last = CloseMode::Never;
            // SAFETY: the strings, their list and the header lie in `sending`, a box that the
            // source keeps until the completion; byte strings do not move with their owner. The
            // source's descriptor is only closed by a close that is queued later.
            unsafe { self.ring.push(entry) };
            return;
        }
        sending.closing = source.socket.take().map_or(-1, OwnedFd::into_raw_fd);
        let close = opcode::Close::new(Fd(sending.closing))
            .build()
            .user_data(user_data(LINKED_CLOSE, key));
        // SAFETY: as above; the close has no pointers, and owns the descriptor's number from now
        // on.
        unsafe { self.ring.push_linked(entry, close) };
    }

    /// The outcome of a send that was made by direct calls.
    fn sent_directly(
        &mut self,
        key: Key,
        outgoing: Box<Outgoing>,
        taken: u64,
        stop: SendStop,
        ending: CloseMode,
    ) -> OperationOutcome {
        let stop = match stop {
            SendStop::Empty if ending.closes() => {
                self.close_in_order(key);
                SendStop::Closed
            }
            stop => stop,
        };
        OperationOutcome::Sent {
            outgoing,
            taken,
            stop,
        }
    }

    /// Closes a stream's socket at once, or behind a receive that may still lie in the queue and
    /// names it.
    fn close_in_order(&mut self, key: Key) {
        let Some(source) = self.source(key) else {
            return;
        };
        let receiving = source.receiving;
        let Some(socket) = source.socket.take().filter(|_| receiving) else {
            return;
        };
        let entry = opcode::Close::new(Fd(socket.into_raw_fd()))
            .build()
            .user_data(OTHER);
        // SAFETY: a close has no pointers, and owns the descriptor's number from now on.
        unsafe { self.ring.push(entry) };
    }

    /// Queues the close of a stream's socket. False if the stream has no socket any more.
    fn close(&mut self, key: Key) -> bool {
        let Some(socket) = self.source(key).and_then(|source| source.socket.take()) else {
            return false;
        };
        let entry = opcode::Close::new(Fd(socket.into_raw_fd()))
            .build()
            .user_data(user_data(CLOSE, key));
        // SAFETY: a close has no pointers, and owns the descriptor's number from now on.
        unsafe { self.ring.push(entry) };
        true
    }

    /// Cancels one operation. Its completion follows nevertheless.
    fn end(&mut self, kind: u64, key: Key) {
        let entry = opcode::AsyncCancel::new(user_data(kind, key))
            .build()
            .user_data(OTHER);
        // SAFETY: a cancellation has no pointers and names no descriptor.
        unsafe { self.ring.push(entry) };
    }

    /// Converts a completion of the kernel to one of the engine, or to none.
    fn process(&mut self, entry: &cqueue::Entry, completions: &mut Vec<Completion>) {
        let more = cqueue::more(entry.flags());
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
        if kind == READABLE || kind == ROOM {
            completions.extend(self.datagrams_ready(kind, index, entry.result()));
            return;
        }
        // A stream keeps its place until its last completion, so the record is that of the right
        // stream.
        let known = self.sources.get_mut(index as usize);
        let Some(source) = known.filter(|source| source.generation & GENERATION_MASK == generation)
        else {
            if let Some(id) = cqueue::buffer_select(entry.flags()) {
                drop(self.buffers.exchange(id, 0));
            }
            return;
        };
        let key = Key {
            index,
            generation: source.generation,
        };
        let outcome = match kind {
            RECV => self.received(key, entry, more),
            BYTES => {
                source.receiving = false;
                Some((OpKind::Recv, OperationOutcome::Ready))
            }
            SEND => self.sent(key, entry.result()),
            WRITABLE => self.writable(key, entry.result()),
            LINKED_CLOSE => self.closed_after_send(key, entry.result()),
            CONNECT => {
                source.address = None;
                let result = check(entry.result()).map(drop);
                Some((OpKind::Connect, OperationOutcome::Connected(result)))
            }
            _ => Some((OpKind::Close, OperationOutcome::Closed)),
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

    /// Handles a completion of an accept.
    fn accepted(&mut self, key: Key, result: i32, more: bool, completions: &mut Vec<Completion>) {
        let mut ours = key;
        if let Some(listener) = self.listeners.get_mut(key.index as usize)
            && listener.generation & GENERATION_MASK == key.generation
        {
            ours.generation = listener.generation;
            listener.accepting = more;
            let socket = if more { None } else { listener.socket.take() };
            // A connection that ended before it was accepted ends the accept operation, so accept
            // again.
            let again = !listener.ending
                && matches!(-result, libc::ECONNABORTED | libc::EINTR | libc::EAGAIN);
            if let Some(socket) = socket.filter(|_| again) {
                self.accept(&socket, ours);
                return;
            }
        }
        completions.push(Completion {
            token: Token {
                key: ours,
                kind: OpKind::Accept,
            },
            outcome: OperationOutcome::Accepted(
                accepted_socket(result).map(|socket| (socket, None)),
            ),
            more,
        });
    }

    /// Handles a completion of a receive. `None` if it found no buffer and is to be re-armed.
    fn received(
        &mut self,
        key: Key,
        entry: &cqueue::Entry,
        more: bool,
    ) -> Option<(OpKind, OperationOutcome)> {
        let source = self.source(key)?;
        source.receiving = more;
        let may_go_on = !source.ending && source.socket.is_some();
        let chosen = cqueue::buffer_select(entry.flags());
        let result = match check(entry.result()) {
            Ok(count) => match chosen {
                Some(id) => {
                    let buffer = self.buffers.exchange(id, count as usize);
                    Ok(if count == 0 { Buffer::empty() } else { buffer })
                }
                None => Ok(Buffer::empty()),
            },
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) && may_go_on => {
                self.starved.push_back(key);
                return None;
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                Err(io::Error::from_raw_os_error(libc::ECANCELED))
            }
            Err(error) => Err(error),
        };
        Some((OpKind::Recv, OperationOutcome::Received(result)))
    }

    /// Handles the completion of a send. `None` if a further completion is awaited.
    fn sent(&mut self, key: Key, result: i32) -> Option<(OpKind, OperationOutcome)> {
        let source = self.source(key)?;
        let mut sending = source.sending.take()?;
        if sending.last.closes() {
            // The completion of the close, which always follows, reports the rest.
            sending.linked = Some(result);
            source.sending = Some(sending);
            return None;
        }
        if -result == libc::EAGAIN && !sending.ending && source.socket.is_some() {
            // The kernel usually waits for room itself, but not in all cases.
            source.sending = Some(sending);
            self.await_writable(key);
            return None;
        }
        Some(self.sent_outcome(sending, result, false))
    }

    /// Handles the completion of a close that was linked to a send. If the close was cancelled, the
    /// stream gets its descriptor back.
    fn closed_after_send(&mut self, key: Key, result: i32) -> Option<(OpKind, OperationOutcome)> {
        let source = self.source(key)?;
        let sending = source.sending.take()?;
        let sent = sending.linked.unwrap_or(-libc::ECANCELED);
        let closed = result != -libc::ECANCELED;
        if !closed && sending.closing >= 0 {
            // SAFETY: only this close owned the number, and the kernel reports that it has not
            // closed it.
            source.socket = Some(unsafe { OwnedFd::from_raw_fd(sending.closing) });
        }
        Some(self.sent_outcome(sending, sent, closed))
    }

    /// The outcome of a send with the given result; `closed` says that the socket was closed.
    fn sent_outcome(
        &mut self,
        mut sending: Box<Sending>,
        result: i32,
        closed: bool,
    ) -> (OpKind, OperationOutcome) {
        let mut outgoing = std::mem::take(&mut sending.outgoing);
        self.give_sending(sending);
        let (taken, stop) = match check(result) {
            Ok(count) => {
                outgoing.advance(count as u64);
                (
                    count as u64,
                    if outgoing.is_empty() {
                        SendStop::Empty
                    } else {
                        SendStop::Blocked
                    },
                )
            }
            // A transient error: the send is tried again.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) =>
            {
                (0, SendStop::Blocked)
            }
            Err(error) => (0, SendStop::Failed(error)),
        };
        let stop = if closed { SendStop::Closed } else { stop };
        (
            OpKind::Send,
            OperationOutcome::Sent {
                outgoing,
                taken,
                stop,
            },
        )
    }

    /// A socket has room again: continues a send with a file, unless the stream is ending. The poll
    /// may have completed before it was cancelled, and the socket may have been closed since.
    fn writable(&mut self, key: Key, result: i32) -> Option<(OpKind, OperationOutcome)> {
        let mut sending = self.source(key)?.sending.take()?;
        let outgoing = std::mem::take(&mut sending.outgoing);
        let (chunk, last, ending) = (sending.chunk, sending.last, sending.ending);
        self.give_sending(sending);
        let failed = match check(result) {
            Err(error) => Some(error),
            Ok(_) => ending.then(|| io::Error::from_raw_os_error(libc::ECANCELED)),
        };
        if let Some(error) = failed {
            let stop = SendStop::Failed(error);
            return Some((
                OpKind::Send,
                OperationOutcome::Sent {
                    outgoing,
                    taken: 0,
                    stop,
                },
            ));
        }
        let outcome = self.send(outgoing, chunk, last, key)?;
        Some((OpKind::Send, outcome))
    }

    /// Keeps the record of a finished send for reuse.
    fn give_sending(&mut self, mut sending: Box<Sending>) {
        sending.parts.clear();
        if self.spare.len() < base::limits::SPARE_BUFFERS_MAX {
            self.spare.push(sending);
        }
    }
}

impl Engine for Uring {
    fn adopt(&mut self, key: Key, socket: Socket) {
        let Socket::Descriptor(socket) = socket else {
            return;
        };
        let index = key.index as usize;
        if index >= self.sources.len() {
            self.sources.resize_with(index + 1, Source::default);
        }
        self.sources[index] = Source {
            generation: key.generation,
            socket: Some(socket),
            ..Source::default()
        };
    }

    fn descriptor(&self, key: Key) -> Option<BorrowedFd<'_>> {
        let source = self.sources.get(key.index as usize)?;
        let socket = source.socket.as_ref()?;
        (source.generation == key.generation).then(|| socket.as_fd())
    }

    fn submit(&mut self, op: Op<'_>, token: Token) -> Option<OperationOutcome> {
        let key = token.key;
        match op {
            // Always multishot: the kernel accepts connections as they arrive, without further
            // calls.
            Op::Accept { socket, many: _ } => {
                if self.accept(socket, key) {
                    None
                } else {
                    Some(op.unconnected())
                }
            }
            Op::Connect { address } => match self.connect(&address, key) {
                Ok(()) => None,
                Err(error) => Some(OperationOutcome::Connected(Err(error))),
            },
            Op::Recv { keep } => {
                if let Some(source) = self.source(key) {
                    source.keep = keep;
                }
                if self.receive(key) {
                    None
                } else {
                    Some(op.unconnected())
                }
            }
            Op::Send {
                outgoing,
                chunk,
                ending,
            } => self.send(outgoing, chunk, ending, key),
            Op::Close => {
                if self.close(key) {
                    None
                } else {
                    Some(OperationOutcome::Closed)
                }
            }
            Op::Readable { socket } => match socket.descriptor() {
                Some(descriptor) => {
                    self.watch_datagrams(descriptor, key, OpKind::Readable);
                    None
                }
                None => Some(op.unconnected()),
            },
            Op::RecvMsg { socket, into } => self.receive_datagrams(socket, into, key),
            Op::SendMsg { socket, datagrams } => self.send_datagrams(socket, datagrams, key),
        }
    }

    fn await_bytes(&mut self, key: Key) -> bool {
        self.watch_bytes(key)
    }

    fn cancel(&mut self, token: Token) -> Option<OperationOutcome> {
        let index = token.key.index as usize;
        if token.kind == OpKind::Accept {
            let listener = self.listeners.get_mut(index)?;
            if listener.generation == token.key.generation && listener.accepting {
                listener.ending = true;
                self.end(ACCEPT, token.key);
            }
            return None;
        }
        let kind = token.kind;
        if matches!(kind, OpKind::Readable | OpKind::RecvMsg | OpKind::SendMsg) {
            self.cancel_datagrams(token);
            return None;
        }
        let source = self.source(token.key)?;
        match token.kind {
            OpKind::Recv if source.receiving => {
                source.ending = true;
                // One of the two is in flight; the other cancellation finds nothing.
                self.end(RECV, token.key);
                self.end(BYTES, token.key);
            }
            OpKind::Connect if source.address.is_some() => self.end(CONNECT, token.key),
            OpKind::Send if source.sending.is_some() => {
                if let Some(sending) = &mut source.sending {
                    sending.ending = true;
                }
                // At most one of the two is in flight; the other cancellation finds nothing.
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
        self.ring.wait(timeout)?;
        let mut arrived = std::mem::take(&mut self.arrived);
        // Processing them may add more completions, if the submission queue runs full; those wait
        // for the next turn.
        self.ring.take_arrived(&mut arrived);
        let arrived_count = arrived.len();
        for entry in arrived.drain(..) {
            self.process(&entry, completions);
        }
        self.is_quiet = arrived_count <= DIRECT_MAX;
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

    fn listen(&mut self, socket: &Socket) -> io::Result<bool> {
        let descriptor = socket.descriptor().ok_or(io::ErrorKind::NotConnected)?;
        self.reserve.fill();
        sys::take_listener(descriptor)
    }

    fn shed_connection(&mut self, listener: &Socket, answer: &[u8]) -> bool {
        let descriptor = listener.descriptor();
        descriptor.is_some_and(|descriptor| self.reserve.shed_connection(descriptor, answer))
    }
}

impl Drop for Uring {
    /// Waits for operations in flight: the kernel may read and write memory that is freed here.
    fn drop(&mut self) {
        let everything = io_uring::types::CancelBuilder::any();
        let entry = opcode::AsyncCancel2::new(everything)
            .build()
            .user_data(OTHER);
        for _ in 0..DRAIN_ROUNDS_MAX {
            // SAFETY: a cancellation points to nothing and names no descriptor.
            unsafe { self.ring.push(entry.clone()) };
            let waited = self.ring.wait(Some(DRAIN_ROUND));
            let mut arrived = std::mem::take(&mut self.arrived);
            self.ring.take_arrived(&mut arrived);
            for entry in arrived.drain(..) {
                if entry.user_data() & KIND_MASK == ACCEPT {
                    drop(accepted_socket(entry.result()));
                }
                if let Some(id) = cqueue::buffer_select(entry.flags()) {
                    drop(self.buffers.exchange(id, 0));
                }
            }
            self.arrived = arrived;
            if self.ring.outstanding() == 0 {
                return;
            }
            if waited.is_err() {
                break;
            }
        }
        // Some operations do not complete: leak their memory, since the kernel may still write to
        // it.
        std::mem::forget(std::mem::take(&mut self.sources));
        self.buffers.leak();
    }
}

/// Converts a result of the kernel: a count, or a negated error number.
fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::from_raw_os_error(-result))
    } else {
        Ok(result)
    }
}

/// The connection that an accept has returned.
fn accepted_socket(result: i32) -> io::Result<Socket> {
    let number = check(result)?;
    // SAFETY: the kernel has opened the descriptor for this completion, which is processed once.
    Ok(Socket::Descriptor(unsafe { OwnedFd::from_raw_fd(number) }))
}

impl Source {
    /// The socket, for an operation that is queued before the socket is closed.
    fn fd(&self) -> Option<Fd> {
        self.socket.as_ref().map(|socket| Fd(socket.as_raw_fd()))
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
