//! How a session finds the server that those before it have had: see `sticky`.
//!
//! What a session belongs to is remembered once there is a connection to its server, and again when
//! the session ends, so that it is not forgotten while a long one lasts that others follow.

use std::sync::Arc;

use bytes::Bytes;
use logs::Subject;
use rules::upstream::sticky::{Affinity, Lesson};

use crate::session::Session;
use crate::upstream::Group;

/// One session's way to the server that it belongs to.
pub(super) struct Sticking {
    affinity: Arc<Affinity<Session>>,
    /// The name of the server, or what one is remembered by; empty where the session brings none.
    id: Bytes,
    /// The name of the server that has been chosen and has not failed.
    server: Option<Bytes>,
    /// What has been learned once there was a connection.
    lesson: Option<Lesson>,
}

impl Sticking {
    /// What `sticky` of a group makes of a session; `None` where none is written.
    pub(super) fn begin(group: &Group, session: &mut Session) -> Option<Sticking> {
        let affinity = Arc::clone(group.sticky()?);
        Some(Sticking {
            id: affinity.id(session),
            affinity,
            server: None,
            lesson: None,
        })
    }

    /// The name of the server that is wanted; looked up for each try, since others go on learning.
    pub(super) fn wanted(&self, subject: &impl Subject) -> Option<Bytes> {
        self.affinity.wanted(subject, &self.id)
    }

    /// The server of this name has been chosen.
    pub(super) fn chosen(&mut self, server: Bytes) {
        self.server = Some(server);
    }

    /// The server chosen last has failed.
    pub(super) fn has_failed(&mut self) {
        (self.server, self.lesson) = (None, None);
    }

    /// There is a connection to the server chosen last.
    pub(super) fn connected(&mut self, session: &mut Session) {
        if let Some(server) = &self.server {
            self.lesson = self.affinity.lesson(session, &self.id, server);
        }
        if let Some(lesson) = &self.lesson {
            lesson.learn();
        }
    }

    /// The session is over.
    pub(super) fn end(self) {
        if let Some(lesson) = self.lesson {
            lesson.renew();
        }
    }
}
