//! Queues of connections that are to be accepted, and of packets that are to be processed.

use super::{AdvisedChange, NOT_MEASURED, Rule, RuleFinding, Weight, setting, times};
use crate::tune::machine::Machine;
use crate::tune::setup::Setup;

/// Length of an accept queue that suffices for the connections of one iteration of a busy event
/// loop. An entry takes about 300 bytes, and only while it is used.
const QUEUE_WANTED: u64 = 4096;
/// Length of a queue of packets that suffices for some milliseconds at full rate. A longer queue
/// would only add delay. The drop counter never decreases, so the advised value is fixed instead of
/// a multiple of the current one.
const PACKETS_WANTED: u64 = 16_000;

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "accept-queue",
        source: "listen(2); Linux, net/socket.c (__sys_listen) and net/ipv4/tcp_ipv4.c",
        measured: "500 clients that connect for each request: with a queue of 8 they got 151 \
                   requests a second and 286 of 5,000 failed, with one of 4096 2,878 and none \
                   failed",
        look: accept_queue,
    },
    Rule {
        id: "syn-cookies",
        source: "RFC 4987; Linux, Documentation/networking/ip-sysctl.rst (tcp_syncookies) and \
                 net/ipv4/tcp_input.c (tcp_conn_request)",
        measured: NOT_MEASURED,
        look: syn_cookies,
    },
    Rule {
        id: "packet-queue",
        source: "Linux, Documentation/admin-guide/sysctl/net.rst (netdev_max_backlog); \
                 net/core/dev.c",
        measured: NOT_MEASURED,
        look: packet_queue,
    },
    Rule {
        id: "packet-budget",
        source: "Linux, Documentation/admin-guide/sysctl/net.rst (netdev_budget)",
        measured: NOT_MEASURED,
        look: packet_budget,
    },
];

/// `listen(2)` silently limits the queue to `somaxconn`. A full queue drops the last packet of the
/// handshake, and the client retries only after a second.
fn accept_queue(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "net.core.somaxconn";
    let max = machine.number(name)?;
    let longest = setup.longest_queue()?;
    let overflows = machine.counter("TcpExt.ListenOverflows");
    let is_short = max < longest.backlog;
    if !is_short && (overflows == 0 || longest.backlog >= QUEUE_WANTED) {
        return None;
    }
    let (address, backlog) = (&longest.address, longest.backlog);
    let mut finding = format!("{name} is {max}, {address} asks for a queue of {backlog}");
    if overflows > 0 {
        let times = times(overflows);
        finding += &format!("; a queue of this machine was full {times} since its start");
    }
    let mut changes = Vec::new();
    let wanted = backlog.max(QUEUE_WANTED);
    if max < wanted {
        changes.push(setting(name, wanted));
    }
    if backlog < QUEUE_WANTED {
        let line = format!("listen {address} backlog={QUEUE_WANTED};");
        changes.push(AdvisedChange::Configuration(line));
    }
    Some(RuleFinding {
        weight: if overflows > 0 {
            Weight::Loses
        } else {
            Weight::Limits
        },
        finding,
        reason: "A connection that comes to a full queue is dropped, and its client tries again \
                 a second later, and again. The queue fills when many connect at once or the \
                 threads are busy. A listening socket takes a new length with the next start."
            .to_owned(),
        changes,
    })
}

/// With SYN cookies, the length of the queue of half-open connections does not matter.
fn syn_cookies(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "net.ipv4.tcp_syncookies";
    if machine.number(name)? != 0 || !setup.is_reached_from_outside() {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Limits,
        finding: format!("{name} is 0"),
        reason: "Whoever sends SYN packets without an end keeps all others from connecting: the \
                 last quarter of the queue of half-open connections is then kept for known peers. \
                 With 1 the kernel answers without a queue as soon as it is full, and \
                 tcp_max_syn_backlog counts no more."
            .to_owned(),
        changes: vec![setting(name, 1)],
    })
}

fn packet_queue(machine: &Machine, _: &Setup) -> Option<RuleFinding> {
    let name = "net.core.netdev_max_backlog";
    let max = machine.number(name)?;
    let dropped = machine.softnet.dropped;
    if dropped == 0 || max >= PACKETS_WANTED {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Loses,
        finding: format!("{dropped} packets were dropped at a queue of {name} = {max}"),
        reason: "Each is sent again by its peer, after 200 ms or more. The queue is used by \
                 loopback, tunnels, containers' interfaces and where packets are spread by \
                 software (RPS), not by a network card's own interrupts."
            .to_owned(),
        changes: vec![setting(name, PACKETS_WANTED)],
    })
}

fn packet_budget(machine: &Machine, _: &Setup) -> Option<RuleFinding> {
    let name = "net.core.netdev_budget";
    let budget = machine.number(name)?;
    let squeezed = machine.softnet.squeezed;
    if squeezed < 1000 || budget >= 600 {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::MayHelp,
        finding: format!("packets were left for the next turn {}", times(squeezed)),
        reason:
            "They wait a turn of the kernel's own loop. More at a time is more packets a second \
                 and longer waits for what runs beside."
                .to_owned(),
        changes: vec![setting(name, 600)],
    })
}
