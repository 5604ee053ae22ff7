//! Socket buffers, and how TCP uses them.

use super::{AdvisedChange, NOT_MEASURED, Rule, RuleFinding, Weight, setting, times};
use crate::tune::machine::Machine;
use crate::tune::setup::Setup;

/// The largest send buffer needed for a distant client on a fast line: 300 Mbit/s over 100 ms.
const BUFFER_WANTED: u64 = 4 << 20;
/// The value without a limit: the whole send buffer may hold unsent data.
const UNBOUNDED: u64 = u32::MAX as u64;

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "tcp-memory",
        source: "Linux, Documentation/networking/ip-sysctl.rst (tcp_mem)",
        measured: NOT_MEASURED,
        look: tcp_memory,
    },
    Rule {
        id: "tcp-extensions",
        source: "RFC 7323 (window scaling, timestamps), RFC 2018 (SACK)",
        measured: NOT_MEASURED,
        look: tcp_extensions,
    },
    Rule {
        id: "datagram-buffers",
        source: "udp(7); Linux, Documentation/admin-guide/sysctl/net.rst (rmem_max)",
        measured: NOT_MEASURED,
        look: datagram_buffers,
    },
    Rule {
        id: "fast-open",
        source: "RFC 7413; Linux, Documentation/networking/ip-sysctl.rst (tcp_fastopen)",
        measured: "without the bit the option of `listen` does nothing",
        look: fast_open,
    },
    Rule {
        id: "send-buffers",
        source: "RFC 7323, section 1.1; Linux, Documentation/networking/ip-sysctl.rst (tcp_wmem)",
        measured: "not measured: the round trip of loopback is too short to show it",
        look: send_buffers,
    },
    Rule {
        id: "congestion",
        source: "RFC 9438 (CUBIC); draft-ietf-ccwg-bbr; Linux 4.13 (pacing without fq)",
        measured: "not measured: loopback loses nothing",
        look: congestion,
    },
    Rule {
        id: "idle-connections",
        source: "RFC 5681, section 4.1; RFC 7661; Linux, ip-sysctl.rst (tcp_slow_start_after_idle)",
        measured: "not measured: the round trip of loopback is too short to show it",
        look: idle_connections,
    },
    Rule {
        id: "unsent-bytes",
        source: "Linux, ip-sysctl.rst (tcp_notsent_lowat); RFC 9218, section 10 (priorities)",
        measured: NOT_MEASURED,
        look: unsent_bytes,
    },
];

fn tcp_memory(machine: &Machine, _: &Setup) -> Option<RuleFinding> {
    let name = "net.ipv4.tcp_mem";
    let (low, pressure, high) = (
        machine.number_of(name, 0)?,
        machine.number_of(name, 1)?,
        machine.number_of(name, 2)?,
    );
    let pressures = machine.counter("TcpExt.TCPMemoryPressures");
    let pages = machine.sockets.pages;
    if pressures == 0 && pages < pressure {
        return None;
    }
    let is_short = pages >= pressure;
    let doubled = [low, pressure, high].map(|pages| pages.saturating_mul(2).to_string());
    Some(RuleFinding {
        weight: if is_short {
            Weight::Loses
        } else {
            Weight::MayHelp
        },
        finding: format!(
            "TCP holds {pages} pages, is short of memory from {pressure} on, and was so {} since \
             its start",
            times(pressures)
        ),
        reason: "It shrinks the windows of all connections then, and drops packets from the third \
                 number on. Twice as much is only for machines that have it; smaller buffers \
                 (tcp_rmem, tcp_wmem) and fewer connections need less."
            .to_owned(),
        // Without current pressure, no change is advised.
        changes: is_short
            .then(|| setting(name, doubled.join(" ")))
            .into_iter()
            .collect(),
    })
}

/// Lists from the time of the first 10 Gbit/s cards turn TCP's extensions off to save instructions.
fn tcp_extensions(machine: &Machine, _: &Setup) -> Option<RuleFinding> {
    let names = [
        "net.ipv4.tcp_window_scaling",
        "net.ipv4.tcp_sack",
        "net.ipv4.tcp_timestamps",
    ];
    let is_off = |name: &&'static str| machine.number(name) == Some(0);
    let off: Vec<&'static str> = names.into_iter().filter(is_off).collect();
    if off.is_empty() {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Limits,
        finding: format!("off: {}", off.join(", ")),
        reason:
            "Without window scaling no connection has more than 64 KB under way: 5 Mbit/s over \
                 100 ms. Without SACK a lost packet makes many be sent again. Without timestamps \
                 round trips are measured once a window and TIME-WAIT cannot be shortened. Lists \
                 turned them off for benchmarks in one room."
                .to_owned(),
        changes: off.into_iter().map(|name| setting(name, 1)).collect(),
    })
}

fn datagram_buffers(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "net.core.rmem_max";
    let max = machine.number(name)?;
    let lost = machine.counter("Udp.RcvbufErrors");
    let listens = setup.listening.iter().any(|listen| listen.is_datagram);
    if !listens || lost == 0 || max >= BUFFER_WANTED {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Loses,
        finding: format!("{lost} datagrams found their socket's buffer full"),
        reason:
            "UDP sends nothing again. A buffer is as long as `rcvbuf` of `listen` says, and at \
                 most this."
                .to_owned(),
        changes: vec![
            setting(name, BUFFER_WANTED),
            AdvisedChange::Configuration("listen ... udp rcvbuf=4m;".to_owned()),
        ],
    })
}

fn fast_open(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "net.ipv4.tcp_fastopen";
    let bits = machine.number(name)?;
    if bits & 2 != 0 || !setup.listening.iter().any(|listen| listen.fastopen) {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Limits,
        finding: format!("`listen ... fastopen=` is configured, {name} is {bits}"),
        reason: "The second bit is the server's. A client that comes again saves a round trip. \
                 Requests may come twice."
            .to_owned(),
        changes: vec![setting(name, bits | 2)],
    })
}

fn send_buffers(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "net.ipv4.tcp_wmem";
    let (min, default, max) = (
        machine.number_of(name, 0)?,
        machine.number_of(name, 1)?,
        machine.number_of(name, 2)?,
    );
    if max >= BUFFER_WANTED || !setup.is_reached_from_outside() {
        return None;
    }
    let megabits = max * 8 * 10 / 1_000_000;
    Some(RuleFinding {
        weight: Weight::MayHelp,
        finding: format!("a connection sends from at most {max} bytes (the third of {name})"),
        reason: format!(
            "Over a round trip of 100 ms one connection gets at most some {megabits} Mbit/s. The \
             kernel lets buffers grow as they are needed, so a larger bound costs nothing where \
             clients are near. wmem_max and rmem_max do not count for that: they bound `sndbuf` \
             and `rcvbuf` only."
        ),
        changes: vec![setting(name, format!("{min} {default} {BUFFER_WANTED}"))],
    })
}

fn congestion(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "net.ipv4.tcp_congestion_control";
    let current = machine.setting(name)?;
    let available = machine.setting("net.ipv4.tcp_available_congestion_control")?;
    let has_bbr = available.split(' ').any(|one| one == "bbr");
    if current == "bbr" || !has_bbr || !setup.is_reached_from_outside() {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::MayHelp,
        finding: format!("connections are paced by {current}; bbr is there too"),
        reason: "bbr keeps its rate where packets are lost without congestion (mobile and long \
                 lines), which is several times as fast there; in one room it is none the better, \
                 and it takes more of the processor. Try it on one of several machines."
            .to_owned(),
        changes: vec![setting(name, "bbr")],
    })
}

fn idle_connections(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "net.ipv4.tcp_slow_start_after_idle";
    if machine.number(name)? != 1 || !setup.is_reached_from_outside() {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::MayHelp,
        finding: "a connection that was idle begins slowly again".to_owned(),
        reason:
            "A kept connection's next large response takes some round trips more after a pause \
                 of a fraction of a second. With 0 it begins with a burst, which a narrow line may \
                 lose."
                .to_owned(),
        changes: vec![setting(name, 0)],
    })
}

fn unsent_bytes(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "net.ipv4.tcp_notsent_lowat";
    if machine.number(name)? < UNBOUNDED || !setup.speaks_http2 {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::MayHelp,
        finding: "all of a send buffer may wait in the kernel, and HTTP/2 is spoken".to_owned(),
        reason:
            "What is in the kernel cannot be overtaken: an urgent stream waits behind up to the \
                 whole buffer of others. With 128 KB little waits there, at the cost of more turns \
                 of the loop for large files."
                .to_owned(),
        changes: vec![setting(name, 131_072)],
    })
}
