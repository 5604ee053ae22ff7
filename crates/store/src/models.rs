//! Models of concurrent use of the store for the model checker loom, which runs each model in every
//! possible order of the threads' locks and atomic operations.
//!
//! Run by `make models`.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::disk::models as disk;
use crate::{Cas, Content, ObjectChange, Settings, Store, Tags, UpdateOutcome, Write};

/// A store with one shard and segments of 1 KiB.
fn store() -> Arc<Store> {
    Arc::new(Store::new(Settings {
        limit: 64 * 1024,
        value_max: 1024,
        evicts: true,
    }))
}

fn set(store: &Store, key: &[u8], value: &[u8]) -> UpdateOutcome {
    store.update(key, 1, |_| {
        ObjectChange::Write(Write {
            content: Content::Copied(value),
            flags: 0,
            expires: None,
            cas: Cas::Next,
            marks: 0,
            tags: Tags::None,
        })
    })
}

fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    store.get(key, 1, |item| {
        assert_eq!(item.key, key);
        item.value.bytes().to_vec()
    })
}

/// A segment is emptied and reused while its object is read.
#[test]
fn what_lies_in_a_segment_that_is_used_again_is_never_taken_for_the_old_object() {
    loom::model(|| {
        let store = store();
        set(&store, b"old", &[1; 100]);
        let of_writer = Arc::clone(&store);
        let writer = thread::spawn(move || {
            of_writer.remove(b"old", 1);
            // The open segment is closed, freed and opened again for the following objects.
            for key in 0..12_u8 {
                set(&of_writer, &[key], &[key; 110]);
            }
            set(&of_writer, b"old", &[2; 100]);
        });
        let mut last = 1;
        for _ in 0..2 {
            if let Some(value) = get(&store, b"old") {
                assert!(value.len() == 100 && value.iter().all(|byte| *byte == value[0]));
                assert!(value[0] >= last, "an older one than was seen before");
                last = value[0];
            }
        }
        writer.join().unwrap();
        assert_eq!(get(&store, b"old"), Some(vec![2; 100]));
    });
}

const NUMBERS: [[u8; 1]; 3] = [[0], [1], [2]];

/// Two writers and a reader of one key: each sees whole values, and each conditional change is
/// applied to the value by which it was decided.
#[test]
fn conditional_changes_are_each_made_once() {
    loom::model(|| {
        let store = store();
        set(&store, b"n", &[0]);
        let add = |store: &Store| {
            store.update(b"n", 1, |item| {
                let number = usize::from(item.unwrap().value.bytes()[0]);
                ObjectChange::Rewrite(&NUMBERS[number + 1], Cas::Next)
            });
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let store = Arc::clone(&store);
                thread::spawn(move || add(&store))
            })
            .collect();
        let seen = get(&store, b"n").unwrap();
        assert!(NUMBERS.iter().any(|number| number == &seen[..]), "{seen:?}");
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(get(&store, b"n"), Some(vec![2]));
    });
}

/// A reference to an extent is dropped while its object is removed and another is stored.
#[test]
fn what_is_lent_counts_until_it_is_let_go() {
    loom::model(|| {
        let store = store();
        set(&store, b"a", &[1; 4096]);
        let share = store.get(b"a", 1, |item| item.value.lent()).unwrap();
        let share = share.unwrap();
        let of_reader = Arc::clone(&store);
        let reader = thread::spawn(move || {
            assert!(share.iter().all(|byte| *byte == 1));
            drop(share);
            of_reader.counts().lent
        });
        store.remove(b"a", 1);
        set(&store, b"b", &[2; 4096]);
        let counts = store.counts();
        assert!(counts.lent == 0 || counts.lent > 4096);
        assert_eq!(reader.join().unwrap(), 0);
        assert_eq!(store.counts().lent, 0);
        assert_eq!(get(&store, b"b"), Some(vec![2; 4096]));
    });
}

/// The limit is lowered while another thread stores and reads.
#[test]
fn who_stores_while_a_limit_shrinks_is_not_in_the_way() {
    loom::model(|| {
        let store = store();
        (0..20_u8).for_each(|key| {
            set(&store, &[key], &[key; 500]);
        });
        let of_other = Arc::clone(&store);
        let other = thread::spawn(move || {
            set(&of_other, b"new", &[9; 500]);
            get(&of_other, b"new").is_none_or(|value| value == [9; 500])
        });
        store.set_limit(8 * 1024);
        store.shrink(1);
        assert!(other.join().unwrap());
        store.shrink(1);
        assert!(store.counts().occupied <= 8 * 1024);
    });
}

/// A value derived from an entry is checked for validity by the entry's revision number, without
/// the lock.
#[test]
fn what_was_made_of_an_entry_does_not_outlive_a_change() {
    loom::model(|| {
        let index = Arc::new(disk::index_with_an_entry());
        let seen = disk::see(&index).unwrap();
        let is_removed = Arc::new(AtomicBool::new(false));
        let (of_purge, removed) = (Arc::clone(&index), Arc::clone(&is_removed));
        let purge = thread::spawn(move || {
            disk::remove(&of_purge);
            removed.store(true, Ordering::Release);
        });
        let was_removed = is_removed.load(Ordering::Acquire);
        assert!(!(was_removed && disk::is_current(&index, seen)));
        purge.join().unwrap();
        assert!(!disk::is_current(&index, seen));
    });
}

/// As above, while a third thread stores another entry in the same place.
#[test]
fn what_was_made_of_an_entry_is_not_taken_for_the_next_one() {
    loom::model(|| {
        let index = Arc::new(disk::index_with_an_entry());
        let (of_filler, of_purge) = (Arc::clone(&index), Arc::clone(&index));
        let purge = thread::spawn(move || disk::remove(&of_purge));
        let filler = thread::spawn(move || disk::store(&of_filler));
        let seen = disk::see(&index);
        purge.join().unwrap();
        filler.join().unwrap();
        if let Some(seen) = seen
            && disk::is_current(&index, seen)
        {
            assert_eq!(
                disk::see(&index).map(|now| now.revision),
                Some(seen.revision)
            );
        }
    });
}
