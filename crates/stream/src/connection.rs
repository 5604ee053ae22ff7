//! A client's connection as its thread and its session see it: who has connected, and the bytes.
//! A client that sends datagrams has one for as long as its session lasts.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use engine::net::Address;
use framework::door::{Accepted, Tenant};
use framework::generation::GenerationView;
use framework::workers::Worker;
use transport::Transport;
use transport::client::Client;

use crate::datagram_end::DatagramEnd;
use crate::plan::StreamLocal;

pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) end: ClientEnd,
    pub(crate) worker: Rc<Worker>,
    /// How often it has been handed from door to door.
    pub(crate) handed_over: u8,
    /// What log lines say in the place of a client, where there is none: a health check.
    pub(crate) about: Option<Arc<str>>,
    /// The generation that the session stays with, once a reload has taken its listener away.
    kept: OnceCell<Rc<GenerationView>>,
}

/// How bytes get to a client and from there.
pub(crate) enum ClientEnd {
    /// By a connection of the client's own.
    Stream(Transport),
    /// By datagrams, through a socket that clients share.
    Datagrams(DatagramEnd),
}

impl Connection {
    /// A connection that has just been accepted.
    pub(crate) fn new(accepted: Accepted) -> Connection {
        let Accepted {
            worker,
            stream,
            listener,
            serial,
            mut handed,
        } = accepted;
        Connection {
            client: Client::arrived(listener, serial, handed.as_deref_mut()),
            end: ClientEnd::Stream(Transport::of(stream, handed.as_deref_mut())),
            handed_over: handed.map_or(0, |handed| handed.times),
            worker,
            about: None,
            kept: OnceCell::new(),
        }
    }

    /// The connection of a session that no client has begun, of which log lines say `about`.
    pub(crate) fn without_client(accepted: Accepted, about: Arc<str>) -> Connection {
        let connection = Connection::new(accepted);
        let nowhere = || Address::Unix(Default::default());
        Connection {
            client: connection.client.between(nowhere(), nowhere()),
            about: Some(about),
            ..connection
        }
    }

    /// A session's way to a client that has sent a datagram, and whose addresses are known.
    pub(crate) fn of_datagrams(client: Client, end: DatagramEnd, worker: Rc<Worker>) -> Connection {
        Connection {
            client,
            end: ClientEnd::Datagrams(end),
            handed_over: 0,
            worker,
            about: None,
            kept: OnceCell::new(),
        }
    }

    /// The connection's own transport, if it has one.
    pub(crate) fn transport(&self) -> Option<&Transport> {
        match &self.end {
            ClientEnd::Stream(transport) => Some(transport),
            ClientEnd::Datagrams(_) => None,
        }
    }

    /// Whether the client sends datagrams.
    pub(crate) fn is_datagrams(&self) -> bool {
        self.transport().is_none()
    }

    pub(crate) fn peer(&self) -> &Address {
        self.client.peer(|| self.ask(Transport::peer))
    }

    pub(crate) fn local(&self) -> &Address {
        self.client.local(|| self.ask(Transport::local))
    }

    /// Asks the transport for an address. Those of a client of datagrams are known already.
    fn ask(&self, address: impl FnOnce(&Transport) -> Address) -> Address {
        let transport = self.transport();
        transport.map_or_else(|| Address::Unix("".into()), address)
    }

    /// The generation by which a session begins now.
    pub(crate) fn generation(&self) -> Rc<GenerationView> {
        let kept = self.kept.get().map(Rc::clone);
        kept.unwrap_or_else(|| self.worker.current())
    }
}

impl Tenant for Connection {
    fn serial(&self) -> u64 {
        self.client.serial
    }

    fn is_known(&self, next: &GenerationView) -> bool {
        StreamLocal::of(next)
            .binding(&self.client.listener)
            .is_some()
    }

    // A session over TCP goes on until one of its ends closes, as in nginx: it is never idle. One
    // of datagrams makes room for others where it has been silent for longest.
    fn place(&self) -> Option<u32> {
        match &self.end {
            ClientEnd::Stream(_) => None,
            ClientEnd::Datagrams(end) => end.place(),
        }
    }

    fn ends_when_idle(&self) -> bool {
        // Another process may receive for it.
        self.is_datagrams() && !self.worker.is_followed()
    }

    fn close_reading(&self) {
        match &self.end {
            ClientEnd::Stream(transport) => transport.shutdown_read(),
            ClientEnd::Datagrams(end) if self.worker.is_ending(self.client.serial) => end.end(),
            // Others need its place: answers that may never come are not waited for.
            ClientEnd::Datagrams(end) => end.abort(),
        }
    }

    fn abort(&self) {
        match &self.end {
            ClientEnd::Stream(transport) => transport.shutdown(),
            ClientEnd::Datagrams(end) => end.abort(),
        }
    }

    fn stay_with(&self, local: &Rc<GenerationView>) {
        // The first generation that a reload leaves it with is the one that it has begun by.
        let _ = self.kept.set(Rc::clone(local));
    }
}
