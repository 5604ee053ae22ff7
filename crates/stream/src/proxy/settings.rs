//! The proxy settings of a server.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_proxy_module.html>

use std::sync::Arc;
use std::time::Duration;

use ::upstream::{Causes, RetryPolicy};
use conf::{Arity, Contexts, Declared, Fault, ScopeRef, Setter, Setting, Template, Word, parse};
use framework::compile::Compiler;
use proto::proxy_protocol::Version;
use rules::upstream::of_address;
use rules::upstream::socket::{BindLine, SocketDirectives, SocketSettings};
use transport::resolver::Resolving;
use variables::size::{Size, WrittenSize};
use variables::{Compiling as _, Text};

use super::mqtt::{self, Mqtt};
use super::tls::{self, ProxyTls};
use crate::session::Session;
use crate::upstream::Group;

/// The contexts of the proxy directives.
const CONTEXTS: Contexts = Contexts::STREAM.or(Contexts::STREAM_SERVER);

static PROXY_PASS: Setting<Pass> = Setting::new("proxy_pass", &["address"], |setter| {
    let word = setter.word()?;
    Ok(Pass {
        template: Template::parse(word)?,
        word: word.clone(),
    })
})
.contexts(Contexts::STREAM_SERVER)
.manual(
    "The servers that sessions are passed on to: host:port, [ipv6]:port, unix:path or the name of \
     an `upstream` block. With variables it is found out for each session, and what is neither an \
     address nor a block is looked up by `resolver`; else the names of hosts are looked up when \
     the configuration is read.",
);

pub(super) static PROXY_PROTOCOL: Setting<Option<Version>> =
    Setting::new("proxy_protocol", &["on | off | v2"], |setter| {
        let versions = [
            ("off", None),
            ("on", Some(Version::V1)),
            ("v2", Some(Version::V2)),
        ];
        parse::enumeration(setter, &versions)
    })
    .contexts(Contexts::STREAM.or(Contexts::STREAM_SERVER))
    .default("off")
    .manual(
        "Begins each connection to a server with a header of the PROXY protocol, which tells the \
         client's address: `on` in version 1, a line of text, `v2` in binary. With UDP it stands \
         before the session's first datagram, in the same datagram.",
    );

static PROXY_CONNECT_TIMEOUT: Setting<Duration> =
    Setting::new("proxy_connect_timeout", &["time"], parse::milliseconds)
        .contexts(CONTEXTS)
        .default("60s")
        .manual("How long connecting to a server may take.");

static PROXY_TIMEOUT: Setting<Duration> =
    Setting::new("proxy_timeout", &["time"], parse::milliseconds)
        .contexts(CONTEXTS)
        .default("10m")
        .manual("Silence of both ends for so long ends the session.");

static PROXY_BUFFER_SIZE: Setting<u64> = Setting::new("proxy_buffer_size", &["size"], buffer_size)
    .also(&["proxy_downstream_buffer", "proxy_upstream_buffer"])
    .contexts(CONTEXTS)
    .default("16k")
    .manual(
        "Bytes that may wait for one end before no more is read from the other. \
             `proxy_downstream_buffer` and `proxy_upstream_buffer` are old names of the directive.",
    );

static PROXY_SESSION_TIME: Setting<Duration> = Setting::new(
    "proxy_session_time",
    &["time"],
    parse::milliseconds,
)
.contexts(CONTEXTS)
.default("0")
.manual(
    "The longest life of a session, from its beginning; 0 is no limit. Both ends are closed \
             when it is over, and with UDP the client's next datagram begins another session.",
);

/// Parses a buffer size, whose directive may have an old name.
fn buffer_size(setter: &Setter<'_>) -> Result<u64, Fault> {
    let name = &setter.first().name;
    if &*name.bytes != b"proxy_buffer_size" && !setter.is_default() {
        let old = name.text();
        let text = format!(
            "the \"{old}\" directive is deprecated, use the \"proxy_buffer_size\" directive instead"
        );
        setter.warn_once(name, text);
    }
    parse::size(setter)
}

static PROXY_HALF_CLOSE: Setting<bool> =
    Setting::new("proxy_half_close", &["on | off"], parse::flag)
        .contexts(CONTEXTS)
        .default("off")
        .manual(
            "Whether an end that has closed its way to us still gets what the other sends. With \
             `off` the session ends when either end closes.",
        );

static PROXY_UPLOAD_RATE: Setting<WrittenSize> =
    Setting::new("proxy_upload_rate", &["rate"], WrittenSize::parse)
        .contexts(CONTEXTS)
        .default("0")
        .manual("Bytes a second that are read from the client, for each session; 0 is no limit.");

static PROXY_DOWNLOAD_RATE: Setting<WrittenSize> =
    Setting::new("proxy_download_rate", &["rate"], WrittenSize::parse)
        .contexts(CONTEXTS)
        .default("0")
        .manual("Bytes a second that are read from the server, for each session; 0 is no limit.");

static PROXY_NEXT_UPSTREAM: Setting<bool> =
    Setting::new("proxy_next_upstream", &["on | off"], parse::flag)
        .contexts(CONTEXTS)
        .default("on")
        .manual("Whether the next server is tried where one cannot be connected to.");

static PROXY_NEXT_UPSTREAM_TRIES: Setting<u64> =
    Setting::new("proxy_next_upstream_tries", &["number"], parse::number)
        .contexts(CONTEXTS)
        .default("0")
        .manual("How many servers are tried; 0 is no limit.");

static PROXY_NEXT_UPSTREAM_TIMEOUT: Setting<Duration> = Setting::new(
    "proxy_next_upstream_timeout",
    &["time"],
    parse::milliseconds,
)
.contexts(CONTEXTS)
.default("0")
.manual("For how long further servers are tried; 0 is no limit.");

static PROXY_SOCKET_KEEPALIVE: Setting<bool> =
    Setting::new("proxy_socket_keepalive", &["on | off"], parse::flag)
        .contexts(CONTEXTS)
        .default("off")
        .manual("Whether the kernel looks now and then if the server is still there.");

static PROXY_SOCKET_RCVBUF: Setting<u64> =
    Setting::new("proxy_socket_rcvbuf", &["size"], parse::size)
        .contexts(CONTEXTS)
        .default("0")
        .since("1.31.3")
        .manual(
            "The size of the kernel's buffer for what comes from a server (SO_RCVBUF); 0 leaves \
             the kernel's own.",
        );

static PROXY_SOCKET_SNDBUF: Setting<u64> =
    Setting::new("proxy_socket_sndbuf", &["size"], parse::size)
        .contexts(CONTEXTS)
        .default("0")
        .since("1.31.3")
        .manual(
            "The size of the kernel's buffer for what leaves to a server (SO_SNDBUF); 0 leaves \
             the kernel's own.",
        );

static PROXY_BIND: Setting<BindLine> = Setting::new(
    "proxy_bind",
    &["address [transparent]", "off"],
    BindLine::parse,
)
.contexts(CONTEXTS)
.arity(Arity::between(1, 2))
.manual(
    "The local address, with or without a port, that connections to servers come from, and \
     datagrams. Variables may be used; where they give nothing, the kernel chooses. With \
     transparent it may be an address that the machine does not have, such as the client's \
     ($remote_addr, or $remote_addr:$remote_port); worker processes keep the capability \
     CAP_NET_RAW for that, and routes must lead the servers' answers back.",
);

/// The socket directives.
const SOCKETS: SocketDirectives = SocketDirectives {
    bind: &PROXY_BIND,
    keepalive: &PROXY_SOCKET_KEEPALIVE,
    receive_buffer: &PROXY_SOCKET_RCVBUF,
    send_buffer: &PROXY_SOCKET_SNDBUF,
};

static PROXY_REQUESTS: Setting<u64> = Setting::new("proxy_requests", &["number"], parse::number)
    .contexts(CONTEXTS)
    .default("0")
    .manual(
        "After so many datagrams of a client its next one begins a new session; 0 is no limit.",
    );

static PROXY_RESPONSES: Setting<u64> = Setting::new("proxy_responses", &["number"], parse::number)
    .contexts(CONTEXTS)
    .manual(
        "How many datagrams of the server answer one of the client's. Once they have come the \
             session ends; without the directive it lasts for `proxy_timeout`.",
    );

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[
    &PROXY_PASS,
    &PROXY_CONNECT_TIMEOUT,
    &PROXY_TIMEOUT,
    &PROXY_SESSION_TIME,
    &PROXY_BUFFER_SIZE,
    &PROXY_HALF_CLOSE,
    &PROXY_UPLOAD_RATE,
    &PROXY_DOWNLOAD_RATE,
    &PROXY_NEXT_UPSTREAM,
    &PROXY_NEXT_UPSTREAM_TRIES,
    &PROXY_NEXT_UPSTREAM_TIMEOUT,
    &PROXY_SOCKET_KEEPALIVE,
    &PROXY_SOCKET_RCVBUF,
    &PROXY_SOCKET_SNDBUF,
    &PROXY_BIND,
    &PROXY_REQUESTS,
    &PROXY_RESPONSES,
    &PROXY_PROTOCOL,
];

/// A `proxy_pass` directive.
#[derive(Clone)]
struct Pass {
    template: Template,
    word: Word,
}

/// The target of sessions, and the proxy settings.
pub(crate) struct Proxy {
    pub(crate) target: Target,
    /// A session ends if both ends are silent for this long.
    pub(crate) timeout: Duration,
    /// Time limit of a session, if any.
    pub(crate) session_time: Option<Duration>,
    /// Maximum number of bytes queued for one end before reading from the other pauses.
    pub(crate) buffer_size: usize,
    pub(crate) half_close: bool,
    /// Limit of bytes per second read from the client; 0 means unlimited.
    upload_rate: Size<Session>,
    /// Limit of bytes per second read from the server; 0 means unlimited.
    download_rate: Size<Session>,
    pub(crate) tries: RetryPolicy,
    /// The options of upstream sockets.
    pub(crate) socket: SocketSettings<Session>,
    /// The resolver of names from variables.
    pub(crate) resolving: Arc<Resolving>,
    /// The version of the PROXY protocol header to send, if any.
    pub(crate) proxy_protocol: Option<Version>,
    /// The MQTT settings, if MQTT is on.
    pub(crate) mqtt: Option<Mqtt>,
    /// TLS to upstream servers; `None` for unencrypted connections.
    pub(crate) tls: Option<ProxyTls>,
    /// Maximum number of a client's datagrams per session; 0 means unlimited.
    pub(crate) requests: u64,
    /// Number of responses to each datagram of the client, if configured.
    pub(crate) responses: Option<u64>,
}

/// Limits of bytes per second read from either end; 0 means unlimited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    pub(crate) upload: u64,
    pub(crate) download: u64,
}

impl Proxy {
    /// The rate limits of a session.
    pub(crate) fn rates(&self, session: &mut Session) -> Rates {
        Rates {
            upload: self.upload_rate.evaluate(session, ""),
            download: self.download_rate.evaluate(session, ""),
        }
    }
}

/// The target of sessions.
pub(crate) enum Target {
    Group(Arc<Group>),
    /// The servers that the text names.
    Text(Text<Session>),
}

/// The proxy settings of a server, if it has a `proxy_pass`, and the position of that directive.
pub(crate) fn of_server(
    compiler: &Compiler<'_>,
    server: ScopeRef<'_>,
) -> Result<Option<(Proxy, u32)>, Fault> {
    let Some(pass) = server.own(&PROXY_PASS)? else {
        return Ok(None);
    };
    let place = server
        .own_lines(&PROXY_PASS.spec)
        .last()
        .map(|line| line.sequence());
    let proxy = Proxy {
        target: target(compiler, &pass)?,
        timeout: server.get(&PROXY_TIMEOUT)?,
        session_time: Some(server.get(&PROXY_SESSION_TIME)?).filter(|time| !time.is_zero()),
        buffer_size: count(server.get(&PROXY_BUFFER_SIZE)?),
        half_close: server.get(&PROXY_HALF_CLOSE)?,
        upload_rate: Size::compile(compiler, server.get(&PROXY_UPLOAD_RATE)?),
        download_rate: Size::compile(compiler, server.get(&PROXY_DOWNLOAD_RATE)?),
        tries: tries(server)?,
        socket: SocketSettings::compile(compiler, server, &SOCKETS)?,
        resolving: compiler.feature::<Resolving>(server)?,
        proxy_protocol: server.get(&PROXY_PROTOCOL)?,
        mqtt: mqtt::of_server(compiler, server)?,
        tls: tls::of_server(compiler, server)?,
        requests: server.get(&PROXY_REQUESTS)?,
        responses: server.written(&PROXY_RESPONSES)?,
    };
    Ok(Some((proxy, place.unwrap_or_default())))
}

/// The limits of attempts at peers.
fn tries(server: ScopeRef<'_>) -> Result<RetryPolicy, Fault> {
    let next_upstream = if server.get(&PROXY_NEXT_UPSTREAM)? {
        Causes::ERROR.with(Causes::TIMEOUT)
    } else {
        Causes::OFF
    };
    Ok(RetryPolicy {
        connect_timeout: server.get(&PROXY_CONNECT_TIMEOUT)?,
        send_timeout: server.get(&PROXY_TIMEOUT)?,
        // As in nginx, data that a client sends in the meantime stays in the kernel, and so does
        // its close.
        ignore_client_abort: true,
        next_upstream,
        next_upstream_tries: count(server.get(&PROXY_NEXT_UPSTREAM_TRIES)?),
        next_upstream_timeout: server.get(&PROXY_NEXT_UPSTREAM_TIMEOUT)?,
    })
}

fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The target of a `proxy_pass`, whose address is resolved unless it has variables.
fn target(compiler: &Compiler<'_>, pass: &Pass) -> Result<Target, Fault> {
    let Pass { template, word } = pass;
    if template.as_literal().is_none() {
        return Ok(Target::Text(compiler.text(template)));
    }
    of_address(compiler, word, &word.bytes).map(Target::Group)
}
