//! The times that are stored with a response, by nginx's rules or those of RFC 9111.

use super::clock::{wall, wall_milliseconds};
use super::freshness::Freshness;
use super::rules::storing::Stored;

/// The times that are stored with a response.
#[derive(Clone, Debug)]
pub(super) enum StoredTimes {
    /// By nginx's rules.
    Nginx(Freshness),
    /// By the rules of RFC 9111, with the response's `Vary`.
    Rfc(Stored, Vec<u8>),
}

impl StoredTimes {
    /// The freshness lifetime left in seconds, if the response states one.
    pub(super) fn seconds_left(&self) -> Option<i64> {
        match self {
            StoredTimes::Nginx(freshness) => {
                let until = freshness.valid_until;
                until.map(|until| until.saturating_sub(wall()))
            }
            StoredTimes::Rfc(stored, _) => {
                let left = stored.fresh_until.saturating_sub(wall_milliseconds());
                Some(left.max(0) / 1000)
            }
        }
    }
}
