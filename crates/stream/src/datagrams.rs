//! Sessions over UDP: the assignment of datagrams to sessions.
//!
//! All clients of an address share its socket, so a thread finds the session of a datagram by the
//! addresses of both ends.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use base::hash::Map;
use engine::Buffer;
use engine::net::{Address, Datagram};
use framework::door::{ListenerId, ReceivedDatagram};
use framework::workers::DatagramSession;
use transport::client::Client;

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

/// The sessions over UDP of a thread.
#[derive(Default)]
pub(crate) struct Sessions(RefCell<Map<SessionKey, Rc<Connection>>>);

impl Sessions {
    /// Passes a datagram to its session.
    ///
    /// # Errors
    /// Returns the datagram if it belongs to no session.
    pub(crate) fn give(
        &self,
        listener: &ListenerId,
        datagram: Datagram<Buffer>,
    ) -> Result<(), Datagram<Buffer>> {
        let Some(ends) = SessionKey::of(listener, &datagram) else {
            return Err(datagram);
        };
        let known = self.0.borrow().get(&ends).map(Rc::clone);
        match known.as_ref().map(|connection| &connection.end) {
            Some(ClientEnd::Datagrams(end)) => {
                end.arrive(datagram.bytes);
                Ok(())
            }
            _ => Err(datagram),
        }
    }

    /// Starts a session for a datagram that belongs to none.
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
            datagram,
        } = received;
        let stream = StreamLocal::of(&worker.current());
        let Some(binding) = stream.binding(&listener) else {
            return;
        };
        let own = match (datagram.local, binding.options.address.port()) {
            (Some(ip), Some(port)) => Address::Inet((ip, port).into()),
            _ => binding.options.address.clone(),
        };
        let serial = worker.counters().next_serial();
        worker.counts().accepted.add(1);
        let client = Client::new(listener, serial).between(Address::Inet(ends.client), own);
        let end = DatagramEnd {
            to: datagram.with(()),
            socket,
            arrived: RefCell::default(),
            occupied: Cell::new(0),
            reader: RefCell::default(),
            course: Cell::new(SessionStatus::Open),
            place: Cell::new(None),
        };
        end.arrive(datagram.bytes);
        let connection = Rc::new(Connection::of_datagrams(client, end, Rc::clone(&worker)));
        self.0
            .borrow_mut()
            .insert(ends.clone(), Rc::clone(&connection));
        let registered = worker.register(&connection);
        if let ClientEnd::Datagrams(end) = &connection.end {
            end.place.set(Some(registered.place()));
        }
        worker.set_idle(registered.place(), true);
        let listed = Listed {
            sessions: Rc::clone(self),
            ends,
            connection: Rc::clone(&connection),
            _counted: worker.begin_datagram_session(),
        };
        engine::spawn(phases::serve(connection, registered, Some(listed)));
    }
}

/// Registers a session for further datagrams of its client, until dropped.
pub(crate) struct Listed {
    sessions: Rc<Sessions>,
    ends: SessionKey,
    connection: Rc<Connection>,
    _counted: DatagramSession,
}

impl Drop for Listed {
    /// Datagrams that the session has not taken start another one.
    fn drop(&mut self) {
        self.sessions.0.borrow_mut().remove(&self.ends);
        let ClientEnd::Datagrams(end) = &self.connection.end else {
            return;
        };
        for bytes in end.arrived.take() {
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
