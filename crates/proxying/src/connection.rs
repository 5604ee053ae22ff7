//! A connection to an upstream server: what is asked over it, and where it goes when that has been
//! answered.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::upstream::pool::{self, Connection};
use ::upstream::{Admitted, Lease};
use bytes::Bytes;
use engine::Buffer;
use engine::net::{Address, SocketOptions};
use framework::generation::GenerationView;
use http::request::Request;
use http_client::StreamHandle;
use proto::proxy_protocol::{self, Endpoints, Version};
use transport::Transport;

use super::upload::RestOfBody;
use crate::connect_target::ConnectTarget;
use crate::upstream::{AtEnd, Group};

/// A connection to a peer, or a request's part of one.
pub struct UpstreamConnection {
    link: ConnectionShare,
    /// How it ended while the request was still being sent.
    pub early_end: Option<io::Result<()>>,
    /// Whether the request has been given to it to its last byte.
    pub asked: bool,
    /// The peer, as long as it has the request; once it has answered.
    pub lease: Option<Lease>,
    /// The request is under way, as far as its group counts that.
    pub admitted: Option<Admitted>,
    /// What is learned of the session as soon as the last byte of the answer has come.
    pub at_end: Option<Box<AtEnd>>,
    /// What is left of the request's body, which goes on its way to the peer beside the answer.
    pub(super) upload: Option<Box<RestOfBody>>,
    /// Where it goes once its answer has come whole.
    home: PoolContext,
}

/// A request's share of a connection.
enum ConnectionShare {
    /// A connection that serves only this request.
    Whole(Box<Connection>),
    /// A stream of one that is shared (HTTP/2).
    Shared(StreamHandle),
}

/// Where connections are kept that have served one request and may serve another.
#[derive(Clone)]
pub struct PoolContext {
    pub(crate) local: Rc<GenerationView>,
    pub(crate) group: Arc<Group>,
}

impl UpstreamConnection {
    /// A request may be sent over it.
    pub fn over(
        connection: Box<Connection>,
        send_timeout: Duration,
        home: PoolContext,
    ) -> UpstreamConnection {
        connection.transport.set_send_timeout(send_timeout);
        UpstreamConnection::of(ConnectionShare::Whole(connection), home)
    }

    /// A request may be sent on it.
    pub(super) fn on(stream: StreamHandle, home: PoolContext) -> UpstreamConnection {
        UpstreamConnection::of(ConnectionShare::Shared(stream), home)
    }

    fn of(link: ConnectionShare, home: PoolContext) -> UpstreamConnection {
        UpstreamConnection {
            link,
            early_end: None,
            asked: false,
            lease: None,
            admitted: None,
            at_end: None,
            upload: None,
            home,
        }
    }

    /// Its bytes; of one that is shared they are its task's to read and to send.
    pub fn stream(&self) -> &Transport {
        match &self.link {
            ConnectionShare::Whole(connection) => &connection.transport,
            ConnectionShare::Shared(stream) => stream.transport(),
        }
    }

    /// The request's stream, where it is shared.
    pub fn shared(&mut self) -> Option<&mut StreamHandle> {
        match &mut self.link {
            ConnectionShare::Whole(_) => None,
            ConnectionShare::Shared(stream) => Some(stream),
        }
    }

    /// The transport of one that is the request's alone.
    pub(super) fn into_transport(self) -> Option<Transport> {
        match self.link {
            ConnectionShare::Whole(connection) => Some(connection.transport),
            ConnectionShare::Shared(_) => None,
        }
    }

    /// Receives what comes of the body of an answer; empty at the end of the connection, or of the
    /// stream.
    pub(super) fn poll_recv(
        &mut self,
        deadline: Option<Instant>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Buffer>> {
        match &mut self.link {
            ConnectionShare::Whole(connection) => connection.transport.poll_recv(deadline, context),
            ConnectionShare::Shared(stream) => stream.poll_recv(deadline, context),
        }
    }

    /// The answer has come whole. It is kept for another request if the peer goes on, and has
    /// neither more to be told nor said too much.
    pub fn done(mut self, may_go_on: bool) {
        self.at_end = None;
        self.lease = None;
        self.admitted = None;
        self.upload = None;
        let ConnectionShare::Whole(connection) = self.link else {
            return; // a stream ends by being dropped
        };
        let is_kept = may_go_on && self.asked && self.early_end.is_none();
        let keeps = self.home.group.shared.keepalive.is_some();
        if !is_kept || connection.transport.backlog() > 0 || !keeps {
            return connection.transport.announce_end();
        }
        pool::give_back(&self.home.local, &self.home.group.shared, connection);
    }
}

/// What a connection begins with in this version of the PROXY protocol; `ends` are those of the
/// client's own connection.
pub fn introduction(version: Option<Version>, ends: Option<Endpoints>) -> Bytes {
    let mut header = Vec::new();
    if let Some(version) = version {
        proxy_protocol::append(version, ends, &mut header);
    }
    header.into()
}

/// The ends of the client's connection; `None` where it has no addresses.
pub fn ends_of(request: &Request) -> Option<Endpoints> {
    match (request.peer(), request.connection.local()) {
        (Address::Inet(source), Address::Inet(destination)) => Some(Endpoints {
            source: *source,
            destination: *destination,
        }),
        _ => None,
    }
}

/// What two requests must agree on to use the same connection: whatever it was made by beside the
/// peer's address. `place` is that of the scope that asks, `protocol` what is spoken where that is
/// not HTTP.
pub fn terms(
    place: &Bytes,
    protocol: &'static [u8],
    group: &Group,
    reach: &ConnectTarget,
) -> Bytes {
    let place = match group.shared.keepalive {
        None if !reach.is_shared => return Bytes::new(),
        Some(keepalive) if !keepalive.local => Bytes::new(),
        _ => place.clone(),
    };
    let is_plain = reach.secured.is_none() && reach.introduction.is_empty();
    if is_plain && reach.socket.options == SocketOptions::default() {
        // What most say is there already.
        if protocol.is_empty() {
            return place;
        }
        if place.is_empty() {
            return Bytes::from_static(protocol);
        }
    }
    let mut terms = place.to_vec();
    terms.extend_from_slice(protocol);
    if !reach.introduction.is_empty() {
        terms.extend_from_slice(b" for ");
        terms.extend_from_slice(&reach.introduction);
    }
    if reach.socket.options != SocketOptions::default() {
        terms.extend_from_slice(format!(" {:?}", reach.socket.options).as_bytes());
    }
    if let Some(secured) = &reach.secured {
        terms.extend_from_slice(b" by ");
        secured.append_terms(&mut terms);
    }
    terms.into()
}
