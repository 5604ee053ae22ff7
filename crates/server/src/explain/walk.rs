//! Runs the phases of a request like `http::request`, up to the content handler, which is not run.

use std::ops::ControlFlow;
use std::sync::Arc;

use conf::{Contexts, Position, ScopeId, Tree};
use framework::display::for_people;
use http::exchange::Exchange;
use http::module::{AccessVerdict, ExplainedEffect};
use http::request::phases::{Phase, advance};
use http::request::{Request, Step};
use http::response::error_page::answer;

use super::{ExplainStep, directives, locations};

/// The result of running the phases of a request.
pub(super) struct PhaseWalk {
    /// The steps of processing, in order.
    pub(super) way: Vec<ExplainStep>,
    pub(super) outcome: String,
    pub(super) status: Option<u16>,
    /// The scope in force when the response's source was determined, before any error page.
    pub(super) scope: ScopeId,
}

/// Runs the phases of the request.
pub(super) async fn walk(request: &mut Request, tree: &Tree) -> PhaseWalk {
    let mut walk = Walk {
        request,
        tree,
        way: Vec::new(),
        settled: None,
    };
    let (outcome, status) = walk.run().await;
    PhaseWalk {
        scope: walk.settled.unwrap_or(walk.request.plan.scope),
        way: walk.way,
        outcome,
        status,
    }
}

/// A request whose phases are run.
struct Walk<'a> {
    request: &'a mut Request,
    tree: &'a Tree,
    /// The steps so far.
    way: Vec<ExplainStep>,
    /// The scope at the first status, before its error page changed the request's location.
    settled: Option<ScopeId>,
}

/// Description of the response's source, and the status if it is known.
type WalkOutcome = (String, Option<u16>);

impl Walk<'_> {
    /// Runs the phases and follows redirects up to the outcome.
    async fn run(&mut self) -> WalkOutcome {
        let mut step = self.phases(Phase::ServerRewrite).await;
        loop {
            step = match step {
                ControlFlow::Break(outcome) => return outcome,
                ControlFlow::Continue(Step::Redirect { uri, args }) => {
                    match self.request.redirect(uri, args) {
                        Ok(()) => self.phases(Phase::ServerRewrite).await,
                        Err(status) => self.too_often(status),
                    }
                }
                ControlFlow::Continue(Step::Named(name)) => match self.request.enter_named(&name) {
                    Ok(()) => self.phases(Phase::LocationRewrite).await,
                    Err(status) => self.too_often(status),
                },
                ControlFlow::Continue(Step::Finish(status)) => self.finish(status).await,
                ControlFlow::Continue(Step::Return(status, location)) => {
                    self.request.response.location = Some(location);
                    self.finish(status).await
                }
                ControlFlow::Continue(Step::Respond(_)) => {
                    let status = self.request.response.status;
                    ControlFlow::Break((format!("status {status}, by return"), Some(status)))
                }
                ControlFlow::Continue(Step::Next | Step::Relocate) => {
                    ControlFlow::Continue(Step::Finish(404))
                }
            };
        }
    }

    /// Records a step without a directive.
    fn did(&mut self, phase: &'static str, text: impl Into<String>) {
        self.record_at(phase, text, None);
    }

    fn record_at(&mut self, phase: &'static str, text: impl Into<String>, at: Option<Position>) {
        self.way.push(ExplainStep::Did {
            phase,
            text: text.into(),
            position: at,
        });
    }

    /// Records a refused redirect, whose status is the outcome.
    fn too_often(&mut self, status: u16) -> ControlFlow<WalkOutcome, Step> {
        self.did(
            "redirect",
            "refused: no such location, or redirected too often",
        );
        ControlFlow::Break((format!("status {status}"), Some(status)))
    }

    /// Runs the phases from this one up to the content, whose handler is only described.
    async fn phases(&mut self, mut at: Phase) -> ControlFlow<WalkOutcome, Step> {
        while at != Phase::Access {
            if at == Phase::FindLocation {
                self.way.push(ExplainStep::Located {
                    uri: String::from_utf8_lossy(&self.request.uri).into_owned(),
                    candidates: locations::candidates(self.request, self.tree),
                });
            }
            self.request.trail = Some(Vec::new());
            let passed = advance(self.request, at);
            let trail = self.request.trail.take().unwrap_or_default();
            for trace in trail {
                let directive = directives::at(trace.position, self.tree).unwrap_or_default();
                let text = format!("{directive}: {}", trace.text);
                self.record_at("rewrite", text, Some(trace.position));
            }
            self.after(at, &passed);
            at = match passed {
                ControlFlow::Continue(next) => next,
                ControlFlow::Break(step) => return ControlFlow::Continue(step),
            };
        }
        if let Some(status) = self.access() {
            return ControlFlow::Continue(Step::Finish(status));
        }
        let plan = Arc::clone(&self.request.plan);
        for handler in &plan.phases.precontent {
            let imagined = handler.explain_effect(self.request).resolve().await;
            match imagined {
                ExplainedEffect::Unknown => {}
                ExplainedEffect::Answers { text, status } => {
                    return ControlFlow::Break((text, Some(status)));
                }
                ExplainedEffect::Does { part, text, step } => {
                    self.did(part, text);
                    if !matches!(step, Step::Next) {
                        return ControlFlow::Continue(step);
                    }
                }
            }
        }
        self.content().await
    }

    /// Records the effects of a phase that its rewrite script has not recorded.
    fn after(&mut self, at: Phase, passed: &ControlFlow<Step, Phase>) {
        let scope = self.tree.scope(self.request.plan.scope);
        match (at, passed) {
            (Phase::FindLocation, ControlFlow::Break(Step::Finish(301))) => {
                let text = "the path lacks only the slash of a location that passes requests on";
                self.did("location", text);
            }
            (Phase::FindLocation, ControlFlow::Break(Step::Finish(404))) => {
                self.did("location", "it is internal: status 404");
            }
            (Phase::FindLocation, _) if scope.context() == Contexts::LIMIT_EXCEPT => {
                let place = directives::place(scope);
                let text = format!("{} applies to this method", place.text);
                self.record_at("limit_except", text, place.position);
            }
            (Phase::LocationRewrite, ControlFlow::Continue(Phase::Access))
                if scope.context() == Contexts::LOCATION_IF =>
            {
                let place = directives::place(scope);
                let text = format!("{} is in force", place.text);
                self.record_at("rewrite", text, place.position);
            }
            _ => {}
        }
    }

    /// Records the verdicts of the access checks. Returns the status of a refusal, unless `satisfy
    /// any` may still admit the request.
    fn access(&mut self) -> Option<u16> {
        let (plan, mut refused) = (Arc::clone(&self.request.plan), None);
        for check in &plan.phases.access {
            let Some((text, verdict)) = check.explain_verdict(self.request) else {
                continue;
            };
            self.did("access", text);
            if let AccessVerdict::Refused(status) = verdict {
                refused.get_or_insert(status);
            }
        }
        refused.filter(|_| !plan.core.satisfy_any)
    }

    /// Describes the content handler, or runs the handlers of files.
    async fn content(&mut self) -> ControlFlow<WalkOutcome, Step> {
        let plan = Arc::clone(&self.request.plan);
        if plan.has_content {
            let scope = self.tree.scope(plan.scope);
            let handler = directives::handler(scope).map(|place| place.text);
            let text = handler.unwrap_or_else(|| "a handler".to_owned());
            return ControlFlow::Break((text, None));
        }
        for handler in &plan.phases.files {
            match handler.explain_effect(self.request).resolve().await {
                ExplainedEffect::Unknown => {}
                ExplainedEffect::Answers { text, status } => {
                    return ControlFlow::Break((text, Some(status)));
                }
                ExplainedEffect::Does { part, text, step } => {
                    self.did(part, text);
                    return ControlFlow::Continue(step);
                }
            }
        }
        let path = for_people(&self.request.filename());
        let text = format!("the directory {path}, which has no index file");
        ControlFlow::Break((text, None))
    }

    /// Describes a status as the outcome, or returns the redirect to its error page.
    async fn finish(&mut self, status: u16) -> ControlFlow<WalkOutcome, Step> {
        self.settled.get_or_insert(self.request.plan.scope);
        let mut sink = Exchange::sink();
        let finished = answer::finish(self.request, &mut sink, status).await;
        let to = match &finished {
            Ok(Some(Step::Redirect { uri, .. })) => Some(for_people(uri)),
            Ok(Some(Step::Named(name))) => Some(for_people(name)),
            _ => None,
        };
        if let Some(to) = to {
            self.did("error_page", format!("of status {status}: to {to}"));
        }
        match finished {
            Ok(Some(step)) => ControlFlow::Continue(step),
            Err(_) => ControlFlow::Break((
                format!("status {status}: the connection is closed without an answer"),
                Some(status),
            )),
            Ok(None) => {
                let response = &self.request.response;
                let location = response.location.as_ref();
                let text = match location.or_else(|| response.field(b"Location")) {
                    Some(to) => format!("status {}, to {}", response.status, for_people(to)),
                    None => format!("status {}", response.status),
                };
                ControlFlow::Break((text, Some(response.status)))
            }
        }
    }
}
