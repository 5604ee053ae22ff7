//! `listen` in a `server` block of HTTP: the addresses of a server, and the options that only HTTP
//! has.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#listen>.

use std::net::{Ipv4Addr, SocketAddr};

use conf::{Arity, Contexts, Fault, Inherit, Line, ScopeRef, Setter, Setting, Word};
use engine::net::{Address, SocketKind};
use framework::compile::Compiler;
use transport::listen::{self, ListenLine, OptionSupport, Protocols};

use crate::config::http3::HTTP3_NOT_YET;

/// Declares the directive `listen`.
pub static LISTEN: Setting<Vec<ListenLine<HttpOptions>>> = Setting::new(
    "listen",
    &[
        "address[:port[-port]] [options]",
        "port [options]",
        "unix:path [options]",
    ],
    listens,
)
.contexts(Contexts::SERVER)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual(
    "An address that the server is reached at. Options: default_server, ssl, bind, backlog=, \
     rcvbuf=, sndbuf=, deferred, fastopen=, reuseport, ipv6only=on|off, \
     so_keepalive=on|off|idle:interval:count; proxy_protocol: connections begin with a header of \
     the PROXY protocol, version 1 or 2; quic: for HTTP/3, which is not there yet, so that nothing \
     listens.",
);

/// One address of a `listen` line.
pub type Listen = listen::Listen<HttpOptions>;

/// The options that only HTTP has.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpOptions {
    /// The parameter `default_server`: the server is the default of its address.
    pub default_server: bool,
    /// The protocols that clients speak beneath HTTP, such as TLS or the PROXY protocol.
    pub protocols: Protocols,
}

/// The default address of a server without `listen`: port 80, or 8000 without privileges.
pub fn default_listen(privileged: bool) -> Listen {
    let port = if privileged { 80 } else { 8000 };
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    Listen::new(Address::Inet(address), None)
}

/// All addresses of a `server` block, or the default address without `listen`.
///
/// # Errors
/// An invalid line, a duplicate address, or a host that cannot be resolved.
pub fn of_server(compiler: &Compiler<'_>, server: ScopeRef<'_>) -> Result<Vec<Listen>, Fault> {
    match server.own(&LISTEN)? {
        Some(lines) => {
            let mut all = listen::addresses(compiler, lines)?;
            // HTTP/3 is not implemented, so no socket is opened for `quic`.
            all.retain(|one| one.options.carries == SocketKind::Streams);
            Ok(all)
        }
        None => Ok(vec![default_listen(compiler.privileged)]),
    }
}

fn listens(setter: &Setter<'_>) -> Result<Vec<ListenLine<HttpOptions>>, Fault> {
    let mut all = Vec::new();
    for line in setter.lines() {
        if let Some(word) = line
            .args
            .iter()
            .skip(1)
            .find(|word| &*word.bytes == b"http2")
        {
            setter.warn(
                word,
                "the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead",
            );
        }
        let quic = |word: &&Word| &*word.bytes == b"quic";
        if let Some(word) = line.args.iter().skip(1).find(quic) {
            setter.warn_once(word, HTTP3_NOT_YET);
        }
        let written = listen::line(line, HTTP_PORT, option)?;
        if written.listen.options.carries == SocketKind::Datagrams {
            check_quic(&written.listen, line)?;
        }
        all.push(written);
    }
    let is_quic =
        |one: &ListenLine<HttpOptions>| one.listen.options.carries == SocketKind::Datagrams;
    if !all.is_empty() && all.iter().all(is_quic) {
        let text = "no client reaches this server: it listens with \"quic\" alone";
        setter.warn(&setter.first().name, text);
    }
    Ok(all)
}

/// The port of a `listen` line that names only an address.
const HTTP_PORT: u16 = 80;

/// Parses an option of `listen` that only HTTP has.
fn option(listen: &mut Listen, name: &str) -> OptionSupport {
    match name {
        "default_server" | "default" => listen.own.default_server = true,
        "proxy_protocol" => listen.own.protocols.proxy_protocol = true,
        "ssl" => listen.own.protocols.ssl = true,
        // `listens` warns that the option is deprecated.
        "http2" => listen.own.protocols.http2 = true,
        // `listens` warns that no socket is opened.
        "quic" => listen.options.carries = SocketKind::Datagrams,
        _ => return OptionSupport::Unknown,
    }
    OptionSupport::Yes
}

/// Refuses options that have no meaning for UDP, as nginx does.
fn check_quic(listen: &Listen, line: &Line) -> Result<(), Fault> {
    let is_written = |name: &str| {
        let mut names = line.args.iter().skip(1).map(Word::text);
        names.any(|text| text.split('=').next() == Some(name))
    };
    let streams = [
        "fastopen",
        "backlog",
        "deferred",
        "ssl",
        "http2",
        "so_keepalive",
    ];
    let mut refused = streams.into_iter().chain(["proxy_protocol"]);
    match refused.find(|name| is_written(name)) {
        Some(name) => Err(listen.fault(format!(
            "\"listen\" directive \"{name}\" parameter is incompatible with \"quic\""
        ))),
        None => Ok(()),
    }
}
