//! The session store of rustls for one server: the key exchange group that the server chose and,
//! for resumption, sessions.
//!
//! There is one store per thread and server, so that threads do not contend for the lock, and
//! server names need not be compared.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Maximum number of stored tickets. Each is used once (RFC 8446, appendix C.4), the newest first.
const TICKETS_MAX: usize = 4096;

/// The session store of one thread for one server.
#[derive(Debug)]
pub(super) struct Sessions {
    /// Whether sessions are stored.
    resume: bool,
    kept: Mutex<SessionCache>,
}

#[derive(Debug, Default)]
struct SessionCache {
    group: Option<NamedGroup>,
    session: Option<Tls12ClientSessionValue>,
    tickets: VecDeque<Tls13ClientSessionValue>,
}

impl Sessions {
    pub(super) fn new(resume: bool) -> Sessions {
        Sessions {
            resume,
            kept: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SessionCache> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.lock().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.lock().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        if self.resume {
            self.lock().session = Some(value);
        }
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.lock().session.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.lock().session = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        if !self.resume {
            return;
        }
        let tickets = &mut self.lock().tickets;
        if tickets.len() >= TICKETS_MAX {
            tickets.pop_front();
        }
        tickets.push_back(value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.lock().tickets.pop_back()
    }
}
