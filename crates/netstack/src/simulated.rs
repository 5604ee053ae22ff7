//! A simulated wire between two cards that delays, drops, duplicates, reorders and corrupts frames,
//! driven by a seed.
//!
//! It reads no clock; its time is the one it was told last. The fate of a frame is decided when it
//! is sent.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::device::{Device, FrameTaker};
use crate::stack::FRAME_MAX;

/// Faults of the wire. Probabilities are per thousand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireFaults {
    /// Minimum delay.
    pub delay_min: Duration,
    /// Maximum delay; each frame's delay is random.
    pub delay_max: Duration,
    /// Probability of losing a frame.
    pub loss: u32,
    /// Probability of duplicating a frame.
    pub duplicate: u32,
    /// Probability that a frame may overtake others, or be overtaken.
    pub reorder: u32,
    /// Probability of flipping a bit.
    pub corrupt: u32,
}

impl Default for WireFaults {
    fn default() -> Self {
        WireFaults {
            delay_min: Duration::from_millis(1),
            delay_max: Duration::from_millis(1),
            loss: 0,
            duplicate: 0,
            reorder: 0,
            corrupt: 0,
        }
    }
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkSide {
    /// The end that [`Wire`] makes first.
    Near,
    /// The end across the wire.
    Far,
}

/// Frames in transit to one end, by arrival time and then in the order of sending.
#[derive(Debug, Default)]
struct Direction {
    frames: BTreeMap<(Duration, u64), Vec<u8>>,
    last: Duration,
}

/// A simulated wire between two hosts.
#[derive(Debug)]
pub struct Wire {
    /// The current time of the wire.
    pub now: Duration,
    /// The faults from now on.
    pub faults: WireFaults,
    /// Frames that were lost or damaged.
    pub lost: u32,
    random: u64,
    count: u64,
    to_near: Direction,
    to_far: Direction,
}

impl Wire {
    /// A wire driven by `seed`.
    #[must_use]
    pub fn new(seed: u64, faults: WireFaults) -> Wire {
        Wire {
            now: Duration::ZERO,
            faults,
            lost: 0,
            random: seed,
            count: 0,
            to_near: Direction::default(),
            to_far: Direction::default(),
        }
    }

    /// The card at one end.
    pub fn end(&mut self, side: LinkSide) -> WireEnd<'_> {
        WireEnd { wire: self, side }
    }

    /// When the next frame arrives at either end.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Duration> {
        let first = |direction: &Direction| direction.frames.keys().next().map(|(at, _)| *at);
        first(&self.to_near)
            .into_iter()
            .chain(first(&self.to_far))
            .min()
    }

    /// Sends a frame from one end to the other.
    pub fn send(&mut self, from: LinkSide, frame: &[u8]) {
        if self.chance(self.faults.loss) {
            self.lost += 1;
            return;
        }
        let copies = 1 + u32::from(self.chance(self.faults.duplicate));
        for _ in 0..copies {
            let mut frame = frame.to_vec();
            if self.chance(self.faults.corrupt) {
                self.lost += 1;
                let bit = self.random(frame.len() as u64 * 8) as usize;
                if let Some(byte) = frame.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            self.deliver(from, frame);
        }
    }

    fn deliver(&mut self, from: LinkSide, frame: Vec<u8>) {
        let spread = self.faults.delay_max.saturating_sub(self.faults.delay_min);
        let extra = Duration::from_nanos(self.random(spread.as_nanos() as u64 + 1));
        let mut at = self.now + self.faults.delay_min + extra;
        let may_overtake = self.chance(self.faults.reorder);
        self.count += 1;
        let number = self.count;
        let direction = match from {
            LinkSide::Near => &mut self.to_far,
            LinkSide::Far => &mut self.to_near,
        };
        if !may_overtake {
            at = at.max(direction.last);
            direction.last = at;
        }
        direction.frames.insert((at, number), frame);
    }

    /// Takes the next frame that has arrived at an end.
    pub fn receive(&mut self, at: LinkSide) -> Option<Vec<u8>> {
        let now = self.now;
        let direction = match at {
            LinkSide::Near => &mut self.to_near,
            LinkSide::Far => &mut self.to_far,
        };
        let first = direction.frames.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// A number below `bound`, by SplitMix64.
    fn random(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    fn chance(&mut self, in_a_thousand: u32) -> bool {
        in_a_thousand > 0 && self.random(1000) < u64::from(in_a_thousand)
    }
}

/// A card at one end of a wire.
#[derive(Debug)]
pub struct WireEnd<'a> {
    wire: &'a mut Wire,
    side: LinkSide,
}

impl Device for WireEnd<'_> {
    fn receive(&mut self, taker: &mut dyn FrameTaker) {
        while let Some(frame) = self.wire.receive(self.side) {
            taker.take(&frame);
        }
    }

    fn transmit(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> bool {
        let mut frame = [0; FRAME_MAX];
        let Some(length) = fill(&mut frame) else {
            return false;
        };
        let frame = frame.get(..length).unwrap_or_default();
        self.wire.send(self.side, frame);
        true
    }
}
