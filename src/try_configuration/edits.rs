//! Changes to the texts of configuration files, by the places of their words. No line is added or
//! removed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use conf::{Line, Loaded, Position, Word};

/// Changes that were asked for and not made yet. Files that are included several times get each
/// change once.
pub(super) struct Edits<'a> {
    loaded: &'a Loaded,
    /// By file and first byte: up to where, and by what it is replaced.
    changes: BTreeMap<PathBuf, BTreeMap<usize, (usize, String)>>,
}

impl<'a> Edits<'a> {
    /// No changes to what was read.
    pub(super) fn new(loaded: &'a Loaded) -> Edits<'a> {
        Edits {
            loaded,
            changes: BTreeMap::new(),
        }
    }

    /// Puts a text in the place of a word.
    pub(super) fn replace(&mut self, word: &Word, by: &str) {
        self.replace_all(std::slice::from_ref(word), by);
    }

    /// Puts a text in the place of some words of a line and all between them.
    pub(super) fn replace_all(&mut self, words: &[Word], by: &str) {
        let (Some(first), Some(last)) = (words.first(), words.last()) else {
            return;
        };
        let Some(end) = self.word(last).map(|range| range.end) else {
            return;
        };
        self.change(first.position, end, by.to_owned());
    }

    /// Puts a text at the beginning of the block that a line opens; one text for each block.
    pub(super) fn insert(&mut self, line: &Line, text: &str) {
        let last = line.args.last().unwrap_or(&line.name);
        let Some(end) = self.word(last).map(|range| range.end) else {
            return;
        };
        let Some(brace) = self
            .text(line.name.position)
            .and_then(|text| brace(text, end))
        else {
            return;
        };
        let at = Position {
            offset: u32::try_from(brace + 1).unwrap_or(u32::MAX),
            ..line.name.position
        };
        self.change(at, brace + 1, format!(" {text}"));
    }

    /// The texts of the files that are changed.
    pub(super) fn apply(self) -> BTreeMap<PathBuf, Vec<u8>> {
        let loaded = self.loaded;
        let source = |path: &PathBuf| loaded.sources.iter().find(|source| source.name == *path);
        self.changes
            .into_iter()
            .filter_map(|(path, changes)| {
                let text = changed(&source(&path)?.text, &changes);
                Some((path, text))
            })
            .collect()
    }

    fn change(&mut self, at: Position, end: usize, by: String) {
        if let Some(name) = at.file_name() {
            let changes = self.changes.entry(name.to_path_buf()).or_default();
            changes.insert(at.offset as usize, (end, by));
        }
    }

    /// The bytes of a word in its file, quotes included.
    fn word(&self, word: &Word) -> Option<Range<usize>> {
        let start = word.position.offset as usize;
        let end = word_end(self.text(word.position)?, start)?;
        Some(start..end)
    }

    fn text(&self, position: Position) -> Option<&'a [u8]> {
        let name = position.file_name()?;
        let sources = &self.loaded.sources;
        let source = sources.iter().find(|source| *source.name == *name)?;
        Some(&source.text)
    }
}

/// A text with changes.
fn changed(text: &[u8], changes: &BTreeMap<usize, (usize, String)>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    for (start, (end, by)) in changes {
        out.extend_from_slice(text.get(at..*start).unwrap_or_default());
        out.extend_from_slice(by.as_bytes());
        at = *end;
    }
    out.extend_from_slice(text.get(at..).unwrap_or_default());
    out
}

/// Where a word ends that begins at `start`, by the rules of nginx's words.
fn word_end(text: &[u8], start: usize) -> Option<usize> {
    let quote = text.get(start).filter(|byte| b"\"'".contains(byte));
    let mut at = start + usize::from(quote.is_some());
    let mut after_dollar = false;
    loop {
        let byte = text.get(at)?;
        let ends = match quote {
            Some(quote) => byte == quote,
            None => b" \t\r\n;{".contains(byte) && !(*byte == b'{' && after_dollar),
        };
        if ends {
            return Some(at + usize::from(quote.is_some()));
        }
        after_dollar = *byte == b'$';
        at += if *byte == b'\\' { 2 } else { 1 };
    }
}

/// Where a directive ends that begins at `start`: behind its semicolon, or behind the block that it
/// opens.
pub(super) fn directive_end(text: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    let mut depth = 0_usize;
    loop {
        match text.get(at)? {
            b';' if depth == 0 => return Some(at + 1),
            b'{' => depth += 1,
            b'}' if depth <= 1 => return Some(at + usize::from(depth == 1)),
            b'}' => depth -= 1,
            b'#' => {
                at += text.get(at..)?.iter().position(|byte| *byte == b'\n')?;
                continue;
            }
            b';' | b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => {
                at = word_end(text, at)?;
                continue;
            }
        }
        at += 1;
    }
}

/// The brace that opens a block, behind its last word.
fn brace(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match text.get(at)? {
            b'{' => return Some(at),
            b'#' => at += text.get(at..)?.iter().position(|byte| *byte == b'\n')?,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use crate::application::{OverlayFiles, registry};

    /// A configuration after some changes.
    fn edited(text: &str, change: impl Fn(&mut Edits<'_>, &[Line])) -> String {
        let path = Path::new("/edits.conf");
        let texts = OverlayFiles([(path.to_owned(), text.as_bytes().to_vec())].into());
        let loaded = conf::load(path, Path::new("/"), &[], registry(), &texts);
        let mut edits = Edits::new(&loaded);
        change(&mut edits, loaded.tree.root().lines());
        let texts = edits.apply();
        String::from_utf8(texts.into_values().next().unwrap()).unwrap()
    }

    #[test]
    fn words_of_every_shape_are_replaced() {
        for (old, new) in [
            ("pid /run/x;", "pid NEW;"),
            ("pid\t\"/run/\\\"x\";", "pid\tNEW;"),
            ("pid '/run x' ;", "pid NEW ;"),
            ("pid /run/${x}y\\ z\n;", "pid NEW\n;"),
        ] {
            let text = format!("# first\n{old} daemon on;");
            let expected = format!("# first\n{new} daemon off;");
            let found = edited(&text, |edits, lines| {
                edits.replace(&lines[0].args[0], "NEW");
                edits.replace(&lines[1].args[0], "off");
            });
            assert_eq!(found, expected);
        }
        let text = "error_log /x  info; daemon on;";
        let found = edited(text, |edits, lines| {
            edits.replace_all(&lines[0].args, "NEW")
        });
        assert_eq!(found, "error_log NEW; daemon on;");
    }

    #[test]
    fn a_directive_ends_behind_its_semicolon_or_block() {
        for text in [
            "cache a b;| next c;",
            "cache 'a;b' \"c}\" # d;\n;| next;",
            "block x { a { b; } # }\n c '}'; }| next;",
            "cache a |}",
        ] {
            let end = text.find('|').unwrap();
            let text = text.replacen('|', "", 1);
            assert_eq!(directive_end(text.as_bytes(), 0), Some(end), "{text}");
        }
    }

    #[test]
    fn blocks_get_lines_at_their_beginning() {
        let text = "events # not here: {\n{} # {\n";
        let found = edited(text, |edits, lines| edits.insert(&lines[0], "use epoll;"));
        assert_eq!(found, "events # not here: {\n{ use epoll;} # {\n");
    }
}
