//! Purges: removes entries immediately, by id, by group or tag, or by a predicate on the key.
//!
//! The response of a fetch that is running during a purge may have been generated before it. It is
//! therefore not stored, and later requests do not wait for it. Each fetch remembers the number of
//! the last purge before its start; a purge is kept while there are fetches that began before it.
//! If the body of an entry has been received entirely, the purge waits until the entry is stored,
//! and then finds its file.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::fill::Fill;
use super::folder;
use super::head::{self, HEAD_LENGTH_MAX, Head};
use super::id::EntryId;
use super::index::TagHashes;
use super::store::DiskStore;

/// Maximum number of purges kept. If it is exceeded, no fetch that began before is stored.
const PURGES_MAX: usize = 4096;

/// How long a purge waits for completely received entries to be stored. After that, such an entry
/// is treated like one that is still being fetched.
const STORED_WITHIN: Duration = Duration::from_millis(500);

/// The interval of polling while waiting for them.
const STORED_CHECK: Duration = Duration::from_millis(1);

/// Size of the first read for an entry's key, in bytes.
const KEY_READ: usize = 4096;

/// The number of the last purge before an event.
type Epoch = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Id(EntryId),
    Group(u64),
    Tag(u64),
    All,
}

/// The purges that running fetches must obey.
#[derive(Debug, Default)]
pub(super) struct Purges {
    /// Number of the last purge.
    last: AtomicU64,
    kept: Mutex<PurgeLog>,
}

#[derive(Debug, Default)]
struct PurgeLog {
    fetches: usize,
    purges: Vec<(Epoch, What)>,
}

impl Purges {
    fn lock(&self) -> MutexGuard<'_, PurgeLog> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Epoch {
        let mut kept = self.lock();
        kept.fetches += 1;
        self.last.load(Ordering::Acquire)
    }

    fn end(&self) {
        let mut kept = self.lock();
        kept.fetches -= 1;
        if kept.fetches == 0 {
            kept.purges.clear();
        }
    }

    fn note(&self, what: What) {
        let mut kept = self.lock();
        let number = self.last.fetch_add(1, Ordering::AcqRel) + 1;
        if kept.fetches == 0 {
            return;
        }
        if kept.purges.len() >= PURGES_MAX {
            kept.purges.clear();
            kept.purges.push((number, What::All));
            return;
        }
        kept.purges.push((number, what));
    }

    /// Whether the entry was purged after `since`.
    fn concerns(&self, since: Epoch, id: &EntryId, names: &TagHashes) -> bool {
        if self.last.load(Ordering::Acquire) == since {
            return false;
        }
        let kept = self.lock();
        kept.purges.iter().any(|(number, what)| {
            *number > since
                && match what {
                    What::Id(purged) => purged == id,
                    What::Group(group) => *group == names.group,
                    What::Tag(tag) => names.tags.contains(tag),
                    What::All => true,
                }
        })
    }
}

/// A running fetch. Also held by its last write, which may outlive the filler.
#[derive(Debug)]
pub(super) struct Fetch {
    store: Arc<DiskStore>,
    epoch: Epoch,
}

impl Fetch {
    pub(super) fn begin(store: &Arc<DiskStore>) -> Arc<Fetch> {
        Arc::new(Fetch {
            epoch: store.purges.begin(),
            store: Arc::clone(store),
        })
    }

    /// Whether the entry has been purged since the fetch began.
    pub(super) fn is_purged(&self, id: &EntryId, names: &TagHashes) -> bool {
        self.store.purges.concerns(self.epoch, id, names)
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.store.purges.end();
    }
}

/// The result of a purge of several entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Number of removed entries.
    pub entries: u64,
    /// Entries whose file could not be unlinked.
    pub failed: u64,
}

impl TagHashes {
    /// The hashes of the group and tags in this head.
    pub(super) fn of(head: &Head) -> TagHashes {
        let group = if head.group.is_empty() {
            &head.key
        } else {
            &head.group
        };
        TagHashes {
            group: name_hash(group),
            tags: head.tags().map(name_hash).collect(),
        }
    }
}

/// A hash without a secret, because the saved index contains it.
fn name_hash(name: &[u8]) -> u64 {
    let EntryId(digest) = EntryId::of(&[name]);
    digest
        .first_chunk()
        .map_or(0, |first| u64::from_le_bytes(*first))
}

impl DiskStore {
    /// Removes an entry. Blocks on the disk. Running fetches of the entry are not stored. Returns
    /// whether there was an entry.
    ///
    /// # Errors
    /// The error of `unlink()`, except for a missing file.
    pub fn purge(&self, id: &EntryId) -> io::Result<bool> {
        self.await_stored(|other, _| other == id);
        self.purges.note(What::Id(*id));
        self.index.forget_fills(|other, _| other == id);
        let _file = self.lock_file(id);
        Ok(self.try_remove_file(id)?)
    }

    /// Removes the entries of a group. Blocks on the disk.
    pub fn purge_group(&self, group: &[u8]) -> Purged {
        let hash = name_hash(group);
        self.purge_named(What::Group(hash), |names| names.group == hash)
    }

    /// Removes the entries with a tag. Blocks on the disk.
    pub fn purge_tag(&self, tag: &[u8]) -> Purged {
        let hash = name_hash(tag);
        self.purge_named(What::Tag(hash), |names| names.tags.contains(&hash))
    }

    /// Removes the entries whose key satisfies `matches`. Blocks on the disk, and reads the key
    /// from every file. No running fetch is stored.
    pub fn purge_matching(&self, matches: impl Fn(&[u8]) -> bool) -> Purged {
        self.await_stored(|_, _| true);
        self.purges.note(What::All);
        self.index
            .forget_fills(|_, fill| fill.head().is_none_or(|head| matches(&head.key)));
        let mut purged = Purged::default();
        self.visit_files(|id, _| {
            let is_match = self.read_key(&id).is_some_and(|key| matches(&key));
            if is_match {
                purged.count(self.try_remove_locked(&id));
            }
        });
        purged
    }

    /// Removes all entries. Blocks on the disk. Files that the index lists are not read; other
    /// files are removed if they contain a key. No running fetch is stored.
    pub fn purge_all(&self) -> Purged {
        self.await_stored(|_, _| true);
        self.purges.note(What::All);
        self.index.forget_fills(|_, _| true);
        let mut purged = Purged::default();
        self.visit_files(|id, _| {
            // The lookup is a statement of its own, so that the shard's lock is not held while the
            // file is read.
            let is_known = self.index.lock_shard(&id).known_entry(&id).is_some();
            if is_known || self.read_key(&id).is_some() {
                purged.count(self.try_remove_locked(&id));
            }
        });
        purged
    }

    fn purge_named(&self, what: What, matches: impl Fn(&TagHashes) -> bool) -> Purged {
        self.await_stored(|_, head| matches(&TagHashes::of(head)));
        self.purges.note(what);
        self.index.forget_fills(|_, fill| {
            let names = fill.head().map(|head| TagHashes::of(&head));
            names.is_none_or(|names| matches(&names))
        });
        self.purge_names(matches)
    }

    /// Waits until the completely received entries that the purge concerns are stored, but not
    /// longer than [`STORED_WITHIN`].
    fn await_stored(&self, concerns: impl Fn(&EntryId, &Head) -> bool) {
        let begun = Instant::now();
        let is_awaited = |id: &EntryId, fill: &Fill| {
            fill.is_over() && fill.head().is_some_and(|head| concerns(id, &head))
        };
        while self.index.any_fill(is_awaited) && begun.elapsed() < STORED_WITHIN {
            std::thread::sleep(STORED_CHECK);
        }
    }

    /// Removes the entries whose group or tags match. Reads them from the files if the index does
    /// not know them, or does not know all entries.
    fn purge_names(&self, matches: impl Fn(&TagHashes) -> bool) -> Purged {
        let mut purged = Purged::default();
        for number in 0..self.index.shards() {
            let shard = self.index.shard(number);
            let candidates = shard.ids_of(|names| {
                names.is_none_or(|names| {
                    let (group, tags) = (names.group, names.tags.into());
                    matches(&TagHashes { group, tags })
                })
            });
            drop(shard);
            for id in candidates {
                self.purge_if(&id, &matches, &mut purged);
            }
        }
        if !self.is_scanned() {
            self.visit_files(|id, _| {
                if self.index.lock_shard(&id).known_entry(&id).is_none() {
                    self.purge_if(&id, &matches, &mut purged);
                }
            });
        }
        purged
    }

    /// Removes an entry if the group or tags in its file match.
    fn purge_if(&self, id: &EntryId, matches: impl Fn(&TagHashes) -> bool, purged: &mut Purged) {
        let names = self.read_names(id);
        if names.as_ref().is_some_and(matches) {
            purged.count(self.try_remove_locked(id));
        } else {
            self.index.lock_shard(id).note_seen(id, names);
        }
    }

    fn try_remove_locked(&self, id: &EntryId) -> Result<bool, Errno> {
        let _file = self.lock_file(id);
        self.try_remove_file(id)
    }

    /// Reads the start of an entry's file, up to the end of its key or of its whole head. Also
    /// returns the file's length.
    fn read_start(&self, id: &EntryId, is_whole: bool) -> Option<(Vec<u8>, u64)> {
        let Some(folder) = &self.folder else {
            let image = self.image_in_memory(id)?;
            let length = image.len() as u64;
            return Some((image.into(), length));
        };
        let file = folder.open_entry(id).ok()?;
        let file_length = rustix::fs::fstat(&file).ok()?.st_size as u64;
        let mut start = vec![0; KEY_READ];
        let filled = folder::read_all(&file, 0, &mut start).ok()?;
        start.truncate(filled);
        let needed = head::length(&start).ok()?.min(HEAD_LENGTH_MAX);
        if needed > start.len() && (is_whole || head::key_of(&start).is_none()) {
            start.resize(needed, 0);
            let filled = folder::read_all(&file, 0, &mut start).ok()?;
            start.truncate(filled);
        }
        Some((start, file_length))
    }

    fn read_key(&self, id: &EntryId) -> Option<Vec<u8>> {
        let (start, _) = self.read_start(id, false)?;
        head::key_of(&start).map(<[u8]>::to_vec)
    }

    fn read_names(&self, id: &EntryId) -> Option<TagHashes> {
        let (start, file_length) = self.read_start(id, true)?;
        let key = head::key_of(&start)?.to_vec();
        let parsed = head::parse(&start.into(), &key, file_length).ok()?;
        Some(TagHashes::of(&parsed.head))
    }

    /// Passes the keys of all entries and the lengths of their files to `seen`. Blocks on the disk.
    pub fn visit_keys(&self, mut seen: impl FnMut(&EntryId, &[u8], u64)) {
        self.visit_files(|id, length| {
            if let Some(key) = self.read_key(&id) {
                seen(&id, &key, length);
            }
        });
    }
}

impl Purged {
    fn count(&mut self, removed: Result<bool, Errno>) {
        match removed {
            Ok(true) => self.entries += 1,
            Ok(false) => {}
            Err(_) => self.failed += 1,
        }
    }
}
