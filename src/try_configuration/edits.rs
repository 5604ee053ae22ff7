//! Changes of words in the texts of configuration files. No line is added or removed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use conf::{Line, Loaded, Position, Word};

/// Requested changes. A file that is included several times gets each change once.
pub(super) struct Edits<'a> {
    loaded: &'a Loaded,
    /// By file and offset of the first byte: the end of the replaced range, and the new text.
    changes: BTreeMap<PathBuf, BTreeMap<usize, (usize, String)>>,
}

impl<'a> Edits<'a> {
    /// No changes to a loaded configuration.
    pub(super) fn new(loaded: &'a Loaded) -> Edits<'a> {
        Edits {
            loaded,
            changes: BTreeMap::new(),
        }
    }

    /// Replaces a word.
    pub(super) fn replace(&mut self, word: &Word, by: &str) {
        self.replace_all(std::slice::from_ref(word), by);
    }

    /// Replaces a range of words in a line.
    pub(super) fn replace_all(&mut self, words: &[Word], by: &str) {
        let (Some(first), Some(last)) = (words.first(), words.last()) else {
            return;
        };
        let Some(end) = self.word(last).map(|range| range.end) else {
            return;
        };
        self.change(first.position, end, by.to_owned());
    }

    /// Inserts a text at the beginning of the block that a line opens; at most one text per block.
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

    /// The new texts of the changed files.
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

    /// The range of a word in its file, including quotes.
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

/// Applies changes to a text.
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

/// The end of a word that begins at `start`, by nginx's rules for words.
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

/// The end of a directive that begins at `start`: after its semicolon or its block.
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

/// The position of the brace that opens a block, after the line's last word.
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
