//! A datagram with its addresses, as engines receive and send it.

use std::net::{IpAddr, SocketAddr};

/// A datagram that was received or is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram<B> {
    /// The payload, which may be empty.
    pub bytes: B,
    /// The other end: from whom the datagram came, or to whom it goes. `None` for Unix sockets, and
    /// for the peer that the socket is connected to.
    pub peer: Option<SocketAddr>,
    /// The local address, if the socket is bound to a wildcard address: the address that the
    /// datagram was sent to, or leaves from. `None` lets the kernel choose.
    pub local: Option<IpAddr>,
}

impl<B> Datagram<B> {
    /// A datagram to the address that the socket is connected to.
    #[must_use]
    pub fn new(bytes: B) -> Datagram<B> {
        Datagram {
            bytes,
            peer: None,
            local: None,
        }
    }

    /// A datagram with the same two addresses, such as the answer to a received one.
    #[must_use]
    pub fn with<C>(&self, bytes: C) -> Datagram<C> {
        Datagram {
            bytes,
            peer: self.peer,
            local: self.local,
        }
    }
}
