//! From a pattern's meaning to the syntax tree that `regex-automata` compiles, where both engines provably agree.
//!
//! Automata prefer matches as backtracking does (leftmost, then the first branch that leads to a match), because which
//! thread is preferred depends on nothing but the place in the pattern and in the subject. Two things of PCRE2
//! depend on more, and are left to PCRE2:
//!
//! - A repetition without end stops at an empty iteration, so its future depends on where the iteration began. Only
//!   bodies that cannot match nothing are lowered there. With an end, PCRE2 and the automaton both lay out the
//!   iterations one behind the other.
//! - `$`, `\Z` and `^` within `(?m)` ask about a line feed that ends the subject. They are lowered as `\z` and as "behind
//!   a line feed", which is the same for subjects that end otherwise; [`Lowered::minds_last_line_feed`] says so.

use regex_syntax::hir;

use crate::ast::{Ast, ByteSet, Look};
use crate::beyond::Beyond;

/// A pattern for an automaton.
#[derive(Debug)]
pub(crate) struct Lowered {
    /// It means the same on bytes.
    pub(crate) hir: hir::Hir,
    /// Subjects that end in a line feed are PCRE2's.
    pub(crate) minds_last_line_feed: bool,
}

/// Lowers a pattern.
pub(crate) fn lower(ast: &Ast) -> Result<Lowered, Beyond> {
    let mut minds_last_line_feed = false;
    let hir = part(ast, &mut minds_last_line_feed)?;
    Ok(Lowered {
        hir,
        minds_last_line_feed,
    })
}

fn part(ast: &Ast, minds: &mut bool) -> Result<hir::Hir, Beyond> {
    Ok(match ast {
        Ast::Byte(set) => byte(set),
        Ast::Look(look) => {
            *minds |= matches!(look, Look::LastEnd | Look::LineStart);
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
        Ast::Branches(branches) => hir::Hir::alternation(parts(branches, minds)?),
        Ast::Repeat {
            min,
            max,
            greedy,
            inner,
        } => {
            let sub = part(inner, minds)?;
            let properties = sub.properties();
            if max.is_none() && properties.minimum_len() == Some(0) {
                return Err(Beyond::EmptyIteration);
            }
            if *max == Some(0) && properties.explicit_captures_len() > 0 {
                return Err(Beyond::NoIteration);
            }
            let (min, max, greedy, sub) = (*min, *max, *greedy, Box::new(sub));
            hir::Hir::repetition(hir::Repetition {
                min,
                max,
                greedy,
                sub,
            })
        }
    })
}

fn parts(all: &[Ast], minds: &mut bool) -> Result<Vec<hir::Hir>, Beyond> {
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

fn place(look: Look) -> hir::Look {
    match look {
        Look::Start => hir::Look::Start,
        Look::End | Look::LastEnd => hir::Look::End,
        Look::LineStart => hir::Look::StartLF,
        Look::LineEnd => hir::Look::EndLF,
        Look::WordBoundary => hir::Look::WordAscii,
        Look::NotWordBoundary => hir::Look::WordAsciiNegate,
    }
}
