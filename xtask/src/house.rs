//! Checks two rules of the repository: a type's name is defined in at most two crates, and the root
//! contains only known files and folders.
//!
//! A name that many crates use says nothing without its module. The allowed exceptions are terms of
//! the field, or are always written with their module; each list gives its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::source;

/// Maximum number of crates that may define a type of the same name, without an exception.
const CRATES_MAX: usize = 2;

/// The exceptions, grouped by reason.
const ALLOWED: &[(&str, &[&str])] = &[
    (
        "What the protocols and their RFCs call it; named behind the crate or module (`h2::Stream`).",
        &[
            "Address",
            "Addresses",
            "Body",
            "Client",
            "Command",
            "ConnectError",
            "Connection",
            "Destination",
            "Escape",
            "Event",
            "Field",
            "Format",
            "Framing",
            "Head",
            "Header",
            "Host",
            "Identity",
            "Incoming",
            "Level",
            "Listen",
            "Mode",
            "Network",
            "Options",
            "Origin",
            "Outgoing",
            "Packet",
            "Page",
            "Phase",
            "Protocol",
            "Proxy",
            "Record",
            "Request",
            "Segment",
            "Server",
            "ServerNames",
            "Session",
            "Sessions",
            "Socket",
            "Status",
            "Stream",
            "Target",
            "Text",
            "Tls",
            "Token",
            "Value",
            "Values",
            "Version",
        ],
    ),
    (
        "What one module is set up with; named behind the module (`tcp::Settings`).",
        &[
            "Check",
            "Conditions",
            "Flags",
            "Kind",
            "Limit",
            "Limits",
            "Plan",
            "Purpose",
            "Rule",
            "Settings",
            "ZoneSettings",
        ],
    ),
    (
        "Data structures and their parts, private to the module that has them or named behind it.",
        &[
            "Block",
            "Builder",
            "Cache",
            "Candidate",
            "Compiled",
            "Compiler",
            "Content",
            "Direction",
            "Directive",
            "Engine",
            "Entry",
            "Family",
            "Group",
            "Groups",
            "Job",
            "Key",
            "Memory",
            "Pool",
            "Queue",
            "Reader",
            "Sender",
            "Slot",
            "Source",
            "Span",
            "Store",
            "Table",
            "Writer",
        ],
    ),
    (
        "A state that a machine of its own is in, or what comes of one step of it; private to the module.",
        &[
            "Comparison",
            "Fault",
            "Order",
            "Progress",
            "Reason",
            "State",
            "Verdict",
        ],
    ),
];

/// The allowed folders and files at the root of the repository.
const ROOT: &[&str] = &[
    ".cargo",
    ".ci",
    ".gitattributes",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "Makefile",
    "README.md",
    "ROADMAP.md",
    "SECURITY.md",
    "benches",
    "crates",
    "docs",
    "examples",
    "fuzz",
    "packaging",
    "rust-toolchain.toml",
    "src",
    "tests",
    "xtask",
];

/// Names in too many crates, unnecessary exceptions, and unknown files at the root.
pub fn findings(root: &Path, files: &[String]) -> Vec<String> {
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| holds_types(file)) {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        let code = source::without_tests(&source::code_only(&text));
        for name in types(&code) {
            names.entry(name).or_default().insert(crate_of(file));
        }
    }
    let mut findings = of_names(&names);
    findings.extend(of_root(files));
    findings
}

fn of_names(names: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let is_allowed = |name: &str| ALLOWED.iter().any(|(_, list)| list.contains(&name));
    let mut findings = Vec::new();
    for (name, crates) in names {
        if crates.len() > CRATES_MAX && !is_allowed(name) {
            let crates: Vec<&str> = crates.iter().map(String::as_str).collect();
            findings.push(format!(
                "the type name `{name}` stands in {}: call each what it is",
                crates.join(", ")
            ));
        }
    }
    let needed = |name: &str| names.get(name).is_some_and(|all| all.len() > CRATES_MAX);
    for name in ALLOWED.iter().flat_map(|(_, list)| list.iter()) {
        if !needed(name) {
            findings.push(format!(
                "xtask/src/house.rs:1: `{name}` needs no allowance any more"
            ));
        }
    }
    findings
}

fn of_root(files: &[String]) -> Vec<String> {
    let top: BTreeSet<&str> = files
        .iter()
        .filter_map(|file| file.split('/').next())
        .collect();
    top.into_iter()
        .filter(|name| !ROOT.contains(name))
        .map(|name| format!("{name}:1: stands at the root, where only what is known may stand"))
        .collect()
}

/// Whether the types of a file count: those in tests and benches do not.
fn holds_types(file: &str) -> bool {
    let folders = ["tests/", "benches/", "fuzz/", "examples/"];
    file.ends_with(".rs")
        && !folders.iter().any(|folder| file.starts_with(folder))
        && !folders
            .iter()
            .any(|folder| file.contains(&format!("/{folder}")))
        && !file.ends_with("/tests.rs")
        && !file.ends_with("/testing.rs")
}

fn crate_of(file: &str) -> String {
    let mut parts = file.split('/');
    match parts.next() {
        Some("crates") => parts.next().unwrap_or_default().to_string(),
        Some(folder) => folder.to_string(),
        None => String::new(),
    }
}

/// The types that the code defines. Associated types do not count, because their trait determines
/// their names.
fn types(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in code.lines() {
        let is_nested = line.starts_with(' ');
        let mut words = line
            .split_whitespace()
            .skip_while(|word| word.starts_with("pub") || word.ends_with(')'));
        let Some(kind) = words.next() else { continue };
        let is_type = ["struct", "enum", "trait", "union"].contains(&kind);
        if !(is_type || kind == "type" && !is_nested) {
            continue;
        }
        let Some(name) = words.next() else { continue };
        let end = name
            .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
            .unwrap_or(name.len());
        if name.starts_with(char::is_uppercase) {
            found.push(name[..end].to_string());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_and_associated_ones_are_not() {
        let code = "pub struct A<T>(T);\npub(crate) enum B {\n}\ntype C = A<u8>;\nimpl X for Y {\n    type D = u8;\n}\nmod inner {\n    trait E {}\n}\n";
        assert_eq!(types(code), ["A", "B", "C", "E"]);
    }

    #[test]
    fn a_name_in_three_crates_needs_an_allowance() {
        let crates = |list: &[&str]| list.iter().map(|name| name.to_string()).collect();
        let mut names = BTreeMap::new();
        names.insert("Thing".to_string(), crates(&["base", "conf"]));
        let of_thing = |names: &BTreeMap<String, BTreeSet<String>>| {
            let all = of_names(names);
            all.iter().filter(|found| found.contains("`Thing`")).count()
        };
        assert_eq!(of_thing(&names), 0);
        names.insert("Thing".to_string(), crates(&["base", "conf", "http"]));
        assert_eq!(of_thing(&names), 1);
    }

    #[test]
    fn what_is_not_known_may_not_stand_at_the_root() {
        let files = ["Cargo.toml", "src/main.rs", "dump"].map(str::to_string);
        assert_eq!(of_root(&files).len(), 1);
    }
}
