//! Collects the health checks that other modules declare, so that a group knows its checks when it
//! is compiled.

use std::marker::PhantomData;

use ::upstream::{Check, Checks};
use base::hash::Map;
use framework::registry::Registry;

use super::protocol::Upstreams;

/// Health checks by the names of their groups, collected before the groups are compiled.
pub struct WrittenChecks<U> {
    by_group: Map<Box<[u8]>, Vec<Check>>,
    upstreams: PhantomData<U>,
}

impl<U> Default for WrittenChecks<U> {
    fn default() -> WrittenChecks<U> {
        WrittenChecks {
            by_group: Map::default(),
            upstreams: PhantomData,
        }
    }
}

impl<U: Upstreams> Registry for WrittenChecks<U> {}

impl<U: Upstreams> WrittenChecks<U> {
    /// Adds a health check of the group with this name, which need not exist, and returns the
    /// number of the check in the group. If another check of the group has the same
    /// [`Check::place`], the place of the new check is changed.
    pub fn add(&mut self, group: &[u8], mut check: Check) -> usize {
        let group = group.to_ascii_lowercase().into();
        let checks = self.by_group.entry(group).or_default();
        while checks.iter().any(|known| known.place == check.place) {
            check.place = [&check.place, &b"again"[..]].concat().into();
        }
        checks.push(check);
        checks.len() - 1
    }

    /// The health checks of a group; `None` if it has no checks.
    pub(super) fn of(&self, group: &[u8]) -> Option<Checks> {
        let checks = self.by_group.get(&*group.to_ascii_lowercase())?;
        Some(checks.as_slice().into())
    }
}
