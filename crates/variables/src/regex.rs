//! Regular expressions of configurations, and the captures that they leave in a context.
//!
//! The crate `pattern` compiles and matches patterns. This file makes variables of named groups,
//! and logs a match that hit a limit as nginx does.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use conf::Fault;
use framework::compile::Compiler;
use logs::{Printable, Subject};
use pattern::{Pattern, Prefilter};

pub use pattern::{Hit, Spans, Undecided};

use crate::{Compiling as _, Context, Source, Variable};

/// A compiled pattern with the variables that its named groups assign.
pub struct Regex<C> {
    pattern: Pattern,
    names: Vec<(usize, Variable<C>)>,
}

impl<C> fmt::Debug for Regex<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pattern.fmt(f)
    }
}

impl<C: Context> Regex<C> {
    /// Compiles a pattern, and defines a variable for each named group. Errors have nginx's text.
    pub fn new(compiler: &Compiler<'_>, pattern: &[u8], caseless: bool) -> Result<Regex<C>, Fault> {
        let regex = Regex::of_list(compiler, pattern, caseless)?;
        regex.pattern.prepare();
        Ok(regex)
    }

    /// Compiles a pattern of a list that may be long: [`Regexes`] prepares the patterns that are
    /// matched often.
    pub fn of_list(
        compiler: &Compiler<'_>,
        pattern: &[u8],
        caseless: bool,
    ) -> Result<Regex<C>, Fault> {
        let pattern = Pattern::deferred(pattern, caseless)
            .map_err(|refusal| Fault::new(refusal.to_string()).while_reading())?;
        let names = pattern.names().iter().map(|(group, name)| {
            let variable = compiler.define(name, Source::Assigned);
            Ok((*group, variable.map_err(Fault::new)?))
        });
        let names = names.collect::<Result<_, Fault>>()?;
        Ok(Regex { pattern, names })
    }

    /// The pattern as written.
    pub fn pattern(&self) -> &str {
        self.pattern.text()
    }

    /// Whether the pattern has groups besides the whole match.
    pub fn has_groups(&self) -> bool {
        self.pattern.groups() > 1
    }

    /// The number of groups, the whole match included.
    pub fn groups(&self) -> usize {
        self.pattern.groups()
    }

    /// Whether the pattern matches. Writes the groups to `spans`, and leaves the captures of
    /// contexts unchanged.
    pub fn locate(&self, subject: &[u8], spans: &mut Spans) -> Result<bool, Undecided> {
        self.pattern.captures(subject, spans)
    }

    /// Whether the pattern matches. Leaves the captures of contexts unchanged.
    pub fn is_match(&self, subject: &[u8]) -> Result<bool, Undecided> {
        self.pattern.is_match(subject)
    }

    /// Like [`Regex::matches`], for a regex that the prefilter of [`Regexes`] has reported as
    /// `hit`. If the prefilter is certain of the match, the regex is not evaluated again.
    pub fn matches_as(&self, context: &mut C, subject: &[u8], hit: Hit) -> Result<bool, Undecided> {
        match hit {
            Hit::Candidate => self.matches(context, subject),
            Hit::Match => {
                context.captures_mut().clear();
                Ok(true)
            }
        }
    }

    /// Matches the subject. If it matches, the groups become the context's captures, and the
    /// variables of named groups are assigned.
    pub fn matches(&self, context: &mut C, subject: &[u8]) -> Result<bool, Undecided> {
        if self.pattern.groups() <= 1 {
            // A pattern without groups also clears earlier captures.
            let matched = self.is_match(subject)?;
            if matched {
                context.captures_mut().clear();
            }
            return Ok(matched);
        }
        let captures = context.captures_mut();
        if !self.pattern.captures(subject, &mut captures.next)? {
            return Ok(false);
        }
        std::mem::swap(&mut captures.spans, &mut captures.next);
        captures.subject.clear();
        captures.subject.extend_from_slice(subject);
        for (group, variable) in &self.names {
            let value = Bytes::copy_from_slice(context.captures().group(*group));
            context.assign(*variable, value);
        }
        Ok(true)
    }

    /// Logs an alert about a match that hit a limit, like `ngx_http_regex_exec`. `doing` is the
    /// phrase at the end of the line; empty before there is a response.
    pub fn alert(&self, about: &dyn Subject, subject: &[u8], undecided: Undecided, doing: &str) {
        let text = self.undecided(subject, undecided);
        logs::error!(about, Alert, "{text}{doing}");
    }

    /// The text of the alert about a match that hit a limit.
    pub fn undecided(&self, subject: &[u8], undecided: Undecided) -> String {
        undecided_message(undecided, subject, self.pattern())
    }
}

fn undecided_message(undecided: Undecided, subject: &[u8], pattern: &str) -> String {
    let (code, subject) = (undecided.code, Printable(subject));
    format!("pcre2_match() failed: {code} on \"{subject}\" using \"{pattern}\"")
}

/// A list of values with a regex each, for searches of the first value whose regex matches.
#[derive(Debug)]
pub struct Regexes<R> {
    all: Vec<R>,
    /// Finds the regexes that may match. `None` while values are added; every regex is tried then.
    prefilter: Option<Prefilter>,
}

impl<R> Default for Regexes<R> {
    fn default() -> Regexes<R> {
        Regexes {
            all: Vec::new(),
            prefilter: None,
        }
    }
}

impl<R> Regexes<R> {
    /// A list of these values, prepared for fast searches.
    pub fn new<C>(all: Vec<R>, regex: impl Fn(&R) -> &Regex<C>) -> Regexes<R> {
        let mut regexes = Regexes {
            all,
            prefilter: None,
        };
        regexes.finish(regex);
        regexes
    }

    /// Adds a value at the end.
    pub fn push(&mut self, one: R) {
        self.all.push(one);
        self.prefilter = None;
    }

    /// Prepares the list for fast searches, once it is complete.
    pub fn finish<C>(&mut self, regex: impl Fn(&R) -> &Regex<C>) {
        let patterns = self.all.iter().map(|one| &regex(one).pattern);
        self.prefilter = Some(Prefilter::new(patterns));
    }

    /// All values, in order.
    pub fn all(&self) -> &[R] {
        &self.all
    }

    /// The first value for which `matches` is true. `matches` is called in order, with index and
    /// value, for the values whose regex may match `subject`.
    pub fn first<'a, E>(
        &'a self,
        subject: &[u8],
        mut matches: impl FnMut(usize, &'a R, Hit) -> Result<bool, E>,
    ) -> Result<Option<&'a R>, E> {
        let Some(prefilter) = &self.prefilter else {
            for (place, one) in self.all.iter().enumerate() {
                if matches(place, one, Hit::Candidate)? {
                    return Ok(Some(one));
                }
            }
            return Ok(None);
        };
        let found = prefilter.first(subject, |place, hit| match self.all.get(place) {
            Some(one) => matches(place, one, hit),
            None => Ok(false),
        })?;
        Ok(found.and_then(|place| self.all.get(place)))
    }
}

/// A group of a match: its name, if it has one, and its byte range in the subject.
pub type Group = (Option<String>, Range<usize>);

/// Why [`match_once`] failed, with the text for the log.
#[derive(Debug)]
pub enum MatchError {
    /// The pattern is invalid.
    Pattern(String),
    /// The match hit a limit.
    Undecided(String),
}

/// Compiles a pattern that is part of a response (SSI), and matches it once. `None` if it does not
/// match.
pub fn match_once(pattern: &[u8], subject: &[u8]) -> Result<Option<Vec<Group>>, MatchError> {
    let pattern = Pattern::for_one_match(pattern)
        .map_err(|refusal| MatchError::Pattern(refusal.to_string()))?;
    let mut spans = Spans::default();
    let matched = pattern.captures(subject, &mut spans).map_err(|undecided| {
        MatchError::Undecided(undecided_message(undecided, subject, pattern.text()))
    })?;
    if !matched {
        return Ok(None);
    }
    // As with pcre2_match(3), groups after the last that has matched do not exist.
    let matched = (0..spans.len())
        .rev()
        .find(|group| spans.get(*group).is_some());
    let mut groups: Vec<Group> = (0..=matched.unwrap_or(0))
        .map(|group| (None, spans.get(group).unwrap_or_default()))
        .collect();
    for (group, name) in pattern.names() {
        if let Some((known, _)) = groups.get_mut(*group) {
            *known = Some(name.clone());
        }
    }
    Ok(Some(groups))
}

/// The groups of the last match of a context. The memory is reused by the next match.
#[derive(Clone, Debug, Default)]
pub struct Captures {
    subject: Vec<u8>,
    spans: Spans,
    /// A buffer for the groups of the next match, so that a failed match leaves the captures
    /// unchanged.
    next: Spans,
}

impl Captures {
    /// The text of a group; empty if there is none.
    pub fn group(&self, number: usize) -> &[u8] {
        self.spans
            .get(number)
            .and_then(|span| self.subject.get(span))
            .unwrap_or_default()
    }

    /// Whether there are no captures.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Clears all groups, keeping the capacity.
    pub fn clear(&mut self) {
        self.subject.clear();
        self.spans.clear();
    }
}
