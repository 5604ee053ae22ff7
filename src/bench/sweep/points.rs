//! What the steps of a sweep came to, and where the server had enough.

use std::time::Duration;

use load::tally::Failure;
use load::{Outcome, Plan, machine};

/// From this part of the highest throughput on, more load is said to bring no more.
pub(super) const PLATEAU: f64 = 0.95;

/// The part of the offered rate below which a server is said not to keep up.
pub(super) const KEPT_UP: f64 = 0.95;

/// The share of requests that failed or were refused from which on a step counts as broken.
pub(super) const BROKEN: f64 = 0.01;

/// Statuses by which a server refuses work for now (RFC 9110, section 15.6.4; RFC 6585, section 4).
const REFUSING: [usize; 2] = [503, 429];

/// One step.
#[derive(Clone, Debug, Default)]
pub(super) struct Point {
    /// Connections, or requests a second where a rate is swept.
    pub(super) load: f64,
    /// Responses a second that were as expected.
    pub(super) throughput: f64,
    /// Those of them that came within the limit of goodput.
    pub(super) goodput: f64,
    /// The share of requests that failed, or in the open loop never found a connection.
    pub(super) failed: f64,
    /// The share of requests whose connection was refused, or that were answered 503 or 429.
    pub(super) refused: f64,
    /// Milliseconds.
    pub(super) p50: f64,
    /// Milliseconds.
    pub(super) p99: f64,
    /// Responses as expected.
    pub(super) succeeded: u64,
    /// Why this step says more about the tool than about the server.
    pub(super) limits: Vec<String>,
}

impl Point {
    pub(super) fn new(load: f64, plan: &Plan, outcome: &Outcome) -> Point {
        let tally = &outcome.tally;
        let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
        let due = (tally.ended() + outcome.not_started).max(1) as f64;
        let unwanted = |status: &usize| plan.expect.status != u16::try_from(*status).ok();
        let refusals: u64 = tally
            .statuses()
            .filter(|(status, _)| REFUSING.contains(status) && unwanted(status))
            .map(|(_, count)| count)
            .sum();
        let refused = refusals + tally.failures(Failure::Refused);
        let failed = (tally.failed() + outcome.not_started).saturating_sub(refused);
        let percentile = |percentile: f64| match tally.total.is_empty() {
            true => 0.0,
            false => tally.total.value_at_percentile(percentile) as f64 / 1e6,
        };
        Point {
            load,
            throughput: tally.succeeded as f64 / seconds,
            goodput: tally.good as f64 / seconds,
            failed: failed as f64 / due,
            refused: refused as f64 / due,
            p50: percentile(50.0),
            p99: percentile(99.0),
            succeeded: tally.succeeded,
            limits: machine::limits(outcome),
        }
    }
}

/// What is swept.
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
}

/// What a sweep shows as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Findings {
    /// The step at which the server had enough; `None` if none of them was enough, or nothing succeeded.
    pub(super) saturation: Option<usize>,
    /// The step of the highest throughput.
    pub(super) highest: Option<usize>,
    /// The first step at which too many requests failed or were refused.
    pub(super) broken: Option<usize>,
}

/// Looks for saturation, on a curve where each step is the median of itself and its neighbours: one step that was lucky, or
/// disturbed, does not decide.
///
/// Connections: the first step whose throughput is at least [`PLATEAU`] of the highest one on that curve, if a step follows
/// it; what follows brings hardly more and only makes requests wait. A rate: the first step at which the server delivers
/// less than [`KEPT_UP`] of what is offered.
pub(super) fn findings(axis: Axis, points: &[Point]) -> Findings {
    let highest = points
        .iter()
        .enumerate()
        .max_by(|(_, a), (_, b)| a.throughput.total_cmp(&b.throughput))
        .filter(|(_, point)| point.throughput > 0.0)
        .map(|(place, _)| place);
    let saturation = match axis {
        Axis::Connections => {
            let curve = smoothed(points, |point| point.throughput);
            let top = curve.iter().copied().fold(0.0, f64::max);
            let found = curve
                .iter()
                .position(|step| top > 0.0 && *step >= PLATEAU * top);
            found.filter(|place| place + 1 < points.len())
        }
        Axis::Rate => smoothed(points, |point| point.throughput / point.load)
            .iter()
            .position(|kept| *kept < KEPT_UP),
    };
    Findings {
        saturation,
        highest,
        broken: points.iter().position(is_broken),
    }
}

fn is_broken(point: &Point) -> bool {
    point.failed + point.refused > BROKEN
}

/// The median of every step and its neighbours; the first and the last stay as they are.
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

/// The findings in sentences.
pub(super) fn sentences(axis: Axis, points: &[Point], within: Duration) -> Vec<String> {
    let found = findings(axis, points);
    let mut sentences = Vec::new();
    let Some(highest) = found.highest.and_then(|place| points.get(place)) else {
        return vec!["Nothing came as expected at any step.".to_owned()];
    };
    let saturation = found.saturation.and_then(|place| points.get(place));
    sentences.push(match (axis, saturation) {
        (Axis::Connections, Some(point)) => format!(
            "Saturation at {} connections: {} requests/s there, at most {} ({} connections). It is the first step with at \
             least {:.0} % of the highest throughput, each step taken as the median of itself and its neighbours.",
            short(point.load),
            short(point.throughput),
            short(highest.throughput),
            short(highest.load),
            PLATEAU * 100.0
        ),
        (Axis::Connections, None) => format!(
            "No saturation within this sweep: the last step still brings the most, or nearly all of what is gained: {} \
             requests/s.",
            short(highest.throughput)
        ),
        (Axis::Rate, Some(point)) => format!(
            "Saturation at {} requests/s offered: {} came as expected; at most {} did. It is the first step that delivers \
             less than {:.0} % of what is offered, each step taken as the median of itself and its neighbours.",
            short(point.load),
            short(point.throughput),
            short(highest.throughput),
            KEPT_UP * 100.0
        ),
        (Axis::Rate, None) => format!(
            "No saturation within this sweep: the server delivers at least {:.0} % of every rate, up to {} requests/s.",
            KEPT_UP * 100.0,
            short(highest.throughput)
        ),
    });
    if let Some(point) = found.broken.and_then(|place| points.get(place)) {
        let count = points.iter().filter(|point| is_broken(point)).count();
        sentences.push(format!(
            "More than {:.0} % fail or are refused at {count} of {} steps, first at {} {}.",
            BROKEN * 100.0,
            points.len(),
            short(point.load),
            axis.words()
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

/// A number with as many digits as help.
pub(super) fn short(value: f64) -> String {
    let text = match value {
        value if value == 0.0 || value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
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
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.5, 1.234, 12.34, 20.0, 99_999.6].map(short);
        assert_eq!(texts, ["0", "0.5", "1.23", "12.3", "20", "100000"]);
    }
}
