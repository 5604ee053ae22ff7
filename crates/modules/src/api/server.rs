//! What the API shows of the server itself, its connections and requests.

use std::sync::Mutex;
use std::sync::PoisonError;

use base::json;
use framework::counters::Totals;
use framework::generation::Generation;
use framework::zone::{State, Tell, Zone};
use http::request::Request;
use http::server_tokens::VERSION;
use jiff::Timestamp;

use super::show::{self, Fields};

/// When the configuration was read.
pub(super) struct Loaded(Timestamp);

impl Loaded {
    pub(super) fn now() -> Loaded {
        Loaded(Timestamp::now())
    }
}

/// What counters showed when they were reset: the counters themselves go on.
#[derive(Debug, Default)]
pub(super) struct Resets(Mutex<Reset>);

/// See [`Totals`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reset {
    accepted: u64,
    dropped: u64,
    requests: u64,
}

/// The name has a blank, so that no zone of a configuration has it.
pub(super) const RESETS: &str = "api resets";

impl State for Resets {
    const KIND: &'static str = "api";

    type Settings = ();

    fn new(_: u64) -> Resets {
        Resets::default()
    }

    fn describe(&self, (): &(), _: &mut Tell<'_>) {}
}

impl Resets {
    fn change(&self, change: impl FnOnce(&mut Reset)) -> Reset {
        let mut reset = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut reset);
        *reset
    }
}

/// What counters show, without what they had shown when they were reset.
pub(super) struct Counted {
    totals: Totals,
    reset: Reset,
}

impl Counted {
    pub(super) fn of(request: &Request) -> Counted {
        Counted {
            totals: request.connection.worker.counters().totals(),
            reset: resets(&request.local.generation)
                .map(|zone| zone.state().change(|_| ()))
                .unwrap_or_default(),
        }
    }

    /// Connections of clients.
    pub(super) fn connections(&self, json: &mut json::Writer, fields: &Fields) {
        let Counted { totals, reset } = self;
        show::object(json, fields, |object| {
            object.number("accepted", totals.accepted.saturating_sub(reset.accepted));
            object.number("dropped", totals.dropped.saturating_sub(reset.dropped));
            object.number("active", totals.active.saturating_sub(totals.waiting));
            object.number("idle", totals.waiting);
        });
    }

    /// Requests of clients.
    pub(super) fn requests(&self, json: &mut json::Writer, fields: &Fields) {
        let Counted { totals, reset } = self;
        show::object(json, fields, |object| {
            object.number("total", totals.requests.saturating_sub(reset.requests));
            object.number("current", totals.writing());
        });
    }
}

fn resets(generation: &Generation) -> Option<std::sync::Arc<Zone<Resets>>> {
    generation.zones.find(RESETS)
}

/// Has accepted and dropped connections counted from now on.
pub(super) fn reset_connections(request: &Request) {
    let totals = request.connection.worker.counters().totals();
    if let Some(zone) = resets(&request.local.generation) {
        zone.state().change(|reset| {
            (reset.accepted, reset.dropped) = (totals.accepted, totals.dropped);
        });
    }
}

/// Has requests counted from now on.
pub(super) fn reset_requests(request: &Request) {
    let totals = request.connection.worker.counters().totals();
    if let Some(zone) = resets(&request.local.generation) {
        zone.state()
            .change(|reset| reset.requests = totals.requests);
    }
}

/// The server itself.
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
        if let Some(loaded) = generation.part::<Loaded>() {
            object.string("load_timestamp", time(loaded.0).as_bytes());
        }
        object.string("timestamp", time(Timestamp::now()).as_bytes());
        object.number("pid", u64::from(std::process::id()));
        object.number("ppid", u64::from(std::os::unix::process::parent_id()));
    });
}

/// A moment by ISO 8601 with milliseconds.
fn time(at: Timestamp) -> String {
    format!("{at:.3}")
}
