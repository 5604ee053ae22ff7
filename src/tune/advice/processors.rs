//! Threads, quotas, clocks and memory.

use engine::EngineKind;

use super::{AdvisedChange, NOT_MEASURED, Rule, RuleFinding, Weight, setting, times};
use crate::tune::machine::Machine;
use crate::tune::setup::Setup;

/// Clocks that can be read without a system call.
const QUICK_CLOCKS: &[&str] = &[
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
];
/// Before this release, the rings of io_uring count as locked memory.
const RINGS_ARE_LOCKED_BEFORE: (u32, u32) = (5, 12);
const RINGS_SIZE: u64 = 8 << 20;

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "quota",
        source: "Linux, Documentation/admin-guide/cgroup-v2.rst (cpu.max, cpu.stat) and \
                 Documentation/scheduler/sched-bwc.rst",
        measured: NOT_MEASURED,
        look: quota,
    },
    Rule {
        id: "out-of-memory",
        source: "Linux, Documentation/admin-guide/cgroup-v2.rst (memory.events)",
        measured: NOT_MEASURED,
        look: out_of_memory,
    },
    Rule {
        id: "threads",
        source: "nginx, ngx_core_module (worker_processes)",
        measured: NOT_MEASURED,
        look: threads,
    },
    Rule {
        id: "clock",
        source: "vdso(7); Linux, Documentation/timers/timekeeping.rst",
        measured: NOT_MEASURED,
        look: clock,
    },
    Rule {
        id: "frequency",
        source: "Linux, Documentation/admin-guide/pm/cpufreq.rst",
        measured: NOT_MEASURED,
        look: frequency,
    },
    Rule {
        id: "io-uring",
        source: "Linux, Documentation/admin-guide/sysctl/kernel.rst (io_uring_disabled)",
        measured: "both engines alike within noise over loopback (docs/decisions/engine.md)",
        look: io_uring,
    },
    Rule {
        id: "locked-memory",
        source: "Linux 5.12, \"io_uring: place ring SQ/CQ arrays under memcg memory limits\"; \
                 systemd.exec(5), LimitMEMLOCK=",
        measured: NOT_MEASURED,
        look: locked_memory,
    },
    Rule {
        id: "transparent-huge-pages",
        source: "Linux, Documentation/admin-guide/mm/transhuge.rst",
        measured: NOT_MEASURED,
        look: transparent_huge_pages,
    },
    Rule {
        id: "huge-pages",
        source: "Linux, Documentation/admin-guide/mm/hugetlbpage.rst",
        measured: "nothing here takes them, so more of them change nothing",
        look: huge_pages,
    },
];

fn quota(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let group = &machine.group;
    let quota = group.quota?;
    let threads = group.processors_of(usize::MAX);
    let is_throttled = group.throttled > 0;
    if setup.threads <= threads && !is_throttled {
        return None;
    }
    let mut finding = format!(
        "the control group (version {}) allows {quota} processors, {} threads are configured",
        group.version, setup.threads
    );
    if is_throttled {
        finding += &format!("; it was stopped {}", times(group.throttled));
    }
    let mut changes = Vec::new();
    if setup.threads > threads {
        changes.push(AdvisedChange::Configuration(format!(
            "worker_processes {threads};"
        )));
    }
    Some(RuleFinding {
        weight: if is_throttled {
            Weight::Loses
        } else {
            Weight::Limits
        },
        finding,
        reason:
            "When the quota of a period (mostly 100 ms) is spent, all threads stand still until \
                 the next, so that the slowest requests take up to that much longer. More threads \
                 spend it sooner. `worker_processes auto` takes as many as the quota is for."
                .to_owned(),
        changes,
    })
}

fn out_of_memory(machine: &Machine, _: &Setup) -> Option<RuleFinding> {
    let times_ended = machine.group.out_of_memory;
    if times_ended == 0 {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Loses,
        finding: format!(
            "the control group ended a process for want of memory {}",
            times(times_ended)
        ),
        reason:
            "All its connections broke. Give the group more, or bound what the server may hold: \
                 worker_connections, client_body_buffer_size, zones and caches."
                .to_owned(),
        changes: Vec::new(),
    })
}

fn threads(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let allowed = machine.group.processors_of(machine.processors);
    if setup.threads >= allowed {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Limits,
        finding: format!("{} of {allowed} processors serve", setup.threads),
        reason:
            "The default of worker_processes is one. If something else needs the others, leave \
                 it so."
                .to_owned(),
        changes: vec![AdvisedChange::Configuration(match machine.group.quota {
            Some(_) => format!("worker_processes {allowed};"),
            None => "worker_processes auto;".to_owned(),
        })],
    })
}

fn clock(machine: &Machine, _: &Setup) -> Option<RuleFinding> {
    let clock = machine.clock_source.as_deref()?;
    if QUICK_CLOCKS.contains(&clock) {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::MayHelp,
        finding: format!("the clock is {clock}"),
        reason:
            "Each reading is a system call, and some 1 µs with hpet or acpi_pm instead of 20 ns. \
                 The loop reads it once a turn. The kernel's log says why tsc was not taken."
                .to_owned(),
        changes: Vec::new(),
    })
}

fn frequency(machine: &Machine, _: &Setup) -> Option<RuleFinding> {
    let governor = machine.governor.as_deref()?;
    if !matches!(governor, "powersave" | "ondemand" | "conservative") {
        return None;
    }
    let file = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";
    let command = format!("for file in {file}; do echo performance > $file; done");
    Some(RuleFinding {
        weight: Weight::MayHelp,
        finding: format!("processors change their frequency by {governor}"),
        reason: "A processor that has just slept serves the first requests slowly. It matters for \
                 the latency of small loads, not for what a busy machine can do, and costs power."
            .to_owned(),
        changes: vec![AdvisedChange::Command(command)],
    })
}

fn io_uring(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let name = "kernel.io_uring_disabled";
    let disabled = machine.number(name)?;
    if disabled == 0 || setup.engine != Some(EngineKind::Uring) {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Limits,
        finding: format!("`use io_uring` is configured, {name} is {disabled}"),
        reason:
            "The server uses epoll then. It was forbidden for what it opened to attackers within \
                 the machine: allow it only where nobody else runs programs here."
                .to_owned(),
        changes: vec![setting(name, 0)],
    })
}

fn locked_memory(machine: &Machine, setup: &Setup) -> Option<RuleFinding> {
    let max = machine.process.locked_memory_max?;
    if setup.engine != Some(EngineKind::Uring) {
        return None;
    }
    let is_old = machine.release() != (0, 0) && machine.release() < RINGS_ARE_LOCKED_BEFORE;
    let threads = setup.threads as u64;
    if !is_old || max >= RINGS_SIZE.saturating_mul(threads) {
        return None;
    }
    Some(RuleFinding {
        weight: Weight::Limits,
        finding: format!("{max} bytes may be locked, and this kernel counts io_uring's rings"),
        reason: "Without them the server uses epoll.".to_owned(),
        changes: vec![AdvisedChange::Unit {
            name: "LimitMEMLOCK",
            value: RINGS_SIZE.saturating_mul(threads).to_string(),
        }],
    })
}

fn transparent_huge_pages(machine: &Machine, _: &Setup) -> Option<RuleFinding> {
    if machine.huge_pages.as_deref() != Some("always") {
        return None;
    }
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    Some(RuleFinding {
        weight: Weight::MayHelp,
        finding: "every process gets huge pages (transparent_hugepage is \"always\")".to_owned(),
        reason: "Small use of a large area takes whole huge pages, so many idle connections may \
                 hold more memory, and the kernel stops now and then to make some. Processes that \
                 gain from them ask for them (\"madvise\")."
            .to_owned(),
        changes: vec![AdvisedChange::Command(format!("echo madvise > {file}"))],
    })
}

fn huge_pages(machine: &Machine, _: &Setup) -> Option<RuleFinding> {
    let name = "vm.nr_hugepages";
    let count = machine.number(name)?;
    let free = machine.memory("HugePages_Free").unwrap_or_default();
    if count == 0 || free < count {
        return None;
    }
    let kibibytes = machine.memory("Hugepagesize").unwrap_or(2048);
    let megabytes = count.saturating_mul(kibibytes) / 1024;
    Some(RuleFinding {
        weight: Weight::MayHelp,
        finding: format!("{count} huge pages are kept, and nobody uses one"),
        reason: format!(
            "{megabytes} MB are missing elsewhere, in the page cache for one. Lists advise them \
             for network stacks in user space (Onload), which hold their packets in them; \
             Tidegate takes none."
        ),
        changes: vec![setting(name, 0)],
    })
}
