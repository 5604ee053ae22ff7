//! `set`: assigns values to variables of a session.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_set_module.html>

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setting, Template, Word};
use framework::compile::Compiler;
use variables::{Compiling as _, Context as _, Source, Text, Variable};

use crate::session::Session;

static SET: Setting<Vec<Assignment>> = Setting::new("set", &["$variable value"], |setter| {
    let read = |line: &&Line| {
        let variable = line.argument(0);
        if !variable.bytes.starts_with(b"$") {
            let text = format!("invalid variable name \"{}\"", variable.text());
            return Err(Fault::at(variable, text));
        }
        Ok(Assignment {
            variable: variable.clone(),
            value: Template::parse(line.argument(1))?,
        })
    };
    setter.lines().iter().map(read).collect()
})
.contexts(Contexts::STREAM_SERVER)
.arity(Arity::exactly(2))
.inherit(Inherit::List)
.manual("Gives a variable a value, before access is checked. Lines are carried out in order.");

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[&SET];

/// One `set` directive.
#[derive(Clone)]
struct Assignment {
    variable: Word,
    value: Template,
}

/// The assignments of a server.
pub(crate) struct Assignments(Box<[(Variable<Session>, Text<Session>)]>);

/// Defines the variables that `set` directives name, before anything else is compiled.
pub(crate) fn define(compiler: &Compiler<'_>, stream: ScopeRef<'_>) {
    for server in stream.children("server") {
        for line in server.own_lines(&SET.spec) {
            let word = line.argument(0);
            let text = word.text();
            // A word that is not a variable is reported when its directive is parsed.
            if let Some(name) = text.strip_prefix('$')
                && let Err(text) = compiler.define::<Session>(name, Source::Set)
            {
                compiler.report(Fault::at(word, text));
            }
        }
    }
}

/// Compiles the `set` directives of a server.
pub(crate) fn of_server(
    compiler: &Compiler<'_>,
    server: ScopeRef<'_>,
) -> Result<Assignments, Fault> {
    let lines = server.own(&SET)?.unwrap_or_default();
    let compiled = lines.iter().map(|line| {
        let text = line.variable.text();
        let name = text.strip_prefix('$').unwrap_or_default();
        (compiler.variable(name), compiler.text(&line.value))
    });
    Ok(Assignments(compiled.collect()))
}

impl Assignments {
    /// Assigns the values.
    pub(crate) fn apply(&self, session: &mut Session) {
        for (variable, text) in &self.0 {
            let mut value = Vec::new();
            text.append_to(session, &mut value);
            session.assign(*variable, Bytes::from(value));
        }
    }
}
