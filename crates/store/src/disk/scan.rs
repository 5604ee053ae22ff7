//! Looking through the folder for entries that the index does not know, a few files at a time and
//! beside service: after a start, and after a process that ended without saving its index.
//!
//! Only files are touched whose names are those of entries or of temporary files, where their
//! levels say. Temporary files of processes that are gone are unlinked.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{Dir, FileType};

use super::clock::Millis;
use super::folder::CacheFolder;
use super::id::{EntryId, TemporaryName};
use super::index::StoredEntry;
use super::store::DiskStore;

/// What is found in a folder.
pub(super) enum ScanEntry {
    Entry(EntryId),
    Temporary(TemporaryName),
}

/// A walk through all levels.
#[derive(Debug)]
pub(super) struct Walk {
    /// The folders that are being listed, from the outermost, with their paths.
    open: Vec<(String, Dir)>,
}

impl Walk {
    /// Where there is no folder there is nothing to be found.
    pub(super) fn new(folder: Option<&CacheFolder>) -> Walk {
        let mut walk = Walk { open: Vec::new() };
        if let Some(folder) = folder {
            walk.enter(folder, String::new());
        }
        walk
    }

    /// A folder that cannot be listed has nothing that could be served.
    fn enter(&mut self, folder: &CacheFolder, path: String) {
        let name = if path.is_empty() { "." } else { &path };
        if let Ok(dir) = folder.open_folder(name).and_then(Dir::new) {
            self.open.push((path, dir));
        }
    }

    /// Looks at the next name in the folders, which may be nothing of ours. `None` at the end.
    pub(super) fn step(&mut self, folder: &CacheFolder) -> Option<Option<ScanEntry>> {
        let depth = self.open.len().checked_sub(1)?;
        let (path, dir) = self.open.last_mut()?;
        let Some(Ok(entry)) = dir.read() else {
            self.open.pop();
            return Some(None);
        };
        let name = entry.file_name().to_bytes();
        let is_folder = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        if let Some(length) = folder.levels().lengths().get(depth) {
            let is_level = name.len() == usize::from(*length)
                && name
                    .iter()
                    .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
            if is_folder && is_level {
                let name = String::from_utf8_lossy(name);
                let path = if path.is_empty() {
                    name.into_owned()
                } else {
                    format!("{path}/{name}")
                };
                self.enter(folder, path);
            }
            return Some(None);
        }
        let place = |id: &EntryId| folder.levels().path(id);
        let is_here = |id: &EntryId| place(id).folders().last().unwrap_or_default() == path;
        let entry = EntryId::from_hex(name)
            .filter(is_here)
            .map(ScanEntry::Entry);
        let temporary = || TemporaryName::parse(name).filter(|name| is_here(&name.id));
        Some(entry.or_else(|| temporary().map(ScanEntry::Temporary)))
    }
}

/// A look through the folder that goes on in steps.
#[derive(Debug)]
pub struct Scanner {
    store: Arc<DiskStore>,
    walk: Walk,
}

impl DiskStore {
    /// Begins to look through the folder, waiting for the disk. Only the process that owns it
    /// ([`DiskStore::try_own`]) should.
    pub fn scanner(self: &Arc<Self>) -> Scanner {
        Scanner {
            walk: Walk::new(self.folder.as_ref()),
            store: Arc::clone(self),
        }
    }

    /// All entries of the folder with the lengths of their files, waiting for the disk; where there
    /// is none, those of the index.
    pub(super) fn visit_files(&self, mut seen: impl FnMut(EntryId, u64)) {
        let Some(folder) = &self.folder else {
            for number in 0..self.index.shards() {
                let ids = self.index.shard(number).ids_of(|_| true);
                for id in ids {
                    let image = self.image_in_memory(&id);
                    seen(id, image.map_or(0, |image| image.len() as u64));
                }
            }
            return;
        };
        let mut walk = Walk::new(Some(folder));
        while let Some(found) = walk.step(folder) {
            if let Some(ScanEntry::Entry(id)) = found
                && let Ok(stat) = folder.stat_entry(&id)
            {
                seen(id, u64::try_from(stat.st_size).unwrap_or(0));
            }
        }
    }
}

impl Scanner {
    /// Looks at up to so many names, waiting for the disk. Whether there are more.
    pub fn step(&mut self, names_max: usize, now: Millis) -> bool {
        let store = Arc::clone(&self.store);
        let Some(folder) = &store.folder else {
            return false;
        };
        for _ in 0..names_max {
            match self.walk.step(folder) {
                Some(Some(ScanEntry::Entry(id))) => self.note(folder, &id, now),
                Some(Some(ScanEntry::Temporary(name))) => self.remove_temporary(folder, name),
                Some(None) => {}
                None => {
                    self.finish();
                    return false;
                }
            }
        }
        true
    }

    /// Adds what the index does not know.
    fn note(&self, folder: &CacheFolder, id: &EntryId, now: Millis) {
        let store = &self.store;
        let expected = store.index.of(id).expected(id);
        if expected.is_some_and(|expected| !expected.is_remembered) {
            return;
        }
        let Ok(stat) = folder.stat_entry(id) else {
            return;
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return;
        }
        let blocks = folder.blocks(u64::try_from(stat.st_size).unwrap_or(0));
        match expected {
            Some(expected) if expected.blocks == blocks => {
                store.index.of(id).note_seen(id, None);
            }
            expected => {
                let stored = StoredEntry {
                    blocks,
                    ..StoredEntry::default()
                };
                let revision = expected.map(|expected| expected.revision);
                store.note_found(id, stored, revision, now);
            }
        }
    }

    /// Unlinks what no fill of this process writes to.
    fn remove_temporary(&self, folder: &CacheFolder, name: TemporaryName) {
        let is_ours = self.store.lock_temporaries().contains(&name);
        if !is_ours {
            let _ = folder.unlink_temporary(name);
        }
    }

    /// What the saved index has told of and is not there is forgotten.
    fn finish(&self) {
        let store = &self.store;
        for number in 0..store.index.shards() {
            let mut shard = store.index.shard(number);
            for id in shard.remembered() {
                let removed = shard.remove(&id);
                if let Some(blocks) = removed.and_then(|removed| removed.blocks) {
                    store.room.subtract(blocks);
                }
            }
        }
        store.is_scanned.store(true, Ordering::Relaxed);
    }
}
