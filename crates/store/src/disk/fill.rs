//! The state of an entry that is being filled, shared with requests that wait for it or read it in
//! the meantime.
//!
//! ```text
//! Asked ──▶ Filling ──▶ Complete        head received · end of body
//!   │          └──────▶ Broken          the fetch failed, or its `Filler` was dropped
//!   └─────────────────▶ Refused         the response must not be stored
//! ```
//!
//! The received part of the body is in memory, in the temporary file, or in both. A fast reader
//! gets references to memory; a slow reader reads the file. After the file can no longer be
//! written, the body is in memory only, and the slowest reader determines how much is kept.
//!
//! Readers may be on any threads. Each has a slot for its waker; wakers are called after the lock
//! has been released.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use base::pieces::join;
use bytes::Bytes;

use super::clock::Millis;
use super::head::Head;

/// How much of the body stays in memory after it has been written to the file, in bytes, for
/// readers that keep up.
pub const TAIL_MAX: usize = 256 * 1024;

/// The state of a fill; see the diagram above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// The head has not been received yet.
    #[default]
    Asked,
    /// The head has been received; the body is being received.
    Filling,
    /// The whole body has been received. The entry need not be stored yet.
    Complete,
    /// The fetch ended before the end of the body.
    Broken,
    /// The response is not to be stored: every waiting request fetches for itself.
    Refused,
}

impl Progress {
    fn is_over(self) -> bool {
        !matches!(self, Progress::Asked | Progress::Filling)
    }
}

/// The result of [`Reader::next`].
#[derive(Clone, Debug)]
pub enum FillChunk {
    /// Bytes of the body.
    Bytes(Bytes),
    /// A range of the body in a file.
    File {
        /// The file.
        file: Arc<OwnedFd>,
        /// The offset of the range in the file.
        offset: u64,
        /// The length of the range, in bytes.
        length: u64,
    },
    /// Nothing more has been received yet.
    Nothing,
    /// The end of the body.
    End,
    /// The body was truncated, or this part of it is no longer available.
    Broken,
}

/// A fill, shared by the filler and its readers; see the diagram above.
#[derive(Debug)]
pub struct Fill {
    since: Millis,
    shared: Mutex<FillState>,
}

#[derive(Debug, Default)]
struct FillState {
    progress: Progress,
    head: Option<Head>,
    file: Option<FilePart>,
    /// Pieces of the body, each with its offset in the body.
    memory: VecDeque<(u64, Bytes)>,
    /// Bytes of the body received so far.
    length: u64,
    /// Whether nothing more is written to the file. Memory is then freed only after all readers
    /// have read it.
    is_write_abandoned: bool,
    /// The readers' slots; `None` is a free slot.
    places: Vec<Option<ReaderState>>,
    /// The waker of the filler while it waits for readers to free memory.
    waits_for_room: Option<Waker>,
    /// Whether the head had been received, and how much of the body, at the last check for
    /// progress.
    seen: (bool, u64),
    seen_at: Millis,
}

/// The part of the body that is in the file.
#[derive(Debug)]
struct FilePart {
    file: Arc<OwnedFd>,
    body_start: u64,
    written: u64,
}

/// The state of one reader.
#[derive(Debug, Default)]
struct ReaderState {
    position: u64,
    waker: Option<Waker>,
}

impl Fill {
    /// Creates a fill that begins at `now`.
    pub(super) fn new(now: Millis) -> Fill {
        Fill {
            since: now,
            shared: Mutex::new(FillState {
                seen_at: now,
                ..FillState::default()
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, FillState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of the fill.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.lock().progress
    }

    /// Whether the fill has ended, in whatever way.
    pub(super) fn is_over(&self) -> bool {
        self.lock().progress.is_over()
    }

    /// When the entry was claimed.
    #[must_use]
    pub fn since(&self) -> Millis {
        self.since
    }

    /// Whether no progress has been observed for `age`. Progress is noticed only by these calls.
    pub(super) fn is_overdue(&self, age: Millis, now: Millis) -> bool {
        let mut shared = self.lock();
        let came = (shared.head.is_some(), shared.length);
        if shared.progress.is_over() || shared.seen != came {
            shared.seen = came;
            shared.seen_at = now;
        }
        now >= shared.seen_at.saturating_add(age)
    }

    /// The head, if it has been received.
    #[must_use]
    pub fn head(&self) -> Option<Head> {
        self.lock().head.clone()
    }

    /// Bytes of the body received so far.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.lock().length
    }

    /// The number of readers.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.lock().readers().count()
    }

    /// The position of the fastest reader in the body.
    #[must_use]
    pub fn furthest(&self) -> u64 {
        let shared = self.lock();
        shared
            .readers()
            .map(|place| place.position)
            .max()
            .unwrap_or(0)
    }

    /// Adds a reader at the start of the body; `None` if the start is no longer available.
    #[must_use]
    pub fn reader(self: &Arc<Fill>) -> Option<Reader> {
        let mut shared = self.lock();
        if shared.memory_start() > shared.written() {
            return None;
        }
        let free = shared.places.iter().position(Option::is_none);
        let number = free.unwrap_or(shared.places.len());
        match shared.places.get_mut(number) {
            Some(free) => *free = Some(ReaderState::default()),
            None => shared.places.push(Some(ReaderState::default())),
        }
        drop(shared);
        let fill = Arc::clone(self);
        Some(Reader { fill, number })
    }

    /// Publishes the head.
    pub(super) fn begin(&self, head: Head) {
        self.change(|shared| {
            shared.head = Some(head);
            shared.progress = Progress::Filling;
        });
    }

    /// Appends a part of the body.
    pub(super) fn push(&self, bytes: Bytes) {
        self.change(|shared| {
            let start = shared.length;
            shared.length += bytes.len() as u64;
            let last = shared.memory.back_mut();
            let joins = last.is_some_and(|last| join(&mut last.1, &bytes).is_some());
            if !joins {
                shared.memory.push_back((start, bytes));
            }
            shared.trim();
        });
    }

    /// Records that the body's first `written` bytes are in the file.
    pub(super) fn note_written(&self, file: &Arc<OwnedFd>, body_start: u64, written: u64) {
        let mut shared = self.lock();
        let file = Arc::clone(file);
        shared.file = Some(FilePart {
            file,
            body_start,
            written,
        });
        shared.trim();
    }

    /// Records that nothing more is written to the file.
    pub(super) fn note_unkept(&self) {
        let mut shared = self.lock();
        shared.is_write_abandoned = true;
        shared.trim();
    }

    pub(super) fn end(&self, progress: Progress) {
        self.change(|shared| {
            if !shared.progress.is_over() {
                shared.progress = progress;
            }
        });
    }

    /// Waits until less than `max` bytes are only in memory.
    pub(super) fn poll_room(&self, max: usize, context: &mut Context<'_>) -> Poll<()> {
        let mut shared = self.lock();
        if shared.held() < max {
            return Poll::Ready(());
        }
        shared.waits_for_room = Some(context.waker().clone());
        Poll::Pending
    }

    /// Bytes of the body that are only in memory.
    pub(super) fn held(&self) -> usize {
        self.lock().held()
    }

    /// Applies a change and wakes all waiting readers.
    fn change(&self, change: impl FnOnce(&mut FillState)) {
        let mut shared = self.lock();
        change(&mut shared);
        let (first, others) = shared.take_wakers();
        drop(shared);
        first.into_iter().chain(others).for_each(Waker::wake);
    }
}

impl FillState {
    /// Bytes of the body that are in the file.
    fn written(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.written)
    }

    /// The offset in the body from which on it is in memory.
    fn memory_start(&self) -> u64 {
        self.memory.front().map_or(self.length, |piece| piece.0)
    }

    fn held(&self) -> usize {
        let start = self.memory_start().max(self.written());
        usize::try_from(self.length - start).unwrap_or(usize::MAX)
    }

    /// Frees memory that is no longer needed.
    fn trim(&mut self) {
        let needed_from = if self.is_write_abandoned {
            let positions = self.readers().map(|place| place.position);
            positions.min().unwrap_or(self.length)
        } else {
            self.written()
        };
        // Data that is also in the file stays in memory, up to [`TAIL_MAX`].
        let mut kept = self.length - self.memory_start();
        while let Some((start, bytes)) = self.memory.front() {
            let is_needed = start + bytes.len() as u64 > needed_from;
            let is_affordable = !self.is_write_abandoned && kept <= TAIL_MAX as u64;
            if is_needed || is_affordable {
                break;
            }
            kept -= bytes.len() as u64;
            self.memory.pop_front();
        }
    }

    fn readers(&self) -> impl Iterator<Item = &ReaderState> {
        self.places.iter().flatten()
    }

    /// Takes the wakers of all waiting readers. The first is returned separately, so that a single
    /// waker needs no allocation.
    fn take_wakers(&mut self) -> (Option<Waker>, Vec<Waker>) {
        let places = self.places.iter_mut().flatten();
        let mut wakers = places.filter_map(|place| place.waker.take());
        (wakers.next(), wakers.collect())
    }

    /// A reader's position in the body.
    fn position(&self, number: usize) -> u64 {
        let place = self.places.get(number).and_then(Option::as_ref);
        place.map_or(0, |place| place.position)
    }

    fn place_mut(&mut self, number: usize) -> Option<&mut ReaderState> {
        self.places.get_mut(number)?.as_mut()
    }

    fn part(&self, at: u64, max: usize) -> FillChunk {
        if at >= self.length {
            return match self.progress {
                Progress::Asked | Progress::Filling => FillChunk::Nothing,
                Progress::Complete => FillChunk::End,
                Progress::Broken | Progress::Refused => FillChunk::Broken,
            };
        }
        if at >= self.memory_start() {
            let behind = self.memory.partition_point(|(start, _)| *start <= at);
            let piece = behind.checked_sub(1).and_then(|last| self.memory.get(last));
            let Some((start, bytes)) = piece else {
                return FillChunk::Broken;
            };
            let skipped = usize::try_from(at - start)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            let end = skipped.saturating_add(max).min(bytes.len());
            return FillChunk::Bytes(bytes.slice(skipped..end));
        }
        match &self.file {
            Some(part) if at < part.written => FillChunk::File {
                file: Arc::clone(&part.file),
                offset: part.body_start + at,
                length: (part.written - at).min(max as u64),
            },
            _ => FillChunk::Broken,
        }
    }
}

/// A reader of an entry that is being filled. Readers are independent of each other.
#[derive(Debug)]
pub struct Reader {
    fill: Arc<Fill>,
    number: usize,
}

impl Reader {
    /// The fill that is read.
    #[must_use]
    pub fn fill(&self) -> &Arc<Fill> {
        &self.fill
    }

    /// Waits for the head; `None` if the fill ended without a head.
    pub fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Option<Head>> {
        let mut shared = self.fill.lock();
        if let Some(head) = &shared.head {
            return Poll::Ready(Some(head.clone()));
        }
        if shared.progress.is_over() {
            return Poll::Ready(None);
        }
        self.wait(&mut shared, context);
        Poll::Pending
    }

    /// Continues reading at another position in the body.
    pub fn seek(&mut self, position: u64) {
        self.move_to(self.fill.lock(), position);
    }

    /// The reader's position in the body.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.fill.lock().position(self.number)
    }

    /// Takes the next available part of the body, at most `max` bytes.
    pub fn next(&mut self, max: usize) -> FillChunk {
        let shared = self.fill.lock();
        let position = shared.position(self.number);
        let part = shared.part(position, max);
        self.move_to(shared, position + length(&part));
        part
    }

    /// Waits until [`Reader::next`] returns something other than [`FillChunk::Nothing`].
    pub fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut shared = self.fill.lock();
        let position = shared.position(self.number);
        if position < shared.length || shared.progress.is_over() {
            return Poll::Ready(());
        }
        self.wait(&mut shared, context);
        Poll::Pending
    }

    fn wait(&self, shared: &mut FillState, context: &mut Context<'_>) {
        if let Some(place) = shared.place_mut(self.number) {
            match &mut place.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
        }
    }

    fn move_to(&self, mut shared: MutexGuard<'_, FillState>, position: u64) {
        if let Some(place) = shared.place_mut(self.number) {
            place.position = position;
        }
        let waker = shared.freed();
        drop(shared);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl FillState {
    /// Frees memory that readers no longer need. If any was freed, returns the waker of the filler
    /// that waits for it.
    fn freed(&mut self) -> Option<Waker> {
        if !self.is_write_abandoned {
            return None;
        }
        let held = self.held();
        self.trim();
        (self.held() < held)
            .then(|| self.waits_for_room.take())
            .flatten()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut shared = self.fill.lock();
        let place = shared.places.get_mut(self.number).and_then(Option::take);
        let waker = shared.freed();
        drop(shared);
        drop(place);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The number of bytes of the body in a chunk.
fn length(part: &FillChunk) -> u64 {
    match part {
        FillChunk::Bytes(bytes) => bytes.len() as u64,
        FillChunk::File { length, .. } => *length,
        FillChunk::Nothing | FillChunk::End | FillChunk::Broken => 0,
    }
}
