//! PCRE2's own first test file against this crate: `pcre2_suite FOLDER`, where FOLDER is `testdata`
//! of the sources of the pinned version. Those tests are no part of this repository.
//!
//! `testoutput1` holds patterns, subjects and what `pcre2test` answers. Each subject is matched;
//! verdict and groups must be those in the file. What nginx cannot ask for is given within the
//! pattern where PCRE2 allows it: `/m`, `/s`, `/x`, `/xx` and `/dupnames` as inline options,
//! `/no_start_optimize` as a setting. Of `/g`, the first match counts; of `/mark`, the verdict and
//! groups.

use std::path::Path;
use std::process::ExitCode;

use tidegate_pattern::{IrregularFeature, Pattern, Spans};

#[derive(Default)]
struct Counts {
    patterns: usize,
    automata: usize,
    refused: usize,
    subjects: usize,
    by_automata: usize,
    different: usize,
}

/// A pattern of the file with its modifiers, and what follows it up to the next one.
struct Case<'a> {
    pattern: Vec<u8>,
    modifiers: Vec<String>,
    lines: Vec<&'a [u8]>,
}

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: pcre2_suite FOLDER");
        return ExitCode::from(2);
    };
    let file = Path::new(&folder).join("testoutput1");
    let bytes = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) => {
            eprintln!("{}: {error}", file.display());
            return ExitCode::from(2);
        }
    };
    let mut counts = Counts::default();
    for case in cases(&bytes) {
        judge(&case, &mut counts);
    }
    println!(
        "{} patterns: {} as automata, {} by PCRE2, {} refused\n{} subjects: {} by automata, {} different",
        counts.patterns,
        counts.automata,
        counts.patterns - counts.automata - counts.refused,
        counts.refused,
        counts.subjects,
        counts.by_automata,
        counts.different
    );
    ExitCode::from(u8::from(
        counts.refused + counts.different > 0 || counts.subjects == 0,
    ))
}

fn cases(bytes: &[u8]) -> Vec<Case<'_>> {
    let mut lines = bytes.split(|&byte| byte == b'\n').peekable();
    let (mut cases, mut always): (Vec<Case<'_>>, Vec<String>) = (Vec::new(), Vec::new());
    while let Some(line) = lines.next() {
        if let Some(command) = line.strip_prefix(b"#pattern ") {
            let words = std::str::from_utf8(command).unwrap_or_default().trim();
            match words.strip_prefix('-') {
                Some(word) => always.retain(|modifier| modifier != word),
                None => always.push(words.to_owned()),
            }
        }
        if !line.starts_with(b"/") {
            continue;
        }
        let mut text = line[1..].to_vec();
        let end = loop {
            if let Some(end) = delimiter(&text) {
                break end;
            }
            text.push(b'\n');
            text.extend_from_slice(lines.next().unwrap_or_default());
        };
        // The modifiers stand on the last line that was read.
        let mut modifiers = always.clone();
        let behind = String::from_utf8_lossy(&text[end + 1..]).into_owned();
        for word in behind.trim().split(',').filter(|word| !word.is_empty()) {
            let known = [
                "aftertext",
                "dupnames",
                "hex",
                "jitstack=256",
                "mark",
                "no_start_optimize",
                "subject_literal",
            ];
            let known = known.contains(&word);
            let letters = word.chars().all(|letter| "gimsx".contains(letter));
            assert!(known || letters, "unknown modifier {word}");
            modifiers.push(word.to_owned());
        }
        text.truncate(end);
        let mut following = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.trim_ascii().is_empty()) {
            following.push(line);
        }
        cases.push(Case {
            pattern: text,
            modifiers,
            lines: following,
        });
    }
    cases
}

/// Where a pattern ends: at a slash without a backslash.
fn delimiter(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'\\' => at += 2,
            b'/' => return Some(at),
            _ => at += 1,
        }
    }
}

/// Modifiers as PCRE2 takes them within a pattern, and whether it is caseless.
fn compile(case: &Case<'_>) -> Result<Pattern, String> {
    let mut pattern = case.pattern.clone();
    let (mut options, mut settings, mut caseless) = (String::new(), "", false);
    for modifier in &case.modifiers {
        match modifier.as_str() {
            "dupnames" => options.push('J'),
            "hex" => {
                let digits: Vec<u8> = pattern
                    .iter()
                    .copied()
                    .filter(u8::is_ascii_hexdigit)
                    .collect();
                let pairs = digits
                    .chunks(2)
                    .map(|pair| String::from_utf8_lossy(pair).into_owned());
                pattern = pairs
                    .filter_map(|pair| u8::from_str_radix(&pair, 16).ok())
                    .collect();
            }
            "no_start_optimize" => settings = "(*NO_START_OPT)",
            "aftertext" | "jitstack=256" | "mark" | "subject_literal" => {}
            letters => {
                caseless |= letters.contains('i');
                options.extend(letters.chars().filter(|letter| "msx".contains(*letter)));
            }
        }
    }
    if !options.is_empty() {
        options = format!("(?{options})");
    }
    let text = [settings.as_bytes(), options.as_bytes(), &pattern].concat();
    Pattern::new(&text, caseless).map_err(|refusal| refusal.to_string())
}

fn has(case: &Case<'_>, word: &str) -> bool {
    case.modifiers.iter().any(|modifier| modifier == word)
}

fn judge(case: &Case<'_>, counts: &mut Counts) {
    counts.patterns += 1;
    let shown = case.pattern.escape_ascii();
    let pattern = match compile(case) {
        Ok(pattern) => pattern,
        Err(refusal) => {
            counts.refused += 1;
            println!("refused: {shown}: {refusal}");
            return;
        }
    };
    counts.automata += usize::from(pattern.beyond().is_none());
    assert_ne!(
        pattern.beyond(),
        Some(IrregularFeature::Refused),
        "taken by PCRE2 only: {shown}"
    );
    let mut lines = case.lines.iter().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with(b"\\=") || line.starts_with(b"#") {
            continue;
        }
        let subject = if has(case, "subject_literal") {
            line.trim_ascii().to_vec()
        } else {
            unescaped(line)
        };
        let mut expected: Vec<String> = Vec::new();
        while let Some(line) = lines.next_if(|line| is_answer(line)) {
            expected.push(String::from_utf8_lossy(line).into_owned());
        }
        // Of several matches, the first.
        let mut seen = 0;
        expected.retain(|line| {
            seen += usize::from(line.starts_with(" 0: "));
            seen < 2 && !line.starts_with("MK: ")
        });
        for line in &mut expected {
            if line.starts_with("No match") {
                "No match".clone_into(line);
            }
        }
        let aftertext = has(case, "aftertext");
        let found = answer(&pattern, &subject, aftertext);
        counts.subjects += 1;
        counts.by_automata += usize::from(pattern.beyond().is_none());
        if found != expected {
            counts.different += 1;
            println!(
                "different: {shown} on {}: {found:?}, not {expected:?}",
                subject.escape_ascii()
            );
        }
    }
}

/// Whether a line is what `pcre2test` has answered; subjects begin with four blanks, or with none.
fn is_answer(line: &[u8]) -> bool {
    let number = line.strip_prefix(b" ").unwrap_or(line);
    let digits = number
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let group = digits > 0
        && matches!(
            number.get(digits..),
            Some([b':' | b'+', b' ', ..] | [b':' | b'+'])
        );
    group && !line.starts_with(b"    ")
        || line.starts_with(b"No match")
        || line.starts_with(b"MK: ")
        || line.starts_with(b"Failed: ")
}

fn answer(pattern: &Pattern, subject: &[u8], aftertext: bool) -> Vec<String> {
    let mut spans = Spans::default();
    match pattern.captures(subject, &mut spans) {
        Err(undecided) => return vec![format!("Failed: error {}", undecided.code)],
        Ok(false) => return vec!["No match".to_owned()],
        Ok(true) => {}
    }
    let last = (0..spans.len())
        .rev()
        .find(|&group| spans.get(group).is_some());
    let mut lines = Vec::new();
    for group in 0..=last.unwrap_or(0) {
        let text = match spans.get(group) {
            Some(range) => printed(&subject[range]),
            None => "<unset>".to_owned(),
        };
        lines.push(format!("{group:2}: {text}"));
        if let (true, Some(range)) = (aftertext && group == 0, spans.get(group)) {
            lines.push(format!("{group:2}+ {}", printed(&subject[range.end..])));
        }
    }
    lines
}

fn printed(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, &byte| match byte {
        32..=126 => text + &char::from(byte).to_string(),
        _ => text + &format!("\\x{byte:02x}"),
    })
}

/// A subject as `pcre2test` reads it.
fn unescaped(line: &[u8]) -> Vec<u8> {
    let line = line.trim_ascii();
    let (mut subject, mut at) = (Vec::new(), 0);
    while let Some(&byte) = line.get(at) {
        at += 1;
        if byte != b'\\' {
            subject.push(byte);
            continue;
        }
        let Some(&letter) = line.get(at) else { break };
        at += 1;
        let digits = |at: usize, radix: u32, max: usize| {
            let rest = &line[at..];
            let digit = |byte: &&u8| char::from(**byte).is_digit(radix);
            let count = rest.iter().take(max).take_while(digit).count();
            let text = std::str::from_utf8(&rest[..count]).unwrap_or_default();
            (u32::from_str_radix(text, radix).unwrap_or(0) as u8, count)
        };
        subject.push(match letter {
            b'a' => 7,
            b'b' => 8,
            b'e' => 27,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            b'=' => break,
            b'0'..=b'7' => {
                let (value, count) = digits(at - 1, 8, 3);
                at += count - 1;
                value
            }
            b'x' if line.get(at) == Some(&b'{') => {
                let (value, count) = digits(at + 1, 16, 8);
                at += count + 2;
                value
            }
            b'x' => {
                let (value, count) = digits(at, 16, 2);
                at += count;
                value
            }
            other => other,
        });
    }
    subject
}
