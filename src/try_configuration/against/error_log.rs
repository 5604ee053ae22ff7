//! Finds the lines in the trial's error logs about a request that was answered with an error.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::client::Request;

/// Number of bytes at a log's end that are searched.
const TAIL_LENGTH_MAX: u64 = 64 * 1024;

/// Time limit for a line to be written after the response.
const PATIENCE: Duration = Duration::from_millis(500);

/// Pause between two searches.
const PAUSE: Duration = Duration::from_millis(10);

/// The error logs of a trial.
pub(super) struct ErrorLogs(pub(super) Vec<PathBuf>);

impl ErrorLogs {
    /// The last line about a request, from its level to its end.
    pub(super) fn last_line(&self, request: &Request) -> Option<String> {
        let begin = Instant::now();
        loop {
            let mut found = self.0.iter().filter_map(|path| line_of(path, request));
            if let Some(line) = found.next() {
                return Some(line);
            }
            if begin.elapsed() > PATIENCE {
                return None;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn line_of(path: &Path, request: &Request) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let start = length.saturating_sub(TAIL_LENGTH_MAX);
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL_LENGTH_MAX).read_to_end(&mut tail).ok()?;
    let about = request.line();
    let is_about = |line: &&[u8]| line.windows(about.len()).any(|part| part == about);
    let line = tail.rsplit(|byte| *byte == b'\n').find(is_about)?;
    let level = line.iter().position(|byte| *byte == b'[')?;
    let line = line.get(level..).unwrap_or_default();
    // The line may contain a client's control characters, which must not reach a terminal.
    let shown = String::from_utf8_lossy(line).into_owned();
    Some(shown.replace(|letter: char| letter.is_control(), "?"))
}
