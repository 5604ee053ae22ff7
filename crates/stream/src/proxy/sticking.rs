//! Session affinity: how a session finds the server of earlier sessions; see `sticky`.
//!
//! The affinity is stored once the server is connected, and again when the session ends, so that it
//! does not expire during a long session.

use std::sync::Arc;

use bytes::Bytes;
use logs::Subject;
use rules::upstream::sticky::{Affinity, SessionBinding};

use crate::session::Session;
use crate::upstream::Group;

/// The affinity of one session.
pub(super) struct Sticking {
    affinity: Arc<Affinity<Session>>,
    /// The identifier of the server, or the key of a learned affinity; empty if the session has
    /// none.
    id: Bytes,
    /// The identifier of the server that was selected and has not failed.
    server: Option<Bytes>,
    /// The affinity that was learned once the server was connected.
    lesson: Option<SessionBinding>,
}

impl Sticking {
    /// The affinity of a session; `None` if the group has no `sticky`.
    pub(super) fn begin(group: &Group, session: &mut Session) -> Option<Sticking> {
        let affinity = Arc::clone(group.sticky()?);
        Some(Sticking {
            id: affinity.id(session),
            affinity,
            server: None,
            lesson: None,
        })
    }

    /// The identifier of the preferred server; looked up for each attempt, since other sessions may
    /// learn in the meantime.
    pub(super) fn wanted(&self, subject: &impl Subject) -> Option<Bytes> {
        self.affinity.wanted(subject, &self.id)
    }

    /// Records the selected server.
    pub(super) fn chosen(&mut self, server: Bytes) {
        self.server = Some(server);
    }

    /// Records that the last selected server has failed.
    pub(super) fn has_failed(&mut self) {
        (self.server, self.lesson) = (None, None);
    }

    /// Records the connection to the last selected server.
    pub(super) fn connected(&mut self, session: &mut Session) {
        if let Some(server) = &self.server {
            self.lesson = self.affinity.lesson(session, &self.id, server);
        }
        if let Some(lesson) = &self.lesson {
            lesson.learn();
        }
    }

    /// Renews the affinity at the end of the session.
    pub(super) fn end(self) {
        if let Some(lesson) = self.lesson {
            lesson.renew();
        }
    }
}
