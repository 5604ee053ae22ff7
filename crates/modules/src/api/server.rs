//! The server itself in the API, with its connections and requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::json;
use bytes::Bytes;
use framework::counters::{HandshakeFault, Totals};
use framework::generation::Generation;
use framework::zone::{State, Zone, ZoneFactSink};
use http::config::server_tokens::VERSION;
use http::logging::zone_meter::ZoneSums;
use http::request::Request;
use jiff::Timestamp;
use rules::session_zones::{SessionBlock, SessionHandshake, SessionSums, SessionZones};

use super::caches::CacheAnswers;
use super::endpoint::Kind;
use super::failure::ApiError;
use super::limits::{self, Outcomes};
use super::show::{self, Fields};
use super::zones::{self, ZoneNames};

/// The time at which the configuration was loaded.
pub(super) struct LoadTime(Timestamp);

impl LoadTime {
    pub(super) fn now() -> LoadTime {
        LoadTime(Timestamp::now())
    }
}

/// The values of counters at their last reset. The counters themselves are never set back:
/// responses show the difference.
#[derive(Debug, Default)]
pub(super) struct Resets {
    counters: Mutex<Reset>,
    /// By the name of the server zone.
    zones: Mutex<BTreeMap<Bytes, ZoneSums>>,
    /// By the name of the location zone.
    locations: Mutex<BTreeMap<Bytes, ZoneSums>>,
    limits: Mutex<BTreeMap<(Kind, Bytes), Outcomes>>,
    sessions: Mutex<BTreeMap<(SessionBlock, Bytes), SessionSums>>,
    /// By the number of the thread.
    pub(super) workers: Mutex<BTreeMap<u64, Totals>>,
    /// By the name of the cache.
    pub(super) caches: Mutex<BTreeMap<Bytes, CacheAnswers>>,
}

/// The values of the process's counters at their last reset.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reset {
    accepted: u64,
    dropped: u64,
    requests: u64,
    handshakes: u64,
    sessions_reused: u64,
    handshakes_failed: u64,
    /// Failed handshakes by their fault.
    faults: [u64; HandshakeFault::ALL.len()],
}

/// The name of the zone that keeps [`Resets`]. It contains a space, so no configured zone can have
/// it.
pub(super) const RESETS: &str = "api resets";

impl State for Resets {
    const KIND: &'static str = "api";

    type Settings = ();

    fn new(_: u64) -> Resets {
        Resets::default()
    }

    fn describe(&self, (): &(), _: &mut ZoneFactSink<'_>) {}
}

impl Resets {
    fn change(&self, change: impl FnOnce(&mut Reset)) -> Reset {
        let mut reset = lock(&self.counters);
        change(&mut reset);
        *reset
    }

    /// The values at the last reset for zones of servers or locations, by the zone's name.
    fn of_zones(&self, kind: Kind) -> MutexGuard<'_, BTreeMap<Bytes, ZoneSums>> {
        lock(match kind {
            Kind::ServerZones => &self.zones,
            _ => &self.locations,
        })
    }
}

/// Locks a mutex. A poisoned one is used as well, since it contains only numbers.
pub(super) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The counters of all zones of a kind, or only of the zone with the name `only`.
pub(super) fn zones(
    request: &Request,
    kind: Kind,
    only: Option<&Bytes>,
) -> Vec<(Bytes, ZoneCounters)> {
    let generation = &request.local.generation;
    let resets = resets(generation);
    let is_asked = |name: &Bytes| only.is_none_or(|only| only == name);
    match kind {
        Kind::ServerZones | Kind::LocationZones => {
            let names: Option<Arc<ZoneNames>> = generation.part();
            let names = names.iter().flat_map(|names| names.of(kind));
            let names = names.filter(|name| is_asked(name)).cloned();
            let shown = names.map(|name| {
                let sums = zones::sums(request, kind, &name);
                let resets = resets.as_ref().map(|zone| zone.state().of_zones(kind));
                let earlier = resets.and_then(|known| known.get(&name).cloned());
                (
                    name,
                    ZoneCounters::Requests(sums.since(&earlier.unwrap_or_default())),
                )
            });
            shown.collect()
        }
        Kind::StreamServerZones | Kind::MemcachedServerZones => {
            let block = block_of(kind);
            let names: Option<Arc<SessionZones>> = generation.part();
            let names = names.iter().flat_map(|names| names.names(block));
            let names = names.filter(|name| is_asked(name)).cloned();
            let shown = names.map(|name| {
                let sums = SessionSums::of(request.connection.worker.counters(), block, &name);
                let resets = resets.as_ref().map(|zone| lock(&zone.state().sessions));
                let earlier = resets.and_then(|known| known.get(&(block, name.clone())).copied());
                let sums = sums.since(&earlier.unwrap_or_default());
                (name, ZoneCounters::Sessions(sums))
            });
            shown.collect()
        }
        Kind::LimitConns | Kind::LimitReqs | Kind::StreamLimitConns => {
            let all = limits::all(request, kind).into_iter();
            let all = all.map(|(name, outcomes)| (Bytes::from(name), outcomes));
            let shown = all
                .filter(|(name, _)| is_asked(name))
                .map(|(name, outcomes)| {
                    let resets = resets.as_ref().map(|zone| lock(&zone.state().limits));
                    let key = (kind, name.clone());
                    let earlier = resets.and_then(|known| known.get(&key).cloned());
                    (
                        name,
                        ZoneCounters::Outcomes(outcomes.since(&earlier.unwrap_or_default())),
                    )
                });
            shown.collect()
        }
    }
}

/// The counters of a zone: of requests, of sessions, or of a limit's outcomes.
pub(super) enum ZoneCounters {
    Requests(ZoneSums),
    Sessions(SessionSums),
    Outcomes(Outcomes),
}

impl ZoneCounters {
    pub(super) fn show(&self, kind: Kind, version: u8, json: &mut json::Writer, fields: &Fields) {
        if fields.are_none() {
            return json.object(|_| ());
        }
        match self {
            ZoneCounters::Requests(sums) => zones::show(sums, kind, version >= 7, json, fields),
            ZoneCounters::Sessions(sums) => sessions(sums, json, fields),
            ZoneCounters::Outcomes(outcomes) => outcomes.show(json, fields),
        }
    }
}

fn sessions(sums: &SessionSums, json: &mut json::Writer, fields: &Fields) {
    show::object(json, fields, |object| {
        object.number("processing", sums.processing);
        object.number("connections", sums.connections());
        object.field("sessions", |json| {
            show::complete_object(json, |object| {
                for (name, count) in ["2xx", "4xx", "5xx"].into_iter().zip(sums.ended) {
                    object.number(name, count);
                }
                object.number("total", sums.ended.iter().sum());
            });
        });
        object.number("discarded", sums.discarded);
        object.number("received", sums.received);
        object.number("sent", sums.sent);
        let handshakes = [
            SessionHandshake::Full,
            SessionHandshake::Resumed,
            SessionHandshake::Failed,
        ];
        let [full, resumed, failed] = handshakes.map(|outcome| sums.handshakes(outcome));
        // Omitted if the zone has counted no TLS handshakes.
        if full + resumed + failed > 0 {
            object.field("ssl", |json| {
                show::complete_object(json, |object| {
                    object.number("handshakes", full + resumed);
                    object.number("handshakes_failed", failed);
                    object.number("session_reuses", resumed);
                });
            });
        }
    });
}

/// The block of a kind of zones that count sessions.
fn block_of(kind: Kind) -> SessionBlock {
    match kind {
        Kind::MemcachedServerZones => SessionBlock::Memcached,
        _ => SessionBlock::Stream,
    }
}

/// Resets all counters of a zone.
pub(super) fn reset_zone(request: &Request, kind: Kind, name: &Bytes) -> Result<(), ApiError> {
    let missing = || ApiError::ZoneNotFound(kind);
    zones(request, kind, Some(name)).pop().ok_or_else(missing)?;
    let Some(resets) = resets(&request.local.generation) else {
        return Ok(());
    };
    match kind {
        Kind::ServerZones | Kind::LocationZones => {
            let sums = zones::sums(request, kind, name);
            resets.state().of_zones(kind).insert(name.clone(), sums);
        }
        Kind::StreamServerZones | Kind::MemcachedServerZones => {
            let block = block_of(kind);
            let sums = SessionSums::of(request.connection.worker.counters(), block, name);
            lock(&resets.state().sessions).insert((block, name.clone()), sums);
        }
        Kind::LimitConns | Kind::LimitReqs | Kind::StreamLimitConns => {
            let mut all = limits::all(request, kind).into_iter();
            let found = all.find(|(known, _)| known.as_bytes() == name);
            if let Some((_, outcomes)) = found {
                lock(&resets.state().limits).insert((kind, name.clone()), outcomes);
            }
        }
    }
    Ok(())
}

/// The current counters, minus their readings at the last reset.
pub(super) struct CountersSnapshot {
    totals: Totals,
    reset: Reset,
}

impl CountersSnapshot {
    /// The counters of the process, and their values at the last reset.
    pub(super) fn of(request: &Request) -> CountersSnapshot {
        CountersSnapshot {
            totals: request.connection.worker.counters().totals(),
            reset: resets(&request.local.generation)
                .map(|zone| zone.state().change(|_| ()))
                .unwrap_or_default(),
        }
    }

    /// Writes the connections from clients.
    pub(super) fn connections(&self, json: &mut json::Writer, fields: &Fields) {
        let CountersSnapshot { totals, reset } = self;
        show::object(json, fields, |object| {
            object.number("accepted", totals.accepted.saturating_sub(reset.accepted));
            object.number("dropped", totals.dropped.saturating_sub(reset.dropped));
            object.number("active", totals.active.saturating_sub(totals.waiting));
            object.number("idle", totals.waiting);
        });
    }

    /// Writes the TLS handshakes with clients.
    pub(super) fn handshakes(&self, json: &mut json::Writer, fields: &Fields) {
        let CountersSnapshot { totals, reset } = self;
        let since = |now: u64, then: u64| now.saturating_sub(then);
        show::object(json, fields, |object| {
            object.number("handshakes", since(totals.handshakes, reset.handshakes));
            let failed = since(totals.handshakes_failed, reset.handshakes_failed);
            object.number("handshakes_failed", failed);
            let reused = since(totals.sessions_reused, reset.sessions_reused);
            object.number("session_reuses", reused);
            let fault = |fault: HandshakeFault| {
                let before = reset.faults.get(fault as usize);
                since(totals.faults(fault), before.copied().unwrap_or_default())
            };
            let of_certificates = |fault: &HandshakeFault| fault.is_of_certificate();
            for known in HandshakeFault::ALL {
                if !of_certificates(&known) && known != HandshakeFault::Other {
                    object.number(known.name(), fault(known));
                }
            }
            object.field("verify_failures", |json| {
                show::complete_object(json, |object| {
                    for known in HandshakeFault::ALL.into_iter().filter(of_certificates) {
                        let name = match known {
                            HandshakeFault::UnverifiedCertificate => "other",
                            known => known.name(),
                        };
                        object.number(name, fault(known));
                    }
                });
            });
        });
    }

    /// Writes the requests from clients.
    pub(super) fn requests(&self, json: &mut json::Writer, fields: &Fields) {
        let CountersSnapshot { totals, reset } = self;
        show::object(json, fields, |object| {
            object.number("total", totals.requests.saturating_sub(reset.requests));
            object.number("current", totals.writing());
        });
    }
}

/// The zone that keeps the values of counters at their last reset.
pub(super) fn resets(generation: &Generation) -> Option<Arc<Zone<Resets>>> {
    generation.zones.find(RESETS)
}

/// Resets the counters of accepted and dropped connections.
pub(super) fn reset_connections(request: &Request) {
    let totals = request.connection.worker.counters().totals();
    if let Some(zone) = resets(&request.local.generation) {
        zone.state().change(|reset| {
            (reset.accepted, reset.dropped) = (totals.accepted, totals.dropped);
        });
    }
}

/// Resets the counters of handshakes.
pub(super) fn reset_handshakes(request: &Request) {
    let totals = request.connection.worker.counters().totals();
    if let Some(zone) = resets(&request.local.generation) {
        zone.state().change(|reset| {
            reset.handshakes = totals.handshakes;
            reset.handshakes_failed = totals.handshakes_failed;
            reset.sessions_reused = totals.sessions_reused;
            reset.faults = totals.handshake_faults;
        });
    }
}

/// Resets the counter of requests.
pub(super) fn reset_requests(request: &Request) {
    let totals = request.connection.worker.counters().totals();
    if let Some(zone) = resets(&request.local.generation) {
        zone.state()
            .change(|reset| reset.requests = totals.requests);
    }
}

/// Writes the resource usage of the process (not in NGINX Plus). The number of restarts is known
/// only to the master.
pub(super) fn process(json: &mut json::Writer, fields: &Fields) {
    let usage = framework::usage::now();
    show::object(json, fields, |object| {
        object.field("cpu_seconds", |json| json.number(usage.processor_seconds));
        for (name, number) in [
            ("memory", usage.resident_bytes),
            ("descriptors", usage.open_descriptors),
            ("descriptors_max", usage.descriptors_max),
        ] {
            if let Some(number) = number {
                object.number(name, number);
            }
        }
    });
}

pub(super) fn nginx(request: &Request, json: &mut json::Writer, fields: &Fields) {
    let generation = &request.local.generation;
    let local = request.connection.local();
    show::object(json, fields, |object| {
        object.string("version", VERSION.as_bytes());
        object.string("build", b"tidegate");
        object.field("address", |json| match local {
            engine::net::Address::Inet(address) => json.string(&address.ip().to_string()),
            unix => json.string(&unix.to_string()),
        });
        object.number("generation", generation.number);
        if let Some(loaded) = generation.part::<LoadTime>() {
            object.string("load_timestamp", time(loaded.0).as_bytes());
        }
        object.string("timestamp", time(Timestamp::now()).as_bytes());
        object.number("pid", u64::from(std::process::id()));
        object.number("ppid", u64::from(std::os::unix::process::parent_id()));
    });
}

/// Formats a time as ISO 8601 with milliseconds.
fn time(at: Timestamp) -> String {
    format!("{at:.3}")
}
