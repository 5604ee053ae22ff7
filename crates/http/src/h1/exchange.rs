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

/// One request and its response on an HTTP/1 connection.
pub struct H1 {
    connection: Rc<Connection>,
    /// What takes some of it heeds what has come ([`H1::heed_intake`]).
    intake: Intake,
    /// While that is with what reads the body beside the response.
    lent: Option<Rc<Lent>>,
    /// What was counted of a body that was read so, until the request has it.
    counted: Option<Box<RequestBody>>,
    /// It has been with that: a handler has begun to read the body, be it that nothing of it has
    /// come.
    was_lent: bool,
    /// The client has been found to have left while its body was dropped.
    has_left: bool,
    version: Version,
    /// The client waits for `100 Continue`.
    continue_wanted: bool,
    keep_alive: bool,
    /// The client has said that this is its last request.
    client_is_done: bool,
    /// A body that is still to come is waited for before the connection closes.
    may_linger: bool,
    /// What comes of the request's body is dropped, whatever else is waited for.
    discards: bool,
    /// What was wrong with a body that was dropped so, until it is logged.
    bad_body: Option<Abort>,
    /// The response's body is sent in chunks.
    chunked: bool,
    /// What is left of the announced length of the response's body.
    announced: Option<u64>,
    head_sent: bool,
    /// Whether the kernel may send files.
    sendfile: bool,
    upgraded: bool,
    /// The client took or gave nothing for too long.
    timed_out: bool,
    /// Nothing of the response has left, and nothing will.
    taken_back: bool,
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
            keep_alive: keeps_alive,
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
            lent: None,
            counted: None,
            was_lent: false,
            has_left: false,
            version,
            continue_wanted: false,
            keep_alive: false,
            client_is_done: false,
            may_linger: true,
            discards: false,
            bad_body: None,
            chunked: false,
            announced: None,
            head_sent: false,
            sendfile: false,
            upgraded: false,
            timed_out: false,
            taken_back: false,
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
        self.keep_alive = false;
    }

    /// Does what `Exchange::forbid_lingering` says.
    pub fn forbid_lingering(&mut self) {
        self.may_linger = false;
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
        self.keep_alive = false;
        self.may_linger = false;
        self.upgraded = true;
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
        if std::mem::take(&mut self.continue_wanted) && !self.head_sent {
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
        if self.discards {
            return None; // some of it may have been dropped
        }
        self.send_continue(request);
        let intake = std::mem::take(&mut self.intake);
        let lent = Rc::new(Lent::new(&self.connection, intake, request.body.clone()));
        self.lent = Some(Rc::clone(&lent));
        Some(H1Upload::new(lent, &request.plan.core))
    }

    /// Takes back what had been lent to what reads the body beside the response, which gets no more
    /// of it.
    fn settle(&mut self) {
        if let Some(lent) = self.lent.take() {
            self.was_lent = true;
            let (intake, counted) = lent.give_back();
            self.intake = intake;
            self.counted = Some(Box::new(counted));
            self.heed_intake();
        }
    }

    /// The same; what was counted is the request's.
    fn take_back_intake(&mut self, request: &mut Request) {
        self.settle();
        if let Some(counted) = self.counted.take() {
            request.body.count_as(&counted);
        }
    }

    /// What has come of the body may say how the connection goes on.
    fn heed_intake(&mut self) {
        if self.intake.is_lost {
            self.keep_alive = false;
            self.may_linger = false;
        }
        self.keep_alive &= !self.intake.refused;
        self.timed_out |= self.intake.timed_out;
    }

    /// Drops what of the received bytes belongs to the body.
    fn drop_received(&mut self) -> Result<(), Abort> {
        let dropped = self.intake.drop_received();
        self.heed_intake();
        dropped
    }

    /// Waits until what reads the body beside the response needs no more of it. Of a response that
    /// has begun the rest of the body is dropped then.
    async fn reclaim(&mut self) {
        if let Some(lent) = self.lent.clone() {
            lent.over().await;
            self.settle();
            self.discards = self.head_sent && !self.intake.is_read();
        }
    }

    /// What ends an exchange whose client sends nothing more.
    fn left() -> Abort {
        Abort::Closed(ErrorKind::ConnectionAborted.into())
    }

    /// Receives and drops what comes of a body that is discarded, beside whatever else is waited
    /// for: a client may send all of it before it reads. Returns once no more of it is to come;
    /// why, where the client has left.
    async fn discard(&mut self) -> Result<(), Abort> {
        self.reclaim().await;
        if self.has_left {
            return Err(H1::left());
        }
        while self.discards && !self.intake.is_read() {
            if !self.intake.input.is_empty() {
                self.bad_body = self.drop_received().err();
                self.intake.input.fit(); // it may be kept as long as the response takes
                continue;
            }
            let received = self.connection.stream.recv(None).await;
            match received {
                Ok(buffer) if !buffer.is_empty() => self.intake.input = buffer,
                end => {
                    self.discards = false;
                    self.keep_alive = false;
                    self.may_linger = false;
                    // One that sends nothing more may still read. As in nginx, of a body that was
                    // read beside the response the whole is wanted.
                    self.has_left = end.is_err() || self.was_lent;
                    end?;
                    if self.was_lent {
                        return Err(H1::left());
                    }
                }
            }
        }
        Ok(())
    }

    /// Does what `Exchange::drop_body_at_hand` says.
    pub async fn drop_body_at_hand(&mut self, request: &mut Request) -> Result<(), Abort> {
        if self.lent.as_ref().is_some_and(|lent| !lent.is_over()) {
            return Ok(()); // something reads it beside the response
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
                self.discards = true;
            }
        }
        Ok(())
    }

    /// Does what `Exchange::send_early_hints` says.
    pub fn send_early_hints(&mut self, request: &mut Request, fields: &[Field]) {
        if self.head_sent || self.version < Version::Http11 || fields.is_empty() {
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
        self.keep_alive && !request.keepalive.refused && server_keeps_alive(&self.connection)
    }

    /// Does what `Exchange::has_sent_head` says.
    pub fn has_sent_head(&self) -> bool {
        self.head_sent
    }

    /// Does what `Exchange::send_head` says.
    pub fn send_head(&mut self, request: &mut Request) -> Result<(), Abort> {
        let plan = Arc::clone(&request.plan);
        self.head_sent = true;
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
        if !without_body && (unknown || request.response.expect_trailers) {
            if self.version >= Version::Http11 && plan.core.chunked_transfer_encoding {
                self.chunked = true;
                request.response.content_length = None;
            } else if unknown {
                self.keep_alive = false;
            }
        }
        self.announced = if self.chunked {
            None
        } else {
            request.response.content_length
        };
        self.keep_alive = self.keeps_alive(request);
        if self.version == Version::Http09 {
            self.keep_alive = false;
            return Ok(());
        }
        request.keepalive.on = self.keep_alive;
        request.sent.chunked = self.chunked;
        let mut head = engine::spare_bytes(512);
        let framing = Framing {
            chunked: self.chunked,
            keep_alive: self.keep_alive,
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
        let is_lent = self.lent.is_some() || self.counted.is_some();
        let is_whole = whole && (self.is_whole() || request.response.header_only);
        let stays =
            self.keep_alive && !request.keepalive.refused && !core.keepalive_timeout.is_zero();
        let is_odd = is_lent || self.upgraded || self.bad_body.is_some();
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
        if self.upgraded {
            return (After::Drop, Buffer::default());
        }
        if !whole || !(self.is_whole() || request.response.header_only) {
            let after = self.break_off(request);
            // As in nginx, a client that still sends its body is read from, so that no reset
            // destroys what it has got.
            let lingers = request.plan.core.lingering_close != LingeringClose::Off;
            let is_sending = !self.intake.is_read() && self.has_begun(request) && self.may_linger;
            if after == After::CLOSE && self.head_sent && lingers && is_sending {
                self.linger(request).await;
                return (After::Drop, Buffer::default());
            }
            return (after, Buffer::default());
        }
        if let Some(sent) = self.constant.take() {
            sent.keep(request, ResponseForm::of_http1(request.keepalive.on));
        }
        let core = Arc::clone(&request.plan.core);
        if !self.intake.is_read() && self.may_linger && !self.intake.refused {
            // A client may send all of its body before it reads. As in nginx, the time for what is
            // waited for begins when the response has left.
            self.discards = true;
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
        let stays =
            self.keep_alive && !request.keepalive.refused && !core.keepalive_timeout.is_zero();
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
            LingeringClose::On => at_hand || (unread && self.may_linger),
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
        self.was_lent || request.body.is_begun()
    }

    /// Says that nothing more is sent, and reads away what the client does.
    async fn linger(&mut self, request: &Request) {
        if !self.intake.is_read() {
            // It may send all of its body before it reads what is left of the response.
            self.discards = true;
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
        if self.taken_back || self.has_unsent(request) {
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
            self.taken_back = true;
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
        self.head_sent && !self.chunked && self.announced.is_none()
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
        if let Some(announced) = &mut self.announced {
            *announced = announced.saturating_sub(length);
        }
        if !self.chunked {
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
        if !self.chunked {
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
        let drained = if self.discards || self.lent.is_some() {
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
        let reads_body = self.discards || self.lent.is_some() || self.has_left;
        if reads_body && let Err(left) = self.discard().await {
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
        self.announced.is_none_or(|left| left == 0)
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
