//! Reads access logs in nginx's format `combined`, in `common`, which ends before the referer, or
//! in a format of the configuration.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use super::client::Request;
use super::format::Format;

/// Maximum length of a line, in bytes; a longer line counts as several lines, none of which is a
/// request.
const LINE_LENGTH_MAX: u64 = 64 * 1024;

/// The first bytes of a file compressed by gzip.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// The last requests of a log, at most `limit`, and the number of lines without a request that can
/// be repeated with this scheme.
pub(super) fn read(
    path: &Path,
    format: Option<&Format>,
    scheme: &str,
    limit: usize,
) -> io::Result<(Vec<Request>, usize)> {
    let mut file = BufReader::new(File::open(path)?);
    let read = |line: &[u8]| match format {
        // Lines from before a change of the format may have one of the standard formats.
        Some(format) => format.request(line, scheme).or_else(|| request(line)),
        None => request(line),
    };
    if file.fill_buf()?.starts_with(GZIP) {
        let file = flate2::bufread::MultiGzDecoder::new(file);
        parse(BufReader::new(file), read, limit)
    } else {
        parse(file, read, limit)
    }
}

fn parse(
    mut log: impl BufRead,
    request: impl Fn(&[u8]) -> Option<Request>,
    limit: usize,
) -> io::Result<(Vec<Request>, usize)> {
    let mut requests = VecDeque::new();
    let mut left_out = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        if log
            .by_ref()
            .take(LINE_LENGTH_MAX)
            .read_until(b'\n', &mut line)?
            == 0
        {
            return Ok((requests.into(), left_out));
        }
        match request(line.trim_ascii_end()) {
            Some(request) => {
                requests.push_back(request);
                if requests.len() > limit {
                    requests.pop_front();
                }
            }
            None => left_out += 1,
        }
    }
}

/// Parses `ADDRESS - USER [TIME] "METHOD TARGET VERSION" STATUS BYTES "REFERER" "AGENT"`, where the
/// last two fields may be missing.
fn request(line: &[u8]) -> Option<Request> {
    let behind_time = memchr_pair(line, b"] \"")?;
    let (request, rest) = quoted(line.get(behind_time..)?)?;
    let (is_head, target) = request_line(&request)?;
    let mut values = rest.splitn(2, |byte| *byte == b'"').skip(1);
    let values = values.next().unwrap_or_default();
    let (referer, rest) = quoted(values).unwrap_or_default();
    let agent = rest.iter().position(|byte| *byte == b'"');
    let agent = agent.and_then(|at| quoted(rest.get(at + 1..)?));
    let (agent, _) = agent.unwrap_or_default();
    Some(Request {
        is_head,
        target,
        host: None,
        referer: sendable(referer),
        user_agent: sendable(agent),
    })
}

/// Parses a request line `METHOD TARGET VERSION` with GET or HEAD: whether the method is HEAD, and
/// the target.
pub(super) fn request_line(request: &[u8]) -> Option<(bool, Vec<u8>)> {
    let mut words = request.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_whole = words.next().is_none() && version.starts_with(b"HTTP/");
    method_and_target(method, target).filter(|_| is_whole)
}

/// For GET and HEAD: whether the method is HEAD, and the target.
pub(super) fn method_and_target(method: &[u8], target: &[u8]) -> Option<(bool, Vec<u8>)> {
    let is_head = match method {
        b"GET" => false,
        b"HEAD" => true,
        _ => return None,
    };
    // A target that is invalid in a request line cannot be sent.
    let is_target = target.starts_with(b"/") && target.iter().all(|byte| *byte > b' ');
    is_target.then(|| (is_head, target.to_vec()))
}

/// A header's value that can be sent. A dash stands for a missing header; a value with control
/// characters cannot be sent.
pub(super) fn sendable(value: Vec<u8>) -> Option<Vec<u8>> {
    let is_sendable = value.iter().all(|byte| *byte >= b' ' && *byte != 0x7f);
    (is_sendable && !value.is_empty() && value != b"-").then_some(value)
}

/// The position after the first occurrence of `pattern` in a text.
fn memchr_pair(text: &[u8], pattern: &[u8]) -> Option<usize> {
    let mut windows = text.windows(pattern.len());
    Some(windows.position(|window| window == pattern)? + pattern.len())
}

/// The text before the next quote, with `\xHH` decoded, and the text after the quote.
fn quoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let end = text.iter().position(|byte| *byte == b'"')?;
    let (value, rest) = text.split_at_checked(end)?;
    Some((unescape(value), rest.get(1..)?))
}

/// The byte that two hexadecimal digits stand for.
pub(super) fn hexadecimal(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = digit(high).zip(digit(low));
    pair.and_then(|(high, low)| u8::try_from(high * 16 + low).ok())
}

pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        let escaped = match after {
            [b'x', high, low, ..] if *byte == b'\\' => hexadecimal(*high, *low),
            _ => None,
        };
        out.push(escaped.unwrap_or(*byte));
        rest = match escaped {
            Some(_) => after.get(3..).unwrap_or_default(),
            None => after,
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_out_as_they_were_sent() {
        let combined = br#"127.0.0.1 - ann [22/Nov/2026:01:00:00 +0000] "GET /a?b=\x22c HTTP/1.1" 200 5 "http://x/" "agent \x5C 1""#;
        assert_eq!(
            request(combined),
            Some(Request {
                is_head: false,
                target: b"/a?b=\"c".to_vec(),
                host: None,
                referer: Some(b"http://x/".to_vec()),
                user_agent: Some(b"agent \\ 1".to_vec()),
            })
        );
        let common = br#"::1 - - [22/Nov/2026:01:00:00 +0000] "HEAD / HTTP/1.0" 200 0"#;
        assert_eq!(
            request(common),
            Some(Request {
                is_head: true,
                target: b"/".to_vec(),
                host: None,
                referer: None,
                user_agent: None,
            })
        );
        for line in [
            &br#"::1 - - [x] "POST / HTTP/1.1" 200 0 "-" "-""#[..],
            br#"::1 - - [x] "GET /" 400 0 "-" "-""#,
            br#"::1 - - [x] "\x16\x03\x01" 400 0 "-" "-""#,
            br#"::1 - - [x] "" 400 0 "-" "-""#,
            br#"::1 - - [x] "GET /a b HTTP/1.1" 400 0 "-" "-""#,
            br#"{"uri":"/"}"#,
            b"",
        ] {
            assert_eq!(request(line), None, "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn the_last_requests_count() {
        let line = |path: u32| format!("- - - [x] \"GET /{path} HTTP/1.1\" 200 0 \"-\" \"-\"\n");
        let text = format!("{}nonsense\n{}{}", line(1), line(2), line(3));
        let (requests, left_out) = parse(text.as_bytes(), request, 2).unwrap();
        let targets: Vec<&[u8]> = requests.iter().map(|request| &*request.target).collect();
        assert_eq!(targets, [b"/2", b"/3"]);
        assert_eq!(left_out, 1);
    }
}
