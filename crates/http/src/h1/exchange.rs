//! The exchange of HTTP/1.0 and 1.1: framing in both directions, keep-alive, and lingering close.
//!
//! RFC 9112. `proto::h1` parses heads and chunks; this file uses the connection. A response is
//! paced by its [`sender`](crate::exchange::sender).

use std::io::{self, ErrorKind, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::limits::SENDFILE_CHUNK_DEFAULT;
use bytes::Bytes;
use engine::Buffer;
use engine::net::Segment;
use engine::select::{Either, at_once, either};
use proto::h1::chunked::{self, ChunkLine, DATA_END, LAST_BEFORE_TRAILERS};
use proto::h1::{BodyLength, Version};
use proto::header::KnownField;
use proto::method::Method;
use proto::status;

use crate::config::core::LingeringClose;
use crate::connection::Connection;
use crate::exchange::abort::Abort;
use crate::exchange::duplex::Upgraded;
use crate::exchange::fields::{self, HeadLine};
use crate::exchange::sender::{Sender, Wire};
use crate::exchange::upload::{H1Upload, SharedIntake};
use crate::h1::intake::{BodyPart, Intake};
use crate::logging::body_fault::body_fault;
use crate::request::Request;
use crate::request::body::RequestBody;
use crate::response::Field;
use crate::response::prebuilt::ResponseForm;
use crate::response::prebuilt::recording;

/// Maximum number of receives of a body that is discarded before the response begins.
const DROPPED_AT_ONCE_MAX: usize = 64;

/// The interim response for a client that sent `Expect: 100-continue`.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// Maximum number of bytes of a client's next requests that are received while a response is
/// prepared.
const AHEAD_MAX: usize = 16 * 1024;

/// What happens to the connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionOutcome {
    /// Wait for the next request.
    KeepAlive,
    /// The response was the last on the connection: the rest of it is sent, and then the socket is
    /// closed.
    Close {
        /// The client has announced that this was its last request.
        client_is_done: bool,
    },
    /// The connection ends without another byte to the client.
    Drop,
}

impl ConnectionOutcome {
    /// Closes a connection on which the client may still be sending.
    pub const CLOSE: ConnectionOutcome = ConnectionOutcome::Close {
        client_is_done: false,
    };
}

/// The reader of the request's body.
///
/// ```text
///               upload                     the client resets, or ends after an upload
///   Handler ◀───────────▶ Upload      ┌──────────────────────────────────────▶ ClientLeft
///      │  settle            │         │
///      └────────────────────┴──────▶ Discard
///        begin_discarding, reclaim
/// ```
enum BodyReader {
    /// A handler, whenever it needs more of the body.
    Handler,
    /// An upload that runs concurrently with the response and holds the [`Intake`].
    Upload(Rc<SharedIntake>),
    /// Nothing reads the body, which is received and discarded during any other wait.
    Discard,
    /// Nothing reads the body, because the client has left while it was being discarded.
    ClientLeft,
}

impl BodyReader {
    /// Discards the body from now on, unless the client has left.
    fn begin_discarding(&mut self) {
        if !matches!(self, BodyReader::ClientLeft) {
            *self = BodyReader::Discard;
        }
    }

    /// Whether the body is received while the exchange waits for something else.
    fn receives_concurrently(&self) -> bool {
        matches!(self, BodyReader::Upload(_) | BodyReader::Discard)
    }
}

/// The state of the response.
///
/// ```text
///                send_head                              upgrade
///   HeadUnsent ─────────────▶ Chunks, Length, Unframed ─────────▶ Upgraded
///                               │ take_back
///                               └──────────▶ Withdrawn
/// ```
#[derive(Clone, Copy)]
enum SendProgress {
    HeadUnsent,
    /// The head has been sent, and the body is sent in chunks.
    Chunks,
    /// The head has been sent, and the body is sent with an announced length.
    Length {
        left: u64,
    },
    /// The head has been sent. There is no body, or the end of the connection marks the end of the
    /// body.
    Unframed,
    /// The response was withdrawn: no byte of it has been sent or will be.
    Withdrawn,
    /// The connection belongs to the tunnel.
    Upgraded,
}

impl SendProgress {
    fn has_sent_head(self) -> bool {
        !matches!(self, SendProgress::HeadUnsent)
    }

    fn is_upgraded(self) -> bool {
        matches!(self, SendProgress::Upgraded)
    }

    /// Withdraws a response of which no byte has been sent. Has no effect on a tunnel.
    fn take_back(&mut self) {
        if !self.is_upgraded() {
            *self = SendProgress::Withdrawn;
        }
    }
}

/// What happens to the connection after the response. A state may only be replaced by a later
/// variant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Persistence {
    KeepAlive,
    /// The connection closes, after waiting for the rest of a body.
    Close,
    /// The connection closes without waiting for a body.
    CloseWithoutBody,
}

impl Persistence {
    /// Moves to a later variant.
    fn advance(&mut self, to: Persistence) {
        *self = (*self).max(to);
    }

    fn keeps_alive(self) -> bool {
        self == Persistence::KeepAlive
    }

    /// Whether the rest of a body may be awaited.
    fn may_linger(self) -> bool {
        self != Persistence::CloseWithoutBody
    }
}

/// One request and its response on an HTTP/1 connection.
pub struct H1 {
    connection: Rc<Connection>,
    /// The received bytes that have not been used. Code that takes bytes calls
    /// [`H1::update_persistence`] afterwards.
    intake: Intake,
    reader: BodyReader,
    /// The counts of a body that an upload has read, until they are moved to the request.
    counted: Option<Box<RequestBody>>,
    /// Whether an upload has begun to read the body, even if it has read nothing yet.
    had_upload: bool,
    version: Version,
    /// Whether the client waits for `100 Continue`.
    expects_continue: bool,
    persistence: Persistence,
    /// Whether the client has announced that this is its last request.
    client_is_done: bool,
    /// A fault of a discarded body that has not been logged yet.
    discarded_body_fault: Option<Abort>,
    progress: SendProgress,
    /// Whether the kernel may send files.
    sendfile: bool,
    /// Whether the client has read or sent nothing for too long.
    timed_out: bool,
    /// The part of the head that `limit_rate` holds back.
    held: Bytes,
    /// The recorder of the response, if all plain requests of its scope get the same response.
    constant: Option<Box<recording::ConstantResponse>>,
}

impl H1 {
    /// An exchange for a parsed head; `input` are the bytes received after it.
    pub fn new(
        connection: &Rc<Connection>,
        request: &Request,
        length: BodyLength,
        input: Buffer,
    ) -> H1 {
        let version = request.client.version();
        let expect = request.header(KnownField::Expect);
        let keeps_alive = request.client.keeps_alive();
        H1 {
            expects_continue: version >= Version::Http11
                && expect.is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue")),
            persistence: if keeps_alive {
                Persistence::KeepAlive
            } else {
                Persistence::Close
            },
            client_is_done: !keeps_alive,
            ..H1::begun(connection, version, length, input)
        }
    }

    /// An exchange that only refuses its request. `length` is the length of the body that follows
    /// the head, as far as the length is known. Such a body is received to its end like any other
    /// body.
    pub fn refused(
        connection: &Rc<Connection>,
        version: Version,
        length: BodyLength,
        input: Buffer,
    ) -> H1 {
        let mut begun = H1::begun(connection, version, length, input);
        begun.intake.refused = begun.intake.is_read();
        begun
    }

    /// An exchange with defaults: the client does not expect `100 Continue`, and the connection
    /// closes after the response.
    fn begun(
        connection: &Rc<Connection>,
        version: Version,
        length: BodyLength,
        input: Buffer,
    ) -> H1 {
        H1 {
            connection: Rc::clone(connection),
            intake: Intake::new(length, input),
            reader: BodyReader::Handler,
            counted: None,
            had_upload: false,
            version,
            expects_continue: false,
            persistence: Persistence::Close,
            client_is_done: false,
            discarded_body_fault: None,
            progress: SendProgress::HeadUnsent,
            sendfile: false,
            timed_out: false,
            held: Bytes::new(),
            constant: None,
        }
    }

    /// See `Exchange::can_sendfile`.
    pub fn can_sendfile(&self, length: u64) -> bool {
        self.sendfile && self.connection.stream.can_sendfile(length)
    }

    /// See `Exchange::forbid_keepalive`.
    pub fn forbid_keepalive(&mut self) {
        self.persistence.advance(Persistence::Close);
    }

    /// See `Exchange::forbid_lingering`.
    pub fn forbid_lingering(&mut self) {
        self.persistence.advance(Persistence::CloseWithoutBody);
    }

    /// See `Exchange::no_continue`.
    pub fn no_continue(&mut self) {
        self.expects_continue = false;
    }

    /// See `Exchange::has_buffered_body`.
    pub fn has_buffered_body(&self) -> bool {
        let intake = &self.intake;
        intake.is_read() || !intake.input.is_empty() || self.connection.stream.has_received()
    }

    /// See `Exchange::receive_available`.
    pub async fn receive_available(&mut self, request: &Request) -> bool {
        if self.has_buffered_body() {
            return true;
        }
        if !self.intake.filled || self.intake.is_read() {
            return false; // the last receive has emptied the kernel's buffer
        }
        // With io_uring, a receive takes an iteration of the event loop.
        let stream = &self.connection.stream;
        let received = match either(stream.recv(None), engine::yield_now()).await {
            Either::First(received) => Some(received),
            Either::Second(()) => at_once(stream.recv(None)).await,
        };
        match received {
            Some(Ok(buffer)) if !buffer.is_empty() => {
                self.intake.begin_portion(&request.body, buffer);
                true
            }
            _ => false, // the next receive returns the end or the error again
        }
    }

    /// See `Exchange::upgrade`.
    pub fn upgrade(&mut self) -> Upgraded {
        self.persistence.advance(Persistence::CloseWithoutBody);
        self.progress = SendProgress::Upgraded;
        self.settle();
        Upgraded::h1(&self.connection, std::mem::take(&mut self.intake.input))
    }

    /// See `Exchange::read_body`.
    pub async fn read_body(&mut self, request: &mut Request) -> Result<Option<Bytes>, Abort> {
        self.reclaim_intake(request);
        self.send_continue(request);
        let read = self.read_next(request).await;
        self.update_persistence();
        read
    }

    /// Waits for the next bytes of the body; `None` at its end.
    async fn read_next(&mut self, request: &mut Request) -> Result<Option<Bytes>, Abort> {
        loop {
            let size_max = request.plan.core.client_max_body_size;
            match self.intake.next(&mut request.body, size_max)? {
                BodyPart::Bytes(bytes) => return Ok(Some(bytes)),
                BodyPart::End => return Ok(None),
                BodyPart::Nothing => {}
            }
            let timeout = request.plan.core.client_body_timeout;
            let deadline = request.body.wait_until(timeout);
            let received = self.connection.stream.recv(Some(deadline)).await;
            self.intake.receive(&request.body, received)?;
        }
    }

    /// Sends `100 Continue` if the client waits for it.
    fn send_continue(&mut self, request: &mut Request) {
        if std::mem::take(&mut self.expects_continue) && !self.has_sent_head() {
            let stream = &self.connection.stream;
            stream.push(Segment::Bytes(Bytes::from_static(CONTINUE)));
            stream.start_send();
            // As in nginx, all bytes except for the response's own head count as body bytes.
            request.sent.bytes += CONTINUE.len() as u64;
            request.sent.body_bytes += CONTINUE.len() as u64;
        }
    }

    /// See `Exchange::upload`.
    pub fn upload(&mut self, request: &mut Request) -> Option<H1Upload> {
        self.reclaim_intake(request);
        if !matches!(self.reader, BodyReader::Handler) {
            return None; // a part of the body may have been discarded
        }
        self.send_continue(request);
        let intake = std::mem::take(&mut self.intake);
        let lent = Rc::new(SharedIntake::new(
            &self.connection,
            intake,
            request.body.clone(),
        ));
        self.reader = BodyReader::Upload(Rc::clone(&lent));
        Some(H1Upload::new(lent, &request.plan.core))
    }

    /// Takes the intake back from an upload, which then gets no more of the body.
    fn settle(&mut self) {
        if let BodyReader::Upload(lent) = &self.reader {
            let (intake, counted) = lent.give_back();
            self.reader = BodyReader::Handler;
            self.had_upload = true;
            self.intake = intake;
            self.counted = Some(Box::new(counted));
            self.update_persistence();
        }
    }

    /// Takes the intake back from an upload, and gives the request the upload's counts.
    fn reclaim_intake(&mut self, request: &mut Request) {
        self.settle();
        if let Some(counted) = self.counted.take() {
            request.body.count_as(&counted);
        }
    }

    /// Updates `persistence` and `timed_out` after bytes of the intake have been used.
    fn update_persistence(&mut self) {
        if self.intake.is_lost {
            self.persistence.advance(Persistence::CloseWithoutBody);
        } else if self.intake.refused {
            self.persistence.advance(Persistence::Close);
        }
        self.timed_out |= self.intake.timed_out;
    }

    /// Discards the received part of the body.
    fn drop_received(&mut self) -> Result<(), Abort> {
        let dropped = self.intake.drop_received();
        self.update_persistence();
        dropped
    }

    /// Waits until the upload needs no more of the body, and takes the intake back. If the response
    /// has begun, the rest of the body is discarded from then on.
    async fn reclaim(&mut self) {
        if let BodyReader::Upload(lent) = &self.reader {
            let lent = Rc::clone(lent);
            lent.over().await;
            self.settle();
            if self.has_sent_head() && !self.intake.is_read() {
                self.reader.begin_discarding();
            }
        }
    }

    /// The abort for a client that has left.
    fn left() -> Abort {
        Abort::Closed(ErrorKind::ConnectionAborted.into())
    }

    /// Receives and discards a body during another wait, since a client may send its whole body
    /// before it reads. Returns when the body has ended or needs no discarding.
    ///
    /// # Errors
    /// If the client has left.
    async fn discard(&mut self) -> Result<(), Abort> {
        self.reclaim().await;
        loop {
            match &self.reader {
                BodyReader::ClientLeft => return Err(H1::left()),
                BodyReader::Discard if !self.intake.is_read() => {}
                _ => return Ok(()),
            }
            if !self.intake.input.is_empty() {
                self.discarded_body_fault = self.drop_received().err();
                self.intake.input.fit(); // the buffer may be kept until the response has been sent
                continue;
            }
            let received = self.connection.stream.recv(None).await;
            match received {
                Ok(buffer) if !buffer.is_empty() => self.intake.input = buffer,
                end => {
                    self.persistence.advance(Persistence::CloseWithoutBody);
                    // A client that has shut down its sending side may still read the response. As
                    // in nginx, an upload requires the complete body.
                    let has_left = end.is_err() || self.had_upload;
                    self.reader = if has_left {
                        BodyReader::ClientLeft
                    } else {
                        BodyReader::Handler
                    };
                    end?;
                }
            }
        }
    }

    /// See `Exchange::discard_received_body`.
    pub async fn discard_received_body(&mut self, request: &mut Request) -> Result<(), Abort> {
        if matches!(&self.reader, BodyReader::Upload(lent) if !lent.is_over()) {
            return Ok(());
        }
        self.reclaim_intake(request);
        if !self.intake.is_read() {
            self.drop_received()?;
            for _ in 0..DROPPED_AT_ONCE_MAX {
                if self.intake.is_read() || !self.receive_available(request).await {
                    break;
                }
                self.drop_received()?;
            }
            request.body.note_skipped();
            if self.intake.is_read() {
                request.body.note_end()
            } else {
                self.reader.begin_discarding();
            }
        }
        Ok(())
    }

    /// See `Exchange::send_early_hints`.
    pub fn send_early_hints(&mut self, request: &mut Request, fields: &[Field]) {
        if self.has_sent_head() || self.version < Version::Http11 || fields.is_empty() {
            return;
        }
        let mut head = status::EARLY_HINTS.to_vec();
        for field in fields {
            write_field(&mut head, &field.name, &[&field.value]);
        }
        head.extend_from_slice(b"\r\n");
        // As in nginx, all bytes except for the response's own head count as body bytes.
        request.sent.bytes += head.len() as u64;
        request.sent.body_bytes += head.len() as u64;
        self.connection.stream.push(Segment::Bytes(head.into()));
        self.connection.stream.start_send();
    }

    /// See `Exchange::keeps_alive`.
    pub fn keeps_alive(&self, request: &Request) -> bool {
        self.permits_keepalive(request) && server_keeps_alive(&self.connection)
    }

    /// Whether the client and the request permit keep-alive.
    fn permits_keepalive(&self, request: &Request) -> bool {
        self.persistence.keeps_alive() && !request.keepalive.refused
    }

    /// See `Exchange::has_sent_head`.
    pub fn has_sent_head(&self) -> bool {
        self.progress.has_sent_head()
    }

    /// See `Exchange::send_head`.
    pub fn send_head(&mut self, request: &mut Request) -> Result<(), Abort> {
        let plan = Arc::clone(&request.plan);
        self.sendfile = plan.core.sendfile;
        let (stream, core) = (&self.connection.stream, &plan.core);
        stream.set_nopush(core.tcp_nopush);
        let chunk = core.sendfile_max_chunk;
        stream.set_sendfile_chunk(chunk.unwrap_or(SENDFILE_CHUNK_DEFAULT));
        let without_body = request.method == Method::Head
            || matches!(request.response.status, 204 | 304 | 100..=199)
            // The bytes after such a response are not a body (RFC 9110, section 9.3.6).
            || request.method == Method::Connect && request.response.status < 300;
        let unknown = request.response.content_length.is_none();
        let mut chunked = false;
        if !without_body && (unknown || request.response.expect_trailers) {
            if self.version >= Version::Http11 && plan.core.chunked_transfer_encoding {
                chunked = true;
                request.response.content_length = None;
            } else if unknown {
                self.persistence.advance(Persistence::Close);
            }
        }
        self.progress = match request.response.content_length {
            _ if chunked => SendProgress::Chunks,
            Some(left) => SendProgress::Length { left },
            None => SendProgress::Unframed,
        };
        if self.version == Version::Http09 || !self.keeps_alive(request) {
            self.persistence.advance(Persistence::Close);
        }
        if self.version == Version::Http09 {
            return Ok(());
        }
        let keep_alive = self.persistence.keeps_alive();
        request.keepalive.on = keep_alive;
        request.sent.chunked = chunked;
        let mut head = engine::spare_bytes(512);
        let framing = Framing {
            chunked,
            keep_alive,
        };
        write_head(request, framing, &mut head);
        self.constant = recording::ConstantResponse::begin(request, &head);
        let mut head = engine::share_bytes(head);
        // A head after which the protocol changes is not paced.
        let is_last = request.response.status == 101 || request.method == Method::Connect;
        if let Some(share) =
            Sender::share_of_head(request).filter(|share| *share < head.len() && !is_last)
        {
            self.held = head.split_off(share);
            self.constant = None;
        }
        request.sent.bytes += head.len() as u64;
        self.connection.stream.push(Segment::Bytes(head));
        Ok(())
    }

    /// Does the work of [`finish`](Self::finish) without waiting, which is possible in most cases:
    /// the response is complete, the request's body has been read, and the connection is kept
    /// alive. Returns the bytes received after the request; `None` if `finish` must be called.
    pub fn finish_at_once(&mut self, request: &mut Request, whole: bool) -> Option<Buffer> {
        let core = &request.plan.core;
        let had_upload = matches!(self.reader, BodyReader::Upload(_)) || self.counted.is_some();
        let is_whole = whole && (self.is_whole() || request.response.header_only);
        let stays = self.permits_keepalive(request) && !core.keepalive_timeout.is_zero();
        let is_odd =
            had_upload || self.progress.is_upgraded() || self.discarded_body_fault.is_some();
        if is_odd || !is_whole || !stays || !self.intake.is_read() {
            return None;
        }
        if core.tcp_nodelay && !self.connection.nodelay.replace(true) {
            self.connection.stream.set_nodelay(true);
        }
        self.connection
            .keep_for(core.keepalive_timeout, core.keepalive_min_timeout);
        if let Some(sent) = self.constant.take() {
            sent.keep(request, ResponseForm::of_http1(request.keepalive.on));
        }
        request.body.note_end();
        Some(std::mem::take(&mut self.intake.input))
    }

    /// Ends the exchange: returns whether the connection serves another request, and the bytes
    /// received after this one. The rest of the request's body is discarded.
    pub async fn finish(
        mut self,
        request: &mut Request,
        whole: bool,
    ) -> (ConnectionOutcome, Buffer) {
        self.reclaim_intake(request);
        if self.progress.is_upgraded() {
            return (ConnectionOutcome::Drop, Buffer::default());
        }
        if !whole || !(self.is_whole() || request.response.header_only) {
            let after = self.break_off(request);
            // As in nginx, the rest of a body that the client is still sending is read, since a TCP
            // reset would destroy the received part of the response.
            let lingers = request.plan.core.lingering_close != LingeringClose::Off;
            let is_sending = !self.intake.is_read() && self.has_begun(request);
            let lingers = lingers && is_sending && self.persistence.may_linger();
            if after == ConnectionOutcome::CLOSE && self.has_sent_head() && lingers {
                self.linger(request).await;
                return (ConnectionOutcome::Drop, Buffer::default());
            }
            return (after, Buffer::default());
        }
        if let Some(sent) = self.constant.take() {
            sent.keep(request, ResponseForm::of_http1(request.keepalive.on));
        }
        let core = Arc::clone(&request.plan.core);
        if !self.intake.is_read() && self.persistence.may_linger() && !self.intake.refused {
            // A client may send its whole body before it reads. As in nginx, the lingering time
            // begins when the response has been sent.
            self.reader.begin_discarding();
            if self.drained(0).await.is_err() {
                return (self.break_off(request), Buffer::default());
            }
            // A body that no handler has read is received to its end; the rest of a body that a
            // handler has begun to read is not awaited.
            if !self.has_begun(request) && !self.skip_body(request).await {
                return (ConnectionOutcome::Drop, Buffer::default());
            }
        }
        if let Some(abort) = self.discarded_body_fault.take() {
            log_body_fault(request, &abort);
        }
        // The connection may have to close although the response has announced keep-alive: a server
        // whose script makes the response may have `keepalive_timeout 0`, and the location of
        // `post_action` may forbid keep-alive.
        let stays = self.permits_keepalive(request) && !core.keepalive_timeout.is_zero();
        if stays && self.skip_body(request).await {
            if core.tcp_nodelay && !self.connection.nodelay.replace(true) {
                self.connection.stream.set_nodelay(true);
            }
            self.connection
                .keep_for(core.keepalive_timeout, core.keepalive_min_timeout);
            return (ConnectionOutcome::KeepAlive, self.intake.input);
        }
        if stays && !self.intake.is_read() {
            // `skip_body` has waited for the rest.
            return (ConnectionOutcome::Drop, Buffer::default());
        }
        let intake = &self.intake;
        let at_hand =
            intake.refused || !intake.input.is_empty() || self.connection.stream.has_received();
        let unread = at_hand || !intake.is_read();
        let linger = match core.lingering_close {
            LingeringClose::Off => false,
            // Closing a socket with unread bytes would reset the connection.
            LingeringClose::On => at_hand || (unread && self.persistence.may_linger()),
            LingeringClose::Always => true,
        };
        if linger {
            self.linger(request).await;
            return (ConnectionOutcome::Drop, Buffer::default());
        }
        let client_is_done = self.client_is_done && !unread;
        (
            ConnectionOutcome::Close { client_is_done },
            Buffer::default(),
        )
    }

    /// Whether a handler or an upload has begun to read the body.
    fn has_begun(&self, request: &Request) -> bool {
        self.had_upload || request.body.is_begun()
    }

    /// Shuts down the sending side, and discards what the client sends.
    async fn linger(&mut self, request: &Request) {
        if !self.intake.is_read() {
            // The client may send its whole body before it reads the rest of the response.
            self.reader.begin_discarding();
            if self.drained(0).await.is_err() {
                return;
            }
        }
        self.intake.input = Buffer::default();
        let core = &request.plan.core;
        self.connection
            .linger(core.lingering_time, core.lingering_timeout)
            .await;
    }

    /// Ends a response that could not be completed, in such a way that the client notices the
    /// truncation.
    fn break_off(&mut self, request: &mut Request) -> ConnectionOutcome {
        if self.timed_out || request.response.status == 444 {
            if request.plan.core.reset_timedout_connection {
                self.connection.stream.set_reset_on_drop();
                return ConnectionOutcome::Drop;
            }
            if self.timed_out {
                return ConnectionOutcome::Drop;
            }
        }
        // If no byte of the response has been sent, the connection is dropped, so that the client
        // gets no partial response.
        let is_taken_back = matches!(self.progress, SendProgress::Withdrawn);
        if is_taken_back || self.has_unsent(request) {
            return ConnectionOutcome::Drop;
        }
        ConnectionOutcome::CLOSE
    }

    /// See `Exchange::has_unsent`.
    pub fn has_unsent(&self, request: &Request) -> bool {
        self.connection.stream.has_unsent(request.sent.bytes)
    }

    /// See `Exchange::take_back`.
    pub fn take_back(&mut self, request: &mut Request) {
        if self.has_unsent(request) {
            self.progress.take_back();
            request.sent.bytes = 0;
            request.sent.body_bytes = 0;
        }
    }

    /// Receives and discards the rest of the request's body, so that the next request can follow.
    /// False if the next request cannot be found or the client is too slow.
    async fn skip_body(&mut self, request: &mut Request) -> bool {
        let core = Arc::clone(&request.plan.core);
        let end = engine::now() + core.lingering_time;
        loop {
            if let Err(abort) = self.drop_received() {
                log_body_fault(request, &abort);
                return false;
            }
            if self.intake.is_read() {
                request.body.note_end();
                return true;
            }
            let deadline = (engine::now() + core.lingering_timeout).min(end);
            match self.connection.stream.recv(Some(deadline)).await {
                Ok(buffer) if !buffer.is_empty() => self.intake.input = buffer,
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    if core.reset_timedout_connection {
                        self.connection.stream.set_reset_on_drop();
                    }
                    return false;
                }
                _ => return false,
            }
        }
    }

    /// Whether the body has no framing, so that the client recognizes its end by the end of the
    /// connection.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self.progress, SendProgress::Unframed)
    }
}

impl Wire for H1 {
    const FRAMING_IS_OF_BODY: bool = true;

    fn take_held(&mut self) -> Bytes {
        std::mem::take(&mut self.held)
    }

    fn holds_head(&self) -> bool {
        !self.held.is_empty()
    }

    fn push_head(&mut self, part: Bytes) {
        self.connection.stream.push(Segment::Bytes(part));
    }

    fn push(&mut self, segment: Segment, length: u64) -> u64 {
        match (&mut self.constant, &segment) {
            (Some(sent), Segment::Bytes(bytes)) => sent.add(bytes),
            _ => self.constant = None,
        }
        let stream = &self.connection.stream;
        if let SendProgress::Length { left } = &mut self.progress {
            *left = left.saturating_sub(length);
        }
        if !matches!(self.progress, SendProgress::Chunks) {
            stream.push(segment);
            return 0;
        }
        let line = ChunkLine::new(length);
        stream.push(Segment::Bytes(Bytes::copy_from_slice(line.as_bytes())));
        stream.push(segment);
        stream.push(Segment::Bytes(Bytes::from_static(DATA_END)));
        (line.as_bytes().len() + DATA_END.len()) as u64
    }

    fn push_end(&mut self, request: &Request) -> u64 {
        if !matches!(self.progress, SendProgress::Chunks) {
            return 0;
        }
        if request.response.trailers.is_empty() {
            let stream = &self.connection.stream;
            stream.push(Segment::Bytes(Bytes::from_static(chunked::LAST)));
            return chunked::LAST.len() as u64;
        }
        let mut end = Vec::with_capacity(64);
        end.extend_from_slice(LAST_BEFORE_TRAILERS);
        for field in &request.response.trailers {
            write_field(&mut end, &field.name, &[&field.value]);
        }
        end.extend_from_slice(b"\r\n");
        let length = end.len() as u64;
        self.connection.stream.push(Segment::Bytes(end.into()));
        length
    }

    fn start_send(&self) {
        self.connection.stream.start_send();
    }

    fn backlog(&self) -> usize {
        self.connection.stream.backlog()
    }

    async fn drained(&mut self, limit: usize) -> io::Result<()> {
        let connection = Rc::clone(&self.connection);
        let stream = &connection.stream;
        let drained = if self.reader.receives_concurrently() {
            match either(stream.drained(limit), self.discard()).await {
                Either::First(drained) => drained,
                // A client that has left is noticed when sending fails.
                Either::Second(_) => stream.drained(limit).await,
            }
        } else {
            stream.drained(limit).await
        };
        if let Err(error) = &drained {
            self.timed_out = error.kind() == ErrorKind::TimedOut;
        }
        drained
    }

    fn set_send_timeout(&mut self, timeout: Duration, resets: bool) {
        let stream = &self.connection.stream;
        stream.set_send_timeout_and_reset(timeout, resets);
    }

    /// Received bytes are kept, since they may be pipelined requests, but not more than
    /// `AHEAD_MAX`. If the client has sent more, its close is not noticed.
    async fn client_gone(&mut self) -> Abort {
        let takes_body = !matches!(self.reader, BodyReader::Handler);
        if takes_body && let Err(left) = self.discard().await {
            return left;
        }
        if !self.intake.is_read() {
            return std::future::pending().await;
        }
        while self.intake.input.len() < AHEAD_MAX {
            match self.connection.stream.recv(None).await {
                Ok(buffer) if buffer.is_empty() => {
                    return H1::left();
                }
                Ok(mut buffer) if self.intake.input.is_empty() => {
                    buffer.fit(); // the buffer may be kept until the response has been sent
                    self.intake.input = buffer;
                }
                Ok(buffer) => {
                    let joined = [self.intake.input.as_ref(), buffer.as_ref()].concat();
                    self.intake.input = Buffer::copy_of(&joined);
                }
                Err(error) => return error.into(),
            }
        }
        std::future::pending().await
    }

    fn finish(&mut self) {
        self.connection.finish_response();
    }

    fn is_whole(&self) -> bool {
        !matches!(self.progress, SendProgress::Length { left } if left > 0)
    }
}

/// Logs a fault of a body that is being discarded.
fn log_body_fault(request: &Request, abort: &Abort) {
    if let Some((level, text)) = body_fault(abort, true) {
        logs::write(request, level, format_args!("{text}"));
    }
}

/// Whether the connection may serve another request after this one.
pub fn may_keep_alive(connection: &Connection, request: &Request) -> bool {
    location_keeps_alive(connection, request) && server_keeps_alive(connection)
}

/// Whether the current location permits keep-alive.
pub fn location_keeps_alive(connection: &Connection, request: &Request) -> bool {
    let core = &request.plan.core;
    !core.keepalive_timeout.is_zero()
        && connection.requests.get() < core.keepalive_requests
        && engine::uptime().saturating_sub(connection.client.accepted()) <= core.keepalive_time
        && core.keepalive_disable.allows(request)
}

/// Whether the state of the connection and of the worker permits keep-alive.
fn server_keeps_alive(connection: &Connection) -> bool {
    !connection.is_ending() && !connection.has_lost_listener()
}

/// How a response's body is framed, and whether the connection is kept alive.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    /// Whether `Transfer-Encoding: chunked` frames the body.
    pub chunked: bool,
    /// Whether `Connection: keep-alive` is announced.
    pub keep_alive: bool,
}

impl Framing {
    /// Writes the fields of the framing for a head with this status.
    fn write(self, status: u16, keepalive_header: Option<u64>, out: &mut Vec<u8>) {
        if self.chunked {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        if status == 101 {
            out.extend_from_slice(b"Connection: upgrade\r\n");
        } else if self.keep_alive {
            out.extend_from_slice(b"Connection: keep-alive\r\n");
            if let Some(seconds) = keepalive_header {
                // Writing to a vector cannot fail.
                let _ = write!(out, "Keep-Alive: timeout={seconds}\r\n");
            }
        } else {
            out.extend_from_slice(b"Connection: close\r\n");
        }
    }
}

/// Writes the head: the status line, and the fields in nginx's order.
pub fn write_head(request: &mut Request, framing: Framing, out: &mut Vec<u8>) {
    let response = &request.response;
    match &response.status_text {
        Some(text) => {
            out.extend_from_slice(b"HTTP/1.1 ");
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
        None => status::write_line(response.status, out),
    }
    let status = response.status;
    let keepalive_header = request.plan.core.keepalive_header;
    fields::for_each(request, |line| match line {
        HeadLine::Field(name, value) => write_field(out, name, value),
        HeadLine::OfConnection => framing.write(status, keepalive_header, out),
    });
    out.extend_from_slice(b"\r\n");
}

fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[&[u8]]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    for part in value {
        proto::header::append_value(part, out);
    }
    out.extend_from_slice(b"\r\n");
}
