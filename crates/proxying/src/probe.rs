//! Sends a request of Tidegate's own to one peer, with the settings of a location, for health
//! checks. The module that handles the location builds the request.
//!
//! A probe has no client, and tries no other peer. The part of the response that is evaluated must
//! be complete within `*_read_timeout` of the request, however slowly the bytes arrive.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::net::Address;
use engine::select::{Either, either};
use http::exchange::Exchange;
use http::request::Request;

use super::attempts::{Attempt, Attempts, Began};
use super::connection::{self, PoolContext, UpstreamConnection};
use super::family::Causes;
use super::peer_attempts::{self, AttemptPlan, Dialogue};
use super::settings::PassSettings;
use super::ssl::ResolvedTls;
use crate::activity::{READING, SENDING};
use crate::connect_target::ConnectTarget;
use crate::failures::AttemptError;
use crate::upstream::Group;

/// The activity during which a probe failed, for log lines.
pub type ProbeActivity = &'static str;

/// Why there is no response; the reason has been logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The peer did not respond.
    ByPeer(ProbeActivity),
    /// The probe could not be sent, for example because no socket could be opened. This says
    /// nothing about the peer.
    NotAsked,
}

/// The connection that probes reuse.
#[derive(Clone, Copy, Debug)]
pub struct ProbeReuse {
    /// The index of the check among those of its group: only probes of one check share a
    /// connection.
    pub check: usize,
    /// The age up to which the connection is reused.
    pub time: Duration,
}

/// The peer that is probed.
pub struct ProbedPeer<'a> {
    /// The group of the peer.
    pub group: &'a Arc<Group>,
    /// The address of the peer.
    pub address: &'a Address,
    /// The `*_pass` settings of the checked location.
    pub passing: &'a PassSettings,
}

/// Why a probe has failed.
pub struct ProbeError {
    /// The cause of the failure, in terms of `*_next_upstream`.
    pub cause: Causes,
    /// The activity during which the probe failed, for log lines.
    pub doing: ProbeActivity,
}

/// Begins the terms of connections that only serve probes.
const KEPT: &str = "health checks";

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// The terms of a probe's connection (HTTP/2). If a check reuses its connection, its probes share
/// the connection as long as the parameters of the connection stay the same. Every other probe has
/// terms, and a connection, of its own.
pub fn terms(keeps: Option<ProbeReuse>, group: &Group, reach: &ConnectTarget) -> Bytes {
    if let Some(ProbeReuse { check, .. }) = keeps {
        let made_by = connection::terms(&Bytes::new(), reach.scheme, group, reach);
        return [format!("{KEPT} of {check} ").as_bytes(), &*made_by]
            .concat()
            .into();
    }
    let number = NUMBER.get() + 1;
    NUMBER.set(number);
    format!("{KEPT} {number}").into()
}

/// Makes a shared connection end after this probe or, if probes reuse the connection, at the given
/// age. A connection whose certificate was loaded for this probe cannot be reused, and ends after
/// the probe.
pub fn keep(peer: &mut UpstreamConnection, keeps: Option<ProbeReuse>, reach: &ConnectTarget) {
    let Some(stream) = peer.shared() else {
        return;
    };
    match keeps {
        Some(ProbeReuse { time, .. })
            if !reach
                .secured
                .as_deref()
                .is_some_and(ResolvedTls::is_of_request) =>
        {
            stream.keep_connection(time)
        }
        _ => stream.end_connection(),
    }
}

/// Begins a new history of attempts, with one attempt at this peer.
pub fn begin(request: &mut Request, name: &Bytes) {
    let attempt = Attempt {
        peer: name.clone(),
        ..Attempt::default()
    };
    let attempts = Attempts::begin(request, vec![attempt]);
    attempts.borrow_mut().began = Began::now();
}

impl ProbedPeer<'_> {
    /// Connects to the peer, and performs the TLS handshake if the scheme has TLS.
    pub async fn connect(
        &self,
        request: &mut Request,
        reach: &ConnectTarget,
    ) -> Result<UpstreamConnection, Unanswered> {
        let home = PoolContext {
            local: Rc::clone(&request.local),
            group: Arc::clone(self.group),
        };
        let asking = AttemptPlan {
            tries: self.passing.tries,
            reach,
            conversation: (),
            home: &home,
        };
        let connected = peer_attempts::connect_on_own_account(request, self.address, &asking).await;
        connected.map_err(|error| match error {
            // A limit of concurrent requests says nothing about the health of the peer.
            AttemptError::Failed(failure) if failure.is_busy => Unanswered::NotAsked,
            AttemptError::Failed(_) => ProbeError::of(request, error).into(),
            AttemptError::Refused(_) | AttemptError::Aborted(_) => Unanswered::NotAsked,
        })
    }

    /// Runs the dialogue with the peer. Also returns the deadline for the rest of the response.
    pub async fn talk<C: Dialogue>(
        &self,
        request: &mut Request,
        mut peer: UpstreamConnection,
        conversation: &C,
    ) -> Result<(UpstreamConnection, C::Answer, Instant), ProbeError> {
        let timeout = self.passing.read_timeout;
        let deadline = engine::now() + timeout;
        let mut sink = Exchange::sink();
        let talking = conversation.talk(request, &mut sink, &mut peer);
        match either(talking, engine::sleep(timeout)).await {
            Either::First(Ok(answer)) => Ok((peer, answer, deadline)),
            Either::First(Err(error)) => Err(ProbeError::of(request, error)),
            Either::Second(()) => Err(ProbeError::timed_out(request, READING)),
        }
    }
}

impl From<ProbeError> for Unanswered {
    fn from(failed: ProbeError) -> Unanswered {
        Unanswered::ByPeer(failed.doing)
    }
}

impl ProbeError {
    /// Converts the error of an attempt, which has been logged.
    pub fn of(request: &Request, error: AttemptError) -> ProbeError {
        match error {
            AttemptError::Failed(failure) if failure.cause == Causes::TIMEOUT => {
                ProbeError::timed_out(request, failure.doing)
            }
            AttemptError::Failed(failure) => ProbeError {
                cause: failure.cause,
                doing: failure.doing,
            },
            // There is no client that could leave, and no body that could be refused.
            AttemptError::Refused(_) | AttemptError::Aborted(_) => ProbeError {
                cause: Causes::ERROR,
                doing: SENDING,
            },
        }
    }

    /// Logs that the probe has exceeded its time limit.
    pub fn timed_out(request: &Request, doing: ProbeActivity) -> ProbeError {
        logs::error!(
            request,
            Error,
            "upstream timed out (110: Connection timed out) {doing}"
        );
        ProbeError {
            cause: Causes::TIMEOUT,
            doing,
        }
    }
}
