//! Why an entry is not stored.

use std::fmt;

use rustix::io::Errno;

use super::folder::DiskError;

/// Why an entry is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// It is larger than what may be used, or nothing can make room.
    NoRoom,
    /// It was purged while it was fetched.
    Purged,
    /// Another fetch of it that began later has been stored.
    Superseded,
    /// The folder or the disk refuses.
    Failed(DiskError),
}

impl StoreError {
    pub(super) fn io(call: &'static str, error: Errno) -> StoreError {
        StoreError::Failed(DiskError::of(call, error))
    }
}

impl From<DiskError> for StoreError {
    fn from(failure: DiskError) -> StoreError {
        StoreError::Failed(failure)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::NoRoom => f.write_str("the cache has no room"),
            StoreError::Purged => f.write_str("the entry has been purged"),
            StoreError::Superseded => f.write_str("a newer answer has been stored"),
            StoreError::Failed(failure) => {
                write!(f, "{} failed: {}", failure.call, failure.error())
            }
        }
    }
}
