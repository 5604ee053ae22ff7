//! Memory in front of files, and stores without a folder.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;

const MEMORY: MemorySettings = MemorySettings {
    limit: 1 << 20,
    entry_max: 64 * 1024,
};

/// A store with a folder and with memory in front of it.
fn in_front(folder: &TestFolder) -> Arc<DiskStore> {
    let store = folder.store();
    store.set_memory(Some(MEMORY));
    store
}

fn alone() -> Arc<DiskStore> {
    DiskStore::in_memory(1 << 20, 10_000, MEMORY)
}

/// Opens an entry from memory, without opening its file; `None` if it is not in memory.
fn recalled(store: &DiskStore, key: &str, now: Millis) -> Option<OpenEntry> {
    let opened = store.open_in_memory(&id(key), key.as_bytes(), now)?.ok()?;
    opened.file.is_none().then_some(opened)
}

/// Reads an entry until it is in memory: a file that has just been written is not kept.
fn warm(store: &DiskStore, key: &str) {
    let begun = Instant::now();
    while recalled(store, key, 0).is_none() {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{key} is not kept"
        );
        store.open_entry(&id(key), key.as_bytes(), 0).unwrap();
        thread::sleep(Duration::from_millis(10));
    }
}

/// Stores an entry in a store without a folder.
fn put_alone(store: &Arc<DiskStore>, key: &str, body: &[u8]) -> Result<(), StoreError> {
    let mut filler = store.filler(&id(key));
    filler.begin(id(key), new_head(key)).unwrap();
    for piece in body.chunks(10_000) {
        filler.push(Bytes::copy_from_slice(piece));
        assert!(filler.next_write().is_none());
    }
    filler.finish(0).unwrap();
    filler.commit_in_memory(0)
}

fn path(folder: &TestFolder, key: &str) -> PathBuf {
    let levels: Levels = "1:2".parse().unwrap();
    folder.0.join(levels.path(&id(key)).as_str())
}

#[test]
fn what_was_read_is_given_from_memory() {
    let folder = TestFolder::new();
    let store = in_front(&folder);
    for length in [0, 1, 1000, 15_000, 20_000, 64 * 1024] {
        let (key, stored) = (format!("{length}"), bytes(3, length));
        put(&store, &key, &stored, 0);
        warm(&store, &key);
        let opened = recalled(&store, &key, 0).unwrap();
        assert!(opened.file.is_none() && !opened.is_unchecked());
        assert_eq!(opened.first, stored, "{length}");
        assert_eq!(opened.head.text, "head");
        store.note_given(&opened);
    }
    // Longer entries, and entries requested with another key, are read from the disk.
    put(&store, "long", &bytes(3, 64 * 1024 + 1), 0);
    thread::sleep(Duration::from_millis(150));
    for _ in 0..2 {
        let opened = store.open_entry(&id("long"), b"long", 0).unwrap();
        assert!(opened.file.is_some());
    }
    assert!(recalled(&store, "long", 0).is_none());
    let other = store.open_in_memory(&id("1"), b"other", 0);
    assert!(matches!(other, Some(Err(Miss::Wrong(Fault::Key)))));
    let counts = store.memory_counts();
    assert!(counts.bytes > 100_000 && counts.bytes <= counts.limit);
    assert_eq!((counts.entries, counts.hits), (6, 6));
}

#[test]
fn what_others_change_or_unlink_is_not_given_from_memory() {
    let folder = TestFolder::new();
    let store = in_front(&folder);
    for key in ["unlinked", "replaced", "changed", "touched"] {
        put(&store, key, b"before", 0);
    }
    for key in ["unlinked", "replaced", "changed", "touched"] {
        warm(&store, key);
    }
    fs::remove_file(path(&folder, "unlinked")).unwrap();
    assert!(matches!(body(&store, "unlinked", 0), Err(Miss::Gone)));
    assert!(recalled(&store, "unlinked", 0).is_none());

    // Replaced by another process, with the same length.
    let other = folder.store();
    put(&other, "replaced", b"after!", 0);
    assert!(recalled(&store, "replaced", 0).is_none());
    warm(&store, "replaced");
    assert_eq!(recalled(&store, "replaced", 0).unwrap().first, "after!");

    // Changed in place.
    let changed = path(&folder, "changed");
    let mut file = fs::read(&changed).unwrap();
    *file.last_mut().unwrap() ^= 1;
    fs::write(&changed, &file).unwrap();
    assert!(recalled(&store, "changed", 0).is_none());

    // The times were replaced.
    let times = EntryTimes {
        valid_until: 5,
        ..EntryTimes::default()
    };
    let key = b"touched";
    other.refresh(&id("touched"), key, &times, 0).unwrap();
    assert!(recalled(&store, "touched", 0).is_none());
    warm(&store, "touched");
    assert_eq!(recalled(&store, "touched", 0).unwrap().head.times, times);
}

#[test]
fn what_this_store_changes_is_another_entry_at_once() {
    let folder = TestFolder::new();
    for (store, has_folder) in [(in_front(&folder), true), (alone(), false)] {
        let put = |body: &[u8]| {
            if has_folder {
                put(&store, "a", body, 0);
                warm(&store, "a");
            } else {
                put_alone(&store, "a", body).unwrap();
            }
        };
        let first = || recalled(&store, "a", 0).map(|opened| opened.first);
        put(b"one");
        assert_eq!(first().unwrap(), "one");
        put(b"two");
        assert_eq!(first().unwrap(), "two");
        let times = EntryTimes {
            valid_until: 7,
            updating: 1,
            ..EntryTimes::default()
        };
        store.refresh(&id("a"), b"a", &times, 0).unwrap();
        if has_folder {
            assert!(first().is_none());
            warm(&store, "a");
        }
        assert_eq!(recalled(&store, "a", 0).unwrap().head.times, times);
        assert_eq!(first().unwrap(), "two");

        assert!(store.purge(&id("a")).unwrap());
        assert!(first().is_none() && store.memory_counts().entries == 0);
        assert!(!store.purge(&id("a")).unwrap());
        put(b"three");
        assert_eq!(store.purge_group(b"a").entries, 1);
        assert!(first().is_none());
        put(b"four");
        let by_key = store.purge_matching(|key| key == b"a");
        assert_eq!((by_key.entries, first()), (1, None));
        put(b"five");
        // The entry has not been used for ten seconds.
        assert_eq!(store.maintain(10, 100_000).removed, 1);
        assert_eq!(store.memory_counts().entries, 0);
    }
}

/// An image that was read before a refresh, but put into memory after it, is not served.
#[test]
fn a_slow_reader_does_not_bring_back_what_is_over() {
    let folder = TestFolder::new();
    let store = in_front(&folder);
    put(&store, "a", b"body", 0);
    warm(&store, "a");
    let expected = store
        .index
        .lock_shard(&id("a"))
        .known_entry(&id("a"))
        .unwrap();
    let file = fs::read(path(&folder, "a")).unwrap();
    let stat = rustix::fs::stat(path(&folder, "a")).unwrap();
    let identity = super::super::memory::Identity::settled(&stat);
    assert!(identity.is_some());
    store
        .refresh(&id("a"), b"a", &EntryTimes::default(), 0)
        .unwrap();
    let revision = Some(expected.revision);
    store.cache_read(&id("a"), revision, identity, file.into(), 0);
    assert!(recalled(&store, "a", 0).is_none());
}

#[test]
fn a_store_without_folder_keeps_what_fits() {
    let store = alone();
    assert!(store.try_acquire_ownership() && store.is_scanned());
    assert_eq!(presence(&store, "a"), Presence::Absent);
    put_alone(&store, "a", b"body").unwrap();
    assert_eq!(presence(&store, "a"), Presence::Present);
    // Readers still get a body that is too long to be stored.
    let long = bytes(1, 64 * 1024 + 1);
    let mut filler = store.filler(&id("long"));
    filler.begin(id("long"), new_head("long")).unwrap();
    let mut reader = filler.fill().reader().unwrap();
    filler.push(Bytes::copy_from_slice(&long));
    assert!(filler.has_room() && !filler.is_pointless());
    filler.finish(0).unwrap();
    filler.commit_in_memory(0).unwrap();
    assert!(matches!(reader.next(usize::MAX), FillChunk::Bytes(bytes) if bytes == long));
    drop(reader);
    assert!(filler.is_pointless());
    assert_eq!(presence(&store, "long"), Presence::Absent);
    // A body whose announced length is too long is not buffered at all.
    let mut filler = store.filler(&id("long"));
    let head = NewHead {
        body_length: Some(1 << 30),
        ..new_head("long")
    };
    filler.begin(id("long"), head).unwrap();
    filler.push(Bytes::copy_from_slice(&long));
    assert!(filler.is_pointless());
    let counts = store.counts();
    assert_eq!((counts.entries, counts.stored, counts.fills), (1, 1, 0));
}

#[test]
fn what_is_purged_while_it_is_fetched_is_not_kept_in_memory() {
    let store = alone();
    let mut filler = store.filler(&id("a"));
    filler.begin(id("a"), new_head("a")).unwrap();
    filler.push("body".into());
    store.purge(&id("a")).unwrap();
    filler.finish(0).unwrap();
    assert_eq!(filler.commit_in_memory(0), Err(StoreError::Purged));
    assert!(recalled(&store, "a", 0).is_none());
}

#[test]
fn memory_stays_within_its_bound() {
    let store = alone();
    for number in 0..2000_usize {
        let key = format!("{number}");
        put_alone(
            &store,
            &key,
            &bytes(number as u8, 100 + number * 17 % 30_000),
        )
        .unwrap();
        let counts = store.memory_counts();
        assert!(counts.bytes <= counts.limit, "{counts:?}");
    }
    let counts = store.memory_counts();
    assert!(counts.evicted > 1000 && counts.entries > 10);
    let mut found = 0;
    for number in 0..2000_usize {
        if let Some(opened) = recalled(&store, &format!("{number}"), 0) {
            assert_eq!(
                opened.first,
                bytes(number as u8, 100 + number * 17 % 30_000)
            );
            found += 1;
        }
    }
    assert_eq!(found, counts.entries);
    assert_eq!(store.counts().entries, counts.entries);
    // Lower limits take effect at once. `None` disables memory.
    let smaller = MemorySettings {
        limit: 600_000,
        ..MEMORY
    };
    store.set_memory(Some(smaller));
    store.shrink_memory(0);
    assert!(store.memory_counts().bytes <= 600_000);
    store.set_memory(None);
    store.shrink_memory(0);
    assert_eq!(store.memory_counts().entries, 0);
    assert_eq!(put_alone(&store, "a", b"body"), Ok(()));
    assert!(recalled(&store, "a", 0).is_none());
}

/// Concurrent threads that store, read, refresh and purge only ever read stored content.
#[test]
fn all_at_once_nothing_foreign_is_seen() {
    let folder = TestFolder::new();
    for (store, has_folder) in [(in_front(&folder), true), (alone(), false)] {
        let barrier = Barrier::new(4);
        thread::scope(|scope| {
            for seed in 0..4_u64 {
                let (store, barrier) = (&store, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                    for _ in 0..300 {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let number = (random >> 8) as usize % 40;
                        let key = format!("{number}");
                        let stored = bytes(number as u8, number * 900);
                        match random % 16 {
                            0..4 if has_folder => {
                                let _ = put_with(store, new_head(&key), &stored, 0);
                            }
                            0..4 => {
                                let _ = put_alone(store, &key, &stored);
                            }
                            4 => {
                                store.purge(&id(&key)).unwrap();
                            }
                            5 => {
                                let times = EntryTimes::default();
                                let _ = store.refresh(&id(&key), key.as_bytes(), &times, 0);
                            }
                            _ => match store.open_entry(&id(&key), key.as_bytes(), 0) {
                                Ok(opened) => {
                                    assert_eq!(opened.head.key, key.as_bytes());
                                    assert!(stored.starts_with(&opened.first));
                                    if opened.file.is_none() {
                                        assert_eq!(opened.first, stored);
                                    }
                                    let _ = recalled(store, &key, 0);
                                }
                                Err(Miss::Gone) => {}
                                Err(miss) => panic!("{miss}"),
                            },
                        }
                    }
                });
            }
        });
        let counts = store.memory_counts();
        assert!(counts.bytes <= counts.limit);
    }
}

/// Watches an entry that is in memory.
fn watched(store: &Arc<DiskStore>, key: &str) -> super::super::WatchedEntry {
    let (_, watched) = store.watch(&id(key), key.as_bytes(), 0).unwrap();
    assert!(watched.is_current());
    watched
}

#[test]
fn a_watched_entry_stands_until_its_id_stands_for_something_else() {
    type Change = fn(&Arc<DiskStore>);
    let changes: [(&str, Change); 7] = [
        ("replaced", |store| put_alone(store, "a", b"two").unwrap()),
        ("purged", |store| assert!(store.purge(&id("a")).is_ok())),
        ("marked", |store| store.mark(&id("a"), 404, 1000, 0)),
        ("removed with all", |store| {
            store.purge_matching(|key| key == b"a");
        }),
        ("confirmed", |store| {
            let times = EntryTimes::default();
            store.refresh(&id("a"), b"a", &times, 0).unwrap();
        }),
        ("not used for long", |store| {
            assert!(store.maintain(10, 100_000).removed > 0);
        }),
        ("being fetched", |store| {
            let Claim::Won(filler) = store.claim(&id("a"), 1000, 0) else {
                panic!("nobody else fetches it");
            };
            assert!(store.watch(&id("a"), b"a", 0).is_none());
            std::mem::forget(filler);
        }),
    ];
    for (name, change) in changes {
        let store = alone();
        put_alone(&store, "a", b"one").unwrap();
        let watched = watched(&store, "a");
        // Uses, and changes to other entries, do not invalidate the watched entry.
        let _ = store.lookup(&id("a"), 0);
        put_alone(&store, "b", b"other").unwrap();
        put_alone(&store, "c", b"other").unwrap();
        store.purge(&id("c")).unwrap();
        drop(store.claim(&id("d"), 1000, 0));
        store.mark(&id("d"), 404, 1, 0);
        assert!(watched.is_current(), "{name}");
        change(&store);
        assert!(!watched.is_current(), "{name}");
        assert!(!watched.is_current(), "{name}");
    }
}

#[test]
fn a_watched_entry_stands_as_long_as_its_file() {
    for change in [
        (|path: &PathBuf| fs::remove_file(path).unwrap()) as fn(&PathBuf),
        |path| {
            let bytes = fs::read(path).unwrap();
            let other = path.with_extension("new");
            fs::write(&other, bytes).unwrap();
            fs::rename(&other, path).unwrap();
        },
        |path| {
            let bytes = fs::read(path).unwrap();
            fs::write(path, bytes).unwrap();
        },
    ] {
        let folder = TestFolder::new();
        let store = in_front(&folder);
        put(&store, "a", b"body", 0);
        warm(&store, "a");
        let watched = watched(&store, "a");
        change(&path(&folder, "a"));
        assert!(!watched.is_current());
    }
}

/// After an entry has been replaced, no thread sees the previous one as current.
#[test]
fn what_is_replaced_does_not_stand_for_other_threads() {
    const ROUNDS: u64 = 2000;
    let store = alone();
    put_alone(&store, "a", &0_u64.to_le_bytes()).unwrap();
    let stored = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=ROUNDS {
                put_alone(&store, "a", &number.to_le_bytes()).unwrap();
                stored.store(number, Ordering::Release);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut kept: Option<(u64, super::super::WatchedEntry)> = None;
                loop {
                    let before = stored.load(Ordering::Acquire);
                    match &kept {
                        Some((number, watched)) if watched.is_current() => {
                            assert!(*number >= before, "{number} stands, {before} is stored");
                            if *number == ROUNDS {
                                return;
                            }
                        }
                        _ => {
                            let watched = store.watch(&id("a"), b"a", 0);
                            kept = watched.map(|(opened, watched)| {
                                let body = opened.first.first_chunk().unwrap();
                                (u64::from_le_bytes(*body), watched)
                            });
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn entries_go_over_to_another_store_with_what_they_are_purged_by() {
    let (older, newer) = (alone(), alone());
    for (number, length) in [10, 20_000, 64 * 1024].into_iter().enumerate() {
        put_alone(&older, &format!("{length}"), &bytes(number as u8, length)).unwrap();
    }
    // A use makes the entry the most recently used.
    let _ = older.lookup(&id("10"), 7);
    let passed: Vec<_> = older.passed_on().collect();
    assert_eq!(passed.len(), 3);
    assert_eq!((passed[0].id, passed[0].used), (id("10"), 7));
    for entry in passed.iter().rev() {
        assert_eq!(newer.take_over(entry.clone(), 100), Ok(true));
    }
    for (number, length) in [10, 20_000, 64 * 1024].into_iter().enumerate() {
        let opened = recalled(&newer, &format!("{length}"), 100).unwrap();
        assert_eq!(opened.first, bytes(number as u8, length));
        assert_eq!(opened.head.text, "head");
    }
    let again: Vec<EntryId> = newer.passed_on().map(|entry| entry.id).collect();
    assert_eq!(again.len(), 3);
    // A store with a folder hands over nothing.
    let folder = TestFolder::new();
    let store = in_front(&folder);
    put(&store, "a", b"a", 0);
    assert_eq!(store.passed_on().count(), 0);
    assert_eq!(store.take_over(passed[0].clone(), 100), Ok(false));
    assert!(recalled(&store, "10", 100).is_none());
}

#[test]
fn damaged_entries_are_not_taken_over() {
    let (older, newer) = (alone(), alone());
    put_alone(&older, "a", b"body").unwrap();
    let passed = older.passed_on().next().unwrap();
    let times = 72..168;
    for bit in 0..passed.file.len() * 8 {
        let mut file = passed.file.to_vec();
        file[bit / 8] ^= 1 << (bit % 8);
        let damaged = PassedEntry {
            file: file.into(),
            ..passed.clone()
        };
        // A damaged copy of the times is tolerated, because there are two.
        let taken = newer.take_over(damaged, 0);
        assert!(taken.is_err() || times.contains(&(bit / 8)), "bit {bit}");
    }
    for end in 0..passed.file.len() {
        let short = PassedEntry {
            file: passed.file.slice(..end),
            ..passed.clone()
        };
        assert!(newer.take_over(short, 0).is_err(), "{end}");
    }
    let long = PassedEntry {
        file: [&passed.file[..], b"x"].concat().into(),
        ..passed
    };
    assert!(newer.take_over(long, 0).is_err());
}
