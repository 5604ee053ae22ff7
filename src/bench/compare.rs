//! `tidegate bench compare`: converts options to a comparison, runs it and prints the findings.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use load::compare::{self, Account, Comparison, Report, Response, ServerUnderTest};
use load::machine;
use load::plan::Length;
use process::Interrupt;

use super::options::{Amount, Common, rate, time};

/// The default duration of a turn.
const DURATION_DEFAULT: Duration = Duration::from_secs(1);

/// The default duration of the warm-up of each server.
const WARMUP_DEFAULT: Duration = Duration::from_millis(500);

/// Put two servers side by side: which is faster, or can nothing be said?
#[derive(Args)]
#[command(disable_version_flag = true)]
pub(super) struct Options {
    #[arg(long, value_name = "URL")]
    a: String,
    #[arg(long, value_name = "URL")]
    b: String,
    /// The process of A, whose processor time is read, with all its threads and descendants
    #[arg(
        long,
        value_name = "PID",
        requires = "pid_b",
        conflicts_with = "cgroup_a"
    )]
    pid_a: Option<u32>,
    /// The process of B
    #[arg(
        long,
        value_name = "PID",
        requires = "pid_a",
        conflicts_with = "cgroup_b"
    )]
    pid_b: Option<u32>,
    /// The control group of A, whose processor time is read: its folder, or what follows
    /// /sys/fs/cgroup/
    #[arg(long, value_name = "PATH", requires = "cgroup_b")]
    cgroup_a: Option<PathBuf>,
    /// The control group of B
    #[arg(long, value_name = "PATH", requires = "cgroup_a")]
    cgroup_b: Option<PathBuf>,
    /// How many rounds: in each, both have a turn, in random order
    #[arg(long, value_name = "NUMBER", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Leave out the second turn that A has in each round to be compared with itself
    #[arg(long)]
    not_beside_itself: bool,
    /// Go on where the answers of the two differ in status, length or body
    #[arg(long)]
    different_answers: bool,
    /// Connections that are open at the same time
    #[arg(short = 'c', long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// How long a turn is, such as 10s, 500ms or 2m [default: 1s]
    #[arg(short = 'd', long, value_name = "TIME", value_parser = time, conflicts_with = "requests")]
    duration: Option<Duration>,
    /// How many requests a turn has instead
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Requests a second, whatever the server does: the open loop. Times then count from the
    /// intended start
    #[arg(short = 'r', long, value_name = "NUMBER", value_parser = rate)]
    rate: Option<f64>,
    #[command(flatten)]
    common: Common,
    /// The report as one JSON object, with the figures of every turn
    #[arg(long)]
    json: bool,
}

/// Runs the comparison and prints its report. The exit code is 0 if the comparison was possible,
/// whatever the result.
pub(super) fn run(options: &Options) -> Result<ExitCode, String> {
    // Before other threads are started, so that they inherit the signal mask.
    let interrupt = Interrupt::take().map_err(|error| format!("signals: {error}"))?;
    let comparison = comparison(options)?;
    for warning in machine::prepare(&comparison.a.plan) {
        eprintln!("warning: {warning}");
    }
    let (a, b) = (ask(&comparison.a)?, ask(&comparison.b)?);
    if !options.different_answers {
        refuse_differences(&comparison, &a, &b)?;
    }
    let terminal = std::io::stderr().is_terminal();
    let mut interrupted = false;
    let rounds = compare::run(&comparison, |done| {
        if terminal {
            // A write error, for instance because the terminal is gone, does not end the run.
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[K{done} of {} rounds",
                comparison.rounds
            );
        }
        interrupted |= interrupt.has_arrived();
        !interrupted
    });
    if terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let rounds = rounds.map_err(|error| error.to_string())?;
    let report = Report {
        comparison: &comparison,
        answers: (&a, &b),
        rounds: &rounds,
        interrupted,
    };
    let text = if options.json {
        report.json()
    } else {
        report.text()
    };
    print!("{text}");
    let answered = |turns: &mut dyn Iterator<Item = u64>| turns.sum::<u64>() > 0;
    let both = answered(&mut rounds.iter().map(|round| round.a.succeeded))
        && answered(&mut rounds.iter().map(|round| round.b.succeeded));
    Ok(if both {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn comparison(options: &Options) -> Result<Comparison, String> {
    let amount = Amount {
        connections: options.connections,
        rate: options.rate,
        length: match options.requests {
            Some(requests) => Length::Requests(requests),
            None => Length::Time(options.duration.unwrap_or(DURATION_DEFAULT)),
        },
    };
    let mut warmup = WARMUP_DEFAULT;
    let mut contestant = |url: &str, pid: Option<u32>, cgroup: &Option<PathBuf>| {
        let mut plan = options.common.plan(&[(url.to_owned(), 1)], &amount)?;
        // A warm-up within each turn would count as processor time of the server, but not as
        // requests. It is therefore done once before the first round.
        let own = std::mem::take(&mut plan.warmup);
        if !own.is_zero() {
            warmup = own;
        }
        Ok::<_, String>(ServerUnderTest {
            url: url.to_owned(),
            plan: Arc::new(plan),
            account: account(pid, cgroup.as_ref())?,
        })
    };
    Ok(Comparison {
        a: contestant(&options.a, options.pid_a, &options.cgroup_a)?,
        b: contestant(&options.b, options.pid_b, &options.cgroup_b)?,
        rounds: options.rounds as usize,
        itself: !options.not_beside_itself,
        seed: options.common.seed(),
        warmup,
    })
}

fn account(pid: Option<u32>, cgroup: Option<&PathBuf>) -> Result<Option<Account>, String> {
    if let Some(path) = cgroup {
        let account = Account::cgroup(path);
        return Ok(Some(
            account.map_err(|error| format!("{}: {error}", path.display()))?,
        ));
    }
    let Some(pid) = pid else {
        return Ok(None);
    };
    let account = Account::Process(pid);
    account
        .used()
        .map_err(|error| format!("process {pid}: {error}"))?;
    Ok(Some(account))
}

fn ask(contestant: &ServerUnderTest) -> Result<Response, String> {
    compare::ask(&contestant.plan).map_err(|error| format!("{}: {error}", contestant.url))
}

/// Fails if the responses differ. The message says whether A's own responses differ from each
/// other.
fn refuse_differences(comparison: &Comparison, a: &Response, b: &Response) -> Result<(), String> {
    let differences = a.differences(b);
    if differences.is_empty() {
        return Ok(());
    }
    let itself = if a.differences(&ask(&comparison.a)?).is_empty() {
        ""
    } else {
        "; A's own answers differ from one to the next"
    };
    Err(format!(
        "the answers of A and B differ: {}{itself}. --different-answers compares them nevertheless",
        differences.join("; ")
    ))
}
