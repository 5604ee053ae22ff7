//! `tidegate bench siege`: the command line and the report of siege 4, whose lines are parsed by
//! scripts.
//!
//! Also used if the program is called `siege`. Each user requests its list of URLs in sequence,
//! with one connection per request. Unlike siege, it reads no siege.conf, fetches no resources of
//! pages, follows no redirects, keeps no cookies, and prints no line per request (`-v`). If such an
//! option is given, a note on standard error says that it has no effect. See
//! <https://www.joedog.org/siege-manual/>.

mod flags;
mod report;
mod show;
mod urls;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use engine::EngineKind;
use jiff::Zoned;
use load::plan::{Expect, Length, Order, Protocol};
use load::{Plan, RunResult, machine};
use process::Interrupt;

use super::ForeignArguments;
use flags::{EarlyExit, Flags, Repetitions, Show};
use report::Figures;
use urls::UrlLine;

/// The emulated version of siege.
const VERSION: &str = "SIEGE 4.0.7";

/// Number of failures that end a run, as in siege's default configuration.
const FAILURES_MAX: u64 = 1024;

/// Time limit of a request, as in siege's default configuration.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The length of a run without a limit.
const ENDLESS: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

pub(super) fn run(called: ForeignArguments) -> ExitCode {
    let words = called.arguments.iter();
    let words = words.map(|word| word.to_string_lossy().into_owned());
    let flags = match Flags::parse(words) {
        Ok(flags) => Flags {
            allow_remote: called.allow_remote,
            ..flags
        },
        Err(EarlyExit::Version) => {
            eprintln!("{VERSION}");
            return ExitCode::SUCCESS;
        }
        Err(EarlyExit::Help) => {
            eprintln!("{VERSION}");
            print!("{}", flags::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(EarlyExit::Fault(text)) => return fail(&text),
    };
    match siege(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => fail(&text),
    }
}

fn fail(text: &str) -> ExitCode {
    eprintln!("siege: {text}");
    ExitCode::FAILURE
}

fn siege(flags: &Flags) -> Result<(), String> {
    let interrupt = Interrupt::take().map_err(|error| format!("signals: {error}"))?;
    if !flags.without_effect.is_empty() {
        eprintln!(
            "note: without effect here: {}",
            flags.without_effect.join(", ")
        );
    }
    let lines = urls::lines(flags)?;
    let figures = match (flags.show, lines.first()) {
        (Some(kind), Some(line)) => {
            if kind == Show::Page && !flags.quiet && !flags.json {
                banner(1);
            }
            show::show(line, flags)?
        }
        _ => Figures::of(&load_on(flags, &lines, &interrupt)?),
    };
    if flags.json {
        eprintln!();
        print!("{}", figures.json());
    } else if !flags.quiet {
        eprint!("{}", figures.text());
    }
    match &flags.log {
        Some(path) => log(path, flags, &figures),
        None => Ok(()),
    }
}

/// Runs the load test, with siege's messages on standard error.
fn load_on(flags: &Flags, lines: &[UrlLine], interrupt: &Interrupt) -> Result<RunResult, String> {
    let plan = Arc::new(plan(flags, lines)?);
    for warning in machine::prepare(&plan) {
        eprintln!("warning: {warning}");
    }
    let silent = flags.quiet || flags.json;
    if !silent {
        banner(flags.users);
    }
    let outcome = load::run(&plan, |progress| {
        let over = flags.time.is_some_and(|time| progress.elapsed >= time);
        !(over || progress.failed >= FAILURES_MAX || interrupt.has_arrived())
    })
    .map_err(|error| error.to_string())?;
    let excessive = outcome.tally.failed() >= FAILURES_MAX;
    if !silent {
        if flags.time.is_some() || outcome.interrupted {
            eprint!("\nLifting the server siege...");
        }
        if excessive {
            eprint!("\nsiege aborted due to excessive socket failure: {FAILURES_MAX} and more");
        }
    }
    let mut notes: Vec<String> = machine::limits(&outcome)
        .iter()
        .map(|limit| format!("warning: the tool was the limit: {limit}\n"))
        .collect();
    notes.push(report::errors(&outcome));
    let redirects: u64 = outcome
        .tally
        .statuses()
        .filter(|(status, _)| matches!(status, 301 | 302 | 303 | 307))
        .map(|(_, count)| count)
        .sum();
    if redirects > 0 {
        notes.push(format!("note: {redirects} redirects were not followed\n"));
    }
    let notes = notes.concat();
    if !notes.is_empty() {
        eprint!("{}{notes}", if silent { "" } else { "\n" });
    }
    Ok(outcome)
}

fn banner(users: u32) {
    eprint!(
        "** {VERSION}\n** Preparing {users} concurrent users for battle.\nThe server is now under siege..."
    );
}

fn plan(flags: &Flags, lines: &[UrlLine]) -> Result<Plan, String> {
    let length = match (flags.repetitions, flags.time) {
        (Repetitions::Number(number), _) => Length::Each(number),
        (Repetitions::Once, _) => Length::Each(lines.len() as u64),
        (Repetitions::Endless, Some(time)) => Length::Time(time),
        (Repetitions::Endless, None) => Length::Time(ENDLESS),
    };
    Ok(Plan {
        servers: urls::servers(lines, flags)?,
        protocol: Protocol::Http1,
        bodies: Vec::new(),
        order: if flags.internet {
            Order::Random
        } else {
            Order::InTurn
        },
        connections: flags.users as usize,
        threads: 1,
        length,
        warmup: Duration::ZERO,
        pipeline: 1,
        new_connections: true,
        ramp: Duration::ZERO,
        think_time: flags.delay,
        random_think_time: true,
        arrivals: None,
        timeout: TIMEOUT,
        expect: Expect {
            any_status: true,
            ..Expect::default()
        },
        sources: Vec::new(),
        engine: EngineKind::Epoll,
        interface: None,
        seed: u64::from(std::process::id()),
        samples: false,
        intervals: false,
    })
}

/// Appends the run to siege's log, after a mark if there is one.
fn log(path: &str, flags: &Flags, figures: &Figures) -> Result<(), String> {
    let mut text = String::new();
    if !Path::new(path).exists() {
        text.push_str(report::LOG_HEAD);
    }
    if let Some(mark) = &flags.mark {
        text.push_str(&format!("**** {mark} ****\n"));
    }
    text.push_str(&figures.log_line(&Zoned::now().strftime("%Y-%m-%d %H:%M:%S").to_string()));
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| format!("unable to write to log file: {path}: {error}"))?;
    if !flags.quiet && !flags.json {
        println!("LOG FILE: {path}");
    }
    Ok(())
}
