//! Accepting connections from a listening socket.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use base::slab::Key;

use super::{BoundSocket, Stream};
use crate::engine::{Op, OpKind, OperationOutcome, Socket, Token};
use crate::worker::{Reactor, enter, try_enter};

/// One thread's handle of a listening socket. Several threads may share a socket: then each
/// connection wakes one of them. Dropping the handle stops accepting on this thread and closes its
/// descriptor.
#[derive(Debug)]
pub struct Listener {
    key: Key,
    _local: PhantomData<*const ()>,
}

pub(crate) struct ListenerState {
    /// Shared with the engine while it accepts.
    socket: Rc<Socket>,
    /// Whether accepted connections inherit `TCP_NODELAY`, so that it need not be set on each.
    nodelay: bool,
    /// An accept operation is in flight.
    accepting: bool,
    /// The accept operation has been cancelled, and its completion is still to come.
    pausing: bool,
    /// [`Listener::stop`] was called.
    stopped: bool,
    /// The handle is dropped: the entry remains until the accept operation has completed.
    dropped: bool,
    /// Listed in `unwatched_listeners`, which [`Reactor::pause_listeners`] checks.
    unwatched: bool,
    /// The task that waits for a connection.
    waiting: Option<Waker>,
    /// Accepted connections that no task has taken yet, with the peer's address if known.
    accepted: VecDeque<(Socket, Option<SocketAddr>)>,
    /// The error of an accept that no task has taken yet.
    error: Option<io::Error>,
}

impl Listener {
    /// Creates a listener from the listening socket `socket`, which need not be non-blocking.
    ///
    /// # Errors
    /// If `socket` cannot be made non-blocking, or this thread's engine cannot accept from it.
    ///
    /// # Panics
    /// If the thread has no runtime.
    pub fn new(socket: impl Into<BoundSocket>) -> io::Result<Listener> {
        let socket = socket.into().into_socket();
        let key = enter(|worker| {
            let nodelay = worker.engine.listen(&socket)?;
            let state = ListenerState {
                socket: Rc::new(socket),
                nodelay,
                accepting: false,
                pausing: false,
                stopped: false,
                dropped: false,
                unwatched: false,
                waiting: None,
                accepted: VecDeque::new(),
                error: None,
            };
            io::Result::Ok(worker.listeners.insert(state))
        })?;
        Ok(Listener {
            key,
            _local: PhantomData,
        })
    }

    /// Waits for the next connection. Cancel-safe: a connection accepted meanwhile is returned by
    /// the next call.
    ///
    /// While no task waits, the engine accepts nothing: connections stay in the kernel's queue,
    /// where other threads can accept them.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: the caller pauses and tries again. `NotConnected`
    /// after [`stop`](Self::stop), once all accepted connections have been returned.
    pub fn accept(&self) -> Accept<'_> {
        Accept {
            listener: self,
            waiting: false,
        }
    }

    /// Accepts the oldest waiting connection although the process is out of descriptors (`EMFILE`),
    /// sends `answer` and closes it. The engine keeps a reserve descriptor for this. False if no
    /// connection waits, or another thread took it.
    pub fn shed_connection(&self, answer: &[u8]) -> bool {
        enter(|worker| match worker.listeners.get(self.key) {
            Some(state) => worker.engine.shed_connection(&state.socket, answer),
            None => false,
        })
    }

    /// Stops waiting for connections. Accepted connections and those in the kernel's queue are
    /// still returned, then `NotConnected`.
    pub fn stop(&self) {
        enter(|worker| worker.stop_accepting(self.key));
    }

    /// Whether clients have begun connections that only this thread can accept, once their
    /// handshakes are complete. If the handle is dropped before, they are lost.
    #[must_use]
    pub fn has_handshakes(&self) -> bool {
        enter(|worker| match worker.listeners.get(self.key) {
            Some(state) => worker.engine.has_handshakes(&state.socket),
            None => false,
        })
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
                    worker.unwatched(self.listener.key);
                }
            });
        }
    }
}

impl Reactor {
    /// Adds the next accepted connection to the table of streams, or starts an accept and registers
    /// the task.
    fn poll_accept(&mut self, key: Key, waker: &Waker) -> Poll<io::Result<Key>> {
        loop {
            let Some(state) = self.listeners.get_mut(key) else {
                return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
            };
            if let Some((socket, peer)) = state.accepted.pop_front() {
                let nodelay = state.nodelay;
                return Poll::Ready(Ok(self.insert_stream(socket, peer, nodelay)));
            }
            if let Some(error) = state.error.take() {
                return Poll::Ready(Err(error));
            }
            if state.accepting {
                state.waiting = Some(waker.clone());
                return Poll::Pending;
            }
            if state.stopped {
                // The kernel wakes one of the threads that wait for a connection. If it woke this
                // one, no other thread knows of the connection.
                match self.engine.accept_now(&state.socket) {
                    Ok(connection) => state.accepted.push_back(connection),
                    Err(error) if is_passing(&error) => {}
                    Err(_) => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
                }
                continue;
            }
            state.accepting = true;
            let op = Op::Accept {
                socket: &state.socket,
                many: self.settings.multi_accept,
            };
            let token = Token {
                key,
                kind: OpKind::Accept,
            };
            if let Some(OperationOutcome::Accepted(result)) = self.engine.submit(op, token) {
                self.accepted(key, result, false);
            }
        }
    }

    /// Handles a completion of an accept operation.
    pub(crate) fn accepted(
        &mut self,
        key: Key,
        result: io::Result<(Socket, Option<SocketAddr>)>,
        more: bool,
    ) {
        let Some(state) = self.listeners.get_mut(key).filter(|state| !state.dropped) else {
            // The listener is dropped, and so is the task that would have served this connection.
            if let Ok((socket, _)) = result {
                self.engine.discard(socket);
            }
            if !more {
                self.release_listener(key);
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
        if more {
            self.unwatched(key);
        }
    }

    /// See [`Listener::stop`].
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
            if let Some(OperationOutcome::Accepted(result)) = self.engine.cancel(token) {
                self.accepted(key, result, false);
            }
        }
    }

    /// Notes that no task waits on a listener any more, so that accepting pauses unless a task
    /// waits again before the engine's next wait.
    fn unwatched(&mut self, key: Key) {
        if let Some(state) = self.listeners.get_mut(key)
            && state.accepting
            && !std::mem::replace(&mut state.unwatched, true)
        {
            self.unwatched_listeners.push(key);
        }
    }

    /// Pauses accepting on listeners without a waiting task, before each wait: they would take
    /// connections from other threads. Only listeners whose task was woken or dropped since the
    /// last wait are checked.
    pub(crate) fn pause_listeners(&mut self) {
        while let Some(key) = self.unwatched_listeners.pop() {
            let Some(state) = self.listeners.get_mut(key) else {
                continue;
            };
            state.unwatched = false;
            if !state.accepting || state.waiting.is_some() || state.pausing {
                continue;
            }
            state.pausing = true;
            let token = Token {
                key,
                kind: OpKind::Accept,
            };
            if let Some(OperationOutcome::Accepted(result)) = self.engine.cancel(token) {
                self.accepted(key, result, false);
            }
        }
    }

    /// The handle is dropped: closes accepted connections and cancels the accept.
    fn remove_listener(&mut self, key: Key) {
        let Some(state) = self.listeners.get_mut(key) else {
            return;
        };
        state.dropped = true;
        let token = Token {
            key,
            kind: OpKind::Accept,
        };
        for (socket, _) in std::mem::take(&mut state.accepted) {
            self.engine.discard(socket);
        }
        // The engine may still have to pass the descriptor to the kernel, by its number.
        if !state.accepting {
            self.release_listener(key);
        } else if let Some(OperationOutcome::Accepted(result)) = self.engine.cancel(token) {
            self.accepted(key, result, false);
        }
    }

    /// Removes the entry. No accept operation is in flight, and the handle is dropped.
    fn release_listener(&mut self, key: Key) {
        if let Some(state) = self.listeners.remove(key) {
            self.engine.forget_listener(&state.socket);
        }
    }
}

/// Whether a failed accept is to be repeated at once.
fn is_passing(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::Interrupted, io::ErrorKind::ConnectionAborted];
    kinds.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Address, ListenOptions, connect, listen};
    use crate::{EngineKind, Runtime, Settings, on_turn_end, sleep, spawn};
    use std::cell::Cell;
    use std::time::Duration;

    /// The number of listeners checked before each wait does not depend on the number of all
    /// listeners.
    #[test]
    fn only_listeners_that_changed_are_looked_at() {
        const LISTENERS: usize = 500;
        const CONNECTIONS: usize = 20;
        let looked_at = Rc::new(Cell::new(0));
        // The engine accepts repeatedly on its own, so that it must be told to pause.
        let settings = Settings {
            multi_accept: true,
            ..Settings::default()
        };
        let mut runtime = Runtime::new(EngineKind::Epoll, settings).unwrap();
        let counted = Rc::clone(&looked_at);
        on_turn_end(move || {
            counted.set(counted.get() + enter(|worker| worker.unwatched_listeners.len()));
        });
        let address = |number| {
            let name = format!("@tidegate-listener-{}-{number}", std::process::id());
            Address::Unix(name.into())
        };
        runtime.block_on(async {
            for number in 0..LISTENERS {
                let socket = listen(&ListenOptions::new(address(number))).unwrap();
                let listener = Listener::new(socket).unwrap();
                spawn(async move { while listener.accept().await.is_ok() {} });
            }
            for number in 0..CONNECTIONS {
                connect(&address(number * 7), None, None).await.unwrap();
                sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(
            (1..=CONNECTIONS).contains(&looked_at.get()),
            "{}",
            looked_at.get()
        );
    }
}
