//! What a stream socket is to be before it connects, and why there is no connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// What a socket is to be before it connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// The address that it connects from; port 0 leaves the port to the kernel.
    pub from: Option<SocketAddr>,
    /// That address may be one that this machine does not have (`IP_TRANSPARENT`).
    pub transparent: bool,
    /// The kernel asks now and then whether the other end is still there (`SO_KEEPALIVE`).
    pub keepalive: bool,
    /// The size of the kernel's buffer for what comes (`SO_RCVBUF`).
    pub receive_buffer: Option<u32>,
    /// The size of the kernel's buffer for what leaves (`SO_SNDBUF`).
    pub send_buffer: Option<u32>,
}

impl SocketOptions {
    /// A socket that connects from this address, if there is one.
    #[must_use]
    pub fn from(from: Option<SocketAddr>) -> SocketOptions {
        SocketOptions {
            from,
            ..SocketOptions::default()
        }
    }
}

/// What could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectStep {
    /// There is no socket.
    Socket,
    /// Connections from addresses of others are not allowed.
    Transparent,
    /// The local address cannot be had.
    Bind,
    /// There is no connection.
    Connect,
}

/// Why there is no connection.
#[derive(Debug)]
pub struct ConnectError {
    /// The call that failed.
    pub step: ConnectStep,
    /// The system's answer of the connect error.
    pub error: io::Error,
}

impl ConnectError {
    pub(crate) fn at(step: ConnectStep) -> impl Fn(io::Error) -> ConnectError {
        move |error| ConnectError { step, error }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for ConnectError {}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> io::Error {
        error.error
    }
}
