//! Patterns as nginx has them: PCRE2's language, matched in linear time where that is provably the
//! same.
//!
//! Every pattern is compiled by PCRE2 when a configuration is loaded, so what it refuses is refused
//! in its words, and what it takes is taken. Then our own [`parser`] reads the pattern. What is
//! regular and provably means the same runs as a finite automaton (`regex-automata`), whose time is
//! linear in the subject, and as one whose time is also short (`bits`) where a subject could make
//! the former slow. All else runs on PCRE2's interpreter, within bounds ([`STEPS_MAX`]). Where
//! those are reached, a regular pattern that is as wide or wider may still say that there is no
//! match (`verdict`). Where it does not, or a subject is not UTF-8 though the pattern asks for it,
//! the match is [`Undecided`]: that is neither yes nor no, and the server must not take it for
//! either. Of long lists a [`Prefilter`] says which patterns must be asked at all.
//!
//! Deliberately not here: requests, variables, logs, configuration. The references are
//! pcre2pattern(3) and `src/pcre2_compile.c` of PCRE2 10.46, and `src/core/ngx_regex.c` of nginx
//! 1.31 for options and words.

use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

use aho_corasick::AhoCorasick;
use regex_automata::util::primitives::NonMaxUsize;
use regex_automata::{Input, meta};

pub mod ast;
mod beyond;
mod bits;
mod class;
#[cfg(any(test, feature = "differential"))]
pub mod differential;
mod escape;
mod graph;
mod literal;
mod lower;
pub mod parser;
mod pcre;
mod prefilter;
mod verdict;

use ast::Ast;
pub use beyond::IrregularFeature;
use bits::{BitMatch, Bits};
use graph::Graph;
pub use pcre::{DEPTH_MAX, MEMORY_MAX_KIB, STEPS_MAX, STEPS_MAX_OF_BACK_REFERENCES};
use pcre::{Pcre, STEPS_MAX_BEFORE_BITS};
pub use prefilter::{Hit, Prefilter};
use verdict::{MatchDecision, Verdict};

/// The largest automaton in bytes; what would be larger runs on PCRE2.
pub const AUTOMATON_SIZE_MAX: usize = 10 << 20;
/// Memory for states that an automaton has met, in bytes per thread and pattern.
const STATES_SIZE_MAX: usize = 2 << 20;
/// An automaton of at most so many states decides about every subject.
const STATES_MAX_FOR_ALL: usize = 64;
/// A larger one decides as long as its states times the subject's bytes are at most this: where a
/// subject leads it to ever new sets of states, it visits all of them for each byte, which takes
/// about 10 ns a state.
const VISITS_MAX: usize = 250_000;
/// From so many states on, [`Bits`] are made with the configuration, not with the first subject
/// that needs them.
const STATES_MIN_FOR_EARLY_BITS: usize = 2_000;

/// A compiled pattern, by automata or PCRE2.
#[derive(Debug)]
pub struct Pattern {
    text: Box<str>,
    caseless: bool,
    names: Box<[(usize, String)]>,
    groups: usize,
    engine: OnceLock<Engine>,
    /// What decides where the engine would take too long; nothing if the pattern is not regular, or
    /// too large for it.
    bits: OnceLock<Option<Box<Bits>>>,
    /// What decides whether there is a match where there are no bits, as far as that goes.
    verdict: OnceLock<Option<Box<Verdict>>>,
}

/// What runs a pattern first.
#[derive(Debug)]
enum Engine {
    Automaton {
        regex: meta::Regex,
        /// Subjects that end in a line feed are not its.
        rejects_trailing_newline: bool,
        /// About how many states it has, before any is met.
        states: usize,
        /// Texts one of which is in every subject that the pattern matches, if there are such.
        texts: OnceLock<Option<AhoCorasick>>,
        /// For subjects that neither it nor [`Bits`] can decide about.
        pcre: OnceLock<Option<Box<Pcre>>>,
    },
    Bits,
    /// PCRE2, because of this.
    Pcre(Box<Pcre>, IrregularFeature),
}

/// A pattern that PCRE2 refuses, in nginx's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    text: Box<str>,
}

impl Refusal {
    /// `ngx_regex_compile`: what is wrong, in which pattern, and what follows the place.
    fn new(pattern: &str, error: &pcre2::Error) -> Refusal {
        let offset = error.offset().unwrap_or_default();
        let shown = error.to_string();
        let words = shown.strip_prefix(&format!(
            "PCRE2: error compiling pattern at offset {offset}: "
        ));
        let words = words.unwrap_or(&shown);
        let at = match pattern.as_bytes().get(offset..) {
            Some(rest @ [_, ..]) => format!(" at \"{}\"", String::from_utf8_lossy(rest)),
            _ => String::new(),
        };
        Refusal {
            text: format!("pcre2_compile() failed: {words} in \"{pattern}\"{at}").into(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}

/// A match that PCRE2 could not decide: it reached a bound, or the subject is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undecided {
    /// PCRE2's number, as nginx logs it: -47 for steps, -53 for depth, -63 for memory, -3 to -23
    /// for UTF-8.
    pub code: i32,
}

impl Undecided {
    /// Whether a bound was reached.
    fn is_bound(self) -> bool {
        matches!(self.code, -47 | -53 | -63)
    }
}

/// Where the groups of a match lie; the first is the whole match. Its memory is used again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    slots: Vec<Option<NonMaxUsize>>,
}

impl Spans {
    /// Where a group has matched, if it has.
    pub fn get(&self, group: usize) -> Option<Range<usize>> {
        let start = (*self.slots.get(group * 2)?)?.get();
        let end = (*self.slots.get(group * 2 + 1)?)?.get();
        // `\K` within a call of a group can move the start behind the end.
        (start <= end).then_some(start..end)
    }

    /// How many groups there are, with those that have not matched.
    pub fn len(&self) -> usize {
        self.slots.len() / 2
    }

    /// Whether there has been no match.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Forgets the places of all groups.
    pub fn clear(&mut self) {
        self.slots.clear();
    }

    fn fill(&mut self, groups: impl Iterator<Item = Option<(usize, usize)>>) {
        self.slots.clear();
        for group in groups {
            let (start, end) = group.unzip();
            self.slots.push(start.and_then(NonMaxUsize::new));
            self.slots.push(end.and_then(NonMaxUsize::new));
        }
    }
}

impl Pattern {
    /// Compiles a pattern; `caseless` is nginx's `~*`.
    pub fn new(pattern: &[u8], caseless: bool) -> Result<Pattern, Refusal> {
        let pattern = Pattern::deferred(pattern, caseless)?;
        pattern.prepare();
        Ok(pattern)
    }

    /// Asks PCRE2 about a pattern that is seldom matched: unless [`Pattern::prepare`] is called,
    /// the first subject makes a small engine for it.
    pub fn deferred(pattern: &[u8], caseless: bool) -> Result<Pattern, Refusal> {
        let (text, pcre) = compile(pattern, caseless, STEPS_MAX)?;
        Ok(Pattern::with(text, caseless, &pcre))
    }

    /// Compiles a pattern that will match once: an automaton would take longer to build than it
    /// could spare.
    pub fn for_one_match(pattern: &[u8]) -> Result<Pattern, Refusal> {
        let (text, pcre) = compile(pattern, false, STEPS_MAX)?;
        let pattern = Pattern::with(text, false, &pcre);
        let engine = Engine::Pcre(Box::new(pcre), IrregularFeature::OneMatch);
        // It is new, so nothing is set.
        let _ = pattern.engine.set(engine);
        Ok(pattern)
    }

    fn with(text: String, caseless: bool, pcre: &Pcre) -> Pattern {
        let names = pcre.names().iter().cloned().enumerate();
        let names = names.filter_map(|(group, name)| Some((group, name?)));
        Pattern {
            text: text.into(),
            caseless,
            names: names.collect(),
            groups: pcre.names().len(),
            engine: OnceLock::new(),
            bits: OnceLock::new(),
            verdict: OnceLock::new(),
        }
    }

    /// Makes the engine that is fastest for ordinary subjects.
    pub fn prepare(&self) {
        self.engine.get_or_init(|| {
            self.automaton()
                .unwrap_or_else(|beyond| self.pcre_engine(beyond))
        });
    }

    /// The pattern as written; bytes that are not UTF-8 as escapes.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How many groups it has, with the whole match.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Names of groups with their numbers.
    pub fn names(&self) -> &[(usize, String)] {
        &self.names
    }

    /// Why it runs on PCRE2; `None` if it runs as an automaton.
    pub fn beyond(&self) -> Option<IrregularFeature> {
        match self.engine() {
            Engine::Automaton { .. } | Engine::Bits => None,
            Engine::Pcre(_, beyond) => Some(*beyond),
        }
    }

    /// Whether the subject matches the pattern.
    pub fn is_match(&self, subject: &[u8]) -> Result<bool, Undecided> {
        match self.engine() {
            Engine::Automaton { regex, .. } if self.automaton_decides(subject) => {
                Ok(regex.is_match(subject))
            }
            Engine::Automaton { texts, .. } if self.lacks_texts(texts, subject) => Ok(false),
            Engine::Automaton { regex, pcre, .. } => self.decide(regex, pcre, subject, None),
            Engine::Bits => {
                let bits = self.bits().ok_or(Undecided { code: NO_MEMORY })?;
                Ok(bits.is_match(subject))
            }
            Engine::Pcre(pcre, _) => match pcre.matches(subject, None) {
                Err(undecided) if undecided.is_bound() => match self.answer(subject) {
                    MatchDecision::Yes { .. } => Ok(true),
                    MatchDecision::No => Ok(false),
                    MatchDecision::Unknown => Err(undecided),
                },
                decided => decided,
            },
        }
    }

    /// Whether it matches, and where its groups lie. Without a match, the spans hold nothing of
    /// meaning.
    pub fn captures(&self, subject: &[u8], spans: &mut Spans) -> Result<bool, Undecided> {
        match self.engine() {
            Engine::Automaton { regex, .. } if self.automaton_decides(subject) => {
                Ok(self.automaton_captures(regex, subject, spans))
            }
            Engine::Automaton { texts, .. } if self.lacks_texts(texts, subject) => Ok(false),
            Engine::Automaton { regex, pcre, .. } => match self.bits_capture(subject, spans) {
                Some(found) => Ok(found),
                None => self.decide(regex, pcre, subject, Some(spans)),
            },
            Engine::Bits => {
                let found = self.bits_capture(subject, spans);
                found.ok_or(Undecided { code: NO_MEMORY })
            }
            Engine::Pcre(pcre, _) => match pcre.matches(subject, Some(spans)) {
                Err(undecided) if undecided.is_bound() => match self.bits_capture(subject, spans) {
                    Some(found) => Ok(found),
                    None if self.answer(subject) == MatchDecision::No => Ok(false),
                    None => Err(undecided),
                },
                decided => decided,
            },
        }
    }

    /// Decides about a subject for which the automaton would visit too many states: first whether
    /// there can be a match, then PCRE2, which mostly finds it soon, and the automaton last.
    fn decide(
        &self,
        regex: &meta::Regex,
        pcre: &OnceLock<Option<Box<Pcre>>>,
        subject: &[u8],
        mut spans: Option<&mut Spans>,
    ) -> Result<bool, Undecided> {
        let from = match self.answer(subject) {
            MatchDecision::No => return Ok(false),
            MatchDecision::Yes { .. } if spans.is_none() => return Ok(true),
            // `\G` is the place where PCRE2 begins.
            MatchDecision::Yes { from } if !self.text.contains("\\G") => from,
            MatchDecision::Yes { .. } | MatchDecision::Unknown => 0,
        };
        let found = self
            .pcre(pcre)?
            .matches_from(subject, from, spans.as_deref_mut());
        match (found, spans) {
            (Err(undecided), spans) if undecided.is_bound() && self.means_the_same(subject) => {
                Ok(match spans {
                    Some(spans) => self.automaton_captures(regex, subject, spans),
                    None => regex.is_match(subject),
                })
            }
            (found, _) => found,
        }
    }

    /// Its meaning, where that is regular.
    pub(crate) fn parsed(&self) -> Result<Ast, IrregularFeature> {
        let parsed = parser::parse(self.text.as_bytes(), self.caseless)?;
        if parsed.groups as usize + 1 != self.groups {
            return Err(IrregularFeature::Refused);
        }
        Ok(parsed.ast)
    }

    fn engine(&self) -> &Engine {
        self.engine.get_or_init(|| match self.bits() {
            Some(_) => Engine::Bits,
            None => self
                .automaton()
                .unwrap_or_else(|beyond| self.pcre_engine(beyond)),
        })
    }

    /// Whether the automaton is quick enough with every subject of this length, and means the same.
    fn automaton_decides(&self, subject: &[u8]) -> bool {
        let Some(Engine::Automaton { states, .. }) = self.engine.get() else {
            return false;
        };
        let is_quick =
            *states <= STATES_MAX_FOR_ALL || states.saturating_mul(subject.len()) <= VISITS_MAX;
        is_quick && self.means_the_same(subject)
    }

    /// Whether the automaton means the same as PCRE2 with this subject.
    fn means_the_same(&self, subject: &[u8]) -> bool {
        let minds = matches!(
            self.engine.get(),
            Some(Engine::Automaton {
                rejects_trailing_newline: true,
                ..
            })
        );
        !minds || subject.last() != Some(&b'\n')
    }

    fn automaton_captures(&self, regex: &meta::Regex, subject: &[u8], spans: &mut Spans) -> bool {
        spans.slots.clear();
        spans.slots.resize(self.groups * 2, None);
        let found = regex.search_slots(&Input::new(subject), &mut spans.slots);
        found.is_some()
    }

    /// Whether the subject has none of the texts that a match needs.
    fn lacks_texts(&self, texts: &OnceLock<Option<AhoCorasick>>, subject: &[u8]) -> bool {
        let texts =
            texts.get_or_init(|| literal::automaton(&literal::needed(&self.parsed().ok()?, 1)?));
        texts.as_ref().is_some_and(|texts| !texts.is_match(subject))
    }

    fn bits(&self) -> Option<&Bits> {
        let make = || {
            let graph = Graph::new(&self.parsed().ok()?).ok()?;
            Bits::new(graph, self.groups).ok().map(Box::new)
        };
        self.bits.get_or_init(make).as_deref()
    }

    fn verdict(&self) -> Option<&Verdict> {
        let make = || Verdict::new(self.text.as_bytes(), self.caseless).map(Box::new);
        self.verdict.get_or_init(make).as_deref()
    }

    /// Whether it matches, as far as bits or the verdict know.
    fn answer(&self, subject: &[u8]) -> MatchDecision {
        match self.bits() {
            Some(bits) if bits.is_match(subject) => MatchDecision::Yes { from: 0 },
            Some(_) => MatchDecision::No,
            None => self
                .verdict()
                .map_or(MatchDecision::Unknown, |verdict| verdict.answer(subject)),
        }
    }

    /// `None` where there are no bits, or it matches and those of all places would take too much
    /// memory.
    fn bits_capture(&self, subject: &[u8], spans: &mut Spans) -> Option<bool> {
        let bits = self.bits()?;
        match bits.captures(subject, &mut spans.slots) {
            BitMatch::Match => Some(true),
            BitMatch::Nothing => Some(false),
            BitMatch::TooLong => (!bits.is_match(subject)).then_some(false),
        }
    }

    fn automaton(&self) -> Result<Engine, IrregularFeature> {
        let ast = self.parsed()?;
        let lowered = lower::lower(&ast)?;
        let config = meta::Config::new()
            .utf8_empty(false)
            .nfa_size_limit(Some(AUTOMATON_SIZE_MAX))
            .hybrid_cache_capacity(STATES_SIZE_MAX);
        let regex = meta::Builder::new()
            .configure(config)
            .build_from_hir(&lowered.hir);
        let regex = regex.map_err(|_| IrregularFeature::TooLarge)?;
        let states = ast.states();
        let texts = OnceLock::new();
        if states >= STATES_MIN_FOR_EARLY_BITS {
            if self.bits().is_none() {
                self.verdict();
            }
            self.lacks_texts(&texts, b"");
        }
        Ok(Engine::Automaton {
            regex,
            rejects_trailing_newline: lowered.rejects_trailing_newline,
            states,
            texts,
            pcre: OnceLock::new(),
        })
    }

    fn pcre_engine(&self, beyond: IrregularFeature) -> Engine {
        // Where bits can decide, they do so before PCRE2 has taken long.
        let steps = match beyond {
            _ if self.bits().is_some() => STEPS_MAX_BEFORE_BITS,
            IrregularFeature::BackReference => STEPS_MAX_OF_BACK_REFERENCES,
            _ => STEPS_MAX,
        };
        match Pcre::new(&self.text, self.caseless, steps) {
            Ok(pcre) => Engine::Pcre(Box::new(pcre), beyond),
            // PCRE2 has taken it before, so only a lack of memory can be the reason.
            Err(_) => Engine::Bits,
        }
    }

    fn pcre<'a>(&self, kept: &'a OnceLock<Option<Box<Pcre>>>) -> Result<&'a Pcre, Undecided> {
        let compile = || {
            let pcre = Pcre::new(&self.text, self.caseless, STEPS_MAX);
            pcre.ok().map(Box::new)
        };
        let pcre = kept.get_or_init(compile).as_deref();
        pcre.ok_or(Undecided { code: NO_MEMORY })
    }
}

const NO_MEMORY: i32 = -48;

/// PCRE2's verdict on a pattern.
fn compile(pattern: &[u8], caseless: bool, steps: u32) -> Result<(String, Pcre), Refusal> {
    let text = as_text(pattern);
    if text.as_bytes() != pattern && text.starts_with("(*UTF") {
        let text = format!("pcre2_compile() failed: UTF-8 error: illegal byte in \"{text}\"");
        return Err(Refusal { text: text.into() });
    }
    let pcre = Pcre::new(&text, caseless, steps)?;
    Ok((text, pcre))
}

/// PCRE2's binding takes text. A byte that is no part of UTF-8 becomes an escape, which means the
/// same in a pattern of bytes; one in `\Q...\E` stands outside of it then.
fn as_text(pattern: &[u8]) -> String {
    let mut text = String::with_capacity(pattern.len());
    let (mut quoted, mut escaped) = (false, false);
    for chunk in pattern.utf8_chunks() {
        for char in chunk.valid().chars() {
            text.push(char);
            match char {
                'Q' if escaped => quoted = true,
                'E' if escaped => quoted = false,
                _ => {}
            }
            // Within `\Q`, each backslash may begin `\E`.
            escaped = char == '\\' && (quoted || !escaped);
        }
        for byte in chunk.invalid() {
            if escaped && !quoted {
                text.pop();
            }
            escaped = false;
            let escape = format!("\\x{byte:02x}");
            text += &if quoted {
                format!("\\E{escape}\\Q")
            } else {
                escape
            };
        }
    }
    text
}

#[cfg(test)]
mod tests;
