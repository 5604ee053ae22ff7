//! The keeper of a pool: a process of ours that starts php-fpm, says when it answers, starts it
//! again when it dies, and ends it and removes the folder as soon as the server has ended, by
//! whatever way.
//!
//! It is a process of its own because the server may be killed, and could then clean up nothing.
//! What tells it the end is its standard input, a pipe that nothing but the server holds open.
//! Should the keeper itself be killed, php-fpm ends with it ([`process::companion`]).

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

/// The arguments, from the name of the program on, that make a process a keeper. They read well in
/// ps(1). Behind them stand the folder, the program, and perhaps [`AS_ROOT`].
pub(super) const ARGUMENTS: [&str; 4] = ["tidegate:", "keeper", "of", "php-fpm"];

/// php-fpm's option without which it serves as no root.
pub(super) const AS_ROOT: &str = "--allow-to-run-as-root";

/// What the keeper says on its standard output once PHP answers; a text without a line break is why
/// it does not.
pub(super) const READY: &str = "ready\n";

/// How long php-fpm may take to answer.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How often it is asked meanwhile.
const ASK_PAUSE: Duration = Duration::from_millis(20);
/// How long it may take to end before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// A php-fpm that lives shorter has died of its start.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// The first pause before it is started again after a short life, doubled with each up to the
/// longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// The arguments of a keeper, where this process was started as one.
fn arguments() -> Option<Vec<OsString>> {
    let mut arguments = std::env::args_os();
    let is_keeper = ARGUMENTS
        .iter()
        .all(|word| arguments.next().is_some_and(|found| found == *word));
    is_keeper.then(|| arguments.collect())
}

/// Keeps a pool until the server ends; nothing where this process was not started for that.
pub(crate) fn run() -> Option<ExitCode> {
    let mut arguments = arguments()?.into_iter();
    let (folder, program) = (arguments.next()?, arguments.next()?);
    // People look for the program's name; the file that is executed is called `exe`.
    let _ = rustix::thread::set_name(c"tidegate");
    let keeper = Keeper {
        folder: PathBuf::from(folder),
        program: PathBuf::from(program),
        options: arguments.collect(),
    };
    Some(keeper.run())
}

struct Keeper {
    folder: PathBuf,
    program: PathBuf,
    options: Vec<OsString>,
}

/// One php-fpm that runs.
struct Php {
    child: Child,
    pid: Pid,
    /// Readable when it has ended.
    end: OwnedFd,
    started: Instant,
}

/// Why there is no php-fpm.
enum NoStart {
    Failed(String),
    ServerEnded,
}

/// What the keeper waited for.
enum Event {
    ServerEnded,
    PhpEnded,
    Nothing,
}

impl Keeper {
    fn run(self) -> ExitCode {
        let first = self.start();
        let (said, code) = match &first {
            Ok(_) => (READY, ExitCode::SUCCESS),
            Err(NoStart::Failed(text)) => (text.as_str(), ExitCode::FAILURE),
            Err(NoStart::ServerEnded) => ("", ExitCode::SUCCESS),
        };
        // Where the server does not hear it, it has ended.
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

    /// Removes everything that the server has put into the private folder, too.
    fn remove(&self) {
        // What cannot be removed is no reason to fail at the end.
        let _ = fs::remove_dir_all(&self.folder);
    }

    /// Starts php-fpm and waits until it answers; what has been started is ended where it does not.
    fn start(&self) -> Result<Php, NoStart> {
        let mut php = self.spawn().map_err(NoStart::Failed)?;
        let address = Address::Unix(self.folder.join(SOCKET));
        let deadline = php.started + START_LIMIT;
        loop {
            if let Ok(true) = address.says_that_it_is_fastcgi() {
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
        // One that was killed has left it.
        let _ = fs::remove_file(self.folder.join(SOCKET));
        let mut command = Command::new(&self.program);
        command
            .args(["--nodaemonize", "--force-stderr", "--prefix"])
            .arg(&self.folder);
        command
            .arg("--fpm-config")
            .arg(self.folder.join(CONFIGURATION))
            .args(&self.options);
        // In a group of its own, by which its children are reached.
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let started = process::companion::end_with_us(&mut command).spawn();
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

    fn start_again(&self, pause: &mut Duration) -> Option<Php> {
        match self.start() {
            Ok(php) => Some(php),
            // Which the next wait sees.
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

fn next(pause: Duration) -> Duration {
    (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX)
}

impl Php {
    /// Ends it with everything that it has started: at once, and by force where it does not follow.
    fn stop(&mut self) {
        let _ = rustix::process::kill_process(self.pid, Signal::TERM);
        // One that was stopped hears it now.
        let _ = rustix::process::kill_process(self.pid, Signal::CONT);
        let mut polled = [PollFd::new(&self.end, PollFlags::IN)];
        let _ = rustix::event::poll(&mut polled, Timespec::try_from(STOP_LIMIT).ok().as_ref());
        // It was asked to: how it has done so tells nothing.
        let _ = self.reap();
    }

    /// Kills what is left, and says how it has ended.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        // Before its number can be given away: children of a php-fpm that was killed would serve
        // on.
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        self.child.wait()
    }
}

/// Waits for the end of the server or of php-fpm, at most so long.
fn wait(php: Option<&Php>, at_most: Duration) -> Event {
    let stdin = io::stdin();
    let mut polled = vec![PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
    polled.extend(php.map(|php| PollFd::new(&php.end, PollFlags::IN)));
    // Where the time does not fit, there is no end to the wait.
    let _ = rustix::event::poll(&mut polled, Timespec::try_from(at_most).ok().as_ref());
    let mut happened = polled.iter().map(|polled| !polled.revents().is_empty());
    match (happened.next(), happened.next()) {
        // Nothing is ever written: what is readable is the end.
        (Some(true), _) => Event::ServerEnded,
        (_, Some(true)) => Event::PhpEnded,
        _ => Event::Nothing,
    }
}

/// How a process has ended, for a sentence about it.
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

fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{}: {text}", process::PROGRAM);
}
