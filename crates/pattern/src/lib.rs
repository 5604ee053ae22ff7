//! Patterns as nginx has them: PCRE2's language, matched in linear time where that is provably the same.
//!
//! Every pattern is compiled by PCRE2 when a configuration is loaded, so what it refuses is refused in its words, and
//! what it takes is taken. Then our own [`parser`] reads the pattern. What is regular and provably means the same
//! runs as a finite automaton (`regex-automata`), whose time is linear in the subject; all else runs on PCRE2's
//! interpreter, within bounds ([`STEPS_MAX`]). Where those are reached, or a subject is not UTF-8 though the pattern asks
//! for it, the match is [`Undecided`]: that is neither yes nor no, and the server must not take it for either.
//!
//! Deliberately not here: requests, variables, logs, configuration. The references are pcre2pattern(3) and
//! `src/pcre2_compile.c` of PCRE2 10.46, and `src/core/ngx_regex.c` of nginx 1.31 for options and words.

use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

use regex_automata::util::primitives::NonMaxUsize;
use regex_automata::{Input, meta};

pub mod ast;
mod beyond;
mod class;
#[cfg(any(test, feature = "differential"))]
pub mod differential;
mod escape;
mod lower;
pub mod parser;
mod pcre;

pub use beyond::Beyond;
use pcre::Pcre;
pub use pcre::{DEPTH_MAX, MEMORY_MAX_KIB, STEPS_MAX};

/// The largest automaton in bytes; what would be larger runs on PCRE2.
pub const AUTOMATON_SIZE_MAX: usize = 10 << 20;
/// Memory for states that an automaton has met, in bytes per thread and pattern.
const STATES_SIZE_MAX: usize = 2 << 20;

/// A compiled pattern.
#[derive(Debug)]
pub struct Pattern {
    text: Box<str>,
    caseless: bool,
    engine: Engine,
    names: Vec<(usize, String)>,
    groups: usize,
}

#[derive(Debug)]
enum Engine {
    Automaton {
        regex: meta::Regex,
        /// Subjects that end in a line feed are PCRE2's, which is compiled (again) when the first of them comes.
        minds_last_line_feed: bool,
        pcre: OnceLock<Option<Box<Pcre>>>,
    },
    Pcre(Box<Pcre>, Beyond),
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
    /// PCRE2's number, as nginx logs it: -47 for steps, -53 for depth, -63 for memory, -3 to -23 for UTF-8.
    pub code: i32,
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

    /// Forgets all groups.
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
        let (text, pcre) = compile(pattern, caseless)?;
        let automaton = automaton(text.as_bytes(), caseless, pcre.names().len());
        Ok(Pattern::with(text, caseless, pcre, automaton))
    }

    /// Compiles a pattern that will match once: an automaton would take longer to build than it could spare.
    pub fn for_one_match(pattern: &[u8]) -> Result<Pattern, Refusal> {
        let (text, pcre) = compile(pattern, false)?;
        Ok(Pattern::with(text, false, pcre, Err(Beyond::OneMatch)))
    }

    fn with(
        text: String,
        caseless: bool,
        pcre: Pcre,
        automaton: Result<Engine, Beyond>,
    ) -> Pattern {
        let groups = pcre.names().len();
        let names = pcre.names().iter().cloned().enumerate();
        let names = names
            .filter_map(|(group, name)| Some((group, name?)))
            .collect();
        let engine = automaton.unwrap_or_else(|beyond| Engine::Pcre(Box::new(pcre), beyond));
        Pattern {
            text: text.into(),
            caseless,
            engine,
            names,
            groups,
        }
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
    pub fn beyond(&self) -> Option<Beyond> {
        match &self.engine {
            Engine::Automaton { .. } => None,
            Engine::Pcre(_, beyond) => Some(*beyond),
        }
    }

    /// Whether it matches.
    pub fn is_match(&self, subject: &[u8]) -> Result<bool, Undecided> {
        match self.automaton(subject) {
            Some(regex) => Ok(regex.is_match(subject)),
            None => self.pcre()?.matches(subject, None),
        }
    }

    /// Whether it matches, and where its groups lie. Without a match, the spans hold nothing of meaning.
    pub fn captures(&self, subject: &[u8], spans: &mut Spans) -> Result<bool, Undecided> {
        match self.automaton(subject) {
            Some(regex) => {
                spans.slots.clear();
                spans.slots.resize(self.groups * 2, None);
                let found = regex.search_slots(&Input::new(subject), &mut spans.slots);
                Ok(found.is_some())
            }
            None => self.pcre()?.matches(subject, Some(spans)),
        }
    }

    /// The automaton if it decides for this subject.
    fn automaton(&self, subject: &[u8]) -> Option<&meta::Regex> {
        match &self.engine {
            Engine::Automaton {
                regex,
                minds_last_line_feed,
                ..
            } => (!minds_last_line_feed || subject.last() != Some(&b'\n')).then_some(regex),
            Engine::Pcre(..) => None,
        }
    }

    fn pcre(&self) -> Result<&Pcre, Undecided> {
        match &self.engine {
            Engine::Automaton { pcre, .. } => {
                // It has been compiled before, so only a lack of memory can be the reason.
                let compile = || Pcre::new(&self.text, self.caseless).ok().map(Box::new);
                let pcre = pcre.get_or_init(compile).as_deref();
                pcre.ok_or(Undecided { code: NO_MEMORY })
            }
            Engine::Pcre(pcre, _) => Ok(pcre),
        }
    }
}

/// PCRE2_ERROR_NOMEMORY.
const NO_MEMORY: i32 = -48;

/// PCRE2's verdict on a pattern.
fn compile(pattern: &[u8], caseless: bool) -> Result<(String, Pcre), Refusal> {
    let text = as_text(pattern);
    if text.as_bytes() != pattern && text.starts_with("(*UTF") {
        let text = format!("pcre2_compile() failed: UTF-8 error: illegal byte in \"{text}\"");
        return Err(Refusal { text: text.into() });
    }
    let pcre = Pcre::new(&text, caseless)?;
    Ok((text, pcre))
}

fn automaton(pattern: &[u8], caseless: bool, groups: usize) -> Result<Engine, Beyond> {
    let parsed = parser::parse(pattern, caseless)?;
    if parsed.groups as usize + 1 != groups {
        return Err(Beyond::Refused);
    }
    let lowered = lower::lower(&parsed.ast)?;
    let config = meta::Config::new()
        .utf8_empty(false)
        .nfa_size_limit(Some(AUTOMATON_SIZE_MAX))
        .hybrid_cache_capacity(STATES_SIZE_MAX);
    let regex = meta::Builder::new()
        .configure(config)
        .build_from_hir(&lowered.hir);
    Ok(Engine::Automaton {
        regex: regex.map_err(|_| Beyond::TooLarge)?,
        minds_last_line_feed: lowered.minds_last_line_feed,
        pcre: OnceLock::new(),
    })
}

/// PCRE2's binding takes text. A byte that is no part of UTF-8 becomes an escape, which means the same in a pattern
/// of bytes; one in `\Q...\E` stands outside of it then.
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
