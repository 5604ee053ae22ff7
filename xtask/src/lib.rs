//! The project's own tools as a library: the tidy test, import cycles, nginx's test suite, the
//! directive manual, the release build, and servers for the benches. It has few dependencies, so
//! that it builds in seconds.

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

/// The root of the repository: the parent folder of this crate.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The files that git tracks below `root`, plus new files that are not ignored, relative to `root`.
///
/// New files are included so that findings show before the commit.
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
