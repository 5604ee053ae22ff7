//! One of S3-FIFO's queues: segments in the order of their creation, and for each class of
//! lifetimes the segment that is being filled.

use std::collections::VecDeque;

use crate::lifetime::CLASSES;
use crate::segment::Segments;

/// The queue of one stage.
#[derive(Default)]
pub(crate) struct Queue {
    /// Numbers and generations of segments; some have been freed since.
    order: VecDeque<(u32, u8)>,
    /// Numbers of the segments that are being filled, by class.
    pub(crate) tails: [Option<u32>; CLASSES],
    /// Memory occupied by the queue's segments and extents, in bytes.
    pub(crate) bytes: usize,
}

impl Queue {
    /// Adds a new segment.
    pub(crate) fn push(&mut self, number: u32, segments: &Segments) {
        if self.order.len() > segments.count() * 2 + CLASSES {
            self.order
                .retain(|(number, generation)| segments.is_used(*number, *generation));
        }
        self.order
            .push_back((number, segments.at(number).generation));
    }

    /// The oldest segment that still exists.
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
