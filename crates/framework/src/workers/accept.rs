//! Accepting from one socket, and what happens where that fails.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::level::Level;
use engine::Event;
use engine::net::{Listener, Stream};

use super::places::Spared;
use super::{NotEnough, Worker};
use crate::display::Errno;
use crate::door::{Accepted, Door, ListenerId};

/// How long accepting pauses when the system or the limits refuse a connection (nginx's 500 ms).
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// How long a client waits in the queue for a descriptor before it is told that there is none.
/// nginx lets it wait for ever.
const QUEUE_TIME_MAX: Duration = Duration::from_secs(5);

/// How many clients are told so between two pauses.
const TURNED_AWAY_MAX: usize = 32;

/// A socket that a thread accepts from.
pub(super) struct Accepting {
    /// It is to stop.
    pub(super) stop: Event,
    /// Takes what is accepted: of the generation that serves now.
    door: RefCell<Rc<dyn Door>>,
}

impl Accepting {
    /// A socket that belongs to this door.
    pub(super) fn new(door: Rc<dyn Door>) -> Accepting {
        Accepting {
            stop: Event::new(),
            door: RefCell::new(door),
        }
    }

    /// It belongs to this door from now on. False where it did before.
    pub(super) fn change_door(&self, door: Rc<dyn Door>) -> bool {
        let before = self.door.replace(Rc::clone(&door));
        !Rc::ptr_eq(&before, &door)
    }

    /// The door that the socket belongs to now.
    pub(super) fn door(&self) -> Rc<dyn Door> {
        Rc::clone(&self.door.borrow())
    }
}

/// Accepts from one socket until told to stop; what was accepted by then is served.
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
                failed.meet(&worker, &listener, &*accepting.door());
                engine::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    listener.stop();
    while let Ok(stream) = listener.accept().await {
        take(&worker, &id, &accepting, stream);
    }
    worker.accept_tasks.set(worker.accept_tasks.get() - 1);
    worker.end_if_idle();
}

/// Serves an accepted connection.
fn take(worker: &Rc<Worker>, id: &ListenerId, accepting: &Accepting, stream: Stream) {
    let serial = worker.counters.next_serial();
    worker.counts.accepted.add(1);
    accepting.door().connected(Accepted {
        worker: Rc::clone(worker),
        stream,
        listener: id.clone(),
        serial,
        handed: None,
    });
}

/// Closes a connection for which there is no room, and those that wait behind it, as nginx does: it
/// is no use to have them wait for what may depend on them, such as the answer to a request that
/// this server has sent to itself.
fn refuse(worker: &Worker, listener: &Listener, stream: Stream, shortage: NotEnough) {
    drop(stream);
    (0..TURNED_AWAY_MAX).all(|_| listener.turn_away(b""));
    if shortage.is_told {
        worker.report(Level::Alert, format_args!("{shortage}"));
    }
}

/// A connection could not be accepted.
struct AcceptError {
    error: std::io::Error,
    /// For how long none could.
    lasting: Duration,
}

impl AcceptError {
    /// As with nginx, clients wait in the kernel's queue for a descriptor; but idle connections
    /// make room for them, and where all are busy for long, they are told.
    fn meet(&self, worker: &Worker, listener: &Listener, door: &dyn Door) {
        let lasting = self.lasting;
        let is_waited_for = self.is_of_descriptors() && !lasting.is_zero();
        if is_waited_for && !worker.close_idlest(Spared::Nobody) && lasting >= QUEUE_TIME_MAX {
            let told = (0..TURNED_AWAY_MAX)
                .take_while(|_| listener.turn_away(door.turned_away()))
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

/// Errors of accept that concern one client only.
fn is_transient(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::ConnectionAborted
            | std::io::ErrorKind::WouldBlock
            | std::io::ErrorKind::Interrupted
    )
}
