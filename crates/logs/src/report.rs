//! What threads say of themselves goes to the main error log, and what they gather leaves with
//! their turns.

use std::fmt::Arguments;

use base::level::Level;
use framework::generation::Generation;
use framework::report::ThreadReport;

use crate::{end_thread, process_error, set_main_of, start_thread};

/// The error log of the generation that a thread serves by.
#[derive(Clone, Copy, Debug)]
pub struct ToErrorLog;

impl ThreadReport for ToErrorLog {
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
