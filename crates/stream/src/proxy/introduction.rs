//! `proxy_protocol`: the PROXY protocol header, which tells upstream servers about a session's
//! client.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_proxy_module.html#proxy_protocol>

use bytes::Bytes;
use engine::net::Address;
use proto::proxy_protocol::{self, Carried, Endpoints, Version};
use transport::Transport;
use transport::tls::told;

use crate::session::Session;

/// Sends the header to a newly connected peer, if enabled.
pub(super) fn push(session: &Session, version: Option<Version>, transport: &Transport) {
    let introduction = of_session(session, version);
    if introduction.is_empty() {
        return;
    }
    if let Some(attempt) = session.attempts.last() {
        attempt.sent.set(introduction.len() as u64);
    }
    transport.push(introduction);
    transport.start_send();
}

/// The header of a session; empty if disabled.
pub(super) fn of_session(session: &Session, version: Option<Version>) -> Bytes {
    let Some(version) = version else {
        return Bytes::new();
    };
    let ends = match (session.peer(), session.connection.local()) {
        (Address::Inet(source), Address::Inet(destination)) => Some(Endpoints {
            source: *source,
            destination: *destination,
        }),
        _ => None,
    };
    let carried = if session.connection.is_datagrams() {
        Carried::Datagrams
    } else {
        Carried::Streams
    };
    let (mut header, mut tlvs) = (Vec::new(), Vec::new());
    let tls = session.connection.transport().and_then(Transport::session);
    if let Some(tls) = tls {
        told::append(tls, session.connection.client.sni_name(), &mut tlvs);
    }
    proxy_protocol::append_with_checksum(version, ends, carried, &tlvs, &mut header);
    header.into()
}
