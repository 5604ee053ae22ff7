//! A connected stream socket as its owner sees it; the work is done in `table.rs`.

use std::future::Future;
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
use crate::worker::{enter, try_enter};

/// A connected stream socket. Dropping it closes the connection and forgets what was not yet sent;
/// [`finish`](Self::finish) sends it first.
#[derive(Debug)]
pub struct Stream {
    key: Key,
    /// Not `Send`: the key is of this thread's table.
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

    /// Receives what the peer has sent, as soon as there is something. An empty buffer is the end
    /// of input.
    ///
    /// Cancel-safe: what arrives after the future was dropped is there for the next one. While it
    /// waits, the stream holds no buffer.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`, after which the stream is as before; `ECONNRESET` and the like for
    /// good.
    #[inline]
    pub fn recv(&self, deadline: impl Into<Deadline>) -> Recv<'_> {
        Recv {
            stream: self,
            deadline: deadline.into(),
            idle: false,
            waiting: false,
        }
    }

    /// Like [`recv`](Self::recv), while a request head or an idle byte is awaited: the engine may
    /// then arrange to receive again and again by itself.
    #[inline]
    pub fn recv_idle(&self, deadline: impl Into<Deadline>) -> Recv<'_> {
        Recv {
            stream: self,
            deadline: deadline.into(),
            idle: true,
            waiting: false,
        }
    }

    /// One look at what [`recv`](Self::recv) waits for, for a caller that keeps no future: the task
    /// is woken when there is more to see, until the next look or the end of the stream.
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

    /// Has the next receive give bytes that were received already, for another part of the program
    /// that reads the connection from its beginning.
    pub fn put_back(&self, buffer: Buffer) {
        enter(|worker| worker.put_back(self.key, buffer));
    }

    /// Appends to what is to be sent. No system call. After a send error, or
    /// [`shutdown_write`](Self::shutdown_write), it is dropped.
    pub fn push(&self, segment: impl Into<Segment>) {
        let segment = segment.into();
        enter(|worker| worker.push(self.key, segment));
    }

    /// Gives everything that was pushed to the kernel in as few calls as possible. Never waits: the
    /// rest goes on by itself as the socket drains. How many bytes that rest has is returned.
    pub fn start_send(&self) -> usize {
        let rest = enter(|worker| {
            worker.start_send(self.key);
            worker.backlog(self.key)
        });
        usize::try_from(rest).unwrap_or(usize::MAX)
    }

    /// Like [`start_send`](Self::start_send), at the end of this turn of the loop: for answers, of
    /// which a turn has many. How many bytes have not left is returned; they may be all.
    pub fn send_soon(&self) -> usize {
        let rest = enter(|worker| {
            worker.send_soon(self.key);
            worker.backlog(self.key)
        });
        usize::try_from(rest).unwrap_or(usize::MAX)
    }

    /// Sends what was pushed, then closes. The engine sees to it; the send timeout ends it.
    pub fn finish(self) {
        let stream = ManuallyDrop::new(self);
        enter(|worker| worker.finish(stream.key, false));
    }

    /// Like [`finish`](Self::finish), for a peer that has said that it sends nothing more: the end
    /// leaves in the packet of the last bytes and costs no call of its own. A peer that sends more
    /// nevertheless may lose what was sent to it.
    pub fn finish_quickly(self) {
        let stream = ManuallyDrop::new(self);
        enter(|worker| worker.finish(stream.key, true));
    }

    /// Bytes that were pushed and not yet taken by the kernel.
    #[must_use]
    pub fn backlog(&self) -> usize {
        usize::try_from(enter(|worker| worker.backlog(self.key))).unwrap_or(usize::MAX)
    }

    /// Starts sending and waits until at most `limit` bytes are left to send. Cancel-safe.
    ///
    /// # Errors
    /// `TimedOut` when the peer has taken nothing for the send timeout; `UnexpectedEof` when a file
    /// was shorter than its segment said; `EPIPE`, `ECONNRESET` and the like. Except for
    /// `TimedOut`, later calls return the same.
    pub fn drained(&self, limit: usize) -> Drained<'_> {
        Drained {
            stream: self,
            limit: limit as u64,
            waiting: false,
        }
    }

    /// One look at what [`drained`](Self::drained) waits for, for a caller that keeps no future:
    /// the task is woken when there is more to see, until the next look or the end of the stream.
    ///
    /// # Errors
    /// As [`drained`](Self::drained).
    pub fn poll_drained(&self, limit: usize, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = enter(|worker| worker.poll_drained(self.key, limit as u64, context.waker()));
        spent(result, context)
    }

    /// Sets how long the peer may read nothing before [`drained`](Self::drained) and
    /// [`finish`](Self::finish) give up. The default is 60 s.
    pub fn set_send_timeout(&self, timeout: Duration) {
        enter(|worker| worker.set_send_timeout(self.key, timeout, None));
    }

    /// Like [`set_send_timeout`](Self::set_send_timeout), and sets whether such a connection is
    /// then closed with a reset. By default it is not.
    pub fn set_send_timeout_and_reset(&self, timeout: Duration, resets: bool) {
        enter(|worker| worker.set_send_timeout(self.key, timeout, Some(resets)));
    }

    /// [`set_send_timeout_and_reset`](Self::set_send_timeout_and_reset) and [`push`](Self::push) at
    /// once.
    pub fn push_within(&self, timeout: Duration, resets: bool, segment: impl Into<Segment>) {
        let segment = segment.into();
        enter(|worker| {
            worker.set_send_timeout(self.key, timeout, Some(resets));
            worker.push(self.key, segment);
        });
    }

    /// How many bytes of files are sent in one turn of the loop. 2 MiB at first.
    pub fn set_sendfile_chunk(&self, bytes: usize) {
        enter(|worker| worker.set_chunk(self.key, bytes));
    }

    /// Bytes that the kernel has taken since the stream began.
    #[must_use]
    pub fn sent(&self) -> u64 {
        enter(|worker| worker.streams.get(self.key).map_or(0, |state| state.sent))
    }

    /// The address of the other end. Asked when it is first needed.
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

    /// The address of this end. Asked when it is first needed.
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

    /// Ends this direction once what was pushed is sent. Receiving goes on.
    pub fn shutdown_write(&self) {
        enter(|worker| worker.shutdown_write(self.key));
    }

    /// Receives no more: a receive that waits, and every later one, gives the end of input.
    pub fn shutdown_read(&self) {
        self.control(Control::ShutdownRead);
    }

    /// Ends both directions for whoever waits on the stream. What the kernel has of what was sent
    /// still reaches the peer.
    pub fn shutdown(&self) {
        self.control(Control::ShutdownBoth);
    }

    /// Like [`shutdown`](Self::shutdown), and dropping the stream closes the connection with a
    /// reset.
    pub fn abort(&self) {
        self.control(Control::ResetOnClose);
        self.control(Control::ShutdownBoth);
    }

    /// Lets it end with a reset when it is dropped: the peer sees that it was not served to the
    /// end.
    pub fn reset_when_dropped(&self) {
        self.control(Control::ResetOnClose);
    }

    fn control(&self, control: Control) {
        enter(|worker| {
            // It fails only when the connection is gone, which the next receive tells.
            let _ = worker.engine.control(self.key, control);
        });
    }

    /// Closes at once with a reset; what was not yet sent or not yet read by the peer is lost.
    pub fn reset(self) {
        enter(|worker| {
            // If it fails, the connection has been reset by the peer already.
            let _ = worker.engine.control(self.key, Control::ResetOnClose);
        });
    }

    /// Makes the stream take [`Segment::Keys`], by which the kernel seals what is sent behind them.
    /// Until then nothing changes.
    ///
    /// # Errors
    /// Where the kernel cannot, or the connection has ended on one side, or it is no TCP.
    pub fn prepare_kernel_tls(&self) -> io::Result<()> {
        enter(|worker| worker.engine.control(self.key, Control::KernelTls))
    }

    /// `TCP_NODELAY`. Costs nothing when it is that way already.
    pub fn set_nodelay(&self, on: bool) {
        enter(|worker| worker.set_nodelay(self.key, on));
    }

    /// Whether files, and what stands before them, leave in full segments, whatever calls they are
    /// sent by; the last one leaves at once. Off at first: then what stands before a large file
    /// leaves at once, too.
    pub fn set_nopush(&self, on: bool) {
        enter(|worker| worker.set_nopush(self.key, on));
    }

    /// What the engine knows of the connection, as the kernel does by `TCP_INFO`; `None` where it
    /// is no TCP.
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

/// The future of [`Stream::recv`]. Once it has received something it may be polled for what comes
/// next.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Recv<'a> {
    stream: &'a Stream,
    deadline: Deadline,
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

/// What is pushed leaves, whatever the share of the task's turn: its end alone is part of that.
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
