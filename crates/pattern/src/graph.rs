//! A pattern as a graph of states, in which each choice stands in the order in which PCRE2 tries
//! it.
//!
//! Repetitions are laid out, one copy of their body behind the other. A repetition without end
//! whose body may match nothing ends, in PCRE2, behind an iteration that has consumed nothing: what
//! may follow depends on whether the iteration has made progress, and so each state within such a
//! body exists once for each number of bodies around it that have.

use crate::ast::{Assertion, Ast, ByteSet};
use crate::beyond::IrregularFeature;

/// The most states of a graph.
const STATES_MAX: usize = 400_000;

/// A state, by its place in [`Graph::states`].
pub(crate) type StateId = u32;

/// A state, and what follows it.
#[derive(Debug)]
pub(crate) enum State {
    /// Consumes a byte of a set, by its place in [`Graph::sets`].
    Byte {
        set: u32,
        next: StateId,
    },
    /// Goes on with the first of these from which there is a match.
    Choice(Box<[StateId]>),
    /// Notes the place as the start or the end of a group.
    Slot {
        /// Twice the group's number, and one more for its end.
        slot: u32,
        next: StateId,
    },
    /// Goes on at a place of this kind.
    Place {
        look: Assertion,
        next: StateId,
    },
    /// Goes on where another graph matches, or does not.
    Ahead {
        /// Where that graph begins.
        inner: StateId,
        /// Whether it must not match.
        negated: bool,
        /// Whether groups capture within.
        captures: bool,
        next: StateId,
    },
    /// Goes on where a pattern has matched just before, or has not.
    Behind {
        /// That pattern's place in [`Graph::behind`].
        index: u32,
        /// Whether it must not have matched.
        negated: bool,
        next: StateId,
    },
    Match,
}

/// The graph of a pattern.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) states: Vec<State>,
    /// Where a match begins.
    pub(crate) start: StateId,
    /// The sets of bytes that are consumed, each once.
    pub(crate) sets: Vec<ByteSet>,
    /// What must have matched before a place, to be read from its end to its start.
    pub(crate) behind: Vec<Graph>,
}

impl Graph {
    /// The graph of a pattern.
    pub(crate) fn new(ast: &Ast) -> Result<Graph, IrregularFeature> {
        Builder::default().build(ast, Direction::Forwards)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Direction {
    #[default]
    Forwards,
    /// A look-behind reads its subject from the end to the start.
    Backwards,
}

/// What follows a part, for each number of bodies around it that have made progress, the outermost
/// first.
type Levels = Vec<StateId>;

#[derive(Default)]
struct Builder {
    states: Vec<State>,
    sets: Vec<ByteSet>,
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

    /// A state for each level, from what follows there; one state where that is the same
    /// everywhere.
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

    /// The states of a part, before those that follow.
    fn part(&mut self, ast: &Ast, next: &[StateId]) -> Result<Levels, IrregularFeature> {
        let [first, others @ ..] = next else {
            return Err(IrregularFeature::TooLarge);
        };
        if !others.is_empty() && others.iter().all(|other| other == first) {
            let one = self.part(ast, &[*first])?;
            return Ok(one.repeat(next.len()));
        }
        // A byte is progress in every body around it.
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

    /// A repetition without end: the last copy of its body leads back to itself.
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
            // Without progress the repetition is over.
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

    fn around(
        &mut self,
        ahead: bool,
        negated: bool,
        inner: &Ast,
        next: &[StateId],
    ) -> Result<Levels, IrregularFeature> {
        // A look-around within a look-behind would have to be read the other way round.
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

    /// A choice for each level.
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

    fn set(&mut self, set: ByteSet) -> u32 {
        let known = self.sets.iter().position(|known| *known == set);
        let index = known.unwrap_or_else(|| {
            self.sets.push(set);
            self.sets.len() - 1
        });
        index as u32
    }
}

fn in_order(once: StateId, exit: StateId, greedy: bool) -> Box<[StateId]> {
    if greedy {
        Box::new([once, exit])
    } else {
        Box::new([exit, once])
    }
}
