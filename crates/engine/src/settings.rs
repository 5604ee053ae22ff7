//! What a runtime is told when it starts. No engine is named here.

use base::limits::RECEIVE_BUFFER_SIZE_DEFAULT;

/// What a runtime needs to know at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// About how many connections there will be; sizes the rings of `io_uring`. It limits nothing.
    pub connections: usize,
    /// Bytes of one receive buffer.
    pub buffer_size: usize,
    /// Accept all waiting connections at once instead of one a turn (nginx's `multi_accept`).
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
