//! The disk tier of the store: objects in files of a folder.
//!
//! Each object is a file at nginx's path (`id.rs`), with our own head (`head.rs`) or nginx's
//! (`nginx.rs`, read only). An index in memory lists the files in the order of their last use
//! (`index.rs`). The index is saved periodically (`saved.rs`); a scan of the folder, concurrent
//! with service, finds files that it does not list (`scan.rs`). Eviction makes room before an entry
//! is written (`room.rs`). An entry is written to a temporary file and renamed (`filler.rs`), and
//! may be read by many requests while it is being filled (`fill.rs`).
//!
//! ```text
//! lookup ─▶ Present ─▶ open_in_memory ─▶ head, body          a hit, without blocking
//!    │          └ disk needed ─▶ open_entry                  a hit, on a thread that may block
//!    └────▶ Absent ─▶ claim ─▶ Filler ─▶ Write::run …        a miss that is stored
//!                       └ Taken ─▶ Fill::reader              a miss that another request fetches
//! ```
//!
//! The store knows no protocol and no configuration, and starts no thread. Functions documented as
//! blocking on the disk are for threads that may block; all others take at most one lock of one
//! shard. The store's own times are of the caller's clock, which must be monotonic ([`Millis`]);
//! the store does not interpret the times in heads.

mod clock;
mod error;
mod fill;
mod filler;
mod folder;
mod head;
mod id;
mod index;
mod listing;
mod maintenance;
mod memory;
mod memory_handoff;
#[cfg(all(test, loom))]
pub(crate) mod models;
mod nginx;
mod open;
mod order;
mod purge;
mod room;
mod saved;
mod scan;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(all(test, not(loom)))]
mod tests;
mod watched;

pub use clock::Millis;
pub use error::StoreError;
pub use fill::{Fill, FillChunk, Progress, Reader, TAIL_MAX};
pub use filler::{FILL_MEMORY_MAX, Filler, Stage, Write, WriteOutcome};
pub use folder::DiskError;
pub use head::{EntryTimes, Fault, HEAD_LENGTH_MAX, Head, NewHead, Origin, TooLarge};
pub use id::{EntryId, InvalidLevels, Levels};
pub use index::ENTRY_SIZE;
pub use listing::{ListedEntry, Listing, ListingError};
pub use maintenance::{FolderState, MaintenanceProgress};
pub use memory::{MEMORY_ENTRY_MAX, MemoryCounts, MemorySettings};
pub use memory_handoff::PassedEntry;
pub use open::{CHECKED_FIRST_MAX, DeferredCheck, Miss, OpenEntry};
pub use purge::Purged;
pub use saved::SavedIndex;
pub use scan::Scanner;
pub use store::{Claim, Counts, DiskStore, Lookup, Presence, Settings};
pub use watched::WatchedEntry;
