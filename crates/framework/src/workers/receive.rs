//! Receives from one datagram socket and passes each datagram to the door of its protocol.

use std::rc::Rc;
use std::time::Duration;

use base::level::Level;
use engine::net::DatagramSocket;
use engine::select::{Either, either};

use super::Worker;
use super::accept::Accepting;
use crate::display::Errno;
use crate::door::{ListenerId, ReceivedDatagram};

/// How long receiving pauses after `recvmsg()` has failed.
const RECEIVE_PAUSE: Duration = Duration::from_millis(500);

/// Receives until told to stop. Datagrams that have not been received by then stay in the kernel's
/// queue, for the other processes that share the socket.
pub(super) async fn receive(
    worker: Rc<Worker>,
    id: ListenerId,
    socket: DatagramSocket,
    accepting: Rc<Accepting>,
) {
    let socket = Rc::new(socket);
    loop {
        let event = either(accepting.stop.wait(), socket.recv()).await;
        // A reply that `sendmsg()` refused is lost, like one that the network drops: only log it.
        if let Some(error) = socket.take_failure() {
            let error = Errno(&error);
            worker.report(Level::Info, format_args!("sendmsg() failed {error}"));
        }
        match event {
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
