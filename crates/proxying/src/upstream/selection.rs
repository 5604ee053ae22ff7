//! One request's way through a group, and through the sessions of that group.

use http::request::Request;

use super::sticky::{AtEnd, Sticking};

/// A selection of the crate `upstream`, and what sessions the group has: see `sticky`.
#[derive(Debug)]
pub struct Selection {
    peers: ::upstream::Selection,
    sticking: Option<Sticking>,
}

impl Selection {
    pub(super) fn new(peers: ::upstream::Selection, sticking: Option<Sticking>) -> Selection {
        Selection { peers, sticking }
    }

    pub(crate) fn parts(&mut self) -> (&mut ::upstream::Selection, Option<&mut Sticking>) {
        (&mut self.peers, self.sticking.as_mut())
    }

    /// The head of its answer goes to the client.
    pub fn head_came(&self, request: &mut Request) {
        if let Some(sticking) = &self.sticking {
            sticking.head_came(request);
        }
    }

    /// What is learned of the session when this is dropped, once the answer has come or will come
    /// no more.
    pub fn at_end(&self, request: &mut Request) -> Option<Box<AtEnd>> {
        self.sticking.as_ref()?.at_end(request).map(Box::new)
    }
}
