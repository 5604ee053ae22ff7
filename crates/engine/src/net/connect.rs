//! Connecting streams.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use super::{Address, ConnectError, ConnectStep, SocketOptions, Stream};
use crate::worker::enter;

/// A stream that is never connected, for callers that need a placeholder.
///
/// # Errors
/// If the process is out of descriptors.
///
/// # Panics
/// If the thread has no runtime.
pub fn unconnected() -> io::Result<Stream> {
    enter(|worker| {
        let address = Address::Unix(Default::default());
        let socket = worker.engine.socket(&address, &SocketOptions::default());
        let key = worker.insert_stream(socket.map_err(|failed| failed.error)?, None, false);
        Ok(Stream::new(key))
    })
}

/// Connects to `address` before `deadline`, from the local address `bind` if it is given. With port
/// 0 the kernel chooses the local port.
///
/// # Errors
/// Those of `socket()`, `bind()` and `connect()`; `TimedOut` at the deadline.
///
/// # Panics
/// If the thread has no runtime.
pub async fn connect(
    address: &Address,
    bind: Option<SocketAddr>,
    deadline: Option<Instant>,
) -> io::Result<Stream> {
    let options = SocketOptions::from(bind);
    Ok(connect_with(address, &options, deadline).await?)
}

/// Connects to `address` before `deadline`, with a socket that has these options. Buffer sizes and
/// `SO_KEEPALIVE` are skipped if the kernel rejects them.
///
/// # Errors
/// Those of `socket()`, `setsockopt()`, `bind()` and `connect()`; `TimedOut` at the deadline.
///
/// # Panics
/// If the thread has no runtime.
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
