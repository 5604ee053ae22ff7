//! Scheduling of health checks: one thread of the process runs the checks of the configuration in
//! force.
//!
//! ```text
//! run ─▶ watch, for each check ─▶ probe, for each peer repeatedly ─▶ update of the peer's health
//! ```
//!
//! A reload ends the thread before the next one starts. A running check is then abandoned: its
//! result would belong to the health of its own generation, which is no longer used.

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;

use ::upstream::{Health, Peer};
use framework::generation::Generation;
use framework::panics::{self, Panicked};
use framework::service::{RunningService, Service};
use http::request::Request;
use http::request::internal::{InternalRequests, RequestScope};
use logs::Printable;
use rules::service_thread;
use rules::upstream::health_check::{self, PeerCheck, watch};

use super::{HealthCheck, ProbeKind};
use crate::grpc::probe::HealthProbe;
use crate::proxy::probe::{Probe, ProbeConnection};
use proxying::probe::{ProbeActivity, ProbeReuse, Unanswered};
use proxying::upstream::HttpUpstreams;

/// The checks of a configuration.
pub(super) struct Prober(pub(super) Vec<Arc<HealthCheck>>);

impl Service for Prober {
    fn key(&self) -> String {
        "health checks".to_owned()
    }

    /// Starts a thread for the checks, after the thread of the previous configuration has ended.
    fn start(
        &self,
        generation: &Arc<Generation>,
        before: Option<RunningService>,
    ) -> Option<RunningService> {
        drop(before);
        let (generation, checks) = (Arc::clone(generation), self.0.clone());
        service_thread::start("health", "health checks", || run(generation, checks))
    }
}

/// Starts a watch for each check. Never returns: the thread ends with the configuration.
async fn run(generation: Arc<Generation>, checks: Vec<Arc<HealthCheck>>) {
    let errands = Rc::new(InternalRequests::new(generation));
    for check in checks {
        match errands.place(check.server, check.scope) {
            Some(place) => engine::spawn(watch(Rc::new(ActiveCheck {
                check,
                place,
                errands: Rc::clone(&errands),
            }))),
            None => {
                let name = Printable(check.check.group.name());
                logs::event!(Alert, "no health checks of upstream \"{name}\"");
            }
        }
    }
    pending().await
}

/// A running check.
struct ActiveCheck {
    check: Arc<HealthCheck>,
    /// The scope in which the probes' requests run: the check's server and location.
    place: RequestScope,
    /// Makes the requests of the probes.
    errands: Rc<InternalRequests>,
}

impl health_check::Prober for ActiveCheck {
    type Upstreams = HttpUpstreams;

    type Kept = Option<ProbeConnection>;

    fn check(&self) -> &PeerCheck<HttpUpstreams> {
        &self.check.check
    }

    async fn probe(&self, peer: &Peer, health: &Health, kept: &mut Option<ProbeConnection>) {
        let check = &self.check;
        let about = check.check.about(peer);
        let mut request = match self.errands.request(&self.place, &about) {
            Ok(request) => request,
            // A local failure does not count against the peer.
            Err(error) => {
                let error = logs::Errno(&error);
                return logs::event!(Alert, "socket() failed {error} while checking health");
            }
        };
        match panics::catch(judge(check, peer, &mut request, kept)).await {
            Ok(Some(judged)) => check.check.note(&*request, peer, health, judged),
            Ok(None) => {}
            Err(Panicked { place, message }) => {
                logs::error!(
                    request,
                    Alert,
                    "panicked at {place}: {message}: the check is lost"
                );
            }
        }
    }
}

/// Probes the peer. Returns the last test if the peer is healthy, else the test that failed. `None`
/// if the result does not depend on the peer.
async fn judge(
    check: &HealthCheck,
    peer: &Peer,
    request: &mut Request,
    kept: &mut Option<ProbeConnection>,
) -> Option<Result<ProbeActivity, ProbeActivity>> {
    let keeps = check.keepalive_time.map(|time| ProbeReuse {
        check: check.check.number,
        time,
    });
    let (address, name) = (check.check.address(peer), peer.name.clone());
    let (proxy, uri, matching) = match &check.asked {
        ProbeKind::Http {
            proxy,
            uri,
            matching,
        } => (proxy, uri, matching),
        ProbeKind::Grpc {
            pass,
            service,
            status,
        } => {
            let probe = HealthProbe {
                pass,
                group: &check.check.group,
                address,
                name,
                service,
                status: *status,
                keeps,
            };
            return match probe.ask(request).await {
                Ok(judged) => Some(judged),
                Err(Unanswered::ByPeer(doing)) => Some(Err(doing)),
                Err(Unanswered::NotAsked) => None,
            };
        }
    };
    let probe = Probe {
        proxy,
        group: &check.check.group,
        address,
        name,
        uri,
        keeps,
    };
    let usable = kept.take().filter(|kept| {
        let age = engine::now().saturating_duration_since(kept.since);
        check.keepalive_time.is_some_and(|most| age < most)
    });
    let mut reply = match probe.ask(request, usable).await {
        Ok(reply) => reply,
        Err(Unanswered::ByPeer(doing)) => return Some(Err(doing)),
        Err(Unanswered::NotAsked) => return None,
    };
    let judged = matching.judge(request, &mut reply).await;
    if probe.keeps.is_some() {
        *kept = reply.finish(request).await;
    }
    Some(judged)
}
