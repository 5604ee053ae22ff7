//! Datagrams on the simulated network: lost, duplicated and reordered according to the faults and
//! the seed.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::network::{EventTarget, Network};
use crate::net::{Address, Datagram};

/// The largest payload of a UDP datagram.
const LENGTH_MAX: usize = 65_507;

/// A datagram socket.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) address: SocketAddr,
    /// The only peer that the socket receives from, if it is connected.
    peer: Option<SocketAddr>,
    /// Datagrams in transit and unread, by arrival time and serial number.
    arriving: BTreeMap<(Duration, u64), Datagram<Vec<u8>>>,
    /// Total payload of `arriving`, in bytes.
    held: usize,
    /// Earliest arrival time of further in-order datagrams.
    last_arrival: Duration,
    /// When the socket learns that a destination does not exist.
    refused_at: Option<Duration>,
}

impl Network {
    /// Opens a datagram socket, bound to `from` and connected to `to` if they are given.
    pub(super) fn open_mailbox(
        &mut self,
        from: Option<&Address>,
        to: Option<&Address>,
    ) -> io::Result<i32> {
        let inet = |address: Option<&Address>| match address {
            Some(Address::Inet(address)) => Ok(Some(*address)),
            Some(Address::Unix(_)) => Err(io::Error::from(io::ErrorKind::Unsupported)),
            None => Ok(None),
        };
        let (from, peer) = (inet(from)?, inet(to)?);
        let any = |peer: SocketAddr| SocketAddr::new(own_ip(peer.ip()), 0);
        let mut address = from.or(peer.map(any)).ok_or(io::ErrorKind::InvalidInput)?;
        if address.port() == 0 {
            address.set_port(self.free_port());
        }
        let mut mailboxes = self.mailboxes.values();
        if mailboxes.any(|mailbox| mailbox.address == address) {
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        let number = self.new_number();
        let mailbox = Mailbox {
            address,
            peer,
            arriving: BTreeMap::new(),
            held: 0,
            last_arrival: Duration::ZERO,
            refused_at: None,
        };
        self.mailboxes.insert(number, mailbox);
        Ok(number)
    }

    /// Sends a datagram. Success says nothing of its delivery.
    pub(super) fn post(
        &mut self,
        number: i32,
        datagram: &Datagram<impl AsRef<[u8]>>,
    ) -> io::Result<()> {
        let error = |number| Err(io::Error::from_raw_os_error(number));
        let mailbox = self.mailbox(number)?;
        let connected = mailbox.peer.is_some();
        let mut source = mailbox.address;
        let Some(to) = datagram.peer.or(mailbox.peer) else {
            return error(libc::EDESTADDRREQ);
        };
        if source.ip().is_unspecified() {
            source.set_ip(datagram.local.unwrap_or(own_ip(to.ip())));
        }
        let bytes = datagram.bytes.as_ref();
        if bytes.len() > LENGTH_MAX {
            return error(libc::EMSGSIZE);
        }
        if self.chance(self.faults.loss) {
            return Ok(());
        }
        let copies = 1 + u32::from(self.chance(self.faults.duplicate));
        for _ in 0..copies {
            match self.mailbox_of(to, source) {
                Some(number) => self.deliver(number, to, source, bytes),
                None if connected => {
                    let learned = self.arrival();
                    self.mailbox(number)?.refused_at.get_or_insert(learned);
                    self.schedule_event(learned, EventTarget::Mailbox(number));
                }
                None => {}
            }
        }
        Ok(())
    }

    fn deliver(&mut self, number: i32, to: SocketAddr, source: SocketAddr, bytes: &[u8]) {
        let keeps_its_place = !self.chance(self.faults.reorder);
        let mut arrival = self.arrival();
        let (window, serial) = (self.faults.window, self.next_event);
        let Ok(mailbox) = self.mailbox(number) else {
            return;
        };
        // A full socket drops datagrams.
        if mailbox.held + bytes.len() > window {
            return;
        }
        mailbox.held += bytes.len();
        if keeps_its_place {
            mailbox.last_arrival = mailbox.last_arrival.max(arrival);
            arrival = mailbox.last_arrival;
        }
        let arrived = Datagram {
            bytes: bytes.to_vec(),
            peer: Some(source),
            local: mailbox.address.ip().is_unspecified().then_some(to.ip()),
        };
        mailbox.arriving.insert((arrival, serial), arrived);
        self.schedule_event(arrival, EventTarget::Mailbox(number));
    }

    /// Takes the next datagram that has arrived.
    pub(super) fn take_datagram(&mut self, number: i32) -> Option<Datagram<Vec<u8>>> {
        let now = self.now;
        let mailbox = self.mailboxes.get_mut(&number)?;
        let first = mailbox.arriving.first_entry();
        let datagram = first.filter(|first| first.key().0 <= now)?.remove();
        mailbox.held -= datagram.bytes.len();
        Some(datagram)
    }

    fn mailbox(&mut self, number: i32) -> io::Result<&mut Mailbox> {
        let mailbox = self.mailboxes.get_mut(&number);
        mailbox.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Fails, once, if the network has reported by now that the destination of an earlier datagram
    /// does not exist. Every operation on the socket checks this first.
    pub(super) fn refusal(&mut self, number: i32) -> io::Result<()> {
        let now = self.now;
        let known = self.mailbox(number)?.refused_at.take_if(|at| *at <= now);
        match known {
            Some(_) => Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)),
            None => Ok(()),
        }
    }

    /// The recipient of a datagram from `source` to `to`: a socket connected to `source`, else one
    /// that receives from any peer.
    fn mailbox_of(&self, to: SocketAddr, source: SocketAddr) -> Option<i32> {
        let is_there = |address: SocketAddr| {
            let any_ip = address.ip().is_unspecified() && address.is_ipv4() == to.is_ipv4();
            address.port() == to.port() && (any_ip || address.ip() == to.ip())
        };
        let there = || {
            let mailboxes = self.mailboxes.iter();
            mailboxes.filter(|(_, mailbox)| is_there(mailbox.address))
        };
        let connected = there().find(|(_, mailbox)| mailbox.peer == Some(source));
        let found = connected.or_else(|| there().find(|(_, mailbox)| mailbox.peer.is_none()));
        found.map(|(number, _)| *number)
    }
}

/// The default source address of datagrams to `to`: the loopback address.
fn own_ip(to: IpAddr) -> IpAddr {
    match to {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::DatagramSocket;
    use crate::select::{Either, either};
    use crate::sim::{Faults, runtime};
    use crate::{Settings, now, sleep};

    fn address(text: &str) -> Address {
        Address::Inet(text.parse().unwrap())
    }

    fn numbered(number: u8) -> Datagram<bytes::Bytes> {
        Datagram::new(bytes::Bytes::copy_from_slice(&[number]))
    }

    /// Which of a hundred datagrams arrive, in which order, and when the last one does, in
    /// microseconds.
    fn run(seed: u64, faults: Faults) -> (Vec<u8>, u128) {
        let mut runtime = runtime(seed, faults, Settings::default()).unwrap();
        let begin = now();
        runtime.block_on(async {
            let server = DatagramSocket::bind(&address("10.0.0.1:53")).unwrap();
            let client = DatagramSocket::connect(&address("10.0.0.1:53")).unwrap();
            for number in 0..100 {
                assert!(client.push(numbered(number)));
            }
            client.drained().await.unwrap();
            let (mut come, mut last) = (Vec::new(), begin);
            let silence = std::time::Duration::from_secs(10);
            while let Either::First(received) = either(server.recv(), sleep(silence)).await {
                come.push(received.unwrap().bytes[0]);
                last = now();
            }
            (come, (last - begin).as_micros())
        })
    }

    #[test]
    fn a_kind_network_keeps_all_and_their_order() {
        for seed in 0..10 {
            assert!(run(seed, Faults::default()).0.into_iter().eq(0..100));
        }
    }

    #[test]
    fn datagrams_are_lost_doubled_and_overtaken_by_the_seed() {
        let faults = Faults {
            loss: 100,
            duplicate: 100,
            reorder: 200,
            ..Faults::default()
        };
        assert_eq!(run(1, faults.clone()), run(1, faults.clone()));
        assert_ne!(run(1, faults.clone()), run(2, faults.clone()));
        let (come, _) = run(1, faults.clone());
        let count = |number| come.iter().filter(|other| **other == number).count();
        assert!((0..100).any(|number| count(number) == 0), "{come:?}");
        assert!((0..100).any(|number| count(number) == 2), "{come:?}");
        assert!(!come.is_sorted(), "{come:?}");
        let nothing_comes = Faults {
            loss: 1000,
            ..faults
        };
        assert!(run(1, nothing_comes).0.is_empty());
    }

    #[test]
    fn a_full_socket_drops() {
        let faults = Faults {
            window: 10,
            ..Faults::default()
        };
        assert!(run(3, faults).0.into_iter().eq(0..10));
    }

    #[test]
    fn addresses_are_as_on_a_real_network() {
        let mut runtime = runtime(5, Faults::default(), Settings::default()).unwrap();
        runtime.block_on(async {
            let server = DatagramSocket::bind(&address("0.0.0.0:53")).unwrap();
            let again = DatagramSocket::bind(&address("0.0.0.0:53")).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
            let client = DatagramSocket::connect(&address("10.0.0.7:53")).unwrap();
            client.push(numbered(1));
            client.drained().await.unwrap();
            let question = server.recv().await.unwrap();
            assert_eq!(question.local, Some([10, 0, 0, 7].into()));
            // A connected socket receives only from its peer.
            let other = DatagramSocket::bind(&address("10.0.0.8:99")).unwrap();
            other.push(question.with(bytes::Bytes::from_static(b"forged")));
            server.push(question.with(bytes::Bytes::from_static(b"answer")));
            assert_eq!((other.start_send(), server.start_send()), (0, 0));
            let answer = client.recv().await.unwrap();
            assert_eq!(&answer.bytes[..], b"answer");
            assert_eq!(answer.peer.map(Address::Inet), Some(address("10.0.0.7:53")));

            other.push(numbered(2));
            let nowhere = other.drained().await.unwrap_err();
            assert_eq!(nowhere.raw_os_error(), Some(libc::EDESTADDRREQ));
            let nobody = DatagramSocket::connect(&address("10.0.0.9:1")).unwrap();
            nobody.push(numbered(3));
            nobody.drained().await.unwrap();
            let refused = nobody.recv().await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        });
    }
}
