//! A connection of HTTP/2: what comes in.
//!
//! Bytes are given to [`Connection::handle`], again and again until it has used them up; each call
//! does what frames ask for and returns at the first [`Event`] that its user must know of. Answers
//! to frames gather in what [`Connection::take_control`] gives: it is to be sent before anything
//! else. How responses leave is in [`sending`](super::sending).
//!
//! A connection holds the beginning of a frame that has not come whole (16 KiB at most, or as much
//! as a head may have), a header block that came in several frames (as long as a head may be), the
//! decoder's table, and a record for each stream that its user has not released. Parts of bodies
//! are not kept: their user gets them as they come, never more than the window that it has given
//! credit for.

use base::hash::Map;

use super::error::{ErrorCode, StreamFault, Violation};
use super::frame::{self, FrameHead, HEAD_LENGTH, Kind, PREFACE, flags};
use super::hpack::{DecodedBlock, Decoder};
use super::meter::{self, Meter, Pings};
use super::priority::{Priority, Schedule};
use super::request::{HeadFault, HeadReader, NamedRules, RequestMetadata, Rules, may_trail};
use super::settings::{self, Settings, WINDOW_AT_FIRST, WINDOW_MAX};
use super::signals::depends_on;
use super::stream::Stream;
use crate::head::Head;

/// CONTINUATION frames of one header block.
const CONTINUATIONS_MAX: u32 = 64;

/// Bytes of a frame of DATA, or of one that is passed over, that clients may send: those are not
/// kept. Clients of gRPC make use of it.
pub const FRAME_SIZE_MAX: u32 = 1 << 20;

/// Streams of which we remember that we have reset them: what the other end had sent until it heard
/// of it is no fault. As many as may be under way at once, within these bounds.
const FORGIVEN: std::ops::RangeInclusive<usize> = 64..=1024;

/// Pseudo-fields that a request can have, and some that it cannot, which are then told as what they
/// are.
const PSEUDO_FIELDS_MAX: usize = 8;

/// Bytes that a head has room for at once.
const HEAD_USUAL: usize = 256;

/// Bytes of HEADERS that are no part of a header block: padding with its length, and a priority.
const BESIDE_BLOCK_MAX: usize = 1 + 255 + 5;

/// What a connection allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Streams at once (`http2_max_concurrent_streams`).
    pub streams_max: u32,
    /// Bytes of one stream's body that may come before any of it is read
    /// (`http2_body_preread_size`); see [`Connection::widen`].
    pub stream_window: u32,
    /// Bytes of a header block as it comes.
    pub block_size_max: usize,
    /// Whether CONNECT may name a protocol.
    pub extended_connect: bool,
}

/// What the other end has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request's head, which is in the place that was given for it. Its user opens the stream, or
    /// answers it at once, before anything else is handled.
    Head {
        /// The number of the stream.
        stream: u32,
        /// The body has no bytes.
        ends: bool,
        /// What it says, or why it is malformed.
        asked: Result<RequestMetadata, HeadFault>,
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
    /// A stream has ended before its end.
    Reset {
        /// The number of the stream.
        stream: u32,
        /// The error code of the reset.
        code: ErrorCode,
        /// What the other end did wrong, where it is we who have reset it.
        fault: Option<StreamFault>,
    },
    /// A request's body is not what its head has announced. Its user answers, and resets the stream
    /// ([`Connection::reset_answered`]).
    Malformed {
        /// The number of the stream.
        stream: u32,
        /// The fault of the request's head.
        fault: StreamFault,
    },
    /// A request was refused; nothing of it is known.
    Refused(StreamFault),
    /// The other end begins nothing more.
    GoAway(ErrorCode),
    /// The other end lives.
    Pong,
}

/// Where heads are put, and what they may be.
pub struct Heads<'a> {
    /// The head of the last event.
    pub head: &'a mut Head,
    /// The bytes of the heads.
    pub bytes: &'a mut Vec<u8>,
    /// What it may be, until it names a server.
    pub rules: &'a Rules,
    /// What it may be from the name of a server on.
    pub named: Option<NamedRules<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaits {
    /// Within the preface, of which this many bytes have been received.
    Preface(usize),
    Frame,
    /// Within a header block.
    Continuation {
        stream: u32,
        ends: bool,
        frames: u32,
    },
    /// Within a payload that is ignored: this many bytes are to be skipped.
    Nothing(u32),
    /// Within the payload of a DATA frame.
    Body(Body),
}

/// What is left of a DATA frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Body {
    stream: u32,
    length: u32,
    padding: u32,
    ends: bool,
    /// Its stream wants none of it.
    dropped: bool,
}

/// What the other end does, by the second.
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

/// Whether the header blocks that we send have to say that their table is empty (RFC 7541, section
/// 4.2). It always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TableUpdate {
    /// The other end has a table of the size at first, or a larger one.
    #[default]
    Unneeded,
    /// The next block has to.
    Owed,
    Said,
}

/// A connection whose other end is a client; see the module.
#[derive(Debug)]
pub struct Connection<S> {
    pub(super) limits: Limits,
    pub(super) awaits: Awaits,
    partial: Vec<u8>,
    block: Vec<u8>,
    decoder: Decoder,
    pub(super) streams: Map<u32, Stream<S>>,
    pub(super) schedule: Option<Box<Schedule>>,
    pub(super) peer: Settings,
    pub(super) send_window: i64,
    receive_window: u32,
    /// The highest stream that the other end has begun.
    pub(super) last_stream: u32,
    /// Which of the 64 streams up to that have begun: the lowest bit is the last.
    begun: u64,
    /// Streams that we have reset while the other end could still send.
    pub(super) forgiven: Vec<u32>,
    pub(super) early_priorities: Vec<(u32, Priority)>,
    /// A stream whose head has not come in time.
    late: Option<u32>,
    /// Streams above this are not served any more.
    pub(super) goes_away_after: Option<u32>,
    /// Frames that answer frames, and other frames that go before all else.
    pub(super) control: Vec<u8>,
    /// The other end has taken our settings over.
    pub(super) is_acknowledged: bool,
    pub(super) table_update: TableUpdate,
    pub(super) meters: Box<Meters>,
    pub(super) second: u32,
}

impl<S> Connection<S> {
    /// A connection whose client has sent nothing yet. Our preface is the first that it has to
    /// send.
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
        // Each stream holds no more than its own window, so that one which is not read holds up no
        // other.
        let receive_window = WINDOW_MAX;
        frame::put_window_update(&mut control, 0, receive_window - WINDOW_AT_FIRST);
        Connection {
            limits,
            awaits: Awaits::Preface(0),
            partial: Vec::new(),
            block: Vec::new(),
            decoder: Decoder::new(),
            streams: Map::default(),
            schedule: None,
            peer: Settings::default(),
            send_window: i64::from(WINDOW_AT_FIRST),
            receive_window,
            last_stream: 0,
            begun: 0,
            forgiven: Vec::new(),
            early_priorities: Vec::new(),
            late: None,
            goes_away_after: None,
            control,
            is_acknowledged: false,
            table_update: TableUpdate::default(),
            meters: Box::default(),
            second: 0,
        }
    }

    /// Goes on with the input from `at` on, which moves with what is used. `None`: it is used up.
    /// `second` is the time.
    ///
    /// # Errors
    /// What ends the connection; [`fail`](Self::fail) then says so to the other end.
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
                Awaits::Preface(seen) => {
                    let wanted = PREFACE.get(seen..).unwrap_or_default();
                    let length = rest.len().min(wanted.len());
                    if rest.get(..length) != wanted.get(..length) {
                        return Err(Violation::Preface);
                    }
                    *at += length;
                    if length < wanted.len() {
                        self.awaits = Awaits::Preface(seen + length);
                        return Ok(None);
                    }
                    // SETTINGS should come next; as nginx does, we do not insist.
                    self.awaits = Awaits::Frame;
                }
                Awaits::Nothing(left) => {
                    let length = rest.len().min(left as usize);
                    *at += length;
                    if length < left as usize {
                        self.awaits = Awaits::Nothing(left - length as u32);
                        return Ok(None);
                    }
                    self.awaits = Awaits::Frame;
                }
                Awaits::Body(body) => {
                    if let Some(event) = self.take_body(body, rest, at) {
                        return Ok(Some(event));
                    }
                    if matches!(self.awaits, Awaits::Body(_)) {
                        return Ok(None);
                    }
                }
                Awaits::Frame | Awaits::Continuation { .. } => {
                    match self.take_frame(rest, at, heads)? {
                        Taken::Event(event) => return Ok(Some(event)),
                        Taken::Nothing => {}
                        Taken::NotWhole => return Ok(None),
                    }
                }
            }
        }
    }

    /// Whether the beginning of a frame or of a header block has come, and not its end.
    #[must_use]
    pub fn is_within_frame(&self) -> bool {
        !self.partial.is_empty() || !matches!(self.awaits, Awaits::Frame | Awaits::Body(_))
    }

    /// Whether what has begun to come is a head that has been given up.
    #[must_use]
    pub fn is_within_late(&self) -> bool {
        self.late.is_some() && self.is_within_frame()
    }

    /// The rest of a frame has not come in time. Where that is a request's head its stream is
    /// reset, and what still comes of it only feeds the decoder; whether it is one.
    pub fn give_up_frame(&mut self) -> bool {
        let stream = match (self.awaits, self.partial.first_chunk::<HEAD_LENGTH>()) {
            (Awaits::Continuation { stream, .. }, _) if stream > self.last_stream => stream,
            (Awaits::Frame, Some(head)) => {
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

    /// Bytes of memory that it has taken: for a frame, a header block, what is forgiven, early
    /// priorities, and what answers.
    #[cfg(test)]
    pub(super) fn memory(&self) -> [usize; 5] {
        [
            self.partial.capacity(),
            self.block.capacity(),
            self.forgiven.capacity() * size_of::<u32>(),
            self.early_priorities.capacity() * size_of::<(u32, Priority)>(),
            self.control.capacity(),
        ]
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

    #[cfg(test)]
    pub(super) fn set_receive_window(&mut self, window: u32) {
        self.receive_window = window;
    }

    /// Takes one frame of a type that is handled as a whole.
    fn take_frame(
        &mut self,
        rest: &[u8],
        at: &mut usize,
        heads: &mut Heads<'_>,
    ) -> Result<Taken, Violation> {
        if !self.partial.is_empty() {
            return self.take_partial(rest, at, heads);
        }
        let Some((bytes, payload)) = rest.split_first_chunk::<HEAD_LENGTH>() else {
            self.partial.extend_from_slice(rest);
            *at += rest.len();
            return Ok(Taken::NotWhole);
        };
        let head = FrameHead::read(bytes);
        self.examine(head)?;
        match head.kind {
            Kind::Data if !matches!(self.awaits, Awaits::Continuation { .. }) => {
                // How long its padding is comes first.
                let Some(padding) = padding_of(head, payload) else {
                    self.partial.extend_from_slice(bytes);
                    *at += HEAD_LENGTH;
                    return Ok(Taken::NotWhole);
                };
                *at += HEAD_LENGTH + usize::from(head.has(flags::PADDED));
                self.begin_body(head, padding)
            }
            Kind::Unknown(_) => {
                *at += HEAD_LENGTH;
                self.awaits = Awaits::Nothing(head.length);
                Ok(Taken::Nothing)
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
                        Ok(Taken::NotWhole)
                    }
                }
            }
        }
    }

    /// Takes a frame whose beginning was received earlier.
    fn take_partial(
        &mut self,
        rest: &[u8],
        at: &mut usize,
        heads: &mut Heads<'_>,
    ) -> Result<Taken, Violation> {
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
            return Ok(Taken::NotWhole);
        }
        let Some(bytes) = self.partial.first_chunk::<HEAD_LENGTH>() else {
            return Ok(Taken::NotWhole);
        };
        let head = FrameHead::read(bytes);
        self.examine(head)?;
        let wanted = match head.kind {
            Kind::Data if !matches!(self.awaits, Awaits::Continuation { .. }) => {
                usize::from(head.has(flags::PADDED) && head.length > 0)
            }
            Kind::Unknown(_) => 0,
            _ => head.length as usize,
        };
        if !fill(&mut self.partial, HEAD_LENGTH + wanted) {
            return Ok(Taken::NotWhole);
        }
        let partial = std::mem::take(&mut self.partial);
        let payload = partial.get(HEAD_LENGTH..).unwrap_or_default();
        match head.kind {
            Kind::Data if !matches!(self.awaits, Awaits::Continuation { .. }) => {
                let padding = padding_of(head, payload).unwrap_or_default();
                self.begin_body(head, padding)
            }
            Kind::Unknown(_) => {
                self.awaits = Awaits::Nothing(head.length);
                Ok(Taken::Nothing)
            }
            _ => self.dispatch(head, payload, heads),
        }
    }

    /// What can be said of a frame before its payload has come.
    fn examine(&mut self, head: FrameHead) -> Result<(), Violation> {
        let longest = match head.kind {
            Kind::Data | Kind::Headers | Kind::Continuation | Kind::Unknown(_) => FRAME_SIZE_MAX,
            // Nothing needs more of these.
            _ => frame::SIZE_MAX_AT_FIRST,
        };
        if head.length > longest {
            return Err(Violation::FrameTooLong(head.length));
        }
        // What cannot be a part of a block that is served is not waited for.
        let of_block = match head.kind {
            Kind::Headers => (head.length as usize).saturating_sub(BESIDE_BLOCK_MAX),
            Kind::Continuation => self.block.len() + head.length as usize,
            _ => 0,
        };
        if of_block > self.limits.block_size_max {
            return Err(Violation::BlockTooLong);
        }
        match self.awaits {
            Awaits::Continuation { stream, .. } => match head.kind {
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
    ) -> Result<Taken, Violation> {
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
            Kind::Data | Kind::PushPromise | Kind::Unknown(_) => Ok(Taken::Nothing),
        }
    }

    // Bodies.

    /// A DATA frame begins; its padding's length has been read.
    fn begin_body(&mut self, head: FrameHead, padding: u32) -> Result<Taken, Violation> {
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
        // Of neither kind is the last of a body; padding is not data.
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
        self.awaits = Awaits::Body(Body {
            stream,
            length: data,
            padding,
            ends,
            dropped: fault.is_err(),
        });
        match fault {
            Err(Some(fault @ StreamFault::BodyLength(_))) => self.malformed(stream, fault),
            Err(Some(fault)) => self.end_by_fault(stream, fault),
            // What was left behind by its own reset.
            Err(None) if ends => Ok(self.end_forgiven(stream)),
            Err(None) => Ok(Taken::Nothing),
            Ok(()) => {
                // Padding is read by being passed over.
                self.consumed(stream, (length - data) as usize);
                Ok(Taken::Nothing)
            }
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
        let known = self.streams.get_mut(&stream);
        let Some(known) = known.filter(|known| known.receives) else {
            return Err(if self.is_forgiven(stream) {
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

    /// Goes on with the payload of a DATA frame.
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
            self.awaits = Awaits::Body(left);
            return (is_told && length > 0).then_some(Event::Data {
                stream: body.stream,
                start,
                length,
                ends: false,
            });
        }
        // The end is told with the last bytes; padding comes behind it.
        self.awaits = match left.padding {
            0 => Awaits::Frame,
            padding => Awaits::Nothing(padding),
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
    ) -> Result<Taken, Violation> {
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
            if !self.is_forgiven(head.stream) {
                return Err(Violation::HeadersAfterEnd(head.stream));
            }
        }
        let ends = head.has(flags::END_STREAM);
        if head.has(flags::END_HEADERS) {
            return self.block(head.stream, ends, block, payload.len(), heads);
        }
        self.block.clear();
        self.block.extend_from_slice(block);
        self.awaits = Awaits::Continuation {
            stream: head.stream,
            ends,
            frames: 0,
        };
        Ok(Taken::Nothing)
    }

    fn continuation(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        heads: &mut Heads<'_>,
    ) -> Result<Taken, Violation> {
        let Awaits::Continuation {
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
            self.awaits = Awaits::Continuation {
                stream,
                ends,
                frames: frames + 1,
            };
            return Ok(Taken::Nothing);
        }
        self.awaits = Awaits::Frame;
        let block = std::mem::take(&mut self.block);
        self.block(stream, ends, &block, block.len(), heads)
    }

    /// A header block has come whole.
    fn block(
        &mut self,
        stream: u32,
        ends: bool,
        block: &[u8],
        wire_length: usize,
        heads: &mut Heads<'_>,
    ) -> Result<Taken, Violation> {
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
            // Trailers, which nobody hears of; or a request that we have reset.
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
        // It counts as begun, whatever comes of it.
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
            self.forgive(stream);
            return Ok(Taken::Nothing);
        }
        if self.goes_away_after.is_some_and(|last| stream > last) {
            // Its client hears from the GOAWAY that it was not served.
            return Ok(Taken::Nothing);
        }
        if self.is_full() {
            return self.refuse(stream, StreamFault::TooManyStreams(stream));
        }
        // Of a smaller window than the RFC's its client has not heard.
        if !ends && !self.is_acknowledged && self.limits.stream_window < WINDOW_AT_FIRST {
            return self.refuse(stream, StreamFault::TooEarly(stream));
        }
        Ok(Taken::Event(Event::Head {
            stream,
            ends,
            asked,
        }))
    }

    fn trailers(&mut self, stream: u32, ends: bool, malformed: bool) -> Result<Taken, Violation> {
        let Some(known) = self.streams.get_mut(&stream) else {
            // Forgiven, or released since its block began; but not what no trailers may be.
            return if ends && !malformed {
                Ok(self.end_forgiven(stream))
            } else {
                self.end_by_fault(stream, StreamFault::Trailers(stream))
            };
        };
        if !known.receives {
            return if self.is_forgiven(stream) {
                Ok(self.end_forgiven(stream))
            } else {
                self.end_by_fault(stream, StreamFault::HalfClosed("HEADERS", stream))
            };
        }
        if !ends || malformed {
            return self.end_by_fault(stream, StreamFault::Trailers(stream));
        }
        if known.length_left.is_some_and(|left| left > 0) {
            return self.malformed(stream, StreamFault::BodyLength(stream));
        }
        known.receives = false;
        Ok(Taken::Event(Event::Data {
            stream,
            start: 0,
            length: 0,
            ends: true,
        }))
    }

    // How streams end.

    /// Nothing is done for a request, which may be sent again.
    fn refuse(&mut self, stream: u32, fault: StreamFault) -> Result<Taken, Violation> {
        self.meters.refused += 1;
        if self.meters.refused > meter::REFUSED_MAX.max(self.limits.streams_max) {
            return Err(Violation::TooMany("refused streams"));
        }
        frame::put_reset(&mut self.control, stream, fault.code());
        self.forgive(stream);
        Ok(Taken::Event(Event::Refused(fault)))
    }

    /// Counts a stream that ends by a reset; whether there have been too many in this second.
    pub(super) fn resets_too_often(&mut self) -> bool {
        let most = meter::RESETS_MAX.max(self.limits.streams_max.saturating_mul(2));
        self.meters.resets.exceeds(self.second, most)
    }

    /// A request has turned out to be malformed: nothing more of it is taken, and its user answers
    /// as long as that can be. It counts like the reset that follows.
    fn malformed(&mut self, stream: u32, fault: StreamFault) -> Result<Taken, Violation> {
        if self.resets_too_often() {
            return Err(Violation::TooMany("malformed requests"));
        }
        self.ignore_rest(stream);
        Ok(Taken::Event(Event::Malformed { stream, fault }))
    }

    /// Ends a stream for what the other end did on it; that counts like a reset of its own.
    pub(super) fn end_by_fault(
        &mut self,
        stream: u32,
        fault: StreamFault,
    ) -> Result<Taken, Violation> {
        if self.resets_too_often() {
            return Err(Violation::TooMany("frames for which streams are reset"));
        }
        frame::put_reset(&mut self.control, stream, fault.code());
        self.forgive(stream);
        let was_open = self.close(stream);
        Ok(if was_open {
            Taken::Event(Event::Reset {
                stream,
                code: fault.code(),
                fault: Some(fault),
            })
        } else {
            Taken::Nothing
        })
    }

    /// Closes both halves of a stream; whether one was open.
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

    /// Nobody hears of the rest of a DATA frame that has begun to come for the stream.
    pub(super) fn drop_body(&mut self, stream: u32) {
        if let Awaits::Body(body) = &mut self.awaits {
            body.dropped |= body.stream == stream;
        }
    }

    /// Remembers a stream that we have reset.
    pub(super) fn forgive(&mut self, stream: u32) {
        let most = (self.limits.streams_max as usize).clamp(*FORGIVEN.start(), *FORGIVEN.end());
        if self.forgiven.len() >= most {
            self.forgiven.remove(0);
        }
        self.forgiven.push(stream);
    }

    /// What was forgiven of a stream has come to its end: there is no more of that.
    fn end_forgiven(&mut self, stream: u32) -> Taken {
        self.forgiven.retain(|forgiven| *forgiven != stream);
        Taken::Nothing
    }

    /// Whether what comes for a stream whose end the other end may not have heard of is no fault.
    fn is_forgiven(&self, stream: u32) -> bool {
        self.goes_away_after.is_some_and(|last| stream > last) || self.forgiven.contains(&stream)
    }
}

/// What became of a frame.
pub(super) enum Taken {
    Event(Event),
    Nothing,
    NotWhole,
}

/// How long the padding of a DATA frame is; `None` until that has come.
fn padding_of(head: FrameHead, payload: &[u8]) -> Option<u32> {
    if head.has(flags::PADDED) && head.length > 0 {
        payload.first().map(|length| u32::from(*length))
    } else {
        Some(0)
    }
}
