//! What the recording upstream answers: put together from words that the request brings along.
//!
//! Words are parted by commas: `s404` a status; `b70` so many bytes of body; `f3` the third of
//! [`FIELDS`]; `chunked`, `close` the framing instead of a length; and those of [`WORDS`]. What is
//! no word is ignored, so that words can be left out one by one.

use std::time::Duration;

use crate::random::Random;

/// A step of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Sends the bytes at once.
    Send(Vec<u8>),
    /// Waits.
    Pause(Duration),
    /// Ends the connection after the answer.
    Close,
    /// Answers before the body of the request has been read.
    Early,
}

/// Fields that an answer may have.
pub(crate) const FIELDS: &[&str] = &[
    "Set-Cookie: a=1; Path=/; HttpOnly",
    "Set-Cookie: session=xyz; Domain=one.example; Path=/app/; Secure",
    "Location: http://127.0.0.1/moved?x=1",
    "Location: /moved%20there",
    "Location: http://other.example/path",
    "Refresh: 5; url=http://127.0.0.1/refreshed",
    "Refresh: 10",
    "Content-Type: text/plain; charset=utf-8",
    "Content-Type: application/json",
    "Content-Type: text/html",
    "Cache-Control: max-age=60",
    "Cache-Control: no-store, private",
    "Expires: Thu, 04 Mar 2021 05:06:08 GMT",
    "Expires: 0",
    "ETag: \"abc\"",
    "ETag: W/\"weak\"",
    "Last-Modified: Thu, 04 Mar 2021 05:06:07 GMT",
    "Vary: Accept-Encoding",
    "Vary: *",
    "X-Test: one",
    "X-Test: two",
    "X-Empty:",
    "x-lower: lower",
    "X_Under: score",
    "Server: upstream/1.0",
    "Date: Thu, 04 Mar 2021 05:06:07 GMT",
    "Accept-Ranges: bytes",
    "Content-Range: bytes 0-9/100",
    "Content-Encoding: identity",
    "Content-Disposition: attachment",
    "WWW-Authenticate: Basic realm=\"one\"",
    "WWW-Authenticate: Digest realm=\"two\"",
    "Link: </style.css>; rel=preload",
    "Connection: close",
    "Connection: keep-alive",
    "Keep-Alive: timeout=5",
    "Upgrade: h2c",
    "X-Accel-Redirect: /plain.txt",
    "X-Accel-Redirect: /dir/page.html?from=accel",
    "X-Accel-Redirect: @named",
    "X-Accel-Redirect: /../unsafe",
    "X-Accel-Redirect: /none.html",
    "X-Accel-Charset: koi8-r",
    "X-Accel-Buffering: no",
    "X-Accel-Limit-Rate: 1000000",
    "X-Accel-Expires: 10",
    "Status: 201 Created",
    "X-Powered-By: upstream",
    "X-Value-With-Colon: a: b: c",
    "X-Spaces:    many   spaces   ",
    "X-Bytes: \u{e9}\u{4e2d}",
    "P3P: policyref",
    "Trailer: X-End",
    "Content-Language: en, de",
];

/// Words beside those with a number.
pub(crate) const WORDS: &[&str] = &[
    "chunked",
    "close",
    "long",
    "short",
    "cut",
    "none",
    "badline",
    "badversion",
    "badfield",
    "http10",
    "noreason",
    "early",
    "hints",
    "continue",
    "gzip",
    "html",
    "trailers",
    "slow",
    "huge",
    "manyfields",
    "doublelength",
    "bothframings",
    "badlength",
    "badchunk",
    "folded",
    "barelines",
    "nul",
    "ranges",
    "notmodified",
    "echo",
];

/// Words of which the table of differences tells: what follows on a connection cannot be compared
/// any more, so they are rare.
const OTHERWISE: &[&str] = &["badline", "badversion", "continue"];

/// Statuses that are worth an answer.
pub(crate) const STATUSES: &[u16] = &[
    200, 200, 200, 201, 202, 204, 206, 207, 301, 302, 303, 304, 307, 308, 400, 401, 402, 403, 404,
    404, 405, 409, 410, 412, 413, 416, 418, 429, 451, 499, 500, 501, 502, 503, 504, 507, 599,
];

/// Paths that bring words along, for configurations that pass a path on and no field.
pub(crate) fn paths() -> Vec<String> {
    let words = [
        "s404",
        "s500,b10",
        "s201",
        "chunked,b300",
        "s302,f2",
        "f17,b5000",
        "html",
        "gzip",
    ];
    words.map(|words| format!("/answer={words}")).to_vec()
}

/// Words drawn for one answer; often few.
pub(crate) fn random(random: &mut Random) -> String {
    let mut words = Vec::new();
    if random.chance(60) {
        words.push(format!("s{}", STATUSES[random.below(STATUSES.len())]));
    }
    for _ in 0..random.below(4) {
        words.push(format!("f{}", random.below(FIELDS.len())));
    }
    if random.chance(40) {
        words.push(format!(
            "b{}",
            [0, 1, 10, 300, 5_000, 40_000, 150_000][random.below(7)]
        ));
    }
    if random.chance(25) {
        words.push(String::from(random.pick(&[
            "chunked",
            "close",
            "chunked,trailers",
            "html",
            "gzip",
        ])));
    }
    if random.chance(15) {
        let word = WORDS[random.below(WORDS.len())];
        if !OTHERWISE.contains(&word) || random.chance(25) {
            words.push(String::from(word));
        }
    }
    words.join(",")
}

/// The words that a request brings along.
fn words_of(head: &str) -> Vec<String> {
    let lower = head.to_ascii_lowercase();
    let field = lower.find("\r\nx-answer:").map(|at| {
        let rest = &lower[at + 11..];
        rest[..rest.find('\r').unwrap_or(rest.len())]
            .trim()
            .to_string()
    });
    let line = lower.lines().next().unwrap_or_default().to_string();
    let query = line.find("answer=").map(|at| {
        let rest = &line[at + 7..];
        rest[..rest.find(['&', ' ', '#']).unwrap_or(rest.len())].to_string()
    });
    let text = field.or(query).unwrap_or_default();
    text.split(',')
        .map(|word| word.trim().to_string())
        .collect()
}

/// The steps of the answer to a request with this head. What is sent without a pause is sent at
/// once: how much a server receives of it before it needs no more would be chance.
pub(crate) fn acts(head: &[u8]) -> Vec<Act> {
    let mut acts: Vec<Act> = Vec::new();
    for act in single_acts(head) {
        match (acts.last_mut(), act) {
            (Some(Act::Send(before)), Act::Send(bytes)) => before.extend(bytes),
            (_, act) => acts.push(act),
        }
    }
    acts
}

fn single_acts(head: &[u8]) -> Vec<Act> {
    let head = String::from_utf8_lossy(head);
    let words = words_of(&head);
    let has = |word: &str| words.iter().any(|known| known == word);
    if has("none") {
        return vec![Act::Close];
    }
    let mut acts = Vec::new();
    if has("early") {
        acts.push(Act::Early);
    }
    if has("hints") {
        acts.push(Act::Send(
            b"HTTP/1.1 103 Early Hints\r\nLink: </early.css>; rel=preload\r\n\r\n".to_vec(),
        ));
    }
    if has("continue") {
        acts.push(Act::Send(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()));
    }
    let body = body(&head, &words);
    let mut answer = answer_head(&head, &words, body.len());
    let bodiless = head.starts_with("HEAD ") || answer.status == 204 || answer.status == 304;
    if bodiless {
        acts.push(Act::Send(answer.bytes));
        return acts;
    }
    if has("cut") {
        answer.bytes.truncate(answer.bytes.len() / 2);
        acts.extend([Act::Send(answer.bytes), Act::Close]);
        return acts;
    }
    if has("chunked") {
        let mut framed = Vec::new();
        for part in body.chunks(7_000) {
            framed.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
            framed.extend_from_slice(part);
            framed.extend_from_slice(b"\r\n");
        }
        if has("badchunk") {
            framed.extend_from_slice(b"xyz\r\n");
            acts.push(Act::Close);
        }
        framed.extend_from_slice(if has("trailers") {
            b"0\r\nX-End: done\r\nX-Test: trailer\r\n\r\n".as_slice()
        } else {
            b"0\r\n\r\n".as_slice()
        });
        answer.bytes.extend_from_slice(&framed);
    } else {
        answer.bytes.extend_from_slice(&body);
    }
    if has("slow") {
        let rest = answer.bytes.split_off(answer.bytes.len() / 2);
        acts.extend([
            Act::Send(answer.bytes),
            Act::Pause(Duration::from_millis(10)),
            Act::Send(rest),
        ]);
    } else {
        acts.push(Act::Send(answer.bytes));
    }
    // A close behind an answer that is whole without it would race with the next request on its
    // connection.
    let is_whole = has("chunked") || (has("short") && body.is_empty() && !has("close"));
    if !is_whole && (has("close") || has("long") || has("short") || has("http10")) {
        acts.push(Act::Close);
    }
    acts
}

struct Head {
    bytes: Vec<u8>,
    status: u16,
}

fn answer_head(request: &str, words: &[String], length: usize) -> Head {
    let has = |word: &str| words.iter().any(|known| known == word);
    let status = words
        .iter()
        .find_map(|word| word.strip_prefix('s')?.parse().ok());
    let conditional = request.to_ascii_lowercase().contains("\r\nif-");
    let status: u16 = match status {
        None if has("notmodified") && conditional => 304,
        status => status.unwrap_or(200),
    };
    let reason = if has("noreason") { "" } else { " As Asked" };
    let mut text = match () {
        () if has("badline") => String::from("HTTP/1.1 OK\r\n"),
        () if has("badversion") => format!("HTTPS/1.1 {status}{reason}\r\n"),
        () if has("http10") => format!("HTTP/1.0 {status}{reason}\r\n"),
        () => format!("HTTP/1.1 {status}{reason}\r\n"),
    };
    for word in words {
        let number = word
            .strip_prefix('f')
            .and_then(|number| number.parse::<usize>().ok());
        if let Some(field) = number.and_then(|number| FIELDS.get(number)) {
            text.push_str(field);
            text.push_str("\r\n");
        }
    }
    if !text.contains("\r\nContent-Type:") && has("html") {
        text.push_str("Content-Type: text/html\r\n");
    }
    for (word, field) in [
        ("gzip", "Content-Encoding: gzip\r\n"),
        ("badfield", "no field at all\r\n"),
        ("folded", "X-Folded: one\r\n two\r\n"),
        ("barelines", "X-Bare: line feed\n"),
        ("nul", "X-Nul: a\0b\r\n"),
        ("doublelength", "Content-Length: 1\r\n"),
        ("badlength", "Content-Length: many\r\n"),
    ] {
        if has(word) {
            text.push_str(field);
        }
    }
    if has("huge") {
        text.push_str(&format!("X-Huge: {}\r\n", "h".repeat(9_000)));
    }
    if has("manyfields") {
        for number in 0..60 {
            text.push_str(&format!("X-Field-{number}: {number}\r\n"));
        }
    }
    let told = match () {
        () if has("long") => length + 10,
        () if has("short") => length.saturating_sub(5),
        () => length,
    };
    if has("chunked") {
        text.push_str("Transfer-Encoding: chunked\r\n");
    }
    let unframed =
        has("chunked") || has("close") || has("badlength") || status == 204 || status == 304;
    if !unframed || has("bothframings") {
        text.push_str(&format!("Content-Length: {told}\r\n"));
    }
    text.push_str("\r\n");
    Head {
        bytes: text.into_bytes(),
        status,
    }
}

fn body(request: &str, words: &[String]) -> Vec<u8> {
    let has = |word: &str| words.iter().any(|known| known == word);
    let line = request.lines().next().unwrap_or_default();
    let mut body = match words
        .iter()
        .find_map(|word| word.strip_prefix('b')?.parse::<usize>().ok())
    {
        Some(length) => b"upstream 0123456789 abcdefghijk\n"
            .iter()
            .copied()
            .cycle()
            .take(length.min(1 << 20))
            .collect(),
        None if has("html") => {
            let text = "<html><head></head><body>one <!--#echo var=\"uri\" --> two</body></html>\n";
            text.as_bytes().to_vec()
        }
        None if has("echo") => request.as_bytes().to_vec(),
        None => format!("upstream's answer to {line}\n").into_bytes(),
    };
    if has("gzip") {
        body = crate::world::gzip(&body).unwrap_or(body);
    }
    body
}
