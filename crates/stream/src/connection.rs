//! A client's connection as its thread and its session see it: who has connected, and the bytes.

use std::cell::OnceCell;
use std::rc::Rc;

use engine::net::Address;
use framework::door::{Accepted, Tenant};
use framework::generation::Local;
use framework::workers::Worker;
use transport::Transport;
use transport::client::Client;

use crate::plan::StreamLocal;

/// A client's connection.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) transport: Transport,
    pub(crate) worker: Rc<Worker>,
    /// The generation that the session stays with, once a reload has taken its listener away.
    kept: OnceCell<Rc<Local>>,
}

impl Connection {
    /// A connection that has just been accepted.
    pub(crate) fn new(accepted: Accepted) -> Connection {
        let Accepted {
            worker,
            stream,
            listener,
            serial,
        } = accepted;
        Connection {
            client: Client::new(listener, serial),
            transport: Transport::from(stream),
            worker,
            kept: OnceCell::new(),
        }
    }

    /// The client's address.
    pub(crate) fn peer(&self) -> &Address {
        self.client.peer(|| self.transport.peer())
    }

    /// Our end's address.
    pub(crate) fn local(&self) -> &Address {
        self.client.local(|| self.transport.local())
    }

    /// The generation by which a session begins now.
    pub(crate) fn generation(&self) -> Rc<Local> {
        let kept = self.kept.get().map(Rc::clone);
        kept.unwrap_or_else(|| self.worker.current())
    }
}

impl Tenant for Connection {
    fn serial(&self) -> u64 {
        self.client.serial
    }

    fn is_known(&self, next: &Local) -> bool {
        StreamLocal::of(next)
            .binding(&self.client.listener)
            .is_some()
    }

    fn place(&self) -> Option<u32> {
        None
    }

    // As in nginx a session goes on until one of its ends closes: it is never idle.
    fn ends_when_idle(&self) -> bool {
        false
    }

    fn close_reading(&self) {
        self.transport.shutdown_read();
    }

    fn abort(&self) {
        self.transport.shutdown();
    }

    fn stay_with(&self, local: &Rc<Local>) {
        // The first generation that a reload leaves it with is the one that it has begun by.
        let _ = self.kept.set(Rc::clone(local));
    }
}
