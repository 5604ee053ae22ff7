//! The collector: batches of spans are sent to it as gRPC calls over HTTP/2.
//!
//! <https://opentelemetry.io/docs/specs/otlp/#otlpgrpc>. A batch is sent once: the collector
//! accepts it or it is lost, as with nginx. Unlike in nginx, a call has a deadline, so that batches
//! are not kept forever for a collector that never answers.

use std::cell::Cell;
use std::convert::Infallible;
use std::fmt;
use std::future::{pending, poll_fn};
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::upstream::connecting::{self, ConnectOptions, Connected};
use ::upstream::{
    AttemptError, AttemptFailure, AttemptStart, Caller, Causes, ConnectionRoom, Group,
    PeerProtocol, RetryPolicy, Selection, Socket, try_peers,
};
use bytes::Bytes;
use engine::net::Address;
use engine::select::{Either, either};
use framework::generation::GenerationView;
use http_client::{Acquired, LinkOptions, StreamEnd, StreamHandle, StreamHead};
use logs::{ErrorLog, Level, Printable, Subject, Subsystem};
use prost::Message as _;
use proto::h2::client::RequestStart;
use proxying::http2::head::RequestHead;
use transport::Transport;
use transport::tls::upstream::settings::{self, NotSecured, ResolvedTls};

use super::messages::{ExportResponse, PartialSuccess};

const PATH: &[u8] = b"/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Time limit of a call, including the time to connect; the default in OpenTelemetry's own
/// libraries.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection is reused.
const KEPT: Duration = Duration::from_secs(3600);

/// Maximum number of response bytes that are examined.
const ANSWER_MAX: usize = 64 * 1024;

const SHAKING_HANDS: &str = "while SSL handshaking to upstream";
const READING: &str = "while reading response header from upstream";

const TRIES: RetryPolicy = RetryPolicy {
    connect_timeout: CONNECT_TIMEOUT,
    send_timeout: CALL_TIMEOUT,
    ignore_client_abort: true,
    next_upstream: Causes::ERROR.with(Causes::TIMEOUT),
    next_upstream_tries: 0,
    next_upstream_timeout: CALL_TIMEOUT,
};

/// The collector of an `otel_exporter`.
pub(super) struct Collector {
    /// The endpoint as written, for log lines.
    pub(super) endpoint: String,
    /// The servers of the endpoint.
    pub(super) group: Arc<Group>,
    /// TLS, if the endpoint uses it.
    pub(super) secured: Option<ResolvedTls>,
    /// `:authority` of calls.
    pub(super) authority: Bytes,
    /// Fields of calls in addition to those of gRPC: names in lower case, and values.
    pub(super) headers: Vec<(Bytes, Bytes)>,
}

impl Collector {
    /// Sends a message of the type `ExportTraceServiceRequest`. If the collector accepts the
    /// message, returns its report about rejected spans, if any. With `is_quiet`, connection errors
    /// are not logged.
    ///
    /// # Errors
    /// Why the message was not accepted, as text.
    pub(super) async fn export(
        &self,
        local: &Rc<GenerationView>,
        message: &[u8],
        is_quiet: bool,
    ) -> Result<Option<PartialSuccess>, String> {
        let mut body = Vec::with_capacity(message.len() + 5);
        let length = u32::try_from(message.len());
        let length = length.map_err(|_| "the batch is too large".to_owned())?;
        body.push(0); // not compressed
        body.extend_from_slice(&length.to_be_bytes());
        body.extend_from_slice(message);
        let call = ExportCall {
            collector: self,
            local,
            head: self.head(),
            body: body.into(),
            deadline: engine::now() + CALL_TIMEOUT,
            fault: Cell::default(),
        };
        let mut caller = Exporting {
            endpoint: &self.endpoint,
            is_quiet,
        };
        let mut selection = Selection::new(&self.group, 0);
        let Ok(answered) = try_peers(&mut caller, &mut (), &mut selection, &call).await;
        match answered {
            Ok(answered) => answered.answer.judge(),
            Err(_) => Err(call.fault.take().unwrap_or_else(|| "no server".to_owned())),
        }
    }

    fn head(&self) -> RequestHead {
        let mut head = RequestHead::new();
        head.put(b":method", b"POST");
        let scheme: &[u8] = match self.secured {
            Some(_) => b"https",
            None => b"http",
        };
        head.put(b":scheme", scheme);
        head.put(b":path", PATH);
        head.put(b":authority", &self.authority);
        head.put(b"content-type", b"application/grpc");
        head.put(b"te", b"trailers");
        head.put(
            b"user-agent",
            concat!("tidegate/", env!("CARGO_PKG_VERSION")).as_bytes(),
        );
        for (name, value) in &self.headers {
            head.put(name, value);
        }
        head
    }
}

/// The sender of a call on its own behalf: there is no client.
struct Exporting<'a> {
    endpoint: &'a str,
    /// Whether connection errors are not logged.
    is_quiet: bool,
}

impl Subject for Exporting<'_> {
    fn admits(&self, level: Level) -> bool {
        let admits = |log: Arc<ErrorLog>| log.admits(level, Subsystem::Core);
        !self.is_quiet && logs::main_log().is_some_and(admits)
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        if let Some(log) = logs::main_log() {
            write(&log);
        }
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, ", otel_exporter: \"{}\"", self.endpoint)
    }
}

impl Caller for Exporting<'_> {
    type Client = ();

    type Gone = Infallible;

    fn gone((): &mut ()) -> impl Future<Output = Infallible> {
        pending()
    }

    fn left(&mut self, (): &(), gone: Infallible, _: &'static str) -> Infallible {
        gone
    }

    fn try_begins(&mut self, _: AttemptStart<'_>) {}

    fn turned_away(&mut self, _: &Bytes, _: u16, _: Option<Duration>) {}

    fn try_failed(&mut self, failure: &AttemptFailure) {
        if failure.cause == Causes::TIMEOUT {
            let doing = failure.doing;
            logs::error!(
                self,
                Error,
                "upstream timed out (110: Connection timed out) {doing}"
            );
        }
    }
}

/// A call, to be sent to the collector's servers in turn.
struct ExportCall<'a> {
    collector: &'a Collector,
    local: &'a Rc<GenerationView>,
    head: RequestHead,
    body: Bytes,
    /// The deadline of the call.
    deadline: Instant,
    /// Why the last server did not answer.
    fault: Cell<Option<String>>,
}

/// The response of a server.
struct ExportAnswer {
    head: StreamHead,
    body: Vec<u8>,
    trailers: Option<StreamHead>,
}

impl ExportCall<'_> {
    fn failed(&self, error: &io::Error, doing: &'static str) -> AttemptError<Infallible> {
        self.note(format!("{} {doing}", logs::Errno(error)));
        AttemptError::Failed(AttemptFailure::of_connection(error, doing))
    }

    /// Records why the server that was tried last did not answer.
    fn note(&self, fault: String) {
        self.fault.set(Some(fault));
    }

    /// Records why there was no connection, and returns the error.
    fn not_connected(&self, error: AttemptError<Infallible>) -> AttemptError<Infallible> {
        let fault = match &error {
            AttemptError::Failed(failure) if failure.cause == Causes::TIMEOUT => "timed out",
            _ => "failed",
        };
        self.note(format!("{fault} {}", ::upstream::CONNECTING));
        error
    }

    /// Records that the stream has ended before its response was complete.
    fn ended(&self, stream: &StreamHandle, end: StreamEnd) -> AttemptError<Infallible> {
        let error = end.error();
        let shown = match &error {
            Some(error) => logs::Errno(error).to_string(),
            None => stream.flow().words(end),
        };
        self.note(format!("{shown} {READING}"));
        let failure = match error {
            Some(error) => AttemptFailure::of_connection(&error, READING),
            None => AttemptFailure::new(Causes::ERROR, 502, READING),
        };
        AttemptError::Failed(failure)
    }

    /// Sends the call on a stream and reads the whole response.
    async fn exchange(
        &self,
        stream: &mut StreamHandle,
    ) -> Result<ExportAnswer, AttemptError<Infallible>> {
        let opening = RequestStart {
            ends: false,
            is_head: false,
        };
        stream.flow().keep_complete_response();
        stream.keep_connection(KEPT);
        if !stream.open(self.head.fields(), self.head.list_size(), opening) {
            let lost = io::Error::from(ErrorKind::ConnectionReset);
            return Err(self.failed(&lost, READING));
        }
        stream.sender().push([self.body.clone()], true);
        let head = match poll_fn(|context| stream.poll_head(context)).await {
            Ok(head) => head,
            Err(end) => return Err(self.ended(stream, end)),
        };
        let mut body = Vec::new();
        loop {
            match poll_fn(|context| stream.poll_recv(None, context)).await {
                Ok(part) if part.is_empty() => break,
                Ok(part) if body.len() + part.len() <= ANSWER_MAX => body.extend_from_slice(&part),
                Ok(_) => {
                    self.note("the answer is too long".to_owned());
                    let failure = AttemptFailure::new(Causes::INVALID_HEADER, 502, READING);
                    return Err(AttemptError::Failed(failure));
                }
                Err(error) => return Err(self.failed(&error, READING)),
            }
        }
        match stream.flow().end() {
            None | Some(StreamEnd::Whole) => {}
            Some(end) => return Err(self.ended(stream, end)),
        }
        Ok(ExportAnswer {
            head,
            body,
            trailers: stream.flow().take_trailers(),
        })
    }
}

impl<'c> PeerProtocol<Exporting<'c>> for ExportCall<'_> {
    type Connection = StreamHandle;

    type Answer = ExportAnswer;

    const READING: &'static str = READING;

    fn tries(&self) -> &RetryPolicy {
        &TRIES
    }

    async fn connect(
        &self,
        caller: &mut Exporting<'c>,
        client: &mut (),
        address: &Address,
        room: ConnectionRoom,
    ) -> Result<(StreamHandle, bool), AttemptError<Infallible>> {
        let group = &self.collector.group;
        let mut terms = b"otel ".to_vec();
        if let Some(secured) = &self.collector.secured {
            secured.append_terms(&mut terms);
        }
        let terms = terms.into();
        let options = LinkOptions {
            local: self.local,
            group,
            address,
            terms: &terms,
            head_size: self.head.list_size(),
        };
        let acquiring = http_client::acquire(caller, client, &TRIES, &options);
        let acquired = acquiring.await.map_err(|error| self.not_connected(error));
        let permit = match acquired? {
            Acquired::Joined { stream, was_idle } => return Ok((stream, was_idle)),
            Acquired::Anew(permit) => permit,
        };
        let deadline = self.deadline.min(engine::now() + CONNECT_TIMEOUT);
        let socket = Socket::default();
        let way = ConnectOptions {
            address,
            socket: &socket,
            deadline,
            tries: &TRIES,
            room,
        };
        let connecting = connecting::connect(caller, client, &way, || None);
        let connected = connecting.await.map_err(|error| self.not_connected(error));
        let Connected::Anew(stream) = connected? else {
            return Err(AttemptError::Refused(500)); // no such connection is kept
        };
        if matches!(address, Address::Inet(_)) {
            stream.set_nodelay(true);
        }
        let transport = Transport::from(stream);
        if let Some(secured) = &self.collector.secured {
            let doing = format!(" {SHAKING_HANDS}");
            let shaking = settings::secure(&transport, secured, deadline, caller, &doing);
            if let Err(not_secured) = shaking.await {
                let (cause, status, fault) = match not_secured {
                    NotSecured::TimedOut => (Causes::TIMEOUT, 504, "timed out"),
                    NotSecured::Failed => (Causes::ERROR, 502, "failed"),
                };
                self.note(format!("{fault} {SHAKING_HANDS}"));
                let failure = AttemptFailure::new(cause, status, SHAKING_HANDS);
                return Err(AttemptError::Failed(failure));
            }
        }
        Ok((permit.begin(transport, group), false))
    }

    async fn talk(
        &self,
        _: &mut Exporting<'c>,
        (): &mut (),
        stream: &mut StreamHandle,
    ) -> Result<ExportAnswer, AttemptError<Infallible>> {
        let asked = either(self.exchange(stream), engine::sleep_until(self.deadline)).await;
        match asked {
            Either::First(answer) => answer,
            Either::Second(()) => {
                stream.suspect_dead();
                Err(self.failed(&ErrorKind::TimedOut.into(), READING))
            }
        }
    }

    fn can_be_repeated(&self) -> bool {
        true
    }
}

impl ExportAnswer {
    /// The result of the call.
    fn judge(&self) -> Result<Option<PartialSuccess>, String> {
        let status = self.head.head.status();
        let Some(code) = self.field(b"grpc-status") else {
            return Err(format!("no grpc-status, status {status}"));
        };
        if code != b"0" {
            let message = self.field(b"grpc-message").unwrap_or_default();
            let (code, message) = (Printable(code), Printable(message));
            return Err(format!("grpc-status {code}: {message}"));
        }
        let response = match self.body.split_first_chunk::<5>() {
            Some(([0, ..], message)) => ExportResponse::decode(message),
            Some(_) => return Err("the answer is compressed".to_owned()),
            None => return Ok(None),
        };
        let response = response.map_err(|error| error.to_string())?;
        Ok(response.partial_success)
    }

    /// A field of the trailers, or of the head of a response without body and trailers.
    fn field(&self, name: &[u8]) -> Option<&[u8]> {
        let heads = self.trailers.iter().chain([&self.head]);
        heads.into_iter().find_map(|head| {
            let mut fields = head.head.fields().iter();
            let bytes = &*head.bytes;
            let field = fields.find(|field| field.name(bytes).eq_ignore_ascii_case(name))?;
            Some(field.value(bytes))
        })
    }
}
