//! A program that runs beside the test and ends with it, with all that it has started.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// How long a program may take to start, and a page to come: the machine may be doing other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// How long a program may take to end before it is killed.
const TIME_TO_END: Duration = Duration::from_secs(20);

/// A running program with a process group of its own.
pub(crate) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts a program; what it says goes to a file `NAME.log` in `folder`.
    pub(crate) fn start(command: &mut Command, name: &str, folder: &Path) -> Process {
        let log = folder.join(format!("{name}.log"));
        let output = fs::File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(output);
        Process::spawn(command, name, log)
    }

    /// Starts a program whose standard input and output are the test's to write and to read.
    pub(crate) fn start_with_pipes(
        command: &mut Command,
        name: &str,
        folder: &Path,
    ) -> (Process, ChildStdin, ChildStdout) {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let log = folder.join(format!("{name}.log"));
        let mut process = Process::spawn(command, name, log);
        let (input, output) = (process.child.stdin.take(), process.child.stdout.take());
        (process, input.unwrap(), output.unwrap())
    }

    fn spawn(command: &mut Command, name: &str, log: PathBuf) -> Process {
        let errors = fs::OpenOptions::new().create(true).append(true).open(&log);
        let child = command.stderr(errors.unwrap()).process_group(0).spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("{name} does not start: {error}; tests/install-packages installs it")
        });
        let name = name.to_owned();
        Process { child, name, log }
    }

    /// What the program has said so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until something is so, as long as the program runs.
    pub(crate) fn wait_until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < PATIENCE,
                "{}: {what} is awaited; ended: {ended:?}; it said:\n{}",
                self.name,
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a Unix socket takes connections.
    pub(crate) fn wait_for_socket(&mut self, socket: &Path) {
        self.wait_until(&socket.display().to_string(), || {
            std::os::unix::net::UnixStream::connect(socket).is_ok()
        });
    }

    /// Asks a server to read its configuration again.
    pub(crate) fn reload(&self) {
        support::signal(self.child.id(), "HUP");
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        let begun = Instant::now();
        while begun.elapsed() < TIME_TO_END && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        // Of the program itself, or of children that it has left.
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}
