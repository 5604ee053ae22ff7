//! Ends an engine's wait from another thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Ends a thread's wait in its engine. May be used from any thread.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<OwnedFd>);

impl Notifier {
    pub(crate) fn new() -> io::Result<Notifier> {
        use rustix::event::{EventfdFlags, eventfd};
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Notifier(Arc::new(fd)))
    }

    /// Ends the engine's current wait, or its next one.
    pub fn notify(&self) {
        // The only error is a full counter, and then the engine is notified already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn fd(&self) -> impl AsFd + '_ {
        self.0.as_fd()
    }

    /// Clears all notifications so far.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0_u8; 8]);
    }

    /// Clears all notifications so far, and returns their number.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&*self.0, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }
}
