//! Hosts that are looked up again after a reload, beside the master's loop.
//!
//! A reload asks no name server for the hosts that the configuration in force has already: it must
//! come to an end, and at once, where no name server answers. But a reload is also how an operator
//! has a server notice that a host has moved. So the hosts that a reload took over are looked up
//! once it is in force, on threads of their own; where an address has changed, the master makes a
//! generation of the same texts and the new addresses. A host that no name server tells of keeps
//! the addresses that it had.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use conf::{Disk, Files};
use rustix::event::EventfdFlags;

/// Hosts with their addresses, each once.
pub(super) type Hosts = Vec<(String, Vec<IpAddr>)>;

/// Hosts that are looked up at the same time.
const THREADS_MAX: usize = 8;

/// What the system says of a host; nothing where it says nothing.
type ResolvedHost = (String, Option<Vec<IpAddr>>);

/// Looking hosts up, until they are all answered.
pub(super) struct HostLookup {
    /// The generation whose hosts they are.
    pub(super) generation: u64,
    shared: Arc<LookupState>,
}

struct LookupState {
    answers: Mutex<Option<Vec<ResolvedHost>>>,
    /// Readable when it is set.
    wake: OwnedFd,
}

impl HostLookup {
    /// Begins to look hosts up.
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
                // Only a counter that is full refuses, and that one wakes all the same.
                let _ = rustix::io::write(&theirs.wake, &1_u64.to_ne_bytes());
            })?;
        Ok(HostLookup { generation, shared })
    }

    /// The answers, when all are there.
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

/// Looks every name up, some at the same time: one that no server answers takes many seconds.
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
            // Without another thread this one does it all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    answers.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The hosts of `known` whose addresses `answers` change, whatever their order; those that have
/// changed, and those that nobody told of.
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
