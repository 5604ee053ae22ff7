//! The pairs of a `keyval_zone`: values by keys, each with an optional expiry.
//!
//! Look-ups share a read lock that is held only for the search. A change by the API also writes the
//! zone's file, in the format of `saved.rs`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use framework::handover::{StateReader, StateWriter, Unfit};
use framework::network::Cidr;
use framework::zone::{State, Zone, ZoneBudget, ZoneFact, ZoneFactSink};

use super::saved::{self, SavedPair};
use crate::kept_file;

/// The memory that nginx uses for a zone as a whole, in bytes.
const HEAD_SIZE: u64 = 80;

/// The memory that nginx uses for a pair in addition to key and value, in bytes.
const PAIR_SIZE: usize = 80;

/// Maximum number of pairs that are copied at once while the lock is held, when the state is saved
/// for the next process.
const SAVED_AT_ONCE: usize = 1024;

/// How the key of a pair is compared with the text that `keyval` looks up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Match {
    /// The key equals the text.
    #[default]
    Text,
    /// The key is an address or a network that contains the text; the smallest network wins.
    Address,
    /// The key is a prefix of the text; the longest key wins.
    Prefix,
}

/// The parameters of `keyval_zone` besides name and size.
#[derive(Debug)]
pub struct ZoneSettings {
    /// How keys match.
    pub matching: Match,
    /// How long a pair is kept; `None` if pairs do not expire.
    pub timeout: Option<Duration>,
    /// The file in which the pairs are saved (`state`).
    pub file: Option<std::path::PathBuf>,
    /// The pairs that the file contained when the configuration was read.
    pub initial: Vec<SavedPair>,
    /// The block of the zone, `http` or `stream`.
    pub block: &'static str,
}

/// The pairs of a zone.
#[derive(Debug)]
pub struct Pairs {
    size: u64,
    table: OnceLock<RwLock<Table>>,
    /// Held during a change of the pairs and of the file, so that the file always has the newest
    /// pairs.
    writing: Mutex<()>,
}

#[derive(Debug)]
struct Table {
    pairs: BTreeMap<Bytes, Pair>,
    room: ZoneBudget,
    matching: Match,
}

#[derive(Clone, Debug)]
struct Pair {
    value: Bytes,
    /// The network, if keys are networks.
    network: Option<Cidr>,
    ends: Option<Instant>,
}

/// A change of a zone.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Adds pairs: key, value, and the time until the pair expires, in place of the zone's timeout.
    /// The keys must not exist. Several pairs can only be added to an empty zone.
    Add(Vec<(Bytes, Bytes, Option<Duration>)>),
    /// Changes the pair with this key: sets its value, if one is given, and the time until it
    /// expires; `None` for the zone's timeout.
    Change(Bytes, Option<Bytes>, Option<Duration>),
    /// Removes the pair with this key.
    Remove(Bytes),
    /// Removes all pairs of the zone.
    Clear,
}

/// Why a zone was not changed.
#[derive(Debug)]
pub enum PairError {
    /// The key does not exist.
    NotFound,
    /// The key exists already.
    Exists,
    /// More than one pair was added to a zone that is not empty.
    OnlyOne,
    /// The key is not an address or network.
    BadKey,
    /// A time was given, but pairs of the zone do not expire.
    NoTimeout,
    /// The zone is full.
    Full,
    /// The file could not be written: nothing has changed.
    Unwritten(std::io::Error),
}

impl State for Pairs {
    const KIND: &'static str = "keyval";

    type Settings = ZoneSettings;

    fn new(size: u64) -> Pairs {
        Pairs {
            size,
            table: OnceLock::new(),
            writing: Mutex::default(),
        }
    }

    /// A reload takes over the pairs if the type of the keys has not changed; otherwise the zone
    /// begins empty.
    fn reconcile(zone: &Zone<Self>, previous: &Zone<Self>) -> Result<Arc<Self>, String> {
        if zone.settings().matching == previous.settings().matching {
            Ok(zone.all_of(previous))
        } else {
            Ok(Arc::new(Pairs::new(zone.size())))
        }
    }

    const SAVED_VERSION: Option<u64> = Some(1);

    fn save(&self, settings: &ZoneSettings, out: &mut StateWriter) {
        out.number(settings.matching as u64);
        let mut last: Option<Bytes> = None;
        loop {
            let pairs = self.pairs_after(settings, last.as_ref());
            let Some((key, _)) = pairs.last() else {
                return;
            };
            last = Some(key.clone());
            for (key, pair) in pairs {
                out.text(&key);
                out.text(&pair.value);
                out.optional(pair.ends, StateWriter::moment);
            }
        }
    }

    /// Replaces the pairs by the saved ones, unless the type of the keys has changed.
    fn restore(&self, settings: &ZoneSettings, saved: &mut StateReader<'_>) -> Result<(), Unfit> {
        if saved.number()? != settings.matching as u64 {
            return Err(Unfit::new("its keys mean something else (\"type\")"));
        }
        let mut pairs = Vec::new();
        while !saved.is_empty() {
            let (key, value) = (saved.text()?, saved.text()?);
            pairs.push((key, value, saved.optional(StateReader::moment)?));
        }
        let mut table = self.write(settings);
        table.clear();
        for (key, value, ends) in pairs {
            let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            let ends = ends.filter(|_| settings.timeout.is_some());
            // A pair without room is dropped, like a change that was refused.
            let _ = table.put(&key, &value, ends);
        }
        Ok(())
    }

    fn describe(&self, settings: &ZoneSettings, tell: &mut ZoneFactSink<'_>) {
        tell(
            "pairs",
            ZoneFact::Number(self.read(settings).pairs.len() as u64),
        );
    }
}

impl Pairs {
    fn table(&self, settings: &ZoneSettings) -> &RwLock<Table> {
        self.table.get_or_init(|| {
            let mut table = Table {
                pairs: BTreeMap::new(),
                room: ZoneBudget::new(self.size, HEAD_SIZE),
                matching: settings.matching,
            };
            let now = engine::now();
            for saved in &settings.initial {
                let ends = saved.rest.or(settings.timeout);
                let ends = ends.filter(|_| settings.timeout.is_some());
                // A pair without room is dropped, like a change that was refused.
                let _ = table.put(&saved.key, &saved.value, ends.map(|rest| now + rest));
            }
            RwLock::new(table)
        })
    }

    /// The next pairs after a key, in the order of the keys.
    fn pairs_after(&self, settings: &ZoneSettings, last: Option<&Bytes>) -> Vec<(Bytes, Pair)> {
        let now = engine::now();
        let table = self.read(settings);
        let from = last.map_or(Bound::Unbounded, |last| Bound::Excluded(last.clone()));
        let later = table.pairs.range((from, Bound::Unbounded));
        let there = later.filter(|(_, pair)| pair.is_there(now));
        let some = there.take(SAVED_AT_ONCE);
        some.map(|(key, pair)| (key.clone(), pair.clone()))
            .collect()
    }

    fn read(&self, settings: &ZoneSettings) -> RwLockReadGuard<'_, Table> {
        let table = self.table(settings).read();
        table.unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, settings: &ZoneSettings) -> RwLockWriteGuard<'_, Table> {
        let table = self.table(settings).write();
        table.unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of the pair whose key matches a text.
    pub fn find(&self, settings: &ZoneSettings, text: &[u8]) -> Option<Bytes> {
        let now = engine::now();
        self.read(settings)
            .find(text, now)
            .map(|pair| pair.value.clone())
    }

    /// The value of exactly this key.
    pub fn value(&self, settings: &ZoneSettings, key: &[u8]) -> Option<Bytes> {
        let now = engine::now();
        let table = self.read(settings);
        let pair = table.pairs.get(key).filter(|pair| pair.is_there(now));
        pair.map(|pair| pair.value.clone())
    }

    /// All pairs, in the order of the keys.
    pub fn all(&self, settings: &ZoneSettings) -> Vec<(Bytes, Bytes)> {
        let now = engine::now();
        let table = self.read(settings);
        let pairs = table.pairs.iter().filter(|(_, pair)| pair.is_there(now));
        pairs
            .map(|(key, pair)| (key.clone(), pair.value.clone()))
            .collect()
    }

    /// Changes pairs, and writes the file, if the zone has one. Blocks on the disk.
    ///
    /// # Errors
    /// If the change was refused. Nothing has changed then.
    pub fn edit(&self, settings: &ZoneSettings, edit: &Edit) -> Result<(), PairError> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = engine::now();
        let mut before = Vec::new();
        let changed = {
            let mut table = self.write(settings);
            table.forget(now);
            let changed = table.edit(edit, settings.timeout, now, &mut before);
            if changed.is_err() {
                table.restore(std::mem::take(&mut before));
            }
            changed
        };
        changed?;
        let Some(file) = &settings.file else {
            return Ok(());
        };
        let text = saved::text(&self.read(settings).saved(now));
        kept_file::write(file, &text).map_err(|error| {
            self.write(settings).restore(before);
            PairError::Unwritten(error)
        })
    }
}

impl Pair {
    fn is_there(&self, now: Instant) -> bool {
        self.ends.is_none_or(|ends| now < ends)
    }
}

/// The keys that an edit changes, with their pairs before the edit; `None` for a key that did not
/// exist.
type PreviousPairs = Vec<(Bytes, Option<Pair>)>;

impl Table {
    fn find(&self, text: &[u8], now: Instant) -> Option<&Pair> {
        match self.matching {
            Match::Text => self.pairs.get(text).filter(|pair| pair.is_there(now)),
            Match::Prefix => {
                let mut prefixes = (0..=text.len())
                    .rev()
                    .filter_map(|length| text.get(..length));
                prefixes.find_map(|prefix| {
                    let pair = self.pairs.get(prefix)?;
                    pair.is_there(now).then_some(pair)
                })
            }
            Match::Address => {
                let address: IpAddr = std::str::from_utf8(text).ok()?.parse().ok()?;
                let there = self.pairs.values().filter(|pair| pair.is_there(now));
                let fits = |pair: &&Pair| {
                    pair.network
                        .is_some_and(|network| network.contains(address))
                };
                there.filter(fits).max_by_key(|pair| match pair.network {
                    Some(Cidr::V4 { bits, .. } | Cidr::V6 { bits, .. }) => bits,
                    None => 0,
                })
            }
        }
    }

    fn edit(
        &mut self,
        edit: &Edit,
        timeout: Option<Duration>,
        now: Instant,
        before: &mut PreviousPairs,
    ) -> Result<(), PairError> {
        let ends = |own: Option<Duration>| match (own, timeout) {
            (Some(_), None) => Err(PairError::NoTimeout),
            // A pair whose time overflows does not expire.
            (own, timeout) => Ok(own.or(timeout).and_then(|rest| now.checked_add(rest))),
        };
        match edit {
            Edit::Add(pairs) => {
                if pairs.len() > 1 && !self.pairs.is_empty() {
                    return Err(PairError::OnlyOne);
                }
                for (key, value, own) in pairs {
                    if self.pairs.contains_key(key) {
                        return Err(PairError::Exists);
                    }
                    let ends = ends(*own)?;
                    before.push((key.clone(), None));
                    self.put(key, value, ends)?;
                }
            }
            Edit::Change(key, value, own) => {
                let known = self.take(key).ok_or(PairError::NotFound)?;
                before.push((key.clone(), Some(known.clone())));
                let value = value.as_ref().unwrap_or(&known.value);
                self.put(key, value, ends(*own)?)?;
            }
            Edit::Remove(key) => {
                let known = self.take(key).ok_or(PairError::NotFound)?;
                before.push((key.clone(), Some(known)));
            }
            Edit::Clear => {
                before.extend(self.clear());
            }
        }
        Ok(())
    }

    fn put(&mut self, key: &Bytes, value: &Bytes, ends: Option<Instant>) -> Result<(), PairError> {
        let network = match self.matching {
            Match::Address => Some(Cidr::parse(key).ok_or(PairError::BadKey)?.0),
            _ => None,
        };
        if !self.room.take(size_of_pair(key, value)) {
            return Err(PairError::Full);
        }
        let pair = Pair {
            value: value.clone(),
            network,
            ends,
        };
        self.pairs.insert(key.clone(), pair);
        Ok(())
    }

    /// Removes all pairs, and returns them.
    fn clear(&mut self) -> PreviousPairs {
        let keys: Vec<Bytes> = self.pairs.keys().cloned().collect();
        let taken = keys.into_iter().map(|key| {
            let known = self.take(&key);
            (key, known)
        });
        taken.collect()
    }

    fn take(&mut self, key: &Bytes) -> Option<Pair> {
        let pair = self.pairs.remove(key)?;
        self.room.give(size_of_pair(key, &pair.value));
        Some(pair)
    }

    /// Undoes an edit.
    fn restore(&mut self, before: PreviousPairs) {
        for (key, pair) in before.into_iter().rev() {
            self.take(&key);
            if let Some(pair) = pair {
                // Cannot fail, because the pair had room before.
                let _ = self.put(&key, &pair.value, pair.ends);
            }
        }
    }

    /// Removes expired pairs.
    fn forget(&mut self, now: Instant) {
        let ended = self.pairs.iter().filter(|(_, pair)| !pair.is_there(now));
        for key in ended.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.take(&key);
        }
    }

    fn saved(&self, now: Instant) -> Vec<SavedPair> {
        let pairs = self.pairs.iter().map(|(key, pair)| SavedPair {
            key: key.clone(),
            value: pair.value.clone(),
            rest: pair.ends.map(|ends| ends.saturating_duration_since(now)),
        });
        pairs.collect()
    }
}

fn size_of_pair(key: &[u8], value: &[u8]) -> usize {
    PAIR_SIZE + key.len() + value.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(matching: Match, timeout: Option<Duration>) -> ZoneSettings {
        ZoneSettings {
            matching,
            timeout,
            file: None,
            initial: Vec::new(),
            block: "http",
        }
    }

    fn text(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    fn add(key: &str, value: &str) -> Edit {
        Edit::Add(vec![(text(key), text(value), None)])
    }

    fn found(pairs: &Pairs, settings: &ZoneSettings, key: &str) -> String {
        let value = pairs.find(settings, key.as_bytes()).unwrap_or_default();
        String::from_utf8(value.to_vec()).unwrap()
    }

    #[test]
    fn keys_are_texts_prefixes_or_networks() {
        for (matching, keys, cases) in [
            (
                Match::Text,
                ["a", "ab", "b"],
                [("a", "a"), ("abc", ""), ("ab", "ab")],
            ),
            (
                Match::Prefix,
                ["a", "abc", "b"],
                [("abd", "a"), ("abcd", "abc"), ("c", "")],
            ),
            (
                Match::Address,
                ["10.0.0.0/8", "10.1.0.0/16", "::1"],
                [
                    ("10.1.2.3", "10.1.0.0/16"),
                    ("10.2.0.1", "10.0.0.0/8"),
                    ("x", ""),
                ],
            ),
        ] {
            let settings = settings(matching, None);
            let pairs = Pairs::new(1 << 20);
            for key in keys {
                pairs.edit(&settings, &add(key, key)).unwrap();
            }
            for (key, expected) in cases {
                assert_eq!(
                    found(&pairs, &settings, key),
                    expected,
                    "{matching:?} {key}"
                );
            }
        }
        let settings = settings(Match::Address, None);
        let refused = Pairs::new(1 << 20).edit(&settings, &add("10.0.0", "x"));
        assert!(matches!(refused, Err(PairError::BadKey)));
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let settings = settings(Match::Text, None);
        let pairs = Pairs::new(32 * 1024);
        pairs.edit(&settings, &add("a", "1")).unwrap();
        let long = "x".repeat(40_000);
        let two = vec![(text("b"), text("1"), None), (text("c"), text("1"), None)];
        let timed = Some(Duration::from_secs(1));
        for (edit, is_expected) in [
            (
                add("a", "2"),
                (|r| matches!(r, PairError::Exists)) as fn(PairError) -> bool,
            ),
            (add("b", &long), |r| matches!(r, PairError::Full)),
            (Edit::Add(two), |r| matches!(r, PairError::OnlyOne)),
            (Edit::Change(text("a"), Some(text(&long)), None), |r| {
                matches!(r, PairError::Full)
            }),
            (Edit::Change(text("b"), None, None), |r| {
                matches!(r, PairError::NotFound)
            }),
            (Edit::Change(text("a"), None, timed), |r| {
                matches!(r, PairError::NoTimeout)
            }),
            (Edit::Remove(text("b")), |r| {
                matches!(r, PairError::NotFound)
            }),
        ] {
            let refused = pairs.edit(&settings, &edit).unwrap_err();
            assert!(is_expected(refused), "{edit:?}");
            assert_eq!(pairs.all(&settings), [(text("a"), text("1"))]);
        }
        pairs.edit(&settings, &Edit::Clear).unwrap();
        assert_eq!(pairs.all(&settings), []);
    }

    #[test]
    fn a_pair_ends_after_its_time() {
        let settings = settings(Match::Text, Some(Duration::from_secs(3600)));
        let pairs = Pairs::new(1 << 20);
        let short = Edit::Add(vec![(text("a"), text("1"), Some(Duration::ZERO))]);
        pairs.edit(&settings, &short).unwrap();
        pairs.edit(&settings, &add("b", "2")).unwrap();
        assert_eq!(pairs.all(&settings), [(text("b"), text("2"))]);
        assert_eq!(found(&pairs, &settings, "a"), "");
        pairs.edit(&settings, &add("a", "3")).unwrap();
        assert_eq!(found(&pairs, &settings, "a"), "3");
    }

    #[test]
    fn another_process_goes_on_with_the_pairs() {
        let zone = |matching| {
            let settings = settings(matching, Some(Duration::from_secs(3600)));
            let mut table = framework::zone::Table::default();
            let Ok(zone) = table.declare::<Pairs>("zone", 1 << 20, settings) else {
                panic!("declared once");
            };
            (zone, table.finish())
        };
        let (before, zones) = zone(Match::Prefix);
        let count = 2 * SAVED_AT_ONCE + 10;
        let pair = |number: usize| (text(&format!("{number:05}")), text("v"), None);
        let all = Edit::Add((0..count).map(pair).collect());
        before.state().edit(before.settings(), &all).unwrap();
        let short = Some(Duration::from_millis(1));
        let one = Edit::Add(vec![(text("short"), text("v"), short)]);
        before.state().edit(before.settings(), &one).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let saved = zones.save();
        let (after, zones) = zone(Match::Prefix);
        assert_eq!(zones.restore(&saved).unwrap().count, 1);
        assert_eq!(after.state().all(after.settings()).len(), count);
        assert_eq!(found(after.state(), after.settings(), "02057x"), "v");
        let (_, zones) = zone(Match::Text);
        assert_eq!(zones.restore(&saved).unwrap().empty.len(), 1);
    }
}
