//! The checks that are made of groups, as far as a group must know them when it is made.

use std::marker::PhantomData;

use ::upstream::{Check, Checks};
use base::hash::Map;
use framework::registry::Registry;

use super::protocol::Upstreams;

/// Checks by the names of their groups. They are gathered before any group is made.
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
    /// A check is made of the peers of this group, if there is one of the name: which of its checks
    /// it is. Of two at one place the second gets another.
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
