//! What a case's conversation looked like, as text that can be compared and committed.
//!
//! Only what must differ between two servers or two runs is normalised: the server's own name and
//! version, ports, the prefix, the Date, dates counted from now, and a multipart boundary. A body
//! that came compressed is shown as it was meant; the compressed bytes may differ.

use std::io::Read;
use std::time::{Duration, Instant};

use support::date::http_date;

use crate::case::Case;
use crate::client::{Conversation, Ending, Response};
use crate::server::Server;

/// Bodies up to this length are shown whole.
const BODY_SHOWN_MAX: usize = 4096;
/// About as long as a line of the error log gets. Of one that is cut there, the last bytes over
/// HTTP/2 are not compared with those of a transcript: how many there are depends on the number of
/// the process.
const ERROR_LINE_MAX: usize = 2046;

/// The observation of one case, line by line. `before` is the number of the last connection before
/// its.
pub(crate) fn observe(
    server: &mut Server,
    case: &Case,
    seen: &Conversation,
    before: u64,
) -> Result<String, String> {
    let names = Names::new(server, seen);
    let mut lines = Vec::new();
    for response in &seen.responses {
        render_response(response, &names, &mut lines);
    }
    lines.extend(seen.remarks.iter().map(|remark| names.replace(remark)));
    lines.push(match seen.ending {
        Ending::Kept => "connection kept".to_string(),
        Ending::Closed => "connection closed".to_string(),
        Ending::Cut => "connection closed without the end of TLS".to_string(),
        Ending::Reset => "connection reset".to_string(),
    });
    if case.timed {
        lines.push(format!(
            "took about {} s",
            (seen.elapsed.as_secs_f64() + 0.4).floor()
        ));
    }
    if let (Some(limit), Some(response)) = (case.fewer_than, seen.responses.first()) {
        lines.push(format!(
            "fewer than {limit} bytes on the wire: {}",
            response.wire_length < limit
        ));
    }
    let mut wire_lengths = seen
        .responses
        .iter()
        .filter(|response| response.status() >= 200)
        .map(|response| response.wire_length);
    for (log, line) in settled_log_lines(server, seen, before)? {
        let shown = log_line(&log, &line, &names, &mut wire_lengths);
        lines.extend(shown.map(|shown| {
            if seen.is_http2 && line.len() >= ERROR_LINE_MAX {
                shown.chars().take(ERROR_LINE_MAX - 100).collect()
            } else {
                shown
            }
        }));
    }
    let text = lines
        .into_iter()
        .map(|line| line + "\n")
        .collect::<String>();
    Ok(if case.ignore_digits {
        without_digits(&text)
    } else {
        text
    })
}

/// The log lines of one case. Those of its end may come a moment after it.
fn settled_log_lines(
    server: &mut Server,
    seen: &Conversation,
    before: u64,
) -> Result<Vec<(String, String)>, String> {
    server.pass_the_loop()?;
    server.pass_the_loop()?;
    let mut lines = server.new_log_lines();
    let start = Instant::now();
    while let Some(patience) = missing(&lines, server, seen, before + 1)
        && start.elapsed() < patience
    {
        std::thread::sleep(Duration::from_millis(5));
        lines.extend(server.new_log_lines());
    }
    // What the master process says of its workers belongs to no case.
    let of_master = |line: &str| {
        line.contains("[notice]") && (line.contains("worker process") || line.contains(": signal "))
    };
    // A note on the end of a connection that an earlier case made has come too late for that one.
    let of_earlier = |line: &str| closed_connection(line).is_some_and(|number| number <= before);
    lines.retain(|(_, line)| !of_master(line) && !of_earlier(line));
    lines.sort_by(|a, b| a.0.cmp(&b.0)); // stable: the order within a log stays
    Ok(lines)
}

/// How long it is worth to wait for lines that may still come; nothing if all are there.
///
/// `own` is the number of the case's first connection.
fn missing(
    lines: &[(String, String)],
    server: &Server,
    seen: &Conversation,
    own: u64,
) -> Option<Duration> {
    // A session's line comes when it has ended, which the server may learn of a moment later.
    if server.is_of_stream {
        let is_logged = lines.iter().any(|(log, _)| log == "stream.log");
        return (!is_logged).then(|| Duration::from_millis(500));
    }
    // Where notes are logged there is one about every connection of HTTP/1 that the client closes.
    // On a busy machine the server may learn of that later than of the next connection.
    let closed = || {
        lines
            .iter()
            .any(|(log, line)| log == "error.log" && closed_connection(line) == Some(own))
    };
    let says_so = server.logs_notes && !seen.is_http2;
    if says_so && seen.ending == Ending::Kept && !seen.responses.is_empty() && !closed() {
        return Some(Duration::from_millis(400));
    }
    let answers = seen
        .responses
        .iter()
        .filter(|response| response.status() >= 200)
        .count();
    let logged = lines.iter().filter(|(log, _)| log == "access.log").count();
    (logged < answers).then(|| Duration::from_millis(20))
}

/// The connection that a line says the client has closed:
/// `… [info] 12#13: *14 client 127.0.0.1 closed …`.
fn closed_connection(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("[info] ")?;
    let (number, text) = rest.split_once(": *")?.1.split_once(' ')?;
    text.contains(" closed ").then(|| number.parse().ok())?
}

fn render_response(response: &Response, names: &Names, lines: &mut Vec<String>) {
    let body = readable_body(response);
    // A long body is a file: no names of ours in there, and none to look for.
    let shown = if body.len() > BODY_SHOWN_MAX {
        body
    } else {
        names.replace_bytes(&body)
    };
    lines.push(if response.status_line.is_empty() {
        "an answer without a head".to_string()
    } else {
        format!("< {}", response.status_line.escape_ascii())
    });
    for (name, value) in &response.headers {
        let name = String::from_utf8_lossy(name).into_owned();
        let value = header_value(response, &name, value, shown.len(), names);
        lines.push(format!("< {name}: {value}"));
    }
    if response.cut_short {
        lines.push("the answer is cut short".to_string());
        if shown.len() > BODY_SHOWN_MAX {
            return; // where exactly is chance
        }
    }
    let kind = if is_gzip(response) { " after gzip" } else { "" };
    if shown.len() > BODY_SHOWN_MAX {
        lines.push(format!(
            "body of {} bytes{kind}, hash {:016x}",
            shown.len(),
            hash(&shown)
        ));
    } else if !shown.is_empty() {
        lines.push(format!("body of {} bytes{kind}", shown.len()));
        lines.extend(
            shown
                .split_inclusive(|byte| *byte == b'\n')
                .map(|line| format!("| {}", line.escape_ascii())),
        );
    }
    lines.extend(
        response
            .trailers
            .iter()
            .map(|trailer| format!("trailer {}", trailer.escape_ascii())),
    );
    lines.extend(response.reset.map(|code| format!("stream reset: {code:?}")));
}

fn is_gzip(response: &Response) -> bool {
    response.header("content-encoding") == Some(b"gzip")
        && !response.body.is_empty()
        && response.status() != 206
}

fn readable_body(response: &Response) -> Vec<u8> {
    if !is_gzip(response) {
        return response.body.clone();
    }
    let mut body = Vec::new();
    match flate2::read::MultiGzDecoder::new(response.body.as_slice()).read_to_end(&mut body) {
        Ok(_) => body,
        Err(error) => format!("broken gzip: {error}").into_bytes(),
    }
}

fn header_value(
    response: &Response,
    name: &str,
    value: &[u8],
    shown_length: usize,
    names: &Names,
) -> String {
    let text = value.escape_ascii().to_string();
    match name.to_ascii_lowercase().as_str() {
        "date" => {
            if http_date(&text).is_some() {
                "@DATE@".to_string()
            } else {
                text
            }
        }
        "server" => names.server(&text),
        "expires" => relative_date(response, &text),
        // A length that is true for the body as it came is true for the body as it is shown.
        "content-length"
            if !response.head && text == response.body.len().to_string() && !is_gzip(response) =>
        {
            shown_length.to_string()
        }
        // A page that the server made itself holds its name, so its length depends on that.
        "content-length" if response.head && response.status() >= 300 => {
            match text.parse::<usize>() {
                Ok(length) => format!(
                    "{} and the server's name",
                    length.saturating_sub(names.name_length(response))
                ),
                Err(_) => text,
            }
        }
        _ => names.replace(&text),
    }
}

/// A date some seconds from the answer's own is shown as that distance.
fn relative_date(response: &Response, text: &str) -> String {
    const FAR: i64 = 3 * 366 * 86_400;
    let date = response
        .header("date")
        .and_then(|date| http_date(&String::from_utf8_lossy(date)));
    match (http_date(text), date) {
        (Some(then), Some(now)) if (then - now).abs() < FAR => format!("@DATE@ {:+} s", then - now),
        _ => text.to_string(),
    }
}

/// `2026/01/02 03:04:05 [error] 12#13: *14 text` without time, process and connection; an access
/// line with its byte count checked against what came.
fn log_line(
    log: &str,
    line: &str,
    names: &Names,
    wire_lengths: &mut impl Iterator<Item = usize>,
) -> Option<String> {
    let mut line = names.replace(line);
    if log == "access.log" {
        if let (Some((head, count)), Some(length)) =
            (line.rsplit_once(" bytes="), wire_lengths.next())
            && count == length.to_string()
        {
            line = format!("{head} bytes as received");
        }
        return Some(format!("access: {line}"));
    }
    let is_error = line.as_bytes().get(4) == Some(&b'/') && line.contains(" [");
    if !is_error {
        return Some(format!("{log}: {line}"));
    }
    let (_, rest) = line.split_once(" [")?;
    let (level, rest) = rest.split_once("] ")?;
    let (_, text) = rest.split_once(": ")?;
    let text = match text.strip_prefix('*').and_then(|text| text.split_once(' ')) {
        Some((number, text)) if number.bytes().all(|byte| byte.is_ascii_digit()) => text,
        _ => text,
    };
    let text = &without_own_port(text);
    let name = if log == "error.log" {
        "error".to_string()
    } else {
        log.to_string()
    };
    // One more look of this process's own that a stop and go of it ends early.
    let own = text.starts_with("epoll_wait() failed (4: ");
    (level != "debug" && !own).then(|| format!("{name}: [{level}] {}", with_rounded_excess(text)))
}

/// What a session says of the ends of its connections, without the ports that the kernel has given
/// them: `client 127.0.0.1:51234 connected to …`.
fn without_own_port(text: &str) -> String {
    let is_of_session = ["client ", "udp client ", "proxy ", "udp proxy "]
        .iter()
        .any(|begin| text.starts_with(begin));
    match text.split_once(" connected to ") {
        Some((own, other)) if is_of_session => {
            let own = own.rsplit_once(':').map_or(own, |(own, _)| own);
            format!("{own}:@OWN@ connected to {other}")
        }
        _ => text.to_string(),
    }
}

/// An excess over a rate goes down with the milliseconds between two requests: it is rounded up to
/// a tenth.
fn with_rounded_excess(text: &str) -> String {
    const BEFORE: &str = "excess: ";
    let rounded = text.split_once(BEFORE).and_then(|(before, after)| {
        let end = after.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = after.split_at_checked(end)?;
        let tenths = (number.parse::<f64>().ok()? * 10.0).ceil() / 10.0;
        Some(format!("{before}{BEFORE}{tenths:.1}{after}"))
    });
    rounded.unwrap_or_else(|| text.to_string())
}

/// A run of digits becomes one `9`; what nginx makes a tag of is a number in hexadecimal digits. A
/// date becomes `@DATE@`, as its words are those of the day it is.
fn without_digits(text: &str) -> String {
    let dated = |line: &str| match line.split_once(": ") {
        Some((name, value)) if http_date(value).is_some() => format!("{name}: @DATE@"),
        _ => String::from(line),
    };
    let lines: Vec<String> = text.split('\n').map(dated).collect();
    let mut out = String::new();
    let mut in_tag = false;
    for c in lines.join("\n").chars() {
        in_tag = match c {
            '"' if ["ETag: \\", "ETag: ", "etag: \\", "etag: "]
                .iter()
                .any(|name| out.ends_with(name)) =>
            {
                true
            }
            '"' | '\n' => false,
            _ => in_tag,
        };
        let c = if in_tag && c.is_ascii_hexdigit() {
            '9'
        } else {
            c
        };
        if !c.is_ascii_digit() {
            out.push(c);
        } else if !out.ends_with('9') {
            out.push('9');
        }
    }
    // So are the months in the log's times.
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    for month in MONTHS {
        out = out.replace(&format!("9/{month}/9"), "9/MONTH/9");
    }
    out
}

/// FNV-1a, to tell long bodies apart.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// What must differ from server to server, and what stands in its place.
struct Names {
    version: String,
    /// Texts to replace, wherever they stand.
    texts: Vec<(String, String)>,
    /// Port numbers, replaced after a colon or an equals sign only.
    ports: Vec<(String, String)>,
}

impl Names {
    fn new(server: &Server, seen: &Conversation) -> Names {
        let mut texts = vec![(
            server.prefix.to_string_lossy().into_owned(),
            "@PREFIX@".to_string(),
        )];
        for response in &seen.responses {
            let content_type =
                String::from_utf8_lossy(response.header("content-type").unwrap_or_default())
                    .into_owned();
            if let Some((_, boundary)) = content_type.split_once("multipart/byteranges; boundary=")
            {
                texts.push((boundary.to_string(), "@BOUNDARY@".to_string()));
            }
        }
        for name in ["nginx", "tidegate"] {
            texts.push((
                format!("<center>{name}/{}</center>", server.version),
                "<center>@SERVER/VERSION@</center>".to_string(),
            ));
            texts.push((
                format!("<center>{name}</center>"),
                "<center>@SERVER@</center>".to_string(),
            ));
        }
        let mut ports: Vec<_> = server
            .ports
            .iter()
            .map(|(name, port)| (port.to_string(), format!("@{name}@")))
            .collect();
        if seen.port != 0 {
            ports.push((seen.port.to_string(), "@CLIENT@".to_string()));
        }
        Names {
            version: server.version.clone(),
            texts,
            ports,
        }
    }

    fn server(&self, text: &str) -> String {
        let with_version = ["nginx", "tidegate"]
            .iter()
            .any(|name| text == format!("{name}/{}", self.version));
        match text {
            _ if with_version => "@SERVER/VERSION@".to_string(),
            "nginx" | "tidegate" => "@SERVER@".to_string(),
            _ => self.replace(text),
        }
    }

    /// How much of a generated page is the server's name.
    fn name_length(&self, response: &Response) -> usize {
        response.header("server").map_or(0, <[u8]>::len)
    }

    fn replace(&self, text: &str) -> String {
        let mut text = text.to_string();
        for (from, to) in &self.texts {
            text = text.replace(from, to);
        }
        for (from, to) in &self.ports {
            for before in [':', '='] {
                text = text.replace(&format!("{before}{from}"), &format!("{before}{to}"));
            }
        }
        text
    }

    /// The same for a body. One byte stands for one character meanwhile, so nothing is lost.
    fn replace_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        self.replace(&text).chars().map(|c| c as u8).collect()
    }
}
