//! A connection to an upstream server that serves a request, and its return to the pool.

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
use crate::upstream::{Group, LearnOnDrop};

/// A connection to a peer for one request: a whole connection, or a stream of a shared one.
pub struct UpstreamConnection {
    /// The connection, or the stream of a shared one.
    link: ConnectionShare,
    /// How the connection ended while the request was still being sent.
    pub early_end: Option<io::Result<()>>,
    /// Whether the whole request has been queued on the connection.
    pub asked: bool,
    /// The lease of the peer, once the peer has responded.
    pub lease: Option<Lease>,
    /// The place of the request among those that `concurrency_limit` admits to the peer.
    pub admitted: Option<Admitted>,
    /// Learns the sticky session on drop, once the last byte of the response has been received.
    pub at_end: Option<Box<LearnOnDrop>>,
    /// The rest of the request's body, which is sent while the response is read.
    pub(super) upload: Option<Box<RestOfBody>>,
    /// The pool to which the connection returns after a complete response.
    home: PoolContext,
}

/// A request's share of a connection.
enum ConnectionShare {
    /// A connection that serves only this request.
    Whole(Box<Connection>),
    /// A stream of a shared connection (HTTP/2).
    Shared(StreamHandle),
}

/// The pool of idle connections of one group on this thread.
#[derive(Clone)]
pub struct PoolContext {
    pub(crate) local: Rc<GenerationView>,
    pub(crate) group: Arc<Group>,
}

impl UpstreamConnection {
    /// Wraps a connection that serves only this request.
    pub fn over(
        connection: Box<Connection>,
        send_timeout: Duration,
        home: PoolContext,
    ) -> UpstreamConnection {
        connection.transport.set_send_timeout(send_timeout);
        UpstreamConnection::of(ConnectionShare::Whole(connection), home)
    }

    /// Wraps a stream of a shared connection.
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

    /// The transport. Only the connection's task may read from or write to that of a shared
    /// connection.
    pub fn stream(&self) -> &Transport {
        match &self.link {
            ConnectionShare::Whole(connection) => &connection.transport,
            ConnectionShare::Shared(stream) => stream.transport(),
        }
    }

    /// The request's stream, if the connection is shared.
    pub fn shared(&mut self) -> Option<&mut StreamHandle> {
        match &mut self.link {
            ConnectionShare::Whole(_) => None,
            ConnectionShare::Shared(stream) => Some(stream),
        }
    }

    /// The transport, unless the connection is shared.
    pub(super) fn into_transport(self) -> Option<Transport> {
        match self.link {
            ConnectionShare::Whole(connection) => Some(connection.transport),
            ConnectionShare::Shared(_) => None,
        }
    }

    /// Receives a part of the response body; empty at the end of the connection or stream.
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

    /// Ends the use of the connection after a complete response. The connection returns to the pool
    /// if the peer keeps it alive, the whole request was sent, and no excess bytes were received.
    pub fn done(mut self, may_reuse: bool) {
        self.at_end = None;
        self.lease = None;
        self.admitted = None;
        self.upload = None;
        let ConnectionShare::Whole(connection) = self.link else {
            return; // a stream ends by being dropped
        };
        let is_kept = may_reuse && self.asked && self.early_end.is_none();
        let keeps = self.home.group.shared.keepalive.is_some();
        if !is_kept || connection.transport.backlog() > 0 || !keeps {
            return connection.transport.announce_end();
        }
        pool::give_back(&self.home.local, &self.home.group.shared, connection);
    }
}

/// The PROXY protocol header with which a new connection begins; empty if `version` is `None`.
/// `ends` are the addresses of the client's connection.
pub fn introduction(version: Option<Version>, ends: Option<Endpoints>) -> Bytes {
    let mut header = Vec::new();
    if let Some(version) = version {
        proxy_protocol::append(version, ends, &mut header);
    }
    header.into()
}

/// The addresses of the client's connection; `None` unless both are IP addresses.
pub fn ends_of(request: &Request) -> Option<Endpoints> {
    match (request.peer(), request.connection.local()) {
        (Address::Inet(source), Address::Inet(destination)) => Some(Endpoints {
            source: *source,
            destination: *destination,
        }),
        _ => None,
    }
}

/// The terms on which requests may share or reuse a connection: all parameters with which the
/// connection was made, except for the peer's address. `place` identifies the scope of the request;
/// `protocol` is empty for HTTP.
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
        // The usual case: the terms need no new allocation.
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
