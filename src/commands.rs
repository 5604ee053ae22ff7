//! The command line in addition to nginx's flags: subcommands, and `--help` for both.
//!
//! nginx has no arguments without a dash, so a word in the first place can only be a subcommand.
//! Each subcommand has a file of its own, with its arguments and its `run`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    accelerate, bench, cache, cli, completions, docs, explain, memcached, serve, status, templates,
    try_configuration, tune, xdp,
};

/// A web server that reads nginx.conf and takes nginx's command line
#[derive(Parser)]
#[command(
    name = "tidegate",
    version,
    override_usage = "tidegate [nginx's options]\n       tidegate <COMMAND> [options]",
    after_help = cli::option_help(),
    help_template = "{about}\n\nUsage: {usage}\n\nCommands:\n{subcommands}{after-help}"
)]
struct Subcommands {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Accelerate(Box<accelerate::Arguments>),
    Try(try_configuration::Arguments),
    Explain(explain::Arguments),
    Tune(tune::Arguments),
    Status(status::Arguments),
    Bench(Box<bench::Arguments>),
    Memcached(Box<memcached::Arguments>),
    Cache(cache::Arguments),
    Xdp(xdp::Arguments),
    Templates(templates::Arguments),
    Docs(docs::Arguments),
    Completions(completions::Arguments),
}

/// Whether arguments (without the program's name) start a subcommand.
pub(crate) fn is_one(arguments: &[OsString]) -> bool {
    let Some(first) = arguments.first() else {
        return false;
    };
    let of_the_program = ["help", "--help", "--version"];
    of_the_program.iter().any(|known| first == known)
        || Subcommands::command().find_subcommand(first).is_some()
}

/// Words that users may try as commands, with the flag or command that does the same.
const MEANT: &[(&str, &str)] = &[
    ("version", "-v"),
    ("check", "-t"),
    ("configtest", "-t"),
    ("test", "-t"),
    ("validate", "-t"),
    ("reload", "-s reload"),
    ("stop", "-s stop"),
    ("quit", "-s quit"),
    ("reopen", "-s reopen"),
];

/// The command that was probably meant by a first argument that is neither a command nor an option.
pub(crate) fn meant(arguments: &[OsString]) -> Option<String> {
    let first = arguments.first()?.to_str()?;
    let word = first.trim_start_matches('-');
    let is_short = first.starts_with('-') && !first.starts_with("--");
    if is_short || word.is_empty() {
        return None;
    }
    if matches!(word, "start" | "run") {
        return Some(
            "without a command tidegate starts; \"tidegate serve\" serves a folder".to_owned(),
        );
    }
    if let Some((_, option)) = MEANT.iter().find(|(known, _)| *known == word) {
        return Some(format!("did you mean \"tidegate {option}\"?"));
    }
    let program = Subcommands::command();
    let commands = program.get_subcommands().map(clap::Command::get_name);
    let words = commands.chain(MEANT.iter().map(|(word, _)| *word));
    let near = conf::nearest(word, words)?;
    let option = MEANT.iter().find(|(known, _)| *known == near);
    let meant = option.map_or(near, |(_, option)| option);
    Some(format!("did you mean \"tidegate {meant}\"?"))
}

/// Runs the subcommand that this process was started for. Invalid arguments end the process with
/// code 2, as is clap's default.
pub(crate) fn run() -> ExitCode {
    match Subcommands::parse().command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Accelerate(arguments) => accelerate::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Try(arguments) => try_configuration::run(arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Memcached(arguments) => memcached::run(&arguments),
        Command::Cache(arguments) => cache::run(&arguments),
        Command::Xdp(arguments) => xdp::run(&arguments),
        Command::Templates(arguments) => templates::run(&arguments),
        Command::Docs(arguments) => docs::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments, Subcommands::command()),
    }
}
