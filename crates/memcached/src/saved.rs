//! Saves all items to a file when the server ends, and restores them in the background when the
//! next server starts.
//!
//! ```text
//!  0  "TGMC" · version u32 · time of the wall clock u64 · time of the store's clock u32
//! 20  hash power u32 · next CAS u64 · checksum of the head u32
//! 36  records
//!     1 u8 · length of the key u16 · length of the value u32 · flags u32 · CAS u64
//!     expires u32 · last use u32 · marks u8 · length of the tags u16 · key · tags · value
//!     checksum of the record u32
//!     0 u8 · number of records u64
//! ```
//!
//! Numbers are little-endian. The next server's clock continues from the saved time plus the time
//! elapsed since, so times need no conversion. A file is removed when it is opened: it would be
//! outdated if the server crashed and started again. Everything after a damaged record is lost.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use store::{
    Cas, Content, Cursor, Item, Large, ObjectChange, Revision, Seconds, Tags, UpdateOutcome, Write,
};

use crate::cache::Cache;
use crate::lock::lock;
use crate::size_classes::item_size;
use crate::walk::Removed;

const MAGIC: [u8; 4] = *b"TGMC";

const VERSION: u32 = 2;

const HEAD: usize = 36;

/// Length of a record before its key, in bytes, without the leading 1.
const RECORD_HEAD: usize = 29;

/// Bit of the marks byte: the item has been read.
const READ: u8 = 0x80;

/// Size of the buffer for reading and for writing, in bytes.
const BUFFER: usize = 1 << 20;

/// Maximum number of changed keys that are remembered during a restore. With more, the rest of the
/// file is not restored.
const OVERTAKEN_MAX: usize = 1 << 20;

/// Remembers what clients change during a restore, so that the restore does not overwrite newer
/// values and does not bring deleted items back.
#[derive(Debug)]
pub(crate) struct Overtaken {
    is_under_way: AtomicBool,
    /// The time of a pending or past `flush_all`: from then on nothing is restored.
    until: AtomicU32,
    keys: Mutex<HashSet<u64>>,
    removed: Mutex<Vec<Removed>>,
    /// Whether more was changed than is remembered.
    is_lost: AtomicBool,
}

impl Default for Overtaken {
    fn default() -> Overtaken {
        Overtaken {
            is_under_way: AtomicBool::new(false),
            until: AtomicU32::new(Seconds::MAX),
            keys: Mutex::default(),
            removed: Mutex::default(),
            is_lost: AtomicBool::new(false),
        }
    }
}

impl Overtaken {
    #[inline]
    pub(crate) fn is_under_way(&self) -> bool {
        self.is_under_way.load(Ordering::Relaxed)
    }

    /// Notes a key that a client is about to change. Must be called before the change itself.
    #[cold]
    pub(crate) fn note(&self, key: &[u8]) {
        let mut keys = lock(&self.keys);
        if keys.len() >= OVERTAKEN_MAX {
            self.is_lost.store(true, Ordering::Relaxed);
        } else {
            keys.insert(base::hash::of(key));
        }
    }

    /// Starts remembering what clients change.
    pub(crate) fn begin(&self) {
        self.is_under_way.store(true, Ordering::Relaxed);
    }

    /// Whether more was changed than is remembered, so that nothing more is restored.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Notes a deletion by prefix or tag.
    pub(crate) fn note_removed(&self, what: &Removed) {
        if self.is_under_way() {
            let mut removed = lock(&self.removed);
            if removed.len() >= OVERTAKEN_MAX / 64 {
                self.is_lost.store(true, Ordering::Relaxed);
            } else if !removed.contains(what) {
                removed.push(what.clone());
            }
        }
    }

    /// Notes a `flush_all` that takes effect at this time.
    pub(crate) fn note_flush(&self, at: Seconds) {
        self.until.fetch_min(at, Ordering::Relaxed);
    }

    fn concerns(&self, key: &[u8], tags: &[u8], now: Seconds) -> bool {
        self.is_lost()
            || now >= self.until.load(Ordering::Relaxed)
            || lock(&self.keys).contains(&base::hash::of(key))
            || lock(&self.removed)
                .iter()
                .any(|removed| removed.concerns(key, tags))
    }

    pub(crate) fn end(&self) {
        self.is_under_way.store(false, Ordering::Relaxed);
        *lock(&self.keys) = HashSet::new();
        *lock(&self.removed) = Vec::new();
    }
}

fn wall() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// Writes all items to a file and returns their number. The file appears under its name only when
/// it is complete.
///
/// # Errors
/// Those of the file system.
pub fn save(cache: &Cache, path: &Path, now: Instant) -> io::Result<u64> {
    save_while(cache, path, now, || true).map(Option::unwrap_or_default)
}

/// As [`save`], but gives up as soon as `goes_on`, called every few items, returns false. Returns
/// `None` then, and leaves no file.
pub(crate) fn save_while(
    cache: &Cache,
    path: &Path,
    now: Instant,
    goes_on: impl Fn() -> bool,
) -> io::Result<Option<u64>> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    let written = write(cache, &unfinished, cache.seconds(now), goes_on);
    let finished = written.and_then(|count| match count {
        Some(count) => fs::rename(&unfinished, path).map(|()| Some(count)),
        None => Ok(None),
    });
    if !matches!(finished, Ok(Some(_))) {
        let _ = fs::remove_file(&unfinished);
    }
    finished
}

fn write(
    cache: &Cache,
    path: &Path,
    now: Seconds,
    goes_on: impl Fn() -> bool,
) -> io::Result<Option<u64>> {
    let _ = fs::remove_file(path); // left over by a run that was killed
    let file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let mut out = BufWriter::with_capacity(BUFFER, file);
    let mut head = Vec::with_capacity(HEAD);
    head.extend_from_slice(&MAGIC);
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&wall().to_le_bytes());
    head.extend_from_slice(&now.to_le_bytes());
    head.extend_from_slice(&cache.hash_power().to_le_bytes());
    head.extend_from_slice(&cache.store.next_cas().to_le_bytes());
    head.extend_from_slice(&crc32fast::hash(&head).to_le_bytes());
    out.write_all(&head)?;
    let (mut cursor, mut count, mut records) = (Some(Cursor::default()), 0_u64, Vec::new());
    while let Some(from) = cursor {
        if !goes_on() {
            return Ok(None);
        }
        records.clear();
        cursor = cache.store.visit(from, now, |item| {
            append(&item, &mut records);
            count += 1;
        });
        out.write_all(&records)?;
    }
    out.write_all(&[0])?;
    out.write_all(&count.to_le_bytes())?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(Some(count))
}

fn append(item: &Item<'_>, out: &mut Vec<u8>) {
    out.push(1);
    let begin = out.len();
    let read = if item.is_read { READ } else { 0 };
    out.extend_from_slice(&(item.key.len() as u16).to_le_bytes());
    out.extend_from_slice(&(item.value.len() as u32).to_le_bytes());
    out.extend_from_slice(&item.flags.to_le_bytes());
    out.extend_from_slice(&item.cas.to_le_bytes());
    out.extend_from_slice(&item.expires.unwrap_or(0).to_le_bytes());
    out.extend_from_slice(&item.used.to_le_bytes());
    out.push(item.marks | read);
    out.extend_from_slice(&(item.tags.len() as u16).to_le_bytes());
    out.extend_from_slice(item.key);
    out.extend_from_slice(item.tags);
    out.extend_from_slice(item.value.bytes());
    let checksum = crc32fast::hash(out.get(begin..).unwrap_or_default());
    out.extend_from_slice(&checksum.to_le_bytes());
}

/// An opened file whose items are to be restored.
#[derive(Debug)]
pub struct SavedItems {
    file: BufReader<File>,
    /// Seconds that the cache's clock is ahead of the file's clock.
    shift: i64,
}

/// The outcome of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoredCounts {
    /// Restored items.
    pub restored: u64,
    /// Items that were not restored: they have expired, were changed by clients meanwhile, or
    /// exceed the size limit.
    pub left_out: u64,
    /// Whether the file was truncated or damaged, so that the items after that place are lost.
    pub is_damaged: bool,
}

/// Opens the file of an earlier server; the cache's clock and CAS continue from the saved ones.
/// `None` if there is no file. Must be called before the cache has a client.
///
/// # Errors
/// The file cannot be read, or was not written by [`save`].
pub fn open(cache: &Cache, path: &Path) -> Result<Option<SavedItems>, String> {
    let Some((file, head)) = take(path)? else {
        return Ok(None);
    };
    cache.go_on_from(head.clock_now(), head.hash_power);
    cache.store.raise_cas(head.next_cas);
    cache.overtaken().begin();
    Ok(Some(SavedItems { file, shift: 0 }))
}

/// As [`open`], for a cache that may have clients already: its clock is unchanged, and the times of
/// restored items are converted.
pub(crate) fn open_beside(cache: &Cache, path: &Path) -> Result<Option<SavedItems>, String> {
    let Some((file, head)) = take(path)? else {
        return Ok(None);
    };
    cache.keep_hash_power(head.hash_power);
    cache.store.raise_cas(head.next_cas);
    let now = i64::from(cache.seconds(Instant::now()));
    let shift = now - i64::from(head.clock_now());
    Ok(Some(SavedItems { file, shift }))
}

/// The head of a file.
struct FileHead {
    /// When the file was written, in seconds of Unix time.
    saved_at: u64,
    /// When the file was written, by the store's clock.
    clock: Seconds,
    hash_power: u32,
    next_cas: u64,
}

impl FileHead {
    /// The present time by the clock of the store that was saved.
    fn clock_now(&self) -> Seconds {
        let passed = wall().saturating_sub(self.saved_at);
        let passed = Seconds::try_from(passed).unwrap_or(Seconds::MAX);
        self.clock.saturating_add(passed)
    }
}

/// Opens a file, reads its head and removes it. `None` if there is no file.
fn take(path: &Path) -> Result<Option<(BufReader<File>, FileHead)>, String> {
    let failed = |error: io::Error| format!("{} cannot be read: {error}", path.display());
    let mut file = match File::open(path) {
        Ok(file) => BufReader::with_capacity(BUFFER, file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut head = [0; HEAD];
    let is_whole = file.read_exact(&mut head).is_ok();
    let mut fields = RecordFields(&head);
    let (magic, version) = (fields.take::<4>(), u32::from_le_bytes(fields.take()));
    let saved_at = u64::from_le_bytes(fields.take());
    let clock = u32::from_le_bytes(fields.take());
    let hash_power = u32::from_le_bytes(fields.take());
    let next_cas = u64::from_le_bytes(fields.take());
    let checksum = u32::from_le_bytes(fields.take());
    let is_right = crc32fast::hash(head.get(..HEAD - 4).unwrap_or_default()) == checksum;
    if !is_whole || magic != MAGIC || version != VERSION || !is_right {
        return Err(format!(
            "{} holds no items that this version has saved; remove it to begin empty",
            path.display()
        ));
    }
    fs::remove_file(path).map_err(failed)?;
    let head = FileHead {
        saved_at,
        clock,
        hash_power,
        next_cas,
    };
    Ok(Some((file, head)))
}

impl SavedItems {
    /// Restores all items, while the cache serves clients.
    pub fn restore(mut self, cache: &Cache) -> RestoredCounts {
        let counts = RestoredCounts::default();
        let counts = self.read(cache, counts);
        cache.overtaken().end();
        counts
    }

    fn read(&mut self, cache: &Cache, mut counts: RestoredCounts) -> RestoredCounts {
        let damaged = |counts: RestoredCounts| RestoredCounts {
            is_damaged: true,
            ..counts
        };
        let mut record = Vec::new();
        loop {
            let mut mark = [0];
            if self.file.read_exact(&mut mark).is_err() {
                return damaged(counts);
            }
            if mark == [0] {
                let mut total = [0; 8];
                let is_whole = self.file.read_exact(&mut total).is_ok();
                let known = counts.restored + counts.left_out;
                return if is_whole && u64::from_le_bytes(total) == known {
                    counts
                } else {
                    damaged(counts)
                };
            }
            if mark != [1] || self.next(&mut record).is_err() {
                return damaged(counts);
            }
            if restore(&record, cache, self.shift) {
                counts.restored += 1
            } else {
                counts.left_out += 1
            }
        }
    }

    /// Reads the next record and verifies its checksum.
    fn next(&mut self, record: &mut Vec<u8>) -> io::Result<()> {
        record.resize(RECORD_HEAD, 0);
        self.file.read_exact(record)?;
        let mut fields = RecordFields(record);
        let key = u64::from(u16::from_le_bytes(fields.take()));
        let value = u64::from(u32::from_le_bytes(fields.take()));
        let _: [u8; RECORD_HEAD - 8] = fields.take();
        let tags = u64::from(u16::from_le_bytes(fields.take()));
        // `take` and `read_to_end` allocate for the bytes that exist, not for a damaged length.
        let length = key + tags + value;
        let got = (&mut self.file).take(length).read_to_end(record)?;
        let mut checksum = [0; 4];
        self.file.read_exact(&mut checksum)?;
        if got as u64 != length || crc32fast::hash(record) != u32::from_le_bytes(checksum) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(())
    }
}

/// Restores an item, unless it has expired or a client has changed it. Returns whether it was
/// restored.
fn restore(record: &[u8], cache: &Cache, shift: i64) -> bool {
    let mut fields = RecordFields(record);
    let key_length = usize::from(u16::from_le_bytes(fields.take()));
    let _value_length: [u8; 4] = fields.take();
    let flags = u32::from_le_bytes(fields.take());
    let cas = u64::from_le_bytes(fields.take());
    let shifted = |time: u32| {
        let time = (i64::from(time) + shift).clamp(1, i64::from(Seconds::MAX));
        Seconds::try_from(time).unwrap_or(Seconds::MAX)
    };
    let expires = match u32::from_le_bytes(fields.take()) {
        0 => 0,
        expires => shifted(expires),
    };
    let used = shifted(u32::from_le_bytes(fields.take()));
    let [marks] = fields.take();
    let tags_length = usize::from(u16::from_le_bytes(fields.take()));
    let Some((key, rest)) = fields.0.split_at_checked(key_length) else {
        return false;
    };
    let Some((tags, value)) = rest.split_at_checked(tags_length) else {
        return false;
    };
    let now = cache.seconds(Instant::now());
    let is_over = expires != 0 && expires <= now;
    if is_over || item_size(key.len(), flags, value.len() + tags.len()) > cache.settings.item_max {
        return false;
    }
    let mut large = None;
    if value.len() >= cache.store.extent_min() {
        let mut copied = Large::new(key, value.len());
        copied.extend(value);
        large = Some(copied);
    }
    let outcome = cache.store.update(key, now, |item| {
        let overtaken = cache.overtaken();
        if item.is_some() || overtaken.concerns(key, tags, now) {
            return ObjectChange::Keep;
        }
        ObjectChange::Write(Write {
            content: large.map_or(Content::Copied(value), Content::Given),
            flags,
            expires: (expires != 0).then_some(expires),
            cas: Cas::Given(cas),
            marks: marks & !READ,
            tags: Tags::Given(tags),
        })
    });
    let is_stored = matches!(outcome, UpdateOutcome::Stored(_));
    if is_stored {
        let revision = Revision {
            used: Some((used, marks & READ != 0)),
            ..Revision::default()
        };
        cache.store.update(key, now, |item| match item {
            // Unless a client has used or changed the item already.
            Some(item) if item.cas == cas && !item.is_read => ObjectChange::Revise(revision),
            _ => ObjectChange::Keep,
        });
    }
    is_stored
}

/// Reads fixed-size fields from the front of a slice.
struct RecordFields<'a>(&'a [u8]);

impl RecordFields<'_> {
    /// The next field; zeros if the slice is too short.
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.0 = rest;
                *taken
            }
            None => {
                self.0 = &[];
                [0; N]
            }
        }
    }
}

/// Restores items in a new thread, and passes the outcome to `tell`. Returns the thread's handle.
///
/// # Errors
/// The thread cannot be started.
pub fn restore_beside(
    saved: SavedItems,
    cache: &Arc<Cache>,
    tell: impl FnOnce(RestoredCounts) + Send + 'static,
) -> io::Result<std::thread::JoinHandle<()>> {
    let cache = Arc::clone(cache);
    std::thread::Builder::new()
        .name("memcached restore".to_owned())
        .spawn(move || tell(saved.restore(&cache)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Settings, ThreadContext};
    use crate::testing::{Client, settings};

    fn path() -> PathBuf {
        static FILES: AtomicU32 = AtomicU32::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-saved-{}-{number}", std::process::id());
        std::env::temp_dir().join(name)
    }

    fn cache(path: &Path) -> Arc<Cache> {
        let settings = Settings {
            memory_file: Some(path.to_owned()),
            ..settings()
        };
        Arc::new(Cache::new(settings, Instant::now(), Box::new(|_| {})))
    }

    fn ask(cache: &Arc<Cache>, input: &[u8]) -> String {
        let shared = ThreadContext::new(Arc::clone(cache));
        let mut client = Client::new();
        let moment = crate::cache::CommandTime {
            now: cache.seconds(Instant::now()),
            wall: wall(),
        };
        client.send(&shared, moment, input);
        String::from_utf8(client.answers).unwrap()
    }

    fn saved(input: &[u8]) -> PathBuf {
        let path = path();
        let cache = cache(&path);
        ask(&cache, input);
        save(&cache, &path, Instant::now()).unwrap();
        path
    }

    #[test]
    fn items_are_there_again_with_all_that_stands_beside_them() {
        let path = path();
        let before = cache(&path);
        let large = "x".repeat(100_000);
        let input = format!(
            "set a 7 0 3\r\nabc\r\nset b 0 500 1\r\nb\r\nset large 1 0 100000\r\n{large}\r\n\
             ms c2V0 1 b I\r\n1\r\nset gone 0 -1 1\r\n1\r\nget a\r\n"
        );
        ask(&before, input.as_bytes());
        let tell =
            b"mg a s f c h t v\r\nmg b c v\r\nmg large s v\r\nmg c2V0 b k v\r\nmg gone v\r\n";
        // A use by the question itself is a use, too.
        let expected = ask(&before, tell).replace("h0", "h1");
        save(&before, &path, Instant::now()).unwrap();
        let after = cache(&path);
        let saved = open(&after, &path).unwrap().unwrap();
        assert!(!path.exists());
        let counts = saved.restore(&after);
        assert_eq!((counts.restored, counts.is_damaged), (4, false));
        assert_eq!(ask(&after, tell), expected);
        let told = ask(&after, b"set new 0 0 1\r\n1\r\ngets new a\r\n");
        let cas = |line: usize| -> u64 {
            let line = told.lines().nth(line).unwrap();
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        assert!(cas(1) > cas(3), "{told}");
        assert!(open(&after, &path).unwrap().is_none());
    }

    #[test]
    fn what_clients_change_meanwhile_stays_changed() {
        let path = saved(
            b"set a 0 0 1\r\n1\r\nset b 0 0 1\r\n1\r\nset p:c 0 0 1\r\n1\r\nset d 0 0 1\r\n1\r\n\
              ms t 1 G(x,y)\r\n1\r\nms u 1 G(z)\r\n1\r\n",
        );
        let after = cache(&path);
        let saved = open(&after, &path).unwrap().unwrap();
        ask(
            &after,
            b"set a 0 0 1\r\n2\r\ndelete b\r\ndelete_prefix p:\r\ndelete_tag y\r\n",
        );
        let counts = saved.restore(&after);
        assert_eq!((counts.restored, counts.left_out), (2, 4));
        let expected = "VALUE a 0 1\r\n2\r\nVALUE d 0 1\r\n1\r\nEND\r\n";
        assert_eq!(ask(&after, b"get a b p:c d\r\n"), expected);
    }

    #[test]
    fn a_flush_meanwhile_flushes_what_is_still_to_come() {
        let path = saved(b"set a 0 0 1\r\n1\r\n");
        let after = cache(&path);
        let saved = open(&after, &path).unwrap().unwrap();
        ask(&after, b"flush_all\r\n");
        assert_eq!(saved.restore(&after).restored, 0);
        assert_eq!(ask(&after, b"get a\r\n"), "END\r\n");
    }

    #[test]
    fn damage_at_any_place_is_found() {
        let path = saved(b"set a 0 0 3\r\nabc\r\nset b 0 0 3\r\ndef\r\n");
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x41;
            fs::write(&path, &damaged).unwrap();
            let after = cache(&path);
            match open(&after, &path) {
                Err(text) => assert!(at < HEAD && text.contains("remove it"), "{at}: {text}"),
                Ok(saved) => {
                    let counts = saved.unwrap().restore(&after);
                    assert!(counts.is_damaged && at >= HEAD, "{at}");
                    let told = ask(&after, b"get a b\r\n");
                    for value in ["abc", "def"] {
                        assert_eq!(
                            told.matches(value).count(),
                            told.matches(value).count().min(1)
                        );
                    }
                    assert!(counts.restored <= 2);
                }
            }
            fs::write(&path, &whole[..at]).unwrap();
            match open(&after, &path) {
                Err(_) => assert!(at < HEAD),
                Ok(saved) => assert!(saved.unwrap().restore(&cache(&path)).is_damaged),
            }
        }
        let _ = fs::remove_file(&path);
    }
}
