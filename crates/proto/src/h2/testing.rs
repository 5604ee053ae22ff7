//! Both ends of a connection, with a pipe between them that splits and delays the bytes: for tests,
//! and for the fuzz target `h2_pipe`.
//!
//! [`talk`] makes all choices from its input bytes: which requests are sent, how bodies are split,
//! padded and ended, who gives credit and when, who resets which stream, and how many bytes the
//! pipe has delivered in each direction. Neither end may report an error of the other; all data
//! sent must be received; and when the pipe is empty, both ends must agree on the windows.
//!
//! Not here: peers that violate the protocol (`h2_connection`).

use std::collections::BTreeMap;

use super::client::{self, Client, RequestStart};
use super::connection::Heads;
use super::frame::{self, FrameHead, HEAD_LENGTH, Kind, PREFACE, flags};
use super::hpack::{Field, literal};
use super::priority::Priority;
use super::request::Rules;
use super::{Connection, ErrorCode, Event, Limits, StreamFault};
use crate::head::Head;
use crate::header::KnownField;

/// Requests per connection: low enough that the server tolerates the refused ones.
const REQUESTS_MAX: usize = 60;

/// Rounds in which both ends do all they can: more than any body needs.
const ROUNDS_MAX: usize = 10_000;

/// Limit of frames of a kind with a rate limit.
const FEW: usize = 40;

const RULES: Rules = Rules {
    field_size_max: 8 * 1024,
    head_size_max: 32 * 1024,
    fields_max: 100,
    ignore_invalid: true,
    underscores: false,
    merge_slashes: true,
    extended_connect: false,
};

/// Draws choices from bytes; when they are exhausted, always draws the first choice.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> usize {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        usize::from(*first)
    }

    /// A number below `limit`, which must be at least 1.
    fn below(&mut self, limit: usize) -> usize {
        let number = match limit {
            ..=256 => self.byte(),
            _ => (self.byte() << 16) | (self.byte() << 8) | self.byte(),
        };
        number % limit
    }

    /// A random one of these values.
    fn of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len())]
    }

    fn chance(&mut self, of_256: usize) -> bool {
        self.byte() >= 256 - of_256
    }
}

/// A request and its response, with the state at both ends.
#[derive(Debug, Default)]
struct Exchange {
    request_length: usize,
    response_length: usize,
    /// Bytes of the request's body.
    client_sent: usize,
    server_got: usize,
    client_ended: bool,
    server_got_end: bool,
    /// The response.
    server_sent_head: bool,
    server_sent: usize,
    client_got: usize,
    client_got_head: bool,
    server_ended: bool,
    client_got_end: bool,
    /// Received bytes for which no credit was given.
    server_unread: usize,
    client_unread: usize,
    /// Whether each end has reset the stream before its end.
    client_gave_up: bool,
    server_gave_up: bool,
    /// The response was complete before the request: the server did not need the rest of the
    /// request.
    is_cut_short: bool,
    not_served: bool,
}

impl Exchange {
    fn is_cut(&self) -> bool {
        self.client_gave_up || self.server_gave_up || self.not_served
    }
}

struct Talk<'a> {
    choices: Choices<'a>,
    client: Client<usize>,
    server: Connection<usize>,
    /// Bytes in the pipe.
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    has_preface: bool,
    exchanges: Vec<Exchange>,
    /// Streams that both ends, or only the client, have opened.
    streams: BTreeMap<u32, usize>,
    head: Head,
    head_bytes: Vec<u8>,
    second: u32,
    few_left: usize,
    /// Maximum lengths of bodies: with small windows, long ones take many frames.
    request_max: usize,
    response_max: usize,
    pings: usize,
    pongs: usize,
    has_announced_end: bool,
    client_goes: bool,
}

/// Runs both ends according to the choices, and completes all streams.
///
/// # Panics
/// The two ends do not agree.
pub fn talk(choices: &[u8]) {
    let mut talk = Talk::new(Choices(choices));
    while !talk.choices.0.is_empty() {
        talk.act();
    }
    talk.finish();
}

/// The byte at a position of a body.
fn byte_at(index: usize, at: usize) -> u8 {
    (index * 7 + at) as u8
}

fn part_of(index: usize, at: usize, length: usize) -> Vec<u8> {
    (at..at + length).map(|at| byte_at(index, at)).collect()
}

impl<'a> Talk<'a> {
    fn new(mut choices: Choices<'a>) -> Talk<'a> {
        let windows = [65_535, 1, 7, 100, 16_384, 300_000];
        let limits = Limits {
            streams_max: choices.of(&[100, 1, 3, 20]),
            stream_window: choices.of(&windows),
            block_size_max: 32 * 1024,
            extended_connect: choices.chance(128),
        };
        let window = choices.of(&windows);
        let of_client = client::Limits {
            stream_window: window,
            stream_window_max: window * choices.of(&[1, 3]),
            head_size_max: 8 * 1024,
        };
        let mut talk = Talk {
            choices,
            client: Client::new(of_client),
            server: Connection::new(limits),
            to_server: Vec::new(),
            to_client: Vec::new(),
            has_preface: false,
            exchanges: Vec::new(),
            streams: BTreeMap::new(),
            head: Head::default(),
            head_bytes: Vec::new(),
            second: 0,
            few_left: FEW,
            request_max: 100 * limits.stream_window as usize,
            response_max: 100 * of_client.stream_window as usize,
            pings: 0,
            pongs: 0,
            has_announced_end: false,
            client_goes: false,
        };
        talk.collect();
        talk
    }

    fn act(&mut self) {
        // The rate limits are not the subject here: every step is a new second.
        self.second += 1;
        match self.choices.below(16) {
            0..=2 => self.request(),
            3 | 4 => self.client_sends(),
            5 | 6 => self.server_sends(),
            7 => {
                let most = self.choices.of(&[1, 3, 40, 20_000]);
                self.carry_to_server(most);
            }
            8 => {
                let most = self.choices.of(&[1, 3, 40, 20_000]);
                self.carry_to_client(most);
            }
            9 => self.server_answers(),
            10 => self.credit(),
            11 => self.client_gives_up(),
            12 => self.server_gives_up(),
            13 => self.say_something(),
            14 => self.settle(),
            _ => self.end_something(),
        }
        self.collect();
    }

    /// Moves the output of both ends into the pipe.
    fn collect(&mut self) {
        let mut output = self.client.take_output();
        if !self.has_preface {
            self.has_preface = true;
            self.to_server.extend(output.drain(..PREFACE.len()));
        }
        for (head, payload) in frames(&output) {
            let codes = [ErrorCode::NoError, ErrorCode::Cancel];
            assert_reset(head, payload, &codes);
            put_changed(&mut self.choices, head, payload, &mut self.to_server);
        }
        let control = self.server.take_control();
        for (head, payload) in frames(&control) {
            let codes = [
                ErrorCode::NoError,
                ErrorCode::Cancel,
                ErrorCode::InternalError,
                ErrorCode::RefusedStream,
            ];
            assert_reset(head, payload, &codes);
        }
        self.to_client.extend_from_slice(&control);
    }

    /// Puts a header block of the server into the pipe, possibly in another form.
    fn put_head(&mut self, stream: u32, block: &[u8], ends: bool) {
        let mut out = Vec::new();
        self.server.put_head(stream, block, ends, &mut out);
        for (head, payload) in frames(&out) {
            put_changed(&mut self.choices, head, payload, &mut self.to_client);
        }
    }

    fn any_stream(&mut self, is_wanted: impl Fn(&Exchange) -> bool) -> Option<(u32, usize)> {
        let wanted = |(_, index): &(&u32, &usize)| is_wanted(&self.exchanges[**index]);
        let wanted: Vec<(u32, usize)> = self
            .streams
            .iter()
            .filter(wanted)
            .map(|(stream, index)| (*stream, *index))
            .collect();
        match wanted.len() {
            0 => None,
            count => Some(wanted[self.choices.below(count)]),
        }
    }

    // The client's actions.

    fn request(&mut self) {
        if self.exchanges.len() >= REQUESTS_MAX || !self.client.may_open() {
            return;
        }
        let lengths = [0, 1, 50, 2000, 20_000];
        let exchange = Exchange {
            request_length: self.choices.of(&lengths).min(self.request_max),
            response_length: self.choices.of(&lengths).min(self.response_max),
            ..Exchange::default()
        };
        let index = self.exchanges.len();
        let ends = exchange.request_length == 0 && self.choices.chance(200);
        let path = format!("/{index}");
        let length = exchange.request_length.to_string();
        let long = vec![b'x'; self.choices.of(&[1, 30, 300, 5000])];
        let mut fields: Vec<(&[u8], &[u8])> = vec![
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":path", path.as_bytes()),
            (b":authority", b"example.org"),
        ];
        if self.choices.chance(128) {
            fields.push((b"content-length", length.as_bytes()));
        }
        if self.choices.chance(128) {
            fields.push((b"x-long", &long));
        }
        if self.choices.chance(128) {
            fields.push((b"cookie", b"a=b"));
            fields.push((b"x-same", b"in each"));
        }
        let opening = RequestStart {
            ends,
            is_head: false,
        };
        let fields = fields.into_iter().map(Field::from);
        let stream = self.client.open(fields, opening, index);
        let stream = stream.expect("it may be opened");
        self.streams.insert(stream, index);
        self.exchanges.push(exchange);
        self.exchanges[index].client_ended = ends;
        if !ends {
            self.client.wants_to_send(stream);
        }
    }

    /// Sends a part of the body of the stream whose turn it is.
    fn client_sends(&mut self) {
        let Some((stream, most)) = self.client.turn() else {
            return;
        };
        let index = self.streams[&stream];
        let exchange = &mut self.exchanges[index];
        let left = exchange.request_length - exchange.client_sent;
        let (part, padding) = cut(&mut self.choices, left, most);
        let is_last = part == left;
        let trailers = is_last && self.choices.chance(30);
        let ends = is_last && !trailers && (part > 0 || !self.choices.chance(56));
        let length = part + padding.map_or(0, |padding| padding + 1);
        let has_more = !ends && !trailers;
        let head = self.client.sent(stream, length, ends, has_more);
        let bytes = part_of(index, exchange.client_sent, part);
        exchange.client_sent += part;
        exchange.client_ended = ends || trailers;
        // Frames that were queued before it.
        self.collect();
        put_data(head, &bytes, padding, &mut self.to_server);
        if trailers {
            let field = Field::from((&b"x-sum"[..], &b"right"[..]));
            self.client.put_trailers(stream, [field]);
        }
    }

    fn client_gives_up(&mut self) {
        let wanted = |exchange: &Exchange| !exchange.client_got_end && !exchange.client_gave_up;
        let Some((stream, index)) = self.any_stream(wanted) else {
            return;
        };
        if !self.client.is_live(stream) {
            return;
        }
        self.exchanges[index].client_gave_up = true;
        if self.choices.chance(128) {
            self.client.reset(stream, ErrorCode::Cancel);
        }
        self.client.release(stream);
    }

    // The server's actions.

    fn block(&mut self, index: usize) -> Vec<u8> {
        let mut block = Vec::new();
        literal::status(200, &mut block);
        let exchange = &self.exchanges[index];
        let name = literal::FieldName::of(b"x-index");
        literal::field(name, index.to_string().as_bytes(), &mut block);
        if index.is_multiple_of(2) {
            let name = literal::FieldName::of_known(KnownField::ContentLength);
            let length = exchange.response_length.to_string();
            literal::field(name, length.as_bytes(), &mut block);
        }
        block
    }

    /// Sends the head of a response.
    fn server_answers(&mut self) {
        let wanted = |exchange: &Exchange| !exchange.server_sent_head;
        let Some((stream, index)) = self.any_stream(wanted) else {
            return;
        };
        self.answer(stream, index);
    }

    fn answer(&mut self, stream: u32, index: usize) {
        let sends = self
            .server
            .stream(stream)
            .is_some_and(|known| known.sends());
        if !sends {
            return;
        }
        if self.choices.chance(40) {
            let mut block = Vec::new();
            literal::status(103, &mut block);
            self.put_head(stream, &block, false);
        }
        let block = self.block(index);
        let ends = self.exchanges[index].response_length == 0 && self.choices.chance(128);
        self.put_head(stream, &block, ends);
        let exchange = &mut self.exchanges[index];
        exchange.server_sent_head = true;
        exchange.server_ended = ends;
        exchange.is_cut_short = ends && !exchange.server_got_end;
        if !ends {
            self.server.wants_to_send(stream);
        }
    }

    fn server_sends(&mut self) {
        let Some((stream, most)) = self.server.turn() else {
            return;
        };
        let index = self.streams[&stream];
        let exchange = &mut self.exchanges[index];
        let left = exchange.response_length - exchange.server_sent;
        let (part, padding) = cut(&mut self.choices, left, most);
        let is_last = part == left;
        let trailers = is_last && self.choices.chance(30);
        let ends = is_last && !trailers && (part > 0 || !self.choices.chance(56));
        let length = part + padding.map_or(0, |padding| padding + 1);
        let has_more = !ends && !trailers;
        self.collect();
        let exchange = &mut self.exchanges[index];
        let head = self.server.sent(stream, length, ends, has_more);
        let bytes = part_of(index, exchange.server_sent, part);
        exchange.server_sent += part;
        exchange.server_ended = ends || trailers;
        exchange.is_cut_short = exchange.server_ended && !exchange.server_got_end;
        put_data(head, &bytes, padding, &mut self.to_client);
        if trailers {
            let mut block = Vec::new();
            literal::field(literal::FieldName::of(b"x-sum"), b"right", &mut block);
            self.put_head(stream, &block, true);
        }
    }

    fn server_gives_up(&mut self) {
        let Some((stream, index)) = self.any_stream(|exchange| !exchange.server_gave_up) else {
            return;
        };
        let Some(known) = self.server.stream(stream) else {
            return;
        };
        let exchange = &mut self.exchanges[index];
        // A closed stream is only released.
        exchange.server_gave_up = !known.is_closed() && !exchange.server_ended;
        if !exchange.server_ended && self.choices.chance(128) {
            self.server.reset(stream, ErrorCode::InternalError);
        }
        self.server.release(stream);
    }

    // Actions of both.

    fn credit(&mut self) {
        let unread = |exchange: &Exchange| exchange.client_unread > 0 || exchange.server_unread > 0;
        let Some((stream, index)) = self.any_stream(unread) else {
            return;
        };
        let exchange = &mut self.exchanges[index];
        let part = 1 + self.choices.below(exchange.client_unread.max(1));
        let part = part.min(exchange.client_unread);
        exchange.client_unread -= part;
        self.client.consumed(stream, part);
        let part = 1 + self.choices.below(exchange.server_unread.max(1));
        let part = part.min(exchange.server_unread);
        exchange.server_unread -= part;
        self.server.consumed(stream, part);
        if self.choices.chance(20) {
            let window = self.choices.of(&[10, 1000, 100_000, 300_000]);
            self.server.widen(stream, window);
        }
    }

    /// Sends frames that belong to no request.
    fn say_something(&mut self) {
        if self.few_left == 0 {
            return;
        }
        self.few_left -= 1;
        self.collect();
        let stream = self
            .streams
            .last_key_value()
            .map_or(1, |(stream, _)| *stream);
        let about = (1 + 2 * self.choices.below(70)) as u32;
        let (to_server, to_client) = (&mut self.to_server, &mut self.to_client);
        match self.choices.below(6) {
            0 => {
                self.pings += 1;
                self.client.put_ping();
            }
            1 => {
                frame::put_head(to_server, Kind::Priority, 0, about, 5);
                to_server.extend_from_slice(&[0, 0, 0, 0, 9]);
            }
            2 => {
                let value = self.choices.of(&[&b"u=1"[..], b"i", b"u=7,i", b"u=3"]);
                frame::put_head(to_server, Kind::PriorityUpdate, 0, 0, 4 + value.len());
                to_server.extend_from_slice(&about.to_be_bytes());
                to_server.extend_from_slice(value);
            }
            3 => {
                frame::put_head(to_server, Kind::Unknown(0x42), 0xff, about, 7);
                to_server.extend_from_slice(b"unknown");
            }
            4 => {
                frame::put_head(to_client, Kind::Unknown(0x42), 0xff, stream, 7);
                to_client.extend_from_slice(b"unknown");
            }
            _ => {
                let priority = Priority {
                    urgency: (about % 8) as u8,
                    incremental: self.choices.chance(128),
                };
                self.server.set_priority(stream, priority);
            }
        }
    }

    fn end_something(&mut self) {
        // Rarely, because not much can follow.
        match self.choices.below(64) {
            1 if !self.has_announced_end => {
                self.has_announced_end = true;
                self.server.announce_end();
            }
            2 => self.server.send_goaway(),
            3 if !self.client_goes => {
                self.client_goes = true;
                self.client.send_goaway();
            }
            _ => {}
        }
    }

    // The pipe.

    fn carry_to_server(&mut self, most: usize) {
        let count = self.to_server.len().min(most);
        let input: Vec<u8> = self.to_server.drain(..count).collect();
        let mut at = 0;
        loop {
            let mut heads = Heads {
                head: &mut self.head,
                bytes: &mut self.head_bytes,
                rules: &RULES,
                named: None,
            };
            let event = self.server.handle(&input, &mut at, self.second, &mut heads);
            match event.unwrap_or_else(|violation| panic!("the client {violation}")) {
                Some(event) => self.take_of_client(event, &input),
                None => break,
            }
        }
        assert_eq!(at, input.len());
        self.collect();
    }

    fn take_of_client(&mut self, event: Event, input: &[u8]) {
        match event {
            Event::Head {
                stream,
                ends,
                asked,
            } => {
                let asked = asked.expect("it is well formed");
                let line = self.head.line().of(&self.head_bytes);
                let index = self.streams[&stream];
                assert_eq!(line, format!("POST /{index} HTTP/2.0").as_bytes());
                let exchange = &mut self.exchanges[index];
                assert!(!exchange.server_got_end && exchange.server_got == 0);
                let length = exchange.request_length as u64;
                assert!(asked.content_length.is_none_or(|said| said == length));
                exchange.server_got_end = ends;
                if ends && self.choices.chance(60) && self.answer_at_once(stream, index) {
                    return;
                }
                let priority = Priority::default();
                let length = asked.content_length;
                self.server.open(stream, ends, length, priority, index);
                if self.choices.chance(100) {
                    self.answer(stream, index);
                }
            }
            Event::Data {
                stream,
                start,
                length,
                ends,
            } => {
                let index = self.streams[&stream];
                let exchange = &mut self.exchanges[index];
                assert!(!exchange.server_gave_up && !exchange.server_got_end);
                let wanted = part_of(index, exchange.server_got, length);
                assert_eq!(input[start..start + length], wanted);
                exchange.server_got += length;
                exchange.server_unread += length;
                exchange.server_got_end = ends;
            }
            Event::Reset {
                stream,
                code,
                fault,
            } => {
                assert_eq!(fault, None);
                let exchange = &mut self.exchanges[self.streams[&stream]];
                assert!(exchange.client_gave_up, "{code:?}");
                self.server.release(stream);
            }
            Event::Malformed { fault, .. } => panic!("the client {fault}"),
            Event::Refused(fault) => match fault {
                StreamFault::TooManyStreams(stream) | StreamFault::TooEarly(stream) => {
                    self.exchanges[self.streams[&stream]].not_served = true;
                }
                fault => panic!("the client {fault}"),
            },
            Event::GoAway(code) => {
                assert!(self.client_goes && code == ErrorCode::NoError);
            }
            Event::Pong => {
                assert!(self.has_announced_end);
                self.server.send_goaway();
            }
        }
    }

    /// Sends a complete response at once.
    fn answer_at_once(&mut self, stream: u32, index: usize) -> bool {
        let block = self.block(index);
        let length = self.exchanges[index].response_length;
        let body = part_of(index, 0, length);
        let (chunk, mut out) = (self.choices.of(&[1, 100, 8192]), Vec::new());
        let answered = self.server.answer(stream, &block, &body, chunk, &mut out);
        assert!(answered || out.is_empty());
        self.to_client.extend_from_slice(&out);
        if answered {
            let exchange = &mut self.exchanges[index];
            exchange.server_sent_head = true;
            exchange.server_sent = length;
            exchange.server_ended = true;
        }
        answered
    }

    fn carry_to_client(&mut self, most: usize) {
        let count = self.to_client.len().min(most);
        let input: Vec<u8> = self.to_client.drain(..count).collect();
        let mut at = 0;
        loop {
            let event = self.client.handle(&input, &mut at, self.second);
            match event.unwrap_or_else(|violation| panic!("the server {violation}")) {
                Some(event) => self.take_of_server(event, &input),
                None => break,
            }
        }
        assert_eq!(at, input.len());
        self.collect();
    }

    fn take_of_server(&mut self, event: client::Event, input: &[u8]) {
        match event {
            client::Event::Interim { stream } => {
                assert_eq!(self.client.head().status(), 103);
                assert!(!self.exchanges[self.streams[&stream]].client_got_head);
            }
            client::Event::Head { stream, ends } => {
                let index = self.streams[&stream];
                let head = self.client.head();
                assert_eq!(head.status(), 200);
                let field = head.fields()[0];
                let value = field.value(head.bytes());
                assert_eq!(value, index.to_string().as_bytes());
                let exchange = &mut self.exchanges[index];
                assert!(exchange.server_sent_head && !exchange.client_got_head);
                exchange.client_got_head = true;
                self.client_got_end(stream, ends);
            }
            client::Event::Data {
                stream,
                start,
                length,
                ends,
            } => {
                let index = self.streams[&stream];
                let exchange = &mut self.exchanges[index];
                assert!(exchange.client_got_head && !exchange.client_got_end);
                assert!(!exchange.client_gave_up);
                let wanted = part_of(index, exchange.client_got, length);
                assert_eq!(input[start..start + length], wanted);
                exchange.client_got += length;
                exchange.client_unread += length;
                self.client_got_end(stream, ends);
            }
            client::Event::Trailers { stream } => self.client_got_end(stream, true),
            client::Event::Reset {
                stream,
                code,
                fault,
            } => {
                assert_eq!(fault, None);
                let exchange = &mut self.exchanges[self.streams[&stream]];
                match code {
                    ErrorCode::NoError => assert!(exchange.client_got_end),
                    ErrorCode::RefusedStream => assert!(exchange.not_served),
                    _ => assert!(exchange.server_gave_up, "{code:?}"),
                }
                self.client.release(stream);
            }
            client::Event::NotServed { stream } => {
                let exchange = &mut self.exchanges[self.streams[&stream]];
                assert!(!exchange.server_sent_head && !exchange.server_got_end);
                exchange.not_served = true;
                self.client.release(stream);
            }
            client::Event::GoAway(code) => assert_eq!(code, ErrorCode::NoError),
            client::Event::Pong => self.pongs += 1,
        }
    }

    fn client_got_end(&mut self, stream: u32, ends: bool) {
        if !ends {
            return;
        }
        let exchange = &mut self.exchanges[self.streams[&stream]];
        assert!(exchange.server_ended);
        assert_eq!(exchange.client_got, exchange.response_length);
        exchange.client_got_end = true;
        if self.choices.chance(128) {
            self.client_lets_go(stream);
        }
    }

    /// Releases a stream whose response was received.
    fn client_lets_go(&mut self, stream: u32) {
        let exchange = &mut self.exchanges[self.streams[&stream]];
        // The rest of the request is cancelled.
        exchange.client_gave_up |= !exchange.client_ended;
        exchange.client_unread = 0;
        self.client.release(stream);
    }

    // Completion.

    /// Delivers everything in the pipe, and compares the windows.
    fn settle(&mut self) {
        self.collect();
        while !self.to_server.is_empty() || !self.to_client.is_empty() {
            self.carry_to_server(usize::MAX);
            self.carry_to_client(usize::MAX);
        }
        let windows =
            |stream: Option<u32>| (self.client.windows(stream), self.server.windows(stream));
        for stream in std::iter::once(None).chain(self.streams.keys().copied().map(Some)) {
            let (Some(client), Some(server)) = windows(stream) else {
                continue;
            };
            // A closed half has no window.
            if let (Some(sends), Some(receives)) = (client.sends, server.receives) {
                assert_eq!(sends, receives, "from the client, {stream:?}");
            }
            if let (Some(sends), Some(receives)) = (server.sends, client.receives) {
                assert_eq!(sends, receives, "from the server, {stream:?}");
            }
        }
    }

    /// Completes all streams that were not reset.
    fn finish(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.second += 1;
            self.settle();
            let streams: Vec<(u32, usize)> = self
                .streams
                .iter()
                .map(|(stream, index)| (*stream, *index))
                .collect();
            for (stream, index) in streams {
                if !self.exchanges[index].server_sent_head {
                    self.answer(stream, index);
                }
                let exchange = &mut self.exchanges[index];
                let (ours, theirs) = (exchange.client_unread, exchange.server_unread);
                (exchange.client_unread, exchange.server_unread) = (0, 0);
                self.client.consumed(stream, ours);
                self.server.consumed(stream, theirs);
            }
            let before = (self.to_server.len(), self.to_client.len());
            for _ in 0..REQUESTS_MAX {
                self.client_sends();
                self.server_sends();
            }
            self.collect();
            let quiet = before == (self.to_server.len(), self.to_client.len());
            if quiet && self.to_server.is_empty() && self.to_client.is_empty() {
                return self.compare();
            }
        }
        panic!("it does not come to an end");
    }

    /// Compares the state at both ends.
    fn compare(&mut self) {
        for (stream, index) in &self.streams {
            let exchange = &self.exchanges[*index];
            let what = || format!("{stream}: {exchange:?}");
            assert!(exchange.server_got <= exchange.client_sent, "{}", what());
            assert!(exchange.client_got <= exchange.server_sent, "{}", what());
            if !exchange.is_cut() {
                assert!(
                    exchange.server_ended && exchange.client_got_end,
                    "{}",
                    what()
                );
                assert_eq!(exchange.client_got, exchange.response_length);
                let has_all = exchange.client_ended && exchange.server_got_end;
                assert!(has_all || exchange.is_cut_short, "{}", what());
            }
            if exchange.server_got_end {
                assert_eq!(exchange.server_got, exchange.request_length);
            }
        }
        assert_eq!(self.pings, self.pongs);
        for stream in self.streams.keys() {
            self.client.release(*stream);
            self.server.release(*stream);
        }
        assert_eq!((self.client.live(), self.server.live()), (0, 0));
        assert_eq!((self.client.turn(), self.server.turn()), (None, None));
        self.settle();
    }
}

/// The frames in an end's output.
fn frames(mut bytes: &[u8]) -> Vec<(FrameHead, &[u8])> {
    let mut frames = Vec::new();
    while let Some((head, behind)) = bytes.split_first_chunk::<HEAD_LENGTH>() {
        let head = FrameHead::read(head);
        let (payload, behind) = behind.split_at(head.length as usize);
        frames.push((head, payload));
        bytes = behind;
    }
    assert!(bytes.is_empty());
    frames
}

/// Asserts that no end resets a stream because of an error of the other.
fn assert_reset(head: FrameHead, payload: &[u8], codes: &[ErrorCode]) {
    if head.kind == Kind::Reset {
        let code = payload.first_chunk().map(|code| u32::from_be_bytes(*code));
        let code = ErrorCode::from_number(code.expect("it has a code"));
        assert!(codes.contains(&code), "{head:?}: {code:?}");
    }
}

/// Puts a frame into the pipe. HEADERS may get padding or priority fields, or be split into
/// CONTINUATION frames.
fn put_changed(choices: &mut Choices<'_>, head: FrameHead, payload: &[u8], out: &mut Vec<u8>) {
    let FrameHead { kind, stream, .. } = head;
    if kind != Kind::Headers || !head.has(flags::END_HEADERS) || !choices.chance(100) {
        frame::put_head(out, kind, head.flags, stream, payload.len());
        return out.extend_from_slice(payload);
    }
    let (mut changed, mut before) = (head.flags, Vec::new());
    let padding = if choices.chance(128) {
        choices.below(256)
    } else {
        0
    };
    if padding > 0 {
        changed |= flags::PADDED;
        before.push(padding as u8);
    }
    if choices.chance(128) {
        changed |= flags::PRIORITY;
        before.extend_from_slice(&[0x80, 0, 0, 0, 77]);
    }
    let room = frame::FRAME_SIZE_MAX_DEFAULT as usize - before.len() - padding;
    let first = if choices.chance(128) {
        choices.below(payload.len() + 1)
    } else {
        payload.len()
    };
    let (first, rest) = payload.split_at(first.min(room));
    if !rest.is_empty() {
        changed &= !flags::END_HEADERS;
    }
    let length = before.len() + first.len() + padding;
    frame::put_head(out, kind, changed, stream, length);
    out.extend_from_slice(&before);
    out.extend_from_slice(first);
    out.resize(out.len() + padding, 0);
    if !rest.is_empty() {
        let end = flags::END_HEADERS;
        frame::put_head(out, Kind::Continuation, end, stream, rest.len());
        out.extend_from_slice(rest);
    }
}

/// How much of a body goes into a frame of at most `most` bytes, and how much padding.
fn cut(choices: &mut Choices<'_>, left: usize, most: usize) -> (usize, Option<usize>) {
    let padding = if choices.chance(60) {
        Some(choices.below(256)).filter(|padding| *padding < most)
    } else {
        None
    };
    let room = most - padding.map_or(0, |padding| padding + 1);
    let most = left.min(room);
    if choices.chance(100) {
        (choices.below(most + 1), padding)
    } else {
        (most, padding)
    }
}

fn put_data(head: [u8; HEAD_LENGTH], bytes: &[u8], padding: Option<usize>, out: &mut Vec<u8>) {
    let mut head = FrameHead::read(&head);
    if padding.is_some() {
        head.flags |= flags::PADDED;
    }
    out.extend_from_slice(&head.bytes());
    out.extend(padding.map(|padding| padding as u8));
    out.extend_from_slice(bytes);
    out.resize(out.len() + padding.unwrap_or_default(), 0);
}

/// The windows of one end; `None` for a closed half.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// What this end may send.
    pub sends: Option<i64>,
    /// What the other end may send.
    pub receives: Option<i64>,
}
