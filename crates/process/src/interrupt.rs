//! Ctrl-C for programs that have something to say before they end, such as the load tester.

use std::io;

use crate::signals::Signals;

/// SIGINT and SIGTERM, which end nothing any more while this lives.
#[derive(Debug)]
pub struct Interrupt(Signals);

impl Interrupt {
    /// Takes both signals. Must be called while the process has one thread.
    ///
    /// # Errors
    /// Those of `signalfd()`.
    pub fn take() -> io::Result<Interrupt> {
        Ok(Interrupt(Signals::block(&[libc::SIGINT, libc::SIGTERM])?))
    }

    /// Whether one has come since the last time. Never waits.
    #[must_use]
    pub fn has_come(&self) -> bool {
        self.0.next().is_some()
    }
}
