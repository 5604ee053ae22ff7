//! `set_real_ip_from`: the client's address as a trusted proxy tells it takes the place of the
//! proxy's own.
//!
//! <https://nginx.org/en/docs/http/ngx_http_realip_module.html>. Everything that asks for the
//! client's address afterwards (access rules, limits, `geo`, variables, logs) sees the new one; the
//! connection's own stays in `$realip_remote_addr`. When it is looked at is a protocol's business.

use std::ops::Deref;

use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, Word, parse};
use engine::net::Address;
use framework::address::append_address;
use framework::compile::{Compiler, Feature};
use framework::network::Peers;
use transport::client::OfClient;
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

/// Where the address stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Header {
    ForwardedFor,
    ProxyProtocol,
    /// The first line of this field.
    Field(Box<[u8]>),
}

/// The directives as a scope sees them.
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

/// `set_real_ip_from` where clients are told by the PROXY protocol alone.
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

/// What there is to know of contexts whose clients may be known by a proxy alone.
pub trait ByProxy<C: OfClient>: 'static {
    /// The connection's own other end, whatever has been told.
    fn own_peer(context: &C) -> &Address;

    /// The first line of a field in which proxies may tell; none where a protocol has no fields.
    fn field<'a>(context: &'a C, name: &[u8]) -> Option<&'a [u8]>;

    /// Whether an address has been told.
    fn is_told(context: &C) -> bool;

    /// Takes the address that has been told for the client's.
    fn tell(context: &mut C, peer: Address);
}

impl RealIp {
    /// Whether no proxy is trusted.
    pub fn is_off(&self) -> bool {
        self.trusted.is_empty()
    }

    /// Takes the client's address from what a trusted proxy tells, unless that has been done.
    pub fn apply<C: OfClient, P: ByProxy<C>>(&self, context: &mut C) {
        if P::is_told(context) || !self.trusted.contains(P::own_peer(context)) {
            return;
        }
        let by_proxy = context.client().told();
        let lines = match &self.header {
            Header::ForwardedFor => context.forwarded(),
            Header::ProxyProtocol => by_proxy
                .map(|told| &*told.source.address)
                .into_iter()
                .collect(),
            Header::Field(name) => P::field(context, name).into_iter().collect(),
        };
        let own = P::own_peer(context).clone();
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

/// The variable of a name in lower case, without `$`.
pub fn find<C: OfClient, P: ByProxy<C>>(name: &str) -> Option<BuiltinVariable<C>> {
    match name {
        "realip_remote_addr" => Some(BuiltinVariable::computed(|context, out| {
            append_address(P::own_peer(context), out);
            true
        })),
        "realip_remote_port" => Some(BuiltinVariable::computed(|context, out| {
            append_port(P::own_peer(context), out)
        })),
        _ => None,
    }
}
