//! `memcached_pass`: responses with values from a memcached server.
//!
//! <https://nginx.org/en/docs/http/ngx_http_memcached_module.html>. Selection and retries of
//! servers work as with `proxy_pass`. Values are sent to the client unbuffered. `settings` declares
//! the directives, `dialogue` requests a value, `body` reads it. `proto::memcached` has the
//! protocol itself.

mod body;
mod dialogue;
mod settings;

use base::pieces::Pieces;
use bytes::Bytes;
use http::exchange::Exchange;
use http::module::{MaybeFuture, PhaseHandler};
use http::request::{Request, Step};
use http::response::Field;
use logs::Level;
use proto::memcached::{FirstReply, Get, NO_KEY};
use proto::method::Method;

pub use settings::{DIRECTIVES, SHORTCUTS, check, content};

use body::Value;
use dialogue::{MemcachedAnswer, MemcachedDialogue};
use proxying::answer::AnswerHead;
use proxying::body::{BodyDelimiter, BodyPrefix};
use proxying::cache::CacheLookup;
use proxying::connect_target::ConnectTarget;
use proxying::connection::{UpstreamConnection, terms};
use proxying::deliver::Delivery;
use proxying::destination::PeerTarget;
use proxying::driver::{BodyReading, PeerOptions, Protocol, SentRequest, pass_on};
use proxying::finish;
use proxying::upstream::Group;
use settings::MemcachedPass;

impl PhaseHandler for MemcachedPass {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        if !matches!(request.method, Method::Get | Method::Head) {
            return MaybeFuture::Now(Ok(Step::Finish(405)));
        }
        request.set_content_type();
        request.start_background();
        MaybeFuture::wait(pass_on(request, exchange, self))
    }
}

impl Protocol for MemcachedPass {
    type Target = PeerTarget;
    type Outgoing = Get;
    type Dialogue<'a> = MemcachedDialogue<'a>;
    type Answer = MemcachedAnswer;

    fn peer_options(&self) -> PeerOptions<'_> {
        PeerOptions::in_the_clear(&self.settings.passing)
    }

    fn find(&self, request: &mut Request) -> Result<PeerTarget, u16> {
        self.destination.find(request, Level::Error)
    }

    fn reading(&self, _: &Request, _: &PeerTarget) -> BodyReading {
        BodyReading::None
    }

    async fn write(
        &self,
        request: &mut Request,
        _: &PeerTarget,
        _: Option<Pieces>,
        _: Option<&CacheLookup>,
    ) -> Result<Get, u16> {
        let get = Get::new(&self.key.evaluate(request));
        if get.is_none() {
            logs::error!(request, Error, "{NO_KEY}");
        }
        get.ok_or(500)
    }

    fn terms(&self, group: &Group, reach: &ConnectTarget) -> Bytes {
        terms(&self.place, reach.scheme, group, reach)
    }

    fn dialogue<'a>(&'a self, _: &'a PeerTarget, get: &'a Get) -> MemcachedDialogue<'a> {
        MemcachedDialogue {
            settings: &self.settings,
            get,
        }
    }

    fn deliver<'a>(
        &'a self,
        request: &'a mut Request,
        _: &'a mut Exchange,
        _: &SentRequest<PeerTarget, Get>,
        peer: UpstreamConnection,
        answer: MemcachedAnswer,
    ) -> MaybeFuture<'a> {
        let MemcachedAnswer {
            answer,
            rest,
            beyond,
        } = answer;
        let (length, flags) = match answer {
            FirstReply::NotFound => {
                peer.done(rest.is_empty());
                if let Some(asked) = &request.upstream {
                    asked.end();
                }
                return MaybeFuture::Now(Ok(finish(request, 404)));
            }
            FirstReply::Value { length, flags } => (length, flags.unwrap_or_default()),
        };
        let response = &mut request.response;
        response.status = 200;
        response.content_length = Some(length);
        // As in nginx, which sets `disable_not_modified` for all upstream responses that are not
        // cached.
        response.conditions_evaluated = true;
        response.allow_ranges = true;
        response.single_range = true;
        if flags & self.settings.gzip_flag != 0 {
            let gzip = Bytes::from_static(b"gzip");
            response.coding = Some(gzip.clone());
            response.fields.push(Field {
                name: Bytes::from_static(b"Content-Encoding"),
                value: gzip,
            });
        }
        let passing = &self.settings.passing;
        let delivery = Delivery::unchanged(passing, request.method == Method::Head);
        let arrived = BodyPrefix {
            rest,
            beyond,
            may_reuse: true,
        };
        let delimited = BodyDelimiter::Own(Box::new(Value::new(length)));
        let head = AnswerHead::none();
        MaybeFuture::Now(Ok(
            delivery.respond(request, peer, &head, delimited, arrived)
        ))
    }
}
