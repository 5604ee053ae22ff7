//! Descriptors and ports, of which every connection needs one.

use super::{AdvisedChange, NOT_MEASURED, Rule, RuleFinding, Weight, setting};
use crate::tune::machine::Machine;
use crate::tune::setup::Setup;

/// Descriptors that are not connections: listeners, logs, files, and those of the engine itself.
const BESIDE_CONNECTIONS: u64 = 512;
/// The first port of a wide range. Most services listen on lower ports.
const PORTS_FIRST: u64 = 10_000;
const PORTS_LAST: u64 = 65_535;

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "open-files",
        source: "getrlimit(2); systemd.exec(5), LimitNOFILE=",
        measured: "at its limit the server takes no connection until one ends, and says so once a \
                   second in the error log",
        look: open_files,
    },
    Rule {
        id: "open-files-of-a-process",
        source: "Linux, Documentation/admin-guide/sysctl/fs.rst (nr_open)",
        measured: "a start with more in worker_rlimit_nofile is refused",
        look: open_files_of_a_process,
    },
    Rule {
        id: "open-files-of-all",
        source: "Linux, Documentation/admin-guide/sysctl/fs.rst (file-max)",
        measured: NOT_MEASURED,
        look: open_files_of_all,
    },
    Rule {
        id: "ports",
        source: "Linux, Documentation/networking/ip-sysctl.rst (ip_local_port_range, \
                 ip_local_reserved_ports); RFC 6056",
        measured: "with 28 ports 32 of 60 requests at a time for one upstream were answered with \
                   502",
        look: ports,
    },
    Rule {
        id: "ports-in-time-wait",
        source: "RFC 6191; Linux, Documentation/networking/ip-sysctl.rst (tcp_tw_reuse)",
        measured: NOT_MEASURED,
        look: ports_in_time_wait,
    },
    Rule {
        id: "tracked-connections",
        source: "Linux, Documentation/networking/nf_conntrack-sysctl.rst (nf_conntrack_max)",
        measured: NOT_MEASURED,
        look: tracked_connections,
    },
];

fn open_files(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let limit = setup.open_files_max.or(machine.process.open_files_max)?;
    let asked = setup.connections_of_all();
    if limit >= asked {
        return None;
    }
    let wanted = asked.saturating_add(BESIDE_CONNECTIONS).next_power_of_two();
    let of = match (setup.open_files_max, machine.process.pid) {
        (Some(_), _) => "worker_rlimit_nofile is".to_owned(),
        (None, Some(pid)) => format!("process {pid} may open"),
        (None, None) => "a process started from here may open".to_owned(),
    };
    let changes = match setup.open_files_max {
        Some(_) => vec![AdvisedChange::Configuration(format!(
            "worker_rlimit_nofile {wanted};"
        ))],
        None => vec![AdvisedChange::Unit {
            name: "LimitNOFILE",
            value: wanted.to_string(),
        }],
    };
    Some(RuleFinding {
        weight: Weight::Limits,
        finding: format!(
            "{of} {limit} files, {} x {} connections are configured",
            setup.threads, setup.connections
        ),
        reason: format!(
            "From {limit} open files on, clients wait for a connection to end. A connection to an \
             upstream is one more. A master that is root may also raise it by itself: \
             \"worker_rlimit_nofile {wanted};\"."
        ),
        changes,
    })
}

fn open_files_of_a_process(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "fs.nr_open";
    let max = machine.number(name)?;
    let asked = setup.open_files_max.unwrap_or(setup.connections_of_all());
    if max >= asked {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Limits,
        finding: format!("{name} is {max}, the configuration asks for {asked} files"),
        reason: "No process may be given more, not even one of root.".to_owned(),
        changes: vec![setting(name, asked.next_power_of_two())],
    })
}

fn open_files_of_all(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "fs.file-max";
    let max = machine.number(name)?;
    let asked = setup
        .connections_of_all()
        .saturating_add(BESIDE_CONNECTIONS);
    if max >= asked {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Limits,
        finding: format!("{name} is {max} for all processes, one alone is to have {asked}"),
        reason:
            "Beyond it nobody but root opens a file. The kernel sets it by its memory, so that \
                 it is low only where it was lowered."
                .to_owned(),
        changes: vec![setting(name, asked.saturating_mul(2).next_power_of_two())],
    })
}

/// The number of concurrent connections to one upstream address is limited by the number of ports.
fn ports(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let (count, first, last) = machine.ports()?;
    let asked = setup.connections_of_all();
    if !setup.passes_on || count >= asked || first <= PORTS_FIRST {
        return None;
    }
    let mut changes = vec![setting(
        "net.ipv4.ip_local_port_range",
        format!("{PORTS_FIRST} {PORTS_LAST}"),
    )];
    // If the kernel assigns a port of the server to a connection, the server cannot listen on it at
    // its next start.
    let mut own: Vec<u64> = setup
        .listening
        .iter()
        .filter_map(|one| one.port)
        .map(u64::from)
        .collect();
    own.retain(|port| (PORTS_FIRST..=PORTS_LAST).contains(port));
    own.sort_unstable();
    own.dedup();
    let reserved = machine
        .setting("net.ipv4.ip_local_reserved_ports")
        .unwrap_or_default();
    if !own.is_empty() && reserved.is_empty() {
        let own: Vec<String> = own.iter().map(u64::to_string).collect();
        changes.push(setting("net.ipv4.ip_local_reserved_ports", own.join(",")));
    }
    Some(RuleFinding {
        weight: Weight::Limits,
        finding: format!("{count} ports ({first} to {last}) for up to {asked} connections"),
        reason:
            "Each connection to the same address of an upstream needs a port of its own, for a \
                 minute after its end as well where this side ends it. `keepalive` in the upstream \
                 block saves more of them than a wider range gives."
                .to_owned(),
        changes,
    })
}

fn ports_in_time_wait(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "net.ipv4.tcp_tw_reuse";
    let (count, ..) = machine.ports()?;
    let waiting = machine.sockets.time_wait;
    if !setup.passes_on || machine.number(name)? == 1 || waiting < count / 2 {
        return None;
    }
    Some(RuleFinding {
        weight: if waiting >= count - count / 8 {
            Weight::Loses
        } else {
            Weight::MayHelp
        },
        finding: format!("{waiting} connections are in TIME-WAIT, there are {count} ports"),
        reason: "A connection to an upstream may take such a port after a second where both sides \
                 send timestamps. `keepalive` in the upstream block makes fewer of them; \
                 tcp_fin_timeout does not shorten this state."
            .to_owned(),
        changes: vec![setting(name, 1)],
    })
}

fn tracked_connections(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "net.netfilter.nf_conntrack_max";
    let max = machine.number(name)?;
    let count = machine
        .number("net.netfilter.nf_conntrack_count")
        .unwrap_or_default();
    let asked = setup.connections_of_all();
    let is_nearly_full = count >= max - max / 10;
    if !is_nearly_full && (max >= asked || count == 0) {
        return None;
    }
    Some(RuleFinding {
        weight: if is_nearly_full {
            Weight::Loses
        } else {
            Weight::Limits
        },
        finding: format!("the firewall tracks {count} connections of at most {max}"),
        reason:
            "Packets of connections beyond that are dropped (\"table full\" in the kernel's log). \
                 An entry takes some 320 bytes; a rule with `notrack` for the server's ports needs \
                 none."
                .to_owned(),
        changes: vec![setting(
            name,
            max.max(asked).saturating_mul(2).next_power_of_two(),
        )],
    })
}
