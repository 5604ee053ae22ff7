//! `fastcgi_pass`: passes requests on to a FastCGI application, such as php-fpm.
//!
//! <https://nginx.org/en/docs/http/ngx_http_fastcgi_module.html>. The crate `proxying` chooses
//! servers, caches, buffers and delivers responses, as for `proxy_pass`; this module has the parts
//! of FastCGI. `settings` declares the directives, `dialogue` sends the parameters
//! (`applications::params`) and reads the head of the response, `body` reads the rest;
//! `script_name` has the variables. The records are encoded and decoded by `proto::fastcgi`.

mod body;
mod dialogue;
pub mod script_name;
mod settings;

use std::sync::Arc;

use base::pieces::Pieces;
use bytes::Bytes;
use engine::Buffer;
use http::exchange::Exchange;
use http::module::{MaybeFuture, PhaseHandler, Recall, RecalledResponse};
use http::request::Request;
use logs::Level;
use proto::fastcgi::{PARAMS_LENGTH_MAX, RequestWriter};
use proto::h1::response::BodyFraming;
use proto::method::Method;

pub use settings::{DIRECTIVES, SHORTCUTS, check, content, purge_content, survey};

use crate::applications::Outgoing;
use body::RecordsOfBody;
use dialogue::{FastcgiAnswer, FastcgiDialogue};
use proxying::answer::AnswerHead;
use proxying::body::{BodyDelimiter, BodyPrefix, body_activity};
use proxying::cache::{AnswerRules, CacheLookup, recall};
use proxying::connect_target::ConnectTarget;
use proxying::connection::{UpstreamConnection, terms};
use proxying::deliver::Delivery;
use proxying::destination::{PeerTarget, Scheme, Schemes};
use proxying::driver::{BodyReading, PeerOptions, Protocol, SentRequest, pass_on};
use proxying::failures::note;
use proxying::response::is_buffered;
use proxying::settings::PassSettings;
use proxying::upstream::Group;
use settings::{FastcgiPass, Settings};

/// FastCGI has no scheme in addresses.
static SCHEMES: Schemes = Schemes {
    meant: Scheme::plain("fastcgi://"),
    written: &[],
};

impl PhaseHandler for FastcgiPass {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        request.start_background();
        MaybeFuture::wait(pass_on(request, exchange, self))
    }
}

impl Recall for FastcgiPass {
    fn key(&self, request: &mut Request, key: &mut Vec<u8>) -> bool {
        recall::key(request, &self.settings.passing, |_, _| {}, key)
    }

    fn recall(&self, request: &mut Request, key: &[u8]) -> Option<RecalledResponse> {
        recall::answer(request, &AnswerRules::plain(&self.settings.passing), key)
    }
}

impl Protocol for FastcgiPass {
    type Target = PeerTarget;
    type Outgoing = Outgoing;
    type Dialogue<'a> = FastcgiDialogue<'a>;
    type Answer = FastcgiAnswer;

    fn peer_options(&self) -> PeerOptions<'_> {
        PeerOptions::in_the_clear(&self.settings.passing)
    }

    fn find(&self, request: &mut Request) -> Result<PeerTarget, u16> {
        self.destination.find(request, Level::Error)
    }

    fn reading(&self, request: &Request, _: &PeerTarget) -> BodyReading {
        let passing = &self.settings.passing;
        let stream = !passing.request_buffering && passing.pass_request_body;
        BodyReading::of_stream(stream && request.is_main())
    }

    fn cached(&self) -> Option<&Arc<PassSettings>> {
        Some(&self.settings.passing)
    }

    async fn write(
        &self,
        request: &mut Request,
        _: &PeerTarget,
        begun: Option<Pieces>,
        lookup: Option<&CacheLookup>,
    ) -> Result<Outgoing, u16> {
        let head = write(request, &self.settings, lookup)?;
        Ok(Outgoing {
            head,
            is_head: request.method == Method::Head,
            reads_body_of_head: lookup.is_some_and(CacheLookup::reads_body_of_head),
            begun,
        })
    }

    fn terms(&self, group: &Group, reach: &ConnectTarget) -> Bytes {
        terms(&self.place, reach.scheme, group, reach)
    }

    fn dialogue<'a>(&'a self, _: &'a PeerTarget, outgoing: &'a Outgoing) -> FastcgiDialogue<'a> {
        FastcgiDialogue {
            settings: &self.settings,
            outgoing,
        }
    }

    fn head(answer: &FastcgiAnswer) -> Option<&AnswerHead> {
        Some(&answer.read.head)
    }

    fn delivery(&self, outgoing: &Outgoing) -> Option<Delivery<'_>> {
        let passing = &self.settings.passing;
        Some(Delivery::unchanged(passing, outgoing.is_head))
    }

    fn deliver<'a>(
        &'a self,
        request: &'a mut Request,
        _: &'a mut Exchange,
        sent: &SentRequest<PeerTarget, Outgoing>,
        peer: UpstreamConnection,
        answer: FastcgiAnswer,
    ) -> MaybeFuture<'a> {
        let passing = &self.settings.passing;
        let delivery = Delivery::unchanged(passing, sent.outgoing.is_head);
        let head = &answer.read.head;
        let is_buffered = is_buffered(passing, head);
        let keeps = self.settings.keep_connection;
        let mut records = RecordsOfBody::new(answer.decoder, keeps && is_buffered);
        let mut arrived = BodyPrefix {
            rest: answer.read.rest,
            beyond: answer.read.beyond,
            may_reuse: keeps,
        };
        // With these statuses the client gets no body, so the body is not read to its end.
        if matches!(head.status(), 204 | 304) {
            let length = arrived.rest.len() as u64;
            let (ended, log_lines) = records.ends_at_once(&mut arrived.rest);
            let doing = body_activity(is_buffered);
            for (level, text) in log_lines {
                logs::write(request, level, format_args!("{text} {doing}"));
            }
            if let Some(may_reuse) = ended {
                note(request, |attempt, _| attempt.response_length = length);
                arrived.rest = Buffer::empty();
                arrived.may_reuse &= may_reuse;
                let nothing = BodyDelimiter::Http(BodyFraming::None);
                return MaybeFuture::Now(Ok(
                    delivery.respond(request, peer, head, nothing, arrived)
                ));
            }
        }
        let delimited = BodyDelimiter::Own(Box::new(records));
        MaybeFuture::Now(Ok(delivery.respond(request, peer, head, delimited, arrived)))
    }
}

/// Encodes a request up to its body. The error is the status of the response to a request that is
/// too long.
fn write(
    request: &mut Request,
    settings: &Settings,
    lookup: Option<&CacheLookup>,
) -> Result<Bytes, u16> {
    let mut head = engine::spare_bytes(2048);
    let mut writer = RequestWriter::new(&mut head, settings.keep_connection);
    let pass_headers = settings.passing.pass_request_headers;
    settings
        .params
        .write(request, pass_headers, lookup, &mut writer);
    match writer.finish(PARAMS_LENGTH_MAX) {
        Ok(()) => Ok(engine::share_bytes(head)),
        Err(too_long) => {
            logs::error!(request, Alert, "{too_long}");
            Err(500)
        }
    }
}
