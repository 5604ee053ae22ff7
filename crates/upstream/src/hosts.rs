//! The servers of a group whose host names are looked up again at run time. A host has a peer for
//! each address that the lookups find.
//!
//! The hosts are stored in the list of peers ([`Peers::hosts`](crate::Peers::hosts)), so that a
//! request to the API gets a consistent snapshot of both. Not here: the lookups, which belong to
//! the layers above.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use engine::net::Address;
use framework::flag::Flag;

use crate::peer::Peer;
use crate::peers::PeerSide;

/// A server whose addresses are looked up periodically (`resolve`).
#[derive(Clone, Debug)]
pub struct Host {
    /// The name of the host.
    pub name: Bytes,
    /// The port of the host's peers. Ignored with `service`, because SRV records contain the port.
    pub port: u16,
    /// The service whose servers are looked up (SRV).
    pub service: Option<Bytes>,
    /// The template of the host's peers. If the template's id is not empty, all peers of the host
    /// share that id.
    pub template: Peer,
    /// Makes the id of a peer from its address, if the template has none.
    pub id_of: fn(&[u8]) -> Bytes,
    /// Whether the host's peers are primary or backup peers, unless a lookup returns backups.
    pub side: PeerSide,
}

/// An address that a DNS lookup has returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// The address, with its port.
    pub address: Address,
    /// The server's name, if it differs from the host's.
    pub server: Option<Bytes>,
    /// The weight of an SRV record.
    pub weight: Option<u16>,
    /// Whether the address is that of a backup peer.
    pub is_backup: bool,
}

/// A host in a [`Roster`](crate::Roster), which holds the current peers and hosts of a group.
#[derive(Clone, Debug)]
pub struct ListedHost {
    /// Identifies the host in its roster. Hosts that are added later have greater keys.
    pub key: usize,
    /// The host as it is configured.
    pub host: Host,
    /// Identifies the host among the members of its group in the API. Assigned on demand and,
    /// unlike `key`, kept by reloads.
    pub(crate) number: OnceLock<u64>,
    /// Raised when the host has left the roster.
    pub(crate) removal: Flag,
}

impl Host {
    /// The server as the directive `server` takes it: name and port, or the name alone if SRV
    /// lookups return the port.
    pub fn server(&self) -> Bytes {
        if self.service.is_some() {
            return self.name.clone();
        }
        let port = format!(":{}", self.port);
        [&self.name[..], port.as_bytes()].concat().into()
    }

    /// The server and the service, for log lines.
    fn label(&self) -> Bytes {
        match &self.service {
            Some(service) => [&self.name[..], b" service=", service].concat().into(),
            None => self.server(),
        }
    }

    /// Whether both hosts are the same server, so that lookups find the same addresses for both.
    pub(crate) fn is_same(&self, other: &Host) -> bool {
        self.is_same_name(other) && self.port == other.port
    }

    /// Whether both hosts are the same server but for the port, which a reload may have changed.
    pub(crate) fn is_same_name(&self, other: &Host) -> bool {
        (&self.service, self.side) == (&other.service, other.side)
            && self.name.eq_ignore_ascii_case(&other.name)
    }

    /// Makes the peer for an address that a lookup of the host has returned.
    pub(crate) fn makes(&self, found: &ResolvedAddress) -> Peer {
        let template = &self.template;
        let mut peer = template.at(found.address.clone());
        if let Some(server) = &found.server {
            peer.server = server.clone();
        }
        // A configured weight takes precedence over that of a lookup.
        peer.weight = match (template.weight, found.weight) {
            (1, Some(weight)) if self.service.is_some() => i64::from(weight.max(1)),
            (weight, _) => weight,
        };
        peer.id = self.id_for(&peer.name);
        peer
    }

    /// Makes the peer for an address, and marks it as one of the host with this key in the roster.
    pub(crate) fn makes_listed(&self, found: &ResolvedAddress, key: usize) -> Peer {
        let mut peer = self.makes(found);
        peer.host = Some(key);
        peer
    }

    /// The id ([`Peer::id`]) of the host's peer with this name ([`Peer::name`]).
    pub(crate) fn id_for(&self, name: &[u8]) -> Bytes {
        if self.template.id.is_empty() {
            (self.id_of)(name)
        } else {
            self.template.id.clone()
        }
    }

    /// An address that was looked up before a reload, with the port that the host has now.
    pub(crate) fn placed(&self, address: &Address) -> Address {
        match address {
            Address::Inet(known) if self.service.is_none() => {
                Address::Inet(std::net::SocketAddr::new(known.ip(), self.port))
            }
            address => address.clone(),
        }
    }

    /// Whether the peer for an address is a primary or a backup peer.
    pub(crate) fn side_of(&self, found: &ResolvedAddress) -> PeerSide {
        if found.is_backup {
            PeerSide::Backups
        } else {
            self.side
        }
    }
}

impl ListedHost {
    /// A host with this key.
    pub(crate) fn new(key: usize, mut host: Host) -> Arc<ListedHost> {
        host.template.name = host.label();
        Arc::new(ListedHost {
            key,
            host,
            number: OnceLock::new(),
            removal: Flag::default(),
        })
    }

    /// Waits until the host has left its roster.
    pub async fn removed(&self) {
        self.removal.wait().await;
    }
}
