//! The zones of `*_cache_path`: the directory, its index, and the thread that maintains it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use conf::{Fault, Line, ScopeRef, Setter, Word, parse};
use engine::ExitBlocker;
use framework::compile::Compiler;
use framework::generation::Generation;
use framework::handover::{LARGE_ZONES_MAX, StateReader, StateWriter, Unfit};
use framework::service::{RunningService, Service};
use framework::zone::{State, Zone, ZoneError, ZoneFact, ZoneFactSink};
use rules::service_thread;
use store::disk::{
    Counts, DiskStore, EntryId, FolderState, Levels, MemoryCounts, MemorySettings, PassedEntry,
    SavedIndex, Settings,
};

use super::clock::{milliseconds, now};
use super::memory;
use super::numbers::CacheCounters;

/// nginx's minimum for a zone of keys, in bytes: two pages.
const KEYS_ZONE_MIN: u64 = 8192;

/// The interval between two turns of maintenance.
const INTERVAL: Duration = Duration::from_secs(1);

/// The interval between two saves of the index.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum time that an ending process waits for its indexes to be saved;
/// [`engine::hasten_background`] shortens it.
const SAVE_MAX: Duration = Duration::from_secs(30);

/// Maximum time that the last save of an index waits for complete responses to be stored: about as
/// long as a pool thread sleeps ([`engine::unhurried`]).
const STORE_MAX: Duration = Duration::from_millis(100);

/// A line of `*_cache_path`.
#[derive(Clone, Debug)]
pub(crate) struct CachePath {
    /// The prefix of the module, such as `proxy_`.
    pub(super) prefix: &'static str,
    /// The directory, or `memory:` and a name for a cache without one.
    path: PathBuf,
    /// Whether the cache has a directory.
    has_folder: bool,
    /// The memory for entries, if `memory=` is set.
    pub(super) memory: Option<MemorySettings>,
    levels: Levels,
    max_size: Option<u64>,
    min_free: u64,
    inactive: Duration,
    /// The pace of scanning the directory (`loader_…`).
    loader: ManagerPace,
    /// The pace of removing entries (`manager_…`).
    manager: ManagerPace,
}

/// How much maintenance is done in one turn.
#[derive(Clone, Copy, Debug)]
struct ManagerPace {
    /// Maximum number of files in one turn.
    files: usize,
    /// The pause between two turns.
    sleep: Duration,
    /// The turn ends after this time.
    threshold: Duration,
}

impl Default for ManagerPace {
    fn default() -> ManagerPace {
        ManagerPace {
            files: 100,
            sleep: Duration::from_millis(50),
            threshold: Duration::from_millis(200),
        }
    }
}

/// Files that are processed between two checks of the time.
const FILES_A_STEP: usize = 16;

impl ManagerPace {
    /// Runs steps until the files or the time of a turn are used up. True if there is more to do.
    fn turn(&self, mut step: impl FnMut(usize) -> bool) -> bool {
        let begun = Instant::now();
        let mut left = self.files.max(1);
        while left > 0 && begun.elapsed() < self.threshold.max(Duration::from_millis(1)) {
            let files = left.min(FILES_A_STEP);
            if !step(files) {
                return false;
            }
            left -= files;
        }
        true
    }
}

/// The state of a zone, shared by all threads.
#[derive(Debug)]
pub(crate) struct CacheZone {
    /// The size of `keys_zone=` in bytes.
    size: u64,
    /// The store; `None` if the directory cannot be opened: requests then bypass the cache.
    store: OnceLock<Option<Arc<DiskStore>>>,
    counters: CacheCounters,
    /// The number of maintenance threads that have been started, of which the last is active.
    keepers: AtomicU64,
}

impl CacheZone {
    /// The store, which is opened on first use.
    pub(super) fn store(&self, settings: &CachePath) -> Option<&Arc<DiskStore>> {
        let open = || match settings.open(self.size) {
            Ok(store) => Some(store),
            Err(error) => {
                let (path, error) = (settings.path.display(), logs::Errno(&error));
                logs::event!(
                    Emerg,
                    "open() \"{path}\" failed {error}, nothing is cached there"
                );
                None
            }
        };
        self.store.get_or_init(open).as_ref()
    }

    /// The counters of the zone's requests.
    pub(super) fn counters(&self) -> &CacheCounters {
        &self.counters
    }

    /// The counts of entries on disk; zero if the directory is not open.
    pub(super) fn counts(&self) -> Counts {
        let store = self.store.get().and_then(Option::as_ref);
        store.map(|store| store.counts()).unwrap_or_default()
    }

    /// Whether the directory has not been scanned yet.
    pub(super) fn is_cold(&self) -> bool {
        let store = self.store.get().and_then(Option::as_ref);
        store.is_some_and(|store| !store.is_scanned())
    }

    /// The counts of entries in memory.
    pub(super) fn memory_counts(&self) -> MemoryCounts {
        let store = self.store.get().and_then(Option::as_ref);
        let mut counts = store.map(|store| store.memory_counts()).unwrap_or_default();
        counts.hits += self.counters.at_once().0;
        counts
    }
}

impl State for CacheZone {
    const KIND: &'static str = "cache";

    type Settings = CachePath;

    fn new(size: u64) -> CacheZone {
        CacheZone {
            size,
            store: OnceLock::new(),
            counters: CacheCounters::default(),
            keepers: AtomicU64::new(0),
        }
    }

    fn reconcile(zone: &Zone<Self>, previous: &Zone<Self>) -> Result<Arc<Self>, String> {
        let (now, before) = (zone.settings(), previous.settings());
        let name = zone.name();
        if now.path != before.path {
            return Err(format!(
                "cache \"{name}\" uses the \"{}\" cache path while previously it used the \"{}\" cache path",
                now.path.display(),
                before.path.display()
            ));
        }
        if now.levels != before.levels {
            return Err(format!("cache \"{name}\" had previously different levels"));
        }
        // Opening a directory that could not be opened is tried again.
        match previous.state().store.get() {
            Some(None) => Ok(Arc::new(CacheZone::new(zone.size()))),
            Some(Some(_)) | None => Ok(zone.all_of(previous)),
        }
    }

    const SAVED_VERSION: Option<u64> = Some(1);

    /// Saves the entries of a cache without a directory, as far as there is room: those that were
    /// used last. Entries in a directory stay there.
    fn save(&self, settings: &CachePath, out: &mut StateWriter) {
        let Some(Some(store)) = self.store.get().filter(|_| !settings.has_folder) else {
            return;
        };
        for PassedEntry { id, used, file } in store.passed_on() {
            if out.length() + file.len() > LARGE_ZONES_MAX {
                break;
            }
            out.text(&id.0);
            out.number(used);
            out.text(&file);
        }
    }

    fn restore(&self, settings: &CachePath, saved: &mut StateReader<'_>) -> Result<(), Unfit> {
        let mut entries = Vec::new();
        while !saved.is_empty() {
            let id = saved.text()?.try_into();
            let id = EntryId(id.map_err(|_| Unfit::new("an entry has no id"))?);
            entries.push((id, saved.number()?, saved.text()?));
        }
        if settings.has_folder || entries.is_empty() {
            return Ok(());
        }
        let store = self.store(settings);
        let store = store.ok_or_else(|| Unfit::new("there is no store"))?;
        for (id, used, file) in entries.into_iter().rev() {
            let file = Bytes::copy_from_slice(file);
            // An entry that is damaged, or for which there is no room, is fetched again when
            // requested.
            let _ = store.take_over(PassedEntry { id, used, file }, now());
        }
        Ok(())
    }

    fn describe(&self, settings: &CachePath, tell: &mut ZoneFactSink<'_>) {
        tell("path", ZoneFact::Text(&settings.path.to_string_lossy()));
        if let Some(max_size) = settings.max_size {
            tell("max_size", ZoneFact::Number(max_size));
        }
        let Some(Some(store)) = self.store.get() else {
            return;
        };
        let counts = store.counts();
        tell("entries", ZoneFact::Number(counts.entries));
        tell("bytes", ZoneFact::Number(counts.bytes));
        tell("stored", ZoneFact::Number(counts.stored));
        tell("evicted", ZoneFact::Number(counts.evicted));
        tell("expired", ZoneFact::Number(counts.expired));
        if settings.memory.is_some() {
            let memory = self.memory_counts();
            tell("memory_size", ZoneFact::Number(memory.limit));
            tell("memory_bytes", ZoneFact::Number(memory.bytes));
            tell("memory_entries", ZoneFact::Number(memory.entries));
            tell("memory_hits", ZoneFact::Number(memory.hits));
            tell("memory_evicted", ZoneFact::Number(memory.evicted));
        }
    }
}

impl CachePath {
    /// The limit of the entries in bytes, if there is one.
    pub(super) fn bound(&self) -> Option<u64> {
        let memory = self.memory.filter(|_| !self.has_folder);
        self.max_size.or(memory.map(|memory| memory.limit as u64))
    }

    /// Whether all entries are in memory.
    pub(super) fn is_in_memory(&self) -> bool {
        !self.has_folder
    }

    /// Opens the directory, or creates a store in memory.
    fn open(&self, size: u64) -> std::io::Result<Arc<DiskStore>> {
        let settings = self.of_store(size);
        if let Some(memory) = self.memory.filter(|_| !self.has_folder) {
            return Ok(DiskStore::in_memory(
                settings.index_size,
                settings.inactive,
                memory,
            ));
        }
        let store = DiskStore::open(&settings)?;
        store.set_memory(self.memory);
        Ok(store)
    }

    fn of_store(&self, size: u64) -> Settings {
        Settings {
            path: self.path.clone(),
            levels: self.levels,
            index_size: usize::try_from(size).unwrap_or(usize::MAX),
            max_size: self.max_size,
            min_free: self.min_free,
            inactive: milliseconds(self.inactive),
        }
    }
}

/// The prefixes of the modules, by the names of their directives.
const FAMILIES: [(&str, &str); 4] = [
    ("proxy_cache_path", "proxy_"),
    ("fastcgi_cache_path", "fastcgi_"),
    ("uwsgi_cache_path", "uwsgi_"),
    ("scgi_cache_path", "scgi_"),
];

/// Checks the `*_cache_path` lines of a module.
pub(super) fn check(setter: &Setter<'_>) -> Result<(), Fault> {
    let mut lines = setter.lines().iter();
    lines.try_for_each(|line| read(line).map(drop))
}

/// Declares the zones of the `http` block, before other directives refer to them.
pub fn prepare(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    for line in http.lines() {
        let family = FAMILIES.iter().find(|(name, _)| line.is(name));
        if let Some((_, prefix)) = family
            && let Err(fault) = declare(compiler, line, prefix)
        {
            compiler.report(fault.or_at(line.position));
        }
    }
}

fn declare(compiler: &Compiler<'_>, line: &Line, prefix: &'static str) -> Result<(), Fault> {
    let read = read(line)?;
    let mut settings = read.settings;
    settings.prefix = prefix;
    if settings.has_folder {
        settings.path = compiler.directory(&settings.path);
    }
    let declared = compiler.registry::<Declared>();
    let mut declared = declared.borrow_mut();
    let path_of = |zone: &Arc<Zone<CacheZone>>| zone.settings().path == settings.path;
    if declared.0.iter().any(path_of) {
        let path = line.argument(0);
        let text = format!("the same path name \"{}\" is used twice", path.text());
        return Err(Fault::at(path, text));
    }
    let mut zones = compiler.zones.borrow_mut();
    match zones.declare::<CacheZone>(&read.name, read.size, settings) {
        Ok(zone) => {
            declared.0.push(zone);
            Ok(())
        }
        Err(ZoneError::Conflict(text)) => Err(Fault::new(text)),
        Err(ZoneError::Declared(known)) if known.settings().prefix == prefix => {
            Err(Fault::new(format!("duplicate zone \"{}\"", known.name())))
        }
        Err(ZoneError::Declared(known)) => Err(Fault::new(format!(
            "the shared memory zone \"{}\" is already declared for a different use",
            known.name()
        ))),
    }
}

/// A parsed line of `*_cache_path`.
struct CachePathLine {
    name: String,
    size: u64,
    settings: CachePath,
}

/// Parses a line of `*_cache_path`.
fn read(line: &Line) -> Result<CachePathLine, Fault> {
    let path = line.argument(0);
    let mut zone = None;
    let mut written = memory::Written::of_path(path)?;
    let mut settings = CachePath {
        prefix: "",
        path: path_of(path),
        has_folder: !written.is_alone,
        memory: None,
        levels: Levels::default(),
        max_size: None,
        min_free: 0,
        inactive: Duration::from_secs(600),
        loader: ManagerPace::default(),
        manager: ManagerPace::default(),
    };
    for word in line.args.iter().skip(1) {
        let text = word.text();
        let Some((name, value)) = text.split_once('=') else {
            return Err(Fault::invalid_parameter(word));
        };
        written.refuse_about_files(word, name)?;
        if written.read(word, name, value)? {
            continue;
        }
        let invalid = || Fault::at(word, format!("invalid {name} value \"{text}\""));
        let number = || {
            let number = parse::number_of(value.as_bytes());
            number
                .and_then(|number| usize::try_from(number).ok())
                .ok_or_else(invalid)
        };
        let offset = || parse::offset_of(value.as_bytes()).ok_or_else(invalid);
        let milliseconds = || {
            let time = parse::time_milliseconds(value.as_bytes());
            time.map(Duration::from_millis).ok_or_else(invalid)
        };
        match name {
            "levels" => {
                let levels = value.parse();
                settings.levels = levels
                    .map_err(|_| Fault::at(word, format!("invalid \"levels\" \"{text}\"")))?;
            }
            "use_temp_path" => match value {
                "on" | "off" => {}
                _ => {
                    return Err(Fault::at(
                        word,
                        format!(
                            "invalid use_temp_path value \"{text}\", it must be \"on\" or \"off\""
                        ),
                    ));
                }
            },
            "keys_zone" => zone = Some(keys_zone(word, value)?),
            "inactive" => {
                let time = parse::time_seconds(value.as_bytes());
                settings.inactive = time.map(Duration::from_secs).ok_or_else(invalid)?;
            }
            "max_size" => settings.max_size = Some(offset()?),
            "min_free" => settings.min_free = offset()?,
            "loader_files" => settings.loader.files = number()?,
            "loader_sleep" => settings.loader.sleep = milliseconds()?,
            "loader_threshold" => settings.loader.threshold = milliseconds()?,
            "manager_files" => settings.manager.files = number()?,
            "manager_sleep" => settings.manager.sleep = milliseconds()?,
            "manager_threshold" => settings.manager.threshold = milliseconds()?,
            _ => return Err(Fault::invalid_parameter(word)),
        }
    }
    let Some((name, size)) = zone.filter(|(name, _)| !name.is_empty()) else {
        let name = line.name.text();
        let text = format!("\"{name}\" must have \"keys_zone\" parameter");
        return Err(Fault::new(text));
    };
    settings.memory = written.settings(&line.name.text())?;
    Ok(CachePathLine {
        name,
        size,
        settings,
    })
}

/// The directory as written, without a trailing slash.
fn path_of(word: &Word) -> PathBuf {
    let text = word.text();
    Path::new(text.strip_suffix('/').unwrap_or(&text)).into()
}

fn keys_zone(word: &Word, value: &str) -> Result<(String, u64), Fault> {
    let invalid = || Fault::at(word, format!("invalid keys zone size \"{}\"", word.text()));
    let (name, size) = value.split_once(':').ok_or_else(invalid)?;
    let size = parse::size_of(size.as_bytes()).ok_or_else(invalid)?;
    if size < KEYS_ZONE_MIN {
        let text = format!("keys zone \"{}\" is too small", word.text());
        return Err(Fault::at(word, text));
    }
    Ok((name.to_owned(), size))
}

/// The caches of a configuration.
#[derive(Default)]
struct Declared(Vec<Arc<Zone<CacheZone>>>);

impl framework::registry::Registry for Declared {}

/// Adds the maintenance of the caches to the generation's services.
pub fn add(compiler: &Compiler<'_>, generation: &mut Generation) {
    let declared: Declared = compiler.registries.take();
    for zone in declared.0 {
        generation.services.push(Arc::new(MaintenanceService(zone)));
    }
}

/// The service that maintains a cache, with a thread of its own.
struct MaintenanceService(Arc<Zone<CacheZone>>);

impl Service for MaintenanceService {
    fn key(&self) -> String {
        format!("cache {}", self.0.name())
    }

    /// Opens the directory before a request needs it.
    fn prepare(&self) {
        self.0.state().store(self.0.settings());
    }

    /// Starts a maintenance thread; the thread of the previous generation ends.
    fn start(&self, _: &Arc<Generation>, before: Option<RunningService>) -> Option<RunningService> {
        let zone = Arc::clone(&self.0);
        let settings = zone.settings().clone();
        let store = Arc::clone(zone.state().store(&settings)?);
        let inactive = milliseconds(settings.inactive);
        store.set_bounds(settings.max_size, settings.min_free, inactive);
        store.set_memory(settings.memory);
        let number = 1 + zone.state().keepers.fetch_add(1, Ordering::AcqRel);
        drop(before);
        let unfinished = Arc::<OnceLock<ExitBlocker>>::default();
        let at_end = SaveOnDrop {
            zone,
            store,
            number,
            unfinished: Arc::clone(&unfinished),
        };
        let thread = service_thread::start("cache", "a cache", move || keep(at_end, settings))?;
        Some(Box::new(MaintenanceHandle { unfinished, thread }))
    }
}

/// The handle of a maintenance thread. Dropping it tells the thread to end, and makes the process
/// wait for the thread's end.
struct MaintenanceHandle {
    unfinished: Arc<OnceLock<ExitBlocker>>,
    #[expect(dead_code, reason = "dropping it tells the thread to end")]
    thread: RunningService,
}

impl Drop for MaintenanceHandle {
    fn drop(&mut self) {
        // The blocker must exist before the thread is told to end, which dropping `thread` does
        // after this.
        let unfinished = || ExitBlocker::for_at_most(SAVE_MAX, "the index of a cache");
        self.unfinished.get_or_init(unfinished);
    }
}

/// Saves the index when a maintenance thread ends, unless a later thread maintains the cache.
struct SaveOnDrop {
    zone: Arc<Zone<CacheZone>>,
    store: Arc<DiskStore>,
    /// The number of this maintenance thread in the zone.
    number: u64,
    /// Set once the thread has been told to end; released with the last of this guard and
    /// [`MaintenanceHandle`].
    unfinished: Arc<OnceLock<ExitBlocker>>,
}

impl Drop for SaveOnDrop {
    fn drop(&mut self) {
        let last = self.zone.state().keepers.load(Ordering::Acquire);
        if self.number == last && self.store.is_owner() {
            let path = self.zone.settings().path.display();
            let until = Instant::now() + STORE_MAX;
            while self.store.counts().fills > 0 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            let is_given_up = || self.unfinished.get().is_some_and(ExitBlocker::is_given_up);
            let saved = self.store.save_index_while(|| !is_given_up(), true, now());
            match saved {
                Ok(true) => {}
                Ok(false) => logs::event!(
                    Error,
                    "index of cache \"{path}\" was not saved in time, \
                     the one saved before stays"
                ),
                Err(error) => {
                    logs::event!(Error, "index of cache \"{path}\" not saved: {error}");
                }
            }
        }
    }
}

/// Maintains a cache forever. Only one process maintains a directory; others wait until that
/// process has ended.
async fn keep(at_end: SaveOnDrop, settings: CachePath) {
    if at_end.store.shrink_memory(now()) {
        engine::trim_now();
    }
    loop {
        keep_one(&at_end.store, &settings).await;
    }
}

/// Maintains a directory until it is removed.
async fn keep_one(store: &Arc<DiskStore>, settings: &CachePath) {
    while !store.try_acquire_ownership() {
        engine::sleep(INTERVAL).await;
    }
    let path = settings.path.display();
    match store.load_index(now()) {
        Ok(SavedIndex {
            entries,
            is_orderly: true,
        }) => logs::event!(Notice, "index of cache \"{path}\" read: {entries} entries"),
        Ok(SavedIndex { entries: 0, .. }) => {}
        Ok(SavedIndex { entries, .. }) => logs::event!(
            Notice,
            "index of cache \"{path}\" read: {entries} entries, the folder may hold others"
        ),
        Err(error) => {
            let error = logs::Errno(&error);
            logs::event!(Info, "index of cache \"{path}\" not read {error}");
        }
    }
    let mut scanner = store.scanner();
    while settings.loader.turn(|files| scanner.step(files, now())) {
        engine::sleep(settings.loader.sleep).await;
    }
    let mut saved = engine::now();
    let mut is_missing = false;
    loop {
        match store.ensure_folder() {
            Ok(FolderState::There) => {}
            Ok(FolderState::Replaced) => {
                let path = settings.path.display();
                logs::event!(Warn, "cache \"{path}\" was removed, and is begun anew");
                return;
            }
            Err(error) if !is_missing => {
                is_missing = true;
                let (path, error) = (settings.path.display(), logs::Errno(&error));
                logs::event!(
                    Crit,
                    "cache \"{path}\" was removed, and cannot be made anew {error}"
                );
            }
            Err(_) => {}
        }
        let manager = settings.manager;
        while manager.turn(|files| store.maintain(files, now()).is_more) {
            engine::sleep(manager.sleep).await;
        }
        if !is_missing && engine::now().saturating_duration_since(saved) >= SAVE_INTERVAL {
            if let Err(error) = store.save_index(false, now()) {
                logs::event!(Error, "index of cache \"{path}\" not saved: {error}");
            }
            saved = engine::now();
        }
        engine::sleep(INTERVAL).await;
    }
}
