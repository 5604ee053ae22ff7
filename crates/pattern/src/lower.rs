//! Conversion of a pattern to the syntax tree that `regex-automata` compiles, as far as both
//! engines provably agree.
//!
//! Automata prefer the same matches as backtracking (leftmost, then the first branch that leads to
//! a match), because the preference between threads depends only on the position in the pattern and
//! in the subject. Two features of PCRE2 depend on more, and are left to PCRE2 and [`crate::bits`]:
//!
//! - An unbounded repetition stops at an empty iteration, so what follows depends on where the
//!   iteration began. Only bodies that cannot match the empty text are converted. Bounded
//!   repetitions are unrolled by both PCRE2 and the automaton.
//! - `$`, `\Z` and `^` within `(?m)` depend on a line feed at the end of the subject. They are
//!   converted as `\z` and as "after a line feed", which is the same for all other subjects;
//!   [`Lowered::rejects_trailing_newline`] marks such patterns.

use regex_syntax::hir;

use crate::ast::{Assertion, Ast, ByteSet};
use crate::beyond::IrregularFeature;

/// A converted pattern.
#[derive(Debug)]
pub(crate) struct Lowered {
    /// The syntax tree, for subjects of arbitrary bytes.
    pub(crate) hir: hir::Hir,
    /// Whether the automaton may not be used for subjects that end with a line feed.
    pub(crate) rejects_trailing_newline: bool,
}

/// Converts a pattern; an error if the engines could disagree.
pub(crate) fn lower(ast: &Ast) -> Result<Lowered, IrregularFeature> {
    let mut rejects_trailing_newline = false;
    let hir = part(ast, &mut rejects_trailing_newline)?;
    Ok(Lowered {
        hir,
        rejects_trailing_newline,
    })
}

/// Converts a part; sets `minds` if a line feed at the end of the subject matters.
fn part(ast: &Ast, minds: &mut bool) -> Result<hir::Hir, IrregularFeature> {
    Ok(match ast {
        Ast::Byte(set) => byte(set),
        Ast::Look(look) => {
            *minds |= matches!(look, Assertion::LastEnd | Assertion::LineStart);
            hir::Hir::look(place(*look))
        }
        Ast::Capture { index, inner } => {
            let sub = Box::new(part(inner, minds)?);
            hir::Hir::capture(hir::Capture {
                index: *index,
                name: None,
                sub,
            })
        }
        Ast::Concat(items) => hir::Hir::concat(parts(items, minds)?),
        Ast::Branches(branches) => self::branches(parts(branches, minds)?),
        Ast::Repeat {
            min,
            max,
            greedy,
            inner,
        } => {
            let sub = part(inner, minds)?;
            let properties = sub.properties();
            if max.is_none() && properties.minimum_len() == Some(0) {
                return Err(IrregularFeature::EmptyIteration);
            }
            if *max == Some(0) && properties.explicit_captures_len() > 0 {
                return Err(IrregularFeature::NoIteration);
            }
            let (min, max, greedy, sub) = (*min, *max, *greedy, Box::new(sub));
            hir::Hir::repetition(hir::Repetition {
                min,
                max,
                greedy,
                sub,
            })
        }
        Ast::Around { .. } => return Err(IrregularFeature::LookAround),
        Ast::ResetStart => return Err(IrregularFeature::ResetStart),
    })
}

/// An alternation of branches, in order. `regex-syntax` factors out their common prefix: `.*a|.*b`
/// becomes `.*(?:a|b)`, which prefers a longer match. If the common prefix can match at several
/// lengths, the first branch is therefore prefixed with an expression that matches only the empty
/// text, so that nothing can be factored out.
fn branches(mut all: Vec<hir::Hir>) -> hir::Hir {
    if shares_choices(&all)
        && let Some(first) = all.first_mut()
    {
        let nothing = hir::Hir::alternation(vec![hir::Hir::empty(), hir::Hir::fail()]);
        let behind = std::mem::replace(first, hir::Hir::empty());
        *first = hir::Hir::concat(vec![nothing, behind]);
    }
    hir::Hir::alternation(all)
}

/// Whether all branches have a common prefix that can match at several lengths.
fn shares_choices(all: &[hir::Hir]) -> bool {
    let flat = all.iter().flat_map(|branch| match branch.kind() {
        hir::HirKind::Alternation(inner) => inner.as_slice(),
        _ => std::slice::from_ref(branch),
    });
    let mut flat = flat.map(|branch| match branch.kind() {
        hir::HirKind::Concat(items) => items.as_slice(),
        _ => &[],
    });
    let Some(mut shared) = flat.next() else {
        return false;
    };
    for branch in flat {
        let count = shared.iter().zip(branch);
        let count = count.take_while(|(one, other)| one == other).count();
        shared = shared.get(..count).unwrap_or_default();
    }
    shared.iter().any(|part| {
        let properties = part.properties();
        properties.minimum_len() != properties.maximum_len()
    })
}

fn parts(all: &[Ast], minds: &mut bool) -> Result<Vec<hir::Hir>, IrregularFeature> {
    all.iter().map(|ast| part(ast, minds)).collect()
}

fn byte(set: &ByteSet) -> hir::Hir {
    let ranges = set.ranges();
    if let [(first, last)] = ranges[..]
        && first == last
    {
        return hir::Hir::literal([first]);
    }
    let ranges = ranges.into_iter();
    let ranges = ranges.map(|(first, last)| hir::ClassBytesRange::new(first, last));
    hir::Hir::class(hir::Class::Bytes(hir::ClassBytes::new(ranges)))
}

fn place(look: Assertion) -> hir::Look {
    match look {
        Assertion::Start => hir::Look::Start,
        Assertion::End | Assertion::LastEnd => hir::Look::End,
        Assertion::LineStart => hir::Look::StartLF,
        Assertion::LineEnd => hir::Look::EndLF,
        Assertion::WordBoundary => hir::Look::WordAscii,
        Assertion::NotWordBoundary => hir::Look::WordAsciiNegate,
    }
}
