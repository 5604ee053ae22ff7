//! The kernel's view of interfaces, addresses, neighbours and routes, by rtnetlink(7).
//!
//! Messages are parsed with all lengths checked; malformed ones are skipped.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netstack::wire::ethernet::MacAddress;
use rustix::io::Errno;
use rustix::net::Protocol;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Maximum length of an answer, in bytes; the kernel splits lists into parts of up to 32 KB.
const ANSWER_MAX: usize = 64 * 1024;

mod kind {
    pub(super) const ERROR: u16 = 2;
    pub(super) const DONE: u16 = 3;
    pub(super) const NEW_LINK: u16 = 16;
    pub(super) const DELETE_LINK: u16 = 17;
    pub(super) const GET_LINK: u16 = 18;
    pub(super) const NEW_ADDRESS: u16 = 20;
    pub(super) const DELETE_ADDRESS: u16 = 21;
    pub(super) const GET_ADDRESS: u16 = 22;
    pub(super) const NEW_ROUTE: u16 = 24;
    pub(super) const DELETE_ROUTE: u16 = 25;
    pub(super) const GET_ROUTE: u16 = 26;
    pub(super) const NEW_NEIGHBOUR: u16 = 28;
    pub(super) const DELETE_NEIGHBOUR: u16 = 29;
    pub(super) const GET_NEIGHBOUR: u16 = 30;
}

/// `NLM_F_REQUEST`: the message is a request.
const REQUEST: u16 = 1;
/// `NLM_F_DUMP`: the request is for all entries.
const LIST: u16 = 0x300;

/// Multicast groups of changes: links, neighbours, addresses and routes of IPv4.
const GROUPS: u32 = 1 | 1 << 2 | 1 << 4 | 1 << 6;

/// Header lengths of a message, a link, an address, a route and a neighbour, in bytes.
const HEADER: usize = 16;
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;
const NEIGHBOUR_HEADER: usize = 12;

/// `IFF_UP`: the interface is up.
const UP: u32 = 1;

/// States in which a neighbour's hardware address is usable (`NUD_VALID`).
const NEIGHBOUR_IS_VALID: u16 = 0x80 | 0x40 | 0x02 | 0x10 | 0x08 | 0x04;

/// The main routing table (`RT_TABLE_MAIN`), and the type of a unicast route.
const TABLE_MAIN: u8 = 254;
const ROUTE_UNICAST: u8 = 1;

/// The properties of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The kernel's index of the interface.
    pub index: u32,
    /// The name of the interface.
    pub name: String,
    /// The hardware address of the interface.
    pub mac: MacAddress,
    /// The MTU, in bytes.
    pub mtu: u32,
    /// Whether the interface is up.
    pub is_up: bool,
    /// Number of receive queues.
    pub queues: u32,
    /// The IPv4 addresses of the interface.
    pub addresses: Vec<Ipv4Addr>,
}

/// A change, or an entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// An interface exists; its addresses are not included.
    Link(Interface),
    /// An interface was removed.
    LinkGone(u32),
    /// An address of an interface.
    Address(u32, Ipv4Addr),
    /// An address was removed from an interface.
    AddressGone(u32, Ipv4Addr),
    /// A neighbour on an interface, and its hardware address if known.
    Neighbour(u32, Ipv4Addr, Option<MacAddress>),
    /// A route to a network.
    Route(Route),
    /// A route was removed.
    RouteGone(Route),
}

/// A route to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) network: Ipv4Addr,
    pub(super) prefix_length: u8,
    /// `None` if the network's hosts are reached directly.
    pub(super) gateway: Option<Ipv4Addr>,
    pub(super) interface: u32,
    /// Of several routes, the one with the lowest value counts.
    pub(super) priority: u32,
}

/// A netlink socket for requests, and for change notifications if it listens.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    /// Opens a socket for requests.
    ///
    /// # Errors
    /// Those of the system calls, and the error in the kernel's answer.
    pub(super) fn new() -> io::Result<Netlink> {
        Netlink::open(None, 0)
    }

    /// Opens a socket for requests to another netlink protocol.
    ///
    /// # Errors
    /// Those of the system calls, and the error in the kernel's answer.
    pub(super) fn of(protocol: Protocol) -> io::Result<Netlink> {
        Netlink::open(Some(protocol), 0)
    }

    /// Opens a socket that also receives change notifications.
    ///
    /// # Errors
    /// Those of the system calls, and the error in the kernel's answer.
    pub(super) fn listening() -> io::Result<Netlink> {
        Netlink::open(None, GROUPS)
    }

    /// Opens a socket; the default protocol is rtnetlink.
    fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Netlink> {
        let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(family, SocketType::RAW, flags, protocol)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Netlink(socket))
    }

    /// The interface with this name.
    ///
    /// # Errors
    /// `NotFound` if there is none; also those of the system calls.
    pub(super) fn interface(&self, name: &str) -> io::Result<Interface> {
        let mut found = None;
        self.list(kind::GET_LINK, |news| {
            if let News::Link(link) = news
                && link.name == name
            {
                found = Some(link);
            }
        })?;
        let mut found = found.ok_or(io::ErrorKind::NotFound)?;
        self.list(kind::GET_ADDRESS, |news| {
            if let News::Address(index, address) = news
                && index == found.index
            {
                found.addresses.push(address);
            }
        })?;
        Ok(found)
    }

    /// Lists all neighbours and routes.
    ///
    /// # Errors
    /// Those of the system calls, and the error in the kernel's answer.
    pub(super) fn list_ways(&self, mut take: impl FnMut(News)) -> io::Result<()> {
        self.list(kind::GET_NEIGHBOUR, &mut take)?;
        self.list(kind::GET_ROUTE, &mut take)
    }

    /// Reads the changes since the last call. False if notifications were lost because the buffer
    /// was full: everything must be listed again then.
    pub(super) fn changes(&self, mut take: impl FnMut(News)) -> bool {
        let mut answer = vec![0; ANSWER_MAX];
        loop {
            match rustix::net::recv(&self.0, &mut answer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => {
                    for message in Messages(answer.get(..length).unwrap_or_default()) {
                        message.news().into_iter().for_each(&mut take);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => return false,
                Err(_) => return true,
            }
        }
    }

    /// Requests a list, and passes its entries to `take`.
    fn list(&self, what: u16, mut take: impl FnMut(News)) -> io::Result<()> {
        let mut header = [0; 16];
        if what != kind::GET_LINK {
            write(&mut header, 0, &[libc::AF_INET as u8]);
        }
        self.ask(what, &header, |kind, body| {
            Message { kind, body }
                .news()
                .into_iter()
                .for_each(&mut take);
        })
    }

    /// Requests a list with this header. Passes the type and body of each entry.
    ///
    /// # Errors
    /// Those of the system calls, and the error in the kernel's answer.
    pub(super) fn ask(
        &self,
        what: u16,
        header: &[u8],
        mut take: impl FnMut(u16, &[u8]),
    ) -> io::Result<()> {
        let mut question = vec![0_u8; HEADER];
        question.extend_from_slice(header);
        let length = u32::try_from(question.len()).unwrap_or(u32::MAX);
        write(&mut question, 0, &length.to_ne_bytes());
        write(&mut question, 4, &what.to_ne_bytes());
        write(&mut question, 6, &(REQUEST | LIST).to_ne_bytes());
        rustix::net::send(&self.0, &question, SendFlags::empty())?;
        let mut answer = vec![0; ANSWER_MAX];
        loop {
            let received = rustix::net::recv(&self.0, &mut answer[..], RecvFlags::empty());
            let length = match received {
                Ok((length, _)) => length,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for message in Messages(answer.get(..length).unwrap_or_default()) {
                match message.kind {
                    kind::DONE => return Ok(()),
                    kind::ERROR => return Err(message.error()),
                    kind => take(kind, message.body),
                }
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn write(into: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = into.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// The messages in one answer.
struct Messages<'a>(&'a [u8]);

struct Message<'a> {
    kind: u16,
    body: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let length = word(self.0, 0)? as usize;
        let kind = half(self.0, 4)?;
        let body = self.0.get(HEADER..length)?;
        let next = length.next_multiple_of(4).min(self.0.len());
        self.0 = self.0.get(next..)?;
        Some(Message { kind, body })
    }
}

impl Message<'_> {
    /// The error in the kernel's answer.
    fn error(&self) -> io::Error {
        let number = word(self.body, 0).unwrap_or_default().cast_signed();
        io::Error::from_raw_os_error(number.saturating_neg())
    }

    /// The change that the message reports; `None` if it is malformed or of no interest here.
    fn news(&self) -> Option<News> {
        match self.kind {
            kind::NEW_LINK => self.link().map(News::Link),
            kind::DELETE_LINK => word(self.body, 4).map(News::LinkGone),
            kind::NEW_ADDRESS => self.address().map(|(of, ip)| News::Address(of, ip)),
            kind::DELETE_ADDRESS => self.address().map(|(of, ip)| News::AddressGone(of, ip)),
            kind::NEW_NEIGHBOUR | kind::DELETE_NEIGHBOUR => self.neighbour(),
            kind::NEW_ROUTE => self.route().map(News::Route),
            kind::DELETE_ROUTE => self.route().map(News::RouteGone),
            _ => None,
        }
    }

    fn link(&self) -> Option<Interface> {
        let mut interface = Interface {
            index: word(self.body, 4)?,
            name: String::new(),
            mac: MacAddress::default(),
            mtu: 0,
            is_up: word(self.body, 8)? & UP != 0,
            queues: 1,
            addresses: Vec::new(),
        };
        for (kind, value) in self.attributes(LINK_HEADER) {
            match kind {
                1 => interface.mac = MacAddress(*value.first_chunk()?),
                3 => interface.name = text(value),
                4 => interface.mtu = word(value, 0)?,
                32 => interface.queues = word(value, 0)?,
                _ => {}
            }
        }
        Some(interface)
    }

    fn address(&self) -> Option<(u32, Ipv4Addr)> {
        if *self.body.first()? != libc::AF_INET as u8 {
            return None;
        }
        let index = word(self.body, 4)?;
        let mut attributes = self.attributes(ADDRESS_HEADER);
        // The interface's own address; the other attribute is the peer's address on a
        // point-to-point link.
        let own = attributes.find(|(kind, _)| *kind == 2)?.1;
        Some((index, ip(own)?))
    }

    fn neighbour(&self) -> Option<News> {
        if *self.body.first()? != libc::AF_INET as u8 {
            return None;
        }
        let index = word(self.body, 4)?;
        let is_valid = half(self.body, 8)? & NEIGHBOUR_IS_VALID != 0;
        let (mut host, mut card) = (None, None);
        for (kind, value) in self.attributes(NEIGHBOUR_HEADER) {
            match kind {
                1 => host = ip(value),
                2 => card = value.first_chunk().copied().map(MacAddress),
                _ => {}
            }
        }
        let is_known = is_valid && self.kind == kind::NEW_NEIGHBOUR;
        Some(News::Neighbour(index, host?, card.filter(|_| is_known)))
    }

    fn route(&self) -> Option<Route> {
        let header = self.body.first_chunk::<ROUTE_HEADER>()?;
        let is_usual = header[4] == TABLE_MAIN && header[7] == ROUTE_UNICAST;
        if header[0] != libc::AF_INET as u8 || !is_usual {
            return None;
        }
        let mut route = Route {
            network: Ipv4Addr::UNSPECIFIED,
            prefix_length: header[1].min(32),
            gateway: None,
            interface: 0,
            priority: 0,
        };
        for (kind, value) in self.attributes(ROUTE_HEADER) {
            match kind {
                1 => route.network = ip(value)?,
                4 => route.interface = word(value, 0)?,
                5 => route.gateway = Some(ip(value)?),
                6 => route.priority = word(value, 0)?,
                _ => {}
            }
        }
        Some(route)
    }

    fn attributes(&self, from: usize) -> Attributes<'_> {
        attributes_of(self.body, from)
    }
}

/// The attributes after the first `from` bytes of a message or of another attribute.
pub(super) fn attributes_of(body: &[u8], from: usize) -> Attributes<'_> {
    Attributes(body.get(from..).unwrap_or_default())
}

/// A null-terminated text.
pub(super) fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// The attributes after the header of a message: types and values.
pub(super) struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let length = usize::from(half(self.0, 0)?);
        let kind = half(self.0, 2)? & 0x3fff;
        let value = self.0.get(4..length)?;
        let next = length.next_multiple_of(4).min(self.0.len());
        self.0 = self.0.get(next..)?;
        Some((kind, value))
    }
}

/// The 16-bit number at an offset.
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

/// The 32-bit number at an offset.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

fn ip(bytes: &[u8]) -> Option<Ipv4Addr> {
    bytes.first_chunk::<4>().copied().map(Ipv4Addr::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_known_everywhere() {
        let netlink = Netlink::new().unwrap();
        let interface = netlink.interface("lo").unwrap();
        assert_eq!(interface.name, "lo");
        assert!(interface.index > 0);
        assert!(interface.mtu >= 1500, "{interface:?}");
        let missing = netlink.interface("nothing-of-this").unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let mut count = 0;
        netlink.list_ways(|_| count += 1).unwrap();
        assert!(Netlink::listening().unwrap().changes(|_| {}));
    }

    #[test]
    fn messages_that_are_cut_off_say_nothing() {
        let mut neighbour = vec![0_u8; HEADER + NEIGHBOUR_HEADER + 8 + 12];
        let length = neighbour.len() as u32;
        write(&mut neighbour, 0, &length.to_ne_bytes());
        write(&mut neighbour, 4, &kind::NEW_NEIGHBOUR.to_ne_bytes());
        write(&mut neighbour, HEADER, &[libc::AF_INET as u8]);
        write(&mut neighbour, HEADER + 4, &7_u32.to_ne_bytes());
        write(&mut neighbour, HEADER + 8, &2_u16.to_ne_bytes());
        let attributes = HEADER + NEIGHBOUR_HEADER;
        write(&mut neighbour, attributes, &[8, 0, 1, 0, 10, 1, 2, 3]);
        write(&mut neighbour, attributes + 8, &[10, 0, 2, 0]);
        write(&mut neighbour, attributes + 12, &[2, 1, 1, 1, 1, 9]);
        let news = |bytes: &[u8]| {
            let mut messages = Messages(bytes);
            messages.next().and_then(|message| message.news())
        };
        let card = MacAddress([2, 1, 1, 1, 1, 9]);
        let host = Ipv4Addr::new(10, 1, 2, 3);
        let expected = News::Neighbour(7, host, Some(card));
        assert_eq!(news(&neighbour), Some(expected));
        for length in 0..neighbour.len() {
            assert_eq!(news(&neighbour[..length]), None, "{length}");
        }
        // A neighbour whose resolution failed has no hardware address, whatever it had before.
        write(&mut neighbour, HEADER + 8, &0x20_u16.to_ne_bytes());
        assert_eq!(news(&neighbour), Some(News::Neighbour(7, host, None)));
    }
}
