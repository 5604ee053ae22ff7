//! Hands over the entries of a store without a folder to the process that replaces this one.
//!
//! An entry is handed over as the image of its file, with both checksums, so that the receiver can
//! validate it. Copies of files are not handed over, because the new process has the files.

use std::cmp::Reverse;

use bytes::Bytes;

use super::clock::Millis;
use super::head::{self, Fault};
use super::id::EntryId;
use super::index::{StoredEntry, TagHashes};
use super::store::DiskStore;

/// An entry that is handed over.
#[derive(Clone, Debug)]
pub struct PassedEntry {
    /// The entry's id.
    pub id: EntryId,
    /// When the entry was last used.
    pub used: Millis,
    /// The image of the entry's file: head and body.
    pub file: Bytes,
}

impl DiskStore {
    /// The entries of a store without a folder, the most recently used first; none if the store has
    /// a folder. An entry is read when the iterator reaches it, and skipped if it has been removed
    /// by then.
    pub fn passed_on(&self) -> impl Iterator<Item = PassedEntry> {
        let mut known = Vec::new();
        if self.folder.is_none() {
            for number in 0..self.index.shards() {
                let saved = self.index.shard(number).saved();
                known.extend(saved.iter().map(|record| (record.used, record.id)));
            }
        }
        known.sort_unstable_by_key(|(used, _)| Reverse(*used));
        known.into_iter().filter_map(|(used, id)| {
            let file = self.image_in_memory(&id)?;
            Some(PassedEntry { id, used, file })
        })
    }

    /// Adds an entry of another process to a store without a folder, in place of an existing one.
    /// Entries should be added in the order of their last use, the most recently used last. Returns
    /// false if there is no room.
    ///
    /// # Errors
    /// The image is damaged or of another version.
    pub fn take_over(&self, passed: PassedEntry, now: Millis) -> Result<bool, Fault> {
        let PassedEntry { id, used, file } = passed;
        let key = head::key_of(&file).ok_or(Fault::Layout)?;
        let parsed = head::parse(&file, key, file.len() as u64)?;
        let start = usize::try_from(parsed.body.start).map_err(|_| Fault::Layout)?;
        let body = file.get(start..).ok_or(Fault::Short)?;
        match parsed.body_checksum {
            Some(checksum) if checksum == crc32fast::hash(body) => {}
            Some(_) => return Err(Fault::BodyChecksum),
            None => return Err(Fault::Version),
        }
        let Some(memory) = self.memory.get() else {
            return Ok(false);
        };
        if self.folder.is_some() || body.len() > memory.entry_max() {
            return Ok(false);
        }
        let stored = StoredEntry {
            blocks: 0,
            names: Some(TagHashes::of(&parsed.head)),
            is_checked: true,
            is_remembered: false,
        };
        let image = memory.image(&id, None, std::slice::from_ref(&file));
        // Under one lock, so that an entry found in the index is always in memory.
        let mut shard = self.index.lock_shard(&id);
        let (_, removed) = shard.insert(&id, stored, used.min(now));
        let expected = shard.known_entry(&id);
        let has_room = expected.is_some_and(|it| memory.put(&id, it.revision, image, now));
        if !has_room {
            shard.remove(&id);
        }
        drop(shard);
        self.discard_evicted(removed);
        Ok(has_room)
    }
}
