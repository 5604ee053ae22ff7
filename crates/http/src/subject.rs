//! What lines of the error log say of a request, and of a connection between requests: nginx's fields, in its order.

use std::fmt::{self, Write};
use std::sync::Arc;

use engine::net::Address;
use framework::address::append_address;
use logs::{ErrorLog, Level, Printable, Subject, Subsystem};
use proto::Span;
use proto::header::Known;

use crate::connection::Connection;
use crate::handshake::Handshake;
use crate::request::Request;

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
        Some(self.connection.client.serial)
    }

    fn doing(&self) -> &str {
        self.activity.doing
    }

    fn describe(&self, out: &mut dyn Write) -> fmt::Result {
        client(out, self.peer())?;
        fields(out, self, u32::MAX)
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

/// A request whose head has been read up to this field: a line about the field knows nothing of what comes behind it.
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
        fields(out, self.0, self.1.start)
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

fn client(out: &mut dyn Write, peer: &Address) -> fmt::Result {
    let mut address = Vec::new();
    append_address(peer, &mut address);
    write!(out, ", client: {}", Printable(&address))
}

/// nginx's fields, in its order, with what is known of them from so many bytes of the client's head.
fn fields(out: &mut dyn Write, request: &Request, read: u32) -> fmt::Result {
    write!(out, ", server: {}", Printable(&request.server.name))?;
    let line = request.request_line();
    if !line.is_empty() {
        write!(out, ", request: \"{}\"", Printable(line))?;
    }
    if !request.is_main() {
        write!(out, ", subrequest: \"{}\"", Printable(&request.uri))?;
    }
    if let Some(upstream) = &request.upstream {
        let mut written = Ok(());
        upstream.show(&mut |url| {
            if !url.is_empty() {
                written = write!(out, ", upstream: \"{}\"", Printable(url));
            }
        });
        written?;
    }
    if let Some(host) = request.client.value_up_to(Known::Host, read) {
        write!(out, ", host: \"{}\"", Printable(host))?;
    }
    if let Some(referrer) = request.client.value_up_to(Known::Referer, read) {
        write!(out, ", referrer: \"{}\"", Printable(referrer))?;
    }
    Ok(())
}
