//! One queue of an interface with the TCP/IP stack above it, and what of the kernel's knowledge
//! that stack is told.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::hash::Map;
use base::slab::Key;
use netstack::tcp::Secret;
use netstack::{
    Addresses, ConnectError, ConnectionId, Event, ListenerId, Neighbouring, Route, Settings, Stack,
    Unlistened,
};

use super::dump::Tap;
use super::gauges::Gauges;
use super::netlink::{self, Interface, Netlink, News};
use super::role::Role;
use super::socket::Queue;
use crate::sys;

/// Bursts that are sent before others of the thread have their turn.
const ROUNDS_MAX: usize = 4;

/// How long a queue that the kernel does not take from is left alone.
const STUCK_FOR: Duration = Duration::from_millis(1);

/// Handshakes at each listener at a time, and connections that wait to be accepted.
const BACKLOG: usize = 4096;

/// Connections in any state, those in TIME-WAIT among them, and bytes that all hold.
const CONNECTIONS_MAX: usize = 1 << 20;
const MEMORY_MAX: usize = 256 << 20;

/// Largest packets that are sent and asked for, whatever the interface could carry: a frame has
/// room for no more.
const MTU_MAX: u32 = 1500;

/// What IPv4 and TCP take of a packet.
const HEADERS: u32 = 40;

/// The smallest MTU that IPv4 works with, and leaves room for data.
pub(super) const MTU_MIN: u32 = 576;

/// What a worker is given of one queue of an interface. It is opened on the thread that uses it.
#[derive(Debug)]
pub struct QueueParts {
    /// The interface's name of the parts.
    pub interface: String,
    /// The receive queue's number.
    pub number: u32,
    /// The socket of AF_XDP, bound.
    pub socket: OwnedFd,
    /// The file of its frames.
    pub frames: OwnedFd,
    /// What attaches the filter to the interface for as long as it is open; only the first of
    /// several queues of an interface has it.
    pub link: Option<OwnedFd>,
    /// Who begins the connections of the queue.
    pub role: Role,
}

/// A queue in use.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) stack: Stack,
    queue: Queue,
    interface: Interface,
    ways: Option<Netlink>,
    routes: Vec<netlink::Route>,
    begin: Instant,
    listeners: Map<SocketAddrV4, ListenerId>,
    gauges: Arc<Gauges>,
    pub(super) role: Role,
    /// The interface is no more.
    pub(super) is_gone: bool,
    /// It keeps the filter attached.
    _link: Option<OwnedFd>,
}

impl Port {
    /// Opens a queue. `now` is any beginning of its time.
    ///
    /// # Errors
    /// Where the interface has gone meanwhile, and the kernel's.
    pub(super) fn open(parts: QueueParts, now: Instant) -> io::Result<Port> {
        let interface = Netlink::new()?.interface(&parts.interface)?;
        let (secret, clock_begins) = match parts.role {
            Role::Server => (Secret([sys::random()?, sys::random()?]), Duration::ZERO),
            // A server still knows the connections of the client before this one.
            Role::Client => secret_of_machine()?,
        };
        let stack = Stack::new(Settings {
            mac: interface.mac,
            addresses: Addresses::These(interface.addresses.clone()),
            prefix_length: 0,
            gateway: None,
            neighbouring: Neighbouring::Told,
            tcp: netstack::tcp::Settings {
                segment_max: segment_max(interface.mtu),
                clock_begins,
                ..netstack::tcp::Settings::default()
            },
            // The filter lets nothing through that the kernel could want back.
            unlistened: Unlistened::Refuse,
            connections_max: CONNECTIONS_MAX,
            memory_max: MEMORY_MAX,
            secret,
        });
        let gauges = Gauges::new(&interface.name, parts.number, parts.socket.try_clone()?);
        let mut port = Port {
            stack,
            gauges,
            // Without it nobody can look on, and all else works.
            queue: Queue::open(
                parts.socket,
                &parts.frames,
                Tap::open(&interface.name, parts.number).ok(),
            )?,
            interface,
            ways: Netlink::listening().ok(),
            routes: Vec::new(),
            begin: now,
            listeners: Map::default(),
            role: parts.role,
            is_gone: false,
            _link: parts.link,
        };
        port.learn_all_ways();
        Ok(port)
    }

    /// What can be read when frames have come.
    pub(super) fn frames(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// What can be read when neighbours, routes or the interface have changed.
    pub(super) fn ways(&self) -> Option<BorrowedFd<'_>> {
        self.ways.as_ref().map(AsFd::as_fd)
    }

    /// The time of this port's stack.
    pub(super) fn time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begin)
    }

    /// Takes in what has come. What is to be said to it leaves with [`send`](Port::send), after the
    /// tasks have had their turn.
    pub(super) fn take_in(&mut self, now: Duration) {
        self.queue.begin_turn();
        self.stack.receive_from(now, &mut self.queue);
    }

    /// Sends what is to leave. Whether there may be more of it.
    pub(super) fn send(&mut self, now: Duration) -> bool {
        for _ in 0..ROUNDS_MAX {
            self.queue.begin_burst();
            self.stack.send_to(now, &mut self.queue);
            self.queue.flush();
            if !self.queue.is_burst_full() {
                return false;
            }
        }
        true
    }

    /// How long nothing has to be done, if nothing happens.
    pub(super) fn rest(&self, now: Duration) -> Option<Duration> {
        let due = self.stack.next_deadline();
        let due = due.map(|due| due.saturating_sub(now));
        if self.queue.is_polled() || self.queue.has_syns() {
            return Some(Duration::ZERO);
        }
        let stuck = self.queue.is_stuck().then_some(STUCK_FOR);
        due.into_iter().chain(stuck).min()
    }

    /// What the stack has to tell, with the engine's name of the connection.
    pub(super) fn poll_event(&mut self) -> Option<Told> {
        loop {
            let told = match self.stack.poll_event()? {
                Event::Acceptable(_) => Some(Told::Acceptable),
                Event::Connected(id) => self.stack.name(id).map(Told::Connected),
                Event::Readable(id) => self.stack.name(id).map(Told::Readable),
                Event::Writable(id) => self.stack.name(id).map(Told::Writable),
                Event::Closed(id, _) => self.stack.name(id).map(Told::Closed),
            };
            if told.is_some() {
                return told;
            }
        }
    }

    /// Takes connections at an address.
    pub(super) fn listen(&mut self, address: SocketAddrV4) {
        // One that is there already serves both.
        if let Ok(id) = self.stack.listen(address, BACKLOG) {
            self.listeners.insert(address, id);
        }
    }

    /// Takes no more there.
    pub(super) fn unlisten(&mut self, address: SocketAddrV4) {
        if let Some(id) = self.listeners.remove(&address) {
            self.stack.unlisten(id);
        }
    }

    /// Whether connections at an address may still come to stand: a handshake is under way, or a
    /// received frame, which may be a SYN, has not been handled yet.
    pub(super) fn has_handshakes(&self, address: SocketAddrV4) -> bool {
        let listener = self.listeners.get(&address);
        listener.is_some_and(|id| self.queue.has_received() || self.stack.handshakes(*id) > 0)
    }

    /// The connection that has waited for longest at an address, with the other end's.
    pub(super) fn accept(&mut self, address: SocketAddrV4) -> Option<(ConnectionId, SocketAddrV4)> {
        let id = *self.listeners.get(&address)?;
        let (connection, tuple) = self.stack.accept(id)?;
        Some((connection, tuple.remote))
    }

    /// Asks for a connection to `to`, from `from` where that is given.
    ///
    /// # Errors
    /// `EHOSTUNREACH` where the interface does not lead there or the kernel does not know the card
    /// of the next hop (yet), and those of `connect()`.
    pub(super) fn connect(
        &mut self,
        now: Duration,
        from: Option<SocketAddrV4>,
        to: SocketAddrV4,
    ) -> io::Result<ConnectionId> {
        if !self.stack.has_way(*to.ip()) {
            return Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH));
        }
        let connection = self.stack.connect(now, from, to);
        connection.map_err(|error| {
            io::Error::from_raw_os_error(match error {
                ConnectError::InUse => libc::EADDRINUSE,
                ConnectError::NoPort => libc::EADDRNOTAVAIL,
                ConnectError::Address => libc::EINVAL,
                ConnectError::TooMany => libc::ENOBUFS,
            })
        })
    }

    /// What is told of a connection is told by this name.
    pub(super) fn name_connection(&mut self, id: ConnectionId, key: Key) {
        self.stack.set_name(id, Some(key));
    }

    /// Nothing is told of a connection any more.
    pub(super) fn forget_name(&mut self, id: ConnectionId) {
        self.stack.set_name(id, None);
    }

    /// Has what was sent so far leave, before it is taken back by what comes next.
    pub(super) fn flush(&mut self, now: Duration) {
        self.send(now);
    }

    /// Shows what has been counted to other threads.
    pub(super) fn show_counts(&self) {
        let (frames, segments) = (self.queue.counts(), self.stack.counts());
        self.gauges.show(frames, segments, self.stack.connections());
    }

    /// Follows what has changed of neighbours and routes.
    pub(super) fn follow_ways(&mut self) {
        let Some(ways) = self.ways.take() else { return };
        let mut all_were_told = true;
        let mut routes_changed = false;
        let mut news = Vec::new();
        all_were_told &= ways.changes(|change| news.push(change));
        self.ways = Some(ways);
        for change in news {
            routes_changed |= self.learn(change);
        }
        if !all_were_told {
            self.learn_all_ways();
        } else if routes_changed {
            self.set_routes();
        }
    }

    fn learn_all_ways(&mut self) {
        self.routes.clear();
        let mut news = Vec::new();
        // Without them segments go back to the card that the last one came from.
        if let Ok(netlink) = Netlink::new() {
            let _ = netlink.list_ways(|one| news.push(one));
        }
        for one in news {
            self.learn(one);
        }
        self.set_routes();
    }

    /// Whether it was about routes.
    fn learn(&mut self, news: News) -> bool {
        let ours = self.interface.index;
        match news {
            News::Neighbour(index, host, card) if index == ours => {
                self.stack.set_neighbour(host, card);
            }
            News::Address(index, address)
                if index == ours && !self.interface.addresses.contains(&address) =>
            {
                self.interface.addresses.push(address);
                self.stack.set_addresses(self.interface.addresses.clone());
            }
            News::AddressGone(index, address) if index == ours => {
                self.interface.addresses.retain(|known| *known != address);
                self.stack.set_addresses(self.interface.addresses.clone());
            }
            News::Link(link) if link.index == ours => {
                self.stack.set_segment_max(segment_max(link.mtu));
            }
            News::LinkGone(index) if index == ours => self.is_gone = true,
            News::Route(route) if route.interface == ours => {
                self.routes.retain(|known| *known != route);
                self.routes.push(route);
                return true;
            }
            News::RouteGone(route) if route.interface == ours => {
                self.routes.retain(|known| *known != route);
                return true;
            }
            _ => {}
        }
        false
    }

    fn set_routes(&mut self) {
        self.routes.sort_by_key(|route| route.priority);
        let routes = self.routes.iter().map(|route| Route {
            network: route.network,
            prefix_length: route.prefix_length,
            gateway: route.gateway,
        });
        self.stack.set_routes(routes.collect());
    }
}

/// A secret that is the same until the machine starts anew, and how long ago that was: no other
/// host knows it, though every user of this one may.
fn secret_of_machine() -> io::Result<(Secret, Duration)> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16);
    let number = number.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let since = Duration::try_from(since).unwrap_or_default();
    Ok((Secret([(number >> 64) as u64, number as u64]), since))
}

/// The largest segments for an MTU.
fn segment_max(mtu: u32) -> u16 {
    let most = mtu.clamp(MTU_MIN, MTU_MAX) - HEADERS;
    u16::try_from(most).unwrap_or(u16::MAX)
}

/// What a port has to tell of a connection or of its listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Connections wait to be accepted.
    Acceptable,
    /// The connection stands.
    Connected(Key),
    /// There is something to receive, or an end.
    Readable(Key),
    /// There is room to send.
    Writable(Key),
    /// The connection has ended.
    Closed(Key),
}
