//! `proxy_pass`: requests proxied to another HTTP server.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html>. `proxying::cache` caches the
//! responses, `proxying::driver` runs all proxied requests; these files have the HTTP part:
//! `settings` declares the directives, `target` parses the URL, `head` writes the upstream request,
//! `response` reads the response head, `http2` sends requests over HTTP/2 and reads the responses,
//! `rewriting` changes the response (`cookies`: its cookies), and `probe` sends health checks.

mod cookies;
mod head;
mod http2;
pub mod probe;
mod response;
mod rewriting;
mod settings;
mod target;
pub mod variables;

use std::sync::Arc;

use base::pieces::Pieces;
use bytes::Bytes;
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::{MaybeFuture, PhaseHandler, Recall, RecalledResponse};
use http::request::{Request, Step};
use proto::header::KnownField;

pub use settings::{DIRECTIVES, Proxy, Settings, check, content, purge_content, survey};

use proxying::answer::AnswerHead;
use proxying::attempts::Attempts;
use proxying::cache::{AnswerRules, CacheLookup, recall};
use proxying::connect_target::ConnectTarget;
use proxying::connection::{UpstreamConnection, ends_of, introduction, terms};
use proxying::deliver::Delivery;
use proxying::driver::{BodyReading, PeerOptions, Protocol, SentRequest, pass_on};
use proxying::failures::AttemptError;
use proxying::peer_attempts::Dialogue;
use proxying::request_framing::client_framing;
use proxying::response::{UpstreamResponse, refuse_upgrade};
use proxying::rewriting::Rewrite;
use proxying::settings::PassSettings;
use proxying::upstream::Group;
use proxying::{sending, tunnel};
use response::HttpReader;
use rewriting::Rewriting;
use settings::HttpVersion;
use target::TARGET;

/// A request in the form that is sent to peers.
struct Outgoing {
    head: Bytes,
    /// Whether both the client's request and this request have an `Upgrade` field.
    upgrade: bool,
    /// For a streamed body: the part that was received before the request is sent. `None` if the
    /// body is complete, so that the request can be sent again to another peer.
    begun: Option<Pieces>,
}

/// An HTTP/1 request and its response.
struct Http1Dialogue<'a> {
    settings: &'a Settings,
    outgoing: &'a Outgoing,
}

impl Dialogue for Http1Dialogue<'_> {
    type Answer = UpstreamResponse;

    /// Sends the request and reads the response head.
    async fn talk(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> Result<UpstreamResponse, AttemptError> {
        let mut reader = HttpReader::default();
        let mut asked = sending::RequestInFlight::new(&self.settings.passing, peer, &mut reader);
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

impl Http1Dialogue<'_> {
    /// Queues the head and the body.
    async fn queue(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        asked: &mut sending::RequestInFlight<'_, HttpReader>,
    ) -> Result<(), AttemptError> {
        asked.push_head(&self.outgoing.head);
        match &self.outgoing.begun {
            _ if !self.settings.passes_body() => Ok(()),
            None => asked.push_stored_body(request, exchange).await,
            Some(begun) => {
                let framing = client_framing(request);
                let streamed = asked.stream_body(request, exchange, begun, framing);
                // Boxed, so that requests whose body is read first need no memory for this future.
                Box::pin(streamed).await
            }
        }
    }
}

/// Proxies a request and returns the response.
impl PhaseHandler for Proxy {
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        request.start_background();
        match self.settings.version {
            HttpVersion::Http2 => MaybeFuture::wait(http2::serve(request, exchange, self)),
            HttpVersion::Http10 | HttpVersion::Http11 => {
                MaybeFuture::wait(serve(request, exchange, self))
            }
        }
    }
}

/// Cache hits in memory, for every upstream HTTP version.
impl Recall for Proxy {
    fn key(&self, request: &mut Request, key: &mut Vec<u8>) -> bool {
        let Some(target) = self.fixed_target() else {
            return false;
        };
        let default_key = |request: &mut Request, key: &mut Vec<u8>| {
            head::append_cache_key(request, self, target, key);
        };
        recall::key(request, &self.settings.passing, default_key, key)
    }

    fn recall(&self, request: &mut Request, key: &[u8]) -> Option<RecalledResponse> {
        let rules = AnswerRules {
            passing: &self.settings.passing,
            rewriting: &self.rewriting(),
        };
        recall::answer(request, &rules, key)
    }
}

async fn serve(
    request: &mut Request,
    exchange: &mut Exchange,
    proxy: &Proxy,
) -> Result<Step, Abort> {
    let http1 = Http1 {
        proxy,
        rewriting: proxy.rewriting(),
    };
    pass_on(request, exchange, &http1).await
}

/// HTTP/1, with one request at a time on a connection.
struct Http1<'p> {
    proxy: &'p Proxy,
    rewriting: Rewriting<'p>,
}

/// An HTTP/1 request to a peer, and whether its response can have a body.
struct Http1Request {
    outgoing: Outgoing,
    /// The URI, as the request line contains it.
    uri: Bytes,
    /// Whether the request is HEAD, so that the response has no body, whatever its head says.
    is_head: bool,
}

impl Protocol for Http1<'_> {
    type Target = Arc<target::ProxyTarget>;
    type Outgoing = Http1Request;
    type Dialogue<'a>
        = Http1Dialogue<'a>
    where
        Self: 'a;
    type Answer = UpstreamResponse;

    fn peer_options(&self) -> PeerOptions<'_> {
        self.proxy.peer_options(false)
    }

    fn find(&self, request: &mut Request) -> Result<Arc<target::ProxyTarget>, u16> {
        self.proxy.target(request)
    }

    fn not_found(&self, request: &mut Request) {
        clear_proxy_variables(request);
    }

    fn reading(&self, request: &Request, _: &Arc<target::ProxyTarget>) -> BodyReading {
        self.proxy.reading(request)
    }

    fn show(&self, request: &mut Request, target: &Arc<target::ProxyTarget>) {
        show(request, target);
    }

    fn begin(&self, request: &mut Request, target: &Arc<target::ProxyTarget>) {
        begin(request, target);
    }

    fn cached(&self) -> Option<&Arc<PassSettings>> {
        Some(&self.proxy.settings.passing)
    }

    fn cache_key(&self, request: &mut Request, target: &Arc<target::ProxyTarget>) -> Vec<u8> {
        head::cache_key(request, self.proxy, target)
    }

    fn rewriting(&self) -> &dyn Rewrite {
        &self.rewriting
    }

    async fn write(
        &self,
        request: &mut Request,
        target: &Arc<target::ProxyTarget>,
        begun: Option<Pieces>,
        lookup: Option<&CacheLookup>,
    ) -> Result<Http1Request, u16> {
        let written = head::write(request, self.proxy, target, begun.is_none(), lookup)?;
        Ok(Http1Request {
            uri: written.head.slice(written.uri),
            is_head: head::is_head(request, &self.proxy.settings, lookup),
            outgoing: Outgoing {
                head: written.head,
                upgrade: written.upgrade && request.header(KnownField::Upgrade).is_some(),
                begun,
            },
        })
    }

    fn uri(asked: &Http1Request) -> Bytes {
        asked.uri.clone()
    }

    fn introduction(&self, request: &Request) -> Bytes {
        introduction(self.proxy.settings.proxy_protocol, ends_of(request))
    }

    fn terms(&self, group: &Group, reach: &ConnectTarget) -> Bytes {
        terms(&self.proxy.place, b"", group, reach)
    }

    fn dialogue<'a>(
        &'a self,
        _: &'a Arc<target::ProxyTarget>,
        asked: &'a Http1Request,
    ) -> Http1Dialogue<'a> {
        Http1Dialogue {
            settings: &self.proxy.settings,
            outgoing: &asked.outgoing,
        }
    }

    fn head(answer: &UpstreamResponse) -> Option<&AnswerHead> {
        Some(&answer.head)
    }

    fn delivery(&self, asked: &Http1Request) -> Option<Delivery<'_>> {
        Some(self.proxy.delivery(&self.rewriting, asked.is_head))
    }

    async fn upgrade(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        asked: &Http1Request,
        peer: UpstreamConnection,
        answer: UpstreamResponse,
    ) -> Result<Step, Abort> {
        if asked.outgoing.upgrade {
            let passing = &self.proxy.settings.passing;
            tunnel::upgrade(request, exchange, passing, peer, answer).await
        } else {
            Ok(refuse_upgrade(request))
        }
    }

    fn hand_over(&self, peer: UpstreamConnection, answer: UpstreamResponse, asked: &Http1Request) {
        if answer.ends_with_head(asked.is_head) {
            peer.done(answer.keeps_alive());
        }
    }

    fn deliver<'a>(
        &'a self,
        request: &'a mut Request,
        _: &'a mut Exchange,
        sent: &SentRequest<Arc<target::ProxyTarget>, Http1Request>,
        peer: UpstreamConnection,
        answer: UpstreamResponse,
    ) -> MaybeFuture<'a> {
        let is_head = sent.outgoing.is_head;
        let delivery = self.proxy.delivery(&self.rewriting, is_head);
        let may_reuse = answer.keeps_alive();
        MaybeFuture::Now(Ok(delivery.deliver(request, peer, answer, may_reuse)))
    }
}

/// The parts that HTTP/1 and HTTP/2 share.
impl Proxy {
    fn peer_options(&self, is_shared: bool) -> PeerOptions<'_> {
        let passing = &self.settings.passing;
        PeerOptions {
            tries: passing.tries,
            socket: &passing.socket,
            tls: self.tls.as_deref(),
            is_shared,
        }
    }

    fn reading(&self, request: &Request) -> BodyReading {
        let settings = &self.settings;
        // HTTP/1.0 has no chunked coding: the length of a body must be known before the body is
        // sent.
        let framed = !request.body.chunked() || settings.version != HttpVersion::Http10;
        let stream = !settings.passing.request_buffering
            && settings.passes_body()
            && request.is_main()
            && framed;
        BodyReading::of_stream(stream)
    }

    fn rewriting(&self) -> Rewriting<'_> {
        Rewriting {
            redirects: &self.redirects,
            cookies: &self.settings.cookies,
        }
    }

    fn delivery<'a>(&'a self, rewriting: &'a Rewriting<'_>, is_head: bool) -> Delivery<'a> {
        Delivery {
            passing: &self.settings.passing,
            rewriting,
            is_head,
        }
    }
}

/// Sets `$proxy_host` and `$proxy_port` of a request without a target: both exist, and are empty.
fn clear_proxy_variables(request: &mut Request) {
    Attempts::enter(request);
    request.pass.enter(&TARGET);
}

/// Sets `$proxy_host` and `$proxy_port` of a request that is not proxied after all.
fn show(request: &mut Request, target: &Arc<target::ProxyTarget>) {
    Attempts::enter(request);
    request.pass.enter(&TARGET).0 = Some(Arc::clone(target));
}

/// Starts the values of `$upstream_*` for this pass; they are appended to the values of earlier
/// passes.
fn begin(request: &mut Request, target: &Arc<target::ProxyTarget>) {
    Attempts::begin_anew(request);
    request.pass.enter(&TARGET).0 = Some(Arc::clone(target));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of the future that a function with three arguments returns.
    fn future_size<A, B, C, F: Future>(_: fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_request_that_waits_is_small() {
        let size = future_size(serve);
        assert!(size <= 3200, "{size}");
    }
}
