//! The paths that workers open themselves, collected while a configuration is compiled: a confined
//! worker process may access only these.
//!
//! Listed are paths that are opened while requests are served. Not listed are files that the master
//! opens and passes on (listening sockets, logs with constant paths), nor those in the bundle (the
//! configuration, certificates).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base::hash::Set;
use conf::{Line, TemplatePart};

use crate::compile::Compiler;
use crate::registry::Registry;

/// The access that a path needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileAccess {
    /// Files at the path are read.
    Read,
    /// Files at the path are created and appended to.
    Append,
    /// Files at the path are created, read, written, renamed and removed.
    Write,
}

/// A file, or a directory with everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// The absolute path.
    pub path: PathBuf,
    /// The access that workers need.
    pub access: FileAccess,
    /// The directive that needs the access, with its position: `"root" in FILE:LINE`.
    pub line: String,
}

/// A program that workers run, with its first arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The path of the program.
    pub path: PathBuf,
    /// The fixed arguments, which precede the arguments of a single run.
    pub arguments: Vec<OsString>,
}

/// The paths of a configuration. A path occurs once per kind of access.
#[derive(Default)]
pub struct FilePlaces {
    all: Vec<FilePlace>,
    known: Set<(PathBuf, FileAccess)>,
    programs: Vec<Program>,
}

impl Registry for FilePlaces {}

impl FilePlaces {
    /// The paths, and the programs that workers run.
    #[must_use]
    pub fn into_parts(self) -> (Vec<FilePlace>, Vec<Program>) {
        (self.all, self.programs)
    }
}

impl Compiler<'_> {
    /// Registers a path that workers open; a relative path starts at the prefix.
    pub fn will_open(&self, access: FileAccess, path: &Path, by: &str) {
        let places = self.registry::<FilePlaces>();
        let mut places = places.borrow_mut();
        let key = (self.path(path), access);
        if places.known.insert(key.clone()) {
            let (path, access) = key;
            let line = by.to_owned();
            places.all.push(FilePlace { path, access, line });
        }
    }

    /// Registers a path with variables that workers open: allows everything below the constant
    /// directory that the path begins with.
    pub fn will_open_below(&self, access: FileAccess, path: &[TemplatePart], by: &str) {
        self.will_open(access, &constant_folder(path), by);
    }

    /// Registers a program that workers run, with further arguments after these.
    pub fn will_run(&self, path: &Path, arguments: &[OsString]) {
        let (path, arguments) = (path.to_owned(), arguments.to_vec());
        let program = Program { path, arguments };
        let places = self.registry::<FilePlaces>();
        let mut places = places.borrow_mut();
        if !places.programs.contains(&program) {
            places.programs.push(program);
        }
    }
}

/// The name of a scope's directive for messages, with its position unless the directive has its
/// default value.
#[must_use]
pub fn name_of(line: Option<&Line>, directive: &str) -> String {
    match line {
        Some(line) => format!("\"{}\" in {}", line.name.text(), line.position),
        None => format!("\"{directive}\""),
    }
}

/// The path itself if it has no variable; else the directory before the first variable: `/` if the
/// path begins with one.
#[must_use]
pub fn constant_folder(path: &[TemplatePart]) -> PathBuf {
    let mut constant = Vec::new();
    for part in path {
        match part {
            TemplatePart::Literal(bytes) => constant.extend_from_slice(bytes),
            TemplatePart::Variable(_) | TemplatePart::Capture(_) if constant.is_empty() => {
                return "/".into();
            }
            // These variables always begin with a slash.
            TemplatePart::Variable(name) if matches!(&**name, "uri" | "document_uri") => break,
            TemplatePart::Variable(_) | TemplatePart::Capture(_) => {
                let slash = constant.iter().rposition(|byte| *byte == b'/');
                constant.truncate(slash.map_or(0, |slash| slash + 1));
                break;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&constant))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(parts: &[&str]) -> PathBuf {
        let part = |text: &&str| match text.strip_prefix('$') {
            Some(name) => TemplatePart::Variable(name.into()),
            None => TemplatePart::Literal(text.as_bytes().into()),
        };
        let parts: Vec<TemplatePart> = parts.iter().map(part).collect();
        constant_folder(&parts)
    }

    #[test]
    fn a_path_with_variables_is_confined_to_the_folder_before_the_first() {
        assert_eq!(folder(&["/srv/www"]), Path::new("/srv/www"));
        assert_eq!(folder(&["/srv/", "$host", "/www"]), Path::new("/srv/"));
        assert_eq!(folder(&["/srv/site-", "$host"]), Path::new("/srv/"));
        assert_eq!(folder(&["/site-", "$host"]), Path::new("/"));
        assert_eq!(folder(&["$root"]), Path::new("/"));
        assert_eq!(folder(&["$root", "/www"]), Path::new("/"));
        // A path of a request begins with a slash.
        assert_eq!(folder(&["/srv/www", "$uri"]), Path::new("/srv/www"));
        assert_eq!(folder(&["/srv/www", "$urin"]), Path::new("/srv/"));
        // Below the prefix.
        assert_eq!(folder(&["data/", "$host"]), Path::new("data/"));
        assert_eq!(folder(&["site-", "$host"]), Path::new(""));
    }
}
