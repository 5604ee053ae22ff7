//! The tree of lines that a configuration is.

use std::fmt::Write as _;

/// One directive with its arguments, and what stands in its braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The directive's name.
    pub(crate) name: String,
    /// Its arguments as they are written, quotes included.
    pub(crate) arguments: Vec<String>,
    /// The lines in its braces; `None` where it ends with `;`.
    pub(crate) block: Option<Vec<Line>>,
}

impl Line {
    /// A line that ends with `;`.
    pub(crate) fn new(name: &str, arguments: &[&str]) -> Line {
        Line::with(
            name,
            arguments.iter().map(|one| String::from(*one)).collect(),
        )
    }

    /// The same with the arguments' own strings.
    pub(crate) fn with(name: &str, arguments: Vec<String>) -> Line {
        Line {
            name: String::from(name),
            arguments,
            block: None,
        }
    }

    /// A line with braces.
    pub(crate) fn block(name: &str, arguments: &[&str], inner: Vec<Line>) -> Line {
        Line {
            block: Some(inner),
            ..Line::new(name, arguments)
        }
    }

    /// A line written as text, without its `;`: words parted by single spaces, without quotes.
    pub(crate) fn words(text: &str) -> Line {
        let mut words = text.split(' ');
        let name = words.next().unwrap_or_default();
        Line::with(name, words.map(String::from).collect())
    }

    /// What stands in the braces.
    pub(crate) fn inner(&self) -> &[Line] {
        self.block.as_deref().unwrap_or_default()
    }

    /// Calls for this line and for every line in its braces.
    pub(crate) fn visit(&self, act: &mut impl FnMut(&Line)) {
        act(self);
        for line in self.inner() {
            line.visit(act);
        }
    }

    /// Writes the line, indented by so many steps.
    pub(crate) fn write(&self, depth: usize, text: &mut String) {
        let indent = "    ".repeat(depth);
        let _ = write!(text, "{indent}{}", self.name);
        for argument in &self.arguments {
            let _ = write!(text, " {argument}");
        }
        match &self.block {
            None => text.push_str(";\n"),
            Some(inner) => {
                text.push_str(" {\n");
                for line in inner {
                    line.write(depth + 1, text);
                }
                let _ = writeln!(text, "{indent}}}");
            }
        }
    }
}
