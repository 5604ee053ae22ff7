//! Connections that bypass the kernel: frames of an interface through AF_XDP, and a TCP/IP stack in
//! user space above them ([`netstack`]).
//!
//! ```text
//!  privileged process                          worker process
//!  ------------------                          --------------
//!  open: filter, maps, socket, frames ─ QueueParts ─▶ attach: a Port of this thread's engine
//!  Filter::take: which listeners                 (without one the engine is the kernel's alone)
//! ```
//!
//! The queues stay attached as long as the worker process has the descriptors. When that process
//! ends for any reason, the kernel closes the descriptors and handles all connections itself again.
//! So the privileged process keeps the map of listeners, but none of the [`QueueParts`].
//!
//! The files: `bpf.rs` has the system call, `program.rs` the filter, `umem.rs` the memory of the
//! frames, `ring.rs` the rings shared with the kernel, `socket.rs` a socket with both, `netlink.rs`
//! the kernel's view of interfaces, neighbours and routes, `port.rs` a queue with its stack,
//! `profile.rs` the ways to learn of received frames, `streams.rs` the operations in flight on
//! connections, `engine.rs` the engine that combines these connections with the kernel's.
//! `gauges.rs` and `dump.rs` make a queue's state visible to other threads and processes.

mod bpf;
mod dump;
mod engine;
mod firewall;
mod gauges;
mod netlink;
mod port;
mod profile;
mod program;
mod ring;
mod role;
mod socket;
mod streams;
mod umem;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};

use bpf::Attach;
use netlink::Netlink;
use profile::DeferredInterrupts;
use program::{LISTENERS_MAX, Maps, QUEUES_MAX, Taking};

use crate::worker::enter;

pub use dump::Dump;
pub(crate) use engine::Xdp;
pub use gauges::{QueueReport, reports};
pub use netlink::Interface;
pub use port::QueueParts;
pub use profile::Profile;
pub use role::Role;

/// How frames reach the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Native if the driver supports it, otherwise generic.
    #[default]
    Auto,
    /// In the driver, before the kernel allocates a packet for the frame.
    Native,
    /// After the driver: slower, but available with every driver.
    Generic,
}

/// Settings for opening an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name of the interface to open.
    pub interface: String,
    /// How frames reach the socket.
    pub mode: Mode,
    /// How threads learn of received frames.
    pub profile: Profile,
    /// The number of threads that serve connections; each has a receive queue.
    pub threads: u32,
    /// Whether the kernel's firewall rules may be bypassed.
    pub bypasses_firewall: bool,
    /// Which end starts connections.
    pub role: Role,
}

/// An opened interface.
#[derive(Debug)]
pub struct Opened {
    /// The queues for the worker's threads, in the order of the threads.
    pub parts: Vec<QueueParts>,
    /// The filter that selects connections.
    pub filter: Filter,
    /// The properties of the interface.
    pub interface: Interface,
    /// Whether the filter runs in the driver.
    pub is_native: bool,
    /// Whether the card reads and writes the frames directly, without copies.
    pub is_zero_copy: bool,
    /// Whether threads busy-poll the card.
    pub is_polled: bool,
    /// Parts of the profile that this machine does not support.
    pub shortcomings: Vec<String>,
}

/// Why an interface could not be opened.
#[derive(Debug)]
pub struct Refusal {
    /// The name of the interface.
    pub interface: String,
    /// The call that failed.
    pub call: &'static str,
    /// Why the kernel refused the call.
    pub error: io::Error,
}

impl Refusal {
    /// Whether a later attempt may succeed, because another program has the interface now.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.error.raw_os_error() == Some(libc::EBUSY)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, call, error) = (&self.interface, self.call, &self.error);
        write!(f, "{call} for interface \"{name}\" failed: {error}")?;
        let why = match (self.error.raw_os_error(), call) {
            (_, FIREWALL) => {
                "they would not be asked; \"xdp_bypass_firewall on\" says that this is meant"
            }
            (Some(libc::EBUSY), ATTACH) => "another XDP program is attached to it",
            (Some(libc::EBUSY), BIND) => "another socket has its receive queue",
            (Some(libc::EPERM | libc::EACCES), _) => {
                "CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF are needed, and bpf() must be allowed"
            }
            (Some(libc::EAFNOSUPPORT), _) => "this kernel was built without CONFIG_XDP_SOCKETS",
            (Some(libc::ENOSYS), _) => "this kernel was built without CONFIG_BPF_SYSCALL",
            (Some(libc::EOPNOTSUPP), ATTACH) => "its driver knows no XDP",
            _ => return Ok(()),
        };
        write!(f, " ({why})")
    }
}

impl std::error::Error for Refusal {}

const FIREWALL: &str = "passing the firewall by";
const ATTACH: &str = "bpf(BPF_LINK_CREATE)";
const BIND: &str = "bind(AF_XDP)";

/// Opens an interface and attaches the filter, which passes everything to the kernel until
/// [`Filter::take`] is called.
///
/// # Errors
/// If the interface cannot be used.
pub fn open(options: &Options) -> Result<Opened, Refusal> {
    let refused = |call, error| Refusal {
        interface: options.interface.clone(),
        call,
        error,
    };
    let netlink = Netlink::new().map_err(|error| refused("socket(AF_NETLINK)", error))?;
    let mut interface = netlink
        .interface(&options.interface)
        .map_err(|error| refused("looking up", error))?;
    if let Some(queues) = queues_in_use(&interface) {
        interface.queues = queues;
    }
    check(&interface).map_err(|text| refused("use", io::Error::other(text)))?;
    if !options.bypasses_firewall {
        let rules = firewall::of(&options.interface);
        let rules = rules.map_err(|error| refused("looking for rules of a firewall", error))?;
        if let Some(rules) = rules {
            return Err(refused(FIREWALL, io::Error::other(rules)));
        }
    }
    let client_ports = match options.role {
        Role::Server => 0..0,
        Role::Client => netstack::CLIENT_PORTS,
    };
    let ports_count = u32::try_from(client_ports.len()).unwrap_or(u32::MAX);
    let maps = Maps::new(LISTENERS_MAX.max(ports_count));
    let maps = maps.map_err(|error| refused("bpf(BPF_MAP_CREATE)", error))?;
    for port in client_ports {
        if let Some(own) = interface.addresses.first() {
            let listened = maps.listen(SocketAddrV4::new(*own, port), Taking::All);
            listened.map_err(|error| refused("bpf(BPF_MAP_UPDATE_ELEM)", error))?;
        }
    }
    let program = maps
        .load()
        .map_err(|error| refused("bpf(BPF_PROG_LOAD)", error))?;
    let (link, is_native) =
        attach_program(&program, &interface, options.mode).map_err(|e| refused(ATTACH, e))?;
    profile::reset_left_over(&interface);
    let link_id = bpf::link_id(&link).ok();
    let mut link = Some(link);
    let mut parts = Vec::new();
    let mut is_zero_copy = true;
    let queues = match options.role {
        Role::Server => served_queues(&interface, options.threads).max(1),
        Role::Client => 1,
    };
    for number in 0..queues {
        let (mut queue, copies_nothing) = open_queue(&maps, &interface, number, options.role)?;
        queue.link = link.take();
        is_zero_copy &= copies_nothing;
        parts.push(queue);
    }
    let (is_polled, deferred, shortcomings) = match options.profile {
        Profile::Balanced => (false, None, Vec::new()),
        Profile::Latency => poll_busily(&parts, &interface),
    };
    Ok(Opened {
        parts,
        is_polled,
        shortcomings,
        filter: Filter {
            deferred,
            maps,
            interface: interface.clone(),
            queues,
            link_id,
            is_polled,
            taken: BTreeMap::new(),
        },
        interface,
        is_native,
        is_zero_copy,
    })
}

/// The number of queues to open: one for each thread, as far as the interface has that many.
fn served_queues(interface: &Interface, threads: u32) -> u32 {
    interface.queues.min(threads).min(QUEUES_MAX)
}

/// Opens a receive queue and adds its socket to the filter's map. Returns also whether the card
/// reads and writes the frames directly, without copies.
fn open_queue(
    maps: &Maps,
    interface: &Interface,
    number: u32,
    role: Role,
) -> Result<(QueueParts, bool), Refusal> {
    let refused = |call, error| Refusal {
        interface: interface.name.clone(),
        call,
        error,
    };
    let frames = umem::file().map_err(|error| refused("memfd_create()", error))?;
    let socket = socket::make(&frames).map_err(|(call, error)| refused(call, error))?;
    let is_zero_copy =
        socket::bind(&socket, interface.index, number).map_err(|error| refused(BIND, error))?;
    maps.hand(number, socket.as_fd())
        .map_err(|error| refused("bpf(BPF_MAP_UPDATE_ELEM)", error))?;
    let queue = QueueParts {
        interface: interface.name.clone(),
        number,
        socket,
        frames,
        link: None,
        role,
    };
    Ok((queue, is_zero_copy))
}

/// Makes the threads of all queues busy-poll. Returns whether they do, the guard that defers
/// interrupts meanwhile, and descriptions of unsupported parts.
fn poll_busily(
    parts: &[QueueParts],
    interface: &Interface,
) -> (bool, Option<DeferredInterrupts>, Vec<String>) {
    for part in parts {
        if let Err((option, error)) = profile::poll_busily(&part.socket) {
            let text = format!("busy polling is not possible: {option}: {error}");
            return (false, None, vec![text]);
        }
    }
    match DeferredInterrupts::new(interface) {
        Ok(deferred) => (true, Some(deferred), Vec::new()),
        Err(why) => {
            let text = format!("interrupts go on beside busy polling: {why}");
            (true, None, vec![text])
        }
    }
}

/// Receive queues in use, which may be fewer than the card has; `None` if the files in /sys belong
/// to another network namespace, or do not exist.
fn queues_in_use(interface: &Interface) -> Option<u32> {
    let folder = std::path::Path::new("/sys/class/net").join(&interface.name);
    let index = std::fs::read_to_string(folder.join("ifindex")).ok()?;
    if index.trim().parse() != Ok(interface.index) {
        return None;
    }
    let queues = std::fs::read_dir(folder.join("queues")).ok()?.flatten();
    let is_receiving = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        name.as_encoded_bytes().starts_with(b"rx-")
    };
    u32::try_from(queues.filter(is_receiving).count()).ok()
}

/// Checks whether an interface can carry the frames of a stack.
fn check(interface: &Interface) -> Result<(), String> {
    if !interface.is_up {
        return Err("it is down".to_owned());
    }
    if interface.addresses.is_empty() {
        return Err("it has no IPv4 address".to_owned());
    }
    if !interface.mac.is_unicast() {
        return Err("it has no hardware address, so it is no Ethernet".to_owned());
    }
    if interface.mtu < port::MTU_MIN {
        let (mtu, least) = (interface.mtu, port::MTU_MIN);
        return Err(format!("its MTU is {mtu}, and at least {least} are needed"));
    }
    Ok(())
}

/// Attaches the filter. Returns its link, and whether it runs in the driver.
fn attach_program(
    program: &bpf::BpfProgram,
    interface: &Interface,
    mode: Mode,
) -> io::Result<(OwnedFd, bool)> {
    let attach = |how| program.attach(interface.index, how);
    match mode {
        Mode::Native => Ok((attach(Attach::Native)?, true)),
        Mode::Generic => Ok((attach(Attach::Generic)?, false)),
        Mode::Auto => match attach(Attach::Native) {
            Ok(link) => Ok((link, true)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(error),
            Err(_) => Ok((attach(Attach::Generic)?, false)),
        },
    }
}

/// Selects which connections go to the queues of an interface. The kernel detaches the filter when
/// the last descriptor of its link is closed; the first of the [`QueueParts`] holds the link.
#[derive(Debug)]
pub struct Filter {
    maps: Maps,
    interface: Interface,
    /// The number of opened queues, from the first on.
    queues: u32,
    /// The kernel's number of the link that attaches the filter.
    link_id: Option<u32>,
    /// Whether the threads of these queues busy-poll.
    is_polled: bool,
    /// The addresses in the map of listeners, and whether their new connections go to the queues.
    taken: BTreeMap<SocketAddrV4, bool>,
    /// The guard of deferred interrupts, until new connections go to the kernel.
    deferred: Option<DeferredInterrupts>,
}

impl Filter {
    /// Directs new connections to these listeners to the queues, at the interface's own addresses,
    /// and all others to the kernel. Established connections stay where they are. Returns failures
    /// for the log.
    pub fn take(&mut self, listeners: &[SocketAddr]) -> Vec<String> {
        let mut wanted = Vec::new();
        for listener in listeners {
            let SocketAddr::V4(listener) = listener else {
                continue;
            };
            let reached = |own: &&Ipv4Addr| listener.ip().is_unspecified() || listener.ip() == *own;
            let own = self.interface.addresses.iter().filter(reached);
            wanted.extend(own.map(|own| SocketAddrV4::new(*own, listener.port())));
        }
        let mut failures = self.pass_all_but(&wanted);
        for address in wanted {
            if self.taken.get(&address) != Some(&true) {
                match self.maps.listen(address, Taking::All) {
                    Ok(()) => drop(self.taken.insert(address, true)),
                    Err(error) => {
                        failures.push(format!("{address} stays with the kernel: {error}"))
                    }
                }
            }
        }
        failures
    }

    /// Opens further queues, up to one per thread: those that the interface did not have before,
    /// and those for which there was no thread. Returns the new queues and the interface's number
    /// of queues, or `None` if there are no new ones.
    ///
    /// # Errors
    /// If a queue cannot be opened. Queues in use are not affected.
    pub fn open_more(&mut self, threads: u32) -> Result<Option<(Vec<QueueParts>, u32)>, Refusal> {
        if let Some(queues) = queues_in_use(&self.interface) {
            self.interface.queues = queues;
        }
        let mut more = Vec::new();
        while self.queues < served_queues(&self.interface, threads) {
            let (queue, _) = open_queue(&self.maps, &self.interface, self.queues, Role::Server)?;
            if self.is_polled {
                // The option has worked for the other queues. If it fails, this queue uses
                // interrupts.
                let _ = profile::poll_busily(&queue.socket);
            }
            self.queues += 1;
            more.push(queue);
        }
        if more.is_empty() {
            return Ok(None);
        }
        // A virtual card (veth) runs the filter only on the queues that existed when the filter was
        // attached; attaching it again covers all queues. Other drivers run it on new queues
        // anyway, so a failure is ignored.
        if let (Some(link), Ok(program)) = (self.link_id, self.maps.load()) {
            let _ = bpf::replace_program(link, &program);
        }
        Ok(Some((more, self.interface.queues)))
    }

    /// Directs new connections to the kernel; established ones stay where they are.
    pub fn pass_new(&mut self) {
        self.deferred = None;
        self.pass_all_but(&[]);
    }

    /// Directs new connections to all other addresses to the kernel. Returns failures for the log.
    fn pass_all_but(&mut self, wanted: &[SocketAddrV4]) -> Vec<String> {
        let mut failures = Vec::new();
        for (address, is_taken) in &mut self.taken {
            if *is_taken && !wanted.contains(address) {
                match self.maps.listen(*address, Taking::Established) {
                    Ok(()) => *is_taken = false,
                    Err(error) => failures.push(format!("{address} stays with us: {error}")),
                }
            }
        }
        failures
    }

    /// The addresses whose new connections go to the queues.
    pub fn taken(&self) -> impl Iterator<Item = SocketAddrV4> {
        let taken = self.taken.iter().filter(|(_, is_taken)| **is_taken);
        taken.map(|(address, _)| *address)
    }

    /// Connections that were left to the kernel because of a partial checksum.
    #[must_use]
    pub fn partial_checksums(&self) -> u64 {
        self.maps.partial_checksums()
    }
}

/// Makes this thread's engine serve connections through an opened queue, beside the kernel's
/// connections.
///
/// # Errors
/// `Unsupported` if the thread has another engine; also if the interface no longer exists.
///
/// # Panics
/// If the thread has no runtime.
pub fn attach(parts: QueueParts) -> io::Result<()> {
    enter(|worker| worker.engine.attach(parts))
}
