//! Streams over our own TCP stack: the operations in flight on each, and the conversion of a
//! stream's segments to bytes of a connection.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;

use base::slab::Key;
use bytes::Bytes;
use netstack::{ConnectionId, Stack};

use super::port::Port;
use crate::buffer::Buffer;
use crate::carried::error_of;
use crate::engine::{CloseMode, Control, OperationOutcome, Outgoing, SendStop};
use crate::net::Segment;

/// Maximum number of bytes of a file that are read at once.
const FILE_PART_MAX: u64 = 64 * 1024;

/// A stream over a connection of our own TCP stack, with its operations in flight.
#[derive(Debug)]
pub(super) struct Carried {
    pub(super) key: Key,
    /// The index of the connection's port in the engine.
    pub(super) port: usize,
    pub(super) id: ConnectionId,
    /// A connect is in flight.
    pub(super) connecting: bool,
    /// A receive is in flight.
    pub(super) receiving: bool,
    /// The send in flight.
    pub(super) sending: Option<Box<Sending>>,
    /// Closing the stream resets the connection.
    resets: bool,
    /// The receiving side is shut down: receives return the end of input.
    is_shut: bool,
}

/// A send that waits for room.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) outgoing: Box<Outgoing>,
    pub(super) chunk: u64,
    pub(super) ending: CloseMode,
}

impl Carried {
    pub(super) fn new(key: Key, port: usize, id: ConnectionId) -> Carried {
        Carried {
            key,
            port,
            id,
            connecting: false,
            receiving: false,
            sending: None,
            resets: false,
            is_shut: false,
        }
    }

    /// Receives available data; `None` if there is none, and the receive waits.
    pub(super) fn receive(&mut self, stack: &mut Stack) -> Option<OperationOutcome> {
        if self.is_shut {
            return Some(OperationOutcome::Received(Ok(Buffer::empty())));
        }
        let received = match stack.unread(self.id) {
            0 => match stack.receive(self.id, &mut [0]) {
                Ok(None) => None,
                Ok(Some(_)) => Some(Ok(Buffer::empty())),
                Err(error) => Some(Err(error_of(error))),
            },
            unread => Some(receive_bytes(stack, self.id, unread)),
        };
        self.receiving = received.is_none();
        received.map(OperationOutcome::Received)
    }

    /// Sends as much as the connection has room for; `None` if it has no room, and the send waits.
    pub(super) fn send(
        &mut self,
        stack: &mut Stack,
        mut sending: Sending,
    ) -> Option<OperationOutcome> {
        let (taken, stop) = transmit(stack, self.id, &mut sending.outgoing, sending.chunk);
        if taken == 0 && matches!(stop, SendStop::Blocked) {
            self.sending = Some(Box::new(sending));
            return None;
        }
        Some(OperationOutcome::Sent {
            outgoing: sending.outgoing,
            taken,
            stop,
        })
    }

    /// Changes a property of the stream. Returns the outcome of the waiting receive if the change
    /// ends it.
    pub(super) fn control(
        &mut self,
        stack: &mut Stack,
        control: Control,
    ) -> io::Result<Option<OperationOutcome>> {
        let finish = |stack: &mut Stack| {
            // A connection that has ended needs no finish.
            let _ = stack.finish(self.id);
        };
        match control {
            // The stack never delays a partial segment, so there is nothing to change.
            Control::NoDelay(_) => return Ok(None),
            Control::KernelTls => return Err(io::ErrorKind::Unsupported.into()),
            Control::ResetOnClose => {
                self.resets = true;
                return Ok(None);
            }
            Control::ShutdownWrite => {
                finish(stack);
                return Ok(None);
            }
            Control::ShutdownRead => {}
            Control::ShutdownBoth => finish(stack),
        }
        self.is_shut = true;
        let was_waiting = std::mem::take(&mut self.receiving);
        Ok(was_waiting.then(|| OperationOutcome::Received(Ok(Buffer::empty()))))
    }

    /// Closes the connection, with a reset if that was requested.
    pub(super) fn close(self, port: &mut Port, now: std::time::Duration) {
        port.forget_name(self.id);
        if self.resets {
            return port.stack.abort(self.id);
        }
        if port.stack.unread(self.id) > 0 {
            // Unread data makes the release reset the connection. As with a kernel socket, data
            // sent before must leave first.
            port.flush(now);
        }
        port.stack.release(now, self.id);
    }
}

/// Receives into a pooled buffer. `unread` is the number of available bytes.
#[expect(unsafe_code, reason = "memory that is written at its start alone")]
fn receive_bytes(stack: &mut Stack, id: ConnectionId, unread: usize) -> io::Result<Buffer> {
    Buffer::receive(|memory| {
        let count = unread.min(memory.len());
        let (part, _) = memory.split_at_mut(count);
        // Zero only the part that will be written.
        part.fill(MaybeUninit::new(0));
        // SAFETY: all bytes of `part` have just been initialized.
        let part = unsafe { &mut *(std::ptr::from_mut(part) as *mut [u8]) };
        let count = stack.receive(id, part).map_err(error_of)?;
        Ok(part.split_at_mut(count.unwrap_or_default()).0)
    })
}

/// Passes segments to the connection, as far as it has room. Returns the number of bytes taken, and
/// why the send stopped.
fn transmit(
    stack: &mut Stack,
    id: ConnectionId,
    outgoing: &mut Outgoing,
    chunk: u64,
) -> (u64, SendStop) {
    let mut taken = 0;
    let mut of_files = 0;
    loop {
        let sent = match outgoing.front() {
            None => return (taken, SendStop::Empty),
            Some(Segment::Bytes(bytes)) if bytes.is_empty() => {
                outgoing.pop_front();
                continue;
            }
            // The connection holds a reference to the bytes, not a copy.
            Some(Segment::Bytes(bytes)) => stack.send(id, bytes.clone()).map_err(error_of),
            Some(Segment::Piped { .. } | Segment::Keys(_) | Segment::Record { .. }) => {
                return (taken, SendStop::Failed(io::ErrorKind::Unsupported.into()));
            }
            Some(Segment::File { .. }) if of_files >= chunk => return (taken, SendStop::Chunk),
            Some(Segment::File { .. }) if outgoing.warm == 0 => return (taken, SendStop::Cold),
            Some(Segment::File {
                file,
                offset,
                length,
            }) => {
                let most = (*length).min(outgoing.warm).min(chunk - of_files);
                let sent = send_file(stack, id, file, *offset, most);
                of_files += sent.as_ref().map_or(0, |count| *count as u64);
                sent
            }
        };
        match sent {
            Ok(0) => return (taken, SendStop::Blocked),
            Ok(count) => {
                outgoing.advance(count as u64);
                taken += count as u64;
            }
            Err(error) => return (taken, SendStop::Failed(error)),
        }
    }
}

/// Sends a part of a file, at most `most` bytes, and returns their number: 0 if the connection has
/// no room.
fn send_file(
    stack: &mut Stack,
    id: ConnectionId,
    file: &crate::file::File,
    offset: u64,
    most: u64,
) -> io::Result<usize> {
    let room = stack.room(id).map_err(error_of)?;
    let count = most.min(FILE_PART_MAX).min(room as u64);
    if count == 0 {
        return Ok(0);
    }
    let mut part = vec![0; usize::try_from(count).unwrap_or_default()];
    let read = rustix::io::preadv(file, &mut [IoSliceMut::new(&mut part)], offset)?;
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    part.truncate(read);
    stack.send(id, Bytes::from(part)).map_err(error_of)
}
