//! A connection to a peer, within a time. Where a Unix socket has no room for one more that it has not accepted yet, it is waited
//! for, first come first served: see [`backlog`].

use std::io;
use std::time::{Duration, Instant};

use ::upstream::backlog::{self, Turn};
use ::upstream::pool::Connection;
use engine::net::{Address, ConnectStep, SocketOptions, Stream};
use engine::select::{Either, either};
use framework::workers::{self, ConnectError};

/// How a peer is connected to.
pub(super) struct Way<'a> {
    pub(super) address: &'a Address,
    pub(super) options: &'a SocketOptions,
    pub(super) deadline: Instant,
    /// The whole time until then.
    pub(super) timeout: Duration,
    /// How many requests the peer has still to answer, this one included.
    pub(super) unheard: usize,
    /// Another peer is asked rather than waiting for this one.
    pub(super) goes_elsewhere: bool,
}

/// What one is connected by.
pub(super) enum Connected {
    /// One that has been kept while this one waited.
    Kept(Box<Connection>),
    Anew(Stream),
}

/// Why there is no connection.
pub(super) enum NotConnected {
    Failed(ConnectError),
    /// The peer had too much to do.
    Busy(io::Error),
}

impl From<ConnectError> for NotConnected {
    fn from(error: ConnectError) -> NotConnected {
        NotConnected::Failed(error)
    }
}

/// Connects. One that waits for room takes a connection that has been kept meanwhile, where there is one.
pub(super) async fn connect(
    way: &Way<'_>,
    kept: impl FnMut() -> Option<Box<Connection>>,
) -> Result<Connected, NotConnected> {
    if !backlog::is_full(way.address) {
        match anew(way).await {
            Err(error) if is_full(way.address, &error) => {}
            connected => return Ok(connected?),
        }
    }
    let busy = |code| NotConnected::Busy(io::Error::from_raw_os_error(code));
    let Address::Unix(path) = way.address else {
        return Err(busy(libc::EAGAIN));
    };
    if way.goes_elsewhere {
        return Err(busy(libc::EAGAIN));
    }
    let now = engine::now();
    let Some(turn) = Turn::wait(path, now, way.timeout, way.unheard) else {
        return Err(busy(libc::EAGAIN));
    };
    let waiting = wait(way, turn, kept);
    match either(waiting, engine::sleep_until(way.deadline)).await {
        Either::First(connected) => Ok(connected?),
        Either::Second(()) => Err(busy(libc::ETIMEDOUT)),
    }
}

/// Tries until there is room, whenever it is the first.
async fn wait(
    way: &Way<'_>,
    mut turn: Turn,
    mut kept: impl FnMut() -> Option<Box<Connection>>,
) -> Result<Connected, ConnectError> {
    loop {
        turn.is_first().await;
        if let Some(connection) = kept() {
            turn.connected();
            return Ok(Connected::Kept(connection));
        }
        match anew(way).await {
            Err(error) if is_full(way.address, &error) => turn.pause().await,
            Ok(connected) => {
                turn.connected();
                return Ok(connected);
            }
            Err(error) => return Err(error),
        }
    }
}

async fn anew(way: &Way<'_>) -> Result<Connected, ConnectError> {
    let connecting = workers::connect_with(way.address, way.options, Some(way.deadline));
    connecting.await.map(Connected::Anew)
}

/// Whether a socket has as many connections as it may have that it has not accepted.
fn is_full(address: &Address, error: &ConnectError) -> bool {
    let ConnectError::Failed(failed) = error else {
        return false;
    };
    matches!(address, Address::Unix(_))
        && failed.step == ConnectStep::Connect
        && failed.error.raw_os_error() == Some(libc::EAGAIN)
}
