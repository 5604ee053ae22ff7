//! The store as a whole: beside a plain map, beyond its limit, and by several threads.

use std::collections::HashMap;

use bytes::Bytes;

use super::*;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

fn store(limit: usize) -> Store {
    Store::new(Settings {
        limit,
        value_max: 64 * KIB,
        evicts: true,
    })
}

fn set(
    store: &Store,
    key: &[u8],
    value: &[u8],
    expires: Option<Seconds>,
    now: Seconds,
) -> UpdateOutcome {
    store.update(key, now, |_| {
        ObjectChange::Write(Write {
            content: Content::Copied(value),
            flags: 0,
            expires,
            cas: Cas::Next,
            marks: 0,
            tags: Tags::None,
        })
    })
}

fn get(store: &Store, key: &[u8], now: Seconds) -> Option<Vec<u8>> {
    store.get(key, now, |item| {
        assert_eq!(item.key, key);
        item.value.bytes().to_vec()
    })
}

/// Numbers that look random and are the same in every run (Vigna's splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[test]
fn what_is_stored_is_there_until_it_is_removed() {
    let store = store(4 * MIB);
    assert_eq!(get(&store, b"a", 1), None);
    assert!(matches!(
        set(&store, b"a", b"one", None, 1),
        UpdateOutcome::Stored(_)
    ));
    assert!(matches!(
        set(&store, b"b", b"", None, 1),
        UpdateOutcome::Stored(_)
    ));
    assert_eq!(get(&store, b"a", 1).unwrap(), b"one");
    assert_eq!(get(&store, b"b", 1).unwrap(), b"");
    set(&store, b"a", b"a longer one", None, 1);
    assert_eq!(get(&store, b"a", 1).unwrap(), b"a longer one");
    assert!(store.remove(b"a", 1) && !store.remove(b"a", 1));
    assert_eq!(get(&store, b"a", 1), None);
    assert_eq!(store.counts().objects, 1);
}

#[test]
fn an_object_is_there_up_to_the_second_before_it_expires() {
    let store = store(4 * MIB);
    set(&store, b"a", b"1", Some(100), 10);
    assert!(get(&store, b"a", 99).is_some());
    assert!(get(&store, b"a", 100).is_none());
    assert_eq!(store.counts().objects, 0);
    assert_eq!(store.counts().expired, 1);
    set(&store, b"a", b"1", Some(100), 10);
    let later = Revision {
        expires: Some(Some(200)),
        ..Revision::default()
    };
    store.update(b"a", 10, |_| ObjectChange::Revise(later));
    assert!(get(&store, b"a", 199).is_some());
    assert!(get(&store, b"a", 200).is_none());
}

#[test]
fn a_use_is_seen_by_the_next() {
    let store = store(4 * MIB);
    set(&store, b"a", b"1", None, 10);
    let seen = |now| {
        store
            .get(b"a", now, |item| (item.used, item.is_read))
            .unwrap()
    };
    assert_eq!(store.peek(b"a", 11, |item| item.is_read), Some(false));
    assert_eq!(seen(12), (10, false));
    assert_eq!(seen(15), (12, true));
}

#[test]
fn every_store_has_another_cas_or_the_one_that_is_given() {
    let store = store(64 * MIB);
    let UpdateOutcome::Stored(first) = set(&store, b"a", b"1", None, 1) else {
        panic!()
    };
    let UpdateOutcome::Stored(second) = set(&store, b"a", b"2", None, 1) else {
        panic!()
    };
    assert!(first != 0 && second > first);
    let given = Revision {
        cas: Some(Cas::Given(9_999_999_999)),
        marks: Some(5),
        ..Revision::default()
    };
    store.update(b"a", 1, |_| ObjectChange::Revise(given));
    let seen = store.get(b"a", 1, |item| (item.cas, item.marks, item.flags));
    assert_eq!(seen, Some((9_999_999_999, 5, 0)));
}

#[test]
fn values_are_joined_whether_they_are_short_or_large() {
    let store = store(4 * MIB);
    let mut expected = Vec::new();
    set(&store, b"a", b"", Some(50), 1);
    for step in 0..200_u8 {
        let part = vec![step; 97];
        if step % 2 == 0 {
            store.update(b"a", 2, |_| ObjectChange::Append(&part, Cas::Next));
            expected.extend_from_slice(&part);
        } else {
            store.update(b"a", 2, |_| ObjectChange::Prepend(&part, Cas::Next));
            expected.splice(0..0, part);
        }
        assert_eq!(get(&store, b"a", 3).unwrap(), expected);
    }
    assert_eq!(
        store.update(b"b", 2, |_| ObjectChange::Append(b"x", Cas::Next)),
        UpdateOutcome::Kept
    );
    assert!(get(&store, b"a", 50).is_none(), "it has kept its expiry");
}

#[test]
fn what_is_lent_outlives_its_object() {
    let store = store(4 * MIB);
    let value = vec![7; 40 * KIB];
    set(&store, b"large", &value, None, 1);
    let lent = store
        .get(b"large", 1, |item| item.value.lent())
        .unwrap()
        .unwrap();
    let before = store.counts().occupied;
    store.remove(b"large", 1);
    let counts = store.counts();
    assert!(counts.lent > 40 * KIB && counts.occupied > before - KIB);
    assert_eq!(lent, Bytes::from(value));
    drop(lent);
    let counts = store.counts();
    assert!(counts.lent == 0 && counts.occupied + 40 * KIB <= before);

    let mut large = Large::new(b"given", 30 * KIB);
    (0..30).for_each(|number| large.extend(&[number; KIB]));
    let value = large.value().to_vec();
    store.update(b"given", 1, |_| {
        ObjectChange::Write(Write {
            content: Content::Given(large),
            flags: 7,
            expires: None,
            cas: Cas::Next,
            marks: 0,
            tags: Tags::None,
        })
    });
    let seen = store.get(b"given", 1, |item| {
        (item.flags, item.value.bytes().to_vec())
    });
    assert_eq!(seen, Some((7, value)));
}

#[test]
fn what_is_lent_and_removed_meanwhile_counts_against_the_bound() {
    let store = store(4 * MIB);
    let value = vec![7; 60 * KIB];
    let mut lent = Vec::new();
    // A hundred slow readers of what is written anew for each of them: more than there is room for.
    for _ in 0..100_u32 {
        if matches!(set(&store, b"a", &value, None, 1), UpdateOutcome::Stored(_)) {
            let share = store.get(b"a", 1, |item| item.value.lent());
            lent.extend(share.unwrap());
        }
        let counts = store.counts();
        assert!(counts.occupied <= counts.limit, "{counts:?}");
    }
    assert!((60..70).contains(&lent.len()), "{} of 60 KiB", lent.len());
    assert_eq!(set(&store, b"b", &value, None, 1), UpdateOutcome::NoRoom);
    lent.truncate(10);
    assert!(matches!(
        set(&store, b"b", &value, None, 1),
        UpdateOutcome::Stored(_)
    ));
    assert!(lent.iter().all(|share| share == &value[..]));
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn a_write_that_finds_a_smaller_limit_frees_a_stretch_of_what_is_above() {
    let store = store(4 * MIB);
    let number = |number: u32| number.to_le_bytes();
    (0..60_000).for_each(|at| {
        set(&store, &number(at), &[1; 40], None, 1);
    });
    let mut before = store.counts();
    assert_eq!(store.shards(), 1);
    store.set_limit(MIB);
    let mut writes = 0;
    while before.occupied > MIB {
        set(&store, &number(writes), &[2; 40], None, 1);
        let now = store.counts();
        let freed = before.occupied - now.occupied;
        assert!(
            (60 * KIB..400 * KIB).contains(&freed) || now.occupied <= MIB,
            "{freed}"
        );
        (before, writes) = (now, writes + 1);
    }
    assert!(writes > 20, "{writes}");
}

#[test]
fn a_flush_forgets_what_was_stored_before_its_time() {
    let store = store(4 * MIB);
    set(&store, b"a", b"1", None, 10);
    store.flush(10, 10);
    assert_eq!(get(&store, b"a", 10), None);
    set(&store, b"a", b"2", None, 10);
    store.flush(20, 11);
    assert!(get(&store, b"a", 19).is_some());
    set(&store, b"b", b"2", None, 20);
    assert!(get(&store, b"a", 20).is_none());
    assert!(get(&store, b"b", 21).is_some());
}

#[test]
fn too_large_is_refused_and_what_was_there_is_gone() {
    let store = store(MIB);
    set(&store, b"a", b"old", None, 1);
    let large = vec![0; 600 * KIB];
    assert_eq!(set(&store, b"a", &large, None, 1), UpdateOutcome::TooLarge);
    assert_eq!(get(&store, b"a", 1), None);
    let long = vec![b'k'; KEY_LENGTH_MAX + 1];
    assert_eq!(set(&store, &long, b"", None, 1), UpdateOutcome::TooLarge);
    assert!(matches!(
        set(&store, &long[1..], b"1", None, 1),
        UpdateOutcome::Stored(_)
    ));
    assert_eq!(get(&store, &long[1..], 1).unwrap(), b"1");
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn a_store_that_does_not_evict_refuses_and_keeps_what_it_has() {
    let store = Store::new(Settings {
        limit: MIB,
        value_max: KIB,
        evicts: false,
    });
    let value = [1; 100];
    let mut stored = 0_u32;
    while let UpdateOutcome::Stored(_) = set(&store, &stored.to_le_bytes(), &value, Some(500), 1) {
        stored += 1;
    }
    assert!(stored > 6000, "{stored}");
    assert!((0..stored).all(|number| get(&store, &number.to_le_bytes(), 2).is_some()));
    assert_eq!(store.counts().evicted, 0);
    // What has expired makes room by itself.
    assert!(matches!(
        set(&store, b"later", &value, None, 500),
        UpdateOutcome::Stored(_)
    ));
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn the_limit_holds_for_twenty_times_as_much() {
    for lengths in [1..200, 1..20_000, 30_000..64_000] {
        let store = store(4 * MIB);
        let mut numbers = Numbers(3);
        let value = vec![5; 64 * KIB];
        let (mut written, mut number) = (0, 0_u32);
        while written < 20 * 4 * MIB {
            let span = (lengths.end - lengths.start) as u64;
            let length = lengths.start + numbers.below(span) as usize;
            let expires = (numbers.below(3) == 0).then(|| 10 + numbers.below(100_000) as u32);
            let key = number.to_le_bytes();
            let outcome = set(&store, &key, &value[..length], expires, number / 1000);
            assert!(matches!(outcome, UpdateOutcome::Stored(_)));
            written += length + 30;
            number += 1;
            let StoreStatistics {
                occupied, limit, ..
            } = store.counts();
            assert!(occupied <= limit + 64 * KIB, "{occupied} of {limit}");
        }
        let counts = store.counts();
        assert!(counts.live > counts.limit * 3 / 4, "{counts:?}");
        assert!(get(&store, &(number - 1).to_le_bytes(), number / 1000).is_some());
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn a_smaller_limit_gives_memory_back() {
    let store = store(16 * MIB);
    for number in 0..200_000_u32 {
        set(&store, &number.to_le_bytes(), &[1; 60], None, 1);
    }
    let before = store.counts();
    store.set_limit(2 * MIB);
    assert!(store.shrink(1) && !store.shrink(1));
    let after = store.counts();
    assert!(
        before.occupied > 15 * MIB && after.occupied <= 2 * MIB,
        "{after:?}"
    );
    assert!(after.tables < before.tables / 4, "{after:?} {before:?}");
    assert!(after.objects > 10_000);
    store.set_limit(16 * MIB);
    set(&store, b"a", &[1; 60], None, 1);
    assert!(get(&store, b"a", 1).is_some());
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn what_is_written_again_and_again_evicts_nothing() {
    let store = store(4 * MIB);
    let mut numbers = Numbers(5);
    let value = [9; 2000];
    for _ in 0..200_000 {
        let key = numbers.below(1000) as u32;
        let length = numbers.below(2000) as usize;
        set(&store, &key.to_le_bytes(), &value[..length], None, 1);
    }
    let counts = store.counts();
    assert_eq!((counts.evicted, counts.objects), (0, 1000), "{counts:?}");
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn expired_segments_are_freed_without_being_asked_for() {
    let store = store(4 * MIB);
    for number in 0..20_000_u32 {
        set(
            &store,
            &number.to_le_bytes(),
            &[1; 100],
            Some(10 + number % 40),
            1,
        );
    }
    let before = store.counts().occupied;
    while store.sweep(60) {}
    let counts = store.counts();
    assert_eq!((counts.objects, counts.expired), (0, 20_000));
    // The memory of segments goes back to the system bit by bit.
    (61..121).for_each(|now| assert!(!store.sweep(now)));
    assert!(store.counts().occupied < before / 10);
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn a_walk_sees_everything() {
    let store = store(64 * MIB);
    for number in 0..10_000_u32 {
        set(
            &store,
            &number.to_le_bytes(),
            b"1",
            (number < 100).then_some(5),
            1,
        );
    }
    let mut seen = std::collections::HashSet::new();
    let mut cursor = Some(Cursor::default());
    while let Some(from) = cursor {
        cursor = store.visit(from, 5, |item| {
            assert!(seen.insert(item.key.to_vec()));
        });
    }
    assert_eq!(seen.len(), 9900);
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn a_trim_is_due_when_many_large_values_have_gone() {
    let store = store(4 * MIB);
    for number in 0..200_u32 {
        set(&store, &number.to_le_bytes(), &[1; 100], None, 1);
        set(&store, &number.to_le_bytes(), &[1; 101], None, 1);
    }
    assert!(!store.is_trim_due());
    for number in 0..9_u32 {
        assert!(!store.is_trim_due());
        set(&store, b"large", &vec![1; 64 * KIB], None, number);
    }
    // Eight of them have been replaced: more than half a mebibyte.
    assert!(store.is_trim_due());
    assert!(!store.is_trim_due());
}

/// Other objects come and go between the steps of a walk, so that the index grows and shrinks.
#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn a_walk_sees_all_that_stays_whatever_comes_and_goes() {
    for seed in 0..30 {
        let mut numbers = Numbers(seed);
        let store = store(4 * MIB);
        let stays = 500 + numbers.below(1500) as u32;
        for number in 0..stays {
            set(&store, &number.to_le_bytes(), b"1", None, 1);
        }
        let (mut first, mut behind) = (1 << 20, 1 << 20);
        let mut seen = std::collections::HashSet::new();
        let mut cursor = Some(Cursor::default());
        let mut steps = 0;
        while let Some(from) = cursor {
            steps += 1;
            assert!(steps < 10_000, "a walk that does not end");
            cursor = store.visit(from, 1, |item| {
                seen.insert(item.key.to_vec());
            });
            let count = numbers.below(2000) as u32;
            if numbers.below(2) == 0 && behind - first < 20_000 {
                for number in behind..behind + count {
                    set(&store, &number.to_le_bytes(), b"1", None, 1);
                }
                behind += count;
            } else {
                for number in first..behind.min(first + 2 * count) {
                    assert!(store.remove(&number.to_le_bytes(), 1));
                }
                first = behind.min(first + 2 * count);
            }
        }
        assert_eq!(store.counts().evicted, 0);
        for number in 0..stays {
            assert!(seen.contains(&number.to_le_bytes()[..]), "seed {seed}");
        }
    }
}

/// How many of a hundred requests find what they ask for, where misses store it.
struct Trace {
    hits: u64,
    asked: u64,
}

impl Trace {
    fn ask(&mut self, store: &Store, key: u64) {
        self.asked += 1;
        let key = key.to_le_bytes();
        match store.get(&key, 1, |_| ()) {
            Some(()) => self.hits += 1,
            None => {
                set(store, &key, &[1; 200], None, 1);
            }
        }
    }

    fn percent(&self) -> f64 {
        self.hits as f64 * 100.0 / self.asked as f64
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn what_is_hot_survives_scans() {
    // Room for about 16,000 objects: 10,000 hot ones, between scans of ten times as many that are
    // asked for once.
    let store = store(4 * MIB);
    let mut numbers = Numbers(11);
    let mut scanned = 1 << 32;
    let (mut hot, mut warm_up) = (Trace { hits: 0, asked: 0 }, Trace { hits: 0, asked: 0 });
    for round in 0..300_000 {
        let trace = if round < 100_000 {
            &mut warm_up
        } else {
            &mut hot
        };
        trace.ask(&store, numbers.below(10_000));
        if round >= 100_000 && round % 2 == 0 {
            Trace { hits: 0, asked: 0 }.ask(&store, scanned);
            scanned += 1;
        }
    }
    assert!(hot.percent() > 90.0, "{}", hot.percent());
}

/// The object that a request asks for, by Zipf's law with an exponent of 1: 300,000 objects.
fn zipf(numbers: &mut Numbers) -> u64 {
    let uniform = numbers.below(1 << 53) as f64 / (1_u64 << 53) as f64;
    (300_000_f64.powf(uniform)) as u64
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn it_hits_as_often_as_s3_fifo_does() {
    // 1 % and 10 % of 300,000 objects of 260 bytes with all that belongs to them.
    for (objects, least) in [(3_000, 55.0), (30_000, 71.5)] {
        let store = store(objects * 270);
        let mut numbers = Numbers(17);
        let mut trace = Trace { hits: 0, asked: 0 };
        (0..500_000).for_each(|_| trace.ask(&store, zipf(&mut numbers)));
        let counts = store.counts();
        assert!(trace.percent() > least, "{} {counts:?}", trace.percent());
    }
}

/// What a plain map has of an object.
#[derive(Clone)]
struct Plain {
    value: Vec<u8>,
    expires: Option<Seconds>,
    flags: u32,
    cas: u64,
}

/// One random operation to both; what the store has must be what the map has.
fn step(
    store: &Store,
    map: &mut HashMap<u64, Plain>,
    numbers: &mut Numbers,
    now: Seconds,
    may_evict: bool,
) {
    let number = numbers.below(500);
    let key = number.to_le_bytes();
    let length = match numbers.below(20) {
        0 => numbers.below(40_000),
        _ => numbers.below(300),
    };
    let value: Vec<u8> = (0..length).map(|at| (at ^ number) as u8).collect();
    let expires = (numbers.below(2) == 0).then(|| now + numbers.below(400) as u32);
    let flags = [0, numbers.next() as u32][numbers.below(2) as usize];
    map.retain(|_, plain| plain.expires.is_none_or(|at| at > now));
    let seen = store.peek(&key, now, |item| Plain {
        value: item.value.bytes().to_vec(),
        expires: item.expires,
        flags: item.flags,
        cas: item.cas,
    });
    match (&seen, map.get(&number)) {
        (Some(seen), Some(plain)) => {
            assert_eq!(seen.value, plain.value);
            assert_eq!(
                (seen.expires, seen.flags, seen.cas),
                (plain.expires, plain.flags, plain.cas)
            );
        }
        (None, None) => {}
        (None, Some(_)) if may_evict => {
            map.remove(&number);
        }
        (seen, plain) => panic!(
            "{} in the store, {} in the map",
            seen.is_some(),
            plain.is_some()
        ),
    }
    let write = |content| {
        ObjectChange::Write(Write {
            content,
            flags,
            expires,
            cas: Cas::Next,
            marks: 0,
            tags: Tags::None,
        })
    };
    let kind = numbers.below(10);
    let outcome = store.update(&key, now, |item| match kind {
        0 => ObjectChange::Remove,
        1 => ObjectChange::Append(&value, Cas::Next),
        2 => ObjectChange::Prepend(&value, Cas::Next),
        3 => ObjectChange::Revise(Revision {
            expires: Some(expires),
            is_use: true,
            ..Revision::default()
        }),
        4 if item.is_some() => ObjectChange::Rewrite(&value, Cas::Next),
        5 => {
            let mut large = Large::new(&key, 0);
            large.extend(&value);
            write(Content::Given(large))
        }
        _ => write(Content::Copied(&value)),
    });
    let UpdateOutcome::Stored(cas) = outcome else {
        if outcome != UpdateOutcome::Kept {
            map.remove(&number);
        }
        return;
    };
    match kind {
        1 | 2 => {
            let plain = map.get_mut(&number).unwrap();
            let at = if kind == 1 { plain.value.len() } else { 0 };
            plain.value.splice(at..at, value);
            plain.cas = cas;
        }
        4 if map.contains_key(&number) => {
            let plain = map.get_mut(&number).unwrap();
            (plain.value, plain.cas) = (value, cas);
        }
        3 => map.get_mut(&number).unwrap().expires = expires.map(|at| at.max(1)),
        _ => {
            let plain = Plain {
                value,
                expires,
                flags,
                cas,
            };
            map.insert(number, plain);
        }
    }
}

/// How many seeds the test below tries; `SEEDS` before it says another number.
fn seeds() -> u64 {
    let wanted = std::env::var("SEEDS").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(6)
}

#[test]
fn it_does_what_a_plain_map_does() {
    // Under Miri a step takes milliseconds.
    let (seeds, steps) = if cfg!(miri) {
        (2, 150)
    } else {
        (seeds(), 20_000)
    };
    (0..seeds).for_each(|seed| run_beside_a_map(seed, steps));
}

/// `FOR=600` before it: new seeds for so many seconds.
#[test]
#[ignore = "for a long run"]
fn it_does_what_a_plain_map_does_for_long() {
    let wanted = std::env::var("FOR").ok();
    let seconds = wanted.and_then(|text| text.parse().ok()).unwrap_or(60);
    let begin = std::time::Instant::now();
    let mut seed = 1000;
    while begin.elapsed().as_secs() < seconds {
        run_beside_a_map(seed, 20_000);
        seed += 1;
    }
    println!("{} seeds of 20,000 operations", seed - 1000);
}

fn run_beside_a_map(seed: u64, steps: usize) {
    let may_evict = seed % 2 == 1;
    let limit = if may_evict { MIB } else { 64 * MIB };
    let store = store(limit);
    let (mut map, mut numbers) = (HashMap::new(), Numbers(seed));
    let mut now = 1;
    for _ in 0..steps {
        step(&store, &mut map, &mut numbers, now, may_evict);
        match numbers.below(2000) {
            0 => now += 1000,
            1 => {
                store.flush(now, now);
                map.clear();
            }
            2 => {
                store.sweep(now);
            }
            3 if may_evict => {
                store.set_limit(limit / 2 + numbers.below(limit as u64) as usize);
                store.shrink(now);
            }
            at if at < 100 => now += 1,
            _ => {}
        }
        let counts = store.counts();
        assert!(
            counts.occupied <= counts.limit + 64 * KIB,
            "seed {seed}: {counts:?}"
        );
    }
}

#[test]
fn threads_see_whole_values() {
    let store = store(8 * MIB);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                let mut numbers = Numbers(thread);
                for _ in 0..if cfg!(miri) { 60 } else { 20_000 } {
                    let number = numbers.below(20_000);
                    let key = number.to_le_bytes();
                    match get(store, &key, 1) {
                        Some(value) => assert!(value.iter().all(|byte| *byte == number as u8)),
                        None => {
                            let length = numbers.below(3000) as usize;
                            set(store, &key, &vec![number as u8; length], None, 1);
                        }
                    }
                }
            });
        }
    });
}
