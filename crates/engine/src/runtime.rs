//! The loop of a thread: poll what is ready, run the turn's end, let the engine wait, again.

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

/// How often tasks that wake each other are polled before the kernel is asked again.
const PASSES_MAX: usize = 8;

thread_local! {
    static HOOKS: RefCell<Vec<Box<dyn FnMut()>>> = const { RefCell::new(Vec::new()) };
}

/// One thread's event loop. There is at most one on a thread at a time; it stays on the thread that
/// made it.
pub struct Runtime {
    remote: Remote,
    completions: Vec<Completion>,
    batch: Vec<u32>,
    /// Room for what other threads have posted.
    jobs: Vec<Box<dyn FnOnce() + Send>>,
    /// Not `Send`: everything it drives lies in this thread's storage.
    _local: std::marker::PhantomData<*const ()>,
}

impl Runtime {
    /// A runtime over the engine `kind` for this thread.
    ///
    /// # Errors
    /// When the kernel refuses the engine, and `AlreadyExists` when the thread has a runtime.
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

    /// A runtime over an engine of the caller's making.
    ///
    /// # Errors
    /// `AlreadyExists` when the thread has a runtime.
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

    /// A runtime in simulated time, which begins at a fixed moment, and without threads for jobs
    /// that block.
    pub(crate) fn simulated(engine: Box<dyn Engine>, settings: Settings) -> io::Result<Runtime> {
        let runtime = Runtime::over(engine, settings)?;
        enter(|worker| {
            worker.blocks_inline = true;
            worker.clock.simulate();
        });
        Ok(runtime)
    }

    /// Whether this runtime's loop turns, for other threads to see.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        enter(|worker| worker.pulse.clone())
    }

    /// The handle by which other threads reach this runtime.
    #[must_use]
    pub fn remote(&self) -> Remote {
        self.remote.clone()
    }

    /// Drives `future` and everything that was spawned until `future` is ready. Other tasks stay,
    /// and go on with the next call.
    ///
    /// # Panics
    /// When `future` panics, and when the engine fails, which nothing can be done about.
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

    /// Ends a turn: what leaves with it, the hooks, the wait, what came from other threads.
    fn turn(&mut self) {
        enter(|worker| {
            worker.send_what_leaves_soon();
            worker.send_datagrams_that_leave_soon();
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

/// The current thread's runtime, as other threads may use it.
///
/// # Panics
/// When the thread has no runtime.
#[must_use]
pub fn remote() -> Remote {
    enter(|worker| worker.remote.clone())
}

/// Whether this thread has a runtime: then tasks can be spawned.
#[must_use]
pub fn has_runtime() -> bool {
    worker::try_enter(|_| ()).is_some()
}

/// Has `hook` run once a turn of this thread's loop, before it waits: for what is better done in
/// batches.
///
/// A panic in it is told to the panic hook; it runs again the next turn.
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
