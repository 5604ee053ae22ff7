//! The state that a request shares with its connection's task: the received part of the response,
//! and the queued part of the request.

use std::cell::{Cell, RefCell};
use std::task::{Poll, Waker};

use base::queue::Queue;
use bytes::Bytes;
use engine::Buffer;
use proto::h2::ErrorCode;
use proto::h2::hpack::FIELD_OVERHEAD;
use proto::h2::response::ResponseHead;

use crate::faults::{self, INFORMATIONAL_MAX};
use crate::read_head::ReadHead;
use crate::stream_end::StreamEnd;

/// Maximum total size of the heads that wait to be taken, as HPACK counts it: the limit of a single
/// head. Checked only if an interim head is added to heads that wait; exceeding it ends the stream.
const WAITING_MAX: usize = 256 * 1024;

/// Parts of a body of at least this many bytes are stored in buffers with the capacity of a receive
/// buffer, and shorter parts in buffers of exactly their length.
const ROOMY_MIN: usize = 4 * 1024;

/// A received head: of an interim response or of the response.
pub struct StreamHead {
    /// The parsed head, whose fields are spans of `bytes`.
    pub head: ReadHead,
    /// The bytes of the head.
    pub bytes: Vec<u8>,
}

impl StreamHead {
    /// A copy of the head that the connection's HTTP/2 state machine has just parsed.
    pub(crate) fn of(head: &ResponseHead) -> StreamHead {
        let mut copy = ReadHead::default();
        copy.copy_http2(head);
        let mut bytes = engine::spare_bytes(head.bytes().len());
        bytes.extend_from_slice(head.bytes());
        StreamHead { head: copy, bytes }
    }

    /// The size of the head, as HPACK counts it (RFC 7541, section 4.1).
    fn size(&self) -> usize {
        self.bytes.len() + self.head.fields().len() * FIELD_OVERHEAD
    }
}

/// Received bytes of a response, framing included.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedBytes {
    /// All bytes of the response.
    pub in_all: u64,
    /// Bytes received after the head.
    pub behind_head: u64,
}

/// The state of one stream that its request shares with the connection's task. The flow-control
/// windows are kept by `proto::h2::client`.
#[derive(Default)]
pub struct StreamFlow {
    /// The number of the stream; 0 until the stream is opened and after it has been released.
    pub(crate) number: Cell<u32>,
    /// Received heads, interim or final, that have not been taken.
    heads: RefCell<Queue<StreamHead>>,
    /// Total size of `heads`.
    waiting: Cell<usize>,
    /// The number of interim heads that have been received.
    interim: Cell<u32>,
    /// The received part of the response body that has not been read, in pieces of a receive
    /// buffer's size at most.
    received: RefCell<Queue<Buffer>>,
    /// A DATA frame has been received, even if it was empty.
    has_body: Cell<bool>,
    /// The received trailers, until they are taken.
    trailers: RefCell<Option<StreamHead>>,
    /// Whether a reset never replaces [`StreamEnd::Whole`].
    keeps_complete_response: Cell<bool>,
    /// How the stream has ended, once it has.
    end: Cell<Option<StreamEnd>>,
    /// The log text for `end`, if the fault has a more specific one than `faults::text`.
    words: RefCell<Option<String>>,
    /// The queued part of the request's body.
    queue: RefCell<Queue<Bytes>>,
    /// Total length of `queue` in bytes.
    queued: Cell<usize>,
    /// Whether the end of the request's body has been queued.
    is_last: Cell<bool>,
    /// Whether there is no request body, or the peer wants no more of it.
    has_no_more: Cell<bool>,
    /// Bytes of the body that have been given to the transport.
    sent: Cell<u64>,
    /// Bytes given to the transport that are not part of the body: the head, and the frame headers
    /// of the body.
    framing: Cell<u64>,
    /// Bytes received on the stream, framing included.
    received_in_all: Cell<u64>,
    /// The value of `received_in_all` when the latest head was received.
    received_of_head: Cell<u64>,
    /// Woken when a part of the response is received, and at the end of the stream.
    reader: Cell<Option<Waker>>,
    /// Woken when queued bytes are taken, and at the end of the stream.
    writer: Cell<Option<Waker>>,
}

impl StreamFlow {
    // Methods for the connection's task.

    /// Adds the received head of the final response.
    pub(crate) fn put_head(&self, head: &ResponseHead) {
        self.push_head(StreamHead::of(head));
    }

    /// Adds a received interim head. False if there are too many, which ends the stream.
    pub(crate) fn put_interim(&self, head: &ResponseHead) -> bool {
        self.take_interim(StreamHead::of(head))
    }

    fn take_interim(&self, head: StreamHead) -> bool {
        let waiting = self.waiting.get();
        let has_room = waiting == 0 || waiting + head.size() <= WAITING_MAX;
        self.interim.set(self.interim.get() + 1);
        if self.interim.get() > INFORMATIONAL_MAX || !has_room {
            self.put_end(StreamEnd::TooManyInterim);
            return false;
        }
        self.push_head(head);
        true
    }

    fn push_head(&self, head: StreamHead) {
        self.received_of_head.set(self.received_in_all.get());
        self.waiting.set(self.waiting.get() + head.size());
        self.heads.borrow_mut().push_back(head);
        self.wake_reader();
    }

    /// Adds a received part of the body.
    pub(crate) fn put_body(&self, bytes: &[u8]) {
        self.has_body.set(true);
        append(&mut self.received.borrow_mut(), bytes);
        self.wake_reader();
    }

    /// Adds the received trailers, which end the response.
    pub(crate) fn put_trailers(&self, head: &ResponseHead) {
        self.trailers.replace(Some(StreamHead::of(head)));
        self.put_end(StreamEnd::Whole);
    }

    /// Ends the stream. The first end counts, except that, as in nginx, a reset replaces it while a
    /// received head waits to be taken.
    ///
    /// These ends are not replaced: [`StreamEnd::TooManyInterim`]; a complete response after
    /// [`keep_complete_response`](Self::keep_complete_response); and any end if the reset is a
    /// NO_ERROR during the upload, by which the peer only says that it does not need the rest of
    /// the request (RFC 9113, section 8.1).
    ///
    /// Every end but [`StreamEnd::Whole`] discards the queued part of the request's body.
    pub(crate) fn put_end(&self, end: StreamEnd) {
        // A received head waits to be taken.
        let is_untouched = !self.heads.borrow().is_empty();
        // The peer needs no more of the request than it has received.
        let is_content =
            matches!(end, StreamEnd::Reset(ErrorCode::NoError, None)) && self.is_sending();
        let is_kept = match self.end.get() {
            Some(StreamEnd::Whole) => self.keeps_complete_response.get(),
            Some(StreamEnd::TooManyInterim) => true,
            _ => false,
        };
        let is_reset =
            matches!(end, StreamEnd::Reset(..)) && !is_content && is_untouched && !is_kept;
        if self.end.get().is_none() || is_reset {
            self.end.set(Some(end));
        }
        if !matches!(end, StreamEnd::Whole) {
            self.queue.borrow_mut().clear();
            self.queued.set(0);
            self.has_no_more.set(true);
        }
        self.wake_reader();
        self.wake_writer();
    }

    /// Notes that the request has no body.
    pub(crate) fn send_nothing(&self) {
        self.has_no_more.set(true);
    }

    /// Whether a part of the request, or its end, is still to be sent.
    fn is_sending(&self) -> bool {
        let is_sent = self.is_last.get() && self.queued.get() == 0;
        !self.has_no_more.get() && !is_sent
    }

    /// Sets the log text of a fault; [`put_end`](Self::put_end) with that fault must be called
    /// next.
    pub(crate) fn put_words(&self, words: String) {
        self.words.replace(Some(words));
    }

    /// Takes at most `most` bytes from the front of the queued body and appends them to `out`.
    /// Returns their number, and whether the body ends with them.
    pub(crate) fn take_queued(&self, most: usize, out: &mut Vec<Bytes>) -> (usize, bool) {
        let mut queue = self.queue.borrow_mut();
        let mut taken = 0;
        while let Some(first) = queue.front_mut()
            && taken < most
        {
            let length = first.len().min(most - taken);
            let part = if length == first.len() {
                queue.pop_front()
            } else {
                Some(first.split_to(length))
            };
            out.extend(part);
            taken += length;
        }
        self.queued.set(self.queued.get() - taken);
        self.sent.set(self.sent.get() + taken as u64);
        drop(queue);
        self.wake_writer();
        (taken, self.is_last.get() && self.queued.get() == 0)
    }

    /// Sets the number of bytes that have been received on the stream.
    pub(crate) fn note_received(&self, bytes: u64) {
        self.received_in_all.set(bytes);
    }

    /// Counts bytes given to the transport that are not part of the body.
    pub(crate) fn count_framing(&self, bytes: usize) {
        self.framing.set(self.framing.get() + bytes as u64);
    }

    fn wake_reader(&self) {
        self.reader.take().into_iter().for_each(Waker::wake);
    }

    fn wake_writer(&self) {
        self.writer.take().into_iter().for_each(Waker::wake);
    }

    // Methods for the request.

    /// Keeps a complete response valid even if the stream is reset before its head has been taken.
    /// Without this call, the reset counts, as in nginx.
    pub fn keep_complete_response(&self) {
        self.keeps_complete_response.set(true);
    }

    /// Takes the next head; the error is the end of the stream if there is no head left.
    pub(crate) fn poll_head(&self, waker: &Waker) -> Poll<Result<StreamHead, StreamEnd>> {
        if let Some(head) = self.heads.borrow_mut().pop_front() {
            self.waiting.set(self.waiting.get() - head.size());
            return Poll::Ready(Ok(head));
        }
        match self.end.get() {
            Some(end) => Poll::Ready(Err(end)),
            None => self.wait_to_read(waker),
        }
    }

    /// Whether the response is complete and has neither body nor trailers.
    pub fn ends_with_head(&self) -> bool {
        self.is_whole() && !self.has_body.get() && self.trailers.borrow().is_none()
    }

    /// Waits for the next piece of the received body. Empty at the end of the stream, whatever the
    /// reason for the end.
    pub(crate) fn poll_body(&self, waker: &Waker) -> Poll<Buffer> {
        let received = self.take_body();
        if !received.is_empty() || self.end.get().is_some() {
            return Poll::Ready(received);
        }
        self.wait_to_read(waker)
    }

    fn wait_to_read<T>(&self, waker: &Waker) -> Poll<T> {
        self.reader.set(Some(waker.clone()));
        Poll::Pending
    }

    /// Takes the next piece of the received body; empty if there is none.
    pub(crate) fn take_body(&self) -> Buffer {
        self.received.borrow_mut().pop_front().unwrap_or_default()
    }

    /// How the stream has ended, if it has.
    pub fn end(&self) -> Option<StreamEnd> {
        self.end.get()
    }

    /// The log text for the end of the stream. The text set by `put_words` is taken: a second call
    /// returns the general text.
    pub fn words(&self, end: StreamEnd) -> String {
        let own = match end {
            StreamEnd::Reset(_, Some(_)) => self.words.take(),
            _ => None,
        };
        own.unwrap_or_else(|| faults::text(end))
    }

    /// Whether the response has been received completely, and its body has been taken.
    pub fn is_whole(&self) -> bool {
        matches!(self.end.get(), Some(StreamEnd::Whole)) && self.received.borrow().is_empty()
    }

    /// Takes the trailers, if they have been received.
    pub fn take_trailers(&self) -> Option<StreamHead> {
        self.trailers.take()
    }

    /// Appends to the request's body.
    pub(crate) fn push(&self, bytes: Bytes) {
        if bytes.is_empty() || self.end.get().is_some() {
            return;
        }
        self.queued.set(self.queued.get() + bytes.len());
        self.queue.borrow_mut().push_back(bytes);
    }

    /// Ends the request's body.
    pub(crate) fn push_end(&self) {
        self.is_last.set(true);
    }

    /// Whether all of the request's body has been given to the transport, so that at most
    /// END_STREAM is left to send.
    pub(crate) fn has_only_end(&self) -> bool {
        self.is_last.get() && self.queued.get() == 0
    }

    /// Bytes of the request's body that have not been given to the transport.
    pub fn queued(&self) -> usize {
        self.queued.get()
    }

    /// Bytes of the request's body that have been given to the transport.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Bytes of the whole request that have been given to the transport or are queued for it.
    pub fn sent_in_all(&self) -> u64 {
        self.framing.get() + self.sent.get() + self.queued.get() as u64
    }

    /// The numbers of bytes that have been received on the stream.
    pub fn received(&self) -> ReceivedBytes {
        let in_all = self.received_in_all.get();
        ReceivedBytes {
            in_all,
            behind_head: in_all.saturating_sub(self.received_of_head.get()),
        }
    }

    /// Waits until at most `limit` bytes are queued, or the stream has ended.
    pub fn poll_drained(&self, limit: usize, waker: &Waker) -> Poll<()> {
        if self.queued.get() <= limit || self.end.get().is_some() {
            return Poll::Ready(());
        }
        self.writer.set(Some(waker.clone()));
        Poll::Pending
    }

    /// Waits for the end of the stream. Not at the same time as
    /// [`poll_drained`](Self::poll_drained), since both use the same waker.
    pub fn poll_ended(&self, waker: &Waker) -> Poll<()> {
        if self.end.get().is_some() {
            return Poll::Ready(());
        }
        self.writer.set(Some(waker.clone()));
        Poll::Pending
    }
}

/// Appends bytes: to the last piece as far as they fit, and the rest in new pieces. Fewer than
/// [`ROOMY_MIN`] bytes get a buffer of exactly their length; if more bytes follow, the piece is
/// moved to a buffer with the capacity of a receive buffer. So a body that arrives byte by byte
/// occupies no more memory than a body that arrives at once.
fn append(pieces: &mut Queue<Buffer>, bytes: &[u8]) {
    let mut rest = bytes;
    if let Some(last) = pieces.back_mut() {
        if last.len() < ROOMY_MIN && !last.has_room(rest.len()) {
            let mut roomy = Buffer::roomy();
            if roomy.fill(last) == last.len() {
                *last = roomy;
            }
        }
        rest = rest.get(last.fill(rest)..).unwrap_or_default();
    }
    while !rest.is_empty() {
        if rest.len() < ROOMY_MIN {
            return pieces.push_back(Buffer::copy_of(rest));
        }
        let mut piece = Buffer::roomy();
        rest = rest.get(piece.fill(rest)..).unwrap_or_default();
        pieces.push_back(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small parts of a body share buffers, so that their memory does not depend on the parts'
    /// sizes.
    #[test]
    fn what_has_come_of_a_body_occupies_what_it_says() {
        let body: Vec<u8> = (0..100_000_u32).map(|n| (n / 7) as u8).collect();
        for part in [1, 1000, 9000, 16_384, 40_000] {
            let flow = StreamFlow::default();
            body.chunks(part).for_each(|bytes| flow.put_body(bytes));
            let mut taken = Vec::new();
            let mut pieces = 0;
            while taken.len() < body.len() {
                taken.extend_from_slice(&flow.take_body());
                pieces += 1;
            }
            assert!(pieces <= 8, "{pieces} by {part}");
            assert!(taken == body && flow.take_body().is_empty());
        }
    }

    #[test]
    fn interim_heads_that_nothing_takes_are_bounded() {
        let take = |flow: &StreamFlow, length| {
            flow.take_interim(StreamHead {
                head: ReadHead::default(),
                bytes: vec![b'x'; length],
            })
        };
        let flow = StreamFlow::default();
        assert!((0..100).all(|_| take(&flow, 10)));
        assert!(!take(&flow, 10));
        // Fewer heads, but longer ones. A single head is accepted whatever its size.
        let flow = StreamFlow::default();
        assert!(take(&flow, WAITING_MAX + 1));
        assert!(!take(&flow, 1));
        let flow = StreamFlow::default();
        assert!(take(&flow, WAITING_MAX / 2) && take(&flow, WAITING_MAX / 2));
        assert!(!take(&flow, 1));
    }
}
