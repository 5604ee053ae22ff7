//! Who makes the checks: one thread of the process, by the configuration that is in force.
//!
//! ```text
//! run ─▶ watch, for each check ─▶ keep_probing, for each peer that there is ─▶ probe ─▶ what the peer's health comes to
//! ```
//!
//! A reload ends the thread before the next one starts. A check that is under way then is given up;
//! what it would have found belongs to the health of its own generation, which counts no more.

use std::cell::RefCell;
use std::future::pending;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ::upstream::{Finding, Health, HealthChange, Peer};
use engine::net::Address;
use framework::generation::Generation;
use framework::panics::{self, Panicked};
use framework::service::{RunningService, Service};
use http::request::Request;
use http::request::internal::{InternalRequests, RequestScope};
use logs::Printable;
use rules::service_thread;

use super::{HealthCheck, ProbeKind};
use crate::grpc::probe::HealthProbe;
use crate::proxy::probe::{Probe, ProbeConnection};
use proxying::probe::{Doing, Keeping, Unanswered};

/// How soon peers that a lookup has added are found.
const LOOK: Duration = Duration::from_secs(1);

/// The checks of a configuration.
pub(super) struct Prober(pub(super) Vec<Arc<HealthCheck>>);

impl Service for Prober {
    fn key(&self) -> String {
        "health checks".to_owned()
    }

    /// Starts a thread of its own; the one before ends.
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

async fn run(generation: Arc<Generation>, checks: Vec<Arc<HealthCheck>>) {
    let errands = Rc::new(InternalRequests::new(generation));
    for check in checks {
        match errands.place(check.server, check.scope) {
            Some(place) => engine::spawn(watch(Rc::new(ActiveCheck {
                check,
                place,
                errands: Rc::clone(&errands),
                probed: RefCell::default(),
            }))),
            None => {
                let name = Printable(check.group.name());
                logs::event!(Alert, "no health checks of upstream \"{name}\"");
            }
        }
    }
    pending().await
}

/// A check in the course of being made.
struct ActiveCheck {
    check: Arc<HealthCheck>,
    place: RequestScope,
    errands: Rc<InternalRequests>,
    /// The peers of which it is made, by their healths.
    probed: RefCell<Vec<Arc<Health>>>,
}

/// Starts to probe whatever peers there are. Those that leave the group end by themselves.
async fn watch(course: Rc<ActiveCheck>) {
    let group = &course.check.group.shared;
    loop {
        for peer in group.peers().iter().filter(|peer| !peer.down) {
            let Some(health) = peer.health() else {
                continue;
            };
            let mut probed = course.probed.borrow_mut();
            if !probed.iter().any(|known| Arc::ptr_eq(known, health)) {
                probed.push(Arc::clone(health));
                engine::spawn(keep_probing(Rc::clone(&course), peer.share()));
            }
        }
        if !group.may_change() {
            return;
        }
        engine::sleep(LOOK).await;
    }
}

/// Probes a peer again and again, as long as it is in its group.
async fn keep_probing(course: Rc<ActiveCheck>, peer: Peer) {
    let Some(health) = peer.health().cloned() else {
        return;
    };
    let check = &course.check;
    let mut kept = None;
    let mut pause = Duration::ZERO;
    loop {
        engine::sleep(pause + by_chance(check.jitter)).await;
        pause = check.interval;
        if !is_in(check, &health) {
            break;
        }
        probe(&course, &peer, &health, &mut kept).await;
    }
    let mut probed = course.probed.borrow_mut();
    probed.retain(|known| !Arc::ptr_eq(known, &health));
}

/// A time up to this one.
fn by_chance(most: Duration) -> Duration {
    let most = usize::try_from(most.as_millis()).unwrap_or(usize::MAX);
    let millis = framework::random::below(most.saturating_add(1));
    Duration::from_millis(millis as u64)
}

/// Whether a peer is in its group still.
fn is_in(check: &HealthCheck, health: &Arc<Health>) -> bool {
    let peers = check.group.shared.peers();
    let asked = peers.iter().filter(|peer| !peer.down);
    let mut healths = asked.filter_map(Peer::health);
    healths.any(|known| Arc::ptr_eq(known, health))
}

/// Makes the check once, and notes what has come of it.
async fn probe(
    course: &ActiveCheck,
    peer: &Peer,
    health: &Health,
    kept: &mut Option<ProbeConnection>,
) {
    let ActiveCheck {
        check,
        place,
        errands,
        ..
    } = course;
    let mut request = match errands.request(place, &about(check, peer)) {
        Ok(request) => request,
        // That is no fault of the peer.
        Err(error) => {
            let error = logs::Errno(&error);
            return logs::event!(Alert, "socket() failed {error} while checking health");
        }
    };
    let judged = match panics::catch(judge(check, peer, &mut request, kept)).await {
        Ok(Some(judged)) => judged,
        Ok(None) => return,
        Err(Panicked { place, message }) => {
            return logs::error!(
                request,
                Alert,
                "panicked at {place}: {message}: the check is lost"
            );
        }
    };
    let change = match judged {
        Ok(_) => health.passed(check.number, check.passes),
        Err(_) => health.failed(check.number, check.fails),
    };
    let (Ok(doing) | Err(doing)) = judged;
    tell(&request, change, doing);
    if change.recovered {
        check.group.shared.recovered(peer, engine::now());
    }
}

/// What log lines say of it in the place of a client.
fn about(check: &HealthCheck, peer: &Peer) -> Arc<str> {
    let [name, peer, group] =
        [&check.match_name, &peer.name, check.group.name()].map(|text| Printable(text).to_string());
    let about = format!("health check \"{name}\" of peer {peer} in upstream \"{group}\"");
    match check.port {
        Some(port) => format!("{about}, port {port}").into(),
        None => about.into(),
    }
}

fn tell(request: &Request, change: HealthChange, doing: Doing) {
    match change.finding {
        Some(Finding::Unhealthy) => logs::error!(request, Warn, "peer is unhealthy {doing}"),
        Some(_) => logs::error!(request, Notice, "peer is healthy {doing}"),
        None => {}
    }
}

/// Asks the peer; what was tested last of its answer, or what the check has failed at. `None` where
/// that says nothing of the peer.
async fn judge(
    check: &HealthCheck,
    peer: &Peer,
    request: &mut Request,
    kept: &mut Option<ProbeConnection>,
) -> Option<Result<Doing, Doing>> {
    let keeps = check.keepalive_time.map(|time| Keeping {
        check: check.number,
        time,
    });
    let (address, name) = (address(check, peer), peer.name.clone());
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
                group: &check.group,
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
        group: &check.group,
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

/// Where a peer is asked.
fn address(check: &HealthCheck, peer: &Peer) -> Address {
    match (&peer.address, check.port) {
        (Address::Inet(address), Some(port)) => Address::Inet(SocketAddr::new(address.ip(), port)),
        (address, _) => address.clone(),
    }
}
