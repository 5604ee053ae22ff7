//! Finds the brace that is probably missing or surplus, if a file's braces do not match.
//!
//! The lexer or loader reports such an error at the end of the file, or at the first directive in a
//! wrong context, and not where the brace is missing or surplus. The indentation shows the probable
//! place: a `}` is suspicious if it is indented differently from the line of its `{`. The search
//! runs only after an error.

use crate::lexer::{Lexer, Token};
use crate::position::Position;

/// The suspicious places that the indentation shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SuspiciousPlaces {
    /// The directive whose block probably lacks its `}`: the `}` that closes it is indented less.
    pub(crate) unclosed: Option<Position>,
    /// The probably surplus `}`: it is indented more than the block that it closes.
    pub(crate) surplus: Option<Position>,
    /// The directive of the innermost block that is open at the end.
    pub(crate) open_at_end: Option<Position>,
}

struct OpenBlock {
    position: Position,
    indentation: Option<usize>,
}

impl SuspiciousPlaces {
    /// Examines the text of file number `file`; each field gets the first position of its kind.
    pub(crate) fn of(text: &[u8], file: u32) -> SuspiciousPlaces {
        let mut lexer = Lexer::file(text, file);
        let mut open: Vec<OpenBlock> = Vec::new();
        let mut suspects = SuspiciousPlaces::default();
        loop {
            match lexer.next() {
                Ok(Token::Directive { words, opens_block }) => {
                    if let (true, Some(name)) = (opens_block, words.first()) {
                        open.push(OpenBlock {
                            position: name.position,
                            indentation: indentation(text, name.position),
                        });
                    }
                }
                Ok(Token::BlockEnd) => {
                    let end = lexer.position();
                    let Some(closed) = open.pop() else {
                        suspects.surplus.get_or_insert(end);
                        continue;
                    };
                    match (closed.indentation, indentation(text, end)) {
                        (Some(opener), Some(closer)) if closer < opener => {
                            suspects.unclosed.get_or_insert(closed.position);
                        }
                        (Some(opener), Some(closer)) if closer > opener => {
                            suspects.surplus.get_or_insert(end);
                        }
                        _ => {}
                    }
                }
                Ok(Token::End) => break,
                Err(_) if lexer.is_at_end() => break,
                Err(_) => {
                    if lexer.last_byte() == Some(b'{') {
                        open.push(OpenBlock {
                            position: lexer.position(),
                            indentation: None,
                        });
                    }
                }
            }
        }
        suspects.open_at_end = open.last().map(|opened| opened.position);
        suspects
    }
}

/// The column of a position, if only blanks precede the position on its line. A tab advances to the
/// next multiple of eight columns.
fn indentation(text: &[u8], position: Position) -> Option<usize> {
    let before = text.get(..position.offset as usize)?;
    // Searches backwards, because a line may be very long.
    let blanks = before.iter().rev().take_while(|byte| b" \t".contains(byte));
    let start = before.len() - blanks.count();
    let begins_line = start
        .checked_sub(1)
        .is_none_or(|at| text.get(at) == Some(&b'\n'));
    let columns = before
        .get(start..)?
        .iter()
        .fold(0, |column, byte| match byte {
            b'\t' => (column / 8 + 1) * 8,
            _ => column + 1,
        });
    begins_line.then_some(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> [Option<usize>; 3] {
        let suspects = SuspiciousPlaces::of(text.as_bytes(), 2);
        let line = |position: Option<Position>| {
            position.map(|at| text[..at.offset as usize].lines().count().max(1))
        };
        [suspects.unclosed, suspects.surplus, suspects.open_at_end].map(line)
    }

    #[test]
    fn a_block_closed_by_a_brace_of_another_is_suspicious() {
        let text =
            "http {\n  server {\n    location / {\n      root /x;\n  }\n  server {\n  }\n}\n";
        assert_eq!(lines(text), [Some(3), None, Some(1)]);
    }

    #[test]
    fn a_brace_that_closes_too_much_is_suspicious() {
        let text = "http {\n  server {\n    location / {\n    }\n    }\n    root /x;\n  }\n}\n";
        assert_eq!(lines(text)[1], Some(5));
    }

    #[test]
    fn what_is_not_indented_gives_no_suspects() {
        assert_eq!(
            lines("http { server { location / { } }"),
            [None, None, Some(1)]
        );
        assert_eq!(
            lines("http {\n\tserver {\n        }\n}\n"),
            [None, None, None]
        );
    }
}
