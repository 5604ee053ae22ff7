//! Sessions counted by zones of servers: what `status_zone` of `stream` and of `memcached` counts
//! and `api` shows.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_status_module.html#status_zone>. Each thread counts
//! for itself ([`SessionMeter`]), into memory that no other thread writes to; its meters are found
//! by name once for each generation, so that they go on over reloads.

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

/// A zone: a name in a block.
type SessionZone = (SessionBlock, Bytes);

/// The zones of a configuration, by their numbers.
#[derive(Debug, Default)]
pub struct SessionZones(Vec<SessionZone>);

impl Registry for SessionZones {}

impl SessionZones {
    /// The number of the zone of this name in a block.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What one thread counts of one zone.
#[derive(Debug, Default)]
pub struct SessionMeter {
    /// Sessions that have begun and not ended.
    processing: Count,
    /// Sessions that have ended with a status of 2xx, 4xx and 5xx.
    ended: [Count; 3],
    /// Connections that have come to no session of the server.
    discarded: Count,
    /// Bytes received from clients.
    received: Count,
    /// Bytes sent to clients.
    sent: Count,
    /// Handshakes of TLS with clients, by [`SessionHandshake`].
    handshakes: [Count; 3],
}

/// How a client's handshake of TLS has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionHandshake {
    /// A new session of TLS has begun.
    Full,
    /// One from before goes on.
    Resumed,
    /// It has failed, or no certificate has come that holds where one must.
    Failed,
}

/// A session that is counted among those of a zone. One that is dropped uncounted was none of the
/// server's.
pub struct MeteredSession(Option<Arc<SessionMeter>>);

impl MeteredSession {
    /// Counts a session that begins in the zone of this number.
    pub fn begin(local: &GenerationView, zone: usize) -> MeteredSession {
        let meter = local.at(&METERS).borrow().0.get(zone).cloned();
        if let Some(meter) = &meter {
            meter.processing.add(1);
        }
        MeteredSession(meter)
    }

    /// Counts its client's handshake of TLS.
    pub fn note_handshake(&self, outcome: SessionHandshake) {
        if let Some(meter) = &self.0 {
            meter.handshakes[outcome as usize].add(1);
        }
    }

    /// Counts the session as ended.
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

    /// Forgets the session, which another server serves.
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

/// The meters of one thread, by the names of their zones, over all generations.
#[derive(Debug, Default)]
struct SessionMeters(Mutex<BTreeMap<SessionZone, Arc<SessionMeter>>>);

impl SessionMeters {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionZone, Arc<SessionMeter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The meters of a thread for one generation, by the numbers of its zones.
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

/// The numbers of a zone at one moment, added up over threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionSums {
    /// Sessions under way.
    pub processing: u64,
    /// Sessions that have ended, by status: 2xx, 4xx, 5xx.
    pub ended: [u64; 3],
    /// Connections that have come to no session.
    pub discarded: u64,
    /// Bytes received from clients.
    pub received: u64,
    /// Bytes sent to clients.
    pub sent: u64,
    handshakes: [u64; 3],
}

impl SessionSums {
    /// What all threads have counted for a zone.
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

    /// Handshakes of TLS that have ended so.
    pub fn handshakes(&self, outcome: SessionHandshake) -> u64 {
        self.handshakes
            .get(outcome as usize)
            .copied()
            .unwrap_or_default()
    }

    /// The counts since an earlier moment.
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
