//! A socket that has an address and belongs to no thread yet.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::SocketKind;
use super::listen::carries;
use crate::engine::Socket;

/// A socket that listens, or that takes datagrams, on its way to the threads that use it: from the
/// process that bound it, or from a simulated network. What it is made of is between it and the
/// engine.
#[derive(Debug)]
pub struct BoundSocket {
    socket: Socket,
    /// What a simulated one carries; the kernel is asked about its own.
    simulated: SocketKind,
}

impl BoundSocket {
    /// One of a simulated network.
    pub(crate) fn simulated(socket: Socket, carries: SocketKind) -> BoundSocket {
        BoundSocket {
            socket,
            simulated: carries,
        }
    }

    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    /// The kernel's descriptor of the socket, unless it is simulated.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.descriptor()
    }

    /// What the socket carries.
    #[must_use]
    pub fn carries(&self) -> SocketKind {
        match &self.socket {
            // A descriptor that is no socket is refused where the socket is used.
            Socket::Descriptor(descriptor) => carries(descriptor).unwrap_or_default(),
            Socket::Simulated(_) => self.simulated,
            Socket::Carried { .. } => SocketKind::Streams,
        }
    }

    /// Another handle on the same socket, for another thread.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn try_clone(&self) -> io::Result<BoundSocket> {
        let socket = match &self.socket {
            Socket::Descriptor(descriptor) => Socket::Descriptor(descriptor.try_clone()?),
            Socket::Simulated(number) => Socket::Simulated(*number),
            // A connection, which never is on its way here.
            Socket::Carried { .. } => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(BoundSocket {
            socket,
            simulated: self.simulated,
        })
    }
}

/// One of the kernel's.
impl From<OwnedFd> for BoundSocket {
    fn from(descriptor: OwnedFd) -> BoundSocket {
        BoundSocket {
            socket: Socket::Descriptor(descriptor),
            simulated: SocketKind::default(),
        }
    }
}
