//! A datagram with the addresses of both ends, as engines receive and send it.

use std::net::{IpAddr, SocketAddr};

/// A message that was received, or is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram<B> {
    /// The payload, which may be empty.
    pub bytes: B,
    /// The other end: from whom the datagram came, or to whom it goes. `None` for Unix sockets, and
    /// for the peer that the socket is connected to.
    pub peer: Option<SocketAddr>,
    /// The address of this end, where the socket is bound to all of a machine's: to which one it
    /// came, or from which one it leaves. `None` leaves that to the kernel.
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

    /// A datagram between the same ends: an answer goes back the way that the question came.
    #[must_use]
    pub fn with<C>(&self, bytes: C) -> Datagram<C> {
        Datagram {
            bytes,
            peer: self.peer,
            local: self.local,
        }
    }
}
