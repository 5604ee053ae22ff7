//! `limit_conn` for requests: see [`rules::limit_conn`]. A request is counted from the moment when it has been read until it
//! has ended, so that in HTTP/1 idle connections do not count. Of a request and its subrequests only one is.

use std::sync::Arc;

use conf::Declared;
use framework::compile::Feature;
use framework::slot::Slot;
use rules::limit_conn::{Counted, LIMIT_CONN_ZONE, LimitConn, Outcome, Places};

use crate::http::exchange::Exchange;
use crate::http::module::{Handle, Module, Ran};
use crate::http::plan_builder::PlanBuilder;
use crate::http::request::{Request, Step};
use crate::http::slots::OfMain;
use crate::http::tasks::{Task, TaskKind};

/// What becomes of a main request and its subrequests, until the main request ends.
static COUNTED: Slot<Places<Request>, OfMain> = Slot::new();

impl Counted for Request {
    fn outcome(&self) -> Option<Outcome> {
        self.shared.main.borrow().get(&COUNTED)?.outcome
    }

    fn note(&self, change: impl FnOnce(&mut Places<Request>)) {
        change(self.shared.main.borrow_mut().enter(&COUNTED));
    }
}

impl Module for LimitConn<Request> {
    const TABLES: &'static [&'static [&'static dyn Declared]] = &[
        &[&LIMIT_CONN_ZONE],
        <LimitConn<Request> as Feature>::DIRECTIVES,
    ];

    const TASKS: &'static [Task] = &[Task::of(TaskKind::Limits, &["limit_conn"]).listed(1)];

    fn is_off(&self) -> bool {
        LimitConn::is_off(self)
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.preaccess(self);
    }
}

impl Handle for LimitConn<Request> {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> Ran<'a> {
        let step = match self.enter(request) {
            Ok(()) => Step::Next,
            Err(status) => Step::Finish(status),
        };
        Ran::Now(Ok(step))
    }
}
