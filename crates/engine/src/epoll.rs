//! The engine over epoll: readiness from the kernel, remembered per socket, turned into completions.
//!
//! A connection is registered once, edge-triggered; after that a request costs its share of one `epoll_wait`, one `recv`
//! and one `send`. Room to send is watched only once a send has found none: a new socket has room, and to be told so would
//! be a turn of the loop for nothing. A short receive says that the socket is empty, so no second one is made
//! before the next edge. Receives complete as [`Outcome::Ready`] and are made when the task asks again, so that one
//! buffer, warm in the cache, serves all connections of a turn. Listeners are level-triggered and exclusive: one
//! connection is accepted per event unless `many` is asked for, and a listener that nobody waits on is unregistered.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use base::slab::Key;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::buffer::{self, Buffer};
use crate::engine::{
    Completion, Ending, Engine, Notifier, Op, OpKind, Outcome, Outgoing, Stop, Token,
};
use crate::sys;

/// Events taken from the kernel at once (nginx's `epoll_events`).
const EVENTS_MAX: usize = 512;

/// Marks an event of a listener; the other 31 upper bits are the generation of the key.
const LISTENER: u64 = 1 << 63;
const NOTIFIER: u64 = u64::MAX;

/// Marks an event of a datagram socket: the uppermost bit of an index that never grows so large.
const DATAGRAM: u64 = 1 << 31;

pub(crate) struct Epoll {
    epoll: OwnedFd,
    notifier: Notifier,
    events: Vec<epoll::Event>,
    /// By the index of the stream's key.
    sources: Vec<Source>,
    /// By the index of the listener's key.
    listeners: Vec<Listener>,
    /// By the index of the datagram socket's key.
    datagrams: Vec<Datagram>,
    haste: Haste,
}

/// Whether the first bytes of connections tend to be there when they are accepted: then the first receive is made at
/// once, and a short connection is over before it was ever registered. If not, it would be a call for nothing.
#[derive(Default)]
struct Haste {
    /// How the last first receives at once ended, a bit each: 1 where something was there.
    found: u8,
    /// Connections not tried since.
    untried: u8,
}

impl Haste {
    /// One in so many connections is tried while it does not pay, to see when it does.
    const PROBE: u8 = 32;

    fn tries(&mut self) -> bool {
        if self.found.count_ones() >= u8::BITS / 2 {
            return true;
        }
        self.untried = (self.untried + 1) % Self::PROBE;
        self.untried == 0
    }

    fn learn(&mut self, found: bool) {
        self.found = self.found << 1 | u8::from(found);
    }
}

/// What is known of one connected socket.
#[derive(Default)]
struct Source {
    generation: u32,
    socket: RawFd,
    registered: bool,
    /// Nothing was received yet, and whether something is there is not known.
    fresh: bool,
    /// Registered for room to send, too.
    watches_room: bool,
    readable: bool,
    writable: bool,
    /// The peer has ended or reset: a receive tells at once which, so `readable` stays.
    ended: bool,
    receiving: bool,
    connecting: bool,
    sending: Option<Box<Sending>>,
}

/// A send that waits until the socket drains.
struct Sending {
    outgoing: Box<Outgoing>,
    chunk: u64,
    ending: Ending,
}

/// What is known of one datagram socket. It is watched for one event at a time.
#[derive(Default)]
struct Datagram {
    generation: u32,
    socket: RawFd,
    registered: bool,
    waiting: bool,
}

#[derive(Default)]
struct Listener {
    generation: u32,
    socket: RawFd,
    registered: bool,
    accepting: bool,
    many: bool,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let notifier = Notifier::new()?;
        // Edge-triggered: every write to it is an edge, so it is never read.
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, notifier.fd(), EventData::new_u64(NOTIFIER), flags)?;
        Ok(Epoll {
            epoll,
            notifier,
            events: Vec::with_capacity(EVENTS_MAX),
            sources: Vec::new(),
            listeners: Vec::new(),
            datagrams: Vec::new(),
            haste: Haste::default(),
        })
    }

    fn accept(&mut self, socket: RawFd, many: bool, key: Key) -> Option<Outcome> {
        let index = key.index as usize;
        if index >= self.listeners.len() {
            self.listeners.resize_with(index + 1, Listener::default);
        }
        let listener = &mut self.listeners[index];
        if listener.socket != socket || listener.generation != key.generation {
            *listener = Listener {
                generation: key.generation,
                socket,
                ..Listener::default()
            };
        }
        listener.accepting = true;
        listener.many = many;
        if !listener.registered {
            let data = EventData::new_u64(LISTENER | data_of(key));
            // Exclusive: of the threads that wait on one listening socket, the kernel wakes one.
            let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
            if let Err(error) = epoll::add(&self.epoll, sys::borrow(socket), data, flags) {
                listener.accepting = false;
                return Some(Outcome::Accepted(Err(error.into())));
            }
            listener.registered = true;
        }
        None
    }

    fn watch_datagram(&mut self, socket: RawFd, key: Key) -> Option<Outcome> {
        let index = key.index as usize;
        if index >= self.datagrams.len() {
            self.datagrams.resize_with(index + 1, Datagram::default);
        }
        let datagram = &mut self.datagrams[index];
        if datagram.socket != socket || datagram.generation != key.generation {
            *datagram = Datagram {
                generation: key.generation,
                socket,
                ..Datagram::default()
            };
        }
        let data = EventData::new_u64(DATAGRAM | data_of(key));
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        let watched = match datagram.registered {
            true => epoll::modify(&self.epoll, sys::borrow(socket), data, flags),
            false => epoll::add(&self.epoll, sys::borrow(socket), data, flags),
        };
        datagram.registered |= watched.is_ok();
        datagram.waiting = watched.is_ok();
        // What cannot be watched is looked at again and again: better busy than deaf.
        watched.is_err().then_some(Outcome::Ready)
    }

    fn datagram_event(&mut self, key: Key, completions: &mut Vec<Completion>) {
        let index = key.index & !(DATAGRAM as u32);
        let Some(datagram) = self.datagrams.get_mut(index as usize) else {
            return;
        };
        let known = datagram.generation & 0x7fff_ffff == key.generation;
        if !known || !std::mem::take(&mut datagram.waiting) {
            return;
        }
        let key = Key {
            index,
            generation: datagram.generation,
        };
        completions.push(Completion {
            token: Token {
                key,
                kind: OpKind::Readable,
            },
            outcome: Outcome::Ready,
            more: false,
        });
    }

    fn connect(
        &mut self,
        socket: RawFd,
        address: &crate::net::Address,
        key: Key,
    ) -> Option<Outcome> {
        match sys::connect(socket, address) {
            Ok(true) => return Some(Outcome::Connected(Ok(()))),
            Ok(false) => {}
            Err(error) => return Some(Outcome::Connected(Err(error))),
        }
        let source = source_of(&mut self.sources, key, socket);
        source.fresh = false;
        source.writable = false;
        if let Err(error) = self.watch_room(key) {
            return Some(Outcome::Connected(Err(error)));
        }
        source_of(&mut self.sources, key, socket).connecting = true;
        None
    }

    fn receive(&mut self, socket: RawFd, key: Key) -> Option<Outcome> {
        let source = source_of(&mut self.sources, key, socket);
        let at_once = std::mem::take(&mut source.fresh) && self.haste.tries();
        if source.readable || at_once {
            let result = receive_once(source);
            if at_once {
                self.haste.learn(result.is_some());
            }
            match result {
                Some(result) => return Some(Outcome::Received(result)),
                None => source.readable = false,
            }
        }
        source.receiving = true;
        if !source.registered
            && let Err(error) = self.register(key)
        {
            return Some(Outcome::Received(Err(error)));
        }
        None
    }

    fn send(&mut self, socket: RawFd, mut sending: Sending, key: Key) -> Option<Outcome> {
        let source = source_of(&mut self.sources, key, socket);
        if source.writable {
            let (taken, stop) = sys::transmit(
                socket,
                &mut sending.outgoing,
                sending.chunk,
                sending.ending.closes(),
            );
            if taken > 0 || !matches!(stop, Stop::Blocked) {
                return Some(self.sent(key, sending, taken, stop));
            }
            source.writable = false;
        }
        source.sending = Some(Box::new(sending));
        if !source_of(&mut self.sources, key, socket).watches_room
            && let Err(error) = self.watch_room(key)
            && let Some(sending) = source_of(&mut self.sources, key, socket).sending.take()
        {
            return Some(self.sent(key, *sending, 0, Stop::Failed(error)));
        }
        None
    }

    /// The outcome of a send; remembers a full socket and closes one that was to be closed.
    fn sent(&mut self, key: Key, sending: Sending, taken: u64, stop: Stop) -> Outcome {
        let Some(source) = self.sources.get_mut(key.index as usize) else {
            return Outcome::Sent {
                outgoing: sending.outgoing,
                taken,
                stop,
            };
        };
        let stop = match stop {
            Stop::Blocked => {
                source.writable = false;
                Stop::Blocked
            }
            Stop::Empty if sending.ending.closes() => {
                sys::finish(source.socket, sending.ending);
                *source = Source::default();
                Stop::Closed
            }
            other => other,
        };
        Outcome::Sent {
            outgoing: sending.outgoing,
            taken,
            stop,
        }
    }

    /// Registers a connection for what its peer does.
    fn register(&mut self, key: Key) -> io::Result<()> {
        let Some(source) = self.sources.get_mut(key.index as usize) else {
            return Ok(());
        };
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(data_of(key));
        epoll::add(&self.epoll, sys::borrow(source.socket), data, flags)?;
        source.registered = true;
        Ok(())
    }

    /// Registers a connection for all that can happen to it. Room that is there by now is reported, too.
    fn watch_room(&mut self, key: Key) -> io::Result<()> {
        let Some(source) = self.sources.get_mut(key.index as usize) else {
            return Ok(());
        };
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(data_of(key));
        if source.registered {
            epoll::modify(&self.epoll, sys::borrow(source.socket), data, flags)?;
        } else {
            epoll::add(&self.epoll, sys::borrow(source.socket), data, flags)?;
        }
        source.registered = true;
        source.watches_room = true;
        Ok(())
    }

    fn listener_event(&mut self, key: Key, completions: &mut Vec<Completion>) {
        let Some(listener) = self.listeners.get_mut(key.index as usize) else {
            return;
        };
        if data_of(key)
            != data_of(Key {
                generation: listener.generation,
                ..key
            })
            || !listener.registered
        {
            return;
        }
        let token = Token {
            key: Key {
                generation: listener.generation,
                ..key
            },
            kind: OpKind::Accept,
        };
        if !listener.accepting {
            // Nobody waits; level-triggered, it would be reported again and again.
            listener.registered = false;
            let _ = epoll::delete(&self.epoll, sys::borrow(listener.socket));
            return;
        }
        let first = completions.len();
        loop {
            match sys::accept(listener.socket) {
                Ok(accepted) => completions.push(Completion {
                    token,
                    outcome: Outcome::Accepted(Ok(accepted)),
                    more: listener.many,
                }),
                // A connection that ended before it was accepted is nobody's loss.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    listener.accepting = false;
                    completions.push(Completion {
                        token,
                        outcome: Outcome::Accepted(Err(error.into())),
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

    fn source_event(&mut self, key: Key, flags: EventFlags, completions: &mut Vec<Completion>) {
        let Some(source) = self.sources.get_mut(key.index as usize) else {
            return;
        };
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
                outcome: Outcome::Connected(sys::pending_error(source.socket)),
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
                outcome: Outcome::Ready,
                more: false,
            });
        }
        if source.writable
            && let Some(sending) = source.sending.take()
        {
            let socket = source.socket;
            if let Some(outcome) = self.send(socket, *sending, key) {
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
}

impl Engine for Epoll {
    fn submit(&mut self, op: Op, token: Token) -> Option<Outcome> {
        match op {
            Op::Accept { socket, many } => self.accept(socket, many, token.key),
            Op::Connect { socket, address } => self.connect(socket, &address, token.key),
            Op::Recv { socket, keep: _ } => self.receive(socket, token.key),
            Op::Send {
                socket,
                outgoing,
                chunk,
                ending,
            } => self.send(
                socket,
                Sending {
                    outgoing,
                    chunk,
                    ending,
                },
                token.key,
            ),
            Op::Close { socket } => {
                // The last descriptor of a connection: closing it also unregisters it.
                *source_of(&mut self.sources, token.key, socket) = Source::default();
                sys::close(socket);
                Some(Outcome::Closed)
            }
            Op::Readable { socket } => self.watch_datagram(socket, token.key),
        }
    }

    fn cancel(&mut self, token: Token) -> Option<Outcome> {
        let index = token.key.index as usize;
        if token.kind == OpKind::Accept {
            let listener = self.listeners.get_mut(index)?;
            if listener.generation != token.key.generation {
                return None;
            }
            if std::mem::take(&mut listener.registered) {
                // Other threads and processes share the socket, so closing it would not unregister it.
                let _ = epoll::delete(&self.epoll, sys::borrow(listener.socket));
            }
            let accepting = std::mem::take(&mut listener.accepting);
            return accepting.then(|| Outcome::Accepted(Err(cancelled())));
        }
        if token.kind == OpKind::Readable {
            // Its owner closes the socket next, which also unregisters it.
            let datagram = self.datagrams.get_mut(index)?;
            let known = datagram.generation == token.key.generation;
            return (known && std::mem::take(&mut datagram.waiting)).then_some(Outcome::Ready);
        }
        let source = self.sources.get_mut(index)?;
        if source.generation != token.key.generation {
            return None;
        }
        match token.kind {
            OpKind::Recv => {
                std::mem::take(&mut source.receiving).then(|| Outcome::Received(Err(cancelled())))
            }
            OpKind::Connect => {
                std::mem::take(&mut source.connecting).then(|| Outcome::Connected(Err(cancelled())))
            }
            OpKind::Send => source.sending.take().map(|sending| Outcome::Sent {
                outgoing: sending.outgoing,
                taken: 0,
                stop: Stop::Failed(cancelled()),
            }),
            OpKind::Accept | OpKind::Close | OpKind::Readable => None,
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
            Err(error) => return Err(error.into()),
        }
        for index in 0..self.events.len() {
            let epoll::Event { flags, data } = self.events[index];
            let data = data.u64();
            if data == NOTIFIER {
                continue;
            }
            let key = Key {
                index: data as u32,
                generation: (data >> 32) as u32 & 0x7fff_ffff,
            };
            if data & LISTENER != 0 {
                self.listener_event(key, completions);
            } else if data & DATAGRAM != 0 {
                self.datagram_event(key, completions);
            } else if self.sources.get(key.index as usize).is_some_and(|source| {
                source.registered && source.generation & 0x7fff_ffff == key.generation
            }) {
                self.source_event(key, flags, completions);
            }
        }
        Ok(())
    }

    fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }
}

/// The record of the socket; a fresh one when the place has changed hands.
fn source_of(sources: &mut Vec<Source>, key: Key, socket: RawFd) -> &mut Source {
    let index = key.index as usize;
    if index >= sources.len() {
        sources.resize_with(index + 1, Source::default);
    }
    let source = &mut sources[index];
    if source.socket != socket || source.generation != key.generation {
        *source = Source {
            generation: key.generation,
            socket,
            fresh: true,
            // A new connection has an empty send buffer.
            writable: true,
            ..Source::default()
        };
    }
    source
}

/// Index and the lower 31 bits of the generation, as the kernel keeps them for us.
fn data_of(key: Key) -> u64 {
    u64::from(key.generation & 0x7fff_ffff) << 32 | u64::from(key.index)
}

fn cancelled() -> io::Error {
    Errno::CANCELED.into()
}

/// One receive; `None` when nothing is there.
fn receive_once(source: &mut Source) -> Option<io::Result<Buffer>> {
    loop {
        let result = Buffer::receive(|memory| {
            rustix::net::recv(sys::borrow(source.socket), memory, RecvFlags::DONTWAIT)
                .map(|((written, _), _)| written)
        });
        match result {
            Ok(buffer) => {
                // Less than was asked for: the socket is empty now, and the next bytes will be an edge.
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
