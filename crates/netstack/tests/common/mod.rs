//! Two hosts at the ends of a wire, and the time that passes there.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use bytes::Bytes;
use netstack::simulated::{LinkSide, Wire, WireFaults};
use netstack::tcp::{self, Secret};
use netstack::wire::ethernet::MacAddress;
use netstack::{
    Addresses, ConnectionId, Event, ListenerId, Neighbouring, Settings, Stack, Unlistened,
};

pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A host with one address.
pub(crate) fn settings(address: Ipv4Addr, tcp: tcp::Settings) -> Settings {
    let [_, _, _, last] = address.octets();
    Settings {
        mac: MacAddress([2, 0, 0, 0, 0, last]),
        addresses: Addresses::These(vec![address]),
        prefix_length: 24,
        gateway: None,
        neighbouring: Neighbouring::Asks,
        tcp,
        unlistened: Unlistened::Refuse,
        connections_max: 1000,
        memory_max: 64 << 20,
        secret: Secret([7, u64::from(last)]),
    }
}

/// Both hosts.
pub(crate) struct Hosts {
    pub(crate) client: Stack,
    pub(crate) server: Stack,
    pub(crate) wire: Wire,
    pub(crate) listener: ListenerId,
    pub(crate) address: SocketAddrV4,
}

impl Hosts {
    pub(crate) fn new(seed: u64, faults: WireFaults, tcp: &tcp::Settings) -> Hosts {
        let mut server = Stack::new(settings(SERVER, tcp.clone()));
        let address = SocketAddrV4::new(SERVER, 80);
        let listener = server.listen(address, 128).unwrap();
        Hosts {
            client: Stack::new(settings(CLIENT, tcp.clone())),
            server,
            wire: Wire::new(seed, faults),
            listener,
            address,
        }
    }

    /// Has both do what they can do now.
    pub(crate) fn run(&mut self) {
        let now = self.wire.now;
        self.client.run(now, &mut self.wire.end(LinkSide::Near));
        self.server.run(now, &mut self.wire.end(LinkSide::Far));
    }

    /// Goes on to the next moment at which anything happens; `false` when nothing will.
    pub(crate) fn step(&mut self) -> bool {
        self.run();
        let next = [
            self.wire.next_arrival(),
            self.client.next_deadline(),
            self.server.next_deadline(),
        ];
        match next.into_iter().flatten().min() {
            Some(at) => {
                self.wire.now = self.wire.now.max(at);
                self.run();
                true
            }
            None => false,
        }
    }

    /// A connection that stands: the client's end and the server's.
    pub(crate) fn connected(&mut self) -> (ConnectionId, ConnectionId) {
        let now = self.wire.now;
        let client = self.client.connect(now, None, self.address).unwrap();
        loop {
            if let Some((server, _)) = self.server.accept(self.listener) {
                return (client, server);
            }
            assert!(self.step(), "nothing happens any more");
        }
    }
}

/// Bytes that differ wherever one looks.
pub(crate) fn content(length: usize) -> Bytes {
    (0..length)
        .map(|n| (n % 251) as u8 ^ (n / 251) as u8)
        .collect()
}

/// Everything that has come.
pub(crate) fn read(stack: &mut Stack, id: ConnectionId) -> Vec<u8> {
    let mut all = Vec::new();
    let mut part = [0; 4096];
    while let Ok(Some(count)) = stack.receive(id, &mut part)
        && count > 0
    {
        all.extend_from_slice(&part[..count]);
    }
    all
}

/// All that a stack has to tell.
pub(crate) fn events(stack: &mut Stack) -> Vec<Event> {
    std::iter::from_fn(|| stack.poll_event()).collect()
}

/// As long as that.
pub(crate) fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}
