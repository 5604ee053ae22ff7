//! The report of a comparison, as text and as JSON.

use std::fmt::Write;

use super::{Comparison, Finding, LoadTurn, Metric, PERCENTILES, Response, Round, ServerUnderTest};
use crate::conditions::protocol_words;
use crate::grpc::status_name;
use crate::plan::Length;
use crate::report::{number, object, quoted, some, strings, time};
use crate::statistics::{CONFIDENCE, Interval, ROUNDS_MIN, Verdict};
use crate::tls::Tls;

/// Number of orders of rounds per line of text.
const ORDERS_PER_LINE: usize = 24;

/// The data of a report.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The parameters of the comparison.
    pub comparison: &'a Comparison,
    /// The responses of A and B before the comparison.
    pub answers: (&'a Response, &'a Response),
    /// The measured rounds.
    pub rounds: &'a [Round],
    /// Whether the comparison was interrupted.
    pub interrupted: bool,
}

impl Report<'_> {
    /// The report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let (count @ 1.., Some(reason)) = super::limited(self.rounds) {
            let _ = writeln!(
                text,
                "THE TOOL WAS THE LIMIT in {count} of {} turns ({reason}): throughput and times say little there",
                self.rounds.len() * 2
            );
        }
        self.conditions(&mut text);
        let _ = writeln!(
            text,
            "\n  {:<15}{:>12}{:>12}{:>9}   {:<16}{:<16}",
            "", "A", "B", "A / B", "95 % interval", "A beside itself"
        );
        for finding in super::findings(self.comparison, self.rounds) {
            let show = |value: f64| match finding.metric {
                Metric::Time(_) => time(value),
                _ => format!("{value:.1}"),
            };
            let (a, b) = finding.medians;
            let ratio = finding
                .pair
                .map_or("-".to_owned(), |pair| format!("{:.3}", pair.median));
            let _ = writeln!(
                text,
                "  {:<15}{:>12}{:>12}{ratio:>9}   {:<16}{:<16}{}",
                finding.metric.name(),
                show(a),
                show(b),
                ends(finding.pair),
                ends(finding.itself),
                words(&finding)
            );
        }
        text
    }

    fn conditions(&self, text: &mut String) {
        let Comparison { a, b, seed, .. } = self.comparison;
        for (name, contestant) in [("A", a), ("B", b)] {
            let _ = writeln!(text, "{name}: {}", contestant.url);
        }
        let plan = &a.plan;
        let length = match plan.length {
            Length::Time(length) => format!("{} s", length.as_secs_f64()),
            Length::Requests(requests) => some(requests, "request"),
            Length::Each(requests) => format!("{} each", some(requests, "request")),
        };
        let protocol = protocol_words(plan.protocol);
        let arrivals = match plan.arrivals {
            None => "closed loop".to_owned(),
            Some(arrivals) => format!("open loop of {} requests/s", arrivals.rate),
        };
        let _ = writeln!(
            text,
            "{}, each turn {length}: {}, {} on {}{protocol}, {arrivals}",
            some(self.rounds.len() as u64, "round"),
            some(plan.connections as u64, "connection"),
            some(plan.threads as u64, "thread"),
            plan.engine
        );
        if self.interrupted {
            text.push_str("interrupted: this is what there was until then\n");
        }
        let orders: Vec<&str> = self.rounds.iter().map(|round| &*round.order).collect();
        let again = if self.comparison.itself {
            " (a is A beside itself)"
        } else {
            ""
        };
        let _ = writeln!(text, "order from seed {seed}{again}:");
        for line in orders.chunks(ORDERS_PER_LINE) {
            let _ = writeln!(text, "  {}", line.join(" "));
        }
        self.answers(text);
        for (name, turns) in self.turns() {
            let full: u64 = turns.iter().map(|turn| turn.handshakes.0).sum();
            let resumed: u64 = turns.iter().map(|turn| turn.handshakes.1).sum();
            if full + resumed > 0 {
                let _ = writeln!(
                    text,
                    "{name}: {} full, {resumed} resumed",
                    some(full, "TLS handshake")
                );
            }
            let failed: u64 = turns.iter().map(|turn| turn.failed).sum();
            let not_started: u64 = turns.iter().map(|turn| turn.not_started).sum();
            if failed + not_started > 0 {
                let _ = writeln!(text, "{name}: {failed} failed, {not_started} not started");
            }
        }
    }

    fn answers(&self, text: &mut String) {
        let (a, b) = self.answers;
        let differences = a.differences(b);
        if differences.is_empty() {
            let call = a.grpc_status.map(usize::from);
            let call = call.map_or(String::new(), |status| {
                format!(", gRPC status {status} {}", status_name(status))
            });
            let _ = writeln!(
                text,
                "answers are alike: status {}{call}, {}, SHA-256 {}",
                a.status,
                some(a.length, "byte"),
                hexadecimal(&a.sha256)
            );
        } else {
            let _ = writeln!(text, "ANSWERS DIFFER: {}", differences.join("; "));
        }
        for (name, answer) in [("A", a), ("B", b)] {
            if let Some(agreed) = &answer.tls {
                let _ = writeln!(text, "{name}: {agreed}");
            }
        }
        if a.tls != b.tls {
            text.push_str("THEY DO NOT SPEAK THE SAME TLS: that is a part of what is compared\n");
        }
        if a.fields != b.fields {
            let (a, b) = (a.fields.join(" "), b.fields.join(" "));
            let _ = writeln!(text, "their header fields differ: {a} / {b}");
        }
    }

    /// A's and B's turns.
    fn turns(&self) -> [(&'static str, Vec<&LoadTurn>); 2] {
        [
            ("A", self.rounds.iter().map(|round| &round.a).collect()),
            ("B", self.rounds.iter().map(|round| &round.b).collect()),
        ]
    }

    /// The report as one JSON object. Names of times in microseconds say so; other times are in
    /// seconds.
    #[must_use]
    pub fn json(&self) -> String {
        let comparison = self.comparison;
        let plan = &comparison.a.plan;
        let (a, b) = self.answers;
        let mut fields = vec![
            ("a", contestant(&comparison.a, a)),
            ("b", contestant(&comparison.b, b)),
            ("answers_differ", strings(&a.differences(b))),
            ("seed", comparison.seed.to_string()),
            ("connections", plan.connections.to_string()),
            ("threads", plan.threads.to_string()),
            ("protocol", quoted(plan.protocol.name())),
            ("streams", plan.protocol.streams().to_string()),
            ("pipeline", plan.pipeline.to_string()),
            ("new_connections", plan.new_connections.to_string()),
            (
                "resume",
                plan.servers
                    .iter()
                    .any(|server| server.tls.as_ref().is_some_and(Tls::resumes))
                    .to_string(),
            ),
        ];
        fields.push(match plan.length {
            Length::Time(length) => ("turn_seconds", number(length.as_secs_f64())),
            Length::Requests(requests) => ("turn_requests", requests.to_string()),
            Length::Each(requests) => ("turn_requests_each", requests.to_string()),
        });
        if let Some(arrivals) = plan.arrivals {
            fields.push(("rate", number(arrivals.rate)));
        }
        let (limited, reason) = super::limited(self.rounds);
        let findings = super::findings(comparison, self.rounds);
        fields.extend([
            ("tool_was_the_limit_in_turns", limited.to_string()),
            ("tool_was_the_limit", quoted(reason.unwrap_or_default())),
            ("interrupted", self.interrupted.to_string()),
            ("confidence", CONFIDENCE.to_string()),
            ("findings", list(findings.iter().map(finding))),
            ("rounds", list(self.rounds.iter().map(round))),
        ]);
        named(fields) + "\n"
    }
}

/// Describes a finding in words.
fn words(finding: &Finding) -> String {
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    match (finding.verdict, finding.pair) {
        (Verdict::More | Verdict::Less, Some(pair)) => {
            let (better, from, to) = gain(finding.metric, pair);
            format!(
                "{better} is better by {} to {} %",
                percent(from),
                percent(to)
            )
        }
        (Verdict::NotSeen, Some(pair)) => {
            let most = (pair.high - 1.0).max(1.0 - pair.low);
            format!("no difference seen, none above {} %", percent(most))
        }
        (Verdict::WithinNoise, _) => "no verdict: A differs from itself as much".to_owned(),
        (Verdict::Hidden, _) => "no verdict: the tool was the limit".to_owned(),
        (Verdict::Failing, _) => "no verdict: too many requests failed".to_owned(),
        _ => format!("no verdict: fewer than {ROUNDS_MIN} rounds with a figure"),
    }
}

/// The better server, and by which ratio it is better at least and at most.
fn gain(metric: Metric, pair: Interval) -> (&'static str, f64, f64) {
    let Interval { low, high, .. } = pair;
    match (metric.more_is_better(), pair.median > 1.0) {
        (true, true) => ("A", low - 1.0, high - 1.0),
        (true, false) => ("B", 1.0 / high - 1.0, 1.0 / low - 1.0),
        (false, false) => ("A", 1.0 - high, 1.0 - low),
        (false, true) => ("B", 1.0 - 1.0 / low, 1.0 - 1.0 / high),
    }
}

/// The verdict's identifier in JSON.
fn verdict(finding: &Finding) -> &'static str {
    match (finding.verdict, finding.pair) {
        (Verdict::More | Verdict::Less, Some(pair)) => match gain(finding.metric, pair).0 {
            "A" => "a_is_better",
            _ => "b_is_better",
        },
        (Verdict::NotSeen, _) => "no_difference_seen",
        (Verdict::WithinNoise, _) => "machine_unsteady",
        (Verdict::Hidden, _) => "tool_was_the_limit",
        (Verdict::Failing, _) => "requests_failed",
        _ => "too_few_rounds",
    }
}

fn ends(interval: Option<Interval>) -> String {
    interval.map_or("-".to_owned(), |interval| {
        format!("{:.3} to {:.3}", interval.low, interval.high)
    })
}

fn contestant(contestant: &ServerUnderTest, answer: &Response) -> String {
    named([
        ("url", quoted(&contestant.url)),
        ("status", answer.status.to_string()),
        (
            "grpc_status",
            match answer.grpc_status {
                Some(status) => quoted(&status_name(status.into())),
                None => "null".to_owned(),
            },
        ),
        ("length", answer.length.to_string()),
        ("sha256", quoted(&hexadecimal(&answer.sha256))),
        ("header_fields", strings(&answer.fields)),
        (
            "tls",
            match &answer.tls {
                Some(agreed) => quoted(&agreed.to_string()),
                None => "null".to_owned(),
            },
        ),
    ])
}

fn finding(finding: &Finding) -> String {
    let unit = match finding.metric {
        Metric::Time(_) => 1000.0,
        _ => 1.0,
    };
    let (a, b) = finding.medians;
    named([
        ("metric", quoted(&json_name(finding.metric))),
        ("a", number(a / unit)),
        ("b", number(b / unit)),
        ("ratio", interval(finding.pair)),
        ("a_beside_itself", interval(finding.itself)),
        ("verdict", quoted(verdict(finding))),
    ])
}

fn json_name(metric: Metric) -> String {
    match metric {
        Metric::Throughput => "requests_per_second".to_owned(),
        Metric::PerCpuSecond => "requests_per_cpu_second".to_owned(),
        Metric::PerCpuSecondOfBoth => "requests_per_cpu_second_of_both_ends".to_owned(),
        Metric::Time(_) => format!("{}_us", metric.name()),
    }
}

fn interval(interval: Option<Interval>) -> String {
    let ratio = |value: f64| format!("{value:.5}");
    interval.map_or("null".to_owned(), |interval| {
        named([
            ("low", ratio(interval.low)),
            ("median", ratio(interval.median)),
            ("high", ratio(interval.high)),
        ])
    })
}

fn round(round: &Round) -> String {
    let again = round.again.as_ref().map(|again| ("a_again", turn(again)));
    let fields = [
        ("order", quoted(&round.order)),
        ("a", turn(&round.a)),
        ("b", turn(&round.b)),
    ];
    named(fields.into_iter().chain(again))
}

fn turn(turn: &LoadTurn) -> String {
    let cpu = turn
        .cpu
        .map(|cpu| ("cpu_seconds", format!("{:.6}", cpu.as_secs_f64())));
    let counts = [
        ("succeeded", turn.succeeded.to_string()),
        ("failed", turn.failed.to_string()),
        ("not_started", turn.not_started.to_string()),
        ("full_handshakes", turn.handshakes.0.to_string()),
        ("resumed_handshakes", turn.handshakes.1.to_string()),
        ("seconds", format!("{:.6}", turn.elapsed.as_secs_f64())),
        ("tool_cpu_seconds", format!("{:.6}", turn.own.as_secs_f64())),
    ];
    let counts = counts.map(|(name, value)| (name.to_owned(), value));
    let cpu = cpu.map(|(name, value)| (name.to_owned(), value));
    let times = turn.times.iter().flat_map(|times| {
        let named = PERCENTILES.iter().zip(times);
        named.map(|(percentile, time)| (format!("p{percentile}_us"), number(*time as f64 / 1e3)))
    });
    let fields = counts.into_iter().chain(cpu).chain(times);
    object(fields.map(|(name, value)| format!("\"{name}\":{value}")))
}

fn named<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let fields = fields.into_iter();
    object(fields.map(|(name, value)| format!("\"{name}\":{value}")))
}

fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(","))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{comparison, rounds};
    use super::*;

    fn report(percent: u64, count: usize) -> (String, String) {
        report_of(&comparison(), percent, count, 3)
    }

    fn report_of(
        comparison: &Comparison,
        percent: u64,
        count: usize,
        length: u64,
    ) -> (String, String) {
        let answer = Response {
            status: 200,
            grpc_status: None,
            length,
            sha256: [0xab; 32],
            tls: None,
            fields: vec!["server".to_owned()],
        };
        let other = Response {
            fields: vec!["date".to_owned()],
            ..answer.clone()
        };
        let rounds = rounds(percent, 0);
        let report = Report {
            comparison,
            answers: (&answer, &other),
            rounds: &rounds[..count],
            interrupted: false,
        };
        (report.text(), report.json())
    }

    #[test]
    fn a_difference_and_its_ends_are_named() {
        let (text, json) = report(5, 8);
        for line in [
            "order from seed 1 (a is A beside itself):\n  ABa ABa",
            "answers are alike: status 200, 3 bytes, SHA-256 abab",
            "their header fields differ: server / date",
            "A is better by 4.9 to 5.1 %",
            "no difference seen, none above 0.0 %",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        for field in [
            "\"metric\":\"requests_per_second\",\"a\":10503.500,\"b\":10003.500,\"ratio\":{\"low\":1.04",
            "\"verdict\":\"a_is_better\"",
            "\"metric\":\"p99.9_us\"",
            "\"answers_differ\":[]",
            "\"tool_cpu_seconds\":0.300000",
            "\"cpu_seconds\":0.500000",
        ] {
            assert!(json.contains(field), "{field} in {json}");
        }
    }

    #[test]
    fn one_is_not_several() {
        let mut one = comparison();
        let plan = Arc::make_mut(&mut one.a.plan);
        plan.connections = 1;
        plan.threads = 1;
        plan.length = Length::Requests(1);
        let (text, _) = report_of(&one, 5, 1, 1);
        for line in [
            "\n1 round, each turn 1 request: 1 connection, 1 thread on ",
            "\nanswers are alike: status 200, 1 byte, SHA-256 abab",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let plan = Arc::make_mut(&mut one.a.plan);
        plan.connections = 2;
        plan.threads = 2;
        plan.length = Length::Each(1);
        let (text, _) = report_of(&one, 5, 2, 2);
        for line in [
            "\n2 rounds, each turn 1 request each: 2 connections, 2 threads on ",
            "\nanswers are alike: status 200, 2 bytes, SHA-256 abab",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn too_few_rounds_have_no_interval() {
        let (text, json) = report(5, 3);
        assert!(text.contains("no verdict: fewer than 6 rounds"), "{text}");
        let field = "\"ratio\":null,\"a_beside_itself\":null,\"verdict\":\"too_few_rounds\"";
        assert!(json.contains(field), "{json}");
    }

    #[test]
    fn who_is_better_depends_on_what_is_measured() {
        let pair = |low, median, high| Interval { low, median, high };
        let (up, down) = (pair(1.25, 1.5, 2.0), pair(0.5, 0.6, 0.8));
        for (metric, pair, expected) in [
            (Metric::Throughput, up, ("A", 0.25, 1.0)),
            (Metric::PerCpuSecond, down, ("B", 0.25, 1.0)),
            (Metric::Time(0), down, ("A", 0.2, 0.5)),
            (Metric::Time(1), up, ("B", 0.2, 0.5)),
        ] {
            let (who, from, to) = gain(metric, pair);
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
            assert_eq!(who, expected.0, "{metric:?}");
            assert!(
                near(from, expected.1) && near(to, expected.2),
                "{from} {to}"
            );
        }
    }
}
