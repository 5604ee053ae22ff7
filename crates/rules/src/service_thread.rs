//! A thread with an event loop for a service, which ends when the service is no longer needed.

use std::fmt::Arguments;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use engine::select::either;
use engine::{EngineKind, Runtime};
use framework::counters::Counters;
use framework::flag::Flag;
use framework::generation::Generation;
use framework::report::ThreadReport;
use framework::service::RunningService;
use framework::workers::Worker;
use logs::{Errno, Level, event};

/// Starts a thread with this name, which runs `work` until the returned service is dropped.
/// `purpose` says in log lines what the thread is for. `None` if the thread could not be started.
pub fn start<F: Future<Output = ()>>(
    name: &str,
    purpose: &'static str,
    work: impl FnOnce() -> F + Send + 'static,
) -> Option<RunningService> {
    let ending = Flag::default();
    let told = ending.clone();
    let body = move || {
        let runtime = Runtime::new(EngineKind::Epoll, engine::Settings::default());
        let Ok(mut runtime) = runtime else {
            return event!(Alert, "no event loop for {purpose}");
        };
        runtime.block_on(async { either(work(), told.wait()).await });
    };
    match std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
    {
        Ok(_) => Some(Box::new(StopOnDrop(ending))),
        Err(error) => {
            let error = Errno(&error);
            event!(Alert, "no thread for {purpose} {error}");
            None
        }
    }
}

/// Makes the worker of a thread that serves no clients. The worker keeps one generation as long as
/// it lives. The runtime of the thread must exist.
pub fn worker(generation: Arc<Generation>) -> Rc<Worker> {
    // Separate counters, because those of the other workers count clients.
    let counters = Arc::new(Counters::default());
    Worker::start(
        generation,
        usize::MAX,
        counters,
        Vec::new(),
        &WithoutClients,
    )
}

/// The report of a thread without clients, which never changes its generation.
#[derive(Debug)]
struct WithoutClients;

impl ThreadReport for WithoutClients {
    fn line(&self, level: Level, message: Arguments<'_>) {
        logs::process_error(level, message);
    }

    fn thread_begins(&self) {}

    fn serves_by(&self, _: &Generation) {}

    fn thread_ends(&self) {}
}

/// Tells the thread to end when dropped.
struct StopOnDrop(Flag);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.raise();
    }
}
