//! The request's body: its announced length, its counts, and the body itself once it has been read
//! whole into memory or a temporary file.
//!
//! Handlers that stream the body read from the exchange themselves; [`reading::read`] is for
//! handlers that need the whole body, as nginx's `proxy_request_buffering on` does.

pub mod reading;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::pieces::Pieces;
use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, ScopeRef, Setting, parse};
use engine::file::File;
use framework::compile::{Compiler, Feature};
use proto::h1::BodyLength;

use crate::config::temporary_paths::TemporaryPath;
use crate::files::temporary_file::Directory;

/// Declares the directive `client_body_temp_path`.
pub static CLIENT_BODY_TEMP_PATH: Setting<PathBuf> =
    Setting::new("client_body_temp_path", &["path [level1 [level2 [level3]]]"], parse::path_with_levels)
        .contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
        .arity(Arity::between(1, 4))
        .default("client_body_temp")
        .manual("Where request bodies go that are longer than client_body_buffer_size. The levels of subdirectories are accepted; files lie in the directory itself for the moment that they have a name.");

static CLIENT_BODY_IN_FILE_ONLY: Setting<InFileOnly> =
    Setting::new("client_body_in_file_only", &["on | clean | off"], |setter| {
        let values = [
            ("off", InFileOnly::Off),
            ("on", InFileOnly::Kept),
            ("clean", InFileOnly::Removed),
        ];
        parse::enumeration(setter, &values)
    })
    .contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
    .default("off")
    .manual("Writes every request body to a file, however short: for debugging, or for a handler that takes files. With clean the file is removed when the request ends; with on it stays.");

static CLIENT_BODY_IN_SINGLE_BUFFER: Setting<bool> = Setting::new(
    "client_body_in_single_buffer",
    &["on | off"],
    parse::flag,
)
.contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
.default("off")
.no_effect("a body in memory is joined where it is needed in one piece")
.manual(
    "Makes nginx keep a request's body in one buffer, so that `$request_body` need not be joined.",
);

/// Whether request bodies are always written to a file, and whether the file is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFileOnly {
    /// Short bodies stay in memory, and files have no name.
    Off,
    /// Files are kept after the request.
    Kept,
    /// Files are removed when their request ends.
    Removed,
}

/// The default directory of temporary files for request bodies.
pub const TEMPORARY_PATH: TemporaryPath = TemporaryPath {
    spec: &CLIENT_BODY_TEMP_PATH.spec,
    default: "client_body_temp",
    levels: &[],
};

/// The settings of temporary files for request bodies.
pub struct BodySettings {
    /// The value of `client_body_temp_path` in this scope.
    pub directory: Arc<Directory>,
    /// The value of `client_body_in_file_only` in this scope.
    pub in_file_only: InFileOnly,
}

impl Feature for BodySettings {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &CLIENT_BODY_TEMP_PATH,
        &CLIENT_BODY_IN_FILE_ONLY,
        &CLIENT_BODY_IN_SINGLE_BUFFER,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        Ok(BodySettings {
            directory: Arc::new(Directory {
                path: compiler.directory(&scope.get(&CLIENT_BODY_TEMP_PATH)?),
                levels: Vec::new(),
            }),
            in_file_only: scope.get(&CLIENT_BODY_IN_FILE_ONLY)?,
        })
    }
}

/// Where a body that was read whole is stored.
#[derive(Clone, Default)]
enum BufferedBody {
    #[default]
    Nowhere,
    Memory(Pieces),
    /// In a temporary file.
    File(Rc<TemporaryFile>),
}

/// A file that holds a body.
struct TemporaryFile {
    /// Whether a handler has taken the file, and may have renamed it.
    taken: Cell<bool>,
    file: File,
    /// The file's name. Without `client_body_in_file_only` the file has already been unlinked.
    path: PathBuf,
    in_file_only: InFileOnly,
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let removed = self.in_file_only == InFileOnly::Removed && !self.taken.get();
        let path = removed.then(|| std::mem::take(&mut self.path));
        // Freeing a file's blocks may wait for the disk. The blocks are freed when the file's name
        // is removed or, if the file was unlinked, when its last descriptor is closed.
        let file = self.file.clone();
        engine::background(move || {
            if let Some(path) = path {
                // The application may have removed or moved the file, which
                // `client_body_in_file_only` permits.
                let _ = std::fs::remove_file(path);
            }
            drop(file);
        });
    }
}

/// The counts of a body when one of its chunks was refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkError {
    /// Bytes that count for `$request_length`: all bytes received up to the last receive, which is
    /// included unless it contained the head.
    pub framed: u64,
    /// Bytes of the body itself that were received before the refused chunk.
    pub data: u64,
}

/// How much of a body has been received.
///
/// ```text
///   Coming ─────▶ BrokenOff ─────▶ Ended
///      └───────────────────────────▲
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BodyArrival {
    #[default]
    Coming,
    /// The client left, or the body was malformed, before a handler had read the whole body.
    BrokenOff,
    /// The last byte has been received, or the rest of the body is not awaited.
    Ended,
}

impl BodyArrival {
    /// Marks a body that has not ended as broken off.
    fn break_off(&mut self) {
        if *self == BodyArrival::Coming {
            *self = BodyArrival::BrokenOff;
        }
    }
}

/// Whether handlers may use the body, or find it empty.
///
/// `had_length`: whether the head announced a length. If such a body is not available, handlers
/// find an empty body; without an announced length they find no body.
///
/// ```text
///   Available ─────▶ GivenUp
///       └──────────▶ Lost
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BodyAvailability {
    #[default]
    Available,
    /// The body was refused, or no handler has read it.
    GivenUp { had_length: bool },
    /// A handler has consumed a part of the body (passed it on, or failed to store it), and then
    /// the request went on to another handler.
    Lost { had_length: bool },
}

impl BodyAvailability {
    /// Gives the body up; a lost body stays lost.
    fn give_up(&mut self, had_length: bool) {
        *self = match self {
            BodyAvailability::Available | BodyAvailability::GivenUp { .. } => {
                BodyAvailability::GivenUp { had_length }
            }
            BodyAvailability::Lost { .. } => BodyAvailability::Lost { had_length },
        };
    }

    /// Gives up a body without an announced length, unless it has been given up or lost before.
    fn give_up_without_length(&mut self) {
        if *self == BodyAvailability::Available {
            *self = BodyAvailability::GivenUp { had_length: false };
        }
    }

    fn had_length(self) -> bool {
        match self {
            BodyAvailability::Available => false,
            BodyAvailability::GivenUp { had_length } | BodyAvailability::Lost { had_length } => {
                had_length
            }
        }
    }
}

/// The settings that decide whether a body is written to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BodyDestination {
    /// The location's `client_body_buffer_size` and `client_body_in_file_only`.
    #[default]
    ByLocation,
    /// No setting: the body is read before the location is found (`client_body_early_read`).
    BeforeLocation,
    /// A handler that moves the file, which therefore needs a name.
    NamedFile,
}

/// The deadline for more bytes of a body.
#[derive(Clone, Copy, Debug, Default)]
enum ReadDeadline {
    /// The next wait has the whole timeout.
    #[default]
    Unset,
    /// The last wait had this deadline. The next wait has the whole timeout, as with `Unset`.
    Past(Instant),
    /// The last wait was interrupted, and the next wait keeps its deadline.
    Resumed(Instant),
}

impl ReadDeadline {
    /// Returns the deadline of a wait that begins now.
    fn begin_wait(&mut self, timeout: Duration) -> Instant {
        let until = match *self {
            ReadDeadline::Unset | ReadDeadline::Past(_) => engine::now() + timeout,
            ReadDeadline::Resumed(until) => until,
        };
        *self = ReadDeadline::Past(until);
        until
    }

    /// Makes the next wait keep the deadline of the last one.
    fn resume(&mut self) {
        if let ReadDeadline::Past(until) = *self {
            *self = ReadDeadline::Resumed(until);
        }
    }
}

/// The state of a request's body.
#[derive(Clone, Default)]
pub struct RequestBody {
    /// The length that the head announces. A body that has been given up has no length here, or a
    /// length of 0.
    length: BodyLength,
    /// Bytes of the body that were received together with the head.
    received_with_head: usize,
    /// Whether the head announced chunks, even if the body has been given up since.
    framed: bool,
    /// Bytes of the body that have been received, without framing.
    received: u64,
    /// Received bytes that only frame the body, such as the sizes of chunks.
    framing: u64,
    arrival: BodyArrival,
    /// The body, once it has been read whole.
    stored: BufferedBody,
    availability: BodyAvailability,
    /// Whether a handler has consumed a part of the body that is stored nowhere else.
    taken: bool,
    /// The received part of a body that broke off, if it was in memory.
    kept_for_log: Pieces,
    /// The name of the temporary file of a body that broke off, for `$request_body_file` in the
    /// log.
    kept_file_for_log: Option<PathBuf>,
    /// Bytes that were received before the chunk with which the body exceeded
    /// `client_max_body_size`.
    before_refused: Option<u64>,
    /// The counts when the body's chunks were refused.
    refused: Option<ChunkError>,
    /// Whether the received part of the body was dropped, since no handler reads it.
    skipped: bool,
    destination: BodyDestination,
    /// `client_body_in_file_only` of a location that the request has left. It also holds in later
    /// locations without the directive.
    left_in_file_only: Option<InFileOnly>,
    read_deadline: ReadDeadline,
}

impl RequestBody {
    /// Notes the announced length, and how many bytes of the body were received with the head.
    pub fn begin(&mut self, length: BodyLength, received_with_head: usize) {
        *self = RequestBody {
            length,
            received_with_head,
            framed: length == BodyLength::Chunked,
            ..RequestBody::default()
        };
        if length == BodyLength::None {
            self.note_end();
        }
    }

    /// The announced length or framing.
    pub fn framing(&self) -> BodyLength {
        self.length
    }

    /// Bytes of the body that were received together with the head.
    pub fn received_with_head(&self) -> usize {
        self.received_with_head
    }

    /// Notes how many bytes of the body are in the buffer of the head.
    fn note_beside_head(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.received_with_head = self.received_with_head.max(bytes);
    }

    /// Notes that the request leaves a location whose `client_body_in_file_only` is not off: as in
    /// nginx, the setting also holds in later locations that do not set the directive or set it to
    /// `off`.
    pub fn note_left(&mut self, in_file_only: InFileOnly) {
        self.left_in_file_only = Some(in_file_only);
    }

    /// The announced length in bytes; 0 if none was announced.
    pub fn announced(&self) -> u64 {
        self.announced_length().unwrap_or(0)
    }

    /// The announced length in bytes, if one was announced.
    fn announced_length(&self) -> Option<u64> {
        match self.length {
            BodyLength::Length(length) => Some(length),
            BodyLength::None | BodyLength::Chunked => None,
        }
    }

    /// Sets the announced length to 0, or to none.
    fn announce_empty(&mut self, has_length: bool) {
        self.length = if has_length {
            BodyLength::Length(0)
        } else {
            BodyLength::None
        };
    }

    /// The length in bytes that every location compares with `client_max_body_size`: the announced
    /// length or, for chunks, the number of bytes read.
    pub fn judged_length(&self) -> u64 {
        match self.length {
            BodyLength::Length(length) => length,
            BodyLength::Chunked if !self.skipped => self.received,
            BodyLength::Chunked | BodyLength::None => 0,
        }
    }

    /// Whether the head announces a body that is not empty: a length above zero, or chunks.
    pub fn expected(&self) -> bool {
        !matches!(self.length, BodyLength::None | BodyLength::Length(0))
    }

    /// Whether the head announced a body, possibly an empty one.
    pub fn is_announced(&self) -> bool {
        self.length != BodyLength::None
    }

    /// Whether the head announced no body, and no body was noted since then.
    fn is_none(&self) -> bool {
        self.has_ended() && !self.is_announced() && !self.framed && !self.skipped
    }

    /// Whether the body has been received to its end, or the rest will not be received.
    fn has_ended(&self) -> bool {
        self.arrival == BodyArrival::Ended
    }

    /// Whether the body is sent in chunks.
    pub fn chunked(&self) -> bool {
        self.length == BodyLength::Chunked
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The deadline of a wait for more bytes of the body that begins now.
    pub fn wait_until(&mut self, timeout: Duration) -> Instant {
        self.read_deadline.begin_wait(timeout)
    }

    /// Makes the next wait keep the deadline of the last one, which was interrupted for a reason
    /// that the client has not caused.
    pub fn resume_wait(&mut self) {
        self.read_deadline.resume();
    }

    /// Counts received bytes towards `$request_length`.
    pub fn note_received(&mut self, bytes: u64) {
        self.received += bytes;
    }

    /// Counts received bytes that only frame the body, such as the sizes of chunks.
    pub fn note_framing(&mut self, bytes: u64) {
        self.framing += bytes;
    }

    /// Notes that the body's chunks are refused.
    pub fn note_refused(&mut self, refused: ChunkError) {
        self.refused = Some(refused);
    }

    /// Bytes received so far, framing included.
    pub fn received_framed(&self) -> u64 {
        match self.refused {
            Some(refused) => refused.framed,
            None => self.received + self.framing,
        }
    }

    /// Notes that the body's last byte has been received.
    pub fn note_end(&mut self) {
        self.arrival = BodyArrival::Ended;
    }

    /// Sets the counts of a body that an upload has read.
    pub fn count_as(&mut self, counted: &RequestBody) {
        self.received = counted.received;
        self.framing = counted.framing;
        self.refused = counted.refused;
        if counted.has_ended() {
            self.note_end();
        }
        self.taken |= counted.taken;
    }

    /// The length of a body that has been read whole, in bytes; 0 for a body that was given up.
    pub fn length(&self) -> Option<u64> {
        match &self.stored {
            BufferedBody::Nowhere => None,
            _ if self.is_given_up() => Some(0),
            _ => Some(self.received),
        }
    }

    /// The counted length in bytes of a chunked body that has ended, broken off or begun to be
    /// dropped; `None` for other bodies. Dropped bytes do not count.
    pub fn counted(&self) -> Option<u64> {
        let known = self.is_read() || self.arrival != BodyArrival::Coming || self.skipped;
        (self.framed && known).then_some(self.before_refused.unwrap_or(self.received))
    }

    /// The counted length in bytes of an HTTP/2 body without an announced length. As in nginx, only
    /// a body that a handler has read to its end counts.
    pub fn counted_whole(&self) -> Option<u64> {
        let is_whole = self.is_read() && self.before_refused.is_none() && !self.skipped;
        (self.framed && is_whole).then_some(self.received)
    }

    /// Notes that the body is dropped because the head of its request is refused. The handler of
    /// the error page finds the body empty.
    pub fn note_refused_head(&mut self, in_chunks: bool) {
        self.announce_empty(true);
        self.framed = in_chunks;
        self.skipped = in_chunks;
        if in_chunks {
            self.availability.give_up_without_length();
        }
    }

    /// Notes that the received part of the body has been dropped, or will be before the next step
    /// of the request.
    pub fn note_skipped(&mut self) {
        self.skipped = true;
    }

    /// Gives up a body that was refused, so that its length is not checked again. A handler that
    /// serves the error page finds the body empty. As in nginx, a body that has been read is kept,
    /// and every location checks its length.
    pub fn give_up(&mut self) {
        if self.is_read() {
            return;
        }
        self.availability.give_up(self.announced_length().is_some());
        self.announce_empty(self.is_announced());
    }

    /// Whether a handler has consumed a part of the body, or the body was too long. A later fault
    /// of the body then does not change the response.
    fn has_answer(&self) -> bool {
        self.taken || self.before_refused.is_some()
    }

    /// Notes that a handler has consumed a part of the body.
    pub fn note_taken(&mut self) {
        self.taken = true;
    }

    /// Gives up the rest of a body that a handler has consumed in part and that was not stored
    /// whole, since the rest is not the body that the head announces. A refused body has been given
    /// up already.
    pub fn give_up_rest(&mut self) {
        if self.taken && !self.is_read() && !self.is_given_up() {
            self.availability = BodyAvailability::Lost { had_length: false };
            self.give_up();
        }
    }

    /// Whether the body is lost because a handler has consumed a part of it.
    pub fn is_lost(&self) -> bool {
        matches!(self.availability, BodyAvailability::Lost { .. })
    }

    /// Gives up a body whose chunks were refused while they were being dropped. Since its length
    /// was never known, a handler that serves the error page announces no length.
    pub fn give_up_dropped(&mut self) {
        self.availability.give_up_without_length();
        self.skipped = false;
        self.announce_empty(false);
    }

    /// Discards the unread part of the body, so that later handlers find it empty. A chunked body,
    /// or a body that is still being dropped, is also given up. If no chunk was dropped, no length
    /// is announced.
    pub fn end_unread(&mut self) {
        if !self.is_read() {
            if self.chunked() || (self.expected() && !self.has_ended()) {
                self.availability.give_up_without_length();
            }
            self.announce_empty(match self.length {
                BodyLength::None => false,
                BodyLength::Length(_) => true,
                BodyLength::Chunked => self.skipped,
            });
        }
    }

    /// Whether the body has been given up or lost.
    pub fn is_given_up(&self) -> bool {
        self.availability != BodyAvailability::Available
    }

    /// Whether the body holds memory or a file that must be released when its request has ended.
    pub fn is_kept(&self) -> bool {
        self.is_read() || !self.kept_for_log.is_empty() || self.kept_file_for_log.is_some()
    }

    /// Whether the body has been read whole.
    pub fn is_read(&self) -> bool {
        !matches!(self.stored, BufferedBody::Nowhere)
    }

    /// Whether a handler has read a part of the body.
    pub fn is_begun(&self) -> bool {
        self.taken || self.is_read()
    }

    /// The body for a subrequest: the body itself if it has been read whole, an empty body if a
    /// length was announced or chunks were dropped, or no body.
    pub fn shared(&self) -> RequestBody {
        if self.is_read() {
            self.clone()
        } else {
            self.withheld()
        }
    }

    /// The body for a subrequest that is sent without the body: an empty body if a length was
    /// announced, or if chunks were dropped or read; else no body.
    pub fn withheld(&self) -> RequestBody {
        let has_length = self.skipped
            || match self.length {
                BodyLength::None => false,
                BodyLength::Length(_) => true,
                BodyLength::Chunked => self.is_read(),
            };
        let mut empty = RequestBody::default();
        empty.announce_empty(has_length);
        empty
    }

    /// The body in memory (`$request_body`); `None` if it was not read or is in a file.
    pub fn in_memory(&self) -> Option<&[Bytes]> {
        match &self.stored {
            BufferedBody::Memory(parts) => Some(parts),
            _ => None,
        }
    }

    /// The value of `$request_body`: the body in memory, or the received part of a body that broke
    /// off.
    pub fn shown(&self) -> Option<&[Bytes]> {
        if self.kept_for_log.iter().all(Bytes::is_empty) {
            self.in_memory()
        } else {
            Some(&self.kept_for_log)
        }
    }

    /// The temporary file, if the body is in one.
    pub fn file(&self) -> Option<&File> {
        match &self.stored {
            BufferedBody::File(temporary) => Some(&temporary.file),
            _ => None,
        }
    }

    /// Takes the name of the temporary file that [`read_into_file`](reading::read_into_file) made.
    /// The caller becomes responsible for the file.
    pub fn take_file(&self) -> Option<PathBuf> {
        match &self.stored {
            BufferedBody::File(temporary) if temporary.in_file_only != InFileOnly::Off => {
                temporary.taken.set(true);
                Some(temporary.path.clone())
            }
            _ => None,
        }
    }

    /// Undoes [`RequestBody::take_file`]: the file is removed with the body.
    pub fn return_file(&self) {
        if let BufferedBody::File(temporary) = &self.stored {
            temporary.taken.set(false);
        }
    }

    /// The path of the temporary file, even after the file was unlinked (`$request_body_file`).
    pub fn file_name(&self) -> Option<&Path> {
        match &self.stored {
            BufferedBody::File(temporary) => Some(&temporary.path),
            _ => self.kept_file_for_log.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_keep_their_name_only_where_it_is_asked_for() {
        let directory = std::env::temp_dir().join(format!("tidegate-body-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let directory = Directory {
            path: directory,
            levels: Vec::new(),
        };
        let make = |in_file_only| {
            let keeps_name = in_file_only != InFileOnly::Off;
            let (path, file) = directory.create(0o600, keeps_name).unwrap();
            TemporaryFile {
                taken: Cell::new(false),
                file: File::from(file),
                path,
                in_file_only,
            }
        };
        assert!(!make(InFileOnly::Off).path.exists());
        let removed = make(InFileOnly::Removed);
        let path = removed.path.clone();
        assert!(path.exists());
        drop(removed);
        assert!(!path.exists());
        let kept = make(InFileOnly::Kept);
        let path = kept.path.clone();
        drop(kept);
        assert!(path.exists());
        std::fs::remove_dir_all(&directory.path).unwrap();
    }
}
