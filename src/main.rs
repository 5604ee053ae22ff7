//! Tidegate's command line: nginx's flags, and `tidegate docs`.

mod application;
mod cli;
mod docs;
mod main_level;
mod modules;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use application::{Tidegate, registry};

fn main() -> ExitCode {
    if process::is_worker() {
        return process::worker_main(&Tidegate);
    }
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((command, rest)) = arguments.split_first()
        && command == "docs"
    {
        return match docs::run(rest, registry()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(text) => fail(&text),
        };
    }
    let command_line = match cli::parse(arguments) {
        Ok(command_line) => command_line,
        Err(text) => return fail(&text),
    };
    if let Some(show) = command_line.show {
        let text = cli::shown(show, &modules::configure_arguments(registry()));
        // nginx prints these on standard error, and scripts read them there.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
    match command_line.options {
        Some(options) => process::run(options, &Tidegate),
        None => ExitCode::SUCCESS,
    }
}

fn fail(text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}: {text}", process::PROGRAM);
    ExitCode::FAILURE
}
