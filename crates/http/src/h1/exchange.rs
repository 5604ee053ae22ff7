//! The exchange of HTTP/1.0 and 1.1: framing both ways, keep-alive, lingering close.
//!
//! RFC 9112. Parsing is `proto::h1`'s; this file knows the connection. How fast a response leaves
//! is decided above it (see [`sender`](crate::exchange::sender)).

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
use crate::exchange::upload::{H1Upload, Lent};
use crate::h1::intake::{BodyPart, Intake};
use crate::logging::body_fault::body_fault;
use crate::request::Request;
use crate::request::body::RequestBody;
use crate::response::Field;
use crate::response::prebuilt::ResponseForm;
use crate::response::prebuilt::recording;

/// How often more of a body that is dropped is received before its response begins.
const DROPPED_AT_ONCE_MAX: usize = 64;

/// What a client that sent `Expect: 100-continue` waits for.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// How much of a client's next requests is received while a response to it is prepared, in bytes.
const AHEAD_MAX: usize = 16 * 1024;

/// Whether the connection goes on after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Wait for the next request.
    KeepAlive,
    /// The response was the last; the rest is sent, then the socket closed.
    Close {
        /// The client has said that it sends nothing more.
        client_is_done: bool,
    },
    /// Nothing more is to be sent.
    Drop,
}

impl After {
    /// Closing a connection on which the client may be sending.
    pub const CLOSE: After = After::Close {
        client_is_done: false,
    };
}

/// Who takes what comes of the request's body.
///
/// ```text
///               upload                     the client resets, or ends what an upload has read
///   Handler ◀───────────▶ Upload      ┌──────────────────────────────────────▶ ClientLeft
///      │  settle            │         │
///      └────────────────────┴──────▶ Discard
///        begin_discarding, reclaim
/// ```
enum BodyReader {
    /// A handler, when it asks for more; nobody, as long as it does not.
    Handler,
    /// What reads the body beside the response, which has the [`Intake`] meanwhile.
    Upload(Rc<Lent>),
    /// Nobody: it is received and dropped, whatever else is waited for.
    Discard,
    /// Nobody: as it was dropped, the client was found to have left.
    ClientLeft,
}

impl BodyReader {
    /// From now on what comes is dropped; nothing does from a client that has left.
    fn begin_discarding(&mut self) {
        if !matches!(self, BodyReader::ClientLeft) {
            *self = BodyReader::Discard;
        }
    }

    /// Whether the body is received while something else is waited for.
    fn receives_beside(&self) -> bool {
        matches!(self, BodyReader::Upload(_) | BodyReader::Discard)
    }
}

/// How far the response has come.
///
/// ```text
///                send_head                              upgrade
///   HeadUnsent ─────────────▶ Chunks, Length, Unframed ─────────▶ Upgraded
///                               │ take_back
///                               └──────────▶ TakenBack
/// ```
#[derive(Clone, Copy)]
enum SendProgress {
    HeadUnsent,
    /// Behind the head the body is sent in chunks.
    Chunks,
    /// Behind the head the body is sent, whose length was announced.
    Length {
        left: u64,
    },
    /// Behind the head comes no body, or one that ends with the connection.
    Unframed,
    /// Nothing of the response has left, and nothing will.
    TakenBack,
    /// The connection is the tunnel's.
    Upgraded,
}

impl SendProgress {
    fn has_sent_head(self) -> bool {
        !matches!(self, SendProgress::HeadUnsent)
    }

    fn is_upgraded(self) -> bool {
        matches!(self, SendProgress::Upgraded)
    }

    /// Gives up a response of which nothing has left. What a tunnel has carried stays carried.
    fn take_back(&mut self) {
        if !self.is_upgraded() {
            *self = SendProgress::TakenBack;
        }
    }
}

/// What becomes of the connection behind the response. Each step leads further down, and none back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Persistence {
    KeepAlive,
    /// It closes, once a body that is still to come has been waited for.
    Close,
    /// It closes, and no body is waited for.
    CloseWithoutBody,
}

impl Persistence {
    /// The connection is to close at least so soon.
    fn advance(&mut self, to: Persistence) {
        *self = (*self).max(to);
    }

    fn keeps_alive(self) -> bool {
        self == Persistence::KeepAlive
    }

    /// Whether a body that is still to come may be waited for.
    fn may_linger(self) -> bool {
        self != Persistence::CloseWithoutBody
    }
}

/// One request and its response on an HTTP/1 connection.
pub struct H1 {
    connection: Rc<Connection>,
    /// Whatever takes bytes from it calls [`H1::heed_intake`] then.
    intake: Intake,
    reader: BodyReader,
    /// What was counted of a body that an upload has read, until the request has it.
    counted: Option<Box<RequestBody>>,
    /// An upload has begun to read the body, even if nothing of it has come.
    had_upload: bool,
    version: Version,
    /// The client waits for `100 Continue`.
    continue_wanted: bool,
    persistence: Persistence,
    /// The client has said that this is its last request.
    client_is_done: bool,
    /// What was wrong with a body that was discarded, until it is logged.
    bad_body: Option<Abort>,
    progress: SendProgress,
    /// Whether the kernel may send files.
    sendfile: bool,
    /// The client took or gave nothing for too long.
    timed_out: bool,
    /// What of the head waits for its time (`limit_rate`).
    held: Bytes,
    /// The response as it leaves, where its scope always gives the same one.
    constant: Option<Box<recording::ConstantResponse>>,
}

impl H1 {
    /// An exchange for a parsed head; `input` is what has been received after it.
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
            continue_wanted: version >= Version::Http11
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

    /// An exchange that only says why it is none; `length` is that of the body which comes with the
    /// head, as far as that tells: such a body is received to its end, as any other.
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

    /// An exchange of which nothing is known but where it comes from: its client waits for nothing,
    /// and its connection ends with it.
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
            continue_wanted: false,
            persistence: Persistence::Close,
            client_is_done: false,
            bad_body: None,
            progress: SendProgress::HeadUnsent,
            sendfile: false,
            timed_out: false,
            held: Bytes::new(),
            constant: None,
        }
    }

    /// Does what `Exchange::can_sendfile` says.
    pub fn can_sendfile(&self, length: u64) -> bool {
        self.sendfile && self.connection.stream.can_sendfile(length)
    }

    /// Does what `Exchange::forbid_keepalive` says.
    pub fn forbid_keepalive(&mut self) {
        self.persistence.advance(Persistence::Close);
    }

    /// Does what `Exchange::forbid_lingering` says.
    pub fn forbid_lingering(&mut self) {
        self.persistence.advance(Persistence::CloseWithoutBody);
    }

    /// Does what `Exchange::no_continue` says.
    pub fn no_continue(&mut self) {
        self.continue_wanted = false;
    }

    /// Does what `Exchange::has_buffered_body` says.
    pub fn has_buffered_body(&self) -> bool {
        let intake = &self.intake;
        intake.is_read() || !intake.input.is_empty() || self.connection.stream.has_received()
    }

    /// Does what `Exchange::receive_at_hand` says.
    pub async fn receive_at_hand(&mut self, request: &Request) -> bool {
        if self.has_buffered_body() {
            return true;
        }
        if !self.intake.filled || self.intake.is_read() {
            return false; // the kernel had no more
        }
        // io_uring takes a round of the loop for it.
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
            _ => false, // an end or an error is found again
        }
    }

    /// Does what `Exchange::upgrade` says.
    pub fn upgrade(&mut self) -> Upgraded {
        self.persistence.advance(Persistence::CloseWithoutBody);
        self.progress = SendProgress::Upgraded;
        self.settle();
        Upgraded::h1(&self.connection, std::mem::take(&mut self.intake.input))
    }

    /// Does what `Exchange::read_body` says.
    pub async fn read_body(&mut self, request: &mut Request) -> Result<Option<Bytes>, Abort> {
        self.take_back_intake(request);
        self.send_continue(request);
        let read = self.read_next(request).await;
        self.heed_intake();
        read
    }

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

    /// Sends `100 Continue` where the client waits for it.
    fn send_continue(&mut self, request: &mut Request) {
        if std::mem::take(&mut self.continue_wanted) && !self.has_sent_head() {
            let stream = &self.connection.stream;
            stream.push(Segment::Bytes(Bytes::from_static(CONTINUE)));
            stream.start_send();
            // All but the response's own head counts as its body, as in nginx.
            request.sent.bytes += CONTINUE.len() as u64;
            request.sent.body_bytes += CONTINUE.len() as u64;
        }
    }

    /// Does what `Exchange::upload` says.
    pub fn upload(&mut self, request: &mut Request) -> Option<H1Upload> {
        self.take_back_intake(request);
        if !matches!(self.reader, BodyReader::Handler) {
            return None; // some of it may have been dropped
        }
        self.send_continue(request);
        let intake = std::mem::take(&mut self.intake);
        let lent = Rc::new(Lent::new(&self.connection, intake, request.body.clone()));
        self.reader = BodyReader::Upload(Rc::clone(&lent));
        Some(H1Upload::new(lent, &request.plan.core))
    }

    /// Takes back what had been lent to an upload, which gets no more of the body.
    fn settle(&mut self) {
        if let BodyReader::Upload(lent) = &self.reader {
            let (intake, counted) = lent.give_back();
            self.reader = BodyReader::Handler;
            self.had_upload = true;
            self.intake = intake;
            self.counted = Some(Box::new(counted));
            self.heed_intake();
        }
    }

    /// Takes back what had been lent to an upload, and gives the request what was counted there.
    fn take_back_intake(&mut self, request: &mut Request) {
        self.settle();
        if let Some(counted) = self.counted.take() {
            request.body.count_as(&counted);
        }
    }

    /// Decides by what has come of the body how the connection goes on.
    fn heed_intake(&mut self) {
        if self.intake.is_lost {
            self.persistence.advance(Persistence::CloseWithoutBody);
        } else if self.intake.refused {
            self.persistence.advance(Persistence::Close);
        }
        self.timed_out |= self.intake.timed_out;
    }

    /// Drops what of the received bytes belongs to the body.
    fn drop_received(&mut self) -> Result<(), Abort> {
        let dropped = self.intake.drop_received();
        self.heed_intake();
        dropped
    }

    /// Waits until an upload needs no more of the body. If the response has begun, the rest of the
    /// body is discarded then.
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

    /// What ends an exchange whose client sends nothing more.
    fn left() -> Abort {
        Abort::Closed(ErrorKind::ConnectionAborted.into())
    }

    /// Receives and drops what comes of a body that is discarded, beside whatever else is waited
    /// for: a client may send all of it before it reads. Returns once no more of it is to come.
    ///
    /// # Errors
    /// Where the client has left, and how.
    async fn discard(&mut self) -> Result<(), Abort> {
        self.reclaim().await;
        loop {
            match &self.reader {
                BodyReader::ClientLeft => return Err(H1::left()),
                BodyReader::Discard if !self.intake.is_read() => {}
                _ => return Ok(()),
            }
            if !self.intake.input.is_empty() {
                self.bad_body = self.drop_received().err();
                self.intake.input.fit(); // it may be kept as long as the response takes
                continue;
            }
            let received = self.connection.stream.recv(None).await;
            match received {
                Ok(buffer) if !buffer.is_empty() => self.intake.input = buffer,
                end => {
                    self.persistence.advance(Persistence::CloseWithoutBody);
                    // A client that sends nothing more may still read. As in nginx, of a body that
                    // an upload has read the whole is wanted.
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

    /// Does what `Exchange::drop_body_at_hand` says.
    pub async fn drop_body_at_hand(&mut self, request: &mut Request) -> Result<(), Abort> {
        if matches!(&self.reader, BodyReader::Upload(lent) if !lent.is_over()) {
            return Ok(());
        }
        self.take_back_intake(request);
        if !self.intake.is_read() {
            self.drop_received()?;
            for _ in 0..DROPPED_AT_ONCE_MAX {
                if self.intake.is_read() || !self.receive_at_hand(request).await {
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

    /// Does what `Exchange::send_early_hints` says.
    pub fn send_early_hints(&mut self, request: &mut Request, fields: &[Field]) {
        if self.has_sent_head() || self.version < Version::Http11 || fields.is_empty() {
            return;
        }
        let mut head = status::EARLY_HINTS.to_vec();
        for field in fields {
            write_field(&mut head, &field.name, &[&field.value]);
        }
        head.extend_from_slice(b"\r\n");
        // All but the response's own head counts as its body, as in nginx.
        request.sent.bytes += head.len() as u64;
        request.sent.body_bytes += head.len() as u64;
        self.connection.stream.push(Segment::Bytes(head.into()));
        self.connection.stream.start_send();
    }

    /// Does what `Exchange::keeps_alive` says.
    pub fn keeps_alive(&self, request: &Request) -> bool {
        self.may_go_on(request) && server_keeps_alive(&self.connection)
    }

    /// Whether nothing that the client or the request has said ends the connection.
    fn may_go_on(&self, request: &Request) -> bool {
        self.persistence.keeps_alive() && !request.keepalive.refused
    }

    /// Does what `Exchange::has_sent_head` says.
    pub fn has_sent_head(&self) -> bool {
        self.progress.has_sent_head()
    }

    /// Does what `Exchange::send_head` says.
    pub fn send_head(&mut self, request: &mut Request) -> Result<(), Abort> {
        let plan = Arc::clone(&request.plan);
        self.sendfile = plan.core.sendfile;
        let (stream, core) = (&self.connection.stream, &plan.core);
        stream.set_nopush(core.tcp_nopush);
        let chunk = core.sendfile_max_chunk;
        stream.set_sendfile_chunk(chunk.unwrap_or(SENDFILE_CHUNK_DEFAULT));
        let without_body = request.method == Method::Head
            || matches!(request.response.status, 204 | 304 | 100..=199)
            // What follows is no body (RFC 9110, section 9.3.6).
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
        // What is behind a head that ends this protocol is not paced.
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

    /// [`finish`](Self::finish) where nothing has to be waited for, as is usual: the response is
    /// whole, the request's body has been read, and the connection goes on. What has been received
    /// behind the request comes back; `None` where it is not so.
    pub fn finish_at_once(&mut self, request: &mut Request, whole: bool) -> Option<Buffer> {
        let core = &request.plan.core;
        let had_upload = matches!(self.reader, BodyReader::Upload(_)) || self.counted.is_some();
        let is_whole = whole && (self.is_whole() || request.response.header_only);
        let stays = self.may_go_on(request) && !core.keepalive_timeout.is_zero();
        let is_odd = had_upload || self.progress.is_upgraded() || self.bad_body.is_some();
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

    /// Leaves the connection to the next request, or says that there is none; discards what is
    /// left of the request's body. The rest of the received bytes comes back.
    pub async fn finish(mut self, request: &mut Request, whole: bool) -> (After, Buffer) {
        self.take_back_intake(request);
        if self.progress.is_upgraded() {
            return (After::Drop, Buffer::default());
        }
        if !whole || !(self.is_whole() || request.response.header_only) {
            let after = self.break_off(request);
            // As in nginx, a client that still sends its body is read from, so that no reset
            // destroys what it has got.
            let lingers = request.plan.core.lingering_close != LingeringClose::Off;
            let is_sending = !self.intake.is_read() && self.has_begun(request);
            let lingers = lingers && is_sending && self.persistence.may_linger();
            if after == After::CLOSE && self.has_sent_head() && lingers {
                self.linger(request).await;
                return (After::Drop, Buffer::default());
            }
            return (after, Buffer::default());
        }
        if let Some(sent) = self.constant.take() {
            sent.keep(request, ResponseForm::of_http1(request.keepalive.on));
        }
        let core = Arc::clone(&request.plan.core);
        if !self.intake.is_read() && self.persistence.may_linger() && !self.intake.refused {
            // A client may send all of its body before it reads. As in nginx, the time for what is
            // waited for begins when the response has left.
            self.reader.begin_discarding();
            if self.drained(0).await.is_err() {
                return (self.break_off(request), Buffer::default());
            }
            // A body that no handler reads is received to its end; one that a handler began to read
            // and left is no reason to wait.
            if !self.has_begun(request) && !self.skip_body(request).await {
                return (After::Drop, Buffer::default());
            }
        }
        if let Some(abort) = self.bad_body.take() {
            log_body_fault(request, &abort);
        }
        // A server whose script answers may have announced what its `keepalive_timeout 0` does not
        // keep, and where `post_action` leads to may refuse what the response has announced.
        let stays = self.may_go_on(request) && !core.keepalive_timeout.is_zero();
        if stays && self.skip_body(request).await {
            if core.tcp_nodelay && !self.connection.nodelay.replace(true) {
                self.connection.stream.set_nodelay(true);
            }
            self.connection
                .keep_for(core.keepalive_timeout, core.keepalive_min_timeout);
            return (After::KeepAlive, self.intake.input);
        }
        if stays && !self.intake.is_read() {
            return (After::Drop, Buffer::default()); // it has been waited for
        }
        let intake = &self.intake;
        let at_hand =
            intake.refused || !intake.input.is_empty() || self.connection.stream.has_received();
        let unread = at_hand || !intake.is_read();
        let linger = match core.lingering_close {
            LingeringClose::Off => false,
            // What the client has sent already would answer a close with a reset.
            LingeringClose::On => at_hand || (unread && self.persistence.may_linger()),
            LingeringClose::Always => true,
        };
        if linger {
            self.linger(request).await;
            return (After::Drop, Buffer::default());
        }
        let client_is_done = self.client_is_done && !unread;
        (After::Close { client_is_done }, Buffer::default())
    }

    /// Whether a handler has begun to read the body.
    fn has_begun(&self, request: &Request) -> bool {
        self.had_upload || request.body.is_begun()
    }

    /// Says that nothing more is sent, and reads away what the client does.
    async fn linger(&mut self, request: &Request) {
        if !self.intake.is_read() {
            // It may send all of its body before it reads what is left of the response.
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

    /// A response that could not be completed: the client must see that.
    fn break_off(&mut self, request: &mut Request) -> After {
        if self.timed_out || request.response.status == 444 {
            if request.plan.core.reset_timedout_connection {
                self.connection.stream.reset_when_dropped();
                return After::Drop;
            }
            if self.timed_out {
                return After::Drop;
            }
        }
        // Where nothing has left yet, the client gets no answer rather than a broken one.
        let is_taken_back = matches!(self.progress, SendProgress::TakenBack);
        if is_taken_back || self.has_unsent(request) {
            return After::Drop;
        }
        After::CLOSE
    }

    /// Does what `Exchange::has_unsent` says.
    pub fn has_unsent(&self, request: &Request) -> bool {
        self.connection.stream.has_unsent(request.sent.bytes)
    }

    /// Does what `Exchange::take_back` says.
    pub fn take_back(&mut self, request: &mut Request) {
        if self.has_unsent(request) {
            self.progress.take_back();
            request.sent.bytes = 0;
            request.sent.body_bytes = 0;
        }
    }

    /// Reads and drops what is left of the request's body so that the next request can follow.
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
                        self.connection.stream.reset_when_dropped();
                    }
                    return false;
                }
                _ => return false,
            }
        }
    }

    /// Whether the end of the connection is all that tells the client where the body ends.
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
        let drained = if self.reader.receives_beside() {
            match either(stream.drained(limit), self.discard()).await {
                Either::First(drained) => drained,
                // A client that has left is found out by what is sent to it.
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

    /// Bytes that come meanwhile (pipelined requests) are kept, up to `AHEAD_MAX` of them: a
    /// client that has sent more is not seen to leave.
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
                    buffer.fit(); // it may be kept as long as the response takes
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

/// Says what was wrong with a body that is being dropped.
fn log_body_fault(request: &Request, abort: &Abort) {
    if let Some((level, text)) = body_fault(abort, true) {
        logs::write(request, level, format_args!("{text}"));
    }
}

/// Whether the connection may serve another request after this one.
pub fn may_keep_alive(connection: &Connection, request: &Request) -> bool {
    location_keeps_alive(connection, request) && server_keeps_alive(connection)
}

/// Whether the location in force lets the connection serve another request.
pub fn location_keeps_alive(connection: &Connection, request: &Request) -> bool {
    let core = &request.plan.core;
    !core.keepalive_timeout.is_zero()
        && connection.requests.get() < core.keepalive_requests
        && engine::uptime().saturating_sub(connection.client.accepted()) <= core.keepalive_time
        && core.keepalive_disable.allows(request)
}

/// Whether nothing that is no request's business ends the connection.
fn server_keeps_alive(connection: &Connection) -> bool {
    !connection.is_ending() && !connection.is_left_over()
}

/// How a response's body is delimited and what follows it.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    /// Whether `Transfer-Encoding: chunked` frames the body.
    pub chunked: bool,
    /// Whether `Connection: keep-alive` is announced.
    pub keep_alive: bool,
}

impl Framing {
    /// Writes what a head of this status says of it.
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
