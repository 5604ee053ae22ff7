//! The fields with which lines of the error log identify a request, or a connection between
//! requests: nginx's fields, in its order.

use std::fmt::{self, Write};
use std::rc::Rc;
use std::sync::Arc;

use engine::net::Address;
use framework::address::append_address;
use logs::{ErrorLog, Level, Printable, Subject, Subsystem};
use proto::Span;
use proto::header::KnownField;

use crate::config::plan::Server;
use crate::connection::{Connection, ConnectionHandle};
use crate::handshake::Handshake;
use crate::request::Request;
use crate::request::client_head::ClientHead;
use crate::request::upstream_report::UpstreamReport;

impl Subject for Request {
    #[inline]
    fn admits(&self, level: Level) -> bool {
        self.error_log().admits(level, Subsystem::Http) || self.connection.is_debugged()
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        write(self.error_log());
    }

    fn is_debugged(&self) -> bool {
        self.connection.is_debugged()
    }

    fn subsystem(&self) -> Subsystem {
        Subsystem::Http
    }

    fn serial(&self) -> Option<u64> {
        let client = &self.connection.client;
        self.connection
            .internal_request()
            .is_none()
            .then_some(client.serial)
    }

    fn doing(&self) -> &str {
        self.activity.doing
    }

    fn describe(&self, out: &mut dyn Write) -> fmt::Result {
        if let Some(about) = self.connection.internal_request() {
            return write!(out, ", {}", Printable(about.as_bytes()));
        }
        client(out, self.peer())?;
        Fields::of(self).write(out, u32::MAX)
    }
}

/// A copy of the fields that identify a request, for log lines that are written while other code
/// borrows the request.
pub struct DetachedSubject {
    log: Arc<ErrorLog>,
    connection: ConnectionHandle,
    peer: Option<Box<Address>>,
    server: Arc<Server>,
    client: Rc<ClientHead>,
    subrequest: Option<Vec<u8>>,
    upstream: Option<Rc<dyn UpstreamReport>>,
}

impl DetachedSubject {
    /// Copies the fields of a request.
    pub fn of(request: &Request) -> DetachedSubject {
        DetachedSubject {
            log: Arc::clone(request.error_log()),
            connection: request.connection.clone(),
            peer: request.arrival.realip_address.clone(),
            server: Arc::clone(&request.server),
            client: Rc::clone(&request.client),
            subrequest: (!request.is_main()).then(|| request.uri.clone()),
            upstream: request.upstream.clone(),
        }
    }
}

impl Subject for DetachedSubject {
    fn admits(&self, level: Level) -> bool {
        self.log.admits(level, Subsystem::Http) || self.connection.is_debugged()
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        write(&self.log);
    }

    fn is_debugged(&self) -> bool {
        self.connection.is_debugged()
    }

    fn subsystem(&self) -> Subsystem {
        Subsystem::Http
    }

    fn serial(&self) -> Option<u64> {
        Some(self.connection.client.serial)
    }

    fn describe(&self, out: &mut dyn Write) -> fmt::Result {
        client(out, self.peer.as_deref().unwrap_or(self.connection.peer()))?;
        let fields = Fields {
            server: &self.server,
            client: &self.client,
            subrequest: self.subrequest.as_deref(),
            upstream: self.upstream.as_deref(),
        };
        fields.write(out, u32::MAX)
    }
}

impl Subject for Handshake {
    fn admits(&self, level: Level) -> bool {
        let log = &self.server.plan.error_log;
        log.admits(level, Subsystem::Http) || self.connection.is_debugged()
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        write(&self.server.plan.error_log);
    }

    fn is_debugged(&self) -> bool {
        self.connection.is_debugged()
    }

    fn subsystem(&self) -> Subsystem {
        Subsystem::Http
    }

    fn serial(&self) -> Option<u64> {
        Some(self.connection.client.serial)
    }

    fn describe(&self, out: &mut dyn Write) -> fmt::Result {
        client(out, self.connection.peer())?;
        write!(out, ", server: {}", Printable(&self.server.name))
    }
}

/// A request whose head has been read up to this field, so that a log line about the field contains
/// nothing that follows it.
pub struct HeadUpTo<'a>(pub &'a Request, pub Span);

impl Subject for HeadUpTo<'_> {
    fn admits(&self, level: Level) -> bool {
        self.0.admits(level)
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        self.0.with_log(write);
    }

    fn is_debugged(&self) -> bool {
        self.0.is_debugged()
    }

    fn subsystem(&self) -> Subsystem {
        self.0.subsystem()
    }

    fn serial(&self) -> Option<u64> {
        self.0.serial()
    }

    fn describe(&self, out: &mut dyn Write) -> fmt::Result {
        client(out, self.0.peer())?;
        Fields::of(self.0).write(out, self.1.start)
    }
}

impl Subject for Connection {
    fn admits(&self, level: Level) -> bool {
        let log = self.error_log();
        log.is_some_and(|log| log.admits(level, Subsystem::Http) || Connection::is_debugged(self))
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        self.error_log().iter().for_each(write);
    }

    fn is_debugged(&self) -> bool {
        Connection::is_debugged(self)
    }

    fn subsystem(&self) -> Subsystem {
        Subsystem::Http
    }

    fn serial(&self) -> Option<u64> {
        Some(self.client.serial)
    }

    fn describe(&self, out: &mut dyn Write) -> fmt::Result {
        client(out, self.peer())?;
        write!(out, ", server: {}", self.client.listening())
    }
}

/// Writes the field of the client's address.
fn client(out: &mut dyn Write, peer: &Address) -> fmt::Result {
    let mut address = Vec::new();
    append_address(peer, &mut address);
    write!(out, ", client: {}", Printable(&address))
}

/// The sources of the fields that nginx logs, except for the client.
struct Fields<'a> {
    server: &'a Server,
    client: &'a ClientHead,
    /// The path of a subrequest.
    subrequest: Option<&'a [u8]>,
    upstream: Option<&'a dyn UpstreamReport>,
}

impl Fields<'_> {
    fn of(request: &Request) -> Fields<'_> {
        Fields {
            server: &request.server,
            client: &request.client,
            subrequest: (!request.is_main()).then_some(&request.uri),
            upstream: request.upstream.as_deref(),
        }
    }

    /// Writes the fields in nginx's order. Fields of the client's head are written if the first
    /// `read` bytes of the head contain them.
    fn write(&self, out: &mut dyn Write, read: u32) -> fmt::Result {
        write!(out, ", server: {}", Printable(&self.server.name))?;
        let line = self.client.request_line();
        if !line.is_empty() {
            write!(out, ", request: \"{}\"", Printable(line))?;
        }
        if let Some(uri) = self.subrequest {
            write!(out, ", subrequest: \"{}\"", Printable(uri))?;
        }
        if let Some(upstream) = self.upstream {
            let mut written = Ok(());
            upstream.show(&mut |url| {
                if !url.is_empty() {
                    written = write!(out, ", upstream: \"{}\"", Printable(url));
                }
            });
            written?;
        }
        if let Some(host) = self.client.value_up_to(KnownField::Host, read) {
            write!(out, ", host: \"{}\"", Printable(host))?;
        }
        if let Some(referrer) = self.client.value_up_to(KnownField::Referer, read) {
            write!(out, ", referrer: \"{}\"", Printable(referrer))?;
        }
        Ok(())
    }
}
