//! Ends a request with a status: by the page that `error_page` names, or by a short built-in page.

use std::sync::Arc;

use bytes::Bytes;

use crate::exchange::Exchange;
use crate::exchange::abort::Abort;
use crate::request::body::reading;
use crate::request::phases;
use crate::request::{Request, Step};
use crate::response::error_page::{Page, ShownStatus};
use crate::response::output;
use crate::response::source::Body;
use crate::response::status_page;

/// Ends a request with a status. Returns a step if an error page leads to another URI of the
/// server. Otherwise the response has been sent.
pub async fn finish(
    request: &mut Request,
    exchange: &mut Exchange,
    status: u16,
) -> Result<Option<Step>, Abort> {
    if matches!(status, 408 | 444 | 499) {
        request.response.status = status;
        return Err(Abort::Unanswered(status));
    }
    request.routing.error_status = status;
    settle_connection(request, exchange, status);
    request.response.content_type = Bytes::new();
    request.response.content_type_parameters = Bytes::new();
    let pages = Arc::clone(&request.plan.error_pages);
    let may_lead_on = !request.routing.error_page_taken
        && request.routing.uri_changes_left > 0
        && !pages.pages.is_empty();
    if may_lead_on {
        // As in nginx, also set if the status has no page.
        request.routing.error_page_taken = !pages.recursive;
    }
    if may_lead_on && let Some(page) = pages.pages.iter().find(|page| page.status == status) {
        if let Some(step) = take(request, exchange, page) {
            return Ok(Some(step));
        }
        drop_body(request, exchange).await;
        if refreshes(request) {
            return send_refresh(request, exchange).await;
        }
        return send_page(request, exchange).await;
    }
    drop_body(request, exchange).await;
    if matches!(status, 301 | 302) && refreshes(request) {
        return send_refresh(request, exchange).await;
    }
    send_page(request, exchange).await
}

/// Refuses a request whose head could not be parsed, without running the phases. The error pages
/// are those of the default server.
pub async fn refuse(
    request: &mut Request,
    exchange: &mut Exchange,
    status: u16,
) -> Result<(), Abort> {
    exchange.forbid_keepalive();
    let outcome = match finish(request, exchange, status).await {
        Ok(None) => Ok(()),
        Ok(Some(step)) => Box::pin(phases::resume(request, exchange, step)).await,
        Err(abort) => Err(abort),
    };
    Box::pin(phases::follow_up(request, exchange, &outcome)).await;
    outcome
}

/// Closes the connection after errors after which the position in the client's byte stream may be
/// unknown. Only for the main request: the status of a subrequest does not affect the connection.
fn settle_connection(request: &mut Request, exchange: &mut Exchange, status: u16) {
    if !request.is_main() {
        return;
    }
    if matches!(status, 400 | 413 | 414 | 495..=497 | 500 | 501) {
        exchange.forbid_keepalive();
        // `post_action` has no exchange with the client, so the request remembers the refusal.
        request.keepalive.refused = true;
    }
    if matches!(status, 400 | 495..=497) {
        exchange.forbid_lingering();
    }
}

/// Stops reading the request's body. If the received part is malformed, the response is not
/// changed, and the connection is closed.
async fn drop_body(request: &mut Request, exchange: &mut Exchange) {
    expect_no_body(request, exchange);
    // A fault of the body has been logged.
    let _ = reading::discard_received(request, exchange).await;
}

/// Prevents `100 Continue` for a refused request. Has no effect for a subrequest, since the main
/// request may still need the body.
fn expect_no_body(request: &Request, exchange: &mut Exchange) {
    if request.is_main() {
        exchange.no_continue();
    }
}

/// Follows an error page. Returns a step, or `None` if the response is a redirect by Location.
fn take(request: &mut Request, exchange: &mut Exchange, page: &Page) -> Option<Step> {
    match page.overwrite {
        ShownStatus::Keep => {}
        ShownStatus::Own => request.routing.error_status = 0,
        ShownStatus::Code(code) => request.routing.error_status = code,
    }
    // A client must not be asked for the body of a request that is certainly refused.
    if !matches!(page.overwrite, ShownStatus::Own | ShownStatus::Code(200)) {
        expect_no_body(request, exchange);
    }
    let target = page.target.evaluate(request);
    match target.first() {
        Some(b'/') => {
            let (uri, args) = match memchr::memchr(b'?', &target) {
                Some(at) => (target.slice(..at), Some(target.slice(at + 1..))),
                None => (target, None),
            };
            request.become_get();
            Some(Step::Redirect {
                uri: uri.to_vec(),
                args: args.map(|args| args.to_vec()),
            })
        }
        Some(b'@') => Some(Step::Named(target)),
        _ => {
            if !matches!(request.routing.error_status, 301 | 302 | 303 | 307 | 308)
                || page.overwrite == ShownStatus::Keep
            {
                request.routing.error_status = 302;
            }
            let absolute = request.plan.core.absolute_redirect;
            request.response.add_location(target, absolute);
            None
        }
    }
}

/// Sends the short built-in page for `request.routing.error_status`.
async fn send_page(request: &mut Request, exchange: &mut Exchange) -> Result<Option<Step>, Abort> {
    let status = request.routing.error_status;
    let core = Arc::clone(&request.plan.core);
    let page = status_page::page(status, &core.server_tokens, request.wants_padded_page());
    if matches!(status, 494..=497) {
        request.routing.error_status = 400;
    }
    let response = &mut request.response;
    response.status = status;
    response.clear_ranges();
    response.clear_last_modified();
    response.clear_etag();
    let body = match page {
        Some(page) => {
            response.content_type = Bytes::from_static(b"text/html");
            response.content_length = Some(page.len() as u64);
            Body::bytes(page)
        }
        None => {
            response.content_length = Some(0);
            Body::Empty
        }
    };
    output::respond(request, exchange, body).await
}

/// Whether `msie_refresh` applies to a redirect of this client.
fn refreshes(request: &Request) -> bool {
    request.plan.core.msie_refresh
        && request.response.location().is_some()
        && request.browser().msie
}

/// Sends a page that redirects MSIE, in place of a redirect response.
async fn send_refresh(
    request: &mut Request,
    exchange: &mut Exchange,
) -> Result<Option<Step>, Abort> {
    let response = &mut request.response;
    let location = response.location().cloned().unwrap_or_default();
    response.remove_location();
    let mut page = b"<html><head><meta http-equiv=\"Refresh\" content=\"0; URL=".to_vec();
    proto::uri::escape(&location, proto::uri::Escape::Refresh, &mut page);
    page.extend_from_slice(b"\"></head><body></body></html>\r\n");
    request.routing.error_status = 200;
    response.status = 200;
    response.clear_ranges();
    response.clear_last_modified();
    response.clear_etag();
    response.content_type = Bytes::from_static(b"text/html");
    response.content_length = Some(page.len() as u64);
    output::respond(request, exchange, Body::bytes(page)).await
}
