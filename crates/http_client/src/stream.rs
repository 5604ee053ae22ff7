//! A request's own part of a connection that it shares.

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

/// A stream, or the place for one; dropped, it is let go of, whatever has become of it.
pub struct StreamHandle {
    sender: Sender,
    /// When the wait under way ends.
    timer: Option<Box<(Instant, Sleep)>>,
}

/// What sends a request's body on a stream, for as long as that is not let go of.
#[derive(Clone)]
pub struct Sender {
    link: Rc<Link>,
    flow: Rc<StreamFlow>,
}

impl StreamHandle {
    /// A place on this connection.
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

    /// The bytes of its connection, which are its task's to read and to send.
    pub fn transport(&self) -> &Transport {
        self.sender.link.transport()
    }

    /// The largest head that the peer says that it takes, where this one is larger.
    pub fn warns_of(&self, head_size: usize) -> Option<usize> {
        self.sender.link.warns_of(head_size)
    }

    /// Begins the request with these fields, which have this size together (RFC 9113, section
    /// 6.5.2); whether the connection had room after all.
    pub fn open<'a>(
        &self,
        fields: impl IntoIterator<Item = Field<'a>>,
        head_size: usize,
        opening: RequestStart,
    ) -> bool {
        let Sender { link, flow } = &self.sender;
        link.open(fields, head_size, opening, flow)
    }

    /// What sends its body.
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// What it shares with its connection.
    pub fn flow(&self) -> &Rc<StreamFlow> {
        &self.sender.flow
    }

    /// The next head of the answer, or how the stream has ended without one.
    pub fn poll_head(&self, context: &Context<'_>) -> Poll<Result<StreamHead, StreamEnd>> {
        self.sender.flow.poll_head(context.waker())
    }

    /// What has come of the answer's body; empty at the end of the stream, however that came about.
    ///
    /// # Errors
    /// `TimedOut` at the deadline; that by which the connection has broken.
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
        link.doubt();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Bytes of the answer's body that may come before any of it is taken.
    pub fn window(&self) -> usize {
        WINDOW as usize
    }

    /// Whether nothing more comes.
    pub fn has_ended(&self) -> bool {
        self.sender.flow.end().is_some()
    }

    /// What of the answer's body is there already, up to as much as a receive brings.
    pub fn take_body(&self) -> Buffer {
        let buffer = self.sender.flow.take_body();
        self.sender.link.consumed(&self.sender.flow, buffer.len());
        buffer
    }

    /// The answer has not come in time.
    pub fn doubt(&self) {
        self.sender.link.doubt();
    }

    /// The connection ends as soon as nothing is under way on it.
    pub fn end_connection(&self) {
        self.sender.link.end_soon();
    }

    /// The connection serves until it is so old, whatever its group says.
    pub fn keep_connection(&self, time: Duration) {
        self.sender.link.keep_for(time);
    }

    /// Whether nothing is under way on the connection; to be asked before the request begins.
    pub fn is_alone(&self) -> bool {
        self.sender.link.is_unused()
    }

    /// Whether the connection has served others, who may be why it has ended.
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
    /// Appends to the body; `ends` where nothing follows.
    pub fn push(&self, parts: impl IntoIterator<Item = Bytes>, ends: bool) {
        parts.into_iter().for_each(|part| self.flow.push(part));
        if ends {
            self.flow.push_end();
        }
        if self.flow.end().is_none() {
            self.link.wants_to_send(&self.flow);
        }
    }

    /// What it shares with its connection.
    pub fn flow(&self) -> &Rc<StreamFlow> {
        &self.flow
    }

    /// The peer has taken nothing for too long.
    pub fn doubt(&self) {
        self.link.doubt();
    }
}
