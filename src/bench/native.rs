//! The native mode: converts options to a plan, runs it and prints the result.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use load::plan::Length;
use load::report::Report;
use load::{Conditions, machine, saved};
use process::Interrupt;

use super::options::{self, Amount, Common, Urls, rate, time};
use super::progress::ProgressLine;

/// The default duration of a run.
const DURATION_DEFAULT: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(super) struct Options {
    #[command(flatten)]
    urls: Urls,
    /// Connections that are open at the same time
    #[arg(short = 'c', long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// How long load is sent, such as 10s, 500ms or 2m [default: 10s]
    #[arg(short = 'd', long, value_name = "TIME", value_parser = time, conflicts_with = "requests")]
    duration: Option<Duration>,
    /// How many requests are sent instead
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Requests a second, whatever the server does: the open loop. Times then count from the
    /// intended start
    #[arg(short = 'r', long, value_name = "NUMBER", value_parser = rate)]
    rate: Option<f64>,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    form: ReportForm,
    /// Also write the total times to FILE, in the log format of HdrHistogram
    #[arg(long, value_name = "FILE")]
    histogram_log: Option<PathBuf>,
    /// Also write the run to FILE, for `tidegate bench merge`
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

/// How a report is printed; text where nothing is said.
#[derive(Args)]
pub(super) struct ReportForm {
    /// The report as one JSON object
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// The report as CSV: names, then values
    #[arg(long)]
    csv: bool,
}

impl ReportForm {
    pub(super) fn print(&self, report: &Report<'_>) {
        let text = match (self.json, self.csv) {
            (true, _) => report.json(),
            (_, true) => report.csv(),
            _ => report.text(),
        };
        print!("{text}");
    }
}

/// Runs the plan made from `options` and prints its report. The exit code is 0 if at least one
/// response was as expected.
pub(super) fn run(options: &Options) -> Result<ExitCode, String> {
    // Before other threads are started, so that they inherit the signal mask.
    let interrupt = Interrupt::take().map_err(|error| format!("signals: {error}"))?;
    let urls = options.urls.weighted()?;
    let length = match options.requests {
        Some(requests) => Length::Requests(requests),
        None => Length::Time(options.duration.unwrap_or(DURATION_DEFAULT)),
    };
    let mut plan = options.common.plan(
        &urls,
        &Amount {
            connections: options.connections,
            rate: options.rate,
            length,
        },
    )?;
    plan.intervals = options.histogram_log.is_some();
    for warning in machine::prepare(&plan) {
        eprintln!("warning: {warning}");
    }
    // If the server is down, a run of a number of requests fails quickly, but a timed run does not.
    // And connecting makes the kernel resolve the next hop's MAC address, which connections that
    // bypass the kernel need.
    if matches!(plan.length, Length::Time(_)) || plan.interface.is_some() {
        load::reach(&plan)?;
    }
    let plan = Arc::new(plan);
    let mut line = ProgressLine::new(&plan);
    let outcome = load::run(&plan, |progress| {
        line.show(progress);
        !interrupt.has_arrived()
    });
    line.clear();
    let outcome = outcome.map_err(|error| error.to_string())?;
    if outcome.damaged_segments > 0 {
        eprintln!(
            "warning: {} segments had wrong checksums; a kernel behind a virtual card leaves them \
             to a card that does not exist, but for \"ethtool -K INTERFACE tx off\" on its side",
            outcome.damaged_segments
        );
    }
    let conditions = Conditions::new(&plan, options::shown(&urls));
    let report = Report {
        conditions: &conditions,
        outcome: &outcome,
    };
    if let Some(path) = &options.save {
        std::fs::write(path, saved::write(&conditions, &outcome)?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(path) = &options.histogram_log {
        std::fs::write(path, report.histogram_log()?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    options.form.print(&report);
    Ok(match outcome.tally.succeeded {
        0 => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}
