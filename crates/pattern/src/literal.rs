//! The texts of which a subject must contain one to match a pattern.
//!
//! Texts are in lower case and compared without regard to ASCII case. If one is found, the pattern
//! itself must still be matched, unless it is a mere text ([`Word`]).

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::ast::{Assertion, Ast, ByteSet};

/// Maximum number of texts of which a pattern needs one.
const TEXTS_MAX: usize = 10_000;
/// Maximum number of texts that are combined from the parts of a pattern.
const PRODUCTS_MAX: usize = 64;
/// Maximum length of a combined text, in bytes.
const LENGTH_MAX: usize = 64;
/// Maximum number of bytes in a set that is expanded to texts.
const BYTES_MAX: usize = 4;
/// Minimum length of texts in lists of patterns: shorter texts occur in too many subjects to
/// distinguish patterns.
pub(crate) const LENGTH_MIN: usize = 2;

/// Maximum number of texts for an automaton with a table for each state.
const DENSE_MAX: usize = 64;

/// A set of texts.
type Texts = Vec<Vec<u8>>;

/// The texts of which every matching subject contains one; `None` if they are not known, or one is
/// shorter than `length_min`.
pub(crate) fn needed(ast: &Ast, length_min: usize) -> Option<Texts> {
    let mut texts = Needs::of(ast).one_of?;
    let is_long = texts.iter().all(|text| text.len() >= length_min);
    texts.sort_unstable();
    texts.dedup();
    is_long.then_some(texts)
}

/// An automaton that finds texts in any case; `None` if there is not enough memory.
pub(crate) fn automaton(texts: &[Vec<u8>]) -> Option<AhoCorasick> {
    let kind = if texts.len() > DENSE_MAX {
        AhoCorasickKind::ContiguousNFA
    } else {
        AhoCorasickKind::DFA
    };
    AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .match_kind(MatchKind::Standard)
        .kind(Some(kind))
        .build(texts)
        .ok()
}

/// The texts that a part of a pattern needs.
struct Needs {
    /// All texts that the part can match, if they are few.
    whole: Option<Texts>,
    /// Texts of which every text that the part matches contains one.
    one_of: Option<Texts>,
}

impl Needs {
    /// The needs of a part that matches exactly these texts.
    fn whole(texts: Texts) -> Needs {
        Needs {
            one_of: Some(texts.clone()),
            whole: Some(texts),
        }
    }

    /// The needs of a part of which only contained texts are known, if any.
    fn one_of(one_of: Option<Texts>) -> Needs {
        Needs {
            whole: None,
            one_of,
        }
    }

    /// The needs of a pattern.
    fn of(ast: &Ast) -> Needs {
        match ast {
            Ast::Byte(set) => match bytes(set) {
                Some(texts) => Needs::whole(texts),
                None => Needs::one_of(None),
            },
            Ast::Look(_) | Ast::Around { .. } | Ast::ResetStart => Needs::whole(vec![Vec::new()]),
            Ast::Capture { inner, .. } => Needs::of(inner),
            Ast::Concat(items) => Needs::of_all(items.iter().map(Needs::of)),
            Ast::Branches(branches) => Needs::of_any(branches.iter().map(Needs::of)),
            Ast::Repeat {
                min: 0,
                max: Some(1),
                inner,
                ..
            } => {
                let nothing = Needs::whole(vec![Vec::new()]);
                Needs::of_any([Needs::of(inner), nothing].into_iter())
            }
            Ast::Repeat { min: 0, .. } => Needs::one_of(None),
            Ast::Repeat {
                min, max, inner, ..
            } => {
                let inner = Needs::of(inner);
                let copies = (*min as usize).min(LENGTH_MAX);
                let all = (0..copies).map(|_| Needs {
                    whole: inner.whole.clone(),
                    one_of: inner.one_of.clone(),
                });
                let needs = Needs::of_all(all);
                if *max == Some(*min) && copies == *min as usize {
                    needs
                } else {
                    Needs::one_of(needs.one_of)
                }
            }
        }
    }

    /// The needs of a sequence of parts.
    fn of_all(parts: impl Iterator<Item = Needs>) -> Needs {
        let mut best = None;
        let mut texts: Texts = vec![Vec::new()];
        let mut is_whole = true;
        for part in parts {
            let product = part.whole.as_ref().and_then(|more| product(&texts, more));
            if let Some(product) = product {
                texts = product;
                continue;
            }
            is_whole = false;
            let begun = std::mem::replace(&mut texts, vec![Vec::new()]);
            best = better(best, Some(begun));
            best = better(best, part.one_of);
            texts = part.whole.unwrap_or(texts);
        }
        if is_whole {
            return Needs::whole(texts);
        }
        Needs::one_of(better(best, Some(texts)))
    }

    /// The needs of alternative parts.
    fn of_any(parts: impl Iterator<Item = Needs>) -> Needs {
        let (mut whole, mut one_of) = (Some(Texts::new()), Some(Texts::new()));
        for part in parts {
            whole = whole.zip(part.whole).and_then(joined);
            one_of = one_of.zip(part.one_of).and_then(joined);
        }
        Needs { whole, one_of }
    }
}

/// The union of two sets of texts; `None` if it is too large.
fn joined((mut some, more): (Texts, Texts)) -> Option<Texts> {
    some.extend(more);
    (some.len() <= TEXTS_MAX).then_some(some)
}

/// The concatenations of each text with each of `more`; `None` if there are too many or one is too
/// long.
fn product(texts: &Texts, more: &Texts) -> Option<Texts> {
    if texts.len() * more.len() > PRODUCTS_MAX.max(texts.len()) {
        return None;
    }
    let mut all = Texts::with_capacity(texts.len() * more.len());
    for text in texts {
        for behind in more {
            if text.len() + behind.len() > LENGTH_MAX {
                return None;
            }
            all.push([text.as_slice(), behind].concat());
        }
    }
    Some(all)
}

/// The set of texts whose shortest text is longer; if both are equal, the smaller set.
fn better(one: Option<Texts>, other: Option<Texts>) -> Option<Texts> {
    let worth = |texts: &Texts| {
        let shortest = texts.iter().map(Vec::len).min().unwrap_or(usize::MAX);
        (shortest, std::cmp::Reverse(texts.len()))
    };
    match (one, other) {
        (Some(one), Some(other)) if worth(&other) > worth(&one) => Some(other),
        (Some(one), _) => Some(one),
        (None, other) => other,
    }
}

/// The bytes of a set in lower case as texts, if they are few.
fn bytes(set: &ByteSet) -> Option<Texts> {
    let mut texts = Texts::new();
    for byte in 0..=u8::MAX {
        let lower = byte.to_ascii_lowercase();
        if !set.contains(byte) || texts.iter().any(|text| *text == [lower]) {
            continue;
        }
        if texts.len() == BYTES_MAX {
            return None;
        }
        texts.push(vec![lower]);
    }
    Some(texts)
}

/// A pattern that is a text, possibly between two assertions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: Vec<u8>,
    /// The text in its case, if case is significant.
    pub(crate) cased: Option<Box<[u8]>>,
    /// The assertion before the text.
    pub(crate) before: Option<Assertion>,
    /// The assertion after the text.
    pub(crate) behind: Option<Assertion>,
}

impl Word {
    /// The pattern as a word, if it is one.
    pub(crate) fn of(ast: &Ast) -> Option<Word> {
        let mut items = match ast {
            Ast::Concat(items) => items.as_slice(),
            item => std::slice::from_ref(item),
        };
        let (mut before, mut behind) = (None, None);
        if let [Ast::Look(look), rest @ ..] = items {
            (before, items) = (Some(*look), rest);
        }
        if let [rest @ .., Ast::Look(look)] = items {
            (behind, items) = (Some(*look), rest);
        }
        let mut sets = Vec::with_capacity(items.len());
        for item in items {
            let Ast::Byte(set) = item else {
                return None;
            };
            sets.push(set);
        }
        let first = sets.iter().map(|set| set.first());
        let text: Vec<u8> = first.collect::<Option<_>>()?;
        if text.len() < LENGTH_MIN {
            return None;
        }
        let mut pairs = text.iter().zip(&sets);
        let is_cased = pairs.all(|(byte, set)| **set == ByteSet::one(*byte));
        let mut pairs = text.iter().zip(&sets);
        let is_caseless = pairs.all(|(byte, set)| **set == ByteSet::one(*byte).caseless());
        if !is_cased && !is_caseless {
            return None;
        }
        Some(Word {
            cased: (!is_caseless).then(|| text.clone().into()),
            text: text.to_ascii_lowercase(),
            before,
            behind,
        })
    }
}
