//! The virtual servers behind each address that is listened on.
//!
//! As in nginx, where a port is listened on by every address and by single ones, one socket takes
//! them all and the connection's own address decides, unless `bind` asks for a socket of its own.

use std::sync::Arc;

use engine::net::{Address, ListenOptions};
use proto::h1;
use rules::server_name;
use transport::listen::{Agreement, ListenerId, Protocols};

use crate::config::listen::Listen;
use crate::config::plan::Server;
use crate::request::Request;

/// The servers of an address by name.
pub type ServerNames = server_name::ServerNames<Request, Server>;

/// A name of a server that could not be decided.
pub type UndecidedName = server_name::UndecidedName<Request>;

/// The virtual servers of one address.
pub struct AddressServers {
    /// Serves where no name matches.
    pub default: Arc<Server>,
    /// Which names lead to which server.
    pub names: ServerNames,
    /// No name leads anywhere but to the default server, or none may: none need be looked up.
    pub is_single: bool,
    /// It makes a difference which name a client asks for: there are several servers, or a regex
    /// that captures.
    pub are_names_looked_up: bool,
    /// Some server reads heads by other rules than the default one, so that they may change within
    /// a head, with the name.
    pub head_limits_differ: bool,
    /// The most fields that any server takes (`max_headers`).
    pub headers_max: usize,
    /// What clients speak before HTTP.
    pub protocols: Protocols,
}

impl AddressServers {
    /// Every server of the address, in the order of the file.
    pub fn all(&self) -> Vec<Arc<Server>> {
        let mut all = vec![Arc::clone(&self.default)];
        all.extend(self.names.servers().map(Arc::clone));
        all.sort_by_key(|server| server.plan.id);
        all.dedup_by_key(|server| server.plan.id);
        all
    }

    /// The server for a request's host, or the default.
    ///
    /// # Errors
    /// Whether a regex fits could not be decided.
    pub fn server_for(
        &self,
        host: &[u8],
        request: &mut Request,
    ) -> Result<Arc<Server>, UndecidedName> {
        let found = self.names.find(host, request)?;
        Ok(found.unwrap_or_else(|| Arc::clone(&self.default)))
    }

    /// The server whose rules hold for the rest of a head that has named this host, in whatever
    /// case. `None` where that changes nothing, or cannot be decided.
    pub fn reader_of(&self, host: &[u8]) -> Option<Arc<Server>> {
        if self.is_single {
            return None;
        }
        let named = self.names.find_name(&host.to_ascii_lowercase()).ok()?;
        Some(named.unwrap_or_else(|| Arc::clone(&self.default)))
    }

    /// Whether it makes a difference which name a client asks for, and the server of this host, in
    /// whatever case, asks for certificates. Not where the server cannot be decided.
    pub fn wants_certificates(&self, host: &[u8]) -> bool {
        if !self.are_names_looked_up {
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

    /// The rules for the rest of a head that has named this host, where they may be others.
    pub fn head_limits_after(&self, host: &[u8]) -> Option<h1::Limits> {
        if !self.head_limits_differ {
            return None;
        }
        self.reader_of(host).map(|server| server.core.head_limits())
    }
}

/// One listening socket and what is behind it.
pub struct Binding {
    /// The identity of the binding.
    pub id: ListenerId,
    /// How to open it.
    pub options: ListenOptions,
    /// Servers for connections to any address that is not among `specific`.
    pub servers: Arc<AddressServers>,
    /// Servers of single addresses that the same socket takes.
    pub specific: Vec<(Address, Arc<AddressServers>)>,
}

impl Binding {
    /// The servers for a connection whose own end is `local`.
    pub fn servers_for(&self, local: &Address) -> Arc<AddressServers> {
        let found = self.specific.iter().find(|(address, _)| address == local);
        Arc::clone(found.map_or(&self.servers, |(_, servers)| servers))
    }
}

/// An address with its lines, while all servers are gathered.
pub struct AddressGroup {
    /// The options of `listen` in force for the address.
    pub listen: Listen,
    /// The default server: the one that says so, else the first.
    pub default: Arc<Server>,
    /// Which names lead to which server.
    pub names: ServerNames,
    /// Whether its lines agree about protocols.
    pub agreement: Agreement,
    /// Every server of the address with the line of its block, in the order of the file.
    pub servers: Vec<(Arc<Server>, Option<conf::Position>)>,
    /// What is to be said of names that were there already. nginx looks names up, and sees it, only
    /// where there are several servers or a regular expression that captures.
    pub conflicts: Vec<String>,
}

impl AddressGroup {
    /// Whether it makes a difference which name a client asks for.
    pub fn are_names_looked_up(&self) -> bool {
        self.servers.len() > 1 || self.names.may_capture()
    }
}

/// The addresses as nginx goes through them: by port in the file's order, those with a socket of
/// their own first, `*` last.
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

/// Which addresses share a socket: turns gathered addresses into bindings.
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
            are_names_looked_up: one.are_names_looked_up(),
            is_single: !one.are_names_looked_up() || one.names.lead_only_to(&one.default),
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
        // Accepted connections inherit it, so that none needs a call of its own.
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
