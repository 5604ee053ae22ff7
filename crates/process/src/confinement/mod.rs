//! Confinement of a worker process: the privileges that it drops before it reads anything that a
//! peer may have touched.
//!
//! The steps, none of which can be undone, in order: the file rules are prepared while every folder
//! can still be opened (`files`); the process changes its user; it starts the process that runs
//! programs for it, if there are any; it drops its capabilities; programs that it starts can gain
//! no more rights than it has; the file rules are enforced; then the system call filter
//! (`system_calls`), which would forbid the steps before. Threads started later inherit all of
//! this.
//!
//! Missing kernel features are logged, and do not keep the worker from serving.

mod capabilities;
mod files;
mod links;
mod system_calls;

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(crate) use links::links_leading_outside;

use crate::programs::{self, Program};

/// The level of a worker process's confinement: the directive `confine`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// The worker may do what its user may.
    #[default]
    Off,
    /// The worker writes only to the paths that its configuration allows.
    On,
    /// The worker also reads only from the paths that its configuration allows.
    Strict,
}

impl Level {
    pub(crate) const ALL: [Level; 3] = [Level::Off, Level::On, Level::Strict];
}

/// The access of a worker process to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathAccess {
    /// Files are removed.
    Remove,
    /// Files are read.
    Read,
    /// Files are created and appended to.
    Append,
    /// Files are created, read, written, renamed and removed.
    Write,
}

impl PathAccess {
    pub(crate) const ALL: [PathAccess; 4] = [
        PathAccess::Remove,
        PathAccess::Read,
        PathAccess::Append,
        PathAccess::Write,
    ];

    /// Whether this access includes another.
    fn includes(self, other: PathAccess) -> bool {
        match other {
            PathAccess::Remove => matches!(self, PathAccess::Remove | PathAccess::Write),
            PathAccess::Read => matches!(self, PathAccess::Read | PathAccess::Write),
            PathAccess::Append => matches!(self, PathAccess::Append | PathAccess::Write),
            PathAccess::Write => self == PathAccess::Write,
        }
    }

    fn verb(self) -> &'static str {
        match self {
            PathAccess::Remove => "remove",
            PathAccess::Read => "read",
            PathAccess::Append => "append to",
            PathAccess::Write => "write",
        }
    }
}

/// A folder with everything below it, or a file, that a worker process accesses itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRule {
    /// The absolute path. It may not exist yet.
    pub path: PathBuf,
    /// The worker's access to the path.
    pub access: PathAccess,
    /// The directive that requires the access, with its position, for messages.
    pub line: String,
}

impl PathRule {
    /// The rule for core files, which the kernel writes to the worker process's working directory,
    /// which is `folder` or, if there is no `folder`, the master's. `None` if the kernel pipes core
    /// files to a program.
    #[must_use]
    pub fn of_core_files(folder: Option<&Path>, line: &str) -> Option<PathRule> {
        let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").ok()?;
        let pattern = pattern.trim_end();
        if pattern.starts_with('|') {
            return None;
        }
        let folder =
            folder.map_or_else(|| std::env::current_dir().ok(), |one| Some(one.to_owned()));
        let file = folder?.join(pattern);
        Some(PathRule {
            path: file.parent()?.to_owned(),
            access: PathAccess::Write,
            line: line.to_owned(),
        })
    }
}

/// The permissions of a worker process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// How far the worker process is confined.
    pub level: Level,
    /// The paths that the worker may write and read.
    pub places: Vec<PathRule>,
    /// Whether the worker connects from addresses that the machine does not have (`CAP_NET_RAW`).
    pub keeps_raw_network: bool,
    /// Whether the worker may use io_uring.
    pub may_use_rings: bool,
    /// Programs that a helper process runs for the worker.
    pub programs: Vec<Program>,
}

impl Confinement {
    /// Notices for the test of a configuration: paths that make the confinement ineffective.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let (level, name) = match self.level {
            Level::Off => (None, ""),
            Level::On => (Some(PathAccess::Append), "on"),
            Level::Strict => (Some(PathAccess::Read), "strict"),
        };
        let open = self.places.iter().filter(move |place| {
            place.path.parent().is_none() && level.is_some_and(|least| place.access >= least)
        });
        open.map(move |place| {
            let (what, line) = (place.access.verb(), &place.line);
            format!("{line} begins with a variable or is \"/\": \"confine {name}\" lets the worker {what} anything")
        })
    }
}

/// The enforced restrictions of a process, in words for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enforcement {
    level: Level,
    capabilities: String,
    files: files::Enforcement,
    /// Number of paths that the worker may write or, at the strict level, read.
    places: usize,
    system_calls: Result<(), String>,
    /// Whether the system call filter is installed, which [`close_rings`] narrows.
    has_filter: bool,
    /// Paths that got no rule, described for the log: paths to be written that do not exist, and
    /// paths that cannot be opened.
    pub left_out: Vec<String>,
}

impl Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Enforcement {
            level,
            capabilities,
            files,
            ..
        } = self;
        let name = match level {
            Level::Off => return f.write_str("worker process is not confined (\"confine off\")"),
            Level::On => "on",
            Level::Strict => "strict",
        };
        write!(
            f,
            "worker process is confined (\"confine {name}\"): no new privileges; capabilities: {capabilities}; "
        )?;
        let what = match level {
            Level::Strict => "writes and reads",
            _ => "writes",
        };
        match files {
            files::Enforcement::Landlock(_) => {
                write!(f, "{what} at {} places by {files}; ", self.places)?
            }
            files::Enforcement::Nothing(_) => write!(f, "{what} anywhere, as {files}; ")?,
        }
        match &self.system_calls {
            Ok(()) => f.write_str("system calls filtered"),
            Err(why) => write!(f, "system calls not filtered: {why}"),
        }
    }
}

impl Enforcement {
    /// Whether this machine lacks a feature of the requested confinement.
    pub fn lacks_anything(&self) -> bool {
        let has_files = matches!(self.files, files::Enforcement::Landlock(_));
        self.level != Level::Off && (!has_files || self.system_calls.is_err())
    }

    /// Forbids all threads to create io_uring rings, and to use them unless `keeps`.
    ///
    /// # Errors
    /// The failure, in words for the log.
    pub fn close_rings(&self, keeps: bool) -> Result<(), String> {
        if !self.has_filter {
            return Ok(());
        }
        system_calls::close_rings(keeps)
            .map_err(|error| crate::log::failure("seccomp() failed", &error))
    }
}

/// Confines this process permanently; called by its only thread. `become_user` changes the user
/// between the steps.
///
/// # Errors
/// The failure, in words for the log: the process must not continue.
pub fn confine(
    confinement: &Confinement,
    become_user: impl FnOnce() -> Result<(), String>,
) -> Result<Enforcement, String> {
    if confinement.level == Level::Off {
        become_user()?;
        return Ok(Enforcement {
            level: Level::Off,
            capabilities: String::new(),
            files: files::Enforcement::Nothing(""),
            places: 0,
            system_calls: Ok(()),
            has_filter: false,
            left_out: Vec::new(),
        });
    }
    let (rules, left_out) = files::Rules::of(confinement)?;
    capabilities::bound(confinement.keeps_raw_network);
    become_user()?;
    if !confinement.programs.is_empty() {
        programs::start_runner(&confinement.programs)?;
    }
    let capabilities = capabilities::drop_capabilities(confinement.keeps_raw_network)?;
    rustix::thread::set_no_new_privs(true)
        .map_err(|error| crate::log::failure("prctl(PR_SET_NO_NEW_PRIVS) failed", &error.into()))?;
    let files = rules.enforce()?;
    let filtered = system_calls::allow_serving(confinement.may_use_rings);
    let filtered = filtered.map_err(|error| match error.kind() {
        std::io::ErrorKind::Unsupported => "not known for this architecture".to_owned(),
        _ => crate::log::failure("seccomp() failed", &error),
    });
    let writes =
        |place: &&PathRule| confinement.level == Level::Strict || place.access != PathAccess::Read;
    Ok(Enforcement {
        level: confinement.level,
        capabilities,
        files,
        places: confinement.places.iter().filter(writes).count(),
        has_filter: filtered.is_ok(),
        system_calls: filtered,
        left_out,
    })
}

/// The permissions that a confinement grants on this machine at this moment, with paths resolved to
/// files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Granted {
    level: Level,
    programs: Vec<Program>,
    /// The access to a file or folder, by its device and inode.
    places: HashMap<(u64, u64), PathAccess>,
}

/// A permission that one confinement needs and another does not grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MissingGrant {
    /// A path: the text for the log.
    Place(String),
    /// A program to run.
    Program(PathBuf),
}

impl Confinement {
    /// The permissions of a worker process that is started now with this confinement.
    pub(crate) fn granted(&self) -> Granted {
        let mut places: HashMap<(u64, u64), PathAccess> = HashMap::new();
        for place in &self.places {
            let Some(identity) = files::granted(place).and_then(|path| identity(&path)) else {
                continue;
            };
            let access = places.entry(identity).or_insert(place.access);
            *access = (*access).max(place.access);
        }
        Granted {
            level: self.level,
            programs: self.programs.clone(),
            places,
        }
    }

    /// The first permission that this confinement needs and a running process of the same level
    /// does not have. `None` if the level of either is [`Level::Off`].
    pub(crate) fn missing_grant(&self, running: &Granted) -> Option<MissingGrant> {
        if self.level == Level::Off || running.level == Level::Off {
            return None;
        }
        let mut programs = self.programs.iter();
        if let Some(new) = programs.find(|program| !running.programs.contains(program)) {
            return Some(MissingGrant::Program(new.path.clone()));
        }
        let matters =
            |place: &&PathRule| self.level == Level::Strict || place.access != PathAccess::Read;
        let missing = self.places.iter().filter(matters).find(|place| {
            let granted = files::granted(place);
            granted.is_some_and(|path| !running.covers(&path, place.access))
        })?;
        let verb = missing.access.verb();
        let (path, line) = (missing.path.display(), &missing.line);
        Some(MissingGrant::Place(format!(
            "{line} wants to {verb} \"{path}\""
        )))
    }
}

impl Granted {
    /// Whether this access, or more, is granted for the path or a folder above it.
    fn covers(&self, path: &Path, access: PathAccess) -> bool {
        let Ok(real) = fs::canonicalize(path) else {
            return false;
        };
        let gives = |above: &Path| {
            let given = identity(above).and_then(|identity| self.places.get(&identity));
            given.is_some_and(|given| given.includes(access))
        };
        real.ancestors().any(gives)
    }
}

/// The kernel's identity of a file or folder.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder =
                std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(folder.join("a/inner")).unwrap();
            fs::create_dir_all(folder.join("b")).unwrap();
            Folder(folder)
        }

        fn confined(&self, level: Level, places: &[(&str, PathAccess)]) -> Confinement {
            let place = |(name, access): &(&str, PathAccess)| PathRule {
                path: self.0.join(name),
                access: *access,
                line: format!("\"{name}\""),
            };
            Confinement {
                level,
                places: places.iter().map(place).collect(),
                ..Confinement::default()
            }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_reload_wants_more_where_no_place_covers_it() {
        use PathAccess::{Append, Read, Write};
        let folder = Folder::new("wants");
        let running = folder
            .confined(Level::On, &[("a", Write), ("b", Append)])
            .granted();
        let wants = |level, places: &[(&str, PathAccess)]| {
            folder.confined(level, places).missing_grant(&running)
        };
        for covered in [
            &[("a", Write)][..],
            &[("a", Read), ("a/inner", Write), ("b", Append)],
            // The folder to create is below one that is covered.
            &[("a/new/below", Write)],
            // Reads are not confined.
            &[(".", Read)],
            &[],
        ] {
            assert_eq!(wants(Level::On, covered), None, "{covered:?}");
        }
        for beyond in [("b", Write), (".", Append), ("new", Write)] {
            let wanted = wants(Level::On, &[("a", Write), beyond]);
            assert!(
                matches!(&wanted, Some(MissingGrant::Place(text)) if text.contains(beyond.0)),
                "{wanted:?}"
            );
        }
        let strictly = folder
            .confined(Level::Strict, &[("a", Write), ("b", Append)])
            .granted();
        let reads = |name: &str| {
            folder
                .confined(Level::Strict, &[(name, Read)])
                .missing_grant(&strictly)
        };
        assert_eq!(reads("a/inner"), None);
        assert_eq!(reads("nothing/there"), None);
        // A path for appending must not be read.
        assert!(reads("b").is_some() && reads(".").is_some());
        let program = Program {
            path: "/bin/true".into(),
            arguments: Vec::new(),
        };
        let programs = Confinement {
            programs: vec![program],
            ..folder.confined(Level::On, &[])
        };
        let wanted = programs.missing_grant(&running);
        assert_eq!(wanted, Some(MissingGrant::Program("/bin/true".into())));
        assert_eq!(programs.missing_grant(&programs.granted()), None);
        assert_eq!(
            folder
                .confined(Level::Off, &[("b", Write)])
                .missing_grant(&running),
            None
        );
    }

    #[test]
    fn a_folder_in_the_place_of_another_and_what_a_link_leads_to_are_others() {
        let folder = Folder::new("others");
        std::os::unix::fs::symlink("a", folder.0.join("link")).unwrap();
        let confined = folder.confined(Level::On, &[("link", PathAccess::Write)]);
        let running = confined.granted();
        assert_eq!(confined.missing_grant(&running), None);
        assert_eq!(
            folder
                .confined(Level::On, &[("a", PathAccess::Write)])
                .missing_grant(&running),
            None
        );
        fs::remove_file(folder.0.join("link")).unwrap();
        std::os::unix::fs::symlink("b", folder.0.join("link")).unwrap();
        assert!(confined.missing_grant(&running).is_some());
        let confined = folder.confined(Level::On, &[("a", PathAccess::Write)]);
        fs::rename(folder.0.join("a"), folder.0.join("old")).unwrap();
        fs::rename(folder.0.join("b"), folder.0.join("a")).unwrap();
        assert!(confined.missing_grant(&running).is_some());
    }

    #[test]
    fn what_is_missing_is_made_in_the_folder_above_but_never_in_the_root() {
        let folder = Folder::new("missing");
        let place = |path: PathBuf, access| PathRule {
            path,
            access,
            line: String::new(),
        };
        let granted = |path, access| files::granted(&place(path, access));
        let missing = folder.0.join("a/none/below");
        assert_eq!(
            granted(missing.clone(), PathAccess::Write),
            Some(folder.0.join("a"))
        );
        assert_eq!(granted(missing, PathAccess::Read), None);
        assert_eq!(granted("/no-such-folder/x".into(), PathAccess::Write), None);
        assert_eq!(granted("/".into(), PathAccess::Write), Some("/".into()));
    }

    #[test]
    fn places_that_confine_nothing_are_noted_where_they_matter() {
        let place = |access| PathRule {
            path: "/".into(),
            access,
            line: "\"root\" in x:1".to_owned(),
        };
        let noted = |level| {
            let places = vec![place(PathAccess::Read), place(PathAccess::Write)];
            let confined = Confinement {
                level,
                places,
                ..Confinement::default()
            };
            confined.notes().count()
        };
        assert_eq!([Level::Off, Level::On, Level::Strict].map(noted), [0, 1, 2]);
    }
}
