//! Receiving from one socket of datagrams, for the door of its protocol.

use std::rc::Rc;
use std::time::Duration;

use base::level::Level;
use engine::net::DatagramSocket;
use engine::select::{Either, either};

use super::Worker;
use super::accept::Accepting;
use crate::display::Errno;
use crate::door::{ListenerId, ReceivedDatagram};

/// How long receiving pauses where the system refuses a datagram.
const RECEIVE_PAUSE: Duration = Duration::from_millis(500);

/// Receives from one socket until told to stop; what has not been received by then stays with the
/// kernel, for the other processes that have the socket.
pub(super) async fn receive(
    worker: Rc<Worker>,
    id: ListenerId,
    socket: DatagramSocket,
    accepting: Rc<Accepting>,
) {
    let socket = Rc::new(socket);
    loop {
        let came = either(accepting.stop.wait(), socket.recv()).await;
        // An answer that the system refuses is lost, as one that the network loses is.
        if let Some(error) = socket.take_failure() {
            let error = Errno(&error);
            worker.report(Level::Info, format_args!("sendmsg() failed {error}"));
        }
        match came {
            Either::First(()) => break,
            Either::Second(Ok(datagram)) => accepting.door().received(ReceivedDatagram {
                worker: Rc::clone(&worker),
                socket: Rc::clone(&socket),
                listener: id.clone(),
                datagram,
            }),
            Either::Second(Err(error)) => {
                let error = Errno(&error);
                worker.report(Level::Alert, format_args!("recvmsg() failed {error}"));
                engine::sleep(RECEIVE_PAUSE).await;
            }
        }
    }
    worker.accept_tasks.set(worker.accept_tasks.get() - 1);
    worker.end_if_idle();
}
