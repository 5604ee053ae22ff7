//! Words of configurations that are written here.

use std::path::{Path, PathBuf};

/// A word in quotes.
pub(crate) fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

/// A path that exists, absolute.
pub(crate) fn readable(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|error| {
        process::log::failure(&format!("\"{}\" cannot be used", path.display()), &error)
    })
}

/// A path as it may stand in a configuration of ours.
pub(crate) fn text(path: &Path) -> Result<String, String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| format!("{} is not UTF-8", path.display()))
}
