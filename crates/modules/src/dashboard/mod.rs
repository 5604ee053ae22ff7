//! `dashboard`: a page that shows the state that the API of the same server returns. Tidegate's own
//! directive; NGINX Plus ships a page of its own.
//!
//! The page, its style and its script are embedded in the program. The page sends requests only to
//! the API, and `Content-Security-Policy` enforces that. Described in docs/api.md.

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, parse};
use framework::compile::Compiler;
use http::config::location::LocationName;
use http::exchange::Exchange;
use http::module::{Content, MaybeFuture, PhaseHandler};
use http::request::{Request, Step};
use http::response::output;
use proto::method::Method;

use crate::api;

/// Declares the directive `dashboard`.
pub static DASHBOARD: Setting<()> = Setting::new("dashboard", &[""], parse::nothing)
    .contexts(Contexts::LOCATION)
    .arity(Arity::exactly(0))
    .inherit(Inherit::Handler)
    .manual(
        "Answers with a page that shows connections, requests, zones and upstreams, and with `api write=on` drains servers and takes them \
         down and up. It reads the first `api` of the same server and no other address. The location's name ends with a slash.",
    );

/// Directives of this module, for the table.
pub const DIRECTIVES: &[&dyn Declared] = &[&DASHBOARD];

/// The page may load from, and connect to, only this server.
const POLICY: &str =
    "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("app.js");

/// The content handler of `dashboard`.
pub fn content(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    if scope.own(&DASHBOARD)?.is_none() {
        return Ok(None);
    }
    let lines = scope.own_lines(&DASHBOARD.spec);
    let placed = |fault: Fault| match lines.first() {
        Some(line) => fault.or_at(line.position),
        None => fault,
    };
    let prefix = match scope.line().map(LocationName::parse).transpose()? {
        Some(LocationName::Prefix { name, .. }) if name.ends_with(b"/") => name,
        _ => {
            let text = "\"dashboard\" must stand in a location that is given by a prefix which ends with a slash";
            return Err(placed(Fault::new(text)));
        }
    };
    let mut around = std::iter::successors(Some(scope), |scope| scope.parent());
    let server = around.find(|scope| scope.context() == Contexts::SERVER);
    let found = server.map(api::first_within).transpose()?.flatten();
    let missing = "\"dashboard\" requires \"api\" in a location of its server";
    let (api, writes) = found.ok_or_else(|| placed(Fault::new(missing)))?;
    let page = PAGE.replace("{api}", &escaped(&api));
    let page = page.replace("{writes}", if writes { "on" } else { "off" });
    Ok(Some(Content {
        inherited_by_limit_except: true,
        adds_slash: true,
        ..Content::of(Dashboard {
            prefix,
            page: page.into(),
        })
    }))
}

/// Escapes text for an HTML attribute.
fn escaped(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('"', "&quot;")
}

/// The dashboard of one location.
struct Dashboard {
    prefix: Bytes,
    page: Bytes,
}

impl PhaseHandler for Dashboard {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        MaybeFuture::Now(Ok(self.serve(request)))
    }
}

impl Dashboard {
    fn serve(&self, request: &mut Request) -> Step {
        if !matches!(request.method, Method::Get | Method::Head) {
            return Step::Finish(405);
        }
        let (content_type, body) = match request.uri.strip_prefix(&self.prefix[..]) {
            Some(b"") => ("text/html", self.page.clone()),
            Some(b"style.css") => ("text/css", STYLE.into()),
            Some(b"app.js") => ("text/javascript", SCRIPT.into()),
            _ => return Step::Finish(404),
        };
        let response = &mut request.response;
        response.content_type_parameters = Bytes::from_static(b"; charset=utf-8");
        response.add("Content-Security-Policy", POLICY);
        response.add("X-Content-Type-Options", "nosniff");
        response.add("Referrer-Policy", "no-referrer");
        // Browsers must ask again each time, since another version of the program has a different
        // page.
        response.add("Cache-Control", "no-cache");
        output::page(request, 200, content_type.into(), body)
    }
}
