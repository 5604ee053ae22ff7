//! Finds words that the documentation avoids because they hide the actor: the reader needs to know
//! whether it is the client, the operator or another process.
//!
//! Checked are pages and the first comment of each file (`//!`), without code in backquotes and
//! blocks: there is a user `nobody`.

/// The words, in lower case.
const VAGUE: &[&str] = &["nobody", "somebody", "everybody", "anybody", "whoever"];

/// The lines of the documentation in `text` that contain one of the words.
pub fn findings(file: &str, text: &str) -> Vec<String> {
    let is_page = file.ends_with(".md");
    let mut in_block = false;
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let prose = match (is_page, line.strip_prefix("//!")) {
            (true, _) => line,
            (false, Some(comment)) if file.ends_with(".rs") => comment,
            _ => continue,
        };
        if prose.trim_start().starts_with("```") {
            in_block = !in_block;
        }
        if in_block {
            continue;
        }
        if let Some(word) = vague(prose) {
            findings.push(format!(
                "{file}:{}: `{word}`: name who it is, the client, the operator, another process …",
                index + 1
            ));
        }
    }
    findings
}

/// The first such word in a line, outside of code.
fn vague(line: &str) -> Option<&'static str> {
    let prose = line.split('`').step_by(2);
    prose
        .flat_map(|part| part.split(|c: char| !c.is_alphabetic()))
        .find_map(|word| {
            let word = word.to_lowercase();
            VAGUE.iter().find(|vague| **vague == word).copied()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vague_actors_are_found_in_prose_only() {
        let page = "Nobody answers.\n`user nobody;` is the default.\n```nginx\nuser nobody;\n```\n";
        assert_eq!(findings("docs/a.md", page).len(), 1);
        let code = "//! For whoever asks.\nlet nobody = 1; // somebody\n";
        assert_eq!(findings("src/a.rs", code).len(), 1);
        assert!(findings("tests/a.parity", "whoever\n").is_empty());
    }
}
