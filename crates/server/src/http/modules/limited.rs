//! What `limit_req` and `limit_conn` have in common: directives of the same kind, and what a request
//! carries along from them.

use conf::{Fault, Setter, parse};

use crate::http::modules::{limit_conn, limit_req};
use crate::log::Level;

/// What limits have said of a request, and what it holds until its end.
#[derive(Default)]
pub struct Limited {
    /// `$limit_req_status`, once a limit has been asked.
    pub requests: Option<limit_req::Outcome>,
    /// `$limit_conn_status`, once a limit has been asked.
    pub connections: Option<limit_conn::Outcome>,
    /// Places among the connections that are counted.
    pub leases: Vec<limit_conn::Lease>,
}

impl Limited {
    /// What a subrequest knows: a request is limited once, whatever its parts.
    pub fn for_subrequest(&self) -> Limited {
        Limited {
            requests: self.requests,
            connections: self.connections,
            leases: Vec::new(),
        }
    }

    /// Takes over what a subrequest that has ended holds.
    pub fn absorb(&mut self, child: &mut Limited) {
        self.requests = self.requests.or(child.requests);
        self.connections = self.connections.or(child.connections);
        self.leases.append(&mut child.leases);
    }
}

/// Reads `limit_req_status` and `limit_conn_status`.
pub fn status(setter: &Setter<'_>) -> Result<u16, Fault> {
    let status = parse::number(setter)?;
    u16::try_from(status)
        .ok()
        .filter(|status| (400..=599).contains(status))
        .ok_or_else(|| Fault::new("value must be between 400 and 599"))
}

/// Reads `limit_req_log_level` and `limit_conn_log_level`.
pub fn level(setter: &Setter<'_>) -> Result<Level, Fault> {
    const LEVELS: [Level; 4] = [Level::Info, Level::Notice, Level::Warn, Level::Error];
    parse::enumeration(setter, &LEVELS.map(|level| (level.name(), level)))
}
