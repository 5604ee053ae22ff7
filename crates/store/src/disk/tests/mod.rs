//! Tests of the whole disk tier, each in a folder of its own.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use bytes::Bytes;

use super::index::{Index, StoredEntry};
use super::*;

mod attacks;
mod filling;
mod memory;
mod sharing;

/// A folder that is removed at the end of the test.
struct TestFolder(PathBuf);

impl TestFolder {
    fn new() -> TestFolder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-disk-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        TestFolder(path)
    }

    fn settings(&self) -> Settings {
        Settings {
            path: self.0.clone(),
            levels: "1:2".parse().unwrap(),
            index_size: 1 << 20,
            max_size: None,
            min_free: 0,
            inactive: 10_000,
        }
    }

    /// A store that has scanned the folder.
    fn store(&self) -> Arc<DiskStore> {
        scanned(&self.settings())
    }

    /// The paths of all files below the folder.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        walk(&self.0, &mut files);
        files
    }

    /// Disk space of all files below the folder, in bytes, rounded up to blocks.
    fn disk_usage(&self) -> u64 {
        let length = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
        self.files()
            .iter()
            .map(|path| length(path).next_multiple_of(4096))
            .sum()
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            walk(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn scanned(settings: &Settings) -> Arc<DiskStore> {
    let store = DiskStore::open(settings).unwrap();
    store.try_acquire_ownership();
    let mut scanner = store.scanner();
    while scanner.step(100, 0) {}
    store
}

fn id(key: &str) -> EntryId {
    EntryId::of(&[key.as_bytes()])
}

fn new_head(key: &str) -> NewHead {
    NewHead {
        key: Bytes::copy_from_slice(key.as_bytes()),
        text: "head".into(),
        ..NewHead::default()
    }
}

/// Runs all pending writes.
fn write_all(filler: &mut Filler) -> Result<Stage, StoreError> {
    let mut stage = Stage::More;
    while let Some(write) = filler.next_write() {
        stage = filler.wrote(write.run())?;
    }
    Ok(stage)
}

fn put_with(
    store: &Arc<DiskStore>,
    head: NewHead,
    body: &[u8],
    now: Millis,
) -> Result<Stage, StoreError> {
    let id = EntryId::of(&[&head.key]);
    let mut filler = store.filler(&id);
    filler.begin(id, head).unwrap();
    for piece in body.chunks(10_000) {
        filler.push(Bytes::copy_from_slice(piece));
        write_all(&mut filler)?;
    }
    filler.finish(now).unwrap();
    write_all(&mut filler)
}

fn put(store: &Arc<DiskStore>, key: &str, body: &[u8], now: Millis) {
    assert_eq!(
        put_with(store, new_head(key), body, now),
        Ok(Stage::Committed)
    );
}

/// Bytes that depend on their offset and on the seed.
fn bytes(seed: u8, length: usize) -> Vec<u8> {
    let byte = |at: usize| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed;
    (0..length).map(byte).collect()
}

/// Reads the body of an entry from its file.
fn body(store: &DiskStore, key: &str, now: Millis) -> Result<Vec<u8>, Miss> {
    let mut opened = store.open_entry(&id(key), key.as_bytes(), now)?;
    opened.check_body(store)?;
    let range = opened.body.clone();
    assert_eq!(opened.head.key, key.as_bytes());
    let mut body = vec![0; (range.end - range.start) as usize];
    let first = opened.first.clone();
    fs::File::from(opened.into_file().unwrap())
        .read_exact_at(&mut body, range.start)
        .unwrap();
    assert!(body.starts_with(&first));
    Ok(body)
}

fn presence(store: &DiskStore, key: &str) -> Presence {
    store.lookup(&id(key), 0).presence
}

#[test]
fn what_is_stored_is_found_at_nginxs_path() {
    let folder = TestFolder::new();
    let store = folder.store();
    assert_eq!(presence(&store, "a"), Presence::Absent);
    put(&store, "a", b"body", 0);
    let path = folder.0.join(
        store
            .folder
            .as_ref()
            .unwrap()
            .levels()
            .path(&id("a"))
            .as_str(),
    );
    assert_eq!(folder.files(), std::slice::from_ref(&path));
    assert!(path.starts_with(folder.0.join("1/66")), "md5 ends in 661");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(
        fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777,
        0o700
    );
    let found = store.lookup(&id("a"), 0);
    assert_eq!((found.presence, found.uses), (Presence::Present, 2));
    let opened = store
        .open_in_memory(&id("a"), b"a", 0)
        .expect("it was written just now")
        .unwrap();
    assert_eq!(
        (&opened.first[..], &opened.head.text[..]),
        (&b"body"[..], &b"head"[..])
    );
    assert!(!opened.is_unchecked());
    assert_eq!(store.counts().entries, 1);
    assert_eq!(store.counts().bytes, 4096);
}

#[test]
fn bodies_of_any_length_come_back() {
    let folder = TestFolder::new();
    let store = folder.store();
    for length in [
        0,
        1,
        3743,
        3744,
        3745,
        16_000,
        64 * 1024,
        300_000,
        3_000_000,
    ] {
        let key = length.to_string();
        let stored = bytes(1, length);
        put(&store, &key, &stored, 0);
        assert!(body(&store, &key, 0).unwrap() == stored, "{length}");
    }
    // A new process verifies them.
    let store = scanned(&folder.settings());
    for length in [
        0,
        1,
        3743,
        3744,
        3745,
        16_000,
        64 * 1024,
        300_000,
        3_000_000,
    ] {
        let key = length.to_string();
        assert_eq!(presence(&store, &key), Presence::Present);
        assert!(
            body(&store, &key, 0).unwrap() == bytes(1, length),
            "{length}"
        );
        let again = store.open_entry(&id(&key), key.as_bytes(), 0).unwrap();
        assert!(!again.is_unchecked());
    }
    assert_eq!(store.counts().wrong, 0);
}

#[test]
fn uses_are_counted_of_what_is_not_stored() {
    let folder = TestFolder::new();
    let store = folder.store();
    assert_eq!(store.lookup(&id("a"), 0).uses, 0);
    assert_eq!(store.note_use(&id("a"), 0), 1);
    assert_eq!(store.lookup(&id("a"), 0).uses, 2);
    assert_eq!(store.note_use(&id("a"), 0), 3);
    assert_eq!(presence(&store, "a"), Presence::Absent);
    assert_eq!(store.counts().entries, 0);
}

#[test]
fn marker_holds_until_its_time_or_the_entry() {
    let folder = TestFolder::new();
    let store = folder.store();
    store.mark(&id("a"), 7, 100, 0);
    assert_eq!(store.lookup(&id("a"), 99).marker, Some(7));
    assert_eq!(store.lookup(&id("a"), 100).marker, None);
    store.mark(&id("a"), 7, 200, 100);
    put(&store, "a", b"", 110);
    assert_eq!(store.lookup(&id("a"), 120).marker, None);
}

#[test]
fn entry_replaces_the_one_before() {
    let folder = TestFolder::new();
    let store = folder.store();
    put(&store, "a", &bytes(1, 100_000), 0);
    let before = store.open_entry(&id("a"), b"a", 0).unwrap();
    put(&store, "a", b"new", 0);
    assert_eq!(body(&store, "a", 0).unwrap(), b"new");
    assert_eq!(store.counts().bytes, 4096);
    // A reader of the replaced file can continue.
    let mut read = vec![0; 100_000];
    let start = before.body.start;
    fs::File::from(before.into_file().unwrap())
        .read_exact_at(&mut read, start)
        .unwrap();
    assert!(read == bytes(1, 100_000));
}

#[test]
fn times_are_replaced_in_the_file() {
    let folder = TestFolder::new();
    let store = folder.store();
    put(&store, "a", b"body", 0);
    let times = EntryTimes {
        valid_until: 5,
        updating: 6,
        ..EntryTimes::default()
    };
    store.refresh(&id("a"), b"a", &times, 0).unwrap();
    let opened = store.open_entry(&id("a"), b"a", 0).unwrap();
    assert_eq!(
        (opened.head.times, &opened.first[..]),
        (times, &b"body"[..])
    );
    assert!(matches!(
        store.refresh(&id("b"), b"b", &times, 0),
        Err(Miss::Gone)
    ));
}

#[test]
fn size_is_kept_before_anything_is_written() {
    let folder = TestFolder::new();
    let max = 100 * 4096;
    let settings = Settings {
        max_size: Some(max),
        ..folder.settings()
    };
    let store = scanned(&settings);
    for number in 0..300_u64 {
        let key = number.to_string();
        let id = id(&key);
        let mut filler = store.filler(&id);
        filler.begin(id, new_head(&key)).unwrap();
        for _ in 0..number % 5 * 30 {
            filler.push(bytes(number as u8, 1000).into());
            while let Some(write) = filler.next_write() {
                filler.wrote(write.run()).unwrap();
                assert!(folder.disk_usage() <= max, "at {number}");
            }
        }
        filler.finish(number).unwrap();
        write_all(&mut filler).unwrap();
        assert!(folder.disk_usage() <= max, "after {number}");
        // The entry that is used in each round is not evicted.
        if number >= 10 {
            assert_eq!(
                store.lookup(&self::id("10"), number).presence,
                Presence::Present
            );
        }
    }
    assert_eq!(store.counts().bytes, folder.disk_usage());
    assert_eq!(presence(&store, "9"), Presence::Absent);
    assert!(store.counts().evicted > 100);
    let too_large = put_with(&store, new_head("large"), &bytes(0, max as usize + 1), 0);
    assert_eq!(too_large, Err(StoreError::NoRoom));
    assert_eq!(store.counts().bytes, folder.disk_usage());
}

/// An entry whose announced length can never fit evicts nothing.
#[test]
fn entry_that_can_never_fit_evicts_nothing() {
    let folder = TestFolder::new();
    let settings = Settings {
        max_size: Some(10 * 4096),
        ..folder.settings()
    };
    let store = scanned(&settings);
    put(&store, "a", b"body", 0);
    let head = NewHead {
        body_length: Some(100_000),
        ..new_head("large")
    };
    assert_eq!(
        put_with(&store, head, &bytes(0, 100_000), 0),
        Err(StoreError::NoRoom)
    );
    assert_eq!(presence(&store, "a"), Presence::Present);
    assert_eq!(folder.files().len(), 1);
}

#[test]
fn full_index_evicts_what_was_used_longest_ago() {
    let folder = TestFolder::new();
    let settings = Settings {
        index_size: 100 * ENTRY_SIZE,
        ..folder.settings()
    };
    let store = scanned(&settings);
    for number in 0..250_u64 {
        put(&store, &number.to_string(), b"x", number);
        assert_eq!(store.lookup(&id("0"), number).presence, Presence::Present);
    }
    assert_eq!(store.counts().entries, 100);
    assert_eq!(presence(&store, "150"), Presence::Absent);
    assert_eq!(presence(&store, "151"), Presence::Present);
    store.maintain(100, 0);
    assert_eq!(folder.files().len(), 100);
}

#[test]
fn what_is_not_used_expires() {
    let folder = TestFolder::new();
    let store = folder.store();
    for number in 0..30 {
        put(&store, &number.to_string(), b"x", number);
    }
    let _ = store.lookup(&id("3"), 500);
    let first = store.maintain(10, 10_029);
    assert_eq!((first.removed, first.is_more), (10, true));
    assert_eq!(store.maintain(10, 10_029).removed, 10);
    let last = store.maintain(10, 10_029);
    assert_eq!((last.removed, last.is_more), (9, false));
    assert_eq!(folder.files().len(), 1);
    assert_eq!(store.maintain(10, 10_499).removed, 0);
    // An id that was only requested has no entry that could expire.
    assert_eq!(store.note_use(&id("x"), 501), 1);
    assert_eq!(store.maintain(10, 10_500).removed, 1);
    assert_eq!(store.maintain(10, 10_501).removed, 1);
    assert_eq!(store.counts().expired, 30);
    assert_eq!(store.lookup(&id("x"), 10_501).uses, 0);
    assert!(folder.files().is_empty());
    assert_eq!(store.counts().bytes, 0);
}

#[test]
fn smaller_bound_is_kept_by_maintenance() {
    let folder = TestFolder::new();
    let store = folder.store();
    for number in 0..30 {
        put(&store, &number.to_string(), b"x", number);
    }
    store.set_bounds(Some(7 * 4096), 0, 10_000);
    while store.maintain(10, 30).is_more {}
    assert_eq!(folder.files().len(), 7);
    assert_eq!(presence(&store, "23"), Presence::Present);
    assert_eq!(presence(&store, "22"), Presence::Absent);
}

#[test]
fn free_space_is_kept() {
    let folder = TestFolder::new();
    let store = folder.store();
    put(&store, "a", b"x", 0);
    store.set_bounds(None, u64::MAX / 2, 10_000);
    assert_eq!(
        put_with(&store, new_head("b"), b"x", 0),
        Err(StoreError::NoRoom)
    );
    assert!(
        folder.files().is_empty(),
        "nothing that could go has stayed"
    );
    store.set_bounds(None, 1, 10_000);
    put(&store, "b", b"x", 0);
}

#[test]
fn folder_is_scanned_in_steps_and_temporary_files_go() {
    let folder = TestFolder::new();
    let store = folder.store();
    for number in 0..50 {
        put(&store, &number.to_string(), &bytes(0, number * 1000), 0);
    }
    let usage = store.counts().bytes;
    drop(store);
    let place = folder.files()[0].parent().unwrap().to_owned();
    let entry = id("not there").to_string();
    let levels: Levels = "1:2".parse().unwrap();
    let temporary = folder.0.join(levels.path(&id("not there")).as_str());
    fs::create_dir_all(temporary.parent().unwrap()).unwrap();
    let temporary = temporary.with_file_name(format!("{entry}.0000000001"));
    fs::write(&temporary, b"x").unwrap();
    // Foreign files, which must stay.
    let foreign = [
        place.join("readme"),
        place.join(&entry),
        folder.0.join(&entry),
        folder.0.join(format!("{entry}.0000000001")),
        folder.0.join("temp"),
    ];
    foreign
        .iter()
        .for_each(|path| fs::write(path, b"x").unwrap());

    let store = DiskStore::open(&folder.settings()).unwrap();
    assert_eq!(presence(&store, "7"), Presence::Unknown);
    assert!(body(&store, "7", 0).unwrap() == bytes(0, 7000));
    assert_eq!(presence(&store, "7"), Presence::Present);
    assert_eq!(presence(&store, "x"), Presence::Unknown);
    let mut filler = store.filler(&id("filling"));
    filler.begin(id("filling"), new_head("filling")).unwrap();
    filler.push(bytes(0, 100_000).into());
    write_all(&mut filler).unwrap();
    let mut scanner = store.scanner();
    let mut steps = 1;
    while scanner.step(10, 0) {
        steps += 1;
    }
    assert!(steps > 5);
    assert_eq!(presence(&store, "x"), Presence::Absent);
    assert_eq!(store.counts().entries, 50);
    assert!(!temporary.exists());
    assert!(foreign.iter().all(|path| path.exists()));
    // The temporary file of this process stays.
    filler.finish(0).unwrap();
    assert_eq!(write_all(&mut filler), Ok(Stage::Committed));
    assert_eq!(store.counts().bytes, usage + 102_400);
}

#[test]
fn entry_that_was_unlinked_outside_is_gone_at_the_next_open() {
    let folder = TestFolder::new();
    let store = folder.store();
    for key in ["a", "b", "c"] {
        put(&store, key, b"x", 0);
    }
    folder
        .files()
        .iter()
        .for_each(|path| fs::remove_file(path).unwrap());
    assert_eq!(presence(&store, "a"), Presence::Present);
    assert!(matches!(body(&store, "a", 0), Err(Miss::Gone)));
    assert_eq!(presence(&store, "a"), Presence::Absent);
    let in_memory = store.open_in_memory(&id("b"), b"b", 0);
    // The kernel's cache may lack the information that the file does not exist.
    if !matches!(in_memory, Some(Err(Miss::Gone))) {
        assert!(in_memory.is_none());
        assert!(matches!(body(&store, "b", 0), Err(Miss::Gone)));
    }
    assert_eq!((store.counts().entries, store.counts().gone), (1, 2));
    // As after `rm -rf` of the folder.
    fs::remove_dir_all(&folder.0).unwrap();
    assert!(matches!(body(&store, "c", 0), Err(Miss::Gone)));
    assert_eq!(store.counts().bytes, 0);
}

#[test]
fn levels_that_were_removed_are_made_again() {
    let folder = TestFolder::new();
    let store = folder.store();
    put(&store, "a", b"x", 0);
    fs::remove_dir_all(folder.0.join("1")).unwrap();
    put(&store, "a", b"y", 0);
    assert_eq!(body(&store, "a", 0).unwrap(), b"y");
}

#[test]
fn purge_by_id_group_tag_and_key() {
    let folder = TestFolder::new();
    let store = folder.store();
    let put_named = |key: &str, group: &'static str, tag: &'static str| {
        let head = NewHead {
            group: group.into(),
            tags: vec!["all".into(), tag.into()],
            ..new_head(key)
        };
        assert_eq!(put_with(&store, head, b"x", 0), Ok(Stage::Committed));
    };
    let fill = || {
        put_named("/a", "", "red");
        put_named("/a?slice=1", "/a", "red");
        put_named("/a?slice=2", "/a", "blue");
        put_named("/b", "", "blue");
    };
    let left = |store: &DiskStore| {
        let keys = ["/a", "/a?slice=1", "/a?slice=2", "/b"];
        let there = keys.map(|key| body(store, key, 0).is_ok());
        assert_eq!(folder.files().len(), there.iter().filter(|is| **is).count());
        there
    };
    fill();
    assert!(store.purge(&id("/a")).unwrap());
    assert!(!store.purge(&id("/a")).unwrap());
    assert_eq!(left(&store), [false, true, true, true]);
    fill();
    assert_eq!(store.purge_group(b"/a").entries, 3);
    assert_eq!(left(&store), [false, false, false, true]);
    fill();
    assert_eq!(store.purge_tag(b"red").entries, 2);
    assert_eq!(left(&store), [false, false, true, true]);
    fill();
    assert_eq!(
        store.purge_matching(|key| key.starts_with(b"/a?")).entries,
        2
    );
    assert_eq!(left(&store), [true, false, false, true]);
    fill();
    assert_eq!(store.purge_tag(b"all").entries, 4);
    fill();
    // If the index does not know the tags or the entries, purging reads the files.
    let scanned = scanned(&folder.settings());
    assert_eq!(scanned.purge_tag(b"red").entries, 2);
    assert_eq!(left(&scanned), [false, false, true, true]);
    let unscanned = DiskStore::open(&folder.settings()).unwrap();
    assert_eq!(unscanned.purge_group(b"/a").entries, 1);
    assert_eq!(left(&unscanned), [false, false, false, true]);
}

/// Files of listed entries are removed unread; other files only if they are entries.
#[test]
fn all_entries_are_purged_and_nothing_else() {
    let folder = TestFolder::new();
    let store = folder.store();
    put(&store, "a", b"x", 0);
    put(&store, "b", b"y", 0);
    let known = folder.files();
    fs::write(&known[0], b"damaged").unwrap();
    let other = folder.store();
    put(&other, "unknown", b"z", 0);
    let levels: Levels = "1:2".parse().unwrap();
    let foreign = folder.0.join(levels.path(&id("no entry")).as_str());
    fs::create_dir_all(foreign.parent().unwrap()).unwrap();
    fs::write(&foreign, b"no entry").unwrap();
    assert_eq!(store.purge_all().entries, 3);
    assert_eq!(folder.files(), [foreign]);
    assert_eq!(presence(&store, "a"), Presence::Absent);
}

#[test]
fn one_process_owns_a_folder() {
    let folder = TestFolder::new();
    let (first, second) = (folder.store(), folder.store());
    assert!(first.try_acquire_ownership() && first.try_acquire_ownership());
    assert!(!second.try_acquire_ownership());
    drop(first);
    assert!(second.try_acquire_ownership());
}

#[test]
fn index_is_known_after_an_orderly_end() {
    let folder = TestFolder::new();
    let store = folder.store();
    for number in 0..100 {
        let key = number.to_string();
        let head = NewHead {
            tags: vec![if number % 2 == 0 { "even" } else { "odd" }.into()],
            ..new_head(&key)
        };
        put_with(&store, head, b"x", 20_000 + number).unwrap();
    }
    let _ = store.lookup(&id("5"), 21_000);
    store.save_index(true, 21_000).unwrap();
    drop(store);

    let settings = Settings {
        index_size: 50 * ENTRY_SIZE,
        ..folder.settings()
    };
    let store = DiskStore::open(&settings).unwrap();
    let loaded = store.load_index(30_000).unwrap();
    assert_eq!(
        (loaded.entries, loaded.is_orderly),
        (50, true),
        "as many as there is room for"
    );
    assert_eq!(
        presence(&store, "5"),
        Presence::Present,
        "the one used last"
    );
    assert_eq!(presence(&store, "50"), Presence::Absent);
    assert_eq!(presence(&store, "51"), Presence::Present);
    drop(store);

    let store = DiskStore::open(&folder.settings()).unwrap();
    assert!(store.try_acquire_ownership());
    let loaded = store.load_index(30_000).unwrap();
    assert_eq!(
        (loaded.entries, loaded.is_orderly),
        (100, false),
        "it may have been killed since"
    );
    assert_eq!(presence(&store, "x"), Presence::Unknown);
    assert_eq!(store.counts().bytes, 100 * 4096);
    // The times of the last use are preserved.
    fs::remove_file(
        folder.0.join(
            store
                .folder
                .as_ref()
                .unwrap()
                .levels()
                .path(&id("7"))
                .as_str(),
        ),
    )
    .unwrap();
    let mut scanner = store.scanner();
    while scanner.step(10, 30_000) {}
    assert_eq!(presence(&store, "x"), Presence::Absent);
    assert_eq!(presence(&store, "7"), Presence::Absent);
    assert_eq!(store.counts().entries, 99);
    assert_eq!(store.purge_tag(b"odd").entries, 49);
    assert_eq!(store.maintain(1000, 39_019).removed, 10);
    while store.maintain(1000, 39_999).is_more {}
    assert_eq!(store.counts().entries, 0);
    assert!(
        folder
            .files()
            .iter()
            .all(|path| path.ends_with("temp/index"))
    );
}

#[test]
fn index_of_other_levels_or_damaged_is_not_read() {
    let folder = TestFolder::new();
    let store = folder.store();
    put(&store, "a", b"x", 0);
    store.save_index(true, 0).unwrap();
    let path = folder.0.join("temp/index");
    let saved = fs::read(&path).unwrap();
    let loaded = |settings: &Settings| {
        let loaded = DiskStore::open(settings).unwrap().load_index(0).unwrap();
        (loaded.entries, loaded.is_orderly)
    };
    let other = Settings {
        levels: "2:1".parse().unwrap(),
        ..folder.settings()
    };
    assert_eq!(loaded(&other), (0, false));
    for at in [0, 8, 12, 16, 20, 24, 30, 40, saved.len() - 1] {
        let mut damaged = saved.clone();
        damaged[at] ^= 0x80;
        fs::write(&path, &damaged).unwrap();
        assert!(!loaded(&folder.settings()).1, "{at}");
        fs::write(&path, &saved[..at]).unwrap();
        assert!(!loaded(&folder.settings()).1, "{at}");
    }
    fs::write(&path, &saved).unwrap();
    assert_eq!(loaded(&folder.settings()), (1, true));
    assert_eq!(loaded(&folder.settings()), (1, false));
}

/// Two processes share a folder during an upgrade: each serves what the other stores.
#[test]
fn two_processes_serve_one_folder_until_one_ends() {
    let folder = TestFolder::new();
    let before = folder.store();
    assert!(before.try_acquire_ownership());
    put(&before, "a", b"a's", 0);

    let after = DiskStore::open(&folder.settings()).unwrap();
    assert!(!after.try_acquire_ownership());
    assert_eq!(presence(&after, "a"), Presence::Unknown);
    assert_eq!(body(&after, "a", 0).unwrap(), b"a's");
    put(&after, "b", b"b's", 0);
    put(&after, "a", b"new", 0);
    assert_eq!(body(&before, "a", 0).unwrap(), b"new");
    assert!(before.purge(&id("b")).unwrap());
    assert_eq!(presence(&after, "b"), Presence::Present);
    assert!(matches!(body(&after, "b", 0), Err(Miss::Gone)));
    for number in 0..20 {
        put(&before, &number.to_string(), b"x", 5);
    }
    before.save_index(true, 10).unwrap();
    drop(before);

    assert!(after.try_acquire_ownership());
    let loaded = after.load_index(10).unwrap();
    assert_eq!(
        (loaded.entries, loaded.is_orderly),
        (20, true),
        "a is known already"
    );
    assert_eq!(presence(&after, "b"), Presence::Absent);
    assert_eq!(after.counts().entries, 21);
    assert_eq!(
        after.counts().bytes,
        folder.disk_usage() - 4096,
        "but for the index's own"
    );
}

/// Compares an index of one shard with a simple model.
#[test]
fn index_evicts_in_the_order_of_use() {
    let index = Index::new(40 * ENTRY_SIZE);
    assert_eq!(index.shards(), 1);
    let mut model: Vec<(EntryId, Option<u64>)> = Vec::new();
    let mut random = 1_u64;
    for now in 0..20_000 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let id = id(&(random >> 33).wrapping_rem(70).to_string());
        let place = model.iter().position(|entry| entry.0 == id);
        let mut shard = index.lock_shard(&id);
        let removed = match (random >> 60, place) {
            (0..4, place) => {
                let known = shard.lookup(&id, now);
                assert_eq!(
                    known.has_file,
                    place.is_some_and(|at| model[at].1.is_some())
                );
                if let Some(at) = place {
                    let entry = model.remove(at);
                    model.push(entry);
                }
                continue;
            }
            (4, place) => {
                let removed = shard.remove(&id);
                assert_eq!(
                    removed.map(|removed| removed.blocks),
                    place.map(|at| model[at].1)
                );
                place.map(|at| model.remove(at));
                continue;
            }
            (5, place) => {
                let (_, removed) = shard.note_use(&id, now);
                let blocks = place.and_then(|at| model.remove(at).1);
                model.push((id, blocks));
                removed
            }
            (_, place) => {
                let blocks = random >> 40 & 7;
                let stored = StoredEntry {
                    blocks,
                    ..StoredEntry::default()
                };
                let (replaced, removed) = shard.insert(&id, stored, now);
                let before = place.map(|at| model.remove(at).1);
                assert_eq!(replaced, before.flatten());
                model.push((id, Some(blocks)));
                removed
            }
        };
        let expected = (model.len() > 40).then(|| model.remove(0));
        assert_eq!(
            removed.map(|removed| (removed.id, removed.blocks)),
            expected
        );
    }
    let saved = index.shard(0).saved();
    let files = model
        .iter()
        .filter(|entry| entry.1.is_some())
        .map(|entry| entry.0);
    assert!(saved.iter().map(|record| record.id).eq(files));
    while let Some(removed) = index.evict() {
        assert_eq!((removed.id, removed.blocks), model.remove(0));
    }
    assert!(model.is_empty());
}

#[test]
fn keys_and_heads_may_be_long() {
    let folder = TestFolder::new();
    let store = folder.store();
    for length in [3700, 4096, 8192, 100_000] {
        let key = "k".repeat(length);
        let head = NewHead {
            text: bytes(2, 70_000).into(),
            tags: vec!["tag".into()],
            ..new_head(&key)
        };
        for text in [head.text.clone(), Bytes::new()] {
            let head = NewHead {
                text,
                ..head.clone()
            };
            let text = head.text.clone();
            put_with(&store, head, b"body", 0).unwrap();
            let opened = store.open_in_memory(&id(&key), key.as_bytes(), 0);
            let opened = opened.expect("it was written just now").unwrap();
            assert!(opened.head.text == text && b"body".starts_with(&opened.first));
            assert_eq!(body(&store, &key, 0).unwrap(), b"body", "{length}");
            let mut keys = Vec::new();
            store.visit_keys(|id, key, length| keys.push((*id, key.to_vec(), length)));
            let file_length = fs::metadata(&folder.files()[0]).unwrap().len();
            assert!(keys == [(id(&key), key.clone().into_bytes(), file_length)]);
            assert_eq!(
                store.purge_matching(|seen| seen == key.as_bytes()).entries,
                1
            );
            assert!(folder.files().is_empty());
        }
        put_with(&store, head, b"body", 0).unwrap();
        let unscanned = DiskStore::open(&folder.settings()).unwrap();
        assert_eq!(unscanned.purge_tag(b"tag").entries, 1);
        assert!(matches!(body(&store, &key, 0), Err(Miss::Gone)));
    }
}
