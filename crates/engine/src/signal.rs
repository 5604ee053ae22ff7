//! A wake-up flag for a task that any thread may set repeatedly; the task is woken once.
//!
//! Setting a signal that is already set is one atomic operation. Otherwise it takes a lock for a
//! few instructions, and at most one system call for all signals to one thread within a turn of its
//! loop. Nothing is allocated. Queues, shared limits and cache locks use signals to tell another
//! thread that its turn has come.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use crate::remote::lock;

/// A signal for one task. Clones share the signal.
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<SignalState>);

#[derive(Debug, Default)]
struct SignalState {
    /// Set, and not yet consumed by a wait.
    set: AtomicBool,
    waiting: Mutex<Option<Waker>>,
}

impl Signal {
    /// A signal that is not set.
    #[must_use]
    pub fn new() -> Signal {
        Signal::default()
    }

    /// Sets the signal: the waiting task is woken, or the next wait returns at once. Setting it
    /// repeatedly before that has the same effect as once.
    pub fn set(&self) {
        if self.0.set.swap(true, Ordering::AcqRel) {
            return;
        }
        let waiting = lock(&self.0.waiting).take();
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until the signal is set, and clears it. Everything that a thread did before setting
    /// the signal is then visible here. Only one task can wait at a time: a second one replaces the
    /// first. Cancel-safe.
    pub async fn wait(&self) {
        poll_fn(|context| {
            let mut waiting = lock(&self.0.waiting);
            if self.0.set.swap(false, Ordering::AcqRel) {
                *waiting = None;
                return Poll::Ready(());
            }
            // A later `set` finds the waker, because both take the lock.
            *waiting = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineKind, Runtime, Settings, on_turn_end, sleep, spawn, yield_now};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    #[test]
    fn it_is_heard_once_however_often_it_is_set() {
        let mut runtime = Runtime::new(EngineKind::Epoll, Settings::default()).unwrap();
        runtime.block_on(async {
            let signal = Signal::new();
            let heard = Rc::new(Cell::new(0));
            let (waiting, counter) = (signal.clone(), Rc::clone(&heard));
            spawn(async move {
                loop {
                    waiting.wait().await;
                    counter.set(counter.get() + 1);
                }
            });
            yield_now().await;
            assert_eq!(heard.get(), 0);
            for round in 1..=3 {
                (0..5).for_each(|_| signal.set());
                yield_now().await;
                yield_now().await;
                assert_eq!(heard.get(), round);
            }
        });
    }

    /// A million signals from another thread to a hundred tasks: neither thread allocates, the
    /// receiving thread is notified at most once a turn, and each task sees the last value stored
    /// for it.
    #[test]
    fn many_signals_allocate_nothing_and_tell_once_a_turn() {
        const TASKS: usize = 100;
        const SIGNALS: usize = 1_000_000;
        struct Place {
            signal: Signal,
            told: AtomicU64,
            heard: AtomicU64,
        }
        let mut runtime = Runtime::new(EngineKind::Epoll, Settings::default()).unwrap();
        let notifier = crate::worker::enter(|worker| worker.engine.notifier());
        let places: Arc<[Place]> = (0..TASKS)
            .map(|_| Place {
                signal: Signal::new(),
                told: AtomicU64::new(0),
                heard: AtomicU64::new(0),
            })
            .collect();
        for index in 0..TASKS {
            let places = Arc::clone(&places);
            spawn(async move {
                loop {
                    let place = &places[index];
                    place.signal.wait().await;
                    let told = place.told.load(Ordering::Relaxed);
                    place.heard.store(told, Ordering::Relaxed);
                }
            });
        }
        let turns = Rc::new(Cell::new(0));
        let counter = Rc::clone(&turns);
        on_turn_end(move || counter.set(counter.get() + 1));
        // The tasks wait, and what a runtime needs to turn has been allocated.
        runtime.block_on(sleep(Duration::from_millis(1)));
        assert_eq!(notifier.count(), 0, "nobody has told anything yet");
        turns.set(0);

        let (done, told) = (Signal::new(), Arc::clone(&places));
        let last = done.clone();
        let (begin, began) = std::sync::mpsc::channel();
        let telling = std::thread::spawn(move || {
            began.recv().unwrap();
            let counted = allocation_counter::measure(|| {
                for number in 0..SIGNALS {
                    let place = &told[number % TASKS];
                    place.told.fetch_add(1, Ordering::Relaxed);
                    place.signal.set();
                }
                last.set();
            });
            counted.count_total
        });
        begin.send(()).unwrap();
        let counted = allocation_counter::measure(|| runtime.block_on(done.wait()));
        assert_eq!(counted.count_total, 0, "by the thread that is told");
        assert_eq!(telling.join().unwrap(), 0, "by the thread that tells");
        let (notified, turns) = (notifier.count(), turns.get());
        assert!(
            (1..=turns + 1).contains(&notified),
            "{notified} in {turns} turns"
        );
        runtime.block_on(sleep(Duration::from_millis(1)));
        for place in &*places {
            let heard = place.heard.load(Ordering::Relaxed);
            assert_eq!(heard, (SIGNALS / TASKS) as u64);
        }
    }
}
