//! Two transcripts beside each other: what differs, part by part.
//!
//! Made equal is only what must differ between two runs: the Date and what is counted from it,
//! nginx's version, a multipart boundary, the size of chunks and of what is compressed, durations,
//! names of temporary files.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

use support::date::http_date;

use crate::case::value;
use crate::client::Response;
use crate::program::NAME;
use crate::run::{Seen, Transcript, hash};

/// Bodies up to this length are shown whole.
const BODY_SHOWN_MAX: usize = 2_000;

/// What a difference is in, in the order in which causes come before their effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// The run itself: a start refused, an early end, an alert.
    Alarm,
    Status,
    Field,
    Framing,
    Body,
    Trailer,
    Ending,
    Upstream,
    Access,
    Error,
    Files,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The conversation that it is in; `None` where it is of the whole run.
    pub(crate) conversation: Option<usize>,
    pub(crate) part: Part,
    /// What exactly: a field's name, a variable's, the kind of a message.
    pub(crate) key: String,
    pub(crate) reference: String,
    pub(crate) subject: String,
}

impl Difference {
    /// What differences of one fault have in common, by which a run counts them: the kind with the
    /// two statuses, or with the looks of the two values.
    pub(crate) fn signature(&self) -> String {
        let looks = |text: &str| match text {
            "" => String::from("nothing"),
            "-" | "(none)" | "(not there)" => String::from(text),
            _ if self.part == Part::Status => text.chars().take(60).collect(),
            _ if text.parse::<f64>().is_ok() => String::from("number"),
            _ if text.contains(": ") && self.part == Part::Access => String::from("list"),
            _ => String::from("text"),
        };
        let detailed = matches!(self.part, Part::Status | Part::Access | Part::Field);
        let (one, other) = if detailed {
            (looks(&self.reference), looks(&self.subject))
        } else {
            (String::new(), String::new())
        };
        format!("{:?} {} {one} | {other}", self.part, self.key)
    }

    /// The part and the key.
    pub(crate) fn name(&self) -> String {
        format!("{:?} {}", self.part, self.key)
    }

    /// What two differences have in common that may have one cause.
    pub(crate) fn kind(&self) -> (Part, &str) {
        (self.part, &self.key)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "{:?} {}", self.part, self.key)?;
        writeln!(
            f,
            "    nginx:    {}",
            self.reference.replace('\n', "\n              ")
        )?;
        write!(
            f,
            "    tidegate: {}",
            self.subject.replace('\n', "\n              ")
        )
    }
}

/// Every difference, those of the same conversation in the order of [`Part`].
pub(crate) fn differences(reference: &Transcript, subject: &Transcript) -> Vec<Difference> {
    let mut found = Found::default();
    if reference.alarms != subject.alarms {
        let first = |alarms: &[String]| alarms.first().map_or(String::from("(none)"), Clone::clone);
        let key = message_kind(
            subject
                .alarms
                .first()
                .or(reference.alarms.first())
                .map_or("", String::as_str),
        );
        found.add(
            Part::Alarm,
            &key,
            first(&reference.alarms),
            first(&subject.alarms),
        );
    }
    for (index, (left, right)) in reference
        .conversations
        .iter()
        .zip(&subject.conversations)
        .enumerate()
    {
        found.conversation = Some(index);
        let (left, right) = (even(left), even(right));
        found.seen(&left, &right);
    }
    found.conversation = None;
    let names = reference.files.keys().chain(subject.files.keys());
    for name in names.collect::<std::collections::BTreeSet<_>>() {
        let of = |transcript: &Transcript| {
            transcript
                .files
                .get(name)
                .map_or(String::from("(not there)"), Clone::clone)
        };
        let complete = reference.alarms.is_empty() && subject.alarms.is_empty();
        if complete && of(reference) != of(subject) {
            found.add(
                Part::Files,
                "tree",
                format!("{name}: {}", of(reference)),
                format!("{name}: {}", of(subject)),
            );
        }
    }
    found
        .differences
        .sort_by_key(|difference| (difference.conversation, difference.part));
    found.differences
}

#[derive(Default)]
struct Found {
    conversation: Option<usize>,
    differences: Vec<Difference>,
}

impl Found {
    fn add(&mut self, part: Part, key: &str, reference: String, subject: String) {
        let key = String::from(key);
        self.differences.push(Difference {
            conversation: self.conversation,
            part,
            key,
            reference,
            subject,
        });
    }

    fn same(&mut self, part: Part, key: &str, reference: &str, subject: &str) {
        if reference != subject {
            self.add(part, key, String::from(reference), String::from(subject));
        }
    }

    fn seen(&mut self, left: &Seen, right: &Seen) {
        let shown = |seen: &Seen| {
            seen.heard
                .answers
                .iter()
                .map(|answers| statuses(answers))
                .collect::<Vec<_>>()
                .join(" | ")
        };
        if left.heard.answers.len() != right.heard.answers.len() {
            self.add(Part::Status, "answers", shown(left), shown(right));
        }
        for (left, right) in left.heard.answers.iter().zip(&right.heard.answers) {
            self.answers(left, right);
        }
        self.same(
            Part::Ending,
            "connection",
            &format!("{:?}", left.heard.ending),
            &format!("{:?}", right.heard.ending),
        );
        self.same(
            Part::Ending,
            "rest",
            &left.heard.rest.escape_ascii().to_string(),
            &right.heard.rest.escape_ascii().to_string(),
        );
        self.upstream(left, right);
        self.access(left, right);
        self.errors(left, right);
    }

    fn answers(&mut self, left: &[Response], right: &[Response]) {
        // Where only one has interim ones, the last ones still answer the same.
        let (mut left, mut right) = (left, right);
        if statuses(left) != statuses(right) {
            self.add(Part::Status, "status", statuses(left), statuses(right));
            let last = |answers: &[Response]| answers.len().saturating_sub(1);
            (left, right) = (&left[last(left)..], &right[last(right)..]);
            if statuses(left) != statuses(right) {
                return;
            }
        }
        for (left, right) in left.iter().zip(right) {
            self.fields(left, right);
            self.same(Part::Framing, "framing", left.framing, right.framing);
            self.same(
                Part::Framing,
                "cut",
                &left.cut.to_string(),
                &right.cut.to_string(),
            );
            // Where exactly an answer is cut is chance.
            if left.body != right.body && !(left.cut && right.cut) {
                self.add(Part::Body, "body", shown(&left.body), shown(&right.body));
            }
            self.same(
                Part::Trailer,
                "trailers",
                &left.trailers.join("\n"),
                &right.trailers.join("\n"),
            );
        }
    }

    fn fields(&mut self, left: &Response, right: &Response) {
        if left.fields == right.fields {
            return;
        }
        let by_name = |answer: &Response| {
            let mut by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for (name, value) in &answer.fields {
                by_name
                    .entry(name.to_ascii_lowercase())
                    .or_default()
                    .push(format!("{name}: {value}"));
            }
            by_name
        };
        let (lefts, rights) = (by_name(left), by_name(right));
        let mut any = false;
        for name in lefts
            .keys()
            .chain(rights.keys())
            .collect::<std::collections::BTreeSet<_>>()
        {
            if lefts.get(name) != rights.get(name) {
                let text = |fields: &BTreeMap<String, Vec<String>>| {
                    fields
                        .get(name)
                        .map_or(String::from("(none)"), |lines| lines.join("\n"))
                };
                self.add(Part::Field, name, text(&lefts), text(&rights));
                any = true;
            }
        }
        if !any {
            let order = |answer: &Response| {
                answer
                    .fields
                    .iter()
                    .map(|(name, _)| name.as_str())
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            self.add(Part::Field, "order", order(left), order(right));
        }
    }

    fn upstream(&mut self, left: &Seen, right: &Seen) {
        if left.upstream == right.upstream {
            return;
        }
        let all = |seen: &Seen| {
            let texts = seen.upstream.iter().map(|record| {
                record
                    .bytes
                    .escape_ascii()
                    .to_string()
                    .replace("\\r\\n", "\n")
            });
            texts
                .map(|text| text.chars().take(BODY_SHOWN_MAX).collect::<String>())
                .collect::<Vec<_>>()
                .join("\n----\n")
        };
        if left.upstream.len() != right.upstream.len() {
            self.add(Part::Upstream, "number of requests", all(left), all(right));
            let (fewer, mut more, is_left) = if left.upstream.len() < right.upstream.len() {
                (&left.upstream, right.upstream.clone(), true)
            } else {
                (&right.upstream, left.upstream.clone(), false)
            };
            for asked in fewer {
                match more.iter().position(|other| other == asked) {
                    Some(at) => drop(more.remove(at)),
                    None => {
                        let text = asked
                            .bytes
                            .escape_ascii()
                            .to_string()
                            .replace("\\r\\n", "\n");
                        let none = String::from("(not asked)");
                        let (one, other) = if is_left { (text, none) } else { (none, text) };
                        self.add(Part::Upstream, "request", one, other);
                    }
                }
            }
            return;
        }
        for (left, right) in left.upstream.iter().zip(&right.upstream) {
            self.same(
                Part::Upstream,
                "cut",
                &left.cut.to_string(),
                &right.cut.to_string(),
            );
            if left.bytes == right.bytes {
                continue;
            }
            let halves = |record: &crate::upstream::Recorded| {
                let bytes = &record.bytes;
                let at = crate::upstream::find(bytes, b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
                let (head, body) = bytes.split_at(at);
                let head = head.escape_ascii().to_string().replace("\\r\\n", "\n");
                let joined = crate::upstream::chunks_joined(body);
                let joined = joined.filter(|_| record.is_chunked());
                (head, joined.unwrap_or_else(|| body.to_vec()))
            };
            let ((left_head, left_body), (right_head, right_body)) = (halves(left), halves(right));
            if left_head != right_head {
                let pairs = left_head.lines().zip(right_head.lines());
                let differs = pairs.clone().find(|(one, other)| one != other);
                let key = match differs {
                    Some((one, other)) => {
                        let name = |line: &str| {
                            line.split_once(':')
                                .map_or(String::from("line"), |(name, _)| name.to_ascii_lowercase())
                        };
                        if name(one) == name(other) {
                            name(one)
                        } else {
                            format!("{} or {}", name(one), name(other))
                        }
                    }
                    None => String::from("last line"),
                };
                self.add(Part::Upstream, &key, left_head, right_head);
            } else if left_body != right_body && !left.cut {
                self.add(
                    Part::Upstream,
                    "body",
                    shown(&left_body),
                    shown(&right_body),
                );
            }
        }
    }

    fn access(&mut self, left: &Seen, right: &Seen) {
        let line = |values: &Vec<(String, String)>| {
            values
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let lines = |seen: &Seen| seen.access.iter().map(line).collect::<Vec<_>>().join("\n");
        if left.access.len() != right.access.len() {
            self.add(Part::Access, "number of lines", lines(left), lines(right));
        }
        // Where lines lack, those of a request of which none does are still the same.
        let of = |seen: &Seen, number: &str| {
            let lines = seen.access.iter();
            lines
                .filter(|line| value(line, "connection_requests") == number)
                .count()
        };
        let complete = |line: &&Vec<(String, String)>| {
            let number = value(line, "connection_requests");
            of(left, number) == of(right, number)
        };
        let streams = |seen: &Seen| {
            seen.upstream
                .iter()
                .any(crate::upstream::Recorded::is_chunked)
        };
        // The more chunks a body takes, the more bytes.
        let by_chance = streams(left) && streams(right);
        let lefts = left.access.iter().filter(complete);
        let rights = right.access.iter().filter(complete);
        for (left, right) in lefts.zip(rights) {
            for ((name, one), (_, other)) in left.iter().zip(right) {
                if by_chance && name == "upstream_bytes_sent" {
                    continue;
                }
                self.same(Part::Access, name, one, other);
            }
        }
    }

    fn errors(&mut self, left: &Seen, right: &Seen) {
        let mut only_left = left.errors.clone();
        let mut only_right = Vec::new();
        for line in &right.errors {
            match only_left.iter().position(|known| known == line) {
                Some(at) => drop(only_left.remove(at)),
                None => only_right.push(line.clone()),
            }
        }
        let none = || String::from(crate::differences::NO_LINE);
        for line in only_left {
            let same = |other: &String| happening(other) == happening(&line);
            let other = only_right.iter().position(same);
            let other = other.map_or_else(none, |at| only_right.remove(at));
            self.add(Part::Error, &message_kind(&line), line, other);
        }
        for line in only_right {
            self.add(Part::Error, &message_kind(&line), none(), line);
        }
    }
}

/// What a line tells of, so that two lines about one thing are compared with each other: its kind
/// without what was being done.
fn happening(text: &str) -> String {
    let text = text.replace("epoll_wait() reported that ", "");
    let kind = message_kind(&text);
    let end = kind.find(" while ").unwrap_or(kind.len());
    kind[..end].to_owned()
}

/// A message without its numbers, names and the end that tells of the request.
fn message_kind(text: &str) -> String {
    let text = text.split(", client: ").next().unwrap_or(text);
    let mut kind = String::new();
    let mut quoted = false;
    for c in text.chars() {
        if c == '"' {
            quoted = !quoted;
        }
        let digit = c.is_ascii_digit() && kind.ends_with('9');
        if !digit && (!quoted || c == '"') {
            kind.push(if c.is_ascii_digit() { '9' } else { c });
        }
    }
    kind.chars().take(100).collect()
}

/// The status lines of answers.
pub(crate) fn statuses(answers: &[Response]) -> String {
    let lines: Vec<&str> = answers
        .iter()
        .map(|answer| {
            if answer.status_line.is_empty() {
                "(no head)"
            } else {
                answer.status_line.as_str()
            }
        })
        .collect();
    if lines.is_empty() {
        String::from("(no answer)")
    } else {
        lines.join(", ")
    }
}

/// A body as it is shown.
pub(crate) fn shown(body: &[u8]) -> String {
    if body.len() > BODY_SHOWN_MAX {
        return format!(
            "{} bytes, hash {:016x}: {} ... {}",
            body.len(),
            hash(body),
            body[..100].escape_ascii(),
            body[body.len() - 100..].escape_ascii()
        );
    }
    body.escape_ascii()
        .to_string()
        .replace("\\n", "\n")
        .replace("\\r", "")
}

/// The length of `HTTP/1.1 100 Continue` with its empty line.
pub(crate) const CONTINUE_LENGTH: usize = 25;

/// The same with all made equal that must differ.
fn even(seen: &Seen) -> Seen {
    let mut even = seen.clone();
    let mut wire_lengths = Vec::new();
    // An interim head counts as part of the body that follows.
    let mut interim = 0;
    let numbered = even.heard.answers.iter_mut().enumerate();
    let each =
        numbered.flat_map(|(number, answers)| answers.iter_mut().map(move |one| (number, one)));
    for (number, answer) in each {
        let compressed = answer
            .field("content-encoding")
            .is_some_and(|coding| coding != "identity");
        // Of nothing there is but one length.
        let is_by_chance = (answer.framing == "chunked" || compressed) && answer.wire_length > 0;
        if is_by_chance {
            wire_lengths.push((number, (interim + answer.wire_length).to_string()));
        }
        interim = match answer.status() {
            100 => interim + CONTINUE_LENGTH,
            _ => 0,
        };
        even_answer(answer);
    }
    even.heard.rest = with_one_version(&without_dates(&even.heard.rest));
    for values in &mut even.access {
        even_access(values, &wire_lengths);
    }
    for line in &mut even.errors {
        *line = even_excess(&even_text(line));
    }
    even
}

/// The line of a limit with the excess rounded up to whole requests: what it has lost since they
/// came tells how many milliseconds have passed.
fn even_excess(text: &str) -> String {
    let parts = || {
        let (before, rest) = text.split_once(" requests, excess: ")?;
        let (excess, after) = rest.split_once(' ')?;
        let (whole, thousandths) = excess.split_once('.')?;
        let whole: u64 = whole.parse().ok()?;
        let begun = u64::from(thousandths.parse::<u64>().ok()? > 0);
        Some((before, whole + begun, after))
    };
    match parts() {
        Some((before, excess, after)) => format!("{before} requests, excess: {excess} {after}"),
        None => String::from(text),
    }
}

/// An answer without what must differ between two runs.
pub(crate) fn even_answer(answer: &mut Response) {
    if answer.field("content-encoding") == Some("gzip") && answer.status() != 206 {
        let mut body = Vec::new();
        if flate2::read::MultiGzDecoder::new(answer.body.as_slice())
            .read_to_end(&mut body)
            .is_ok()
        {
            answer.body = body;
        }
    }
    let date = answer.field("date").and_then(http_date);
    let boundary = answer
        .field("content-type")
        .and_then(|value| value.split_once("boundary="))
        .map(|(_, text)| String::from(text));
    if let Some(boundary) = &boundary {
        answer.body = replaced(&answer.body, boundary.as_bytes(), b"BOUNDARY");
    }
    answer.body = without_counts(with_one_version(&answer.body));
    for (name, value) in &mut answer.fields {
        if let Some(boundary) = &boundary {
            *value = value.replace(boundary.as_str(), "BOUNDARY");
        }
        *value = even_text(value);
        // A time within minutes of the answer's own counts from it.
        let near = |then: i64| {
            date.map(|now| then - now)
                .filter(|distance| distance.abs() < 400 * 86_400)
        };
        match name.to_ascii_lowercase().as_str() {
            "date" => {
                *value = if http_date(value).is_some_and(|then| then > 1_700_000_000) {
                    String::from("(now)")
                } else {
                    value.clone()
                }
            }
            "expires" | "last-modified" => {
                if let Some(distance) = http_date(value).and_then(near) {
                    *value = format!(
                        "(now {:+})",
                        if name.eq_ignore_ascii_case("expires") {
                            distance
                        } else {
                            0
                        }
                    );
                }
            }
            // A tag of a file that the run has written begins with its time.
            "etag" => {
                let seconds = value
                    .trim_start_matches("W/")
                    .trim_matches('"')
                    .split_once('-')
                    .and_then(|(time, _)| i64::from_str_radix(time, 16).ok());
                if let (Some(time), Some((_, rest))) =
                    (seconds.and_then(near), value.split_once('-'))
                {
                    let _ = time;
                    *value = format!("(now)-{rest}");
                }
            }
            _ => {}
        }
    }
}

/// What stands for a value that is chance.
pub(crate) const SOMETHING: &str = "(something)";

/// What stands for the length of a body of which the client has received as much as the line says.
pub(crate) const AS_RECEIVED: &str = "as received";

/// `wire_lengths` are the lengths, by the request's number from 0, that are not told before they
/// are sent.
fn even_access(values: &mut [(String, String)], wire_lengths: &[(usize, String)]) {
    let of = |values: &[(String, String)], name: &str| {
        values
            .iter()
            .find(|(known, _)| known == name)
            .and_then(|(_, value)| value.parse::<u64>().ok())
    };
    let (all, body) = (of(values, "bytes_sent"), of(values, "body_bytes_sent"));
    let request = of(values, "connection_requests").unwrap_or_default();
    let as_received = body.is_some_and(|body| {
        let body = body.to_string();
        let mut lengths = wire_lengths.iter();
        lengths.any(|(number, length)| *number as u64 + 1 == request && *length == body)
    });
    for (name, value) in values {
        *value = match name.as_str() {
            "body_bytes_sent" if as_received => String::from(AS_RECEIVED),
            "bytes_sent" if as_received => {
                format!("{} and the body", all.unwrap_or(0) - body.unwrap_or(0))
            }
            "gzip_ratio" | "request_body_file" | "request_id" if value != "-" => {
                String::from(SOMETHING)
            }
            name if name.ends_with("_time") => value
                .split_inclusive([',', ':'])
                .map(|part| {
                    let shown: String = part
                        .chars()
                        .filter(|c| !c.is_ascii_digit() && *c != '.')
                        .collect();
                    if part.contains(|c: char| c.is_ascii_digit()) {
                        format!("T{shown}")
                    } else {
                        shown
                    }
                })
                .collect(),
            // The number is one of those that temporary files get, too.
            "sent_http_content_type" if value.contains("boundary=") => {
                let (kind, _) = value
                    .split_once("boundary=")
                    .unwrap_or((value.as_str(), ""));
                format!("{kind}boundary=BOUNDARY")
            }
            _ => even_text(value),
        };
    }
}

fn even_text(text: &str) -> String {
    let mut text = text.replace("nginx/1.22.1", NAME);
    // How far above its rate a client is goes by the millisecond.
    const EXCESS: &str = "requests, excess: ";
    if let Some(at) = text.find(EXCESS).map(|at| at + EXCESS.len()) {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let end = text[at..].find(|c| !is_number(c));
        let end = end.map_or(text.len(), |length| at + length);
        text.replace_range(at..end, "NUMBER");
    }
    // The number of a temporary file: temp/body/0000000012.
    match text.find("/000") {
        Some(at) => {
            let end = text[at + 1..]
                .find(|c: char| !c.is_ascii_digit())
                .map_or(text.len(), |length| at + 1 + length);
            if end - at > 10 {
                // Its folders are of its last digits: temp/body12/1/00/0000000001.
                let is_level = |c: char| c.is_ascii_digit() || c == '/';
                let before = text[..at].trim_end_matches(is_level);
                let folder = text[before.len()..at].split('/').next().unwrap_or("");
                format!("{before}{folder}/NUMBER{}", &text[end..])
            } else {
                text
            }
        }
        None => text,
    }
}

/// The bytes without the numbers of `stub_status`, which count what this program asks beside the
/// requests; how many digits they have is the same (see [`crate::program`]).
fn without_counts(mut bytes: Vec<u8>) -> Vec<u8> {
    const FIRST: &[u8] = b"active connections: ";
    const LAST: &[u8] = b"waiting: ";
    // A `sub_filter` may have changed some of the letters.
    let words = bytes.to_ascii_lowercase();
    let mut from = 0;
    while let Some(start) = crate::upstream::find(&words[from..], FIRST) {
        let start = from + start;
        let Some(last) = crate::upstream::find(&words[start..], LAST) else {
            break;
        };
        let rest = start + last + LAST.len();
        let number = bytes[rest..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let end = rest + number.count();
        for byte in &mut bytes[start..end] {
            if byte.is_ascii_digit() {
                *byte = b'N';
            }
        }
        from = end;
    }
    bytes
}

/// The bytes with one name of all versions.
fn with_one_version(bytes: &[u8]) -> Vec<u8> {
    replaced(bytes, b"nginx/1.22.1", NAME.as_bytes())
}

/// The bytes without the values of `Date`.
fn without_dates(bytes: &[u8]) -> Vec<u8> {
    const NAME: &[u8] = b"\r\nDate: ";
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = crate::upstream::find(rest, NAME) {
        out.extend_from_slice(&rest[..at + NAME.len()]);
        rest = &rest[at + NAME.len()..];
        rest = &rest[crate::upstream::find(rest, b"\r\n").unwrap_or(0)..];
    }
    out.extend_from_slice(rest);
    out
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = crate::upstream::find(rest, from) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}
