//! Sockets of datagrams that are connected to one address: UDP, and Unix sockets of type `SOCK_DGRAM`.
//!
//! Meant for questions and answers of a few packets, such as DNS: each receive is a system call of its own, and the
//! engine only tells when there is something to receive. Sending never waits: a datagram is taken whole or not at all.
//!
//! The simulation has none.

use std::future::poll_fn;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Poll, Waker};

use base::slab::Key;

use super::Address;
use crate::engine::{Op, OpKind, Token};
use crate::sys;
use crate::worker::{Worker, enter, try_enter};

/// A socket that exchanges datagrams with one address. The kernel drops what others send to it. Dropping it closes it.
#[derive(Debug)]
pub struct Datagram {
    key: Key,
    /// Not `Send`: the key is of this thread's table.
    _local: PhantomData<*const ()>,
}

impl Datagram {
    /// A socket connected to `address`, its own address and port chosen by the kernel. No packet is sent.
    ///
    /// # Errors
    /// Those of `socket()` and `connect()`; `Unsupported` in a simulation.
    ///
    /// # Panics
    /// When the thread has no runtime.
    pub fn connect(address: &Address) -> io::Result<Datagram> {
        enter(|worker| {
            let socket = worker.engine.datagram(address)?;
            Ok(Datagram::over(worker, socket))
        })
    }

    /// Watches another descriptor that is read whole or not at all, and owns it from now on.
    pub(crate) fn watch(descriptor: OwnedFd) -> Datagram {
        enter(|worker| Datagram::over(worker, descriptor))
    }

    fn over(worker: &mut Worker, socket: OwnedFd) -> Datagram {
        let state = DatagramState {
            socket,
            waiting: false,
            dropped: false,
            reader: None,
        };
        Datagram {
            key: worker.datagrams.insert(state),
            _local: PhantomData,
        }
    }

    /// Sends one datagram.
    ///
    /// # Errors
    /// Those of `send()`: `WouldBlock` when the kernel has no room, and what the network said of earlier datagrams
    /// (`ECONNREFUSED`).
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        enter(|worker| match worker.datagrams.get(self.key) {
            Some(state) => sys::send_datagram(state.socket.as_fd(), bytes),
            None => Err(io::ErrorKind::NotConnected.into()),
        })
    }

    /// Receives one datagram into `buffer` and returns its length; what does not fit is lost. Cancel-safe.
    ///
    /// # Errors
    /// Those of `recv()`, among them what the network said of datagrams that were sent (`ECONNREFUSED`).
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|context| {
            let mut receive = |socket: BorrowedFd<'_>| sys::receive_datagram(socket, buffer);
            enter(|worker| worker.poll_datagram(self.key, &mut receive, context.waker()))
        })
        .await
    }

    /// Reads the eight bytes of a descriptor that [`watch`](Self::watch) was given. Cancel-safe.
    pub(crate) async fn read(&self) -> io::Result<usize> {
        let mut read = |descriptor: BorrowedFd<'_>| Ok(rustix::io::read(descriptor, &mut [0; 8])?);
        poll_fn(|context| {
            enter(|worker| worker.poll_datagram(self.key, &mut read, context.waker()))
        })
        .await
    }

    /// Makes a call on the descriptor.
    pub(crate) fn with_descriptor<R>(
        &self,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<R>,
    ) -> io::Result<R> {
        enter(|worker| match worker.datagrams.get(self.key) {
            Some(state) => call(state.socket.as_fd()),
            None => Err(io::ErrorKind::NotConnected.into()),
        })
    }
}

impl Drop for Datagram {
    fn drop(&mut self) {
        try_enter(|worker| worker.drop_datagram(self.key));
    }
}

/// What is known of one such socket. The entry stays until no operation is in flight.
pub(crate) struct DatagramState {
    socket: OwnedFd,
    /// The engine watches it.
    waiting: bool,
    /// The handle is gone.
    dropped: bool,
    reader: Option<Waker>,
}

impl Worker {
    fn poll_datagram(
        &mut self,
        key: Key,
        receive: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<usize>,
        waker: &Waker,
    ) -> Poll<io::Result<usize>> {
        loop {
            let Some(state) = self.datagrams.get_mut(key) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            match receive(state.socket.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
            state.reader = Some(waker.clone());
            if state.waiting {
                return Poll::Pending;
            }
            state.waiting = true;
            let op = Op::Readable {
                socket: state.socket.as_fd(),
            };
            if self.engine.submit(op, token(key)).is_none() {
                return Poll::Pending;
            }
            // There is something by now.
            if let Some(state) = self.datagrams.get_mut(key) {
                state.waiting = false;
            }
        }
    }

    /// The engine says that there is something to receive.
    pub(crate) fn datagram_readable(&mut self, key: Key) {
        let Some(state) = self.datagrams.get_mut(key) else {
            return;
        };
        state.waiting = false;
        self.after.wakes.extend(state.reader.take());
        if state.dropped {
            self.close_datagram(key);
        }
    }

    pub(crate) fn drop_datagram(&mut self, key: Key) {
        let Some(state) = self.datagrams.get_mut(key) else {
            return;
        };
        state.dropped = true;
        self.after.wakes.extend(state.reader.take());
        // A completion is still to come where the engine cannot take the operation back at once.
        if !state.waiting || self.engine.cancel(token(key)).is_some() {
            self.close_datagram(key);
        }
    }

    pub(crate) fn drop_datagrams(&mut self) {
        let keys: Vec<Key> = self.datagrams.iter().map(|(key, _)| key).collect();
        keys.into_iter().for_each(|key| self.drop_datagram(key));
    }

    fn close_datagram(&mut self, key: Key) {
        self.datagrams.remove(key);
    }
}

fn token(key: Key) -> Token {
    Token {
        key,
        kind: OpKind::Readable,
    }
}
