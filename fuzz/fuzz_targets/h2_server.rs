//! HTTP/2 towards a server that does what it likes: whatever bytes it sends are the same events in
//! whatever pieces; and whatever a user does between them, what leaves are frames within the
//! windows that the server has given, of streams that have not ended, and no user hears of a stream
//! that it has let go of, or of more than it has given credit for.
#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use proto::h2::client::{Client, Event, Limits, RequestStart};
use proto::h2::frame::{FrameHead, HEAD_LENGTH, Kind, PREFACE, flags};
use proto::h2::hpack::{Encoder, Field};
use proto::h2::{ErrorCode, Violation};

const WINDOW: u32 = 1000;
const INITIAL_WINDOW_SIZE_DEFAULT: u64 = 65_535;
const LIMITS: Limits = Limits {
    stream_window: WINDOW,
    head_size_max: 2048,
};

/// Requests that are there before anything comes.
const BEGUN: u32 = 4;

/// Bytes of answers that a connection may keep for one piece of input.
const OUTPUT_MAX: usize = 64 * 1024;

fuzz_target!(|data: &[u8]| check(data));

fn check(data: &[u8]) {
    let Some(([mode, size, seed], rest)) = data.split_first_chunk() else {
        return;
    };
    let mut input = Vec::new();
    if mode & 1 != 0 {
        put(Kind::Settings, 0, 0, &[], &mut input);
    }
    if mode & 2 != 0 {
put_conversation(rest, &mut input)
} else {
input.extend_from_slice(rest)
}
    let size = usize::from(*size) + 1;
    let whole = take(&input, input.len().max(1));
    assert_eq!(whole, take(&input, size));
    assert_eq!(whole, take(&input, 1));
    Model::new(u32::from(*seed)).run(&input, size);
}

/// Frames as a server may send them, each made of a few bytes; now and then one is odd.
fn put_conversation(mut rest: &[u8], out: &mut Vec<u8>) {
    let mut encoder = Encoder::new(4096);
    while let Some(([action, which, size], behind)) = rest.split_first_chunk() {
        rest = behind;
        let stream = 1 + 2 * (u32::from(*which) % 8);
        let bytes = behind.get(..usize::from(*size)).unwrap_or(behind);
        let number = u32::from(*size) << (which & 31);
        let ends = action >> 7;
        match action % 20 {
            0..=4 => {
                let status = [&b"200"[..], b"103", b"204", b"500", b"100", b"99", b"2x0"];
                let status = status[usize::from(*size) % status.len()];
                let length = usize::from(which % 32).to_string();
                let mut fields = vec![(&b":status"[..], status)];
                if which & 64 != 0 {
                    fields.push((b"content-length", length.as_bytes()));
                }
                if which & 128 != 0 {
                    fields.push((b"set-cookie", b"a=b"));
                    fields.push((b"connection", b"close"));
                }
                put_block(&mut encoder, stream, ends, *which, &fields, out);
            }
            5..=8 => {
                let padding = if which & 64 != 0 { flags::PADDED } else { 0 };
                put(Kind::Data, padding | ends, stream, bytes, out);
            }
            9 => put_block(&mut encoder, stream, ends, *which, &[(b"grpc-status", b"0")], out),
            10 => put(Kind::WindowUpdate, 0, stream, &number.to_be_bytes(), out),
            11 => put(Kind::WindowUpdate, 0, 0, &number.to_be_bytes(), out),
            12 => put(Kind::Reset, 0, stream, &number.to_be_bytes(), out),
            13 => {
                let name = u16::from(which % 10).to_be_bytes();
                let setting = [&name[..], &number.to_be_bytes()].concat();
                put(Kind::Settings, 0, 0, &setting, out);
            }
            14 => put(Kind::Settings, flags::ACK, 0, &[], out),
            15 => put(Kind::Ping, which & 1, 0, b"12345678", out),
            16 => {
                let goaway = [&(stream - 1).to_be_bytes()[..], &number.to_be_bytes()].concat();
                put(Kind::GoAway, 0, 0, &goaway, out);
            }
            17 => put(Kind::Unknown(*which), *size, stream, bytes, out),
            _ => {
                let kind = FrameHead::read(&[0, 0, 0, which % 10, 0, 0, 0, 0, 0]).kind;
                put(kind, *size, stream, bytes, out);
            }
        }
    }
}

fn put(kind: Kind, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    proto::h2::frame::put_head(out, kind, flags, stream, payload.len());
    out.extend_from_slice(payload);
}

/// A header block, in one frame or in two.
fn put_block(
    encoder: &mut Encoder,
    stream: u32,
    end_stream: u8,
    which: u8,
    fields: &[(&[u8], &[u8])],
    out: &mut Vec<u8>,
) {
    let mut block = Vec::new();
    encoder.encode(fields.iter().copied().map(Field::from), &mut block);
    let end = flags::END_HEADERS;
    if which & 32 == 0 {
        return put(Kind::Headers, end_stream | end, stream, &block, out);
    }
    let (first, second) = block.split_at(block.len().min(usize::from(which % 16)));
    put(Kind::Headers, end_stream, stream, first, out);
    put(Kind::Continuation, end, stream, second, out);
}

/// The fields of a request.
fn request() -> impl Iterator<Item = Field<'static>> {
    let fields: [(&[u8], &[u8]); 4] = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/"),
        (b":authority", b"a"),
    ];
    fields.into_iter().map(Field::from)
}

/// An event, with what of a body or a head comes with it.
#[derive(Debug, PartialEq)]
enum Seen {
    Data(u32, Vec<u8>, bool),
    Other(Event, Vec<u8>),
}

/// What comes of an input in pieces of a size, for a user who has asked and does nothing more:
/// events, what is sent, and how it ends.
fn take(input: &[u8], size: usize) -> (Vec<Seen>, Vec<u8>, Option<Violation>) {
    let mut machine = Client::new(LIMITS);
    for _ in 0..BEGUN {
        machine.open(request(), RequestStart::default(), ()).unwrap();
    }
    let (mut seen, mut violation) = (Vec::new(), None);
    'pieces: for piece in input.chunks(size) {
        let mut at = 0;
        loop {
            let before = at;
            let event = match machine.handle(piece, &mut at, 0) {
                Ok(event) => event,
                Err(end) => {
                    violation = Some(end);
                    break 'pieces;
                }
            };
            assert!((before..=piece.len()).contains(&at));
            match event {
                None => {
                    assert_eq!(at, piece.len());
                    break;
                }
                Some(Event::Data {
                    stream,
                    start,
                    length,
                    ends,
                }) => put_data(&mut seen, stream, &piece[start..start + length], ends),
                Some(event) => {
                    let head = match event {
                        Event::Head { .. } | Event::Interim { .. } | Event::Trailers { .. } => {
                            machine.head().bytes().to_vec()
                        }
                        _ => Vec::new(),
                    };
                    seen.push(Seen::Other(event, head));
                }
            }
        }
    }
    (seen, machine.take_output(), violation)
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

/// What a server and a user know of a stream.
#[derive(Default)]
struct Known {
    has_head: bool,
    /// The user may hear of it.
    receives: bool,
    released: bool,
    /// Bytes of the answer that have come, and that the user has taken.
    received: u64,
    consumed: u64,
    /// Bytes of the request that were sent, and nothing may be any more.
    sent: u64,
    ended: bool,
}

/// A user that does what chance says, and a server that looks at what comes of it.
struct Model {
    machine: Client<u32>,
    random: u32,
    streams: HashMap<u32, Known>,
    output: Vec<u8>,
    looked: usize,
    /// The largest window that the server has set, and credit for the connection.
    window: u64,
    credit: u64,
    /// Credit that the server gives streams beside the window at first.
    credits: HashMap<u32, u64>,
    sent: u64,
    last_opened: u32,
    has_gone: bool,
}

impl Model {
    fn new(seed: u32) -> Model {
        let mut model = Model {
            machine: Client::new(LIMITS),
            random: seed,
            streams: HashMap::new(),
            output: Vec::new(),
            looked: 0,
            window: INITIAL_WINDOW_SIZE_DEFAULT,
            credit: INITIAL_WINDOW_SIZE_DEFAULT,
            credits: HashMap::new(),
            sent: 0,
            last_opened: 0,
            has_gone: false,
        };
        for _ in 0..BEGUN {
            model.open();
        }
        model
    }

    fn below(&mut self, limit: u32) -> u32 {
        let seed = self.random.wrapping_mul(0x0019_660d);
        self.random = seed.wrapping_add(0x3c6e_f35f);
        (self.random >> 8) % limit
    }

    fn open(&mut self) {
        let ends = self.below(3) == 0;
        let opening = RequestStart {
            ends,
            is_head: self.below(8) == 0,
        };
        if let Some(stream) = self.machine.open(request(), opening, 0) {
            assert!(!self.has_gone, "a stream is opened after GOAWAY");
            let known = Known {
                receives: true,
                ..Known::default()
            };
            assert!(self.streams.insert(stream, known).is_none());
        }
        self.look();
    }

    fn run(&mut self, input: &[u8], size: usize) {
        self.release_capacity(input);
        for piece in input.chunks(size) {
            let mut at = 0;
            loop {
                match self.machine.handle(piece, &mut at, 0) {
                    Ok(Some(event)) => self.take(event),
                    Ok(None) => break,
                    Err(violation) => {
                        self.machine.fail(violation);
                        return self.look();
                    }
                }
                self.act();
            }
            self.act();
        }
        let all: Vec<u32> = self.streams.keys().copied().collect();
        all.into_iter().for_each(|stream| self.release(stream));
        assert_eq!(self.machine.live(), 0);
        assert_eq!(self.machine.turn(), None);
    }

    /// Everything that the input may come to give, whenever that is: what is sent must lie within
    /// it.
    fn release_capacity(&mut self, input: &[u8]) {
        let mut rest = input;
        while let Some((head, payload)) = rest.split_first_chunk::<HEAD_LENGTH>() {
            let head = FrameHead::read(head);
            let end = payload.len().min(head.length as usize);
            let (payload, behind) = payload.split_at(end);
            rest = behind;
            match (head.kind, payload) {
                (Kind::WindowUpdate, [a, b, c, d]) => {
                    let number = u32::from_be_bytes([*a, *b, *c, *d]) & 0x7fff_ffff;
                    match head.stream {
                        0 => self.credit += u64::from(number),
                        stream => *self.credits.entry(stream).or_default() += u64::from(number),
                    }
                }
                (Kind::Settings, pairs) if !head.has(flags::ACK) => {
                    for pair in pairs.as_chunks::<6>().0 {
                        if pair[..2] == [0, 4] {
                            let value = u32::from_be_bytes([pair[2], pair[3], pair[4], pair[5]]);
                            self.window = self.window.max(u64::from(value));
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn hears(&mut self, stream: u32) -> &mut Known {
        let known = self.streams.get_mut(&stream).expect("a stream that was opened");
        assert!(known.receives && !known.released, "its user had let it go");
        known
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Interim { stream } => assert!(!self.hears(stream).has_head),
            Event::Head { stream, ends } => {
                let known = self.hears(stream);
                assert!(!known.has_head);
                known.has_head = true;
                known.receives = !ends;
            }
            Event::Data {
                stream,
                length,
                ends,
                ..
            } => {
                let known = self.hears(stream);
                assert!(known.has_head);
                known.received += length as u64;
                assert!(known.received <= known.consumed + u64::from(WINDOW));
                known.receives = !ends;
            }
            Event::Trailers { stream } => {
                let known = self.hears(stream);
                assert!(known.has_head);
                known.receives = false;
            }
            Event::Reset { stream, .. } | Event::NotServed { stream } => {
                let known = self.streams.get_mut(&stream).expect("a stream that was opened");
                assert!(!known.released);
                known.receives = false;
                known.ended = true;
            }
            Event::GoAway(_) => self.has_gone = true,
            Event::Pong => {}
        }
    }

    fn release(&mut self, stream: u32) {
        self.machine.release(stream);
        if let Some(known) = self.streams.get_mut(&stream) {
            known.released = true;
        }
        self.look();
    }

    /// Something that a user may do.
    fn act(&mut self) {
        let all: Vec<u32> = self.streams.keys().copied().collect();
        let stream = match all.len() {
            0 => return self.open(),
            count => all[self.below(count as u32) as usize],
        };
        match self.below(8) {
            0 => self.open(),
            1 | 2 => self.machine.wants_to_send(stream),
            3 | 4 => {
                if let Some((stream, most)) = self.machine.turn() {
                    let length = self.below(most as u32 + 1) as usize;
                    let ends = self.below(4) == 0;
                    let bytes = vec![0; length];
                    self.machine.put_data(stream, &bytes, ends, self.random & 1 == 0);
                }
            }
            5 => {
                let bytes = self.below(WINDOW);
                if let Some(known) = self.streams.get_mut(&stream)
                    && !known.released
                {
                    let taken = u64::from(bytes).min(known.received - known.consumed);
                    known.consumed += taken;
                    self.machine.consumed(stream, taken as usize);
                }
            }
            6 => self.release(stream),
            _ => {
                self.machine.reset(stream, ErrorCode::Cancel);
                if let Some(known) = self.streams.get_mut(&stream) {
                    known.receives = false;
                }
            }
        }
        self.look();
    }

    /// Looks at what leaves.
    fn look(&mut self) {
        let output = self.machine.take_output();
        assert!(output.len() < OUTPUT_MAX + 20 * 16_384, "{}", output.len());
        self.output.extend_from_slice(&output);
        if self.looked == 0 && self.output.len() >= PREFACE.len() {
            assert!(self.output.starts_with(PREFACE));
            self.looked = PREFACE.len();
        }
        while let Some(rest) = self.output.get(self.looked..)
            && let Some((head, payload)) = rest.split_first_chunk::<HEAD_LENGTH>()
        {
            let head = FrameHead::read(head);
            let length = head.length as usize;
            assert!(payload.len() >= length, "frames leave whole");
            self.looked += HEAD_LENGTH + length;
            match head.kind {
                Kind::Headers => {
                    assert!(head.stream % 2 == 1);
                    let known = self.streams.entry(head.stream).or_insert_with(|| Known {
                        receives: true,
                        ..Known::default()
                    });
                    assert!(head.stream > self.last_opened);
                    self.last_opened = head.stream;
                    known.ended |= head.has(flags::END_STREAM);
                }
                Kind::Data => {
                    let credit = self.credits.get(&head.stream).copied();
                    let window = self.window + credit.unwrap_or_default();
                    let known = self.streams.get_mut(&head.stream).expect("an open stream");
                    assert!(!known.ended, "DATA behind the end");
                    known.sent += length as u64;
                    self.sent += length as u64;
                    assert!(known.sent <= window);
                    assert!(self.sent <= self.credit);
                    known.ended = head.has(flags::END_STREAM);
                }
                Kind::Reset => {
                    if let Some(known) = self.streams.get_mut(&head.stream) {
                        known.ended = true;
                    }
                }
                Kind::Settings | Kind::Ping | Kind::GoAway => assert_eq!(head.stream, 0),
                Kind::WindowUpdate | Kind::Continuation => {}
                kind => panic!("a client sends no {kind:?}"),
            }
        }
    }
}
