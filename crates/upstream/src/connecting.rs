//! Connects to a peer within a timeout. If the listen backlog of a Unix socket is full, requests
//! wait for it, first come first served: see [`backlog`].

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Instant;

use engine::net::{Address, ConnectStep, Stream};
use engine::select::{Either, either};
use framework::workers::{self, ConnectError, TooManyConnections};
use logs::{Errno, Printable, Subject};

use crate::backlog::{self, BacklogSlot};
use crate::caller::{AttemptError, AttemptFailure, Caller, ConnectionRoom, RetryPolicy, Socket};
use crate::pool::Connection;
use crate::try_peers::{CONNECTING, unless_gone};

/// The address, socket options and time limit of connecting to a peer.
pub struct ConnectOptions<'a> {
    /// The address of the peer.
    pub address: &'a Address,
    /// The settings of the socket.
    pub socket: &'a Socket,
    /// The time by which the connection must be established.
    pub deadline: Instant,
    /// The timeouts, and whether a disconnect of the client ends the attempt.
    pub tries: &'a RetryPolicy,
    /// How to proceed if the peer's listen backlog is full.
    pub room: ConnectionRoom,
}

/// The outcome of connecting.
pub enum Connected {
    /// A connection from the pool, which became idle while this request waited.
    Kept(Box<Connection>),
    /// A new connection.
    Anew(Stream),
}

/// Why there is no connection.
enum NotConnected {
    Failed(ConnectError),
    /// The peer was too busy.
    Busy(io::Error),
}

impl From<ConnectError> for NotConnected {
    fn from(error: ConnectError) -> NotConnected {
        NotConnected::Failed(error)
    }
}

/// Connects to a peer by the deadline, unless the client leaves meanwhile. While the request waits
/// for the backlog, it takes an idle connection of the pool as soon as `kept` returns one.
///
/// # Errors
/// If there is no connection. The cause has been logged.
pub async fn connect<C: Caller>(
    caller: &mut C,
    client: &mut C::Client,
    way: &ConnectOptions<'_>,
    kept: impl FnMut() -> Option<Box<Connection>>,
) -> Result<Connected, AttemptError<C::Gone>> {
    let ConnectOptions {
        address, socket, ..
    } = way;
    let connecting = reach(way, kept);
    let ignores_client = way.tries.ignore_client_abort;
    let connected = unless_gone(caller, client, ignores_client, CONNECTING, connecting);
    match connected.await? {
        Ok(connected) => Ok(connected),
        Err(NotConnected::Busy(error)) => Err(AttemptError::Failed(AttemptFailure {
            is_busy: true,
            ..failure(caller, address, &error)
        })),
        Err(NotConnected::Failed(error)) => Err(not_connected(caller, address, socket, error)),
    }
}

/// Logs the error of a connection, and converts it: the peer has failed, or no socket could be
/// opened, which is not the peer's fault.
pub fn not_connected<C: Caller>(
    caller: &C,
    address: &Address,
    socket: &Socket,
    error: ConnectError,
) -> AttemptError<C::Gone> {
    match error_of_peer(caller, socket, error) {
        Some(error) => AttemptError::Failed(failure(caller, address, &error)),
        None => AttemptError::Refused(500),
    }
}

/// The failure of connecting to a peer. As in nginx, an immediate error of `connect()` is logged
/// with the address, and as critical unless it only concerns the peer: a Unix socket without a
/// listening server is common, a missing socket is a mistake.
fn failure<C: Caller>(caller: &C, address: &Address, error: &io::Error) -> AttemptFailure {
    let is_of_peer = matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::WouldBlock
    );
    let (shown, mut doing) = (Errno(error), CONNECTING);
    if error.kind() == ErrorKind::TimedOut {
        caller.connecting_timed_out();
        doing = caller.connecting();
    } else if !is_of_peer {
        logs::error!(
            caller,
            Crit,
            "connect() to {address} failed {shown} {CONNECTING}"
        );
    } else if matches!(address, Address::Unix(_)) {
        logs::error!(
            caller,
            Error,
            "connect() to {address} failed {shown} {CONNECTING}"
        );
    } else {
        doing = caller.connecting();
        logs::error!(caller, Error, "connect() failed {shown} {doing}");
    }
    AttemptFailure::of_connection(error, doing)
}

/// Logs that `worker_connections` leaves no room for a connection to a peer, or for another request
/// on a shared connection.
pub fn note_shortage<S: Subject>(subject: &S, shortage: TooManyConnections) {
    if shortage.should_log {
        logs::error!(subject, Alert, "{shortage} {CONNECTING}");
    }
}

/// The error of `connect()`; `None` if no socket could be opened or `worker_connections` leaves no
/// room for one, which is logged and is not a failure of the peer.
fn error_of_peer<S: Subject>(
    subject: &S,
    socket: &Socket,
    failed: ConnectError,
) -> Option<io::Error> {
    let failed = match failed {
        ConnectError::Failed(failed) => failed,
        ConnectError::TooManyConnections(shortage) => {
            note_shortage(subject, shortage);
            return None;
        }
    };
    let error = Errno(&failed.error);
    match failed.step {
        ConnectStep::Connect => return Some(failed.error),
        ConnectStep::Socket => {
            logs::error!(subject, Alert, "socket() failed {error} {CONNECTING}");
        }
        ConnectStep::Transparent => {
            let option = match socket.options.from {
                Some(SocketAddr::V6(_)) => "IPV6_TRANSPARENT",
                _ => "IP_TRANSPARENT",
            };
            logs::error!(
                subject,
                Alert,
                "setsockopt({option}) failed {error} {CONNECTING}"
            );
        }
        ConnectStep::Bind => {
            let name = Printable(&socket.name);
            logs::error!(subject, Crit, "bind({name}) failed {error} {CONNECTING}");
        }
    }
    None
}

/// Connects, or waits in the queue of the peer's socket if the backlog is full.
async fn reach(
    way: &ConnectOptions<'_>,
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
    if way.room.goes_elsewhere {
        return Err(busy(libc::EAGAIN));
    }
    let now = engine::now();
    let Some(turn) = BacklogSlot::wait(path, now, way.tries.connect_timeout, way.room.unheard)
    else {
        return Err(busy(libc::EAGAIN));
    };
    let waiting = wait(way, turn, kept);
    match either(waiting, engine::sleep_until(way.deadline)).await {
        // The timeout of a `connect()` may end just before this one.
        Either::First(Err(error)) if has_timed_out(&error) => Err(busy(libc::ETIMEDOUT)),
        Either::First(connected) => Ok(connected?),
        Either::Second(()) => Err(busy(libc::ETIMEDOUT)),
    }
}

/// Waits in the queue, and retries `connect()` while it is the first.
async fn wait(
    way: &ConnectOptions<'_>,
    mut turn: BacklogSlot,
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

/// Makes a new connection.
async fn anew(way: &ConnectOptions<'_>) -> Result<Connected, ConnectError> {
    let connecting = workers::connect_with(way.address, &way.socket.options, Some(way.deadline));
    connecting.await.map(Connected::Anew)
}

fn has_timed_out(error: &ConnectError) -> bool {
    match error {
        ConnectError::Failed(failed) => failed.error.kind() == ErrorKind::TimedOut,
        ConnectError::TooManyConnections(_) => false,
    }
}

/// Whether `connect()` failed because the listen backlog of a Unix socket is full.
fn is_full(address: &Address, error: &ConnectError) -> bool {
    let ConnectError::Failed(failed) = error else {
        return false;
    };
    matches!(address, Address::Unix(_))
        && failed.step == ConnectStep::Connect
        && failed.error.raw_os_error() == Some(libc::EAGAIN)
}
