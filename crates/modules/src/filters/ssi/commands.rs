//! Executes the SSI commands of a body.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use http::exchange::abort::Abort;
use http::request::Request;
use http::request::state::Stub;
use http::response::chain::BodyFilter;
use http::response::piece::{Include, Piece, Purpose};
use proto::uri::{Escape, escape};

use super::reader::{Command, Event, PARAMETERS_MAX, Reader};
use super::value::{append, evaluate};
use super::{Ssi, TIME_FORMAT, recall, remember};

/// Replaces the output of a command that fails, until `config errmsg` sets another text.
const ERROR_MESSAGE: &[u8] = b"[an error occurred while processing the directive]";

/// A command that could not be executed; the reason has been logged.
#[derive(Debug)]
pub(super) struct CommandFailed;

/// Logs why a command fails.
macro_rules! failed {
    ($request:expr, $($text:tt)+) => {{
        let text = format!($($text)+);
        logs::error!($request, Error, "{text}{}", $request.activity.sending);
        CommandFailed
    }};
}

/// The encoding of values that `echo` writes.
#[derive(Clone, Copy, Debug)]
enum Encoding {
    None,
    Url,
    Entity,
}

/// The position of the body relative to `if` and `endif`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conditional {
    Outside,
    /// After `if` or `elif`.
    If,
    Else,
}

/// One kind of command.
struct Kind {
    name: &'static [u8],
    run: fn(
        &mut Processor,
        &mut Request,
        Arguments<'_>,
        &mut Vec<Piece>,
    ) -> Result<(), CommandFailed>,
    /// Names of the parameters; a leading `!` marks a required one.
    parameters: &'static [&'static str],
    /// Where the command is allowed.
    place: CommandPosition,
}

/// The positions at which a command is allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommandPosition {
    Anywhere,
    /// `elif`, `else`: after `if`.
    BehindIf,
    BehindIfOrElse,
    /// `endblock`, which is executed within a block.
    WithinBlock,
}

const KINDS: &[Kind] = &[
    Kind {
        name: b"include",
        run: Processor::include,
        parameters: &["virtual", "file", "wait", "set", "stub"],
        place: CommandPosition::Anywhere,
    },
    Kind {
        name: b"echo",
        run: Processor::echo,
        parameters: &["!var", "default", "encoding"],
        place: CommandPosition::Anywhere,
    },
    Kind {
        name: b"config",
        run: Processor::config,
        parameters: &["errmsg", "timefmt"],
        place: CommandPosition::Anywhere,
    },
    Kind {
        name: b"set",
        run: Processor::set,
        parameters: &["!var", "!value"],
        place: CommandPosition::Anywhere,
    },
    Kind {
        name: b"if",
        run: Processor::begin_if,
        parameters: &["!expr"],
        place: CommandPosition::Anywhere,
    },
    Kind {
        name: b"elif",
        run: Processor::choose,
        parameters: &["!expr"],
        place: CommandPosition::BehindIf,
    },
    Kind {
        name: b"else",
        run: Processor::otherwise,
        parameters: &[],
        place: CommandPosition::BehindIf,
    },
    Kind {
        name: b"endif",
        run: Processor::end_if,
        parameters: &[],
        place: CommandPosition::BehindIfOrElse,
    },
    Kind {
        name: b"block",
        run: Processor::begin_block,
        parameters: &["!name"],
        place: CommandPosition::Anywhere,
    },
    Kind {
        name: b"endblock",
        run: Processor::end_block,
        parameters: &[],
        place: CommandPosition::WithinBlock,
    },
];

/// A command's parameters, checked.
#[derive(Clone, Copy)]
struct Arguments<'c>(&'c [(Vec<u8>, Vec<u8>)]);

impl<'c> Arguments<'c> {
    fn find(self, name: &[u8]) -> Option<&'c [u8]> {
        let found = self.0.iter().find(|(key, _)| key == name)?;
        Some(&found.1)
    }

    /// The value of a required parameter, whose presence has been checked.
    fn take(self, name: &[u8]) -> &'c [u8] {
        self.find(name).unwrap_or_default()
    }
}

/// Executes the commands of one body.
pub(super) struct Processor {
    settings: Arc<Ssi>,
    reader: Reader,
    /// Whether text is passed to the output.
    output: bool,
    /// Whether a branch of the `if` has been taken.
    chosen: bool,
    conditional: Conditional,
    /// Whether text is added to a block.
    in_block: bool,
    encoding: Encoding,
    error_message: Bytes,
    /// Whether the end of an include is awaited.
    waiting: bool,
    /// The pieces to process after the awaited include.
    rest: VecDeque<Piece>,
}

impl Processor {
    /// The state at the start of a response.
    pub(super) fn new(settings: Arc<Ssi>) -> Processor {
        Processor {
            reader: Reader::new(settings.value_length_max),
            settings,
            output: true,
            chosen: false,
            conditional: Conditional::Outside,
            in_block: false,
            encoding: Encoding::Entity,
            error_message: Bytes::from_static(ERROR_MESSAGE),
            waiting: false,
            rest: VecDeque::new(),
        }
    }

    /// Processes one piece, as far as possible without waiting.
    fn pass(&mut self, request: &mut Request, piece: Piece, out: &mut Vec<Piece>) {
        if self.waiting {
            self.rest.push_back(piece);
            return;
        }
        let Piece::Bytes(mut input) = piece else {
            out.push(piece);
            return;
        };
        while let Some(event) = self.reader.next(
            &mut |mistake| logs::error!(request, Error, "{mistake}{}", request.activity.sending),
            &mut input,
        ) {
            match event {
                Event::Text(text) if self.output => out.push(Piece::Bytes(text)),
                Event::Text(text) if self.in_block => {
                    remember(request, |memory| memory.extend_block(&text));
                }
                Event::Text(_) => {}
                Event::Command(command) => {
                    if self.run(request, &command, out).is_err() {
                        self.complain(out);
                    }
                }
                Event::Mistake => self.complain(out),
            }
            if self.waiting {
                if !input.is_empty() {
                    self.rest.push_back(Piece::Bytes(input));
                }
                return;
            }
        }
    }

    /// Outputs the error message, unless `ssi_silent_errors` is on.
    fn complain(&self, out: &mut Vec<Piece>) {
        if !self.settings.silent_errors && !self.error_message.is_empty() {
            out.push(Piece::Bytes(self.error_message.clone()));
        }
    }

    /// Executes a command. Within a block, the command is added to the block's text instead; in a
    /// branch of `if` that is not taken, only `elif`, `else` and `endif` are executed.
    fn run(
        &mut self,
        request: &mut Request,
        command: &Command,
        out: &mut Vec<Piece>,
    ) -> Result<(), CommandFailed> {
        let name = logs::Printable(&command.name);
        let Some(kind) = KINDS.iter().find(|kind| kind.name == command.name) else {
            return if self.output {
                Err(failed!(request, "invalid SSI command: \"{name}\""))
            } else {
                Ok(())
            };
        };
        if !self.output && kind.place != CommandPosition::WithinBlock {
            if self.in_block {
                remember(request, |memory| memory.extend_block(&command.text()));
                return Ok(());
            }
            if kind.place == CommandPosition::Anywhere {
                return Ok(());
            }
        }
        let misplaced = match kind.place {
            CommandPosition::Anywhere | CommandPosition::WithinBlock => false,
            CommandPosition::BehindIf => self.conditional != Conditional::If,
            CommandPosition::BehindIfOrElse => self.conditional == Conditional::Outside,
        };
        if misplaced {
            let text = format!("invalid context of SSI command: \"{name}\"");
            return Err(failed!(request, "{text}"));
        }
        check(request, kind, command)?;
        (kind.run)(self, request, Arguments(&command.parameters), out)
    }

    /// `include virtual="…" | file="…" [wait="yes"] [set="…" | stub="…"]`
    fn include(
        &mut self,
        request: &mut Request,
        arguments: Arguments<'_>,
        out: &mut Vec<Piece>,
    ) -> Result<(), CommandFailed> {
        let (uri, file) = (arguments.find(b"virtual"), arguments.find(b"file"));
        let (set, stub) = (arguments.find(b"set"), arguments.find(b"stub"));
        let target = match (uri, file) {
            (Some(uri), Some(file)) => {
                let (uri, file) = (logs::Printable(uri), logs::Printable(file));
                let text = format!("inclusion may be either virtual=\"{uri}\" or file=\"{file}\"");
                return Err(failed!(request, "{text}"));
            }
            (None, None) => {
                return Err(failed!(request, "no parameter in \"include\" SSI command"));
            }
            (Some(target), None) | (None, Some(target)) => target,
        };
        if set.is_some() && stub.is_some() {
            return Err(failed!(
                request,
                "\"set\" and \"stub\" cannot be used together in \"include\" SSI command"
            ));
        }
        let wait = match (arguments.find(b"wait"), file) {
            (None, file) => file.is_some(),
            (Some(_), Some(file)) => {
                let file = logs::Printable(file);
                let text = format!("\"wait\" cannot be used with file=\"{file}\"");
                return Err(failed!(request, "{text}"));
            }
            (Some(wait), None) if wait.eq_ignore_ascii_case(b"no") => false,
            (Some(wait), None) if wait.eq_ignore_ascii_case(b"yes") => true,
            (Some(wait), None) => {
                let wait = logs::Printable(wait);
                let text = format!("invalid value \"{wait}\" in the \"wait\" parameter");
                return Err(failed!(request, "{text}"));
            }
        };
        let (uri, args) = self.target(request, target)?;
        let purpose = match (set, stub) {
            (Some(name), _) => {
                let name = Bytes::from(name.to_ascii_lowercase());
                remember(request, |memory| {
                    if memory.value(&name).is_none() {
                        memory.set(&name, Bytes::new());
                    }
                });
                Purpose::Value {
                    name,
                    put: |request, name, value| {
                        remember(request, |memory| memory.set(name, value));
                    },
                }
            }
            (None, Some(name)) => Purpose::OutputOr(self.stub(request, name)?),
            (None, None) => Purpose::Output,
        };
        if !request.may_nest(&uri) {
            return Err(CommandFailed);
        }
        self.waiting = wait || set.is_some();
        out.push(Piece::Include(Box::new(Include { uri, args, purpose })));
        Ok(())
    }

    /// The path and arguments of an include; a target without a leading `/` is relative to the
    /// folder of the request's URI.
    fn target(
        &self,
        request: &mut Request,
        text: &[u8],
    ) -> Result<(Vec<u8>, Vec<u8>), CommandFailed> {
        let mut target = evaluate(request, text)?;
        // An empty text means the folder itself; if the text contains variables and their values
        // are empty, the target stays empty.
        let begin = if text.contains(&b'$') {
            target.first()
        } else {
            text.first().or(Some(&b'"'))
        };
        if begin.is_some_and(|byte| *byte != b'/') {
            let folder = memchr::memrchr(b'/', &request.uri).map_or(0, |slash| slash + 1);
            target.splice(..0, request.uri.iter().copied().take(folder));
        }
        let mut path = Vec::new();
        match proto::uri::parse_unsafe(&target, &mut path) {
            Ok(args) => Ok((path, args.unwrap_or_default().to_vec())),
            Err(_) => {
                let unescaped = if path.is_empty() { &target } else { &path };
                let target = logs::Printable(unescaped);
                let text = format!("unsafe URI \"{target}\" was detected");
                Err(failed!(request, "{text}"))
            }
        }
    }

    fn stub(&self, request: &Request, name: &[u8]) -> Result<Stub, CommandFailed> {
        let Some(text) = recall(request, |memory| memory.block(name)) else {
            let name = logs::Printable(name);
            let text = format!("\"stub\"=\"{name}\" for \"include\" not found");
            return Err(failed!(request, "{text}"));
        };
        Ok(Stub {
            text,
            content_type: request.response.content_type.clone(),
        })
    }

    /// `echo var="…" [default="…"] [encoding="none | url | entity"]`
    fn echo(
        &mut self,
        request: &mut Request,
        arguments: Arguments<'_>,
        out: &mut Vec<Piece>,
    ) -> Result<(), CommandFailed> {
        let mut value = Vec::new();
        if !append(request, arguments.take(b"var"), &mut value)? {
            value.extend_from_slice(arguments.find(b"default").unwrap_or(b"(none)"));
        }
        if value.is_empty() {
            return Ok(());
        }
        match arguments.find(b"encoding") {
            None => {}
            Some(b"none") => self.encoding = Encoding::None,
            Some(b"url") => self.encoding = Encoding::Url,
            Some(b"entity") => self.encoding = Encoding::Entity,
            Some(other) => {
                let other = logs::Printable(other);
                let text = format!("unknown encoding \"{other}\" in the \"echo\" command");
                let CommandFailed = failed!(request, "{text}");
            }
        }
        let value = match self.encoding {
            Encoding::None => value,
            Encoding::Url => {
                let mut escaped = Vec::with_capacity(value.len());
                escape(&value, Escape::Html, &mut escaped);
                escaped
            }
            Encoding::Entity => entities(&value),
        };
        out.push(Piece::Bytes(value.into()));
        Ok(())
    }

    fn config(
        &mut self,
        request: &mut Request,
        arguments: Arguments<'_>,
        _: &mut Vec<Piece>,
    ) -> Result<(), CommandFailed> {
        if let Some(format) = arguments.find(b"timefmt") {
            request.own.enter(&TIME_FORMAT).0 = Bytes::copy_from_slice(format);
        }
        if let Some(message) = arguments.find(b"errmsg") {
            self.error_message = Bytes::copy_from_slice(message);
        }
        Ok(())
    }

    fn set(
        &mut self,
        request: &mut Request,
        arguments: Arguments<'_>,
        _: &mut Vec<Piece>,
    ) -> Result<(), CommandFailed> {
        let value = evaluate(request, arguments.take(b"value"))?;
        let name = arguments.take(b"var").to_ascii_lowercase();
        remember(request, |memory| memory.set(&name, value.into()));
        Ok(())
    }

    /// Executes `if`.
    fn begin_if(
        &mut self,
        request: &mut Request,
        arguments: Arguments<'_>,
        out: &mut Vec<Piece>,
    ) -> Result<(), CommandFailed> {
        if self.conditional != Conditional::Outside {
            return Err(failed!(
                request,
                "the \"if\" command inside the \"if\" command"
            ));
        }
        self.choose(request, arguments, out)
    }

    /// Chooses a branch: `elif expr="…"`, and the first branch for `if`.
    fn choose(
        &mut self,
        request: &mut Request,
        arguments: Arguments<'_>,
        _: &mut Vec<Piece>,
    ) -> Result<(), CommandFailed> {
        if self.chosen {
            self.output = false;
            return Ok(());
        }
        self.output = holds(request, arguments.take(b"expr"))?;
        self.chosen |= self.output;
        self.conditional = Conditional::If;
        Ok(())
    }

    /// Executes `else`.
    fn otherwise(
        &mut self,
        _: &mut Request,
        _: Arguments<'_>,
        _: &mut Vec<Piece>,
    ) -> Result<(), CommandFailed> {
        self.output = !self.chosen;
        self.conditional = Conditional::Else;
        Ok(())
    }

    /// Executes `endif`.
    fn end_if(
        &mut self,
        _: &mut Request,
        _: Arguments<'_>,
        _: &mut Vec<Piece>,
    ) -> Result<(), CommandFailed> {
        self.output = true;
        self.chosen = false;
        self.conditional = Conditional::Outside;
        Ok(())
    }

    /// Executes `block`.
    fn begin_block(
        &mut self,
        request: &mut Request,
        arguments: Arguments<'_>,
        _: &mut Vec<Piece>,
    ) -> Result<(), CommandFailed> {
        let name = Bytes::copy_from_slice(arguments.take(b"name"));
        remember(request, |memory| memory.blocks.push((name, Vec::new())));
        self.output = false;
        self.in_block = true;
        Ok(())
    }

    /// Executes `endblock`.
    fn end_block(
        &mut self,
        _: &mut Request,
        _: Arguments<'_>,
        _: &mut Vec<Piece>,
    ) -> Result<(), CommandFailed> {
        self.output = true;
        self.in_block = false;
        Ok(())
    }
}

impl BodyFilter for Processor {
    fn apply(
        &mut self,
        request: &mut Request,
        piece: Piece,
        out: &mut Vec<Piece>,
    ) -> Result<(), Abort> {
        self.pass(request, piece, out);
        Ok(())
    }

    /// Continues after the end of an include that was awaited.
    fn resume(&mut self, request: &mut Request, out: &mut Vec<Piece>) -> Result<bool, Abort> {
        let waited = std::mem::take(&mut self.waiting);
        for piece in std::mem::take(&mut self.rest) {
            self.pass(request, piece, out);
        }
        Ok(waited)
    }
}

impl Command {
    /// The command as text, for storage in a block.
    fn text(&self) -> Vec<u8> {
        let mut text = [b"<!--#", &*self.name].concat();
        for (key, value) in &self.parameters {
            text.push(b' ');
            text.extend_from_slice(key);
            text.extend_from_slice(b"=\"");
            text.extend_from_slice(value);
            text.push(b'"');
        }
        text.extend_from_slice(b" -->");
        text
    }
}

/// Checks that a command has all its required parameters, and no unknown ones.
fn check(request: &Request, kind: &Kind, command: &Command) -> Result<(), CommandFailed> {
    let name = logs::Printable(&command.name);
    if command.parameters.len() > PARAMETERS_MAX {
        return Err(failed!(
            request,
            "too many SSI command parameters: \"{name}\""
        ));
    }
    let known = |parameter: &&str| parameter.trim_start_matches('!').as_bytes().to_vec();
    for (at, (key, _)) in command.parameters.iter().enumerate() {
        let text = logs::Printable(key);
        if !kind
            .parameters
            .iter()
            .any(|parameter| known(parameter) == *key)
        {
            let text = format!("invalid parameter name: \"{text}\" in \"{name}\" SSI command");
            return Err(failed!(request, "{text}"));
        }
        if command
            .parameters
            .iter()
            .take(at)
            .any(|(other, _)| other == key)
        {
            let text = format!("duplicate \"{text}\" parameter in \"{name}\" SSI command");
            return Err(failed!(request, "{text}"));
        }
    }
    let mut mandatory = kind
        .parameters
        .iter()
        .filter_map(|name| name.strip_prefix('!'));
    let absent = mandatory.find(|wanted| {
        !command
            .parameters
            .iter()
            .any(|(key, _)| key == wanted.as_bytes())
    });
    match absent {
        None => Ok(()),
        Some(absent) => {
            let text =
                format!("mandatory \"{absent}\" parameter is absent in \"{name}\" SSI command");
            Err(failed!(request, "{text}"))
        }
    }
}

/// Evaluates an expression: `$variable`, `$variable = text`, `!= text`, `= /regex/`.
fn holds(request: &mut Request, expression: &[u8]) -> Result<bool, CommandFailed> {
    let is_operand = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'$' | b'{' | b'}' | b'_' | b'"' | b'\'')
    };
    let length = expression
        .iter()
        .take_while(|byte| is_operand(byte))
        .count();
    let (left, rest) = expression
        .split_at_checked(length)
        .unwrap_or((expression, &[]));
    let left = evaluate(request, &left.to_ascii_lowercase())?;
    let rest = trim(rest);
    if rest.is_empty() {
        return Ok(!left.is_empty());
    }
    let invalid = |request: &Request| {
        let expression = logs::Printable(expression);
        let text = format!("invalid expression in \"{expression}\"");
        failed!(request, "{text}")
    };
    let (wanted, right) = match rest {
        [b'=', right @ ..] => (true, trim(right)),
        [b'!', b'=', right @ ..] => (false, trim(right)),
        _ => return Err(invalid(request)),
    };
    let matched = match right {
        [b'/', pattern @ .., b'/'] => {
            let pattern = evaluate(request, pattern)?;
            matches(request, &pattern, left)?
        }
        [b'/', _, ..] => return Err(invalid(request)),
        [b'\\', text @ ..] if matches!(text, [b'/', ..]) => left == evaluate(request, text)?,
        text => left == evaluate(request, text)?,
    };
    Ok(matched == wanted)
}

fn trim(text: &[u8]) -> &[u8] {
    let spaces = text.iter().take_while(|byte| **byte == b' ').count();
    text.get(spaces..).unwrap_or_default()
}

/// Matches a regular expression, whose groups become `$0` to `$9` and variables.
fn matches(request: &Request, pattern: &[u8], subject: Vec<u8>) -> Result<bool, CommandFailed> {
    let groups = match variables::regex::match_once(pattern, &subject) {
        Ok(Some(groups)) => groups,
        Ok(None) => return Ok(false),
        Err(variables::regex::MatchError::Pattern(text)) => return Err(failed!(request, "{text}")),
        Err(variables::regex::MatchError::Undecided(text)) => {
            logs::error!(request, Alert, "{text}{}", request.activity.sending);
            return Err(CommandFailed);
        }
    };
    let subject = Bytes::from(subject);
    remember(request, |memory| {
        memory.groups.clear();
        for (name, span) in groups {
            let value = subject.slice(span);
            if let Some(name) = name {
                memory.set(name.to_ascii_lowercase().as_bytes(), value.clone());
            }
            memory.groups.push(value);
        }
    });
    Ok(true)
}

/// Escapes text for HTML.
fn entities(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            _ => out.push(byte),
        }
    }
    out
}
