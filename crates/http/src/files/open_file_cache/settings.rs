//! The directives `open_file_cache` and its family.

use std::time::Duration;

use conf::{Arity, Contexts, Declared, Fault, ScopeId, ScopeRef, Setter, Setting, parse};
use framework::compile::{Compiler, Feature};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// How long an unused entry stays, unless `inactive=` is set.
const INACTIVE_DEFAULT: Duration = Duration::from_secs(60);

/// `open_file_cache max=N [inactive=TIME] | off`
pub static OPEN_FILE_CACHE: Setting<Option<Bounds>> =
    Setting::new("open_file_cache", &["off", "max=N [inactive=time]"], bounds)
        .contexts(HSL)
        .arity(Arity::between(1, 2))
        .default("off")
        .manual(
            "Keeps descriptors, sizes and times of modification of files, the existence of directories \
             and, with `open_file_cache_errors on`, failed look-ups. Each worker thread holds up to `max` \
             entries; the one least recently used gives way. An entry that was not used for `inactive` \
             (60s) is dropped.",
        );

/// Declares the directive `open_file_cache_valid TIME`.
pub static OPEN_FILE_CACHE_VALID: Setting<Duration> =
    Setting::new("open_file_cache_valid", &["time"], parse::seconds)
        .contexts(HSL)
        .default("60s")
        .manual("After this time the file of an entry is looked at again when it is next used.");

/// Declares the directive `open_file_cache_min_uses NUMBER`.
pub static OPEN_FILE_CACHE_MIN_USES: Setting<u64> =
    Setting::new("open_file_cache_min_uses", &["number"], parse::number)
        .contexts(HSL)
        .default("1")
        .manual("A descriptor stays open after its file was asked for this many times.");

/// `open_file_cache_errors on | off`
pub static OPEN_FILE_CACHE_ERRORS: Setting<bool> =
    Setting::new("open_file_cache_errors", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("off")
        .manual("Remembers look-ups that failed, too.");

/// `open_file_cache_events on | off`
pub static OPEN_FILE_CACHE_EVENTS: Setting<bool> =
    Setting::new("open_file_cache_events", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("off")
        .no_effect(
            "entries are checked by time; nginx watches files by kqueue only, which Linux lacks",
        )
        .manual("Would learn of changes from the kernel instead of looking at files again.");

/// The bounds of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of entries per worker thread.
    pub entries_max: usize,
    /// How long an entry stays without being used.
    pub inactive: Duration,
}

/// `open_file_cache` and its family, in one scope.
#[derive(Debug)]
pub struct OpenFileCache {
    /// The scope that declares the cache, and the cache's bounds; `None` if it is off.
    pub(super) cache: Option<(ScopeId, Bounds)>,
    /// How long an entry is used without a check.
    pub(super) valid: Duration,
    /// The value of `open_file_cache_min_uses` in this scope.
    pub(super) min_uses: u64,
    /// Whether errors are cached too (`open_file_cache_errors`).
    pub(super) errors: bool,
}

impl OpenFileCache {
    /// How long an entry is used without a check; `None` if the cache is off.
    pub fn valid(&self) -> Option<Duration> {
        self.cache.map(|_| self.valid)
    }

    /// Whether errors are cached too.
    pub fn keeps_errors(&self) -> bool {
        self.errors
    }
}

impl Feature for OpenFileCache {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &OPEN_FILE_CACHE,
        &OPEN_FILE_CACHE_VALID,
        &OPEN_FILE_CACHE_MIN_USES,
        &OPEN_FILE_CACHE_ERRORS,
        &OPEN_FILE_CACHE_EVENTS,
    ];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        // Scopes that only change the validity share the cache of the outer scope.
        let owner = scope.owner(&[&OPEN_FILE_CACHE]).id();
        Ok(OpenFileCache {
            cache: scope.get(&OPEN_FILE_CACHE)?.map(|bounds| (owner, bounds)),
            valid: scope.get(&OPEN_FILE_CACHE_VALID)?,
            min_uses: scope.get(&OPEN_FILE_CACHE_MIN_USES)?,
            errors: scope.get(&OPEN_FILE_CACHE_ERRORS)?,
        })
    }
}

fn bounds(setter: &Setter<'_>) -> Result<Option<Bounds>, Fault> {
    let line = setter.first();
    let mut entries_max = None;
    let mut inactive = INACTIVE_DEFAULT;
    let mut off = false;
    for word in &line.args {
        let invalid = || {
            Fault::at(
                word,
                format!("invalid \"open_file_cache\" parameter \"{}\"", word.text()),
            )
        };
        let bytes: &[u8] = &word.bytes;
        if let Some(number) = bytes.strip_prefix(b"max=") {
            let number = std::str::from_utf8(number)
                .ok()
                .and_then(|text| text.parse().ok());
            entries_max = Some(
                number
                    .filter(|&number: &usize| number > 0)
                    .ok_or_else(invalid)?,
            );
        } else if let Some(time) = bytes.strip_prefix(b"inactive=") {
            inactive = Duration::from_secs(parse::time_seconds(time).ok_or_else(invalid)?);
        } else if bytes == b"off" {
            off = true;
        } else {
            return Err(invalid());
        }
    }
    match entries_max {
        _ if off => Ok(None),
        Some(entries_max) => Ok(Some(Bounds {
            entries_max,
            inactive,
        })),
        None => Err(Fault::new(
            "\"open_file_cache\" must have the \"max\" parameter",
        )),
    }
}
