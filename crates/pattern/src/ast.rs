//! What a pattern means, as far as it is regular: sets of bytes, places, groups, branches,
//! repetitions, look-around.
//!
//! Nothing of the syntax is left here. Options such as `(?i)` have been applied to what they stand
//! before: a letter under `(?i)` is a set of two bytes.

use std::fmt;

/// A regular pattern, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ast {
    /// One byte out of a set. A set of no bytes matches nowhere.
    Byte(ByteSet),
    /// A place between bytes.
    Look(Assertion),
    /// A group that captures.
    Capture {
        /// Its number, from 1.
        index: u32,
        /// The pattern that stands within the group.
        inner: Box<Ast>,
    },
    /// One after the other; nothing at all if there are none.
    Concat(Vec<Ast>),
    /// The first branch that leads to a match, tried from left to right.
    Branches(Vec<Ast>),
    /// A repetition.
    Repeat {
        /// At least as often.
        min: u32,
        /// At most as often; `None` is without end.
        max: Option<u32>,
        /// As often as possible first, or as seldom.
        greedy: bool,
        /// The pattern that is repeated.
        inner: Box<Ast>,
    },
    /// A place where something else matches, or does not: `(?=`, `(?!`, `(?<=`, `(?<!`.
    Around {
        /// Whether what follows the place is looked at; else what stands before it.
        ahead: bool,
        /// Whether it must not match.
        negated: bool,
        /// The pattern that is looked for.
        inner: Box<Ast>,
    },
    /// `\K`: the match is said to begin here.
    ResetStart,
}

impl Ast {
    /// Whether it may match nothing.
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

    /// Whether a group captures within.
    pub fn captures(&self) -> bool {
        match self {
            Ast::Byte(_) | Ast::Look(_) | Ast::ResetStart => false,
            Ast::Capture { .. } => true,
            Ast::Concat(all) | Ast::Branches(all) => all.iter().any(Ast::captures),
            Ast::Repeat { inner, .. } | Ast::Around { inner, .. } => inner.captures(),
        }
    }

    /// What matches all texts that it may match, in either case, wherever they stand: without
    /// places, look-around and groups.
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

    /// About how many states an automaton for it has.
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

    /// The most bytes that it matches; `None` without end.
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

/// A place between two bytes, without PCRE2's UTF and UCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assertion {
    /// `\A`, `\G` and, outside of `(?m)`, `^`.
    Start,
    /// The end of the subject, `\z`.
    End,
    /// `\Z` and, outside of `(?m)`, `$`: the end, and before a line feed that ends the subject.
    LastEnd,
    /// `^` within `(?m)`: the start, and behind each line feed that does not end the subject.
    LineStart,
    /// `$` within `(?m)`: the end, and before each line feed.
    LineEnd,
    /// `\b`, of the letters, digits and the underscore of ASCII.
    WordBoundary,
    /// A place that is no word boundary, `\B`.
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
    /// The set without any byte.
    pub const NONE: ByteSet = ByteSet([0; 4]);
    /// The set of all 256 bytes.
    pub const ALL: ByteSet = ByteSet([u64::MAX; 4]);

    /// The set of those bytes for which this holds.
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

    /// Whether a byte is in it.
    pub fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] & (1 << (byte & 63)) != 0
    }

    /// Adds all bytes of another set.
    pub fn add(&mut self, other: ByteSet) {
        for (mine, its) in self.0.iter_mut().zip(other.0) {
            *mine |= its;
        }
    }

    /// All bytes that are not in it.
    pub fn complement(&self) -> ByteSet {
        ByteSet(self.0.map(|word| !word))
    }

    /// With each ASCII letter, the same letter of the other case.
    pub fn caseless(&self) -> ByteSet {
        // `A` to `Z` are bits 1 to 26 of the second word, `a` to `z` the same of its upper half.
        const UPPER: u64 = 0x07ff_fffe;
        let [first, letters, third, fourth] = self.0;
        let upper = (letters | letters >> 32) & UPPER;
        ByteSet([first, letters | upper | upper << 32, third, fourth])
    }

    /// The lowest byte that is in it.
    pub fn first(&self) -> Option<u8> {
        let mut words = self.0.iter().enumerate();
        let (index, word) = words.find(|(_, word)| **word != 0)?;
        Some(index as u8 * 64 + word.trailing_zeros() as u8)
    }

    /// Its bytes that are in another set, and those that are not.
    pub(crate) fn split(&self, other: &ByteSet) -> (ByteSet, ByteSet) {
        let (mut inside, mut outside) = (*self, *self);
        for (place, its) in other.0.iter().enumerate() {
            inside.0[place] &= its;
            outside.0[place] &= !its;
        }
        (inside, outside)
    }

    /// Its bytes, in their order.
    pub(crate) fn bytes(&self) -> impl Iterator<Item = u8> {
        (0..4_u8).zip(self.0).flat_map(|(place, mut word)| {
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros() as u8)?;
                word &= word - 1;
                Some(place * 64 + bit)
            })
        })
    }

    /// Its stretches: first and last byte of each.
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
