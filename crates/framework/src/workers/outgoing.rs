//! Outgoing connections of a thread, which count towards `worker_connections` like the connections
//! of clients.
//!
//! Code on a thread that serves clients must connect through these functions, not through the
//! functions of the engine. A thread without a worker has no limit.

use std::fmt;
use std::time::Instant;

use engine::net::{Address, DatagramSocket, SocketOptions, Stream};

use super::{TooManyConnections, worker};

/// Why a connection could not be established.
#[derive(Debug)]
pub enum ConnectError {
    /// All places of the thread are taken.
    TooManyConnections(TooManyConnections),
    /// A system call that opens the connection failed.
    Failed(engine::net::ConnectError),
}

impl From<TooManyConnections> for ConnectError {
    fn from(shortage: TooManyConnections) -> ConnectError {
        ConnectError::TooManyConnections(shortage)
    }
}

impl From<engine::net::ConnectError> for ConnectError {
    fn from(failed: engine::net::ConnectError) -> ConnectError {
        ConnectError::Failed(failed)
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::TooManyConnections(shortage) => shortage.fmt(f),
            ConnectError::Failed(failed) => failed.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {}

/// Connects to `address` before `deadline` with a socket with these options; see
/// [`engine::net::connect_with`].
///
/// # Errors
/// `TooManyConnections` at once if no place is free; else the errors of the engine.
pub async fn connect_with(
    address: &Address,
    options: &SocketOptions,
    deadline: Option<Instant>,
) -> Result<Stream, ConnectError> {
    take_place().await?;
    Ok(engine::net::connect_with(address, options, deadline).await?)
}

/// Connects to `address` before `deadline`.
///
/// # Errors
/// As [`connect_with`].
pub async fn connect(address: &Address, deadline: Instant) -> Result<Stream, ConnectError> {
    connect_with(address, &SocketOptions::default(), Some(deadline)).await
}

/// Creates a datagram socket with these options, connected to `address`.
///
/// # Errors
/// As [`connect_with`].
pub async fn connect_datagrams(
    address: &Address,
    options: &SocketOptions,
) -> Result<DatagramSocket, ConnectError> {
    take_place().await?;
    Ok(DatagramSocket::connect_with(address, options)?)
}

async fn take_place() -> Result<(), TooManyConnections> {
    match worker::of_thread() {
        Some(worker) => worker.has_room_for_outgoing().await,
        None => Ok(()),
    }
}
