//! The network of a simulation: bytes in transit, the clock, and the faults. Datagrams are in
//! `mailbox.rs`.
//!
//! Streams go directly from end to end, or over TCP stacks and a wire (`carrier.rs`), as
//! [`Faults::streams`] says.
//!
//! The network identifies sockets by number and knows nothing of operations. Each future change is
//! an event with a time and a target; the engine checks the target at that time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::carrier::{Carried, Carrier, CarrierEvent};
use super::mailbox::Mailbox;
use crate::net::Address;

/// How the simulated network behaves. Probabilities are in thousandths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Minimum latency from one end to the other.
    pub delay_min: Duration,
    /// Maximum latency. Each latency is drawn at random, but bytes of a stream do not overtake each
    /// other.
    pub delay_max: Duration,
    /// Probability that a receive returns only a part of the available bytes.
    pub short_receive: u32,
    /// Probability that a send takes only a part of the bytes.
    pub short_send: u32,
    /// Probability that a send resets the connection instead.
    pub reset: u32,
    /// Bytes, in transit or unread, per direction, at which a send has to wait.
    pub window: usize,
    /// Connections that may wait at a listener; further ones are left unanswered.
    pub backlog: usize,
    /// Probability that a datagram, or a frame, is lost.
    pub loss: u32,
    /// Probability that a datagram, or a frame, is duplicated.
    pub duplicate: u32,
    /// Probability that a datagram, or a frame, may overtake earlier ones, if its latency is
    /// shorter.
    pub reorder: u32,
    /// Probability that a bit of a frame is flipped.
    pub corrupt: u32,
    /// The transport of streams, fixed for the whole simulation.
    pub streams: Streams,
}

/// The transport of the streams of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// Direct delivery without losses.
    Direct,
    /// Frames of our own TCP stack, subject to the faults.
    Tcp,
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            delay_min: Duration::from_micros(10),
            delay_max: Duration::from_micros(200),
            short_receive: 50,
            short_send: 50,
            reset: 0,
            window: 256 * 1024,
            backlog: 4096,
            loss: 0,
            duplicate: 0,
            reorder: 0,
            corrupt: 0,
            streams: Streams::Direct,
        }
    }
}

/// The state of the simulated network.
#[derive(Debug)]
pub(super) struct Network {
    /// The simulated time since the start.
    pub(super) now: Duration,
    /// State of the pseudo-random generator.
    pub(super) random: u64,
    pub(super) faults: Faults,
    /// The ends of stream connections, by socket number.
    pub(super) ends: BTreeMap<i32, SimSocket>,
    pub(super) next_socket: i32,
    pub(super) next_port: u16,
    /// The listening sockets, by number.
    pub(super) listeners: BTreeMap<i32, SimListener>,
    /// The datagram sockets, by number.
    pub(super) mailboxes: BTreeMap<i32, Mailbox>,
    /// Times at which a target may change; ordered by time, then by insertion.
    pub(super) events: BinaryHeap<Reverse<(Duration, u64, EventTarget)>>,
    /// The serial number of the last event.
    pub(super) next_event: u64,
    /// The transport of streams, unless they are delivered directly.
    pub(super) carrier: Option<Carrier>,
}

/// What an event concerns. Sockets are named by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EventTarget {
    Carrier,
    End(i32),
    Listener(i32),
    Mailbox(i32),
}

/// A listening socket.
#[derive(Debug)]
pub(super) struct SimListener {
    pub(super) address: SocketAddr,
    /// Server ends of incoming connections, and when each arrives.
    pub(super) waiting: VecDeque<(Duration, i32)>,
    /// Error numbers that the next accepts return.
    pub(super) errors: VecDeque<i32>,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct SimSocket {
    /// The other end; `None` once it has been closed.
    pub(super) other: Option<i32>,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// Bytes in transit to this end or unread, with their arrival times.
    pub(super) arriving: VecDeque<(Duration, Vec<u8>)>,
    /// Total length of `arriving`, in bytes.
    pub(super) held: usize,
    /// Earliest arrival time of further data to this end.
    pub(super) last_arrival: Duration,
    /// When the end of input arrives.
    pub(super) ends_at: Option<Duration>,
    /// When a reset arrives.
    pub(super) reset_at: Option<Duration>,
    /// The sending side of this end is shut down.
    pub(super) write_ended: bool,
    pub(super) reset_on_close: bool,
    /// The connection in the carrier, and the result of connecting.
    pub(super) carried: Option<Carried>,
    pub(super) connected: Option<Result<(), i32>>,
}

/// The result of starting to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connecting {
    /// The connection is established at that time.
    Stands(Duration),
    /// The carrier reports the result with an event.
    Carried,
    /// No answer will come.
    Unanswered,
}

impl Network {
    /// A network without listeners or connections, driven by `seed`.
    pub(super) fn new(seed: u64, faults: Faults) -> Network {
        let carrier = match faults.streams {
            Streams::Direct => None,
            Streams::Tcp => Some(Carrier::new(seed, &faults)),
        };
        Network {
            carrier,
            now: Duration::ZERO,
            random: seed,
            faults,
            ends: BTreeMap::new(),
            next_socket: 0,
            next_port: 20_000,
            listeners: BTreeMap::new(),
            mailboxes: BTreeMap::new(),
            events: BinaryHeap::new(),
            next_event: 0,
        }
    }

    /// A pseudo-random number below `bound` (at least 1), by SplitMix64.
    pub(super) fn random(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    /// True with the given probability, in thousandths.
    pub(super) fn chance(&mut self, in_a_thousand: u32) -> bool {
        in_a_thousand > 0 && self.random(1000) < u64::from(in_a_thousand)
    }

    /// Returns `count`, or with the given probability a smaller number, at least one.
    pub(super) fn cut(&mut self, count: usize, in_a_thousand: u32) -> usize {
        if count > 1 && self.chance(in_a_thousand) {
            return 1 + self.random(count as u64 - 1) as usize;
        }
        count
    }

    /// The arrival time of data sent now, with a random latency.
    pub(super) fn arrival(&mut self) -> Duration {
        let spread = self.faults.delay_max.saturating_sub(self.faults.delay_min);
        let extra = self.random(spread.as_nanos() as u64 + 1);
        self.now + self.faults.delay_min + Duration::from_nanos(extra)
    }

    /// Schedules a check of a target at a time.
    pub(super) fn schedule_event(&mut self, at: Duration, place: EventTarget) {
        self.next_event += 1;
        self.events.push(Reverse((at, self.next_event, place)));
    }

    pub(super) fn free_port(&mut self) -> u16 {
        self.next_port = self.next_port.checked_add(1).unwrap_or(20_000);
        self.next_port
    }

    /// The listener that connections to `address` reach, even by a wildcard address.
    pub(super) fn listener_at(&self, address: &Address) -> Option<i32> {
        let Address::Inet(wanted) = address else {
            return None;
        };
        self.listeners
            .iter()
            .find(|(_, listener)| {
                let any_ip = listener.address.ip().is_unspecified();
                listener.address.port() == wanted.port()
                    && (any_ip || listener.address.ip() == wanted.ip())
            })
            .map(|(number, _)| *number)
    }

    pub(super) fn new_number(&mut self) -> i32 {
        self.next_socket += 1;
        self.next_socket - 1
    }

    /// Adds an end without a connection, and returns its number.
    pub(super) fn new_end(&mut self) -> i32 {
        let socket = self.new_number();
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), self.free_port());
        let end = SimSocket {
            other: None,
            local: nowhere,
            peer: nowhere,
            arriving: VecDeque::new(),
            held: 0,
            last_arrival: Duration::ZERO,
            ends_at: None,
            reset_at: None,
            write_ended: false,
            reset_on_close: false,
            carried: None,
            connected: None,
        };
        self.ends.insert(socket, end);
        socket
    }

    /// Starts to connect the end `client` to a listener.
    pub(super) fn connect(&mut self, client: i32, address: &Address) -> io::Result<Connecting> {
        if self.carrier.is_some() {
            return self.connect_carried(client, address);
        }
        let number = self
            .listener_at(address)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ECONNREFUSED))?;
        let backlog = self.faults.backlog;
        let listener = self.listeners.get(&number).ok_or(io::ErrorKind::NotFound)?;
        if listener.waiting.len() >= backlog {
            return Ok(Connecting::Unanswered);
        }
        let Address::Inet(wanted) = *address else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let server = self.new_end();
        let arrives = self.arrival();
        let mut client_address = None;
        if let Some(end) = self.ends.get_mut(&client) {
            end.other = Some(server);
            end.peer = wanted;
            client_address = Some(end.local);
        }
        if let (Some(end), Some(address)) = (self.ends.get_mut(&server), client_address) {
            end.other = Some(client);
            end.local = wanted;
            end.peer = address;
        }
        if let Some(listener) = self.listeners.get_mut(&number) {
            listener.waiting.push_back((arrives, server));
        }
        self.schedule_event(arrives, EventTarget::Listener(number));
        let stands = arrives + (arrives - self.now);
        self.schedule_event(stands, EventTarget::End(client));
        Ok(Connecting::Stands(stands))
    }

    fn connect_carried(&mut self, client: i32, address: &Address) -> io::Result<Connecting> {
        let Address::Inet(wanted) = *address else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let end = self.ends.get_mut(&client);
        if let (Some(carrier), Some(end)) = (&mut self.carrier, end) {
            let carried = carrier.connect(self.now, end.local, wanted)?;
            carrier.name(carried, client);
            end.carried = Some(carried);
            end.peer = wanted;
        }
        self.run_carrier();
        Ok(Connecting::Carried)
    }

    /// Binds a listener to an address.
    pub(super) fn listen(&mut self, address: SocketAddr) -> io::Result<i32> {
        let number = self.new_number();
        if let Some(carrier) = &mut self.carrier {
            carrier.listen(number, address, self.faults.backlog)?;
        }
        let listener = SimListener {
            address,
            waiting: VecDeque::new(),
            errors: VecDeque::new(),
        };
        self.listeners.insert(number, listener);
        Ok(number)
    }

    /// Removes a listener.
    pub(super) fn forget_listener(&mut self, number: i32) {
        if let Some(carrier) = &mut self.carrier {
            carrier.unlisten(number);
            self.run_carrier();
        }
        let listener = self.listeners.remove(&number);
        for (_, server) in listener.into_iter().flat_map(|listener| listener.waiting) {
            self.close(server);
        }
    }

    /// Runs the carrier, and schedules its next run.
    pub(super) fn run_carrier(&mut self) {
        let now = self.now;
        let Some(carrier) = &mut self.carrier else {
            return;
        };
        let news = carrier.run(now);
        let next = carrier.next();
        if let Some(at) = next
            && carrier.scheduled.is_none_or(|before| at < before)
        {
            carrier.scheduled = Some(at);
            self.schedule_event(at, EventTarget::Carrier);
        }
        for news in news {
            let (number, place) = match news {
                CarrierEvent::Listener(number) => (number, EventTarget::Listener(number)),
                CarrierEvent::Connected(number)
                | CarrierEvent::Closed(number, _)
                | CarrierEvent::End(number) => (number, EventTarget::End(number)),
            };
            let outcome = match news {
                CarrierEvent::Connected(_) => Some(Ok(())),
                CarrierEvent::Closed(_, reason) => Some(Err(crate::carried::errno(reason))),
                CarrierEvent::Listener(_) | CarrierEvent::End(_) => None,
            };
            if let (Some(outcome), Some(end)) = (outcome, self.ends.get_mut(&number)) {
                end.connected.get_or_insert(outcome);
            }
            self.schedule_event(now, place);
        }
    }

    /// Runs the carrier at the time that it has requested.
    pub(super) fn resume_carrier(&mut self) {
        if let Some(carrier) = &mut self.carrier {
            carrier.scheduled = None;
        }
        self.run_carrier();
    }

    /// The result of a connect through the carrier, once it is known.
    pub(super) fn connect_outcome(&self, socket: i32) -> Option<io::Result<()>> {
        let outcome = self.ends.get(&socket)?.connected?;
        Some(outcome.map_err(io::Error::from_raw_os_error))
    }

    /// Accepts a connection that waits at a listener: returns its server end and the client's
    /// address. `None` if none waits.
    pub(super) fn accept(&mut self, number: i32) -> Option<io::Result<(i32, SocketAddr)>> {
        let listener = self.listeners.get_mut(&number)?;
        if let Some(errno) = listener.errors.pop_front() {
            return Some(Err(io::Error::from_raw_os_error(errno)));
        }
        let server = self.take_waiting(number)?;
        let peer = self.ends.get(&server)?.peer;
        Some(Ok((server, peer)))
    }

    /// Takes the server's end of a connection that waits at a listener.
    pub(super) fn take_waiting(&mut self, number: i32) -> Option<i32> {
        if let Some(carrier) = &mut self.carrier {
            let (carried, local, peer) = carrier.accept(number)?;
            let server = self.new_end();
            if let Some(end) = self.ends.get_mut(&server) {
                (end.local, end.peer) = (local, peer);
                end.carried = Some(carried);
            }
            if let Some(carrier) = &mut self.carrier {
                carrier.name(carried, server);
            }
            return Some(server);
        }
        let now = self.now;
        let waiting = &mut self.listeners.get_mut(&number)?.waiting;
        let at = waiting.iter().position(|(arrives, _)| *arrives <= now)?;
        waiting.remove(at).map(|(_, server)| server)
    }

    /// Sends from an end. `None` if the window is full.
    pub(super) fn send(&mut self, from: i32, bytes: &[u8]) -> io::Result<Option<usize>> {
        let end = self.ends.get(&from).ok_or(io::ErrorKind::NotConnected)?;
        if end.reset_at.is_some_and(|at| at <= self.now) {
            return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
        }
        if end.write_ended {
            return Err(io::Error::from_raw_os_error(libc::EPIPE));
        }
        if let Some(carried) = end.carried {
            return self.send_carried(from, carried, bytes);
        }
        let Some(to) = end.other else {
            // The other end is closed: data sent to it is answered with a reset.
            self.reset(from);
            return Ok(Some(bytes.len()));
        };
        if end.reset_at.is_some() {
            // The reset is still in transit; data sent after it is lost.
            return Ok(Some(bytes.len()));
        }
        if self.chance(self.faults.reset) {
            self.reset(from);
            self.reset(to);
            return Ok(Some(bytes.len()));
        }
        let held = self.ends.get(&to).map_or(0, |end| end.held);
        let room = self.faults.window.saturating_sub(held).min(bytes.len());
        if room == 0 {
            return Ok(None);
        }
        let count = self.cut(room, self.faults.short_send);
        let arrival = self.arrival();
        let Some(end) = self.ends.get_mut(&to) else {
            return Ok(Some(count));
        };
        end.last_arrival = end.last_arrival.max(arrival);
        let arrival = end.last_arrival;
        end.held += count;
        end.arriving
            .push_back((arrival, bytes.get(..count).unwrap_or_default().to_vec()));
        self.schedule_event(arrival, EventTarget::End(to));
        Ok(Some(count))
    }

    fn send_carried(
        &mut self,
        from: i32,
        carried: Carried,
        bytes: &[u8],
    ) -> io::Result<Option<usize>> {
        let is_reset = self.chance(self.faults.reset);
        let count = self.cut(bytes.len(), self.faults.short_send);
        let Some(carrier) = &mut self.carrier else {
            return Ok(None);
        };
        let sent = if is_reset {
            carrier.abort(carried);
            self.reset(from);
            Ok(Some(bytes.len()))
        } else {
            carrier.send(carried, bytes.get(..count).unwrap_or(bytes))
        };
        self.run_carrier();
        sent
    }

    fn receive_carried(&mut self, at: i32, into: &mut [u8]) -> io::Result<Option<usize>> {
        let count = self.cut(into.len(), self.faults.short_receive);
        let into = into.get_mut(..count).unwrap_or_default();
        let end = self.ends.get(&at).ok_or(io::ErrorKind::NotConnected)?;
        let is_shut = end.ends_at.is_some();
        let (Some(carrier), Some(carried)) = (&mut self.carrier, end.carried) else {
            return Ok(None);
        };
        let received = match carrier.receive(carried, into) {
            Ok(None) if is_shut => Ok(Some(0)),
            received => received,
        };
        if !into.is_empty()
            && matches!(received, Ok(Some(0)))
            && let Some(end) = self.ends.get_mut(&at)
        {
            end.ends_at.get_or_insert(self.now);
        }
        self.run_carrier();
        received
    }

    /// Receives at an end: `None` if nothing has arrived, 0 at the end of input.
    pub(super) fn receive(&mut self, at: i32, into: &mut [u8]) -> io::Result<Option<usize>> {
        let end = self.ends.get(&at).ok_or(io::ErrorKind::NotConnected)?;
        if end.reset_at.is_some_and(|at| at <= self.now) {
            return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
        }
        if end.carried.is_some() {
            return self.receive_carried(at, into);
        }
        let now = self.now;
        let arrived = end
            .arriving
            .iter()
            .take_while(|(arrival, _)| *arrival <= now);
        let available: usize = arrived.map(|(_, bytes)| bytes.len()).sum();
        if available == 0 {
            let ended = end.arriving.is_empty() && end.ends_at.is_some_and(|at| at <= now);
            return Ok(ended.then_some(0));
        }
        let count = self.cut(available.min(into.len()), self.faults.short_receive);
        let Some(end) = self.ends.get_mut(&at) else {
            return Ok(None);
        };
        end.held -= count;
        let mut filled = 0;
        while filled < count
            && let Some((_, bytes)) = end.arriving.front_mut()
        {
            let step = bytes.len().min(count - filled);
            if let (Some(to), Some(from)) = (into.get_mut(filled..filled + step), bytes.get(..step))
            {
                to.copy_from_slice(from);
            }
            bytes.drain(..step);
            filled += step;
            if bytes.is_empty() {
                end.arriving.pop_front();
            }
        }
        if let Some(other) = end.other {
            // There is room again; the sender learns of it after the latency.
            let arrival = self.arrival();
            self.schedule_event(arrival, EventTarget::End(other));
        }
        Ok(Some(count))
    }

    /// Resets an end's connection, after the usual latency.
    pub(super) fn reset(&mut self, at: i32) {
        let arrival = self.arrival();
        if let Some(end) = self.ends.get_mut(&at) {
            end.reset_at.get_or_insert(arrival);
        }
        self.schedule_event(arrival, EventTarget::End(at));
    }

    pub(super) fn shutdown_write(&mut self, from: i32) {
        let Some(end) = self.ends.get_mut(&from) else {
            return;
        };
        if std::mem::replace(&mut end.write_ended, true) {
            return;
        }
        if let (Some(carrier), Some(carried)) = (&mut self.carrier, end.carried) {
            carrier.finish(carried);
            return self.run_carrier();
        }
        let Some(to) = end.other else { return };
        let arrival = self.arrival();
        if let Some(end) = self.ends.get_mut(&to) {
            let arrival = arrival.max(end.last_arrival);
            end.ends_at = Some(arrival);
            self.schedule_event(arrival, EventTarget::End(to));
        }
    }

    pub(super) fn shutdown_read(&mut self, at: i32) {
        let now = self.now;
        if let Some(end) = self.ends.get_mut(&at) {
            end.ends_at = Some(now);
            self.schedule_event(now, EventTarget::End(at));
        }
    }

    /// Closes an end: the other end sees an orderly close, or a reset if bytes are left unread, as
    /// in TCP.
    pub(super) fn close(&mut self, socket: i32) {
        let Some(end) = self.ends.get(&socket) else {
            return;
        };
        if let (Some(carrier), Some(carried)) = (&mut self.carrier, end.carried) {
            if end.reset_on_close {
                carrier.abort(carried);
            } else {
                carrier.release(self.now, carried);
            }
            self.ends.remove(&socket);
            return self.run_carrier();
        }
        let unread = end.arriving.iter().any(|(arrival, _)| *arrival <= self.now);
        let (other, reset) = (end.other, end.reset_on_close || unread);
        if !reset {
            self.shutdown_write(socket);
        }
        if let Some(other) = other {
            if reset {
                self.reset(other);
            }
            if let Some(end) = self.ends.get_mut(&other) {
                end.other = None;
            }
        }
        self.ends.remove(&socket);
    }

    /// Advances the clock to the next event, but not beyond `limit`. False if no event is due by
    /// then.
    pub(super) fn advance(&mut self, limit: Option<Duration>) -> bool {
        match self.events.peek() {
            Some(Reverse((at, _, _))) if limit.is_none_or(|limit| *at <= limit) => {
                self.now = self.now.max(*at);
                true
            }
            _ => {
                self.now = self.now.max(limit.unwrap_or(self.now));
                false
            }
        }
    }

    /// The next target with a due event.
    pub(super) fn next_place(&mut self) -> Option<EventTarget> {
        let Reverse((at, _, place)) = *self.events.peek()?;
        if at > self.now {
            return None;
        }
        self.events.pop();
        Some(place)
    }
}
