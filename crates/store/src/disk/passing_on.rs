//! Entries that lie in memory alone, as bytes for the process that takes this one's place.
//!
//! What is passed on of an entry is what would be its file, with both checksums: who reads it
//! believes nothing else. What lies in front of files is not passed on, the files are there.

use std::cmp::Reverse;

use bytes::Bytes;

use super::clock::Millis;
use super::head::{self, Fault};
use super::id::EntryId;
use super::index::{StoredEntry, TagHashes};
use super::store::DiskStore;

/// An entry that is passed on.
#[derive(Clone, Debug)]
pub struct PassedEntry {
    /// What the entry is known by.
    pub id: EntryId,
    /// When it was used last.
    pub used: Millis,
    /// Head and body.
    pub file: Bytes,
}

impl DiskStore {
    /// The entries that lie in memory alone, from the one that was used last; none where the store
    /// has a folder. Each is read when it is asked for, and one that has gone by then is left out.
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

    /// Puts an entry of another process into a store without a folder, in the place of what there
    /// is of it. Those that were used last are to come last. Whether there was room.
    ///
    /// # Errors
    /// It is no entry of this version, or damaged.
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
        // Who finds the one must find the other.
        let mut shard = self.index.of(&id);
        let (_, removed) = shard.insert(&id, stored, used.min(now));
        let expected = shard.expected(&id);
        let has_room = expected.is_some_and(|it| memory.put(&id, it.revision, image, now));
        if !has_room {
            shard.remove(&id);
        }
        drop(shard);
        self.make_way(removed);
        Ok(has_room)
    }
}
