//! Compares two servers in alternating turns: which one performs better, if that can be decided?
//!
//! The performance of a machine drifts by several percent from minute to minute, with its caches,
//! clock frequencies and other load. Therefore both servers get load in short turns, grouped into
//! rounds, in random order within each round. A third turn in each round measures A again: the
//! comparison of A with itself shows the noise of the machine. Each round yields one ratio for each
//! [`Metric`]; [`statistics`] draws the conclusions.
//!
//! Not here: command lines (src/bench), starting servers, pinning them to processors (taskset(1)).

mod account;
mod answer;
mod answer_http2;
mod report;

use std::io;
use std::sync::Arc;
use std::time::Duration;

pub use account::Account;
pub use answer::{AskError, Response, ask};
pub use report::Report;

use crate::machine::{self, ThreadTimes};
use crate::plan::{Length, Plan};
use crate::schedule::Random;
use crate::statistics::{self, Interval, Verdict};

/// The pause after a turn's connections were closed, so that the server's processor time for
/// closing them is included.
const SETTLE: Duration = Duration::from_millis(10);

/// At most one in this many requests may fail. With more failures, the servers did not do the same
/// work.
const FAILED_ONE_IN: u64 = 1000;

/// The percentiles that are compared.
pub const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// One of the two servers.
#[derive(Clone, Debug)]
pub struct ServerUnderTest {
    /// The URL as given on the command line.
    pub url: String,
    /// The load of one turn.
    pub plan: Arc<Plan>,
    /// The source of the server's processor time, if it is measured.
    pub account: Option<Account>,
}

/// The parameters of a comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The server that the report shows as A: a ratio is its figure divided by that of B.
    pub a: ServerUnderTest,
    /// The server that the report shows as B.
    pub b: ServerUnderTest,
    /// Number of measured rounds.
    pub rounds: usize,
    /// Duration of the load on each server before the first round.
    pub warmup: Duration,
    /// Whether A has a second turn in each round.
    pub itself: bool,
    /// The seed of the random numbers for the order of turns and for the confidence intervals.
    pub seed: u64,
}

/// The result of one turn of load.
#[derive(Clone, Debug)]
pub struct LoadTurn {
    /// Number of responses that were as expected.
    pub succeeded: u64,
    /// Number of failed requests, for any reason.
    pub failed: u64,
    /// Requests of the open loop that never started, because no connection was free until the end.
    pub not_started: u64,
    /// Full and resumed TLS handshakes.
    pub handshakes: (u64, u64),
    /// Duration of the turn.
    pub elapsed: Duration,
    /// Processor time of the server, if it is measured.
    pub cpu: Option<Duration>,
    /// Processor time of the load tester. It grows if the server sends in small pieces.
    pub own: Duration,
    /// Total times at [`PERCENTILES`], in nanoseconds; `None` if there was no response.
    pub times: Option<[u64; PERCENTILES.len()]>,
    /// Why the load tester was the bottleneck, if it was.
    pub limit: Option<String>,
}

/// One round: a turn of each server, and perhaps a second turn of A.
#[derive(Clone, Debug)]
pub struct Round {
    /// The order of the turns: `A`, `B`, and `a` for A's second turn.
    pub order: String,
    /// The turn of server A.
    pub a: LoadTurn,
    /// The turn of server B.
    pub b: LoadTurn,
    /// A's second turn, which may come before the first in time.
    pub again: Option<LoadTurn>,
}

/// A quantity that is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Metric {
    /// Expected responses per second.
    Throughput,
    /// Expected responses per second of the server's processor time.
    PerCpuSecond,
    /// Expected responses per second of processor time of the server and the load tester together.
    PerCpuSecondOfBoth,
    /// The total time at a percentile, by its index in [`PERCENTILES`].
    Time(usize),
}

/// The result of the comparison for one metric.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The metric.
    pub metric: Metric,
    /// The medians over A's turns and over B's turns.
    pub medians: (f64, f64),
    /// A / B; `None` if there are too few rounds.
    pub pair: Option<Interval>,
    /// A's second turn / A's first turn.
    pub itself: Option<Interval>,
    /// The conclusion.
    pub verdict: Verdict,
}

impl Metric {
    /// All metrics; those of processor time only if it is measured.
    pub fn all(with_cpu: bool) -> impl Iterator<Item = Metric> {
        let cpu = [Metric::PerCpuSecond, Metric::PerCpuSecondOfBoth];
        let cpu = cpu.into_iter().filter(move |_| with_cpu);
        let times = (0..PERCENTILES.len()).map(Metric::Time);
        [Metric::Throughput].into_iter().chain(cpu).chain(times)
    }

    /// The metric's name in reports, and with underscores in JSON.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Metric::Throughput => "requests/s".to_owned(),
            Metric::PerCpuSecond => "requests/CPU s".to_owned(),
            Metric::PerCpuSecondOfBoth => "of both ends".to_owned(),
            Metric::Time(place) => format!("p{}", PERCENTILES.get(place).unwrap_or(&f64::NAN)),
        }
    }

    /// Whether larger values are better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        !matches!(self, Metric::Time(_))
    }

    /// The metric's value for a turn; `None` if the turn does not have a positive finite value.
    /// Times are in nanoseconds.
    #[must_use]
    pub fn of(self, turn: &LoadTurn) -> Option<f64> {
        let per = |time: Duration| turn.succeeded as f64 / time.as_secs_f64();
        let value = match self {
            Metric::Throughput => per(turn.elapsed),
            Metric::PerCpuSecond => per(turn.cpu?),
            Metric::PerCpuSecondOfBoth => per(turn.cpu? + turn.own),
            Metric::Time(place) => *turn.times?.get(place)? as f64,
        };
        (value.is_finite() && value > 0.0).then_some(value)
    }
}

/// Runs the warm-up and all rounds. `watch` gets the number of completed rounds; if it returns
/// false, the comparison ends, and an incomplete round is discarded.
///
/// # Errors
/// If threads or engines cannot be created, or if the server's processor time cannot be read, most
/// likely because the server has terminated.
pub fn run(
    comparison: &Comparison,
    mut watch: impl FnMut(usize) -> bool,
) -> io::Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for contestant in [&comparison.a, &comparison.b] {
        let mut plan = (*contestant.plan).clone();
        plan.length = Length::Time(comparison.warmup);
        if crate::run(&Arc::new(plan), |_| watch(0))?.interrupted {
            return Ok(rounds);
        }
    }
    let mut random = Random::new(comparison.seed);
    for number in 0..comparison.rounds {
        match round(comparison, &mut random, || watch(number))? {
            Some(round) => rounds.push(round),
            None => break,
        }
    }
    Ok(rounds)
}

/// Runs one round; `None` if it was interrupted.
fn round(
    comparison: &Comparison,
    random: &mut Random,
    mut watch: impl FnMut() -> bool,
) -> io::Result<Option<Round>> {
    let order = shuffled(if comparison.itself { "ABa" } else { "AB" }, random);
    let (mut a, mut b, mut again) = (None, None, None);
    for who in order.chars() {
        let (contestant, place) = match who {
            'B' => (&comparison.b, &mut b),
            'A' => (&comparison.a, &mut a),
            _ => (&comparison.a, &mut again),
        };
        *place = turn(contestant, &mut watch)?;
        if place.is_none() {
            return Ok(None);
        }
    }
    Ok(match (a, b) {
        (Some(a), Some(b)) => Some(Round { order, a, b, again }),
        _ => None,
    })
}

/// The letters of `text` in random order (Fisher–Yates shuffle).
fn shuffled(text: &str, random: &mut Random) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for end in (1..letters.len()).rev() {
        letters.swap(end, random.below(end as u64 + 1) as usize);
    }
    letters.into_iter().collect()
}

/// Runs one turn of load; `None` if it was interrupted.
fn turn(
    contestant: &ServerUnderTest,
    watch: &mut impl FnMut() -> bool,
) -> io::Result<Option<LoadTurn>> {
    let used = || contestant.account.as_ref().map(Account::used).transpose();
    let before = used()?;
    let outcome = crate::run(&contestant.plan, |_| watch())?;
    std::thread::sleep(SETTLE);
    let after = used()?;
    if outcome.interrupted {
        return Ok(None);
    }
    let times = &outcome.tally.total;
    Ok(Some(LoadTurn {
        succeeded: outcome.tally.succeeded,
        failed: outcome.tally.failed(),
        not_started: outcome.not_started,
        handshakes: (
            outcome.tally.full_handshakes,
            outcome.tally.resumed_handshakes,
        ),
        elapsed: outcome.elapsed,
        cpu: after
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before)),
        own: outcome.busy.iter().map(ThreadTimes::cpu).sum(),
        times: (!times.is_empty())
            .then(|| PERCENTILES.map(|percentile| times.value_at_percentile(percentile))),
        limit: machine::limits(&outcome).into_iter().next(),
    }))
}

/// The findings for all metrics.
#[must_use]
pub fn findings(comparison: &Comparison, rounds: &[Round]) -> Vec<Finding> {
    let failing = fail_too_often(rounds.iter().map(|round| &round.a))
        || fail_too_often(rounds.iter().map(|round| &round.b));
    // More than half of the turns, of which each round counts two.
    let limited = limited(rounds).0 > rounds.len();
    let with_cpu = comparison.a.account.is_some() && comparison.b.account.is_some();
    Metric::all(with_cpu)
        .enumerate()
        .map(|(number, metric)| {
            let mut finding = finding(metric, rounds, comparison.seed.wrapping_add(number as u64));
            let of_time = !matches!(metric, Metric::PerCpuSecond | Metric::PerCpuSecondOfBoth);
            let hidden = limited && of_time;
            finding.verdict = match finding.verdict {
                _ if failing => Verdict::Failing,
                Verdict::NotSeen if hidden => Verdict::Hidden,
                verdict => verdict,
            };
            finding
        })
        .collect()
}

fn fail_too_often<'a>(turns: impl Iterator<Item = &'a LoadTurn> + Clone) -> bool {
    let failed: u64 = turns.clone().map(|turn| turn.failed).sum();
    let succeeded: u64 = turns.map(|turn| turn.succeeded).sum();
    failed * FAILED_ONE_IN > succeeded
}

fn finding(metric: Metric, rounds: &[Round], seed: u64) -> Finding {
    let values = |turn: fn(&Round) -> Option<&LoadTurn>| -> Vec<f64> {
        let turns = rounds.iter().filter_map(turn);
        turns.filter_map(|turn| metric.of(turn)).collect()
    };
    let ratios = |upper: fn(&Round) -> Option<&LoadTurn>,
                  lower: fn(&Round) -> Option<&LoadTurn>| {
        let ratio = |round| Some(metric.of(upper(round)?)? / metric.of(lower(round)?)?);
        let ratios: Vec<f64> = rounds.iter().filter_map(ratio).collect();
        statistics::interval(&ratios, seed)
    };
    let median = |values: Vec<f64>| statistics::median(&values).unwrap_or_default();
    let pair = ratios(|round| Some(&round.a), |round| Some(&round.b));
    let itself = ratios(|round| round.again.as_ref(), |round| Some(&round.a));
    Finding {
        metric,
        medians: (
            median(values(|round| Some(&round.a))),
            median(values(|round| Some(&round.b))),
        ),
        pair,
        itself,
        verdict: Verdict::of(pair, itself),
    }
}

/// In how many of A's and B's turns the load tester was the bottleneck, and one reason.
fn limited(rounds: &[Round]) -> (usize, Option<&str>) {
    let turns = || rounds.iter().flat_map(|round| [&round.a, &round.b]);
    let reasons = || turns().filter_map(|turn| turn.limit.as_deref());
    (reasons().count(), reasons().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_comes_as_often() {
        let mut random = Random::new(1);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..6000 {
            *counts.entry(shuffled("ABa", &mut random)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        // The expected count is 1,000, with a standard deviation of 29.
        assert!(counts.values().all(|count| (850..1150).contains(count)));
    }

    /// The result of a turn of one second.
    fn turn(succeeded: u64, failed: u64) -> LoadTurn {
        LoadTurn {
            succeeded,
            failed,
            not_started: 0,
            handshakes: (0, 0),
            elapsed: Duration::from_secs(1),
            cpu: Some(Duration::from_millis(500)),
            own: Duration::from_millis(300),
            times: Some([10, 20, 30, 40]),
            limit: None,
        }
    }

    pub(super) fn comparison() -> Comparison {
        let plan = Arc::new(machine::tests::plan(64));
        let contestant = |url: &str| ServerUnderTest {
            url: url.to_owned(),
            plan: Arc::clone(&plan),
            account: Some(Account::Process(1)),
        };
        Comparison {
            a: contestant("http://127.0.0.1/a"),
            b: contestant("http://127.0.0.1/b"),
            rounds: 8,
            warmup: Duration::ZERO,
            itself: true,
            seed: 1,
        }
    }

    /// Eight rounds in which A has `percent` more than B, and `failed` failures.
    pub(super) fn rounds(percent: u64, failed: u64) -> Vec<Round> {
        let round = |number: u64| Round {
            order: "ABa".to_owned(),
            a: turn(10_000 + percent * 100 + number, failed),
            b: turn(10_000 + 7 - number, 0),
            again: Some(turn(10_000 + percent * 100 + 7 - number, 0)),
        };
        (0..8).map(round).collect()
    }

    fn verdicts(rounds: &[Round]) -> Vec<Verdict> {
        let findings = findings(&comparison(), rounds);
        findings.iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn findings_follow_from_rounds() {
        let all = findings(&comparison(), &rounds(5, 0));
        assert_eq!(all.len(), 3 + PERCENTILES.len());
        assert_eq!(all[0].verdict, Verdict::More);
        assert!((all[0].pair.unwrap().median - 1.05).abs() < 1e-3);
        assert_eq!(all[1].metric, Metric::PerCpuSecond);
        assert!((all[1].medians.0 - 21_007.0).abs() < 1e-6, "{all:?}");
        assert_eq!(all[2].metric, Metric::PerCpuSecondOfBoth);
        assert!((all[2].medians.0 - 13_129.375).abs() < 1e-6, "{all:?}");
        assert_eq!(all[3].verdict, Verdict::NotSeen);
        assert_eq!(all[3].pair.unwrap().median, 1.0);
    }

    #[test]
    fn what_failed_or_was_the_tools_limit_allows_no_verdict() {
        assert!(
            verdicts(&rounds(5, 100))
                .iter()
                .all(|verdict| *verdict == Verdict::Failing)
        );
        assert_eq!(verdicts(&rounds(5, 1))[0], Verdict::More);
        let mut limited = rounds(5, 0);
        for round in &mut limited {
            round.a.limit = Some("busy".to_owned());
            round.b.limit = Some("busy".to_owned());
        }
        let verdicts = verdicts(&limited);
        assert_eq!(
            verdicts[..4],
            [Verdict::More, Verdict::More, Verdict::More, Verdict::Hidden]
        );
        assert_eq!(verdicts.len(), 7);
        assert_eq!(self::verdicts(&rounds(5, 0)[..3])[0], Verdict::TooFew);
    }
}
