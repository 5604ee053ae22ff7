//! Counters of the process: every thread has its own counters, and a reader adds them up.
//!
//! A [`Count`] is written by one thread and read by any, so counting is a load, an addition and a
//! store, without a locked instruction and without a cache line that two threads write to. A sum
//! that is read while threads count may miss what they count meanwhile. Threads share only the
//! serial number of connections, which changes once per connection.

use std::any::{Any, TypeId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use base::hash::Map;

/// A number that one thread changes and every thread may read.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds to the count. Only the thread that owns the count may call this: an addition of another
    /// thread could be lost.
    pub fn add(&self, number: u64) {
        self.set(self.read().wrapping_add(number));
    }

    /// Subtracts from the count. Only the thread that owns the count may call this.
    pub fn subtract(&self, number: u64) {
        self.set(self.read().wrapping_sub(number));
    }

    /// The count, as this thread sees it.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }
}

/// The reason why a TLS handshake or a client's certificate failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeFault {
    /// Client and server have no protocol version in common.
    NoCommonProtocol,
    /// Client and server have no cipher suite or group in common.
    NoCommonCipher,
    /// The client did not continue the handshake in time.
    Timeout,
    /// The client rejected the server's certificate.
    PeerRejectedCertificate,
    /// The client's certificate has expired or is not yet valid.
    ExpiredCertificate,
    /// The client's certificate has been revoked.
    RevokedCertificate,
    /// The client's certificate could not be verified for another reason.
    UnverifiedCertificate,
    /// A handshake failed for any other reason.
    Other,
}

impl HandshakeFault {
    /// Every fault, at the index that is its number.
    pub const ALL: [HandshakeFault; 8] = [
        HandshakeFault::NoCommonProtocol,
        HandshakeFault::NoCommonCipher,
        HandshakeFault::Timeout,
        HandshakeFault::PeerRejectedCertificate,
        HandshakeFault::ExpiredCertificate,
        HandshakeFault::RevokedCertificate,
        HandshakeFault::UnverifiedCertificate,
        HandshakeFault::Other,
    ];

    /// The fault in a word, as metrics show it.
    pub fn name(self) -> &'static str {
        match self {
            HandshakeFault::NoCommonProtocol => "no_common_protocol",
            HandshakeFault::NoCommonCipher => "no_common_cipher",
            HandshakeFault::Timeout => "handshake_timeout",
            HandshakeFault::PeerRejectedCertificate => "peer_rejected_cert",
            HandshakeFault::ExpiredCertificate => "expired_cert",
            HandshakeFault::RevokedCertificate => "revoked_cert",
            HandshakeFault::UnverifiedCertificate => "unverified_cert",
            HandshakeFault::Other => "other",
        }
    }

    /// Whether the fault concerns the client's certificate: the handshake itself may have
    /// succeeded, and requests are refused.
    pub fn is_of_certificate(self) -> bool {
        matches!(
            self,
            HandshakeFault::ExpiredCertificate
                | HandshakeFault::RevokedCertificate
                | HandshakeFault::UnverifiedCertificate
        )
    }
}

/// The counters of one thread. Alone on two cache lines, since the processor fetches them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ThreadCounters {
    /// Connections accepted since the start.
    pub accepted: Count,
    /// Connections open now. A connection whose last response the engine is still sending does not
    /// count.
    pub active: Count,
    /// Of the active connections, those that have received a part of a request head.
    pub reading: Count,
    /// Of the active connections, those that wait for a request.
    pub waiting: Count,
    /// Idle connections that were closed to make room for new ones.
    pub dropped: Count,
    /// Requests started, including those with an invalid head.
    pub requests: Count,
    /// Exchanges lost to a panic.
    pub panics: Count,
    /// Successful TLS handshakes with clients.
    pub handshakes: Count,
    /// Handshakes that resumed an earlier session.
    pub sessions_reused: Count,
    /// Failed TLS handshakes; a connection without any handshake data does not count.
    pub handshakes_failed: Count,
    /// Faults of handshakes and of client certificates, indexed by [`HandshakeFault`].
    pub handshake_faults: [Count; HandshakeFault::ALL.len()],
    /// Turns of the event loop, counted from the first configuration that enables metrics.
    pub turns: Count,
    /// Requests for which memory was allocated.
    pub pool_misses: Count,
    /// The modules' counters on this thread.
    pub shelf: ModuleCounters,
}

impl ThreadCounters {
    /// Counts a fault of a handshake.
    pub fn note_fault(&self, fault: HandshakeFault) {
        if let Some(count) = self.handshake_faults.get(fault as usize) {
            count.add(1);
        }
    }
}

/// The modules' counters on one thread, by type. Any thread may read them.
#[derive(Debug, Default)]
pub struct ModuleCounters(Mutex<Map<TypeId, Arc<dyn Any + Send + Sync>>>);

impl ModuleCounters {
    /// The counters of type `T`, created at the first call.
    pub fn of<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::<T>::default());
        let kept = Arc::clone(kept);
        drop(all);
        kept.downcast().unwrap_or_default() // each lies under its own type
    }
}

/// The counters of all threads of a process.
#[derive(Debug, Default)]
pub struct Counters {
    serial: AtomicU64,
    engine: OnceLock<String>,
    threads: Mutex<Vec<Arc<ThreadCounters>>>,
}

impl Counters {
    /// Adds the counters of a new thread.
    pub fn join(&self) -> Arc<ThreadCounters> {
        let joined = Arc::<ThreadCounters>::default();
        self.all().push(Arc::clone(&joined));
        joined
    }

    /// Sets the name of the engine that the threads use.
    pub fn set_engine(&self, name: String) {
        let _ = self.engine.set(name); // all threads have the same engine
    }

    /// The name of the threads' engine; empty if it was not set.
    pub fn engine(&self) -> &str {
        self.engine.get().map(String::as_str).unwrap_or_default()
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.all().len()
    }

    /// A module's counters, one element per thread.
    pub fn each<T: Default + Send + Sync + 'static>(&self) -> Vec<Arc<T>> {
        let all = self.all();
        all.iter().map(|thread| thread.shelf.of()).collect()
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<ThreadCounters>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns the next connection's serial number, from 1, over all threads.
    pub fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The serial number of the newest connection.
    pub fn last_serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// The sums over all threads.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.all().iter().for_each(|thread| totals.add(thread));
        totals
    }

    /// The totals of each thread, in the order in which the threads started.
    pub fn by_thread(&self) -> Vec<Totals> {
        let all = self.all();
        let of = |thread: &Arc<ThreadCounters>| {
            let mut totals = Totals::default();
            totals.add(thread);
            totals
        };
        all.iter().map(of).collect()
    }
}

/// A snapshot of [`ThreadCounters`], or of their sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Sum of [`ThreadCounters::accepted`].
    pub accepted: u64,
    /// Sum of [`ThreadCounters::active`].
    pub active: u64,
    /// Sum of [`ThreadCounters::reading`].
    pub reading: u64,
    /// Sum of [`ThreadCounters::waiting`].
    pub waiting: u64,
    /// Sum of [`ThreadCounters::dropped`].
    pub dropped: u64,
    /// Sum of [`ThreadCounters::requests`].
    pub requests: u64,
    /// Sum of [`ThreadCounters::panics`].
    pub panics: u64,
    /// Sum of [`ThreadCounters::handshakes`].
    pub handshakes: u64,
    /// Sum of [`ThreadCounters::sessions_reused`].
    pub sessions_reused: u64,
    /// Sum of [`ThreadCounters::handshakes_failed`].
    pub handshakes_failed: u64,
    /// Sum of [`ThreadCounters::handshake_faults`].
    pub handshake_faults: [u64; HandshakeFault::ALL.len()],
    /// Sum of [`ThreadCounters::turns`].
    pub turns: u64,
    /// Sum of [`ThreadCounters::pool_misses`].
    pub pool_misses: u64,
}

impl Totals {
    fn add(&mut self, thread: &ThreadCounters) {
        self.accepted += thread.accepted.read();
        self.active += thread.active.read();
        self.reading += thread.reading.read();
        self.waiting += thread.waiting.read();
        self.dropped += thread.dropped.read();
        self.requests += thread.requests.read();
        self.panics += thread.panics.read();
        self.handshakes += thread.handshakes.read();
        self.sessions_reused += thread.sessions_reused.read();
        self.handshakes_failed += thread.handshakes_failed.read();
        let faults = self.handshake_faults.iter_mut();
        for (sum, count) in faults.zip(&thread.handshake_faults) {
            *sum += count.read();
        }
        self.turns += thread.turns.read();
        self.pool_misses += thread.pool_misses.read();
    }

    /// The number of handshakes with this fault.
    pub fn faults(&self, fault: HandshakeFault) -> u64 {
        let count = self.handshake_faults.get(fault as usize);
        count.copied().unwrap_or_default()
    }

    /// Connections with a request in progress: the active ones that are neither reading nor
    /// waiting. Derived, so that no counter changes when a request starts or ends.
    pub fn writing(&self) -> u64 {
        self.active
            .saturating_sub(self.reading)
            .saturating_sub(self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_sums_over_threads() {
        let counters = Arc::new(Counters::default());
        let threads = (0..4).map(|_| {
            let counters = Arc::clone(&counters);
            std::thread::spawn(move || {
                let mine = counters.join();
                for _ in 0..1000 {
                    mine.requests.add(1);
                    mine.active.add(3);
                    mine.active.subtract(2);
                    counters.next_serial();
                }
                mine.waiting.add(10);
                mine.reading.add(5);
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            thread.join().unwrap();
        }
        let totals = counters.totals();
        assert_eq!((totals.requests, totals.active), (4000, 4000));
        assert_eq!((totals.waiting, totals.reading), (40, 20));
        assert_eq!(totals.writing(), 3940);
        assert_eq!(counters.last_serial(), 4000);
        assert_eq!(counters.next_serial(), 4001);
    }

    #[test]
    fn threads_share_no_cache_line() {
        assert_eq!(align_of::<ThreadCounters>(), 128);
    }
}
