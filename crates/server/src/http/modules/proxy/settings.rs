//! The directives of `proxy_*` and what they amount to in a location.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Part, ScopeRef, Setter, Setting, Template, Word,
    parse,
};
use engine::net::Address;

use crate::compile::{Compiler, Feature};
use crate::http::request::Request;
use crate::log;
use crate::regex::Regex;
use crate::text::Text;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

static PROXY_PASS: Setting<Word> = Setting::new("proxy_pass", &["URL"], |setter| setter.word().cloned())
    .contexts(Contexts::LOCATION.or(Contexts::LOCATION_IF).or(Contexts::LIMIT_EXCEPT))
    .inherit(Inherit::Handler)
    .manual("Passes requests on to an HTTP server: http://HOST[:PORT][URI] or http://unix:PATH:[URI]. Where a URI is written it replaces the location's part of the request's. A name's addresses are tried in order.");

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

static BIND: Setting<Word> = Setting::new("proxy_bind", &["address | off"], |setter| {
    setter.word().cloned()
})
.contexts(HSL)
.manual("The local address that connections to the upstream come from.");

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
    BUFFER_SIZE: u64 = "proxy_buffer_size", "size", parse::size, "4k",
        "The longest head of an answer.";
}

macro_rules! accepted {
    ($($name:ident = $directive:literal, $syntax:literal, $arity:expr, $reason:literal;)*) => {
        $(static $name: Setting<()> = Setting::new($directive, &[$syntax], |_| Ok(()))
            .contexts(HSL)
            .arity($arity)
            .no_effect($reason)
            .manual("See nginx's manual.");)*
    };
}

accepted! {
    BUFFERS = "proxy_buffers", "number size", Arity::exactly(2),
        "answers are streamed at the client's pace through a fixed small buffer";
    BUSY_BUFFERS_SIZE = "proxy_busy_buffers_size", "size", Arity::exactly(1),
        "answers are streamed at the client's pace through a fixed small buffer";
    TEMP_PATH = "proxy_temp_path", "path [levels]", Arity::between(1, 4),
        "answers are streamed and need no temporary file";
    MAX_TEMP_FILE_SIZE = "proxy_max_temp_file_size", "size", Arity::exactly(1),
        "answers are streamed and need no temporary file";
    TEMP_FILE_WRITE_SIZE = "proxy_temp_file_write_size", "size", Arity::exactly(1),
        "answers are streamed and need no temporary file";
    HEADERS_HASH_MAX_SIZE = "proxy_headers_hash_max_size", "size", Arity::exactly(1),
        "tables size themselves";
    HEADERS_HASH_BUCKET_SIZE = "proxy_headers_hash_bucket_size", "size", Arity::exactly(1),
        "tables size themselves";
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
    &BUFFER_SIZE,
    &BUFFERS,
    &BUSY_BUFFERS_SIZE,
    &TEMP_PATH,
    &MAX_TEMP_FILE_SIZE,
    &TEMP_FILE_WRITE_SIZE,
    &HEADERS_HASH_MAX_SIZE,
    &HEADERS_HASH_BUCKET_SIZE,
];

/// The version of the upstream's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    /// `HTTP/1.0`.
    Http10,
    /// `HTTP/1.1`.
    Http11,
}

/// One `proxy_redirect` as written.
enum RedirectLine {
    Default(Word),
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
    pub(super) buffer_size: usize,
    pub(super) version: HttpVersion,
    pub(super) method: Option<Text>,
    pub(super) bind: Option<IpAddr>,
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
        &BUFFER_SIZE,
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
            Some(word) if &*word.bytes != b"off" => {
                Some(word.text().parse().map_err(|_| {
                    Fault::at(&word, format!("invalid address \"{}\"", word.text()))
                })?)
            }
            _ => None,
        };
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
            buffer_size: scope.get(&BUFFER_SIZE)? as usize,
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

/// Where requests go.
#[derive(Clone, Debug)]
pub struct Target {
    /// Addresses in the order of trying.
    pub addresses: Arc<[Address]>,
    /// Host and port as `Host` says them.
    pub host: Bytes,
    /// `$proxy_port`.
    pub port: Bytes,
    /// The URI of `proxy_pass`; `None` where it has none.
    pub uri: Option<Bytes>,
}

/// `proxy_pass` of a location, `if` or `limit_except`.
pub struct Proxy {
    /// The other directives as this scope sees them.
    pub settings: Arc<Settings>,
    destination: Destination,
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
            let target = target(&word.bytes).map_err(|text| Fault::at(&word, text))?;
            if target.uri.is_some() && location.is_none() {
                return Err(Fault::at(
                    &word,
                    "\"proxy_pass\" cannot have URI part in location given by regular expression, \
                     or inside named location, or inside \"if\" statement, \
                     or inside \"limit_except\" block",
                ));
            }
            Destination::Fixed(target)
        };
        let prefix = location.unwrap_or_default();
        let redirects = redirects_of(compiler, scope, &word, &destination, &prefix)?;
        Ok(Some(Arc::new(Proxy {
            settings: compiler.feature(scope)?,
            destination,
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
        let text = match &self.destination {
            Destination::Fixed(target) => return Ok(target.clone()),
            Destination::Text(text) => text.evaluate(request),
        };
        match url(&text) {
            Err(_) => {
                log::error!(
                    request,
                    Error,
                    "invalid URL prefix in \"{}\"",
                    log::Printable(&text)
                );
                Err(500)
            }
            Ok(url) => match url.literal() {
                Some(address) => Ok(url.target(vec![address])),
                None => {
                    log::error!(
                        request,
                        Error,
                        "no resolver defined to resolve {}",
                        log::Printable(url.name)
                    );
                    Err(502)
                }
            },
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

/// The parts of a `proxy_pass` URL.
struct Url<'a> {
    /// Host and port as written.
    authority: &'a [u8],
    name: &'a [u8],
    port: u16,
    unix: bool,
    uri: Option<&'a [u8]>,
}

fn url(text: &[u8]) -> Result<Url<'_>, &'static str> {
    let Some(rest) = text
        .get(..7)
        .filter(|s| s.eq_ignore_ascii_case(b"http://"))
        .and(text.get(7..))
    else {
        return Err(
            if text.len() >= 8 && text[..8].eq_ignore_ascii_case(b"https://") {
                "https protocol requires TLS, which this version does not have yet"
            } else {
                "invalid URL prefix"
            },
        );
    };
    if let Some(path) = rest.strip_prefix(b"unix:") {
        let (path, uri) = match memchr::memchr(b':', path) {
            Some(colon) => (
                &path[..colon],
                Some(&path[colon + 1..]).filter(|uri| !uri.is_empty()),
            ),
            None => (path, None),
        };
        if path.is_empty() {
            return Err("no path in the unix domain socket");
        }
        return Ok(Url {
            authority: b"localhost",
            name: path,
            port: 0,
            unix: true,
            uri,
        });
    }
    let end = memchr::memchr3(b'/', b'?', b'#', rest).unwrap_or(rest.len());
    let (authority, uri) = rest.split_at(end);
    let uri = Some(uri).filter(|uri| !uri.is_empty());
    let (name, port) = match authority.strip_prefix(b"[") {
        Some(literal) => {
            let close = memchr::memchr(b']', literal).ok_or("invalid host")?;
            (&literal[..close], literal[close + 1..].strip_prefix(b":"))
        }
        None => match memchr::memrchr(b':', authority) {
            Some(colon) => (&authority[..colon], Some(&authority[colon + 1..])),
            None => (authority, None),
        },
    };
    if name.is_empty() {
        return Err("no host");
    }
    let port = match port {
        None => 80,
        Some(digits) => std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse().ok())
            .filter(|port| *port > 0)
            .ok_or("invalid port")?,
    };
    Ok(Url {
        authority,
        name,
        port,
        unix: false,
        uri,
    })
}

impl Url<'_> {
    /// The address, where it is written as one.
    fn literal(&self) -> Option<Address> {
        let text = std::str::from_utf8(self.name).ok()?;
        if self.unix {
            return Some(Address::Unix(text.into()));
        }
        let ip: IpAddr = text.parse().ok()?;
        Some(Address::Inet(SocketAddr::from((ip, self.port))))
    }

    fn target(&self, addresses: Vec<Address>) -> Target {
        let port = if self.unix {
            Bytes::new()
        } else {
            self.port.to_string().into()
        };
        Target {
            addresses: addresses.into(),
            host: Bytes::copy_from_slice(self.authority),
            port,
            uri: self.uri.map(|uri| {
                if uri.first() == Some(&b'/') {
                    Bytes::copy_from_slice(uri)
                } else {
                    [b"/", uri].concat().into()
                }
            }),
        }
    }
}

/// A target without variables: names are resolved once, when the configuration is compiled.
fn target(text: &[u8]) -> Result<Target, String> {
    let shown = String::from_utf8_lossy(text);
    let url = url(text).map_err(|error| match error {
        "no host" | "invalid port" | "invalid host" => {
            format!("{error} in upstream \"{}\"", &shown[7.min(shown.len())..])
        }
        error => error.to_owned(),
    })?;
    if let Some(address) = url.literal() {
        return Ok(url.target(vec![address]));
    }
    let name = String::from_utf8_lossy(url.name);
    let found = (&*name, url.port).to_socket_addrs();
    let mut addresses: Vec<Address> = Vec::new();
    for address in found.into_iter().flatten().map(Address::Inet) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        let authority = String::from_utf8_lossy(url.authority);
        return Err(format!("host not found in upstream \"{authority}\""));
    }
    Ok(url.target(addresses))
}

/// `proxy_redirect` as this scope sees it; without any, `default`.
fn redirects_of(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    pass: &Word,
    destination: &Destination,
    prefix: &Bytes,
) -> Result<Vec<Redirect>, Fault> {
    let lines = scope.written(&REDIRECT)?;
    let implied = lines.is_none();
    let mut all = Vec::new();
    for line in lines.unwrap_or_else(|| vec![RedirectLine::Default(pass.clone())]) {
        match line {
            RedirectLine::Off => return Ok(Vec::new()),
            RedirectLine::Default(word) => match destination {
                Destination::Text(_) if implied => {}
                Destination::Text(_) => {
                    return Err(Fault::at(
                        &word,
                        "\"proxy_redirect default\" cannot be used with \"proxy_pass\" directive with variables",
                    ));
                }
                Destination::Fixed(target) => {
                    let mut from = pass.bytes.to_vec();
                    let to = match &target.uri {
                        Some(_) => prefix.clone(),
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
            },
            RedirectLine::Replace(from, to) => {
                let to = compiler.text(&Template::parse(&to)?);
                if let Some(pattern) = from.bytes.strip_prefix(b"~") {
                    let (pattern, caseless) = match pattern.strip_prefix(b"*") {
                        Some(pattern) => (pattern, true),
                        None => (pattern, false),
                    };
                    let pattern =
                        Regex::new(compiler, &String::from_utf8_lossy(pattern), caseless)?;
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
    setter
        .lines()
        .iter()
        .map(|line| match line.args.as_slice() {
            [word] if &*word.bytes == b"off" => Ok(RedirectLine::Off),
            [word] if &*word.bytes == b"default" => Ok(RedirectLine::Default(word.clone())),
            [word] => Err(Fault::at(
                word,
                format!("invalid parameter \"{}\"", word.text()),
            )),
            [from, to] => Ok(RedirectLine::Replace(from.clone(), to.clone())),
            _ => Err(Fault::new(
                "invalid number of arguments in \"proxy_redirect\" directive",
            )),
        })
        .collect()
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
    for word in &words {
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
