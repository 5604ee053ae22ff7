//! `rewrite`, `return`, `set`, `if`, `break`: one ordered script per scope.
//!
//! <https://nginx.org/en/docs/http/ngx_http_rewrite_module.html>. A server's script runs before the
//! location is looked up, a location's script afterwards; neither is inherited. An `if` in a
//! location has a plan of its own, which stays in force after the match, whatever the script does
//! next. `script` runs the scripts that this file compiles; `condition` has the conditions of `if
//! (…)`.

mod condition;
mod script;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use condition::{Condition, FalseReason};
use conf::{
    Arity, Contexts, Declared, Fault, Inherit, Line, Position, ScopeRef, Setter, Setting, Template,
    Word, parse,
};
use framework::compile::{Compiler, Feature};
use http::config::plan::Plan;
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::module::{Permit, Shortcut, ShortcutDoc};
use http::request::{Regex, Request, Text};
use http::variables::Compiling as _;
use http::variables::{Source, Variable};
use variables::Context as _;
use variables::name::variable_name;

const PROGRAM: Contexts = Contexts::SERVER
    .or(Contexts::SERVER_IF)
    .or(Contexts::LOCATION)
    .or(Contexts::LOCATION_IF);

/// `rewrite regex replacement [flag]`
pub static REWRITE: Setting<()> = Setting::new(
    "rewrite",
    &["regex replacement [last | break | redirect | permanent]"],
    |setter| check(setter, |line| replacement(line).map(drop)),
)
.contexts(PROGRAM)
.arity(Arity::between(2, 3))
.inherit(Inherit::Program)
.manual(
    "Changes the URI where the regular expression matches it. `last` then looks for a new \
         location, `break` stays in this one, `redirect` and `permanent` answer with 302 and 301, \
         as any replacement does that begins with `http://`, `https://` or `$scheme`. The \
         request's arguments are appended unless the replacement ends with `?`.",
);

/// `return code [text]`, `return code URL`, `return URL`
pub static RETURN: Setting<()> =
    Setting::new("return", &["code [text]", "code URL", "URL"], |setter| {
        check(setter, |line| answer(line).map(drop))
    })
    .contexts(PROGRAM)
    .arity(Arity::between(1, 2))
    .inherit(Inherit::Program)
    .manual(
        "Ends processing with the code, and with a text or the URL of a redirect (301, 302, 303, \
         307, 308; 302 for a URL alone). 444 closes the connection without an answer.",
    );

/// Declares the directive `break`.
pub static BREAK: Setting<()> = Setting::new("break", &[""], parse::nothing)
    .contexts(PROGRAM)
    .arity(Arity::none())
    .inherit(Inherit::Program)
    .manual("Ends the script; a URI rewritten before stays, but its location is not looked for.");

/// Declares the directive `set $variable value`.
pub static SET: Setting<()> = Setting::new("set", &["$variable value"], |setter| {
    check(setter, |line| assignment(line).map(drop))
})
.contexts(PROGRAM)
.arity(Arity::exactly(2))
.inherit(Inherit::Program)
.manual("Sets a variable to a value, which may hold text and variables.");

/// `if (condition) { … }`
pub static IF: Setting<()> = Setting::new("if", &["(condition) { ... }"], |setter| {
    check(setter, |line| condition::check(&line.args))
})
.contexts(Contexts::SERVER.or(Contexts::LOCATION))
.arity(Arity::at_least(1).block())
.opens_by_place(&[
    (Contexts::SERVER, Contexts::SERVER_IF),
    (Contexts::LOCATION, Contexts::LOCATION_IF),
])
.inherit(Inherit::Program)
.manual(
    "Runs the script of the block where the condition holds, and in a location puts the \
         block's configuration in force: a variable neither empty nor `0`; `=` and `!=`; `~`, \
         `~*`, `!~`, `!~*` with a regular expression; `-f`, `-d`, `-e`, `-x` and their negations \
         with `!` for files.",
);

/// `rewrite_log on | off`
pub static REWRITE_LOG: Setting<bool> = Setting::new("rewrite_log", &["on | off"], parse::flag)
    .contexts(PROGRAM.or(Contexts::HTTP))
    .arity(Arity::flag())
    .default("off")
    .manual("Logs what the script matches and rewrites, at notice level.");

/// `uninitialized_variable_warn on | off`
pub static UNINITIALIZED_VARIABLE_WARN: Setting<bool> =
    Setting::new("uninitialized_variable_warn", &["on | off"], parse::flag)
        .contexts(PROGRAM.or(Contexts::HTTP))
        .arity(Arity::flag())
        .default("on")
        .manual("Logs a warning where a variable is used that `set` has not set yet.");

/// The phases that this module takes part in.
pub const TASKS: &[Task] = &[Task::of(
    TaskKind::Rewrite,
    &["rewrite", "return", "set", "if", "break"],
)];

/// Directives of this module, for the table.
pub const DIRECTIVES: &[&dyn Declared] = &[
    &REWRITE,
    &RETURN,
    &BREAK,
    &SET,
    &IF,
    &REWRITE_LOG,
    &UNINITIALIZED_VARIABLE_WARN,
];

/// The script of one scope.
struct Steps {
    steps: Box<[Instruction]>,
    /// Whether matches and rewritten URIs are logged: `rewrite_log`.
    log: bool,
}

struct Settings {
    log: bool,
    /// `uninitialized_variable_warn`.
    warn_uninitialized: bool,
}

impl Feature for Settings {
    const DIRECTIVES: &'static [&'static dyn Declared] =
        &[&REWRITE_LOG, &UNINITIALIZED_VARIABLE_WARN];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Settings, Fault> {
        Ok(Settings {
            log: scope.get(&REWRITE_LOG)?,
            warn_uninitialized: scope.get(&UNINITIALIZED_VARIABLE_WARN)?,
        })
    }
}

/// One directive of a script.
enum Instruction {
    Set {
        target: Target,
        value: Text,
    },
    If {
        position: Position,
        condition: Condition,
        /// The plan of the `if` block, in force once the condition is true; `None` for an `if` in a
        /// server.
        plan: Option<Arc<Plan>>,
        /// The instructions in the block.
        body: Box<[Instruction]>,
    },
    Rewrite(Box<Rewrite>),
    Return(Return),
    /// `break`, with its position.
    Break(Position),
}

struct Rewrite {
    position: Position,
    regex: Regex,
    /// The new path; for redirects, the whole URL.
    path: Text,
    /// The new arguments: the text after the first `?`. Not for redirects.
    args: Option<Text>,
    /// Whether a redirect's URL has arguments of its own.
    has_args: bool,
    /// Whether the request's arguments are appended.
    keep_args: bool,
    flag: Flag,
}

/// The continuation after a `rewrite` that matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flag {
    /// The rest of the script, then a lookup of the location.
    None,
    /// A lookup of the location at once.
    Last,
    /// The end of the script, in the same location.
    Break,
    /// A redirect response with this status.
    Redirect(u16),
}

struct Return {
    position: Position,
    status: u16,
    /// Text or URL; empty if omitted.
    text: Text,
}

/// The target of `set` and `auth_request_set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A variable that the configuration defines.
    Variable(Variable),
    /// The request's arguments, the source of `$args` and `$query_string`.
    Args,
    /// The variable `$limit_rate`, which limits the response's rate.
    LimitRate,
}

impl Return {
    /// Whether all requests get the same response. A Location that is only a path is completed with
    /// the client's own host, so it differs.
    fn is_constant(&self) -> bool {
        let text = self.text.literal();
        text.is_some_and(|text| !text.starts_with(b"/"))
    }
}

/// Defines the variables that `set` and `auth_request_set` name in a scope and its nested scopes.
/// The first directive in the file that names a variable defines it. This runs before anything else
/// is compiled.
pub fn define_assigned(compiler: &Compiler<'_>, scope: ScopeRef<'_>) {
    for line in scope.lines() {
        if let Some(inner) = scope.opened_by(line) {
            define_assigned(compiler, inner);
        }
        let source = match &*line.name.bytes {
            b"set" => Source::Set,
            b"auth_request_set" => Source::Assigned,
            _ => continue,
        };
        let word = line.argument(0);
        // A word that is not a variable is reported when its directive is compiled.
        if let Ok(name) = variable_name(word)
            && let Err(text) = compiler.define_unless_defined(&name, source)
        {
            compiler.report(Fault::at(word, text));
        }
    }
}

impl Target {
    /// The target of a word such as `$name`, which [`define_assigned`] has defined.
    pub fn new(compiler: &Compiler<'_>, word: &Word) -> Result<Target, Fault> {
        let name = variable_name(word)?;
        let variable = compiler.variable(&name);
        Ok(match &*name.to_ascii_lowercase() {
            "args" => Target::Args,
            "limit_rate" => Target::LimitRate,
            _ => Target::Variable(variable),
        })
    }

    /// Assigns a value for the request.
    pub fn assign(self, request: &mut Request, value: &[u8]) {
        match self {
            Target::Variable(variable) => request.assign(variable, Bytes::copy_from_slice(value)),
            Target::Args => {
                request.args.clear();
                request.args.extend_from_slice(value);
                request.uri_state.args_written = true;
                request.uri_state.unchanged = false;
            }
            Target::LimitRate => match parse::size_of(value) {
                Some(rate) => request.pacing.rate = Some(rate),
                None => logs::error!(
                    request,
                    Error,
                    "invalid $limit_rate \"{}\"",
                    logs::Printable(value)
                ),
            },
        }
    }
}

/// For the documentation: how scripts affect prebuilt responses, for which no script runs.
pub const SHORTCUTS: &[ShortcutDoc] = &[
    ShortcutDoc::Never("there may be a script to run"),
    ShortcutDoc::Same(
        "where `return` alone answers every request, with one and the same text, or where each `if` \
         asks for another method (`$request_method`) than GET",
    ),
    ShortcutDoc::OfHead(
        "where each `if` asks for such a method, or by `$http_…` for a field that the request does \
         not have, and there is nothing else",
    ),
];

/// Registers the script of a scope.
pub fn register(plan: &mut PlanBuilder<'_>) -> Option<()> {
    let settings: Arc<Settings> = plan.feature()?;
    if !settings.warn_uninitialized {
        plan.warn_of_no_unset_variable();
    }
    // The script of an `if` block belongs to the enclosing scope.
    let scope = plan.scope;
    let runs = scope.context() == Contexts::SERVER || scope.context() == Contexts::LOCATION;
    if !runs {
        return Some(());
    }
    let compiler = plan.compiler;
    let steps = instructions(compiler, scope, &mut |inner| plan.plan_of(inner));
    if let [Instruction::Return(answer)] = &*steps
        && answer.is_constant()
    {
        plan.answers_constantly();
        plan.shortcut(Shortcut::Same);
    } else if !steps.is_empty()
        && !settings.log
        && let Some(shortcut) = shortcut_past(compiler, scope)
    {
        plan.shortcut(shortcut);
    }
    if !steps.is_empty() {
        let log = settings.log;
        plan.script(&Arc::new(Steps { steps, log }));
    }
    Some(())
}

/// The requests for which the scope's script need not run, since the conditions of all its `if`
/// blocks are false for them.
fn shortcut_past(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Option<Shortcut> {
    let mut fields = Vec::new();
    for line in scope.lines() {
        match &*line.name.bytes {
            b"if" => match FalseReason::of(compiler, &line.args)? {
                FalseReason::Method => {}
                FalseReason::WithoutField(name) => fields.push(name),
            },
            b"set" | b"rewrite" | b"return" | b"break" => return None,
            _ => {}
        }
    }
    Some(if fields.is_empty() {
        Shortcut::Same
    } else {
        Shortcut::OfHead(Arc::new(WithoutFields(fields)))
    })
}

/// Allows the shortcut for requests without these fields, named as in `$http_…`.
struct WithoutFields(Vec<Box<[u8]>>);

impl Permit for WithoutFields {
    fn permits(&self, request: &Request) -> bool {
        let is_named = |field: &[u8], name: &[u8]| {
            let letters = field.iter().map(|byte| match byte {
                b'-' => b'_',
                byte => byte.to_ascii_lowercase(),
            });
            field.len() == name.len() && letters.eq(name.iter().copied())
        };
        let mut fields = request.headers().map(|(name, _)| name);
        !fields.any(|field| self.0.iter().any(|name| is_named(field, name)))
    }
}

fn instructions(
    compiler: &Compiler<'_>,
    scope: ScopeRef<'_>,
    plan_of_if: &mut dyn FnMut(ScopeRef<'_>) -> Option<Arc<Plan>>,
) -> Box<[Instruction]> {
    let mut steps = Vec::new();
    for line in scope.lines() {
        let step = match &*line.name.bytes {
            b"set" => compile_set(compiler, line),
            b"rewrite" => compile_rewrite(compiler, line),
            b"return" => answer(line).map(|(status, text)| {
                Instruction::Return(Return {
                    position: line.position,
                    status,
                    text: compiler.text(&text),
                })
            }),
            b"break" => Ok(Instruction::Break(line.position)),
            b"if" => match scope.opened_by(line) {
                Some(block) => compile_if(compiler, line, block, plan_of_if),
                None => continue,
            },
            _ => continue,
        };
        match step {
            Ok(step) => steps.push(step),
            Err(fault) => compiler.report(fault),
        }
    }
    steps.into()
}

fn compile_set(compiler: &Compiler<'_>, line: &Line) -> Result<Instruction, Fault> {
    let (name, value) = assignment(line)?;
    let target = Target::new(compiler, name)?;
    Ok(Instruction::Set {
        target,
        value: compiler.text(&value),
    })
}

fn compile_if(
    compiler: &Compiler<'_>,
    line: &Line,
    block: ScopeRef<'_>,
    plan_of_if: &mut dyn FnMut(ScopeRef<'_>) -> Option<Arc<Plan>>,
) -> Result<Instruction, Fault> {
    let condition = Condition::compile(compiler, &line.args)?;
    let body = instructions(compiler, block, plan_of_if);
    let plan = if block.context() == Contexts::LOCATION_IF {
        plan_of_if(block)
    } else {
        None
    };
    Ok(Instruction::If {
        position: line.position,
        condition,
        plan,
        body,
    })
}

fn compile_rewrite(compiler: &Compiler<'_>, line: &Line) -> Result<Instruction, Fault> {
    let (pattern, replaced) = (line.argument(0), line.argument(1));
    if replaced.bytes.is_empty() {
        return Err(Fault::at(replaced, "empty replacement"));
    }
    // As in nginx, errors of the pattern are reported before errors of later words.
    let regex = Regex::new(compiler, &pattern.bytes, false)
        .map_err(|fault| fault.or_at(pattern.position))?;
    let parts = replacement(line)?;
    let redirects = matches!(parts.flag, Flag::Redirect(_));
    let has_args =
        parts.template.parts.iter().any(
            |part| matches!(part, conf::TemplatePart::Literal(bytes) if bytes.contains(&b'?')),
        );
    let (path, args) = if redirects {
        (parts.template, None)
    } else {
        split_at_question_mark(parts.template)
    };
    Ok(Instruction::Rewrite(Box::new(Rewrite {
        position: line.position,
        regex,
        path: compiler.text(&path),
        args: args.map(|args| compiler.text(&args)),
        has_args,
        keep_args: parts.keep_args,
        flag: parts.flag,
    })))
}

/// The parsed words of a `rewrite`.
struct Replacement {
    template: Template,
    /// Whether the request's arguments are appended.
    keep_args: bool,
    flag: Flag,
}

fn replacement(line: &Line) -> Result<Replacement, Fault> {
    let (replacement, flag) = match &*line.args {
        [_, replacement] => (replacement, None),
        [_, replacement, flag, ..] => (replacement, Some(flag)),
        _ => {
            return Err(Fault::at(
                &line.name,
                "invalid number of arguments in \"rewrite\" directive",
            ));
        }
    };
    if replacement.bytes.is_empty() {
        return Err(Fault::at(replacement, "empty replacement"));
    }
    let (text, keep_args) = match replacement.bytes.strip_suffix(b"?") {
        Some(text) => (text, false),
        None => (&*replacement.bytes, true),
    };
    let absolute = is_absolute(text);
    let flag = match flag.map(|word| (word, &*word.bytes)) {
        Some((_, b"permanent")) => Flag::Redirect(301),
        Some((_, b"redirect")) => Flag::Redirect(302),
        Some((_, b"last" | b"break")) | None if absolute => Flag::Redirect(302),
        Some((_, b"last")) => Flag::Last,
        Some((_, b"break")) => Flag::Break,
        None => Flag::None,
        Some((word, _)) => {
            return Err(Fault::at(
                word,
                format!("invalid parameter \"{}\"", word.text()),
            ));
        }
    };
    let template = Template::parse(&Word {
        bytes: text.into(),
        ..replacement.clone()
    })?;
    Ok(Replacement {
        template,
        keep_args,
        flag,
    })
}

/// Whether a text is an absolute URL, so that it can only be a redirect.
fn is_absolute(text: &[u8]) -> bool {
    [&b"http://"[..], b"https://", b"$scheme"]
        .iter()
        .any(|start| text.starts_with(start))
}

/// Splits a template at the first literal `?`.
fn split_at_question_mark(template: Template) -> (Template, Option<Template>) {
    let mut path = Vec::new();
    let mut parts = template.parts.into_iter();
    for part in parts.by_ref() {
        let cut = match &part {
            conf::TemplatePart::Literal(bytes) => {
                memchr::memchr(b'?', bytes).map(|at| bytes.split_at(at))
            }
            _ => None,
        };
        let Some((before, after)) = cut else {
            path.push(part);
            continue;
        };
        if !before.is_empty() {
            path.push(conf::TemplatePart::Literal(before.into()));
        }
        let first = after.get(1..).filter(|rest| !rest.is_empty());
        let first = first.map(|rest| conf::TemplatePart::Literal(rest.into()));
        let args = first.into_iter().chain(parts).collect();
        return (Template { parts: path }, Some(Template { parts: args }));
    }
    (Template { parts: path }, None)
}

fn assignment(line: &Line) -> Result<(&Word, Template), Fault> {
    let [name, value, ..] = &*line.args else {
        return Err(Fault::at(
            &line.name,
            "invalid number of arguments in \"set\" directive",
        ));
    };
    variable_name(name)?;
    Ok((name, Template::parse(value)?))
}

/// Status and text of a `return`.
fn answer(line: &Line) -> Result<(u16, Template), Fault> {
    let (first, second) = match &*line.args {
        [first] => (first, None),
        [first, second, ..] => (first, Some(second)),
        [] => {
            return Err(Fault::at(
                &line.name,
                "invalid number of arguments in \"return\" directive",
            ));
        }
    };
    let digits = !first.bytes.is_empty() && first.bytes.iter().all(u8::is_ascii_digit);
    let status = first
        .text()
        .parse::<u16>()
        .ok()
        .filter(|status| digits && *status <= 999);
    match (status, second) {
        (Some(status), Some(text)) => Ok((status, Template::parse(text)?)),
        (Some(status), None) => Ok((status, Template { parts: Vec::new() })),
        (None, None) if is_absolute(&first.bytes) => Ok((302, Template::parse(first)?)),
        (None, _) => Err(Fault::at(
            first,
            format!("invalid return code \"{}\"", first.text()),
        )),
    }
}

fn check(setter: &Setter<'_>, of_line: fn(&Line) -> Result<(), Fault>) -> Result<(), Fault> {
    setter.lines().iter().try_for_each(|line| of_line(line))
}
