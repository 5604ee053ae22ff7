//! The client side of an HTTP/2 connection: sending requests, and flow control.
//!
//! The calls for a request, in order: [`open`](Client::open), if [`may_open`](Client::may_open);
//! for a request with a body, [`wants_to_send`](Client::wants_to_send) whenever a part of the body
//! is ready, [`turn`](Client::turn), which names the stream to send next and how much, and
//! [`put_data`](Client::put_data) or [`sent`](Client::sent) for each part;
//! [`release`](Client::release) once the response has been received or is no longer wanted.
//! [`consumed`](Client::consumed) gives credit for what was read of the response's body.
//!
//! **Shares.** All streams send within one window, the connection's. If the server does not read a
//! stream, it gives no credit for that stream's bytes. Therefore the last part of the window,
//! [`reserve`](Client::reserve), is for streams that hold little of it, so that an upload which the
//! server does not read blocks no other. Nevertheless one stream may use most of the window,
//! because many servers give credit only when half of it is used. A single stream may use all of
//! it.

use super::{Client, PERMITTED_MAX, STREAMS_BEFORE_SETTINGS, Stream, WINDOWS_MAX, enqueue};
use crate::h2::error::{ErrorCode, Violation};
use crate::h2::frame::{self, FrameHead, HEAD_LENGTH, STREAM_MAX};
use crate::h2::hpack::Field;
use crate::h2::meter;
use crate::h2::settings::Settings;

/// Maximum bytes of a body that a stream sends per turn.
pub(super) const QUANTUM: u32 = 16 * 1024;

/// Upper limit of the reserve, in bytes: enough for streams that hold little, however large the
/// connection's window is.
const RESERVE_MAX: i64 = 1024 * 1024;

/// WINDOW_UPDATE frames that each DATA frame permits: one for its stream, one for the connection.
const UPDATES_OF_DATA: u32 = 2;

/// Properties of a request that are not in its fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestStart {
    /// Whether the request has no body.
    pub ends: bool,
    /// Whether the method is HEAD: the response has no body, whatever its head says.
    pub is_head: bool,
}

impl<S> Client<S> {
    /// Bytes to send. After sending, the caller must call [`clear_output`](Self::clear_output).
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Discards the output, which was sent.
    pub fn clear_output(&mut self) {
        self.output.clear();
    }

    /// Takes the output, for a caller that stores it until it is sent.
    #[must_use]
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The server's settings.
    #[must_use]
    pub fn peer(&self) -> &Settings {
        &self.peer
    }

    /// The server's limit of concurrent streams, or a default until its SETTINGS arrive.
    #[must_use]
    pub fn streams_max(&self) -> u32 {
        if self.has_begun() {
            self.peer.streams_max
        } else {
            STREAMS_BEFORE_SETTINGS
        }
    }

    /// Whether another stream can be opened now.
    #[must_use]
    pub fn may_open(&self) -> bool {
        !self.is_ending() && (self.streams.len() as u64) < u64::from(self.streams_max())
    }

    /// Whether no more streams can be opened: the server has sent GOAWAY, or the stream identifiers
    /// are exhausted.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.served_until.is_some() || self.next_stream > STREAM_MAX
    }

    /// Whether enough of the connection's window is left for another request.
    #[must_use]
    pub fn has_window(&self) -> bool {
        self.send_window > self.reserve()
    }

    /// Bytes of the connection's window that are reserved for streams which hold little of it.
    fn reserve(&self) -> i64 {
        (self.send_window_max / 8 * 3).min(RESERVE_MAX)
    }

    /// Bytes of the connection's window that a stream may use now, if it already holds `held`
    /// bytes.
    fn share(&self, held: i64) -> i64 {
        let left = self.send_window;
        if self.streams.len() == 1 {
            return left;
        }
        // Some servers give credit for much of a stream's data on the connection only. No stream
        // can hold more than what is missing from the connection's window.
        let held = held.min(self.send_window_max - left);
        // Of the reserve, each stream may hold up to a quarter of what is left.
        let of_reserve = (left + 3) / 4 - held;
        of_reserve.max(left - self.reserve())
    }

    /// Removes a stream from the queue until the connection's window or its share grows.
    fn await_window(&mut self, number: u32) {
        if let Some(stream) = self.streams.get_mut(&number)
            && !std::mem::replace(&mut stream.awaits_window, true)
        {
            self.window_waiters.push(number);
        }
    }

    /// Queues the held-back streams again, because the connection's window or their share may have
    /// grown.
    pub(super) fn requeue_window_waiters(&mut self) {
        for number in self.window_waiters.drain(..) {
            if let Some(stream) = self.streams.get_mut(&number) {
                stream.awaits_window = false;
                enqueue(&mut self.queue, number, stream);
            }
        }
    }

    /// Number of streams that we have reset.
    #[must_use]
    pub fn resets(&self) -> u32 {
        self.resets
    }

    /// Number of streams that are not released.
    #[must_use]
    pub fn live(&self) -> usize {
        self.streams.len()
    }

    /// The caller's data of a stream that is not released.
    pub fn user(&mut self, stream: u32) -> Option<&mut S> {
        self.streams.get_mut(&stream).map(|known| &mut known.user)
    }

    /// The caller's data, and how many bytes of HEADERS, CONTINUATION and DATA frames have been
    /// received on the stream, including frame heads and padding. A DATA frame counts as a whole
    /// once its head has been received.
    pub fn user_and_received(&mut self, stream: u32) -> Option<(&mut S, u64)> {
        let known = self.streams.get_mut(&stream)?;
        Some((&mut known.user, known.received))
    }

    /// Whether the head of a stream's final response has been received.
    #[must_use]
    pub fn has_head(&self, stream: u32) -> bool {
        let known = self.streams.get(&stream);
        known.is_some_and(|known| known.has_head)
    }

    /// Whether a stream is not released.
    #[must_use]
    pub fn is_live(&self, stream: u32) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Removes all streams, because the connection has ended.
    pub fn drain(&mut self) -> impl Iterator<Item = (u32, S)> {
        let streams = self.streams.drain();
        streams.map(|(number, stream)| (number, stream.user))
    }

    /// Opens a stream with a request's head. Pseudo-header fields must come first, and names must
    /// be in lower case. `None` if no stream [can be opened](Self::may_open).
    pub fn open<'a>(
        &mut self,
        fields: impl IntoIterator<Item = Field<'a>>,
        opening: RequestStart,
        user: S,
    ) -> Option<u32> {
        if !self.may_open() {
            return None;
        }
        let changes = self.encoder.changes();
        self.request_block.clear();
        self.encoder.encode(fields, &mut self.request_block);
        self.request_changes = (self.encoder.changes() == changes).then_some(changes);
        self.request_opening = opening;
        Some(self.begin(opening, user))
    }

    /// Opens a stream with the last request's header block, without encoding it again. `None` if no
    /// stream can be opened, or if the block would now be decoded differently.
    pub fn open_again(&mut self, user: S) -> Option<u32> {
        if self.request_changes != Some(self.encoder.changes()) || !self.may_open() {
            return None;
        }
        Some(self.begin(self.request_opening, user))
    }

    /// Opens a stream with the header block in `request_block`.
    fn begin(&mut self, opening: RequestStart, user: S) -> u32 {
        let RequestStart { ends, is_head } = opening;
        let stream = self.next_stream;
        self.next_stream += 2;
        self.meters.resets.permit(1, PERMITTED_MAX);
        let size_max = self.peer.frame_size_max as usize;
        frame::put_header_block(
            &mut self.output,
            stream,
            &self.request_block,
            ends,
            size_max,
        );
        self.streams.insert(
            stream,
            Stream {
                user,
                receives: true,
                sends: !ends,
                is_reset: false,
                has_head: false,
                is_head,
                is_queued: false,
                awaits_window: false,
                has_more: false,
                send_window: i64::from(self.peer.initial_window),
                held: 0,
                receive_window: self.limits.stream_window,
                window: self.limits.stream_window,
                unread: 0,
                read: 0,
                length_left: None,
                received: 0,
            },
        );
        stream
    }

    /// Notes that the caller has a part of a stream's body, or its end, to send.
    pub fn wants_to_send(&mut self, stream: u32) {
        if let Some(known) = self.streams.get_mut(&stream).filter(|known| known.sends) {
            known.has_more = true;
            enqueue(&mut self.queue, stream, known);
        }
    }

    /// The next stream to send, and the maximum length of its DATA frame, in bytes. `None` if no
    /// stream may send or has something to send.
    pub fn turn(&mut self) -> Option<(u32, usize)> {
        while self.send_window > 0 {
            let stream = self.queue.pop_front()?;
            let Some(known) = self.streams.get_mut(&stream) else {
                continue;
            };
            known.is_queued = false;
            if !known.has_more || known.send_window <= 0 {
                continue;
            }
            let (window, held) = (known.send_window, known.held);
            let allowed = window.min(self.share(held));
            if allowed <= 0 {
                self.await_window(stream);
                continue;
            }
            let size_max = i64::from(self.peer.frame_size_max.min(QUANTUM));
            let allowed = usize::try_from(allowed.min(size_max)).unwrap_or_default();
            return Some((stream, allowed));
        }
        None
    }

    /// Appends a DATA frame of the stream that has its turn to the output; it may be empty if it
    /// ends the stream. `ends`: the stream ends; `has_more`: the caller has more to send.
    pub fn put_data(&mut self, stream: u32, bytes: &[u8], ends: bool, has_more: bool) {
        let head = self.sent(stream, bytes.len(), ends, has_more);
        self.output.extend_from_slice(&head);
        self.output.extend_from_slice(bytes);
    }

    /// Like [`put_data`](Self::put_data), for a caller that sends the payload itself without a
    /// copy: returns the frame's head. The output so far must be sent before it.
    #[must_use]
    pub fn sent(
        &mut self,
        stream: u32,
        bytes: usize,
        ends: bool,
        has_more: bool,
    ) -> [u8; HEAD_LENGTH] {
        let head = FrameHead::data(stream, bytes, ends);
        self.meters.pings.permit();
        let updates = &mut self.meters.updates;
        updates.permit(UPDATES_OF_DATA, meter::WINDOW_UPDATES_MAX);
        self.send_window -= bytes as i64;
        if let Some(known) = self.streams.get_mut(&stream) {
            known.send_window -= bytes as i64;
            known.held += bytes as i64;
            known.has_more = has_more && !ends;
            if ends {
                known.sends = false;
            }
            enqueue(&mut self.queue, stream, known);
        }
        head.bytes()
    }

    /// Ends a request's body with an empty DATA frame, which needs no window (RFC 9113, section
    /// 6.9).
    pub fn put_end(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(|known| known.sends) {
            self.put_data(stream, &[], true, false);
        }
    }

    /// Ends a request's body with trailers.
    pub fn put_trailers<'a>(&mut self, stream: u32, fields: impl IntoIterator<Item = Field<'a>>) {
        let Some(known) = self.streams.get_mut(&stream).filter(|known| known.sends) else {
            return;
        };
        known.sends = false;
        known.has_more = false;
        self.request_changes = None;
        self.request_block.clear();
        self.encoder.encode(fields, &mut self.request_block);
        let size_max = self.peer.frame_size_max as usize;
        frame::put_header_block(
            &mut self.output,
            stream,
            &self.request_block,
            true,
            size_max,
        );
    }

    /// Gives credit for bytes of a response's body that the caller has read. The window grows for a
    /// stream that is read as fast as it arrives, because a distant server needs a wide one. The
    /// windows of slowly read streams stay small, which limits the memory.
    pub fn consumed(&mut self, stream: u32, bytes: usize) {
        let streams = u32::try_from(self.streams.len()).unwrap_or(u32::MAX);
        let windows = streams
            .saturating_mul(self.limits.stream_window)
            .saturating_add(self.wider);
        let Some(known) = self.streams.get_mut(&stream) else {
            return;
        };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(known.unread);
        known.unread -= bytes;
        known.read = known.read.saturating_add(bytes);
        let mut window = known.window;
        // All data received have been consumed, and twice the window since it last grew.
        let keeps_up = known.unread == 0 && known.read / 2 >= window;
        if keeps_up && window < self.limits.stream_window_max {
            let more = window.min(self.limits.stream_window_max - window);
            let more = more.min(WINDOWS_MAX.saturating_sub(windows));
            self.wider += more;
            window += more;
            (known.window, known.read) = (window, 0);
        }
        // The credit that restores the window's target size.
        let credit = window
            .saturating_sub(known.receive_window)
            .saturating_sub(known.unread);
        if known.receives && credit > 0 && credit >= window / 2 {
            known.receive_window += credit;
            frame::put_window_update(&mut self.output, stream, credit);
        }
    }

    /// Resets a stream, unless both halves are closed.
    pub fn reset(&mut self, stream: u32, code: ErrorCode) {
        if self.close(stream) {
            self.put_reset(stream, code);
        }
    }

    /// Releases a stream, so that another may be opened. Resets the stream if it is not closed.
    pub fn release(&mut self, stream: u32) -> Option<S> {
        self.drop_body(stream);
        let known = self.streams.remove(&stream)?;
        self.wider -= known.window - self.limits.stream_window;
        if self.streams.len() == 1 {
            self.requeue_window_waiters();
        }
        if !known.is_closed() {
            let code = if known.receives {
                ErrorCode::Cancel
            } else {
                // The response is complete, and the server did not need the rest of the request
                // (RFC 9113, section 8.1).
                ErrorCode::NoError
            };
            self.put_reset(stream, code);
        }
        Some(known.user)
    }

    /// Sends PING, to find out whether the server still responds.
    pub fn put_ping(&mut self) {
        frame::put_ping(&mut self.output, false, *b"tidegate");
    }

    /// Sends GOAWAY for a graceful shutdown.
    pub fn send_goaway(&mut self) {
        frame::put_goaway(&mut self.output, 0, ErrorCode::NoError);
    }

    /// Sends GOAWAY with the reason why the connection is closed now.
    pub fn fail(&mut self, violation: Violation) {
        frame::put_goaway(&mut self.output, 0, violation.code());
    }
}
