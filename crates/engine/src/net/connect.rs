//! Connecting to another end.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use super::{Address, ConnectError, ConnectStep, SocketOptions, Stream};
use crate::worker::enter;

/// A stream that leads nowhere, for those who must have one: of a family's sockets, never
/// connected.
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

/// Connects to `address`, from the address `bind` if there is one, until `deadline`. Port 0 leaves
/// the port to the kernel.
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

/// Connects to `address` until `deadline` by a socket with these options. Sizes of buffers and
/// `SO_KEEPALIVE` that the kernel does not want are left out.
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
