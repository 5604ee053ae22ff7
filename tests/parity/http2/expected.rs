//! What a case is expected to look like over HTTP/2 from what it looks like over HTTP/1.
//!
//! Most answers of nginx are the same by either protocol but for what the protocol itself does:
//! names in lower case, no reason behind the status, no fields about the connection. A transcript
//! of HTTP/2 therefore holds only those cases that are more different than that.

use crate::case::CaseFile;
use crate::http2::plan::plan;
use crate::transcript::Transcript;

/// Fields that HTTP/2 does not have (RFC 9113, section 8.2.2).
const OF_CONNECTION: [&str; 4] = ["connection", "keep-alive", "transfer-encoding", "upgrade"];

/// The transcript of all cases of a file that have a meaning over HTTP/2: as `recorded` for HTTP/2,
/// else as of HTTP/1.
pub(crate) fn whole(file: &CaseFile, of_http1: &Transcript, recorded: &Transcript) -> Transcript {
    let mut whole = Transcript::default();
    for case in file.cases.iter().filter(|case| plan(case).is_ok()) {
        let text = recorded.get(&case.name).map(str::to_string);
        let text = text.or_else(|| of_http1.get(&case.name).map(translated));
        text.into_iter()
            .for_each(|text| whole.push(&case.name, text));
    }
    whole
}

/// What of `seen` is worth recording.
pub(crate) fn different(of_http1: &Transcript, seen: &Transcript) -> Transcript {
    let mut different = Transcript::default();
    for (name, text) in seen.all() {
        let expected = of_http1.get(name).map(translated);
        if expected.as_deref() != Some(text) {
            different.push(name, text.to_string());
        }
    }
    different
}

/// An observation of HTTP/1 as one of HTTP/2.
fn translated(text: &str) -> String {
    // Connections of HTTP/2 stay where those of HTTP/1 say that they close.
    let says_close = |line: &str| line.eq_ignore_ascii_case("< connection: close");
    let closes = text.lines().any(says_close);
    let lines = text.lines().filter_map(|line| match line {
        "connection closed" if closes => Some("connection kept".to_string()),
        _ => translated_line(line),
    });
    lines.map(|line| line + "\n").collect()
}

fn translated_line(line: &str) -> Option<String> {
    // Where digits are ignored each stands as 9.
    for (before, after) in [("< HTTP/1.1 ", "< HTTP/2"), ("< HTTP/9.9 ", "< HTTP/9")] {
        if let Some(status) = line.strip_prefix(before) {
            let is_asked_for = status == "100 Continue";
            let number = status.split(' ').next().unwrap_or_default();
            return (!is_asked_for).then(|| format!("{after} {number}"));
        }
    }
    let field = line
        .split_once(' ')
        .filter(|(sign, _)| matches!(*sign, "<" | "trailer"));
    if let Some((sign, (name, value))) =
        field.and_then(|(sign, field)| Some((sign, field.split_once(": ")?)))
    {
        let name = name.to_ascii_lowercase();
        let stays = !OF_CONNECTION.contains(&name.as_str());
        return stays.then(|| format!("{sign} {name}: {value}"));
    }
    // The end of a connection of HTTP/2 that is idle is no line in the log.
    if line.ends_with(" closed keepalive connection") {
        return None;
    }
    let is_log = line
        .split_once(": ")
        .is_some_and(|(name, _)| matches!(name, "access" | "error") || name.ends_with(".log"));
    Some(if is_log {
        line.replace(" HTTP/1.1\"", " HTTP/2.0\"")
    } else {
        line.to_string()
    })
}
