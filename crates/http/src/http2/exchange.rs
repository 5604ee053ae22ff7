//! The exchange of one stream: the handler's access to the request's body and the response.
//!
//! The connection does framing, flow control and the scheduling of streams. Pacing and waiting for
//! a slow client are decided by the caller, as with HTTP/1 ([`sender`](crate::exchange::sender)).

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::net::Segment;
use proto::h2::{ErrorCode, frame};
use proto::method::Method;

use crate::exchange::abort::Abort;
use crate::exchange::sender::Wire;
use crate::http2::head;
use crate::http2::stream::{AHEAD_MAX, Flow, SharedConnection};
use crate::http2::tunnel::Tunnel;
use crate::http2::upload::{self, H2Upload};
use crate::request::Request;
use crate::response::{Field, Response};

/// The length of a frame's header in bytes.
const FRAME_HEAD: u64 = frame::HEAD_LENGTH as u64;

/// One request and its response on a stream.
pub struct H2 {
    shared: Rc<SharedConnection>,
    flow: Rc<Flow>,
    send_timeout: Duration,
    /// Whether the response's head has been queued.
    head_sent: bool,
    /// Maximum number of bytes of the body in one frame.
    frame_size: u64,
    /// The bytes that are missing to the announced length of the response's body.
    announced: Option<u64>,
    expects_trailers: bool,
    trailers: Vec<Field>,
    /// Whether the client has sent an extended CONNECT. Such a client regards any 2xx response as
    /// an open tunnel (RFC 8441, section 4).
    asks_for_tunnel: bool,
}

impl H2 {
    /// The exchange of a stream that has been opened.
    pub fn new(shared: &Rc<SharedConnection>, flow: &Rc<Flow>, asks_for_tunnel: bool) -> H2 {
        H2 {
            shared: Rc::clone(shared),
            flow: Rc::clone(flow),
            send_timeout: Duration::from_secs(60),
            head_sent: false,
            frame_size: 1,
            announced: None,
            expects_trailers: false,
            trailers: Vec::new(),
            asks_for_tunnel,
        }
    }

    /// See `Exchange::asks_for_tunnel`.
    pub fn asks_for_tunnel(&self) -> bool {
        self.asks_for_tunnel
    }

    /// See `Exchange::upgrade`.
    pub fn upgrade(&mut self) -> Tunnel {
        Tunnel::new(&self.shared, &self.flow, self.send_timeout)
    }

    /// See `Exchange::read_body`.
    pub async fn read_body(&mut self, request: &mut Request) -> Result<Option<Bytes>, Abort> {
        if self.asks_for_tunnel {
            request.body.note_end();
            return Ok(None); // the stream carries tunnel data, not a body
        }
        let core = Arc::clone(&request.plan.core);
        let deadline = request.body.wait_until(core.client_body_timeout);
        let part = upload::next_part(&self.shared, &self.flow, deadline).await?;
        let Some(part) = part else {
            request.body.note_end();
            return Ok(None);
        };
        let (length, size_max) = (part.len() as u64, core.client_max_body_size);
        let received = request.body.received();
        request.body.note_received(length);
        if size_max != 0 && received + length > size_max {
            return Err(Abort::BodyTooLarge {
                received,
                chunk: length,
            });
        }
        if self.flow.is_read() {
            request.body.note_end();
        }
        Ok(Some(part))
    }

    /// See `Exchange::upload`.
    pub fn upload(&self, request: &mut Request) -> Option<H2Upload> {
        if self.asks_for_tunnel {
            return None;
        }
        Some(H2Upload::new(&self.shared, &self.flow, request))
    }

    /// See `Exchange::has_buffered_body`.
    pub fn has_buffered_body(&self) -> bool {
        self.asks_for_tunnel || self.flow.is_readable()
    }

    /// See `Exchange::discard_received_body`.
    pub fn discard_received_body(&mut self, request: &mut Request) {
        if self.asks_for_tunnel || self.flow.is_read() || self.flow.is_uploaded() {
            return; // nothing is left to discard, or an upload reads the body
        }
        if let Some(part) = self.flow.take_received() {
            upload::release_capacity(&self.shared, &self.flow, part.len());
        }
        request.body.note_skipped();
        if self.flow.is_read() {
            request.body.note_end();
        }
    }

    /// See `Exchange::send_head`.
    pub fn send_head(&mut self, request: &mut Request) -> Result<(), Abort> {
        let is_upgrade = request.response.status == 101;
        if is_upgrade {
            become_success(&mut request.response);
        } else if self.asks_for_tunnel && matches!(request.response.status, 200..=299) {
            return Err(Abort::Internal("no tunnel stands behind a success"));
        }
        let response = &request.response;
        let header_only = response.header_only
            || request.method == Method::Head
            || matches!(response.status, 204 | 304 | 100..=199);
        self.announced = response.content_length;
        self.expects_trailers = response.expect_trailers || response.may_have_trailers;
        let is_empty = response.content_length == Some(0) && !self.expects_trailers;
        self.head_sent = true;
        let mut block = engine::spare_bytes(512);
        head::write(request, &mut block);
        request.sent.bytes += FRAME_HEAD + block.len() as u64;
        let chunk_size = request.plan.core.http2_chunk_size;
        self.frame_size = chunk_size.clamp(1, frame::FRAME_SIZE_MAX_DEFAULT as usize) as u64;
        let ends = !is_upgrade && (header_only || is_empty);
        self.shared.send_head(&self.flow, &block, ends, chunk_size);
        engine::recycle_bytes(block);
        Ok(())
    }

    /// See `Exchange::send_early_hints`.
    pub fn send_early_hints(&mut self, request: &mut Request, fields: &[Field]) {
        if self.head_sent || fields.is_empty() {
            return;
        }
        let mut block = Vec::new();
        head::write_informational(103, fields, &mut block);
        request.sent.bytes += FRAME_HEAD + block.len() as u64;
        self.shared.send_head(&self.flow, &block, false, usize::MAX);
    }

    /// See `Exchange::has_sent_head`.
    pub fn has_sent_head(&self) -> bool {
        self.head_sent
    }

    /// Waits until the whole response has been given to the transport.
    ///
    /// # Errors
    /// `TimedOut` if the client gives no flow-control credit for the send timeout;
    /// `ConnectionReset` if the client has ended the stream.
    pub async fn ended(&mut self) -> io::Result<()> {
        self.wait(|flow| flow.has_ended()).await
    }

    /// Waits until the queue has been given to the transport.
    ///
    /// # Errors
    /// As of [`ended`](Self::ended).
    pub async fn emptied(&mut self) -> io::Result<()> {
        self.shared.call();
        self.wait(|flow| flow.queued() == 0).await
    }

    /// Waits until bytes of the response's body could be sent soon, since bytes that are read
    /// earlier would only occupy memory. Returns the number of bytes to read now.
    ///
    /// # Errors
    /// As of [`ended`](Self::ended).
    pub async fn room(&self) -> io::Result<u64> {
        if let Some(room) = self.shared.room(&self.flow) {
            return Ok(room);
        }
        let flow = &self.flow;
        if flow.has_begun() || flow.queued() > 0 {
            // Some bytes are kept ready, so that the stream has something to send when its next
            // turn comes.
            let shared = &self.shared;
            self.wait(|flow| flow.has_begun() && flow.queued() <= shared.ahead_max() / 2)
                .await?;
            return Ok(shared.ahead_max() - flow.queued());
        }
        self.shared.ask(flow);
        self.shared
            .wait(flow, self.send_timeout, Flow::take_granted)
            .await
    }

    async fn wait(&self, is_done: impl Fn(&Flow) -> bool) -> io::Result<()> {
        let look = |flow: &Flow| is_done(flow).then_some(());
        self.shared.wait(&self.flow, self.send_timeout, look).await
    }

    /// Resets a stream whose response will not be completed. Returns false if the stream had ended
    /// before.
    pub fn break_off(&self, timed_out: bool) -> bool {
        let is_under_way = !self.flow.has_ended();
        if is_under_way {
            // The error codes are nginx's.
            let code = if timed_out {
                ErrorCode::ProtocolError
            } else {
                ErrorCode::InternalError
            };
            self.shared.reset(&self.flow, code);
        }
        is_under_way
    }
}

/// Turns a 101 into the 200 that means the same in HTTP/2, without the field of the HTTP/1
/// handshake (RFC 8441, section 5).
fn become_success(response: &mut Response) {
    response.status = 200;
    response.content_length = None;
    response
        .fields
        .retain(|field| !field.name.eq_ignore_ascii_case(b"Sec-WebSocket-Accept"));
}

fn reset() -> Abort {
    Abort::Closed(io::ErrorKind::ConnectionReset.into())
}

impl Wire for H2 {
    const BACKLOG_MAX: usize = AHEAD_MAX;
    const FRAMING_IS_OF_BODY: bool = false;

    fn push(&mut self, segment: Segment, length: u64) -> u64 {
        self.shared.send(&self.flow, segment, length);
        if let Some(announced) = &mut self.announced {
            *announced = announced.saturating_sub(length);
            if *announced == 0 && !self.expects_trailers {
                // END_STREAM is set in the frame of the last bytes.
                self.shared.send_end(&self.flow, &[]);
            }
        }
        length.div_ceil(self.frame_size) * FRAME_HEAD
    }

    fn push_end(&mut self, request: &Request) -> u64 {
        self.trailers.clone_from(&request.response.trailers);
        0
    }

    fn start_send(&self) {
        self.shared.call();
    }

    fn backlog(&self) -> usize {
        usize::try_from(self.flow.queued()).unwrap_or(usize::MAX)
    }

    async fn drained(&mut self, limit: usize) -> io::Result<()> {
        self.wait(|flow| flow.queued() <= limit as u64).await
    }

    fn is_gone(&self) -> bool {
        self.flow.is_gone() && !self.flow.has_ended()
    }

    fn set_send_timeout(&mut self, timeout: Duration, _: bool) {
        self.send_timeout = timeout;
    }

    async fn client_gone(&mut self) -> Abort {
        let flow = Rc::clone(&self.flow);
        poll_fn(|context| flow.poll_received(context.waker(), |flow| flow.is_gone().then_some(())))
            .await;
        reset()
    }

    fn finish(&mut self) {
        if self.is_whole() {
            self.shared.send_end(&self.flow, &self.trailers);
        }
    }

    fn is_whole(&self) -> bool {
        self.announced.is_none_or(|left| left == 0)
    }
}
