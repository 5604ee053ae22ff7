//! The counters of `status_zone`: requests, counted by the zones of servers and of locations.
//!
//! <https://nginx.org/en/docs/http/ngx_http_api_module.html#status_zone>. Each thread counts for
//! itself (`ZoneMeter`), in memory that no other thread writes to. A zone has a number, which is
//! unique in the process and survives reloads. A thread's table (`ZoneTable`), which it has for
//! each generation, holds the thread's meters by these numbers. A plan holds the numbers of its two
//! zones, so that counting is a few additions, without a handler. Without `status_zone` nothing is
//! counted. The directive, and the output of the sums, are elsewhere.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use framework::counters::{Count, Counters, ThreadCounters};

use crate::request::Request;

/// The kind of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZoneKind {
    /// Counts the requests of servers, including those that have not ended.
    Server,
    /// Counts requests that have ended in a location.
    Location,
}

/// The kind and the name of a zone.
pub type ZoneName = (ZoneKind, Bytes);

/// Every zone that any configuration of this process has had. A zone's index is its number.
static ZONES: Mutex<Vec<ZoneName>> = Mutex::new(Vec::new());

/// The number that stands for no zone.
const NONE: u32 = u32::MAX;

/// The numbers of the zones in which the requests of a plan are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedZones {
    /// The number of the server's zone, or [`NONE`].
    of_server: u32,
    /// The number of the location's zone, or [`NONE`].
    of_location: u32,
}

impl Default for CountedZones {
    /// No zones.
    fn default() -> CountedZones {
        CountedZones {
            of_server: NONE,
            of_location: NONE,
        }
    }
}

impl CountedZones {
    /// The zones with these names. Zones that have no number yet get one.
    pub fn named(of_server: Option<Bytes>, of_location: Option<Bytes>) -> CountedZones {
        let number = |kind, name: Option<Bytes>| name.map_or(NONE, |name| number_of((kind, name)));
        CountedZones {
            of_server: number(ZoneKind::Server, of_server),
            of_location: number(ZoneKind::Location, of_location),
        }
    }

    /// Whether there is a zone at all.
    #[inline]
    fn are_any(self) -> bool {
        self.of_server & self.of_location != NONE
    }
}

/// The number of a zone in this process. The list is bounded by the number of `status_zone` lines
/// that have been loaded.
fn number_of(name: ZoneName) -> u32 {
    let mut zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = zones.iter().position(|known| *known == name);
    let number = known.unwrap_or_else(|| {
        zones.push(name);
        zones.len() - 1
    });
    u32::try_from(number).unwrap_or(NONE)
}

/// A request that counts as processed in a server's zone, on the thread that serves it, until it
/// has been logged or this value is dropped.
#[derive(Debug)]
pub struct RequestUnderWay(u32);

impl Drop for RequestUnderWay {
    /// Ends the counting of a request that was not logged.
    fn drop(&mut self) {
        let _ = METERS.try_with(|meters| {
            let meters = meters.try_borrow().ok()?;
            meters.get(&self.0)?.processing.subtract(1);
            Some(())
        });
    }
}

impl RequestUnderWay {
    /// A value for a request that is not counted.
    #[cfg(test)]
    pub(crate) fn uncounted() -> RequestUnderWay {
        RequestUnderWay(NONE)
    }
}

/// Counts a main request that has begun and whose server is known.
#[inline]
pub(crate) fn begins(request: &mut Request) {
    let number = request.plan.phases.zones.of_server;
    if number != NONE {
        begins_in(request, number);
    }
}

/// Counts a request that has begun in the zone with this number.
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

/// Counts a request that has ended, if it is a main request.
#[inline]
pub(crate) fn ended(request: &mut Request) {
    let zones = request.plan.phases.zones;
    if zones.are_any() && request.is_main() {
        count(request, zones);
    }
}

/// Counts a request in its zones. Everything that needs a call is left to [`prepare`], so that this
/// function saves no registers over calls.
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
    std::mem::forget(request.counted.take()); // its drop would subtract again
}

/// Makes the meters that are missing for a request, and counts the request.
#[cold]
#[inline(never)]
fn prepare(request: &mut Request, zones: CountedZones) {
    let is_of_server =
        |under_way: &mut RequestUnderWay| under_way.0 == zones.of_server && zones.of_server != NONE;
    // A request that began in another server no longer counts as processed there.
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

/// The meters that a thread uses in one generation, by the numbers of their zones. A meter is made
/// when its zone is first counted.
#[derive(Debug)]
pub(crate) struct ZoneTable(Box<[OnceCell<Arc<ZoneMeter>>]>);

impl ZoneTable {
    /// A table for all zones that have a number now.
    pub(crate) fn new() -> ZoneTable {
        let zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner).len();
        ZoneTable((0..zones).map(|_| OnceCell::new()).collect())
    }

    /// The meter of a zone, if it has been made.
    #[inline]
    fn made(&self, number: u32) -> Option<&ZoneMeter> {
        self.0.get(number as usize)?.get().map(|meter| &**meter)
    }

    /// Makes the meter of a zone in this table: the meter that the thread had in an earlier
    /// generation, or a new one.
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
    /// The meters of this thread by the numbers of their zones, for requests that end without
    /// having been logged.
    static METERS: RefCell<BTreeMap<u32, Arc<ZoneMeter>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The lowest status with a counter of its own.
const STATUS_MIN: u16 = 100;

const STATUSES: usize = 500;

/// The counters of one thread for one zone. Aligned to two cache lines, which the processor fetches
/// in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct ZoneMeter {
    /// Requests that have begun and not ended.
    processing: Count,
    /// Responses by status, from [`STATUS_MIN`].
    codes: [Count; STATUSES],
    /// Responses with any other status.
    others: Count,
    /// Requests that have ended without a response.
    discarded: Count,
    /// Bytes of requests, framing included.
    received: Count,
    /// Bytes of responses, heads included.
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

/// The meters of one thread in all generations, by zone.
#[derive(Debug, Default)]
struct ZoneMeters(Mutex<BTreeMap<ZoneName, Arc<ZoneMeter>>>);

impl ZoneMeters {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ZoneName, Arc<ZoneMeter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sums of a zone's counters over all threads, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneSums {
    /// Requests that have begun and not ended.
    pub processing: u64,
    /// Responses by status, without statuses that did not occur.
    pub codes: BTreeMap<u16, u64>,
    /// Responses with a status outside 100 to 599.
    pub others: u64,
    /// Requests that have ended without a response.
    pub discarded: u64,
    /// Bytes of requests, framing included.
    pub received: u64,
    /// Bytes of responses, heads included.
    pub sent: u64,
}

impl ZoneSums {
    /// The sums over all threads for a zone.
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

    /// These sums without those of an earlier moment. `processing` stays the current number.
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
