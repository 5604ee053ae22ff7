//! Connecting to another end.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use super::{Address, Stream};
use crate::worker::enter;

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
    /// What failed.
    pub step: ConnectStep,
    /// How.
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

/// A stream that leads nowhere, for those who must have one: of a family's sockets, never connected.
///
/// # Errors
/// When there is no descriptor left.
///
/// # Panics
/// When the thread has no runtime.
pub fn unconnected() -> io::Result<Stream> {
    enter(|worker| {
        let address = Address::Unix(Default::default());
        let socket = worker.engine.socket(&address, &SocketOptions::default());
        let key = worker.insert_stream(socket.map_err(|failed| failed.error)?, None, false);
        Ok(Stream::new(key))
    })
}

/// Connects to `address`, from the address `bind` if there is one, until `deadline`. Port 0 leaves the
/// port to the kernel.
///
/// # Errors
/// Those of `socket()`, `bind()` and `connect()`; `TimedOut` at the deadline.
///
/// # Panics
/// When the thread has no runtime.
pub async fn connect(
    address: &Address,
    bind: Option<SocketAddr>,
    deadline: Option<Instant>,
) -> io::Result<Stream> {
    let options = SocketOptions::from(bind);
    Ok(connect_with(address, &options, deadline).await?)
}

/// Connects to `address` until `deadline` by a socket with these options. Sizes of buffers and `SO_KEEPALIVE` that the kernel
/// does not want are left out.
///
/// # Errors
/// Those of `socket()`, `setsockopt()`, `bind()` and `connect()`; `TimedOut` at the deadline.
///
/// # Panics
/// When the thread has no runtime.
pub async fn connect_with(
    address: &Address,
    options: &SocketOptions,
    deadline: Option<Instant>,
) -> Result<Stream, ConnectError> {
    let stream = enter(|worker| {
        let socket = worker.engine.socket(address, options)?;
        let peer = match address {
            Address::Inet(address) => Some(*address),
            Address::Unix(_) => None,
        };
        let key = worker.insert_stream(socket, peer, false);
        worker.connect(key, address.clone());
        Ok(Stream::new(key))
    })?;
    poll_fn(|context| enter(|worker| worker.poll_connect(stream.key(), deadline, context.waker())))
        .await
        .map_err(ConnectError::at(ConnectStep::Connect))?;
    Ok(stream)
}
