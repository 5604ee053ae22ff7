//! A small language in packetdrill's manner: segments that come, segments that must leave, calls of
//! the application, each with its time.
//!
//! ```text
//! == what this case shows (RFC and section)
//! set sack timestamps receive=3000        what both ends may offer; without it neither
//! +0     listen                           a call; times count from the line before
//! +0     < S 0:0(0) win 1000 <mss 1000>   comes: flags, first:end(length), ack, win, options
//! +0     > S. 0:0(0) ack 1 <mss 1460>     must leave, at that time, to the millisecond
//! +0.1   < . 1:1(0) ack 1 win 1000
//! +0     accept
//! +0     write 500
//! +0     > P. 1:501(500) ack 1
//! ```
//!
//! Numbers count from each end's initial one. Data are a pattern of their places, so that wrong
//! bytes are noticed. What leaves and is not awaited fails a case, and so does what is awaited and
//! does not leave. `win` and options of what leaves are compared where they are written; `<none>`
//! says that there are no options.

pub(crate) mod language;
pub(crate) mod linux;
pub(crate) mod ours;
mod packet;

use std::collections::VecDeque;
use std::time::Duration;

use language::{Action, Call, Case, Segment};
use packet::Packets;

/// Whose TCP a script is played to.
pub(crate) trait Subject {
    /// Lets time go on to `until`, or to when something leaves: that, and when.
    fn advance(&mut self, until: Duration) -> Vec<(Duration, Vec<u8>)>;

    /// Gives it a packet.
    fn take(&mut self, packet: &[u8]);

    /// Makes a call; what it should have done and did not.
    fn call(&mut self, call: &Call) -> Result<(), String>;

    /// How far times may be off.
    fn tolerance(&self) -> Duration;

    /// Whether windows and clocks are to be as a script has them: each system has its own.
    fn is_exact(&self) -> bool {
        true
    }
}

/// Plays a case; at which line what was wrong.
pub(crate) fn play(case: &Case, subject: &mut dyn Subject) -> Result<(), String> {
    let mut player = Player {
        clock: Duration::ZERO,
        left: VecDeque::new(),
        packets: Packets::new(case.is_client, subject.is_exact()),
        subject,
    };
    for step in &case.steps {
        let at = player.clock + step.delay;
        player
            .step(at, &step.action)
            .map_err(|what| format!("line {}: {what}\n    {}", step.line, step.text))?;
    }
    player
        .quiet(player.clock)
        .map_err(|what| format!("at the end: {what}"))
}

struct Player<'a> {
    clock: Duration,
    /// What has left and was not awaited yet.
    left: VecDeque<(Duration, Vec<u8>)>,
    packets: Packets,
    subject: &'a mut dyn Subject,
}

impl Player<'_> {
    fn step(&mut self, at: Duration, action: &Action) -> Result<(), String> {
        match action {
            Action::Leaves(segment) => return self.await_segment(at, segment),
            Action::Comes(segment) => {
                self.quiet(at)?;
                let packet = self.packets.build(segment);
                self.subject.take(&packet);
            }
            Action::Icmp(icmp) => {
                self.quiet(at)?;
                let packet = self.packets.build_icmp(icmp);
                self.subject.take(&packet);
            }
            Action::Call(call) => {
                self.quiet(at)?;
                self.subject.call(call)?;
            }
            Action::Nothing => self.quiet(at)?,
        }
        self.clock = at;
        // What leaves at once leaves now, and what the step has led to is not of the next moment.
        let left = self.subject.advance(at);
        self.left.extend(left);
        Ok(())
    }

    /// Nothing must leave until then.
    fn quiet(&mut self, until: Duration) -> Result<(), String> {
        let left = self.subject.advance(until);
        self.left.extend(left);
        match self.left.pop_front() {
            Some((at, packet)) => {
                let shown = self.packets.show(&packet);
                Err(format!("at {at:?} there left {shown}"))
            }
            None => Ok(()),
        }
    }

    fn await_segment(&mut self, at: Duration, wanted: &Segment) -> Result<(), String> {
        let tolerance = self.subject.tolerance();
        if self.left.is_empty() {
            let left = self.subject.advance(at + tolerance);
            self.left.extend(left);
        }
        let (left_at, packet) = self.left.pop_front().ok_or("nothing left")?;
        let shown = self.packets.show(&packet);
        self.packets
            .compare(&packet, wanted)
            .map_err(|what| format!("{what}: {shown}"))?;
        if left_at.abs_diff(at) > tolerance {
            return Err(format!("it left at {left_at:?} and not at {at:?}"));
        }
        self.clock = left_at.max(self.clock);
        Ok(())
    }
}

/// The cases of a file.
pub(crate) fn cases(name: &str) -> Vec<Case> {
    let path = format!("{}/tests/scripts/{name}.script", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let cases = language::parse(&text).unwrap_or_else(|what| panic!("{name}: {what}"));
    assert!(!cases.is_empty());
    cases
}

/// Plays all cases of a file; all that were wrong.
pub(crate) fn play_file(name: &str, subject: impl Fn(&Case) -> Box<dyn Subject>) {
    let wrong: Vec<String> = cases(name)
        .iter()
        .filter_map(|case| {
            let played = play(case, subject(case).as_mut());
            played
                .err()
                .map(|what| format!("{name}: {}: {what}", case.name))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
