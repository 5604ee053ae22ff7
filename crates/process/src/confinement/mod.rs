//! Confinement of a worker process: what it gives away before it reads anything that a peer may
//! have touched.
//!
//! In this order, and none of it can be taken back: rules about files are made while every folder
//! can still be opened (`files`); the process becomes its user; it starts the one that runs
//! programs for it, if there are any; it gives its capabilities away; no program that it starts
//! will have more rights than itself; the rules about files hold; then those about system calls
//! (`system_calls`), without which it could do none of the steps before. All threads that come have
//! what this one has.
//!
//! What the kernel lacks is said in the log, and does not keep the worker from serving.

mod capabilities;
mod files;
mod links;
mod system_calls;

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(crate) use links::leading_out;

use crate::programs::{self, Program};

/// How far a worker process is confined: the directive `confine`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// The worker may do what its user may.
    #[default]
    Off,
    /// The worker writes only where its configuration has it write.
    On,
    /// The worker also reads only where its configuration has it read.
    Strict,
}

impl Level {
    pub(crate) const ALL: [Level; 3] = [Level::Off, Level::On, Level::Strict];
}

/// What a worker process does with files at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathAccess {
    /// Files at the place are removed.
    Remove,
    /// Files at the place are read.
    Read,
    /// Makes them and appends to them.
    Append,
    /// Makes, reads, writes, renames and removes them.
    Write,
}

impl PathAccess {
    pub(crate) const ALL: [PathAccess; 4] = [
        PathAccess::Remove,
        PathAccess::Read,
        PathAccess::Append,
        PathAccess::Write,
    ];

    /// Whether a place that is given for this is given for another as well.
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

/// A folder with all below it, or a file, that a worker process opens things at itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRule {
    /// Where it is, absolute. It may not exist yet.
    pub path: PathBuf,
    /// What the worker does with the path.
    pub access: PathAccess,
    /// The directive that says so, with its place, for people.
    pub line: String,
}

impl PathRule {
    /// Where the kernel writes core files of a worker process that works in this folder, or in the
    /// master's; none where it gives them to a program.
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

/// What a worker process may still do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// Whether it is confined.
    pub level: Level,
    /// Where it writes and reads.
    pub places: Vec<PathRule>,
    /// Whether it connects from addresses that the machine does not have (`CAP_NET_RAW`).
    pub keeps_raw_network: bool,
    /// Whether it may come to use io_uring.
    pub may_use_rings: bool,
    /// Programs that it has run, by a process beside it.
    pub programs: Vec<Program>,
}

impl Confinement {
    /// What a person should know of it who tests a configuration: places that confine nothing.
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

/// What a process has given away, in words for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    level: Level,
    capabilities: String,
    files: files::InForce,
    places: usize,
    system_calls: Result<(), String>,
    /// Whether the filter of system calls is there, to be narrowed by [`close_rings`].
    has_filter: bool,
    /// What was to be written and is not there.
    pub left_out: Vec<String>,
}

impl Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InForce {
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
            files::InForce::Landlock(_) => {
                write!(f, "{what} at {} places by {files}; ", self.places)?
            }
            files::InForce::Nothing(_) => write!(f, "{what} anywhere, as {files}; ")?,
        }
        match &self.system_calls {
            Ok(()) => f.write_str("system calls filtered"),
            Err(why) => write!(f, "system calls not filtered: {why}"),
        }
    }
}

impl InForce {
    /// Whether anything that was asked for is not to be had here.
    pub fn lacks_anything(&self) -> bool {
        let has_files = matches!(self.files, files::InForce::Landlock(_));
        self.level != Level::Off && (!has_files || self.system_calls.is_err())
    }

    /// Forbids all threads to make rings of io_uring, and to use them unless `keeps`. What failed
    /// comes back.
    ///
    /// # Errors
    /// What failed, in words for the log.
    pub fn close_rings(&self, keeps: bool) -> Result<(), String> {
        if !self.has_filter {
            return Ok(());
        }
        system_calls::close_rings(keeps)
            .map_err(|error| crate::log::failure("seccomp() failed", &error))
    }
}

/// Confines this process, whose only thread calls this, for good. In the middle it becomes who it
/// is to be by `become_user`.
///
/// # Errors
/// What failed, in words for the log: the process must not go on then.
pub fn confine(
    confinement: &Confinement,
    become_user: impl FnOnce() -> Result<(), String>,
) -> Result<InForce, String> {
    if confinement.level == Level::Off {
        become_user()?;
        return Ok(InForce {
            level: Level::Off,
            capabilities: String::new(),
            files: files::InForce::Nothing(""),
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
    let capabilities = capabilities::drop_all_but(confinement.keeps_raw_network)?;
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
    Ok(InForce {
        level: confinement.level,
        capabilities,
        files,
        places: confinement.places.iter().filter(writes).count(),
        has_filter: filtered.is_ok(),
        system_calls: filtered,
        left_out,
    })
}

/// What a confinement comes to on this machine at this moment: places as the kernel knows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Granted {
    level: Level,
    programs: Vec<Program>,
    /// By device and inode.
    places: HashMap<(u64, u64), PathAccess>,
}

/// What a confinement wants that another does not give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MissingGrant {
    /// A place: the words for the log.
    Place(String),
    /// To have this program run.
    Program(PathBuf),
}

impl Confinement {
    /// What it gives a worker process that starts now.
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

    /// What it wants first that a running process does not have, where both are confined to the
    /// same level.
    pub(crate) fn wants_beyond(&self, running: &Granted) -> Option<MissingGrant> {
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
    /// Whether a place, or a folder that it lies in, is given for this and more.
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

/// What the kernel knows a file or folder by.
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
            folder.confined(level, places).wants_beyond(&running)
        };
        for covered in [
            &[("a", Write)][..],
            &[("a", Read), ("a/inner", Write), ("b", Append)],
            // Made in the folder above, which is covered.
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
                .wants_beyond(&strictly)
        };
        assert_eq!(reads("a/inner"), None);
        assert_eq!(reads("nothing/there"), None);
        // What may be appended to may not be read.
        assert!(reads("b").is_some() && reads(".").is_some());
        let program = Program {
            path: "/bin/true".into(),
            arguments: Vec::new(),
        };
        let programs = Confinement {
            programs: vec![program],
            ..folder.confined(Level::On, &[])
        };
        let wanted = programs.wants_beyond(&running);
        assert_eq!(wanted, Some(MissingGrant::Program("/bin/true".into())));
        assert_eq!(programs.wants_beyond(&programs.granted()), None);
        assert_eq!(
            folder
                .confined(Level::Off, &[("b", Write)])
                .wants_beyond(&running),
            None
        );
    }

    #[test]
    fn a_folder_in_the_place_of_another_and_what_a_link_leads_to_are_others() {
        let folder = Folder::new("others");
        std::os::unix::fs::symlink("a", folder.0.join("link")).unwrap();
        let confined = folder.confined(Level::On, &[("link", PathAccess::Write)]);
        let running = confined.granted();
        assert_eq!(confined.wants_beyond(&running), None);
        assert_eq!(
            folder
                .confined(Level::On, &[("a", PathAccess::Write)])
                .wants_beyond(&running),
            None
        );
        fs::remove_file(folder.0.join("link")).unwrap();
        std::os::unix::fs::symlink("b", folder.0.join("link")).unwrap();
        assert!(confined.wants_beyond(&running).is_some());
        let confined = folder.confined(Level::On, &[("a", PathAccess::Write)]);
        fs::rename(folder.0.join("a"), folder.0.join("old")).unwrap();
        fs::rename(folder.0.join("b"), folder.0.join("a")).unwrap();
        assert!(confined.wants_beyond(&running).is_some());
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
