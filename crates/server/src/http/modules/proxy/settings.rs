//! The directives of `proxy_*` and what they amount to in a location.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Line, Part, ScopeRef, Setter, Setting, Template,
    Word, parse,
};
use framework::compile::{Compiler, Feature};

use super::buffers;
use super::ssl::UpstreamTls;
use super::target::{self, Scheme, Target};
use crate::http::request::Request;
use crate::log;
use crate::regex::Regex;
use crate::text::Text;
use crate::variables::Compiling as _;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

static PROXY_PASS: Setting<Word> = Setting::new("proxy_pass", &["URL"], |setter| setter.word().cloned())
    .contexts(Contexts::LOCATION.or(Contexts::LOCATION_IF).or(Contexts::LIMIT_EXCEPT))
    .inherit(Inherit::Handler)
    .manual("Passes requests on to an HTTP or HTTPS server: http://HOST[:PORT][URI] or http://unix:PATH:[URI], or the same with https. Where a URI is written it replaces the location's part of the request's. HOST may be the name of an upstream block; the addresses of any other name share the requests.");

static SET_HEADER: Setting<Vec<(Word, Word)>> = Setting::new("proxy_set_header", &["field value"], pairs)
    .contexts(HSL)
    .arity(Arity::exactly(2))
    .inherit(Inherit::Keyed)
    .manual("Sets a field of the upstream's request; an empty value leaves the field out. Written on one level, it replaces those of the levels above.");

static HIDE_HEADER: Setting<Vec<Word>> = Setting::new("proxy_hide_header", &["field"], words)
    .contexts(HSL)
    .inherit(Inherit::List)
    .manual("A field of the answer that is not passed to the client.");

static PASS_HEADER: Setting<Vec<Word>> = Setting::new("proxy_pass_header", &["field"], words)
    .contexts(HSL)
    .inherit(Inherit::List)
    .manual("A field of the answer that is passed to the client though it is hidden by default.");

static IGNORE_HEADERS: Setting<Vec<Word>> = Setting::new("proxy_ignore_headers", &["field ..."], ignored)
    .contexts(HSL)
    .arity(Arity::at_least(1))
    .inherit(Inherit::List)
    .manual("Fields of the answer that are not acted upon: X-Accel-Redirect, X-Accel-Limit-Rate, X-Accel-Buffering, X-Accel-Charset, X-Accel-Expires, Expires, Cache-Control, Set-Cookie, Vary.");

static REDIRECT: Setting<Vec<RedirectLine>> =
    Setting::new("proxy_redirect", &["default", "off", "redirect replacement"], redirects)
        .contexts(HSL)
        .arity(Arity::between(1, 2))
        .inherit(Inherit::List)
        .manual("Rewrites Location and Refresh of the answer: by default, the proxy_pass URL becomes the location's prefix.");

static HTTP_VERSION: Setting<HttpVersion> =
    Setting::new("proxy_http_version", &["1.0 | 1.1"], |setter| {
        parse::enumeration(
            setter,
            &[("1.0", HttpVersion::Http10), ("1.1", HttpVersion::Http11)],
        )
    })
    .contexts(HSL)
    .default("1.1")
    .manual("The version of the upstream's request.");

static METHOD: Setting<Template> = Setting::new("proxy_method", &["method"], parse::template)
    .contexts(HSL)
    .manual("The method of the upstream's request instead of the client's.");

static BIND: Setting<BindLine> = Setting::new("proxy_bind", &["address", "off"], bind)
    .contexts(HSL)
    .arity(Arity::between(1, 2))
    .manual("The local address, with or without a port, that connections to the upstream come from. Variables may be used; where they give nothing, the kernel chooses.");

static NEXT_UPSTREAM: Setting<Causes> = Setting::new(
    "proxy_next_upstream",
    &["error | timeout | invalid_header | http_500 | http_502 | http_503 | http_504 | http_403 | http_404 | http_429 | non_idempotent | off ..."],
    causes,
)
.contexts(HSL)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.default("error timeout")
.manual("When the next server of a group is tried. Requests that change something (POST, LOCK, PATCH) are only sent again with non_idempotent.");

macro_rules! settings {
    ($($name:ident: $kind:ty = $directive:literal, $syntax:literal, $parse:expr, $default:literal, $manual:literal;)*) => {
        $(static $name: Setting<$kind> = Setting::new($directive, &[$syntax], $parse)
            .contexts(HSL)
            .default($default)
            .manual($manual);)*
    };
}

settings! {
    CONNECT_TIMEOUT: Duration = "proxy_connect_timeout", "time", parse::milliseconds, "60s",
        "How long connecting to the upstream may take (504 after it).";
    SEND_TIMEOUT: Duration = "proxy_send_timeout", "time", parse::milliseconds, "60s",
        "The longest time between two successful writes to the upstream (504 after it).";
    READ_TIMEOUT: Duration = "proxy_read_timeout", "time", parse::milliseconds, "60s",
        "The longest time between two successful reads from the upstream (504 after it).";
    BUFFERING: bool = "proxy_buffering", "on | off", parse::flag, "on",
        "Off: every part of the answer is sent on as it comes. On: parts that come together leave together.";
    REQUEST_BUFFERING: bool = "proxy_request_buffering", "on | off", parse::flag, "on",
        "Reads the whole request body before the upstream is asked; off passes it on as it comes.";
    PASS_REQUEST_HEADERS: bool = "proxy_pass_request_headers", "on | off", parse::flag, "on",
        "Passes the client's header fields on.";
    PASS_REQUEST_BODY: bool = "proxy_pass_request_body", "on | off", parse::flag, "on",
        "Passes the client's body on.";
    INTERCEPT_ERRORS: bool = "proxy_intercept_errors", "on | off", parse::flag, "off",
        "Lets error_page take answers with a status of 300 or more.";
    IGNORE_CLIENT_ABORT: bool = "proxy_ignore_client_abort", "on | off", parse::flag, "off",
        "Goes on with the upstream's request when the client has gone.";
    NEXT_UPSTREAM_TRIES: u64 = "proxy_next_upstream_tries", "number", parse::number, "0",
        "The most servers that a request is passed to; 0 is all of the group.";
    NEXT_UPSTREAM_TIMEOUT: Duration = "proxy_next_upstream_timeout", "time", parse::milliseconds, "0",
        "How long after the first try a next one may begin; 0 is always.";
    BUFFER_SIZE: u64 = "proxy_buffer_size", "size", parse::size, "4k",
        "The longest head of an answer.";
}

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[
    &PROXY_PASS,
    &SET_HEADER,
    &HIDE_HEADER,
    &PASS_HEADER,
    &IGNORE_HEADERS,
    &REDIRECT,
    &HTTP_VERSION,
    &METHOD,
    &BIND,
    &CONNECT_TIMEOUT,
    &SEND_TIMEOUT,
    &READ_TIMEOUT,
    &BUFFERING,
    &REQUEST_BUFFERING,
    &PASS_REQUEST_HEADERS,
    &PASS_REQUEST_BODY,
    &INTERCEPT_ERRORS,
    &IGNORE_CLIENT_ABORT,
    &NEXT_UPSTREAM,
    &NEXT_UPSTREAM_TRIES,
    &NEXT_UPSTREAM_TIMEOUT,
    &BUFFER_SIZE,
];

/// The directives that nginx makes its table of hidden fields of, for each scope that writes one.
pub const HIDDEN_FIELDS: &[&dyn Declared] = &[&HIDE_HEADER, &PASS_HEADER];

/// The directive that nginx makes its table of set fields of.
pub const SET_FIELDS: &[&dyn Declared] = &[&SET_HEADER];

/// Sizes of both tables in nginx.
pub const HASH_SIZES: [&Setting<u64>; 2] = [
    &buffers::HEADERS_HASH_MAX_SIZE,
    &buffers::HEADERS_HASH_BUCKET_SIZE,
];

/// The version of the upstream's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpVersion {
    /// `HTTP/1.0`.
    Http10,
    /// `HTTP/1.1`.
    Http11,
}

/// Why a try failed, or a set of such causes: what `proxy_next_upstream` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Causes(u16);

impl Causes {
    const NONE: Causes = Causes(0);
    pub(super) const ERROR: Causes = Causes(1);
    pub(super) const TIMEOUT: Causes = Causes(1 << 1);
    pub(super) const INVALID_HEADER: Causes = Causes(1 << 2);
    /// The request may have changed something, which a second one would do again.
    pub(super) const NON_IDEMPOTENT: Causes = Causes(1 << 3);
    /// No peer was left to try. No directive names it.
    pub(super) const NO_LIVE: Causes = Causes(1 << 4);
    const OFF: Causes = Causes(1 << 5);
    const HTTP_500: Causes = Causes(1 << 6);
    const HTTP_502: Causes = Causes(1 << 7);
    const HTTP_503: Causes = Causes(1 << 8);
    const HTTP_504: Causes = Causes(1 << 9);
    const HTTP_403: Causes = Causes(1 << 10);
    const HTTP_404: Causes = Causes(1 << 11);
    const HTTP_429: Causes = Causes(1 << 12);

    /// The cause that an answer with this status may be.
    pub(super) fn of_status(status: u16) -> Option<Causes> {
        Some(match status {
            500 => Causes::HTTP_500,
            502 => Causes::HTTP_502,
            503 => Causes::HTTP_503,
            504 => Causes::HTTP_504,
            403 => Causes::HTTP_403,
            404 => Causes::HTTP_404,
            429 => Causes::HTTP_429,
            _ => return None,
        })
    }

    /// Whether the peer is not to blame: what it lacks, another may have.
    pub(super) fn is_harmless(self) -> bool {
        matches!(self, Causes::HTTP_403 | Causes::HTTP_404)
    }

    pub(super) fn with(self, other: Causes) -> Causes {
        Causes(self.0 | other.0)
    }

    pub(super) fn contains(self, other: Causes) -> bool {
        self.0 & other.0 == other.0
    }
}

fn causes(setter: &Setter<'_>) -> Result<Causes, Fault> {
    let mut causes = Causes::NONE;
    for word in setter.lines().iter().flat_map(|line| &line.args) {
        let cause = match &*word.bytes.to_ascii_lowercase() {
            b"error" => Causes::ERROR,
            b"timeout" => Causes::TIMEOUT,
            b"invalid_header" => Causes::INVALID_HEADER,
            b"non_idempotent" => Causes::NON_IDEMPOTENT,
            b"http_500" => Causes::HTTP_500,
            b"http_502" => Causes::HTTP_502,
            b"http_503" => Causes::HTTP_503,
            b"http_504" => Causes::HTTP_504,
            b"http_403" => Causes::HTTP_403,
            b"http_404" => Causes::HTTP_404,
            b"http_429" => Causes::HTTP_429,
            b"off" => Causes::OFF,
            _ => return Err(Fault::invalid_value(word)),
        };
        if causes.contains(cause) {
            setter.warn(word, format!("duplicate value \"{}\"", word.text()));
        }
        causes = causes.with(cause);
    }
    Ok(match causes.contains(Causes::OFF) {
        true => Causes::NONE,
        false => causes,
    })
}

/// `proxy_bind` as written.
enum BindLine {
    Off,
    Fixed(SocketAddr),
    Variable(Template),
}

fn bind(setter: &Setter<'_>) -> Result<BindLine, Fault> {
    let word = setter.word()?;
    let parameter = setter.args().get(1);
    if &*word.bytes == b"off" && parameter.is_none() {
        return Ok(BindLine::Off);
    }
    let template = Template::parse(word)?;
    let line = match template.as_literal() {
        None => BindLine::Variable(template),
        Some(text) => BindLine::Fixed(
            local_address(text)
                .ok_or_else(|| Fault::at(word, format!("invalid address \"{}\"", word.text())))?,
        ),
    };
    match parameter {
        None => Ok(line),
        Some(word) if &*word.bytes == b"transparent" => {
            let text = format!("parameter \"{}\" is not supported yet", word.text());
            Err(Fault::at(word, text))
        }
        Some(word) => Err(Fault::invalid_parameter(word)),
    }
}

/// Where connections to the upstream come from.
pub(super) enum Bind {
    /// The kernel chooses.
    Nothing,
    /// Always the same; port 0 leaves the port to the kernel.
    Fixed(SocketAddr),
    /// With variables.
    Text(Text),
}

impl Bind {
    /// The address for this request; `None` leaves it to the kernel.
    pub(super) fn address(&self, request: &mut Request) -> Option<SocketAddr> {
        let text = match self {
            Bind::Nothing => return None,
            Bind::Fixed(address) => return Some(*address),
            Bind::Text(text) => text.evaluate(request),
        };
        let address = local_address(&text);
        if address.is_none() && !text.is_empty() {
            let text = log::Printable(&text);
            log::error!(request, Error, "invalid local address \"{text}\"");
        }
        address
    }
}

/// An IP address with or without a port, IPv6 in brackets where a port follows.
fn local_address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    match bare.unwrap_or(text).parse::<IpAddr>() {
        Ok(address) => Some(SocketAddr::new(address, 0)),
        Err(_) => text
            .parse::<SocketAddr>()
            .ok()
            .filter(|address| address.port() > 0),
    }
}

/// One `proxy_redirect` as written.
enum RedirectLine {
    /// The URL of the `proxy_pass` beside it becomes the prefix of the location that both stand in.
    Default {
        pass: Word,
        prefix: Bytes,
    },
    Off,
    Replace(Word, Word),
}

/// How Location is rewritten.
pub(super) enum Redirect {
    /// A prefix is replaced.
    Prefix { from: Text, to: Text },
    /// A regex match is replaced.
    Regex { pattern: Regex, to: Text },
}

/// `proxy_*` of a scope, but for `proxy_pass` itself.
pub struct Settings {
    pub(super) connect_timeout: Duration,
    pub(super) send_timeout: Duration,
    pub(super) read_timeout: Duration,
    pub(super) buffering: bool,
    pub(super) request_buffering: bool,
    pub(super) pass_request_headers: bool,
    pub(super) pass_request_body: bool,
    pub(super) intercept_errors: bool,
    pub(super) ignore_client_abort: bool,
    pub(super) next_upstream: Causes,
    /// 0 is no limit.
    pub(super) next_upstream_tries: usize,
    /// Zero is no limit.
    pub(super) next_upstream_timeout: Duration,
    pub(super) buffer_size: usize,
    pub(super) version: HttpVersion,
    pub(super) method: Option<Text>,
    pub(super) bind: Bind,
    /// Fields that are set, those without value included; names in lower case beside.
    pub(super) set: Vec<SetField>,
    pub(super) hidden: Vec<Box<[u8]>>,
    pub(super) ignored: Vec<Box<[u8]>>,
}

/// A field of `proxy_set_header`.
pub(super) struct SetField {
    pub name: Bytes,
    pub lower: Box<[u8]>,
    pub value: Text,
}

/// Fields that never reach the client unless `proxy_pass_header` names them.
const HIDDEN: [&str; 8] = [
    "date",
    "server",
    "x-pad",
    "x-accel-expires",
    "x-accel-redirect",
    "x-accel-limit-rate",
    "x-accel-buffering",
    "x-accel-charset",
];

impl Feature for Settings {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &SET_HEADER,
        &HIDE_HEADER,
        &PASS_HEADER,
        &IGNORE_HEADERS,
        &HTTP_VERSION,
        &METHOD,
        &BIND,
        &CONNECT_TIMEOUT,
        &SEND_TIMEOUT,
        &READ_TIMEOUT,
        &BUFFERING,
        &REQUEST_BUFFERING,
        &PASS_REQUEST_HEADERS,
        &PASS_REQUEST_BODY,
        &INTERCEPT_ERRORS,
        &IGNORE_CLIENT_ABORT,
        &NEXT_UPSTREAM,
        &NEXT_UPSTREAM_TRIES,
        &NEXT_UPSTREAM_TIMEOUT,
        &BUFFER_SIZE,
        &buffers::BUFFERS,
        &buffers::BUSY_BUFFERS_SIZE,
        &buffers::TEMP_FILE_WRITE_SIZE,
        &buffers::MAX_TEMP_FILE_SIZE,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let mut set = Vec::new();
        for (name, value) in scope.written(&SET_HEADER)?.unwrap_or_default() {
            set.push(SetField {
                lower: name.bytes.to_ascii_lowercase().into(),
                name: Bytes::copy_from_slice(&name.bytes),
                value: compiler.text(&Template::parse(&value)?),
            });
        }
        let lower = |words: Option<Vec<Word>>| -> Vec<Box<[u8]>> {
            let words = words.unwrap_or_default();
            words
                .iter()
                .map(|word| word.bytes.to_ascii_lowercase().into())
                .collect()
        };
        let passed = lower(scope.written(&PASS_HEADER)?);
        let mut hidden = lower(scope.written(&HIDE_HEADER)?);
        hidden.extend(HIDDEN.iter().map(|name| name.as_bytes().into()));
        hidden.retain(|name| !passed.contains(name));
        let bind = match scope.written(&BIND)? {
            None | Some(BindLine::Off) => Bind::Nothing,
            Some(BindLine::Fixed(address)) => Bind::Fixed(address),
            Some(BindLine::Variable(template)) => Bind::Text(compiler.text(&template)),
        };
        let buffer_size = scope.get(&BUFFER_SIZE)?;
        buffers::check(scope, buffer_size)?;
        Ok(Settings {
            connect_timeout: scope.get(&CONNECT_TIMEOUT)?,
            send_timeout: scope.get(&SEND_TIMEOUT)?,
            read_timeout: scope.get(&READ_TIMEOUT)?,
            buffering: scope.get(&BUFFERING)?,
            request_buffering: scope.get(&REQUEST_BUFFERING)?,
            pass_request_headers: scope.get(&PASS_REQUEST_HEADERS)?,
            pass_request_body: scope.get(&PASS_REQUEST_BODY)?,
            intercept_errors: scope.get(&INTERCEPT_ERRORS)?,
            ignore_client_abort: scope.get(&IGNORE_CLIENT_ABORT)?,
            next_upstream: scope.get(&NEXT_UPSTREAM)?,
            next_upstream_tries: usize::try_from(scope.get(&NEXT_UPSTREAM_TRIES)?)
                .unwrap_or(usize::MAX),
            next_upstream_timeout: scope.get(&NEXT_UPSTREAM_TIMEOUT)?,
            buffer_size: buffer_size as usize,
            version: scope.get(&HTTP_VERSION)?,
            method: scope
                .written(&METHOD)?
                .map(|template| compiler.text(&template)),
            bind,
            set,
            hidden,
            ignored: lower(scope.written(&IGNORE_HEADERS)?),
        })
    }
}

/// `proxy_pass` of a location, `if` or `limit_except`.
pub struct Proxy {
    /// The other directives as this scope sees them.
    pub settings: Arc<Settings>,
    destination: Destination,
    /// TLS, where the URL may ask for it.
    pub(super) tls: Option<Arc<UpstreamTls>>,
    /// Length of the location's prefix that the URI of `proxy_pass` replaces.
    pub(super) prefix_length: usize,
    pub(super) redirects: Vec<Redirect>,
}

enum Destination {
    Fixed(Target),
    /// With variables: made anew for each request.
    Text(Text),
}

impl Proxy {
    /// What `proxy_pass` of this very scope says; `None` where it is not written.
    pub fn of_scope(
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
    ) -> Result<Option<Arc<Proxy>>, Fault> {
        let Some(word) = scope.own(&PROXY_PASS)? else {
            return Ok(None);
        };
        let template = Template::parse(&word)?;
        let location = location_of(scope);
        let with_variables = template
            .parts
            .iter()
            .any(|part| !matches!(part, Part::Literal(_)));
        let destination = if with_variables {
            Destination::Text(compiler.text(&template))
        } else {
            let target = target::of_configuration(compiler, &word)?;
            if target.uri.is_some() && location.is_none() {
                return Err(Fault::at(
                    &word,
                    "\"proxy_pass\" cannot have URI part in location given by regular expression, \
                     or inside named location, or inside \"if\" statement, \
                     or inside \"limit_except\" block",
                )
                .while_reading());
            }
            Destination::Fixed(target)
        };
        let may_be_secure = match &destination {
            Destination::Fixed(target) => target.scheme == Scheme::Https,
            Destination::Text(_) => true,
        };
        let tls = match may_be_secure {
            true => Some(compiler.feature(scope)?),
            false => None,
        };
        let prefix = location.unwrap_or_default();
        let redirects = redirects_of(compiler, scope, &word, &destination, &prefix)?;
        Ok(Some(Arc::new(Proxy {
            settings: compiler.feature(scope)?,
            destination,
            tls,
            prefix_length: prefix.len(),
            redirects,
        })))
    }

    /// Whether the URL holds variables: its URI then stands for the request's whole URI.
    pub(super) fn is_dynamic(&self) -> bool {
        matches!(self.destination, Destination::Text(_))
    }

    /// Where this request goes, or the status to answer with.
    pub fn target(&self, request: &mut Request) -> Result<Target, u16> {
        match &self.destination {
            Destination::Fixed(target) => Ok(target.clone()),
            Destination::Text(text) => {
                let url = text.evaluate(request);
                target::of_request(request, &url)
            }
        }
    }
}

/// The prefix or exact name of the location that a scope is; `None` for every other scope.
fn location_of(scope: ScopeRef<'_>) -> Option<Bytes> {
    let line = scope
        .line()
        .filter(|line| &*line.name.bytes == b"location")?;
    use crate::http::compile::LocationName;
    match LocationName::parse(line).ok()? {
        LocationName::Exact(name) | LocationName::Prefix { name, .. } => Some(name),
        _ => None,
    }
}

/// `proxy_redirect` as this scope sees it; without any, `default`.
fn redirects_of(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    pass: &Word,
    destination: &Destination,
    prefix: &Bytes,
) -> Result<Vec<Redirect>, Fault> {
    let lines = match (scope.written(&REDIRECT)?, destination) {
        (Some(lines), _) => lines,
        (None, Destination::Text(_)) => Vec::new(),
        (None, Destination::Fixed(_)) => vec![RedirectLine::Default {
            pass: pass.clone(),
            prefix: prefix.clone(),
        }],
    };
    let mut all = Vec::new();
    for line in lines {
        match line {
            RedirectLine::Off => return Ok(Vec::new()),
            RedirectLine::Default { pass, prefix } => {
                let mut from = pass.bytes.to_vec();
                let to = match target::of_configuration(compiler, &pass)?.uri {
                    Some(_) => prefix,
                    None => {
                        from.push(b'/');
                        Bytes::from_static(b"/")
                    }
                };
                all.push(Redirect::Prefix {
                    from: Text::Literal(from.into()),
                    to: Text::Literal(to),
                });
            }
            RedirectLine::Replace(from, to) => {
                let to = compiler.text(&Template::parse(&to)?);
                if let Some(pattern) = from.bytes.strip_prefix(b"~") {
                    let (pattern, caseless) = match pattern.strip_prefix(b"*") {
                        Some(pattern) => (pattern, true),
                        None => (pattern, false),
                    };
                    let pattern = Regex::new(compiler, pattern, caseless)?;
                    all.push(Redirect::Regex { pattern, to });
                } else {
                    all.push(Redirect::Prefix {
                        from: compiler.text(&Template::parse(&from)?),
                        to,
                    });
                }
            }
        }
    }
    Ok(all)
}

fn redirects(setter: &Setter<'_>) -> Result<Vec<RedirectLine>, Fault> {
    let mut all = Vec::new();
    for line in setter.lines() {
        if matches!(all.last(), Some(RedirectLine::Off)) {
            return Err(Fault::at(
                &line.name,
                "\"proxy_redirect\" directive is duplicate",
            ));
        }
        all.push(redirect(setter, line)?);
    }
    Ok(all)
}

fn redirect(setter: &Setter<'_>, line: &Line) -> Result<RedirectLine, Fault> {
    match line.args.as_slice() {
        [word] if &*word.bytes == b"off" => Ok(RedirectLine::Off),
        [word] if &*word.bytes == b"default" => {
            let scope = setter.scope();
            let passes = scope.own_lines(&PROXY_PASS.spec);
            let before = passes.iter().find(|pass| pass.sequence() < line.sequence());
            let Some(pass) = before.and_then(|pass| pass.args.first()) else {
                return Err(Fault::at(
                    word,
                    "\"proxy_redirect default\" should be placed after the \"proxy_pass\" directive",
                ));
            };
            let literal = |part: &Part| matches!(part, Part::Literal(_));
            if !Template::parse(pass)?.parts.iter().all(literal) {
                return Err(Fault::at(
                    word,
                    "\"proxy_redirect default\" cannot be used with \"proxy_pass\" directive with variables",
                ));
            }
            Ok(RedirectLine::Default {
                pass: pass.clone(),
                prefix: location_of(scope).unwrap_or_default(),
            })
        }
        [word] => Err(Fault::invalid_parameter(word)),
        [from, to] => {
            if !from.bytes.starts_with(b"~") {
                Template::parse(from)?;
            }
            Template::parse(to)?;
            Ok(RedirectLine::Replace(from.clone(), to.clone()))
        }
        _ => Err(Fault::new(
            "invalid number of arguments in \"proxy_redirect\" directive",
        )),
    }
}

fn pairs(setter: &Setter<'_>) -> Result<Vec<(Word, Word)>, Fault> {
    let pairs = setter
        .lines()
        .iter()
        .filter_map(|line| match line.args.as_slice() {
            [name, value] => Some((name.clone(), value.clone())),
            _ => None,
        });
    pairs
        .map(|(name, value)| Template::parse(&value).map(|_| (name, value)))
        .collect()
}

fn words(setter: &Setter<'_>) -> Result<Vec<Word>, Fault> {
    Ok(setter
        .lines()
        .iter()
        .flat_map(|line| line.args.iter().cloned())
        .collect())
}

fn ignored(setter: &Setter<'_>) -> Result<Vec<Word>, Fault> {
    const KNOWN: [&str; 9] = [
        "X-Accel-Redirect",
        "X-Accel-Expires",
        "X-Accel-Limit-Rate",
        "X-Accel-Buffering",
        "X-Accel-Charset",
        "Expires",
        "Cache-Control",
        "Set-Cookie",
        "Vary",
    ];
    let words = words(setter)?;
    for (at, word) in words.iter().enumerate() {
        let earlier = words.get(..at).unwrap_or_default();
        let equals = |other: &Word| other.bytes.eq_ignore_ascii_case(&word.bytes);
        if earlier.iter().any(equals) {
            setter.warn(word, format!("duplicate value \"{}\"", word.text()));
        }
        if !KNOWN
            .iter()
            .any(|known| known.as_bytes().eq_ignore_ascii_case(&word.bytes))
        {
            return Err(Fault::at(
                word,
                format!("invalid value \"{}\"", word.text()),
            ));
        }
    }
    Ok(words)
}
