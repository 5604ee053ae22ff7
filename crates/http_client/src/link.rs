//! One HTTP/2 connection to a peer. Its task reads and sends for all requests that share the
//! connection.
//!
//! The connection ends when the peer closes it, violates the protocol or does not answer a PING. An
//! idle connection is closed as the `keepalive*` directives of its group demand, or
//! `keepalive_time` if it belongs to a health check. If the group keeps no connections, the
//! connection ends as soon as it is idle.
//!
//! **Silence.** If requests wait for responses and nothing has been received for [`SILENCE`], or if
//! one response is late, the task sends a PING. If nothing is received within [`PING_TIMEOUT`], all
//! requests of the connection fail at once, and later requests use another connection. gRPC servers
//! close connections on which they receive too many PINGs. So while nothing but answers to PINGs is
//! received, the task waits for [`PING_AGAIN`] between two PINGs.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use base::slab;
use bytes::Bytes;
use engine::Buffer;
use engine::net::{Address, Segment};
use framework::workers::{SharedRequests, Spare, SpareEntry};
use proto::h2::client::{Client, Event, Limits, RequestStart};
use proto::h2::frame::HEAD_LENGTH;
use proto::h2::hpack::Field;
use proto::h2::{ErrorCode, StreamFault, Violation};
use transport::Transport;
use upstream::{Group, Keepalive};

use crate::faults;
use crate::flow::StreamFlow;
use crate::links::{Permit, SharedConnections};
use crate::stream_end::StreamEnd;

/// Bytes of a response's body that a peer may send before any of them is consumed. With a smaller
/// window, a peer whose kernel delays small segments (Nagle's algorithm) would wait for an
/// acknowledgement in the middle of a response of some 50 KB; Linux sends amounts above 32 KB at
/// once.
pub(crate) const WINDOW: u32 = 48 * 1024;

/// The maximum receive window of a stream: the window grows up to this size while the reader keeps
/// up with the peer.
const WINDOW_MAX: u32 = 256 * 1024;

/// Maximum size of a decoded response head in bytes; `*_buffer_size` applies as well.
const HEAD_SIZE_MAX: usize = 256 * 1024;

/// Bytes queued in the transport from which on request bodies wait.
const IN_TRANSPORT_MAX: usize = 128 * 1024;

/// Bytes queued in the transport beyond which nothing is read from the peer, since the peer does
/// not read either.
const BACKLOG_MAX: usize = 512 * 1024;

/// Maximum length in bytes of a part of a body that is copied behind the header of its frame;
/// longer parts are passed on without a copy.
const COPIED_MAX: usize = 4 * 1024;

/// Maximum size in bytes of a request's head that is sent while other requests are in flight, if
/// the peer has announced no limit. Servers accept heads of this size, or refuse only the one
/// request. Many close the connection for larger heads without having announced a limit: nginx from
/// 32 KB on, others from 16 KB on.
pub(crate) const HEAD_SIZE_SHARED: usize = 8 * 1024;

/// Number of streams that we reset before the connection takes no new requests. Most resets are due
/// to clients that leave. Servers take some hundred resets, or fewer in a short time, for an attack
/// (CVE-2023-44487), and close the connection.
const RESETS_MAX: u32 = 32;

/// How long a connection with requests in flight may be silent before a PING is sent.
const SILENCE: Duration = Duration::from_secs(20);
/// How long to wait for a sign of life after a PING.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between two PINGs if only answers to PINGs are received.
const PING_AGAIN: Duration = Duration::from_secs(310);

/// The key of a [`Link`]'s entry among the spare connections: a link has only this one entry.
const ITSELF: slab::Key = slab::Key {
    index: 0,
    generation: 0,
};

/// One connection and the requests that share it; see the module documentation.
pub(crate) struct Link {
    transport: Transport,
    /// Counts the requests on the connection.
    pub(crate) sharing: SharedRequests,
    /// The HTTP/2 state machine, with the shared state of each stream.
    machine: RefCell<Client<Rc<StreamFlow>>>,
    /// The address, terms and group, which must be the same for all requests that share the
    /// connection.
    pub(crate) address: Address,
    pub(crate) terms: Bytes,
    pub(crate) group: Bytes,
    /// For how long and for how many requests the connection is kept; `None` if it is not kept
    /// while idle.
    keepalive: Cell<Option<Keepalive>>,
    /// When the connection was opened.
    since: Instant,
    /// The number of requests that have been sent on the connection.
    requests: Cell<u64>,
    /// The size of the largest request head since the connection was last idle.
    head_size: Cell<usize>,
    /// When bytes were last received.
    last_received: Cell<Instant>,
    /// The error code of the peer's GOAWAY, once it has sent one.
    peer_goaway: Cell<Option<ErrorCode>>,
    /// The peer may be dead: no new request uses the connection.
    is_doubted: Cell<bool>,
    /// Since when the connection has been idle.
    idle_since: Cell<Option<Instant>>,
    /// The entry by which an idle connection can be closed to make room for other connections of
    /// the thread.
    spare: Cell<Option<SpareEntry>>,
    /// Whether the connection ends as soon as it is idle.
    is_closing: Cell<bool>,
    /// Whether the connection has ended.
    has_ended: Cell<bool>,
    /// Wakes the connection's task.
    waker: Cell<Option<Waker>>,
    /// Whether the task has been asked to continue since it last ran.
    is_called: Cell<bool>,
}

/// How a connection has ended.
enum LinkEnd {
    /// We close the idle connection in order.
    Idle,
    /// The peer has closed the connection, or the connection has failed with this error.
    Closed(Option<io::Error>),
    /// The peer has violated the protocol.
    Violated(Violation),
}

/// Why the connection's task wakes up.
enum WakeReason {
    /// Bytes were received, the peer has closed the connection (empty), or the deadline has passed.
    Received(io::Result<Buffer>),
    /// A request has called the task.
    Notified,
    /// The transport has sent its queue, or has failed.
    Drained(io::Result<()>),
}

/// The state of PING probes.
#[derive(Default)]
struct Pings {
    /// When the unanswered PING was sent.
    asked: Option<Instant>,
    /// When the last PING was sent, if nothing else has been received since.
    last: Option<Instant>,
}

impl Pings {
    /// The time until which no further PING may be sent, unless something is received.
    fn held_back(&self) -> Option<Instant> {
        self.last.map(|last| last + PING_AGAIN)
    }

    /// Whether a PING may be sent now.
    fn may_ping(&self) -> bool {
        self.held_back().is_none_or(|until| engine::now() >= until)
    }
}

impl Spare for Link {
    fn close(&self, _: slab::Key) {
        self.close_when_idle();
    }
}

impl Link {
    /// Creates the link of a transport that has just been connected.
    pub(crate) fn new(
        transport: Transport,
        group: &Group,
        address: &Address,
        terms: &Bytes,
    ) -> Link {
        let limits = Limits {
            stream_window: WINDOW,
            stream_window_max: WINDOW_MAX,
            head_size_max: HEAD_SIZE_MAX,
        };
        let now = engine::now();
        Link {
            transport,
            sharing: SharedRequests::begin(),
            machine: RefCell::new(Client::new(limits)),
            address: address.clone(),
            terms: terms.clone(),
            group: group.name.clone(),
            keepalive: Cell::new(group.keepalive),
            since: now,
            requests: Cell::new(0),
            head_size: Cell::new(0),
            last_received: Cell::new(now),
            peer_goaway: Cell::new(None),
            is_doubted: Cell::new(false),
            idle_since: Cell::new(None),
            spare: Cell::new(None),
            is_closing: Cell::new(false),
            has_ended: Cell::new(false),
            waker: Cell::new(None),
            is_called: Cell::new(false),
        }
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    // Methods for requests.

    /// Whether another request with a head of this size may begin now: the connection accepts
    /// requests, its send window is not exhausted by other requests, and the head cannot make the
    /// peer close the connection on other requests.
    pub(crate) fn has_room(&self, head_size: usize) -> bool {
        let may_begin = !self.has_ended.get() && !self.is_closing.get() && !self.is_doubted.get();
        let machine = self.machine.borrow();
        let is_open = machine.has_begun() && machine.may_open() && machine.has_window();
        may_begin
            && is_open
            && !self.has_served()
            && self.may_send_concurrently(&machine, head_size)
    }

    /// Whether a request with a head of this size may be sent while other requests are in flight. A
    /// head that the peer is not known to accept is sent only if the connection is idle. The limit
    /// that the peer announces is advisory (RFC 9113, section 6.5.2), and many peers accept larger
    /// heads.
    fn may_send_concurrently(&self, machine: &Client<Rc<StreamFlow>>, head_size: usize) -> bool {
        let said = machine.peer().header_list_max;
        let most = said.map_or(HEAD_SIZE_SHARED, |max| max as usize);
        // `self.head_size` may exceed the limit if that head was sent while the connection was
        // idle.
        machine.live() == 0 || head_size.max(self.head_size.get()) <= most
    }

    /// The maximum size of a head that the peer has announced, if `head_size` is larger.
    pub(crate) fn warns_of(&self, head_size: usize) -> Option<usize> {
        let said = self.machine.borrow().peer().header_list_max;
        said.map(|max| max as usize).filter(|max| head_size > *max)
    }

    /// Whether the connection takes no new requests because it has reached `keepalive_requests`,
    /// `keepalive_time` or [`RESETS_MAX`]; or, if it is not kept, because all its requests have
    /// ended.
    fn has_served(&self) -> bool {
        if self.machine.borrow().resets() >= RESETS_MAX {
            return true;
        }
        match self.keepalive.get() {
            Some(keepalive) => {
                let age = engine::now().saturating_duration_since(self.since);
                self.requests.get() >= keepalive.requests || age > keepalive.time
            }
            // A connection that has served no request yet waits for its first.
            None => self.requests.get() > 0 && self.live() == 0,
        }
    }

    /// Opens a stream for a request with these fields, whose total size is `head_size`. False if
    /// the connection has no room.
    pub(crate) fn open<'a>(
        &self,
        fields: impl IntoIterator<Item = Field<'a>>,
        head_size: usize,
        opening: RequestStart,
        flow: &Rc<StreamFlow>,
    ) -> bool {
        let opened = {
            let mut machine = self.machine.borrow_mut();
            let size_before = match machine.live() {
                0 => 0,
                _ => self.head_size.get(),
            };
            self.head_size.set(size_before.max(head_size));
            let before = machine.output().len();
            let opened = machine.open(fields, opening, Rc::clone(flow));
            flow.count_framing(machine.output().len() - before);
            opened
        };
        let Some(number) = opened.filter(|_| !self.has_ended.get()) else {
            return false;
        };
        flow.number.set(number);
        if opening.ends {
            flow.send_nothing();
        }
        self.requests.set(self.requests.get() + 1);
        self.idle_since.set(None);
        drop(self.spare.take());
        self.call();
        true
    }

    /// Called when a part of a request's body, or its end, is queued.
    pub(crate) fn wants_to_send(&self, flow: &StreamFlow) {
        let mut machine = self.machine.borrow_mut();
        if flow.has_only_end() {
            machine.put_end(flow.number.get());
            flow.count_framing(HEAD_LENGTH);
        } else {
            machine.wants_to_send(flow.number.get())
        }
        drop(machine);
        self.call();
    }

    /// Called when this many bytes of a response's body have been consumed: lets the peer send as
    /// many more.
    pub(crate) fn consumed(&self, flow: &StreamFlow, bytes: usize) {
        let mut machine = self.machine.borrow_mut();
        machine.consumed(flow.number.get(), bytes);
        let has_output = !machine.output().is_empty();
        drop(machine);
        if has_output {
            self.call();
        }
    }

    /// Releases a request's stream: resets the stream unless it has ended, and lets another request
    /// take its place.
    pub(crate) fn release(&self, flow: &StreamFlow) {
        let number = flow.number.replace(0);
        if number != 0 && !self.has_ended.get() {
            self.machine.borrow_mut().release(number);
            self.call();
        }
    }

    /// Called when a response is late. If the peer has also been silent for a second, it may be
    /// dead, and a PING is sent.
    pub(crate) fn suspect_dead(&self) {
        let silent_for = engine::now().saturating_duration_since(self.last_received.get());
        if silent_for >= Duration::from_secs(1) {
            self.is_doubted.set(true);
            self.call();
        }
    }

    /// Closes the connection as soon as it is idle.
    pub(crate) fn close_when_idle(&self) {
        self.is_closing.set(true);
        self.call();
    }

    /// Keeps the connection up to this age, idle or not, whatever the settings of its group.
    pub(crate) fn keep_for(&self, time: Duration) {
        self.keepalive.set(Some(Keepalive {
            connections: usize::MAX,
            requests: u64::MAX,
            time,
            timeout: time,
            ..Keepalive::default()
        }));
    }

    /// Whether more than one request has been sent on the connection.
    pub(crate) fn has_served_others(&self) -> bool {
        self.requests.get() > 1
    }

    /// Whether no request is in flight.
    pub(crate) fn is_unused(&self) -> bool {
        self.live() == 0
    }

    /// When the connection became idle; `None` while a request is in flight.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        self.idle_since.get()
    }

    /// Whether the connection is idle and is to be kept.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle_since.get().is_some() && !self.is_closing.get()
    }

    /// Maximum number of idle connections that the group keeps.
    pub(crate) fn kept_max(&self) -> usize {
        let keepalive = self.keepalive.get();
        keepalive.map_or(0, |keepalive| keepalive.connections)
    }

    /// The number of requests in flight.
    fn live(&self) -> usize {
        self.machine.borrow().live()
    }

    /// Wakes the connection's task.
    fn call(&self) {
        self.is_called.set(true);
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    // Methods for the connection's task.

    /// Serves requests until the connection ends. The permit, for which other requests wait, is
    /// held until the peer has sent its settings.
    pub(crate) async fn run(self: Rc<Link>, links: Rc<RefCell<SharedConnections>>, permit: Permit) {
        let ending = self.run_connection(&links, permit).await;
        self.has_ended.set(true);
        links.borrow_mut().remove(&self);
        self.close(&ending);
        let end = match ending {
            LinkEnd::Idle => StreamEnd::of_connection(None),
            LinkEnd::Closed(error) => StreamEnd::of_connection(error.as_ref()),
            LinkEnd::Violated(violation) => StreamEnd::Violated(violation),
        };
        let flows: Vec<_> = self.machine.borrow_mut().drain().collect();
        for (_, flow) in flows {
            flow.put_end(end);
        }
    }

    async fn run_connection(
        self: &Rc<Link>,
        links: &RefCell<SharedConnections>,
        permit: Permit,
    ) -> LinkEnd {
        let mut permit = Some(permit);
        let mut pings = Pings::default();
        loop {
            let is_full = self.flush();
            if self.live() == 0 && self.requests.get() > 0 {
                if self.is_over() {
                    return LinkEnd::Idle;
                }
                if self.idle_since.get().is_none() {
                    self.idle_since.set(Some(engine::now()));
                    let spare = Rc::clone(self) as Rc<dyn Spare>;
                    self.spare.set(SpareEntry::new(&spare, ITSELF));
                    links.borrow_mut().make_room(self);
                }
            }
            // If the next PING is not allowed yet, no request begins until something is received.
            if self.is_doubted.get() && pings.asked.is_none() && pings.may_ping() {
                self.send_ping(&mut pings);
                continue;
            }
            match self.wait(is_full, self.deadline(&pings)).await {
                WakeReason::Notified | WakeReason::Drained(Ok(())) => {}
                WakeReason::Drained(Err(error)) => return LinkEnd::Closed(Some(error)),
                WakeReason::Received(Ok(buffer)) if buffer.is_empty() => {
                    return LinkEnd::Closed(None);
                }
                WakeReason::Received(Ok(buffer)) => {
                    self.last_received.set(engine::now());
                    self.is_doubted.set(false);
                    pings.asked = None;
                    if let Err(violation) = self.handle(&buffer, &mut pings) {
                        return LinkEnd::Violated(violation);
                    }
                    if self.machine.borrow().has_begun() {
                        drop(permit.take());
                    }
                }
                WakeReason::Received(Err(error)) if error.kind() != io::ErrorKind::TimedOut => {
                    return LinkEnd::Closed(Some(error));
                }
                WakeReason::Received(Err(error)) => match self.live() {
                    0 if self.requests.get() > 0 => return LinkEnd::Idle,
                    _ if pings.asked.is_some() => return LinkEnd::Closed(Some(error)),
                    _ => self.send_ping(&mut pings),
                },
            }
        }
    }

    /// Whether the connection ends when no request is in flight.
    fn is_over(&self) -> bool {
        self.keepalive.get().is_none()
            || self.is_closing.get()
            || self.has_served()
            || self.machine.borrow().is_ending()
    }

    fn send_ping(&self, pings: &mut Pings) {
        let now = engine::now();
        (pings.asked, pings.last) = (Some(now), Some(now));
        self.machine.borrow_mut().put_ping();
    }

    /// The time by which something must be received.
    fn deadline(&self, pings: &Pings) -> Option<Instant> {
        if let Some(asked) = pings.asked {
            return Some(asked + PING_TIMEOUT);
        }
        match (self.idle_since.get(), self.keepalive.get()) {
            (Some(idle), Some(keepalive)) => {
                let in_time = self.since.checked_add(keepalive.time);
                let idle_for_long = idle.checked_add(keepalive.timeout);
                in_time.into_iter().chain(idle_for_long).min()
            }
            _ => {
                let after_silence = self.last_received.get() + SILENCE;
                let again = pings.held_back();
                Some(again.map_or(after_silence, |again| again.max(after_silence)))
            }
        }
    }

    /// Waits for bytes from the peer, for a request, or, if the transport has no room, for room.
    /// After the deadline, returns the error of the timeout.
    async fn wait(&self, is_full: bool, deadline: Option<Instant>) -> WakeReason {
        let backlog = self.transport.backlog();
        let mut receiving = pin!(self.transport.recv_idle(deadline.into()));
        let mut draining = pin!(self.transport.drained(IN_TRANSPORT_MAX / 2));
        poll_fn(|context| {
            if self.is_called.take() {
                return Poll::Ready(WakeReason::Notified);
            }
            self.waker.set(Some(context.waker().clone()));
            if (is_full || backlog > BACKLOG_MAX)
                && let Poll::Ready(drained) = draining.as_mut().poll(context)
            {
                return Poll::Ready(WakeReason::Drained(drained));
            }
            if backlog > BACKLOG_MAX {
                Poll::Pending
            } else {
                receiving.as_mut().poll(context).map(WakeReason::Received)
            }
        })
        .await
    }

    /// Handles received bytes.
    fn handle(&self, input: &[u8], pings: &mut Pings) -> Result<(), Violation> {
        let second = engine::uptime().as_secs() as u32;
        let mut at = 0;
        let mut machine = self.machine.borrow_mut();
        while let Some(event) = machine.handle(input, &mut at, second)? {
            if event != Event::Pong {
                pings.last = None;
            }
            let user = |machine: &mut Client<Rc<StreamFlow>>, stream| {
                let (flow, received) = machine.user_and_received(stream)?;
                flow.note_received(received);
                Some(Rc::clone(flow))
            };
            match event {
                Event::Interim { stream } => {
                    if let Some(flow) = user(&mut machine, stream)
                        && !flow.put_interim(machine.head())
                    {
                        machine.reset(stream, ErrorCode::EnhanceYourCalm);
                    }
                }
                Event::Head { stream, ends } => {
                    if let Some(flow) = user(&mut machine, stream) {
                        flow.put_head(machine.head());
                        if ends {
                            flow.put_end(StreamEnd::Whole);
                        }
                    }
                }
                Event::Data {
                    stream,
                    start,
                    length,
                    ends,
                } => {
                    if let Some(flow) = user(&mut machine, stream) {
                        let bytes = input.get(start..start + length);
                        flow.put_body(bytes.unwrap_or_default());
                        if ends {
                            flow.put_end(StreamEnd::Whole);
                        }
                    }
                }
                Event::Trailers { stream } => {
                    if let Some(flow) = user(&mut machine, stream) {
                        flow.put_trailers(machine.head());
                    }
                }
                Event::Reset {
                    stream,
                    code,
                    fault,
                } => {
                    if let Some(flow) = user(&mut machine, stream) {
                        if let Some(StreamFault::Response(_, fault)) = fault {
                            let is_trailers = machine.has_head(stream);
                            flow.put_words(faults::of_head(fault, machine.head(), is_trailers));
                        }
                        flow.put_end(StreamEnd::Reset(code, fault));
                    }
                }
                Event::NotServed { stream } => {
                    let code = self.peer_goaway.get().unwrap_or(ErrorCode::NoError);
                    if let Some(flow) = user(&mut machine, stream) {
                        flow.put_end(StreamEnd::NotServed(code));
                    }
                }
                Event::GoAway(code) => self.peer_goaway.set(Some(code)),
                Event::Pong => {}
            }
        }
        Ok(())
    }

    /// Passes frames to the transport. Returns whether the transport has no room for more.
    fn flush(&self) -> bool {
        let mut machine = self.machine.borrow_mut();
        let mut out = machine.take_output();
        let mut in_transport = self.transport.backlog();
        let mut parts = Vec::new();
        let is_full = loop {
            if in_transport + out.len() >= IN_TRANSPORT_MAX {
                break true;
            }
            let Some((stream, most)) = machine.turn() else {
                break false;
            };
            let Some(flow) = machine.user(stream).cloned() else {
                continue;
            };
            let (length, is_last) = flow.take_queued(most, &mut parts);
            if length == 0 && !is_last {
                continue;
            }
            let head = machine.sent(stream, length, is_last, flow.queued() > 0);
            flow.count_framing(head.len());
            out.extend_from_slice(&head);
            for part in parts.drain(..) {
                if part.len() <= COPIED_MAX {
                    out.extend_from_slice(&part);
                    continue;
                }
                in_transport += out.len() + part.len();
                self.transport
                    .push(Segment::Bytes(std::mem::take(&mut out).into()));
                self.transport.push(Segment::Bytes(part));
            }
        };
        drop(machine);
        if !out.is_empty() {
            self.transport.push(Segment::Bytes(out.into()));
        }
        if self.transport.backlog() > 0 {
            self.transport.start_send();
        }
        is_full
    }

    /// Announces the end of the connection to the peer, as far as the transport accepts the
    /// announcement at once.
    fn close(&self, ending: &LinkEnd) {
        match ending {
            LinkEnd::Idle => self.machine.borrow_mut().send_goaway(),
            LinkEnd::Violated(violation) => self.machine.borrow_mut().fail(*violation),
            LinkEnd::Closed(_) => return,
        }
        self.flush();
        self.transport.announce_end();
    }
}
