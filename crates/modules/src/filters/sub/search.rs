//! Finds strings in a text that comes in pieces, and puts others in their places.
//!
//! Strings are found in any case and across the borders of pieces; of those that begin at one
//! place, the one that is written first is taken. As in nginx, a text that ends within what may be
//! a string is left as it is from there on. Nothing is kept of a text but the beginning of what may
//! become a match. The search is Horspool's, over all strings at once. What stands for a string is
//! the caller's business.

use std::sync::Arc;

use bytes::Bytes;

/// Strings prepared for the search, in lower case.
#[derive(Debug)]
pub struct Patterns {
    /// Each with the number of its directive.
    strings: Vec<(usize, Bytes)>,
    /// Length of the shortest, at least 1.
    shortest: usize,
    /// By a byte in lower case that stands where the shortest string would end: how far the next
    /// place is at which one could end.
    shifts: Box<[u8; 256]>,
}

impl Patterns {
    /// Strings, each with the number of its directive; empty ones are not looked for. `None` where
    /// there is nothing to look for.
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
                let shift = &mut shifts[usize::from(byte)]; // any byte is an index of 256
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
    /// Whether each string is replaced only where it stands first.
    once: bool,
    /// By string: whether it has been replaced.
    used: Vec<bool>,
    /// The end of what came so far, where a string may begin. Shorter than the longest string.
    held: Vec<u8>,
}

/// What the search comes to.
#[derive(Debug, PartialEq, Eq)]
enum SearchStep {
    /// A string stands here.
    Match {
        start: usize,
        string: usize,
    },
    /// The text ends within what may be a string.
    Partial {
        start: usize,
    },
    Nothing,
}

impl Replacer {
    /// A search for these strings, for each only until it is found if `once`.
    pub fn new(patterns: Arc<Patterns>, once: bool) -> Replacer {
        Replacer {
            used: vec![false; patterns.strings.len()],
            patterns,
            once,
            held: Vec::new(),
        }
    }

    /// Replaces what stands in the next piece and in what was held back before it. `replacement`
    /// says what stands for the string of a directive; `write` gets the text, in stretches that may
    /// be empty.
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
                        return; // only strings that there are can be found
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

    /// What is still held back, as nothing follows.
    pub fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }

    /// The leftmost place from `from` on where a string stands or may stand.
    fn search(&self, text: &[u8], from: usize) -> SearchStep {
        let patterns = &self.patterns;
        let mut end = from + patterns.shortest - 1;
        while let Some(byte) = text.get(end) {
            // any byte is an index of 256
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
        // Here no string fits any more, but one may begin.
        (end + 1 - patterns.shortest..text.len())
            .map(|start| self.at(text, start))
            .find(|found| *found != SearchStep::Nothing)
            .unwrap_or(SearchStep::Nothing)
    }

    /// Which string begins at a place.
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
