//! The conditions of `if (…)`.

use std::io;

use conf::{Fault, Template, Word};
use framework::compile::Compiler;
use http::files::open_file_cache;
use http::request::{Regex, Request, Text};
use http::variables::Compiling as _;
use http::variables::Variable;
use pattern::{Pattern, Undecided};
use variables::Context as _;

use super::script::append_value;

/// The compiled condition of an `if`.
pub(super) enum Condition {
    /// `($variable)`: neither empty nor `0`.
    True(Variable),
    /// `($variable = text)`, `($variable != text)`.
    Equal {
        variable: Variable,
        text: Text,
        negated: bool,
    },
    /// `($variable ~ regex)` and its variants.
    Matches {
        variable: Variable,
        regex: Regex,
        negated: bool,
    },
    /// `(-f file)` and its variants.
    File {
        path: Text,
        test: FileTest,
        negated: bool,
    },
}

/// The tests for files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileTest {
    /// `-f`: a regular file.
    Plain,
    Directory,
    /// `-e`: a regular file or a directory (nginx reports other kinds as missing).
    Exists,
    /// `-x`: a file that its owner may execute.
    Executable,
}

/// Checks that the words between `if` and `{` form a condition.
pub(super) fn check(words: &[Word]) -> Result<(), Fault> {
    ConditionTokens::new(words).map(drop)
}

impl Condition {
    /// Compiles the words between `if` and `{`.
    pub(super) fn compile(compiler: &Compiler<'_>, words: &[Word]) -> Result<Condition, Fault> {
        let parsed = ConditionTokens::new(words)?;
        let text = |word: &Word, bytes: &[u8]| {
            Template::parse(&Word {
                bytes: bytes.into(),
                ..word.clone()
            })
            .map(|template| compiler.text(&template))
        };
        Ok(match parsed {
            ConditionTokens::True(name) => Condition::True(compiler.variable(&name)),
            ConditionTokens::Equal {
                name,
                word,
                value,
                negated,
            } => {
                let variable = compiler.variable(&name);
                Condition::Equal {
                    variable,
                    text: text(word, value)?,
                    negated,
                }
            }
            ConditionTokens::Matches {
                name,
                word,
                pattern,
                caseless,
                negated,
            } => {
                let variable = compiler.variable(&name);
                let regex = Regex::new(compiler, pattern, caseless)
                    .map_err(|fault| fault.or_at(word.position))?;
                Condition::Matches {
                    variable,
                    regex,
                    negated,
                }
            }
            ConditionTokens::File {
                word,
                path,
                test,
                negated,
            } => Condition::File {
                path: text(word, path)?,
                test,
                negated,
            },
        })
    }

    /// Evaluates the condition for a request. `escape` selects whether captures in values are
    /// escaped, `log` whether matches are logged. Fails if a match ended with an error, which has
    /// been logged.
    pub(super) fn holds(
        &self,
        request: &mut Request,
        escape: bool,
        log: bool,
    ) -> Result<bool, Undecided> {
        let mut value = request.scratch().take_buffer();
        let holds = Ok(match self {
            Condition::True(variable) => {
                request.append_variable(*variable, &mut value);
                is_true(&value)
            }
            Condition::Equal {
                variable,
                text,
                negated,
            } => {
                request.append_variable(*variable, &mut value);
                let mut other = request.scratch().take_buffer();
                append_value(text, request, escape, &mut other);
                let equal = value == other;
                request.scratch().give_buffer(other);
                equal != *negated
            }
            Condition::Matches {
                variable,
                regex,
                negated,
            } => {
                request.append_variable(*variable, &mut value);
                let matched = matches(request, regex, &value, log);
                request.scratch().give_buffer(value);
                return Ok(matched? != *negated);
            }
            Condition::File {
                path,
                test,
                negated,
            } => {
                append_value(path, request, escape, &mut value);
                test.holds(request, &value) != *negated
            }
        });
        request.scratch().give_buffer(value);
        holds
    }
}

/// Matches as scripts do: a regex that does not match also clears the captures of earlier ones. A
/// match that fails with an error has been logged.
pub(super) fn matches(
    request: &mut Request,
    regex: &Regex,
    subject: &[u8],
    log: bool,
) -> Result<bool, Undecided> {
    let matched = regex.matches(request, subject);
    let matched = matched.inspect_err(|cause| regex.alert(request, subject, *cause, ""))?;
    if !matched {
        request.captures.clear();
    }
    if log {
        let verb = if matched { "matches" } else { "does not match" };
        logs::error!(
            request,
            Notice,
            "\"{}\" {} \"{}\"",
            regex.pattern(),
            verb,
            logs::Printable(subject)
        );
    }
    Ok(matched)
}

impl FileTest {
    fn holds(self, request: &mut Request, path: &[u8]) -> bool {
        let metadata = match open_file_cache::test_now(request, path) {
            Ok(looked) => looked.metadata,
            Err(failed) => {
                if !is_absence(&failed.error) {
                    let (call, path) = (failed.call, logs::Printable(path));
                    let reason = logs::Errno(&failed.error);
                    logs::error!(request, Crit, "{call} \"{path}\" failed {reason}");
                }
                return false;
            }
        };
        const OWNER_MAY_EXECUTE: u32 = 0o100;
        match self {
            FileTest::Plain => metadata.is_file(),
            FileTest::Directory => metadata.is_dir(),
            FileTest::Exists => metadata.is_file() || metadata.is_dir(),
            FileTest::Executable => metadata.mode & OWNER_MAY_EXECUTE != 0,
        }
    }
}

/// Whether an error only means that the file does not exist.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG)
    )
}

/// Why a condition is false for a GET request.
pub(super) enum FalseReason {
    /// The condition is true only for another method.
    Method,
    /// The request lacks the field that `$http_…` with this name (in lower case) refers to.
    WithoutField(Box<[u8]>),
}

impl FalseReason {
    /// `None` if the condition depends on more than the method and one field.
    pub(super) fn of(compiler: &Compiler<'_>, words: &[Word]) -> Option<FalseReason> {
        let parsed = ConditionTokens::new(words).ok()?;
        let name = match &parsed {
            ConditionTokens::True(name)
            | ConditionTokens::Equal { name, .. }
            | ConditionTokens::Matches { name, .. } => name.to_ascii_lowercase(),
            ConditionTokens::File { .. } => return None,
        };
        let (value, failing): (&[u8], FalseReason) = if name == "request_method" {
            (b"GET", FalseReason::Method)
        } else {
            let field = name.strip_prefix("http_")?;
            let failing = FalseReason::WithoutField(field.as_bytes().into());
            (b"", failing)
        };
        let holds = match parsed {
            ConditionTokens::True(_) => is_true(value),
            ConditionTokens::Equal {
                value: text,
                negated,
                ..
            } => {
                // A text with variables differs between requests.
                if text.contains(&b'$') {
                    return None;
                }
                (text == value) != negated
            }
            ConditionTokens::Matches {
                pattern,
                caseless,
                negated,
                ..
            } => {
                let pattern = Pattern::new(pattern, caseless).ok()?;
                pattern.is_match(value).ok()? != negated
            }
            ConditionTokens::File { .. } => return None,
        };
        // A directive such as `map` may redefine the variable.
        let fails = !holds && !compiler.is_defined::<Request>(&name);
        fails.then_some(failing)
    }
}

/// The test of `if ($variable)`.
fn is_true(value: &[u8]) -> bool {
    !value.is_empty() && value != b"0"
}

/// A parsed condition; each word has its relevant bytes, without the parentheses.
pub(super) enum ConditionTokens<'a> {
    True(String),
    Equal {
        name: String,
        word: &'a Word,
        value: &'a [u8],
        negated: bool,
    },
    Matches {
        name: String,
        word: &'a Word,
        pattern: &'a [u8],
        caseless: bool,
        negated: bool,
    },
    File {
        word: &'a Word,
        path: &'a [u8],
        test: FileTest,
        negated: bool,
    },
}

impl<'a> ConditionTokens<'a> {
    pub(super) fn new(words: &'a [Word]) -> Result<ConditionTokens<'a>, Fault> {
        let words = without_parentheses(words)?;
        let [(first, text), rest @ ..] = &*words else {
            return Err(Fault::new("invalid condition"));
        };
        let invalid = || {
            Fault::at(
                first,
                format!("invalid condition \"{}\"", String::from_utf8_lossy(text)),
            )
        };
        let name = match text {
            [b'$', name @ ..] if !name.is_empty() => String::from_utf8_lossy(name).into_owned(),
            _ => return ConditionTokens::file(text, rest).ok_or_else(invalid),
        };
        let (operator_word, operator, word, value) = match rest {
            [] => return Ok(ConditionTokens::True(name)),
            [(operator_word, operator), (word, value)] => {
                (*operator_word, *operator, *word, *value)
            }
            _ => return Err(invalid()),
        };
        let negated = operator.starts_with(b"!");
        match operator {
            b"=" | b"!=" => Ok(ConditionTokens::Equal {
                name,
                word,
                value,
                negated,
            }),
            b"~" | b"~*" | b"!~" | b"!~*" => {
                let caseless = operator.ends_with(b"*");
                Ok(ConditionTokens::Matches {
                    name,
                    word,
                    pattern: value,
                    caseless,
                    negated,
                })
            }
            _ => Err(Fault::at(
                operator_word,
                format!(
                    "unexpected \"{}\" in condition",
                    String::from_utf8_lossy(operator)
                ),
            )),
        }
    }

    fn file(operator: &[u8], rest: &[(&'a Word, &'a [u8])]) -> Option<ConditionTokens<'a>> {
        let [(word, path)] = rest else { return None };
        let (letter, negated) = match operator {
            [b'-', letter] => (letter, false),
            [b'!', b'-', letter] => (letter, true),
            _ => return None,
        };
        let test = match letter {
            b'f' => FileTest::Plain,
            b'd' => FileTest::Directory,
            b'e' => FileTest::Exists,
            b'x' => FileTest::Executable,
            _ => return None,
        };
        Some(ConditionTokens::File {
            word,
            path,
            test,
            negated,
        })
    }
}

/// The words of a condition without its parentheses, which may be separate words or part of the
/// first and the last word.
fn without_parentheses(words: &[Word]) -> Result<Vec<(&Word, &[u8])>, Fault> {
    let invalid = |word: &Word, text: &[u8]| {
        Fault::at(
            word,
            format!("invalid condition \"{}\"", String::from_utf8_lossy(text)),
        )
    };
    let mut words: Vec<(&Word, &[u8])> = words.iter().map(|word| (word, &*word.bytes)).collect();
    if let Some((word, text)) = words.first_mut() {
        match *text {
            [b'('] => {}
            [b'(', rest @ ..] => *text = rest,
            _ => return Err(invalid(word, text)),
        }
    }
    if words.len() > 1 && words.first().is_some_and(|(_, text)| *text == b"(") {
        words.remove(0);
    }
    match words.pop() {
        Some((word, [rest @ .., b')'])) if !rest.is_empty() => words.push((word, rest)),
        Some((word, text)) if text != b")" || words.is_empty() => return Err(invalid(word, text)),
        _ => {}
    }
    Ok(words)
}
