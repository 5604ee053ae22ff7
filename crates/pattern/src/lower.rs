//! From a pattern's meaning to the syntax tree that `regex-automata` compiles, where both engines
//! provably agree.
//!
//! Automata prefer matches as backtracking does (leftmost, then the first branch that leads to a
//! match), because which thread is preferred depends on nothing but the place in the pattern and in
//! the subject. Two things of PCRE2 depend on more, and are left to PCRE2 and to [`crate::bits`]:
//!
//! - A repetition without end stops at an empty iteration, so its future depends on where the
//!   iteration began. Only bodies that cannot match nothing are lowered there. With an end, PCRE2
//!   and the automaton both lay out the iterations one behind the other.
//! - `$`, `\Z` and `^` within `(?m)` ask about a line feed that ends the subject. They are lowered
//!   as `\z` and as "behind a line feed", which is the same for subjects that end otherwise;
//!   [`Lowered::rejects_trailing_newline`] says so.

use regex_syntax::hir;

use crate::ast::{Assertion, Ast, ByteSet};
use crate::beyond::IrregularFeature;

/// A pattern for an automaton.
#[derive(Debug)]
pub(crate) struct Lowered {
    /// It means the same on bytes.
    pub(crate) hir: hir::Hir,
    /// Subjects that end in a line feed are not this automaton's.
    pub(crate) rejects_trailing_newline: bool,
}

pub(crate) fn lower(ast: &Ast) -> Result<Lowered, IrregularFeature> {
    let mut rejects_trailing_newline = false;
    let hir = part(ast, &mut rejects_trailing_newline)?;
    Ok(Lowered {
        hir,
        rejects_trailing_newline,
    })
}

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

/// Branches in their order. `regex-syntax` takes out what all of them begin with: of `.*a|.*b` it
/// makes `.*(?:a|b)`, which prefers a longer match. Where what they share may match at several
/// lengths, the first branch gets something in front that matches nothing, so that they share
/// nothing.
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

/// Whether all branches begin with the same, and it has several lengths.
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
