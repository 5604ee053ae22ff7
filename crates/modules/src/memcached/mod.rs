//! `memcached_pass`: answers from a memcached server, which gives a value or has none.
//!
//! <https://nginx.org/en/docs/http/ngx_http_memcached_module.html>. Servers are chosen and tried as those of `proxy_pass` are, and their
//! values go to the client as they come, without buffers. `settings` declares the directives, `conversation` asks for a value, `body` reads
//! it. The protocol itself is `proto::memcached`.

mod body;
mod conversation;
mod settings;

use base::pieces::Pieces;
use bytes::Bytes;
use http::exchange::Exchange;
use http::log::{self, Level};
use http::module::{Handle, Ran};
use http::request::{Request, Step};
use http::response::Field;
use proto::memcached::{Answer, Get, NO_KEY};
use proto::method::Method;

pub use settings::{DIRECTIVES, SHORTCUTS, check, content};

use crate::passing::answer::AnswerHead;
use crate::passing::body::{Arrived, Delimited};
use crate::passing::cache::Lookup;
use crate::passing::connection::{UpstreamConnection, terms};
use crate::passing::deliver::Delivery;
use crate::passing::destination::Found;
use crate::passing::driver::{BodyReading, Protocol, Sent, Way, pass_on};
use crate::passing::finish;
use crate::passing::tries::Reach;
use crate::upstream::Group;
use body::Value;
use conversation::{MemcachedAnswer, MemcachedConversation};
use settings::MemcachedPass;

impl Handle for MemcachedPass {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> Ran<'a> {
        if !matches!(request.method, Method::Get | Method::Head) {
            return Ran::Now(Ok(Step::Finish(405)));
        }
        request.set_content_type();
        request.start_background();
        Ran::wait(pass_on(request, exchange, self))
    }
}

impl Protocol for MemcachedPass {
    type Target = Found;
    type Outgoing = Get;
    type Dialogue<'a> = MemcachedConversation<'a>;
    type Answer = MemcachedAnswer;

    fn way(&self) -> Way<'_> {
        Way::in_the_clear(&self.settings.passing)
    }

    fn find(&self, request: &mut Request) -> Result<Found, u16> {
        self.destination.find(request, Level::Error)
    }

    fn reading(&self, _: &Request, _: &Found) -> BodyReading {
        BodyReading::None
    }

    async fn write(
        &self,
        request: &mut Request,
        _: &Found,
        _: Option<Pieces>,
        _: Option<&Lookup>,
    ) -> Result<Get, u16> {
        let get = Get::new(&self.key.evaluate(request));
        if get.is_none() {
            log::error!(request, Error, "{NO_KEY}");
        }
        get.ok_or(500)
    }

    fn terms(&self, group: &Group, reach: &Reach) -> Bytes {
        terms(&self.place, reach.scheme, group, reach)
    }

    fn dialogue<'a>(&'a self, _: &'a Found, get: &'a Get) -> MemcachedConversation<'a> {
        MemcachedConversation {
            settings: &self.settings,
            get,
        }
    }

    fn deliver<'a>(
        &'a self,
        request: &'a mut Request,
        _: &'a mut Exchange,
        _: &Sent<Found, Get>,
        peer: UpstreamConnection,
        answer: MemcachedAnswer,
    ) -> Ran<'a> {
        let MemcachedAnswer {
            answer,
            rest,
            beyond,
        } = answer;
        let (length, flags) = match answer {
            Answer::NotFound => {
                peer.done(rest.is_empty());
                if let Some(asked) = &request.upstream {
                    asked.end();
                }
                return Ran::Now(Ok(finish(request, 404)));
            }
            Answer::Value { length, flags } => (length, flags.unwrap_or_default()),
        };
        let response = &mut request.response;
        response.status = 200;
        response.content_length = Some(length);
        // As in nginx, which sets `disable_not_modified` for whatever an upstream answers and no
        // cache keeps.
        response.conditions_judged = true;
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
        let arrived = Arrived {
            rest,
            beyond,
            may_go_on: true,
        };
        let delimited = Delimited::Own(Box::new(Value::new(length)));
        let head = AnswerHead::none();
        Ran::Now(Ok(
            delivery.respond(request, peer, &head, delimited, arrived)
        ))
    }
}
