//! The engine that combines connections of our own TCP stack, on queues of interfaces, with the
//! kernel's engine of the same thread.
//!
//! Every listening socket belongs to the kernel. If an interface with a queue reaches the socket,
//! the stack on that queue listens at the same address, and the filter decides which of the two
//! gets a connection. An accept is an operation of the kernel's engine; connections of a stack
//! complete it like one of several results of a multishot accept. All other operations go to the
//! kernel's engine unchanged: files, Unix sockets, datagrams, loopback, connections to upstreams.
//!
//! Before each wait, data sent by tasks are transmitted; after it, received frames are handled. The
//! kernel's engine waits, and also watches the queues.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::slab::Key;
use netstack::tcp::KeepAlive;

use super::port::{Port, QueueParts, Told};
use super::role::Role;
use super::streams::{Carried, Sending};
use crate::carried::error_of;
use crate::engine::{
    Completion, Control, Engine, Op, OpKind, OperationOutcome, SendStop, Socket, Token,
};
use crate::epoll::{Epoll, PollPolicy};
use crate::net::{Address, ConnectError, ConnectStep, SocketOptions, TcpInfo};
use crate::notifier::Notifier;
use crate::reserve::READ_AWAY_MAX;
use crate::sys;

/// Maximum number of connections that are accepted per listener in one wait.
const ACCEPTED_MAX: usize = 64;

/// A listening socket with an IPv4 address, which connections on a queue may reach.
struct Listening {
    descriptor: RawFd,
    address: SocketAddrV4,
    /// The socket's setting for accepted connections.
    keep_alive: Option<KeepAlive>,
    /// The accept in flight.
    accepting: Option<Key>,
}

/// The engine. Without a port, it only forwards to the kernel's engine.
pub(crate) struct Xdp {
    /// The kernel's engine.
    kernel: Epoll,
    /// The port of each queue; `None` after the port was given up.
    ports: Vec<Option<Port>>,
    /// Streams by the index of their key.
    streams: Vec<Option<Carried>>,
    /// The listening sockets with IPv4 addresses.
    listening: Vec<Listening>,
    /// Whether connections may wait to be accepted.
    has_acceptable: bool,
    /// Completions of calls that cannot return completions themselves.
    completed: Vec<Completion>,
}

impl Xdp {
    pub(crate) fn new() -> io::Result<Xdp> {
        Ok(Xdp {
            kernel: Epoll::new()?,
            ports: Vec::new(),
            streams: Vec::new(),
            listening: Vec::new(),
            has_acceptable: false,
            completed: Vec::new(),
        })
    }

    /// The stream `key` and its port, if the stream is on a port.
    fn carried(&mut self, key: Key) -> Option<(&mut Carried, &mut Port)> {
        let stream = self.streams.get_mut(key.index as usize)?.as_mut()?;
        let port = self.ports.get_mut(stream.port)?.as_mut()?;
        (stream.key == key).then_some((stream, port))
    }

    /// Whether the stream `key` is on a port, even one that was given up.
    fn is_carried(&self, key: Key) -> bool {
        let stream = self.streams.get(key.index as usize);
        stream
            .and_then(Option::as_ref)
            .is_some_and(|stream| stream.key == key)
    }

    /// Removes the stream `key`, if it is on a port.
    fn take_carried(&mut self, key: Key) -> Option<Carried> {
        let stream = self.streams.get_mut(key.index as usize)?;
        stream.take_if(|stream| stream.key == key)
    }

    fn send(&mut self, key: Key, sending: Sending) -> Option<OperationOutcome> {
        let ending = sending.ending;
        let Some((stream, port)) = self.carried(key) else {
            return Some(OperationOutcome::Sent {
                outgoing: sending.outgoing,
                taken: 0,
                stop: SendStop::Failed(io::ErrorKind::NotConnected.into()),
            });
        };
        let outcome = stream.send(&mut port.stack, sending)?;
        Some(match outcome {
            OperationOutcome::Sent {
                outgoing,
                taken,
                stop: SendStop::Empty,
            } if ending.closes() => {
                self.close(key);
                OperationOutcome::Sent {
                    outgoing,
                    taken,
                    stop: SendStop::Closed,
                }
            }
            outcome => outcome,
        })
    }

    /// Closes the stream `key`, if it is on a port.
    fn close(&mut self, key: Key) {
        let now = Instant::now();
        if let Some(stream) = self.take_carried(key)
            && let Some(Some(port)) = self.ports.get_mut(stream.port)
        {
            let time = port.time(now);
            stream.close(port, time);
        }
    }

    /// Submits an operation on a stream of a port; operations on other streams are returned.
    fn submit_carried<'a>(
        &mut self,
        op: Op<'a>,
        key: Key,
    ) -> Result<Option<OperationOutcome>, Op<'a>> {
        if !self.is_carried(key) {
            return Err(op);
        }
        Ok(match op {
            Op::Recv { keep: _ } => match self.carried(key) {
                Some((stream, port)) => stream.receive(&mut port.stack),
                None => Some(op.unconnected()),
            },
            Op::Send {
                outgoing,
                chunk,
                ending,
            } => self.send(
                key,
                Sending {
                    outgoing,
                    chunk,
                    ending,
                },
            ),
            Op::Close => {
                self.close(key);
                Some(OperationOutcome::Closed)
            }
            // The stack started the connection when the socket was created, and will report the
            // result as an event.
            Op::Connect { .. } => match self.carried(key) {
                Some((stream, _)) => {
                    stream.connecting = true;
                    None
                }
                None => Some(op.unconnected()),
            },
            op => Some(op.unconnected()),
        })
    }

    fn accept(
        &mut self,
        socket: &Rc<Socket>,
        many: bool,
        token: Token,
    ) -> Option<OperationOutcome> {
        let outcome = self.kernel.submit(Op::Accept { socket, many }, token);
        if outcome.is_none()
            && let Some(listening) = self.listening_at(socket)
        {
            listening.accepting = Some(token.key);
            self.has_acceptable = true;
        }
        outcome
    }

    /// The entry of a listening socket.
    fn listening_at(&mut self, socket: &Socket) -> Option<&mut Listening> {
        let descriptor = socket.descriptor()?.as_raw_fd();
        let mut listening = self.listening.iter_mut();
        listening.find(|listening| listening.descriptor == descriptor)
    }

    /// Accepts a connection that waits at an address in any stack. Also returns the peer's address.
    fn accept_carried(&mut self, address: SocketAddrV4) -> Option<(Socket, SocketAddr)> {
        let listening = self
            .listening
            .iter()
            .find(|known| known.address == address)?;
        let keep_alive = listening.keep_alive;
        self.ports
            .iter_mut()
            .enumerate()
            .find_map(|(number, port)| {
                let port = port.as_mut()?;
                let (id, peer) = port.accept(address)?;
                if keep_alive.is_some() {
                    // A connection that has ended needs no keep-alive.
                    let _ = port.stack.set_keep_alive(id, keep_alive);
                }
                let socket = Socket::Carried { port: number, id };
                Some((socket, SocketAddr::V4(peer)))
            })
    }

    /// Completes accepts in flight with waiting connections. Returns whether connections remain.
    fn hand_out(&mut self, completions: &mut Vec<Completion>) -> bool {
        if !std::mem::take(&mut self.has_acceptable) {
            return false;
        }
        for place in 0..self.listening.len() {
            let Some(listening) = self.listening.get(place) else {
                continue;
            };
            let (address, Some(key)) = (listening.address, listening.accepting) else {
                continue;
            };
            let mut count = 0;
            while let Some((socket, peer)) = self.accept_carried(address) {
                count += 1;
                completions.push(Completion {
                    token: Token {
                        key,
                        kind: OpKind::Accept,
                    },
                    outcome: OperationOutcome::Accepted(Ok((socket, Some(peer)))),
                    // The accept of the kernel's engine continues.
                    more: true,
                });
                if count == ACCEPTED_MAX {
                    self.has_acceptable = true;
                    break;
                }
            }
        }
        self.has_acceptable
    }

    /// Runs `work` on every port and completes the resulting operations. Returns whether more work
    /// is to be done at once.
    fn turn(
        &mut self,
        completions: &mut Vec<Completion>,
        work: impl Fn(&mut Port, Duration) -> bool,
    ) -> bool {
        let now = Instant::now();
        let mut has_more = false;
        for place in 0..self.ports.len() {
            let Some(Some(port)) = self.ports.get_mut(place) else {
                continue;
            };
            let time = port.time(now);
            has_more |= work(port, time);
            while let Some(told) = self
                .ports
                .get_mut(place)
                .and_then(|port| port.as_mut()?.poll_event())
            {
                self.tell(told, completions);
            }
        }
        has_more | self.hand_out(completions)
    }

    /// Completes the operations that an event of a port concerns.
    fn tell(&mut self, told: Told, completions: &mut Vec<Completion>) {
        match told {
            Told::Acceptable => self.has_acceptable = true,
            Told::Connected(key) => self.tell_connected(key, completions),
            Told::Readable(key) => self.tell_readable(key, completions),
            Told::Writable(key) => self.tell_writable(key, completions),
            Told::Closed(key) => {
                self.tell_connected(key, completions);
                self.tell_readable(key, completions);
                self.tell_writable(key, completions);
            }
        }
    }

    /// Completes a connect: the connection is established, or has failed.
    fn tell_connected(&mut self, key: Key, completions: &mut Vec<Completion>) {
        if let Some((stream, port)) = self.carried(key)
            && std::mem::take(&mut stream.connecting)
        {
            let ended = port.stack.receive(stream.id, &mut []).map(drop);
            let outcome = OperationOutcome::Connected(ended.map_err(error_of));
            completions.push(completion(key, OpKind::Connect, outcome));
        }
    }

    /// Wakes the receiving task. The task receives in its own turn, so that one buffer serves all.
    fn tell_readable(&mut self, key: Key, completions: &mut Vec<Completion>) {
        if let Some((stream, _)) = self.carried(key)
            && std::mem::take(&mut stream.receiving)
        {
            completions.push(completion(key, OpKind::Recv, OperationOutcome::Ready));
        }
    }

    /// Continues the waiting send of a stream.
    fn tell_writable(&mut self, key: Key, completions: &mut Vec<Completion>) {
        let sending = self
            .carried(key)
            .and_then(|(stream, _)| stream.sending.take());
        if let Some(sending) = sending
            && let Some(outcome) = self.send(key, *sending)
        {
            completions.push(completion(key, OpKind::Send, outcome));
        }
    }

    /// Passes the kernel's changes of interfaces, neighbours and routes to the stacks.
    fn follow_ways(&mut self, completions: &mut Vec<Completion>) {
        for place in 0..self.ports.len() {
            if let Some(Some(port)) = self.ports.get_mut(place) {
                port.follow_ways();
                if port.is_gone {
                    self.give_up(place, completions);
                }
            }
        }
    }

    /// Gives up a port whose interface no longer exists, and its connections.
    fn give_up(&mut self, place: usize, completions: &mut Vec<Completion>) {
        if let Some(port) = self.ports.get_mut(place) {
            *port = None;
        }
        for stream in self.streams.iter_mut().flatten() {
            if stream.port != place {
                continue;
            }
            let gone = || io::Error::from_raw_os_error(libc::ENETDOWN);
            if std::mem::take(&mut stream.connecting) {
                let outcome = OperationOutcome::Connected(Err(gone()));
                completions.push(completion(stream.key, OpKind::Connect, outcome));
            }
            if std::mem::take(&mut stream.receiving) {
                let outcome = OperationOutcome::Received(Err(gone()));
                completions.push(completion(stream.key, OpKind::Recv, outcome));
            }
            if let Some(sending) = stream.sending.take() {
                let outcome = OperationOutcome::Sent {
                    outgoing: sending.outgoing,
                    taken: 0,
                    stop: SendStop::Failed(gone()),
                };
                completions.push(completion(stream.key, OpKind::Send, outcome));
            }
        }
    }

    /// Tracks which accepts of the kernel's engine have ended.
    fn note_accepts(&mut self, completions: &[Completion]) {
        for completion in completions {
            if completion.token.kind == OpKind::Accept && !completion.more {
                let key = Some(completion.token.key);
                for listening in &mut self.listening {
                    listening.accepting.take_if(|known| Some(*known) == key);
                }
            }
        }
    }
}

fn completion(key: Key, kind: OpKind, outcome: OperationOutcome) -> Completion {
    Completion {
        token: Token { key, kind },
        outcome,
        more: false,
    }
}

fn cancelled() -> io::Error {
    io::Error::from_raw_os_error(libc::ECANCELED)
}

impl Engine for Xdp {
    fn submit(&mut self, op: Op<'_>, token: Token) -> Option<OperationOutcome> {
        if let Op::Accept { socket, many } = op {
            return self.accept(socket, many, token);
        }
        if !is_of_stream(token.kind) {
            return self.kernel.submit(op, token);
        }
        match self.submit_carried(op, token.key) {
            Ok(outcome) => outcome,
            Err(op) => self.kernel.submit(op, token),
        }
    }

    fn sends_at_once(&self) -> bool {
        self.kernel.sends_at_once()
    }

    fn cancel(&mut self, token: Token) -> Option<OperationOutcome> {
        if token.kind == OpKind::Accept {
            for listening in &mut self.listening {
                listening.accepting.take_if(|key| *key == token.key);
            }
        }
        if !is_of_stream(token.kind) || !self.is_carried(token.key) {
            return self.kernel.cancel(token);
        }
        let stream = self.streams.get_mut(token.key.index as usize)?.as_mut()?;
        match token.kind {
            OpKind::Connect => std::mem::take(&mut stream.connecting)
                .then(|| OperationOutcome::Connected(Err(cancelled()))),
            OpKind::Recv => std::mem::take(&mut stream.receiving)
                .then(|| OperationOutcome::Received(Err(cancelled()))),
            OpKind::Send => stream.sending.take().map(|sending| OperationOutcome::Sent {
                outgoing: sending.outgoing,
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
        if self.ports.is_empty() {
            return self.kernel.wait(timeout, completions);
        }
        completions.append(&mut self.completed);
        let has_more = self.turn(completions, Port::send);
        let timeout = if has_more || !completions.is_empty() {
            Some(Duration::ZERO)
        } else {
            let now = Instant::now();
            let ports = self.ports.iter().flatten();
            let rests = ports.filter_map(|port| port.rest(port.time(now)));
            rests.chain(timeout).min()
        };
        let before = completions.len();
        self.kernel.wait(timeout, completions)?;
        if let Some(of_kernel) = completions.get(before..) {
            self.note_accepts(of_kernel);
        }
        if self.kernel.take_seldom() {
            self.follow_ways(completions);
        }
        self.turn(completions, |port, now| {
            port.take_in(now);
            false
        });
        for port in self.ports.iter().flatten() {
            port.show_counts();
        }
        Ok(())
    }

    fn notifier(&self) -> Notifier {
        self.kernel.notifier()
    }

    fn adopt(&mut self, key: Key, socket: Socket) {
        let Socket::Carried { port: number, id } = socket else {
            return self.kernel.adopt(key, socket);
        };
        let index = key.index as usize;
        if index >= self.streams.len() {
            self.streams.resize_with(index + 1, || None);
        }
        if let Some(place) = self.streams.get_mut(index) {
            *place = Some(Carried::new(key, number, id));
        }
        if let Some(Some(port)) = self.ports.get_mut(number) {
            port.name_connection(id, key);
        }
    }

    fn socket(&mut self, to: &Address, options: &SocketOptions) -> Result<Socket, ConnectError> {
        let now = Instant::now();
        let mut ports = self.ports.iter_mut().enumerate();
        let port = ports.find_map(|(number, port)| {
            let port = port.as_mut().filter(|port| port.role == Role::Client)?;
            Some((number, port))
        });
        let (Some((number, port)), Address::Inet(SocketAddr::V4(to))) = (port, to) else {
            return self.kernel.socket(to, options);
        };
        let from = match options.from {
            Some(SocketAddr::V4(from)) => Some(from),
            _ => None,
        };
        let id = port.connect(port.time(now), from, *to);
        let id = id.map_err(ConnectError::at(ConnectStep::Connect))?;
        Ok(Socket::Carried { port: number, id })
    }

    fn descriptor(&self, key: Key) -> Option<BorrowedFd<'_>> {
        if self.is_carried(key) {
            None
        } else {
            self.kernel.descriptor(key)
        }
    }

    fn close_datagrams(&mut self, key: Key, socket: Socket, is_own: bool) {
        self.kernel.close_datagrams(key, socket, is_own);
    }

    fn await_bytes(&mut self, key: Key) -> bool {
        !self.is_carried(key) && self.kernel.await_bytes(key)
    }

    fn control(&mut self, key: Key, control: Control) -> io::Result<()> {
        if !self.is_carried(key) {
            return self.kernel.control(key, control);
        }
        let (stream, port) = self.carried(key).ok_or(io::ErrorKind::NotConnected)?;
        if let Some(outcome) = stream.control(&mut port.stack, control)? {
            let done = completion(key, OpKind::Recv, outcome);
            self.completed.push(done);
        }
        Ok(())
    }

    fn discard(&mut self, socket: Socket) {
        if let Socket::Carried { port, id } = socket {
            if let Some(Some(port)) = self.ports.get_mut(port) {
                port.stack.abort(id);
            }
        } else {
            self.kernel.discard(socket);
        }
    }

    fn listen(&mut self, socket: &Socket) -> io::Result<bool> {
        let nodelay = self.kernel.listen(socket)?;
        if let Some(descriptor) = socket.descriptor()
            && let Ok(Address::Inet(SocketAddr::V4(address))) = sys::local(descriptor)
        {
            for port in self.ports.iter_mut().flatten() {
                port.listen(address);
            }
            self.listening.push(Listening {
                descriptor: descriptor.as_raw_fd(),
                address,
                keep_alive: sys::keep_alive(descriptor),
                accepting: None,
            });
        }
        Ok(nodelay)
    }

    fn accept_now(&mut self, listener: &Socket) -> io::Result<(Socket, Option<SocketAddr>)> {
        let address = self
            .listening_at(listener)
            .map(|listening| listening.address);
        match address.and_then(|address| self.accept_carried(address)) {
            Some((socket, peer)) => Ok((socket, Some(peer))),
            None => self.kernel.accept_now(listener),
        }
    }

    fn has_handshakes(&mut self, listener: &Socket) -> bool {
        let address = self
            .listening_at(listener)
            .map(|listening| listening.address);
        let mut ports = self.ports.iter().flatten();
        address.is_some_and(|address| ports.any(|port| port.has_handshakes(address)))
    }

    fn shed_connection(&mut self, listener: &Socket, answer: &[u8]) -> bool {
        let address = self
            .listening_at(listener)
            .map(|listening| listening.address);
        let waiting = address.and_then(|address| self.accept_carried(address));
        let Some((Socket::Carried { port, id }, _)) = waiting else {
            return self.kernel.shed_connection(listener, answer);
        };
        if let Some(Some(port)) = self.ports.get_mut(port) {
            let now = port.time(Instant::now());
            let stack = &mut port.stack;
            // As with a socket, the request is read and discarded without waiting. A client that
            // has gone gets no response.
            let _ = stack.receive(id, &mut [0; READ_AWAY_MAX]);
            let _ = stack.send(id, bytes::Bytes::copy_from_slice(answer));
            stack.release(now, id);
        }
        true
    }

    fn forget_listener(&mut self, socket: &Socket) {
        let Some(address) = self.listening_at(socket).map(|listening| listening.address) else {
            return self.kernel.forget_listener(socket);
        };
        let descriptor = socket.descriptor().map(|descriptor| descriptor.as_raw_fd());
        self.listening
            .retain(|listening| Some(listening.descriptor) != descriptor);
        let mut others = self.listening.iter();
        if !others.any(|listening| listening.address == address) {
            for port in self.ports.iter_mut().flatten() {
                port.unlisten(address);
            }
        }
        self.kernel.forget_listener(socket);
    }

    fn peer(&self, key: Key) -> io::Result<Address> {
        if self.is_carried(key) {
            self.ends(key).map(|ends| Address::Inet(ends.remote.into()))
        } else {
            self.kernel.peer(key)
        }
    }

    fn local(&self, key: Key) -> io::Result<Address> {
        if self.is_carried(key) {
            self.ends(key).map(|ends| Address::Inet(ends.local.into()))
        } else {
            self.kernel.local(key)
        }
    }

    fn info(&self, key: Key) -> Option<TcpInfo> {
        if self.is_carried(key) {
            None
        } else {
            self.kernel.info(key)
        }
    }

    fn receives_ahead(&self, key: Key) -> bool {
        self.is_carried(key)
    }

    fn is_settled(&self) -> bool {
        let mut ports = self.ports.iter().flatten();
        self.kernel.is_settled() && ports.all(|port| !port.stack.is_busy())
    }

    fn attach(&mut self, parts: QueueParts) -> io::Result<()> {
        let mut port = Port::open(parts, Instant::now())?;
        for listening in &self.listening {
            port.listen(listening.address);
        }
        self.kernel.watch(port.frames(), PollPolicy::Often)?;
        if let Some(ways) = port.ways() {
            self.kernel.watch(ways, PollPolicy::OnReadable)?;
        }
        self.ports.push(Some(port));
        Ok(())
    }
}

impl Xdp {
    /// The local and the remote address of the stream `key`, which is on a port.
    fn ends(&self, key: Key) -> io::Result<netstack::tcp::Tuple> {
        let stream = self.streams.get(key.index as usize);
        let stream = stream.and_then(Option::as_ref);
        let stream = stream.filter(|stream| stream.key == key);
        let ends = stream.and_then(|stream| {
            let port = self.ports.get(stream.port)?.as_ref()?;
            port.stack.tuple(stream.id)
        });
        ends.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// Whether the key of such an operation belongs to a stream.
fn is_of_stream(kind: OpKind) -> bool {
    match kind {
        OpKind::Connect | OpKind::Recv | OpKind::Send | OpKind::Close => true,
        OpKind::Accept | OpKind::Readable | OpKind::RecvMsg | OpKind::SendMsg => false,
    }
}
