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
//! `frames.rs` handles received frames, `transmit.rs` writes frames to send; this file has the
//! application's calls.

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

/// Length of the largest frame that a stack writes, in bytes, with an MTU of 1,500.
pub const FRAME_MAX: usize = ethernet::HEADER + 1500;

/// Limit of queued frames that do not belong to a connection: ARP and echo replies, resets,
/// cookies. Further ones are dropped.
const REPLIES_MAX: usize = 256;

/// Ports for outgoing connections (RFC 6056): Linux's default range.
pub const CLIENT_PORTS: Range<u16> = 32_768..61_000;
const PORT_COUNT: u16 = CLIENT_PORTS.end - CLIENT_PORTS.start;

/// Ports that are tried before a connection attempt fails for lack of one.
const PORTS_TRIED_MAX: u16 = 1024;

/// The addresses whose packets a stack accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Any unicast address: for a simulation without other hosts.
    Any,
    /// These addresses; outgoing connections use the first.
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

/// Whether an address can belong to a single host.
fn is_of_a_host(address: Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_broadcast()
}

/// What happens to segments for a port without a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlistened {
    /// They are answered with a reset, as the RFC demands from the only stack of a host.
    Refuse,
    /// They are passed to the kernel's stack, which shares the address.
    Pass,
}

/// How a stack learns the hardware addresses of other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbouring {
    /// By sending and answering ARP requests itself.
    Asks,
    /// From the kernel, which runs ARP and whose knowledge is passed to the stack
    /// ([`Stack::set_neighbour`], [`Stack::set_routes`]). If the kernel does not know a host,
    /// segments of a connection go to the hardware address that its last segment came from.
    Told,
}

/// Settings of a stack.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The hardware address of the stack's card.
    pub mac: MacAddress,
    /// The IPv4 addresses that the stack answers for.
    pub addresses: Addresses,
    /// Length of the network prefix, in bits.
    pub prefix_length: u8,
    /// The router for other networks.
    pub gateway: Option<Ipv4Addr>,
    /// How hardware addresses of other hosts are learned.
    pub neighbouring: Neighbouring,
    /// The settings of all connections.
    pub tcp: tcp::Settings,
    /// What happens to segments without a connection or listener.
    pub unlistened: Unlistened,
    /// Limit of connections in any state. At the limit, a new connection replaces the one that has
    /// been in TIME-WAIT the longest, if there is any.
    pub connections_max: usize,
    /// Limit of the memory of all connections, in bytes. Beyond it, received data are dropped as if
    /// lost.
    pub memory_max: usize,
    /// An unpredictable secret, generated anew for each stack.
    pub secret: Secret,
}

/// Counters of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Retransmitted segments with data.
    pub sent_again: u64,
    /// Incoming connections that were established.
    pub accepted: u64,
    /// Segments with a wrong checksum.
    pub damaged: u64,
    /// SYNs answered with a cookie because the backlog was full.
    pub cookies: u64,
}

/// Identifies a connection until the application releases it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(Key);

/// Identifies a listener of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(Key);

/// Notifications for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection can be accepted.
    Acceptable(ListenerId),
    /// An outgoing connection is established.
    Connected(ConnectionId),
    /// Data, the end of data or an error can be received.
    Readable(ConnectionId),
    /// There is room for sending again after there was none.
    Writable(ConnectionId),
    /// A connection has ended, and must be released.
    Closed(ConnectionId, Reason),
}

/// Why a listener cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenError {
    /// There is a listener at that address already.
    InUse,
}

/// Why a connection cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// There is a connection between these endpoints already.
    InUse,
    /// All ports that were tried are in use.
    NoPort,
    /// No local address was given and the stack has none, or the remote address is not a unicast
    /// address (MUST-46).
    Address,
    /// The limit of connections is reached.
    TooMany,
}

/// The TCP/IP stack of a host.
///
/// Call [`handle_frame`](Stack::handle_frame) for each received frame, and
/// [`handle_timeout`](Stack::handle_timeout) when [`next_deadline`](Stack::next_deadline) is
/// reached. After these, and after any call of the application, call
/// [`poll_frame`](Stack::poll_frame) until there is none, and [`poll_event`](Stack::poll_event)
/// until there is none. [`run`](Stack::run) does all but the last.
///
/// Times are relative to an arbitrary start, which must be the same for all calls, and never go
/// back.
#[derive(Debug)]
pub struct Stack {
    settings: Settings,
    table: Table,
    neighbours: Neighbours,
    ways: Ways,
    /// Deadlines of connections, by milliseconds.
    wheel: TimerWheel<Key>,
    /// The millisecond up to which the wheel has expired timers.
    advanced_ms: u64,
    /// Connections that may have something to send, each listed once.
    sending: VecDeque<Key>,
    /// The connections among those that wait for the next hop's hardware address.
    waiting: Vec<Key>,
    /// Complete frames that wait to be sent.
    replies: VecDeque<Vec<u8>>,
    noticed: VecDeque<Key>,
    listeners_noticed: VecDeque<Key>,
    /// Memory held by connections, in bytes.
    memory: usize,
    inbox_memory: InboxMemory,
    next_port: u16,
    /// Connections in TIME-WAIT, the oldest first. The list may contain connections that have
    /// ended.
    time_waits: VecDeque<Key>,
    counts: Counts,
}

impl Stack {
    /// A stack without connections.
    #[must_use]
    pub fn new(settings: Settings) -> Stack {
        // The first port differs between consecutive stacks of a host.
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

    /// Memory held by connections beside their table entries, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// The counters so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether any connection has data to send or unacknowledged data. Scans all connections.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let is_busy = |state: &State| match state {
            State::SynSent(_) | State::SynReceived(_) | State::Synchronized(_) => true,
            State::TimeWait(_) | State::Closed(..) => false,
        };
        !self.replies.is_empty() || self.table.states().any(is_busy)
    }

    /// Number of connections in any state.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Accepts connections at `address`, which may be unspecified. `backlog` limits both handshakes
    /// in progress and connections that wait to be accepted. At the first limit SYNs are answered
    /// with cookies, at the second they are dropped.
    ///
    /// # Errors
    /// `InUse` if there is a listener at that address.
    pub fn listen(
        &mut self,
        address: SocketAddrV4,
        backlog: usize,
    ) -> Result<ListenerId, ListenError> {
        let key = self.table.listen(address, backlog.max(1));
        key.map(ListenerId).ok_or(ListenError::InUse)
    }

    /// Handshakes in progress at a listener. SYNs that were answered with cookies are not counted.
    #[must_use]
    pub fn handshakes(&self, id: ListenerId) -> usize {
        let listener = self.table.listener(id.0);
        listener.map_or(0, |listener| listener.handshakes)
    }

    /// Removes a listener; connections that have not been accepted are reset. Handshakes in
    /// progress are forgotten without a word, as Linux does: another listener at the same address,
    /// such as the kernel's, may answer the SYN when the client sends it again.
    pub fn unlisten(&mut self, id: ListenerId) {
        for key in self.table.unlisten(id.0) {
            let Some(slot) = self.table.get_mut(key) else {
                continue;
            };
            slot.listener = None;
            if matches!(slot.state, State::SynReceived(_)) {
                self.forget(key);
            } else {
                self.abort(ConnectionId(key));
            }
        }
    }

    /// Accepts the oldest waiting connection of a listener. Returns it with its endpoints.
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

    /// Starts a connection to `to`, from `from` if given; the port of `from` may be 0. An event
    /// reports whether the connection is established.
    ///
    /// # Errors
    /// If the connection cannot be started.
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

    /// The initial sequence number of a connection that starts now.
    fn initial_sequence(&self, now: Duration, tuple: &Tuple) -> Sequence {
        let clock = now + self.settings.tcp.clock_begins;
        self.settings.secret.initial_sequence(clock, tuple)
    }

    /// The offset of a connection's timestamp clock, in milliseconds.
    fn clock_offset(&self, tuple: &Tuple) -> u32 {
        let begins = self.settings.tcp.clock_begins.as_millis() as u32;
        self.settings.secret.clock(tuple).wrapping_add(begins)
    }

    /// A port that is free for this remote endpoint (RFC 6056, section 3.3.3: starting at a port
    /// that depends on the remote endpoint).
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

    /// Sets or removes the application's name for a connection.
    pub fn set_name(&mut self, id: ConnectionId, name: Option<Key>) {
        if let Some(slot) = self.table.get_mut(id.0) {
            slot.name = name;
        }
    }

    /// The application's name for a connection.
    #[must_use]
    pub fn name(&self, id: ConnectionId) -> Option<Key> {
        self.table.get(id.0)?.name
    }

    /// The endpoints of a connection.
    #[must_use]
    pub fn tuple(&self, id: ConnectionId) -> Option<Tuple> {
        self.table.get(id.0).map(|slot| slot.tuple)
    }

    /// Bytes that the connection has room for. If there is no room, an event will report when there
    /// is.
    ///
    /// # Errors
    /// Like [`send`](Stack::send).
    pub fn room(&mut self, id: ConnectionId) -> Result<usize, CallError> {
        let has_room = self.memory < self.settings.memory_max;
        let connection = self.connection(id)?;
        let room = if has_room { connection.room() } else { 0 };
        if room == 0 {
            connection.want_room();
        }
        Ok(room)
    }

    /// Bytes that [`receive`](Stack::receive) would return, given enough room.
    #[must_use]
    pub fn unread(&self, id: ConnectionId) -> usize {
        self.table.get(id.0).map_or(0, |slot| slot.state.unread())
    }

    /// Queues as much of `bytes` as the connection has room for, and returns that length. The bytes
    /// are kept by reference, not copied, until the peer has acknowledged them.
    ///
    /// # Errors
    /// If the connection is not established (yet or any more), or its sending side is finished.
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

    /// Queues a complete response with precomputed checksums. `false` if there is no room at all.
    ///
    /// # Errors
    /// Like [`send`](Stack::send).
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

    /// Copies received bytes to `into` and returns their number; 0 at the end of the data, `None`
    /// if there are none yet.
    ///
    /// # Errors
    /// If the connection has failed, or is not established yet.
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
                // The window may have grown enough to be announced to the peer.
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

    /// Finishes the sending side: a FIN follows all data sent before.
    ///
    /// # Errors
    /// If there is no such connection, or it is not established.
    pub fn finish(&mut self, id: ConnectionId) -> Result<(), CallError> {
        self.connection(id)?.finish();
        self.settle(id.0);
        Ok(())
    }

    /// Enables or disables keep-alive probes.
    ///
    /// # Errors
    /// Like [`finish`](Stack::finish).
    pub fn set_keep_alive(
        &mut self,
        id: ConnectionId,
        settings: Option<KeepAlive>,
    ) -> Result<(), CallError> {
        self.connection(id)?.set_keep_alive(settings);
        self.settle(id.0);
        Ok(())
    }

    /// Releases a connection. Data sent before are still delivered; data that the peer sends from
    /// now on are not.
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

    /// Resets a connection and releases it.
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

    /// The next event for the application.
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

    /// The time at which to call [`handle_timeout`](Stack::handle_timeout) if nothing happens
    /// before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let of_connections = self.wheel.next_deadline().map(Duration::from_millis);
        let of_neighbours = self.neighbours.deadline();
        of_connections.into_iter().chain(of_neighbours).min()
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Duration) {
        let now_ms = now.as_secs() * 1000 + u64::from(now.subsec_millis());
        let mut due = Vec::new();
        // Several turns may happen within a millisecond, but the wheel needs to advance only once.
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
                // The deadline has moved since the timer was set.
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

    /// The connection with this id, if it is established.
    fn connection(&mut self, id: ConnectionId) -> Result<&mut tcp::Connection, CallError> {
        let slot = self.table.get_mut(id.0).ok_or(CallError::Unknown)?;
        match &mut slot.state {
            State::SynSent(_) | State::SynReceived(_) => Err(CallError::Connecting),
            State::Synchronized(connection) => Ok(connection),
            State::TimeWait(_) => Err(CallError::Finished),
            State::Closed(reason, _) => Err(CallError::Ended(*reason)),
        }
    }

    /// Replaces the addresses of the stack. Connections at removed addresses end by timeout.
    pub fn set_addresses(&mut self, addresses: Vec<Ipv4Addr>) {
        self.settings.addresses = Addresses::These(addresses);
    }

    /// Sets the maximum segment size of new connections, both for sending and as announced to
    /// peers.
    pub fn set_segment_max(&mut self, bytes: u16) {
        self.settings.tcp.segment_max = bytes;
    }

    /// Sets the hardware address of `host` by the kernel's neighbour table; `None` if it is not
    /// known (any more).
    pub fn set_neighbour(&mut self, host: Ipv4Addr, card: Option<MacAddress>) {
        self.ways.set_neighbour(host, card);
    }

    /// Whether the kernel has reported the hardware address to use for `host`.
    #[must_use]
    pub fn has_way(&self, host: Ipv4Addr) -> bool {
        self.ways.card(host).is_some()
    }

    /// Replaces the kernel's routes through this stack's interface.
    pub fn set_routes(&mut self, routes: Vec<Route>) {
        self.ways.set_routes(routes);
    }

    /// The next hop for `destination`.
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

/// Offset of IPv4's payload in a frame.
const PAYLOAD: usize = ethernet::HEADER + ipv4::HEADER;
