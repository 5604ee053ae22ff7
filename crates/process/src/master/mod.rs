//! The master: one thread that keeps the privileges, the listeners, the logs and the
//! configuration, and sees to it that a worker serves.
//!
//! ```text
//!              Prepare            Prepared: Commit
//!   (none) ────────────▶ Starting ────────────────▶ Serving ──┐ Quit, by us or by a signal of its own, or replaced
//!                            │                         │      ▼
//!              Prepare       │ died: from the bundle   │   Leaving ──▶ (none)
//!   (none) ────────────▶ Candidate ────────────────────┘      ▲
//!                            └── a reload failed ─────────────┘
//! ```
//!
//! The loop waits only for signals, reports of workers and other programs, and deadlines. A signal
//! that arrives during a reload or a start is queued until the reload or the start has succeeded or
//! failed. The signals that end the server are handled at once, unless a reload is waiting for an
//! address that is in use (two seconds at most). The master reads no byte that a client has sent.

mod child;
pub(crate) mod devices;
mod hosts;
mod logs;
mod reload;
mod restart;
mod upgrade;

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::application::Application;
use crate::control::{self, Command, WorkerReport};
use crate::descriptors::Descriptors;
use crate::log::{Level, Log};
use crate::options::Options;
use crate::pid_file::PidFile;
use crate::predecessor::Predecessor;
use crate::reply::Reply;
use crate::service_manager::ServiceManager;
use crate::signals::{ReceivedSignal, Signals};
use crate::start::Examined;
use crate::state;
use child::{Child, Role};
use devices::Devices;
use hosts::HostLookup;
use logs::Replaced;
use reload::{Generation, Reload};
use restart::Restart;
pub(crate) use upgrade::{Origin, Upgrade, UpgradeParent};

/// How long a worker may take to terminate before it is killed.
const TERMINATE_LIMIT: Duration = Duration::from_secs(1);

/// The reply to a reload that comes while the master is ending.
const ENDING: &str = "[emerg] the server is about to end and does not reload";

/// What the startup code passes to the master.
pub(crate) struct Startup {
    pub(crate) options: Options,
    pub(crate) examined: Examined,
    pub(crate) descriptors: Descriptors,
    pub(crate) log: Log,
    pub(crate) signals: Signals,
    pub(crate) pid_file: PidFile,
    pub(crate) predecessor: Option<Predecessor>,
    pub(crate) upgrade: Upgrade,
    pub(crate) manager: Option<ServiceManager>,
}

/// The state of the master.
pub(crate) struct Master {
    application: &'static dyn Application,
    options: Options,
    log: Log,
    signals: Signals,
    pid_file: PidFile,
    /// The previous server with this pid file, which will remove the file when it ends.
    predecessor: Option<Predecessor>,
    /// The upgrade in progress: a new program that takes over the sockets.
    upgrade: Upgrade,
    /// The service manager that started this program and is to be notified.
    manager: Option<ServiceManager>,
    /// The generation in force.
    generation: Generation,
    /// The number of the last generation that failed. It is not used for another generation.
    abandoned: u64,
    /// Whether workers are separate processes (`master_process`), decided at start.
    own_process: bool,
    children: Vec<Child>,
    restart: Restart,
    /// The reload that waits for its worker.
    reload: Option<Reload>,
    /// Hosts that are being looked up for the generation in force.
    lookup: Option<HostLookup>,
    /// Generations that were in force and may still have requests.
    replaced: Vec<Replaced>,
    /// Signals that wait for the end of a start or a reload.
    queue: Queue,
    /// Reload commands that wait for the reply that the generation in force is served.
    unanswered: Vec<Reply>,
    stop: Option<MasterEnd>,
    /// Whether the worker has been told to commit a reload, and has not confirmed it.
    is_committing: bool,
    /// Whether any worker has ever served; if the first cannot, the master ends.
    has_served: bool,
    /// Whether the application has been notified that a worker serves.
    has_notified: bool,
    first_start_failed: bool,
    /// Devices that only one worker can have.
    devices: Devices,
}

/// Signals that wait for the end of a start or a reload.
#[derive(Default)]
struct Queue {
    reload: bool,
    replies: Vec<Reply>,
    reopen: bool,
}

/// The master is about to end.
#[derive(Clone, Copy)]
struct MasterEnd {
    /// When remaining workers are killed; `None` while they may end gracefully.
    kill_at: Option<Instant>,
}

impl Master {
    pub(crate) fn new(
        application: &'static dyn Application,
        startup: Startup,
    ) -> std::io::Result<Master> {
        let Startup {
            options,
            examined,
            descriptors,
            log,
            signals,
            pid_file,
            predecessor,
            upgrade,
            manager,
        } = startup;
        let own_process = examined.needs.master.master_process;
        Ok(Master {
            application,
            generation: Generation::first(&options, examined, descriptors)?,
            abandoned: 0,
            options,
            // From here on the terminal only gets lines of the log.
            log: log.without_console(),
            signals,
            pid_file,
            predecessor,
            upgrade,
            manager,
            own_process,
            children: Vec::new(),
            restart: Restart::default(),
            reload: None,
            lookup: None,
            replaced: Vec::new(),
            queue: Queue::default(),
            unanswered: Vec::new(),
            stop: None,
            is_committing: false,
            has_served: false,
            has_notified: false,
            first_start_failed: false,
            devices: Devices::default(),
        })
    }

    /// Runs until told to end. An error means that no worker has ever served.
    pub(crate) fn run(mut self) -> Result<(), ()> {
        self.log.notice("start worker processes");
        self.start_worker();
        while !self.has_ended() {
            self.wait();
            self.turn();
        }
        self.close_listeners();
        self.remove_left_files();
        if let Err(text) = self.pid_file.remove() {
            self.log.write(Level::Alert, text);
        }
        self.log.notice("exit");
        if self.first_start_failed {
            Err(())
        } else {
            Ok(())
        }
    }

    fn has_ended(&self) -> bool {
        self.first_start_failed || (self.stop.is_some() && self.children.is_empty())
    }

    /// Waits for a signal, a report of a worker, room for a command in a channel, the end of
    /// another program or its request for state, or the next deadline.
    fn wait(&self) {
        let mut polled = vec![PollFd::new(&self.signals, PollFlags::IN)];
        for control in self
            .children
            .iter()
            .filter_map(|child| child.control.as_ref())
        {
            let room = if control.has_outgoing() {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            polled.push(PollFd::from_borrowed_fd(
                control.as_fd(),
                PollFlags::IN | room,
            ));
        }
        // The addresses that a lookup found cannot be applied during a start or a reload.
        if let Some(lookup) = self.lookup.as_ref().filter(|_| self.is_at_rest()) {
            polled.push(PollFd::new(lookup, PollFlags::IN));
        }
        polled.extend(
            self.predecessor
                .iter()
                .map(|predecessor| PollFd::new(predecessor, PollFlags::IN)),
        );
        let end_of_older = self.upgrade.end_of_older().into_iter();
        polled.extend(end_of_older.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
        let question = self.upgrade.question().into_iter();
        polled.extend(question.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        let left = self
            .next_deadline()
            .map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                // Out of memory: the loop tries again, but not at once.
                self.log
                    .write(Level::Alert, format_args!("poll() failed: {error}"));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let children = self.children.iter().filter_map(Child::ready_deadline);
        let others = [
            self.restart.due(),
            self.devices.retry_at,
            self.reload.as_ref().map(|reload| reload.deadline),
            self.stop.and_then(|stop| stop.kill_at),
            self.manager.as_ref().and_then(ServiceManager::watchdog_due),
        ];
        children.chain(others.into_iter().flatten()).min()
    }

    /// Handles everything that has happened.
    fn turn(&mut self) {
        while let Some(signal) = self.signals.next() {
            self.signal(&signal);
        }
        let ids: Vec<u64> = self.children.iter().map(|child| child.id).collect();
        for id in ids {
            self.read_reports(id);
        }
        self.hand_over_state();
        self.check_deadlines(Instant::now());
        self.follow_predecessor();
        self.remove_left_files();
        self.handle_queued_signals();
        if let Some(manager) = &mut self.manager {
            manager.feed_watchdog(Instant::now());
            if self.reload.is_none() && !self.is_committing {
                manager.reloaded();
            }
        }
    }

    fn signal(&mut self, signal: &ReceivedSignal) {
        let action = match signal.number {
            libc::SIGQUIT => ", shutting down",
            libc::SIGTERM | libc::SIGINT => ", exiting",
            libc::SIGHUP if self.stop.is_some() => ", ignoring",
            libc::SIGHUP => ", reconfiguring",
            libc::SIGUSR1 => ", reopening logs",
            libc::SIGUSR2 if self.may_upgrade() => ", changing binary",
            libc::SIGWINCH if self.may_stop_accepting() => ", stop accepting connections",
            libc::SIGCHLD => "",
            _ => ", ignoring",
        };
        self.log.notice(signal.describe(action));
        match signal.number {
            libc::SIGQUIT => self.quit(),
            libc::SIGTERM | libc::SIGINT => self.terminate(),
            libc::SIGHUP => {
                self.queue.reload = true;
                self.queue.replies.extend(Reply::accept(signal));
            }
            libc::SIGUSR1 => self.queue.reopen = true,
            libc::SIGUSR2 => self.upgrade(),
            libc::SIGWINCH => self.stop_accepting(),
            libc::SIGCHLD => self.reap(),
            _ => {}
        }
    }

    /// Whether neither a start nor a reload is in progress, and the master is not about to end.
    fn is_at_rest(&self) -> bool {
        let mut children = self.children.iter();
        let is_starting = children.any(|child| child.role == Role::Starting);
        self.stop.is_none() && self.reload.is_none() && !is_starting
    }

    /// Handles the queued signals, unless a start or a reload is in progress. A master that is
    /// ending still reopens logs, as its workers may serve requests for hours, and rejects reloads
    /// at once.
    fn handle_queued_signals(&mut self) {
        if (self.is_at_rest() || self.stop.is_some()) && std::mem::take(&mut self.queue.reopen) {
            self.reopen_logs();
        }
        if self.stop.is_some() {
            let replies = std::mem::take(&mut self.queue.replies);
            reload::answer(replies, &[ENDING.to_owned()]);
        }
        if !self.is_at_rest() {
            return;
        }
        if std::mem::take(&mut self.queue.reload) {
            let replies = std::mem::take(&mut self.queue.replies);
            self.manager.iter_mut().for_each(ServiceManager::reloading);
            if self.upgrade.has_new_binary() {
                self.serve_again(replies);
            } else {
                self.begin_reload(replies);
            }
        }
        if self.is_at_rest() {
            self.follow_hosts();
        }
    }

    /// Starts a worker from the bundle in force.
    fn start_worker(&mut self) {
        self.restart.started();
        let (command, role) = (self.generation.prepare(), Role::Starting);
        let environment = self.generation.needs.master.environment.clone();
        let state = self.upgrade.state_of_older(&self.log);
        if self.spawn(role, command, &environment, state).is_none() {
            self.handle_worker_loss(Duration::ZERO);
        }
    }

    /// Starts a worker, tells it to prepare the bundle and to restore the state that another worker
    /// saves into `state`, and returns its id. The workers that it replaces get a channel to it.
    fn spawn(
        &mut self,
        role: Role,
        prepare: Command<Rc<OwnedFd>>,
        environment: &[String],
        state: Option<Rc<OwnedFd>>,
    ) -> Option<u64> {
        let spawned = if self.own_process {
            Child::process(role, environment)
        } else {
            Child::thread(role, self.application)
        };
        match spawned {
            Ok(mut child) => {
                if let Some(pid) = child.pid {
                    self.log.notice(format_args!("start worker process {pid}"));
                }
                state
                    .into_iter()
                    .for_each(|state| child.send(Command::GoOn { state }));
                if self.own_process {
                    self.join_with_others(&mut child);
                }
                child.send(prepare);
                let id = child.id;
                self.children.push(child);
                Some(id)
            }
            Err(error) => {
                let text = crate::log::failure("worker process could not be started", &error);
                self.log.write(Level::Alert, text);
                None
            }
        }
    }

    /// Gives a worker a channel to every worker that may still have sessions when the new one
    /// serves.
    fn join_with_others(&mut self, child: &mut Child) {
        let has_served = |role| matches!(role, Role::Serving | Role::Leaving);
        for other in self.children.iter_mut().filter(|one| has_served(one.role)) {
            match control::between_workers() {
                Ok((theirs, channel)) => {
                    other.send(Command::Successor { channel: theirs });
                    child.send(Command::Predecessor { channel });
                }
                Err(error) => {
                    let text = crate::log::failure("socketpair() failed", &error);
                    self.log.write(Level::Warn, text);
                }
            }
        }
    }

    /// Tells the serving worker to save its state into a new memory file, and returns the file;
    /// `None` if no worker process serves.
    fn save_state(&mut self) -> Option<Rc<OwnedFd>> {
        let serves = |child: &&mut Child| child.role == Role::Serving && child.pid.is_some();
        let serving = self.children.iter_mut().find(serves)?;
        match state::empty() {
            Ok(file) => {
                let state = Rc::new(file);
                serving.send(Command::Save {
                    state: Rc::clone(&state),
                });
                Some(state)
            }
            Err(error) => {
                let text = crate::log::failure("memfd_create() failed", &error);
                self.log.write(Level::Warn, text);
                None
            }
        }
    }

    fn child_mut(&mut self, id: u64) -> Option<&mut Child> {
        self.children.iter_mut().find(|child| child.id == id)
    }

    /// Sends the commands queued for a worker, and reads its reports.
    fn read_reports(&mut self, id: u64) {
        loop {
            let Some(child) = self.child_mut(id) else {
                return;
            };
            let Some(control) = &mut child.control else {
                return;
            };
            control.flush();
            match control.receive() {
                Ok(Some(report)) => self.report(id, report),
                Ok(None) => return,
                Err(_) => {
                    child.control = None;
                    // A worker process has ended when it is reaped, a worker thread when its
                    // channel closes.
                    if child.pid.is_none() {
                        self.handle_child_exit(id);
                    }
                    return;
                }
            }
        }
    }

    fn report(&mut self, id: u64, report: WorkerReport) {
        let number = self.generation.number;
        let is_reload = |generation: u64, master: &Master| {
            let reload = master.reload.as_ref();
            reload.is_some_and(|reload| reload.target == id && reload.next.number == generation)
        };
        let Some(child) = self.child_mut(id) else {
            return;
        };
        match report {
            WorkerReport::Prepared { generation } => {
                if child.role == Role::Starting && generation == number {
                    child.serve_by(generation);
                    self.has_served = true;
                } else if is_reload(generation, self) {
                    self.commit_reload();
                }
            }
            WorkerReport::Failed { generation, text } => {
                let errors: Vec<String> = text.lines().flat_map(|line| self.refuse(line)).collect();
                if is_reload(generation, self) {
                    self.fail_reload(&errors);
                }
            }
            WorkerReport::Committed { generation } => {
                if generation == number {
                    self.is_committing = false;
                    let replies = std::mem::take(&mut self.unanswered);
                    replies.into_iter().for_each(Reply::committed);
                    if !std::mem::replace(&mut self.has_notified, true) {
                        self.application.serving();
                        self.manager.iter().for_each(ServiceManager::ready);
                    }
                    self.hand_over_devices(id);
                }
            }
            WorkerReport::HasDevices => self.devices_are_used(id),
            WorkerReport::Finished { generation } => {
                let worker = child.name();
                let text = format!("generation {generation} of {worker} exited with code 0");
                self.log.notice(text);
                self.forget_generation(id, generation);
            }
            WorkerReport::WantsLogs => self.queue.reopen = true,
            WorkerReport::Leaving => self.replace_child(id),
        }
    }

    /// Reaps every process that has ended. Not all of them were started by the master: as the init
    /// process of a container it inherits orphans.
    fn reap(&mut self) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.process_ended(pid, status),
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn process_ended(&mut self, pid: Pid, status: WaitStatus) {
        let id = self
            .children
            .iter()
            .find(|child| child.pid == Some(pid))
            .map(|child| child.id);
        if let Some(id) = id {
            // The worker's last reports may still be in the channel.
            self.read_reports(id);
        }
        let name = if id.is_some() {
            "worker process"
        } else if self.upgrade.is_by(pid) {
            "new binary process"
        } else {
            "unknown process"
        };
        match (status.exit_status(), status.terminating_signal()) {
            (_, Some(signal)) => {
                const CORE_DUMPED: i32 = 0x80;
                let core = if status.as_raw() & CORE_DUMPED != 0 {
                    " (core dumped)"
                } else {
                    ""
                };
                let text = format!("{name} {pid} exited on signal {signal}{core}");
                self.log.write(Level::Alert, text);
            }
            (code, None) => {
                let code = code.unwrap_or(0);
                self.log
                    .notice(format_args!("{name} {pid} exited with code {code}"));
            }
        }
        match id {
            Some(id) => self.handle_child_exit(id),
            None => self.upgrade_ended(pid),
        }
    }

    /// Handles the end of a worker.
    fn handle_child_exit(&mut self, id: u64) {
        self.replace_child(id);
        self.children.retain(|child| child.id != id);
        self.forget_generations_of(id);
        self.devices_are_free(id);
    }

    /// Replaces a worker that has ended or is about to end.
    fn replace_child(&mut self, id: u64) {
        if self.devices.is_owner(id) {
            self.release_devices();
        }
        let Some(child) = self.child_mut(id) else {
            return;
        };
        let role = std::mem::replace(&mut child.role, Role::Leaving);
        let (name, lived) = (child.name(), child.started.elapsed());
        let reload = self.reload.as_ref();
        if reload.is_some_and(|reload| reload.target == id) {
            self.prepare_elsewhere(&name, role);
        }
        if matches!(role, Role::Starting | Role::Serving) && self.stop.is_none() {
            self.handle_worker_loss(lived);
        }
    }

    /// Handles the loss of the serving worker: starts another, after a delay if the last one did
    /// not live long.
    fn handle_worker_loss(&mut self, lived: Duration) {
        if !self.has_served {
            let text = "the first worker process ended before it served: giving up";
            self.log.write(Level::Emerg, text);
            self.first_start_failed = true;
            return;
        }
        let delay = self.restart.after(lived);
        if delay.is_zero() {
            self.start_worker();
        } else {
            let delay = delay.as_millis();
            self.log
                .notice(format_args!("next worker process starts in {delay}ms"));
        }
    }

    fn check_deadlines(&mut self, now: Instant) {
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if is_over(self.stop.and_then(|stop| stop.kill_at)) {
            self.stop = Some(MasterEnd { kill_at: None });
            self.children
                .iter()
                .for_each(|child| child.kill(Signal::KILL));
            // A thread cannot be killed; it ends with the process.
            self.children.retain(|child| child.pid.is_some());
        }
        if self.stop.is_some() {
            return;
        }
        if is_over(self.reload.as_ref().map(|reload| reload.deadline)) {
            self.reload_timed_out();
        }
        for child in self
            .children
            .iter()
            .filter(|child| is_over(child.ready_deadline()))
        {
            let text = format!("{} does not get ready and is killed", child.name());
            self.log.write(Level::Alert, text);
            child.kill(Signal::KILL);
        }
        if is_over(self.restart.due()) {
            self.start_worker();
        }
        if is_over(self.devices.retry_at) {
            self.retry_devices();
        }
    }

    /// QUIT: accepts no more connections, and ends when every request has ended.
    fn quit(&mut self) {
        if self.stop.is_some() {
            return;
        }
        self.begin_stop(None);
        self.drain_workers();
    }

    /// Tells all workers to end when every request has ended, and starts none in their place. If
    /// another program accepts connections, idle clients are not disconnected at once.
    fn drain_workers(&mut self) {
        self.restart = Restart::default();
        self.release_devices();
        let how = if self.upgrade.another_accepts() {
            Command::Drain
        } else {
            Command::Quit
        };
        for child in &mut self.children {
            child.end(how.clone());
        }
    }

    /// TERM and INT: ends without waiting for requests.
    fn terminate(&mut self) {
        if self.stop.is_some_and(|stop| stop.kill_at.is_some()) {
            return;
        }
        self.begin_stop(Some(Instant::now() + TERMINATE_LIMIT));
        self.children
            .iter_mut()
            .for_each(|child| child.end(Command::Terminate));
    }

    fn begin_stop(&mut self, kill_at: Option<Instant>) {
        if let Some(manager) = self.manager.as_ref().filter(|_| self.stop.is_none()) {
            match self.upgrade.new_binary() {
                Some(pid) => manager.followed_by(pid),
                // The older program is the service as long as it accepts connections.
                None if self.upgrade.another_accepts() => {}
                None => manager.stopping(),
            }
        }
        self.stop = Some(MasterEnd { kill_at });
        if self.reload.is_some() {
            self.fail_reload(&[ENDING.to_owned()]);
        }
        self.restart = Restart::default();
        self.close_listeners();
    }
}
