//! Sizes and rates that may hold variables, such as `limit_rate $rate`.
//!
//! What such a size bounds is the business of the directive that has it.

use conf::{Fault, Setter, Template, parse};
use framework::compile::Compiler;

use crate::request::Request;
use crate::text::Text;
use crate::variables::Compiling as _;

/// A size as written.
#[derive(Clone, Debug)]
pub enum WrittenSize {
    /// Without variables.
    Fixed(u64),
    /// With variables.
    Variable(Template),
}

impl WrittenSize {
    /// Reads the only argument of a line: [`conf::Setting`]'s parse function.
    ///
    /// # Errors
    /// What is no size, and what is no variable's name.
    pub fn parse(setter: &Setter<'_>) -> Result<WrittenSize, Fault> {
        let word = setter.word()?;
        if word.bytes.contains(&b'$') {
            return Template::parse(word).map(WrittenSize::Variable);
        }
        parse::size(setter).map(WrittenSize::Fixed)
    }
}

/// A size for requests.
#[derive(Clone, Debug)]
pub enum Size {
    /// The same for all.
    Fixed(u64),
    /// Each request's own.
    Text(Text),
}

impl Size {
    /// Compiles what was written.
    pub fn compile(compiler: &Compiler<'_>, written: WrittenSize) -> Size {
        match written {
            WrittenSize::Fixed(bytes) => Size::Fixed(bytes),
            WrittenSize::Variable(template) => Size::Text(compiler.text(&template)),
        }
    }

    /// Its bytes for this request; 0 where variables give no size, which the log is told. `doing` ends that line.
    pub fn evaluate(&self, request: &mut Request, doing: &str) -> u64 {
        let text = match self {
            Size::Fixed(bytes) => return *bytes,
            Size::Text(text) => text,
        };
        let value = text.evaluate(request);
        let size = std::str::from_utf8(&value).ok().and_then(parse::size_text);
        size.unwrap_or_else(|| {
            let value = logs::Printable(&value);
            logs::error!(request, Error, "invalid size \"{value}\"{doing}");
            0
        })
    }
}
