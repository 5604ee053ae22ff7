//! Connecting to another end.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use super::{Address, Stream};
use crate::worker::enter;

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
    let stream = enter(|worker| {
        let socket = worker.engine.socket(address, bind)?;
        let peer = match address {
            Address::Inet(address) => Some(*address),
            Address::Unix(_) => None,
        };
        let key = worker.insert_stream(socket, peer, false);
        worker.connect(key, address.clone());
        io::Result::Ok(Stream::new(key))
    })?;
    poll_fn(|context| enter(|worker| worker.poll_connect(stream.key(), deadline, context.waker())))
        .await?;
    Ok(stream)
}
