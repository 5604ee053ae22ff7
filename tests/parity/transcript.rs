//! Transcripts: the observations of one case file, recorded from nginx 1.31 and committed.

use std::collections::BTreeMap;
use std::path::Path;

/// Observations by the case's name.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    observations: Vec<(String, String)>,
    index: BTreeMap<String, usize>,
}

impl Transcript {
    pub(crate) fn push(&mut self, name: &str, text: String) {
        self.index.insert(name.to_string(), self.observations.len());
        self.observations.push((name.to_string(), text));
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.index
            .get(name)
            .map(|at| self.observations[*at].1.as_str())
    }

    /// All of them, with their cases' names, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.observations.iter();
        all.map(|(name, text)| (name.as_str(), text.as_str()))
    }

    pub(crate) fn load(path: &Path) -> Transcript {
        let mut transcript = Transcript::default();
        let text = std::fs::read_to_string(path).unwrap_or_default();
        for part in text.split("=== ").skip(1) {
            if let Some((name, text)) = part.split_once('\n') {
                transcript.push(name, text.trim_end_matches('\n').to_string() + "\n");
            }
        }
        transcript
    }

    /// Writes the file; one that would hold nothing is taken away.
    pub(crate) fn save(&self, path: &Path, version: &str) -> Result<(), String> {
        if self.observations.is_empty() {
            return match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(format!("{}: {error}", path.display()))
                }
                _ => Ok(()),
            };
        }
        let mut text = format!(
            "# Recorded from nginx {version}. `cargo test --test parity -- --record` writes it, nobody edits it.\n"
        );
        for (name, observation) in &self.observations {
            text.push_str(&format!("\n=== {name}\n{observation}"));
        }
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}
