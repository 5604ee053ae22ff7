//! The settings of a runtime, independent of its engine.

use base::limits::RECEIVE_BUFFER_SIZE_DEFAULT;

/// The settings of a runtime, fixed when it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The expected number of connections, which sizes the rings of `io_uring`. Not a limit.
    pub connections: usize,
    /// Bytes of one receive buffer.
    pub buffer_size: usize,
    /// Accept all waiting connections at once instead of one per turn (nginx's `multi_accept`).
    pub multi_accept: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            connections: 512,
            buffer_size: RECEIVE_BUFFER_SIZE_DEFAULT,
            multi_accept: false,
        }
    }
}
