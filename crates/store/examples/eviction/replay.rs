//! A trace replayed to the store: what is not there is stored.

use tidegate_store::{Cas, Content, ObjectChange, Settings, Store, Tags, Write};

/// Bytes of every object's value.
const VALUE: usize = 64;

/// Bytes that an object of the store takes with all tables, about.
const OBJECT: usize = 140;

/// What has come of a replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replayed {
    pub(crate) hits: usize,
    /// How many objects the store held on average in the second half, when it was full.
    pub(crate) objects: usize,
}

impl Replayed {
    /// Hits of a hundred requests.
    pub(crate) fn ratio(&self, requests: &[u32]) -> f64 {
        100.0 * self.hits as f64 / requests.len() as f64
    }
}

/// Replays requests to a store that has room for about so many objects.
pub(crate) fn replay(requests: &[u32], objects: usize) -> Replayed {
    let store = Store::new(Settings {
        limit: objects * OBJECT,
        value_max: VALUE,
        evicts: true,
    });
    let (mut hits, mut held, mut looks) = (0, 0, 0);
    for (at, number) in requests.iter().enumerate() {
        let key = number.to_le_bytes();
        if store.get(&key, 1, |_| ()).is_some() {
            hits += 1;
            continue;
        }
        let write = Write {
            content: Content::Copied(&[0; VALUE]),
            flags: 0,
            expires: None,
            cas: Cas::Next,
            marks: 0,
            tags: Tags::None,
        };
        store.update(&key, 1, |_| ObjectChange::Write(write));
        if at >= requests.len() / 2 {
            held += store.counts().objects as usize;
            looks += 1;
        }
    }
    Replayed {
        hits,
        objects: held / looks.max(1),
    }
}
