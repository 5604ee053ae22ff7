//! Hints about typing errors: a missing `;` or space, typographic quotation marks.
//!
//! Used for messages only, after an error; nothing here decides what a configuration means.

use crate::diagnostic::{Diagnostic, Level};
use crate::position::Position;
use crate::registry::Registry;
use crate::source::SourceFile;

/// Adds the hint that a `;` is missing, if the refused argument is the first word of its text line
/// and is the name of a directive: the text line before it then probably lacks its `;`.
pub(crate) fn at_semicolon(found: &mut Diagnostic, sources: &[SourceFile], registry: &Registry) {
    let Some(position) = found.position.filter(|_| found.hint.is_none()) else {
        return;
    };
    let Some(source) = source(sources, position.file) else {
        return;
    };
    let Some((before, word)) = source.text.split_at_checked(position.offset as usize) else {
        return;
    };
    let end = word.iter().position(|byte| b" \t\r\n;{}".contains(byte));
    let name = word.get(..end.unwrap_or(word.len())).unwrap_or_default();
    let blank = before
        .iter()
        .rev()
        .take_while(|byte| b" \t\r\n".contains(byte));
    let (mut length, mut begins_line) = (0, false);
    for byte in blank {
        length += 1;
        begins_line |= *byte == b'\n';
    }
    let last = before
        .len()
        .checked_sub(length + 1)
        .and_then(|at| before.get(at));
    let goes_on = last.is_some_and(|byte| !b";{}".contains(byte));
    let line_before = before.get(..before.len() - length).unwrap_or_default();
    let start = memchr::memrchr(b'\n', line_before).map_or(0, |at| at + 1);
    let is_comment = line_before.get(start..).unwrap_or_default().contains(&b'#');
    let is_name = !registry.lookup(name).is_empty() || glued_name(name).is_some();
    if begins_line && goes_on && !is_comment && is_name {
        let name = String::from_utf8_lossy(name);
        found.hint = Some(format!("a \";\" is missing before \"{name}\""));
    }
}

/// Adds a hint if the text line of an error contains typographic quotation marks, which may have
/// caused the error.
pub(crate) fn at_curly_quotes(found: &mut Diagnostic, sources: &[SourceFile]) {
    let is_error = found.level == Level::Emerg && found.hint.is_none();
    let Some(position) = found.position.filter(|_| is_error) else {
        return;
    };
    let Some(source) = source(sources, position.file) else {
        return;
    };
    let Some((before, after)) = source.text.split_at_checked(position.offset as usize) else {
        return;
    };
    let line_before = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
    let line_before = before.get(line_before..).unwrap_or_default();
    let line_after = after
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let has_one = |text: &[u8]| text.windows(3).any(begins_with_curly_quote);
    if has_one(line_before) || has_one(line_after) {
        found.hint = Some(STRAIGHT_QUOTES.to_owned());
    }
}

/// The hint for typographic quotation marks.
pub(crate) const STRAIGHT_QUOTES: &str = "only \" and ' hold words together";

/// Whether a text begins with one of `“”„‘’‚«»`.
pub(crate) fn begins_with_curly_quote(text: &[u8]) -> bool {
    let mut quotes = ["“", "”", "„", "‘", "’", "‚", "«", "»"].into_iter();
    quotes.any(|quote| text.starts_with(quote.as_bytes()))
}

/// The directive whose name begins this word, if a space after the name is missing: `if($x)`,
/// `location/x`.
pub(crate) fn glued_name(word: &[u8]) -> Option<&'static str> {
    let begins = |name: &str, marks: &[u8]| {
        let mark = word.strip_prefix(name.as_bytes()).and_then(<[u8]>::first);
        mark.is_some_and(|mark| marks.contains(mark))
    };
    if begins("if", b"(") {
        Some("if")
    } else if begins("location", b"/=~^@") {
        Some("location")
    } else {
        None
    }
}

/// The source file with this number.
pub(crate) fn source(sources: &[SourceFile], file: u32) -> Option<&SourceFile> {
    let of_file = Position {
        file,
        ..Position::default()
    };
    let name = of_file.file_name()?;
    sources.iter().find(|source| *source.name == *name)
}
