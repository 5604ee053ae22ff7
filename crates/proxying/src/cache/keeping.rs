//! What an answer is stored with, by the rules of a scope.

use super::clock::{wall, wall_milliseconds};
use super::freshness::Freshness;
use super::rules::storing::Stored;

/// What an answer is stored with.
#[derive(Clone, Debug)]
pub(super) enum Keeping {
    /// As nginx has it.
    Nginx(Freshness),
    /// By the rules of the RFC, with its `Vary`.
    Rfc(Stored, Vec<u8>),
}

impl Keeping {
    /// Seconds for which it is fresh, where the answer says so.
    pub(super) fn seconds_left(&self) -> Option<i64> {
        match self {
            Keeping::Nginx(freshness) => {
                let until = freshness.valid_until;
                until.map(|until| until.saturating_sub(wall()))
            }
            Keeping::Rfc(stored, _) => {
                let left = stored.fresh_until.saturating_sub(wall_milliseconds());
                Some(left.max(0) / 1000)
            }
        }
    }
}
