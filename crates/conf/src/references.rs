//! Finds lines by their content: uses of a variable, or a broken line that might have defined a
//! name.
//!
//! Used for messages only, after an error; nothing here decides what a configuration means.

use crate::files::Files;
use crate::line::{Block, Line, Word};
use crate::position::Position;
use crate::scope::ScopeRef;
use crate::tree::Tree;

impl Tree {
    /// Every use of `$name` or `${name}`, in reading order and in any case. Names of directives,
    /// and names being defined, are not searched.
    #[must_use]
    pub fn uses_of_variable(&self, name: &str) -> Vec<Position> {
        let mut found: Vec<(u32, Position)> = Vec::new();
        let mut look = |line: &Line, words: &[Word]| {
            for word in words {
                let places = places(&word.bytes, name.as_bytes());
                found.extend(places.map(|at| (line.sequence, within(word, at))));
            }
        };
        for scope in self.scopes() {
            for line in scope.lines() {
                look(line, used_words(line));
                if let Some(Block::Free(rows)) = &line.block {
                    for row in rows {
                        look(row, std::slice::from_ref(&row.name));
                        look(row, &row.args);
                    }
                }
            }
        }
        found.sort_by_key(|(sequence, position)| (*sequence, *position));
        found.into_iter().map(|(_, position)| position).collect()
    }

    /// For the lines that contain one of these positions, and for the lines that open the blocks
    /// around them: each argument, with the name of its directive. Names that these lines define
    /// may be missing only because of the errors at these positions.
    pub(crate) fn words_around(&self, places: &[Position]) -> Vec<(&Word, &Word)> {
        let mut words = Vec::new();
        for scope in self.scopes() {
            for line in scope.lines() {
                if !places.iter().any(|place| span(line).contains(*place)) {
                    continue;
                }
                words.extend(line.args.iter().map(|word| (&line.name, word)));
                if let Some(Block::Free(rows)) = &line.block {
                    let of_rows = rows.iter().flat_map(|row| &row.args);
                    words.extend(of_rows.map(|word| (&line.name, word)));
                }
                let mut around = Some(scope);
                while let Some(scope) = around {
                    let opener = scope.line().into_iter();
                    words.extend(
                        opener
                            .flat_map(|line| line.args.iter().map(move |word| (&line.name, word))),
                    );
                    around = ScopeRef::parent(scope);
                }
            }
        }
        words
    }

    /// The name of the directive whose line contains a position.
    pub(crate) fn directive_at(&self, place: Position) -> Option<&Word> {
        let lines = self.scopes().flat_map(|scope| scope.lines());
        let mut holding = lines.filter(|line| span(line).contains(place));
        holding.next().map(|line| &line.name)
    }

    /// The sequence number of the line, row or end of a block at a position.
    pub(crate) fn order_of(&self, place: Position) -> Option<u32> {
        let mut lines = self.scopes().flat_map(|scope| scope.lines());
        lines.find_map(|line| {
            if let Some((end, order)) = line.end
                && end == place
            {
                return Some(order);
            }
            let rows = match &line.block {
                Some(Block::Free(rows)) => rows.as_slice(),
                _ => &[],
            };
            let row = rows.iter().find(|row| span(row).contains(place));
            let holding = row.or(Some(line).filter(|line| span(line).contains(place)));
            holding.map(|line| line.sequence)
        })
    }
}

impl Position {
    /// The position with the line number of the word at the offset, in place of the line on which
    /// the directive ends.
    #[must_use]
    pub fn on_own_line(self, files: &dyn Files) -> Position {
        let text = self.file_name().and_then(|name| files.read(&name).ok());
        let before = text
            .as_ref()
            .and_then(|text| text.get(..self.offset as usize));
        let Some(before) = before else { return self };
        let line = 1 + memchr::memchr_iter(b'\n', before).count();
        Position {
            line: u32::try_from(line).unwrap_or(self.line),
            ..self
        }
    }
}

/// The words of a line that may use variables: the first argument of `set` and similar directives
/// is a definition.
fn used_words(line: &Line) -> &[Word] {
    let defines_first = ["set", "auth_request_set"].iter().any(|name| line.is(name));
    let skipped = usize::from(defines_first);
    line.args.get(skipped..).unwrap_or_default()
}

/// The byte range from a line's first word to its last, or to that of its last row in the same
/// file.
struct Span {
    file: u32,
    start: u32,
    end: u32,
}

impl Span {
    fn contains(&self, position: Position) -> bool {
        position.file == self.file && (self.start..=self.end).contains(&position.offset)
    }
}

fn span(line: &Line) -> Span {
    let rows: &[Line] = match &line.block {
        Some(Block::Free(rows)) => rows,
        _ => &[],
    };
    let words = std::iter::once(line).chain(rows);
    let words = words.flat_map(|line| std::iter::once(&line.name).chain(&line.args));
    // Included rows are in other files.
    let own = words.filter(|word| word.position.file == line.position.file);
    let end = |word: &Word| {
        let length = u32::try_from(word.bytes.len()).unwrap_or(u32::MAX);
        word.position.offset.saturating_add(length)
    };
    Span {
        file: line.position.file,
        start: line.name.position.offset,
        end: own.map(end).max().unwrap_or(line.name.position.offset),
    }
}

/// The offsets of the `$` of every `$name` or `${name}` in a text, in any case.
fn places<'a>(text: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    memchr::memchr_iter(b'$', text).filter(move |at| {
        let after = text.get(at + 1..).unwrap_or_default();
        let after = after.strip_prefix(b"{").unwrap_or(after);
        let (found, rest) = after.split_at(name.len().min(after.len()));
        let goes_on = rest
            .first()
            .is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        found.eq_ignore_ascii_case(name) && !goes_on
    })
}

/// The position of the byte with index `at` in a word; the position of the word if escapes may have
/// shifted the byte.
fn within(word: &Word, at: usize) -> Position {
    let may_be_unescaped = |byte: &u8| b"\"'\\\t\r\n".contains(byte);
    if word.bytes.iter().any(may_be_unescaped) {
        return word.position;
    }
    let at = u32::try_from(at + usize::from(word.quoted)).unwrap_or(0);
    Position {
        offset: word.position.offset.saturating_add(at),
        ..word.position
    }
}
