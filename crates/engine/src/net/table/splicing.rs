//! Moves received bytes of a stream into a pipe, without copying them to this process's memory.

use std::io;
use std::task::{Poll, Waker};

use base::slab::Key;

use super::{ReceiveState, StoredError, StreamState};
use crate::clock::Deadline;
use crate::pipe::Pipe;
use crate::worker::Reactor;

impl Reactor {
    /// Moves bytes that the kernel has received into an empty pipe, and returns their number. Moves
    /// none if a receive is in flight, a received buffer waits, or the last receive returned no
    /// bytes.
    pub(crate) fn splice(&mut self, key: Key, pipe: &Pipe) -> usize {
        let may_receive = |state: &&StreamState| {
            !state.receiving && state.arrived.is_none() && state.receive == ReceiveState::Bytes
        };
        if self.streams.get(key).filter(may_receive).is_none() {
            return 0;
        }
        let socket = self.engine.descriptor(key);
        socket.map_or(0, |socket| pipe.fill(socket))
    }

    /// Waits until the stream may be readable, without receiving. `is_waiting` is false at the
    /// first poll.
    pub(crate) fn poll_readable(
        &mut self,
        key: Key,
        deadline: Deadline,
        is_waiting: &mut bool,
        waker: &Waker,
    ) -> Poll<io::Result<()>> {
        let Some(state) = self.streams.get_mut(key) else {
            return Poll::Ready(Ok(())); // the next receive reports it
        };
        let is_known = state.arrived.is_some()
            || state.receive == ReceiveState::Ended
            || state.receive_failure != StoredError::NONE;
        if is_known || *is_waiting && !state.receiving {
            return Poll::Ready(Ok(()));
        }
        if !state.receiving {
            if !self.engine.await_bytes(key) {
                return Poll::Ready(Ok(()));
            }
            state.receiving = true;
        }
        *is_waiting = true;
        let deadline_ms = deadline.ms();
        if deadline_ms <= self.clock.now_ms() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        state.reader = Some(waker.clone());
        state.reader_deadline_ms = deadline_ms;
        self.arm_timer(key);
        Poll::Pending
    }
}
