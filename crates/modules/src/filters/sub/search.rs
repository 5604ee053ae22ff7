//! Searches for strings in a text that arrives in pieces, and replaces them.
//!
//! Matching ignores case and crosses the borders of pieces. Of the strings that match at the same
//! position, the first in the configuration is taken. As in nginx, a text that ends within a
//! possible match is left unchanged from there on. Only the beginning of a possible match is
//! buffered. The search is Horspool's, over all strings at once. The caller provides the
//! replacements.

use std::sync::Arc;

use bytes::Bytes;

/// Strings prepared for the search, in lower case.
#[derive(Debug)]
pub struct Patterns {
    /// Each string with the number of its directive.
    strings: Vec<(usize, Bytes)>,
    /// Length of the shortest string, at least 1.
    shortest: usize,
    /// The distance to the next position at which a string could end, by the byte (in lower case)
    /// at the position where the shortest string would end.
    shifts: Box<[u8; 256]>,
}

impl Patterns {
    /// Strings, each with the number of its directive; empty ones are skipped. `None` if there is
    /// nothing to search for.
    pub fn new(strings: Vec<(usize, Bytes)>) -> Option<Patterns> {
        let strings: Vec<(usize, Bytes)> = strings
            .into_iter()
            .filter(|(_, string)| !string.is_empty())
            .map(|(at, string)| (at, string.to_ascii_lowercase().into()))
            .collect();
        let shortest = strings.iter().map(|(_, string)| string.len()).min()?;
        let mut shifts = Box::new([u8::try_from(shortest).unwrap_or(u8::MAX); 256]);
        for (_, string) in &strings {
            let window = string.iter().take(shortest).rev();
            for (distance, &byte) in (0..=u8::MAX).zip(window) {
                let shift = &mut shifts[usize::from(byte)]; // a byte is a valid index
                *shift = distance.min(*shift);
            }
        }
        Some(Patterns {
            strings,
            shortest,
            shifts,
        })
    }
}

/// Replaces strings in one text.
pub struct Replacer {
    patterns: Arc<Patterns>,
    /// Whether only the first match of each string is replaced.
    once: bool,
    /// For each string, whether it has been replaced.
    used: Vec<bool>,
    /// The end of the text so far, which may start a match. Shorter than the longest string.
    held: Vec<u8>,
}

/// The result of a search.
#[derive(Debug, PartialEq, Eq)]
enum SearchStep {
    /// A string matches here.
    Match {
        start: usize,
        string: usize,
    },
    /// The text ends within a possible match.
    Partial {
        start: usize,
    },
    Nothing,
}

impl Replacer {
    /// A search for these strings. With `once`, each string is searched for only until its first
    /// match.
    pub fn new(patterns: Arc<Patterns>, once: bool) -> Replacer {
        Replacer {
            used: vec![false; patterns.strings.len()],
            patterns,
            once,
            held: Vec::new(),
        }
    }

    /// Replaces strings in the next piece and in the text that was held back before it.
    /// `replacement` returns the replacement for a directive's string; `write` receives the output,
    /// in stretches that may be empty.
    pub fn apply(
        &mut self,
        piece: Bytes,
        mut replacement: impl FnMut(usize) -> Bytes,
        mut write: impl FnMut(Bytes),
    ) {
        let mut text = piece;
        if !self.held.is_empty() {
            let mut joined = std::mem::take(&mut self.held);
            joined.extend_from_slice(&text);
            text = joined.into();
        }
        let mut from = 0;
        loop {
            match self.search(&text, from) {
                SearchStep::Match { start, string } => {
                    write(text.slice(from..start));
                    let Some((directive, pattern)) = self.patterns.strings.get(string) else {
                        return; // matches are existing strings
                    };
                    write(replacement(*directive));
                    from = start + pattern.len();
                    if let Some(used) = self.used.get_mut(string) {
                        *used = true;
                    }
                }
                SearchStep::Partial { start } => {
                    write(text.slice(from..start));
                    self.held.extend_from_slice(&text.slice(start..));
                    return;
                }
                SearchStep::Nothing => {
                    write(text.slice(from..));
                    return;
                }
            }
        }
    }

    /// The text that is still held back, at the end of the text.
    pub fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }

    /// The leftmost match, or possible match, at `from` or later.
    fn search(&self, text: &[u8], from: usize) -> SearchStep {
        let patterns = &self.patterns;
        let mut end = from + patterns.shortest - 1;
        while let Some(byte) = text.get(end) {
            // A byte is always a valid index into 256 entries.
            let shift = patterns.shifts[usize::from(byte.to_ascii_lowercase())];
            if shift > 0 {
                end += usize::from(shift);
                continue;
            }
            match self.at(text, end + 1 - patterns.shortest) {
                SearchStep::Nothing => end += 1,
                found => return found,
            }
        }
        // No string fits into the rest of the text, but a match may start there.
        (end + 1 - patterns.shortest..text.len())
            .map(|start| self.at(text, start))
            .find(|found| *found != SearchStep::Nothing)
            .unwrap_or(SearchStep::Nothing)
    }

    /// The string that matches at `start`, or may match if the text continues.
    fn at(&self, text: &[u8], start: usize) -> SearchStep {
        let rest = text.get(start..).unwrap_or_default();
        for (string, (_, pattern)) in self.patterns.strings.iter().enumerate() {
            if self.once && self.used.get(string) == Some(&true) {
                continue;
            }
            let length = rest.len().min(pattern.len());
            let (begun, wanted) = (rest.get(..length), pattern.get(..length));
            if !begun
                .zip(wanted)
                .is_some_and(|(begun, wanted)| begun.eq_ignore_ascii_case(wanted))
            {
                continue;
            }
            return if length == pattern.len() {
                SearchStep::Match { start, string }
            } else {
                SearchStep::Partial { start }
            };
        }
        SearchStep::Nothing
    }
}
