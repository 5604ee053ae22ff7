//! `tidegate try --against URL`: the requests of an access log, sent to the running server and to
//! the trial, and where their answers differ.
//!
//! One request after the other on one connection to each, at a bounded rate. Only GET and HEAD are
//! sent: they change nothing. Cookies, bodies and conditions are not in a log, so they are not
//! sent either.

mod client;
mod compare;
mod log;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::listen::Address;
use super::rewrite::Moved;
use client::{Client, Request};
use compare::{Comparison, Side};

/// Options of `--against`.
#[derive(clap::Args)]
#[group(skip)]
pub(super) struct Arguments {
    /// Send the requests of an access log to this server, too (`http://HOST[:PORT]`), print where
    /// the answers differ, and end: with 0 where none does, 1 where one does, 2 where it could not
    /// be found out
    #[arg(long, value_name = "URL")]
    against: Option<String>,
    /// The access log, in the format `combined` or `common`, maybe compressed by gzip; without it
    /// the first of the configuration
    #[arg(long, value_name = "FILE", requires = "against")]
    log: Option<PathBuf>,
    /// How many requests are sent, the last of the log
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 1000,
        requires = "against"
    )]
    limit: usize,
    /// How many requests are sent in a second
    #[arg(long, value_name = "NUMBER", default_value_t = 100, requires = "against",
        value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// The Host header of every request; without it that of the URL
    #[arg(long, value_name = "NAME", requires = "against")]
    host: Option<String>,
    /// A response header that is not compared; may be repeated
    #[arg(long, value_name = "NAME", requires = "against")]
    ignore_header: Vec<String>,
}

/// Everything that is known before the first request.
pub(super) struct Replay {
    requests: Vec<Request>,
    lines_left_out: usize,
    interval: Duration,
    live: Side,
    trial: Side,
    comparison: Comparison,
}

/// How a replay ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every answer was the same.
    Same,
    /// Some were not.
    Different,
    /// Some request had no answer.
    Failed,
}

impl Arguments {
    /// What is to be replayed, if anything; the error is a line to print.
    pub(super) fn replay(
        &self,
        moved: &[Moved],
        access_logs: &[PathBuf],
    ) -> Result<Option<Replay>, String> {
        let Some(url) = &self.against else {
            return Ok(None);
        };
        let (host, port) = parse_url(url)?;
        let path = match (&self.log, access_logs) {
            (Some(path), _) => path,
            (None, [first, ..]) => first,
            (None, []) => return Err("the configuration names no access log: --log does".into()),
        };
        let (requests, lines_left_out) = log::read(path, self.limit).map_err(|error| {
            process::log::failure(&format!("open() \"{}\" failed", path.display()), &error)
        })?;
        if requests.is_empty() {
            return Err(nothing_to_send(path, lines_left_out));
        }
        let (trial_host, trial_port) = target(moved, port)
            .ok_or("the trial listens on no port that requests could be sent to")?;
        let host_header = self.host.clone().unwrap_or_else(|| match port {
            80 => host.clone(),
            port => format!("{host}:{port}"),
        });
        let side = |host: &str, port| Side {
            client: Client::new(host, port, &host_header),
            port,
        };
        Ok(Some(Replay {
            requests,
            lines_left_out,
            interval: Duration::from_secs(1) / self.rate,
            live: side(&host, port),
            trial: side(&trial_host, trial_port),
            comparison: Comparison::new(&self.ignore_header),
        }))
    }
}

fn nothing_to_send(path: &Path, lines_left_out: usize) -> String {
    let path = path.display();
    format!(
        "{path} holds no GET or HEAD in the format combined or common ({lines_left_out} other lines)"
    )
}

/// Host and port of a URL.
fn parse_url(url: &str) -> Result<(String, u16), String> {
    if url.starts_with("https:") {
        return Err(format!("{url}: https is not spoken yet"));
    }
    let invalid = || format!("{url} is no URL of the form http://HOST[:PORT]");
    let authority = url.strip_prefix("http://").ok_or_else(invalid)?;
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| invalid())?),
        _ => (authority, 80),
    };
    if host.is_empty() || host.contains(['/', '?', '#', '@']) {
        return Err(invalid());
    }
    Ok((host.to_owned(), port))
}

/// Where the trial listens in the place of a port, or anywhere.
fn target(moved: &[Moved], port: u16) -> Option<(String, u16)> {
    let is_for = |moved: &&Moved| match Address::parse(&moved.old) {
        Some(Address::Inet { ports, .. }) => ports.contains(&port),
        _ => false,
    };
    let plain = || moved.iter().filter(|moved| moved.scheme == "http");
    plain()
        .find(is_for)
        .and_then(|moved| moved.new.target())
        .or_else(|| plain().find_map(|moved| moved.new.target()))
}

impl Replay {
    /// Sends everything, and prints what differs.
    pub(super) fn run(mut self) -> Outcome {
        let mut stdout = std::io::stdout();
        let begin = Instant::now();
        let mut failed = 0_usize;
        let mut due = Duration::ZERO;
        let requests = std::mem::take(&mut self.requests);
        for request in &requests {
            if let Some(pause) = due.checked_sub(begin.elapsed()) {
                std::thread::sleep(pause);
            }
            due += self.interval;
            if let Err(text) = self
                .comparison
                .ask(request, &mut self.live, &mut self.trial)
            {
                failed += 1;
                let _ = writeln!(stdout, "{request}\n  {text}");
            }
        }
        let report = self.comparison.report();
        let different = report.different;
        let _ = stdout.write_all(report.text.as_bytes());
        let same = requests.len() - failed - different;
        let _ = write!(
            stdout,
            "{} requests: {same} answered alike, {different} differently",
            requests.len()
        );
        let others = [
            (failed, "without an answer"),
            (report.varying, "vary by themselves"),
            (self.lines_left_out, "other lines of the log"),
        ];
        for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
            let _ = write!(stdout, ", {count} {what}");
        }
        let _ = writeln!(stdout);
        match (failed, different) {
            (0, 0) => Outcome::Same,
            (0, _) => Outcome::Different,
            _ => Outcome::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_a_host_and_maybe_a_port() {
        for (url, host, port) in [
            ("http://localhost", "localhost", 80),
            ("http://localhost:81/", "localhost", 81),
            ("http://[::1]", "[::1]", 80),
            ("http://[::1]:81", "[::1]", 81),
        ] {
            assert_eq!(parse_url(url), Ok((host.to_owned(), port)));
        }
        for url in [
            "localhost",
            "http://",
            "http://a/b",
            "http://a:x",
            "https://a",
            "http://u@a",
        ] {
            assert!(parse_url(url).is_err(), "{url}");
        }
    }
}
