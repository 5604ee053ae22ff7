//! What commands of the text protocol do.

use proto::memcached::command::{Lookup, Mode};
use store::{Cas, Change, Content, Item, Large, Outcome, Revision, Seconds, Write};

use crate::cache::{Moment, Shared};
use crate::counts::Counter;
use crate::output::{Digits, Output};
use crate::size_classes::item_size;

/// The object is stale: whoever finds it first is to fetch it anew.
pub(crate) const STALE: u8 = 1;
/// Somebody has been told to.
pub(crate) const TOKEN_SENT: u8 = 2;
/// Its key was sent in base64.
pub(crate) const BINARY_KEY: u8 = 4;

/// A value that a client has sent.
#[derive(Debug)]
pub(crate) enum Sent<'a> {
    /// Whole in what was received.
    Whole(&'a [u8]),
    /// Put together from several pieces.
    Gathered(Large),
}

impl Sent<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Sent::Whole(bytes) => bytes,
            Sent::Gathered(large) => large.value(),
        }
    }
}

/// What is to be stored, beside the value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storing<'a> {
    pub(crate) mode: Mode,
    pub(crate) key: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) expires: Option<Seconds>,
    /// The CAS that it must have now, or 0.
    pub(crate) compare: u64,
    pub(crate) cas: Cas,
    pub(crate) marks: u8,
    /// An object with a later CAS may be written over too, and stays stale.
    pub(crate) allows_stale: bool,
    /// Appending to what is not there stores it, and it expires then.
    pub(crate) vivify: Option<Option<Seconds>>,
}

/// What has come of storing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// With this CAS, and this length.
    Yes(u64, usize),
    No,
    Exists,
    Missing,
    TooLarge,
    NoMemory,
}

pub(crate) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
pub(crate) const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";

/// Stores a value where its conditions hold.
pub(crate) fn store(
    shared: &Shared,
    moment: Moment,
    storing: &Storing<'_>,
    sent: Sent<'_>,
) -> Stored {
    let Storing { mode, key, .. } = *storing;
    shared.counts.add(Counter::Stores, 1);
    let item_max = shared.cache.settings.item_max;
    let length = sent.bytes().len();
    let is_joined = matches!(mode, Mode::Append | Mode::Prepend);
    let gathered;
    let (joined, content) = match sent {
        Sent::Whole(bytes) => (bytes, Content::Copied(bytes)),
        Sent::Gathered(large) if is_joined => {
            gathered = large;
            (gathered.value(), Content::Copied(gathered.value()))
        }
        Sent::Gathered(large) => ([].as_slice(), Content::Given(large)),
    };
    let mut refused = Stored::No;
    let mut written = length;
    let outcome = shared.cache.store.update(key, moment.now, |item| {
        let (expires, marks) = match (mode, item) {
            (Mode::Set, _) | (Mode::Add, None) | (Mode::Replace, Some(_)) => {
                (storing.expires, storing.marks)
            }
            (Mode::Add, Some(_)) | (Mode::Replace, None) => return Change::Keep,
            (Mode::Append | Mode::Prepend, None) => match storing.vivify {
                Some(expires) => (expires, storing.marks),
                None => return Change::Keep,
            },
            (Mode::Append | Mode::Prepend, Some(item)) => {
                written += item.value.len();
                if storing.compare != 0 && storing.compare != item.cas {
                    refused = Stored::Exists;
                    return Change::Keep;
                }
                if item_size(key.len(), item.flags, written) > item_max {
                    return Change::Keep;
                }
                return if mode == Mode::Append {
                    Change::Append(joined, storing.cas)
                } else {
                    Change::Prepend(joined, storing.cas)
                };
            }
            (Mode::Cas, None) => {
                refused = Stored::Missing;
                return Change::Keep;
            }
            (Mode::Cas, Some(item)) if storing.compare == item.cas => {
                (storing.expires, storing.marks)
            }
            (Mode::Cas, Some(item)) if storing.allows_stale && storing.compare < item.cas => (
                item.expires,
                storing.marks | STALE | item.marks & TOKEN_SENT,
            ),
            (Mode::Cas, Some(_)) => {
                refused = Stored::Exists;
                return Change::Keep;
            }
        };
        Change::Write(Write {
            content,
            flags: storing.flags,
            expires,
            cas: storing.cas,
            marks,
        })
    });
    let stored = match outcome {
        Outcome::Stored(cas) => Stored::Yes(cas, written),
        Outcome::TooLarge => Stored::TooLarge,
        Outcome::NoRoom => Stored::NoMemory,
        Outcome::Kept | Outcome::Removed => refused,
    };
    count_stored(shared, mode, stored);
    stored
}

fn count_stored(shared: &Shared, mode: Mode, stored: Stored) {
    let counter = match (mode, stored) {
        (_, Stored::TooLarge) => Counter::TooLarge,
        (_, Stored::NoMemory) => Counter::NoMemory,
        (Mode::Cas, Stored::Yes(..)) => Counter::CasHits,
        (Mode::Cas, Stored::Exists) => Counter::CasBadValues,
        (Mode::Cas, Stored::Missing) => Counter::CasMisses,
        _ => return,
    };
    shared.counts.add(counter, 1);
}

/// The words of the text protocol for it.
pub(crate) fn stored_text(stored: Stored) -> &'static str {
    match stored {
        Stored::Yes(..) => "STORED",
        Stored::No => "NOT_STORED",
        Stored::Exists => "EXISTS",
        Stored::Missing => "NOT_FOUND",
        Stored::TooLarge => TOO_LARGE,
        Stored::NoMemory => NO_MEMORY,
    }
}

/// `get` and its kin, for one key.
pub(crate) fn lookup(
    shared: &Shared,
    moment: Moment,
    lookup: Lookup,
    key: &[u8],
    out: &mut Output,
) {
    let tell = |item: Item<'_>, out: &mut Output| {
        out.text(b"VALUE ");
        out.text(key);
        out.byte(b' ');
        out.number(u64::from(item.flags));
        out.byte(b' ');
        out.number(item.value.len() as u64);
        if lookup.with_cas {
            out.byte(b' ');
            out.number(item.cas);
        }
        out.text(b"\r\n");
        out.value(item.value);
        out.text(b"\r\n");
    };
    let store = &shared.cache.store;
    let Some(expires) = lookup.expires else {
        let found = store.get(key, moment.now, |item| tell(item, out)).is_some();
        let counter = if found {
            Counter::GetHits
        } else {
            Counter::GetMisses
        };
        shared.counts.add(counter, 1);
        return;
    };
    let revision = Revision {
        expires: Some(moment.expiry(i64::from(expires))),
        is_use: true,
        ..Revision::default()
    };
    let outcome = store.update(key, moment.now, |item| {
        item.map_or(Change::Keep, |item| {
            tell(item, out);
            Change::Revise(revision)
        })
    });
    count_touch(shared, outcome);
}

/// `touch`
pub(crate) fn touch(shared: &Shared, moment: Moment, key: &[u8], expires: i32) -> &'static str {
    let revision = Revision {
        expires: Some(moment.expiry(i64::from(expires))),
        is_use: true,
        ..Revision::default()
    };
    let store = &shared.cache.store;
    let outcome = store.update(key, moment.now, |_| Change::Revise(revision));
    count_touch(shared, outcome);
    if matches!(outcome, Outcome::Stored(_)) {
        "TOUCHED"
    } else {
        "NOT_FOUND"
    }
}

pub(crate) fn count_touch(shared: &Shared, outcome: Outcome) {
    shared.counts.add(Counter::Touches, 1);
    let counter = match outcome {
        Outcome::Stored(_) => Counter::TouchHits,
        _ => Counter::TouchMisses,
    };
    shared.counts.add(counter, 1);
}

/// `delete`
pub(crate) fn delete(shared: &Shared, moment: Moment, key: &[u8]) -> &'static str {
    if shared.cache.store.remove(key, moment.now) {
        shared.counts.add(Counter::DeleteHits, 1);
        "DELETED"
    } else {
        shared.counts.add(Counter::DeleteMisses, 1);
        "NOT_FOUND"
    }
}

/// What has come of counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// The new value, the CAS, and when it expires.
    Yes(u64, u64, Option<Seconds>),
    NotNumeric,
    Missing,
    Mismatch,
    NoMemory,
}

pub(crate) const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// Longest value that may be a number: larger ones memcached keeps in pieces.
const NUMBER_LENGTH_MAX: usize = 1024;

/// `incr`, `decr`, and `ma` of what is there.
pub(crate) fn count(
    shared: &Shared,
    moment: Moment,
    key: &[u8],
    (delta, is_decrement): (u64, bool),
    compare: Option<u64>,
    given: Cas,
) -> Counted {
    let mut refused = Counted::Missing;
    let (mut value, mut expires) = (0, None);
    let mut digits = Digits::default();
    let mut padded = Vec::new();
    let outcome = shared.cache.store.update(key, moment.now, |item| {
        let Some(item) = item else {
            return Change::Keep;
        };
        if compare.is_some_and(|cas| cas != 0 && cas != item.cas) {
            refused = Counted::Mismatch;
            return Change::Keep;
        }
        let bytes = item.value.bytes();
        let Some(before) = numeric(bytes) else {
            refused = Counted::NotNumeric;
            return Change::Keep;
        };
        value = if is_decrement {
            before.saturating_sub(delta)
        } else {
            before.wrapping_add(delta)
        };
        expires = item.expires;
        let written = digits.write(value);
        if written.len() >= bytes.len() {
            return Change::Rewrite(written, given);
        }
        // As in memcached a value keeps its length; what it no longer needs are spaces.
        padded.extend_from_slice(written);
        padded.resize(bytes.len(), b' ');
        Change::Rewrite(&padded, given)
    });
    let counted = match outcome {
        Outcome::Stored(cas) => Counted::Yes(value, cas, expires),
        Outcome::NoRoom | Outcome::TooLarge => Counted::NoMemory,
        Outcome::Kept | Outcome::Removed => refused,
    };
    let counter = match (counted, is_decrement) {
        (Counted::Yes(..), false) => Counter::IncrHits,
        (Counted::Yes(..), true) => Counter::DecrHits,
        (Counted::Missing, false) => Counter::IncrMisses,
        (Counted::Missing, true) => Counter::DecrMisses,
        _ => return counted,
    };
    shared.counts.add(counter, 1);
    counted
}

/// The number that a value is: digits, and white space about them.
fn numeric(value: &[u8]) -> Option<u64> {
    if value.len() > NUMBER_LENGTH_MAX {
        return None;
    }
    let digits = value.trim_ascii_start();
    let end = digits.iter().position(|byte| !byte.is_ascii_digit());
    let (digits, rest) = digits.split_at_checked(end.unwrap_or(digits.len()))?;
    let ends = rest.first().is_none_or(u8::is_ascii_whitespace);
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    ends.then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_have_spaces_about_them() {
        assert_eq!(numeric(b"12"), Some(12));
        assert_eq!(numeric(b"9 "), Some(9));
        assert_eq!(numeric(b" 7"), Some(7));
        assert_eq!(numeric(b"18446744073709551615"), Some(u64::MAX));
        for value in [&b"18446744073709551616"[..], b"", b" ", b"-1", b"1x", b"x"] {
            assert_eq!(numeric(value), None);
        }
    }
}
