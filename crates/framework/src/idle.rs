//! The idle connections of a thread, in the order in which they became idle. They may be closed
//! without loss to make room for others.
//!
//! A linked list in an array that is indexed by place: entering, leaving and taking the oldest
//! entry cost a few stores each, however many connections there are (nginx's queue of reusable
//! connections).
//!
//! When connections are closed, and how many, is decided in [`workers`](crate::workers).

const NONE: u32 = u32::MAX;

/// A queue of places. A place is the index of a connection's entry in its thread's table, and is in
/// the queue at most once.
#[derive(Debug)]
pub struct IdleQueue {
    /// Indexed by place. An entry that is not in the queue points to itself in both directions.
    links: Vec<IdleLinks>,
    first: u32,
    last: u32,
    length: usize,
    /// The number of entries that were read or written.
    #[cfg(test)]
    touched: usize,
}

#[derive(Clone, Copy, Debug)]
struct IdleLinks {
    before: u32,
    behind: u32,
}

impl Default for IdleQueue {
    fn default() -> Self {
        IdleQueue {
            links: Vec::new(),
            first: NONE,
            last: NONE,
            length: 0,
            #[cfg(test)]
            touched: 0,
        }
    }
}

impl IdleQueue {
    /// The number of places in the queue.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether the place is in the queue.
    pub fn contains(&self, place: u32) -> bool {
        let links = self.links.get(place as usize);
        links.is_some_and(|links| links.before != place)
    }

    /// Moves a place to the end of the queue, or appends it.
    pub fn enter(&mut self, place: u32) {
        self.release(place);
        while self.links.len() <= place as usize {
            let own = self.links.len() as u32;
            self.links.push(IdleLinks {
                before: own,
                behind: own,
            });
        }
        let before = std::mem::replace(&mut self.last, place);
        if let Some(links) = self.at(place) {
            *links = IdleLinks {
                before,
                behind: NONE,
            };
        }
        match self.at(before) {
            Some(links) => links.behind = place,
            None => self.first = place,
        }
        self.length += 1;
    }

    /// Removes a place from the queue, if it is there.
    pub fn release(&mut self, place: u32) {
        if !self.contains(place) {
            return;
        }
        let own = IdleLinks {
            before: place,
            behind: place,
        };
        let Some(links) = self.at(place) else { return };
        let IdleLinks { before, behind } = std::mem::replace(links, own);
        match self.at(before) {
            Some(links) => links.behind = behind,
            None => self.first = behind,
        }
        match self.at(behind) {
            Some(links) => links.before = before,
            None => self.last = before,
        }
        self.length -= 1;
    }

    /// Removes and returns the place that has been in the queue longest.
    pub fn take_first(&mut self) -> Option<u32> {
        let first = self.first;
        self.release(first);
        (first != NONE).then_some(first)
    }

    fn at(&mut self, place: u32) -> Option<&mut IdleLinks> {
        #[cfg(test)]
        {
            self.touched += 1;
        }
        self.links.get_mut(place as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut IdleQueue) -> Vec<u32> {
        std::iter::from_fn(|| queue.take_first()).collect()
    }

    #[test]
    fn places_come_out_in_the_order_in_which_they_last_came_in() {
        let mut queue = IdleQueue::default();
        assert_eq!(queue.take_first(), None);
        for place in [3, 0, 7, 5] {
            queue.enter(place);
        }
        queue.enter(0);
        queue.release(7);
        queue.release(7);
        queue.release(100);
        assert_eq!(queue.len(), 3);
        assert!(queue.contains(0) && !queue.contains(7) && !queue.contains(100));
        assert_eq!(drain(&mut queue), [3, 5, 0]);
        assert!(queue.is_empty());
        (1..=3).for_each(|place| queue.enter(place));
        queue.release(1);
        queue.release(3);
        assert_eq!(drain(&mut queue), [2]);
    }

    /// An operation touches as many entries with ten places as with a hundred thousand.
    #[test]
    fn what_an_operation_costs_does_not_depend_on_the_length() {
        let touched = |length: u32| {
            let mut queue = IdleQueue::default();
            (0..length).for_each(|place| queue.enter(place));
            let before = queue.touched;
            queue.release(length / 2);
            queue.enter(length / 2);
            assert_eq!(queue.take_first(), Some(0));
            queue.touched - before
        };
        assert_eq!(touched(10), touched(100_000));
        assert!(touched(10) <= 10, "{}", touched(10));
    }
}
