//! `tidegate bench sweep`: a series of runs with increasing load, which finds the server's
//! saturation.
//!
//! Each step is a run like that of the native mode, with a number of connections or a rate from a
//! list. The table is printed in the meantime; `--html` writes a self-contained page.
//! [`points::findings`] describes how saturation is found.

mod conditions;
mod page;
mod plot;
mod points;
pub(super) mod steps;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use load::plan::Length;
use load::{First, Plan, machine};
use process::Interrupt;

use super::options::{self, Amount, Common, Urls, time};
use super::progress::ProgressLine;
use page::Page;
use points::{Axis, Findings, Point};
use steps::Steps;

/// The default number of connections in a sweep over rates.
const CONNECTIONS_DEFAULT: f64 = 100.0;

/// The interval at which a pause between steps checks for Ctrl-C.
const PAUSE_TICK: Duration = Duration::from_millis(50);

/// Try one load after the other, and find where the server has enough
#[derive(Args)]
#[command(
    disable_version_flag = true,
    args_override_self = true,
    after_help = "Either connections or --rate is a list: numbers that rise, such as 1,2,4,8, or 1,10,...,280 for steps that \
                  are equally far apart."
)]
pub(super) struct Options {
    #[command(flatten)]
    urls: Urls,
    /// Connections of each step; with --rate one number [default with --rate: 100]
    #[arg(short = 'c', long, value_name = "LIST", value_parser = steps::connections, required_unless_present = "rate")]
    connections: Option<Steps>,
    /// Requests a second of each step, whatever the server does: the open loop
    #[arg(short = 'r', long, value_name = "LIST", value_parser = steps::rates)]
    rate: Option<Steps>,
    /// How long each step takes
    #[arg(short = 'd', long, value_name = "TIME", value_parser = time, default_value = "5s")]
    duration: Duration,
    /// How long to wait between steps
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "500ms")]
    pause: Duration,
    /// Responses that take longer are no goodput
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    within: Duration,
    #[command(flatten)]
    common: Common,
    /// Write a page with plots to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The table as one JSON object
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// The table as CSV
    #[arg(long)]
    csv: bool,
}

/// Runs the steps. The exit code is 0 if at least one response was as expected.
pub(super) fn run(options: &Options) -> Result<ExitCode, String> {
    // Before other threads are started, so that they inherit the signal mask.
    let interrupt = Interrupt::take().map_err(|error| format!("signals: {error}"))?;
    let urls = options.urls.weighted()?;
    let (axis, plans) = plans(options, &urls)?;
    let Some((_, largest)) = plans.last() else {
        return Err("there is no step".to_owned());
    };
    for warning in machine::prepare(largest) {
        eprintln!("warning: {warning}");
    }
    let first = first_answer(largest, &interrupt)?;
    let speaks = !options.json && !options.csv;
    if speaks {
        print!("{}", table::line(&table::names(axis)));
    }
    let (points, interrupted) = measure(&plans, options, &interrupt, |point| {
        if speaks {
            print!("{}", table::line(&table::row(point)));
            let _ = std::io::stdout().flush();
        }
    })?;
    let findings = points::findings(axis, &points);
    let conditions = conditions::of(largest, first.as_ref());
    let urls = options::shown(&urls);
    if let Some(path) = &options.html {
        let page = Page {
            axis,
            points: &points,
            findings: &findings,
            within: options.within,
            urls: &urls,
            conditions: &conditions,
        };
        std::fs::write(path, page.html())
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let text = match (options.json, options.csv) {
        (true, _) => table::json(axis, &points, &findings, &conditions),
        (_, true) => table::csv(axis, &points),
        _ => {
            let ended = if interrupted {
                "interrupted: these are the steps until then\n"
            } else {
                ""
            };
            format!(
                "\n{ended}{}",
                conclusion(axis, &points, &findings, options.within)
            )
        }
    };
    print!("{text}");
    Ok(if points.iter().any(|point| point.succeeded > 0) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The quantity that is swept, and the plan of each step.
fn plans(options: &Options, urls: &[(String, u32)]) -> Result<(Axis, Vec<(f64, Plan)>), String> {
    let plan = |connections: f64, rate: Option<f64>| {
        let amount = Amount {
            connections: connections as u32,
            rate,
            length: Length::Time(options.duration),
        };
        let mut plan = options.common.plan(urls, &amount)?;
        plan.expect.within = Some(options.within);
        Ok::<Plan, String>(plan)
    };
    let connections = options.connections.as_ref().map(|steps| &steps.0[..]);
    let (axis, steps) = match (&options.rate, connections) {
        (Some(_), Some([_, _, ..])) => {
            return Err("connections and --rate cannot both be lists".to_owned());
        }
        (Some(rates), _) => (Axis::Rate, &rates.0[..]),
        (None, connections) => (Axis::Connections, connections.unwrap_or_default()),
    };
    let fixed = connections.and_then(|steps| steps.first().copied());
    let fixed = fixed.unwrap_or(CONNECTIONS_DEFAULT);
    let mut plans = Vec::new();
    for step in steps {
        let plan = match axis {
            Axis::Connections => plan(*step, None)?,
            Axis::Rate => plan(fixed, Some(*step))?,
        };
        plans.push((*step, plan));
    }
    Ok((axis, plans))
}

/// Sends a single request to get the server's `Server` field.
fn first_answer(plan: &Plan, interrupt: &Interrupt) -> Result<Option<First>, String> {
    let plan = Plan {
        connections: 1,
        threads: 1,
        length: Length::Requests(1),
        warmup: Duration::ZERO,
        ramp: Duration::ZERO,
        arrivals: None,
        samples: true,
        ..plan.clone()
    };
    let outcome = load::run(&Arc::new(plan), |_| !interrupt.has_arrived())
        .map_err(|error| error.to_string())?;
    if outcome.interrupted {
        Err("interrupted".to_owned())
    } else {
        Ok(outcome.first)
    }
}

/// Runs all steps. Returns whether Ctrl-C interrupted them; the interrupted step is discarded.
fn measure(
    plans: &[(f64, Plan)],
    options: &Options,
    interrupt: &Interrupt,
    mut told: impl FnMut(&Point),
) -> Result<(Vec<Point>, bool), String> {
    let mut points = Vec::new();
    for (place, (step, plan)) in plans.iter().enumerate() {
        if place > 0 && !pause(options.pause, interrupt) {
            return Ok((points, true));
        }
        let plan = Arc::new(plan.clone());
        let mut line = ProgressLine::new(&plan);
        let outcome = load::run(&plan, |progress| {
            line.show(progress);
            !interrupt.has_arrived()
        });
        line.clear();
        let outcome = outcome.map_err(|error| error.to_string())?;
        if outcome.interrupted {
            return Ok((points, true));
        }
        let point = Point::new(*step, &plan, &outcome);
        told(&point);
        points.push(point);
    }
    Ok((points, false))
}

/// Waits; false if Ctrl-C interrupts it.
fn pause(time: Duration, interrupt: &Interrupt) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < time {
        if interrupt.has_arrived() {
            return false;
        }
        std::thread::sleep(PAUSE_TICK.min(time.saturating_sub(begin.elapsed())));
    }
    true
}

/// The text below the table.
fn conclusion(axis: Axis, points: &[Point], findings: &Findings, within: Duration) -> String {
    let mut text = String::new();
    let at = findings.saturation.and_then(|place| points.get(place));
    for limit in at.iter().flat_map(|point| &point.limits) {
        text.push_str(&format!("THE TOOL WAS THE LIMIT at saturation: {limit}\n"));
    }
    for sentence in points::sentences(axis, points, within) {
        text.push_str(&format!("{sentence}\n"));
    }
    text
}
