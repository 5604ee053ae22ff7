//! Clients of a storm: they ask, and stay or leave.

use std::time::Duration;

use engine::net::{Address, Stream};
use engine::select::{Either, either};

use super::{Storm, settings};
use crate::client::{connect, say};
use crate::random::Random;

/// How long any answer may be in coming: longer than all time limits together.
const PATIENCE: Duration = Duration::from_secs(120);

/// Some requests on some connections, one after the other.
pub(super) async fn play(storm: &Storm, address: &Address, number: usize, mut random: Random) {
    for connection in 0..1 + random.below(3) {
        engine::sleep(random.duration(Duration::from_secs(2))).await;
        let Ok(stream) = connect(address).await else {
            continue;
        };
        for request in 0..1 + random.below(4) {
            let id = format!("{number}-{connection}-{request}");
            if !ask(storm, &stream, &id, &mut random).await {
                break;
            }
        }
        match random.below(3) {
            0 => stream.reset(),
            1 => stream.shutdown_write(),
            _ => {}
        }
    }
}

/// One request, and perhaps its answer; whether the connection goes on.
async fn ask(storm: &Storm, stream: &Stream, id: &str, random: &mut Random) -> bool {
    let host = settings::HOST;
    let fields = format!("Host: {host}\r\nCookie: session=some; id=0-0-0\r\n");
    let length = [0, 0, 20, 50_000][random.below(4)];
    let upgrade = if random.chance(80) {
        "Connection: upgrade\r\nUpgrade: storm\r\n"
    } else {
        ""
    };
    let request = match length {
        0 => format!("GET /{id} HTTP/1.1\r\n{fields}{upgrade}\r\n"),
        _ => {
            let method = ["POST", "PUT"][random.below(2)];
            let body = "y".repeat(length);
            format!("{method} /{id} HTTP/1.1\r\n{fields}Content-Length: {length}\r\n\r\n{body}")
        }
    };
    // Some stop in the middle of it.
    if random.chance(150) {
        say(stream, &request.as_bytes()[..random.below(request.len())]);
        engine::sleep(random.duration(Duration::from_secs(8))).await;
        return false;
    }
    say(stream, request.as_bytes());
    let leaves = match random.below(10) {
        0 => Duration::ZERO,
        1 => random.duration(Duration::from_millis(1)),
        2 => random.duration(Duration::from_millis(50)),
        3 => random.duration(Duration::from_secs(4)),
        4 => {
            // It does not read for a while.
            engine::sleep(random.duration(Duration::from_secs(12))).await;
            PATIENCE
        }
        _ => PATIENCE,
    };
    match either(read_answer(stream), engine::sleep(leaves)).await {
        Either::First(Some(answer)) => {
            storm.answered.set(storm.answered.get() + 1);
            if answer.status == 200 && !answer.begins_with(&format!("{id} ")) {
                storm.violated(format!("{id} is answered with {answer:?}"));
            }
            answer.status != 101
        }
        Either::First(None) => false,
        Either::Second(()) => {
            if leaves == PATIENCE {
                storm.violated(format!("no answer to {id}"));
            }
            false
        }
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    body: Vec<u8>,
}

impl Answer {
    fn begins_with(&self, text: &str) -> bool {
        self.body.starts_with(text.as_bytes())
    }
}

/// An answer that comes whole; `None` where the connection ends before that.
async fn read_answer(stream: &Stream) -> Option<Answer> {
    let mut bytes = Vec::new();
    loop {
        if let Some(answer) = parse(&bytes, false) {
            return Some(answer);
        }
        match stream.recv(None).await {
            Ok(more) if !more.is_empty() => bytes.extend_from_slice(&more),
            Ok(_) => return parse(&bytes, true),
            Err(_) => return None,
        }
    }
}

fn parse(bytes: &[u8], has_ended: bool) -> Option<Answer> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let (head, body) = bytes.split_at(end);
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let status: u16 = head.split(' ').nth(1)?.parse().ok()?;
    let whole = |body: Vec<u8>| Some(Answer { status, body });
    if status == 101 {
        return whole(Vec::new());
    }
    if status < 200 {
        return parse(body, has_ended);
    }
    if let Some((_, rest)) = head.split_once("content-length: ") {
        let length: usize = rest.split("\r\n").next()?.parse().ok()?;
        return whole(body.get(..length)?.to_vec());
    }
    if head.contains("transfer-encoding: chunked") {
        whole(crate::http2::wish::unchunked(body)?)
    } else if has_ended {
        whole(body.to_vec())
    } else {
        None
    }
}
