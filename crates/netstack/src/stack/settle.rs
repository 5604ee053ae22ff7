//! Bookkeeping after a connection has changed: its state, its memory, its deadline, its place in
//! the send queue, and the events for the application.

use base::slab::Key;

use super::{Neighbouring, Stack};
use crate::tcp::{Effects, Outgoing, Reason, State};
use crate::wire::ethernet::MacAddress;

impl Stack {
    /// Applies the effects of an event. A reset is sent to `card` if the event was a frame from
    /// there.
    pub(super) fn apply(&mut self, key: Key, effects: Effects, card: Option<MacAddress>) {
        let Some(slot) = self.table.get_mut(key) else {
            return;
        };
        if effects.reset.is_none() && effects.next.is_none() {
            slot.notices.is_readable |= effects.readable;
            slot.notices.is_writable |= effects.writable;
            return self.settle(key);
        }
        if let Some(reset) = effects.reset {
            let (tuple, heard) = (slot.tuple, slot.heard);
            let card = match self.settings.neighbouring {
                Neighbouring::Told => card.or(heard),
                Neighbouring::Asks => card,
            };
            self.reply(&tuple, *reset, card);
        }
        let Some(slot) = self.table.get_mut(key) else {
            return;
        };
        slot.notices.is_readable |= effects.readable;
        slot.notices.is_writable |= effects.writable;
        if let Some(next) = effects.next {
            let before = std::mem::replace(&mut slot.state, *next);
            self.go_on(key, &before);
        }
        self.settle(key);
    }

    /// Handles a connection's transition from the state `before`.
    fn go_on(&mut self, key: Key, before: &State) {
        let was_handshake = matches!(before, State::SynSent(_) | State::SynReceived(_));
        let was_counted = matches!(before, State::SynReceived(state) if state.is_passive);
        let Some(slot) = self.table.get_mut(key) else {
            return;
        };
        let listener = slot.listener;
        let closed = match slot.state {
            State::Closed(reason, _) => Some(reason),
            _ => None,
        };
        slot.notices.closed = closed;
        let waits = matches!(slot.state, State::TimeWait(_));
        let stands = was_handshake && matches!(slot.state, State::Synchronized(_));
        slot.notices.is_connected |= stands && listener.is_none();
        if let Some(at) = listener
            && let Some(listener) = self.table.listener_mut(at)
        {
            listener.handshakes -= usize::from(was_counted && listener.handshakes > 0);
            if stands {
                self.counts.accepted += 1;
                listener.ready.push_back(key);
                if !std::mem::replace(&mut listener.is_noticed, true) {
                    self.listeners_noticed.push_back(at);
                }
            } else if closed.is_some() {
                listener.ready.retain(|ready| *ready != key);
            }
        }
        if let Some(reason) = closed {
            self.end(key, reason);
        }
        if waits {
            self.note_time_wait(key);
        }
    }

    /// Handles a connection's transition to TIME-WAIT.
    fn note_time_wait(&mut self, key: Key) {
        while let Some(first) = self.time_waits.front()
            && !self.is_in_time_wait(*first)
        {
            self.time_waits.pop_front();
        }
        self.time_waits.push_back(key);
    }

    fn is_in_time_wait(&self, key: Key) -> bool {
        let slot = self.table.get(key);
        slot.is_some_and(|slot| matches!(slot.state, State::TimeWait(_)))
    }

    /// Makes room for one more connection by removing the one that has been in TIME-WAIT the
    /// longest and that the application has released.
    pub(super) fn make_place(&mut self) {
        while self.table.len() >= self.settings.connections_max
            && let Some(first) = self.time_waits.pop_front()
        {
            let is_held = self.table.get(first).is_some_and(|slot| slot.is_held);
            if !is_held && self.is_in_time_wait(first) {
                self.forget(first);
            }
        }
    }

    /// Ends a connection. Its table entry remains only while the application holds it, and is no
    /// longer found by its endpoints.
    fn end(&mut self, key: Key, _reason: Reason) {
        self.table.unlink(key);
        let is_held = self.table.get(key).is_some_and(|slot| slot.is_held);
        if !is_held {
            self.forget(key);
        }
    }

    pub(super) fn forget(&mut self, key: Key) {
        let Some(slot) = self.table.remove(key) else {
            return;
        };
        self.memory -= slot.charged;
        if let Some((_, entry)) = slot.timer {
            self.wheel.cancel(entry);
        }
        if let State::SynReceived(state) = &slot.state
            && state.is_passive
            && let Some(listener) = slot.listener.and_then(|at| self.table.listener_mut(at))
        {
            listener.handshakes = listener.handshakes.saturating_sub(1);
        }
    }

    /// Called after the application has queued data for sending.
    pub(super) fn note_sent(&mut self, key: Key) {
        if let Some(slot) = self.table.get_mut(key) {
            slot.charge(&mut self.memory);
            slot.queue_for_sending(key, &mut self.sending);
        }
    }

    /// Updates everything that depends on a connection's state.
    pub(super) fn settle(&mut self, key: Key) {
        let Some(slot) = self.table.get_mut(key) else {
            return;
        };
        slot.charge(&mut self.memory);
        slot.queue_for_sending(key, &mut self.sending);
        let notices = &mut slot.notices;
        let has_news = notices.is_connected
            || notices.is_readable
            || notices.is_writable
            || notices.closed.is_some();
        if has_news && slot.is_held && !std::mem::replace(&mut notices.is_queued, true) {
            self.noticed.push_back(key);
        }
    }

    /// Sets the timer of a connection. Called once the connection has nothing more to send, because
    /// every change leads there and each segment moves the deadline.
    pub(super) fn note_deadline(&mut self, key: Key) {
        let Some(slot) = self.table.get_mut(key) else {
            return;
        };
        // Rounded up, so that the timer does not fire before the deadline. A timer that is too
        // early is set again when it fires, which is cheaper than moving it with each segment.
        let deadline = slot.state.deadline();
        let deadline_ms = deadline
            .map(|at| at.as_secs() * 1000 + u64::from(at.subsec_nanos().div_ceil(1_000_000)));
        if let Some(at) = deadline_ms
            && slot.timer.is_none_or(|(before, _)| at < before)
        {
            if let Some((_, entry)) = slot.timer {
                self.wheel.cancel(entry);
            }
            slot.timer = Some((at, self.wheel.schedule(at, key)));
        }
    }

    /// Sends a segment of no connection to `card`, or without `card` to the next hop, if its
    /// hardware address is known.
    pub(super) fn reply(
        &mut self,
        tuple: &crate::tcp::Tuple,
        outgoing: Outgoing,
        card: Option<MacAddress>,
    ) {
        let remote = *tuple.remote.ip();
        let card = match self.settings.neighbouring {
            Neighbouring::Told => self.ways.card(remote).or(card),
            Neighbouring::Asks => card.or_else(|| self.neighbours.card(self.next_hop(remote))),
        };
        let Some(card) = card else {
            return;
        };
        let mut frame = vec![0; super::PAYLOAD + 60];
        let length = super::transmit::emit(&mut frame, self.settings.mac, card, tuple, &outgoing);
        frame.truncate(length);
        self.push_reply(frame);
    }

    /// Queues a complete frame, unless too many are queued already.
    pub(super) fn push_reply(&mut self, frame: Vec<u8>) {
        if self.replies.len() < super::REPLIES_MAX {
            self.replies.push_back(frame);
        }
    }
}
