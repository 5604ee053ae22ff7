//! `limit_conn` for requests: see [`rules::limit_conn`]. A request is counted from when its head
//! has been read until it ends, so that idle HTTP/1 connections do not count. A main request and
//! its subrequests are counted once.

use std::sync::Arc;

use conf::{Declared, Fault, ScopeRef};
use framework::compile::{Compiler, Feature};
use framework::slot::Slot;
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::module::{MaybeFuture, Module, PhaseHandler};
use http::request::{Request, Step};
use http::slots::MainRequestLifetime;
use http::variables::BuiltinVariable;
use rules::limit_conn::{
    ConnectionCounting, ConnectionLimitState, LIMIT_CONN_ZONE, LimitConn, LimitOutcome,
};

/// The places that a main request and its subrequests take up in zones, until the main request
/// ends.
static COUNTED: Slot<ConnectionLimitState<Request>, MainRequestLifetime> = Slot::new();

/// Stores the places of a request in its zones.
pub struct Requests;

impl ConnectionCounting<Request> for Requests {
    fn outcome(request: &Request) -> Option<LimitOutcome> {
        request.shared.main.borrow().get(&COUNTED)?.outcome
    }

    fn note(request: &Request, change: impl FnOnce(&mut ConnectionLimitState<Request>)) {
        change(request.shared.main.borrow_mut().enter(&COUNTED));
    }
}

/// The limits of a scope.
pub struct Limits(Arc<LimitConn<Request>>);

impl Feature for Limits {
    const DIRECTIVES: &'static [&'static dyn Declared] = LimitConn::<Request>::DIRECTIVES;

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Limits, Fault> {
        compiler.feature(scope).map(Limits)
    }
}

impl Module for Limits {
    const TABLES: &'static [&'static [&'static dyn Declared]] =
        &[&[&LIMIT_CONN_ZONE], Limits::DIRECTIVES];

    const TASKS: &'static [Task] = &[Task::of(TaskKind::Limits, &["limit_conn"]).listed(1)];

    fn is_off(&self) -> bool {
        self.0.is_off()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.preaccess(self);
    }
}

impl PhaseHandler for Limits {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        let step = match self.0.enter::<Requests>(request) {
            Ok(()) => Step::Next,
            Err(status) => Step::Finish(status),
        };
        MaybeFuture::Now(Ok(step))
    }
}

/// Declares the zones of an `http` block.
pub fn compile(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    rules::limit_conn::compile::<Request>(compiler, http);
}

/// The variable with this name (in lower case, without `$`).
pub fn find(name: &str) -> Option<BuiltinVariable> {
    rules::limit_conn::find::<Request, Requests>(name)
}
