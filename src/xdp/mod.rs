//! `use xdp` across processes: the master opens queues of interfaces and sets which listeners they
//! serve; a worker process attaches the queues to its threads.
//!
//! Only the worker holds the descriptors. The master keeps the filter of each interface, which
//! selects connections.

mod dump;

use std::collections::{BTreeMap, HashMap};
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use clap::{Args, Subcommand};
use conf::Diagnostic;
use engine::net::{Address, SocketKind};
use engine::xdp::{Filter, Opened, Options, QueueParts, Role};
use framework::protocol_part::ListenSocket;
use framework::workers::Workers;
use process::{Device, DeviceError, Level, OpenDevice};
use server::events::Events;

/// Look at connections that pass the kernel by
#[derive(Args)]
#[command(disable_version_flag = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Dump(dump::Arguments),
}

/// `tidegate xdp`.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match &arguments.action {
        Action::Dump(arguments) => dump::run(arguments),
    }
}

/// The filters of open interfaces, by interface name.
static FILTERS: Mutex<BTreeMap<String, Filter>> = Mutex::new(BTreeMap::new());

/// The suffix after an interface's name in the keys of its descriptors.
const SOCKET: &str = "socket";
const FRAMES: &str = "frames";
const LINK: &str = "link";

/// The devices of a configuration: its interfaces.
pub(crate) fn devices(events: &Events, listening: &[ListenSocket], threads: usize) -> Vec<Device> {
    let Some(xdp) = &events.xdp else {
        return Vec::new();
    };
    let some_are_marked = listening.iter().any(|listening| listening.options.xdp);
    let wanted = listening
        .iter()
        .filter(|listening| listening.options.xdp || !some_are_marked);
    let listeners: Vec<SocketAddr> = wanted.filter_map(address).collect();
    let threads = u32::try_from(threads).unwrap_or(u32::MAX);
    let device = |interface: &String| {
        let options = Options {
            interface: interface.clone(),
            mode: xdp.mode,
            profile: xdp.profile,
            threads,
            role: Role::Server,
            bypasses_firewall: xdp.bypasses_firewall,
        };
        let name = interface.clone();
        let open_more = move || open_more(&name, threads);
        let name = interface.clone();
        let listeners = listeners.clone();
        let follow = move || follow(&name, &listeners);
        let name = interface.clone();
        Device {
            is_required: xdp.is_required,
            open: Box::new(move || open(&options)),
            open_more: Box::new(open_more),
            follow: Box::new(follow),
            release: Box::new(move || {
                with_filter(&name, Filter::pass_new);
            }),
        }
    };
    xdp.interfaces.iter().map(device).collect()
}

/// Warnings about listeners whose settings `use xdp` cannot honour.
pub(crate) fn warnings(events: &Events, listening: &[ListenSocket]) -> Vec<Diagnostic> {
    let asking = listening.iter().filter(|listening| listening.options.xdp);
    let warning = |listening: &ListenSocket| {
        let why = match address(listening) {
            _ if events.xdp.is_none() => "without \"use xdp\"",
            Some(SocketAddr::V4(_)) => return None,
            Some(SocketAddr::V6(_)) => "for IPv6",
            None => "for what is not TCP over IPv4",
        };
        let address = &listening.options.address;
        let text = format!("\"xdp\" of \"listen {address}\" has no effect {why}");
        Some(Diagnostic::warn(text, None))
    };
    asking.filter_map(warning).collect()
}

/// The address at which a listener accepts TCP connections.
fn address(listening: &ListenSocket) -> Option<SocketAddr> {
    match listening.options.address {
        Address::Inet(address) if listening.options.carries == SocketKind::Streams => Some(address),
        _ => None,
    }
}

fn with_filter<R>(interface: &str, what: impl FnOnce(&mut Filter) -> R) -> Option<R> {
    let mut filters = FILTERS.lock().unwrap_or_else(PoisonError::into_inner);
    filters.get_mut(interface).map(what)
}

/// Sets the filter of an interface to exactly these listeners.
fn follow(interface: &str, listeners: &[SocketAddr]) -> Vec<(Level, String)> {
    let taken = with_filter(interface, |filter| {
        let before: Vec<_> = filter.taken().collect();
        let failures = filter.take(listeners);
        let is_new = |address: &SocketAddrV4| !before.contains(address);
        let new: Vec<_> = filter.taken().filter(is_new).collect();
        let is_none = filter.taken().next().is_none();
        (new, failures, is_none)
    });
    let Some((new, failures, is_none)) = taken else {
        return Vec::new();
    };
    let mut notes: Vec<(Level, String)> = failures
        .into_iter()
        .map(|text| (Level::Warn, text))
        .collect();
    if !new.is_empty() {
        let addresses: Vec<String> = new.iter().map(ToString::to_string).collect();
        let addresses = addresses.join(", ");
        let text = format!("connections to {addresses} by \"{interface}\" pass the kernel by");
        notes.push((Level::Notice, text));
    }
    if is_none {
        let text = format!("no \"listen\" names an IPv4 address that \"{interface}\" has");
        notes.push((Level::Warn, text));
    }
    notes
}

fn open(options: &Options) -> Result<OpenDevice, DeviceError> {
    let opened = engine::xdp::open(options).map_err(|refusal| DeviceError {
        text: format!("{refusal}: the kernel serves its connections"),
        is_passing: refusal.is_passing(),
    })?;
    let mut notes = vec![(Level::Notice, description(&opened))];
    for text in &opened.shortcomings {
        notes.push((Level::Warn, format!("\"{}\": {text}", options.interface)));
    }
    let Opened { parts, filter, .. } = opened;
    let mut filters = FILTERS.lock().unwrap_or_else(PoisonError::into_inner);
    filters.insert(options.interface.clone(), filter);
    let descriptors = descriptors(parts);
    Ok(OpenDevice { descriptors, notes })
}

/// Opens the queues that an interface has gained since a worker process opened it.
fn open_more(interface: &str, threads: u32) -> Result<OpenDevice, DeviceError> {
    let opened = with_filter(interface, |filter| filter.open_more(threads));
    let opened = opened.transpose().map_err(|refusal| DeviceError {
        text: format!("{refusal}: the kernel serves the connections of further queues"),
        is_passing: false,
    })?;
    let mut open = OpenDevice {
        descriptors: Vec::new(),
        notes: Vec::new(),
    };
    if let Some((parts, all)) = opened.flatten() {
        let used = parts.last().map_or(0, |queue| queue.number + 1);
        let text = format!("{used} of {all} receive queues of \"{interface}\" have a thread now");
        open.notes.push((Level::Notice, text));
        open.descriptors = descriptors(parts);
    }
    Ok(open)
}

/// The descriptors of queues, by their keys.
fn descriptors(queues: Vec<QueueParts>) -> Vec<(String, OwnedFd)> {
    let mut descriptors = Vec::new();
    for queue in queues {
        let key = |what: &str| format!("{} {} {what}", queue.interface, queue.number);
        let keys = (key(SOCKET), key(FRAMES), key(LINK));
        descriptors.push((keys.0, queue.socket));
        descriptors.push((keys.1, queue.frames));
        descriptors.extend(queue.link.map(|link| (keys.2, link)));
    }
    descriptors
}

/// The log line about an opened interface at start.
fn description(opened: &Opened) -> String {
    let Opened {
        parts,
        interface,
        is_native,
        is_zero_copy,
        is_polled,
        ..
    } = opened;
    let mode = match (is_native, is_zero_copy) {
        (true, true) => "native, without copies",
        (true, false) => "native, with copies",
        (false, _) => "generic",
    };
    let polling = if *is_polled { ", busy polling" } else { "" };
    let (name, used, all) = (&interface.name, parts.len(), interface.queues);
    let mut text = format!(
        "interface \"{name}\" is served by AF_XDP ({mode}{polling}), \
         which nftables, conntrack, tcpdump and ss do not see"
    );
    if (used as u32) < all {
        let share = 100 * used as u32 / all;
        text.push_str(&format!(
            "; {used} of its {all} receive queues have a thread, \
             about {share}% of its connections; `ethtool -L {name} combined {used}` \
             or more worker_processes change that"
        ));
    }
    text
}

/// Attaches the received queues to the threads of a worker process.
pub(crate) fn attach(
    workers: &Workers,
    mut devices: HashMap<String, OwnedFd>,
) -> Result<(), String> {
    let mut failures = Vec::new();
    let keys: Vec<String> = devices.keys().cloned().collect();
    for key in keys {
        let mut words = key.split(' ');
        let (Some(interface), Some(queue), Some(SOCKET)) =
            (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let mut part = |what: &str| devices.remove(&format!("{interface} {queue} {what}"));
        let (Some(socket), Some(frames)) = (part(SOCKET), part(FRAMES)) else {
            failures.push(format!("queue {queue} of \"{interface}\" is not complete"));
            continue;
        };
        let number = queue.parse().unwrap_or(u32::MAX);
        let parts = QueueParts {
            interface: interface.to_owned(),
            number,
            socket,
            frames,
            link: part(LINK),
            role: Role::Server,
        };
        let failed = match workers.on_thread(number as usize, move || engine::xdp::attach(parts)) {
            Some(Ok(())) => continue,
            Some(Err(error)) => error.to_string(),
            None => "its thread does not answer".to_owned(),
        };
        failures.push(format!(
            "queue {queue} of \"{interface}\" is not used: {failed}"
        ));
    }
    if failures.is_empty() {
        Ok(())
    } else {
        Err(failures.join("\n"))
    }
}
