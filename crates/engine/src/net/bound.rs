//! A socket that has an address and belongs to no thread yet.

use std::io;
use std::os::fd::OwnedFd;

use super::Carries;
use super::listen::carries;
use crate::engine::Socket;

/// A socket that listens, or that takes datagrams, on its way to the threads that use it: from the
/// process that bound it, or from a simulated network. What it is made of is between it and the
/// engine.
#[derive(Debug)]
pub struct BoundSocket(Socket);

impl BoundSocket {
    pub(crate) fn new(socket: Socket) -> BoundSocket {
        BoundSocket(socket)
    }

    pub(crate) fn into_socket(self) -> Socket {
        self.0
    }

    /// What the socket carries.
    #[must_use]
    pub fn carries(&self) -> Carries {
        match &self.0 {
            // A descriptor that is no socket is refused where the socket is used.
            Socket::Descriptor(descriptor) => carries(descriptor).unwrap_or_default(),
            // The simulated network has no sockets of datagrams that are handed on.
            Socket::Simulated(_) | Socket::Carried { .. } => Carries::Streams,
        }
    }

    /// Another handle on the same socket, for another thread.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn try_clone(&self) -> io::Result<BoundSocket> {
        Ok(BoundSocket(match &self.0 {
            Socket::Descriptor(descriptor) => Socket::Descriptor(descriptor.try_clone()?),
            Socket::Simulated(number) => Socket::Simulated(*number),
            // A connection, which never is on its way here.
            Socket::Carried { .. } => return Err(io::ErrorKind::Unsupported.into()),
        }))
    }
}

/// One of the kernel's.
impl From<OwnedFd> for BoundSocket {
    fn from(descriptor: OwnedFd) -> BoundSocket {
        BoundSocket(Socket::Descriptor(descriptor))
    }
}
