//! What a case is over HTTP/2: its requests of HTTP/1 as header blocks and parts of bodies, or why
//! it has no meaning there.
//!
//! A case is sent over HTTP/2 where all that its client sends is whole, well-formed requests of
//! HTTP/1.1 of which HTTP/2 can say the same (RFC 9113, section 8.3.1). Nothing is left out or
//! mended: where a byte of a request has no counterpart, the case stays with HTTP/1. A body that
//! never comes whole has one, a stream that stays open.

use crate::case::{Case, Step};
use crate::http2::Fields;
use crate::tls::Offer;

/// Why a case has no meaning over HTTP/2.
pub(crate) type NoMeaning = &'static str;

/// What the client does next.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    /// Opens a stream with this head. Where streams are open they come to their end first, as
    /// pipelined requests do.
    Open { fields: Fields, ends: bool },
    /// Sends a part of the last stream's body.
    Data { bytes: Vec<u8>, ends: bool },
    /// Ends the last stream's body.
    Trailers(Fields),
    /// A step that is the same for all protocols.
    Step(Step),
}

/// The case as HTTP/2 has it.
pub(crate) fn plan(case: &Case) -> Result<Vec<Action>, NoMeaning> {
    if !case.tls.as_ref().is_none_or(Offer::may_agree_on_http2) {
        return Err("its client of TLS names other protocols");
    }
    let mut planner = Planner {
        actions: Vec::new(),
        body: Body::None,
        scheme: if case.tls.is_some() {
            b"https"
        } else {
            b"http"
        },
    };
    let mut is_whole = true;
    // Whether what comes next belongs to a request that has begun as one of HTTP/2.
    let mut is_within = false;
    for (index, step) in case.steps.iter().enumerate() {
        let mut later = case.steps.iter().skip(index + 1);
        let next = later.find(|step| !matches!(step, Step::Pause(_)));
        let ends = !matches!(
            next,
            Some(Step::Fields(_) | Step::Body(_) | Step::Unfinished)
        );
        match step {
            Step::Fields(fields) => planner.actions.push(if is_within {
                Action::Trailers(fields.clone())
            } else {
                Action::Open {
                    fields: fields.clone(),
                    ends,
                }
            }),
            Step::Body(bytes) => planner.actions.push(Action::Data {
                bytes: bytes.clone(),
                ends,
            }),
            Step::Unfinished => {}
            Step::Send(bytes) => planner.send(bytes)?,
            Step::Shut => return Err("half of its connection is closed"),
            Step::ReadToClose => return Err("it reads bytes, not responses"),
            Step::Again if !is_whole => return Err("it leaves in the middle of a request"),
            Step::Again => {
                planner.body = Body::None;
                planner.actions.push(Action::Step(step.clone()));
            }
            other => planner.actions.push(Action::Step(other.clone())),
        }
        if !matches!(step, Step::Pause(_)) {
            is_within = matches!(step, Step::Fields(_) | Step::Body(_)) && !ends;
        }
        is_whole = planner.body == Body::None;
    }
    let opens = |action: &Action| matches!(action, Action::Open { .. });
    if planner.actions.iter().any(opens) {
        Ok(planner.actions)
    } else {
        Err("it sends no request")
    }
}

/// What is to come of the body of the request that is being read.
#[derive(Debug, PartialEq)]
enum Body {
    /// Nothing: the next byte begins a request.
    None,
    /// So many bytes.
    Length(usize),
    Chunked(Chunk),
}

#[derive(Debug, PartialEq)]
enum Chunk {
    /// The line with its size, of which this has come.
    Size(Vec<u8>),
    Bytes(usize),
    /// The line's end behind its bytes, of which so much has come.
    End(usize),
    /// Behind the last chunk: what has come of the trailers and the empty line.
    Trailers(Vec<u8>),
}

struct Planner {
    actions: Vec<Action>,
    body: Body,
    scheme: &'static [u8],
}

impl Planner {
    fn send(&mut self, bytes: &[u8]) -> Result<(), NoMeaning> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = match std::mem::replace(&mut self.body, Body::None) {
                Body::None => self.head(rest)?,
                Body::Length(left) => {
                    let (part, behind) = rest.split_at(left.min(rest.len()));
                    let left = left - part.len();
                    self.data(part, left == 0);
                    if left > 0 {
                        self.body = Body::Length(left);
                    }
                    behind
                }
                Body::Chunked(chunk) => self.chunk(chunk, rest)?,
            };
        }
        Ok(())
    }

    /// A part of the body. Parts that come together are one.
    fn data(&mut self, part: &[u8], now_ends: bool) {
        match self.actions.last_mut() {
            Some(Action::Data { bytes, ends }) => {
                bytes.extend_from_slice(part);
                *ends = now_ends;
            }
            _ if part.is_empty() && !now_ends => {}
            _ => self.actions.push(Action::Data {
                bytes: part.to_vec(),
                ends: now_ends,
            }),
        }
    }

    /// Goes on in a chunked body. Returns what is behind what was read.
    fn chunk<'a>(&mut self, chunk: Chunk, rest: &'a [u8]) -> Result<&'a [u8], NoMeaning> {
        const BAD: NoMeaning = "its chunks are malformed";
        let (next, behind) = match chunk {
            Chunk::Size(mut line) => {
                let (part, behind) = up_to_line_feed(rest);
                line.extend_from_slice(part);
                match line.strip_suffix(b"\r\n") {
                    None if line.ends_with(b"\n") => return Err(BAD),
                    None => (Chunk::Size(line), behind),
                    Some(text) => match chunk_size(text).ok_or(BAD)? {
                        0 => (Chunk::Trailers(Vec::new()), behind),
                        size => (Chunk::Bytes(size), behind),
                    },
                }
            }
            Chunk::Bytes(left) => {
                let (part, behind) = rest.split_at(left.min(rest.len()));
                self.data(part, false);
                match left - part.len() {
                    0 => (Chunk::End(0), behind),
                    left => (Chunk::Bytes(left), behind),
                }
            }
            Chunk::End(read) => match (read, rest.split_first()) {
                (0, Some((b'\r', behind))) => (Chunk::End(1), behind),
                (1, Some((b'\n', behind))) => (Chunk::Size(Vec::new()), behind),
                _ => return Err(BAD),
            },
            Chunk::Trailers(mut text) => {
                let (part, behind) = up_to_line_feed(rest);
                text.extend_from_slice(part);
                if text != b"\r\n" && !text.ends_with(b"\r\n\r\n") {
                    self.body = Body::Chunked(Chunk::Trailers(text));
                    return Ok(behind);
                }
                let lines = text.strip_suffix(b"\r\n").unwrap_or_default();
                match fields(lines)? {
                    trailers if trailers.is_empty() => self.data(&[], true),
                    trailers => self.actions.push(Action::Trailers(trailers)),
                }
                return Ok(behind);
            }
        };
        self.body = Body::Chunked(next);
        Ok(behind)
    }

    /// Reads a request's head. Returns what is behind it.
    fn head<'a>(&mut self, rest: &'a [u8]) -> Result<&'a [u8], NoMeaning> {
        let end = rest.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.ok_or("a head does not come whole and at once")?;
        let (head, behind) = rest.split_at(end + 4);
        let line_end = head.windows(2).position(|window| window == b"\r\n");
        let (line, lines) = head.split_at(line_end.unwrap_or_default() + 2);
        let lines = lines.strip_suffix(b"\r\n").unwrap_or_default();
        let (method, target) = request_line(line)?;
        let mut all = Fields::new();
        let mut pseudo = |name: &str, value: &[u8]| all.push((name.into(), value.to_vec()));
        let mut rest_of_fields = fields(lines)?;
        let authority = take_host(&mut rest_of_fields)?;
        self.body = body_of(&mut rest_of_fields)?;
        pseudo(":method", method);
        pseudo(":scheme", self.scheme);
        pseudo(":path", target);
        pseudo(":authority", &authority);
        all.extend(rest_of_fields);
        self.actions.push(Action::Open {
            fields: all,
            ends: self.body == Body::None,
        });
        Ok(behind)
    }
}

fn up_to_line_feed(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    bytes.split_at(end.map_or(bytes.len(), |at| at + 1))
}

/// The size of a chunk; extensions say nothing over HTTP/2 and so there are none.
fn chunk_size(line: &[u8]) -> Option<usize> {
    let is_number = !line.is_empty() && line.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(line).ok().filter(|_| is_number)?;
    usize::from_str_radix(text, 16).ok()
}

/// The method and the target, a path.
fn request_line(line: &[u8]) -> Result<(&[u8], &[u8]), NoMeaning> {
    const BAD: NoMeaning = "a request line is malformed";
    let line = line.strip_suffix(b"\r\n").ok_or(BAD)?;
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), version, None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(BAD);
    };
    if version != Some(b"HTTP/1.1") {
        return Err("a request is not of HTTP/1.1");
    }
    if method.is_empty() || !method.iter().all(|byte| is_token(*byte)) {
        return Err(BAD);
    }
    match target.first() {
        Some(b'/') if target.iter().all(|byte| *byte > b' ' && *byte != 0x7f) => {}
        Some(b'*') if target.len() == 1 => {}
        Some(b'/') | None => return Err(BAD),
        Some(_) => return Err("a target is no path"),
    }
    Ok((method, target))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The lines of a head or of trailers as fields, with names in lower case.
fn fields(lines: &[u8]) -> Result<Fields, NoMeaning> {
    const BAD: NoMeaning = "a field is malformed";
    let mut fields = Fields::new();
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r\n").ok_or(BAD)?;
        let colon = line.iter().position(|byte| *byte == b':').ok_or(BAD)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
            return Err(BAD);
        }
        if value.iter().any(|byte| matches!(byte, b'\0' | b'\r')) {
            return Err(BAD);
        }
        let name = name.to_ascii_lowercase();
        match name.as_slice() {
            b"connection" | b"keep-alive" | b"proxy-connection" | b"upgrade"
            | b"http2-settings" => {
                return Err("a field is about its connection");
            }
            b"te" if value != b"trailers" => return Err("a field is about its connection"),
            _ => fields.push((name, value.to_vec())),
        }
    }
    Ok(fields)
}

/// Takes the one `Host` out of the fields.
fn take_host(fields: &mut Fields) -> Result<Vec<u8>, NoMeaning> {
    const BAD: NoMeaning = "a request does not name its host, or more than one";
    let hosts = fields.iter().filter(|(name, _)| name == b"host").count();
    let at = fields.iter().position(|(name, _)| name == b"host");
    match at {
        Some(at) if hosts == 1 && !fields[at].1.is_empty() => Ok(fields.remove(at).1),
        _ => Err(BAD),
    }
}

/// How a request's body is framed. `Transfer-Encoding` is taken out: frames say the same.
fn body_of(fields: &mut Fields) -> Result<Body, NoMeaning> {
    const BAD: NoMeaning = "it is not clear where a body ends";
    let values = |wanted: &[u8]| -> Vec<Vec<u8>> {
        let of_name = fields.iter().filter(|(name, _)| name == wanted);
        of_name.map(|(_, value)| value.clone()).collect()
    };
    let (lengths, codings) = (values(b"content-length"), values(b"transfer-encoding"));
    match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => Ok(Body::None),
        ([length], []) => {
            let is_number = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(length).ok().filter(|_| is_number);
            match text.and_then(|text| text.parse().ok()).ok_or(BAD)? {
                0 => Ok(Body::None),
                length => Ok(Body::Length(length)),
            }
        }
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => {
            fields.retain(|(name, _)| name != b"transfer-encoding");
            Ok(Body::Chunked(Chunk::Size(Vec::new())))
        }
        _ => Err(BAD),
    }
}
