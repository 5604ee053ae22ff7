//! Fingerprints of keys that were recently evicted from the small queue: if such a key is stored
//! again, it goes to the main queue.
//!
//! Each bucket is a short FIFO queue, and all buckets together approximate one queue: two bytes per
//! key, without links. The queue remembers nine tenths as many keys as there are objects. With
//! twice as many, keys that return too rarely would enter the main queue, and the hit ratio would
//! drop (by a percentage point at a Zipf exponent of 0.8). There are up to an eighth more buckets
//! than necessary, or up to a third more after objects have been removed.

/// Number of fingerprints in a bucket.
const WIDTH: usize = 8;

/// The fingerprints of a bucket, the newest first.
type Bucket = [u16; WIDTH];

/// Marks an unused place.
const NONE: u16 = 0;

/// The fingerprints of evicted keys.
#[derive(Debug)]
pub(crate) struct Ghost {
    /// Buckets in the order of the hashes of their keys.
    buckets: Vec<Bucket>,
    /// Maximum number of remembered keys.
    keys: usize,
}

impl Ghost {
    pub(crate) fn new() -> Ghost {
        Ghost {
            buckets: Vec::new(),
            keys: 0,
        }
    }

    /// Memory of the fingerprints, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// Adjusts the limit to nine tenths of the number of objects.
    pub(crate) fn fit(&mut self, objects: usize) {
        self.keys = objects - objects / 10;
        let (wanted, now) = (self.keys / WIDTH, self.buckets.len());
        let fitting = wanted + wanted / 8 + 1;
        if wanted > now || (wanted * 4 < now * 3 && fitting < now) {
            self.resize(fitting);
        }
    }

    /// Changes the number of buckets: each new bucket starts as a copy of the old one in its place.
    fn resize(&mut self, count: usize) {
        let before = self.buckets.len();
        let begin = |number| {
            let middle = (2 * number + 1) * before / (2 * count);
            self.buckets.get(middle).copied().unwrap_or([NONE; WIDTH])
        };
        self.buckets = (0..count).map(begin).collect();
    }

    /// Remembers an evicted key.
    pub(crate) fn insert(&mut self, hash: u64) {
        if let Some(places) = self.places(hash) {
            places.rotate_right(1);
            places[0] = fingerprint(hash);
        }
    }

    /// Forgets the key; returns whether it was remembered.
    pub(crate) fn take(&mut self, hash: u64) -> bool {
        let wanted = fingerprint(hash);
        let Some(places) = self.places(hash) else {
            return false;
        };
        let Some(at) = places.iter().position(|found| *found == wanted) else {
            return false;
        };
        places[at..].rotate_left(1);
        if let Some(last) = places.last_mut() {
            *last = NONE;
        }
        true
    }

    /// The used slots of a key's bucket, at least one; `None` if there are no buckets.
    fn places(&mut self, hash: u64) -> Option<&mut [u16]> {
        let count = self.buckets.len();
        // The lowest bits have selected the shard.
        let number = ((u64::from((hash >> 8) as u32) * count as u64) >> 32) as usize;
        let more = usize::from(number < self.keys.checked_rem(count)?);
        let used = self.keys / count + more;
        self.buckets
            .get_mut(number)?
            .get_mut(..used.clamp(1, WIDTH))
    }
}

fn fingerprint(hash: u64) -> u16 {
    ((hash >> 44) as u16).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes hours")]
    fn the_latest_are_known_once() {
        let mut ghost = Ghost::new();
        assert!(!ghost.take(base::hash::of(b"nothing yet")));
        let hash = |number: u32| base::hash::of(&number.to_le_bytes());
        for objects in 0..4096 * 10 / 9 {
            ghost.fit(objects);
        }
        (0..100_000).for_each(|number| ghost.insert(hash(number)));
        let known = (99_000..100_000).filter(|number| ghost.take(hash(*number)));
        // The number of keys per bucket depends on the process's random secret.
        assert!(known.count() > 950, "the last thousand of four thousand");
        // Occasionally another key has the same fingerprint.
        let again = (99_000..100_000).filter(|number| ghost.take(hash(*number)));
        assert!(again.count() < 10);
        let old = (0..1000).filter(|number| ghost.take(hash(*number)));
        assert!(old.count() < 50);
        let before = ghost.bytes();
        (0..20).for_each(|_| ghost.fit(0));
        assert!(ghost.bytes() <= 16 && before > 4096);
    }
}
