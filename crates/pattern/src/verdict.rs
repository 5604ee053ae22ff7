//! A pattern reduced to its verdict: whether there is a match anywhere, without the match's
//! position.
//!
//! Without groups, and without the order in which PCRE2 tries alternatives, a pattern is a set of
//! texts, which can be written shorter: nested repetitions become one, and parts that may be
//! repeated at the ends of a match are reduced to their minimum. Hostile patterns mostly lose their
//! nesting by this, so that [`crate::bits`] can run them.
//!
//! A pattern that is not regular is replaced by a wider regular one ([`parser::parse_wider`]): if
//! that one does not match, neither does the pattern. Patterns with too large counts are replaced
//! in the same way.

use crate::ast::Ast;
use crate::bits::Bits;
use crate::graph::Graph;
use crate::parser;

/// Maximum count of a repetition that is kept when large counts are removed.
const COUNT_MAX: u32 = 4;

/// The reduced automaton of a pattern.
#[derive(Debug)]
pub(crate) struct Verdict {
    bits: Bits,
    /// Whether a match of the automaton implies a match of the pattern.
    is_exact: bool,
    /// Whether the first match of the automaton begins where the pattern's does.
    has_start: bool,
}

/// The result of a reduced automaton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchDecision {
    /// There is a match, and none begins before `from`.
    Yes {
        from: usize,
    },
    No,
    /// There may be a match or not.
    Unknown,
}

impl Verdict {
    /// Compiles the verdict of a pattern; `None` if there is no regular replacement, or it is too
    /// large.
    pub(crate) fn new(pattern: &[u8], caseless: bool) -> Option<Verdict> {
        let exact = parser::parse(pattern, caseless).ok();
        let is_regular = exact.is_some();
        let parsed = exact.or_else(|| parser::parse_wider(pattern, caseless).ok())?;
        let texts = without_groups(&parsed.ast);
        let verdict = |texts: Ast, is_exact, has_start| {
            let graph = Graph::new(&texts).ok()?;
            let bits = Bits::new(graph, 0).ok()?;
            Some(Verdict {
                bits,
                is_exact,
                has_start,
            })
        };
        verdict(
            without_ends(texts.clone(), UnanchoredEnds::LAST),
            is_regular,
            true,
        )
        .or_else(|| {
            verdict(
                without_ends(texts.clone(), UnanchoredEnds::BOTH),
                is_regular,
                false,
            )
        })
        .or_else(|| {
            verdict(
                without_ends(without_counts(&texts), UnanchoredEnds::BOTH),
                false,
                false,
            )
        })
    }

    /// About how many words are read for a byte.
    #[cfg(test)]
    pub(crate) fn work(&self) -> usize {
        self.bits.work()
    }

    /// Whether the pattern matches.
    pub(crate) fn answer(&self, subject: &[u8]) -> MatchDecision {
        match self.bits.first(subject) {
            None => MatchDecision::No,
            Some(_) if !self.is_exact => MatchDecision::Unknown,
            Some(from) if self.has_start => MatchDecision::Yes { from },
            Some(_) => MatchDecision::Yes { from: 0 },
        }
    }
}

/// A pattern that matches the same texts, without groups and with nested repetitions merged.
fn without_groups(ast: &Ast) -> Ast {
    match ast {
        Ast::Byte(_) | Ast::Look(_) => ast.clone(),
        Ast::ResetStart => nothing(),
        Ast::Capture { inner, .. } => without_groups(inner),
        Ast::Concat(items) => concat(items.iter().map(without_groups)),
        Ast::Branches(branches) => Ast::Branches(branches.iter().map(without_groups).collect()),
        Ast::Around {
            ahead,
            negated,
            inner,
        } => {
            let ends = if *ahead {
                UnanchoredEnds::LAST
            } else {
                UnanchoredEnds::FIRST
            };
            Ast::Around {
                ahead: *ahead,
                negated: *negated,
                inner: Box::new(without_ends(without_groups(inner), ends)),
            }
        }
        Ast::Repeat {
            min, max, inner, ..
        } => repeat(without_groups(inner), *min, *max),
    }
}

/// A repetition. If the repeated pattern is a repetition, both are merged if their combined counts
/// have no gaps.
fn repeat(inner: Ast, min: u32, max: Option<u32>) -> Ast {
    match inner {
        _ if max == Some(0) => nothing(),
        inner if inner == nothing() || (min, max) == (1, Some(1)) => inner,
        Ast::Repeat {
            min: inner_min,
            max: inner_max,
            inner,
            ..
        } => match joined((min, max), (inner_min, inner_max)) {
            Some((min, max)) => repetition(*inner, min, max),
            None => repetition(repetition(*inner, inner_min, inner_max), min, max),
        },
        inner => repetition(inner, min, max),
    }
}

/// A pattern that matches at least the same texts, with counts above `COUNT_MAX` made unbounded.
fn without_counts(ast: &Ast) -> Ast {
    match ast {
        Ast::Concat(items) => concat(items.iter().map(without_counts)),
        Ast::Branches(branches) => Ast::Branches(branches.iter().map(without_counts).collect()),
        Ast::Repeat {
            min, max, inner, ..
        } => {
            let is_long = max.unwrap_or(*min) > COUNT_MAX;
            let (min, max) = if is_long {
                ((*min).min(1), None)
            } else {
                (*min, *max)
            };
            repetition(without_counts(inner), min, max)
        }
        // The pattern of a negative look-around must not become wider, so look-arounds are kept.
        Ast::Byte(_)
        | Ast::Look(_)
        | Ast::Around { .. }
        | Ast::Capture { .. }
        | Ast::ResetStart => ast.clone(),
    }
}

/// Minimum and maximum count of a repetition.
type Times = (u32, Option<u32>);

/// The counts of a repetition of a repetition; `None` if a number between the minimum and the
/// maximum is not possible. Neither maximum may be zero.
fn joined((min, max): Times, (inner_min, inner_max): Times) -> Option<Times> {
    // The counts of `k` and `k + 1` iterations must be contiguous. The smallest `k` has the widest
    // gap.
    let (k, least) = (u64::from(min), u64::from(inner_min));
    let touches = match inner_max {
        _ if max == Some(min) => true,
        Some(most) => (k + 1) * least <= k * u64::from(most) + 1,
        None => k > 0 || least <= 1,
    };
    if !touches {
        return None;
    }
    let most = match (max, inner_max) {
        (Some(max), Some(inner_max)) => Some(max.checked_mul(inner_max)?),
        _ => None,
    };
    Some((min.checked_mul(inner_min)?, most))
}

fn repetition(inner: Ast, min: u32, max: Option<u32>) -> Ast {
    Ast::Repeat {
        min,
        max,
        greedy: true,
        inner: Box::new(inner),
    }
}

fn nothing() -> Ast {
    Ast::Concat(Vec::new())
}

/// A sequence, with inner sequences flattened.
fn concat(items: impl Iterator<Item = Ast>) -> Ast {
    let mut flat = Vec::new();
    for item in items {
        match item {
            Ast::Concat(inner) => flat.extend(inner),
            item => flat.push(item),
        }
    }
    match flat.pop() {
        Some(only) if flat.is_empty() => only,
        last => {
            flat.extend(last);
            Ast::Concat(flat)
        }
    }
}

/// The ends of a pattern at which a match may begin or end anywhere.
#[derive(Clone, Copy)]
struct UnanchoredEnds {
    /// At the first part.
    first: bool,
    /// At the last part.
    last: bool,
}

impl UnanchoredEnds {
    const BOTH: UnanchoredEnds = UnanchoredEnds {
        first: true,
        last: true,
    };
    const FIRST: UnanchoredEnds = UnanchoredEnds {
        first: true,
        last: false,
    };
    const LAST: UnanchoredEnds = UnanchoredEnds {
        first: false,
        last: true,
    };
}

/// Removes parts at unanchored ends that a match can do without: every match with such a part
/// contains one without it.
fn without_ends(ast: Ast, ends: UnanchoredEnds) -> Ast {
    match ast {
        Ast::Repeat { min: 0, .. } => nothing(),
        Ast::Repeat { min: 1, inner, .. } => without_ends(*inner, ends),
        Ast::Repeat { min, inner, .. } => repetition(*inner, min, Some(min)),
        Ast::Branches(branches) => {
            let branches = branches.into_iter();
            let branches: Vec<Ast> = branches.map(|branch| without_ends(branch, ends)).collect();
            if branches.contains(&nothing()) {
                return nothing();
            }
            Ast::Branches(branches)
        }
        Ast::Concat(mut items) => {
            if ends.last {
                while let Some(last) = items.pop() {
                    let last = without_ends(last, UnanchoredEnds::LAST);
                    if last != nothing() {
                        items.push(last);
                        break;
                    }
                }
            }
            // If a part is removed, its neighbour becomes the end.
            let mut is_first = ends.first;
            let rest = items.into_iter().map(|item| {
                let item = if is_first {
                    without_ends(item, UnanchoredEnds::FIRST)
                } else {
                    item
                };
                is_first &= item == nothing();
                item
            });
            concat(rest)
        }
        other => other,
    }
}
