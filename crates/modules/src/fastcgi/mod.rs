//! `fastcgi_pass`: requests passed on to a FastCGI application, such as php-fpm.
//!
//! <https://nginx.org/en/docs/http/ngx_http_fastcgi_module.html>. Caching is not here. Servers are chosen and tried, answers buffered and
//! their heads made the response's as those of `proxy_pass` are (`passing`); here is what is FastCGI's own. `settings` declares the directives,
//! `conversation` sends what the application is told (`applications::params`) and reads the head of the answer, `body` reads the rest;
//! `script_name` has the variables. The framing itself is `proto::fastcgi`.

mod body;
mod conversation;
pub mod script_name;
mod settings;

use bytes::Bytes;
use engine::Buffer;
use http::body as request_body;
use http::exchange::{Abort, Exchange};
use http::log::{self, Level};
use http::module::{Handle, Ran};
use http::request::{Request, Step};
use proto::fastcgi::{PARAMS_LENGTH_MAX, RequestWriter};
use proto::h1::response::ResponseBody;
use proto::method::Method;

pub use settings::{DIRECTIVES, SHORTCUTS, check, content, survey};

use crate::applications::Outgoing;
use crate::passing::asking::{Answered, Question, ask_upstream};
use crate::passing::attempts::Attempts;
use crate::passing::body::{Arrived, Delimited, doing_behind_head};
use crate::passing::deliver::Delivery;
use crate::passing::destination::{Scheme, Schemes};
use crate::passing::response::{is_buffered, refuse_upgrade};
use crate::passing::rewriting::Unchanged;
use crate::passing::tries::note;
use body::RecordsOfBody;
use conversation::FastcgiConversation;
use settings::{FastcgiPass, Settings};

/// FastCGI is all that is spoken, and the address has no scheme.
static SCHEMES: Schemes = Schemes {
    meant: Scheme::plain("fastcgi://"),
    written: &[],
};

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
    let found = match pass.destination.find(request, Level::Error) {
        Ok(found) => found,
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
    let head = match write(request, settings) {
        Ok(head) => head,
        Err(status) => return Ok(Step::Finish(status)),
    };
    let outgoing = Outgoing { head, begun };
    let question = Question {
        passing,
        found,
        secured: None,
        is_shared: false,
        place: &pass.place,
        conversation: FastcgiConversation {
            settings,
            outgoing: &outgoing,
        },
    };
    let Answered {
        mut selection,
        mut peer,
        answer,
    } = match ask_upstream(request, exchange, question).await? {
        Ok(answered) => answered,
        Err(step) => return Ok(step),
    };
    let delivery = Delivery {
        passing,
        rewriting: &Unchanged,
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
        let doing = doing_behind_head(is_buffered(passing, head));
        for (level, text) in told {
            logs::write(request, level, format_args!("{text} {doing}"));
        }
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

/// Writes a request up to its body; where it is too long the status to answer with.
fn write(request: &mut Request, settings: &Settings) -> Result<Bytes, u16> {
    let mut head = engine::spare_bytes(2048);
    let mut writer = RequestWriter::new(&mut head, settings.keep_connection);
    let pass_headers = settings.passing.pass_request_headers;
    settings.params.write(request, pass_headers, &mut writer);
    match writer.finish(PARAMS_LENGTH_MAX) {
        Ok(()) => Ok(engine::share_bytes(head)),
        Err(too_long) => {
            log::error!(request, Alert, "{too_long}");
            Err(500)
        }
    }
}
