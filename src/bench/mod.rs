//! `tidegate bench URL…`: the load tester's command line; the work is done by the crate `load`. Described in docs/bench.md.

pub(crate) mod ab;
mod compare;
pub(crate) mod http_load;
mod merge;
mod native;
mod options;
mod progress;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Send load to a server and report how it bore it
#[derive(Args)]
#[command(
    disable_version_flag = true,
    args_override_self = true,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "tidegate bench ab ... takes the flags of ApacheBench and prints its report; so does the program when it is \
                  called ab. tidegate bench http_load ... does the same for http_load."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    mode: Option<Mode>,
    #[command(flatten)]
    native: native::Options,
}

/// What there is beside a plain run.
#[derive(Subcommand)]
enum Mode {
    Merge(merge::Options),
    Compare(Box<compare::Options>),
}

/// Runs a load test.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let result = match &arguments.mode {
        None => native::run(&arguments.native),
        Some(Mode::Merge(options)) => merge::run(options),
        Some(Mode::Compare(options)) => compare::run(options),
    };
    match result {
        Ok(code) => code,
        Err(text) => crate::fail(&text),
    }
}

/// The arguments for another tool's mode: all where the program is called by its name, and those behind `bench NAME`.
fn called<'a>(
    name: &str,
    program: Option<OsString>,
    arguments: &'a [OsString],
) -> Option<&'a [OsString]> {
    let program = program.unwrap_or_default();
    if Path::new(&program)
        .file_name()
        .is_some_and(|known| known == name)
    {
        return Some(arguments);
    }
    match arguments {
        [bench, mode, rest @ ..] if bench == "bench" && mode == name => Some(rest),
        _ => None,
    }
}
