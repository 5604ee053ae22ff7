//! `stats detail`: what is asked for by prefixes of keys.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock::lock;
use crate::output::Output;

/// Most prefixes that are counted. Keys with others are not, so that clients cannot fill memory.
const PREFIXES_MAX: usize = 10_000;

/// What a client does with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUse {
    /// The key is looked for, and not found.
    Miss,
    /// The key is looked for and found.
    Hit,
    /// A value is to be stored under it.
    Set,
    /// It is to be deleted.
    Delete,
}

/// Counts by prefix, while they are switched on.
#[derive(Debug)]
pub(crate) struct Prefixes {
    is_on: AtomicBool,
    delimiter: u8,
    counts: Mutex<BTreeMap<Box<[u8]>, PrefixCounts>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PrefixCounts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

impl Prefixes {
    /// A prefix goes up to the first delimiter.
    pub(crate) fn new(delimiter: u8, is_on: bool) -> Prefixes {
        Prefixes {
            is_on: AtomicBool::new(is_on),
            delimiter,
            counts: Mutex::default(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(crate) fn switch(&self, on: bool) {
        self.is_on.store(on, Ordering::Relaxed);
    }

    /// Forgets what has been counted.
    pub(crate) fn clear(&self) {
        lock(&self.counts).clear();
    }

    /// Counts, where that is switched on.
    #[inline]
    pub(crate) fn count(&self, key: &[u8], what: KeyUse) {
        if self.is_on() {
            self.count_now(key, what);
        }
    }

    #[cold]
    fn count_now(&self, key: &[u8], what: KeyUse) {
        let Some(end) = memchr::memchr(self.delimiter, key) else {
            return;
        };
        let prefix = key.get(..end).unwrap_or_default();
        let mut counts = lock(&self.counts);
        if !counts.contains_key(prefix) {
            if counts.len() >= PREFIXES_MAX {
                return;
            }
            counts.insert(prefix.into(), PrefixCounts::default());
        }
        let Some(counted) = counts.get_mut(prefix) else {
            return;
        };
        let number = match what {
            KeyUse::Miss => &mut counted.gets,
            KeyUse::Hit => {
                counted.hits += 1;
                &mut counted.gets
            }
            KeyUse::Set => &mut counted.sets,
            KeyUse::Delete => &mut counted.deletes,
        };
        *number += 1;
    }

    /// Tells all prefixes, a line each.
    pub(crate) fn dump(&self, out: &mut Output) {
        for (prefix, counted) in lock(&self.counts).iter() {
            out.text(b"PREFIX ");
            out.text(prefix);
            let PrefixCounts {
                gets,
                hits,
                sets,
                deletes,
            } = counted;
            out.line(&format!(" get {gets} hit {hits} set {sets} del {deletes}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(prefixes: &Prefixes) -> String {
        let mut out = Output::default();
        prefixes.dump(&mut out);
        String::from_utf8(out.take().flatten().collect()).unwrap()
    }

    #[test]
    fn prefixes_are_counted_while_that_is_on() {
        let prefixes = Prefixes::new(b':', false);
        prefixes.count(b"a:1", KeyUse::Set);
        assert_eq!(told(&prefixes), "");
        prefixes.switch(true);
        for (key, what) in [
            (&b"a:1"[..], KeyUse::Hit),
            (b"a:2:3", KeyUse::Miss),
            (b"none", KeyUse::Set),
            (b"b:", KeyUse::Set),
            (b"a:", KeyUse::Delete),
        ] {
            prefixes.count(key, what);
        }
        let expected = "PREFIX a get 2 hit 1 set 0 del 1\r\nPREFIX b get 0 hit 0 set 1 del 0\r\n";
        assert_eq!(told(&prefixes), expected);
        prefixes.clear();
        assert_eq!(told(&prefixes), "");
    }

    #[test]
    fn clients_cannot_fill_memory_with_prefixes() {
        let prefixes = Prefixes::new(b':', true);
        for number in 0..PREFIXES_MAX + 10 {
            prefixes.count(format!("{number}:").as_bytes(), KeyUse::Set);
        }
        assert_eq!(told(&prefixes).lines().count(), PREFIXES_MAX);
    }
}
