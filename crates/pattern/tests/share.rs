//! How much of what people write runs as automata: the patterns of this repository's tests, and
//! those of well-known configurations.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tidegate_pattern::{IrregularFeature, Pattern};

/// Patterns with whether they are caseless, by where they stand.
type Patterns = BTreeMap<String, Vec<(bool, Vec<u8>)>>;

#[test]
fn nineteen_of_twenty_patterns_run_as_automata() {
    let mut listed = listed(include_str!("configurations.list"));
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    let mut sites = Patterns::new();
    let mut others = Patterns::new();
    for file in files(&tests) {
        let name = file.strip_prefix(&tests).unwrap().display().to_string();
        // It holds what people hardly ever write.
        if name == "parity/cases/pattern.parity" {
            continue;
        }
        let found = written(&std::fs::read(&file).unwrap());
        match name.strip_prefix("sites/") {
            Some(site) => sites.insert(site.to_owned(), found),
            None => others.insert(name, found),
        };
    }
    assert!(sites.len() >= 10, "{:?}", sites.keys());
    listed.append(&mut sites);
    assert!(listed.len() >= 20, "{:?}", listed.keys());
    for (what, patterns, at_least) in [("configurations", listed, 200), ("tests", others, 80)] {
        let (automata, all, reasons) = count(patterns.values().flatten());
        println!("{what}: {automata} of {all} patterns run as automata; the others: {reasons:?}");
        assert!(all >= at_least, "only {all} patterns of {what}");
        assert!(
            automata * 100 >= all * 95,
            "{what}: only {automata} of {all}: {reasons:?}"
        );
    }
}

fn count<'a>(
    patterns: impl Iterator<Item = &'a (bool, Vec<u8>)>,
) -> (usize, usize, BTreeMap<String, usize>) {
    let (mut automata, mut all, mut reasons) = (0, 0, BTreeMap::new());
    for (caseless, text) in patterns {
        // Tests of errors write patterns that are none.
        let Ok(pattern) = Pattern::new(text, *caseless) else {
            continue;
        };
        all += 1;
        match pattern.beyond() {
            None => automata += 1,
            Some(beyond) => {
                assert_ne!(beyond, IrregularFeature::Refused, "{}", pattern.text());
                *reasons.entry(beyond.to_string()).or_default() += 1;
            }
        }
    }
    (automata, all, reasons)
}

fn listed(text: &str) -> Patterns {
    let mut all = Patterns::new();
    let mut name = String::new();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        match line.split_once(' ') {
            None => name = line.trim_matches(['[', ']']).to_owned(),
            Some((operator, pattern)) => {
                let caseless = operator == "~*";
                let bytes = pattern.as_bytes();
                assert!(Pattern::new(bytes, caseless).is_ok(), "{pattern}");
                all.entry(name.clone())
                    .or_default()
                    .push((caseless, bytes.to_vec()));
            }
        }
    }
    all
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.extension().and_then(|extension| extension.to_str());
        match kind {
            _ if path.is_dir() => all.append(&mut files(&path)),
            Some("conf" | "parity" | "conftest" | "rs") => all.push(path),
            _ => {}
        }
    }
    all
}

/// Patterns in configurations that a text holds: behind `~` and its kin, in `rewrite`, and words
/// that begin with `~`.
fn written(text: &[u8]) -> Vec<(bool, Vec<u8>)> {
    let mut all = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        let words = words(line);
        for (at, (word, quoted)) in words.iter().enumerate() {
            let next = || words.get(at + 1).map(|(word, _)| word.clone());
            let found = match (word.as_slice(), quoted) {
                (b"~" | b"!~", false) => next().map(|word| (false, word)),
                (b"~*" | b"!~*", false) => next().map(|word| (true, word)),
                (b"rewrite", false) => next().map(|word| (false, word)),
                ([b'~', b'*', pattern @ ..], _) => Some((true, pattern.to_vec())),
                ([b'~', pattern @ ..], _) => Some((false, pattern.to_vec())),
                _ => None,
            };
            all.extend(found.filter(|(_, pattern)| pattern.len() > 1));
        }
    }
    all
}

/// Words of a line of configuration, and whether they stood in quotes.
fn words(line: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii();
    while let Some(&first) = rest.first() {
        let quote = Some(first).filter(|first| matches!(first, b'"' | b'\''));
        let (mut word, mut at) = (Vec::new(), usize::from(quote.is_some()));
        while let Some(&byte) = rest.get(at) {
            let ends = match quote {
                Some(quote) => byte == quote,
                None => {
                    byte.is_ascii_whitespace()
                        || matches!(byte, b';' | b'{')
                            && rest
                                .get(at + 1)
                                .is_none_or(|next| next.is_ascii_whitespace())
                }
            };
            if ends {
                break;
            }
            if byte == b'\\' && matches!(rest.get(at + 1), Some(b'"' | b'\'' | b'\\')) {
                at += 1;
                if rest[at] == b'\\' {
                    word.push(b'\\');
                }
            }
            word.push(rest[at]);
            at += 1;
        }
        if quote.is_none()
            && word.last() == Some(&b')')
            && words
                .iter()
                .any(|(word, _): &(Vec<u8>, bool)| word.starts_with(b"("))
        {
            word.pop();
        }
        if !word.is_empty() {
            words.push((word, quote.is_some()));
        }
        rest = rest.get(at + 1..).unwrap_or_default().trim_ascii_start();
    }
    words
}
