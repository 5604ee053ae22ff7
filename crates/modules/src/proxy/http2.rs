//! `proxy_http_version 2`: requests and responses as HTTP/2 streams of shared connections.

use std::sync::Arc;

use base::pieces::Pieces;
use bytes::Bytes;
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::module::MaybeFuture;
use http::request::{Request, Step};

use super::rewriting::Rewriting;
use super::target::ProxyTarget;
use super::{Proxy, begin, clear_proxy_variables, head, show};
use proxying::answer::AnswerHead;
use proxying::cache::CacheLookup;
use proxying::connect_target::ConnectTarget;
use proxying::connection::{UpstreamConnection, ends_of, introduction, terms};
use proxying::deliver::Delivery;
use proxying::driver::{BodyReading, PeerOptions, Protocol, SentRequest, pass_on};
use proxying::http2::dialogue::{Http2Answer, Http2Dialogue};
use proxying::http2::head::RequestHead;
use proxying::http2::upload::RequestBody;
use proxying::rewriting::Rewrite;
use proxying::settings::PassSettings;
use proxying::upstream::Group;

pub(super) async fn serve(
    request: &mut Request,
    exchange: &mut Exchange,
    proxy: &Proxy,
) -> Result<Step, Abort> {
    let http2 = Http2 {
        proxy,
        rewriting: proxy.rewriting(),
    };
    pass_on(request, exchange, &http2).await
}

/// HTTP/2, with a stream for each request.
struct Http2<'p> {
    proxy: &'p Proxy,
    rewriting: Rewriting<'p>,
}

/// An HTTP/2 request to a peer, and whether its response can have a body.
struct Http2Request {
    head: RequestHead,
    body: RequestBody,
    /// Whether the request is HEAD, so that the response has no body, whatever its head says.
    is_head: bool,
}

impl Protocol for Http2<'_> {
    type Target = Arc<ProxyTarget>;
    type Outgoing = Http2Request;
    type Dialogue<'a>
        = Http2Dialogue<'a>
    where
        Self: 'a;
    type Answer = Http2Answer;

    fn peer_options(&self) -> PeerOptions<'_> {
        self.proxy.peer_options(true)
    }

    fn find(&self, request: &mut Request) -> Result<Arc<ProxyTarget>, u16> {
        self.proxy.target(request)
    }

    fn not_found(&self, request: &mut Request) {
        clear_proxy_variables(request);
    }

    fn reading(&self, request: &Request, _: &Arc<ProxyTarget>) -> BodyReading {
        self.proxy.reading(request)
    }

    fn show(&self, request: &mut Request, target: &Arc<ProxyTarget>) {
        show(request, target);
    }

    fn begin(&self, request: &mut Request, target: &Arc<ProxyTarget>) {
        begin(request, target);
    }

    fn cached(&self) -> Option<&Arc<PassSettings>> {
        Some(&self.proxy.settings.passing)
    }

    fn cache_key(&self, request: &mut Request, target: &Arc<ProxyTarget>) -> Vec<u8> {
        head::cache_key(request, self.proxy, target)
    }

    fn rewriting(&self) -> &dyn Rewrite {
        &self.rewriting
    }

    async fn write(
        &self,
        request: &mut Request,
        target: &Arc<ProxyTarget>,
        begun: Option<Pieces>,
        lookup: Option<&CacheLookup>,
    ) -> Result<Http2Request, u16> {
        let settings = &self.proxy.settings;
        let text = settings.body.as_ref().map(|body| body.evaluate(request));
        let (length, body) = match (text, begun) {
            (Some(text), _) => (Some(text.len() as u64), RequestBody::Text(text)),
            (None, begun) => {
                let is_known = begun.is_none() || !request.body.chunked();
                let is_known = is_known && request.body.is_announced();
                let length = is_known.then(|| head::length_of(request));
                let body = match begun {
                    _ if !settings.passes_body() => RequestBody::None,
                    None => RequestBody::Stored,
                    Some(begun) => begun.into(),
                };
                (length, body)
            }
        };
        Ok(Http2Request {
            head: head::write_http2(request, self.proxy, target, length, lookup)?,
            body,
            is_head: head::is_head(request, settings, lookup),
        })
    }

    fn introduction(&self, request: &Request) -> Bytes {
        introduction(self.proxy.settings.proxy_protocol, ends_of(request))
    }

    fn terms(&self, group: &Group, reach: &ConnectTarget) -> Bytes {
        terms(&self.proxy.place, b"", group, reach)
    }

    fn dialogue<'a>(
        &'a self,
        _: &'a Arc<ProxyTarget>,
        asked: &'a Http2Request,
    ) -> Http2Dialogue<'a> {
        let passing = &self.proxy.settings.passing;
        Http2Dialogue::new(passing, &asked.head, asked.is_head, &asked.body)
    }

    fn head(answer: &Http2Answer) -> Option<&AnswerHead> {
        Some(&answer.read.head)
    }

    fn delivery(&self, asked: &Http2Request) -> Option<Delivery<'_>> {
        Some(self.proxy.delivery(&self.rewriting, asked.is_head))
    }

    fn deliver<'a>(
        &'a self,
        request: &'a mut Request,
        _: &'a mut Exchange,
        sent: &SentRequest<Arc<ProxyTarget>, Http2Request>,
        peer: UpstreamConnection,
        answer: Http2Answer,
    ) -> MaybeFuture<'a> {
        let is_head = sent.outgoing.is_head;
        let delivery = self.proxy.delivery(&self.rewriting, is_head);
        MaybeFuture::Now(Ok(answer.deliver(&delivery, request, peer)))
    }
}
