//! An entry that is being filled, as those see it who wait for it or read it while it comes.
//!
//! ```text
//! Asked ──▶ Filling ──▶ Complete        the head comes · the body ends
//!   │          └──────▶ Broken          the fetch fails, or whoever fetches is dropped
//!   └─────────────────▶ Refused         the answer is not to be stored
//! ```
//!
//! What has come of the body is in memory, in the temporary file, or in both: a reader that keeps
//! up takes shares of memory, one that is behind reads the file. Once the file cannot be written
//! any more there is only memory, which the slowest reader holds.
//!
//! Readers may be on any threads. Each has a place for its waker; wakers are called outside of the
//! lock.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use base::pieces::join;
use bytes::Bytes;

use super::clock::Millis;
use super::head::Head;

/// Bytes of the body that stay in memory though they are in the file, for readers that keep up.
pub const TAIL_MAX: usize = 256 * 1024;

/// How far a fill has come; see the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// The head has not come yet.
    #[default]
    Asked,
    /// The head has come, and the body is coming.
    Filling,
    /// All of the body has come. That does not say that it is stored.
    Complete,
    /// The body is broken off.
    Broken,
    /// The answer is not to be stored: everyone fetches it anew.
    Refused,
}

impl Progress {
    fn is_over(self) -> bool {
        !matches!(self, Progress::Asked | Progress::Filling)
    }
}

/// What a reader gets.
#[derive(Clone, Debug)]
pub enum FillChunk {
    /// Bytes of the body.
    Bytes(Bytes),
    /// Bytes of the body, in a file.
    File {
        /// The file that the chunk lies in.
        file: Arc<OwnedFd>,
        /// Where they begin in the file.
        offset: u64,
        /// How many there are.
        length: u64,
    },
    /// Nothing more has been written yet.
    Nothing,
    /// The body has been read to its end.
    End,
    /// The body is broken off, or this part of it is not to be had any more.
    Broken,
}

/// A fill; see the module.
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
    /// Pieces of the body with the offset in it at which each begins.
    memory: VecDeque<(u64, Bytes)>,
    /// Bytes of the body that have come.
    length: u64,
    /// Whether the file takes no more: then only readers free memory.
    is_unkept: bool,
    /// What is known of each reader; nothing where it has left.
    places: Vec<Option<ReaderState>>,
    /// Who fills waits for readers.
    waits_for_room: Option<Waker>,
    /// Whether the head had come, and how much of the body, when it was looked for whether more
    /// comes; and since when that was so.
    seen: (bool, u64),
    seen_at: Millis,
}

/// What is in the file of the body.
#[derive(Debug)]
struct FilePart {
    file: Arc<OwnedFd>,
    body_start: u64,
    written: u64,
}

/// What the fill knows of a reader.
#[derive(Debug, Default)]
struct ReaderState {
    position: u64,
    waker: Option<Waker>,
}

impl Fill {
    /// One that begins now.
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

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.lock().progress
    }

    /// Whether nothing more comes.
    pub(super) fn is_over(&self) -> bool {
        self.lock().progress.is_over()
    }

    /// When it was claimed.
    #[must_use]
    pub fn since(&self) -> Millis {
        self.since
    }

    /// Whether nothing has come for so long, as far as has been looked.
    pub(super) fn is_overdue(&self, age: Millis, now: Millis) -> bool {
        let mut shared = self.lock();
        let came = (shared.head.is_some(), shared.length);
        if shared.progress.is_over() || shared.seen != came {
            shared.seen = came;
            shared.seen_at = now;
        }
        now >= shared.seen_at.saturating_add(age)
    }

    /// The head, once it has come.
    #[must_use]
    pub fn head(&self) -> Option<Head> {
        self.lock().head.clone()
    }

    /// How much of the body has come.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.lock().length
    }

    /// How many readers there are.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.lock().readers().count()
    }

    /// How much of the body the fastest reader has taken.
    #[must_use]
    pub fn furthest(&self) -> u64 {
        let shared = self.lock();
        shared
            .readers()
            .map(|place| place.position)
            .max()
            .unwrap_or(0)
    }

    /// One more reader, from the beginning of the body; nothing where that is lost.
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

    /// The head has come.
    pub(super) fn begin(&self, head: Head) {
        self.change(|shared| {
            shared.head = Some(head);
            shared.progress = Progress::Filling;
        });
    }

    /// More of the body has come.
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

    /// This much of the body is in the file.
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

    /// No more goes to the file.
    pub(super) fn note_unkept(&self) {
        let mut shared = self.lock();
        shared.is_unkept = true;
        shared.trim();
    }

    pub(super) fn end(&self, progress: Progress) {
        self.change(|shared| {
            if !shared.progress.is_over() {
                shared.progress = progress;
            }
        });
    }

    /// Whether what is in memory alone, for readers, is less than `max`.
    pub(super) fn poll_room(&self, max: usize, context: &mut Context<'_>) -> Poll<()> {
        let mut shared = self.lock();
        if shared.held() < max {
            return Poll::Ready(());
        }
        shared.waits_for_room = Some(context.waker().clone());
        Poll::Pending
    }

    /// Bytes that only memory has.
    pub(super) fn held(&self) -> usize {
        self.lock().held()
    }

    /// Changes something that readers wait for.
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

    /// From where on the body is in memory.
    fn memory_start(&self) -> u64 {
        self.memory.front().map_or(self.length, |piece| piece.0)
    }

    fn held(&self) -> usize {
        let start = self.memory_start().max(self.written());
        usize::try_from(self.length - start).unwrap_or(usize::MAX)
    }

    /// Frees the memory that is not needed any more.
    fn trim(&mut self) {
        let needed_from = if self.is_unkept {
            let positions = self.readers().map(|place| place.position);
            positions.min().unwrap_or(self.length)
        } else {
            self.written()
        };
        // What is in the file, too, stays up to a bound.
        let mut kept = self.length - self.memory_start();
        while let Some((start, bytes)) = self.memory.front() {
            let is_needed = start + bytes.len() as u64 > needed_from;
            let is_affordable = !self.is_unkept && kept <= TAIL_MAX as u64;
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

    /// The wakers of all who wait, the first one apart: one alone takes no memory.
    fn take_wakers(&mut self) -> (Option<Waker>, Vec<Waker>) {
        let places = self.places.iter_mut().flatten();
        let mut wakers = places.filter_map(|place| place.waker.take());
        (wakers.next(), wakers.collect())
    }

    /// How much of the body a reader has taken.
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

/// Who reads an entry that is being filled: one of several, at its own pace.
#[derive(Debug)]
pub struct Reader {
    fill: Arc<Fill>,
    number: usize,
}

impl Reader {
    /// The fill that the reader reads along.
    #[must_use]
    pub fn fill(&self) -> &Arc<Fill> {
        &self.fill
    }

    /// Waits for the head; nothing where there will be none.
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

    /// Goes on reading elsewhere in the body.
    pub fn seek(&mut self, position: u64) {
        self.move_to(self.fill.lock(), position);
    }

    /// How much of the body has been taken.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.fill.lock().position(self.number)
    }

    /// Takes what stands ready, at most `max` bytes of it.
    pub fn next(&mut self, max: usize) -> FillChunk {
        let shared = self.fill.lock();
        let position = shared.position(self.number);
        let part = shared.part(position, max);
        self.move_to(shared, position + length(&part));
        part
    }

    /// Waits until [`Reader::next`] gives something.
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
    /// Frees what a reader has held, and gives the waker of who waits for that.
    fn freed(&mut self) -> Option<Waker> {
        if !self.is_unkept {
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

/// How many bytes of the body a part is.
fn length(part: &FillChunk) -> u64 {
    match part {
        FillChunk::Bytes(bytes) => bytes.len() as u64,
        FillChunk::File { length, .. } => *length,
        FillChunk::Nothing | FillChunk::End | FillChunk::Broken => 0,
    }
}
