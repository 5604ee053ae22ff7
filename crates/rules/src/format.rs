//! `log_format`: the format of a log line, compiled to parts whose values are appended directly to
//! the line.
//!
//! <https://nginx.org/en/docs/http/ngx_http_log_module.html#log_format>. As in nginx, formats are
//! not parsed like other templates: `$1` is not a capture here.

use std::sync::Arc;

use base::json;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Word};
use framework::compile::{Compiler, Feature};
use variables::{Compiling as _, Evaluate, Source, TableBuilder, Variable};

use crate::access_log::Loggable;

/// Declares the directive `log_format`.
pub static LOG_FORMAT: Setting<Vec<LogFormatLine>> = Setting::new(
    "log_format",
    &["name [escape=default|json|none] string ..."],
    written,
)
.contexts(Contexts::HTTP.or(Contexts::STREAM).or(Contexts::MEMCACHED))
.arity(Arity::at_least(2))
.inherit(Inherit::List)
.manual(
    "A format for `access_log`: text with variables. `escape` says how bytes of \
             variables are made harmless: `default` writes `\"`, `\\`, control bytes and those \
             above 126 as `\\xHH`, `json` as JSON strings want it, `none` leaves all as it is. A \
             missing value is `-` with `default`, else nothing. `combined` is predefined.",
);

/// How values of variables are escaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Escape {
    /// Bytes are escaped as `\xHH`.
    #[default]
    Default,
    /// As in a JSON string.
    Json,
    /// Bytes are written as they are.
    Nothing,
}

/// A `log_format` line, not yet compiled.
#[derive(Clone, Debug)]
pub struct LogFormatLine {
    name: Word,
    escape: Escape,
    parts: Vec<Token>,
    /// The [`conf::Line::sequence`] of the line.
    order: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Literal(Vec<u8>),
    Variable(String),
}

fn written(setter: &Setter<'_>) -> Result<Vec<LogFormatLine>, Fault> {
    setter
        .lines()
        .iter()
        .map(|line| format(&line.args, line.sequence()))
        .collect()
}

fn format(words: &[Word], order: u32) -> Result<LogFormatLine, Fault> {
    let [name, rest @ ..] = words else {
        return Err(Fault::new(
            "invalid number of arguments in \"log_format\" directive",
        ));
    };
    let (escape, strings) = match rest {
        [first, strings @ ..] if first.bytes.starts_with(b"escape=") => (escape(first)?, strings),
        strings => (Escape::Default, strings),
    };
    let mut parts = Vec::new();
    for string in strings {
        tokens(&string.bytes, &mut parts).map_err(|text| Fault::at(string, text))?;
    }
    Ok(LogFormatLine {
        name: name.clone(),
        escape,
        parts,
        order,
    })
}

fn escape(word: &Word) -> Result<Escape, Fault> {
    match word.bytes.get("escape=".len()..).unwrap_or_default() {
        b"default" => Ok(Escape::Default),
        b"json" => Ok(Escape::Json),
        b"none" => Ok(Escape::Nothing),
        other => {
            let other = String::from_utf8_lossy(other);
            Err(Fault::at(
                word,
                format!("unknown log format escaping \"{other}\""),
            ))
        }
    }
}

/// Splits a format at its variables. The error is nginx's text.
fn tokens(mut rest: &[u8], out: &mut Vec<Token>) -> Result<(), String> {
    while !rest.is_empty() {
        let Some(at) = memchr::memchr(b'$', rest) else {
            out.push(Token::Literal(rest.to_vec()));
            return Ok(());
        };
        let (literal, variable) = rest.split_at(at);
        if !literal.is_empty() {
            out.push(Token::Literal(literal.to_vec()));
        }
        let invalid = || {
            format!(
                "invalid parameter \"{}\"",
                String::from_utf8_lossy(variable)
            )
        };
        let mut after = variable.get(1..).unwrap_or_default();
        let braced = after.first() == Some(&b'{');
        if braced {
            after = after.get(1..).unwrap_or_default();
        }
        let end = after
            .iter()
            .position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
            .unwrap_or(after.len());
        let (name, mut next) = after.split_at(end);
        // The name is ASCII.
        let name = String::from_utf8_lossy(name).into_owned();
        if braced {
            if after.is_empty() {
                return Err(invalid());
            }
            next = next
                .strip_prefix(b"}")
                .ok_or_else(|| format!("the closing bracket in \"{name}\" variable is missing"))?;
        }
        if name.is_empty() {
            return Err(invalid());
        }
        out.push(Token::Variable(name));
        rest = next;
    }
    Ok(())
}

enum FormatPart<C> {
    Literal(Box<[u8]>),
    Plain(Evaluate<C>),
    Variable(Variable<C>),
}

/// A log format, compiled for a kind of context.
pub struct Format<C> {
    parts: Box<[FormatPart<C>]>,
    escape: Escape,
    reads_response: bool,
}

impl<C: Loggable> Format<C> {
    /// Whether the values in a line may depend on the head of the response.
    pub fn reads_response(&self) -> bool {
        self.reads_response
    }

    fn new(compiler: &Compiler<'_>, tokens: &[Token], escape: Escape) -> Format<C> {
        let part = |token: &Token| match token {
            Token::Literal(bytes) => FormatPart::Literal(bytes.as_slice().into()),
            Token::Variable(name) => match plain(compiler, name) {
                Some(evaluate) => FormatPart::Plain(evaluate),
                None => FormatPart::Variable(compiler.variable(name)),
            },
        };
        Format {
            parts: tokens.iter().map(part).collect(),
            escape,
            reads_response: tokens.iter().any(|token| match token {
                Token::Literal(_) => false,
                Token::Variable(name) => !C::is_early(name),
            }),
        }
    }

    /// Appends the line of a request or session, without the line end.
    pub fn append(&self, context: &mut C, line: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                FormatPart::Literal(bytes) => line.extend_from_slice(bytes),
                FormatPart::Plain(evaluate) => {
                    evaluate(context, line);
                }
                FormatPart::Variable(variable) => {
                    let start = line.len();
                    let found = context.append_logged(*variable, line);
                    if found {
                        escape_from(start, self.escape, line);
                    } else {
                        line.truncate(start);
                        if self.escape == Escape::Default {
                            line.push(b'-');
                        }
                    }
                }
            }
        }
    }
}

/// The function that evaluates a variable without escaping, if the variable needs none.
fn plain<C: Loggable>(compiler: &Compiler<'_>, name: &str) -> Option<Evaluate<C>> {
    if !C::is_plain(name) {
        return None;
    }
    let variables = compiler.registry::<TableBuilder<C>>();
    let found = variables.borrow().find_builtin(name);
    match found?.source {
        Source::Builtin(evaluate) | Source::Kept(evaluate) => Some(evaluate),
        _ => None,
    }
}

/// Escapes the bytes of `line` from `start` on. Checks first whether any byte needs escaping,
/// because most values need none.
fn escape_from(start: usize, escape: Escape, line: &mut Vec<u8>) {
    let value = line.get(start..).unwrap_or_default();
    match escape {
        Escape::Nothing => {}
        Escape::Default if any(value, needs_hex) => replace_from(start, line, escape_by_hex),
        Escape::Json if any(value, json::may_need_escape) => {
            replace_from(start, line, json::escape);
        }
        Escape::Default | Escape::Json => {}
    }
}

/// Whether `is_such` is true for any byte. Checks all bytes without branches, which the compiler
/// turns into vector instructions.
#[inline]
fn any(bytes: &[u8], is_such: impl Fn(u8) -> bool) -> bool {
    bytes
        .iter()
        .fold(0, |found, byte| found | u8::from(is_such(*byte)))
        != 0
}

/// Whether `escape=default` escapes a byte, by nginx's table: control bytes, `"`, `\`, DEL and all
/// bytes above.
#[inline]
fn needs_hex(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\') | (byte > 0x7e)
}

#[cold]
fn replace_from(start: usize, line: &mut Vec<u8>, replace: fn(&[u8], &mut Vec<u8>)) {
    let value = line.split_off(start);
    replace(&value, line);
}

fn escape_by_hex(value: &[u8], out: &mut Vec<u8>) {
    value.iter().for_each(|byte| hex(*byte, out));
}

fn hex(byte: u8, out: &mut Vec<u8>) {
    if needs_hex(byte) {
        out.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte & 15)]);
    } else {
        out.push(byte);
    }
}

fn digit(value: u8) -> u8 {
    if value < 10 {
        b'0' + value
    } else {
        b'A' + value - 10
    }
}

/// All log formats of a block such as `http`.
pub struct Formats<C> {
    all: Vec<NamedFormat<C>>,
}

/// A format and its name.
struct NamedFormat<C> {
    name: Box<[u8]>,
    format: Arc<Format<C>>,
    /// The [`conf::Line::sequence`] of the line.
    order: u32,
}

impl<C: Loggable> Feature for Formats<C> {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&LOG_FORMAT];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Formats<C>, Fault> {
        let mut formats = Formats { all: Vec::new() };
        if let Some(text) = C::COMBINED {
            let mut combined = Vec::new();
            tokens(text.as_bytes(), &mut combined).map_err(Fault::new)?;
            let combined = Format::new(compiler, &combined, Escape::Default);
            formats.all.push(NamedFormat {
                name: Box::from(*b"combined"),
                format: Arc::new(combined),
                order: 0,
            });
        }
        // A fault in a format is reported here, once, and not by every `access_log` of the block.
        let written = scope.written(&LOG_FORMAT).unwrap_or_else(|fault| {
            compiler.report(fault);
            None
        });
        for LogFormatLine {
            name,
            escape,
            parts,
            order,
        } in written.unwrap_or_default()
        {
            if formats.all.iter().any(|known| known.name == name.bytes) {
                let text = format!("duplicate \"log_format\" name \"{}\"", name.text());
                compiler.report(Fault::at(&name, text).while_reading());
                continue;
            }
            let format = Format::new(compiler, &parts, escape);
            formats.all.push(NamedFormat {
                name: name.bytes,
                format: Arc::new(format),
                order,
            });
        }
        Ok(formats)
    }
}

/// Compiles the formats of the `http` block, so that faults in unused formats are reported too.
pub fn check<C: Loggable>(compiler: &Compiler<'_>, http: ScopeRef<'_>) -> Result<(), Fault> {
    compiler.feature::<Formats<C>>(http).map(drop)
}

impl<C> Formats<C> {
    /// The format with this name, in any case, and the [`conf::Line::sequence`] of its line.
    pub fn find(&self, name: &[u8]) -> Option<(Arc<Format<C>>, u32)> {
        let mut all = self.all.iter();
        let found = all.find(|known| known.name.eq_ignore_ascii_case(name))?;
        Some((Arc::clone(&found.format), found.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Result<Vec<Token>, String> {
        let mut out = Vec::new();
        tokens(text.as_bytes(), &mut out).map(|()| out)
    }

    fn literal(text: &str) -> Token {
        Token::Literal(text.into())
    }

    fn variable(name: &str) -> Token {
        Token::Variable(name.into())
    }

    #[test]
    fn strings_are_cut_at_variables() {
        assert_eq!(cut("").unwrap(), []);
        assert_eq!(cut("a b").unwrap(), [literal("a b")]);
        assert_eq!(
            cut("[$time_local] \"${request}x\"").unwrap(),
            [
                literal("["),
                variable("time_local"),
                literal("] \""),
                variable("request"),
                literal("x\"")
            ]
        );
        assert_eq!(cut("$a$1").unwrap(), [variable("a"), variable("1")]);
    }

    /// Texts as nginx 1.31 prints them for the same `log_format x '…'`.
    #[test]
    fn faults_in_nginx_words() {
        assert_eq!(cut("a $").unwrap_err(), "invalid parameter \"$\"");
        assert_eq!(cut("$- b").unwrap_err(), "invalid parameter \"$- b\"");
        assert_eq!(cut("x${").unwrap_err(), "invalid parameter \"${\"");
        assert_eq!(cut("${}").unwrap_err(), "invalid parameter \"${}\"");
        assert_eq!(
            cut("${abc").unwrap_err(),
            "the closing bracket in \"abc\" variable is missing"
        );
        assert_eq!(
            cut("${ab-c}").unwrap_err(),
            "the closing bracket in \"ab\" variable is missing"
        );
    }

    fn escaped(escape: Escape, value: &[u8]) -> Vec<u8> {
        let mut line = b"\"before\" ".to_vec();
        let start = line.len();
        line.extend_from_slice(value);
        escape_from(start, escape, &mut line);
        assert!(line.starts_with(b"\"before\" "));
        line.split_off(start)
    }

    #[test]
    fn escaping_as_nginx() {
        let value = b"a~ \"\\\n\r\t\x08\x0c\x00\x1f\x7f\x80\xff";
        assert_eq!(
            escaped(Escape::Default, value),
            b"a~ \\x22\\x5C\\x0A\\x0D\\x09\\x08\\x0C\\x00\\x1F\\x7F\\x80\\xFF"
        );
        assert_eq!(
            escaped(Escape::Json, value),
            b"a~ \\\"\\\\\\n\\r\\t\\b\\f\\u0000\\u001F\x7f\\u0080\\u00FF"
        );
        let text = "\u{e4}\u{20ac}".as_bytes();
        assert_eq!(escaped(Escape::Json, text), text);
        assert_eq!(escaped(Escape::Nothing, value), value);
        assert_eq!(escaped(Escape::Default, b"curl/8.5.0"), b"curl/8.5.0");
    }
}
