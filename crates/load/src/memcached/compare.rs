//! Compares two memcached servers in alternating turns.
//!
//! In each round, both servers have a turn and A has a second one, in random order. The comparison
//! of A with itself shows the noise of the machine.

use std::fmt::Write;
use std::io;
use std::time::Duration;

use super::{MemcachedLength, MemcachedPlan, MemcachedResult};
use crate::compare::Account;
use crate::schedule::Random;
use crate::statistics::{self, Interval, Verdict};

/// The parameters of a comparison of two servers.
#[derive(Clone, Debug)]
pub struct MemcachedComparison {
    /// The load for server A.
    pub a: MemcachedPlan,
    /// The same load for server B.
    pub b: MemcachedPlan,
    /// The sources of the servers' processor times, if they are measured.
    pub accounts: Option<(Account, Account)>,
    /// Number of rounds.
    pub rounds: usize,
}

/// The result of one turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemcachedTurn {
    /// Number of successful requests.
    pub succeeded: u64,
    /// Number of requests without a response or with a wrong one.
    pub failed: u64,
    rate: f64,
    per_cpu_second: Option<f64>,
    get_p99: f64,
}

/// The turns of one round.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemcachedRound {
    /// A's turn.
    pub a: MemcachedTurn,
    /// B's turn.
    pub b: MemcachedTurn,
    /// A's second turn.
    pub again: MemcachedTurn,
}

/// A metric: its name, and its value for a turn, if there is one.
type Metric = (&'static str, fn(&MemcachedTurn) -> Option<f64>);

const METRICS: [Metric; 3] = [
    ("requests/s", |turn| Some(turn.rate)),
    ("requests/CPU s", |turn| turn.per_cpu_second),
    ("get p99", |turn| {
        (turn.get_p99 > 0.0).then_some(turn.get_p99)
    }),
];

/// The result of the comparison for one metric.
#[derive(Clone, Copy, Debug)]
pub struct MemcachedFinding {
    /// The metric's name.
    pub name: &'static str,
    /// The medians over A's turns and over B's turns.
    pub medians: (f64, f64),
    /// A / B.
    pub ratio: Option<Interval>,
    /// A's first turn / A's second turn.
    pub itself: Option<Interval>,
    /// The conclusion.
    pub verdict: Verdict,
}

/// Runs all rounds. `watch` gets the number of completed rounds; if it returns false, the
/// comparison ends, and the complete rounds are returned.
///
/// # Errors
/// Those of [`super::run`], and errors of reading processor times.
pub fn run(
    comparison: &MemcachedComparison,
    mut watch: impl FnMut(usize) -> bool,
) -> io::Result<Vec<MemcachedRound>> {
    let MemcachedComparison { a, b, accounts, .. } = comparison;
    for plan in [a, b] {
        if plan.fills {
            let fill = MemcachedPlan {
                length: MemcachedLength::Requests(1),
                ..plan.clone()
            };
            super::run(&fill, || watch(0))?;
        }
    }
    let account = |is_a: bool| accounts.as_ref().map(|(a, b)| if is_a { a } else { b });
    let mut random = Random::new(a.seed);
    let mut rounds = Vec::new();
    for number in 0..comparison.rounds {
        let mut round = MemcachedRound::default();
        let mut order = [0, 1, 2];
        for place in (1..order.len()).rev() {
            order.swap(place, random.below(place as u64 + 1) as usize);
        }
        for which in order {
            let (plan, account, into) = match which {
                0 => (a, account(true), &mut round.a),
                1 => (b, account(false), &mut round.b),
                _ => (a, account(true), &mut round.again),
            };
            let mut is_interrupted = false;
            *into = turn(plan, account, || {
                is_interrupted |= !watch(number);
                !is_interrupted
            })?;
            if is_interrupted {
                return Ok(rounds);
            }
        }
        rounds.push(round);
    }
    Ok(rounds)
}

fn turn(
    plan: &MemcachedPlan,
    account: Option<&Account>,
    watch: impl FnMut() -> bool,
) -> io::Result<MemcachedTurn> {
    let plan = MemcachedPlan {
        fills: false,
        ..plan.clone()
    };
    let used = || account.map(Account::used).transpose();
    let before = used()?;
    let result = super::run(&plan, watch)?;
    let spent = used()?.zip(before);
    let spent = spent.map(|(after, before)| after.saturating_sub(before));
    Ok(figures(&result, spent))
}

fn figures(result: &MemcachedResult, spent: Option<Duration>) -> MemcachedTurn {
    let succeeded = result.succeeded();
    let spent = spent.filter(|spent| !spent.is_zero());
    MemcachedTurn {
        succeeded,
        failed: result.wrong + result.broken,
        rate: result.rate(),
        per_cpu_second: spent.map(|spent| succeeded as f64 / spent.as_secs_f64()),
        get_p99: result.get_times.value_at_quantile(0.99) as f64,
    }
}

/// The findings for all metrics that have a value in every turn.
#[must_use]
pub fn findings(
    comparison: &MemcachedComparison,
    rounds: &[MemcachedRound],
) -> Vec<MemcachedFinding> {
    // With more than one failure per hundred successes, the servers did not do the same work.
    let fails = |turn: &MemcachedTurn| turn.failed * 100 > turn.succeeded;
    let is_failing = rounds
        .iter()
        .any(|round| fails(&round.a) || fails(&round.b));
    let of = |(name, figure): &Metric| {
        let all = |turn: fn(&MemcachedRound) -> &MemcachedTurn| -> Option<Vec<f64>> {
            rounds.iter().map(|round| figure(turn(round))).collect()
        };
        let (a, b) = (all(|round| &round.a)?, all(|round| &round.b)?);
        let again = all(|round| &round.again)?;
        let ratios = |of: &[f64]| -> Vec<f64> { a.iter().zip(of).map(|(a, b)| a / b).collect() };
        let ratio = statistics::interval(&ratios(&b), comparison.a.seed);
        let itself = statistics::interval(&ratios(&again), comparison.a.seed);
        Some(MemcachedFinding {
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
    METRICS.iter().filter_map(of).collect()
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
pub fn text(findings: &[MemcachedFinding], rounds: usize) -> String {
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
        let name = finding.name;
        let _ = writeln!(
            out,
            "{name:<16} {a:>14.0} {b:>14.0}  {ratio:<22} {itself:<22} {said}"
        );
    }
    out
}

/// The report as one JSON object.
#[must_use]
pub fn json(findings: &[MemcachedFinding], rounds: usize) -> String {
    let shown = |interval: Option<Interval>| match interval {
        Some(Interval { low, median, high }) => format!("[{low:.4},{median:.4},{high:.4}]"),
        None => "null".to_owned(),
    };
    let each = findings.iter().map(|finding| {
        let (a, b) = finding.medians;
        let (ratio, itself) = (shown(finding.ratio), shown(finding.itself));
        let (name, said) = (finding.name, verdict_text(finding.verdict));
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

    fn turn(rate: f64) -> MemcachedTurn {
        MemcachedTurn {
            succeeded: 1000,
            failed: 0,
            rate,
            per_cpu_second: None,
            get_p99: 0.0,
        }
    }

    fn verdict(a: f64, b: f64, rounds: usize) -> Verdict {
        let comparison = MemcachedComparison {
            a: crate::memcached::exchange::tests::plan(crate::memcached::MemcachedProtocol::Text),
            b: crate::memcached::exchange::tests::plan(crate::memcached::MemcachedProtocol::Text),
            accounts: None,
            rounds,
        };
        let round = |number: usize| {
            let noise = 1.0 + (number % 3) as f64 / 100.0;
            MemcachedRound {
                a: turn(a * noise),
                b: turn(b / noise),
                again: turn(a / noise),
            }
        };
        let rounds: Vec<MemcachedRound> = (0..rounds).map(round).collect();
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
