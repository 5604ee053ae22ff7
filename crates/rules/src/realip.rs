//! `set_real_ip_from`: replaces the address of a trusted proxy by the client's address that the
//! proxy has sent.
//!
//! <https://nginx.org/en/docs/http/ngx_http_realip_module.html>. Later users of the client's
//! address (access rules, limits, `geo`, variables, logs) get the new address;
//! `$realip_remote_addr` is still the address of the connection. The protocol decides when the
//! address is replaced.

use std::ops::Deref;

use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, Word, parse};
use engine::net::Address;
use framework::address::append_address;
use framework::compile::{Compiler, Feature};
use framework::network::Peers;
use transport::client::HasClient;
use variables::write::append_port;
use variables::{BuiltinVariable, forwarded};

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

static SET_REAL_IP_FROM: Setting<Vec<Word>> = Setting::new(
    "set_real_ip_from",
    &["address | CIDR | name | unix:"],
    |setter| Ok(Peers::words(setter)),
)
.contexts(HSL.or(Contexts::STREAM).or(Contexts::STREAM_SERVER))
.inherit(Inherit::List)
.manual(
    "A proxy that is trusted to tell the client's address: an address, a network, all addresses of a name, or \
     every client of a Unix socket. In `stream` it tells by the PROXY protocol.",
);

static REAL_IP_HEADER: Setting<Header> = Setting::new(
    "real_ip_header",
    &["field | X-Real-IP | X-Forwarded-For | proxy_protocol"],
    |setter| {
        Ok(match &*setter.word()?.bytes {
            b"X-Forwarded-For" => Header::ForwardedFor,
            b"proxy_protocol" => Header::ProxyProtocol,
            name => Header::Field(name.into()),
        })
    },
)
.contexts(HSL)
.arity(Arity::exactly(1))
.default("X-Real-IP")
.manual(
    "The field of the request in which a trusted proxy tells the client's address, perhaps with a port. In \
     `X-Forwarded-For` the last address counts. `proxy_protocol` takes address and port of the PROXY protocol \
     instead, where `listen` has it.",
);

static REAL_IP_RECURSIVE: Setting<bool> =
    Setting::new("real_ip_recursive", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("off")
        .manual(
            "Whether addresses of trusted proxies within the field are passed over as well, so that the last one that \
             is not trusted counts.",
        );

/// The source of the client's address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Header {
    ForwardedFor,
    ProxyProtocol,
    /// The first field with this name.
    Field(Box<[u8]>),
}

/// The settings of a scope.
#[derive(Debug)]
pub struct RealIp {
    trusted: Peers,
    header: Header,
    recursive: bool,
}

impl Feature for RealIp {
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &[&SET_REAL_IP_FROM, &REAL_IP_HEADER, &REAL_IP_RECURSIVE];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<RealIp, Fault> {
        Ok(RealIp {
            trusted: trusted(compiler, scope)?,
            header: scope.get(&REAL_IP_HEADER)?,
            recursive: scope.get(&REAL_IP_RECURSIVE)?,
        })
    }
}

/// `set_real_ip_from` for protocols in which only the PROXY protocol can send an address.
#[derive(Debug)]
pub struct ByHeader(RealIp);

impl Feature for ByHeader {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&SET_REAL_IP_FROM];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<ByHeader, Fault> {
        Ok(ByHeader(RealIp {
            trusted: trusted(compiler, scope)?,
            header: Header::ProxyProtocol,
            recursive: false,
        }))
    }
}

impl Deref for ByHeader {
    type Target = RealIp;

    fn deref(&self) -> &RealIp {
        &self.0
    }
}

fn trusted(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Peers, Fault> {
    let words = scope.written(&SET_REAL_IP_FROM)?.unwrap_or_default();
    Peers::compile(&words, "set_real_ip_from", compiler.files)
}

/// Access to the addresses of a context.
pub trait ByProxy<C: HasClient>: 'static {
    /// The address of the connection's peer, which is never replaced.
    fn connection_peer(context: &C) -> &Address;

    /// The value of the first header field with this name; `None` for protocols without fields.
    fn field<'a>(context: &'a C, name: &[u8]) -> Option<&'a [u8]>;

    /// Whether the address has been replaced.
    fn is_realip(context: &C) -> bool;

    /// Replaces the client's address.
    fn tell(context: &mut C, peer: Address);
}

impl RealIp {
    /// Whether no proxy is trusted.
    pub fn is_off(&self) -> bool {
        self.trusted.is_empty()
    }

    /// Replaces the client's address if the connection's peer is trusted. Has no effect if the
    /// address has been replaced already.
    pub fn apply<C: HasClient, P: ByProxy<C>>(&self, context: &mut C) {
        if P::is_realip(context) || !self.trusted.contains(P::connection_peer(context)) {
            return;
        }
        let by_proxy = context.client().proxy_header();
        let lines = match &self.header {
            Header::ForwardedFor => context.forwarded(),
            Header::ProxyProtocol => by_proxy
                .map(|told| &*told.source.address)
                .into_iter()
                .collect(),
            Header::Field(name) => P::field(context, name).into_iter().collect(),
        };
        let own = P::connection_peer(context).clone();
        let trusted = |address: &Address| self.trusted.contains(address);
        let mut told = forwarded::client(own.clone(), &lines, trusted, self.recursive);
        if told == own {
            return;
        }
        if let (Header::ProxyProtocol, Address::Inet(address), Some(by_proxy)) =
            (&self.header, &mut told, by_proxy)
        {
            address.set_port(by_proxy.source.port);
        }
        P::tell(context, told);
    }
}

/// The built-in variable of a name in lower case, without `$`.
pub fn find<C: HasClient, P: ByProxy<C>>(name: &str) -> Option<BuiltinVariable<C>> {
    match name {
        "realip_remote_addr" => Some(BuiltinVariable::computed(|context, out| {
            append_address(P::connection_peer(context), out);
            true
        })),
        "realip_remote_port" => Some(BuiltinVariable::computed(|context, out| {
            append_port(P::connection_peer(context), out)
        })),
        _ => None,
    }
}
