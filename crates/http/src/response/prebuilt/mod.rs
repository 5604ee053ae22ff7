//! Complete responses kept in memory for small files, and for files that are not there: the
//! shortest way through the server.
//!
//! A response is kept per plan and path when nothing in its head depends on the request. It
//! never outlives a change of the file: without `open_file_cache` one `statx` of the full path
//! confirms each use; with it, `open_file_cache_valid` does. [`answering`] says who gets them,
//! [`offer`] which are kept. Each thread has its own; what makes room there may still lie in the
//! memory that all threads share.

pub mod answering;
pub mod constant;
pub mod offer;
pub mod recording;
mod shared;
pub mod told;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use base::hash::Map;
use bytes::Bytes;
use engine::file::Metadata;
use proto::h2::frame::{HEAD_LENGTH, SIZE_MAX_AT_FIRST};

use crate::response::memory;
use crate::response::recall::laid::RecalledAnswer;

/// Files up to this size are kept whole, in bytes.
pub const FILE_SIZE_MAX: u64 = 64 * 1024;

/// How much room a head gets that has not been written yet, in bytes.
const HEAD_ROOM: usize = 512;

/// From so many bytes on the allocator is told that they have been let go.
const LET_GO_MIN: usize = 1 << 20;

/// How often a file must have been asked for before its response is kept: a crawl through a
/// large site does not push out what is hot.
const USES_BEFORE_KEPT: u32 = 2;

/// Paths whose uses are counted before they are kept.
const USES_COUNTED_MAX: usize = 4096;

/// What a response is kept by: the plan and the path of its request.
pub(crate) type Key = (u32, Vec<u8>);

/// The complete response for one path.
struct Entry {
    path: PathBuf,
    /// What is known of the path.
    origin: Origin,
    /// When it was last confirmed by this thread, as [`engine::uptime`] counts.
    confirmed: Option<Duration>,
    /// When its path was last looked at, here or on the long way.
    looked_at: Option<Duration>,
    /// The response in each form.
    responses: Forms,
    /// The response in each encoding, with the encoding's number.
    encoded: Vec<(u8, Forms)>,
    /// The response with 304, for a client that has the file already.
    unmodified: Forms,
    body: Bytes,
    content_type: Bytes,
}

/// How a prebuilt response leaves: each of these is kept by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrebuiltEncoding {
    /// As it was made.
    Identity,
    /// As the module encodes it that has given it this number, where it knows the whole of that
    /// ([`Encoder::known`](crate::response::chain::Encoder::known)).
    Encoded(u8),
}

/// How a response from memory is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseForm {
    /// For HTTP/1, on a connection that ends.
    Ending,
    /// For HTTP/1, on a connection that is kept alive.
    KeptAlive,
    /// For HTTP/2: a header block, and the body without frames.
    Http2,
}

impl ResponseForm {
    /// The form of a response over HTTP/1.
    pub fn of_http1(keep_alive: bool) -> ResponseForm {
        if keep_alive {
            ResponseForm::KeptAlive
        } else {
            ResponseForm::Ending
        }
    }

    /// Bytes of framing beside a head and a body of this length. Of HTTP/1 neither has any.
    fn framing(self, length: usize, frame_size: usize) -> u64 {
        match self {
            ResponseForm::Ending | ResponseForm::KeptAlive => 0,
            ResponseForm::Http2 => {
                let frames = 1 + length.div_ceil(frame_size.clamp(1, SIZE_MAX_AT_FIRST as usize));
                (frames * HEAD_LENGTH) as u64
            }
        }
    }
}

/// A response in each form, as it was written last.
pub type Forms = [Option<DatedResponse>; 3];

/// What a kept response says of its path.
enum Origin {
    /// There is a file.
    File {
        /// What it was when its bytes were read.
        metadata: Metadata,
        etag: Option<Bytes>,
    },
    /// There is none: the response is the short page for 404.
    Missing,
}

/// A response with the second that its Date field names.
#[derive(Clone)]
#[cfg_attr(test, derive(Default))]
pub struct DatedResponse {
    /// The second, by the wall clock.
    pub second: u64,
    /// Bytes of the head.
    pub head_length: usize,
    /// The bytes of head and body together.
    pub bytes: Bytes,
}

/// What a request was answered with, on a connection that is kept alive. While it holds, the same
/// head is answered alike without another look at anything.
#[cfg_attr(test, derive(Default))]
pub struct LastResponse {
    response: DatedResponse,
    /// Several copies of the response in a row, once the client has pipelined.
    copies: Bytes,
    status: u16,
    /// The file need not be looked at before this moment.
    until: Duration,
}

/// What must be equal for a file to count as the same.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Identity {
        Identity {
            device: metadata.device,
            inode: metadata.inode,
            size: metadata.size,
            mtime: (metadata.mtime, metadata.mtime_nanos),
            ctime: (metadata.ctime, metadata.ctime_nanos),
        }
    }
}

/// One thread's kept responses of one generation.
///
/// What makes room is found by a hand that goes round over all of them, in the order in which they
/// were kept: what has been used since it last came by stays (CLOCK, or "second chance").
pub struct PrebuiltCache {
    entries: Map<Key, Placed<Entry>>,
    /// Uses of paths that are not kept yet, by the hash of their keys.
    uses: Map<u64, u32>,
    /// Answers of scopes that always give the same, by plan.
    constants: Map<u32, Constant>,
    /// Answers that contents have in memory, by plan and what their contents know them by.
    recalled: Map<Key, Placed<RecalledAnswer>>,
    /// Entries and answers in the order in which the hand comes by; some have gone meanwhile.
    order: VecDeque<EvictionTurn>,
    next_stamp: u64,
    size: usize,
    /// Bytes that all of them may take, as it was when one was last kept or written.
    bound: usize,
    part: memory::Part,
    /// Whether something has had to make room, so that the shared memory may have it.
    has_let_go: bool,
    scratch: Vec<u8>,
}

/// What is kept, and whether it has been used since the hand came by.
pub(crate) struct Placed<T> {
    value: T,
    is_used: bool,
    /// The stamp of this value's turn in the queue.
    stamp: u64,
}

/// A place in the order.
pub(crate) struct EvictionTurn {
    kind: Kind,
    key: Key,
    stamp: u64,
}

#[derive(Clone, Copy)]
enum Kind {
    Entry,
    Recalled,
}

impl Default for PrebuiltCache {
    fn default() -> PrebuiltCache {
        let part = memory::Part::Unused;
        PrebuiltCache {
            entries: Map::default(),
            uses: Map::default(),
            constants: Map::default(),
            recalled: Map::default(),
            order: VecDeque::new(),
            next_stamp: 0,
            size: 0,
            bound: part.bound(),
            part,
            has_let_go: false,
            scratch: Vec::new(),
        }
    }
}

impl PrebuiltCache {
    /// Forgets all responses that are kept, and keeps none from now on: another generation serves.
    pub fn retire(&mut self) {
        if self.size > LET_GO_MIN {
            engine::note_let_go();
        }
        self.clear();
        self.part = memory::Part::Retired;
        self.bound = 0;
    }

    fn clear(&mut self) {
        self.entries = Map::default();
        self.uses = Map::default();
        self.constants = Map::default();
        self.recalled = Map::default();
        self.order = VecDeque::new();
        self.size = 0;
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.size = self.size.saturating_sub(entry.value.cost(key));
        }
    }

    fn insert(&mut self, key: Key, entry: Entry) {
        self.remove(&key);
        if self.make_room(entry.cost(&key)) {
            let placed = self.place(Kind::Entry, &key, entry);
            self.entries.insert(key, placed);
        }
    }

    /// Gives what is to be kept the last place in the order.
    fn place<T>(&mut self, kind: Kind, key: &Key, value: T) -> Placed<T> {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        if self.order.len() > 2 * (self.entries.len() + self.recalled.len()) + 16 {
            let (entries, recalled) = (&self.entries, &self.recalled);
            self.order.retain(|turn| {
                let kept = match turn.kind {
                    Kind::Entry => entries.get(&turn.key).map(|placed| placed.stamp),
                    Kind::Recalled => recalled.get(&turn.key).map(|placed| placed.stamp),
                };
                kept == Some(turn.stamp)
            });
        }
        let key = key.clone();
        self.order.push_back(EvictionTurn { kind, key, stamp });
        Placed {
            value,
            is_used: false,
            stamp,
        }
    }

    /// Counts so many more bytes; false where they are too many for one response.
    fn make_room(&mut self, cost: usize) -> bool {
        self.part.join();
        self.bound = self.part.bound();
        if cost > self.bound {
            return false;
        }
        self.shrink_to(self.bound - cost);
        self.size += cost;
        true
    }

    /// Has what is kept come down to the bound, after some of it has been written anew.
    fn keep_within_bound(&mut self) {
        self.bound = self.part.bound();
        self.shrink_to(self.bound);
    }

    fn shrink_to(&mut self, bound: usize) {
        while self.size > bound {
            let Some(turn) = self.order.pop_front() else {
                // Constant answers are as many as there are scopes.
                self.clear();
                return;
            };
            let gone = match turn.kind {
                Kind::Entry => {
                    take_turn(&mut self.entries, &turn).map(|entry| entry.cost(&turn.key))
                }
                Kind::Recalled => {
                    take_turn(&mut self.recalled, &turn).map(|answer| answer.cost(&turn.key))
                }
            };
            match gone {
                TurnOutcome::Gone(cost) => {
                    self.size = self.size.saturating_sub(cost);
                    self.has_let_go = true;
                }
                TurnOutcome::Used => self.order.push_back(turn),
                TurnOutcome::NotThere => {}
            }
        }
    }

    /// Takes memory for a key, to be given back as it is left.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch
    }

    /// Gives it back.
    pub(crate) fn give_back(&mut self, scratch: Vec<u8>) {
        self.scratch = scratch;
    }

    /// The answer of a content that is kept by this key, which is used.
    pub(crate) fn recalled(&mut self, key: &Key) -> Option<&mut RecalledAnswer> {
        let placed = self.recalled.get_mut(key)?;
        placed.is_used = true;
        Some(&mut placed.value)
    }

    /// Forgets it, and counts it no more.
    pub(crate) fn take_recalled(&mut self, key: &Key) -> Option<RecalledAnswer> {
        let answer = self.recalled.remove(key)?.value;
        self.size = self.size.saturating_sub(answer.cost(key));
        Some(answer)
    }

    /// Keeps one.
    pub(crate) fn insert_recalled(&mut self, key: Key, answer: RecalledAnswer) {
        self.take_recalled(&key);
        if self.make_room(answer.cost(&key)) {
            let placed = self.place(Kind::Recalled, &key, answer);
            self.recalled.insert(key, placed);
        }
    }

    /// Counts a use of what is not kept yet; true from the one on that makes it worth keeping.
    pub(crate) fn is_used_often(&mut self, key: &Key) -> bool {
        let hash = base::hash::of(&key.1) ^ u64::from(key.0);
        if let Some(uses) = self.uses.get_mut(&hash) {
            *uses += 1;
            let often = *uses >= USES_BEFORE_KEPT;
            if often {
                self.uses.remove(&hash);
            }
            return often;
        }
        if self.uses.len() >= USES_COUNTED_MAX {
            self.uses.clear();
        }
        self.uses.insert(hash, 1);
        false
    }

    /// The response of a plan that always gives the same response.
    pub fn constant(&self, plan: u32) -> Option<&Constant> {
        self.constants.get(&plan)
    }

    /// Removes such a response in order to change it.
    pub fn take_constant(&mut self, plan: u32) -> Option<Constant> {
        let constant = self.constants.remove(&plan)?;
        self.size = self.size.saturating_sub(constant.cost());
        Some(constant)
    }

    /// Keeps a response that never changes.
    pub fn insert_constant(&mut self, plan: u32, constant: Constant) {
        if self.make_room(constant.cost()) {
            self.constants.insert(plan, constant);
        }
    }
}

/// The outcome of an object's turn in the eviction queue.
enum TurnOutcome<T> {
    /// The object has been removed.
    Gone(T),
    /// The object has been used since its last turn, and stays.
    Used,
    /// The object had been removed already.
    NotThere,
}

impl<T> TurnOutcome<T> {
    fn map<U>(self, of: impl FnOnce(T) -> U) -> TurnOutcome<U> {
        match self {
            TurnOutcome::Gone(value) => TurnOutcome::Gone(of(value)),
            TurnOutcome::Used => TurnOutcome::Used,
            TurnOutcome::NotThere => TurnOutcome::NotThere,
        }
    }
}

/// Takes out what a turn is for, unless it has been used.
fn take_turn<T>(kept: &mut Map<Key, Placed<T>>, turn: &EvictionTurn) -> TurnOutcome<T> {
    match kept.get_mut(&turn.key) {
        Some(placed) if placed.stamp == turn.stamp => {
            if std::mem::take(&mut placed.is_used) {
                return TurnOutcome::Used;
            }
        }
        _ => return TurnOutcome::NotThere,
    }
    let placed = kept.remove(&turn.key);
    placed.map_or(TurnOutcome::NotThere, |placed| {
        TurnOutcome::Gone(placed.value)
    })
}

/// The answer of one scope.
pub struct Constant {
    status: u16,
    content_type: Bytes,
    /// Whether another URI's name may give it another type.
    typed: bool,
    responses: Forms,
}

impl Constant {
    /// Bytes that it takes.
    pub fn cost(&self) -> usize {
        let sent = self.responses.iter().flatten();
        sent.map(|dated| dated.bytes.len()).sum::<usize>() + size_of::<Constant>()
    }
}

impl DatedResponse {
    /// Bytes that it takes, or a few more: the room for its head may have grown to twice its size.
    fn cost(&self) -> usize {
        HEAD_ROOM + self.head_length + self.bytes.len()
    }
}

impl Entry {
    /// Bytes that it takes with its key and what has been written of it, or a few more.
    fn cost(&self, key: &Key) -> usize {
        let etag = match &self.origin {
            Origin::File { etag, .. } => etag.as_ref().map_or(0, Bytes::len),
            Origin::Missing => 0,
        };
        // Its key stands in the order as well.
        let names = 2 * key.1.len() + self.path.as_os_str().len();
        let encoded = self.encoded.iter().flat_map(|(_, forms)| forms);
        let responses = self.responses.iter().chain(&self.unmodified).chain(encoded);
        let responses: usize = responses.flatten().map(DatedResponse::cost).sum();
        // A table that has just grown is half empty.
        let place = 2 * (size_of::<(Key, Placed<Entry>)>() + size_of::<EvictionTurn>());
        let place = place + self.encoded.capacity() * size_of::<(u8, Forms)>();
        place + names + etag + self.content_type.len() + self.body.len() + responses
    }

    /// The response as it was written last.
    fn response(
        &self,
        status: u16,
        encoding: PrebuiltEncoding,
        form: ResponseForm,
    ) -> Option<&DatedResponse> {
        let forms = match (status, encoding) {
            (304, _) => &self.unmodified,
            (_, PrebuiltEncoding::Identity) => &self.responses,
            (_, PrebuiltEncoding::Encoded(number)) => {
                let mut encoded = self.encoded.iter();
                &encoded.find(|(other, _)| *other == number)?.1
            }
        };
        forms[form as usize].as_ref()
    }

    /// Where that stands.
    fn response_mut(
        &mut self,
        status: u16,
        encoding: PrebuiltEncoding,
        form: ResponseForm,
    ) -> Option<&mut Option<DatedResponse>> {
        let forms = match (status, encoding) {
            (304, _) => &mut self.unmodified,
            (_, PrebuiltEncoding::Identity) => &mut self.responses,
            (_, PrebuiltEncoding::Encoded(number)) => {
                let is_it = |(other, _): &(u8, Forms)| *other == number;
                let at = match self.encoded.iter().position(is_it) {
                    Some(at) => at,
                    None => {
                        self.encoded.push((number, Forms::default()));
                        self.encoded.len() - 1
                    }
                };
                &mut self.encoded.get_mut(at)?.1
            }
        };
        forms.get_mut(form as usize)
    }
}
