//! Prebuilt responses: complete responses kept in memory for small files and for missing files,
//! which are sent without running the phases (the normal path).
//!
//! A response is kept per plan and path if nothing in its head depends on the request. It is not
//! sent after a change of the file has become visible. Without `open_file_cache`, a `stat` of the
//! full path confirms each use; requests that had arrived before an iteration of the event loop
//! share one `stat`. With it, a response is used for `open_file_cache_valid` without a check.
//! [`answering`] decides which requests get prebuilt responses, and [`offer`] which responses are
//! kept. Each thread has a cache of its own; an evicted response may remain in the memory that all
//! threads share.

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
use proto::h2::frame::{FRAME_SIZE_MAX_DEFAULT, HEAD_LENGTH};

use crate::response::memory;
use crate::response::recall::laid::RecalledAnswer;

/// Maximum size in bytes of files that are kept.
pub const FILE_SIZE_MAX: u64 = 64 * 1024;

/// Initial capacity of a head, in bytes.
const HEAD_ROOM: usize = 512;

/// The number of freed bytes from which on the allocator is told to return memory to the system.
const LET_GO_MIN: usize = 1 << 20;

/// The number of requests for a file before its response is kept, so that a crawl through a large
/// site does not evict hot files.
const USES_BEFORE_KEPT: u32 = 2;

/// Maximum number of paths that are not kept and whose requests are counted.
const USES_COUNTED_MAX: usize = 4096;

/// The key of a kept response: the plan and the path of its request.
pub(crate) type Key = (u32, Vec<u8>);

/// The complete response for one path, in all forms.
struct Entry {
    path: PathBuf,
    /// What the path leads to: a file, or nothing.
    origin: Origin,
    /// The time at which this thread last confirmed the response, by [`engine::uptime`].
    confirmed: Option<Duration>,
    /// The time at which the path was last checked, here or in the phases, by [`engine::uptime`].
    looked_at: Option<Duration>,
    /// The iteration of the event loop in which the path was last checked here, identified by its
    /// [`engine::uptime`].
    checked_in: Option<Duration>,
    /// The response without encoding, in each wire form.
    responses: Forms,
    /// The response in each encoding, with the number of the encoding's module.
    encoded: Vec<(u8, Forms)>,
    /// The response with status 304, for a client that already has the file.
    unmodified: Forms,
    body: Bytes,
    content_type: Bytes,
}

/// The content coding of a prebuilt response. Responses are kept separately for each coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrebuiltEncoding {
    /// Not encoded.
    Identity,
    /// Encoded by the module with this number, if the module knows the complete encoded body
    /// ([`Encoder::known`](crate::response::chain::Encoder::known)).
    Encoded(u8),
}

/// The wire form of a prebuilt response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseForm {
    /// HTTP/1, on a connection that is closed afterwards.
    Ending,
    /// HTTP/1, on a connection that is kept alive.
    KeptAlive,
    /// HTTP/2: a header block, and the body without frame heads.
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

    /// The number of bytes that the framing adds to a head and a body of this length; 0 for HTTP/1.
    fn framing(self, length: usize, frame_size: usize) -> u64 {
        match self {
            ResponseForm::Ending | ResponseForm::KeptAlive => 0,
            ResponseForm::Http2 => {
                let frames =
                    1 + length.div_ceil(frame_size.clamp(1, FRAME_SIZE_MAX_DEFAULT as usize));
                (frames * HEAD_LENGTH) as u64
            }
        }
    }
}

/// A response in each wire form, as it was last serialized.
pub type Forms = [Option<DatedResponse>; 3];

/// What the path of a kept response leads to: a file, or nothing.
enum Origin {
    /// A file.
    File {
        /// The file's metadata when it was read.
        metadata: Metadata,
        etag: Option<Bytes>,
    },
    /// Nothing: the response is the built-in 404 page.
    Missing,
}

/// A serialized response, and the second that its `Date` field names.
#[derive(Clone)]
#[cfg_attr(test, derive(Default))]
pub struct DatedResponse {
    /// The second that `Date` names, in seconds since 1970 by the wall clock.
    pub second: u64,
    /// The length of the head in bytes.
    pub head_length: usize,
    /// The bytes of head and body together.
    pub bytes: Bytes,
}

/// The last response on a keep-alive connection. While it is valid, a request with an equal head
/// gets the response without any further check.
#[cfg_attr(test, derive(Default))]
pub struct LastResponse {
    response: DatedResponse,
    /// Several joined copies of the response, if the client has pipelined.
    copies: Bytes,
    status: u16,
    /// The time until which the file need not be checked.
    until: Duration,
}

/// The identity of a file's content: different after each change of the file.
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

/// The responses that one thread keeps for one generation.
///
/// Eviction is by CLOCK ("second chance"): a hand visits all responses in the order in which they
/// were kept, and evicts those that have not been used since its last visit.
pub struct PrebuiltCache {
    entries: Map<Key, CachedValue<Entry>>,
    /// The number of requests for paths that are not kept yet, by the hash of their keys.
    uses: Map<u64, u32>,
    /// Constant responses of scopes, by plan.
    constants: Map<u32, Constant>,
    /// Responses of content handlers, by plan and the handler's key.
    recalled: Map<Key, CachedValue<RecalledAnswer>>,
    /// The order in which the hand visits the entries. Some entries of the order have already been
    /// removed from the maps.
    order: VecDeque<EvictionTurn>,
    next_stamp: u64,
    /// The number of bytes that the kept responses occupy.
    size: usize,
    /// The limit of this thread's part in bytes, as of the last time that a response was kept or
    /// serialized.
    bound: usize,
    /// This thread's part of `response_memory`.
    part: memory::Part,
    /// Whether a response has been evicted, so that it may be in the shared memory.
    has_evicted: bool,
    /// A buffer for the path of a key.
    scratch: Vec<u8>,
}

/// A kept value, and whether it has been used since the hand's last visit.
pub(crate) struct CachedValue<T> {
    value: T,
    /// Whether the value has been used since the hand's last visit.
    is_used: bool,
    /// The stamp of the value's turn in `order`.
    stamp: u64,
}

/// A turn in the eviction order: the object that the hand visits.
pub(crate) struct EvictionTurn {
    kind: Kind,
    key: Key,
    /// The stamp of the value that the turn is for. A value that was kept later under the same key
    /// has another stamp.
    stamp: u64,
}

#[derive(Clone, Copy)]
enum Kind {
    Entry,
    RecalledResponse,
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
            has_evicted: false,
            scratch: Vec::new(),
        }
    }
}

impl PrebuiltCache {
    /// Drops all responses and keeps none from now on, since the generation has been replaced.
    pub fn retire(&mut self) {
        if self.size > LET_GO_MIN {
            engine::note_freed();
        }
        self.clear();
        self.part = memory::Part::Retired;
        self.bound = 0;
    }

    /// Drops all responses and counts.
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

    /// Appends a value to the eviction order.
    fn place<T>(&mut self, kind: Kind, key: &Key, value: T) -> CachedValue<T> {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        if self.order.len() > 2 * (self.entries.len() + self.recalled.len()) + 16 {
            let (entries, recalled) = (&self.entries, &self.recalled);
            self.order.retain(|turn| {
                let kept = match turn.kind {
                    Kind::Entry => entries.get(&turn.key).map(|placed| placed.stamp),
                    Kind::RecalledResponse => recalled.get(&turn.key).map(|placed| placed.stamp),
                };
                kept == Some(turn.stamp)
            });
        }
        let key = key.clone();
        self.order.push_back(EvictionTurn { kind, key, stamp });
        CachedValue {
            value,
            is_used: false,
            stamp,
        }
    }

    /// Evicts until `cost` more bytes fit. False if they are too many for a single response.
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

    /// Evicts until the cache is within its limit, after a response has been serialized again.
    fn keep_within_bound(&mut self) {
        self.bound = self.part.bound();
        self.shrink_to(self.bound);
    }

    /// Evicts until the responses occupy at most `bound` bytes.
    fn shrink_to(&mut self, bound: usize) {
        while self.size > bound {
            let Some(turn) = self.order.pop_front() else {
                // The order is empty, so only constant responses are left, of which there is at
                // most one per scope.
                self.clear();
                return;
            };
            let gone = match turn.kind {
                Kind::Entry => {
                    take_turn(&mut self.entries, &turn).map(|entry| entry.cost(&turn.key))
                }
                Kind::RecalledResponse => {
                    take_turn(&mut self.recalled, &turn).map(|answer| answer.cost(&turn.key))
                }
            };
            match gone {
                TurnOutcome::Gone(cost) => {
                    self.size = self.size.saturating_sub(cost);
                    self.has_evicted = true;
                }
                TurnOutcome::Used => self.order.push_back(turn),
                TurnOutcome::AlreadyRemoved => {}
            }
        }
    }

    /// Takes the buffer for keys. [`give_back`](Self::give_back) returns it after use.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch
    }

    /// Returns the buffer for keys.
    pub(crate) fn give_back(&mut self, scratch: Vec<u8>) {
        self.scratch = scratch;
    }

    /// The response of a content handler with this key; counts as a use.
    pub(crate) fn recalled(&mut self, key: &Key) -> Option<&mut RecalledAnswer> {
        let placed = self.recalled.get_mut(key)?;
        placed.is_used = true;
        Some(&mut placed.value)
    }

    /// Removes the response of a content handler.
    pub(crate) fn take_recalled(&mut self, key: &Key) -> Option<RecalledAnswer> {
        let answer = self.recalled.remove(key)?.value;
        self.size = self.size.saturating_sub(answer.cost(key));
        Some(answer)
    }

    /// Keeps the response of a content handler.
    pub(crate) fn insert_recalled(&mut self, key: Key, answer: RecalledAnswer) {
        self.take_recalled(&key);
        if self.make_room(answer.cost(&key)) {
            let placed = self.place(Kind::RecalledResponse, &key, answer);
            self.recalled.insert(key, placed);
        }
    }

    /// Counts a request for a response that is not kept. True once the response should be kept.
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

    /// The constant response of a plan.
    pub fn constant(&self, plan: u32) -> Option<&Constant> {
        self.constants.get(&plan)
    }

    /// Removes the constant response of a plan, to change it.
    pub fn take_constant(&mut self, plan: u32) -> Option<Constant> {
        let constant = self.constants.remove(&plan)?;
        self.size = self.size.saturating_sub(constant.cost());
        Some(constant)
    }

    /// Keeps the constant response of a plan.
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
    AlreadyRemoved,
}

impl<T> TurnOutcome<T> {
    fn map<U>(self, of: impl FnOnce(T) -> U) -> TurnOutcome<U> {
        match self {
            TurnOutcome::Gone(value) => TurnOutcome::Gone(of(value)),
            TurnOutcome::Used => TurnOutcome::Used,
            TurnOutcome::AlreadyRemoved => TurnOutcome::AlreadyRemoved,
        }
    }
}

/// Evicts the value of a turn, unless the value has been used since its last turn.
fn take_turn<T>(kept: &mut Map<Key, CachedValue<T>>, turn: &EvictionTurn) -> TurnOutcome<T> {
    match kept.get_mut(&turn.key) {
        Some(placed) if placed.stamp == turn.stamp => {
            if std::mem::take(&mut placed.is_used) {
                return TurnOutcome::Used;
            }
        }
        _ => return TurnOutcome::AlreadyRemoved,
    }
    let placed = kept.remove(&turn.key);
    placed.map_or(TurnOutcome::AlreadyRemoved, |placed| {
        TurnOutcome::Gone(placed.value)
    })
}

/// The constant response of a scope.
pub struct Constant {
    status: u16,
    content_type: Bytes,
    /// Whether the content type depends on the URI.
    typed: bool,
    responses: Forms,
}

impl Constant {
    /// The number of bytes that the constant response occupies.
    pub fn cost(&self) -> usize {
        let sent = self.responses.iter().flatten();
        sent.map(|dated| dated.bytes.len()).sum::<usize>() + size_of::<Constant>()
    }
}

impl DatedResponse {
    /// An upper bound of the response's size in bytes: the capacity of the head may be twice its
    /// length.
    fn cost(&self) -> usize {
        HEAD_ROOM + self.head_length + self.bytes.len()
    }
}

impl Entry {
    /// An upper bound of the entry's size in bytes, including its key and its serialized forms.
    fn cost(&self, key: &Key) -> usize {
        let etag = match &self.origin {
            Origin::File { etag, .. } => etag.as_ref().map_or(0, Bytes::len),
            Origin::Missing => 0,
        };
        // The eviction order has a copy of the key.
        let names = 2 * key.1.len() + self.path.as_os_str().len();
        let encoded = self.encoded.iter().flat_map(|(_, forms)| forms);
        let responses = self.responses.iter().chain(&self.unmodified).chain(encoded);
        let responses: usize = responses.flatten().map(DatedResponse::cost).sum();
        // A table that has just grown is half empty.
        let place = 2 * (size_of::<(Key, CachedValue<Entry>)>() + size_of::<EvictionTurn>());
        let place = place + self.encoded.capacity() * size_of::<(u8, Forms)>();
        place + names + etag + self.content_type.len() + self.body.len() + responses
    }

    /// The response as it was last serialized.
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

    /// The field that holds the response with this status, encoding and form.
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
