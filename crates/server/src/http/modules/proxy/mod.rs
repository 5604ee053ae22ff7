//! `proxy_pass`: requests passed on to another HTTP server.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html>. This is the plain form: one
//! address, or a name with its addresses tried in order, a connection a request. Groups of
//! servers, pools and caching are not here. [`serve`] is the way of a proxied request;
//! `settings` declares the directives, `head` writes the upstream's request, `response` reads
//! its answer, `body` streams it, `tunnel` carries upgraded connections.

mod body;
mod head;
mod response;
mod settings;
mod tunnel;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::net::{Address, Segment, Stream};
use engine::select::{Either, either};

use crate::http::exchange::{Abort, Exchange};
use crate::http::output::Body;
use crate::http::request::{Request, Step};
use crate::http::response::Field;
use crate::log;

pub use body::UpstreamBody;
pub use settings::{DIRECTIVES, Proxy, Settings};

/// Bytes queued for an upstream beyond which the client is not read on.
const BACKLOG_MAX: usize = 64 * 1024;

/// One try at one peer, for `$upstream_*`.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    /// Address as `$upstream_addr` shows it.
    pub peer: Bytes,
    /// Status of its answer, 0 without one.
    pub status: u16,
    /// Until the connection stood.
    pub connect_time: Option<Duration>,
    /// Until the head of the answer had come.
    pub header_time: Option<Duration>,
    /// Until the last byte of the answer.
    pub response_time: Option<Duration>,
    /// Bytes sent to it.
    pub bytes_sent: u64,
    /// Bytes received from it.
    pub bytes_received: u64,
    /// Bytes of its answer's body.
    pub response_length: u64,
}

/// What a request saw of its upstream: for variables and log lines.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Tries in order.
    pub attempts: Vec<Attempt>,
    /// `$proxy_host`.
    pub host: Bytes,
    /// `$proxy_port`.
    pub port: Bytes,
    /// What error lines show: `http://127.0.0.1:8081/path`; empty until a peer is chosen.
    pub url: Bytes,
    /// The answer's fields.
    pub fields: Vec<Field>,
    /// The answer's trailer fields.
    pub trailers: Vec<Field>,
    /// `$proxy_internal_body_length` and `$proxy_internal_chunked` need no place of their own:
    /// the head is written from the body itself.
    started: Option<Instant>,
}

impl Seen {
    /// The try under way.
    fn attempt(&mut self) -> Option<&mut Attempt> {
        self.attempts.last_mut()
    }

    fn elapsed(&self) -> Option<Duration> {
        self.started
            .map(|started| engine::now().saturating_duration_since(started))
    }
}

/// A connection to a peer with what it is called in logs.
pub(super) struct Peer {
    stream: Stream,
}

/// Passes a request on and gives the answer back.
pub async fn serve(
    request: &mut Request,
    exchange: &mut Exchange,
    proxy: &Arc<Proxy>,
) -> Result<Step, Abort> {
    let settings = Arc::clone(&proxy.settings);
    let target = match proxy.target(request) {
        Ok(target) => target,
        Err(status) => return Ok(Step::Finish(status)),
    };
    let buffered = settings.request_buffering || request.depth > 0 || !settings.pass_request_body;
    if buffered {
        match crate::http::body::read(request, exchange).await {
            Ok(()) => {}
            Err(Ok(status)) => return Ok(Step::Finish(status)),
            Err(Err(abort)) => return Err(abort),
        }
    }
    request.upstream = Some(Box::new(Seen {
        host: target.host.clone(),
        port: target.port.clone(),
        ..Seen::default()
    }));
    let (head, uri) = match head::write(request, proxy, &target, buffered) {
        Ok(written) => written,
        Err(status) => return Ok(Step::Finish(status)),
    };
    let peer = match connect(request, exchange, &settings, &target, &uri).await? {
        Ok(peer) => peer,
        Err(status) => return Ok(Step::Finish(status)),
    };
    if let Err(status) = send(request, exchange, &settings, &peer, head, buffered).await? {
        return Ok(Step::Finish(status));
    }
    let head_request = head::is_head(request, &settings);
    let answer = match response::read(request, exchange, &settings, &peer).await? {
        Ok(answer) => answer,
        Err(status) => return Ok(Step::Finish(status)),
    };
    if answer.head.status() == 101 && request.header(proto::header::Known::Upgrade).is_some() {
        return tunnel::run(request, exchange, &settings, peer, answer).await;
    }
    match response::apply(request, proxy, &target, &answer) {
        response::Applied::Pass => {}
        response::Applied::Step(step) => return Ok(step),
    }
    let framing = answer.head.body(head_request);
    let body = UpstreamBody::new(peer, &settings, framing, answer.rest);
    Ok(Step::Respond(Body::Upstream(Box::new(body))))
}

/// Connects to the first address that answers. The outer error: the client has gone.
async fn connect(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Settings,
    target: &settings::Target,
    uri: &[u8],
) -> Result<Result<Peer, u16>, Abort> {
    let mut status = 502;
    for address in target.addresses.iter() {
        let url = [b"http://", address.to_string().as_bytes(), uri].concat();
        if let Some(seen) = &mut request.upstream {
            seen.url = url.into();
            seen.started = Some(engine::now());
            let peer = Bytes::from(address.to_string());
            seen.attempts.push(Attempt {
                peer,
                ..Attempt::default()
            });
        }
        let deadline = engine::now() + settings.connect_timeout;
        let connecting = engine::net::connect(address, settings.bind, Some(deadline));
        let connected = if settings.ignore_client_abort {
            connecting.await
        } else {
            match either(connecting, exchange.client_gone()).await {
                Either::First(connected) => connected,
                Either::Second(abort) => return Err(client_left(request, abort)),
            }
        };
        match connected {
            Ok(stream) => {
                stream.set_send_timeout(settings.send_timeout);
                if request.plan.core.tcp_nodelay && matches!(address, Address::Inet(_)) {
                    stream.set_nodelay(true);
                }
                note(request, |attempt, elapsed| attempt.connect_time = elapsed);
                return Ok(Ok(Peer { stream }));
            }
            Err(error) => {
                status = failed(request, &error, "connect()", "while connecting to upstream")
            }
        }
    }
    if target.addresses.is_empty() {
        log::error!(
            request,
            Error,
            "no live upstreams while connecting to upstream"
        );
    }
    Ok(Err(status))
}

/// Sends head and body. A peer that closes while the body is being sent may have answered
/// already, so only a failure without an answer counts; that shows when the answer is read.
async fn send(
    request: &mut Request,
    exchange: &mut Exchange,
    settings: &Settings,
    peer: &Peer,
    head: Vec<u8>,
    buffered: bool,
) -> Result<Result<(), u16>, Abort> {
    let stream = &peer.stream;
    let mut sent = head.len() as u64;
    stream.push(Segment::Bytes(head.into()));
    if settings.pass_request_body {
        if buffered {
            sent += push_stored_body(request, stream);
        } else {
            while let Some(bytes) = exchange.read_body(request).await? {
                if let Some(status) = too_large(request) {
                    return Ok(Err(status));
                }
                sent += push_part(request, stream, bytes);
                if stream.backlog() > BACKLOG_MAX && stream.drained(BACKLOG_MAX).await.is_err() {
                    break;
                }
                stream.start_send();
            }
            if request.body.chunked() {
                stream.push(Segment::Bytes(Bytes::from_static(b"0\r\n\r\n")));
            }
        }
    }
    note(request, |attempt, _| attempt.bytes_sent = sent);
    stream.start_send();
    if stream.backlog() > BACKLOG_MAX {
        match stream.drained(BACKLOG_MAX).await {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let status = failed(
                    request,
                    &error,
                    "send()",
                    "while sending request to upstream",
                );
                return Ok(Err(status));
            }
            _ => {}
        }
    }
    Ok(Ok(()))
}

/// One part of a streamed body, framed as the client framed it.
fn push_part(request: &Request, stream: &Stream, bytes: Bytes) -> u64 {
    let length = bytes.len() as u64;
    if !request.body.chunked() {
        stream.push(Segment::Bytes(bytes));
        return length;
    }
    let line = proto::h1::chunked::ChunkLine::new(length);
    stream.push(Segment::Bytes(Bytes::copy_from_slice(line.as_bytes())));
    stream.push(Segment::Bytes(bytes));
    stream.push(Segment::Bytes(Bytes::from_static(b"\r\n")));
    length + line.as_bytes().len() as u64 + 2
}

fn push_stored_body(request: &Request, stream: &Stream) -> u64 {
    if let Some(parts) = request.body.in_memory() {
        for part in parts {
            stream.push(Segment::Bytes(part.clone()));
        }
    } else if let Some(file) = request.body.file() {
        let length = request.body.received();
        stream.push(Segment::File {
            file: file.clone(),
            offset: 0,
            length,
        });
    }
    request.body.length().unwrap_or(0)
}

fn too_large(request: &mut Request) -> Option<u16> {
    let limit = request.plan.core.client_max_body_size;
    if limit == 0 || request.body.received() <= limit {
        return None;
    }
    log::error!(
        request,
        Error,
        "client intended to send too large chunked body: {} bytes",
        request.body.received()
    );
    Some(413)
}

/// Writes down something of the try under way, with the time since it began.
fn note(request: &mut Request, write: impl FnOnce(&mut Attempt, Option<Duration>)) {
    if let Some(seen) = &mut request.upstream {
        let elapsed = seen.elapsed();
        if let Some(attempt) = seen.attempt() {
            write(attempt, elapsed);
        }
    }
}

/// Logs a failure of the upstream's connection in nginx's words; the status to answer with.
fn failed(request: &mut Request, error: &io::Error, call: &str, doing: &str) -> u16 {
    note(request, |attempt, elapsed| attempt.response_time = elapsed);
    let status = if error.kind() == io::ErrorKind::TimedOut {
        log::error!(
            request,
            Error,
            "upstream timed out (110: Connection timed out) {doing}"
        );
        504
    } else {
        log::error!(
            request,
            Error,
            "{call} failed {} {doing}",
            log::Errno(error)
        );
        502
    };
    note(request, |attempt, _| attempt.status = status);
    status
}

/// The client closed its connection while the upstream was being asked.
fn client_left(request: &mut Request, abort: Abort) -> Abort {
    note(request, |attempt, elapsed| attempt.response_time = elapsed);
    if request.response.status == 0 {
        request.response.status = 499;
    }
    abort
}
