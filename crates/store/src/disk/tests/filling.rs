//! Entries that are read while they are being filled.

use super::*;

/// A waker that counts how often it is woken.
#[derive(Debug, Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Reads to the end of the body; `None` if it is truncated.
fn read_to_end(reader: &mut Reader, max: usize) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        match reader.next(max) {
            FillChunk::Bytes(bytes) => body.extend_from_slice(&bytes),
            FillChunk::File {
                file,
                offset,
                length,
            } => {
                let mut part = vec![0; length as usize];
                folder::read_all(&*file, offset, &mut part).unwrap();
                body.extend_from_slice(&part);
            }
            FillChunk::Nothing => wait(|context| reader.poll_more(context)),
            FillChunk::End => return Some(body),
            FillChunk::Broken => return None,
        }
    }
}

fn won(store: &Arc<DiskStore>, key: &str) -> Box<Filler> {
    match store.claim(&id(key), Millis::MAX, 0) {
        Claim::Won(filler) => filler,
        Claim::Taken(_) => panic!("taken"),
    }
}

fn taken(store: &Arc<DiskStore>, key: &str) -> Arc<Fill> {
    match store.claim(&id(key), Millis::MAX, 0) {
        Claim::Won(_) => panic!("free"),
        Claim::Taken(fill) => fill,
    }
}

#[test]
fn one_claims_an_entry_at_a_time() {
    let folder = TestFolder::new();
    let store = folder.store();
    let mut filler = won(&store, "a");
    let fill = taken(&store, "a");
    assert!(Arc::ptr_eq(&fill, filler.fill()));
    assert!(store.lookup(&id("a"), 0).fill.is_some());
    drop(won(&store, "b"));
    drop(won(&store, "b"));
    filler.begin(id("a"), new_head("a")).unwrap();
    filler.push("body".into());
    filler.finish(0).unwrap();
    assert_eq!(fill.progress(), Progress::Complete);
    taken(&store, "a");
    assert_eq!(write_all(&mut filler), Ok(Stage::Committed));
    assert!(store.lookup(&id("a"), 0).fill.is_none());
    assert_eq!(presence(&store, "a"), Presence::Present);
    drop(won(&store, "a"));
}

/// The fetching thread and the writing thread may panic: the claim is released, waiting requests
/// are notified, and nothing is stored.
#[test]
fn a_panic_while_it_is_filled_frees_the_claim() {
    let folder = TestFolder::new();
    let store = folder.store();
    for is_whole in [false, true] {
        let mut filler = won(&store, "a");
        let fill = taken(&store, "a");
        let panicking = thread::spawn(move || {
            filler.begin(id("a"), new_head("a")).unwrap();
            filler.push("body".into());
            if is_whole {
                filler.finish(0).unwrap();
            }
            assert_eq!(filler.is_to_be_stored(), is_whole);
            let _written = filler.next_write();
            std::panic::panic_any("while it is filled");
        });
        assert!(panicking.join().is_err());
        let expected = if is_whole {
            // The body was complete, so readers get all of it.
            Progress::Complete
        } else {
            Progress::Broken
        };
        assert_eq!(fill.progress(), expected);
        assert_eq!(presence(&store, "a"), Presence::Absent);
        drop(won(&store, "a"));
    }
    assert!(folder.files().is_empty());
}

/// [`Filler::store`] writes the rest of a complete entry, and does nothing otherwise.
#[test]
fn what_is_left_is_stored_by_one_call() {
    let folder = TestFolder::new();
    let store = folder.store();
    for (key, length) in [("small", 10), ("large", 300_000)] {
        let mut filler = won(&store, key);
        let fill = taken(&store, key);
        filler.begin(id(key), new_head(key)).unwrap();
        let (first, rest) = (bytes(1, length / 2), bytes(2, length - length / 2));
        filler.push(first.clone().into());
        assert!(!filler.is_to_be_stored());
        if let Some(write) = filler.next_write() {
            assert_eq!(filler.wrote(write.run()), Ok(Stage::More));
        }
        filler.push(rest.clone().into());
        filler.finish(0).unwrap();
        assert!(filler.is_to_be_stored());
        assert_eq!(filler.store(), Ok(()));
        assert!(!filler.is_to_be_stored());
        assert_eq!(filler.store(), Ok(()));
        assert_eq!(fill.progress(), Progress::Complete);
        assert_eq!(body(&store, key, 0).unwrap(), [first, rest].concat());
        // The next fetch replaces the entry while the previous one still has readers.
        let mut next = won(&store, key);
        next.begin(id(key), new_head(key)).unwrap();
        next.push("next".into());
        next.finish(1).unwrap();
        assert_eq!(next.store(), Ok(()));
        assert_eq!(body(&store, key, 0).unwrap(), b"next");
    }
}

/// Storing replaces a file that the index does not list.
#[test]
fn a_file_that_is_not_known_is_replaced() {
    let folder = TestFolder::new();
    let store = folder.store();
    put(&store, "a", b"first", 0);
    let files = folder.files();
    store.purge(&id("a")).unwrap();
    fs::write(&files[0], "of others").unwrap();
    put(&store, "a", b"second", 0);
    assert_eq!(body(&store, "a", 0).unwrap(), b"second");
    assert_eq!(folder.files(), files);
}

/// A fetch without progress loses the claim, but is still stored if it completes.
#[test]
fn a_claim_that_is_overdue_is_taken_over() {
    let folder = TestFolder::new();
    let store = folder.store();
    let claim = |now| store.claim(&id("a"), 100, now);
    let Claim::Won(mut first) = claim(0) else {
        panic!("taken");
    };
    assert!(matches!(claim(99), Claim::Taken(_)));
    let Claim::Won(second) = claim(100) else {
        panic!("not taken over");
    };
    let Claim::Taken(fill) = claim(199) else {
        panic!("taken over twice");
    };
    assert!(Arc::ptr_eq(&fill, second.fill()));
    assert_eq!(fill.since(), 100);
    first.begin(id("a"), new_head("a")).unwrap();
    first.push("body".into());
    first.finish(150).unwrap();
    assert_eq!(write_all(&mut first), Ok(Stage::Committed));
    drop(first);
    // The end of the first fetch does not release the claim of the second, which lasts while the
    // second makes progress.
    let mut second = second;
    second.begin(id("a"), new_head("a")).unwrap();
    for now in [1000, 2000] {
        assert!(matches!(claim(now), Claim::Taken(_)));
        assert!(matches!(claim(now + 99), Claim::Taken(_)));
        second.push("more".into());
    }
    assert!(matches!(claim(3000), Claim::Taken(_)));
    let Claim::Won(third) = claim(3100) else {
        panic!("not taken over");
    };
    drop(third);
    drop(second);
    assert!(matches!(claim(3100), Claim::Won(_)));
}

#[test]
fn waiters_learn_of_every_end() {
    let folder = TestFolder::new();
    let store = folder.store();
    let counter = Arc::new(Counter::default());
    let waker = Waker::from(Arc::clone(&counter));
    let mut context = Context::from_waker(&waker);
    let woken = || counter.0.load(Ordering::Relaxed);

    let filler = won(&store, "a");
    let mut reader = filler.fill().reader().unwrap();
    assert!(reader.poll_head(&mut context).is_pending());
    assert!(reader.poll_head(&mut context).is_pending());
    filler.refuse(Some((9, 100)), 0);
    assert_eq!(woken(), 1);
    assert!(matches!(reader.poll_head(&mut context), Poll::Ready(None)));
    assert_eq!(reader.fill().progress(), Progress::Refused);
    assert_eq!(store.lookup(&id("a"), 50).marker, Some(9));

    let filler = won(&store, "a");
    let mut reader = filler.fill().reader().unwrap();
    assert!(reader.poll_head(&mut context).is_pending());
    drop(filler);
    assert_eq!(woken(), 2);
    assert!(matches!(reader.poll_head(&mut context), Poll::Ready(None)));
    assert_eq!(reader.fill().progress(), Progress::Broken);

    let mut filler = won(&store, "a");
    let mut reader = filler.fill().reader().unwrap();
    assert!(reader.poll_head(&mut context).is_pending());
    filler.begin(id("a"), new_head("a")).unwrap();
    assert_eq!(woken(), 3);
    assert!(matches!(
        reader.poll_head(&mut context),
        Poll::Ready(Some(_))
    ));
    assert!(reader.poll_more(&mut context).is_pending());
    filler.push("x".into());
    assert_eq!(woken(), 4);
    assert!(reader.poll_more(&mut context).is_ready());
    assert!(matches!(reader.next(10), FillChunk::Bytes(bytes) if bytes == "x"));
    assert!(matches!(reader.next(10), FillChunk::Nothing));
    assert!(reader.poll_more(&mut context).is_pending());
    drop(filler);
    assert_eq!(woken(), 5);
    assert!(matches!(reader.next(10), FillChunk::Broken));
    assert!(folder.files().is_empty());
}

#[test]
fn body_of_another_length_than_announced_is_broken_off() {
    let folder = TestFolder::new();
    let store = folder.store();
    for length in [3, 5] {
        let mut filler = won(&store, "a");
        let head = NewHead {
            body_length: Some(4),
            ..new_head("a")
        };
        filler.begin(id("a"), head).unwrap();
        filler.push(bytes(0, length).into());
        assert_eq!(filler.finish(0), Err(Fault::BodyLength));
        assert!(filler.next_write().is_none());
        assert_eq!(filler.fill().progress(), Progress::Broken);
        drop(won(&store, "a"));
    }
}

/// The body is truncated while a part of it is being written.
#[test]
fn write_that_is_under_way_when_the_body_breaks_off_stores_nothing() {
    let folder = TestFolder::new();
    let store = folder.store();
    let mut filler = won(&store, "a");
    let head = NewHead {
        body_length: Some(200_000),
        ..new_head("a")
    };
    filler.begin(id("a"), head).unwrap();
    filler.push(bytes(0, 100_000).into());
    let write = filler.next_write().unwrap();
    filler.push(bytes(0, 99_999).into());
    assert_eq!(filler.finish(0), Err(Fault::BodyLength));
    assert_eq!(filler.wrote(write.run()), Ok(Stage::More));
    assert!(filler.next_write().is_none());
    drop(filler);
    store.maintain(1, 0);
    assert!(folder.files().is_empty());
    assert_eq!(store.counts().bytes, 0);
}

/// Readers on several threads: some start early, some late, and some leave early.
#[test]
fn what_is_filled_once_is_read_by_many_on_several_threads() {
    let folder = TestFolder::new();
    let store = folder.store();
    let whole = bytes(3, 5_000_000);
    let mut filler = won(&store, "a");
    let start = |max: usize| {
        let mut reader = taken(&store, "a").reader().unwrap();
        thread::spawn(move || {
            assert!(wait(|context| reader.poll_head(context)).is_some());
            read_to_end(&mut reader, max)
        })
    };
    let mut threads = vec![start(usize::MAX), start(1000)];
    filler.begin(id("a"), new_head("a")).unwrap();
    for (number, piece) in whole.chunks(7777).enumerate() {
        filler.push(Bytes::copy_from_slice(piece));
        write_all(&mut filler).unwrap();
        match number % 100 {
            50 => threads.push(start(100_000)),
            70 => {
                let mut reader = taken(&store, "a").reader().unwrap();
                assert!(!matches!(
                    reader.next(10),
                    FillChunk::Nothing | FillChunk::Broken
                ));
            }
            _ => {}
        }
    }
    filler.finish(0).unwrap();
    threads.push(start(usize::MAX));
    assert_eq!(write_all(&mut filler), Ok(Stage::Committed));
    let fill = Arc::clone(filler.fill());
    drop(filler);
    for thread in threads {
        assert!(thread.join().unwrap().is_some_and(|read| read == whole));
    }
    // Only the tail of the body is in memory.
    let mut reader = fill.reader().unwrap();
    assert!(matches!(reader.next(usize::MAX), FillChunk::File { .. }));
    reader.seek(whole.len() as u64 - TAIL_MAX as u64 / 2);
    assert!(matches!(reader.next(usize::MAX), FillChunk::Bytes(_)));
    reader.seek(4_000_000);
    assert!(read_to_end(&mut reader, 5000).unwrap() == whole[4_000_000..]);
    assert_eq!(fill.readers(), 1);
    assert_eq!(fill.furthest(), whole.len() as u64);
    assert!(body(&store, "a", 0).unwrap() == whole);
}

/// An upstream that sends single bytes does not cause a buffer per byte.
#[test]
fn single_bytes_are_held_together() {
    let folder = TestFolder::new();
    let store = folder.store();
    let mut filler = won(&store, "a");
    filler.begin(id("a"), new_head("a")).unwrap();
    let large = Bytes::from(vec![7; 100_000]);
    for at in 0..50_000 {
        filler.push(large.slice(at..=at));
    }
    let write = filler.next_write();
    assert!(write.is_none(), "less than is worth a write");
    filler.finish(0).unwrap();
    let write = filler.next_write().unwrap();
    assert_eq!(write.length(), 50_000);
    drop(large);
    assert_eq!(filler.wrote(write.run()), Ok(Stage::Committed));
    assert!(body(&store, "a", 0).unwrap() == [7; 50_000]);
}

#[test]
fn small_entry_is_one_write() {
    let folder = TestFolder::new();
    let store = folder.store();
    let mut filler = won(&store, "a");
    filler.begin(id("a"), new_head("a")).unwrap();
    filler.push("body".into());
    assert!(filler.next_write().is_none());
    filler.finish(0).unwrap();
    let write = filler.next_write().unwrap();
    assert!(filler.next_write().is_none(), "one at a time");
    assert_eq!(filler.wrote(write.run()), Ok(Stage::Committed));
    assert!(filler.next_write().is_none());
}

/// When a waiting request is woken for a marker or an entry, the claim must already be released.
#[test]
fn claim_is_free_before_waiters_are_woken() {
    let folder = TestFolder::new();
    let store = folder.store();
    for is_refused in [true, false] {
        let filler = won(&store, "a");
        let mut reader = filler.fill().reader().unwrap();
        let other = Arc::clone(&store);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let waiter = thread::spawn(move || {
            let mut is_first = true;
            let head = wait(|context| {
                let poll = reader.poll_head(context);
                if std::mem::take(&mut is_first) {
                    ready.send(()).unwrap();
                }
                poll
            });
            assert!(head.is_none());
            matches!(other.claim(&id("a"), Millis::MAX, 0), Claim::Won(_))
        });
        is_ready.recv().unwrap();
        if is_refused {
            filler.refuse(None, 0);
        } else {
            drop(filler);
        }
        assert!(waiter.join().unwrap());
    }
}

#[test]
fn what_is_purged_while_it_is_fetched_is_not_stored() {
    let folder = TestFolder::new();
    let store = folder.store();
    let purges: [&dyn Fn() -> u64; 5] = [
        &|| store.purge(&id("a")).unwrap().into(),
        &|| store.purge_group(b"a").entries,
        &|| store.purge_tag(b"tag").entries,
        &|| store.purge_matching(|_| false).entries,
        &|| store.purge_all().entries,
    ];
    for purge in purges {
        let mut filler = won(&store, "a");
        let head = NewHead {
            tags: vec!["tag".into()],
            ..new_head("a")
        };
        filler.begin(id("a"), head).unwrap();
        let mut reader = filler.fill().reader().unwrap();
        filler.push(bytes(0, 100_000).into());
        write_all(&mut filler).unwrap();
        assert_eq!(purge(), 0);
        filler.finish(0).unwrap();
        assert_eq!(write_all(&mut filler), Err(StoreError::Purged));
        // The entry's readers still get the whole body: they began before the purge.
        assert!(read_to_end(&mut reader, 1000).unwrap() == bytes(0, 100_000));
        assert_eq!(presence(&store, "a"), Presence::Absent);
        assert!(folder.files().is_empty());
        drop(filler);
        // A fetch that begins after the purge is stored.
        put(&store, "a", b"x", 0);
        store.purge(&id("a")).unwrap();
    }
    let filler = won(&store, "a");
    store.purge(&id("b")).unwrap();
    put(&store, "a", b"x", 0);
    drop(filler);
    assert_eq!(presence(&store, "a"), Presence::Present);
}

/// Requests after a purge do not wait for a fetch that began before, unless its key does not match.
#[test]
fn what_is_purged_while_it_is_fetched_is_fetched_anew() {
    let folder = TestFolder::new();
    let store = folder.store();
    let purges: [(&dyn Fn() -> u64, bool); 7] = [
        (&|| store.purge(&id("a")).unwrap().into(), true),
        (&|| store.purge_group(b"a").entries, true),
        (&|| store.purge_tag(b"tag").entries, true),
        (&|| store.purge_matching(|key| key == b"a").entries, true),
        (&|| store.purge_all().entries, true),
        (&|| store.purge(&id("b")).unwrap().into(), false),
        (&|| store.purge_matching(|key| key == b"b").entries, false),
    ];
    for (number, (purge, concerns)) in purges.into_iter().enumerate() {
        let mut filler = won(&store, "a");
        let head = NewHead {
            tags: vec!["tag".into()],
            ..new_head("a")
        };
        filler.begin(id("a"), head).unwrap();
        assert!(store.lookup(&id("a"), 0).fill.is_some());
        assert_eq!(purge(), 0);
        let follows = store.lookup(&id("a"), 0).fill.is_some();
        assert_eq!(follows, !concerns, "purge {number}");
    }
}

/// A purge waits until a completely received entry is stored, and then finds its file.
#[test]
fn what_has_come_whole_is_stored_before_a_purge() {
    let folder = TestFolder::new();
    let store = folder.store();
    let purges: [(&(dyn Fn() -> u64 + Sync), u64); 6] = [
        (&|| store.purge(&id("a")).unwrap().into(), 1),
        (&|| store.purge_group(b"a").entries, 1),
        (&|| store.purge_tag(b"tag").entries, 1),
        (&|| store.purge_matching(|key| key == b"a").entries, 1),
        (&|| store.purge_all().entries, 1),
        (&|| store.purge_matching(|key| key == b"b").entries, 0),
    ];
    for (number, (purge, entries)) in purges.into_iter().enumerate() {
        let mut filler = won(&store, "a");
        let head = NewHead {
            tags: vec!["tag".into()],
            ..new_head("a")
        };
        filler.begin(id("a"), head).unwrap();
        filler.push(bytes(0, 1000).into());
        filler.finish(0).unwrap();
        std::thread::scope(|scope| {
            let purged = scope.spawn(purge);
            filler.store().unwrap();
            assert_eq!(purged.join().unwrap(), entries, "purge {number}");
        });
        let left = presence(&store, "a") == Presence::Present;
        assert_eq!(left, entries == 0, "purge {number}");
    }
}

/// The last write may outlive the filler: it still obeys a purge that happens in between.
#[test]
fn purge_is_heeded_by_a_write_whose_filler_is_gone() {
    let folder = TestFolder::new();
    let store = folder.store();
    let mut filler = won(&store, "a");
    filler.begin(id("a"), new_head("a")).unwrap();
    filler.push("body".into());
    filler.finish(0).unwrap();
    let write = filler.next_write().unwrap();
    drop(filler);
    store.purge(&id("a")).unwrap();
    drop(write.run());
    assert_eq!(presence(&store, "a"), Presence::Absent);
    assert!(folder.files().is_empty());
}

/// If the file cannot be written, the body is only in memory, as long as the slowest reader needs
/// it, and within the limit. A late reader, for which the start is no longer available, must fetch
/// again.
#[test]
fn without_room_the_slowest_reader_sets_the_pace() {
    let folder = TestFolder::new();
    let settings = Settings {
        max_size: Some(50 * 4096),
        ..folder.settings()
    };
    let store = scanned(&settings);
    let counter = Arc::new(Counter::default());
    let waker = Waker::from(Arc::clone(&counter));
    let mut context = Context::from_waker(&waker);
    let mut filler = won(&store, "a");
    filler.begin(id("a"), new_head("a")).unwrap();
    let fill = Arc::clone(filler.fill());
    let (mut quick, mut slow) = (fill.reader().unwrap(), fill.reader().unwrap());
    let whole = bytes(5, 4_000_000);
    let (mut pushed, mut read_quick, mut read_slow) = (0, Vec::new(), Vec::new());
    let mut failures = 0;
    while pushed < whole.len() {
        if !filler.has_room() {
            let before = counter.0.load(Ordering::Relaxed);
            assert!(filler.poll_room(&mut context).is_pending());
            read_slow.extend(take(&mut slow, 100_000));
            if filler.has_room() {
                assert_eq!(
                    counter.0.load(Ordering::Relaxed),
                    before + 1,
                    "it was woken"
                );
            }
            continue;
        }
        let end = (pushed + 16_000).min(whole.len());
        filler.push(Bytes::copy_from_slice(&whole[pushed..end]));
        pushed = end;
        match write_all(&mut filler) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error, StoreError::NoRoom);
                failures += 1;
                drop(won(&store, "a"));
            }
        }
        read_quick.extend(take(&mut quick, usize::MAX));
        assert!(fill.held() <= FILL_MEMORY_MAX + 16_000);
    }
    assert_eq!(failures, 1);
    assert!(fill.reader().is_none());
    filler.finish(0).unwrap();
    read_slow.extend(read_to_end(&mut slow, 100_000).unwrap());
    read_quick.extend(read_to_end(&mut quick, 100_000).unwrap());
    assert!(read_slow == whole && read_quick == whole);
    slow.seek(1_000_000);
    assert!(matches!(slow.next(1), FillChunk::Broken));
    // After a slow reader has left, nothing is kept for it.
    drop(slow);
    drop(quick);
    assert_eq!(fill.held(), 0);
    assert_eq!(store.counts().bytes, 0);
}

/// The bytes of the next chunk.
fn take(reader: &mut Reader, max: usize) -> Vec<u8> {
    match reader.next(max) {
        FillChunk::Bytes(bytes) => bytes.to_vec(),
        FillChunk::File {
            file,
            offset,
            length,
        } => {
            let mut part = vec![0; length as usize];
            folder::read_all(&*file, offset, &mut part).unwrap();
            part
        }
        part => {
            assert!(matches!(part, FillChunk::Nothing));
            Vec::new()
        }
    }
}
