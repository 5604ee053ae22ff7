//! `proxy_pass`: requests passed on to another HTTP server.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html>. Caching is not here. `serve` is the way of a proxied request, which
//! servers are asked and their answers delivered as those of other modules are (`passing`). Here is what is HTTP's own: `settings` declares
//! the directives, `target` reads the URL, `head` writes the upstream's request, `response` reads the head of the answer, `http2` does all that by version 2, `rewriting` changes
//! it (`cookies`: those that it sets); `probe` asks a server on our own account.

mod cookies;
mod head;
mod http2;
pub mod probe;
mod response;
mod rewriting;
mod settings;
mod target;
pub mod variables;

use std::rc::Rc;
use std::sync::Arc;

use base::pieces::Pieces;
use bytes::Bytes;
use http::body as request_body;
use http::exchange::{Abort, Exchange};
use http::log;
use http::module::{Handle, Ran};
use http::request::{Request, Step};
use proto::header::Known;

pub use settings::{DIRECTIVES, Proxy, Settings, check, content, survey};

use crate::passing::attempts::Attempts;
use crate::passing::connection::{Home, UpstreamConnection, ends_of, introduction, terms};
use crate::passing::deliver::Delivery;
use crate::passing::finish;
use crate::passing::locate::locate;
use crate::passing::response::{UpstreamResponse, refuse_upgrade};
use crate::passing::sending::{Asked, as_it_came};
use crate::passing::tries::{Asking, AttemptError, Conversation, Reach, ask};
use crate::passing::tunnel;
use crate::upstream::Selection;
use response::HttpReader;
use rewriting::Rewriting;
use settings::HttpVersion;
use target::{Scheme, ShownTarget, TARGET};

/// A request as peers get it.
struct Outgoing {
    head: Bytes,
    /// Whether it asks for another protocol, as the client's does.
    upgrade: bool,
    /// What of its body has been read; `None` where that is the whole, so that it can be sent
    /// again.
    begun: Option<Pieces>,
}

/// A request of HTTP/1 and its answer.
struct HttpConversation<'a> {
    settings: &'a Settings,
    outgoing: &'a Outgoing,
}

impl Conversation for HttpConversation<'_> {
    type Answer = UpstreamResponse;

    /// Sends the request, reads the head of the answer.
    async fn talk(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> Result<UpstreamResponse, AttemptError> {
        let mut reader = HttpReader::default();
        let mut asked = Asked::new(&self.settings.passing, peer, &mut reader);
        let queued = self.queue(request, exchange, &mut asked).await;
        let read = asked.read_head(request, exchange, queued).await;
        reader.reading.end_as(read, request)
    }

    fn status(&self, answer: &UpstreamResponse) -> Option<u16> {
        Some(answer.head.status())
    }

    fn can_be_repeated(&self) -> bool {
        self.outgoing.begun.is_none()
    }
}

impl HttpConversation<'_> {
    /// Queues head and body.
    async fn queue(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        asked: &mut Asked<'_, HttpReader>,
    ) -> Result<(), AttemptError> {
        asked.push_head(&self.outgoing.head);
        match &self.outgoing.begun {
            _ if !self.settings.passes_body() => Ok(()),
            None => asked.push_stored_body(request, exchange).await,
            Some(begun) => {
                let framing = as_it_came(request);
                asked.stream_body(request, exchange, begun, framing).await
            }
        }
    }
}

/// Passes a request on and gives the answer back.
impl Handle for Proxy {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> Ran<'a> {
        request.start_background();
        Ran::wait(serve(request, exchange, self))
    }
}

async fn serve(
    request: &mut Request,
    exchange: &mut Exchange,
    proxy: &Proxy,
) -> Result<Step, Abort> {
    let settings = Arc::clone(&proxy.settings);
    let target = match proxy.target(request) {
        Ok(target) => target,
        Err(status) => {
            // Both variables are there, and empty.
            Attempts::enter(request);
            request.pass.enter(&TARGET);
            return Ok(Step::Finish(status));
        }
    };
    // HTTP/1.0 knows no chunks: the length of a body must be known before it is sent.
    let framed = !request.body.chunked() || settings.version != HttpVersion::Http10;
    let stream = !settings.passing.request_buffering
        && settings.passes_body()
        && request.is_main()
        && framed;
    let read = match stream {
        true => request_body::read_at_hand(request, exchange).await,
        false => request_body::read(request, exchange).await.map(|()| None),
    };
    let begun = match read {
        Ok(begun) => begun,
        Err(failed) => {
            show(request, &target);
            return failed.map_or_else(Err, |status| Ok(Step::Finish(status)));
        }
    };
    begin(request, &target);
    pass_on(request, exchange, proxy, &target, begun).await
}

/// Asks upstreams, and makes their answer the response.
async fn pass_on(
    request: &mut Request,
    exchange: &mut Exchange,
    proxy: &Proxy,
    target: &target::Target,
    begun: Option<Pieces>,
) -> Result<Step, Abort> {
    let settings = Arc::clone(&proxy.settings);
    let secured = match (&proxy.tls, target.scheme) {
        (Some(tls), Scheme::Https) => match tls.prepare(request, &target.host).await {
            Ok(secured) => Some(secured),
            Err(status) => return Ok(finish(request, status)),
        },
        _ => None,
    };
    let mut reach = Reach {
        scheme: target.scheme.text(),
        uri: Bytes::new(),
        socket: settings.passing.socket.of_request(request),
        secured,
        introduction: introduction(settings.proxy_protocol, ends_of(request)),
        is_shared: settings.version == HttpVersion::Http2,
        terms: Bytes::new(),
    };
    if reach.is_shared {
        return http2::pass_on(request, exchange, proxy, target, begun, reach).await;
    }
    let written = match head::write(request, proxy, target, begun.is_none()) {
        Ok(written) => written,
        Err(status) => return Ok(Step::Finish(status)),
    };
    let outgoing = Outgoing {
        head: written.head.clone(),
        upgrade: written.upgrade && request.header(Known::Upgrade).is_some(),
        begun,
    };
    reach.uri = written.head.slice(written.uri);
    let conversation = HttpConversation {
        settings: &settings,
        outgoing: &outgoing,
    };
    let asked = ask_peers(request, exchange, proxy, target, reach, conversation).await?;
    let (mut selection, mut peer, answer) = match asked {
        Ok(answered) => answered,
        Err(step) => return Ok(step),
    };
    let delivery = Delivery {
        passing: &settings.passing,
        rewriting: &Rewriting {
            redirects: &proxy.redirects,
            cookies: &settings.cookies,
        },
        is_head: head::is_head(request, &settings),
    };
    let is_head = delivery.is_head;
    if let Some(step) = delivery.intercept(request, &mut selection, &mut peer, &answer.head) {
        return Ok(leave(request, peer, &answer, is_head, step));
    }
    if answer.head.is_upgrade() {
        peer.at_end = selection.at_end(request);
        return match outgoing.upgrade {
            true => tunnel::upgrade(request, exchange, &settings.passing, peer, answer).await,
            false => Ok(refuse_upgrade(request)),
        };
    }
    if let Some(step) = delivery.apply(request, &mut selection, &mut peer, &answer.head) {
        return Ok(leave(request, peer, &answer, is_head, step));
    }
    let may_go_on = answer.keeps_alive();
    Ok(delivery.deliver(request, peer, answer, may_go_on))
}

/// Asks the servers of the target until one answers. The inner error is how the request goes on where none does.
async fn ask_peers<C: Conversation>(
    request: &mut Request,
    exchange: &mut Exchange,
    proxy: &Proxy,
    target: &target::Target,
    mut reach: Reach,
    conversation: C,
) -> Result<Result<(Selection, UpstreamConnection, C::Answer), Step>, Abort> {
    let tries = proxy.settings.passing.tries;
    let ignore_abort = tries.ignore_client_abort;
    let group = match locate(request, exchange, &target.upstream, ignore_abort).await {
        Ok(Ok(group)) => group,
        Ok(Err(status)) => return Ok(Err(finish(request, status))),
        Err(_) => {
            log::error!(request, Info, "client prematurely closed connection");
            return Err(request.client_left(exchange));
        }
    };
    reach.terms = terms(&proxy.place, b"", &group, &reach);
    let mut selection = group.select(request, tries.next_upstream_tries);
    let home = Home {
        local: Rc::clone(&request.local),
        group,
    };
    let asking = Asking {
        tries,
        reach: &reach,
        conversation,
        home: &home,
    };
    let asked = ask(request, exchange, &mut selection, &asking).await?;
    Ok(match asked {
        Ok((peer, answer)) => Ok((selection, peer, answer)),
        Err(status) => Err(finish(request, status)),
    })
}

/// Goes on with something else than the answer, whose head alone was of use.
fn leave(
    request: &Request,
    peer: UpstreamConnection,
    answer: &UpstreamResponse,
    is_head: bool,
    step: Step,
) -> Step {
    if let Some(asked) = &request.upstream {
        asked.end();
    }
    if answer.ends_with_head(is_head) {
        peer.done(answer.keeps_alive());
    }
    step
}

/// Tells `$proxy_host` and `$proxy_port` of a request that is not passed on after all.
fn show(request: &mut Request, target: &target::Target) {
    Attempts::enter(request);
    *request.pass.enter(&TARGET) = ShownTarget::of(target);
}

/// Begins what `$upstream_*` tell: behind the tries of an earlier pass, if there was one.
fn begin(request: &mut Request, target: &target::Target) {
    Attempts::begin_anew(request);
    *request.pass.enter(&TARGET) = ShownTarget::of(target);
}
