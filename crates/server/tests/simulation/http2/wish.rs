//! What clients of HTTP/2 ask, and what they must get: what clients of HTTP/1 ask and get, in the
//! other protocol's words.

use proto::h2::hpack::Field;

use crate::random::Random;
use crate::site::{self, Asked, DATE};

/// A field as it was sent or came.
pub(crate) type Line = (Vec<u8>, Vec<u8>);

/// A request and the answer that it must get.
#[derive(Clone)]
pub(crate) struct Wish {
    /// The request's fields, pseudo-fields first.
    pub(crate) fields: Vec<Line>,
    pub(crate) body: Vec<u8>,
    pub(crate) is_head: bool,
    /// The answer.
    pub(crate) status: u16,
    pub(crate) answer_fields: Vec<Line>,
    pub(crate) answer: Vec<u8>,
    /// Its line in the access log.
    pub(crate) logged: String,
}

impl Wish {
    /// The wish of an HTTP/1 request, asked over HTTP/2.
    pub(crate) fn of(asked: &Asked) -> Wish {
        let (first, lines, rest) = parts(&asked.request);
        let mut words = first.split(' ');
        let method = words.next().unwrap_or_default();
        let uri = words.next().unwrap_or_default();
        let is_head = method == "HEAD";
        let mut fields: Vec<Line> = [(":method", method), (":scheme", "http"), (":path", uri)]
            .map(|(name, value)| (name.into(), value.into()))
            .into();
        fields.push((b":authority".into(), b"site".into()));
        let is_own = |(name, _): &&Line| {
            name != b"host" && name != b"transfer-encoding" && name != b"connection"
        };
        fields.extend(lines.iter().filter(is_own).cloned());
        let (status, answer_lines, answer) = parts(&asked.response);
        Wish {
            fields,
            body: body(&lines, rest),
            is_head,
            status: status.split(' ').nth(1).unwrap().parse().unwrap(),
            answer_fields: answer_lines.iter().filter(is_own).cloned().collect(),
            answer: body(&answer_lines, answer),
            logged: asked.logged.clone(),
        }
    }

    /// Any.
    pub(crate) fn any(random: &mut Random) -> Wish {
        match random.below(6) {
            0 => Wish::of(&site::echo(random.below(150_000), random)),
            1 if random.chance(200) => Wish::of(&site::slow()),
            _ => Wish::of(&site::any(random)),
        }
    }

    /// An upload of so many bytes that comes back.
    pub(crate) fn echo(size: usize, random: &mut Random) -> Wish {
        Wish::of(&site::echo(size, random))
    }

    /// Its head for an encoder.
    pub(crate) fn head(&self) -> impl Iterator<Item = Field<'_>> {
        let lines = self.fields.iter();
        lines.map(|(name, value)| Field::from((&name[..], &value[..])))
    }

    /// Whether this is the answer; where it was broken off, whether it is the beginning of it.
    pub(crate) fn check(&self, got: &Answer, is_whole: bool) -> Result<(), String> {
        let Some(status) = got.status else {
            return if is_whole {
                Err(format!("{}: no head", self.logged))
            } else {
                Ok(())
            };
        };
        let mut fields = got.fields.clone();
        for (name, value) in &mut fields {
            if name == b"date" && value.len() == DATE.len() {
                *value = DATE.into();
            }
        }
        let shown = |lines: &[Line]| -> Vec<String> {
            let line = |(name, value): &Line| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                format!("{}: {}", text(name), text(value))
            };
            lines.iter().map(line).collect()
        };
        if status != self.status || fields != self.answer_fields {
            return Err(format!(
                "{}: got {status} {:#?} instead of {:#?}",
                self.logged,
                shown(&fields),
                shown(&self.answer_fields)
            ));
        }
        let is_right = if is_whole {
            got.body == self.answer
        } else {
            self.answer.starts_with(&got.body)
        };
        if !is_right {
            let pairs = got.body.iter().zip(&self.answer);
            let same = pairs.take_while(|(a, b)| a == b).count();
            return Err(format!(
                "{}: {} bytes of {}, {same} of them right",
                self.logged,
                got.body.len(),
                self.answer.len()
            ));
        }
        Ok(())
    }
}

/// What has come of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: Option<u16>,
    pub(crate) fields: Vec<Line>,
    pub(crate) body: Vec<u8>,
}

/// The first line of a message of HTTP/1, its fields by names in lower case, and what follows.
fn parts(message: &[u8]) -> (String, Vec<Line>, &[u8]) {
    let end = message.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, rest) = message.split_at(end.unwrap() + 4);
    let head = String::from_utf8_lossy(head).into_owned();
    let mut lines = head.trim_end().split("\r\n");
    let first = lines.next().unwrap_or_default().to_owned();
    let field = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_ascii_lowercase().into(), value.into())
    };
    (first, lines.map(field).collect(), rest)
}

/// A body without its framing.
fn body(lines: &[Line], rest: &[u8]) -> Vec<u8> {
    if lines.iter().any(|(name, _)| name == b"transfer-encoding") {
        unchunked(rest).unwrap()
    } else {
        rest.to_vec()
    }
}

/// A body that came in chunks, once all of them are there.
pub(crate) fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?;
        let size = usize::from_str_radix(size, 16).ok()?;
        let chunk = rest.get(end + 2..end + 2 + size)?;
        rest = rest.get(end + 4 + size..)?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(chunk);
    }
}
