//! Example configurations for the manual pages.
//!
//! The texts are complete configurations, so that a test can run `-t` on each.

/// A complete configuration, and one sentence about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Example {
    /// The sentence.
    pub title: &'static str,
    /// The content of the configuration file.
    pub text: &'static str,
}

/// Top-level blocks other than `http` that have directives with the same names as directives of
/// `http`.
pub(crate) const BLOCKS: [&str; 2] = ["stream", "memcached"];

/// Begins the first line of an example, which contains its title.
const MARK: &str = "#: ";

/// The examples of a file, in which each begins with a line `#: TITLE`.
pub fn read(file: &'static str) -> impl Iterator<Item = Example> {
    let mut rest = file;
    std::iter::from_fn(move || {
        let begin = rest.strip_prefix(MARK)?;
        let (title, text) = begin.split_once('\n').unwrap_or((begin, ""));
        let end = text.find("\n#: ").map_or(text.len(), |end| end + 1);
        let (text, others) = text.split_at(end);
        rest = others;
        Some(Example {
            title,
            text: text.trim_end_matches('\n'),
        })
    })
}

impl Example {
    /// Whether the example contains the directive `name`.
    pub(crate) fn shows(&self, name: &str) -> bool {
        names(self.text).any(|known| known == name)
    }

    /// The member of [`BLOCKS`] that the example uses, if any.
    pub(crate) fn block(&self) -> Option<&'static str> {
        BLOCKS.into_iter().find(|block| self.shows(block))
    }
}

/// The names of all directives of a configuration: the first word of each.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    let mut is_first = true;
    std::iter::from_fn(move || {
        loop {
            rest = rest.trim_start();
            let first = rest.chars().next()?;
            match first {
                '#' => rest = rest.split_once('\n').map_or("", |(_, after)| after),
                ';' | '{' | '}' => {
                    is_first = true;
                    rest = &rest[1..];
                }
                '"' | '\'' => {
                    let after = &rest[1..];
                    rest = after.split_once(first).map_or("", |(_, after)| after);
                    is_first = false;
                }
                _ => {
                    let end = rest.find(|c: char| c.is_whitespace() || ";{}".contains(c));
                    let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
                    rest = after;
                    if std::mem::take(&mut is_first) {
                        return Some(word);
                    }
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "#: One.\nhttp {\n    log_format a '$x; {';\n}\n\n#: Two.\nstream {\n    \
                        server { listen 1; } # root\n}\n";

    #[test]
    fn a_file_holds_several() {
        let examples: Vec<Example> = read(FILE).collect();
        assert_eq!(examples.len(), 2);
        assert_eq!((examples[0].title, examples[1].title), ("One.", "Two."));
        assert_eq!(examples[0].text, "http {\n    log_format a '$x; {';\n}");
    }

    #[test]
    fn an_example_shows_the_directives_that_it_has() {
        let [one, two] = [0, 1].map(|place| read(FILE).nth(place).unwrap());
        let names: Vec<&str> = names(one.text).collect();
        assert_eq!(names, ["http", "log_format"]);
        assert!(one.shows("log_format") && one.block().is_none());
        assert!(two.shows("listen") && !two.shows("root") && two.block() == Some("stream"));
    }
}
