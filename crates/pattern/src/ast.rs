//! What a pattern means, as far as it is regular: sets of bytes, places, groups, branches and repetitions.
//!
//! Nothing of the syntax is left here. Options such as `(?i)` have been applied to what they stand before: a letter
//! under `(?i)` is a set of two bytes.

use std::fmt;

/// A regular pattern, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ast {
    /// One byte out of a set. A set of no bytes matches nowhere.
    Byte(ByteSet),
    /// A place between bytes.
    Look(Look),
    /// A group that captures.
    Capture {
        /// Its number, from 1.
        index: u32,
        /// What stands within.
        inner: Box<Ast>,
    },
    /// One after the other; nothing at all if there are none.
    Concat(Vec<Ast>),
    /// The first branch that leads to a match, tried from left to right.
    Branches(Vec<Ast>),
    /// The same several times.
    Repeat {
        /// At least as often.
        min: u32,
        /// At most as often; `None` is without end.
        max: Option<u32>,
        /// As often as possible first, or as seldom.
        greedy: bool,
        /// What is repeated.
        inner: Box<Ast>,
    },
}

/// A place between two bytes, without PCRE2's UTF and UCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// `\A`, `\G` and, outside of `(?m)`, `^`.
    Start,
    /// `\z`.
    End,
    /// `\Z` and, outside of `(?m)`, `$`: the end, and before a line feed that ends the subject.
    LastEnd,
    /// `^` within `(?m)`: the start, and behind each line feed that does not end the subject.
    LineStart,
    /// `$` within `(?m)`: the end, and before each line feed.
    LineEnd,
    /// `\b`, of the letters, digits and the underscore of ASCII.
    WordBoundary,
    /// `\B`.
    NotWordBoundary,
}

/// A set of bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct ByteSet([u64; 4]);

impl ByteSet {
    /// No byte.
    pub const NONE: ByteSet = ByteSet([0; 4]);
    /// Every byte.
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

    /// Adds a byte.
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
        ByteSet::of(|byte| {
            self.contains(byte.to_ascii_lowercase()) || self.contains(byte.to_ascii_uppercase())
        })
    }

    /// Whether no byte is in both.
    pub fn is_disjoint(&self, other: &ByteSet) -> bool {
        self.0
            .iter()
            .zip(other.0)
            .all(|(mine, its)| mine & its == 0)
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
