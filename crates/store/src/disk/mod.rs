//! Objects in files of a folder: the disk tier of the store.
//!
//! One file an object, under nginx's path (`id.rs`), with a head of our own (`head.rs`) or of
//! nginx's (`nginx.rs`, read only). An index in memory knows which files there are and when they
//! were last used (`index.rs`); it is saved now and then (`saved.rs`), and what it does not know is
//! found by looking through the folder beside service (`scan.rs`). Room is made before something is
//! written (`room.rs`). An entry is written beside its place and renamed (`filler.rs`), and read by
//! many while it is being filled (`fill.rs`).
//!
//! ```text
//! lookup ─▶ Present ─▶ open_in_memory ─▶ head, body          a hit, without waiting
//!    │          └ disk needed ─▶ open_entry                  … on a thread that may wait
//!    └────▶ Absent ─▶ claim ─▶ Filler ─▶ Write::run …        a miss that is stored
//!                       └ Taken ─▶ Fill::reader              a miss that another stores
//! ```
//!
//! It knows no protocol and no configuration, and starts no thread. What says that it waits for the
//! disk is for threads that may; all else takes one lock of one shard at most. Times that it counts
//! by are the caller's clock, which must not go back ([`Millis`]); times in heads are the caller's
//! business alone.

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
#[cfg(all(test, loom))]
pub(crate) mod models;
mod nginx;
mod open;
mod order;
mod passing_on;
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
pub use listing::{ListedEntry, Listing, NotListed};
pub use maintenance::{Kept, Maintained};
pub use memory::{MEMORY_ENTRY_MAX, MemoryCounts, MemorySettings};
pub use open::{CHECKED_FIRST_MAX, LaterCheck, Miss, OpenEntry};
pub use passing_on::PassedEntry;
pub use purge::Purged;
pub use saved::SavedIndex;
pub use scan::Scanner;
pub use store::{Claim, Counts, DiskStore, Lookup, Presence, Settings};
pub use watched::WatchedEntry;
