//! The selection of peers for one request, with the sticky session of its group.

use http::request::Request;

use super::sticky::{LearnOnDrop, StickyRequest};

/// The selection of peers of the crate `upstream`, and the request's session if the group is
/// `sticky`.
#[derive(Debug)]
pub struct Selection {
    peers: ::upstream::Selection,
    sticking: Option<StickyRequest>,
}

impl Selection {
    pub(super) fn new(peers: ::upstream::Selection, sticking: Option<StickyRequest>) -> Selection {
        Selection { peers, sticking }
    }

    /// The selection of peers, and the sticky session.
    pub(crate) fn parts(&mut self) -> (&mut ::upstream::Selection, Option<&mut StickyRequest>) {
        (&mut self.peers, self.sticking.as_mut())
    }

    /// Notes that the head of this response goes to the client.
    pub fn head_came(&self, request: &mut Request) {
        if let Some(sticking) = &self.sticking {
            sticking.head_came(request);
        }
    }

    /// Returns a guard that learns the session when dropped, once the response is complete or
    /// broken off.
    pub fn at_end(&self, request: &mut Request) -> Option<Box<LearnOnDrop>> {
        self.sticking.as_ref()?.at_end(request).map(Box::new)
    }
}
