//! Access logs whose path holds variables: a file per value, opened when a line comes.
//!
//! <https://nginx.org/en/docs/http/ngx_http_log_module.html#open_log_file_cache>. Without the
//! cache a file is opened and closed for every line; with it, each thread keeps the files open
//! that are used often. As in nginx the file is opened where the request ends, on the thread
//! that serves it.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use base::hash::Map;
use conf::parse;
use conf::{Arity, Contexts, Fault, Setter, Setting, Word};
use rustix::fs::Stat;

use super::LogFile;

/// Caches are looked at this often, for files that are no longer used.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// The `open_log_file_cache` directive.
pub static OPEN_LOG_FILE_CACHE: Setting<Option<Limits>> = Setting::new(
    "open_log_file_cache",
    &[
        "max=number [inactive=time] [min_uses=number] [valid=time]",
        "off",
    ],
    limits,
)
.contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
.arity(Arity::between(1, 4))
.default("off")
.manual(
    "Keeps access logs open whose path holds variables. At most `max` files are remembered, the \
     least recently used goes first; a file used `min_uses` times (1) with no pause longer than \
     `inactive` (10s) stays open; after `valid` (60s) it is checked that the path still leads to \
     it. Each worker thread has a cache of its own.",
);

/// What `open_log_file_cache` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    max: usize,
    inactive: Duration,
    uses_min: u64,
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

/// The log file of a path, from the thread's cache where there is one, else opened now.
pub(super) fn open(path: &Path, limits: Option<&Arc<Limits>>) -> io::Result<Arc<LogFile>> {
    let Some(limits) = limits else {
        return LogFile::opened(path).map(Arc::new);
    };
    CACHES.with(|caches| {
        let mut caches = caches.borrow_mut();
        let owner = Arc::as_ptr(limits);
        let known = caches
            .iter()
            .position(|cache| cache.owner.as_ptr() == owner);
        let at = known.unwrap_or_else(|| {
            if caches.is_empty() {
                engine::spawn(sweep());
            }
            caches.push(Cache::new(limits));
            caches.len() - 1
        });
        match caches.get_mut(at) {
            Some(cache) => cache.open(path, engine::now()),
            None => LogFile::opened(path).map(Arc::new),
        }
    })
}

thread_local! {
    /// A cache per directive, as long as its generation lives.
    static CACHES: RefCell<Vec<Cache>> = const { RefCell::new(Vec::new()) };
}

/// Closes what is no longer used, until no cache is left.
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

struct Cache {
    /// The directive in its generation.
    owner: Weak<Limits>,
    limits: Limits,
    files: Map<Box<Path>, Entry>,
    /// Counts lookups, to tell which file was used least recently.
    clock: u64,
}

struct Entry {
    /// Open once it has been used often enough.
    file: Option<Arc<LogFile>>,
    uses: u64,
    used: Instant,
    used_at_clock: u64,
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

    fn open(&mut self, path: &Path, now: Instant) -> io::Result<Arc<LogFile>> {
        let limits = self.limits;
        self.clock += 1;
        let clock = self.clock;
        let mut uses = 1;
        if let Some(entry) = self.files.get_mut(path)
            && now.duration_since(entry.used) <= limits.inactive
        {
            entry.uses += 1;
            entry.used = now;
            entry.used_at_clock = clock;
            if let Some(file) = entry.in_force(path, limits.valid, now) {
                return Ok(file);
            }
            uses = entry.uses;
        }
        // A path that cannot be opened takes no place.
        let file = Arc::new(LogFile::opened(path)?);
        self.files.remove(path);
        self.make_room();
        let entry = Entry {
            file: (uses >= limits.uses_min).then(|| Arc::clone(&file)),
            uses,
            used: now,
            used_at_clock: clock,
            checked: now,
        };
        self.files.insert(path.into(), entry);
        Ok(file)
    }

    /// Forgets the least recently used file if all places are taken.
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

    fn expire(&mut self, now: Instant) {
        let inactive = self.limits.inactive;
        self.files
            .retain(|_, entry| now.duration_since(entry.used) <= inactive);
    }
}

impl Entry {
    /// The open file, if the path still leads to it.
    fn in_force(&mut self, path: &Path, valid: Duration, now: Instant) -> Option<Arc<LogFile>> {
        let file = self.file.as_ref()?;
        if now.duration_since(self.checked) > valid {
            if !leads_to(path, file) {
                return None;
            }
            self.checked = now;
        }
        Some(Arc::clone(file))
    }
}

/// Whether the path still names the open file.
fn leads_to(path: &Path, file: &LogFile) -> bool {
    let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
    match (rustix::fs::stat(path), file.descriptor()) {
        (Ok(named), Some(open)) => {
            rustix::fs::fstat(&open).is_ok_and(|open| identity(open) == identity(named))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn cache(max: usize, uses_min: u64) -> Cache {
        Cache::new(&Arc::new(Limits {
            max,
            inactive: Duration::from_secs(20),
            uses_min,
            valid: Duration::from_secs(60),
        }))
    }

    #[test]
    fn files_used_often_stay_open_and_the_oldest_goes_first() {
        let folder = folder("log-cache");
        let now = Instant::now();
        let mut cache = cache(3, 2);
        let mut open = |name: &str| cache.open(&folder.join(name), now).unwrap();
        let lru = [open("lru"), open("lru"), open("lru")];
        assert!(!Arc::ptr_eq(&lru[0], &lru[1]), "one use is too few");
        assert!(Arc::ptr_eq(&lru[1], &lru[2]));
        let once = open("once");
        for name in ["first", "first", "second", "second"] {
            open(name);
        }
        assert!(!Arc::ptr_eq(&open("lru"), &lru[2]), "second took its place");
        assert!(!Arc::ptr_eq(&open("once"), &once));
        let second = open("second");
        assert!(cache.open(&folder.join("no/such/folder"), now).is_err());
        assert!(Arc::ptr_eq(
            &cache.open(&folder.join("second"), now).unwrap(),
            &second
        ));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_an_error() {
        let folder = folder("log-pipe");
        let path = folder.join("pipe");
        let _ = std::fs::remove_file(&path);
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let error = open(&path, None).err().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
        let mut options = std::fs::File::options();
        let reader = options.read(true).write(true).open(&path).unwrap();
        assert!(open(&path, None).is_ok());
        drop(reader);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_that_was_moved_is_opened_again_when_it_is_checked() {
        let folder = folder("log-cache-moved");
        let path = folder.join("a");
        let mut cache = cache(10, 1);
        let now = Instant::now();
        let first = cache.open(&path, now).unwrap();
        std::fs::rename(&path, folder.join("b")).unwrap();
        let later = now + Duration::from_secs(15);
        assert!(Arc::ptr_eq(&cache.open(&path, later).unwrap(), &first));
        for step in 2..5 {
            let then = now + Duration::from_secs(15 * step);
            assert!(Arc::ptr_eq(&cache.open(&path, then).unwrap(), &first));
        }
        let moved = cache.open(&path, now + Duration::from_secs(61)).unwrap();
        assert!(!Arc::ptr_eq(&moved, &first));
        cache.expire(now + Duration::from_secs(90));
        assert!(cache.files.is_empty());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
