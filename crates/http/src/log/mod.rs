//! What is logged of requests and connections: `access_log` with one line per request, and the
//! texts of the error log about clients. The logs themselves, and the places that lines go to, are
//! the crate `logs`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_log_module.html>.

use conf::{Fault, ScopeRef};
use framework::compile::Compiler;

use crate::request::Request;

mod access;
mod client;
mod debug;

pub use logs::{
    Buffering, Compiling, Destination, ERROR_LOG, Errno, ErrorLog, Level, LogFile, LogTable,
    MainLog, Noted, OPEN_LOG_FILE_CACHE, OpenLogs, Printable, Sink, Subject, Subsystem, ToErrorLog,
    append_line, end_thread, error, error_text, event, flush_all, flush_thread, has_unwritten,
    lines_dropped, load_zone, process_error, set_main, set_main_of, start_thread, with_now, write,
    write_line,
};

pub use client::{
    abort, body_fault, connection_closed, connection_closed_early, http2_broken, http2_closed,
    http2_fault, http2_reset, http2_timed_out, http2_violation, incomplete_head,
};
pub use debug::{accepted, head, response};
pub use rules::access_log::ACCESS_LOG;

/// The access logs of a scope.
pub type AccessLogs = rules::access_log::AccessLogs<Request>;

/// Compiles the formats of the `http` block, so that faults of unused ones show as well.
pub fn check(compiler: &Compiler<'_>, http: ScopeRef<'_>) -> Result<(), Fault> {
    rules::format::check::<Request>(compiler, http)
}

/// Opens the logs that the `http` block itself writes, though each of its servers may write others:
/// nginx opens what is written, used or not.
pub fn open_written(compiler: &Compiler<'_>, http: ScopeRef<'_>) -> Option<()> {
    if http.writes(&[&ACCESS_LOG]) {
        compiler.feature_or_report::<AccessLogs>(http)?;
    }
    if http.writes(&[&ERROR_LOG]) {
        compiler.feature_or_report::<ErrorLog>(http)?;
    }
    Some(())
}
