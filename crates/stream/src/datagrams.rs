//! Sessions over UDP: the assignment of datagrams to sessions.
//!
//! All clients of an address share its socket, so a thread finds the session of a datagram by the
//! addresses of both ends. A proxy that sends each datagram with a PROXY protocol header may use
//! one address for many clients: their sessions are found by the addresses of the header as well.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use base::hash::Map;
use engine::Buffer;
use engine::net::{Address, Datagram};
use framework::connection_handler::{ListenerId, ReceivedDatagram};
use framework::workers::DatagramSession;
use proto::proxy_protocol::parse_datagram;
use transport::client::Client;
use transport::proxy_protocol::LENGTH_MAX;

use crate::connection::{ClientEnd, Connection};
use crate::datagram_end::{DatagramEnd, SessionStatus};
use crate::plan::StreamLocal;
use crate::session::phases;

/// The key of a session's datagrams.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SessionKey {
    listener: ListenerId,
    client: SocketAddr,
    /// The local address of the datagram, if the socket is bound to several.
    local: Option<IpAddr>,
}

impl SessionKey {
    /// The key of a datagram; `None` if it has no sender that can be answered.
    fn of(listener: &ListenerId, datagram: &Datagram<Buffer>) -> Option<SessionKey> {
        Some(SessionKey {
            listener: listener.clone(),
            client: datagram.peer?,
            local: datagram.local,
        })
    }
}

/// Source and destination in a PROXY protocol header; `None` if the header has no addresses.
type ProxiedEnds = Option<(SocketAddr, SocketAddr)>;

/// Parses a datagram's PROXY protocol header: its length in bytes, and its addresses. `None` if the
/// header is missing or malformed.
fn proxied(datagram: &[u8]) -> Option<(usize, ProxiedEnds)> {
    let header = parse_datagram(datagram, LENGTH_MAX).ok()?;
    let ends = header.told.and_then(|told| told.ends());
    Some((header.length, ends))
}

/// The sessions of datagrams between the same ends.
enum SessionsBetween {
    One(Rc<Connection>),
    /// Sessions by the addresses in the PROXY protocol header that each datagram has.
    ByHeader(Map<ProxiedEnds, Rc<Connection>>),
}

impl SessionsBetween {
    /// The session of a datagram, if there is one, and the length of the datagram's header.
    fn find(&self, datagram: &[u8]) -> Option<(&Rc<Connection>, usize)> {
        match self {
            SessionsBetween::One(connection) => Some((connection, 0)),
            SessionsBetween::ByHeader(sessions) => {
                let (length, told) = proxied(datagram)?;
                Some((sessions.get(&told)?, length))
            }
        }
    }

    /// Removes a session; returns whether no other session is left.
    fn remove(&mut self, connection: &Rc<Connection>) -> bool {
        match self {
            SessionsBetween::One(one) => Rc::ptr_eq(one, connection),
            SessionsBetween::ByHeader(sessions) => {
                sessions.retain(|_, one| !Rc::ptr_eq(one, connection));
                sessions.is_empty()
            }
        }
    }
}

/// The sessions over UDP of a thread.
#[derive(Default)]
pub(crate) struct Sessions(RefCell<Map<SessionKey, SessionsBetween>>);

impl Sessions {
    /// Passes a datagram to its session.
    ///
    /// # Errors
    /// Returns the datagram if it belongs to no session.
    pub(crate) fn give(
        &self,
        listener: &ListenerId,
        mut datagram: Datagram<Buffer>,
    ) -> Result<(), Datagram<Buffer>> {
        let Some(ends) = SessionKey::of(listener, &datagram) else {
            return Err(datagram);
        };
        let known = self.0.borrow();
        let found = known
            .get(&ends)
            .and_then(|sessions| sessions.find(&datagram.bytes));
        match found.map(|(connection, length)| (&connection.end, length)) {
            Some((ClientEnd::Datagrams(end), length)) => {
                datagram.bytes.advance(length);
                end.arrive(datagram.bytes);
                Ok(())
            }
            _ => Err(datagram),
        }
    }

    /// Assigns further datagrams to a session: all between these ends or, with `told`, those whose
    /// PROXY protocol header has these addresses.
    fn insert(&self, ends: &SessionKey, told: Option<ProxiedEnds>, connection: &Rc<Connection>) {
        let mut known = self.0.borrow_mut();
        let connection = Rc::clone(connection);
        let Some(told) = told else {
            known.insert(ends.clone(), SessionsBetween::One(connection));
            return;
        };
        let by_header = || SessionsBetween::ByHeader(Map::default());
        let sessions = known.entry(ends.clone()).or_insert_with(by_header);
        match sessions {
            SessionsBetween::ByHeader(sessions) => drop(sessions.insert(told, connection)),
            // A reload has enabled a header per datagram for the address.
            SessionsBetween::One(_) => {
                *sessions = SessionsBetween::ByHeader([(told, connection)].into_iter().collect());
            }
        }
    }

    fn remove(&self, ends: &SessionKey, connection: &Rc<Connection>) {
        let mut known = self.0.borrow_mut();
        if known
            .get_mut(ends)
            .is_some_and(|sessions| sessions.remove(connection))
        {
            known.remove(ends);
        }
    }

    /// Starts a session for a datagram that does not belong to an existing session.
    pub(crate) fn begin(self: &Rc<Sessions>, received: ReceivedDatagram) {
        let Some(ends) = SessionKey::of(&received.listener, &received.datagram) else {
            return;
        };
        if !received.worker.has_room_for_session() {
            return;
        }
        let ReceivedDatagram {
            worker,
            socket,
            listener,
            mut datagram,
        } = received;
        let stream = StreamLocal::of(&worker.current());
        let Some(binding) = stream.binding(&listener) else {
            return;
        };
        let own = match (datagram.local, binding.options.address.port()) {
            (Some(ip), Some(port)) => Address::Inet((ip, port).into()),
            _ => binding.options.address.clone(),
        };
        let has_headers = binding.servers_for(|| own.clone()).header_per_datagram;
        let header = has_headers.then(|| proxied(&datagram.bytes));
        let serial = worker.counters().next_serial();
        worker.counts().accepted.add(1);
        let client = Client::new(listener, serial).with_addresses(Address::Inet(ends.client), own);
        let end = DatagramEnd {
            to: datagram.with(()),
            socket,
            header: OnceCell::new(),
            arrived: RefCell::default(),
            occupied: Cell::new(0),
            reader: RefCell::default(),
            course: Cell::new(SessionStatus::Open),
            place: Cell::new(None),
        };
        if let Some(Some((length, _))) = header {
            end.take_off_header(&mut datagram.bytes, length);
        }
        end.arrive(datagram.bytes);
        let connection = Rc::new(Connection::of_datagrams(client, end, Rc::clone(&worker)));
        let registered = worker.register(&connection);
        if let ClientEnd::Datagrams(end) = &connection.end {
            end.place.set(Some(registered.place()));
        }
        worker.set_idle(registered.place(), true);
        let listed = match header {
            // A session whose header is malformed ends at once and gets no further datagrams.
            Some(None) => None,
            header => {
                self.insert(&ends, header.flatten().map(|(_, told)| told), &connection);
                Some(Listed {
                    sessions: Rc::clone(self),
                    ends,
                    connection: Rc::clone(&connection),
                    _counted: worker.begin_datagram_session(),
                })
            }
        };
        engine::spawn(phases::serve(connection, registered, listed));
    }
}

/// Registers a session for further datagrams of its client, until dropped.
pub(crate) struct Listed {
    sessions: Rc<Sessions>,
    ends: SessionKey,
    connection: Rc<Connection>,
    /// Counts the session among the thread's sessions over UDP.
    _counted: DatagramSession,
}

impl Drop for Listed {
    /// Datagrams that the session has not taken are received again, and start another session.
    fn drop(&mut self) {
        self.sessions.remove(&self.ends, &self.connection);
        let ClientEnd::Datagrams(end) = &self.connection.end else {
            return;
        };
        for bytes in end.arrived.take() {
            let bytes = match end.header.get() {
                Some(header) => Buffer::of([header, &*bytes].concat()),
                None => bytes,
            };
            let worker = &self.connection.worker;
            worker.receive_again(ReceivedDatagram {
                worker: Rc::clone(worker),
                socket: Rc::clone(&end.socket),
                listener: self.ends.listener.clone(),
                datagram: end.to.with(bytes),
            });
        }
    }
}
