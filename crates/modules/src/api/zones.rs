//! `status_zone`: requests counted by zones of servers and of locations.
//!
//! <https://nginx.org/en/docs/http/ngx_http_api_module.html#status_zone>. Each thread counts for
//! itself ([`Meter`]), into memory that no other thread writes to. A zone has a number of its own
//! in the process, by which a thread finds its meter without a look at the generation, and goes on
//! with it over reloads. Where nothing says `status_zone` nothing is counted. Not here: a zone's TLS
//! handshakes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use base::json;
use bytes::Bytes;
use conf::{Contexts, Fault, Inherit, ScopeRef, Setter, Setting};
use framework::compile::Compiler;
use framework::counters::{Count, Counted, ThreadCounters};
use framework::generation::Generation;
use framework::registry::Registry;
use http::config::plan_builder::PlanBuilder;
use http::module::{OnRequestBegin, OnRequestEnd, Shortcut, ShortcutDoc};
use http::request::Request;

use super::endpoint::Kind;
use super::show::{self, Fields};

/// `status_zone zone | off`
pub(super) static STATUS_ZONE: Setting<Option<Bytes>> =
    Setting::new("status_zone", &["zone | off"], zone)
        .contexts(
            Contexts::SERVER
                .or(Contexts::LOCATION)
                .or(Contexts::LOCATION_IF),
        )
        .inherit(Inherit::Never)
        .manual(
            "Counts requests under this name, for `api`: those of a server in a zone of servers, those that end in a location, or in one \
             within it that says nothing else, in a zone of locations. Several scopes may have one zone. `off` in a location counts \
             none in it and within it.",
        );

fn zone(setter: &Setter<'_>) -> Result<Option<Bytes>, Fault> {
    let word = setter.word()?;
    match &*word.bytes {
        b"off" => Ok(None),
        b"" => {
            let text = format!("invalid zone name \"{}\"", word.text());
            Err(Fault::at(word, text))
        }
        name => Ok(Some(Bytes::copy_from_slice(name))),
    }
}

/// What a zone is called, and whether it is one of servers or of locations.
type ZoneName = (Kind, Bytes);

/// The zones of a configuration, in its order.
#[derive(Debug, Default)]
pub(super) struct ZoneNames(Vec<ZoneName>);

impl Registry for ZoneNames {}

/// Every zone that a configuration of this process has had, at its number.
static ZONES: Mutex<Vec<ZoneName>> = Mutex::new(Vec::new());

/// The number of a zone in this process.
fn number_of(name: &ZoneName) -> usize {
    let mut zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = zones.iter().position(|known| known == name);
    known.unwrap_or_else(|| {
        zones.push(name.clone());
        zones.len() - 1
    })
}

impl ZoneNames {
    /// One more zone, unless it is there: its number.
    fn add(&mut self, name: ZoneName) -> usize {
        let number = number_of(&name);
        if !self.0.contains(&name) {
            self.0.push(name);
        }
        number
    }

    /// Those of a kind, in the order of the configuration.
    pub(super) fn of(&self, kind: Kind) -> impl Iterator<Item = &Bytes> {
        let names = self.0.iter().filter(move |(of, _)| *of == kind);
        names.map(|(_, name)| name)
    }
}

/// Adds the zones to the generation.
pub(super) fn add(compiler: &Compiler<'_>, generation: &mut Generation) {
    generation.add(compiler.registries.take::<ZoneNames>());
}

/// What [`register`] says of shortcuts.
pub(super) const SHORTCUT: ShortcutDoc =
    ShortcutDoc::Same("what is answered from memory is counted, too");

/// Has the requests of a scope counted where it lies in zones.
pub(super) fn register(plan: &mut PlanBuilder<'_>) -> Result<(), Fault> {
    let (of_server, of_location) = zones_of(plan.scope)?;
    if of_server.is_none() && of_location.is_none() {
        return Ok(());
    }
    let names = plan.compiler.registry::<ZoneNames>();
    let number = |kind, name: Bytes| names.borrow_mut().add((kind, name));
    let zoned = Arc::new(Zoned {
        of_server: of_server.map(|name| number(Kind::ServerZones, name)),
        of_location: of_location.map(|name| number(Kind::LocationZones, name)),
    });
    if plan.scope.context() == Contexts::SERVER {
        plan.beginning(&zoned);
    }
    plan.ending(&zoned);
    plan.shortcut(Shortcut::Same);
    Ok(())
}

/// The zones of the server and of the location that a scope lies in.
fn zones_of(scope: ScopeRef<'_>) -> Result<(Option<Bytes>, Option<Bytes>), Fault> {
    let mut of_location = None;
    for around in std::iter::successors(Some(scope), |scope| scope.parent()) {
        let own = around.own(&STATUS_ZONE)?;
        if around.context() == Contexts::SERVER {
            return Ok((own.flatten(), of_location.flatten()));
        }
        of_location = of_location.or(own);
    }
    Ok((None, None))
}

/// The zones of a plan, by their numbers.
struct Zoned {
    of_server: Option<usize>,
    of_location: Option<usize>,
}

impl OnRequestBegin for Zoned {
    /// However the request ends, it is counted no more then.
    fn began(&self, request: &mut Request) {
        let counted = self.of_server.and_then(|at| {
            of_thread(&request.local.counts, at, |meter| {
                Counted::begin(&meter.processing)
            })
        });
        request.counted = counted;
    }
}

impl OnRequestEnd for Zoned {
    fn ended(&self, request: &mut Request) {
        if !request.is_main() {
            return;
        }
        let (sent, received) = (request.sent.bytes, request.length());
        let status = request.response.status;
        for at in [self.of_server, self.of_location].into_iter().flatten() {
            let counts = &request.local.counts;
            of_thread(counts, at, |meter| meter.count(status, sent, received));
        }
    }
}

/// The meters of a thread at the numbers of their zones, as far as it has counted into them.
struct ThreadMeters {
    /// Whose they are: a thread may serve for several servers one after the other, in tests.
    owner: Weak<ThreadCounters>,
    by_number: Vec<Option<Arc<Meter>>>,
}

thread_local! {
    static METERS: RefCell<ThreadMeters> = const {
        RefCell::new(ThreadMeters {
            owner: Weak::new(),
            by_number: Vec::new(),
        })
    };
}

/// Does something with this thread's meter of a zone; `None` where the thread is about to end.
#[inline]
fn of_thread<R>(
    counts: &Arc<ThreadCounters>,
    number: usize,
    work: impl FnOnce(&Arc<Meter>) -> R,
) -> Option<R> {
    let found = METERS.try_with(|meters| {
        let mut meters = meters.try_borrow_mut().ok()?;
        if !std::ptr::eq(meters.owner.as_ptr(), Arc::as_ptr(counts)) {
            meters.by_number.clear();
            meters.owner = Arc::downgrade(counts);
        }
        if let Some(Some(meter)) = meters.by_number.get(number) {
            return Some(work(meter));
        }
        meters.make(counts, number).map(work)
    });
    found.ok().flatten()
}

impl ThreadMeters {
    /// The meter that the thread has had before, or a new one.
    #[cold]
    fn make(&mut self, counts: &ThreadCounters, number: usize) -> Option<&Arc<Meter>> {
        let zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
        let name = zones.get(number)?.clone();
        drop(zones);
        let meter = Arc::clone(counts.shelf.of::<Meters>().lock().entry(name).or_default());
        if self.by_number.len() <= number {
            self.by_number.resize_with(number + 1, || None);
        }
        let place = self.by_number.get_mut(number)?;
        Some(place.insert(meter))
    }
}

/// The least status that is counted by itself.
const STATUS_MIN: u16 = 100;

const STATUSES: usize = 500;

/// What one thread counts of one zone.
#[derive(Debug)]
struct Meter {
    /// Requests that have begun and not ended.
    processing: Arc<Count>,
    /// Responses by their statuses.
    codes: [Count; STATUSES],
    /// Those with a status beyond 599.
    others: Count,
    /// Requests that have ended without a response.
    discarded: Count,
    received: Count,
    sent: Count,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter {
            processing: Arc::default(),
            codes: std::array::from_fn(|_| Count::default()),
            others: Count::default(),
            discarded: Count::default(),
            received: Count::default(),
            sent: Count::default(),
        }
    }
}

impl Meter {
    fn count(&self, status: u16, sent: u64, received: u64) {
        let status = status.checked_sub(STATUS_MIN);
        let code = status.and_then(|status| self.codes.get(usize::from(status)));
        match sent {
            0 => &self.discarded,
            _ => code.unwrap_or(&self.others),
        }
        .add(1);
        self.received.add(received);
        self.sent.add(sent);
    }
}

/// The meters of one thread, by the names of their zones, over all generations.
#[derive(Debug, Default)]
struct Meters(Mutex<BTreeMap<ZoneName, Arc<Meter>>>);

impl Meters {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<ZoneName, Arc<Meter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The numbers of a zone at one moment, added up over threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    processing: u64,
    /// By status, as far as there have been any.
    codes: BTreeMap<u16, u64>,
    others: u64,
    discarded: u64,
    received: u64,
    sent: u64,
}

impl Sums {
    /// What all threads have counted for a zone.
    pub(super) fn of(request: &Request, kind: Kind, name: &Bytes) -> Sums {
        let mut sums = Sums::default();
        for meters in request.connection.worker.counters().each::<Meters>() {
            if let Some(meter) = meters.lock().get(&(kind, name.clone())) {
                sums.add(meter);
            }
        }
        sums
    }

    fn add(&mut self, meter: &Meter) {
        let codes = (STATUS_MIN..).zip(meter.codes.iter().map(Count::read));
        for (code, count) in codes.filter(|(_, count)| *count > 0) {
            *self.codes.entry(code).or_default() += count;
        }
        self.processing = self.processing.wrapping_add(meter.processing.read());
        self.others += meter.others.read();
        self.discarded += meter.discarded.read();
        self.received += meter.received.read();
        self.sent += meter.sent.read();
    }

    /// The same without what had been counted at an earlier moment.
    pub(super) fn since(&self, earlier: &Sums) -> Sums {
        let codes = self.codes.iter().map(|(code, count)| {
            let before = earlier.codes.get(code).copied().unwrap_or_default();
            (*code, count.saturating_sub(before))
        });
        Sums {
            processing: self.processing,
            codes: codes.filter(|(_, count)| *count > 0).collect(),
            others: self.others.saturating_sub(earlier.others),
            discarded: self.discarded.saturating_sub(earlier.discarded),
            received: self.received.saturating_sub(earlier.received),
            sent: self.sent.saturating_sub(earlier.sent),
        }
    }

    /// As version 7 and later show it, or without single statuses.
    pub(super) fn show(
        &self,
        kind: Kind,
        with_codes: bool,
        json: &mut json::Writer,
        fields: &Fields,
    ) {
        let total = self.codes.values().sum::<u64>() + self.others;
        let class = |class: u16| {
            let codes = self.codes.range(class * 100..(class + 1) * 100);
            codes.map(|(_, count)| count).sum::<u64>()
        };
        show::object(json, fields, |object| {
            let mut requests = total + self.discarded;
            if kind == Kind::ServerZones {
                object.number("processing", self.processing);
                requests += self.processing;
            }
            object.number("requests", requests);
            object.field("responses", |json| {
                show::whole(json, |object| {
                    for (number, name) in (1..).zip(["1xx", "2xx", "3xx", "4xx", "5xx"]) {
                        object.number(name, class(number));
                    }
                    if with_codes {
                        object.field("codes", |json| {
                            show::whole(json, |object| {
                                for (code, count) in &self.codes {
                                    object.number(&code.to_string(), *count);
                                }
                            });
                        });
                    }
                    object.number("total", total);
                });
            });
            object.number("discarded", self.discarded);
            object.number("received", self.received);
            object.number("sent", self.sent);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_over_threads_and_since_a_reset() {
        let threads = [Meter::default(), Meter::default()];
        let sums = || {
            let mut sums = Sums::default();
            threads.iter().for_each(|meter| sums.add(meter));
            sums
        };
        for meter in &threads {
            meter.codes[100].add(2);
            meter.codes[304].add(1);
            meter.processing.add(1);
        }
        threads[0].discarded.add(1);
        let first = sums();
        threads[1].codes[100].add(5);
        threads[1].sent.add(10);
        let shown = |sums: &Sums, kind, with_codes| {
            let mut json = json::Writer::default();
            sums.show(kind, with_codes, &mut json, &Fields::All);
            String::from_utf8(json.into_bytes()).unwrap()
        };
        assert_eq!(
            shown(&first, Kind::ServerZones, true),
            r#"{"processing":2,"requests":9,"responses":{"1xx":0,"2xx":4,"3xx":0,"4xx":2,"5xx":0,"codes":{"200":4,"404":2},"total":6},"discarded":1,"received":0,"sent":0}"#
        );
        assert_eq!(
            shown(&sums().since(&first), Kind::LocationZones, false),
            r#"{"requests":5,"responses":{"1xx":0,"2xx":5,"3xx":0,"4xx":0,"5xx":0,"total":5},"discarded":0,"received":0,"sent":10}"#
        );
    }
}
