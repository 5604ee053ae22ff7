//! Timers with microsecond resolution. The ordinary timers of a thread count milliseconds.
//!
//! An alarm is a descriptor (`timerfd_create(2)`) that the engine watches like a socket. Setting an
//! alarm takes a system call, so only callers that need the resolution use one, such as a load
//! tester that starts requests at exact times. The simulation has no alarms.

use std::io;
use std::time::Instant;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::net::DatagramSocket;

/// One alarm of this thread. Dropping it closes its descriptor.
#[derive(Debug)]
pub struct Alarm(DatagramSocket);

impl Alarm {
    /// Creates an alarm that is not set.
    ///
    /// # Errors
    /// Those of `timerfd_create()`.
    ///
    /// # Panics
    /// If the thread has no runtime.
    pub fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Alarm(DatagramSocket::watch(timer)))
    }

    /// Waits until `moment`; returns at once if `moment` has passed. Cancel-safe.
    ///
    /// # Errors
    /// Those of `timerfd_settime()`.
    pub async fn wait_until(&self, moment: Instant) -> io::Result<()> {
        loop {
            let left = moment.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let once = Itimerspec {
                it_interval: Timespec::default(),
                it_value: Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: left.subsec_nanos().into(),
                },
            };
            let flags = TimerfdTimerFlags::empty();
            self.0
                .with_descriptor(|timer| Ok(rustix::time::timerfd_settime(timer, flags, &once)?))?;
            self.0.read().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineKind, Runtime, Settings};
    use std::time::Duration;

    #[test]
    fn it_goes_off_at_its_moment_and_again() {
        let mut runtime = Runtime::new(EngineKind::Epoll, Settings::default()).unwrap();
        runtime.block_on(async {
            let alarm = Alarm::new().unwrap();
            for microseconds in [0, 300, 1500] {
                let moment = Instant::now() + Duration::from_micros(microseconds);
                alarm.wait_until(moment).await.unwrap();
                assert!(Instant::now() >= moment);
            }
        });
    }
}
