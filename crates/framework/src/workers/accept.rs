//! Accepts connections from one listening socket, and handles the errors of `accept4()`.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::level::Level;
use engine::Event;
use engine::net::{DatagramSocket, Listener, Stream};

use super::places::EvictionExemption;
use super::{TooManyConnections, Worker};
use crate::connection_handler::{Accepted, ConnectionHandler, ListenerId};
use crate::display::Errno;

/// How long accepting pauses after a failed `accept4()` (nginx's 500 ms).
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// How long a thread that stops accepting waits for the handshakes that only it can complete. A
/// client whose segments are lost sends its SYN again after a second, to the sockets that listen
/// then.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(1);

/// Interval between two checks whether these handshakes have completed.
const HANDSHAKE_PAUSE: Duration = Duration::from_millis(5);

/// How long clients wait in the listen backlog for a file descriptor before they are turned away.
/// nginx lets them wait for ever.
const QUEUE_TIME_MAX: Duration = Duration::from_secs(5);

/// Maximum number of clients that are turned away between two pauses.
const TURNED_AWAY_MAX: usize = 32;

/// A socket that a thread accepts from.
pub(super) struct Accepting {
    /// Set when accepting from the socket is to stop.
    pub(super) stop: Event,
    /// The connection handler for accepted connections in the current generation.
    handler: RefCell<Rc<dyn ConnectionHandler>>,
    /// The socket itself, if it receives datagrams.
    pub(super) datagrams: OnceCell<Rc<DatagramSocket>>,
}

impl Accepting {
    /// A socket whose connections go to this connection handler.
    pub(super) fn new(handler: Rc<dyn ConnectionHandler>) -> Accepting {
        Accepting {
            stop: Event::new(),
            handler: RefCell::new(handler),
            datagrams: OnceCell::new(),
        }
    }

    /// Passes connections to this connection handler from now on. False if it was the handler
    /// already.
    pub(super) fn change_handler(&self, handler: Rc<dyn ConnectionHandler>) -> bool {
        let before = self.handler.replace(Rc::clone(&handler));
        !Rc::ptr_eq(&before, &handler)
    }

    /// The current connection handler of the socket.
    pub(super) fn handler(&self) -> Rc<dyn ConnectionHandler> {
        Rc::clone(&self.handler.borrow())
    }
}

/// Accepts from one socket until told to stop. Connections that the engine has accepted by then are
/// still served, and so are those whose handshakes this thread alone can complete.
pub(super) async fn accept(
    worker: Rc<Worker>,
    id: ListenerId,
    listener: Listener,
    accepting: Rc<Accepting>,
) {
    let mut failing_since: Option<Instant> = None;
    loop {
        let accepted = match engine::select::either(accepting.stop.wait(), listener.accept()).await
        {
            engine::select::Either::First(()) => break,
            engine::select::Either::Second(accepted) => accepted,
        };
        match accepted {
            Ok(stream) => {
                failing_since = None;
                match worker.has_room_for_client().await {
                    Ok(()) => take(&worker, &id, &accepting, stream),
                    Err(shortage) => refuse(&worker, &listener, stream, shortage),
                }
            }
            Err(error) if is_transient(&error) => {}
            Err(error) => {
                let now = engine::now();
                let since = *failing_since.get_or_insert(now);
                let failed = AcceptError {
                    error,
                    lasting: now.duration_since(since),
                };
                failed.handle(&worker, &listener, &*accepting.handler());
                engine::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    listener.stop();
    let stopped = engine::now();
    loop {
        while let Ok(stream) = listener.accept().await {
            take(&worker, &id, &accepting, stream);
        }
        if !listener.has_handshakes() || engine::now() >= stopped + HANDSHAKE_TIME_MAX {
            break;
        }
        engine::sleep(HANDSHAKE_PAUSE).await;
    }
    worker.accept_tasks.set(worker.accept_tasks.get() - 1);
    worker.end_if_idle();
}

/// Counts an accepted connection and passes it to the connection handler.
fn take(worker: &Rc<Worker>, id: &ListenerId, accepting: &Accepting, stream: Stream) {
    let serial = worker.counters.next_serial();
    worker.counts.accepted.add(1);
    accepting.handler().connected(Accepted {
        worker: Rc::clone(worker),
        stream,
        listener: id.clone(),
        serial,
        handed: None,
    });
}

/// Closes a connection for which `worker_connections` leaves no room, and the next connections in
/// the backlog, as nginx does. Leaving them in the backlog could cause a deadlock if the server
/// proxies to itself: a request that has a place may wait for a connection in the backlog.
fn refuse(worker: &Worker, listener: &Listener, stream: Stream, shortage: TooManyConnections) {
    drop(stream);
    (0..TURNED_AWAY_MAX).all(|_| listener.shed_connection(b""));
    if shortage.should_log {
        worker.report(Level::Alert, format_args!("{shortage}"));
    }
}

/// A failed `accept4()`.
struct AcceptError {
    error: std::io::Error,
    /// How long `accept4()` has been failing.
    lasting: Duration,
}

impl AcceptError {
    /// Handles the error. As with nginx, clients wait in the listen backlog while the process is
    /// out of file descriptors. Unlike nginx, idle connections are closed to make room for them,
    /// and if all connections stay busy for `QUEUE_TIME_MAX`, waiting clients are turned away.
    fn handle(&self, worker: &Worker, listener: &Listener, handler: &dyn ConnectionHandler) {
        let lasting = self.lasting;
        let is_waited_for = self.is_of_descriptors() && !lasting.is_zero();
        if is_waited_for
            && !worker.close_idlest(EvictionExemption::Nobody)
            && lasting >= QUEUE_TIME_MAX
        {
            let told = (0..TURNED_AWAY_MAX)
                .take_while(|_| listener.shed_connection(handler.rejection_message()))
                .count();
            worker.turned_away.set(worker.turned_away.get() + told);
        }
        let now = engine::now();
        let last = worker.refusal_logged.get();
        if last.is_some_and(|last| now.duration_since(last) < Duration::from_secs(1)) {
            return;
        }
        worker.refusal_logged.set(Some(now));
        let error = Errno(&self.error);
        let text = match worker.turned_away.take() {
            0 => format!("accept4() failed {error}"),
            told => format!("accept4() failed {error}, {told} clients turned away"),
        };
        worker.report(Level::Crit, format_args!("{text}"));
    }

    fn is_of_descriptors(&self) -> bool {
        rustix::io::Errno::from_io_error(&self.error).is_some_and(|errno| {
            matches!(errno, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)
        })
    }
}

/// Whether an error of `accept4()` concerns a single client only.
fn is_transient(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::ConnectionAborted
            | std::io::ErrorKind::WouldBlock
            | std::io::ErrorKind::Interrupted
    )
}
