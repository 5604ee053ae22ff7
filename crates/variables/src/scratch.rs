//! Memory that a context reuses.

/// Buffers for temporary values, and the depth of evaluation.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    buffers: Vec<Vec<u8>>,
    /// The number of variables that wait for each other's values.
    depth: u8,
    /// How often the depth was exceeded since no variable waited.
    circles: u8,
}

/// Whether a variable may be evaluated for another's value.
pub(crate) enum Entry {
    Open,
    /// The depth is exceeded.
    TooDeep,
    /// The depth was exceeded too often: values that depend on themselves more than once would
    /// double the work at each level.
    Closed,
}

/// The capacity beyond which a buffer is freed, since longer values are rare.
const CAPACITY_MAX: usize = 4096;

/// The depth at which variables are assumed to depend on each other in a cycle, as in nginx.
const DEPTH_MAX: u8 = 100;

/// How often the depth may be exceeded before the evaluation of the outermost value stops.
const CIRCLES_MAX: u8 = 100;

impl Scratch {
    /// Lends an empty buffer for a value.
    pub fn take_buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    /// Returns a buffer for reuse.
    pub fn give_buffer(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= CAPACITY_MAX {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }

    /// Begins the evaluation of a variable for another's value.
    pub(crate) fn enter(&mut self) -> Entry {
        if self.circles == CIRCLES_MAX {
            return Entry::Closed;
        }
        if self.depth == DEPTH_MAX {
            self.circles += 1;
            return Entry::TooDeep;
        }
        self.depth += 1;
        Entry::Open
    }

    /// Ends the evaluation of a variable.
    pub(crate) fn pop(&mut self) {
        self.depth -= 1;
        if self.depth == 0 {
            self.circles = 0;
        }
    }
}
