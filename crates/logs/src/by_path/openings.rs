//! Access log files that the thread pool is opening, and the lines that wait for them.
//!
//! One job at a time opens a path. Lines that are logged meanwhile are queued in order. No line is
//! lost when the thread ends: [`finish`] then opens the remaining files on the thread. At most
//! [`WAITING_MAX`] bytes are queued; further lines are dropped whole, counted and reported, as for
//! a device that accepts no writes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::hash::Map;
use framework::warm;
use rustix::io::Errno;

use super::{Limits, LogError, keep, look_up};
use crate::SubjectSnapshot;
use crate::{LogFile, event, file, unwritten};

/// Maximum size of a thread's queued lines, in bytes.
const WAITING_MAX: usize = 1024 * 1024;

thread_local! {
    static OPENINGS: RefCell<Openings> = RefCell::default();
}

/// The paths that the thread's jobs are opening.
#[derive(Default)]
struct Openings {
    by_path: Map<Box<Path>, PendingPath>,
    /// Size of all queued lines, in bytes.
    waiting: usize,
    /// Number of lines dropped since the last report.
    lines_dropped: u64,
}

/// A path that is being opened.
struct PendingPath {
    /// The file that the thread's cache has for the path.
    kept: Option<Arc<LogFile>>,
    /// The queued lines.
    lines: VecDeque<WaitingLine>,
}

/// A line queued for its file.
pub(super) struct WaitingLine {
    /// The folder that must exist; `None` if it is known to exist.
    pub(super) root: Option<PathBuf>,
    pub(super) limits: Option<Arc<Limits>>,
    pub(super) line: Box<[u8]>,
    /// The subject of a report about a failure.
    pub(super) note: SubjectSnapshot,
}

/// A job on the thread pool: tests whether the root directories of the queued lines exist, and if
/// any does, opens the file at the path.
struct Job {
    roots: Vec<PathBuf>,
    /// Whether the directory of a queued line is known to exist, so that the file is opened anyway.
    wanted: bool,
    path: PathBuf,
    /// The file that the thread's cache has for the path, which is used if the path still leads to
    /// it.
    kept: Option<Arc<LogFile>>,
}

/// The result of a job: which folders exist, and the file if its opening was tried.
struct OpenedPath {
    roots: Map<PathBuf, io::Result<()>>,
    file: Option<io::Result<Arc<LogFile>>>,
}

impl Job {
    fn run(self) -> OpenedPath {
        let Job {
            roots,
            wanted,
            path,
            kept,
        } = self;
        let tested = |root: PathBuf| {
            let tested = test(&root);
            (root, tested)
        };
        let roots: Map<PathBuf, io::Result<()>> = roots.into_iter().map(tested).collect();
        let wanted = wanted || roots.values().any(Result::is_ok);
        let open = || {
            let opened = LogFile::opened(&path)?;
            let same = |kept: &Arc<LogFile>| {
                opened
                    .descriptor()
                    .is_some_and(|descriptor| kept.is_open_on(&*descriptor))
            };
            Ok(match kept.filter(same) {
                Some(kept) => kept,
                None => Arc::new(opened),
            })
        };
        OpenedPath {
            roots,
            file: wanted.then(open),
        }
    }
}

/// Whether the folder exists.
pub(super) fn test(root: &Path) -> io::Result<()> {
    if std::fs::metadata(root)?.is_dir() {
        Ok(())
    } else {
        Err(Errno::NOTDIR.into())
    }
}

/// Tests whether the folder exists, if the test needs no disk access, since the folder was tested a
/// moment ago; else `None`.
pub(super) fn test_now(root: &Path) -> Option<io::Result<()>> {
    warm::was_checked_recently(root).then(|| test(root))
}

/// Whether the file at this path is being opened.
pub(super) fn is_opening(path: &Path) -> bool {
    OPENINGS.with_borrow(|openings| openings.by_path.contains_key(path))
}

/// Queues a line for a path that is being opened, behind earlier lines.
pub(super) fn join(path: &Path, line: WaitingLine) {
    OPENINGS.with_borrow_mut(|openings| {
        if openings.waiting.saturating_add(line.line.len()) > WAITING_MAX {
            openings.lines_dropped += 1;
            return;
        }
        openings.waiting += line.line.len();
        if let Some(opening) = openings.by_path.get_mut(path) {
            opening.lines.push_back(line);
        }
    });
}

/// Starts to open the file at this path on the thread pool; the line is the first in the queue.
pub(super) fn begin(path: &Path, kept: Option<Arc<LogFile>>, line: WaitingLine) {
    OPENINGS.with_borrow_mut(|openings| {
        let lines = VecDeque::new();
        openings
            .by_path
            .insert(path.into(), PendingPath { kept, lines });
    });
    join(path, line);
    engine::spawn(open(path.to_owned()));
}

/// Opens a file and writes its queued lines, and repeats this for lines that were queued meanwhile.
async fn open(path: PathBuf) {
    while let Some(job) = next_job(&path) {
        let looked = engine::blocking(move || job.run()).await;
        settle(&path, looked);
    }
    let dropped = OPENINGS.with_borrow_mut(|openings| {
        let none_left = openings.by_path.is_empty();
        if none_left {
            std::mem::take(&mut openings.lines_dropped)
        } else {
            0
        }
    });
    report(dropped);
}

/// Opens on this thread, which is ending, every file that is still being opened, and writes the
/// queued lines.
pub(crate) fn finish() {
    let first = || OPENINGS.with_borrow(|openings| openings.by_path.keys().next().cloned());
    while let Some(path) = first() {
        while let Some(job) = next_job(&path) {
            settle(&path, job.run());
        }
    }
    report(OPENINGS.with_borrow_mut(|openings| std::mem::take(&mut openings.lines_dropped)));
}

/// Logs how many lines were dropped, if any.
fn report(lines_dropped: u64) {
    if lines_dropped > 0 {
        file::count_lost(lines_dropped);
        event!(
            Alert,
            "{lines_dropped} lines of access logs were dropped while their files were being opened"
        );
    }
}

/// Returns the job for the queued lines of a path. If there are none, removes the path and returns
/// `None`.
fn next_job(path: &Path) -> Option<Job> {
    OPENINGS.with_borrow_mut(|openings| {
        let opening = openings.by_path.get(path)?;
        if opening.lines.is_empty() {
            openings.by_path.remove(path);
            return None;
        }
        let mut roots: Vec<PathBuf> = Vec::new();
        for root in opening.lines.iter().filter_map(|line| line.root.as_ref()) {
            if !roots.contains(root) {
                roots.push(root.clone());
            }
        }
        Some(Job {
            roots,
            wanted: opening.lines.iter().any(|line| line.root.is_none()),
            path: path.to_owned(),
            kept: opening.kept.clone(),
        })
    })
}

/// Writes queued lines in order, up to the first whose root directory the job has not tested.
fn settle(path: &Path, looked: OpenedPath) {
    let OpenedPath { roots, file } = looked;
    roots.keys().for_each(|root| warm::looked_at(root));
    let mut used = false;
    while let Some(line) = next_line(path, &roots, file.is_some()) {
        let tested = line.root.as_ref().and_then(|root| roots.get(root));
        let outcome = match (tested, &file) {
            (Some(Err(error)), _) => Err(LogError::Root(copy(error))),
            (_, Some(Err(error))) => Err(LogError::Open(copy(error))),
            (_, Some(Ok(file))) => Ok(file),
            // Unreachable: the file is only not opened if no root exists.
            (_, None) => Err(LogError::Root(io::ErrorKind::NotFound.into())),
        };
        match outcome {
            Ok(file) => {
                if std::mem::replace(&mut used, true) {
                    // The lookup for the first line was counted when that line was logged.
                    look_up(path, line.limits.as_ref());
                }
                keep(path, line.limits.as_ref(), file);
                unwritten::append(file, &line.line, None);
            }
            Err(failure) => {
                let (level, text) = failure.shown(line.root.as_deref(), path);
                line.note.write(level, format_args!("{text}"));
            }
        }
    }
}

/// Takes the next line if the job's result applies to it: its root was tested, or the line has no
/// root and the file was `opened`.
fn next_line(
    path: &Path,
    roots: &Map<PathBuf, io::Result<()>>,
    opened: bool,
) -> Option<WaitingLine> {
    OPENINGS.with_borrow_mut(|openings| {
        let opening = openings.by_path.get_mut(path)?;
        let is_answered = match &opening.lines.front()?.root {
            Some(root) => roots.contains_key(root),
            None => opened,
        };
        if !is_answered {
            return None;
        }
        let line = opening.lines.pop_front()?;
        openings.waiting -= line.line.len();
        Some(line)
    })
}

/// Copies an error; `io::Error` has no `Clone`.
fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => error.kind().into(),
    }
}
