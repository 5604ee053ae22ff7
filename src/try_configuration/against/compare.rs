//! The comparison of responses.
//!
//! Not compared: properties of the connection or of the time, the server's name, the port in a
//! redirect to the server itself, and everything that differs between two responses of the running
//! server to the same request.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::client::{Client, Request, ServerResponse};
use super::error_log::ErrorLogs;

/// Headers that depend on the connection, the time or the server's name.
const IGNORED: [&str; 7] = [
    "date",
    "server",
    "age",
    "connection",
    "keep-alive",
    "transfer-encoding",
    // Follows from the body, which is compared except for HEAD.
    "content-length",
];

/// Maximum number of requests whose differences are printed.
const PRINTED_MAX: usize = 100;

/// Redirect statuses; their targets are not requested.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// One of the two compared servers.
pub(super) struct ComparedServer {
    pub(super) client: Client,
    pub(super) port: u16,
}

/// The state of a comparison.
pub(super) struct Comparison {
    ignored: Vec<String>,
    /// Differences by request.
    found: BTreeMap<String, RequestDifferences>,
    /// Number of requests whose responses only differ where the running server's own vary.
    varying: usize,
    /// Number of responses that were the same redirect on both servers.
    redirects: usize,
    /// The trial's error logs, which contain the reasons for its errors.
    error_logs: ErrorLogs,
}

/// The differences between the responses to a request.
#[derive(Default)]
struct RequestDifferences {
    differences: Vec<Difference>,
    /// Number of times that the request was sent.
    count: usize,
    /// The line of the trial's error log about the request.
    logged: Option<String>,
}

/// The result of a comparison.
pub(super) struct ComparisonReport {
    /// The requests with different responses, with the differences.
    pub(super) text: String,
    pub(super) different: usize,
    pub(super) varying: usize,
    pub(super) redirects: usize,
}

/// A difference in one aspect of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Difference {
    /// `status`, the name of a header, or `body`.
    aspect: String,
    live: String,
    trial: String,
}

/// The compared aspects of a response, with their values.
type Aspects = BTreeMap<String, String>;

impl Comparison {
    /// An empty comparison that ignores headers with these names.
    pub(super) fn new(ignored: &[String], error_logs: ErrorLogs) -> Comparison {
        let own = IGNORED.iter().map(|name| (*name).to_owned());
        let further = ignored.iter().map(|name| name.to_ascii_lowercase());
        Comparison {
            ignored: own.chain(further).collect(),
            found: BTreeMap::new(),
            varying: 0,
            redirects: 0,
            error_logs,
        }
    }

    /// Sends a request to both servers and compares the responses. The error names the server that
    /// has not answered.
    pub(super) fn ask(
        &mut self,
        request: &Request,
        live: &mut ComparedServer,
        trial: &mut ComparedServer,
    ) -> Result<(), String> {
        let first = |side: &mut ComparedServer, name: &str| {
            let answer = side.client.ask(request);
            let answer = answer.map_err(|error| format!("the {name} server gave {error}"))?;
            let aspects = self.aspects(request, &answer, side.port);
            Ok::<_, String>((answer.status, aspects))
        };
        let (expected_status, expected) = first(live, "running")?;
        let (status, found) = first(trial, "tried")?;
        let mut differences = differences(&expected, &found);
        if differences.is_empty() {
            self.redirects += usize::from(REDIRECTS.contains(&status));
            return Ok(());
        }
        // Aspects that vary between two responses of the running server are not compared.
        let (_, again) = first(live, "running")?;
        let before = differences.len();
        differences.retain(|one| again.get(&one.aspect) == expected.get(&one.aspect));
        if differences.is_empty() {
            self.varying += usize::from(before > 0);
        } else {
            let entry = self.found.entry(request.to_string()).or_default();
            entry.differences = differences;
            entry.count += 1;
            let has_failed = status >= 500 && expected_status != status;
            if has_failed && entry.logged.is_none() {
                entry.logged = self.error_logs.last_line(request);
            }
        }
        Ok(())
    }

    /// The result of the comparison.
    pub(super) fn report(&self) -> ComparisonReport {
        let mut text = String::new();
        for (request, found) in self.found.iter().take(PRINTED_MAX) {
            let times = if found.count > 1 {
                format!("  ({} times)", found.count)
            } else {
                String::new()
            };
            let _ = writeln!(text, "{request}{times}");
            for Difference {
                aspect,
                live,
                trial,
            } in &found.differences
            {
                let _ = writeln!(text, "  {aspect}: {live} → {trial}");
            }
            if let Some(line) = &found.logged {
                let _ = writeln!(text, "  its log: {line}");
            }
        }
        if let Some(more) = self.found.len().checked_sub(PRINTED_MAX + 1) {
            let _ = writeln!(text, "… and {} more", more + 1);
        }
        ComparisonReport {
            text,
            different: self.found.values().map(|found| found.count).sum(),
            varying: self.varying,
            redirects: self.redirects,
        }
    }

    /// The compared aspects of a response.
    fn aspects(&self, request: &Request, answer: &ServerResponse, port: u16) -> Aspects {
        let mut aspects = Aspects::new();
        aspects.insert("status".to_owned(), answer.status.to_string());
        for (name, value) in &answer.headers {
            if self.ignored.contains(&name.to_ascii_lowercase()) {
                continue;
            }
            let value = value.escape_ascii().to_string();
            let value = if name.eq_ignore_ascii_case("location") {
                without_port(&value, port)
            } else {
                value
            };
            // Values of a repeated header are joined.
            aspects
                .entry(name.clone())
                .and_modify(|values| values.push_str(&format!(", {value}")))
                .or_insert(value);
        }
        let server = header(answer, "server").unwrap_or_default();
        if request.is_head {
            let length = header(answer, "content-length").unwrap_or("none");
            let length = without_server_name(answer, length, server);
            aspects.insert("length".to_owned(), length);
        } else {
            aspects.insert("body".to_owned(), body(answer, server));
        }
        aspects
    }
}

/// The differences between two responses, with the status first and the body last.
fn differences(live: &Aspects, trial: &Aspects) -> Vec<Difference> {
    let order = |aspect: &str| match aspect {
        "status" => 0,
        "body" | "length" => 2,
        _ => 1,
    };
    let mut names: Vec<&String> = live.keys().chain(trial.keys()).collect();
    names.sort_by_key(|name| (order(name), *name));
    names.dedup();
    let shown = |value: Option<&String>| value.map_or("(none)".to_owned(), String::clone);
    let difference = |name: &String| Difference {
        aspect: name.clone(),
        live: shown(live.get(name)),
        trial: shown(trial.get(name)),
    };
    names
        .into_iter()
        .filter(|name| live.get(*name) != trial.get(*name))
        .map(difference)
        .collect()
}

fn header<'a>(answer: &'a ServerResponse, wanted: &str) -> Option<&'a str> {
    let mut headers = answer.headers.iter();
    let found = headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
    found.and_then(|(_, value)| std::str::from_utf8(value).ok())
}

/// A redirect target without its port, if the port is the server's own.
fn without_port(location: &str, port: u16) -> String {
    let schemes = ["http://", "https://"];
    let of = |scheme: &'static str| Some((scheme, location.strip_prefix(scheme)?));
    let Some((scheme, rest)) = schemes.into_iter().find_map(of) else {
        return location.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end).unwrap_or((rest, ""));
    let own = format!(":{port}");
    let host = authority.strip_suffix(&own).unwrap_or(authority);
    format!("{scheme}{host}{path}")
}

/// The length and digest of a body. At the end of a page that the server has generated, the
/// server's name is removed.
fn body(answer: &ServerResponse, server: &str) -> String {
    let digest = |length: u64, digest: u64| format!("{length} bytes ({digest:016x})");
    let name = format!("<hr><center>{server}</center>");
    let page = answer
        .body
        .whole()
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
        .filter(|page| !server.is_empty() && answer.status >= 300 && page.contains(&name));
    match page {
        Some(page) => {
            use std::hash::Hasher;
            let page = page.replace(&name, "<hr><center></center>");
            let mut hasher = std::hash::DefaultHasher::new();
            hasher.write(page.as_bytes());
            digest(page.len() as u64, hasher.finish())
        }
        None => digest(answer.body.length, answer.body.digest()),
    }
}

/// The length that the response to a HEAD request announces; for a page that the server has
/// generated, without the length of the server's name.
fn without_server_name(answer: &ServerResponse, length: &str, server: &str) -> String {
    let is_page = answer.status >= 300
        && header(answer, "content-type").is_some_and(|kind| kind.starts_with("text/html"));
    let bare = length
        .parse::<usize>()
        .ok()
        .and_then(|length| length.checked_sub(server.len()))
        .filter(|_| is_page);
    bare.map_or(length.to_owned(), |bare| {
        format!("{bare} and the server's name")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_to_the_server_itself_names_no_port() {
        assert_eq!(without_port("http://a:81/b", 81), "http://a/b");
        assert_eq!(without_port("https://a:81/b", 81), "https://a/b");
        assert_eq!(without_port("http://a/b:81", 81), "http://a/b:81");
        assert_eq!(without_port("http://a:82/b", 81), "http://a:82/b");
        assert_eq!(without_port("/b", 81), "/b");
    }

    #[test]
    fn differences_are_named_in_order() {
        let aspects = |pairs: &[(&str, &str)]| -> Aspects {
            let pairs = pairs.iter();
            pairs
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect()
        };
        let live = aspects(&[("status", "200"), ("X", "1"), ("body", "a"), ("Y", "2")]);
        let trial = aspects(&[("status", "404"), ("X", "1"), ("body", "b"), ("A", "3")]);
        let found = differences(&live, &trial);
        let found: Vec<String> = found
            .iter()
            .map(|one| format!("{} {} {}", one.aspect, one.live, one.trial))
            .collect();
        assert_eq!(
            found,
            ["status 200 404", "A (none) 3", "Y 2 (none)", "body a b"]
        );
    }
}
