//! Words, and the lines that they form. A [`Line`] is a directive, which may extend over several
//! lines of its file.

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
    /// Whether the word was quoted.
    pub quoted: bool,
    /// The position of the word in its file.
    pub position: Position,
}

impl Word {
    /// The word as text, for messages and names; invalid UTF-8 is replaced.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    /// The offset of the byte after the word in its file; too small if the word contains escapes,
    /// because `bytes` is shorter than the written word.
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

/// A directive as written, or a row of a block such as `map` ([`Block::Free`]).
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
    /// The position of the `}` of the line's block, and the sequence number of the last line before
    /// the `}`.
    pub(crate) end: Option<(Position, u32)>,
    /// The sequence number of the line in reading order, in which the lines of an included file
    /// follow their `include`. 0 for a line outside of the configuration, such as one made from a
    /// default value.
    pub(crate) sequence: u32,
}

/// The line that [`Line::argument`] and [`crate::Setter::first`] use in place of a missing argument
/// or line.
pub(crate) static EMPTY_LINE: LazyLock<Line> = LazyLock::new(Line::default);

/// The identity of a scope within its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopeId(pub(crate) u32);

/// The content of the braces after a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Directives, in a scope of their own.
    Scope(ScopeId),
    /// Rows whose words only the directive itself understands (`map`, `types`).
    Free(Vec<Line>),
}

impl Line {
    /// The sequence number of the line in reading order, in which the lines of an included file
    /// follow their `include`. 0 for a line outside of the configuration, such as one made from a
    /// default value.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// The position of the block's `}`: nginx reports errors of a whole block there. Without a
    /// block, the position of the line.
    #[must_use]
    pub fn end(&self) -> Position {
        self.end.map_or(self.position, |(end, _)| end)
    }

    /// Whether this is the directive `name`.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        *self.name.bytes == *name.as_bytes()
    }

    /// The argument with this index, from 0. The empty word if the line has fewer arguments, which
    /// cannot happen within the minimum of the directive's arity.
    #[must_use]
    pub fn argument(&self, index: usize) -> &Word {
        self.args.get(index).unwrap_or_else(|| &EMPTY_LINE.name)
    }
}
