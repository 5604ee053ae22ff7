//! The tidy test: automated checks for what reviewers would otherwise have to repeat.
//!
//! It reads every tracked file and prints findings as `FILE:LINE: what`. It checks form only; other
//! tests check that the code is correct.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{arrows, below, house, source, tracked_files, words};

/// Maximum length of a file, in lines without tests. A longer file contains more than one idea.
const FILE_LINES_MAX: usize = 1000;

/// Crates that may contain `unsafe`, and single files of other crates that may.
const UNSAFE_CRATES: &[&str] = &["crates/engine/", "crates/process/"];
const UNSAFE_FILES: &[&str] = &[
    "crates/base/src/vector.rs",
    "crates/netstack/tests/script/linux.rs",
    "crates/store/src/region.rs",
];

/// Crates that process bytes of a peer or files of an operator, in which calls that may panic need
/// a justification.
const MUST_NOT_PANIC: &[&str] = &[
    "crates/proto/",
    "crates/netstack/",
    "crates/conf/",
    "crates/framework/",
    "crates/logs/",
    "crates/variables/",
    "crates/transport/",
    "crates/rules/",
    "crates/http/",
    "crates/modules/",
    "crates/server/",
    "crates/acme/",
    "crates/memcached/",
];

/// Calls that are not allowed anywhere, with advice.
const BANNED: &[(&str, &str)] = &[
    ("todo!(", "finish it or leave it out"),
    ("unimplemented!(", "finish it or leave it out"),
    ("dbg!(", "a leftover of debugging"),
];

/// Macros that write to the terminal, which are only for the command line, the tools and tests.
const PRINTING: &[&str] = &["println!(", "print!(", "eprintln!(", "eprint!("];

/// All findings in the repository at `root`, in the order of the files.
pub fn findings(root: &Path) -> Result<Vec<String>, String> {
    let files = tracked_files(root)?;
    let mut findings = Vec::new();
    for file in &files {
        let Ok(text) = std::fs::read_to_string(root.join(file)) else {
            continue; // not text
        };
        findings.extend(machine_paths(file, &text));
        findings.extend(words::findings(file, &text));
        if file.ends_with(".rs") {
            findings.extend(rust_file(file, &text));
        }
    }
    findings.extend(arrows::findings(root, &files));
    findings.extend(below::findings(root, &files));
    findings.extend(house::findings(root, &files));
    findings.extend(dead_files(root, &files));
    findings.extend(unlinked_pages(root, &files));
    findings.extend(untested_directives(root, &files));
    Ok(findings)
}

/// Checks that need only one Rust file.
fn rust_file(file: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    if !text.starts_with("//!") {
        findings.push(format!(
            "{file}:1: does not open with `//!`: what it is, and what it deliberately does not do"
        ));
    }
    let code = source::code_only(text);
    let own = source::without_tests(&code);
    if is_test_code(file) {
        findings.extend(calls(file, text, &code, true));
        return findings;
    }
    let lines = source::lines_without_tests(&code);
    if lines > FILE_LINES_MAX {
        findings.push(format!("{file}:1: {lines} lines without tests, more than {FILE_LINES_MAX}: what second idea lives in it?"));
    }
    findings.extend(calls(file, text, &own, false));
    findings
}

fn is_test_code(file: &str) -> bool {
    file.starts_with("tests/")
        || file.contains("/tests/")
        || file.ends_with("/tests.rs")
        || file.ends_with("/testing.rs")
        || file.starts_with("benches/")
        || file.contains("/benches/")
        || file.starts_with("fuzz/")
}

/// Banned calls in one file. `code` has comments and strings blanked, `text` is the original.
fn calls(file: &str, text: &str, code: &str, test: bool) -> Vec<String> {
    let original: Vec<&str> = text.lines().collect();
    let mut findings = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut report = |what: String| findings.push(format!("{file}:{}: {what}", index + 1));
        for (call, advice) in BANNED {
            if has_call(line, call) {
                report(format!("`{call}…)`: {advice}"));
            }
        }
        if has_word(line, "unsafe") && !may_be_unsafe(file) && !line.contains("unsafe_code") {
            report("`unsafe` outside the crates engine and process".to_string());
        }
        if test {
            continue;
        }
        if PRINTING.iter().any(|call| has_call(line, call)) && !may_print(file) {
            report("prints: say it in the log, or return it".to_string());
        }
        if MUST_NOT_PANIC.iter().any(|folder| file.starts_with(folder))
            && (line.contains(".unwrap()") || line.contains(".expect("))
            && !states_invariant(&original, index)
        {
            report("`unwrap` or `expect` without an `// invariant:` comment beside it".to_string());
        }
    }
    findings
}

fn may_be_unsafe(file: &str) -> bool {
    UNSAFE_CRATES.iter().any(|folder| file.starts_with(folder)) || UNSAFE_FILES.contains(&file)
}

fn may_print(file: &str) -> bool {
    // The command line and the tools write to a terminal.
    file.starts_with("src/")
        || file.starts_with("xtask/")
        || file.ends_with("/main.rs")
        || file.ends_with("build.rs")
        || file.contains("examples/")
}

/// Whether the line, or the comment directly above it, states why the call cannot fail.
fn states_invariant(lines: &[&str], index: usize) -> bool {
    let says = |line: &&str| line.contains("// invariant:") || line.contains("// Invariant:");
    if lines.get(index).is_some_and(says) {
        return true;
    }
    let above = lines.get(..index).unwrap_or_default();
    above
        .iter()
        .rev()
        .take_while(|line| line.trim_start().starts_with("//"))
        .any(says)
}

fn has_call(line: &str, call: &str) -> bool {
    line.match_indices(call)
        .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|part| part == word)
}

/// Finds paths that exist only on an author's machine. They are written in two halves here, so that
/// this file does not match.
fn machine_paths(file: &str, text: &str) -> Vec<String> {
    const HALVES: &[(&str, &str)] = &[
        ("/wo", "rk/"),
        ("/fa", "rm/"),
        ("/opt/t", "g"),
        ("/opt/re", "f"),
        (".libr", "ary/"),
        (".mir", "ror/"),
        ("/ho", "me/"),
    ];
    let paths: Vec<String> = HALVES.iter().map(|(a, b)| format!("{a}{b}")).collect();
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        // A folder of the same name within another path, as in `target/debug/…`, is no match.
        let starts = |path: &String| {
            line.match_indices(path.as_str()).any(|(at, _)| {
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-./$}@".contains(c))
            })
        };
        if let Some(path) = paths.iter().find(|path| starts(path)) {
            findings.push(format!(
                "{file}:{}: names a path of one machine ({path}…)",
                index + 1
            ));
        }
    }
    findings
}

/// Rust files that are not reachable by `mod` from a crate's root and thus never compiled.
fn dead_files(root: &Path, files: &[String]) -> Vec<String> {
    let all: BTreeSet<&str> = files
        .iter()
        .map(String::as_str)
        .filter(|file| file.ends_with(".rs"))
        .collect();
    let mut reached: BTreeSet<String> = BTreeSet::new();
    let mut open: Vec<String> = all
        .iter()
        .filter(|file| is_crate_root(file))
        .map(|file| file.to_string())
        .collect();
    while let Some(file) = open.pop() {
        if !reached.insert(file.clone()) {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&file)).unwrap_or_default();
        for (name, path) in source::declared_modules(&text) {
            for candidate in module_files(&file, &name, path.as_deref()) {
                if all.contains(candidate.as_str()) {
                    open.push(candidate);
                }
            }
        }
    }
    all.iter()
        .filter(|file| !reached.contains(**file))
        .map(|file| format!("{file}:1: no `mod` reaches this file"))
        .collect()
}

fn is_crate_root(file: &str) -> bool {
    let parts: Vec<&str> = file.split('/').collect();
    let Some((name, folders)) = parts.split_last() else {
        return false;
    };
    match folders.last() {
        Some(&"src") => matches!(*name, "lib.rs" | "main.rs"),
        Some(&("bin" | "tests" | "benches" | "examples" | "fuzz_targets")) => true,
        // For instance tests/parity/main.rs, or build.rs next to a Cargo.toml.
        _ => {
            (*name == "main.rs"
                && folders.len() >= 2
                && matches!(
                    folders[folders.len() - 2],
                    "tests" | "benches" | "examples" | "bin"
                ))
                || *name == "build.rs"
        }
    }
}

/// The possible files of module `name`, declared in `file`.
fn module_files(file: &str, name: &str, path: Option<&str>) -> Vec<String> {
    let (folder, own) = file.rsplit_once('/').unwrap_or(("", file));
    if let Some(path) = path {
        return vec![format!("{folder}/{path}")];
    }
    let base = if is_crate_root(file) || own == "mod.rs" {
        folder.to_string()
    } else {
        format!("{folder}/{}", own.trim_end_matches(".rs"))
    };
    vec![format!("{base}/{name}.rs"), format!("{base}/{name}/mod.rs")]
}

/// Pages of docs/ without a link from another page. The pages in docs/directives are generated, and
/// a link to their folder is sufficient.
fn unlinked_pages(root: &Path, files: &[String]) -> Vec<String> {
    let pages: Vec<&String> = files.iter().filter(|file| file.ends_with(".md")).collect();
    let mut linked: BTreeSet<String> = BTreeSet::new();
    for page in &pages {
        let text = std::fs::read_to_string(root.join(page)).unwrap_or_default();
        for target in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', '#', ' ']).next())
        {
            linked.insert(resolve(page, target));
        }
    }
    let folder_linked = |page: &str| {
        page.rsplit_once('/')
            .is_some_and(|(folder, _)| folder == "docs/directives" && linked.contains(folder))
    };
    files
        .iter()
        .filter(|file| file.starts_with("docs/") && !linked.contains(*file) && !folder_linked(file))
        .map(|file| format!("{file}:1: no page links here"))
        .collect()
}

/// The file that a link `target` in `page` refers to, relative to the repository.
fn resolve(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Directives of the manual that no test below tests/ sets.
fn untested_directives(root: &Path, files: &[String]) -> Vec<String> {
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let mut words: BTreeSet<String> = BTreeSet::new();
    let repeated = read(REPEATED);
    for file in files.iter().filter(|file| may_test_directives(file)) {
        let written = words_without_lists(&read(file));
        for (prefix, other) in repetitions(&repeated, file) {
            let stems = written.iter().filter_map(|word| word.strip_prefix(prefix));
            words.extend(stems.map(|stem| format!("{other}{stem}")));
        }
        words.extend(written);
    }
    let table = read("docs/directives/README.md");
    let names = table
        .lines()
        .filter_map(|line| line.strip_prefix("| [")?.split(']').next());
    names
        .filter(|name| !words.contains(*name))
        .map(|name| format!("docs/directives/README.md:1: no test below tests/ sets `{name}`"))
        .collect()
}

/// Lists tests whose lines are also run for other families of directives; its format is explained
/// in the file.
const REPEATED: &str = "tests/repeated-directives.txt";

/// Pairs of the prefix in a test's directives and a prefix that replaces it.
fn repetitions<'a>(list: &'a str, file: &str) -> Vec<(&'a str, &'a str)> {
    let mut all = Vec::new();
    for line in list.lines() {
        let mut words = line.split(' ');
        if words.next() == Some(file)
            && let Some(prefix) = words.next()
        {
            all.extend(words.map(|other| (prefix, other)));
        }
    }
    all
}

/// Whether naming a directive in this file counts as a test of it. Lists of directives, transcripts
/// of nginx's answers and nginx's own suite do not count.
fn may_test_directives(file: &str) -> bool {
    file.starts_with("tests/")
        && !file.starts_with("tests/nginx-suite")
        && !file.starts_with("tests/parity/transcripts/")
        && !file.ends_with(".md")
        && ![
            "tests/parity/coverage.rs",
            "tests/parity/version-differences.txt",
            REPEATED,
        ]
        .contains(&file)
}

/// The words in a test, outside of comments and of the list of what a case covers.
fn words_without_lists(text: &str) -> BTreeSet<String> {
    // In a Rust string literal, `\n` may start a new line of configuration.
    let text = text.replace("\\n", " ");
    let lines = text.lines().map(|line| match line.trim_start() {
        comment if comment.starts_with("//") || comment.starts_with('#') => "",
        _ => line.split("covers ").next().unwrap_or_default(),
    });
    lines
        .flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .map(str::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let findings = findings(&crate::repository()).unwrap();
        assert!(
            findings.is_empty(),
            "{} findings:\n{}",
            findings.len(),
            findings.join("\n")
        );
    }

    #[test]
    fn banned_calls_are_found_outside_comments_and_strings() {
        let text = "//! A file.\nfn a() { todo!() }\n// todo!()\nconst B: &str = \"todo!()\";\n";
        assert_eq!(
            rust_file("crates/base/src/a.rs", text),
            ["crates/base/src/a.rs:2: `todo!(…)`: finish it or leave it out"]
        );
    }

    #[test]
    fn panics_need_an_invariant_where_peers_reach() {
        let bare = "//! A file.\nfn a() { b.unwrap(); }\n";
        let stated = "//! A file.\nfn a() {\n    // invariant: b was set above\n    b.unwrap();\n    c.expect(\"\"); // invariant: c too\n}\n";
        let tested = "//! A file.\n#[cfg(test)]\nmod tests { fn a() { b.unwrap(); } }\n";
        assert_eq!(rust_file("crates/proto/src/a.rs", bare).len(), 1);
        assert_eq!(rust_file("crates/engine/src/a.rs", bare).len(), 0);
        assert_eq!(rust_file("crates/proto/src/a.rs", stated).len(), 0);
        assert_eq!(rust_file("crates/proto/src/a.rs", tested).len(), 0);
    }

    #[test]
    fn unsafe_stays_in_its_crates() {
        let text = "//! A file.\nfn a() { unsafe { b() } }\n";
        assert_eq!(rust_file("crates/server/src/a.rs", text).len(), 1);
        assert_eq!(rust_file("crates/engine/src/a.rs", text).len(), 0);
        assert_eq!(
            rust_file(
                "crates/server/src/a.rs",
                "//! A file.\n#![forbid(unsafe_code)]\n"
            )
            .len(),
            0
        );
    }

    #[test]
    fn long_files_are_named_and_their_tests_not_counted() {
        let code = "fn a() {}\n".repeat(FILE_LINES_MAX + 1);
        assert_eq!(
            rust_file("crates/base/src/a.rs", &format!("//! A file.\n{code}")).len(),
            1
        );
        assert_eq!(
            rust_file(
                "crates/base/src/a.rs",
                &format!("//! A file.\n#[cfg(test)]\nmod tests {{\n{code}}}\n")
            )
            .len(),
            0
        );
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        let path = ["/wo", "rk/main"].concat();
        assert_eq!(machine_paths("a.md", &format!("see {path}")).len(), 1);
        assert_eq!(machine_paths("a.md", &format!("see target{path}")).len(), 0);
    }

    #[test]
    fn a_directive_is_not_tested_by_being_listed() {
        for list in [
            "tests/parity/coverage.rs",
            "tests/parity/transcripts/log.txt",
        ] {
            assert!(!may_test_directives(list), "{list}");
        }
        assert!(may_test_directives("tests/parity/cases/log.parity"));
        let words = words_without_lists(
            "// gzip on;\n# etag off;\nlocation / { expires 1h; }\ncase | GET / | covers max_ranges=1\n",
        );
        assert!(words.contains("expires"));
        assert!(
            !["gzip", "etag", "max_ranges"]
                .iter()
                .any(|name| words.contains(*name))
        );
    }

    #[test]
    fn links_resolve_against_their_page() {
        assert_eq!(resolve("docs/a/b.md", "../c.md"), "docs/c.md");
        assert_eq!(resolve("README.md", "docs/directives/"), "docs/directives");
    }

    #[test]
    fn modules_stand_beside_their_parent() {
        assert_eq!(
            module_files("crates/a/src/lib.rs", "b", None)[0],
            "crates/a/src/b.rs"
        );
        assert_eq!(
            module_files("crates/a/src/b.rs", "c", None)[0],
            "crates/a/src/b/c.rs"
        );
        assert_eq!(
            module_files("crates/a/src/b/mod.rs", "c", None)[1],
            "crates/a/src/b/c/mod.rs"
        );
        assert!(
            is_crate_root("tests/parity/main.rs")
                && is_crate_root("tests/reload.rs")
                && !is_crate_root("tests/parity/case.rs")
        );
    }
}
