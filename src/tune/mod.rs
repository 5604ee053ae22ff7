//! `tidegate tune`: settings of the machine that limit a configuration, why, and how to change
//! them.
//!
//! The command reads the machine ([`machine`]) and the requirements of the configuration
//! ([`setup`]), evaluates a table of rules ([`advice`]), and prints the findings. `--apply` and
//! `--undo` change the machine and revert the changes ([`changes`]). Nothing is measured here. Each
//! rule says what has been measured with Tidegate, or that nothing has been. Described in
//! docs/tune.md.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

mod advice;
mod changes;
mod lists;
mod machine;
mod report;
mod setup;

use changes::Plan;
use machine::Machine;
use setup::{Flags, Setup};

/// Say what of the machine holds a configuration back, and change it
#[derive(Args)]
#[command(disable_version_flag = true, args_override_self = true)]
pub(crate) struct Arguments {
    #[arg(short = 'c', value_name = "FILE")]
    conf: Option<OsString>,
    #[arg(short = 'p', value_name = "PREFIX")]
    prefix: Option<OsString>,
    /// Global directives out of the configuration file
    #[arg(short = 'g', value_name = "DIRECTIVES")]
    globals: Vec<OsString>,
    /// Change what loses or limits, or only what is named: settings of the kernel and limits of
    /// the systemd unit, kept in files of their own
    #[arg(long, value_name = "ADVICE,...", num_args = 0..=1, value_delimiter = ',')]
    #[arg(conflicts_with_all = ["undo", "lists"])]
    apply: Option<Vec<String>>,
    /// Take back what --apply has changed
    #[arg(long, conflicts_with = "lists")]
    undo: bool,
    /// Judge what published lists of settings advise
    #[arg(long)]
    lists: bool,
    /// One JSON object instead of text
    #[arg(long, conflicts_with_all = ["apply", "undo"])]
    json: bool,
    /// Where /proc, /sys, /run and /etc are: a copy of another machine's
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
}

/// Advises, applies or undoes.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let flags = Flags {
        conf: arguments.conf.clone(),
        prefix: arguments.prefix.clone(),
        globals: arguments.globals.clone(),
    };
    if arguments.undo {
        // Without the configuration, which may not be the one that the changes were made for.
        return report_outcome(changes::undo(&Machine::read(&arguments.root, None)));
    }
    if arguments.lists && !arguments.json {
        return printed(report::lists().as_bytes());
    }
    let setup = match Setup::read(&flags) {
        Ok(setup) => setup,
        Err(lines) => {
            eprint!("{lines}");
            return ExitCode::FAILURE;
        }
    };
    let machine = Machine::read(&arguments.root, setup.pid_file.as_deref());
    let advice = advice::advise(&machine, &setup);
    if let Some(named) = &arguments.apply {
        let chosen = advice::chosen(advice, named);
        return report_outcome(chosen.and_then(|advice| {
            let plan = Plan::new(&advice, &machine);
            changes::apply(&plan, &machine)
        }));
    }
    if arguments.json {
        return printed(&report::json(&machine, &setup, &advice, arguments.lists));
    }
    printed(report::text(&machine, &setup, &advice).as_bytes())
}

fn printed(text: &[u8]) -> ExitCode {
    match std::io::stdout().write_all(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE, // nobody reads it any more
    }
}

fn report_outcome(done: Result<changes::ChangeLines, String>) -> ExitCode {
    match done {
        Ok(lines) => {
            lines.iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(text) => crate::failure::fail(&text),
    }
}
