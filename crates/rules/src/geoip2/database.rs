//! A MaxMind database in memory, which is read again when its file changes.
//!
//! Threads share a database. A look-up holds a read lock only to copy a pointer. A changed file is
//! read on the thread pool while the old database stays in use; if the file cannot be read, the old
//! database stays.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use maxminddb::{PathElement, Reader};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// One word of a path into a record: the key of a map, or the index of a list.
pub(super) struct PathStep {
    key: String,
    /// The word as a list index, if it is a number; negative indices count from the end.
    index: Option<i64>,
}

impl PathStep {
    pub(super) fn new(text: &str) -> PathStep {
        PathStep {
            key: text.to_owned(),
            index: text.parse().ok(),
        }
    }

    /// The step as the key of a map.
    fn as_key(&self) -> PathElement<'_> {
        PathElement::Key(&self.key)
    }

    /// The step as the index of a list if it is a number, otherwise as the key of a map.
    fn as_place(&self) -> PathElement<'_> {
        match self.index {
            Some(index @ 0..) => PathElement::Index(index as usize),
            Some(index) => PathElement::IndexFromEnd((-(index + 1)) as usize),
            None => self.as_key(),
        }
    }
}

/// An open database, and when its file was last checked and changed.
pub(super) struct Database {
    path: PathBuf,
    /// How often the file is checked for changes; `None` for never.
    interval: Option<Duration>,
    reader: RwLock<Arc<Reader<Vec<u8>>>>,
    last_check: AtomicU64,
    last_change: AtomicU64,
    /// The modification time that the file had when it was read, in seconds since 1970.
    written: AtomicI64,
}

impl Database {
    /// A database from the bytes of the file at `path`.
    pub(super) fn new(
        path: PathBuf,
        bytes: Vec<u8>,
        interval: Option<Duration>,
    ) -> Result<Database, String> {
        let reader = Reader::from_source(bytes).map_err(|error| error.to_string())?;
        let now = engine::wall().as_secs();
        let written = engine::file::stat_now(&path).map_or(0, |metadata| metadata.mtime);
        Ok(Database {
            path,
            interval,
            reader: RwLock::new(Arc::new(reader)),
            last_check: AtomicU64::new(now),
            last_change: AtomicU64::new(now),
            written: AtomicI64::new(written),
        })
    }

    /// The value at a path in the record of an address, as text. Numbers in the path are taken as
    /// list indices first and, if that finds nothing, as keys.
    pub(super) fn find(&self, address: IpAddr, path: &[PathStep]) -> Option<String> {
        let reader = self.reader();
        let address = address.to_canonical();
        let record = reader.lookup(address).ok()?;
        let at = |step: fn(&PathStep) -> PathElement<'_>| {
            let path: Vec<PathElement<'_>> = path.iter().map(step).collect();
            record.decode_path::<Scalar>(&path).ok().flatten()?.0
        };
        at(PathStep::as_place).or_else(|| at(PathStep::as_key))
    }

    /// When the database was built, in seconds since 1970.
    pub(super) fn build_epoch(&self) -> u64 {
        self.reader().metadata().build_epoch
    }

    /// The type of the database, such as `GeoLite2-City`.
    pub(super) fn kind(&self) -> String {
        self.reader().metadata().database_type.clone()
    }

    /// When the file was last checked for changes, in seconds since 1970.
    pub(super) fn last_check(&self) -> u64 {
        self.last_check.load(Ordering::Relaxed)
    }

    /// When the database was last read, in seconds since 1970.
    pub(super) fn last_change(&self) -> u64 {
        self.last_change.load(Ordering::Relaxed)
    }

    /// Checks the file for changes, if the interval has passed since the last check. A changed file
    /// is read in the background, and used by later requests.
    pub(super) fn check(self: &Arc<Self>) {
        let Some(interval) = self.interval else {
            return;
        };
        let now = engine::wall().as_secs();
        let last = self.last_check.load(Ordering::Relaxed);
        if now.saturating_sub(last) < interval.as_secs() {
            return;
        }
        let order = Ordering::Relaxed;
        let mine = self.last_check.compare_exchange(last, now, order, order);
        if mine.is_ok() {
            let database = Arc::clone(self);
            engine::spawn(async move {
                let read = Arc::clone(&database);
                let outcome = engine::blocking(move || read.read_again()).await;
                if let Err(error) = outcome {
                    let path = database.path.display();
                    logs::event!(Error, "MMDB_open(\"{path}\") failed to reload - {error}");
                }
            });
        }
    }

    /// Reads the file again, if it has changed.
    fn read_again(&self) -> Result<(), String> {
        let metadata = engine::file::stat_now(&self.path).map_err(|error| error.to_string())?;
        if metadata.mtime == self.written.load(Ordering::Relaxed) {
            return Ok(());
        }
        let bytes = std::fs::read(&self.path).map_err(|error| error.to_string())?;
        let reader = Reader::from_source(bytes).map_err(|error| error.to_string())?;
        *self.reader.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(reader);
        self.written.store(metadata.mtime, Ordering::Relaxed);
        let now = engine::wall().as_secs();
        self.last_change.store(now, Ordering::Relaxed);
        logs::event!(Info, "Reload MMDB \"{}\"", self.path.display());
        Ok(())
    }

    fn reader(&self) -> Arc<Reader<Vec<u8>>> {
        let reader = self.reader.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&reader)
    }
}

/// A value of the database as text; `None` for maps and lists.
struct Scalar(Option<String>);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Scalar, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar(Some(u8::from(value).to_string())))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar(Some(value.to_string())))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar, E> {
        Ok(Scalar(Some(value.to_string())))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Scalar, E> {
        Ok(Scalar(Some(format!("0x{value:032x}"))))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar(Some(format!("{value:.5}"))))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar(Some(value.to_owned())))
    }

    fn visit_bytes<E: Error>(self, value: &[u8]) -> Result<Scalar, E> {
        Ok(Scalar(Some(String::from_utf8_lossy(value).into_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Scalar, A::Error> {
        Ok(Scalar(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Scalar, A::Error> {
        Ok(Scalar(None))
    }
}
