//! `allow` and `deny` as a check of requests. The rules are in [`rules::access`]; the access phase
//! combines the verdict with other checks (`satisfy`).

use std::sync::Arc;

use conf::{Declared, Fault, ScopeRef};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::{AccessVerdict, Check, MaybeFuture, Module, Permit, Shortcut, ShortcutDoc};
use http::request::Request;

/// The rules of a scope.
pub struct Access(Arc<rules::access::Access>);

impl Feature for Access {
    const DIRECTIVES: &'static [&'static dyn Declared] = rules::access::Access::DIRECTIVES;

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Access, Fault> {
        compiler.feature(scope).map(Access)
    }
}

impl Module for Access {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Access, &["allow", "deny"])];
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::OfRequest(
        "where the client's address is not denied; it may be another every time",
    )];

    fn is_off(&self) -> bool {
        self.0.is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.access(self);
    }

    fn shortcut(self: &Arc<Self>) -> Shortcut {
        Shortcut::OfRequest(self.clone())
    }
}

impl Permit for Access {
    fn permits(&self, request: &Request) -> bool {
        self.0.denies(request.peer()) != Some(true)
    }
}

impl Check for Access {
    fn check<'a>(
        &'a self,
        request: &'a mut Request,
        _: &'a mut Exchange,
    ) -> MaybeFuture<'a, Result<AccessVerdict, Abort>> {
        let verdict = verdict(self, request);
        // With `satisfy any` another check may still grant access, so the phase logs the refusal at
        // the end.
        if verdict == AccessVerdict::Refused(403) && !request.plan.core.satisfy_any {
            logs::error!(request, Error, "access forbidden by rule");
        }
        MaybeFuture::Now(Ok(verdict))
    }

    fn explain_verdict(&self, request: &Request) -> Option<(String, AccessVerdict)> {
        let from = request.connection.peer().ip();
        let from = from.map(|ip| ip.to_string()).unwrap_or_default();
        let verdict = verdict(self, request);
        match verdict {
            AccessVerdict::Declined => None,
            AccessVerdict::Granted => Some((format!("{from} is allowed"), verdict)),
            AccessVerdict::Refused(status) => {
                Some((format!("{from} is denied: status {status}"), verdict))
            }
        }
    }
}

/// The verdict of the rules for the client's address.
fn verdict(access: &Access, request: &Request) -> AccessVerdict {
    match access.0.denies(request.peer()) {
        None => AccessVerdict::Declined,
        Some(false) => AccessVerdict::Granted,
        Some(true) => AccessVerdict::Refused(403),
    }
}
