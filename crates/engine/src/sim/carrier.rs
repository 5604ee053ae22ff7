//! Streams of a simulation over two of our own TCP stacks, connected by a wire that loses,
//! duplicates, reorders and corrupts frames.
//!
//! All clients share one host, and all listeners the other, whatever their addresses. For the
//! network an end is only its connection; the bytes are on the wire and in the stacks.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use bytes::Bytes;
use netstack::simulated::{LinkSide, Wire, WireFaults};
use netstack::tcp::{CallError, Reason, Secret};
use netstack::wire::ethernet::MacAddress;
use netstack::{
    Addresses, ConnectError, ConnectionId, Event, ListenError, ListenerId, Neighbouring, Settings,
    Stack, Unlistened,
};

use super::network::Faults;
use crate::carried::error_of;

/// Maximum number of connections, and of bytes, that one host of a simulation holds.
const CONNECTIONS_MAX: usize = 20_000;
const MEMORY_MAX: usize = 1 << 30;

/// With a window of less than a few segments, every exchange would depend on timers.
const WINDOW_MIN: usize = 4 * 1460;

/// A connection, and the host that it is on.
pub(super) type Carried = (LinkSide, ConnectionId);

/// Both hosts and the wire between them.
#[derive(Debug)]
pub(super) struct Carrier {
    clients: Stack,
    servers: Stack,
    wire: Wire,
    /// The network's socket numbers of the connections.
    ends: BTreeMap<Carried, i32>,
    /// The network's socket numbers of the listeners.
    listeners: BTreeMap<ListenerId, i32>,
    /// The time of the next run that was scheduled with the network.
    pub(super) scheduled: Option<Duration>,
}

/// An event at an end or a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CarrierEvent {
    /// A connection waits at the listener.
    Listener(i32),
    Connected(i32),
    /// The connection could not be established, or has ended.
    Closed(i32, Reason),
    /// The end is readable or has room.
    End(i32),
}

impl Carrier {
    pub(super) fn new(seed: u64, faults: &Faults) -> Carrier {
        let host = |number: u8| {
            let window = u32::try_from(faults.window.max(WINDOW_MIN)).unwrap_or(u32::MAX);
            Stack::new(Settings {
                mac: MacAddress([2, 0, 0, 0, 0, number]),
                addresses: Addresses::Any,
                prefix_length: 0,
                gateway: None,
                neighbouring: Neighbouring::Asks,
                tcp: netstack::tcp::Settings {
                    receive_max: window,
                    send_max: window,
                    ..netstack::tcp::Settings::default()
                },
                unlistened: Unlistened::Refuse,
                connections_max: CONNECTIONS_MAX,
                memory_max: MEMORY_MAX,
                secret: Secret([seed, u64::from(number)]),
            })
        };
        Carrier {
            clients: host(1),
            servers: host(2),
            wire: Wire::new(seed, of_wire(faults)),
            ends: BTreeMap::new(),
            listeners: BTreeMap::new(),
            scheduled: None,
        }
    }

    /// Replaces the faults of the wire.
    pub(super) fn set_faults(&mut self, faults: &Faults) {
        self.wire.faults = of_wire(faults);
    }

    /// The host on one side of the wire.
    fn stack(&mut self, side: LinkSide) -> &mut Stack {
        match side {
            LinkSide::Near => &mut self.clients,
            LinkSide::Far => &mut self.servers,
        }
    }

    pub(super) fn listen(
        &mut self,
        number: i32,
        address: SocketAddr,
        backlog: usize,
    ) -> io::Result<()> {
        let id = self.servers.listen(of_version_4(address)?, backlog);
        let id = id.map_err(|ListenError::InUse| io::ErrorKind::AddrInUse)?;
        self.listeners.insert(id, number);
        Ok(())
    }

    pub(super) fn unlisten(&mut self, number: i32) {
        let found = self.listeners.iter().find(|(_, of)| **of == number);
        if let Some(id) = found.map(|(id, _)| *id) {
            self.listeners.remove(&id);
            self.servers.unlisten(id);
        }
    }

    /// Accepts a connection that waits at a listener; returns it with its local and its remote
    /// address.
    pub(super) fn accept(&mut self, number: i32) -> Option<(Carried, SocketAddr, SocketAddr)> {
        let mut listeners = self.listeners.iter();
        let id = *listeners.find(|(_, of)| **of == number)?.0;
        let (connection, tuple) = self.servers.accept(id)?;
        let addresses = (tuple.local.into(), tuple.remote.into());
        Some(((LinkSide::Far, connection), addresses.0, addresses.1))
    }

    /// Associates a connection with the number of an end, which its events then name.
    pub(super) fn name(&mut self, carried: Carried, number: i32) {
        self.ends.insert(carried, number);
    }

    pub(super) fn connect(
        &mut self,
        now: Duration,
        from: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<Carried> {
        let from = of_version_4(from)?;
        let begun = self.clients.connect(now, Some(from), of_version_4(to)?);
        let id = begun.map_err(|error| match error {
            ConnectError::InUse | ConnectError::NoPort => io::ErrorKind::AddrNotAvailable,
            ConnectError::Address => io::ErrorKind::InvalidInput,
            ConnectError::TooMany => io::ErrorKind::OutOfMemory,
        })?;
        Ok((LinkSide::Near, id))
    }

    /// Sends bytes: returns how many the connection has taken, or `None` if it has no room.
    pub(super) fn send(&mut self, (side, id): Carried, bytes: &[u8]) -> io::Result<Option<usize>> {
        match self.stack(side).send(id, Bytes::copy_from_slice(bytes)) {
            Ok(0) | Err(CallError::Connecting) => Ok(None),
            Ok(count) => Ok(Some(count)),
            Err(error) => Err(error_of(error)),
        }
    }

    /// Receives bytes: returns how many, 0 at the end of input, or `None` if no data has arrived.
    pub(super) fn receive(
        &mut self,
        (side, id): Carried,
        into: &mut [u8],
    ) -> io::Result<Option<usize>> {
        match self.stack(side).receive(id, into) {
            Ok(received) => Ok(received),
            Err(CallError::Connecting) => Ok(None),
            Err(error) => Err(error_of(error)),
        }
    }

    pub(super) fn finish(&mut self, (side, id): Carried) {
        // A connection that has ended needs no finish.
        let _ = self.stack(side).finish(id);
    }

    pub(super) fn release(&mut self, now: Duration, carried: Carried) {
        self.ends.remove(&carried);
        self.stack(carried.0).release(now, carried.1);
    }

    pub(super) fn abort(&mut self, carried: Carried) {
        self.ends.remove(&carried);
        self.stack(carried.0).abort(carried.1);
    }

    /// Runs both hosts up to now, and returns the events.
    pub(super) fn run(&mut self, now: Duration) -> Vec<CarrierEvent> {
        self.wire.now = now;
        // Frames without latency arrive within the same call.
        loop {
            self.clients.run(now, &mut self.wire.end(LinkSide::Near));
            self.servers.run(now, &mut self.wire.end(LinkSide::Far));
            if self.wire.next_arrival().is_none_or(|at| at > now) {
                break;
            }
        }
        let mut news = Vec::new();
        for side in [LinkSide::Near, LinkSide::Far] {
            while let Some(event) = self.stack(side).poll_event() {
                news.extend(self.news(side, event));
            }
        }
        news
    }

    /// Converts an event of a stack; `None` if the network does not know the connection.
    fn news(&self, side: LinkSide, event: Event) -> Option<CarrierEvent> {
        let number = |id| self.ends.get(&(side, id)).copied();
        match event {
            Event::Acceptable(id) => self.listeners.get(&id).copied().map(CarrierEvent::Listener),
            Event::Connected(id) => number(id).map(CarrierEvent::Connected),
            Event::Readable(id) | Event::Writable(id) => number(id).map(CarrierEvent::End),
            Event::Closed(id, reason) => {
                number(id).map(|number| CarrierEvent::Closed(number, reason))
            }
        }
    }

    /// When to run next, unless an event occurs earlier.
    pub(super) fn next(&self) -> Option<Duration> {
        let times = [
            self.wire.next_arrival(),
            self.clients.next_deadline(),
            self.servers.next_deadline(),
        ];
        times.into_iter().flatten().min()
    }
}

/// The faults that apply to frames.
fn of_wire(faults: &Faults) -> WireFaults {
    WireFaults {
        delay_min: faults.delay_min,
        delay_max: faults.delay_max,
        loss: faults.loss,
        duplicate: faults.duplicate,
        reorder: faults.reorder,
        corrupt: faults.corrupt,
    }
}

/// The address if it is IPv4; the stacks do not support IPv6.
fn of_version_4(address: SocketAddr) -> io::Result<SocketAddrV4> {
    match address {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}
