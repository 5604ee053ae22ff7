//! `--beside SERVER`: compares two servers of one protocol in alternating turns.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use load::beside::{self, BesideComparison, BesideTurn, Side};
use load::compare::Account;
use process::Interrupt;

/// The default duration of a turn.
pub(super) const TURN_DEFAULT: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct BesideOptions {
    /// Another server that gets the same load, in turns: which has more?
    #[arg(long, value_name = "SERVER")]
    pub(super) beside: Option<String>,
    /// How many rounds --beside has: in each, SERVER (A) has two turns and the other (B) one
    #[arg(long, value_name = "NUMBER", default_value_t = 15, requires = "beside", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// The process of SERVER, whose processor time is read, with all its threads and descendants
    #[arg(long, value_name = "PID", requires = "pid_b", requires = "beside")]
    pid_a: Option<u32>,
    /// The process of the server of --beside
    #[arg(long, value_name = "PID", requires = "pid_a")]
    pid_b: Option<u32>,
}

impl BesideOptions {
    /// The parameters of the comparison, with the name of requests, and of those whose times are
    /// compared.
    ///
    /// # Errors
    /// If the processor time of a process cannot be read.
    pub(super) fn comparison(
        &self,
        requests: &'static str,
        time: &'static str,
        seed: u64,
    ) -> Result<BesideComparison, String> {
        let account = |pid: u32| {
            let account = Account::Process(pid);
            let used = account.used().map(drop);
            used.map_err(|error| format!("process {pid}: {error}"))?;
            Ok::<_, String>(account)
        };
        let accounts = match self.pid_a.zip(self.pid_b) {
            Some((a, b)) => Some((account(a)?, account(b)?)),
            None => None,
        };
        Ok(BesideComparison {
            accounts,
            rounds: self.rounds as usize,
            seed,
            requests,
            time,
        })
    }
}

/// Runs the comparison and prints its findings. The exit code is 0 if both servers have answered in
/// each round.
pub(super) fn run(
    comparison: &BesideComparison,
    is_json: bool,
    interrupt: &Interrupt,
    turn: impl FnMut(Side, &mut dyn FnMut() -> bool) -> io::Result<BesideTurn>,
) -> io::Result<ExitCode> {
    let rounds = beside::run(comparison, turn, |_| !interrupt.has_arrived())?;
    let findings = beside::findings(comparison, &rounds);
    let text = if is_json {
        beside::json(&findings, rounds.len())
    } else {
        beside::text(&findings, rounds.len())
    };
    print!("{text}");
    let mut turns = rounds.iter().flat_map(|round| [&round.a, &round.b]);
    let is_answered = !rounds.is_empty() && turns.all(|turn| turn.succeeded > 0);
    Ok(if is_answered {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
