//! One request and its response on whatever protocol.
//!
//! Above this line no code sees a Connection header, chunk framing or a socket: a handler takes the
//! body's bytes in and gives a head and pieces out. The protocols are members of an enum:
//! [HTTP/1](crate::h1), [HTTP/2](crate::http2). A subrequest that no client listens to has an
//! exchange that leads nowhere; an included one has an exchange that leads to where its response
//! [stands](crate::subrequest::included). Handlers are tested on one in memory.

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

/// Bytes of a body that are encoded before other connections have their turn: neither a file in
/// memory nor a quick client ever makes the encoder wait.
const ENCODED_MAX: u64 = 32 * 1024;

/// How long an encoder may keep what has come of a body, while it awaits more that would be encoded
/// together with it. What an upstream sends in one go comes in less.
const ENCODER_PATIENCE: Duration = Duration::from_millis(1);

enum Protocol {
    H1(H1),
    H2(Box<H2>),
    Ahead(Writer),
    /// There is no client to ask, to send to or to wait for.
    Sink,
    #[cfg(any(test, feature = "testing"))]
    Memory(memory::Stream),
}

/// One request and its response; see the module.
pub struct Exchange {
    protocol: Protocol,
    sender: Sender,
    encoder: Option<Box<dyn Encoder>>,
    /// Since when the encoder may hold something that the client could not read yet.
    encoder_holds_since: Option<Instant>,
    /// What is being done for the response is done though the client leaves.
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

    /// An exchange that leads nowhere: of the request's body nothing comes, and what is answered is
    /// counted and dropped.
    pub fn sink() -> Exchange {
        Exchange::of(Protocol::Sink)
    }

    /// An exchange in memory.
    #[cfg(any(test, feature = "testing"))]
    pub fn memory(stream: memory::Stream) -> Exchange {
        Exchange::of(Protocol::Memory(stream))
    }

    /// The exchange of a subrequest that runs ahead.
    pub fn ahead(writer: Writer) -> Exchange {
        Exchange::of(Protocol::Ahead(writer))
    }

    /// Encodes the main response's body from now on.
    pub fn set_encoder(&mut self, encoder: Box<dyn Encoder>) {
        self.encoder = Some(encoder);
    }

    /// Whether a stretch of a file of so many bytes may come as it is. Not where it is encoded
    /// here, `sendfile` is off, or we encrypt ourselves.
    pub fn can_sendfile(&self, length: u64) -> bool {
        self.encoder.is_none()
            && match &self.protocol {
                Protocol::H1(h1) => h1.can_sendfile(length),
                // It stands in frames.
                Protocol::H2(_) => false,
                _ => true,
            }
    }

    /// The next bytes of the request's body; `None` at its end. Sends `100 Continue` where the
    /// client waits for it. Takes no more from the client than it gives.
    pub async fn read_body(&mut self, request: &mut Request) -> Result<Option<Bytes>, Abort> {
        match &mut self.protocol {
            Protocol::H1(h1) => h1.read_body(request).await,
            Protocol::H2(h2) => h2.read_body(request).await,
            Protocol::Ahead(_) | Protocol::Sink => Ok(None),
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => stream.read_body(request).await,
        }
    }

    /// What is left of the request's body, be it nothing, to be read beside the response; `None`
    /// where it cannot be had. Sends `100 Continue` where the client waits for it.
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

    /// Bytes that stand ready without waiting on the client; what `read_body` would give.
    pub fn has_buffered_body(&self) -> bool {
        match &self.protocol {
            Protocol::H1(h1) => h1.has_buffered_body(),
            Protocol::H2(h2) => h2.has_buffered_body(),
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => stream.has_buffered_body(),
            _ => true,
        }
    }

    /// As [`Exchange::has_buffered_body`], once what the kernel has of the body beyond a full
    /// receive buffer has been received.
    pub async fn receive_at_hand(&mut self, request: &Request) -> bool {
        match &mut self.protocol {
            Protocol::H1(h1) => h1.receive_at_hand(request).await,
            Protocol::H2(h2) => h2.has_buffered_body(),
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => stream.has_buffered_body(),
            _ => true,
        }
    }

    /// Drops what has been received of a body that no handler reads, and what comes of it from now
    /// on: a response that does not look at it is about to be sent.
    pub async fn drop_body_at_hand(&mut self, request: &mut Request) -> Result<(), Abort> {
        match &mut self.protocol {
            Protocol::H1(h1) => h1.drop_body_at_hand(request).await,
            Protocol::H2(h2) => {
                h2.drop_body_at_hand(request);
                Ok(())
            }
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => {
                stream.drop_body_at_hand(request);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether what is being done from now on is done though the client leaves: others want it.
    pub fn outlive_client(&mut self, outlives: bool) {
        self.outlives_client = outlives;
    }

    /// Resolves when the client has closed its side while a response is being prepared that is of
    /// use to nobody else.
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

    /// A 103 (Early Hints) with these fields, for a client that can take one; never after the head.
    pub fn send_early_hints(&mut self, request: &mut Request, fields: &[Field]) {
        match &mut self.protocol {
            Protocol::H1(h1) => h1.send_early_hints(request, fields),
            Protocol::H2(h2) => h2.send_early_hints(request, fields),
            _ => {}
        }
    }

    /// Whether the connection goes on after the response, as far as is known before its head is
    /// made.
    pub fn keeps_alive(&self, request: &Request) -> bool {
        match &self.protocol {
            Protocol::H1(h1) => h1.keeps_alive(request),
            _ => false,
        }
    }

    /// Whether the head of the response has gone to the client.
    pub fn has_sent_head(&self) -> bool {
        match &self.protocol {
            Protocol::H1(h1) => h1.has_sent_head(),
            Protocol::H2(h2) => h2.has_sent_head(),
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => stream.has_sent_head(),
            _ => true,
        }
    }

    /// Whether all that has been sent of the request's response still waits here: the client has
    /// seen nothing of it.
    pub fn has_unsent(&self, request: &Request) -> bool {
        match &self.protocol {
            Protocol::H1(h1) => h1.has_unsent(request),
            Protocol::H2(h2) => !h2.has_sent_head(),
            // What it sends waits with the main request's.
            Protocol::Ahead(_) | Protocol::Sink => {
                let stream = &request.connection.stream;
                stream.has_unsent(request.sent.bytes)
            }
            #[cfg(any(test, feature = "testing"))]
            Protocol::Memory(stream) => stream.has_unsent(),
        }
    }

    /// Sends the head of `request.response`; decides how the body is framed.
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

    /// How many bytes of a file are worth reading for the client now; waits until some of them
    /// could leave.
    pub async fn room(&mut self, request: &mut Request) -> Result<u64, Abort> {
        match &mut self.protocol {
            Protocol::H2(h2) => {
                let room = h2.room().await;
                room.map_err(|error| sender::not_taken(&**h2, request, error))
            }
            _ => Ok(READ_SIZE),
        }
    }

    /// From now on at most so many bytes wait for a slow client here, as far as there is a choice;
    /// `None` for as many as of any response.
    pub fn set_queued_max(&mut self, bytes: Option<usize>) {
        self.sender.set_queued_max(bytes);
    }

    /// Sends one piece of the body, waiting while the client is slow to take it.
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

    /// Sends a piece of the body where that asks for no wait: see [`Sender::send_at_once`]. Any
    /// other comes back, for [`send`](Self::send).
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

    /// When what has been given so far must have left, as its encoder holds some of it: by a
    /// [`Piece::Flush`]. A stream of events would come at its end else.
    pub fn flush_at(&self) -> Option<Instant> {
        Some(self.encoder_holds_since? + ENCODER_PATIENCE)
    }

    /// Whether the end of the connection is all that tells the client where the body ends.
    pub fn ends_with_connection(&self) -> bool {
        match &self.protocol {
            Protocol::H1(h1) => h1.ends_with_connection(),
            _ => false,
        }
    }

    /// What has been given so far leaves now, as far as no encoder holds it, because nothing more
    /// stands ready.
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

    /// Ends the response; everything has been given to the connection when it returns.
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

    /// Turns an exchange whose head was sent with status 101 into bytes both ways.
    pub fn upgrade(&mut self) -> Option<Upgraded> {
        match &mut self.protocol {
            Protocol::H1(h1) => Some(h1.upgrade()),
            Protocol::H2(h2) => Some(Upgraded::h2(h2.upgrade())),
            _ => None,
        }
    }

    /// Whether the client takes any success for bytes both ways, which an upgrade alone gives it.
    pub fn asks_for_tunnel(&self) -> bool {
        match &self.protocol {
            Protocol::H2(h2) => h2.asks_for_tunnel(),
            _ => false,
        }
    }

    /// Takes a response back that will not be completed, if nothing of it has left: the request has
    /// sent nothing.
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

    /// The exchange of HTTP/1 that it is, for the connection that has begun it and goes on.
    pub fn into_h1(self) -> Option<H1> {
        match self.protocol {
            Protocol::H1(h1) => Some(h1),
            _ => None,
        }
    }

    /// The exchange of HTTP/2 that it is, for the task that has begun it.
    pub fn into_h2(self) -> Option<Box<H2>> {
        match self.protocol {
            Protocol::H2(h2) => Some(h2),
            _ => None,
        }
    }

    /// The stream in memory that it is, for what has begun it.
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

    /// After a bad request its body is not waited for. What the client has sent already is read
    /// away all the same, so that no reset destroys the answer.
    pub fn forbid_lingering(&mut self) {
        if let Protocol::H1(h1) = &mut self.protocol {
            h1.forbid_lingering();
        }
    }

    /// A final status is coming: a client that waits for `100 Continue` gets none.
    pub fn no_continue(&mut self) {
        if let Protocol::H1(h1) = &mut self.protocol {
            h1.no_continue();
        }
    }
}

/// What a response's status and the request's method say of its head, whatever the protocol.
fn settle_head(request: &mut Request) {
    if request.client.version() < Version::Http10 {
        return; // there is none
    }
    let response = &mut request.response;
    if !matches!(response.status, 200 | 206 | 304) {
        response.last_modified_unheard = last_modified(response).is_some();
        response.last_modified = None;
    }
    match response.status {
        204 => {
            response.header_only = true;
            // An upstream's goes on as it came.
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
