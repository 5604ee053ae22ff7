//! A simulated network and clock inside the process. The whole server runs as a seed determines,
//! and all runs with the same seed are identical.
//!
//! The simulated time stands still while tasks run, and jumps to the next event when all tasks
//! wait, so an hour of timeouts takes no real time. The network delays, splits and resets as its
//! [`Faults`] and the seed determine. A test talks to the server either with
//! [`net::connect`](crate::net::connect), in another task of the same runtime, or from outside the
//! runtime with a [`Client`], whose calls never wait. Files are real; blocking jobs run inline.
//!
//! Datagrams may be lost, duplicated and reordered, as the faults determine. So may the frames of
//! streams that our own TCP stack carries ([`Streams::Tcp`]); streams that are delivered directly
//! lose nothing.
//!
//! Not simulated: Unix sockets, the order in which threads run.

mod carrier;
mod mailbox;
mod network;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::slab::Key;
use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::buffer::{self, Buffer};
use crate::engine::{
    CloseMode, Completion, Control, Engine, Op, OpKind, OperationOutcome, Outgoing, SendStop,
    Socket, Token,
};
use crate::frames::Frames;
use crate::messages::BATCH_MAX;
use crate::net::{
    Address, BoundSocket, ConnectError, ConnectStep, Datagram, Segment, SocketKind, SocketOptions,
};
use crate::notifier::Notifier;
use crate::reserve::READ_AWAY_MAX;
use crate::runtime::Runtime;
use crate::settings::Settings;

use network::{Connecting, EventTarget, Network, SimSocket};
pub use network::{Faults, Streams};

thread_local! {
    /// The network of this thread's simulated runtime.
    static NETWORK: RefCell<Option<Rc<RefCell<Network>>>> = const { RefCell::new(None) };
}

/// If no simulated event is left, a simulation waits this long, in real time, for another thread to
/// post a job.
const STANDSTILL: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// Number of frames that a simulation receives into: few, so that tests run out of them.
const FRAMES: u32 = 16;

/// Minimum duration of a turn of the loop.
const TURN: Duration = Duration::from_micros(1);

/// Creates a runtime whose network and clock are simulated, with random decisions drawn from
/// `seed`.
///
/// # Errors
/// `AlreadyExists` if the thread has a runtime.
pub fn runtime(seed: u64, faults: Faults, settings: Settings) -> io::Result<Runtime> {
    buffer::set_size(settings.buffer_size);
    Runtime::simulated(Box::new(Sim::new(seed, faults)?), settings)
}

/// Listens at `address` of this thread's simulated network; port 0 chooses a free port. Returns the
/// socket, for [`Listener::new`](crate::net::Listener::new), and its address.
///
/// # Errors
/// `AddrInUse` if the address is taken, `Unsupported` for a Unix socket, `NotConnected` if this
/// thread has no simulated runtime.
pub fn listen(address: Address) -> io::Result<(BoundSocket, Address)> {
    let network = network()?;
    let Address::Inet(mut address) = address else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let mut network = network.borrow_mut();
    if address.port() == 0 {
        address.set_port(network.free_port());
    }
    if network
        .listeners
        .values()
        .any(|listener| listener.address == address)
    {
        return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
    }
    let number = network.listen(address)?;
    let socket = BoundSocket::simulated(Socket::Simulated(number), SocketKind::Streams);
    Ok((socket, Address::Inet(address)))
}

/// Binds a datagram socket to `address` of this thread's simulated network, for
/// [`DatagramSocket::new`](crate::net::DatagramSocket::new).
///
/// # Errors
/// As for [`listen`].
pub fn bind_datagrams(address: &Address) -> io::Result<BoundSocket> {
    let number = network()?.borrow_mut().open_mailbox(Some(address), None)?;
    let socket = Socket::Simulated(number);
    Ok(BoundSocket::simulated(socket, SocketKind::Datagrams))
}

/// Replaces the faults of this thread's simulated network from now on.
///
/// # Errors
/// `NotConnected` if this thread has no simulated runtime.
pub fn set_faults(faults: Faults) -> io::Result<()> {
    let network = network()?;
    let mut network = network.borrow_mut();
    if let Some(carrier) = &mut network.carrier {
        carrier.set_faults(&faults);
    }
    network.faults = faults;
    Ok(())
}

/// Makes the next accept at `address` fail with this `errno`, for example `EMFILE`.
///
/// # Errors
/// `NotFound` if no socket listens there, `NotConnected` if this thread has no simulated runtime.
pub fn fail_accept(address: &Address, errno: i32) -> io::Result<()> {
    let network = network()?;
    let mut network = network.borrow_mut();
    let number = network
        .listener_at(address)
        .ok_or(io::ErrorKind::NotFound)?;
    if let Some(listener) = network.listeners.get_mut(&number) {
        listener.errors.push_back(errno);
    }
    let now = network.now;
    network.schedule_event(now, EventTarget::Listener(number));
    Ok(())
}

/// The client's end of a simulated connection, for a test outside the runtime. No call waits; the
/// simulated time advances only while the runtime runs.
#[derive(Debug)]
pub struct Client {
    network: Rc<RefCell<Network>>,
    socket: i32,
}

impl Client {
    /// Connects to `address`. The connection is established after the network's latency.
    ///
    /// # Errors
    /// `ConnectionRefused` if no socket listens there, `ETIMEDOUT` if the listener's queue is full,
    /// `NotConnected` if this thread has no simulated runtime.
    pub fn connect(address: &Address) -> io::Result<Client> {
        let network = network()?;
        let socket = network.borrow_mut().new_end();
        let stands = network.borrow_mut().connect(socket, address)?;
        match stands {
            Connecting::Stands(_) | Connecting::Carried => Ok(Client { network, socket }),
            Connecting::Unanswered => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
        }
    }

    /// Sends as much of `bytes` as the connection has room for, and returns the number of bytes
    /// sent.
    ///
    /// # Errors
    /// `ECONNRESET` and `EPIPE`, as from a socket.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.network
            .borrow_mut()
            .send(self.socket, bytes)
            .map(Option::unwrap_or_default)
    }

    /// Takes everything that has arrived.
    ///
    /// # Errors
    /// `ECONNRESET`, as from a socket.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut received = Vec::new();
        let mut part = [0; 4096];
        while let Some(count) = self.network.borrow_mut().receive(self.socket, &mut part)?
            && count > 0
        {
            received.extend_from_slice(part.get(..count).unwrap_or_default());
        }
        Ok(received)
    }

    /// Whether the server has shut down its sending side, and all data before that has been read.
    #[must_use]
    pub fn ended(&self) -> bool {
        let network = self.network.borrow();
        network.ends.get(&self.socket).is_some_and(|end| {
            end.arriving.is_empty() && end.ends_at.is_some_and(|at| at <= network.now)
        })
    }

    /// Shuts down the client's sending side.
    pub fn shutdown_write(&mut self) {
        self.network.borrow_mut().shutdown_write(self.socket);
    }

    /// Resets the connection, as `SO_LINGER` with 0 does.
    pub fn reset(self) {
        let mut network = self.network.borrow_mut();
        if let Some(end) = network.ends.get_mut(&self.socket) {
            end.reset_on_close = true;
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The borrow in `reset` has ended by now: locals are dropped before parameters.
        self.network.borrow_mut().close(self.socket);
    }
}

/// The network of this thread's simulation, or `NotConnected`.
fn network() -> io::Result<Rc<RefCell<Network>>> {
    NETWORK
        .with_borrow(Clone::clone)
        .ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// The engine over a simulated network.
pub(crate) struct Sim {
    network: Rc<RefCell<Network>>,
    start: Instant,
    notifier: Notifier,
    /// The numbers of the streams' sockets, by index and generation of their keys.
    sockets: BTreeMap<Key, i32>,
    /// The operations in flight on streams, by socket number.
    pending: BTreeMap<i32, Pending>,
    /// The accepts in flight, by the listening socket's number.
    accepting: BTreeMap<i32, Key>,
    /// The datagram receives in flight, by socket number.
    datagram_receivers: BTreeMap<i32, Key>,
    /// Frames that every second receive uses, so that all tests exercise both kinds of buffers.
    frames: Frames,
    /// Whether the last receive was to use a frame. Each receive flips it first.
    is_frame_next: bool,
}

/// Operations in flight on one socket.
struct Pending {
    key: Key,
    receiving: bool,
    /// The send in flight: its segments, its limit of file bytes per turn, and how it closes the
    /// socket.
    sending: Option<(Box<Outgoing>, u64, CloseMode)>,
    /// The connect in flight: when it succeeds, or `Duration::MAX` if that is not known.
    connecting: Option<Duration>,
}

impl Sim {
    pub(crate) fn new(seed: u64, faults: Faults) -> io::Result<Sim> {
        let network = Rc::new(RefCell::new(Network::new(seed, faults)));
        let notifier = Notifier::new()?;
        let size = u32::try_from(buffer::size()).unwrap_or(u32::MAX);
        let frames = Frames::new(FRAMES, size, notifier.clone())?;
        NETWORK.set(Some(network.clone()));
        Ok(Sim {
            network,
            start: Instant::now(),
            notifier,
            frames,
            is_frame_next: false,
            sockets: BTreeMap::new(),
            pending: BTreeMap::new(),
            accepting: BTreeMap::new(),
            datagram_receivers: BTreeMap::new(),
        })
    }

    /// The operations in flight on a stream's socket; adds an empty record if there is none.
    fn pending(&mut self, socket: i32, key: Key) -> &mut Pending {
        self.pending.entry(socket).or_insert(Pending {
            key,
            receiving: false,
            sending: None,
            connecting: None,
        })
    }

    fn receive(&mut self, socket: i32) -> Option<OperationOutcome> {
        self.is_frame_next = !self.is_frame_next;
        let frame = if self.is_frame_next {
            self.frames.take()
        } else {
            None
        };
        let mut network = self.network.borrow_mut();
        let received = if let Some(mut frame) = frame {
            let result = network.receive(socket, &mut frame).transpose()?;
            result.map(|count| match count {
                0 => Buffer::empty(),
                count => frame.into_buffer(0..count),
            })
        } else {
            let mut memory = vec![0; buffer::size()];
            let result = network.receive(socket, &mut memory).transpose()?;
            result.map(|count| Buffer::copy_of(memory.get(..count).unwrap_or_default()))
        };
        Some(OperationOutcome::Received(received))
    }

    /// Sends as much as the connection has room for; `None` if it has no room, and the send waits.
    fn send(
        &mut self,
        socket: i32,
        mut outgoing: Box<Outgoing>,
        chunk: u64,
        ending: CloseMode,
        key: Key,
    ) -> Option<OperationOutcome> {
        let (taken, stop) = self.transmit(socket, &mut outgoing, chunk);
        if taken == 0 && matches!(stop, SendStop::Blocked) {
            self.pending(socket, key).sending = Some((outgoing, chunk, ending));
            return None;
        }
        let stop = match stop {
            SendStop::Empty if ending.closes() => {
                self.close(key);
                SendStop::Closed
            }
            stop => stop,
        };
        Some(OperationOutcome::Sent {
            outgoing,
            taken,
            stop,
        })
    }

    /// Sends segments as far as the connection has room. Returns the number of bytes sent, and why
    /// the send stopped.
    fn transmit(&mut self, socket: i32, outgoing: &mut Outgoing, chunk: u64) -> (u64, SendStop) {
        let mut network = self.network.borrow_mut();
        let mut taken = 0;
        let mut of_files = 0;
        loop {
            let sent = match outgoing.front() {
                None => return (taken, SendStop::Empty),
                Some(Segment::Bytes(_)) => {
                    let bytes = front_bytes(outgoing, network.faults.window.max(1));
                    network.send(socket, &bytes)
                }
                Some(Segment::Piped { .. } | Segment::Keys(_) | Segment::Record { .. }) => {
                    return (taken, SendStop::Failed(io::ErrorKind::Unsupported.into()));
                }
                Some(Segment::File { .. }) if of_files >= chunk => return (taken, SendStop::Chunk),
                Some(Segment::File { .. }) if outgoing.warm == 0 => return (taken, SendStop::Cold),
                Some(Segment::File {
                    file,
                    offset,
                    length,
                }) => {
                    let count = (*length)
                        .min(outgoing.warm)
                        .min(chunk - of_files)
                        .min(65_536);
                    let mut part = vec![0; count as usize];
                    let slices = &mut [IoSliceMut::new(&mut part)];
                    match rustix::io::preadv(file, slices, *offset) {
                        Ok(0) => {
                            let error = io::ErrorKind::UnexpectedEof.into();
                            return (taken, SendStop::Failed(error));
                        }
                        Ok(count) => {
                            let sent = network.send(socket, part.get(..count).unwrap_or_default());
                            of_files += sent.as_ref().map_or(0, |sent| sent.unwrap_or(0)) as u64;
                            sent
                        }
                        Err(error) => Err(error.into()),
                    }
                }
            };
            match sent {
                Ok(Some(count)) => {
                    outgoing.advance(count as u64);
                    taken += count as u64;
                }
                Ok(None) => return (taken, SendStop::Blocked),
                Err(error) => return (taken, SendStop::Failed(error)),
            }
        }
    }

    /// Receives the datagrams that have arrived; `None` if there are none, and the receive waits.
    fn receive_datagrams(
        &mut self,
        socket: &Socket,
        into: &mut VecDeque<Datagram<Buffer>>,
        key: Key,
    ) -> Option<OperationOutcome> {
        let Socket::Simulated(number) = *socket else {
            return Some(Op::RecvMsg { socket, into }.unconnected());
        };
        let mut network = self.network.borrow_mut();
        if let Err(error) = network.refusal(number) {
            return Some(OperationOutcome::Messages(Err(error)));
        }
        while into.len() < BATCH_MAX
            && let Some(datagram) = network.take_datagram(number)
        {
            into.push_back(datagram.with(Buffer::copy_of(&datagram.bytes)));
        }
        drop(network);
        if into.is_empty() {
            self.datagram_receivers.insert(number, key);
            return None;
        }
        Some(OperationOutcome::Messages(Ok(into.len())))
    }

    fn send_datagrams(
        &self,
        socket: &Socket,
        datagrams: &VecDeque<Datagram<Bytes>>,
    ) -> OperationOutcome {
        let Socket::Simulated(number) = *socket else {
            return Op::SendMsg { socket, datagrams }.unconnected();
        };
        let mut network = self.network.borrow_mut();
        if let Err(error) = network.refusal(number) {
            return OperationOutcome::Messages(Err(error));
        }
        let mut sent = 0;
        for datagram in datagrams.iter().take(BATCH_MAX) {
            match network.post(number, datagram) {
                Ok(()) => sent += 1,
                // Only the first datagram has failed; the caller may send the others without it.
                Err(error) if sent == 0 => return OperationOutcome::Messages(Err(error)),
                Err(_) => break,
            }
        }
        OperationOutcome::Messages(Ok(sent))
    }

    /// Completes the operations in flight that can proceed after an event at a target.
    fn look_at(&mut self, place: EventTarget, completions: &mut Vec<Completion>) {
        let mut complete = |key, kind, outcome| {
            completions.push(Completion {
                token: Token { key, kind },
                outcome,
                more: false,
            });
        };
        match place {
            EventTarget::Listener(number) => {
                if let Some(&key) = self.accepting.get(&number)
                    && let Some(accepted) = self.network.borrow_mut().accept(number)
                {
                    self.accepting.remove(&number);
                    complete(key, OpKind::Accept, accepted_outcome(accepted));
                }
            }
            EventTarget::Carrier => self.network.borrow_mut().resume_carrier(),
            EventTarget::Mailbox(number) => {
                if let Some(key) = self.datagram_receivers.remove(&number) {
                    complete(key, OpKind::RecvMsg, OperationOutcome::Ready);
                }
            }
            EventTarget::End(socket) => {
                let now = self.network.borrow().now;
                let Some(pending) = self.pending.get_mut(&socket) else {
                    return;
                };
                let key = pending.key;
                if pending.connecting.is_some_and(|at| at <= now) {
                    pending.connecting = None;
                    complete(key, OpKind::Connect, OperationOutcome::Connected(Ok(())));
                } else if pending.connecting.is_some()
                    && let Some(outcome) = self.network.borrow().connect_outcome(socket)
                {
                    pending.connecting = None;
                    complete(key, OpKind::Connect, OperationOutcome::Connected(outcome));
                }
                let receiving = pending.receiving;
                let sending = pending.sending.take();
                if receiving && let Some(outcome) = self.receive(socket) {
                    self.pending(socket, key).receiving = false;
                    complete(key, OpKind::Recv, outcome);
                }
                if let Some((outgoing, chunk, ending)) = sending
                    && let Some(outcome) = self.send(socket, outgoing, chunk, ending, key)
                {
                    complete(key, OpKind::Send, outcome);
                }
            }
        }
    }

    /// The number of the socket of the stream `key`.
    fn number(&self, key: Key) -> io::Result<i32> {
        let number = self.sockets.get(&key).copied();
        number.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// An address of the stream's end, as `address` selects it.
    fn end(&self, key: Key, address: impl Fn(&SimSocket) -> SocketAddr) -> io::Result<Address> {
        let number = self.number(key)?;
        let network = self.network.borrow();
        let end = network.ends.get(&number).map(address);
        end.map(Address::Inet)
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn close(&mut self, key: Key) {
        if let Some(number) = self.sockets.remove(&key) {
            self.pending.remove(&number);
            self.network.borrow_mut().close(number);
        }
    }

    /// Waits, in real time, for another thread to post a job, because no simulated event is left.
    fn wait_for_real_events(&self) -> io::Result<()> {
        let fd = self.notifier.fd();
        let mut polled = [PollFd::new(&fd, PollFlags::IN)];
        if rustix::event::poll(&mut polled, Some(&STANDSTILL))? == 0 {
            return Err(io::Error::other(
                "nothing can happen any more: every task waits forever",
            ));
        }
        self.notifier.clear();
        Ok(())
    }
}

/// The number of a listening socket of a simulated network.
fn listening(socket: &Socket) -> Option<i32> {
    match socket {
        Socket::Simulated(number) => Some(*number),
        Socket::Descriptor(_) | Socket::Carried { .. } => None,
    }
}

fn accepted_outcome(accepted: io::Result<(i32, SocketAddr)>) -> OperationOutcome {
    OperationOutcome::Accepted(accepted.map(|(end, peer)| (Socket::Simulated(end), Some(peer))))
}

impl Engine for Sim {
    fn submit(&mut self, op: Op<'_>, token: Token) -> Option<OperationOutcome> {
        let key = token.key;
        let socket = match op {
            Op::Accept { .. } | Op::Readable { .. } | Op::RecvMsg { .. } | Op::SendMsg { .. } => 0,
            _ => match self.sockets.get(&key) {
                Some(socket) => *socket,
                None => return Some(op.unconnected()),
            },
        };
        match op {
            Op::Accept { socket, many: _ } => {
                let Some(number) = listening(socket) else {
                    return Some(op.unconnected());
                };
                let accepted = self.network.borrow_mut().accept(number);
                if let Some(accepted) = accepted {
                    return Some(accepted_outcome(accepted));
                }
                self.accepting.insert(number, key);
                None
            }
            Op::Connect { address } => {
                let connecting = self.network.borrow_mut().connect(socket, &address);
                match connecting {
                    Ok(connecting) => {
                        let at = match connecting {
                            Connecting::Stands(at) => at,
                            Connecting::Carried | Connecting::Unanswered => Duration::MAX,
                        };
                        self.pending(socket, key).connecting = Some(at);
                        None
                    }
                    Err(error) => Some(OperationOutcome::Connected(Err(error))),
                }
            }
            Op::Recv { keep: _ } => {
                if let Some(outcome) = self.receive(socket) {
                    return Some(outcome);
                }
                self.pending(socket, key).receiving = true;
                None
            }
            Op::Send {
                outgoing,
                chunk,
                ending,
            } => self.send(socket, outgoing, chunk, ending, key),
            Op::Close => {
                self.close(key);
                Some(OperationOutcome::Closed)
            }
            Op::RecvMsg { socket, into } => self.receive_datagrams(socket, into, key),
            Op::SendMsg { socket, datagrams } => Some(self.send_datagrams(socket, datagrams)),
            // There are no other descriptors here.
            Op::Readable { .. } => Some(op.unconnected()),
        }
    }

    fn sends_at_once(&self) -> bool {
        true
    }

    fn cancel(&mut self, token: Token) -> Option<OperationOutcome> {
        let cancelled = || io::Error::from_raw_os_error(libc::ECANCELED);
        if token.kind == OpKind::Accept {
            let number = *self.accepting.iter().find(|(_, key)| **key == token.key)?.0;
            self.accepting.remove(&number);
            return Some(OperationOutcome::Accepted(Err(cancelled())));
        }
        if token.kind == OpKind::RecvMsg {
            let number = *self
                .datagram_receivers
                .iter()
                .find(|(_, key)| **key == token.key)?
                .0;
            self.datagram_receivers.remove(&number);
            return Some(OperationOutcome::Ready);
        }
        let pending = self
            .pending
            .values_mut()
            .find(|pending| pending.key == token.key)?;
        match token.kind {
            OpKind::Recv => std::mem::take(&mut pending.receiving)
                .then(|| OperationOutcome::Received(Err(cancelled()))),
            OpKind::Connect => pending
                .connecting
                .take()
                .map(|_| OperationOutcome::Connected(Err(cancelled()))),
            OpKind::Send => pending
                .sending
                .take()
                .map(|(outgoing, _, _)| OperationOutcome::Sent {
                    outgoing,
                    taken: 0,
                    stop: SendStop::Failed(cancelled()),
                }),
            _ => None,
        }
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        // A turn takes simulated time even if it does not wait; otherwise tasks that are always
        // ready would stop the clock.
        let limit = timeout.map(|timeout| self.network.borrow().now + timeout.max(TURN));
        loop {
            loop {
                let place = self.network.borrow_mut().next_place();
                let Some(place) = place else { break };
                self.look_at(place, completions);
            }
            if !completions.is_empty() {
                return Ok(());
            }
            let advanced = self.network.borrow_mut().advance(limit);
            if !advanced {
                return match limit {
                    Some(_) => Ok(()),
                    None => self.wait_for_real_events(),
                };
            }
        }
    }

    fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    fn now(&self) -> Instant {
        self.start + self.network.borrow().now
    }

    fn bound_datagrams(&mut self, from: &Address) -> io::Result<Socket> {
        let number = self.network.borrow_mut().open_mailbox(Some(from), None)?;
        Ok(Socket::Simulated(number))
    }

    fn connected_datagrams(
        &mut self,
        to: &Address,
        options: &SocketOptions,
    ) -> Result<Socket, ConnectError> {
        let from = options.from.map(Address::Inet);
        let mut network = self.network.borrow_mut();
        let opened = network.open_mailbox(from.as_ref(), Some(to));
        let number = opened.map_err(ConnectError::at(ConnectStep::Connect))?;
        Ok(Socket::Simulated(number))
    }

    fn take_datagrams(&mut self, socket: &Socket) -> io::Result<()> {
        self.address(socket).map(drop)
    }

    fn close_datagrams(&mut self, _key: Key, socket: Socket, _is_own: bool) {
        if let Socket::Simulated(number) = socket {
            self.network.borrow_mut().mailboxes.remove(&number);
        }
    }

    fn address(&self, socket: &Socket) -> io::Result<Address> {
        let network = self.network.borrow();
        let mailbox = match socket {
            Socket::Simulated(number) => network.mailboxes.get(number),
            Socket::Descriptor(_) | Socket::Carried { .. } => None,
        };
        let mailbox = mailbox.ok_or(io::ErrorKind::NotConnected)?;
        Ok(Address::Inet(mailbox.address))
    }

    fn adopt(&mut self, key: Key, socket: Socket) {
        if let Socket::Simulated(number) = socket {
            self.sockets.insert(key, number);
        }
    }

    fn socket(&mut self, _to: &Address, options: &SocketOptions) -> Result<Socket, ConnectError> {
        let mut network = self.network.borrow_mut();
        let socket = network.new_end();
        if let (Some(from), Some(end)) = (options.from, network.ends.get_mut(&socket)) {
            end.local.set_ip(from.ip());
            if from.port() != 0 {
                end.local.set_port(from.port());
            }
        }
        Ok(Socket::Simulated(socket))
    }

    fn control(&mut self, key: Key, control: Control) -> io::Result<()> {
        let socket = self.number(key)?;
        let mut network = self.network.borrow_mut();
        match control {
            Control::NoDelay(_) => {}
            Control::KernelTls => return Err(io::ErrorKind::Unsupported.into()),
            Control::ShutdownWrite => network.shutdown_write(socket),
            Control::ShutdownRead => network.shutdown_read(socket),
            Control::ShutdownBoth => {
                network.shutdown_write(socket);
                network.shutdown_read(socket);
            }
            Control::ResetOnClose => {
                if let Some(end) = network.ends.get_mut(&socket) {
                    end.reset_on_close = true;
                }
            }
        }
        Ok(())
    }

    fn discard(&mut self, socket: Socket) {
        if let Socket::Simulated(number) = socket {
            self.network.borrow_mut().close(number);
        }
    }

    fn listen(&mut self, socket: &Socket) -> io::Result<bool> {
        let network = self.network.borrow();
        match listening(socket) {
            Some(number) if network.listeners.contains_key(&number) => Ok(false),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn accept_now(&mut self, listener: &Socket) -> io::Result<(Socket, Option<SocketAddr>)> {
        let number = listening(listener).ok_or(io::ErrorKind::NotConnected)?;
        let accepted = self.network.borrow_mut().accept(number);
        let (end, peer) = accepted.ok_or(io::ErrorKind::WouldBlock)??;
        Ok((Socket::Simulated(end), Some(peer)))
    }

    fn shed_connection(&mut self, listener: &Socket, answer: &[u8]) -> bool {
        let mut network = self.network.borrow_mut();
        let waiting = listening(listener).and_then(|number| network.take_waiting(number));
        let Some(end) = waiting else { return false };
        // As with a kernel socket: the request is read and discarded, without waiting.
        let _ = network.receive(end, &mut [0; READ_AWAY_MAX]);
        let _ = network.send(end, answer);
        network.close(end);
        true
    }

    fn forget_listener(&mut self, socket: &Socket) {
        let mut network = self.network.borrow_mut();
        if let Some(number) = listening(socket) {
            network.forget_listener(number);
        }
    }

    fn peer(&self, key: Key) -> io::Result<Address> {
        self.end(key, |end| end.peer)
    }

    fn local(&self, key: Key) -> io::Result<Address> {
        self.end(key, |end| end.local)
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // A later simulation of this thread may have stored its own network here already.
        let _ = NETWORK.try_with(|current| {
            let mut current = current.borrow_mut();
            if current
                .as_ref()
                .is_some_and(|network| Rc::ptr_eq(network, &self.network))
            {
                *current = None;
            }
        });
    }
}

/// A copy of the byte strings at the front of the queue, at most `count_max` bytes, to be sent in
/// one call.
fn front_bytes(outgoing: &Outgoing, count_max: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in outgoing.segments() {
        let room = count_max - bytes.len();
        match segment {
            Segment::Bytes(more) if room > 0 => {
                bytes.extend_from_slice(more.get(..room).unwrap_or(more));
            }
            _ => break,
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{DatagramSocket, Listener};
    use crate::{now, sleep, spawn};
    use std::os::fd::OwnedFd;

    /// What a client gets from an echo server, and when, in a run with many faults.
    fn run(seed: u64, streams: Streams) -> (Vec<u8>, u128, bool) {
        let faults = Faults {
            streams,
            loss: 50,
            duplicate: 20,
            reorder: 100,
            corrupt: 5,
            short_receive: 400,
            short_send: 400,
            reset: 2,
            delay_max: Duration::from_millis(30),
            window: 3000,
            ..Faults::default()
        };
        let mut runtime = runtime(seed, faults, Settings::default()).unwrap();
        let begin = now();
        let (socket, address) = listen(Address::Inet("10.0.0.1:80".parse().unwrap())).unwrap();
        let outcome = runtime.block_on(async {
            spawn(async move {
                let listener = Listener::new(socket).unwrap();
                while let Ok(stream) = listener.accept().await {
                    spawn(async move {
                        while let Ok(buffer) = stream.recv(None).await
                            && !buffer.is_empty()
                        {
                            stream.push(buffer.into_bytes());
                            if stream.drained(1000).await.is_err() {
                                return;
                            }
                        }
                        stream.finish();
                    });
                }
            });
            let mut client = Client::connect(&address).unwrap();
            let content: Vec<u8> = (0..20_000_u32).map(|n| (n % 251) as u8).collect();
            let (mut written, mut received) = (0, Vec::new());
            loop {
                if written < content.len() {
                    match client.write(&content[written..]) {
                        Ok(count) => written += count,
                        Err(_) => return (received, true),
                    }
                    if written == content.len() {
                        client.shutdown_write();
                    }
                }
                match client.read() {
                    Ok(bytes) => received.extend_from_slice(&bytes),
                    Err(_) => return (received, true),
                }
                assert!(content.starts_with(&received));
                if client.ended() {
                    return (received, false);
                }
                sleep(Duration::from_millis(1)).await;
            }
        });
        (outcome.0, (now() - begin).as_micros(), outcome.1)
    }

    #[test]
    fn a_seed_repeats_itself_and_seeds_differ() {
        for streams in [Streams::Direct, Streams::Tcp] {
            let first = run(1, streams);
            assert_eq!(first, run(1, streams));
            let outcomes: Vec<_> = (0..40).map(|seed| run(seed, streams)).collect();
            assert!(outcomes.iter().any(|(_, _, reset)| *reset));
            assert!(
                outcomes
                    .iter()
                    .any(|(bytes, _, reset)| !*reset && bytes.len() == 20_000)
            );
            assert!(outcomes.iter().any(|outcome| outcome.1 != first.1));
        }
    }

    #[test]
    fn nothing_arrives_after_what_a_reset_has_cost() {
        for seed in 0..20 {
            let mut runtime = runtime(seed, Faults::default(), Settings::default()).unwrap();
            let (socket, address) = listen(Address::Inet("10.0.0.1:80".parse().unwrap())).unwrap();
            runtime.block_on(async {
                let listener = Listener::new(socket).unwrap();
                let mut client = Client::connect(&address).unwrap();
                let stream = listener.accept().await.unwrap();
                let reset = 1000;
                set_faults(Faults {
                    reset,
                    ..Faults::default()
                })
                .unwrap();
                assert_eq!(client.write(b"lost").unwrap(), 4);
                set_faults(Faults::default()).unwrap();
                assert_eq!(client.write(b"more").unwrap(), 4);
                let error = stream.recv(None).await.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
            });
        }
    }

    #[test]
    fn hours_pass_in_no_time() {
        let real = Instant::now();
        let mut runtime = runtime(0, Faults::default(), Settings::default()).unwrap();
        let wall = crate::wall();
        runtime.block_on(sleep(Duration::from_secs(36_000)));
        assert_eq!(crate::wall() - wall, Duration::from_secs(36_000));
        assert!(real.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn accept_errors_can_be_planted() {
        let mut runtime = runtime(0, Faults::default(), Settings::default()).unwrap();
        let (socket, address) = listen(Address::Inet("10.0.0.1:80".parse().unwrap())).unwrap();
        assert!(listen(address.clone()).is_err());
        runtime.block_on(async {
            let listener = Listener::new(socket).unwrap();
            fail_accept(&address, libc::EMFILE).unwrap();
            let _client = Client::connect(&address).unwrap();
            let error = listener.accept().await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
            assert!(listener.accept().await.is_ok());
        });
    }

    #[test]
    fn clients_can_be_turned_away() {
        let mut runtime = runtime(0, Faults::default(), Settings::default()).unwrap();
        let (socket, address) = listen(Address::Inet("10.0.0.1:80".parse().unwrap())).unwrap();
        runtime.block_on(async {
            let listener = Listener::new(socket).unwrap();
            assert!(!listener.shed_connection(b"nobody is there"));
            let mut clients = [0, 1].map(|_| Client::connect(&address).unwrap());
            clients[0].write(b"GET / HTTP/1.1").unwrap();
            sleep(Duration::from_millis(1)).await;
            fail_accept(&address, libc::EMFILE).unwrap();
            assert!(listener.accept().await.is_err());
            assert!(listener.shed_connection(b"full"));
            assert!(listener.shed_connection(b"full"));
            assert!(!listener.shed_connection(b"full"));
            sleep(Duration::from_millis(1)).await;
            for client in &mut clients {
                let mut answer = Vec::new();
                while !client.ended() {
                    answer.extend(client.read().unwrap());
                }
                assert_eq!(answer, b"full");
            }
        });
    }

    #[test]
    fn a_socket_of_the_kernel_is_none_of_a_simulation() {
        let mut runtime = runtime(0, Faults::default(), Settings::default()).unwrap();
        let real = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (_, address) = listen(Address::Inet("10.0.0.1:80".parse().unwrap())).unwrap();
        runtime.block_on(async {
            let foreign = Listener::new(OwnedFd::from(real())).unwrap_err();
            assert_eq!(foreign.kind(), io::ErrorKind::NotConnected);
            let foreign = DatagramSocket::new(OwnedFd::from(real())).unwrap_err();
            assert_eq!(foreign.kind(), io::ErrorKind::NotConnected);
            // What the kernel would tell of a connection is made up nowhere.
            let stream = crate::net::connect(&address, None, None).await.unwrap();
            assert!(stream.tcp_info().is_none());
        });
    }

    #[test]
    fn a_full_backlog_does_not_answer() {
        let faults = Faults {
            backlog: 1,
            ..Faults::default()
        };
        let mut runtime = runtime(0, faults, Settings::default()).unwrap();
        let (socket, address) = listen(Address::Inet("10.0.0.1:80".parse().unwrap())).unwrap();
        runtime.block_on(async {
            let _listener = Listener::new(socket).unwrap();
            let _first = crate::net::connect(&address, None, None).await.unwrap();
            let deadline = now() + Duration::from_secs(60);
            let error = crate::net::connect(&address, None, Some(deadline))
                .await
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(now() >= deadline);
        });
    }
}
