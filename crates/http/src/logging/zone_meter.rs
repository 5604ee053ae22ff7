//! Requests counted by zones of servers and of locations, as `status_zone` has it.
//!
//! <https://nginx.org/en/docs/http/ngx_http_api_module.html#status_zone>. Each thread counts for
//! itself (`ZoneMeter`), into memory that no other thread writes to. A zone has a number of its own
//! in the process, at which a thread's table of a generation (`ZoneTable`) has its meter; that goes
//! on over reloads. What a plan counts stands in it as two numbers, so that counting is a handful of
//! additions: no handler is run for it. Where nothing says `status_zone` nothing is counted. Not
//! here: the directive, and how sums are shown.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use framework::counters::{Count, Counters, ThreadCounters};

use crate::request::Request;

/// Whether a zone is one of servers or of locations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZoneKind {
    /// It counts requests of servers, those under way among them.
    Server,
    /// It counts requests that have ended in a location.
    Location,
}

/// What a zone is called, and what it is a zone of.
pub type ZoneName = (ZoneKind, Bytes);

/// Every zone that a configuration of this process has had, at its number.
static ZONES: Mutex<Vec<ZoneName>> = Mutex::new(Vec::new());

/// The number of no zone.
const NONE: u32 = u32::MAX;

/// The zones that requests of a plan are counted in, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedZones {
    of_server: u32,
    of_location: u32,
}

impl Default for CountedZones {
    /// None.
    fn default() -> CountedZones {
        CountedZones {
            of_server: NONE,
            of_location: NONE,
        }
    }
}

impl CountedZones {
    /// Those of these names, which have numbers from now on.
    pub fn named(of_server: Option<Bytes>, of_location: Option<Bytes>) -> CountedZones {
        let number = |kind, name: Option<Bytes>| name.map_or(NONE, |name| number_of((kind, name)));
        CountedZones {
            of_server: number(ZoneKind::Server, of_server),
            of_location: number(ZoneKind::Location, of_location),
        }
    }

    /// Whether there are any.
    #[inline]
    fn are_any(self) -> bool {
        self.of_server & self.of_location != NONE
    }
}

/// The number of a zone in this process. There are no more of them than lines of configurations.
fn number_of(name: ZoneName) -> u32 {
    let mut zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = zones.iter().position(|known| *known == name);
    let number = known.unwrap_or_else(|| {
        zones.push(name);
        zones.len() - 1
    });
    u32::try_from(number).unwrap_or(NONE)
}

/// A request that is counted among those of a zone that are under way, until it has ended or this
/// is dropped, on the thread that serves it.
#[derive(Debug)]
pub struct RequestUnderWay(u32);

impl Drop for RequestUnderWay {
    /// It ends without having been logged.
    fn drop(&mut self) {
        let _ = METERS.try_with(|meters| {
            let meters = meters.try_borrow().ok()?;
            meters.get(&self.0)?.processing.subtract(1);
            Some(())
        });
    }
}

impl RequestUnderWay {
    /// One that counts nowhere.
    #[cfg(test)]
    pub(crate) fn uncounted() -> RequestUnderWay {
        RequestUnderWay(NONE)
    }
}

/// A main request has begun, whose server is known.
#[inline]
pub(crate) fn begins(request: &mut Request) {
    let number = request.plan.phases.zones.of_server;
    if number != NONE {
        begins_in(request, number);
    }
}

fn begins_in(request: &mut Request, number: u32) {
    let meter = match request.http.zones.made(number) {
        Some(meter) => meter,
        None => match request.http.zones.make(&request.local.counts, number) {
            Some(meter) => meter,
            None => return,
        },
    };
    meter.processing.add(1);
    request.counted = Some(RequestUnderWay(number));
}

/// A request has ended.
#[inline]
pub(crate) fn ended(request: &mut Request) {
    let zones = request.plan.phases.zones;
    if zones.are_any() && request.is_main() {
        count(request, zones);
    }
}

/// Counts a request in its zones. What calls another function is left to [`prepare`], so that this
/// one keeps nothing over a call.
#[inline(never)]
fn count(request: &mut Request, zones: CountedZones) {
    let table = &request.http.zones;
    let of_server = table.made(zones.of_server);
    let of_location = table.made(zones.of_location);
    let has_begun = match &request.counted {
        None => 0,
        Some(under_way) if under_way.0 == zones.of_server => 1,
        Some(_) => return prepare(request, zones),
    };
    let is_missing = |meter: Option<&ZoneMeter>, number| meter.is_none() && number != NONE;
    if is_missing(of_server, zones.of_server) || is_missing(of_location, zones.of_location) {
        return prepare(request, zones);
    }
    let (status, sent) = (request.response.status, request.sent.bytes);
    let received = request.client.length() as u64 + request.body.received_framed();
    if let Some(meter) = of_server {
        meter.processing.subtract(has_begun);
        meter.count(status, sent, received);
    }
    if let Some(meter) = of_location {
        meter.count(status, sent, received);
    }
    std::mem::forget(request.counted.take()); // it is no longer under way
}

/// Makes what is missing to count a request, and counts it.
#[cold]
#[inline(never)]
fn prepare(request: &mut Request, zones: CountedZones) {
    let is_of_server =
        |under_way: &mut RequestUnderWay| under_way.0 == zones.of_server && zones.of_server != NONE;
    // One that began in another server is under way there no more.
    let begun = request
        .counted
        .take_if(|under_way| !is_of_server(under_way));
    drop(begun);
    for number in [zones.of_server, zones.of_location] {
        if number != NONE
            && request
                .http
                .zones
                .make(&request.local.counts, number)
                .is_none()
        {
            return;
        }
    }
    count(request, zones);
}

/// The meters of a thread under one generation, at the numbers of their zones, as far as it has
/// counted into them.
#[derive(Debug)]
pub(crate) struct ZoneTable(Box<[OnceCell<Arc<ZoneMeter>>]>);

impl ZoneTable {
    /// A table for all zones that have a number now.
    pub(crate) fn new() -> ZoneTable {
        let zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner).len();
        ZoneTable((0..zones).map(|_| OnceCell::new()).collect())
    }

    /// The meter of a zone, if there is one yet.
    #[inline]
    fn made(&self, number: u32) -> Option<&ZoneMeter> {
        self.0.get(number as usize)?.get().map(|meter| &**meter)
    }

    /// The meter of a zone: the one that the thread has had under an earlier generation, or a new
    /// one.
    #[cold]
    #[inline(never)]
    fn make(&self, counts: &ThreadCounters, number: u32) -> Option<&ZoneMeter> {
        let place = self.0.get(number as usize)?;
        let zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
        let name = zones.get(number as usize)?.clone();
        drop(zones);
        let meters = counts.shelf.of::<ZoneMeters>();
        let meter = Arc::clone(meters.lock().entry(name).or_default());
        let known = Arc::clone(&meter);
        let _ = METERS.try_with(|meters| Some(meters.try_borrow_mut().ok()?.insert(number, known)));
        Some(place.get_or_init(|| meter))
    }
}

thread_local! {
    /// The meters of this thread, for requests that end without having been logged.
    static METERS: RefCell<BTreeMap<u32, Arc<ZoneMeter>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The least status that is counted by itself.
const STATUS_MIN: u16 = 100;

const STATUSES: usize = 500;

/// What one thread counts of one zone. Alone on its cache lines, which the processor fetches in
/// pairs.
#[derive(Debug)]
#[repr(align(128))]
struct ZoneMeter {
    /// Requests that have begun and not ended.
    processing: Count,
    /// Responses by their statuses.
    codes: [Count; STATUSES],
    /// Those with a status beyond 599.
    others: Count,
    /// Requests that have ended without a response.
    discarded: Count,
    received: Count,
    sent: Count,
}

impl Default for ZoneMeter {
    fn default() -> ZoneMeter {
        ZoneMeter {
            processing: Count::default(),
            codes: std::array::from_fn(|_| Count::default()),
            others: Count::default(),
            discarded: Count::default(),
            received: Count::default(),
            sent: Count::default(),
        }
    }
}

impl ZoneMeter {
    #[inline]
    fn count(&self, status: u16, sent: u64, received: u64) {
        let code = usize::from(status.wrapping_sub(STATUS_MIN));
        match sent {
            0 => &self.discarded,
            _ => self.codes.get(code).unwrap_or(&self.others),
        }
        .add(1);
        self.received.add(received);
        self.sent.add(sent);
    }
}

/// The meters of one thread, by the names of their zones, over all generations.
#[derive(Debug, Default)]
struct ZoneMeters(Mutex<BTreeMap<ZoneName, Arc<ZoneMeter>>>);

impl ZoneMeters {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ZoneName, Arc<ZoneMeter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The numbers of a zone at one moment, added up over threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneSums {
    /// Requests that are under way.
    pub processing: u64,
    /// Responses by status, as far as there have been any.
    pub codes: BTreeMap<u16, u64>,
    /// Responses with a status beyond 599.
    pub others: u64,
    /// Requests that have ended without a response.
    pub discarded: u64,
    /// Bytes of requests.
    pub received: u64,
    /// Bytes of responses.
    pub sent: u64,
}

impl ZoneSums {
    /// What all threads have counted for a zone.
    pub fn of(counters: &Counters, name: &ZoneName) -> ZoneSums {
        let mut sums = ZoneSums::default();
        for meters in counters.each::<ZoneMeters>() {
            if let Some(meter) = meters.lock().get(name) {
                sums.add(meter);
            }
        }
        sums
    }

    fn add(&mut self, meter: &ZoneMeter) {
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
    #[must_use]
    pub fn since(&self, earlier: &ZoneSums) -> ZoneSums {
        let codes = self.codes.iter().map(|(code, count)| {
            let before = earlier.codes.get(code).copied().unwrap_or_default();
            (*code, count.saturating_sub(before))
        });
        ZoneSums {
            processing: self.processing,
            codes: codes.filter(|(_, count)| *count > 0).collect(),
            others: self.others.saturating_sub(earlier.others),
            discarded: self.discarded.saturating_sub(earlier.discarded),
            received: self.received.saturating_sub(earlier.received),
            sent: self.sent.saturating_sub(earlier.sent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_over_threads_and_since_a_reset() {
        let threads = [ZoneMeter::default(), ZoneMeter::default()];
        let sums = || {
            let mut sums = ZoneSums::default();
            threads.iter().for_each(|meter| sums.add(meter));
            sums
        };
        for meter in &threads {
            meter.count(200, 1, 10);
            meter.count(404, 1, 10);
            meter.processing.add(1);
        }
        threads[0].count(0, 0, 0);
        let first = sums();
        threads[1].count(200, 8, 0);
        threads[1].count(600, 8, 0);
        threads[1].count(99, 8, 0);
        assert_eq!(
            first,
            ZoneSums {
                processing: 2,
                codes: [(200, 2), (404, 2)].into(),
                others: 0,
                discarded: 1,
                received: 40,
                sent: 4,
            }
        );
        let since = sums().since(&first);
        assert_eq!((since.codes, since.others), ([(200, 1)].into(), 2));
        assert_eq!((since.sent, since.received, since.discarded), (24, 0, 0));
    }

    #[test]
    fn meters_are_found_by_zone_and_by_who_counts() {
        let counters = Counters::default();
        let threads = [counters.join(), counters.join()];
        let zones = CountedZones::named(Some("a".into()), Some("a".into()));
        assert!(zones.are_any() && zones.of_server != zones.of_location);
        assert_eq!(
            CountedZones::named(Some("a".into()), None).of_server,
            zones.of_server
        );
        assert!(!CountedZones::default().are_any());
        let tables = [(); 2].map(|()| ZoneTable::new());
        assert!(tables[0].made(zones.of_server).is_none() && tables[0].made(NONE).is_none());
        for thread in [0, 1, 0] {
            let meter = tables[thread].make(&threads[thread], zones.of_server);
            meter.unwrap().count(200, 1, 0);
        }
        // Under another generation the thread goes on.
        let later = ZoneTable::new();
        later.make(&threads[0], zones.of_server);
        let meter = later.made(zones.of_server).unwrap();
        assert_eq!(meter.codes[100].read(), 2);
        meter.processing.add(1);
        drop(RequestUnderWay(zones.of_server));
        assert_eq!(meter.processing.read(), 0);
        let of = |kind| ZoneSums::of(&counters, &(kind, "a".into())).codes;
        assert_eq!(of(ZoneKind::Server), [(200, 3)].into());
        assert_eq!(of(ZoneKind::Location), [].into());
    }
}
