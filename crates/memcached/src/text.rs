//! Carries out the commands of the text protocol. The meta and binary protocols share the
//! operations on items: storing, counting, touching, deleting.

use proto::memcached::command::{Lookup, Mode};
use store::{
    Cas, Content, Item, Large, ObjectChange, Revision, Seconds, Tags, UpdateOutcome, Write,
};

use crate::cache::{CommandTime, ThreadContext};
use crate::counts::{ClassCounter, Counter};
use crate::output::{Digits, Output};
use crate::prefixes::KeyUse;
use crate::size_classes::{class_of, item_size};
use crate::watch::{EscapedKey, EventKind};

/// Mark of a stale item (flag `X`): the first client that reads it is told to refresh it.
pub(crate) const STALE: u8 = 1;
/// Mark of an item that some client has been told to refresh (flag `W`); others get `Z`.
pub(crate) const TOKEN_SENT: u8 = 2;
/// Mark of an item whose key was sent in base64.
pub(crate) const BINARY_KEY: u8 = 4;

/// A value received from a client.
#[derive(Debug)]
pub(crate) enum SentValue<'a> {
    /// A slice of the receive buffer.
    Whole(&'a [u8]),
    /// Assembled from several reads.
    Gathered(Large),
}

impl SentValue<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            SentValue::Whole(bytes) => bytes,
            SentValue::Gathered(large) => large.value(),
        }
    }
}

/// A command that stores a value, without the value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreCommand<'a> {
    pub(crate) mode: Mode,
    pub(crate) key: &'a [u8],
    pub(crate) flags: u32,
    pub(crate) expires: Option<Seconds>,
    /// The CAS that the existing item must have.
    pub(crate) compare: Option<u64>,
    pub(crate) cas: Cas,
    pub(crate) marks: u8,
    /// The item's tags, separated by commas.
    pub(crate) tags: &'a [u8],
    /// `ms … I`: a CAS lower than the item's overwrites the item as well, and marks it stale.
    pub(crate) allows_stale: bool,
    /// `ms … N`: appending or prepending to a missing item creates it, with this expiry.
    pub(crate) vivify: Option<Option<Seconds>>,
}

/// The outcome of [`store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreResult {
    /// Stored, with this CAS; the value now has this length in bytes.
    Yes(u64, usize),
    No,
    Exists,
    Missing,
    TooLarge,
    NoMemory,
}

pub(crate) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
pub(crate) const NO_MEMORY: &str = "SERVER_ERROR out of memory storing object";

/// Stores a value if the command's conditions hold.
pub(crate) fn store(
    shared: &ThreadContext,
    moment: CommandTime,
    storing: &StoreCommand<'_>,
    sent: SentValue<'_>,
) -> StoreResult {
    let StoreCommand { mode, key, .. } = *storing;
    shared.counts.add(Counter::Stores, 1);
    let item_max = shared.cache.settings.item_max;
    let length = sent.bytes().len();
    let is_joined = matches!(mode, Mode::Append | Mode::Prepend);
    let gathered;
    let (joined, content) = match sent {
        SentValue::Whole(bytes) => (bytes, Content::Copied(bytes)),
        SentValue::Gathered(large) if is_joined => {
            gathered = large;
            (gathered.value(), Content::Copied(gathered.value()))
        }
        SentValue::Gathered(large) => ([].as_slice(), Content::Given(large)),
    };
    let mut refused = StoreResult::No;
    let mut written = length;
    shared.cache.prefixes.count(key, KeyUse::Set);
    shared.cache.overtake(key);
    let outcome = shared.cache.store.update(key, moment.now, |item| {
        shared.tell_fetched(key, item.as_ref());
        let (expires, marks) = match (mode, item) {
            (Mode::Set, _) | (Mode::Add, None) | (Mode::Replace, Some(_)) => {
                (storing.expires, storing.marks)
            }
            (Mode::Add, Some(_)) | (Mode::Replace, None) => return ObjectChange::Keep,
            (Mode::Append | Mode::Prepend, None) => match storing.vivify {
                Some(expires) => (expires, storing.marks),
                None => return ObjectChange::Keep,
            },
            (Mode::Append | Mode::Prepend, Some(item)) => {
                written += item.value.len();
                if storing
                    .compare
                    .is_some_and(|cas| cas != 0 && cas != item.cas)
                {
                    refused = StoreResult::Exists;
                    return ObjectChange::Keep;
                }
                if item_size(key.len(), item.flags, written) > item_max {
                    return ObjectChange::Keep;
                }
                return if mode == Mode::Append {
                    ObjectChange::Append(joined, storing.cas)
                } else {
                    ObjectChange::Prepend(joined, storing.cas)
                };
            }
            (Mode::Cas, None) => {
                refused = StoreResult::Missing;
                return ObjectChange::Keep;
            }
            (Mode::Cas, Some(item)) if storing.compare == Some(item.cas) => {
                (storing.expires, storing.marks)
            }
            (Mode::Cas, Some(item))
                if storing.allows_stale && storing.compare.is_some_and(|cas| cas < item.cas) =>
            {
                (
                    item.expires,
                    storing.marks | STALE | item.marks & TOKEN_SENT,
                )
            }
            (Mode::Cas, Some(_)) => {
                refused = StoreResult::Exists;
                return ObjectChange::Keep;
            }
        };
        ObjectChange::Write(Write {
            content,
            flags: storing.flags,
            expires,
            cas: storing.cas,
            marks,
            tags: Tags::Given(storing.tags),
        })
    });
    let stored = match outcome {
        UpdateOutcome::Stored(cas) => StoreResult::Yes(cas, written),
        UpdateOutcome::TooLarge => StoreResult::TooLarge,
        UpdateOutcome::NoRoom => StoreResult::NoMemory,
        UpdateOutcome::Kept | UpdateOutcome::Removed => refused,
    };
    let class = class_of(item_size(key.len(), storing.flags, length));
    count_stored(shared, mode, class, stored);
    let watchers = &shared.cache.gone.watchers;
    if watchers.want(EventKind::Mutations) {
        tell_stored(shared, moment, storing, stored, written);
    }
    stored
}

/// Reports the outcome of storing a value of this length to watchers.
#[cold]
fn tell_stored(
    shared: &ThreadContext,
    moment: CommandTime,
    storing: &StoreCommand<'_>,
    stored: StoreResult,
    length: usize,
) {
    let command = match storing.mode {
        Mode::Set => "set",
        Mode::Add => "add",
        Mode::Replace => "replace",
        Mode::Append => "append",
        Mode::Prepend => "prepend",
        Mode::Cas => "cas",
    };
    let status = match stored {
        StoreResult::Yes(..) => "stored",
        StoreResult::No => "not_stored",
        StoreResult::Exists => "exists",
        StoreResult::Missing => "not_found",
        StoreResult::TooLarge => "too_large",
        StoreResult::NoMemory => "no_memory",
    };
    let left = storing
        .expires
        .map_or(0, |at| at.saturating_sub(moment.now));
    let class = class_of(item_size(storing.key.len(), storing.flags, length));
    let (key, connection) = (EscapedKey(storing.key), shared.shown_connection());
    shared.cache.gone.watchers.tell(
        EventKind::Mutations,
        format_args!(
            "type=item_store key={key} status={status} cmd={command} ttl={left} clsid={class} \
             cfd={connection} size={length}"
        ),
    );
}

/// Counts a command that stores. `class` is the size class of the item with the value as sent.
fn count_stored(shared: &ThreadContext, mode: Mode, class: usize, stored: StoreResult) {
    let counts = &shared.counts;
    counts.add_in_class(class, ClassCounter::Stores);
    let counter = match (mode, stored) {
        (_, StoreResult::TooLarge) => Counter::TooLarge,
        (_, StoreResult::NoMemory) => Counter::NoMemory,
        (Mode::Cas, StoreResult::Yes(..)) => {
            counts.add_in_class(class, ClassCounter::CasHits);
            Counter::CasHits
        }
        (Mode::Cas, StoreResult::Exists) => {
            counts.add_in_class(class, ClassCounter::CasBadValues);
            Counter::CasBadValues
        }
        (Mode::Cas, StoreResult::Missing) => Counter::CasMisses,
        _ => return,
    };
    counts.add(counter, 1);
}

/// The response line of the text protocol.
pub(crate) fn stored_text(stored: StoreResult) -> &'static str {
    match stored {
        StoreResult::Yes(..) => "STORED",
        StoreResult::No => "NOT_STORED",
        StoreResult::Exists => "EXISTS",
        StoreResult::Missing => "NOT_FOUND",
        StoreResult::TooLarge => TOO_LARGE,
        StoreResult::NoMemory => NO_MEMORY,
    }
}

/// Maximum length of a `VALUE` line without its key, and of the line break after the value, in
/// bytes.
const LOOKUP_HEAD_MAX: usize = 64;

/// Carries out `get`, `gets`, `gat` or `gats` for one key.
pub(crate) fn lookup(
    shared: &ThreadContext,
    moment: CommandTime,
    lookup: Lookup,
    key: &[u8],
    out: &mut Output,
) {
    let tell = |item: Item<'_>, out: &mut Output| {
        out.reserve(LOOKUP_HEAD_MAX + key.len() + item.value.len().min(store::COPIED_MAX));
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
        let read = |item: Item<'_>| {
            shared.tell_fetched(key, Some(&item));
            tell(item, out);
        };
        let found = store.get(key, moment.now, read).is_some();
        count_get(shared, key, found);
        return;
    };
    let revision = Revision {
        expires: Some(moment.expiry(i64::from(expires))),
        is_use: true,
        ..Revision::default()
    };
    shared.cache.overtake(key);
    let outcome = store.update(key, moment.now, |item| {
        shared.tell_fetched(key, item.as_ref());
        item.map_or(ObjectChange::Keep, |item| {
            tell(item, out);
            ObjectChange::Revise(revision)
        })
    });
    count_touch(shared, outcome);
    count_prefix(shared, key, matches!(outcome, UpdateOutcome::Stored(_)));
}

/// Counts a hit or a miss.
pub(crate) fn count_get(shared: &ThreadContext, key: &[u8], found: bool) {
    let counter = if found {
        Counter::GetHits
    } else {
        shared.tell_fetched(key, None);
        Counter::GetMisses
    };
    shared.counts.add(counter, 1);
    count_prefix(shared, key, found);
}

pub(crate) fn count_prefix(shared: &ThreadContext, key: &[u8], found: bool) {
    let what = if found { KeyUse::Hit } else { KeyUse::Miss };
    shared.cache.prefixes.count(key, what);
}

pub(crate) fn touch(
    shared: &ThreadContext,
    moment: CommandTime,
    key: &[u8],
    expires: i32,
) -> &'static str {
    let revision = Revision {
        expires: Some(moment.expiry(i64::from(expires))),
        is_use: true,
        ..Revision::default()
    };
    let store = &shared.cache.store;
    shared.cache.overtake(key);
    let outcome = store.update(key, moment.now, |_| ObjectChange::Revise(revision));
    count_touch(shared, outcome);
    if matches!(outcome, UpdateOutcome::Stored(_)) {
        "TOUCHED"
    } else {
        "NOT_FOUND"
    }
}

pub(crate) fn count_touch(shared: &ThreadContext, outcome: UpdateOutcome) {
    shared.counts.add(Counter::Touches, 1);
    let counter = match outcome {
        UpdateOutcome::Stored(_) => Counter::TouchHits,
        _ => Counter::TouchMisses,
    };
    shared.counts.add(counter, 1);
}

pub(crate) fn delete(shared: &ThreadContext, moment: CommandTime, key: &[u8]) -> &'static str {
    shared.cache.prefixes.count(key, KeyUse::Delete);
    shared.cache.overtake(key);
    let outcome = shared.cache.store.update(key, moment.now, |item| {
        let Some(item) = item else {
            return ObjectChange::Keep;
        };
        shared.tell_deleted("delete", &item);
        ObjectChange::Remove
    });
    if outcome == UpdateOutcome::Removed {
        shared.counts.add(Counter::DeleteHits, 1);
        "DELETED"
    } else {
        shared.counts.add(Counter::DeleteMisses, 1);
        "NOT_FOUND"
    }
}

/// The outcome of [`count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncrementResult {
    /// The new value, the CAS, and when it expires.
    Yes(u64, u64, Option<Seconds>),
    NotNumeric,
    Missing,
    Mismatch,
    NoMemory,
}

pub(crate) const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// Maximum length of a value that may be a number, in bytes. memcached splits larger values into
/// chunks, and refuses to count in those.
const NUMBER_LENGTH_MAX: usize = 1024;

/// Carries out `incr`, `decr`, or `ma` on an existing item.
pub(crate) fn count(
    shared: &ThreadContext,
    moment: CommandTime,
    key: &[u8],
    (delta, is_decrement): (u64, bool),
    compare: Option<u64>,
    given: Cas,
) -> IncrementResult {
    let mut refused = IncrementResult::Missing;
    let (mut value, mut expires) = (0, None);
    let mut digits = Digits::default();
    let mut padded = Vec::new();
    shared.cache.overtake(key);
    let outcome = shared.cache.store.update(key, moment.now, |item| {
        let Some(item) = item else {
            return ObjectChange::Keep;
        };
        if compare.is_some_and(|cas| cas != 0 && cas != item.cas) {
            refused = IncrementResult::Mismatch;
            return ObjectChange::Keep;
        }
        let bytes = item.value.bytes();
        let Some(before) = numeric(bytes) else {
            refused = IncrementResult::NotNumeric;
            return ObjectChange::Keep;
        };
        value = if is_decrement {
            before.saturating_sub(delta)
        } else {
            before.wrapping_add(delta)
        };
        expires = item.expires;
        let written = digits.write(value);
        if written.len() >= bytes.len() {
            return ObjectChange::Rewrite(written, given);
        }
        // As in memcached, a value does not get shorter: it is padded with spaces.
        padded.extend_from_slice(written);
        padded.resize(bytes.len(), b' ');
        ObjectChange::Rewrite(&padded, given)
    });
    let counted = match outcome {
        UpdateOutcome::Stored(cas) => IncrementResult::Yes(value, cas, expires),
        UpdateOutcome::NoRoom | UpdateOutcome::TooLarge => IncrementResult::NoMemory,
        UpdateOutcome::Kept | UpdateOutcome::Removed => refused,
    };
    let counter = match (counted, is_decrement) {
        (IncrementResult::Yes(..), false) => Counter::IncrHits,
        (IncrementResult::Yes(..), true) => Counter::DecrHits,
        (IncrementResult::Missing, false) => Counter::IncrMisses,
        (IncrementResult::Missing, true) => Counter::DecrMisses,
        _ => return counted,
    };
    shared.counts.add(counter, 1);
    counted
}

/// Parses a value as a number: digits, with optional white space before and after them.
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
