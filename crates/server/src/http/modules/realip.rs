//! `set_real_ip_from`: the client's address as a trusted proxy tells it takes the place of the proxy's own.
//!
//! <https://nginx.org/en/docs/http/ngx_http_realip_module.html>. Everything that asks for the client's address
//! afterwards (access rules, limits, `geo`, variables, logs) sees the new one; the connection's own stays in
//! `$realip_remote_addr`. As in nginx it is looked at when the head has been read, by the settings of the server, and, if
//! nothing came of that, once the location is known.

use std::sync::Arc;

use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, Word, parse};
use engine::net::Address;
use framework::compile::{Compiler, Feature};
use framework::network::Peers;
use variables::forwarded;

use crate::http::exchange::Exchange;
use crate::http::module::{Handle, Module, Ran};
use crate::http::plan_builder::PlanBuilder;
use crate::http::request::{Request, Step};
use crate::variables::Found;
use framework::address::append_address;
use variables::Context as _;
use variables::write::append_port;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

static SET_REAL_IP_FROM: Setting<Vec<Word>> = Setting::new(
    "set_real_ip_from",
    &["address | CIDR | name | unix:"],
    |setter| Ok(Peers::words(setter)),
)
.contexts(HSL)
.inherit(Inherit::List)
.manual(
    "A proxy that is trusted to tell the client's address: an address, a network, all addresses of a name, or \
     every client of a Unix socket.",
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
        let words = scope.written(&SET_REAL_IP_FROM)?.unwrap_or_default();
        Ok(RealIp {
            trusted: Peers::compile(&words, "set_real_ip_from", compiler.files)?,
            header: scope.get(&REAL_IP_HEADER)?,
            recursive: scope.get(&REAL_IP_RECURSIVE)?,
        })
    }
}

impl Module for RealIp {
    fn is_off(&self) -> bool {
        self.trusted.is_empty()
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.arrived(self);
        plan.preaccess(self);
    }
}

impl Handle for RealIp {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> Ran<'a> {
        apply(request, self);
        Ran::Now(Ok(Step::Next))
    }
}

/// Takes the client's address from the head, unless that has been done.
fn apply(request: &mut Request, real_ip: &RealIp) {
    if request.told_peer.is_some() || !real_ip.trusted.contains(request.connection.peer()) {
        return;
    }
    let lines = match &real_ip.header {
        Header::ForwardedFor => request.forwarded(),
        Header::ProxyProtocol => request
            .connection
            .client
            .told()
            .map(|told| &*told.source.address)
            .into_iter()
            .collect(),
        Header::Field(name) => {
            let mut lines = request.headers();
            let line = lines.find(|(field, _)| field.eq_ignore_ascii_case(name));
            line.into_iter().map(|(_, value)| value).collect()
        }
    };
    let own = request.connection.peer().clone();
    let trusted = |address: &Address| real_ip.trusted.contains(address);
    let mut told = forwarded::client(own.clone(), &lines, trusted, real_ip.recursive);
    if told == own {
        return;
    }
    if let (Header::ProxyProtocol, Address::Inet(address), Some(by_proxy)) =
        (&real_ip.header, &mut told, request.connection.client.told())
    {
        address.set_port(by_proxy.source.port);
    }
    request.told_peer = Some(Box::new(told));
}

/// The variable of a name in lower case, without `$`.
pub fn find(name: &str) -> Option<Found> {
    match name {
        "realip_remote_addr" => Some(Found::computed(realip_remote_addr)),
        "realip_remote_port" => Some(Found::computed(realip_remote_port)),
        _ => None,
    }
}

/// The connection's own end, whatever `realip` makes of it.
fn realip_remote_addr(request: &mut Request, out: &mut Vec<u8>) -> bool {
    append_address(request.connection.peer(), out);
    true
}

fn realip_remote_port(request: &mut Request, out: &mut Vec<u8>) -> bool {
    append_port(request.connection.peer(), out)
}
