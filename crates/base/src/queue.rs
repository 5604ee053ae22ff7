//! A queue that usually holds one entry, which is stored without an allocation.

use std::collections::VecDeque;

/// A first-in, first-out queue.
#[derive(Clone, Debug)]
pub struct Queue<T> {
    first: Option<T>,
    /// Empty if `first` is `None`.
    others: VecDeque<T>,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue {
            first: None,
            others: VecDeque::new(),
        }
    }
}

impl<T> Queue<T> {
    /// Appends an entry at the back of the queue.
    pub fn push_back(&mut self, entry: T) {
        match self.first {
            None => self.first = Some(entry),
            Some(_) => self.others.push_back(entry),
        }
    }

    /// Removes and returns the first entry.
    pub fn pop_front(&mut self) -> Option<T> {
        let first = self.first.take();
        self.first = self.others.pop_front();
        first
    }

    /// The first entry of the queue.
    pub fn front_mut(&mut self) -> Option<&mut T> {
        self.first.as_mut()
    }

    /// The last entry of the queue.
    pub fn back_mut(&mut self) -> Option<&mut T> {
        self.others.back_mut().or(self.first.as_mut())
    }

    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Drops all entries and the queue's memory.
    pub fn clear(&mut self) {
        *self = Queue::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_as_they_came() {
        let mut queue = Queue::default();
        let mut model = VecDeque::new();
        // Push three entries for every two removed, then only remove.
        for number in 0..300 {
            if number < 150 && number % 5 < 3 {
                queue.push_back(number);
                model.push_back(number);
            } else {
                assert_eq!(queue.front_mut(), model.front_mut());
                assert_eq!(queue.back_mut(), model.back_mut());
                assert_eq!(queue.pop_front(), model.pop_front());
            }
            assert_eq!(queue.is_empty(), model.is_empty());
        }
        assert!(queue.is_empty() && queue.back_mut().is_none());
        queue.push_back(1);
        queue.push_back(2);
        queue.clear();
        assert_eq!(queue.pop_front(), None);
    }
}
