//! Clients of datagrams: whose session a datagram belongs to, and what a session has of its client.
//!
//! All clients of a socket share it, so that a thread finds the session of a datagram by the
//! addresses of both ends.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use base::hash::Map;
use engine::net::Address;
use framework::door::{ListenerId, ReceivedDatagram};
use transport::client::Client;

use crate::connection::{ClientEnd, Connection};
use crate::datagram_end::{DatagramEnd, SessionStatus};
use crate::plan::StreamLocal;
use crate::session::phases;

/// Whose datagrams belong to one session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SessionKey {
    listener: ListenerId,
    client: SocketAddr,
    /// The address that the client has written to, where the socket is bound to several.
    local: Option<IpAddr>,
}

/// The sessions of a thread whose clients send datagrams.
#[derive(Default)]
pub(crate) struct Sessions(RefCell<Map<SessionKey, Rc<Connection>>>);

impl Sessions {
    /// Gives a datagram to its session, which begins with it if there is none.
    pub(crate) fn received(self: &Rc<Sessions>, received: ReceivedDatagram) {
        let Some(client) = received.datagram.peer else {
            return;
        };
        let ends = SessionKey {
            listener: received.listener.clone(),
            client,
            local: received.datagram.local,
        };
        let known = self.0.borrow().get(&ends).map(Rc::clone);
        if let Some(connection) = known {
            if let ClientEnd::Datagrams(end) = &connection.end {
                end.arrive(received.datagram.bytes);
            }
        } else if received.worker.has_room_for_session() {
            self.begin(ends, received);
        }
    }

    fn begin(self: &Rc<Sessions>, ends: SessionKey, received: ReceivedDatagram) {
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
        };
        engine::spawn(phases::serve(connection, registered, Some(listed)));
    }
}

/// A session that further datagrams of its client come to, until this is dropped.
pub(crate) struct Listed {
    sessions: Rc<Sessions>,
    ends: SessionKey,
    connection: Rc<Connection>,
}

impl Drop for Listed {
    /// What has come for the session and has not been taken begins another one.
    fn drop(&mut self) {
        self.sessions.0.borrow_mut().remove(&self.ends);
        let ClientEnd::Datagrams(end) = &self.connection.end else {
            return;
        };
        // The next session is of the same thread; one that ends has no need for another.
        for bytes in end.arrived.take() {
            self.sessions.received(ReceivedDatagram {
                worker: Rc::clone(&self.connection.worker),
                socket: Rc::clone(&end.socket),
                listener: self.ends.listener.clone(),
                datagram: end.to.with(bytes),
            });
        }
    }
}
