//! Servers behind: each answers every request in a way of its own.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use engine::net::{Listener, Stream};
use engine::sim;
use proto::h2::frame::PREFACE;

use super::{Storm, behind_http2, settings};
use crate::random::Random;

/// How long one that says nothing keeps silent.
pub(super) const STALL: Duration = Duration::from_secs(100);

/// Starts all of them.
pub(super) fn start(storm: &Rc<Storm>, random: &mut Random) {
    for number in 0..settings::BEHIND {
        let (socket, _) = sim::listen(settings::address(number)).unwrap();
        let (storm, mut random) = (Rc::clone(storm), random.fork());
        engine::spawn(async move {
            let listener = Listener::new(socket).unwrap();
            while let Ok(stream) = listener.accept().await {
                if storm.away[number].get() {
                    stream.reset();
                    continue;
                }
                let connection = Connection {
                    stream,
                    unread: Vec::new(),
                    has_said_too_much: false,
                    storm: Rc::clone(&storm),
                    random: random.fork(),
                };
                engine::spawn(connection.serve());
            }
        });
    }
}

struct Connection {
    stream: Stream,
    unread: Vec<u8>,
    /// Nothing may be asked on it any more.
    has_said_too_much: bool,
    storm: Rc<Storm>,
    random: Random,
}

/// A request: its path without the slash, and how long its body is.
struct Asked {
    id: String,
    length: usize,
    upgrades: bool,
}

/// The connection has ended.
struct Ended;

impl Connection {
    async fn serve(mut self) {
        while self.unread.len() < PREFACE.len() && PREFACE.starts_with(&self.unread) {
            if self.more().await.is_err() {
                return;
            }
        }
        if self.unread.starts_with(PREFACE) {
            let Connection {
                stream,
                unread,
                storm,
                random,
                ..
            } = self;
            return behind_http2::serve(stream, unread, storm, random).await;
        }
        while let Ok(asked) = self.read_head().await {
            if self.has_said_too_much {
                let what = "a connection is used again on which too much was said";
                self.storm.violated(what);
            }
            if self.answer(asked).await.is_err() {
                return;
            }
        }
    }

    async fn more(&mut self) -> Result<(), Ended> {
        match self.stream.recv(None).await {
            Ok(bytes) if !bytes.is_empty() => self.unread.extend_from_slice(&bytes),
            _ => return Err(Ended),
        }
        Ok(())
    }

    async fn read_head(&mut self) -> Result<Asked, Ended> {
        let end = loop {
            match self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(end) => break end + 4,
                None => self.more().await?,
            }
        };
        let head = String::from_utf8_lossy(&self.unread[..end]).into_owned();
        self.unread.drain(..end);
        let field = |name: &str| {
            let mut lines = head.lines();
            lines.find_map(|line| line.strip_prefix(name).map(str::to_owned))
        };
        let path = head.split(' ').nth(1).unwrap_or_default();
        Ok(Asked {
            id: path.trim_start_matches('/').to_owned(),
            length: field("Content-Length: ").map_or(0, |length| length.parse().unwrap()),
            upgrades: field("Upgrade: ").is_some(),
        })
    }

    async fn read_body(&mut self, asked: &Asked) -> Result<(), Ended> {
        while self.unread.len() < asked.length {
            self.more().await?;
        }
        self.unread.drain(..asked.length);
        Ok(())
    }

    async fn pause(&mut self) {
        let longest = [0, 20, 1500, 4000][self.random.below(4)];
        let pause = self.random.duration(Duration::from_millis(longest));
        engine::sleep(pause).await;
    }

    fn say(&self, bytes: impl Into<Vec<u8>>) {
        self.stream.push(Bytes::from(bytes.into()));
        self.stream.start_send();
    }

    /// Ends it, in one way or the other.
    async fn end(&mut self) -> Result<(), Ended> {
        self.pause().await;
        if self.random.chance(500) {
            self.stream.abort();
        }
        Err(Ended)
    }

    async fn answer(&mut self, asked: Asked) -> Result<(), Ended> {
        // Some do not wait for the body.
        if self.random.chance(100) {
            self.say("HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge");
            return self.end().await;
        }
        self.read_body(&asked).await?;
        self.pause().await;
        if asked.upgrades && self.random.chance(700) {
            return self.upgrade().await;
        }
        let id = &asked.id;
        let length = [0, 10, 3000, 60_000][self.random.below(4)];
        let body = format!("{id} {}", "x".repeat(length));
        let cookie = format!("Set-Cookie: id={id}\r\n");
        let head = |status: &str, rest: &str| format!("HTTP/1.1 {status}\r\n{cookie}{rest}\r\n");
        let whole = head("200 OK", &format!("Content-Length: {}\r\n", body.len()));
        let part_of_head = self.random.below(whole.len());
        let part_of_body = self.random.below(body.len());
        match self.random.below(20) {
            0..6 => self.say(whole + &body),
            6..8 => {
                let chunks = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
                self.say(head("200 OK", "Transfer-Encoding: chunked\r\n"));
                self.pause().await;
                self.say(chunks);
            }
            8 => {
                self.say(head("200 OK", "Connection: close\r\n") + &body);
                self.stream.drained(0).await.map_err(|_| Ended)?;
                return Err(Ended);
            }
            9 => {
                // Byte by byte, and slow.
                self.say(whole);
                for part in body.as_bytes().chunks(1 + body.len() / 5) {
                    self.pause().await;
                    self.say(part);
                }
            }
            10 => return self.end().await,
            11 => {
                self.say(&whole.as_bytes()[..part_of_head]);
                return self.end().await;
            }
            12 => engine::sleep(STALL).await,
            13 => {
                self.say(&whole.as_bytes()[..part_of_head]);
                engine::sleep(STALL).await;
            }
            14 => {
                self.say(whole + &body[..part_of_body]);
                return self.end().await;
            }
            15 => {
                self.say(whole + &body[..part_of_body]);
                engine::sleep(STALL).await;
            }
            16 => {
                let hints =
                    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n";
                let hints = hints.repeat(self.random.below(70));
                self.say(hints + &whole + &body);
            }
            17 => {
                let status =
                    ["404 Not Found", "500 Oh", "503 Busy", "101 What"][self.random.below(4)];
                self.say(head(status, "Content-Length: 0\r\n"));
            }
            18 => self.say("no such thing as a head\r\n\r\n"),
            _ if self.storm.is_orderly => {
                self.has_said_too_much = true;
                self.say(whole + &body + "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\noff");
            }
            _ => self.say(whole + &body),
        }
        Ok(())
    }

    async fn upgrade(&mut self) -> Result<(), Ended> {
        self.say(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: storm\r\nConnection: upgrade\r\n\r\n",
        );
        for _ in 0..self.random.below(4) {
            self.pause().await;
            self.say("more");
        }
        self.end().await
    }
}
