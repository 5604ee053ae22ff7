//! `memcached_pass`: answers from a memcached server, which gives a value or has none.
//!
//! <https://nginx.org/en/docs/http/ngx_http_memcached_module.html>. Servers are chosen and tried as those of `proxy_pass` are, and their
//! values go to the client as they come, without buffers. `settings` declares the directives, `conversation` asks for a value, `body` reads
//! it. The protocol itself is `proto::memcached`.

mod body;
mod conversation;
mod settings;

use bytes::Bytes;
use http::exchange::{Abort, Exchange};
use http::log::{self, Level};
use http::module::{Handle, Ran};
use http::request::{Request, Step};
use http::response::Field;
use proto::memcached::{Answer, Get, NO_KEY};
use proto::method::Method;

pub use settings::{DIRECTIVES, SHORTCUTS, check, content};

use crate::passing::answer::AnswerHead;
use crate::passing::asking::{Answered, Question, ask_upstream};
use crate::passing::attempts::Attempts;
use crate::passing::body::{Arrived, Delimited};
use crate::passing::deliver::Delivery;
use crate::passing::finish;
use crate::passing::rewriting::Unchanged;
use body::Value;
use conversation::MemcachedConversation;
use settings::MemcachedPass;

impl Handle for MemcachedPass {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> Ran<'a> {
        if !matches!(request.method, Method::Get | Method::Head) {
            return Ran::Now(Ok(Step::Finish(405)));
        }
        request.set_content_type();
        request.start_background();
        Ran::wait(serve(request, exchange, self))
    }
}

async fn serve(
    request: &mut Request,
    exchange: &mut Exchange,
    pass: &MemcachedPass,
) -> Result<Step, Abort> {
    Attempts::begin_anew(request);
    let Some(get) = Get::new(&pass.key.evaluate(request)) else {
        log::error!(request, Error, "{NO_KEY}");
        return Ok(Step::Finish(500));
    };
    let found = match pass.destination.find(request, Level::Error) {
        Ok(found) => found,
        Err(status) => return Ok(Step::Finish(status)),
    };
    let settings = &pass.settings;
    let question = Question {
        passing: &settings.passing,
        found,
        secured: None,
        is_shared: false,
        place: &pass.place,
        conversation: MemcachedConversation {
            settings,
            get: &get,
        },
    };
    let Answered {
        selection,
        mut peer,
        answer: (answer, rest),
    } = match ask_upstream(request, exchange, question).await? {
        Ok(answered) => answered,
        Err(step) => return Ok(step),
    };
    selection.head_came(request);
    peer.at_end = selection.at_end(request);
    let (length, flags) = match answer {
        Answer::NotFound => {
            peer.done(rest.is_empty());
            if let Some(asked) = &request.upstream {
                asked.end();
            }
            return Ok(finish(request, 404));
        }
        Answer::Value { length, flags } => (length, flags.unwrap_or_default()),
    };
    let response = &mut request.response;
    response.status = 200;
    response.content_length = Some(length);
    // As in nginx, which sets `disable_not_modified` for whatever an upstream answers and no cache keeps.
    response.conditions_judged = true;
    response.allow_ranges = true;
    response.single_range = true;
    if flags & settings.gzip_flag != 0 {
        let gzip = Bytes::from_static(b"gzip");
        response.coding = Some(gzip.clone());
        response.fields.push(Field {
            name: Bytes::from_static(b"Content-Encoding"),
            value: gzip,
        });
    }
    let delivery = Delivery {
        passing: &settings.passing,
        rewriting: &Unchanged,
        is_head: request.method == Method::Head,
    };
    let arrived = Arrived {
        rest,
        beyond: 0,
        may_go_on: true,
    };
    let delimited = Delimited::Own(Box::new(Value::new(length)));
    Ok(delivery.respond(request, peer, &AnswerHead::none(), delimited, arrived))
}
