//! `post_action`: what is still done for a request when its response has been sent.
//!
//! nginx has it without describing it. The request itself goes on, as after a redirect within
//! the server; what that answers is dropped, and the next request of the connection waits until
//! it is done. The access log's line is written after it and shows its URI and status.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, ScopeRef, Setting, parse};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::{After, Module, Ran};
use http::request::phases;
use http::request::{Request, Step};
use http::slots::PlanSlot;
use proto::h1::Version;

static POST_ACTION: Setting<Bytes> = Setting::new("post_action", &["uri"], parse::bytes)
    .contexts(
        Contexts::HTTP
            .or(Contexts::SERVER)
            .or(Contexts::LOCATION)
            .or(Contexts::LOCATION_IF),
    )
    .default("\"\"")
    .manual(
        "A path, or a named location, that a request goes to when its response has been sent. \
         Its answer is dropped. An empty text turns it off.",
    );

/// The location that `post_action` names.
#[derive(Debug)]
pub struct PostAction {
    target: Bytes,
}

impl Feature for PostAction {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&POST_ACTION];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<PostAction, Fault> {
        Ok(PostAction {
            target: scope.get(&POST_ACTION)?,
        })
    }
}

/// What holds in a plan; nothing where it is off.
static OF_PLAN: PlanSlot<PostAction> = PlanSlot::new();

impl Module for PostAction {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Log, &["post_action"]).listed(1)];

    fn is_off(&self) -> bool {
        self.target.is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.keep(&OF_PLAN, self);
        plan.after(self);
    }
}

impl PostAction {
    fn step(&self) -> Step {
        match self.target.first() {
            Some(b'/') => Step::Redirect {
                uri: self.target.to_vec(),
                args: None,
            },
            _ => Step::Named(self.target.clone()),
        }
    }
}

/// What is left of the changes of a URI where the request itself has used them up: nginx counts
/// them in four bits, round.
const CHANGES_AFTER_CYCLE: u8 = 16;

/// Of all ways to end a request `return 444` alone leads to no action.
const WITHOUT_ACTION: u16 = 444;

impl After for PostAction {
    fn after<'a>(
        &'a self,
        request: &'a mut Request,
        outcome: &'a Result<(), Abort>,
    ) -> Ran<'a, bool> {
        match outcome {
            Err(Abort::Unanswered(WITHOUT_ACTION)) => Ran::Now(false),
            _ => Ran::wait(act(request)),
        }
    }
}

/// Does what is to be done. The place that the request comes to may have a `post_action` too: they
/// end with the changes of its URI. Returns that there was something to be done.
async fn act(request: &mut Request) -> bool {
    let header_only = request.response.header_only;
    request.nesting.head_only = true;
    request.body.end_unread();
    join_charset(request);
    if request.response.last_modified_unheard {
        // What comes may have one of its own.
        request.response.clear_last_modified();
    }
    // No client listens, and none that leaves ends it.
    let mut sink = Exchange::sink();
    if request.course.changes_left == 0 {
        request.course.changes_left = CHANGES_AFTER_CYCLE;
    }
    while request.course.changes_left > 0
        && let Some(step) = request.plan.of(&OF_PLAN).map(PostAction::step)
    {
        // Whatever comes of it: it has been logged.
        let _ = Box::pin(phases::resume(request, &mut sink, step)).await;
    }
    request.response.header_only = header_only;
    // No head has been written of what was dropped, with which its charset would have joined its
    // type.
    request.response.charset = Bytes::new();
    true
}

/// Makes the charset a part of the type, as the head that was sent had it: logs tell of that where
/// what comes keeps the type.
fn join_charset(request: &mut Request) {
    let has_head = request.client.version() != Version::Http09;
    let response = &mut request.response;
    let charset = std::mem::take(&mut response.charset);
    if has_head && !charset.is_empty() && response.content_type_parameters.is_empty() {
        response.content_type_parameters = [b"; charset=", &charset[..]].concat().into();
    }
}
