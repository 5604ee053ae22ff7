//! The servers of each listening address.
//!
//! As in nginx, if a port is listened on both with a wildcard and with specific addresses, one
//! socket accepts all connections, and the connection's local address selects the server, unless
//! `bind` requests a separate socket. Several servers of one address are selected by the server
//! name of the client's TLS handshake.

use std::sync::Arc;

use conf::{Diagnostic, Fault, Position};
use engine::net::{Address, ListenOptions};
use framework::compile::Compiler;
use framework::connection_handler::ListenerId;
use rules::server_name::{self, ServerNamePattern};
use transport::listen::{self, ProtocolAgreement, Protocols};

use crate::plan::Server;
use crate::session::Session;

/// One address of a `listen` line of a stream server.
pub(crate) type Listen = listen::Listen<StreamOptions>;

/// The options of `listen` that not all protocols have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamOptions {
    pub(crate) default_server: bool,
    /// The protocols that clients speak first.
    pub(crate) protocols: Protocols,
    /// Whether each datagram has a PROXY protocol header, not only the first one of a session.
    pub(crate) header_per_datagram: bool,
}

/// The servers of an address, by name.
pub(crate) type ServerNames = server_name::ServerNames<Session, Server>;

/// The servers of one address.
pub(crate) struct AddressServers {
    /// The server if no name matches.
    pub(crate) default: Arc<Server>,
    /// Servers by name; `None` if names make no difference.
    pub(crate) names: Option<ServerNames>,
    pub(crate) protocols: Protocols,
    /// Whether each datagram has a PROXY protocol header, not only the first one of a session.
    pub(crate) header_per_datagram: bool,
}

/// A listening socket and its servers.
pub(crate) struct Binding {
    pub(crate) id: ListenerId,
    pub(crate) options: ListenOptions,
    /// The servers for connections to any address that is not in `specific`.
    servers: Arc<AddressServers>,
    /// The servers of specific addresses whose connections the same socket accepts.
    specific: Vec<(Address, Arc<AddressServers>)>,
}

impl Binding {
    /// The servers for a connection with the local address `local`.
    pub(crate) fn servers_for(&self, local: impl FnOnce() -> Address) -> Arc<AddressServers> {
        if self.specific.is_empty() {
            return Arc::clone(&self.servers);
        }
        let local = local();
        let found = self.specific.iter().find(|(address, _)| *address == local);
        Arc::clone(found.map_or(&self.servers, |(_, servers)| servers))
    }
}

/// A server with its names, and the position of its block.
pub(crate) struct NamedServer {
    pub(crate) server: Arc<Server>,
    pub(crate) names: Vec<(bytes::Bytes, ServerNamePattern<Session>)>,
    pub(crate) position: Option<Position>,
}

/// An address with its `listen` lines, while servers are collected.
struct AddressGroup {
    listen: Listen,
    /// The `default_server`, else the first server.
    default: Arc<Server>,
    names: ServerNames,
    /// Whether the `listen` lines agree about protocols. A disagreement is only warned about.
    agreement: ProtocolAgreement,
    /// The servers, in the order of the file.
    servers: Vec<(Arc<Server>, Option<Position>)>,
    /// Warnings about duplicate names, which are logged if names make a difference.
    conflicts: Vec<String>,
}

/// All addresses, while servers are collected.
#[derive(Default)]
pub(crate) struct Addresses(Vec<AddressGroup>);

impl Addresses {
    /// Adds one address of a server.
    ///
    /// # Errors
    /// nginx's, if the line contradicts another one.
    pub(crate) fn add(
        &mut self,
        compiler: &Compiler<'_>,
        line: &Listen,
        named: &NamedServer,
    ) -> Result<(), Fault> {
        let address = &line.options.address;
        let is_same = |known: &AddressGroup| {
            let known = &known.listen.options;
            (&known.address, known.carries) == (address, line.options.carries)
        };
        let at = match self.0.iter().position(is_same) {
            Some(at) => at,
            None => {
                self.0.push(AddressGroup {
                    listen: line.clone(),
                    default: Arc::clone(&named.server),
                    names: ServerNames::default(),
                    agreement: ProtocolAgreement::default(),
                    servers: Vec::new(),
                    conflicts: Vec::new(),
                });
                self.0.len() - 1
            }
        };
        let Some(known) = self.0.get_mut(at) else {
            return Ok(()); // unreachable: found or added above
        };
        if !known.servers.is_empty() {
            known.merge(compiler, line, &named.server)?;
        }
        let position = named.position;
        known.servers.push((Arc::clone(&named.server), position));
        for (text, name) in &named.names {
            if !known.names.add(name.clone(), &named.server) {
                known.conflicts.push(name.conflict(text, address));
            }
        }
        Ok(())
    }

    /// Whether nginx would build a hash of server names for any of the addresses.
    pub(crate) fn need_table(&self) -> bool {
        let has_table =
            |one: &AddressGroup| one.is_name_significant() && one.names.has_other_than_patterns();
        self.0.iter().any(has_table)
    }

    /// The sockets for connections to these addresses.
    ///
    /// # Errors
    /// If an address with TLS has no certificate.
    pub(crate) fn bindings(self, compiler: &Compiler<'_>) -> Result<Vec<Binding>, Fault> {
        let (mut sharing, mut bindings) = (Vec::new(), Vec::<Binding>::new());
        for mut one in self.0 {
            if one.is_name_significant() {
                for conflict in std::mem::take(&mut one.conflicts) {
                    compiler.warn_each_time(conflict, None);
                }
            }
            one.check_certificates()?;
            let is_any = matches!(&one.listen.options.address,
                Address::Inet(at) if at.ip().is_unspecified());
            let is_inet = matches!(one.listen.options.address, Address::Inet(_));
            if !is_any && !one.listen.bind && is_inet {
                sharing.push(one);
            } else {
                bindings.push(one.binding());
            }
        }
        for one in sharing {
            let takes = |binding: &&mut Binding| takes(binding, &one.listen.options);
            match bindings.iter_mut().find(takes) {
                Some(wildcard) => {
                    let address = one.listen.options.address.clone();
                    wildcard.specific.push((address, one.servers()));
                }
                None => bindings.push(one.binding()),
            }
        }
        Ok(bindings)
    }
}

impl AddressGroup {
    /// Merges another `listen` line of the address.
    fn merge(
        &mut self,
        compiler: &Compiler<'_>,
        line: &Listen,
        server: &Arc<Server>,
    ) -> Result<(), Fault> {
        let address = &line.options.address;
        if line.set && self.listen.set {
            return Err(line.fault(format!("duplicate listen options for {address}")));
        }
        if line.own.default_server && self.listen.own.default_server {
            return Err(line.fault(format!("a duplicate default server for {address}")));
        }
        let agrees = self.agreement.take(&self.listen, line, |own| own.protocols);
        if !agrees {
            let text = format!("protocol options redefined for {address}");
            let position = line.word.as_ref().map(|word| word.position);
            compiler.diagnose(Diagnostic::warn(text, position));
        }
        let known = self.listen.own;
        if line.set {
            self.listen = line.clone();
        }
        if line.own.default_server {
            self.default = Arc::clone(server);
        }
        self.listen.own = StreamOptions {
            default_server: known.default_server || line.own.default_server,
            protocols: known.protocols.or(line.own.protocols),
            header_per_datagram: known.header_per_datagram || line.own.header_per_datagram,
        };
        Ok(())
    }

    /// Whether the server name that a client requests can change its server or its captures.
    fn is_name_significant(&self) -> bool {
        self.servers.len() > 1 || self.names.may_capture()
    }

    /// Checks that every TLS client can be served: the default server has a certificate, or it
    /// rejects handshakes and every other server has a certificate or rejects handshakes.
    fn check_certificates(&self) -> Result<(), Fault> {
        let tls = |server: &Arc<Server>| server.tls.as_ref().map(|tls| tls.has_certificate);
        if !self.listen.own.protocols.ssl || tls(&self.default) == Some(true) {
            return Ok(());
        }
        let rejects = tls(&self.default).is_some();
        let without = self.servers.iter().find(|(server, _)| {
            if rejects {
                tls(server).is_none()
            } else {
                Arc::ptr_eq(server, &self.default)
            }
        });
        let Some((_, position)) = without else {
            return Ok(());
        };
        let place = position.map(|position| position.to_string());
        let place = place.unwrap_or_default();
        // The position is already part of the message, as in nginx.
        Err(Fault::new(format!(
            "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in {place}"
        )))
    }

    fn servers(mut self) -> Arc<AddressServers> {
        self.names.finish();
        let is_name_significant = self.is_name_significant();
        Arc::new(AddressServers {
            default: self.default,
            names: is_name_significant.then_some(self.names),
            protocols: self.listen.own.protocols,
            header_per_datagram: self.listen.own.header_per_datagram,
        })
    }

    fn binding(self) -> Binding {
        let mut options = self.listen.options.clone();
        options.nodelay = self.default.tcp_nodelay;
        Binding {
            id: ListenerId::of_address(&options.address, options.carries),
            options,
            servers: self.servers(),
            specific: Vec::new(),
        }
    }
}

/// Whether a wildcard socket accepts connections to this address.
fn takes(binding: &Binding, options: &ListenOptions) -> bool {
    if binding.options.carries != options.carries {
        return false;
    }
    match (&binding.options.address, &options.address) {
        (Address::Inet(any), Address::Inet(at)) => {
            any.ip().is_unspecified() && any.port() == at.port() && any.is_ipv4() == at.is_ipv4()
        }
        _ => false,
    }
}
