//! An open file: its descriptor, which clones share, and cached facts about the file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The number of open files of all threads.
pub(super) static OPEN_FILES: AtomicU64 = AtomicU64::new(0);

/// An open file. Cloning it shares the descriptor; the last clone closes it.
#[derive(Clone, Debug)]
pub struct File(Arc<Open>);

#[derive(Debug)]
struct Open {
    fd: OwnedFd,
    /// What the file system can tell about the page cache.
    answers: Answers,
    /// Device and inode, once they are known.
    identity: OnceLock<(u64, u64)>,
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN_FILES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the file system of an open file can report which data is in the page cache: one of the
/// values below, determined at the first read.
#[derive(Debug, Default)]
pub(super) struct Answers(pub(super) AtomicU8);

/// Not determined yet.
pub(super) const UNKNOWN: u8 = 0;
/// The file system supports `RWF_NOWAIT`.
pub(super) const TELLS: u8 = 1;
/// The file system keeps all data in memory.
pub(super) const IN_MEMORY: u8 = 2;
/// The file system does not support `RWF_NOWAIT`.
pub(super) const CANNOT_TELL: u8 = 3;

impl File {
    /// Device and inode, which identify the file while it is open.
    pub(super) fn identity(&self) -> Option<(u64, u64)> {
        if let Some(known) = self.0.identity.get() {
            return Some(*known);
        }
        let stat = rustix::fs::fstat(self).ok()?;
        self.note_identity(stat.st_dev, stat.st_ino);
        Some((stat.st_dev, stat.st_ino))
    }

    /// Stores the file's device and inode, for [`File::identity`].
    pub(super) fn note_identity(&self, device: u64, inode: u64) {
        // A concurrent call stores the same values.
        let _ = self.0.identity.set((device, inode));
    }

    pub(super) fn answers(&self) -> &Answers {
        &self.0.answers
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> File {
        OPEN_FILES.fetch_add(1, Ordering::Relaxed);
        File(Arc::new(Open {
            fd,
            answers: Answers::default(),
            identity: OnceLock::new(),
        }))
    }
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> File {
        OwnedFd::from(file).into()
    }
}
