//! What has come in order and the application has not taken.

use std::collections::VecDeque;

/// Bytes for the application, and whether more follow. Without bytes it holds no memory.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: VecDeque<u8>,
    /// The other end has finished, and all before that is here.
    pub(crate) ended: bool,
}

impl Inbox {
    /// Bytes that wait for the application.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Memory that they take.
    pub(crate) fn occupied(&self) -> usize {
        self.bytes.capacity()
    }

    /// Appends what has come.
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.bytes.extend(data);
    }

    /// Moves bytes into `into`. How many.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.bytes.len());
        let (front, back) = self.bytes.as_slices();
        let of_front = count.min(front.len());
        let (into_front, into_back) = into.split_at_mut(of_front);
        into_front.copy_from_slice(front.get(..of_front).unwrap_or_default());
        for (to, from) in into_back.iter_mut().zip(back) {
            *to = *from;
        }
        if count == self.bytes.len() {
            self.bytes = VecDeque::new();
        } else {
            self.bytes.drain(..count);
        }
        count
    }

    /// Lets go of the bytes.
    pub(crate) fn clear(&mut self) {
        self.bytes = VecDeque::new();
    }
}
