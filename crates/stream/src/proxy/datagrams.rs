//! Forwarding of datagrams between a client and its peer, until the expected number of responses
//! has been received, or both ends are silent for too long.

use std::cell::Cell;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::Buffer;
use engine::net::{Datagram, DatagramSocket};
use engine::select::{Either, either};
use logs::Errno;

use super::introduction;
use super::settings::{Proxy, Rates};
use crate::datagram_end::{DatagramEnd, send_pushed};
use crate::datagrams::Listed;
use crate::session::{Session, Status};
use crate::subject::{SessionBytes, WithoutFields};

/// How long pending responses are awaited after a session's time limit.
const ANSWERS_LATE_MAX: Duration = Duration::from_secs(5);

/// The most datagrams of a client that are sent to its peer together.
const TOGETHER_MAX: u64 = 32;

/// How a session ended.
pub(super) struct Ended {
    pub(super) status: Status,
    /// Whether the peer was at fault.
    pub(super) has_peer_failed: bool,
}

/// Why forwarding ended.
enum Reason {
    /// The expected number of responses has been received.
    Done,
    /// Nothing was received from either end for too long.
    Silence,
    /// The session has reached its time limit.
    TimeIsOver,
    /// The process ends, or another client needs the place.
    Shutdown,
    /// A datagram could not be sent, which has been logged.
    NotSent,
}

/// The datagrams of a session.
struct Relay<'a> {
    settings: &'a Proxy,
    rates: Rates,
    client: &'a DatagramEnd,
    upstream: &'a DatagramSocket,
    began: Instant,
    /// The time of the last forwarded datagram.
    active: Instant,
    /// Number of datagrams from the client.
    requests: u64,
    /// Number of datagrams from the peer, including network errors, as in nginx.
    responses: u64,
    /// Whether the peer's last response was a datagram, not a network error.
    is_answering: bool,
    has_peer_failed: bool,
}

/// Forwards datagrams in both directions, and logs the end. Once the client has sent the maximum
/// number of datagrams of a session, further ones are no longer `listed` for it.
pub(super) async fn run(
    session: &mut Session,
    settings: &Proxy,
    client: &DatagramEnd,
    upstream: &DatagramSocket,
    listed: &mut Option<Listed>,
) -> Ended {
    let now = engine::now();
    let mut relay = Relay {
        settings,
        rates: settings.rates(session),
        client,
        upstream,
        began: now,
        active: now,
        requests: 0,
        responses: 0,
        is_answering: false,
        has_peer_failed: false,
    };
    let reason = loop {
        match relay.carry_one(session).await {
            Ok(()) => {}
            Err(Reason::TimeIsOver) => {
                // The client's further datagrams start another session.
                drop(listed.take());
                let until = engine::now() + ANSWERS_LATE_MAX.min(settings.timeout);
                relay.await_answers(session, Some(until)).await;
                break Reason::TimeIsOver;
            }
            Err(reason) => break reason,
        }
        session.doing = " while proxying connection";
        if settings.requests > 0 {
            if relay.requests < settings.requests {
                continue;
            }
            drop(listed.take());
        }
        if relay.has_every_response() {
            break Reason::Done;
        }
    };
    session.doing = " while proxying connection";
    let status = relay.tell(session, &reason);
    Ended {
        status,
        has_peer_failed: relay.has_peer_failed || status == Status::BadGateway,
    }
}

impl Relay<'_> {
    /// Waits for a datagram from either end and forwards it.
    async fn carry_one(&mut self, session: &mut Session) -> Result<(), Reason> {
        let over_at = self.settings.session_time.map(|time| session.began + time);
        if over_at.is_some_and(|over_at| engine::now() >= over_at) {
            return Err(Reason::TimeIsOver);
        }
        let Rates { upload, download } = self.rates;
        let attempt_received = session
            .attempts
            .last()
            .map_or(0, |last| last.received.get());
        let client_from = self.ready_at(upload, session.received.get());
        let upstream_from = self.ready_at(download, attempt_received);
        // A session that its rate limit delays is not silent.
        let held_until = client_from.max(upstream_from).unwrap_or(self.active);
        let silent_at = self.active.max(held_until) + self.settings.timeout;
        let from_client = async {
            wait_until(client_from).await;
            self.client.next().await
        };
        let from_upstream = async {
            wait_until(upstream_from).await;
            self.upstream.recv().await
        };
        let until = over_at.map_or(silent_at, |over_at| over_at.min(silent_at));
        let came = either(
            either(from_client, from_upstream),
            engine::sleep_until(until),
        )
        .await;
        match came {
            Either::First(Either::First(Some(bytes))) => self.pass_up(session, bytes).await,
            Either::First(Either::First(None)) => self.finish(session).await,
            Either::First(Either::Second(answer)) => {
                self.pass_down(session, answer);
                Ok(())
            }
            Either::Second(()) if over_at == Some(until) => Err(Reason::TimeIsOver),
            Either::Second(()) => Err(Reason::Silence),
        }
    }

    /// The time at which more may be read under a rate limit. As in nginx, whole seconds are
    /// counted, including the current one.
    fn ready_at(&self, rate: u64, received: u64) -> Option<Instant> {
        if rate == 0 {
            return None;
        }
        let seconds = engine::now()
            .saturating_duration_since(self.began)
            .as_secs();
        let excess = received.saturating_sub(rate.saturating_mul(seconds + 1));
        let wait = excess.saturating_mul(1000) / rate + 1;
        (excess > 0).then(|| engine::now() + Duration::from_millis(wait))
    }

    /// Forwards a client's datagram to the peer, together with those received after it.
    async fn pass_up(&mut self, session: &mut Session, bytes: Buffer) -> Result<(), Reason> {
        self.note_use(session);
        let together = self.together_max();
        let (mut next, mut length) = (Some(bytes), 0);
        for number in 1..=together {
            let Some(bytes) = next.take() else {
                break;
            };
            let datagram = self.introduced(session, bytes);
            length += datagram.bytes.len() as u64;
            self.upstream.push(datagram);
            if number < together {
                next = self.client.take();
            }
        }
        match send_pushed(self.upstream).await {
            Ok(()) => {}
            // The error is about an earlier datagram; the datagrams of this call have been sent.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                self.responses += 1;
                self.tell_refusal(session, &error);
            }
            Err(error) => {
                self.has_peer_failed = true;
                session.doing = " while proxying and sending to upstream";
                let error = Errno(&error);
                logs::error!(session, Error, "sendmsg() failed {error}");
                return Err(Reason::NotSent);
            }
        }
        if let Some(attempt) = session.attempts.last() {
            add(&attempt.sent, length);
        }
        Ok(())
    }

    /// Maximum number of datagrams of the client that may be sent together at the moment.
    fn together_max(&self) -> u64 {
        let counts_responses = self.settings.responses.is_some_and(|each| each > 0);
        // The kernel reports only one refusal for datagrams that are sent together, but each
        // refusal counts as a response.
        let must_be_alone = counts_responses && !self.is_answering;
        if must_be_alone || self.rates.upload > 0 {
            return 1;
        }
        match self.settings.requests {
            0 => TOGETHER_MAX,
            all => all.saturating_sub(self.requests).clamp(1, TOGETHER_MAX),
        }
    }

    /// A client's datagram as its peer receives it: a session's first one follows the PROXY
    /// protocol header, if enabled.
    fn introduced(&mut self, session: &Session, bytes: Buffer) -> Datagram<Bytes> {
        self.requests += 1;
        let length = bytes.len() as u64;
        // The first datagram was counted when the session began.
        if self.requests > 1 {
            add(&session.received, length);
        }
        let mut bytes = bytes.into_bytes();
        if self.requests == 1 {
            let introduction = introduction::of_session(session, self.settings.proxy_protocol);
            if !introduction.is_empty() {
                bytes = [introduction, bytes].concat().into();
            }
        }
        Datagram::new(bytes)
    }

    /// Forwards the peer's datagram to the client.
    fn pass_down(&mut self, session: &mut Session, answer: io::Result<Datagram<Buffer>>) {
        self.note_use(session);
        self.responses += 1;
        if let Some(attempt) = session.attempts.last() {
            attempt
                .first_byte_time
                .set(attempt.first_byte_time.get().or(Some(attempt.elapsed())));
        }
        let bytes = match answer {
            Ok(datagram) => datagram.bytes,
            Err(error) => return self.tell_refusal(session, &error),
        };
        self.is_answering = true;
        let length = bytes.len() as u64;
        if let Some(attempt) = session.attempts.last() {
            add(&attempt.received, length);
        }
        self.client.send(bytes.into_bytes());
        add(&session.sent, length);
    }

    /// Logs a network error: a datagram did not reach the peer.
    fn tell_refusal(&mut self, session: &mut Session, error: &io::Error) {
        self.is_answering = false;
        self.has_peer_failed = true;
        session.doing = " while proxying and reading from upstream";
        logs::error!(session, Error, "recv() failed {}", Errno(error));
    }

    /// Ends the session after the pending responses, which nginx would drop.
    async fn finish(&mut self, session: &mut Session) -> Result<(), Reason> {
        Err(self.await_answers(session, None).await)
    }

    /// Forwards the peer's pending responses, until all are received. If their number is not
    /// configured, one response per datagram is assumed.
    async fn await_answers(&mut self, session: &mut Session, until: Option<Instant>) -> Reason {
        let expected = self.settings.responses.unwrap_or(1);
        while self.responses < expected.saturating_mul(self.requests) {
            let silent_at = self.active + self.settings.timeout;
            let until = until.map_or(silent_at, |until| until.min(silent_at));
            let given_up = either(engine::sleep_until(until), self.client.aborted());
            match either(self.upstream.recv(), given_up).await {
                Either::First(answer) => self.pass_down(session, answer),
                Either::Second(Either::First(())) => return Reason::Silence,
                Either::Second(Either::Second(())) => break,
            }
        }
        Reason::Shutdown
    }

    /// Records that a datagram has been forwarded.
    fn note_use(&mut self, session: &Session) {
        self.active = engine::now();
        self.client.note_use(&session.connection.worker);
    }

    /// Whether all responses have been received, if their number is configured.
    fn has_every_response(&self) -> bool {
        let expected = self.settings.responses;
        expected.is_some_and(|each| self.responses >= each.saturating_mul(self.requests))
    }

    /// Logs the end of the session; returns its final status.
    fn tell(&self, session: &Session, reason: &Reason) -> Status {
        let what = match reason {
            Reason::Done => "udp done",
            Reason::TimeIsOver => "udp session time is over",
            Reason::Silence if self.settings.responses.is_none() || self.has_every_response() => {
                "udp timed out"
            }
            Reason::Silence => {
                let text = "upstream timed out (110: Connection timed out)";
                logs::error!(session, Error, "{text}");
                return Status::BadGateway;
            }
            Reason::Shutdown => {
                logs::error!(&WithoutFields(session), Info, "disconnected on shutdown");
                return Status::Ok;
            }
            Reason::NotSent => return Status::Ok,
        };
        let Relay {
            requests,
            responses,
            ..
        } = self;
        let counts = SessionBytes(session);
        logs::error!(
            &WithoutFields(session),
            Info,
            "{what}, packets from/to client:{requests}/{responses}{counts}"
        );
        Status::Ok
    }
}

async fn wait_until(time: Option<Instant>) {
    if let Some(time) = time {
        engine::sleep_until(time).await;
    }
}

fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}
