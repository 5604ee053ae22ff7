//! The watchdog for stuck threads: logs the request that a stuck thread was processing.
//!
//! This is for bugs and for faults of the system (a hanging file system, a machine out of memory):
//! a healthy loop never waits for anything but the kernel's next event. Each thread publishes,
//! without locks, which connection it is polling and the request lines of recently polled
//! connections. The watchdog thread checks all of them every second.
//!
//! Not here: ending a stuck thread. Rust cannot do that, and the process continues with the other
//! threads.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::Pulse;

use crate::display::Printable;

/// Interval of the checks. A thread found twice in the same turn has been stuck for at least this
/// long.
pub const LOOK: Duration = Duration::from_secs(1);

/// Number of request lines that are kept per thread. The index of a connection's line is the
/// connection's serial number modulo this number.
const NOTES: usize = 64;

/// Length of a kept request line, in words of eight bytes.
const LINE_WORDS: usize = 15;

/// The published state of a thread.
#[derive(Debug)]
pub struct ThreadStatus {
    pulse: Pulse,
    /// The connection that is being polled, or was polled last; 0 for none.
    connection: AtomicU64,
    notes: Box<[CurrentRequest; NOTES]>,
}

/// The current request of a connection. A concurrent reader may see it half written, which is
/// acceptable in a log line.
#[derive(Debug)]
struct CurrentRequest {
    connection: AtomicU64,
    line: [AtomicU64; LINE_WORDS],
}

impl ThreadStatus {
    /// The state of a thread with this heartbeat.
    pub fn new(pulse: Pulse) -> ThreadStatus {
        let note = |_| CurrentRequest {
            connection: AtomicU64::new(0),
            line: [const { AtomicU64::new(0) }; LINE_WORDS],
        };
        ThreadStatus {
            pulse,
            connection: AtomicU64::new(0),
            notes: Box::new(std::array::from_fn(note)),
        }
    }

    /// Records that the task of this connection is about to be polled.
    pub fn polls(&self, connection: u64) {
        self.connection.store(connection, Ordering::Relaxed);
    }

    /// Notes that the connection starts a request, and clears the old request line.
    pub fn begins(&self, connection: u64) {
        if let Some(note) = self.note(connection) {
            note.connection.store(0, Ordering::Relaxed);
        }
    }

    /// Notes the request line of a request that may take long.
    pub fn is_at(&self, connection: u64, line: &[u8]) {
        let Some(note) = self.note(connection) else {
            return;
        };
        let (whole, rest) = line.as_chunks::<8>();
        // The line ends with a zero byte, unless it fills the note: later bytes belong to an
        // earlier line.
        let mut last = [0; 8];
        if let Some(begin) = last.get_mut(..rest.len()) {
            begin.copy_from_slice(rest);
        }
        let texts = whole.iter().chain(std::iter::once(&last));
        for (word, text) in note.line.iter().zip(texts) {
            word.store(u64::from_ne_bytes(*text), Ordering::Relaxed);
        }
        note.connection.store(connection, Ordering::Relaxed);
    }

    fn note(&self, connection: u64) -> Option<&CurrentRequest> {
        self.notes.get((connection % NOTES as u64) as usize)
    }
}

/// Displays the thread's current work for a log line.
impl Display for ThreadStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connection = self.connection.load(Ordering::Relaxed);
        if connection == 0 {
            return out.write_str("no connection");
        }
        write!(out, "connection *{connection}")?;
        let Some(note) = self.note(connection) else {
            return Ok(());
        };
        if note.connection.load(Ordering::Relaxed) != connection {
            return Ok(());
        }
        let words = note.line.iter().map(|word| word.load(Ordering::Relaxed));
        let line: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        let end = line.iter().position(|byte| *byte == 0);
        let line = line.get(..end.unwrap_or(line.len())).unwrap_or_default();
        write!(out, ", request: \"{}\"", Printable(line))
    }
}

/// All threads of a process, by number.
#[derive(Debug, Default)]
pub struct ThreadWatch(Mutex<Vec<WatchedThread>>);

/// A thread, and the result of the last check.
#[derive(Debug)]
struct WatchedThread {
    thread: usize,
    watched: Arc<ThreadStatus>,
    /// The turn of the thread's loop at the last check; `None` if the thread was waiting for
    /// events.
    turn: Option<u64>,
    /// The number of consecutive checks that found the same turn.
    looks: u64,
}

impl ThreadWatch {
    /// Adds a thread to the checks.
    pub fn add(&self, thread: usize, watched: Arc<ThreadStatus>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(WatchedThread {
            thread,
            watched,
            turn: None,
            looks: 0,
        });
    }

    /// Removes a thread whose loop has ended, since it may still wait for other things.
    pub fn remove(&self, thread: usize) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|seen| seen.thread != thread);
    }

    /// Checks every thread once, [`LOOK`] after the last check. Returns the lines to log about
    /// stuck threads: after one second, two, four and so on.
    pub fn look(&self) -> Vec<String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = Vec::new();
        for seen in all.iter_mut() {
            let turn = seen.watched.pulse.turn();
            seen.looks = if turn.is_some() && turn == seen.turn {
                seen.looks + 1
            } else {
                0
            };
            seen.turn = turn;
            if seen.looks.is_power_of_two() {
                let seconds = seen.looks * LOOK.as_secs();
                lines.push(format!(
                    "worker thread {} has not turned its loop for {seconds}s, at {}",
                    seen.thread, seen.watched
                ));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched() -> ThreadStatus {
        ThreadStatus::new(Pulse::default())
    }

    #[test]
    fn a_thread_tells_its_connection_and_request() {
        let watched = watched();
        assert_eq!(watched.to_string(), "no connection");
        watched.begins(7);
        watched.polls(7);
        assert_eq!(watched.to_string(), "connection *7");
        watched.is_at(7, b"GET /\x01 HTTP/1.1");
        assert_eq!(
            watched.to_string(),
            "connection *7, request: \"GET /\\x01 HTTP/1.1\""
        );
        watched.begins(7);
        assert_eq!(watched.to_string(), "connection *7");
    }

    #[test]
    fn a_note_of_another_connection_is_not_told() {
        let watched = watched();
        watched.is_at(7, b"GET / HTTP/1.1");
        watched.is_at(7 + NOTES as u64, b"GET /other HTTP/1.1");
        watched.polls(7);
        assert_eq!(watched.to_string(), "connection *7");
    }

    #[test]
    fn long_lines_are_cut() {
        let watched = watched();
        watched.polls(1);
        watched.is_at(1, &[b'a'; 500]);
        let line = "a".repeat(LINE_WORDS * 8);
        assert_eq!(
            watched.to_string(),
            format!("connection *1, request: \"{line}\"")
        );
        watched.is_at(1, b"GET");
        assert_eq!(watched.to_string(), "connection *1, request: \"GET\"");
    }

    #[test]
    fn a_thread_that_stands_still_is_told_ever_more_seldom() {
        use std::sync::mpsc::channel;
        let (show, shown) = channel();
        let (go_on, told) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let settings = engine::Settings::default();
            let mut runtime = engine::Runtime::new(engine::EngineKind::Epoll, settings).unwrap();
            let watched = Arc::new(ThreadStatus::new(runtime.pulse()));
            runtime.block_on(async {
                engine::sleep(Duration::from_millis(1)).await;
                watched.polls(3);
                watched.is_at(3, b"GET / HTTP/1.1");
                show.send(Arc::clone(&watched)).unwrap();
                told.recv().unwrap();
                engine::sleep(Duration::from_millis(1)).await;
                show.send(Arc::clone(&watched)).unwrap();
            });
        });
        let watch = ThreadWatch::default();
        watch.add(5, shown.recv().unwrap());
        assert!(watch.look().is_empty(), "seen for the first time");
        let line = |seconds| {
            vec![format!(
                "worker thread 5 has not turned its loop for {seconds}s, at connection *3, \
                 request: \"GET / HTTP/1.1\""
            )]
        };
        assert_eq!(watch.look(), line(1));
        assert_eq!(watch.look(), line(2));
        assert!(watch.look().is_empty());
        assert_eq!(watch.look(), line(4));
        go_on.send(()).unwrap();
        shown.recv().unwrap();
        assert!(watch.look().is_empty());
        thread.join().unwrap();
    }
}
