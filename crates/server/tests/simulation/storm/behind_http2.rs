//! Servers behind that are spoken to by HTTP/2: many requests at once on a connection, each
//! answered in a way of its own, and some of these ways end the connection, or begin to.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use engine::net::Stream;
use proto::h2::connection::Heads;
use proto::h2::frame::{self, Kind, flags};
use proto::h2::hpack::literal::{self, FieldName};
use proto::h2::priority::Priority;
use proto::h2::request::Rules;
use proto::h2::{self, ErrorCode, Event, Limits};
use proto::head::Head;

use super::Storm;
use super::behind::STALL;
use crate::random::Random;

const RULES: Rules = Rules {
    field_size_max: 8192,
    head_size_max: 32 * 1024,
    fields_max: 100,
    ignore_invalid: true,
    underscores: true,
    merge_slashes: true,
    extended_connect: false,
};

/// What a request's stream keeps: its path without the slash, and whether its body has ended.
struct Asked {
    id: String,
    has_ended: Cell<bool>,
}

/// A connection, as its reader and the answers on it share it.
struct Shared {
    stream: Stream,
    machine: RefCell<h2::Connection<Rc<Asked>>>,
    storm: Rc<Storm>,
    /// Nothing is said any more.
    is_over: Cell<bool>,
}

/// Serves a connection of which this much has come.
pub(super) async fn serve(stream: Stream, begun: Vec<u8>, storm: Rc<Storm>, mut random: Random) {
    let limits = Limits {
        streams_max: [1, 2, 3, 100][random.below(4)],
        stream_window: [1, 100, 65_535, 1_000_000][random.below(4)],
        block_size_max: 32 * 1024,
        extended_connect: false,
    };
    let shared = Rc::new(Shared {
        stream,
        machine: RefCell::new(h2::Connection::new(limits)),
        storm,
        is_over: Cell::new(false),
    });
    let gives_credit = random.chance(900);
    let mut input = begun;
    let (mut head, mut bytes) = (Head::default(), Vec::new());
    loop {
        let mut at = 0;
        while at < input.len() {
            let event = {
                let mut heads = Heads {
                    head: &mut head,
                    bytes: &mut bytes,
                    rules: &RULES,
                    named: None,
                };
                let second = engine::uptime().as_secs() as u32;
                let mut machine = shared.machine.borrow_mut();
                machine.handle(&input, &mut at, second, &mut heads)
            };
            match event {
                Ok(None) => break,
                Ok(Some(Event::Head { stream, ends, .. })) => {
                    let path = String::from_utf8_lossy(head.target().of(&bytes)).into_owned();
                    let asked = Rc::new(Asked {
                        id: path.trim_start_matches('/').to_owned(),
                        has_ended: Cell::new(ends),
                    });
                    let opened = Rc::clone(&asked);
                    let priority = Priority::default();
                    let mut machine = shared.machine.borrow_mut();
                    machine.open(stream, ends, None, priority, opened);
                    let answering = answer(Rc::clone(&shared), stream, asked, random.fork());
                    engine::spawn(answering);
                }
                Ok(Some(Event::Data {
                    stream,
                    length,
                    ends,
                    ..
                })) => {
                    let mut machine = shared.machine.borrow_mut();
                    if gives_credit {
                        machine.consumed(stream, length);
                    }
                    if ends && let Some(known) = machine.stream(stream) {
                        known.user.has_ended.set(true);
                    }
                }
                Ok(Some(_)) => {}
                // What has been said wrong of ours is answered so.
                Err(_) => return shared.is_over.set(true),
            }
        }
        let control = shared.machine.borrow_mut().take_control();
        shared.say(control);
        match shared.stream.recv(None).await {
            Ok(more) if !more.is_empty() && !shared.is_over.get() => input = more.to_vec(),
            _ => return shared.is_over.set(true),
        }
    }
}

impl Shared {
    fn say(&self, bytes: impl Into<Vec<u8>>) {
        let bytes = bytes.into();
        if !bytes.is_empty() && !self.is_over.get() {
            self.stream.push(Bytes::from(bytes));
            self.stream.start_send();
        }
    }

    /// The connection is cut, with what has been said or without.
    fn cut(&self, random: &mut Random) {
        self.is_over.set(true);
        if random.chance(500) {
            self.stream.abort()
        } else {
            self.stream.shutdown_write()
        }
    }
}

async fn pause(random: &mut Random) {
    let longest = [0, 20, 1500, 4000][random.below(4)];
    engine::sleep(random.duration(Duration::from_millis(longest))).await;
}

/// A head in one frame.
fn head(stream: u32, status: u16, fields: &[(&str, &str)], ends: bool) -> Vec<u8> {
    let mut block = Vec::new();
    literal::status(status, &mut block);
    for (name, value) in fields {
        literal::field(FieldName::of(name.as_bytes()), value.as_bytes(), &mut block);
    }
    let mut out = Vec::new();
    frame::put_header_block(&mut out, stream, &block, ends, 16_384);
    out
}

/// A part of a body, in frames.
fn data(stream: u32, bytes: &[u8], ends: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let parts = bytes.len().div_ceil(16_384).max(1);
    for (number, part) in (0..parts).map(|number| {
        let from = number * 16_384;
        (number, &bytes[from..bytes.len().min(from + 16_384)])
    }) {
        let flag = if ends && number + 1 == parts {
            flags::END_STREAM
        } else {
            0
        };
        frame::put_head(&mut out, Kind::Data, flag, stream, part.len());
        out.extend_from_slice(part);
    }
    out
}

fn trailers(stream: u32) -> Vec<u8> {
    let mut block = Vec::new();
    literal::field(FieldName::of(b"grpc-status"), b"0", &mut block);
    let mut out = Vec::new();
    frame::put_header_block(&mut out, stream, &block, true, 16_384);
    out
}

/// Frames that no server may send.
fn wrong(stream: u32, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    match random.below(12) {
        0 => out = data(stream, b"before its head", true),
        1 => out = head(stream + 1000, 200, &[], true),
        2 => frame::put_head(&mut out, Kind::Data, 0, stream, 100_000),
        3 => {
            frame::put_head(&mut out, Kind::Data, flags::PADDED, stream, 2);
            out.extend_from_slice(b"\xffx");
        }
        4 => frame::put_window_update(&mut out, stream, 0),
        5 => frame::put_window_update(&mut out, 0, 0),
        6 => frame::put_settings(&mut out, &[(4, u32::MAX)]),
        7 => out = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(),
        8 => {
            frame::put_head(&mut out, Kind::PushPromise, flags::END_HEADERS, stream, 4);
            out.extend_from_slice(&[0, 0, 0, 2]);
        }
        9 => frame::put_head(&mut out, Kind::Continuation, 0, stream, 0),
        10 => out = head(stream, 101, &[], false),
        _ => {
            out = head(stream, 200, &[("content-length", "5")], false);
            out.extend(data(stream, b"more than five", true));
        }
    }
    out
}

async fn answer(shared: Rc<Shared>, stream: u32, asked: Rc<Asked>, mut random: Random) {
    // Some do not wait for the body.
    if random.chance(100) {
        let mut early = head(stream, 413, &[("content-length", "5")], false);
        early.extend(data(stream, b"large", true));
        frame::put_reset(&mut early, stream, ErrorCode::NoError);
        shared.say(early);
        return shared.machine.borrow_mut().release(stream);
    }
    let mut waited = 0;
    while !asked.has_ended.get() && waited < 200 && !shared.is_over.get() {
        engine::sleep(Duration::from_millis(50)).await;
        waited += 1;
    }
    pause(&mut random).await;
    let id = &asked.id;
    let length = [0, 10, 3000, 60_000][random.below(4)];
    let body = format!("{id} {}", "x".repeat(length)).into_bytes();
    let cookie = format!("id={id}");
    let ok = head(stream, 200, &[("set-cookie", &cookie)], false);
    let part = random.below(body.len());
    match random.below(22) {
        0..7 => {
            shared.say([ok, data(stream, &body, true)].concat());
            shared
                .storm
                .behind_answered
                .set(shared.storm.behind_answered.get() + 1);
        }
        7 | 8 => {
            shared.say(ok);
            for piece in body.chunks(1 + body.len() / 3) {
                pause(&mut random).await;
                shared.say(data(stream, piece, false));
            }
            pause(&mut random).await;
            shared.say(trailers(stream));
        }
        9 => {
            let codes = [
                ErrorCode::RefusedStream,
                ErrorCode::Cancel,
                ErrorCode::InternalError,
            ];
            let mut reset = Vec::new();
            frame::put_reset(&mut reset, stream, codes[random.below(3)]);
            shared.say(reset);
        }
        10 => {
            let mut cut = [ok, data(stream, &body[..part], false)].concat();
            frame::put_reset(&mut cut, stream, ErrorCode::InternalError);
            shared.say(cut);
        }
        11 => {
            // Neither this one nor any later one has been looked at.
            let mut goaway = Vec::new();
            frame::put_goaway(&mut goaway, stream.saturating_sub(2), ErrorCode::NoError);
            shared.say(goaway);
            pause(&mut random).await;
            shared.cut(&mut random);
        }
        12 => {
            let mut goaway = Vec::new();
            let last = [stream, u32::MAX >> 1][random.below(2)];
            frame::put_goaway(&mut goaway, last, ErrorCode::NoError);
            shared.say([goaway, ok, data(stream, &body, true)].concat());
        }
        13 => shared.cut(&mut random),
        14 => {
            shared.say([ok, data(stream, &body[..part], false)].concat());
            pause(&mut random).await;
            shared.cut(&mut random);
        }
        15 => engine::sleep(STALL).await,
        16 => {
            shared.say([ok, data(stream, &body[..part], false)].concat());
            engine::sleep(STALL).await;
        }
        17 => {
            let hints = head(stream, 103, &[("link", "a")], false).repeat(random.below(120));
            shared.say([hints, ok, data(stream, &body, true)].concat());
        }
        18 => {
            let status = [404, 500, 503, 204][random.below(4)];
            shared.say(head(stream, status, &[], true));
        }
        19 => shared.say(wrong(stream, &mut random)),
        20 => {
            let mut changed = Vec::new();
            let window = [0, 1, 1000, 100_000][random.below(4)];
            frame::put_settings(&mut changed, &[(3, random.below(4) as u32), (4, window)]);
            shared.say([changed, ok, data(stream, &body, true)].concat());
            pause(&mut random).await;
            let mut back = Vec::new();
            frame::put_settings(&mut back, &[(3, 100), (4, 65_535)]);
            shared.say(back);
        }
        _ => {
            // The head comes a byte at a time.
            for byte in ok {
                shared.say([byte]);
            }
            shared.say(data(stream, &body, true));
        }
    }
    shared.machine.borrow_mut().release(stream);
}
