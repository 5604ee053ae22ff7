//! Damaged and foreign files, and clocks that jump.

use std::os::unix::fs::symlink;

use super::*;

/// The path of an entry's file.
fn path(folder: &TestFolder, key: &str) -> PathBuf {
    let levels = folder.settings().levels;
    folder.0.join(levels.path(&id(key)).as_str())
}

/// Writes `file` as an entry's file and opens it, in a store that does not know the entry and in
/// one that does. Returns whether the file was accepted; its body must then be `known_entry`.
fn is_entry(folder: &TestFolder, key: &str, file: &[u8], expected: &[u8]) -> bool {
    let path = path(folder, key);
    fs::write(&path, file).unwrap();
    let store = DiskStore::open(&folder.settings()).unwrap();
    let read = body(&store, key, 0);
    fs::write(&path, file).unwrap();
    let store = folder.store();
    assert_eq!(presence(&store, key), Presence::Present);
    let in_memory = store.open_in_memory(&id(key), key.as_bytes(), 0);
    match &read {
        Ok(read) => {
            assert!(read == expected);
            assert!(!matches!(in_memory, Some(Err(_))));
            assert!(path.exists());
        }
        Err(miss) => {
            assert!(matches!(miss, Miss::Wrong(_)), "{miss:?}");
            // A body that was not read with the head is verified later.
            if !matches!(in_memory, Some(Err(Miss::Wrong(_)))) {
                assert!(matches!(body(&store, key, 0), Err(Miss::Wrong(_))));
            }
            store.maintain(10, 0);
            assert!(!path.exists());
            assert_eq!(presence(&store, key), Presence::Absent);
            assert_eq!((store.counts().bytes, store.counts().wrong), (0, 1));
        }
    }
    read.is_ok()
}

#[test]
fn file_that_is_cut_off_anywhere_is_dropped() {
    let folder = TestFolder::new();
    for length in [0, 10, 40_000] {
        let stored = bytes(1, length);
        put(&folder.store(), "a", &stored, 0);
        let whole = fs::read(path(&folder, "a")).unwrap();
        assert!(is_entry(&folder, "a", &whole, &stored));
        let ends = (0..whole.len())
            .step_by(length / 100 + 1)
            .chain([whole.len() - 1]);
        for end in ends {
            assert!(
                !is_entry(&folder, "a", &whole[..end], &stored),
                "{length}: {end}"
            );
        }
        let longer = [&whole[..], b"x"].concat();
        assert!(!is_entry(&folder, "a", &longer, &stored));
    }
}

#[test]
fn file_with_a_flipped_bit_is_dropped() {
    let folder = TestFolder::new();
    for length in [10, 40_000] {
        let stored = bytes(1, length);
        put(&folder.store(), "a", &stored, 0);
        let whole = fs::read(path(&folder, "a")).unwrap();
        for byte in (0..whole.len())
            .step_by(length / 100 + 1)
            .chain([whole.len() - 1])
        {
            let mut flipped = whole.clone();
            flipped[byte] ^= 1 << (byte % 8);
            // The second copy of the times is unused.
            let is_unused = (120..168).contains(&byte);
            assert_eq!(
                is_entry(&folder, "a", &flipped, &stored),
                is_unused,
                "{byte}"
            );
        }
    }
}

#[test]
fn file_of_another_key_or_version_is_dropped() {
    let folder = TestFolder::new();
    let store = folder.store();
    put(&store, "a", b"a's", 0);
    put(&store, "b", b"b's", 0);
    let (a, b) = (
        fs::read(path(&folder, "a")).unwrap(),
        fs::read(path(&folder, "b")).unwrap(),
    );
    assert!(store.purge(&id("b")).unwrap());
    assert!(!is_entry(&folder, "a", &b, b""));
    for (at, byte) in [(0, b't'), (8, 2), (11, 1)] {
        let mut other = a.clone();
        other[at] = byte;
        assert!(!is_entry(&folder, "a", &other, b""));
    }
    // The version of nginx, with the wrong head and with no head.
    let mut other = a.clone();
    other[..8].copy_from_slice(&5_u64.to_le_bytes());
    assert!(!is_entry(&folder, "a", &other, b""));
    assert!(!is_entry(&folder, "a", &5_u64.to_le_bytes(), b""));
    assert!(!is_entry(&folder, "a", &vec![0xff; 5000], b""));
    assert!(is_entry(&folder, "a", &a, b"a's"));
}

#[test]
fn what_is_no_file_is_dropped() {
    let folder = TestFolder::new();
    let store = folder.store();
    let path = path(&folder, "a");
    put(&store, "a", b"x", 0);
    let elsewhere = folder.0.join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    for waits in [true, false] {
        symlink(&elsewhere, &path).unwrap();
        let in_memory = if waits {
            None
        } else {
            store.open_in_memory(&id("a"), b"a", 0)
        };
        let opened = in_memory.unwrap_or_else(|| store.open_entry(&id("a"), b"a", 0));
        let miss = opened.map(|_| ());
        assert!(matches!(miss, Err(Miss::Wrong(Fault::NoFile))), "{miss:?}");
        store.maintain(10, 0);
        assert!(path.symlink_metadata().is_err() && elsewhere.exists());
    }
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    assert!(matches!(
        body(&store, "a", 0),
        Err(Miss::Wrong(Fault::NoFile))
    ));
    fs::create_dir(&path).unwrap();
    assert!(matches!(
        body(&store, "a", 0),
        Err(Miss::Wrong(Fault::NoFile))
    ));
    let refused = put_with(&store, new_head("a"), b"x", 0);
    assert!(matches!(refused, Err(StoreError::Failed(_))), "{refused:?}");
    assert_eq!(store.counts().bytes, 0);
    assert_eq!(folder.files(), [elsewhere]);
}

/// The page cache may hold any part of a file. A partial read must not be mistaken for a truncated
/// file.
#[test]
fn file_that_is_not_in_memory_is_left_to_those_who_may_wait() {
    use rustix::fs::Advice::DontNeed;
    let folder = TestFolder::new();
    let store = folder.store();
    for length in [10, 40_000] {
        let key = length.to_string();
        put(&store, &key, &bytes(1, length), 0);
        let file = fs::File::open(path(&folder, &key)).unwrap();
        file.sync_all().unwrap();
        for kept in [0, 4096, 8192] {
            let _ = fs::read(path(&folder, &key)).unwrap();
            rustix::fs::fadvise(&file, kept, None, DontNeed).unwrap();
            let opened = store.open_in_memory(&id(&key), key.as_bytes(), 0);
            assert!(!matches!(opened, Some(Err(_))), "{length}: {kept}");
            assert!(body(&store, &key, 0).unwrap() == bytes(1, length));
        }
    }
    assert_eq!(store.counts().wrong, 0);
}

/// Another folder takes the name of the open one: writes go to the folder that was opened.
#[test]
fn folder_is_the_one_that_was_opened() {
    let folder = TestFolder::new();
    let descriptor = fs::File::open(&folder.0).unwrap().into();
    let store = DiskStore::in_folder(descriptor, &folder.settings()).unwrap();
    let moved = folder.0.with_extension("moved");
    fs::rename(&folder.0, &moved).unwrap();
    fs::create_dir(&folder.0).unwrap();
    put(&store, "a", b"x", 0);
    assert!(folder.files().is_empty());
    assert_eq!(body(&store, "a", 0).unwrap(), b"x");
    fs::remove_dir_all(&moved).unwrap();
    // Storing in a removed folder fails, without further harm.
    assert!(matches!(body(&store, "a", 0), Err(Miss::Gone)));
    let refused = put_with(&store, new_head("a"), b"x", 0);
    assert!(matches!(refused, Err(StoreError::Failed(_))), "{refused:?}");
    assert_eq!(store.counts().bytes, 0);
}

#[test]
fn clock_that_jumps_loses_nothing() {
    let folder = TestFolder::new();
    let store = folder.store();
    put(&store, "a", b"x", 1_000_000);
    put(&store, "b", b"x", 5);
    let _ = store.lookup(&id("a"), 0);
    assert_eq!(store.maintain(10, 0).removed, 0);
    assert_eq!(store.maintain(10, 100).removed, 0);
    store.mark(&id("c"), 1, u64::MAX, 0);
    assert_eq!(store.lookup(&id("c"), u64::MAX - 1).marker, Some(1));
    store.save_index(true, 0).unwrap();
    let after = DiskStore::open(&folder.settings()).unwrap();
    assert_eq!(after.load_index(u64::MAX).unwrap().entries, 2);
    assert_eq!(
        after.maintain(10, u64::MAX).removed,
        0,
        "ages, not times, are saved"
    );
    while store.maintain(10, u64::MAX).is_more {}
    assert_eq!(store.counts().entries, 0);
}

/// Heads of files are damaged and entries purged while threads store and read. Every successful
/// read returns the stored content, and in the end the counters match the folder.
#[test]
fn storing_reading_and_purging_at_once_stays_right() {
    let folder = TestFolder::new();
    let settings = Settings {
        max_size: Some(60 * 4096),
        index_size: 60 * ENTRY_SIZE,
        ..folder.settings()
    };
    let store = scanned(&settings);
    let work = |thread: usize| {
        let store = Arc::clone(&store);
        let files = folder.0.clone();
        move || {
            for round in 0..400_usize {
                let number = (round * 7 + thread * 13) % 80;
                let key = number.to_string();
                let stored = bytes(number as u8, number * 300);
                match round % 8 {
                    0..3 => match put_with(&store, new_head(&key), &stored, round as u64) {
                        Ok(_)
                        | Err(StoreError::NoRoom | StoreError::Purged | StoreError::Superseded) => {
                        }
                        Err(error) => panic!("{error}"),
                    },
                    3..6 => match body(&store, &key, round as u64) {
                        Ok(read) => assert!(read == stored, "{key}"),
                        Err(Miss::Gone | Miss::Wrong(_)) => {}
                        Err(Miss::Failed(error)) => panic!("{error}"),
                    },
                    6 => {
                        store.purge(&id(&key)).unwrap();
                    }
                    _ => {
                        let path = files.join(
                            store
                                .folder
                                .as_ref()
                                .unwrap()
                                .levels()
                                .path(&id(&key))
                                .as_str(),
                        );
                        if let Ok(file) = fs::OpenOptions::new().write(true).open(path) {
                            file.write_all_at(b"flipped", 40).unwrap();
                        }
                    }
                }
            }
        }
    };
    let threads: Vec<_> = (0..4).map(|thread| thread::spawn(work(thread))).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    // Reading detects the files that were damaged last.
    for number in 0..80 {
        let _ = body(&store, &number.to_string(), 400);
    }
    while store.maintain(100, 400).is_more {}
    assert_eq!(store.counts().bytes, folder.disk_usage());
    assert_eq!(store.counts().entries, folder.files().len() as u64);
    assert!(store.counts().stored > 100 && store.counts().entries > 5);
}
