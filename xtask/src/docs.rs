//! Generates docs/directives/*.md, docs/compatibility.md, docs/shortcuts.md and the table of
//! supported features in README.md. `tidegate docs` writes them from the table of directives and
//! the list of modules. Also generates the plots (plot.rs).
//!
//! The pages must not be edited by hand. `--check` reports stale pages and changes nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::excerpts;

/// Pages that the program generates entirely, each with the option for it: the compatibility with
/// nginx, and the requests that are answered from memory.
const PAGES: [(&str, &str); 2] = [
    ("docs/compatibility.md", "--compatibility"),
    ("docs/shortcuts.md", "--shortcuts"),
];

/// Contains the table of supported features.
const README: &str = "README.md";

/// Runs the command line `docs [--check]`.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let check = match arguments {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err("usage: xtask docs [--check]".to_string()),
    };
    let root = crate::repository();
    crate::plot::refresh(&root, check)?;
    let fresh = root.join("target/directives");
    let _ = std::fs::remove_dir_all(&fresh);
    std::fs::create_dir_all(&fresh).map_err(|error| format!("{}: {error}", fresh.display()))?;
    write(&root, &["docs", "--all"], &fresh)?;
    add_excerpts(&root, &fresh)?;

    let committed = root.join("docs/directives");
    let (old, new) = (pages(&committed), pages(&fresh));
    let stale: Vec<&String> = old
        .keys()
        .chain(new.keys())
        .filter(|name| old.get(*name) != new.get(*name))
        .collect();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    for (page, option) in PAGES {
        let fresh = root.join("target").join(page.trim_start_matches("docs/"));
        write(&root, &["docs", option], &fresh)?;
        if check && read(&fresh) != read(&root.join(page)) {
            return Err(format!("{page} is stale, `make docs` writes it again"));
        }
    }
    let readme = root.join("target/README.md");
    std::fs::write(&readme, read(&root.join(README)))
        .map_err(|error| format!("{}: {error}", readme.display()))?;
    write(&root, &["docs", "--readme"], &readme)?;
    if check && read(&readme) != read(&root.join(README)) {
        return Err(format!("{README} is stale, `make docs` writes it again"));
    }
    if check {
        return match stale.len() {
            0 => Ok(()),
            count => Err(format!(
                "{count} stale pages in docs/directives, `make docs` writes them again: {stale:?}"
            )),
        };
    }
    std::fs::create_dir_all(&committed)
        .map_err(|error| format!("{}: {error}", committed.display()))?;
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        std::fs::remove_file(committed.join(name)).map_err(|error| format!("{name}: {error}"))?;
    }
    for (name, text) in &new {
        std::fs::write(committed.join(name), text).map_err(|error| format!("{name}: {error}"))?;
    }
    for (page, option) in PAGES {
        write(&root, &["docs", option], &root.join(page))?;
    }
    std::fs::write(root.join(README), read(&readme))
        .map_err(|error| format!("{README}: {error}"))?;
    let [(compatibility, _), (shortcuts, _)] = PAGES;
    println!(
        "{} pages in docs/directives, {compatibility}, {shortcuts}, {README}",
        new.len()
    );
    Ok(())
}

/// Adds an excerpt from the cases of tests/parity to each page without an example.
fn add_excerpts(root: &Path, folder: &Path) -> Result<(), String> {
    let all = excerpts::load(root);
    for (name, page) in pages(folder) {
        let title = page.lines().next().unwrap_or("");
        let Some(title) = title
            .strip_prefix("# ")
            .filter(|_| !page.contains("\n## Example\n"))
        else {
            continue;
        };
        let names: Vec<&str> = title.split(", ").collect();
        if let Some((file, text)) = excerpts::find(&all, &names) {
            let path = format!("{}/{file}", excerpts::CASES);
            let page = format!(
                "{page}{EXCERPT}From [{path}](../../{path}), which runs it beside \
                 nginx.\n\n```nginx\n{text}\n```\n"
            );
            let written = std::fs::write(folder.join(&name), page);
            written.map_err(|error| format!("{name}: {error}"))?;
        }
    }
    Ok(())
}

/// The heading of an excerpt.
const EXCERPT: &str = "\n## In a test\n\n";

/// Runs the most recently built binary, release or debug, with `arguments`, which writes to
/// `place`.
fn write(root: &Path, arguments: &[&str], place: &Path) -> Result<(), String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let modified = |path: &PathBuf| {
        path.metadata()
            .and_then(|metadata| metadata.modified())
            .ok()
    };
    let binary = ["debug", "release"]
        .map(|profile| target.join(profile).join("tidegate"))
        .into_iter()
        .filter(|path| path.is_file())
        .max_by_key(modified)
        .ok_or("there is no tidegate binary below target: cargo build first")?;
    let output = Command::new(&binary)
        .args(arguments)
        .arg(place)
        .output()
        .map_err(|error| format!("{}: {error}", binary.display()))?;
    if !output.status.success() {
        return Err(format!(
            "tidegate {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(())
}

/// The pages in a folder, by file name.
fn pages(folder: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            Some((
                entry.file_name().into_string().ok()?,
                std::fs::read_to_string(entry.path()).ok()?,
            ))
        })
        .filter(|(name, _)| name.ends_with(".md"))
        .collect()
}
