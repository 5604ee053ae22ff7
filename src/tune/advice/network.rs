//! Network cards: rings, queues, interrupts, polling.

use super::{AdvisedChange, NOT_MEASURED, Rule, RuleFinding, Weight, setting};
use crate::tune::machine::Machine;
use crate::tune::setup::Setup;

/// With fewer interrupts, their distribution over processors is not meaningful.
const INTERRUPTS_MIN: u64 = 100_000;

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "ring",
        source: "ethtool(8); Linux, Documentation/networking/statistics.rst (rx_missed_errors)",
        measured: NOT_MEASURED,
        look: ring,
    },
    Rule {
        id: "interrupts",
        source: "Linux, Documentation/networking/scaling.rst (RSS) and \
                 Documentation/core-api/irq/irq-affinity.rst",
        measured: NOT_MEASURED,
        look: interrupts,
    },
    Rule {
        id: "receive-queues",
        source: "Linux, Documentation/networking/scaling.rst (RSS, RPS)",
        measured: NOT_MEASURED,
        look: receive_queues,
    },
    Rule {
        id: "busy-polling",
        source: "Linux, Documentation/networking/napi.rst (busy polling)",
        measured: "within noise of none over loopback, with both engines; it burns a processor",
        look: busy_polling,
    },
];

fn ring(machine: &Machine, _: &Setup) -> Option<RuleFinding> {
    let worst = machine
        .interfaces
        .iter()
        .max_by_key(|interface| interface.missed)?;
    let (name, missed) = (&worst.name, worst.missed);
    if missed == 0 {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Loses,
        finding: format!("{name} lost {missed} packets because its ring was full"),
        reason: "Each is sent again by its peer, after 200 ms or more. A longer ring takes longer \
                 bursts; `ethtool -g` shows how long it can be. If it fills all the time, too few \
                 processors empty it."
            .to_owned(),
        changes: vec![AdvisedChange::Command(format!("ethtool -G {name} rx 4096"))],
    })
}

fn interrupts(machine: &Machine, _: &Setup) -> Option<RuleFinding> {
    let uneven = machine.interfaces.iter().find(|interface| {
        let all: u64 = interface.interrupts.iter().sum();
        let most = interface
            .interrupts
            .iter()
            .max()
            .copied()
            .unwrap_or_default();
        interface.queues > 1 && all >= INTERRUPTS_MIN && most >= all - all / 10
    })?;
    let (name, queues) = (&uneven.name, uneven.queues);
    let most = uneven.interrupts.iter().max()?;
    let processor = uneven.interrupts.iter().position(|count| count == most)?;
    Some(RuleFinding {
        weight: Weight::Limits,
        finding: format!(
            "processor {processor} gets the interrupts of all {queues} queues of {name}"
        ),
        reason: "What it cannot take nobody else does, however idle the others are. irqbalance \
                 spreads them, or one line for each queue's interrupt in /proc/interrupts."
            .to_owned(),
        changes: vec![AdvisedChange::Command(format!(
            "grep {name} /proc/interrupts   # then: echo CPU > /proc/irq/NUMBER/smp_affinity_list"
        ))],
    })
}

fn receive_queues(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let single = machine.interfaces.iter().find(|interface| {
        interface.queues == 1 && !interface.is_spread && machine.processors > 1
    })?;
    if !setup.is_reached_from_outside() {
        return None;
    }
    let name = &single.name;
    Some(RuleFinding {
        weight: Weight::MayHelp,
        finding: format!("{name} has one queue for {} processors", machine.processors),
        reason:
            "One processor takes all packets in. Where it is at its limit (%soft in mpstat), more \
                 queues help, or else spreading by software, which costs some more in all."
                .to_owned(),
        changes: vec![
            AdvisedChange::Command(format!("ethtool -L {name} combined {}", machine.processors)),
            AdvisedChange::Command(format!(
                "echo {} > /sys/class/net/{name}/queues/rx-0/rps_cpus",
                mask(machine.processors)
            )),
        ],
    })
}

/// All processors as the kernel writes masks: groups of 32 bits, the highest first.
fn mask(processors: usize) -> String {
    let mut groups = vec!["ffffffff".to_owned(); processors / 32];
    let rest = processors % 32;
    if rest > 0 {
        groups.insert(0, format!("{:x}", (1_u64 << rest) - 1));
    }
    groups.join(",")
}

fn busy_polling(machine: &Machine, _: &Setup) -> Option<RuleFinding> {
    let names = ["net.core.busy_poll", "net.core.busy_read"];
    let is_on = |name: &&'static str| machine.number(name).is_some_and(|time| time > 0);
    let on: Vec<&'static str> = names.into_iter().filter(is_on).collect();
    if on.is_empty() {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Nothing,
        finding: format!("{} is on", on.join(" and ")),
        reason: "Sockets ask the network card in a loop before they sleep. It shortens the way of \
                 single packets on idle machines by some microseconds, and takes the time from \
                 requests on busy ones."
            .to_owned(),
        changes: on.into_iter().map(|name| setting(name, 0)).collect(),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn masks_are_written_as_the_kernel_does() {
        assert_eq!(super::mask(2), "3");
        assert_eq!(super::mask(32), "ffffffff");
        assert_eq!(super::mask(40), "ff,ffffffff");
    }
}
