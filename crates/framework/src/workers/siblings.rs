//! The datagram state that the threads of a process share: which thread a client belongs to, and
//! the processes before and after this process ([`succession`](super::succession)).
//!
//! All datagrams of a client belong to one thread, which [`steering::socket_of`] determines and
//! which has the client's session. The kernel is told to deliver them to this thread. Another
//! thread that receives such a datagram nevertheless passes it on.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use engine::Remote;
use engine::net::{Datagram, steering};

use super::Worker;
use super::succession::{Channel, RelayKind, RelayedDatagram, SuccessionMessage};
use super::worker::with_worker;
use crate::connection_handler::ListenerId;

/// Maximum size of the datagrams that other threads have passed to a thread and that it has not
/// taken yet, in bytes. Further datagrams are dropped, as by any full queue.
const WAITING_MAX: usize = 1 << 20;

/// Bytes that are added to the length of a waiting datagram.
const OVERHEAD: usize = 256;

/// How long the process waits for its threads to learn of a successor.
const HEARD_WAIT: Duration = Duration::from_secs(1);

/// The threads of a process, and the processes before and after it.
#[derive(Default)]
pub(super) struct Siblings {
    /// Set when all threads have started.
    threads: OnceLock<Vec<Sibling>>,
    /// The number of datagram sessions of all threads, of what may begin a session (threads that
    /// receive, predecessors that may return datagrams, datagrams on their way to another thread),
    /// and of questions about sessions in progress. A process that was told to end may do so when
    /// the number is 0.
    sessions: AtomicUsize,
    is_leaving: AtomicBool,
    /// Number of threads that have received their last datagram.
    threads_ended: AtomicUsize,
    /// Set before the first thread receives.
    predecessors: OnceLock<Vec<Arc<Channel>>>,
    /// Announced successors that have not ended. The last successor receives or is about to.
    successors: Mutex<Vec<Arc<Channel>>>,
}

struct Sibling {
    remote: Remote,
    /// Size of the datagrams that wait for this thread, including [`OVERHEAD`]; at most
    /// [`WAITING_MAX`].
    waiting: AtomicUsize,
}

/// Counts in [`Siblings::sessions`] until it is dropped, so that the process does not end.
pub(super) struct SessionCount(Arc<Siblings>);

impl Drop for SessionCount {
    fn drop(&mut self) {
        let others = self.0.sessions.fetch_sub(1, Ordering::SeqCst) - 1;
        if others == 0 && self.0.is_leaving.load(Ordering::SeqCst) {
            self.0.finish();
        }
    }
}

impl Siblings {
    /// Sets the threads, in order, after all of them have started.
    pub(super) fn set_threads(&self, remotes: impl Iterator<Item = Remote>) {
        let sibling = |remote| Sibling {
            remote,
            waiting: AtomicUsize::new(0),
        };
        let _ = self.threads.set(remotes.map(sibling).collect()); // nothing else sets them
    }

    fn threads(&self) -> &[Sibling] {
        self.threads.get().map_or(&[], Vec::as_slice)
    }

    /// The thread to which a client belongs; `None` while threads are being started.
    pub(super) fn owner(&self, client: SocketAddr) -> Option<usize> {
        let threads = self.threads().len() as u32;
        (threads > 0).then(|| steering::socket_of(client, threads) as usize)
    }

    /// Counts a session, or something that may begin a session.
    pub(super) fn count_session(self: &Arc<Siblings>) -> SessionCount {
        self.sessions.fetch_add(1, Ordering::SeqCst);
        SessionCount(Arc::clone(self))
    }

    /// Counts a question about a session; `None` if the process has no session.
    fn count_question(self: &Arc<Siblings>) -> Option<SessionCount> {
        let more = |sessions| (sessions > 0).then_some(sessions + 1);
        let counted = self
            .sessions
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        counted.ok().map(|_| SessionCount(Arc::clone(self)))
    }

    /// Passes a datagram to its client's thread.
    pub(super) fn hand_over(self: &Arc<Siblings>, relayed: RelayedDatagram) {
        let counted = self.count_session();
        self.on_owner(relayed, move |worker, relayed| {
            worker.receive_relayed(relayed, counted);
        });
    }

    /// Runs a job with the datagram on its client's thread. Drops the datagram if that thread's
    /// queue is full.
    fn on_owner(
        &self,
        relayed: RelayedDatagram,
        job: impl FnOnce(&Rc<Worker>, RelayedDatagram) + Send + 'static,
    ) {
        let owner = relayed.datagram.peer.and_then(|client| self.owner(client));
        let Some(sibling) = owner.and_then(|owner| self.threads().get(owner)) else {
            return;
        };
        let weight = relayed.datagram.bytes.len() + OVERHEAD;
        let waiting = sibling.waiting.fetch_add(weight, Ordering::Relaxed);
        if waiting + weight > WAITING_MAX {
            sibling.waiting.fetch_sub(weight, Ordering::Relaxed);
            return;
        }
        sibling.remote.post(Box::new(move || {
            with_worker(|worker| {
                worker.note_taken(weight);
                job(worker, relayed);
            });
        }));
    }

    /// Records that a thread has taken a datagram of this weight from its queue.
    pub(super) fn note_taken(&self, thread: usize, weight: usize) {
        if let Some(sibling) = self.threads().get(thread) {
            sibling.waiting.fetch_sub(weight, Ordering::Relaxed);
        }
    }

    fn on_each(&self, job: impl Fn(&Rc<Worker>) + Clone + Send + 'static) {
        for sibling in self.threads() {
            let job = job.clone();
            sibling
                .remote
                .post(Box::new(move || with_worker(|worker| job(worker))));
        }
    }
}

// The relation of a process to its predecessors.
impl Siblings {
    /// Makes this process receive in place of the processes at the other ends of these channels.
    /// Must be called before a thread receives.
    pub(super) fn succeed(self: &Arc<Siblings>, channels: Vec<Arc<Channel>>) {
        let channels = self.predecessors.get_or_init(|| channels); // set once
        for channel in channels {
            channel.send_begun(); // a predecessor that has ended is skipped later
            let (siblings, channel) = (Arc::clone(self), Arc::clone(channel));
            let counted = self.count_session();
            let body = move || {
                let _counted = counted;
                let mut room = Vec::new();
                while let Some(message) = channel.receive(&mut room) {
                    if let SuccessionMessage::Unknown(relayed) = message {
                        siblings.hand_over(relayed);
                    }
                }
            };
            // If the thread cannot start, datagrams that the predecessor returns are lost.
            let _ = std::thread::Builder::new()
                .name("predecessor".to_owned())
                .spawn(body);
        }
    }

    /// Sends a datagram to the next predecessor, after the first `asked` ones: it passes the
    /// datagram to its session, or returns it. False if no further predecessor accepts the
    /// datagram.
    pub(super) fn ask<B: AsRef<[u8]>>(
        &self,
        listener: &ListenerId,
        datagram: &Datagram<B>,
        asked: usize,
    ) -> bool {
        let channels = self.predecessors.get().map_or(&[][..], Vec::as_slice);
        let mut left = channels.iter().enumerate().skip(asked);
        left.any(|(number, channel)| channel.send(RelayKind::Asked, listener, datagram, number + 1))
    }

    /// Records that one more thread will ask no predecessor any more. After the last thread, closes
    /// the channels for sending.
    pub(super) fn end_asking(&self) {
        let ended = self.threads_ended.fetch_add(1, Ordering::SeqCst) + 1;
        if ended == self.threads().len() {
            let channels = self.predecessors.get().into_iter().flatten();
            channels.for_each(|channel| channel.stop_sending());
        }
    }
}

// The relation of a process to its successors.
impl Siblings {
    fn successors(&self) -> MutexGuard<'_, Vec<Arc<Channel>>> {
        self.successors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another process receives for the sessions of this process, or is about to.
    pub(super) fn has_successor(&self) -> bool {
        !self.successors().is_empty()
    }

    /// Whether a successor may ask about sessions of this process.
    pub(super) fn answers_session_queries(&self) -> bool {
        self.sessions.load(Ordering::SeqCst) > 0 && self.has_successor()
    }

    /// Adds the process at the other end of the channel, which is about to take over.
    pub(super) fn add_successor(&self, channel: &Arc<Channel>) {
        self.successors().push(Arc::clone(channel));
        // A process that a signal has told to quit learns of its successor afterwards.
        if self.is_leaving.load(Ordering::SeqCst) && self.sessions.load(Ordering::SeqCst) == 0 {
            self.finish();
        }
    }

    /// Answers a successor's messages until the successor closes its end for sending.
    pub(super) fn answer_successor(self: &Arc<Siblings>, channel: &Arc<Channel>) {
        let mut room = Vec::new();
        while let Some(message) = channel.receive(&mut room) {
            match message {
                SuccessionMessage::Begun => self.follow(channel),
                SuccessionMessage::Asked(relayed) => self.answer(channel, relayed),
                SuccessionMessage::Unknown(_) => {}
            }
        }
        self.lose(channel);
        channel.drain();
    }

    /// Removes a successor that will send nothing more.
    pub(super) fn lose(&self, channel: &Arc<Channel>) {
        self.successors()
            .retain(|other| !Arc::ptr_eq(other, channel));
        let channel = Arc::clone(channel);
        self.on_each(move |worker| worker.lose_successor(&channel));
    }

    /// Tells every thread to begin no more sessions, which the successor may do from now on.
    /// Returns when all threads know, or after [`HEARD_WAIT`] without a further thread.
    fn follow(&self, channel: &Arc<Channel>) {
        let (heard, all) = mpsc::channel();
        let channel = Arc::clone(channel);
        self.on_each(move |worker| {
            worker.follow(&channel);
            let _ = heard.send(()); // fails if `follow` has stopped waiting
        });
        // The channel is closed when all jobs have run.
        while all.recv_timeout(HEARD_WAIT).is_ok() {}
    }

    fn answer(self: &Arc<Siblings>, channel: &Arc<Channel>, relayed: RelayedDatagram) {
        let Some(counted) = self.count_question() else {
            let RelayedDatagram {
                listener,
                datagram,
                asked,
            } = relayed;
            channel.send(RelayKind::Unknown, &listener, &datagram, asked);
            return;
        };
        let channel = Arc::clone(channel);
        self.on_owner(relayed, move |worker, relayed| {
            worker.answer(&channel, relayed);
            drop(counted);
        });
    }

    /// Lets the process end when its last session has ended.
    pub(super) fn leave(&self) {
        self.is_leaving.store(true, Ordering::SeqCst);
        if self.sessions.load(Ordering::SeqCst) == 0 {
            self.finish();
        }
    }

    /// Takes no more questions from successors, so that threads that waited for them may end.
    pub(super) fn finish(&self) {
        for channel in self.successors().iter() {
            channel.stop_receiving();
        }
        self.on_each(|worker| worker.end_if_idle());
    }
}
