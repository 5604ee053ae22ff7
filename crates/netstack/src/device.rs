//! What a stack stands on: a card, or a wire of the simulation.

use std::time::Duration;

use crate::stack::Stack;

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFate {
    /// It was ours, whether it was of use or not.
    Taken,
    /// It is not ours: another protocol, another host, a fragment. The kernel may have it.
    Passed,
}

/// Who takes frames that have come, and keeps nothing of them.
pub trait FrameTaker {
    /// Several frames have come, and this one is among them. Each is taken afterwards, all in the
    /// same order: what they need can be fetched from memory side by side.
    fn expect(&mut self, _frame: &[u8]) {}

    /// Takes a frame.
    fn take(&mut self, frame: &[u8]) -> FrameFate;
}

/// Something that carries frames.
pub trait Device {
    /// Gives each frame that has come to `taker`.
    fn receive(&mut self, taker: &mut dyn FrameTaker);

    /// Has `fill` write a frame, whose length it returns, or say that there is none. `false` when
    /// the device has no room for one, or there was none.
    fn transmit(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> bool;
}

impl Stack {
    /// Takes everything that `device` has got, does what is due, and sends as much as the device
    /// takes.
    pub fn run(&mut self, now: Duration, device: &mut impl Device) {
        self.receive_from(now, device);
        self.send_to(now, device);
    }

    /// The first part of [`run`](Stack::run): takes everything that `device` has got. Where the
    /// application answers before the other part is called, its answers are acknowledgments, too.
    pub fn receive_from(&mut self, now: Duration, device: &mut impl Device) {
        device.receive(&mut Taking { stack: self, now });
    }

    /// The other part: does what is due, and sends as much as the device takes.
    pub fn send_to(&mut self, now: Duration, device: &mut impl Device) {
        self.handle_timeout(now);
        while device.transmit(&mut |into| self.poll_frame(now, into)) {}
    }
}

/// A stack that takes frames at one moment.
struct Taking<'a> {
    stack: &'a mut Stack,
    now: Duration,
}

impl FrameTaker for Taking<'_> {
    fn expect(&mut self, frame: &[u8]) {
        self.stack.expect_frame(frame);
    }

    fn take(&mut self, frame: &[u8]) -> FrameFate {
        self.stack.handle_frame(self.now, frame)
    }
}
