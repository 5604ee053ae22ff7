//! A folder that is also changed by other processes, concurrent fetches and the operator.

use std::ops::ControlFlow;

use super::*;

/// A fetch whose body has been received but not written yet.
fn begun(store: &Arc<DiskStore>, key: &str, body: &str) -> Filler {
    let mut filler = store.filler(&id(key));
    filler.begin(id(key), new_head(key)).unwrap();
    filler.push(Bytes::copy_from_slice(body.as_bytes()));
    filler.finish(0).unwrap();
    filler
}

fn end(mut filler: Filler) -> Result<Stage, StoreError> {
    let write = filler.next_write().unwrap();
    filler.wrote(write.run())
}

#[test]
fn answer_that_came_last_stays_whichever_is_written_last() {
    let folder = TestFolder::new();
    let store = folder.store();
    let older = begun(&store, "a", "older");
    let newer = begun(&store, "a", "newer");
    assert_eq!(end(newer).unwrap(), Stage::Committed);
    assert_eq!(end(older).unwrap_err(), StoreError::Superseded);
    assert_eq!(body(&store, "a", 0).unwrap(), b"newer");

    let older = begun(&store, "a", "third");
    let newer = begun(&store, "a", "fourth");
    assert_eq!(end(older).unwrap(), Stage::Committed);
    assert_eq!(end(newer).unwrap(), Stage::Committed);
    assert_eq!(body(&store, "a", 0).unwrap(), b"fourth");

    // A failed or abandoned fetch does not prevent older ones from being stored.
    let (first, second) = (begun(&store, "a", "fifth"), begun(&store, "a", "sixth"));
    drop(second);
    assert_eq!(end(first).unwrap(), Stage::Committed);
    assert_eq!(body(&store, "a", 0).unwrap(), b"fifth");
    assert_eq!(folder.files().len(), 1, "no temporary file is left");
}

/// Requests get the response whose head was received last, even before it has been written.
#[test]
fn answer_that_came_last_is_seen_before_it_is_written() {
    let folder = TestFolder::new();
    let store = folder.store();
    let fetched = |body: &str| {
        let Claim::Won(mut filler) = store.claim_newer(&id("a"), 0) else {
            panic!("all of the one before has come");
        };
        filler.begin(id("a"), new_head("a")).unwrap();
        let again = store.claim_newer(&id("a"), 0);
        assert!(matches!(again, Claim::Taken(_)), "it has just begun");
        filler.push(Bytes::copy_from_slice(body.as_bytes()));
        filler.finish(0).unwrap();
        *filler
    };
    let seen = || {
        let fill = store.lookup(&id("a"), 0).fill?;
        match fill.reader()?.next(100) {
            FillChunk::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    };
    let first = fetched("first");
    assert_eq!(seen().unwrap(), "first");
    let second = fetched("second");
    assert_eq!(seen().unwrap(), "second");
    assert_eq!(end(first).unwrap(), Stage::Committed);
    assert_eq!(seen().unwrap(), "second");
    assert_eq!(end(second).unwrap(), Stage::Committed);
    assert_eq!(seen(), None);
    assert_eq!(body(&store, "a", 0).unwrap(), b"second");
}

#[test]
fn who_does_not_own_the_folder_lets_nothing_go() {
    let folder = TestFolder::new();
    let settings = Settings {
        max_size: Some(8 * 4096),
        index_size: 16 * ENTRY_SIZE,
        ..folder.settings()
    };
    let owner = scanned(&settings);
    for number in 0..8 {
        put(&owner, &number.to_string(), b"x", 5);
    }
    let other = DiskStore::open(&settings).unwrap();
    assert!(!other.try_acquire_ownership());
    for number in 0..8 {
        assert_eq!(body(&other, &number.to_string(), 5).unwrap(), b"x");
    }
    let refused = put_with(&other, new_head("new"), b"x", 5);
    assert_eq!(refused.unwrap_err(), StoreError::NoRoom);
    for number in 0..100 {
        other.mark(&id(&format!("mark {number}")), 1, 100, 5);
    }
    assert_eq!(other.counts().entries, 0, "its index holds as many others");
    other.maintain(100, 5);
    for number in 0..8 {
        assert_eq!(body(&owner, &number.to_string(), 5).unwrap(), b"x");
    }

    drop(owner);
    assert!(other.try_acquire_ownership());
    let mut scanner = other.scanner();
    while scanner.step(100, 5) {}
    assert_eq!(other.counts().entries, 8);
    put_with(&other, new_head("new"), b"x", 6).unwrap();
    assert_eq!(
        other.counts().evicted,
        9,
        "8 of them were in the index only"
    );
}

#[test]
fn index_that_was_saved_before_something_was_stored_does_not_know_all() {
    let folder = TestFolder::new();
    let store = folder.store();
    put(&store, "a", b"x", 0);
    store.save_index(true, 0).unwrap();
    put(&store, "b", b"x", 0);
    drop(store);
    let store = DiskStore::open(&folder.settings()).unwrap();
    assert!(!store.load_index(0).unwrap().is_orderly);
    assert_eq!(presence(&store, "a"), Presence::Present);
    assert_eq!(presence(&store, "b"), Presence::Unknown);
}

#[test]
fn folder_that_was_removed_is_made_anew() {
    let folder = TestFolder::new();
    let store = folder.store();
    put(&store, "a", b"a's", 0);
    assert_eq!(store.ensure_folder().unwrap(), FolderState::There);
    for round in 0..3 {
        fs::remove_dir_all(&folder.0).unwrap();
        assert!(matches!(body(&store, "a", 0), Err(Miss::Gone)));
        let failed = put_with(&store, new_head("b"), b"x", 0).unwrap_err();
        assert!(matches!(failed, StoreError::Failed(_)), "{round}");
        assert_eq!(store.ensure_folder().unwrap(), FolderState::Replaced);
        assert_eq!(store.counts().bytes, 0);
        assert!(!store.is_scanned());
        assert!(store.try_acquire_ownership());
        put(&store, "a", b"a's", 0);
        assert_eq!(body(&store, "a", 0).unwrap(), b"a's");
        assert_eq!(folder.files().len(), 1);
        assert_eq!(store.ensure_folder().unwrap(), FolderState::There);
    }
    // If the folder cannot be created, every call returns the error.
    fs::remove_dir_all(&folder.0).unwrap();
    fs::write(&folder.0, "a file").unwrap();
    assert!(store.ensure_folder().is_err());
    fs::remove_file(&folder.0).unwrap();
    assert_eq!(store.ensure_folder().unwrap(), FolderState::Replaced);
}

fn listed(folder: &TestFolder) -> Vec<ListedEntry> {
    let mut all = Vec::new();
    Listing::open(&folder.0).unwrap().visit(|listed| {
        all.push(listed);
        ControlFlow::Continue(())
    });
    all.sort_by(|a, b| a.key.cmp(&b.key));
    all
}

#[test]
fn folder_is_listed_while_it_is_used_and_when_it_is_not() {
    let folder = TestFolder::new();
    let store = folder.store();
    let tagged = NewHead {
        group: "group".into(),
        tags: vec!["red".into()],
        ..new_head("a")
    };
    put_with(&store, tagged, b"a's", 1000).unwrap();
    put(&store, "b", &vec![b'b'; 100_000], 2000);
    // The levels are derived from the files at first, and later read from the saved index.
    for has_index in [false, true] {
        let all = listed(&folder);
        let keys: Vec<_> = all.iter().map(|one| one.key.as_deref().unwrap()).collect();
        assert_eq!(keys, [b"a", b"b"]);
        let [a, b] = &all[..] else { unreachable!() };
        assert_eq!(a.head.as_ref().unwrap().body_length, Some(3));
        assert!(a.is_named(b"a") && a.is_named(b"group") && a.has_tag(b"red"));
        assert!(!b.is_named(b"") && !b.has_tag(b"red") && b.begins_with(b""));
        assert!(folder.0.join(&a.path).is_file());
        assert_eq!(a.unused.is_some(), has_index);
        if has_index {
            let unused = [a, b].map(|one| one.unused.unwrap().as_secs());
            assert!((9..12).contains(&unused[0]) && (8..11).contains(&unused[1]));
        }
        store.save_index(false, 10_000).unwrap();
    }
    let listing = Listing::open(&folder.0).unwrap();
    let all = listed(&folder);
    for one in &all {
        assert_eq!(listing.check_body(one).unwrap(), Some(Ok(())));
    }
    assert!(listing.unlink(&all[0]).unwrap());
    assert!(!listing.unlink(&all[0]).unwrap());
    assert!(matches!(body(&store, "a", 0), Err(Miss::Gone)));

    store.save_index(true, 10_000).unwrap();
    listing.note_unlinked().unwrap();
    drop(store);
    assert!(listing.unlink(&all[1]).unwrap());
    listing.note_unlinked().unwrap();
    let store = DiskStore::open(&folder.settings()).unwrap();
    drop(listing);
    let loaded = store.load_index(10_000).unwrap();
    assert_eq!((loaded.entries, loaded.is_orderly), (1, false));
}

#[test]
fn what_is_wrong_with_an_entry_is_listed() {
    let folder = TestFolder::new();
    let store = folder.store();
    for key in ["body", "cut", "head", "other"] {
        put(&store, key, &[b'x'; 5000], 0);
    }
    let path = |key: &str| {
        folder.0.join(
            store
                .folder
                .as_ref()
                .unwrap()
                .levels()
                .path(&id(key))
                .as_str(),
        )
    };
    let flip = |key: &str, at: usize| {
        let mut bytes = fs::read(path(key)).unwrap();
        bytes[at] ^= 1;
        fs::write(path(key), bytes).unwrap();
    };
    flip("body", 3000);
    flip("head", 300);
    let bytes = fs::read(path("cut")).unwrap();
    fs::write(path("cut"), &bytes[..3000]).unwrap();
    fs::copy(path("body"), path("other")).unwrap();
    let all = listed(&folder);
    let listing = Listing::open(&folder.0).unwrap();
    let mut found: Vec<_> = all
        .iter()
        .map(|one| match &one.head {
            Ok(_) => listing.check_body(one).unwrap().unwrap().unwrap_err(),
            Err(fault) => *fault,
        })
        .collect();
    found.sort_by_key(|fault| *fault as u8);
    let mut expected = [
        Fault::BodyChecksum,
        Fault::BodyLength,
        Fault::Key,
        Fault::HeadChecksum,
    ];
    expected.sort_by_key(|fault| *fault as u8);
    assert_eq!(found, expected);
}

#[test]
fn what_is_no_cache_is_not_listed() {
    let folder = TestFolder::new();
    assert_eq!(listed(&folder).len(), 0, "an empty one may become one");
    fs::create_dir_all(folder.0.join("a/bc")).unwrap();
    fs::write(folder.0.join("a/bc/note.txt"), "x").unwrap();
    let refused = Listing::open(&folder.0).unwrap_err();
    assert!(matches!(refused, ListingError::NoCache));
    for path in [folder.0.join("missing"), folder.0.join("a/bc/note.txt")] {
        let refused = Listing::open(&path).unwrap_err();
        assert!(matches!(refused, ListingError::Failed(_)), "{path:?}");
        assert!(!folder.0.join("missing").exists());
    }
}

/// An aborted save, and one in which the process was killed, leave the previous index in place.
#[test]
fn index_that_is_not_whole_replaces_none() {
    let folder = TestFolder::new();
    let settings = Settings {
        index_size: (64 << 10) * ENTRY_SIZE,
        ..folder.settings()
    };
    let store = scanned(&settings);
    for number in 0..100 {
        put(&store, &number.to_string(), b"x", 0);
    }
    store.save_index(true, 0).unwrap();
    let (index, new) = (folder.0.join("temp/index"), folder.0.join("temp/index.new"));
    let saved = fs::read(&index).unwrap();
    for asked_max in [0, 1, 3] {
        let asked = std::cell::Cell::new(0);
        let goes_on = || asked.replace(asked.get() + 1) < asked_max;
        assert!(!store.save_index_while(goes_on, true, 50).unwrap());
        assert_eq!(asked.get(), asked_max + 1);
        assert_eq!(fs::read(&index).unwrap(), saved);
        assert!(!new.exists());
    }
    drop(store);

    fs::write(&new, saved.repeat(2)).unwrap();
    let store = DiskStore::open(&settings).unwrap();
    let loaded = store.load_index(0).unwrap();
    assert_eq!((loaded.entries, loaded.is_orderly), (100, true));
    assert!(store.save_index_while(|| true, true, 0).unwrap());
    assert_eq!(fs::read(&index).unwrap().len(), saved.len());
    assert!(!new.exists());
}
