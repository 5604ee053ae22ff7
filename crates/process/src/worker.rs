//! The worker's side of the channel to the master: changes the user, receives bundles, drives the
//! [`WorkerProcess`], and ends.
//!
//! The main thread of a worker process only runs a `Session`. Clients are served by threads of the
//! `WorkerProcess`. With `master_process off` the same session runs on a thread of the master. A
//! worker whose master has ended ends gracefully.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

use crate::application::{Application, ErrorLogDestination, LogTarget, WorkerProcess};
use crate::bundle::{self, Bundle, Contents, ProcessSettings};
use crate::confinement::{self, Enforcement};
use crate::control::{Command, WorkerEnd, WorkerReport};
use crate::descriptors::log_targets;
use crate::identity;
use crate::log::{Level, Log};
use crate::signals::{self, Signals};
use crate::{state, title};

/// Whether a master has started this process as a worker: its only argument is the title of a
/// worker. Its standard input is the control channel then.
pub fn is_worker() -> bool {
    std::env::args_os().eq([title::title(title::program_name(), title::WORKER)])
}

/// Runs a worker process to its end.
pub fn worker_main(application: &dyn Application) -> ExitCode {
    title::set_name();
    signals::end_by_faults();
    let (signals, socket) = match Signals::block(signals::WORKER).and_then(|s| Ok((s, channel()?)))
    {
        Ok(both) => both,
        Err(error) => {
            crate::log::print(&format!("[alert] worker process cannot start: {error}"));
            return ExitCode::from(2);
        }
    };
    Session::new(application, WorkerEnd::new(socket), Some(signals)).run()
}

/// Runs a worker on this thread, until it has ended.
pub(crate) fn run_in_thread(application: &dyn Application, socket: OwnedFd) {
    Session::new(application, WorkerEnd::new(socket), None).run();
}

/// Takes the control channel from the standard input, which becomes `/dev/null`.
fn channel() -> io::Result<OwnedFd> {
    let stdin = io::stdin();
    let socket = stdin.as_fd().try_clone_to_owned()?;
    let null = OpenOptions::new().read(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(socket)
}

/// Tells the session, from any thread, that requests have ended.
#[derive(Clone, Debug)]
pub struct Events(Arc<SessionEvents>);

#[derive(Debug)]
struct SessionEvents {
    /// Replaced generations whose last request has ended, and whether the last request of the
    /// worker has.
    ended: Mutex<(Vec<u64>, bool)>,
    wake: OwnedFd,
}

impl Events {
    fn new() -> io::Result<Events> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Events(Arc::new(SessionEvents {
            ended: Mutex::default(),
            wake,
        })))
    }

    /// Reports that the last request of a replaced generation has ended.
    pub fn generation_finished(&self, generation: u64) {
        self.change(|(generations, _)| generations.push(generation));
    }

    /// Reports, after [`WorkerProcess::quit`], that the last request has ended and the logs are
    /// written.
    pub fn drained(&self) {
        self.change(|(_, all)| *all = true);
    }

    fn change(&self, change: impl FnOnce(&mut (Vec<u64>, bool))) {
        change(&mut self.0.ended.lock().unwrap_or_else(PoisonError::into_inner));
        // Only a full counter refuses a write, and a full counter is readable anyway.
        let _ = rustix::io::write(&self.0.wake, &1_u64.to_ne_bytes());
    }

    fn take(&self) -> (Vec<u64>, bool) {
        let _ = rustix::io::read(&self.0.wake, &mut [0_u8; 8]);
        let mut ended = self.0.ended.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut ended.0), ended.1)
    }
}

/// How a session ends.
enum SessionEnd {
    /// The worker was told to end, and has written its logs.
    Normal,
    /// The first bundle could not be compiled.
    Failed,
    /// The process failed to set itself up: to assume its identity, for instance.
    Fatal,
}

/// How a session ends that completes its requests. A session may be told a later mode after an
/// earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StopMode {
    /// Idle connections may be served once more.
    Draining,
    Quitting,
}

/// One worker, from the first bundle to the end.
struct Session<'a> {
    application: &'a dyn Application,
    control: WorkerEnd,
    /// `None` on a thread of the master, which reads the signals of the process itself.
    signals: Option<Signals>,
    events: Option<Events>,
    worker: Option<Box<dyn WorkerProcess>>,
    /// The log of the prepared generation, until it is committed or abandoned.
    prepared_log: Option<SessionLog>,
    log: SessionLog,
    /// The file into which the previous worker writes its state, until the first bundle arrives.
    state: Option<OwnedFd>,
    /// The channels to the workers from which this worker takes over, until the first bundle
    /// arrives.
    predecessors: Vec<OwnedFd>,
    /// The enforced confinement of this process; `None` on a thread of the master.
    confined: Option<Enforcement>,
    /// The generation in force.
    committed: u64,
    /// Whether the master has closed the channel, which would be readable all the time.
    master_gone: bool,
    /// How the session ends; `None` until it is told to end.
    stopping: Option<StopMode>,
}

impl<'a> Session<'a> {
    fn new(
        application: &'a dyn Application,
        control: WorkerEnd,
        signals: Option<Signals>,
    ) -> Session<'a> {
        Session {
            application,
            control,
            signals,
            events: None,
            worker: None,
            prepared_log: None,
            log: SessionLog::default(),
            state: None,
            predecessors: Vec::new(),
            confined: None,
            committed: 0,
            master_gone: false,
            stopping: None,
        }
    }

    fn run(mut self) -> ExitCode {
        let end = loop {
            if let Err(error) = self.wait() {
                self.log
                    .write(Level::Alert, format_args!("poll() failed: {error}"));
                break SessionEnd::Fatal;
            }
            if let Some(end) = self.turn() {
                break end;
            }
        };
        match end {
            SessionEnd::Normal => ExitCode::SUCCESS,
            SessionEnd::Failed => ExitCode::FAILURE,
            SessionEnd::Fatal => ExitCode::from(2),
        }
    }

    /// Waits for a command, a signal or an event.
    fn wait(&self) -> Result<(), Errno> {
        let mut polled = Vec::with_capacity(3);
        if !self.master_gone {
            polled.push(PollFd::new(&self.control, PollFlags::IN));
        }
        if let Some(signals) = &self.signals {
            polled.push(PollFd::new(signals, PollFlags::IN));
        }
        if let Some(events) = &self.events {
            polled.push(PollFd::new(&events.0.wake, PollFlags::IN));
        }
        match rustix::event::poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Handles signals, events and a command. Returns how the session ends, if it does.
    fn turn(&mut self) -> Option<SessionEnd> {
        while let Some(signal) = self.signals.as_ref().and_then(Signals::next) {
            if let Some(end) = self.signal(&signal) {
                return Some(end);
            }
        }
        if let Some((generations, all)) = self.events.as_ref().map(Events::take) {
            // The end of the generation in force is not reported: the end of the process has a log
            // line of its own.
            for generation in generations
                .into_iter()
                .filter(|ended| *ended != self.committed)
            {
                self.control.send(&WorkerReport::Finished { generation });
            }
            if all && self.stopping.is_some() {
                return Some(self.exit());
            }
        }
        if !self.master_gone && is_readable(&self.control) {
            match self.control.receive() {
                Ok(None) => {}
                Ok(Some(command)) => return self.command(command),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.master_gone = true;
                    self.log.write(Level::Notice, "the master process is gone");
                    return self.quit();
                }
            }
        }
        None
    }

    fn signal(&mut self, signal: &signals::ReceivedSignal) -> Option<SessionEnd> {
        let action = match signal.number {
            libc::SIGTERM | libc::SIGINT => ", exiting",
            libc::SIGQUIT => ", shutting down",
            libc::SIGUSR1 => ", reopening logs",
            _ => ", ignoring",
        };
        self.log.write(Level::Notice, signal.describe(action));
        match signal.number {
            libc::SIGTERM | libc::SIGINT => Some(self.terminate()),
            libc::SIGQUIT => {
                if self.stopping.is_none() {
                    // The master must start another worker now: the requests of this worker may
                    // take hours.
                    self.control.send(&WorkerReport::Leaving);
                }
                self.quit()
            }
            libc::SIGUSR1 => {
                self.control.send(&WorkerReport::WantsLogs);
                None
            }
            _ => None,
        }
    }

    fn command(&mut self, command: Command<OwnedFd>) -> Option<SessionEnd> {
        match command {
            Command::Prepare {
                generation,
                bundle,
                descriptors,
            } => {
                return self.prepare(generation, bundle, descriptors);
            }
            Command::Commit { generation } => {
                // A worker that is ending ignores the commit, by which it would listen again: its
                // replacement serves with that generation.
                if self.stopping.is_none()
                    && let (Some(worker), Some(log)) = (&mut self.worker, self.prepared_log.take())
                {
                    self.committed = generation;
                    worker.commit();
                    self.control.send(&WorkerReport::Committed { generation });
                    self.log = log;
                    self.log.redirect_stderr(self.signals.is_some());
                }
            }
            Command::Abandon { .. } => self.abandon(),
            Command::Reopen { keys, descriptors } => self.reopen(keys, descriptors),
            Command::Devices { keys, descriptors } => self.take_devices(keys, descriptors),
            Command::Save { state } => self.save(state),
            Command::GoOn { state } => self.state = Some(state),
            Command::Predecessor { channel } => self.predecessors.push(channel),
            Command::Successor { channel } => {
                if let Some(worker) = &mut self.worker {
                    worker.prepare_succession(channel);
                }
            }
            Command::ReloadFailed => {
                if let Some(worker) = &mut self.worker {
                    worker.reload_failed();
                }
            }
            Command::Incomplete { generation } => {
                let text = "recvmsg() failed (24: Too many open files)".to_owned();
                self.control
                    .send(&WorkerReport::Failed { generation, text });
                return self.worker.is_none().then_some(SessionEnd::Failed);
            }
            Command::Quit => return self.quit(),
            Command::Drain => return self.stop(StopMode::Draining, |worker| worker.drain()),
            Command::Terminate => return Some(self.terminate()),
        }
        None
    }

    fn prepare(&mut self, generation: u64, text: OwnedFd, fds: Vec<OwnedFd>) -> Option<SessionEnd> {
        if self.stopping.is_some() {
            // The master knows that this worker is ending, or is about to read the report of that,
            // and lets another worker prepare the bundle.
            return None;
        }
        let first = self.worker.is_none();
        let outcome = self.try_prepare(generation, text, fds);
        let (report, end) = match outcome {
            Ok(()) => (WorkerReport::Prepared { generation }, None),
            Err((text, end)) => (
                WorkerReport::Failed { generation, text },
                first.then_some(end),
            ),
        };
        self.control.send(&report);
        end
    }

    fn try_prepare(
        &mut self,
        generation: u64,
        text: OwnedFd,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), (String, SessionEnd)> {
        let bad_bundle = |error: bundle::BundleError| (error.to_string(), SessionEnd::Failed);
        let bytes = bundle::unseal(text).map_err(bad_bundle)?;
        let contents = Contents::decode(&bytes).map_err(bad_bundle)?;
        drop(bytes);
        let descriptors = bundle::keyed(contents.keys, descriptors).map_err(bad_bundle)?;
        let mut log = SessionLog::new(contents.process.error_logs.clone());
        log.follow(&descriptors);

        let is_first = self.worker.is_none();
        if is_first {
            // The process is confined before it reads anything that a peer may have sent.
            if self.signals.is_some() {
                let confined = become_worker(&contents.process, &log);
                self.confined = Some(confined.map_err(|error| (error, SessionEnd::Fatal))?);
            }
            let events = Events::new().map_err(|error| {
                (
                    crate::log::failure("eventfd() failed", &error),
                    SessionEnd::Fatal,
                )
            })?;
            let mut worker = self.application.worker(events.clone());
            match self.state.take().map(state::read) {
                None => {}
                Some(Ok(bytes)) => worker.go_on(bytes),
                Some(Err(text)) => log.write(
                    Level::Warn,
                    format_args!("zones begin empty, their state was not handed over: {text}"),
                ),
            }
            worker.succeed(std::mem::take(&mut self.predecessors));
            self.worker = Some(worker);
            self.events = Some(events);
        }
        let Some(worker) = &mut self.worker else {
            return Ok(());
        };
        if self.prepared_log.take().is_some() {
            worker.abandon();
        }
        let bundle = Bundle {
            generation,
            options: contents.options,
            files: conf::RecordedFiles::new(contents.recording),
            descriptors,
        };
        worker
            .prepare(bundle)
            .map_err(|text| (text, SessionEnd::Failed))?;
        if let Some(confined) = self.confined.as_ref().filter(|_| is_first) {
            let closed = confined.close_rings(worker.uses_io_uring());
            closed.map_err(|error| (error, SessionEnd::Fatal))?;
        }
        self.prepared_log = Some(log);
        Ok(())
    }

    fn reopen(&mut self, keys: OwnedFd, descriptors: Vec<OwnedFd>) {
        let logs = bundle::unseal(keys)
            .and_then(|bytes| bundle::decode_keys(&bytes))
            .and_then(|keys| bundle::keyed(keys, descriptors));
        match (logs, &mut self.worker) {
            (Ok(logs), Some(worker)) => {
                self.log.follow(&logs);
                self.log.redirect_stderr(self.signals.is_some());
                self.log.write(Level::Notice, "reopening logs");
                worker.reopened(logs);
            }
            (Err(error), _) => self.log.write(Level::Alert, error),
            (Ok(_), None) => {}
        }
    }

    /// Writes the state for the next worker, which waits for it, but not long.
    fn save(&mut self, file: OwnedFd) {
        let bytes = self.worker.as_mut().map(|worker| worker.save());
        if let Err(error) = state::write(file, &bytes.unwrap_or_default()) {
            let text = crate::log::failure("the state of zones could not be handed over", &error);
            self.log.write(Level::Warn, text);
        }
    }

    fn take_devices(&mut self, keys: OwnedFd, descriptors: Vec<OwnedFd>) {
        let Some(worker) = &mut self.worker else {
            return;
        };
        let devices = bundle::unseal(keys)
            .and_then(|bytes| bundle::decode_keys(&bytes))
            .and_then(|keys| bundle::keyed(keys, descriptors))
            .map_err(|error| error.to_string());
        match devices.and_then(|devices| worker.devices(devices)) {
            Ok(()) => self.control.send(&WorkerReport::HasDevices),
            Err(text) => {
                for line in text.lines() {
                    self.log.write(Level::Error, line);
                }
            }
        }
    }

    fn abandon(&mut self) {
        if let (Some(worker), Some(_)) = (&mut self.worker, self.prepared_log.take()) {
            worker.abandon();
        }
    }

    fn quit(&mut self) -> Option<SessionEnd> {
        self.stop(StopMode::Quitting, |worker| worker.quit())
    }

    /// Ends gracefully, by `how`. A worker that is draining may still be told to quit.
    fn stop(&mut self, stopping: StopMode, how: fn(&mut dyn WorkerProcess)) -> Option<SessionEnd> {
        if self.stopping >= Some(stopping) {
            return None;
        }
        if self.stopping.replace(stopping).is_none() {
            self.log.write(Level::Notice, "gracefully shutting down");
        }
        // The prepared generation will not be committed, and holds every listener open.
        self.abandon();
        match &mut self.worker {
            Some(worker) => {
                how(&mut **worker);
                None
            }
            None => Some(self.exit()),
        }
    }

    fn terminate(&mut self) -> SessionEnd {
        if let Some(worker) = &mut self.worker {
            worker.terminate();
        }
        self.exit()
    }

    fn exit(&mut self) -> SessionEnd {
        self.log.write(Level::Notice, "exiting");
        self.worker = None;
        self.log.write(Level::Notice, "exit");
        SessionEnd::Normal
    }
}

/// Sets the limits, the user and the confinement of this worker process.
fn become_worker(settings: &ProcessSettings, log: &SessionLog) -> Result<Enforcement, String> {
    let failures = [
        identity::set_priority(settings.priority),
        identity::raise_open_files(settings.open_files_max),
        identity::limit_core(settings.core_size_max),
    ];
    for text in failures.into_iter().filter_map(Result::err) {
        log.write(Level::Alert, text);
    }
    let identity = settings.identity.as_ref();
    let become_user = || {
        identity.map_or(Ok(()), identity::Identity::assume)?;
        if settings.core_size_max.is_some() {
            identity::allow_core();
        }
        let directory = settings.working_directory.as_ref();
        directory.map_or(Ok(()), |path| {
            std::env::set_current_dir(path).map_err(|error| {
                let call = format!("chdir(\"{}\") failed", path.display());
                crate::log::failure(&call, &error)
            })
        })
    };
    let confined = confinement::confine(&settings.confinement, become_user)?;
    let level = if confined.lacks_anything() {
        Level::Warn
    } else {
        Level::Notice
    };
    log.write(level, &confined);
    for text in &confined.left_out {
        log.write(
            Level::Warn,
            format_args!("worker process may not write to {text}"),
        );
    }
    Ok(confined)
}

fn is_readable(descriptor: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    let now = rustix::event::Timespec::default();
    rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0)
}

/// The targets of the main-level `error_log` lines, with descriptors that belong to this session.
#[derive(Default)]
struct SessionLog {
    targets: Vec<LogTarget>,
    descriptors: HashMap<String, Rc<OwnedFd>>,
    log: Option<Log>,
}

impl SessionLog {
    fn new(targets: Vec<LogTarget>) -> SessionLog {
        SessionLog {
            targets,
            ..SessionLog::default()
        }
    }

    /// Writes to the new descriptors from now on. Duplicates them: `opened` keeps its own.
    fn follow(&mut self, opened: &HashMap<String, OwnedFd>) {
        for target in &self.targets {
            let ErrorLogDestination::Descriptor(key) = &target.place else {
                continue;
            };
            if let Some(Ok(descriptor)) = opened.get(key).map(OwnedFd::try_clone) {
                self.descriptors.insert(key.clone(), Rc::new(descriptor));
            }
        }
        let targets = log_targets(&self.targets, |key| self.descriptors.get(key).cloned());
        self.log = Some(Log::new(targets, None));
    }

    fn write(&self, level: Level, message: impl std::fmt::Display) {
        if let Some(log) = &self.log {
            log.write(level, message);
        }
    }

    /// Redirects standard error to the log, if the worker has a process of its own.
    fn redirect_stderr(&self, own_process: bool) {
        if own_process {
            self.log.iter().for_each(Log::redirect_stderr);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_wake_and_are_taken_once() {
        let events = Events::new().unwrap();
        assert!(!is_readable(&events.0.wake));
        let elsewhere = events.clone();
        std::thread::spawn(move || {
            elsewhere.generation_finished(3);
            elsewhere.generation_finished(4);
            elsewhere.drained();
        })
        .join()
        .unwrap();
        assert!(is_readable(&events.0.wake));
        assert_eq!(events.take(), (vec![3, 4], true));
        assert!(!is_readable(&events.0.wake));
        assert_eq!(events.take(), (vec![], true));
    }
}
