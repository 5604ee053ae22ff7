//! One queue of an interface with its TCP/IP stack, which follows the kernel's addresses,
//! neighbours and routes.

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

/// Maximum number of bursts that are sent in one turn, before the thread's other work goes on.
const ROUNDS_MAX: usize = 4;

/// The interval at which a queue is tried again if the kernel did not take all of its frames.
const STUCK_FOR: Duration = Duration::from_millis(1);

/// Maximum number of concurrent handshakes of each listener, and of its connections that wait to be
/// accepted.
const BACKLOG: usize = 4096;

/// Maximum number of a port's connections, including those in TIME-WAIT, and of the bytes that they
/// hold together.
const CONNECTIONS_MAX: usize = 1 << 20;
const MEMORY_MAX: usize = 256 << 20;

/// Maximum size of packets that are sent, and that peers are asked to send: a frame has no room for
/// larger ones, even if the interface's MTU is larger.
const MTU_MAX: u32 = 1500;

/// Length of the IPv4 and TCP headers, in bytes.
const HEADERS: u32 = 40;

/// Minimum MTU of an interface: the packet size that every IPv4 host accepts.
pub(super) const MTU_MIN: u32 = 576;

/// The parts of one queue of an interface, as the worker process receives them. The thread that
/// uses the queue opens it.
#[derive(Debug)]
pub struct QueueParts {
    /// The name of the queue's interface.
    pub interface: String,
    /// The receive queue's number.
    pub number: u32,
    /// The AF_XDP socket, bound to the queue.
    pub socket: OwnedFd,
    /// The memory file of the socket's frames.
    pub frames: OwnedFd,
    /// The link that keeps the filter attached to the interface while it is open. Only the first of
    /// an interface's queues has it.
    pub link: Option<OwnedFd>,
    /// Which end starts the connections of the queue.
    pub role: Role,
}

/// A queue in use, with its stack.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) stack: Stack,
    queue: Queue,
    interface: Interface,
    /// The socket for changes of addresses, neighbours and routes; `None` if it could not be
    /// opened.
    ways: Option<Netlink>,
    /// The kernel's routes through the interface.
    routes: Vec<netlink::Route>,
    /// When the stack's time starts.
    begin: Instant,
    listeners: Map<SocketAddrV4, ListenerId>,
    gauges: Arc<Gauges>,
    pub(super) role: Role,
    /// The interface no longer exists.
    pub(super) is_gone: bool,
    /// The link that keeps the filter attached.
    _link: Option<OwnedFd>,
}

impl Port {
    /// Opens a queue. The stack's time starts at `now`.
    ///
    /// # Errors
    /// If the interface no longer exists, or a system call fails.
    pub(super) fn open(parts: QueueParts, now: Instant) -> io::Result<Port> {
        let interface = Netlink::new()?.interface(&parts.interface)?;
        let (secret, clock_begins) = match parts.role {
            Role::Server => (Secret([sys::random()?, sys::random()?]), Duration::ZERO),
            // Servers may still hold connections of an earlier client process on this machine, so
            // sequence numbers must continue from that process's.
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
            // The filter passes only segments that no kernel socket could handle.
            unlistened: Unlistened::Refuse,
            connections_max: CONNECTIONS_MAX,
            memory_max: MEMORY_MAX,
            secret,
        });
        let gauges = Gauges::new(&interface.name, parts.number, parts.socket.try_clone()?);
        let mut port = Port {
            stack,
            gauges,
            // Without the ring for dumps, everything else works.
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

    /// The descriptor that is readable when frames have arrived.
    pub(super) fn frames(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// The descriptor that is readable when neighbours, routes or the interface have changed;
    /// `None` if changes are not reported.
    pub(super) fn ways(&self) -> Option<BorrowedFd<'_>> {
        self.ways.as_ref().map(AsFd::as_fd)
    }

    /// The time of this port's stack.
    pub(super) fn time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begin)
    }

    /// Handles received frames. Responses are sent by [`send`](Port::send), after the tasks have
    /// been polled.
    pub(super) fn take_in(&mut self, now: Duration) {
        self.queue.begin_turn();
        self.stack.receive_from(now, &mut self.queue);
    }

    /// Sends the stack's pending frames. Returns whether more may be pending.
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

    /// How long the thread may wait if no event occurs; `None` without a limit.
    pub(super) fn rest(&self, now: Duration) -> Option<Duration> {
        let due = self.stack.next_deadline();
        let due = due.map(|due| due.saturating_sub(now));
        if self.queue.is_polled() || self.queue.has_syns() {
            return Some(Duration::ZERO);
        }
        let stuck = self.queue.is_stuck().then_some(STUCK_FOR);
        due.into_iter().chain(stuck).min()
    }

    /// The next event of the stack, with the connection's key in the engine.
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

    /// Listens at an address.
    pub(super) fn listen(&mut self, address: SocketAddrV4) {
        // If the stack listens there already, that listener serves both sockets.
        if let Ok(id) = self.stack.listen(address, BACKLOG) {
            self.listeners.insert(address, id);
        }
    }

    /// Stops listening at an address.
    pub(super) fn unlisten(&mut self, address: SocketAddrV4) {
        if let Some(id) = self.listeners.remove(&address) {
            self.stack.unlisten(id);
        }
    }

    /// Whether connections to an address may still be established: a handshake is in progress, or a
    /// received frame, which may be a SYN, has not been handled yet.
    pub(super) fn has_handshakes(&self, address: SocketAddrV4) -> bool {
        let listener = self.listeners.get(&address);
        listener.is_some_and(|id| self.queue.has_received() || self.stack.handshakes(*id) > 0)
    }

    /// Accepts the oldest waiting connection at an address. Also returns the peer's address.
    pub(super) fn accept(&mut self, address: SocketAddrV4) -> Option<(ConnectionId, SocketAddrV4)> {
        let id = *self.listeners.get(&address)?;
        let (connection, tuple) = self.stack.accept(id)?;
        Some((connection, tuple.remote))
    }

    /// Starts to connect to `to`, from the local address `from` if it is given.
    ///
    /// # Errors
    /// `EHOSTUNREACH` if no route leads there, or the hardware address of the next hop is not known
    /// (yet); also those of `connect()`.
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

    /// Sets the key that events of a connection carry.
    pub(super) fn name_connection(&mut self, id: ConnectionId, key: Key) {
        self.stack.set_name(id, Some(key));
    }

    /// Ends the events of a connection.
    pub(super) fn forget_name(&mut self, id: ConnectionId) {
        self.stack.set_name(id, None);
    }

    /// Sends the stack's pending frames now, before a reset discards the data.
    pub(super) fn flush(&mut self, now: Duration) {
        self.send(now);
    }

    /// Publishes the counts for other threads.
    pub(super) fn show_counts(&self) {
        let (frames, segments) = (self.queue.counts(), self.stack.counts());
        self.gauges.show(frames, segments, self.stack.connections());
    }

    /// Applies the kernel's changes of addresses, neighbours and routes to the stack.
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

    /// Lists all neighbours and routes anew.
    fn learn_all_ways(&mut self) {
        self.routes.clear();
        let mut news = Vec::new();
        // If this fails, segments are sent to the hardware address that the last one came from.
        if let Ok(netlink) = Netlink::new() {
            let _ = netlink.list_ways(|one| news.push(one));
        }
        for one in news {
            self.learn(one);
        }
        self.set_routes();
    }

    /// Applies one change. Returns whether the routes have changed, which
    /// [`set_routes`](Self::set_routes) then applies.
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

    /// Passes the routes to the stack, in the order of their priority.
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

/// A secret that stays the same until the machine reboots, and the time since the boot. Other hosts
/// do not know the secret, but every user of this machine can read it.
fn secret_of_machine() -> io::Result<(Secret, Duration)> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16);
    let number = number.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let since = Duration::try_from(since).unwrap_or_default();
    Ok((Secret([(number >> 64) as u64, number as u64]), since))
}

/// The largest segment for an MTU, in bytes.
fn segment_max(mtu: u32) -> u16 {
    let most = mtu.clamp(MTU_MIN, MTU_MAX) - HEADERS;
    u16::try_from(most).unwrap_or(u16::MAX)
}

/// An event of a port's connection, or of its listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Connections wait to be accepted.
    Acceptable,
    /// The connection is established.
    Connected(Key),
    /// Data or the end of input can be received.
    Readable(Key),
    /// There is room to send.
    Writable(Key),
    /// The connection has ended.
    Closed(Key),
}
