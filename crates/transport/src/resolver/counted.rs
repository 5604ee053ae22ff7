//! Query statistics of resolvers with a `status_zone`, kept over reloads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use framework::compile::Compiler;
use framework::zone::{SIZE_MIN, State, Zone, ZoneFact, ZoneFactSink};
use proto::dns::DnsError;

use super::cache::Resolution;

/// Prefix of the names of resolver zones. No other zone has a blank in its name.
const PREFIX: &str = "resolver ";

/// The kind of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuestionKind {
    /// A query for the addresses of a name.
    Name,
    /// A query for the servers of a service (SRV).
    Service,
}

/// The result of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueryResult {
    Answer,
    ServerFailure,
    NotFound,
    Unimplemented,
    Refused,
    Nothing,
}

/// The names of the results, in the order of [`QueryResult`], as in NGINX Plus.
const QUERY_RESULT_NAMES: [&str; 6] = [
    "noerror", "servfail", "nxdomain", "notimp", "refused", "timedout",
];

/// The counters of a zone.
#[derive(Debug, Default)]
pub struct ResolverCounts {
    names: AtomicU64,
    services: AtomicU64,
    /// Number of queries by [`QueryResult`].
    told: [AtomicU64; QUERY_RESULT_NAMES.len()],
}

impl State for ResolverCounts {
    const KIND: &'static str = "resolver";

    type Settings = ();

    fn new(_: u64) -> ResolverCounts {
        ResolverCounts::default()
    }

    fn describe(&self, (): &(), tell: &mut ZoneFactSink<'_>) {
        let read = |count: &AtomicU64| ZoneFact::Number(count.load(Ordering::Relaxed));
        tell("name", read(&self.names));
        tell("srv", read(&self.services));
        for (name, count) in QUERY_RESULT_NAMES.into_iter().zip(&self.told) {
            tell(name, read(count));
        }
    }
}

impl ResolverCounts {
    /// Resets all counters.
    pub fn reset(&self) {
        for count in [&self.names, &self.services].into_iter().chain(&self.told) {
            count.store(0, Ordering::Relaxed);
        }
    }

    fn told(&self, what: QueryResult) {
        if let Some(count) = self.told.get(what as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The name in `status_zone` of a zone with this full name; `None` if it is not the zone of a
/// resolver.
pub fn zone_name(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)
}

/// The zone's full name for a `status_zone` of this name.
pub fn full_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// A resolver's counters, if it has any.
#[derive(Clone, Default)]
pub(super) struct ResolverCounter(Option<Arc<Zone<ResolverCounts>>>);

impl fmt::Debug for ResolverCounter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("ResolverCounter")
            .field(&self.0.is_some())
            .finish()
    }
}

impl ResolverCounter {
    /// The counters in the zone of this name, which several resolvers may share.
    pub(super) fn of(compiler: &Compiler<'_>, name: &str) -> ResolverCounter {
        let name = full_name(name);
        let mut zones = compiler.zones.borrow_mut();
        match zones.declare::<ResolverCounts>(&name, SIZE_MIN, ()) {
            Ok(zone) | Err(framework::zone::ZoneError::Declared(zone)) => {
                ResolverCounter(Some(zone))
            }
            // No other kind has such names.
            Err(framework::zone::ZoneError::Conflict(_)) => ResolverCounter(None),
        }
    }

    fn state(&self) -> Option<&ResolverCounts> {
        self.0.as_ref().map(|zone| &**zone.state())
    }

    pub(super) fn asked(&self, what: QuestionKind) {
        if let Some(state) = self.state() {
            let count = match what {
                QuestionKind::Name => &state.names,
                QuestionKind::Service => &state.services,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn found(&self, found: &Resolution) {
        match found {
            Resolution::Addresses(_) | Resolution::Alias(_) => self.answered(),
            Resolution::Failed(failure) => self.failed(*failure),
        }
    }

    pub(super) fn answered(&self) {
        if let Some(state) = self.state() {
            state.told(QueryResult::Answer);
        }
    }

    pub(super) fn failed(&self, failure: DnsError) {
        if let Some(state) = self.state() {
            state.told(match failure {
                DnsError::Server => QueryResult::ServerFailure,
                DnsError::NotFound => QueryResult::NotFound,
                DnsError::Unimplemented => QueryResult::Unimplemented,
                DnsError::Refused => QueryResult::Refused,
            });
        }
    }

    pub(super) fn timed_out(&self) {
        if let Some(state) = self.state() {
            state.told(QueryResult::Nothing);
        }
    }
}
