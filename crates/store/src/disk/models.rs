//! The index for the loom models of `crate::models`: the steps of `watched.rs`.

use super::id::EntryId;
use super::index::{Index, StoredEntry};

/// An entry with the counter of changes, as a watcher sees it.
#[derive(Clone, Copy)]
pub(crate) struct SeenEntry {
    pub(crate) revision: u32,
    changes: u64,
}

/// An index for the models.
pub(crate) struct EntryIndex(Index);

const ID: EntryId = EntryId([7; 16]);

pub(crate) fn index_with_an_entry() -> EntryIndex {
    let index = EntryIndex(Index::new(0));
    store(&index);
    index
}

pub(crate) fn store(index: &EntryIndex) {
    index
        .0
        .lock_shard(&ID)
        .insert(&ID, StoredEntry::default(), 1);
}

pub(crate) fn remove(index: &EntryIndex) {
    index.0.lock_shard(&ID).remove(&ID);
}

/// The steps of `DiskStore::watch`.
pub(crate) fn see(index: &EntryIndex) -> Option<SeenEntry> {
    let shard = index.0.lock_shard(&ID);
    let revision = shard.known_entry(&ID)?.revision;
    Some(SeenEntry {
        revision,
        changes: shard.changes(),
    })
}

/// The steps of `WatchedEntry::is_current`.
pub(crate) fn is_current(index: &EntryIndex, seen: SeenEntry) -> bool {
    let number = index.0.number_of(&ID);
    index.0.changes(number) == seen.changes || index.0.shard(number).is_settled(&ID, seen.revision)
}
