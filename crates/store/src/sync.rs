//! Locks and counters: those of the standard library, or of the model checker (`--cfg loom`), under
//! which `models.rs` tries all interleavings of threads.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

/// Takes a lock. If a holder has panicked, `renew` restores the guarded value.
pub(crate) fn lock_or_renew<T>(mutex: &Mutex<T>, renew: impl FnOnce(&mut T)) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| {
        let mut guard = poisoned.into_inner();
        renew(&mut guard);
        #[cfg(not(loom))]
        mutex.clear_poison();
        guard
    })
}
