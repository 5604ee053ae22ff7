//! Accepting connections from a listening socket.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use base::slab::Key;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::Stream;
use super::table::StreamState;
use crate::engine::{Op, OpKind, Outcome, Token};
use crate::sys;
use crate::worker::{Worker, enter, try_enter};

/// A listening socket as one thread sees it. Several threads may each have one over the same socket: then each
/// connection wakes one of them. Dropping it stops accepting on this thread and closes its descriptor.
#[derive(Debug)]
pub struct Listener {
    key: Key,
    _local: PhantomData<*const ()>,
}

pub(crate) struct ListenerState {
    socket: RawFd,
    /// Connections inherit `TCP_NODELAY`; known once here, it need not be set on each.
    nodelay: bool,
    accepting: bool,
    /// The accept operation was told to end, and its completion is still to come.
    pausing: bool,
    stopped: bool,
    waiting: Option<Waker>,
    accepted: VecDeque<(RawFd, Option<SocketAddr>)>,
    error: Option<io::Error>,
}

impl Listener {
    /// Accepts from the listening socket `socket`, which need not be non-blocking.
    ///
    /// # Errors
    /// When the descriptor cannot be made non-blocking.
    ///
    /// # Panics
    /// When the thread has no runtime.
    pub fn new(socket: OwnedFd) -> io::Result<Listener> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let nodelay = rustix::net::sockopt::tcp_nodelay(&socket).unwrap_or(false);
        let state = ListenerState {
            socket: socket.into_raw_fd(),
            nodelay,
            accepting: false,
            pausing: false,
            stopped: false,
            waiting: None,
            accepted: VecDeque::new(),
            error: None,
        };
        let key = enter(|worker| worker.listeners.insert(state));
        Ok(Listener {
            key,
            _local: PhantomData,
        })
    }

    /// Waits for the next connection. Cancel-safe: what was accepted meanwhile is there for the next call.
    ///
    /// While nobody waits, nothing is accepted: connections stay in the kernel's queue, for other threads too.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: the caller pauses and tries again. `NotConnected` after
    /// [`stop`](Self::stop), when nothing accepted is left.
    pub fn accept(&self) -> Accept<'_> {
        Accept {
            listener: self,
            waiting: false,
        }
    }

    /// Looks at the socket; `None` where the runtime has ended.
    pub(crate) fn with_socket<R>(&self, look: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
        let socket = enter(|worker| worker.listeners.get(self.key).map(|state| state.socket))?;
        // The descriptor is closed when the listener is dropped, which cannot happen while `self` is borrowed.
        Some(look(sys::borrow(socket)))
    }

    /// Stops waiting for connections; those that were accepted already and those in the kernel's queue are still handed
    /// out, then comes `NotConnected`.
    pub fn stop(&self) {
        enter(|worker| worker.stop_accepting(self.key));
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        try_enter(|worker| worker.remove_listener(self.key));
    }
}

/// The future of [`Listener::accept`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Accept<'a> {
    listener: &'a Listener,
    waiting: bool,
}

impl Future for Accept<'_> {
    type Output = io::Result<Stream>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let key = self.listener.key;
        let result = enter(|worker| worker.poll_accept(key, context.waker()));
        self.waiting = result.is_pending();
        result.map_ok(Stream::new)
    }
}

impl Drop for Accept<'_> {
    fn drop(&mut self) {
        if self.waiting {
            try_enter(|worker| {
                if let Some(state) = worker.listeners.get_mut(self.listener.key) {
                    state.waiting = None;
                }
            });
        }
    }
}

impl Worker {
    fn poll_accept(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<Key>> {
        loop {
            let Some(state) = self.listeners.get_mut(key) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            if let Some((socket, peer)) = state.accepted.pop_front() {
                let stream = StreamState::new(socket, peer, state.nodelay);
                return Poll::Ready(Ok(self.streams.insert(stream)));
            }
            if let Some(error) = state.error.take() {
                return Poll::Ready(Err(error));
            }
            if state.accepting {
                state.waiting = Some(waker.clone());
                return Poll::Pending;
            }
            if state.stopped {
                // The kernel wakes one of all that wait for a connection. If that was us, nobody else knows of it.
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                match rustix::net::accept_with(sys::borrow(state.socket), flags) {
                    Ok(socket) => state.accepted.push_back((socket.into_raw_fd(), None)),
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(_) => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
                }
                continue;
            }
            state.accepting = true;
            let socket = state.socket;
            let op = Op::Accept {
                socket,
                many: self.settings.multi_accept,
            };
            let token = Token {
                key,
                kind: OpKind::Accept,
            };
            if let Some(Outcome::Accepted(result)) = self.engine.submit(op, token) {
                self.accepted(key, result, false);
            }
        }
    }

    /// Takes in what an accept operation has brought.
    pub(crate) fn accepted(
        &mut self,
        key: Key,
        result: io::Result<(RawFd, Option<SocketAddr>)>,
        more: bool,
    ) {
        let Some(state) = self.listeners.get_mut(key) else {
            // The listener is gone: nobody is there to serve this connection.
            if let Ok((socket, _)) = result {
                self.engine.discard(socket);
            }
            return;
        };
        state.accepting = more;
        state.pausing &= more;
        match result {
            Ok(connection) => state.accepted.push_back(connection),
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {}
            Err(error) => state.error = Some(error),
        }
        self.after.wakes.extend(state.waiting.take());
    }

    fn stop_accepting(&mut self, key: Key) {
        let Some(state) = self.listeners.get_mut(key) else {
            return;
        };
        state.stopped = true;
        if state.accepting {
            let token = Token {
                key,
                kind: OpKind::Accept,
            };
            if let Some(Outcome::Accepted(result)) = self.engine.cancel(token) {
                self.accepted(key, result, false);
            }
        }
    }

    /// Before each wait: a listener on which no task waits accepts nothing, or it would take connections from others.
    pub(crate) fn pause_listeners(&mut self) {
        let idle =
            |state: &ListenerState| state.accepting && state.waiting.is_none() && !state.pausing;
        loop {
            let found = self.listeners.iter().find(|(_, state)| idle(state));
            let Some(key) = found.map(|(key, _)| key) else {
                return;
            };
            if let Some(state) = self.listeners.get_mut(key) {
                state.pausing = true;
            }
            let token = Token {
                key,
                kind: OpKind::Accept,
            };
            if let Some(Outcome::Accepted(result)) = self.engine.cancel(token) {
                self.accepted(key, result, false);
            }
        }
    }

    fn remove_listener(&mut self, key: Key) {
        let token = Token {
            key,
            kind: OpKind::Accept,
        };
        let cancelled = self.engine.cancel(token);
        let Some(state) = self.listeners.remove(key) else {
            return;
        };
        let rest = match cancelled {
            Some(Outcome::Accepted(Ok(connection))) => Some(connection),
            _ => None,
        };
        self.engine.discard(state.socket);
        for (socket, _) in state.accepted.into_iter().chain(rest) {
            self.engine.discard(socket);
        }
    }
}
