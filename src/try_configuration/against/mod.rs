//! `tidegate try --against URL`: sends the requests of an access log to the running server and to
//! the trial, and prints where the responses differ.
//!
//! Requests are sent one after the other, on one connection to each server, at a limited rate. Only
//! GET and HEAD are sent, since these change nothing. Logs do not contain cookies, bodies or
//! conditions, so these are not sent.

mod client;
mod compare;
mod error_log;
mod format;
mod log;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::listen::Address;
use super::rewrite::{Moved, Rewritten};
use client::{Client, Request};
use compare::{ComparedServer, Comparison};
use error_log::ErrorLogs;
pub(super) use format::Format;

#[derive(clap::Args)]
#[group(skip)]
pub(super) struct Arguments {
    /// Send the requests of an access log to this server, too (`http://HOST[:PORT]` or
    /// `https://HOST[:PORT]`), print where the answers differ, and end: with 0 where none does, 1
    /// where one does, 2 where it could not be found out
    #[arg(long, value_name = "URL")]
    against: Option<String>,
    /// The access log, in the format that the configuration gives it, in `combined` or in `common`,
    /// maybe compressed by gzip; without it the first of the configuration
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
    /// The Host header of every request; without it what the log has of it, else that of the URL
    #[arg(long, value_name = "NAME", requires = "against")]
    host: Option<String>,
    /// A response header that is not compared; may be repeated
    #[arg(long, value_name = "NAME", requires = "against")]
    ignore_header: Vec<String>,
}

/// A replay that is ready to start.
pub(super) struct Replay {
    requests: Vec<Request>,
    lines_left_out: usize,
    interval: Duration,
    live: ComparedServer,
    trial: ComparedServer,
    comparison: Comparison,
    /// A suggestion of a URL by which the running server is reached over TLS.
    hint: Option<String>,
}

/// The result of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplayOutcome {
    /// All responses were the same.
    Same,
    Different,
    /// A request was not answered, or most responses could not be compared.
    Failed,
}

impl Arguments {
    /// Prepares a replay if one is requested; the error is a line to print.
    pub(super) fn replay(&self, rewritten: &Rewritten) -> Result<Option<Replay>, String> {
        let Some(url) = &self.against else {
            return Ok(None);
        };
        let Url { scheme, host, port } = parse_url(url)?;
        let path = match (&self.log, &*rewritten.access_logs) {
            (Some(path), _) => path,
            (None, [first, ..]) => &first.path,
            (None, []) => return Err("the configuration names no access log: --log does".into()),
        };
        let format = rewritten.format_of(path);
        let read = log::read(path, format, scheme, self.limit);
        let (requests, lines_left_out) = read.map_err(|error| {
            process::log::failure(&format!("open() \"{}\" failed", path.display()), &error)
        })?;
        if requests.is_empty() {
            return Err(nothing_to_send(path, format.is_some(), lines_left_out));
        }
        let (trial_host, trial_port) = target(&rewritten.moved, scheme, port).ok_or_else(|| {
            format!("the trial listens on no port that requests of {scheme} could be sent to")
        })?;
        let host_header = self.host.clone().unwrap_or_else(|| match (scheme, port) {
            ("http", 80) | ("https", 443) => host.clone(),
            (_, port) => format!("{host}:{port}"),
        });
        let side = |host: &str, port| ComparedServer {
            client: Client::new(host, port, &host_header)
                .over_tls(scheme == "https")
                .with_fixed_host(self.host.is_some()),
            port,
        };
        let secure = rewritten.moved.iter().find_map(Moved::secure_port);
        Ok(Some(Replay {
            requests,
            lines_left_out,
            interval: Duration::from_secs(1) / self.rate,
            live: side(&host, port),
            trial: side(&trial_host, trial_port),
            comparison: Comparison::new(
                &self.ignore_header,
                ErrorLogs(rewritten.error_logs.clone()),
            ),
            hint: secure.filter(|_| scheme == "http").map(|port| match port {
                443 => format!("https://{host}"),
                port => format!("https://{host}:{port}"),
            }),
        }))
    }
}

fn nothing_to_send(path: &Path, has_format: bool, lines_left_out: usize) -> String {
    let path = path.display();
    let format = if has_format {
        "its format of the configuration, combined or common"
    } else {
        "the format combined or common"
    };
    format!("{path} holds no GET or HEAD in {format} ({lines_left_out} other lines)")
}

/// The address of a server.
#[derive(Debug, PartialEq, Eq)]
struct Url {
    scheme: &'static str,
    host: String,
    port: u16,
}

/// Parses a URL without a path.
fn parse_url(url: &str) -> Result<Url, String> {
    let invalid = || format!("{url} is no URL of the form http://HOST[:PORT]");
    let (scheme, authority, default) = match url.split_once("://") {
        Some(("http", authority)) => ("http", authority, 80),
        Some(("https", authority)) => ("https", authority, 443),
        _ => return Err(invalid()),
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| invalid())?),
        _ => (authority, default),
    };
    if host.is_empty() || host.contains(['/', '?', '#', '@']) {
        return Err(invalid());
    }
    let host = host.to_owned();
    Ok(Url { scheme, host, port })
}

/// The address at which the trial serves a scheme: the one that replaces this port, or else any.
fn target(moved: &[Moved], scheme: &str, port: u16) -> Option<(String, u16)> {
    let is_for = |moved: &&Moved| match Address::parse(&moved.old) {
        Some(Address::Inet { ports, .. }) => ports.contains(&port),
        _ => false,
    };
    let fitting = || moved.iter().filter(|moved| moved.scheme == scheme);
    fitting()
        .find(is_for)
        .and_then(|moved| moved.new.target())
        .or_else(|| fitting().find_map(|moved| moved.new.target()))
}

impl Replay {
    /// Sends all requests, and prints the differences.
    pub(super) fn run(mut self) -> ReplayOutcome {
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
            (report.redirects, "of them by the same redirect"),
            (failed, "without an answer"),
            (report.varying, "vary by themselves"),
            (self.lines_left_out, "other lines of the log"),
        ];
        for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
            let _ = write!(stdout, ", {count} {what}");
        }
        let _ = writeln!(stdout);
        if report.redirects * 2 > requests.len() {
            let instead = self.hint.map_or(String::new(), |url| {
                format!(": what it leads to is compared by --against {url}")
            });
            let _ = writeln!(
                stdout,
                "Most answers are the same redirect, which tells little{instead}"
            );
            return ReplayOutcome::Failed;
        }
        match (failed, different) {
            (0, 0) => ReplayOutcome::Same,
            (0, _) => ReplayOutcome::Different,
            _ => ReplayOutcome::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_a_host_and_maybe_a_port() {
        for (url, scheme, host, port) in [
            ("http://localhost", "http", "localhost", 80),
            ("http://localhost:81/", "http", "localhost", 81),
            ("http://[::1]", "http", "[::1]", 80),
            ("http://[::1]:81", "http", "[::1]", 81),
            ("https://localhost", "https", "localhost", 443),
            ("https://localhost:81", "https", "localhost", 81),
        ] {
            let host = host.to_owned();
            assert_eq!(parse_url(url), Ok(Url { scheme, host, port }));
        }
        for url in [
            "localhost",
            "http://",
            "http://a/b",
            "http://a:x",
            "ftp://a",
            "http://u@a",
        ] {
            assert!(parse_url(url).is_err(), "{url}");
        }
    }
}
