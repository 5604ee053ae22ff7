//! The health checks of groups, as far as a group must know of them when it is compiled.

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
    /// Adds a health check to the group of this name, if there is one, and returns its number in
    /// the group. If two checks have the same place, the second gets another.
    pub fn add(&mut self, group: &[u8], mut check: Check) -> usize {
        let group = group.to_ascii_lowercase().into();
        let checks = self.by_group.entry(group).or_default();
        while checks.iter().any(|known| known.place == check.place) {
            check.place = [&check.place, &b"again"[..]].concat().into();
        }
        checks.push(check);
        checks.len() - 1
    }

    /// The health checks of a group; `None` if it has none.
    pub(super) fn of(&self, group: &[u8]) -> Option<Checks> {
        let checks = self.by_group.get(&*group.to_ascii_lowercase())?;
        Some(checks.as_slice().into())
    }
}
