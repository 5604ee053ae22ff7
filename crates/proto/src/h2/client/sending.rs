//! A connection of HTTP/2 to a server: what goes out, and within which windows.
//!
//! The calls of one request, in their order: [`open`](Client::open), if
//! [`may_open`](Client::may_open); then, where it has a body,
//! [`wants_to_send`](Client::wants_to_send) whenever there is more of it, which has
//! [`turn`](Client::turn) say when and how much; [`put_data`](Client::put_data) or
//! [`sent`](Client::sent) for each part; [`release`](Client::release) once the response has come,
//! or its user gives it up. [`consumed`](Client::consumed) gives credit for what was read of the
//! response's body.
//!
//! **Shares.** Streams spend one window, the connection's, and a server that does not read one of
//! them gives no credit for it again. So the last part of that window,
//! [`reserve`](Client::reserve), is for streams that hold little of it: an upload that is not read
//! stops no other. Most of the window may be used by one stream all the same, because many servers
//! give credit only when half of it is used. A stream that is alone may use all.

use super::{Client, PERMITTED_MAX, STREAMS_BEFORE_SETTINGS, Stream, WINDOWS_MAX, enqueue};
use crate::h2::error::{ErrorCode, Violation};
use crate::h2::frame::{self, FrameHead, HEAD_LENGTH, STREAM_MAX};
use crate::h2::hpack::Field;
use crate::h2::meter;
use crate::h2::settings::Settings;

/// Bytes of a body that one stream sends before others have their turn.
pub(super) const QUANTUM: u32 = 16 * 1024;

/// Bytes of the connection's window that are enough for streams that hold little of it, however
/// large it is.
const RESERVE_MAX: i64 = 1024 * 1024;

/// WINDOW_UPDATE frames that may come for a DATA frame: for its stream, and for the connection.
const UPDATES_OF_DATA: u32 = 2;

/// What a request is, beside its fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestStart {
    /// It has no body.
    pub ends: bool,
    /// Its method is HEAD: the response has no body, whatever its head says.
    pub is_head: bool,
}

impl<S> Client<S> {
    /// What is to be sent. Whoever has sent it says so by [`clear_output`](Self::clear_output).
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// What is to be sent was sent.
    pub fn clear_output(&mut self) {
        self.output.clear();
    }

    /// What is to be sent, for one who keeps it until it has left.
    #[must_use]
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// What the server has set.
    #[must_use]
    pub fn peer(&self) -> &Settings {
        &self.peer
    }

    /// How many streams the server takes at once, as far as is known.
    #[must_use]
    pub fn streams_max(&self) -> u32 {
        if self.has_begun() {
            self.peer.streams_max
        } else {
            STREAMS_BEFORE_SETTINGS
        }
    }

    /// Whether another stream may be opened now.
    #[must_use]
    pub fn may_open(&self) -> bool {
        !self.is_ending() && (self.streams.len() as u64) < u64::from(self.streams_max())
    }

    /// Whether no stream can be opened any more: the server ends the connection, or the numbers are
    /// used up.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.served_until.is_some() || self.next_stream > STREAM_MAX
    }

    /// Whether so much of the connection's window is left that another request need not wait for
    /// it.
    #[must_use]
    pub fn has_window(&self) -> bool {
        self.send_window > self.reserve()
    }

    /// Bytes at the end of the connection's window that no stream may have to itself.
    fn reserve(&self) -> i64 {
        (self.send_window_max / 8 * 3).min(RESERVE_MAX)
    }

    /// How much of the connection's window a stream may use now that holds so many bytes of it.
    fn share(&self, held: i64) -> i64 {
        let left = self.send_window;
        if self.streams.len() == 1 {
            return left;
        }
        // Servers give credit to the connection alone where a stream has much: no stream holds more
        // than all together.
        let held = held.min(self.send_window_max - left);
        // Of the reserve each takes a part of what those before it have left.
        let of_reserve = (left + 3) / 4 - held;
        of_reserve.max(left - self.reserve())
    }

    /// A stream has its share, and waits.
    fn hold_back(&mut self, number: u32) {
        if let Some(stream) = self.streams.get_mut(&number)
            && !std::mem::replace(&mut stream.is_held_back, true)
        {
            self.held_back.push(number);
        }
    }

    /// The connection's window may have something again for those who were held back.
    pub(super) fn call_held_back(&mut self) {
        for number in self.held_back.drain(..) {
            if let Some(stream) = self.streams.get_mut(&number) {
                stream.is_held_back = false;
                enqueue(&mut self.queue, number, stream);
            }
        }
    }

    /// How many streams we have reset.
    #[must_use]
    pub fn resets(&self) -> u32 {
        self.resets
    }

    /// How many streams are not released.
    #[must_use]
    pub fn live(&self) -> usize {
        self.streams.len()
    }

    /// The user's data of a stream that has not been released.
    pub fn user(&mut self, stream: u32) -> Option<&mut S> {
        self.streams.get_mut(&stream).map(|known| &mut known.user)
    }

    /// The user's data, and how many bytes of HEADERS, CONTINUATION and DATA frames have been
    /// received on the stream, frame heads and padding included. A DATA frame counts as a whole
    /// once its head has been received.
    pub fn user_and_received(&mut self, stream: u32) -> Option<(&mut S, u64)> {
        let known = self.streams.get_mut(&stream)?;
        Some((&mut known.user, known.received))
    }

    /// Whether the server has sent a response's head on a stream.
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

    /// Lets go of all streams, because the connection has ended.
    pub fn drain(&mut self) -> impl Iterator<Item = (u32, S)> {
        let streams = self.streams.drain();
        streams.map(|(number, stream)| (number, stream.user))
    }

    /// Opens a stream with a request's head; the pseudo-fields come first, and names are in lower
    /// case. `None` where none [may be opened](Self::may_open).
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

    /// Opens a stream with the same request as the last one, which is quicker. `None` where none
    /// may be opened, or the last request's block would not say the same again.
    pub fn open_again(&mut self, user: S) -> Option<u32> {
        if self.request_changes != Some(self.encoder.changes()) || !self.may_open() {
            return None;
        }
        Some(self.begin(self.request_opening, user))
    }

    /// Opens a stream whose block is in its place.
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
                is_held_back: false,
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

    /// Notes that a stream has something of its body to send, or its end.
    pub fn wants_to_send(&mut self, stream: u32) {
        if let Some(known) = self.streams.get_mut(&stream).filter(|known| known.sends) {
            known.has_more = true;
            enqueue(&mut self.queue, stream, known);
        }
    }

    /// Whose turn it is to send, and at most how many bytes in one frame. `None`: nobody may, or
    /// has something to.
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
                self.hold_back(stream);
                continue;
            }
            let size_max = i64::from(self.peer.frame_size_max.min(QUANTUM));
            let allowed = usize::try_from(allowed.min(size_max)).unwrap_or_default();
            return Some((stream, allowed));
        }
        None
    }

    /// Adds a part of the body of a stream whose turn it is to what is to be sent, or its end
    /// without bytes. `ends`: nothing follows; `has_more`: more waits already.
    pub fn put_data(&mut self, stream: u32, bytes: &[u8], ends: bool, has_more: bool) {
        let head = self.sent(stream, bytes.len(), ends, has_more);
        self.output.extend_from_slice(&head);
        self.output.extend_from_slice(bytes);
    }

    /// Like [`put_data`](Self::put_data), for a caller that sends the bytes itself without a copy:
    /// returns the frame head that goes in front of them, with all that must be sent before.
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

    /// Ends a request's body of which nothing is left: that has no bytes, and waits for no window
    /// (RFC 9113, section 6.9).
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

    /// Gives credit for bytes of a response's body that have been read. A stream that is read as it
    /// comes gets a wider window, for servers that are far away; what lies unread of many streams
    /// stays little.
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
        // Nothing is left of what has come, and that was more than what waits for a slow reader.
        let keeps_up = known.unread == 0 && known.read / 2 >= window;
        if keeps_up && window < self.limits.stream_window_max {
            let more = window.min(self.limits.stream_window_max - window);
            let more = more.min(WINDOWS_MAX.saturating_sub(windows));
            self.wider += more;
            window += more;
            (known.window, known.read) = (window, 0);
        }
        // What the server could be let send again.
        let credit = window
            .saturating_sub(known.receive_window)
            .saturating_sub(known.unread);
        if known.receives && credit > 0 && credit >= window / 2 {
            known.receive_window += credit;
            frame::put_window_update(&mut self.output, stream, credit);
        }
    }

    /// Resets a stream, unless both halves of it have ended.
    pub fn reset(&mut self, stream: u32, code: ErrorCode) {
        if self.close(stream) {
            self.put_reset(stream, code);
        }
    }

    /// Lets go of a stream: its place is free for another. What has not ended ends: nobody wants it
    /// any more.
    pub fn release(&mut self, stream: u32) -> Option<S> {
        self.drop_body(stream);
        let known = self.streams.remove(&stream)?;
        self.wider -= known.window - self.limits.stream_window;
        if self.streams.len() == 1 {
            self.call_held_back();
        }
        if !known.is_closed() {
            let code = if known.receives {
                ErrorCode::Cancel
            } else {
                // The response has come, and did not need the rest of the request (RFC 9113,
                // section 8.1).
                ErrorCode::NoError
            };
            self.put_reset(stream, code);
        }
        Some(known.user)
    }

    /// Asks the server for a sign of life.
    pub fn put_ping(&mut self) {
        frame::put_ping(&mut self.output, false, *b"tidegate");
    }

    /// Says that the connection ends in order.
    pub fn go_away(&mut self) {
        frame::put_goaway(&mut self.output, 0, ErrorCode::NoError);
    }

    /// Says why the connection ends now.
    pub fn fail(&mut self, violation: Violation) {
        frame::put_goaway(&mut self.output, 0, violation.code());
    }
}
