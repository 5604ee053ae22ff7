//! The server side of an HTTP/2 connection: frames that concern a stream or the connection as a
//! whole, and carry no part of a request.
//!
//! This file implements their effects and their rate limits. [`connection`](super::connection)
//! decides which frames are allowed.

use super::connection::{Connection, Event, FrameOutcome, ReadState, TableUpdate};
use super::error::{ErrorCode, StreamFault, Violation};
use super::frame::{self, FrameHead, STREAM_MAX, flags};
use super::priority::Priority;
use super::settings::{self, WINDOW_MAX};
use super::{meter, window};

/// Limit of priorities that are stored for streams which have not begun.
const EARLY_PRIORITIES_MAX: usize = 32;

impl<S> Connection<S> {
    pub(super) fn reset_by_peer(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<FrameOutcome, Violation> {
        let Ok(code) = <[u8; 4]>::try_from(payload) else {
            return Err(Violation::Length("RST_STREAM", head.length));
        };
        if self.is_idle(head.stream) {
            return Err(Violation::Identifier("RST_STREAM"));
        }
        if self.resets_too_often() {
            return Err(Violation::TooMany("RST_STREAM frames"));
        }
        let code = ErrorCode::from_number(u32::from_be_bytes(code));
        // The client has ended the stream, so that no further frames are expected on it.
        self.recently_reset
            .retain(|recently_reset| *recently_reset != head.stream);
        let was_open = self.close(head.stream);
        Ok(if was_open {
            FrameOutcome::Event(Event::Reset {
                stream: head.stream,
                code,
                fault: None,
            })
        } else {
            FrameOutcome::Nothing
        })
    }

    pub(super) fn settings(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<FrameOutcome, Violation> {
        if head.stream != 0 {
            return Err(Violation::Identifier("SETTINGS"));
        }
        let (settings, rest) = payload.as_chunks::<6>();
        let is_answer = head.has(flags::ACK);
        if !rest.is_empty() || is_answer && !payload.is_empty() {
            return Err(Violation::Length("SETTINGS", head.length));
        }
        if self
            .meters
            .settings
            .exceeds(self.second, meter::SETTINGS_MAX)
        {
            return Err(Violation::TooMany("SETTINGS frames"));
        }
        if is_answer {
            self.is_acknowledged = true;
            return Ok(FrameOutcome::Nothing);
        }
        let before = self.peer.initial_window;
        for [n0, n1, v0, v1, v2, v3] in settings {
            let name = u16::from_be_bytes([*n0, *n1]);
            let value = u32::from_be_bytes([*v0, *v1, *v2, *v3]);
            self.peer.set(name, value)?;
            // The same frame may raise the size again: the update is owed nevertheless.
            if name == settings::HEADER_TABLE_SIZE
                && value < settings::TABLE_SIZE_AT_FIRST
                && self.table_update == TableUpdate::Unneeded
            {
                self.table_update = TableUpdate::Due;
            }
        }
        let after = self.peer.initial_window;
        if after != before {
            self.move_windows(i64::from(after) - i64::from(before), after)?;
        }
        frame::put_settings_ack(&mut self.control);
        self.awaits = ReadState::Frame;
        Ok(FrameOutcome::Nothing)
    }

    /// Adds the change of the initial window to all streams' windows, which may become negative
    /// (RFC 9113, section 6.9.2).
    fn move_windows(&mut self, by: i64, value: u32) -> Result<(), Violation> {
        let mut opened = Vec::new();
        for (number, stream) in &mut self.streams {
            // A stream on which we send no more has no send window: the client may have forgotten
            // it.
            if !stream.sends {
                continue;
            }
            stream.send_window += by;
            if stream.send_window > i64::from(WINDOW_MAX) {
                return Err(Violation::SettingOverflows(value));
            }
            if stream.has_more {
                opened.push(*number);
            }
        }
        // In order of their identifiers, so that the behaviour is deterministic.
        opened.sort_unstable();
        opened.into_iter().for_each(|stream| self.schedule(stream));
        Ok(())
    }

    /// Whether a stream has not begun, or has an even identifier, which clients cannot use.
    fn is_idle(&self, stream: u32) -> bool {
        stream > self.last_stream || stream.is_multiple_of(2)
    }

    pub(super) fn ping(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<FrameOutcome, Violation> {
        let Ok(payload) = <[u8; 8]>::try_from(payload) else {
            return Err(Violation::Length("PING", head.length));
        };
        if head.stream != 0 {
            return Err(Violation::Identifier("PING"));
        }
        if self.meters.pings.exceeds(self.second) {
            return Err(Violation::TooMany("PING frames"));
        }
        if head.has(flags::ACK) {
            return Ok(FrameOutcome::Event(Event::Pong));
        }
        frame::put_ping(&mut self.control, true, payload);
        Ok(FrameOutcome::Nothing)
    }

    pub(super) fn go_away_by_peer(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<FrameOutcome, Violation> {
        if head.stream != 0 {
            return Err(Violation::Identifier("GOAWAY"));
        }
        let code = payload
            .get(4..8)
            .and_then(|code| <[u8; 4]>::try_from(code).ok());
        let Some(code) = code else {
            return Err(Violation::Length("GOAWAY", head.length));
        };
        // Further GOAWAY frames have no effect.
        self.count_empty()?;
        let code = ErrorCode::from_number(u32::from_be_bytes(code));
        Ok(FrameOutcome::Event(Event::GoAway(code)))
    }

    pub(super) fn window_update(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<FrameOutcome, Violation> {
        let increment = window::increment(head, payload)?;
        if self
            .meters
            .updates
            .exceeds(self.second, meter::WINDOW_UPDATES_MAX)
            && increment < 1024
        {
            return Err(Violation::TooMany("WINDOW_UPDATE frames"));
        }
        if head.stream == 0 {
            self.send_window = window::widened_of_connection(self.send_window, increment)?;
            return Ok(FrameOutcome::Nothing);
        }
        if self.is_idle(head.stream) {
            return Err(Violation::Identifier("WINDOW_UPDATE"));
        }
        let Some(stream) = self.streams.get_mut(&head.stream) else {
            return Ok(FrameOutcome::Nothing);
        };
        if !stream.sends {
            return Ok(FrameOutcome::Nothing);
        }
        if increment == 0 {
            return self.reset_for_fault(head.stream, StreamFault::NoIncrement(head.stream));
        }
        let Some(window) = window::widened(stream.send_window, increment) else {
            let fault = StreamFault::WindowOverflow(head.stream, increment, stream.send_window);
            return self.reset_for_fault(head.stream, fault);
        };
        stream.send_window = window;
        self.schedule(head.stream);
        Ok(FrameOutcome::Nothing)
    }

    pub(super) fn priority(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<FrameOutcome, Violation> {
        let Ok(dependency) = <[u8; 5]>::try_from(payload) else {
            return Err(Violation::Length("PRIORITY", head.length));
        };
        if head.stream == 0 {
            return Err(Violation::Identifier("PRIORITY"));
        }
        if depends_on(&dependency) == head.stream {
            return Err(Violation::Dependency("PRIORITY", head.stream));
        }
        self.count_priority()
    }

    fn count_priority(&mut self) -> Result<FrameOutcome, Violation> {
        if self
            .meters
            .priorities
            .exceeds(self.second, meter::PRIORITIES_MAX)
        {
            Err(Violation::TooMany("PRIORITY frames"))
        } else {
            Ok(FrameOutcome::Nothing)
        }
    }

    pub(super) fn priority_update(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<FrameOutcome, Violation> {
        let Some((stream, value)) = payload.split_first_chunk::<4>() else {
            return Err(Violation::Length("PRIORITY_UPDATE", head.length));
        };
        let stream = u32::from_be_bytes(*stream) & STREAM_MAX;
        if head.stream != 0 || stream == 0 || stream.is_multiple_of(2) {
            return Err(Violation::PriorityUpdate);
        }
        let priority = Priority::parse(value);
        self.count_priority()?;
        if stream > self.last_stream {
            // Also drops priorities of streams that were answered without being opened.
            let last = self.last_stream;
            self.early_priorities
                .retain(|(known, _)| *known != stream && *known > last);
            if self.early_priorities.len() < EARLY_PRIORITIES_MAX {
                self.early_priorities.push((stream, priority));
            }
        } else {
            self.set_priority(stream, priority);
        }
        Ok(FrameOutcome::Nothing)
    }

    /// The priority that a PRIORITY_UPDATE frame gave a stream before the stream began.
    pub(super) fn take_early_priority(&mut self, stream: u32) -> Option<Priority> {
        if self.early_priorities.is_empty() {
            return None;
        }
        let found = self
            .early_priorities
            .iter()
            .find(|(known, _)| *known == stream);
        let found = found.map(|(_, priority)| *priority);
        self.early_priorities.retain(|(known, _)| *known > stream);
        found
    }
}

/// The stream dependency in the priority fields of RFC 7540.
pub(super) fn depends_on([s0, s1, s2, s3, _]: &[u8; 5]) -> u32 {
    u32::from_be_bytes([*s0, *s1, *s2, *s3]) & STREAM_MAX
}
