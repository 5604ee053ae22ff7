//! A pattern as a graph of states, whose choices are in the order in which PCRE2 tries them.
//!
//! Repetitions are unrolled: the body is copied for each iteration. An unbounded repetition whose
//! body can match the empty text ends, in PCRE2, after an iteration that has consumed nothing. What
//! may follow thus depends on whether the iteration has made progress, so each state within such a
//! body has a copy for each number of enclosing bodies that have made progress.

use crate::ast::{Assertion, Ast, ByteSet};
use crate::beyond::IrregularFeature;

/// Maximum number of states in a graph.
const STATES_MAX: usize = 400_000;

/// The index of a state in [`Graph::states`].
pub(crate) type StateId = u32;

/// A state and its successors.
#[derive(Debug)]
pub(crate) enum State {
    /// Consumes a byte of the set with this index in [`Graph::sets`].
    Byte {
        set: u32,
        next: StateId,
    },
    /// Continues with the first of these states from which a match can be reached.
    Choice(Box<[StateId]>),
    /// Stores the position as the start or the end of a group.
    Slot {
        /// Twice the group's number, plus one for the end.
        slot: u32,
        next: StateId,
    },
    /// Continues if the assertion holds at the position.
    Place {
        look: Assertion,
        next: StateId,
    },
    /// Continues if the pattern of a look-ahead matches, or does not match.
    Ahead {
        /// The first state of that pattern.
        inner: StateId,
        /// Whether the look-ahead is negative: its pattern must not match.
        negated: bool,
        /// Whether the look-ahead's pattern contains capturing groups.
        captures: bool,
        next: StateId,
    },
    /// Continues if the pattern of a look-behind matches just before, or does not.
    Behind {
        /// The index of the look-behind's pattern in [`Graph::behind`].
        index: u32,
        /// Whether the look-behind is negative: its pattern must not match.
        negated: bool,
        next: StateId,
    },
    Match,
}

/// The graph of a pattern.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) states: Vec<State>,
    /// The first state of a match.
    pub(crate) start: StateId,
    /// The sets of bytes, without duplicates.
    pub(crate) sets: Vec<ByteSet>,
    /// The patterns of look-behinds, reversed.
    pub(crate) behind: Vec<Graph>,
}

impl Graph {
    /// Compiles a pattern.
    pub(crate) fn new(ast: &Ast) -> Result<Graph, IrregularFeature> {
        Builder::default().build(ast, Direction::Forwards)
    }
}

/// The direction in which a graph reads the subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Direction {
    #[default]
    Forwards,
    /// From the end to the start, for a look-behind.
    Backwards,
}

/// The successors of a part of a pattern, by the number of enclosing bodies that have made
/// progress, the outermost first.
type Levels = Vec<StateId>;

/// A graph that is being built, from its end to its start.
#[derive(Default)]
struct Builder {
    states: Vec<State>,
    sets: Vec<ByteSet>,
    /// The graphs of look-behinds.
    behind: Vec<Graph>,
    direction: Direction,
}

impl Builder {
    fn build(mut self, ast: &Ast, direction: Direction) -> Result<Graph, IrregularFeature> {
        self.direction = direction;
        let end = self.add(State::Match)?;
        let start = self.part(ast, &[end])?;
        Ok(Graph {
            start: start.first().copied().unwrap_or(end),
            states: self.states,
            sets: self.sets,
            behind: self.behind,
        })
    }

    fn add(&mut self, state: State) -> Result<StateId, IrregularFeature> {
        if self.states.len() >= STATES_MAX {
            return Err(IrregularFeature::TooLarge);
        }
        self.states.push(state);
        Ok((self.states.len() - 1) as StateId)
    }

    /// Adds a state for each level, with the level's successor. Levels with the same successor
    /// share a state.
    fn each(
        &mut self,
        next: &[StateId],
        state: impl Fn(StateId) -> State,
    ) -> Result<Levels, IrregularFeature> {
        let mut levels = Levels::with_capacity(next.len());
        for (level, &id) in next.iter().enumerate() {
            let same = next[..level].iter().position(|&earlier| earlier == id);
            let known = same.and_then(|same| levels.get(same).copied());
            levels.push(match known {
                Some(known) => known,
                None => self.add(state(id))?,
            });
        }
        Ok(levels)
    }

    /// Adds the states of a part, which lead to `next`.
    fn part(&mut self, ast: &Ast, next: &[StateId]) -> Result<Levels, IrregularFeature> {
        let [first, others @ ..] = next else {
            return Err(IrregularFeature::TooLarge);
        };
        if !others.is_empty() && others.iter().all(|other| other == first) {
            let one = self.part(ast, &[*first])?;
            return Ok(one.repeat(next.len()));
        }
        // A byte is progress in all enclosing bodies.
        let progressed = *others.last().unwrap_or(first);
        match ast {
            Ast::Byte(set) => {
                let set = self.set(*set);
                let next_level = progressed;
                let byte = self.add(State::Byte {
                    set,
                    next: next_level,
                })?;
                Ok(vec![byte; next.len()])
            }
            Ast::Look(look) => self.each(next, |next| State::Place { look: *look, next }),
            Ast::ResetStart => self.each(next, |next| State::Slot { slot: 0, next }),
            Ast::Capture { index, inner } => {
                let slot = index.saturating_mul(2);
                let end = self.each(next, |next| State::Slot {
                    slot: slot.saturating_add(1),
                    next,
                })?;
                let inner = self.part(inner, &end)?;
                self.each(&inner, |next| State::Slot { slot, next })
            }
            Ast::Concat(items) => {
                let mut next = next.to_vec();
                match self.direction {
                    Direction::Forwards => {
                        for item in items.iter().rev() {
                            next = self.part(item, &next)?;
                        }
                    }
                    Direction::Backwards => {
                        for item in items {
                            next = self.part(item, &next)?;
                        }
                    }
                }
                Ok(next)
            }
            Ast::Branches(branches) => {
                let mut all = Vec::with_capacity(branches.len());
                for branch in branches.iter().rev() {
                    all.push(self.part(branch, next)?);
                }
                all.reverse();
                self.choices(&all)
            }
            Ast::Repeat {
                min,
                max: Some(max),
                greedy,
                inner,
            } => {
                let exit = next;
                let mut next = next.to_vec();
                for _ in *min..*max {
                    let once = self.part(inner, &next)?;
                    next = self.either(once, exit.to_vec(), *greedy)?;
                }
                self.copies(inner, *min, next)
            }
            Ast::Repeat {
                min,
                max: None,
                greedy,
                inner,
            } => self.endless(*min, *greedy, inner, next),
            Ast::Around {
                ahead,
                negated,
                inner,
            } => self.around(*ahead, *negated, inner, next),
        }
    }

    /// Adds `count` copies of a part in sequence.
    fn copies(
        &mut self,
        inner: &Ast,
        count: u32,
        mut next: Levels,
    ) -> Result<Levels, IrregularFeature> {
        for _ in 0..count {
            next = self.part(inner, &next)?;
        }
        Ok(next)
    }

    /// An unbounded repetition: the last copy of its body leads back to itself.
    fn endless(
        &mut self,
        min: u32,
        greedy: bool,
        inner: &Ast,
        next: &[StateId],
    ) -> Result<Levels, IrregularFeature> {
        let deepest = next.len() - 1;
        let progressed = next[deepest];
        let again = self.add(State::Choice(Box::default()))?;
        let body = if inner.may_be_empty() {
            // An iteration without progress ends the repetition.
            let mut ends = next.to_vec();
            ends.push(again);
            self.part(inner, &ends)?
        } else {
            self.part(inner, &vec![again; next.len()])?
        };
        let entries = body.get(..next.len()).unwrap_or_default().to_vec();
        let repeated = entries.get(deepest).copied().unwrap_or(progressed);
        if let Some(state) = self.states.get_mut(again as usize) {
            *state = State::Choice(in_order(repeated, progressed, greedy));
        }
        if min == 0 {
            return self.either(entries, next.to_vec(), greedy);
        }
        self.copies(inner, min - 1, entries)
    }

    /// A look-around: a look-ahead becomes part of the graph, a look-behind a graph of its own.
    fn around(
        &mut self,
        ahead: bool,
        negated: bool,
        inner: &Ast,
        next: &[StateId],
    ) -> Result<Levels, IrregularFeature> {
        // A look-around within a look-behind would need the opposite direction.
        if self.direction == Direction::Backwards {
            return Err(IrregularFeature::LookAround);
        }
        if !ahead {
            let graph = Builder::default().build(inner, Direction::Backwards)?;
            let index = self.behind.len() as u32;
            self.behind.push(graph);
            return self.each(next, |next| State::Behind {
                index,
                negated,
                next,
            });
        }
        let end = self.add(State::Match)?;
        let begin = self.part(inner, &[end])?;
        let begin = begin.first().copied().unwrap_or(end);
        let captures = inner.captures();
        self.each(next, |next| State::Ahead {
            inner: begin,
            negated,
            captures,
            next,
        })
    }

    /// Adds a choice between branches for each level.
    fn choices(&mut self, branches: &[Levels]) -> Result<Levels, IrregularFeature> {
        let count = branches.first().map_or(0, Vec::len);
        let mut levels = Levels::with_capacity(count);
        let mut before: Option<(Box<[StateId]>, StateId)> = None;
        for level in 0..count {
            let of_level = branches.iter().filter_map(|branch| branch.get(level));
            let of_level: Box<[StateId]> = of_level.copied().collect();
            let id = match &before {
                Some((same, id)) if *same == of_level => *id,
                _ => self.add(State::Choice(of_level.clone()))?,
            };
            before = Some((of_level, id));
            levels.push(id);
        }
        Ok(levels)
    }

    /// A choice between another iteration and the exit of a repetition.
    fn either(
        &mut self,
        once: Levels,
        exit: Levels,
        greedy: bool,
    ) -> Result<Levels, IrregularFeature> {
        if greedy {
            self.choices(&[once, exit])
        } else {
            self.choices(&[exit, once])
        }
    }

    /// The index of a set, which is added if necessary.
    fn set(&mut self, set: ByteSet) -> u32 {
        let known = self.sets.iter().position(|known| *known == set);
        let index = known.unwrap_or_else(|| {
            self.sets.push(set);
            self.sets.len() - 1
        });
        index as u32
    }
}

/// The successors of a repetition, in the order in which they are tried.
fn in_order(once: StateId, exit: StateId, greedy: bool) -> Box<[StateId]> {
    if greedy {
        Box::new([once, exit])
    } else {
        Box::new([exit, once])
    }
}
