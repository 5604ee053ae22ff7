//! Positions in a configuration.
//!
//! Positions are small and copied everywhere, so they refer to their file by number. The file names
//! are kept once per process and never removed, because a message may be shown long after its
//! configuration was dropped. Memory grows with the number of distinct file names, not with the
//! number of reloads.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

/// A place in a configuration file or in a `-g` option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// The number of the file; 0 for positions in no file, such as those of defaults.
    pub file: u32,
    /// The line number in messages, from 1. As in nginx, the line on which the directive ends: that
    /// of its `;` or `{`.
    pub line: u32,
    /// Byte offset of the word in the file, from which excerpts compute the line of the word.
    pub offset: u32,
}

/// The file number of `-g`.
pub(crate) const COMMAND_LINE: u32 = 1;

static NAMES: RwLock<Vec<Arc<Path>>> = RwLock::new(Vec::new());

/// The number of file numbers without an entry in `NAMES`: 0 and [`COMMAND_LINE`].
const RESERVED: usize = 2;

/// The number of a file name, which is assigned at the first call.
pub(crate) fn file_number(name: &Path) -> u32 {
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    let index = names
        .iter()
        .position(|known| **known == *name)
        .unwrap_or_else(|| {
            names.push(name.into());
            names.len() - 1
        });
    u32::try_from(index + RESERVED).unwrap_or(0)
}

impl Position {
    /// The name of the file; `None` for positions in no file.
    pub fn file_name(self) -> Option<Arc<Path>> {
        let index = (self.file as usize).checked_sub(RESERVED)?;
        NAMES
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(index)
            .cloned()
    }
}

/// `FILE:LINE`, or `command line`.
impl fmt::Display for Position {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file_name() {
            Some(name) => write!(out, "{}:{}", name.display(), self.line),
            None if self.file == COMMAND_LINE => out.write_str("command line"),
            None => out.write_str("built-in defaults"),
        }
    }
}
