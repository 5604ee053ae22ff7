//! Fingerprints of keys that were evicted from the small queue lately: who comes back goes into the
//! main one.
//!
//! Each bucket is a short queue by itself, so all of them together are about one: two bytes a key,
//! no links. Only as many of their places are used as make up nine tenths of the objects: who
//! remembers twice as many lets in what comes back too seldom, and hits less (a point at a Zipf
//! exponent of 0.8). There are up to an eighth more buckets than that takes, up to a third where
//! objects have gone.

/// Fingerprints of a bucket, the newest first.
const WIDTH: usize = 8;

type Bucket = [u16; WIDTH];

/// The fingerprint of nothing.
const NONE: u16 = 0;

/// Keys that are not there any more.
#[derive(Debug)]
pub(crate) struct Ghost {
    /// Keys are in order of their hashes over them.
    buckets: Vec<Bucket>,
    /// Keys that are remembered at most.
    keys: usize,
}

impl Ghost {
    pub(crate) fn new() -> Ghost {
        Ghost {
            buckets: Vec::new(),
            keys: 0,
        }
    }

    /// What the fingerprints occupy.
    pub(crate) fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// Makes room for nine tenths as many keys as there are objects.
    pub(crate) fn fit(&mut self, objects: usize) {
        self.keys = objects - objects / 10;
        let (wanted, now) = (self.keys / WIDTH, self.buckets.len());
        let fitting = wanted + wanted / 8 + 1;
        if wanted > now || (wanted * 4 < now * 3 && fitting < now) {
            self.resize(fitting);
        }
    }

    /// Spreads the buckets over so many: each new one begins as what was in its middle.
    fn resize(&mut self, count: usize) {
        let before = self.buckets.len();
        let begin = |number| {
            let middle = (2 * number + 1) * before / (2 * count);
            self.buckets.get(middle).copied().unwrap_or([NONE; WIDTH])
        };
        self.buckets = (0..count).map(begin).collect();
    }

    /// Notes a key that has been evicted.
    pub(crate) fn insert(&mut self, hash: u64) {
        if let Some(places) = self.places(hash) {
            places.rotate_right(1);
            places[0] = fingerprint(hash);
        }
    }

    /// Whether the key is noted. It is forgotten.
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

    /// The places of a key's bucket that are used; at least one.
    fn places(&mut self, hash: u64) -> Option<&mut [u16]> {
        let count = self.buckets.len();
        // The lowest bits have chosen the shard.
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
        // How many share a bucket depends on the process's secret.
        assert!(known.count() > 950, "the last thousand of four thousand");
        // Now and then the fingerprint of another one is the same.
        let again = (99_000..100_000).filter(|number| ghost.take(hash(*number)));
        assert!(again.count() < 10);
        let old = (0..1000).filter(|number| ghost.take(hash(*number)));
        assert!(old.count() < 50);
        let before = ghost.bytes();
        (0..20).for_each(|_| ghost.fit(0));
        assert!(ghost.bytes() <= 16 && before > 4096);
    }
}
