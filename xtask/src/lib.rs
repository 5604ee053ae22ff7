//! The project's own chores as a library: the tidy test, circles of files, nginx's suite as a
//! judge, the directive manual, and a server for the benches. Standard library only, so that it
//! builds in seconds.

pub mod arrows;
pub mod below;
pub mod circles;
pub mod docs;
pub mod excerpts;
pub mod floor;
mod floor_datagrams;
mod floor_proxy;
pub mod house;
pub mod judge;
pub mod plot;
pub mod release;
pub mod sbom;
pub mod siege;
pub mod source;
pub mod tidy;
pub mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root: the folder above this crate.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Every file that git tracks below `root`, plus new files that it does not ignore, relative to
/// `root`.
///
/// New files count, so that a finding shows before the commit and not after it.
pub fn tracked_files(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "git ls-files: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    let mut files: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .split('\0')
        .filter(|name| !name.is_empty() && root.join(name).is_file())
        .map(str::to_string)
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}
