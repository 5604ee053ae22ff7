//! Buffers that a context reuses, and the protection against variables that depend on themselves.

/// Buffers for temporary values, and the nesting depth of the evaluation of variables.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    buffers: Vec<Vec<u8>>,
    /// The number of variables whose evaluation has begun and not ended, each needed for the one
    /// before.
    depth: u8,
    /// How often `depth` has reached its maximum since the evaluation of the outermost variable
    /// began.
    circles: u8,
}

/// Whether the evaluation of another variable may begin.
pub(crate) enum Entry {
    Open,
    /// The depth has reached its maximum: probably a cycle.
    TooDeep,
    /// The depth has reached its maximum too often. The evaluation stops, because a value that
    /// contains itself twice would double the work at each level.
    Closed,
}

/// The capacity beyond which a buffer is freed, since longer values are rare.
const CAPACITY_MAX: usize = 4096;

/// Maximum depth; beyond it, variables are assumed to depend on each other in a cycle, as in nginx.
const DEPTH_MAX: u8 = 100;

/// How often the maximum depth may be reached before the evaluation of the outermost variable
/// stops.
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

    /// Begins the evaluation of a variable. After [`Entry::Open`], [`Scratch::pop`] must follow.
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
