//! The phases of a request, in nginx's order. Read [`handle`] first: it drives a request from its
//! head to the end of its response.
//!
//! Each phase examines the [`Request`] and returns a [`Step`].

use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use proto::method::Method;

use crate::config::location;
use crate::exchange::Exchange;
use crate::exchange::abort::Abort;
use crate::request::activity::READING_HEADERS;
use crate::request::body::reading;
use crate::request::{Request, Step, access_phase, secure};
use crate::response::error_page::answer;
use crate::response::output;
use crate::{files, logging, module};

/// The phase with which the request continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Runs the rewrite script of the server.
    ServerRewrite,
    /// Looks up the location of the URI.
    FindLocation,
    /// Runs the rewrite script of the location.
    LocationRewrite,
    /// The plan is known. The preaccess, access, precontent and content phases follow.
    Access,
}

/// Serves one request: runs the phases until one of them answers, and sends the response.
///
/// An error means that the connection cannot go on, because the client left or a time limit has
/// passed. The caller logs the request nevertheless.
pub async fn handle(request: &mut Request, exchange: &mut Exchange) -> Result<(), Abort> {
    if request.is_main() {
        match arrived(request, exchange).await? {
            Step::Next => {}
            step => return resume(request, exchange, step).await,
        }
    }
    let early = if request.is_main() && request.server.core.may_read_early() {
        Box::pin(read_early(request, exchange)).await
    } else {
        Ok(Step::Next)
    };
    let first = match early {
        Ok(Step::Next) => {
            if request.is_main() {
                request.keepalive.on = request.client.keeps_alive();
            }
            phases(request, exchange, Phase::ServerRewrite).await
        }
        early => {
            // The client's `Connection` header is only evaluated in the phases, which have not run
            // yet.
            exchange.forbid_keepalive();
            early
        }
    };
    let outcome = match first {
        Ok(step) => resume(request, exchange, step).await,
        Err(abort) => Err(abort),
    };
    follow_up(request, exchange, &outcome).await;
    outcome
}

/// Runs the handlers for requests whose head has just been read.
async fn arrived(request: &mut Request, exchange: &mut Exchange) -> Result<Step, Abort> {
    logging::debug::head(request);
    logging::zone_meter::begins(request);
    if let Some(settings) = secure::newer_settings(request) {
        Box::pin(secure::recheck_client_certificate(request, &settings)).await;
    }
    if !request.plan.phases.arrived.is_empty() {
        let http = Rc::clone(&request.http);
        let plan = http.plan(request.plan.id);
        match module::run(&plan.phases.arrived, request, exchange).await? {
            Step::Next => {}
            step => return Ok(step),
        }
    }
    let answer = secure::check(request);
    Ok(answer.unwrap_or(Step::Next))
}

/// Runs everything that follows the response: background subrequests and `post_action`.
pub async fn follow_up(request: &mut Request, exchange: &Exchange, outcome: &Result<(), Abort>) {
    if request.is_main() {
        if outcome.is_ok() {
            request.start_background();
        }
        let has_acted = match outcome {
            // A subrequest has ended the whole request with a status of its own.
            Err(Abort::Unanswered(status)) if *status != request.response.status => {
                note_unanswered(request, exchange, *status);
                false
            }
            _ => act_after(request, outcome).await,
        };
        let waits = match outcome {
            // As in nginx, a request whose upstream broke off counts as answered.
            Ok(()) | Err(Abort::Upstream) => true,
            // The background subrequests of a client that has left end too.
            Err(Abort::Closed(_)) => false,
            Err(_) => has_acted,
        };
        end_background(request, waits).await;
    }
    if let Some(asked) = &request.upstream {
        asked.end();
    }
}

/// Runs the handlers that follow a response. Returns true if a handler had anything to do.
async fn act_after(request: &mut Request, outcome: &Result<(), Abort>) -> bool {
    if request.plan.phases.after.is_empty() {
        return false;
    }
    let (http, mut has_acted) = (Rc::clone(&request.http), false);
    for after in &http.plan(request.plan.id).phases.after {
        has_acted |= after.after(request, outcome).resolve().await;
    }
    has_acted
}

/// Sets the status that is logged for a request without a response, unless a part of a response has
/// been sent.
fn note_unanswered(request: &mut Request, exchange: &Exchange, status: u16) {
    if request.response.status == 0 || exchange.has_unsent(request) {
        request.response.status = status;
    }
}

impl Request {
    /// Whether the response that is about to be sent has a 2xx status.
    fn succeeds(&self) -> bool {
        let status = match self.routing.error_status {
            0 => self.response.status,
            error => error,
        };
        matches!(status, 200..=299)
    }

    /// Notes for the log that the client has left while it was waiting for the response. Returns
    /// how the exchange ends: a subrequest passes the status to its parent.
    pub fn client_left(&mut self, exchange: &Exchange) -> Abort {
        const CLIENT_CLOSED: u16 = 499;
        note_unanswered(self, exchange, CLIENT_CLOSED);
        if self.is_main() {
            Abort::Silently
        } else {
            Abort::Unanswered(CLIENT_CLOSED)
        }
    }
}

/// `client_body_early_read`: reads the body before the first phase.
async fn read_early(request: &mut Request, exchange: &mut Exchange) -> Result<Step, Abort> {
    let server = Arc::clone(&request.server);
    // The condition is also evaluated for requests without a body, since its variables keep the
    // values that they get here.
    let is_wanted = server.core.reads_early(request);
    if !is_wanted || !request.body.is_announced() {
        return Ok(Step::Next);
    }
    if let Some(step) = refuse_long_body(request, READING_HEADERS) {
        return Ok(step);
    }
    request.activity.doing = READING_HEADERS;
    match reading::read_early(request, exchange).await {
        Ok(()) => {
            request.activity.doing = "";
            Ok(Step::Next)
        }
        Err(interrupt) => interrupt.into_step(),
    }
}

/// Waits for the background subrequests if `waits` is set, else cancels them.
async fn end_background(request: &mut Request, waits: bool) {
    let Some(mut background) = request.background.take() else {
        return;
    };
    if waits {
        background.ended().await;
    }
}

/// Continues from a step until a response has been sent.
pub async fn resume(
    request: &mut Request,
    exchange: &mut Exchange,
    mut step: Step,
) -> Result<(), Abort> {
    loop {
        step = match step {
            // A client that has sent CONNECT regards any 2xx response as an open tunnel, and the
            // response's body as the tunnel's bytes.
            Step::Respond(_)
                if request.is_main() && exchange.asks_for_tunnel() && request.succeeds() =>
            {
                Step::Finish(501)
            }
            Step::Finish(200..=299) if request.is_main() && exchange.asks_for_tunnel() => {
                Step::Finish(501)
            }
            Step::Respond(body) => match output::respond(request, exchange, body).await? {
                Some(step) => step,
                None => return Ok(()),
            },
            Step::Finish(_) | Step::Return(..) if request.nesting.stub.is_some() => {
                output::respond_with_stub(request)
            }
            Step::Finish(status) => match answer::finish(request, exchange, status).await? {
                Some(step) => step,
                None => return Ok(()),
            },
            Step::Return(status, location) => {
                match reading::discard_received(request, exchange).await {
                    Ok(()) => {
                        request.response.location = Some(location);
                        Step::Finish(status)
                    }
                    Err(refused) => Step::Finish(refused),
                }
            }
            Step::Redirect { uri, args } => match request.redirect(uri, args) {
                Ok(()) => phases(request, exchange, Phase::ServerRewrite).await?,
                Err(status) => Step::Finish(status),
            },
            Step::Named(name) => match request.enter_named(&name) {
                Ok(()) => phases(request, exchange, Phase::LocationRewrite).await?,
                Err(status) => Step::Finish(status),
            },
            Step::Relocate | Step::Next => Step::Finish(404),
        };
    }
}

/// Runs nginx's phases in order, beginning with `at`. The returned step is neither `Next` nor
/// `Relocate`.
async fn phases(
    request: &mut Request,
    exchange: &mut Exchange,
    mut at: Phase,
) -> Result<Step, Abort> {
    while at != Phase::Access {
        // `root` is the server's in the server's rewrite phase, and the location's afterwards.
        if at != Phase::FindLocation && request.http.uses_realpath_root {
            Box::pin(files::prepare_realpath_root(request)).await;
        }
        at = match advance(request, at) {
            ControlFlow::Continue(next) => next,
            ControlFlow::Break(step) => return Ok(step),
        };
    }
    // The plan is borrowed from this reference to the configuration.
    let http = Rc::clone(&request.http);
    let plan = http.plan(request.plan.id);
    match module::run_scripts(&plan.phases.prepared, request) {
        Step::Next => {}
        step => return Ok(step),
    }
    match module::run(&plan.phases.preaccess, request, exchange).await? {
        Step::Next => {}
        step => return Ok(step),
    }
    match access_phase::run(request, exchange).await? {
        Step::Next => {}
        step => return Ok(step),
    }
    match module::run(&plan.phases.precontent, request, exchange).await? {
        Step::Next => {}
        step => return Ok(step),
    }
    content(request, exchange).await
}

/// Runs one of the phases that determine the plan. Continues with the next phase, or breaks with
/// the step to take.
pub fn advance(request: &mut Request, at: Phase) -> ControlFlow<Step, Phase> {
    let (step, next) = match at {
        Phase::ServerRewrite => (rewrite_by_server(request), Phase::FindLocation),
        Phase::FindLocation => (find_location(request), Phase::LocationRewrite),
        Phase::LocationRewrite => (rewrite_by_location(request), Phase::Access),
        Phase::Access => (Step::Next, Phase::Access),
    };
    match step {
        Step::Next => ControlFlow::Continue(next),
        // The location is looked up next, whether the server's script has rewritten the URI or not.
        Step::Relocate if at == Phase::ServerRewrite => ControlFlow::Continue(next),
        Step::Relocate => match request.count_change() {
            Ok(()) => ControlFlow::Continue(Phase::FindLocation),
            Err(status) => ControlFlow::Break(Step::Finish(status)),
        },
        step => ControlFlow::Break(step),
    }
}

fn rewrite_by_server(request: &mut Request) -> Step {
    let plan = &request.server.plan;
    if plan.phases.scripts.is_empty() {
        return Step::Next;
    }
    let (http, id) = (Rc::clone(&request.http), plan.id);
    // The scripts may change the URI, so that a location that was found earlier would be wrong.
    request.routing.found = None;
    module::run_scripts(&http.plan(id).phases.scripts, request)
}

/// Runs the location's rewrite script. If no location was found, the current plan is the server's,
/// whose script has already run.
fn rewrite_by_location(request: &mut Request) -> Step {
    if !request.plan.phases.located.is_empty() {
        let (http, id) = (Rc::clone(&request.http), request.plan.id);
        match module::run_scripts(&http.plan(id).phases.located, request) {
            Step::Next => {}
            step => return step,
        }
    }
    let plan = &request.plan;
    if plan.phases.scripts.is_empty() || Arc::ptr_eq(plan, &request.server.plan) {
        return Step::Next;
    }
    let (http, id) = (Rc::clone(&request.http), plan.id);
    module::run_scripts(&http.plan(id).phases.scripts, request)
}

/// Looks up the location of the current URI, and checks `internal`, `client_max_body_size` and the
/// final slash.
fn find_location(request: &mut Request) -> Step {
    let http = Rc::clone(&request.http);
    let found = match request.routing.found.take() {
        Some(id) => location::LocationMatch::Plan(http.shared_plan(id)),
        None => location::find(request, &http),
    };
    let (plan, with_slash) = match found {
        location::LocationMatch::Plan(plan) => (Arc::clone(plan), None),
        location::LocationMatch::Slash(plan, path) => (Arc::clone(plan), Some(path)),
        location::LocationMatch::Undecided(regex, cause) => {
            regex.alert(request, &request.uri, cause, "");
            return Step::Finish(500);
        }
    };
    request.note_left_location();
    let before = std::mem::replace(&mut request.plan, plan);
    logs::error!(
        request,
        Debug,
        "using configuration \"{}\"",
        logs::Printable(&request.plan.name)
    );
    if request.plan.internal && !request.routing.internal {
        // The refusal is logged to the error log of the previous plan, not to that of the location.
        let log = request.earlier_error_log.take();
        request.earlier_error_log = log.or_else(|| Some(Arc::clone(&before.error_log)));
        return Step::Finish(404);
    }
    if request.is_main() {
        request.earlier_error_log = None;
    }
    request.check_keepalive();
    match (refuse_long_body(request, ""), with_slash) {
        (Some(refused), _) => refused,
        (None, Some(path)) => request.redirect_to_slash(path),
        (None, None) => Step::Next,
    }
}

/// Returns a step with 413 if the body is longer than `client_max_body_size`, by its announced
/// length or by the bytes read so far. `doing` is the activity for the log line. For a subrequest,
/// the body that it was given counts, which may be none.
fn refuse_long_body(request: &mut Request, doing: &str) -> Option<Step> {
    let limit = request.plan.core.client_max_body_size;
    let length = request.body.judged_length();
    if limit == 0 || length <= limit {
        return None;
    }
    logs::error!(
        request,
        Error,
        "client intended to send too large body: {length} bytes{doing}"
    );
    request.body.give_up();
    Some(Step::Finish(413))
}

/// The content phase: the content handler of the plan, or static files.
pub(crate) async fn content(request: &mut Request, exchange: &mut Exchange) -> Result<Step, Abort> {
    let http = Rc::clone(&request.http);
    let phases = &http.plan(request.plan.id).phases;
    if let Some(handler) = &phases.content {
        return handler.run(request, exchange).resolve().await;
    }
    if phases.changes_files {
        // Methods that change files may wait for a body, so the background subrequests start before
        // that.
        request.start_background();
    }
    let asks_for_file = matches!(request.method, Method::Get | Method::Head | Method::Post);
    if (asks_for_file || phases.changes_files) && !request.has_filename() {
        return Ok(Step::Finish(500));
    }
    match module::run(&phases.files, request, exchange).await? {
        Step::Next => Ok(files::nothing_found(request)),
        step => Ok(step),
    }
}
