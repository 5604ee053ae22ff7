//! Child processes running other programs that must not outlive this process.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Signal;

/// Makes the process that `command` starts receive SIGTERM when the thread that starts it ends,
/// even by SIGKILL (`PR_SET_PDEATHSIG` of prctl(2)). Processes that the child starts in turn are
/// not affected.
pub fn set_parent_death_signal(command: &mut Command) -> &mut Command {
    let parent = rustix::process::getpid();
    let arrange = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
        // The parent may have ended already.
        if rustix::process::getppid() == Some(parent) {
            Ok(())
        } else {
            Err(io::Error::from(rustix::io::Errno::SRCH))
        }
    };
    // SAFETY: between fork and exec nothing is done but two system calls on values that are on the
    // stack.
    unsafe { command.pre_exec(arrange) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_process_ends_with_the_thread_that_has_started_it() {
        let spawn = || {
            set_parent_death_signal(Command::new("sleep").arg("60").stdin(Stdio::null())).spawn()
        };
        let mut child = std::thread::spawn(spawn).join().unwrap().unwrap();
        let begin = Instant::now();
        assert_eq!(child.wait().unwrap().signal(), Some(15));
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
}
