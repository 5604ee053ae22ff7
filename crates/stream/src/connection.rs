//! A client's connection, as its worker and its session use it: the client's identity and the
//! transport. A client that sends datagrams has a connection for the duration of its session.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use engine::net::Address;
use framework::connection_handler::{Accepted, ServedConnection};
use framework::generation::GenerationView;
use framework::workers::Worker;
use transport::Transport;
use transport::client::Client;

use crate::datagram_end::DatagramEnd;
use crate::plan::StreamLocal;

/// The connection of a client, for its session.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) end: ClientEnd,
    pub(crate) worker: Rc<Worker>,
    /// Number of times that the connection was handed over between connection handlers.
    pub(crate) handed_over: u8,
    /// The text of log lines in place of the client, for a session without a client (a health
    /// check).
    pub(crate) about: Option<Arc<str>>,
    /// The generation that the session keeps once a reload has removed its listener.
    kept: OnceCell<Rc<GenerationView>>,
}

/// The transport to and from a client.
pub(crate) enum ClientEnd {
    /// A connection of the client's own.
    Stream(Transport),
    /// Datagrams, over a socket that clients share.
    Datagrams(DatagramEnd),
}

impl Connection {
    /// A newly accepted connection.
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

    /// The connection of a session without a client, which log lines describe as `about`.
    pub(crate) fn without_client(accepted: Accepted, about: Arc<str>) -> Connection {
        let connection = Connection::new(accepted);
        let nowhere = || Address::Unix(Default::default());
        Connection {
            client: connection.client.with_addresses(nowhere(), nowhere()),
            about: Some(about),
            ..connection
        }
    }

    /// The connection of a client that has sent a datagram, and whose addresses are known.
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

    /// The client's address, without regard to trusted proxies.
    pub(crate) fn peer(&self) -> &Address {
        self.client.peer(|| self.transport_address(Transport::peer))
    }

    /// The local address of the connection.
    pub(crate) fn local(&self) -> &Address {
        self.client
            .local(|| self.transport_address(Transport::local))
    }

    /// An address of the transport; unused for clients that send datagrams, whose addresses are
    /// known.
    fn transport_address(&self, address: impl FnOnce(&Transport) -> Address) -> Address {
        let transport = self.transport();
        transport.map_or_else(|| Address::Unix("".into()), address)
    }

    /// The generation for a session that starts now: the pinned one, or else the current one.
    pub(crate) fn generation(&self) -> Rc<GenerationView> {
        let kept = self.kept.get().map(Rc::clone);
        kept.unwrap_or_else(|| self.worker.current())
    }
}

impl ServedConnection for Connection {
    fn serial(&self) -> u64 {
        self.client.serial
    }

    fn has_listener_in(&self, next: &GenerationView) -> bool {
        StreamLocal::of(next)
            .binding(&self.client.listener)
            .is_some()
    }

    // `None` for a session over TCP: as in nginx, it continues until either end closes, and is
    // never idle. A session over UDP always counts as idle: those that have been silent for longest
    // are closed to make room for others.
    fn place(&self) -> Option<u32> {
        match &self.end {
            ClientEnd::Stream(_) => None,
            ClientEnd::Datagrams(end) => end.place(),
        }
    }

    fn ends_when_idle(&self) -> bool {
        // If another process receives the client's datagrams, or is about to, it relays them to
        // this one, and the session continues.
        self.is_datagrams() && !self.worker.has_successor()
    }

    fn close_reading(&self) {
        match &self.end {
            ClientEnd::Stream(transport) => transport.shutdown_read(),
            ClientEnd::Datagrams(end) if self.worker.is_ending(self.client.serial) => end.finish(),
            // Another session needs the place, so pending answers are not awaited.
            ClientEnd::Datagrams(end) => end.abort(),
        }
    }

    fn abort(&self) {
        match &self.end {
            ClientEnd::Stream(transport) => transport.shutdown(),
            ClientEnd::Datagrams(end) => end.abort(),
        }
    }

    fn pin_generation(&self, local: &Rc<GenerationView>) {
        // Only the first call has an effect: the session keeps that generation over later reloads.
        let _ = self.kept.set(Rc::clone(local));
    }
}
