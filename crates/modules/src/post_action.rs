//! `post_action`: a location that processes a request after its response has been sent.
//!
//! nginx has this directive without documentation. The request itself continues, as after an
//! internal redirect. Its second response is discarded, and the next request of the connection
//! waits until the action ends. The access log line is written afterwards and has the action's URI
//! and status.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, ScopeRef, Setting, parse};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::{AfterResponse, MaybeFuture, Module};
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
    /// The URI of the action; empty if there is none.
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

/// The `post_action` of a plan; unset if there is none.
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

/// The number of URI changes that the action may make if the request itself has used up all of its
/// own: nginx's counter has four bits and wraps around.
const CHANGES_AFTER_CYCLE: u8 = 16;

/// The only status after which the action is not run: the status of `return 444`.
const WITHOUT_ACTION: u16 = 444;

impl AfterResponse for PostAction {
    fn after<'a>(
        &'a self,
        request: &'a mut Request,
        outcome: &'a Result<(), Abort>,
    ) -> MaybeFuture<'a, bool> {
        match outcome {
            Err(Abort::Unanswered(WITHOUT_ACTION)) => MaybeFuture::Now(false),
            _ => MaybeFuture::wait(act(request)),
        }
    }
}

/// Runs the action. The location of the action may have a `post_action`, too; the limit of URI
/// changes ends such a chain. Returns whether there was an action.
async fn act(request: &mut Request) -> bool {
    let header_only = request.response.header_only;
    request.nesting.head_only = true;
    request.body.end_unread();
    join_charset(request);
    if request.response.ignores_last_modified {
        // The next response may have its own time of modification.
        request.response.clear_last_modified();
    }
    // The action's response has no client, so no closed connection can end the action.
    let mut sink = Exchange::sink();
    if request.routing.uri_changes_left == 0 {
        request.routing.uri_changes_left = CHANGES_AFTER_CYCLE;
    }
    while request.routing.uri_changes_left > 0
        && let Some(step) = request.plan.of(&OF_PLAN).map(PostAction::step)
    {
        // Errors have been logged.
        let _ = Box::pin(phases::resume(request, &mut sink, step)).await;
    }
    request.response.header_only = header_only;
    // No head was written for the discarded response, so its charset must not be appended to the
    // type.
    request.response.charset = Bytes::new();
    true
}

/// Appends the charset to the media type, as in the head that was sent: logs show the type, and the
/// action may keep it.
fn join_charset(request: &mut Request) {
    let has_head = request.client.version() != Version::Http09;
    let response = &mut request.response;
    let charset = std::mem::take(&mut response.charset);
    if has_head && !charset.is_empty() && response.content_type_parameters.is_empty() {
        response.content_type_parameters = [b"; charset=", &charset[..]].concat().into();
    }
}
