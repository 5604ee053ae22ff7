//! Watched entries. A caller may cache data derived from an entry in memory, such as a complete
//! response. The [`WatchedEntry`] tells the caller whether the entry is still current, without a
//! lock if nothing in the entry's shard has changed.

use std::cell::Cell;
use std::sync::Arc;

use super::clock::Millis;
use super::id::EntryId;
use super::memory::Identity;
use super::open::OpenEntry;
use super::store::DiskStore;

/// An entry from memory, with the state of the index when it was opened.
///
/// It belongs to one thread, while other threads may change the entry.
#[derive(Debug)]
pub struct WatchedEntry {
    store: Arc<DiskStore>,
    id: EntryId,
    revision: u32,
    /// The identity of the entry's file, if there is one.
    identity: Option<Identity>,
    /// The shard of the id, and the shard's counter of changes when the entry was last known to be
    /// current.
    shard: usize,
    changes: Cell<u64>,
}

impl WatchedEntry {
    /// Whether the store would still return this entry. This is an atomic read if, since the last
    /// check, the entry's shard has seen nothing but uses: no change of a record, marker or fetch.
    /// Otherwise it locks the shard. In a store with a folder, the file's status is checked too.
    #[must_use]
    pub fn is_current(&self) -> bool {
        if self.store.index.changes(self.shard) != self.changes.get() {
            let shard = self.store.index.shard(self.shard);
            // False also if the id has a marker, or a fetch that would replace the entry.
            if !shard.is_settled(&self.id, self.revision) {
                return false;
            }
            self.changes.set(shard.changes());
        }
        match &self.store.folder {
            Some(folder) => {
                let found = folder.stat_entry(&self.id);
                found.ok().map(|stat| Identity::of(&stat)) == self.identity
            }
            None => true,
        }
    }

    /// Identifies the entry's content: its id and its revision in this store.
    #[must_use]
    pub fn version(&self) -> (EntryId, u32) {
        (self.id, self.revision)
    }
}

impl DiskStore {
    /// Whether memory for entries is enabled.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        let memory = self.memory.get();
        memory.is_some_and(|memory| memory.entry_max() > 0)
    }

    /// Opens an entry from memory. `None` if memory does not have the entry, or if the id has a
    /// marker ([`mark`](Self::mark)) or a running fetch: the ordinary lookup handles these cases.
    /// Counts as a use of the id.
    pub fn watch(
        self: &Arc<Self>,
        id: &EntryId,
        key: &[u8],
        now: Millis,
    ) -> Option<(OpenEntry, WatchedEntry)> {
        self.memory.get()?;
        let number = self.index.number_of(id);
        let mut shard = self.index.shard(number);
        // An id without an entry is left to the ordinary lookup, which counts its use.
        let expected = shard.known_entry(id)?;
        let known = shard.lookup(id, now);
        let changes = shard.changes();
        drop(shard);
        if known.marker.is_some() || known.fill.is_some() {
            return None;
        }
        let (opened, identity) = self.recall(id, key, Some(expected), now)?;
        let watched = WatchedEntry {
            store: Arc::clone(self),
            id: *id,
            revision: expected.revision,
            identity,
            shard: number,
            changes: Cell::new(changes),
        };
        Some((opened, watched))
    }
}
