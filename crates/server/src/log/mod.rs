//! Logs: `error_log` with the lines that the server writes itself, `access_log` with one line
//! per request.
//!
//! Lines are gathered per thread and file (`unwritten`) and leave in one append at the end of
//! a turn of the loop, so a request waits for no log device. Formats and texts are nginx's:
//! <https://nginx.org/en/docs/ngx_core_module.html#error_log>,
//! <https://nginx.org/en/docs/http/ngx_http_log_module.html>.
//!
//! Deliberately not here: the master's own lines, which are few and written at once by the
//! process crate.

use conf::ScopeRef;
use framework::compile::Compiler;

mod access;
mod by_path;
mod client;
mod debug;
mod error;
mod file;
mod format;
mod memory;
mod subject;
mod syslog;
mod time;
mod tls;
mod unwritten;

pub use base::level::Level;

pub use access::{ACCESS_LOG, AccessLogs, write_access, write_access_of_ended};
pub use by_path::{Limits, OPEN_LOG_FILE_CACHE};
pub use client::{
    abort, connection_closed, connection_closed_early, incomplete_head, proxy_protocol_broken,
    proxy_protocol_missing,
};
pub use debug::{accepted, head, response};
pub(crate) use error::event;
pub use error::{
    Destination, ERROR_LOG, ErrorLog, MainLog, Sink, process_error, set_main, set_main_of,
};
pub use file::{Buffering, Compiling, LogFile, LogTable, OpenLogs, lines_dropped};
pub use format::{Escape, Formats, LOG_FORMAT, check};
pub use framework::display::{Errno, Printable, error_text};
pub(crate) use subject::error;
pub use subject::{Noted, Process, Subject, write, write_line};
pub use time::{Formatted, load_zone, with_now};
pub use tls::{
    HandshakeCall, certificate_not_loaded, handshake_broken, handshake_failed, handshake_left,
    handshake_panicked, handshake_refused, handshake_rejected, handshake_timed_out, name_undecided,
    status_unknown,
};
pub use unwritten::{
    append_line, end_thread, flush_all, flush_thread, has_unwritten, start_thread,
};

/// Opens the logs that the `http` block itself writes, though each of its servers may write others: nginx opens what is
/// written, used or not.
pub fn open_written(compiler: &Compiler<'_>, http: ScopeRef<'_>) -> Option<()> {
    if http.writes(&[&ACCESS_LOG]) {
        compiler.feature_or_report::<AccessLogs>(http)?;
    }
    if http.writes(&[&ERROR_LOG]) {
        compiler.feature_or_report::<ErrorLog>(http)?;
    }
    Some(())
}

/// What a debug line is about. `error_log FILE debug_http` lets only the lines of one through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subsystem {
    /// `debug_core`
    Core,
    /// `debug_alloc`
    Alloc,
    /// `debug_mutex`
    Mutex,
    /// `debug_event`
    Event,
    /// `debug_http`
    Http,
    /// `debug_mail`
    Mail,
    /// `debug_stream`
    Stream,
}

impl Subsystem {
    /// Every subsystem.
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
