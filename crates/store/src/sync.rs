//! Locks and counters: the standard library's, or those of the model checker (`--cfg loom`), under
//! which `models.rs` tries every order in which threads may come to them.

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

/// Takes a lock. After a panic of who had it `renew` puts right what it guards.
pub(crate) fn lock_or_renew<T>(mutex: &Mutex<T>, renew: impl FnOnce(&mut T)) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| {
        let mut guard = poisoned.into_inner();
        renew(&mut guard);
        #[cfg(not(loom))]
        mutex.clear_poison();
        guard
    })
}
