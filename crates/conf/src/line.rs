//! What is written: words, and the lines that they make.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::LazyLock;

use crate::position::Position;

/// One word of a line: a directive's name or an argument, quotes and escapes resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// The bytes; not necessarily UTF-8.
    pub bytes: Box<[u8]>,
    /// Whether it stood in quotes.
    pub quoted: bool,
    /// The position of the word in its file.
    pub position: Position,
}

impl Word {
    /// The word as text, for messages and names; what is not UTF-8 is replaced.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    /// The offset behind it in its file; before that where it was written with escapes.
    pub(crate) fn end(&self) -> usize {
        let quotes = if self.quoted { 2 } else { 0 };
        self.position.offset as usize + self.bytes.len() + quotes
    }

    /// The word as a path.
    #[must_use]
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.bytes))
    }
}

impl From<&Word> for Position {
    fn from(word: &Word) -> Position {
        word.position
    }
}

/// A directive as written, or a row of a free block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The first word of the line.
    pub name: Word,
    /// The words after it.
    pub args: Vec<Word>,
    /// The block that the line opens, if any.
    pub block: Option<Block>,
    /// The position of the line in its file.
    pub position: Position,
    /// Where the `}` of its block stands, and the place in the order of reading of what was read
    /// last before that.
    pub(crate) end: Option<(Position, u32)>,
    /// The place among all lines in the order of reading, includes in place; 0 for a default.
    pub(crate) sequence: u32,
}

/// What stands in for a line that is missing.
pub(crate) static EMPTY_LINE: LazyLock<Line> = LazyLock::new(Line::default);

/// The identity of a scope within its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopeId(pub(crate) u32);

/// What follows a line in braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Directives, in a scope of their own.
    Scope(ScopeId),
    /// Rows whose words only the directive itself understands (`map`, `types`).
    Free(Vec<Line>),
}

impl Line {
    /// The place among all lines in the order of reading, includes in place; 0 for a default.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Where the `}` of its block stands, at which nginx judges some blocks as a whole; the line
    /// itself where there is none.
    #[must_use]
    pub fn end(&self) -> Position {
        self.end.map_or(self.position, |(end, _)| end)
    }

    /// Whether this is the directive `name`.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        *self.name.bytes == *name.as_bytes()
    }

    /// An argument by its index; the empty word where the line has fewer, which the directive's
    /// arity rules out.
    #[must_use]
    pub fn argument(&self, index: usize) -> &Word {
        self.args.get(index).unwrap_or_else(|| &EMPTY_LINE.name)
    }
}
