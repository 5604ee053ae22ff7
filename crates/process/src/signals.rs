//! Reads signals from a descriptor (signalfd(7)), so that a loop can poll it together with its
//! sockets. The signals are blocked, so no signal handler is needed.
#![allow(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::Pid;

/// The signals that the master reads.
pub(crate) const MASTER: &[i32] = &[
    libc::SIGCHLD,
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
];

/// The signals that a worker process reads. INT, QUIT and TERM end the worker, and USR1 makes it
/// ask the master to reopen logs. It must ignore the others, which may be sent to the whole process
/// group.
pub(crate) const WORKER: &[i32] = &[
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
];

/// A set of blocked signals, with the descriptor from which they are read.
#[derive(Debug)]
pub(crate) struct Signals(OwnedFd);

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedSignal {
    pub(crate) number: i32,
    /// The process that sent the signal, if it is visible in this pid namespace.
    pub(crate) sender: Option<Pid>,
    /// The value of a signal sent by sigqueue(3).
    pub(crate) value: Option<i32>,
}

impl ReceivedSignal {
    /// The line for the log, in nginx's words. `action`, the reaction to the signal, ends the line.
    pub(crate) fn describe(&self, action: &str) -> String {
        let (number, name) = (self.number, name(self.number));
        match self.sender {
            Some(sender) => format!("signal {number} ({name}) received from {sender}{action}"),
            None => format!("signal {number} ({name}) received{action}"),
        }
    }
}

impl Signals {
    /// Blocks the signals for this thread and those that it starts. Must be called while the
    /// process has one thread: in other threads, the signals would still have their default action.
    pub(crate) fn block(numbers: &[i32]) -> io::Result<Signals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set; the following calls get a valid pointer to it,
        // and signalfd gives a descriptor that nothing else owns.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for number in numbers {
                libc::sigaddset(set.as_mut_ptr(), *number);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let fd = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Signals(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// The next signal; `None` if no signal is pending.
    pub(crate) fn next(&self) -> Option<ReceivedSignal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = mem::size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer has the given length. The structure consists of numbers, for which any
        // bytes are valid, and bytes that the read did not write are zero.
        let (read, info) = unsafe {
            let read = libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size);
            (read, info.assume_init())
        };
        // The descriptor does not block: without a pending signal, the read returns no complete
        // record.
        (usize::try_from(read) == Ok(size)).then(|| ReceivedSignal {
            number: i32::try_from(info.ssi_signo).unwrap_or(0),
            sender: i32::try_from(info.ssi_pid).ok().and_then(Pid::from_raw),
            value: (info.ssi_code == libc::SI_QUEUE).then_some(info.ssi_int),
        })
    }
}

impl Signals {
    /// Whether `set`, a mask of blocked signals from proc_pid_status(5), contains every signal of
    /// `numbers`.
    pub(crate) fn are_blocked(numbers: &[i32], set: u64) -> bool {
        let bit = |number: &i32| 1_u64.checked_shl(number.cast_unsigned().saturating_sub(1));
        numbers.iter().filter_map(bit).all(|bit| set & bit != 0)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes SIGSEGV and SIGBUS end this process at once. The standard library handles these signals to
/// report stack overflows. With that handler, the process would survive such a signal from another
/// process, which would only uninstall the handler.
pub(crate) fn end_by_faults() {
    for number in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default action replaces a handler that nothing here relies on.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
}

/// Sends a signal with a value, by sigqueue(3).
pub(crate) fn send(pid: Pid, number: i32, value: i32) -> io::Result<()> {
    // The C union is a pointer; its int member is the low half on every Linux.
    let value = libc::sigval {
        sival_ptr: std::ptr::without_provenance_mut(value as usize),
    };
    // SAFETY: sigqueue only reads its arguments, and passes the pointer on without dereferencing
    // it.
    match unsafe { libc::sigqueue(pid.as_raw_pid(), number, value) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends a signal with a value to the process of a pidfd, by pidfd_send_signal(2).
pub(crate) fn send_to(handle: &impl AsFd, number: i32, value: i32) -> io::Result<()> {
    /// The beginning of a `siginfo_t` as sigqueue(3) fills it, in the kernel's layout; the rest is
    /// zero.
    #[repr(C)]
    struct Queued {
        signal: i32,
        error: i32,
        code: i32,
        /// Aligned like a pointer.
        sender: Sender,
        rest: [u64; 14],
    }
    #[repr(C)]
    struct Sender {
        pid: i32,
        user: u32,
        value: libc::sigval,
    }
    let value = libc::sigval {
        sival_ptr: std::ptr::without_provenance_mut(value as usize),
    };
    let info = Queued {
        signal: number,
        error: 0,
        code: libc::SI_QUEUE,
        sender: Sender {
            pid: rustix::process::getpid().as_raw_pid(),
            user: rustix::process::getuid().as_raw(),
            value,
        },
        rest: [0; 14],
    };
    const { assert!(mem::size_of::<Queued>() >= mem::size_of::<libc::siginfo_t>()) };
    let handle = handle.as_fd().as_raw_fd();
    // SAFETY: the kernel only reads, and no more than a `siginfo_t`, which is no longer than
    // `Queued`.
    match unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            handle,
            number,
            &raw const info,
            0,
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The name of a signal that this crate reads or sends.
pub(crate) fn name(number: i32) -> &'static str {
    match number {
        libc::SIGCHLD => "SIGCHLD",
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGTERM => "SIGTERM",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGWINCH => "SIGWINCH",
        _ => "signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_to_a_held_process_carries_its_value() {
        let set = (1 << (libc::SIGHUP - 1)) | (1 << (libc::SIGCHLD - 1));
        assert!(Signals::are_blocked(&[libc::SIGHUP, libc::SIGCHLD], set));
        assert!(!Signals::are_blocked(MASTER, set));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let handle =
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        send_to(&handle, libc::SIGTERM, 7).unwrap();
        child.wait().unwrap();
        let error = send_to(&handle, libc::SIGTERM, 7).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn a_blocked_signal_comes_out_with_its_sender() {
        // Runs on a separate thread, so that other tests keep their signal mask.
        std::thread::spawn(|| {
            let signals = Signals::block(&[libc::SIGUSR2]).unwrap();
            assert!(signals.next().is_none());
            // SAFETY: raise takes a number only, and the signal is blocked in this thread.
            assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
            let received = signals.next().unwrap();
            assert_eq!(received.number, libc::SIGUSR2);
            assert_eq!(received.sender, Some(rustix::process::getpid()));
            assert_eq!(received.value, None);
            assert!(signals.next().is_none());
            let me = std::process::id();
            assert_eq!(
                received.describe(", ignoring"),
                format!("signal 12 (SIGUSR2) received from {me}, ignoring")
            );
        })
        .join()
        .unwrap();
    }
}
