//! The owner's handle of a connected stream socket. `table.rs` implements the operations.

use std::future::{Future, poll_fn};
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use base::slab::Key;

use super::table::Addresses;
use super::{Address, Segment, TcpInfo};
use crate::budget;
use crate::buffer::Buffer;
use crate::clock::Deadline;
use crate::engine::Control;
use crate::pipe::Pipe;
use crate::worker::{enter, try_enter};

/// Operations of the budget that a splice counts as.
const SPLICE_COST: u32 = 4;

/// A connected stream socket. Dropping it closes the connection and discards unsent data;
/// [`finish`](Self::finish) sends that data first.
#[derive(Debug)]
pub struct Stream {
    key: Key,
    /// Not `Send`: the key belongs to this thread's table.
    _local: PhantomData<*const ()>,
}

impl Stream {
    pub(crate) fn new(key: Key) -> Stream {
        Stream {
            key,
            _local: PhantomData,
        }
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Waits for data from the peer. An empty buffer is the end of input.
    ///
    /// Cancel-safe: data that arrives after the future was dropped is returned by the next receive.
    /// While the future waits, the stream holds no buffer.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`, after which the stream is still usable; `ECONNRESET` and similar
    /// errors are permanent.
    #[inline]
    pub fn recv(&self, deadline: impl Into<Deadline>) -> Recv<'_> {
        Recv {
            stream: self,
            deadline: deadline.into(),
            idle: false,
            waiting: false,
        }
    }

    /// Like [`recv`](Self::recv), for when a request head or the first byte on an idle connection
    /// is awaited: the engine may then receive repeatedly on its own.
    #[inline]
    pub fn recv_idle(&self, deadline: impl Into<Deadline>) -> Recv<'_> {
        Recv {
            stream: self,
            deadline: deadline.into(),
            idle: true,
            waiting: false,
        }
    }

    /// Polls for data like [`recv`](Self::recv), for a caller that keeps no future. The task stays
    /// registered for a wake-up until the next poll or the end of the stream.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn poll_recv(
        &self,
        deadline: Option<Instant>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Buffer>> {
        if budget::is_used_up(context) {
            return Poll::Pending;
        }
        let deadline = deadline.into();
        let result = enter(|worker| worker.poll_recv(self.key, deadline, false, context.waker()));
        if result.is_ready() {
            budget::spend();
        }
        result
    }

    /// Moves bytes that the kernel has received into an empty pipe, without waiting for any, and
    /// returns their number; they are then to be sent as [`Segment::Piped`]. Returns 0 if no bytes
    /// were received, if the engine cannot splice, at the end of input, and after an error; the
    /// next receive reports the last two.
    pub async fn splice(&self, pipe: &Pipe) -> usize {
        // One call moves as much as several receives.
        for _ in 0..SPLICE_COST {
            budget::take().await;
        }
        enter(|worker| worker.splice(self.key, pipe))
    }

    /// Waits until a [`splice`](Self::splice) may move bytes or a receive may return, without
    /// receiving. Cancel-safe.
    ///
    /// # Errors
    /// `TimedOut` at the deadline. Other errors of the stream end the wait, and the next receive
    /// returns them.
    pub async fn readable(&self, deadline: impl Into<Deadline>) -> io::Result<()> {
        let deadline = deadline.into();
        let mut is_waiting = false;
        poll_fn(|context| {
            enter(|worker| {
                worker.poll_readable(self.key, deadline, &mut is_waiting, context.waker())
            })
        })
        .await
    }

    /// Whether [`splice`](Self::splice) can move bytes to another stream: only between two kernel
    /// sockets.
    #[must_use]
    pub fn can_splice(&self, to: &Stream) -> bool {
        let has_socket = |key| enter(|worker| worker.engine.descriptor(key).is_some());
        has_socket(self.key) && has_socket(to.key)
    }

    /// Puts received bytes back, so that the next receive returns them: for a caller that has
    /// looked at the first bytes and passes the connection to code that reads it from its
    /// beginning.
    pub fn put_back(&self, buffer: Buffer) {
        enter(|worker| worker.put_back(self.key, buffer));
    }

    /// Queues a segment, without a system call. After a send error, or
    /// [`shutdown_write`](Self::shutdown_write), the segment is dropped.
    pub fn push(&self, segment: impl Into<Segment>) {
        let segment = segment.into();
        enter(|worker| worker.push(self.key, segment));
    }

    /// Passes all queued segments to the kernel in as few calls as possible. Never waits: the
    /// remainder is sent automatically as the socket drains. Returns the remainder in bytes.
    pub fn start_send(&self) -> usize {
        let rest = enter(|worker| {
            worker.start_send(self.key);
            worker.backlog(self.key)
        });
        usize::try_from(rest).unwrap_or(usize::MAX)
    }

    /// Like [`start_send`](Self::start_send), but at the end of this turn of the loop: for
    /// responses, of which one turn has many. Returns the number of unsent bytes, possibly all.
    pub fn send_soon(&self) -> usize {
        let rest = enter(|worker| {
            worker.send_soon(self.key);
            worker.backlog(self.key)
        });
        usize::try_from(rest).unwrap_or(usize::MAX)
    }

    /// Sends the queued segments, then closes the connection. The engine completes this in the
    /// background; the send timeout limits it.
    pub fn finish(self) {
        let stream = ManuallyDrop::new(self);
        enter(|worker| worker.finish(stream.key, false));
    }

    /// Like [`finish`](Self::finish), for a peer that has announced that it sends nothing more: the
    /// FIN leaves in the packet of the last bytes and needs no call of its own. If the peer sends
    /// more nevertheless, it may lose data that was sent to it.
    pub fn finish_quickly(self) {
        let stream = ManuallyDrop::new(self);
        enter(|worker| worker.finish(stream.key, true));
    }

    /// The number of queued bytes that the kernel has not taken yet.
    #[must_use]
    pub fn backlog(&self) -> usize {
        usize::try_from(enter(|worker| worker.backlog(self.key))).unwrap_or(usize::MAX)
    }

    /// Starts sending and waits until at most `limit` bytes are unsent. Cancel-safe.
    ///
    /// # Errors
    /// `TimedOut` if the peer has read nothing for the send timeout; `UnexpectedEof` if a file was
    /// shorter than its segment; `EPIPE`, `ECONNRESET` and similar errors. All but `TimedOut` are
    /// permanent.
    pub fn drained(&self, limit: usize) -> Drained<'_> {
        Drained {
            stream: self,
            limit: limit as u64,
            waiting: false,
        }
    }

    /// Polls like [`drained`](Self::drained), for a caller that keeps no future. The task stays
    /// registered for a wake-up until the next poll or the end of the stream.
    ///
    /// # Errors
    /// As [`drained`](Self::drained).
    pub fn poll_drained(&self, limit: usize, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = enter(|worker| worker.poll_drained(self.key, limit as u64, context.waker()));
        spent(result, context)
    }

    /// Sets the send timeout: how long the peer may read nothing before [`drained`](Self::drained)
    /// and [`finish`](Self::finish) give up. The default is 60 s.
    pub fn set_send_timeout(&self, timeout: Duration) {
        enter(|worker| worker.set_send_timeout(self.key, timeout, None));
    }

    /// Like [`set_send_timeout`](Self::set_send_timeout), and sets whether a timed-out connection
    /// is closed with a reset. By default it is not.
    pub fn set_send_timeout_and_reset(&self, timeout: Duration, resets: bool) {
        enter(|worker| worker.set_send_timeout(self.key, timeout, Some(resets)));
    }

    /// [`set_send_timeout_and_reset`](Self::set_send_timeout_and_reset) and [`push`](Self::push) in
    /// one call.
    pub fn push_within(&self, timeout: Duration, resets: bool, segment: impl Into<Segment>) {
        let segment = segment.into();
        enter(|worker| {
            worker.set_send_timeout(self.key, timeout, Some(resets));
            worker.push(self.key, segment);
        });
    }

    /// Sets how many bytes of files are sent in one turn of the loop. The default is 2 MiB.
    pub fn set_sendfile_chunk(&self, bytes: usize) {
        enter(|worker| worker.set_chunk(self.key, bytes));
    }

    /// Bytes that the kernel has taken since the stream was created.
    #[must_use]
    pub fn sent(&self) -> u64 {
        enter(|worker| worker.streams.get(self.key).map_or(0, |state| state.sent))
    }

    /// The peer's address. Queried when it is first needed.
    #[must_use]
    pub fn peer(&self) -> Address {
        enter(|worker| {
            let unknown = || Address::Unix(PathBuf::new());
            let Some(state) = worker.streams.get_mut(self.key) else {
                return unknown();
            };
            if let Some(peer) = state.peer {
                return Address::Inet(peer.into());
            }
            let addresses: &mut Addresses = state.addresses.get_or_insert_default();
            let known = addresses
                .peer
                .get_or_insert_with(|| worker.engine.peer(self.key).unwrap_or_else(|_| unknown()));
            known.clone()
        })
    }

    /// The local address. Queried when it is first needed.
    #[must_use]
    pub fn local(&self) -> Address {
        enter(|worker| {
            let unknown = || Address::Unix(PathBuf::new());
            let Some(state) = worker.streams.get_mut(self.key) else {
                return unknown();
            };
            let addresses: &mut Addresses = state.addresses.get_or_insert_default();
            let known = addresses
                .local
                .get_or_insert_with(|| worker.engine.local(self.key).unwrap_or_else(|_| unknown()));
            known.clone()
        })
    }

    /// Shuts down the sending side once the queued segments have been sent. Receiving continues.
    pub fn shutdown_write(&self) {
        enter(|worker| worker.shutdown_write(self.key));
    }

    /// Shuts down the receiving side: a waiting receive, and every later one, returns the end of
    /// input.
    pub fn shutdown_read(&self) {
        self.control(Control::ShutdownRead);
    }

    /// Shuts down both sides, which ends all operations that wait on the stream. Data that the
    /// kernel has taken still reaches the peer.
    pub fn shutdown(&self) {
        self.control(Control::ShutdownBoth);
    }

    /// Like [`shutdown`](Self::shutdown), but dropping the stream then closes the connection with a
    /// reset.
    pub fn abort(&self) {
        self.control(Control::ResetOnClose);
        self.control(Control::ShutdownBoth);
    }

    /// Makes dropping the stream close the connection with a reset, so that the peer can tell that
    /// its response is incomplete.
    pub fn set_reset_on_drop(&self) {
        self.control(Control::ResetOnClose);
    }

    fn control(&self, control: Control) {
        enter(|worker| {
            // This fails only if the connection is gone, which the next receive reports.
            let _ = worker.engine.control(self.key, control);
        });
    }

    /// Closes at once with a reset; data not yet sent, or not yet read by the peer, is lost.
    pub fn reset(self) {
        enter(|worker| {
            // This fails only if the peer has reset the connection already.
            let _ = worker.engine.control(self.key, Control::ResetOnClose);
        });
    }

    /// Enables kernel TLS, so that the stream accepts [`Segment::Keys`]. The kernel encrypts the
    /// data after that segment, and sends the data before it unencrypted.
    ///
    /// # Errors
    /// If the kernel does not support it, one side has closed the connection, or it is not TCP.
    pub fn prepare_kernel_tls(&self) -> io::Result<()> {
        enter(|worker| worker.engine.control(self.key, Control::KernelTls))
    }

    /// Whether everything that can be received in this turn had arrived when the turn began.
    #[must_use]
    pub fn receives_ahead(&self) -> bool {
        enter(|worker| worker.engine.receives_ahead(self.key))
    }

    /// Sets `TCP_NODELAY`. Costs nothing if the value does not change.
    pub fn set_nodelay(&self, on: bool) {
        enter(|worker| worker.set_nodelay(self.key, on));
    }

    /// Sets whether files, and the segments before them, leave in full TCP segments, even across
    /// system calls; the last TCP segment leaves at once. Off by default: then the segments before
    /// a large file leave at once, too.
    pub fn set_nopush(&self, on: bool) {
        enter(|worker| worker.set_nopush(self.key, on));
    }

    /// TCP statistics from the engine, like the kernel's `TCP_INFO`; `None` if the connection is
    /// not TCP.
    #[must_use]
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        enter(|worker| worker.engine.info(self.key))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        try_enter(|worker| worker.drop_stream(self.key));
    }
}

/// The future of [`Stream::recv`]. After it has received data it may be polled again for more.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Recv<'a> {
    stream: &'a Stream,
    deadline: Deadline,
    /// Whether the engine may receive repeatedly: see [`Stream::recv_idle`].
    idle: bool,
    waiting: bool,
}

impl Future for Recv<'_> {
    type Output = io::Result<Buffer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if budget::is_used_up(context) {
            return Poll::Pending;
        }
        let (key, deadline, idle) = (self.stream.key, self.deadline, self.idle);
        let result = enter(|worker| worker.poll_recv(key, deadline, idle, context.waker()));
        self.waiting = result.is_pending();
        if !self.waiting {
            budget::spend();
        }
        result
    }
}

impl Drop for Recv<'_> {
    fn drop(&mut self) {
        if self.waiting {
            try_enter(|worker| worker.forget_reader(self.stream.key));
        }
    }
}

/// The future of [`Stream::drained`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Drained<'a> {
    stream: &'a Stream,
    limit: u64,
    waiting: bool,
}

impl Future for Drained<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (key, limit) = (self.stream.key, self.limit);
        let result = enter(|worker| worker.poll_drained(key, limit, context.waker()));
        self.waiting = result.is_pending();
        spent(result, context)
    }
}

/// Charges a completed wait for the send queue to the task's budget. The sending itself is not
/// limited by the budget.
fn spent(drained: Poll<io::Result<()>>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
    if matches!(drained, Poll::Ready(Ok(()))) {
        if budget::is_used_up(context) {
            return Poll::Pending;
        }
        budget::spend();
    }
    drained
}

impl Drop for Drained<'_> {
    fn drop(&mut self) {
        if self.waiting {
            try_enter(|worker| worker.forget_writer(self.stream.key));
        }
    }
}
