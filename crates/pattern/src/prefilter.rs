//! Finds the patterns of a list that may match a subject, in one pass over the subject.
//!
//! Most patterns in long lists (crawlers, spam, attacks) require a certain text. One automaton for
//! these texts (Aho-Corasick) determines which of them occur in a subject; patterns whose text does
//! not occur are not matched. A pattern that is a mere text, possibly between assertions such as
//! `\b`, has matched if its text is found, and is never compiled. Patterns are matched in order, so
//! that the first one wins, as without the filter.

use std::borrow::Cow;

use aho_corasick::AhoCorasick;

use crate::Pattern;
use crate::ast::{Assertion, Ast};
use crate::bits::is_place;
use crate::literal::{self, Word};

/// Minimum number of patterns for the filter; fewer are matched one after the other.
const PATTERNS_MIN: usize = 8;
/// Lists with at least this many patterns build an engine for a pattern only when it is first
/// matched: most never are.
const DEFERRED_MIN: usize = 100;
/// Lists of at most 64 times this many patterns allocate no memory for a match.
const FEW_WORDS: usize = 4;

/// A filter for a list of patterns, which are referred to by index.
#[derive(Debug)]
pub struct Prefilter {
    count: usize,
    texts: Option<Texts>,
}

/// The texts that patterns of a list require.
#[derive(Debug)]
struct Texts {
    automaton: AhoCorasick,
    /// For each text, a range of `needing`.
    needed_by: Box<[(u32, u32)]>,
    needing: Box<[TextRequirement]>,
    /// A bit for each pattern, set if no required text is known.
    others: Box<[u64]>,
}

/// A pattern that requires a text.
#[derive(Debug)]
struct TextRequirement {
    pattern: u32,
    /// What it means for the pattern that the text is found.
    how: TextRole,
}

/// The consequence for a pattern if its text is found.
#[derive(Debug)]
enum TextRole {
    May,
    /// The pattern has matched if the assertions before and after the text hold, and the case of
    /// the text is right.
    Has {
        before: Option<Assertion>,
        behind: Option<Assertion>,
        cased: Option<Box<[u8]>>,
    },
}

/// The result of the filter for a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// The pattern may match, and must be matched itself.
    Candidate,
    /// The pattern matches. It has no groups.
    Match,
}

impl Prefilter {
    /// Examines a list of patterns, and prepares those that must be matched against every subject.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a Pattern>) -> Prefilter {
        let patterns: Vec<&Pattern> = patterns.into_iter().collect();
        let texts = (patterns.len() >= PATTERNS_MIN)
            .then(|| Texts::new(&patterns))
            .flatten();
        if texts.is_none() {
            patterns.iter().for_each(|pattern| pattern.prepare());
        }
        Prefilter {
            count: patterns.len(),
            texts,
        }
    }

    /// The first pattern for which `matches` returns true. `matches` is called in order, for
    /// patterns that may match or have matched.
    pub fn first<E>(
        &self,
        subject: &[u8],
        mut matches: impl FnMut(usize, Hit) -> Result<bool, E>,
    ) -> Result<Option<usize>, E> {
        let Some(texts) = &self.texts else {
            for pattern in 0..self.count {
                if matches(pattern, Hit::Candidate)? {
                    return Ok(Some(pattern));
                }
            }
            return Ok(None);
        };
        let mut few = [0; FEW_WORDS];
        let mut many = Cow::Borrowed(&*texts.others);
        let has = match few.get_mut(..texts.others.len()) {
            Some(few) => {
                few.copy_from_slice(&texts.others);
                texts.find(subject, || few)
            }
            None => texts.find(subject, || many.to_mut()),
        };
        let may = few.get(..texts.others.len()).unwrap_or(&many);
        for (word, &bits) in may.iter().enumerate() {
            let mut left = bits;
            while left != 0 {
                let pattern = word * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                if has.is_some_and(|has| has as usize <= pattern) {
                    break;
                }
                if matches(pattern, Hit::Candidate)? {
                    return Ok(Some(pattern));
                }
            }
        }
        match has {
            Some(has) if matches(has as usize, Hit::Match)? => Ok(Some(has as usize)),
            _ => Ok(None),
        }
    }
}

impl Texts {
    fn new(patterns: &[&Pattern]) -> Option<Texts> {
        let needed = |ast: &Ast| literal::needed(ast, literal::LENGTH_MIN);
        let mut needing: Vec<(Vec<u8>, TextRequirement)> = Vec::new();
        let mut others = vec![0_u64; patterns.len().div_ceil(64)];
        for (number, pattern) in (0..).zip(patterns) {
            let ast = pattern.parsed().ok();
            let word = ast.as_ref().and_then(Word::of);
            if let Some(word) = word {
                let how = TextRole::Has {
                    before: word.before,
                    behind: word.behind,
                    cased: word.cased,
                };
                needing.push((
                    word.text,
                    TextRequirement {
                        pattern: number,
                        how,
                    },
                ));
                continue;
            }
            match ast.as_ref().and_then(needed) {
                Some(texts) => needing.extend(texts.into_iter().map(|text| {
                    let how = TextRole::May;
                    (
                        text,
                        TextRequirement {
                            pattern: number,
                            how,
                        },
                    )
                })),
                None => {
                    pattern.prepare();
                    if let Some(word) = others.get_mut(number as usize / 64) {
                        *word |= 1 << (number % 64);
                    }
                }
            }
            if patterns.len() < DEFERRED_MIN {
                pattern.prepare();
            }
        }
        needing.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut texts: Vec<Vec<u8>> = Vec::new();
        let mut needed_by: Vec<(u32, u32)> = Vec::new();
        let mut all = Vec::with_capacity(needing.len());
        for (place, (text, one)) in (0..).zip(needing) {
            all.push(one);
            match needed_by.last_mut() {
                Some((_, end)) if texts.last() == Some(&text) => *end = place + 1,
                _ => {
                    texts.push(text);
                    needed_by.push((place, place + 1));
                }
            }
        }
        literal::automaton(&texts).map(|automaton| Texts {
            automaton,
            needed_by: needed_by.into(),
            needing: all.into(),
            others: others.into(),
        })
    }

    /// The first pattern that has matched by its text; sets the bits of those that may match.
    fn find<'a>(&self, subject: &[u8], may: impl FnOnce() -> &'a mut [u64]) -> Option<u32> {
        let mut texts = self.automaton.find_overlapping_iter(subject).peekable();
        texts.peek()?;
        let may = may();
        let mut has: Option<u32> = None;
        for text in texts {
            let needed_by = self.needed_by.get(text.pattern().as_usize());
            let needing =
                needed_by.and_then(|&(start, end)| self.needing.get(start as usize..end as usize));
            for one in needing.unwrap_or_default() {
                // Entries are sorted by pattern; patterns after one that has matched are
                // irrelevant.
                if has.is_some_and(|has| has <= one.pattern) {
                    break;
                }
                match &one.how {
                    TextRole::May => {
                        if let Some(word) = may.get_mut(one.pattern as usize / 64) {
                            *word |= 1 << (one.pattern % 64);
                        }
                    }
                    TextRole::Has {
                        before,
                        behind,
                        cased,
                    } => {
                        let span = text.start()..text.end();
                        let is_at = |look: &Option<Assertion>, place| {
                            look.is_none_or(|look| is_place(look, subject, place))
                        };
                        let has_case = |cased: &[u8]| subject.get(span.clone()) == Some(cased);
                        if is_at(before, span.start)
                            && is_at(behind, span.end)
                            && cased.as_deref().is_none_or(has_case)
                        {
                            has = Some(one.pattern);
                        }
                    }
                }
            }
        }
        has
    }
}
