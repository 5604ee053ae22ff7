//! The PROXY protocol of clients: `listen … proxy_protocol`, and `set_real_ip_from` with the
//! addresses of the header.
//!
//! Over UDP, which nginx does not support for this option, either the first datagram of a session
//! begins with a header, as `proxy_protocol` of another proxy sends it, or each datagram does
//! (`datagrams.rs`).

use std::rc::Rc;
use std::time::Duration;

use conf::{Contexts, Declared, Setting, parse};
use engine::Buffer;
use engine::net::Address;
use logs::Printable;
use rules::realip::ByProxy;
use transport::proxy_protocol::{LENGTH_MAX, NoHeader, receive, take};

use crate::connection::ClientEnd;
use crate::incoming::IncomingSession;
use crate::session::{Session, Status};

pub(crate) static PROXY_PROTOCOL_TIMEOUT: Setting<Duration> =
    Setting::new("proxy_protocol_timeout", &["time"], parse::milliseconds)
        .contexts(Contexts::STREAM.or(Contexts::STREAM_SERVER))
        .default("30s")
        .manual("How long a header of the PROXY protocol may take to come.");

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[&PROXY_PROTOCOL_TIMEOUT];

/// Reads the header at the start of a session and stores its values; returns the bytes after it.
///
/// # Errors
/// The final status of a session without a valid header.
pub(crate) async fn read(session: &mut Session) -> Result<Buffer, Status> {
    let connection = Rc::clone(&session.connection);
    let transport = match &connection.end {
        ClientEnd::Stream(transport) => transport,
        ClientEnd::Datagrams(_) => return read_datagram(session).map(|()| Buffer::empty()),
    };
    let deadline = engine::now() + session.server.proxy_protocol_timeout;
    let incoming = IncomingSession::new(session, transport);
    let received = receive(&incoming, LENGTH_MAX, deadline).await;
    received.map_err(|missing| match missing {
        NoHeader::Missing => Status::Ok,
        NoHeader::Broken => Status::BadRequest,
    })
}

/// Parses the header of the session's first datagram and stores its values. Removes the header from
/// the datagram unless `datagrams.rs` has already done so.
///
/// # Errors
/// The final status of a session without a valid header.
fn read_datagram(session: &mut Session) -> Result<(), Status> {
    let connection = Rc::clone(&session.connection);
    let ClientEnd::Datagrams(end) = &connection.end else {
        return Ok(());
    };
    let client = &connection.client;
    let mut first = Buffer::empty();
    let taken = match end.header.get() {
        Some(header) => take(client, header),
        None => {
            first = end.take().unwrap_or_default();
            take(client, &first)
        }
    };
    let length = match taken {
        Ok(length) => length,
        Err(error) => {
            session.doing = " while reading PROXY protocol";
            logs::error!(session, Error, "{}", Printable(&error.log_text()));
            return Err(Status::BadRequest);
        }
    };
    if end.header.get().is_none() {
        end.take_off_header(&mut first, length);
        end.put_back(vec![first]);
    }
    Ok(())
}

/// The access of `set_real_ip_from` to a session.
pub(crate) struct SessionRealIp;

impl ByProxy<Session> for SessionRealIp {
    fn connection_peer(session: &Session) -> &Address {
        session.connection.peer()
    }

    fn field<'a>(_: &'a Session, _: &[u8]) -> Option<&'a [u8]> {
        None
    }

    fn is_realip(session: &Session) -> bool {
        session.realip_address.is_some()
    }

    fn tell(session: &mut Session, peer: Address) {
        session.realip_address = Some(peer);
    }
}
