//! The server side of an HTTP/2 connection: sending responses, the order of streams, and flow
//! control.
//!
//! The calls for a stream, in order: [`open`](Connection::open) after its head was received;
//! [`put_head`](Connection::put_head); [`wants_to_send`](Connection::wants_to_send) whenever a part
//! of the body is ready; [`turn`](Connection::turn), which names the stream to send next and how
//! much; [`sent`](Connection::sent) for each part; [`release`](Connection::release) once all work
//! for the stream has ended. For a response that is complete at once,
//! [`answer`](Connection::answer) replaces all of these.

use super::connection::{Connection, TableUpdate};
use super::error::ErrorCode;
use super::frame::{self, HEAD_LENGTH, Kind, STREAM_MAX, flags};
use super::priority::Priority;
use super::settings::{Settings, WINDOW_MAX};
use super::stream::Stream;

/// Maximum bytes of a body that a stream sends per turn.
pub const QUANTUM: u32 = 64 * 1024;

/// The beginning of a header block that sets the size of the dynamic table to 0 (RFC 7541, section
/// 6.3).
const TABLE_IS_EMPTY: u8 = 0x20;

impl<S> Connection<S> {
    /// The control frames, which are to be sent before anything else.
    #[must_use]
    pub fn take_control(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.control)
    }

    /// Appends the control frames, which must be sent before anything else, to `out`.
    pub fn move_control(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.control);
    }

    /// Length of the queued control frames, in bytes.
    #[must_use]
    pub fn control_length(&self) -> usize {
        self.control.len()
    }

    /// The client's settings.
    #[must_use]
    pub fn peer(&self) -> &Settings {
        &self.peer
    }

    /// The stream of the last request.
    #[must_use]
    pub fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// Number of streams that are not released.
    #[must_use]
    pub fn live(&self) -> usize {
        self.streams.len()
    }

    /// Limit of concurrent streams.
    #[must_use]
    pub fn streams_max(&self) -> usize {
        self.limits.streams_max as usize
    }

    /// Whether the limit of concurrent streams is reached, so that another stream would be refused.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.streams.len() >= self.limits.streams_max as usize
    }

    /// The state of a stream that is not released.
    #[must_use]
    pub fn stream(&self, stream: u32) -> Option<&Stream<S>> {
        self.streams.get(&stream)
    }

    /// The callers' data of all streams that are not released.
    pub fn users(&self) -> impl Iterator<Item = &S> {
        self.streams.values().map(|stream| &stream.user)
    }

    /// Adds a stream whose head was received. `ends` says that it has no body; `length` is the
    /// body's Content-Length, if given.
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

    /// Gives credit for bytes of a stream's body that the caller has read.
    pub fn consumed(&mut self, stream: u32, bytes: usize) {
        let Some(known) = self.streams.get_mut(&stream) else {
            return;
        };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(known.unread);
        known.unread -= bytes;
        // The credit that restores the window's target size.
        let credit = known.window.saturating_sub(known.receive_window);
        let credit = credit.saturating_sub(known.unread);
        if known.receives && credit > 0 && credit >= known.window / 2 {
            known.receive_window += credit;
            frame::put_window_update(&mut self.control, stream, credit);
        }
    }

    /// Enlarges a stream's receive window to `window` bytes, because the body is being read.
    pub fn widen(&mut self, stream: u32, window: u32) {
        if let Some(known) = self.streams.get_mut(&stream) {
            known.window = known.window.max(window.min(WINDOW_MAX));
            self.consumed(stream, 0);
        }
    }

    /// Changes the priority of a stream.
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

    /// Whether a response with `length` bytes of body may be sent at once: the windows allow it,
    /// and no stream waits for its turn.
    #[must_use]
    pub fn can_send_at_once(&self, length: usize) -> bool {
        let window = self.send_window.min(i64::from(self.peer.initial_window));
        let none_waits = self
            .schedule
            .as_ref()
            .is_none_or(|schedule| schedule.is_empty());
        length == 0 || none_waits && length as i64 <= window
    }

    /// Sends the complete response to a request whose stream has not been opened, with DATA frames
    /// of at most `chunk_size` bytes. If [`can_send_at_once`](Self::can_send_at_once) does not
    /// allow it, returns false and sends nothing.
    pub fn answer(
        &mut self,
        stream: u32,
        block: &[u8],
        body: &[u8],
        chunk_size: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        if !self.can_send_at_once(body.len()) {
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

    /// Appends the queued control frames, then a header block: of a response, an informational
    /// response, or trailers.
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
        if self.table_update != TableUpdate::Due {
            return frame::put_header_block(out, stream, block, ends, size_max);
        }
        self.table_update = TableUpdate::Said;
        let block = [&[TABLE_IS_EMPTY], block].concat();
        frame::put_header_block(out, stream, &block, ends, size_max);
    }

    /// Notes that the caller has a part of a stream's body, or its end, to send.
    pub fn wants_to_send(&mut self, stream: u32) {
        if let Some(known) = self.streams.get_mut(&stream).filter(|known| known.sends) {
            known.has_more = true;
            self.schedule(stream);
        }
    }

    /// Adds a stream to the schedule if it has something to send and its window allows it.
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

    /// Bytes of a stream's body that the windows allow now, in addition to `waiting` bytes already
    /// queued.
    #[must_use]
    pub fn allowance(&self, stream: u32, waiting: u64) -> u64 {
        let Some(known) = self.streams.get(&stream).filter(|known| known.sends) else {
            return 0;
        };
        let window = u64::try_from(known.send_window.min(self.send_window)).unwrap_or_default();
        window.saturating_sub(waiting)
    }

    /// Whether a stream is in the schedule, so that only other streams' turns delay it.
    #[must_use]
    pub fn awaits_turn(&self, stream: u32) -> bool {
        self.streams
            .get(&stream)
            .is_some_and(|known| known.scheduled)
    }

    /// The next stream to send, and the maximum length of its DATA frame, in bytes. `None` if no
    /// stream may send or has something to send.
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
            // Since the stream was scheduled, trailers may have ended it, or SETTINGS may have
            // reduced its window.
            if !known.has_more || known.send_window <= 0 {
                continue;
            }
            let allowed = known.send_window.min(self.send_window);
            let size_max = i64::from(self.peer.frame_size_max.min(QUANTUM));
            let most = usize::try_from(allowed.min(size_max)).unwrap_or_default();
            return Some((stream, most));
        }
    }

    /// Accounts for a DATA frame of the stream that has its turn, and returns the frame's head.
    /// `ends`: the stream ends; `has_more`: the caller has more to send.
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

    /// Resets a stream, unless both halves are closed.
    pub fn reset(&mut self, stream: u32, code: ErrorCode) {
        if self.close(stream) {
            frame::put_reset(&mut self.control, stream, code);
            self.remember_reset(stream);
        }
    }

    /// Ignores the rest of a stream's request.
    pub fn ignore_rest(&mut self, stream: u32) {
        self.drop_body(stream);
        if let Some(known) = self.streams.get_mut(&stream)
            && std::mem::take(&mut known.receives)
        {
            self.remember_reset(stream);
        }
    }

    /// Whether frames on a stream are ignored, because we have reset it or ignore the rest of its
    /// request, and the client has not ended it.
    #[must_use]
    pub fn is_rest_ignored(&self, stream: u32) -> bool {
        self.recently_reset.contains(&stream)
    }

    /// Resets a stream after its complete response, because its request was malformed (RFC 9113,
    /// section 8.1.1).
    pub fn reset_answered(&mut self, stream: u32, code: ErrorCode) {
        self.close(stream);
        frame::put_reset(&mut self.control, stream, code);
        self.remember_reset(stream);
    }

    /// Releases a stream, so that another may be opened. If it is not closed, resets it: with
    /// NO_ERROR after a complete response, because only the rest of the request is unwanted (RFC
    /// 9113, section 8.1), else with CANCEL.
    ///
    /// Some clients lose the response if they read its end and the reset at once: the caller waits
    /// for some time between the two.
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

    /// Announces a graceful shutdown: a GOAWAY with the highest possible stream identifier, and a
    /// PING, whose acknowledgement shows that the client has received the announcement. The final
    /// GOAWAY follows with [`send_goaway`](Self::send_goaway).
    pub fn announce_end(&mut self) {
        if self.is_going_away() {
            return; // a later GOAWAY may not raise the last stream
        }
        frame::put_goaway(&mut self.control, STREAM_MAX, ErrorCode::NoError);
        frame::put_ping(&mut self.control, false, *b"tidegate");
    }

    /// Sends GOAWAY: streams that begin from now on are not processed.
    pub fn send_goaway(&mut self) {
        if self.last_served_stream.is_none() {
            self.last_served_stream = Some(self.last_stream);
            frame::put_goaway(&mut self.control, self.last_stream, ErrorCode::NoError);
        }
    }

    /// Whether the final GOAWAY has been sent.
    #[must_use]
    pub fn is_going_away(&self) -> bool {
        self.last_served_stream.is_some()
    }

    /// Sends GOAWAY with the reason why the connection is closed now.
    pub fn fail(&mut self, code: ErrorCode) {
        let last = *self.last_served_stream.get_or_insert(self.last_stream);
        frame::put_goaway(&mut self.control, last, code);
    }
}
