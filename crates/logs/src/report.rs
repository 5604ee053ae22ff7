//! Writes the reports of the engine's threads to the main error log, and gathered lines at the end
//! of each turn.

use std::fmt::Arguments;

use base::level::Level;
use framework::generation::Generation;
use framework::report::ThreadReport;

use crate::{end_thread, process_error, set_main_of, start_thread};

/// Reports to the error log of the thread's current generation.
#[derive(Clone, Copy, Debug)]
pub struct ErrorLogReporter;

impl ThreadReport for ErrorLogReporter {
    fn line(&self, level: Level, message: Arguments<'_>) {
        process_error(level, message);
    }

    fn thread_begins(&self) {
        start_thread();
    }

    fn serves_by(&self, generation: &Generation) {
        set_main_of(generation);
    }

    fn thread_ends(&self) {
        end_thread();
    }
}
