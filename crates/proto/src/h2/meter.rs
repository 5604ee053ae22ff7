//! How often in a second the other end may do what costs us more than it.
//!
//! Each limit stands far above what a browser or a proxy does, and far below what would keep a
//! thread busy.

/// Streams that end by a reset, the other end's or one that it made us send (CVE-2023-44487,
/// CVE-2025-8671); where more than half as many may be open at once, twice that number, so that a
/// client may give up all of them.
pub const RESETS_MAX: u32 = 400;
/// SETTINGS frames, and answers to ours.
pub const SETTINGS_MAX: u32 = 100;
/// PING frames, beside one for each DATA frame that was sent. Clients and servers of gRPC measure
/// by them how much may be on its way, and send one as soon as the answer to the last has come and
/// so has DATA: some thousand a second where the way is short.
pub const PINGS_MAX: u32 = 200;
/// How many more PING frames DATA frames of a while ago still permit.
const PINGS_PERMITTED_MAX: u32 = 1000;
/// PRIORITY and PRIORITY_UPDATE frames.
pub const PRIORITIES_MAX: u32 = 2000;
/// Frames that say nothing: DATA without bytes that does not end its stream, GOAWAY, kinds that are
/// not known.
pub const EMPTY_MAX: u32 = 200;
/// WINDOW_UPDATE frames, beside one for each kilobyte that was sent. Some clients send two for each
/// small response.
pub const WINDOW_UPDATES_MAX: u32 = 20_000;
/// DATA frames with few bytes that do not end their stream ([`SMALL_DATA`]), each of which costs us
/// as much as one with many.
pub const SMALL_DATA_MAX: u32 = 20_000;
/// Bytes of DATA below which a frame counts as small: a message of gRPC has five at least, and a
/// stream of them may have some hundred thousand in a second.
pub const SMALL_DATA: u32 = 5;
/// Streams that were refused because there were too many, as nginx counts them; over the whole life
/// of a connection.
pub const REFUSED_MAX: u32 = 128;

/// Counts what happens in a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    second: u32,
    count: u32,
}

impl Meter {
    /// Counts once more; whether it has been more than `max` in this second.
    #[inline]
    pub fn exceeds(&mut self, second: u32, max: u32) -> bool {
        if self.second != second {
            self.second = second;
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.count > max
    }
}

/// PING frames that come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pings {
    meter: Meter,
    /// How many come for DATA that was sent.
    permitted: u32,
}

impl Pings {
    /// A DATA frame was sent.
    #[inline]
    pub fn permit(&mut self) {
        self.permitted = (self.permitted + 1).min(PINGS_PERMITTED_MAX);
    }

    /// Counts one; whether there have been too many in this second.
    pub fn exceeds(&mut self, second: u32) -> bool {
        if let Some(left) = self.permitted.checked_sub(1) {
            self.permitted = left;
            return false;
        }
        self.meter.exceeds(second, PINGS_MAX)
    }
}

/// What comes as an answer to something that was sent, and so is permitted as often as that was.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyAllowance {
    meter: Meter,
    permitted: u32,
}

impl ReplyAllowance {
    /// So many more may come; no more than a second's.
    #[inline]
    pub fn permit(&mut self, more: u32, max: u32) {
        self.permitted = self.permitted.saturating_add(more).min(max);
    }

    /// Counts one; whether there have been too many in this second.
    #[inline]
    pub fn exceeds(&mut self, second: u32, max: u32) -> bool {
        if let Some(left) = self.permitted.checked_sub(1) {
            self.permitted = left;
            return false;
        }
        self.meter.exceeds(second, max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_counts_for_itself() {
        let mut meter = Meter::default();
        for second in [0, 7, 8] {
            for _ in 0..5 {
                assert!(!meter.exceeds(second, 5));
            }
            assert!(meter.exceeds(second, 5));
        }
    }
}
