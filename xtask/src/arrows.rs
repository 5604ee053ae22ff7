//! The allowed dependencies between our crates: the arrows of ARCHITECTURE.md, checked against the
//! Cargo.toml files.
//!
//! Only our own crates are checked; docs/decisions gives the reasons for third-party crates.

use std::path::Path;

/// Our crates, each with the crates of ours on which it may depend. All crates may depend on
/// `base`, and their tests on `support`.
const ARROWS: &[(&str, &[&str])] = &[
    (
        "tidegate",
        &[
            "process",
            "server",
            "http",
            "rules",
            "transport",
            "logs",
            "framework",
            "acme",
            "load",
            "memcached",
            "store",
            "proto",
            "conf",
            "engine",
            "pattern",
            // For its tests: the training traffic of the release build.
            "xtask",
        ],
    ),
    ("base", &[]),
    ("engine", &["netstack"]),
    ("netstack", &[]),
    ("proto", &[]),
    ("conf", &[]),
    ("pattern", &[]),
    ("store", &["engine"]),
    ("process", &["conf"]),
    ("acme", &["proto"]),
    ("framework", &["conf", "engine"]),
    ("logs", &["framework", "conf", "engine"]),
    (
        "variables",
        &["logs", "framework", "conf", "engine", "pattern"],
    ),
    (
        "transport",
        &["variables", "logs", "framework", "proto", "conf", "engine"],
    ),
    ("upstream", &["transport", "logs", "framework", "engine"]),
    (
        "http_client",
        &[
            "upstream",
            "transport",
            "logs",
            "framework",
            "proto",
            "engine",
        ],
    ),
    (
        "rules",
        &[
            "upstream",
            "transport",
            "variables",
            "logs",
            "framework",
            "proto",
            "conf",
            "engine",
        ],
    ),
    (
        "http",
        &[
            "rules",
            "store",
            "transport",
            "variables",
            "logs",
            "framework",
            "proto",
            "conf",
            "engine",
            "pattern",
        ],
    ),
    (
        "proxying",
        &[
            "http",
            "http_client",
            "rules",
            "upstream",
            "transport",
            "variables",
            "logs",
            "framework",
            "store",
            "proto",
            "conf",
            "engine",
        ],
    ),
    (
        "modules",
        &[
            "proxying",
            "http_client",
            "http",
            "rules",
            "upstream",
            "transport",
            "variables",
            "logs",
            "framework",
            "acme",
            "store",
            "proto",
            "conf",
            "engine",
            "pattern",
        ],
    ),
    (
        "stream",
        &[
            "rules",
            "upstream",
            "transport",
            "variables",
            "logs",
            "framework",
            "proto",
            "conf",
            "engine",
        ],
    ),
    (
        "server",
        &[
            "modules",
            "proxying",
            "memcached",
            "stream",
            "http",
            "rules",
            "upstream",
            "transport",
            "variables",
            "logs",
            "framework",
            "proto",
            "conf",
            "engine",
        ],
    ),
    (
        "memcached",
        &[
            "rules",
            "store",
            "transport",
            "variables",
            "logs",
            "framework",
            "proto",
            "conf",
            "engine",
        ],
    ),
    ("load", &["proto", "engine"]),
    ("support", &["proto", "engine"]),
    ("xtask", &[]),
];

/// The dependencies in the Cargo.toml files among `files` that the table above does not allow.
pub fn findings(root: &Path, files: &[String]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| is_manifest(file)) {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        let name = crate_name(file);
        for dependency in own_dependencies(&text) {
            if let Some(finding) = judge(name, &dependency) {
                findings.push(format!("{file}: {finding}"));
            }
        }
    }
    findings
}

fn is_manifest(file: &str) -> bool {
    // Fuzz targets and benches use all crates and are not part of the architecture.
    file.ends_with("Cargo.toml") && !file.starts_with("fuzz/") && !file.starts_with("benches/")
}

fn crate_name(manifest: &str) -> &str {
    match manifest.rsplit('/').nth(1) {
        Some(folder) => folder,
        None => "tidegate",
    }
}

fn judge(name: &str, dependency: &str) -> Option<String> {
    let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
        return Some(format!(
            "crate {name} has no row in the table of arrows (xtask/src/arrows.rs)"
        ));
    };
    let fine = matches!(dependency, "base" | "support") || allowed.contains(&dependency);
    (!fine).then(|| format!("{name} must not depend on {dependency}"))
}

/// The crates of ours in the dependency tables of a Cargo.toml, without the workspace's own list.
fn own_dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            inside = table.ends_with("dependencies") && !table.starts_with("workspace");
            continue;
        }
        if !inside {
            continue;
        }
        let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
        let name = name.strip_prefix("tidegate-").unwrap_or(name);
        if ARROWS.iter().any(|(known, _)| *known == name) {
            found.push(name.to_string());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_of_ours_are_read() {
        let manifest = "[workspace.dependencies]\nengine = { path = \"x\" }\n[dependencies]\nbase.workspace = true\nbytes.workspace = true\n[dev-dependencies]\ntidegate-proto = \"1\"\n";
        assert_eq!(own_dependencies(manifest), ["base", "proto"]);
    }

    #[test]
    fn forbidden_arrows_are_named() {
        assert!(judge("conf", "base").is_none());
        assert!(judge("server", "proto").is_none());
        assert_eq!(
            judge("engine", "proto").as_deref(),
            Some("engine must not depend on proto")
        );
        assert_eq!(
            judge("proto", "engine").as_deref(),
            Some("proto must not depend on engine")
        );
        assert!(judge("novelty", "base").is_some());
    }

    #[test]
    fn the_repository_draws_no_other_arrow() {
        let root = crate::repository();
        let files = crate::tracked_files(&root).unwrap();
        assert_eq!(findings(&root, &files), Vec::<String>::new());
    }
}
