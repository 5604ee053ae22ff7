//! Carries out the commands of the meta protocol.

use proto::base64::{self, Alphabet};
use proto::memcached::command::Words;
use proto::memcached::meta::{Meta, Options, Verb};
use store::{Cas, Content, Item, ObjectChange, Revision, Seconds, Tags, UpdateOutcome, Write};

use crate::cache::{CommandTime, ThreadContext};
use crate::counts::Counter;
use crate::output::{Digits, Output};
use crate::prefixes::KeyUse;
use crate::size_classes::{class_of, item_size};
use crate::text::{
    self, BINARY_KEY, IncrementResult, NO_MEMORY, NOT_NUMERIC, STALE, SentValue, StoreCommand,
    StoreResult, TOKEN_SENT, TOO_LARGE,
};

/// memcached's response to a key that is not valid base64.
pub(crate) const BAD_KEY: &str = "CLIENT_ERROR error decoding key";

/// The command's key, decoded if it was sent in base64. `None` if it is not valid base64.
pub(crate) fn key_of<'a>(meta: &Meta<'a>, decoded: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    if !meta.options.is_binary {
        return Some(meta.key);
    }
    let is_whole = meta.key.len().is_multiple_of(4);
    let is_base64 = is_whole && base64::decode(meta.key, Alphabet::Standard, decoded);
    (is_base64 && !decoded.is_empty()).then_some(decoded)
}

fn marks_of(options: &Options) -> u8 {
    if options.is_binary { BINARY_KEY } else { 0 }
}

/// Facts about an item that a client can ask for by flags.
#[derive(Clone, Copy)]
struct ObjectFacts<'a> {
    key: &'a [u8],
    is_binary: bool,
    length: usize,
    flags: u32,
    cas: u64,
    expires: Option<Seconds>,
    used: Seconds,
    is_read: bool,
}

impl ObjectFacts<'_> {
    /// Writes the response to one flag; nothing if the flag asks for nothing.
    fn add(&self, flag: &[u8], moment: CommandTime, out: &mut Output) {
        let mut number = |letter, number| {
            out.byte(b' ');
            out.byte(letter);
            out.number(number);
        };
        match flag.first() {
            Some(b's') => number(b's', self.length as u64),
            Some(b'c') => number(b'c', self.cas),
            Some(b'f') => number(b'f', u64::from(self.flags)),
            Some(b'l') => number(b'l', u64::from(moment.now.saturating_sub(self.used))),
            Some(b'h') => number(b'h', u64::from(self.is_read)),
            Some(b't') => match self.expires {
                Some(at) => number(b't', u64::from(at.saturating_sub(moment.now))),
                None => out.text(b" t-1"),
            },
            _ => add_own(flag, self.key, self.is_binary, out),
        }
    }
}

/// Echoes what the client sent: the opaque token (`O`) or the key (`k`).
fn add_own(flag: &[u8], key: &[u8], is_binary: bool, out: &mut Output) {
    match flag.first() {
        Some(b'O') => {
            out.byte(b' ');
            out.text(flag);
        }
        Some(b'k') => {
            out.text(b" k");
            if is_binary {
                out.base64(key);
                out.text(b" b");
            } else {
                out.text(key);
            }
        }
        _ => {}
    }
}

/// Writes a response without facts about an item.
fn bare(status: &str, flags: Words<'_>, key: &[u8], is_binary: bool, out: &mut Output) {
    out.text(status.as_bytes());
    for flag in flags {
        add_own(flag, key, is_binary, out);
    }
    out.text(b"\r\n");
}

pub(crate) fn get(
    shared: &ThreadContext,
    moment: CommandTime,
    meta: &Meta<'_>,
    key: &[u8],
    out: &mut Output,
) {
    let options = &meta.options;
    let mut is_made = false;
    if options.vivify.is_some() || options.expires.is_some() {
        shared.cache.overtake(key);
    }
    let outcome = shared.cache.store.update(key, moment.now, |item| {
        shared.tell_fetched(key, item.as_ref());
        if let Some(item) = item {
            return ObjectChange::Revise(tell(&item, moment, meta, out));
        }
        let Some(expires) = options.vivify else {
            return ObjectChange::Keep;
        };
        is_made = true;
        ObjectChange::Write(Write {
            content: Content::Copied(&[]),
            flags: 0,
            expires: moment.expiry(i64::from(options.expires.unwrap_or(expires))),
            cas: shared.cas(options.cas),
            marks: TOKEN_SENT | marks_of(options),
            tags: Tags::None,
        })
    });
    let touches = options.expires.is_some();
    let counter = match (outcome, touches) {
        (UpdateOutcome::Stored(_), false) => Counter::GetHits,
        (UpdateOutcome::Stored(_), true) => Counter::TouchHits,
        (_, false) => Counter::GetMisses,
        (_, true) => Counter::TouchMisses,
    };
    shared.counts.add(counter, 1);
    shared.counts.add(Counter::Touches, u64::from(touches));
    let is_found = matches!(outcome, UpdateOutcome::Stored(_)) && !is_made;
    text::count_prefix(shared, key, is_found);
    match outcome {
        UpdateOutcome::Stored(cas) if is_made => {
            let told = ObjectFacts {
                key,
                is_binary: options.is_binary,
                length: 0,
                flags: 0,
                cas,
                expires: moment.expiry(i64::from(options.expires.or(options.vivify).unwrap_or(0))),
                used: moment.now,
                is_read: false,
            };
            out.text(if options.value { b"VA 0" } else { b"HD" });
            meta.flags.for_each(|flag| told.add(flag, moment, out));
            out.text(b" W\r\n");
            if options.value {
                out.text(b"\r\n");
            }
        }
        UpdateOutcome::Stored(_) => {}
        _ if options.is_quiet => {}
        _ => bare("EN", meta.flags, key, options.is_binary, out),
    }
}

/// Writes the response for an existing item. Returns the change that the command makes to it.
fn tell(item: &Item<'_>, moment: CommandTime, meta: &Meta<'_>, out: &mut Output) -> Revision {
    let options = &meta.options;
    let is_known = options.compare.is_some_and(|cas| cas == item.cas);
    let with_value = options.value && !is_known;
    if with_value {
        out.text(b"VA ");
        out.number(item.value.len() as u64);
    } else {
        out.text(b"HD");
    }
    let mut told = ObjectFacts {
        key: item.key,
        is_binary: item.marks & BINARY_KEY != 0,
        length: item.value.len(),
        flags: item.flags,
        cas: item.cas,
        expires: item.expires,
        used: item.used,
        is_read: item.is_read,
    };
    let is_sent = item.marks & TOKEN_SENT != 0;
    let mut wins = false;
    // In the order of the flags: a `t` or `R` after `T` sees the new expiry.
    for flag in meta.flags {
        match flag.first() {
            Some(b'T') => {
                told.expires = options
                    .expires
                    .and_then(|expires| moment.expiry(i64::from(expires)));
            }
            Some(b'R') => {
                let recache = options
                    .recache
                    .and_then(|recache| moment.expiry(i64::from(recache)));
                wins |= !is_sent && told.expires.is_some_and(|at| at < recache.unwrap_or(0));
            }
            _ => told.add(flag, moment, out),
        }
    }
    if is_sent {
        out.text(b" Z");
    }
    if item.marks & STALE != 0 {
        out.text(b" X");
        wins |= !is_sent;
    }
    if wins {
        out.text(b" W");
    }
    out.text(b"\r\n");
    if with_value {
        out.value(item.value);
        out.text(b"\r\n");
    }
    Revision {
        expires: options
            .expires
            .map(|expires| moment.expiry(i64::from(expires))),
        cas: None,
        marks: wins.then_some(item.marks | TOKEN_SENT),
        is_use: !options.no_update,
        used: None,
    }
}

/// Carries out `ms` after its value has been received.
pub(crate) fn set(
    shared: &ThreadContext,
    moment: CommandTime,
    meta: &Meta<'_>,
    key: &[u8],
    sent: SentValue<'_>,
    out: &mut Output,
) {
    let options = &meta.options;
    let Verb::Set { mode, .. } = meta.verb else {
        return;
    };
    let length = sent.bytes().len();
    let storing = StoreCommand {
        mode,
        key,
        flags: options.flags,
        expires: options
            .expires
            .and_then(|expires| moment.expiry(i64::from(expires))),
        compare: options.compare,
        cas: shared.cas(options.cas),
        marks: marks_of(options),
        tags: meta.tags().unwrap_or_default(),
        allows_stale: options.is_stale,
        vivify: options
            .vivify
            .map(|expires| moment.expiry(i64::from(expires))),
    };
    let stored = text::store(shared, moment, &storing, sent);
    let (status, cas, length) = match stored {
        StoreResult::Yes(..) if options.is_quiet => return,
        StoreResult::Yes(cas, length) => ("HD", cas, length),
        StoreResult::No => ("NS", 0, length),
        StoreResult::Exists => ("EX", 0, length),
        StoreResult::Missing => ("NF", 0, length),
        StoreResult::TooLarge => return out.line(TOO_LARGE),
        StoreResult::NoMemory => return out.line(NO_MEMORY),
    };
    out.text(status.as_bytes());
    for flag in meta.flags {
        match flag.first() {
            Some(b'c') => {
                out.text(b" c");
                out.number(cas);
            }
            Some(b's') => {
                out.text(b" s");
                out.number(length as u64);
            }
            _ => add_own(flag, key, options.is_binary, out),
        }
    }
    out.text(b"\r\n");
}

pub(crate) fn delete(
    shared: &ThreadContext,
    moment: CommandTime,
    meta: &Meta<'_>,
    key: &[u8],
    out: &mut Output,
) {
    let options = &meta.options;
    let expires = options
        .expires
        .map(|expires| moment.expiry(i64::from(expires)));
    let mut is_other = false;
    shared.cache.prefixes.count(key, KeyUse::Delete);
    shared.cache.overtake(key);
    let outcome = shared.cache.store.update(key, moment.now, |item| {
        let Some(item) = item else {
            return ObjectChange::Keep;
        };
        if options.compare.is_some_and(|cas| cas != item.cas) {
            is_other = true;
            return ObjectChange::Keep;
        }
        if options.removes_value {
            let unchanged = Cas::Given(options.cas.unwrap_or(item.cas));
            let stale = if options.is_stale { STALE } else { 0 };
            return ObjectChange::Write(Write {
                content: Content::Copied(&[]),
                flags: options.flags,
                expires: expires.flatten(),
                cas: if options.is_stale {
                    shared.cas(options.cas)
                } else {
                    unchanged
                },
                marks: stale | item.marks & BINARY_KEY,
                tags: Tags::Kept,
            });
        }
        if options.is_stale {
            return ObjectChange::Revise(Revision {
                expires,
                cas: Some(shared.cas(options.cas)),
                marks: Some(item.marks & !TOKEN_SENT | STALE),
                is_use: false,
                used: None,
            });
        }
        shared.tell_deleted("md", &item);
        ObjectChange::Remove
    });
    let status = match outcome {
        UpdateOutcome::Removed | UpdateOutcome::Stored(_) => "HD",
        UpdateOutcome::Kept if is_other => "EX",
        UpdateOutcome::Kept => "NF",
        UpdateOutcome::TooLarge | UpdateOutcome::NoRoom => {
            return out.line("SERVER_ERROR out of memory");
        }
    };
    if status != "HD" {
        shared.counts.add(Counter::DeleteMisses, 1);
    } else if !options.is_stale {
        shared.counts.add(Counter::DeleteHits, 1);
    }
    if status == "HD" && options.is_quiet {
        return;
    }
    bare(status, meta.flags, key, options.is_binary, out);
}

pub(crate) fn arithmetic(
    shared: &ThreadContext,
    moment: CommandTime,
    meta: &Meta<'_>,
    key: &[u8],
    out: &mut Output,
) {
    let options = &meta.options;
    let is_decrement = meta.verb == (Verb::Arithmetic { is_decrement: true });
    let delta = options.delta.unwrap_or(1);
    let counted = loop {
        let step = (delta, is_decrement);
        let counted = text::count(
            shared,
            moment,
            key,
            step,
            options.compare,
            shared.cas(options.cas),
        );
        let (IncrementResult::Missing, Some(expires)) = (counted, options.vivify) else {
            break counted;
        };
        // If another client has created the counter meanwhile, count again.
        if let Some(made) = make_counter(shared, moment, meta, key, expires) {
            break made;
        }
    };
    match counted {
        IncrementResult::Yes(value, cas, expires) => {
            if let Some(expires) = options.expires {
                let revision = Revision {
                    expires: Some(moment.expiry(i64::from(expires))),
                    ..Revision::default()
                };
                let store = &shared.cache.store;
                store.update(key, moment.now, |_| ObjectChange::Revise(revision));
            }
            if !options.is_quiet {
                tell_counted(meta, moment, key, (value, cas, expires), out);
            }
        }
        IncrementResult::NotNumeric => out.line(NOT_NUMERIC),
        IncrementResult::NoMemory => out.line("SERVER_ERROR out of memory"),
        IncrementResult::Missing => bare("NF", meta.flags, key, options.is_binary, out),
        IncrementResult::Mismatch => bare("EX", meta.flags, key, options.is_binary, out),
    }
}

/// Creates a counter with its initial value. `None` if the key exists by now.
fn make_counter(
    shared: &ThreadContext,
    moment: CommandTime,
    meta: &Meta<'_>,
    key: &[u8],
    expires: i32,
) -> Option<IncrementResult> {
    let options = &meta.options;
    let expires = moment.expiry(i64::from(expires));
    let mut digits = Digits::default();
    let outcome = shared.cache.store.update(key, moment.now, |item| {
        if item.is_some() {
            return ObjectChange::Keep;
        }
        ObjectChange::Write(Write {
            content: Content::Copied(digits.write(options.initial)),
            flags: 0,
            expires,
            cas: shared.cas(options.cas),
            marks: marks_of(options),
            tags: Tags::None,
        })
    });
    match outcome {
        UpdateOutcome::Kept => None,
        UpdateOutcome::Stored(cas) => Some(IncrementResult::Yes(options.initial, cas, expires)),
        _ => Some(IncrementResult::NoMemory),
    }
}

fn tell_counted(
    meta: &Meta<'_>,
    moment: CommandTime,
    key: &[u8],
    (value, cas, expires): (u64, u64, Option<Seconds>),
    out: &mut Output,
) {
    let options = &meta.options;
    let mut digits = Digits::default();
    let digits = digits.write(value);
    let mut told = ObjectFacts {
        key,
        is_binary: options.is_binary,
        length: digits.len(),
        flags: 0,
        cas,
        expires,
        used: moment.now,
        is_read: true,
    };
    if options.value {
        out.text(b"VA ");
        out.number(digits.len() as u64);
    } else {
        out.text(b"HD");
    }
    for flag in meta.flags {
        match flag.first() {
            Some(b'T') => {
                told.expires = options
                    .expires
                    .and_then(|expires| moment.expiry(i64::from(expires)));
            }
            Some(b't' | b'c' | b'O' | b'k') => told.add(flag, moment, out),
            _ => {}
        }
    }
    out.text(b"\r\n");
    if options.value {
        out.text(digits);
        out.text(b"\r\n");
    }
}

pub(crate) fn debug(shared: &ThreadContext, moment: CommandTime, key: &[u8], out: &mut Output) {
    let found = shared.cache.store.peek(key, moment.now, |item| {
        let size = item_size(item.key.len(), item.flags, item.value.len());
        out.text(b"ME ");
        if item.marks & BINARY_KEY != 0 {
            out.base64(item.key);
        } else {
            out.text(item.key);
        }
        let expires = item
            .expires
            .map_or(-1, |at| i64::from(at) - i64::from(moment.now));
        let idle = moment.now.saturating_sub(item.used);
        let read = if item.is_read { "yes" } else { "no" };
        let class = class_of(size);
        let cas = item.cas;
        out.line(&format!(
            " exp={expires} la={idle} cas={cas} fetch={read} cls={class} size={size}"
        ));
    });
    if found.is_none() {
        out.line("EN");
    }
}
