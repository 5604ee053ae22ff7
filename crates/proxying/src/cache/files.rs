//! `proxy_cache_files`: the upstream serves a directory of this machine, so a check of the file
//! tells whether a cache entry is still current.
//!
//! Whether a response is a file is determined once: the file is checked before the upstream is
//! asked, and the response must have the length and the modification time (`Last-Modified`) of the
//! file. From then on the entry is current as long as one `stat()` finds the file unchanged, to the
//! nanosecond. The upstream is still asked at an interval (`recheck`), since its own rules for the
//! response may have changed.

use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::hash::Map;
use conf::{Arity, Contexts, Fault, Inherit, Setter, Setting, parse};
use framework::warm::SEEN_FOR;
use http::request::Request;
use proto::date;
use proto::header::KnownField;
use rustix::fs::{FileType, Stat};
use store::disk::EntryId;

use super::clock::now;
use crate::answer::AnswerHead;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

pub(super) static FILES: Setting<Option<Folder>> =
    Setting::new("proxy_cache_files", &["off", "path [recheck=time]"], folder)
        .contexts(HSL)
        .arity(Arity::between(1, 2))
        .inherit(Inherit::Value)
        .default("off")
        .manual("The folder of this machine that the upstream serves files of. An answer that has the length and the time (`Last-Modified`) of the file with its path is given for as long as that has not changed, which one look at it shows; one that has changed is fetched at once. After `recheck` (10s) the upstream is asked all the same, for rules of its own may have changed. Requests with a query and those with credentials that `proxy_cache_credentials` counts go by other rules.");

/// The directory of the directive, and how often the upstream is still asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folder {
    root: PathBuf,
    recheck: Duration,
}

/// The number of shards, each with its own lock.
const SHARDS: usize = 16;

/// The most files in a shard. Beyond that the shard is cleared.
const SHARD_FILES_MAX: usize = 16 * 1024;

/// A file that changed more recently than this may change again without a different modification
/// time.
const SETTLED: Duration = Duration::from_millis(100);

/// The directory of a scope, and its known files.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
    /// How often the upstream is asked although the file is unchanged, in milliseconds.
    recheck: u64,
    shards: [Mutex<Map<EntryId, Arc<KnownFile>>>; SHARDS],
}

/// A file whose content an entry has.
#[derive(Debug)]
struct KnownFile {
    path: PathBuf,
    identity: Identity,
    /// When the upstream was last asked, by [`now`].
    checked_at: AtomicU64,
    /// When the file was last checked, by [`now`].
    looked_at: AtomicU64,
}

/// The metadata that changes with every change of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    length: u64,
    /// Seconds since 1970, and nanoseconds.
    modified: (i64, i64),
    /// The time of the last change of the metadata, in the same form.
    changed: (i64, i64),
}

/// The identity of a file before the upstream was asked.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    path: PathBuf,
    identity: Identity,
}

/// The result of checking an entry's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The entry is not known to be a file, or the upstream must be asked again.
    Unknown,
    /// The entry matches the file.
    Confirmed,
    /// The file has changed.
    Changed,
}

impl Files {
    pub(super) fn new(folder: Folder) -> Files {
        Files {
            root: folder.root,
            recheck: u64::try_from(folder.recheck.as_millis()).unwrap_or(u64::MAX),
            shards: Default::default(),
        }
    }

    fn shard(&self, id: &EntryId) -> &Mutex<Map<EntryId, Arc<KnownFile>>> {
        let EntryId([first, ..]) = id;
        // There are as many shards as remainders.
        &self.shards[usize::from(*first) % SHARDS]
    }

    /// Checks the file of this entry.
    pub(super) async fn verdict(&self, id: &EntryId) -> Verdict {
        let shard = self.shard(id).lock();
        let known = shard
            .unwrap_or_else(PoisonError::into_inner)
            .get(id)
            .cloned();
        let Some(known) = known else {
            return Verdict::Unknown;
        };
        let now = now();
        let looked_at = known.looked_at.swap(now, Ordering::Relaxed);
        // The metadata of a file that was checked a moment ago is in the kernel's memory.
        let is_warm = u128::from(now.saturating_sub(looked_at)) <= SEEN_FOR.as_millis();
        let found = if is_warm {
            Identity::of(&known.path)
        } else {
            let known = Arc::clone(&known);
            engine::blocking(move || Identity::of(&known.path)).await
        };
        if found != Some(known.identity) {
            return Verdict::Changed;
        }
        let checked_at = known.checked_at.load(Ordering::Relaxed);
        if now.saturating_sub(checked_at) < self.recheck {
            Verdict::Confirmed
        } else {
            Verdict::Unknown
        }
    }

    /// Checks the file that the response to a request may be, before the upstream is asked for the
    /// entry.
    pub(super) async fn look(&self, id: &EntryId, request: &Request) -> Option<Seen> {
        if request.request_uri().contains(&b'?') || request.uri.contains(&0) {
            return None;
        }
        let mut path = self.root.clone().into_os_string().into_vec();
        path.extend_from_slice(&request.uri);
        if path.ends_with(b"/") {
            path.extend_from_slice(b"index.html");
        }
        let path = PathBuf::from(std::ffi::OsString::from_vec(path));
        let see = |path: PathBuf| {
            let identity = Identity::of(&path)?;
            Some(Seen { path, identity })
        };
        if self.was_just_looked_at(id, &path) {
            return see(path);
        }
        engine::blocking(move || see(path)).await
    }

    /// Whether the entry is known to be this file, and [`Files::verdict`] has checked the file a
    /// moment ago.
    fn was_just_looked_at(&self, id: &EntryId, path: &Path) -> bool {
        let shard = self.shard(id).lock();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        shard.get(id).is_some_and(|known| {
            let since = now().saturating_sub(known.looked_at.load(Ordering::Relaxed));
            known.path == *path && u128::from(since) <= SEEN_FOR.as_millis()
        })
    }

    /// Notes that the upstream has sent or confirmed the content of this entry, which is that of
    /// the file.
    pub(super) fn note(&self, id: EntryId, seen: &Seen) {
        let now = now();
        let known = Arc::new(KnownFile {
            path: seen.path.clone(),
            identity: seen.identity,
            checked_at: AtomicU64::new(now),
            looked_at: AtomicU64::new(now),
        });
        let shard = self.shard(&id).lock();
        let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
        if shard.len() >= SHARD_FILES_MAX && !shard.contains_key(&id) {
            shard.clear();
        }
        shard.insert(id, known);
    }

    /// Notes that the entry is not a file any more.
    pub(super) fn forget(&self, id: &EntryId) {
        let shard = self.shard(id).lock();
        shard.unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

impl Seen {
    /// Whether a response with this head and length is the file. False for a file that has changed
    /// within [`SETTLED`], since the next change may not be visible.
    pub(super) fn is(&self, head: &AnswerHead, length: Option<u64>) -> bool {
        let field = head.find(KnownField::LastModified);
        let modified = field.and_then(|field| date::parse_http(field.value(&head.bytes)));
        let (seconds, nanoseconds) = self.identity.modified;
        let age = engine::wall().saturating_sub(since_1970(seconds, nanoseconds));
        head.status() == 200
            && head.find(KnownField::ContentEncoding).is_none()
            && length == Some(self.identity.length)
            && modified == Some(seconds)
            && age >= SETTLED
    }
}

fn since_1970(seconds: i64, nanoseconds: i64) -> Duration {
    let seconds = u64::try_from(seconds).unwrap_or_default();
    Duration::new(seconds, u32::try_from(nanoseconds).unwrap_or_default())
}

impl Identity {
    /// The identity of a regular file.
    fn of(path: &Path) -> Option<Identity> {
        let found: Stat = rustix::fs::stat(path).ok()?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        is_file.then(|| Identity {
            device: found.st_dev,
            inode: found.st_ino,
            length: u64::try_from(found.st_size).unwrap_or_default(),
            modified: (found.st_mtime, found.st_mtime_nsec as i64),
            changed: (found.st_ctime, found.st_ctime_nsec as i64),
        })
    }
}

fn folder(setter: &Setter<'_>) -> Result<Option<Folder>, Fault> {
    let [path, rest @ ..] = setter.args() else {
        return Ok(None); // the arity has been checked
    };
    if rest.is_empty() && &*path.bytes == b"off" {
        return Ok(None);
    }
    let root = parse::path(setter)?;
    if !root.is_absolute() {
        return Err(Fault::at(
            path,
            format!("\"{}\" is no absolute path", path.text()),
        ));
    }
    let mut recheck = Duration::from_secs(10);
    if let Some(word) = rest.first() {
        let time = word.bytes.strip_prefix(b"recheck=");
        let time = time.ok_or_else(|| Fault::invalid_parameter(word))?;
        let milliseconds = parse::time_milliseconds(time)
            .ok_or_else(|| Fault::at(word, format!("invalid time value \"{}\"", word.text())))?;
        recheck = Duration::from_millis(milliseconds);
    }
    Ok(Some(Folder { root, recheck }))
}
