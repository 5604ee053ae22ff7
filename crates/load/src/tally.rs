//! What happened: responses and failures by kind, bytes, and times in histograms.
//!
//! A thread counts for itself; tallies are added up at the end. Times are in nanoseconds, kept to
//! three significant digits.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest time that is told apart: an hour.
const NANOSECONDS_MAX: u64 = 3_600_000_000_000;

/// Digits that a histogram keeps of each time.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Highest status that is counted, plus one.
pub(crate) const STATUSES: usize = 1000;

/// Why a request failed: one kind for each cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RequestError {
    /// No server listens there (`ECONNREFUSED`), or the Unix socket is not there.
    Refused,
    /// No connection within the time limit.
    ConnectTimeout,
    /// The connection attempt failed in another way.
    Connect,
    /// No TLS handshake within the time limit.
    TlsTimeout,
    /// The connection ended within the TLS handshake.
    TlsClosed,
    /// The TLS handshake failed: what came is no TLS, there is nothing that both sides speak, or
    /// the server refused.
    TlsHandshake,
    /// The server's certificate is not to be believed.
    TlsUntrusted,
    /// What came after the TLS handshake could not be opened, or was an alert.
    TlsBroken,
    /// The server reset the connection.
    Reset,
    /// The response was not complete within the time limit.
    Timeout,
    /// The connection ended without a whole response head.
    ClosedEarly,
    /// The connection ended within a body whose length was known.
    ClosedInBody,
    /// What came is no response head.
    GarbageHead,
    /// The response head does not end.
    HeadTooLarge,
    /// A chunked body is malformed.
    GarbageBody,
    /// More came than the response's head said.
    WrongLength,
    /// The response is complete, but its status is not what was expected.
    Status,
    /// The response is complete, but its body is not what was expected.
    Digest,
    /// The response is complete, but its body is not as long as the first one.
    Differs,
    /// The server does not speak HTTP/2: it has not agreed to it, or what it has sent first is
    /// something else.
    NoHttp2,
    /// The server has broken the rules of HTTP/2, on the connection or on this stream.
    Http2Violation,
    /// The server has reset the stream.
    StreamReset,
    /// The server has refused the stream without a look at the request.
    StreamRefused,
    /// The server has ended the connection for an error.
    GoAway,
    /// The response is complete, and none of gRPC: another media type, or no `grpc-status`.
    NotGrpc,
    /// The call has an answer, but its status is not what was expected.
    GrpcStatus,
    /// The call went well, but what came is not one whole message.
    GrpcMessage,
    /// This machine had no descriptor, port or memory for the connection: the tool's limit, not the
    /// server's.
    Local,
}

impl RequestError {
    /// All kinds, in the order of reports.
    pub const ALL: [RequestError; 28] = [
        RequestError::Refused,
        RequestError::ConnectTimeout,
        RequestError::Connect,
        RequestError::TlsTimeout,
        RequestError::TlsClosed,
        RequestError::TlsHandshake,
        RequestError::TlsUntrusted,
        RequestError::TlsBroken,
        RequestError::Reset,
        RequestError::Timeout,
        RequestError::ClosedEarly,
        RequestError::ClosedInBody,
        RequestError::GarbageHead,
        RequestError::HeadTooLarge,
        RequestError::GarbageBody,
        RequestError::WrongLength,
        RequestError::Status,
        RequestError::Digest,
        RequestError::Differs,
        RequestError::NoHttp2,
        RequestError::Http2Violation,
        RequestError::StreamReset,
        RequestError::StreamRefused,
        RequestError::GoAway,
        RequestError::NotGrpc,
        RequestError::GrpcStatus,
        RequestError::GrpcMessage,
        RequestError::Local,
    ];

    /// Its name in JSON and CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RequestError::Refused => "connect_refused",
            RequestError::ConnectTimeout => "connect_timeout",
            RequestError::Connect => "connect_other",
            RequestError::TlsTimeout => "tls_timeout",
            RequestError::TlsClosed => "tls_closed",
            RequestError::TlsHandshake => "tls_handshake",
            RequestError::TlsUntrusted => "tls_untrusted",
            RequestError::TlsBroken => "tls_broken",
            RequestError::Reset => "reset",
            RequestError::Timeout => "timeout",
            RequestError::ClosedEarly => "closed_early",
            RequestError::ClosedInBody => "closed_in_body",
            RequestError::GarbageHead => "garbage_head",
            RequestError::HeadTooLarge => "head_too_large",
            RequestError::GarbageBody => "garbage_body",
            RequestError::WrongLength => "wrong_length",
            RequestError::Status => "status",
            RequestError::Digest => "sha256",
            RequestError::Differs => "other_length",
            RequestError::NoHttp2 => "http2_not_spoken",
            RequestError::Http2Violation => "http2_violation",
            RequestError::StreamReset => "stream_reset",
            RequestError::StreamRefused => "stream_refused",
            RequestError::GoAway => "goaway",
            RequestError::NotGrpc => "not_grpc",
            RequestError::GrpcStatus => "grpc_status",
            RequestError::GrpcMessage => "grpc_message",
            RequestError::Local => "local_limit",
        }
    }

    /// What it is, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            RequestError::Refused => "connection refused",
            RequestError::ConnectTimeout => "no connection in time",
            RequestError::Connect => "connection failed otherwise",
            RequestError::TlsTimeout => "no TLS handshake in time",
            RequestError::TlsClosed => "closed within the TLS handshake",
            RequestError::TlsHandshake => "TLS handshake failed",
            RequestError::TlsUntrusted => "certificate not trusted",
            RequestError::TlsBroken => "TLS broken after the handshake",
            RequestError::Reset => "connection reset",
            RequestError::Timeout => "no complete response in time",
            RequestError::ClosedEarly => "closed before a whole response head",
            RequestError::ClosedInBody => "closed within the body",
            RequestError::GarbageHead => "not a response head",
            RequestError::HeadTooLarge => "response head without end",
            RequestError::GarbageBody => "malformed chunked body",
            RequestError::WrongLength => "more than Content-Length",
            RequestError::Status => "unexpected status",
            RequestError::Digest => "unexpected body (SHA-256)",
            RequestError::Differs => "another length than the first",
            RequestError::NoHttp2 => "HTTP/2 not spoken",
            RequestError::Http2Violation => "HTTP/2 violated",
            RequestError::StreamReset => "stream reset",
            RequestError::StreamRefused => "stream refused",
            RequestError::GoAway => "connection ended for an error (GOAWAY)",
            RequestError::NotGrpc => "no answer of gRPC",
            RequestError::GrpcStatus => "unexpected gRPC status",
            RequestError::GrpcMessage => "not one whole message",
            RequestError::Local => "no descriptor, port or memory here",
        }
    }
}

/// The counts of a thread, or of a whole run.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Responses that came in full, whatever their status.
    pub completed: u64,
    /// Those of them that were as expected.
    pub succeeded: u64,
    /// Those of them that came within the plan's limit.
    pub good: u64,
    /// Bytes received, heads included.
    pub bytes: u64,
    /// Bytes of bodies of responses that came in full.
    pub body_bytes: u64,
    /// Bytes that were sent to the server.
    pub sent: u64,
    /// Connections that were made.
    pub connected: u64,
    /// TLS handshakes that ended well and began a session.
    pub full_handshakes: u64,
    /// TLS handshakes that ended well and went on with an earlier session.
    pub resumed_handshakes: u64,
    /// How long making connections took, without TLS.
    pub connect: Histogram<u64>,
    /// How long TLS handshakes took that ended well.
    pub handshake: Histogram<u64>,
    /// From the (intended) start of a request to the first byte of its response.
    pub first_byte: Histogram<u64>,
    /// From the (intended) start of a request to the end of its response, of those that came in
    /// full.
    pub total: Histogram<u64>,
    failures: [u64; RequestError::ALL.len()],
    statuses: Box<[u64]>,
    grpc_statuses: Box<[u64]>,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            completed: 0,
            succeeded: 0,
            good: 0,
            bytes: 0,
            body_bytes: 0,
            sent: 0,
            connected: 0,
            full_handshakes: 0,
            resumed_handshakes: 0,
            connect: histogram(),
            handshake: histogram(),
            first_byte: histogram(),
            total: histogram(),
            failures: [0; RequestError::ALL.len()],
            statuses: vec![0; STATUSES].into_boxed_slice(),
            grpc_statuses: vec![0; STATUSES].into_boxed_slice(),
        }
    }
}

pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, NANOSECONDS_MAX, SIGNIFICANT_DIGITS)
        .expect("the bounds are constants that the crate takes")
}

/// Adds one time to a histogram; beyond an hour it counts as an hour.
pub(crate) fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

impl Tally {
    /// Counts a failed request by its cause.
    pub fn fail(&mut self, failure: RequestError) {
        self.failures[failure as usize] += 1;
    }

    /// How many requests failed so.
    #[must_use]
    pub fn failures(&self, failure: RequestError) -> u64 {
        self.failures[failure as usize]
    }

    /// How many requests failed, for any reason.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// How many requests failed because there was no connection, or it broke or stalled.
    #[must_use]
    pub fn broken(&self) -> u64 {
        let kinds = [
            RequestError::Refused,
            RequestError::ConnectTimeout,
            RequestError::Connect,
            RequestError::TlsTimeout,
            RequestError::TlsClosed,
            RequestError::TlsHandshake,
            RequestError::TlsUntrusted,
            RequestError::TlsBroken,
            RequestError::Reset,
            RequestError::Timeout,
            RequestError::Local,
        ];
        kinds.iter().map(|kind| self.failures(*kind)).sum()
    }

    /// How many requests have ended, well or not.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.succeeded + self.failed()
    }

    /// Counts the status of a complete response.
    pub fn count_status(&mut self, status: u16) {
        self.add_status(status, 1);
    }

    /// Counts a status that came so often.
    pub(crate) fn add_status(&mut self, status: u16, times: u64) {
        if let Some(count) = self.statuses.get_mut(usize::from(status)) {
            *count += times;
        }
    }

    /// Counts the status of a call.
    pub fn count_grpc_status(&mut self, status: u16) {
        self.add_grpc_status(status, 1);
    }

    /// Counts a status of calls that came so often.
    pub(crate) fn add_grpc_status(&mut self, status: u16, times: u64) {
        if let Some(count) = self.grpc_statuses.get_mut(usize::from(status)) {
            *count += times;
        }
    }

    /// Counts a failure that came so often.
    pub(crate) fn add_failures(&mut self, failure: RequestError, times: u64) {
        self.failures[failure as usize] += times;
    }

    /// Statuses that came, with how often.
    pub fn statuses(&self) -> impl Iterator<Item = (usize, u64)> {
        came(&self.statuses)
    }

    /// Statuses of calls that came, with how often.
    pub fn grpc_statuses(&self) -> impl Iterator<Item = (usize, u64)> {
        came(&self.grpc_statuses)
    }

    /// Adds what another thread counted.
    pub fn add(&mut self, other: &Tally) {
        self.completed += other.completed;
        self.succeeded += other.succeeded;
        self.good += other.good;
        self.bytes += other.bytes;
        self.body_bytes += other.body_bytes;
        self.sent += other.sent;
        self.connected += other.connected;
        self.full_handshakes += other.full_handshakes;
        self.resumed_handshakes += other.resumed_handshakes;
        for (own, other) in [
            (&mut self.connect, &other.connect),
            (&mut self.handshake, &other.handshake),
            (&mut self.first_byte, &other.first_byte),
            (&mut self.total, &other.total),
        ] {
            own.add(other).expect("all histograms have the same bounds");
        }
        let failures = self.failures.iter_mut().zip(&other.failures);
        let statuses = self.statuses.iter_mut().zip(&*other.statuses);
        let grpc_statuses = self.grpc_statuses.iter_mut().zip(&*other.grpc_statuses);
        for (own, other) in failures.chain(statuses).chain(grpc_statuses) {
            *own += other;
        }
    }
}

/// What was counted at all, with its place.
fn came(counts: &[u64]) -> impl Iterator<Item = (usize, u64)> {
    let counts = counts.iter().copied().enumerate();
    counts.filter(|(_, count)| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up() {
        let mut all = Tally::default();
        for (time, status) in [(1_000_u64, 200), (3_000, 404)] {
            let mut tally = Tally {
                completed: 1,
                succeeded: u64::from(status == 200),
                ..Tally::default()
            };
            tally.count_status(status);
            tally.count_grpc_status(status % 100);
            record(&mut tally.total, Duration::from_nanos(time));
            if status == 404 {
                tally.fail(RequestError::Status);
                tally.fail(RequestError::Reset);
            }
            all.add(&tally);
        }
        assert_eq!(
            (all.completed, all.succeeded, all.failed(), all.ended()),
            (2, 1, 2, 3)
        );
        assert_eq!(all.statuses().collect::<Vec<_>>(), [(200, 1), (404, 1)]);
        assert_eq!(all.grpc_statuses().collect::<Vec<_>>(), [(0, 1), (4, 1)]);
        assert_eq!((all.total.len(), all.total.min()), (2, 1_000));
    }

    #[test]
    fn every_kind_has_its_own_place_and_name() {
        for (index, failure) in RequestError::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, index);
            let same = RequestError::ALL
                .into_iter()
                .filter(|other| other.name() == failure.name());
            assert_eq!(same.count(), 1);
        }
    }
}
