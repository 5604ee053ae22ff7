//! A connection as a byte stream: the engine's stream, with TLS over it after the handshake.
//!
//! Serves connections from clients, and connections to upstreams, where Tidegate is the client.
//! Callers push and receive plaintext; this file and [`crate::tls::session`] convert it to TLS
//! records if necessary. A connection starts unencrypted, since the PROXY protocol header and the
//! first byte are read before TLS starts, and changes to TLS at most once.
//!
//! The kernel sends files (`sendfile`) on unencrypted connections, and on TLS connections that it
//! encrypts (`ssl_conf_command Options KTLS`). The sender asks [`can_sendfile`] first; if the
//! answer is no, the sender reads the file into memory.
//!
//! [`can_sendfile`]: Transport::can_sendfile

use std::any::Any;
use std::cell::OnceCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use engine::net::{Address, Drained, Recv, Segment, Stream, TcpInfo};
use engine::{Buffer, Deadline, Pipe};
use framework::connection_handler::HandoverInfo;

use crate::tls::session::Session;
use crate::tls::upstream::ClientSession;

/// A connection: see the module's description. Methods with the names of those of [`Stream`] do the
/// same, with TLS in between.
pub struct Transport {
    stream: Stream,
    session: OnceCell<Layer>,
}

/// The TLS session between the stream and the caller.
enum Layer {
    /// Tidegate is the server.
    Server(Box<Session>),
    /// Tidegate is the client.
    Client(Box<ClientSession>),
}

impl Layer {
    fn push(&self, stream: &Stream, segment: Segment) {
        match (self, segment) {
            (Layer::Server(session), segment) => session.push(stream, segment),
            (Layer::Client(session), Segment::Bytes(bytes)) => session.push(stream, &bytes),
            // No caller pushes such a segment. If one did, aborting prevents that it is sent
            // unencrypted.
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

    /// Encrypts waiting data. A client session encrypts data when it is pushed.
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
    /// The transport of an accepted connection, with the TLS session of the connection handler that
    /// handed it over, if one did.
    pub fn of(stream: Stream, handed: Option<&mut HandoverInfo>) -> Transport {
        let transport = Transport::from(stream);
        let over = handed.and_then(|handed| handed.over.take());
        if let Some(Ok(layer)) = over.map(|over| over.downcast::<Layer>()) {
            transport.session.get_or_init(|| *layer);
        }
        transport
    }

    /// The stream and the TLS session, to be handed over to another connection handler.
    pub fn into_parts(self) -> (Stream, Option<Box<dyn Any>>) {
        let over = self.session.into_inner();
        (
            self.stream,
            over.map(|layer| Box::new(layer) as Box<dyn Any>),
        )
    }

    /// Puts plaintext back: the next receive returns it.
    pub fn put_back(&self, bytes: &[u8]) {
        self.stream.put_back(Buffer::copy_of(bytes));
    }

    /// Whether the connection uses TLS.
    pub fn is_secure(&self) -> bool {
        self.session.get().is_some()
    }

    /// The TLS session with a client, once it exists.
    pub fn session(&self) -> Option<&Session> {
        match self.session.get()? {
            Layer::Server(session) => Some(session),
            Layer::Client(_) => None,
        }
    }

    /// The TLS session with an upstream, once it exists.
    pub fn client_session(&self) -> Option<&ClientSession> {
        match self.session.get()? {
            Layer::Server(_) => None,
            Layer::Client(session) => Some(session),
        }
    }

    /// Starts a TLS session with a client over the stream. A second session is ignored.
    pub fn secure(&self, session: Box<Session>) -> Option<&Session> {
        self.session.get_or_init(|| Layer::Server(session));
        self.session()
    }

    /// Starts a TLS session with an upstream over the stream. A second session is ignored.
    pub fn secure_as_client(&self, session: Box<ClientSession>) -> Option<&ClientSession> {
        self.session.get_or_init(|| Layer::Client(session));
        self.client_session()
    }

    /// The underlying stream, for bytes that bypass the session's encryption, such as the session's
    /// own records.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// See [`Stream::recv`].
    ///
    /// # Errors
    /// Those of the stream; `InvalidData` if the received bytes are not TLS.
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

    /// Receives until the stream, or the TLS session if there is one, has data to return.
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

    /// Whether [`splice`](Self::splice) can move bytes to another connection.
    pub fn can_splice(&self, to: &Transport) -> bool {
        !self.is_secure() && !to.is_secure() && self.stream.can_splice(&to.stream)
    }

    /// See [`Stream::readable`]; only for connections that [can splice](Self::can_splice).
    ///
    /// # Errors
    /// Those of the stream.
    pub async fn readable(&self, deadline: impl Into<Deadline>) -> io::Result<()> {
        self.stream.readable(deadline).await
    }

    /// Moves received bytes to `to` through an empty pipe, without waiting for bytes and without
    /// copying them. Returns the number of bytes: 0 if none have been received, or if a connection
    /// uses TLS.
    pub async fn splice(&self, to: &Transport, pipe: &Arc<Pipe>) -> u64 {
        if self.is_secure() || to.is_secure() {
            return 0;
        }
        let length = self.stream.splice(pipe).await as u64;
        if length > 0 {
            to.stream.push(Segment::Piped {
                pipe: Arc::clone(pipe),
                length,
            });
        }
        length
    }

    /// Stops decrypting received data, because the caller drops it.
    pub fn drop_received(&self) {
        if let Some(session) = self.session() {
            session.drop_received();
        }
    }

    /// See [`Stream::push`]. Pushing a file fails the connection unless
    /// [`can_sendfile`](Transport::can_sendfile) allowed it.
    pub fn push(&self, segment: impl Into<Segment>) {
        match self.session.get() {
            None => self.stream.push(segment),
            Some(session) => session.push(&self.stream, segment.into()),
        }
    }

    /// See [`Stream::push_within`].
    pub fn push_within(&self, timeout: Duration, resets: bool, segment: impl Into<Segment>) {
        match self.session.get() {
            None => self.stream.push_within(timeout, resets, segment),
            Some(session) => {
                self.stream.set_send_timeout_and_reset(timeout, resets);
                session.push(&self.stream, segment.into());
            }
        }
    }

    /// Whether a file segment of `length` bytes may be pushed, for the kernel to send.
    pub fn can_sendfile(&self, length: u64) -> bool {
        match self.session.get() {
            None => true,
            Some(Layer::Server(session)) => session.can_sendfile(&self.stream, length),
            Some(Layer::Client(_)) => false,
        }
    }

    /// See [`Stream::start_send`].
    pub fn start_send(&self) -> usize {
        if let Some(session) = self.session.get() {
            session.seal(&self.stream);
        }
        self.stream.start_send()
    }

    /// See [`Stream::send_soon`].
    pub fn send_soon(&self) -> usize {
        if let Some(session) = self.session.get() {
            session.seal(&self.stream);
        }
        self.stream.send_soon()
    }

    /// See [`Stream::finish`]. With TLS, sends `close_notify` first.
    pub fn finish(self) {
        if let Some(session) = self.session.get() {
            session.close(&self.stream);
        }
        self.stream.finish();
    }

    /// See [`Stream::finish_quickly`]. With TLS this is [`finish`](Transport::finish), because the
    /// client still has to send its own `close_notify`.
    pub fn finish_quickly(self) {
        match self.session.get() {
            Some(_) => self.finish(),
            None => self.stream.finish_quickly(),
        }
    }

    /// Whether decrypted data of a client waits, so that receiving does not block.
    pub fn has_received(&self) -> bool {
        self.session().is_some_and(Session::has_received)
    }

    /// Sends `close_notify` over TLS (RFC 8446 section 6.1), before the connection is dropped.
    pub fn announce_end(&self) {
        if let Some(session) = self.session.get() {
            session.close(&self.stream);
            self.stream.start_send();
        }
    }

    /// See [`Stream::backlog`].
    pub fn backlog(&self) -> usize {
        let waiting = self.session.get().map_or(0, Layer::waiting);
        waiting + self.stream.backlog()
    }

    /// Whether nothing of the last pushed segment, of `length` bytes, has been sent, and nothing
    /// else waits to be sent.
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

    /// See [`Stream::set_send_timeout`].
    pub fn set_send_timeout(&self, timeout: Duration) {
        self.stream.set_send_timeout(timeout);
    }

    /// See [`Stream::set_send_timeout_and_reset`].
    pub fn set_send_timeout_and_reset(&self, timeout: Duration, resets: bool) {
        self.stream.set_send_timeout_and_reset(timeout, resets);
    }

    /// See [`Stream::set_sendfile_chunk`].
    pub fn set_sendfile_chunk(&self, bytes: usize) {
        self.stream.set_sendfile_chunk(bytes);
    }

    /// See [`Stream::set_nopush`].
    pub fn set_nopush(&self, on: bool) {
        self.stream.set_nopush(on);
    }

    /// See [`Stream::peer`].
    pub fn peer(&self) -> Address {
        self.stream.peer()
    }

    /// See [`Stream::local`].
    pub fn local(&self) -> Address {
        self.stream.local()
    }

    /// See [`Stream::shutdown_write`]. With TLS, sends `close_notify` first.
    pub fn shutdown_write(&self) {
        if let Some(session) = self.session.get() {
            session.close(&self.stream);
        }
        self.stream.shutdown_write();
    }

    /// See [`Stream::shutdown_read`].
    pub fn shutdown_read(&self) {
        self.stream.shutdown_read();
    }

    /// See [`Stream::shutdown`].
    pub fn shutdown(&self) {
        self.stream.shutdown();
    }

    /// See [`Stream::set_reset_on_drop`].
    pub fn set_reset_on_drop(&self) {
        self.stream.set_reset_on_drop();
    }

    /// See [`Stream::receives_ahead`].
    pub fn receives_ahead(&self) -> bool {
        self.stream.receives_ahead()
    }

    /// See [`Stream::set_nodelay`].
    pub fn set_nodelay(&self, on: bool) {
        self.stream.set_nodelay(on);
    }

    /// See [`Stream::tcp_info`].
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        self.stream.tcp_info()
    }
}

/// The future of [`Transport::recv`]. Cancel-safe, like the stream's own.
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
