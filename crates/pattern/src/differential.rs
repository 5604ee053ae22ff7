//! Comparison of this crate's engines with PCRE2, for tests and fuzzing. Patterns and subjects are
//! generated from arbitrary bytes so that most are valid and short; both engines must agree.

use crate::beyond::IrregularFeature;
use crate::prefilter::{Hit, Prefilter};
use crate::verdict::{MatchDecision, Verdict};
use crate::{Pattern, Spans, Undecided, literal, parser, pcre};

/// Maximum number of PCRE2's steps; enough for the generated patterns.
const STEPS_MAX: u32 = 10_000_000;

/// Decisions of the generator, one byte each; zeros after the bytes have been used up.
pub struct Source<'a> {
    bytes: &'a [u8],
}

impl<'a> Source<'a> {
    /// Decisions from these bytes.
    pub fn new(bytes: &'a [u8]) -> Source<'a> {
        Source { bytes }
    }

    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else {
            return 0;
        };
        self.bytes = rest;
        *first
    }

    fn once_in(&mut self, times: u8) -> bool {
        self.next().is_multiple_of(times)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::from(self.next()) % end.max(1)
    }

    fn one<'b>(&mut self, of: &[&'b str]) -> &'b str {
        of[self.below(of.len())]
    }

    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Decides whether case is ignored.
    pub fn caseless(&mut self) -> bool {
        self.once_in(4)
    }

    /// Generates a pattern.
    pub fn pattern(&mut self) -> Vec<u8> {
        let mut text = String::new();
        if self.once_in(8) {
            // Nearly arbitrary text tests the parser more than the engines.
            for _ in 0..self.below(24) {
                text += self.one(PIECES);
            }
        } else {
            self.branches(&mut text, 0);
        }
        text.into_bytes()
    }

    /// Generates a list of patterns with their case sensitivity; some patterns are words, as in
    /// lists of crawlers.
    pub fn list(&mut self) -> Vec<(Vec<u8>, bool)> {
        let count = 8 + self.below(6);
        let one = |source: &mut Source<'_>| {
            let caseless = source.once_in(2);
            if source.once_in(2) {
                return (source.pattern(), caseless);
            }
            let mut text = source.one(&["", "\\b", "(?:\\b)", "^", "\\B"]).to_owned();
            for _ in 0..2 + source.below(2) {
                text += source.one(LETTERS);
            }
            text += source.one(&["", "\\b", "(?:\\b)", "$", "\\B", ".*a", "(b|a)"]);
            (text.into_bytes(), caseless)
        };
        (0..count).map(|_| one(self)).collect()
    }

    /// Generates a subject from texts that patterns refer to.
    pub fn subject(&mut self) -> Vec<u8> {
        let mut subject = Vec::new();
        while !self.is_empty() && subject.len() < 40 {
            let piece: &[u8] = SUBJECTS[self.below(SUBJECTS.len())];
            subject.extend_from_slice(piece);
        }
        subject
    }

    fn branches(&mut self, text: &mut String, depth: usize) {
        // Branches with a common beginning test whether it is factored out correctly.
        let shared = if self.once_in(6) {
            self.one(&[".*", "a*?", "(?:a|ab)", "\\w+", "b?"])
        } else {
            ""
        };
        loop {
            *text += shared;
            for _ in 0..self.below(4) + usize::from(!self.once_in(8)) {
                self.item(text, depth);
            }
            if !self.once_in(4) || text.len() > 60 {
                return;
            }
            text.push('|');
        }
    }

    fn item(&mut self, text: &mut String, depth: usize) {
        match self.next() % 32 {
            0..=9 => *text += self.one(LETTERS),
            10..=11 => text.push('.'),
            12..=14 => *text += self.one(SETS),
            15..=17 => self.class(text),
            18..=20 => {
                *text += self.one(PLACES);
                return;
            }
            21 => {
                *text += self.one(OPTIONS);
                return;
            }
            22 => *text += self.one(RARE),
            _ if depth < 4 => {
                *text += self.one(OPENING);
                self.branches(text, depth + 1);
                text.push(')');
            }
            _ => text.push('a'),
        }
        if self.once_in(3) {
            *text += self.one(QUANTIFIERS);
            if self.once_in(4) {
                text.push('?');
            }
        }
    }

    fn class(&mut self, text: &mut String) {
        *text += self.one(&["[", "[^", "[", "[]", "[^]"]);
        for _ in 0..=self.below(3) {
            *text += self.one(MEMBERS);
        }
        text.push(']');
    }
}

const LETTERS: &[&str] = &[
    "a", "b", "a", "b", "A", "B", "1", "_", "-", "/", "é", "\\.", " ", "#", "\\/", "\\<",
];
const SETS: &[&str] = &[
    "\\d", "\\D", "\\w", "\\W", "\\s", "\\S", "\\h", "\\H", "\\v", "\\V", "\\N", "\\C", "\\pL",
    "\\p{Lu}", "\\PN", "\\p{^Ll}",
];
const PLACES: &[&str] = &["^", "$", "\\b", "\\B", "\\A", "\\z", "\\Z", "\\G", "$", "^"];
const OPTIONS: &[&str] = &[
    "(?i)", "(?-i)", "(?s)", "(?m)", "(?x)", "(?U)", "(?^)", "(?xx)", "(?n)", "(?-m)", "(?im-s)",
    "(?#c)", "\\E", "\\Q\\E", "(?^i)", "(?-xx)",
];
const RARE: &[&str] = &[
    "\\x41",
    "\\x{61}",
    "\\101",
    "\\o{141}",
    "\\cA",
    "\\e",
    "\\0",
    "\\012",
    "\\Qa.b\\E",
    "{,2}",
    "{",
    "}",
    "]",
    "{1,2",
    "\\xff",
    "\\R",
    "\\1",
    "(?=a)",
    "(?!b)",
    "a++",
    "(?>a|b)",
    "(?>a|ab|b*)",
    "(?:(?:a{1,3}){1,3}){2}",
    "(?:(?:b|a){2}){0,2}",
    "\\g{1}",
    "\\k<n>",
    "\\K",
    "\\x{ 61 }",
    "\\11",
    "(?<!a)",
    "\\n",
];
const OPENING: &[&str] = &[
    "(", "(", "(", "(?:", "(?:", "(?i:", "(?s:", "(?m:", "(?<n>", "(?-i:", "(?x:", "(?U:", "(?|",
    "(?=", "(?!", "(?<=", "(?<!",
];
const QUANTIFIERS: &[&str] = &[
    "*", "+", "?", "*", "+", "?", "{2}", "{1,2}", "{0,3}", "{,2}", "{1,}", "{2,}", "{0}",
    "{ 1, 2 }",
];
const MEMBERS: &[&str] = &[
    "a",
    "b",
    "A",
    "1",
    "-",
    "^",
    "[",
    "a-z",
    "A-B",
    "\\d",
    "\\w",
    "\\s",
    "\\h",
    "\\pL",
    "\\p{Lu}",
    "\\v",
    "\\S",
    "\\D",
    "[:alpha:]",
    "[:^upper:]",
    "[:lower:]",
    "[:punct:]",
    "[:space:]",
    "\\n",
    "\\]",
    "\\b",
    "\\Qa-b\\E",
    "é",
    "&&",
    "\\x{41}-Z",
    " ",
    "[:print:]",
    "_-a",
    "\\-",
];
const PIECES: &[&str] = &[
    "a", "b", "*", "+", "?", "{", "}", ",", "1", "2", "(", ")", "|", "[", "]", "^", "$", "\\", "-",
    ":", ".", "=", "E", "Q", "x", "(?", "i", "<", ">", "'", "n", "#", "\n", " ", "P", "\\Q", "\\E",
    "[:", ":]", "alpha", "\\x", "\\o", "\\c", "(?x)", "(?:", "d", "w", "k", "g", "N", "0", "7",
    "8", "9", "é", "_", "&", "R", "!", "\\d",
];
const SUBJECTS: &[&[u8]] = &[
    b"a",
    b"b",
    b"A",
    b"B",
    b"a",
    b"b",
    b"ab",
    b"aab",
    b"1",
    b"_",
    b"-",
    b"/",
    b"\n",
    b"\r\n",
    b" ",
    b"\t",
    b"\x0b",
    b"\x85",
    b"\xa0",
    b"\xff",
    b"\0",
    "é".as_bytes(),
    b".",
    b"#",
    b"]",
    b"^",
    b"{",
    b"\x08",
    b"\\",
    b"a.b",
    b"\x01",
    b"z",
];

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparisonOutcome {
    /// Both engines agree.
    Same,
    /// The pattern only runs on PCRE2.
    OnPcre(IrregularFeature),
    /// Both reject the pattern.
    Refused,
    /// PCRE2 has reached a limit.
    Undecided,
}

/// Compares a pattern on a subject. The error describes a difference.
pub fn compare(text: &[u8], caseless: bool, subject: &[u8]) -> Result<ComparisonOutcome, String> {
    let shown = text.escape_ascii();
    let parsed = parser::parse(text, caseless);
    let pattern = match Pattern::new(text, caseless) {
        Ok(pattern) => pattern,
        Err(refusal) => {
            let words = refusal.to_string();
            let size = words.contains("too large") || words.contains("too complicated");
            return match parsed {
                Ok(_) if !size => Err(format!("only PCRE2 refuses {shown}: {words}")),
                _ => Ok(ComparisonOutcome::Refused),
            };
        }
    };
    match &parsed {
        Err(IrregularFeature::Refused) => return Err(format!("PCRE2 takes {shown}, we do not")),
        Ok(parsed) if parsed.groups as usize + 1 != pattern.groups() => {
            return Err(format!(
                "{shown} has {} groups, not {}",
                pattern.groups(),
                parsed.groups + 1
            ));
        }
        _ => {}
    }
    let other = pcre::Pcre::new(pattern.text(), caseless, STEPS_MAX)
        .map_err(|refusal| refusal.to_string())?;
    let mut its = Spans::default();
    let theirs = match other.matches(subject, Some(&mut its)) {
        Ok(theirs) => theirs,
        Err(Undecided { .. }) => return Ok(ComparisonOutcome::Undecided),
    };
    let differs = |engine: &str, found: Result<bool, Undecided>, ours: &Spans| {
        let subject = subject.escape_ascii();
        Err(format!(
            "{engine}: {shown} (caseless: {caseless}) on {subject}: {found:?} {ours:?}, \
             PCRE2 {theirs} {its:?}"
        ))
    };
    let mut ours = Spans::default();
    let bits = Pattern::deferred(text, caseless).map_err(|refusal| refusal.to_string())?;
    for (engine, pattern) in [("engine", &pattern), ("bits", &bits)] {
        let found = pattern.captures(subject, &mut ours);
        if pattern.beyond().is_some() && found.is_err_and(Undecided::is_bound) {
            return Ok(ComparisonOutcome::Undecided);
        }
        let same = found == Ok(theirs)
            && pattern.is_match(subject) == Ok(theirs)
            && (!theirs || ours == its);
        if !same {
            return differs(engine, found, &ours);
        }
    }
    let ast = parsed.as_ref().map(|parsed| &parsed.ast);
    if let Some(texts) = ast.ok().and_then(|ast| literal::needed(ast, 1)) {
        let subject = subject.to_ascii_lowercase();
        let mut texts = texts.iter();
        let has_one = texts.any(|text| subject.windows(text.len()).any(|part| part == text));
        if theirs && !has_one {
            return differs("texts", Ok(false), &ours);
        }
    }
    let answer = Verdict::new(text, caseless).map(|verdict| verdict.answer(subject));
    let is_right = match answer {
        Some(MatchDecision::Yes { from }) => {
            theirs && its.get(0).is_none_or(|all| from <= all.start)
        }
        Some(MatchDecision::No) => !theirs,
        Some(MatchDecision::Unknown) | None => true,
    };
    if !is_right {
        return differs(&format!("verdict {answer:?}"), Ok(!theirs), &ours);
    }
    Ok(match pattern.beyond() {
        Some(beyond) => ComparisonOutcome::OnPcre(beyond),
        None => ComparisonOutcome::Same,
    })
}

/// Compares a list of patterns on a subject: the first pattern that matches must be the same. The
/// error describes a difference.
pub fn compare_list(
    texts: &[(Vec<u8>, bool)],
    subject: &[u8],
) -> Result<ComparisonOutcome, String> {
    let mut patterns = Vec::new();
    let mut others = Vec::new();
    for (text, caseless) in texts {
        if let Ok(pattern) = Pattern::deferred(text, *caseless) {
            others.push(pcre::Pcre::new(pattern.text(), *caseless, STEPS_MAX));
            patterns.push(pattern);
        }
    }
    let mut first = None;
    for (number, other) in others.iter().enumerate() {
        let other = other.as_ref().map_err(|refusal| refusal.to_string())?;
        match other.matches(subject, None) {
            Ok(true) => {
                first = Some(number);
                break;
            }
            Ok(false) => {}
            Err(Undecided { .. }) => return Ok(ComparisonOutcome::Undecided),
        }
    }
    let list = Prefilter::new(&patterns);
    let found = list.first(subject, |number, hit| match hit {
        Hit::Candidate => patterns[number].is_match(subject),
        Hit::Match => Ok(true),
    });
    match found {
        Ok(found) if found == first => return Ok(ComparisonOutcome::Same),
        // The server's limits are smaller than those of this comparison.
        Err(_) => return Ok(ComparisonOutcome::Undecided),
        Ok(_) => {}
    }
    let shown: Vec<String> = patterns.iter().map(|one| one.text().to_owned()).collect();
    let subject = subject.escape_ascii();
    Err(format!(
        "{shown:?} on {subject}: {found:?}, PCRE2 {first:?}"
    ))
}
