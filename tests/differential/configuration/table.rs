//! The directives to draw from: Tidegate's own table, as far as the reference knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use conf::{BlockKind, Contexts, Opens};

/// Directives of the outermost level, which the program declares beside the server's table.
const MAIN: &[(&str, &str)] = &[
    ("daemon", "on | off"),
    ("env", "variable[=value]"),
    ("lock_file", "file"),
    ("master_process", "on | off"),
    ("pid", "file"),
    ("ssl_object_cache_inheritable", "on | off"),
    ("timer_resolution", "interval"),
    ("user", "user [group]"),
    ("worker_cpu_affinity", "cpumask ..."),
    ("worker_priority", "number"),
    ("worker_processes", "number | auto"),
    ("worker_rlimit_core", "size"),
    ("worker_rlimit_nofile", "number"),
    ("worker_shutdown_timeout", "time"),
    ("working_directory", "directory"),
];

/// One name of the table in the contexts that it has there.
#[derive(Clone, Debug)]
pub(crate) struct Directive {
    /// The name.
    pub(crate) name: &'static str,
    /// Where it may stand.
    pub(crate) contexts: Contexts,
    /// Its arguments in the manual's notation, one entry a form.
    pub(crate) forms: Vec<&'static str>,
    /// What stands in its braces.
    pub(crate) block: BlockKind,
    /// The context of the lines there.
    pub(crate) opens: Opens,
}

/// The names that the reference does not refuse as unknown.
#[derive(Clone, Debug)]
pub(crate) struct DirectiveNames(BTreeSet<&'static str>);

impl DirectiveNames {
    /// What an earlier run has learnt of this program in this file, else what
    /// [`DirectiveNames::ask`] says, which is kept there.
    pub(crate) fn recall(nginx: &Path, folder: &Path, memory: &Path) -> DirectiveNames {
        let declared = declared();
        let made = fs::metadata(nginx).and_then(|metadata| metadata.modified());
        let names: Vec<&str> = declared.iter().map(|directive| directive.name).collect();
        // It holds for this very program and these names.
        let key = format!("{} {made:?} {}", nginx.display(), names.join(" "));
        let text = fs::read_to_string(memory).unwrap_or_default();
        if let Some((known_key, known)) = text.split_once('\n')
            && known_key == key
        {
            let known: BTreeSet<&str> = known.lines().collect();
            return DirectiveNames(
                names
                    .into_iter()
                    .filter(|name| known.contains(name))
                    .collect(),
            );
        }
        let known = DirectiveNames::ask(nginx, folder, &declared);
        let lines: Vec<&str> = known.0.iter().copied().collect();
        // Where it cannot be kept, the next run asks again.
        let _ = fs::write(memory, format!("{key}\n{}\n", lines.join("\n")));
        known
    }

    /// Asks the reference about each name of the table: a file with nothing but the name in its
    /// context.
    fn ask(nginx: &Path, folder: &Path, declared: &[Directive]) -> DirectiveNames {
        let mut known = BTreeSet::new();
        for directive in declared {
            let file = folder.join("known.conf");
            let inside = [
                (Contexts::MAIN, "events{} ", ""),
                (Contexts::EVENTS, "events { ", "}"),
                (Contexts::HTTP, "events{} http { ", "}"),
                (Contexts::SERVER, "events{} http { server { ", "}}"),
                (Contexts::UPSTREAM, "events{} http { upstream u { ", "}}"),
            ];
            let name = directive.name;
            let (_, before, after) = inside
                .into_iter()
                .find(|(context, ..)| directive.contexts.intersects(*context))
                .unwrap_or((
                    Contexts::LOCATION,
                    "events{} http { server { location / { ",
                    "}}}",
                ));
            let text = format!("error_log /dev/null; pid /dev/null; {before}{name}; {after}");
            if fs::write(&file, text).is_err() {
                continue;
            }
            let answer = Command::new(nginx)
                .arg("-t")
                .arg("-p")
                .arg(folder)
                .arg("-c")
                .arg(&file)
                .output();
            let unknown = format!("unknown directive \"{name}\"");
            if let Ok(answer) = answer
                && !String::from_utf8_lossy(&answer.stderr).contains(&unknown)
            {
                known.insert(name);
            }
        }
        DirectiveNames(known)
    }

    /// Whether the reference has it.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

/// The directives that may be written.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    directives: BTreeMap<&'static str, Vec<Directive>>,
    version: [u32; 3],
}

impl Table {
    /// Those of the table that the reference of this version knows.
    pub(crate) fn new(known: &DirectiveNames, version: [u32; 3]) -> Table {
        let mut directives: BTreeMap<&'static str, Vec<Directive>> = BTreeMap::new();
        for directive in declared() {
            if known.has(directive.name) {
                directives
                    .entry(directive.name)
                    .or_default()
                    .push(directive);
            }
        }
        Table {
            directives,
            version,
        }
    }

    /// The reference's version.
    pub(crate) fn version(&self) -> [u32; 3] {
        self.version
    }

    /// The names, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.directives.keys().copied()
    }

    /// What a name is in a context.
    pub(crate) fn find(&self, name: &str, context: Contexts) -> Option<&Directive> {
        let all = self.directives.get(name)?;
        all.iter().find(|one| one.contexts.contains(context))
    }
}

/// Every directive of the program.
fn declared() -> Vec<Directive> {
    let mut all: Vec<Directive> = MAIN
        .iter()
        .map(|&(name, form)| Directive {
            name,
            contexts: Contexts::MAIN,
            forms: vec![form],
            block: BlockKind::None,
            opens: Opens::Surroundings,
        })
        .collect();
    let mut seen = BTreeSet::new();
    for declared in server::protocols::directives() {
        let spec = declared.spec();
        if !seen.insert(std::ptr::from_ref(spec).addr()) {
            continue;
        }
        for name in spec.names() {
            all.push(Directive {
                name,
                contexts: spec.contexts_of(name),
                forms: forms(name, spec.names().collect(), spec.syntax),
                block: spec.arity_of(name).block_kind(),
                opens: spec.opens,
            });
        }
    }
    all
}

/// The forms of one name of a group: those that begin with it, without it, else those that begin
/// with none.
fn forms(
    name: &'static str,
    names: Vec<&'static str>,
    syntax: &'static [&'static str],
) -> Vec<&'static str> {
    let first = |form: &'static str| form.split(' ').next().unwrap_or_default();
    if names.len() > 1 {
        let own: Vec<&'static str> = syntax
            .iter()
            .filter(|form| first(form) == name)
            .map(|form| form[name.len()..].trim_start())
            .collect();
        if !own.is_empty() {
            return own;
        }
    }
    syntax
        .iter()
        .copied()
        .filter(|form| names.len() == 1 || !names.contains(&first(form)))
        .collect()
}
