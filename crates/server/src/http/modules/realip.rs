//! `set_real_ip_from` for requests: see [`rules::realip`]. As in nginx it is looked at when the head has been read, by the
//! settings of the server, and, if nothing came of that, once the location is known.

use std::sync::Arc;

use engine::net::Address;
use rules::realip::ByProxy;
pub use rules::realip::{RealIp, find};

use crate::http::exchange::Exchange;
use crate::http::module::{Handle, Module, Ran};
use crate::http::plan_builder::PlanBuilder;
use crate::http::request::{Request, Step};
use crate::http::tasks::{Task, TaskKind};

impl ByProxy for Request {
    fn own_peer(&self) -> &Address {
        self.connection.peer()
    }

    fn field(&self, name: &[u8]) -> Option<&[u8]> {
        let mut lines = self.headers();
        let line = lines.find(|(field, _)| field.eq_ignore_ascii_case(name));
        line.map(|(_, value)| value)
    }

    fn is_told(&self) -> bool {
        self.told_peer.is_some()
    }

    fn tell(&mut self, peer: Address) {
        self.told_peer = Some(Box::new(peer));
    }
}

impl Module for RealIp {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::RealAddress, &["set_real_ip_from"])];

    fn is_off(&self) -> bool {
        RealIp::is_off(self)
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.arrived(self);
        plan.preaccess(self);
    }
}

impl Handle for RealIp {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> Ran<'a> {
        self.apply(request);
        Ran::Now(Ok(Step::Next))
    }
}
