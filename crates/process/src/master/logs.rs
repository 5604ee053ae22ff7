//! The master's own log targets, and USR1, which reopens every log.
//!
//! Replaced generations serve until their last request has ended, in the serving worker process or
//! in an older one, and may write files that the configuration in force does not name. The master
//! keeps a list of those files and reopens them too, since workers may not.

use std::rc::Rc;

use crate::application::{NeedKind, RequiredDescriptor};
use crate::control::Command;
use crate::descriptors::Descriptors;
use crate::log::{Level, Log};

use super::Master;
use super::reload::Generation;

/// A generation that was replaced and may still have requests.
pub(super) struct Replaced {
    number: u64,
    /// The worker that completes the remaining requests of the generation.
    child: u64,
    /// The logs of the generation, in a list shared by all workers that have served with it.
    logs: Rc<[RequiredDescriptor]>,
}

impl Master {
    /// Records a replaced generation for each worker that has served with it until now, including
    /// those that are ending.
    pub(super) fn remember(&mut self, number: u64, needs: Vec<RequiredDescriptor>) {
        let is_log = |need: &RequiredDescriptor| matches!(need.kind, NeedKind::Log { .. });
        let logs: Rc<[RequiredDescriptor]> = needs.into_iter().filter(is_log).collect();
        let children = self.children.iter();
        let served = children.filter(|child| child.generation == Some(number));
        self.replaced.extend(served.map(|child| Replaced {
            number,
            child: child.id,
            logs: Rc::clone(&logs),
        }));
    }

    /// Removes a generation whose last request has ended.
    pub(super) fn forget_generation(&mut self, child: u64, number: u64) {
        self.replaced
            .retain(|one| (one.child, one.number) != (child, number));
    }

    /// Removes all generations of a worker that has ended.
    pub(super) fn forget_generations_of(&mut self, child: u64) {
        self.replaced.retain(|one| one.child != child);
    }

    /// USR1: opens new files at the old paths, for the master, every worker and every generation.
    pub(super) fn reopen_logs(&mut self) {
        self.log.notice("reopening logs");
        let generation = &mut self.generation;
        let owner = generation.needs.master.identity.as_ref();
        let owner = owner.map(|identity| identity.user);
        let needs = &generation.needs.descriptors;
        generation.descriptors.reopen(needs, owner, &self.log);
        let older = self.replaced.iter().flat_map(|one| one.logs.iter());
        let mut logs = generation.descriptors.logs();
        logs.open_missing(older, owner, &self.log);
        self.follow_logs();
        self.send_logs(&logs);
    }

    fn send_logs(&mut self, logs: &Descriptors) {
        match logs.sealed_keys() {
            Ok(keys) => {
                for child in &mut self.children {
                    let (keys, descriptors) = (keys.clone(), logs.shared());
                    child.send(Command::Reopen { keys, descriptors });
                }
            }
            Err(error) => self
                .log
                .write(Level::Alert, format_args!("memfd failed: {error}")),
        }
    }

    /// Switches the master's own log lines to the targets of the generation in force.
    pub(super) fn follow_logs(&mut self) {
        let Generation {
            descriptors, needs, ..
        } = &self.generation;
        self.log = Log::new(descriptors.log_targets(&needs.master.error_logs), None);
        self.log.redirect_stderr();
    }
}
