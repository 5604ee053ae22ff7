//! Forwarding of bytes between a client and its peer, until one end closes (with
//! `proxy_half_close`, until both do) or both are silent for too long.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::upstream::Lease;
use bytes::Bytes;
use engine::select::{Either, either};
use engine::{Buffer, Pipe};
use transport::Transport;

use super::settings::{Proxy, Rates};
use crate::session::Session;
use crate::subject::{SessionBytes, WithoutFields};

/// After this many consecutive receives that fill their buffer, bytes are spliced through a pipe.
const FULL_BUFFERS: u32 = 8;

/// After this many consecutive waits that are each followed by fewer than [`MANY`] bytes, bytes are
/// copied again.
const FEW_MAX: u32 = 4;
/// Minimum number of bytes after a wait for which a pipe is worth its system calls.
const MANY: u64 = 16 << 10;

/// Why forwarding in one direction ended.
enum Ended {
    /// The sender has closed its direction, or its connection has failed: nginx does not
    /// distinguish the two. All received bytes have been taken.
    Closed,
    /// Nothing was received or sent in either direction for too long.
    Silence,
    /// The session has reached its time limit.
    TimeIsOver,
}

/// An end of the session.
#[derive(Clone, Copy)]
enum RelayEnd {
    Client,
    Upstream,
}

/// The recipients of a peer's first byte time.
#[derive(Clone, Copy)]
struct FirstByte<'a> {
    time: &'a Cell<Option<Duration>>,
    /// The session's lease of the peer: its group may measure the time.
    lease: &'a RefCell<Option<Lease>>,
}

/// One direction of the forwarding.
struct RelayDirection<'a> {
    /// The sender.
    from: &'a Transport,
    /// The receiver.
    to: &'a Transport,
    /// Bytes received from the sender.
    received: &'a Cell<u64>,
    /// Bytes that have been sent to the receiver.
    sent: &'a Cell<u64>,
    /// Bytes queued for the receiver so far, including the PROXY protocol header.
    pushed: Cell<u64>,
    /// Bytes per second; 0 means unlimited.
    rate: u64,
    settings: &'a Proxy,
    began: Instant,
    /// The time of the last forwarded byte in either direction.
    active: &'a Cell<Instant>,
    /// Number of directions that their rate limit delays: meanwhile the session is not silent.
    held_back: &'a Cell<u8>,
    /// The receivers of the sender's first byte time, if needed.
    first_byte: Option<FirstByte<'a>>,
}

/// Forwards bytes in both directions, and logs the end.
pub(super) async fn run(
    session: &Session,
    (settings, rates): (&Proxy, Rates),
    client: &Transport,
    upstream: &Transport,
    lease: &RefCell<Option<Lease>>,
) {
    let Some(attempt) = session.attempts.last() else {
        return;
    };
    let began = engine::now();
    let active = Cell::new(began);
    let held_back = Cell::new(0);
    let up = RelayDirection {
        from: client,
        to: upstream,
        received: &session.received,
        sent: &attempt.sent,
        pushed: Cell::new(attempt.sent.get()),
        rate: rates.upload,
        settings,
        began,
        active: &active,
        held_back: &held_back,
        first_byte: None,
    };
    let down = RelayDirection {
        from: upstream,
        to: client,
        received: &attempt.received,
        sent: &session.sent,
        pushed: Cell::new(0),
        rate: rates.download,
        began: attempt.began,
        first_byte: Some(FirstByte {
            time: &attempt.first_byte_time,
            lease,
        }),
        ..up
    };
    session.count_preread();
    up.push(session.preread.take());
    let carried = async {
        if settings.half_close {
            return both(&up, &down).await;
        }
        match either(up.carry(), down.carry()).await {
            Either::First(ended) => (RelayEnd::Client, ended),
            Either::Second(ended) => (RelayEnd::Upstream, ended),
        }
    };
    let (side, ended) = match settings.session_time {
        None => carried.await,
        Some(time) => match either(carried, engine::sleep_until(session.began + time)).await {
            Either::First(ended) => ended,
            Either::Second(()) => (RelayEnd::Client, Ended::TimeIsOver),
        },
    };
    up.note_sent();
    down.note_sent();
    tell(session, side, &ended);
}

/// Continues until both ends have closed; returns which end closed last.
async fn both(up: &RelayDirection<'_>, down: &RelayDirection<'_>) -> (RelayEnd, Ended) {
    let (mut upwards, mut downwards) = (std::pin::pin!(up.carry()), std::pin::pin!(down.carry()));
    match either(upwards.as_mut(), downwards.as_mut()).await {
        Either::First(Ended::Closed) => {
            up.to.shutdown_write();
            (RelayEnd::Upstream, downwards.await)
        }
        Either::Second(Ended::Closed) => {
            down.to.shutdown_write();
            (RelayEnd::Client, upwards.await)
        }
        Either::First(ended) => (RelayEnd::Client, ended),
        Either::Second(ended) => (RelayEnd::Upstream, ended),
    }
}

/// Logs the end of the session.
fn tell(session: &Session, side: RelayEnd, ended: &Ended) {
    let side = match (ended, side) {
        (Ended::Silence, _) => {
            logs::error!(
                session,
                Info,
                "connection timed out (110: Connection timed out)"
            );
            return;
        }
        (Ended::TimeIsOver, _) => {
            logs::error!(session, Info, "session time is over");
            return;
        }
        (Ended::Closed, RelayEnd::Client) => "client",
        (Ended::Closed, RelayEnd::Upstream) => "upstream",
    };
    let counts = SessionBytes(session);
    logs::error!(&WithoutFields(session), Info, "{side} disconnected{counts}");
}

impl RelayDirection<'_> {
    /// Forwards bytes until the sender closes and the receiver has taken all of them, or until both
    /// ends are silent. Each direction waits only for its own receiver, so that an end which does
    /// not read does not block the other direction.
    async fn carry(&self) -> Ended {
        let mut full = 0;
        loop {
            match self.receive().await {
                Ok(Some(buffer)) => {
                    full = if buffer.is_full() { full + 1 } else { 0 };
                    self.pass_at_rate(buffer.into_bytes()).await;
                }
                Ok(None) => break,
                Err(ended) => return ended,
            }
            if full >= FULL_BUFFERS && self.can_splice() {
                full = 0;
                if let Err(ended) = self.carry_through_pipes().await {
                    return ended;
                }
            }
            if self.to.backlog() > self.settings.buffer_size
                && let Err(ended) = self.wait_for_receiver(self.settings.buffer_size).await
            {
                return ended;
            }
        }
        match self.wait_for_receiver(0).await {
            Ok(()) => Ended::Closed,
            Err(ended) => ended,
        }
    }

    /// Whether bytes may be forwarded without being seen.
    fn can_splice(&self) -> bool {
        self.rate == 0 && self.from.can_splice(self.to)
    }

    /// Splices bytes through pipes while many arrive and a pipe is available. Returns when the next
    /// bytes should be received into a buffer.
    async fn carry_through_pipes(&self) -> Result<(), Ended> {
        let mut few = 0;
        let mut has_waited = false;
        while few < FEW_MAX
            && let Some(pipe) = Pipe::take()
        {
            let count = self.pass_through(pipe).await?;
            if has_waited && count == 0 {
                break; // it is the end
            }
            few = if count < MANY { few + 1 } else { 0 };
            self.wait_for_bytes().await?;
            has_waited = true;
        }
        Ok(())
    }

    /// Splices the bytes that the kernel has received through a pipe, and returns their number. The
    /// receiver takes all bytes of the pipe before it is filled again. The pipe is given back
    /// before the next wait for the sender.
    async fn pass_through(&self, pipe: Pipe) -> Result<u64, Ended> {
        let (pipe, mut total) = (Arc::new(pipe), 0);
        loop {
            self.wait_for_receiver(0).await?;
            let count = self.from.splice(self.to, &pipe).await;
            if count == 0 {
                break;
            }
            self.active.set(engine::now());
            self.note_first_byte();
            total += count;
            self.received.set(self.received.get() + count);
            self.pushed.set(self.pushed.get() + count);
            self.to.start_send();
            self.note_sent();
        }
        if let Some(pipe) = Arc::into_inner(pipe) {
            pipe.give_back();
        }
        Ok(total)
    }

    /// Waits until the sender has sent something, without receiving it.
    async fn wait_for_bytes(&self) -> Result<(), Ended> {
        loop {
            let deadline = self.active.get() + self.settings.timeout;
            let waited = self.from.readable(Some(deadline)).await;
            match waited {
                Err(error) if is_timeout(&error) && !self.is_silent() => {}
                Err(_) => return Err(Ended::Silence),
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Forwards bytes that have been received.
    fn pass_on(&self, bytes: Bytes) {
        self.received.set(self.received.get() + bytes.len() as u64);
        self.push(bytes);
    }

    /// Forwards bytes that have been counted as received.
    fn push(&self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.pushed.set(self.pushed.get() + bytes.len() as u64);
            self.to.push(bytes);
            self.to.start_send();
            self.note_sent();
        }
    }

    /// Receives the next bytes; `None` at the end of the sender's data.
    async fn receive(&self) -> Result<Option<Buffer>, Ended> {
        let timeout = self.settings.timeout;
        loop {
            let deadline = self.active.get() + timeout;
            match self.from.recv(Some(deadline)).await {
                Ok(buffer) if buffer.is_empty() => return Ok(None),
                Ok(buffer) => {
                    self.active.set(engine::now());
                    self.note_first_byte();
                    return Ok(Some(buffer));
                }
                Err(error) if is_timeout(&error) => {
                    if self.is_silent() {
                        return Err(Ended::Silence);
                    }
                }
                Err(_) => return Ok(None),
            }
        }
    }

    /// Waits until at most `limit` bytes are queued for the receiver. Fails if nothing is forwarded
    /// in either direction for too long, or if the receiver is gone.
    async fn wait_for_receiver(&self, limit: usize) -> Result<(), Ended> {
        let timeout = self.settings.timeout;
        let mut backlog = self.to.backlog();
        while backlog > limit {
            let deadline = self.active.get() + timeout;
            match either(self.to.drained(limit), engine::sleep_until(deadline)).await {
                Either::First(Ok(())) => {
                    self.active.set(engine::now());
                    break;
                }
                Either::First(Err(_)) => return Err(Ended::Closed),
                Either::Second(()) => {
                    let left = self.to.backlog();
                    if left < backlog {
                        self.active.set(engine::now());
                    } else if self.is_silent() {
                        return Err(Ended::Silence);
                    }
                    backlog = left;
                }
            }
        }
        self.note_sent();
        Ok(())
    }

    /// Forwards received bytes within the rate limit. As in nginx, whole seconds are counted,
    /// including the current one, and there is a pause after each part for its duration at the
    /// rate.
    async fn pass_at_rate(&self, mut bytes: Bytes) {
        if self.rate == 0 {
            return self.pass_on(bytes);
        }
        while !bytes.is_empty() {
            let elapsed = engine::now().saturating_duration_since(self.began);
            let allowed = self.rate.saturating_mul(elapsed.as_secs() + 1);
            let received = self.received.get();
            if received >= allowed {
                self.hold_back(received - allowed, 1).await;
                continue;
            }
            let room = usize::try_from(allowed - received).unwrap_or(usize::MAX);
            let part = bytes.split_to(room.min(bytes.len()));
            let length = part.len() as u64;
            self.pass_on(part);
            self.hold_back(length, 0).await;
        }
    }

    /// Waits for the time of this many bytes at the rate limit, plus `more` milliseconds.
    async fn hold_back(&self, bytes: u64, more: u64) {
        let milliseconds = bytes.saturating_mul(1000) / self.rate.max(1) + more;
        if milliseconds > 0 {
            self.held_back.set(self.held_back.get() + 1);
            engine::sleep(Duration::from_millis(milliseconds)).await;
            self.held_back.set(self.held_back.get() - 1);
            self.active.set(engine::now());
        }
    }

    /// Whether nothing has been forwarded for too long, checked after a timeout; the other
    /// direction may have been active in the meantime.
    fn is_silent(&self) -> bool {
        let now = engine::now();
        if self.held_back.get() > 0 {
            self.active.set(now);
        }
        now >= self.active.get() + self.settings.timeout
    }

    /// Counts the bytes that the receiver has taken so far.
    fn note_sent(&self) {
        let waiting = self.to.backlog() as u64;
        self.sent.set(self.pushed.get().saturating_sub(waiting));
    }

    /// Reports the time of the sender's first byte, once.
    fn note_first_byte(&self) {
        if let Some(first_byte) = self.first_byte
            && first_byte.time.get().is_none()
        {
            let time = engine::now().saturating_duration_since(self.began);
            first_byte.time.set(Some(time));
            if let Some(lease) = &mut *first_byte.lease.borrow_mut() {
                lease.first_byte_came(time);
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    error.kind() == ErrorKind::TimedOut
}
