//! Scans the folder for entries that the index does not list, a few files at a time and
//! concurrently with service. This is needed if there is no complete saved index.
//!
//! Only files with names of entries or temporary files, in the folders that their levels require,
//! are considered. Temporary files of previous processes are unlinked.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{Dir, FileType};

use super::clock::Millis;
use super::folder::CacheFolder;
use super::id::{EntryId, TemporaryName};
use super::index::StoredEntry;
use super::store::DiskStore;

/// A file found in the folder.
pub(super) enum ScanEntry {
    Entry(EntryId),
    Temporary(TemporaryName),
}

/// A walk through the subfolders of all levels.
#[derive(Debug)]
pub(super) struct Walk {
    /// The folders being listed, from the outermost, with their paths.
    open: Vec<(String, Dir)>,
}

impl Walk {
    /// Starts a walk. Without a folder, it finds nothing.
    pub(super) fn new(folder: Option<&CacheFolder>) -> Walk {
        let mut walk = Walk { open: Vec::new() };
        if let Some(folder) = folder {
            walk.enter(folder, String::new());
        }
        walk
    }

    /// Descends into a folder. A folder that cannot be listed is skipped.
    fn enter(&mut self, folder: &CacheFolder, path: String) {
        let name = if path.is_empty() { "." } else { &path };
        if let Ok(dir) = folder.open_folder(name).and_then(Dir::new) {
            self.open.push((path, dir));
        }
    }

    /// Advances to the next name, which may be neither an entry nor a temporary file. Returns
    /// `None` at the end.
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

/// A scan of the folder, which proceeds in steps.
#[derive(Debug)]
pub struct Scanner {
    store: Arc<DiskStore>,
    walk: Walk,
}

impl DiskStore {
    /// Starts a scan of the folder. Blocks on the disk. Only the owner of the folder
    /// ([`DiskStore::try_acquire_ownership`]) should scan.
    pub fn scanner(self: &Arc<Self>) -> Scanner {
        Scanner {
            walk: Walk::new(self.folder.as_ref()),
            store: Arc::clone(self),
        }
    }

    /// Passes all entries of the folder with the lengths of their files to `seen`. Blocks on the
    /// disk. For a store without a folder, the entries are those of the index.
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
    /// Examines up to `names_max` names. Blocks on the disk. Returns whether there are more.
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

    /// Adds an entry that the index does not list.
    fn note(&self, folder: &CacheFolder, id: &EntryId, now: Millis) {
        let store = &self.store;
        let expected = store.index.lock_shard(id).known_entry(id);
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
                store.index.lock_shard(id).note_seen(id, None);
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

    /// Unlinks a temporary file, unless this process is writing to it.
    fn remove_temporary(&self, folder: &CacheFolder, name: TemporaryName) {
        let is_ours = self.store.lock_temporaries().contains(&name);
        if !is_ours {
            let _ = folder.unlink_temporary(name);
        }
    }

    /// Removes the entries of the saved index whose files were not found.
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
