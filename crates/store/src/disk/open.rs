//! Opens entries: reads and validates the file's head and, for small entries, the body.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use crc32fast::Hasher;
use rustix::io::{Errno, ReadWriteFlags};

use super::clock::Millis;
use super::folder;
use super::folder::CacheFolder;
use super::head::{self, EntryTimes, FIXED_LENGTH, Fault, Head, Origin, ParsedHead};
use super::id::EntryId;
use super::index::{KnownEntry, StoredEntry, TagHashes};
use super::memory::Identity;
use super::store::DiskStore;

/// Maximum length of a body, in bytes, that should be verified before its first use in a process.
/// Longer bodies should be verified in the background ([`OpenEntry::later_check`]).
pub const CHECKED_FIRST_MAX: u64 = 1 << 20;

/// Size of the first read, in bytes: for a file of a single block, and for other files.
const FIRST_READ_MIN: usize = 4096;
const FIRST_READ_MAX: usize = 16 * 1024;

/// Size of a read while a body is verified, in bytes.
const CHECK_READ: usize = 64 * 1024;

/// Why an entry could not be opened.
#[derive(Debug)]
pub enum Miss {
    /// There is no file.
    Gone,
    /// The file was not a valid entry and has been removed.
    Wrong(Fault),
    /// The file could not be opened or read.
    Failed(io::Error),
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Miss::Gone => f.write_str("is not there"),
            Miss::Wrong(fault) => fault.fmt(f),
            Miss::Failed(error) => write!(f, "cannot be read: {error}"),
        }
    }
}

impl From<Errno> for Miss {
    fn from(error: Errno) -> Miss {
        match error {
            Errno::NOENT | Errno::NOTDIR => Miss::Gone,
            error => Miss::Failed(error.into()),
        }
    }
}

/// An entry whose file is open.
#[derive(Debug)]
pub struct OpenEntry {
    /// The entry's metadata.
    pub head: Head,
    /// The entry's file; `None` if the entry came from memory.
    pub file: Option<OwnedFd>,
    /// The range of the body in the file.
    pub body: Range<u64>,
    /// The part of the body that was read along with the head: all of it for a small entry or one
    /// from memory.
    pub first: Bytes,
    id: EntryId,
    /// The body's checksum, if it has not been verified.
    unchecked: Option<u32>,
    revision: Option<u32>,
}

/// Whether reading may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// Reading may block on the disk.
    Waiting,
    /// Reading takes only what is in the page cache.
    InMemory,
}

/// Why a file was not read.
enum HeadReadError {
    /// The disk would have been needed.
    OnDisk,
    Failed(Errno),
    Wrong(Fault),
}

impl From<Errno> for HeadReadError {
    fn from(error: Errno) -> HeadReadError {
        match error {
            Errno::SPIPE | Errno::ISDIR => HeadReadError::Wrong(Fault::NoFile),
            error => HeadReadError::Failed(error),
        }
    }
}

/// Whether `open()` fails with this error for a symbolic link or a socket.
fn is_no_file(error: Errno) -> bool {
    matches!(error, Errno::LOOP | Errno::NXIO)
}

impl DiskStore {
    /// Opens an entry without blocking; `None` if the disk may be needed. The caller then calls
    /// [`DiskStore::open_entry`] on another thread.
    pub fn open_in_memory(
        &self,
        id: &EntryId,
        key: &[u8],
        now: Millis,
    ) -> Option<Result<OpenEntry, Miss>> {
        let expected = self.index.lock_shard(id).known_entry(id);
        if let Some((recalled, _)) = self.recall(id, key, expected, now) {
            return Some(Ok(recalled));
        }
        let Some(folder) = &self.folder else {
            return Some(Err(self.not_opened(id, expected, Errno::NOENT)));
        };
        let file = match folder.open_entry_in_memory(id)? {
            Ok(file) => file,
            Err(error) if is_no_file(error) => {
                return Some(Err(self.drop_later(id, Fault::NoFile)));
            }
            Err(error) => return Some(Err(self.not_opened(id, expected, error))),
        };
        match self.read(&file, key, expected, Reading::InMemory) {
            Ok(read) => Some(Ok(self.opened(id, file, read, expected, now))),
            Err(HeadReadError::OnDisk) => None,
            Err(HeadReadError::Failed(error)) => Some(Err(Miss::Failed(error.into()))),
            Err(HeadReadError::Wrong(fault)) => Some(Err(self.drop_later(id, fault))),
        }
    }

    /// Opens an entry. Blocks on the disk.
    ///
    /// # Errors
    /// See [`Miss`].
    pub fn open_entry(&self, id: &EntryId, key: &[u8], now: Millis) -> Result<OpenEntry, Miss> {
        let expected = self.index.lock_shard(id).known_entry(id);
        let Some(folder) = &self.folder else {
            let recalled = self.recall(id, key, expected, now);
            let opened = recalled.map(|(opened, _)| opened);
            return opened.ok_or_else(|| self.not_opened(id, expected, Errno::NOENT));
        };
        let file = match folder.open_entry(id) {
            Ok(file) => file,
            Err(error) if is_no_file(error) => {
                let inode = folder.stat_entry(id).ok().map(|stat| stat.st_ino);
                return Err(self.drop_now(id, Fault::NoFile, inode));
            }
            Err(error) => return Err(self.not_opened(id, expected, error)),
        };
        match self.read(&file, key, expected, Reading::Waiting) {
            Ok(read) => Ok(self.opened(id, file, read, expected, now)),
            Err(HeadReadError::OnDisk) => Err(Miss::Failed(Errno::AGAIN.into())),
            Err(HeadReadError::Failed(error)) => Err(Miss::Failed(error.into())),
            Err(HeadReadError::Wrong(fault)) => Err(self.drop_now(id, fault, inode(&file))),
        }
    }

    /// Replaces the times of an entry. Blocks on the disk. Concurrent readers see the old times or
    /// the new ones.
    ///
    /// # Errors
    /// See [`Miss`]; `Unsupported` for an entry that nginx has written.
    pub fn refresh(
        &self,
        id: &EntryId,
        key: &[u8],
        times: &EntryTimes,
        now: Millis,
    ) -> Result<(), Miss> {
        let Some(folder) = &self.folder else {
            return self.refresh_in_memory(id, key, times, now);
        };
        // Without the lock, two concurrent refreshes would overwrite the same copy of the times.
        let _file = self.lock_file(id);
        let opened = self.open_locked(folder, id, key, now)?;
        let file = folder.open_entry_to_change(id)?;
        let mut start = [0; FIXED_LENGTH];
        folder::read_all(&file, 0, &mut start)?;
        if opened.head.origin == Origin::Nginx
            || Some(inode(&file)) != opened.file.as_ref().map(inode)
        {
            return Err(Miss::Failed(io::ErrorKind::Unsupported.into()));
        }
        let (at, bytes) = head::replace_times(&start, times).map_err(Miss::Wrong)?;
        let written = folder::write_all(&file, at, &[bytes]);
        // Outdates images that were read before the change, so that they are not kept in memory.
        self.index.lock_shard(id).renew(id);
        self.forget(id);
        written.map_err(|failure| Miss::Failed(failure.error()))
    }

    /// Opens an entry whose file lock is held. An invalid file is not removed.
    fn open_locked(
        &self,
        folder: &CacheFolder,
        id: &EntryId,
        key: &[u8],
        now: Millis,
    ) -> Result<OpenEntry, Miss> {
        let expected = self.index.lock_shard(id).known_entry(id);
        let file = folder.open_entry(id)?;
        let read = match self.read(&file, key, expected, Reading::Waiting) {
            Ok(read) => read,
            Err(HeadReadError::OnDisk) => return Err(Miss::Failed(Errno::AGAIN.into())),
            Err(HeadReadError::Failed(error)) => return Err(error.into()),
            Err(HeadReadError::Wrong(fault)) => return Err(Miss::Wrong(fault)),
        };
        Ok(self.opened(id, file, read, expected, now))
    }

    fn not_opened(&self, id: &EntryId, expected: Option<KnownEntry>, error: Errno) -> Miss {
        let miss = Miss::from(error);
        if matches!(miss, Miss::Gone)
            && let Some(expected) = expected
        {
            let removed = self
                .index
                .lock_shard(id)
                .remove_revision(id, expected.revision);
            if let Some(blocks) = removed.and_then(|removed| removed.blocks) {
                self.room.subtract(blocks);
                self.counters.gone.fetch_add(1, Ordering::Relaxed);
            }
        }
        miss
    }

    /// Records what was read in the index and in memory.
    fn opened(
        &self,
        id: &EntryId,
        file: OwnedFd,
        read: FilePrefix,
        expected: Option<KnownEntry>,
        now: Millis,
    ) -> OpenEntry {
        let FilePrefix {
            parsed,
            bytes,
            first,
            unchecked,
            identity,
        } = read;
        let ParsedHead { head, body, .. } = parsed;
        let blocks = self.blocks(body.end);
        let is_as_expected = expected.is_some_and(|expected| {
            let is_news = unchecked.is_none() && !expected.is_checked;
            expected.blocks == blocks && !expected.is_incomplete && !is_news
        });
        let mut revision = expected.map(|expected| expected.revision);
        if !is_as_expected {
            let stored = StoredEntry {
                blocks,
                names: Some(TagHashes::of(&head)),
                is_checked: unchecked.is_none(),
                is_remembered: false,
            };
            revision = self.note_found(id, stored, revision, now);
        }
        if unchecked.is_none() && bytes.len() as u64 == body.end {
            self.cache_read(id, revision, identity, bytes, now);
        }
        OpenEntry {
            head,
            file: Some(file),
            body,
            first,
            id: *id,
            unchecked,
            revision,
        }
    }

    /// Removes an entry with an invalid file from the index, and queues the file for unlinking.
    fn drop_later(&self, id: &EntryId, fault: Fault) -> Miss {
        self.counters.wrong.fetch_add(1, Ordering::Relaxed);
        let removed = self.index.lock_shard(id).remove(id);
        if let Some(blocks) = removed.and_then(|removed| removed.blocks) {
            self.room.subtract(blocks);
        }
        self.room
            .schedule_unlink(super::room::PendingUnlink::Entry(*id));
        Miss::Wrong(fault)
    }

    /// Unlinks an invalid file, unless it has been replaced in the meantime.
    fn drop_now(&self, id: &EntryId, fault: Fault, inode: Option<u64>) -> Miss {
        self.counters.wrong.fetch_add(1, Ordering::Relaxed);
        let _file = self.lock_file(id);
        let found = self.folder.as_ref().map(|folder| folder.stat_entry(id));
        let now = found.and_then(Result::ok).map(|stat| stat.st_ino);
        if now == inode {
            self.remove_file(id);
        }
        Miss::Wrong(fault)
    }
}

impl OpenEntry {
    /// An entry from memory, complete and verified.
    pub(super) fn recalled(
        id: &EntryId,
        revision: u32,
        head: Head,
        body: Range<u64>,
        first: Bytes,
    ) -> OpenEntry {
        OpenEntry {
            head,
            file: None,
            body,
            first,
            id: *id,
            unchecked: None,
            revision: Some(revision),
        }
    }

    /// Identifies the content of an entry from memory: its id and its revision in this store.
    /// `None` if the entry was read from its file.
    #[must_use]
    pub fn version(&self) -> Option<(EntryId, u32)> {
        let is_recalled = self.file.is_none();
        Some((self.id, self.revision.filter(|_| is_recalled)?))
    }

    /// The entry's file; `None` if the entry came from memory.
    #[must_use]
    pub fn into_file(self) -> Option<OwnedFd> {
        self.file
    }

    /// Whether this process has not verified the body's checksum.
    #[must_use]
    pub fn is_unchecked(&self) -> bool {
        self.unchecked.is_some()
    }

    /// Reads the body and verifies its checksum. Blocks on the disk.
    ///
    /// # Errors
    /// The checksum does not match, and the entry has been removed; or the file cannot be read.
    pub fn check_body(&mut self, store: &DiskStore) -> Result<(), Miss> {
        let (Some(checksum), Some(file)) = (self.unchecked, &self.file) else {
            return Ok(());
        };
        let check = BodyCheck::of(self.body.clone(), checksum);
        if let Err(fault) = check.run(file)? {
            return Err(store.drop_now(&self.id, fault, inode(file)));
        }
        self.unchecked = None;
        if let Some(revision) = self.revision {
            store
                .index
                .lock_shard(&self.id)
                .note_checked(&self.id, revision);
        }
        Ok(())
    }

    /// The check to run in the background while the entry is served. `None` if the body has been
    /// verified or another request has already started its check.
    ///
    /// # Errors
    /// The file descriptor cannot be duplicated.
    pub fn later_check(&self, store: &DiskStore) -> io::Result<Option<DeferredCheck>> {
        let (Some(checksum), Some(revision)) = (self.unchecked, self.revision) else {
            return Ok(None);
        };
        let Some(file) = &self.file else {
            return Ok(None);
        };
        let file = file.try_clone()?;
        let is_first = store
            .index
            .lock_shard(&self.id)
            .note_checked(&self.id, revision);
        Ok(is_first.then(|| DeferredCheck {
            file,
            body: BodyCheck::of(self.body.clone(), checksum),
            id: self.id,
        }))
    }
}

/// A check of a body in the background, while the entry is served.
#[derive(Debug)]
pub struct DeferredCheck {
    file: OwnedFd,
    body: BodyCheck,
    id: EntryId,
}

impl DeferredCheck {
    /// Reads the body and verifies its checksum. Blocks on the disk.
    ///
    /// # Errors
    /// As for [`OpenEntry::check_body`].
    pub fn run(self, store: &DiskStore) -> Result<(), Miss> {
        match self.body.run(&self.file)? {
            Ok(()) => Ok(()),
            Err(fault) => Err(store.drop_now(&self.id, fault, inode(&self.file))),
        }
    }
}

/// The range of a body in its file, and its expected checksum.
#[derive(Debug)]
pub(super) struct BodyCheck {
    body: Range<u64>,
    checksum: u32,
}

impl BodyCheck {
    pub(super) fn of(body: Range<u64>, checksum: u32) -> BodyCheck {
        BodyCheck { body, checksum }
    }

    /// Reads the body and verifies its checksum. Blocks on the disk.
    pub(super) fn run(&self, file: &OwnedFd) -> Result<Result<(), Fault>, Errno> {
        let mut hasher = Hasher::new();
        let mut memory = vec![0; CHECK_READ];
        let mut at = self.body.start;
        while at < self.body.end {
            let wanted = usize::try_from(self.body.end - at)
                .unwrap_or(usize::MAX)
                .min(CHECK_READ);
            let part = memory.get_mut(..wanted).unwrap_or_default();
            let count = folder::read_all(file, at, part)?;
            if count == 0 {
                break;
            }
            hasher.update(part.get(..count).unwrap_or_default());
            at += count as u64;
        }
        let is_right = at >= self.body.end && hasher.finalize() == self.checksum;
        Ok(is_right.then_some(()).ok_or(Fault::BodyChecksum))
    }
}

fn inode(file: &OwnedFd) -> Option<u64> {
    rustix::fs::fstat(file).ok().map(|stat| stat.st_ino)
}

/// The part of a file that has been read.
struct FilePrefix {
    parsed: ParsedHead,
    /// The bytes read from the start of the file.
    bytes: Bytes,
    /// The bytes of the body among them.
    first: Bytes,
    /// The body's checksum, if it has not been verified.
    unchecked: Option<u32>,
    /// The file's identity from before the read, if the file may be kept in memory.
    identity: Option<Identity>,
}

impl DiskStore {
    /// Reads the head, and the whole body if the entry is to be kept in memory. Otherwise the body
    /// is read only as far as it comes with the head.
    fn read(
        &self,
        file: &OwnedFd,
        key: &[u8],
        expected: Option<KnownEntry>,
        reading: Reading,
    ) -> Result<FilePrefix, HeadReadError> {
        let kept_max = self.kept_max(expected);
        let stat = kept_max.map(|_| rustix::fs::fstat(file));
        let stat = stat.transpose().map_err(HeadReadError::Failed)?;
        let identity = stat.as_ref().and_then(Identity::settled);
        let whole_max = kept_max.filter(|_| identity.is_some()).unwrap_or(0);
        let read = read(file, key, expected, reading, whole_max)?;
        Ok(FilePrefix { identity, ..read })
    }
}

/// Reads the head, and the whole body if it is at most `whole_max` bytes long. Otherwise the body
/// is read only as far as it comes with the head. A whole body is verified, unless this process has
/// verified it before.
fn read(
    file: &OwnedFd,
    key: &[u8],
    expected: Option<KnownEntry>,
    reading: Reading,
    whole_max: u64,
) -> Result<FilePrefix, HeadReadError> {
    let (parsed, mut bytes) = read_head(file, key, expected, reading)?;
    let body = &parsed.body;
    if bytes.len() as u64 != body.end && body.end - body.start <= whole_max {
        bytes = read_rest(file, bytes, body.end, reading)?;
    }
    let start = usize::try_from(body.start).unwrap_or(usize::MAX);
    let first = bytes.slice(start.min(bytes.len())..);
    let was_checked = expected.is_some_and(|expected| expected.is_checked);
    let mut unchecked = parsed.body_checksum.filter(|_| !was_checked);
    if first.len() as u64 == body.end - body.start
        && let Some(checksum) = unchecked.take()
        && crc32fast::hash(&first) != checksum
    {
        return Err(HeadReadError::Wrong(Fault::BodyChecksum));
    }
    Ok(FilePrefix {
        parsed,
        bytes,
        first,
        unchecked,
        identity: None,
    })
}

/// Appends the rest of the file to `start`. If reading must not block and part of the rest is not
/// in the page cache, returns `start` alone.
fn read_rest(
    file: &OwnedFd,
    start: Bytes,
    end: u64,
    reading: Reading,
) -> Result<Bytes, HeadReadError> {
    let end = usize::try_from(end).unwrap_or(usize::MAX);
    let mut whole = Vec::with_capacity(end);
    whole.extend_from_slice(&start);
    whole.resize(end, 0);
    let rest = whole.get_mut(start.len()..).unwrap_or_default();
    let missing = rest.len();
    match read_some(file, start.len() as u64, rest, reading) {
        Ok(count) if count == missing => Ok(whole.into()),
        Ok(_) | Err(HeadReadError::OnDisk) => Ok(start),
        Err(unread) => Err(unread),
    }
}

/// Reads and parses the head. Also returns all bytes that were read.
fn read_head(
    file: &OwnedFd,
    key: &[u8],
    expected: Option<KnownEntry>,
    reading: Reading,
) -> Result<(ParsedHead, Bytes), HeadReadError> {
    let is_small = expected.is_some_and(|expected| expected.blocks <= 1);
    let length = if is_small {
        FIRST_READ_MIN
    } else {
        FIRST_READ_MAX
    };
    let (bytes, has_ended) = MEMORY.with_borrow_mut(|memory| {
        memory.resize(FIRST_READ_MAX, 0);
        read_start(file, memory.get_mut(..length).unwrap_or_default(), reading)
    })?;
    if has_ended && let Some(parsed) = parse_whole(&bytes, key, reading)? {
        return Ok((parsed, bytes));
    }
    let stat = rustix::fs::fstat(file).map_err(HeadReadError::Failed)?;
    let file_length = u64::try_from(stat.st_size).unwrap_or(0);
    let parsed = head::parse(&bytes, key, file_length).map_err(HeadReadError::Wrong)?;
    Ok((parsed, bytes))
}

thread_local! {
    /// A buffer for reading files. Most files are shorter than the buffer, so that copying the
    /// bytes read takes less memory than keeping the buffer.
    static MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads the start of a file through the buffer `memory`: at least the head, unless the file is
/// shorter. Also returns whether the read ended before its requested length.
fn read_start(
    file: &OwnedFd,
    memory: &mut [u8],
    reading: Reading,
) -> Result<(Bytes, bool), HeadReadError> {
    let filled = read_some(file, 0, memory, reading)?;
    let start = memory.get(..filled).unwrap_or_default();
    let needed = match head::length(start) {
        // Only part of the page may be in the page cache.
        Err(Fault::Short) if reading == Reading::InMemory => return Err(HeadReadError::OnDisk),
        needed => needed.map_err(HeadReadError::Wrong)?,
    };
    if needed <= filled {
        return Ok((Bytes::copy_from_slice(start), filled < memory.len()));
    }
    if filled < memory.len() && reading == Reading::InMemory {
        return Err(HeadReadError::OnDisk);
    }
    let mut long = start.to_vec();
    long.resize(needed, 0);
    let rest = long.get_mut(filled..).unwrap_or_default();
    let more = read_some(file, filled as u64, rest, reading)?;
    long.truncate(filled + more);
    let has_ended = long.len() < needed;
    if has_ended && reading == Reading::InMemory {
        return Err(HeadReadError::OnDisk);
    }
    Ok((long.into(), has_ended))
}

/// Parses the head of a file whose bytes are all in `bytes`, which saves the call for its length.
/// Returns `None` if the length is needed: a read from the page cache may end before the file does,
/// unless the head confirms the length.
fn parse_whole(
    bytes: &Bytes,
    key: &[u8],
    reading: Reading,
) -> Result<Option<ParsedHead>, HeadReadError> {
    let parsed = head::parse(bytes, key, bytes.len() as u64);
    match (reading, parsed) {
        (Reading::Waiting, parsed) => parsed.map(Some).map_err(HeadReadError::Wrong),
        (Reading::InMemory, Ok(parsed)) => {
            Ok((parsed.head.origin == Origin::Own).then_some(parsed))
        }
        (Reading::InMemory, Err(Fault::BodyLength)) => Ok(None),
        (Reading::InMemory, Err(fault)) => Err(HeadReadError::Wrong(fault)),
    }
}

/// Reads until `memory` is full or the file ends. If reading must not block, also ends where the
/// disk would be needed.
fn read_some(
    file: &OwnedFd,
    at: u64,
    memory: &mut [u8],
    reading: Reading,
) -> Result<usize, HeadReadError> {
    if reading == Reading::Waiting {
        return Ok(folder::read_all(file, at, memory)?);
    }
    let mut parts = [IoSliceMut::new(memory)];
    match rustix::io::preadv2(file, &mut parts, at, ReadWriteFlags::NOWAIT) {
        Ok(count) => Ok(count),
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => {
            Err(HeadReadError::OnDisk)
        }
        Err(error) => Err(error.into()),
    }
}
