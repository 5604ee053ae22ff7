//! Compilation of the `stream` block to servers and their addresses.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setter, Setting, Word, parse};
use engine::net::SocketKind;
use framework::compile::Compiler;
use logs::{ERROR_LOG, ErrorLog};
use rules::access::Access;
use rules::access_log::{ACCESS_LOG, AccessLogs};
use rules::geoip2;
use rules::keyval;
use rules::limit_conn::{self, LimitConn};
use rules::realip::ByHeader;
use rules::server_name;
use rules::session_zones::{SessionBlock, SessionZones};
use transport::listen;
use transport::tls::settings::{self, TlsSettings};
use variables::{Table, geo, map, num_map, split_clients};

use crate::address::{Addresses, Listen, NamedServer, StreamOptions};
use crate::plan::{Content, Server, Stream};
use crate::session::Session;
use crate::upstream::OfSessions;
use crate::{handover, health_check, preread, proxy, proxy_protocol, returned, set, tls};

static STREAM: Setting<()> = Setting::new("stream", &["{ ... }"], parse::nothing)
    .contexts(Contexts::MAIN)
    .block()
    .opens(Contexts::STREAM)
    .inherit(Inherit::Never)
    .manual("The block of everything that passes TCP connections on.");

static SERVER: Setting<()> = Setting::new("server", &["{ ... }"], parse::nothing)
    .contexts(Contexts::STREAM)
    .block()
    .opens(Contexts::STREAM_SERVER)
    .manual("A server, reached at the addresses of its `listen` lines.");

static LISTEN: Setting<Vec<UnresolvedListen>> = Setting::new(
    "listen",
    &["address:port [options]", "unix:path [options]"],
    lines,
)
.contexts(Contexts::STREAM_SERVER)
.arity(conf::Arity::at_least(1))
.inherit(Inherit::List)
.manual(
    "An address that the server is reached at. Options: udp; ssl: clients speak TLS; \
     proxy_protocol: connections begin with a header of the PROXY protocol, version 1 or 2, and \
     sessions of datagrams with one in their first datagram, or in each with \
     proxy_protocol=per_datagram; \
     default_server: serves those who ask for no other server's name in their handshake; bind, \
     backlog=, rcvbuf=, sndbuf=, deferred, fastopen=, reuseport, ipv6only=on|off, \
     so_keepalive=on|off|idle:interval:count.",
);

static TCP_NODELAY: Setting<bool> = Setting::new("tcp_nodelay", &["on | off"], parse::flag)
    .contexts(Contexts::STREAM.or(Contexts::STREAM_SERVER))
    .default("on")
    .manual("Whether small packets leave at once, to the client and to the server behind.");

static STATUS_ZONE: Setting<Bytes> = Setting::new("status_zone", &["zone"], |setter| {
    let word = setter.word()?;
    if word.bytes.is_empty() {
        return Err(Fault::at(word, "invalid zone name \"\""));
    }
    Ok(Bytes::copy_from_slice(&word.bytes))
})
.contexts(Contexts::STREAM_SERVER)
.manual(
    "Counts the server's sessions under this name, for `api`. Several servers may have one zone.",
);

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] =
    &[&STREAM, &SERVER, &LISTEN, &TCP_NODELAY, &STATUS_ZONE];

/// A `listen` line before host names are resolved.
type UnresolvedListen = listen::ListenLine<StreamOptions>;

/// The port of a line without one.
const NO_PORT: u16 = 0;

/// Parses the `listen` lines of a server.
fn lines(setter: &Setter<'_>) -> Result<Vec<UnresolvedListen>, Fault> {
    let lines = setter.lines().iter();
    let read = |line: &Line| {
        let written = listen::line(line, NO_PORT, option)?;
        if written.listen.options.carries == SocketKind::Datagrams {
            check_udp(&written.listen, line)?;
        } else if written.listen.own.header_per_datagram {
            let text = "the \"proxy_protocol=per_datagram\" parameter requires \"udp\"";
            return Err(written.listen.fault(text.to_owned()));
        }
        Ok(written)
    };
    lines.map(|line| read(line)).collect()
}

/// Applies an option of `listen` that not all protocols have.
fn option(listen: &mut Listen, name: &str) -> listen::OptionSupport {
    match name {
        "udp" => listen.options.carries = SocketKind::Datagrams,
        "ssl" => listen.own.protocols.ssl = true,
        "proxy_protocol" => listen.own.protocols.proxy_protocol = true,
        "proxy_protocol=per_datagram" => {
            listen.own.protocols.proxy_protocol = true;
            listen.own.header_per_datagram = true;
        }
        "default_server" => listen.own.default_server = true,
        _ => return listen::OptionSupport::Unknown,
    }
    listen::OptionSupport::Yes
}

/// Rejects options that UDP does not support, as nginx does, and datagram Unix sockets.
fn check_udp(listen: &Listen, line: &Line) -> Result<(), Fault> {
    let is_unix = |word: &&Word| word.bytes.starts_with(b"unix:");
    if listen.word.as_ref().filter(is_unix).is_some() {
        return Err(listen.fault("\"udp\" is not supported for Unix sockets".to_owned()));
    }
    for word in line.args.iter().skip(1) {
        let text = word.text();
        let name = text.split('=').next().unwrap_or_default();
        let is_of_tcp = matches!(
            name,
            "fastopen" | "backlog" | "deferred" | "so_keepalive" | "ssl"
        );
        if is_of_tcp {
            let text =
                format!("\"listen\" directive \"{name}\" parameter is incompatible with \"udp\"");
            return Err(Fault::at(word, text));
        }
    }
    Ok(())
}

/// Compiles the `stream` block; `None` on errors, which have been reported. A configuration without
/// the block is not an error: it has no servers.
pub(crate) fn stream(compiler: &Compiler<'_>, root: ScopeRef<'_>) -> Option<Stream> {
    let mut addresses = Addresses::default();
    let mut whole = true;
    settings::check_passwords(compiler, root, &settings::PASSWORD_FILE);
    proxy::tls::check_unused(compiler, root);
    for scope in root.children("stream") {
        set::define(compiler, scope);
        limit_conn::compile::<Session>(compiler, scope);
        map::compile::<Session>(compiler, scope);
        num_map::compile::<Session>(compiler, scope);
        geo::compile::<Session>(compiler, scope);
        geoip2::compile::<Session>(compiler, scope);
        split_clients::compile::<Session>(compiler, scope);
        keyval::compile::<Session>(compiler, scope);
        whole &= open_logs(compiler, scope).is_some();
        if let Err(fault) = rules::format::check::<Session>(compiler, scope) {
            compiler.report(fault);
            whole = false;
        }
        health_check::prepare(compiler, scope);
        rules::upstream::compile::<OfSessions>(compiler, scope);
        for block in scope.children("server") {
            if let Err(fault) = server(compiler, block, &mut addresses) {
                compiler.report(fault);
                whole = false;
            }
        }
    }
    for scope in root.children("stream") {
        if addresses.need_table()
            && let Err(fault) = server_name::check_table(scope)
        {
            compiler.report(fault);
            whole = false;
        }
    }
    let bindings = addresses
        .bindings(compiler)
        .map_err(|fault| compiler.report(fault));
    whole.then_some(Stream {
        bindings: bindings.ok()?,
        variables: Table::default(),
        debug_connections: Arc::default(),
    })
}

/// Opens the logs of the block itself, even if each of its servers has others: nginx opens every
/// configured log, used or not.
fn open_logs(compiler: &Compiler<'_>, stream: ScopeRef<'_>) -> Option<()> {
    if stream.writes(&[&ACCESS_LOG]) {
        compiler.feature_or_report::<AccessLogs<Session>>(stream)?;
    }
    if stream.writes(&[&ERROR_LOG]) {
        compiler.feature_or_report::<ErrorLog>(stream)?;
    }
    Some(())
}

/// Adds a server to its listening addresses.
fn server(
    compiler: &Compiler<'_>,
    block: ScopeRef<'_>,
    addresses: &mut Addresses,
) -> Result<(), Fault> {
    let at_block = |text: &str| {
        let fault = Fault::new(text);
        let line = block.line().map(|line| line.name.position);
        line.map_or_else(|| Fault::new(text), |position| fault.or_at(position))
    };
    let Some(lines) = block.own(&LISTEN)? else {
        return Err(at_block("no \"listen\" is defined for server"));
    };
    let lines = listen::addresses(compiler, lines)?;
    if let Some(line) = lines
        .iter()
        .find(|line| line.options.address.port() == Some(NO_PORT))
    {
        let word = line.word.as_ref().map(Word::text).unwrap_or_default();
        let text = format!("no port in \"{word}\" of the \"listen\" directive");
        return Err(line.fault(text));
    }
    let returned = returned::of_server(compiler, block)?;
    let proxied = proxy::settings::of_server(compiler, block)?;
    let passed = handover::of_server(compiler, block)?;
    // As in nginx, the last directive is the server's handler.
    let contents = [
        returned.map(|(text, place)| (Content::Return(text), place)),
        proxied.map(|(proxy, place)| (Content::Proxy(Box::new(proxy)), place)),
        passed.map(|(pass, place)| (Content::Pass(pass), place)),
    ];
    let last = contents
        .into_iter()
        .flatten()
        .max_by_key(|(_, place)| *place);
    let content = last.map_or(Content::Nothing, |(content, _)| content);
    let first = lines.first().map(|line| &line.options.address);
    let names = server_name::of_server(compiler, block, first)?;
    let tls = compiler.feature::<TlsSettings<Session>>(block)?;
    for text in &tls.warnings {
        compiler.warn_each_time(text.clone(), None);
    }
    let zones = compiler.registry::<SessionZones>();
    let server = Server {
        name: names
            .first()
            .map(|(text, _)| text.clone())
            .unwrap_or_default(),
        error_log: compiler.feature::<ErrorLog>(block)?,
        access_logs: compiler.feature::<AccessLogs<Session>>(block)?,
        access: compiler.feature::<Access>(block)?,
        tcp_nodelay: block.get(&TCP_NODELAY)?,
        tls: tls.server.clone(),
        certificates: tls.certificates.clone(),
        verify_client: tls.verify_client,
        real_ip: compiler.feature::<ByHeader>(block)?,
        assignments: set::of_server(compiler, block)?,
        limit_conn: compiler.feature::<LimitConn<Session>>(block)?,
        proxy_protocol_timeout: block.get(&proxy_protocol::PROXY_PROTOCOL_TIMEOUT)?,
        preread: preread::of_server(block)?,
        handshake_timeout: block.get(&tls::SSL_HANDSHAKE_TIMEOUT)?,
        status_zone: block
            .own(&STATUS_ZONE)?
            .map(|name| zones.borrow_mut().number(SessionBlock::Stream, name)),
        content,
    };
    let server = Arc::new(server);
    health_check::of_server(compiler, block, &server)?;
    let named = NamedServer {
        server,
        names,
        position: block.line().map(|line| line.position),
    };
    lines
        .iter()
        .try_for_each(|line| addresses.add(compiler, line, &named))
}
