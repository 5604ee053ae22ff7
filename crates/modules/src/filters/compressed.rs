//! Stores compressed bodies that are the same for all clients (of files and of cache entries in
//! memory): the body is stored as it was compressed for the first client, and
//! `compress_static_level` compresses it again in the background with a higher level.
//!
//! The key consists of the body's identity, the coding, and the level: a changed file has another
//! identity. The bodies are in the memory for responses ([`memory`]), which all threads share and
//! which is limited. Heads are made for each request.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use base::hash::Set;
use bytes::Bytes;
use conf::{Arity, Contexts, Fault, Setter, Setting, parse};
use http::exchange::abort::Abort;
use http::request::Request;
use http::response::chain::Encoder;
use http::response::piece::Piece;
use http::response::{BodyIdentity, memory};
use store::Large;

use super::compress::{Coding, Compression, Compressor, Totals, note_totals};

/// The longest body that is stored, before and after compression, in bytes.
const BODY_MAX: usize = memory::VALUE_MAX;

/// Maximum total length in bytes of the bodies that wait for the higher level. Further bodies stay
/// as they were compressed for the first client.
const WAITING_MAX: usize = 16 << 20;

/// `compress_static_level`
pub static COMPRESS_STATIC_LEVEL: Setting<Strong> = Setting::new(
    "compress_static_level",
    &["off", "[gzip=level] [br=level] [zstd=level]"],
    strong,
)
.contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
.arity(Arity::between(1, 3))
.default("off")
.manual(
    "How strongly bodies are compressed that are the same for all clients: files, and entries of \
     caches that lie in memory. The first client gets one as `gzip_comp_level` and its like say; \
     meanwhile it is compressed again beside service, at this level, for all who follow. Codings \
     that are not named keep their level.",
);

/// The levels of `compress_static_level`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strong {
    gzip: Option<i32>,
    brotli: Option<i32>,
    zstd: Option<i32>,
}

impl Strong {
    /// The level of a coding, if it is set.
    pub(super) fn level(self, coding: Coding) -> Option<i32> {
        match coding {
            Coding::Gzip => self.gzip,
            Coding::Brotli => self.brotli,
            Coding::Zstd => self.zstd,
        }
    }
}

fn strong(setter: &Setter<'_>) -> Result<Strong, Fault> {
    let mut strong = Strong::default();
    if let [word] = setter.args()
        && &*word.bytes == b"off"
    {
        return Ok(strong);
    }
    for word in setter.args() {
        let text = word.text();
        let Some((name, level)) = text.split_once('=') else {
            return Err(Fault::invalid_parameter(word));
        };
        let (place, least, most) = match name {
            "gzip" => (&mut strong.gzip, 1, 9),
            "br" => (&mut strong.brotli, 0, 11),
            "zstd" => (&mut strong.zstd, 1, 22),
            _ => return Err(Fault::invalid_parameter(word)),
        };
        let level = parse::number_of(level.as_bytes()).and_then(|level| i32::try_from(level).ok());
        let level = level.filter(|level| (least..=most).contains(level));
        *place = Some(level.ok_or_else(|| {
            let text = format!("\"{text}\": the level must be between {least} and {most}");
            Fault::at(word, text)
        })?);
    }
    Ok(strong)
}

/// The key of a compressed body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; KEY]);

/// Length of a key in bytes: the kind, the identity, the coding, its level and window, and the
/// level of `compress_static_level`.
const KEY: usize = 1 + BodyIdentity::LENGTH + 4;

impl Key {
    pub(super) fn of(
        identity: &BodyIdentity,
        coding: Coding,
        (level, window): (i32, i32),
        strong: Option<i32>,
    ) -> Key {
        let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
        let how = [
            coding as u8,
            small(level),
            small(window),
            strong.map_or(u8::MAX, small),
        ];
        let mut key = [0; KEY];
        let all = std::iter::once(&memory::BODY)
            .chain(identity.bytes())
            .chain(&how);
        key.iter_mut()
            .zip(all)
            .for_each(|(byte, part)| *byte = *part);
        Key(key)
    }
}

/// Bodies that are being compressed for the first time.
static BEGUN: LazyLock<Mutex<Set<Key>>> = LazyLock::new(Mutex::default);

/// Bodies that wait for compression with the higher level. One thread at a time compresses them.
static STRONGER: Mutex<Stronger> = Mutex::new(Stronger {
    jobs: VecDeque::new(),
    waiting: 0,
    is_running: false,
});

/// The bodies that wait for compression with the higher level.
struct Stronger {
    jobs: VecDeque<Job>,
    /// The total length of the waiting bodies, in bytes.
    waiting: usize,
    /// Whether a thread compresses the waiting bodies.
    is_running: bool,
}

/// A body to be compressed with the higher level.
struct Job {
    key: Key,
    /// The uncompressed body.
    plain: Vec<u8>,
    compression: Arc<Compression>,
    coding: Coding,
    level: i32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stored compressed body, and its uncompressed length.
pub(super) fn kept(key: &Key) -> Option<(Bytes, u32)> {
    memory::get(&key.0, |item| {
        let lent = item.value.lent();
        let bytes = lent.unwrap_or_else(|| Bytes::copy_from_slice(item.value.bytes()));
        (bytes, item.flags)
    })
}

/// Stores a compressed body with its uncompressed length.
fn keep(key: &Key, compressed: &[u8], length: u32) {
    let mut value = Large::new(&key.0, compressed.len());
    value.extend(compressed);
    memory::put(value, length);
}

/// Records a body while it is compressed for the first time.
pub(super) struct Recording {
    key: Key,
    /// The compressed body so far.
    compressed: Vec<u8>,
    /// Number of bytes of the uncompressed body so far.
    length: usize,
    /// For a body that is to be compressed again: the uncompressed bytes so far, the compression,
    /// the coding and the higher level.
    again: Option<(Vec<u8>, Arc<Compression>, Coding, i32)>,
}

/// A body that is the same for all clients and has not been stored yet.
pub(super) struct Constant {
    pub(super) key: Key,
    /// The length of the body, if known.
    pub(super) length: Option<u64>,
    pub(super) compression: Arc<Compression>,
    /// The level of `compress_static_level`.
    pub(super) strong: Option<i32>,
}

impl Recording {
    /// Starts to record. `None` if another request records the body, or if the body is too long or
    /// its length is not known.
    pub(super) fn begin(constant: Constant, coding: Coding) -> Option<Recording> {
        let Constant {
            key,
            length,
            compression,
            strong,
        } = constant;
        let length = length.filter(|length| *length <= BODY_MAX as u64 && memory::is_on())?;
        let length = usize::try_from(length).ok()?;
        lock(&BEGUN).insert(key).then(|| Recording {
            key,
            compressed: Vec::new(),
            length: 0,
            again: strong.map(|level| (Vec::with_capacity(length), compression, coding, level)),
        })
    }

    pub(super) fn input(&mut self, bytes: &[u8]) {
        self.length += bytes.len();
        if let Some((plain, ..)) = &mut self.again {
            plain.extend_from_slice(bytes);
        }
    }

    pub(super) fn output(&mut self, bytes: &[u8]) {
        self.compressed.extend_from_slice(bytes);
    }

    /// Stores the body, whose compression has ended.
    pub(super) fn end(mut self) {
        let Ok(length) = u32::try_from(self.length) else {
            return;
        };
        if self.compressed.len() <= BODY_MAX && self.length <= BODY_MAX {
            keep(&self.key, &self.compressed, length);
            if let Some((plain, compression, coding, level)) = self.again.take() {
                compress_in_background(Job {
                    key: self.key,
                    plain,
                    compression,
                    coding,
                    level,
                });
            }
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        lock(&BEGUN).remove(&self.key);
    }
}

/// Queues a body for compression with the higher level, on a background thread.
fn compress_in_background(job: Job) {
    let mut stronger = lock(&STRONGER);
    if stronger.waiting + job.plain.len() > WAITING_MAX {
        return;
    }
    stronger.waiting += job.plain.len();
    stronger.jobs.push_back(job);
    if !mem::replace(&mut stronger.is_running, true) {
        drop(stronger);
        engine::spawn(async {
            engine::blocking_long(compress_all).await;
        });
    }
}

/// Compresses the waiting bodies in turn, until none is left.
fn compress_all() {
    loop {
        let mut stronger = lock(&STRONGER);
        let Some(job) = stronger.jobs.pop_front() else {
            stronger.is_running = false;
            return;
        };
        stronger.waiting -= job.plain.len();
        drop(stronger);
        job.run();
    }
}

impl Job {
    /// Compresses the body with the higher level, and stores the result if it is shorter than the
    /// stored one.
    fn run(self) {
        let length = self.plain.len();
        let compressor =
            self.compression
                .compressor_at(self.coding, self.level, Some(length as u64));
        let compressed = compressor.and_then(|compressor| compressor.whole(&self.plain).ok());
        // The first compressed body may be the shorter.
        let before = kept(&self.key).map(|(bytes, _)| bytes.len());
        if let (Some(compressed), Ok(length)) = (compressed, u32::try_from(length))
            && before.is_none_or(|before| compressed.len() < before)
        {
            keep(&self.key, &compressed, length);
        }
    }
}

/// Sends a stored compressed body.
pub(super) struct KeptBody {
    /// The compressed body.
    bytes: Bytes,
    totals: Totals,
    /// Whether the stored body was handed out as a whole.
    is_given: bool,
    compression: Arc<Compression>,
    /// Compresses the body, if a filter changes it after all.
    otherwise: Option<Compressor>,
}

impl KeptBody {
    pub(super) fn of(
        (bytes, length): (Bytes, u32),
        coding: Coding,
        compression: &Arc<Compression>,
    ) -> KeptBody {
        let totals = Totals {
            coding,
            bytes_in: u64::from(length),
            bytes_out: bytes.len() as u64,
        };
        KeptBody {
            bytes,
            totals,
            is_given: false,
            compression: Arc::clone(compression),
            otherwise: None,
        }
    }
}

impl Encoder for KeptBody {
    fn known(&mut self) -> Option<Bytes> {
        self.is_given = true;
        Some(self.bytes.clone())
    }

    fn apply(&mut self, piece: Piece, out: &mut Vec<Piece>) -> Result<(), Abort> {
        const NO_MEMORY: Abort = Abort::Internal("there is no memory for a compressor");
        if self.otherwise.is_none() {
            self.otherwise = self.compression.compressor(self.totals.coding, None);
        }
        let otherwise = self.otherwise.as_mut().ok_or(NO_MEMORY)?;
        otherwise.apply(piece, out)
    }

    fn bytes_in(&self) -> u64 {
        self.otherwise.as_ref().map_or(0, Compressor::bytes_in)
    }

    fn end(&mut self, request: &mut Request) {
        match &mut self.otherwise {
            Some(otherwise) => otherwise.end(request),
            None if self.is_given => note_totals(request, self.totals),
            None => {}
        }
    }
}
