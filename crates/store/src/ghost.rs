//! Fingerprints of keys that were evicted from the small queue lately: who comes back goes into the
//! main one.
//!
//! Each bucket is a short queue by itself, so all of them together are about one: two bytes a key,
//! no links.

/// Fingerprints of a bucket, the newest first.
const WIDTH: usize = 8;

type Bucket = [u16; WIDTH];

/// The fingerprint of nothing.
const NONE: u16 = 0;

/// Keys that are not there any more.
#[derive(Debug)]
pub(crate) struct Ghost {
    /// A power of two of them, or none.
    buckets: Vec<Bucket>,
}

impl Ghost {
    pub(crate) fn new() -> Ghost {
        Ghost {
            buckets: Vec::new(),
        }
    }

    /// What the fingerprints occupy.
    pub(crate) fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// Makes room for about as many keys as there are objects.
    pub(crate) fn fit(&mut self, objects: usize) {
        let wanted = objects / WIDTH;
        if wanted > self.buckets.len() {
            let more = match self.buckets.len() {
                0 => vec![[NONE; WIDTH]],
                // A key's bucket is now one of two: its fingerprint stands in both until others
                // push it out.
                _ => self.buckets.clone(),
            };
            self.buckets.reserve_exact(more.len());
            self.buckets.extend(more);
        } else if wanted * 4 < self.buckets.len() {
            self.buckets.truncate(self.buckets.len() / 2);
            self.buckets.shrink_to_fit();
        }
    }

    /// Notes a key that has been evicted.
    pub(crate) fn insert(&mut self, hash: u64) {
        if let Some(bucket) = self.bucket(hash) {
            bucket.rotate_right(1);
            bucket[0] = fingerprint(hash);
        }
    }

    /// Whether the key is noted. It is forgotten.
    pub(crate) fn take(&mut self, hash: u64) -> bool {
        let wanted = fingerprint(hash);
        let Some(bucket) = self.bucket(hash) else {
            return false;
        };
        let Some(at) = bucket.iter().position(|found| *found == wanted) else {
            return false;
        };
        bucket[at..].rotate_left(1);
        bucket[WIDTH - 1] = NONE;
        true
    }

    fn bucket(&mut self, hash: u64) -> Option<&mut Bucket> {
        let mask = self.buckets.len().checked_sub(1)?;
        self.buckets.get_mut((hash >> 8) as usize & mask)
    }
}

fn fingerprint(hash: u64) -> u16 {
    ((hash >> 34) as u16).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_known_once() {
        let mut ghost = Ghost::new();
        assert!(!ghost.take(base::hash::of(b"nothing yet")));
        let hash = |number: u32| base::hash::of(&number.to_le_bytes());
        for objects in 0..4096 {
            ghost.fit(objects);
        }
        (0..100_000).for_each(|number| ghost.insert(hash(number)));
        let known = (99_000..100_000).filter(|number| ghost.take(hash(*number)));
        assert!(known.count() > 990, "the last thousand of four thousand");
        assert!(!(99_000..100_000).any(|number| ghost.take(hash(number))));
        let old = (0..1000).filter(|number| ghost.take(hash(*number)));
        assert!(old.count() < 10);
        let before = ghost.bytes();
        (0..20).for_each(|_| ghost.fit(0));
        assert!(ghost.bytes() <= 16 && before > 4096);
    }
}
