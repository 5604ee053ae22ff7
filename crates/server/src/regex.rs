//! Regular expressions of configurations: PCRE's language as far as two crates have it.
//!
//! `regex` runs in linear time and is used wherever it can; patterns with look-around or
//! back-references go to `fancy-regex` under a bound of backtracking, beyond which they do
//! not match. Matching is over bytes; `fancy-regex` sees text, so a subject that is not UTF-8
//! does not match there.

use std::ops::Range;

use bytes::Bytes;
use conf::Fault;

use crate::compile::Compiler;
use crate::http::request::Request;
use crate::variables::{Source, Variable};

/// Steps of backtracking after which a pattern with look-around gives up.
const BACKTRACK_LIMIT: usize = 100_000;

#[derive(Debug)]
enum Program {
    Linear(::regex::bytes::Regex),
    Backtracking(fancy_regex::Regex),
}

/// A compiled pattern with the variables that its named groups assign.
#[derive(Debug)]
pub struct Regex {
    program: Program,
    pattern: Box<str>,
    names: Vec<(usize, Variable)>,
    groups: usize,
    /// It may ask for the end of its subject.
    has_dollar: bool,
}

impl Regex {
    /// Compiles a pattern; named groups become variables. Error text as nginx words it.
    pub fn new(compiler: &Compiler<'_>, pattern: &str, caseless: bool) -> Result<Regex, Fault> {
        let program = program(pattern, caseless)
            .map_err(|error| Fault::new(format!("regex \"{pattern}\" failed: {error}")))?;
        let names = program.names();
        let groups = names.len();
        let mut assigned = Vec::new();
        for (group, name) in names.into_iter().enumerate() {
            if let Some(name) = name {
                let variable = compiler
                    .define(&name, Source::Assigned)
                    .map_err(Fault::new)?;
                assigned.push((group, variable));
            }
        }
        Ok(Regex {
            program,
            pattern: pattern.into(),
            has_dollar: pattern.contains('$'),
            names: assigned,
            groups,
        })
    }

    /// The pattern as written.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// How many groups it has, the whole match included.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Whether it matches, leaving captures alone.
    pub fn is_match(&self, subject: &[u8]) -> bool {
        self.program.is_match(subject)
            || self
                .without_last_line_feed(subject)
                .is_some_and(|subject| self.program.is_match(subject))
    }

    /// Matches and, on success, makes the groups the request's captures and assigns the named
    /// ones, as every regex evaluated in a request does.
    pub fn matches(&self, request: &mut Request, subject: &[u8]) -> bool {
        if self.groups <= 1 {
            // A pattern without groups still ends the life of earlier captures.
            let matched = self.is_match(subject);
            if matched {
                request.captures.clear();
            }
            return matched;
        }
        let shorter = || self.program.spans(self.without_last_line_feed(subject)?);
        let Some(spans) = self.program.spans(subject).or_else(shorter) else {
            return false;
        };
        for (group, variable) in &self.names {
            let value = spans
                .get(*group)
                .and_then(|span| subject.get(span.clone()))
                .unwrap_or_default();
            request.assign(*variable, Bytes::copy_from_slice(value));
        }
        request.captures.set(subject, spans);
        true
    }

    /// In PCRE, `$` also stands before a line feed that ends the subject; in the two crates it
    /// does not. Where such a subject does not match, it is tried without the line feed.
    fn without_last_line_feed<'a>(&self, subject: &'a [u8]) -> Option<&'a [u8]> {
        let shorter = subject.strip_suffix(b"\n");
        shorter.filter(|_| self.has_dollar)
    }
}

impl Program {
    fn names(&self) -> Vec<Option<String>> {
        let owned = |name: Option<&str>| name.map(str::to_owned);
        match self {
            Program::Linear(regex) => regex.capture_names().map(owned).collect(),
            Program::Backtracking(regex) => regex.capture_names().map(owned).collect(),
        }
    }

    fn is_match(&self, subject: &[u8]) -> bool {
        match self {
            Program::Linear(regex) => regex.is_match(subject),
            Program::Backtracking(regex) => std::str::from_utf8(subject)
                .is_ok_and(|subject| regex.is_match(subject).unwrap_or(false)),
        }
    }

    fn spans(&self, subject: &[u8]) -> Option<Vec<Range<usize>>> {
        match self {
            Program::Linear(regex) => {
                let found = regex.captures(subject)?;
                Some(
                    found
                        .iter()
                        .map(|group| group.map_or(0..0, |g| g.range()))
                        .collect(),
                )
            }
            Program::Backtracking(regex) => {
                let subject = std::str::from_utf8(subject).ok()?;
                let found = regex.captures(subject).ok().flatten()?;
                Some(
                    found
                        .iter()
                        .map(|group| group.map_or(0..0, |g| g.start()..g.end()))
                        .collect(),
                )
            }
        }
    }
}

fn program(pattern: &str, caseless: bool) -> Result<Program, String> {
    let linear = ::regex::bytes::RegexBuilder::new(pattern)
        .case_insensitive(caseless)
        .unicode(false)
        .build();
    let error = match linear {
        Ok(regex) => return Ok(Program::Linear(regex)),
        Err(error) => error,
    };
    let flagged = if caseless {
        format!("(?i){pattern}")
    } else {
        pattern.to_owned()
    };
    fancy_regex::RegexBuilder::new(&flagged)
        .backtrack_limit(BACKTRACK_LIMIT)
        .build()
        .map(Program::Backtracking)
        .map_err(|_| {
            error
                .to_string()
                .lines()
                .last()
                .unwrap_or("invalid")
                .trim()
                .to_owned()
        })
}

/// A group's name, if it has one, and where it matched.
pub type Group = (Option<String>, Range<usize>);

/// Matches a pattern that a response holds (SSI). `Ok(None)` where it does not match; `Err` holds words for
/// the log.
pub fn match_once(pattern: &str, subject: &[u8]) -> Result<Option<Vec<Group>>, String> {
    let program =
        program(pattern, false).map_err(|error| format!("regex \"{pattern}\" failed: {error}"))?;
    let Some(spans) = program.spans(subject) else {
        return Ok(None);
    };
    Ok(Some(program.names().into_iter().zip(spans).collect()))
}

/// Groups of the regex evaluated last.
#[derive(Clone, Debug, Default)]
pub struct Captures {
    subject: Vec<u8>,
    spans: Vec<Range<usize>>,
}

impl Captures {
    /// The text of a group, empty when there is none.
    pub fn group(&self, number: usize) -> &[u8] {
        self.spans
            .get(number)
            .and_then(|span| self.subject.get(span.clone()))
            .unwrap_or_default()
    }

    /// Whether no regex has captured anything.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Forgets all groups, keeping the capacity.
    pub fn clear(&mut self) {
        self.subject.clear();
        self.spans.clear();
    }

    fn set(&mut self, subject: &[u8], spans: Vec<Range<usize>>) {
        self.subject.clear();
        self.subject.extend_from_slice(subject);
        self.spans = spans;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regex(pattern: &str) -> Regex {
        Regex {
            program: program(pattern, false).unwrap(),
            pattern: pattern.into(),
            names: Vec::new(),
            groups: 1,
            has_dollar: pattern.contains('$'),
        }
    }

    /// pcre2pattern(3), "Circumflex and dollar".
    #[test]
    fn a_dollar_stands_before_a_last_line_feed_too() {
        assert!(regex(r"\.php$").is_match(b"/a.php"));
        assert!(regex(r"\.php$").is_match(b"/a.php\n"));
        assert!(!regex(r"\.php$").is_match(b"/a.php\n\n"));
        assert!(!regex(r"\.php$").is_match(b"/a.php\nb"));
        assert!(!regex(r"\.php\z").is_match(b"/a.php\n"));
        assert!(regex(r"^/(?!b)a$").is_match(b"/a\n"));
    }
}
