//! The state of a machine according to `/proc` and `/sys`, read once.
//!
//! All paths are relative to a root, so that a copy of another machine's folders can be read as
//! well. A missing file (in a container, with an older kernel) leaves its value absent, and no
//! advice follows from it. Nothing is judged here. Reference: proc(5), cgroups(7),
//! `Documentation/admin-guide/sysctl` of Linux.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::control_group::ControlGroup;
use crate::machine_files::MachineFiles;

/// The settings below `/proc/sys` that advice is about.
const SETTINGS: &[&str] = &[
    "fs.file-max",
    "fs.nr_open",
    "kernel.io_uring_disabled",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.netdev_budget",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_max",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_fastopen",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
    "vm.nr_hugepages",
];

/// A machine, or the part of it that a container can see.
#[derive(Debug, Default)]
pub(super) struct Machine {
    /// The folder that contains `/proc`, `/sys` and `/etc`.
    pub(super) root: PathBuf,
    /// The name and the release of the kernel, for example `Linux 6.12.1`.
    pub(super) kernel: String,
    settings: BTreeMap<&'static str, String>,
    counters: BTreeMap<String, u64>,
    /// The values of `/proc/meminfo`, in its units.
    memory: BTreeMap<String, u64>,
    /// Packets dropped because a processor's queue was full, and how often a processor stopped
    /// polling because its time slice was used up.
    pub(super) softnet: Softnet,
    /// Online processors.
    pub(super) processors: usize,
    pub(super) clock_source: Option<String>,
    /// The frequency governor of the first processor, for example `powersave`.
    pub(super) governor: Option<String>,
    /// `always`, `madvise` or `never`.
    pub(super) huge_pages: Option<String>,
    /// Interfaces that belong to a device.
    pub(super) interfaces: Vec<Interface>,
    /// Pages of memory held by TCP, and connections in TIME-WAIT.
    pub(super) sockets: Sockets,
    /// The process whose limits are judged.
    pub(super) process: Process,
    /// The limits of the process's control groups.
    pub(super) group: ControlGroup,
    /// The kind of the container, for example `docker`; `None` outside a container.
    pub(super) container: Option<&'static str>,
    /// Whether systemd runs the machine.
    pub(super) has_systemd: bool,
}

/// `/proc/net/softnet_stat`, summed over all processors.
#[derive(Debug, Default)]
pub(super) struct Softnet {
    pub(super) dropped: u64,
    pub(super) squeezed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Sockets {
    pub(super) time_wait: u64,
    pub(super) pages: u64,
}

/// A network interface.
#[derive(Debug, Default)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) queues: usize,
    /// Whether the packets of a queue are distributed over processors by software (RPS).
    pub(super) is_spread: bool,
    /// Packets lost because the device's ring was full.
    pub(super) missed: u64,
    /// Interrupts of its queues, by processor.
    pub(super) interrupts: Vec<u64>,
}

/// The server's process, or this process if no server is running.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// `None` for this process itself.
    pub(super) pid: Option<u32>,
    /// The hard limit of open files.
    pub(super) open_files_max: Option<u64>,
    /// Limit of locked memory, in bytes.
    pub(super) locked_memory_max: Option<u64>,
    /// The systemd unit of the process.
    pub(super) unit: Option<String>,
}

impl Machine {
    /// Reads the machine below a root. The process is the one in the pid file, if it is running.
    pub(super) fn read(root: &Path, pid_file: Option<&Path>) -> Machine {
        let files = MachineFiles { root };
        let pid = pid_file.and_then(|path| running(&files, path));
        let me = pid.map_or("proc/self".to_owned(), |pid| format!("proc/{pid}"));
        let mut machine = Machine {
            root: root.to_owned(),
            kernel: kernel(&files),
            softnet: softnet(&files),
            processors: processors(&files),
            sockets: sockets(&files),
            memory: files.table("proc/meminfo", ':'),
            interfaces: interfaces(&files),
            process: process(&files, &me, pid),
            group: ControlGroup::read(&files, &me),
            container: container(&files),
            has_systemd: files.exists("run/systemd/system"),
            ..Machine::default()
        };
        for name in SETTINGS {
            if let Some(value) = setting(&files, name) {
                machine.settings.insert(name, value);
            }
        }
        for path in ["proc/net/netstat", "proc/net/snmp"] {
            machine.counters.extend(counters(&files.text(path)));
        }
        let clock = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        machine.clock_source = files.word(clock);
        machine.governor = governor(&files);
        let huge_pages = files.text("sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = huge_pages.split(['[', ']']).nth(1);
        machine.huge_pages = chosen.map(str::to_owned);
        machine
    }

    /// The value of a setting; several numbers are separated by one blank each.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// The value of a numeric setting.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.setting(name)?.parse().ok()
    }

    /// The number at this index of a setting with several numbers.
    pub(super) fn number_of(&self, name: &str, place: usize) -> Option<u64> {
        self.setting(name)?.split(' ').nth(place)?.parse().ok()
    }

    /// The number of ports for outgoing connections, the first port and the last port.
    pub(super) fn ports(&self) -> Option<(u64, u64, u64)> {
        let name = "net.ipv4.ip_local_port_range";
        let (first, last) = (self.number_of(name, 0)?, self.number_of(name, 1)?);
        Some((last.checked_sub(first)?.checked_add(1)?, first, last))
    }

    /// A network counter, for example `TcpExt.ListenOverflows`; 0 if it does not exist.
    pub(super) fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }

    /// A value of `/proc/meminfo`.
    pub(super) fn memory(&self, name: &str) -> Option<u64> {
        self.memory.get(name).copied()
    }

    /// The kernel's release, for example (6, 1); (0, 0) if unknown.
    pub(super) fn release(&self) -> (u32, u32) {
        let release = self.kernel.split(' ').next_back().unwrap_or_default();
        let mut numbers = release
            .split(|letter: char| !letter.is_ascii_digit())
            .map(|number| number.parse().unwrap_or_default());
        (
            numbers.next().unwrap_or_default(),
            numbers.next().unwrap_or_default(),
        )
    }
}

/// A setting's file below `/proc/sys`. In general a dot within a name stands for a slash in the
/// path; none of the names here has such a dot.
pub(super) fn setting_path(name: &str) -> PathBuf {
    Path::new("proc/sys").join(name.replace('.', "/"))
}

/// The normalized value of a setting, as it is written and compared.
pub(super) fn normal(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn setting(files: &MachineFiles<'_>, name: &str) -> Option<String> {
    let text = fs::read_to_string(files.root.join(setting_path(name)));
    text.ok().map(|text| normal(&text))
}

fn kernel(files: &MachineFiles<'_>) -> String {
    let release = files.word("proc/sys/kernel/osrelease");
    release.map_or("Linux".to_owned(), |release| format!("Linux {release}"))
}

/// The process in a pid file, if it is running.
fn running(files: &MachineFiles<'_>, pid_file: &Path) -> Option<u32> {
    let below = pid_file.strip_prefix("/").unwrap_or(pid_file);
    let pid = files.number(below)?;
    let pid = u32::try_from(pid).ok()?;
    files.exists(&format!("proc/{pid}/limits")).then_some(pid)
}

fn softnet(files: &MachineFiles<'_>) -> Softnet {
    let mut all = Softnet::default();
    for line in files.text("proc/net/softnet_stat").lines() {
        let mut numbers = line
            .split_whitespace()
            .map(|number| u64::from_str_radix(number, 16).unwrap_or_default())
            .skip(1);
        all.dropped += numbers.next().unwrap_or_default();
        all.squeezed += numbers.next().unwrap_or_default();
    }
    all
}

/// The frequency governor of the first processor. Drivers that leave the frequency to the processor
/// use the name `powersave` as well, which is no concern here.
fn governor(files: &MachineFiles<'_>) -> Option<String> {
    let folder = Path::new("sys/devices/system/cpu/cpu0/cpufreq");
    let driver = files.word(folder.join("scaling_driver"));
    match driver.as_deref() {
        Some("intel_pstate" | "amd-pstate-epp") => None,
        _ => files.word(folder.join("scaling_governor")),
    }
}

fn processors(files: &MachineFiles<'_>) -> usize {
    let online = files.text("sys/devices/system/cpu/online");
    let ranges = online.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    ranges.sum::<usize>().max(1)
}

fn sockets(files: &MachineFiles<'_>) -> Sockets {
    let text = files.text("proc/net/sockstat");
    let line = text.lines().find_map(|line| line.strip_prefix("TCP: "));
    let words: Vec<&str> = line.unwrap_or_default().split(' ').collect();
    let value = |name: &str| {
        let place = words.iter().position(|word| *word == name)?;
        words.get(place + 1)?.parse().ok()
    };
    Sockets {
        time_wait: value("tw").unwrap_or_default(),
        pages: value("mem").unwrap_or_default(),
    }
}

/// Parses pairs of lines, names and values.
fn counters(text: &str) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks_exact(2) {
        let [names, values] = pair else { continue };
        let (Some((group, names)), Some((_, values))) =
            (names.split_once(':'), values.split_once(':'))
        else {
            continue;
        };
        let pairs = names.split_whitespace().zip(values.split_whitespace());
        all.extend(
            pairs
                .filter_map(|(name, value)| Some((format!("{group}.{name}"), value.parse().ok()?))),
        );
    }
    all
}

fn interfaces(files: &MachineFiles<'_>) -> Vec<Interface> {
    let all = Path::new("sys/class/net");
    let interrupts = Interrupts::read(files);
    let names = files.names(all).into_iter();
    // Bridges, loopback and other virtual interfaces have no device.
    let names = names.filter(|name| files.root.join(all).join(name).join("device").exists());
    let interface = |name: String| {
        let folder = all.join(&name);
        let queues = files.names(folder.join("queues")).into_iter();
        let queues: Vec<String> = queues.filter(|queue| queue.starts_with("rx-")).collect();
        let is_spread = queues.iter().any(|queue| {
            let mask = files.text(folder.join("queues").join(queue).join("rps_cpus"));
            mask.contains(|digit: char| matches!(digit, '1'..='9' | 'a'..='f'))
        });
        let lost = |counter: &str| {
            let path = folder.join("statistics").join(counter);
            files.number(path).unwrap_or_default()
        };
        Interface {
            queues: queues.len(),
            is_spread,
            missed: lost("rx_missed_errors").saturating_add(lost("rx_fifo_errors")),
            interrupts: interrupts.of(files, &folder, &name),
            name,
        }
    };
    names.map(interface).collect()
}

/// `/proc/interrupts`: for each interrupt number, its counts by processor and its name.
struct Interrupts {
    lines: BTreeMap<String, (Vec<u64>, String)>,
}

impl Interrupts {
    fn read(files: &MachineFiles<'_>) -> Interrupts {
        let text = files.text("proc/interrupts");
        let lines = text.lines().filter_map(|line| {
            let (number, rest) = line.trim_start().split_once(':')?;
            let words = rest.split_whitespace();
            let counts = words.map_while(|word| word.parse().ok()).collect();
            Some((number.to_owned(), (counts, rest.to_owned())))
        });
        Interrupts {
            lines: lines.collect(),
        }
    }

    /// The interrupts of an interface's queues, summed by processor.
    fn of(&self, files: &MachineFiles<'_>, folder: &Path, interface: &str) -> Vec<u64> {
        let mut numbers = files.names(folder.join("device/msi_irqs"));
        if numbers.is_empty() {
            // With virtio, the interrupts belong to the parent device.
            numbers = files.names(folder.join("device/../msi_irqs"));
        }
        let mut sums: Vec<u64> = Vec::new();
        let is_named = |name: &str| name.contains(interface);
        let of_interface = self.lines.iter().filter(|(number, (_, name))| {
            numbers.contains(number) || (numbers.is_empty() && is_named(name))
        });
        for (_, (counts, _)) in of_interface {
            sums.resize(sums.len().max(counts.len()), 0);
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum = sum.saturating_add(*count);
            }
        }
        sums
    }
}

fn process(files: &MachineFiles<'_>, me: &str, pid: Option<u32>) -> Process {
    let limits = files.text(format!("{me}/limits"));
    let hard = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        let hard = line.split_whitespace().nth(1)?;
        // An unlimited value has no number.
        hard.parse().ok()
    };
    let groups = files.text(format!("{me}/cgroup"));
    let mut parts = groups.lines().flat_map(|line| line.split('/'));
    let unit = parts.rfind(|part| part.ends_with(".service"));
    let unit = unit.map(str::to_owned);
    Process {
        pid,
        open_files_max: hard("Max open files"),
        locked_memory_max: hard("Max locked memory"),
        // The unit of the shell that runs this command is not the server's.
        unit: unit.filter(|_| pid.is_some()),
    }
}

fn container(files: &MachineFiles<'_>) -> Option<&'static str> {
    if files.exists(".dockerenv") {
        return Some("docker");
    }
    if files.exists("run/.containerenv") {
        return Some("podman");
    }
    files
        .word("run/systemd/container")
        .map(|_| "a container of systemd's kin")
}
