//! The peer of a connection as every protocol knows it. A client carries no bytes: bytes are the
//! transport's business, and a client may have a transport of its own (HTTP/1), share one with
//! others, or have none.
//!
//! The variables about a client are available to every type that acts for one ([`HasClient`]): a
//! request, a handshake.

use std::any::Any;
use std::cell::OnceCell;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use engine::net::{Address, TcpInfo};
use framework::address::append_address;
use proto::tls::ClientHello;
use variables::write::{append_port, decimal, seconds};
use variables::{BuiltinVariable, Context, Evaluate};

use crate::proxy_protocol::ProxyHeader;
use crate::tls::session::Session;
use framework::connection_handler::{HandoverInfo, ListenerId};

/// A connected client.
pub struct Client {
    /// `$connection`: a serial number over all connections of the process.
    pub serial: u64,
    /// The listening socket that accepted the connection.
    pub listener: ListenerId,
    /// Time of accept, in nanoseconds on the clock of [`engine::uptime`]: small, since there are
    /// many idle clients.
    accepted_ns: u64,
    /// The client's address, once it was requested.
    peer: OnceCell<Address>,
    /// Data that few clients have, boxed because many clients are idle.
    rare: OnceCell<Box<Rare>>,
    /// Whether `debug_connection` lists the client's address.
    debugged: OnceCell<bool>,
}

#[derive(Default)]
struct Rare {
    local: OnceCell<Address>,
    /// The PROXY protocol header.
    told: OnceCell<ProxyHeader>,
    /// The host name of the TLS handshake (SNI), as the client wrote it.
    sni_name: OnceCell<Box<[u8]>>,
    /// Resources of the connection handlers that handed the connection over, held until it ends.
    held: OnceCell<Box<dyn Any>>,
}

impl Client {
    /// A client that has just been accepted.
    pub fn new(listener: ListenerId, serial: u64) -> Client {
        Client {
            serial,
            listener,
            accepted_ns: u64::try_from(engine::uptime().as_nanos()).unwrap_or(u64::MAX),
            peer: OnceCell::new(),
            rare: OnceCell::new(),
            debugged: OnceCell::new(),
        }
    }

    /// An accepted client, with the addresses from the connection handler that handed the
    /// connection over, if any.
    pub fn arrived(listener: ListenerId, serial: u64, handed: Option<&mut HandoverInfo>) -> Client {
        let client = Client::new(listener, serial);
        let Some(handed) = handed else {
            return client;
        };
        if let Some(held) = handed.held.take() {
            let _ = client.rare().held.set(held);
        }
        client.with_addresses(handed.peer.clone(), handed.local.clone())
    }

    /// The resources of the connection handlers that handed the connection over, held until it
    /// ends.
    pub fn into_held(self) -> Option<Box<dyn Any>> {
        self.rare.into_inner()?.held.into_inner()
    }

    /// Replaces the addresses of the transport with these.
    #[must_use]
    pub fn with_addresses(self, peer: Address, local: Address) -> Client {
        self.local(|| local);
        Client {
            peer: OnceCell::from(peer),
            ..self
        }
    }

    fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// The time of accept.
    pub fn started(&self) -> Instant {
        engine::moment(self.accepted())
    }

    /// The time of accept, on the clock of [`engine::uptime`].
    pub fn accepted(&self) -> Duration {
        Duration::from_nanos(self.accepted_ns)
    }

    /// The client's address; the transport is asked for it once.
    pub fn peer(&self, ask: impl FnOnce() -> Address) -> &Address {
        self.peer.get_or_init(ask)
    }

    /// The local address; the transport is asked for it once.
    pub fn local(&self, ask: impl FnOnce() -> Address) -> &Address {
        self.rare().local.get_or_init(ask)
    }

    /// The listening address, as nginx's log shows it before the first request.
    pub fn listening(&self) -> &str {
        self.listener.address()
    }

    /// The PROXY protocol header; `None` if the connection began without one.
    pub fn proxy_header(&self) -> Option<&ProxyHeader> {
        self.rare.get()?.told.get()
    }

    /// Stores the PROXY protocol header. A second header is ignored: a connection has one.
    pub fn set_proxy_header(&self, told: Option<ProxyHeader>) {
        if let Some(told) = told {
            let _ = self.rare().told.set(told);
        }
    }

    /// The host name of the TLS handshake (SNI), as the client wrote it; known before the session
    /// exists.
    pub fn sni_name(&self) -> Option<&[u8]> {
        self.rare.get()?.sni_name.get().map(|name| &**name)
    }

    /// Stores the host name of the TLS handshake. A second name is ignored.
    pub fn set_sni_name(&self, name: &[u8]) {
        let _ = self.rare().sni_name.set(name.into());
    }

    /// Whether `debug_connection` lists the client's address; `ask` is called at most once.
    #[inline]
    pub fn is_debugged(&self, ask: impl FnOnce() -> bool) -> bool {
        *self.debugged.get_or_init(ask)
    }
}

/// A type that acts for a client: a request, a handshake.
pub trait HasClient: Context {
    /// The client. [`Context::peer`] is its address, or the one that a trusted proxy reported.
    fn client(&self) -> &Client;

    /// The address that the client connected to.
    fn local(&self) -> &Address;

    /// The TLS session with the client, once it exists.
    fn session(&self) -> Option<&Session>;

    /// The client's ClientHello, if it is kept.
    fn hello(&self) -> Option<&ClientHello> {
        self.session()?.hello.as_deref()
    }

    /// `TCP_INFO` of the client's connection; `None` without a TCP connection.
    fn tcp_info(&self) -> Option<TcpInfo>;
}

/// The variable with this name (in lower case, without `$`).
pub fn find<C: HasClient>(name: &str) -> Option<BuiltinVariable<C>> {
    let evaluate: Evaluate<C> = match name {
        "binary_remote_addr" => binary_remote_addr,
        "connection" => |context, out| decimal(context.client().serial, out),
        "connection_time" => |context, out| {
            let started = context.client().started();
            seconds(engine::now().saturating_duration_since(started), out)
        },
        "remote_addr" => |context, out| {
            append_address(context.peer(), out);
            true
        },
        "remote_port" => |context, out| append_port(context.peer(), out),
        "server_addr" => |context, out| {
            append_address(context.local(), out);
            true
        },
        "server_port" => |context, out| append_port(context.local(), out),
        "tcpinfo_rcv_space" => |context, out| tcp_info(context, |info| info.rcv_space, out),
        "tcpinfo_rtt" => |context, out| tcp_info(context, |info| info.rtt, out),
        "tcpinfo_rttvar" => |context, out| tcp_info(context, |info| info.rttvar, out),
        "tcpinfo_snd_cwnd" => |context, out| tcp_info(context, |info| info.snd_cwnd, out),
        _ => return None,
    };
    Some(BuiltinVariable::computed(evaluate))
}

/// The address as four or sixteen bytes; the path of a Unix socket.
fn binary_remote_addr<C: HasClient>(context: &mut C, out: &mut Vec<u8>) -> bool {
    match context.peer().ip() {
        Some(IpAddr::V4(ip)) => out.extend_from_slice(&ip.octets()),
        Some(IpAddr::V6(ip)) => out.extend_from_slice(&ip.octets()),
        None => append_address(context.peer(), out),
    }
    true
}

/// A field of `TCP_INFO`; not found for a Unix socket.
fn tcp_info<C: HasClient>(context: &C, number: fn(TcpInfo) -> u32, out: &mut Vec<u8>) -> bool {
    let info = context.tcp_info();
    info.is_some_and(|info| decimal(number(info).into(), out))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use engine::sim::{self, Faults};

    use super::*;

    #[test]
    fn what_a_client_is_is_found_out_once() {
        let mut runtime = sim::runtime(1, Faults::default(), engine::Settings::default()).unwrap();
        runtime.block_on(async {
            let id = ListenerId(Arc::new("listen 10.0.0.1:80".to_owned()));
            let client = Client::new(id.clone(), 7);
            let asked = Cell::new(0);
            let address = |last| {
                asked.set(asked.get() + 1);
                Address::Inet(([10, 0, 0, last], 80).into())
            };
            assert_eq!(*client.peer(|| address(2)), address(2));
            assert_eq!(*client.peer(|| address(3)), address(2));
            assert_eq!(*client.local(|| address(1)), address(1));
            assert_eq!(*client.local(|| address(4)), address(1));
            assert_eq!(asked.get(), 6, "four times here, twice by it");
            assert!(client.is_debugged(|| true));
            assert!(
                client.is_debugged(|| false),
                "a reload changes nothing for it"
            );
            client.set_sni_name(b"Site");
            client.set_sni_name(b"other");
            assert_eq!(client.sni_name(), Some(&b"Site"[..]));
            assert_eq!(client.listening(), "10.0.0.1:80");

            let imagined = Client::new(id, 8).with_addresses(address(5), address(6));
            assert_eq!(*imagined.peer(|| address(9)), address(5));
            assert_eq!(*imagined.local(|| address(9)), address(6));
        });
    }

    #[test]
    fn unix_sockets() {
        let mut out = Vec::new();
        append_address(&Address::Unix("/run/site.sock".into()), &mut out);
        assert!(append_port(
            &Address::Unix("/run/site.sock".into()),
            &mut out
        ));
        assert_eq!(out, b"unix:/run/site.sock");
        out.clear();
        append_address(&Address::Unix(Default::default()), &mut out);
        assert_eq!(out, b"unix:");
    }
}
