//! A connection as bytes: the engine's stream, and TLS over it once hands are shaken.
//!
//! Of clients, and to upstreams, where we are the client. What is pushed here is the other end's to
//! read, what is received is what it meant; whether records lie in between is this file's business
//! and [`crate::tls::session`]'s. A connection begins plain (a PROXY header and the first byte are
//! read so) and becomes secure once.
//!
//! Files are sent by the kernel on plain connections, and where it seals for a client
//! (`ssl_conf_command Options KTLS`): the sender asks [`can_sendfile`] first and reads them into
//! memory where it says no.
//!
//! [`can_sendfile`]: Transport::can_sendfile

use std::any::Any;
use std::cell::OnceCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use engine::net::{Address, Drained, Recv, Segment, Stream, TcpInfo};
use engine::{Buffer, Deadline};
use framework::door::Handed;

use crate::tls::session::Session;
use crate::tls::upstream::ClientSession;

/// A connection; see the module. Its methods are those of [`Stream`].
pub struct Transport {
    stream: Stream,
    session: OnceCell<Layer>,
}

/// TLS between the stream and its user.
enum Layer {
    /// We are the server.
    Server(Box<Session>),
    /// We are the client.
    Client(Box<ClientSession>),
}

impl Layer {
    fn push(&self, stream: &Stream, segment: Segment) {
        match (self, segment) {
            (Layer::Server(session), segment) => session.push(stream, segment),
            (Layer::Client(session), Segment::Bytes(bytes)) => session.push(stream, &bytes),
            // Nobody does so; if somebody did, nothing would leave in the clear.
            (Layer::Client(_), _) => stream.abort(),
        }
    }

    fn feed(&self, stream: &Stream, buffer: Buffer) {
        match self {
            Layer::Server(session) => session.feed(stream, buffer),
            Layer::Client(session) => session.feed(stream, &buffer),
        }
    }

    fn take_received(&self) -> Option<io::Result<Buffer>> {
        match self {
            Layer::Server(session) => session.take_received(),
            Layer::Client(session) => session.take_received(),
        }
    }

    /// What was pushed as a client is sealed already.
    fn seal(&self, stream: &Stream) {
        if let Layer::Server(session) = self {
            session.seal(stream);
        }
    }

    fn waiting(&self) -> usize {
        match self {
            Layer::Server(session) => session.waiting(),
            Layer::Client(_) => 0,
        }
    }

    fn close(&self, stream: &Stream) {
        match self {
            Layer::Server(session) => session.close(stream),
            Layer::Client(session) => session.close(stream),
        }
    }
}

impl From<Stream> for Transport {
    fn from(stream: Stream) -> Transport {
        Transport {
            stream,
            session: OnceCell::new(),
        }
    }
}

impl Transport {
    /// The transport of an accepted connection, with the TLS session of the door that handed it
    /// over, if one did.
    pub fn of(stream: Stream, handed: Option<&mut Handed>) -> Transport {
        let transport = Transport::from(stream);
        let over = handed.and_then(|handed| handed.over.take());
        if let Some(Ok(layer)) = over.map(|over| over.downcast::<Layer>()) {
            transport.session.get_or_init(|| *layer);
        }
        transport
    }

    /// Its parts, to be handed over to another door.
    pub fn into_parts(self) -> (Stream, Option<Box<dyn Any>>) {
        let over = self.session.into_inner();
        (
            self.stream,
            over.map(|layer| Box::new(layer) as Box<dyn Any>),
        )
    }

    /// Has the next receive give what was received in the clear already.
    pub fn put_back(&self, bytes: &[u8]) {
        self.stream.put_back(Buffer::copy_of(bytes));
    }

    /// Whether the other end speaks TLS.
    pub fn is_secure(&self) -> bool {
        self.session.get().is_some()
    }

    /// The TLS session with a client, once there is one.
    pub fn session(&self) -> Option<&Session> {
        match self.session.get()? {
            Layer::Server(session) => Some(session),
            Layer::Client(_) => None,
        }
    }

    /// The TLS session with an upstream, once there is one.
    pub fn client_session(&self) -> Option<&ClientSession> {
        match self.session.get()? {
            Layer::Server(_) => None,
            Layer::Client(session) => Some(session),
        }
    }

    /// Puts a session with a client over the stream. The first one stays.
    pub fn secure(&self, session: Box<Session>) -> Option<&Session> {
        self.session.get_or_init(|| Layer::Server(session));
        self.session()
    }

    /// Puts a session with an upstream over the stream. The first one stays.
    pub fn secure_as_client(&self, session: Box<ClientSession>) -> Option<&ClientSession> {
        self.session.get_or_init(|| Layer::Client(session));
        self.client_session()
    }

    /// The stream underneath, for what the session itself sends.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// See [`Stream::recv`].
    ///
    /// # Errors
    /// Those of the stream; `InvalidData` where what came is no TLS.
    pub fn recv(&self, deadline: impl Into<Deadline>) -> Receive<'_> {
        Receive {
            transport: self,
            receiving: self.stream.recv(deadline),
        }
    }

    /// See [`Stream::recv_idle`].
    ///
    /// # Errors
    /// As [`Transport::recv`].
    pub fn recv_idle(&self, deadline: Deadline) -> Receive<'_> {
        Receive {
            transport: self,
            receiving: self.stream.recv_idle(deadline),
        }
    }

    /// See [`Stream::poll_recv`].
    ///
    /// # Errors
    /// As [`Transport::recv`].
    pub fn poll_recv(
        &self,
        deadline: Option<Instant>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Buffer>> {
        self.poll_opened(|| self.stream.poll_recv(deadline, context))
    }

    /// Receives until the session has something to give, where there is one.
    fn poll_opened(
        &self,
        mut receive: impl FnMut() -> Poll<io::Result<Buffer>>,
    ) -> Poll<io::Result<Buffer>> {
        loop {
            if let Some(session) = self.session.get()
                && let Some(received) = session.take_received()
            {
                return Poll::Ready(received);
            }
            let received = std::task::ready!(receive());
            let Some(session) = self.session.get() else {
                return Poll::Ready(received);
            };
            session.feed(&self.stream, received?);
        }
    }

    /// Has what is received from now on not opened, as it will be dropped.
    pub fn drop_received(&self) {
        if let Some(session) = self.session() {
            session.drop_received();
        }
    }

    /// See [`Stream::push`]. A file must only be given to a connection that takes it, which fails
    /// else.
    pub fn push(&self, segment: impl Into<Segment>) {
        match self.session.get() {
            None => self.stream.push(segment),
            Some(session) => session.push(&self.stream, segment.into()),
        }
    }

    /// Does what [`Stream::push_within`] says.
    pub fn push_within(&self, timeout: Duration, resets: bool, segment: impl Into<Segment>) {
        match self.session.get() {
            None => self.stream.push_within(timeout, resets, segment),
            Some(session) => {
                self.stream.set_send_timeout_and_reset(timeout, resets);
                session.push(&self.stream, segment.into());
            }
        }
    }

    /// Whether a stretch of a file of so many bytes may be pushed as it is.
    pub fn can_sendfile(&self, length: u64) -> bool {
        match self.session.get() {
            None => true,
            Some(Layer::Server(session)) => session.can_sendfile(&self.stream, length),
            Some(Layer::Client(_)) => false,
        }
    }

    /// Does what [`Stream::start_send`] says.
    pub fn start_send(&self) -> usize {
        if let Some(session) = self.session.get() {
            session.seal(&self.stream);
        }
        self.stream.start_send()
    }

    /// Does what [`Stream::send_soon`] says.
    pub fn send_soon(&self) -> usize {
        if let Some(session) = self.session.get() {
            session.seal(&self.stream);
        }
        self.stream.send_soon()
    }

    /// See [`Stream::finish`]. The other end is told that nothing more follows.
    pub fn finish(self) {
        if let Some(session) = self.session.get() {
            session.close(&self.stream);
        }
        self.stream.finish();
    }

    /// See [`Stream::finish_quickly`]. The end of a session is told by both sides, so with TLS the
    /// client is never done.
    pub fn finish_quickly(self) {
        match self.session.get() {
            Some(_) => self.finish(),
            None => self.stream.finish_quickly(),
        }
    }

    /// Whether a client's record has been opened that nobody has taken, so that receiving does not
    /// wait.
    pub fn has_received(&self) -> bool {
        self.session().is_some_and(Session::has_received)
    }

    /// Tells the other end over TLS that nothing more follows (RFC 8446 section 6.1), before the
    /// connection is dropped.
    pub fn announce_end(&self) {
        if let Some(session) = self.session.get() {
            session.close(&self.stream);
            self.stream.start_send();
        }
    }

    /// Does what [`Stream::backlog`] says.
    pub fn backlog(&self) -> usize {
        let waiting = self.session.get().map_or(0, Layer::waiting);
        waiting + self.stream.backlog()
    }

    /// Whether nothing has left of what was pushed last, if that was `length` bytes.
    pub fn has_unsent(&self, length: u64) -> bool {
        match self.session() {
            Some(session) if !session.is_in_kernel() => session.waiting() as u64 == length,
            _ => self.stream.backlog() as u64 == length,
        }
    }

    /// See [`Stream::drained`].
    ///
    /// # Errors
    /// Those of the stream.
    pub fn drained(&self, limit: usize) -> Drained<'_> {
        if let Some(session) = self.session.get() {
            session.seal(&self.stream);
        }
        self.stream.drained(limit)
    }

    /// See [`Stream::poll_drained`].
    ///
    /// # Errors
    /// Those of the stream.
    pub fn poll_drained(&self, limit: usize, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(session) = self.session.get() {
            session.seal(&self.stream);
        }
        self.stream.poll_drained(limit, context)
    }

    /// Does what [`Stream::set_send_timeout`] says.
    pub fn set_send_timeout(&self, timeout: Duration) {
        self.stream.set_send_timeout(timeout);
    }

    /// Does what [`Stream::set_send_timeout_and_reset`] says.
    pub fn set_send_timeout_and_reset(&self, timeout: Duration, resets: bool) {
        self.stream.set_send_timeout_and_reset(timeout, resets);
    }

    /// Does what [`Stream::set_sendfile_chunk`] says.
    pub fn set_sendfile_chunk(&self, bytes: usize) {
        self.stream.set_sendfile_chunk(bytes);
    }

    /// Does what [`Stream::set_nopush`] says.
    pub fn set_nopush(&self, on: bool) {
        self.stream.set_nopush(on);
    }

    /// Does what [`Stream::peer`] says.
    pub fn peer(&self) -> Address {
        self.stream.peer()
    }

    /// Does what [`Stream::local`] says.
    pub fn local(&self) -> Address {
        self.stream.local()
    }

    /// See [`Stream::shutdown_write`]. The other end is told that nothing more follows.
    pub fn shutdown_write(&self) {
        if let Some(session) = self.session.get() {
            session.close(&self.stream);
        }
        self.stream.shutdown_write();
    }

    /// Does what [`Stream::shutdown_read`] says.
    pub fn shutdown_read(&self) {
        self.stream.shutdown_read();
    }

    /// Does what [`Stream::shutdown`] says.
    pub fn shutdown(&self) {
        self.stream.shutdown();
    }

    /// Does what [`Stream::reset_when_dropped`] says.
    pub fn reset_when_dropped(&self) {
        self.stream.reset_when_dropped();
    }

    /// Does what [`Stream::set_nodelay`] says.
    pub fn set_nodelay(&self, on: bool) {
        self.stream.set_nodelay(on);
    }

    /// Does what [`Stream::tcp_info`] says.
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        self.stream.tcp_info()
    }
}

/// The future of [`Transport::recv`]. Cancel-safe, as the stream's own.
#[must_use = "futures do nothing unless awaited"]
pub struct Receive<'a> {
    transport: &'a Transport,
    receiving: Recv<'a>,
}

impl Future for Receive<'_> {
    type Output = io::Result<Buffer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<Buffer>> {
        let Receive {
            transport,
            receiving,
        } = &mut *self;
        transport.poll_opened(|| Pin::new(&mut *receiving).poll(context))
    }
}
