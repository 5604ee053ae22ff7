//! Import cycles: the files of a crate that import each other, directly or indirectly.
//!
//! The compiler forbids cycles between crates, but not within one, and the files of a cycle can
//! only be understood together. Counted are imports in code outside of tests: `use` trees, paths
//! that start with `crate::`, `super::` or `self::`, and paths through imported modules (`use
//! crate::log;` and then `log::write`). Re-exported names (`pub use`) count as imports of the file
//! that defines them. This is not a compiler: methods and glob imports are not traced to their
//! file, and `mod name;` is not an import.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::{source, tracked_files};

/// Maximum number of re-exports that are followed for one name.
const PASSED_ON_MAX: usize = 8;

/// The imports between the files of one crate.
#[derive(Debug, Default)]
pub struct Crate {
    /// The name of the crate's folder.
    pub name: String,
    /// The crate's files, relative to its source folder.
    pub files: Vec<String>,
    imports: Vec<Import>,
}

/// An import of file `to` by file `from`, as indices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Import {
    from: usize,
    line: usize,
    to: usize,
    item: String,
}

/// A module path, from the crate's root.
type ModulePath = Vec<String>;

/// The crates of the repository at `root`, by name.
pub fn crates(root: &Path) -> Result<Vec<Crate>, String> {
    let mut sources: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for file in tracked_files(root)? {
        if let Some((folder, inner)) = source_of_crate(&file) {
            let text = std::fs::read_to_string(root.join(&file));
            let text = text.map_err(|error| format!("{file}: {error}"))?;
            let files = sources.entry(folder.to_string()).or_default();
            files.push((inner.to_string(), text));
        }
    }
    let named = |folder: &str| folder.rsplit('/').next().unwrap_or_default().to_string();
    let crates = sources.iter().map(|(folder, files)| match folder.as_str() {
        "" => Crate::of("tidegate", files),
        folder => Crate::of(&named(folder), files),
    });
    Ok(crates.collect())
}

/// The folder of the crate that a file belongs to, and the file's path below `src`. `None` if the
/// file is not a source of one of our libraries or programs.
fn source_of_crate(file: &str) -> Option<(&str, &str)> {
    let (folder, inner) = match file.strip_prefix("src/") {
        Some(inner) => ("", inner),
        None => file.split_once("/src/")?,
    };
    let ours = folder.is_empty() || folder == "xtask" || folder.starts_with("crates/");
    (ours && inner.ends_with(".rs")).then_some((folder, inner))
}

impl Crate {
    /// Parses files, given as their paths below `src` and their texts. Files that only tests reach
    /// are left out.
    pub fn of(name: &str, files: &[(String, String)]) -> Crate {
        let texts: BTreeMap<&str, String> = files
            .iter()
            .map(|(file, text)| {
                let code = source::without_tests(&source::code_only(text));
                (file.as_str(), code)
            })
            .collect();
        let modules = modules(&texts);
        let files: Vec<String> = modules.keys().map(|file| file.to_string()).collect();
        let map = Map {
            by_path: modules
                .values()
                .enumerate()
                .rev()
                .map(|(index, path)| (path.clone(), index))
                .collect(),
            paths: modules.values().cloned().collect(),
        };
        let read: Vec<FileNames> = modules
            .keys()
            .enumerate()
            .map(|(index, file)| FileNames::of(&texts[file], index, &map))
            .collect();
        let mut imports = BTreeSet::new();
        for (from, names) in read.iter().enumerate() {
            for (line, path) in names.uses(from, &map) {
                let (to, item) = follow(&map, &read, path);
                if to != from {
                    let item = item.join("::");
                    imports.insert(Import {
                        from,
                        line,
                        to,
                        item,
                    });
                }
            }
        }
        Crate {
            name: name.to_string(),
            files,
            imports: imports.into_iter().collect(),
        }
    }

    /// The cycles, largest first, each as the indices of its files.
    pub fn circles(&self) -> Vec<Vec<usize>> {
        let mut next: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.files.len()];
        for import in &self.imports {
            next[import.from].insert(import.to);
        }
        let reached: Vec<Vec<bool>> = (0..self.files.len())
            .map(|file| reached_from(file, &next))
            .collect();
        let mut circles: Vec<Vec<usize>> = Vec::new();
        for (file, from_it) in reached.iter().enumerate() {
            let circle: Vec<usize> = (0..self.files.len())
                .filter(|other| from_it[*other] && reached[*other][file])
                .collect();
            if circle.len() > 1 && circle.first() == Some(&file) {
                circles.push(circle);
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    /// A summary of the crate in one line.
    pub fn summary(&self) -> String {
        let sizes: Vec<String> = self
            .circles()
            .iter()
            .map(|circle| circle.len().to_string())
            .collect();
        let (name, all) = (&self.name, self.files.len());
        match sizes.as_slice() {
            [] => format!("{name}: {all} files, no circle"),
            [largest] => format!("{name}: {all} files, one circle of {largest}"),
            [largest, others @ ..] => format!(
                "{name}: {all} files, the largest circle of {largest}, others of {}",
                others.join(", ")
            ),
        }
    }

    /// The cycles with their files. For each file, the numbers of other files in the cycle that it
    /// imports and that import it.
    pub fn report(&self) -> String {
        let mut out = format!("{}\n", self.summary());
        for circle in self.circles() {
            out.push_str(&format!("  a circle of {}:\n", circle.len()));
            let mut rows: Vec<(usize, usize, &str)> = circle
                .iter()
                .map(|file| {
                    let inside = |one: usize| one != *file && circle.contains(&one);
                    let count = |pairs: &mut dyn Iterator<Item = usize>| {
                        pairs
                            .filter(|one| inside(*one))
                            .collect::<BTreeSet<_>>()
                            .len()
                    };
                    let to = self.imports.iter().filter(|import| import.to == *file);
                    let from = self.imports.iter().filter(|import| import.from == *file);
                    let imported = count(&mut to.map(|import| import.from));
                    let imports = count(&mut from.map(|import| import.to));
                    (imported, imports, self.files[*file].as_str())
                })
                .collect();
            rows.sort_by_key(|(imported, _, _)| std::cmp::Reverse(*imported));
            for (imported, imports, file) in rows {
                out.push_str(&format!(
                    "    {file}: imported by {imported}, imports {imports}\n"
                ));
            }
        }
        out
    }

    /// The imports between files of the same cycle.
    pub fn knots(&self) -> String {
        let circles = self.circles();
        let mut out = String::new();
        for import in &self.imports {
            let both =
                |circle: &Vec<usize>| circle.contains(&import.from) && circle.contains(&import.to);
            if circles.iter().any(both) {
                let (from, to) = (&self.files[import.from], &self.files[import.to]);
                out.push_str(&format!("{from}:{}: {to} {}\n", import.line, import.item));
            }
        }
        out
    }
}

/// The files reachable by `mod` from the crate's roots, with their module paths.
fn modules<'a>(texts: &BTreeMap<&'a str, String>) -> BTreeMap<&'a str, ModulePath> {
    let mut found: BTreeMap<&'a str, ModulePath> = BTreeMap::new();
    let roots = ["lib.rs", "main.rs"];
    let mut open: Vec<(&'a str, ModulePath)> = texts
        .keys()
        .filter(|file| roots.contains(file))
        .map(|file| (*file, Vec::new()))
        .collect();
    while let Some((file, path)) = open.pop() {
        let Some(text) = texts.get(file) else {
            continue;
        };
        let folder = match file.rsplit_once('/') {
            _ if roots.contains(&file) => String::new(),
            Some((folder, "mod.rs")) => format!("{folder}/"),
            _ => format!("{}/", file.trim_end_matches(".rs")),
        };
        for (name, _) in source::declared_modules(text) {
            let places = [
                format!("{folder}{name}.rs"),
                format!("{folder}{name}/mod.rs"),
            ];
            let child = texts
                .keys()
                .find(|file| places.iter().any(|place| place == *file));
            if let Some(child) = child {
                let mut path = path.clone();
                path.push(name);
                open.push((child, path));
            }
        }
        found.insert(file, path);
    }
    found
}

/// The files of the modules.
struct Map {
    /// If a library and a program share the root path, the library's file.
    by_path: BTreeMap<ModulePath, usize>,
    paths: Vec<ModulePath>,
}

impl Map {
    /// The file of the innermost module on a path, and the rest of the path.
    fn resolve(&self, path: &[String]) -> (usize, Vec<String>) {
        let found = (0..=path.len()).rev().find_map(|length| {
            let (module, item) = path.split_at(length);
            Some((*self.by_path.get(module)?, item.to_vec()))
        });
        found.unwrap_or((0, path.to_vec()))
    }

    fn is_module(&self, path: &[String]) -> bool {
        self.by_path.contains_key(path)
    }
}

/// The file that defines the item of a path, after following re-exports, and the item.
fn follow(map: &Map, read: &[FileNames], path: ModulePath) -> (usize, Vec<String>) {
    let mut at = map.resolve(&path);
    for _ in 0..PASSED_ON_MAX {
        let (file, item) = &at;
        let passed = item
            .first()
            .and_then(|name| read[*file].passed_on.get(name));
        let Some(passed) = passed else { break };
        let path: ModulePath = passed.iter().chain(&item[1..]).cloned().collect();
        at = map.resolve(&path);
    }
    at
}

/// The names that one file uses and re-exports.
#[derive(Default)]
struct FileNames {
    /// Paths outside of `use`, as written.
    written: Vec<(usize, ModulePath)>,
    /// Paths in `use`, from the crate's root.
    used: Vec<(usize, ModulePath)>,
    /// Names of modules imported by `use`.
    modules: BTreeMap<String, ModulePath>,
    /// Names re-exported by `pub use`.
    passed_on: BTreeMap<String, ModulePath>,
}

impl FileNames {
    /// Parses a file in which comments, strings and tests have been blanked.
    fn of(code: &str, file: usize, map: &Map) -> FileNames {
        let mut names = FileNames::default();
        let tokens = tokens(code);
        let mut at = 0;
        while let Some((line, token)) = tokens.get(at) {
            let before = |back: usize| {
                let index = at.checked_sub(back)?;
                tokens.get(index).map(|(_, token)| token.as_str())
            };
            let is_path = tokens.get(at + 1).is_some_and(|(_, next)| next == "::");
            if token == "use" && tokens.get(at + 1).is_none_or(|(_, next)| next != "<") {
                let public = matches!(before(1), Some("pub"))
                    || before(1) == Some(")") && is_visibility(&tokens, at);
                let (trees, end) = use_trees(&tokens, at + 1);
                for (path, alias) in trees {
                    names.use_of(*line, path, alias, public, file, map);
                }
                at = end;
            } else if is_path
                && is_word(token)
                && before(1) != Some("::")
                && before(1) != Some("in")
            {
                let mut path = vec![token.clone()];
                at += 1;
                while let (Some((_, colons)), Some((_, next))) =
                    (tokens.get(at), tokens.get(at + 1))
                    && colons == "::"
                    && is_word(next)
                {
                    path.push(next.clone());
                    at += 2;
                }
                names.written.push((*line, path));
            } else {
                at += 1;
            }
        }
        names
    }

    /// Records one leaf of a `use` tree.
    fn use_of(
        &mut self,
        line: usize,
        mut path: ModulePath,
        alias: Option<String>,
        public: bool,
        file: usize,
        map: &Map,
    ) {
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        let Some(path) = from_root(path, &map.paths[file], map) else {
            return;
        };
        let Some(name) = alias.or(path.last().cloned()) else {
            return;
        };
        if map.is_module(&path) {
            self.modules.insert(name.clone(), path.clone());
        }
        if public {
            self.passed_on.insert(name, path.clone());
        }
        self.used.push((line, path));
    }

    /// The items of its crate that a file uses, from the crate's root. A module imported only as a
    /// prefix of its items does not count itself.
    fn uses(&self, file: usize, map: &Map) -> Vec<(usize, ModulePath)> {
        let own = &map.paths[file];
        let mut uses = Vec::new();
        let mut by_items: BTreeSet<&ModulePath> = BTreeSet::new();
        for (line, path) in &self.written {
            let brought = path.first().and_then(|first| self.modules.get(first));
            let path = match brought {
                Some(module) => {
                    by_items.insert(module);
                    Some(module.iter().chain(&path[1..]).cloned().collect())
                }
                None => from_root(path.clone(), own, map),
            };
            uses.extend(path.map(|path| (*line, path)));
        }
        let items = self
            .used
            .iter()
            .filter(|(_, path)| !by_items.contains(path));
        uses.extend(items.cloned());
        uses
    }
}

/// Resolves a path written in module `own` to a path from the crate's root; `None` if it leads out
/// of the crate.
fn from_root(path: ModulePath, own: &[String], map: &Map) -> Option<ModulePath> {
    let first = path.first()?.clone();
    let mut base = own.to_vec();
    let mut rest = path.as_slice();
    if first == "crate" {
        return Some(path[1..].to_vec());
    }
    while let Some((word, after)) = rest.split_first()
        && matches!(word.as_str(), "super" | "self")
    {
        if word == "super" {
            base.pop();
        }
        rest = after;
    }
    let is_child = || {
        let mut child = own.to_vec();
        child.push(first.clone());
        map.is_module(&child)
    };
    let here = rest.len() < path.len() || is_child();
    base.extend_from_slice(rest);
    here.then_some(base)
}

/// The leaves of the `use` tree that starts at a token, each with its alias from `as`, and the
/// index after its end.
fn use_trees(
    tokens: &[(usize, String)],
    from: usize,
) -> (Vec<(ModulePath, Option<String>)>, usize) {
    let mut leaves = Vec::new();
    let mut around: Vec<ModulePath> = Vec::new();
    let mut base: ModulePath = Vec::new();
    let mut path: ModulePath = Vec::new();
    let mut alias = None;
    let mut ended = false;
    let mut at = from;
    while let Some((_, token)) = tokens.get(at) {
        match token.as_str() {
            "{" => {
                around.push(std::mem::replace(&mut base, path.clone()));
                ended = false;
            }
            "," | "}" | ";" => {
                if !ended && path.len() > base.len() {
                    leaves.push((std::mem::take(&mut path), alias.take()));
                }
                // A closing brace ends a group; the path before it is not another leaf.
                ended = token == "}";
                if ended {
                    base = around.pop().unwrap_or_default();
                }
                path.clone_from(&base);
            }
            "as" => {
                alias = tokens.get(at + 1).map(|(_, name)| name.clone());
                at += 1;
            }
            word if is_word(word) => path.push(word.to_string()),
            _ => {} // `::`, or `*`, which counts as the module itself
        }
        at += 1;
        if token == ";" {
            break;
        }
    }
    (leaves, at)
}

/// Whether the parenthesis before the token at `at` ends a `pub(…)` visibility.
fn is_visibility(tokens: &[(usize, String)], at: usize) -> bool {
    let before = tokens.get(..at).unwrap_or_default();
    let open = before.iter().rposition(|(_, token)| token == "(");
    let word = open.and_then(|open| open.checked_sub(1));
    word.is_some_and(|word| before[word].1 == "pub")
}

/// Splits code into words, `::` and other single characters, each with its line number.
fn tokens(code: &str) -> Vec<(usize, String)> {
    let mut tokens = Vec::new();
    for (index, text) in code.lines().enumerate() {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let length = match first {
                ':' if rest.starts_with("::") => 2,
                _ if is_word(&first.to_string()) => rest
                    .find(|c: char| !c.is_alphanumeric() && c != '_')
                    .unwrap_or(rest.len()),
                _ => first.len_utf8(),
            };
            let (token, after) = rest.split_at(length);
            if !token.trim().is_empty() {
                tokens.push((index + 1, token.to_string()));
            }
            rest = after;
        }
    }
    tokens
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Which files are reachable by imports from a file, including the file itself.
fn reached_from(file: usize, next: &[BTreeSet<usize>]) -> Vec<bool> {
    let mut reached = vec![false; next.len()];
    let mut open = vec![file];
    while let Some(at) = open.pop() {
        if !std::mem::replace(&mut reached[at], true) {
            open.extend(&next[at]);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Crate {
        let files: Vec<(String, String)> = files
            .iter()
            .map(|(file, text)| (file.to_string(), text.to_string()))
            .collect();
        Crate::of("example", &files)
    }

    /// The imports of one file, formatted as `FILE ITEM`.
    fn imports(of: &Crate, file: &str) -> Vec<String> {
        let found = of.imports.iter().filter(|one| of.files[one.from] == file);
        found
            .map(|import| format!("{} {}", of.files[import.to], import.item))
            .collect()
    }

    #[test]
    fn paths_of_every_kind_are_imports() {
        let house = read(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;"),
            (
                "a.rs",
                "use crate::{b::One, c::{self, Two as Twice}};\nfn f() { c::call(); crate::d::there(); std::mem::take(x) }",
            ),
            (
                "b.rs",
                "use super::a;\nfn f() { a::back(); Self::own(); a.field }",
            ),
            (
                "c/mod.rs",
                "mod inner;\nmod unused;\nfn f() -> inner::Kind {}",
            ),
            (
                "c/inner.rs",
                "pub(in crate::c) fn f() { super::super::d::up(); super::beside() }",
            ),
            ("c/unused.rs", ""),
            (
                "d.rs",
                "use std::fmt;\n// use crate::a;\nfn f() { fmt::write(\"crate::a::b\") }\nfn g() -> impl Sized + use<'a> {}",
            ),
        ]);
        assert_eq!(
            imports(&house, "a.rs"),
            ["b.rs One", "c/mod.rs Two", "c/mod.rs call", "d.rs there"]
        );
        assert_eq!(imports(&house, "b.rs"), ["a.rs back"]);
        assert_eq!(imports(&house, "c/mod.rs"), ["c/inner.rs Kind"]);
        assert_eq!(
            imports(&house, "c/inner.rs"),
            ["c/mod.rs beside", "d.rs up"]
        );
        assert!(imports(&house, "d.rs").is_empty() && imports(&house, "lib.rs").is_empty());
    }

    #[test]
    fn names_are_followed_to_the_file_that_has_them() {
        let house = read(&[
            ("lib.rs", "mod log;\nmod user;"),
            (
                "log/mod.rs",
                "mod line;\nmod place;\npub use line::Line;\npub(crate) use self::place::Place as Where;",
            ),
            ("log/line.rs", "pub use super::place::Place as Other;"),
            ("log/place.rs", ""),
            (
                "user.rs",
                "use crate::log;\nfn f(line: log::Line) {}\nfn g() -> crate::log::Where { crate::log::line::Other::new() }",
            ),
        ]);
        assert_eq!(
            imports(&house, "user.rs"),
            [
                "log/line.rs Line",
                "log/place.rs Place",
                "log/place.rs Place::new"
            ]
        );
        assert_eq!(
            imports(&house, "log/mod.rs"),
            ["log/line.rs Line", "log/place.rs Place"]
        );
    }

    #[test]
    fn a_module_that_is_only_brought_counts_as_such() {
        let house = read(&[
            ("lib.rs", "mod a;\nmod b;"),
            ("a.rs", "use crate::b::*;"),
            ("b.rs", "use crate::a;"),
        ]);
        assert_eq!(imports(&house, "a.rs"), ["b.rs "]);
        assert_eq!(imports(&house, "b.rs"), ["a.rs "]);
    }

    #[test]
    fn circles_are_what_reaches_itself() {
        let house = read(&[
            (
                "main.rs",
                "mod a;\nmod b;\nmod c;\nmod d;\nmod e;\nmod f;\nfn main() { a::run() }",
            ),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::c::C;"),
            ("c.rs", "use crate::{a::A, d::D};"),
            ("d.rs", "use crate::e::E;"),
            ("e.rs", "use super::d::D;"),
            ("f.rs", "use crate::a::A;"),
        ]);
        let circles = house.circles();
        let names: Vec<Vec<&str>> = circles
            .iter()
            .map(|circle| {
                circle
                    .iter()
                    .map(|file| house.files[*file].as_str())
                    .collect()
            })
            .collect();
        assert_eq!(names, [vec!["a.rs", "b.rs", "c.rs"], vec!["d.rs", "e.rs"]]);
        assert_eq!(
            house.summary(),
            "example: 7 files, the largest circle of 3, others of 2"
        );
        assert!(
            house
                .report()
                .contains("    a.rs: imported by 1, imports 1\n")
        );
        assert!(
            house.knots().contains("c.rs:1: a.rs A\n") && !house.knots().contains("c.rs:1: d.rs")
        );
    }

    #[test]
    fn tests_are_not_counted() {
        let house = read(&[
            ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod tests;"),
            ("a.rs", "use crate::b::B;\n#[cfg(test)]\nmod testing;"),
            ("b.rs", "#[cfg(test)]\nmod tests { use crate::a::A; }"),
            ("tests.rs", "use crate::a::A;"),
            ("a/testing.rs", "use crate::b::B;"),
        ]);
        assert_eq!(house.files, ["a.rs", "b.rs", "lib.rs"]);
        assert!(house.circles().is_empty());
        assert_eq!(house.summary(), "example: 3 files, no circle");
    }

    #[test]
    fn every_crate_of_the_repository_is_read() {
        let crates = crates(&crate::repository()).unwrap();
        for name in ["tidegate", "server", "conf", "xtask"] {
            let found = crates.iter().find(|one| one.name == name).unwrap();
            assert!(!found.imports.is_empty() && found.files.len() > 5, "{name}");
        }
    }
}
