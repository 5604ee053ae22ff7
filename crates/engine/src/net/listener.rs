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

/// A listening socket as one thread sees it. Several threads may each have one over the same
/// socket: then each connection wakes one of them. Dropping it stops accepting on this thread and
/// closes its descriptor.
#[derive(Debug)]
pub struct Listener {
    key: Key,
    _local: PhantomData<*const ()>,
}

pub(crate) struct ListenerState {
    /// Shared with the engine while it accepts.
    socket: Rc<Socket>,
    /// Connections inherit `TCP_NODELAY`; known once here, it need not be set on each.
    nodelay: bool,
    accepting: bool,
    /// The accept operation was told to end, and its completion is still to come.
    pausing: bool,
    stopped: bool,
    /// The handle is gone: the entry stays until the accept operation has come back.
    dropped: bool,
    /// It stands in the list of those that [`Reactor::pause_listeners`] looks at.
    unwatched: bool,
    waiting: Option<Waker>,
    accepted: VecDeque<(Socket, Option<SocketAddr>)>,
    error: Option<io::Error>,
}

impl Listener {
    /// Accepts from the listening socket `socket`, which need not be non-blocking.
    ///
    /// # Errors
    /// When it cannot be made non-blocking, or is none that this thread's engine can accept from.
    ///
    /// # Panics
    /// When the thread has no runtime.
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

    /// Waits for the next connection. Cancel-safe: what was accepted meanwhile is there for the
    /// next call.
    ///
    /// While nobody waits, nothing is accepted: connections stay in the kernel's queue, for other
    /// threads too.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`: the caller pauses and tries again. `NotConnected`
    /// after [`stop`](Self::stop), when nothing accepted is left.
    pub fn accept(&self) -> Accept<'_> {
        Accept {
            listener: self,
            waiting: false,
        }
    }

    /// Accepts the connection that has waited for longest although there is no descriptor for it
    /// (`EMFILE`), sends it `answer` and closes it. The engine keeps one in reserve for that. False
    /// when none waits, or another was quicker.
    pub fn turn_away(&self, answer: &[u8]) -> bool {
        enter(|worker| match worker.listeners.get(self.key) {
            Some(state) => worker.engine.turn_away(&state.socket, answer),
            None => false,
        })
    }

    /// Stops waiting for connections; those that were accepted already and those in the kernel's
    /// queue are still handed out, then comes `NotConnected`.
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
                    worker.unwatched(self.listener.key);
                }
            });
        }
    }
}

impl Reactor {
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
                // The kernel wakes one of all that wait for a connection. If that was us, nobody
                // else knows of it.
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

    /// Takes in what an accept operation has brought.
    pub(crate) fn accepted(
        &mut self,
        key: Key,
        result: io::Result<(Socket, Option<SocketAddr>)>,
        more: bool,
    ) {
        let Some(state) = self.listeners.get_mut(key).filter(|state| !state.dropped) else {
            // The listener is gone, and so is the task that would have served this connection.
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

    /// No task waits on a listener any more for which the engine accepts: unless one does again
    /// before the next wait, accepting pauses.
    fn unwatched(&mut self, key: Key) {
        if let Some(state) = self.listeners.get_mut(key)
            && state.accepting
            && !std::mem::replace(&mut state.unwatched, true)
        {
            self.unwatched_listeners.push(key);
        }
    }

    /// Before each wait: a listener on which no task waits accepts nothing, or it would take
    /// connections from others. Only those are looked at whose task was woken, or gave up, since
    /// the last wait.
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
        // The engine may still have to hand it to the kernel, by its number.
        if !state.accepting {
            self.release_listener(key);
        } else if let Some(OperationOutcome::Accepted(result)) = self.engine.cancel(token) {
            self.accepted(key, result, false);
        }
    }

    /// No accept operation is in flight, and the handle is gone.
    fn release_listener(&mut self, key: Key) {
        if let Some(state) = self.listeners.remove(key) {
            self.engine.forget_listener(&state.socket);
        }
    }
}

/// Whether an accept that failed so is to be made again at once.
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

    /// Before each wait, how many listeners are looked at does not depend on how many there are.
    #[test]
    fn only_listeners_that_changed_are_looked_at() {
        const LISTENERS: usize = 500;
        const CONNECTIONS: usize = 20;
        let looked_at = Rc::new(Cell::new(0));
        // The engine goes on accepting by itself, so that it has to be told to pause.
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
