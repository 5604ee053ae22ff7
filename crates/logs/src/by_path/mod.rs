//! Access logs whose path contains variables: one file per value, opened when a line is logged.
//!
//! <https://nginx.org/en/docs/http/ngx_http_log_module.html#open_log_file_cache>. Without the
//! cache, a file is opened and closed for every line; with it, each thread keeps frequently used
//! files open. nginx opens the file at the end of the request. Tidegate opens the file at that time
//! only if the kernel has the path in memory. An open that needs the disk, such as the creation of
//! a file, is left to the thread pool (`openings`), and the lines for that path wait in order.

mod openings;

use std::cell::RefCell;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::hash::Map;
use conf::parse;
use conf::{Arity, Contexts, Fault, Setter, Setting, Word};

use super::SubjectSnapshot;
use super::{Errno, Level, LogFile, Printable, unwritten};
use openings::WaitingLine;
pub(super) use openings::finish;

/// Interval at which caches are searched for files that are no longer used.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Declares the directive `open_log_file_cache`.
pub static OPEN_LOG_FILE_CACHE: Setting<Option<Limits>> = Setting::new(
    "open_log_file_cache",
    &[
        "max=number [inactive=time] [min_uses=number] [valid=time]",
        "off",
    ],
    limits,
)
.contexts(
    Contexts::HTTP
        .or(Contexts::SERVER)
        .or(Contexts::LOCATION)
        .or(Contexts::STREAM)
        .or(Contexts::STREAM_SERVER)
        .or(Contexts::MEMCACHED)
        .or(Contexts::MEMCACHED_SERVER),
)
.arity(Arity::between(1, 4))
.default("off")
.manual(
    "Keeps access logs open whose path holds variables. At most `max` files are remembered, the \
     least recently used goes first; a file used `min_uses` times (1) with no pause longer than \
     `inactive` (10s) stays open; after `valid` (60s) it is checked that the path still leads to \
     it. Each worker thread has a cache of its own.",
);

/// The value of `open_log_file_cache` in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of open files.
    max: usize,
    /// How long a file stays open without being used.
    inactive: Duration,
    /// Number of uses after which a file is kept open.
    uses_min: u64,
    /// How long an open file is used before its path is checked again.
    valid: Duration,
}

fn limits(setter: &Setter<'_>) -> Result<Option<Limits>, Fault> {
    let mut max = 0;
    let mut limits = Limits {
        max: 0,
        inactive: Duration::from_secs(10),
        uses_min: 1,
        valid: Duration::from_secs(60),
    };
    let mut off = false;
    for word in setter.args() {
        let seconds = |text| parse::time_seconds(text).map(Duration::from_secs);
        let taken = if let Some(text) = word.bytes.strip_prefix(b"max=") {
            parse::number_of(text).map(|number| max = number)
        } else if let Some(text) = word.bytes.strip_prefix(b"inactive=") {
            seconds(text).map(|time| limits.inactive = time)
        } else if let Some(text) = word.bytes.strip_prefix(b"min_uses=") {
            parse::number_of(text).map(|number| limits.uses_min = number)
        } else if let Some(text) = word.bytes.strip_prefix(b"valid=") {
            seconds(text).map(|time| limits.valid = time)
        } else {
            (&*word.bytes == b"off").then(|| off = true)
        };
        taken.ok_or_else(|| invalid(word))?;
    }
    if off {
        return Ok(None);
    }
    if max == 0 {
        return Err(Fault::new(
            "\"open_log_file_cache\" must have \"max\" parameter",
        ));
    }
    limits.max = usize::try_from(max).unwrap_or(usize::MAX);
    Ok(Some(limits))
}

fn invalid(word: &Word) -> Fault {
    let text = format!(
        "invalid \"open_log_file_cache\" parameter \"{}\"",
        word.text()
    );
    Fault::at(word, text)
}

/// Why a line was not logged.
#[derive(Debug)]
pub enum LogError {
    /// The request's root directory does not exist. As in nginx, no file is created then, since
    /// clients choose parts of the path.
    Root(io::Error),
    /// The file could not be opened.
    Open(io::Error),
}

impl LogError {
    /// nginx's log message about the error.
    pub fn shown(&self, root: Option<&Path>, path: &Path) -> (Level, String) {
        let printable = |path: &Path| Printable(path.as_os_str().as_bytes()).to_string();
        match self {
            LogError::Root(error) => {
                let (root, error) = (root.map(printable).unwrap_or_default(), Errno(error));
                let text =
                    format!("testing \"{root}\" existence failed {error} while logging request");
                (Level::Error, text)
            }
            LogError::Open(error) => {
                let (path, error) = (printable(path), Errno(error));
                let text = format!("open() \"{path}\" failed {error} while logging request");
                (Level::Crit, text)
            }
        }
    }
}

/// Appends a whole line to the file at `path`, or queues the line until the file is open. Lines of
/// one path keep their order. `root` is the directory that must exist; `None` if it is known to
/// exist. `note` returns the subject for the report if a queued line fails later.
pub fn append(
    root: Option<&Path>,
    path: &Path,
    limits: Option<&Arc<Limits>>,
    line: &[u8],
    note: impl FnOnce() -> SubjectSnapshot,
) -> Result<(), LogError> {
    if !unwritten::is_deferred() {
        // Without an event loop, the thread may block.
        root.map_or(Ok(()), openings::test)
            .map_err(LogError::Root)?;
        let file = LogFile::opened(path).map_err(LogError::Open)?;
        unwritten::append(&Arc::new(file), line, None);
        return Ok(());
    }
    let waiting = || WaitingLine {
        root: root.map(Path::to_owned),
        limits: limits.cloned(),
        line: line.into(),
        note: note(),
    };
    if openings::is_opening(path) {
        openings::join(path, waiting());
        return Ok(());
    }
    let tested = root.map_or(Some(Ok(())), openings::test_now);
    if let Some(Err(error)) = tested {
        return Err(LogError::Root(error));
    }
    let known = look_up(path, limits);
    let kept = match known {
        CachedFile::Open(file) if tested.is_some() => {
            unwritten::append(&file, line, None);
            return Ok(());
        }
        CachedFile::Open(file) | CachedFile::Unchecked(file) => Some(file),
        CachedFile::Closed => None,
    };
    if tested.is_some() {
        match engine::file::append_now(path) {
            Ok(descriptor) => {
                let file = kept
                    .filter(|kept| kept.is_open_on(&descriptor))
                    .unwrap_or_else(|| Arc::new(LogFile::with_descriptor(path, descriptor)));
                keep(path, limits, &file);
                unwritten::append(&file, line, None);
                return Ok(());
            }
            Err(error) if may_succeed_later(&error) => {}
            Err(error) => return Err(LogError::Open(error)),
        }
    }
    openings::begin(path, kept, waiting());
    Ok(())
}

/// Whether the thread pool may succeed in opening a file that could not be opened at once: the
/// kernel does not have the path in memory, or the path does not exist.
fn may_succeed_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::NotFound
    )
}

/// The cache's entry for a path.
enum CachedFile {
    /// The file is open.
    Open(Arc<LogFile>),
    /// The file is open, but its path was last checked longer than `valid` ago.
    Unchecked(Arc<LogFile>),
    Closed,
}

/// Looks up a path, and counts the lookup as a use.
fn look_up(path: &Path, limits: Option<&Arc<Limits>>) -> CachedFile {
    limits.map_or(CachedFile::Closed, |limits| {
        with_cache(limits, |cache| cache.look_up(path, engine::now()))
    })
}

/// Records that the path leads to this file. The cache keeps the file open if the path is used
/// often enough.
fn keep(path: &Path, limits: Option<&Arc<Limits>>, file: &Arc<LogFile>) {
    if let Some(limits) = limits {
        with_cache(limits, |cache| cache.opened(path, file, engine::now()));
    }
}

/// Passes the thread's cache for a directive to `use_it`.
fn with_cache<R>(limits: &Arc<Limits>, use_it: impl FnOnce(&mut Cache) -> R) -> R {
    CACHES.with(|caches| {
        let mut caches = caches.borrow_mut();
        let owner = Arc::as_ptr(limits);
        let known = caches
            .iter()
            .position(|cache| cache.owner.as_ptr() == owner);
        if let Some(cache) = known.and_then(|at| caches.get_mut(at)) {
            return use_it(cache);
        }
        if caches.is_empty() && engine::has_runtime() {
            engine::spawn(sweep());
        }
        let mut cache = Cache::new(limits);
        let result = use_it(&mut cache);
        caches.push(cache);
        result
    })
}

thread_local! {
    /// One cache per directive, which lives as long as its generation.
    static CACHES: RefCell<Vec<Cache>> = const { RefCell::new(Vec::new()) };
}

/// Closes unused files at intervals, as long as the thread has a cache.
async fn sweep() {
    loop {
        engine::sleep(SWEEP_INTERVAL).await;
        let now = engine::now();
        let done = CACHES.with(|caches| {
            let mut caches = caches.borrow_mut();
            caches.retain(|cache| cache.owner.strong_count() > 0);
            for cache in caches.iter_mut() {
                cache.expire(now);
            }
            caches.is_empty()
        });
        if done {
            return;
        }
    }
}

/// The files that a thread keeps open for one directive.
struct Cache {
    /// The settings of the directive, owned by its generation.
    owner: Weak<Limits>,
    limits: Limits,
    files: Map<Box<Path>, Entry>,
    /// Counts lookups, to find the least recently used file.
    clock: u64,
}

/// A path in a cache, and its file once the path has been used often enough.
struct Entry {
    /// Set once the path has been used often enough.
    file: Option<Arc<LogFile>>,
    /// The number of lookups.
    uses: u64,
    /// When the path was last looked up.
    used: Instant,
    /// The cache's `clock` at the last lookup.
    used_at_clock: u64,
    /// When the path was last found to lead to the file.
    checked: Instant,
}

impl Cache {
    fn new(owner: &Arc<Limits>) -> Cache {
        Cache {
            owner: Arc::downgrade(owner),
            limits: **owner,
            files: Map::default(),
            clock: 0,
        }
    }

    /// Looks up a path, and counts the lookup as a use.
    fn look_up(&mut self, path: &Path, now: Instant) -> CachedFile {
        let limits = self.limits;
        self.clock += 1;
        let Some(entry) = self.files.get_mut(path) else {
            return CachedFile::Closed;
        };
        if now.duration_since(entry.used) > limits.inactive {
            self.files.remove(path);
            return CachedFile::Closed;
        }
        entry.uses += 1;
        entry.used = now;
        entry.used_at_clock = self.clock;
        match &entry.file {
            Some(file) if now.duration_since(entry.checked) <= limits.valid => {
                CachedFile::Open(Arc::clone(file))
            }
            Some(file) => CachedFile::Unchecked(Arc::clone(file)),
            None => CachedFile::Closed,
        }
    }

    /// Records that the path now leads to this file. A path that cannot be opened gets no entry.
    fn opened(&mut self, path: &Path, file: &Arc<LogFile>, now: Instant) {
        let uses_min = self.limits.uses_min;
        let clock = self.clock;
        if !self.files.contains_key(path) {
            self.make_room();
        }
        let entry = self.files.entry(path.into()).or_insert(Entry {
            file: None,
            uses: 1,
            used: now,
            used_at_clock: clock,
            checked: now,
        });
        entry.file = (entry.uses >= uses_min).then(|| Arc::clone(file));
        entry.checked = now;
    }

    /// Evicts the least recently used file if the cache is full.
    fn make_room(&mut self) {
        if self.files.len() < self.limits.max {
            return;
        }
        let oldest = self
            .files
            .iter()
            .min_by_key(|(_, entry)| entry.used_at_clock);
        if let Some(path) = oldest.map(|(path, _)| path.clone()) {
            self.files.remove(&path);
        }
    }

    /// Closes the files that have not been used for `inactive`.
    fn expire(&mut self, now: Instant) {
        let inactive = self.limits.inactive;
        self.files
            .retain(|_, entry| now.duration_since(entry.used) <= inactive);
    }
}

#[cfg(test)]
mod tests;
