//! Helpers for writing words of generated configurations.

use std::path::{Path, PathBuf};

/// A word in quotes.
pub(crate) fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

/// The absolute path of an existing file.
pub(crate) fn readable(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|error| {
        process::log::failure(&format!("\"{}\" cannot be used", path.display()), &error)
    })
}

/// A path as text for a generated configuration.
pub(crate) fn text(path: &Path) -> Result<String, String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| format!("{} is not UTF-8", path.display()))
}
