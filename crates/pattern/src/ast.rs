//! The syntax tree of a pattern, as far as it is regular: sets of bytes, assertions, groups,
//! branches, repetitions and look-around.
//!
//! The tree contains no syntax: options such as `(?i)` have been applied, so a letter under `(?i)`
//! is a set of two bytes.

use std::fmt;

/// A regular pattern, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ast {
    /// One byte of a set. The empty set never matches.
    Byte(ByteSet),
    /// An assertion about a position.
    Look(Assertion),
    /// A group that captures.
    Capture {
        /// The group's number, from 1.
        index: u32,
        /// The content of the group.
        inner: Box<Ast>,
    },
    /// A sequence; an empty one matches the empty text.
    Concat(Vec<Ast>),
    /// Branches, tried from left to right: the first that leads to a match counts.
    Branches(Vec<Ast>),
    /// A repetition.
    Repeat {
        /// Minimum number of iterations.
        min: u32,
        /// Maximum number of iterations; `None` means unlimited.
        max: Option<u32>,
        /// Whether more iterations are tried first; otherwise fewer.
        greedy: bool,
        /// The repeated pattern.
        inner: Box<Ast>,
    },
    /// A look-around: a position at which another pattern matches, or does not: `(?=`, `(?!`,
    /// `(?<=`, `(?<!`.
    Around {
        /// Whether it is a look-ahead; otherwise a look-behind.
        ahead: bool,
        /// Whether the other pattern must not match.
        negated: bool,
        /// The pattern that is looked for.
        inner: Box<Ast>,
    },
    /// `\K`: the reported start of the match is this position.
    ResetStart,
}

impl Ast {
    /// Whether the pattern can match the empty text.
    pub fn may_be_empty(&self) -> bool {
        match self {
            Ast::Byte(_) => false,
            Ast::Look(_) | Ast::Around { .. } | Ast::ResetStart => true,
            Ast::Capture { inner, .. } => inner.may_be_empty(),
            Ast::Concat(items) => items.iter().all(Ast::may_be_empty),
            Ast::Branches(branches) => branches.iter().any(Ast::may_be_empty),
            Ast::Repeat { min, inner, .. } => *min == 0 || inner.may_be_empty(),
        }
    }

    /// Whether the pattern contains a capturing group.
    pub fn captures(&self) -> bool {
        match self {
            Ast::Byte(_) | Ast::Look(_) | Ast::ResetStart => false,
            Ast::Capture { .. } => true,
            Ast::Concat(all) | Ast::Branches(all) => all.iter().any(Ast::captures),
            Ast::Repeat { inner, .. } | Ast::Around { inner, .. } => inner.captures(),
        }
    }

    /// A pattern that matches, at any position and in either case, all texts that this pattern can
    /// match: without assertions, look-around and groups.
    pub(crate) fn texts_of(&self) -> Ast {
        let all = |parts: &[Ast]| parts.iter().map(Ast::texts_of).collect();
        match self {
            Ast::Byte(set) => Ast::Byte(set.caseless()),
            Ast::Look(_) | Ast::Around { .. } | Ast::ResetStart => Ast::Concat(Vec::new()),
            Ast::Capture { inner, .. } => inner.texts_of(),
            Ast::Concat(items) => Ast::Concat(all(items)),
            Ast::Branches(branches) => Ast::Branches(all(branches)),
            Ast::Repeat {
                min,
                max,
                greedy,
                inner,
            } => Ast::Repeat {
                min: *min,
                max: *max,
                greedy: *greedy,
                inner: Box::new(inner.texts_of()),
            },
        }
    }

    /// The approximate number of states of an automaton for the pattern.
    pub fn states(&self) -> usize {
        match self {
            Ast::Byte(_) | Ast::Look(_) | Ast::ResetStart => 1,
            Ast::Capture { inner, .. } => inner.states().saturating_add(2),
            Ast::Around { inner, .. } => inner.states().saturating_add(1),
            Ast::Concat(all) | Ast::Branches(all) => all
                .iter()
                .fold(1, |sum, part| part.states().saturating_add(sum)),
            Ast::Repeat {
                min, max, inner, ..
            } => {
                let copies = max.unwrap_or(min.saturating_add(1)).max(1) as usize;
                inner.states().saturating_add(1).saturating_mul(copies)
            }
        }
    }

    /// Maximum length of a match, in bytes; `None` means unlimited.
    pub fn length_max(&self) -> Option<usize> {
        match self {
            Ast::Byte(_) => Some(1),
            Ast::Look(_) | Ast::Around { .. } | Ast::ResetStart => Some(0),
            Ast::Capture { inner, .. } => inner.length_max(),
            Ast::Concat(items) => items
                .iter()
                .try_fold(0_usize, |sum, item| sum.checked_add(item.length_max()?)),
            Ast::Branches(branches) => branches
                .iter()
                .try_fold(0, |most, branch| Some(branch.length_max()?.max(most))),
            Ast::Repeat { max, inner, .. } => inner.length_max()?.checked_mul((*max)? as usize),
        }
    }
}

/// An assertion about the position between two bytes, as without PCRE2's UTF and UCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assertion {
    /// `\A`, `\G` and, outside of `(?m)`, `^`.
    Start,
    /// The end of the subject, `\z`.
    End,
    /// `\Z` and, outside of `(?m)`, `$`: the end, or before a line feed at the end of the subject.
    LastEnd,
    /// `^` within `(?m)`: the start, or after each line feed that is not at the end of the subject.
    LineStart,
    /// `$` within `(?m)`: the end, or before each line feed.
    LineEnd,
    /// `\b`: between a word character (ASCII letter, digit or underscore) and another or none.
    WordBoundary,
    /// `\B`: not a word boundary.
    NotWordBoundary,
}

impl Assertion {
    pub(crate) const ALL: [Assertion; 7] = [
        Assertion::Start,
        Assertion::End,
        Assertion::LastEnd,
        Assertion::LineStart,
        Assertion::LineEnd,
        Assertion::WordBoundary,
        Assertion::NotWordBoundary,
    ];
}

/// A set of bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct ByteSet([u64; 4]);

impl ByteSet {
    /// The empty set.
    pub const NONE: ByteSet = ByteSet([0; 4]);
    /// The set of all 256 bytes.
    pub const ALL: ByteSet = ByteSet([u64::MAX; 4]);

    /// The set of all bytes for which `holds` returns true.
    pub fn of(holds: impl Fn(u8) -> bool) -> ByteSet {
        let mut set = ByteSet::NONE;
        (0..=u8::MAX)
            .filter(|&byte| holds(byte))
            .for_each(|byte| set.insert(byte));
        set
    }

    /// The set of one byte.
    pub fn one(byte: u8) -> ByteSet {
        let mut set = ByteSet::NONE;
        set.insert(byte);
        set
    }

    /// Adds a byte to the set.
    pub fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    /// Whether the set contains a byte.
    pub fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] & (1 << (byte & 63)) != 0
    }

    /// Adds all bytes of another set.
    pub fn add(&mut self, other: ByteSet) {
        for (mine, its) in self.0.iter_mut().zip(other.0) {
            *mine |= its;
        }
    }

    /// The set of all bytes that are not in this set.
    pub fn complement(&self) -> ByteSet {
        ByteSet(self.0.map(|word| !word))
    }

    /// The set with each ASCII letter in both cases.
    pub fn caseless(&self) -> ByteSet {
        // `A` to `Z` are bits 1 to 26 of the second word, `a` to `z` the same of its upper half.
        const UPPER: u64 = 0x07ff_fffe;
        let [first, letters, third, fourth] = self.0;
        let upper = (letters | letters >> 32) & UPPER;
        ByteSet([first, letters | upper | upper << 32, third, fourth])
    }

    /// The lowest byte of the set.
    pub fn first(&self) -> Option<u8> {
        let mut words = self.0.iter().enumerate();
        let (index, word) = words.find(|(_, word)| **word != 0)?;
        Some(index as u8 * 64 + word.trailing_zeros() as u8)
    }

    /// Splits the set into the bytes that another set contains, and the others.
    pub(crate) fn split(&self, other: &ByteSet) -> (ByteSet, ByteSet) {
        let (mut inside, mut outside) = (*self, *self);
        for (place, its) in other.0.iter().enumerate() {
            inside.0[place] &= its;
            outside.0[place] &= !its;
        }
        (inside, outside)
    }

    /// The bytes of the set, in ascending order.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = u8> {
        (0..4_u8).zip(self.0).flat_map(|(place, mut word)| {
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros() as u8)?;
                word &= word - 1;
                Some(place * 64 + bit)
            })
        })
    }

    /// The contiguous ranges of the set: first and last byte of each.
    pub fn ranges(&self) -> Vec<(u8, u8)> {
        let mut ranges: Vec<(u8, u8)> = Vec::new();
        for byte in (0..=u8::MAX).filter(|&byte| self.contains(byte)) {
            match ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(byte) => *last = byte,
                _ => ranges.push((byte, byte)),
            }
        }
        ranges
    }
}

impl fmt::Debug for ByteSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[")?;
        for (first, last) in self.ranges() {
            write!(
                formatter,
                "{}-{}",
                first.escape_ascii(),
                last.escape_ascii()
            )?;
        }
        formatter.write_str("]")
    }
}
