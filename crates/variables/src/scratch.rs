//! Memory that a context uses again.

/// Buffers for values that are needed for a moment, and how deep the evaluation stands.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    buffers: Vec<Vec<u8>>,
    /// How many variables wait for each other's values.
    depth: u8,
    /// How often there were too many of them since none waited.
    circles: u8,
}

/// Whether a variable may be evaluated for another's value.
pub(crate) enum Entry {
    Open,
    /// Too many wait already.
    Circle,
    /// That has been said often enough: values that need themselves more than once would double
    /// with each of them.
    Closed,
}

/// A value larger than this is rare: its memory is not kept.
const CAPACITY_MAX: usize = 4096;

/// How many variables may wait for each other's values, nginx's number: beyond it they name each
/// other in a circle.
const DEPTH_MAX: u8 = 100;

/// After how many ends of a circle nothing more is evaluated for the value that began it.
const CIRCLES_MAX: u8 = 100;

impl Scratch {
    /// Lends an empty buffer for a value.
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

    /// A variable is about to be evaluated for another's value.
    pub(crate) fn enter(&mut self) -> Entry {
        if self.circles == CIRCLES_MAX {
            return Entry::Closed;
        }
        if self.depth == DEPTH_MAX {
            self.circles += 1;
            return Entry::Circle;
        }
        self.depth += 1;
        Entry::Open
    }

    /// It has been evaluated.
    pub(crate) fn pop(&mut self) {
        self.depth -= 1;
        if self.depth == 0 {
            self.circles = 0;
        }
    }
}
