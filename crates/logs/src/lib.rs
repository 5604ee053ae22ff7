//! The error log, and the destinations of the lines of any log.
//!
//! Each line has a [`Subject`], such as a request. The line goes to the log of the subject, or to
//! the main log if the subject has none. Lines are gathered per thread and file (`unwritten`) and
//! written in one append at the end of the event loop's turn, so that requests do not wait for log
//! devices. Formats and texts are nginx's:
//! <https://nginx.org/en/docs/ngx_core_module.html#error_log>.
//!
//! Not here: `access_log`, whose lines need variables, and the master's own lines, which are few
//! and which the crate `process` writes at once.

pub mod by_path;
mod error;
mod file;
mod memory;
pub mod network;
mod report;
mod subject;
pub mod syslog;
mod time;
pub mod unwritten;

pub use base::level::Level;
pub use framework::display::{Errno, Printable, error_text};

pub use by_path::OPEN_LOG_FILE_CACHE;
pub use error::{
    Destination, ERROR_LOG, ErrorLog, MainLog, Sink, main_log, process_error, set_main,
    set_main_of, with_line,
};
pub use file::{Buffering, Compiling, LogFile, LogTable, OpenLogs, lines_dropped};
pub use report::ErrorLogReporter;
pub use subject::{Process, Subject, SubjectSnapshot, write, write_line};
pub use time::{Formatted, load_zone, with_now};
pub use unwritten::{
    append_line, end_thread, flush_all, flush_thread, has_unwritten, start_thread,
};

/// The subsystem of a debug line. `error_log FILE debug_http` accepts only debug lines of that
/// subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subsystem {
    /// The subsystem that `debug_core` turns on.
    Core,
    /// The subsystem that `debug_alloc` turns on.
    Alloc,
    /// The subsystem that `debug_mutex` turns on.
    Mutex,
    /// The subsystem that `debug_event` turns on.
    Event,
    /// The subsystem that `debug_http` turns on.
    Http,
    /// The subsystem that `debug_mail` turns on.
    Mail,
    /// The subsystem that `debug_stream` turns on.
    Stream,
}

impl Subsystem {
    /// All subsystems, in nginx's order.
    pub const ALL: [Subsystem; 7] = [
        Subsystem::Core,
        Subsystem::Alloc,
        Subsystem::Mutex,
        Subsystem::Event,
        Subsystem::Http,
        Subsystem::Mail,
        Subsystem::Stream,
    ];

    /// The word in `error_log`.
    pub fn name(self) -> &'static str {
        match self {
            Subsystem::Core => "debug_core",
            Subsystem::Alloc => "debug_alloc",
            Subsystem::Mutex => "debug_mutex",
            Subsystem::Event => "debug_event",
            Subsystem::Http => "debug_http",
            Subsystem::Mail => "debug_mail",
            Subsystem::Stream => "debug_stream",
        }
    }
}
