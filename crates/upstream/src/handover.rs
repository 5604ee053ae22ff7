//! Saves the state of a group for the next process, and reads it there: the states of the peers,
//! the results of their health checks, and the addresses of resolved names.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use engine::net::Address;
use framework::handover::{StateReader, StateWriter, Unfit};

use crate::health::{Check, CheckCounts, Finding, Health};
use crate::hosts::Host;
use crate::moment::millis;
use crate::peer::Peer;
use crate::peers::PeerSide;
use crate::roster::Roster;
use crate::state::State;

/// Saves a group.
pub(crate) fn save(roster: &Roster, out: &mut StateWriter) {
    let (peers, now) = (roster.peers(), millis(engine::now()));
    out.number(peers.hosts().len() as u64);
    for host in peers.hosts().iter().map(|listed| &listed.host) {
        out.text(&host.name);
        out.optional(host.service.as_ref(), |out, service| out.text(service));
        out.number(u64::from(host.side == PeerSide::Backups));
    }
    // In the saved state, a peer refers to its host by the index in this list.
    let place_of = |key: usize| peers.hosts().iter().position(|host| host.key == key);
    for side in [PeerSide::Peers, PeerSide::Backups] {
        out.number(peers.side(side).len() as u64);
        for peer in peers.side(side).iter() {
            out.text(&peer.server);
            out.text(&peer.name);
            out.number(u64::try_from(peer.weight).unwrap_or(1));
            out.optional(peer.host.and_then(place_of), |out, host| {
                out.number(host as u64);
            });
            peer.state().save(now, out);
            out.optional(peer.health(), |out, health| save_health(health, out));
        }
    }
}

/// Reads the saved state into a temporary roster, whose state the group's own roster then adopts.
pub(crate) fn read(group: &Roster, saved: &mut StateReader<'_>) -> Result<Roster, Unfit> {
    let mut hosts = Vec::new();
    for _ in 0..saved.number()? {
        let name = Bytes::copy_from_slice(saved.text()?);
        let service = saved.optional(StateReader::text)?;
        hosts.push(Host {
            template: Peer::new(Address::Unix("".into())),
            name,
            port: 0,
            service: service.map(Bytes::copy_from_slice),
            id_of: |_| Bytes::new(),
            side: if saved.number()? == 1 {
                PeerSide::Backups
            } else {
                PeerSide::Peers
            },
        });
    }
    let now = millis(engine::now());
    let (primary, backup) = (read_side(now, saved)?, read_side(now, saved)?);
    let before = Roster::new(primary, backup, group.method(), hosts);
    let peers = before.peers();
    let numbers = peers.iter().filter_map(|peer| peer.state().number.get());
    if let Some(last) = numbers.max() {
        peers.number_from(last.saturating_add(1));
    }
    Ok(before)
}

fn read_side(now: u64, saved: &mut StateReader<'_>) -> Result<Vec<Peer>, Unfit> {
    let mut peers = Vec::new();
    for _ in 0..saved.number()? {
        let server = Bytes::copy_from_slice(saved.text()?);
        let name = saved.string()?;
        // Only peers that were resolved from a name need an address to connect to.
        let address = match name.parse::<SocketAddr>() {
            Ok(address) => Address::Inet(address),
            Err(_) => Address::Unix(name.into()),
        };
        let mut peer = Peer::new(address);
        peer.server = server;
        peer.name = Bytes::copy_from_slice(name.as_bytes());
        peer.weight = i64::try_from(saved.count()?).unwrap_or(1).max(1);
        let host = saved.optional(StateReader::number)?;
        peer.host = host.and_then(|host| usize::try_from(host).ok());
        let state = State::read(now, saved)?;
        peer.go_on(state, saved.optional(read_health)?);
        peers.push(peer);
    }
    Ok(peers)
}

fn save_health(health: &Health, out: &mut StateWriter) {
    let CheckCounts {
        checks,
        fails,
        unhealthy,
    } = health.counts();
    for count in [checks, fails, unhealthy] {
        out.number(count);
    }
    let found: Vec<_> = health.found().collect();
    out.number(found.len() as u64);
    for (check, finding, contrary) in found {
        out.text(&check.place);
        out.number(finding as u64);
        out.number(contrary);
    }
}

fn read_health(saved: &mut StateReader<'_>) -> Result<Health, Unfit> {
    let counts = CheckCounts {
        checks: saved.count()?,
        fails: saved.count()?,
        unhealthy: saved.count()?,
    };
    let (mut checks, mut found) = (Vec::new(), Vec::new());
    for _ in 0..saved.number()? {
        checks.push(Check {
            place: Bytes::copy_from_slice(saved.text()?),
            mandatory: false,
            persistent: false,
        });
        let finding = u8::try_from(saved.number()?).unwrap_or(u8::MAX);
        found.push((Finding::of(finding), saved.count()?));
    }
    Ok(Health::that_found(&Arc::from(checks), &found, counts))
}
