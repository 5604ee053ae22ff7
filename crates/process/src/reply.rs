//! How `-s reload` learns the result of the reload.
//!
//! The sender makes a pipe and puts the number of its writing end into the signal (sigqueue(3)).
//! The master opens `/proc/SENDER/fd/NUMBER`, which only root and the sender's user may do. It
//! writes a line when it has read the signal, a line when the reload has succeeded or failed, and a
//! line for every error. A signal without a number, as from kill(1), gets no reply. If a master
//! does not reply in time (nginx, or a master in another pid namespace), the result is unknown: the
//! sender prints a warning and succeeds.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::signals::ReceivedSignal;

/// How long the sender waits for the first line. The master may be busy reading a configuration.
const ACCEPT_LIMIT: Duration = Duration::from_secs(5);
/// How long the sender then waits for the result: longer than the master's time limit for a worker.
const DECIDE_LIMIT: Duration = Duration::from_secs(70);

const ACCEPTED: &str = "accepted";
const COMMITTED: &str = "committed";
const FAILED: &str = "failed";

/// The master's end of the pipe, for the reply to one reload. Write errors are ignored, since the
/// sender may have ended.
#[derive(Debug)]
pub(crate) struct Reply(File);

impl Reply {
    /// Opens the sender's pipe, if there is a pipe, and writes that the signal has been read.
    pub(crate) fn accept(signal: &ReceivedSignal) -> Option<Reply> {
        let path = format!("/proc/{}/fd/{}", signal.sender?, signal.value?);
        let mut options = OpenOptions::new();
        // Without O_NONBLOCK a pipe without a reader would stop the master.
        options
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let mut file = options.open(path).ok()?;
        file.metadata().ok()?.file_type().is_fifo().then_some(())?;
        let _ = writeln!(file, "{ACCEPTED}");
        Some(Reply(file))
    }

    /// Replies that the reload has succeeded.
    pub(crate) fn committed(mut self) {
        let _ = writeln!(self.0, "{COMMITTED}");
    }

    /// Replies that the reload has failed and changed nothing.
    pub(crate) fn failed(mut self, errors: &[String]) {
        let mut text = format!("{FAILED}\n");
        for error in errors {
            text.push_str(error);
            text.push('\n');
        }
        let _ = self.0.write_all(text.as_bytes());
    }
}

/// The result of a reload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReloadResult {
    Committed,
    /// Refused, with the errors.
    Failed(Vec<String>),
    Unknown,
}

/// Makes a pipe, sends a signal with `send`, whose argument is the value of the signal, and waits
/// for the master's reply.
pub(crate) fn send_and_wait(send: impl FnOnce(i32) -> io::Result<()>) -> io::Result<ReloadResult> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    send(writer.as_raw_fd())?;
    if !wait_readable(&reader, Instant::now() + ACCEPT_LIMIT)? {
        return Ok(ReloadResult::Unknown);
    }
    // The master has opened the writing end by now. Once this process has closed its own, the pipe
    // ends when the master closes its descriptor.
    drop(writer);
    read_answer(reader, Instant::now() + DECIDE_LIMIT)
}

fn read_answer(reader: OwnedFd, deadline: Instant) -> io::Result<ReloadResult> {
    let mut lines = BufReader::new(File::from(reader));
    let mut decision = None;
    let mut errors = Vec::new();
    loop {
        if lines.buffer().is_empty() && !wait_readable(lines.get_ref(), deadline)? {
            return Ok(ReloadResult::Unknown);
        }
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            break;
        }
        match line.trim_end() {
            ACCEPTED => {}
            COMMITTED | FAILED if decision.is_none() => decision = Some(line),
            error => errors.push(error.to_owned()),
        }
    }
    Ok(match decision.as_deref().map(str::trim_end) {
        Some(COMMITTED) => ReloadResult::Committed,
        Some(_) => ReloadResult::Failed(errors),
        None => ReloadResult::Unknown,
    })
}

/// Waits until the deadline for bytes or the end of the pipe. Returns whether either has come.
fn wait_readable(descriptor: &impl AsFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&timeout)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply to this process, and the end of the pipe from which it reads the reply.
    fn reply() -> (Option<Reply>, OwnedFd) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let signal = ReceivedSignal {
            number: libc::SIGHUP,
            sender: Some(rustix::process::getpid()),
            value: Some(writer.as_raw_fd()),
        };
        (Reply::accept(&signal), reader)
    }

    fn answer(reader: OwnedFd) -> ReloadResult {
        read_answer(reader, Instant::now() + Duration::from_secs(5)).unwrap()
    }

    #[test]
    fn the_answer_comes_through() {
        let (replier, reader) = reply();
        replier.unwrap().committed();
        assert_eq!(answer(reader), ReloadResult::Committed);
        let (replier, reader) = reply();
        replier.unwrap().failed(&["one".into(), "two".into()]);
        assert_eq!(
            answer(reader),
            ReloadResult::Failed(vec!["one".into(), "two".into()])
        );
        let (replier, reader) = reply();
        drop(replier);
        assert_eq!(answer(reader), ReloadResult::Unknown);
    }

    #[test]
    fn nothing_but_a_pipe_is_written() {
        let path = std::env::temp_dir().join(format!("tidegate-reply-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let me = Some(rustix::process::getpid());
        let signal = |value| ReceivedSignal {
            number: libc::SIGHUP,
            sender: me,
            value,
        };
        assert!(Reply::accept(&signal(Some(file.as_raw_fd()))).is_none());
        assert!(Reply::accept(&signal(Some(-1))).is_none());
        assert!(Reply::accept(&signal(None)).is_none());
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        std::fs::remove_file(&path).unwrap();
    }
}
