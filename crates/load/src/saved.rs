//! Saves the result of a run in a file, so that several processes or machines can send load
//! together and report as one.
//!
//! The file is text: one line per figure, with its name and its values. Histograms are in the
//! compressed encoding of HdrHistogram (version 2), in hexadecimal digits. The encoding is
//! lossless, so merging is exact. Samples of single requests and times by seconds are not saved.

use std::fmt::Write;
use std::str::{FromStr, SplitWhitespace};
use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

use crate::conditions::{Conditions, spacing_name};
use crate::machine::ThreadTimes;
use crate::plan::{Arrivals, Length, Protocol, Spacing};
use crate::run::RunResult;
use crate::tally::RequestError;
use crate::tls::NegotiatedTls;

/// The first line of every file.
const FORMAT: &str = "tidegate-bench-run 1";

/// An upper limit for counts, larger than any run can reach.
const COUNT_MAX: u64 = 1 << 50;

/// The contents of a file.
#[derive(Debug)]
pub struct SavedRun {
    /// The conditions of the run.
    pub conditions: Conditions,
    /// The result of the run.
    pub outcome: RunResult,
}

/// Encodes a run as the text of a file.
///
/// # Errors
/// A message, if a histogram cannot be encoded.
pub fn write(conditions: &Conditions, outcome: &RunResult) -> Result<String, String> {
    let mut text = format!("{FORMAT}\n");
    for url in &conditions.urls {
        line(&mut text, "url", url);
    }
    for (name, value) in [
        ("connections", conditions.connections),
        ("threads", conditions.threads),
        ("warmup_ns", nanoseconds(conditions.warmup)),
        ("ramp_ns", nanoseconds(conditions.ramp)),
        ("think_time_ns", nanoseconds(conditions.think_time)),
        ("pipeline", conditions.pipeline),
        ("new_connections", u64::from(conditions.new_connections)),
        ("resume", u64::from(conditions.resume)),
        ("interrupted", u64::from(outcome.interrupted)),
    ] {
        line(&mut text, name, value);
    }
    match conditions.protocol {
        Protocol::Http1 => {}
        Protocol::Http2 { streams } => line(&mut text, "http2_streams", streams),
        Protocol::Grpc { streams } => line(&mut text, "grpc_streams", streams),
    }
    if let Some(streams) = outcome.streams_allowed {
        line(&mut text, "streams_allowed", streams);
    }
    line(&mut text, "engine", &conditions.engine);
    if let Some(Arrivals { rate, spacing }) = conditions.arrivals {
        let spacing = spacing_name(spacing);
        line(&mut text, "arrivals", format!("{spacing} {rate}"));
    }
    match conditions.length {
        Length::Time(time) => line(&mut text, "time_ns", nanoseconds(time)),
        Length::Requests(requests) => line(&mut text, "requests", requests),
        Length::Each(requests) => line(&mut text, "requests_each", requests),
    }
    for NegotiatedTls {
        version,
        cipher,
        cipher_bits,
        group,
        key,
        key_bits,
    } in &outcome.agreed
    {
        // The key is last, because its name consists of two words.
        let values = format!("{version} {cipher} {cipher_bits} {group} {key_bits} {key}");
        line(&mut text, "agreed", values);
    }
    // The functions below return mutable references, which are also used for reading; hence the
    // clone.
    let mut kept = outcome.clone();
    for (name, value) in counts(&mut kept) {
        line(&mut text, name, *value);
    }
    for (name, value) in durations(&mut kept) {
        line(&mut text, name, nanoseconds(*value));
    }
    for busy in &outcome.busy {
        let [cpu, waited, elapsed] = busy.times().map(nanoseconds);
        line(&mut text, "busy_ns", format!("{cpu} {waited} {elapsed}"));
    }
    for (status, count) in outcome.tally.statuses() {
        line(&mut text, "status", format!("{status} {count}"));
    }
    for (status, count) in outcome.tally.grpc_statuses() {
        line(&mut text, "grpc_status", format!("{status} {count}"));
    }
    for failure in RequestError::ALL {
        let count = outcome.tally.failures(failure);
        line(&mut text, "failure", format!("{} {count}", failure.name()));
    }
    for (name, histogram) in histograms(&mut kept) {
        line(&mut text, name, encode(histogram)?);
    }
    Ok(text)
}

/// Parses the text of a file.
///
/// # Errors
/// A message with the line number, if the text is not the output of [`write()`].
pub fn read(text: &str) -> Result<SavedRun, String> {
    let mut lines = text.lines();
    if lines.next() != Some(FORMAT) {
        return Err("not a run saved by this version of tidegate bench".to_owned());
    }
    let mut saved = SavedRun {
        conditions: Conditions {
            urls: Vec::new(),
            processes: 1,
            connections: 0,
            threads: 0,
            engine: String::new(),
            arrivals: None,
            length: Length::Requests(0),
            warmup: Duration::ZERO,
            ramp: Duration::ZERO,
            think_time: Duration::ZERO,
            protocol: Protocol::Http1,
            pipeline: 1,
            new_connections: false,
            resume: false,
        },
        outcome: RunResult::default(),
    };
    for (index, line) in lines.enumerate() {
        let (name, values) = line.split_once(' ').unwrap_or((line, ""));
        if name == "url" {
            saved.conditions.urls.push(values.to_owned());
            continue;
        }
        let mut words = values.split_whitespace();
        saved
            .take(name, &mut words)
            .filter(|()| words.next().is_none())
            .ok_or_else(|| {
                format!(
                    "line {}: {name:?} with these values is not of a saved run",
                    index + 2
                )
            })?;
    }
    saved.outcome.together = saved.outcome.elapsed;
    Ok(saved)
}

/// Merges runs: counts and histograms are added; the duration is from the first start to the last
/// end. Each run has a name for error messages.
///
/// # Errors
/// If there are no runs, or if two of them had different conditions.
pub fn merge(runs: Vec<(String, SavedRun)>) -> Result<SavedRun, String> {
    let mut runs = runs.into_iter();
    let (first, mut sum) = runs.next().ok_or("there is nothing to merge")?;
    let end_of = |outcome: &RunResult| outcome.began.saturating_add(outcome.elapsed);
    let (mut first_begun, mut last_ended) = (sum.outcome.began, end_of(&sum.outcome));
    let (mut last_begun, mut first_ended) = (first_begun, last_ended);
    for (name, other) in runs {
        sum.conditions
            .add(&other.conditions)
            .map_err(|what| format!("{first} and {name} differ in {what}"))?;
        first_begun = first_begun.min(other.outcome.began);
        last_begun = last_begun.max(other.outcome.began);
        first_ended = first_ended.min(end_of(&other.outcome));
        last_ended = last_ended.max(end_of(&other.outcome));
        sum.outcome.add(other.outcome);
    }
    sum.outcome.began = first_begun;
    sum.outcome.elapsed = last_ended.saturating_sub(first_begun);
    sum.outcome.together = first_ended.saturating_sub(last_begun);
    Ok(sum)
}

impl SavedRun {
    /// Parses one line; `None` if it is malformed or unknown.
    fn take(&mut self, name: &str, words: &mut SplitWhitespace<'_>) -> Option<()> {
        let conditions = &mut self.conditions;
        let outcome = &mut self.outcome;
        if let Some((_, value)) = counts(outcome)
            .into_iter()
            .find(|(known, _)| *known == name)
        {
            *value = count(words)?;
            return Some(());
        }
        if let Some((_, time)) = durations(outcome)
            .into_iter()
            .find(|(known, _)| *known == name)
        {
            *time = Duration::from_nanos(next(words)?);
            return Some(());
        }
        let histogram = histograms(outcome)
            .into_iter()
            .find(|(known, _)| *known == name);
        if let Some((_, histogram)) = histogram {
            return histogram.add(decode(words.next()?)?).ok();
        }
        match name {
            "connections" => conditions.connections = count(words)?,
            "threads" => conditions.threads = count(words)?,
            "warmup_ns" => conditions.warmup = Duration::from_nanos(next(words)?),
            "ramp_ns" => conditions.ramp = Duration::from_nanos(next(words)?),
            "think_time_ns" => conditions.think_time = Duration::from_nanos(next(words)?),
            "http2_streams" => {
                let streams = next(words)?;
                conditions.protocol = Protocol::Http2 { streams };
            }
            "grpc_streams" => {
                let streams = next(words)?;
                conditions.protocol = Protocol::Grpc { streams };
            }
            "streams_allowed" => outcome.streams_allowed = Some(next(words)?),
            "pipeline" => conditions.pipeline = next(words)?,
            "new_connections" => conditions.new_connections = next::<u8>(words)? == 1,
            "resume" => conditions.resume = next::<u8>(words)? == 1,
            "engine" => words.next()?.clone_into(&mut conditions.engine),
            "arrivals" => {
                let spacing = words.next()?;
                let known = [Spacing::Constant, Spacing::Poisson];
                conditions.arrivals = Some(Arrivals {
                    spacing: known
                        .into_iter()
                        .find(|one| spacing_name(*one) == spacing)?,
                    rate: next(words)?,
                });
            }
            "time_ns" => conditions.length = Length::Time(Duration::from_nanos(next(words)?)),
            "requests" => conditions.length = Length::Requests(count(words)?),
            "requests_each" => conditions.length = Length::Each(count(words)?),
            "interrupted" => outcome.interrupted = next::<u8>(words)? == 1,
            "busy_ns" => {
                let mut time = || Some(Duration::from_nanos(next(words)?));
                outcome
                    .busy
                    .push(ThreadTimes::of([time()?, time()?, time()?]));
            }
            "agreed" => outcome.agreed.push(agreed(words)?),
            "status" => outcome.tally.add_status(next(words)?, count(words)?),
            "grpc_status" => outcome.tally.add_grpc_status(next(words)?, count(words)?),
            "failure" => {
                let failure = words.next()?;
                let known = RequestError::ALL
                    .into_iter()
                    .find(|one| one.name() == failure)?;
                outcome.tally.add_failures(known, count(words)?);
            }
            _ => return None,
        }
        Some(())
    }
}

/// Parses the result of a handshake.
fn agreed(words: &mut SplitWhitespace<'_>) -> Option<NegotiatedTls> {
    let mut agreed = NegotiatedTls {
        version: next(words)?,
        cipher: next(words)?,
        cipher_bits: next(words)?,
        group: next(words)?,
        key_bits: next(words)?,
        key: next(words)?,
    };
    for word in words {
        agreed.key.push(' ');
        agreed.key.push_str(word);
    }
    Some(agreed)
}

/// The counters of a result, with their names.
fn counts(outcome: &mut RunResult) -> [(&'static str, &mut u64); 16] {
    let RunResult {
        tally, connections, ..
    } = outcome;
    [
        ("completed", &mut tally.completed),
        ("succeeded", &mut tally.succeeded),
        ("good", &mut tally.good),
        ("bytes_received", &mut tally.bytes),
        ("body_bytes", &mut tally.body_bytes),
        ("bytes_sent", &mut tally.sent),
        ("connections_made", &mut tally.connected),
        ("full_handshakes", &mut tally.full_handshakes),
        ("resumed_handshakes", &mut tally.resumed_handshakes),
        ("unfinished", &mut outcome.unfinished),
        ("not_started", &mut outcome.not_started),
        ("parallel", &mut outcome.parallel),
        ("kept_alive", &mut outcome.kept_alive),
        ("open_max", &mut connections.open_max),
        ("open_at_end", &mut connections.open_at_end),
        ("used", &mut connections.used),
    ]
}

fn durations(outcome: &mut RunResult) -> [(&'static str, &mut Duration); 2] {
    [
        ("began_ns", &mut outcome.began),
        ("elapsed_ns", &mut outcome.elapsed),
    ]
}

fn histograms(outcome: &mut RunResult) -> [(&'static str, &mut Histogram<u64>); 4] {
    [
        ("connect", &mut outcome.tally.connect),
        ("handshake", &mut outcome.tally.handshake),
        ("first_byte", &mut outcome.tally.first_byte),
        ("total", &mut outcome.tally.total),
    ]
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "{name} {value}");
}

fn next<T: FromStr>(words: &mut SplitWhitespace<'_>) -> Option<T> {
    words.next()?.parse().ok()
}

/// Parses a count. It is limited so that sums of many do not overflow.
fn count(words: &mut SplitWhitespace<'_>) -> Option<u64> {
    next(words).filter(|count| *count <= COUNT_MAX)
}

/// A duration in nanoseconds, saturating after 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn encode(histogram: &Histogram<u64>) -> Result<String, String> {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(histogram, &mut bytes)
        .map_err(|error| format!("{error:?}"))?;
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(digits, "{byte:02x}");
    }
    Ok(digits)
}

fn decode(digits: &str) -> Option<Histogram<u64>> {
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes = pairs.map(byte).collect::<Option<Vec<u8>>>()?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::plan;
    use crate::tally::record;

    /// A run of two seconds that began at `began` seconds and recorded these times.
    fn run(began: u64, times: &[u64]) -> SavedRun {
        let mut outcome = RunResult {
            began: Duration::from_secs(began),
            elapsed: Duration::from_secs(2),
            together: Duration::from_secs(2),
            busy: vec![ThreadTimes::of([1, 2, 3].map(Duration::from_millis))],
            ..RunResult::default()
        };
        outcome.connections.open_max = 7;
        for time in times {
            outcome.tally.succeeded += 1;
            outcome.tally.good += 1;
            outcome.tally.full_handshakes += 1;
            outcome.tally.count_status(200);
            record(&mut outcome.tally.total, Duration::from_nanos(*time));
        }
        outcome.tally.fail(RequestError::Reset);
        outcome.agreed.push(NegotiatedTls {
            version: "TLSv1.3".to_owned(),
            cipher: "TLS_AES_128_GCM_SHA256".to_owned(),
            cipher_bits: 128,
            group: "X25519".to_owned(),
            key: "ECDSA P-256".to_owned(),
            key_bits: 256,
        });
        SavedRun {
            conditions: Conditions::new(
                &plan(10),
                vec!["http://a/".to_owned(), "and 9 more".to_owned()],
            ),
            outcome,
        }
    }

    fn text(saved: &SavedRun) -> String {
        write(&saved.conditions, &saved.outcome).unwrap()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut saved = run(5, &[1_000, 2_000_000, 3_600_000_000_000]);
        saved.conditions.arrivals = Some(Arrivals {
            rate: 0.1 + 0.2,
            spacing: Spacing::Poisson,
        });
        saved.outcome.streams_allowed = Some(3);
        saved.outcome.tally.count_grpc_status(14);
        for protocol in [
            Protocol::Http2 { streams: 5 },
            Protocol::Grpc { streams: 5 },
        ] {
            saved.conditions.protocol = protocol;
            let again = read(&text(&saved)).unwrap();
            assert_eq!(again.conditions, saved.conditions);
            assert_eq!(again.outcome.agreed, saved.outcome.agreed);
            assert_eq!(text(&again), text(&saved));
            assert_eq!(again.outcome.tally.total, saved.outcome.tally.total);
            let statuses = again.outcome.tally.grpc_statuses();
            assert_eq!(statuses.collect::<Vec<_>>(), [(14, 1)]);
        }
    }

    #[test]
    fn merged_histograms_are_those_of_one_run() {
        let (mut low, mut high, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..5_000_u64 {
            let time = 1_000 + number * number;
            all.push(time);
            if number % 3 == 0 { &mut low } else { &mut high }.push(time);
        }
        let parts = [("a", run(5, &low)), ("b", run(6, &high))];
        let parts = parts.map(|(name, part)| (name.to_owned(), read(&text(&part)).unwrap()));
        let merged = merge(Vec::from(parts)).unwrap();
        assert_eq!(merged.outcome.tally.total, run(5, &all).outcome.tally.total);
        let tally = &merged.outcome.tally;
        assert_eq!(
            (
                tally.succeeded,
                tally.good,
                tally.full_handshakes,
                tally.failures(RequestError::Reset)
            ),
            (5_000, 5_000, 5_000, 2)
        );
        assert_eq!(tally.statuses().collect::<Vec<_>>(), [(200, 5_000)]);
        let conditions = &merged.conditions;
        assert_eq!((conditions.processes, conditions.connections), (2, 20));
        assert_eq!(merged.outcome.connections.open_max, 14);
        assert_eq!(merged.outcome.agreed.len(), 1);
        // The runs last from second 5 to second 8 together; they overlap from second 6 to second 7.
        let outcome = &merged.outcome;
        assert_eq!(
            (outcome.elapsed.as_secs(), outcome.together.as_secs()),
            (3, 1)
        );
        assert_eq!(outcome.busy.len(), 2);
    }

    #[test]
    fn other_files_and_other_runs_are_refused() {
        let good = text(&run(5, &[1]));
        for (text, words) in [
            ("", "not a run saved"),
            (
                &*good.replace("succeeded 1", "succeeded x"),
                "\"succeeded\"",
            ),
            (
                &good.replace("succeeded 1", "succeeded 18446744073709551615"),
                "\"succeeded\"",
            ),
            (
                &good.replace("succeeded 1", "succeeded 1 1"),
                "\"succeeded\"",
            ),
            (&good.replace("\ntotal ", "\ntotal 00"), "\"total\""),
            (&good.replace("\ntotal ", "\ntotal \u{e9}"), "\"total\""),
            (&good.replace("\nengine", "\nmotor"), "line 13: \"motor\""),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let mut other = run(5, &[1]);
        other.conditions.pipeline = 2;
        let both = vec![("a".to_owned(), run(5, &[1])), ("b".to_owned(), other)];
        assert_eq!(merge(both).unwrap_err(), "a and b differ in the pipeline");
    }
}
