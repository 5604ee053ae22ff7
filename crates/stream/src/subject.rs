//! The session's fields in error log lines, in nginx's words.

use std::fmt::{self, Write};
use std::sync::Arc;

use framework::address::append_address;
use logs::{ErrorLog, Level, Printable, Subject, Subsystem};

use crate::session::Session;

impl Subject for Session {
    fn admits(&self, level: Level) -> bool {
        self.server.error_log.admits(level, Subsystem::Stream) || Subject::is_debugged(self)
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        write(&self.server.error_log);
    }

    fn is_debugged(&self) -> bool {
        self.connection.client.is_debugged(|| {
            let named = &self.stream.debug_connections.0;
            !named.is_empty() && named.contains(self.connection.peer())
        })
    }

    fn subsystem(&self) -> Subsystem {
        Subsystem::Stream
    }

    fn serial(&self) -> Option<u64> {
        let is_of_client = self.connection.about.is_none();
        is_of_client.then_some(self.connection.client.serial)
    }

    fn doing(&self) -> &str {
        self.doing
    }

    fn describe(&self, out: &mut dyn Write) -> fmt::Result {
        if let Some(about) = &self.connection.about {
            return write!(out, ", {}", Printable(about.as_bytes()));
        }
        let mut client = Vec::new();
        append_address(self.peer(), &mut client);
        write!(
            out,
            ", {}client: {}, server: {}",
            if self.connection.is_datagrams() {
                "udp "
            } else {
                ""
            },
            Printable(&client),
            self.connection.client.listening()
        )?;
        if !self.is_passed_on {
            return Ok(());
        }
        if let Some(attempt) = self.attempts.last()
            && !attempt.peer.is_empty()
        {
            write!(out, ", upstream: \"{}\"", Printable(&attempt.peer))?;
        }
        write!(out, "{}", SessionBytes(self))
    }
}

/// A session whose log lines have no fields after their text.
pub(crate) struct WithoutFields<'a>(pub(crate) &'a Session);

impl Subject for WithoutFields<'_> {
    fn admits(&self, level: Level) -> bool {
        self.0.admits(level)
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        self.0.with_log(write);
    }

    fn is_debugged(&self) -> bool {
        Subject::is_debugged(self.0)
    }

    fn subsystem(&self) -> Subsystem {
        Subsystem::Stream
    }

    fn serial(&self) -> Option<u64> {
        self.0.serial()
    }
}

/// The bytes that both ends have sent and received so far.
pub(crate) struct SessionBytes<'a>(pub(crate) &'a Session);

impl fmt::Display for SessionBytes<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Session {
            received,
            sent,
            attempts,
            ..
        } = self.0;
        let (from, to) = match attempts.last() {
            Some(attempt) => (attempt.received.get(), attempt.sent.get()),
            None => (0, 0),
        };
        write!(
            out,
            ", bytes from/to client:{}/{}, bytes from/to upstream:{from}/{to}",
            received.get(),
            sent.get()
        )
    }
}
