//! Files in which a machine tells of itself, below a root, so that another machine's copy of
//! `/proc` and `/sys` can be read as well. What cannot be read is not there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The files below a root.
pub(crate) struct MachineFiles<'a> {
    /// The folder that `/proc` and `/sys` are in.
    pub(crate) root: &'a Path,
}

impl MachineFiles<'_> {
    /// What a file holds; nothing where it cannot be read.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    /// The only word of a file.
    pub(crate) fn word(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path);
        let word = text.trim();
        (!word.is_empty()).then(|| word.to_owned())
    }

    pub(crate) fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.word(path)?.parse().ok()
    }

    /// Lines that are a name and a number.
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

    /// The names in a folder, in their order.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }
}
