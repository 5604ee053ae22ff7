//! Files in which the kernel describes a machine, below a root, so that a copy of another machine's
//! `/proc` and `/sys` can be read as well. An unreadable file counts as absent.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The files below a root.
pub(crate) struct MachineFiles<'a> {
    /// The folder that `/proc` and `/sys` are in.
    pub(crate) root: &'a Path,
}

impl MachineFiles<'_> {
    /// The content of a file; empty if the file cannot be read.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    /// The content of a file that has one word.
    pub(crate) fn word(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path);
        let word = text.trim();
        (!word.is_empty()).then(|| word.to_owned())
    }

    pub(crate) fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.word(path)?.parse().ok()
    }

    /// The lines of a file that consist of a name and a number, separated by `part`.
    pub(crate) fn table(&self, path: impl AsRef<Path>, part: char) -> BTreeMap<String, u64> {
        let text = self.text(path);
        let lines = text.lines().filter_map(|line| {
            let (name, value) = line.split_once(part)?;
            let number = value.split_whitespace().next()?.parse().ok()?;
            Some((name.to_owned(), number))
        });
        lines.collect()
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// The names in a folder, sorted.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }
}
