//! `watch`: what a server does, told line by line to connections that have asked for it.
//!
//! A watcher's lines wait in memory until its connection takes them. Where it takes them too slowly
//! new ones are left out and counted, so that no client waits for a watcher.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use engine::net::Address;

use crate::cache::lock;

/// Most watchers at a time.
const WATCHERS_MAX: usize = 20;

/// Longest line in bytes: a key of 250 bytes has 750 as it is told.
const LINE_MAX: usize = 2048;

/// A kind of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// Items that are looked for.
    Fetchers = 1,
    /// Values that are stored.
    Mutations = 2,
    /// Items that make room for others.
    Evictions = 4,
    /// Clients that come and go.
    Connections = 8,
    /// Items that clients delete.
    Deletions = 16,
}

/// Kinds of events, each a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventKinds(u32);

impl EventKinds {
    /// The kinds that a line `watch …` names; `None` where one is not known.
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
    /// The kinds that any of them wants.
    wanted: AtomicU32,
    all: Mutex<Vec<Arc<Watcher>>>,
    /// Bytes of lines that wait for one of them at most.
    waiting_max: usize,
    /// Numbers all lines.
    number: AtomicU64,
    written: AtomicU64,
    skipped: AtomicU64,
}

/// One watcher.
#[derive(Debug)]
pub(crate) struct Watcher {
    kinds: EventKinds,
    log: Mutex<WaitingLines>,
}

#[derive(Debug, Default)]
struct WaitingLines {
    bytes: Vec<u8>,
    /// Lines that were left out since the last one that was not.
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

    /// Whether anybody wants events of a kind.
    #[inline]
    pub(crate) fn want(&self, kind: EventKind) -> bool {
        self.wanted.load(Ordering::Relaxed) & kind as u32 != 0
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        lock(&self.all).len()
    }

    /// Lines that were given to watchers, and those that were left out.
    pub(crate) fn sums(&self) -> (u64, u64) {
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
        (number(&self.written), number(&self.skipped))
    }

    /// Another watcher; `None` where there are too many.
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

    /// A watcher is not there any more.
    pub(crate) fn remove(&self, watcher: &Arc<Watcher>) {
        let mut all = lock(&self.all);
        all.retain(|other| !Arc::ptr_eq(other, watcher));
        self.count_wanted(&all);
    }

    fn count_wanted(&self, all: &[Arc<Watcher>]) {
        let wanted = all.iter().fold(0, |wanted, one| wanted | one.kinds.0);
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Tells all who want it of an event. Ask [`Watchers::want`] first.
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
    /// The lines that wait.
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.log).bytes)
    }
}

/// A key as lines tell it: with percent signs for what is no plain letter.
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

/// Where a client comes from, as lines tell it.
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
