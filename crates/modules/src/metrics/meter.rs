//! Request counters per scope, kept by each thread.
//!
//! The scopes are known when a configuration is compiled ([`Scopes`]). Each thread looks up their
//! meters once per generation, by name, so that counts continue over reloads. Counting a request is
//! then an index and a few additions to memory that no other thread writes to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use conf::{Contexts, ScopeRef};
use framework::compile::Compiler;
use framework::counters::{Count, Counters};
use framework::generation::{Generation, GenerationView};
use framework::registry::Registry;
use framework::slot::{Slot, ThreadGeneration, ThreadState};
use http::config::listen;
use http::config::plan_builder::PlanBuilder;
use http::module::{OnRequestEnd, Shortcut, ShortcutDoc};
use http::request::Request;

use crate::grpc::call;

/// Maximum number of meters of a thread, over all generations. Requests of further scopes are
/// counted together, under [`ScopeName::others`].
const METERS_MAX: usize = 4096;

/// The upper bounds of the histogram's buckets, in microseconds.
pub const BOUNDS: [u64; 18] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// Classes of statuses by their first digit; 0 is for requests without a status, or with one above
/// 599.
pub const CLASSES: usize = 6;

/// gRPC statuses with a counter of their own,
/// <https://grpc.github.io/grpc/core/md_doc_statuscodes.html>. One more counter is for all other
/// statuses, and for calls without one.
pub const CALL_STATUSES: usize = 17;

/// The labels of a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeName {
    /// The first `server_name` as written; empty if there is none.
    pub server: String,
    /// The first address that the server listens on.
    pub listen: String,
    /// The location as written, as in `= /path`; empty for requests outside all locations.
    pub location: String,
}

impl ScopeName {
    /// The labels of a scope: those of its server and its location.
    fn of(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> ScopeName {
        let around = || std::iter::successors(Some(scope), |scope| scope.parent());
        let find = |context| around().find(|scope| scope.context() == context);
        let location = find(Contexts::LOCATION).and_then(|scope| scope.line());
        let location = location.map(|line| {
            let words: Vec<_> = line.args.iter().map(|word| word.text()).collect();
            words.join(" ")
        });
        let server = find(Contexts::SERVER);
        let name = server.and_then(|server| {
            let mut lines = server.lines().iter();
            let line = lines.find(|line| line.is("server_name"))?;
            Some(line.argument(0).text().into_owned())
        });
        let listens = server.and_then(|server| listen::of_server(compiler, server).ok());
        let listens = listens.unwrap_or_default();
        let listen = listens.first().map(|listen| &listen.options.address);
        ScopeName {
            server: name.unwrap_or_default(),
            listen: listen.map(ToString::to_string).unwrap_or_default(),
            location: location.unwrap_or_default(),
        }
    }

    /// The labels of the counter for scopes beyond [`METERS_MAX`].
    fn others() -> ScopeName {
        ScopeName {
            location: "others".to_owned(),
            ..ScopeName::default()
        }
    }
}

/// The names of a generation's scopes, by index; empty if scopes are not counted.
#[derive(Debug, Default)]
pub struct Scopes {
    /// Whether requests are counted per scope.
    counted: bool,
    names: Vec<ScopeName>,
}

impl Scopes {
    /// An empty list. Scopes are counted if the configuration has a `metrics` directive anywhere.
    pub fn new(root: ScopeRef<'_>) -> Scopes {
        let mut scopes = root.tree().scopes();
        Scopes {
            counted: scopes.any(|scope| scope.writes(super::DIRECTIVES)),
            names: Vec::new(),
        }
    }
}

impl Registry for Scopes {}

/// Determines whether scopes are counted.
pub fn prepare(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    *compiler.registry::<Scopes>().borrow_mut() = Scopes::new(http.tree().root());
}

/// For the documentation: how counting affects prebuilt responses.
pub const SHORTCUTS: &[ShortcutDoc] = &[ShortcutDoc::Same(
    "what is answered from memory is counted, too",
)];

/// Adds the counted scopes to the generation.
pub fn add(compiler: &Compiler<'_>, generation: &mut Generation) {
    let scopes: Scopes = compiler.registries.take();
    generation.counts_turns |= !scopes.names.is_empty();
    generation.add(scopes);
}

/// Registers a scope, so that its requests are counted.
pub fn register(plan: &mut PlanBuilder<'_>) -> Option<()> {
    let scopes = plan.compiler.registry::<Scopes>();
    let mut scopes = scopes.borrow_mut();
    if scopes.counted {
        let number = scopes.names.len();
        scopes.names.push(ScopeName::of(plan.compiler, plan.scope));
        plan.ending(&Arc::new(Metered(number)));
        plan.shortcut(Shortcut::Same);
    }
    Some(())
}

/// A scope whose requests are counted, by its index.
pub struct Metered(usize);

impl OnRequestEnd for Metered {
    fn ended(&self, request: &mut Request) {
        if !request.is_main() {
            return;
        }
        let meters = request.local.at(&METERS);
        if let Some(meter) = meters.borrow().0.get(self.0) {
            meter.count(request);
        }
    }
}

/// One thread's counters of one scope.
#[derive(Debug, Default)]
pub struct Meter {
    classes: [Count; CLASSES],
    received: Count,
    sent: Count,
    /// Sum of the durations, in microseconds.
    duration: Count,
    /// Requests by duration: see [`BOUNDS`]; the last bucket is unbounded.
    buckets: [Count; BOUNDS.len() + 1],
    /// gRPC calls by status; see [`CALL_STATUSES`].
    calls: [Count; CALL_STATUSES + 1],
}

/// The meters of a thread for one generation, by scope index.
struct PlanMeters(Box<[Arc<Meter>]>);

static METERS: Slot<PlanMeters, ThreadGeneration> = Slot::new();

impl ThreadState for PlanMeters {
    fn begin(local: &GenerationView) -> PlanMeters {
        let meters = local.counts.shelf.of::<Meters>();
        let scopes: Option<Arc<Scopes>> = local.generation.part();
        PlanMeters(meters.of(&scopes.unwrap_or_default()))
    }
}

impl Meter {
    fn count(&self, request: &Request) {
        let class = usize::from(request.response.status / 100);
        let class = self.classes.get(class).unwrap_or(&self.classes[0]);
        class.add(1);
        if let Some(status) = call::status_of(request) {
            let status = status.map_or(CALL_STATUSES, usize::from);
            let [.., others] = &self.calls;
            self.calls.get(status).unwrap_or(others).add(1);
        }
        self.received.add(request.length());
        self.sent.add(request.sent.bytes);
        let now = engine::now();
        // Most requests end within the iteration of the event loop in which they arrived.
        if now <= request.arrival.started {
            self.buckets[0].add(1);
            return;
        }
        let duration = now.saturating_duration_since(request.arrival.started);
        let duration = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.duration.add(duration);
        let bucket = BOUNDS.partition_point(|bound| *bound < duration);
        self.buckets[bucket].add(1); // invariant: one more bucket than bounds
    }
}

/// The meters of one thread by scope name.
#[derive(Debug, Default)]
pub struct Meters(Mutex<BTreeMap<ScopeName, Arc<Meter>>>);

impl Meters {
    /// The meters of a generation's scopes, by index; known names keep their meters.
    pub fn of(&self, scopes: &Scopes) -> Box<[Arc<Meter>]> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut meter = |name: &ScopeName| {
            let name = if known.len() < METERS_MAX || known.contains_key(name) {
                name.clone()
            } else {
                ScopeName::others()
            };
            Arc::clone(known.entry(name).or_default())
        };
        scopes.names.iter().map(&mut meter).collect()
    }

    /// Adds the counts of every scope that has had a request to `sums`.
    pub fn add_to(&self, sums: &mut BTreeMap<ScopeName, Sums>) {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, meter) in known.iter() {
            let of_thread = Sums::of(meter);
            if of_thread.requests() > 0 {
                sums.entry(name.clone()).or_default().add(&of_thread);
            }
        }
    }
}

/// The counts by server and location, summed over all threads.
pub fn sums(counters: &Counters) -> BTreeMap<ScopeName, Sums> {
    let mut sums = BTreeMap::new();
    for meters in counters.each::<Meters>() {
        meters.add_to(&mut sums);
    }
    sums
}

/// The current counts of a scope, summed over threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Requests by class of status; see [`CLASSES`].
    pub classes: [u64; CLASSES],
    /// Bytes of heads and bodies received.
    pub received: u64,
    /// Bytes sent, heads included.
    pub sent: u64,
    /// Sum of durations, in microseconds.
    pub duration: u64,
    /// Requests by duration: see [`BOUNDS`]; the last bucket is unbounded.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// gRPC calls by status; see [`CALL_STATUSES`].
    pub calls: [u64; CALL_STATUSES + 1],
}

impl Sums {
    /// The current counts of one thread's meter.
    fn of(meter: &Meter) -> Sums {
        Sums {
            classes: meter.classes.each_ref().map(Count::read),
            received: meter.received.read(),
            sent: meter.sent.read(),
            duration: meter.duration.read(),
            buckets: meter.buckets.each_ref().map(Count::read),
            calls: meter.calls.each_ref().map(Count::read),
        }
    }

    /// Adds the counts of another scope.
    pub fn add(&mut self, other: &Sums) {
        for (sum, one) in self.classes.iter_mut().zip(other.classes) {
            *sum += one;
        }
        for (sum, one) in self.buckets.iter_mut().zip(other.buckets) {
            *sum += one;
        }
        for (sum, one) in self.calls.iter_mut().zip(other.calls) {
            *sum += one;
        }
        self.received += other.received;
        self.sent += other.sent;
        self.duration += other.duration;
    }

    /// gRPC calls by status, without statuses that did not occur. Other statuses, and calls without
    /// one, are "other".
    pub fn calls(&self) -> impl Iterator<Item = (String, u64)> {
        let calls = self.calls.into_iter().enumerate();
        let calls = calls.filter(|(_, number)| *number > 0);
        calls.map(|(status, number)| match status {
            CALL_STATUSES => ("other".to_owned(), number),
            status => (status.to_string(), number),
        })
    }

    /// The requests of all classes.
    pub fn requests(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// For each bound, in seconds, the number of requests that took at most this long.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut below = 0;
        BOUNDS.iter().zip(self.buckets).map(move |(bound, count)| {
            below += count;
            (*bound as f64 / 1e6, below)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_over_threads_and_cumulative() {
        let name = ScopeName {
            server: "a".into(),
            ..ScopeName::default()
        };
        let scopes = Scopes {
            counted: true,
            names: vec![name.clone(), name.clone()],
        };
        let threads = [Meters::default(), Meters::default()];
        for meters in &threads {
            let of_plans = meters.of(&scopes);
            assert!(
                Arc::ptr_eq(&of_plans[0], &of_plans[1]),
                "one name, one meter"
            );
            of_plans[0].classes[2].add(2);
            of_plans[0].buckets[1].add(2);
            // The next generation continues the counts of the previous one.
            meters.of(&scopes)[1].classes[4].add(1);
            of_plans[1].buckets[BOUNDS.len()].add(1);
        }
        let mut sums = BTreeMap::new();
        threads.iter().for_each(|meters| meters.add_to(&mut sums));
        let sums = &sums[&name];
        assert_eq!(sums.classes, [0, 0, 4, 0, 2, 0]);
        assert_eq!(sums.requests(), 6);
        let cumulative: Vec<(f64, u64)> = sums.cumulative().collect();
        assert_eq!(cumulative[0], (0.0001, 0));
        assert_eq!(cumulative[1], (0.00025, 4));
        assert_eq!(cumulative.last(), Some(&(60.0, 4)));
    }

    #[test]
    fn scopes_beyond_the_limit_are_counted_together() {
        let meters = Meters::default();
        let names = (0..METERS_MAX + 10).map(|number| ScopeName {
            server: number.to_string(),
            ..ScopeName::default()
        });
        let scopes = Scopes {
            counted: true,
            names: names.collect(),
        };
        let all = meters.of(&scopes);
        assert!(!Arc::ptr_eq(&all[0], &all[1]));
        assert!(Arc::ptr_eq(&all[METERS_MAX], &all[METERS_MAX + 9]));
    }
}
