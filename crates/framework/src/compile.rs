//! Compiles a tree of directives to a [`Generation`](crate::generation::Generation): the types that
//! every module uses for this.
//!
//! A module declares its directives as `conf::Setting`s and implements [`Feature`]: the value of
//! the module's directives in one scope. The [`Compiler`] makes each feature once per scope that
//! writes any of its directives; scopes below share it by `Arc`. Compiling opens no file and binds
//! no port: what needs the system is collected in lists.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use base::hash::Map;
use conf::{Declared, Diagnostic, Fault, Files, Line, ScopeId, ScopeRef};

use crate::places::FileAccess;
use crate::registry::{Registries, Registry};

/// The compiled value of a module's directives in one scope.
///
/// `compile` gets the nearest scope that writes any of [`Feature::DIRECTIVES`] (or the root),
/// so relative meanings (an `alias` and its declaring prefix) stay with the declaring scope.
pub trait Feature: Sized + Send + Sync + 'static {
    /// Every directive whose presence in a scope gives that scope a value of its own.
    const DIRECTIVES: &'static [&'static dyn Declared];

    /// The scope whose value `scope` shares: the nearest that writes any of the directives.
    /// Override this for directives that a scope does not pass on to the scopes within it.
    fn owner(scope: ScopeRef<'_>) -> ScopeRef<'_> {
        scope.owner(Self::DIRECTIVES)
    }

    /// Resolves the directives as `scope` sees them.
    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault>;
}

/// The state of one compilation, passed to every [`Feature`].
pub struct Compiler<'a> {
    /// Collections of the modules, by kind: variables, log files, groups of servers.
    pub registries: Registries,
    /// Zones by name; directives declare them and look them up here.
    pub zones: RefCell<crate::zone::Table>,
    /// Base of relative data paths (`root`, logs, temporary files); ends with `/`.
    pub prefix: PathBuf,
    /// Base of relative configuration paths.
    pub conf_prefix: PathBuf,
    /// Whether ports below 1024 may be bound, which decides the port of a server without `listen`.
    pub privileged: bool,
    /// The files that setters read (tables, password files); in a worker they come from the bundle.
    pub files: &'a dyn Files,
    directories: RefCell<Vec<PathBuf>>,
    diagnostics: RefCell<Vec<Diagnostic>>,
    memo: RefCell<Map<(ScopeId, TypeId), Arc<dyn Any + Send + Sync>>>,
    extensions: RefCell<Vec<Extension>>,
}

/// A feature's type, and directives of other modules that also give a scope its own value of the
/// feature.
type Extension = (TypeId, &'static [&'static dyn Declared]);

impl<'a> Compiler<'a> {
    /// A compiler for one configuration below `prefix`.
    pub fn new(environment: &Environment<'a>) -> Compiler<'a> {
        let Environment {
            prefix,
            conf_prefix,
            files,
            ..
        } = *environment;
        Compiler {
            privileged: environment.privileged,
            registries: Registries::default(),
            zones: RefCell::default(),
            prefix: prefix.to_owned(),
            conf_prefix: conf_prefix.to_owned(),
            files,
            directories: RefCell::default(),
            diagnostics: RefCell::default(),
            memo: RefCell::default(),
            extensions: RefCell::default(),
        }
    }

    /// The feature for `scope`, shared by all scopes with the same directives.
    pub fn feature<F: Feature>(&self, scope: ScopeRef<'_>) -> Result<Arc<F>, Fault> {
        let owner = self.owner::<F>(scope);
        let key = (owner.id(), TypeId::of::<F>());
        if let Some(made) = self.memo.borrow().get(&key)
            && let Ok(made) = Arc::clone(made).downcast::<F>()
        {
            return Ok(made);
        }
        let made = F::compile(self, owner);
        let made = Arc::new(made.map_err(|fault| {
            let more = self.extensions_of::<F>();
            let directives = F::DIRECTIVES.iter().chain(more.iter().copied().flatten());
            let directives: Vec<_> = directives.copied().collect();
            placed(fault, owner, &directives)
        })?);
        self.memo.borrow_mut().insert(key, made.clone());
        Ok(made)
    }

    /// Like [`Compiler::feature`], but reports a fault and returns `None`, so that compilation
    /// continues.
    pub fn feature_or_report<F: Feature>(&self, scope: ScopeRef<'_>) -> Option<Arc<F>> {
        self.feature(scope).map_err(|fault| self.report(fault)).ok()
    }

    /// Adds directives to [`Feature::DIRECTIVES`] of another module's feature: a scope that writes
    /// any of them gets its own value, too. Must be called before the feature is first requested.
    pub fn extend<F: Feature>(&self, directives: &'static [&'static dyn Declared]) {
        let extension = (TypeId::of::<F>(), directives);
        self.extensions.borrow_mut().push(extension);
    }

    fn extensions_of<F: Feature>(&self) -> Vec<&'static [&'static dyn Declared]> {
        let all = self.extensions.borrow();
        let of_it = all.iter().filter(|(of, _)| *of == TypeId::of::<F>());
        of_it.map(|(_, directives)| *directives).collect()
    }

    /// The scope whose value `scope` shares: the innermost one according to the feature and its
    /// extensions.
    fn owner<'s, F: Feature>(&self, scope: ScopeRef<'s>) -> ScopeRef<'s> {
        let mut owner = F::owner(scope);
        for directives in self.extensions_of::<F>() {
            let other = scope.owner(directives);
            let mut at = Some(scope);
            owner = loop {
                match at {
                    Some(at) if at.id() == other.id() => break other,
                    Some(inner) if inner.id() != owner.id() => at = inner.parent(),
                    _ => break owner,
                }
            };
        }
        owner
    }

    /// The collection of this kind, with the entries that have been added until now: see
    /// [`Registries::of`].
    pub fn registry<R: Registry>(&self) -> Rc<RefCell<R>> {
        self.registries.of()
    }

    /// The absolute form of a data path; relative ones start at the prefix.
    pub fn path(&self, path: &Path) -> PathBuf {
        self.prefix.join(path)
    }

    /// Registers a directory that must exist and belong to the workers' user before they start, and
    /// returns its absolute path.
    pub fn directory(&self, path: &Path) -> PathBuf {
        let path = self.path(path);
        self.require_directory(&path);
        path
    }

    /// Like [`directory`](Self::directory), for a path that is absolute already.
    pub fn require_directory(&self, path: &Path) {
        let mut all = self.directories.borrow_mut();
        if !all.iter().any(|known| known == path) {
            all.push(path.to_owned());
            let by = "a directory of the configuration";
            self.will_open(FileAccess::Write, path, by);
        }
    }

    /// Removes and returns the registered directories.
    pub fn take_directories(&self) -> Vec<PathBuf> {
        self.directories.take()
    }

    /// Adds an error. Compilation continues, so that all errors are reported in one run.
    pub fn report(&self, fault: Fault) {
        self.diagnose(fault.into());
    }

    /// Adds a diagnostic of any level, without duplicates, since every scope that inherits a fault
    /// reports it.
    pub fn diagnose(&self, diagnostic: Diagnostic) {
        let mut all = self.diagnostics.borrow_mut();
        let known = all.iter().any(|known| {
            known.message == diagnostic.message && known.position == diagnostic.position
        });
        if !known {
            all.push(diagnostic);
        }
    }

    /// Adds a warning, duplicates included: nginx repeats warnings about a name or a certificate
    /// for each server that has it, without a position. Warnings with a position are marked as
    /// given while reading, as nginx gives them.
    pub fn warn_each_time(&self, text: String, position: Option<conf::Position>) {
        let warning = Diagnostic {
            while_reading: position.is_some(),
            ..Diagnostic::warn(text, position)
        };
        self.diagnostics.borrow_mut().push(warning);
    }

    /// Whether an error has been reported.
    pub fn has_failed(&self) -> bool {
        let found = self.diagnostics.borrow();
        found.iter().any(|one| one.level == conf::Level::Emerg)
    }

    /// All diagnostics, in the order in which they were reported.
    pub fn into_diagnostics(self) -> Vec<Diagnostic> {
        self.diagnostics.into_inner()
    }
}

/// Adds a position to a fault that has none: the position of the argument or directive that the
/// message quotes or, if it quotes none, of the feature's first line. (nginx has no position for
/// errors found after reading.)
fn placed(fault: Fault, scope: ScopeRef<'_>, directives: &[&'static dyn Declared]) -> Fault {
    if fault.position.is_some() {
        return fault;
    }
    let lines: Vec<&Line> = directives
        .iter()
        .flat_map(|declared| scope.own_lines(declared.spec()))
        .collect();
    let quoted: Vec<&str> = fault.message.split('"').skip(1).step_by(2).collect();
    // The message quotes `zone=NAME`, or a file name with its directory.
    let quotes = |text: &str| {
        quoted.iter().any(|quoted| {
            let ends = |whole: &str, end: &str, before: char| {
                let cut = whole.strip_suffix(end);
                !end.is_empty() && cut.is_some_and(|cut| cut.is_empty() || cut.ends_with(before))
            };
            ends(text, quoted, '=') || ends(quoted, text, '/')
        })
    };
    let by_argument = lines.iter().find_map(|line| {
        let word = line.args.iter().find(|word| quotes(&word.text()))?;
        Some(word.position)
    });
    let by_name = lines.iter().find(|line| {
        let name = line.name.text();
        fault.message.contains(&*name)
    });
    let line = by_name.or(lines.first()).map(|line| line.position);
    match by_argument.or(line) {
        Some(position) => fault.or_at(position),
        None => fault,
    }
}

/// The inputs of a compilation besides the directives.
#[derive(Clone)]
pub struct Environment<'a> {
    /// The folder of relative data paths.
    pub prefix: &'a Path,
    /// The folder of relative configuration paths.
    pub conf_prefix: &'a Path,
    /// The source of files that setters read.
    pub files: &'a dyn Files,
    /// See [`Compiler::privileged`].
    pub privileged: bool,
}

#[cfg(test)]
mod tests {
    use conf::{Contexts, RecordedFiles, Recording, Registry, Setting, parse};

    use super::*;

    static OUTER: Setting<()> = Setting::new("outer", &["{ ... }"], parse::nothing)
        .contexts(Contexts::MAIN)
        .block()
        .opens(Contexts::HTTP)
        .manual("A block.");

    static INNER: Setting<()> = Setting::new("inner", &["{ ... }"], parse::nothing)
        .contexts(Contexts::HTTP)
        .block()
        .opens(Contexts::SERVER)
        .manual("A block within it.");

    static OWN: Setting<u64> = Setting::new("own", &["number"], parse::number)
        .contexts(Contexts::HTTP.or(Contexts::SERVER))
        .default("0")
        .manual("What the feature knows.");

    static OTHER: Setting<u64> = Setting::new("other", &["number"], parse::number)
        .contexts(Contexts::HTTP.or(Contexts::SERVER))
        .default("0")
        .manual("What it does not know.");

    struct Own(u64);

    impl Feature for Own {
        const DIRECTIVES: &'static [&'static dyn Declared] = &[&OWN];

        fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Own, Fault> {
            scope.get(&OWN).map(Own)
        }
    }

    /// The values of the outer block and of the inner blocks, and whether an inner block shares the
    /// value of the outer one.
    fn values(extended: bool) -> Vec<(u64, bool)> {
        let text = "outer { own 1; inner { other 2; } inner { } inner { own 3; } inner { own 4; other 5; } }";
        let path = Path::new("/test.conf");
        let files = RecordedFiles::new(Recording {
            files: vec![(path.into(), text.into())],
            ..Recording::default()
        });
        const TABLE: &[&dyn Declared] = &[&OUTER, &INNER, &OWN, &OTHER];
        const MORE: &[&dyn Declared] = &[&OTHER];
        let root = Path::new("/");
        let loaded = conf::load(path, root, &[], &Registry::new(&[TABLE]), &files);
        assert!(!loaded.has_errors(), "{:?}", loaded.diagnostics);
        let compiler = Compiler::new(&Environment {
            prefix: root,
            conf_prefix: root,
            files: &files,
            privileged: false,
        });
        if extended {
            compiler.extend::<Own>(MORE);
        }
        let outer = loaded.tree.root().children("outer").next().unwrap();
        let shared = compiler.feature::<Own>(outer).unwrap();
        let all = outer.children("inner").map(|inner| {
            let own = compiler.feature::<Own>(inner).unwrap();
            (own.0, Arc::ptr_eq(&own, &shared))
        });
        all.collect()
    }

    #[test]
    fn what_extends_a_feature_gives_a_scope_a_value_of_its_own() {
        let apart = [(1, false), (1, true), (3, false), (4, false)];
        assert_eq!(values(true), apart);
        let mut known = apart;
        known[0].1 = true;
        assert_eq!(values(false), known);
    }
}
