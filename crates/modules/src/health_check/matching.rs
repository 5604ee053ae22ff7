//! `match`: the tests that the response to a health check must pass.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_hc_module.html#match>. Each test runs as soon
//! as its input has been received: after a wrong status the rest of the response is not read.

use std::ops::RangeInclusive;
use std::sync::Arc;

use base::hash::Map;
use bytes::Bytes;
use conf::{Arity, Contexts, Fault, Inherit, Line, ScopeRef, Setting, Template, Word, parse};
use framework::compile::Compiler;
use framework::registry::Registry;
use http::request::{Regex, Request, Text};
use http::variables::Compiling as _;

use crate::proxy::probe::Reply;
use proxying::probe::ProbeActivity;

/// Maximum number of bytes of a body that are read and tested.
const EXAMINED_MAX: usize = 256 * 1024;

/// The kinds of tests, as log lines name them.
const STATUS_CODE: ProbeActivity = "while checking status code";
const FIELDS: ProbeActivity = "while checking header";
const VARIABLES: ProbeActivity = "while checking required variables";
const CONTENT: ProbeActivity = "while checking body";

/// `match name { … }`
pub(super) static MATCH: Setting<()> = Setting::new("match", &["name { ... }"], parse::nothing)
    .contexts(Contexts::HTTP)
    .arity(Arity::exactly(1))
    .block()
    .opens(Contexts::MATCH)
    .manual("A set of tests under a name, for the `match` parameter of `health_check`. An answer must pass all of them.");

pub(super) static STATUS: Setting<()> =
    Setting::new("status", &["[!] code | code-code ..."], |setter| {
        setter
            .lines()
            .iter()
            .try_for_each(|line| StatusTest::parse(line).map(drop))
    })
    .contexts(Contexts::MATCH)
    .arity(Arity::at_least(1))
    .inherit(Inherit::List)
    .manual("The status of the answer is one of these or, behind `!`, none of them.");

pub(super) static HEADER: Setting<()> = Setting::new(
    "header",
    &["name", "! name", "name = | != value", "name ~ | !~ regex"],
    |setter| setter.lines().iter().try_for_each(|line| Comparison::of_header(line).map(drop)),
)
.contexts(Contexts::MATCH)
.arity(Arity::between(1, 3))
.inherit(Inherit::List)
.manual("The answer has a field of this name or, behind `!`, has none. With a value, the field's is that one (`=`) or another (`!=`), or fits a regular expression (`~`) or does not (`!~`).");

pub(super) static BODY: Setting<()> = Setting::new("body", &["~ | !~ regex"], |setter| {
    setter
        .lines()
        .iter()
        .try_for_each(|line| is_negated(line.argument(0)).map(drop))
})
.contexts(Contexts::MATCH)
.arity(Arity::exactly(2))
.inherit(Inherit::List)
.manual(
    "The body fits a regular expression (`~`) or does not (`!~`). The first 256k are examined.",
);

pub(super) static REQUIRE: Setting<()> = Setting::new("require", &["$variable ..."], |setter| {
    let words = setter.lines().iter().flat_map(|line| &line.args);
    words.map(variable).try_for_each(|read| read.map(drop))
})
.contexts(Contexts::MATCH)
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.manual("None of these variables is empty or \"0\". They see the answer: `$upstream_status`, `$upstream_http_…`.");

fn variable(word: &Word) -> Result<Template, Fault> {
    match word.bytes.first() {
        Some(b'$') => Template::parse(word),
        _ => Err(Fault::invalid_parameter(word)),
    }
}

/// Whether a regular expression operator is negated.
fn is_negated(word: &Word) -> Result<bool, Fault> {
    match &*word.bytes {
        b"~" => Ok(false),
        b"!~" => Ok(true),
        _ => Err(Fault::invalid_parameter(word)),
    }
}

/// The `match` blocks of a configuration by their names.
#[derive(Default)]
pub(super) struct Matches(Map<Box<[u8]>, Arc<Match>>);

impl Registry for Matches {}

impl Matches {
    pub(super) fn find(&self, name: &[u8]) -> Option<Arc<Match>> {
        self.0.get(name).cloned()
    }

    /// Reads a block; its name must be unique.
    pub(super) fn read(
        &mut self,
        compiler: &Compiler<'_>,
        block: ScopeRef<'_>,
    ) -> Result<(), Fault> {
        let Some(name) = block.line().map(|line| line.argument(0)) else {
            return Ok(()); // the root is not such a block
        };
        if self.0.contains_key(&name.bytes) {
            let text = format!("duplicate match \"{}\"", name.text());
            return Err(Fault::at(name, text));
        }
        self.0
            .insert(name.bytes.clone(), Arc::new(Match::read(compiler, block)?));
        Ok(())
    }
}

/// The tests of a `match` block.
pub(super) struct Match {
    statuses: Vec<StatusTest>,
    fields: Vec<FieldTest>,
    /// The variables of `require`: their values must be neither empty nor "0".
    required: Vec<Text>,
    bodies: Vec<BodyTest>,
}

impl Default for Match {
    /// The test without a block: a status of 2xx or 3xx.
    fn default() -> Match {
        Match {
            statuses: vec![StatusTest {
                negated: false,
                ranges: vec![200..=399],
            }],
            fields: Vec::new(),
            required: Vec::new(),
            bodies: Vec::new(),
        }
    }
}

/// A `status` line of a `match` block.
#[derive(Debug, PartialEq, Eq)]
struct StatusTest {
    /// Whether the status must be in none of the ranges.
    negated: bool,
    ranges: Vec<RangeInclusive<u16>>,
}

impl StatusTest {
    fn parse(line: &Line) -> Result<StatusTest, Fault> {
        let (negated, words) = match line.args.as_slice() {
            [not, words @ ..] if &*not.bytes == b"!" && !words.is_empty() => (true, words),
            words => (false, words),
        };
        let ranges = words.iter().map(|word| {
            let invalid = || Fault::at(word, format!("invalid status \"{}\"", word.text()));
            range(&word.bytes).ok_or_else(invalid)
        });
        Ok(StatusTest {
            negated,
            ranges: ranges.collect::<Result<_, Fault>>()?,
        })
    }

    fn holds(&self, status: u16) -> bool {
        self.ranges.iter().any(|range| range.contains(&status)) != self.negated
    }
}

fn range(text: &[u8]) -> Option<RangeInclusive<u16>> {
    let code = |text: &[u8]| {
        let code = u16::try_from(parse::number_of(text)?).ok()?;
        (100..=599).contains(&code).then_some(code)
    };
    let range = match memchr::memchr(b'-', text) {
        None => code(text)?..=code(text)?,
        Some(at) => code(text.get(..at)?)?..=code(text.get(at + 1..)?)?,
    };
    (!range.is_empty()).then_some(range)
}

/// The comparison of a `header` line.
enum Comparison<'a> {
    Present(&'a Word),
    Absent(&'a Word),
    Equal {
        name: &'a Word,
        value: &'a Word,
        negated: bool,
    },
    Regex {
        name: &'a Word,
        pattern: &'a Word,
        negated: bool,
    },
}

impl Comparison<'_> {
    fn of_header(line: &Line) -> Result<Comparison<'_>, Fault> {
        match line.args.as_slice() {
            [not, name] if &*not.bytes == b"!" => Ok(Comparison::Absent(name)),
            [name] if &*name.bytes != b"!" => Ok(Comparison::Present(name)),
            [name, operator, value] => {
                let negated = operator.bytes.starts_with(b"!");
                match &*operator.bytes {
                    b"=" | b"!=" => Ok(Comparison::Equal {
                        name,
                        value,
                        negated,
                    }),
                    b"~" | b"!~" => Ok(Comparison::Regex {
                        name,
                        pattern: value,
                        negated,
                    }),
                    _ => Err(Fault::invalid_parameter(operator)),
                }
            }
            _ => Err(Fault::new(
                "invalid number of arguments in \"header\" directive",
            )),
        }
    }
}

/// A `header` line of a `match` block.
struct FieldTest {
    name: Bytes,
    /// The test that the field must pass.
    wanted: FieldExpectation,
}

/// A test of a field.
enum FieldExpectation {
    Present,
    Absent,
    /// The field is present, and one of its values equals this.
    Equal(Bytes),
    /// The field is present, and none of its values equals this.
    Other(Bytes),
    /// One of the field's values matches the regex.
    Fitting(Regex),
    /// The field is present, and none of its values matches the regex.
    Unfitting(Regex),
}

impl FieldTest {
    fn compile(compiler: &Compiler<'_>, line: &Line) -> Result<FieldTest, Fault> {
        let bytes = |word: &Word| Bytes::copy_from_slice(&word.bytes);
        let (name, wanted) = match Comparison::of_header(line)? {
            Comparison::Present(name) => (name, FieldExpectation::Present),
            Comparison::Absent(name) => (name, FieldExpectation::Absent),
            Comparison::Equal {
                name,
                value,
                negated: false,
            } => (name, FieldExpectation::Equal(bytes(value))),
            Comparison::Equal {
                name,
                value,
                negated: true,
            } => (name, FieldExpectation::Other(bytes(value))),
            Comparison::Regex {
                name,
                pattern,
                negated,
            } => {
                let pattern = regex(compiler, pattern)?;
                if negated {
                    (name, FieldExpectation::Unfitting(pattern))
                } else {
                    (name, FieldExpectation::Fitting(pattern))
                }
            }
        };
        Ok(FieldTest {
            name: bytes(name),
            wanted,
        })
    }

    fn holds(&self, request: &Request, reply: &Reply) -> bool {
        let is_there = reply.values(&self.name).next().is_some();
        let mut values = reply.values(&self.name);
        let fits = |pattern: &Regex, value: &[u8]| matches(pattern, request, value, FIELDS);
        match &self.wanted {
            FieldExpectation::Present => is_there,
            FieldExpectation::Absent => !is_there,
            FieldExpectation::Equal(wanted) => values.any(|value| value == wanted),
            FieldExpectation::Other(other) => is_there && values.all(|value| value != other),
            FieldExpectation::Fitting(pattern) => {
                values.any(|value| fits(pattern, value) == Some(true))
            }
            FieldExpectation::Unfitting(pattern) => {
                is_there && values.all(|value| fits(pattern, value) == Some(false))
            }
        }
    }
}

/// A `body` line of a `match` block.
struct BodyTest {
    pattern: Regex,
    /// Whether the body must not match.
    negated: bool,
}

fn regex(compiler: &Compiler<'_>, word: &Word) -> Result<Regex, Fault> {
    Regex::new(compiler, &word.bytes, false).map_err(|fault| fault.or_at(word.position))
}

/// Whether a pattern matches; `None` if the match failed with an error, which has been logged.
fn matches(pattern: &Regex, request: &Request, text: &[u8], doing: ProbeActivity) -> Option<bool> {
    let matched = pattern.is_match(text);
    matched
        .map_err(|cause| pattern.alert(request, text, cause, &format!(" {doing}")))
        .ok()
}

impl Match {
    fn read(compiler: &Compiler<'_>, block: ScopeRef<'_>) -> Result<Match, Fault> {
        let lines = |spec| block.own_lines(spec).into_iter();
        let statuses = lines(&STATUS.spec).map(StatusTest::parse);
        let fields = lines(&HEADER.spec).map(|line| FieldTest::compile(compiler, line));
        let bodies = lines(&BODY.spec).map(|line| {
            Ok(BodyTest {
                negated: is_negated(line.argument(0))?,
                pattern: regex(compiler, line.argument(1))?,
            })
        });
        let required = lines(&REQUIRE.spec).flat_map(|line| &line.args);
        let required = required.map(|word| Ok(compiler.text(&variable(word)?)));
        Ok(Match {
            statuses: statuses.collect::<Result<_, Fault>>()?,
            fields: fields.collect::<Result<_, Fault>>()?,
            required: required.collect::<Result<_, Fault>>()?,
            bodies: bodies.collect::<Result<_, Fault>>()?,
        })
    }

    /// Tests a response. Returns the last test if all pass, else the test that failed.
    pub(super) async fn judge(
        &self,
        request: &mut Request,
        reply: &mut Reply,
    ) -> Result<ProbeActivity, ProbeActivity> {
        let mut doing = STATUS_CODE;
        let status = reply.status();
        if !self.statuses.iter().all(|test| test.holds(status)) {
            return Err(doing);
        }
        if !self.fields.is_empty() {
            doing = FIELDS;
            if !self.fields.iter().all(|test| test.holds(request, reply)) {
                return Err(doing);
            }
        }
        if !self.required.is_empty() {
            doing = VARIABLES;
            for text in &self.required {
                let value = text.evaluate(request);
                if value.is_empty() || &*value == b"0" {
                    return Err(doing);
                }
            }
        }
        if self.bodies.is_empty() {
            return Ok(doing);
        }
        self.judge_body(request, reply).await
    }

    async fn judge_body(
        &self,
        request: &mut Request,
        reply: &mut Reply,
    ) -> Result<ProbeActivity, ProbeActivity> {
        let mut body = Vec::new();
        while body.len() < EXAMINED_MAX {
            match reply.read(request).await? {
                Some(part) => body.extend_from_slice(&part),
                None => break,
            }
        }
        body.truncate(EXAMINED_MAX);
        let holds = |test: &BodyTest| {
            let found = matches(&test.pattern, request, &body, CONTENT);
            found.is_some_and(|found| found != test.negated)
        };
        if self.bodies.iter().all(holds) {
            Ok(CONTENT)
        } else {
            Err(CONTENT)
        }
    }
}

/// Reads all `match` blocks; errors are reported.
pub(super) fn read_all(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    let matches = compiler.registry::<Matches>();
    for block in http.children("match") {
        if let Err(fault) = matches.borrow_mut().read(compiler, block) {
            compiler.report(fault.while_reading());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        let files = conf::RecordedFiles::new(conf::Recording {
            files: vec![("/line".into(), format!("name {text};").into())],
            ..conf::Recording::default()
        });
        let lines = conf::plain::lines("/line".as_ref(), &files);
        lines.unwrap().remove(0)
    }

    /// The examples of the manual.
    #[test]
    fn tests_of_the_status() {
        let holds = |text: &str, statuses: &[u16]| {
            let test = StatusTest::parse(&line(text)).unwrap();
            statuses
                .iter()
                .map(|status| test.holds(*status))
                .collect::<Vec<_>>()
        };
        assert_eq!(holds("200", &[200, 201]), [true, false]);
        assert_eq!(holds("! 500", &[500, 200]), [false, true]);
        assert_eq!(holds("200 204", &[200, 201, 204]), [true, false, true]);
        assert_eq!(holds("! 301 302", &[301, 302, 200]), [false, false, true]);
        assert_eq!(
            holds("200-399", &[199, 200, 399, 400]),
            [false, true, true, false]
        );
        assert_eq!(holds("! 400-599", &[399, 400, 599]), [true, false, false]);
        assert_eq!(holds("301-303 307", &[302, 304, 307]), [true, false, true]);
    }

    #[test]
    fn statuses_that_are_none() {
        for text in [
            "x", "!", "99", "600", "300-200", "200-", "-200", "200-x", "20 0-1",
        ] {
            assert!(StatusTest::parse(&line(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn headers_that_are_no_test() {
        for text in ["!", "a b", "a == b", "a ~* b", "! a b"] {
            assert!(Comparison::of_header(&line(text)).is_err(), "{text}");
        }
        for text in ["a", "! a", "a = b", "a != b", "a ~ b", "a !~ b"] {
            assert!(Comparison::of_header(&line(text)).is_ok(), "{text}");
        }
    }
}
