//! Entries formatted as lines, as detailed pages and as JSON.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::json::Writer;
use proto::date;
use store::disk::{Fault, Head, ListedEntry, Origin};

/// The column titles above the lines.
pub(super) const TITLE: &str = "STATE         FOR         SIZE   UNUSED  KEY";

/// The time that all ages are relative to.
pub(super) struct ReportTime {
    millis: i64,
}

impl ReportTime {
    pub(super) fn read() -> ReportTime {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let millis = since.unwrap_or_default().as_millis();
        ReportTime {
            millis: i64::try_from(millis).unwrap_or(i64::MAX),
        }
    }

    /// Milliseconds elapsed since a time.
    fn since(&self, millis: i64) -> i64 {
        self.millis.saturating_sub(millis)
    }
}

/// Whether an entry is fresh or stale.
enum State {
    /// Fresh for this many more milliseconds.
    Fresh(i64),
    /// Stale for this many milliseconds.
    Stale(i64),
    Damaged,
}

impl State {
    /// The state of an entry at this time.
    fn of(listed: &ListedEntry, now: &ReportTime) -> State {
        match &listed.head {
            Err(_) => State::Damaged,
            Ok(head) => match now.since(head.times.valid_until) {
                late if late > 0 => State::Stale(late),
                late => State::Fresh(late.saturating_neg()),
            },
        }
    }

    fn name(&self) -> &'static str {
        match self {
            State::Fresh(_) => "fresh",
            State::Stale(_) => "stale",
            State::Damaged => "damaged",
        }
    }
}

/// A line of the list.
pub(super) fn line(listed: &ListedEntry, now: &ReportTime) -> String {
    let state = State::of(listed, now);
    let time = match state {
        State::Fresh(millis) | State::Stale(millis) => span(millis),
        State::Damaged => "-".to_owned(),
    };
    let unused = unused(listed, now).map_or_else(|| "-".to_owned(), span_of);
    let key = listed.key.as_deref().map_or_else(String::new, text);
    let (name, size) = (state.name(), listed.length);
    let mut line = format!("{name:<7} {time:>9} {size:>12} {unused:>8}  {key}");
    match &listed.head {
        Ok(head) if !head.vary.is_empty() => {
            let _ = write!(line, "  [Vary: {}]", text(&head.vary));
        }
        Ok(_) => {}
        Err(fault) => {
            let _ = write!(line, "  [{} {fault}]", listed.path);
        }
    }
    line
}

/// All details of an entry. `body` is the result of verifying its checksum; `None` if there is no
/// checksum.
pub(super) fn whole(
    listed: &ListedEntry,
    body: Option<Result<(), Fault>>,
    now: &ReportTime,
) -> String {
    let mut page = String::new();
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(page, "{name:<9}{value}");
    };
    row("key", &listed.key.as_deref().map_or_else(String::new, text));
    row("file", &listed.path);
    let head = match &listed.head {
        Ok(head) => head,
        Err(fault) => {
            row("state", &format!("damaged: the file {fault}"));
            return page;
        }
    };
    let until = at(head.times.valid_until);
    row(
        "state",
        &match State::of(listed, now) {
            State::Fresh(left) => format!("fresh until {until}, for {}", span(left)),
            State::Stale(late) => format!("stale since {until}, for {}", span(late)),
            State::Damaged => String::new(),
        },
    );
    let stored = head.times.received;
    row(
        "stored",
        &format!("{}, {} ago", at(stored), span(now.since(stored))),
    );
    if let Some(unused) = unused(listed, now) {
        row("used", &format!("{} ago", span_of(unused)));
    }
    for (name, seconds) in [
        ("updating", head.times.updating),
        ("on error", head.times.error),
    ] {
        if seconds > 0 {
            row(name, &format!("{seconds}s beyond that"));
        }
    }
    let length = head.body_length.unwrap_or(0);
    let checked = match body {
        None => "not checked: it has no checksum".to_owned(),
        Some(Ok(())) => "its checksum is right".to_owned(),
        Some(Err(fault)) => format!("the file {fault}"),
    };
    row("body", &format!("{length} bytes, {checked}"));
    if !head.vary.is_empty() {
        row("vary", &text(&head.vary));
    }
    if let Some(variant) = head.variant {
        row("variant", &variant.to_string());
    }
    if !head.group.is_empty() {
        row("slice of", &text(&head.group));
    }
    let tags: Vec<String> = head.tags().map(text).collect();
    if !tags.is_empty() {
        row("tags", &tags.join(" "));
    }
    row("by", writer(head));
    page.push('\n');
    for line in head.text.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if !line.is_empty() {
            let _ = writeln!(page, "{}", text(line));
        }
    }
    page
}

/// An entry as a JSON object. `body` as in [`whole`], if it has been verified.
pub(super) fn json(
    listed: &ListedEntry,
    body: Option<Option<Result<(), Fault>>>,
    now: &ReportTime,
) -> String {
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut json = Writer::default();
    json.object(|json| {
        match &listed.key {
            Some(key) => json.key("key").string(&lossy(key)),
            None => json.key("key").null(),
        }
        json.key("file").string(&listed.path);
        json.key("state").string(State::of(listed, now).name());
        json.key("size").number(listed.length);
        if let Some(unused) = unused(listed, now) {
            json.key("unused").number(unused.as_secs());
        }
        let head = match &listed.head {
            Ok(head) => head,
            Err(fault) => return json.key("fault").string(&fault.to_string()),
        };
        json.key("stored").number(head.times.received / 1000);
        json.key("fresh_until")
            .number(head.times.valid_until / 1000);
        json.key("body_length")
            .number(head.body_length.unwrap_or(0));
        if let Some(body) = &body {
            match body {
                None => json.key("body_right").null(),
                Some(checked) => json.key("body_right").boolean(checked.is_ok()),
            }
        }
        json.key("vary").string(&lossy(&head.vary));
        if let Some(variant) = head.variant {
            json.key("variant").string(&variant.to_string());
        }
        if !head.group.is_empty() {
            json.key("slice_of").string(&lossy(&head.group));
        }
        json.key("tags").array(|json| {
            head.tags().for_each(|tag| json.string(&lossy(tag)));
        });
        json.key("by").string(writer(head));
        json.key("head").string(&lossy(&head.text));
    });
    String::from_utf8_lossy(&json.into_bytes()).into_owned()
}

fn writer(head: &Head) -> &'static str {
    match head.origin {
        Origin::Own => "tidegate",
        Origin::Nginx => "nginx",
    }
}

/// Time since an entry was last used by the saved index or was stored, whichever is shorter.
fn unused(listed: &ListedEntry, now: &ReportTime) -> Option<Duration> {
    let stored = listed.head.as_ref().ok().map(|head| head.times.received);
    let stored = stored.and_then(|stored| u64::try_from(now.since(stored)).ok());
    let stored = stored.map(Duration::from_millis);
    match (listed.unused, stored) {
        (Some(unused), Some(stored)) => Some(unused.min(stored)),
        (unused, stored) => unused.or(stored),
    }
}

/// A key or a header line for a terminal: control characters are escaped.
fn text(bytes: &[u8]) -> String {
    let mut text = String::new();
    for character in String::from_utf8_lossy(bytes).chars() {
        if character.is_control() {
            text.extend(character.escape_default());
        } else {
            text.push(character);
        }
    }
    text
}

/// A date, from milliseconds since 1970.
fn at(millis: i64) -> String {
    let mut text = [0; date::HTTP_LENGTH];
    date::format_http(millis.div_euclid(1000), &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn span(millis: i64) -> String {
    span_of(Duration::from_millis(millis.max(0).unsigned_abs()))
}

/// A time in its two largest units.
fn span_of(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match () {
        () if days > 0 => format!("{days}d{}h", hours % 24),
        () if hours > 0 => format!("{hours}h{}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m{}s", seconds % 60),
        () => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units() {
        let spans = [0, 999, 59_999, 60_000, 3_599_000, 3_600_000, 90_061_000];
        let told = spans.map(span);
        assert_eq!(told, ["0s", "0s", "59s", "1m0s", "59m59s", "1h0m", "1d1h"]);
        assert_eq!(span(-5), "0s");
    }

    #[test]
    fn controls_do_not_reach_the_terminal() {
        assert_eq!(text(b"a\x1b[2J\r\xffb"), "a\\u{1b}[2J\\r\u{fffd}b");
        assert_eq!(text("ä\"'".as_bytes()), "ä\"'");
    }
}
