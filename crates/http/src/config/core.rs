//! nginx's core module: the directives that do not belong to a single feature.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html>. [`Core`] holds the settings of a
//! location, [`ServerCore`] those of a virtual server.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Template, parse};
use framework::compile::{Compiler, Feature};
use framework::places::{FileAccess, constant_folder, name_of};
use proto::h1;
use proto::method::Method;
use variables::Compiling as _;

use crate::config::server_tokens::ServerTokens;
use crate::config::tasks::{Task, TaskKind};
use crate::http2::settings::{BODY_PREREAD_SIZE, CHUNK_SIZE, CONCURRENT_STREAMS, HTTP2, Http2};
use crate::request::activity::WHILE_SENDING;
use crate::request::{Request, Size, Text};
use variables::size::WrittenSize;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);
const HSLI: Contexts = HSL.or(Contexts::LOCATION_IF);
const HS: Contexts = Contexts::HTTP.or(Contexts::SERVER);

/// The value of `root` or `alias`.
#[derive(Clone, Debug)]
pub struct Root {
    /// The directory, with variables.
    pub path: Text,
    /// How `alias` maps the URI to a path; `None` for `root`.
    pub alias: Option<Alias>,
    /// The path begins with a variable, so whether it is absolute is only known at run time.
    pub relative_at_run_time: bool,
    /// The directory to which relative paths are relative; ends with `/`.
    pub prefix: Bytes,
    /// The directory that contains all files (or the one file), and the name of the directive that
    /// sets it.
    place: (PathBuf, String),
}

impl Root {
    /// Registers that workers open files below this path.
    pub fn will_be_opened(&self, compiler: &Compiler<'_>, access: FileAccess) {
        let (folder, by) = &self.place;
        compiler.will_open(access, folder, by);
    }
}

/// How `alias` maps the URI to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alias {
    /// The declaring location's prefix of this many bytes is replaced by the path.
    Prefix(usize),
    /// Declared in a regex location: the path is the whole file name.
    Whole,
}

/// `keepalive_disable`: the browsers for which keep-alive is disabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepaliveDisable {
    msie6: bool,
    safari: bool,
}

impl KeepaliveDisable {
    /// Whether keep-alive is permitted for this request's client.
    pub fn allows(self, request: &Request) -> bool {
        if !self.safari && (!self.msie6 || request.method != Method::Post) {
            return true;
        }
        let browser = request.browser();
        let msie6 = self.msie6 && request.method == Method::Post && browser.msie6;
        !(msie6 || self.safari && browser.safari)
    }
}

/// The value of `lingering_close` in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LingeringClose {
    /// The connection is closed at once.
    Off,
    /// The connection lingers if the client may still be sending.
    On,
    /// The connection always lingers, and the rest of the request is read.
    Always,
}

/// The value of `if_modified_since` in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfModifiedSince {
    /// The field `If-Modified-Since` is ignored.
    Off,
    /// Unmodified means exactly the time of `If-Modified-Since`.
    Exact,
    /// Unmodified means the time of `If-Modified-Since` or earlier.
    Before,
}

macro_rules! settings {
    ($($name:ident: $kind:ty = $directive:literal, $syntax:literal, $parse:expr, $contexts:expr,
        $default:literal, $manual:literal;)*) => {
        $(static $name: Setting<$kind> = Setting::new($directive, &[$syntax], $parse)
            .contexts($contexts)
            .default($default)
            .manual($manual);)*
    };
}

settings! {
    SENDFILE: bool = "sendfile", "on | off", parse::flag, HSLI, "off",
        "Sends files from the page cache without copying them through the program.";
    SENDFILE_MAX_CHUNK: u64 = "sendfile_max_chunk", "size", parse::size, HSL, "2m",
        "At most this much of a file goes out in one turn, so that one fast client does not hold up the others; 0 removes the bound.";
    TCP_NOPUSH: bool = "tcp_nopush", "on | off", parse::flag, HSL, "off",
        "Files that are sent by `sendfile`, and the head before them, leave in full segments; the last one leaves at once.";
    TCP_NODELAY: bool = "tcp_nodelay", "on | off", parse::flag, HSL, "on",
        "Sets TCP_NODELAY when a connection is kept alive or becomes a tunnel.";
    SEND_TIMEOUT: Duration = "send_timeout", "time", parse::milliseconds, HSL, "60s",
        "The longest time between two successful writes to the client; after it the connection is closed.";
    LIMIT_RATE: WrittenSize = "limit_rate", "rate", WrittenSize::parse, HSLI, "0",
        "Bytes per second that a response may be sent at; 0 means no limit. Variables may be used.";
    LIMIT_RATE_AFTER: WrittenSize = "limit_rate_after", "size", WrittenSize::parse, HSLI, "0",
        "How much of a response is sent before limit_rate holds. Variables may be used.";
    KEEPALIVE_TIME: Duration = "keepalive_time", "time", parse::milliseconds, HSL, "1h",
        "The longest life of a connection: after it the next response is the last.";
    KEEPALIVE_REQUESTS: u64 = "keepalive_requests", "number", parse::number, HSL, "1000",
        "How many requests one connection may carry.";
    CLIENT_MAX_BODY_SIZE: u64 = "client_max_body_size", "size", parse::offset, HSL, "1m",
        "The largest request body that is accepted; a larger one is answered with 413. 0 means no limit.";
    CLIENT_BODY_BUFFER_SIZE: u64 = "client_body_buffer_size", "size", parse::size, HSL, "8k",
        "How much of a request body is kept in memory; a longer one goes to a temporary file.";
    CLIENT_BODY_TIMEOUT: Duration = "client_body_timeout", "time", parse::milliseconds, HSL, "60s",
        "The longest time between two successful reads of a request body (408 after it).";
    LINGERING_TIME: Duration = "lingering_time", "time", parse::milliseconds, HSL, "30s",
        "The longest time for reading and dropping what a client still sends.";
    LINGERING_TIMEOUT: Duration = "lingering_timeout", "time", parse::milliseconds, HSL, "5s",
        "The longest wait for more data while what a client sends is dropped.";
    RESET_TIMEDOUT: bool = "reset_timedout_connection", "on | off", parse::flag, HSL, "off",
        "Closes connections that timed out with a reset, which frees the kernel's memory at once.";
    CHUNKED: bool = "chunked_transfer_encoding", "on | off", parse::flag, HSL, "on",
        "Allows chunked responses in HTTP/1.1.";
    ETAG: bool = "etag", "on | off", parse::flag, HSL, "on",
        "Sends an ETag made of a static file's time and length.";
    ABSOLUTE_REDIRECT: bool = "absolute_redirect", "on | off", parse::flag, HSL, "on",
        "Makes the server's own redirects absolute.";
    PORT_IN_REDIRECT: bool = "port_in_redirect", "on | off", parse::flag, HSL, "on",
        "Writes the port into absolute redirects.";
    SERVER_NAME_IN_REDIRECT: bool = "server_name_in_redirect", "on | off", parse::flag, HSL, "off",
        "Takes the host of absolute redirects from server_name instead of the request.";
    LOG_NOT_FOUND: bool = "log_not_found", "on | off", parse::flag, HSL, "on",
        "Logs files that are not found as errors.";
    LOG_SUBREQUEST: bool = "log_subrequest", "on | off", parse::flag, HSL, "off",
        "Writes subrequests to the access log too.";
    MSIE_PADDING: bool = "msie_padding", "on | off", parse::flag, HSL, "on",
        "Pads error pages to 512 bytes for MSIE and Chrome, which hide shorter ones.";
    MSIE_REFRESH: bool = "msie_refresh", "on | off", parse::flag, HSL, "off",
        "Answers MSIE with a page that refreshes itself instead of a redirect.";
    KEEPALIVE_MIN_TIMEOUT: Duration = "keepalive_min_timeout", "timeout", parse::milliseconds, HSL, "0",
        "How long an idle connection is not closed even where it should make room for others or the worker ends.";
    SUBREQUEST_OUTPUT_BUFFER_SIZE: u64 = "subrequest_output_buffer_size", "size", parse::size, HSL, "4k",
        "The largest response of a subrequest that is kept in memory for later use.";
    CLIENT_HEADER_TIMEOUT: Duration = "client_header_timeout", "time", parse::milliseconds, HS, "60s",
        "The longest time for reading a request's head (408 after it).";
    CLIENT_HEADER_BUFFER_SIZE: u64 = "client_header_buffer_size", "size", parse::size, HS, "1k",
        "Size of the first buffer for a request's head.";
    IGNORE_INVALID_HEADERS: bool = "ignore_invalid_headers", "on | off", parse::flag, HS, "on",
        "Ignores header fields with invalid names; off refuses the request.";
    UNDERSCORES: bool = "underscores_in_headers", "on | off", parse::flag, HS, "off",
        "Allows underscores in the names of header fields.";
    MERGE_SLASHES: bool = "merge_slashes", "on | off", parse::flag, HS, "on",
        "Joins adjacent slashes of a URI into one.";
    MAX_HEADERS: u64 = "max_headers", "number", parse::number, HS, "1000",
        "How many header fields a request may have.";
}

static LARGE_BUFFERS: Setting<(u64, u64)> =
    Setting::new("large_client_header_buffers", &["number size"], parse::buffers)
        .contexts(HS)
        .arity(Arity::exactly(2))
        .default("4 8k")
        .manual("Number and size of buffers for long heads: no line may be longer than one buffer (414 for the request line, else 400), nor the head than all of them.");

static CLIENT_BODY_EARLY_READ: Setting<Vec<Template>> =
    Setting::new("client_body_early_read", &["string ..."], |setter| {
        let words = setter.lines().iter().flat_map(|line| &line.args);
        words.map(Template::parse).collect()
    })
    .contexts(HS)
    .arity(Arity::at_least(1))
    .inherit(Inherit::List)
    .since("1.31.0")
    .manual("When a request's body is read before its location is looked for, so that $request_body is there for rewriting: where any of the strings is neither empty nor \"0\". Without the directive it is not.");

static KEEPALIVE_TIMEOUT: Setting<(Duration, Option<u64>)> =
    Setting::new("keepalive_timeout", &["timeout [header_timeout]"], keepalive_timeout)
        .contexts(HSL)
        .arity(Arity::between(1, 2))
        .default("75s")
        .manual("How long an idle connection is kept; 0 closes it after each response. The second value is shown in a Keep-Alive field, in seconds.");

static KEEPALIVE_DISABLE: Setting<KeepaliveDisable> = Setting::new(
    "keepalive_disable",
    &["none | browser ..."],
    keepalive_disable,
)
.contexts(HSL)
.arity(Arity::between(1, 2))
.inherit(Inherit::List)
.default("msie6")
.manual("Browsers that are not kept alive: msie6 after a POST, safari on macOS.");

static LINGERING_CLOSE: Setting<LingeringClose> =
    Setting::new("lingering_close", &["off | on | always"], |setter| {
        parse::enumeration(setter, &[
            ("off", LingeringClose::Off),
            ("on", LingeringClose::On),
            ("always", LingeringClose::Always),
        ])
    })
    .contexts(HSL)
    .default("on")
    .manual("Reads and drops what a client still sends before the connection is closed, so that it gets to read the response.");

static IF_MODIFIED_SINCE: Setting<IfModifiedSince> =
    Setting::new("if_modified_since", &["off | exact | before"], |setter| {
        parse::enumeration(
            setter,
            &[
                ("off", IfModifiedSince::Off),
                ("exact", IfModifiedSince::Exact),
                ("before", IfModifiedSince::Before),
            ],
        )
    })
    .contexts(HSL)
    .default("exact")
    .manual("How a file's time is compared with If-Modified-Since.");

static SERVER_TOKENS: Setting<ServerTokens> =
    Setting::new("server_tokens", &["on | off | build | nginx | nginx_off"], |setter| {
        parse::enumeration(setter, &[
            ("on", ServerTokens::On),
            ("off", ServerTokens::Off),
            ("build", ServerTokens::Build),
            ("nginx", ServerTokens::Nginx),
            ("nginx_off", ServerTokens::NginxOff),
        ])
    })
    .contexts(HSL)
    .default("on")
    .manual("What the Server field and error pages say: name and version, or the name alone. `nginx` and `nginx_off` (ours) send nginx's text for those who depend on it.");

static SATISFY: Setting<bool> = Setting::new("satisfy", &["all | any"], |setter| {
    parse::enumeration(setter, &[("all", false), ("any", true)])
})
.contexts(HSL)
.default("all")
.manual("Whether every access check must grant a request, or any one.");

static AUTH_DELAY: Setting<Duration> = Setting::new("auth_delay", &["time"], parse::milliseconds)
    .contexts(HSL)
    .default("0s")
    .manual("How long the answer 401 to a request without access is held back, to slow down guessing and to hide how long a check took.");

static ROOT: Setting<Template> = Setting::new("root", &["path"], root)
    .also(&["alias"])
    .contexts(HSLI)
    .name_contexts("alias", Contexts::LOCATION)
    .arity(Arity::exactly(1))
    .default("html")
    .inherit(Inherit::Value)
    .manual("root: the directory below which URIs are looked up. alias: what replaces the location's part of the URI; in a regex location, the whole file name. Variables may be used.");

static MAX_RANGES: Setting<u64> = Setting::new("max_ranges", &["number"], parse::number)
    .contexts(HSL)
    .manual("How many ranges of a file one request may ask for; more get the whole file, as does any range when it is 0. Without the directive there is no limit.");

/// The core directives of one location.
pub struct Core {
    /// The folder that `root` or `alias` names.
    pub root: Root,
    /// The value of `sendfile` in this scope.
    pub sendfile: bool,
    /// `sendfile_max_chunk` in bytes; `None`: no limit.
    pub sendfile_max_chunk: Option<usize>,
    /// The value of `tcp_nopush` in this scope.
    pub tcp_nopush: bool,
    /// The value of `tcp_nodelay` in this scope.
    pub tcp_nodelay: bool,
    /// The value of `send_timeout` in this scope.
    pub send_timeout: Duration,
    limit_rate: Size,
    limit_rate_after: Size,
    /// The value of `http2_chunk_size` in this scope, in bytes.
    pub http2_chunk_size: usize,
    /// The first value of `keepalive_timeout` in this scope.
    pub keepalive_timeout: Duration,
    /// `keepalive_timeout`, second value, in seconds.
    pub keepalive_header: Option<u64>,
    /// The value of `keepalive_time` in this scope.
    pub keepalive_time: Duration,
    /// The value of `keepalive_requests` in this scope.
    pub keepalive_requests: u64,
    /// The value of `keepalive_disable` in this scope.
    pub keepalive_disable: KeepaliveDisable,
    /// `client_max_body_size` in bytes; 0: no limit.
    pub client_max_body_size: u64,
    /// The value of `client_body_buffer_size` in this scope, in bytes.
    pub client_body_buffer_size: usize,
    /// The value of `client_body_timeout` in this scope.
    pub client_body_timeout: Duration,
    /// The value of `lingering_close` in this scope.
    pub lingering_close: LingeringClose,
    /// The value of `lingering_time` in this scope.
    pub lingering_time: Duration,
    /// The value of `lingering_timeout` in this scope.
    pub lingering_timeout: Duration,
    /// The value of `reset_timedout_connection` in this scope.
    pub reset_timedout_connection: bool,
    /// The value of `chunked_transfer_encoding` in this scope.
    pub chunked_transfer_encoding: bool,
    /// The value of `etag` in this scope.
    pub etag: bool,
    /// The value of `if_modified_since` in this scope.
    pub if_modified_since: IfModifiedSince,
    /// `max_ranges`; `None` if the directive is not set.
    pub max_ranges: Option<u32>,
    /// The value of `absolute_redirect` in this scope.
    pub absolute_redirect: bool,
    /// The value of `port_in_redirect` in this scope.
    pub port_in_redirect: bool,
    /// The value of `server_name_in_redirect` in this scope.
    pub server_name_in_redirect: bool,
    /// The value of `server_tokens` in this scope.
    pub server_tokens: ServerTokens,
    /// Whether one access check suffices (`satisfy any`).
    pub satisfy_any: bool,
    /// The value of `auth_delay` in this scope.
    pub auth_delay: Duration,
    /// The value of `log_not_found` in this scope.
    pub log_not_found: bool,
    /// The value of `log_subrequest` in this scope.
    pub log_subrequest: bool,
    /// The value of `msie_padding` in this scope.
    pub msie_padding: bool,
    /// The value of `msie_refresh` in this scope.
    pub msie_refresh: bool,
    /// `keepalive_min_timeout`, at most `keepalive_timeout`.
    pub keepalive_min_timeout: Duration,
    /// The value of `subrequest_output_buffer_size` in this scope, in bytes.
    pub subrequest_output_buffer_size: usize,
}

impl Feature for Core {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &ROOT,
        &SENDFILE,
        &SENDFILE_MAX_CHUNK,
        &TCP_NOPUSH,
        &TCP_NODELAY,
        &SEND_TIMEOUT,
        &LIMIT_RATE,
        &LIMIT_RATE_AFTER,
        &KEEPALIVE_TIMEOUT,
        &KEEPALIVE_TIME,
        &KEEPALIVE_REQUESTS,
        &KEEPALIVE_DISABLE,
        &CLIENT_MAX_BODY_SIZE,
        &CLIENT_BODY_BUFFER_SIZE,
        &CLIENT_BODY_TIMEOUT,
        &LINGERING_CLOSE,
        &LINGERING_TIME,
        &LINGERING_TIMEOUT,
        &RESET_TIMEDOUT,
        &CHUNKED,
        &ETAG,
        &IF_MODIFIED_SINCE,
        &ABSOLUTE_REDIRECT,
        &PORT_IN_REDIRECT,
        &SERVER_NAME_IN_REDIRECT,
        &SERVER_TOKENS,
        &SATISFY,
        &AUTH_DELAY,
        &LOG_NOT_FOUND,
        &LOG_SUBREQUEST,
        &MSIE_PADDING,
        &MSIE_REFRESH,
        &KEEPALIVE_MIN_TIMEOUT,
        &MAX_RANGES,
        &SUBREQUEST_OUTPUT_BUFFER_SIZE,
        &CHUNK_SIZE,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let (keepalive_timeout, _) = scope.get(&KEEPALIVE_TIMEOUT)?;
        let chunk = scope.get(&SENDFILE_MAX_CHUNK)?;
        Ok(Core {
            root: compile_root(compiler, scope)?,
            sendfile: scope.get(&SENDFILE)?,
            sendfile_max_chunk: (chunk > 0).then_some(chunk as usize),
            tcp_nopush: scope.get(&TCP_NOPUSH)?,
            tcp_nodelay: scope.get(&TCP_NODELAY)?,
            send_timeout: scope.get(&SEND_TIMEOUT)?,
            limit_rate: Size::compile(compiler, scope.get(&LIMIT_RATE)?),
            limit_rate_after: Size::compile(compiler, scope.get(&LIMIT_RATE_AFTER)?),
            http2_chunk_size: usize::try_from(scope.get(&CHUNK_SIZE)?).unwrap_or(usize::MAX),
            keepalive_timeout,
            keepalive_header: keepalive_header(scope)?,
            keepalive_time: scope.get(&KEEPALIVE_TIME)?,
            keepalive_requests: scope.get(&KEEPALIVE_REQUESTS)?,
            keepalive_disable: scope.get(&KEEPALIVE_DISABLE)?,
            client_max_body_size: scope.get(&CLIENT_MAX_BODY_SIZE)?,
            client_body_buffer_size: scope.get(&CLIENT_BODY_BUFFER_SIZE)? as usize,
            client_body_timeout: scope.get(&CLIENT_BODY_TIMEOUT)?,
            lingering_close: scope.get(&LINGERING_CLOSE)?,
            lingering_time: scope.get(&LINGERING_TIME)?,
            lingering_timeout: scope.get(&LINGERING_TIMEOUT)?,
            reset_timedout_connection: scope.get(&RESET_TIMEDOUT)?,
            chunked_transfer_encoding: scope.get(&CHUNKED)?,
            etag: scope.get(&ETAG)?,
            if_modified_since: scope.get(&IF_MODIFIED_SINCE)?,
            max_ranges: scope
                .written(&MAX_RANGES)?
                .map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
            absolute_redirect: scope.get(&ABSOLUTE_REDIRECT)?,
            port_in_redirect: scope.get(&PORT_IN_REDIRECT)?,
            server_name_in_redirect: scope.get(&SERVER_NAME_IN_REDIRECT)?,
            server_tokens: scope.get(&SERVER_TOKENS)?,
            satisfy_any: scope.get(&SATISFY)?,
            auth_delay: scope.get(&AUTH_DELAY)?,
            log_not_found: scope.get(&LOG_NOT_FOUND)?,
            log_subrequest: scope.get(&LOG_SUBREQUEST)?,
            msie_padding: scope.get(&MSIE_PADDING)?,
            msie_refresh: scope.get(&MSIE_REFRESH)?,
            keepalive_min_timeout: scope.get(&KEEPALIVE_MIN_TIMEOUT)?.min(keepalive_timeout),
            subrequest_output_buffer_size: scope.get(&SUBREQUEST_OUTPUT_BUFFER_SIZE)? as usize,
        })
    }
}

impl Core {
    /// The rate for this request in bytes per second; `None`: no limit. The rate that `set
    /// $limit_rate` has set takes precedence. A value with variables is evaluated once per request.
    pub fn limit_rate_of(&self, request: &mut Request) -> Option<u64> {
        let rate = match request.pacing.rate {
            Some(rate) => rate,
            None => self.limit_rate.evaluate(request, WHILE_SENDING),
        };
        request.pacing.rate = Some(rate);
        (rate > 0).then_some(rate)
    }

    /// The number of bytes that are sent before the rate limit applies.
    pub fn limit_rate_after_of(&self, request: &mut Request) -> u64 {
        match request.pacing.rate_after {
            Some(after) => after,
            None => self.limit_rate_after.evaluate(request, WHILE_SENDING),
        }
    }

    /// Whether the rate is unlimited for all requests: `limit_rate` is a constant 0.
    pub fn unlimited(&self) -> bool {
        matches!(self.limit_rate, Size::Fixed(0))
    }
}

/// The tasks of HTTP's core.
pub const TASKS: &[Task] = &[
    Task::of(TaskKind::Access, &["satisfy"]).listed(3),
    Task::of(TaskKind::Files, &["root", "alias"]),
    Task::of(TaskKind::Files, &["open_file_cache"]).listed(5),
    Task::of(TaskKind::Pace, &["limit_rate"]),
    Task::of(TaskKind::Errors, &["error_page"]),
];

/// The settings that apply before the location is known.
pub struct ServerCore {
    /// The value of `client_header_timeout` in this scope.
    pub client_header_timeout: Duration,
    /// The settings of HTTP/2 for the server.
    pub http2: Http2,
    /// The conditions of `client_body_early_read`.
    early_read: Box<[Text]>,
    /// The limits of a request's head.
    limits: h1::Limits,
}

impl ServerCore {
    /// Whether `client_body_early_read` may apply to a request.
    pub fn may_read_early(&self) -> bool {
        !self.early_read.is_empty()
    }

    /// Whether this request's body is read before its location is looked up.
    pub fn reads_early(&self, request: &mut Request) -> bool {
        self.early_read.iter().any(|condition| {
            let value = condition.evaluate(request);
            !value.is_empty() && &*value != b"0"
        })
    }

    /// The limits of a request's head.
    pub fn head_limits(&self) -> h1::Limits {
        self.limits
    }
}

impl Feature for ServerCore {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &CLIENT_HEADER_TIMEOUT,
        &CLIENT_HEADER_BUFFER_SIZE,
        &LARGE_BUFFERS,
        &IGNORE_INVALID_HEADERS,
        &UNDERSCORES,
        &MERGE_SLASHES,
        &MAX_HEADERS,
        &CLIENT_BODY_EARLY_READ,
        &HTTP2,
        &CONCURRENT_STREAMS,
        &BODY_PREREAD_SIZE,
    ];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        let (number, size) = scope.get(&LARGE_BUFFERS)?;
        let first = scope.get(&CLIENT_HEADER_BUFFER_SIZE)?;
        let early_read = scope.written(&CLIENT_BODY_EARLY_READ)?.unwrap_or_default();
        Ok(ServerCore {
            early_read: early_read
                .iter()
                .map(|template| compiler.text(template))
                .collect(),
            client_header_timeout: scope.get(&CLIENT_HEADER_TIMEOUT)?,
            http2: Http2::of(scope)?,
            limits: h1::Limits {
                buffer_size: first as usize,
                large_buffers: number as usize,
                large_buffer_size: size as usize,
                headers_max: scope.get(&MAX_HEADERS)? as usize,
                merge_slashes: scope.get(&MERGE_SLASHES)?,
                ignore_invalid_headers: scope.get(&IGNORE_INVALID_HEADERS)?,
                underscores_in_headers: scope.get(&UNDERSCORES)?,
            },
        })
    }
}

fn compile_root(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Root, Fault> {
    let (declaring, template) = scope.get_with_scope(&ROOT)?;
    let mut prefix = compiler.prefix.as_os_str().as_bytes().to_vec();
    if prefix.last() != Some(&b'/') {
        prefix.push(b'/');
    }
    let is_alias = declaring.is_some_and(|scope| {
        scope
            .own_lines(&ROOT.spec)
            .iter()
            .any(|l| &*l.name.bytes == b"alias")
    });
    let relative_at_run_time = !matches!(
        template.parts.first(),
        None | Some(conf::TemplatePart::Literal(_))
    );
    let begins_with_slash = match template.parts.first() {
        Some(conf::TemplatePart::Literal(first)) => first.first() == Some(&b'/'),
        _ => relative_at_run_time,
    };
    let mut parts = template.parts.clone();
    if !is_alias {
        // One trailing slash of `root` is dropped, since the URI begins with one.
        without_last_slash(&mut parts);
    }
    if !begins_with_slash {
        match parts.first_mut() {
            Some(conf::TemplatePart::Literal(first)) => {
                *first = [prefix.as_slice(), first].concat().into()
            }
            _ => parts.push(conf::TemplatePart::Literal(prefix.clone().into())),
        }
    }
    let lines = declaring.map(|scope| scope.own_lines(&ROOT.spec));
    let line = lines.and_then(|lines| lines.first().copied());
    let place = (constant_folder(&parts), name_of(line, "root"));
    let text = compiler.text(&Template { parts });
    let alias = is_alias.then(|| alias_of(declaring));
    Ok(Root {
        path: text,
        alias,
        relative_at_run_time,
        prefix: prefix.into(),
        place,
    })
}

/// Removes the slash at the end of the last literal part.
fn without_last_slash(parts: &mut [conf::TemplatePart]) {
    if let Some(conf::TemplatePart::Literal(last)) = parts.last_mut()
        && let Some(rest) = last.strip_suffix(b"/")
    {
        *last = rest.into();
    }
}

/// The part of the URI that an `alias` in this location replaces.
fn alias_of(declaring: Option<ScopeRef<'_>>) -> Alias {
    let mut scope = declaring;
    while let Some(at) = scope {
        if let Some(line) = at.line()
            && &*line.name.bytes == b"location"
        {
            return match crate::config::location::LocationName::parse(line) {
                Ok(name) => name.alias(),
                Err(_) => Alias::Prefix(0),
            };
        }
        scope = at.parent();
    }
    Alias::Prefix(0)
}

fn root(setter: &Setter<'_>) -> Result<Template, Fault> {
    let lines = setter.lines();
    let Some(first) = lines.first() else {
        return Err(Fault::new("no path"));
    };
    if let Some(second) = lines.get(1) {
        let name = second.name.text();
        let text = if first.name.bytes == second.name.bytes {
            format!("\"{name}\" directive is duplicate")
        } else {
            format!(
                "\"{name}\" directive is duplicate, \"{}\" directive was specified earlier",
                first.name.text()
            )
        };
        return Err(Fault::at(&second.name, text));
    }
    let Some(word) = first.args.first() else {
        return Err(Fault::new("no path"));
    };
    let around = setter.scope().line().filter(|line| line.is("location"));
    let is_named = around.is_some_and(|line| line.argument(0).bytes.starts_with(b"@"));
    if is_named && first.is("alias") {
        let text = "the \"alias\" directive cannot be used inside the named location";
        return Err(Fault::at(&first.name, text));
    }
    let template = Template::parse(word)?;
    let circular = template.parts.iter().find_map(|part| match part {
        conf::TemplatePart::Variable(name) => {
            matches!(&**name, "document_root" | "realpath_root").then_some(name)
        }
        _ => None,
    });
    if let Some(variable) = circular {
        let text = format!(
            "the ${variable} variable cannot be used in the \"{}\" directive",
            first.name.text()
        );
        return Err(Fault::at(word, text));
    }
    Ok(template)
}

fn keepalive_timeout(setter: &Setter<'_>) -> Result<(Duration, Option<u64>), Fault> {
    let args = setter.args();
    let Some(first) = args.first() else {
        return Err(Fault::new("no time"));
    };
    let timeout = parse::milliseconds_word(first, setter)?;
    let header = match args.get(1) {
        Some(word) => Some(parse::seconds_word(word, setter)?.as_secs()),
        None => None,
    };
    Ok((timeout, header))
}

/// The second value of `keepalive_timeout`, which is inherited separately: a scope that sets only
/// the first value keeps the second of the scopes around it. If the value is 0, no header is sent.
fn keepalive_header(scope: ScopeRef<'_>) -> Result<Option<u64>, Fault> {
    for scope in std::iter::successors(Some(scope), |scope| scope.parent()) {
        if let Some((_, Some(seconds))) = scope.own(&KEEPALIVE_TIMEOUT)? {
            return Ok(Some(seconds).filter(|seconds| *seconds > 0));
        }
    }
    Ok(None)
}

fn keepalive_disable(setter: &Setter<'_>) -> Result<KeepaliveDisable, Fault> {
    let mut disable = KeepaliveDisable::default();
    let mut none = false;
    for word in setter.lines().iter().flat_map(|line| &line.args) {
        let flag = match &*word.bytes.to_ascii_lowercase() {
            b"none" => &mut none,
            b"msie6" => &mut disable.msie6,
            b"safari" => &mut disable.safari,
            _ => return Err(Fault::invalid_value(word)),
        };
        if std::mem::replace(flag, true) {
            setter.warn(word, format!("duplicate value \"{}\"", word.text()));
        }
    }
    Ok(disable)
}
