//! Lines that a thread has logged and not written yet, by file.
//!
//! ```text
//!           append                    turn ends: one write           all of it taken
//! (none) ───────────▶ Due ──────────────────────────────▶ Empty ──────────────────────▶ (none)
//!    │ buffer=         ▲                                    │
//!    └───────▶ Held ───┘ full, flush= over, file retired    ├─ EAGAIN ─▶ Blocked: every turn again
//!                                                           ├─ error ──▶ Failing: in a second again
//!                                                           └─ the device was slow lately ─▶
//!                                                              Away: written by the thread pool
//! ```
//!
//! A blocked device delays log lines, not requests: up to `UNWRITTEN_MAX` bytes wait, further lines
//! are dropped whole, counted, and reported when writing works again. A thread without an event
//! loop (and one that never called [`start_thread`]) writes each line at once.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::hash::Map;
use flate2::Compression;
use flate2::write::GzEncoder;
use framework::display::Errno;

use super::{Buffering, Level, LogFile, process_error};

/// Maximum number of bytes that wait for a file that cannot be written, per thread and file, in
/// addition to `buffer=`.
const UNWRITTEN_MAX: usize = 1024 * 1024;

/// Number of bytes of a file's gathered lines from which on they are written before the end of the
/// turn.
const WRITE_SIZE: usize = 128 * 1024;

/// Maximum number of empty buffers that a thread keeps for reuse.
const SPARE_MAX: usize = 16;

/// Interval between attempts to write to a full pipe, if the loop has nothing else to do.
const BLOCKED_RETRY: Duration = Duration::from_millis(10);

/// Interval between attempts to write to a failing file (nginx skips a full disk for a second).
const FAILED_RETRY: Duration = Duration::from_secs(1);

/// Interval between reports about failures of one file (nginx: once a minute).
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum interval at which buffered lines are checked: lines for files of ended generations are
/// written, and a `flush=` shorter than the current wait is late by at most this interval.
const TICK: Duration = Duration::from_secs(1);

/// Duration of a write above which the thread leaves further writes of the file to the pool.
const SLOW_WRITE: Duration = Duration::from_millis(50);

/// How long the thread leaves the writes of a slow file to the pool.
const SLOW_FOR: Duration = Duration::from_secs(10);

thread_local! {
    static THREAD: RefCell<ThreadLines> = RefCell::new(ThreadLines::default());
    /// Whether there is anything to write at the end of the turn: read in every turn.
    static DUE: Cell<bool> = const { Cell::new(false) };
}

/// Makes this thread gather its lines until the end of each turn. The thread's runtime must exist.
pub fn start_thread() {
    THREAD.with(|thread| thread.borrow_mut().deferred = true);
    engine::on_turn_end(flush_thread);
}

/// Whether this thread gathers its lines: it has an event loop, which must not wait for files.
pub(super) fn is_deferred() -> bool {
    THREAD.with(|thread| thread.borrow().deferred)
}

/// Writes all lines of this thread after its runtime has ended, and opens the files for queued
/// lines.
pub fn end_thread() {
    super::by_path::finish();
    flush_all();
}

/// Whether the end of this turn has lines to write.
pub fn has_unwritten() -> bool {
    DUE.get()
}

/// Writes the lines that are due at the end of a turn.
pub fn flush_thread() {
    if DUE.get() {
        with_thread(|thread| thread.flush_due(engine::now()));
    }
}

/// Writes all lines of this thread, buffered or not: before files are reopened, when a generation
/// is replaced, before exit.
pub fn flush_all() {
    with_thread(|thread| thread.flush_all(engine::now()));
}

/// Appends a whole line, including its end, to a file that is not an access log.
pub fn append_line(file: &Arc<LogFile>, line: &[u8]) {
    append(file, line, None);
}

/// Appends a whole line, including its end. With `buffering` the line may wait for more.
pub fn append(file: &Arc<LogFile>, line: &[u8], buffering: Option<Buffering>) {
    with_thread(|thread| {
        let now = engine::now();
        thread.append(file, line, buffering, now);
        if !thread.deferred {
            thread.flush_all(now);
        }
    });
}

/// Runs `f`, then logs the reports that `f` has added. They are logged afterwards because a report
/// is itself a line of this thread.
fn with_thread(f: impl FnOnce(&mut ThreadLines)) {
    let reports = THREAD.with(|thread| {
        let mut thread = thread.borrow_mut();
        f(&mut thread);
        if thread.deferred && thread.waiting && !thread.timer {
            thread.timer = true;
            engine::spawn(run_timer());
        }
        std::mem::take(&mut thread.reports)
    });
    for report in reports {
        process_error(Level::Alert, format_args!("{report}"));
    }
}

/// Handles buffered, blocked and failing files until there are none.
async fn run_timer() {
    loop {
        let next = THREAD.with(|thread| thread.borrow_mut().next_check(engine::now()));
        let Some(next) = next else { return };
        engine::sleep_until(next).await;
        with_thread(|thread| thread.flush_overdue(engine::now()));
    }
}

/// The state of a file's lines; see the diagram of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is nothing to write. The file is about to be removed, or to get a line.
    Empty,
    /// To be written at the end of the turn.
    Due,
    /// Buffered because of `buffer=`, until this time at most.
    Held(Option<Instant>),
    /// The device accepts no writes at the moment.
    Blocked,
    /// Writing failed; the next attempt is at this time.
    Failing(Instant),
    /// The thread pool is writing older lines; the lines here follow them.
    Away,
}

/// The unwritten lines of one file.
struct Tail {
    file: Arc<LogFile>,
    /// The descriptor that was current when the first of the lines was logged: the lines belong to
    /// the file before a rotation.
    opened: Option<Arc<File>>,
    /// The number of that descriptor ([`LogFile::opening`]).
    opening: u64,
    /// Lines as they were logged.
    bytes: Vec<u8>,
    /// The remaining compressed form of older lines; empty without `gzip=`.
    packed: Vec<u8>,
    state: State,
    /// Number of lines dropped since the last report.
    lines_dropped: u64,
    /// When a failure was last reported.
    reported: Option<Instant>,
    /// Until when the device counts as slow.
    slow_until: Option<Instant>,
}

/// The unwritten lines of a thread.
#[derive(Default)]
struct ThreadLines {
    /// By the number of the file. Only files with unwritten lines are here, so that no thread keeps
    /// a rotated or retired file open.
    tails: Map<u64, Tail>,
    /// The numbers of the files that are written at the end of the turn.
    due: Vec<u64>,
    /// Empty buffers for reuse.
    spare: Vec<Vec<u8>>,
    /// Reports about failures that are yet to be logged.
    reports: Vec<String>,
    /// Whether the thread gathers its lines until the end of each turn.
    deferred: bool,
    /// Whether any file must be checked at a later time.
    waiting: bool,
    /// Whether the task [`run_timer`] runs.
    timer: bool,
}

impl ThreadLines {
    fn append(
        &mut self,
        file: &Arc<LogFile>,
        line: &[u8],
        buffering: Option<Buffering>,
        now: Instant,
    ) {
        let number = file.number();
        let opening = file.opening();
        // After a rotation, lines that are buffered or due go to the old file first. A blocked or
        // failing file is not retried with every new line, but at its own interval.
        if let Some(tail) = self.tails.get(&number)
            && tail.opening != opening
            && matches!(tail.state, State::Held(_) | State::Due)
        {
            self.flush(number, now);
        }
        let tail = self.tails.entry(number).or_insert_with(|| Tail {
            file: Arc::clone(file),
            opened: file.descriptor(),
            opening,
            bytes: self.spare.pop().unwrap_or_default(),
            packed: Vec::new(),
            state: State::Empty,
            lines_dropped: 0,
            reported: None,
            slow_until: None,
        });
        let size = buffering.map_or(WRITE_SIZE, |buffering| buffering.size);
        let writable = matches!(tail.state, State::Due | State::Held(_));
        if writable && tail.bytes.len().saturating_add(line.len()) > size {
            self.reports.extend(tail.write(now));
            if tail.state == State::Due {
                self.due.push(number);
            }
        }
        let limit = UNWRITTEN_MAX.max(size);
        if !tail.bytes.is_empty() && tail.bytes.len().saturating_add(line.len()) > limit {
            tail.lines_dropped += 1;
            return;
        }
        tail.bytes.extend_from_slice(line);
        tail.state = match (tail.state, buffering) {
            (State::Empty, Some(buffering)) if line.len() <= buffering.size => {
                State::Held(buffering.flush.and_then(|flush| now.checked_add(flush)))
            }
            (State::Held(until), Some(_)) => State::Held(until),
            (State::Empty | State::Held(_), _) => {
                self.due.push(number);
                State::Due
            }
            (state, _) => state,
        };
        match tail.state {
            State::Due => DUE.set(true),
            State::Away => {}
            _ => self.waiting = true,
        }
    }

    /// Writes one file, and removes it if nothing is left, unless its device was slow recently.
    fn flush(&mut self, number: u64, now: Instant) {
        let Some(tail) = self.tails.get_mut(&number) else {
            return;
        };
        if tail.state == State::Away {
            return;
        }
        if self.deferred && !tail.is_empty() && tail.is_slow(now) {
            tail.write_on_pool(number);
            return;
        }
        self.reports.extend(tail.write(now));
        match tail.state {
            State::Empty if tail.is_slow(now) => self.waiting = true,
            State::Empty => {
                if let Some(tail) = self.tails.remove(&number)
                    && self.spare.len() < SPARE_MAX
                    && tail.bytes.capacity() <= 2 * WRITE_SIZE
                {
                    self.spare.push(tail.bytes);
                }
            }
            state => {
                self.waiting |= state != State::Due;
                if tail.is_due() {
                    self.due.push(number);
                    DUE.set(true);
                }
            }
        }
    }

    /// Writes the lines that are due at the end of a turn.
    fn flush_due(&mut self, now: Instant) {
        DUE.set(false);
        let mut numbers = std::mem::take(&mut self.due);
        for number in numbers.drain(..) {
            if self.tails.get(&number).is_some_and(Tail::is_due) {
                self.flush(number, now);
            }
        }
        // Unless blocked files have been queued again meanwhile, the old vector is reused.
        if self.due.is_empty() {
            self.due = numbers;
        }
    }

    /// Writes the lines for which the timer has run out.
    fn flush_overdue(&mut self, now: Instant) {
        let overdue: Vec<u64> = self
            .tails
            .iter()
            .filter(|(_, tail)| tail.is_overdue(now))
            .map(|(key, _)| *key)
            .collect();
        for number in overdue {
            self.flush(number, now);
        }
    }

    /// Writes all lines, without the thread pool.
    fn flush_all(&mut self, now: Instant) {
        self.due.clear();
        DUE.set(false);
        let all: Vec<u64> = self.tails.keys().copied().collect();
        for number in all {
            if let Some(tail) = self.tails.get_mut(&number) {
                tail.slow_until = None;
            }
            self.flush(number, now);
        }
    }

    /// The time of the next check of the files; `None` ends the timer.
    fn next_check(&mut self, now: Instant) -> Option<Instant> {
        let next = self
            .tails
            .values()
            .filter_map(|tail| tail.check_due(now))
            .min();
        self.timer = next.is_some();
        self.waiting = next.is_some();
        next
    }

    /// Handles the end of a write by the thread pool, with the result for `bytes`.
    fn write_finished(&mut self, number: u64, mut bytes: Vec<u8>, outcome: WriteResult) {
        let now = engine::now();
        let Some(tail) = self.tails.get_mut(&number) else {
            return;
        };
        let behind = tail.outgoing();
        bytes.append(behind);
        *behind = bytes;
        self.reports.extend(tail.settle(outcome, now));
        match tail.state {
            State::Empty if !tail.is_slow(now) => {
                self.tails.remove(&number);
            }
            State::Due => {
                self.due.push(number);
                DUE.set(true);
            }
            _ => self.waiting = true,
        }
    }
}

impl Drop for ThreadLines {
    fn drop(&mut self) {
        for tail in self.tails.values_mut() {
            tail.write(Instant::now());
        }
    }
}

/// How much a write has written, and what ended it early.
struct WriteResult {
    /// Number of bytes that were written.
    written: usize,
    result: io::Result<()>,
    /// Whether the write took longer than [`SLOW_WRITE`].
    slow: bool,
}

fn write_all(mut file: &File, bytes: &[u8]) -> WriteResult {
    let began = Instant::now();
    let mut written = 0;
    let result = loop {
        match file.write(bytes.get(written..).unwrap_or_default()) {
            Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
        if written >= bytes.len() {
            break Ok(());
        }
    };
    WriteResult {
        written,
        result,
        slow: began.elapsed() > SLOW_WRITE,
    }
}

impl Tail {
    /// Whether the lines are written at the end of the turn.
    fn is_due(&self) -> bool {
        matches!(self.state, State::Due | State::Blocked)
    }

    /// Whether the timer must write the lines, or remove the file.
    fn is_overdue(&self, now: Instant) -> bool {
        match self.state {
            // A file that only this thread refers to is one of an ended generation.
            State::Held(until) => {
                until.is_some_and(|until| until <= now)
                    || Arc::strong_count(&self.file) == 1
                    || self.file.is_retired()
                    || self.is_rotated()
            }
            State::Failing(until) => until <= now,
            State::Blocked => true,
            State::Empty => self.slow_until.is_some_and(|until| until <= now),
            State::Due | State::Away => false,
        }
    }

    /// Whether the device was slow recently, and may still be.
    fn is_slow(&self, now: Instant) -> bool {
        self.slow_until.is_some_and(|until| now < until)
    }

    /// Whether another descriptor has been installed since the first line was logged.
    fn is_rotated(&self) -> bool {
        self.file.opening() != self.opening
    }

    /// The descriptor for the lines. Lines that could not be written before a rotation go to the
    /// new file.
    fn descriptor(&mut self) -> Option<Arc<File>> {
        let failed = matches!(self.state, State::Failing(_)) && self.is_rotated();
        if failed || self.opened.is_none() {
            self.opening = self.file.opening();
            self.opened = self.file.descriptor();
        }
        self.opened.clone()
    }

    /// The time at which the timer must check the file; `None` if another event comes first.
    fn check_due(&self, now: Instant) -> Option<Instant> {
        match self.state {
            State::Held(until) => Some(until.map_or(now + TICK, |until| until.min(now + TICK))),
            State::Failing(until) => Some(until),
            State::Blocked => Some(now + BLOCKED_RETRY),
            State::Empty => self.slow_until,
            State::Due | State::Away => None,
        }
    }

    /// Writes the lines; returns the report for the operator, if there is one.
    fn write(&mut self, now: Instant) -> Option<String> {
        if self.is_empty() {
            self.state = State::Empty;
            return None;
        }
        let Some(file) = self.descriptor() else {
            self.state = State::Failing(now + FAILED_RETRY);
            return None;
        };
        self.pack();
        let outcome = write_all(&file, self.outgoing());
        self.settle(outcome, now)
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.packed.is_empty()
    }

    /// `gzip=`: compresses the lines to a gzip member, unless the previous member is not completely
    /// written.
    fn pack(&mut self) {
        if let Some(level) = self.gzip_level()
            && self.packed.is_empty()
        {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
            // Writing to a vector never fails.
            let _ = encoder.write_all(&self.bytes);
            self.packed = encoder.finish().unwrap_or_default();
            self.bytes.clear();
        }
    }

    /// The bytes to write to the file.
    fn outgoing(&mut self) -> &mut Vec<u8> {
        match self.gzip_level() {
            Some(_) => &mut self.packed,
            None => &mut self.bytes,
        }
    }

    fn gzip_level(&self) -> Option<u32> {
        self.file.buffering().and_then(|buffering| buffering.gzip)
    }

    /// Passes the lines to the thread pool, because the device was slow recently.
    fn write_on_pool(&mut self, number: u64) {
        let Some(file) = self.descriptor() else {
            return;
        };
        self.state = State::Away;
        self.pack();
        let bytes = std::mem::take(self.outgoing());
        // The thread may end before the pool has written the lines; the process must not.
        let unfinished = engine::ExitBlocker::new();
        engine::spawn(async move {
            let work = move || {
                let outcome = write_all(&file, &bytes);
                drop(unfinished);
                (bytes, outcome)
            };
            let (bytes, outcome) = engine::blocking(work).await;
            with_thread(|thread| thread.write_finished(number, bytes, outcome));
        });
    }

    /// Sets the state after a write. Returns the report for the operator, if there is one.
    fn settle(&mut self, outcome: WriteResult, now: Instant) -> Option<String> {
        if outcome.slow {
            self.slow_until = now.checked_add(SLOW_FOR);
        }
        let outgoing = self.outgoing();
        outgoing.drain(..outcome.written.min(outgoing.len()));
        let error = match outcome.result {
            Ok(()) => {
                // Lines may have arrived after those that were just written.
                self.state = if self.is_empty() {
                    State::Empty
                } else {
                    State::Due
                };
                return self.report_dropped();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.state = State::Blocked;
                return None;
            }
            Err(error) => error,
        };
        self.state = State::Failing(now + FAILED_RETRY);
        if self
            .reported
            .is_some_and(|last| now.duration_since(last) < REPORT_INTERVAL)
        {
            return None;
        }
        self.reported = Some(now);
        Some(format!(
            "write() to \"{}\" failed {}",
            self.file.name(),
            Errno(&error)
        ))
    }

    /// Counts the dropped lines, and returns the report about them, if there are any.
    fn report_dropped(&mut self) -> Option<String> {
        let lines = std::mem::take(&mut self.lines_dropped);
        if lines == 0 {
            return None;
        }
        self.file.count_dropped(lines);
        Some(format!(
            "{lines} lines for \"{}\" were dropped: it could not be written",
            self.file.name()
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use rustix::fs::OFlags;

    use super::super::LogTable;
    use super::*;

    /// A log that is a pipe, so that the test can read it.
    fn piped() -> (Arc<LogFile>, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK).unwrap();
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
        let file = LogTable::default().stderr();
        file.install(OwnedFd::from(writer));
        (file, reader)
    }

    fn content(reader: &mut io::PipeReader) -> Vec<u8> {
        let mut out = Vec::new();
        match reader.read_to_end(&mut out) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => out,
            other => panic!("{other:?}"),
        }
    }

    fn gathering() -> ThreadLines {
        let mut thread = ThreadLines::default();
        thread.deferred = true;
        thread
    }

    fn pipe_for(file: &LogFile) -> io::PipeReader {
        let (reader, writer) = io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK).unwrap();
        file.install(OwnedFd::from(writer));
        reader
    }

    /// nginx writes its buffers before it reopens its files.
    #[test]
    fn held_lines_go_to_the_file_from_before_a_rotation() {
        let (file, mut before) = piped();
        let mut thread = gathering();
        let now = Instant::now();
        let buffering = Some(Buffering {
            size: 1000,
            flush: None,
            gzip: None,
        });
        thread.append(&file, b"one\n", buffering, now);
        let mut between = pipe_for(&file);
        // The next check comes within a second.
        thread.flush_overdue(now);
        let mut first = Vec::new();
        before.read_to_end(&mut first).unwrap();
        assert_eq!(first, b"one\n");
        thread.append(&file, b"two\n", buffering, now);
        let mut after = pipe_for(&file);
        // The next line writes the older ones.
        thread.append(&file, b"three\n", buffering, now);
        let mut rest = Vec::new();
        between.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"two\n");
        thread.flush_all(now);
        assert_eq!(content(&mut after), b"three\n");
    }

    /// Several threads may buffer lines for a file whose generation has ended.
    #[test]
    fn held_lines_leave_when_their_generation_has_ended() {
        let (file, mut reader) = piped();
        let (mut first, mut second) = (gathering(), gathering());
        let now = Instant::now();
        let buffering = Some(Buffering {
            size: 1000,
            flush: None,
            gzip: None,
        });
        first.append(&file, b"one\n", buffering, now);
        second.append(&file, b"two\n", buffering, now);
        file.retire();
        first.flush_overdue(now);
        second.flush_overdue(now);
        assert_eq!(content(&mut reader), b"one\ntwo\n");
    }

    #[test]
    fn lines_of_a_turn_leave_together_and_the_file_is_forgotten() {
        let (file, mut reader) = piped();
        let mut thread = gathering();
        let now = Instant::now();
        thread.append(&file, b"one\n", None, now);
        thread.append(&file, b"two\n", None, now);
        assert_eq!(content(&mut reader), b"");
        assert!(DUE.get());
        thread.flush_due(now);
        assert_eq!(content(&mut reader), b"one\ntwo\n");
        assert!(thread.tails.is_empty() && !DUE.get());
        assert_eq!(Arc::strong_count(&file), 1);
    }

    /// nginx writes the buffer if the next line does not fit, then buffers that line.
    #[test]
    fn a_buffer_leaves_when_the_next_line_does_not_fit() {
        let (file, mut reader) = piped();
        let mut thread = gathering();
        let now = Instant::now();
        let buffering = Some(Buffering {
            size: 10,
            flush: None,
            gzip: None,
        });
        for line in [b"12345\n", b"abc.\n\n"] {
            thread.append(&file, line, buffering, now);
            thread.flush_due(now);
        }
        assert_eq!(content(&mut reader), b"12345\n");
        thread.append(&file, b"longer than the buffer\n", buffering, now);
        assert_eq!(content(&mut reader), b"abc.\n\n");
        thread.flush_due(now);
        assert_eq!(content(&mut reader), b"longer than the buffer\n");
        assert!(thread.tails.is_empty());
    }

    #[test]
    fn held_lines_leave_in_time_and_when_nobody_uses_the_file() {
        let (file, mut reader) = piped();
        let mut thread = gathering();
        let now = Instant::now();
        let flush = Duration::from_millis(300);
        let buffering = Buffering {
            size: 1000,
            flush: Some(flush),
            gzip: None,
        };
        thread.append(&file, b"one\n", Some(buffering), now);
        thread.append(&file, b"two\n", Some(buffering), now + flush / 2);
        assert_eq!(thread.next_check(now), Some(now + flush));
        thread.flush_overdue(now + flush / 2);
        assert_eq!(content(&mut reader), b"");
        thread.flush_overdue(now + flush);
        assert_eq!(content(&mut reader), b"one\ntwo\n");
        assert_eq!(thread.next_check(now), None);

        thread.append(
            &file,
            b"three\n",
            Some(Buffering {
                size: 1000,
                flush: None,
                gzip: None,
            }),
            now,
        );
        assert_eq!(thread.next_check(now), Some(now + TICK));
        drop(file);
        thread.flush_overdue(now + TICK);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"three\n");
    }

    #[test]
    fn compressed_lines_are_a_gzip_member_per_write() {
        let (file, mut reader) = piped();
        let mut thread = gathering();
        let now = Instant::now();
        let buffering = Buffering {
            size: 1000,
            flush: None,
            gzip: Some(1),
        };
        assert!(file.set_buffering(buffering));
        for line in [b"one\n", b"two\n"] {
            thread.append(&file, line, Some(buffering), now);
            thread.flush_all(now);
        }
        assert!(thread.tails.is_empty());
        let written = content(&mut reader);
        let mut text = String::new();
        flate2::read::MultiGzDecoder::new(written.as_slice())
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "one\ntwo\n");
        assert_eq!(
            written
                .windows(2)
                .filter(|pair| *pair == [0x1f, 0x8b])
                .count(),
            2
        );
    }

    #[test]
    fn an_unbuffered_line_takes_held_ones_along() {
        let (file, mut reader) = piped();
        let mut thread = gathering();
        let now = Instant::now();
        thread.append(
            &file,
            b"held\n",
            Some(Buffering {
                size: 1000,
                flush: None,
                gzip: None,
            }),
            now,
        );
        thread.append(&file, b"error\n", None, now);
        thread.flush_due(now);
        assert_eq!(content(&mut reader), b"held\nerror\n");
    }

    #[test]
    fn a_full_pipe_delays_then_drops_whole_lines_and_counts_them() {
        let (file, mut reader) = piped();
        let mut thread = gathering();
        let now = Instant::now();
        let line = [[b'x'; 1023].as_slice(), b"\n"].concat();
        let lines = (UNWRITTEN_MAX + 512 * 1024) / line.len();
        for _ in 0..lines {
            thread.append(&file, &line, None, now);
        }
        let tail = thread.tails.get(&file.number()).unwrap();
        assert_eq!(tail.state, State::Blocked);
        assert!(tail.bytes.len() <= UNWRITTEN_MAX);
        let dropped = tail.lines_dropped as usize;
        assert!(dropped > 0);
        assert!(
            DUE.get(),
            "a blocked file is tried at the end of every turn"
        );
        assert_eq!(thread.next_check(now), Some(now + BLOCKED_RETRY));

        let mut all = Vec::new();
        while !thread.tails.is_empty() {
            all.extend(content(&mut reader));
            thread.flush_due(now);
        }
        all.extend(content(&mut reader));
        assert_eq!(all.len(), (lines - dropped) * line.len());
        assert!(all.chunks(line.len()).all(|chunk| chunk == line));
        assert_eq!(file.lines_dropped(), dropped as u64);
        assert_eq!(
            thread.reports,
            [format!(
                "{dropped} lines for \"stderr\" were dropped: it could not be written"
            )]
        );
    }

    #[test]
    fn a_failing_file_is_reported_once_a_minute_and_tried_again() {
        let file = LogTable::default().file(std::path::Path::new("/dev/full"));
        file.install(file.open().unwrap());
        let mut thread = gathering();
        let now = Instant::now();
        thread.append(&file, b"one\n", None, now);
        thread.flush_due(now);
        assert_eq!(
            thread.reports,
            ["write() to \"/dev/full\" failed (28: No space left on device)"]
        );
        assert_eq!(thread.next_check(now), Some(now + FAILED_RETRY));
        thread.flush_overdue(now + FAILED_RETRY);
        assert_eq!(thread.reports.len(), 1);
        thread.flush_overdue(now + FAILED_RETRY + REPORT_INTERVAL);
        assert_eq!(thread.reports.len(), 2);

        let (reader, writer) = io::pipe().unwrap();
        file.install(OwnedFd::from(writer));
        thread.flush_all(now);
        drop((thread, file));
        assert_eq!(io::read_to_string(reader).unwrap(), "one\n");
    }

    #[test]
    fn what_the_pool_did_not_write_goes_before_newer_lines() {
        let (file, mut reader) = piped();
        let mut thread = gathering();
        let now = Instant::now();
        thread.append(&file, b"old\n", None, now);
        let tail = thread.tails.get_mut(&file.number()).unwrap();
        let away = std::mem::take(&mut tail.bytes);
        tail.state = State::Away;
        thread.append(&file, b"new\n", None, now);
        thread.flush_due(now);
        assert_eq!(content(&mut reader), b"", "newer lines wait for older ones");
        thread.write_finished(
            file.number(),
            away,
            WriteResult {
                written: 1,
                result: Ok(()),
                slow: false,
            },
        );
        thread.flush_due(now);
        assert_eq!(content(&mut reader), b"ld\nnew\n");
    }

    #[test]
    fn a_thread_that_ends_writes_what_it_has() {
        let (file, reader) = piped();
        let shared = Arc::clone(&file);
        std::thread::spawn(move || {
            let mut thread = gathering();
            thread.append(&shared, b"last words\n", None, Instant::now());
        })
        .join()
        .unwrap();
        drop(file);
        assert_eq!(io::read_to_string(reader).unwrap(), "last words\n");
    }

    /// Runs `f` on a thread with an event loop.
    fn in_a_loop<F: Future<Output = ()>>(f: F) {
        let settings = engine::Settings::default();
        let mut runtime = engine::Runtime::new(engine::EngineKind::Epoll, settings).unwrap();
        runtime.block_on(async {
            start_thread();
            f.await;
        });
    }

    /// Waits until these bytes are written, for a second at most.
    async fn expect(reader: &mut io::PipeReader, expected: &[u8]) {
        let mut all = Vec::new();
        for _ in 0..200 {
            all.extend(content(reader));
            if all == expected {
                return;
            }
            engine::sleep(Duration::from_millis(5)).await;
        }
        panic!(
            "{:?} instead of {:?}",
            all.escape_ascii(),
            expected.escape_ascii()
        );
    }

    #[test]
    fn the_loop_writes_at_the_end_of_a_turn_and_held_lines_in_time() {
        let (file, mut reader) = piped();
        in_a_loop(async {
            append(&file, b"one\n", None);
            assert_eq!(content(&mut reader), b"");
            expect(&mut reader, b"one\n").await;
            let flush = Some(Duration::from_millis(20));
            append(
                &file,
                b"held\n",
                Some(Buffering {
                    size: 1000,
                    flush,
                    gzip: None,
                }),
            );
            engine::yield_now().await;
            assert_eq!(content(&mut reader), b"");
            expect(&mut reader, b"held\n").await;
        });
    }

    #[test]
    fn a_slow_file_is_written_by_the_thread_pool() {
        let (file, mut reader) = piped();
        in_a_loop(async {
            append(&file, b"one\n", None);
            THREAD.with(|thread| {
                let mut thread = thread.borrow_mut();
                let tail = thread.tails.get_mut(&file.number()).unwrap();
                tail.slow_until = engine::now().checked_add(SLOW_FOR);
            });
            flush_thread();
            append(&file, b"two\n", None);
            THREAD.with(|thread| {
                assert_eq!(thread.borrow().tails[&file.number()].state, State::Away);
            });
            expect(&mut reader, b"one\ntwo\n").await;
        });
    }

    /// A slow device is not assumed to be fast once it has accepted a write.
    #[test]
    fn a_file_that_was_slow_is_slow_for_a_while() {
        let (file, mut reader) = piped();
        let mut thread = gathering();
        let now = Instant::now();
        thread.append(&file, b"one\n", None, now);
        let tail = thread.tails.get_mut(&file.number()).unwrap();
        let slowly = WriteResult {
            written: 4,
            result: Ok(()),
            slow: true,
        };
        assert_eq!(tail.settle(slowly, now), None);
        thread.flush(file.number(), now);
        assert!(
            thread.tails[&file.number()].is_slow(now),
            "it is not forgotten"
        );
        assert_eq!(thread.next_check(now), now.checked_add(SLOW_FOR));
        let later = now + SLOW_FOR;
        thread.flush_overdue(later);
        assert!(thread.tails.is_empty(), "until then");
        assert_eq!(thread.next_check(later), None);
        thread.append(&file, b"two\n", None, later);
        thread.flush_due(later);
        assert_eq!(content(&mut reader), b"two\n");
    }

    #[test]
    fn what_is_under_way_to_a_slow_file_when_its_thread_ends_is_written() {
        let (reader, writer) = io::pipe().unwrap();
        let file = LogTable::default().stderr();
        file.install(OwnedFd::from(writer));
        // More than a pipe holds: the pool waits for a reader.
        let lines = b"0123456789abcdef\n".repeat(10_000);
        let shared = Arc::clone(&file);
        let given = lines.clone();
        let ended = std::thread::spawn(move || {
            in_a_loop(async {
                append(&shared, &given, None);
                THREAD.with(|thread| {
                    let mut thread = thread.borrow_mut();
                    let tail = thread.tails.get_mut(&shared.number()).unwrap();
                    tail.slow_until = engine::now().checked_add(SLOW_FOR);
                });
                flush_thread();
                engine::yield_now().await;
            });
            end_thread();
            engine::finish_background();
        });
        drop(file);
        let mut reader = reader;
        let mut written = vec![0; lines.len()];
        reader.read_exact(&mut written).unwrap();
        assert!(written == lines);
        ended.join().unwrap();
    }

    #[test]
    fn a_blocked_pipe_goes_on_when_its_reader_does() {
        let (file, mut reader) = piped();
        let lines = b"0123456789abcdef\n".repeat(10_000);
        in_a_loop(async {
            append(&file, &lines, None);
            expect(&mut reader, &lines).await;
        });
    }
}
