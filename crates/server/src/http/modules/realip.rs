//! `set_real_ip_from`: the client's address as a trusted proxy tells it takes the place of the proxy's own.
//!
//! <https://nginx.org/en/docs/http/ngx_http_realip_module.html>. Everything that asks for the client's address
//! afterwards (access rules, limits, `geo`, variables, logs) sees the new one; the connection's own stays in
//! `$realip_remote_addr`. As in nginx it is looked at when the head has been read, by the settings of the server, and, if
//! nothing came of that, once the location is known.
//!
//! `real_ip_header proxy_protocol` finds nothing, as on a listener of nginx without `proxy_protocol`: no listener here
//! speaks the PROXY protocol yet.

use std::net::IpAddr;

use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Word, parse};
use engine::net::Address;

use crate::compile::{Compiler, Feature};
use crate::http::forwarded;
use crate::http::modules::access::{Cidr, stray_bits};
use crate::http::modules::upstream::address::Written;
use crate::http::request::Request;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

static SET_REAL_IP_FROM: Setting<Vec<Source>> = Setting::new(
    "set_real_ip_from",
    &["address | CIDR | name | unix:"],
    sources,
)
.contexts(HSL)
.inherit(Inherit::List)
.manual(
    "A proxy that is trusted to tell the client's address: an address, a network, all addresses of a name, or \
     whoever comes over a Unix socket.",
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
     `X-Forwarded-For` the last address counts.",
);

static REAL_IP_RECURSIVE: Setting<bool> =
    Setting::new("real_ip_recursive", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("off")
        .manual(
            "Whether addresses of trusted proxies within the field are passed over as well, so that the last one that \
             is not trusted counts.",
        );

/// Whom a line of `set_real_ip_from` trusts.
#[derive(Clone, Debug)]
enum Source {
    Unix,
    Network(Cidr),
    Name(Word),
}

fn sources(setter: &Setter<'_>) -> Result<Vec<Source>, Fault> {
    let source = |word: &Word| match &*word.bytes {
        b"unix:" => Source::Unix,
        text => match Cidr::parse(text) {
            Some((cidr, has_stray_bits)) => {
                if has_stray_bits {
                    setter.warn(word, stray_bits(word));
                }
                Source::Network(cidr)
            }
            None => Source::Name(word.clone()),
        },
    };
    let lines = setter.lines().iter();
    Ok(lines.map(|line| source(line.argument(0))).collect())
}

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
    networks: Box<[Cidr]>,
    unix: bool,
    header: Header,
    recursive: bool,
}

impl Feature for RealIp {
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &[&SET_REAL_IP_FROM, &REAL_IP_HEADER, &REAL_IP_RECURSIVE];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<RealIp, Fault> {
        let mut networks = Vec::new();
        let mut unix = false;
        for source in scope.written(&SET_REAL_IP_FROM)?.unwrap_or_default() {
            match source {
                Source::Unix => unix = true,
                Source::Network(cidr) => networks.push(cidr),
                Source::Name(word) => networks.extend(resolve(&word)?),
            }
        }
        Ok(RealIp {
            networks: networks.into(),
            unix,
            header: scope.get(&REAL_IP_HEADER)?,
            recursive: scope.get(&REAL_IP_RECURSIVE)?,
        })
    }
}

/// The addresses of a name, looked up now.
fn resolve(word: &Word) -> Result<Vec<Cidr>, Fault> {
    let written = Written {
        name: &word.bytes,
        port: None,
        unix: false,
    };
    let found = written.resolve(1).unwrap_or_default();
    let cidr = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => Cidr::V4 {
            address: ip.into(),
            bits: 32,
        },
        IpAddr::V6(ip) => Cidr::V6 {
            address: ip.into(),
            bits: 128,
        },
    };
    let cidrs: Vec<Cidr> = found.iter().filter_map(Address::ip).map(cidr).collect();
    if cidrs.is_empty() {
        let text = format!("host not found in set_real_ip_from \"{}\"", word.text());
        return Err(Fault::at(word, text));
    }
    Ok(cidrs)
}

impl RealIp {
    /// Whether nobody is trusted.
    pub fn is_off(&self) -> bool {
        self.networks.is_empty() && !self.unix
    }

    fn trusts(&self, address: &Address) -> bool {
        match address {
            Address::Unix(_) => self.unix,
            Address::Inet(socket) => {
                let ip = socket.ip().to_canonical();
                self.networks.iter().any(|network| network.contains(ip))
            }
        }
    }
}

/// Takes the client's address from the head, unless that has been done.
pub fn apply(request: &mut Request) {
    let Some(real_ip) = &request.plan.real_ip else {
        return;
    };
    if request.told_peer.is_some() || !real_ip.trusts(request.connection.peer()) {
        return;
    }
    let lines = match &real_ip.header {
        Header::ForwardedFor => forwarded::chain(request),
        Header::ProxyProtocol => return,
        Header::Field(name) => {
            let mut lines = request.headers();
            let line = lines.find(|(field, _)| field.eq_ignore_ascii_case(name));
            line.into_iter().map(|(_, value)| value).collect()
        }
    };
    let own = request.connection.peer().clone();
    let trusted = |address: &Address| real_ip.trusts(address);
    let told = forwarded::client(own.clone(), &lines, trusted, real_ip.recursive);
    if told != own {
        request.told_peer = Some(Box::new(told));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_it_trusts() {
        let real_ip = RealIp {
            networks: [Cidr::parse(b"10.0.0.0/8").unwrap().0].into(),
            unix: true,
            header: Header::ForwardedFor,
            recursive: false,
        };
        let trusts =
            |ip: &str| real_ip.trusts(&Address::Inet((ip.parse::<IpAddr>().unwrap(), 80).into()));
        assert!(trusts("10.1.2.3") && trusts("::ffff:10.1.2.3"));
        assert!(!trusts("11.1.2.3") && !trusts("::1"));
        assert!(real_ip.trusts(&Address::Unix("/a".into())));
    }

    #[test]
    fn names_that_are_none() {
        let word = Word {
            bytes: b"10.0.0.0/33".as_slice().into(),
            quoted: false,
            position: Default::default(),
        };
        let text = "host not found in set_real_ip_from \"10.0.0.0/33\"";
        assert_eq!(resolve(&word).unwrap_err().message, text);
    }
}
