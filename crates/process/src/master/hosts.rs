//! Resolves hosts again after a reload, in parallel to the master's loop.
//!
//! A reload does not resolve the hosts that the configuration in force has already, because a
//! reload must finish quickly even if no name server answers. But operators also reload to make a
//! server notice that a host has moved. So the hosts whose addresses a reload took over are
//! resolved again once it is in force, on separate threads. If an address has changed, the master
//! makes a generation from the same files with the new addresses. A host that cannot be resolved
//! keeps its addresses.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use conf::{Disk, Files};
use rustix::event::EventfdFlags;

/// Hosts with their addresses. Each host occurs once.
pub(super) type Hosts = Vec<(String, Vec<IpAddr>)>;

/// Maximum number of concurrent lookups.
const THREADS_MAX: usize = 8;

/// A host with its addresses, or `None` if it was not resolved.
type ResolvedHost = (String, Option<Vec<IpAddr>>);

/// Lookups of hosts in progress.
pub(super) struct HostLookup {
    /// The generation whose hosts are resolved. The results are discarded if another generation is
    /// in force by then.
    pub(super) generation: u64,
    shared: Arc<LookupState>,
}

struct LookupState {
    answers: Mutex<Option<Vec<ResolvedHost>>>,
    /// Readable once all results are there.
    wake: OwnedFd,
}

impl HostLookup {
    /// Starts the lookups.
    pub(super) fn begin(generation: u64, names: Vec<String>) -> io::Result<HostLookup> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(LookupState {
            answers: Mutex::new(None),
            wake,
        });
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("hosts".to_owned())
            .spawn(move || {
                let answers = look_up(&names);
                *theirs.lock() = Some(answers);
                // Only a full counter refuses a write, and a full counter is readable anyway.
                let _ = rustix::io::write(&theirs.wake, &1_u64.to_ne_bytes());
            })?;
        Ok(HostLookup { generation, shared })
    }

    /// Takes the results. `None` until all lookups have ended, and after the results were taken.
    pub(super) fn answers(&self) -> Option<Vec<ResolvedHost>> {
        self.shared.lock().take()
    }
}

impl AsFd for HostLookup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }
}

impl LookupState {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Vec<ResolvedHost>>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resolves all names, several concurrently: a name that no server answers takes many seconds.
fn look_up(names: &[String]) -> Vec<ResolvedHost> {
    let next = AtomicUsize::new(0);
    let answers = Mutex::new(Vec::with_capacity(names.len()));
    let work = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let answer = (name.clone(), Disk.addresses(name));
            let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
            answers.push(answer);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..names.len().min(THREADS_MAX) {
            // If no further thread starts, this one resolves all names.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    answers.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Compares the addresses of `known` with those that the lookups returned. Returns the hosts whose
/// addresses have changed, with the new addresses, and the names that were not resolved. The order
/// of addresses does not matter.
pub(super) fn changes(known: &Hosts, answers: Vec<ResolvedHost>) -> (Hosts, Vec<String>) {
    let (mut changed, mut silent) = (Hosts::new(), Vec::new());
    for (name, answer) in answers {
        let Some((_, before)) = known.iter().find(|(known, _)| *known == name) else {
            continue;
        };
        match answer {
            None => silent.push(name),
            Some(now) => {
                let set = |addresses: &[IpAddr]| addresses.iter().copied().collect::<BTreeSet<_>>();
                if set(before) != set(&now) {
                    changed.push((name, now));
                }
            }
        }
    }
    (changed, silent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(all: &[&str]) -> Vec<IpAddr> {
        all.iter().map(|one| one.parse().unwrap()).collect()
    }

    #[test]
    fn only_what_differs_is_a_change() {
        let known: Hosts = ["a", "b", "c"]
            .map(|name| (name.to_owned(), addresses(&["10.0.0.1", "10.0.0.2"])))
            .into();
        let answer = |name: &str, all: &[&str]| (name.to_owned(), Some(addresses(all)));
        let answers = vec![
            answer("a", &["10.0.0.2", "10.0.0.1"]),
            answer("b", &["10.0.0.3"]),
            ("c".to_owned(), None),
            answer("unknown", &["10.0.0.4"]),
        ];
        let (changed, silent) = changes(&known, answers);
        assert_eq!(changed, [("b".to_owned(), addresses(&["10.0.0.3"]))]);
        assert_eq!(silent, ["c"]);
    }

    #[test]
    fn every_name_is_looked_up_once() {
        let names: Vec<String> = (1..=20).map(|number| format!("127.0.0.{number}")).collect();
        let mut answers = look_up(&names);
        answers.sort();
        let mut expected: Vec<ResolvedHost> = names
            .iter()
            .map(|name| (name.clone(), Some(addresses(&[name]))))
            .collect();
        expected.sort();
        assert_eq!(answers, expected);
    }
}
