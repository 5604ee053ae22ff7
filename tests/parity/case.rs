//! The case files: tests/parity/cases/AREA.parity.
//!
//! A file is one configuration and the requests that are sent to it. Everything is plain text:
//!
//! ```text
//! # a comment
//! needs 1.31                        only a live nginx of this version or later can read the configuration
//!
//! [fixture]                         the tree below @ROOT@; every file has the same modification time
//! /index.html = "hello\n"
//! /big.bin = pattern 100000         or `words 20000`, or `zeros 100000000`, which takes no room
//! /page.html.gz = gzip "text\n"
//! /folder/
//! /link -> index.html
//! /secret = "x" mode 000
//! /server.crt = copy ecdsa.crt      a file of tests/tls
//!
//! [main]  [events]  [http]  [stream]    lines of nginx.conf for that level
//! [backend /path]                   what the scripted upstream at @BACKEND@ answers (see backend.rs)
//!
//! [cases]
//! name | GET /path | Header: value | covers directive=value        a request on one line
//!
//! === name                          a case in steps, up to an empty line
//! covers directive=value            also: `on ADDRESS` (`udp:IP:PORT` for
//!                                   datagrams), `from IP`, `digits ignored`, `timed`, `fewer BYTES`, `differs REASON`
//! tls name=localhost version=1.2    shakes hands first; tls.rs says what may stand there
//! > GET / HTTP/1.1                  sends the line and CR LF;  `>> text` sends it without
//! pause 50ms
//! read 2                            reads two responses;  `read head`, `read close`
//! again                             goes on over a new connection of the same client
//! another                           the same, and the one before stays open to the end
//! receive 20                        reads so many bytes, whatever they are
//! wait 1s                           sees what comes, or that the connection ends, within that time
//! replace /index.html "new\n"       puts another file in a file's place;  `remove /index.html`
//!
//! === name of HTTP/2                a case that only HTTP/2 has: `+` begins a field of a header block, pseudo-fields as well
//! + :method POST                    name and value as they are, an empty value where there is none
//! + te trailers
//! body text                         a part of the body;  fields behind it are trailers
//! unfinished                        the stream stays open;  else it ends with what comes last before a step that is no pause
//! ```
//!
//! A file with `[stream]` has no cases over HTTP/2, and what it covers is `stream.DIRECTIVE=value`.
//!
//! Placeholders: `@S1@` to `@S60@` (with `[stream]`), `@PORT@ @PORT2@ @PORT3@ @BACKEND@ @DEAD@ @FULL@ @DNS@ @ROOT@
//! @PREFIX@`. Escapes in what is sent and in fixture texts: `\r \n \t \0 \\ \" \xHH` and
//! `\{text*1000}` for repetition.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use crate::tls::Offer;

/// One case file.
#[derive(Debug, Default)]
pub(crate) struct CaseFile {
    /// The file's name without its extension: the area.
    pub(crate) area: String,
    /// The oldest nginx that can read the configuration.
    pub(crate) needs: Option<(u32, u32)>,
    pub(crate) fixture: Vec<Entry>,
    pub(crate) main: String,
    pub(crate) events: String,
    pub(crate) http: String,
    pub(crate) stream: String,
    /// Scripts of the upstream by path.
    pub(crate) backend: Vec<(String, Vec<Step>)>,
    pub(crate) cases: Vec<Case>,
}

/// One file, folder or link of the fixture.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) path: String,
    pub(crate) kind: EntryKind,
    /// File permissions where they are not the usual ones.
    pub(crate) mode: Option<u32>,
}

#[derive(Debug)]
pub(crate) enum EntryKind {
    File(Vec<u8>),
    /// A file of this many zeros that takes no room on the disk.
    Zeros(u64),
    Gzip(Vec<u8>),
    Folder,
    Link(String),
}

/// One named conversation with the server.
#[derive(Debug, Default)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
    /// Where to connect, if not 127.0.0.1:@PORT@.
    pub(crate) on: Option<String>,
    /// The address to connect from, if not any.
    pub(crate) from: Option<IpAddr>,
    /// What the client offers, where it speaks TLS.
    pub(crate) tls: Option<Offer>,
    /// Which directive's which value the case shows.
    pub(crate) covers: Vec<(String, String)>,
    /// The expected difference: a sentence that stands in docs/differences.md as well.
    pub(crate) differs: Option<String>,
    /// Numbers in the answer and the logs say nothing (clocks, counters).
    pub(crate) ignore_digits: bool,
    /// The time that the case takes is part of the answer, in whole seconds.
    pub(crate) timed: bool,
    /// Whether the first answer's body takes fewer bytes than this on the wire is part of the
    /// answer. Says something about compression where the exact length is the library's own matter.
    pub(crate) fewer_than: Option<usize>,
}

/// What a client or the scripted upstream does next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Send(Vec<u8>),
    Pause(Duration),
    /// Over HTTP/2: a header block.
    Fields(Vec<(Vec<u8>, Vec<u8>)>),
    /// Over HTTP/2: a part of the last stream's body.
    Body(Vec<u8>),
    /// Over HTTP/2: the last stream stays open.
    Unfinished,
    /// Read this many responses; `head` says that they have no body.
    Read {
        count: usize,
        head: bool,
    },
    /// Read every byte up to the end of the connection.
    ReadToClose,
    /// Read so many bytes.
    Receive(usize),
    /// Read nothing for a while and then see what has come: for timeouts.
    Wait(Duration),
    /// Close the sending direction.
    Shut,
    /// Close the connection, and go on over a new one.
    Again,
    /// Go on over a new connection while this one stays open.
    Another,
    /// Put a new file in the place of one of the fixture, as a deploy does.
    Replace {
        path: String,
        text: Vec<u8>,
    },
    /// Take a file of the fixture away.
    Remove(String),
    /// Upstream only: what happens to the connection afterwards.
    End(Ending),
    /// Upstream only: answer before the request's body is there.
    Early,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ending {
    Close,
    Keep,
    Hang,
    Echo,
    /// Neither read nor write.
    Stall,
}

impl CaseFile {
    /// Whether a placeholder stands in what is served.
    pub(crate) fn uses(&self, placeholder: &str) -> bool {
        self.http.contains(placeholder) || self.stream.contains(placeholder)
    }
}

impl Case {
    /// Whether only HTTP/2 has it.
    pub(crate) fn is_of_http2(&self) -> bool {
        matches!(self.steps.first(), Some(Step::Fields(_)))
    }

    /// The target of the first request, as sent.
    pub(crate) fn target(&self) -> Option<String> {
        let Some(Step::Send(bytes)) = self.steps.first() else {
            return None;
        };
        let line = bytes
            .split(|byte| *byte == b'\r' || *byte == b'\n')
            .next()?;
        String::from_utf8_lossy(line)
            .split(' ')
            .nth(1)
            .map(str::to_string)
    }
}

/// Reads one case file.
pub(crate) fn load(path: &Path) -> Result<CaseFile, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let area = path
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let mut file = CaseFile {
        area,
        ..CaseFile::default()
    };
    let mut reader = Reader {
        section: Section::Preamble,
        open: None,
    };
    for (index, line) in text.lines().enumerate() {
        reader
            .line(&mut file, line)
            .map_err(|message| format!("{}:{}: {message}", path.display(), index + 1))?;
    }
    reader.finish_case(&mut file);
    let mut names: Vec<&str> = file.cases.iter().map(|case| case.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!(
            "{}: two cases are named `{}`",
            path.display(),
            pair[0]
        )),
        None => Ok(file),
    }
}

enum Section {
    Preamble,
    Fixture,
    Main,
    Events,
    Http,
    Stream,
    Backend,
    Cases,
}

struct Reader {
    section: Section,
    /// The case in steps that is being read.
    open: Option<Case>,
}

impl Reader {
    fn line(&mut self, file: &mut CaseFile, line: &str) -> Result<(), String> {
        if let Some(section) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            self.finish_case(file);
            return self.enter(file, section);
        }
        match self.section {
            // Configuration is taken as it stands, comments and all.
            Section::Main => add_line(&mut file.main, line),
            Section::Events => add_line(&mut file.events, line),
            Section::Http => add_line(&mut file.http, line),
            Section::Stream => add_line(&mut file.stream, line),
            Section::Cases => return self.case_line(file, line),
            _ if line.trim().is_empty() || line.starts_with('#') => {}
            Section::Fixture => file.fixture.push(entry(line)?),
            Section::Backend => {
                let script = file.backend.last_mut().ok_or("no [backend] section")?;
                script.1.push(backend_step(line)?);
            }
            Section::Preamble => {
                let version = line
                    .strip_prefix("needs ")
                    .ok_or("expected `needs VERSION` or a [section]")?;
                file.needs = Some(version_numbers(version).ok_or("not a version")?);
            }
        }
        Ok(())
    }

    fn enter(&mut self, file: &mut CaseFile, section: &str) -> Result<(), String> {
        self.section = match section.split_once(' ').unwrap_or((section, "")) {
            ("fixture", "") => Section::Fixture,
            ("main", "") => Section::Main,
            ("events", "") => Section::Events,
            ("http", "") => Section::Http,
            ("stream", "") => Section::Stream,
            ("cases", "") => Section::Cases,
            ("backend", path) => {
                file.backend.push((path.to_string(), Vec::new()));
                Section::Backend
            }
            _ => return Err(format!("unknown section [{section}]")),
        };
        Ok(())
    }

    fn case_line(&mut self, file: &mut CaseFile, line: &str) -> Result<(), String> {
        if let Some(name) = line.strip_prefix("=== ") {
            self.finish_case(file);
            self.open = Some(Case {
                name: name.trim().to_string(),
                ..Case::default()
            });
        } else if line.trim().is_empty() {
            self.finish_case(file);
        } else if line.starts_with('#') {
        } else if let Some(case) = &mut self.open {
            if !attribute(case, line)? {
                add_step(&mut case.steps, step(line)?);
            }
        } else {
            file.cases.push(one_line_case(line)?);
        }
        Ok(())
    }

    fn finish_case(&mut self, file: &mut CaseFile) {
        if let Some(mut case) = self.open.take() {
            finish_steps(&mut case.steps);
            file.cases.push(case);
        }
    }
}

fn add_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// `NAME | METHOD TARGET [VERSION] | header or attribute …`
fn one_line_case(line: &str) -> Result<Case, String> {
    let mut parts = line.split(" | ").map(str::trim);
    let name = parts.next().unwrap_or_default().to_string();
    let request = parts.next().ok_or("expected `NAME | METHOD TARGET`")?;
    let mut case = Case {
        name,
        ..Case::default()
    };
    let (mut headers, mut body, mut times) = (Vec::new(), None, 1);
    for part in parts {
        if let Some(text) = part.strip_prefix("body ") {
            body = Some(unescape(text)?);
        } else if let Some(text) = part.strip_prefix("times ") {
            times = text.parse().map_err(|_| "times wants a number")?;
        } else if !attribute(&mut case, part)? {
            headers.push(part);
        }
    }
    let (first, has_version) = match request.rsplit_once(' ') {
        Some((_, version)) if version.starts_with("HTTP/") => (request.to_string(), true),
        _ => (format!("{request} HTTP/1.1"), false),
    };
    let mut text = first + "\r\n";
    if !has_version
        && !headers
            .iter()
            .any(|header| header.to_ascii_lowercase().starts_with("host:"))
    {
        let name = case.tls.as_ref().and_then(Offer::name);
        text.push_str(&format!("Host: {}\r\n", name.unwrap_or("localhost")));
    }
    for header in headers {
        text.push_str(&format!("{header}\r\n"));
    }
    if let Some(body) = &body {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    let mut bytes = unescape(&(text + "\r\n"))?;
    bytes.extend(body.unwrap_or_default());
    for _ in 0..times {
        case.steps.push(Step::Send(bytes.clone()));
        case.steps.push(Step::Read {
            count: 1,
            head: request.starts_with("HEAD "),
        });
    }
    Ok(case)
}

/// Takes the line if it says something about the case rather than being a part of it.
fn attribute(case: &mut Case, line: &str) -> Result<bool, String> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match (word, rest) {
        ("covers", list) => {
            for item in list.split(", ") {
                let (directive, value) =
                    item.split_once('=').ok_or("covers wants DIRECTIVE=VALUE")?;
                case.covers
                    .push((directive.trim().to_string(), value.trim().to_string()));
            }
        }
        ("differs", reason) => case.differs = Some(reason.to_string()),
        ("on", address) => case.on = Some(address.to_string()),
        ("from", ip) => case.from = Some(ip.parse().map_err(|_| "from wants an address")?),
        ("tls", offer) => case.tls = Some(Offer::parse(offer)?),
        ("digits", "ignored") => case.ignore_digits = true,
        ("timed", "") => case.timed = true,
        ("fewer", count) => {
            case.fewer_than = Some(count.parse().map_err(|_| "fewer wants a number of bytes")?)
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn step(line: &str) -> Result<Step, String> {
    if let Some(text) = line.strip_prefix(">> ") {
        return Ok(Step::Send(unescape(text)?));
    }
    if let Some(field) = line.strip_prefix("+ ") {
        let (name, value) = field.split_once(' ').unwrap_or((field, ""));
        return Ok(Step::Fields(vec![(unescape(name)?, unescape(value)?)]));
    }
    if line == ">" {
        return Ok(Step::Send(b"\r\n".to_vec()));
    }
    if let Some(text) = line.strip_prefix("> ") {
        let mut bytes = unescape(text)?;
        bytes.extend(b"\r\n");
        return Ok(Step::Send(bytes));
    }
    match line.split_once(' ').unwrap_or((line, "")) {
        ("pause", time) => Ok(Step::Pause(duration(time)?)),
        ("wait", time) => Ok(Step::Wait(duration(time)?)),
        ("read", "") => Ok(Step::Read {
            count: 1,
            head: false,
        }),
        ("read", "head") => Ok(Step::Read {
            count: 1,
            head: true,
        }),
        ("read", "close") => Ok(Step::ReadToClose),
        ("read", count) => Ok(Step::Read {
            count: count.parse().map_err(|_| "read wants a number")?,
            head: false,
        }),
        ("shut", "") => Ok(Step::Shut),
        ("body", text) => Ok(Step::Body(unescape(text)?)),
        ("unfinished", "") => Ok(Step::Unfinished),
        ("again", "") => Ok(Step::Again),
        ("another", "") => Ok(Step::Another),
        ("receive", count) => {
            let count = count
                .parse()
                .map_err(|_| "receive wants a number of bytes")?;
            Ok(Step::Receive(count))
        }
        ("replace", rest) => {
            let (path, text) = rest
                .split_once(' ')
                .ok_or("replace wants a path and a text in quotes")?;
            Ok(Step::Replace {
                path: path.to_string(),
                text: quoted(text)?,
            })
        }
        ("remove", path) => Ok(Step::Remove(path.to_string())),
        _ => Err(format!("unknown step `{line}`")),
    }
}

fn backend_step(line: &str) -> Result<Step, String> {
    if line == "<" {
        return Ok(Step::Send(b"\r\n".to_vec()));
    }
    match line.split_once(' ').unwrap_or((line, "")) {
        ("<", text) => Ok(Step::Send(unescape(&format!("{text}\\r\\n"))?)),
        ("<<", text) => Ok(Step::Send(unescape(text)?)),
        ("pause", time) => Ok(Step::Pause(duration(time)?)),
        ("early", "") => Ok(Step::Early),
        ("close", "") => Ok(Step::End(Ending::Close)),
        ("keep", "") => Ok(Step::End(Ending::Keep)),
        ("hang", "") => Ok(Step::End(Ending::Hang)),
        ("echo", "") => Ok(Step::End(Ending::Echo)),
        ("stall", "") => Ok(Step::End(Ending::Stall)),
        _ => Err(format!("unknown backend step `{line}`")),
    }
}

/// Lines that are sent one after the other leave in one write.
fn add_step(steps: &mut Vec<Step>, step: Step) {
    match (steps.last_mut(), step) {
        (Some(Step::Send(before)), Step::Send(more)) => before.extend(more),
        (Some(Step::Fields(before)), Step::Fields(more)) => before.extend(more),
        (_, step) => steps.push(step),
    }
}

/// A case that ends by sending reads one response.
fn finish_steps(steps: &mut Vec<Step>) {
    if let Some(
        Step::Send(_) | Step::Pause(_) | Step::Fields(_) | Step::Body(_) | Step::Unfinished,
    ) = steps.last()
    {
        let head = matches!(steps.first(), Some(Step::Send(bytes)) if bytes.starts_with(b"HEAD "));
        steps.push(Step::Read { count: 1, head });
    }
}

fn entry(line: &str) -> Result<Entry, String> {
    let (line, mode) = match line.rsplit_once(" mode ") {
        Some((line, mode)) => (
            line,
            Some(u32::from_str_radix(mode.trim(), 8).map_err(|_| "mode wants an octal number")?),
        ),
        None => (line, None),
    };
    if let Some((path, target)) = line.split_once(" -> ") {
        return Ok(Entry {
            path: path.to_string(),
            kind: EntryKind::Link(target.to_string()),
            mode,
        });
    }
    let Some((path, value)) = line.split_once(" = ") else {
        return Ok(Entry {
            path: line.trim().trim_end_matches('/').to_string(),
            kind: EntryKind::Folder,
            mode,
        });
    };
    let kind = match value.split_once(' ') {
        Some(("pattern", length)) => EntryKind::File(pattern(
            length.parse().map_err(|_| "pattern wants a length")?,
        )),
        Some(("words", length)) => {
            EntryKind::File(words(length.parse().map_err(|_| "words wants a length")?))
        }
        Some(("zeros", length)) => {
            EntryKind::Zeros(length.parse().map_err(|_| "zeros wants a length")?)
        }
        Some(("gzip", text)) => EntryKind::Gzip(quoted(text)?),
        Some(("copy", name)) => {
            let path = format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"));
            EntryKind::File(std::fs::read(&path).map_err(|error| format!("{path}: {error}"))?)
        }
        _ => EntryKind::File(quoted(value)?),
    };
    Ok(Entry {
        path: String::from_utf8_lossy(&unescape(path)?).into_owned(),
        kind,
        mode,
    })
}

fn quoted(text: &str) -> Result<Vec<u8>, String> {
    let inner = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    unescape(inner.ok_or("expected a text in quotes")?)
}

/// Bytes in which every place can be told from its neighbours: numbered lines of 16 bytes.
fn pattern(length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length.div_ceil(16))
        .flat_map(|line| format!("line {line:010}\n").into_bytes())
        .collect();
    bytes.truncate(length);
    bytes
}

/// Words in an order that only chance explains: text on which levels of compression differ.
fn words(length: usize) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "tide", "gate", "river", "sea", "harbour", "water", "level", "rise", "fall", "moon", "the",
        "of", "and", "when", "opens", "closes",
    ];
    let mut state: u32 = 1;
    let mut bytes = Vec::new();
    while bytes.len() < length {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.extend(WORDS[(state >> 28) as usize].bytes());
        bytes.push(if state >> 24 & 15 == 0 { b'\n' } else { b' ' });
    }
    bytes.truncate(length);
    bytes
}

fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("`{text}` is no time such as 50ms or 2s");
    if let Some(number) = text.strip_suffix("ms") {
        return number.parse().map(Duration::from_millis).map_err(|_| bad());
    }
    text.strip_suffix('s')
        .and_then(|number| number.parse().ok())
        .map(Duration::from_secs)
        .ok_or_else(bad)
}

/// The first two numbers of a version.
pub(crate) fn version_numbers(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Resolves the escapes that the top of this file names.
fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend(rest[..at].bytes());
        rest = &rest[at + 1..];
        let escape = rest.chars().next().ok_or("a backslash at the end")?;
        rest = &rest[escape.len_utf8()..];
        match escape {
            'r' => bytes.push(b'\r'),
            'n' => bytes.push(b'\n'),
            't' => bytes.push(b'\t'),
            '0' => bytes.push(0),
            '\\' => bytes.push(b'\\'),
            '"' => bytes.push(b'"'),
            'x' => {
                let digits = rest.get(..2).ok_or("\\x wants two digits")?;
                bytes.push(
                    u8::from_str_radix(digits, 16).map_err(|_| "\\x wants hexadecimal digits")?,
                );
                rest = &rest[2..];
            }
            '{' => {
                let (inside, after) = rest.split_once('}').ok_or("\\{ wants a }")?;
                let (text, count) = inside.rsplit_once('*').ok_or("expected \\{TEXT*COUNT}")?;
                bytes.extend(
                    unescape(text)?.repeat(count.parse().map_err(|_| "expected \\{TEXT*COUNT}")?),
                );
                rest = after;
            }
            other => return Err(format!("unknown escape \\{other}")),
        }
    }
    bytes.extend(rest.bytes());
    Ok(bytes)
}
