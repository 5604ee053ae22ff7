//! `set_real_ip_from` for requests: see [`rules::realip`]. As in nginx, the server's settings are
//! applied when the head has been read. If they did not change the address, the location's settings
//! are applied once the location is known.

use std::sync::Arc;

use conf::{Declared, Fault, ScopeRef};
use engine::net::Address;
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::module::{MaybeFuture, Module, PhaseHandler};
use http::request::{Request, Step};
use http::variables::BuiltinVariable;
use rules::realip::{self, ByProxy};

struct Requests;

impl ByProxy<Request> for Requests {
    fn connection_peer(request: &Request) -> &Address {
        request.connection.peer()
    }

    fn field<'a>(request: &'a Request, name: &[u8]) -> Option<&'a [u8]> {
        let mut lines = request.headers();
        let line = lines.find(|(field, _)| field.eq_ignore_ascii_case(name));
        line.map(|(_, value)| value)
    }

    fn is_realip(request: &Request) -> bool {
        request.arrival.realip_address.is_some()
    }

    fn tell(request: &mut Request, peer: Address) {
        request.arrival.realip_address = Some(Box::new(peer));
    }
}

/// The proxies that a scope trusts.
pub struct RealIp(Arc<realip::RealIp>);

impl Feature for RealIp {
    const DIRECTIVES: &'static [&'static dyn Declared] = realip::RealIp::DIRECTIVES;

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<RealIp, Fault> {
        compiler.feature(scope).map(RealIp)
    }
}

impl Module for RealIp {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::RealAddress, &["set_real_ip_from"])];

    fn is_off(&self) -> bool {
        self.0.is_off()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.arrived(self);
        plan.preaccess(self);
    }
}

impl PhaseHandler for RealIp {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        self.0.apply::<_, Requests>(request);
        MaybeFuture::Now(Ok(Step::Next))
    }
}

/// The variable with this name (in lower case, without `$`).
pub fn find(name: &str) -> Option<BuiltinVariable> {
    realip::find::<Request, Requests>(name)
}
