//! `watch`: log lines about the server's events, for connections that have asked for them.
//!
//! A watcher's lines are buffered until its connection sends them. If the buffer is full, new lines
//! are dropped and counted, so that no other client waits for a slow watcher.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use engine::net::Address;

use crate::lock::lock;

/// Maximum number of watchers.
const WATCHERS_MAX: usize = 20;

/// Maximum length of a line, in bytes: an escaped key of 250 bytes has up to 750.
const LINE_MAX: usize = 2048;

/// A kind of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// Lookups of items, hits and misses.
    Fetchers = 1,
    /// Commands that store.
    Mutations = 2,
    /// Evictions of items.
    Evictions = 4,
    /// Connections opened and closed.
    Connections = 8,
    /// Deletions by clients.
    Deletions = 16,
}

/// A set of event kinds, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventKinds(u32);

impl EventKinds {
    /// Parses the words of a `watch` command. `None` if a word is unknown.
    pub(crate) fn named<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<EventKinds> {
        let mut kinds = 0;
        for word in words {
            kinds |= match word {
                b"fetchers" => EventKind::Fetchers as u32,
                b"mutations" => EventKind::Mutations as u32,
                b"evictions" => EventKind::Evictions as u32,
                b"connevents" => EventKind::Connections as u32,
                b"deletions" => EventKind::Deletions as u32,
                _ => return None,
            };
        }
        Some(EventKinds(match kinds {
            0 => EventKind::Fetchers as u32,
            kinds => kinds,
        }))
    }
}

/// All watchers of a cache.
#[derive(Debug)]
pub(crate) struct Watchers {
    /// The union of all watchers' kinds.
    wanted: AtomicU32,
    all: Mutex<Vec<Arc<Watcher>>>,
    /// Maximum size of each watcher's buffer, in bytes.
    waiting_max: usize,
    /// The next line's number (`gid=`).
    number: AtomicU64,
    written: AtomicU64,
    skipped: AtomicU64,
}

/// A connection that watches.
#[derive(Debug)]
pub(crate) struct Watcher {
    kinds: EventKinds,
    log: Mutex<WaitingLines>,
}

#[derive(Debug, Default)]
struct WaitingLines {
    bytes: Vec<u8>,
    /// Lines dropped since the last buffered line.
    skipped: u64,
}

impl Watchers {
    pub(crate) fn new(waiting_max: usize) -> Watchers {
        Watchers {
            wanted: AtomicU32::new(0),
            all: Mutex::default(),
            waiting_max: waiting_max.max(LINE_MAX),
            number: AtomicU64::new(1),
            written: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }
    }

    /// Whether any watcher wants events of this kind.
    #[inline]
    pub(crate) fn want(&self, kind: EventKind) -> bool {
        self.wanted.load(Ordering::Relaxed) & kind as u32 != 0
    }

    /// The number of watchers.
    pub(crate) fn count(&self) -> usize {
        lock(&self.all).len()
    }

    /// The numbers of lines buffered and of lines dropped, since the start.
    pub(crate) fn sums(&self) -> (u64, u64) {
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
        (number(&self.written), number(&self.skipped))
    }

    /// Adds a watcher. `None` if there are [`WATCHERS_MAX`] already.
    pub(crate) fn add(&self, kinds: EventKinds) -> Option<Arc<Watcher>> {
        let mut all = lock(&self.all);
        if all.len() >= WATCHERS_MAX {
            return None;
        }
        let watcher = Arc::new(Watcher {
            kinds,
            log: Mutex::default(),
        });
        all.push(Arc::clone(&watcher));
        self.count_wanted(&all);
        Some(watcher)
    }

    /// Removes a watcher whose connection has closed.
    pub(crate) fn remove(&self, watcher: &Arc<Watcher>) {
        let mut all = lock(&self.all);
        all.retain(|other| !Arc::ptr_eq(other, watcher));
        self.count_wanted(&all);
    }

    fn count_wanted(&self, all: &[Arc<Watcher>]) {
        let wanted = all.iter().fold(0, |wanted, one| wanted | one.kinds.0);
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Logs an event for the watchers of its kind. To save formatting, call [`Watchers::want`]
    /// first.
    #[cold]
    pub(crate) fn tell(&self, kind: EventKind, event: fmt::Arguments<'_>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let (seconds, micros) = (now.as_secs(), now.subsec_micros());
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let line = format!("ts={seconds}.{micros:06} gid={number} {event}\n");
        for watcher in lock(&self.all).iter() {
            if watcher.kinds.0 & kind as u32 == 0 {
                continue;
            }
            let mut log = lock(&watcher.log);
            if log.bytes.len() + line.len() > self.waiting_max {
                log.skipped += 1;
                self.skipped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if log.skipped > 0 {
                let skipped = std::mem::take(&mut log.skipped);
                log.bytes
                    .extend_from_slice(format!("skipped={skipped}\n").as_bytes());
            }
            log.bytes.extend_from_slice(line.as_bytes());
            self.written.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Watcher {
    /// Takes the buffered lines.
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.log).bytes)
    }
}

/// A key as shown in lines: percent-encoded but for letters, digits and `-._~`.
pub(crate) struct EscapedKey<'a>(pub(crate) &'a [u8]);

impl Display for EscapedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
                write!(f, "{}", char::from(*byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// A client's address as shown in lines.
pub(crate) struct Origin<'a>(pub(crate) &'a Address);

impl Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Address::Inet(address) => {
                let (ip, port) = (address.ip(), address.port());
                write!(f, "rip={ip} rport={port} transport=tcp")
            }
            Address::Unix(_) => f.write_str("rip=unix rport=0 transport=local"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_names_of_memcached() {
        let named = |line: &'static str| EventKinds::named(line.split(' ').map(str::as_bytes));
        assert_eq!(
            EventKinds::named(std::iter::empty()),
            Some(EventKinds(EventKind::Fetchers as u32))
        );
        assert_eq!(named("mutations evictions"), Some(EventKinds(6)));
        assert_eq!(named("fetchers nonsense"), None);
    }

    #[test]
    fn a_slow_watcher_is_told_how_much_it_has_missed() {
        let watchers = Watchers::new(LINE_MAX);
        assert!(!watchers.want(EventKind::Fetchers));
        let slow = watchers.add(EventKinds(1)).unwrap();
        let other = watchers.add(EventKinds(2)).unwrap();
        assert!(watchers.want(EventKind::Fetchers) && watchers.want(EventKind::Mutations));
        for _ in 0..100 {
            watchers.tell(EventKind::Fetchers, format_args!("{}", "x".repeat(100)));
        }
        let begin = slow.take();
        assert!(begin.len() <= LINE_MAX && begin.starts_with(b"ts="));
        watchers.tell(EventKind::Fetchers, format_args!("again"));
        let (written, skipped) = watchers.sums();
        let behind = String::from_utf8(slow.take()).unwrap();
        assert!(
            behind.starts_with(&format!("skipped={skipped}\nts=")),
            "{behind}"
        );
        assert_eq!(written + skipped, 101);
        assert!(other.take().is_empty());
        watchers.remove(&slow);
        assert!(!watchers.want(EventKind::Fetchers) && watchers.count() == 1);
    }

    #[test]
    fn there_are_at_most_so_many_watchers() {
        let watchers = Watchers::new(0);
        let all: Vec<_> = (0..WATCHERS_MAX)
            .map(|_| watchers.add(EventKinds(1)))
            .collect();
        assert!(all.iter().all(Option::is_some));
        assert!(watchers.add(EventKinds(1)).is_none());
    }
}
