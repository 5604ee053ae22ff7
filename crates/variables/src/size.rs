//! Sizes and rates that may contain variables, such as `limit_rate $rate`.
//!
//! The directives that use these sizes are in other crates.

use conf::{Fault, Setter, Template, parse};
use framework::compile::Compiler;

use crate::{Compiling as _, Context, Text};

/// A size as the configuration writes it.
#[derive(Clone, Debug)]
pub enum WrittenSize {
    /// A size written without variables.
    Fixed(u64),
    /// A size written with variables.
    Variable(Template),
}

impl WrittenSize {
    /// Parses the first argument of a line, as the parse function of a [`conf::Setting`].
    ///
    /// # Errors
    /// If the size or a variable's name is invalid.
    pub fn parse(setter: &Setter<'_>) -> Result<WrittenSize, Fault> {
        let word = setter.word()?;
        if word.bytes.contains(&b'$') {
            return Template::parse(word).map(WrittenSize::Variable);
        }
        parse::size(setter).map(WrittenSize::Fixed)
    }
}

/// A size, compiled for a kind of context.
pub enum Size<C> {
    /// One size for all contexts.
    Fixed(u64),
    /// A size that is evaluated for each context.
    Text(Text<C>),
}

impl<C> Clone for Size<C> {
    fn clone(&self) -> Size<C> {
        match self {
            Size::Fixed(bytes) => Size::Fixed(*bytes),
            Size::Text(text) => Size::Text(text.clone()),
        }
    }
}

impl<C: Context> Size<C> {
    /// Compiles a written size.
    pub fn compile(compiler: &Compiler<'_>, written: WrittenSize) -> Size<C> {
        match written {
            WrittenSize::Fixed(bytes) => Size::Fixed(bytes),
            WrittenSize::Variable(template) => Size::Text(compiler.text(&template)),
        }
    }

    /// The size in bytes for this context; 0 if the value is invalid, which is logged. `doing` is
    /// the phrase at the end of the log line.
    pub fn evaluate(&self, context: &mut C, doing: &str) -> u64 {
        let text = match self {
            Size::Fixed(bytes) => return *bytes,
            Size::Text(text) => text,
        };
        let value = text.evaluate(context);
        let size = std::str::from_utf8(&value).ok().and_then(parse::size_text);
        size.unwrap_or_else(|| {
            let value = logs::Printable(&value);
            logs::error!(context, Error, "invalid size \"{value}\"{doing}");
            0
        })
    }
}
