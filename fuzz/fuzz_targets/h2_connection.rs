//! HTTP/2: whatever bytes come are the same events and answers in whatever pieces; and whatever a
//! user does between them, what leaves are frames within their windows, and no user hears of a
//! stream that has ended.
#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use proto::h2::connection::Heads;
use proto::h2::frame::{FrameHead, HEAD_LENGTH, Kind, PREFACE, flags};
use proto::h2::hpack::{Encoder, Field};
use proto::h2::priority::Priority;
use proto::h2::request::Rules;
use proto::h2::{Connection, ErrorCode, Event, Limits, Violation};
use proto::head::Head;

const STREAMS_MAX: u32 = 5;
const WINDOW: u32 = 300;
const INITIAL_WINDOW_SIZE_DEFAULT: u64 = 65_535;

/// Bytes of answers that a connection may keep for one piece of input: a frame asks for few of
/// them.
const CONTROL_MAX: usize = 64 * 1024;

const RULES: Rules = Rules {
    field_size_max: 256,
    head_size_max: 1024,
    fields_max: 10,
    ignore_invalid: true,
    underscores: false,
    merge_slashes: true,
    extended_connect: true,
};

fuzz_target!(|data: &[u8]| check(data));

fn check(data: &[u8]) {
    let Some(([mode, size, seed], rest)) = data.split_first_chunk() else {
        return;
    };
    let mut input = Vec::new();
    if mode & 1 != 0 {
        input.extend_from_slice(PREFACE);
    }
    if mode & 2 != 0 {
put_conversation(rest, &mut input)
} else {
input.extend_from_slice(rest)
}
    let limits = Limits {
        streams_max: STREAMS_MAX,
        stream_window: if mode & 4 != 0 {
WINDOW
} else {
100_000
},
        block_size_max: 2048,
        extended_connect: mode & 8 != 0,
    };
    let size = usize::from(*size) + 1;
    let whole = take(limits, &input, input.len().max(1));
    assert_eq!(whole, take(limits, &input, size));
    assert_eq!(whole, take(limits, &input, 1));
    Model::new(limits, &input, u32::from(*seed)).run(size);
}

/// Frames as a client may send them, each made of a few bytes; now and then one is odd.
fn put_conversation(mut rest: &[u8], out: &mut Vec<u8>) {
    let mut encoder = Encoder::new(4096);
    let mut next = 1u32;
    while let Some(([action, which, size], behind)) = rest.split_first_chunk() {
        rest = behind;
        let known = next.saturating_sub(2 * (u32::from(*which) % 8) + 2);
        let bytes = behind.get(..usize::from(*size)).unwrap_or(behind);
        let number = u32::from(*size) << (which & 31);
        match action % 20 {
            0..=3 => {
                let ends = action & 32 != 0;
                put_head(&mut encoder, next, ends, *which, out);
                next += 2 + 2 * u32::from(action & 0xc0 == 0xc0);
            }
            4..=7 => {
                let padding = if which & 64 != 0 { flags::PADDED } else { 0 };
                put(Kind::Data, padding | which >> 7, known, bytes, out);
            }
            8 => put(Kind::WindowUpdate, 0, known, &number.to_be_bytes(), out),
            9 => put(Kind::WindowUpdate, 0, 0, &number.to_be_bytes(), out),
            10 => put(Kind::Reset, 0, known, &number.to_be_bytes(), out),
            11 => {
                let name = u16::from(which % 10).to_be_bytes();
                let setting = [&name[..], &number.to_be_bytes()].concat();
                put(Kind::Settings, 0, 0, &setting, out);
            }
            12 => put(Kind::Settings, flags::ACK, 0, &[], out),
            13 => put(Kind::Ping, which & 1, 0, b"12345678", out),
            14 => {
                let stream = next.saturating_add(u32::from(*which)) & !1 | 1;
                let update = [&stream.to_be_bytes()[..], b"u=", &[b'0' + size % 8], b",i"].concat();
                put(Kind::PriorityUpdate, 0, 0, &update, out);
            }
            15 => put(Kind::Priority, 0, known.max(1), &[0, 0, 0, 0, *size], out),
            16 => put(Kind::GoAway, 0, 0, &[0; 8], out),
            17 => {
                let (mut block, fields) = (Vec::new(), [(&b"x-sum"[..], bytes)]);
                encoder.encode(fields.map(Field::from), &mut block);
                let flags = flags::END_HEADERS | which >> 7;
                put(Kind::Headers, flags, known, &block, out);
            }
            18 => put(Kind::Unknown(*which), *size, known, bytes, out),
            _ => {
                let kind = FrameHead::read(&[0, 0, 0, which % 10, 0, 0, 0, 0, 0]).kind;
                put(kind, *size, known, bytes, out);
            }
        }
    }
}

fn put(kind: Kind, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    proto::h2::frame::put_head(out, kind, flags, stream, payload.len());
    out.extend_from_slice(payload);
}

/// A request's header block, in one frame or in several.
fn put_head(encoder: &mut Encoder, stream: u32, ends: bool, which: u8, out: &mut Vec<u8>) {
    let length = usize::from(which).to_string();
    let mut fields = vec![
        (&b":method"[..], &b"POST"[..]),
        (b":scheme", b"https"),
        (b":path", b"/"),
        (b":authority", b"a.org"),
    ];
    if which & 16 != 0 {
        fields.push((b"content-length", length.as_bytes()));
    }
    if which & 32 != 0 {
        fields.push((b"cookie", b"a=b"));
        fields.push((b"x_own", b"of mine"));
        fields.push((b"cookie", b"c=d"));
    }
    let mut block = Vec::new();
    encoder.encode(fields.into_iter().map(Field::from), &mut block);
    let end_stream = u8::from(ends);
    if which & 64 != 0 {
put(
            Kind::Headers,
            end_stream | flags::END_HEADERS,
            stream,
            &block,
            out,
        )
} else {
let (first, second) = block.split_at(block.len().min(usize::from(which)));
            put(Kind::Headers, end_stream, stream, first, out);
            put(Kind::Continuation, flags::END_HEADERS, stream, second, out);
}
}

/// An event, with its bytes.
#[derive(Debug, PartialEq)]
enum Seen {
    Data(u32, Vec<u8>, bool),
    Other(Event, Vec<u8>),
}

/// What comes of an input in pieces of a size: events, answers, and how it ends.
fn take(limits: Limits, input: &[u8], size: usize) -> (Vec<Seen>, Vec<u8>, Option<Violation>) {
    let mut machine = Connection::new(limits);
    let (mut head, mut bytes) = (Head::default(), Vec::new());
    let (mut seen, mut violation) = (Vec::new(), None);
    'pieces: for piece in input.chunks(size) {
        let mut at = 0;
        loop {
            let before = at;
            let mut heads = Heads {
                head: &mut head,
                bytes: &mut bytes,
                rules: &RULES,
                named: None,
            };
            let event = match machine.handle(piece, &mut at, 0, &mut heads) {
                Ok(event) => event,
                Err(end) => {
                    violation = Some(end);
                    break 'pieces;
                }
            };
            assert!((before..=piece.len()).contains(&at));
            let Some(event) = event else {
                assert_eq!(at, piece.len());
                break;
            };
            match event {
                Event::Data {
                    stream,
                    start,
                    length,
                    ends,
                } => put_data(&mut seen, stream, &piece[start..start + length], ends),
                Event::Head {
                    stream,
                    ends,
                    asked,
                } => {
                    let length = asked.ok().and_then(|asked| asked.content_length);
                    machine.open(stream, ends, length, Priority::default(), ());
                    seen.push(Seen::Other(event, bytes.clone()));
                }
                Event::Reset { stream, .. } => {
                    machine.release(stream);
                    seen.push(Seen::Other(event, Vec::new()));
                }
                _ => seen.push(Seen::Other(event, Vec::new())),
            }
        }
    }
    (seen, machine.take_control(), violation)
}

/// Notes a part of a body: how it was cut depends on the pieces.
fn put_data(seen: &mut Vec<Seen>, stream: u32, part: &[u8], is_last: bool) {
    if let Some(Seen::Data(of, bytes, ends @ false)) = seen.last_mut()
        && *of == stream
    {
        bytes.extend_from_slice(part);
        *ends = is_last;
        return;
    }
    seen.push(Seen::Data(stream, part.to_vec(), is_last));
}

/// What a client and a user know of a stream.
#[derive(Default)]
struct Known {
    /// Its user may hear of it.
    receives: bool,
    released: bool,
    /// Bytes of its body that have come, and credit for more.
    received: u64,
    credit: u64,
    /// Bytes that were sent.
    sent: u64,
    /// Nothing may be sent any more.
    ended: bool,
}

/// A user that does what the input says, and a client that looks at what comes of it.
struct Model<'a> {
    machine: Connection<u32>,
    limits: Limits,
    input: &'a [u8],
    fed: usize,
    random: u32,
    streams: HashMap<u32, Known>,
    opened: Vec<u32>,
    last_goaway: u32,
    connection_sent: u64,
}

impl<'a> Model<'a> {
    fn new(limits: Limits, input: &'a [u8], seed: u32) -> Model<'a> {
        Model {
            machine: Connection::new(limits),
            limits,
            input,
            fed: 0,
            random: seed,
            streams: HashMap::new(),
            opened: Vec::new(),
            last_goaway: u32::MAX,
            connection_sent: 0,
        }
    }

    fn below(&mut self, limit: u32) -> u32 {
        let seed = self.random.wrapping_mul(0x0019_660d);
        self.random = seed.wrapping_add(0x3c6e_f35f);
        (self.random >> 8) % limit
    }

    fn run(&mut self, size: usize) {
        let (mut head, mut bytes) = (Head::default(), Vec::new());
        let input = self.input;
        for piece in input.chunks(size) {
            let mut at = 0;
            loop {
                let mut heads = Heads {
                    head: &mut head,
                    bytes: &mut bytes,
                    rules: &RULES,
                    named: None,
                };
                let before = at;
                let event = self.machine.handle(piece, &mut at, 0, &mut heads);
                self.fed += at - before;
                match event {
                    Ok(Some(event)) => self.take(event),
                    Ok(None) => break,
                    Err(violation) => {
                        // What it had been told is all that it may know.
                        self.fed = input.len();
                        self.machine.fail(violation.code());
                        return self.look(Vec::new());
                    }
                }
                self.look(Vec::new());
                self.act();
            }
            self.act();
        }
        for stream in std::mem::take(&mut self.opened) {
            self.release(stream);
        }
        assert_eq!(self.machine.live(), 0);
        assert_eq!(self.machine.turn(), None);
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Head {
                stream,
                ends,
                asked,
            } => {
                assert!(stream % 2 == 1 && !self.streams.contains_key(&stream));
                assert!(self.machine.live() < STREAMS_MAX as usize);
                self.streams.insert(stream, Known::default());
                if ends && self.below(3) == 0 {
                    let mut out = Vec::new();
                    let size = self.below(30_000) as usize;
                    let body = vec![0; size];
                    self.look(Vec::new());
                    if self.machine.answer(stream, b"\x88", &body, 7000, &mut out) {
                        return self.look(out);
                    }
                    assert!(out.is_empty());
                }
                let length = asked.ok().and_then(|asked| asked.content_length);
                let known = self.streams.entry(stream).or_default();
                known.receives = true;
                known.credit = u64::from(self.limits.stream_window);
                self.opened.push(stream);
                let priority = Priority::default();
                self.machine.open(stream, ends, length, priority, stream);
            }
            Event::Data {
                stream,
                length,
                ends,
                ..
            } => {
                let known = self.streams.entry(stream).or_default();
                assert!(known.receives && !known.released);
                known.receives = !ends;
                known.received += length as u64;
                assert!(known.received <= known.credit);
            }
            Event::Reset { stream, .. } => {
                let known = self.streams.entry(stream).or_default();
                assert!(!known.released);
                known.receives = false;
                let stream = self.machine.stream(stream).expect("it is not released");
                assert!(stream.is_closed());
            }
            Event::Malformed { stream, .. } => {
                let known = self.streams.entry(stream).or_default();
                assert!(known.receives && !known.released);
                known.receives = false;
            }
            Event::Refused(_) | Event::GoAway(_) | Event::Pong => {}
        }
    }

    /// Does something.
    fn act(&mut self) {
        let Some(stream) = self.any_stream() else {
            return;
        };
        let mut out = Vec::new();
        if self.below(2) == 0 {
            self.look(Vec::new());
        }
        let receives = self.receives(stream);
        let number = self.below(1000);
        match self.below(24) {
            0..=3 => self
                .machine
                .put_head(stream, b"\x88", number % 4 == 0, &mut out),
            4..=7 => self.machine.wants_to_send(stream),
            8..=13 => return self.send(number),
            14 | 15 => self.machine.consumed(stream, number as usize),
            16 => {
                let priority = Priority {
                    urgency: (number % 8) as u8,
                    incremental: number % 3 == 0,
                };
                self.machine.set_priority(stream, priority);
            }
            17 => {
                self.machine.reset(stream, ErrorCode::InternalError);
                self.streams.entry(stream).or_default().receives = false;
            }
            18 | 19 => {
                self.opened.retain(|opened| *opened != stream);
                return self.release(stream);
            }
            20 => self.machine.widen(stream, number * 100),
            21 => {
                self.machine.ignore_rest(stream);
                self.streams.entry(stream).or_default().receives = false;
            }
            22 if number < 100 => self.machine.announce_end(),
            23 if number < 50 => self.machine.send_goaway(),
            _ => {}
        }
        self.look(out);
        // Whoever has ended a stream hears no more of it; of a request that has come whole he may.
        if receives && !self.receives(stream) {
            self.streams.entry(stream).or_default().receives = false;
        }
    }

    fn receives(&self, stream: u32) -> bool {
        let known = self.machine.stream(stream);
        known.is_some_and(|known| known.receives())
    }

    fn any_stream(&mut self) -> Option<u32> {
        let count = u32::try_from(self.opened.len()).ok()?;
        let place = self.below(count.max(1)) as usize;
        self.opened.get(place).copied()
    }

    fn release(&mut self, stream: u32) {
        self.machine.release(stream);
        let known = self.streams.entry(stream).or_default();
        known.released = true;
        known.receives = false;
        self.look(Vec::new());
    }

    /// Sends what may be sent by someone's turn.
    fn send(&mut self, number: u32) {
        self.look(Vec::new());
        let Some((stream, most)) = self.machine.turn() else {
            return;
        };
        assert!(most > 0);
        let known = self.machine.stream(stream).expect("it is not released");
        assert!(known.sends());
        let part = most.min(64 * number as usize);
        let ends = number % 8 == 0;
        let head = self.machine.sent(stream, part, ends, number % 4 != 0);
        let mut out = head.to_vec();
        out.resize(out.len() + part, 0);
        self.look(out);
    }

    /// Looks at what leaves: `out`, then what answers frames.
    fn look(&mut self, mut out: Vec<u8>) {
        assert!(self.machine.control_length() < CONTROL_MAX);
        self.machine.move_control(&mut out);
        assert!(self.machine.live() <= STREAMS_MAX as usize);
        let mut rest = &out[..];
        while let Some((head, behind)) = rest.split_first_chunk::<HEAD_LENGTH>() {
            let head = FrameHead::read(head);
            let (payload, behind) = behind.split_at(head.length as usize);
            rest = behind;
            self.look_at(head, payload);
        }
        assert!(rest.is_empty());
    }

    fn look_at(&mut self, head: FrameHead, payload: &[u8]) {
        let number = |at: usize| {
            let bytes = payload
                .get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok());
            u32::from_be_bytes(bytes.unwrap_or_default())
        };
        match head.kind {
            Kind::GoAway => {
                assert!(number(0) <= self.last_goaway);
                self.last_goaway = number(0);
            }
            Kind::Settings | Kind::Ping => assert_eq!(head.stream, 0),
            Kind::WindowUpdate => {
                assert!((1..1 << 31).contains(&number(0)));
                if head.stream != 0 {
                    let known = self.streams.entry(head.stream).or_default();
                    assert!(!known.ended);
                    known.credit += u64::from(number(0));
                }
            }
            Kind::Reset => {
                let known = self.streams.entry(head.stream).or_default();
                known.ended = true;
            }
            Kind::Headers | Kind::Data => {
                let sent = match head.kind {
                    Kind::Data => u64::from(head.length),
                    _ => 0,
                };
                self.connection_sent += sent;
                let (connection, of_stream) = self.credit(head.stream);
                let known = self.streams.entry(head.stream).or_default();
                assert!(!known.ended, "{head:?}");
                known.sent += sent;
                known.ended = head.has(flags::END_STREAM);
                assert!(self.connection_sent <= connection);
                assert!(known.sent <= of_stream);
            }
            _ => panic!("a server sends none of {head:?}"),
        }
    }

    /// The most that the client has allowed so far: on the connection, and on a stream.
    fn credit(&self, of: u32) -> (u64, u64) {
        let mut connection = INITIAL_WINDOW_SIZE_DEFAULT;
        let mut stream = INITIAL_WINDOW_SIZE_DEFAULT;
        let mut rest = self.input.get(PREFACE.len()..self.fed).unwrap_or_default();
        while let Some((head, behind)) = rest.split_first_chunk::<HEAD_LENGTH>() {
            let head = FrameHead::read(head);
            let length = behind.len().min(head.length as usize);
            let (payload, behind) = behind.split_at(length);
            rest = behind;
            let increment = || match payload.first_chunk() {
                Some(bytes) => u64::from(u32::from_be_bytes(*bytes) & 0x7fff_ffff),
                None => 0,
            };
            match head.kind {
                Kind::WindowUpdate if head.stream == 0 => connection += increment(),
                Kind::WindowUpdate if head.stream == of => stream += increment(),
                Kind::Settings => {
                    for [n0, n1, v0, v1, v2, v3] in payload.as_chunks().0 {
                        if u16::from_be_bytes([*n0, *n1]) == 4 {
                            // Windows move by the difference: no more than this was ever added.
                            stream += u64::from(u32::from_be_bytes([*v0, *v1, *v2, *v3]));
                        }
                    }
                }
                _ => {}
            }
        }
        (connection, stream)
    }
}
