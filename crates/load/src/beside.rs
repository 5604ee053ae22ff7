//! Compares two servers in alternating turns, whatever the protocol.
//!
//! In each round, both servers have a turn and A has a second one, in random order. The comparison
//! of A with itself shows the noise of the machine. [`compare`](crate::compare) is for HTTP, and
//! compares responses as well.

use std::fmt::Write;
use std::io;
use std::time::Duration;

use crate::compare::Account;
use crate::schedule::Random;
use crate::statistics::{self, Interval, Verdict};

/// The parameters of a comparison of two servers.
#[derive(Clone, Debug)]
pub struct BesideComparison {
    /// The sources of the servers' processor times, if they are measured.
    pub accounts: Option<(Account, Account)>,
    /// Number of rounds.
    pub rounds: usize,
    /// The seed of the random order.
    pub seed: u64,
    /// The name of requests.
    pub requests: &'static str,
    /// The name of requests whose times are compared.
    pub time: &'static str,
}

/// One of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The server whose figures are the numerators.
    A,
    /// The server that A is compared with.
    B,
}

/// The result of one turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct BesideTurn {
    /// Number of successful requests.
    pub succeeded: u64,
    /// Number of requests without a response or with a wrong one.
    pub failed: u64,
    /// Successful requests per second.
    pub rate: f64,
    /// The 99th percentile of their times, in nanoseconds; 0 if none was measured.
    pub p99: u64,
    /// Successful requests per second of the server's processor time, if that is measured.
    pub per_cpu_second: Option<f64>,
}

/// The turns of one round.
#[derive(Clone, Copy, Debug, Default)]
pub struct BesideRound {
    /// A's turn.
    pub a: BesideTurn,
    /// B's turn.
    pub b: BesideTurn,
    /// A's second turn.
    pub again: BesideTurn,
}

/// The result of the comparison for one metric.
#[derive(Clone, Debug)]
pub struct BesideFinding {
    /// The metric's name.
    pub name: String,
    /// The medians over A's turns and over B's turns.
    pub medians: (f64, f64),
    /// A / B.
    pub ratio: Option<Interval>,
    /// A's first turn / A's second turn.
    pub itself: Option<Interval>,
    /// The conclusion.
    pub verdict: Verdict,
}

/// Runs all rounds. `turn` runs one turn of a server; its function tells whether to continue.
/// `watch` gets the number of completed rounds; if it returns false, the comparison ends, and the
/// complete rounds are returned.
///
/// # Errors
/// Those of `turn`, and errors of reading processor times.
pub fn run(
    comparison: &BesideComparison,
    mut turn: impl FnMut(Side, &mut dyn FnMut() -> bool) -> io::Result<BesideTurn>,
    mut watch: impl FnMut(usize) -> bool,
) -> io::Result<Vec<BesideRound>> {
    let mut random = Random::new(comparison.seed);
    let mut rounds = Vec::new();
    for number in 0..comparison.rounds {
        let mut round = BesideRound::default();
        let mut order = [0, 1, 2];
        for place in (1..order.len()).rev() {
            order.swap(place, random.below(place as u64 + 1) as usize);
        }
        for which in order {
            let (side, into) = match which {
                0 => (Side::A, &mut round.a),
                1 => (Side::B, &mut round.b),
                _ => (Side::A, &mut round.again),
            };
            let mut is_interrupted = false;
            let mut goes_on = || {
                is_interrupted |= !watch(number);
                !is_interrupted
            };
            *into = measured(comparison, side, || turn(side, &mut goes_on))?;
            if is_interrupted {
                return Ok(rounds);
            }
        }
        rounds.push(round);
    }
    Ok(rounds)
}

/// Runs a turn, and measures the processor time of its server.
fn measured(
    comparison: &BesideComparison,
    side: Side,
    turn: impl FnOnce() -> io::Result<BesideTurn>,
) -> io::Result<BesideTurn> {
    let account = comparison.accounts.as_ref().map(|(a, b)| match side {
        Side::A => a,
        Side::B => b,
    });
    let used = || account.map(Account::used).transpose();
    let before = used()?;
    let turn = turn()?;
    let spent = used()?.zip(before);
    let spent = spent.map(|(after, before)| after.saturating_sub(before));
    let spent = spent.filter(|spent: &Duration| !spent.is_zero());
    Ok(BesideTurn {
        per_cpu_second: spent.map(|spent| turn.succeeded as f64 / spent.as_secs_f64()),
        ..turn
    })
}

/// The value of a metric for a turn, if there is one.
type Metric = fn(&BesideTurn) -> Option<f64>;

/// The findings for all metrics that have a value in every turn.
#[must_use]
pub fn findings(comparison: &BesideComparison, rounds: &[BesideRound]) -> Vec<BesideFinding> {
    // With more than one failure per hundred successes, the servers did not do the same work.
    let fails = |turn: &BesideTurn| turn.failed * 100 > turn.succeeded;
    let is_failing = rounds
        .iter()
        .any(|round| fails(&round.a) || fails(&round.b));
    let BesideComparison { requests, time, .. } = comparison;
    let metrics: [(String, Metric); 3] = [
        (format!("{requests}/s"), |turn| Some(turn.rate)),
        (format!("{requests}/CPU s"), |turn| turn.per_cpu_second),
        (format!("{time} p99"), |turn| {
            (turn.p99 > 0).then_some(turn.p99 as f64)
        }),
    ];
    let of = |(name, figure): (String, Metric)| {
        let all = |turn: fn(&BesideRound) -> &BesideTurn| -> Option<Vec<f64>> {
            rounds.iter().map(|round| figure(turn(round))).collect()
        };
        let (a, b) = (all(|round| &round.a)?, all(|round| &round.b)?);
        let again = all(|round| &round.again)?;
        let ratios = |of: &[f64]| -> Vec<f64> { a.iter().zip(of).map(|(a, b)| a / b).collect() };
        let ratio = statistics::interval(&ratios(&b), comparison.seed);
        let itself = statistics::interval(&ratios(&again), comparison.seed);
        Some(BesideFinding {
            name,
            medians: (statistics::median(&a)?, statistics::median(&b)?),
            ratio,
            itself,
            verdict: if is_failing {
                Verdict::Failing
            } else {
                Verdict::of(ratio, itself)
            },
        })
    };
    metrics.into_iter().filter_map(of).collect()
}

/// Describes a verdict in words.
fn verdict_text(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::More => "A has more",
        Verdict::Less => "B has more",
        Verdict::NotSeen => "no difference seen",
        Verdict::WithinNoise => "no more than A beside itself",
        Verdict::Hidden => "the load tester was the limit",
        Verdict::Failing => "too many requests failed",
        Verdict::TooFew => "too few rounds",
    }
}

/// The report as text.
#[must_use]
pub fn text(findings: &[BesideFinding], rounds: usize) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{rounds} rounds\n{:<16} {:>14} {:>14}  {:<22} {:<22}",
        "", "A", "B", "A / B (95 %)", "A / A (95 %)"
    );
    let shown = |interval: Option<Interval>| match interval {
        Some(Interval { low, median, high }) => format!("{low:.3} {median:.3} {high:.3}"),
        None => "-".to_owned(),
    };
    for finding in findings {
        let (a, b) = finding.medians;
        let (ratio, itself) = (shown(finding.ratio), shown(finding.itself));
        let said = verdict_text(finding.verdict);
        let name = &finding.name;
        let _ = writeln!(
            out,
            "{name:<16} {a:>14.0} {b:>14.0}  {ratio:<22} {itself:<22} {said}"
        );
    }
    out
}

/// The report as one JSON object.
#[must_use]
pub fn json(findings: &[BesideFinding], rounds: usize) -> String {
    let shown = |interval: Option<Interval>| match interval {
        Some(Interval { low, median, high }) => format!("[{low:.4},{median:.4},{high:.4}]"),
        None => "null".to_owned(),
    };
    let each = findings.iter().map(|finding| {
        let (a, b) = finding.medians;
        let (ratio, itself) = (shown(finding.ratio), shown(finding.itself));
        let (name, said) = (&finding.name, verdict_text(finding.verdict));
        format!(
            "{{\"name\":\"{name}\",\"a\":{a:.1},\"b\":{b:.1},\"ratio\":{ratio},\"itself\":{itself},\
             \"verdict\":\"{said}\"}}"
        )
    });
    let each: Vec<String> = each.collect();
    format!("{{\"rounds\":{rounds},\"figures\":[{}]}}\n", each.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(rate: f64) -> BesideTurn {
        BesideTurn {
            succeeded: 1000,
            failed: 0,
            rate,
            per_cpu_second: None,
            p99: 0,
        }
    }

    fn verdict(a: f64, b: f64, rounds: usize) -> Verdict {
        let comparison = BesideComparison {
            accounts: None,
            rounds,
            seed: 1,
            requests: "requests",
            time: "get",
        };
        let round = |number: usize| {
            let noise = 1.0 + (number % 3) as f64 / 100.0;
            BesideRound {
                a: turn(a * noise),
                b: turn(b / noise),
                again: turn(a / noise),
            }
        };
        let rounds: Vec<BesideRound> = (0..rounds).map(round).collect();
        let findings = findings(&comparison, &rounds);
        // A metric without values is not reported.
        assert_eq!(findings.len(), 1);
        assert!(json(&findings, rounds.len()).starts_with("{\"rounds\":"));
        assert!(text(&findings, rounds.len()).contains("requests/s"));
        findings[0].verdict
    }

    #[test]
    fn differences_are_told_where_they_are_larger_than_noise() {
        assert_eq!(verdict(2000.0, 1000.0, 12), Verdict::More);
        assert_eq!(verdict(1000.0, 2000.0, 12), Verdict::Less);
        assert_ne!(verdict(1000.0, 1000.0, 12), Verdict::Less);
        assert_eq!(verdict(1000.0, 2000.0, 3), Verdict::TooFew);
    }
}
