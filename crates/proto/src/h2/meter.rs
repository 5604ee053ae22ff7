//! Rate limits against HTTP/2 floods: how often in a second the peer may send frames that cost us
//! more than the peer.
//!
//! Each limit is far above what browsers and proxies send, and far below what would keep a thread
//! busy.

/// Streams that end with RST_STREAM, sent by the peer or provoked by it (CVE-2023-44487,
/// CVE-2025-8671). For a connection that allows more than half as many concurrent streams, the
/// limit is twice that number of streams, so that a client may cancel all of them.
pub const RESETS_MAX: u32 = 400;
/// SETTINGS frames, including acknowledgements.
pub const SETTINGS_MAX: u32 = 100;
/// PING frames, in addition to one for each DATA frame that we sent. gRPC estimates the
/// bandwidth-delay product with PING: it sends one as soon as the last is acknowledged and further
/// DATA has arrived, several thousand per second on a short path.
pub const PINGS_MAX: u32 = 200;
/// Limit of unused PING frames that DATA frames have permitted.
const PINGS_PERMITTED_MAX: u32 = 1000;
/// PRIORITY and PRIORITY_UPDATE frames.
pub const PRIORITIES_MAX: u32 = 2000;
/// Frames without effect: empty DATA without END_STREAM, GOAWAY, frames of unknown types.
pub const EMPTY_MAX: u32 = 200;
/// WINDOW_UPDATE frames with small increments: beyond this number, a frame with an increment below
/// 1 KiB is a violation. Some clients send two frames for each small response.
pub const WINDOW_UPDATES_MAX: u32 = 20_000;
/// DATA frames shorter than [`SMALL_DATA`] without END_STREAM. Each costs us as much as a long one.
pub const SMALL_DATA_MAX: u32 = 20_000;
/// Payload in bytes below which a DATA frame counts as small. A gRPC message has at least five
/// bytes, and a stream may carry some hundred thousand messages a second.
pub const SMALL_DATA: u32 = 5;
/// Streams refused because they exceed SETTINGS_MAX_CONCURRENT_STREAMS, over the whole life of a
/// connection, as nginx counts them.
pub const REFUSED_MAX: u32 = 128;

/// Counts events per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    second: u32,
    count: u32,
}

impl Meter {
    /// Counts an event; true if there have been more than `max` in this second.
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

/// Counts PING frames of the peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pings {
    meter: Meter,
    /// Unused PING frames that DATA frames have permitted, and that will not count against the
    /// limit.
    permitted: u32,
}

impl Pings {
    /// Permits one more PING frame: a DATA frame was sent.
    #[inline]
    pub fn permit(&mut self) {
        self.permitted = (self.permitted + 1).min(PINGS_PERMITTED_MAX);
    }

    /// Counts a PING frame; true if there have been too many in this second.
    pub fn exceeds(&mut self, second: u32) -> bool {
        if let Some(left) = self.permitted.checked_sub(1) {
            self.permitted = left;
            return false;
        }
        self.meter.exceeds(second, PINGS_MAX)
    }
}

/// Counts frames that the peer sends in reaction to ours, such as WINDOW_UPDATE to DATA. Each frame
/// that we sent permits some of them; only what exceeds that counts against the limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplyAllowance {
    meter: Meter,
    permitted: u32,
}

impl ReplyAllowance {
    /// Permits `more` frames, up to `max` unused ones.
    #[inline]
    pub fn permit(&mut self, more: u32, max: u32) {
        self.permitted = self.permitted.saturating_add(more).min(max);
    }

    /// Counts a frame; true if there have been too many in this second.
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
