//! `metrics`: the server's metrics, for Prometheus or as JSON. nginx has no such directive.
//!
//! Each request is counted by server and location when it ends ([`meter`]).
//! [`counters`](framework::counters) has the connections and the other totals of the process,
//! `upstreams` has groups of servers, `caches` has the zones of `*_cache_path`, and `page` formats
//! everything. A configuration without `metrics` counts nothing per scope. Single requests are not
//! recorded here; the access log has them.
//!
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>. Described in docs/metrics.md.

mod caches;
mod memcached;
pub mod meter;
mod page;
mod process;
pub(crate) mod queues;
mod upstreams;

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting};
use framework::compile::Compiler;
use http::exchange::Exchange;
use http::module::{Content, MaybeFuture, PhaseHandler};
use http::request::{Request, Step};
use http::response::output;
use proto::method::Method;

/// `metrics [prometheus | json]`
pub static METRICS: Setting<Format> =
    Setting::new("metrics", &["[prometheus | json]"], format)
        .contexts(Contexts::SERVER.or(Contexts::LOCATION))
        .arity(Arity::between(0, 1))
        .inherit(Inherit::Handler)
        .manual(
            "Answers with numbers about connections, requests by server and location, servers of upstreams, and the \
             server itself, all since the start of the worker process. The format is the one named \
             here; else the one that the argument `format` of the URL names; else JSON where the \
             Accept field names `application/json`, and Prometheus text where it does not. A \
             location that holds this is best kept to those whom it concerns, by `allow` and `deny`.",
        );

/// Directives of this module, for the table.
pub const DIRECTIVES: &[&dyn Declared] = &[&METRICS];

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The format that the request asks for.
    Negotiated,
    /// Prometheus' text format, version 0.0.4.
    Prometheus,
    /// A JSON object.
    Json,
}

fn format(setter: &Setter<'_>) -> Result<Format, Fault> {
    match setter.args() {
        [] => Ok(Format::Negotiated),
        [word, ..] => Format::named(&word.bytes).ok_or_else(|| Fault::invalid_parameter(word)),
    }
}

/// The content handler of `metrics`.
pub fn content(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    let format = scope.own(&METRICS)?;
    if format.is_some() {
        ::upstream::count_answers();
    }
    Ok(format.map(|format| Content {
        inherited_by_limit_except: true,
        ..Content::of(format)
    }))
}

impl PhaseHandler for Format {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        MaybeFuture::Now(Ok(serve(request, *self)))
    }
}

impl Format {
    fn named(name: &[u8]) -> Option<Format> {
        match name {
            b"prometheus" => Some(Format::Prometheus),
            b"json" => Some(Format::Json),
            _ => None,
        }
    }

    /// The format that a request asks for if the directive names none.
    fn wanted(request: &Request) -> Format {
        let arguments = request.args.split(|byte| *byte == b'&');
        let mut named = arguments.filter_map(|argument| argument.strip_prefix(b"format="));
        if let Some(format) = named.find_map(Format::named) {
            return format;
        }
        let accept = request.header_named(b"accept").unwrap_or_default();
        let types = accept.split(|byte| *byte == b',').map(|part| {
            let end = memchr::memchr(b';', part).unwrap_or(part.len());
            part.get(..end).unwrap_or_default().trim_ascii()
        });
        if types.into_iter().any(|one| one == b"application/json") {
            Format::Json
        } else {
            Format::Prometheus
        }
    }
}

/// Responds with the current metrics.
fn serve(request: &mut Request, format: Format) -> Step {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Step::Finish(405);
    }
    let format = match format {
        Format::Negotiated => Format::wanted(request),
        format => format,
    };
    let numbers = page::Numbers::of(request);
    let (content_type, body) = match format {
        Format::Json => ("application/json", numbers.json()),
        _ => {
            let parameters = Bytes::from_static(b"; version=0.0.4; charset=utf-8");
            request.response.content_type_parameters = parameters;
            ("text/plain", numbers.prometheus().into_bytes())
        }
    };
    output::page(request, 200, content_type.into(), body.into())
}
