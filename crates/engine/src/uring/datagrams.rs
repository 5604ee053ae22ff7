//! Datagrams over io_uring: direct system calls, each for a batch, and polls between them.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};

use base::slab::Key;
use bytes::Bytes;
use io_uring::opcode;
use io_uring::types::Fd;

use super::{READABLE, ROOM, Uring, user_data};
use crate::buffer::Buffer;
use crate::engine::{Completion, Op, OpKind, OperationOutcome, Socket, Token};
use crate::messages::{Messages, Readiness};
use crate::net::Datagram;

/// The state of one datagram socket, or of another watched descriptor.
#[derive(Clone, Copy)]
pub(super) struct Datagrams {
    key: Key,
    readiness: Readiness,
    /// The kind of operation that waits for readability: [`OpKind::RecvMsg`] or
    /// [`OpKind::Readable`].
    receiving: Option<OpKind>,
    sending: bool,
}

impl Datagrams {
    fn new(key: Key) -> Datagrams {
        Datagrams {
            key,
            readiness: Readiness::new(),
            receiving: None,
            sending: false,
        }
    }
}

impl Uring {
    /// The state of the datagram socket `key`.
    fn datagrams(&mut self, key: Key) -> &mut Datagrams {
        let index = key.index as usize;
        if index >= self.datagrams.len() {
            self.datagrams.resize(index + 1, Datagrams::new(key));
        }
        let datagrams = &mut self.datagrams[index];
        if datagrams.key != key {
            *datagrams = Datagrams::new(key);
        }
        datagrams
    }

    pub(super) fn receive_datagrams(
        &mut self,
        socket: &Socket,
        into: &mut VecDeque<Datagram<Buffer>>,
        key: Key,
    ) -> Option<OperationOutcome> {
        let descriptor = socket.descriptor();
        let Some(descriptor) = descriptor else {
            return Some(Op::RecvMsg { socket, into }.unconnected());
        };
        let mut readiness = self.datagrams(key).readiness;
        let messages = self.messages.get_or_insert_with(Messages::new);
        let outcome = readiness.receive(messages, descriptor, into);
        self.datagrams(key).readiness = readiness;
        if outcome.is_none() {
            self.watch_datagrams(descriptor, key, OpKind::RecvMsg);
        }
        outcome
    }

    pub(super) fn send_datagrams(
        &mut self,
        socket: &Socket,
        datagrams: &VecDeque<Datagram<Bytes>>,
        key: Key,
    ) -> Option<OperationOutcome> {
        let Some(descriptor) = socket.descriptor() else {
            return Some(Op::SendMsg { socket, datagrams }.unconnected());
        };
        let mut readiness = self.datagrams(key).readiness;
        let messages = self.messages.get_or_insert_with(Messages::new);
        let outcome = readiness.send(messages, descriptor, datagrams);
        self.datagrams(key).readiness = readiness;
        if outcome.is_none() {
            self.watch_datagrams(descriptor, key, OpKind::SendMsg);
        }
        outcome
    }

    /// Queues a poll: for room if `kind` is [`OpKind::SendMsg`], else for readability.
    pub(super) fn watch_datagrams(&mut self, descriptor: BorrowedFd<'_>, key: Key, kind: OpKind) {
        let datagrams = self.datagrams(key);
        let (events, kind) = match kind {
            OpKind::SendMsg => {
                datagrams.sending = true;
                (libc::POLLOUT, ROOM)
            }
            kind => {
                datagrams.receiving = Some(kind);
                (libc::POLLIN, READABLE)
            }
        };
        let entry = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), events as u32)
            .build()
            .user_data(user_data(kind, key));
        // SAFETY: a poll has no pointers; the thread's table keeps the descriptor open until the
        // completion.
        unsafe { self.ring.push(entry) };
    }

    /// Handles the completion of a poll: the socket is readable or has room, or the poll was
    /// cancelled.
    pub(super) fn datagrams_ready(
        &mut self,
        kind: u64,
        index: u32,
        result: i32,
    ) -> Option<Completion> {
        // The place is not reused before this completion, so the state is that of the right socket.
        let datagrams = self.datagrams.get_mut(index as usize)?;
        let ended = if kind == ROOM {
            datagrams.readiness.note_writable();
            std::mem::take(&mut datagrams.sending).then_some(OpKind::SendMsg)
        } else {
            let failing = result < 0 || result & i32::from(libc::POLLERR | libc::POLLHUP) != 0;
            datagrams.readiness.note_readable(failing);
            datagrams.receiving.take()
        };
        let key = datagrams.key;
        ended.map(|kind| Completion {
            token: Token { key, kind },
            outcome: OperationOutcome::Ready,
            more: false,
        })
    }

    /// Cancels a poll. Its completion follows nevertheless.
    pub(super) fn cancel_datagrams(&mut self, token: Token) {
        let Some(datagrams) = self.datagrams.get(token.key.index as usize) else {
            return;
        };
        if token.kind == OpKind::SendMsg && datagrams.sending {
            self.end(ROOM, token.key);
        } else if datagrams.receiving == Some(token.kind) {
            self.end(READABLE, token.key);
        }
    }
}
