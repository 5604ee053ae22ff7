//! A client of HTTP/2 that writes frames itself: windows of a byte, windows that settings move
//! below zero, padding, priorities, resets in the middle, and on demand frames that make no sense.
//!
//! It keeps its own books of all windows, and finds every frame of the server's that goes beyond
//! one.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use engine::net::{Address, Stream};
use proto::h2::ErrorCode;
use proto::h2::frame::{self, FrameHead, HEAD_LENGTH, Kind, PREFACE, flags};
use proto::h2::hpack::{Decoder, Encoder};
use proto::h2::settings::{self, INITIAL_WINDOW_SIZE_DEFAULT};

use super::client::PATIENCE;
use super::wish::{Answer, Wish};
use crate::random::Random;
use crate::site::STREAMS_MAX;

/// Credit of a connection that is generous, in bytes.
const GENEROUS: u32 = 1_000_000;

/// Frames of a kind whose number has a bound.
const FEW: usize = 40;

/// How a request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Answered,
    GivenUp,
    Refused,
}

/// One request.
struct Lane {
    wish: Wish,
    got: Answer,
    /// What the server may send, and what we may.
    window: i64,
    send_window: i64,
    sent: usize,
    has_ended_body: bool,
    end: Option<End>,
}

/// A connection to the server.
pub(crate) struct Raw {
    stream: Stream,
    random: Random,
    out: Vec<u8>,
    input: Vec<u8>,
    encoder: Encoder,
    decoder: Decoder,
    lanes: BTreeMap<u32, Lane>,
    next: u32,
    /// What the server may send on all streams, and what we may.
    window: i64,
    send_window: i64,
    /// What streams begin with, as we have said and as the server has.
    initial: i64,
    send_initial: i64,
    /// By how much settings move the windows of the streams below a number, once the server has
    /// them.
    moves: VecDeque<(i64, u32)>,
    table_size: u32,
    /// How often each kind of frame may still be sent.
    left: [usize; 4],
    pings: usize,
    pongs: usize,
    /// The answer that has come is a nonsense to a nonsense.
    is_hostile: bool,
}

impl Raw {
    /// Connects, and says the preface.
    pub(crate) async fn connect(address: &Address, mut random: Random) -> Result<Raw, String> {
        let stream = crate::client::connect(address).await?;
        let initial = [0, 1, 100, INITIAL_WINDOW_SIZE_DEFAULT, 200_000][random.below(5)];
        let table_size = [0, 100, 4096, 65_536][random.below(4)];
        let mut out = PREFACE.to_vec();
        frame::put_settings(
            &mut out,
            &[
                (settings::HEADER_TABLE_SIZE, table_size),
                (settings::INITIAL_WINDOW_SIZE, initial),
            ],
        );
        let mut moves = VecDeque::new();
        moves.push_back((
            i64::from(initial) - i64::from(INITIAL_WINDOW_SIZE_DEFAULT),
            1,
        ));
        Ok(Raw {
            stream,
            random,
            out,
            input: Vec::new(),
            encoder: Encoder::new(4096),
            decoder: Decoder::new(),
            lanes: BTreeMap::new(),
            next: 1,
            window: i64::from(INITIAL_WINDOW_SIZE_DEFAULT),
            send_window: i64::from(INITIAL_WINDOW_SIZE_DEFAULT),
            initial: i64::from(initial),
            send_initial: i64::from(INITIAL_WINDOW_SIZE_DEFAULT),
            moves,
            table_size,
            left: [FEW; 4],
            pings: 0,
            pongs: 0,
            is_hostile: false,
        })
    }

    /// Does anything for a while, then reads everything: all that was not given up must be
    /// answered, and an upload after it.
    pub(crate) async fn play(&mut self, steps: usize) -> Result<(), String> {
        self.act_for(steps).await?;
        self.be_generous();
        self.finish().await?;
        let size = 150_000;
        self.open(Wish::echo(size, &mut Random(size as u64)));
        self.finish().await?;
        if self.pongs != self.pings || !self.moves.is_empty() {
            return Err(format!("{} of {} pongs", self.pongs, self.pings));
        }
        Ok(())
    }

    /// Does anything for a while.
    async fn act_for(&mut self, steps: usize) -> Result<(), String> {
        for _ in 0..steps {
            self.act();
            self.send();
            let pause = Duration::from_micros(1) + self.random.duration(Duration::from_millis(15));
            self.hear(pause).await?;
        }
        Ok(())
    }

    /// Behaves for a while, then breaks the protocol, and waits for the server to end the
    /// connection, or leaves.
    pub(crate) async fn offend(&mut self, steps: usize) -> Result<(), String> {
        self.act_for(steps).await?;
        self.is_hostile = true;
        for _ in 0..1 + self.random.below(30) {
            match self.random.below(4) {
                0 => self.act(),
                1 => {
                    self.act();
                    self.damage();
                }
                _ => self.put_nonsense(),
            }
            self.send();
            let pause = self.random.duration(Duration::from_millis(15));
            if !self.hear(pause).await? {
                return Ok(());
            }
        }
        match self.random.below(4) {
            0 => return Ok(()),
            1 => self.stream.abort(),
            _ => {}
        }
        self.wait_for_end().await
    }

    /// Asks, gives no credit and says nothing more: the server has to end it.
    pub(crate) async fn fall_silent(&mut self, steps: usize) -> Result<(), String> {
        self.is_hostile = true;
        self.act_for(steps).await?;
        if self.random.chance(300) {
            // It does not even read.
            engine::sleep(2 * PATIENCE).await;
        }
        self.wait_for_end().await
    }

    /// Asks on and on, and never confirms that it has heard of the connection's end.
    pub(crate) async fn ask_on(&mut self) -> Result<(), String> {
        self.is_hostile = true;
        self.be_generous();
        loop {
            // They overlap.
            self.open(Wish::of(&crate::site::behind()));
            self.send();
            engine::sleep(Duration::from_millis(300)).await;
            if !self.hear(Duration::from_millis(1)).await? {
                return Ok(());
            }
        }
    }

    async fn wait_for_end(&mut self) -> Result<(), String> {
        let begun = engine::now();
        while self.hear(PATIENCE).await? {
            if engine::now() - begun >= PATIENCE {
                return Err(format!(
                    "the server keeps a connection that says nothing: {:?}",
                    self.unanswered()
                ));
            }
        }
        Ok(())
    }

    fn unanswered(&self) -> Vec<(u32, &str)> {
        let lanes = self.lanes.iter().filter(|(_, lane)| lane.end.is_none());
        lanes
            .map(|(number, lane)| (*number, lane.wish.logged.as_str()))
            .collect()
    }

    /// Gives all the credit that anybody wants.
    fn be_generous(&mut self) {
        self.set_initial(GENEROUS);
        frame::put_window_update(&mut self.out, 0, 100 * GENEROUS);
        self.window += i64::from(100 * GENEROUS);
        let live: Vec<u32> = self.live();
        for stream in live {
            self.credit(stream, GENEROUS);
        }
    }

    /// Waits for all answers.
    async fn finish(&mut self) -> Result<(), String> {
        loop {
            for stream in self.live() {
                while self.put_body(stream) {}
            }
            self.send();
            if self.live().is_empty() && self.moves.is_empty() && self.pings == self.pongs {
                return Ok(());
            }
            let begun = engine::now();
            if !self.hear(PATIENCE).await? {
                return Err(format!("the server has closed: {:?}", self.unanswered()));
            }
            if engine::now() - begun >= PATIENCE {
                return Err(format!("nothing comes: {:?}", self.unanswered()));
            }
        }
    }

    fn live(&self) -> Vec<u32> {
        let lanes = self.lanes.iter().filter(|(_, lane)| lane.end.is_none());
        lanes.map(|(number, _)| *number).collect()
    }

    /// A stream that has not ended, or now and then any.
    fn any(&mut self) -> Option<u32> {
        let live = self.live();
        match live.len() {
            0 => None,
            count => live.get(self.random.below(count)).copied(),
        }
    }

    // What it does.

    fn act(&mut self) {
        let Some(stream) = self.any() else {
            return self.open_any();
        };
        match self.random.below(20) {
            0..=3 => self.open_any(),
            4..=6 => _ = self.put_body(stream),
            7..=11 => {
                let most = [1, 50, 5000][self.random.below(3)];
                let bytes = 1 + self.random.below(most) as u32;
                self.credit(stream, bytes);
            }
            12 => {
                let bytes = 1 + self.random.below(20_000) as u32;
                frame::put_window_update(&mut self.out, 0, bytes);
                self.window += i64::from(bytes);
            }
            13 if self.may(0) => {
                let initial = [0, 1, 10, 5000, 100_000][self.random.below(5)];
                self.set_initial(initial);
            }
            14 if self.may(1) => {
                self.pings += 1;
                frame::put_ping(&mut self.out, false, *b"12345678");
            }
            15 => {
                let about = stream + 2 * self.random.below(30) as u32;
                self.put(Kind::Priority, 0, about, &[0x80, 0, 0, 0], &[7]);
            }
            16 => {
                let about = self.random.below(self.next as usize + 40) as u32 | 1;
                let value = [&b"u=0"[..], b"u=7, i", b"i", b"u=5"][self.random.below(4)];
                self.put(Kind::PriorityUpdate, 0, 0, &about.to_be_bytes(), value);
            }
            17 if self.may(2) => {
                frame::put_reset(&mut self.out, stream, ErrorCode::Cancel);
                self.lane(stream).end = Some(End::GivenUp);
            }
            18 if self.may(3) => self.put(Kind::Unknown(0xbe), 0xff, stream, b"what", b"ever"),
            _ => {}
        }
    }

    fn may(&mut self, which: usize) -> bool {
        let left = &mut self.left[which];
        let may = *left > 0;
        *left = left.saturating_sub(1);
        may
    }

    fn lane(&mut self, stream: u32) -> &mut Lane {
        self.lanes.get_mut(&stream).unwrap()
    }

    fn put(&mut self, kind: Kind, flags: u8, stream: u32, first: &[u8], second: &[u8]) {
        frame::put_head(
            &mut self.out,
            kind,
            flags,
            stream,
            first.len() + second.len(),
        );
        self.out.extend_from_slice(first);
        self.out.extend_from_slice(second);
    }

    fn open_any(&mut self) {
        if self.live().len() < STREAMS_MAX {
            let wish = Wish::any(&mut self.random);
            self.open(wish);
        }
    }

    /// Asks for something, with padding and a priority as it comes.
    fn open(&mut self, wish: Wish) {
        let stream = self.next;
        self.next += 2;
        let mut block = Vec::new();
        self.encoder.encode(wish.head(), &mut block);
        let mut flags = if wish.body.is_empty() {
            flags::END_STREAM
        } else {
            0
        };
        let (mut before, mut after) = (Vec::new(), 0);
        if self.random.chance(300) {
            flags |= flags::PADDED;
            after = self.random.below(256);
            before.push(after as u8);
        }
        if self.random.chance(300) {
            flags |= flags::PRIORITY;
            before.extend_from_slice(&[0x80, 0, 0, 0, 200]);
        }
        let first = if self.random.chance(300) {
            self.random.below(block.len())
        } else {
            block.len()
        };
        let (block, rest) = block.split_at(first);
        let payload = [&before[..], block, &vec![0; after]].concat();
        if rest.is_empty() {
            flags |= flags::END_HEADERS;
        }
        self.put(Kind::Headers, flags, stream, &payload, &[]);
        if !rest.is_empty() {
            self.put(Kind::Continuation, flags::END_HEADERS, stream, rest, &[]);
        }
        let lane = Lane {
            has_ended_body: wish.body.is_empty(),
            wish,
            got: Answer::default(),
            window: self.initial,
            send_window: self.send_initial,
            sent: 0,
            end: None,
        };
        self.lanes.insert(stream, lane);
    }

    /// Sends a part of a body within the server's windows; whether there was something to send.
    fn put_body(&mut self, stream: u32) -> bool {
        let padding = if self.random.chance(200) {
            Some(self.random.below(256))
        } else {
            None
        };
        let beside = padding.map_or(0, |padding| padding + 1);
        let allowed = self.send_window.min(self.lane(stream).send_window) - beside as i64;
        let most = 1 + self.random.below(16_000);
        let lane = self.lane(stream);
        let left = &lane.wish.body[lane.sent..];
        let part = left.len().min(allowed.max(0) as usize).min(most);
        if lane.has_ended_body || allowed < 0 || (part == 0 && !left.is_empty()) {
            return false;
        }
        let ends = part == left.len();
        let mut flags = if ends { flags::END_STREAM } else { 0 };
        let mut payload = Vec::new();
        if let Some(padding) = padding {
            flags |= flags::PADDED;
            payload.push(padding as u8);
        }
        payload.extend_from_slice(&left[..part]);
        payload.resize(part + beside, 0);
        lane.sent += part;
        lane.has_ended_body = ends;
        lane.send_window -= payload.len() as i64;
        self.send_window -= payload.len() as i64;
        self.put(Kind::Data, flags, stream, &payload, &[]);
        true
    }

    fn credit(&mut self, stream: u32, bytes: u32) {
        frame::put_window_update(&mut self.out, stream, bytes);
        self.lane(stream).window += i64::from(bytes);
    }

    /// Moves all windows, also below zero.
    fn set_initial(&mut self, initial: u32) {
        let pair = (settings::INITIAL_WINDOW_SIZE, initial);
        frame::put_settings(&mut self.out, &[pair]);
        let by = i64::from(initial) - self.initial;
        self.initial = i64::from(initial);
        self.moves.push_back((by, self.next));
    }

    fn send(&mut self) {
        let out = Bytes::from(std::mem::take(&mut self.out));
        self.stream.push(out);
        self.stream.start_send();
    }

    // What makes no sense.

    fn put_nonsense(&mut self) {
        let kind = [0, 0, 0, self.random.below(18) as u8, 0, 0, 0, 0, 0];
        let kind = FrameHead::read(&kind).kind;
        let flags = match self.random.below(3) {
            0 => 0,
            1 => 1 << self.random.below(8),
            _ => self.random.below(256) as u8,
        };
        let stream = match self.random.below(4) {
            0 => 0,
            1 => self.next,
            2 => self.any().unwrap_or(1),
            _ => self.random.below(1 << 31) as u32,
        };
        let length = match self.random.below(4) {
            0 => 4,
            1 => 5,
            2 => self.random.below(30),
            _ => self.random.below(20_000),
        };
        let payload: Vec<u8> = (0..length).map(|_| self.random.below(256) as u8).collect();
        self.put(kind, flags, stream, &payload, &[]);
    }

    /// Changes a byte of what is to be sent, or cuts it.
    fn damage(&mut self) {
        let Some(most) = self.out.len().checked_sub(1) else {
            return;
        };
        let at = self.random.below(most + 1);
        if self.random.chance(700) {
            self.out[at] ^= 1 << self.random.below(8);
        } else {
            self.out.truncate(at)
        }
    }

    // What comes.

    /// Takes what comes within this time; false once the server has ended the connection.
    async fn hear(&mut self, patience: Duration) -> Result<bool, String> {
        match self.stream.recv(Some(engine::now() + patience)).await {
            Ok(bytes) if bytes.is_empty() => self.closed("the server has closed"),
            Ok(bytes) => {
                self.input.extend_from_slice(&bytes);
                match self.take() {
                    Err(what) if !self.is_hostile => Err(what),
                    _ => Ok(true),
                }
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(true),
            Err(error) => self.closed(&error.to_string()),
        }
    }

    fn closed(&self, what: &str) -> Result<bool, String> {
        if self.is_hostile {
            Ok(false)
        } else {
            Err(format!("{what}: {:?}", self.unanswered()))
        }
    }

    fn take(&mut self) -> Result<(), String> {
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Some((head, behind)) = rest.split_first_chunk::<HEAD_LENGTH>() {
            let head = FrameHead::read(head);
            let Some(payload) = behind.get(..head.length as usize) else {
                break;
            };
            rest = &behind[payload.len()..];
            self.take_frame(head, payload)
                .map_err(|what| format!("{head:?}: {what}"))?;
        }
        self.input = rest.to_vec();
        Ok(())
    }

    fn take_frame(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), String> {
        let number = |at: usize| {
            let bytes = payload.get(at..at + 4);
            bytes.map_or(0, |four| u32::from_be_bytes(four.try_into().unwrap()))
        };
        let is_answer = head.has(flags::ACK);
        match head.kind {
            Kind::Headers | Kind::Data => self.take_answer(head, payload),
            Kind::Settings if is_answer => {
                let (by, below) = self.moves.pop_front().ok_or("nothing to acknowledge")?;
                for (_, lane) in self.lanes.range_mut(..below) {
                    lane.window += by;
                }
                self.decoder.set_size_max(self.table_size.min(4096));
                Ok(())
            }
            Kind::Settings => {
                for [n0, n1, v0, v1, v2, v3] in payload.as_chunks().0 {
                    if u16::from_be_bytes([*n0, *n1]) == settings::INITIAL_WINDOW_SIZE {
                        let initial = i64::from(u32::from_be_bytes([*v0, *v1, *v2, *v3]));
                        let by = initial - self.send_initial;
                        self.send_initial = initial;
                        let lanes = self.lanes.values_mut();
                        lanes.for_each(|lane| lane.send_window += by);
                    }
                }
                frame::put_settings_ack(&mut self.out);
                Ok(())
            }
            Kind::Ping if is_answer => {
                self.pongs += 1;
                Ok(())
            }
            Kind::WindowUpdate if head.stream == 0 => {
                self.send_window += i64::from(number(0));
                Ok(())
            }
            Kind::WindowUpdate => {
                self.lane(head.stream).send_window += i64::from(number(0));
                Ok(())
            }
            Kind::Reset => self.take_reset(head.stream, ErrorCode::from_number(number(0))),
            _ => Err(format!("it has not to send this: {}", number(4))),
        }
    }

    fn take_reset(&mut self, stream: u32, code: ErrorCode) -> Result<(), String> {
        let lane = self.lanes.get_mut(&stream).ok_or("never opened")?;
        match (lane.end, code) {
            (Some(End::GivenUp), _) | (Some(End::Answered), ErrorCode::NoError) => Ok(()),
            // Places are free once the work for what was given up has ended.
            (None, ErrorCode::RefusedStream) => {
                lane.end = Some(End::Refused);
                Ok(())
            }
            _ => Err(format!("{}: {code:?}", lane.wish.logged)),
        }
    }

    fn take_answer(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), String> {
        let lane = self.lanes.get_mut(&head.stream).ok_or("never opened")?;
        if head.kind == Kind::Data {
            let length = payload.len() as i64;
            self.window -= length;
            lane.window -= length;
            lane.got.body.extend_from_slice(payload);
            if length > 0 && (self.window < 0 || lane.window < 0) {
                return Err(format!("beyond a window: {} {}", self.window, lane.window));
            }
        } else {
            let (mut bytes, mut fields) = (Vec::new(), Vec::new());
            let decoded = self
                .decoder
                .decode(payload, usize::MAX, &mut bytes, |field, bytes| {
                    fields.push((
                        field.name.of(bytes).to_vec(),
                        field.value.of(bytes).to_vec(),
                    ));
                });
            decoded.map_err(|error| format!("{error:?}"))?;
            let (_, status) = fields.remove(0);
            lane.got.status = String::from_utf8_lossy(&status).parse().ok();
            lane.got.fields = fields;
        }
        if lane.end == Some(End::Answered) || lane.end == Some(End::Refused) {
            return Err("after its end".into());
        }
        if lane.end.is_none() && head.has(flags::END_STREAM) {
            lane.end = Some(End::Answered);
            lane.wish.check(&lane.got, true)?;
        }
        Ok(())
    }
}
