//! A connection to an upstream server: what is asked over it, and where it goes when that has been answered.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ::upstream::pool::{self, Connection};
use ::upstream::{Admitted, Lease};
use bytes::Bytes;
use engine::Buffer;
use engine::net::{Address, SocketOptions};
use framework::generation::Local;
use http::request::Request;
use proto::proxy_protocol::{self, Ends, Version};
use transport::Transport;

use super::tries::Reach;
use crate::upstream::{AtEnd, Group};

/// A connection to a peer.
pub(crate) struct UpstreamConnection {
    connection: Box<Connection>,
    /// What it sent, or how it ended, while the request was still being sent.
    pub(crate) early: Option<io::Result<Buffer>>,
    /// Whether the request has been given to it to its last byte.
    pub(crate) asked: bool,
    /// The peer, as long as it has the request; once it has answered.
    pub(crate) lease: Option<Lease>,
    /// The request is under way, as far as its group counts that.
    pub(crate) admitted: Option<Admitted>,
    /// What is learned of the session as soon as the last byte of the answer has come.
    pub(crate) at_end: Option<Box<AtEnd>>,
    /// Where it goes once its answer has come whole.
    home: Home,
}

/// Where connections are kept that have served one request and may serve another.
#[derive(Clone)]
pub(crate) struct Home {
    pub(crate) local: Rc<Local>,
    pub(crate) group: Arc<Group>,
}

impl UpstreamConnection {
    /// A request may be sent over it.
    pub(crate) fn over(
        connection: Box<Connection>,
        send_timeout: Duration,
        home: Home,
    ) -> UpstreamConnection {
        connection.transport.set_send_timeout(send_timeout);
        UpstreamConnection {
            connection,
            early: None,
            asked: false,
            lease: None,
            admitted: None,
            at_end: None,
            home,
        }
    }

    /// Its bytes.
    pub(crate) fn stream(&self) -> &Transport {
        &self.connection.transport
    }

    /// The answer has come whole. It is kept for another request if the peer goes on, and has neither more to be told nor said too
    /// much.
    pub(crate) fn done(mut self, may_go_on: bool) {
        self.at_end = None;
        self.lease = None;
        self.admitted = None;
        let is_kept = may_go_on && self.asked && self.early.is_none();
        if !is_kept || self.stream().backlog() > 0 || self.home.group.shared.keepalive.is_none() {
            return self.connection.transport.announce_end();
        }
        pool::give_back(&self.home.local, &self.home.group.shared, self.connection);
    }
}

/// What a connection begins with in this version of the PROXY protocol; `ends` are those of the client's own connection.
pub(crate) fn introduction(version: Option<Version>, ends: Option<Ends>) -> Bytes {
    let mut header = Vec::new();
    if let Some(version) = version {
        proxy_protocol::append(version, ends, &mut header);
    }
    header.into()
}

/// The ends of the client's connection; `None` where it has no addresses.
pub(crate) fn ends_of(request: &Request) -> Option<Ends> {
    match (request.peer(), request.connection.local()) {
        (Address::Inet(source), Address::Inet(destination)) => Some(Ends {
            source: *source,
            destination: *destination,
        }),
        _ => None,
    }
}

/// What two requests must agree on to use the same connection: whatever it was made by beside the peer's address.
/// `place` is that of the scope that asks, `protocol` what is spoken where that is not HTTP.
pub(crate) fn terms(place: &Bytes, protocol: &[u8], group: &Group, reach: &Reach) -> Bytes {
    let Some(keepalive) = group.shared.keepalive else {
        return Bytes::new();
    };
    let place = match keepalive.local {
        true => place.clone(),
        false => Bytes::new(),
    };
    let is_plain = protocol.is_empty() && reach.secured.is_none() && reach.introduction.is_empty();
    if is_plain && reach.socket.options == SocketOptions::default() {
        return place;
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
