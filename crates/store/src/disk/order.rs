//! Decides which of several concurrent fetches of an entry is stored: the one whose head was
//! received last, whatever the order of the writes.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::hash::Map;

use super::id::EntryId;
use super::store::DiskStore;

/// The entries that are being fetched and written.
#[derive(Debug, Default)]
pub(super) struct FetchOrder(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// Sequence number of the last head received, over all entries.
    last: u64,
    writers: Map<EntryId, Writers>,
}

/// The concurrent fetches of an entry.
#[derive(Debug, Default)]
struct Writers {
    count: usize,
    /// Sequence number of the newest head that has been stored.
    stored: u64,
}

impl FetchOrder {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The position of a fetch in the order of received heads. Also held by the last write, which may
/// outlive the filler.
#[derive(Debug)]
pub(super) struct Turn {
    store: Arc<DiskStore>,
    id: EntryId,
    number: u64,
}

impl Turn {
    /// Registers a fetch when its head has been received.
    pub(super) fn begin(store: &Arc<DiskStore>, id: &EntryId) -> Arc<Turn> {
        let mut entries = store.order.lock();
        entries.last += 1;
        let number = entries.last;
        entries.writers.entry(*id).or_default().count += 1;
        drop(entries);
        Arc::new(Turn {
            store: Arc::clone(store),
            id: *id,
            number,
        })
    }

    /// Whether the entry is to be stored, that is, no newer one has been. Records it as stored.
    pub(super) fn take(&self) -> bool {
        let mut entries = self.store.order.lock();
        let Some(writers) = entries.writers.get_mut(&self.id) else {
            return true;
        };
        let is_newest = writers.stored < self.number;
        writers.stored = writers.stored.max(self.number);
        is_newest
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut entries = self.store.order.lock();
        if let Entry::Occupied(mut writers) = entries.writers.entry(self.id) {
            writers.get_mut().count -= 1;
            if writers.get().count == 0 {
                writers.remove();
            }
        }
    }
}
