//! Reads a request's body while it is received: for the exchange, or for an upload that runs
//! concurrently with the response.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::Sleep;
use engine::select::{Either, either};

use crate::exchange::abort::Abort;
use crate::http2::stream::{Flow, SharedConnection};
use crate::request::Request;

/// Bytes of a request's body that may be received before a handler reads them.
pub(super) const READING_WINDOW: u32 = 256 * 1024;

/// An upload on a stream; see [`Upload`](crate::exchange::upload::Upload).
pub struct H2Upload {
    shared: Rc<SharedConnection>,
    flow: Rc<Flow>,
    /// The value of `client_body_timeout`.
    timeout: Duration,
    /// `client_max_body_size` in bytes; 0 is no limit.
    size_max: u64,
    /// Bytes of the body that the upload has read.
    received: u64,
    /// The timer of the current wait for the client.
    read_timer: Option<Sleep>,
}

impl H2Upload {
    /// The upload of the rest of this request's body.
    pub(super) fn new(
        shared: &Rc<SharedConnection>,
        flow: &Rc<Flow>,
        request: &Request,
    ) -> H2Upload {
        let core = &request.plan.core;
        flow.set_uploaded(true);
        shared.with(|machine| machine.widen(flow.number, READING_WINDOW));
        H2Upload {
            shared: Rc::clone(shared),
            flow: Rc::clone(flow),
            timeout: core.client_body_timeout,
            size_max: core.client_max_body_size,
            received: request.body.received() + flow.uploaded(),
            read_timer: None,
        }
    }

    /// See [`Upload::poll_next`](crate::exchange::upload::Upload::poll_next).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Abort>> {
        let Poll::Ready(part) = poll_part(&self.shared, &self.flow, context) else {
            let timeout = self.timeout;
            let read_timer = self
                .read_timer
                .get_or_insert_with(|| engine::sleep(timeout));
            ready!(Pin::new(read_timer).poll(context));
            return Poll::Ready(Err(Abort::BodyTimedOut));
        };
        self.read_timer = None;
        let part = part?;
        if let Some(part) = &part {
            let (received, length) = (self.received, part.len() as u64);
            self.received += length;
            self.flow.note_uploaded(length);
            if self.size_max != 0 && self.received > self.size_max {
                return Poll::Ready(Err(Abort::BodyTooLarge {
                    received,
                    chunk: length,
                }));
            }
        }
        Poll::Ready(Ok(part))
    }

    /// Whether the whole body has been read.
    pub fn is_read(&self) -> bool {
        self.flow.is_read()
    }
}

impl Drop for H2Upload {
    fn drop(&mut self) {
        self.flow.set_uploaded(false);
    }
}

/// Waits for the next bytes of a stream's body, and returns their flow-control credit to the
/// client. `None` at the end.
pub(super) async fn next_part(
    shared: &SharedConnection,
    flow: &Flow,
    deadline: Instant,
) -> Result<Option<Bytes>, Abort> {
    shared.with(|machine| machine.widen(flow.number, READING_WINDOW));
    let next = poll_fn(|context| poll_part(shared, flow, context));
    match either(next, engine::sleep_until(deadline)).await {
        Either::First(part) => part,
        Either::Second(()) => Err(Abort::BodyTimedOut),
    }
}

/// Polls for the next received bytes of a stream's body.
fn poll_part(
    shared: &SharedConnection,
    flow: &Flow,
    context: &mut Context<'_>,
) -> Poll<Result<Option<Bytes>, Abort>> {
    let part = ready!(flow.poll_received(context.waker(), |flow| {
        if flow.is_gone() {
            let reset = io::ErrorKind::ConnectionReset.into();
            return Some(Err(Abort::Closed(reset)));
        }
        if flow.take_fault().is_some() {
            return Some(Err(Abort::BadBody(
                "client sent a body that is not as long as announced",
            )));
        }
        match flow.take_received() {
            Some(part) => Some(Ok(Some(part))),
            None => flow.is_read().then_some(Ok(None)),
        }
    }))?;
    release_capacity(shared, flow, part.as_ref().map_or(0, Bytes::len));
    Poll::Ready(Ok(part))
}

/// Returns flow-control credit to the client for bytes that have been read.
pub(super) fn release_capacity(shared: &SharedConnection, flow: &Flow, bytes: usize) {
    shared.with(|machine| machine.consumed(flow.number, bytes));
    shared.call();
}
