//! A searchable view of Rust source: comments, strings and test code are blanked.
//!
//! This is not a parser. It recognises only comments, string and character literals, and braces,
//! which is enough for the tidy test.

use std::ops::Range;

/// The text with comments and string and character literals replaced by spaces. Line breaks stay,
/// so that line numbers do not change.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => line_end(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if !follows_a_word(bytes, at) || is_byte_string(bytes, at) => {
                match raw_string_end(bytes, at) {
                    Some(end) => end,
                    None => at,
                }
            }
            b'\'' => character_end(bytes, at),
            _ => at,
        };
        if end == at {
            at += 1;
            continue;
        }
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// Blanks items under `#[cfg(test)]`. Takes the output of [`code_only`].
pub fn without_tests(code: &str) -> String {
    let mut bytes = code.as_bytes().to_vec();
    for item in test_items(code) {
        for byte in &mut bytes[item] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The number of lines that are not under `#[cfg(test)]`. Takes the output of [`code_only`].
pub fn lines_without_tests(code: &str) -> usize {
    let tests: usize = test_items(code)
        .into_iter()
        .map(|item| code[item].lines().count())
        .sum();
    code.lines().count().saturating_sub(tests)
}

/// The byte ranges of items under `#[cfg(test)]`, including the attribute.
fn test_items(code: &str) -> Vec<Range<usize>> {
    const ATTRIBUTE: &str = "#[cfg(test)]";
    let mut items = Vec::new();
    let mut from = 0;
    while let Some(found) = code.get(from..).and_then(|rest| rest.find(ATTRIBUTE)) {
        let start = from + found;
        from = item_end(code.as_bytes(), start + ATTRIBUTE.len());
        items.push(start..from);
    }
    items
}

/// The modules declared with `mod name;` (without a body), each with the path in a preceding
/// `#[path]` attribute, if there is one. `text` is the original source.
pub fn declared_modules(text: &str) -> Vec<(String, Option<String>)> {
    let code = code_only(text);
    let mut modules = Vec::new();
    let mut path = None;
    for (line, original) in code.lines().zip(text.lines()) {
        if line.trim_start().starts_with("#[path") {
            path = original.split('"').nth(1).map(str::to_string);
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some(position) = words.iter().position(|word| *word == "mod")
            && let Some(name) = words.get(position + 1)
            && let Some(name) = name.strip_suffix(';')
        {
            modules.push((name.to_string(), path.take()));
        }
    }
    modules
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..]
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(bytes.len(), |offset| from + offset)
}

fn block_comment_end(bytes: &[u8], from: usize) -> usize {
    let mut depth = 0;
    let mut at = from;
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'/', Some(b'*')) => {
                depth += 1;
                at += 2;
            }
            (b'*', Some(b'/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of a raw string literal that starts at `from`; `None` if there is none.
fn raw_string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let hashes = bytes[from + 1..]
        .iter()
        .take_while(|byte| **byte == b'#')
        .count();
    if bytes.get(from + 1 + hashes) != Some(&b'"') {
        return None;
    }
    let mut at = from + 2 + hashes;
    while at < bytes.len() {
        if bytes[at] == b'"'
            && bytes[at + 1..]
                .iter()
                .take(hashes)
                .filter(|byte| **byte == b'#')
                .count()
                == hashes
        {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(bytes.len())
}

/// The end of a character literal; `from` itself if the quote starts a lifetime.
fn character_end(bytes: &[u8], from: usize) -> usize {
    match bytes.get(from + 1) {
        Some(b'\\') => {
            let after_escape = from + 3;
            bytes
                .get(after_escape..)
                .and_then(|rest| rest.iter().position(|byte| *byte == b'\''))
                .map_or(from, |offset| after_escape + offset + 1)
        }
        Some(_) => {
            // One character of one to four bytes, then a quote.
            (from + 2..from + 6)
                .find(|at| bytes.get(*at) == Some(&b'\''))
                .filter(|at| *at == from + 2 || !bytes[from + 1].is_ascii())
                .map_or(from, |at| at + 1)
        }
        None => from,
    }
}

fn follows_a_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

/// Whether the `r` at this index belongs to a byte string `br"…"`.
fn is_byte_string(bytes: &[u8], at: usize) -> bool {
    at > 0 && bytes[at - 1] == b'b' && !follows_a_word(bytes, at - 1)
}

/// The end of the item that starts at `from`: after its closing brace or its semicolon.
fn item_end(code: &[u8], from: usize) -> usize {
    let mut depth = 0usize;
    for (offset, byte) in code[from..].iter().enumerate() {
        match byte {
            b';' if depth == 0 => return from + offset + 1,
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return from + offset + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_characters_are_blanked() {
        let code = code_only(
            "let a = \"x // y\"; // tail\nlet b = '\"'; /* { */ let c: &'static str = r#\"}\"#;",
        );
        assert_eq!(code.lines().count(), 2);
        for gone in ["//", "tail", "{", "}", "x"] {
            assert!(!code.contains(gone), "{gone} is still in {code}");
        }
        for kept in ["let a =", "let b =", "let c: &'static str ="] {
            assert!(code.contains(kept), "{kept} is missing in {code}");
        }
    }

    #[test]
    fn escapes_do_not_end_a_literal() {
        assert_eq!(
            code_only(r#"a('\'', "\"", '\\', b'x') b"#).replace(' ', ""),
            "a(,,,b)b"
        );
    }

    #[test]
    fn test_modules_are_blanked_and_the_rest_stays() {
        let code = without_tests(
            "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { {} } }\n#[cfg(test)]\nmod more;\nfn c() {}\n",
        );
        assert!(code.contains("fn a()") && code.contains("fn c()"));
        assert!(!code.contains("fn b()") && !code.contains("more"));
        assert_eq!(lines_without_tests("a\n#[cfg(test)]\nmod t {\n\n}\nb\n"), 2);
    }

    #[test]
    fn modules_with_a_file_are_found() {
        let text =
            "pub mod a;\nmod b { }\npub(crate) mod c;\n// mod d;\n#[path = \"x/e.rs\"]\nmod e;\n";
        let names: Vec<_> = declared_modules(text);
        assert_eq!(
            names,
            [
                ("a".into(), None),
                ("c".into(), None),
                ("e".into(), Some("x/e.rs".into()))
            ]
        );
    }
}
