//! Entries that were given from memory, for who keeps what has been made of them: whether the store
//! would give the same again, told without a lock as long as nothing near them has changed.

use std::cell::Cell;
use std::sync::Arc;

use super::clock::Millis;
use super::id::EntryId;
use super::memory::Identity;
use super::open::OpenEntry;
use super::store::DiskStore;

/// An entry as it was given from memory.
///
/// One thread has it; others may change the entry meanwhile.
#[derive(Debug)]
pub struct WatchedEntry {
    store: Arc<DiskStore>,
    id: EntryId,
    revision: u32,
    /// What its file was, where it has one.
    identity: Option<Identity>,
    /// The shard that its id belongs to, and how much had changed there when this was seen to
    /// stand.
    shard: usize,
    changes: Cell<u64>,
}

impl WatchedEntry {
    /// Whether the store would still give this entry for its id. Where nothing has been stored,
    /// marked, claimed or removed in its shard that is a read of a number, else it takes the lock
    /// of the shard; in front of a folder the file's name is looked at as well.
    #[must_use]
    pub fn stands(&self) -> bool {
        if self.store.index.changes(self.shard) != self.changes.get() {
            let shard = self.store.index.shard(self.shard);
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

    /// Its id and revision: two of one store that have the same are the same.
    #[must_use]
    pub fn version(&self) -> (EntryId, u32) {
        (self.id, self.revision)
    }
}

impl DiskStore {
    /// Whether there is memory for entries now.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        let memory = self.memory.get();
        memory.is_some_and(|memory| memory.entry_max() > 0)
    }

    /// The entry from memory if it lies there and nothing else stands for its id: no marker, and no
    /// fetch of another. Counts as a use of it.
    pub fn watch(
        self: &Arc<Self>,
        id: &EntryId,
        key: &[u8],
        now: Millis,
    ) -> Option<(OpenEntry, WatchedEntry)> {
        self.memory.get()?;
        let number = self.index.number_of(id);
        let mut shard = self.index.shard(number);
        // What has no entry is not asked for here: the long way counts that.
        let expected = shard.expected(id)?;
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
