//! A send in flight over io_uring.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use io_uring::types::Fd;
use io_uring::{opcode, squeue};

use crate::engine::{CloseMode, Outgoing};
use crate::net::Segment;
use crate::sys;

/// The largest send, in bytes, that is linked to a close. A linked send must complete as a whole,
/// so the progress of a larger one would be invisible, and a slow peer would seem dead.
pub(super) const LINKED_SEND_MAX: usize = 256 * 1024;

/// A send in flight, with all memory that the kernel reads for it.
pub(super) struct Sending {
    /// The segments to send.
    pub(super) outgoing: Box<Outgoing>,
    /// Maximum number of bytes of files to send in one turn.
    pub(super) chunk: u64,
    /// Whether and how the connection closes after the send.
    pub(super) last: CloseMode,
    /// The stream is ending, so the send must not be continued.
    pub(super) ending: bool,
    /// The result of a send that is linked to a close, until the close completes.
    pub(super) linked: Option<i32>,
    /// The descriptor given to the linked close; restored if the close is cancelled.
    pub(super) closing: RawFd,
    header: libc::msghdr,
    /// The byte strings of the send.
    pub(super) parts: Vec<libc::iovec>,
}

impl Sending {
    pub(super) fn new(outgoing: Box<Outgoing>) -> Sending {
        Sending {
            outgoing,
            chunk: 0,
            last: CloseMode::Never,
            ending: false,
            linked: None,
            closing: -1,
            // SAFETY: `msghdr` is plain numbers and pointers, for which zero is a valid value.
            header: unsafe { std::mem::zeroed() },
            parts: Vec::new(),
        }
    }

    /// The submission for the byte strings at the front, and their total length.
    pub(super) fn entry(&mut self, socket: Fd) -> (squeue::Entry, usize) {
        self.parts.clear();
        let mut segments = self.outgoing.segments();
        let mut total = 0;
        while self.parts.len() < sys::PARTS_MAX
            && let Some(Segment::Bytes(bytes)) = segments.next()
        {
            total += bytes.len();
            self.parts.push(libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            });
        }
        let mut flags = libc::MSG_NOSIGNAL;
        // The kernel must not send a partial TCP segment if more data follows at once. A range of a
        // file that must first be read from the disk does not follow at once.
        let follows = match segments.next() {
            None => self.last == CloseMode::Quick && total <= LINKED_SEND_MAX,
            Some(Segment::Bytes(_)) => true,
            Some(Segment::File { .. }) => self.outgoing.warm > 0,
            Some(Segment::Piped { .. } | Segment::Keys(_) | Segment::Record { .. }) => false,
        };
        if follows {
            flags |= libc::MSG_MORE;
        }
        if self.last.closes() {
            // Without this flag a short send would not break the link, and the close would truncate
            // the data.
            flags |= libc::MSG_WAITALL;
        }
        if let [part] = &self.parts[..]
            && let Ok(length) = u32::try_from(part.iov_len)
        {
            let entry = opcode::Send::new(socket, part.iov_base.cast(), length);
            return (entry.flags(flags).build(), total);
        }
        self.header.msg_iov = self.parts.as_mut_ptr();
        self.header.msg_iovlen = self.parts.len() as _;
        let entry = opcode::SendMsg::new(socket, &raw const self.header);
        (entry.flags(flags as u32).build(), total)
    }
}
