//! Tidegate's command line: nginx's flags, and subcommands of our own.

#[macro_use]
mod output;

mod accelerate;
mod application;
mod bench;
mod cache;
mod cli;
mod commands;
mod compatibility;
mod completions;
mod control_group;
mod docs;
mod explain;
mod failure;
mod machine_files;
mod main_level;
mod memcached;
mod modules;
mod private_folder;
mod serve;
mod shortcuts;
mod status;
mod templates;
mod try_configuration;
mod tune;
mod xdp;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use application::{Tidegate, registry};
use failure::fail;

/// The server that nginx's flags start, and the worker process of every server.
static TIDEGATE: Tidegate = Tidegate::new();

fn main() -> ExitCode {
    if process::is_worker() {
        framework::usage::prepare();
        return process::worker_main(&TIDEGATE);
    }
    if process::programs::is_runner() {
        return process::programs::runner_main();
    }
    if let Some(code) = serve::php::keep() {
        return code;
    }
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let program = std::env::args_os().next().unwrap_or_default();
    if let Some(code) = bench::emulated_tool(&program, &arguments) {
        return code;
    }
    if let Some(code) = memcached::as_memcached(&program, &arguments) {
        return code;
    }
    if commands::is_one(&arguments) {
        return commands::run();
    }
    let meant = commands::meant(&arguments);
    let command_line = match cli::parse(arguments) {
        Ok(command_line) => command_line,
        Err(text) => {
            let code = fail(&text);
            if let Some(meant) = meant {
                let _ = writeln!(std::io::stderr(), "  hint: {meant}");
            }
            return code;
        }
    };
    if let Some(show) = command_line.show {
        let text = cli::shown(show, &modules::configure_arguments(registry()));
        // nginx prints these on standard error, and scripts read them there.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
    match command_line.options {
        Some(options) => process::run(options, &TIDEGATE),
        None => ExitCode::SUCCESS,
    }
}
