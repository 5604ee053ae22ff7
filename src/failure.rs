//! The exit of a subcommand that has failed before doing anything. The server's own errors go to
//! its logs.

use std::io::Write;
use std::process::ExitCode;

/// Prints the reason for the failure; returns the exit code.
pub(crate) fn fail(text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}: {text}", process::PROGRAM);
    ExitCode::FAILURE
}
