//! An automaton with a bit for each state, whose work per byte does not depend on the subject.
//!
//! The subject is read from its end to its start. At each position, the automaton computes from
//! which states a match can be reached: a bit for each state that consumes a byte (G. Navarro, M.
//! Raffinot: "Flexible Pattern Matching in Strings", chapter 5), and one for each *junction*, a
//! state without a byte at which several paths meet or an assertion is checked. The pattern of a
//! look-ahead is part of the same automaton and costs no more than other states; look-behinds are
//! computed before, in the other direction. If groups are requested, the bits of all positions are
//! kept. A walk from the first position at which a match begins then takes at each choice the first
//! path that leads to a match, and never has to backtrack.
//!
//! Deliberately not here: lazily built automata. They can have as many states as the subject has
//! bytes, and building one of these takes time in proportion to the length of the pattern.

use std::cell::RefCell;
use std::collections::HashMap;

use regex_automata::util::primitives::NonMaxUsize;

use crate::ast::{Assertion, ByteSet};
use crate::beyond::IrregularFeature;
use crate::escape::is_word;
use crate::graph::{Graph, State, StateId};

/// Maximum work per byte, in words read: about a nanosecond each.
const WORK_MAX: usize = 2_200;
/// Maximum number of words for the bits of all positions of a subject, if groups are requested.
const KEPT_WORDS_MAX: usize = 4 << 20;
/// Maximum memory that a thread keeps for the next match, in words.
const SCRATCH_WORDS_MAX: usize = 8 << 10;

/// The automaton of a pattern.
#[derive(Debug)]
pub(crate) struct Bits {
    /// The class of each byte.
    class_of: Box<[u8; 256]>,
    /// For each class of bytes, the bits of the states that consume a byte of the class.
    columns: Box<[u64]>,
    /// Number of words of the bits of states that consume a byte.
    bytes: usize,
    /// Number of words of a row: the bits of states that consume a byte, then those of junctions.
    width: usize,
    /// The bits of states whose successor is the state of the next lower bit: a shift of the row
    /// leads to them.
    straight: Box<[u64]>,
    /// The bits of states after which the match ends.
    ends: Box<[u64]>,
    /// The junctions, each after all junctions that it refers to.
    junctions: Box<[Junction]>,
    /// Words with a mask, to which junctions refer by ranges.
    masks: Box<[(u32, u64)]>,
    /// Numbers of junctions, to which junctions refer by ranges.
    others: Box<[u32]>,
    /// Whether a junction checks an assertion.
    has_places: bool,
    /// Whether a junction can lead to a match at a position other than the subject's end though no
    /// state that consumes a byte does.
    begins_anywhere: bool,
    /// The bit that tells whether a match begins at a position.
    start: Source,
    start_state: StateId,
    /// The automata of the pattern's look-behinds, by index.
    behind: Box<[Bits]>,
    /// The bit of each state in a row, or [`NO_BIT`].
    bit_of: Box<[u32]>,
    states: Box<[State]>,
    /// Number of groups, including the whole match.
    groups: usize,
}

/// Marks a state without a bit.
const NO_BIT: u32 = u32::MAX;

/// A state without a byte at which paths meet or an assertion is checked.
#[derive(Debug)]
struct Junction {
    kind: Kind,
    /// Whether the junction leads to the end of the match without consuming a byte.
    always: bool,
    /// Range of `masks`: states that consume a byte, one of which must lead to a match.
    bytes: (u32, u32),
    /// Range of `others`: earlier junctions, one of which must lead to a match.
    others: (u32, u32),
    /// Range of `masks`: states that lead to this junction after their byte.
    feeds: (u32, u32),
}

/// The condition of a junction, in addition to a path to a match.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Choice,
    Place(Assertion),
    Ahead { inner: Source, negated: bool },
    Behind { index: u32, negated: bool },
}

/// The bit that tells whether a match can be reached from a state.
#[derive(Clone, Copy, Debug)]
enum Source {
    Always,
    Junction(u32),
}

/// The result of a search for groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BitMatch {
    Match,
    Nothing,
    /// The bits of all positions would take too much memory.
    TooLong,
}

/// For each look-behind a bit for each position, set if its pattern matches just before the
/// position.
type Matched = Vec<Vec<u64>>;

impl Bits {
    /// Compiles a graph; `groups` includes the whole match.
    pub(crate) fn new(graph: Graph, groups: usize) -> Result<Bits, IrregularFeature> {
        let mut compiler = Compiler::new(&graph);
        compiler.add_junctions();
        compiler.add_followers();
        let start = compiler.source(graph.start);
        let drafted = compiler.finish();
        drafted.into_bits(graph, start, groups)
    }

    /// Whether the pattern matches.
    pub(crate) fn is_match(&self, subject: &[u8]) -> bool {
        let behind = self.matched_behind(subject);
        with_scratch(self.width + self.bytes, |scratch| {
            let (row, next) = scratch.split_at_mut(self.width);
            (0..=subject.len()).rev().any(|place| {
                let byte = subject.get(place).copied();
                self.step(row, next, byte, subject, place, &behind);
                self.begins(row)
            })
        })
    }

    /// The position at which the first match begins.
    pub(crate) fn first(&self, subject: &[u8]) -> Option<usize> {
        let behind = self.matched_behind(subject);
        with_scratch(self.width + self.bytes, |scratch| {
            let (row, next) = scratch.split_at_mut(self.width);
            let mut first = None;
            for place in (0..=subject.len()).rev() {
                let byte = subject.get(place).copied();
                self.step(row, next, byte, subject, place, &behind);
                if self.begins(row) {
                    first = Some(place);
                }
            }
            first
        })
    }

    /// Searches the first match, and stores the start and end of its groups in `slots`, those of
    /// the whole match first.
    pub(crate) fn captures(
        &self,
        subject: &[u8],
        slots: &mut Vec<Option<NonMaxUsize>>,
    ) -> BitMatch {
        let words = (subject.len() + 1).saturating_mul(self.width);
        if words > KEPT_WORDS_MAX {
            return BitMatch::TooLong;
        }
        let behind = self.matched_behind(subject);
        with_scratch(self.width + self.bytes, |scratch| {
            let (row, next) = scratch.split_at_mut(self.width);
            let mut rows = Vec::with_capacity(words);
            let mut first = None;
            for place in (0..=subject.len()).rev() {
                let byte = subject.get(place).copied();
                self.step(row, next, byte, subject, place, &behind);
                rows.extend_from_slice(row);
                if self.begins(row) {
                    first = Some(place);
                }
            }
            let Some(first) = first else {
                return BitMatch::Nothing;
            };
            let rows = Rows {
                words: &rows,
                width: self.width,
                last: subject.len(),
            };
            slots.clear();
            slots.resize(self.groups * 2, None);
            let start = self.start_state;
            set_slot(slots, 0, first);
            let end = self.walk(&rows, start, first, slots);
            set_slot(slots, 1, end);
            BitMatch::Match
        })
    }

    /// The approximate number of words that are read per byte.
    #[cfg(test)]
    pub(crate) fn work(&self) -> usize {
        self.bytes * 3 + self.junctions.len() * 4 + self.masks.len() + self.others.len()
    }

    /// Computes the row of a position. On entry, `next` has the states that would lead to a match
    /// if they consumed the byte at this position; on return, those for the position before.
    fn step(
        &self,
        row: &mut [u64],
        next: &mut [u64],
        byte: Option<u8>,
        subject: &[u8],
        place: usize,
        behind: &Matched,
    ) {
        let (consuming, junctions) = row.split_at_mut(self.bytes);
        match byte {
            Some(byte) => {
                let class = usize::from(self.class_of[usize::from(byte)]) * self.bytes;
                let column = self.columns.get(class..).unwrap_or_default();
                let mut carry = 0;
                for ((((row, next), column), straight), ends) in consuming
                    .iter_mut()
                    .zip(next.iter_mut())
                    .zip(column)
                    .zip(&self.straight)
                    .zip(&self.ends)
                {
                    *row = *next & column;
                    *next = (*row << 1 | carry) & straight | ends;
                    carry = *row >> 63;
                }
            }
            None => {
                consuming.fill(0);
                next.copy_from_slice(&self.ends);
            }
        }
        junctions.fill(0);
        let is_inside = place + 1 < subject.len();
        if is_inside && !self.begins_anywhere && consuming.iter().all(|word| *word == 0) {
            return;
        }
        let looks = if self.has_places {
            looks(subject, place)
        } else {
            0
        };
        for (index, junction) in self.junctions.iter().enumerate() {
            let reaches = || {
                junction.always
                    || self.masks[range(junction.bytes)]
                        .iter()
                        .any(|(word, mask)| consuming[*word as usize] & mask != 0)
                    || self.others[range(junction.others)]
                        .iter()
                        .any(|&other| bit(junctions, other))
            };
            let holds = match junction.kind {
                Kind::Choice => reaches(),
                Kind::Place(look) => looks & 1 << look as u8 != 0 && reaches(),
                Kind::Ahead { inner, negated } => {
                    let ahead = match inner {
                        Source::Always => true,
                        Source::Junction(inner) => bit(junctions, inner),
                    };
                    ahead != negated && reaches()
                }
                Kind::Behind { index, negated } => {
                    let matched = behind.get(index as usize);
                    matched.is_some_and(|matched| bit(matched, place as u32)) != negated
                        && reaches()
                }
            };
            if holds {
                junctions[index / 64] |= 1 << (index % 64);
                for (word, mask) in &self.masks[range(junction.feeds)] {
                    next[*word as usize] |= mask;
                }
            }
        }
    }

    /// Whether a match begins at the position of a row.
    fn begins(&self, row: &[u64]) -> bool {
        match self.start {
            Source::Always => true,
            Source::Junction(junction) => bit(&row[self.bytes..], junction),
        }
    }

    /// The matches of all look-behinds in a subject.
    fn matched_behind(&self, subject: &[u8]) -> Matched {
        self.behind
            .iter()
            .map(|behind| behind.ends_of(subject))
            .collect()
    }

    /// A bit for each position, set if the pattern of a look-behind matches just before the
    /// position.
    fn ends_of(&self, subject: &[u8]) -> Vec<u64> {
        let mut ends = vec![0; subject.len() / 64 + 1];
        let mut row = vec![0; self.width];
        let mut next = vec![0; self.bytes];
        for place in 0..=subject.len() {
            let before = place.checked_sub(1);
            let byte = before.and_then(|before| subject.get(before)).copied();
            self.step(&mut row, &mut next, byte, subject, place, &Vec::new());
            if self.begins(&row) {
                ends[place / 64] |= 1 << (place % 64);
            }
        }
        ends
    }

    /// Follows the preferred path from a state at a position from which a match can be reached;
    /// stores groups in `slots`, and returns the position at which the path ends.
    fn walk(
        &self,
        rows: &Rows<'_>,
        mut state: StateId,
        mut place: usize,
        slots: &mut [Option<NonMaxUsize>],
    ) -> usize {
        loop {
            let row = rows.at(place);
            state = match &self.states[state as usize] {
                State::Match => return place,
                State::Byte { next, .. } => {
                    place += 1;
                    *next
                }
                State::Choice(ways) => {
                    let leads = ways.iter().find(|&&way| self.leads(row, way));
                    match leads {
                        Some(way) => *way,
                        // Unreachable: a match can be reached from here, as the caller has checked.
                        None => return place,
                    }
                }
                State::Slot { slot, next } => {
                    set_slot(slots, *slot as usize, place);
                    *next
                }
                State::Ahead {
                    inner,
                    negated: false,
                    captures: true,
                    next,
                } => {
                    self.walk(rows, *inner, place, slots);
                    *next
                }
                State::Place { next, .. }
                | State::Ahead { next, .. }
                | State::Behind { next, .. } => *next,
            };
        }
    }

    /// Whether a match can be reached from a state at the position of a row.
    fn leads(&self, row: &[u64], mut state: StateId) -> bool {
        loop {
            let bit_of = self.bit_of[state as usize];
            if bit_of != NO_BIT {
                return bit(row, bit_of);
            }
            match &self.states[state as usize] {
                State::Slot { next, .. } => state = *next,
                State::Choice(ways) => return ways.iter().any(|&way| self.leads(row, way)),
                State::Match => return true,
                State::Byte { .. }
                | State::Place { .. }
                | State::Ahead { .. }
                | State::Behind { .. } => return false,
            }
        }
    }
}

/// The bits of all positions, those of the last position first.
struct Rows<'a> {
    words: &'a [u64],
    width: usize,
    last: usize,
}

impl Rows<'_> {
    /// The row of a position.
    fn at(&self, place: usize) -> &[u64] {
        &self.words[(self.last - place) * self.width..]
    }
}

fn set_slot(slots: &mut [Option<NonMaxUsize>], slot: usize, place: usize) {
    if let Some(slot) = slots.get_mut(slot) {
        *slot = NonMaxUsize::new(place);
    }
}

fn range((start, end): (u32, u32)) -> std::ops::Range<usize> {
    start as usize..end as usize
}

fn bit(words: &[u64], index: u32) -> bool {
    words[index as usize / 64] & 1 << (index % 64) != 0
}

/// A bit for each assertion that holds at a position.
fn looks(subject: &[u8], place: usize) -> u8 {
    let set = |bits, look| bits | u8::from(is_place(look, subject, place)) << look as u8;
    Assertion::ALL.into_iter().fold(0, set)
}

/// Whether an assertion holds at a position of the subject.
pub(crate) fn is_place(look: Assertion, subject: &[u8], place: usize) -> bool {
    let before = place.checked_sub(1).and_then(|before| subject.get(before));
    let after = subject.get(place);
    let is_boundary = || {
        let is_word = |byte: Option<&u8>| byte.is_some_and(|byte| is_word(*byte));
        is_word(before) != is_word(after)
    };
    match look {
        Assertion::Start => before.is_none(),
        Assertion::End => after.is_none(),
        Assertion::LastEnd => {
            after.is_none() || (after == Some(&b'\n') && place + 1 == subject.len())
        }
        Assertion::LineStart => before.is_none() || (before == Some(&b'\n') && after.is_some()),
        Assertion::LineEnd => after.is_none_or(|&after| after == b'\n'),
        Assertion::WordBoundary => is_boundary(),
        Assertion::NotWordBoundary => !is_boundary(),
    }
}

/// Calls `work` with zeroed memory, which the thread reuses.
fn with_scratch<T>(words: usize, work: impl FnOnce(&mut [u64]) -> T) -> T {
    thread_local! {
        static SCRATCH: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }
    let mut scratch = SCRATCH.take();
    scratch.clear();
    scratch.resize(words, 0);
    let result = work(&mut scratch);
    if scratch.capacity() <= SCRATCH_WORDS_MAX {
        SCRATCH.set(scratch);
    }
    result
}

/// A junction during compilation; states are referred to by their bits.
struct JunctionDraft {
    kind: Kind,
    /// The targets of the junction.
    of: EpsilonMoves,
    feeds: Vec<u32>,
}

/// The targets that a state reaches without consuming a byte.
#[derive(Default)]
struct EpsilonMoves {
    /// Whether the end of the match is reached.
    always: bool,
    /// Bits of states that consume a byte.
    bytes: Vec<u32>,
    junctions: Vec<u32>,
}

/// Assigns bits to the states of a graph.
struct Compiler<'a> {
    graph: &'a Graph,
    /// The states that consume a byte, by bit.
    consuming: Vec<StateId>,
    bit_of: Vec<u32>,
    /// Number of transitions to each state, those through group slots included.
    arrivals: Vec<u32>,
    junction_of: Vec<u32>,
    /// Junctions that only refer to one state that consumes a byte, by the state's bit.
    junction_of_bit: HashMap<u32, u32>,
    drafts: Vec<JunctionDraft>,
    straight: Vec<u32>,
    ends: Vec<u32>,
}

impl<'a> Compiler<'a> {
    fn new(graph: &'a Graph) -> Compiler<'a> {
        let states = graph.states.len();
        let mut compiler = Compiler {
            graph,
            consuming: Vec::new(),
            bit_of: vec![NO_BIT; states],
            arrivals: vec![0; states],
            junction_of: vec![NO_BIT; states],
            junction_of_bit: HashMap::new(),
            drafts: Vec::new(),
            straight: Vec::new(),
            ends: Vec::new(),
        };
        compiler.count_arrivals();
        compiler
    }

    fn state(&self, state: StateId) -> &'a State {
        &self.graph.states[state as usize]
    }

    /// The state, or the first one after a sequence of group slots.
    fn behind_slots(&self, mut state: StateId) -> StateId {
        while let State::Slot { next, .. } = self.state(state) {
            state = *next;
        }
        state
    }

    /// The successors of a state, with the weight of each as an arrival.
    fn followers(&self, state: StateId) -> Vec<(StateId, u32)> {
        match self.state(state) {
            State::Choice(ways) => ways.iter().map(|way| (*way, 1)).collect(),
            State::Byte { next, .. }
            | State::Slot { next, .. }
            | State::Place { next, .. }
            | State::Behind { next, .. } => vec![(*next, 1)],
            State::Ahead { inner, next, .. } => vec![(*inner, 2), (*next, 1)],
            State::Match => Vec::new(),
        }
    }

    /// Counts the transitions to each state, and gives bits to the reachable states that consume a
    /// byte.
    fn count_arrivals(&mut self) {
        // A state that is queried by itself must be a junction, so its arrivals count twice.
        let start = self.behind_slots(self.graph.start);
        self.arrivals[start as usize] += 2;
        let mut left = vec![start];
        let mut seen = vec![false; self.graph.states.len()];
        while let Some(state) = left.pop() {
            if std::mem::replace(&mut seen[state as usize], true) {
                continue;
            }
            for (next, times) in self.followers(state) {
                let next = self.behind_slots(next);
                self.arrivals[next as usize] += times;
                left.push(next);
            }
        }
        // The last states added are the first of the pattern: most lead to the state added before
        // them.
        for state in 0..self.graph.states.len() {
            if matches!(self.graph.states[state], State::Byte { .. }) && self.arrivals[state] > 0 {
                self.bit_of[state] = self.consuming.len() as u32;
                self.consuming.push(state as StateId);
            }
        }
    }

    /// Whether a state becomes a junction.
    fn is_junction(&self, state: StateId) -> bool {
        match self.state(state) {
            State::Choice(ways) => self.arrivals[state as usize] > 1 || ways.len() > 2,
            State::Place { .. } | State::Ahead { .. } | State::Behind { .. } => true,
            State::Byte { .. } | State::Slot { .. } | State::Match => false,
        }
    }

    /// Adds the junctions, each after those that it refers to.
    fn add_junctions(&mut self) {
        let mut seen = vec![false; self.graph.states.len()];
        let begin = std::iter::once(self.graph.start);
        let followers = self.consuming.iter().map(|state| match self.state(*state) {
            State::Byte { next, .. } => *next,
            _ => *state,
        });
        let mut left: Vec<(StateId, bool)> =
            begin.chain(followers).map(|state| (state, false)).collect();
        while let Some((state, is_ready)) = left.pop() {
            if is_ready {
                self.add_junction(state);
                continue;
            }
            if std::mem::replace(&mut seen[state as usize], true) {
                continue;
            }
            left.push((state, true));
            if !matches!(self.state(state), State::Byte { .. }) {
                let followers = self.followers(state).into_iter();
                left.extend(followers.map(|(next, _)| (next, false)));
            }
        }
    }

    /// Adds the junction of a state that becomes one; the junctions that it refers to exist.
    fn add_junction(&mut self, state: StateId) {
        if !self.is_junction(state) {
            return;
        }
        let mut of = EpsilonMoves::default();
        let kind = match self.state(state) {
            State::Choice(ways) => {
                for way in ways {
                    self.gather(*way, &mut of);
                }
                Kind::Choice
            }
            State::Place { look, next } => {
                self.gather(*next, &mut of);
                Kind::Place(*look)
            }
            State::Ahead {
                inner,
                negated,
                next,
                ..
            } => {
                self.gather(*next, &mut of);
                let (inner, negated) = (self.source(*inner), *negated);
                Kind::Ahead { inner, negated }
            }
            State::Behind {
                index,
                negated,
                next,
            } => {
                self.gather(*next, &mut of);
                let (index, negated) = (*index, *negated);
                Kind::Behind { index, negated }
            }
            State::Byte { .. } | State::Slot { .. } | State::Match => return,
        };
        self.junction_of[state as usize] = self.draft(kind, of);
    }

    /// Adds a junction; returns its number.
    fn draft(&mut self, kind: Kind, of: EpsilonMoves) -> u32 {
        let feeds = Vec::new();
        self.drafts.push(JunctionDraft { kind, of, feeds });
        (self.drafts.len() - 1) as u32
    }

    /// Adds the targets that a state reaches without consuming a byte.
    fn gather(&self, state: StateId, ways: &mut EpsilonMoves) {
        let mut left = vec![state];
        while let Some(state) = left.pop() {
            let junction = self.junction_of[state as usize];
            match self.state(state) {
                _ if junction != NO_BIT => ways.junctions.push(junction),
                State::Byte { .. } => ways.bytes.push(self.bit_of[state as usize]),
                State::Match => ways.always = true,
                State::Slot { next, .. } => left.push(*next),
                State::Choice(all) => left.extend(all),
                // These states are junctions, and have been added.
                State::Place { .. } | State::Ahead { .. } | State::Behind { .. } => {}
            }
        }
    }

    /// The bit that tells whether a match can be reached from a state.
    fn source(&mut self, state: StateId) -> Source {
        let state = self.behind_slots(state);
        if matches!(self.state(state), State::Match) {
            return Source::Always;
        }
        let junction = self.junction_of[state as usize];
        if junction != NO_BIT {
            return Source::Junction(junction);
        }
        Source::Junction(self.junction_of_bit(self.bit_of[state as usize]))
    }

    /// The junction that only refers to the state with this bit; added if necessary.
    fn junction_of_bit(&mut self, bit: u32) -> u32 {
        if let Some(known) = self.junction_of_bit.get(&bit) {
            return *known;
        }
        let of = EpsilonMoves {
            bytes: vec![bit],
            ..EpsilonMoves::default()
        };
        let junction = self.draft(Kind::Choice, of);
        self.junction_of_bit.insert(bit, junction);
        junction
    }

    /// Records the successors of each state that consumes a byte.
    fn add_followers(&mut self) {
        for bit in 0..self.consuming.len() as u32 {
            let State::Byte { next, .. } = self.state(self.consuming[bit as usize]) else {
                continue;
            };
            let mut ways = EpsilonMoves::default();
            self.gather(*next, &mut ways);
            if ways.always {
                self.ends.push(bit);
            }
            for follower in ways.bytes {
                if follower.checked_add(1) == Some(bit) {
                    self.straight.push(bit);
                } else {
                    let junction = self.junction_of_bit(follower);
                    ways.junctions.push(junction);
                }
            }
            for junction in ways.junctions {
                self.drafts[junction as usize].feeds.push(bit);
            }
        }
    }

    fn finish(self) -> Drafted {
        let bytes = self.consuming.len().div_ceil(64).max(1);
        let sets = self.consuming.iter().map(|state| match self.state(*state) {
            State::Byte { set, .. } => *set,
            _ => 0,
        });
        let sets = sets.collect();
        let base = (bytes * 64) as u32;
        let mut bit_of = self.bit_of;
        for (bit_of, junction) in bit_of.iter_mut().zip(&self.junction_of) {
            if *junction != NO_BIT {
                *bit_of = base + junction;
            }
        }
        Drafted {
            bytes,
            sets,
            bit_of,
            drafts: self.drafts,
            straight: self.straight,
            ends: self.ends,
        }
    }
}

/// The result of a compilation, before its parts are packed.
struct Drafted {
    bytes: usize,
    /// The index of the set of each state that consumes a byte, by bit.
    sets: Vec<u32>,
    bit_of: Vec<u32>,
    drafts: Vec<JunctionDraft>,
    straight: Vec<u32>,
    ends: Vec<u32>,
}

impl Drafted {
    /// Packs the parts; an error if the automaton or one of its look-behinds is too large.
    fn into_bits(
        self,
        graph: Graph,
        start: Source,
        groups: usize,
    ) -> Result<Bits, IrregularFeature> {
        let mut masks = Vec::new();
        let mut others = Vec::new();
        let mut work = self.bytes * 3;
        let junctions: Box<[Junction]> = self
            .drafts
            .into_iter()
            .map(|draft| {
                let from = others.len() as u32;
                others.extend(draft.of.junctions);
                let junction = Junction {
                    kind: draft.kind,
                    always: draft.of.always,
                    bytes: add_masks(&mut masks, draft.of.bytes),
                    others: (from, others.len() as u32),
                    feeds: add_masks(&mut masks, draft.feeds),
                };
                work += 4;
                junction
            })
            .collect();
        work += masks.len() + others.len();
        if work > WORK_MAX {
            return Err(IrregularFeature::TooLarge);
        }
        let mut straight = vec![0; self.bytes];
        self.straight
            .iter()
            .for_each(|bit| set(&mut straight, *bit));
        let mut ends = vec![0; self.bytes];
        self.ends.iter().for_each(|bit| set(&mut ends, *bit));
        let (class_of, columns) = classes(&graph, &self.sets, self.bytes);
        let behind = graph.behind.into_iter();
        let behind = behind.map(|graph| Bits::new(graph, 0));
        Ok(Bits {
            class_of,
            columns,
            bytes: self.bytes,
            width: self.bytes + junctions.len().div_ceil(64),
            straight: straight.into(),
            ends: ends.into(),
            has_places: junctions
                .iter()
                .any(|junction| matches!(junction.kind, Kind::Place(_))),
            begins_anywhere: junctions.iter().any(|junction| {
                let is_end = matches!(
                    junction.kind,
                    Kind::Place(Assertion::End | Assertion::LastEnd)
                );
                junction.always && !is_end
            }),
            junctions,
            masks: masks.into(),
            others: others.into(),
            start,
            behind: behind.collect::<Result<_, _>>()?,
            bit_of: self.bit_of.into(),
            start_state: graph.start,
            states: graph.states.into(),
            groups,
        })
    }
}

fn set(words: &mut [u64], bit: u32) {
    words[bit as usize / 64] |= 1 << (bit % 64);
}

/// Appends bits as words with masks; returns their range.
fn add_masks(masks: &mut Vec<(u32, u64)>, mut bits: Vec<u32>) -> (u32, u32) {
    let start = masks.len();
    bits.sort_unstable();
    for bit in bits {
        let (word, mask) = (bit / 64, 1 << (bit % 64));
        match masks.get_mut(start..).and_then(<[_]>::last_mut) {
            Some((last, known)) if *last == word => *known |= mask,
            _ => masks.push((word, mask)),
        }
    }
    (start as u32, masks.len() as u32)
}

/// Divides bytes into classes, whose bytes no set distinguishes; returns the class of each byte and
/// the states that consume each class.
fn classes(graph: &Graph, sets: &[u32], words: usize) -> (Box<[u8; 256]>, Box<[u64]>) {
    let mut classes = vec![ByteSet::ALL];
    for set in &graph.sets {
        for place in 0..classes.len() {
            let (inside, outside) = classes[place].split(set);
            if inside != ByteSet::NONE && outside != ByteSet::NONE {
                classes[place] = inside;
                classes.push(outside);
            }
        }
    }
    let mut class_of = Box::new([0; 256]);
    let mut columns = vec![0; classes.len() * words];
    for (class, column) in (0..=u8::MAX).zip(columns.chunks_exact_mut(words)) {
        let bytes = &classes[usize::from(class)];
        bytes
            .bytes()
            .for_each(|byte| class_of[usize::from(byte)] = class);
        let first = bytes.first().unwrap_or_default();
        for (state, index) in (0..).zip(sets) {
            if graph.sets[*index as usize].contains(first) {
                set(column, state);
            }
        }
    }
    (class_of, columns.into())
}
