//! Two servers side by side: which is better, or can nothing be said?
//!
//! A machine's mood lasts longer than a measurement: caches, clocks and neighbours change, and a
//! server beside itself differs by several percent from one minute to the next. So both get load in
//! short turns, in rounds, and in random order within each round. A third turn of each round is A's
//! again: A beside itself shows what the machine does on its own. Each round gives one ratio of
//! each [`Metric`]; what follows from them is of [`statistics`].
//!
//! Not here: command lines (src/bench), starting servers, choosing processors for them (taskset(1)
//! does).

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

use crate::machine::{self, Busy};
use crate::plan::{Length, Plan};
use crate::schedule::Random;
use crate::statistics::{self, Interval, Verdict};

/// How long a server is left alone after its connections were closed, so that its closing them is
/// on its own account.
const SETTLE: Duration = Duration::from_millis(10);

/// Of so many requests at most one may fail, or the two did not do the same work.
const FAILED_ONE_IN: u64 = 1000;

/// The percentiles that are compared.
pub const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

/// One of the two.
#[derive(Clone, Debug)]
pub struct Contestant {
    /// Its URL as it was written.
    pub url: String,
    /// One turn of load.
    pub plan: Arc<Plan>,
    /// Where its processor time is read.
    pub account: Option<Account>,
}

/// What is to be compared, and how.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The first of the two that are compared.
    pub a: Contestant,
    /// The second of the two that are compared.
    pub b: Contestant,
    /// How many rounds are measured.
    pub rounds: usize,
    /// How long each gets load before the first round.
    pub warmup: Duration,
    /// Whether A has a second turn in each round.
    pub itself: bool,
    /// Where random numbers start: those of the order, and of the intervals.
    pub seed: u64,
}

/// What one turn of load came to.
#[derive(Clone, Debug)]
pub struct LoadTurn {
    /// How many responses were as expected.
    pub succeeded: u64,
    /// Requests that failed, for any reason.
    pub failed: u64,
    /// Requests of the open loop for which no connection was free until the end.
    pub not_started: u64,
    /// TLS handshakes that began a session, and those that went on with one.
    pub handshakes: (u64, u64),
    /// How long it was.
    pub elapsed: Duration,
    /// Processor time of the server, where it was asked for.
    pub cpu: Option<Duration>,
    /// Processor time of the tool, which grows where a server sends in small pieces.
    pub own: Duration,
    /// Total times in nanoseconds at [`PERCENTILES`]; `None` where no response came.
    pub times: Option<[u64; PERCENTILES.len()]>,
    /// Why the tool was the limit, if it was.
    pub limit: Option<String>,
}

/// One round: a turn of each server.
#[derive(Clone, Debug)]
pub struct Round {
    /// Who came after whom: `A`, `B`, and `a` for A again.
    pub order: String,
    /// The turn of server A.
    pub a: LoadTurn,
    /// The turn of server B.
    pub b: LoadTurn,
    /// A's second turn, which need not be the later one.
    pub again: Option<LoadTurn>,
}

/// What is compared of turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Metric {
    /// Responses a second that were as expected.
    Throughput,
    /// Responses as expected for each second of the server's processor time.
    PerCpuSecond,
    /// Responses as expected for each second of processor time of the server and of the tool.
    PerCpuSecondOfBoth,
    /// The total time at one of [`PERCENTILES`], by its place there.
    Time(usize),
}

/// What came of one metric.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The metric that the finding is about.
    pub metric: Metric,
    /// The medians of A's and of B's turns.
    pub medians: (f64, f64),
    /// A / B; `None` where the rounds are too few.
    pub pair: Option<Interval>,
    /// A's second turn / A's first.
    pub itself: Option<Interval>,
    /// What that allows to say.
    pub verdict: Verdict,
}

impl Metric {
    /// All that are measured, those of the processor only where it is.
    pub fn all(with_cpu: bool) -> impl Iterator<Item = Metric> {
        let cpu = [Metric::PerCpuSecond, Metric::PerCpuSecondOfBoth];
        let cpu = cpu.into_iter().filter(move |_| with_cpu);
        let times = (0..PERCENTILES.len()).map(Metric::Time);
        [Metric::Throughput].into_iter().chain(cpu).chain(times)
    }

    /// Its name in reports and, with underscores, in JSON.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Metric::Throughput => "requests/s".to_owned(),
            Metric::PerCpuSecond => "requests/CPU s".to_owned(),
            Metric::PerCpuSecondOfBoth => "of both ends".to_owned(),
            Metric::Time(place) => format!("p{}", PERCENTILES.get(place).unwrap_or(&f64::NAN)),
        }
    }

    /// Whether more of it is better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        !matches!(self, Metric::Time(_))
    }

    /// Its value of a turn; `None` where the turn was too short or too unlucky to have one. Times
    /// are in nanoseconds.
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

/// Measures all rounds. `watch` is told how many are done and ends it by returning `false`; a round
/// that was begun then is left out.
///
/// # Errors
/// When threads or engines cannot be had, or a server's processor time cannot be read: it has
/// ended, most likely.
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

/// One round; `None` when it was interrupted.
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

/// All letters of `text` in random order (Fisher and Yates).
fn shuffled(text: &str, random: &mut Random) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for end in (1..letters.len()).rev() {
        letters.swap(end, random.below(end as u64 + 1) as usize);
    }
    letters.into_iter().collect()
}

/// One turn of load; `None` when it was interrupted.
fn turn(contestant: &Contestant, watch: &mut impl FnMut() -> bool) -> io::Result<Option<LoadTurn>> {
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
        own: outcome.busy.iter().map(Busy::cpu).sum(),
        times: (!times.is_empty())
            .then(|| PERCENTILES.map(|percentile| times.value_at_percentile(percentile))),
        limit: machine::limits(&outcome).into_iter().next(),
    }))
}

/// What the rounds say, metric by metric.
#[must_use]
pub fn findings(comparison: &Comparison, rounds: &[Round]) -> Vec<Finding> {
    let failing = fail_too_often(rounds.iter().map(|round| &round.a))
        || fail_too_often(rounds.iter().map(|round| &round.b));
    // Of two turns in each round, more than half.
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

/// In how many of A's and B's turns the tool was the limit, and one reason.
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
        // 1,000 each, with a standard deviation of 29.
        assert!(counts.values().all(|count| (850..1150).contains(count)));
    }

    /// A turn of one second.
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
        let contestant = |url: &str| Contestant {
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
