//! The report of a run: as text, JSON and CSV, and in the log format of HdrHistogram.
//!
//! The first line says whether the load tester was the bottleneck, because the other lines then say
//! little about the server.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use crate::conditions::{Conditions, spacing_name};
use crate::grpc::status_name;
use crate::machine;
use crate::run::{Connections, RunResult};
use crate::tally::RequestError;
use crate::tls::NegotiatedTls;

/// The percentiles of a report.
pub const PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999];

/// Runs with fewer requests than this get a warning.
const REQUESTS_FEW: u64 = 20;

/// Runs shorter than this get a warning.
const ELAPSED_SHORT: Duration = Duration::from_millis(50);

/// A lower bound for plausible response times, in nanoseconds: two system calls and a context
/// switch take longer.
const TOTAL_POSSIBLE_NS: u64 = 1_000;

/// The minimum number of values beyond a percentile for it to be reported, so that it is not
/// determined by a single outlier.
const BEYOND_MIN: f64 = 5.0;

/// A percentile of times in nanoseconds; `None` if there are too few values: for instance, the
/// 99.9th of 100 values.
#[must_use]
pub fn percentile(times: &Histogram<u64>, percentile: f64) -> Option<u64> {
    let beyond = times.len() as f64 * (100.0 - percentile) / 100.0;
    // The tolerance covers the rounding error of the decimal fraction.
    (beyond >= BEYOND_MIN - 1e-6).then(|| times.value_at_percentile(percentile))
}

/// A count with its noun: `1 request`, `2 requests`.
#[must_use]
pub fn some(count: u64, one: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    }
}

/// Maximum number of rows of a distribution.
const ROWS_MAX: u32 = 12;

/// Length of the longest bar, in characters.
const BAR_LENGTH_MAX: u64 = 40;

/// Appends the distribution of the times as bars. The upper bound of each row is a power of two in
/// microseconds; the last row has all longer times. Nothing is appended for a single value, which
/// is in the table.
fn distribution(times: &Histogram<u64>, text: &mut String) {
    if times.len() < 2 {
        return;
    }
    let power = |nanoseconds: u64| {
        nanoseconds
            .div_ceil(1_000)
            .max(1)
            .next_power_of_two()
            .ilog2()
    };
    let (first, last) = (power(times.min()), power(times.max()));
    let cut = last.min(first.saturating_add(ROWS_MAX - 1));
    let bound = |power: u32| 1_000_u64.saturating_mul(1_u64.checked_shl(power).unwrap_or(u64::MAX));
    let mut rows = Vec::new();
    let mut counted = 0;
    for power in first..=cut {
        let (below, name) = if power == cut {
            (times.len(), time(times.max() as f64))
        } else {
            (
                times.count_between(0, bound(power)),
                time(bound(power) as f64),
            )
        };
        rows.push((name, below.saturating_sub(counted)));
        counted = below.max(counted);
    }
    let most = rows
        .iter()
        .map(|(_, count)| *count)
        .max()
        .unwrap_or(1)
        .max(1);
    text.push_str("\n  total up to\n");
    for (name, count) in rows {
        let share = count as f64 * 100.0 / times.len() as f64;
        let length = (count * BAR_LENGTH_MAX).div_ceil(most);
        let bar = "#".repeat(usize::try_from(length).unwrap_or(0));
        let line = format!("  {name:>12} {share:>6.2} %  {bar}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// The data of a report.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The conditions of the run.
    pub conditions: &'a Conditions,
    /// The result of the run.
    pub outcome: &'a RunResult,
}

impl Report<'_> {
    /// Complete and expected responses per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        per_second(self.outcome.tally.succeeded, self.outcome.elapsed)
    }

    /// The report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let tally = &self.outcome.tally;
        let elapsed = self.outcome.elapsed;
        let mut text = String::new();
        for limit in machine::limits(self.outcome) {
            let _ = writeln!(text, "THE TOOL WAS THE LIMIT: {limit}");
        }
        for doubt in self.caveats() {
            let _ = writeln!(text, "THE FIGURES ARE IN DOUBT: {doubt}");
        }
        let _ = writeln!(text, "{}", self.conditions);
        if self.outcome.interrupted {
            text.push_str("interrupted: this is what there was until then\n");
        }
        let _ = writeln!(
            text,
            "\n  {:.2} requests/s, {}/s received, {:.3} s\n  {} as expected, {} failed, {} unfinished",
            self.rate(),
            bytes(per_second(tally.bytes, elapsed)),
            elapsed.as_secs_f64(),
            tally.succeeded,
            tally.failed(),
            self.outcome.unfinished,
        );
        let Connections {
            open_max,
            open_at_end,
            used,
        } = self.outcome.connections;
        let _ = writeln!(
            text,
            "  connections: {open_max} open at most, {open_at_end} at the end, {used} with a response"
        );
        if self.conditions.processes > 1 {
            let _ = writeln!(
                text,
                "  all processes measured at the same time for {:.3} s",
                self.outcome.together.as_secs_f64()
            );
        }
        if let Some(streams) = self.outcome.streams_allowed {
            let streams = some(streams.into(), "stream");
            let _ = writeln!(text, "  the server takes no more than {streams} at once");
        }
        if self.conditions.arrivals.is_some() {
            let _ = writeln!(
                text,
                "  {} not started: no connection was free",
                self.outcome.not_started
            );
        }
        for agreed in &self.outcome.agreed {
            let _ = writeln!(text, "  {agreed}");
        }
        if !tally.handshake.is_empty() {
            let _ = writeln!(
                text,
                "  TLS handshakes: {} full, {} resumed",
                tally.full_handshakes, tally.resumed_handshakes
            );
        }
        for (status, count) in tally.statuses() {
            let _ = writeln!(text, "  status {status}: {count}");
        }
        for (status, count) in tally.grpc_statuses() {
            let name = status_name(status);
            let _ = writeln!(text, "  gRPC status {status} {name}: {count}");
        }
        for failure in RequestError::ALL {
            if tally.failures(failure) > 0 {
                let _ = writeln!(text, "  {}: {}", failure.words(), tally.failures(failure));
            }
        }
        if let Some(refusal) = &self.outcome.refusal {
            let _ = writeln!(text, "  the first TLS handshake that failed: {refusal}");
        }
        self.times(&mut text);
        text
    }

    /// The reasons why the figures are not reliable.
    fn caveats(&self) -> Vec<String> {
        let RunResult { tally, elapsed, .. } = self.outcome;
        let mut doubts = Vec::new();
        let requests = tally.total.len();
        if (1..REQUESTS_FEW).contains(&requests) {
            doubts.push(format!(
                "{} of so short a run says little of a rate",
                some(requests, "request")
            ));
        } else if requests > 0 && *elapsed < ELAPSED_SHORT {
            let seconds = elapsed.as_secs_f64();
            doubts.push(format!("{seconds:.3} s are too short for a rate"));
        }
        if requests > 0 && tally.total.min() < TOTAL_POSSIBLE_NS {
            doubts.push(format!(
                "a response after {} is not possible over a connection",
                time(tally.total.min() as f64)
            ));
        }
        doubts
    }

    fn times(&self, text: &mut String) {
        let tally = &self.outcome.tally;
        let mut columns = vec![
            ("connect", &tally.connect),
            ("first byte", &tally.first_byte),
            ("total", &tally.total),
        ];
        if !tally.handshake.is_empty() {
            columns.insert(1, ("TLS", &tally.handshake));
        }
        let _ = write!(text, "\n  {:<9}", "");
        for (name, _) in &columns {
            let _ = write!(text, "{name:>12}");
        }
        text.push('\n');
        let rows: Vec<_> = columns.iter().map(|(_, times)| rows(times)).collect();
        for (place, name) in row_names().enumerate() {
            let _ = write!(text, "  {name:<9}");
            for column in &rows {
                let value = column.get(place).copied().flatten();
                let shown = value.map_or("-".to_owned(), time);
                let _ = write!(text, "{shown:>12}");
            }
            text.push('\n');
        }
        distribution(&tally.total, text);
    }

    /// The report as one JSON object. Times are in microseconds, rates per second. A percentile
    /// with too few values is `null`.
    #[must_use]
    pub fn json(&self) -> String {
        let outcome = self.outcome;
        let tally = &outcome.tally;
        let mut fields = vec![
            ("tool_was_the_limit", strings(&machine::limits(outcome))),
            ("urls", strings(&self.conditions.urls)),
            ("connections", self.conditions.connections.to_string()),
            ("threads", self.conditions.threads.to_string()),
            ("engine", quoted(&self.conditions.engine)),
            (
                "loop",
                quoted(if self.conditions.arrivals.is_some() {
                    "open"
                } else {
                    "closed"
                }),
            ),
        ];
        if let Some(arrivals) = self.conditions.arrivals {
            fields.push(("rate", number(arrivals.rate)));
            fields.push(("arrivals", quoted(spacing_name(arrivals.spacing))));
            fields.push(("not_started", outcome.not_started.to_string()));
        }
        fields.extend([
            ("protocol", quoted(self.conditions.protocol.name())),
            ("streams", self.conditions.protocol.streams().to_string()),
            (
                "streams_allowed",
                outcome
                    .streams_allowed
                    .map_or("null".to_owned(), |streams| streams.to_string()),
            ),
            ("pipeline", self.conditions.pipeline.to_string()),
            (
                "new_connections",
                self.conditions.new_connections.to_string(),
            ),
            ("resume", self.conditions.resume.to_string()),
            ("interrupted", outcome.interrupted.to_string()),
            ("seconds", number(outcome.elapsed.as_secs_f64())),
            ("requests_per_second", number(self.rate())),
            (
                "bytes_per_second",
                number(per_second(tally.bytes, outcome.elapsed)),
            ),
            ("succeeded", tally.succeeded.to_string()),
            ("failed", tally.failed().to_string()),
            ("unfinished", outcome.unfinished.to_string()),
            ("bytes_received", tally.bytes.to_string()),
            ("body_bytes", tally.body_bytes.to_string()),
            ("bytes_sent", tally.sent.to_string()),
            ("connections_made", tally.connected.to_string()),
            (
                "tls",
                strings(
                    &outcome
                        .agreed
                        .iter()
                        .map(NegotiatedTls::to_string)
                        .collect::<Vec<_>>(),
                ),
            ),
            ("full_handshakes", tally.full_handshakes.to_string()),
            ("resumed_handshakes", tally.resumed_handshakes.to_string()),
            (
                "connections_open_max",
                outcome.connections.open_max.to_string(),
            ),
            (
                "connections_open_at_end",
                outcome.connections.open_at_end.to_string(),
            ),
            ("connections_used", outcome.connections.used.to_string()),
            ("processes", self.conditions.processes.to_string()),
            ("seconds_together", number(outcome.together.as_secs_f64())),
        ]);
        let statuses = tally
            .statuses()
            .map(|(status, count)| format!("\"{status}\":{count}"));
        fields.push(("statuses", object(statuses)));
        if self.conditions.protocol.is_grpc() {
            let statuses = tally.grpc_statuses();
            let statuses =
                statuses.map(|(status, count)| format!("\"{}\":{count}", status_name(status)));
            fields.push(("grpc_statuses", object(statuses)));
        }
        let failures = RequestError::ALL
            .into_iter()
            .map(|failure| format!("\"{}\":{}", failure.name(), tally.failures(failure)));
        fields.push(("failures", object(failures)));
        let share = |share: fn(&machine::ThreadTimes) -> f64| {
            let shares: Vec<String> = outcome
                .busy
                .iter()
                .map(|busy| number(share(busy)))
                .collect();
            format!("[{}]", shares.join(","))
        };
        fields.push(("client_computing", share(machine::ThreadTimes::computing)));
        fields.push(("client_waiting", share(machine::ThreadTimes::waiting)));
        for (name, times) in [
            ("connect_us", &tally.connect),
            ("handshake_us", &tally.handshake),
            ("first_byte_us", &tally.first_byte),
            ("total_us", &tally.total),
        ] {
            fields.push((
                name,
                object(summary(times).map(|(name, value)| {
                    format!("\"{name}\":{}", value.unwrap_or("null".to_owned()))
                })),
            ));
        }
        object(
            fields
                .iter()
                .map(|(name, value)| format!("\"{name}\":{value}")),
        ) + "\n"
    }

    /// The report as a line of names and a line of values. Times are in microseconds, rates per
    /// second. A percentile with too few values is empty.
    #[must_use]
    pub fn csv(&self) -> String {
        let outcome = self.outcome;
        let tally = &outcome.tally;
        let mut columns = vec![
            (
                "tool_was_the_limit".to_owned(),
                (!machine::limits(outcome).is_empty()).to_string(),
            ),
            (
                "connections".to_owned(),
                self.conditions.connections.to_string(),
            ),
            ("seconds".to_owned(), number(outcome.elapsed.as_secs_f64())),
            ("requests_per_second".to_owned(), number(self.rate())),
            (
                "bytes_per_second".to_owned(),
                number(per_second(tally.bytes, outcome.elapsed)),
            ),
            ("succeeded".to_owned(), tally.succeeded.to_string()),
            ("failed".to_owned(), tally.failed().to_string()),
            ("unfinished".to_owned(), outcome.unfinished.to_string()),
            ("not_started".to_owned(), outcome.not_started.to_string()),
            (
                "full_handshakes".to_owned(),
                tally.full_handshakes.to_string(),
            ),
            (
                "resumed_handshakes".to_owned(),
                tally.resumed_handshakes.to_string(),
            ),
        ];
        for failure in RequestError::ALL {
            columns.push((
                failure.name().to_owned(),
                tally.failures(failure).to_string(),
            ));
        }
        for (prefix, times) in [
            ("connect", &tally.connect),
            ("handshake", &tally.handshake),
            ("first_byte", &tally.first_byte),
            ("total", &tally.total),
        ] {
            columns.extend(
                summary(times)
                    .map(|(name, value)| (format!("{prefix}_{name}"), value.unwrap_or_default())),
            );
        }
        let (names, values): (Vec<String>, Vec<String>) = columns.into_iter().unzip();
        format!("{}\n{}\n", names.join(","), values.join(","))
    }

    /// The total times by seconds of the run, in nanoseconds, in the log format of HdrHistogram.
    ///
    /// # Errors
    /// A message, if the times cannot be encoded.
    pub fn histogram_log(&self) -> Result<Vec<u8>, String> {
        let mut log = Vec::new();
        let mut serializer = V2DeflateSerializer::new();
        let mut writer = IntervalLogWriterBuilder::new()
            .add_comment("tidegate bench: total times in nanoseconds")
            .begin_log_with(&mut log, &mut serializer)
            .map_err(|error| error.to_string())?;
        for (second, interval) in self.outcome.intervals.iter().enumerate() {
            let begin = Duration::from_secs(second as u64);
            let length = self
                .outcome
                .elapsed
                .saturating_sub(begin)
                .min(Duration::from_secs(1));
            writer
                .write_histogram(interval, begin, length, None)
                .map_err(|error| format!("{error:?}"))?;
        }
        Ok(log)
    }
}

/// The names of the values of [`rows`], in the same order.
fn row_names() -> impl Iterator<Item = String> {
    let percentiles = PERCENTILES.map(|percentile| format!("p{percentile}"));
    let before = ["min", "mean", "deviation"].map(str::to_owned);
    let all = before.into_iter().chain(percentiles);
    all.chain(["max".to_owned()])
}

/// The statistics of times, in nanoseconds; `None` if there are too few values.
fn rows(times: &Histogram<u64>) -> Vec<Option<f64>> {
    let any = |value: f64| (!times.is_empty()).then_some(value);
    let mut rows = vec![
        any(times.min() as f64),
        any(times.mean()),
        any(times.stdev()),
    ];
    rows.extend(PERCENTILES.map(|of| percentile(times, of).map(|value| value as f64)));
    rows.push(any(times.max() as f64));
    rows
}

/// Names and statistics of one histogram, in microseconds; `None` if there are too few values.
fn summary(times: &Histogram<u64>) -> impl Iterator<Item = (String, Option<String>)> {
    let microseconds =
        |nanoseconds: Option<f64>| nanoseconds.map(|nanoseconds| number(nanoseconds / 1000.0));
    let values = rows(times).into_iter().map(microseconds);
    let count = ("count".to_owned(), Some(times.len().to_string()));
    [count].into_iter().chain(row_names().zip(values))
}

pub(crate) fn object(fields: impl Iterator<Item = String>) -> String {
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

pub(crate) fn strings(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", texts.join(","))
}

/// A number with three decimals. Not a number and infinity become 0, because JSON cannot express
/// them.
pub(crate) fn number(value: f64) -> String {
    let value = if value.is_finite() { value } else { 0.0 };
    format!("{value:.3}")
}

/// Encodes a JSON string (RFC 8259, section 7).
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", character as u32);
            }
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

pub(crate) fn per_second(count: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() {
        return 0.0;
    }
    count as f64 / elapsed.as_secs_f64()
}

/// A time in nanoseconds, with a suitable unit.
pub(crate) fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        value if value < 1e6 => format!("{:.1} us", value / 1e3),
        value if value < 1e9 => format!("{:.2} ms", value / 1e6),
        value => format!("{:.3} s", value / 1e9),
    }
}

/// A number of bytes, with a suitable decimal unit.
fn bytes(count: f64) -> String {
    match count {
        count if count < 1e3 => format!("{count:.0} B"),
        count if count < 1e6 => format!("{:.1} kB", count / 1e3),
        count if count < 1e9 => format!("{:.1} MB", count / 1e6),
        count => format!("{:.2} GB", count / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        let times = [950.0, 1_234_567.0, 2e9].map(time);
        assert_eq!(times, ["0.9 us", "1.23 ms", "2.000 s"]);
        let sizes = [1.0, 1_500.0, 2.5e6, 3e9].map(bytes);
        assert_eq!(sizes, ["1 B", "1.5 kB", "2.5 MB", "3.00 GB"]);
    }

    fn times(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut times = Histogram::new(3).unwrap();
        values
            .into_iter()
            .for_each(|value| times.record(value).unwrap());
        times
    }

    #[test]
    fn a_percentile_needs_values_beyond_it() {
        let hundred = times(1..=100);
        let carried = |times: &Histogram<u64>| {
            PERCENTILES
                .into_iter()
                .filter(|of| percentile(times, *of).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(carried(&hundred), [50.0, 75.0, 90.0, 95.0]);
        assert_eq!(carried(&times(1..=9)), [0.0; 0]);
        assert_eq!(carried(&times((0..5_000).map(|_| 7))).last(), Some(&99.9));
    }

    #[test]
    fn what_there_are_too_few_times_for_is_none() {
        let said = |times: &Histogram<u64>| {
            let said = summary(times).map(|(name, value)| {
                let value = value.unwrap_or("none".to_owned());
                format!("{name} {value}")
            });
            said.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(
            said(&times([])),
            "count 0, min none, mean none, deviation none, p50 none, p75 none, p90 none, p95 none, p99 none, p99.9 none, \
             p99.99 none, p99.999 none, max none"
        );
        assert_eq!(
            said(&times((0..50).map(|_| 2_000))),
            "count 50, min 2.000, mean 2.000, deviation 0.000, p50 2.000, p75 2.000, p90 2.000, p95 none, p99 none, \
             p99.9 none, p99.99 none, p99.999 none, max 2.000"
        );
    }

    #[test]
    fn a_distribution_is_bars_that_add_up() {
        let mut text = String::new();
        // Three values up to 64 us, one up to 128 us, and one far beyond.
        distribution(
            &times([40_000, 50_000, 60_000, 100_000, 1_000_000_000]),
            &mut text,
        );
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert!(lines[0].contains("64.0 us  60.00 %  ####"), "{text}");
        assert!(lines[1].contains("128.0 us  20.00 %  ####"), "{text}");
        assert!(lines[2].ends_with("256.0 us   0.00 %"), "{text}");
        assert!(lines.last().unwrap().contains("20.00 %"), "{text}");
        assert!(lines.len() <= ROWS_MAX as usize);
        let longest = lines.iter().map(|line| line.matches('#').count()).max();
        assert_eq!(longest, Some(BAR_LENGTH_MAX as usize));
        text.clear();
        distribution(&times([1]), &mut text);
        assert_eq!(text, "");
    }

    #[test]
    fn one_is_not_several() {
        assert_eq!(
            [some(1, "request"), some(2, "request")],
            ["1 request", "2 requests"]
        );
    }

    #[test]
    fn json_strings_and_numbers() {
        assert_eq!(quoted("a\"\\\n"), "\"a\\\"\\\\\\u000a\"");
        assert_eq!([number(1.0), number(f64::NAN)], ["1.000", "0.000"]);
        assert_eq!(per_second(5, Duration::ZERO), 0.0);
    }
}
