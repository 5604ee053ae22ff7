//! A connection of HTTP/2: what goes out, by whose turn, and within which windows.
//!
//! The calls of one stream, in their order: [`open`](Connection::open) when its head has come,
//! [`put_head`](Connection::put_head), then [`wants_to_send`](Connection::wants_to_send) whenever
//! there is more of its body, which has [`turn`](Connection::turn) say when and how much;
//! [`sent`](Connection::sent) for each part; [`release`](Connection::release) once all work for it
//! has ended. Or else [`answer`](Connection::answer), for what is there as a whole, instead of all
//! of these.

use super::connection::{Connection, TableUpdate};
use super::error::ErrorCode;
use super::frame::{self, HEAD_LENGTH, Kind, STREAM_MAX, flags};
use super::priority::Priority;
use super::settings::{Settings, WINDOW_MAX};
use super::stream::Stream;

/// Bytes of a body that one stream sends before others have their turn.
pub const QUANTUM: u32 = 64 * 1024;

/// What a header block begins with whose table has no room (RFC 7541, section 6.3).
const TABLE_IS_EMPTY: u8 = 0x20;

impl<S> Connection<S> {
    /// The control frames, which are to be sent before anything else.
    #[must_use]
    pub fn take_control(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.control)
    }

    /// Moves the control frames, which go before anything else, to the end of `out`.
    pub fn move_control(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.control);
    }

    /// How many bytes the control frames have.
    #[must_use]
    pub fn control_length(&self) -> usize {
        self.control.len()
    }

    /// What the other end has set.
    #[must_use]
    pub fn peer(&self) -> &Settings {
        &self.peer
    }

    /// The stream of the request that came last.
    #[must_use]
    pub fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// How many streams are not released.
    #[must_use]
    pub fn live(&self) -> usize {
        self.streams.len()
    }

    /// How many there may be.
    #[must_use]
    pub fn streams_max(&self) -> usize {
        self.limits.streams_max as usize
    }

    /// Whether there are as many as there may be: another would be refused.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.streams.len() >= self.limits.streams_max as usize
    }

    /// A stream that is not released.
    #[must_use]
    pub fn stream(&self, stream: u32) -> Option<&Stream<S>> {
        self.streams.get(&stream)
    }

    /// The streams that have something to send.
    pub fn users(&self) -> impl Iterator<Item = &S> {
        self.streams.values().map(|stream| &stream.user)
    }

    /// Keeps a stream whose head has just come: `ends` where it has no body, else how long that is,
    /// where it is said.
    pub fn open(
        &mut self,
        stream: u32,
        ends: bool,
        length: Option<u64>,
        priority: Priority,
        user: S,
    ) {
        let priority = self.take_early_priority(stream).unwrap_or(priority);
        let window = self.limits.stream_window;
        self.streams.insert(
            stream,
            Stream {
                user,
                receives: !ends,
                sends: true,
                send_window: i64::from(self.peer.initial_window),
                receive_window: window,
                window,
                unread: 0,
                length_left: length,
                priority,
                scheduled: false,
                has_more: false,
            },
        );
    }

    /// Gives credit for bytes of a stream's body that have been read.
    pub fn consumed(&mut self, stream: u32, bytes: usize) {
        let Some(known) = self.streams.get_mut(&stream) else {
            return;
        };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(known.unread);
        known.unread -= bytes;
        // What the other end could be sent again.
        let credit = known.window.saturating_sub(known.receive_window);
        let credit = credit.saturating_sub(known.unread);
        if known.receives && credit > 0 && credit >= known.window / 2 {
            known.receive_window += credit;
            frame::put_window_update(&mut self.control, stream, credit);
        }
    }

    /// Lets more of a stream's body come before it is read: somebody reads it.
    pub fn widen(&mut self, stream: u32, window: u32) {
        if let Some(known) = self.streams.get_mut(&stream) {
            known.window = known.window.max(window.min(WINDOW_MAX));
            self.consumed(stream, 0);
        }
    }

    /// Changes how urgent a stream is.
    pub fn set_priority(&mut self, stream: u32, priority: Priority) {
        let Some(known) = self.streams.get_mut(&stream) else {
            return;
        };
        let before = std::mem::replace(&mut known.priority, priority);
        if known.scheduled
            && before != priority
            && let Some(schedule) = &mut self.schedule
        {
            schedule.remove(stream, before);
            schedule.add(stream, priority);
        }
    }

    /// Whether a response with so many bytes of body may leave at once: the windows let it go, and
    /// nobody waits who would be passed.
    #[must_use]
    pub fn lets_go(&self, length: usize) -> bool {
        let window = self.send_window.min(i64::from(self.peer.initial_window));
        let none_waits = self
            .schedule
            .as_ref()
            .is_none_or(|schedule| schedule.is_empty());
        length == 0 || none_waits && length as i64 <= window
    }

    /// Answers a request at once whose stream has not been opened, head and body, in frames of at
    /// most `chunk_size` bytes, if it may ([`lets_go`](Self::lets_go)); else nothing happens.
    pub fn answer(
        &mut self,
        stream: u32,
        block: &[u8],
        body: &[u8],
        chunk_size: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        if !self.lets_go(body.len()) {
            return false;
        }
        self.move_control(out);
        let size_max = self.peer.frame_size_max as usize;
        self.put_block(stream, block, body.is_empty(), out);
        let size_max = size_max.min(chunk_size.max(1));
        let mut rest = body;
        while !rest.is_empty() {
            let (part, behind) = rest.split_at_checked(size_max).unwrap_or((rest, &[]));
            let ends = if behind.is_empty() {
                flags::END_STREAM
            } else {
                0
            };
            frame::put_head(out, Kind::Data, ends, stream, part.len());
            out.extend_from_slice(part);
            self.meters.pings.permit();
            rest = behind;
        }
        self.send_window -= body.len() as i64;
        true
    }

    /// Appends a head: that of a response, an informational one, or trailers. What is to be sent
    /// before goes before it.
    pub fn put_head(&mut self, stream: u32, block: &[u8], ends: bool, out: &mut Vec<u8>) {
        let Some(known) = self.streams.get_mut(&stream).filter(|known| known.sends) else {
            return;
        };
        if ends {
            known.sends = false;
            known.has_more = false;
        }
        self.move_control(out);
        self.put_block(stream, block, ends, out);
    }

    fn put_block(&mut self, stream: u32, block: &[u8], ends: bool, out: &mut Vec<u8>) {
        let size_max = self.peer.frame_size_max as usize;
        if self.table_update != TableUpdate::Owed {
            return frame::put_header_block(out, stream, block, ends, size_max);
        }
        self.table_update = TableUpdate::Said;
        let block = [&[TABLE_IS_EMPTY], block].concat();
        frame::put_header_block(out, stream, &block, ends, size_max);
    }

    /// Notes that a stream has something of its body to send, or its end.
    pub fn wants_to_send(&mut self, stream: u32) {
        if let Some(known) = self.streams.get_mut(&stream).filter(|known| known.sends) {
            known.has_more = true;
            self.schedule(stream);
        }
    }

    /// Lets a stream wait for its turn that has something to send and may.
    pub(super) fn schedule(&mut self, stream: u32) {
        let Some(known) = self.streams.get_mut(&stream) else {
            return;
        };
        if known.has_more && !known.scheduled && known.send_window > 0 {
            known.scheduled = true;
            let schedule = self.schedule.get_or_insert_default();
            schedule.add(stream, known.priority);
        }
    }

    /// How many bytes of a stream's body all windows let go now beside so many that wait already.
    #[must_use]
    pub fn allowance(&self, stream: u32, waiting: u64) -> u64 {
        let Some(known) = self.streams.get(&stream).filter(|known| known.sends) else {
            return 0;
        };
        let window = u64::try_from(known.send_window.min(self.send_window)).unwrap_or_default();
        window.saturating_sub(waiting)
    }

    /// Whether a stream waits for nothing but its turn.
    #[must_use]
    pub fn awaits_turn(&self, stream: u32) -> bool {
        self.streams
            .get(&stream)
            .is_some_and(|known| known.scheduled)
    }

    /// Whose turn it is to send, and at most how many bytes in one frame. `None`: nobody may, or
    /// has something to.
    pub fn turn(&mut self) -> Option<(u32, usize)> {
        if self.send_window <= 0 {
            return None;
        }
        let schedule = self.schedule.as_mut()?;
        loop {
            let stream = schedule.take()?;
            let Some(known) = self.streams.get_mut(&stream) else {
                continue;
            };
            known.scheduled = false;
            // Trailers may have ended it, or settings closed its window since it began to wait.
            if !known.has_more || known.send_window <= 0 {
                continue;
            }
            let allowed = known.send_window.min(self.send_window);
            let size_max = i64::from(self.peer.frame_size_max.min(QUANTUM));
            let most = usize::try_from(allowed.min(size_max)).unwrap_or_default();
            return Some((stream, most));
        }
    }

    /// The head of a DATA frame with so many bytes of a stream whose turn it is. `ends`: nothing
    /// follows; `has_more`: more waits already.
    #[must_use]
    pub fn sent(
        &mut self,
        stream: u32,
        bytes: usize,
        ends: bool,
        has_more: bool,
    ) -> [u8; HEAD_LENGTH] {
        let head = frame::FrameHead::data(stream, bytes, ends);
        self.meters.pings.permit();
        self.send_window -= bytes as i64;
        if let Some(known) = self.streams.get_mut(&stream) {
            known.send_window -= bytes as i64;
            known.has_more = has_more && !ends;
            if ends {
                known.sends = false;
            }
        }
        self.schedule(stream);
        head.bytes()
    }

    /// Resets a stream, unless both halves of it have ended.
    pub fn reset(&mut self, stream: u32, code: ErrorCode) {
        if self.close(stream) {
            frame::put_reset(&mut self.control, stream, code);
            self.forgive(stream);
        }
    }

    /// What is still to come of a stream's request has no meaning, and is no fault.
    pub fn ignore_rest(&mut self, stream: u32) {
        self.drop_body(stream);
        if let Some(known) = self.streams.get_mut(&stream)
            && std::mem::take(&mut known.receives)
        {
            self.forgive(stream);
        }
    }

    /// Whether the rest of a stream's request is ignored, and its end has not come.
    #[must_use]
    pub fn is_rest_ignored(&self, stream: u32) -> bool {
        self.forgiven.contains(&stream)
    }

    /// Resets a stream behind its complete response, because its request was malformed (RFC 9113,
    /// section 8.1.1).
    pub fn reset_answered(&mut self, stream: u32, code: ErrorCode) {
        self.close(stream);
        frame::put_reset(&mut self.control, stream, code);
        self.forgive(stream);
    }

    /// Lets go of a stream: its place is free for another. What was not ended ends: behind a
    /// complete response without error, for only the rest of the request is not wanted (RFC 9113,
    /// section 8.1).
    ///
    /// Clients that find the end of a response and the reset of its stream in one read lose the
    /// response: the user lets some time pass between the two.
    pub fn release(&mut self, stream: u32) {
        let is_answered = self.streams.get(&stream).is_some_and(|known| !known.sends);
        let code = if is_answered {
            ErrorCode::NoError
        } else {
            ErrorCode::Cancel
        };
        self.reset(stream, code);
        self.streams.remove(&stream);
        if self.streams.is_empty() {
            self.schedule = None;
            self.streams.shrink_to(8);
        }
    }

    /// Says that the connection will end: streams that begin from now on may not be served, which
    /// ones is said later.
    pub fn announce_end(&mut self) {
        if self.goes_away() {
            return; // a later GOAWAY may not name a later stream
        }
        frame::put_goaway(&mut self.control, STREAM_MAX, ErrorCode::NoError);
        frame::put_ping(&mut self.control, false, *b"tidegate");
    }

    /// Serves no stream that begins from now on.
    pub fn go_away(&mut self) {
        if self.goes_away_after.is_none() {
            self.goes_away_after = Some(self.last_stream);
            frame::put_goaway(&mut self.control, self.last_stream, ErrorCode::NoError);
        }
    }

    /// Whether it has said so.
    #[must_use]
    pub fn goes_away(&self) -> bool {
        self.goes_away_after.is_some()
    }

    /// Says why the connection ends now.
    pub fn fail(&mut self, code: ErrorCode) {
        let last = *self.goes_away_after.get_or_insert(self.last_stream);
        frame::put_goaway(&mut self.control, last, code);
    }
}
