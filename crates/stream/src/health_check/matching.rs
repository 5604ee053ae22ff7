//! `match` in `stream`: the data that a health check sends, and the expected response.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_upstream_hc_module.html#match>

use std::sync::Arc;

use base::hash::Map;
use bytes::Bytes;
use conf::{Arity, Contexts, Fault, Line, ScopeRef, Setting, Word, parse};
use framework::compile::Compiler;
use framework::registry::Registry;
use logs::Subject;
use variables::Regex;

use super::answers::{self, Verdict};
use super::protocols::CheckedProtocol;
use crate::session::Session;

/// The examined part of a response, in bytes.
pub(super) const EXAMINED_MAX: usize = 16 * 1024;

/// `match name { … }`
pub(super) static MATCH: Setting<()> = Setting::new("match", &["name { ... }"], parse::nothing)
    .contexts(Contexts::STREAM)
    .arity(Arity::exactly(1))
    .block()
    .opens(Contexts::STREAM_MATCH)
    .manual(
        "What a server is sent in a health check, and what must come back, under a name for the \
         `match` parameter of `health_check`.",
    );

pub(super) static SEND: Setting<Bytes> = Setting::new("send", &["string"], |setter| {
    let word = setter.word()?;
    unescaped(word).map(Bytes::from)
})
.contexts(Contexts::STREAM_MATCH)
.manual(
    "What a server is sent. `\\xHH` is the byte of that hexadecimal number; `\\r` and `\\n` end \
     lines.",
);

pub(super) static EXPECT: Setting<()> =
    Setting::new("expect", &["string", "~ | ~* regex"], |setter| {
        let mut lines = setter.lines().iter();
        lines.try_for_each(|line| Written::parse(line).map(drop))
    })
    .contexts(Contexts::STREAM_MATCH)
    .arity(Arity::between(1, 2))
    .manual(
        "What a server must answer: a text that the answer begins with, in which `\\xHH` is the \
         byte of that hexadecimal number, or a regular expression that fits the answer, with `~*` \
         whatever the case. The first 16k are examined.",
    );

/// An `expect` directive.
enum Written<'a> {
    Text(Vec<u8>),
    Pattern { word: &'a Word, caseless: bool },
}

impl Written<'_> {
    fn parse(line: &Line) -> Result<Written<'_>, Fault> {
        match line.args.as_slice() {
            [text] => Ok(Written::Text(unescaped(text)?)),
            [operator, word] => {
                let caseless = match &*operator.bytes {
                    b"~" => false,
                    b"~*" => true,
                    _ => return Err(Fault::invalid_parameter(operator)),
                };
                Ok(Written::Pattern { word, caseless })
            }
            _ => Ok(Written::Text(Vec::new())), // the arity allows no others
        }
    }
}

/// The bytes of a word, in which `\xHH` stands for one byte.
fn unescaped(word: &Word) -> Result<Vec<u8>, Fault> {
    answers::unescaped(&word.bytes).ok_or_else(|| not_hexadecimal(word))
}

fn not_hexadecimal(word: &Word) -> Fault {
    let text = format!(
        "\"\\x\" in \"{}\" wants two hexadecimal digits",
        word.text()
    );
    Fault::at(word, text)
}

/// The `match` blocks of a configuration by their names.
#[derive(Default)]
pub(super) struct Matches(Map<Box<[u8]>, Arc<AnswerMatch>>);

impl Registry for Matches {}

impl Matches {
    pub(super) fn find(&self, name: &[u8]) -> Option<Arc<AnswerMatch>> {
        self.0.get(name).cloned()
    }

    /// Reads a block; its name must be unique.
    fn read(&mut self, compiler: &Compiler<'_>, block: ScopeRef<'_>) -> Result<(), Fault> {
        let Some(name) = block.line().map(|line| line.argument(0)) else {
            return Ok(()); // the root is not such a block
        };
        if self.0.contains_key(&name.bytes) {
            let text = format!("duplicate match \"{}\"", name.text());
            return Err(Fault::at(name, text));
        }
        let matching = Arc::new(AnswerMatch::read(compiler, block)?);
        self.0.insert(name.bytes.clone(), matching);
        Ok(())
    }
}

/// Reads all `match` blocks; errors are reported.
pub(super) fn read_all(compiler: &Compiler<'_>, stream: ScopeRef<'_>) {
    let matches = compiler.registry::<Matches>();
    for block in stream.children("match") {
        if let Err(fault) = matches.borrow_mut().read(compiler, block) {
            compiler.report(fault.while_reading());
        }
    }
}

/// The expected response.
enum Expected {
    Beginning(Vec<u8>),
    Pattern(Regex<Session>),
    Protocol(CheckedProtocol),
}

/// The data to send, and the expected response.
#[derive(Default)]
pub(super) struct AnswerMatch {
    /// The data to send; `None` if not configured.
    pub(super) send: Option<Bytes>,
    expected: Option<Expected>,
    /// The data to send to a server that has passed.
    pub(super) farewell: Option<Bytes>,
}

impl AnswerMatch {
    fn read(compiler: &Compiler<'_>, block: ScopeRef<'_>) -> Result<AnswerMatch, Fault> {
        let expected = block.own_lines(&EXPECT.spec).into_iter().next_back();
        let expected = match expected.map(Written::parse).transpose()? {
            None => None,
            Some(Written::Text(text)) => Some(Expected::Beginning(text)),
            Some(Written::Pattern { word, caseless }) => {
                let pattern = Regex::new(compiler, &word.bytes, caseless);
                let pattern = pattern.map_err(|fault| fault.or_at(word.position))?;
                Some(Expected::Pattern(pattern))
            }
        };
        Ok(AnswerMatch {
            send: block.own(&SEND)?,
            expected,
            farewell: None,
        })
    }

    /// The test for a protocol, with a user for protocols that require one.
    pub(super) fn of_protocol(protocol: CheckedProtocol, user: &[u8]) -> AnswerMatch {
        AnswerMatch {
            send: protocol.greeting(user),
            expected: Some(Expected::Protocol(protocol)),
            farewell: protocol.farewell(),
        }
    }

    /// Whether a response is expected.
    pub(super) fn expects_an_answer(&self) -> bool {
        self.expected.is_some()
    }

    /// The result for the received part of a response.
    pub(super) fn judge(&self, subject: &dyn Subject, answer: &[u8]) -> Verdict {
        match &self.expected {
            None => Verdict::Fits,
            Some(Expected::Beginning(text)) => answers::begins(answer, &[text]),
            Some(Expected::Protocol(protocol)) => protocol.judge(answer),
            Some(Expected::Pattern(pattern)) => match pattern.is_match(answer) {
                Ok(true) => Verdict::Fits,
                Ok(false) if answer.len() >= EXAMINED_MAX => Verdict::DoesNotFit,
                Ok(false) => Verdict::Undecided,
                Err(cause) => {
                    pattern.alert(subject, answer, cause, " while checking the answer");
                    Verdict::DoesNotFit
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Word {
        Word {
            bytes: text.as_bytes().into(),
            ..Word::default()
        }
    }

    #[test]
    fn bytes_are_written_by_their_numbers() {
        let read = |text: &str| unescaped(&word(text)).ok();
        assert_eq!(read("ab\\x00\\xFFc").unwrap(), b"ab\0\xffc");
        assert_eq!(read("\\n\\y").unwrap(), b"\\n\\y");
        assert_eq!(read("").unwrap(), b"");
        for wrong in ["\\x", "\\x1", "\\xg0", "\\x+1"] {
            assert!(read(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_is_judged_as_it_comes() {
        let matching = AnswerMatch {
            send: None,
            expected: Some(Expected::Beginning(b"+PONG".to_vec())),
            farewell: None,
        };
        let judge = |answer: &[u8]| matching.judge(&logs::Process, answer);
        assert_eq!(judge(b""), Verdict::Undecided);
        assert_eq!(judge(b"+PO"), Verdict::Undecided);
        assert_eq!(judge(b"-"), Verdict::DoesNotFit);
        assert_eq!(judge(b"+PONG\r\n"), Verdict::Fits);
    }
}
