//! What the threads of a process have in common about datagrams: which thread a client belongs to,
//! and the processes before and after this one ([`succession`](super::succession)).
//!
//! All that a client sends is of one thread, that of [`steering::socket_of`], which has its
//! session. The kernel is told so; what comes to another thread all the same is handed on.

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

/// Bytes of datagrams that may wait for a thread which they did not come to; more are dropped, as a
/// full queue anywhere on their way would drop them.
const WAITING_MAX: usize = 1 << 20;

/// What a datagram that waits counts beside its bytes.
const OVERHEAD: usize = 256;

/// How long a thread may take to hear of a successor before the others are not kept waiting.
const HEARD_WAIT: Duration = Duration::from_secs(1);

/// The threads of a process, and the processes before and after it.
#[derive(Default)]
pub(super) struct Siblings {
    /// Set once all have started.
    threads: OnceLock<Vec<Sibling>>,
    /// Sessions of datagrams of all threads, and what may lead to some or is a question about them:
    /// threads that receive, predecessors that may answer, datagrams under way. Once it is leaving,
    /// the process may end when there are none.
    sessions: AtomicUsize,
    is_leaving: AtomicBool,
    /// Threads that have received all that they will.
    threads_ended: AtomicUsize,
    /// Set before the first thread receives.
    predecessors: OnceLock<Vec<Arc<Channel>>>,
    /// Those that have been told of and have not gone; the last has begun or is about to.
    successors: Mutex<Vec<Arc<Channel>>>,
}

struct Sibling {
    remote: Remote,
    /// What waits for it, at most [`WAITING_MAX`].
    waiting: AtomicUsize,
}

/// What the process does not end for ([`Siblings::sessions`]), until it is dropped.
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
    /// The threads, in order; they have just been started.
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

    /// Which thread a client belongs to; `None` while they are being started.
    pub(super) fn owner(&self, client: SocketAddr) -> Option<usize> {
        let threads = self.threads().len() as u32;
        (threads > 0).then(|| steering::socket_of(client, threads) as usize)
    }

    /// Counts a session that begins, or what may lead to one.
    pub(super) fn count_session(self: &Arc<Siblings>) -> SessionCount {
        self.sessions.fetch_add(1, Ordering::SeqCst);
        SessionCount(Arc::clone(self))
    }

    /// Counts a question about a session; `None` where there is none that it could be about.
    fn count_question(self: &Arc<Siblings>) -> Option<SessionCount> {
        let more = |sessions| (sessions > 0).then_some(sessions + 1);
        let counted = self
            .sessions
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        counted.ok().map(|_| SessionCount(Arc::clone(self)))
    }

    /// Hands a datagram to the thread that its client belongs to.
    pub(super) fn hand_over(self: &Arc<Siblings>, relayed: RelayedDatagram) {
        let counted = self.count_session();
        self.on_owner(relayed, move |worker, relayed| {
            worker.receive_relayed(relayed, counted);
        });
    }

    /// Has the thread that a datagram's client belongs to do something with it, unless too much
    /// waits for that thread.
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

    /// What waited for a thread has been taken.
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

// What a process has to do with those before it.
impl Siblings {
    /// This process receives in the place of others, to which these channels lead. Comes before
    /// anything is received.
    pub(super) fn succeed(self: &Arc<Siblings>, channels: Vec<Arc<Channel>>) {
        let channels = self.predecessors.get_or_init(|| channels); // a process has them once
        for channel in channels {
            channel.send_begun(); // one that has gone is not asked either
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
            // Without it clients are asked about in vain, which a shortage of threads may cost.
            let _ = std::thread::Builder::new()
                .name("predecessor".to_owned())
                .spawn(body);
        }
    }

    /// Asks the next predecessor whose session a datagram is of, beyond those that have been asked.
    /// Whether there was one: it answers, or has taken the datagram.
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

    /// One thread more asks nothing any more.
    pub(super) fn end_asking(&self) {
        let ended = self.threads_ended.fetch_add(1, Ordering::SeqCst) + 1;
        if ended == self.threads().len() {
            let channels = self.predecessors.get().into_iter().flatten();
            channels.for_each(|channel| channel.stop_sending());
        }
    }
}

// What a process has to do with the one after it.
impl Siblings {
    fn successors(&self) -> MutexGuard<'_, Vec<Arc<Channel>>> {
        self.successors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another process receives for the sessions of this one, or is about to.
    pub(super) fn has_successor(&self) -> bool {
        !self.successors().is_empty()
    }

    /// Whether others may ask about sessions of this process.
    pub(super) fn answers_session_queries(&self) -> bool {
        self.sessions.load(Ordering::SeqCst) > 0 && self.has_successor()
    }

    /// Another process, to which the channel leads, is about to take the place of this one.
    pub(super) fn add_successor(&self, channel: &Arc<Channel>) {
        self.successors().push(Arc::clone(channel));
        // A process that was told to quit by itself hears of its successor afterwards.
        if self.is_leaving.load(Ordering::SeqCst) && self.sessions.load(Ordering::SeqCst) == 0 {
            self.finish();
        }
    }

    /// Answers a successor until that has nothing more to say.
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

    /// A process that was to follow, or has, has nothing more to say.
    pub(super) fn lose(&self, channel: &Arc<Channel>) {
        self.successors()
            .retain(|other| !Arc::ptr_eq(other, channel));
        let channel = Arc::clone(channel);
        self.on_each(move |worker| worker.lose_successor(&channel));
    }

    /// Every thread begins no more sessions when it returns, unless one is busy for long: from now
    /// on the successor may begin those.
    fn follow(&self, channel: &Arc<Channel>) {
        let (heard, all) = mpsc::channel();
        let channel = Arc::clone(channel);
        self.on_each(move |worker| {
            worker.follow(&channel);
            let _ = heard.send(()); // none waits any more if it took long
        });
        // The end of the jobs is the end of the channel.
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

    /// The process ends when its last session has.
    pub(super) fn leave(&self) {
        self.is_leaving.store(true, Ordering::SeqCst);
        if self.sessions.load(Ordering::SeqCst) == 0 {
            self.finish();
        }
    }

    /// Nobody asks any more, and threads that were waiting for that may end.
    pub(super) fn finish(&self) {
        for channel in self.successors().iter() {
            channel.stop_receiving();
        }
        self.on_each(|worker| worker.end_if_idle());
    }
}
