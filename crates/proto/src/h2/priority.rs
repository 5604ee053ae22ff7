//! Response priorities (RFC 9218), and the scheduler that decides which stream sends next.
//!
//! Clients set priorities with the field `priority` or a PRIORITY_UPDATE frame. Urgency 0 is served
//! before 7. Within one urgency, non-incremental responses are sent one after the other in the
//! order of their requests, and incremental responses (`i`) take turns. To prevent starvation by a
//! client that keeps requesting more urgent responses, or by an endless response, every sixteenth
//! turn goes to the urgency that has waited longest, and rotates among its streams.

use std::collections::VecDeque;

/// Number of urgencies (0 to 7).
const URGENCIES: usize = 8;

/// One of this many turns goes to the urgency that has waited longest.
const FAIR_SHARE: u32 = 16;

/// The priority that a client gives a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0 is the most urgent, 7 the least.
    pub urgency: u8,
    /// Whether the client can use the response in parts, as it arrives.
    pub incremental: bool,
}

impl Default for Priority {
    /// The priority of a response for which the client sets none.
    fn default() -> Priority {
        Priority {
            urgency: 3,
            incremental: false,
        }
    }
}

impl Priority {
    /// Parses the value of a `priority` field. Missing or invalid parameters keep their defaults.
    #[must_use]
    pub fn parse(value: &[u8]) -> Priority {
        let mut priority = Priority::default();
        for member in value.split(|byte| *byte == b',') {
            match member.trim_ascii() {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                [b'u', b'=', digit @ b'0'..=b'7', b';', ..] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                [b'i', b';', ..] => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

/// The streams that wait for their turn to send, by urgency.
#[derive(Debug, Default)]
pub struct Schedule {
    lanes: [UrgencyQueue; URGENCIES],
    turns: u32,
}

#[derive(Debug, Default)]
struct UrgencyQueue {
    /// Streams whose responses are not incremental, by stream number.
    whole: VecDeque<u32>,
    /// Streams whose responses are incremental, in the order of their turns.
    shared: VecDeque<u32>,
    /// Whether the next turn belongs to an incremental stream.
    shared_next: bool,
    /// Number of fair turns so far, for the rotation of [`next_in_circle`](Self::next_in_circle).
    circle: usize,
    /// The turn that was the urgency's last, or after which it began to wait.
    since: u32,
}

impl UrgencyQueue {
    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.shared.is_empty()
    }

    /// The next stream in a fair turn: rotates among the non-incremental streams, and one place
    /// that all incremental streams share.
    fn next_in_circle(&mut self) -> Option<u32> {
        let length = self.whole.len() + usize::from(!self.shared.is_empty());
        let place = self.circle.checked_rem(length)?;
        self.circle = self.circle.wrapping_add(1);
        let whole = self.whole.remove(place);
        whole.or_else(|| self.shared.pop_front())
    }

    fn next(&mut self) -> Option<u32> {
        let shared_first = self.shared_next;
        self.shared_next = !shared_first;
        if shared_first {
            self.shared.pop_front().or_else(|| self.whole.pop_front())
        } else {
            self.whole.pop_front().or_else(|| self.shared.pop_front())
        }
    }
}

impl Schedule {
    /// Adds a stream that waits for its turn; it must not be waiting already.
    pub fn add(&mut self, stream: u32, priority: Priority) {
        let Some(lane) = self.lanes.get_mut(usize::from(priority.urgency)) else {
            return;
        };
        if lane.is_empty() {
            lane.since = self.turns;
        }
        if priority.incremental {
            lane.shared.push_back(stream)
        } else {
            let place = lane.whole.partition_point(|waiting| *waiting < stream);
            lane.whole.insert(place, stream);
        }
    }

    /// Removes and returns the stream whose turn it is.
    pub fn take(&mut self) -> Option<u32> {
        let turn = self.turns.wrapping_add(1);
        self.turns = turn;
        let mut waiting = self.lanes.iter_mut().filter(|lane| !lane.is_empty());
        let is_fair = turn.is_multiple_of(FAIR_SHARE);
        let lane = if is_fair {
            waiting.max_by_key(|lane| turn.wrapping_sub(lane.since))
        } else {
            waiting.next()
        }?;
        lane.since = turn;
        if is_fair {
            lane.next_in_circle()
        } else {
            lane.next()
        }
    }

    /// Removes a stream, which was added with this priority.
    pub fn remove(&mut self, stream: u32, priority: Priority) {
        if let Some(lane) = self.lanes.get_mut(usize::from(priority.urgency)) {
            lane.whole.retain(|waiting| *waiting != stream);
            lane.shared.retain(|waiting| *waiting != stream);
        }
    }

    /// Whether no stream waits for its turn.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(UrgencyQueue::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(urgency: u8, incremental: bool) -> Priority {
        Priority {
            urgency,
            incremental,
        }
    }

    #[test]
    fn priorities_are_read_as_the_rfc_writes_them() {
        // Examples of RFC 9218, sections 4 and 5.
        assert_eq!(Priority::parse(b"u=0"), of(0, false));
        assert_eq!(Priority::parse(b"u=5, i"), of(5, true));
        assert_eq!(Priority::parse(b"i"), of(3, true));
        assert_eq!(Priority::parse(b"u=1;a=b,i=?1"), of(1, true));
        assert_eq!(Priority::parse(b"i, i=?0"), of(3, false));
        for odd in [
            &b""[..],
            b"u=8",
            b"u=-1",
            b"u",
            b"U=1",
            b"u=01",
            b"i=1",
            b"\xff,,;",
        ] {
            assert_eq!(Priority::parse(odd), Priority::default(), "{odd:?}");
        }
    }

    #[test]
    fn urgent_streams_go_first_and_incremental_ones_take_turns() {
        let mut schedule = Schedule::default();
        schedule.add(9, of(3, false));
        schedule.add(7, of(3, false));
        schedule.add(1, of(7, false));
        schedule.add(3, of(5, true));
        schedule.add(5, of(5, true));
        schedule.add(11, of(0, false));
        let mut order = Vec::new();
        for _ in 0..7 {
            let stream = schedule.take().unwrap();
            order.push(stream);
            // A stream with more to send is added again.
            if stream == 3 && order.len() < 6 {
                schedule.add(3, of(5, true));
            }
        }
        assert_eq!(order, [11, 7, 9, 3, 5, 3, 1]);
        assert!(schedule.is_empty() && schedule.take().is_none());
    }

    #[test]
    fn the_least_urgent_is_not_starved() {
        let mut schedule = Schedule::default();
        schedule.add(1, of(7, false));
        schedule.add(3, of(0, true));
        let mut turns = 0;
        while schedule.take() != Some(1) {
            turns += 1;
            assert!(turns < 2 * FAIR_SHARE);
            schedule.add(3, of(0, true));
        }
    }

    #[test]
    fn a_response_without_an_end_starves_none_of_its_urgency() {
        let mut schedule = Schedule::default();
        for stream in [1, 3, 5, 7] {
            schedule.add(stream, of(3, false));
        }
        let mut turns = std::collections::BTreeMap::new();
        for _ in 0..40 * FAIR_SHARE {
            let stream = schedule.take().unwrap();
            *turns.entry(stream).or_insert(0) += 1;
            schedule.add(stream, of(3, false));
        }
        // Most turns still go to the most urgent stream.
        assert_eq!(turns[&1], 40 * 15 + 10);
        assert!(
            [3, 5, 7].iter().all(|stream| turns[stream] == 10),
            "{turns:?}"
        );
    }

    #[test]
    fn none_of_several_lanes_is_starved() {
        let mut schedule = Schedule::default();
        let all = [
            (1, of(0, true)),
            (3, of(3, false)),
            (5, of(3, false)),
            (7, of(3, true)),
            (9, of(5, false)),
            (11, of(5, true)),
            (13, of(5, true)),
        ];
        for (stream, priority) in all {
            schedule.add(stream, priority);
        }
        let mut turns = std::collections::BTreeMap::new();
        for _ in 0..120 * FAIR_SHARE {
            let stream = schedule.take().unwrap();
            *turns.entry(stream).or_insert(0) += 1;
            let (_, priority) = all.into_iter().find(|(known, _)| *known == stream).unwrap();
            schedule.add(stream, priority);
        }
        // One sixteenth of the turns is divided among the urgencies, and within each among its
        // streams.
        assert!(turns[&1] >= 120 * (FAIR_SHARE - 1), "{turns:?}");
        for stream in [3, 5, 7, 9, 11, 13] {
            assert!(
                turns.get(&stream).is_some_and(|turns| *turns >= 9),
                "{turns:?}"
            );
        }
    }

    #[test]
    fn a_stream_that_is_taken_out_has_no_turn() {
        let mut schedule = Schedule::default();
        for stream in [1, 3, 5] {
            schedule.add(stream, of(2, stream == 3));
        }
        schedule.remove(3, of(2, true));
        schedule.remove(1, of(2, false));
        assert_eq!(schedule.take(), Some(5));
        assert!(schedule.is_empty());
    }
}
