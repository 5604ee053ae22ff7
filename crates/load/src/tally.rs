//! The counters of a run: responses, failures by cause, bytes, and histograms of times.
//!
//! Each thread has its own tally; the tallies are added at the end. Times are in nanoseconds, with
//! three significant digits.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The largest recorded time: an hour.
const NANOSECONDS_MAX: u64 = 3_600_000_000_000;

/// Number of significant digits of times in a histogram.
const SIGNIFICANT_DIGITS: u8 = 3;

/// The highest status that is counted, plus one.
pub(crate) const STATUSES: usize = 1000;

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RequestError {
    /// The connection was refused (`ECONNREFUSED`), or the Unix socket does not exist.
    Refused,
    /// Connecting timed out.
    ConnectTimeout,
    /// Connecting failed for another reason.
    Connect,
    /// The TLS handshake timed out.
    TlsTimeout,
    /// The connection ended during the TLS handshake.
    TlsClosed,
    /// The TLS handshake failed: the server sent something other than TLS, there was no common
    /// protocol version, cipher or the like, or the server refused.
    TlsHandshake,
    /// The server's certificate is not trusted.
    TlsUntrusted,
    /// After the TLS handshake, a record could not be decrypted, or the server sent an alert.
    TlsBroken,
    /// The server reset the connection.
    Reset,
    /// The response was not complete within the time limit.
    Timeout,
    /// The connection ended before the end of the response head.
    ClosedEarly,
    /// The connection ended in a body of known length.
    ClosedInBody,
    /// The server sent something other than a response head.
    GarbageHead,
    /// The response head is too long.
    HeadTooLarge,
    /// A chunked body is malformed.
    GarbageBody,
    /// The server sent more than the response head announced.
    WrongLength,
    /// The response is complete, but its status is unexpected.
    Status,
    /// The response is complete, but its body is unexpected.
    Digest,
    /// The response is complete, but its body has another length than the first one.
    Differs,
    /// The server does not support HTTP/2: it did not negotiate it, or first sent something else.
    NoHttp2,
    /// The server violated HTTP/2, on the connection or on this stream.
    Http2Violation,
    /// The server reset the stream.
    StreamReset,
    /// The server refused the stream without processing the request.
    StreamRefused,
    /// The server ended the connection with an error (GOAWAY).
    GoAway,
    /// The response is complete, but not a gRPC response: its media type differs, or `grpc-status`
    /// is missing.
    NotGrpc,
    /// The gRPC response is complete, but its status is unexpected.
    GrpcStatus,
    /// The gRPC call succeeded, but the body is not exactly one message.
    GrpcMessage,
    /// This machine had no descriptor, port or memory for the connection: a limit of the load
    /// tester, not of the server.
    Local,
}

impl RequestError {
    /// All causes, in the order of reports.
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

    /// The identifier in JSON and CSV.
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

    /// A description for people.
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

/// The counters of a thread, or of a whole run.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Complete responses, whatever their status.
    pub completed: u64,
    /// Complete responses that were as expected.
    pub succeeded: u64,
    /// Expected responses within the plan's time limit.
    pub good: u64,
    /// Bytes received, heads included.
    pub bytes: u64,
    /// Bytes of the bodies of complete responses.
    pub body_bytes: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Connections made.
    pub connected: u64,
    /// Successful full TLS handshakes.
    pub full_handshakes: u64,
    /// Successful TLS handshakes that resumed a session.
    pub resumed_handshakes: u64,
    /// Times of connecting, without TLS.
    pub connect: Histogram<u64>,
    /// Times of successful TLS handshakes.
    pub handshake: Histogram<u64>,
    /// Times from the (intended) start of a request to the first byte of its response.
    pub first_byte: Histogram<u64>,
    /// Times from the (intended) start of a request to the end of its response, for complete
    /// responses.
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

/// Records a time in a histogram; times above an hour are recorded as an hour.
pub(crate) fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

impl Tally {
    /// Counts a failed request by its cause.
    pub fn fail(&mut self, failure: RequestError) {
        self.failures[failure as usize] += 1;
    }

    /// The number of failures with this cause.
    #[must_use]
    pub fn failures(&self, failure: RequestError) -> u64 {
        self.failures[failure as usize]
    }

    /// The number of failures.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// The number of failures because a connection could not be made, broke or stalled.
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

    /// The number of requests that have succeeded or failed.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.succeeded + self.failed()
    }

    /// Counts the status of a complete response.
    pub fn count_status(&mut self, status: u16) {
        self.add_status(status, 1);
    }

    /// Counts a status of responses `times` times.
    pub(crate) fn add_status(&mut self, status: u16, times: u64) {
        if let Some(count) = self.statuses.get_mut(usize::from(status)) {
            *count += times;
        }
    }

    /// Counts the status of a gRPC call.
    pub fn count_grpc_status(&mut self, status: u16) {
        self.add_grpc_status(status, 1);
    }

    /// Counts a status of gRPC calls `times` times.
    pub(crate) fn add_grpc_status(&mut self, status: u16, times: u64) {
        if let Some(count) = self.grpc_statuses.get_mut(usize::from(status)) {
            *count += times;
        }
    }

    /// Counts a failure `times` times.
    pub(crate) fn add_failures(&mut self, failure: RequestError, times: u64) {
        self.failures[failure as usize] += times;
    }

    /// The statuses that occurred, with their counts.
    pub fn statuses(&self) -> impl Iterator<Item = (usize, u64)> {
        came(&self.statuses)
    }

    /// The statuses of gRPC calls that occurred, with their counts.
    pub fn grpc_statuses(&self) -> impl Iterator<Item = (usize, u64)> {
        came(&self.grpc_statuses)
    }

    /// Adds the counters of another thread.
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

/// The counters that are not zero, with their indexes.
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
