//! `open_file_cache`: keeps open descriptors, metadata and errors of files.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#open_file_cache>. Every worker thread
//! has caches of its own, so a look-up takes no lock. For `open_file_cache_valid` an entry is used
//! without a check. Then a `stat()` of the path checks it. Changes are not reported by the kernel:
//! `open_file_cache_events` has no effect.
//!
//! [`lookup`] is the entry point for every module that needs a file by its path, cached or not.

pub mod settings;

use std::collections::hash_map::Entry as MapEntry;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use base::hash::Map;
use conf::ScopeId;
use engine::file::{self, File, Metadata};
use framework::generation::GenerationView;
use framework::slot::{Slot, ThreadGeneration, ThreadState};

use crate::files::disable_symlinks::{OpenRefusal, OpenRestrictions};
use crate::files::open_file_cache::settings::{Bounds, OpenFileCache};
use crate::module::MaybeFuture;
use crate::request::Request;

/// Maximum number of inactive entries that one look-up drops, so that no look-up takes long.
const EXPIRED_PER_LOOKUP_MAX: usize = 2;

/// The result of a look-up.
#[derive(Clone, Debug)]
pub struct OpenFileInfo {
    /// The open file; `None` for a directory, and if only metadata was asked for.
    pub file: Option<File>,
    /// The file's metadata.
    pub metadata: Metadata,
}

/// Why a path could not be opened.
#[derive(Debug)]
pub struct LookupError {
    /// The error of the system call.
    pub error: io::Error,
    /// The call that failed, as nginx names it in its log: `open()`, `stat()`, `openat()`.
    pub call: &'static str,
}

impl From<OpenRefusal> for LookupError {
    fn from(OpenRefusal { error, call }: OpenRefusal) -> LookupError {
        LookupError { error, call }
    }
}

impl LookupError {
    /// The system's error number; 0 if there is none.
    pub fn errno(&self) -> i32 {
        self.error.raw_os_error().unwrap_or(0)
    }
}

/// Opens the file at a path, or finds it in the cache of the current scope. The result is a future
/// only if the disk may have to be read.
pub fn lookup(request: &mut Request, path: &[u8]) -> OpenFileLookup {
    let links = OpenRestrictions::of(request, path);
    if request.plan.open_file_cache.cache.is_some() {
        through_cache(request, path, links)
    } else {
        open(path, links)
    }
}

/// Looks a path up without opening it, unless a cache could keep the descriptor.
pub fn test(request: &mut Request, path: &[u8]) -> OpenFileLookup {
    let links = OpenRestrictions::of(request, path);
    if request.plan.open_file_cache.cache.is_some() {
        return through_cache(request, path, links);
    }
    let found = |metadata| OpenFileInfo {
        file: None,
        metadata,
    };
    match stat(path, links) {
        MaybeFuture::Now(metadata) => MaybeFuture::Now(metadata.map(found)),
        MaybeFuture::Wait(asking) => MaybeFuture::wait(async move { asking.await.map(found) }),
    }
}

/// A look-up, which may have finished already.
pub type OpenFileLookup = MaybeFuture<'static, Result<OpenFileInfo, LookupError>>;

/// [`test()`] for scripts, which cannot wait: it blocks on the disk.
pub fn test_now(request: &mut Request, path: &[u8]) -> Result<OpenFileInfo, LookupError> {
    let links = OpenRestrictions::of(request, path);
    let settings = &*request.plan.open_file_cache;
    if settings.cache.is_none() {
        return Ok(OpenFileInfo {
            file: None,
            metadata: stat_now(path, links)?,
        });
    }
    let key = Key { path, links };
    let now = engine::now();
    let files = request.local.at(&FILES);
    let known = files.borrow_mut().find(settings, key, now);
    let outcome = match known {
        Freshness::Fresh(outcome) => return outcome.into_result(),
        Freshness::Stale(looked) => stat_now(path, links)
            .and_then(|metadata| still(looked, metadata).map_or_else(|| open_now(path, links), Ok)),
        Freshness::Unknown => open_now(path, links),
    };
    files.borrow_mut().keep(settings, key, &outcome, now);
    outcome
}

/// Looks a path up in the cache, and on a miss in the file system.
fn through_cache(request: &Request, path: &[u8], links: OpenRestrictions) -> OpenFileLookup {
    let settings = &request.plan.open_file_cache;
    let key = Key { path, links };
    let now = engine::now();
    let files = request.local.at(&FILES);
    let known = files.borrow_mut().find(settings, key, now);
    let looking = match known {
        Freshness::Fresh(outcome) => return MaybeFuture::Now(outcome.into_result()),
        Freshness::Stale(looked) => revalidate(key, looked),
        Freshness::Unknown => open(path, links),
    };
    match looking {
        MaybeFuture::Now(outcome) => {
            files.borrow_mut().keep(settings, key, &outcome, now);
            MaybeFuture::Now(outcome)
        }
        MaybeFuture::Wait(looking) => {
            let (settings, path) = (Arc::clone(settings), path.to_vec());
            MaybeFuture::wait(async move {
                let outcome = looking.await;
                let key = Key { path: &path, links };
                // Other requests of this thread may have used the cache during the wait.
                files.borrow_mut().keep(&settings, key, &outcome, now);
                outcome
            })
        }
    }
}

/// Keeps the open descriptor if the path still leads to the same file; else opens the path again.
fn revalidate(key: Key<'_>, old: OpenFileInfo) -> OpenFileLookup {
    let Key { path, links } = key;
    match stat(path, links) {
        MaybeFuture::Now(metadata) => get_or_open(path, links, old, metadata),
        MaybeFuture::Wait(asking) => {
            let path = path.to_vec();
            MaybeFuture::wait(async move {
                let metadata = asking.await;
                get_or_open(&path, links, old, metadata).resolve().await
            })
        }
    }
}

/// The cached result if the new metadata permits it; else opens the path again.
fn get_or_open(
    path: &[u8],
    links: OpenRestrictions,
    old: OpenFileInfo,
    metadata: Result<Metadata, LookupError>,
) -> OpenFileLookup {
    match metadata.map(|metadata| still(old, metadata)) {
        Ok(Some(looked)) => MaybeFuture::Now(Ok(looked)),
        Ok(None) => open(path, links),
        Err(error) => MaybeFuture::Now(Err(error)),
    }
}

/// The cached result with new metadata; `None` if the path must be opened again.
fn still(old: OpenFileInfo, metadata: Metadata) -> Option<OpenFileInfo> {
    let same = metadata.inode == old.metadata.inode && metadata.device == old.metadata.device;
    let file = if same && metadata.is_dir() == old.metadata.is_dir() {
        old.file
    } else if metadata.is_dir() {
        None
    } else {
        return None;
    };
    Some(OpenFileInfo { file, metadata })
}

/// Opens a path; at once if the kernel can do so without the disk.
fn open(path: &[u8], links: OpenRestrictions) -> OpenFileLookup {
    if !links.are_followed() {
        let opening = open_checking_links(path.to_vec(), links);
        return MaybeFuture::wait(async move { looked(opening.await) });
    }
    let path = Path::new(OsStr::from_bytes(path));
    match file::open_in_memory(path) {
        Some(opened) => MaybeFuture::Now(looked(followed(opened))),
        None => {
            let opening = file::open_on_disk(path.to_owned());
            MaybeFuture::wait(async move { looked(followed(opening.await)) })
        }
    }
}

/// Like [`open`], and blocks on the disk.
fn open_now(path: &[u8], links: OpenRestrictions) -> Result<OpenFileInfo, LookupError> {
    if links.are_followed() {
        looked(followed(file::open_now(Path::new(OsStr::from_bytes(path)))))
    } else {
        looked(open_checking_links_inline(path, links))
    }
}

/// Adds the name of the call, `open()`, to the error of an open that has followed all links.
fn followed(opened: io::Result<(File, Metadata)>) -> Result<(File, Metadata), OpenRefusal> {
    let call = "open()";
    opened.map_err(|error| OpenRefusal { error, call })
}

/// Turns an open into the result of a look-up, which has no file for a directory.
fn looked(opened: Result<(File, Metadata), OpenRefusal>) -> Result<OpenFileInfo, LookupError> {
    let (file, metadata) = opened?;
    let file = (!metadata.is_dir()).then_some(file);
    Ok(OpenFileInfo { file, metadata })
}

/// Like [`stat`], and blocks on the disk.
fn stat_now(path: &[u8], links: OpenRestrictions) -> Result<Metadata, LookupError> {
    if links.are_followed() {
        file::stat_now(Path::new(OsStr::from_bytes(path))).map_err(|error| LookupError {
            error,
            call: "stat()",
        })
    } else {
        open_now(path, links).map(|looked| looked.metadata)
    }
}

/// The metadata of a path; at once if the kernel has it in memory. With restrictions on links, the
/// path is opened on the thread pool instead.
fn stat(
    path: &[u8],
    links: OpenRestrictions,
) -> MaybeFuture<'static, Result<Metadata, LookupError>> {
    if !links.are_followed() {
        let opening = open_checking_links(path.to_vec(), links);
        return MaybeFuture::wait(async move { Ok(opening.await.map(|(_, metadata)| metadata)?) });
    }
    let failed = |error| LookupError {
        error,
        call: "stat()",
    };
    let path = Path::new(OsStr::from_bytes(path));
    match file::stat_in_memory(path) {
        Some(metadata) => MaybeFuture::Now(metadata.map_err(failed)),
        None => {
            let asking = file::stat_on_disk(path.to_owned());
            MaybeFuture::wait(async move { asking.await.map_err(failed) })
        }
    }
}

async fn open_checking_links(
    path: Vec<u8>,
    links: OpenRestrictions,
) -> Result<(File, Metadata), OpenRefusal> {
    engine::blocking(move || open_checking_links_inline(&path, links)).await
}

fn open_checking_links_inline(
    path: &[u8],
    links: OpenRestrictions,
) -> Result<(File, Metadata), OpenRefusal> {
    Ok(file::described(links.open(path)?)?)
}

/// The key of an entry. It includes the restrictions, since the same path may be allowed in one
/// scope and refused in another.
#[derive(Clone, Copy)]
struct Key<'a> {
    path: &'a [u8],
    /// The restrictions under which the path is opened.
    links: OpenRestrictions,
}

/// The caches of one thread for one generation, by the scope that declares each cache.
#[derive(Default)]
struct FileCache {
    // A configuration has one or two caches, for which a linear search is faster than a hash.
    caches: Vec<(ScopeId, Cache)>,
}

static FILES: Slot<FileCache, ThreadGeneration> = Slot::new();

impl ThreadState for FileCache {
    fn begin(_: &GenerationView) -> FileCache {
        FileCache::default()
    }

    /// Closes all descriptors and drops all entries.
    fn retire(&mut self) {
        self.caches.clear();
    }
}

impl FileCache {
    fn find(&mut self, settings: &OpenFileCache, key: Key<'_>, now: Instant) -> Freshness {
        match self.cache(settings) {
            Some(cache) => cache.find(settings, key, now),
            None => Freshness::Unknown,
        }
    }

    fn keep(
        &mut self,
        settings: &OpenFileCache,
        key: Key<'_>,
        outcome: &Result<OpenFileInfo, LookupError>,
        now: Instant,
    ) {
        let Some(cache) = self.cache(settings) else {
            return;
        };
        let outcome = match outcome {
            Ok(looked) => LookupOutcome::Found(looked.clone()),
            Err(error) if settings.errors && error.errno() != 0 => LookupOutcome::Failed {
                errno: error.errno(),
                // A failed check by `stat()` is logged as a failed open, too.
                call: match error.call {
                    "openat()" => "openat()",
                    _ => "open()",
                },
            },
            Err(_) => return cache.forget(key.path),
        };
        cache.keep(settings, key, outcome, now);
    }

    fn cache(&mut self, settings: &OpenFileCache) -> Option<&mut Cache> {
        let (id, bounds) = settings.cache?;
        let at = match self.caches.iter().position(|(known, _)| *known == id) {
            Some(at) => at,
            None => {
                self.caches.push((id, Cache::new(bounds)));
                self.caches.len() - 1
            }
        };
        self.caches.get_mut(at).map(|(_, cache)| cache)
    }
}

/// The state of a path in the cache.
enum Freshness {
    /// The outcome may be used without a check.
    Fresh(LookupOutcome),
    /// The outcome must be checked first.
    Stale(OpenFileInfo),
    /// There is no outcome that would save an open.
    Unknown,
}

/// A cached outcome of a look-up.
#[derive(Clone, Debug)]
enum LookupOutcome {
    Found(OpenFileInfo),
    Failed { errno: i32, call: &'static str },
}

impl LookupOutcome {
    fn into_result(self) -> Result<OpenFileInfo, LookupError> {
        match self {
            LookupOutcome::Found(looked) => Ok(looked),
            LookupOutcome::Failed { errno, call } => Err(LookupError {
                error: io::Error::from_raw_os_error(errno),
                call,
            }),
        }
    }
}

/// The index that marks the end of the list.
const NONE: u32 = u32::MAX;

/// Entries by path, in a list from the most to the least recently used.
struct Cache {
    bounds: Bounds,
    /// The indexes of entries by path.
    by_path: Map<Rc<[u8]>, u32>,
    entries: Vec<Entry>,
    /// The indexes of unused elements of `entries`.
    free: Vec<u32>,
    /// The index of the entry that was used last, or [`NONE`].
    newest: u32,
    /// The index of the entry that has not been used for the longest time, or [`NONE`].
    oldest: u32,
}

struct Entry {
    path: Rc<[u8]>,
    /// The restrictions under which the path was opened. For other restrictions the path is opened
    /// again.
    links: OpenRestrictions,
    outcome: LookupOutcome,
    /// Whether the descriptor was closed, because the file was not used often enough.
    closed: bool,
    /// The number of look-ups that have found the entry.
    uses: u64,
    /// The time at which the path was last checked.
    checked: Instant,
    /// The time of the last look-up.
    used: Instant,
    /// The index of the next more recently used entry, or [`NONE`].
    newer: u32,
    /// The index of the next less recently used entry, or [`NONE`].
    older: u32,
}

impl Cache {
    fn new(bounds: Bounds) -> Cache {
        Cache {
            bounds,
            by_path: Map::default(),
            entries: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }

    fn find(&mut self, settings: &OpenFileCache, key: Key<'_>, now: Instant) -> Freshness {
        self.expire(now);
        let Some(&index) = self.by_path.get(key.path) else {
            return Freshness::Unknown;
        };
        self.touch(index, now);
        let Some(entry) = self.entry_mut(index) else {
            return Freshness::Unknown;
        };
        entry.uses += 1;
        if entry.closed || entry.links != key.links {
            return Freshness::Unknown;
        }
        if now.saturating_duration_since(entry.checked) < settings.valid {
            return Freshness::Fresh(entry.outcome.clone());
        }
        match &entry.outcome {
            LookupOutcome::Found(looked) => Freshness::Stale(looked.clone()),
            LookupOutcome::Failed { .. } => Freshness::Unknown,
        }
    }

    /// Stores the outcome of a look-up.
    fn keep(
        &mut self,
        settings: &OpenFileCache,
        key: Key<'_>,
        mut outcome: LookupOutcome,
        now: Instant,
    ) {
        let index = match self.by_path.get(key.path) {
            Some(&index) => index,
            None => self.insert(key, outcome.clone(), now),
        };
        let Some(entry) = self.entry_mut(index) else {
            return;
        };
        if let LookupOutcome::Found(looked) = &mut outcome {
            entry.closed = entry.uses < settings.min_uses && looked.file.is_some();
            if entry.closed {
                looked.file = None;
            }
        } else {
            entry.closed = false;
        }
        entry.outcome = outcome;
        entry.links = key.links;
        entry.checked = now;
    }

    /// Drops the entry of a path.
    fn forget(&mut self, path: &[u8]) {
        if let Some(&index) = self.by_path.get(path) {
            self.remove(index);
        }
    }

    fn insert(&mut self, key: Key<'_>, outcome: LookupOutcome, now: Instant) -> u32 {
        if self.by_path.len() >= self.bounds.entries_max {
            self.remove(self.oldest);
        }
        let path: Rc<[u8]> = key.path.into();
        let entry = Entry {
            path: Rc::clone(&path),
            links: key.links,
            outcome,
            closed: false,
            uses: 1,
            checked: now,
            used: now,
            newer: NONE,
            older: NONE,
        };
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(slot) = self.entry_mut(index) {
                    *slot = entry;
                }
                index
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
            }
        };
        if let MapEntry::Vacant(vacant) = self.by_path.entry(path) {
            vacant.insert(index);
        }
        self.link_newest(index);
        index
    }

    fn remove(&mut self, index: u32) {
        self.unlink(index);
        let Some(entry) = self.entry_mut(index) else {
            return;
        };
        // The assignment closes the descriptor, unless a response is still being sent from it.
        entry.outcome = LookupOutcome::Failed { errno: 0, call: "" };
        let path = Rc::clone(&entry.path);
        if self.by_path.remove(&path).is_some() {
            self.free.push(index);
        }
    }

    /// Drops a few inactive entries.
    fn expire(&mut self, now: Instant) {
        for _ in 0..EXPIRED_PER_LOOKUP_MAX {
            let oldest = self.oldest;
            let inactive = self.bounds.inactive;
            match self.entry_mut(oldest) {
                Some(entry) if now.saturating_duration_since(entry.used) > inactive => {
                    self.remove(oldest)
                }
                _ => return,
            }
        }
    }

    /// Notes a use of an entry, and moves the entry to the front of the list.
    fn touch(&mut self, index: u32, now: Instant) {
        if let Some(entry) = self.entry_mut(index) {
            entry.used = now;
        }
        if self.newest != index {
            self.unlink(index);
            self.link_newest(index);
        }
    }

    fn link_newest(&mut self, index: u32) {
        let next = std::mem::replace(&mut self.newest, index);
        if let Some(entry) = self.entry_mut(index) {
            entry.newer = NONE;
            entry.older = next;
        }
        match self.entry_mut(next) {
            Some(entry) => entry.newer = index,
            None => self.oldest = index,
        }
    }

    fn unlink(&mut self, index: u32) {
        let Some(entry) = self.entry_mut(index) else {
            return;
        };
        let (newer, older) = (entry.newer, entry.older);
        match self.entry_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.entry_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn entry_mut(&mut self, index: u32) -> Option<&mut Entry> {
        self.entries.get_mut(index as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing;

    fn cache(entries_max: usize) -> Cache {
        Cache::new(Bounds {
            entries_max,
            inactive: Duration::from_secs(60),
        })
    }

    fn settings(min_uses: u64) -> OpenFileCache {
        OpenFileCache {
            cache: None,
            valid: Duration::from_secs(10),
            min_uses,
            errors: true,
        }
    }

    fn key(path: &[u8]) -> Key<'_> {
        Key {
            path,
            links: OpenRestrictions::FOLLOWED,
        }
    }

    fn failed() -> LookupOutcome {
        LookupOutcome::Failed {
            errno: 2,
            call: "open()",
        }
    }

    fn is_fresh(freshness: &Freshness) -> bool {
        matches!(freshness, Freshness::Fresh(_))
    }

    #[test]
    fn the_least_recently_used_entry_gives_way() {
        let (mut cache, settings, now) = (cache(2), settings(1), Instant::now());
        cache.keep(&settings, key(b"/a"), failed(), now);
        cache.keep(&settings, key(b"/b"), failed(), now);
        assert!(is_fresh(&cache.find(&settings, key(b"/a"), now)));
        cache.keep(&settings, key(b"/c"), failed(), now);
        assert!(!is_fresh(&cache.find(&settings, key(b"/b"), now)));
        assert!(is_fresh(&cache.find(&settings, key(b"/a"), now)));
        assert!(is_fresh(&cache.find(&settings, key(b"/c"), now)));
        assert_eq!(cache.entries.len(), 2);
    }

    #[test]
    fn entries_are_believed_until_their_time_is_up() {
        let (mut cache, settings, now) = (cache(2), settings(1), Instant::now());
        cache.keep(&settings, key(b"/a"), failed(), now);
        assert!(is_fresh(&cache.find(
            &settings,
            key(b"/a"),
            now + Duration::from_secs(9)
        )));
        assert!(!is_fresh(&cache.find(
            &settings,
            key(b"/a"),
            now + Duration::from_secs(10)
        )));
    }

    #[test]
    fn inactive_entries_are_dropped_two_at_a_time() {
        let (mut cache, settings, now) = (cache(9), settings(1), Instant::now());
        for path in [b"/a", b"/b", b"/c"] {
            cache.keep(&settings, key(path), failed(), now);
        }
        let later = now + Duration::from_secs(61);
        cache.find(&settings, key(b"/x"), later);
        assert_eq!(cache.by_path.len(), 1);
        cache.find(&settings, key(b"/x"), later);
        assert_eq!(cache.by_path.len(), 0);
        assert_eq!((cache.newest, cache.oldest), (NONE, NONE));
        cache.keep(&settings, key(b"/d"), failed(), later);
        assert_eq!(cache.entries.len(), 3);
    }

    #[test]
    fn forgotten_paths_are_looked_up_again() {
        let (mut cache, settings, now) = (cache(2), settings(1), Instant::now());
        cache.keep(&settings, key(b"/a"), failed(), now);
        cache.forget(b"/a");
        assert!(matches!(
            cache.find(&settings, key(b"/a"), now),
            Freshness::Unknown
        ));
    }

    #[test]
    fn settings_and_their_mistakes() {
        let cache = |text: &str| {
            testing::feature::<OpenFileCache>(&format!("http {{ {text} }}"), &["http"])
        };
        let error = |text: &str| cache(text).unwrap_err();
        assert_eq!(cache("").unwrap().valid(), None);
        assert_eq!(cache("open_file_cache off;").unwrap().valid(), None);
        let settings =
            cache("open_file_cache max=10 inactive=2m; open_file_cache_valid 5;").unwrap();
        assert_eq!(settings.valid(), Some(Duration::from_secs(5)));
        let bounds = settings.cache.map(|(_, bounds)| bounds);
        assert_eq!(
            bounds,
            Some(Bounds {
                entries_max: 10,
                inactive: Duration::from_secs(120)
            })
        );
        assert_eq!(
            error("open_file_cache inactive=1m;"),
            "\"open_file_cache\" must have the \"max\" parameter"
        );
        assert_eq!(
            error("open_file_cache max=0;"),
            "invalid \"open_file_cache\" parameter \"max=0\""
        );
        assert_eq!(
            error("open_file_cache max=1 x=1;"),
            "invalid \"open_file_cache\" parameter \"x=1\""
        );
    }
}
