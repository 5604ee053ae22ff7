//! Capabilities (capabilities(7)) of a worker process: none but those that its configuration needs.

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// Root's privileges in the file system and for ports: without them, a worker that is configured to
/// run as root could not access the files that it serves.
const OF_ROOT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::NET_BIND_SERVICE);

const NAMES: &[(CapabilitySet, &str)] = &[
    (CapabilitySet::CHOWN, "CAP_CHOWN"),
    (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE"),
    (CapabilitySet::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
    (CapabilitySet::FOWNER, "CAP_FOWNER"),
    (CapabilitySet::NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
];

/// Removes all capabilities except the needed ones from the bounding set, so that no program which
/// this process executes can gain them. Only root may do so; a process without privileges has
/// nothing to remove.
pub(super) fn bound(keeps_raw_network: bool) {
    let kept = OF_ROOT | raw_network(keeps_raw_network);
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if !kept.contains(capability) {
            // The call fails for a capability that the kernel does not know and, in a process
            // without CAP_SETPCAP, for every capability.
            let _ = rustix::thread::remove_capability_from_bounding_set(capability);
        }
    }
}

/// Drops every capability that is not needed; none can be gained. Returns the names of the
/// remaining ones.
pub(super) fn drop_capabilities(raw_network: bool) -> Result<String, String> {
    let failed = |call: &str, error: rustix::io::Errno| crate::log::failure(call, &error.into());
    let has =
        rustix::thread::capabilities(None).map_err(|error| failed("capget() failed", error))?;
    let mut kept = self::raw_network(raw_network);
    if rustix::process::geteuid().is_root() {
        kept |= OF_ROOT;
    }
    let kept = kept & has.permitted;
    let only = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, only).map_err(|error| failed("capset() failed", error))?;
    let names: Vec<&str> = NAMES
        .iter()
        .filter(|(one, _)| kept.contains(*one))
        .map(|(_, name)| *name)
        .collect();
    Ok(if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(" ")
    })
}

fn raw_network(keeps: bool) -> CapabilitySet {
    if keeps {
        CapabilitySet::NET_RAW
    } else {
        CapabilitySet::empty()
    }
}
