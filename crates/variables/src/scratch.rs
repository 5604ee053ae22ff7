//! Memory that a context uses again.

/// Buffers for values that are needed for a moment, and how deep the evaluation stands.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    buffers: Vec<Vec<u8>>,
    depth: u8,
}

/// A value larger than this is rare: its memory is not kept.
const CAPACITY_MAX: usize = 4096;

/// How many variables may wait for each other's values, nginx's number: beyond it they name each other in a circle.
const DEPTH_MAX: u8 = 100;

impl Scratch {
    /// An empty buffer.
    pub fn take_buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    /// Gives a buffer back for the next use.
    pub fn give_buffer(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= CAPACITY_MAX {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// A variable is about to be evaluated for another's value; false where too many wait already.
    pub(crate) fn enter(&mut self) -> bool {
        let may_enter = self.depth < DEPTH_MAX;
        self.depth += u8::from(may_enter);
        may_enter
    }

    /// It has been evaluated.
    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }
}
