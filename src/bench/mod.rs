//! `tidegate bench URL…`: the command line of the load tester, which is the crate `load`.
//! Documented in docs/bench.md.

mod ab;
mod beside;
mod compare;
mod echo;
mod http_load;
mod memcached;
mod merge;
mod native;
mod options;
mod progress;
mod siege;
mod sweep;

use std::ffi::{OsStr, OsString};
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
                  called ab. tidegate bench siege ... and tidegate bench http_load ... do the same for siege 4 and http_load."
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
    Sweep(Box<sweep::Options>),
    Memcached(Box<memcached::Options>),
    Tcp(Box<echo::TcpOptions>),
    Udp(Box<echo::UdpOptions>),
}

/// Runs a load test.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let result = match &arguments.mode {
        None => native::run(&arguments.native),
        Some(Mode::Merge(options)) => merge::run(options),
        Some(Mode::Compare(options)) => compare::run(options),
        Some(Mode::Sweep(options)) => sweep::run(options),
        Some(Mode::Memcached(options)) => memcached::run(options),
        Some(Mode::Tcp(options)) => echo::run_tcp(options),
        Some(Mode::Udp(options)) => echo::run_udp(options),
    };
    match result {
        Ok(code) => code,
        Err(text) => crate::failure::fail(&text),
    }
}

/// The command line of another tool.
struct ForeignArguments {
    /// The arguments, without the program's name.
    arguments: Vec<OsString>,
    /// Our additional option: hosts that may have any address.
    allow_remote: Vec<String>,
}

/// Runs the mode of another tool if the program is called by that tool's name, or for `tidegate
/// bench NAME`.
pub(crate) fn emulated_tool(program: &OsStr, arguments: &[OsString]) -> Option<ExitCode> {
    let name = Path::new(program).file_name().unwrap_or_default();
    let (name, arguments) = match arguments {
        [bench, mode, rest @ ..] if bench == "bench" && tool(name).is_none() => (&**mode, rest),
        _ => (name, arguments),
    };
    let run = tool(name)?;
    let is_ours = |argument: &&OsString| *argument == "--http2" || *argument == "--grpc";
    if let Some(option) = arguments.iter().find(is_ours) {
        let (name, option) = (name.to_string_lossy(), option.to_string_lossy());
        return Some(crate::failure::fail(&format!(
            "bench {name} asks by HTTP/1, as {name} does: {option} is for `tidegate bench`, `bench compare` and `bench sweep`"
        )));
    }
    Some(match called(arguments) {
        Ok(called) => run(called),
        Err(text) => crate::failure::fail(&text),
    })
}

fn tool(name: &OsStr) -> Option<fn(ForeignArguments) -> ExitCode> {
    match name.to_str()? {
        "ab" => Some(ab::run),
        "http_load" => Some(http_load::run),
        "siege" => Some(siege::run),
        _ => None,
    }
}

/// Removes our option `--allow-remote HOST` from another tool's arguments.
fn called(arguments: &[OsString]) -> Result<ForeignArguments, String> {
    const OPTION: &str = "--allow-remote";
    let mut called = ForeignArguments {
        arguments: Vec::new(),
        allow_remote: Vec::new(),
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        let host = match text.strip_prefix(OPTION) {
            Some("") => arguments
                .next()
                .map(|host| host.to_string_lossy().into_owned()),
            Some(rest) if rest.starts_with('=') => Some(rest[1..].to_owned()),
            _ => {
                called.arguments.push(argument.clone());
                continue;
            }
        };
        called
            .allow_remote
            .push(host.ok_or_else(|| format!("{OPTION} needs a host"))?);
    }
    Ok(called)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_may_be_anywhere_are_ours() {
        let words = [
            "-n",
            "1",
            "--allow-remote",
            "a",
            "--allow-remote=b",
            "http://a/",
        ];
        let taken = called(&words.map(OsString::from)).unwrap();
        assert_eq!(taken.allow_remote, ["a", "b"]);
        assert_eq!(taken.arguments, ["-n", "1", "http://a/"]);
        assert!(called(&["--allow-remote".into()]).is_err());
    }
}
