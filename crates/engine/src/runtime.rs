//! The event loop of a thread: poll ready tasks, run the turn-end hooks, let the engine wait,
//! repeat.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll};

use crate::choose::EngineKind;
use crate::clock::Clock;
use crate::engine::{Completion, Engine};
use crate::epoll::Epoll;
use crate::pulse::Pulse;
use crate::remote::{MAIN, Remote};
use crate::settings::Settings;
use crate::uring::Uring;
use crate::worker::{self, Reactor, enter};
use crate::xdp::Xdp;
use crate::{budget, buffer, memory, select, sim, task};

/// Maximum number of rounds in which ready tasks are polled before the engine is asked for
/// completions. Tasks that wake each other take several rounds.
const PASSES_MAX: usize = 8;

thread_local! {
    /// The hooks of [`on_turn_end`].
    static HOOKS: RefCell<Vec<Box<dyn FnMut()>>> = const { RefCell::new(Vec::new()) };
}

/// One thread's event loop. A thread has at most one at a time, and the loop stays on the thread
/// that created it.
pub struct Runtime {
    remote: Remote,
    completions: Vec<Completion>,
    /// Reused buffer for the indexes of the tasks that are polled in a round.
    batch: Vec<u32>,
    /// Reused buffer for the jobs that other threads have posted.
    jobs: Vec<Box<dyn FnOnce() + Send>>,
    /// Not `Send`: the state of the loop lies in this thread's storage.
    _local: std::marker::PhantomData<*const ()>,
}

impl Runtime {
    /// Creates a runtime over an engine of `kind` for this thread.
    ///
    /// # Errors
    /// If the kernel refuses the engine; `AlreadyExists` if the thread has a runtime.
    pub fn new(kind: EngineKind, settings: Settings) -> io::Result<Runtime> {
        buffer::set_size(settings.buffer_size);
        let engine: Box<dyn Engine> = match kind {
            EngineKind::Epoll => Box::new(Epoll::new()?),
            EngineKind::Uring => Box::new(Uring::new(settings.connections)?),
            EngineKind::Xdp => Box::new(Xdp::new()?),
            EngineKind::Sim => return sim::runtime(0, sim::Faults::default(), settings),
        };
        Runtime::over(engine, settings)
    }

    /// Creates a runtime over an engine that the caller supplies.
    ///
    /// # Errors
    /// `AlreadyExists` if the thread has a runtime.
    pub fn over(engine: Box<dyn Engine>, settings: Settings) -> io::Result<Runtime> {
        let remote = Remote::new(engine.notifier());
        if !worker::install(Reactor::new(engine, settings, remote.clone())) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        task::begin(&remote);
        select::begin();
        Ok(Runtime {
            remote,
            completions: Vec::new(),
            batch: Vec::new(),
            jobs: Vec::new(),
            _local: std::marker::PhantomData,
        })
    }

    /// Creates a runtime in simulated time, which begins at a fixed moment. Blocking jobs run
    /// inline, without threads.
    pub(crate) fn simulated(engine: Box<dyn Engine>, settings: Settings) -> io::Result<Runtime> {
        let runtime = Runtime::over(engine, settings)?;
        enter(|worker| {
            worker.blocks_inline = true;
            worker.clock.simulate();
        });
        Ok(runtime)
    }

    /// The heartbeat of this runtime's loop, for other threads to watch.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        enter(|worker| worker.pulse.clone())
    }

    /// The handle for reaching this runtime from other threads.
    #[must_use]
    pub fn remote(&self) -> Remote {
        self.remote.clone()
    }

    /// Runs `future` and all spawned tasks until `future` is ready. Other tasks remain, and
    /// continue with the next call.
    ///
    /// # Panics
    /// If `future` panics, or if the engine fails, from which there is no recovery.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        let waker = task::waker(MAIN);
        let mut context = Context::from_waker(&waker);
        task::wake(MAIN);
        loop {
            for _ in 0..PASSES_MAX {
                let main = task::take_main();
                budget::begin();
                if main && let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    return output;
                }
                if !task::poll_ready(&mut self.batch) && !main {
                    break;
                }
            }
            self.turn();
        }
    }

    /// Ends a turn: sends queued data, runs the hooks, waits, and handles wake-ups and jobs from
    /// other threads.
    fn turn(&mut self) {
        enter(|worker| {
            worker.flush_streams();
            worker.flush_datagrams();
        });
        run_hooks();
        let busy = task::any_ready();
        let completions = &mut self.completions;
        if let Err(error) = enter(|worker| worker.turn(busy, completions)) {
            panic!("the engine failed: {error}");
        }
        task::resume_yielded();
        self.remote.take(&mut self.jobs, task::wake);
        for job in self.jobs.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        task::end();
        HOOKS.with_borrow_mut(Vec::clear);
        self.remote.close();
        enter(|worker| worker.end(&mut self.completions));
        drop(worker::uninstall());
        Clock::stop();
    }
}

/// The handle for reaching the current thread's runtime from other threads.
///
/// # Panics
/// If the thread has no runtime.
#[must_use]
pub fn remote() -> Remote {
    enter(|worker| worker.remote.clone())
}

/// Whether this thread has a runtime, so that tasks can be spawned.
#[must_use]
pub fn has_runtime() -> bool {
    worker::try_enter(|_| ()).is_some()
}

/// Registers `hook` to run once per turn of this thread's loop, before the wait: for work that is
/// better done in batches.
///
/// A panic in `hook` is reported to the panic hook; `hook` runs again in the next turn.
pub fn on_turn_end(hook: impl FnMut() + 'static) {
    HOOKS.with_borrow_mut(|hooks| hooks.push(Box::new(hook)));
}

fn run_hooks() {
    memory::rest();
    let mut hooks = HOOKS.take();
    if hooks.is_empty() {
        return;
    }
    for hook in &mut hooks {
        let _ = catch_unwind(AssertUnwindSafe(hook));
    }
    HOOKS.with_borrow_mut(|added| {
        hooks.append(added);
        *added = hooks;
    });
}
