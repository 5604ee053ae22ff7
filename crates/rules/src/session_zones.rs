//! `status_zone` of `stream` and `memcached`: the numbers of sessions of one or more servers, which
//! the API shows.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_status_module.html#status_zone>. Each thread has
//! its own counters ([`SessionMeter`]), which no other thread writes. Once for each generation, the
//! thread finds its counters by the names of the zones, so that reloads keep the counts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use framework::counters::{Count, Counters};
use framework::generation::GenerationView;
use framework::registry::Registry;
use framework::slot::{Slot, ThreadGeneration, ThreadState};

/// The block whose servers' sessions a zone counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SessionBlock {
    /// Sessions of `stream`.
    Stream,
    /// Sessions of `memcached`.
    Memcached,
}

/// A zone, identified by its block and its name.
type SessionZone = (SessionBlock, Bytes);

/// The zones of a configuration. The number of a zone is its index.
#[derive(Debug, Default)]
pub struct SessionZones(Vec<SessionZone>);

impl Registry for SessionZones {}

impl SessionZones {
    /// The number of the zone with this name in a block; a new zone is added.
    pub fn number(&mut self, block: SessionBlock, name: Bytes) -> usize {
        let zone = (block, name);
        let known = self.0.iter().position(|known| *known == zone);
        known.unwrap_or_else(|| {
            self.0.push(zone);
            self.0.len() - 1
        })
    }

    /// The names of a block's zones, in the order of the configuration.
    pub fn names(&self, block: SessionBlock) -> impl Iterator<Item = &Bytes> {
        let of_block = self.0.iter().filter(move |(of, _)| *of == block);
        of_block.map(|(_, name)| name)
    }

    /// Whether the configuration has no zones.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The counters of one thread for one zone.
#[derive(Debug, Default)]
pub struct SessionMeter {
    /// Sessions that have begun and not ended.
    processing: Count,
    /// Sessions that have ended, by status: 2xx, 4xx, and any other.
    ended: [Count; 3],
    /// Connections that were closed without a session of the server.
    discarded: Count,
    /// Bytes received from clients.
    received: Count,
    /// Bytes sent to clients.
    sent: Count,
    /// Handshakes of TLS with clients, by [`SessionHandshake`].
    handshakes: [Count; 3],
}

/// The outcome of a client's TLS handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionHandshake {
    /// A new TLS session was negotiated.
    Full,
    /// An earlier TLS session was resumed.
    Resumed,
    /// The handshake has failed, or a required client certificate is missing or invalid.
    Failed,
}

/// A session that a zone counts as in progress. Ends with [`MeteredSession::end`] or
/// [`MeteredSession::leave`]; if it is dropped without either, it counts as discarded.
pub struct MeteredSession(Option<Arc<SessionMeter>>);

impl MeteredSession {
    /// Counts a session that begins in the zone with this number.
    pub fn begin(local: &GenerationView, zone: usize) -> MeteredSession {
        let meter = local.at(&METERS).borrow().0.get(zone).cloned();
        if let Some(meter) = &meter {
            meter.processing.add(1);
        }
        MeteredSession(meter)
    }

    /// Counts the TLS handshake of the session's client.
    pub fn note_handshake(&self, outcome: SessionHandshake) {
        if let Some(meter) = &self.0 {
            meter.handshakes[outcome as usize].add(1);
        }
    }

    /// Counts the session as ended with this status, and the bytes received from and sent to the
    /// client.
    pub fn end(mut self, status: u16, received: u64, sent: u64) {
        let Some(meter) = self.0.take() else {
            return;
        };
        meter.processing.subtract(1);
        let class = match status {
            200..=299 => 0,
            400..=499 => 1,
            _ => 2,
        };
        meter.ended[class].add(1);
        meter.received.add(received);
        meter.sent.add(sent);
    }

    /// Stops counting the session, because another server serves it.
    pub fn leave(mut self) {
        if let Some(meter) = self.0.take() {
            meter.processing.subtract(1);
        }
    }
}

impl Drop for MeteredSession {
    fn drop(&mut self) {
        if let Some(meter) = self.0.take() {
            meter.processing.subtract(1);
            meter.discarded.add(1);
        }
    }
}

/// The counters of one thread for the zones of all generations, by zone.
#[derive(Debug, Default)]
struct SessionMeters(Mutex<BTreeMap<SessionZone, Arc<SessionMeter>>>);

impl SessionMeters {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionZone, Arc<SessionMeter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The counters of a thread for the zones of one generation, by the number of the zone.
struct ZoneMeterTable(Box<[Arc<SessionMeter>]>);

static METERS: Slot<ZoneMeterTable, ThreadGeneration> = Slot::new();

impl ThreadState for ZoneMeterTable {
    fn begin(local: &GenerationView) -> ZoneMeterTable {
        let meters = local.counts.shelf.of::<SessionMeters>();
        let mut known = meters.lock();
        let zones: Option<Arc<SessionZones>> = local.generation.part();
        let zones = zones.iter().flat_map(|zones| &zones.0);
        ZoneMeterTable(
            zones
                .map(|zone| Arc::clone(known.entry(zone.clone()).or_default()))
                .collect(),
        )
    }
}

/// The counts of a zone, summed over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionSums {
    /// Sessions in progress.
    pub processing: u64,
    /// Sessions that have ended, by status: 2xx, 4xx, 5xx.
    pub ended: [u64; 3],
    /// Connections that were closed without a session.
    pub discarded: u64,
    /// Bytes received from clients.
    pub received: u64,
    /// Bytes sent to clients.
    pub sent: u64,
    handshakes: [u64; 3],
}

impl SessionSums {
    /// Sums the counts of all threads for a zone.
    pub fn of(counters: &Counters, block: SessionBlock, name: &Bytes) -> SessionSums {
        let zone = (block, name.clone());
        let mut sums = SessionSums::default();
        for meters in counters.each::<SessionMeters>() {
            if let Some(meter) = meters.lock().get(&zone) {
                sums.add(meter);
            }
        }
        sums
    }

    fn add(&mut self, meter: &SessionMeter) {
        self.processing = self.processing.wrapping_add(meter.processing.read());
        for (sum, count) in self.ended.iter_mut().zip(&meter.ended) {
            *sum += count.read();
        }
        self.discarded += meter.discarded.read();
        self.received += meter.received.read();
        self.sent += meter.sent.read();
        for (sum, count) in self.handshakes.iter_mut().zip(&meter.handshakes) {
            *sum += count.read();
        }
    }

    /// Number of TLS handshakes with this outcome.
    pub fn handshakes(&self, outcome: SessionHandshake) -> u64 {
        self.handshakes
            .get(outcome as usize)
            .copied()
            .unwrap_or_default()
    }

    /// The difference to earlier counts, except for `processing`, which is the current number.
    #[must_use]
    pub fn since(&self, earlier: &SessionSums) -> SessionSums {
        let without = |mut counts: [u64; 3], earlier: [u64; 3]| {
            for (now, then) in counts.iter_mut().zip(earlier) {
                *now = now.saturating_sub(then);
            }
            counts
        };
        SessionSums {
            processing: self.processing,
            ended: without(self.ended, earlier.ended),
            handshakes: without(self.handshakes, earlier.handshakes),
            discarded: self.discarded.saturating_sub(earlier.discarded),
            received: self.received.saturating_sub(earlier.received),
            sent: self.sent.saturating_sub(earlier.sent),
        }
    }

    /// Connections accepted from clients.
    pub fn connections(&self) -> u64 {
        self.processing + self.ended.iter().sum::<u64>() + self.discarded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_over_threads_and_since_a_reset() {
        let threads = [SessionMeter::default(), SessionMeter::default()];
        let sums = || {
            let mut sums = SessionSums::default();
            threads.iter().for_each(|meter| sums.add(meter));
            sums
        };
        for meter in &threads {
            meter.processing.add(1);
            meter.ended[0].add(3);
            meter.sent.add(10);
        }
        let first = sums();
        assert_eq!((first.connections(), first.sent), (8, 20));
        threads[1].ended[2].add(1);
        threads[0].discarded.add(1);
        let second = sums().since(&first);
        assert_eq!((second.ended, second.discarded), ([0, 0, 1], 1));
        assert_eq!((second.processing, second.sent), (2, 0));
        assert_eq!(second.connections(), 4);
    }
}
