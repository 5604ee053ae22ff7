//! The reasons why a pattern does not run as a finite automaton.

use std::fmt;

/// A feature of a pattern that is not regular, or that is not proved to mean the same in both
/// engines; or another reason not to use an automaton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrregularFeature {
    /// `(?=`, `(?!`, `(?<=`, `(?<!`, `[[:<:]]`.
    LookAround,
    /// `\1`, `\g1`, `\k<name>`, `(?P=name)`.
    BackReference,
    /// An atomic group, written `(?>`.
    Atomic,
    /// A possessive quantifier such as `a++` or `a?+`.
    Possessive,
    /// `(?R)`, `(?1)`, `(?&name)`, `\g<name>`.
    Recursion,
    /// A conditional group, written `(?(1)a|b)`.
    Condition,
    /// `(*ACCEPT)`, `(*UTF)` and all other verbs and settings that begin with `(*`.
    Verb,
    /// A callout such as `(?C1)`.
    Callout,
    /// `(?|`: groups that share a number.
    BranchReset,
    /// `(?J)`: groups that share a name.
    DuplicateNames,
    /// The escape `\K`, which resets the start of the match.
    ResetStart,
    /// `\R`, which does not backtrack from CRLF to CR.
    Newline,
    /// `\p`, `\P`, `\X`, `(?a)`, `(?r)`.
    Unicode,
    /// An extended class, written `(?[ ... ])`.
    ExtendedClass,
    /// `(a|)*`: an iteration may be empty, which ends the repetition in PCRE2.
    EmptyIteration,
    /// `(a){0}`: a group that has a number but is never entered.
    NoIteration,
    /// The automaton would be larger than [`crate::AUTOMATON_SIZE_MAX`].
    TooLarge,
    /// The pattern is matched only once, which is not worth building an automaton.
    OneMatch,
    /// PCRE2 rejects the pattern.
    Refused,
}

impl fmt::Display for IrregularFeature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            IrregularFeature::LookAround => "look-around",
            IrregularFeature::BackReference => "back-reference",
            IrregularFeature::Atomic => "atomic group",
            IrregularFeature::Possessive => "possessive repetition",
            IrregularFeature::Recursion => "recursion",
            IrregularFeature::Condition => "condition",
            IrregularFeature::Verb => "verb or setting",
            IrregularFeature::Callout => "callout",
            IrregularFeature::BranchReset => "groups that share a number",
            IrregularFeature::DuplicateNames => "groups that share a name",
            IrregularFeature::ResetStart => "\\K",
            IrregularFeature::Newline => "\\R",
            IrregularFeature::Unicode => "Unicode property",
            IrregularFeature::ExtendedClass => "extended class",
            IrregularFeature::EmptyIteration => "iteration that may be empty",
            IrregularFeature::NoIteration => "group that is never entered",
            IrregularFeature::TooLarge => "size",
            IrregularFeature::OneMatch => "a single match",
            IrregularFeature::Refused => "error in the pattern",
        })
    }
}
