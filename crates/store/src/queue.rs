//! One of S3-FIFO's queues: segments in the order in which they were begun, and for each class of
//! lifetimes the one that is being filled.

use std::collections::VecDeque;

use crate::lifetime::CLASSES;
use crate::segment::Segments;

/// The queue of one stage.
#[derive(Default)]
pub(crate) struct Queue {
    /// Numbers and generations; some have been freed meanwhile.
    order: VecDeque<(u32, u8)>,
    /// Numbers of those that are being filled.
    pub(crate) tails: [Option<u32>; CLASSES],
    /// What segments and extents of it occupy.
    pub(crate) bytes: usize,
}

impl Queue {
    /// A segment is begun.
    pub(crate) fn push(&mut self, number: u32, segments: &Segments) {
        if self.order.len() > segments.count() * 2 + CLASSES {
            self.order
                .retain(|(number, generation)| segments.is_used(*number, *generation));
        }
        self.order
            .push_back((number, segments.at(number).generation));
    }

    /// The oldest that is still there.
    pub(crate) fn front(&mut self, segments: &Segments) -> Option<u32> {
        loop {
            let (number, generation) = *self.order.front()?;
            if segments.is_used(number, generation) {
                return Some(number);
            }
            self.order.pop_front();
        }
    }
}
