//! A host: its connections, its listeners, its neighbours.
//!
//! ```text
//!  frame ─▶ handle_frame ─▶ ARP ─▶ neighbours
//!              │            ICMP ─▶ an echo's answer; what a segment of ours met
//!              │            TCP ─▶ table: a connection ─▶ State::handle_segment ─▶ Effects
//!              │                          a listener   ─▶ a handshake, or a cookie's answer
//!              ▼                          nobody       ─▶ a reset
//!           Passed: not ours
//! ```
//!
//! `frames.rs` is what comes in, `transmit.rs` what goes out; here is what the application calls.

mod frames;
mod settle;
mod transmit;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;
use std::time::Duration;

use base::slab::Key;
use base::wheel::TimerWheel;
use bytes::Bytes;

use crate::neighbours::Neighbours;
use crate::table::Table;
use crate::tcp::handshake::SynSent;
use crate::tcp::inbox::InboxMemory;
use crate::tcp::{self, CallError, KeepAlive, Prebuilt, Purpose, Reason, Secret, State, Tuple};
use crate::ways::{Route, Ways};
use crate::wire::ethernet::{self, MacAddress};
use crate::wire::ipv4;
use crate::wire::sequence::Sequence;

/// Bytes of the largest frame that a stack writes, with an MTU of 1,500.
pub const FRAME_MAX: usize = ethernet::HEADER + 1500;

/// Frames beside those of connections that wait to leave at most: answers to ARP, to echoes,
/// resets, cookies. What would be one more is not sent.
const REPLIES_MAX: usize = 256;

/// Ports that connections of ours begin at (RFC 6056): those that are not for services, as Linux
/// has it.
pub const CLIENT_PORTS: Range<u16> = 32_768..61_000;
const PORT_COUNT: u16 = CLIENT_PORTS.end - CLIENT_PORTS.start;

/// Ports of ours that are tried before a connection fails for want of one.
const PORTS_TRIED_MAX: u16 = 1024;

/// Whose packets a stack takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Those for any address that one host can have: in a simulation that has no other host.
    Any,
    /// Those for these; connections begin at the first.
    These(Vec<Ipv4Addr>),
}

impl Addresses {
    fn has(&self, address: Ipv4Addr) -> bool {
        match self {
            Addresses::Any => is_of_a_host(address),
            Addresses::These(ours) => ours.contains(&address),
        }
    }
}

/// Whether a single host can have an address.
fn is_of_a_host(address: Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_broadcast()
}

/// What becomes of segments for a port at which nobody listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlistened {
    /// They are answered with a reset, as the RFC wants it of the one stack of a host.
    Refuse,
    /// They are passed on to the kernel's stack, which shares the address.
    Pass,
}

/// How a stack knows the cards of other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbouring {
    /// It asks by ARP, and answers.
    Asks,
    /// The kernel asks and answers, and the stack is told what the kernel knows
    /// ([`Stack::set_neighbour`], [`Stack::set_routes`]). Where that is nothing, a connection's
    /// segments go to the card that its last one came from.
    Told,
}

/// What a stack is like.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The hardware address of the stack's card.
    pub mac: MacAddress,
    /// The IPv4 addresses that the stack answers for.
    pub addresses: Addresses,
    /// Bits of an address that all hosts behind the card have in common.
    pub prefix_length: u8,
    /// Who passes on what is for others.
    pub gateway: Option<Ipv4Addr>,
    /// How the cards of other hosts are known.
    pub neighbouring: Neighbouring,
    /// The settings of all connections.
    pub tcp: tcp::Settings,
    /// What becomes of segments for nobody.
    pub unlistened: Unlistened,
    /// Connections at most, in any state. Where there are as many, a new one takes the place of the
    /// one that has been in TIME-WAIT for longest, if there is any.
    pub connections_max: usize,
    /// Bytes that all connections hold at most. Beyond that, what comes is dropped as if it had
    /// been lost.
    pub memory_max: usize,
    /// What nobody can guess, to be drawn anew by whoever makes a stack.
    pub secret: Secret,
}

/// What a stack has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Segments with data that were sent again.
    pub sent_again: u64,
    /// Connections that others have begun, and that came to stand.
    pub accepted: u64,
    /// Segments whose checksums were wrong.
    pub damaged: u64,
    /// SYNs that were answered by a cookie, because all places were taken.
    pub cookies: u64,
}

/// Names a connection for as long as the application has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(Key);

/// Identifies a listener of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(Key);

/// What the application is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection waits to be accepted.
    Acceptable(ListenerId),
    /// A connection that was asked for stands.
    Connected(ConnectionId),
    /// There is something to receive, or an end, or an error.
    Readable(ConnectionId),
    /// There is room to send again, where there had been none.
    Writable(ConnectionId),
    /// A connection has ended, and is to be let go of.
    Closed(ConnectionId, Reason),
}

/// Why a listener cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// There is one at that address.
    InUse,
}

/// Why a connection cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// There is one between these ends.
    InUse,
    /// Every port that was tried is in use.
    NoPort,
    /// Neither is there an address to begin at, nor was one given; or no host can have the other
    /// one (MUST-46).
    Address,
    /// There are as many connections as may be.
    TooMany,
}

/// A host's TCP/IP.
///
/// To be called whenever something happens: [`handle_frame`](Stack::handle_frame) for each frame
/// that came, and [`handle_timeout`](Stack::handle_timeout) when
/// [`next_deadline`](Stack::next_deadline) is reached. After these, and after any call of the
/// application, [`poll_frame`](Stack::poll_frame) until there is none, and
/// [`poll_event`](Stack::poll_event) until there is none. [`run`](Stack::run) does all but the
/// last.
///
/// Times are counted from any beginning, which must be the same for all calls, and never go back.
#[derive(Debug)]
pub struct Stack {
    settings: Settings,
    table: Table,
    neighbours: Neighbours,
    ways: Ways,
    /// Deadlines of connections, by milliseconds.
    wheel: TimerWheel<Key>,
    /// Up to which millisecond the wheel has handed everything over.
    advanced_ms: u64,
    /// Connections that may have something to send, each once.
    sending: VecDeque<Key>,
    /// Those of them whose next hop is asked for.
    waiting: Vec<Key>,
    /// Whole frames that wait to leave.
    replies: VecDeque<Vec<u8>>,
    noticed: VecDeque<Key>,
    listeners_noticed: VecDeque<Key>,
    /// Bytes that connections hold.
    memory: usize,
    inbox_memory: InboxMemory,
    next_port: u16,
    /// Connections in TIME-WAIT, those that have been there for longest first. Some have ended.
    time_waits: VecDeque<Key>,
    counts: Counts,
}

impl Stack {
    /// A host without connections.
    #[must_use]
    pub fn new(settings: Settings) -> Stack {
        // Two stacks of one host, one after the other, do not begin at the same ports.
        let next_port = settings.tcp.clock_begins.as_millis() as u16;
        Stack {
            settings,
            table: Table::default(),
            neighbours: Neighbours::default(),
            ways: Ways::default(),
            wheel: TimerWheel::new(0),
            advanced_ms: 0,
            sending: VecDeque::new(),
            waiting: Vec::new(),
            replies: VecDeque::new(),
            noticed: VecDeque::new(),
            listeners_noticed: VecDeque::new(),
            memory: 0,
            inbox_memory: InboxMemory::default(),
            next_port,
            time_waits: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// Bytes that connections hold beside their places in the table.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// What has been counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether something is still to be sent, or acknowledged by the other end. Looks at each
    /// connection.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let is_busy = |state: &State| match state {
            State::SynSent(_) | State::SynReceived(_) | State::Synchronized(_) => true,
            State::TimeWait(_) | State::Closed(..) => false,
        };
        !self.replies.is_empty() || self.table.states().any(is_busy)
    }

    /// Connections in any state.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Takes connections at `address`, which may be unspecified: `backlog` handshakes at a time are
    /// remembered, and as many connections wait to be accepted. SYNs beyond the one are answered by
    /// cookies, beyond the other not at all.
    ///
    /// # Errors
    /// `InUse` where somebody does already.
    pub fn listen(
        &mut self,
        address: SocketAddrV4,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        let key = self.table.listen(address, backlog.max(1));
        key.map(ListenerId).ok_or(ListenError::InUse)
    }

    /// Takes no more connections; those that have not been accepted are reset.
    pub fn unlisten(&mut self, id: ListenerId) {
        for key in self.table.unlisten(id.0) {
            if let Some(slot) = self.table.get_mut(key) {
                slot.listener = None;
            }
            self.abort(ConnectionId(key));
        }
    }

    /// The connection at a listener that has waited for longest, with the other end's address.
    pub fn accept(&mut self, id: ListenerId) -> Option<(ConnectionId, Tuple)> {
        loop {
            let key = self.table.listener_mut(id.0)?.ready.pop_front()?;
            if let Some(slot) = self.table.get_mut(key) {
                slot.is_held = true;
                slot.listener = None;
                return Some((ConnectionId(key), slot.tuple));
            }
        }
    }

    /// Asks for a connection to `to`, from `from` where that says so; its port may be 0. Whether it
    /// comes to stand is told by an event.
    ///
    /// # Errors
    /// Where it cannot even begin.
    pub fn connect(
        &mut self,
        now: Duration,
        from: Option<SocketAddrV4>,
        to: SocketAddrV4,
    ) -> Result<ConnectionId, ConnectError> {
        if self.table.len() >= self.settings.connections_max {
            return Err(ConnectError::TooMany);
        }
        if !is_of_a_host(*to.ip()) {
            return Err(ConnectError::Address);
        }
        let own = match &self.settings.addresses {
            Addresses::Any => None,
            Addresses::These(ours) => ours.first().copied(),
        };
        let ip = from.map(|from| *from.ip()).or(own);
        let ip = ip.ok_or(ConnectError::Address)?;
        let port = from.map_or(0, |from| from.port());
        let tuple = match port {
            0 => self.free_tuple(ip, to).ok_or(ConnectError::NoPort)?,
            port => Tuple {
                local: SocketAddrV4::new(ip, port),
                remote: to,
            },
        };
        if self.table.find(&tuple).is_some() {
            return Err(ConnectError::InUse);
        }
        let ours = self.initial_sequence(now, &tuple);
        let state = State::SynSent(SynSent::new(now, ours, self.clock_offset(&tuple)));
        let key = self.table.insert(tuple, state, None);
        self.settle(key);
        Ok(ConnectionId(key))
    }

    /// The initial sequence number of a connection that begins now.
    fn initial_sequence(&self, now: Duration, tuple: &Tuple) -> Sequence {
        let clock = now + self.settings.tcp.clock_begins;
        self.settings.secret.initial_sequence(clock, tuple)
    }

    /// What is added to milliseconds to make the clock of a connection's timestamps.
    fn clock_offset(&self, tuple: &Tuple) -> u32 {
        let begins = self.settings.tcp.clock_begins.as_millis() as u32;
        self.settings.secret.clock(tuple).wrapping_add(begins)
    }

    /// A port that is free for this other end (RFC 6056, section 3.3.3: from a place that depends
    /// on the other end).
    fn free_tuple(&mut self, ip: Ipv4Addr, remote: SocketAddrV4) -> Option<Tuple> {
        let with_port = |port| Tuple {
            local: SocketAddrV4::new(ip, port),
            remote,
        };
        let purpose = Purpose::Port;
        let begin = self.settings.secret.number(&with_port(0), purpose) as u16;
        (0..PORTS_TRIED_MAX).find_map(|_| {
            self.next_port = self.next_port.wrapping_add(1);
            let place = begin.wrapping_add(self.next_port) % PORT_COUNT;
            let tuple = with_port(CLIENT_PORTS.start + place);
            self.table.find(&tuple).is_none().then_some(tuple)
        })
    }

    /// Gives a connection a name of the application's, or none any more.
    pub fn set_name(&mut self, id: ConnectionId, name: Option<Key>) {
        if let Some(slot) = self.table.get_mut(id.0) {
            slot.name = name;
        }
    }

    /// The name that the application has given to a connection.
    #[must_use]
    pub fn name(&self, id: ConnectionId) -> Option<Key> {
        self.table.get(id.0)?.name
    }

    /// Both ends of a connection.
    #[must_use]
    pub fn tuple(&self, id: ConnectionId) -> Option<Tuple> {
        self.table.get(id.0).map(|slot| slot.tuple)
    }

    /// Bytes that the connection has room for. Where that is none, the application is told when
    /// there is some.
    ///
    /// # Errors
    /// As of [`send`](Stack::send).
    pub fn room(&mut self, id: ConnectionId) -> Result<usize, CallError> {
        let has_room = self.memory < self.settings.memory_max;
        let connection = self.connection(id)?;
        let room = if has_room { connection.room() } else { 0 };
        if room == 0 {
            connection.want_room();
        }
        Ok(room)
    }

    /// Bytes that [`receive`](Stack::receive) would move at once, if it had room for them.
    #[must_use]
    pub fn unread(&self, id: ConnectionId) -> usize {
        self.table.get(id.0).map_or(0, |slot| slot.state.unread())
    }

    /// Sends as much of `bytes` as the connection has room for: how much that is. They are held,
    /// not copied, until the other end has acknowledged them.
    ///
    /// # Errors
    /// Where nothing can be sent any more, or not yet.
    pub fn send(&mut self, id: ConnectionId, bytes: Bytes) -> Result<usize, CallError> {
        let has_room = self.memory < self.settings.memory_max;
        let connection = self.connection(id)?;
        if !has_room {
            connection.want_room();
            return Ok(0);
        }
        let count = connection.send(bytes)?;
        self.note_sent(id.0);
        Ok(count)
    }

    /// Sends a response whose checksums are known, as a whole: `false` where there is no room at
    /// all.
    ///
    /// # Errors
    /// As of [`send`](Stack::send).
    pub fn send_prebuilt(
        &mut self,
        id: ConnectionId,
        prebuilt: Prebuilt,
    ) -> Result<bool, CallError> {
        let has_room = self.memory < self.settings.memory_max;
        let connection = self.connection(id)?;
        if !has_room {
            connection.want_room();
            return Ok(false);
        }
        let is_taken = connection.send_prebuilt(prebuilt)?;
        self.note_sent(id.0);
        Ok(is_taken)
    }

    /// Moves bytes that have come into `into`: how many, or `None` when there are none yet. 0 is
    /// the end.
    ///
    /// # Errors
    /// Where the connection has ended out of order, or does not stand yet.
    pub fn receive(
        &mut self,
        id: ConnectionId,
        into: &mut [u8],
    ) -> Result<Option<usize>, CallError> {
        let memory = &mut self.inbox_memory;
        let slot = self.table.get_mut(id.0).ok_or(CallError::Unknown)?;
        let received = match &mut slot.state {
            State::SynSent(_) | State::SynReceived(_) => return Err(CallError::Connecting),
            State::Synchronized(connection) => {
                let received = connection.receive(into, memory);
                // The window may have grown so much that the other end is told.
                if connection.may_have_segment() {
                    slot.queue_for_sending(id.0, &mut self.sending);
                }
                received
            }
            State::TimeWait(state) => Some(state.inbox.take(into, memory)),
            State::Closed(reason, inbox) => {
                let count = inbox.take(into, memory);
                if count == 0 && !inbox.ended {
                    return Err(CallError::Ended(*reason));
                }
                Some(count)
            }
        };
        if received.is_some() {
            slot.charge(&mut self.memory);
        }
        Ok(received)
    }

    /// Sends nothing more: the other end learns that after all that was sent before.
    ///
    /// # Errors
    /// Where there is no such connection, or it does not stand.
    pub fn finish(&mut self, id: ConnectionId) -> Result<(), CallError> {
        self.connection(id)?.finish();
        self.settle(id.0);
        Ok(())
    }

    /// Asks the other end now and then whether it is still there, or no longer asks.
    ///
    /// # Errors
    /// As of [`finish`](Stack::finish).
    pub fn set_keep_alive(
        &mut self,
        id: ConnectionId,
        settings: Option<KeepAlive>,
    ) -> Result<(), CallError> {
        self.connection(id)?.set_keep_alive(settings);
        self.settle(id.0);
        Ok(())
    }

    /// Lets go of a connection. What was sent still arrives, if the other end takes it; what it
    /// sends from now on does not.
    pub fn release(&mut self, now: Duration, id: ConnectionId) {
        let Some(slot) = self.table.get_mut(id.0) else {
            return;
        };
        slot.is_held = false;
        match &mut slot.state {
            State::Synchronized(connection) => {
                let effects = connection.release(now);
                self.apply(id.0, effects, None);
            }
            State::TimeWait(state) => {
                state.inbox.clear();
                self.settle(id.0);
            }
            State::SynSent(_) | State::Closed(..) => self.forget(id.0),
            State::SynReceived(_) => self.abort(id),
        }
    }

    /// Ends a connection by a reset, and lets go of it.
    pub fn abort(&mut self, id: ConnectionId) {
        let Some(slot) = self.table.get_mut(id.0) else {
            return;
        };
        slot.is_held = false;
        let effects = match &mut slot.state {
            State::Synchronized(connection) => connection.abort(),
            State::SynReceived(state) => state.abort(),
            State::SynSent(_) | State::TimeWait(_) | State::Closed(..) => {
                return self.forget(id.0);
            }
        };
        self.apply(id.0, effects, None);
    }

    /// What the application is to be told next.
    pub fn poll_event(&mut self) -> Option<Event> {
        while let Some(key) = self.listeners_noticed.pop_front() {
            if let Some(listener) = self.table.listener_mut(key) {
                listener.is_noticed = false;
                return Some(Event::Acceptable(ListenerId(key)));
            }
        }
        while let Some(&key) = self.noticed.front() {
            let Some(slot) = self.table.get_mut(key) else {
                self.noticed.pop_front();
                continue;
            };
            let (id, notices) = (ConnectionId(key), &mut slot.notices);
            if slot.is_held {
                if std::mem::take(&mut notices.is_connected) {
                    return Some(Event::Connected(id));
                }
                if std::mem::take(&mut notices.is_readable) {
                    return Some(Event::Readable(id));
                }
                if std::mem::take(&mut notices.is_writable) {
                    return Some(Event::Writable(id));
                }
                if let Some(reason) = notices.closed.take() {
                    return Some(Event::Closed(id, reason));
                }
            }
            notices.is_queued = false;
            self.noticed.pop_front();
        }
        None
    }

    /// When [`handle_timeout`](Stack::handle_timeout) has something to do, if nothing happens
    /// before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let of_connections = self.wheel.next_deadline().map(Duration::from_millis);
        let of_neighbours = self.neighbours.deadline();
        of_connections.into_iter().chain(of_neighbours).min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Duration) {
        let now_ms = now.as_secs() * 1000 + u64::from(now.subsec_millis());
        let mut due = Vec::new();
        // Many turns pass within a millisecond, and the wheel has nothing more for it.
        if now_ms != self.advanced_ms {
            self.advanced_ms = now_ms;
            self.wheel.advance(now_ms, &mut due);
        }
        for key in due {
            let Some(slot) = self.table.get_mut(key) else {
                continue;
            };
            slot.timer = None;
            if slot.state.deadline().is_some_and(|at| at > now) {
                // What it was for has happened meanwhile.
                self.note_deadline(key);
                continue;
            }
            let effects = slot.state.handle_timeout(now, &self.settings.tcp);
            self.apply(key, effects, None);
        }
        if self.neighbours.handle_timeout(now) {
            self.sending.extend(self.waiting.drain(..));
        }
    }

    /// The connection that the application calls by this name, if it stands.
    fn connection(&mut self, id: ConnectionId) -> Result<&mut tcp::Connection, CallError> {
        let slot = self.table.get_mut(id.0).ok_or(CallError::Unknown)?;
        match &mut slot.state {
            State::SynSent(_) | State::SynReceived(_) => Err(CallError::Connecting),
            State::Synchronized(connection) => Ok(connection),
            State::TimeWait(_) => Err(CallError::Finished),
            State::Closed(reason, _) => Err(CallError::Ended(*reason)),
        }
    }

    /// The addresses that the stack answers for from now on. Connections at others end by their
    /// timers.
    pub fn set_addresses(&mut self, addresses: Vec<Ipv4Addr>) {
        self.settings.addresses = Addresses::These(addresses);
    }

    /// The largest segment that new connections send and ask for.
    pub fn set_segment_max(&mut self, bytes: u16) {
        self.settings.tcp.segment_max = bytes;
    }

    /// The card that `host` has, or that is not known (any more), as the kernel has it.
    pub fn set_neighbour(&mut self, host: Ipv4Addr, card: Option<MacAddress>) {
        self.ways.set_neighbour(host, card);
    }

    /// Whether the kernel has told the card that packets for `host` go to.
    #[must_use]
    pub fn has_way(&self, host: Ipv4Addr) -> bool {
        self.ways.card(host).is_some()
    }

    /// The routes of the kernel's by way of this stack's card, in place of those before.
    pub fn set_routes(&mut self, routes: Vec<Route>) {
        self.ways.set_routes(routes);
    }

    /// The host to which packets for `destination` are handed.
    fn next_hop(&self, destination: Ipv4Addr) -> Ipv4Addr {
        let Some(gateway) = self.settings.gateway else {
            return destination;
        };
        let length = u32::from(self.settings.prefix_length.min(32));
        let mask = u32::MAX.checked_shl(32 - length).unwrap_or_default();
        let is_near = (destination.to_bits() ^ gateway.to_bits()) & mask == 0;
        if is_near { destination } else { gateway }
    }
}

/// Where IPv4's payload begins in a frame.
const PAYLOAD: usize = ethernet::HEADER + ipv4::HEADER;
