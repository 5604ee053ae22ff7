//! A connection of HTTP/2 whose other end is a server: requests go out, responses come in.
//!
//! Bytes are given to [`Client::handle`], again and again until it has used them up; each call does
//! what frames ask for and returns at the first [`Event`] that its user must know of. What is to be
//! sent gathers in [`Client::output`], in the order in which it must leave. How requests are sent
//! is in `sending.rs`.
//!
//! ```text
//! open ─▶ (its body: turn, put_data) ─▶ Interim* ─▶ Head ─▶ Data* ─▶ (Trailers) ─▶ release
//!                                          └─ Reset, NotServed ───────────────────▲
//! ```
//!
//! A connection holds the beginning of a frame that has not come whole, a header block that came in
//! several frames, the last response's head, the tables of both directions, and a record for each
//! stream that its user has not released. Parts of bodies are not kept: their user gets them as
//! they come, never more than the window that it has given credit for.
//!
//! Not here: sockets, the time, whether a request may be sent again, and pushed responses, which
//! are declined. RFC 9113.

mod sending;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;

use base::hash::Map;

use super::error::{ErrorCode, StreamFault, Violation};
use super::frame::{self, FrameHead, Kind, PREFACE, STREAM_MAX, flags};
use super::hpack::{Decoder, Encoder, FIELD_OVERHEAD, TABLE_SIZE_DEFAULT};
use super::incoming::{Frames, Incoming, Payload};
use super::meter::{self, Meter, Pings, ReplyAllowance};
use super::response::{ResponseFault, ResponseHead};
use super::settings::{self, Settings, WINDOW_AT_FIRST, WINDOW_MAX};
use super::window;
pub use sending::RequestStart;

/// CONTINUATION frames of one header block.
const CONTINUATIONS_MAX: u32 = 64;

/// Streams of which we remember that we have reset them: what the server had sent until it heard of
/// it is no fault.
const FORGIVEN_MAX: usize = 1024;

/// Streams that are opened before the server has said how many it takes: as few as any should take
/// (RFC 9113, section 6.5.2).
const STREAMS_BEFORE_SETTINGS: u32 = 100;

/// How many frames may have come at once for streams that end together, as when the deadlines of
/// many calls are over.
const PERMITTED_MAX: u32 = 4096;

/// Bytes of the windows of all streams together beyond which none becomes wider: many streams that
/// are read need no wide ones, and many that are not read hold no more than they had at first.
const WINDOWS_MAX: u32 = 2 * 1024 * 1024;

/// Bytes of a frame beside its payload.
const FRAMING: u64 = frame::HEAD_LENGTH as u64;

/// Fields of a response at most.
const FIELDS_MAX: usize = 1000;

/// What a connection allows its server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one response's body that may come before any of it is consumed.
    pub stream_window: u32,
    /// Bytes to which that window grows for a response that is consumed as it arrives, as long as
    /// few streams do so at once.
    pub stream_window_max: u32,
    /// Bytes of the names and values of one response's head, and of its block as it comes.
    pub head_size_max: usize,
}

/// What the server has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An interim response; its head is [`Client::head`] until the next event.
    Interim {
        /// The number of the stream.
        stream: u32,
    },
    /// The head of a response, which is [`Client::head`] until the next event.
    Head {
        /// The number of the stream.
        stream: u32,
        /// There is no body, and nothing follows.
        ends: bool,
    },
    /// A part of a body: these bytes of the input.
    Data {
        /// The number of the stream.
        stream: u32,
        /// Where it begins in the input.
        start: usize,
        /// How many bytes it has.
        length: usize,
        /// Whether nothing follows on the stream.
        ends: bool,
    },
    /// Trailers, which end a response; they are [`Client::head`] until the next event.
    Trailers {
        /// The number of the stream.
        stream: u32,
    },
    /// A stream has ended before its end.
    Reset {
        /// The number of the stream.
        stream: u32,
        /// Why. After [`ErrorCode::RefusedStream`] the request may be sent again.
        code: ErrorCode,
        /// What the server did wrong, where it is we who have reset it.
        fault: Option<StreamFault>,
    },
    /// The server has not looked at a request and never will, because it ends the connection: it
    /// may be sent again.
    NotServed {
        /// The number of the stream.
        stream: u32,
    },
    /// No stream can be opened any more. An event for each one that is not served follows.
    GoAway(ErrorCode),
    /// The server has answered a PING.
    Pong,
}

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Settings,
    Frame,
    /// More of a header block.
    Continuation {
        stream: u32,
        ends: bool,
        frames: u32,
        /// Bytes of these frames.
        length: u64,
    },
}

/// The DATA frame that is being read.
#[derive(Clone, Copy, Debug, Default)]
struct Body {
    stream: u32,
    ends: bool,
    /// Its stream wants none of it.
    is_dropped: bool,
}

/// What is known of a stream; `S` is what its user keeps of it.
#[derive(Debug)]
struct Stream<S> {
    user: S,
    /// The server may still send on it.
    receives: bool,
    /// We may still send on it.
    sends: bool,
    /// The server has reset it.
    is_reset: bool,
    /// The final response's head has come.
    has_head: bool,
    /// The response has no body, whatever its head says.
    is_head: bool,
    /// It waits for its turn to send.
    is_queued: bool,
    /// It waits for the connection's window, of which it has its share.
    is_held_back: bool,
    /// It has something to send.
    has_more: bool,
    /// How many bytes we may send; below zero where the server has made its windows smaller.
    send_window: i64,
    /// Bytes of its body that the server has given no credit for again.
    held: i64,
    /// How many bytes the server may send.
    receive_window: u32,
    /// The most that may come before any of it is consumed.
    window: u32,
    /// Bytes that have come and not been consumed.
    unread: u32,
    /// Bytes that have been consumed since the window became so large.
    read: u32,
    /// What is left of the announced length of the body.
    length_left: Option<u64>,
    /// Bytes of the frames of heads and bodies that have come on it.
    received: u64,
}

impl<S> Stream<S> {
    fn is_closed(&self) -> bool {
        !self.receives && !self.sends
    }
}

/// A connection whose other end is a server; see the module.
#[derive(Debug)]
pub struct Client<S> {
    limits: Limits,
    awaits: Awaits,
    frames: Frames,
    body: Body,
    block: Vec<u8>,
    decoder: Decoder,
    encoder: Encoder,
    head: ResponseHead,
    /// The block that `head` was read from, where it says the same when it comes again; else empty.
    head_block: Vec<u8>,
    /// How often the decoder's table had changed then.
    head_changes: u32,
    /// The same of the last request's block, and how it was opened.
    request_block: Vec<u8>,
    request_changes: Option<u32>,
    request_opening: RequestStart,
    streams: Map<u32, Stream<S>>,
    /// Streams that have something to send and may, in turn.
    queue: VecDeque<u32>,
    /// Streams that could send, but have used up [their share](Self::share) of the connection's
    /// window.
    held_back: Vec<u32>,
    peer: Settings,
    send_window: i64,
    /// The most that has been.
    send_window_max: i64,
    receive_window: u32,
    /// Bytes by which windows of streams are wider than at first, all together.
    wider: u32,
    /// The number of the next stream.
    next_stream: u32,
    /// How many streams we have reset.
    resets: u32,
    /// Streams that we have reset while the server could still send.
    forgiven: VecDeque<u32>,
    /// The last of those that are not known one by one any more: of what is over, none up to it can
    /// be told apart from them.
    forgiven_until: u32,
    /// The last stream that is served, once the server ends the connection.
    served_until: Option<u32>,
    /// Streams above that, which its user does not know of yet.
    not_served: Vec<u32>,
    output: Vec<u8>,
    meters: Meters,
    second: u32,
}

/// What the server does too often.
#[derive(Debug, Default)]
struct Meters {
    pings: Pings,
    settings: Meter,
    empty: Meter,
    small: Meter,
    priorities: Meter,
    /// Heads on streams that are over: each that we have reset may have brought its head and its
    /// trailers by then.
    late: ReplyAllowance,
    /// Resets, of which each request may have one.
    resets: ReplyAllowance,
    /// Credit, beside some for each part of a body that was sent.
    updates: ReplyAllowance,
}

impl Meters {
    /// Counts a frame that says nothing.
    fn count_empty(&mut self, second: u32) -> Result<(), Violation> {
        if self.empty.exceeds(second, meter::EMPTY_MAX) {
            return Err(Violation::Flood);
        }
        Ok(())
    }
}

impl<S> Client<S> {
    /// A connection on which nothing was sent yet. What is to be sent begins with our preface.
    #[must_use]
    pub fn new(limits: Limits) -> Client<S> {
        let mut output = PREFACE.to_vec();
        frame::put_settings(
            &mut output,
            &[
                (settings::ENABLE_PUSH, 0),
                (settings::INITIAL_WINDOW_SIZE, limits.stream_window),
            ],
        );
        // Each stream holds no more than its own window, so that one which is not read holds up no
        // other.
        let receive_window = WINDOW_MAX;
        frame::put_window_update(&mut output, 0, receive_window - WINDOW_AT_FIRST);
        Client {
            limits,
            awaits: Awaits::Settings,
            frames: Frames::new(),
            body: Body::default(),
            block: Vec::new(),
            decoder: Decoder::new(),
            encoder: Encoder::new(TABLE_SIZE_DEFAULT as u32),
            head: ResponseHead::default(),
            head_block: Vec::new(),
            head_changes: 0,
            request_block: Vec::new(),
            request_changes: None,
            request_opening: RequestStart::default(),
            streams: Map::default(),
            queue: VecDeque::new(),
            held_back: Vec::new(),
            peer: Settings::default(),
            send_window: i64::from(WINDOW_AT_FIRST),
            send_window_max: i64::from(WINDOW_AT_FIRST),
            receive_window,
            wider: 0,
            next_stream: 1,
            resets: 0,
            forgiven: VecDeque::new(),
            forgiven_until: 0,
            served_until: None,
            not_served: Vec::new(),
            output,
            meters: Meters::default(),
            second: 0,
        }
    }

    /// Goes on with the input from `at` on, which moves with what is used. `None`: it is used up,
    /// and whether more streams may be opened, or more be sent on them, is to be asked again.
    /// `second` is the time.
    ///
    /// # Errors
    /// What ends the connection; [`fail`](Self::fail) then says so to the server.
    pub fn handle(
        &mut self,
        input: &[u8],
        at: &mut usize,
        second: u32,
    ) -> Result<Option<Event>, Violation> {
        self.second = second;
        while let Some(stream) = self.not_served.pop() {
            if self.close(stream) {
                return Ok(Some(Event::NotServed { stream }));
            }
        }
        loop {
            let awaits = self.awaits;
            let meters = &mut self.meters;
            let incoming = self.frames.next(input, at, |head| {
                if let Kind::Unknown(_) = head.kind {
                    meters.count_empty(second)?;
                }
                examine(awaits, head)
            })?;
            let event = match incoming {
                Incoming::Nothing => return Ok(None),
                Incoming::Frame(head, payload) => self.frame(head, payload, input)?,
                Incoming::BodyBegins(head, padding) => self.body_begins(head, padding)?,
                Incoming::Body(range, is_last) => self.body(range, is_last),
            };
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// The head of the last response, or its trailers.
    #[must_use]
    pub fn head(&self) -> &ResponseHead {
        &self.head
    }

    /// Whether the server's preface has come: it speaks HTTP/2.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.awaits != Awaits::Settings
    }

    /// Whether the beginning of a frame or of a header block has come, and not its end.
    #[must_use]
    pub fn is_within_frame(&self) -> bool {
        self.frames.is_within_frame() || matches!(self.awaits, Awaits::Continuation { .. })
    }

    /// What may be sent on a stream, or in all.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn windows(&self, stream: Option<u32>) -> Option<super::testing::Windows> {
        let Some(stream) = stream else {
            return Some(super::testing::Windows {
                sends: Some(self.send_window),
                receives: Some(i64::from(self.receive_window)),
            });
        };
        let known = self.streams.get(&stream)?;
        Some(super::testing::Windows {
            sends: known.sends.then_some(known.send_window),
            receives: known.receives.then(|| i64::from(known.receive_window)),
        })
    }

    fn frame(
        &mut self,
        head: FrameHead,
        payload: Payload,
        input: &[u8],
    ) -> Result<Option<Event>, Violation> {
        let bytes = payload.of(input);
        let event = match head.kind {
            Kind::Headers => self.headers(head, bytes),
            Kind::Continuation => self.continuation(head, bytes),
            Kind::Reset => self.reset_by_peer(head, bytes),
            Kind::Settings => self.settings(head, bytes),
            Kind::Ping => self.ping(head, bytes),
            Kind::GoAway => self.goes_away(head, bytes),
            Kind::WindowUpdate => self.window_update(head, bytes),
            Kind::Priority => self.priority(head),
            // Only clients send these (RFC 9218, section 7.1).
            Kind::PriorityUpdate => Err(Violation::PriorityUpdate),
            Kind::PushPromise => Err(Violation::PushPromise),
            Kind::Data | Kind::Unknown(_) => Ok(None),
        };
        self.frames.give_back(payload);
        event
    }

    // Bodies.

    /// A DATA frame begins.
    fn body_begins(&mut self, head: FrameHead, padding: u32) -> Result<Option<Event>, Violation> {
        let FrameHead { length, stream, .. } = head;
        if self.is_idle(stream) {
            return Err(Violation::Identifier("DATA"));
        }
        if length > self.receive_window {
            return Err(Violation::ConnectionFlow(length, self.receive_window));
        }
        self.receive_window -= length;
        if self.receive_window < WINDOW_MAX / 2 {
            let credit = WINDOW_MAX - self.receive_window;
            frame::put_window_update(&mut self.output, 0, credit);
            self.receive_window = WINDOW_MAX;
        }
        let data = length - u32::from(head.has(flags::PADDED)) - padding;
        let ends = head.has(flags::END_STREAM);
        let small = meter::SMALL_DATA_MAX;
        if length == 0 && !ends {
            self.meters.count_empty(self.second)?;
        } else if data < meter::SMALL_DATA && !ends && self.meters.small.exceeds(self.second, small)
        {
            return Err(Violation::TooMany("small DATA frames"));
        }
        self.body = Body {
            stream,
            ends,
            is_dropped: true,
        };
        match self.judge_body(stream, length, data, ends) {
            Ok(()) => {
                self.body.is_dropped = false;
                // Padding is consumed by being passed over.
                if length > data {
                    self.consumed(stream, (length - data) as usize);
                }
                Ok(None)
            }
            // What was left behind by its own reset.
            Err(None) => Ok(None),
            Err(Some(fault)) => Ok(self.end_by_fault(stream, fault)),
        }
    }

    /// Whether a stream may get a DATA frame of this length in all, with so many bytes of data.
    fn judge_body(
        &mut self,
        stream: u32,
        length: u32,
        data: u32,
        ends: bool,
    ) -> Result<(), Option<StreamFault>> {
        let is_forgiven = || is_forgiven(&self.forgiven, self.forgiven_until, stream);
        let known = self.streams.get_mut(&stream);
        let Some(known) = known.filter(|known| known.receives) else {
            return Err(if is_forgiven() {
                None
            } else {
                Some(StreamFault::HalfClosed("DATA", stream))
            });
        };
        if !known.has_head {
            return Err(Some(StreamFault::NoHead(stream)));
        }
        if length > known.receive_window {
            let window = known.receive_window;
            return Err(Some(StreamFault::Flow(stream, length, window)));
        }
        known.receive_window -= length;
        known.unread += length;
        known.received += FRAMING + u64::from(length);
        if let Some(left) = &mut known.length_left {
            *left = match left.checked_sub(u64::from(data)) {
                Some(left) if ends && left > 0 => return Err(Some(StreamFault::BodyShort(stream))),
                Some(left) => left,
                None => return Err(Some(StreamFault::BodyLength(stream))),
            };
        }
        if ends {
            known.receives = false;
        }
        Ok(())
    }

    /// A part of a DATA frame's body.
    fn body(&mut self, range: Range<usize>, is_last: bool) -> Option<Event> {
        let Body {
            stream,
            ends,
            is_dropped,
        } = self.body;
        let ends = ends && is_last;
        if is_dropped || (range.is_empty() && !ends) {
            return None;
        }
        Some(Event::Data {
            stream,
            start: range.start,
            length: range.len(),
            ends,
        })
    }

    // Header blocks.

    fn headers(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event>, Violation> {
        let (mut block, mut padding) = (payload, 0);
        let too_short = || Violation::Length("HEADERS", head.length);
        if head.has(flags::PADDED) {
            let (first, rest) = block.split_first().ok_or_else(too_short)?;
            (padding, block) = (u32::from(*first), rest);
        }
        if head.has(flags::PRIORITY) {
            let (_, rest) = block.split_first_chunk::<5>().ok_or_else(too_short)?;
            block = rest;
        }
        let end = block.len().checked_sub(padding as usize);
        let block = end.and_then(|end| block.get(..end));
        let block = block.ok_or(Violation::Padding("HEADERS", head.length, padding))?;
        if self.is_idle(head.stream) {
            let last = self.next_stream.saturating_sub(2);
            return Err(Violation::HeadersIdentifier(head.stream, last));
        }
        let ends = head.has(flags::END_STREAM);
        if head.has(flags::END_HEADERS) {
            return self.whole_block(head.stream, ends, block, FRAMING + u64::from(head.length));
        }
        self.block.clear();
        self.block.extend_from_slice(block);
        self.awaits = Awaits::Continuation {
            stream: head.stream,
            ends,
            frames: 0,
            length: FRAMING + u64::from(head.length),
        };
        Ok(None)
    }

    fn continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<Event>, Violation> {
        let Awaits::Continuation {
            stream,
            ends,
            frames,
            length,
        } = self.awaits
        else {
            return Err(Violation::UnexpectedContinuation);
        };
        if frames >= CONTINUATIONS_MAX {
            return Err(Violation::TooManyContinuations);
        }
        let longest = self
            .limits
            .head_size_max
            .max(frame::SIZE_MAX_AT_FIRST as usize);
        if self.block.len() + payload.len() > longest {
            return Err(Violation::BlockTooLong);
        }
        self.block.extend_from_slice(payload);
        let length = length + FRAMING + u64::from(head.length);
        if !head.has(flags::END_HEADERS) {
            self.awaits = Awaits::Continuation {
                stream,
                ends,
                frames: frames + 1,
                length,
            };
            return Ok(None);
        }
        self.awaits = Awaits::Frame;
        let block = std::mem::take(&mut self.block);
        let event = self.whole_block(stream, ends, &block, length);
        self.block = block;
        event
    }

    /// A header block has come whole, in frames of so many bytes: a head, or trailers.
    fn whole_block(
        &mut self,
        stream: u32,
        ends: bool,
        block: &[u8],
        length: u64,
    ) -> Result<Option<Event>, Violation> {
        let (mut is_trailers, mut receives) = (false, false);
        if let Some(known) = self.streams.get_mut(&stream) {
            known.received += length;
            (is_trailers, receives) = (known.has_head, known.receives);
        }
        // Whatever becomes of it, the table must follow.
        let read = self.read_block(is_trailers, block)?;
        if !receives {
            if !is_forgiven(&self.forgiven, self.forgiven_until, stream) {
                return Err(Violation::HeadersAfterEnd(stream));
            }
            if self.meters.late.exceeds(self.second, meter::RESETS_MAX) {
                return Err(Violation::TooMany("HEADERS frames for closed streams"));
            }
            return Ok(None);
        }
        if let Err(fault) = read {
            return Ok(self.end_by_fault(stream, StreamFault::Response(stream, fault)));
        }
        if is_trailers {
            return Ok(self.trailers(stream, ends));
        }
        let status = self.head.status();
        let content_length = self.head.content_length();
        if status == 101 || (status < 200 && ends) {
            let fault = StreamFault::Response(stream, ResponseFault::Interim);
            return Ok(self.end_by_fault(stream, fault));
        }
        if status < 200 {
            return Ok(Some(Event::Interim { stream }));
        }
        let Some(known) = self.streams.get_mut(&stream) else {
            return Ok(None);
        };
        known.has_head = true;
        known.length_left = if known.is_head || matches!(status, 204 | 304) {
            Some(0)
        } else {
            content_length
        };
        if ends {
            if known.length_left.is_some_and(|left| left > 0) {
                return Ok(self.end_by_fault(stream, StreamFault::BodyShort(stream)));
            }
            known.receives = false;
        }
        Ok(Some(Event::Head { stream, ends }))
    }

    /// Reads a block into `head`. One that repeats the last head's, byte for byte, says the same
    /// while the table is as it was, and is not read again.
    fn read_block(
        &mut self,
        is_trailers: bool,
        block: &[u8],
    ) -> Result<Result<(), ResponseFault>, Violation> {
        let changes = self.decoder.changes();
        let is_as_before = changes == self.head_changes && !self.head_block.is_empty();
        if !is_trailers && is_as_before && self.head_block == block {
            return Ok(Ok(()));
        }
        self.head_block.clear();
        let size_max = self.limits.head_size_max + FIELDS_MAX * FIELD_OVERHEAD;
        let decoder = &mut self.decoder;
        let read = self.head.read(is_trailers, |bytes, sink| {
            decoder.decode(block, size_max, bytes, sink)
        });
        let read = read.map_err(Violation::Compression)?;
        if read.is_ok() && !is_trailers && self.decoder.changes() == changes {
            self.head_block.extend_from_slice(block);
            self.head_changes = changes;
        }
        Ok(read)
    }

    fn trailers(&mut self, stream: u32, ends: bool) -> Option<Event> {
        if !ends {
            return self.end_by_fault(stream, StreamFault::Trailers(stream));
        }
        let known = self.streams.get_mut(&stream)?;
        if known.length_left.is_some_and(|left| left > 0) {
            return self.end_by_fault(stream, StreamFault::BodyShort(stream));
        }
        known.receives = false;
        Some(Event::Trailers { stream })
    }

    // What is about a stream or the connection.

    /// Whether no request of ours was sent on it: nothing can come for it either.
    fn is_idle(&self, stream: u32) -> bool {
        stream >= self.next_stream || stream.is_multiple_of(2)
    }

    fn reset_by_peer(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<Event>, Violation> {
        let Ok(code) = <[u8; 4]>::try_from(payload) else {
            return Err(Violation::Length("RST_STREAM", head.length));
        };
        if self.is_idle(head.stream) {
            return Err(Violation::Identifier("RST_STREAM"));
        }
        if self.meters.resets.exceeds(self.second, meter::RESETS_MAX) {
            return Err(Violation::TooMany("RST_STREAM frames"));
        }
        let code = ErrorCode::from_number(u32::from_be_bytes(code));
        let was_open = self.close(head.stream);
        // One behind the end of both halves is told as well, unless it is about the request:
        // nothing more of that was needed, or it was malformed and has been answered (section
        // 8.1.1).
        let known = self.streams.get_mut(&head.stream);
        let was_reset = known.map(|known| std::mem::replace(&mut known.is_reset, true));
        let is_odd = was_reset.is_some_and(|before| {
            before || !matches!(code, ErrorCode::NoError | ErrorCode::ProtocolError)
        });
        Ok((was_open || is_odd).then_some(Event::Reset {
            stream: head.stream,
            code,
            fault: None,
        }))
    }

    /// Resets a stream for what the server did on it.
    fn end_by_fault(&mut self, stream: u32, fault: StreamFault) -> Option<Event> {
        let code = fault.code();
        self.put_reset(stream, code);
        self.close(stream).then_some(Event::Reset {
            stream,
            code,
            fault: Some(fault),
        })
    }

    /// Nobody hears of the rest of a DATA frame that has begun to come for the stream.
    fn drop_body(&mut self, stream: u32) {
        self.body.is_dropped |= self.body.stream == stream;
    }

    /// Closes both halves of a stream; whether one was open.
    fn close(&mut self, stream: u32) -> bool {
        self.drop_body(stream);
        let Some(known) = self.streams.get_mut(&stream) else {
            return false;
        };
        let was_open = !known.is_closed();
        known.receives = false;
        known.sends = false;
        known.has_more = false;
        was_open
    }

    /// Resets a stream, and remembers that.
    fn put_reset(&mut self, stream: u32, code: ErrorCode) {
        frame::put_reset(&mut self.output, stream, code);
        self.resets = self.resets.saturating_add(1);
        self.meters.late.permit(2, PERMITTED_MAX);
        if self.forgiven.len() >= FORGIVEN_MAX
            && let Some(first) = self.forgiven.pop_front()
        {
            self.forgiven_until = self.forgiven_until.max(first);
        }
        self.forgiven.push_back(stream);
    }

    fn settings(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event>, Violation> {
        if head.stream != 0 {
            return Err(Violation::Identifier("SETTINGS"));
        }
        let is_answer = head.has(flags::ACK);
        let (pairs, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() || is_answer && !payload.is_empty() {
            return Err(Violation::Length("SETTINGS", head.length));
        }
        let settings = &mut self.meters.settings;
        if settings.exceeds(self.second, meter::SETTINGS_MAX) {
            return Err(Violation::TooMany("SETTINGS frames"));
        }
        if is_answer {
            return Ok(None);
        }
        let before = self.peer;
        for [n0, n1, v0, v1, v2, v3] in pairs {
            let name = u16::from_be_bytes([*n0, *n1]);
            let value = u32::from_be_bytes([*v0, *v1, *v2, *v3]);
            if name == settings::ENABLE_PUSH && value != 0 {
                return Err(Violation::Setting("ENABLE_PUSH", value));
            }
            self.peer.set(name, value)?;
        }
        if self.peer.header_table_size != before.header_table_size {
            self.encoder.set_size_max(self.peer.header_table_size);
            // The next block says so.
            self.request_changes = None;
        }
        let after = self.peer.initial_window;
        if after != before.initial_window {
            self.move_windows(i64::from(after) - i64::from(before.initial_window), after)?;
        }
        frame::put_settings_ack(&mut self.output);
        self.awaits = Awaits::Frame;
        Ok(None)
    }

    /// The windows of all streams become larger or smaller, also below zero (RFC 9113, section
    /// 6.9.2).
    fn move_windows(&mut self, by: i64, value: u32) -> Result<(), Violation> {
        for stream in self.streams.values_mut() {
            stream.send_window += by;
            if stream.send_window > i64::from(WINDOW_MAX) {
                return Err(Violation::SettingOverflows(value));
            }
        }
        let waiting = self.streams.iter().filter(|(_, stream)| stream.has_more);
        let mut waiting: Vec<u32> = waiting.map(|(number, _)| *number).collect();
        // In their order, so that every run of the same connection is the same.
        waiting.sort_unstable();
        for number in waiting {
            if let Some(stream) = self.streams.get_mut(&number) {
                enqueue(&mut self.queue, number, stream);
            }
        }
        Ok(())
    }

    fn ping(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event>, Violation> {
        let Ok(payload) = <[u8; 8]>::try_from(payload) else {
            return Err(Violation::Length("PING", head.length));
        };
        if head.stream != 0 {
            return Err(Violation::Identifier("PING"));
        }
        if head.has(flags::ACK) {
            self.meters.count_empty(self.second)?;
            return Ok(Some(Event::Pong));
        }
        if self.meters.pings.exceeds(self.second) {
            return Err(Violation::TooMany("PING frames"));
        }
        frame::put_ping(&mut self.output, true, payload);
        Ok(None)
    }

    fn goes_away(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Event>, Violation> {
        if head.stream != 0 {
            return Err(Violation::Identifier("GOAWAY"));
        }
        let Some(([l0, l1, l2, l3, c0, c1, c2, c3], _)) = payload.split_first_chunk::<8>() else {
            return Err(Violation::Length("GOAWAY", head.length));
        };
        let last = u32::from_be_bytes([*l0, *l1, *l2, *l3]) & STREAM_MAX;
        let code = ErrorCode::from_number(u32::from_be_bytes([*c0, *c1, *c2, *c3]));
        self.meters.count_empty(self.second)?;
        let last = self.served_until.map_or(last, |before| before.min(last));
        self.served_until = Some(last);
        let above = self.streams.keys().copied().filter(|stream| *stream > last);
        self.not_served.clear();
        self.not_served.extend(above);
        // They are told from the end.
        self.not_served.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Some(Event::GoAway(code)))
    }

    fn window_update(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<Event>, Violation> {
        let increment = window::increment(head, payload)?;
        let updates = &mut self.meters.updates;
        if increment < 1024 && updates.exceeds(self.second, meter::WINDOW_UPDATES_MAX) {
            return Err(Violation::TooMany("WINDOW_UPDATE frames"));
        }
        if head.stream == 0 {
            self.send_window = window::widened_of_connection(self.send_window, increment)?;
            self.send_window_max = self.send_window_max.max(self.send_window);
            self.call_held_back();
            return Ok(None);
        }
        if self.is_idle(head.stream) {
            return Err(Violation::Identifier("WINDOW_UPDATE"));
        }
        let Some(stream) = self.streams.get_mut(&head.stream) else {
            return Ok(None);
        };
        if increment == 0 && !stream.is_closed() {
            let fault = StreamFault::NoIncrement(head.stream);
            return Ok(self.end_by_fault(head.stream, fault));
        }
        if !stream.sends {
            return Ok(None);
        }
        let Some(window) = window::widened(stream.send_window, increment) else {
            let fault = StreamFault::WindowOverflow(head.stream, increment, stream.send_window);
            return Ok(self.end_by_fault(head.stream, fault));
        };
        stream.send_window = window;
        stream.held = (stream.held - i64::from(increment)).max(0);
        enqueue(&mut self.queue, head.stream, stream);
        Ok(None)
    }

    /// PRIORITY, which means nothing any more.
    fn priority(&mut self, head: FrameHead) -> Result<Option<Event>, Violation> {
        match (head.length, head.stream) {
            (5, 1..) => {}
            (5, 0) => return Err(Violation::Identifier("PRIORITY")),
            _ => return Err(Violation::Length("PRIORITY", head.length)),
        }
        let priorities = &mut self.meters.priorities;
        if priorities.exceeds(self.second, meter::PRIORITIES_MAX) {
            return Err(Violation::TooMany("PRIORITY frames"));
        }
        Ok(None)
    }
}

/// What can be said of a frame before its payload has come.
fn examine(awaits: Awaits, head: FrameHead) -> Result<(), Violation> {
    // An answer of HTTP/1 begins with the head of a very long frame.
    if head.length > frame::SIZE_MAX_AT_FIRST {
        return Err(Violation::FrameTooLong(head.length));
    }
    match awaits {
        Awaits::Settings if head.kind != Kind::Settings || head.has(flags::ACK) => {
            Err(Violation::NoSettings)
        }
        Awaits::Continuation { stream, .. } => match head.kind {
            Kind::Continuation if head.stream == stream => Ok(()),
            Kind::Continuation => Err(Violation::ContinuationIdentifier),
            _ => Err(Violation::ContinuationExpected),
        },
        _ if head.kind == Kind::Continuation => Err(Violation::UnexpectedContinuation),
        _ => Ok(()),
    }
}

/// Lets a stream wait for its turn that has something to send and may.
fn enqueue<S>(queue: &mut VecDeque<u32>, number: u32, stream: &mut Stream<S>) {
    if stream.has_more && !stream.is_queued && stream.send_window > 0 {
        stream.is_queued = true;
        queue.push_back(number);
    }
}

/// Whether what comes for a stream that is over is no fault, because the server may not have heard
/// by then that we have reset it.
fn is_forgiven(forgiven: &VecDeque<u32>, until: u32, stream: u32) -> bool {
    stream <= until || forgiven.contains(&stream)
}
