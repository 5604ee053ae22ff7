//! A bit for each state: a pattern's automaton whose work for a byte is the same whatever the
//! subject holds.
//!
//! The subject is read from its end to its start. At each place it is worked out from which states
//! a match can be reached: a bit for each state that consumes a byte (G. Navarro, M. Raffinot:
//! "Flexible Pattern Matching in Strings", chapter 5), and one for each *junction*, where several
//! ways meet or something is asked about the place. What a look-ahead looks for is reached like all
//! else, so that it costs no more; look-behinds are worked out before, in the other direction.
//! Where groups are asked for, the bits of all places are kept, and a walk from the first place
//! where a match begins takes at each choice the first way that leads to the end. It never has to
//! go back.
//!
//! Deliberately not here: automata that are built while they run. Their states can be as many as
//! there are bytes, each as dear as the whole pattern is long.

use std::cell::RefCell;
use std::collections::HashMap;

use regex_automata::util::primitives::NonMaxUsize;

use crate::ast::{Assertion, ByteSet};
use crate::beyond::IrregularFeature;
use crate::escape::is_word;
use crate::graph::{Graph, State, StateId};

/// The most work for a byte, in words that are read: about a nanosecond each.
const WORK_MAX: usize = 2_200;
/// The most words that the bits of all places of a subject may take, where groups are asked for.
const KEPT_WORDS_MAX: usize = 4 << 20;
/// Memory of a thread that is kept for the next match, in words.
const SCRATCH_WORDS_MAX: usize = 8 << 10;

#[derive(Debug)]
pub(crate) struct Bits {
    /// The class of each byte.
    class_of: Box<[u8; 256]>,
    /// For each class of bytes, which states consume one of it.
    columns: Box<[u64]>,
    /// How many words the states that consume have.
    bytes: usize,
    /// How many words there are with those of the junctions.
    width: usize,
    /// Which states lead to the one before them.
    straight: Box<[u64]>,
    /// Which states end a match.
    ends: Box<[u64]>,
    /// In an order in which none asks for a later one.
    junctions: Box<[Junction]>,
    masks: Box<[(u32, u64)]>,
    others: Box<[u32]>,
    /// Whether a junction asks about the place.
    has_places: bool,
    /// Whether a junction may lead to a match though no state that consumes does, elsewhere than at
    /// the subject's end.
    begins_anywhere: bool,
    /// What says whether a match begins at a place.
    start: Source,
    start_state: StateId,
    behind: Box<[Bits]>,
    /// The bit of each state within a row, or [`NO_BIT`].
    bit_of: Box<[u32]>,
    states: Box<[State]>,
    groups: usize,
}

/// A state that has no bit of its own.
const NO_BIT: u32 = u32::MAX;

#[derive(Debug)]
struct Junction {
    kind: Kind,
    /// It leads to a match by itself.
    always: bool,
    /// Places in `masks`: states one of which must lead to a match.
    bytes: (u32, u32),
    /// Places in `others`: earlier junctions, the same.
    others: (u32, u32),
    /// Places in `masks`: states that lead here once they have consumed.
    feeds: (u32, u32),
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Choice,
    Place(Assertion),
    Ahead { inner: Source, negated: bool },
    Behind { index: u32, negated: bool },
}

/// What says whether there is a match from a state.
#[derive(Clone, Copy, Debug)]
enum Source {
    Always,
    Junction(u32),
}

/// Whether there is a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BitMatch {
    Match,
    Nothing,
    /// The bits of all places would take too much memory.
    TooLong,
}

/// For each look-behind a bit for each place, set where its pattern has matched just before.
type Matched = Vec<Vec<u64>>;

impl Bits {
    /// The automaton of a graph; `groups` with the whole match.
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

    /// Where the first match begins.
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

    /// Whether it matches, and where its groups lie: the start and the end of each, the whole match
    /// first.
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

    /// About how many words are read for a byte.
    #[cfg(test)]
    pub(crate) fn work(&self) -> usize {
        self.bytes * 3 + self.junctions.len() * 4 + self.masks.len() + self.others.len()
    }

    /// Works out a place: `next` holds which states would lead to a match if they consumed the byte
    /// that was read just before, and then the same for this place.
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

    /// Whether a match begins at the place of a row.
    fn begins(&self, row: &[u64]) -> bool {
        match self.start {
            Source::Always => true,
            Source::Junction(junction) => bit(&row[self.bytes..], junction),
        }
    }

    fn matched_behind(&self, subject: &[u8]) -> Matched {
        self.behind
            .iter()
            .map(|behind| behind.ends_of(subject))
            .collect()
    }

    /// The places before which the pattern of a look-behind has matched.
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

    /// From a state at a place from which a match can be reached: the first way to it, and where it
    /// ends.
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
                        // Not from here: whoever came here has asked.
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

    /// Whether a match can be reached from a state at the place of a row.
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

/// The bits of all places, the last place first.
struct Rows<'a> {
    words: &'a [u64],
    width: usize,
    last: usize,
}

impl Rows<'_> {
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

/// A bit for each kind of place that this one is.
fn looks(subject: &[u8], place: usize) -> u8 {
    let set = |bits, look| bits | u8::from(is_place(look, subject, place)) << look as u8;
    Assertion::ALL.into_iter().fold(0, set)
}

/// Whether a place of a subject is of a kind.
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

/// Words of memory, all of them zero, which a thread uses again.
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

/// A junction that is being made, with the bits of states.
struct JunctionDraft {
    kind: Kind,
    of: EpsilonMoves,
    feeds: Vec<u32>,
}

/// What a state leads to without consuming anything.
#[derive(Default)]
struct EpsilonMoves {
    always: bool,
    /// Bits of states that consume.
    bytes: Vec<u32>,
    junctions: Vec<u32>,
}

/// Gives bits to the states of a graph.
struct Compiler<'a> {
    graph: &'a Graph,
    /// States that consume, by their bits.
    consuming: Vec<StateId>,
    bit_of: Vec<u32>,
    /// How many ways lead to a state, over slots.
    arrivals: Vec<u32>,
    junction_of: Vec<u32>,
    /// Junctions of single states that consume.
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

    /// The state itself, or the first one behind slots.
    fn behind_slots(&self, mut state: StateId) -> StateId {
        while let State::Slot { next, .. } = self.state(state) {
            state = *next;
        }
        state
    }

    /// What a state leads to, and how often that counts.
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

    fn count_arrivals(&mut self) {
        // What is asked for by itself is a junction.
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
        // Those made last come first in the pattern: each mostly leads to the one made just before.
        for state in 0..self.graph.states.len() {
            if matches!(self.graph.states[state], State::Byte { .. }) && self.arrivals[state] > 0 {
                self.bit_of[state] = self.consuming.len() as u32;
                self.consuming.push(state as StateId);
            }
        }
    }

    fn is_junction(&self, state: StateId) -> bool {
        match self.state(state) {
            State::Choice(ways) => self.arrivals[state as usize] > 1 || ways.len() > 2,
            State::Place { .. } | State::Ahead { .. } | State::Behind { .. } => true,
            State::Byte { .. } | State::Slot { .. } | State::Match => false,
        }
    }

    /// Makes the junctions, each behind those that it asks for.
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

    fn draft(&mut self, kind: Kind, of: EpsilonMoves) -> u32 {
        let feeds = Vec::new();
        self.drafts.push(JunctionDraft { kind, of, feeds });
        (self.drafts.len() - 1) as u32
    }

    /// Adds what a state leads to.
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
                // Each of these is a junction by now.
                State::Place { .. } | State::Ahead { .. } | State::Behind { .. } => {}
            }
        }
    }

    /// What says whether there is a match from a state.
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

    /// Notes what follows each state that consumes.
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

/// What a compiler has found out.
struct Drafted {
    bytes: usize,
    /// The set of each state that consumes, by its bit.
    sets: Vec<u32>,
    bit_of: Vec<u32>,
    drafts: Vec<JunctionDraft>,
    straight: Vec<u32>,
    ends: Vec<u32>,
}

impl Drafted {
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

/// Bytes that no set tells apart are a class; for each class, which states consume it.
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
