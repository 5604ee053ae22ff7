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

/// Something that carries frames.
pub trait Device {
    /// Gives each frame that has come to `take`, which keeps nothing of it.
    fn receive(&mut self, take: &mut dyn FnMut(&[u8]) -> FrameFate);

    /// Has `fill` write a frame, whose length it returns, or say that there is none. `false` when
    /// the device has no room for one, or there was none.
    fn transmit(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> Option<usize>) -> bool;
}

impl Stack {
    /// Takes everything that `device` has got, does what is due, and sends as much as the device
    /// takes.
    pub fn run(&mut self, now: Duration, device: &mut impl Device) {
        device.receive(&mut |frame| self.handle_frame(now, frame));
        self.handle_timeout(now);
        while device.transmit(&mut |into| self.poll_frame(now, into)) {}
    }
}
