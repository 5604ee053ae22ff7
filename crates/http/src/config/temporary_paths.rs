//! The directories of temporary files, and the check that all lines for a directory agree.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use conf::{Line, Position, ScopeRef, Spec, parse};
use framework::compile::Compiler;
use framework::registry::Registry;

/// The maximum number of levels of subdirectories.
const LEVELS_MAX: usize = 3;

/// A directive that sets a directory of temporary files, with its built-in default.
#[derive(Clone, Copy, Debug)]
pub struct TemporaryPath {
    /// The directive that names the directory.
    pub spec: &'static Spec,
    /// The name of the default directory.
    pub default: &'static str,
    /// The number of digits of each level of subdirectories.
    pub levels: &'static [u64],
}

#[derive(Default)]
struct TemporaryPaths(Vec<TemporaryPath>);

impl Registry for TemporaryPaths {}

/// Registers a directive, so that [`check`] examines its lines.
pub fn add(compiler: &Compiler<'_>, path: &TemporaryPath) {
    compiler
        .registry::<TemporaryPaths>()
        .borrow_mut()
        .0
        .push(*path);
}

/// Reports lines that give a directory other levels of subdirectories than the first line that
/// names the directory. As in nginx, lines of all scopes are compared, in the order in which they
/// are read.
pub fn check(compiler: &Compiler<'_>, root: ScopeRef<'_>) {
    let directives = compiler.registry::<TemporaryPaths>();
    let directives = &directives.borrow().0;
    let scopes = root.tree().scopes();
    let lines = scopes.flat_map(|scope| {
        let specs = directives.iter().map(|path| path.spec);
        specs.flat_map(move |spec| scope.own_lines(spec))
    });
    let mut lines: Vec<&Line> = lines.collect();
    lines.sort_by_key(|line| line.sequence());
    let mut known: Vec<(PathBuf, Vec<u64>, Position)> = Vec::new();
    for line in lines {
        let name = line.argument(0);
        let written = line.args.get(1..).unwrap_or_default();
        let Some(levels) = parse::levels(written)
            .ok()
            .filter(|_| written.len() <= LEVELS_MAX)
        else {
            continue; // the directive's setter reports this fault
        };
        let name = name.bytes.strip_suffix(b"/").unwrap_or(&name.bytes);
        let path = compiler.path(Path::new(OsStr::from_bytes(name)));
        match known.iter().find(|(other, ..)| *other == path) {
            None => known.push((path, levels, line.position)),
            Some((_, other, position)) if *other != levels => {
                let path = path.display();
                let text = format!(
                    "the same path name \"{path}\" in {position} has the different levels than"
                );
                let fault = conf::Fault::new(text).or_at(line.position);
                compiler.report(fault.while_reading());
            }
            Some(_) => {}
        }
    }
    for TemporaryPath {
        spec,
        default,
        levels,
    } in directives
    {
        let path = compiler.path(Path::new(default));
        let written = known.iter().find(|(other, ..)| *other == path);
        let clashes = written.filter(|(_, other, _)| other.as_slice() != *levels);
        if let Some((.., position)) = clashes.filter(|_| is_default_used(root, spec)) {
            let path = path.display();
            compiler.report(conf::Fault::new(format!(
                "the path name \"{path}\" in {position} has the same name as default path, but the different levels, you need to \
                 define default path in http section"
            )));
        }
    }
}

/// Whether there is a server for which no line sets a directory, so that the default is used.
fn is_default_used(root: ScopeRef<'_>, spec: &Spec) -> bool {
    let lacks = |scope: &ScopeRef<'_>| scope.own_lines(spec).is_empty();
    let mut http = root.children("http").filter(lacks);
    http.any(|http| http.children("server").any(|server| lacks(&server)))
}
