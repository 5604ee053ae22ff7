//! The errors of storing an entry.

use std::fmt;

use rustix::io::Errno;

use super::folder::DiskError;

/// Why an entry was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The entry is larger than the limit, or eviction cannot make room for it.
    NoRoom,
    /// The entry was purged during its fetch.
    Purged,
    /// Another fetch of the entry, whose head arrived later, has already been stored.
    Superseded,
    /// A system call on the folder or one of its files failed.
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
