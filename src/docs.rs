//! `tidegate docs`: prints the manual of a directive, or writes the pages of all directives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use conf::examples::{self, Example};
use conf::manual::Guide;
use conf::{Registry, Spec};
use server::features::FEATURES;
use server::reference::{self, ReferenceName};
use server::unknown;

use crate::application::registry;

/// Print the manual of a directive, or the names of all
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The directive, how several begin, or a variable as in '$uri'; without it every directive is
    /// listed
    name: Option<String>,
    /// Write a page for each directive into this folder
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "name")]
    all: Option<PathBuf>,
    /// Write the page about compatibility with nginx into this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "all"])]
    compatibility: Option<PathBuf>,
    /// Write the table of what works anew into this file, a copy of README.md
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "all", "compatibility"], hide = true)]
    readme: Option<PathBuf>,
    /// Write the page about prebuilt responses into this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "all", "compatibility", "readme"], hide = true)]
    shortcuts: Option<PathBuf>,
}

/// Files of examples, in the order in which a page looks for one that has its directive.
const EXAMPLES: [&str; 16] = [
    include_str!("../examples/directives/core.conf"),
    include_str!("../examples/directives/servers.conf"),
    include_str!("../examples/directives/access.conf"),
    include_str!("../examples/directives/variables.conf"),
    include_str!("../examples/directives/filters.conf"),
    include_str!("../examples/directives/proxying.conf"),
    include_str!("../examples/directives/upstreams.conf"),
    include_str!("../examples/directives/caches.conf"),
    include_str!("../examples/directives/applications.conf"),
    include_str!("../examples/directives/families.conf"),
    include_str!("../examples/directives/grpc.conf"),
    include_str!("../examples/directives/tls.conf"),
    include_str!("../examples/directives/operating.conf"),
    include_str!("../examples/directives/stream.conf"),
    include_str!("../examples/directives/memcached.conf"),
    include_str!("../examples/directives/bypass.conf"),
];

/// The guide's additions to the directives' declarations, such as examples.
fn guide() -> Guide<'static> {
    static ALL: OnceLock<Vec<Example>> = OnceLock::new();
    Guide {
        module_of,
        examples: ALL.get_or_init(|| EXAMPLES.into_iter().flat_map(examples::read).collect()),
    }
}

/// The module of nginx, or of a third party, that has the directive. A directive of no module is
/// Tidegate's own.
fn module_of(spec: &Spec) -> &'static str {
    let of_stream = spec.contexts.to_string().contains("stream");
    let of_http = spec.contexts.to_string().contains("http");
    let is_there = |known: &ReferenceName| {
        let is_of_stream = known.module.starts_with("stream_");
        if is_of_stream {
            of_stream
        } else {
            !of_stream || of_http
        }
    };
    let mut all = reference::directives(spec.name());
    let first = reference::directives(spec.name()).next();
    let known = all.find(|known| is_there(known)).or(first);
    known.map_or("Tidegate's own", |known| known.module)
}

/// Prints the manual of one directive, or the names of all; with `--all` writes one page for
/// each into a directory.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let registry = registry();
    let page = match (&arguments.compatibility, &arguments.shortcuts) {
        (Some(file), _) => Some((file, crate::compatibility::page(registry))),
        (None, Some(file)) => Some((file, crate::shortcuts::page(FEATURES.0))),
        (None, None) => None,
    };
    if let Some((file, page)) = page {
        let written = std::fs::write(file, page);
        return match written {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => crate::failure::fail(&format!("{}: {error}", file.display())),
        };
    }
    if let Some(file) = &arguments.readme {
        return match write_readme(file, registry) {
            Ok(()) => ExitCode::SUCCESS,
            Err(text) => crate::failure::fail(&format!("{}: {text}", file.display())),
        };
    }
    let done = match (&arguments.all, &arguments.name) {
        (Some(directory), _) => write_pages(directory, registry),
        (None, Some(name)) => print_page(name, registry),
        (None, None) => {
            print_names(registry);
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => crate::failure::fail(&text),
    }
}

fn print_names(registry: &Registry) {
    let names = registry.iter().flat_map(|declared| declared.spec().names());
    let names: BTreeSet<&str> = names.collect();
    names.iter().for_each(|name| println!("{name}"));
}

fn print_page(name: &str, registry: &Registry) -> Result<(), String> {
    let mut pages = registry
        .find(name)
        .map(|spec| conf::manual::terminal(spec, guide()))
        .peekable();
    if pages.peek().is_some() {
        pages.for_each(|page| print!("{page}"));
        return Ok(());
    }
    let variable = name.strip_prefix('$');
    if let Some(variable) = variable.or(is_variable(name).then_some(name)) {
        return print_variable(variable);
    }
    if let Some(known) = reference::directives(name).next() {
        return Err(not_yet(name, known));
    }
    if print_beginning_with(name, registry) {
        return Ok(());
    }
    let hint = registry.nearest_name(name);
    let hint = hint.map(|near| format!(", did you mean \"{near}\"?"));
    let hint = hint.unwrap_or_default();
    Err(format!("unknown directive \"{name}\"{hint}"))
}

/// Lists the directives whose names start with `beginning`, with the first sentence of their pages.
/// False if there are none.
fn print_beginning_with(beginning: &str, registry: &Registry) -> bool {
    let specs = registry.iter().map(|declared| declared.spec());
    let named = specs.flat_map(|spec| spec.names().map(move |name| (name, spec)));
    let found: BTreeMap<&str, &Spec> = named
        .filter(|(name, _)| name.starts_with(beginning))
        .collect();
    // A single match is more likely a misspelling.
    if found.len() < 2 && !beginning.ends_with('_') {
        return false;
    }
    let width = found.keys().map(|name| name.len()).max().unwrap_or(0);
    for (name, spec) in &found {
        let manual = spec.manual();
        let sentence = manual.split_once(". ").map_or(&*manual, |(first, _)| first);
        println!("{name:width$}  {}", sentence.trim_end_matches('.'));
    }
    !found.is_empty()
}

/// Whether this is the name of a variable and of no directive.
fn is_variable(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    reference::directives(&name).next().is_none()
        && (FEATURES.variable(&name).is_some() || reference::variables(&name).next().is_some())
}

/// Prints which module a variable belongs to. The value of nginx's variables is left to nginx's
/// documentation.
fn print_variable(name: &str) -> Result<(), String> {
    let name = name.trim_start_matches('{').trim_end_matches('}');
    let lower = name.to_ascii_lowercase();
    let of_http = |known: &&ReferenceName| !known.module.starts_with("stream_");
    let known = reference::variables(&lower).find(of_http);
    let known = known.or(reference::variables(&lower).next());
    let Some(found) = FEATURES.variable(&lower) else {
        return Err(match known {
            Some(known) => not_yet(&format!("${name}"), known),
            None => match unknown::nearest(&lower) {
                Some(near) => format!("unknown variable \"${name}\", did you mean \"${near}\"?"),
                None => format!(
                    "unknown variable \"${name}\" (a configuration may define it with set, map, geo or split_clients)"
                ),
            },
        });
    };
    let mut text = format!("${name}\n\n");
    match known.filter(of_http) {
        Some(known) if known.name.ends_with('_') => {
            let family = known.name;
            text.push_str(&format!(
                "  Module:   {}, a variable of the family ${family}…\n",
                known.module
            ));
        }
        Some(known) => text.push_str(&format!("  Module:   {}\n", known.module)),
        None => text.push_str("  Module:   of Tidegate, nginx does not have it\n"),
    }
    let assignable = if found.assignable { "yes" } else { "no" };
    text.push_str(&format!("  set:      {assignable}\n"));
    if let Some(known) = known.filter(of_http) {
        text.push_str("\n  Works as with nginx, which documents it:\n");
        text.push_str(&format!(
            "  https://nginx.org/en/docs/http/ngx_{}_module.html#var_{}\n",
            known.module, known.name
        ));
    }
    print!("{text}");
    Ok(())
}

fn not_yet(name: &str, known: &ReferenceName) -> String {
    let ReferenceName { owner, module, .. } = known;
    if owner == module {
        // A module of a third party.
        return format!("{module} has \"{name}\"; Tidegate does not");
    }
    format!("{owner} has \"{name}\" (module {module}); Tidegate does not yet")
}

fn write_readme(file: &Path, registry: &Registry) -> Result<(), String> {
    let old = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let new = crate::compatibility::areas::refreshed(&old, registry)
        .ok_or("there is no place for the table of what works")?;
    std::fs::write(file, new).map_err(|error| error.to_string())
}

fn write_pages(directory: &Path, registry: &Registry) -> Result<(), String> {
    for (name, page) in conf::manual::pages(registry, guide()) {
        let path = directory.join(name);
        std::fs::write(&path, page).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_declaration_has_a_fault() {
        assert_eq!(registry().faults(), [""; 0]);
    }

    #[test]
    fn every_directive_is_described() {
        let is_sentence = |text: &str| text.len() > 10 && text.ends_with(['.', '…']);
        let bare: Vec<&str> = registry()
            .iter()
            .map(|declared| declared.spec())
            .filter(|spec| !is_sentence(&spec.manual()))
            .map(|spec| spec.name())
            .collect();
        assert_eq!(bare, [""; 0]);
    }

    #[test]
    fn what_has_no_effect_is_listed() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/differences.md");
        let text = std::fs::read_to_string(page).unwrap();
        let is_listed = |name: &str, reason: &str| {
            let row = format!(" {reason} |");
            let mut rows = text.lines().filter(|line| line.ends_with(&row));
            rows.any(|line| line.contains(&format!("`{name}`")))
        };
        let mut missing = Vec::new();
        for spec in registry().iter().map(|declared| declared.spec()) {
            if let Some(reason) = spec.effect.reason_for_none() {
                missing.extend(spec.names().filter(|name| !is_listed(name, reason)));
            }
        }
        assert_eq!(missing, [""; 0], "docs/differences.md lists no such row");
    }

    #[test]
    fn the_committed_pages_are_fresh() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/directives");
        let committed: BTreeMap<String, String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                let page = std::fs::read_to_string(entry.path()).unwrap();
                // xtask, which knows the tests, adds the rest of the page.
                let own = page.split("\n## In a test\n").next().unwrap();
                (name, own.to_owned())
            })
            .collect();
        let fresh = conf::manual::pages(registry(), guide());
        let names: BTreeSet<&String> = committed.keys().chain(fresh.keys()).collect();
        let stale: Vec<&String> = names
            .into_iter()
            .filter(|name| committed.get(*name) != fresh.get(*name))
            .collect();
        assert!(
            stale.is_empty(),
            "stale pages in docs/directives, `make docs` writes them again: {stale:?}"
        );
    }
}
