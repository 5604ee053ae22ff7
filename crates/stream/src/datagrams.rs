//! Clients of datagrams: whose session a datagram belongs to, and what a session has of its client.
//!
//! All clients of a socket share it, so that a thread finds the session of a datagram by the
//! addresses of both ends.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Poll, Waker};

use base::hash::Map;
use bytes::Bytes;
use engine::Buffer;
use engine::net::{Address, Datagram, DatagramSocket};
use framework::door::{ListenerId, ReceivedDatagram};
use framework::workers::Worker;
use transport::client::Client;

use crate::connection::{ClientEnd, Connection};
use crate::plan::StreamLocal;
use crate::session;

/// Bytes of a client's datagrams that may wait for its session; more are dropped, as a full queue
/// anywhere on their way would drop them.
const ARRIVED_MAX: usize = 256 << 10;

/// What a datagram that waits counts beside its bytes.
const OVERHEAD: usize = 128;

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
        engine::spawn(session::serve(connection, registered, Some(listed)));
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

/// Whether a session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionStatus {
    /// More may come of the client.
    Open,
    /// What the client has asked is still answered.
    Ending,
    /// The session ends at once.
    Aborted,
}

/// The end of a session at which a client sends and receives datagrams.
pub(crate) struct DatagramEnd {
    /// Where datagrams to the client go, and from which address.
    to: Datagram<()>,
    /// The socket, which all of its clients share.
    socket: Rc<DatagramSocket>,
    /// What has come and has not been taken.
    arrived: RefCell<VecDeque<Buffer>>,
    /// What the arrived datagrams count towards [`ARRIVED_MAX`].
    occupied: Cell<usize>,
    reader: RefCell<Option<Waker>>,
    course: Cell<SessionStatus>,
    /// The session's place among the connections of its thread.
    place: Cell<Option<u32>>,
}

impl DatagramEnd {
    fn arrive(&self, mut bytes: Buffer) {
        let occupied = self.occupied.get() + bytes.len() + OVERHEAD;
        if occupied > ARRIVED_MAX {
            return;
        }
        bytes.fit();
        self.occupied.set(occupied);
        self.arrived.borrow_mut().push_back(bytes);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    /// The client's next datagram; `None` once the session is [to end](Self::end) and everything
    /// that has come was taken. Cancel-safe.
    pub(crate) async fn next(&self) -> Option<Buffer> {
        poll_fn(|context| {
            if let Some(bytes) = self.take() {
                return Poll::Ready(Some(bytes));
            }
            if self.course.get() != SessionStatus::Open {
                return Poll::Ready(None);
            }
            self.reader.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// The client's next datagram, if one has come.
    pub(crate) fn take(&self) -> Option<Buffer> {
        let bytes = self.arrived.borrow_mut().pop_front()?;
        let occupied = self.occupied.get();
        self.occupied
            .set(occupied.saturating_sub(bytes.len() + OVERHEAD));
        Some(bytes)
    }

    /// The session is to end: nothing more comes of the client.
    pub(crate) fn end(&self) {
        if self.course.get() == SessionStatus::Open {
            self.course.set(SessionStatus::Ending);
        }
        self.wake();
    }

    /// The session ends at once, whatever is still to be answered.
    pub(crate) fn abort(&self) {
        self.course.set(SessionStatus::Aborted);
        self.wake();
    }

    /// Waits until the session is to end at once. Cancel-safe.
    pub(crate) async fn aborted(&self) {
        poll_fn(|context| {
            if self.course.get() == SessionStatus::Aborted {
                return Poll::Ready(());
            }
            self.reader.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// The session's place among the connections of its thread.
    pub(crate) fn place(&self) -> Option<u32> {
        self.place.get()
    }

    /// Notes that the session is used: of all sessions those make room first that have been silent
    /// for longest.
    pub(crate) fn note_use(&self, worker: &Worker) {
        if let Some(place) = self.place.get() {
            worker.set_idle(place, false);
            worker.set_idle(place, true);
        }
    }

    /// Sends a datagram to the client.
    ///
    /// # Errors
    /// Those of `sendmsg()`.
    pub(crate) async fn send(&self, bytes: Bytes) -> io::Result<()> {
        send(&self.socket, self.to.with(bytes)).await
    }
}

/// Sends a datagram, or drops it where too many wait already for the network.
///
/// # Errors
/// Those of `sendmsg()`.
pub(crate) async fn send(socket: &DatagramSocket, datagram: Datagram<Bytes>) -> io::Result<()> {
    // What finds no room goes on by itself: nobody waits for that.
    if socket.push(datagram) && socket.start_send() == 0 {
        return socket.drained().await;
    }
    Ok(())
}
