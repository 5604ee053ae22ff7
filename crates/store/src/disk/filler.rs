//! The right and the means to fetch an entry and store it: [`Filler`].
//!
//! A filler does no I/O. It returns what is to be written as a [`Write`], one at a time. The caller
//! runs the write on a thread that may block, and passes its outcome to [`Filler::wrote`]:
//!
//! ```text
//! begin ─▶ push … push ─▶ finish         readers see each part at once
//!            │ next_write     │ next_write
//!            ▼                ▼
//!          Write::run       Write::run    makes room, writes; the last one writes the head and renames
//! ```
//!
//! Everything after [`Filler::finish`] may be left to [`Filler::store`], which blocks on the disk.
//!
//! The first bytes of the head are written last, and only then does the file get its name, so that
//! an incomplete file is never taken for an entry. A small new entry that is written by one call
//! has no name at all before that, if the file system supports `O_TMPFILE`. Files are not
//! synchronised to the disk: after a power failure, lengths and checksums reveal damaged files.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::pieces::Pieces;
use bytes::Bytes;
use crc32fast::Hasher;

use super::clock::Millis;
use super::error::StoreError;
use super::fill::{Fill, Progress, TAIL_MAX};
use super::folder::{self, CacheFolder, DiskError};
use super::head::{Encoded, FIXED_LENGTH, Fault, NewHead, TooLarge};
use super::id::{EntryId, TemporaryName};
use super::index::{StoredEntry, TagHashes};
use super::order::Turn;
use super::purge::Fetch;
use super::room::{PendingUnlink, Reserved};
use super::store::DiskStore;

/// How much of a body may wait to be written before reading from the upstream should pause, in
/// bytes.
pub const FILL_MEMORY_MAX: usize = 1 << 20;

/// Minimum size of a write other than the last, in bytes.
const WRITE_MIN: usize = 64 * 1024;

/// The right to fetch and store an entry; see above.
#[derive(Debug)]
pub struct Filler {
    store: Arc<DiskStore>,
    fill: Arc<Fill>,
    /// The id that this filler has claimed, so that no other request fetches it.
    claimed: Option<EntryId>,
    /// The id under which the entry is stored.
    id: EntryId,
    fetch: Arc<Fetch>,
    /// The order of this fetch among the entry's fetches; set when the head has been received.
    turn: Option<Arc<Turn>>,
    head: Option<Encoded>,
    checksum: Hasher,
    unwritten: Pieces,
    unwritten_length: usize,
    /// Bytes of the body that are in the file.
    written: u64,
    /// Bytes of the body received so far.
    length: u64,
    /// When the end of the body was received.
    finished: Option<Millis>,
    storing: FillStage,
}

#[derive(Debug)]
enum FillStage {
    /// No write is running, and the next one may begin.
    Idle(Option<Temporary>),
    /// A write is running.
    Writing,
    /// The entry has been stored or will not be stored.
    Over,
}

/// The state of storing after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The entry is not complete yet: more writes follow.
    More,
    /// The entry has been stored.
    Committed,
}

impl Filler {
    pub(super) fn new(
        store: &Arc<DiskStore>,
        fill: Arc<Fill>,
        id: &EntryId,
        is_claimed: bool,
    ) -> Filler {
        Filler {
            fetch: Fetch::begin(store),
            store: Arc::clone(store),
            fill,
            claimed: is_claimed.then_some(*id),
            id: *id,
            turn: None,
            head: None,
            checksum: Hasher::new(),
            unwritten: Pieces::new(),
            unwritten_length: 0,
            written: 0,
            length: 0,
            finished: None,
            storing: FillStage::Idle(None),
        }
    }

    /// The state that readers share.
    #[must_use]
    pub fn fill(&self) -> &Arc<Fill> {
        &self.fill
    }

    /// Passes in the head. The entry will be stored under `id`: the claimed id or the id of a
    /// variant.
    ///
    /// # Errors
    /// [`TooLarge`]: the response should be forwarded and not stored.
    pub fn begin(&mut self, id: EntryId, head: NewHead) -> Result<(), TooLarge> {
        let encoded = Encoded::new(head)?;
        self.id = id;
        self.turn = Some(Turn::begin(&self.store, &id));
        self.fill.begin(encoded.head.clone());
        let announced = encoded.head.body_length;
        self.head = Some(encoded);
        if announced.is_some_and(|length| self.is_too_long(length)) {
            self.give_up();
        }
        Ok(())
    }

    /// Passes in a part of the body.
    pub fn push(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.length += bytes.len() as u64;
        if !matches!(self.storing, FillStage::Over) {
            self.checksum.update(&bytes);
            self.unwritten_length += bytes.len();
            self.unwritten.push(bytes.clone());
            if self.is_too_long(self.length) {
                self.give_up();
            }
        }
        self.fill.push(bytes);
    }

    /// Whether a body is too long for a store in memory.
    fn is_too_long(&self, length: u64) -> bool {
        self.store.folder.is_none() && length > self.store.kept_max(None).unwrap_or(0)
    }

    /// Stops storing the entry. Its readers still get the whole body.
    fn give_up(&mut self) {
        self.storing = FillStage::Over;
        self.unwritten.clear();
        self.unwritten_length = 0;
        self.release();
        self.fill.note_unkept();
    }

    /// Whether the fetch serves nobody: the entry is not stored, and there are no readers.
    #[must_use]
    pub fn is_pointless(&self) -> bool {
        matches!(self.storing, FillStage::Over) && self.fill.readers() == 0
    }

    /// Whether more may be read from the upstream.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.fill.held() <= FILL_MEMORY_MAX
    }

    /// Waits for [`Filler::has_room`] after the entry has been given up, when only readers free
    /// memory.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.fill.poll_room(FILL_MEMORY_MAX, context)
    }

    /// Passes in the end of the body.
    ///
    /// # Errors
    /// The length differs from the head's `body_length`; the fill is then broken.
    pub fn finish(&mut self, now: Millis) -> Result<(), Fault> {
        let head = self.head.as_ref();
        let announced = head.and_then(|encoded| encoded.head.body_length);
        if head.is_none() || announced.is_some_and(|length| length != self.length) {
            // Without a head, [`Filler::next_write`] returns nothing.
            self.head = None;
            self.release();
            self.fill.end(Progress::Broken);
            return Err(Fault::BodyLength);
        }
        self.finished = Some(now);
        self.fill.end(Progress::Complete);
        Ok(())
    }

    /// Stores a complete entry in a store without a folder. Does nothing in other stores.
    ///
    /// # Errors
    /// The reason why the entry was not stored.
    pub fn commit_in_memory(&mut self, now: Millis) -> Result<(), StoreError> {
        let is_ready = self.finished.is_some() && matches!(self.storing, FillStage::Idle(_));
        let Some(encoded) = self.head.as_mut().filter(|_| is_ready) else {
            return Ok(());
        };
        if self.store.folder.is_some() {
            return Ok(());
        }
        let head = encoded.finished(self.length, self.checksum.clone().finalize());
        let names = TagHashes::of(&encoded.head);
        let parts: Vec<Bytes> = head.into_iter().chain(self.unwritten.drain()).collect();
        let stored = self.store.commit_in_memory(
            &self.id,
            &parts,
            names,
            (&self.fetch, self.turn.as_deref()),
            now,
        );
        self.give_up();
        stored
    }

    /// The next write, if there is one. The caller runs it on a thread that may block.
    pub fn next_write(&mut self) -> Option<Write> {
        let FillStage::Idle(temporary) = &mut self.storing else {
            return None;
        };
        self.store.folder.as_ref()?;
        let is_ready = self.finished.is_some() || self.unwritten_length >= WRITE_MIN;
        let encoded = self.head.as_mut().filter(|_| is_ready)?;
        let body_start = encoded.body_start();
        let last = self.finished.map(|now| FinalWrite {
            head: encoded.finished(self.length, self.checksum.clone().finalize()),
            names: TagHashes::of(&encoded.head),
            fetch: Arc::clone(&self.fetch),
            turn: self.turn.clone(),
            now,
        });
        let temporary = temporary.take();
        let unfinished = match (&temporary, &last) {
            (None, None) => Some(encoded.unfinished()),
            _ => None,
        };
        let announced = encoded.head.body_length.unwrap_or(0);
        let write = Write {
            id: self.id,
            at: body_start + self.written,
            parts: self.unwritten.drain().collect(),
            unfinished,
            last,
            temporary,
            body_start,
            end: body_start + self.length,
            announced: body_start + announced,
            is_announced: encoded.head.body_length.is_some(),
            store: Arc::clone(&self.store),
        };
        self.unwritten_length = 0;
        self.storing = FillStage::Writing;
        Some(write)
    }

    /// Whether the whole body has been received and [`Filler::store`] still has something to write.
    #[must_use]
    pub fn is_to_be_stored(&self) -> bool {
        let is_open = matches!(self.storing, FillStage::Idle(_));
        is_open && self.finished.is_some() && self.store.folder.is_some()
    }

    /// Writes the rest of a complete entry. Blocks on the disk.
    ///
    /// # Errors
    /// The reason why the entry was not stored. Readers continue from memory.
    pub fn store(&mut self) -> Result<(), StoreError> {
        while let Some(write) = self.next_write() {
            self.wrote(write.run())?;
        }
        Ok(())
    }

    /// Passes in the outcome of the last write.
    ///
    /// # Errors
    /// The reason why the entry was not stored. Readers continue from memory.
    pub fn wrote(&mut self, written: WriteOutcome) -> Result<Stage, StoreError> {
        let WriteOutcome {
            outcome,
            temporary,
            end,
            body_start,
        } = written;
        match outcome {
            Ok(stage) => {
                self.written = end - body_start;
                if let Some(file) = temporary.as_ref().map(|temporary| &temporary.file) {
                    self.fill.note_written(file, body_start, self.written);
                }
                self.storing = match stage {
                    Stage::More => FillStage::Idle(temporary),
                    Stage::Committed => FillStage::Over,
                };
                if stage == Stage::Committed {
                    self.release();
                }
                Ok(stage)
            }
            Err(error) => {
                self.give_up();
                Err(error)
            }
        }
    }

    /// Ends the fetch without storing the response. If a marker is given, the id carries it until
    /// its time.
    pub fn refuse(mut self, marker: Option<(u16, Millis)>, now: Millis) {
        if let Some((marker, until)) = marker {
            self.store.mark(&self.id, marker, until, now);
        }
        // The claim is released before waiting requests are woken, because they may claim the entry
        // at once.
        self.release();
        self.fill.end(Progress::Refused);
    }

    /// Releases the claim, so that other requests can claim the entry.
    fn release(&mut self) {
        let Some(id) = self.claimed.take() else {
            return;
        };
        let mut shard = self.store.index.lock_shard(&id);
        // Another request may have taken over the claim.
        let is_own = |fill: &Arc<Fill>| Arc::ptr_eq(fill, &self.fill);
        if shard.fill(&id).is_some_and(is_own) {
            shard.end_fill(&id);
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.release();
        self.fill.end(Progress::Broken);
    }
}

/// A temporary file. If it is dropped before being renamed, it is queued for unlinking.
#[derive(Debug)]
struct Temporary {
    store: Arc<DiskStore>,
    name: TemporaryName,
    file: Arc<OwnedFd>,
    reserved: Option<Reserved>,
    is_renamed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_renamed {
            self.store
                .room
                .schedule_unlink(PendingUnlink::Temporary(self.name));
        }
    }
}

/// A write, to be run on a thread that may block.
#[derive(Debug)]
pub struct Write {
    store: Arc<DiskStore>,
    id: EntryId,
    temporary: Option<Temporary>,
    /// The placeholder of the head for the first write of an unfinished file.
    unfinished: Option<[Bytes; 2]>,
    parts: Vec<Bytes>,
    at: u64,
    body_start: u64,
    /// Length of the file after this write.
    end: u64,
    /// Final length of the file, if `is_announced`.
    announced: u64,
    is_announced: bool,
    last: Option<FinalWrite>,
}

/// The additional data of the last write.
#[derive(Debug)]
struct FinalWrite {
    head: [Bytes; 2],
    names: TagHashes,
    fetch: Arc<Fetch>,
    turn: Option<Arc<Turn>>,
    now: Millis,
}

/// The outcome of a write.
#[derive(Debug)]
pub struct WriteOutcome {
    outcome: Result<Stage, StoreError>,
    temporary: Option<Temporary>,
    end: u64,
    body_start: u64,
}

impl Write {
    /// The number of bytes of the body that this writes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// Runs the write. Blocks on the disk.
    #[must_use]
    pub fn run(mut self) -> WriteOutcome {
        let outcome = self.write();
        if outcome.is_err() {
            // Unlinks the temporary file immediately, because the disk may be full.
            self.temporary = None;
            self.store.unlink_pending();
        }
        WriteOutcome {
            outcome,
            temporary: self.temporary,
            end: self.end,
            body_start: self.body_start,
        }
    }

    fn write(&mut self) -> Result<Stage, StoreError> {
        let is_first = self.temporary.is_none();
        let mut reserved = match &mut self.temporary {
            Some(temporary) => temporary.reserved.take(),
            None => None,
        }
        .unwrap_or_else(|| Reserved::none(&self.store));
        reserved.grow_to(self.room_needed())?;
        if is_first {
            self.store.ensure_free_space(self.room_needed())?;
        }
        self.store.unlink_pending();

        // A small entry is entirely in memory, so its readers need no file.
        let is_small = self.end <= TAIL_MAX as u64;
        let may_be_new = is_first && is_small && !self.store.has(&self.id);
        if let Some(last) = self.last.take_if(|_| may_be_new) {
            match self.store.folder()?.create_unnamed(&self.id)? {
                Some(file) => return self.write_whole(&file, reserved, last),
                None => self.last = Some(last),
            }
        }
        let mut temporary = match self.temporary.take() {
            Some(temporary) => temporary,
            None => self.create()?,
        };
        let file = Arc::clone(&temporary.file);
        // On failure the temporary file is dropped, together with its reservation.
        if is_first {
            let head = match &self.last {
                Some(last) => Some(last.head.clone()),
                None => self.unfinished.take(),
            };
            let parts: Vec<Bytes> = head
                .into_iter()
                .flatten()
                .chain(self.parts.drain(..))
                .collect();
            folder::write_all(&*file, 0, &parts)?;
        } else {
            folder::write_all(&*file, self.at, &self.parts)?;
            if let Some(last) = &self.last {
                folder::write_all(&*file, 0, &last.head[..1])?;
            }
        }
        let Some(last) = self.last.take() else {
            temporary.reserved = Some(reserved);
            self.temporary = Some(temporary);
            return Ok(Stage::More);
        };
        let store = &self.store;
        store.commit(&self.id, reserved, last, self.end, |folder| {
            folder.rename(temporary.name)?;
            temporary.is_renamed = true;
            store.forget_temporary(temporary.name);
            Ok(())
        })?;
        self.temporary = Some(temporary);
        Ok(Stage::Committed)
    }

    /// Writes a complete entry to an unnamed file, and then links it.
    fn write_whole(
        &mut self,
        file: &OwnedFd,
        reserved: Reserved,
        last: FinalWrite,
    ) -> Result<Stage, StoreError> {
        let head = last.head.clone().into_iter();
        let parts: Vec<Bytes> = head.chain(self.parts.drain(..)).collect();
        folder::write_all(file, 0, &parts)?;
        let store = &self.store;
        store.commit(&self.id, reserved, last, self.end, |folder| {
            folder.link(file, &self.id, &store.temporaries)
        })?;
        Ok(Stage::Committed)
    }

    /// The file length for which room is reserved.
    fn room_needed(&self) -> u64 {
        if self.last.is_some() {
            self.end
        } else if self.is_announced {
            self.announced.max(self.end)
        } else {
            self.store.room_ahead(self.end)
        }
    }

    fn create(&self) -> Result<Temporary, DiskError> {
        let names = &self.store.temporaries;
        let (name, file) = self.store.folder()?.create_temporary(self.id, names)?;
        Ok(Temporary {
            store: Arc::clone(&self.store),
            name,
            file: Arc::new(file),
            reserved: None,
            is_renamed: false,
        })
    }
}

impl DiskStore {
    /// Publishes a finished file of this length as the entry. `name` links or renames the file.
    fn commit(
        &self,
        id: &EntryId,
        reserved: Reserved,
        last: FinalWrite,
        length: u64,
        name: impl FnOnce(&CacheFolder) -> Result<(), DiskError>,
    ) -> Result<(), StoreError> {
        let FinalWrite {
            names,
            fetch,
            turn,
            now,
            ..
        } = last;
        let folder = self.folder()?;
        let blocks = folder.blocks(length);
        let _file = self.lock_file(id);
        if fetch.is_purged(id, &names) {
            return Err(StoreError::Purged);
        }
        if turn.is_some_and(|turn| !turn.take()) {
            return Err(StoreError::Superseded);
        }
        name(folder)?;
        reserved.give(blocks);
        let stored = StoredEntry {
            blocks,
            names: Some(names.clone()),
            is_checked: true,
            is_remembered: false,
        };
        self.note_stored(id, stored, now);
        self.note_change();
        // A concurrent purge may have read the index before the entry was added.
        if fetch.is_purged(id, &names) {
            self.remove_file(id);
            return Err(StoreError::Purged);
        }
        Ok(())
    }
}

/// The fixed part of the head is written separately when the file is finished, and must be smaller
/// than a regular write.
const _: () = assert!(FIXED_LENGTH < WRITE_MIN);
