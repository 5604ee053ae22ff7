//! PHP's process manager.

use std::fs;
use std::path::PathBuf;

/// php-fpm of whatever version there is.
///
/// # Panics
/// Where there is none.
pub fn program() -> PathBuf {
    let names = fs::read_dir("/usr/sbin").unwrap().flatten();
    let mut paths: Vec<PathBuf> = names
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("php-fpm"))
        })
        .collect();
    paths.sort();
    paths
        .pop()
        .expect("php-fpm is missing: apt-get install php-fpm")
}
