//! Ctrl-C handling for programs that print results before they end, such as the load tester.

use std::io;

use crate::signals::Signals;

/// SIGINT and SIGTERM, which do not end the process while this exists.
#[derive(Debug)]
pub struct Interrupt(Signals);

impl Interrupt {
    /// Blocks both signals. Must be called while the process has one thread.
    ///
    /// # Errors
    /// Those of `signalfd()`.
    pub fn take() -> io::Result<Interrupt> {
        Ok(Interrupt(Signals::block(&[libc::SIGINT, libc::SIGTERM])?))
    }

    /// Whether a signal has arrived since the last call. Does not block.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        self.0.next().is_some()
    }
}
