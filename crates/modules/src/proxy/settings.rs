//! The directives of `proxy_*`, and their compiled settings.

use http::config::location::LocationName;

use std::sync::Arc;

use bytes::Bytes;
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Template,
    TemplatePart, Word, count_of, joined, parse,
};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tables;
use http::config::temporary_paths::{self, TemporaryPath};
use http::module::{Content, Recall};
use http::request::{Regex, Request, Text};
use http::variables::Compiling as _;
use proto::header::NameSet;
use proto::proxy_protocol::Version;

use super::cookies::{self, Cookies};
use super::target::{self, ProxyTarget, Scheme};
use proxying::buffers;
use proxying::cache;
use proxying::family::Family;
use proxying::fields::{self, FieldLines, SetField};
use proxying::locate::Upstream;
use proxying::settings::{self, PassSettings};
use proxying::ssl::{self, UpstreamTls};
use proxying::upstream::Group;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

static PROXY_PASS: Setting<Word> = Setting::new("proxy_pass", &["URL"], |setter| setter.word().cloned())
    .contexts(Contexts::LOCATION.or(Contexts::LOCATION_IF).or(Contexts::LIMIT_EXCEPT))
    .inherit(Inherit::Handler)
    .manual("Passes requests on to an HTTP or HTTPS server: http://HOST[:PORT][URI] or http://unix:PATH:[URI], or the same with https. Where a URI is written it replaces the location's part of the request's. HOST may be the name of an upstream block; the addresses of any other name share the requests.");

static SET_HEADER: Setting<Vec<(Word, Word)>> = fields::setting(
    "proxy_",
    "Sets a field of the upstream's request; an empty value leaves the field out. Written on one level, it replaces those of the levels above.",
);

static REDIRECT: Setting<Vec<RedirectLine>> =
    Setting::new("proxy_redirect", &["default", "off", "redirect replacement"], redirects)
        .contexts(HSL)
        .arity(Arity::between(1, 2))
        .inherit(Inherit::List)
        .manual("Rewrites Location and Refresh of the answer: by default, the proxy_pass URL becomes the location's prefix.");

static HTTP_VERSION: Setting<HttpVersion> =
    Setting::new("proxy_http_version", &["1.0 | 1.1 | 2"], |setter| {
        parse::enumeration(
            setter,
            &[
                ("1.0", HttpVersion::Http10),
                ("1.1", HttpVersion::Http11),
                ("2", HttpVersion::Http2),
            ],
        )
    })
    .contexts(HSL)
    .default("1.1")
    .manual("The version of the upstream's request. Requests of version 2 share connections, as streams: as many as the upstream takes at once, and only beyond that more connections are made.");

static METHOD: Setting<Template> = Setting::new("proxy_method", &["method"], parse::template)
    .contexts(HSL)
    .manual("The method of the upstream's request instead of the client's.");

static BODY: Setting<Template> = Setting::new("proxy_set_body", &["value"], parse::template)
    .contexts(HSL)
    .manual(
        "The body of the upstream's request instead of the client's, which may hold variables.",
    );

static PASS_TRAILERS: Setting<bool> = Setting::new("proxy_pass_trailers", &["on | off"], parse::flag)
    .contexts(HSL)
    .default("off")
    .manual("Passes trailer fields of the upstream's answer on to the client. Upstreams send them to those that ask: proxy_set_header Connection \"te\"; proxy_set_header TE \"trailers\".");

static PROXY_PROTOCOL: Setting<Option<Version>> =
    Setting::new("proxy_protocol", &["off | v1 | v2"], |setter| {
        parse::enumeration(
            setter,
            &[
                ("off", None),
                ("v1", Some(Version::V1)),
                ("v2", Some(Version::V2)),
            ],
        )
    })
    .contexts(HSL)
    .default("off")
    .manual("Begins each new connection to the upstream with a header of the PROXY protocol, before TLS: the client's address ($remote_addr, so that of real_ip_header where that counts) and the address that the client has connected to. Clients of Unix sockets are UNKNOWN. Requests share a kept connection only where that header would be the same.");

macro_rules! accepted {
    ($($name:ident = $directive:literal, $manual:literal;)*) => {
        $(static $name: Setting<u64> = Setting::new($directive, &["size"], parse::number)
            .contexts(HSL)
            .no_effect("tables size themselves")
            .manual($manual);)*
    };
}

accepted! {
    HEADERS_HASH_MAX_SIZE = "proxy_headers_hash_max_size",
        "Bounds nginx's hash of the fields that are hidden or set.";
    HEADERS_HASH_BUCKET_SIZE = "proxy_headers_hash_bucket_size",
        "Sets the size of a bucket of nginx's hash of the fields that are hidden or set.";
}

/// The directives in common with the other proxying modules.
static PROXY: Family = Family::of("proxy_");

/// The directives in common with the modules that buffer responses.
static BUFFERS: buffers::Family = buffers::Family::of("proxy_");

/// The directives in common with the modules whose responses may be cached.
static CACHE: cache::Family = cache::Family::of("proxy_");

/// The TLS directives in common with the other proxying modules.
static TLS: ssl::Family = ssl::family("proxy_");

/// The directory of temporary files if no directive sets one.
static TEMPORARY_PATH: TemporaryPath = TemporaryPath {
    spec: &BUFFERS.temp_path.spec,
    default: "proxy_temp",
    levels: &[1, 2],
};

/// The directives of these families, from which [`PassSettings`] are compiled.
const PASSING: settings::Declared = settings::Declared {
    family: &PROXY,
    buffers: &BUFFERS,
    cache: &CACHE,
    converts_head: true,
    temporary_path: &TEMPORARY_PATH,
    hidden: &HIDDEN,
    passes_authorization: |scope| {
        let lines = scope.written(&SET_HEADER)?.unwrap_or_default();
        let is_it = |name: &Word| name.bytes.eq_ignore_ascii_case(b"authorization");
        let set = lines.iter().rfind(|(name, _)| is_it(name));
        cache::passes_authorization(set.map(|(_, value)| value))
    },
};

/// The directives of [`Settings`] that only this module has.
const OF_SETTINGS: &[&dyn Declared] = &[
    &SET_HEADER,
    &HTTP_VERSION,
    &METHOD,
    &BODY,
    &PASS_TRAILERS,
    &PROXY_PROTOCOL,
    &CACHE.cache_convert_head,
];

/// All directives of [`Settings`], by group.
const ALL_OF_SETTINGS: &[&[&dyn Declared]] = &[
    OF_SETTINGS,
    &PROXY.of_requests(),
    &BUFFERS.all(),
    &CACHE.of_scopes(),
    &cache::OF_SHARING,
    &cookies::DIRECTIVES,
];

/// All other directives.
const OTHERS: &[&dyn Declared] = &[
    &PROXY_PASS,
    &CACHE.cache_path,
    &REDIRECT,
    &PROXY.send_lowat,
    &HEADERS_HASH_MAX_SIZE,
    &HEADERS_HASH_BUCKET_SIZE,
];

/// All directives of this module, by group.
const ALL: &[&[&dyn Declared]] = &[
    OTHERS,
    &joined::<{ count_of(ALL_OF_SETTINGS) }>(ALL_OF_SETTINGS),
    &TLS.all(),
];

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &joined::<{ count_of(ALL) }>(ALL);

/// The directives from which nginx builds a hash of hidden fields, in every scope that contains one
/// of them.
const HIDDEN_FIELDS: &[&dyn Declared] = &[&PROXY.hide_header, &PROXY.pass_header];

/// The directive from which nginx builds a hash of set fields.
const SET_FIELDS: &[&dyn Declared] = &[&SET_HEADER];

/// The directives for the sizes of both hashes.
const HASH_SIZES: [&Setting<u64>; 2] = [&HEADERS_HASH_MAX_SIZE, &HEADERS_HASH_BUCKET_SIZE];

/// The HTTP version of requests to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpVersion {
    Http10,
    Http11,
    Http2,
}

/// A `proxy_redirect` directive as written.
enum RedirectLine {
    /// The URL of the scope's `proxy_pass` is replaced with the location's prefix.
    Default {
        pass: Word,
        prefix: Bytes,
    },
    Off,
    Replace(Word, Word),
}

/// A rule that rewrites Location.
pub(crate) enum Redirect {
    /// Replaces a prefix.
    Prefix { from: Text, to: Text },
    /// Replaces a regex match.
    Regex { pattern: Regex, to: Text },
}

/// `proxy_*` of a scope, except `proxy_pass` itself.
pub struct Settings {
    /// The settings that all proxying modules have.
    pub(super) passing: Arc<PassSettings>,
    pub(super) version: HttpVersion,
    pub(super) method: Option<Text>,
    /// The value of `proxy_set_body`, which replaces the client's body.
    pub(super) body: Option<Text>,
    /// The fields of `proxy_set_header`, including fields with an empty value, each also with its
    /// name in lower case.
    pub(super) set: Vec<SetField>,
    /// The set fields, prepared as HTTP/1 header lines.
    pub(super) set_lines: FieldLines,
    /// Fields of the client's request that are not forwarded: those that `proxy_set_header` sets,
    /// and the fields that concern only the client's connection.
    pub(super) replaced: NameSet,
    pub(super) cookies: Cookies,
    /// The version of the PROXY protocol header that is sent first on connections to peers.
    pub(super) proxy_protocol: Option<Version>,
}

/// Fields that are hidden from clients unless `proxy_pass_header` names them.
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
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &joined::<{ count_of(ALL_OF_SETTINGS) }>(ALL_OF_SETTINGS);

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let lines = scope.written(&SET_HEADER)?.unwrap_or_default();
        let (set, replaced) = fields::compile(compiler, lines)?;
        let mut passing = PassSettings::compile(compiler, scope, &PASSING)?;
        passing.pass_trailers = scope.get(&PASS_TRAILERS)?;
        passing.omits_server_and_date = true;
        Ok(Settings {
            passing: Arc::new(passing),
            version: scope.get(&HTTP_VERSION)?,
            method: scope
                .written(&METHOD)?
                .map(|template| compiler.text(&template)),
            body: scope
                .written(&BODY)?
                .map(|template| compiler.text(&template)),
            set_lines: FieldLines::of(&set),
            set,
            replaced,
            cookies: Cookies::compile(compiler, scope)?,
            proxy_protocol: scope.get(&PROXY_PROTOCOL)?,
        })
    }
}

/// The directives of TLS settings, including `proxy_http_version`, since ALPN negotiates the
/// version.
const OF_TLS: &[&[&dyn Declared]] = &[&TLS.all(), &[&HTTP_VERSION]];

/// `proxy_ssl_*` of a scope.
struct Tls(Arc<UpstreamTls>);

impl Feature for Tls {
    const DIRECTIVES: &'static [&'static dyn Declared] = &joined::<{ count_of(OF_TLS) }>(OF_TLS);

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Tls, Fault> {
        let protocols = match scope.get(&HTTP_VERSION)? {
            HttpVersion::Http2 => vec![ssl::HTTP2.to_vec()],
            HttpVersion::Http10 | HttpVersion::Http11 => Vec::new(),
        };
        let tls = TLS.compile(compiler, scope, protocols)?;
        Ok(Tls(Arc::new(tls)))
    }
}

impl Settings {
    /// Whether the upstream gets the client's body.
    pub(super) fn passes_body(&self) -> bool {
        self.passing.pass_request_body && self.body.is_none()
    }
}

/// `proxy_pass` of a location, `if` or `limit_except`.
pub struct Proxy {
    /// The other `proxy_*` settings in force in this scope.
    pub settings: Arc<Settings>,
    destination: Destination,
    /// TLS, if the URL may require it.
    pub(super) tls: Option<Arc<UpstreamTls>>,
    /// Identifies the scope. Different scopes do not share connections, unless the group allows it.
    pub(super) place: Bytes,
    /// Length of the location's prefix that the URI of `proxy_pass` replaces.
    pub(super) prefix_length: usize,
    pub(super) redirects: Vec<Redirect>,
}

/// The URL of a `proxy_pass`.
enum Destination {
    Fixed(Arc<ProxyTarget>),
    /// A URL with variables, evaluated for each request.
    Text(Text),
}

/// The content handler of `proxy_cache_purge`.
pub fn purge_content(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
) -> Result<Option<Content>, Fault> {
    CACHE.purge_content(compiler, scope)
}

/// The content handler of `proxy_pass`.
pub fn content(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Option<Content>, Fault> {
    let Some(proxy) = Proxy::of_scope(compiler, scope)? else {
        return Ok(None);
    };
    let recalls = proxy.fixed_target().is_some() && proxy.settings.passing.may_recall();
    let recall = recalls.then(|| Arc::clone(&proxy) as Arc<dyn Recall>);
    Ok(Some(Content {
        handler: proxy,
        falls_back_to_files: false,
        inherited_by_limit_except: true,
        adds_slash: true,
        answers_connect: false,
        recall,
    }))
}

/// Checks the settings in every scope, though only `proxy_pass` uses them, and the sizes of nginx's
/// hashes for them.
pub fn check(plan: &mut PlanBuilder<'_>) -> Option<()> {
    let scope = plan.scope;
    let is_server = scope.context() == Contexts::SERVER;
    let has_table = |fields| scope.writes(fields) || is_server && tables::is_first(scope, fields);
    if [HIDDEN_FIELDS, SET_FIELDS].into_iter().any(has_table)
        && let Err(fault) = framework::tables::check(scope, "proxy_headers_hash", HASH_SIZES)
    {
        plan.compiler.report(fault);
        return None;
    }
    plan.feature::<Settings>().map(drop)
}

/// Registers the directory of temporary files, and checks the whole configuration for TLS settings
/// that are not used.
pub fn survey(compiler: &Compiler<'_>, root: ScopeRef<'_>) {
    temporary_paths::add(compiler, &TEMPORARY_PATH);
    TLS.check_unused::<Request>(compiler, root);
}

impl Proxy {
    /// The `proxy_pass` of exactly this scope; `None` if there is none.
    pub fn of_scope(
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
    ) -> Result<Option<Arc<Proxy>>, Fault> {
        let Some(word) = scope.own(&PROXY_PASS)? else {
            return Ok(None);
        };
        let template = Template::parse(&word)?;
        let location = location_of(scope);
        let destination = if !is_literal(&template) {
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
            Destination::Fixed(Arc::new(target))
        };
        let may_be_secure = match &destination {
            Destination::Fixed(target) => target.scheme == Scheme::Https,
            Destination::Text(_) => true,
        };
        let tls = if may_be_secure {
            let tls: Arc<Tls> = compiler.feature(scope)?;
            Some(Arc::clone(&tls.0))
        } else {
            None
        };
        let settings: Arc<Settings> = compiler.feature(scope)?;
        compiler.require_directory(&settings.passing.buffers.limits.directory.path);
        let prefix = location.unwrap_or_default();
        let redirects = redirects_of(compiler, scope)?;
        Ok(Some(Arc::new(Proxy {
            settings,
            destination,
            tls,
            place: scope.place(&["listen", "server_name"]).into(),
            prefix_length: prefix.len(),
            redirects,
        })))
    }

    /// Whether the URL contains variables: its URI then replaces the request's whole URI.
    pub(super) fn is_dynamic(&self) -> bool {
        matches!(self.destination, Destination::Text(_))
    }

    /// The group to which all requests of this `proxy_pass` go; `None` if the URL contains
    /// variables or a name that is not a group's.
    pub fn group(&self) -> Option<&Arc<Group>> {
        match &self.destination {
            Destination::Fixed(target) => match &target.upstream {
                Upstream::Group(group) => Some(group),
                Upstream::Name { .. } => None,
            },
            Destination::Text(_) => None,
        }
    }

    /// The target of all requests of this `proxy_pass`; `None` if the URL contains variables.
    pub(super) fn fixed_target(&self) -> Option<&Arc<ProxyTarget>> {
        match &self.destination {
            Destination::Fixed(target) => Some(target),
            Destination::Text(_) => None,
        }
    }

    /// The target of this request, or the status of the response.
    pub fn target(&self, request: &mut Request) -> Result<Arc<ProxyTarget>, u16> {
        match &self.destination {
            Destination::Fixed(target) => Ok(Arc::clone(target)),
            Destination::Text(text) => {
                let url = text.evaluate(request);
                target::of_request(request, &url).map(Arc::new)
            }
        }
    }
}

/// The prefix or exact name of a location scope; `None` for all other scopes.
fn location_of(scope: ScopeRef<'_>) -> Option<Bytes> {
    let line = scope
        .line()
        .filter(|line| &*line.name.bytes == b"location")?;
    match LocationName::parse(line).ok()? {
        LocationName::Exact(name) | LocationName::Prefix { name, .. } => Some(name),
        _ => None,
    }
}

/// The `proxy_redirect` rules in force in this scope; if none is configured, the rule of
/// `proxy_redirect default`.
fn redirects_of(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Vec<Redirect>, Fault> {
    let lines = match scope.written(&REDIRECT)? {
        Some(lines) => lines,
        None => Vec::from_iter(default_redirect(scope)),
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

/// The `default` rule of a scope without a `proxy_redirect` in force. As in nginx, the rule is made
/// in the outermost scope with a `proxy_pass` without variables, and inherited like written
/// directives.
fn default_redirect(scope: ScopeRef<'_>) -> Option<RedirectLine> {
    let around = std::iter::successors(Some(scope), |scope| scope.parent());
    let defaults = around.filter_map(|scope| {
        let lines = scope.own_lines(&PROXY_PASS.spec);
        let pass = lines.first()?.args.first()?;
        is_literal(&Template::parse(pass).ok()?).then(|| RedirectLine::Default {
            pass: pass.clone(),
            prefix: location_of(scope).unwrap_or_default(),
        })
    });
    defaults.last()
}

/// Whether the text contains no variables.
fn is_literal(template: &Template) -> bool {
    let mut parts = template.parts.iter();
    parts.all(|part| matches!(part, TemplatePart::Literal(_)))
}

fn redirects(setter: &Setter<'_>) -> Result<Vec<RedirectLine>, Fault> {
    let mut all = Vec::new();
    for line in setter.lines() {
        let redirect = redirect(setter, line)?;
        let is_off = |line: &RedirectLine| matches!(line, RedirectLine::Off);
        // As in nginx, `off` must be the only `proxy_redirect` of its scope.
        if all.iter().any(is_off) || (is_off(&redirect) && !all.is_empty()) {
            return Err(Fault::at(
                &line.name,
                "\"proxy_redirect\" directive is duplicate",
            ));
        }
        all.push(redirect);
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
            if !is_literal(&Template::parse(pass)?) {
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
