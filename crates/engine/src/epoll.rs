//! The engine over epoll: converts readiness from the kernel, remembered per socket, to
//! completions.
//!
//! A connection is registered once, edge-triggered; after that a request costs its share of one
//! `epoll_wait`, one `recv` and one `send`. EPOLLOUT is requested only after a send has found the
//! buffer full: a new socket has room, and an event that says so would cost a turn of the loop. A
//! short receive means that the socket is empty, so no second receive is made before the next edge.
//! Receives complete as [`OperationOutcome::Ready`] and are made when the task asks again, so that
//! one cache-warm buffer serves all connections of a turn. Listeners are level-triggered and
//! exclusive: one connection is accepted per event unless `many` is requested, and a listener on
//! which no task waits is unregistered.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use base::slab::Key;
use bytes::Bytes;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::buffer::{self, Buffer};
use crate::engine::{
    CloseMode, Completion, Engine, Op, OpKind, OperationOutcome, Outgoing, SendStop, Socket, Token,
};
use crate::messages::{Messages, Readiness};
use crate::net::Datagram;
use crate::notifier::Notifier;
use crate::reserve::Reserve;
use crate::sys;

/// Events fetched from the kernel by one call (nginx's `epoll_events`).
const EVENTS_MAX: usize = 512;

/// Bit that marks an event of a listener; the other 31 upper bits are the generation of the key.
const LISTENER: u64 = 1 << 63;
/// Event data of the notifier, and of a descriptor that is watched as [`PollPolicy::Often`].
const NOTIFIER: u64 = u64::MAX;

/// Event data of another engine's descriptor that is watched as [`PollPolicy::OnReadable`].
const SELDOM: u64 = u64::MAX - 1;

/// The bits of a key's generation for which event data has room.
const GENERATION_MASK: u32 = 0x7fff_ffff;

/// Bit that marks an event of a datagram socket: the top bit of the index, which never grows so
/// large.
const DATAGRAM: u64 = 1 << 31;

/// How another engine uses the readiness of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollPolicy {
    /// The other engine checks its descriptor after every wait, whatever the events say.
    Often,
    /// The other engine checks its descriptor only after it became readable
    /// ([`Epoll::take_seldom`]).
    OnReadable,
}

pub(crate) struct Epoll {
    epoll: OwnedFd,
    notifier: Notifier,
    events: Vec<epoll::Event>,
    /// By the index of the stream's key.
    sources: Vec<Source>,
    /// By the index of the listener's key.
    listeners: Vec<Listener>,
    /// By the index of the datagram socket's key.
    datagrams: Vec<Datagrams>,
    /// Allocated when datagrams are first used.
    messages: Option<Box<Messages>>,
    reserve: Reserve,
    /// Decides whether to receive at once from a new connection.
    haste: EagerReceive,
    /// Whether a [`PollPolicy::OnReadable`] descriptor became readable since the last
    /// [`Epoll::take_seldom`].
    is_seldom_readable: bool,
}

/// Whether the first bytes of connections tend to have arrived when the connection is accepted. If
/// so, the first receive is made at once, and a short connection ends before it is ever registered.
/// If not, that receive would be a wasted call.
#[derive(Default)]
struct EagerReceive {
    /// Results of the last immediate first receives, one bit each: 1 if data had arrived.
    found: u8,
    /// Connections accepted since the last immediate receive.
    untried: u8,
}

impl EagerReceive {
    /// While immediate receives find nothing, one connection in this many is tried, to notice a
    /// change.
    const PROBE: u8 = 32;

    /// Whether to receive at once from a new connection.
    fn tries(&mut self) -> bool {
        if self.found.count_ones() >= u8::BITS / 2 {
            return true;
        }
        self.untried = (self.untried + 1) % Self::PROBE;
        self.untried == 0
    }

    /// Notes whether an immediate receive has found data.
    fn learn(&mut self, found: bool) {
        self.found = self.found << 1 | u8::from(found);
    }
}

/// The state of one connected socket.
#[derive(Default)]
struct Source {
    generation: u32,
    /// `None` as soon as the socket is closed, so that no late event acts on it.
    socket: Option<OwnedFd>,
    registered: bool,
    /// Nothing has been received yet, and readiness is unknown.
    fresh: bool,
    /// Registered for EPOLLOUT, too.
    watches_room: bool,
    /// A receive may return data, as far as is known.
    readable: bool,
    /// A send may find room, as far as is known.
    writable: bool,
    /// The peer has closed or reset the connection. A receive returns at once, so `readable` stays
    /// set.
    ended: bool,
    /// A receive is in flight.
    receiving: bool,
    /// A connect is in flight.
    connecting: bool,
    sending: Option<Box<Sending>>,
}

/// A send that waits for room in the socket's send buffer.
struct Sending {
    outgoing: Box<Outgoing>,
    /// Maximum number of bytes of files to send in one turn.
    chunk: u64,
    /// Whether and how to close the socket after everything has been sent.
    ending: CloseMode,
}

/// The state of one datagram socket, or of another watched descriptor. Registered at the first
/// wait, edge-triggered like a connection.
#[derive(Clone, Copy)]
struct Datagrams {
    generation: u32,
    registered: bool,
    /// Registered for EPOLLOUT, too.
    watches_room: bool,
    readiness: Readiness,
    /// The kind of operation that waits for readability: [`OpKind::RecvMsg`] or
    /// [`OpKind::Readable`].
    receiving: Option<OpKind>,
    sending: bool,
}

impl Datagrams {
    fn new(generation: u32) -> Datagrams {
        Datagrams {
            generation,
            registered: false,
            watches_room: false,
            readiness: Readiness::new(),
            receiving: None,
            sending: false,
        }
    }
}

/// The state of one listening socket.
#[derive(Default)]
struct Listener {
    generation: u32,
    /// `Some` while the listener is registered.
    socket: Option<Rc<Socket>>,
    /// An accept is in flight.
    accepting: bool,
    /// Whether to accept all waiting connections per event.
    many: bool,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let notifier = Notifier::new()?;
        // Edge-triggered: every write to the notifier is an edge, so the notifier is never read.
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, notifier.fd(), EventData::new_u64(NOTIFIER), flags)?;
        Ok(Epoll {
            epoll,
            notifier,
            events: Vec::with_capacity(EVENTS_MAX),
            sources: Vec::new(),
            listeners: Vec::new(),
            datagrams: Vec::new(),
            messages: None,
            reserve: Reserve::default(),
            haste: EagerReceive::default(),
            is_seldom_readable: false,
        })
    }

    /// Ends waits when another engine's descriptor becomes readable. Closing the descriptor removes
    /// the watch.
    pub(crate) fn watch(&self, descriptor: BorrowedFd<'_>, watched: PollPolicy) -> io::Result<()> {
        let data = EventData::new_u64(match watched {
            PollPolicy::Often => NOTIFIER,
            PollPolicy::OnReadable => SELDOM,
        });
        epoll::add(&self.epoll, descriptor, data, EventFlags::IN)?;
        Ok(())
    }

    /// Whether a [`PollPolicy::OnReadable`] descriptor became readable since the last call.
    pub(crate) fn take_seldom(&mut self) -> bool {
        std::mem::take(&mut self.is_seldom_readable)
    }

    fn accept(&mut self, socket: &Rc<Socket>, many: bool, key: Key) -> Option<OperationOutcome> {
        let index = key.index as usize;
        if index >= self.listeners.len() {
            self.listeners.resize_with(index + 1, Listener::default);
        }
        let listener = &mut self.listeners[index];
        if listener.generation != key.generation {
            *listener = Listener {
                generation: key.generation,
                ..Listener::default()
            };
        }
        listener.accepting = true;
        listener.many = many;
        if listener.socket.is_none() {
            let data = EventData::new_u64(LISTENER | data_of(key));
            // Exclusive: the kernel wakes one of the threads that wait on a listening socket.
            let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
            let added = match socket.descriptor() {
                Some(descriptor) => epoll::add(&self.epoll, descriptor, data, flags),
                None => Err(Errno::NOTSOCK),
            };
            if let Err(error) = added {
                listener.accepting = false;
                return Some(OperationOutcome::Accepted(Err(error.into())));
            }
            listener.socket = Some(Rc::clone(socket));
        }
        None
    }

    /// The state of the datagram socket `key`.
    fn datagrams(&mut self, key: Key) -> &mut Datagrams {
        let index = key.index as usize;
        if index >= self.datagrams.len() {
            self.datagrams
                .resize(index + 1, Datagrams::new(key.generation));
        }
        let datagrams = &mut self.datagrams[index];
        if datagrams.generation != key.generation {
            *datagrams = Datagrams::new(key.generation);
        }
        datagrams
    }

    fn receive_datagrams(
        &mut self,
        socket: &Socket,
        into: &mut VecDeque<Datagram<Buffer>>,
        key: Key,
    ) -> Option<OperationOutcome> {
        let mut readiness = self.datagrams(key).readiness;
        let messages = self.messages.get_or_insert_with(Messages::new);
        let outcome = match socket.descriptor() {
            Some(descriptor) => readiness.receive(messages, descriptor, into),
            None => Some(OperationOutcome::Messages(Err(disconnected()))),
        };
        self.datagrams(key).readiness = readiness;
        match outcome {
            None => self.watch_datagrams(socket, key, Some(OpKind::RecvMsg)),
            outcome => outcome,
        }
    }

    fn send_datagrams(
        &mut self,
        socket: &Socket,
        datagrams: &VecDeque<Datagram<Bytes>>,
        key: Key,
    ) -> Option<OperationOutcome> {
        let mut readiness = self.datagrams(key).readiness;
        let messages = self.messages.get_or_insert_with(Messages::new);
        let outcome = match socket.descriptor() {
            Some(descriptor) => readiness.send(messages, descriptor, datagrams),
            None => Some(OperationOutcome::Messages(Err(disconnected()))),
        };
        self.datagrams(key).readiness = readiness;
        match outcome {
            None => self.watch_datagrams(socket, key, None),
            outcome => outcome,
        }
    }

    /// Waits for readability, on behalf of an operation of kind `receiving`, or for room.
    fn watch_datagrams(
        &mut self,
        socket: &Socket,
        key: Key,
        receiving: Option<OpKind>,
    ) -> Option<OperationOutcome> {
        let datagrams = *self.datagrams(key);
        let room = receiving.is_none();
        if !datagrams.registered || room && !datagrams.watches_room {
            let Some(descriptor) = socket.descriptor() else {
                return Some(OperationOutcome::Messages(Err(disconnected())));
            };
            let data = EventData::new_u64(DATAGRAM | data_of(key));
            let mut flags = EventFlags::IN | EventFlags::ET;
            flags.set(EventFlags::OUT, room);
            // Both calls report conditions that already hold, so that no event is missed in
            // between.
            let watched = if datagrams.registered {
                epoll::modify(&self.epoll, descriptor, data, flags)
            } else {
                epoll::add(&self.epoll, descriptor, data, flags)
            };
            if let Err(error) = watched {
                return Some(OperationOutcome::Messages(Err(error.into())));
            }
        }
        let datagrams = self.datagrams(key);
        datagrams.registered = true;
        datagrams.watches_room |= room;
        match receiving {
            Some(kind) => datagrams.receiving = Some(kind),
            None => datagrams.sending = true,
        }
        None
    }

    /// Handles an event of a datagram socket, or of another watched descriptor.
    fn datagram_event(&mut self, key: Key, flags: EventFlags, completions: &mut Vec<Completion>) {
        let index = key.index & !(DATAGRAM as u32);
        let Some(datagrams) = self.datagrams.get_mut(index as usize) else {
            return;
        };
        if datagrams.generation & GENERATION_MASK != key.generation {
            return;
        }
        let over = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let mut ended = [None; 2];
        if over || flags.contains(EventFlags::IN) {
            datagrams.readiness.note_readable(over);
            ended[0] = datagrams.receiving.take();
        }
        if over || flags.contains(EventFlags::OUT) {
            datagrams.readiness.note_writable();
            ended[1] = std::mem::take(&mut datagrams.sending).then_some(OpKind::SendMsg);
        }
        let key = Key {
            index,
            generation: datagrams.generation,
        };
        let ready = |kind| Completion {
            token: Token { key, kind },
            outcome: OperationOutcome::Ready,
            more: false,
        };
        completions.extend(ended.into_iter().flatten().map(ready));
    }

    fn connect(&mut self, address: &crate::net::Address, key: Key) -> Option<OperationOutcome> {
        let Some(source) = source_of(&mut self.sources, key) else {
            return Some(OperationOutcome::Connected(Err(disconnected())));
        };
        let started = match &source.socket {
            Some(socket) => sys::connect(socket.as_fd(), address),
            None => Err(disconnected()),
        };
        match started {
            Ok(true) => return Some(OperationOutcome::Connected(Ok(()))),
            Ok(false) => {}
            Err(error) => return Some(OperationOutcome::Connected(Err(error))),
        }
        source.fresh = false;
        source.writable = false;
        if let Err(error) = watch_room(&self.epoll, source, key) {
            return Some(OperationOutcome::Connected(Err(error)));
        }
        source.connecting = true;
        None
    }

    /// Receives if data may have arrived. `None` if none has, and the receive waits.
    fn receive(&mut self, key: Key) -> Option<OperationOutcome> {
        let Some(source) = source_of(&mut self.sources, key) else {
            return Some(OperationOutcome::Received(Err(disconnected())));
        };
        let at_once = std::mem::take(&mut source.fresh) && self.haste.tries();
        if source.readable || at_once {
            let result = receive_once(source);
            if at_once {
                self.haste.learn(result.is_some());
            }
            match result {
                Some(result) => return Some(OperationOutcome::Received(result)),
                None => source.readable = false,
            }
        }
        if !source.registered
            && let Err(error) = register(&self.epoll, source, key)
        {
            return Some(OperationOutcome::Received(Err(error)));
        }
        source.receiving = true;
        None
    }

    /// See [`Engine::await_bytes`].
    fn watch_bytes(&mut self, key: Key) -> bool {
        let Some(source) = source_of(&mut self.sources, key).filter(|source| !source.ended) else {
            return false;
        };
        source.fresh = false;
        source.readable = false;
        if !source.registered && register(&self.epoll, source, key).is_err() {
            return false;
        }
        source.receiving = true;
        true
    }

    /// Sends if the socket may have room. `None` if it has none, and the send waits.
    fn send(&mut self, mut sending: Sending, key: Key) -> Option<OperationOutcome> {
        let Some(source) = source_of(&mut self.sources, key) else {
            return Some(self.sent(key, sending, 0, SendStop::Failed(disconnected())));
        };
        if source.writable
            && let Some(socket) = &source.socket
        {
            let (taken, stop) = sys::transmit(
                socket.as_fd(),
                &mut sending.outgoing,
                sending.chunk,
                sending.ending.closes(),
            );
            if taken > 0 || !matches!(stop, SendStop::Blocked) {
                return Some(self.sent(key, sending, taken, stop));
            }
            source.writable = false;
        }
        if !source.watches_room
            && let Err(error) = watch_room(&self.epoll, source, key)
        {
            return Some(self.sent(key, sending, 0, SendStop::Failed(error)));
        }
        source.sending = Some(Box::new(sending));
        None
    }

    /// The outcome of a send. Notes a full socket, and closes a socket that was to be closed.
    fn sent(&mut self, key: Key, sending: Sending, taken: u64, stop: SendStop) -> OperationOutcome {
        let stop = match (stop, source_of(&mut self.sources, key)) {
            (SendStop::Blocked, Some(source)) => {
                source.writable = false;
                SendStop::Blocked
            }
            (SendStop::Empty, Some(source)) if sending.ending.closes() => {
                if let Some(socket) = std::mem::take(source).socket {
                    sys::finish(socket, sending.ending);
                }
                SendStop::Closed
            }
            (stop, _) => stop,
        };
        OperationOutcome::Sent {
            outgoing: sending.outgoing,
            taken,
            stop,
        }
    }

    /// Handles an event of a listener: accepts connections, or unregisters a listener without an
    /// accept.
    fn listener_event(&mut self, key: Key, completions: &mut Vec<Completion>) {
        let Some(listener) = self.listeners.get_mut(key.index as usize) else {
            return;
        };
        let known = listener.generation & GENERATION_MASK == key.generation;
        let Some(socket) = listener.socket.clone().filter(|_| known) else {
            return;
        };
        let Some(descriptor) = socket.descriptor() else {
            return;
        };
        let token = Token {
            key: Key {
                generation: listener.generation,
                ..key
            },
            kind: OpKind::Accept,
        };
        if !listener.accepting {
            // No task waits; a level-triggered event would be reported again and again.
            listener.socket = None;
            let _ = epoll::delete(&self.epoll, descriptor);
            return;
        }
        let first = completions.len();
        loop {
            match sys::accept(descriptor) {
                Ok((accepted, peer)) => completions.push(Completion {
                    token,
                    outcome: OperationOutcome::Accepted(Ok((Socket::Descriptor(accepted), peer))),
                    more: listener.many,
                }),
                // A connection that ended before it was accepted is skipped.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    listener.accepting = false;
                    completions.push(Completion {
                        token,
                        outcome: OperationOutcome::Accepted(Err(error.into())),
                        more: false,
                    });
                    return;
                }
            }
            if !listener.many {
                listener.accepting = false;
                return;
            }
            if completions.len() - first >= EVENTS_MAX {
                return;
            }
        }
    }

    /// Handles an event of a connection.
    fn source_event(&mut self, key: Key, flags: EventFlags, completions: &mut Vec<Completion>) {
        let Some(source) = self.sources.get_mut(key.index as usize) else {
            return;
        };
        // The socket may have been closed since the kernel queued the event, and its place reused.
        if !source.registered || source.generation & GENERATION_MASK != key.generation {
            return;
        }
        let key = Key {
            generation: source.generation,
            ..key
        };
        let over = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        source.ended |= over || flags.contains(EventFlags::RDHUP);
        source.readable |= source.ended || flags.contains(EventFlags::IN);
        source.writable |= over || flags.contains(EventFlags::OUT);

        if source.connecting && source.writable {
            source.connecting = false;
            completions.push(Completion {
                token: Token {
                    key,
                    kind: OpKind::Connect,
                },
                outcome: OperationOutcome::Connected(match &source.socket {
                    // A failed connect is reported with HUP or ERR, so success needs no query.
                    Some(_) if !over => Ok(()),
                    Some(socket) => sys::pending_error(socket.as_fd()),
                    None => Err(disconnected()),
                }),
                more: false,
            });
        }
        if source.receiving && source.readable {
            source.receiving = false;
            completions.push(Completion {
                token: Token {
                    key,
                    kind: OpKind::Recv,
                },
                outcome: OperationOutcome::Ready,
                more: false,
            });
        }
        if source.writable
            && let Some(sending) = source.sending.take()
            && let Some(outcome) = self.send(*sending, key)
        {
            let token = Token {
                key,
                kind: OpKind::Send,
            };
            completions.push(Completion {
                token,
                outcome,
                more: false,
            });
        }
    }
}

impl Engine for Epoll {
    fn submit(&mut self, op: Op<'_>, token: Token) -> Option<OperationOutcome> {
        let key = token.key;
        match op {
            Op::Accept { socket, many } => self.accept(socket, many, key),
            Op::Connect { address } => self.connect(&address, key),
            Op::Recv { keep: _ } => self.receive(key),
            Op::Send {
                outgoing,
                chunk,
                ending,
            } => self.send(
                Sending {
                    outgoing,
                    chunk,
                    ending,
                },
                key,
            ),
            Op::Close => {
                // Closing the last descriptor of a connection also unregisters it.
                source_of(&mut self.sources, key).map(std::mem::take);
                Some(OperationOutcome::Closed)
            }
            Op::Readable { socket } => {
                if self.datagrams(key).readiness.take_readable() {
                    Some(OperationOutcome::Ready)
                } else {
                    self.watch_datagrams(socket, key, Some(OpKind::Readable))
                }
            }
            Op::RecvMsg { socket, into } => self.receive_datagrams(socket, into, key),
            Op::SendMsg { socket, datagrams } => self.send_datagrams(socket, datagrams, key),
        }
    }

    fn await_bytes(&mut self, key: Key) -> bool {
        self.watch_bytes(key)
    }

    fn sends_at_once(&self) -> bool {
        true
    }

    fn cancel(&mut self, token: Token) -> Option<OperationOutcome> {
        let index = token.key.index as usize;
        if token.kind == OpKind::Accept {
            let listener = self.listeners.get_mut(index)?;
            if listener.generation != token.key.generation {
                return None;
            }
            if let Some(socket) = listener.socket.take()
                && let Some(descriptor) = socket.descriptor()
            {
                // Other threads and processes share the socket, so closing this descriptor would
                // not unregister the socket.
                let _ = epoll::delete(&self.epoll, descriptor);
            }
            let accepting = std::mem::take(&mut listener.accepting);
            return accepting.then(|| OperationOutcome::Accepted(Err(cancelled())));
        }
        let kind = token.kind;
        if matches!(kind, OpKind::Readable | OpKind::RecvMsg | OpKind::SendMsg) {
            let datagrams = self.datagrams.get_mut(index)?;
            if datagrams.generation != token.key.generation {
                return None;
            }
            let waited = match kind {
                OpKind::SendMsg => std::mem::take(&mut datagrams.sending),
                _ => datagrams
                    .receiving
                    .take_if(|known| *known == kind)
                    .is_some(),
            };
            return waited.then_some(OperationOutcome::Ready);
        }
        let source = self.sources.get_mut(index)?;
        if source.generation != token.key.generation {
            return None;
        }
        match token.kind {
            OpKind::Recv => std::mem::take(&mut source.receiving)
                .then(|| OperationOutcome::Received(Err(cancelled()))),
            OpKind::Connect => std::mem::take(&mut source.connecting)
                .then(|| OperationOutcome::Connected(Err(cancelled()))),
            OpKind::Send => source.sending.take().map(|sending| OperationOutcome::Sent {
                outgoing: sending.outgoing,
                taken: 0,
                stop: SendStop::Failed(cancelled()),
            }),
            _ => None,
        }
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        let timeout = timeout.map(|duration| {
            let ms = duration.as_nanos().div_ceil(1_000_000).min(86_400_000) as i64;
            Timespec {
                tv_sec: ms / 1000,
                tv_nsec: ms % 1000 * 1_000_000,
            }
        });
        self.events.clear();
        let events = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, events, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                let error = io::Error::from(error);
                return Err(io::Error::new(
                    error.kind(),
                    format!("epoll_wait() failed: {error}"),
                ));
            }
        }
        for index in 0..self.events.len() {
            let epoll::Event { flags, data } = self.events[index];
            let data = data.u64();
            if data == NOTIFIER {
                continue;
            }
            if data == SELDOM {
                self.is_seldom_readable = true;
                continue;
            }
            let key = Key {
                index: data as u32,
                generation: (data >> 32) as u32 & GENERATION_MASK,
            };
            if data & LISTENER != 0 {
                self.listener_event(key, completions);
            } else if data & DATAGRAM != 0 {
                self.datagram_event(key, flags, completions);
            } else {
                self.source_event(key, flags, completions);
            }
        }
        Ok(())
    }

    fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    fn close_datagrams(&mut self, key: Key, socket: Socket, is_own: bool) {
        let known = self.datagrams.get_mut(key.index as usize);
        let known = known.filter(|known| known.generation == key.generation);
        // Closing the last descriptor of a socket also unregisters it.
        if known.is_some_and(|known| std::mem::take(&mut known.registered))
            && !is_own
            && let Some(descriptor) = socket.descriptor()
        {
            // Other processes share the socket, so closing this descriptor would not unregister it.
            let _ = epoll::delete(&self.epoll, descriptor);
        }
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
            fresh: true,
            // A new connection has an empty send buffer.
            writable: true,
            ..Source::default()
        };
    }

    fn descriptor(&self, key: Key) -> Option<BorrowedFd<'_>> {
        let source = self.sources.get(key.index as usize)?;
        let socket = source.socket.as_ref()?;
        (source.generation == key.generation).then(|| socket.as_fd())
    }
}

/// The state of the stream `key`; `None` if the place has been reused.
fn source_of(sources: &mut [Source], key: Key) -> Option<&mut Source> {
    let source = sources.get_mut(key.index as usize)?;
    (source.generation == key.generation).then_some(source)
}

/// Registers a connection for readability and for the peer's close.
fn register(epoll: &OwnedFd, source: &mut Source, key: Key) -> io::Result<()> {
    let Some(socket) = &source.socket else {
        return Err(disconnected());
    };
    let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    epoll::add(epoll, socket, EventData::new_u64(data_of(key)), flags)?;
    source.registered = true;
    Ok(())
}

/// Registers a connection for room, too. Room that already exists is reported as well.
fn watch_room(epoll: &OwnedFd, source: &mut Source, key: Key) -> io::Result<()> {
    let Some(socket) = &source.socket else {
        return Err(disconnected());
    };
    let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
    let data = EventData::new_u64(data_of(key));
    if source.registered {
        epoll::modify(epoll, socket, data, flags)?;
    } else {
        epoll::add(epoll, socket, data, flags)?;
    }
    source.registered = true;
    source.watches_room = true;
    Ok(())
}

/// Event data: the index and the lower 31 bits of the generation.
fn data_of(key: Key) -> u64 {
    u64::from(key.generation & GENERATION_MASK) << 32 | u64::from(key.index)
}

fn cancelled() -> io::Error {
    Errno::CANCELED.into()
}

fn disconnected() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

/// One receive; `None` if no data has arrived.
fn receive_once(source: &mut Source) -> Option<io::Result<Buffer>> {
    let Some(socket) = &source.socket else {
        return Some(Err(disconnected()));
    };
    loop {
        let result = Buffer::receive(|memory| {
            rustix::net::recv(socket, memory, RecvFlags::DONTWAIT).map(|((written, _), _)| written)
        });
        match result {
            Ok(buffer) => {
                // A short receive: the socket is empty now, and the next data will be an edge.
                source.readable = source.ended || buffer.len() == buffer::size();
                return Some(Ok(buffer));
            }
            Err(Errno::INTR) => {}
            Err(error) => return (error != Errno::AGAIN).then(|| Err(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_small() {
        assert!(size_of::<Source>() <= 24, "{}", size_of::<Source>());
    }
}
