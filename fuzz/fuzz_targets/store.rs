//! The store in memory beside a plain map: whatever is stored, read, changed, forgotten and made
//! room for, what the store has is what the map has, and never what is over. What it has evicted is
//! all that the map may have alone.
#![no_main]

use std::collections::{HashMap, HashSet};

use libfuzzer_sys::{arbitrary, fuzz_target};
use store::{Cas, Content, Cursor, Large, ObjectChange, Settings, Store, Tags, UpdateOutcome, Write};

/// The longest value, in bytes.
const VALUE_MAX: usize = 4096;

/// The smallest limit that is tried, in bytes.
const LIMIT_MIN: usize = 256 * 1024;

#[derive(Debug, arbitrary::Arbitrary)]
enum Operation {
    Set { key: u8, length: u16, fill: u8, lives: Option<u8>, given: bool },
    Append { key: u8, length: u8, fill: u8 },
    Prepend { key: u8, length: u8, fill: u8 },
    Rewrite { key: u8, length: u16, fill: u8 },
    Remove { key: u8 },
    Get { key: u8 },
    Flush,
    Sweep,
    Pass { seconds: u16 },
    Limit { kibibytes: u16 },
    Walk,
}

#[derive(Debug, arbitrary::Arbitrary)]
struct Input {
    is_small: bool,
    operations: Vec<Operation>,
}

/// What the map has of an object.
struct Plain {
    value: Vec<u8>,
    tags: Vec<u8>,
    expires: Option<u32>,
}

/// A walk over all objects, a step of which is made now and then.
struct Walk {
    next: Cursor,
    /// Keys of objects that have been there since it began.
    stay: HashSet<u8>,
    seen: HashSet<Vec<u8>>,
}

/// Keys of several lengths; of the first few there are more than one per bucket.
fn key_of(key: u8) -> Vec<u8> {
    vec![key; usize::from(key % 7) * 20 + 1]
}

fuzz_target!(|input: Input| {
    // One shard in either case, so that a walk takes more than a step for a shard.
    let limit = if input.is_small { LIMIT_MIN } else { 7 << 20 };
    let store = Store::new(Settings { limit, value_max: VALUE_MAX, evicts: true });
    let mut may_evict = input.is_small;
    let mut map: HashMap<u8, Plain> = HashMap::new();
    let mut now = 1;
    let mut walk: Option<Walk> = None;
    for operation in &input.operations {
        map.retain(|_, plain| plain.expires.is_none_or(|at| at > now));
        if let Some(walk) = &mut walk {
            walk.stay.retain(|key| map.contains_key(key));
        }
        let (number, change, value) = match operation {
            Operation::Flush => {
                store.flush(now, now);
                map.clear();
                continue;
            }
            Operation::Sweep => {
                store.sweep(now);
                continue;
            }
            Operation::Walk => {
                let mut step = walk.take().unwrap_or_else(|| Walk {
                    next: Cursor::default(),
                    stay: map.keys().copied().collect(),
                    seen: HashSet::new(),
                });
                let next = store.visit(step.next, now, |item| {
                    step.seen.insert(item.key.to_vec());
                });
                match next {
                    Some(next) => walk = Some(Walk { next, ..step }),
                    // What was evicted and stored again meanwhile need not be seen.
                    None if may_evict => {}
                    None => {
                        let is_seen = |key: &u8| step.seen.contains(&key_of(*key));
                        assert!(step.stay.iter().all(is_seen), "a walk has missed an object");
                    }
                }
                continue;
            }
            Operation::Pass { seconds } => {
                now += u32::from(*seconds);
                continue;
            }
            Operation::Limit { kibibytes } => {
                may_evict = true;
                store.set_limit(LIMIT_MIN + (usize::from(*kibibytes) << 10));
                store.shrink(now);
                continue;
            }
            Operation::Get { key } => (*key, None, Vec::new()),
            Operation::Remove { key } => (*key, Some(0), Vec::new()),
            Operation::Set { key, length, fill, .. } => {
                (*key, Some(1), vec![*fill; usize::from(*length) % (VALUE_MAX + 8)])
            }
            Operation::Append { key, length, fill } => {
                (*key, Some(2), vec![*fill; usize::from(*length)])
            }
            Operation::Prepend { key, length, fill } => {
                (*key, Some(3), vec![*fill; usize::from(*length)])
            }
            Operation::Rewrite { key, length, fill } => {
                (*key, Some(4), vec![*fill; usize::from(*length) % VALUE_MAX])
            }
        };
        let key = key_of(number);
        let seen = store.get(&key, now, |item| {
            (item.value.bytes().to_vec(), item.tags.to_vec(), item.expires)
        });
        match (&seen, map.get(&number)) {
            (Some((value, tags, expires)), Some(plain)) => {
                assert_eq!((value, tags), (&plain.value, &plain.tags));
                assert_eq!(expires, &plain.expires);
            }
            (None, Some(_)) => {
                assert!(may_evict, "an object is gone that had room");
                map.remove(&number);
            }
            (Some(_), None) => panic!("an object is there that was never stored, or is over"),
            (None, None) => {}
        }
        let Some(change) = change else { continue };
        let expires = match operation {
            Operation::Set { lives: Some(lives), .. } => Some(now + 1 + u32::from(*lives)),
            _ => None,
        };
        let tags = match operation {
            Operation::Set { fill, .. } if fill & 1 != 0 => vec![*fill; usize::from(*fill)],
            _ => Vec::new(),
        };
        let write = |content| {
            ObjectChange::Write(Write {
                content,
                flags: 0,
                expires,
                cas: Cas::Next,
                marks: 0,
                tags: Tags::Given(&tags),
            })
        };
        let outcome = store.update(&key, now, |item| match (change, item.is_some()) {
            (0, _) => ObjectChange::Remove,
            (2, true) => ObjectChange::Append(&value, Cas::Next),
            (3, true) => ObjectChange::Prepend(&value, Cas::Next),
            (4, true) => ObjectChange::Rewrite(&value, Cas::Next),
            (1, _) if matches!(operation, Operation::Set { given: true, .. }) => {
                let mut large = Large::new(&key, value.len());
                large.extend(&value);
                write(Content::Given(large))
            }
            (1, _) => write(Content::Copied(&value)),
            _ => ObjectChange::Keep,
        });
        match (outcome, change) {
            (UpdateOutcome::Stored(_), 1) => {
                map.insert(number, Plain { value, tags, expires });
            }
            (UpdateOutcome::Stored(_), _) => {
                let plain = map.get_mut(&number).expect("only what is there is changed");
                match change {
                    2 => plain.value.extend(value),
                    3 => drop(plain.value.splice(0..0, value)),
                    _ => plain.value = value,
                }
            }
            (UpdateOutcome::Kept, _) => {}
            (_, 0) => drop(map.remove(&number)),
            // What does not fit is refused, and what it was to replace has gone.
            _ => drop(map.remove(&number)),
        }
        let counts = store.counts();
        assert!(counts.occupied <= counts.limit + (64 << 10), "{counts:?}");
    }
});
