//! Excerpts from the configurations of tests/parity, for pages of directives that have no example
//! in examples/directives. An excerpt shows the context of the directive and a value. Parts of the
//! configuration that matter only to other cases are left out.

use std::path::Path;

/// The folder of the cases, relative to the root of the repository.
pub const CASES: &str = "tests/parity/cases";

/// Replacements for the placeholders in cases.
const PLACEHOLDERS: [(&str, &str); 9] = [
    ("@ROOT@", "/var/www"),
    ("@PREFIX@", "/etc/nginx"),
    ("@PORT@", "8080"),
    ("@PORT2@", "8081"),
    ("@PORT3@", "8082"),
    ("127.0.0.1:@BACKEND@", "127.0.0.1:3000"),
    ("@BACKEND@", "127.0.0.1:3000"),
    ("@DEAD@", "127.0.0.1:3001"),
    ("@DNS@", "127.0.0.53"),
];

/// Maximum length of a line in an excerpt, in characters.
const WIDTH_MAX: usize = 100;

/// Maximum number of statements in a block that is shown with all its simple statements.
const NEIGHBOURS_MAX: usize = 6;

/// Maximum number of statements in the shown directive's own block.
const BLOCK_MAX: usize = 10;

/// A statement of a configuration, with its block if it has one.
#[derive(Debug, Default)]
struct Statement {
    words: String,
    block: Option<Vec<Statement>>,
}

impl Statement {
    fn name(&self) -> &str {
        self.words.split_whitespace().next().unwrap_or("")
    }

    fn lines(&self, depth: usize, out: &mut Vec<String>) {
        let indent = "    ".repeat(depth);
        match &self.block {
            None => out.push(format!("{indent}{};", self.words)),
            Some(block) => {
                out.push(format!("{indent}{} {{", self.words));
                block.iter().for_each(|inner| inner.lines(depth + 1, out));
                out.push(format!("{indent}}}"));
            }
        }
    }
}

/// The configuration of a case file.
pub struct Configuration {
    /// The name of the case file.
    pub file: String,
    statements: Vec<Statement>,
}

/// The configurations of all case files, sorted by file name.
pub fn load(root: &Path) -> Vec<Configuration> {
    let entries = std::fs::read_dir(root.join(CASES)).into_iter().flatten();
    let mut all: Vec<Configuration> = entries
        .flatten()
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let text = std::fs::read_to_string(entry.path()).ok()?;
            let statements = configuration(&text);
            Some(Configuration { file, statements })
        })
        .collect();
    all.sort_by(|one, other| one.file.cmp(&other.file));
    all
}

/// The statements in the sections of a case file that form nginx.conf.
fn configuration(text: &str) -> Vec<Statement> {
    let mut all = Vec::new();
    let mut rest = format!("\n{text}");
    for (from, to) in PLACEHOLDERS {
        rest = rest.replace(from, to);
    }
    for section in rest.split("\n[").skip(1) {
        let (name, body) = section.split_once("]\n").unwrap_or((section, ""));
        let statements = parse(&mut body.chars().peekable());
        match name {
            "main" => all.extend(statements),
            "events" | "http" => all.push(Statement {
                words: name.to_owned(),
                block: Some(statements),
            }),
            _ => {}
        }
    }
    all
}

/// Parses the statements up to the end of the block.
fn parse(text: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Vec<Statement> {
    let mut statements = Vec::new();
    let mut words = String::new();
    while let Some(character) = text.next() {
        let begins_word = words.is_empty() || words.ends_with(' ');
        match character {
            '#' if begins_word => while text.next_if(|next| *next != '\n').is_some() {},
            '"' | '\'' if begins_word || words.ends_with('(') => {
                words.push(character);
                while let Some(inner) = text.next() {
                    words.push(inner);
                    if inner == '\\' {
                        words.extend(text.next());
                    } else if inner == character {
                        break;
                    }
                }
            }
            '$' if text.peek() == Some(&'{') => {
                words.push(character);
                for inner in text.by_ref() {
                    words.push(inner);
                    if inner == '}' {
                        break;
                    }
                }
            }
            ';' | '{' => {
                let block = (character == '{').then(|| parse(text));
                let words = std::mem::take(&mut words).trim_end().to_owned();
                statements.push(Statement { words, block });
            }
            '}' => break,
            white if white.is_whitespace() => {
                if !begins_word {
                    words.push(' ');
                }
            }
            other => words.push(other),
        }
    }
    statements
}

/// The shortest excerpt that shows one of the names, and its file. A file whose name is a prefix of
/// a directive's name is preferred.
pub fn find<'a>(all: &'a [Configuration], names: &[&str]) -> Option<(&'a str, String)> {
    let mut best: Option<(usize, &str, Vec<String>)> = None;
    for configuration in all {
        let area = configuration.file.trim_end_matches(".parity");
        let is_own = names.iter().any(|name| name.starts_with(area));
        let mut found = Vec::new();
        excerpts(
            &configuration.statements,
            names,
            &mut Vec::new(),
            &mut found,
        );
        for lines in found {
            let cost = lines.len() + if is_own { 0 } else { 1000 };
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, &configuration.file, lines));
            }
        }
    }
    best.map(|(_, file, lines)| (file, lines.join("\n")))
}

fn excerpts<'a>(
    block: &'a [Statement],
    names: &[&str],
    path: &mut Vec<&'a Statement>,
    found: &mut Vec<Vec<String>>,
) {
    for statement in block {
        if names.contains(&statement.name()) {
            found.extend(excerpt(block, statement, path));
        }
        if let Some(inner) = &statement.block {
            path.push(statement);
            excerpts(inner, names, path, found);
            path.pop();
        }
    }
}

/// The directive within its enclosing blocks; `None` if the excerpt would be too large.
fn excerpt(block: &[Statement], shown: &Statement, path: &[&Statement]) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    for (depth, around) in path.iter().enumerate() {
        lines.push(format!("{}{} {{", "    ".repeat(depth), around.words));
    }
    let is_small = path.len() > 2 && block.len() <= NEIGHBOURS_MAX;
    for statement in block {
        let is_it = std::ptr::eq(statement, shown);
        if is_it || (is_small && statement.block.is_none()) {
            statement.lines(path.len(), &mut lines);
        }
    }
    if shown
        .block
        .as_ref()
        .is_some_and(|inner| inner.len() > BLOCK_MAX)
    {
        return None;
    }
    for depth in (0..path.len()).rev() {
        lines.push(format!("{}}}", "    ".repeat(depth)));
    }
    let is_wide = |line: &String| line.chars().count() > WIDTH_MAX;
    (!lines.iter().any(is_wide)).then_some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: &str = "# about\n[fixture]\n/a = \"x\"\n\n[main]\nworker_processes 2;\n[http]\n\
        server { listen 127.0.0.1:@PORT@; # here\n location / { etag off; root @ROOT@; }\n\
        location /b { if ($arg_a = '}') { return 204; } } }\n\n[cases]\na | GET /\n";

    fn found(name: &str) -> Option<String> {
        let all = [Configuration {
            file: "static.parity".to_owned(),
            statements: configuration(CASE),
        }];
        find(&all, &[name]).map(|(_, text)| text)
    }

    #[test]
    fn a_directive_is_shown_in_its_blocks() {
        let etag = "http {\n    server {\n        location / {\n            etag off;\n            \
                    root /var/www;\n        }\n    }\n}";
        assert_eq!(found("etag").as_deref(), Some(etag));
        let listen = "http {\n    server {\n        listen 127.0.0.1:8080;\n    }\n}";
        assert_eq!(found("listen").as_deref(), Some(listen));
        assert_eq!(
            found("worker_processes").as_deref(),
            Some("worker_processes 2;")
        );
    }

    #[test]
    fn quotes_hold_marks() {
        let text = found("if").unwrap();
        assert!(
            text.contains("if ($arg_a = '}') {\n                return 204;"),
            "{text}"
        );
        assert_eq!(found("gzip"), None);
    }
}
