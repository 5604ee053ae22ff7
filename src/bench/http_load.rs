//! `tidegate bench http_load`: the options and the report of http_load, which is no longer packaged
//! anywhere.
//!
//! Supported are `-parallel N` or `-rate N`, `-fetches N` or `-seconds N`, `-timeout N`, and a file
//! of URLs, which are fetched in random order with one connection per request. Bytes are those of
//! bodies. Other options of http_load (`-checksum`, `-throttle`, `-jitter`, `-proxy`, `-sip`,
//! `-verbose`) are refused.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use engine::EngineKind;
use load::plan::{self, Arrivals, Expect, Length, Order, Protocol, Request, Server, Spacing};
use load::tally::RequestError;
use load::tls::{Settings, TlsFactory};
use load::{Plan, RunResult, Sample, Target, machine};
use process::Interrupt;

use super::ForeignArguments;

const USAGE: &str = "usage:  tidegate bench http_load [-timeout secs] -parallel N | -rate N  -fetches N | -seconds N  url_file";

/// Maximum number of concurrent connections with `-rate`, as in http_load.
const PARALLEL_BY_RATE: usize = 1000;

pub(super) fn run(called: ForeignArguments) -> ExitCode {
    match bench(&called) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("http_load: {text}");
            ExitCode::FAILURE
        }
    }
}

fn bench(called: &ForeignArguments) -> Result<String, String> {
    let interrupt = Interrupt::take().map_err(|error| format!("signals: {error}"))?;
    let plan = Arc::new(plan(called)?);
    for warning in machine::prepare(&plan) {
        eprintln!("warning: {warning}");
    }
    let outcome =
        load::run(&plan, |_| !interrupt.has_arrived()).map_err(|error| error.to_string())?;
    for limit in machine::limits(&outcome) {
        eprintln!("warning: the tool was the limit: {limit}");
    }
    Ok(report(&outcome))
}

fn plan(called: &ForeignArguments) -> Result<Plan, String> {
    let (mut parallel, mut rate, mut length, mut file) = (None, None, None, None);
    let mut timeout = Duration::from_secs(60);
    let mut arguments = called
        .arguments
        .iter()
        .map(|argument| argument.to_string_lossy());
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().and_then(|value| value.parse::<u32>().ok());
            value.filter(|value| *value > 0).ok_or(USAGE)
        };
        match &*argument {
            "-parallel" | "-p" => parallel = Some(number()?),
            "-rate" | "-r" => rate = Some(number()?),
            "-fetches" | "-f" => length = Some(Length::Requests(number()?.into())),
            "-seconds" | "-s" => length = Some(Length::Time(Duration::from_secs(number()?.into()))),
            "-timeout" | "-t" => timeout = Duration::from_secs(number()?.into()),
            option if option.starts_with('-') || file.is_some() => return Err(USAGE.to_owned()),
            path => file = Some(path.to_owned()),
        }
    }
    let (Some(length), Some(file), true) = (length, file, parallel.is_some() != rate.is_some())
    else {
        return Err(USAGE.to_owned());
    };
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    // http_load accepts any certificate.
    let maker = TlsFactory::new(Settings {
        insecure: true,
        ..Settings::default()
    });
    let mut servers: Vec<Server> = Vec::new();
    for url in text.split_whitespace() {
        let target = Target::parse(url, &called.allow_remote).map_err(|error| error.to_string())?;
        let (path, host) = (&target.path, &target.authority);
        let head = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nUser-Agent: http_load\r\n\r\n");
        let request = Request::http1(head.into_bytes(), false);
        plan::add(&mut servers, &target, request, &maker).map_err(|error| error.to_string())?;
    }
    if servers.is_empty() {
        return Err(format!("{file}: there is no URL"));
    }
    Ok(Plan {
        servers,
        protocol: Protocol::Http1,
        bodies: Vec::new(),
        order: Order::Random,
        connections: parallel.map_or(PARALLEL_BY_RATE, |parallel| parallel as usize),
        threads: 1,
        length,
        warmup: Duration::ZERO,
        pipeline: 1,
        new_connections: true,
        ramp: Duration::ZERO,
        think_time: Duration::ZERO,
        random_think_time: false,
        arrivals: rate.map(|rate| Arrivals {
            rate: rate.into(),
            spacing: Spacing::Constant,
        }),
        timeout,
        expect: Expect {
            any_status: true,
            ..Expect::default()
        },
        sources: Vec::new(),
        engine: EngineKind::Epoll,
        interface: None,
        seed: 1,
        samples: true,
        intervals: false,
    })
}

fn report(outcome: &RunResult) -> String {
    let tally = &outcome.tally;
    let (fetches, bytes) = (tally.completed, tally.body_bytes as f64);
    let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
    let mut text = String::new();
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    line(format!(
        "{fetches} fetches, {} max parallel, {} bytes, in {} seconds",
        outcome.parallel,
        general(bytes),
        general(seconds)
    ));
    line(format!(
        "{} mean bytes/connection",
        general(bytes / (fetches.max(1) as f64))
    ));
    line(format!(
        "{} fetches/sec, {} bytes/sec",
        general(fetches as f64 / seconds),
        general(bytes / seconds)
    ));
    line(format!(
        "msecs/connect: {}",
        times(&outcome.samples, |sample| sample.connect)
    ));
    line(format!(
        "msecs/first-response: {}",
        times(&outcome.samples, |sample| sample.wait)
    ));
    let timeouts =
        tally.failures(RequestError::Timeout) + tally.failures(RequestError::ConnectTimeout);
    for (count, what) in [
        (timeouts, "timeouts"),
        (
            tally.failures(RequestError::ClosedInBody) + tally.failures(RequestError::WrongLength),
            "bad byte counts",
        ),
        (tally.broken() - timeouts, "connections failed"),
    ] {
        if count > 0 {
            line(format!("{count} {what}"));
        }
    }
    text.push_str("HTTP response codes:\n");
    for (status, count) in tally.statuses() {
        let _ = writeln!(text, "  code {status:3} -- {count}");
    }
    text
}

/// The mean, the maximum and the minimum, in milliseconds.
fn times(samples: &[Sample], time: fn(&Sample) -> Duration) -> String {
    let times = || {
        samples
            .iter()
            .map(|sample| time(sample).as_secs_f64() * 1000.0)
    };
    let mean = times().sum::<f64>() / (samples.len().max(1) as f64);
    let max = times().fold(0.0, f64::max);
    let min = times().reduce(f64::min).unwrap_or_default();
    format!(
        "{} mean, {} max, {} min",
        general(mean),
        general(max),
        general(min)
    )
}

/// Formats a number like C's `%g`: six significant digits, with an exponent only for very large or
/// small values.
fn general(value: f64) -> String {
    let scientific = format!("{value:.5e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let trim = |digits: &str| {
        if digits.contains('.') {
            digits
                .trim_end_matches('0')
                .trim_end_matches('.')
                .to_owned()
        } else {
            digits.to_owned()
        }
    };
    if (-4..6).contains(&exponent) {
        return trim(&format!(
            "{value:.*}",
            (5 - exponent).unsigned_abs() as usize
        ));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(digits), exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_printf() {
        // Values from the report in http_load's manual page.
        for (value, text) in [
            (95_249_400.0, "9.52494e+07"),
            (10.0, "10"),
            (100_580.0, "100580"),
            (94.7, "94.7"),
            (0.811_796, "0.811796"),
            (142.79, "142.79"),
            (22.0, "22"),
            (0.0, "0"),
            (0.000_012_345_67, "1.23457e-05"),
            (999_999.9, "1e+06"),
        ] {
            assert_eq!(general(value), text);
        }
    }
}
