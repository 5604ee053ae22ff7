//! `grpc_pass`: gRPC calls proxied to a server, as streams of shared connections.
//!
//! <https://nginx.org/en/docs/http/ngx_http_grpc_module.html>. Selection and retries of servers,
//! requests and responses work as with `proxy_http_version 2` (`proxying::http2`), but always
//! unbuffered and in both directions at once. `settings` declares the directives. The rest is
//! specific to gRPC: `call` recognizes calls and their deadlines, `errors` makes Tidegate's own
//! responses, `body` ends aborted responses, `web` is gRPC-Web, and `probe` makes health checks.

mod body;
pub mod call;
mod errors;
pub mod probe;
mod settings;
mod web;

use std::cell::Cell;
use std::time::Instant;

use base::pieces::Pieces;
use bytes::Bytes;
use engine::select::{Either, either};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::{MaybeFuture, PhaseHandler};
use http::request::{Request, Step};
use http::response::source::Body;
use logs::Level;
use proto::h2::ErrorCode;
use proto::header::KnownField;
use proto::method::Method;
use proto::uri::{Escape, escape};

pub use settings::{DIRECTIVES, GrpcPass, SHORTCUTS, check, content, survey};

use body::CallBody;
use proxying::activity::READING;
use proxying::answer::AnswerHead;
use proxying::cache::CacheLookup;
use proxying::connect_target::ConnectTarget;
use proxying::connection::{UpstreamConnection, terms};
use proxying::deliver::Delivery;
use proxying::destination::{PeerTarget, Scheme, Schemes};
use proxying::driver::{self, BodyReading, PeerOptions, Protocol, SentRequest};
use proxying::failures::note;
use proxying::http2::dialogue::{Http2Answer, Http2Dialogue};
use proxying::http2::head::RequestHead;
use proxying::http2::upload::RequestBody;
use proxying::locate::Upstream;
use proxying::upstream::Group;
use proxying::{fields, finish};
use settings::Settings;
use web::Web;

/// The scheme of servers without TLS.
const PLAIN: Scheme = Scheme::plain("grpc://");

static SCHEMES: Schemes = Schemes {
    meant: PLAIN,
    written: &[
        PLAIN,
        Scheme {
            text: "grpcs://",
            is_secure: true,
        },
    ],
};

impl PhaseHandler for GrpcPass {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        request.start_background();
        MaybeFuture::wait(serve(request, exchange, self))
    }
}

/// Proxies a call within its deadline.
async fn serve(
    request: &mut Request,
    exchange: &mut Exchange,
    pass: &GrpcPass,
) -> Result<Step, Abort> {
    let deadline = call::deadline(request);
    let grpc = Grpc { pass, deadline };
    let passed = driver::pass_on(request, exchange, &grpc);
    let Some(deadline) = deadline else {
        return passed.await;
    };
    match either(passed, engine::sleep_until(deadline)).await {
        Either::First(step) => step,
        Either::Second(()) => {
            logs::error!(request, Info, "deadline of the client is over {READING}");
            note(request, |attempt, began| {
                attempt.response_time = began.elapsed();
            });
            errors::note_deadline(request);
            Ok(finish(request, 504))
        }
    }
}

/// The gRPC protocol for one call, which may have a deadline.
struct Grpc<'p> {
    pass: &'p GrpcPass,
    deadline: Option<Instant>,
}

/// The target of a call, and its gRPC-Web variant.
struct CallTarget {
    /// The group or address of the server.
    found: PeerTarget,
    web: Option<Web>,
}

impl CallTarget {
    /// Whether the client's messages are Base64; the server gets them decoded.
    fn is_text(&self) -> bool {
        self.web.as_ref().is_some_and(Web::is_text)
    }
}

impl driver::Target for CallTarget {
    fn upstream(&self) -> &Upstream {
        self.found.upstream()
    }

    fn scheme(&self) -> &'static [u8] {
        self.found.scheme()
    }

    fn secure_name(&self) -> Option<&Bytes> {
        self.found.secure_name()
    }
}

/// A call in the form that is sent to servers.
struct OutgoingCall {
    head: RequestHead,
    body: RequestBody,
    is_head: bool,
    is_call: bool,
    /// The code with which the last server that was tried has reset the stream, if so.
    reset: Cell<Option<ErrorCode>>,
}

impl Protocol for Grpc<'_> {
    type Target = CallTarget;
    type Outgoing = OutgoingCall;
    type Dialogue<'a>
        = Http2Dialogue<'a>
    where
        Self: 'a;
    type Answer = Http2Answer;

    fn peer_options(&self) -> PeerOptions<'_> {
        PeerOptions {
            tls: self.pass.tls.as_deref(),
            is_shared: true,
            ..PeerOptions::in_the_clear(&self.pass.settings.passing)
        }
    }

    fn find(&self, request: &mut Request) -> Result<CallTarget, u16> {
        let found = self.pass.destination.find(request, Level::Error)?;
        let speaks_web = self.pass.settings.web;
        let web = speaks_web.then(|| Web::of(request)).flatten();
        Ok(CallTarget { found, web })
    }

    fn reading(&self, request: &Request, _: &CallTarget) -> BodyReading {
        BodyReading::of_stream(request.is_main())
    }

    async fn write(
        &self,
        request: &mut Request,
        target: &CallTarget,
        begun: Option<Pieces>,
        _: Option<&CacheLookup>,
    ) -> Result<OutgoingCall, u16> {
        let body = match begun {
            begun if target.is_text() => web::decode_body(request, begun).await?,
            Some(begun) => begun.into(),
            None => RequestBody::Stored,
        };
        let CallTarget { found, web } = target;
        Ok(OutgoingCall {
            head: write(request, &self.pass.settings, found, web.as_ref()),
            body,
            is_head: request.method == Method::Head,
            is_call: call::is_call(request),
            reset: Cell::new(None),
        })
    }

    fn terms(&self, group: &Group, reach: &ConnectTarget) -> Bytes {
        terms(&self.pass.place, reach.scheme, group, reach)
    }

    fn dialogue<'a>(&'a self, _: &'a CallTarget, outgoing: &'a OutgoingCall) -> Http2Dialogue<'a> {
        let OutgoingCall { head, body, .. } = outgoing;
        let passing = &self.pass.settings.passing;
        let conversation = Http2Dialogue::new(passing, head, outgoing.is_head, body);
        if outgoing.is_call {
            conversation.of_call(Some(&outgoing.reset))
        } else {
            conversation
        }
    }

    fn unanswered(&self, request: &mut Request, outgoing: &OutgoingCall, status: u16) -> Step {
        errors::note_reset(request, outgoing.reset.get());
        finish(request, status)
    }

    fn head(answer: &Http2Answer) -> Option<&AnswerHead> {
        Some(&answer.read.head)
    }

    fn delivery(&self, outgoing: &OutgoingCall) -> Option<Delivery<'_>> {
        let passing = &self.pass.settings.passing;
        Some(Delivery::unchanged(passing, outgoing.is_head))
    }

    fn deliver<'a>(
        &'a self,
        request: &'a mut Request,
        _: &'a mut Exchange,
        sent: &SentRequest<CallTarget, OutgoingCall>,
        peer: UpstreamConnection,
        answer: Http2Answer,
    ) -> MaybeFuture<'a> {
        let web = sent.target.web.as_ref();
        let ends_with_head = answer.ends_with_head();
        if ends_with_head && request.response.content_length.is_none() {
            request.response.content_length = Some(0);
        }
        // An aborted response is ended with trailers only if the client sees them and no length was
        // announced, which would have to be kept. Over HTTP/1, except with gRPC-Web, an aborted
        // response would look complete.
        let sees_trailers = web.is_some() || request.client.is_of_fields();
        let has_trailers = sees_trailers && request.response.content_length.is_none();
        let outcome = answer.outcome();
        let ended = errors::ended_of(request);
        let passing = &self.pass.settings.passing;
        let delivery = Delivery::unchanged(passing, sent.outgoing.is_head);
        let step = match answer.deliver(&delivery, request, peer) {
            Step::Respond(Body::Source(source)) if sent.outgoing.is_call => {
                let body = CallBody::new(source, outcome, has_trailers, self.deadline, ended);
                Step::Respond(Body::Source(Box::new(body)))
            }
            step => step,
        };
        MaybeFuture::Now(Ok(match (step, web) {
            (Step::Respond(body), Some(web)) => {
                Step::Respond(web.respond(request, body, ends_with_head))
            }
            (step, _) => step,
        }))
    }
}

/// Creates the request head of a call.
fn write(
    request: &mut Request,
    settings: &Settings,
    found: &PeerTarget,
    web: Option<&Web>,
) -> RequestHead {
    let mut head = RequestHead::new();
    match request.method {
        Method::Other => head.put(b":method", request.client.method_name()),
        method => head.put(b":method", method.name().as_bytes()),
    }
    let scheme: &[u8] = if found.scheme.is_secure {
        b"https"
    } else {
        b"http"
    };
    head.put(b":scheme", scheme);
    if request.uri_state.unchanged {
        head.put(b":path", request.request_uri())
    } else {
        head.put_with(b":path", |out| write_uri(request, out))
    }
    head.put_authority(request, &settings.set, found.authority());
    head.put_set(request, &settings.set);
    let may_have_length = !request.body.is_lost()
        && !fields::sets(&settings.set, b"content-length")
        && !web.is_some_and(Web::is_text);
    // As in nginx, which sends `$content_length`: a body that arrived in chunks or frames has a
    // length, too, once it is complete.
    if may_have_length && let Some(length) = request.header(KnownField::ContentLength) {
        head.put(b"content-length", length);
    } else if may_have_length && let Some(length) = request.counted_length() {
        head.put_length(length);
    }
    let wants_trailers = web.is_some() || call::accepts_trailers(request);
    if wants_trailers && !fields::sets(&settings.set, b"te") {
        head.put(b"te", b"trailers");
    }
    match web {
        Some(web) => web.put_fields(request, settings, &mut head),
        None => head.put_client(request, &settings.replaced),
    }
    head
}

/// Writes the current URI.
fn write_uri(request: &Request, out: &mut Vec<u8>) {
    escape(&request.uri, Escape::Uri, out);
    if !request.args.is_empty() {
        out.push(b'?');
        out.extend_from_slice(&request.args);
    }
}
