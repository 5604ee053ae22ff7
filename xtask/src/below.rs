//! Checks that the crates below the modules do not name directives of modules in string literals.
//! The compiler already prevents references in code.
//!
//! Directives are those that the crates declare. Names without an underscore are not checked,
//! because they are also words with other meanings.

use std::collections::BTreeSet;
use std::path::Path;

use crate::source;

/// The crates that the modules depend on.
const BELOW: &[&str] = &[
    "crates/framework/",
    "crates/http/",
    "crates/logs/",
    "crates/transport/",
    "crates/variables/",
];

/// Directives of modules whose names have another meaning as well: as a parameter of `listen` or
/// `resolver`, or as a directive's name without the prefix of its family.
const NAMESAKES: &[&str] = &["proxy_protocol", "ssl_verify", "status_zone"];

const MODULES: &str = "crates/modules/";

/// The places where a crate below the modules names a directive of a module.
pub fn findings(root: &Path, files: &[String]) -> Vec<String> {
    let sources = files.iter().filter(|file| file.ends_with(".rs"));
    let read = |file: &String| {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        (file.clone(), text)
    };
    judge(&sources.map(read).collect::<Vec<_>>())
}

fn judge(files: &[(String, String)]) -> Vec<String> {
    let of_modules = declared(files, |file| file.starts_with(MODULES));
    let is_other = |file: &str| !file.starts_with(MODULES);
    let mut others = declared(files, is_other);
    others.extend(declared_by_macros(files, is_other));
    others.extend(NAMESAKES);
    let names: BTreeSet<&str> = of_modules.difference(&others).copied().collect();
    let is_below = |file: &str| BELOW.iter().any(|folder| file.starts_with(folder));
    let mut findings = Vec::new();
    for (file, text) in files.iter().filter(|(file, _)| is_below(file)) {
        if is_of_tests(file) {
            continue;
        }
        let code = source::without_tests(&source::code_only(text));
        for (index, (line, code)) in text.lines().zip(code.lines()).enumerate() {
            let is_code = !code.trim().is_empty();
            let named = texts(line).filter(|_| is_code).flat_map(words);
            for name in named.filter(|word| names.contains(word)) {
                let place = index + 1;
                findings.push(format!(
                    "{file}:{place}: names `{name}`, a directive of a module"
                ));
            }
        }
    }
    findings
}

fn is_of_tests(file: &str) -> bool {
    ["/tests.rs", "/testing.rs"]
        .iter()
        .any(|end| file.ends_with(end))
        || file.contains("/tests/")
}

/// The directives with an underscore in their name that these files declare.
fn declared(files: &[(String, String)], are_these: impl Fn(&str) -> bool) -> BTreeSet<&str> {
    let these = files.iter().filter(|(file, _)| are_these(file));
    let declarations = these.flat_map(|(_, text)| text.split("Setting::new(").skip(1));
    let names = declarations.filter_map(|rest| {
        let rest = rest.trim_start().strip_prefix('"')?;
        rest.split('"').next()
    });
    names.filter(|name| name.contains('_')).collect()
}

/// The directives with an underscore in their name that a macro in these files declares: `NAME:
/// Type = "name", …`.
fn declared_by_macros(
    files: &[(String, String)],
    are_these: impl Fn(&str) -> bool,
) -> BTreeSet<&str> {
    let these = files.iter().filter(|(file, _)| are_these(file));
    let lines = these.flat_map(|(_, text)| text.lines());
    let names = lines.filter_map(|line| {
        let (left, right) = line.trim_start().split_once(" = \"")?;
        let name = left.split(':').next()?;
        let is_constant = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        (name.chars().all(is_constant) && left.contains(':')).then(|| right.split('"').next())?
    });
    names.filter(|name| name.contains('_')).collect()
}

/// The string literals in a line: the texts between pairs of quotes.
fn texts(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').skip(1).step_by(2)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directive_of_a_module_is_found_in_texts_alone() {
        let files = [
            (
                "crates/modules/src/dav.rs",
                "static A: Setting<()> = Setting::new(\n    \"dav_access\", &[]);\nstatic P: Setting<()> = Setting::new(\"proxy_protocol\", &[]);\nstatic B: Setting<()> = Setting::new(\"shared_by_both\", &[]);\nstatic E: Setting<()> = Setting::new(\"by_a_macro\", &[]);",
            ),
            (
                "crates/http/src/config/core.rs",
                "static C: Setting<()> = Setting::new(\"shared_by_both\", &[]);\n    D: u64 = \"by_a_macro\", parse;\nfn g() { is(\"by_a_macro\", \"proxy_protocol\") }\n// \"dav_access\"\nfn f() { is(\"a\", \"no dav_access here\") }\n#[cfg(test)]\nmod tests { const T: &str = \"dav_access\"; }",
            ),
            (
                "crates/server/src/explain.rs",
                "fn f() { is(\"dav_access\") }",
            ),
        ];
        let files = files.map(|(file, text)| (file.to_owned(), text.to_owned()));
        assert_eq!(
            judge(&files),
            ["crates/http/src/config/core.rs:5: names `dav_access`, a directive of a module"]
        );
    }
}
