//! The same requests to two servers, and what may differ between their answers.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use super::process::PATIENCE;

/// A request as it is walked with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn get(path: &str) -> Request {
        Request {
            method: "GET".to_owned(),
            path: path.to_owned(),
            ..Request::default()
        }
    }

    pub(crate) fn head(path: &str) -> Request {
        Request {
            method: "HEAD".to_owned(),
            ..Request::get(path)
        }
    }

    /// A form with these fields.
    pub(crate) fn post(path: &str, fields: &[(&str, &str)]) -> Request {
        let pairs = fields
            .iter()
            .map(|(name, value)| format!("{}={}", escape(name), escape(value)));
        let body = pairs.collect::<Vec<_>>().join("&").into_bytes();
        let request = Request {
            method: "POST".to_owned(),
            body,
            ..Request::get(path)
        };
        request.with("Content-Type", "application/x-www-form-urlencoded")
    }

    /// A form with a file in it.
    pub(crate) fn upload(
        path: &str,
        fields: &[(&str, &str)],
        file: (&str, &str, &[u8]),
    ) -> Request {
        const BOUNDARY: &str = "--------boundary-of-a-form";
        let mut body = Vec::new();
        for (name, value) in fields {
            let part = format!(
                "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
            );
            body.extend(part.as_bytes());
        }
        let (field, name, bytes) = file;
        let part = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"{name}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        body.extend(part.as_bytes());
        body.extend(bytes);
        body.extend(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
        let request = Request {
            method: "POST".to_owned(),
            body,
            ..Request::get(path)
        };
        let kind = format!("multipart/form-data; boundary={BOUNDARY}");
        request.with("Content-Type", &kind)
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

fn escape(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// An answer, its body without the chunks' framing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let named = |(other, _): &&(String, String)| other.eq_ignore_ascii_case(name);
        self.headers
            .iter()
            .find(named)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The `Cookie` line for the cookies that this answer sets.
    pub(crate) fn cookies(&self) -> String {
        let set = self
            .headers
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case("Set-Cookie"));
        let pairs = set.filter_map(|(_, value)| value.split(';').next());
        let pairs = pairs.filter(|pair| !pair.ends_with("=deleted") && !pair.ends_with("=+"));
        pairs.collect::<Vec<_>>().join("; ")
    }

    /// What stands in the body between two texts.
    pub(crate) fn between(&self, before: &str, after: &str) -> String {
        let text = self.text();
        let found = text
            .split_once(before)
            .and_then(|(_, rest)| rest.split_once(after));
        let (value, _) = found.unwrap_or_else(|| panic!("no {before} … {after} in {text}"));
        value.to_owned()
    }
}

/// The client of one site.
pub(crate) struct Client {
    pub(crate) port: u16,
    pub(crate) host: &'static str,
}

impl Client {
    /// One request on a connection of its own.
    pub(crate) fn ask(&self, request: &Request) -> Answer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
            request.method, request.path, self.host
        );
        for (name, value) in &request.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if request.method == "POST" {
            head.push_str(&format!("Content-Length: {}\r\n", request.body.len()));
        }
        head.push_str("\r\n");
        let sent = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(&request.body));
        let mut bytes = Vec::new();
        let received = stream.read_to_end(&mut bytes);
        let what = format!("{} {}", request.method, request.path);
        parse(&bytes, &request.method).unwrap_or_else(|| {
            panic!(
                "{what}: no whole answer ({sent:?}, {received:?}): {}",
                String::from_utf8_lossy(&bytes)
            )
        })
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask(&Request::get(path))
    }
}

/// Sees that what an application sends while it goes on arrives at once: the application waits for
/// the file `go` behind `begun` and then ends.
pub(crate) fn assert_streamed(client: &Client, path: &str, go: &Path) {
    let mut stream = TcpStream::connect(("127.0.0.1", client.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let host = client.host;
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    let has = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    while !has(&bytes, b"begun\n") {
        let count = stream.read(&mut buffer).unwrap();
        let so_far = String::from_utf8_lossy(&bytes);
        assert!(count > 0, "{path} ended before it began: {so_far}");
        bytes.extend(&buffer[..count]);
    }
    assert!(!has(&bytes, b"ended\n"));
    fs::write(go, "").unwrap();
    stream.read_to_end(&mut bytes).unwrap();
    fs::remove_file(go).unwrap();
    let answer = parse(&bytes, "GET").expect("a whole answer");
    assert_eq!(answer.text(), "begun\nended\n");
}

/// An answer that is whole by its own account.
fn parse(bytes: &[u8], method: &str) -> Option<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut body = bytes[end + 4..].to_vec();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let fields = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "));
    let headers: Vec<(String, String)> = fields
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut answer = Answer {
        status,
        headers,
        body: Vec::new(),
    };
    if method == "HEAD" || status == 304 {
        return body.is_empty().then_some(answer);
    }
    if answer.header("Transfer-Encoding") == Some("chunked") {
        body = without_chunks(&body)?;
    } else if let Some(length) = answer.header("Content-Length")
        && length.parse() != Ok(body.len())
    {
        return None;
    }
    answer.body = body;
    Some(answer)
}

fn without_chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let length = std::str::from_utf8(&rest[..end]).ok()?;
        let length = usize::from_str_radix(length, 16).ok()?;
        rest = rest.get(end + 2..)?;
        if length == 0 {
            return (rest == b"\r\n").then_some(body);
        }
        body.extend(rest.get(..length)?);
        rest = rest.get(length..)?.strip_prefix(b"\r\n")?;
    }
}

/// An answer without what differs between two servers, or two moments, by nature.
///
/// `secrets` are what begins a value that is new each time, which ends before a quote or a bracket.
fn comparable(answer: &Answer, secrets: &[&str]) -> String {
    let mut text = format!("{}\n", answer.status);
    // The servers' own pages name them.
    let own = answer.text().contains("<center>");
    let mut headers: Vec<&(String, String)> = answer.headers.iter().collect();
    // The order of those with one name means something.
    headers.sort_by_key(|(name, _)| name);
    for (name, value) in headers {
        let value = match name.to_ascii_lowercase().as_str() {
            // Tidegate does not say what it is.
            "server" => continue,
            "date" | "expires" | "last-modified" => "…",
            "content-length" if own => "…",
            // What is made anew has another number each time.
            "location" | "content-length" | "x-wp-nonce" | "x-wp-upload-attachment-id"
                if answer.status == 201 =>
            {
                "…"
            }
            // Of a cookie its name, and what is said of it, but for the time.
            "set-cookie" => value.split('=').next().unwrap_or_default(),
            _ => value,
        };
        text.push_str(&format!("{name}: {value}\n"));
    }
    if answer.status == 201 {
        return text;
    }
    for line in answer
        .text()
        .lines()
        .filter(|line| !line.contains("<center>"))
    {
        text.push_str(&without_secrets(line, secrets));
        text.push('\n');
    }
    text
}

fn without_secrets(line: &str, secrets: &[&str]) -> String {
    let mut line = line.to_owned();
    for secret in secrets {
        let mut from = 0;
        while let Some(at) = line[from..].find(secret) {
            let begin = from + at + secret.len();
            let end = line[begin..].find(['"', '\'', '<', '}']);
            let end = end.map_or(line.len(), |length| begin + length);
            line.replace_range(begin..end, "…");
            from = begin;
        }
    }
    line
}

/// Characters of a body that is not as it should be.
const SHOWN: usize = 1000;

/// Answers to a walk over a site.
pub(crate) struct Walk(Vec<(String, Answer)>);

/// Takes a walk: each request with the status that it must have and a text that must stand in the
/// answer's body.
pub(crate) fn walk(client: &Client, steps: &[(Request, u16, &str)]) -> Walk {
    let mut answers = Vec::new();
    let mut unexpected = Vec::new();
    for (request, status, text) in steps {
        let answer = client.ask(request);
        let what = format!("{} {}", request.method, request.path);
        if answer.status != *status || !answer.text().contains(text) {
            let (head, start) = (&answer.headers, answer.text());
            let start: String = start.chars().take(SHOWN).collect();
            unexpected.push(format!(
                "{what}: expected {status} with {text:?}, got {} with {head:?}\n{start}",
                answer.status
            ));
        }
        answers.push((what, answer));
    }
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n\n"));
    Walk(answers)
}

/// Compares two walks with the same steps.
pub(crate) fn assert_alike(walk: &Walk, other: &Walk, secrets: &[&str]) {
    assert_eq!(walk.0.len(), other.0.len());
    let mut differences = Vec::new();
    for ((what, answer), (_, expected)) in walk.0.iter().zip(&other.0) {
        let (answer, expected) = (comparable(answer, secrets), comparable(expected, secrets));
        if answer == expected {
            continue;
        }
        let lines = answer.lines().zip(expected.lines()).find(|(a, b)| a != b);
        let (line, other) = lines.unwrap_or(("the end", "another end"));
        differences.push(format!("{what}:\n  {line}\n  nginx: {other}"));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
