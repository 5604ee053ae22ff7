//! What each thread counts: no two of them write to one number.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::size_classes::CLASSES;

macro_rules! counters {
    ($($variant:ident => $name:literal),* $(,)?) => {
        /// A number that each thread counts for itself.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Counter {
            $($variant,)*
        }

        /// Names, as `stats` shows them.
        pub(crate) const NAMES: &[&str] = &[$($name,)*];
    };
}

counters! {
    Touches => "cmd_touch",
    MetaCommands => "cmd_meta",
    Stores => "cmd_set",
    Flushes => "cmd_flush",
    GetHits => "get_hits",
    GetMisses => "get_misses",
    DeleteMisses => "delete_misses",
    DeleteHits => "delete_hits",
    IncrMisses => "incr_misses",
    IncrHits => "incr_hits",
    DecrMisses => "decr_misses",
    DecrHits => "decr_hits",
    CasMisses => "cas_misses",
    CasHits => "cas_hits",
    CasBadValues => "cas_badval",
    TouchHits => "touch_hits",
    TouchMisses => "touch_misses",
    TooLarge => "store_too_large",
    NoMemory => "store_no_memory",
    Rejected => "rejected_connections",
    AuthCommands => "auth_cmds",
    AuthErrors => "auth_errors",
    IdleKicks => "idle_kicks",
    Yields => "conn_yields",
    TlsSessions => "ssl_new_sessions",
    HandshakeErrors => "ssl_handshake_errors",
    TlsErrors => "ssl_proto_errors",
    BytesRead => "bytes_read",
    BytesWritten => "bytes_written",
}

impl Counter {
    /// Its name, as `stats` shows it.
    pub(crate) fn name(self) -> &'static str {
        NAMES.get(self as usize).copied().unwrap_or_default()
    }
}

/// How many there are.
pub(crate) const COUNTERS: usize = NAMES.len();

/// Numbers, one a counter.
pub(crate) type Sums = [u64; COUNTERS];

/// A number that each thread counts for each class that memcached would keep items in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClassCounter {
    /// Commands that store, whatever has come of them.
    Stores,
    CasHits,
    CasBadValues,
}

/// How many there are of them.
const CLASS_COUNTERS: usize = ClassCounter::CasBadValues as usize + 1;

/// Numbers of all classes, one a counter.
pub(crate) type ClassSums = [[u64; CLASS_COUNTERS]; CLASSES];

/// What nobody has counted.
pub(crate) const NO_CLASS_SUMS: ClassSums = [[0; CLASS_COUNTERS]; CLASSES];

/// What one thread counts.
#[derive(Debug)]
pub(crate) struct CacheCounters {
    all: [AtomicU64; COUNTERS],
    by_class: [[AtomicU64; CLASS_COUNTERS]; CLASSES],
}

impl CacheCounters {
    pub(crate) fn new() -> CacheCounters {
        CacheCounters {
            all: [const { AtomicU64::new(0) }; COUNTERS],
            by_class: [const { [const { AtomicU64::new(0) }; CLASS_COUNTERS] }; CLASSES],
        }
    }

    /// Counts. Only the thread that these are for may.
    pub(crate) fn add(&self, counter: Counter, more: u64) {
        add_to(self.all.get(counter as usize), more);
    }

    /// Counts one for a class. Only the thread that these are for may.
    pub(crate) fn add_in_class(&self, class: usize, counter: ClassCounter) {
        let of_class = self.by_class.get(class);
        add_to(of_class.and_then(|counts| counts.get(counter as usize)), 1);
    }

    pub(crate) fn add_to(&self, sums: &mut Sums) {
        for (sum, number) in sums.iter_mut().zip(&self.all) {
            *sum = sum.wrapping_add(number.load(Ordering::Relaxed));
        }
    }

    pub(crate) fn add_classes_to(&self, sums: &mut ClassSums) {
        let numbers = self.by_class.iter().flatten();
        for (sum, number) in sums.iter_mut().flatten().zip(numbers) {
            *sum = sum.wrapping_add(number.load(Ordering::Relaxed));
        }
    }
}

fn add_to(number: Option<&AtomicU64>, more: u64) {
    if let Some(number) = number {
        let before = number.load(Ordering::Relaxed);
        number.store(before.wrapping_add(more), Ordering::Relaxed);
    }
}
