//! The virtual servers of each listening address.
//!
//! As in nginx, if `listen` lines name both a wildcard and single addresses with the same port, one
//! socket accepts connections for all of them, and the connection's local address chooses the
//! servers. An address with `bind` gets a socket of its own.

use std::sync::Arc;

use engine::net::{Address, ListenOptions};
use proto::h1;
use rules::server_name;
use transport::listen::{ListenerId, ProtocolAgreement, Protocols};

use crate::config::listen::Listen;
use crate::config::plan::Server;
use crate::request::Request;

/// The servers of an address by name.
pub type ServerNames = server_name::ServerNames<Request, Server>;

/// A server name whose regex hit a limit.
pub type UndecidedName = server_name::UndecidedName<Request>;

/// The virtual servers of one address.
pub struct AddressServers {
    /// The server of requests whose host matches no name.
    pub default: Arc<Server>,
    /// The servers by name.
    pub names: ServerNames,
    /// Every name leads to the default server, so that no name needs to be looked up.
    pub is_single: bool,
    /// The name that a client asks for matters: there are several servers, or a regex with
    /// captures.
    pub is_name_significant: bool,
    /// Some server has other limits for heads than the default server. The limits may then change
    /// within a head, after the host has been parsed.
    pub head_limits_differ: bool,
    /// The highest `max_headers` of all servers.
    pub headers_max: usize,
    /// The protocols beneath HTTP.
    pub protocols: Protocols,
}

impl AddressServers {
    /// All servers of the address, in the order of the file.
    pub fn all(&self) -> Vec<Arc<Server>> {
        let mut all = vec![Arc::clone(&self.default)];
        all.extend(self.names.servers().map(Arc::clone));
        all.sort_by_key(|server| server.plan.id);
        all.dedup_by_key(|server| server.plan.id);
        all
    }

    /// The server for a request's host, or the default server.
    ///
    /// # Errors
    /// If a regex hit a limit.
    pub fn server_for(
        &self,
        host: &[u8],
        request: &mut Request,
    ) -> Result<Arc<Server>, UndecidedName> {
        let found = self.names.find(host, request)?;
        Ok(found.unwrap_or_else(|| Arc::clone(&self.default)))
    }

    /// The server whose limits apply to the rest of a head that names this host (compared without
    /// case). `None` if every name leads to the default server, or a regex hit a limit.
    pub fn reader_of(&self, host: &[u8]) -> Option<Arc<Server>> {
        if self.is_single {
            return None;
        }
        let named = self.names.find_name(&host.to_ascii_lowercase()).ok()?;
        Some(named.unwrap_or_else(|| Arc::clone(&self.default)))
    }

    /// Whether the name matters and the server of this host (compared without case) asks for client
    /// certificates. False if a regex hit a limit.
    pub fn wants_certificates(&self, host: &[u8]) -> bool {
        if !self.is_name_significant {
            return false;
        }
        let named = self.names.find_name(&host.to_ascii_lowercase());
        named.is_ok_and(|named| {
            named
                .as_ref()
                .unwrap_or(&self.default)
                .verify_client
                .is_some()
        })
    }

    /// The limits for the rest of a head that names this host; `None` if no server has other limits
    /// than the default server.
    pub fn head_limits_after(&self, host: &[u8]) -> Option<h1::Limits> {
        if !self.head_limits_differ {
            return None;
        }
        self.reader_of(host).map(|server| server.core.head_limits())
    }
}

/// One listening socket and the servers of its addresses.
pub struct Binding {
    /// The identity of the binding.
    pub id: ListenerId,
    /// The options with which the socket is opened.
    pub options: ListenOptions,
    /// The servers of connections to an address that is not in `specific`.
    pub servers: Arc<AddressServers>,
    /// The servers of single addresses that share the socket.
    pub specific: Vec<(Address, Arc<AddressServers>)>,
}

impl Binding {
    /// The servers of a connection whose local address is `local`.
    pub fn servers_for(&self, local: &Address) -> Arc<AddressServers> {
        let found = self.specific.iter().find(|(address, _)| address == local);
        Arc::clone(found.map_or(&self.servers, |(_, servers)| servers))
    }
}

/// An address and its servers, while the configuration's servers are being collected.
pub struct AddressGroup {
    /// The options of `listen` in force for the address.
    pub listen: Listen,
    /// The default server: the one with `default_server`, else the first.
    pub default: Arc<Server>,
    /// The servers by name.
    pub names: ServerNames,
    /// Whether the `listen` lines of the address agree about protocols.
    pub agreement: ProtocolAgreement,
    /// Every server of the address with the line of its block, in the order of the file.
    pub servers: Vec<(Arc<Server>, Option<conf::Position>)>,
    /// Warnings about duplicate names. nginx builds its table of names, and so notices duplicates,
    /// only if there are several servers or a regular expression with captures.
    pub conflicts: Vec<String>,
}

impl AddressGroup {
    /// Whether the name that a client asks for matters.
    pub fn is_name_significant(&self) -> bool {
        self.servers.len() > 1 || self.names.may_capture()
    }
}

/// The addresses in nginx's order: by port in the order of the file; within a port, addresses with
/// a socket of their own first and `*` last.
pub fn in_order(gathered: &[AddressGroup]) -> Vec<&AddressGroup> {
    let port = |one: &AddressGroup| match &one.listen.options.address {
        Address::Inet(at) => Some((at.is_ipv4(), at.port())),
        _ => None,
    };
    let is_any = |one: &AddressGroup| match &one.listen.options.address {
        Address::Inet(at) => at.ip().is_unspecified(),
        _ => false,
    };
    let first = |one: &AddressGroup| gathered.iter().position(|other| port(other) == port(one));
    let mut all: Vec<&AddressGroup> = gathered.iter().collect();
    all.sort_by_cached_key(|one| (first(one), is_any(one), !one.listen.bind));
    all
}

/// Groups addresses that share a socket into bindings.
pub fn bindings(gathered: Vec<AddressGroup>) -> Vec<Binding> {
    let wildcard_ports: Vec<(u16, bool)> = gathered
        .iter()
        .filter_map(|g| match &g.listen.options.address {
            Address::Inet(at) if at.ip().is_unspecified() => Some((at.port(), at.is_ipv4())),
            _ => None,
        })
        .collect();
    let mut bindings: Vec<Binding> = Vec::new();
    let mut specific = Vec::new();
    for mut one in gathered {
        one.names.finish();
        let limits = one.default.core.head_limits();
        let differs = |server: &Arc<Server>| server.core.head_limits() != limits;
        let head_limits_differ = one.names.servers().any(differs);
        let most = |server: &Arc<Server>| server.core.head_limits().headers_max;
        let headers_max = one.names.servers().map(most).max().unwrap_or_default();
        let servers = Arc::new(AddressServers {
            is_name_significant: one.is_name_significant(),
            is_single: !one.is_name_significant() || one.names.all_lead_to(&one.default),
            head_limits_differ,
            headers_max: headers_max.max(limits.headers_max),
            default: one.default,
            names: one.names,
            protocols: one.listen.own.protocols,
        });
        let shared = match &one.listen.options.address {
            Address::Inet(at) => {
                !at.ip().is_unspecified()
                    && !one.listen.bind
                    && wildcard_ports.contains(&(at.port(), at.is_ipv4()))
            }
            Address::Unix(_) => false,
        };
        if shared {
            specific.push((one.listen.options.address, servers));
            continue;
        }
        let mut options = one.listen.options;
        // Accepted connections inherit the option, which saves a system call for each.
        options.nodelay = servers.default.plan.core.tcp_nodelay;
        let id = ListenerId::of_address(&options.address, options.carries);
        bindings.push(Binding {
            id,
            options,
            servers,
            specific: Vec::new(),
        });
    }
    for (address, servers) in specific {
        let Address::Inet(at) = &address else {
            continue;
        };
        let wildcard = bindings.iter_mut().find(|binding| {
            matches!(&binding.options.address, Address::Inet(any)
                if any.port() == at.port() && any.is_ipv4() == at.is_ipv4() && any.ip().is_unspecified())
        });
        if let Some(binding) = wildcard {
            binding.specific.push((address, servers));
        }
    }
    bindings
}
