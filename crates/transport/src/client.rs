//! What every protocol knows of the other side of a connection. It carries no bytes: those are the
//! transport's, of which a client may have one (HTTP/1), share one with others, or none.
//!
//! The variables about it are for whatever speaks for a client ([`OfClient`]): a request, a
//! handshake.

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
use framework::door::{Handed, ListenerId};

/// A client that has connected.
pub struct Client {
    /// `$connection`: counts up over all connections of the process.
    pub serial: u64,
    /// The listening socket it came by.
    pub listener: ListenerId,
    /// When it was accepted, as [`engine::uptime`] counts, in nanoseconds: there are many idle
    /// clients.
    accepted_ns: u64,
    peer: OnceCell<Address>,
    /// What is known of few clients: many are idle.
    rare: OnceCell<Box<Rare>>,
    /// Whether `debug_connection` names it.
    debugged: OnceCell<bool>,
}

#[derive(Default)]
struct Rare {
    local: OnceCell<Address>,
    /// What a proxy has told of it.
    told: OnceCell<ProxyHeader>,
    /// The host that it has named in its handshake, as it wrote it.
    asked_name: OnceCell<Box<[u8]>>,
    /// What doors that have handed it over have taken until it ends.
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

    /// A client that has been accepted, with its addresses from the door that handed the connection
    /// over, if one did.
    pub fn arrived(listener: ListenerId, serial: u64, handed: Option<&mut Handed>) -> Client {
        let client = Client::new(listener, serial);
        let Some(handed) = handed else {
            return client;
        };
        if let Some(held) = handed.held.take() {
            let _ = client.rare().held.set(held);
        }
        client.between(handed.peer.clone(), handed.local.clone())
    }

    /// What doors that have handed it over have taken until it ends.
    pub fn into_held(self) -> Option<Box<dyn Any>> {
        self.rare.into_inner()?.held.into_inner()
    }

    /// Replaces the addresses of the transport by these two.
    #[must_use]
    pub fn between(self, peer: Address, local: Address) -> Client {
        self.local(|| local);
        Client {
            peer: OnceCell::from(peer),
            ..self
        }
    }

    fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// When it was accepted.
    pub fn started(&self) -> Instant {
        engine::moment(self.accepted())
    }

    /// When it was accepted, on the clock of [`engine::uptime`].
    pub fn accepted(&self) -> Duration {
        Duration::from_nanos(self.accepted_ns)
    }

    /// Its address, which the transport is asked for once.
    pub fn peer(&self, ask: impl FnOnce() -> Address) -> &Address {
        self.peer.get_or_init(ask)
    }

    /// Our end's address, which the transport is asked for once.
    pub fn local(&self, ask: impl FnOnce() -> Address) -> &Address {
        self.rare().local.get_or_init(ask)
    }

    /// The address that is listened on, as nginx's log names it before anything has been asked for.
    pub fn listening(&self) -> &str {
        self.listener.address()
    }

    /// What a proxy has told of it by the PROXY protocol.
    pub fn told(&self) -> Option<&ProxyHeader> {
        self.rare.get()?.told.get()
    }

    /// Keeps what a proxy tells, which comes before everything else. The first word stays: a
    /// connection has one header.
    pub fn tell(&self, told: Option<ProxyHeader>) {
        if let Some(told) = told {
            let _ = self.rare().told.set(told);
        }
    }

    /// The host that it has named in its handshake, as it wrote it. It is known before there is a
    /// session.
    pub fn asked_name(&self) -> Option<&[u8]> {
        self.rare.get()?.asked_name.get().map(|name| &**name)
    }

    /// Notes that name. The first one stays.
    pub fn set_asked_name(&self, name: &[u8]) {
        let _ = self.rare().asked_name.set(name.into());
    }

    /// Whether `debug_connection` names it; `ask` finds that out, once.
    #[inline]
    pub fn is_debugged(&self, ask: impl FnOnce() -> bool) -> bool {
        *self.debugged.get_or_init(ask)
    }
}

/// Whatever speaks for a client.
pub trait OfClient: Context {
    /// The client. [`Context::peer`] is its address, or another that a trusted proxy has told.
    fn client(&self) -> &Client;

    /// The address that the client connected to.
    fn local(&self) -> &Address;

    /// The session of TLS with it, once there is one.
    fn session(&self) -> Option<&Session>;

    /// What it has offered in its handshake, where that is kept.
    fn hello(&self) -> Option<&ClientHello> {
        self.session()?.hello.as_deref()
    }

    /// What the system knows of its TCP connection; `None` where it has none.
    fn tcp_info(&self) -> Option<TcpInfo>;
}

/// The variable of a name in lower case, without `$`.
pub fn find<C: OfClient>(name: &str) -> Option<BuiltinVariable<C>> {
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

/// Four or sixteen bytes; for a Unix socket its text.
fn binary_remote_addr<C: OfClient>(context: &mut C, out: &mut Vec<u8>) -> bool {
    match context.peer().ip() {
        Some(IpAddr::V4(ip)) => out.extend_from_slice(&ip.octets()),
        Some(IpAddr::V6(ip)) => out.extend_from_slice(&ip.octets()),
        None => append_address(context.peer(), out),
    }
    true
}

/// A number of `TCP_INFO`; not found for a Unix socket.
fn tcp_info<C: OfClient>(context: &C, number: fn(TcpInfo) -> u32, out: &mut Vec<u8>) -> bool {
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
            client.set_asked_name(b"Site");
            client.set_asked_name(b"other");
            assert_eq!(client.asked_name(), Some(&b"Site"[..]));
            assert_eq!(client.listening(), "10.0.0.1:80");

            let imagined = Client::new(id, 8).between(address(5), address(6));
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
