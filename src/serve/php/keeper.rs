//! The keeper of a pool: a separate process that starts php-fpm, reports when php-fpm answers,
//! restarts php-fpm when it dies, and stops php-fpm and removes the folder as soon as the server
//! has ended for any reason.
//!
//! A separate process is needed because the server may be killed, and could then clean up nothing.
//! The keeper notices the server's end by its own standard input, a pipe whose other end only the
//! server holds. If the keeper itself is killed, php-fpm ends with it ([`process::companion`]).

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::address::Address;
use super::pool::{CONFIGURATION, SOCKET};

/// The arguments, including the program's name, that make a process a keeper. They are readable in
/// ps(1). The folder, the program, and perhaps [`AS_ROOT`] follow.
pub(super) const ARGUMENTS: [&str; 4] = ["tidegate:", "keeper", "of", "php-fpm"];

/// php-fpm's option that permits it to run as root.
pub(super) const AS_ROOT: &str = "--allow-to-run-as-root";

/// The line that the keeper writes to standard output once PHP answers; a text without a line break
/// is an error message instead.
pub(super) const READY: &str = "ready\n";

/// Time limit for php-fpm to answer after its start.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Interval of checks whether php-fpm answers.
const ASK_PAUSE: Duration = Duration::from_millis(20);
/// Time limit for php-fpm to end before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// A php-fpm that ended within this time has failed to start.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// The pause before a restart after a failed start, doubled with each failure up to the maximum.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The keeper's arguments, if this process was started as a keeper.
fn arguments() -> Option<Vec<OsString>> {
    let mut arguments = std::env::args_os();
    let is_keeper = ARGUMENTS
        .iter()
        .all(|word| arguments.next().is_some_and(|found| found == *word));
    is_keeper.then(|| arguments.collect())
}

/// Runs a keeper until the server ends; `None` if this process is not a keeper.
pub(crate) fn run() -> Option<ExitCode> {
    let mut arguments = arguments()?.into_iter();
    let (folder, program) = (arguments.next()?, arguments.next()?);
    // Users look for the program's name, but the name of the executed file is `exe`.
    let _ = rustix::thread::set_name(c"tidegate");
    let keeper = PhpSupervisor {
        folder: PathBuf::from(folder),
        program: PathBuf::from(program),
        options: arguments.collect(),
    };
    Some(keeper.run())
}

/// The keeper's settings: the pool's folder, and php-fpm with its options.
struct PhpSupervisor {
    folder: PathBuf,
    program: PathBuf,
    options: Vec<OsString>,
}

/// A running php-fpm.
struct Php {
    child: Child,
    pid: Pid,
    /// Readable once the process has ended.
    end: OwnedFd,
    started: Instant,
}

/// Why php-fpm was not started.
enum NoStart {
    Failed(String),
    ServerEnded,
}

/// The result of a wait.
enum Event {
    ServerEnded,
    PhpEnded,
    Nothing,
}

impl PhpSupervisor {
    fn run(self) -> ExitCode {
        let first = self.start();
        let (said, code) = match &first {
            Ok(_) => (READY, ExitCode::SUCCESS),
            Err(NoStart::Failed(text)) => (text.as_str(), ExitCode::FAILURE),
            Err(NoStart::ServerEnded) => ("", ExitCode::SUCCESS),
        };
        // If the message cannot be written, the server has ended.
        let mut stdout = io::stdout();
        let _ = stdout
            .write_all(said.as_bytes())
            .and_then(|()| stdout.flush());
        if let Ok(php) = first {
            self.keep(php);
        }
        self.remove();
        code
    }

    /// Removes the private folder, including files that the server has created in it.
    fn remove(&self) {
        // A failure to remove the folder is ignored at the end.
        let _ = fs::remove_dir_all(&self.folder);
    }

    /// Starts php-fpm and waits until it answers; stops it again if it does not.
    fn start(&self) -> Result<Php, NoStart> {
        let mut php = self.spawn().map_err(NoStart::Failed)?;
        let address = Address::Unix(self.folder.join(SOCKET));
        let deadline = php.started + START_LIMIT;
        loop {
            if let Ok(true) = address.speaks_fastcgi() {
                return Ok(php);
            }
            match wait(Some(&php), ASK_PAUSE) {
                Event::Nothing if Instant::now() < deadline => {}
                Event::Nothing => {
                    php.stop();
                    let seconds = START_LIMIT.as_secs();
                    let text = format!("it does not answer within {seconds} s");
                    return Err(NoStart::Failed(text));
                }
                Event::PhpEnded => {
                    let text = format!("it {} before it answered", how(php.reap()));
                    return Err(NoStart::Failed(text));
                }
                Event::ServerEnded => {
                    php.stop();
                    return Err(NoStart::ServerEnded);
                }
            }
        }
    }

    fn spawn(&self) -> Result<Php, String> {
        // A killed php-fpm leaves its socket behind.
        let _ = fs::remove_file(self.folder.join(SOCKET));
        let mut command = Command::new(&self.program);
        command
            .args(["--nodaemonize", "--force-stderr", "--prefix"])
            .arg(&self.folder);
        command
            .arg("--fpm-config")
            .arg(self.folder.join(CONFIGURATION))
            .args(&self.options);
        // Runs in a process group of its own, so that its children can be killed too.
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let started = process::companion::set_parent_death_signal(&mut command).spawn();
        let mut child =
            started.map_err(|error| process::log::failure("it cannot be executed", &error))?;
        let pid = Pid::from_child(&child);
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(end) => Ok(Php {
                child,
                pid,
                end,
                started: Instant::now(),
            }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(process::log::failure("pidfd_open() failed", &error.into()))
            }
        }
    }

    /// Keeps php-fpm running until the server ends.
    fn keep(&self, first: Php) {
        let mut php = Some(first);
        let mut pause = Duration::ZERO;
        loop {
            let Some(running) = &mut php else {
                match wait(None, pause) {
                    Event::ServerEnded => return,
                    _ => php = self.start_again(&mut pause),
                }
                continue;
            };
            match wait(Some(running), Duration::MAX) {
                Event::ServerEnded => return running.stop(),
                Event::Nothing => {}
                Event::PhpEnded => {
                    let lived = running.started.elapsed();
                    say(&format!(
                        "php-fpm {}; it is started again",
                        how(running.reap())
                    ));
                    pause = if lived < SHORT_LIFE {
                        next(pause)
                    } else {
                        Duration::ZERO
                    };
                    php = None;
                }
            }
        }
    }

    /// Restarts php-fpm; after a failure, `pause` is the time until the next attempt.
    fn start_again(&self, pause: &mut Duration) -> Option<Php> {
        match self.start() {
            Ok(php) => Some(php),
            // The next wait notices the server's end.
            Err(NoStart::ServerEnded) => None,
            Err(NoStart::Failed(text)) => {
                *pause = next(*pause);
                say(&format!(
                    "php-fpm: {text}; the next attempt is in {} ms",
                    pause.as_millis()
                ));
                None
            }
        }
    }
}

/// The pause after another failure.
fn next(pause: Duration) -> Duration {
    (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX)
}

impl Php {
    /// Stops php-fpm and its children: by a signal, and by force if they do not end in time.
    fn stop(&mut self) {
        let _ = rustix::process::kill_process(self.pid, Signal::TERM);
        // A stopped process handles the signal only once it continues.
        let _ = rustix::process::kill_process(self.pid, Signal::CONT);
        let mut polled = [PollFd::new(&self.end, PollFlags::IN)];
        let _ = rustix::event::poll(&mut polled, Timespec::try_from(STOP_LIMIT).ok().as_ref());
        // The exit status does not matter after a requested stop.
        let _ = self.reap();
    }

    /// Kills the remaining processes, and returns php-fpm's exit status.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        // Before reaping, after which the group's number may be reused. Children of a killed
        // php-fpm would otherwise keep serving.
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        self.child.wait()
    }
}

/// Waits until the server or php-fpm ends, or the time is over.
fn wait(php: Option<&Php>, at_most: Duration) -> Event {
    let stdin = io::stdin();
    let mut polled = vec![PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
    polled.extend(php.map(|php| PollFd::new(&php.end, PollFlags::IN)));
    // A time that is too long for the call means no limit.
    let _ = rustix::event::poll(&mut polled, Timespec::try_from(at_most).ok().as_ref());
    let mut happened = polled.iter().map(|polled| !polled.revents().is_empty());
    match (happened.next(), happened.next()) {
        // Nothing is ever written to the pipe, so readability means its end.
        (Some(true), _) => Event::ServerEnded,
        (_, Some(true)) => Event::PhpEnded,
        _ => Event::Nothing,
    }
}

/// Describes how a process ended, for use in a sentence.
fn how(status: io::Result<ExitStatus>) -> String {
    let Ok(status) = status else {
        return "ended".to_owned();
    };
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Prints a line on standard error.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{}: {text}", process::PROGRAM);
}
