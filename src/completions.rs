//! `tidegate completions`: prints the script by which a shell completes this program's command
//! line.

use std::process::ExitCode;

use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::Shell;

/// Print the file by which a shell completes this command line
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The shell that reads the file
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the completions of `program` for the requested shell.
pub(crate) fn run(arguments: &Arguments, program: Command) -> ExitCode {
    let mut program = with_nginx_options(program);
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, "tidegate", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

/// Adds nginx's options. `cli` parses them without clap, since they may be joined and have help
/// texts of their own.
fn with_nginx_options(program: Command) -> Command {
    let switch = |letter: char, help: &'static str| {
        // clap's name for the option is its help text, because clap requires a name with a static
        // lifetime.
        Arg::new(help)
            .short(letter)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    let path = |letter: char, help: &'static str, hint: ValueHint| {
        Arg::new(help).short(letter).value_hint(hint).help(help)
    };
    program
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args([
            switch('h', "show help and exit"),
            switch('v', "show version and exit"),
            switch('V', "show version and configure options then exit"),
            switch('t', "test configuration and exit"),
            switch('T', "test configuration, dump it and exit"),
            switch(
                'q',
                "suppress non-error messages during configuration testing",
            ),
            path('p', "set prefix path", ValueHint::DirPath),
            path('e', "set error log file", ValueHint::FilePath),
            path('c', "set configuration file", ValueHint::FilePath),
            path(
                'g',
                "set global directives out of configuration file",
                ValueHint::Other,
            ),
            Arg::new("s")
                .short('s')
                .value_parser(["stop", "quit", "reopen", "reload"])
                .help("send signal to a master process"),
        ])
}
