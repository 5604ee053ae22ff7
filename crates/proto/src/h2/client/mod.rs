//! The client side of an HTTP/2 connection: requests go out, responses come in.
//!
//! The caller passes received bytes to [`Client::handle`] repeatedly until all are consumed. Each
//! call processes frames and returns at the first [`Event`] that concerns the caller. Bytes to send
//! are collected in [`Client::output`], in the order in which they must be sent. `sending.rs` sends
//! requests.
//!
//! ```text
//! open ─▶ (its body: turn, put_data) ─▶ Interim* ─▶ Head ─▶ Data* ─▶ (Trailers) ─▶ release
//!                                          └─ Reset, NotServed ───────────────────▲
//! ```
//!
//! A connection buffers an incomplete frame, a header block that is split over several frames, the
//! last response's head, the dynamic tables of both directions, and a record for each stream that
//! the caller has not released. Bodies are not buffered: the caller receives each part as it
//! arrives, never more than the window for which it has given credit.
//!
//! Not here: sockets, the time, whether a request may be retried, and server push, which is
//! disabled. RFC 9113.

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
use super::settings::{self, INITIAL_WINDOW_SIZE_DEFAULT, Settings, WINDOW_MAX};
use super::window;
pub use sending::RequestStart;

/// Limit of CONTINUATION frames per header block.
const CONTINUATIONS_MAX: u32 = 64;

/// Limit of the reset streams that are remembered one by one: frames that the server sent before it
/// received our RST_STREAM are ignored.
const FORGIVEN_MAX: usize = 1024;

/// Concurrent streams until the server's SETTINGS arrive: the minimum that RFC 9113 recommends
/// (section 6.5.2).
const STREAMS_BEFORE_SETTINGS: u32 = 100;

/// Limit of the frames that a [`ReplyAllowance`] may save up: many streams may end together, for
/// example when the deadlines of many calls expire.
const PERMITTED_MAX: u32 = 4096;

/// Total of all streams' receive windows, in bytes, up to which a single window may grow. Many
/// streams that are read need no wide windows, and many that are not read hold no more than the
/// initial window each.
const WINDOWS_MAX: u32 = 2 * 1024 * 1024;

/// Length of a frame's head, in bytes.
const FRAMING: u64 = frame::HEAD_LENGTH as u64;

/// Maximum number of fields of a response.
const FIELDS_MAX: usize = 1000;

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Initial receive window of a stream, in bytes: how much of a response's body may arrive
    /// before the caller consumes any.
    pub stream_window: u32,
    /// Maximum to which that window grows for a response that is consumed as it arrives, in bytes;
    /// see [`Client::consumed`].
    pub stream_window_max: u32,
    /// Maximum length of all names and values of a response's head, and of its encoded header
    /// block, in bytes.
    pub head_size_max: usize,
}

/// What the server has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An interim (1xx) response; its head is [`Client::head`] until the next event.
    Interim {
        /// The number of the stream.
        stream: u32,
    },
    /// The head of a response, which is [`Client::head`] until the next event.
    Head {
        /// The number of the stream.
        stream: u32,
        /// Whether the response has no body and no trailers.
        ends: bool,
    },
    /// A part of a body, as a range of the input.
    Data {
        /// The number of the stream.
        stream: u32,
        /// Offset of the part in the input.
        start: usize,
        /// Length of the part, in bytes.
        length: usize,
        /// Whether this is the last part, and no trailers follow.
        ends: bool,
    },
    /// Trailers, which end a response; they are [`Client::head`] until the next event.
    Trailers {
        /// The number of the stream.
        stream: u32,
    },
    /// A stream was reset, by the server or by us.
    Reset {
        /// The number of the stream.
        stream: u32,
        /// The error code. After [`ErrorCode::RefusedStream`] the request may be retried.
        code: ErrorCode,
        /// The server's error, if we have reset the stream.
        fault: Option<StreamFault>,
    },
    /// The server has not processed a request and will not, because it closes the connection
    /// (GOAWAY): the request may be retried.
    NotServed {
        /// The number of the stream.
        stream: u32,
    },
    /// The server has sent GOAWAY: no stream can be opened any more. A
    /// [`NotServed`](Event::NotServed) event for each stream that is not processed follows.
    GoAway(ErrorCode),
    /// The server has acknowledged a PING.
    Pong,
}

/// Which frames may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    Settings,
    Frame,
    /// More of a header block.
    Continuation {
        stream: u32,
        ends: bool,
        frames: u32,
        /// Bytes of the block's frames so far, including their heads.
        length: u64,
    },
}

/// The DATA frame that is being received.
#[derive(Clone, Copy, Debug, Default)]
struct Body {
    stream: u32,
    ends: bool,
    /// Whether the data are discarded.
    is_dropped: bool,
}

/// The state of a stream; `S` is the caller's data.
#[derive(Debug)]
struct Stream<S> {
    user: S,
    /// Whether the server may still send on the stream.
    receives: bool,
    /// Whether we may still send on the stream.
    sends: bool,
    /// Whether the server has reset the stream.
    is_reset: bool,
    /// Whether the final response's head has been received.
    has_head: bool,
    /// Whether the request's method is HEAD: the response has no body, whatever its head says.
    is_head: bool,
    /// Whether the stream is in `queue`, waiting for its turn to send.
    is_queued: bool,
    /// Whether the stream has used up its share of the connection's window, and is in
    /// `window_waiters`.
    awaits_window: bool,
    /// Whether the caller has something to send.
    has_more: bool,
    /// Bytes that we may send; negative after the server has reduced its initial window.
    send_window: i64,
    /// Bytes that were sent and for which the server has not given new credit.
    held: i64,
    /// Bytes that the server may send.
    receive_window: u32,
    /// Target size of the receive window: how many bytes may arrive before the caller consumes any.
    window: u32,
    /// Received bytes that the caller has not consumed.
    unread: u32,
    /// Bytes consumed since the window last grew.
    read: u32,
    /// Bytes of the body that remain by Content-Length.
    length_left: Option<u64>,
    /// Bytes of HEADERS, CONTINUATION and DATA frames received on the stream.
    received: u64,
}

impl<S> Stream<S> {
    fn is_closed(&self) -> bool {
        !self.receives && !self.sends
    }
}

/// The client side of a connection; see the module.
#[derive(Debug)]
pub struct Client<S> {
    limits: Limits,
    awaits: ReadState,
    frames: Frames,
    body: Body,
    block: Vec<u8>,
    decoder: Decoder,
    encoder: Encoder,
    head: ResponseHead,
    /// The header block of `head`, if an identical block has the same meaning; else empty.
    head_block: Vec<u8>,
    /// The decoder's [`changes`](Decoder::changes) when `head_block` was decoded.
    head_changes: u32,
    /// The last request's header block, the encoder's changes if the block can be repeated, and how
    /// its stream was opened.
    request_block: Vec<u8>,
    request_changes: Option<u32>,
    request_opening: RequestStart,
    streams: Map<u32, Stream<S>>,
    /// Streams that wait for their turn to send, in order.
    queue: VecDeque<u32>,
    /// Streams that have something to send, but have used up [their share](Self::share) of the
    /// connection's window.
    window_waiters: Vec<u32>,
    peer: Settings,
    send_window: i64,
    /// The maximum that `send_window` has had.
    send_window_max: i64,
    receive_window: u32,
    /// Total of bytes by which the streams' receive windows exceed the initial window.
    wider: u32,
    /// The identifier of the next stream.
    next_stream: u32,
    /// Number of streams that we have reset.
    resets: u32,
    /// Streams that we have reset while the server could still send.
    recently_reset: VecDeque<u32>,
    /// The highest reset stream that was dropped from `recently_reset`: up to this identifier,
    /// reset streams cannot be told from other closed streams, and frames on any of them are
    /// ignored.
    recently_reset_until: u32,
    /// The last stream that the server will process, by its GOAWAY.
    served_until: Option<u32>,
    /// Streams above `served_until` that have not been reported to the caller yet.
    not_served: Vec<u32>,
    output: Vec<u8>,
    meters: Meters,
    second: u32,
}

/// Rate limits of the server's frames.
#[derive(Debug, Default)]
struct Meters {
    pings: Pings,
    settings: Meter,
    empty: Meter,
    small: Meter,
    priorities: Meter,
    /// HEADERS on closed streams: on each stream that we have reset, the server may have sent a
    /// head and trailers before it received the reset.
    late: ReplyAllowance,
    /// RST_STREAM frames, of which each request permits one.
    resets: ReplyAllowance,
    /// WINDOW_UPDATE frames, of which each DATA frame that we sent permits some.
    updates: ReplyAllowance,
}

impl Meters {
    /// Counts a frame without effect.
    fn count_empty(&mut self, second: u32) -> Result<(), Violation> {
        if self.empty.exceeds(second, meter::EMPTY_MAX) {
            return Err(Violation::Flood);
        }
        Ok(())
    }
}

impl<S> Client<S> {
    /// A connection on which nothing has been sent. The output begins with the connection preface.
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
        // Each stream's own window limits its memory. The connection's window is as large as
        // possible, so that a stream that is not read does not block the others.
        let receive_window = WINDOW_MAX;
        frame::put_window_update(&mut output, 0, receive_window - INITIAL_WINDOW_SIZE_DEFAULT);
        Client {
            limits,
            awaits: ReadState::Settings,
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
            window_waiters: Vec::new(),
            peer: Settings::default(),
            send_window: i64::from(INITIAL_WINDOW_SIZE_DEFAULT),
            send_window_max: i64::from(INITIAL_WINDOW_SIZE_DEFAULT),
            receive_window,
            wider: 0,
            next_stream: 1,
            resets: 0,
            recently_reset: VecDeque::new(),
            recently_reset_until: 0,
            served_until: None,
            not_served: Vec::new(),
            output,
            meters: Meters::default(),
            second: 0,
        }
    }

    /// Processes `input` from offset `at`, and advances `at` past the consumed bytes. Returns
    /// `None` when all input is consumed: the caller should then check again whether streams can be
    /// opened or have a turn to send. `second` is the current time, in seconds.
    ///
    /// # Errors
    /// The connection error; [`fail`](Self::fail) then sends it to the server.
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

    /// The head or the trailers of the last event.
    #[must_use]
    pub fn head(&self) -> &ResponseHead {
        &self.head
    }

    /// Whether the server's SETTINGS have been received, which proves that it speaks HTTP/2.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.awaits != ReadState::Settings
    }

    /// Whether a frame or a header block has been received in part.
    #[must_use]
    pub fn is_within_frame(&self) -> bool {
        self.frames.is_within_frame() || matches!(self.awaits, ReadState::Continuation { .. })
    }

    /// The windows of a stream or, for `None`, of the connection.
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
            Kind::GoAway => self.handle_goaway(head, bytes),
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

    /// Begins a DATA frame.
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
                // Padding counts against the window, and is consumed at once.
                if length > data {
                    self.consumed(stream, (length - data) as usize);
                }
                Ok(None)
            }
            // DATA that the server sent before it received our reset.
            Err(None) => Ok(None),
            Err(Some(fault)) => Ok(self.reset_for_fault(stream, fault)),
        }
    }

    /// Checks that a stream may receive a DATA frame with this payload length and this much data,
    /// and updates the stream's window and remaining length.
    fn judge_body(
        &mut self,
        stream: u32,
        length: u32,
        data: u32,
        ends: bool,
    ) -> Result<(), Option<StreamFault>> {
        let is_recently_reset =
            || is_recently_reset(&self.recently_reset, self.recently_reset_until, stream);
        let known = self.streams.get_mut(&stream);
        let Some(known) = known.filter(|known| known.receives) else {
            return Err(if is_recently_reset() {
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

    /// Reports a part of a DATA frame's data.
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
        self.awaits = ReadState::Continuation {
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
        let ReadState::Continuation {
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
            .max(frame::FRAME_SIZE_MAX_DEFAULT as usize);
        if self.block.len() + payload.len() > longest {
            return Err(Violation::BlockTooLong);
        }
        self.block.extend_from_slice(payload);
        let length = length + FRAMING + u64::from(head.length);
        if !head.has(flags::END_HEADERS) {
            self.awaits = ReadState::Continuation {
                stream,
                ends,
                frames: frames + 1,
                length,
            };
            return Ok(None);
        }
        self.awaits = ReadState::Frame;
        let block = std::mem::take(&mut self.block);
        let event = self.whole_block(stream, ends, &block, length);
        self.block = block;
        event
    }

    /// Decodes a complete header block, a head or trailers. `length` is the total of its frames, in
    /// bytes.
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
        // The decoder's table must be updated even if the block is then rejected.
        let read = self.read_block(is_trailers, block)?;
        if !receives {
            if !is_recently_reset(&self.recently_reset, self.recently_reset_until, stream) {
                return Err(Violation::HeadersAfterEnd(stream));
            }
            if self.meters.late.exceeds(self.second, meter::RESETS_MAX) {
                return Err(Violation::TooMany("HEADERS frames for closed streams"));
            }
            return Ok(None);
        }
        if let Err(fault) = read {
            return Ok(self.reset_for_fault(stream, StreamFault::Response(stream, fault)));
        }
        if is_trailers {
            return Ok(self.trailers(stream, ends));
        }
        let status = self.head.status();
        let content_length = self.head.content_length();
        if status == 101 || (status < 200 && ends) {
            let fault = StreamFault::Response(stream, ResponseFault::Interim);
            return Ok(self.reset_for_fault(stream, fault));
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
                return Ok(self.reset_for_fault(stream, StreamFault::BodyShort(stream)));
            }
            known.receives = false;
        }
        Ok(Some(Event::Head { stream, ends }))
    }

    /// Decodes a block into `head`. A block that is identical to the last head's has the same
    /// meaning while the dynamic table is unchanged, and is not decoded again.
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
            return self.reset_for_fault(stream, StreamFault::Trailers(stream));
        }
        let known = self.streams.get_mut(&stream)?;
        if known.length_left.is_some_and(|left| left > 0) {
            return self.reset_for_fault(stream, StreamFault::BodyShort(stream));
        }
        known.receives = false;
        Some(Event::Trailers { stream })
    }

    // Frames about streams or the connection.

    /// Whether we have not opened the stream, so that no frame may arrive on it.
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
        // A reset after both halves have ended is reported as well, unless it concerns the request:
        // the server did not need the rest of the request, or answered a malformed request (RFC
        // 9113, section 8.1.1).
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

    /// Resets a stream because of the server's error on it.
    fn reset_for_fault(&mut self, stream: u32, fault: StreamFault) -> Option<Event> {
        let code = fault.code();
        self.put_reset(stream, code);
        self.close(stream).then_some(Event::Reset {
            stream,
            code,
            fault: Some(fault),
        })
    }

    /// Discards the rest of a DATA frame of this stream.
    fn drop_body(&mut self, stream: u32) {
        self.body.is_dropped |= self.body.stream == stream;
    }

    /// Closes both halves of a stream. Returns true if one was open.
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

    /// Sends RST_STREAM, and remembers the stream.
    fn put_reset(&mut self, stream: u32, code: ErrorCode) {
        frame::put_reset(&mut self.output, stream, code);
        self.resets = self.resets.saturating_add(1);
        self.meters.late.permit(2, PERMITTED_MAX);
        if self.recently_reset.len() >= FORGIVEN_MAX
            && let Some(first) = self.recently_reset.pop_front()
        {
            self.recently_reset_until = self.recently_reset_until.max(first);
        }
        self.recently_reset.push_back(stream);
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
            // The next block begins with the dynamic table size update.
            self.request_changes = None;
        }
        let after = self.peer.initial_window;
        if after != before.initial_window {
            self.move_windows(i64::from(after) - i64::from(before.initial_window), after)?;
        }
        frame::put_settings_ack(&mut self.output);
        self.awaits = ReadState::Frame;
        Ok(None)
    }

    /// Adds the change of the initial window to all streams' windows, which may become negative
    /// (RFC 9113, section 6.9.2).
    fn move_windows(&mut self, by: i64, value: u32) -> Result<(), Violation> {
        for stream in self.streams.values_mut() {
            stream.send_window += by;
            if stream.send_window > i64::from(WINDOW_MAX) {
                return Err(Violation::SettingOverflows(value));
            }
        }
        let waiting = self.streams.iter().filter(|(_, stream)| stream.has_more);
        let mut waiting: Vec<u32> = waiting.map(|(number, _)| *number).collect();
        // In order of their identifiers, so that the behaviour is deterministic.
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

    fn handle_goaway(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Option<Event>, Violation> {
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
        // `handle` takes them from the end: the lowest stream comes first.
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
            self.requeue_window_waiters();
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
            return Ok(self.reset_for_fault(head.stream, fault));
        }
        if !stream.sends {
            return Ok(None);
        }
        let Some(window) = window::widened(stream.send_window, increment) else {
            let fault = StreamFault::WindowOverflow(head.stream, increment, stream.send_window);
            return Ok(self.reset_for_fault(head.stream, fault));
        };
        stream.send_window = window;
        stream.held = (stream.held - i64::from(increment)).max(0);
        enqueue(&mut self.queue, head.stream, stream);
        Ok(None)
    }

    /// PRIORITY, which is deprecated and ignored.
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

/// Checks a frame's head before its payload is received.
fn examine(awaits: ReadState, head: FrameHead) -> Result<(), Violation> {
    // An HTTP/1 response, read as a frame's head, has a very large length.
    if head.length > frame::FRAME_SIZE_MAX_DEFAULT {
        return Err(Violation::FrameTooLong(head.length));
    }
    match awaits {
        ReadState::Settings if head.kind != Kind::Settings || head.has(flags::ACK) => {
            Err(Violation::NoSettings)
        }
        ReadState::Continuation { stream, .. } => match head.kind {
            Kind::Continuation if head.stream == stream => Ok(()),
            Kind::Continuation => Err(Violation::ContinuationIdentifier),
            _ => Err(Violation::ContinuationExpected),
        },
        _ if head.kind == Kind::Continuation => Err(Violation::UnexpectedContinuation),
        _ => Ok(()),
    }
}

/// Queues a stream if it has something to send and its window allows it.
fn enqueue<S>(queue: &mut VecDeque<u32>, number: u32, stream: &mut Stream<S>) {
    if stream.has_more && !stream.is_queued && stream.send_window > 0 {
        stream.is_queued = true;
        queue.push_back(number);
    }
}

/// Whether frames on a closed stream are ignored, because the server may have sent them before it
/// received our RST_STREAM.
fn is_recently_reset(recently_reset: &VecDeque<u32>, until: u32, stream: u32) -> bool {
    stream <= until || recently_reset.contains(&stream)
}
