//! The results of a sweep's steps, and the search for saturation.

use std::time::Duration;

use load::plan::Protocol;
use load::report::{percentile, some};
use load::tally::RequestError;
use load::{Plan, RunResult, machine};

/// The plateau begins at this fraction of the highest throughput: beyond it, more load hardly
/// increases throughput.
pub(super) const PLATEAU: f64 = 0.95;

/// The maximum number of steps out of line, as a fraction of the steps on the plateau (or behind an
/// offered rate). With more, no saturation is named. One such step for four others may be an
/// accident. See [`Scatter`].
pub(super) const SCATTER: f64 = 0.25;

/// A server keeps up if it delivers at least this fraction of the offered rate.
pub(super) const KEPT_UP: f64 = 0.95;

/// A step counts as broken if more than this fraction of its requests failed or were refused.
pub(super) const BROKEN: f64 = 0.01;

/// Statuses for temporary overload (RFC 9110, section 15.6.4; RFC 6585, section 4).
const REFUSING: [usize; 2] = [503, 429];

/// gRPC statuses for temporary overload: UNAVAILABLE and RESOURCE_EXHAUSTED.
const REFUSING_CALLS: [usize; 2] = [14, 8];

#[derive(Clone, Debug, Default)]
pub(super) struct Point {
    /// Number of connections, or the offered rate in requests per second.
    pub(super) load: f64,
    /// Expected responses per second.
    pub(super) throughput: f64,
    /// Expected responses per second within the time limit of goodput.
    pub(super) goodput: f64,
    /// The fraction of requests that failed or, in the open loop, were never started.
    pub(super) failed: f64,
    /// The fraction of requests whose connection was refused, or that were answered with status 503
    /// or 429, or with their equivalents in gRPC.
    pub(super) refused: f64,
    /// The median time in milliseconds; `None` if there are too few responses.
    pub(super) p50: Option<f64>,
    /// The 99th percentile in milliseconds; `None` if there are too few responses.
    pub(super) p99: Option<f64>,
    pub(super) succeeded: u64,
    /// Why the load tester was the bottleneck in this step, if it was.
    pub(super) limits: Vec<String>,
}

impl Point {
    pub(super) fn new(load: f64, plan: &Plan, outcome: &RunResult) -> Point {
        let tally = &outcome.tally;
        let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
        let due = (tally.ended() + outcome.not_started).max(1) as f64;
        let unwanted = |status: &usize| plan.expect.status != u16::try_from(*status).ok();
        let (statuses, refusing): (Vec<_>, _) = match plan.protocol {
            Protocol::Grpc { .. } => (tally.grpc_statuses().collect(), REFUSING_CALLS),
            Protocol::Http1 | Protocol::Http2 { .. } => (tally.statuses().collect(), REFUSING),
        };
        let refusals: u64 = statuses
            .into_iter()
            .filter(|(status, _)| refusing.contains(status) && unwanted(status))
            .map(|(_, count)| count)
            .sum();
        let refused = refusals + tally.failures(RequestError::Refused);
        let failed = (tally.failed() + outcome.not_started).saturating_sub(refused);
        let milliseconds = |of| percentile(&tally.total, of).map(|time| time as f64 / 1e6);
        Point {
            load,
            throughput: tally.succeeded as f64 / seconds,
            goodput: tally.good as f64 / seconds,
            failed: failed as f64 / due,
            refused: refused as f64 / due,
            p50: milliseconds(50.0),
            p99: milliseconds(99.0),
            succeeded: tally.succeeded,
            limits: machine::limits(outcome),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    Connections,
    Rate,
}

impl Axis {
    pub(super) fn words(self) -> &'static str {
        match self {
            Axis::Connections => "connections",
            Axis::Rate => "requests/s offered",
        }
    }

    /// A step with its unit: `1 connection`, `2 connections`.
    pub(super) fn at(self, load: f64) -> String {
        let one = (load - 1.0).abs() < f64::EPSILON;
        let words = match self {
            Axis::Connections if one => "connection",
            Axis::Rate if one => "request/s offered",
            _ => self.words(),
        };
        format!("{} {words}", short(load))
    }
}

/// How far the steps deviate from a single plateau or, for rates, from falling behind for good at
/// one rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scatter {
    /// Number of steps whose measured throughput reaches [`PLATEAU`] of the highest or, for rates,
    /// that fall behind.
    pub(super) reaching: usize,
    /// The minimum number of steps that would have to change for the reaching steps to be
    /// contiguous and, for rates, to extend to the end.
    pub(super) out_of_line: usize,
}

impl Scatter {
    /// Computes the scatter of the steps; `reach` says for each whether it reaches the plateau or
    /// falls behind.
    fn of(axis: Axis, reach: impl Iterator<Item = bool>) -> Scatter {
        // Kadane's algorithm: `here` is the largest excess of reaching steps over others in a
        // stretch that ends here, `best` in any stretch.
        let (mut reaching, mut here, mut best) = (0, 0_usize, 0);
        for reaches in reach {
            reaching += usize::from(reaches);
            here = if reaches {
                here + 1
            } else {
                here.saturating_sub(1)
            };
            best = best.max(here);
        }
        // Out of line are reaching steps outside of the stretch, and other steps within it.
        let fitting = match axis {
            Axis::Connections => best,
            Axis::Rate => here,
        };
        Scatter {
            reaching,
            out_of_line: reaching - fitting,
        }
    }

    fn is_too_much(self) -> bool {
        self.out_of_line as f64 > self.reaching as f64 * SCATTER
    }
}

/// The findings of a sweep.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Findings {
    /// The step at which the server is saturated; `None` if no step reaches saturation, nothing
    /// succeeded, or the steps scatter too much.
    pub(super) saturation: Option<usize>,
    /// The scatter, if it is too large for saturation to be named.
    pub(super) scatter: Option<Scatter>,
    /// The step with the highest throughput.
    pub(super) highest: Option<usize>,
    /// The first step with too many failed or refused requests.
    pub(super) broken: Option<usize>,
}

/// Finds saturation on a smoothed curve, in which each step is the median of itself and its
/// neighbours, so that a single exceptional step does not decide.
///
/// In a sweep over connections, saturation is the first step that reaches [`PLATEAU`] of the
/// highest throughput on that curve, if it is not the last step: more connections hardly increase
/// throughput and only make requests wait. In a sweep over rates, it is the first step at which the
/// server delivers less than [`KEPT_UP`] of the offered rate.
///
/// The measured, unsmoothed steps decide whether saturation may be named: at true saturation, the
/// steps on the plateau (or those behind the rate) are contiguous. If the steps out of line exceed
/// the fraction [`SCATTER`] of them ([`Scatter`]), the noise between neighbours exceeds the
/// differences that define saturation, and another sweep would name another step. Overload, in
/// which throughput falls permanently, does not count as scatter.
pub(super) fn findings(axis: Axis, points: &[Point]) -> Findings {
    let highest = points
        .iter()
        .enumerate()
        .max_by(|(_, a), (_, b)| a.throughput.total_cmp(&b.throughput))
        .filter(|(_, point)| point.throughput > 0.0)
        .map(|(place, _)| place);
    let (saturation, scatter) = match axis {
        Axis::Connections => {
            let curve = smoothed(points, |point| point.throughput);
            let top = curve.iter().copied().fold(0.0, f64::max);
            let found = curve
                .iter()
                .position(|step| top > 0.0 && *step >= PLATEAU * top);
            let reach = points
                .iter()
                .map(|point| top > 0.0 && point.throughput >= PLATEAU * top);
            (
                found.filter(|place| place + 1 < points.len()),
                Scatter::of(axis, reach),
            )
        }
        Axis::Rate => {
            let kept = |point: &Point| point.throughput / point.load;
            let found = smoothed(points, kept)
                .iter()
                .position(|kept| *kept < KEPT_UP);
            let behind = points.iter().map(|point| kept(point) < KEPT_UP);
            // If the smoothed curve keeps up, single steps behind the rate do not raise doubts.
            let scatter = found.map(|_| Scatter::of(axis, behind));
            (found, scatter.unwrap_or_default())
        }
    };
    let scatter = (highest.is_some() && scatter.is_too_much()).then_some(scatter);
    Findings {
        saturation: saturation.filter(|_| scatter.is_none()),
        scatter,
        highest,
        broken: points.iter().position(is_broken),
    }
}

fn is_broken(point: &Point) -> bool {
    point.failed + point.refused > BROKEN
}

/// Replaces each step by the median of itself and its neighbours; the first and the last are
/// unchanged.
fn smoothed(points: &[Point], value: fn(&Point) -> f64) -> Vec<f64> {
    let values: Vec<f64> = points.iter().map(value).collect();
    let mut smoothed = values.clone();
    for (place, three) in values.windows(3).enumerate() {
        let mut three = [three[0], three[1], three[2]];
        three.sort_by(f64::total_cmp);
        smoothed[place + 1] = three[1];
    }
    smoothed
}

/// Describes the findings in sentences.
pub(super) fn sentences(axis: Axis, points: &[Point], within: Duration) -> Vec<String> {
    let found = findings(axis, points);
    let mut sentences = Vec::new();
    let Some(highest) = found.highest.and_then(|place| points.get(place)) else {
        return vec!["Nothing came as expected at any step.".to_owned()];
    };
    let saturation = found.saturation.and_then(|place| points.get(place));
    sentences.push(match (axis, saturation) {
        _ if let Some(scatter) = found.scatter => scattered(axis, scatter),
        (Axis::Connections, Some(point)) => format!(
            "Saturation at {}: {} requests/s there, at most {} ({}). It is the first step with at least {:.0} % of the highest \
             throughput, each step taken as the median of itself and its neighbours.",
            axis.at(point.load),
            short(point.throughput),
            short(highest.throughput),
            axis.at(highest.load),
            PLATEAU * 100.0
        ),
        (Axis::Connections, None) => format!(
            "No saturation within this sweep: the last step still brings the most, or nearly all of what is gained: {} \
             requests/s.",
            short(highest.throughput)
        ),
        (Axis::Rate, Some(point)) => format!(
            "Saturation at {}: {} came as expected; at most {} did. It is the first step that delivers less than {:.0} % of \
             what is offered, each step taken as the median of itself and its neighbours.",
            axis.at(point.load),
            short(point.throughput),
            short(highest.throughput),
            KEPT_UP * 100.0
        ),
        (Axis::Rate, None) => format!(
            "No saturation within this sweep: the server delivers at least {:.0} % of every rate, each step taken as the \
             median of itself and its neighbours; at most {} requests/s.",
            KEPT_UP * 100.0,
            short(highest.throughput)
        ),
    });
    if let Some(point) = found.broken.and_then(|place| points.get(place)) {
        let count = points.iter().filter(|point| is_broken(point)).count();
        sentences.push(format!(
            "More than {:.0} % fail or are refused at {count} of {}, first at {}.",
            BROKEN * 100.0,
            some(points.len() as u64, "step"),
            axis.at(point.load)
        ));
    }
    let best = points.iter().map(|point| point.goodput).fold(0.0, f64::max);
    sentences.push(format!(
        "Goodput counts what came as expected within {} s: at most {}/s.",
        within.as_secs_f64(),
        short(best)
    ));
    if points.iter().any(|point| !point.limits.is_empty()) {
        sentences.push(
            "Steps marked with * say more about the tool than about the server: its own cores were busy, or this machine had \
             no descriptors, ports or memory."
                .to_owned(),
        );
    }
    sentences
}

/// Explains why no saturation is named.
fn scattered(axis: Axis, scatter: Scatter) -> String {
    let steps = |count: usize| some(count as u64, "step");
    let (reaching, out_of_line) = (steps(scatter.reaching), steps(scatter.out_of_line));
    let why = match axis {
        Axis::Connections => format!(
            "{out_of_line} out of line with one plateau, {reaching} with at least {:.0} % of the highest throughput",
            PLATEAU * 100.0
        ),
        Axis::Rate => format!(
            "{out_of_line} out of line with one rate from which on the server falls behind, {reaching} with less than {:.0} % \
             of what is offered",
            KEPT_UP * 100.0
        ),
    };
    format!(
        "The steps scatter too much to name saturation: {why}. Longer steps (--duration), or a machine on which nothing else \
         runs, may tell more."
    )
}

/// Formats a number with a useful number of digits.
pub(super) fn short(value: f64) -> String {
    let text = match value {
        value if value == 0.0 || value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(figures: &[(f64, f64, f64)]) -> Vec<Point> {
        let point = |(load, throughput, failed): &(f64, f64, f64)| Point {
            load: *load,
            throughput: *throughput,
            failed: *failed,
            ..Point::default()
        };
        figures.iter().map(point).collect()
    }

    #[test]
    fn saturation_of_connections_is_where_the_plateau_begins() {
        let rising = points(&[(1.0, 100.0, 0.0), (2.0, 195.0, 0.0), (4.0, 380.0, 0.0)]);
        let found = findings(Axis::Connections, &rising);
        assert_eq!(
            (found.saturation, found.highest, found.broken),
            (None, Some(2), None)
        );
        let flat = points(&[
            (1.0, 100.0, 0.0),
            (2.0, 190.0, 0.0),
            (4.0, 196.0, 0.0),
            (8.0, 200.0, 0.0),
            (16.0, 120.0, 0.2),
        ]);
        let found = findings(Axis::Connections, &flat);
        assert_eq!(
            (found.saturation, found.highest, found.broken),
            (Some(1), Some(3), Some(4))
        );
        let text = sentences(Axis::Connections, &flat, Duration::from_secs(1)).join("\n");
        assert!(
            text.starts_with("Saturation at 2 connections: 190 requests/s"),
            "{text}"
        );
        assert!(
            text.contains("at 1 of 5 steps, first at 16 connections."),
            "{text}"
        );
    }

    #[test]
    fn one_lucky_step_does_not_decide() {
        let lucky = points(&[
            (1.0, 100.0, 0.0),
            (2.0, 500.0, 0.0),
            (3.0, 200.0, 0.0),
            (4.0, 290.0, 0.0),
            (5.0, 300.0, 0.0),
            (6.0, 295.0, 0.0),
        ]);
        let found = findings(Axis::Connections, &lucky);
        assert_eq!((found.saturation, found.highest), (Some(2), Some(1)));
        let disturbed = points(&[
            (1.0, 1.0, 0.0),
            (2.0, 0.5, 0.0),
            (3.0, 3.0, 0.0),
            (4.0, 4.0, 0.0),
        ]);
        assert_eq!(findings(Axis::Rate, &disturbed).saturation, None);
    }

    #[test]
    fn saturation_of_rates_is_where_the_server_falls_behind() {
        let kept = points(&[(100.0, 100.0, 0.0), (200.0, 199.0, 0.0)]);
        assert_eq!(findings(Axis::Rate, &kept).saturation, None);
        let behind = points(&[
            (100.0, 100.0, 0.0),
            (200.0, 150.0, 0.0),
            (300.0, 151.0, 0.0),
        ]);
        assert_eq!(findings(Axis::Rate, &behind).saturation, Some(1));
    }

    #[test]
    fn nothing_at_all_is_no_saturation() {
        let nothing = points(&[(1.0, 0.0, 1.0), (2.0, 0.0, 1.0)]);
        let found = findings(Axis::Connections, &nothing);
        assert_eq!(
            (found.saturation, found.highest, found.broken),
            (None, None, Some(0))
        );
        assert_eq!(
            sentences(Axis::Connections, &nothing, Duration::ZERO).len(),
            1
        );
        assert_eq!(findings(Axis::Connections, &[]), Findings::default());
        assert_eq!(findings(Axis::Rate, &[]), Findings::default());
        let found = findings(Axis::Rate, &nothing);
        assert_eq!((found.highest, found.scatter), (None, None));
    }

    /// Steps at loads 10, 20, 30 and so on, with these throughputs.
    fn steps(throughputs: &[f64]) -> Vec<Point> {
        let loads = (1..).map(|place| f64::from(place) * 10.0);
        let figures: Vec<_> = loads
            .zip(throughputs)
            .map(|(load, throughput)| (load, *throughput, 0.0))
            .collect();
        points(&figures)
    }

    /// The findings and the first sentence.
    fn said(axis: Axis, points: &[Point]) -> (Findings, String) {
        let mut sentences = sentences(axis, points, Duration::from_secs(1));
        (findings(axis, points), sentences.remove(0))
    }

    #[test]
    fn a_clean_knee_is_named() {
        let knee = steps(&[100.0, 200.0, 300.0, 397.0, 400.0, 396.0, 403.0, 399.0]);
        let (found, text) = said(Axis::Connections, &knee);
        assert_eq!((found.saturation, found.scatter), (Some(3), None));
        assert!(
            text.starts_with("Saturation at 40 connections: 397 "),
            "{text}"
        );
        // Overload is not scatter: throughput falls permanently.
        let overload = steps(&[100.0, 200.0, 300.0, 300.0, 260.0, 200.0, 120.0, 50.0]);
        let (found, _) = said(Axis::Connections, &overload);
        assert_eq!((found.saturation, found.scatter), (Some(2), None));
        let behind = steps(&[10.0, 20.0, 30.0, 33.0, 29.0, 34.0, 31.0]);
        let (found, text) = said(Axis::Rate, &behind);
        assert_eq!((found.saturation, found.scatter), (Some(3), None));
        assert!(
            text.starts_with("Saturation at 40 requests/s offered: 33 "),
            "{text}"
        );
    }

    #[test]
    fn steps_that_scatter_name_no_saturation() {
        // The curve's maximum is 400; the second, fourth, sixth and ninth steps reach 380.
        let plateau = steps(&[
            100.0, 400.0, 250.0, 420.0, 240.0, 410.0, 300.0, 260.0, 400.0, 290.0,
        ]);
        let (found, text) = said(Axis::Connections, &plateau);
        assert_eq!(found.saturation, None);
        let scatter = Scatter {
            reaching: 4,
            out_of_line: 3,
        };
        assert_eq!(found.scatter, Some(scatter));
        assert_eq!(
            text,
            "The steps scatter too much to name saturation: 3 steps out of line with one plateau, 4 steps with at least 95 % of \
             the highest throughput. Longer steps (--duration), or a machine on which nothing else runs, may tell more."
        );
        // A plateau with a single disturbed step: saturation is named.
        let disturbed = steps(&[100.0, 400.0, 420.0, 250.0, 400.0, 410.0, 400.0]);
        let (found, _) = said(Axis::Connections, &disturbed);
        assert_eq!((found.saturation, found.scatter), (Some(1), None));
        // One of three steps on the plateau is disturbed, so saturation could be at any step.
        let (found, text) = said(Axis::Connections, &steps(&[100.0, 200.0, 150.0, 205.0]));
        assert_eq!(found.saturation, None);
        assert!(
            text.contains(": 1 step out of line with one plateau, 2 steps with"),
            "{text}"
        );
        // The server falls behind intermittently: it delivers 1, 0.5, 1, 0.5, 1, 0.6, 0.9 of the
        // offered rate.
        let rates = steps(&[10.0, 10.0, 30.0, 20.0, 50.0, 36.0, 63.0]);
        let (found, text) = said(Axis::Rate, &rates);
        assert_eq!(found.saturation, None);
        assert!(
            text.contains(": 2 steps out of line with one rate from which on the server falls behind, 4 steps with less"),
            "{text}"
        );
    }

    /// Deterministic numbers of approximately normal distribution: the sum of twelve uniformly
    /// distributed ones, minus its mean.
    fn noise() -> impl FnMut() -> f64 {
        let mut state = 1_u64;
        let mut even = move || {
            // The linear congruential generator of Knuth's MMIX; only its upper bits are used.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        move || (0..12).map(|_| even()).sum::<f64>() - 6.0
    }

    #[test]
    fn saturation_is_named_where_another_sweep_would_name_it_too() {
        const SWEEPS: usize = 2_000;
        let mut noise = noise();
        // Ten steps up to saturation and 18 beyond it. The tenth step reaches 100 %, the ninth 90
        // %.
        let mut sweeps = |deviation: f64| {
            let (mut named, mut right) = (0, 0);
            for _ in 0..SWEEPS {
                let throughputs: Vec<f64> = (1..=28_u32)
                    .map(|place| f64::from(place.min(10)) * (1.0 + deviation * noise()))
                    .collect();
                let found = findings(Axis::Connections, &steps(&throughputs));
                named += usize::from(found.saturation.is_some());
                right += usize::from(matches!(found.saturation, Some(8..=10)));
            }
            (named, right)
        };
        assert_eq!(sweeps(0.0), (SWEEPS, SWEEPS));
        let (named, right) = sweeps(0.01);
        assert!(
            named * 100 >= SWEEPS * 99 && right * 100 >= named * 99,
            "{named} {right}"
        );
        let (named, _) = sweeps(0.05);
        assert!(named * 100 <= SWEEPS * 15, "{named}");
        let (named, _) = sweeps(0.2);
        assert!(named * 100 <= SWEEPS * 15, "{named}");
    }

    #[test]
    fn what_never_saturates_does_not_scatter() {
        let (found, text) = said(
            Axis::Connections,
            &steps(&[100.0, 190.0, 310.0, 390.0, 520.0, 600.0]),
        );
        assert_eq!((found.saturation, found.scatter), (None, None));
        assert!(
            text.starts_with("No saturation within this sweep"),
            "{text}"
        );
        // A single disturbed step at a rate that the server can sustain.
        let (found, text) = said(Axis::Rate, &steps(&[10.0, 20.0, 5.0, 40.0, 50.0]));
        assert_eq!((found.saturation, found.scatter), (None, None));
        assert!(
            text.starts_with("No saturation within this sweep"),
            "{text}"
        );
    }

    #[test]
    fn one_step_does_not_scatter() {
        let (found, text) = said(Axis::Connections, &steps(&[100.0]));
        assert_eq!((found.saturation, found.scatter), (None, None));
        assert!(
            text.starts_with("No saturation within this sweep"),
            "{text}"
        );
        let (found, _) = said(Axis::Rate, &steps(&[5.0]));
        assert_eq!((found.saturation, found.scatter), (Some(0), None));
        let one = points(&[(1.0, 0.5, 0.5)]);
        let text = sentences(Axis::Rate, &one, Duration::ZERO).join("\n");
        assert!(
            text.starts_with("Saturation at 1 request/s offered"),
            "{text}"
        );
        assert!(
            text.contains("at 1 of 1 step, first at 1 request/s"),
            "{text}"
        );
    }

    #[test]
    fn failures_are_no_scatter_where_the_server_is_beyond_its_limit() {
        let failing = points(&[
            (1.0, 100.0, 0.0),
            (2.0, 200.0, 0.0),
            (4.0, 200.0, 0.0),
            (8.0, 90.0, 0.5),
            (16.0, 0.0, 1.0),
            (32.0, 20.0, 0.9),
        ]);
        let (found, _) = said(Axis::Connections, &failing);
        assert_eq!(
            (found.saturation, found.scatter, found.broken),
            (Some(1), None, Some(3))
        );
        // Every second step fails completely.
        let flapping = points(&[
            (1.0, 200.0, 0.0),
            (2.0, 0.0, 1.0),
            (4.0, 200.0, 0.0),
            (8.0, 0.0, 1.0),
            (16.0, 200.0, 0.0),
        ]);
        let (found, text) = said(Axis::Connections, &flapping);
        assert_eq!((found.saturation, found.broken), (None, Some(1)));
        assert!(text.starts_with("The steps scatter too much"), "{text}");
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.5, 1.234, 12.34, 20.0, 99_999.6].map(short);
        assert_eq!(texts, ["0", "0.5", "1.23", "12.3", "20", "100000"]);
    }
}
