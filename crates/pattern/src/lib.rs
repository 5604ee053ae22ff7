//! nginx's patterns: PCRE2's language, matched in linear time if the result is provably the same.
//!
//! Every pattern is compiled by PCRE2 when a configuration is loaded, so that exactly the patterns
//! that PCRE2 rejects are rejected, with its messages. Then this crate's [`parser`] parses the
//! pattern. A regular pattern that provably means the same runs as a finite automaton
//! (`regex-automata`), which takes linear time, or, for subjects that could make that automaton
//! slow, as a second automaton whose time per byte is bounded (`bits`). All other patterns run on
//! PCRE2's interpreter within limits ([`STEPS_MAX`]). If a limit is reached, a regular pattern that
//! matches at least the same subjects may still show that there is no match (`verdict`). If it does
//! not, or if the pattern requires UTF-8 and the subject is not UTF-8, the match is [`Undecided`]:
//! neither yes nor no, and the server must not treat it as either. For long lists, a [`Prefilter`]
//! determines which patterns need to be matched at all.
//!
//! Deliberately not here: requests, variables, logs, configuration. The references are
//! pcre2pattern(3) and `src/pcre2_compile.c` of PCRE2 10.46, and, for options and messages,
//! `src/core/ngx_regex.c` of nginx 1.31.

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

/// Maximum size of an automaton in bytes; patterns with a larger one run on PCRE2.
pub const AUTOMATON_SIZE_MAX: usize = 10 << 20;
/// Maximum memory for the lazily built states of an automaton, in bytes per thread and pattern.
const STATES_SIZE_MAX: usize = 2 << 20;
/// An automaton with at most this many states is used for all subjects.
const STATES_MAX_FOR_ALL: usize = 64;
/// A larger automaton is used if its number of states times the subject's length in bytes is at
/// most this: in the worst case it visits all states for each byte, which takes about 10 ns per
/// state.
const VISITS_MAX: usize = 250_000;
/// Patterns with at least this many states get their [`Bits`] when the configuration is loaded,
/// instead of with the first subject that needs them.
const STATES_MIN_FOR_EARLY_BITS: usize = 2_000;

/// A compiled pattern, run by an automaton or by PCRE2.
#[derive(Debug)]
pub struct Pattern {
    text: Box<str>,
    caseless: bool,
    /// Numbers and names of named groups.
    names: Box<[(usize, String)]>,
    /// Number of groups, including the whole match.
    groups: usize,
    engine: OnceLock<Engine>,
    /// The automaton for subjects for which the engine could take too long; `None` if the pattern
    /// is not regular or too large.
    bits: OnceLock<Option<Box<Bits>>>,
    /// The automaton that only decides whether there is a match, for patterns without `bits`;
    /// `None` if there is none.
    verdict: OnceLock<Option<Box<Verdict>>>,
}

/// The engine that is tried first.
#[derive(Debug)]
enum Engine {
    Automaton {
        regex: meta::Regex,
        /// Whether the automaton may not be used for subjects that end with a line feed.
        rejects_trailing_newline: bool,
        /// The approximate number of states, before any are built.
        states: usize,
        /// Texts of which every matching subject contains at least one, if known.
        texts: OnceLock<Option<AhoCorasick>>,
        /// PCRE2, for subjects that neither this automaton nor [`Bits`] can decide.
        pcre: OnceLock<Option<Box<Pcre>>>,
    },
    Bits,
    /// PCRE2, and the reason for its use.
    Pcre(Box<Pcre>, IrregularFeature),
}

/// A pattern that PCRE2 rejects, with nginx's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    text: Box<str>,
}

impl Refusal {
    /// The message of `ngx_regex_compile`: the error, the pattern, and the rest of the pattern from
    /// the position of the error.
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

/// A match that PCRE2 could not decide: it reached a limit, or the subject is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undecided {
    /// PCRE2's error number, as nginx logs it: -47 for steps, -53 for depth, -63 for memory, -3 to
    /// -23 for UTF-8.
    pub code: i32,
}

impl Undecided {
    /// Whether a limit was reached.
    fn is_bound(self) -> bool {
        matches!(self.code, -47 | -53 | -63)
    }
}

/// The positions of the groups of a match; the first is the whole match. The memory is reused by
/// later matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    slots: Vec<Option<NonMaxUsize>>,
}

impl Spans {
    /// The position of a group; `None` if the group has not matched.
    pub fn get(&self, group: usize) -> Option<Range<usize>> {
        let start = (*self.slots.get(group * 2)?)?.get();
        let end = (*self.slots.get(group * 2 + 1)?)?.get();
        // `\K` within a called group can move the start beyond the end.
        (start <= end).then_some(start..end)
    }

    /// Number of groups, including those that have not matched.
    pub fn len(&self) -> usize {
        self.slots.len() / 2
    }

    /// Whether there was no match.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Removes the positions of all groups.
    pub fn clear(&mut self) {
        self.slots.clear();
    }

    /// Stores the positions of the groups.
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
    /// Compiles a pattern; `caseless` as with nginx's `~*`.
    pub fn new(pattern: &[u8], caseless: bool) -> Result<Pattern, Refusal> {
        let pattern = Pattern::deferred(pattern, caseless)?;
        pattern.prepare();
        Ok(pattern)
    }

    /// Compiles a pattern that is rarely matched, without an engine. Unless [`Pattern::prepare`] is
    /// called, the first subject builds an engine that takes little memory.
    pub fn deferred(pattern: &[u8], caseless: bool) -> Result<Pattern, Refusal> {
        let (text, pcre) = compile(pattern, caseless, STEPS_MAX)?;
        Ok(Pattern::with(text, caseless, &pcre))
    }

    /// Compiles a pattern that will be matched once. It runs on PCRE2: building an automaton would
    /// take longer than the automaton could save.
    pub fn for_one_match(pattern: &[u8]) -> Result<Pattern, Refusal> {
        let (text, pcre) = compile(pattern, false, STEPS_MAX)?;
        let pattern = Pattern::with(text, false, &pcre);
        let engine = Engine::Pcre(Box::new(pcre), IrregularFeature::OneMatch);
        // The pattern is new, so the engine cannot be set yet.
        let _ = pattern.engine.set(engine);
        Ok(pattern)
    }

    /// A pattern that PCRE2 has compiled, without an engine.
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

    /// Builds the engine that is fastest for ordinary subjects, unless the pattern has an engine.
    pub fn prepare(&self) {
        self.engine.get_or_init(|| {
            self.automaton()
                .unwrap_or_else(|beyond| self.pcre_engine(beyond))
        });
    }

    /// The pattern as written, with bytes that are not UTF-8 as escapes.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Number of groups, including the whole match.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Numbers and names of the named groups.
    pub fn names(&self) -> &[(usize, String)] {
        &self.names
    }

    /// The reason why the pattern runs on PCRE2; `None` if it runs as an automaton.
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

    /// Whether the pattern matches; if so, stores the positions of its groups. Without a match, the
    /// content of `spans` is unspecified.
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

    /// Decides a subject for which the automaton could visit too many states: first by whether
    /// there can be a match, then by PCRE2, which mostly finds the match soon, and last by the
    /// automaton.
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
            // `\G` matches where PCRE2 starts, which must then be the start of the subject.
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

    /// The pattern's syntax tree, if the pattern is regular.
    pub(crate) fn parsed(&self) -> Result<Ast, IrregularFeature> {
        let parsed = parser::parse(self.text.as_bytes(), self.caseless)?;
        if parsed.groups as usize + 1 != self.groups {
            return Err(IrregularFeature::Refused);
        }
        Ok(parsed.ast)
    }

    /// The engine; if there is none yet, `bits` or, for patterns without, the usual engine.
    fn engine(&self) -> &Engine {
        self.engine.get_or_init(|| match self.bits() {
            Some(_) => Engine::Bits,
            None => self
                .automaton()
                .unwrap_or_else(|beyond| self.pcre_engine(beyond)),
        })
    }

    /// Whether the automaton is fast enough for all subjects of this length, and gives PCRE2's
    /// result for this one.
    fn automaton_decides(&self, subject: &[u8]) -> bool {
        let Some(Engine::Automaton { states, .. }) = self.engine.get() else {
            return false;
        };
        let is_quick =
            *states <= STATES_MAX_FOR_ALL || states.saturating_mul(subject.len()) <= VISITS_MAX;
        is_quick && self.means_the_same(subject)
    }

    /// Whether the automaton gives PCRE2's result for this subject.
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

    /// Whether the subject contains none of the texts of which a match needs one.
    fn lacks_texts(&self, texts: &OnceLock<Option<AhoCorasick>>, subject: &[u8]) -> bool {
        let texts =
            texts.get_or_init(|| literal::automaton(&literal::needed(&self.parsed().ok()?, 1)?));
        texts.as_ref().is_some_and(|texts| !texts.is_match(subject))
    }

    /// The pattern's `bits`, compiled with the first call.
    fn bits(&self) -> Option<&Bits> {
        let make = || {
            let graph = Graph::new(&self.parsed().ok()?).ok()?;
            Bits::new(graph, self.groups).ok().map(Box::new)
        };
        self.bits.get_or_init(make).as_deref()
    }

    /// The pattern's verdict, compiled with the first call.
    fn verdict(&self) -> Option<&Verdict> {
        let make = || Verdict::new(self.text.as_bytes(), self.caseless).map(Box::new);
        self.verdict.get_or_init(make).as_deref()
    }

    /// Whether the pattern matches, as far as `bits` or the verdict can tell.
    fn answer(&self, subject: &[u8]) -> MatchDecision {
        match self.bits() {
            Some(bits) if bits.is_match(subject) => MatchDecision::Yes { from: 0 },
            Some(_) => MatchDecision::No,
            None => self
                .verdict()
                .map_or(MatchDecision::Unknown, |verdict| verdict.answer(subject)),
        }
    }

    /// Searches groups with `bits`. `None` if there are no `bits`, or if the pattern matches but
    /// the rows of all positions would take too much memory.
    fn bits_capture(&self, subject: &[u8], spans: &mut Spans) -> Option<bool> {
        let bits = self.bits()?;
        match bits.captures(subject, &mut spans.slots) {
            BitMatch::Match => Some(true),
            BitMatch::Nothing => Some(false),
            BitMatch::TooLong => (!bits.is_match(subject)).then_some(false),
        }
    }

    /// Builds an automaton; an error if the pattern is not regular or too large.
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

    /// Builds an engine that runs on PCRE2.
    fn pcre_engine(&self, beyond: IrregularFeature) -> Engine {
        // If `bits` can decide, they should do so before PCRE2 has taken much time.
        let steps = match beyond {
            _ if self.bits().is_some() => STEPS_MAX_BEFORE_BITS,
            IrregularFeature::BackReference => STEPS_MAX_OF_BACK_REFERENCES,
            _ => STEPS_MAX,
        };
        match Pcre::new(&self.text, self.caseless, steps) {
            Ok(pcre) => Engine::Pcre(Box::new(pcre), beyond),
            // PCRE2 has accepted the pattern before, so this can only be a lack of memory.
            Err(_) => Engine::Bits,
        }
    }

    /// PCRE2 for the subjects of an automaton, compiled with the first call.
    fn pcre<'a>(&self, kept: &'a OnceLock<Option<Box<Pcre>>>) -> Result<&'a Pcre, Undecided> {
        let compile = || {
            let pcre = Pcre::new(&self.text, self.caseless, STEPS_MAX);
            pcre.ok().map(Box::new)
        };
        let pcre = kept.get_or_init(compile).as_deref();
        pcre.ok_or(Undecided { code: NO_MEMORY })
    }
}

/// PCRE2's error number for a lack of memory.
const NO_MEMORY: i32 = -48;

/// Compiles a pattern with PCRE2; returns the pattern as text as well.
fn compile(pattern: &[u8], caseless: bool, steps: u32) -> Result<(String, Pcre), Refusal> {
    let text = as_text(pattern);
    if text.as_bytes() != pattern && text.starts_with("(*UTF") {
        let text = format!("pcre2_compile() failed: UTF-8 error: illegal byte in \"{text}\"");
        return Err(Refusal { text: text.into() });
    }
    let pcre = Pcre::new(&text, caseless, steps)?;
    Ok((text, pcre))
}

/// Converts a pattern to text, which PCRE2's binding requires. Bytes that are not UTF-8 become
/// escapes, which mean the same in a pattern of bytes; within `\Q...\E`, the quotation is
/// interrupted for an escape.
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
            // Within `\Q`, every backslash may be the first byte of `\E`.
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
