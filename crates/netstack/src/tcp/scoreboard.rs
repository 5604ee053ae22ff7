//! The data that the peer has reported by SACK blocks (RFC 2018), and the functions of RFC 6675,
//! section 4, on them.

use crate::wire::sequence::Sequence;

/// Maximum number of ranges. Further ranges are ignored until gaps have been filled.
const RANGES_MAX: usize = 256;

/// DupThresh: a segment counts as lost after this many later segments were received (RFC 6675,
/// section 2).
pub(crate) const DUPLICATES_LOST: u32 = 3;

/// Received ranges above the first unacknowledged byte, sorted and disjoint.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    ranges: Vec<(Sequence, Sequence)>,
}

impl Scoreboard {
    /// Adds a range. Returns whether any part of it is new.
    pub(crate) fn add(&mut self, from: Sequence, to: Sequence) -> bool {
        let first = self.ranges.partition_point(|range| range.1 < from);
        let last = self.ranges.partition_point(|range| range.0 <= to);
        let touched = self.ranges.get(first..last).unwrap_or_default();
        if let [only] = touched
            && only.0 <= from
            && to <= only.1
        {
            return false;
        }
        let (Some(low), Some(high)) = (touched.first(), touched.last()) else {
            let has_room = self.ranges.len() < RANGES_MAX;
            if has_room {
                self.ranges.insert(first, (from, to));
            }
            return has_room;
        };
        let joined = (low.0.min(from), high.1.max(to));
        self.ranges.splice(first..last, [joined]);
        true
    }

    /// Removes everything before `first`, which has been acknowledged.
    pub(crate) fn advance(&mut self, first: Sequence) {
        if self.ranges.is_empty() {
            return;
        }
        self.ranges.retain(|range| range.1 > first);
        if let Some(range) = self.ranges.first_mut() {
            range.0 = range.0.max(first);
        }
    }

    /// Whether no range is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.ranges = Vec::new();
    }

    /// Whether the byte at `place` has been received.
    pub(crate) fn has(&self, place: Sequence) -> bool {
        self.ranges
            .iter()
            .any(|range| range.0 <= place && place < range.1)
    }

    /// The end of the last range.
    pub(crate) fn end(&self) -> Option<Sequence> {
        self.ranges.last().map(|range| range.1)
    }

    /// The sequence number before which all missing data count as lost (`IsLost`): three ranges, or
    /// more than two segments' bytes, have been received after it.
    pub(crate) fn lost_before(&self, segment: u32) -> Option<Sequence> {
        let mut bytes = 0;
        for (count, range) in (1..).zip(self.ranges.iter().rev()) {
            bytes += range.1.since(range.0);
            if count >= DUPLICATES_LOST || bytes > (DUPLICATES_LOST - 1) * segment {
                return Some(range.0);
            }
        }
        None
    }

    /// The first missing part between `from` and `end`.
    pub(crate) fn first_missing(
        &self,
        from: Sequence,
        end: Sequence,
    ) -> Option<(Sequence, Sequence)> {
        let mut from = from;
        for range in &self.ranges {
            if from < range.0 {
                return (from < end).then(|| (from, range.0.min(end)));
            }
            from = from.max(range.1);
        }
        (from < end).then_some((from, end))
    }

    /// The number of missing bytes between `from` and `end`.
    pub(crate) fn missing(&self, from: Sequence, end: Sequence) -> u32 {
        let come: u32 = self
            .ranges
            .iter()
            .map(|range| range.1.min(end).since(range.0.max(from)))
            .sum();
        end.since(from) - come
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Sequence = Sequence(u32::MAX - 5000);

    fn board(ranges: &[(u32, u32)]) -> Scoreboard {
        let mut board = Scoreboard::default();
        for (from, to) in ranges {
            assert!(board.add(BASE + *from, BASE + *to));
        }
        board
    }

    fn at(place: u32) -> Sequence {
        BASE + place
    }

    #[test]
    fn ranges_join_and_only_news_count() {
        let mut board = board(&[(1000, 2000), (3000, 4000)]);
        assert!(!board.add(at(1000), at(2000)));
        assert!(!board.add(at(1200), at(1300)));
        assert!(board.add(at(1900), at(3100)));
        assert_eq!(board.ranges, [(at(1000), at(4000))]);
        board.advance(at(1500));
        assert_eq!(board.ranges, [(at(1500), at(4000))]);
        assert_eq!(board.missing(at(0), at(5000)), 2500);
        assert!(board.has(at(1500)) && !board.has(at(4000)) && !board.has(at(1499)));
        board.advance(at(4000));
        assert!(board.ranges.is_empty());
    }

    #[test]
    fn three_ranges_or_more_than_two_segments_above_are_a_loss() {
        assert_eq!(board(&[(1000, 3000)]).lost_before(1000), None);
        let more = board(&[(1000, 3001)]);
        assert_eq!(more.lost_before(1000), Some(at(1000)));
        let three = board(&[(1000, 1010), (2000, 2010), (3000, 3010)]);
        assert_eq!(three.lost_before(1000), Some(at(1000)));
        let four = board(&[(500, 510), (1000, 1010), (2000, 2010), (3000, 3010)]);
        assert_eq!(four.lost_before(1000), Some(at(1000)));
    }

    #[test]
    fn missing_parts_are_found_between_ranges() {
        let board = board(&[(1000, 2000), (3000, 4000)]);
        let first = |from, end| board.first_missing(at(from), at(end));
        assert_eq!(first(0, 5000), Some((at(0), at(1000))));
        assert_eq!(first(1000, 5000), Some((at(2000), at(3000))));
        assert_eq!(first(2500, 2700), Some((at(2500), at(2700))));
        assert_eq!(first(3000, 4000), None);
        assert_eq!(first(3000, 5000), Some((at(4000), at(5000))));
        assert_eq!(first(1500, 1800), None);
    }

    #[test]
    fn ranges_are_bounded() {
        let mut board = Scoreboard::default();
        let added = (0..1000).filter(|n| board.add(at(2 * n), at(2 * n + 1)));
        assert_eq!(added.count(), RANGES_MAX);
    }
}
