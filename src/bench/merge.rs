//! `tidegate bench merge FILE…`: merges saved runs of several processes into one report.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use load::report::Report;
use load::saved;

use super::native::ReportForm;

/// Report runs that several processes saved (`--save`) as one
#[derive(Args)]
pub(super) struct Options {
    /// Files that `tidegate bench --save` wrote: the same load, sent at the same time
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    form: ReportForm,
}

/// Merges the runs and prints the report. The exit code is 0 if at least one response was as
/// expected.
pub(super) fn run(options: &Options) -> Result<ExitCode, String> {
    let mut runs = Vec::new();
    for path in &options.files {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        let run = saved::read(&text).map_err(|error| format!("{name}: {error}"))?;
        runs.push((name, run));
    }
    let merged = saved::merge(runs)?;
    options.form.print(&Report {
        conditions: &merged.conditions,
        outcome: &merged.outcome,
    });
    Ok(match merged.outcome.tally.succeeded {
        0 => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}
