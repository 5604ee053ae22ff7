//! What each thread counts: no two of them write to one number.

use std::sync::atomic::{AtomicU64, Ordering};

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

/// What one thread counts.
#[derive(Debug)]
pub(crate) struct CacheCounters([AtomicU64; COUNTERS]);

impl CacheCounters {
    pub(crate) fn new() -> CacheCounters {
        CacheCounters([const { AtomicU64::new(0) }; COUNTERS])
    }

    /// Counts. Only the thread that these are for may.
    pub(crate) fn add(&self, counter: Counter, more: u64) {
        if let Some(number) = self.0.get(counter as usize) {
            let before = number.load(Ordering::Relaxed);
            number.store(before.wrapping_add(more), Ordering::Relaxed);
        }
    }

    pub(crate) fn add_to(&self, sums: &mut Sums) {
        for (sum, number) in sums.iter_mut().zip(&self.0) {
            *sum = sum.wrapping_add(number.load(Ordering::Relaxed));
        }
    }
}
