//! Detects firewall rules for an interface: frames that bypass the kernel bypass its rules, too.
//!
//! The chains and rules of nftables are listed, including those of iptables-nft. Of the legacy
//! iptables only the names of its tables can be read.

use std::collections::BTreeSet;
use std::io;

use rustix::net::netlink;

use super::netlink::{Netlink, attributes_of, text, word};

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message type.
const NFTABLES: u16 = 10 << 8;
const GET_CHAIN: u16 = NFTABLES | 4;
const NEW_CHAIN: u16 = NFTABLES | 3;
const GET_RULE: u16 = NFTABLES | 7;
const NEW_RULE: u16 = NFTABLES | 6;

/// Bytes of `struct nfgenmsg`.
const HEADER: usize = 4;

/// Families whose chains see IPv4 packets: IPv4 with IPv6, IPv4 alone, and a network device.
const INET: u8 = 1;
const IPV4: u8 = 2;
const DEVICE: u8 = 5;

/// Hooks for incoming packets: before routing, for this host, and at the ingress of a device.
const PREROUTING: u32 = 0;
const INPUT: u32 = 1;
const INET_INGRESS: u32 = 5;
const DEVICE_INGRESS: u32 = 0;

/// File with the names of the legacy iptables' tables.
const TABLES: &str = "/proc/net/ip_tables_names";

/// A chain of rules, by family, table and name.
type Chain = (u8, String, String);

/// Describes the firewall rules that incoming packets of an interface pass, for the log; `None` if
/// there are none.
///
/// # Errors
/// If the kernel does not answer.
pub(super) fn of(interface: &str) -> io::Result<Option<String>> {
    if let Some(found) = of_nftables(interface)? {
        return Ok(Some(found));
    }
    let tables = std::fs::read_to_string(TABLES).unwrap_or_default();
    let tables: Vec<&str> = tables.lines().collect();
    let found = format!("iptables has the tables {}", tables.join(", "));
    Ok((!tables.is_empty()).then_some(found))
}

/// Like [`of`], for nftables.
fn of_nftables(interface: &str) -> io::Result<Option<String>> {
    let netlink = match Netlink::of(netlink::NETFILTER) {
        Ok(netlink) => netlink,
        // A kernel without netfilter has no rules.
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut incoming = Vec::new();
    let mut strict = BTreeSet::new();
    let listed = netlink.ask(GET_CHAIN, &[0; HEADER], |kind, body| {
        if kind == NEW_CHAIN
            && let Some((chain, drops)) = incoming_chain(body, interface)
        {
            if drops {
                strict.insert(chain.clone());
            }
            incoming.push(chain);
        }
    });
    match listed {
        // This kernel has no nftables.
        Err(error) if is_absent(&error) => return Ok(None),
        listed => listed?,
    }
    let mut found = strict.first().cloned();
    if found.is_none() && !incoming.is_empty() {
        netlink.ask(GET_RULE, &[0; HEADER], |kind, body| {
            if kind == NEW_RULE
                && let Some(chain) = chain_of_rule(body)
                && incoming.contains(&chain)
            {
                found.get_or_insert(chain);
            }
        })?;
    }
    Ok(found.map(|(_, table, name)| format!("nftables has rules in \"{table} {name}\"")))
}

/// Whether the error means that the kernel has no nftables.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOENT)
    )
}

/// The chain of a message, if incoming packets of this interface pass it, and whether its policy is
/// to drop packets.
fn incoming_chain(body: &[u8], interface: &str) -> Option<(Chain, bool)> {
    let family = *body.first()?;
    let (mut table, mut name, mut drops) = (None, None, false);
    let mut hook = None;
    for (kind, value) in attributes_of(body, HEADER) {
        match kind {
            1 => table = Some(text(value)),
            3 => name = Some(text(value)),
            4 => hook = Some(value),
            5 => drops = word(value, 0).map(u32::from_be) == Some(0),
            _ => {}
        }
    }
    // Packets reach a chain without a hook only from another chain.
    let (mut number, mut device) = (None, None);
    for (kind, value) in attributes_of(hook?, 0) {
        match kind {
            1 => number = word(value, 0).map(u32::from_be),
            3 => device = Some(text(value)),
            _ => {}
        }
    }
    let sees = match (family, number?) {
        (INET | IPV4, PREROUTING | INPUT) => true,
        (INET, INET_INGRESS) | (DEVICE, DEVICE_INGRESS) => {
            device.is_none_or(|device| device == interface)
        }
        _ => false,
    };
    sees.then_some(((family, table?, name?), drops))
}

/// The chain that a rule belongs to.
fn chain_of_rule(body: &[u8]) -> Option<Chain> {
    let family = *body.first()?;
    let mut attributes = attributes_of(body, HEADER);
    let table = attributes.find(|(kind, _)| *kind == 1)?.1;
    let chain = attributes.find(|(kind, _)| *kind == 2)?.1;
    Some((family, text(table), text(chain)))
}
