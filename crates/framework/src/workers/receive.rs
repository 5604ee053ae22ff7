//! Receives from one datagram socket, and decides who gets a datagram: a session of this thread,
//! another thread of this process, the previous or next process
//! ([`succession`](super::succession)), or the connection handler of the protocol, which begins a
//! session.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::level::Level;
use engine::Buffer;
use engine::net::{Datagram, DatagramSocket};
use engine::select::{Either, either};

use super::Worker;
use super::accept::Accepting;
use super::siblings::{SessionCount, Siblings};
use super::succession::{Channel, RelayKind, RelayedDatagram};
use crate::connection_handler::{ConnectionHandler, ListenerId, ReceivedDatagram};
use crate::display::Errno;

/// How long receiving pauses after `recvmsg()` has failed.
const RECEIVE_PAUSE: Duration = Duration::from_millis(500);

/// Maximum time for which a relayed datagram waits until its thread listens, too, and the interval
/// of the checks.
const LISTEN_WAIT: Duration = Duration::from_secs(2);
const LISTEN_LOOK: Duration = Duration::from_millis(2);

/// Receives until told to stop. Datagrams that have not been received by then stay in the kernel's
/// queue, for the other processes that share the socket.
pub(super) async fn receive(
    worker: Rc<Worker>,
    id: ListenerId,
    socket: Rc<DatagramSocket>,
    accepting: Rc<Accepting>,
) {
    let take = |datagram| {
        let received = ReceivedDatagram {
            worker: Rc::clone(&worker),
            socket: Rc::clone(&socket),
            listener: id.clone(),
            datagram,
        };
        worker.receive_at(&*accepting.handler(), received);
    };
    loop {
        let event = either(accepting.stop.wait(), socket.recv()).await;
        // A reply that `sendmsg()` refused is lost, like one that the network drops: only log it.
        if let Some(error) = socket.take_failure() {
            let error = Errno(&error);
            worker.report(Level::Info, format_args!("sendmsg() failed {error}"));
        }
        match event {
            Either::First(()) => break,
            Either::Second(Ok(datagram)) => take(datagram),
            Either::Second(Err(error)) => {
                let error = Errno(&error);
                worker.report(Level::Alert, format_args!("recvmsg() failed {error}"));
                engine::sleep(RECEIVE_PAUSE).await;
            }
        }
    }
    while let Some(datagram) = socket.take_received() {
        take(datagram);
    }
    worker.accept_tasks.set(worker.accept_tasks.get() - 1);
    worker.end_if_idle();
}

/// The membership of a thread in the [`Siblings`] of its process.
pub(super) struct Membership {
    pub(super) siblings: Arc<Siblings>,
    /// The number of this thread among the siblings.
    pub(super) number: usize,
    /// Counts this thread like a session as long as it may receive datagrams that begin sessions.
    pub(super) receives: Cell<Option<SessionCount>>,
}

impl Membership {
    /// The membership of a thread that is about to receive.
    pub(super) fn new(siblings: Arc<Siblings>, number: usize) -> Membership {
        Membership {
            receives: Cell::new(Some(siblings.count_session())),
            siblings,
            number,
        }
    }

    /// Records that the thread has received its last datagram and passed it on.
    pub(super) fn stop_receiving(&self) {
        if let Some(counted) = self.receives.take() {
            self.siblings.end_asking();
            drop(counted);
        }
    }

    /// Whether a client belongs to another thread.
    fn is_elsewhere(&self, client: Option<SocketAddr>) -> bool {
        let owner = client.and_then(|client| self.siblings.owner(client));
        owner.is_some_and(|owner| owner != self.number)
    }
}

/// Counts a datagram session of this thread until it is dropped: as long as there are sessions, the
/// process answers questions of its successor.
#[must_use]
pub struct DatagramSession(#[expect(dead_code, reason = "it counts")] Option<SessionCount>);

impl Worker {
    /// Counts a session of datagrams that begins on this thread.
    pub fn begin_datagram_session(&self) -> DatagramSession {
        let membership = self.membership.get();
        DatagramSession(membership.map(|own| own.siblings.count_session()))
    }

    /// Dispatches a datagram again, after the session to which it was passed has refused it.
    pub fn receive_again(self: &Rc<Worker>, received: ReceivedDatagram) {
        if let Some(handler) = self.handler_of(&self.current(), &received.listener) {
            self.receive_at(&*handler, received);
        }
    }

    /// Dispatches a datagram that has arrived at a socket of this connection handler.
    fn receive_at(
        self: &Rc<Worker>,
        handler: &dyn ConnectionHandler,
        mut received: ReceivedDatagram,
    ) {
        let Some(sessions) = handler.datagram_sessions() else {
            return handler.received(received);
        };
        if let Some(own) = self.membership.get()
            && own.is_elsewhere(received.datagram.peer)
        {
            let bytes = received.datagram.bytes.to_vec();
            return own.siblings.hand_over(RelayedDatagram {
                listener: received.listener,
                datagram: received.datagram.with(bytes),
                asked: 0,
            });
        }
        let Err(datagram) = sessions.give(&received.listener, received.datagram) else {
            return;
        };
        if !self.is_elsewhere(&received.listener, &datagram, 0) {
            received.datagram = datagram;
            handler.received(received);
        }
    }

    /// Dispatches a datagram that another thread has received, or that a predecessor has returned
    /// because it has no session for the client.
    pub(super) fn receive_relayed(
        self: &Rc<Worker>,
        relayed: RelayedDatagram,
        counted: SessionCount,
    ) {
        let RelayedDatagram {
            listener,
            datagram,
            asked,
        } = relayed;
        let datagram = with_bytes(datagram);
        let Err(datagram) = self.dispatch_to_session(&listener, datagram) else {
            return;
        };
        if self.is_elsewhere(&listener, &datagram, asked) {
            return;
        }
        let Err(mut datagram) = self.begin_session(&listener, datagram) else {
            return;
        };
        // This thread does not listen on the address: another thread or a predecessor has started
        // to receive earlier, or this thread has stopped before it knows of its successor.
        let worker = Rc::clone(self);
        engine::spawn(async move {
            let until = engine::now() + LISTEN_WAIT;
            // The wait is limited, because the configuration may no longer have the address.
            while engine::now() < until {
                engine::sleep(LISTEN_LOOK).await;
                let Err(still) = worker.dispatch_to_session(&listener, datagram) else {
                    break;
                };
                if worker.is_elsewhere(&listener, &still, asked) {
                    break;
                }
                let Err(still) = worker.begin_session(&listener, still) else {
                    break;
                };
                datagram = still;
            }
            drop(counted);
        });
    }

    /// Begins a session with a datagram. The error is the datagram, if this thread does not listen
    /// on the address.
    fn begin_session(
        self: &Rc<Worker>,
        listener: &ListenerId,
        datagram: Datagram<Buffer>,
    ) -> Result<(), Datagram<Buffer>> {
        let accepting = self.accepting_at(listener);
        let socket = accepting.as_ref().and_then(|found| found.datagrams.get());
        let (Some(accepting), Some(socket)) = (&accepting, socket) else {
            return Err(datagram);
        };
        accepting.handler().received(ReceivedDatagram {
            worker: Rc::clone(self),
            socket: Rc::clone(socket),
            listener: listener.clone(),
            datagram,
        });
        Ok(())
    }

    /// Passes a datagram to the session of its client, of any protocol. The error is the datagram,
    /// if there is no session.
    fn dispatch_to_session(
        &self,
        listener: &ListenerId,
        datagram: Datagram<Buffer>,
    ) -> Result<(), Datagram<Buffer>> {
        let mut left = datagram;
        for sessions in self
            .handlers
            .iter()
            .filter_map(|handler| handler.datagram_sessions())
        {
            match sessions.give(listener, left) {
                Ok(()) => return Ok(()),
                Err(datagram) => left = datagram,
            }
        }
        Err(left)
    }

    /// Whether the datagram was passed to the successor, or to a predecessor with the question
    /// whether it has a session for the client.
    fn is_elsewhere(
        &self,
        listener: &ListenerId,
        datagram: &Datagram<Buffer>,
        asked: usize,
    ) -> bool {
        let Some(own) = self.membership.get() else {
            return false;
        };
        match &*self.successor.borrow() {
            Some(successor) => successor.send(RelayKind::Unknown, listener, datagram, 0),
            None => own.siblings.ask(listener, datagram, asked),
        }
    }

    /// Answers a successor's question: passes the datagram to its session, or returns it if there
    /// is none.
    pub(super) fn answer(&self, channel: &Arc<Channel>, relayed: RelayedDatagram) {
        let RelayedDatagram {
            listener,
            datagram,
            asked,
        } = relayed;
        if let Err(datagram) = self.dispatch_to_session(&listener, with_bytes(datagram)) {
            channel.send(RelayKind::Unknown, &listener, &datagram, asked);
        }
    }

    /// Records that the successor receives from now on: datagrams without a session in this process
    /// go to the successor.
    pub(super) fn follow(&self, successor: &Arc<Channel>) {
        self.successor.replace(Some(Arc::clone(successor)));
    }

    /// Records that a successor has ended.
    pub(super) fn lose_successor(self: &Rc<Worker>, gone: &Arc<Channel>) {
        self.successor
            .borrow_mut()
            .take_if(|successor| Arc::ptr_eq(successor, gone));
        self.end_orphaned_sessions();
    }

    /// Whether another process receives datagrams for the sessions of this process, or is about to.
    /// If so, the sessions continue after this process was told to end.
    pub fn has_successor(&self) -> bool {
        let own = self.membership.get();
        own.is_some_and(|own| own.siblings.has_successor())
    }

    /// Whether a successor may ask this process about the sessions of any of its threads.
    pub(super) fn answers_session_queries(&self) -> bool {
        let own = self.membership.get();
        own.is_some_and(|own| own.siblings.answers_session_queries())
    }

    /// Records that this thread has taken a datagram of this weight from its queue.
    pub(super) fn note_taken(&self, weight: usize) {
        if let Some(own) = self.membership.get() {
            own.siblings.note_taken(own.number, weight);
        }
    }
}

fn with_bytes(datagram: Datagram<Vec<u8>>) -> Datagram<Buffer> {
    Datagram {
        bytes: Buffer::of(datagram.bytes),
        peer: datagram.peer,
        local: datagram.local,
    }
}
