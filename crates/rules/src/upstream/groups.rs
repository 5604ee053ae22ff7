//! The groups of servers of one configuration.

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

use ::upstream::{Method, Peer, Roster, Selection};
use bytes::Bytes;
use conf::{Fault, Files, Word};
use engine::net::Address;
use framework::address::{self, WrittenAddress};
use framework::compile::Compiler;
use framework::generation::Generation;
use framework::registry::Registry;
use variables::{Context as _, Text};

use super::limit::Limits;
use super::lookups::{GroupLookup, LookupThread, Lookups};
use super::protocol::Upstreams;
use super::state::UndoneChanges;

/// A group of peers, with the key and the stickiness by which its requests are balanced.
pub struct Group<U: Upstreams> {
    /// The peers of the group.
    pub shared: Arc<::upstream::Group>,
    key: Option<Text<U::Context>>,
    sticky: Option<Arc<U::Sticky>>,
    /// The name of `zone`; `None` without a zone.
    zone: Option<Bytes>,
}

// Implemented by hand, so that the context need not implement `Debug`.
impl<U: Upstreams> fmt::Debug for Group<U> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Group")
            .field("shared", &self.shared)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl<U: Upstreams> Group<U> {
    /// A group without key, stickiness and zone.
    pub fn of(shared: Arc<::upstream::Group>) -> Arc<Group<U>> {
        Arc::new(Group {
            shared,
            key: None,
            sticky: None,
            zone: None,
        })
    }

    /// A group whose balancing method hashes `key`; `None` if it hashes no key.
    pub(super) fn by(shared: ::upstream::Group, key: Option<Text<U::Context>>) -> Group<U> {
        Group {
            shared: Arc::new(shared),
            key,
            sticky: None,
            zone: None,
        }
    }

    /// Sets the stickiness of the group.
    pub(super) fn with_sessions(self, sticky: Option<U::Sticky>) -> Group<U> {
        Group {
            sticky: sticky.map(Arc::new),
            ..self
        }
    }

    /// Sets the name of the group's `zone`.
    pub(super) fn in_zone(self, zone: Option<Bytes>) -> Group<U> {
        Group { zone, ..self }
    }

    /// The name of `zone`; `None` without a zone.
    pub fn zone(&self) -> Option<&Bytes> {
        self.zone.as_ref()
    }

    /// A group with one peer. As the only peer, it remains available after failures.
    pub fn of_one(name: Bytes, address: Address) -> Arc<Group<U>> {
        Group::of(::upstream::Group::of_one(name, address))
    }

    /// A group of the addresses of a name that was resolved for one request. The peers' state is
    /// dropped with the group.
    pub fn of_addresses(
        name: Bytes,
        addresses: impl IntoIterator<Item = Address>,
    ) -> Arc<Group<U>> {
        Group::of(::upstream::Group::of_addresses(name, addresses))
    }

    /// The block's name, or the host.
    pub fn name(&self) -> &Bytes {
        &self.shared.name
    }

    /// The stickiness of the group; `None` without `sticky`.
    pub fn sticky(&self) -> Option<&Arc<U::Sticky>> {
        self.sticky.as_ref()
    }

    /// The selection of peers for a request, with at most `tries_max` attempts; 0 for no limit but
    /// the number of peers.
    pub fn select(&self, context: &mut U::Context, tries_max: usize) -> Selection {
        let peers = Selection::new(&self.shared, tries_max);
        match (&self.key, self.shared.method()) {
            (Some(key), _) => peers.by_text(key.evaluate(context)),
            (None, Method::IpHash) => peers.by_client(ip_of(context.peer())),
            _ => peers,
        }
    }
}

fn ip_of(address: &Address) -> Option<IpAddr> {
    match address {
        Address::Inet(address) => Some(address.ip()),
        Address::Unix(_) => None,
    }
}

/// The groups of one configuration: those of `upstream` blocks, and those of hosts in URLs and
/// addresses.
pub struct Groups<U: Upstreams> {
    entries: Vec<Entry<U>>,
    /// Groups that have, or may get by the API, servers whose names are resolved repeatedly.
    pub(super) lookups: Vec<GroupLookup>,
    /// The thread that resolves the names of the groups in `lookups`.
    pub(super) thread: Arc<LookupThread>,
}

impl<U: Upstreams> Default for Groups<U> {
    fn default() -> Groups<U> {
        Groups {
            entries: Vec::new(),
            lookups: Vec::new(),
            thread: Arc::default(),
        }
    }
}

impl<U: Upstreams> Registry for Groups<U> {}

/// Adds the groups to the generation, with the services that resolve names, apply concurrency
/// limits, and log undone edits.
pub fn add<U: Upstreams>(compiler: &Compiler<'_>, generation: &mut Generation) {
    let mut groups = compiler.registries.take::<Groups<U>>();
    let all = std::mem::take(&mut groups.lookups);
    if !all.is_empty() {
        generation.services.push(Arc::new(Lookups {
            all,
            thread: Arc::clone(&groups.thread),
            upstreams: PhantomData::<U>,
        }));
    }
    let blocks: Vec<Arc<Group<U>>> = groups.blocks().map(Arc::clone).collect();
    if !blocks.is_empty() {
        let groups = blocks.iter().map(|group| Arc::clone(&group.shared));
        generation.services.push(Arc::new(UndoneChanges {
            groups: groups.collect(),
            block: U::BLOCK,
        }));
        let mut all = Blocks::clone(&generation.part::<Blocks>().unwrap_or_default());
        all.0.extend(blocks.iter().map(|group| Block {
            parent_block: U::BLOCK,
            default_port: U::SERVERS.default_port,
            group: Arc::clone(&group.shared),
            zone: group.zone.clone(),
        }));
        generation.add(all);
        generation.services.push(Arc::new(Limits(blocks)));
    }
    generation.add(groups);
}

/// The `upstream` blocks of all protocols, for the API and metrics.
#[derive(Clone, Debug, Default)]
pub struct Blocks(pub Vec<Block>);

/// An `upstream` block of any protocol.
#[derive(Clone, Debug)]
pub struct Block {
    /// The surrounding block, see [`Upstreams::BLOCK`].
    pub parent_block: &'static str,
    /// The port of a server without a port.
    pub default_port: Option<u16>,
    /// The name of `zone`; `None` without a zone.
    pub zone: Option<Bytes>,
    /// The servers of the block.
    pub group: Arc<::upstream::Group>,
}

impl Blocks {
    /// All blocks, by protocol and in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &Block> {
        self.0.iter()
    }
}

struct Entry<U: Upstreams> {
    /// The port of a host; `None` for an `upstream` block.
    port: Option<u16>,
    group: Arc<Group<U>>,
}

impl<U: Upstreams> Groups<U> {
    /// The group of an `upstream` block, whose name may be in any case.
    pub fn declared(&self, name: &[u8]) -> Option<&Arc<Group<U>>> {
        self.find(name, None)
    }

    /// The groups of all `upstream` blocks, in the order of the configuration.
    pub fn blocks(&self) -> impl Iterator<Item = &Arc<Group<U>>> {
        let blocks = self.entries.iter().filter(|entry| entry.port.is_none());
        blocks.map(|entry| &entry.group)
    }

    /// The group for the host of a URL. Without a port in the URL, an `upstream` block with this
    /// name comes first. Otherwise, the group of the same host and port, if another URL has added
    /// it.
    pub fn named(
        &self,
        name: &[u8],
        port: Option<u16>,
        default_port: u16,
    ) -> Option<&Arc<Group<U>>> {
        let block = || self.declared(name).filter(|_| port.is_none());
        block().or_else(|| self.find(name, Some(port.unwrap_or(default_port))))
    }

    /// The group of the addresses of a host. The host is resolved when its group is first
    /// requested. `None` if the host has no address.
    pub fn host(
        &mut self,
        written: &WrittenAddress<'_>,
        files: &dyn Files,
        default_port: u16,
    ) -> Option<Arc<Group<U>>> {
        let port = written.port.unwrap_or(default_port);
        if let Some(known) = self.find(written.name, Some(port)) {
            return Some(Arc::clone(known));
        }
        let addresses = written.resolve(files, port)?;
        let peers = addresses.into_iter().map(Peer::new).collect();
        let roster = Roster::new(peers, Vec::new(), Method::RoundRobin, Vec::new());
        let name = Bytes::copy_from_slice(written.name);
        let group = ::upstream::Group::new(name, Arc::new(roster), None);
        Some(self.add(Some(port), Group::by(group, None)))
    }

    fn find(&self, name: &[u8], port: Option<u16>) -> Option<&Arc<Group<U>>> {
        let found = self
            .entries
            .iter()
            .find(|entry| entry.port == port && entry.group.name().eq_ignore_ascii_case(name))?;
        Some(&found.group)
    }

    /// Adds a group: that of a host with this port, or that of an `upstream` block if `port` is
    /// `None`.
    pub(super) fn add(&mut self, port: Option<u16>, group: Group<U>) -> Arc<Group<U>> {
        let group = Arc::new(group);
        self.entries.push(Entry {
            port,
            group: Arc::clone(&group),
        });
        group
    }
}

/// The port that stands for a missing port.
const NO_PORT: u16 = 0;

/// The group for an address without variables: an `upstream` block, or all addresses of a host.
/// `word` is the argument that contains the address, for errors.
///
/// # Errors
/// If the text is not an address, or the name does not resolve.
pub fn of_address<U: Upstreams>(
    compiler: &Compiler<'_>,
    word: &Word,
    address: &[u8],
) -> Result<Arc<Group<U>>, Fault> {
    let fault = |text: String| Fault::at(word, text).while_reading();
    let shown = String::from_utf8_lossy(address);
    let written = address::parse(address)
        .map_err(|error| fault(format!("{error} in upstream \"{shown}\"")))?;
    let groups = compiler.registry::<Groups<U>>();
    let mut groups = groups.borrow_mut();
    let name = String::from_utf8_lossy(written.name);
    if let Some(group) = groups.declared(written.name).filter(|_| !written.unix) {
        return match written.port {
            Some(port) => Err(fault(format!(
                "upstream \"{name}\" may not have port {port}"
            ))),
            None => Ok(Arc::clone(group)),
        };
    }
    if written.port.is_none() && !written.unix {
        let text = format!("no port in upstream \"{name}\"");
        return Err(fault(text).of_missing(&name, &["upstream"]));
    }
    if let Some(group) = literal(address, &written) {
        return Ok(group);
    }
    groups
        .host(&written, compiler.files, NO_PORT)
        .ok_or_else(|| {
            let text = format!("host not found in upstream \"{name}\"");
            fault(text).of_missing(&name, &["upstream"])
        })
}

/// A group with one peer, for an IP address or Unix socket; `None` for a name, which must be
/// resolved.
pub fn literal<U: Upstreams>(text: &[u8], written: &WrittenAddress<'_>) -> Option<Arc<Group<U>>> {
    let address = written.literal(NO_PORT)?;
    Some(Group::of_one(Bytes::copy_from_slice(text), address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::OfSessions;

    #[test]
    fn a_group_is_found_by_name_and_port() {
        let mut groups = Groups::<OfSessions>::default();
        let group = |name: &'static str| {
            let address = Address::Unix("/a".into());
            let shared = ::upstream::Group::of_one(name.into(), address);
            Group {
                shared,
                key: None,
                sticky: None,
                zone: None,
            }
        };
        let block = groups.add(None, group("Backend"));
        let host = groups.add(Some(8080), group("localhost"));
        let is = |found: Option<&Arc<Group<OfSessions>>>, group| {
            found.is_some_and(|it| Arc::ptr_eq(it, group))
        };
        assert!(is(groups.declared(b"backend"), &block));
        assert!(is(groups.named(b"BACKEND", None, 80), &block));
        assert!(groups.named(b"backend", Some(80), 80).is_none());
        assert!(is(groups.named(b"localhost", Some(8080), 80), &host));
        assert!(groups.named(b"localhost", None, 80).is_none());
        assert!(groups.declared(b"localhost").is_none());
    }
}
