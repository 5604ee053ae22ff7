//! `tidegate bench URL…`: the load tester's command line; the work is done by the crate `load`. Described in docs/bench.md.

pub(crate) mod ab;
mod native;

use std::process::ExitCode;

use clap::Args;

/// Send load to a server and report how it bore it
#[derive(Args)]
#[command(
    disable_version_flag = true,
    args_override_self = true,
    after_help = "tidegate bench ab ... takes the flags of ApacheBench and prints its report; so does the program when it is \
                  called ab."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    native: native::Options,
}

/// Runs one load test.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match native::run(&arguments.native) {
        Ok(code) => code,
        Err(text) => crate::fail(&text),
    }
}
