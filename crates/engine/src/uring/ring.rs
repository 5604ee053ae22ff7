//! The two queues shared with the kernel, and a backlog for when the kernel accepts no submissions.
//!
//! If the submission queue is full, it is submitted at once to make room. If the kernel refuses
//! (out of memory, or because completions must be taken first), the submissions wait here, in
//! order, and the loop continues: processing completions frees what the kernel lacks. If the kernel
//! refuses in [`REFUSALS_MAX`] consecutive waits, or reports that the ring itself is broken, the
//! engine ends with an error from [`Ring::wait`].
//!
//! A seccomp filter does not see what a ring does, such as opening and writing files. So every ring
//! is restricted to the engine's operations before it accepts any ([`Ring::confine`]); the
//! restriction cannot be lifted.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Submitter, cqueue, opcode, squeue};

/// Operations that one call submits at most; further ones take another call.
pub(super) const SUBMISSIONS: u32 = 1024;

/// How often in a row the kernel may refuse submissions before the engine gives up: about ten
/// seconds.
const REFUSALS_MAX: u32 = 1000;

/// How long the thread sleeps after a refusal if nothing has completed either.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);

/// The operations that a ring may perform, by name.
pub(super) const OPERATIONS: [(&str, u8); 8] = [
    ("ACCEPT", opcode::AcceptMulti::CODE),
    ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
    ("CLOSE", opcode::Close::CODE),
    ("CONNECT", opcode::Connect::CODE),
    ("POLL_ADD", opcode::PollAdd::CODE),
    ("RECV", opcode::RecvMulti::CODE),
    ("SEND", opcode::Send::CODE),
    ("SENDMSG", opcode::SendMsg::CODE),
];

/// IORING_UNREGISTER_PBUF_RING, the only registration call left to a restricted ring. One must be
/// named: kernels differ in whether an empty list forbids all or none.
const UNREGISTER_BUFFERS: u8 = 23;

/// The two queues, with the submissions and completions that wait.
pub(super) struct Ring {
    ring: IoUring,
    /// Submissions that found the queue full, in order; later ones go behind them.
    waiting: VecDeque<Submission>,
    /// Completions taken from the kernel and not yet processed.
    arrived: Vec<cqueue::Entry>,
    /// The number of operations submitted or waiting, and not yet completed.
    outstanding: usize,
    /// Consecutive refusals.
    refusals: u32,
    /// The error of a call that could not report it.
    broken: Option<io::Error>,
}

/// One operation, or two linked ones, of which the second starts when the first has succeeded.
/// Linked operations must be submitted together.
struct Submission {
    first: squeue::Entry,
    second: Option<squeue::Entry>,
}

/// Creates a ring that accepts nothing before it is enabled.
pub(super) fn build() -> io::Result<IoUring> {
    IoUring::builder()
        .setup_r_disabled()
        // All completion work is done on this thread when it waits: no interrupts, and no locks in
        // the kernel.
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .setup_cqsize(SUBMISSIONS * 4)
        .build(SUBMISSIONS)
}

/// Restricts a ring to the engine's operations, and forbids further registrations.
pub(super) fn confine(ring: &IoUring) -> io::Result<()> {
    let operations = OPERATIONS
        .iter()
        .map(|(_, code)| Restriction::sqe_op(*code));
    let flags = squeue::Flags::IO_LINK | squeue::Flags::BUFFER_SELECT;
    let mut restrictions: Vec<Restriction> = operations.collect();
    restrictions.push(Restriction::sqe_flags_allowed(flags.bits()));
    restrictions.push(Restriction::register_op(UNREGISTER_BUFFERS));
    let submitter = ring.submitter();
    submitter.register_restrictions(&mut restrictions)?;
    submitter.register_enable_rings()
}

impl Ring {
    /// Creates a ring that is not enabled yet: its resources are registered first, then it is
    /// restricted.
    pub(super) fn new() -> io::Result<Ring> {
        Ok(Ring {
            ring: build()?,
            waiting: VecDeque::new(),
            arrived: Vec::new(),
            outstanding: 0,
            refusals: 0,
            broken: None,
        })
    }

    /// Restricts the ring, and enables it: see [`confine`].
    pub(super) fn confine(&self) -> io::Result<()> {
        confine(&self.ring)
    }

    pub(super) fn submitter(&self) -> Submitter<'_> {
        self.ring.submitter()
    }

    /// The number of operations that have not completed.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Queues an operation.
    ///
    /// # Safety
    /// Memory that `entry` points to must remain valid and in place until its last completion. The
    /// descriptor that `entry` names must stay open until then, or until a close that is queued
    /// later; or `entry` is a close, which owns the number.
    #[inline]
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the caller's promise.
        if self.waiting.is_empty() && unsafe { self.ring.submission().push(&entry) }.is_ok() {
            self.outstanding += 1;
            return;
        }
        let submission = Submission {
            first: entry,
            second: None,
        };
        // SAFETY: the caller's promise.
        unsafe { self.submit(submission) }
    }

    /// Queues two linked operations: `second` starts when `first` has succeeded, and is cancelled
    /// otherwise.
    ///
    /// # Safety
    /// As for [`push`](Self::push), for both.
    pub(super) unsafe fn push_linked(&mut self, first: squeue::Entry, second: squeue::Entry) {
        let submission = Submission {
            first: first.flags(squeue::Flags::IO_LINK),
            second: Some(second),
        };
        // SAFETY: the caller's promise.
        unsafe { self.submit(submission) }
    }

    /// # Safety
    /// As for [`push`](Self::push).
    unsafe fn submit(&mut self, submission: Submission) {
        self.outstanding += submission.len();
        if self.waiting.is_empty() {
            // SAFETY: the caller's promise.
            if unsafe { self.enqueue(&submission) } {
                return;
            }
            self.hand_over();
            // SAFETY: the caller's promise.
            if unsafe { self.enqueue(&submission) } {
                return;
            }
        }
        self.waiting.push_back(submission);
    }

    /// Puts all of `submission` into the queue. False if the queue has not enough room.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    unsafe fn enqueue(&mut self, submission: &Submission) -> bool {
        let mut queue = self.ring.submission();
        if queue.capacity() - queue.len() < submission.len() {
            return false;
        }
        // SAFETY: the caller's promise.
        let first = unsafe { queue.push(&submission.first) };
        let second = match &submission.second {
            // SAFETY: the caller's promise.
            Some(second) => unsafe { queue.push(second) },
            None => Ok(()),
        };
        first.is_ok() && second.is_ok()
    }

    /// Submits the queue to the kernel without waiting.
    fn hand_over(&mut self) {
        match self.ring.submit() {
            Ok(_) => self.refusals = 0,
            Err(error) if is_transient(&error) => self.collect(),
            Err(error) => self.broken = Some(error),
        }
    }

    /// Takes all available completions from the kernel.
    fn collect(&mut self) {
        self.arrived.extend(self.ring.completion());
    }

    /// Moves waiting submissions into the queue, as far as there is room.
    fn refill(&mut self) {
        while let Some(submission) = self.waiting.front() {
            let submission = Submission {
                first: submission.first.clone(),
                second: submission.second.clone(),
            };
            // SAFETY: the promise of the caller of `push` holds until the operation has completed.
            if !unsafe { self.enqueue(&submission) } {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// Submits everything and waits until an operation completes or `timeout` has passed.
    ///
    /// # Errors
    /// If the ring is broken, or the kernel has refused submissions for too long.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if let Some(error) = self.broken.take() {
            return Err(named(&error));
        }
        self.refill();
        let at_once = !self.arrived.is_empty() || !self.waiting.is_empty();
        let timeout = if at_once {
            Some(Duration::ZERO)
        } else {
            timeout
        };
        let result = match timeout {
            None => self.ring.submit_and_wait(1),
            Some(timeout) => {
                let timeout = Timespec::from(timeout);
                self.ring
                    .submitter()
                    .submit_with_args(1, &SubmitArgs::new().timespec(&timeout))
            }
        };
        self.collect();
        match result {
            Ok(_) => self.refusals = 0,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR)) => {}
            Err(error) if is_transient(&error) => {
                self.refusals += 1;
                if self.refusals >= REFUSALS_MAX {
                    return Err(named(&error));
                }
                if self.arrived.is_empty() {
                    std::thread::sleep(timeout.unwrap_or(REFUSED_PAUSE).min(REFUSED_PAUSE));
                }
            }
            Err(error) => return Err(named(&error)),
        }
        Ok(())
    }

    /// Moves the completions to `entries`, and deducts the finished operations.
    pub(super) fn take_arrived(&mut self, entries: &mut Vec<cqueue::Entry>) {
        let last = |entry: &&cqueue::Entry| !cqueue::more(entry.flags());
        self.outstanding -= self.arrived.iter().filter(last).count();
        entries.append(&mut self.arrived);
    }
}

impl Submission {
    fn len(&self) -> usize {
        1 + usize::from(self.second.is_some())
    }
}

/// Whether the kernel may accept the same operations later: it is out of memory, completions must
/// be taken first, or a signal interrupted the call.
fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EAGAIN | libc::EINTR)
    )
}

/// Adds the name of the failed call to an error.
fn named(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("io_uring_enter() failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;
    use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

    /// A ring, or none where `TIDEGATE_ENGINES` leaves the tests of io_uring out.
    fn ring() -> Option<Ring> {
        let wanted = std::env::var("TIDEGATE_ENGINES").map_or(true, |engines| {
            engines.split(',').any(|name| name.trim() == "io_uring")
        });
        wanted.then(|| {
            let ring = Ring::new().unwrap();
            ring.submitter().register_enable_rings().unwrap();
            ring
        })
    }

    #[test]
    fn a_confined_ring_opens_no_file_and_has_nothing_more_registered() {
        if ring().is_none() {
            return;
        }
        let mut ring = Ring::new().unwrap();
        ring.confine().unwrap();
        let open = opcode::OpenAt::new(io_uring::types::Fd(libc::AT_FDCWD), c"/dev/null".as_ptr());
        let poll = opcode::PollAdd::new(io_uring::types::Fd(-1), libc::POLLIN as u32);
        // SAFETY: the path is constant, and neither names a descriptor that is open.
        unsafe {
            ring.push(open.build().user_data(1));
            ring.push(poll.build().user_data(2));
            ring.push(poll_on_a_thread());
        }
        let mut entries = Vec::new();
        while ring.outstanding() > 0 {
            ring.wait(None).unwrap();
            ring.take_arrived(&mut entries);
        }
        let mut results: Vec<_> = entries
            .iter()
            .map(|one| (one.user_data(), -one.result()))
            .collect();
        results.sort_unstable();
        assert_eq!(
            results,
            [(1, libc::EACCES), (2, libc::EBADF), (3, libc::EACCES)]
        );
        let mut probe = io_uring::Probe::new();
        let refused = ring.submitter().register_probe(&mut probe).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
        let files = ring.submitter().register_files(&[0]).unwrap_err();
        assert_eq!(files.raw_os_error(), Some(libc::EACCES));
    }

    /// One of the engine's operations, with a flag that the engine does not use.
    fn poll_on_a_thread() -> squeue::Entry {
        let poll = opcode::PollAdd::new(io_uring::types::Fd(-1), libc::POLLIN as u32);
        poll.build().user_data(3).flags(squeue::Flags::ASYNC)
    }

    fn push(ring: &mut Ring, number: u64) {
        // SAFETY: it points to nothing and names no descriptor.
        unsafe { ring.push(opcode::Nop::new().build().user_data(number)) };
    }

    /// Makes calls on the ring's descriptor fail, or work again.
    fn replace(ring: &Ring, by: &OwnedFd) {
        // SAFETY: the ring owns the number, which is open, and goes on to own it.
        let mut number = unsafe { OwnedFd::from_raw_fd(ring.ring.as_raw_fd()) };
        rustix::io::dup2(by, &mut number).unwrap();
        let _ = number.into_raw_fd();
    }

    #[test]
    fn what_the_kernel_does_not_take_waits_in_order() {
        let Some(mut ring) = ring() else { return };
        // SAFETY: the ring is open for as long as it is borrowed here.
        let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(ring.ring.as_raw_fd()) };
        let working = descriptor.try_clone_to_owned().unwrap();
        let broken: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        replace(&ring, &broken);
        let count = u64::from(SUBMISSIONS) + 100;
        for number in 0..count {
            push(&mut ring, number);
        }
        assert_eq!((ring.waiting.len(), ring.outstanding()), (100, 1124));
        let error = ring.wait(None).unwrap_err().to_string();
        assert!(error.starts_with("io_uring_enter() failed: "), "{error}");

        replace(&ring, &working);
        let mut entries = Vec::new();
        while ring.outstanding() > 0 {
            ring.wait(None).unwrap();
            ring.take_arrived(&mut entries);
        }
        assert!(entries.iter().map(cqueue::Entry::user_data).eq(0..count));
    }
}
