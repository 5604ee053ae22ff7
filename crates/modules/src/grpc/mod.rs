//! `grpc_pass`: calls of gRPC passed on to a server, as streams of connections that calls share.
//!
//! <https://nginx.org/en/docs/http/ngx_http_grpc_module.html>. Servers are chosen and tried, and what is sent and answered is carried, as with
//! `proxy_http_version 2` (`passing::http2`), but always as it comes, both ways at once. `settings` declares the directives; here is what is gRPC's
//! own: `call` knows a call and its deadline, `errors` has answers of ours that a client of gRPC understands, `body` ends what breaks off, `web`
//! is gRPC-Web, `probe` asks whether a server is well.

mod body;
pub mod call;
mod errors;
pub mod probe;
mod settings;
mod web;

use std::cell::Cell;
use std::time::Instant;

use engine::select::{Either, either};
use http::body as request_body;
use http::exchange::{Abort, Exchange};
use http::log::{self, Level};
use http::module::{Handle, Ran};
use http::output::Body;
use http::request::{Request, Step};
use proto::header::Known;
use proto::method::Method;
use proto::uri::{Escape, escape};

pub use settings::{DIRECTIVES, GrpcPass, SHORTCUTS, check, content, survey};

use crate::passing::asking::{Answered, Question, ask_upstream};
use crate::passing::attempts::Attempts;
use crate::passing::deliver::Delivery;
use crate::passing::destination::{Found, Scheme, Schemes};
use crate::passing::fields;
use crate::passing::finish;
use crate::passing::http2::conversation::{Http2Conversation, RequestBody};
use crate::passing::http2::head::RequestHead;
use crate::passing::response::READING;
use crate::passing::rewriting::Unchanged;
use crate::passing::tries::note;
use body::CallBody;
use settings::Settings;
use web::Web;

/// How servers are spoken to without TLS.
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

impl Handle for GrpcPass {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> Ran<'a> {
        request.start_background();
        Ran::wait(serve(request, exchange, self))
    }
}

/// Passes a call on, within its deadline.
async fn serve(
    request: &mut Request,
    exchange: &mut Exchange,
    pass: &GrpcPass,
) -> Result<Step, Abort> {
    let Some(deadline) = call::deadline(request) else {
        return pass_on(request, exchange, pass, None).await;
    };
    let passed = pass_on(request, exchange, pass, Some(deadline));
    match either(passed, engine::sleep_until(deadline)).await {
        Either::First(step) => step,
        Either::Second(()) => {
            log::error!(request, Info, "deadline of the client is over {READING}");
            note(request, |attempt, began| {
                attempt.response_time = began.elapsed();
            });
            errors::note_deadline(request);
            Ok(finish(request, 504))
        }
    }
}

async fn pass_on(
    request: &mut Request,
    exchange: &mut Exchange,
    pass: &GrpcPass,
    deadline: Option<Instant>,
) -> Result<Step, Abort> {
    let settings = &pass.settings;
    let found = match pass.destination.find(request, Level::Error) {
        Ok(found) => found,
        Err(status) => {
            Attempts::enter(request);
            return Ok(Step::Finish(status));
        }
    };
    let web = settings.web.then(|| Web::of(request)).flatten();
    let is_text = web.as_ref().is_some_and(Web::is_text);
    let read = match request.is_main() && !is_text {
        true => request_body::read_at_hand(request, exchange).await,
        false => request_body::read(request, exchange).await.map(|()| None),
    };
    let begun = match read {
        Ok(begun) => begun,
        Err(failed) => return failed.map_or_else(Err, |status| Ok(Step::Finish(status))),
    };
    Attempts::begin_anew(request);
    let secured = match &pass.tls {
        Some(tls) if found.scheme.is_secure => match tls.prepare(request, &found.address).await {
            Ok(secured) => Some(secured),
            Err(status) => return Ok(Step::Finish(status)),
        },
        _ => None,
    };
    let body = match begun {
        Some(begun) => begun.into(),
        None if is_text => match web::decode_body(request).await {
            Ok(bytes) => RequestBody::Text(bytes),
            Err(status) => return Ok(Step::Finish(status)),
        },
        None => RequestBody::Stored,
    };
    let head = write(request, settings, &found, web.as_ref());
    let is_head = request.method == Method::Head;
    let reset = Cell::new(None);
    let mut conversation = Http2Conversation::new(&settings.passing, &head, is_head, &body);
    if call::is_call(request) {
        conversation = conversation.of_call(Some(&reset));
    }
    let question = Question {
        passing: &settings.passing,
        found,
        secured,
        is_shared: true,
        place: &pass.place,
        conversation,
    };
    let Answered {
        mut selection,
        mut peer,
        answer,
    } = match ask_upstream(request, exchange, question).await? {
        Ok(answered) => answered,
        Err(step) => {
            errors::note_reset(request, reset.get());
            return Ok(step);
        }
    };
    let delivery = Delivery {
        passing: &settings.passing,
        rewriting: &Unchanged,
        is_head,
    };
    let head = &answer.read.head;
    let step = delivery.intercept(request, &mut selection, &mut peer, head);
    let step = step.or_else(|| delivery.apply(request, &mut selection, &mut peer, head));
    if let Some(step) = step {
        if let Some(asked) = &request.upstream {
            asked.end();
        }
        return Ok(step);
    }
    let ends_with_head = answer.ends_with_head();
    if ends_with_head && request.response.content_length.is_none() {
        request.response.content_length = Some(0);
    }
    // A length that was announced holds, and without HTTP/2 nothing tells the end of what breaks off from its end.
    let sees_trailers = web.is_some() || request.client.is_of_fields();
    let has_trailers = sees_trailers && request.response.content_length.is_none();
    let outcome = answer.outcome();
    let ended = errors::ended_of(request);
    let step = match answer.deliver(&delivery, request, peer) {
        Step::Respond(Body::Source(source)) if call::is_call(request) => {
            let body = CallBody::new(source, outcome, has_trailers, deadline, ended);
            Step::Respond(Body::Source(Box::new(body)))
        }
        step => step,
    };
    Ok(match (step, web) {
        (Step::Respond(body), Some(web)) => {
            Step::Respond(web.respond(request, body, ends_with_head))
        }
        (step, _) => step,
    })
}

/// Writes the head of a call.
fn write(
    request: &mut Request,
    settings: &Settings,
    found: &Found,
    web: Option<&Web>,
) -> RequestHead {
    let mut head = RequestHead::new();
    match request.method {
        Method::Other => head.put(b":method", request.client.method_name()),
        method => head.put(b":method", method.name().as_bytes()),
    }
    let scheme: &[u8] = match found.scheme.is_secure {
        true => b"https",
        false => b"http",
    };
    head.put(b":scheme", scheme);
    match request.uri_state.unchanged {
        true => head.put(b":path", request.request_uri()),
        false => head.put_with(b":path", |out| write_uri(request, out)),
    }
    head.put_authority(request, &settings.set, found.authority());
    head.put_set(request, &settings.set);
    if let Some(length) = request.header(Known::ContentLength)
        && !request.body.is_lost()
        && !fields::sets(&settings.set, b"content-length")
        && !web.is_some_and(Web::is_text)
    {
        head.put(b"content-length", length);
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

/// The URI in force.
fn write_uri(request: &Request, out: &mut Vec<u8>) {
    escape(&request.uri, Escape::Uri, out);
    if !request.args.is_empty() {
        out.push(b'?');
        out.extend_from_slice(&request.args);
    }
}
