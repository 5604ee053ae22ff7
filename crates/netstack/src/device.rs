//! The device that a stack sends and receives through: a network card, or a simulated wire.

use std::time::Duration;

use crate::stack::Stack;

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameFate {
    /// The stack handled it, even if the frame was of no use.
    Taken,
    /// The frame is not for this stack: another protocol, another host, a fragment. The kernel may
    /// handle it.
    Passed,
}

/// Handles received frames without keeping them.
pub trait FrameTaker {
    /// Announces one of several received frames. All of them are handled afterwards in the same
    /// order, so that the memory they need can be prefetched in parallel.
    fn expect(&mut self, _frame: &[u8]) {}

    /// Handles a frame.
    fn take(&mut self, frame: &[u8]) -> FrameFate;
}

/// Something that carries frames.
pub trait Device {
    /// Passes each received frame to `taker`.
    fn receive(&mut self, taker: &mut dyn FrameTaker);

    /// Lets `fill` write a frame; `fill` returns its length, or `None` if there is no frame.
    /// Returns `false` if the device has no room, or there was no frame.
    fn transmit(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> bool;
}

impl Stack {
    /// Handles all frames received by `device` and expired timers, and sends as much as the device
    /// accepts.
    pub fn run(&mut self, now: Duration, device: &mut impl Device) {
        self.receive_from(now, device);
        self.send_to(now, device);
    }

    /// The first part of [`run`](Stack::run): handles all received frames. If the application
    /// responds before the second part is called, its data also carry the acknowledgments.
    pub fn receive_from(&mut self, now: Duration, device: &mut impl Device) {
        device.receive(&mut Taking { stack: self, now });
    }

    /// The second part: handles expired timers, and sends as much as the device accepts.
    pub fn send_to(&mut self, now: Duration, device: &mut impl Device) {
        self.handle_timeout(now);
        while device.transmit(&mut |into| self.poll_frame(now, into)) {}
    }
}

/// A stack that handles frames received at one moment.
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
