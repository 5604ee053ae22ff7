//! `random_index`: serves a random file of a directory.
//!
//! <https://nginx.org/en/docs/http/ngx_http_random_index_module.html>. Runs before `index`. The
//! directory is read for each request, on a thread of the pool; nothing is cached.

use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use conf::{Contexts, Declared, Fault, ScopeRef, Setting, parse};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::module::{MaybeFuture, Module, PhaseHandler, ShortcutDoc};
use http::request::{Request, Step};
use proto::method::Method;

use super::autoindex;

static RANDOM_INDEX: Setting<bool> = Setting::new("random_index", &["on | off"], parse::flag)
    .contexts(Contexts::LOCATION)
    .default("off")
    .manual(
        "A request for a directory is redirected within the server to one of its files, chosen by \
         chance. Names that begin with a dot do not count.",
    );

/// Whether `random_index` is on in a scope.
#[derive(Debug)]
pub struct RandomIndex {
    /// The value of `random_index`.
    pub enabled: bool,
}

impl Feature for RandomIndex {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&RANDOM_INDEX];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<RandomIndex, Fault> {
        Ok(RandomIndex {
            enabled: scope.get(&RANDOM_INDEX)?,
        })
    }
}

impl Module for RandomIndex {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Files, &["random_index"]).listed(2)];
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::Same(
        "no response is kept of a URI that ends with a slash",
    )];

    fn is_off(&self) -> bool {
        !self.enabled
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.file(self);
    }
}

impl PhaseHandler for RandomIndex {
    /// Handles a URI that ends with a slash: redirects to a file of the directory.
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        if !request.uri.ends_with(b"/")
            || !matches!(request.method, Method::Get | Method::Head | Method::Post)
        {
            return MaybeFuture::Now(Ok(Step::Next));
        }
        MaybeFuture::wait(async move { Ok(choose(request).await) })
    }
}

/// Why the directory could not be read.
enum ReadError {
    /// The directory could not be opened.
    Open(io::Error),
    /// An entry could not be read.
    Entry { call: String, error: io::Error },
}

async fn choose(request: &mut Request) -> Step {
    let mut path = request.filename();
    if path.len() > 1 {
        path.pop();
    }
    let directory = PathBuf::from(OsString::from_vec(path.clone()));
    let mut names = match engine::blocking_long(move || files(&directory)).await {
        Ok(names) => names,
        Err(ReadError::Open(error)) => {
            return Step::Finish(autoindex::refused(request, &path, &error));
        }
        Err(ReadError::Entry { call, error }) => {
            logs::error!(request, Crit, "{call} failed {}", logs::Errno(&error));
            return Step::Finish(500);
        }
    };
    if names.is_empty() {
        return Step::Next;
    }
    let name = names.swap_remove(any_below(names.len()));
    let mut uri = request.uri.clone();
    uri.extend_from_slice(&name);
    Step::Redirect {
        uri,
        args: request.arguments(),
    }
}

/// The names of a directory's regular files, and of links to regular files.
fn files(directory: &Path) -> Result<Vec<Vec<u8>>, ReadError> {
    let shown = |path: &Path| logs::Printable(path.as_os_str().as_bytes()).to_string();
    let failed = |call: &str, path: &Path, error| ReadError::Entry {
        call: format!("{call} \"{}\"", shown(path)),
        error,
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(ReadError::Open)? {
        let entry = entry.map_err(|error| failed("readdir()", directory, error))?;
        let name = entry.file_name().into_vec();
        if name.first() == Some(&b'.') {
            continue;
        }
        let path = || autoindex::path_of(directory, &name);
        let mut kind = entry
            .file_type()
            .map_err(|error| failed("lstat()", &path(), error))?;
        if kind.is_symlink() {
            match std::fs::metadata(path()) {
                Ok(metadata) => kind = metadata.file_type(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("stat()", &path(), error)),
            }
        }
        if kind.is_file() {
            names.push(name);
        }
    }
    Ok(names)
}

/// A random number below `count`, which is not 0. It need not be unpredictable.
fn any_below(count: usize) -> usize {
    let random = u128::from(RandomState::new().build_hasher().finish());
    // Less than `count`, since the first factor is less than 2^64.
    ((random * count as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_its_chance() {
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[any_below(5)] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(any_below(1), 0);
    }

    #[test]
    fn only_visible_files_count() {
        let folder = std::env::temp_dir().join(format!("tidegate-random-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("inner")).unwrap();
        for name in ["a", ".hidden"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        for (link, target) in [("link", "a"), ("nowhere", "b"), ("to-folder", "inner")] {
            let _ = std::os::unix::fs::symlink(target, folder.join(link));
        }
        let mut names = files(&folder).unwrap_or_default();
        names.sort();
        assert_eq!(names, [b"a".to_vec(), b"link".to_vec()]);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(files(&folder), Err(ReadError::Open(_))));
    }
}
