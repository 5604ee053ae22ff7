//! An answer whose head has been read becomes the response, whatever protocol it came by.

use std::sync::Arc;

use http::request::{Request, Step};
use http::response::source::Body;
use proto::h1::response::BodyFraming;
use proto::method::Method;

use super::activity;
use super::answer::AnswerHead;
use super::attempts::Attempts;
use super::body::{self, Arrived, Delimited, UpstreamBody};
use super::connection::UpstreamConnection;
use super::response::{self, Applied, UpstreamResponse};
use super::rewriting::{Rewrite, Unchanged};
use super::settings::Passing;
use super::whole::{self, WholeBody};
use crate::failures::note;
use crate::upstream::Selection;

/// What is known of an answer beside its head.
pub struct Delivery<'a> {
    /// What the scope says of answers.
    pub passing: &'a Arc<Passing>,
    /// What changes in the fields of the answer.
    pub rewriting: &'a dyn Rewrite,
    /// The upstream was asked for a head alone.
    pub is_head: bool,
}

impl<'a> Delivery<'a> {
    /// Of an answer whose fields stay as they came.
    pub fn unchanged(passing: &'a Arc<Passing>, is_head: bool) -> Delivery<'a> {
        Delivery {
            passing,
            rewriting: &Unchanged,
            is_head,
        }
    }

    /// Has `error_page` answer in the place of an error, where that is to be.
    pub fn intercept(
        &self,
        request: &mut Request,
        selection: &mut Selection,
        peer: &mut UpstreamConnection,
        head: &AnswerHead,
    ) -> Option<Step> {
        response::remember(request, head);
        let step = response::intercept(request, self.passing, head);
        if step.is_some() {
            peer.at_end = selection.at_end(request);
        } else {
            selection.head_came(request)
        }
        step
    }

    /// Makes the head that of the response; a step comes back where something else answers.
    pub fn apply(
        &self,
        request: &mut Request,
        selection: &mut Selection,
        peer: &mut UpstreamConnection,
        head: &AnswerHead,
    ) -> Option<Step> {
        let applied = response::apply(request, self.passing, self.rewriting, head);
        peer.at_end = selection.at_end(request);
        if let Applied::Step(step) = applied {
            return Some(step);
        }
        let waits_in_vain = self.is_head && request.method != Method::Head;
        if waits_in_vain && request.response.content_length.is_some() {
            // The client would wait for a body, and there is none to come.
            request.response.content_length = Some(0);
        }
        None
    }

    /// The body follows as HTTP or the end of the connection delimits it; `may_go_on` tells whether
    /// the upstream goes on with that behind it.
    pub fn deliver(
        &self,
        request: &mut Request,
        peer: UpstreamConnection,
        answer: UpstreamResponse,
        may_go_on: bool,
    ) -> Step {
        let UpstreamResponse {
            head,
            mut rest,
            beyond,
        } = answer;
        let framing = head.body(self.is_head);
        let said_too_much = matches!(framing, BodyFraming::None) && !rest.is_empty();
        if said_too_much {
            // No client waits for what follows such a head, and nothing will look at it.
            let length = std::mem::take(&mut rest).len() as u64;
            if !self.is_head {
                note(request, |attempt, _| attempt.response_length = length);
                let buffered = response::is_buffered(self.passing, &head);
                body::told_excess(body::doing_behind_head(buffered)).write(request);
            }
        }
        let arrived = Arrived {
            rest,
            beyond,
            may_go_on: may_go_on && !said_too_much,
        };
        self.respond(request, peer, &head, Delimited::Http(framing), arrived)
    }

    /// Takes the head over as the response's.
    pub fn respond(
        &self,
        request: &mut Request,
        peer: UpstreamConnection,
        head: &AnswerHead,
        mut delimited: Delimited,
        mut arrived: Arrived,
    ) -> Step {
        let passing = self.passing;
        let holds = response::is_buffered(passing, head);
        let has_body = request.method != Method::Head && !request.nesting.head_only;
        if !holds && has_body {
            request.pacing.rate = Some(0); // what is not held back is not slowed down
        }
        let rate = if holds && has_body {
            passing
                .limit_rate
                .evaluate(request, activity::WHILE_READING)
        } else {
            0
        };
        let seen = Attempts::enter(request);
        let mut length = arrived.rest.len() as u64;
        if rate == 0 && passing.store.is_none() && whole::is_whole(&mut delimited, &mut arrived) {
            if let Some(framing) = delimited.framing() {
                if let Some(received) = framing.received() {
                    length = received.behind_head;
                    arrived.beyond = seen.borrow().not_counted(received.in_all);
                }
                seen.borrow_mut().trailers = framing.trailers();
            }
            let trailers = passing.passed_trailers(&seen);
            request.response.may_have_trailers = !trailers.is_empty();
            let body = WholeBody::new(peer, seen, head, arrived, length, holds, trailers);
            return Step::Respond(Body::Source(Box::new(body)));
        }
        request.response.may_have_trailers = passing.pass_trailers;
        let body = UpstreamBody::new(peer, seen, passing, delimited, arrived, holds, rate);
        Step::Respond(Body::Source(match &passing.store {
            Some(store) if holds && !self.is_head && head.status() == 200 => {
                store.begin(request, response::last_modified(head), body)
            }
            _ => Box::new(body),
        }))
    }
}
