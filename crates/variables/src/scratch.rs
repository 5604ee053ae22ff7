//! Memory that a context uses again.

/// Buffers for values that are needed for a moment.
#[derive(Clone, Debug, Default)]
pub struct Scratch(Vec<Vec<u8>>);

/// A value larger than this is rare: its memory is not kept.
const CAPACITY_MAX: usize = 4096;

impl Scratch {
    /// An empty buffer.
    pub fn take_buffer(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Gives a buffer back for the next use.
    pub fn give_buffer(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= CAPACITY_MAX {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}
