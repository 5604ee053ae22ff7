//! The end of a request with a status: `error_page`, or a short page of ours.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#error_page>

use std::sync::Arc;

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Template};
use framework::compile::{Compiler, Feature};
use variables::Compiling as _;

use crate::config::text::Text;
use crate::exchange::{Abort, Exchange};
use crate::request::body;
use crate::request::{self, Request, Step};
use crate::response::output::{self, Body};
use crate::response::status_page;

static ERROR_PAGE: Setting<Vec<ErrorPageLine>> =
    Setting::new("error_page", &["code ... [=[response]] uri"], rows)
        .contexts(
            Contexts::HTTP
                .or(Contexts::SERVER)
                .or(Contexts::LOCATION)
                .or(Contexts::LOCATION_IF),
        )
        .arity(Arity::at_least(2))
        .inherit(Inherit::List)
        .manual(
            "The URI that is shown for the given status codes. A path makes a redirect within the \
         server, `@name` goes on in a named location, anything else is sent to the client as a \
         redirect. `=CODE` replaces the status; `=` alone takes the one of the page.",
        );

static RECURSIVE: Setting<bool> =
    Setting::new("recursive_error_pages", &["on | off"], conf::parse::flag)
        .contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
        .default("off")
        .manual("Lets the answer of an error page lead to another error page, up to the limit of ten redirects.");

/// What is shown instead of the status.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Overwrite {
    Keep,
    /// `=`: the page's own.
    Own,
    Code(u16),
}

/// One line of `error_page` as written.
struct ErrorPageLine {
    statuses: Vec<u16>,
    overwrite: Overwrite,
    target: Template,
}

/// One status with its page.
struct Page {
    status: u16,
    overwrite: Overwrite,
    target: Text,
}

/// `error_page` and `recursive_error_pages` of a scope.
pub struct ErrorPages {
    pages: Vec<Page>,
    recursive: bool,
}

impl Feature for ErrorPages {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&ERROR_PAGE, &RECURSIVE];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let mut pages = Vec::new();
        for row in scope.written(&ERROR_PAGE)?.unwrap_or_default() {
            let target = compiler.text(&row.target);
            for status in row.statuses {
                let overwrite = match (&row.overwrite, status) {
                    (Overwrite::Keep, 494..=497) => Overwrite::Code(400),
                    (overwrite, _) => overwrite.clone(),
                };
                pages.push(Page {
                    status,
                    overwrite,
                    target: target.clone(),
                });
            }
        }
        Ok(ErrorPages {
            pages,
            recursive: scope.get(&RECURSIVE)?,
        })
    }
}

impl ErrorPages {
    /// Whether no status has a page.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Whether a status has a page here.
    pub fn has(&self, status: u16) -> bool {
        self.pages.iter().any(|page| page.status == status)
    }
}

fn rows(setter: &Setter<'_>) -> Result<Vec<ErrorPageLine>, Fault> {
    setter.lines().iter().map(|line| row(&line.args)).collect()
}

fn row(args: &[conf::Word]) -> Result<ErrorPageLine, Fault> {
    let Some((target, mut codes)) = args.split_last() else {
        return Err(Fault::new(
            "invalid number of arguments in \"error_page\" directive",
        ));
    };
    let mut overwrite = Overwrite::Keep;
    if let Some((last, rest)) = codes.split_last()
        && let Some(code) = last.bytes.strip_prefix(b"=")
    {
        if rest.is_empty() {
            return Err(Fault::at(
                last,
                format!("invalid value \"{}\"", last.text()),
            ));
        }
        overwrite = match code {
            b"" => Overwrite::Own,
            code => Overwrite::Code(
                number(code)
                    .ok_or_else(|| Fault::at(last, format!("invalid value \"{}\"", last.text())))?,
            ),
        };
        codes = rest;
    }
    let target = Template::parse(target)?;
    let mut statuses = Vec::with_capacity(codes.len());
    for word in codes {
        match conf::parse::number_of(&word.bytes) {
            None | Some(499) => {
                return Err(Fault::at(
                    word,
                    format!("invalid value \"{}\"", word.text()),
                ));
            }
            Some(status @ 300..=599) => statuses.extend(u16::try_from(status)),
            Some(_) => {
                let text = format!("value \"{}\" must be between 300 and 599", word.text());
                return Err(Fault::at(word, text));
            }
        }
    }
    Ok(ErrorPageLine {
        statuses,
        overwrite,
        target,
    })
}

fn number(digits: &[u8]) -> Option<u16> {
    u16::try_from(conf::parse::number_of(digits)?).ok()
}

/// Ends a request with a status. A step comes back where an error page leads on within the
/// server; otherwise the response has been sent.
pub async fn finish(
    request: &mut Request,
    exchange: &mut Exchange,
    status: u16,
) -> Result<Option<Step>, Abort> {
    if matches!(status, 408 | 444 | 499) {
        request.response.status = status;
        return Err(Abort::Unanswered(status));
    }
    request.course.error_status = status;
    settle_connection(request, exchange, status);
    request.response.content_type = Bytes::new();
    request.response.content_type_parameters = Bytes::new();
    let pages = Arc::clone(&request.plan.error_pages);
    let may_lead_on = !request.course.error_page_taken
        && request.course.changes_left > 0
        && !pages.pages.is_empty();
    if may_lead_on {
        // As in nginx, also where the status has no page.
        request.course.error_page_taken = !pages.recursive;
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

/// Answers what is no request (its head could not be parsed): no phases, no error page of a
/// location, but those of the default server.
pub async fn refuse(
    request: &mut Request,
    exchange: &mut Exchange,
    status: u16,
) -> Result<(), Abort> {
    exchange.forbid_keepalive();
    let outcome = match finish(request, exchange, status).await {
        Ok(None) => Ok(()),
        Ok(Some(step)) => Box::pin(request::resume(request, exchange, step)).await,
        Err(abort) => Err(abort),
    };
    Box::pin(request::follow_up(request, exchange, &outcome)).await;
    outcome
}

/// After some errors nothing more is expected of the connection. It is the main request's: what a
/// subrequest comes to says nothing of it.
fn settle_connection(request: &mut Request, exchange: &mut Exchange, status: u16) {
    if !request.is_main() {
        return;
    }
    if matches!(status, 400 | 413 | 414 | 495..=497 | 500 | 501) {
        exchange.forbid_keepalive();
        // `post_action` has no exchange with the client.
        request.keepalive.refused = true;
    }
    if matches!(status, 400 | 495..=497) {
        exchange.forbid_lingering();
    }
}

/// Nothing of the request's body is read any more. Where what has come of it breaks framing, the
/// response stays what it is and the connection ends.
async fn drop_body(request: &mut Request, exchange: &mut Exchange) {
    expect_no_body(request, exchange);
    // A fault of the body is in the log.
    let _ = body::drop_at_hand(request, exchange).await;
}

/// The request is refused: a client that waits for `100 Continue` gets none. Where a subrequest is,
/// the main request may still want its body.
fn expect_no_body(request: &Request, exchange: &mut Exchange) {
    if request.is_main() {
        exchange.no_continue();
    }
}

/// Where an error page leads: a step, or `None` when the response is a redirect by Location.
fn take(request: &mut Request, exchange: &mut Exchange, page: &Page) -> Option<Step> {
    match page.overwrite {
        Overwrite::Keep => {}
        Overwrite::Own => request.course.error_status = 0,
        Overwrite::Code(code) => request.course.error_status = code,
    }
    // A client is not asked for the body of a request that is refused for sure.
    if !matches!(page.overwrite, Overwrite::Own | Overwrite::Code(200)) {
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
            if !matches!(request.course.error_status, 301 | 302 | 303 | 307 | 308)
                || page.overwrite == Overwrite::Keep
            {
                request.course.error_status = 302;
            }
            let absolute = request.plan.core.absolute_redirect;
            request.response.add_location(target, absolute);
            None
        }
    }
}

/// Sends the short page for `request.course.error_status`.
async fn send_page(request: &mut Request, exchange: &mut Exchange) -> Result<Option<Step>, Abort> {
    let status = request.course.error_status;
    let core = Arc::clone(&request.plan.core);
    let page = status_page::page(status, &core.server_tokens, is_padded(request));
    if matches!(status, 494..=497) {
        request.course.error_status = 400;
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

/// Sends a page that leads MSIE to where a redirect would.
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
    request.course.error_status = 200;
    response.status = 200;
    response.clear_ranges();
    response.clear_last_modified();
    response.clear_etag();
    response.content_type = Bytes::from_static(b"text/html");
    response.content_length = Some(page.len() as u64);
    output::respond(request, exchange, Body::bytes(page)).await
}

/// Whether `msie_padding` applies to this client.
pub fn is_padded(request: &Request) -> bool {
    if !request.plan.core.msie_padding || request.version() < proto::h1::Version::Http10 {
        return false;
    }
    let browser = request.browser();
    browser.msie || browser.chrome
}
