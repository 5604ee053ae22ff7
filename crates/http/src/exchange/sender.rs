//! Paces a response, over any protocol: `limit_rate`, `send_timeout`, and back-pressure from a
//! client that reads slowly.
//!
//! The protocol frames and queues bytes (see [`Wire`]). The sender decides when they are queued and
//! how many, and counts the sent bytes for logs and variables.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::limits::RECEIVE_BUFFER_SIZE_DEFAULT;
use bytes::Bytes;
use engine::file::File;
use engine::net::Segment;
use engine::select::{Either, either};
use proto::h1::Version;

use crate::exchange::abort::Abort;
use crate::request::Request;
use crate::response::piece::Piece;

/// The lowest limit of queued bytes: two receive buffers, so that one can be sent while the next is
/// filled.
const QUEUED_MIN: usize = 2 * RECEIVE_BUFFER_SIZE_DEFAULT;

/// The number of bytes that nginx collects before a write (`postpone_output`). Tidegate sends bytes
/// as they become ready. For nginx's pace under `limit_rate`, Tidegate treats this many bytes as
/// one write and pauses only between writes.
const GATHERED_MAX: u64 = 1460;

/// The number of bytes that nginx collects of a buffered upstream body before a write: the usual
/// size of one of its buffers.
const BUFFERED_MAX: u64 = 4096;

/// An upper bound of the framing of one segment of a body, in bytes.
const FRAMING_MAX: usize = 32;

/// Where a response's body is sent: an HTTP/1 connection, or an HTTP/2 stream.
pub trait Wire {
    /// Queued bytes beyond which the sender waits for the client to read.
    const BACKLOG_MAX: usize = 64 * 1024;

    /// Whether `$body_bytes_sent` counts the framing. As in nginx it does for chunked bodies, and
    /// does not for HTTP/2 frames.
    const FRAMING_IS_OF_BODY: bool;

    /// Frames and queues a segment of the body. Returns the bytes that the framing adds.
    fn push(&mut self, segment: Segment, length: u64) -> u64;

    /// Takes the part of the head that `limit_rate` holds back.
    fn take_held(&mut self) -> Bytes {
        Bytes::new()
    }

    /// Whether `limit_rate` holds back a part of the head.
    fn holds_head(&self) -> bool {
        false
    }

    /// Queues a part of the held-back head.
    fn push_head(&mut self, _part: Bytes) {}

    /// Ends the body. Returns the bytes that the framing adds.
    fn push_end(&mut self, request: &Request) -> u64;

    /// Starts to send what is queued, without waiting.
    fn start_send(&self);

    /// Bytes that are queued and not sent.
    fn backlog(&self) -> usize;

    /// Waits until at most `limit` bytes are queued.
    ///
    /// # Errors
    /// `TimedOut` if the client has read nothing for the send timeout; errors of the connection.
    fn drained(&mut self, limit: usize) -> impl Future<Output = io::Result<()>>;

    /// Whether the connection is gone, so that queued bytes will never be sent.
    fn is_gone(&self) -> bool {
        false
    }

    /// Sets how long the client may read nothing, and whether the connection is then reset
    /// (`reset_timedout_connection`; not for HTTP/2, whose connection carries other streams).
    fn set_send_timeout(&mut self, timeout: Duration, resets: bool);

    /// See [`Exchange::client_gone`](super::Exchange::client_gone).
    fn client_gone(&mut self) -> impl Future<Output = Abort>;

    /// Marks the response as complete in the queue, so that the queue is sent before the connection
    /// waits for anything.
    fn finish(&mut self);

    /// Whether all announced bytes of the body have been queued.
    fn is_whole(&self) -> bool;
}

/// The sender of one response.
#[derive(Debug, Default)]
pub struct Sender {
    /// Under `limit_rate`: the time before which no further [write](GATHERED_MAX) begins.
    paused_until: Option<Instant>,
    /// Bytes of the response, including the head, for which the pause under `limit_rate`
    /// is over.
    paced: u64,
    /// Whether the last write was flushed or cut short, so that the next bytes begin a new write
    /// even if the last write was short.
    has_written: bool,
    /// Whether the body comes from an upstream and is buffered.
    is_buffered: bool,
    /// Bytes of the body that were copied since the task last yielded to other tasks.
    unshared: usize,
    /// A limit of queued bytes below [`Wire::BACKLOG_MAX`].
    queued_max: Option<usize>,
}

impl Sender {
    /// Applies the current location's `send_timeout`. Called before the head is sent.
    pub fn begin(&mut self, wire: &mut impl Wire, request: &mut Request) {
        let plan = Arc::clone(&request.plan);
        let resets = plan.core.reset_timedout_connection;
        wire.set_send_timeout(plan.core.send_timeout, resets);
        if request.client.version() != Version::Http09 {
            // As in nginx `limit_rate` is evaluated when the head is sent, even if there is no
            // body.
            let _ = plan.core.limit_rate_of(request);
        }
    }

    /// The number of bytes of the head that `limit_rate` allows at once; `None` for the whole head.
    pub fn share_of_head(request: &mut Request) -> Option<usize> {
        let plan = Arc::clone(&request.plan);
        let rate = plan.core.limit_rate_of(request)?;
        let after = plan.core.limit_rate_after_of(request);
        usize::try_from(allowed(request, rate, after)).ok()
    }

    /// Notes that a part of the head has been sent, and that the rest is held back.
    pub fn head_is_held(&mut self, request: &mut Request) {
        let plan = Arc::clone(&request.plan);
        if let Some(rate) = plan.core.limit_rate_of(request) {
            let after = plan.core.limit_rate_after_of(request);
            self.note_paced(request.sent.bytes, rate, after);
            self.has_written = true;
        }
    }

    /// Sets the pause before the next write. The pause is for the bytes up to `end` that no
    /// earlier pause has counted.
    fn note_paced(&mut self, end: u64, rate: u64, after: u64) {
        let paced = self.paced.saturating_sub(after);
        let counted = end.saturating_sub(after).saturating_sub(paced);
        let pause = Duration::from_millis(counted.saturating_mul(1000) / rate);
        self.paused_until = Some(engine::now() + pause);
    }

    /// Whether the bytes after the first `sent` bytes belong to a new write.
    fn begins_write(&self, sent: u64) -> bool {
        let gathered_max = if self.is_buffered {
            BUFFERED_MAX
        } else {
            GATHERED_MAX
        };
        self.has_written || sent.saturating_sub(self.paced) >= gathered_max
    }

    /// See `Exchange::set_queued_max`.
    pub fn set_queued_max(&mut self, bytes: Option<usize>) {
        self.queued_max = bytes;
        self.is_buffered |= bytes.is_some_and(|bytes| bytes > 0);
    }

    /// Sends a piece if that needs no wait, as with nearly all pieces: the end, or bytes that fit
    /// into the queue and that no `limit_rate` holds back. Any other piece is returned, for
    /// [`send`](Self::send).
    pub fn send_at_once<W: Wire>(
        &mut self,
        wire: &mut W,
        request: &mut Request,
        piece: Piece,
    ) -> Result<(), Piece> {
        if wire.holds_head() || wire.is_gone() {
            return Err(piece);
        }
        match piece {
            Piece::Bytes(bytes) if self.has_room_for(wire, request, bytes.len()) => {
                let length = bytes.len();
                self.unshared += length;
                push(wire, request, Segment::Bytes(bytes), length as u64);
            }
            Piece::Last => {
                let framing = wire.push_end(request);
                count(wire, request, 0, framing);
            }
            piece => return Err(piece),
        }
        Ok(())
    }

    /// Whether this many bytes may be queued without waiting for `limit_rate`, for the client, or
    /// for other tasks.
    fn has_room_for<W: Wire>(&self, wire: &W, request: &mut Request, bytes: usize) -> bool {
        let plan = Arc::clone(&request.plan);
        let chunk = plan.core.sendfile_max_chunk;
        bytes > 0
            && wire.backlog() + bytes + FRAMING_MAX <= self.queued_max::<W>()
            && chunk.is_none_or(|chunk| self.unshared + bytes < chunk)
            && plan.core.limit_rate_of(request).is_none()
    }

    /// The number of bytes that may be queued before the sender waits for the client.
    fn queued_max<W: Wire>(&self) -> usize {
        match self.queued_max {
            Some(bytes) => bytes.max(QUEUED_MIN).min(W::BACKLOG_MAX),
            None => W::BACKLOG_MAX,
        }
    }

    /// Sends a piece of the body, and waits while the client is slow to read.
    pub async fn send(
        &mut self,
        wire: &mut impl Wire,
        request: &mut Request,
        piece: Piece,
    ) -> Result<(), Abort> {
        self.send_held(wire, request).await?;
        match piece {
            Piece::Bytes(bytes) => return self.send_bytes(wire, request, bytes).await,
            Piece::File {
                file,
                offset,
                length,
            } => {
                let range = offset..offset.saturating_add(length);
                return self.send_file(wire, request, &file, range).await;
            }
            Piece::Flush => {
                self.has_written = true;
                wire.start_send();
            }
            Piece::Last => {
                let framing = wire.push_end(request);
                count(wire, request, 0, framing);
            }
            Piece::Include(_) => {}
        }
        Ok(())
    }

    /// Sends the rest of a head that `limit_rate` holds back.
    pub async fn send_held(
        &mut self,
        wire: &mut impl Wire,
        request: &mut Request,
    ) -> Result<(), Abort> {
        let mut held = wire.take_held();
        if held.is_empty() {
            return Ok(());
        }
        // A boxed future, since this is rare and would enlarge the future of every response.
        Box::pin(async {
            while !held.is_empty() {
                let allowed = self.pace(wire, request, held.len() as u64).await?;
                let allowed = usize::try_from(allowed).unwrap_or(held.len());
                let part = held.split_to(allowed.min(held.len()));
                request.sent.bytes += part.len() as u64;
                wire.push_head(part);
            }
            Ok(())
        })
        .await
    }

    async fn send_bytes(
        &mut self,
        wire: &mut impl Wire,
        request: &mut Request,
        mut bytes: Bytes,
    ) -> Result<(), Abort> {
        while !bytes.is_empty() {
            let allowed = self.pace(wire, request, bytes.len() as u64).await?;
            let allowed = usize::try_from(allowed).unwrap_or(bytes.len());
            let part = bytes.split_to(allowed.min(bytes.len()));
            let copied = part.len();
            push(wire, request, Segment::Bytes(part), copied as u64);
            self.wait_for_client(wire, request).await?;
            self.yield_after_chunk(wire, request, copied).await;
        }
        Ok(())
    }

    async fn send_file(
        &mut self,
        wire: &mut impl Wire,
        request: &mut Request,
        file: &File,
        mut range: Range<u64>,
    ) -> Result<(), Abort> {
        while !range.is_empty() {
            let wanted = range.end - range.start;
            let part = self.pace(wire, request, wanted).await?;
            let segment = Segment::File {
                file: file.clone(),
                offset: range.start,
                length: part,
            };
            push(wire, request, segment, part);
            self.wait_for_client(wire, request).await?;
            range.start += part;
        }
        Ok(())
    }

    /// Ends the response. When this returns, everything has been passed to the connection.
    pub async fn end(&mut self, wire: &mut impl Wire, request: &mut Request) -> Result<(), Abort> {
        self.send_held(wire, request).await?;
        wire.finish();
        self.queued_max = None;
        self.wait_for_client(wire, request).await?;
        request.sent.complete = wire.is_whole() || request.response.header_only;
        Ok(())
    }

    /// Waits while too many bytes are queued for the client.
    async fn wait_for_client<W: Wire>(
        &self,
        wire: &mut W,
        request: &mut Request,
    ) -> Result<(), Abort> {
        if wire.is_gone() {
            return Err(Abort::Closed(io::ErrorKind::ConnectionReset.into()));
        }
        let queued_max = self.queued_max::<W>();
        if wire.backlog() <= queued_max {
            return Ok(());
        }
        let drained = wire.drained(queued_max).await;
        drained.map_err(|error| not_taken(wire, request, error))
    }

    /// Yields to other tasks after each `sendfile_max_chunk` copied bytes. Without this, a client
    /// that reads fast would delay them for the whole response, most of all with TLS. For files
    /// that the kernel sends, the engine itself yields.
    async fn yield_after_chunk(&mut self, wire: &mut impl Wire, request: &Request, copied: usize) {
        self.unshared += copied;
        let chunk = request.plan.core.sendfile_max_chunk;
        if chunk.is_some_and(|chunk| self.unshared >= chunk) {
            self.unshared = 0;
            wire.start_send();
            engine::yield_now().await;
        }
    }

    /// How many of `wanted` bytes `limit_rate` allows now; waits until it allows some. As in nginx,
    /// each second since the request began allows another `rate` bytes, and each write is followed
    /// by a pause of its length divided by the rate.
    async fn pace(
        &mut self,
        wire: &mut impl Wire,
        request: &mut Request,
        wanted: u64,
    ) -> Result<u64, Abort> {
        let plan = Arc::clone(&request.plan);
        let Some(rate) = plan.core.limit_rate_of(request) else {
            return Ok(wanted);
        };
        let after = plan.core.limit_rate_after_of(request);
        let before = request.sent.bytes;
        if self.begins_write(before)
            && let Some(earliest) = self.paused_until.take()
        {
            pause_until(wire, earliest).await?;
            self.paced = before;
            self.has_written = false;
        }
        loop {
            let allowed = allowed(request, rate, after);
            let sent = request.sent.bytes;
            if allowed > sent {
                let part = (allowed - sent).min(wanted);
                self.note_paced(sent + part, rate, after);
                self.has_written |= part < wanted;
                return Ok(part);
            }
            let over = sent - allowed;
            let pause = Duration::from_millis(over.saturating_mul(1000) / rate + 1);
            pause_until(wire, engine::now() + pause).await?;
        }
    }
}

/// The number of bytes of a response that may have been sent by now under `limit_rate`.
fn allowed(request: &Request, rate: u64, after: u64) -> u64 {
    let now = engine::wall().as_secs();
    let seconds = now.saturating_sub(request.arrival.started_wall.as_secs()) + 1;
    rate.saturating_mul(seconds).saturating_add(after)
}

/// Queues a segment of the body and counts it as sent.
fn push(wire: &mut impl Wire, request: &mut Request, segment: Segment, length: u64) {
    let framing = wire.push(segment, length);
    count(wire, request, length, framing);
}

/// Counts bytes of the body and of its framing as sent.
fn count<W: Wire>(_: &W, request: &mut Request, body: u64, framing: u64) {
    request.sent.bytes += body + framing;
    request.sent.body_bytes += if W::FRAMING_IS_OF_BODY {
        body + framing
    } else {
        body
    };
}

/// Subtracts the queued bytes from the counts of sent bytes, after the connection has failed.
pub(super) fn not_taken(wire: &impl Wire, request: &mut Request, error: io::Error) -> Abort {
    request.sent.take_back(wire.backlog() as u64);
    error.into()
}

/// Waits until `then`. A client that leaves earlier ends the exchange.
async fn pause_until(wire: &mut impl Wire, then: Instant) -> Result<(), Abort> {
    wire.start_send();
    match either(engine::sleep_until(then), wire.client_gone()).await {
        Either::First(()) => Ok(()),
        Either::Second(abort) => Err(abort),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::pending;
    use std::rc::Rc;

    use super::*;
    use crate::testing::{serve, site};

    /// A simulated wire: each segment costs three bytes of framing and takes `delay` to be sent.
    #[derive(Default)]
    struct Slow {
        delay: Duration,
        queued: usize,
        pushed: Vec<(Duration, u64)>,
        began: Option<Instant>,
        timeout: Duration,
        started: RefCell<usize>,
    }

    impl Wire for Slow {
        const FRAMING_IS_OF_BODY: bool = true;

        fn push(&mut self, _: Segment, length: u64) -> u64 {
            let began = *self.began.get_or_insert_with(engine::now);
            self.pushed.push((engine::now() - began, length));
            self.queued += length as usize + 3;
            3
        }

        fn push_end(&mut self, _: &Request) -> u64 {
            5
        }

        fn start_send(&self) {
            *self.started.borrow_mut() += 1;
        }

        fn backlog(&self) -> usize {
            self.queued
        }

        async fn drained(&mut self, _: usize) -> io::Result<()> {
            if self.delay > self.timeout {
                engine::sleep(self.timeout).await;
                self.queued = 1000;
                return Err(io::ErrorKind::TimedOut.into());
            }
            engine::sleep(self.delay).await;
            self.queued = 0;
            Ok(())
        }

        fn set_send_timeout(&mut self, timeout: Duration, _: bool) {
            self.timeout = timeout;
        }

        async fn client_gone(&mut self) -> Abort {
            pending().await
        }

        fn finish(&mut self) {}

        fn is_whole(&self) -> bool {
            true
        }
    }

    #[test]
    fn any_wire_is_paced() {
        let text = site("limit_rate 1000;");
        serve(&text, "GET / HTTP/1.1", async |mut request| {
            let mut wire = Slow::default();
            let mut sender = Sender::default();
            sender.begin(&mut wire, &mut request);
            let body = Piece::Bytes(vec![0; 2500].into());
            let sent = sender.send(&mut wire, &mut request, body).await;
            sent.unwrap();
            let lengths: Vec<u64> = wire.pushed.iter().map(|(_, length)| *length).collect();
            assert_eq!(lengths.iter().sum::<u64>(), 2500);
            assert!(lengths.iter().all(|length| *length <= 1000), "{lengths:?}");
            // The first second's share leaves at once, the third one's after two seconds.
            let (last, _) = wire.pushed.last().unwrap();
            assert!(*last >= Duration::from_secs(2), "{last:?}");
            // Bytes that wait for `limit_rate` are sent after all that was queued before them.
            assert!(*wire.started.borrow() >= 2);
            let sent = sender.send(&mut wire, &mut request, Piece::Last).await;
            sent.unwrap();
            let framing = 3 * lengths.len() as u64 + 5;
            assert_eq!(request.sent.body_bytes, 2500 + framing);
        });
    }

    /// As in nginx, which collects short pieces, the pause follows each write and not each piece.
    #[test]
    fn short_pieces_are_paced_together() {
        let text = site("limit_rate 2000;");
        let times = |buffered: Option<usize>, pieces: &'static [usize]| {
            let all = Rc::new(RefCell::new(Vec::new()));
            let told = Rc::clone(&all);
            serve(&text, "GET / HTTP/1.1", async move |mut request| {
                let mut wire = Slow::default();
                let mut sender = Sender::default();
                sender.begin(&mut wire, &mut request);
                sender.set_queued_max(buffered);
                for length in pieces {
                    let piece = match length {
                        0 => Piece::Flush,
                        _ => Piece::Bytes(vec![0; *length].into()),
                    };
                    sender.send(&mut wire, &mut request, piece).await.unwrap();
                }
                let milliseconds = wire.pushed.iter().map(|(time, _)| time.as_millis());
                told.borrow_mut().extend(milliseconds);
            });
            all.take()
        };
        // The fourth is the first behind a write, whose 1,500 bytes take 750 ms.
        let unbuffered = times(None, &[497, 497, 497, 100]);
        assert_eq!(unbuffered[..3], [0, 0, 0]);
        assert!((745..=755).contains(&unbuffered[3]), "{unbuffered:?}");
        assert_eq!(times(Some(8192), &[497, 497, 497, 100]), [0, 0, 0, 0]);
        let flushed = times(Some(8192), &[197, 0, 197]);
        assert!((95..=105).contains(&flushed[1]), "{flushed:?}");
    }

    #[test]
    fn any_wire_has_its_client_waited_for() {
        let text = site("send_timeout 7s;");
        serve(&text, "GET / HTTP/1.1", async |mut request| {
            let mut wire = Slow::default();
            let mut sender = Sender::default();
            sender.begin(&mut wire, &mut request);
            assert_eq!(wire.timeout, Duration::from_secs(7));
            let body = Piece::Bytes(vec![0; Slow::BACKLOG_MAX].into());
            // One byte of framing more than may be queued.
            wire.delay = Duration::from_secs(6);
            let began = engine::now();
            let sent = sender.send(&mut wire, &mut request, body.clone()).await;
            assert!(sent.is_ok() && engine::now() - began >= wire.delay);
            wire.delay = Duration::from_secs(8);
            let sent = sender.send(&mut wire, &mut request, body).await;
            assert!(matches!(sent, Err(Abort::TimedOut)));
            // What the client has not taken does not count.
            let given = 2 * (Slow::BACKLOG_MAX as u64 + 3);
            assert_eq!(request.sent.body_bytes, given - 1000);
        });
    }
}
