//! The selection of peers for one request, with the sticky session of its group.

use http::request::Request;

use super::sticky::{AtEnd, Sticking};

/// A selection of the crate `upstream`, and the request's session, if the group is `sticky`.
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

    /// Notes that the head of the response goes to the client.
    pub fn head_came(&self, request: &mut Request) {
        if let Some(sticking) = &self.sticking {
            sticking.head_came(request);
        }
    }

    /// Returns a guard that learns the session when dropped, once the response is complete or
    /// broken off.
    pub fn at_end(&self, request: &mut Request) -> Option<Box<AtEnd>> {
        self.sticking.as_ref()?.at_end(request).map(Box::new)
    }
}
