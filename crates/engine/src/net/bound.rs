//! A bound socket that is not yet in the table of any thread.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::SocketKind;
use super::listen::carries;
use crate::engine::Socket;

/// A listening socket or a bound datagram socket, on its way from the process that bound it, or
/// from a simulated network, to the threads that use it. The engine alone interprets the socket
/// inside.
#[derive(Debug)]
pub struct BoundSocket {
    socket: Socket,
    /// The kind of traffic of a simulated socket. Unused for a kernel socket, whose kind is
    /// queried.
    simulated: SocketKind,
}

impl BoundSocket {
    /// Wraps a socket of a simulated network.
    pub(crate) fn simulated(socket: Socket, carries: SocketKind) -> BoundSocket {
        BoundSocket {
            socket,
            simulated: carries,
        }
    }

    /// The socket, for the engine of the thread that uses it.
    pub(crate) fn into_socket(self) -> Socket {
        self.socket
    }

    /// The kernel's descriptor of the socket, unless it is simulated.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.descriptor()
    }

    /// The kind of traffic of the socket.
    #[must_use]
    pub fn carries(&self) -> SocketKind {
        match &self.socket {
            // A descriptor that is not a socket is rejected later, by the thread that uses it.
            Socket::Descriptor(descriptor) => carries(descriptor).unwrap_or_default(),
            Socket::Simulated(_) => self.simulated,
            Socket::Carried { .. } => SocketKind::Streams,
        }
    }

    /// Duplicates the handle, for another thread.
    ///
    /// # Errors
    /// Those of `dup()`, such as `EMFILE`.
    pub fn try_clone(&self) -> io::Result<BoundSocket> {
        let socket = match &self.socket {
            Socket::Descriptor(descriptor) => Socket::Descriptor(descriptor.try_clone()?),
            Socket::Simulated(number) => Socket::Simulated(*number),
            // This variant is a connection, never a bound socket.
            Socket::Carried { .. } => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(BoundSocket {
            socket,
            simulated: self.simulated,
        })
    }
}

/// Wraps a kernel socket.
impl From<OwnedFd> for BoundSocket {
    fn from(descriptor: OwnedFd) -> BoundSocket {
        BoundSocket {
            socket: Socket::Descriptor(descriptor),
            simulated: SocketKind::default(),
        }
    }
}
