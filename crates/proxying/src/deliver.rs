//! Turns an upstream response whose head has been read into the response to the client, for any
//! protocol.

use std::sync::Arc;

use http::request::{Request, Step};
use http::response::source::Body;
use proto::h1::response::BodyFraming;
use proto::method::Method;

use super::activity;
use super::answer::AnswerHead;
use super::attempts::Attempts;
use super::body::{self, BodyDelimiter, BodyPrefix, UpstreamBody};
use super::connection::UpstreamConnection;
use super::response::{self, HeadEffect, UpstreamResponse};
use super::rewriting::{Rewrite, Unchanged};
use super::settings::PassSettings;
use super::whole::{self, WholeBody};
use crate::failures::note;
use crate::upstream::Selection;

/// The parameters of delivering a response.
pub struct Delivery<'a> {
    /// The `*_pass` settings of the scope.
    pub passing: &'a Arc<PassSettings>,
    /// The rewriting of header fields.
    pub rewriting: &'a dyn Rewrite,
    /// The upstream request was HEAD, so the response has no body.
    pub is_head: bool,
}

impl<'a> Delivery<'a> {
    /// Delivery without rewriting of header fields.
    pub fn unchanged(passing: &'a Arc<PassSettings>, is_head: bool) -> Delivery<'a> {
        Delivery {
            passing,
            rewriting: &Unchanged,
            is_head,
        }
    }

    /// Lets `error_page` replace an error response, if `*_intercept_errors` is on.
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

    /// Applies the head to the client's response; returns a step if another response is sent
    /// instead.
    pub fn apply(
        &self,
        request: &mut Request,
        selection: &mut Selection,
        peer: &mut UpstreamConnection,
        head: &AnswerHead,
    ) -> Option<Step> {
        let applied = response::apply(request, self.passing, self.rewriting, head);
        peer.at_end = selection.at_end(request);
        if let HeadEffect::Step(step) = applied {
            return Some(step);
        }
        let waits_in_vain = self.is_head && request.method != Method::Head;
        if waits_in_vain && request.response.content_length.is_some() {
            // The client would wait for the announced body, which the upstream does not send for
            // HEAD.
            request.response.content_length = Some(0);
        }
        None
    }

    /// Delivers the body, whose end HTTP/1 framing or the end of the connection determines.
    /// `may_reuse` says whether the upstream keeps the connection alive.
    pub fn deliver(
        &self,
        request: &mut Request,
        peer: UpstreamConnection,
        answer: UpstreamResponse,
        may_reuse: bool,
    ) -> Step {
        let UpstreamResponse {
            head,
            mut rest,
            beyond,
        } = answer;
        let framing = head.body(self.is_head);
        let said_too_much = matches!(framing, BodyFraming::None) && !rest.is_empty();
        if said_too_much {
            // Bytes behind a head without a body are invalid and are discarded.
            let length = std::mem::take(&mut rest).len() as u64;
            if !self.is_head {
                note(request, |attempt, _| attempt.response_length = length);
                let buffered = response::is_buffered(self.passing, &head);
                body::excess_body_log(body::body_activity(buffered)).write(request);
            }
        }
        let arrived = BodyPrefix {
            rest,
            beyond,
            may_reuse: may_reuse && !said_too_much,
        };
        self.respond(request, peer, &head, BodyDelimiter::Http(framing), arrived)
    }

    /// Makes the upstream's response that of the client: its head has been applied, and its body
    /// follows.
    pub fn respond(
        &self,
        request: &mut Request,
        peer: UpstreamConnection,
        head: &AnswerHead,
        mut delimited: BodyDelimiter,
        mut arrived: BodyPrefix,
    ) -> Step {
        let passing = self.passing;
        let holds = response::is_buffered(passing, head);
        let has_body = request.method != Method::Head && !request.nesting.head_only;
        if !holds && has_body {
            request.pacing.rate = Some(0); // an unbuffered response has no rate limit
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
