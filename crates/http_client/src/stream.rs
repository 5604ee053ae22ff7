//! One request's stream of a shared connection.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::{Buffer, Sleep};
use proto::h2::client::RequestStart;
use proto::h2::hpack::Field;
use transport::Transport;

use crate::flow::{StreamFlow, StreamHead};
use crate::link::{Link, WINDOW};
use crate::stream_end::StreamEnd;

/// A stream of a shared connection, or the reserved place for a stream. Dropping the handle
/// releases the stream, whatever its state.
pub struct StreamHandle {
    sender: Sender,
    /// The timer of the current wait.
    timer: Option<Box<(Instant, Sleep)>>,
}

/// Sends a request's body on a stream, until the stream is released.
#[derive(Clone)]
pub struct Sender {
    link: Rc<Link>,
    flow: Rc<StreamFlow>,
}

impl StreamHandle {
    /// Reserves a place on this connection.
    pub(crate) fn new(link: Rc<Link>) -> StreamHandle {
        link.sharing.enter();
        StreamHandle {
            sender: Sender {
                link,
                flow: Rc::default(),
            },
            timer: None,
        }
    }

    /// The transport of the connection. Only the connection's task reads from and writes to it.
    pub fn transport(&self) -> &Transport {
        self.sender.link.transport()
    }

    /// The largest head that the peer has announced to accept, if this head is larger.
    pub fn warns_of(&self, head_size: usize) -> Option<usize> {
        self.sender.link.warns_of(head_size)
    }

    /// Starts the request with these fields, which have the size `head_size` (RFC 9113, section
    /// 6.5.2). False if the connection has no room any more.
    pub fn open<'a>(
        &self,
        fields: impl IntoIterator<Item = Field<'a>>,
        head_size: usize,
        opening: RequestStart,
    ) -> bool {
        let Sender { link, flow } = &self.sender;
        link.open(fields, head_size, opening, flow)
    }

    /// A handle that sends the body.
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// The state that the request shares with the connection's task.
    pub fn flow(&self) -> &Rc<StreamFlow> {
        &self.sender.flow
    }

    /// Waits for the next head of the response, or for the end of the stream without one.
    pub fn poll_head(&self, context: &Context<'_>) -> Poll<Result<StreamHead, StreamEnd>> {
        self.sender.flow.poll_head(context.waker())
    }

    /// Receives a part of the response's body; empty at the end of the stream, whatever the reason
    /// for the end.
    ///
    /// # Errors
    /// `TimedOut` at the deadline; the error of the connection.
    pub fn poll_recv(
        &mut self,
        deadline: Option<Instant>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Buffer>> {
        let Sender { link, flow } = &self.sender;
        if let Poll::Ready(buffer) = flow.poll_body(context.waker()) {
            self.timer = None;
            if buffer.is_empty()
                && let Some(error) = flow.end().and_then(StreamEnd::error)
            {
                return Poll::Ready(Err(error));
            }
            link.consumed(flow, buffer.len());
            return Poll::Ready(Ok(buffer));
        }
        let Some(deadline) = deadline else {
            return Poll::Pending;
        };
        let timer = match &mut self.timer {
            Some(timer) if timer.0 == deadline => timer,
            timer => timer.insert(Box::new((deadline, engine::sleep_until(deadline)))),
        };
        ready!(Pin::new(&mut timer.1).poll(context));
        self.timer = None;
        link.suspect_dead();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Bytes of the response's body that the peer may send before any of them is consumed.
    pub fn window(&self) -> usize {
        WINDOW as usize
    }

    /// Whether the stream has ended.
    pub fn has_ended(&self) -> bool {
        self.sender.flow.end().is_some()
    }

    /// Takes the next piece of the received body: at most as many bytes as one receive returns.
    pub fn take_body(&self) -> Buffer {
        let buffer = self.sender.flow.take_body();
        self.sender.link.consumed(&self.sender.flow, buffer.len());
        buffer
    }

    /// Called when the response has not arrived in time: the connection may be dead.
    pub fn suspect_dead(&self) {
        self.sender.link.suspect_dead();
    }

    /// Closes the connection as soon as it is idle.
    pub fn end_connection(&self) {
        self.sender.link.close_when_idle();
    }

    /// Keeps the connection until it has this age, whatever the group's settings.
    pub fn keep_connection(&self, time: Duration) {
        self.sender.link.keep_for(time);
    }

    /// Whether the connection is idle. Must be called before the request starts.
    pub fn is_alone(&self) -> bool {
        self.sender.link.is_unused()
    }

    /// Whether the connection has served other requests, which may have caused its end.
    pub fn has_served_others(&self) -> bool {
        self.sender.link.has_served_others()
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        let Sender { link, flow } = &self.sender;
        link.release(flow);
        link.sharing.release();
    }
}

impl Sender {
    /// Appends to the body; `ends` if the body ends with these parts.
    pub fn push(&self, parts: impl IntoIterator<Item = Bytes>, ends: bool) {
        parts.into_iter().for_each(|part| self.flow.push(part));
        if ends {
            self.flow.push_end();
        }
        if self.flow.end().is_none() {
            self.link.wants_to_send(&self.flow);
        }
    }

    /// The state that the request shares with the connection's task.
    pub fn flow(&self) -> &Rc<StreamFlow> {
        &self.flow
    }

    /// Called when the peer has read nothing for too long: the connection may be dead.
    pub fn suspect_dead(&self) {
        self.link.suspect_dead();
    }
}
