//! A queue of bytes between a fast producer and a slow consumer: in memory up to a limit, and
//! beyond the limit in a temporary file.
//!
//! The queue knows neither producer nor consumer, and does not receive or send itself. It is first
//! in, first out:
//!
//! ```text
//! push ─▶ memory ─▶ (writing) ─▶ file ─▶ take        bytes in the file are the oldest,
//!            └──────────────────────────▶ take        then those being written, then memory
//! ```
//!
//! A consumer that keeps up takes bytes from memory, and no file is created. The file only grows:
//! bytes that have been taken stay in the file until the end, and count towards its limit. The file
//! is unlinked, so it is deleted with its last descriptor.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use base::limits::RECEIVE_BUFFER_SIZE_DEFAULT;
use base::pieces::join;
use bytes::Bytes;
use engine::file::File;

use crate::files::temporary_file::{Directory, FileError};
use crate::response::piece::Piece;

/// Maximum number of bytes of the file in one piece, so that the sender regularly asks for the next
/// piece.
const STRETCH_MAX: u64 = 256 * 1024;

/// The limits of a spill, and the directory of its file.
#[derive(Debug)]
pub struct Limits {
    /// Maximum number of bytes in memory. If the queue holds any bytes, no more are received than
    /// surely fit.
    pub memory_max: usize,
    /// Maximum number of bytes that are written to the file in total; 0 for no file.
    pub file_max: u64,
    /// Maximum number of bytes that are written at once.
    pub write_size: usize,
    /// The directory in which the file is created.
    pub directory: Arc<Directory>,
}

/// A spill; see the module documentation.
pub struct Spill {
    limits: Arc<Limits>,
    /// The file, once it has been created.
    file: Option<SpillFile>,
    /// The part of the file that has not been taken.
    in_file: Range<u64>,
    /// The part that is being written to the end of the file.
    writing: Option<Writing>,
    /// The bytes in memory that are not being written, oldest first.
    memory: VecDeque<Bytes>,
    /// Number of bytes in memory, including those that are being written.
    held: usize,
}

/// The file, once there is one.
#[derive(Clone)]
struct SpillFile {
    file: File,
    /// The path that the file had before it was unlinked.
    path: PathBuf,
}

/// A part that is being written to the file.
struct Writing {
    length: usize,
    job: Pin<Box<dyn Future<Output = SpillOutcome>>>,
}

/// The outcome of writing a part.
struct SpillOutcome {
    /// The file, if there is one now.
    stored: Option<SpillFile>,
    failure: Option<FileError>,
}

/// The outcome of a finished write, for the caller's log.
#[derive(Debug, Default)]
pub struct SpillResult {
    /// The path of the file, if the file was created for this write.
    pub made: Option<PathBuf>,
    /// The reason why the part was not written. The part is lost, and the bytes behind it were
    /// discarded.
    pub failure: Option<FileError>,
}

impl Spill {
    /// An empty spill.
    pub fn new(limits: &Arc<Limits>) -> Spill {
        Spill {
            limits: Arc::clone(limits),
            file: None,
            in_file: 0..0,
            writing: None,
            memory: VecDeque::new(),
            held: 0,
        }
    }

    /// Whether all pushed bytes have been taken.
    pub fn is_empty(&self) -> bool {
        self.held == 0 && self.in_file.is_empty()
    }

    /// Whether the bytes of a full receive would fit into memory.
    pub fn has_room(&self) -> bool {
        self.held == 0 || self.held + RECEIVE_BUFFER_SIZE_DEFAULT <= self.limits.memory_max
    }

    /// Whether the bytes of a full receive would fit into memory, together with `others` bytes of
    /// the same body that are in memory elsewhere.
    pub fn has_room_beside(&self, others: usize) -> bool {
        let received = others.saturating_add(RECEIVE_BUFFER_SIZE_DEFAULT);
        self.held.saturating_add(received) <= self.limits.memory_max
    }

    /// Whether no bytes are in memory, and the file may take the next bytes.
    pub fn may_begin_write(&self) -> bool {
        self.held == 0 && self.in_file.end < self.limits.file_max
    }

    /// Appends bytes, even beyond the limit. Small pieces are copied together, so that `held` is
    /// the memory that they occupy.
    pub fn push(&mut self, bytes: Bytes) {
        self.held += bytes.len();
        if let Some(last) = self.memory.back_mut()
            && join(last, &bytes).is_some()
        {
            return;
        }
        self.memory.push_back(bytes);
    }

    /// Takes the next piece; `None` if there is none, or if it is being written.
    pub fn take(&mut self) -> Option<Piece> {
        if !self.in_file.is_empty() {
            let (file, offset) = (self.file.as_ref()?.file.clone(), self.in_file.start);
            let length = (self.in_file.end - offset).min(STRETCH_MAX);
            self.in_file.start += length;
            return Some(Piece::File {
                file,
                offset,
                length,
            });
        }
        if self.is_writing() {
            return None;
        }
        let bytes = self.memory.pop_front()?;
        self.held -= bytes.len();
        Some(Piece::Bytes(bytes))
    }

    /// Whether a part is being written, so that [`Spill::poll_written`] must be polled.
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether the next bytes to take are in the file.
    pub fn is_in_file(&self) -> bool {
        !self.in_file.is_empty()
    }

    /// Whether bytes in memory may be written to the file now. One part is written at a time.
    pub fn may_write(&self) -> bool {
        !self.is_writing() && self.next_part() > 0
    }

    /// The number of bytes that the next write includes.
    fn next_part(&self) -> usize {
        let room = self.limits.file_max.saturating_sub(self.in_file.end);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        self.held.min(self.limits.write_size).min(room)
    }

    /// Begins to write the oldest bytes in memory, if they [may be written](Spill::may_write).
    pub fn start_writing(&mut self) {
        if !self.may_write() {
            return;
        }
        let length = self.next_part();
        let (mut parts, mut left) = (Vec::new(), length);
        while left > 0
            && let Some(mut part) = self.memory.pop_front()
        {
            if part.len() > left {
                self.memory.push_front(part.split_off(left));
            }
            left -= part.len();
            parts.push(part);
        }
        let stored = self.file.clone();
        let directory = Arc::clone(&self.limits.directory);
        let job = Box::pin(write(stored, directory, self.in_file.end, parts));
        self.writing = Some(Writing { length, job });
    }

    /// Waits until the current write has finished. Ready at once if there is none.
    pub fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<SpillResult> {
        let Some(writing) = &mut self.writing else {
            return Poll::Ready(SpillResult::default());
        };
        let outcome = ready!(writing.job.as_mut().poll(context));
        let length = writing.length;
        self.writing = None;
        self.held -= length;
        let made = match (&self.file, &outcome.stored) {
            (None, Some(stored)) => Some(stored.path.clone()),
            _ => None,
        };
        self.file = outcome.stored;
        match &outcome.failure {
            None => self.in_file.end += length as u64,
            Some(_) => self.clear(),
        }
        Poll::Ready(SpillResult {
            made,
            failure: outcome.failure,
        })
    }

    /// Discards all bytes that have not been taken.
    fn clear(&mut self) {
        self.in_file.start = self.in_file.end;
        self.memory.clear();
        self.held = 0;
    }
}

/// Writes parts from `offset` on. The file is created first if there is none.
async fn write(
    stored: Option<SpillFile>,
    directory: Arc<Directory>,
    offset: u64,
    parts: Vec<Bytes>,
) -> SpillOutcome {
    let stored = match stored {
        Some(stored) => stored,
        None => match engine::blocking(move || directory.create(0o600, false)).await {
            Ok((path, file)) => SpillFile {
                file: File::from(file),
                path,
            },
            Err(failure) => {
                return SpillOutcome {
                    stored: None,
                    failure: Some(failure),
                };
            }
        },
    };
    let written = stored.file.write_at(offset, parts).await;
    let failure = written.err().map(|error| FileError {
        call: "pwritev()",
        path: stored.path.clone(),
        error,
    });
    SpillOutcome {
        stored: Some(stored),
        failure,
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        if let Some(stored) = self.file.take() {
            // Freeing a file's blocks may wait for the disk.
            engine::background(move || drop(stored));
        }
    }
}

impl fmt::Debug for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held, in_file) = (self.held, &self.in_file);
        write!(f, "Spill({held} bytes in memory, {in_file:?} in a file)")
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::testing::{serve, site};

    fn limits(memory_max: usize, file_max: u64, write_size: usize) -> Arc<Limits> {
        Arc::new(Limits {
            memory_max,
            file_max,
            write_size,
            directory: Arc::new(Directory {
                path: std::env::temp_dir(),
                levels: Vec::new(),
            }),
        })
    }

    /// Runs this where files may be asked for.
    fn run<T>(work: impl AsyncFnOnce() -> T) -> T {
        serve(&site(""), "GET / HTTP/1.1", async |_| work().await)
    }

    async fn written(spill: &mut Spill) -> SpillResult {
        poll_fn(|context| spill.poll_written(context)).await
    }

    /// The bytes of a piece, and whether they come from a file.
    async fn bytes_of(piece: Piece) -> (Bytes, bool) {
        match piece {
            Piece::Bytes(bytes) => (bytes, false),
            Piece::File {
                file,
                offset,
                length,
            } => {
                let read = file.read_at(offset, length as usize).await.unwrap();
                assert_eq!(read.len() as u64, length);
                (read, true)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn memory_comes_first_and_then_the_file() {
        run(async || {
            let mut spill = Spill::new(&limits(20_000, 10_000, 4000));
            assert!(spill.is_empty() && spill.has_room());
            assert!(!spill.may_write());
            spill.push(vec![1; 3000].into());
            assert!(spill.has_room());
            spill.push(vec![2; 3000].into());
            assert!(!spill.has_room(), "a receive brings up to 16 KiB");
            assert!(spill.may_write());
            spill.start_writing();
            assert!(!spill.may_write());
            assert!(spill.is_writing() && spill.take().is_none());
            let first = written(&mut spill).await;
            let path = first.made.unwrap();
            assert!(first.failure.is_none() && !path.exists());
            assert_eq!((spill.held, spill.in_file.clone()), (2000, 0..4000));
            spill.start_writing();
            let second = written(&mut spill).await;
            assert!(second.made.is_none() && second.failure.is_none());
            spill.push(vec![3; 9000].into());
            // What is left of the file is filled, and not more.
            for length in [4000, 0] {
                assert_eq!(spill.may_write(), length > 0);
                spill.start_writing();
                written(&mut spill).await;
            }
            assert_eq!((spill.held, spill.in_file.clone()), (5000, 0..10_000));
            let (bytes, from_file) = bytes_of(spill.take().unwrap()).await;
            assert!(from_file);
            assert_eq!(
                bytes,
                [vec![1; 3000], vec![2; 3000], vec![3; 4000]].concat()
            );
            let (bytes, from_file) = bytes_of(spill.take().unwrap()).await;
            assert!(!from_file && bytes == vec![3; 5000]);
            assert!(spill.take().is_none() && spill.is_empty());
            // What has been taken of the file counts all the same.
            spill.push(vec![4; 10].into());
            assert!(!spill.may_write());
        });
    }

    #[test]
    fn small_pieces_occupy_what_they_say() {
        let mut spill = Spill::new(&limits(1 << 20, 0, 1));
        for _ in 0..10_000 {
            spill.push(Bytes::copy_from_slice(b"x"));
        }
        assert_eq!(spill.held, 10_000);
        assert!(spill.memory.len() <= 3, "{}", spill.memory.len());
    }

    #[test]
    fn a_file_that_cannot_be_made_loses_all() {
        run(async || {
            let limits = Limits {
                directory: Arc::new(Directory {
                    path: "/nowhere/at/all".into(),
                    levels: Vec::new(),
                }),
                ..Arc::into_inner(limits(0, 1000, 10)).unwrap()
            };
            let mut spill = Spill::new(&Arc::new(limits));
            spill.push(vec![1; 100].into());
            spill.start_writing();
            let failed = written(&mut spill).await;
            let text = failed.failure.unwrap().to_string();
            assert!(text.starts_with("open() \"/nowhere/at/all/"), "{text}");
            assert!(
                text.ends_with(" failed (2: No such file or directory)"),
                "{text}"
            );
            assert!(failed.made.is_none() && spill.is_empty() && spill.take().is_none());
        });
    }

    #[test]
    fn a_part_that_cannot_be_written_loses_all() {
        run(async || {
            let mut spill = Spill::new(&limits(0, 1000, 10));
            let path = PathBuf::from("/dev/null");
            let file = std::fs::File::open(&path).unwrap(); // for reading alone
            spill.file = Some(SpillFile {
                file: file.into(),
                path,
            });
            spill.push(vec![1; 100].into());
            spill.start_writing();
            let failed = written(&mut spill).await;
            assert_eq!(
                failed.failure.unwrap().to_string(),
                "pwritev() \"/dev/null\" failed (9: Bad file descriptor)"
            );
            assert!(failed.made.is_none() && spill.is_empty() && spill.take().is_none());
        });
    }

    /// Whatever is pushed, written and taken in whatever order: it comes out as it went in.
    #[test]
    fn order_is_kept() {
        run(async || {
            let mut seed = 1_u64;
            let mut random = |below: u64| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) % below
            };
            for _ in 0..40 {
                let limits = limits(30_000, random(200_000), 1 + random(9000) as usize);
                let mut spill = Spill::new(&limits);
                let (mut pushed, mut taken) = (0_u32, Vec::new());
                for _ in 0..200 {
                    match random(4) {
                        0 | 1 if spill.has_room() => {
                            let length = 1 + random(4000) as u32;
                            let bytes: Vec<u8> =
                                (pushed..pushed + length).map(|n| (n / 7) as u8).collect();
                            pushed += length;
                            spill.push(bytes.into());
                        }
                        2 => {
                            spill.start_writing();
                            assert!(written(&mut spill).await.failure.is_none());
                        }
                        _ => {
                            if let Some(piece) = spill.take() {
                                taken.extend_from_slice(&bytes_of(piece).await.0);
                            }
                        }
                    }
                    assert!(spill.held <= 30_000);
                    assert!(spill.in_file.end <= limits.file_max);
                }
                while let Some(piece) = spill.take() {
                    taken.extend_from_slice(&bytes_of(piece).await.0);
                }
                assert!(spill.is_empty());
                let whole: Vec<u8> = (0..pushed).map(|n| (n / 7) as u8).collect();
                assert!(taken == whole);
            }
        });
    }
}
