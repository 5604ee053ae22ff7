//! `error_log memory:SIZE`: the last lines, kept in memory only.
//!
//! <https://nginx.org/en/docs/debugging_log.html#memory>. As in nginx, the memory begins with a
//! title, followed by a ring of lines: the newest overwrite the oldest, regardless of line
//! boundaries. The first line creates a memory file (`memfd_create`), so that the ring can be read
//! from outside without a debugger (docs/running.md): the link of its descriptor in `/proc/PID/fd`
//! has the name `memory-log`.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use conf::{Fault, Word, parse};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Minimum size in bytes, without the name of the configuration file: nginx's title and its longest
/// line.
const SIZE_MIN: usize = 11 + 20 + 20 + 2048;

/// Parses `memory:SIZE`: the size in bytes, and the title.
pub(super) fn parse(word: &Word) -> Result<(usize, String), Fault> {
    let text = word.bytes.strip_prefix(b"memory:").unwrap_or(&word.bytes);
    let place = word.position.to_string();
    let size = parse::size_of(text).and_then(|size| usize::try_from(size).ok());
    let name_length = place.rsplit_once(':').map_or(0, |(name, _)| name.len());
    let size = size.filter(|size| *size >= SIZE_MIN + name_length);
    let size = size.ok_or_else(|| {
        let text = String::from_utf8_lossy(text);
        Fault::at(word, format!("invalid buffer size \"{text}\""))
    })?;
    Ok((size, format!("MEMLOG {size} {place}\n")))
}

/// A ring of lines in memory. Any thread may write.
#[derive(Debug)]
pub struct MemoryLog {
    size: usize,
    title: String,
    /// The memory file, once a line has been written; `None` if it could not be created: lines are
    /// then lost.
    file: OnceLock<Option<OwnedFd>>,
    /// Bytes written since the start.
    written: AtomicU64,
}

impl MemoryLog {
    pub(super) fn new(size: usize, title: &str) -> MemoryLog {
        MemoryLog {
            size,
            title: title.to_owned(),
            file: OnceLock::new(),
            written: AtomicU64::new(0),
        }
    }

    /// Writes a line over the oldest ones.
    pub(super) fn append(&self, line: &[u8]) {
        let Some(file) = self.file.get_or_init(|| self.create()) else {
            return;
        };
        let room = self.size.saturating_sub(self.title.len());
        let line = line.get(..room).unwrap_or(line);
        let written = self.written.fetch_add(line.len() as u64, Ordering::Relaxed);
        let at = written.checked_rem(room as u64).unwrap_or_default() as usize;
        let (front, rest) = line.split_at(line.len().min(room.saturating_sub(at)));
        let begin = self.title.len() as u64;
        // A failure cannot be reported anywhere.
        let _ = rustix::io::pwrite(file, front, begin + at as u64);
        if !rest.is_empty() {
            let _ = rustix::io::pwrite(file, rest, begin);
        }
    }

    fn create(&self) -> Option<OwnedFd> {
        let file = memfd_create("memory-log", MemfdFlags::CLOEXEC).ok()?;
        ftruncate(&file, self.size as u64).ok()?;
        rustix::io::pwrite(&file, self.title.as_bytes(), 0).ok()?;
        Some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_round_behind_the_title() {
        let log = MemoryLog::new(20, "TITLE\n");
        for line in ["first\n", "second\n", "3rd\n"] {
            log.append(line.as_bytes());
        }
        let file = log.file.get().unwrap().as_ref().unwrap();
        let mut content = [0; 30];
        let length = rustix::io::pread(file, &mut content, 0).unwrap();
        assert_eq!(&content[..length], b"TITLE\nrd\nst\nsecond\n3");
    }

    #[test]
    fn sizes() {
        let parsed = |text: &str| {
            parse(&Word {
                bytes: text.as_bytes().into(),
                quoted: false,
                position: Default::default(),
            })
            .map(|(size, _)| size)
            .map_err(|fault| fault.message)
        };
        assert_eq!(parsed("memory:32k"), Ok(32 * 1024));
        for wrong in ["1k", "x", ""] {
            let text = format!("invalid buffer size \"{wrong}\"");
            assert_eq!(parsed(&format!("memory:{wrong}")), Err(text));
        }
    }
}
