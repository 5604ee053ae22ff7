//! `proxy_http_version 2`: the same request and answer as streams of connections that requests share.

use base::pieces::Pieces;
use http::exchange::{Abort, Exchange};
use http::request::{Request, Step};

use super::rewriting::Rewriting;
use super::{Proxy, ask_peers, head, target};
use crate::passing::deliver::Delivery;
use crate::passing::http2::conversation::{Http2Conversation, RequestBody};
use crate::passing::tries::Reach;

/// Asks upstreams, and makes their answer the response.
pub(super) async fn pass_on(
    request: &mut Request,
    exchange: &mut Exchange,
    proxy: &Proxy,
    target: &target::Target,
    begun: Option<Pieces>,
    reach: Reach,
) -> Result<Step, Abort> {
    let settings = &proxy.settings;
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
    let head = match head::write_http2(request, proxy, target, length) {
        Ok(head) => head,
        Err(status) => return Ok(Step::Finish(status)),
    };
    let is_head = head::is_head(request, settings);
    let conversation = Http2Conversation::new(&settings.passing, &head, is_head, &body);
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
        is_head,
    };
    let head = &answer.read.head;
    let step = delivery.intercept(request, &mut selection, &mut peer, head);
    let step = step.or_else(|| delivery.apply(request, &mut selection, &mut peer, head));
    if let Some(step) = step {
        // What is left of the answer is of no use.
        if let Some(asked) = &request.upstream {
            asked.end();
        }
        return Ok(step);
    }
    Ok(answer.deliver(&delivery, request, peer))
}
