//! `proxy_pass`: a session is passed on to a peer of a group.
//!
//! Peers are tried until one can be connected to; then bytes ([`relay`]) or datagrams
//! ([`datagrams`]) are carried both ways.

pub(crate) mod attempts;
mod datagrams;
mod relay;
pub(crate) mod settings;
pub(crate) mod variables;

use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use engine::net::{Address, ConnectStep, DatagramSocket, SocketOptions};
use framework::address;
use framework::workers::{ConnectError, connect_datagrams, connect_with};
use logs::{Errno, Printable};
use transport::Transport;
use upstream::{Group, Selection};

use crate::connection::ClientEnd;
use crate::datagrams::{DatagramEnd, Listed};
use crate::session::{Session, Status};
use crate::subject::WithoutFields;
use attempts::Attempt;
use settings::{Proxy, Target};

/// Passes the session on; how it ends.
pub(crate) async fn serve(
    session: &mut Session,
    settings: &Proxy,
    listed: &mut Option<Listed>,
) -> Status {
    let group = match &settings.target {
        Target::Group(group) => Arc::clone(group),
        Target::Text(text) => {
            let mut address = Vec::new();
            text.append_to(session, &mut address);
            match group_at(session, &address) {
                Some(group) => group,
                None => return Status::InternalServerError,
            }
        }
    };
    let connection = Rc::clone(&session.connection);
    let status = match &connection.end {
        ClientEnd::Stream(client) => stream(session, settings, &group, client).await,
        ClientEnd::Datagrams(client) => exchange(session, settings, &group, client, listed).await,
    };
    note_end(session);
    status.unwrap_or_else(|status| status)
}

/// Carries a client's bytes to a peer, and the peer's back. The error is a session without a peer.
async fn stream(
    session: &mut Session,
    settings: &Proxy,
    group: &Arc<Group>,
    client: &Transport,
) -> Result<Status, Status> {
    let (upstream, mut selection) = connect(session, settings, group, try_stream).await?;
    // The peer has the session until the lease is dropped.
    let _lease = selection.answered();
    session.doing = " while proxying connection";
    relay::run(session, settings, client, &upstream).await;
    Ok(Status::Ok)
}

/// Carries a client's datagrams to a peer, and the peer's back. The error is a session without a
/// peer.
async fn exchange(
    session: &mut Session,
    settings: &Proxy,
    group: &Arc<Group>,
    client: &DatagramEnd,
    listed: &mut Option<Listed>,
) -> Result<Status, Status> {
    let connected = connect(session, settings, group, try_datagrams).await;
    let (upstream, mut selection) = match connected {
        Ok(connected) => connected,
        Err(status) => {
            session.take_first();
            return Err(status);
        }
    };
    session.doing = " while proxying connection";
    let ended = datagrams::run(session, settings, client, &upstream, listed).await;
    // Whether a peer receives is known only by what comes back.
    if !ended.has_peer_failed {
        selection.answered();
    } else if selection.failed(engine::now()).disabled {
        logs::error!(session, Warn, "upstream server temporarily disabled");
    }
    Ok(ended.status)
}

/// The group of the one server whose address variables have given.
fn group_at(session: &Session, text: &[u8]) -> Option<Arc<Group>> {
    let shown = Printable(text);
    let written = match address::parse(text) {
        Ok(written) => written,
        Err(why) => {
            logs::error!(session, Error, "{why} in upstream \"{shown}\"");
            return None;
        }
    };
    if written.port.is_none() && !written.unix {
        let name = Printable(written.name);
        logs::error!(session, Error, "no port in upstream \"{name}\"");
        return None;
    }
    let Some(address) = written.literal(0) else {
        let name = Printable(written.name);
        logs::error!(session, Error, "no resolver defined to resolve {name}");
        return None;
    };
    Some(Group::of_one(Bytes::copy_from_slice(text), address))
}

/// Tries the peers of a group until there is a connection to one, which `try_peer` makes: its inner
/// error is logged, and tells of the peer; the outer one ends the session.
async fn connect<T>(
    session: &mut Session,
    settings: &Proxy,
    group: &Arc<Group>,
    try_peer: impl AsyncFn(&mut Session, &Proxy, &Address) -> Result<Result<T, ()>, Status>,
) -> Result<(T, Selection), Status> {
    let client = session.connection.peer().ip();
    let tries = settings.next_upstream_tries;
    let mut selection = Selection::new(group, tries).by_client(client);
    let began = engine::now();
    session.doing = " while connecting to upstream";
    loop {
        let chosen = selection.next(engine::now());
        let chosen = chosen.map(|peer| (peer.address.clone(), peer.name.clone()));
        note_end(session);
        let Some((address, name)) = chosen else {
            session.attempts.push(Attempt::at(group.name.clone()));
            logs::error!(session, Error, "no live upstreams");
            return Err(Status::BadGateway);
        };
        session.attempts.push(Attempt::at(name));
        match try_peer(session, settings, &address).await? {
            Ok(connected) => {
                selection.connected();
                return Ok((connected, selection));
            }
            Err(()) => {
                if selection.failed(engine::now()).disabled {
                    logs::error!(session, Warn, "upstream server temporarily disabled");
                }
            }
        }
        if !may_try_next(settings, &selection, began) {
            note_end(session);
            return Err(Status::BadGateway);
        }
    }
}

/// Whether another peer is tried, as nginx's `ngx_stream_proxy_next_upstream` decides.
fn may_try_next(settings: &Proxy, selection: &Selection, began: Instant) -> bool {
    let timeout = settings.next_upstream_timeout;
    let elapsed = engine::now().saturating_duration_since(began);
    selection.tries_left() > 0 && settings.next_upstream && (timeout.is_zero() || elapsed < timeout)
}

/// Connects to one peer.
async fn try_stream(
    session: &mut Session,
    settings: &Proxy,
    address: &Address,
) -> Result<Result<Transport, ()>, Status> {
    let options = SocketOptions {
        keepalive: settings.socket_keepalive,
        ..SocketOptions::default()
    };
    let deadline = engine::now() + settings.connect_timeout;
    // As in nginx what a client sends meanwhile stays with the kernel, and so does its end.
    let stream = match connect_with(address, &options, Some(deadline)).await {
        Ok(stream) => stream,
        Err(error) => return not_connected(session, address, &error).map(Err),
    };
    let transport = Transport::from(stream);
    if session.server.tcp_nodelay && matches!(address, Address::Inet(_)) {
        transport.set_nodelay(true);
    }
    note_connected(session, "", &transport.local(), address);
    Ok(Ok(transport))
}

/// Connects a socket of datagrams to one peer, which is told nothing by that.
async fn try_datagrams(
    session: &mut Session,
    _: &Proxy,
    address: &Address,
) -> Result<Result<DatagramSocket, ()>, Status> {
    let socket = match connect_datagrams(address).await {
        Ok(socket) => socket,
        Err(error) => return not_connected(session, address, &error).map(Err),
    };
    if let Ok(local) = socket.local() {
        note_connected(session, "udp ", &local, address);
    }
    Ok(Ok(socket))
}

/// Logs why there is no connection. The error ends the session: no peer can do anything about a
/// lack of room or of descriptors.
fn not_connected(session: &Session, address: &Address, error: &ConnectError) -> Result<(), Status> {
    match error {
        ConnectError::Failed(failed) if failed.step == ConnectStep::Connect => {
            tell_failure(session, address, &failed.error);
            return Ok(());
        }
        ConnectError::NotEnough(shortage) if shortage.is_told => {
            logs::error!(session, Alert, "{shortage}");
        }
        ConnectError::NotEnough(_) => {}
        ConnectError::Failed(failed) => {
            let error = Errno(&failed.error);
            logs::error!(session, Alert, "socket() failed {error}");
        }
    }
    Err(Status::InternalServerError)
}

/// Notes and logs that there is a connection to the peer that is tried.
fn note_connected(session: &mut Session, udp: &str, local: &Address, address: &Address) {
    if let Some(attempt) = session.attempts.last_mut() {
        attempt.connect_time = Some(attempt.elapsed());
    }
    logs::error!(
        &WithoutFields(session),
        Info,
        "{udp}proxy {local} connected to {address}"
    );
}

/// Logs why there is no connection. As in nginx the failure of a call that ends at once names the
/// address, and is critical unless it tells of the peer alone.
fn tell_failure(session: &Session, address: &Address, error: &io::Error) {
    if error.kind() == ErrorKind::TimedOut {
        logs::error!(
            session,
            Error,
            "upstream timed out (110: Connection timed out)"
        );
        return;
    }
    let is_of_peer = matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::WouldBlock
    );
    let shown = Errno(error);
    match address {
        Address::Inet(_) if is_of_peer => {
            logs::error!(session, Error, "connect() failed {shown}");
        }
        _ if is_of_peer => {
            logs::error!(session, Error, "connect() to {address} failed {shown}");
        }
        _ => logs::error!(session, Crit, "connect() to {address} failed {shown}"),
    }
}

/// The try under way, if there is one, is over.
fn note_end(session: &mut Session) {
    if let Some(attempt) = session.attempts.last_mut()
        && attempt.session_time.is_none()
    {
        attempt.session_time = Some(attempt.elapsed());
    }
}
