//! The bill of materials of the program, in the format of CycloneDX 1.5: all crates it is built
//! from, with version, licence and source repository.
//!
//! The list is from `cargo tree` for the program alone, without the dependencies of tests.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// A crate that the program is built from.
#[derive(Debug, PartialEq, Eq)]
struct Component {
    licence: String,
    repository: String,
    /// Whether the crate is one of this repository.
    is_ours: bool,
}

/// Runs the command line `sbom`: prints the bill of materials as JSON.
///
/// # Errors
/// If `cargo tree` fails or its output cannot be parsed.
pub fn run(arguments: &[String]) -> Result<(), String> {
    if !arguments.is_empty() {
        return Err("usage: xtask sbom   (prints CycloneDX as JSON)".to_string());
    }
    print!("{}", document(&crate::repository())?);
    Ok(())
}

/// The bill of materials of the program in `root`, as JSON.
///
/// # Errors
/// If `cargo tree` fails or its output cannot be parsed.
pub fn document(root: &Path) -> Result<String, String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["tree", "--locked", "--package", "tidegate"])
        .args(["--edges", "normal,build", "--prefix", "none"])
        .args(["--format", "{p}|{l}|{r}"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(render(&components(&String::from_utf8_lossy(
        &output.stdout,
    ))?))
}

/// Parses the output of `cargo tree`: the crates by name and version, without duplicates.
fn components(tree: &str) -> Result<BTreeMap<(String, String), Component>, String> {
    let mut components = BTreeMap::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        // `cargo tree` marks crates that it has printed before.
        let line = line.trim_end_matches(" (*)");
        let mut fields = line.split('|');
        let unread = || format!("cargo tree: a line that is not understood: {line}");
        let package = fields.next().ok_or_else(unread)?;
        let licence = fields.next().ok_or_else(unread)?;
        let repository = fields.next().ok_or_else(unread)?;
        let mut words = package.split(' ');
        let name = words.next().ok_or_else(unread)?;
        let version = words.next().and_then(|word| word.strip_prefix('v'));
        let version = version.ok_or_else(unread)?;
        // For crates of the repository, the folder follows.
        let is_ours = words.any(|word| word.starts_with("(/"));
        let component = Component {
            licence: licence.to_owned(),
            repository: repository.to_owned(),
            is_ours,
        };
        components.insert((name.to_owned(), version.to_owned()), component);
    }
    Ok(components)
}

/// Encodes the CycloneDX document of these crates.
fn render(components: &BTreeMap<(String, String), Component>) -> String {
    let mut text = String::from(
        "{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,\n",
    );
    let version = components.keys().find(|(name, _)| name == "tidegate");
    let version = version.map_or("", |(_, version)| version);
    let _ = write!(
        text,
        "  \"metadata\": {{\n    \"component\": {{ \"type\": \"application\", \
         \"name\": \"tidegate\", \"version\": {} }}\n  }},\n  \"components\": [",
        quoted(version)
    );
    let mut separator = "";
    for ((name, version), component) in components {
        if name == "tidegate" {
            continue;
        }
        let _ = write!(
            text,
            "{separator}\n    {{\n      \"type\": \"library\",\n      \"name\": {},\n      \
             \"version\": {}",
            quoted(name),
            quoted(version)
        );
        if !component.licence.is_empty() {
            // Old crates write `MIT/Apache-2.0` instead of SPDX's `MIT OR Apache-2.0`.
            let licence = component.licence.replace('/', " OR ");
            let _ = write!(
                text,
                ",\n      \"licenses\": [{{ \"expression\": {} }}]",
                quoted(&licence)
            );
        }
        if !component.is_ours {
            let _ = write!(
                text,
                ",\n      \"purl\": {}",
                quoted(&format!("pkg:cargo/{name}@{version}"))
            );
        }
        if !component.repository.is_empty() {
            let _ = write!(
                text,
                ",\n      \"externalReferences\": [{{ \"type\": \"vcs\", \"url\": {} }}]",
                quoted(&component.repository)
            );
        }
        text.push_str("\n    }");
        separator = ",";
    }
    text.push_str("\n  ]\n}\n");
    text
}

/// Encodes a JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control < ' ' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_is_named_once() {
        let tree = "tidegate v0.1.0 (/src)|MIT OR Apache-2.0|\n\
                    own v0.1.0 (/src/crates/own)|MIT OR Apache-2.0|\n\
                    old v1.2.3|MIT/Apache-2.0|https://example.org/o\"ld\n\
                    macro v2.0.0 (proc-macro)|MIT|\n\
                    old v1.2.3|MIT/Apache-2.0|https://example.org/o\"ld (*)\n";
        let components = components(tree).unwrap();
        assert_eq!(components.len(), 4);
        let text = render(&components);
        assert_eq!(text.matches("\"type\": \"library\"").count(), 3);
        assert_eq!(text.matches("pkg:cargo/old@1.2.3").count(), 1);
        assert!(text.contains("\"expression\": \"MIT OR Apache-2.0\""));
        assert!(text.contains("https://example.org/o\\\"ld"));
        assert!(!text.contains("pkg:cargo/own"), "{text}");
        assert!(text.contains("pkg:cargo/macro@2.0.0"));
    }

    #[test]
    fn a_line_of_another_kind_is_refused() {
        assert!(components("warning: something\n").is_err());
    }
}
