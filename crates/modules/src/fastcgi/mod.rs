//! `fastcgi_pass`: requests passed on to a FastCGI application, such as php-fpm.
//!
//! <https://nginx.org/en/docs/http/ngx_http_fastcgi_module.html>. Caching is not here. Servers are chosen and tried, answers buffered and
//! their heads made the response's as those of `proxy_pass` are (`proxy`); here is what is FastCGI's own. `settings` declares the directives,
//! `params` writes what the application is told, `conversation` sends it and reads the head of the answer, `body` reads the rest;
//! `script_name` has the variables. The framing itself is `proto::fastcgi`.

mod body;
mod conversation;
mod params;
pub mod script_name;
mod settings;

use std::rc::Rc;

use bytes::Bytes;
use engine::Buffer;
use http::body as request_body;
use http::exchange::{Abort, Exchange};
use http::log::{self, Level};
use http::module::{Handle, Ran};
use http::request::{Request, Step};
use proto::h1::response::ResponseBody;
use proto::method::Method;

pub use settings::{BUFFER_DIRECTIVES, DIRECTIVES, SHORTCUTS, check, content, survey};

use crate::proxy::attempts::Attempts;
use crate::proxy::body::{Arrived, Delimited};
use crate::proxy::connection::{Home, terms};
use crate::proxy::deliver::Delivery;
use crate::proxy::response::{Rewriting, is_buffered, refuse_upgrade};
use crate::proxy::tries::{Asking, Reach, ask, note};
use crate::proxy::{finish, target};
use body::RecordsOfBody;
use conversation::{FastcgiConversation, Outgoing};
use settings::FastcgiPass;

/// How the URLs of peers begin in log lines.
const SCHEME: &[u8] = b"fastcgi://";

impl Handle for FastcgiPass {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> Ran<'a> {
        request.start_background();
        Ran::wait(serve(request, exchange, self))
    }
}

async fn serve(
    request: &mut Request,
    exchange: &mut Exchange,
    pass: &FastcgiPass,
) -> Result<Step, Abort> {
    let settings = &pass.settings;
    let passing = &settings.passing;
    let upstream = match pass.destination.upstream(request, Level::Error) {
        Ok(upstream) => upstream,
        Err(status) => {
            Attempts::enter(request);
            return Ok(Step::Finish(status));
        }
    };
    let stream = !passing.request_buffering && passing.pass_request_body && request.is_main();
    let read = match stream {
        true => request_body::read_at_hand(request, exchange).await,
        false => request_body::read(request, exchange).await.map(|()| None),
    };
    let begun = match read {
        Ok(begun) => begun,
        Err(failed) => return failed.map_or_else(Err, |status| Ok(Step::Finish(status))),
    };
    Attempts::begin_anew(request);
    let head = match params::write(request, settings) {
        Ok(head) => head,
        Err(status) => return Ok(Step::Finish(status)),
    };
    let ignore_abort = passing.tries.ignore_client_abort;
    let group = match target::locate(request, exchange, &upstream, ignore_abort).await {
        Ok(Ok(group)) => group,
        Ok(Err(status)) => return Ok(finish(request, status)),
        Err(_) => {
            log::error!(request, Info, "client prematurely closed connection");
            return Err(request.client_left(exchange));
        }
    };
    let mut reach = Reach {
        scheme: SCHEME,
        uri: Bytes::new(),
        socket: passing.socket.of_request(request),
        secured: None,
        introduction: Bytes::new(),
        terms: Bytes::new(),
    };
    reach.terms = terms(&pass.place, SCHEME, &group, &reach);
    let mut selection = group.select(request, passing.tries.next_upstream_tries);
    let home = Home {
        local: Rc::clone(&request.local),
        group,
    };
    let outgoing = Outgoing { head, begun };
    let asking = Asking {
        tries: passing.tries,
        reach: &reach,
        conversation: FastcgiConversation {
            settings,
            outgoing: &outgoing,
        },
        home: &home,
    };
    let asked = ask(request, exchange, &mut selection, &asking).await?;
    let (mut peer, answer) = match asked {
        Ok(answered) => answered,
        Err(status) => return Ok(finish(request, status)),
    };
    let delivery = Delivery {
        passing,
        rewriting: Rewriting::NOTHING,
        is_head: request.method == Method::Head,
    };
    let head = &answer.read.head;
    let mut step = delivery.intercept(request, &mut selection, &mut peer, head);
    if step.is_none() && head.is_upgrade() {
        // A client would go on in another protocol.
        return Ok(refuse_upgrade(request));
    }
    if step.is_none() {
        step = delivery.apply(request, &mut selection, &mut peer, head);
    }
    if let Some(step) = step {
        // What the application goes on to say is of no use: its connection ends.
        if let Some(asked) = &request.upstream {
            asked.end();
        }
        return Ok(step);
    }
    let keeps = settings.keep_connection;
    let mut records = RecordsOfBody::new(answer.decoder, keeps && is_buffered(passing, head));
    let mut arrived = Arrived {
        rest: answer.read.rest,
        beyond: answer.read.beyond,
        may_go_on: keeps,
    };
    // Nothing would read to the end of what the client gets no body of.
    if matches!(head.status(), 204 | 304) {
        let length = arrived.rest.len() as u64;
        let (ended, told) = records.ends_at_once(&mut arrived.rest);
        told.iter().for_each(|told| told.write(request));
        if let Some(may_go_on) = ended {
            note(request, |attempt, _| attempt.response_length = length);
            arrived.rest = Buffer::empty();
            arrived.may_go_on &= may_go_on;
            let nothing = Delimited::Http(ResponseBody::None);
            return Ok(delivery.respond(request, peer, head, nothing, arrived));
        }
    }
    let delimited = Delimited::Own(Box::new(records));
    Ok(delivery.respond(request, peer, head, delimited, arrived))
}
