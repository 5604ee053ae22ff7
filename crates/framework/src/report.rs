//! The interface through which threads reach the logs, which belong to a higher layer.

use std::fmt::{Arguments, Debug};

use base::level::Level;

use crate::generation::Generation;

/// Receives the log lines of threads, and follows their lives, so that lines of one turn of the
/// event loop may be written together at its end.
pub trait ThreadReport: Debug + Sync {
    /// Logs a line about the process.
    fn line(&self, level: Level, message: Arguments<'_>);

    /// Called when this thread starts to serve.
    fn thread_begins(&self);

    /// Called when this thread switches to this generation.
    fn serves_by(&self, generation: &Generation);

    /// Called when this thread ends; its engine no longer exists.
    fn thread_ends(&self);
}
