//! Pipes that move bytes from one socket to another by splice(2), without copying them through this
//! process.
//!
//! A thread keeps a few unused pipes for the next stream that needs one. If the thread has
//! [`PIPES_MAX`] pipes, or the process has no descriptors left, [`Pipe::take`] returns `None`, and
//! the caller copies the bytes.

use std::cell::{Cell, RefCell};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

/// Maximum number of pipes of a thread. Each has two descriptors.
const PIPES_MAX: usize = 128;

/// Maximum number of unused pipes that a thread keeps.
const SPARES_MAX: usize = 16;

/// The capacity of a pipe in bytes. The kernel grants less to a user who has many pipes.
const CAPACITY: usize = 256 << 10;

thread_local! {
    static OPEN: Cell<usize> = const { Cell::new(0) };
    static SPARES: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// A pipe and the bytes in it.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    /// Bytes in the pipe.
    held: AtomicUsize,
}

impl Pipe {
    /// Returns an empty pipe; `None` if the thread has its maximum number of pipes, or the kernel
    /// cannot create one.
    #[must_use]
    pub fn take() -> Option<Pipe> {
        if let Some(spare) = SPARES.with_borrow_mut(Vec::pop) {
            return Some(spare);
        }
        if OPEN.get() >= PIPES_MAX {
            return None;
        }
        let (reader, writer) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        // If this fails, the pipe keeps its default capacity of at most 64 KiB.
        let _ = rustix::pipe::fcntl_setpipe_size(&writer, CAPACITY);
        OPEN.set(OPEN.get() + 1);
        Some(Pipe {
            reader,
            writer,
            held: AtomicUsize::new(0),
        })
    }

    /// Keeps the pipe for another stream, or closes it if it holds bytes or enough are kept.
    pub fn give_back(self) {
        if self.held.load(Ordering::Relaxed) > 0 {
            return;
        }
        // While the thread ends, the list may be gone; then the pipe is closed.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARES_MAX {
                spares.push(self);
            }
        });
    }

    /// Moves received bytes of a socket into the pipe, as many as fit, and returns their number.
    /// Returns 0 if the pipe is not empty, if no bytes were received, at the end of input, and
    /// after an error; the next receive reports the last two.
    pub(crate) fn fill(&self, socket: BorrowedFd<'_>) -> usize {
        if self.held.load(Ordering::Relaxed) > 0 {
            return 0;
        }
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let moved = rustix::pipe::splice(socket, None, &self.writer, None, CAPACITY, flags);
        let count = moved.unwrap_or(0);
        self.held.store(count, Ordering::Relaxed);
        count
    }

    /// Moves at most `count` bytes from the pipe to a socket, and returns their number.
    ///
    /// # Errors
    /// Those of `splice()`; `EAGAIN` if the socket has no room.
    pub(crate) fn pour(&self, socket: BorrowedFd<'_>, count: u64) -> Result<usize, Errno> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let moved = rustix::pipe::splice(&self.reader, None, socket, None, count, flags)?;
        let held = self.held.load(Ordering::Relaxed);
        self.held
            .store(held.saturating_sub(moved), Ordering::Relaxed);
        Ok(moved)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // While the thread ends, the counter may be gone.
        let _ = OPEN.try_with(|open| open.set(open.get().saturating_sub(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_thread_has_a_bounded_number_of_pipes() {
        let mut all: Vec<Pipe> = std::iter::from_fn(Pipe::take).collect();
        assert_eq!(all.len(), PIPES_MAX);
        all.pop().unwrap().give_back();
        let again = Pipe::take();
        assert!(again.is_some() && Pipe::take().is_none());
        drop(all);
        assert_eq!(OPEN.get(), 1);
    }

    #[test]
    fn bytes_pass_through_a_pipe() {
        let (mut from, inner) = UnixStream::pair().unwrap();
        let (outer, mut to) = UnixStream::pair().unwrap();
        inner.set_nonblocking(true).unwrap();
        let pipe = Pipe::take().unwrap();
        assert_eq!(pipe.fill(inner.as_fd()), 0, "nothing yet");
        from.write_all(b"some bytes").unwrap();
        assert_eq!(pipe.fill(inner.as_fd()), 10);
        from.write_all(b"more").unwrap();
        assert_eq!(pipe.fill(inner.as_fd()), 0, "it is not empty");
        assert_eq!(pipe.pour(outer.as_fd(), 4), Ok(4));
        assert_eq!(pipe.pour(outer.as_fd(), 100), Ok(6));
        assert_eq!(pipe.fill(inner.as_fd()), 4);
        assert_eq!(pipe.pour(outer.as_fd(), 4), Ok(4));
        let mut read = [0; 14];
        to.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"some bytesmore");
        drop(from);
        assert_eq!(pipe.fill(inner.as_fd()), 0, "the end");
    }

    #[test]
    fn a_pipe_that_holds_bytes_is_no_spare() {
        let (mut from, inner) = UnixStream::pair().unwrap();
        from.write_all(b"some bytes").unwrap();
        let pipe = Pipe::take().unwrap();
        assert_eq!(pipe.fill(inner.as_fd()), 10);
        pipe.give_back();
        assert_eq!(SPARES.with_borrow(Vec::len), 0);
        Pipe::take().unwrap().give_back();
        assert_eq!(SPARES.with_borrow(Vec::len), 1);
    }
}
