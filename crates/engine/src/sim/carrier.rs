//! Streams of a simulation over two TCP stacks of our own, whose frames a wire loses, doubles,
//! reorders and damages.
//!
//! Everything that connects has the one host, everything that listens the other, whatever their
//! addresses. What the network knows of an end is its connection; its bytes are on the wire and in
//! the stacks.

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

/// Connections and bytes that a host of a simulation holds at most.
const CONNECTIONS_MAX: usize = 20_000;
const MEMORY_MAX: usize = 1 << 30;

/// A window that is smaller than a few segments would make every exchange a matter of timers.
const WINDOW_MIN: usize = 4 * 1460;

/// A connection at one of both hosts.
pub(super) type Carried = (LinkSide, ConnectionId);

/// Both hosts and the wire between them.
#[derive(Debug)]
pub(super) struct Carrier {
    clients: Stack,
    servers: Stack,
    wire: Wire,
    /// The network's numbers of what the stacks tell of.
    ends: BTreeMap<Carried, i32>,
    listeners: BTreeMap<ListenerId, i32>,
    /// For when the network has last been asked to go on.
    pub(super) scheduled: Option<Duration>,
}

/// What has happened at an end or a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// A connection waits there.
    Listener(i32),
    Connected(i32),
    /// Its connection could not be made, or has ended.
    Closed(i32, Reason),
    /// Something can be received or sent.
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

    /// The network behaves differently from now on.
    pub(super) fn set_faults(&mut self, faults: &Faults) {
        self.wire.faults = of_wire(faults);
    }

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

    /// The connection that waits at a listener, with this end's address and the other one's.
    pub(super) fn accept(&mut self, number: i32) -> Option<(Carried, SocketAddr, SocketAddr)> {
        let mut listeners = self.listeners.iter();
        let id = *listeners.find(|(_, of)| **of == number)?.0;
        let (connection, tuple) = self.servers.accept(id)?;
        let addresses = (tuple.local.into(), tuple.remote.into());
        Some(((LinkSide::Far, connection), addresses.0, addresses.1))
    }

    /// Has what is told of a connection be told of an end.
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

    /// Sends bytes: how many the connection has taken, or `None` where that is none.
    pub(super) fn send(&mut self, (side, id): Carried, bytes: &[u8]) -> io::Result<Option<usize>> {
        match self.stack(side).send(id, Bytes::copy_from_slice(bytes)) {
            Ok(0) | Err(CallError::Connecting) => Ok(None),
            Ok(count) => Ok(Some(count)),
            Err(error) => Err(error_of(error)),
        }
    }

    /// Receives bytes: how many, 0 at the end, or `None` when nothing has come.
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
        // One that has ended meanwhile has nothing to finish.
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

    /// Has both hosts do what they can do now. What has happened.
    pub(super) fn run(&mut self, now: Duration) -> Vec<News> {
        self.wire.now = now;
        // What leaves without any delay is there within the same moment.
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

    fn news(&self, side: LinkSide, event: Event) -> Option<News> {
        let number = |id| self.ends.get(&(side, id)).copied();
        match event {
            Event::Acceptable(id) => self.listeners.get(&id).copied().map(News::Listener),
            Event::Connected(id) => number(id).map(News::Connected),
            Event::Readable(id) | Event::Writable(id) => number(id).map(News::End),
            Event::Closed(id, reason) => number(id).map(|number| News::Closed(number, reason)),
        }
    }

    /// When to run next, if nothing happens before.
    pub(super) fn next(&self) -> Option<Duration> {
        let times = [
            self.wire.next_arrival(),
            self.clients.next_deadline(),
            self.servers.next_deadline(),
        ];
        times.into_iter().flatten().min()
    }
}

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

fn of_version_4(address: SocketAddr) -> io::Result<SocketAddrV4> {
    match address {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}
