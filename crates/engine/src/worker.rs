//! The state of one thread: its engine, the tables of streams and listeners, its timers and its
//! clock.
//!
//! All access goes through [`enter`], which borrows the thread's [`Reactor`] for the duration of a
//! closure. Foreign code never runs during the borrow: wakers to be called and sent segments to be
//! dropped are collected, and processed after the borrow has ended. So nothing in this crate is
//! borrowed twice, whatever a future, a waker or a destructor does.

use std::cell::RefCell;
use std::io;
use std::task::Waker;
use std::time::Duration;

use base::slab::{Key, Slab};
use base::wheel::TimerWheel;

use crate::clock::Clock;
use crate::engine::{Completion, Engine, OpKind, OperationOutcome, Outgoing};
use crate::memory::Memory;
use crate::net::Segment;
use crate::net::datagram_socket::DatagramsState;
use crate::net::listener::ListenerState;
use crate::net::table::StreamState;
use crate::pulse::Pulse;
use crate::remote::Remote;
use crate::settings::Settings;
use crate::sleep::Sleeper;

thread_local! {
    static WORKER: RefCell<Option<Box<Reactor>>> = const { RefCell::new(None) };
}

/// Maximum number of empty segment queues that are kept for reuse.
const SPARE_QUEUES_MAX: usize = 64;

/// When the runtime ends, the thread waits for its operations in at most this many rounds of this
/// length.
const END_ROUNDS_MAX: usize = 100;
const END_ROUND: Duration = Duration::from_millis(10);

pub(crate) struct Reactor {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) streams: Slab<StreamState>,
    pub(crate) listeners: Slab<ListenerState>,
    pub(crate) datagrams: Slab<DatagramsState>,
    /// The number of open sockets that this thread has connected, or is connecting.
    pub(crate) outgoing: usize,
    /// The records of started sleeps.
    pub(crate) sleepers: Slab<Sleeper>,
    pub(crate) timers: TimerWheel<Timer>,
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    /// The handle of this thread's runtime for other threads.
    pub(crate) remote: Remote,
    pub(crate) pulse: Pulse,
    /// Whether blocking jobs run inline on this thread, which makes a simulation repeatable.
    pub(crate) blocks_inline: bool,
    /// Streams that have sent a whole chunk of a file and continue in the next turn.
    pub(crate) next_turn: Vec<Key>,
    /// Streams whose queues are sent at the end of this turn.
    pub(crate) streams_to_flush: Vec<Key>,
    /// Datagram sockets whose queues are sent at the end of this turn.
    pub(crate) datagrams_to_flush: Vec<Key>,
    /// Listeners for which the engine accepts, and whose waiting task was woken or dropped since
    /// the last wait.
    pub(crate) unwatched_listeners: Vec<Key>,
    /// Wakers and segments to be processed after the borrow of the reactor.
    pub(crate) after: DeferredWork,
    /// Empty queues for streams that start to send.
    #[expect(
        clippy::vec_box,
        reason = "they move between here and the streams as boxes"
    )]
    pub(crate) spare_queues: Vec<Box<Outgoing>>,
    pub(crate) memory: Memory,
    /// Reused buffer for the timers that are due.
    due: Vec<Timer>,
}

/// The owner of a deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timer {
    Sleeper(Key),
    Stream(Key),
    /// The check for spare memory is due.
    Memory,
}

/// Work to be done after the borrow of the reactor.
#[derive(Default)]
pub(crate) struct DeferredWork {
    /// Wakers to be called.
    pub(crate) wakes: Vec<Waker>,
    /// Segments to be dropped.
    pub(crate) spent: Vec<Segment>,
}

impl DeferredWork {
    fn is_empty(&self) -> bool {
        self.wakes.is_empty() && self.spent.is_empty()
    }
}

/// Runs `f` with this thread's reactor, then calls the wakers and drops the segments that `f` has
/// collected.
///
/// # Panics
/// If the thread has no runtime: the functions of this crate may only be called inside
/// [`Runtime::block_on`](crate::Runtime::block_on).
pub(crate) fn enter<R>(f: impl FnOnce(&mut Reactor) -> R) -> R {
    match try_enter(f) {
        Some(result) => result,
        None => panic!("this thread has no tidegate runtime"),
    }
}

/// Like [`enter`], for destructors: `None` without a runtime, or when the thread is ending.
pub(crate) fn try_enter<R>(f: impl FnOnce(&mut Reactor) -> R) -> Option<R> {
    WORKER
        .try_with(|cell| {
            let mut slot = cell.borrow_mut();
            let worker = slot.as_mut()?;
            let result = f(worker);
            if worker.after.is_empty() {
                return Some(result);
            }
            let mut after = std::mem::take(&mut worker.after);
            drop(slot);
            after.wakes.drain(..).for_each(Waker::wake);
            after.spent.clear();
            // Keep the vectors for reuse, unless foreign code has filled new ones meanwhile.
            if let Some(worker) = cell.borrow_mut().as_mut()
                && worker.after.is_empty()
            {
                worker.after = after;
            }
            Some(result)
        })
        .ok()?
}

/// Installs `worker` on this thread. False if the thread has one already.
pub(crate) fn install(worker: Reactor) -> bool {
    WORKER.with_borrow_mut(|slot| {
        if slot.is_some() {
            return false;
        }
        *slot = Some(Box::new(worker));
        true
    })
}

/// Removes this thread's reactor and returns it.
pub(crate) fn uninstall() -> Option<Box<Reactor>> {
    WORKER.with_borrow_mut(Option::take)
}

impl Reactor {
    pub(crate) fn new(engine: Box<dyn Engine>, settings: Settings, remote: Remote) -> Reactor {
        let clock = Clock::new(engine.now());
        // A handle from an earlier runtime on this thread must not find an entry of this one.
        let generation = remote.number() << 16;
        Reactor {
            engine,
            streams: Slab::starting_at(generation),
            listeners: Slab::starting_at(generation),
            datagrams: Slab::starting_at(generation),
            outgoing: 0,
            sleepers: Slab::starting_at(generation),
            timers: TimerWheel::new(0),
            clock,
            settings,
            remote,
            pulse: Pulse::default(),
            blocks_inline: false,
            next_turn: Vec::new(),
            streams_to_flush: Vec::new(),
            datagrams_to_flush: Vec::new(),
            unwatched_listeners: Vec::new(),
            after: DeferredWork::default(),
            spare_queues: Vec::new(),
            memory: Memory::default(),
            due: Vec::new(),
        }
    }

    /// Lets the engine wait, reads the clock, and turns completions and due timers into wake-ups.
    ///
    /// If `busy`, tasks are ready already, so the engine only polls.
    pub(crate) fn turn(&mut self, busy: bool, completions: &mut Vec<Completion>) -> io::Result<()> {
        self.watch_memory();
        let timeout = if busy || !self.next_turn.is_empty() {
            Some(Duration::ZERO)
        } else {
            self.timers
                .next_deadline()
                .map(|deadline_ms| self.clock.until(deadline_ms))
        };
        self.pause_listeners();
        self.pulse.end_work();
        let waited = self.engine.wait(timeout, completions);
        self.pulse.begin_work();
        waited?;
        self.clock.read(self.engine.now());
        if !self.next_turn.is_empty() {
            for key in std::mem::take(&mut self.next_turn) {
                self.next_chunk(key);
            }
        }
        for completion in completions.drain(..) {
            self.complete(completion);
        }
        self.run_timers();
        Ok(())
    }

    /// Closes all sockets and waits, for a limited time, until the engine has completed all
    /// operations.
    pub(crate) fn end(&mut self, completions: &mut Vec<Completion>) {
        self.close_all();
        self.drop_all_datagrams();
        for _ in 0..END_ROUNDS_MAX {
            let all_closed =
                self.streams.is_empty() && self.datagrams.is_empty() && self.engine.is_settled();
            if all_closed || self.engine.wait(Some(END_ROUND), completions).is_err() {
                return;
            }
            for completion in completions.drain(..) {
                self.complete(completion);
            }
        }
    }

    /// Passes a completion to the stream, listener or datagram socket that it concerns.
    fn complete(&mut self, completion: Completion) {
        let Completion {
            token,
            outcome,
            more,
        } = completion;
        let key = token.key;
        match (token.kind, outcome) {
            (OpKind::Accept, OperationOutcome::Accepted(result)) => {
                self.accepted(key, result, more)
            }
            (OpKind::Connect, OperationOutcome::Connected(result)) => self.connected(key, result),
            (OpKind::Recv, OperationOutcome::Received(result)) => {
                self.received(key, Some(result), more)
            }
            (OpKind::Recv, OperationOutcome::Ready) => self.received(key, None, more),
            (
                OpKind::Send,
                OperationOutcome::Sent {
                    outgoing,
                    taken,
                    stop,
                },
            ) => {
                self.sent(key, outgoing, taken, stop);
                self.start_send(key);
            }
            (OpKind::Close, OperationOutcome::Closed) => self.closed(key),
            (OpKind::Readable | OpKind::RecvMsg, OperationOutcome::Ready) => {
                self.datagrams_readable(key)
            }
            (OpKind::SendMsg, OperationOutcome::Ready) => self.datagrams_writable(key),
            (kind, outcome) => debug_assert!(false, "{kind:?} completed with {outcome:?}"),
        }
    }

    /// Handles the timers that are due.
    fn run_timers(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        self.timers.advance(self.clock.now_ms(), &mut due);
        for timer in due.drain(..) {
            match timer {
                Timer::Sleeper(key) => {
                    if let Some(sleeper) = self.sleepers.get_mut(key) {
                        self.after.wakes.extend(sleeper.fire());
                    }
                }
                Timer::Stream(key) => self.stream_timer(key),
                Timer::Memory => self.give_memory_back(),
            }
        }
        self.due = due;
    }

    /// Takes back a queue that is no longer needed, and drops its remaining segments.
    pub(crate) fn recycle_queue(&mut self, mut queue: Box<Outgoing>) {
        queue.abandon();
        self.take_spent(&mut queue);
        queue.fit();
        if self.spare_queues.len() < SPARE_QUEUES_MAX {
            self.spare_queues.push(queue);
        }
    }

    /// Takes the sent segments of a queue, to be dropped later.
    pub(crate) fn take_spent(&mut self, queue: &mut Outgoing) {
        if self.after.spent.is_empty() {
            std::mem::swap(&mut self.after.spent, &mut queue.spent);
        } else {
            self.after.spent.append(&mut queue.spent);
        }
    }
}
