//! The server side of an HTTP/2 connection: reading what the client sends.
//!
//! The caller passes received bytes to [`Connection::handle`] repeatedly until all are consumed.
//! Each call processes frames and returns at the first [`Event`] that concerns the caller. Replies
//! to frames are collected in a buffer that [`Connection::take_control`] returns: the caller must
//! send them before anything else. [`sending`](super::sending) is the other direction.
//!
//! A connection buffers an incomplete frame (up to 16 KiB, or the limit of a header block), a
//! header block that is split over several frames (up to the same limit), the decoder's dynamic
//! table, and a record for each stream that the caller has not released. Bodies are not buffered:
//! the caller receives each part as it arrives, never more than the window for which it has given
//! credit.

use base::hash::Map;

use super::error::{ErrorCode, StreamFault, Violation};
use super::frame::{self, FrameHead, HEAD_LENGTH, Kind, PREFACE, flags};
use super::hpack::{DecodedBlock, Decoder};
use super::meter::{self, Meter, Pings};
use super::priority::{Priority, Schedule};
use super::request::{HeadFault, HeadReader, NamedRules, RequestMetadata, Rules, may_trail};
use super::settings::{self, INITIAL_WINDOW_SIZE_DEFAULT, Settings, WINDOW_MAX};
use super::signals::depends_on;
use super::stream::Stream;
use crate::head::Head;

/// Limit of CONTINUATION frames per header block.
const CONTINUATIONS_MAX: u32 = 64;

/// Maximum payload of a DATA frame, or of a frame that is skipped, in bytes: neither is buffered.
/// gRPC clients send DATA frames of this size.
pub const FRAME_SIZE_MAX: u32 = 1 << 20;

/// Limits of the number of reset streams that are remembered: frames that the client sent before it
/// received our RST_STREAM are ignored. Within these limits, as many are remembered as may be open
/// concurrently.
const RECENTLY_RESET_MAX: std::ops::RangeInclusive<usize> = 64..=1024;

/// Pseudo-header fields that a header block may contain in addition to the limit of fields: those
/// of a request, and some invalid ones, so that the log names the actual fault.
const PSEUDO_FIELDS_MAX: usize = 8;

/// Initial capacity for the bytes of a head.
const HEAD_USUAL: usize = 256;

/// Maximum bytes of a HEADERS payload outside the header block: padding, its length, and a
/// priority.
const HEADERS_OVERHEAD_MAX: usize = 1 + 255 + 5;

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Concurrent streams (`http2_max_concurrent_streams`).
    pub streams_max: u32,
    /// Initial receive window of a stream, in bytes: how much of a body may arrive before the
    /// caller reads any (`http2_body_preread_size`); see [`Connection::widen`].
    pub stream_window: u32,
    /// Maximum length of an encoded header block, in bytes.
    pub block_size_max: usize,
    /// Whether extended CONNECT (RFC 8441) is allowed.
    pub extended_connect: bool,
}

/// What the client has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request's head, stored in [`Heads`]. The caller must open the stream, or answer the
    /// request at once, before it calls [`Connection::handle`] again.
    Head {
        /// The number of the stream.
        stream: u32,
        /// Whether the request has no body.
        ends: bool,
        /// The request's metadata, or why the request is malformed.
        asked: Result<RequestMetadata, HeadFault>,
    },
    /// A part of a body, as a range of the input.
    Data {
        /// The number of the stream.
        stream: u32,
        /// Offset of the part in the input.
        start: usize,
        /// Length of the part, in bytes.
        length: usize,
        /// Whether this is the last part.
        ends: bool,
    },
    /// A stream was reset, by the client or by us.
    Reset {
        /// The number of the stream.
        stream: u32,
        /// The error code of the reset.
        code: ErrorCode,
        /// The client's error, if we have reset the stream.
        fault: Option<StreamFault>,
    },
    /// A request's body contradicts its Content-Length. The caller answers, and resets the stream
    /// ([`Connection::reset_answered`]).
    Malformed {
        /// The number of the stream.
        stream: u32,
        /// The error.
        fault: StreamFault,
    },
    /// A request was refused, without an [`Event::Head`].
    Refused(StreamFault),
    /// The client has sent GOAWAY: it will accept no further pushed streams.
    GoAway(ErrorCode),
    /// The client has acknowledged a PING.
    Pong,
}

/// Buffers and rules for the head of a request.
pub struct Heads<'a> {
    /// Receives the head of the last [`Event::Head`].
    pub head: &'a mut Head,
    /// The bytes that the spans of `head` refer to.
    pub bytes: &'a mut Vec<u8>,
    /// The rules for a head until the server's name is known.
    pub rules: &'a Rules,
    /// The rules that depend on the server's name, if servers differ.
    pub named: Option<NamedRules<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    /// Within the preface, of which this many bytes have been received.
    Preface(usize),
    Frame,
    /// Within a header block.
    Continuation {
        stream: u32,
        ends: bool,
        frames: u32,
    },
    /// Within a payload that is ignored: this many bytes remain to be skipped.
    Nothing(u32),
    /// Within the payload of a DATA frame.
    Body(Body),
}

/// The remainder of a DATA frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Body {
    stream: u32,
    length: u32,
    padding: u32,
    ends: bool,
    /// Whether the data are discarded.
    dropped: bool,
}

/// Rate limits of the client's frames.
#[derive(Debug, Default)]
pub(super) struct Meters {
    pub(super) resets: Meter,
    pub(super) settings: Meter,
    pub(super) pings: Pings,
    pub(super) priorities: Meter,
    empty: Meter,
    pub(super) updates: Meter,
    small: Meter,
    refused: u32,
}

/// Whether a header block that we send must begin with a dynamic table size update (RFC 7541,
/// section 4.2). Responses never use the dynamic table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TableUpdate {
    /// The client allows a dynamic table of at least the initial size.
    #[default]
    Unneeded,
    /// The client has announced a smaller table: the next header block must begin with the update.
    Due,
    Said,
}

/// The server side of a connection; see the module.
#[derive(Debug)]
pub struct Connection<S> {
    pub(super) limits: Limits,
    pub(super) awaits: ReadState,
    partial: Vec<u8>,
    block: Vec<u8>,
    decoder: Decoder,
    pub(super) streams: Map<u32, Stream<S>>,
    pub(super) schedule: Option<Box<Schedule>>,
    pub(super) peer: Settings,
    pub(super) send_window: i64,
    receive_window: u32,
    /// The highest stream identifier that the client has used.
    pub(super) last_stream: u32,
    /// Which of the last 64 client streams were begun, as a bit set: the lowest bit is
    /// `last_stream`.
    begun: u64,
    /// Streams that we have reset while the client could still send on them.
    pub(super) recently_reset: Vec<u32>,
    pub(super) early_priorities: Vec<(u32, Priority)>,
    /// A stream whose header block did not arrive in time.
    late: Option<u32>,
    /// The last stream identifier of the GOAWAY that we sent: later streams are ignored.
    pub(super) last_served_stream: Option<u32>,
    /// Frames to send before anything else: replies to frames, resets and credit.
    pub(super) control: Vec<u8>,
    /// Whether the client has acknowledged our SETTINGS.
    pub(super) is_acknowledged: bool,
    pub(super) table_update: TableUpdate,
    pub(super) meters: Box<Meters>,
    pub(super) second: u32,
}

impl<S> Connection<S> {
    /// A connection on which nothing has been received. Our SETTINGS are queued as the first frames
    /// to send.
    #[must_use]
    pub fn new(limits: Limits) -> Connection<S> {
        let mut control = Vec::new();
        let mut ours = vec![
            (settings::MAX_CONCURRENT_STREAMS, limits.streams_max),
            (settings::INITIAL_WINDOW_SIZE, limits.stream_window),
            (settings::MAX_FRAME_SIZE, FRAME_SIZE_MAX),
        ];
        if limits.extended_connect {
            ours.push((settings::ENABLE_CONNECT_PROTOCOL, 1));
        }
        frame::put_settings(&mut control, &ours);
        // Each stream's own window limits its memory. The connection's window is as large as
        // possible, so that a stream that is not read does not block the others.
        let receive_window = WINDOW_MAX;
        frame::put_window_update(
            &mut control,
            0,
            receive_window - INITIAL_WINDOW_SIZE_DEFAULT,
        );
        Connection {
            limits,
            awaits: ReadState::Preface(0),
            partial: Vec::new(),
            block: Vec::new(),
            decoder: Decoder::new(),
            streams: Map::default(),
            schedule: None,
            peer: Settings::default(),
            send_window: i64::from(INITIAL_WINDOW_SIZE_DEFAULT),
            receive_window,
            last_stream: 0,
            begun: 0,
            recently_reset: Vec::new(),
            early_priorities: Vec::new(),
            late: None,
            last_served_stream: None,
            control,
            is_acknowledged: false,
            table_update: TableUpdate::default(),
            meters: Box::default(),
            second: 0,
        }
    }

    /// Processes `input` from offset `at`, and advances `at` past the consumed bytes. Returns
    /// `None` when all input is consumed. `second` is the current time, in seconds.
    ///
    /// # Errors
    /// The connection error; [`fail`](Self::fail) then sends it to the client.
    pub fn handle(
        &mut self,
        input: &[u8],
        at: &mut usize,
        second: u32,
        heads: &mut Heads<'_>,
    ) -> Result<Option<Event>, Violation> {
        self.second = second;
        loop {
            let rest = input.get(*at..).unwrap_or_default();
            match self.awaits {
                ReadState::Preface(seen) => {
                    let wanted = PREFACE.get(seen..).unwrap_or_default();
                    let length = rest.len().min(wanted.len());
                    if rest.get(..length) != wanted.get(..length) {
                        return Err(Violation::Preface);
                    }
                    *at += length;
                    if length < wanted.len() {
                        self.awaits = ReadState::Preface(seen + length);
                        return Ok(None);
                    }
                    // The RFC requires SETTINGS next; like nginx, we do not enforce it.
                    self.awaits = ReadState::Frame;
                }
                ReadState::Nothing(left) => {
                    let length = rest.len().min(left as usize);
                    *at += length;
                    if length < left as usize {
                        self.awaits = ReadState::Nothing(left - length as u32);
                        return Ok(None);
                    }
                    self.awaits = ReadState::Frame;
                }
                ReadState::Body(body) => {
                    if let Some(event) = self.take_body(body, rest, at) {
                        return Ok(Some(event));
                    }
                    if matches!(self.awaits, ReadState::Body(_)) {
                        return Ok(None);
                    }
                }
                ReadState::Frame | ReadState::Continuation { .. } => {
                    match self.take_frame(rest, at, heads)? {
                        FrameOutcome::Event(event) => return Ok(Some(event)),
                        FrameOutcome::Nothing => {}
                        FrameOutcome::NotWhole => return Ok(None),
                    }
                }
            }
        }
    }

    /// Whether a frame or a header block has been received in part. The data of a DATA frame do not
    /// count: they are passed on as they arrive.
    #[must_use]
    pub fn is_within_frame(&self) -> bool {
        !self.partial.is_empty() || !matches!(self.awaits, ReadState::Frame | ReadState::Body(_))
    }

    /// Whether the incomplete frame or header block belongs to a head that was given up.
    #[must_use]
    pub fn is_within_late(&self) -> bool {
        self.late.is_some() && self.is_within_frame()
    }

    /// Gives up waiting for the rest of a frame, which did not arrive in time. If the frame belongs
    /// to a request's head, resets the stream and returns true: the rest of the header block will
    /// only update the decoder's table.
    pub fn time_out_frame(&mut self) -> bool {
        let stream = match (self.awaits, self.partial.first_chunk::<HEAD_LENGTH>()) {
            (ReadState::Continuation { stream, .. }, _) if stream > self.last_stream => stream,
            (ReadState::Frame, Some(head)) => {
                let head = FrameHead::read(head);
                if head.kind == Kind::Headers && head.stream > self.last_stream {
                    head.stream
                } else {
                    return false;
                }
            }
            _ => return false,
        };
        if self.late != Some(stream) {
            self.late = Some(stream);
            frame::put_reset(&mut self.control, stream, ErrorCode::ProtocolError);
        }
        true
    }

    /// Allocated memory in bytes: of the incomplete frame, the header block, the reset streams,
    /// early priorities, and the frames to send.
    #[cfg(test)]
    pub(super) fn memory(&self) -> [usize; 5] {
        [
            self.partial.capacity(),
            self.block.capacity(),
            self.recently_reset.capacity() * size_of::<u32>(),
            self.early_priorities.capacity() * size_of::<(u32, Priority)>(),
            self.control.capacity(),
        ]
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

    #[cfg(test)]
    pub(super) fn set_receive_window(&mut self, window: u32) {
        self.receive_window = window;
    }

    /// Processes a frame: reads the head, then begins DATA, skips a frame of an unknown type, or
    /// dispatches any other frame once its payload is complete.
    fn take_frame(
        &mut self,
        rest: &[u8],
        at: &mut usize,
        heads: &mut Heads<'_>,
    ) -> Result<FrameOutcome, Violation> {
        if !self.partial.is_empty() {
            return self.take_partial(rest, at, heads);
        }
        let Some((bytes, payload)) = rest.split_first_chunk::<HEAD_LENGTH>() else {
            self.partial.extend_from_slice(rest);
            *at += rest.len();
            return Ok(FrameOutcome::NotWhole);
        };
        let head = FrameHead::read(bytes);
        self.examine(head)?;
        match head.kind {
            Kind::Data if !matches!(self.awaits, ReadState::Continuation { .. }) => {
                // The padding's length is the first byte of the payload.
                let Some(padding) = padding_of(head, payload) else {
                    self.partial.extend_from_slice(bytes);
                    *at += HEAD_LENGTH;
                    return Ok(FrameOutcome::NotWhole);
                };
                *at += HEAD_LENGTH + usize::from(head.has(flags::PADDED));
                self.begin_body(head, padding)
            }
            Kind::Unknown(_) => {
                *at += HEAD_LENGTH;
                self.awaits = ReadState::Nothing(head.length);
                Ok(FrameOutcome::Nothing)
            }
            _ => {
                let length = head.length as usize;
                match payload.get(..length) {
                    Some(payload) => {
                        *at += HEAD_LENGTH + length;
                        self.dispatch(head, payload, heads)
                    }
                    None => {
                        self.partial.extend_from_slice(rest);
                        *at += rest.len();
                        Ok(FrameOutcome::NotWhole)
                    }
                }
            }
        }
    }

    /// Continues with a frame that has been received in part.
    fn take_partial(
        &mut self,
        rest: &[u8],
        at: &mut usize,
        heads: &mut Heads<'_>,
    ) -> Result<FrameOutcome, Violation> {
        let mut rest = rest;
        let mut fill = |partial: &mut Vec<u8>, wanted: usize| {
            let missing = wanted.saturating_sub(partial.len()).min(rest.len());
            let (part, behind) = rest.split_at_checked(missing).unwrap_or((rest, &[]));
            partial.extend_from_slice(part);
            rest = behind;
            *at += missing;
            partial.len() >= wanted
        };
        if !fill(&mut self.partial, HEAD_LENGTH) {
            return Ok(FrameOutcome::NotWhole);
        }
        let Some(bytes) = self.partial.first_chunk::<HEAD_LENGTH>() else {
            return Ok(FrameOutcome::NotWhole);
        };
        let head = FrameHead::read(bytes);
        self.examine(head)?;
        let wanted = match head.kind {
            Kind::Data if !matches!(self.awaits, ReadState::Continuation { .. }) => {
                usize::from(head.has(flags::PADDED) && head.length > 0)
            }
            Kind::Unknown(_) => 0,
            _ => head.length as usize,
        };
        if !fill(&mut self.partial, HEAD_LENGTH + wanted) {
            return Ok(FrameOutcome::NotWhole);
        }
        let partial = std::mem::take(&mut self.partial);
        let payload = partial.get(HEAD_LENGTH..).unwrap_or_default();
        match head.kind {
            Kind::Data if !matches!(self.awaits, ReadState::Continuation { .. }) => {
                let padding = padding_of(head, payload).unwrap_or_default();
                self.begin_body(head, padding)
            }
            Kind::Unknown(_) => {
                self.awaits = ReadState::Nothing(head.length);
                Ok(FrameOutcome::Nothing)
            }
            _ => self.dispatch(head, payload, heads),
        }
    }

    /// Checks a frame's head before its payload is received.
    fn examine(&mut self, head: FrameHead) -> Result<(), Violation> {
        let longest = match head.kind {
            Kind::Data | Kind::Headers | Kind::Continuation | Kind::Unknown(_) => FRAME_SIZE_MAX,
            // No valid frame of the other types is larger.
            _ => frame::FRAME_SIZE_MAX_DEFAULT,
        };
        if head.length > longest {
            return Err(Violation::FrameTooLong(head.length));
        }
        // Rejects a header block that exceeds the limit before its payload is buffered.
        let of_block = match head.kind {
            Kind::Headers => (head.length as usize).saturating_sub(HEADERS_OVERHEAD_MAX),
            Kind::Continuation => self.block.len() + head.length as usize,
            _ => 0,
        };
        if of_block > self.limits.block_size_max {
            return Err(Violation::BlockTooLong);
        }
        match self.awaits {
            ReadState::Continuation { stream, .. } => match head.kind {
                Kind::Continuation if head.stream == stream => Ok(()),
                Kind::Continuation => Err(Violation::ContinuationIdentifier),
                _ => Err(Violation::ContinuationExpected),
            },
            _ => match head.kind {
                Kind::Continuation => Err(Violation::UnexpectedContinuation),
                Kind::PushPromise => Err(Violation::PushPromise),
                Kind::Unknown(_) => self.count_empty(),
                _ => Ok(()),
            },
        }
    }

    pub(super) fn count_empty(&mut self) -> Result<(), Violation> {
        if self.meters.empty.exceeds(self.second, meter::EMPTY_MAX) {
            Err(Violation::Flood)
        } else {
            Ok(())
        }
    }

    fn dispatch(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        heads: &mut Heads<'_>,
    ) -> Result<FrameOutcome, Violation> {
        match head.kind {
            Kind::Headers => self.headers(head, payload, heads),
            Kind::Continuation => self.continuation(head, payload, heads),
            Kind::Priority => self.priority(head, payload),
            Kind::Reset => self.reset_by_peer(head, payload),
            Kind::Settings => self.settings(head, payload),
            Kind::Ping => self.ping(head, payload),
            Kind::GoAway => self.go_away_by_peer(head, payload),
            Kind::WindowUpdate => self.window_update(head, payload),
            Kind::PriorityUpdate => self.priority_update(head, payload),
            Kind::Data | Kind::PushPromise | Kind::Unknown(_) => Ok(FrameOutcome::Nothing),
        }
    }

    // Bodies.

    /// Begins a DATA frame, whose padding length has been read.
    fn begin_body(&mut self, head: FrameHead, padding: u32) -> Result<FrameOutcome, Violation> {
        let FrameHead { length, stream, .. } = head;
        let ends = head.has(flags::END_STREAM);
        if head.has(flags::PADDED) && (length == 0 || padding >= length) {
            return match length {
                0 => Err(Violation::Length("padded DATA", 0)),
                _ => Err(Violation::Padding("DATA", length, padding)),
            };
        }
        if stream == 0 || stream > self.last_stream || stream.is_multiple_of(2) {
            return Err(Violation::Identifier("DATA"));
        }
        // The last frame of a body may be empty or small. Padding does not count as data.
        let data = length - u32::from(head.has(flags::PADDED)) - padding;
        if length == 0 && !ends {
            self.count_empty()?;
        } else if data < meter::SMALL_DATA
            && !ends
            && self
                .meters
                .small
                .exceeds(self.second, meter::SMALL_DATA_MAX)
        {
            return Err(Violation::TooMany("small DATA frames"));
        }
        if length > self.receive_window {
            return Err(Violation::ConnectionFlow(length, self.receive_window));
        }
        self.receive_window -= length;
        if self.receive_window < WINDOW_MAX / 2 {
            let credit = WINDOW_MAX - self.receive_window;
            frame::put_window_update(&mut self.control, 0, credit);
            self.receive_window = WINDOW_MAX;
        }
        let fault = self.judge_body(stream, length, data, ends);
        self.awaits = ReadState::Body(Body {
            stream,
            length: data,
            padding,
            ends,
            dropped: fault.is_err(),
        });
        match fault {
            Err(Some(fault @ StreamFault::BodyLength(_))) => self.malformed(stream, fault),
            Err(Some(fault)) => self.reset_for_fault(stream, fault),
            // DATA that the client sent before it received our reset.
            Err(None) if ends => Ok(self.forget_reset_stream(stream)),
            Err(None) => Ok(FrameOutcome::Nothing),
            Ok(()) => {
                // Padding counts against the window, and is consumed at once.
                self.consumed(stream, (length - data) as usize);
                Ok(FrameOutcome::Nothing)
            }
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
        let known = self.streams.get_mut(&stream);
        let Some(known) = known.filter(|known| known.receives) else {
            return Err(if self.is_recently_reset(stream) {
                None
            } else {
                Some(StreamFault::HalfClosed("DATA", stream))
            });
        };
        if length > known.receive_window {
            let window = known.receive_window;
            return Err(Some(StreamFault::Flow(stream, length, window)));
        }
        known.receive_window -= length;
        known.unread += length;
        if let Some(left) = &mut known.length_left {
            match left.checked_sub(u64::from(data)) {
                Some(rest) if rest == 0 || !ends => *left = rest,
                _ => return Err(Some(StreamFault::BodyLength(stream))),
            }
        }
        if ends {
            known.receives = false;
        }
        Ok(())
    }

    /// Processes a part of a DATA frame's payload.
    fn take_body(&mut self, body: Body, rest: &[u8], at: &mut usize) -> Option<Event> {
        let length = rest.len().min(body.length as usize);
        let start = *at;
        let left = Body {
            length: body.length - length as u32,
            ..body
        };
        *at += length;
        let is_told = !body.dropped && (length > 0 || body.ends);
        if left.length > 0 {
            self.awaits = ReadState::Body(left);
            return (is_told && length > 0).then_some(Event::Data {
                stream: body.stream,
                start,
                length,
                ends: false,
            });
        }
        // The end of the stream is reported with the last data; padding is skipped afterwards.
        self.awaits = match left.padding {
            0 => ReadState::Frame,
            padding => ReadState::Nothing(padding),
        };
        is_told.then_some(Event::Data {
            stream: body.stream,
            start,
            length,
            ends: body.ends,
        })
    }

    // Header blocks.

    fn headers(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        heads: &mut Heads<'_>,
    ) -> Result<FrameOutcome, Violation> {
        let (mut block, mut padding) = (payload, 0);
        let too_short = || Violation::Length("HEADERS", head.length);
        if head.has(flags::PADDED) {
            let (first, rest) = block.split_first().ok_or_else(too_short)?;
            (padding, block) = (u32::from(*first), rest);
        }
        if head.has(flags::PRIORITY) {
            let (dependency, rest) = block.split_first_chunk::<5>().ok_or_else(too_short)?;
            if depends_on(dependency) == head.stream {
                return Err(Violation::Dependency("HEADERS", head.stream));
            }
            block = rest;
        }
        let end = block.len().checked_sub(padding as usize);
        let block = end.and_then(|end| block.get(..end));
        let block = block.ok_or(Violation::Padding("HEADERS", head.length, padding))?;
        if head.stream == 0 || head.stream.is_multiple_of(2) {
            return Err(Violation::HeadersIdentifier(head.stream, self.last_stream));
        }
        if head.stream <= self.last_stream && !self.streams.contains_key(&head.stream) {
            let back = (self.last_stream - head.stream) / 2;
            let has_begun = back >= u64::BITS || self.begun >> back & 1 == 1;
            if !has_begun {
                return Err(Violation::HeadersIdentifier(head.stream, self.last_stream));
            }
            if !self.is_recently_reset(head.stream) {
                return Err(Violation::HeadersAfterEnd(head.stream));
            }
        }
        let ends = head.has(flags::END_STREAM);
        if head.has(flags::END_HEADERS) {
            return self.block(head.stream, ends, block, payload.len(), heads);
        }
        self.block.clear();
        self.block.extend_from_slice(block);
        self.awaits = ReadState::Continuation {
            stream: head.stream,
            ends,
            frames: 0,
        };
        Ok(FrameOutcome::Nothing)
    }

    fn continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        heads: &mut Heads<'_>,
    ) -> Result<FrameOutcome, Violation> {
        let ReadState::Continuation {
            stream,
            ends,
            frames,
        } = self.awaits
        else {
            return Err(Violation::UnexpectedContinuation);
        };
        if frames >= CONTINUATIONS_MAX {
            return Err(Violation::TooManyContinuations);
        }
        if self.block.len() + payload.len() > self.limits.block_size_max {
            return Err(Violation::BlockTooLong);
        }
        self.block.extend_from_slice(payload);
        if !head.has(flags::END_HEADERS) {
            self.awaits = ReadState::Continuation {
                stream,
                ends,
                frames: frames + 1,
            };
            return Ok(FrameOutcome::Nothing);
        }
        self.awaits = ReadState::Frame;
        let block = std::mem::take(&mut self.block);
        self.block(stream, ends, &block, block.len(), heads)
    }

    /// Decodes a complete header block.
    fn block(
        &mut self,
        stream: u32,
        ends: bool,
        block: &[u8],
        wire_length: usize,
        heads: &mut Heads<'_>,
    ) -> Result<FrameOutcome, Violation> {
        let rules = heads.rules;
        let fields_max = heads
            .named
            .map_or(rules.fields_max, |named| named.fields_max)
            .saturating_add(PSEUDO_FIELDS_MAX);
        let list_size_max = rules
            .head_size_max
            .saturating_add(fields_max.saturating_mul(super::hpack::FIELD_OVERHEAD));
        heads.bytes.clear();
        let begins = stream > self.last_stream;
        if !begins {
            // Trailers, which are only checked; or the head of a request that we have reset.
            let mut malformed = false;
            let outcome = self
                .decoder
                .decode(block, list_size_max, heads.bytes, |field, _| {
                    malformed |= !may_trail(field);
                })
                .map_err(Violation::Compression)?;
            if outcome == DecodedBlock::TooLarge {
                return Err(Violation::BlockTooLong);
            }
            return self.trailers(stream, ends, malformed);
        }
        // The stream counts as begun, even if the request is refused.
        let steps = (stream - self.last_stream) / 2 + u32::from(self.last_stream == 0);
        self.begun = match steps {
            0..u64::BITS => self.begun << steps,
            _ => 0,
        } | 1;
        self.last_stream = stream;
        heads.bytes.reserve(HEAD_USUAL);
        let mut reader = HeadReader::new(heads.head, rules, heads.named);
        let outcome = self
            .decoder
            .decode(block, list_size_max, heads.bytes, |field, bytes| {
                reader.take(field, bytes);
            })
            .map_err(Violation::Compression)?;
        let is_whole = outcome == DecodedBlock::Whole;
        let asked = reader
            .finish(heads.bytes, is_whole)
            .map_err(|_| Violation::BlockTooLong)?;
        heads.head.set_wire_length(wire_length);
        if self.late.take_if(|late| *late == stream).is_some() {
            self.remember_reset(stream);
            return Ok(FrameOutcome::Nothing);
        }
        if self.last_served_stream.is_some_and(|last| stream > last) {
            // The client learns from our GOAWAY that the request was not processed.
            return Ok(FrameOutcome::Nothing);
        }
        if self.is_full() {
            return self.refuse(stream, StreamFault::TooManyStreams(stream));
        }
        // Until the client has acknowledged our SETTINGS, it may send more than our window.
        if !ends && !self.is_acknowledged && self.limits.stream_window < INITIAL_WINDOW_SIZE_DEFAULT
        {
            return self.refuse(stream, StreamFault::TooEarly(stream));
        }
        Ok(FrameOutcome::Event(Event::Head {
            stream,
            ends,
            asked,
        }))
    }

    fn trailers(
        &mut self,
        stream: u32,
        ends: bool,
        malformed: bool,
    ) -> Result<FrameOutcome, Violation> {
        let Some(known) = self.streams.get_mut(&stream) else {
            // The stream was reset by us, or released since its header block began. Malformed
            // trailers are an error nevertheless.
            return if ends && !malformed {
                Ok(self.forget_reset_stream(stream))
            } else {
                self.reset_for_fault(stream, StreamFault::Trailers(stream))
            };
        };
        if !known.receives {
            return if self.is_recently_reset(stream) {
                Ok(self.forget_reset_stream(stream))
            } else {
                self.reset_for_fault(stream, StreamFault::HalfClosed("HEADERS", stream))
            };
        }
        if !ends || malformed {
            return self.reset_for_fault(stream, StreamFault::Trailers(stream));
        }
        if known.length_left.is_some_and(|left| left > 0) {
            return self.malformed(stream, StreamFault::BodyLength(stream));
        }
        known.receives = false;
        Ok(FrameOutcome::Event(Event::Data {
            stream,
            start: 0,
            length: 0,
            ends: true,
        }))
    }

    // Ending streams.

    /// Refuses a request with RST_STREAM before any processing, so that the client may retry it.
    fn refuse(&mut self, stream: u32, fault: StreamFault) -> Result<FrameOutcome, Violation> {
        self.meters.refused += 1;
        if self.meters.refused > meter::REFUSED_MAX.max(self.limits.streams_max) {
            return Err(Violation::TooMany("refused streams"));
        }
        frame::put_reset(&mut self.control, stream, fault.code());
        self.remember_reset(stream);
        Ok(FrameOutcome::Event(Event::Refused(fault)))
    }

    /// Counts a stream that ends by a reset. Returns true if there have been too many in this
    /// second.
    pub(super) fn resets_too_often(&mut self) -> bool {
        let most = meter::RESETS_MAX.max(self.limits.streams_max.saturating_mul(2));
        self.meters.resets.exceeds(self.second, most)
    }

    /// Handles a malformed request: ignores the rest of the request, and lets the caller answer if
    /// the response has not been sent. Counts as a reset, which will follow.
    fn malformed(&mut self, stream: u32, fault: StreamFault) -> Result<FrameOutcome, Violation> {
        if self.resets_too_often() {
            return Err(Violation::TooMany("malformed requests"));
        }
        self.ignore_rest(stream);
        Ok(FrameOutcome::Event(Event::Malformed { stream, fault }))
    }

    /// Resets a stream because of the client's error on it. Counts like a reset by the client.
    pub(super) fn reset_for_fault(
        &mut self,
        stream: u32,
        fault: StreamFault,
    ) -> Result<FrameOutcome, Violation> {
        if self.resets_too_often() {
            return Err(Violation::TooMany("frames for which streams are reset"));
        }
        frame::put_reset(&mut self.control, stream, fault.code());
        self.remember_reset(stream);
        let was_open = self.close(stream);
        Ok(if was_open {
            FrameOutcome::Event(Event::Reset {
                stream,
                code: fault.code(),
                fault: Some(fault),
            })
        } else {
            FrameOutcome::Nothing
        })
    }

    /// Closes both halves of a stream. Returns true if one was open.
    pub(super) fn close(&mut self, stream: u32) -> bool {
        self.drop_body(stream);
        let Some(known) = self.streams.get_mut(&stream) else {
            return false;
        };
        let was_open = !known.is_closed();
        known.receives = false;
        known.sends = false;
        known.has_more = false;
        if std::mem::take(&mut known.scheduled)
            && let Some(schedule) = &mut self.schedule
        {
            schedule.remove(stream, known.priority);
        }
        was_open
    }

    /// Discards the rest of a DATA frame of this stream.
    pub(super) fn drop_body(&mut self, stream: u32) {
        if let ReadState::Body(body) = &mut self.awaits {
            body.dropped |= body.stream == stream;
        }
    }

    /// Remembers a stream that we have reset.
    pub(super) fn remember_reset(&mut self, stream: u32) {
        let most = (self.limits.streams_max as usize)
            .clamp(*RECENTLY_RESET_MAX.start(), *RECENTLY_RESET_MAX.end());
        if self.recently_reset.len() >= most {
            self.recently_reset.remove(0);
        }
        self.recently_reset.push(stream);
    }

    /// The client has ended a stream that we have reset: no further frames are expected on it.
    fn forget_reset_stream(&mut self, stream: u32) -> FrameOutcome {
        self.recently_reset
            .retain(|recently_reset| *recently_reset != stream);
        FrameOutcome::Nothing
    }

    /// Whether frames on a closed stream are ignored, because the client may have sent them before
    /// it received our RST_STREAM or GOAWAY.
    fn is_recently_reset(&self, stream: u32) -> bool {
        self.last_served_stream.is_some_and(|last| stream > last)
            || self.recently_reset.contains(&stream)
    }
}

/// The outcome of processing a frame.
pub(super) enum FrameOutcome {
    Event(Event),
    Nothing,
    NotWhole,
}

/// Length of a DATA frame's padding; `None` until the byte with the length has been received.
fn padding_of(head: FrameHead, payload: &[u8]) -> Option<u32> {
    if head.has(flags::PADDED) && head.length > 0 {
        payload.first().map(|length| u32::from(*length))
    } else {
        Some(0)
    }
}
