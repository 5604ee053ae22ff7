//! `proxy_pass`: proxies a session to a peer of a group.
//!
//! Peers are tried by the loop that all protocols share ([`asking`]) until one can be connected to;
//! then bytes ([`relay`]) or datagrams ([`datagrams`]) are forwarded in both directions.

mod asking;
pub(crate) mod attempts;
mod datagrams;
mod introduction;
pub(crate) mod mqtt;
pub(crate) mod probe;
mod relay;
mod securing;
pub(crate) mod settings;
mod sticking;
pub(crate) mod tls;
pub(crate) mod variables;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use ::upstream::{Answered, Lease};
use bytes::Bytes;
use engine::net::Address;
use framework::address::{self, WrittenAddress};
use logs::Printable;
use rules::upstream::literal;
use transport::Transport;

use crate::connection::ClientEnd;
use crate::datagram_end::DatagramEnd;
use crate::datagrams::Listed;
use crate::session::{Session, Status};
use crate::upstream::{Group, Groups};
use asking::{Asker, ByConnection, ByDatagrams, note_end};
use settings::{Proxy, Target};

/// Proxies the session; returns its final status.
pub(crate) async fn serve(
    session: &mut Session,
    settings: &Proxy,
    listed: &mut Option<Listed>,
) -> Status {
    (session.doing, session.is_passed_on) = ("", true);
    let group = match &settings.target {
        Target::Group(group) => Ok(Arc::clone(group)),
        Target::Text(text) => {
            let mut address = Vec::new();
            text.append_to(session, &mut address);
            group_at(session, settings, &address).await
        }
    };
    let connection = Rc::clone(&session.connection);
    let status = match (group, &connection.end) {
        (Err(status), _) => status,
        (Ok(group), ClientEnd::Stream(client)) => stream(session, settings, &group, client).await,
        (Ok(group), ClientEnd::Datagrams(client)) => {
            exchange(session, settings, &group, client, listed).await
        }
    };
    note_end(session);
    status
}

/// Forwards bytes between a client and a peer.
async fn stream(
    session: &mut Session,
    settings: &Proxy,
    group: &Group,
    client: &Transport,
) -> Status {
    if let Some(mqtt) = &settings.mqtt
        && let Err(status) = mqtt.prepare(session, client).await
    {
        return status;
    }
    session.doing = " while connecting to upstream";
    let secured = match securing::prepare(session, settings, group.name()).await {
        Ok(secured) => secured,
        Err(status) => return status,
    };
    let mut selection = group.select(session, settings.tries.next_upstream_tries);
    let asking = &ByConnection {
        settings,
        socket: settings.socket.evaluate(session),
        secured: secured.as_ref(),
        client_is_read: Cell::new(session.has_been_read()),
    };
    let asker = &mut Asker::of_group(session, group);
    let answered = match ::upstream::try_peers(asker, &mut None, &mut selection, asking).await {
        Ok(Ok(answered)) => answered,
        Ok(Err(unanswered)) => return Status::of(unanswered.status),
        Err(gone) => match gone {},
    };
    let sticking = asker.sticking.take();
    // The session occupies the peer until the lease is dropped.
    let Answered {
        connection,
        lease,
        admitted: _admitted,
        ..
    } = answered;
    let lease = RefCell::new(lease);
    note_began(session, &lease);
    session.doing = " while proxying connection";
    let rates = settings.rates(session);
    relay::run(session, (settings, rates), client, &connection, &lease).await;
    if let Some(sticking) = sticking {
        sticking.end();
    }
    Status::Ok
}

/// Forwards datagrams between a client and a peer.
async fn exchange(
    session: &mut Session,
    settings: &Proxy,
    group: &Group,
    client: &DatagramEnd,
    listed: &mut Option<Listed>,
) -> Status {
    let mut selection = group.select(session, settings.tries.next_upstream_tries);
    session.doing = " while connecting to upstream";
    let asking = ByDatagrams {
        settings,
        socket: settings.socket.evaluate(session),
        client,
        has_begun: Cell::new(false),
    };
    let asker = &mut Asker::of_group(session, group);
    let asked = ::upstream::try_peers(asker, listed, &mut selection, &asking).await;
    let sticking = asker.sticking.take();
    match asked {
        Ok(Ok(answered)) => {
            if let Some(sticking) = sticking {
                sticking.end();
            }
            note_first_byte(session, &RefCell::new(answered.lease));
            answered.answer
        }
        Ok(Err(unanswered)) => {
            if !asking.has_begun.get() {
                session.take_first();
            }
            Status::of(unanswered.status)
        }
        Err(gone) => match gone {},
    }
}

/// Reports the connect time to the balancer.
fn note_began(session: &Session, lease: &RefCell<Option<Lease>>) {
    if let Some(lease) = &mut *lease.borrow_mut()
        && let Some(time) = session.attempts.last().and_then(|last| last.connect_time)
    {
        lease.session_began(time);
    }
}

/// Reports the first byte time of a finished session over UDP to the balancer.
fn note_first_byte(session: &Session, lease: &RefCell<Option<Lease>>) {
    note_began(session, lease);
    if let Some(lease) = &mut *lease.borrow_mut()
        && let Some(attempt) = session.attempts.last()
        && let Some(time) = attempt.first_byte_time.get()
    {
        lease.first_byte_came(time);
    }
}

/// The group for a target with variables, or the final status of the session.
async fn group_at(session: &Session, settings: &Proxy, text: &[u8]) -> Result<Arc<Group>, Status> {
    let shown = Printable(text);
    let written = match address::parse(text) {
        Ok(written) => written,
        Err(why) => {
            logs::error!(session, Error, "{why} in upstream \"{shown}\"");
            return Err(Status::InternalServerError);
        }
    };
    if !written.unix {
        let groups = session.generation.generation.part::<Groups>();
        let groups = groups.unwrap_or_default();
        if let Some(group) = groups.named(written.name, written.port, 0) {
            return Ok(Arc::clone(group));
        }
    }
    if written.port.is_none() && !written.unix {
        let name = Printable(written.name);
        logs::error!(session, Error, "no port in upstream \"{name}\"");
        return Err(Status::InternalServerError);
    }
    match literal(text, &written) {
        Some(group) => Ok(group),
        None => look_up(session, settings, &written).await,
    }
}

/// The group of a name's addresses, or the final status of the session.
async fn look_up(
    session: &Session,
    settings: &Proxy,
    written: &WrittenAddress<'_>,
) -> Result<Arc<Group>, Status> {
    let name = written.name.strip_suffix(b".").unwrap_or(written.name);
    let shown = Printable(name);
    let resolving = &settings.resolving;
    if !resolving.is_possible() {
        logs::error!(session, Error, "no resolver defined to resolve {shown}");
        return Err(Status::InternalServerError);
    }
    match resolving.resolve(&session.generation, name).await {
        Ok(addresses) => {
            let port = written.port.unwrap_or_default();
            let addresses = addresses.into_iter();
            let addresses = addresses.map(|ip| Address::Inet(SocketAddr::new(ip, port)));
            Ok(Group::of_addresses(Bytes::copy_from_slice(name), addresses))
        }
        Err(error) => {
            logs::error!(session, Error, "{shown} could not be resolved ({error})");
            Err(Status::InternalServerError)
        }
    }
}
