//! A hierarchical timer wheel with a resolution of one millisecond.
//!
//! Filing, cancelling and firing an entry take constant time. The wheel reads no clock: the caller
//! passes the time in milliseconds since a start of its choice. Due entries are returned in the
//! order of their milliseconds; the order within one millisecond is unspecified.
//!
//! Ten levels of 64 slots. A slot of level 0 is one millisecond wide, a slot of level 1 is 64, and
//! so on: an entry is filed by the highest group of six bits in which its deadline differs from the
//! present, and moves down as the present comes closer. (Varghese and Lauck, "Hashed and
//! Hierarchical Timing Wheels", 1987, scheme 7.)

const LEVELS: usize = 10;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// The last millisecond that ten levels can tell apart, in 36 million years; later deadlines count
/// as this one.
const LAST_MS: u64 = (1 << (SLOT_BITS * LEVELS as u32)) - 1;
const NONE: u32 = u32::MAX;

/// Handle of one scheduled deadline, for [`cancel`](TimerWheel::cancel). Invalid once the deadline
/// has fired or was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    index: u32,
    generation: u32,
}

/// Deadlines, each with a key that is returned when the deadline is reached. `K` is small and
/// `Copy`, usually a slab key.
#[derive(Debug)]
pub struct TimerWheel<K> {
    /// All deadlines up to this time have been returned.
    now_ms: u64,
    nodes: Vec<Node<K>>,
    free: u32,
    length: usize,
    /// First node of each slot's list.
    heads: [[u32; SLOTS]; LEVELS],
    /// One bit for each slot: whether its list is non-empty.
    occupied: [u64; LEVELS],
}

#[derive(Debug)]
struct Node<K> {
    key: K,
    deadline_ms: u64,
    next: u32,
    previous: u32,
    generation: u32,
    place: TimerPosition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimerPosition {
    Free,
    Filed { level: u8, slot: u8 },
}

impl<K: Copy> Default for TimerWheel<K> {
    fn default() -> Self {
        TimerWheel::new(0)
    }
}

impl<K: Copy> TimerWheel<K> {
    /// An empty wheel whose current time is `now_ms`.
    #[must_use]
    pub fn new(now_ms: u64) -> TimerWheel<K> {
        TimerWheel {
            now_ms,
            nodes: Vec::new(),
            free: NONE,
            length: 0,
            heads: [[NONE; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
        }
    }

    /// The number of pending deadlines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no deadline is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Schedules `key` to be returned by the first [`advance`](Self::advance) to `deadline_ms` or
    /// later.
    ///
    /// A deadline that has already passed fires with the next millisecond.
    pub fn schedule(&mut self, deadline_ms: u64, key: K) -> Entry {
        let index = self.take_node(deadline_ms.min(LAST_MS), key);
        self.file(index);
        self.length += 1;
        Entry {
            index,
            generation: self.nodes[index as usize].generation,
        }
    }

    /// Cancels a deadline. False if it had already fired or been cancelled.
    pub fn cancel(&mut self, entry: Entry) -> bool {
        match self.nodes.get(entry.index as usize) {
            Some(node)
                if node.generation == entry.generation && node.place != TimerPosition::Free => {}
            _ => return false,
        }
        self.unfile(entry.index);
        self.release(entry.index);
        true
    }

    /// Advances the current time to `now_ms` and appends the keys of all deadlines up to it to
    /// `due`.
    ///
    /// A time before the current one has no effect.
    pub fn advance(&mut self, now_ms: u64, due: &mut Vec<K>) {
        while let Some((level, slot, starts_ms)) = self.next_slot() {
            if starts_ms > now_ms {
                break;
            }
            self.now_ms = self.now_ms.max(starts_ms);
            self.empty_slot(level, slot, due);
        }
        self.now_ms = self.now_ms.max(now_ms);
    }

    /// The time at which [`advance`](Self::advance) next has work: at the latest the next deadline,
    /// and earlier only if entries must first move to a finer level.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.next_slot().map(|(_, _, starts_ms)| starts_ms)
    }

    /// Appends the due keys of one slot to `due`, and files the other entries again, which moves
    /// them to a finer level.
    fn empty_slot(&mut self, level: usize, slot: usize, due: &mut Vec<K>) {
        let mut index = std::mem::replace(&mut self.heads[level][slot], NONE);
        self.occupied[level] &= !(1 << slot);
        while index != NONE {
            let node = &self.nodes[index as usize];
            let next = node.next;
            if node.deadline_ms <= self.now_ms {
                due.push(node.key);
                self.release(index);
            } else {
                self.file(index);
            }
            index = next;
        }
    }

    /// The first occupied slot and the time it begins. Finer levels always come before coarser
    /// ones.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        (0..LEVELS).find_map(|level| {
            let occupied = self.occupied[level];
            if occupied == 0 {
                return None;
            }
            // Entries of a level agree with the current time in all higher bits, so no slot lies
            // before it.
            let slot = occupied.trailing_zeros() as usize;
            let shift = SLOT_BITS * level as u32;
            let round_ms = 1_u64 << (shift + SLOT_BITS);
            let starts_ms = (self.now_ms & !(round_ms - 1)) + ((slot as u64) << shift);
            Some((level, slot, starts_ms))
        })
    }

    fn take_node(&mut self, deadline_ms: u64, key: K) -> u32 {
        if let Some(node) = self.nodes.get_mut(self.free as usize) {
            let index = self.free;
            self.free = node.next;
            node.key = key;
            node.deadline_ms = deadline_ms;
            return index;
        }
        let index = self.nodes.len() as u32;
        assert!(index != NONE, "timer wheel is full");
        self.nodes.push(Node {
            key,
            deadline_ms,
            next: NONE,
            previous: NONE,
            generation: 0,
            place: TimerPosition::Free,
        });
        index
    }

    fn release(&mut self, index: u32) {
        let node = &mut self.nodes[index as usize];
        node.place = TimerPosition::Free;
        node.generation = node.generation.wrapping_add(1);
        node.next = self.free;
        self.free = index;
        self.length -= 1;
    }

    fn file(&mut self, index: u32) {
        let at_ms = self.nodes[index as usize].deadline_ms.max(self.now_ms + 1);
        let differing = (at_ms ^ self.now_ms) | (SLOTS as u64 - 1);
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS) as usize;
        let slot = (at_ms >> (SLOT_BITS * level as u32)) as usize % SLOTS;

        let head = std::mem::replace(&mut self.heads[level][slot], index);
        self.occupied[level] |= 1 << slot;
        if let Some(node) = self.nodes.get_mut(head as usize) {
            node.previous = index;
        }
        let node = &mut self.nodes[index as usize];
        node.next = head;
        node.previous = NONE;
        node.place = TimerPosition::Filed {
            level: level as u8,
            slot: slot as u8,
        };
    }

    fn unfile(&mut self, index: u32) {
        let Node {
            next,
            previous,
            place,
            ..
        } = self.nodes[index as usize];
        let TimerPosition::Filed { level, slot } = place else {
            return;
        };
        let (level, slot) = (level as usize, slot as usize);
        if let Some(node) = self.nodes.get_mut(next as usize) {
            node.previous = previous;
        }
        match self.nodes.get_mut(previous as usize) {
            Some(node) => node.next = next,
            None => self.heads[level][slot] = next,
        }
        if self.heads[level][slot] == NONE {
            self.occupied[level] &= !(1 << slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fired(wheel: &mut TimerWheel<u32>, now_ms: u64) -> Vec<u32> {
        let mut due = Vec::new();
        wheel.advance(now_ms, &mut due);
        due
    }

    #[test]
    fn fires_at_the_deadline_and_not_before() {
        for deadline in [1, 63, 64, 65, 4095, 4096, 262_144, 75_000, 20_000_000_000] {
            let mut wheel = TimerWheel::new(0);
            wheel.schedule(deadline, 7);
            assert_eq!(fired(&mut wheel, deadline - 1), [], "{deadline}");
            assert_eq!(fired(&mut wheel, deadline), [7], "{deadline}");
            assert!(wheel.is_empty() && wheel.next_deadline().is_none());
        }
    }

    #[test]
    fn the_furthest_deadline_is_kept() {
        let mut wheel = TimerWheel::new(5);
        let entry = wheel.schedule(u64::MAX, 1);
        assert_eq!(fired(&mut wheel, 1 << 50), []);
        assert!(wheel.cancel(entry));
        assert_eq!(wheel.next_deadline(), None);
    }

    #[test]
    fn a_passed_deadline_is_due_with_the_next_millisecond() {
        let mut wheel = TimerWheel::new(1000);
        wheel.schedule(10, 1);
        assert_eq!(wheel.next_deadline(), Some(1001));
        assert_eq!(fired(&mut wheel, 1001), [1]);
    }

    #[test]
    fn cancelled_entries_do_not_fire_and_cancel_once() {
        let mut wheel = TimerWheel::new(0);
        let entries: Vec<Entry> = (0..10).map(|n| wheel.schedule(100, n)).collect();
        for entry in entries.iter().step_by(2) {
            assert!(wheel.cancel(*entry));
            assert!(!wheel.cancel(*entry));
        }
        let mut due = fired(&mut wheel, 100);
        due.sort_unstable();
        assert_eq!(due, [1, 3, 5, 7, 9]);
        assert!(!wheel.cancel(entries[1]));
        let again = wheel.schedule(200, 99);
        assert!(
            !wheel.cancel(entries[9]),
            "an old entry must not reach the node's next user"
        );
        assert!(wheel.cancel(again));
    }

    /// Compares the wheel with a sorted list, over a long run of pseudo-random operations.
    #[test]
    fn agrees_with_a_sorted_list() {
        let mut wheel = TimerWheel::new(0);
        let mut expected: Vec<(u64, u32, Entry)> = Vec::new();
        let mut state = 42_u64;
        let mut random = move |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % bound
        };
        let mut now = 0;
        let rounds = if cfg!(miri) { 500 } else { 50_000 };
        for number in 0..rounds {
            match random(4) {
                0 | 1 => {
                    let bound = [10, 100, 10_000, 1_000_000, 1 << 34][random(5) as usize];
                    let deadline = now + 1 + random(bound);
                    expected.push((deadline, number, wheel.schedule(deadline, number)));
                }
                2 if !expected.is_empty() => {
                    let at = random(expected.len() as u64) as usize;
                    assert!(wheel.cancel(expected.swap_remove(at).2));
                }
                _ => {
                    let bound = [2, 100, 5_000, 3_000_000][random(4) as usize];
                    now += random(bound);
                    let mut due = fired(&mut wheel, now);
                    let mut wanted: Vec<u32> = expected
                        .iter()
                        .filter(|e| e.0 <= now)
                        .map(|e| e.1)
                        .collect();
                    expected.retain(|e| e.0 > now);
                    due.sort_unstable();
                    wanted.sort_unstable();
                    assert_eq!(due, wanted);
                }
            }
            assert_eq!(wheel.len(), expected.len());
            let earliest = expected.iter().map(|e| e.0).min();
            assert!(wheel.next_deadline() <= earliest || earliest.is_none());
            assert_eq!(wheel.next_deadline().is_none(), earliest.is_none());
        }
    }
}
