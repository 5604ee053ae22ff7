//! The seam between the threads and the logs, which stand above them.

use std::fmt::{Arguments, Debug};

use base::level::Level;

use crate::generation::Generation;

/// Takes the lines that threads have to say about themselves, and follows their lives: what is
/// written within a turn of the event loop may then leave at its end.
pub trait ThreadReport: Debug + Sync {
    /// Writes a line about the process.
    fn line(&self, level: Level, message: Arguments<'_>);

    /// This thread begins to serve.
    fn thread_begins(&self);

    /// This thread serves by this generation from now on.
    fn serves_by(&self, generation: &Generation);

    /// This thread ends; its engine is gone.
    fn thread_ends(&self);
}
