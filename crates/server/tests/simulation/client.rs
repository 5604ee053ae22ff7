//! A simulated client: sends a script of requests in its own way and compares what comes back to
//! the byte.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use engine::net::{Address, Stream};

use crate::random::Random;
use crate::site::{Asked, DATE};

/// How long an answer may be in coming before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(300);

/// How often a client pauses within one request, so that no time limit of the server's hits it.
const PAUSES_MAX: usize = 20;

/// What a client does.
pub(crate) struct Script {
    pub(crate) asked: Vec<Asked>,
    /// Sends without waiting for answers.
    pub(crate) pipelines: bool,
    /// Bytes sent at once at most, and the longest pause between two parts.
    pub(crate) part_max: usize,
    pub(crate) pause_max: Duration,
    /// Breaks the connection off after so many bytes of answers.
    pub(crate) resets_after: Option<usize>,
    /// Whether the network may break it off, too.
    pub(crate) fragile: bool,
}

impl Script {
    /// Requests that keep the connection and perhaps one that ends it, sent in any manner.
    pub(crate) fn any(random: &mut Random, fragile: bool) -> Script {
        let mut asked: Vec<Asked> = (0..=random.below(6))
            .map(|_| crate::site::any(random))
            .collect();
        if random.chance(400) {
            asked.push(crate::site::last(random));
        }
        for asked in &mut asked {
            // Line breaks before a request are skipped (RFC 9112, section 2.2).
            if random.chance(100) {
                let lines = "\r\n".repeat(1 + random.below(3));
                asked.request.splice(..0, lines.into_bytes());
            }
        }
        let total: usize = asked.iter().map(|asked| asked.response.len()).sum();
        Script {
            asked,
            pipelines: random.chance(500),
            part_max: [1 + random.below(30), 2000, usize::MAX][random.below(3)],
            pause_max: Duration::from_millis([0, 5, 300][random.below(3)]),
            resets_after: (fragile && random.chance(300)).then(|| random.below(total)),
            fragile,
        }
    }

    /// These requests, one after the other, each in one part.
    pub(crate) fn plain(asked: Vec<Asked>) -> Script {
        Script {
            asked,
            pipelines: false,
            part_max: usize::MAX,
            pause_max: Duration::ZERO,
            resets_after: None,
            fragile: false,
        }
    }
}

/// A connection to the server.
pub(crate) async fn connect(address: &Address) -> Result<Stream, String> {
    let deadline = engine::now() + PATIENCE;
    let connected = engine::net::connect(address, None, Some(deadline)).await;
    connected.map_err(|error| format!("connecting failed: {error}"))
}

/// Sends these bytes.
pub(crate) fn say(stream: &Stream, bytes: &[u8]) {
    stream.push(Bytes::copy_from_slice(bytes));
    stream.start_send();
}

/// Sends a request and waits for its answer, which must be the right one.
pub(crate) async fn ask(stream: &Stream, asked: &Asked) -> Result<(), String> {
    say(stream, &asked.request);
    hear(stream, asked).await
}

/// Waits for the answer to a request that was sent.
pub(crate) async fn hear(stream: &Stream, asked: &Asked) -> Result<(), String> {
    let deadline = engine::now() + PATIENCE;
    let mut answer = Vec::new();
    while answer.len() < asked.response.len() {
        match stream.recv(Some(deadline)).await {
            Ok(bytes) if !bytes.is_empty() => answer.extend_from_slice(&bytes),
            Ok(_) => break,
            Err(error) => return Err(format!("{error} after {}", shown(&answer))),
        }
    }
    check(&answer, &asked.response, false)
}

/// Waits for the answer to the first of several requests that were sent; how much has come by then.
pub(crate) async fn hear_first(stream: &Stream, asked: &Asked) -> Result<usize, String> {
    let deadline = engine::now() + PATIENCE;
    let mut answers = Vec::new();
    while answers.len() < asked.response.len() {
        match stream.recv(Some(deadline)).await {
            Ok(bytes) if !bytes.is_empty() => answers.extend_from_slice(&bytes),
            other => return Err(format!("{other:?} after {}", shown(&answers))),
        }
    }
    let first = answers.get(..asked.response.len()).unwrap_or_default();
    check(first, &asked.response, false).map(|()| answers.len())
}

/// Waits for the server to end the connection; what has come until then.
pub(crate) async fn hear_all(stream: &Stream) -> Result<Vec<u8>, String> {
    let deadline = engine::now() + PATIENCE;
    let mut answers = Vec::new();
    loop {
        match stream.recv(Some(deadline)).await {
            Ok(bytes) if bytes.is_empty() => return Ok(answers),
            Ok(bytes) => answers.extend_from_slice(&bytes),
            Err(error) => return Err(format!("{error} after {}", shown(&answers))),
        }
    }
}

/// Waits for the server to end the connection without another byte.
pub(crate) async fn end(stream: &Stream) -> Result<(), String> {
    match stream.recv(Some(engine::now() + PATIENCE)).await {
        Ok(bytes) if bytes.is_empty() => Ok(()),
        other => Err(format!("instead of an end: {other:?}")),
    }
}

/// Plays a script. The number of requests that were answered whole, or what was wrong.
pub(crate) async fn play(
    address: Address,
    script: Script,
    random: Random,
) -> Result<usize, String> {
    let connected = engine::net::connect(&address, None, Some(engine::now() + PATIENCE)).await;
    let stream = match connected {
        Ok(stream) => Rc::new(stream),
        Err(_) if script.fragile => return Ok(0),
        Err(error) => return Err(format!("connecting failed: {error}")),
    };
    let script = Rc::new(script);
    let received = Rc::new(Cell::new(0));
    engine::spawn(send(
        Rc::clone(&stream),
        Rc::clone(&script),
        Rc::clone(&received),
        random,
    ));
    receive(&stream, &script, &received).await
}

/// Sends the requests in parts; ends with them, or when nobody receives any more.
async fn send(
    stream: Rc<Stream>,
    script: Rc<Script>,
    received: Rc<Cell<usize>>,
    mut random: Random,
) {
    let mut answered = 0;
    for asked in &script.asked {
        let (mut rest, mut pauses) = (&asked.request[..], 0);
        while !rest.is_empty() {
            let most = script.part_max.min(rest.len());
            let (part, later) = rest.split_at(1 + random.below(most));
            rest = later;
            say(&stream, part);
            if !script.pause_max.is_zero() && pauses < PAUSES_MAX {
                pauses += 1;
                engine::sleep(random.duration(script.pause_max)).await;
            }
        }
        answered += asked.response.len();
        while !script.pipelines && received.get() < answered && Rc::strong_count(&received) > 1 {
            engine::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Receives the answers and compares them.
async fn receive(
    stream: &Stream,
    script: &Script,
    received: &Cell<usize>,
) -> Result<usize, String> {
    let closes = script.asked.last().is_some_and(|asked| asked.closes);
    let expected: Vec<u8> = script
        .asked
        .iter()
        .flat_map(|asked| &asked.response)
        .copied()
        .collect();
    let deadline = engine::now() + PATIENCE;
    let mut answer = Vec::new();
    let mut broken = false;
    loop {
        if !closes && answer.len() >= expected.len() {
            break;
        }
        if script.resets_after.is_some_and(|most| answer.len() >= most) {
            stream.abort();
            broken = true;
            break;
        }
        match stream.recv(Some(deadline)).await {
            Ok(bytes) if bytes.is_empty() => break,
            Ok(bytes) => {
                answer.extend_from_slice(&bytes);
                received.set(answer.len());
            }
            Err(_) if script.fragile => {
                broken = true;
                break;
            }
            Err(error) => {
                let (got, wanted) = (answer.len(), expected.len());
                return Err(format!(
                    "{error} after {got} of {wanted} bytes: {}",
                    shown(&answer)
                ));
            }
        }
    }
    if script.fragile {
        // The network may have broken off the connection to the server behind the site.
        let gateway = b"HTTP/1.1 502 ";
        let failed = answer
            .windows(gateway.len())
            .position(|window| window == gateway);
        answer.truncate(failed.unwrap_or(answer.len()));
    }
    check(&answer, &expected, broken || script.fragile)?;
    let mut left = answer.len();
    let whole = script.asked.iter().take_while(|asked| {
        let length = asked.response.len();
        left.checked_sub(length)
            .inspect(|rest| left = *rest)
            .is_some()
    });
    Ok(whole.count())
}

/// Whether the answer is what was expected, or the beginning of it where the connection was broken.
fn check(answer: &[u8], expected: &[u8], broken: bool) -> Result<(), String> {
    let mut answer = answer.to_vec();
    blank_dates(&mut answer);
    if answer == expected || (broken && same_beginning(&answer, expected)) {
        return Ok(());
    }
    let same = answer
        .iter()
        .zip(expected)
        .take_while(|(a, b)| a == b)
        .count();
    let from = same.saturating_sub(300);
    Err(format!(
        "byte {same} differs (got {} of {} bytes)\n--- got\n{}\n--- expected\n{}",
        answer.len(),
        expected.len(),
        shown(&answer[from..]),
        shown(&expected[from..])
    ))
}

/// A date that was cut off cannot be blanked: it is no difference.
fn same_beginning(answer: &[u8], expected: &[u8]) -> bool {
    let same = answer
        .iter()
        .zip(expected)
        .take_while(|(a, b)| a == b)
        .count();
    let cut = expected[..same]
        .windows(8)
        .rposition(|part| part == b"\r\nDate: ");
    same == answer.len()
        || (answer.len() < expected.len()
            && cut.is_some_and(|at| answer.len() < at + 8 + DATE.len()))
}

fn blank_dates(answer: &mut [u8]) {
    let mut at = 0;
    while let Some(found) = answer[at..]
        .windows(8)
        .position(|part| part == b"\r\nDate: ")
    {
        at += found + 8;
        if let Some(date) = answer.get_mut(at..at + DATE.len()) {
            date.copy_from_slice(DATE.as_bytes());
        }
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(900)]).into_owned()
}
