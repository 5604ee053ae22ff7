//! `tidegate docs`: the manual of a directive on the terminal, and the pages of all of them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use conf::Registry;

const USAGE: &str = "usage: tidegate docs [name | --all directory]";

/// Prints the manual of one directive, or the names of all; with `--all` writes one page for
/// each into a directory. The error is the line to print.
pub(crate) fn run(arguments: &[OsString], registry: &Registry) -> Result<(), String> {
    match arguments {
        [] => {
            let names = registry.iter().flat_map(|declared| declared.spec().names());
            let names: BTreeSet<&str> = names.collect();
            names
                .iter()
                .try_for_each(|name| print(&format!("{name}\n")))
        }
        [flag, directory] if flag == "--all" => write_pages(Path::new(directory), registry),
        [name] => {
            let name = name.to_string_lossy();
            let mut pages = registry.find(&name).map(conf::manual::terminal).peekable();
            if pages.peek().is_none() {
                let hint = registry.nearest_name(&name);
                let hint = hint.map(|near| format!(", did you mean \"{near}\"?"));
                return Err(format!(
                    "unknown directive \"{name}\"{}",
                    hint.unwrap_or_default()
                ));
            }
            pages.try_for_each(|page| print(&page))
        }
        _ => Err(USAGE.to_owned()),
    }
}

fn print(text: &str) -> Result<(), String> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| error.to_string())
}

fn write_pages(directory: &Path, registry: &Registry) -> Result<(), String> {
    for (name, page) in conf::manual::pages(registry) {
        let path = directory.join(name);
        std::fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}
