//! The sessions of `sticky learn`, and the servers to which they are bound.
//!
//! A zone holds as many sessions as nginx's zone of the same size. A full zone evicts the least
//! recently used session. An expired session is no longer found, but its memory is freed lazily:
//! each access removes up to `EXPIRED_AT_ONCE_MAX` expired sessions.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::hash::Map;
use bytes::Bytes;
use framework::handover::{StateReader, StateWriter, Unfit};
use framework::zone::{State, Zone, ZoneBudget, ZoneFact, ZoneFactSink};
use md5::{Digest, Md5};

/// Size of an entry in nginx, in bytes: two tree nodes, a hash, a time, and a server's name with
/// its length.
const ENTRY_SIZE: usize = 144;

/// Size of nginx's header of a zone, in bytes: one page.
const HEAD_SIZE: u64 = 4096;

/// Maximum number of expired sessions that one access removes, so that no request holds the lock
/// for long.
const EXPIRED_AT_ONCE_MAX: usize = 32;

/// Maximum number of sessions that are copied at once while the lock is held, when the state is
/// saved for the next process.
const SAVED_AT_ONCE: usize = 1024;

/// The key of a session: the MD5 hash of its id.
type Key = [u8; 16];

/// When a session was last used, and a sequence number, which makes the pair unique.
type Used = (Instant, u64);

/// The settings of a zone, from its `sticky learn` line.
#[derive(Debug)]
pub(super) struct LearnSettings {
    /// The `upstream` block's name as written.
    pub(super) host: String,
    /// How long an unused session is remembered.
    pub(super) timeout: Duration,
}

/// The sessions of a zone.
pub(super) struct Sessions(Mutex<Table>);

/// The outcome of [`Sessions::learn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LearnOutcome {
    /// The session is not known and was not to be created.
    Nothing,
    /// The session was already bound to this server.
    Known,
    /// The session was bound to another server, and is bound to this one now.
    Moved,
    /// The session is new.
    Created,
    /// The session is new; the least recently used one was evicted for it.
    InPlaceOfOldest,
    /// The session is new, and there is no room for it.
    Full,
}

impl State for Sessions {
    const KIND: &'static str = "sticky";

    type Settings = LearnSettings;

    fn new(size: u64) -> Sessions {
        Sessions(Mutex::new(Table {
            by_key: Map::default(),
            by_use: BTreeMap::new(),
            count: 0,
            room: ZoneBudget::new(size, HEAD_SIZE),
        }))
    }

    /// Names of servers are only valid within one `upstream` block, so a zone must not move to
    /// another.
    fn reconcile(zone: &Zone<Self>, previous: &Zone<Self>) -> Result<Arc<Self>, String> {
        let (host, old) = (&zone.settings().host, &previous.settings().host);
        if host == old || zone.size() != previous.size() {
            return Ok(zone.all_of(previous));
        }
        let name = zone.name();
        Err(format!(
            "sticky zone \"{name}\" is used in upstream \"{host}\" while previously it was used in upstream \"{old}\""
        ))
    }

    const SAVED_VERSION: Option<u64> = Some(1);

    fn save(&self, settings: &LearnSettings, out: &mut StateWriter) {
        out.text(settings.host.as_bytes());
        let mut last = None;
        loop {
            let sessions = self.used_after(last);
            let Some((newest, ..)) = sessions.last() else {
                return;
            };
            last = Some(*newest);
            for ((at, _), key, server) in sessions {
                out.text(&key);
                out.moment(at);
                out.text(&server);
            }
        }
    }

    fn restore(&self, settings: &LearnSettings, saved: &mut StateReader<'_>) -> Result<(), Unfit> {
        let host = saved.text()?;
        if host != settings.host.as_bytes() {
            let (host, old) = (&settings.host, String::from_utf8_lossy(host));
            let text = format!("it is of upstream \"{host}\" and was of \"{old}\"");
            return Err(Unfit::new(text));
        }
        let mut sessions = Vec::new();
        while !saved.is_empty() {
            let key = Key::try_from(saved.text()?);
            let key = key.map_err(|_| Unfit::new("a session is not known by a hash"))?;
            sessions.push((key, saved.moment()?, saved.text()?));
        }
        let mut table = self.table();
        // Entries come oldest first. A session that was used during the save comes twice: the later
        // entry wins.
        for (key, at, server) in sessions {
            table.forget(&key);
            if table.room.take(ENTRY_SIZE) {
                table.remember(key, &Bytes::copy_from_slice(server), at);
            }
        }
        Ok(())
    }

    fn describe(&self, settings: &LearnSettings, tell: &mut ZoneFactSink<'_>) {
        tell("upstream", ZoneFact::Text(&settings.host));
        let timeout = u64::try_from(settings.timeout.as_millis()).unwrap_or(u64::MAX);
        tell("timeout", ZoneFact::Number(timeout));
        let mut table = self.table();
        table.forget_expired(engine::now(), settings.timeout);
        tell("sessions", ZoneFact::Number(table.by_key.len() as u64));
    }
}

impl Sessions {
    /// Up to `SAVED_AT_ONCE` sessions last used after `last`, oldest first.
    fn used_after(&self, last: Option<Used>) -> Vec<(Used, Key, Bytes)> {
        let table = self.table();
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let later = table.by_use.range((from, Bound::Unbounded));
        let later = later.take(SAVED_AT_ONCE).filter_map(|(used, key)| {
            let (_, server) = table.by_key.get(key)?;
            Some((*used, *key, server.clone()))
        });
        later.collect()
    }

    /// The name of the server that a session is bound to. Does not count as a use.
    pub(super) fn find(&self, session: &[u8], now: Instant, timeout: Duration) -> Option<Bytes> {
        let mut table = self.table();
        table.forget_expired(now, timeout);
        let (used, server) = table.by_key.get(&key_of(session))?;
        (!has_expired(*used, now, timeout)).then(|| server.clone())
    }

    /// Binds a session to the server that has responded. An unknown session is only stored if
    /// `create` is set.
    pub(super) fn learn(
        &self,
        session: &[u8],
        server: &Bytes,
        create: bool,
        now: Instant,
        timeout: Duration,
    ) -> LearnOutcome {
        let key = key_of(session);
        let mut table = self.table();
        table.forget_expired(now, timeout);
        let previous = table.forget(&key);
        let previous = previous.filter(|(used, _)| !has_expired(*used, now, timeout));
        if previous.is_none() && !create {
            return LearnOutcome::Nothing;
        }
        let has_room = table.room.take(ENTRY_SIZE);
        if !has_room {
            table.forget_oldest();
            if !table.room.take(ENTRY_SIZE) {
                return LearnOutcome::Full;
            }
        }
        table.remember(key, server, now);
        match previous {
            Some((_, bound)) if bound == *server => LearnOutcome::Known,
            Some(_) => LearnOutcome::Moved,
            None if has_room => LearnOutcome::Created,
            None => LearnOutcome::InPlaceOfOldest,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing under the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has_expired((at, _): Used, now: Instant, timeout: Duration) -> bool {
    now.saturating_duration_since(at) >= timeout
}

fn key_of(session: &[u8]) -> Key {
    Md5::digest(session).into()
}

struct Table {
    /// The last use and the server's name of each session.
    by_key: Map<Key, (Used, Bytes)>,
    /// The keys of the sessions by their last use, oldest first.
    by_use: BTreeMap<Used, Key>,
    /// The sequence number of the last use.
    count: u64,
    room: ZoneBudget,
}

impl Table {
    /// Removes a session and gives its memory back to the budget.
    fn forget(&mut self, key: &Key) -> Option<(Used, Bytes)> {
        let (used, server) = self.by_key.remove(key)?;
        self.by_use.remove(&used);
        self.room.give(ENTRY_SIZE);
        Some((used, server))
    }

    /// Inserts a session. The caller has taken its memory from the budget.
    fn remember(&mut self, key: Key, server: &Bytes, now: Instant) {
        self.count = self.count.wrapping_add(1);
        let used = (now, self.count);
        self.by_use.insert(used, key);
        self.by_key.insert(key, (used, server.clone()));
    }

    fn forget_expired(&mut self, now: Instant, timeout: Duration) {
        for _ in 0..EXPIRED_AT_ONCE_MAX {
            match self.by_use.first_key_value() {
                Some((used, _)) if has_expired(*used, now, timeout) => self.forget_oldest(),
                _ => return,
            }
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, key)) = self.by_use.first_key_value() {
            let key = *key;
            self.forget(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn server(name: &'static str) -> Bytes {
        Bytes::from_static(name.as_bytes())
    }

    #[test]
    fn a_session_expires_when_it_is_unused_for_the_timeout() {
        let sessions = Sessions::new(32768);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let learn = |session: &[u8], name, create, now| {
            sessions.learn(session, &server(name), create, now, TIMEOUT)
        };
        assert_eq!(learn(b"1", "a", false, start), LearnOutcome::Nothing);
        assert_eq!(sessions.find(b"1", start, TIMEOUT), None);
        assert_eq!(learn(b"1", "a", true, start), LearnOutcome::Created);
        assert_eq!(sessions.find(b"1", after(9), TIMEOUT), Some(server("a")));
        // A lookup does not refresh the session; a response does.
        assert_eq!(sessions.find(b"1", after(10), TIMEOUT), None);
        assert_eq!(learn(b"1", "a", true, after(10)), LearnOutcome::Created);
        assert_eq!(learn(b"1", "a", false, after(19)), LearnOutcome::Known);
        assert_eq!(learn(b"1", "b", false, after(28)), LearnOutcome::Moved);
        assert_eq!(sessions.find(b"1", after(37), TIMEOUT), Some(server("b")));
        assert_eq!(sessions.find(b"1", after(38), TIMEOUT), None);
        assert!(sessions.table().by_key.is_empty() && sessions.table().by_use.is_empty());
    }

    /// nginx 1.31.5 keeps 80 sessions in a zone of 32 KiB, and then evicts the least recently used
    /// one.
    #[test]
    fn a_full_zone_forgets_the_oldest() {
        let sessions = Sessions::new(32768);
        let now = Instant::now();
        let learn =
            |number: u32| sessions.learn(&number.to_le_bytes(), &server("a"), true, now, TIMEOUT);
        for number in 0..80 {
            assert_eq!(learn(number), LearnOutcome::Created);
        }
        assert_eq!(learn(0), LearnOutcome::Known);
        assert_eq!(learn(80), LearnOutcome::InPlaceOfOldest);
        assert_eq!(sessions.table().by_key.len(), 80);
        assert_eq!(learn(0), LearnOutcome::Known);
        assert_eq!(learn(1), LearnOutcome::InPlaceOfOldest);
        // Expired sessions are no longer found, and their memory is reused.
        let later = now + TIMEOUT;
        for number in 100..180_u32 {
            let learned = sessions.learn(&number.to_le_bytes(), &server("a"), true, later, TIMEOUT);
            assert_eq!(learned, LearnOutcome::Created);
            assert_eq!(sessions.find(&0_u32.to_le_bytes(), later, TIMEOUT), None);
        }
        assert_eq!(sessions.table().by_key.len(), 80);
    }

    /// More sessions expire than one access removes.
    #[test]
    fn an_expired_session_is_not_found_before_its_memory_is_freed() {
        let sessions = Sessions::new(32768);
        let now = Instant::now();
        let learn = |number: u32, name, create, now| {
            sessions.learn(&number.to_le_bytes(), &server(name), create, now, TIMEOUT)
        };
        for number in 0..80 {
            learn(number, "a", true, now);
        }
        let later = now + TIMEOUT;
        assert_eq!(sessions.find(&79_u32.to_le_bytes(), later, TIMEOUT), None);
        assert_eq!(sessions.table().by_key.len(), 48);
        assert_eq!(learn(79, "b", false, later), LearnOutcome::Nothing);
        assert_eq!(learn(78, "b", true, later), LearnOutcome::Created);
        assert_eq!(sessions.table().by_key.len(), 1);
    }

    /// More sessions than are saved under one lock; the oldest is still the first to be evicted.
    #[test]
    fn a_new_process_restores_the_sessions() {
        let zone = |host: &str| {
            let settings = LearnSettings {
                host: host.to_owned(),
                timeout: TIMEOUT,
            };
            let mut table = framework::zone::Table::default();
            let Ok(zone) = table.declare::<Sessions>("zone", 1 << 20, settings) else {
                panic!("declared once");
            };
            (zone, table.finish())
        };
        let (before, zones) = zone("u");
        let now = Instant::now();
        let count = 2 * SAVED_AT_ONCE as u32 + 10;
        for number in 0..count {
            let at = now - TIMEOUT + Duration::from_millis(u64::from(number));
            let name = server(if number % 2 == 0 { "a" } else { "b" });
            before
                .state()
                .learn(&number.to_le_bytes(), &name, true, at, TIMEOUT);
        }
        let saved = zones.save();
        let (after, zones) = zone("u");
        assert_eq!(zones.restore(&saved).unwrap().count, 1);
        let table = after.state().table();
        assert_eq!(table.by_key.len(), count as usize);
        let oldest = table.by_use.first_key_value().map(|(_, key)| *key);
        assert_eq!(oldest, Some(key_of(&0_u32.to_le_bytes())));
        drop(table);
        let last = (count - 1).to_le_bytes();
        assert_eq!(after.state().find(&last, now, TIMEOUT), Some(server("b")));
        // A session that had expired in the old process has expired in the new one, whose clock is
        // read a moment later.
        let later = now + Duration::from_millis(50);
        assert_eq!(
            after.state().find(&0_u32.to_le_bytes(), later, TIMEOUT),
            None
        );
        let (_, zones) = zone("v");
        let (_, why) = zones.restore(&saved).unwrap().empty.remove(0);
        assert_eq!(why.to_string(), "it is of upstream \"v\" and was of \"u\"");
    }
}
