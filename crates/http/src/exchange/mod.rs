//! One request and its response, over any protocol.
//!
//! Code that uses an exchange sees no `Connection` header, no chunked framing and no socket: a
//! handler reads the bytes of the request's body, and writes a head and pieces of a body. The
//! protocols are variants of an enum: [HTTP/1](crate::h1), [HTTP/2](crate::http2). The exchange of
//! a background subrequest, which has no client, discards the response. The exchange of an included
//! subrequest writes to the [place](crate::subrequest::included) of the include. Tests of handlers
//! use an exchange in memory.

pub mod abort;
pub mod duplex;
pub mod fields;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod pipe;
pub mod sender;
pub mod upload;

use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::Buffer;
use proto::h1::Version;
use proto::method::Method;

use crate::exchange::abort::Abort;
use crate::exchange::duplex::Upgraded;
use crate::exchange::pipe::Writer;
use crate::exchange::sender::{Sender, Wire};
use crate::exchange::upload::Upload;
use crate::h1::exchange::H1;
use crate::http2::exchange::H2;
use crate::request::Request;
use crate::response::chain::Encoder;
use crate::response::piece::{Piece, READ_SIZE};
use crate::response::{Field, last_modified};

/// Number of bytes of a body that are encoded before the task yields to other connections. Without
/// a limit, a file in the page cache and a fast client would never make the task yield.
const ENCODED_MAX: u64 = 32 * 1024;

/// How long an encoder may hold back input to encode it together with later input. Data that an
/// upstream sends at once arrives in less time.
const ENCODER_PATIENCE: Duration = Duration::from_millis(1);

enum Protocol {
    H1(H1),
    H2(Box<H2>),
    Ahead(Writer),
    /// The exchange of a background subrequest, which has no client.
    Sink,
    #[cfg(any(test, feature = "testing"))]
    Memory(memory::Stream),
}

/// One request and its response; see the module documentation.
pub struct Exchange {
    protocol: Protocol,
    sender: Sender,
    encoder: Option<Box<dyn Encoder>>,
    /// The time since which the encoder has been holding back data.
    encoder_holds_since: Option<Instant>,
    /// Whether the response is prepared even if the client leaves, since other requests wait for
    /// it.
    outlives_client: bool,
}

impl Exchange {
    fn of(protocol: Protocol) -> Exchange {
        Exchange {
            protocol,
            sender: Sender::default(),
            encoder: None,
            encoder_holds_since: None,
            outlives_client: false,
        }
    }

    /// An exchange of HTTP/1.
    pub fn h1(h1: H1) -> Exchange {
        Exchange::of(Protocol::H1(h1))
    }

    /// An exchange of HTTP/2.
    pub fn h2(h2: H2) -> Exchange {
        Exchange::of(Protocol::H2(Box::new(h2)))
    }

    /// An exchange without a client: the request has no body, and the response is counted and
    /// discarded.
    pub fn sink() -> Exchange {
        Exchange::of(Protocol::Sink)
    }

    /// An exchange in memory.
    #[cfg(any(test, feature = "testing"))]
    pub fn memory(stream: memory::Stream) -> Exchange {
        Exchange::of(Protocol::Memory(stream))
    }

    /// The exchange of an included subrequest, which runs ahead of the including response.
    pub fn ahead(writer: Writer) -> Exchange {
        Exchange::of(Protocol::Ahead(writer))
    }

    /// Sets the encoder of the rest of the response's body.
    pub fn set_encoder(&mut self, encoder: Box<dyn Encoder>) {
        self.encoder = Some(encoder);
    }

    /// Whether a range of a file of this length may be sent by `sendfile()`. Not if it is encoded,
    /// if `sendfile` is off, or if TLS is done in user space.
    pub fn can_sendfile(&self, length: u64) -> bool {
        self.encoder.is_none()
            && match &self.protocol {
                Protocol::H1(h1) => h1.can_sendfile(length),
                // HTTP/2 frames are built in memory.
                Protocol::H2(_) => false,
                _ => true,
            }
    }

    /// The next bytes of the request's body; `None` at its end. Sends `100 Continue` if the client
    /// waits for it. Reads no more from the client than it returns.
    pub async fn read_body(&mut self, request: &mut Request) -> Result<Option<Bytes>, Abort> {
        match &mut self.protocol {
            Protocol::H1(h1) => h1.read_body(request).await,
            Protocol::H2(h2) => h2.read_body(request).await,
            Protocol::Ahead(_) | Protocol::Sink => Ok(None),
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => stream.read_body(request).await,
        }
    }

    /// Takes the rest of the request's body, possibly empty, to be read while the response is sent;
    /// `None` if the protocol does not allow that. Sends `100 Continue` if the client waits for it.
    pub fn upload(&mut self, request: &mut Request) -> Option<Upload> {
        if !request.is_main() {
            return None;
        }
        match &mut self.protocol {
            Protocol::H1(h1) => h1.upload(request).map(Upload::H1),
            Protocol::H2(h2) => h2.upload(request).map(Upload::H2),
            _ => None,
        }
    }

    /// Whether `read_body` would return bytes without waiting for the client.
    pub fn has_buffered_body(&self) -> bool {
        match &self.protocol {
            Protocol::H1(h1) => h1.has_buffered_body(),
            Protocol::H2(h2) => h2.has_buffered_body(),
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => stream.has_buffered_body(),
            _ => true,
        }
    }

    /// Like [`Exchange::has_buffered_body`], but first receives the bytes of the body that the
    /// kernel still holds if the receive buffer was full.
    pub async fn receive_available(&mut self, request: &Request) -> bool {
        match &mut self.protocol {
            Protocol::H1(h1) => h1.receive_available(request).await,
            Protocol::H2(h2) => h2.has_buffered_body(),
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => stream.has_buffered_body(),
            _ => true,
        }
    }

    /// Discards the received part of a body that no handler reads, and any part that follows,
    /// because a response that does not depend on the body is about to be sent.
    pub async fn discard_received_body(&mut self, request: &mut Request) -> Result<(), Abort> {
        match &mut self.protocol {
            Protocol::H1(h1) => h1.discard_received_body(request).await,
            Protocol::H2(h2) => {
                h2.discard_received_body(request);
                Ok(())
            }
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => {
                stream.discard_received_body(request);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Sets whether the response is prepared even if the client leaves, since other requests wait
    /// for it.
    pub fn set_outlives_client(&mut self, outlives: bool) {
        self.outlives_client = outlives;
    }

    /// Resolves when the client has closed its side while a response is being prepared. Never
    /// resolves if the response outlives the client.
    pub async fn client_gone(&mut self) -> Abort {
        if self.outlives_client {
            return std::future::pending().await;
        }
        match &mut self.protocol {
            Protocol::H1(h1) => h1.client_gone().await,
            Protocol::H2(h2) => h2.client_gone().await,
            Protocol::Ahead(writer) => writer.client_gone().await,
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => stream.client_gone().await,
            _ => std::future::pending().await,
        }
    }

    /// Sends a 103 (Early Hints) with these fields, if the client understands 103. Must not be
    /// called after the head has been sent.
    pub fn send_early_hints(&mut self, request: &mut Request, fields: &[Field]) {
        match &mut self.protocol {
            Protocol::H1(h1) => h1.send_early_hints(request, fields),
            Protocol::H2(h2) => h2.send_early_hints(request, fields),
            _ => {}
        }
    }

    /// Whether the connection will be kept alive after the response. Before the head is sent, later
    /// changes are still possible.
    pub fn keeps_alive(&self, request: &Request) -> bool {
        match &self.protocol {
            Protocol::H1(h1) => h1.keeps_alive(request),
            _ => false,
        }
    }

    /// Whether the head of the response has been sent.
    pub fn has_sent_head(&self) -> bool {
        match &self.protocol {
            Protocol::H1(h1) => h1.has_sent_head(),
            Protocol::H2(h2) => h2.has_sent_head(),
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => stream.has_sent_head(),
            _ => true,
        }
    }

    /// Whether the whole response so far is still queued in Tidegate, so that the client has
    /// received none of it.
    pub fn has_unsent(&self, request: &Request) -> bool {
        match &self.protocol {
            Protocol::H1(h1) => h1.has_unsent(request),
            Protocol::H2(h2) => !h2.has_sent_head(),
            // The output of subrequests is queued with that of the main request.
            Protocol::Ahead(_) | Protocol::Sink => {
                let stream = &request.connection.stream;
                stream.has_unsent(request.sent.bytes)
            }
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => stream.has_unsent(),
        }
    }

    /// Sends the head of `request.response`, and decides how the body is framed.
    pub fn send_head(&mut self, request: &mut Request) -> Result<(), Abort> {
        settle_head(request);
        match &mut self.protocol {
            Protocol::H1(h1) => {
                self.sender.begin(h1, request);
                h1.send_head(request)?;
                if h1.holds_head() {
                    self.sender.head_is_held(request);
                }
                Ok(())
            }
            Protocol::H2(h2) => {
                self.sender.begin(&mut **h2, request);
                h2.send_head(request)
            }
            Protocol::Ahead(_) | Protocol::Sink => Ok(()),
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => {
                self.sender.begin(stream, request);
                stream.send_head(request);
                Ok(())
            }
        }
    }

    /// The number of bytes of a file to read next. Waits until the client could take some of them.
    pub async fn room(&mut self, request: &mut Request) -> Result<u64, Abort> {
        match &mut self.protocol {
            Protocol::H2(h2) => {
                let room = h2.room().await;
                room.map_err(|error| sender::not_taken(&**h2, request, error))
            }
            _ => Ok(READ_SIZE),
        }
    }

    /// Limits the bytes that are queued for a slow client; `None` for the usual limit.
    pub fn set_queued_max(&mut self, bytes: Option<usize>) {
        self.sender.set_queued_max(bytes);
    }

    /// Sends one piece of the body, and waits while the client is slow to read.
    pub async fn send(&mut self, request: &mut Request, piece: Piece) -> Result<(), Abort> {
        let Some(encoder) = &mut self.encoder else {
            return self.send_plain(request, piece).await;
        };
        self.encoder_holds_since = match piece {
            Piece::Flush | Piece::Last => None,
            _ => self.encoder_holds_since.or_else(|| Some(engine::now())),
        };
        let mut out = Vec::new();
        let before = encoder.bytes_in();
        encoder.apply(piece, &mut out)?;
        let is_turn_over = before / ENCODED_MAX != encoder.bytes_in() / ENCODED_MAX;
        for piece in out {
            self.send_plain(request, piece).await?;
        }
        if is_turn_over {
            engine::yield_now().await;
        }
        Ok(())
    }

    /// Sends a piece of the body if that needs no wait: see [`Sender::send_at_once`]. Any other
    /// piece is returned, for [`send`](Self::send).
    pub fn send_at_once(&mut self, request: &mut Request, piece: Piece) -> Result<(), Piece> {
        match &mut self.protocol {
            Protocol::H1(h1) if self.encoder.is_none() => {
                self.sender.send_at_once(h1, request, piece)
            }
            _ => Err(piece),
        }
    }

    async fn send_plain(&mut self, request: &mut Request, piece: Piece) -> Result<(), Abort> {
        match &mut self.protocol {
            Protocol::H1(h1) => self.sender.send(h1, request, piece).await,
            Protocol::H2(h2) => self.sender.send(&mut **h2, request, piece).await,
            Protocol::Ahead(writer) => writer.send(request, piece).await,
            Protocol::Sink => {
                request.sent.body_bytes += piece.length();
                Ok(())
            }
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => self.sender.send(stream, request, piece).await,
        }
    }

    /// When a [`Piece::Flush`] is due, because the encoder holds data back. Without the flush, an
    /// event stream would only arrive at its end.
    pub fn flush_at(&self) -> Option<Instant> {
        Some(self.encoder_holds_since? + ENCODER_PATIENCE)
    }

    /// Whether the body has no framing, so that the client recognizes its end by the end of the
    /// connection.
    pub fn ends_with_connection(&self) -> bool {
        match &self.protocol {
            Protocol::H1(h1) => h1.ends_with_connection(),
            _ => false,
        }
    }

    /// Sends the queue, because no more data is ready. Data that the encoder holds back stays
    /// there.
    pub async fn flush(&mut self, request: &mut Request) -> Result<(), Abort> {
        match &mut self.protocol {
            Protocol::H1(h1) => {
                self.sender.send_held(h1, request).await?;
                h1.start_send();
                Ok(())
            }
            Protocol::H2(h2) => {
                h2.start_send();
                Ok(())
            }
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => {
                stream.start_send();
                Ok(())
            }
            Protocol::Ahead(writer) => writer.send(request, Piece::Flush).await,
            _ => Ok(()),
        }
    }

    /// Ends the response. When this returns, everything has been passed to the connection.
    pub async fn end(&mut self, request: &mut Request) -> Result<(), Abort> {
        if let Some(encoder) = &mut self.encoder {
            encoder.end(request);
        }
        match &mut self.protocol {
            Protocol::H1(h1) => self.sender.end(h1, request).await,
            Protocol::H2(h2) => self.sender.end(&mut **h2, request).await,
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => self.sender.end(stream, request).await,
            _ => Ok(()),
        }
    }

    /// Turns an exchange whose head was sent with status 101 into a tunnel.
    pub fn upgrade(&mut self) -> Option<Upgraded> {
        match &mut self.protocol {
            Protocol::H1(h1) => Some(h1.upgrade()),
            Protocol::H2(h2) => Some(Upgraded::h2(h2.upgrade())),
            _ => None,
        }
    }

    /// Whether the client has sent CONNECT, so that it treats any 2xx response as an open tunnel.
    pub fn asks_for_tunnel(&self) -> bool {
        match &self.protocol {
            Protocol::H2(h2) => h2.asks_for_tunnel(),
            _ => false,
        }
    }

    /// Withdraws a response that will not be completed, if no byte of it has been sent. The request
    /// then counts as unanswered.
    pub fn take_back(&mut self, request: &mut Request) {
        if let Protocol::H1(h1) = &mut self.protocol {
            h1.take_back(request);
        }
    }

    /// See [`H1::finish_at_once`].
    pub fn finish_at_once(&mut self, request: &mut Request, whole: bool) -> Option<Buffer> {
        match &mut self.protocol {
            Protocol::H1(h1) => h1.finish_at_once(request, whole),
            _ => None,
        }
    }

    /// The HTTP/1 exchange, for the connection task that has started it.
    pub fn into_h1(self) -> Option<H1> {
        match self.protocol {
            Protocol::H1(h1) => Some(h1),
            _ => None,
        }
    }

    /// The HTTP/2 exchange, for the task that has started it.
    pub fn into_h2(self) -> Option<Box<H2>> {
        match self.protocol {
            Protocol::H2(h2) => Some(h2),
            _ => None,
        }
    }

    /// The exchange in memory, for the code that has started it.
    #[cfg(any(test, feature = "testing"))]
    pub fn into_stream(self) -> Option<memory::Stream> {
        match self.protocol {
            Protocol::Memory(stream) => Some(stream),
            _ => None,
        }
    }

    /// Forces the connection to close after this response (nginx does so after some errors).
    pub fn forbid_keepalive(&mut self) {
        if let Protocol::H1(h1) = &mut self.protocol {
            h1.forbid_keepalive();
        }
    }

    /// Prevents waiting for the body of a bad request. The received part is read nevertheless,
    /// since a TCP reset would destroy the response.
    pub fn forbid_lingering(&mut self) {
        if let Protocol::H1(h1) = &mut self.protocol {
            h1.forbid_lingering();
        }
    }

    /// Withdraws `100 Continue`, since the final status follows.
    pub fn no_continue(&mut self) {
        if let Protocol::H1(h1) = &mut self.protocol {
            h1.no_continue();
        }
    }
}

/// Adapts the head to the response's status and the request's method, independent of the protocol.
fn settle_head(request: &mut Request) {
    if request.client.version() < Version::Http10 {
        return; // HTTP/0.9 has no head
    }
    let response = &mut request.response;
    if !matches!(response.status, 200 | 206 | 304) {
        response.ignores_last_modified = last_modified(response).is_some();
        response.last_modified = None;
    }
    match response.status {
        204 => {
            response.header_only = true;
            // The fields of an upstream's response are passed on unchanged.
            if response.status_text.is_none() {
                response.content_type = Bytes::new();
                response.content_length = None;
            }
        }
        304 => response.header_only = true,
        _ => {}
    }
    if request.method == Method::Head {
        response.header_only = true;
    }
}
