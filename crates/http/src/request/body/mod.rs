//! The request's body: announced, read whole into memory or a temporary file, or left alone.
//!
//! Handlers that stream it read from the exchange themselves; [`reading::read`] is for those that
//! need it whole, as nginx's `proxy_request_buffering on` does.

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

/// Whether request bodies always lie in a file, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFileOnly {
    /// Short bodies stay in memory; a file has no name.
    Off,
    /// Files stay where they are.
    Kept,
    /// Files are removed when their request ends.
    Removed,
}

/// Where they go that no line gives a directory.
pub const TEMPORARY_PATH: TemporaryPath = TemporaryPath {
    spec: &CLIENT_BODY_TEMP_PATH.spec,
    default: "client_body_temp",
    levels: &[],
};

/// Where request bodies go.
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

/// A body that was read whole.
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
    /// A handler has taken the file, and may have moved it away.
    taken: Cell<bool>,
    file: File,
    /// The name that it has or, without `client_body_in_file_only`, had.
    path: PathBuf,
    in_file_only: InFileOnly,
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let removed = self.in_file_only == InFileOnly::Removed && !self.taken.get();
        let path = removed.then(|| std::mem::take(&mut self.path));
        // Giving a file's blocks back may take the disk, too: it ends with its name or, without
        // one, its last descriptor.
        let file = self.file.clone();
        engine::background(move || {
            if let Some(path) = path {
                // The application may have removed or moved it: that is what it is there for.
                let _ = std::fs::remove_file(path);
            }
            drop(file);
        });
    }
}

/// What logs tell of chunks that are refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChunkError {
    /// Bytes that count for `$request_length`: all that came last counts, unless that came with the
    /// head.
    pub framed: u64,
    /// Bytes of the body itself that came before those.
    pub data: u64,
}

/// How much of a body has come.
///
/// ```text
///   Coming ─────▶ BrokenOff ─────▶ Ended
///      └───────────────────────────▲
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BodyArrival {
    #[default]
    Coming,
    /// The client left, or broke the rules, before a handler had read the whole.
    BrokenOff,
    /// The last byte has come, or what is left of the body is not waited for.
    Ended,
}

impl BodyArrival {
    /// Notes that a body that has not ended breaks off.
    fn break_off(&mut self) {
        if *self == BodyArrival::Coming {
            *self = BodyArrival::BrokenOff;
        }
    }
}

/// Whether handlers may count on a body, or find it empty.
///
/// `had_length` says that the head announced a length. Where nothing is to come of such a body, it
/// is there, and empty.
///
/// ```text
///   Available ─────▶ GivenUp
///       └──────────▶ Lost
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BodyAvailability {
    #[default]
    Available,
    /// It was refused, or nothing has read it.
    GivenUp { had_length: bool },
    /// What a handler has taken is gone, passed on or for want of a place to store it, and the
    /// request has gone on to another.
    Lost { had_length: bool },
}

impl BodyAvailability {
    /// Gives the body up; one that is lost stays so.
    fn give_up(&mut self, had_length: bool) {
        *self = match self {
            BodyAvailability::Available | BodyAvailability::GivenUp { .. } => {
                BodyAvailability::GivenUp { had_length }
            }
            BodyAvailability::Lost { .. } => BodyAvailability::Lost { had_length },
        };
    }

    /// Gives the body up without a word on its length, unless that has been said before.
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

/// Who says whether a body goes to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BodyDestination {
    /// The location: `client_body_buffer_size` and `client_body_in_file_only`.
    #[default]
    ByLocation,
    /// No location yet: the body is read as early as `client_body_early_read` asks.
    BeforeLocation,
    /// A handler that moves the file, which has a name for it.
    NamedFile,
}

/// Until when more of a body must come.
#[derive(Clone, Copy, Debug, Default)]
enum ReadDeadline {
    /// The next wait has the whole time.
    #[default]
    Unset,
    /// As `Unset`; the last wait ended there.
    Past(Instant),
    /// The last wait was given up, and the next goes on with it.
    Resumed(Instant),
}

impl ReadDeadline {
    /// When a wait that begins now ends.
    fn begin_wait(&mut self, timeout: Duration) -> Instant {
        let until = match *self {
            ReadDeadline::Unset | ReadDeadline::Past(_) => engine::now() + timeout,
            ReadDeadline::Resumed(until) => until,
        };
        *self = ReadDeadline::Past(until);
        until
    }

    /// Has the next wait go on with the last one.
    fn resume(&mut self) {
        if let ReadDeadline::Past(until) = *self {
            *self = ReadDeadline::Resumed(until);
        }
    }
}

/// What is known of a request's body.
#[derive(Clone, Default)]
pub struct RequestBody {
    /// What the head announces, as far as that still holds: a body that was given up has no length,
    /// or one of 0.
    length: BodyLength,
    /// Bytes that came behind the head in the same stretch.
    came_with_head: usize,
    /// The head announced chunks, whatever has become of them.
    framed: bool,
    received: u64,
    framing: u64,
    arrival: BodyArrival,
    stored: BufferedBody,
    availability: BodyAvailability,
    /// A handler has taken some of it, and there is no other way to that.
    taken: bool,
    /// What had come of it in memory when it broke off.
    left_behind: Pieces,
    /// The name of the temporary file that the rest was in.
    left_behind_file: Option<PathBuf>,
    /// How many bytes stood before a chunk by which it became too long.
    before_refused: Option<u64>,
    /// Chunks of it were refused.
    refused: Option<ChunkError>,
    /// What has come of it was dropped, since no handler reads it.
    skipped: bool,
    destination: BodyDestination,
    /// `client_body_in_file_only` of a location that the request has left for one without it.
    left_in_file_only: Option<InFileOnly>,
    read_deadline: ReadDeadline,
}

impl RequestBody {
    /// Notes what the head announces, and how many bytes came behind it in the same stretch.
    pub fn begin(&mut self, length: BodyLength, came_with_head: usize) {
        *self = RequestBody {
            length,
            came_with_head,
            framed: length == BodyLength::Chunked,
            ..RequestBody::default()
        };
        if length == BodyLength::None {
            self.note_end();
        }
    }

    /// What the head announces.
    pub fn framing(&self) -> BodyLength {
        self.length
    }

    /// Bytes that came behind the head in the same stretch.
    pub fn came_with_head(&self) -> usize {
        self.came_with_head
    }

    /// Notes how many of its bytes lie beside the head.
    fn note_beside_head(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.came_with_head = self.came_with_head.max(bytes);
    }

    /// Notes that the request leaves a location whose `client_body_in_file_only` is not off: as in
    /// nginx, that goes on to hold in locations that are silent about it or say `off`.
    pub fn note_left(&mut self, in_file_only: InFileOnly) {
        self.left_in_file_only = Some(in_file_only);
    }

    /// The announced length in bytes; 0 where there is none.
    pub fn announced(&self) -> u64 {
        self.announced_length().unwrap_or(0)
    }

    /// The announced length in bytes, where there is one.
    fn announced_length(&self) -> Option<u64> {
        match self.length {
            BodyLength::Length(length) => Some(length),
            BodyLength::None | BodyLength::Chunked => None,
        }
    }

    /// From now on the body has an announced length of 0, or none.
    fn announce_empty(&mut self, has_length: bool) {
        self.length = if has_length {
            BodyLength::Length(0)
        } else {
            BodyLength::None
        };
    }

    /// The length that `client_max_body_size` is asked about wherever the request comes to, in
    /// bytes: the announced one; of chunks what has been read.
    pub fn judged_length(&self) -> u64 {
        match self.length {
            BodyLength::Length(length) => length,
            BodyLength::Chunked if !self.skipped => self.received,
            BodyLength::Chunked | BodyLength::None => 0,
        }
    }

    /// Whether a body may come: a length above zero, or chunks.
    pub fn expected(&self) -> bool {
        !matches!(self.length, BodyLength::None | BodyLength::Length(0))
    }

    /// Whether the head announced a body at all, an empty one included.
    pub fn is_announced(&self) -> bool {
        self.length != BodyLength::None
    }

    /// Whether its head announced none, and nothing has been noted of one.
    fn is_none(&self) -> bool {
        self.has_ended() && !self.is_announced() && !self.framed && !self.skipped
    }

    /// Whether nothing more of it is to come.
    fn has_ended(&self) -> bool {
        self.arrival == BodyArrival::Ended
    }

    /// Whether it comes in chunks.
    pub fn chunked(&self) -> bool {
        self.length == BodyLength::Chunked
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Until when more of it must come, where that is waited for from now on.
    pub fn wait_until(&mut self, timeout: Duration) -> Instant {
        self.read_deadline.begin_wait(timeout)
    }

    /// The next wait for more of it goes on with the last one, which was given up for something
    /// that is not the client's doing.
    pub fn resume_wait(&mut self) {
        self.read_deadline.resume();
    }

    /// Counts received bytes towards `$request_length`.
    pub fn note_received(&mut self, bytes: u64) {
        self.received += bytes;
    }

    /// Counts received bytes that only frame the body: sizes of chunks.
    pub fn note_framing(&mut self, bytes: u64) {
        self.framing += bytes;
    }

    /// Notes that its chunks are refused.
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

    /// Notes that its last byte has come.
    pub fn note_end(&mut self) {
        self.arrival = BodyArrival::Ended;
    }

    /// Takes over what was counted of it beside the response.
    pub fn count_as(&mut self, counted: &RequestBody) {
        self.received = counted.received;
        self.framing = counted.framing;
        self.refused = counted.refused;
        if counted.has_ended() {
            self.note_end();
        }
        self.taken |= counted.taken;
    }

    /// Its length, once it has been read whole; nothing is left of one that was given up.
    pub fn length(&self) -> Option<u64> {
        match &self.stored {
            BufferedBody::Nowhere => None,
            _ if self.is_given_up() => Some(0),
            _ => Some(self.received),
        }
    }

    /// What was counted of a body in chunks, once it has ended, broken off or begun to be dropped;
    /// what was dropped does not count.
    pub fn counted(&self) -> Option<u64> {
        let known = self.is_read() || self.arrival != BodyArrival::Coming || self.skipped;
        (self.framed && known).then_some(self.before_refused.unwrap_or(self.received))
    }

    /// What was counted of a body that came in frames without a length: as in nginx only what a
    /// handler has read to its end counts.
    pub fn counted_whole(&self) -> Option<u64> {
        let is_whole = self.is_read() && self.before_refused.is_none() && !self.skipped;
        (self.framed && is_whole).then_some(self.received)
    }

    /// Notes that it is dropped with its request, whose head is refused: the page that answers
    /// finds it empty.
    pub fn note_refused_head(&mut self, in_chunks: bool) {
        self.announce_empty(true);
        self.framed = in_chunks;
        self.skipped = in_chunks;
        if in_chunks {
            self.availability.give_up_without_length();
        }
    }

    /// Notes that what has come of it was dropped, or is before anything else happens.
    pub fn note_skipped(&mut self) {
        self.skipped = true;
    }

    /// Gives up a body that was refused, so that its length is not judged again: a handler on the
    /// way to an error page finds it empty. As in nginx, one that has been read stays, and is
    /// judged wherever the request comes to.
    pub fn give_up(&mut self) {
        if self.is_read() {
            return;
        }
        self.availability.give_up(self.announced_length().is_some());
        self.announce_empty(self.is_announced());
    }

    /// Whether a handler has taken some of it, or would have but for its length: what is wrong
    /// behind that changes no answer.
    fn has_answer(&self) -> bool {
        self.taken || self.before_refused.is_some()
    }

    /// Notes that a handler takes some of it.
    pub fn note_taken(&mut self) {
        self.taken = true;
    }

    /// Gives up what is left of a body of which a handler has taken some and that was not stored
    /// whole: what comes later is not the body that the head announces. One that was refused has
    /// been given up already.
    pub fn give_up_rest(&mut self) {
        if self.taken && !self.is_read() && !self.is_given_up() {
            self.availability = BodyAvailability::Lost { had_length: false };
            self.give_up();
        }
    }

    /// Whether there was a body, of which nothing is left because a handler has taken some of it.
    pub fn is_lost(&self) -> bool {
        matches!(self.availability, BodyAvailability::Lost { .. })
    }

    /// Gives up a body whose chunks were refused as they were dropped: of its length nothing was
    /// ever known, so that a handler on the way to an error page announces none.
    pub fn give_up_dropped(&mut self) {
        self.availability.give_up_without_length();
        self.skipped = false;
        self.announce_empty(false);
    }

    /// Forgets what of it was not read: for handlers that look at it later it is empty and, where
    /// it came in chunks or is still being dropped, given up. Chunks of which none was dropped
    /// leave no length behind.
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

    /// Whether it has been given up.
    pub fn is_given_up(&self) -> bool {
        self.availability != BodyAvailability::Available
    }

    /// Whether it keeps anything that its request must let go of when it has ended.
    pub fn is_kept(&self) -> bool {
        self.is_read() || !self.left_behind.is_empty() || self.left_behind_file.is_some()
    }

    /// Whether it has been read whole.
    pub fn is_read(&self) -> bool {
        !matches!(self.stored, BufferedBody::Nowhere)
    }

    /// Whether a handler has read some of it.
    pub fn is_begun(&self) -> bool {
        self.taken || self.is_read()
    }

    /// The body as a subrequest has it: what has been read whole, an empty one where a length was
    /// announced or chunks were dropped, or nothing.
    pub fn shared(&self) -> RequestBody {
        if self.is_read() {
            self.clone()
        } else {
            self.withheld()
        }
    }

    /// The body as a subrequest has it that none is sent with: an empty one where a length was
    /// announced, chunks were dropped or chunks have been read, or nothing.
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

    /// The body in memory (`$request_body`); `None` where it was not read or lies in a file.
    pub fn in_memory(&self) -> Option<&[Bytes]> {
        match &self.stored {
            BufferedBody::Memory(parts) => Some(parts),
            _ => None,
        }
    }

    /// What logs show of it (`$request_body`): the body in memory, or what had come of one that
    /// broke off.
    pub fn shown(&self) -> Option<&[Bytes]> {
        if self.left_behind.iter().all(Bytes::is_empty) {
            self.in_memory()
        } else {
            Some(&self.left_behind)
        }
    }

    /// The temporary file, where it lies in one.
    pub fn file(&self) -> Option<&File> {
        match &self.stored {
            BufferedBody::File(temporary) => Some(&temporary.file),
            _ => None,
        }
    }

    /// The name of the temporary file that [`read_into_file`](reading::read_into_file) made, which
    /// is left to the caller.
    pub fn take_file(&self) -> Option<PathBuf> {
        match &self.stored {
            BufferedBody::File(temporary) if temporary.in_file_only != InFileOnly::Off => {
                temporary.taken.set(true);
                Some(temporary.path.clone())
            }
            _ => None,
        }
    }

    /// Gives back what [`RequestBody::take_file`] took: the file goes with the body after all.
    pub fn return_file(&self) {
        if let BufferedBody::File(temporary) = &self.stored {
            temporary.taken.set(false);
        }
    }

    /// The name that the temporary file has or had (`$request_body_file`).
    pub fn file_name(&self) -> Option<&Path> {
        match &self.stored {
            BufferedBody::File(temporary) => Some(&temporary.path),
            _ => self.left_behind_file.as_deref(),
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
