//! A set of small numbers that any thread adds to and one thread drains. Adding takes no lock and
//! allocates nothing: the thread that assigns the numbers makes room for them beforehand.
//!
//! Each number is one bit. A second level has one bit for each word, so that draining visits only
//! words to which a number was added. Room is allocated in chunks, each twice as large as the one
//! before; a chunk never moves.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of one group, which has as many words as a word has bits.
const GROUP: u32 = 64 * 64;

/// Chunks that cover all 32-bit numbers: the first has one group, each further one twice as many
/// groups as the chunk before.
const CHUNKS: usize = 21;

/// A concurrent set of numbers. A number for which no room was made cannot be added.
#[derive(Debug, Default)]
pub struct Marks {
    chunks: [OnceLock<Box<[Group]>>; CHUNKS],
}

#[derive(Debug)]
struct Group {
    /// One bit for each word to which a number was added.
    touched: AtomicU64,
    words: [AtomicU64; 64],
}

impl Group {
    fn new() -> Group {
        Group {
            touched: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; 64],
        }
    }
}

impl Marks {
    /// An empty set without room, which allocates nothing.
    #[must_use]
    pub fn new() -> Marks {
        Marks::default()
    }

    /// Makes room for at least the numbers below `count`, and returns how many numbers fit then.
    /// This is the only call that allocates.
    pub fn make_room(&self, count: u32) -> u32 {
        let mut room = 0_u64;
        for (place, chunk) in self.chunks.iter().enumerate() {
            if room >= u64::from(count) && chunk.get().is_none() {
                break;
            }
            let groups = chunk.get_or_init(|| (0..1_u32 << place).map(|_| Group::new()).collect());
            room += groups.len() as u64 * u64::from(GROUP);
        }
        u32::try_from(room).unwrap_or(u32::MAX)
    }

    /// Adds a number. True if the number is new: the calling thread must then have the set drained.
    ///
    /// False if the number is in the set already; then the thread that added it has the set
    /// drained, and everything that this thread did before is visible to the draining thread. Also
    /// false, without any effect, if there is no room for the number.
    pub fn add(&self, number: u32) -> bool {
        let group = number / GROUP;
        let place = (group + 1).ilog2();
        let chunk = self.chunks.get(place as usize).and_then(OnceLock::get);
        let group = chunk.and_then(|groups| groups.get((group + 1 - (1 << place)) as usize));
        let word = number % GROUP / 64;
        let Some((group, bits)) = group.and_then(|group| {
            let bits = group.words.get(word as usize)?;
            Some((group, bits))
        }) else {
            return false;
        };
        let bit = 1 << (number % 64);
        let is_new = bits.fetch_or(bit, Ordering::AcqRel) & bit == 0;
        if is_new {
            // Set the bit even if another thread has added to this word and is about to set it,
            // since that thread may be delayed.
            group.touched.fetch_or(1 << word, Ordering::AcqRel);
        }
        is_new
    }

    /// Drains the set, and calls `each` for every number that was in it, in ascending order.
    ///
    /// A number that is added concurrently is found by this call or by the next one. The thread
    /// that added the number must see to a next call.
    pub fn take(&self, mut each: impl FnMut(u32)) {
        let chunks = self.chunks.iter().map_while(OnceLock::get);
        let groups = chunks.flat_map(|chunk| chunk.iter());
        for (group, first) in groups.zip((0..).step_by(GROUP as usize)) {
            if group.touched.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Clear `touched` before reading the words: a word to which a number is added later is
            // touched again, unless this call finds that number.
            let touched = group.touched.swap(0, Ordering::AcqRel);
            for (word, bits) in group.words.iter().enumerate() {
                if touched & 1 << word == 0 {
                    continue;
                }
                let mut bits = bits.swap(0, Ordering::AcqRel);
                while bits != 0 {
                    each(first + word as u32 * 64 + bits.trailing_zeros());
                    bits &= bits - 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(marks: &Marks) -> Vec<u32> {
        let mut all = Vec::new();
        marks.take(|number| all.push(number));
        all
    }

    #[test]
    fn each_number_is_met_once() {
        let marks = Marks::new();
        assert!(!marks.add(0), "there is no room");
        assert_eq!(marks.make_room(1), GROUP);
        assert_eq!(marks.make_room(GROUP), GROUP);
        let room = marks.make_room(GROUP + 1);
        assert_eq!(room, 3 * GROUP);
        let numbers = [0, 1, 63, 64, 4095, 4096, 8191, 8192, room - 1];
        for number in numbers.iter().rev() {
            assert!(marks.add(*number));
            assert!(!marks.add(*number), "{number} is there");
        }
        assert!(!marks.add(room));
        assert_eq!(taken(&marks), numbers);
        assert_eq!(taken(&marks), []);
        assert!(marks.add(64));
        assert_eq!(marks.make_room(0), room, "what there is stays");
        assert_eq!(taken(&marks), [64]);
    }

    /// A number that `add` reports as new is found by a later drain, whatever other threads do.
    #[test]
    fn nothing_is_lost_between_threads() {
        const THREADS: u32 = 3;
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let marks = Marks::new();
        marks.make_room(200);
        let added = AtomicU64::new(0);
        let left = AtomicU64::new(u64::from(THREADS));
        let mut met = 0;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (marks, added, left) = (&marks, &added, &left);
                scope.spawn(move || {
                    for round in 0..rounds {
                        // Some words are this thread's own, one is everybody's.
                        let number = [thread * 64 + 5, 199][round % 2];
                        added.fetch_add(u64::from(marks.add(number)), Ordering::Relaxed);
                    }
                    left.fetch_sub(1, Ordering::Release);
                });
            }
            loop {
                let done = left.load(Ordering::Acquire) == 0;
                marks.take(|_| met += 1);
                if done {
                    break;
                }
            }
        });
        assert_eq!(met, added.into_inner());
    }
}
