//! Socket options for outgoing connections, and the error of a failed connect.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// The options of a socket that is to be connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// The local address to connect from; with port 0 the kernel chooses the port.
    pub from: Option<SocketAddr>,
    /// Allows a local address that this machine does not have (`IP_TRANSPARENT`).
    pub transparent: bool,
    /// The kernel sends keepalive probes (`SO_KEEPALIVE`).
    pub keepalive: bool,
    /// Size of the kernel's receive buffer (`SO_RCVBUF`), in bytes.
    pub receive_buffer: Option<u32>,
    /// Size of the kernel's send buffer (`SO_SNDBUF`), in bytes.
    pub send_buffer: Option<u32>,
}

impl SocketOptions {
    /// Options with only the local address set, if it is given.
    #[must_use]
    pub fn from(from: Option<SocketAddr>) -> SocketOptions {
        SocketOptions {
            from,
            ..SocketOptions::default()
        }
    }
}

/// The step of a connect that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectStep {
    /// Creating the socket.
    Socket,
    /// Setting `IP_TRANSPARENT`.
    Transparent,
    /// Binding to the local address.
    Bind,
    /// Connecting to the peer.
    Connect,
}

/// Why a connect failed.
#[derive(Debug)]
pub struct ConnectError {
    /// The step that failed.
    pub step: ConnectStep,
    /// The error of the system call.
    pub error: io::Error,
}

impl ConnectError {
    /// Adds the failed step to an error.
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
