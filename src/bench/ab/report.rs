//! ApacheBench's report, with the same columns.

use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use load::tally::RequestError;
use load::tls::NegotiatedTls;
use load::{RunResult, Sample, Target};

use super::flags::Flags;

/// The percentages in the table.
const PERCENTAGES: [usize; 9] = [50, 66, 75, 80, 90, 95, 98, 99, 100];

/// Prints the report, then writes the requested files. If writing fails, the report has already
/// been printed.
pub(super) fn write(flags: &Flags, target: &Target, outcome: &RunResult) -> Result<(), String> {
    let samples = sorted(&outcome.samples);
    let mut text = String::from("\n\n");
    // Writing to a string cannot fail.
    let _ = totals(&mut text, flags, target, outcome);
    if !samples.is_empty() {
        let _ = times(&mut text, flags, &samples);
        if flags.percentiles && samples.len() > 1 {
            let _ = percentages(&mut text, &samples);
        }
    }
    print!("{text}");
    if samples.is_empty() {
        return Ok(());
    }
    if let Some(path) = &flags.csv {
        std::fs::write(path, csv(&samples))
            .map_err(|error| format!("Cannot open CSV output file: {path}: {error}"))?;
    }
    if let Some(path) = &flags.gnuplot {
        std::fs::write(path, gnuplot(&samples, &TimeZone::system()))
            .map_err(|error| format!("Cannot open gnuplot output file: {path}: {error}"))?;
    }
    Ok(())
}

/// Sorts samples from the quickest to the slowest. Samples that are equal in microseconds are in
/// the order of ab, which sorts by connect, processing, waiting and total times in sequence.
fn sorted(samples: &[Sample]) -> Vec<Sample> {
    let mut samples = samples.to_vec();
    samples.sort_by_key(|sample| {
        [
            sample.total,
            sample.wait,
            processing(sample),
            sample.connect,
        ]
        .map(|time| time.as_micros())
    });
    samples
}

fn totals(
    text: &mut String,
    flags: &Flags,
    target: &Target,
    outcome: &RunResult,
) -> std::fmt::Result {
    let tally = &outcome.tally;
    let first = outcome.first.clone().unwrap_or_default();
    writeln!(
        text,
        "Server Software:        {}",
        String::from_utf8_lossy(&first.server)
    )?;
    writeln!(text, "Server Hostname:        {}", target.host)?;
    writeln!(
        text,
        "Server Port:            {}",
        target.address.port().unwrap_or_default()
    )?;
    if let Some(agreed) = outcome.agreed.first() {
        tls(text, flags, target, agreed)?;
    }
    writeln!(text)?;
    writeln!(text, "Document Path:          {}", target.path)?;
    if flags.variable_length {
        writeln!(text, "Document Length:        Variable\n")?
    } else {
        writeln!(text, "Document Length:        {} bytes\n", first.length)?
    }
    let seconds = outcome.elapsed.as_secs_f64();
    let done = tally.ended();
    writeln!(text, "Concurrency Level:      {}", flags.concurrency)?;
    writeln!(text, "Time taken for tests:   {seconds:.3} seconds")?;
    writeln!(text, "Complete requests:      {done}")?;
    writeln!(text, "Failed requests:        {}", tally.failed())?;
    if tally.failed() > 0 {
        let connect = [
            RequestError::Refused,
            RequestError::ConnectTimeout,
            RequestError::Connect,
            RequestError::TlsTimeout,
            RequestError::TlsClosed,
            RequestError::TlsHandshake,
            RequestError::TlsUntrusted,
            RequestError::Local,
        ];
        let receive = [
            RequestError::Reset,
            RequestError::Timeout,
            RequestError::TlsBroken,
        ];
        let length = [
            RequestError::Differs,
            RequestError::ClosedEarly,
            RequestError::ClosedInBody,
            RequestError::WrongLength,
        ];
        let sum =
            |kinds: &[RequestError]| kinds.iter().map(|kind| tally.failures(*kind)).sum::<u64>();
        let (connect, receive, length) = (sum(&connect), sum(&receive), sum(&length));
        let others = tally.failed() - connect - receive - length;
        writeln!(
            text,
            "   (Connect: {connect}, Receive: {receive}, Length: {length}, Exceptions: {others})"
        )?;
    }
    let beyond: u64 = tally
        .statuses()
        .filter(|(status, _)| !(200..300).contains(status))
        .map(|(_, count)| count)
        .sum();
    if beyond > 0 {
        writeln!(text, "Non-2xx responses:      {beyond}")?;
    }
    if flags.keep_alive {
        writeln!(text, "Keep-Alive requests:    {}", outcome.kept_alive)?;
    }
    writeln!(text, "Total transferred:      {} bytes", tally.bytes)?;
    if flags.body.is_some() {
        writeln!(text, "Total body sent:        {}", tally.sent)?;
    }
    writeln!(text, "HTML transferred:       {} bytes", tally.body_bytes)?;
    if seconds > 0.0 && done > 0 {
        let done = done as f64;
        let each = seconds * 1000.0 / done;
        let kilobytes = |bytes: u64| bytes as f64 / 1024.0 / seconds;
        writeln!(
            text,
            "Requests per second:    {:.2} [#/sec] (mean)",
            done / seconds
        )?;
        writeln!(
            text,
            "Time per request:       {:.3} [ms] (mean)",
            flags.concurrency as f64 * each
        )?;
        writeln!(
            text,
            "Time per request:       {each:.3} [ms] (mean, across all concurrent requests)"
        )?;
        writeln!(
            text,
            "Transfer rate:          {:.2} [Kbytes/sec] received",
            kilobytes(tally.bytes)
        )?;
        if flags.body.is_some() {
            writeln!(
                text,
                "                        {:.2} kb/s sent",
                kilobytes(tally.sent)
            )?;
            writeln!(
                text,
                "                        {:.2} kb/s total",
                kilobytes(tally.bytes + tally.sent)
            )?;
        }
    }
    Ok(())
}

/// ab's lines about TLS. The bits are those of the certificate's key and of the cipher.
fn tls(
    text: &mut String,
    flags: &Flags,
    target: &Target,
    agreed: &NegotiatedTls,
) -> std::fmt::Result {
    writeln!(
        text,
        "SSL/TLS Protocol:       {},{},{},{}",
        agreed.version, agreed.cipher, agreed.key_bits, agreed.cipher_bits
    )?;
    let kind = if agreed.group.starts_with("P-") {
        "ECDH "
    } else {
        ""
    };
    writeln!(
        text,
        "Server Temp Key:        {kind}{} {} bits",
        agreed.group,
        agreed.group_bits()
    )?;
    let is_name = target.host.parse::<IpAddr>().is_err() && !target.host.is_empty();
    if is_name && !flags.tls.without_name {
        writeln!(text, "TLS Server Name:        {}", target.host)
    } else {
        Ok(())
    }
}

/// A row of the table, with times in milliseconds.
struct Row {
    name: &'static str,
    /// The name of the row in a warning.
    words: &'static str,
    min: i64,
    mean: i64,
    deviation: f64,
    median: i64,
    max: i64,
}

impl Row {
    fn of(name: &'static str, words: &'static str, mut times: Vec<Duration>) -> Row {
        times.sort();
        let count = times.len();
        let mean = times.iter().map(Duration::as_secs_f64).sum::<f64>() / count as f64;
        let squares = times.iter().map(|time| (time.as_secs_f64() - mean).powi(2));
        let variance = match count {
            0 | 1 => 0.0,
            _ => squares.sum::<f64>() / (count - 1) as f64,
        };
        let at = |place: usize| times.get(place.min(count - 1)).copied().unwrap_or_default();
        // For an odd number of values, ab's median is the mean of the middle one and the next one.
        let median = match count % 2 {
            1 if count > 1 => (at(count / 2) + at(count / 2 + 1)) / 2,
            _ => at(count / 2),
        };
        Row {
            name,
            words,
            min: milliseconds(at(0)),
            mean: milliseconds(Duration::from_secs_f64(mean)),
            deviation: variance.sqrt() * 1000.0,
            median: milliseconds(median),
            max: milliseconds(at(count - 1)),
        }
    }

    fn warn(&self, text: &mut String) -> std::fmt::Result {
        let apart = (self.mean - self.median).abs() as f64;
        if apart > 2.0 * self.deviation {
            writeln!(
                text,
                "ERROR: The median and mean for {} are more than twice the standard\n       deviation apart. These \
                 results are NOT reliable.",
                self.words
            )
        } else if apart > self.deviation {
            writeln!(
                text,
                "WARNING: The median and mean for {} are not within a normal deviation\n        These results are \
                 probably not that reliable.",
                self.words
            )
        } else {
            Ok(())
        }
    }
}

fn times(text: &mut String, flags: &Flags, samples: &[Sample]) -> std::fmt::Result {
    let collect = |time: fn(&Sample) -> Duration| samples.iter().map(time).collect();
    let rows = [
        Row::of(
            "Connect:",
            "the initial connection time",
            collect(|s| s.connect),
        ),
        Row::of("Processing:", "the processing time", collect(processing)),
        Row::of("Waiting:", "the waiting time", collect(|s| s.wait)),
        Row::of("Total:", "the total time", collect(|s| s.total)),
    ];
    writeln!(text, "\nConnection Times (ms)")?;
    if flags.confidence {
        writeln!(text, "              min  mean[+/-sd] median   max")?;
        for Row {
            name,
            min,
            mean,
            deviation,
            median,
            max,
            ..
        } in &rows
        {
            writeln!(
                text,
                "{name:<12}{min:>5} {mean:>4} {deviation:>5.1} {median:>6} {max:>7}"
            )?;
        }
        return rows.iter().try_for_each(|row| row.warn(text));
    }
    writeln!(text, "              min   avg   max")?;
    for Row {
        name,
        min,
        mean,
        max,
        ..
    } in &rows
    {
        writeln!(text, "{name:<12}{min:>5} {mean:>5}{max:>5}")?;
    }
    Ok(())
}

fn percentages(text: &mut String, samples: &[Sample]) -> std::fmt::Result {
    writeln!(
        text,
        "\nPercentage of the requests served within a certain time (ms)"
    )?;
    for percentage in PERCENTAGES {
        let place = (samples.len() * percentage / 100).min(samples.len() - 1);
        let time = milliseconds(samples[place].total);
        match percentage {
            100 => writeln!(text, " 100%  {time:>5} (longest request)")?,
            _ => writeln!(text, "  {percentage}%  {time:>5}")?,
        }
    }
    Ok(())
}

/// The maximum time of each percentage of requests (`-e`). For fewer than 50 requests, ab reads the
/// 99th percentile beyond the end of its array; here it is the last value.
fn csv(samples: &[Sample]) -> String {
    let mut text = String::from("Percentage served,Time in ms\n");
    for percentage in 0..=100 {
        let place = (0.5 + samples.len() as f64 * f64::from(percentage) / 100.0) as usize;
        let place = if percentage == 0 {
            0
        } else {
            place.min(samples.len() - 1)
        };
        let time = samples[place].total.as_secs_f64() * 1000.0;
        let _ = writeln!(text, "{percentage},{time:.3}");
    }
    text
}

/// One line per request, from the quickest to the slowest (`-g`). The time has the format of
/// `apr_ctime`, which pads the day with a zero instead of a space as in ctime(3).
fn gnuplot(samples: &[Sample], zone: &TimeZone) -> String {
    let mut text = String::from("starttime\tseconds\tctime\tdtime\tttime\twait\n");
    for sample in samples {
        let start = sample.wall.saturating_sub(sample.total);
        let seconds = i64::try_from(start.as_secs()).unwrap_or_default();
        let start = Timestamp::from_second(seconds).unwrap_or_default();
        let start = start
            .to_zoned(zone.clone())
            .strftime("%a %b %d %H:%M:%S %Y");
        let times = [
            sample.connect,
            processing(sample),
            sample.total,
            sample.wait,
        ]
        .map(milliseconds);
        let [connect, processing, total, wait] = times;
        let _ = writeln!(
            text,
            "{start}\t{seconds}\t{connect}\t{processing}\t{total}\t{wait}"
        );
    }
    text
}

fn processing(sample: &Sample) -> Duration {
    sample.total.saturating_sub(sample.connect)
}

/// A time in milliseconds, rounded like ab's microseconds.
fn milliseconds(time: Duration) -> i64 {
    i64::try_from((time.as_micros() + 500) / 1000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample with these times in microseconds, which ended on 3 November 2026 at 08:11:10 UTC.
    fn sample(connect: u64, wait: u64, total: u64) -> Sample {
        Sample {
            wall: Duration::from_secs(1_793_693_470),
            connect: Duration::from_micros(connect),
            wait: Duration::from_micros(wait),
            total: Duration::from_micros(total),
        }
    }

    #[test]
    fn files_are_those_of_apachebench() {
        let samples = sorted(&[
            sample(0, 1_500_000, 2_000_499),
            sample(499, 900, 1_500),
            sample(0, 900, 1_499),
            sample(500, 800, 1_500),
        ]);
        // The output of ab with the clock set to that day.
        let rows = "starttime\tseconds\tctime\tdtime\tttime\twait\n\
            Tue Nov 03 08:11:09 2026\t1793693469\t0\t1\t1\t1\n\
            Tue Nov 03 08:11:09 2026\t1793693469\t1\t1\t2\t1\n\
            Tue Nov 03 08:11:09 2026\t1793693469\t0\t1\t2\t1\n\
            Tue Nov 03 08:11:07 2026\t1793693467\t0\t2000\t2000\t1500\n";
        assert_eq!(gnuplot(&samples, &TimeZone::UTC), rows);
        let lines = csv(&samples);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(
            lines[..3],
            ["Percentage served,Time in ms", "0,1.499", "1,1.499"]
        );
        assert_eq!((lines[13], lines[14]), ("12,1.499", "13,1.500"));
        assert_eq!((lines[101], lines.len()), ("100,2000.499", 102));
    }
}
