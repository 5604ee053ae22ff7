//! Locks of WebDAV (RFC 4918, section 6): exclusive write locks, in a zone that all threads share.
//!
//! A lock belongs to a path on the disk, so that two URIs of one file share it. A lock ends when
//! its time is over, with UNLOCK, or when the last process that knows the lock ends. One mutex
//! guards a zone; nothing blocks under it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use framework::handover::{StateReader, StateWriter, Unfit};
use framework::zone::{State, ZoneBudget, ZoneFact, ZoneFactSink};

/// The memory of a lock besides its texts, in bytes.
const ENTRY_SIZE: usize = 128;

/// A lock on a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lock {
    /// The lock's token, a URI.
    pub(super) token: Box<str>,
    /// The client's description of the owner, as XML.
    pub(super) owner: Box<str>,
    /// Whether everything below a collection is locked too.
    pub(super) infinite: bool,
    /// When the lock ends, unless it is refreshed before.
    pub(super) expires: Instant,
    /// The URI for which the lock was made, escaped.
    pub(super) root: Box<str>,
}

/// The settings of a zone.
pub(super) struct LockSettings {
    /// How long a lock lasts if it is not refreshed.
    pub(super) timeout: Duration,
}

/// Why a lock was not granted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LockError {
    /// Another lock conflicts.
    Locked,
    /// The zone is full.
    NoRoom,
}

/// The locks of a zone.
pub(super) struct Locks(Mutex<Table>);

/// The locks of a zone, and its free memory.
struct Table {
    by_path: BTreeMap<Vec<u8>, Lock>,
    /// The earliest time at which a lock ends.
    next_end: Option<Instant>,
    room: ZoneBudget,
}

impl State for Locks {
    const KIND: &'static str = "dav_ext_lock";

    type Settings = LockSettings;

    fn new(size: u64) -> Locks {
        Locks(Mutex::new(Table {
            by_path: BTreeMap::new(),
            next_end: None,
            room: ZoneBudget::new(size, 64),
        }))
    }

    const SAVED_VERSION: Option<u64> = Some(1);

    fn save(&self, _: &LockSettings, out: &mut StateWriter) {
        for (path, lock) in &self.table(engine::now()).by_path {
            out.text(path);
            for text in [&lock.token, &lock.owner, &lock.root] {
                out.text(text.as_bytes());
            }
            out.number(u64::from(lock.infinite));
            out.moment(lock.expires);
        }
    }

    fn restore(&self, _: &LockSettings, saved: &mut StateReader<'_>) -> Result<(), Unfit> {
        let mut locks = Vec::new();
        while !saved.is_empty() {
            let path = saved.text()?;
            let [token, owner, root] = [saved.string()?, saved.string()?, saved.string()?];
            let lock = Lock {
                token: token.into(),
                owner: owner.into(),
                root: root.into(),
                infinite: saved.number()? == 1,
                expires: saved.moment()?,
            };
            locks.push((path, lock));
        }
        let now = engine::now();
        for (path, lock) in locks {
            // All locks fit, since the zone has the same size as before.
            let _ = self.lock(path, lock, now);
        }
        Ok(())
    }

    fn describe(&self, settings: &LockSettings, tell: &mut ZoneFactSink<'_>) {
        tell("timeout", ZoneFact::Number(settings.timeout.as_secs()));
        tell(
            "locks",
            ZoneFact::Number(self.table(engine::now()).by_path.len() as u64),
        );
    }
}

impl Lock {
    fn size(&self, path: &[u8]) -> usize {
        ENTRY_SIZE + path.len() + self.token.len() + self.owner.len() + self.root.len()
    }
}

impl Table {
    /// Removes the locks whose time is over.
    fn expire(&mut self, now: Instant) {
        let Table { by_path, room, .. } = self;
        by_path.retain(|path, lock| {
            let holds = lock.expires > now;
            if !holds {
                room.give(lock.size(path));
            }
            holds
        });
        self.next_end = self.by_path.values().map(|lock| lock.expires).min();
    }

    fn remove(&mut self, path: &[u8]) {
        if let Some(lock) = self.by_path.remove(path) {
            self.room.give(lock.size(path));
        }
    }

    /// The lock that covers a path: the path's own, or one of infinite depth above.
    fn covering(&self, path: &[u8]) -> Option<(&[u8], &Lock)> {
        if let Some((path, lock)) = self.by_path.get_key_value(path) {
            return Some((path, lock));
        }
        let ends = memchr::memrchr_iter(b'/', path);
        ends.filter_map(|end| self.by_path.get_key_value(path.get(..end)?))
            .find(|(_, lock)| lock.infinite)
            .map(|(path, lock)| (&**path, lock))
    }

    /// The locks of all paths below a path.
    fn below(&self, path: &[u8]) -> impl Iterator<Item = (&Vec<u8>, &Lock)> {
        let prefix = [path, b"/"].concat();
        let from = Bound::Included(prefix.clone());
        self.by_path
            .range((from, Bound::Unbounded))
            .take_while(move |(path, _)| path.starts_with(&prefix))
    }
}

impl Locks {
    fn table(&self, now: Instant) -> MutexGuard<'_, Table> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.next_end.is_some_and(|end| end <= now) {
            table.expire(now);
        }
        table
    }

    /// The lock that covers a path.
    pub(super) fn find(&self, path: &[u8], now: Instant) -> Option<Lock> {
        let table = self.table(now);
        table.covering(path).map(|(_, lock)| lock.clone())
    }

    /// The tokens that a client must know to change a path; `below` if everything below the path is
    /// changed too, `member` if its parent directory is changed.
    pub(super) fn tokens(
        &self,
        path: &[u8],
        below: bool,
        member: bool,
        now: Instant,
    ) -> Vec<Box<str>> {
        let table = self.table(now);
        let mut tokens: Vec<Box<str>> = Vec::new();
        tokens.extend(table.covering(path).map(|(_, lock)| lock.token.clone()));
        if member && let Some(end) = memchr::memrchr(b'/', path) {
            let folder = path.get(..end).unwrap_or_default();
            tokens.extend(table.by_path.get(folder).map(|lock| lock.token.clone()));
        }
        if below {
            tokens.extend(table.below(path).map(|(_, lock)| lock.token.clone()));
        }
        tokens
    }

    pub(super) fn lock(&self, path: &[u8], lock: Lock, now: Instant) -> Result<(), LockError> {
        let mut table = self.table(now);
        let in_the_way =
            table.covering(path).is_some() || (lock.infinite && table.below(path).next().is_some());
        if in_the_way {
            return Err(LockError::Locked);
        }
        if !table.room.take(lock.size(path)) {
            return Err(LockError::NoRoom);
        }
        let end = lock.expires;
        table.next_end = Some(table.next_end.map_or(end, |next| next.min(end)));
        table.by_path.insert(path.to_vec(), lock);
        Ok(())
    }

    /// Extends the lock that covers the path until `expires`; `None` if there is no lock, or if its
    /// token is none of these.
    pub(super) fn refresh(
        &self,
        path: &[u8],
        tokens: &[&[u8]],
        now: Instant,
        expires: Instant,
    ) -> Option<Lock> {
        let mut table = self.table(now);
        let (root, lock) = table.covering(path)?;
        if !tokens.contains(&lock.token.as_bytes()) {
            return None;
        }
        let root = root.to_vec();
        let lock = table.by_path.get_mut(&root)?;
        lock.expires = expires;
        Some(lock.clone())
    }

    /// Removes the lock that covers a path, if it has this token.
    pub(super) fn unlock(&self, path: &[u8], token: &[u8], now: Instant) -> bool {
        let mut table = self.table(now);
        let found = table.covering(path);
        let found = found.filter(|(_, lock)| lock.token.as_bytes() == token);
        let Some(root) = found.map(|(root, _)| root.to_vec()) else {
            return false;
        };
        table.remove(&root);
        true
    }

    /// Removes the locks of a path that has been deleted, and of everything below it.
    pub(super) fn forget(&self, path: &[u8], now: Instant) {
        let mut table = self.table(now);
        let gone: Vec<Vec<u8>> = table.below(path).map(|(path, _)| path.clone()).collect();
        gone.iter().for_each(|path| table.remove(path));
        table.remove(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(token: &str, infinite: bool, expires: Instant) -> Lock {
        Lock {
            token: token.into(),
            owner: "".into(),
            infinite,
            expires,
            root: "/".into(),
        }
    }

    #[test]
    fn a_lock_holds_until_its_time_or_its_end() {
        let (locks, now) = (Locks::new(64 * 1024), Instant::now());
        let later = now + Duration::from_secs(60);
        assert_eq!(locks.lock(b"/a/b", lock("t1", false, later), now), Ok(()));
        assert_eq!(
            locks.lock(b"/a/b", lock("t2", false, later), now),
            Err(LockError::Locked)
        );
        assert_eq!(
            locks.lock(b"/a", lock("t2", true, later), now),
            Err(LockError::Locked)
        );
        assert_eq!(locks.tokens(b"/a", true, false, now), ["t1".into()]);
        assert!(locks.find(b"/a/b/c", now).is_none());
        assert!(!locks.unlock(b"/a/b", b"t2", now));
        assert!(locks.find(b"/a/b", later).is_none());
        assert_eq!(locks.lock(b"/a", lock("t3", true, later), now), Ok(()));
        assert!(locks.find(b"/a/b/c", now).is_some());
        assert!(locks.find(b"/ab", now).is_none());
        let longer = later + Duration::from_secs(60);
        assert!(locks.refresh(b"/a/b", &[b"t3"], now, longer).is_some());
        assert!(locks.find(b"/a", later).is_some());
        assert!(locks.unlock(b"/a/b", b"t3", now));
        assert!(locks.find(b"/a", now).is_none());
    }

    #[test]
    fn a_full_zone_takes_no_more() {
        let (locks, now) = (Locks::new(32 * 1024), Instant::now());
        let later = now + Duration::from_secs(60);
        let made = (0..10_000)
            .take_while(|n| {
                let path = format!("/{n}").into_bytes();
                locks.lock(&path, lock("t", false, later), now).is_ok()
            })
            .count();
        assert!(made > 10 && made < 10_000, "{made}");
        assert_eq!(locks.lock(b"/x", lock("t", false, later), later), Ok(()));
    }
}
