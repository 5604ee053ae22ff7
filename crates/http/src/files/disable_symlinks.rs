//! `disable_symlinks`: refuses to open files through symbolic links.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#disable_symlinks>. The path is walked
//! one component at a time with `openat()`, as nginx does, so that no other process can replace a
//! checked component by a link. Directory listings and paths of logs are not checked.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use conf::{Arity, Contexts, Declared, Fault, ScopeRef, Setter, Setting, Template, Word};
use framework::compile::{Compiler, Feature};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, open, openat, statat};
use rustix::io::Errno;
use variables::Compiling as _;

use crate::config::plan_builder::PlanBuilder;
use crate::module::Module;
use crate::request::{Request, Text};
use crate::slots::PlanSlot;

static DISABLE_SYMLINKS: Setting<DisableSymlinksLine> = Setting::new(
    "disable_symlinks",
    &["off", "on | if_not_owner [from=part]"],
    written,
)
.contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
.arity(Arity::between(1, 2))
.default("off")
.manual(
    "Refuses files that are reached over a symbolic link: over any (`on`), or over one whose \
     owner is not that of what it leads to (`if_not_owner`). Links in the part of the path that \
     `from` names are never looked at. Each component costs calls of its own.",
);

/// The links that are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Off,
    On,
    /// Symbolic links with another owner than their target.
    IfNotOwner,
}

/// The directive as written.
struct DisableSymlinksLine {
    policy: Policy,
    /// The parameter `from=`: the part of the path whose links are followed.
    from: Option<Word>,
}

/// Parses the directive's line.
fn written(setter: &Setter<'_>) -> Result<DisableSymlinksLine, Fault> {
    let (mut policy, mut from) = (None, None);
    for word in setter.args() {
        match &*word.bytes {
            b"off" => policy = Some(Policy::Off),
            b"on" => policy = Some(Policy::On),
            b"if_not_owner" => policy = Some(Policy::IfNotOwner),
            bytes => {
                let Some(part) = bytes.strip_prefix(b"from=") else {
                    return Err(Fault::invalid_parameter(word));
                };
                let part = Word {
                    bytes: part.into(),
                    ..word.clone()
                };
                Template::parse(&part)?;
                from = Some(part);
            }
        }
    }
    match (policy, &from, setter.args()) {
        (None, _, _) => Err(Fault::new(
            "\"disable_symlinks\" must have \"off\", \"on\" or \"if_not_owner\" parameter",
        )),
        (Some(_), None, [first, second, ..]) => {
            let (first, second) = (first.text(), second.text());
            let text = format!("duplicate parameters \"{first} {second}\"");
            Err(Fault::new(text))
        }
        (Some(Policy::Off), Some(_), _) => Err(Fault::new(
            "\"from=\" cannot be used with \"off\" parameter",
        )),
        (Some(policy), _, _) => Ok(DisableSymlinksLine { policy, from }),
    }
}

/// The value of `disable_symlinks` in a scope.
#[derive(Debug)]
pub struct DisableSymlinks {
    policy: Policy,
    /// The parameter `from=`: the part of the path whose links are followed.
    from: Option<Text>,
}

impl Feature for DisableSymlinks {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&DISABLE_SYMLINKS];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<DisableSymlinks, Fault> {
        let DisableSymlinksLine { policy, from } = scope.get(&DISABLE_SYMLINKS)?;
        let from = match from {
            Some(word) => Some(compiler.text(&Template::parse(&word)?)),
            None => None,
        };
        Ok(DisableSymlinks { policy, from })
    }
}

/// The setting in the plan; absent if it is `off`.
static OF_PLAN: PlanSlot<DisableSymlinks> = PlanSlot::new();

impl Module for DisableSymlinks {
    /// With `off`, every link is followed.
    fn is_off(&self) -> bool {
        self.policy == Policy::Off
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.keep(&OF_PLAN, self);
    }
}

/// Why a path was not opened.
#[derive(Debug)]
pub struct OpenRefusal {
    /// The error of the system call.
    pub error: io::Error,
    /// The call that failed, as logs name it.
    pub call: &'static str,
}

impl From<io::Error> for OpenRefusal {
    fn from(error: io::Error) -> OpenRefusal {
        OpenRefusal {
            error,
            call: "openat()",
        }
    }
}

/// The restrictions that apply to opening a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRestrictions {
    policy: Policy,
    /// The length of the part of the path whose links are followed, in bytes; 0 if all links are
    /// checked.
    from: usize,
}

impl OpenRestrictions {
    /// Allows every link.
    pub const FOLLOWED: OpenRestrictions = OpenRestrictions {
        policy: Policy::Off,
        from: 0,
    };

    /// The restrictions of the current plan for a path.
    pub fn of(request: &mut Request, path: &[u8]) -> OpenRestrictions {
        if request.plan.of(&OF_PLAN).is_none() {
            return OpenRestrictions::FOLLOWED;
        }
        let http = Rc::clone(&request.http);
        let Some(settings) = http.plan(request.plan.id).of(&OF_PLAN) else {
            return OpenRestrictions::FOLLOWED;
        };
        let from = settings.from.as_ref().map(|from| from.evaluate(request));
        OpenRestrictions::below(settings.policy, path, from.as_deref().unwrap_or_default())
    }

    /// The restrictions for the part of the path below `part`. `part` is ignored unless it ends at
    /// a component of the path.
    fn below(policy: Policy, path: &[u8], part: &[u8]) -> OpenRestrictions {
        let from = match path.strip_prefix(part) {
            _ if part.is_empty() => 0,
            Some([]) => return OpenRestrictions::FOLLOWED,
            Some([b'/', ..]) => part.len(),
            Some(_) if part.ends_with(b"/") => part.len() - 1,
            _ => 0,
        };
        OpenRestrictions { policy, from }
    }

    /// Whether all links are followed.
    pub fn are_followed(self) -> bool {
        self.policy == Policy::Off
    }

    /// Opens a file or directory for reading, and checks links. Blocks on the disk.
    ///
    /// # Errors
    /// `ELOOP` if the last component is a refused link, `ENOTDIR` if an earlier component is;
    /// errors of `openat()`, and those of `open()` for the part that is not checked.
    pub fn open(self, path: &[u8]) -> Result<OwnedFd, OpenRefusal> {
        let part = match path.split_at_checked(self.from) {
            Some((part, rest)) if !part.is_empty() => Some((part, rest)),
            _ if path.starts_with(b"/") => Some((&b"/"[..], path)),
            _ => None,
        };
        let Some((part, rest)) = part else {
            return Ok(self.walk(None, path)?);
        };
        let at = open_part(part).map_err(|error| OpenRefusal {
            error,
            call: "open()",
        })?;
        Ok(self.walk(Some(at), rest)?)
    }

    /// Opens `rest` relative to a directory, one component after the other.
    fn walk(self, mut at: Option<OwnedFd>, mut rest: &[u8]) -> io::Result<OwnedFd> {
        while let Some(slash) = memchr::memchr(b'/', rest) {
            let (name, after) = rest.split_at(slash);
            rest = after.get(1..).unwrap_or_default();
            if !name.is_empty() {
                at = Some(self.open_at(directory(&at), name, SEARCH)?);
            }
        }
        if rest.is_empty() {
            let found = openat(directory(&at), ".", READ, Mode::empty())?;
            return Ok(found);
        }
        self.open_at(directory(&at), rest, READ)
    }

    /// Opens one component of the path, and refuses it if it is a link that the policy forbids.
    fn open_at(self, at: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let name = Path::new(OsStr::from_bytes(name));
        if self.policy == Policy::On {
            return Ok(openat(at, name, flags | OFlags::NOFOLLOW, Mode::empty())?);
        }
        // Whether `openat()` followed a link is not certain, since the link may have been created
        // or removed in between. So the owners are always compared.
        let found = openat(at, name, flags, Mode::empty())?;
        let link = statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if fstat(&found)?.st_uid != link.st_uid {
            return Err(Errno::LOOP.into());
        }
        Ok(found)
    }
}

/// The flags for a directory on the way to the file, for which no permission to read is needed.
const SEARCH: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Opens the part of the path whose links are followed, as a directory.
fn open_part(part: &[u8]) -> io::Result<OwnedFd> {
    let path = Path::new(OsStr::from_bytes(part));
    Ok(open(path, SEARCH, Mode::empty())?)
}

/// The directory that the walk has reached; relative paths start in the working directory.
fn directory(at: &Option<OwnedFd>) -> BorrowedFd<'_> {
    at.as_ref().map_or(CWD, AsFd::as_fd)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing;

    #[test]
    fn the_part_that_is_not_looked_at() {
        let from = |path: &str, part: &str| {
            let links = OpenRestrictions::below(Policy::On, path.as_bytes(), part.as_bytes());
            (!links.are_followed()).then_some(links.from)
        };
        assert_eq!(from("/a/b", ""), Some(0));
        assert_eq!(from("/a/b", "/a"), Some(2));
        assert_eq!(from("/a/b", "/a/"), Some(2));
        assert_eq!(from("/a/b", "/a/b"), None);
        assert_eq!(from("/ab", "/a"), Some(0));
        assert_eq!(from("/b", "/a"), Some(0));
        assert_eq!(from("/a", "/a/b"), Some(0));
    }

    #[test]
    fn links_are_found_wherever_they_are() {
        let base = std::env::temp_dir().join(format!("tidegate-links-{}", std::process::id()));
        std::fs::create_dir_all(base.join("dir")).unwrap();
        let base = base.canonicalize().unwrap();
        std::fs::write(base.join("dir/file"), "x").unwrap();
        for (to, link) in [
            ("dir", "linked"),
            ("file", "dir/link"),
            ("none", "dir/broken"),
        ] {
            let _ = std::fs::remove_file(base.join(link));
            symlink(to, base.join(link)).unwrap();
        }
        let root = base.to_str().unwrap();
        let open = |policy, from: &str, path: &str| {
            let path = format!("{root}{path}");
            let part = format!("{root}{from}");
            let part = if from.is_empty() { "" } else { part.as_str() };
            let opened = OpenRestrictions::below(policy, path.as_bytes(), part.as_bytes())
                .open(path.as_bytes());
            opened
                .map(drop)
                .map_err(|refused| refused.error.raw_os_error().unwrap())
        };
        let on = |path: &str| open(Policy::On, "", path);
        assert_eq!(on("/dir/file"), Ok(()));
        assert_eq!(on("//dir///file"), Ok(()));
        assert_eq!(on("/dir/../dir/"), Ok(()));
        assert_eq!(on("/dir/file/"), Err(libc::ENOTDIR));
        assert_eq!(on("/dir/none"), Err(libc::ENOENT));
        assert_eq!(on("/dir/link"), Err(libc::ELOOP));
        assert_eq!(on("/linked/file"), Err(libc::ENOTDIR));
        // All of these files have the same owner.
        let owner = |path: &str| open(Policy::IfNotOwner, "", path);
        assert_eq!(owner("/dir/link"), Ok(()));
        assert_eq!(owner("/linked/file"), Ok(()));
        assert_eq!(owner("/dir/broken"), Err(libc::ENOENT));
        // Links before the end of `from` are followed.
        assert_eq!(open(Policy::On, "/linked", "/linked/file"), Ok(()));
        assert_eq!(
            open(Policy::On, "/linked", "/linked/link"),
            Err(libc::ELOOP)
        );
        std::fs::remove_dir_all(&base).unwrap();
    }

    /// Texts of nginx 1.31.
    #[test]
    fn settings_and_their_mistakes() {
        let settings = |text: &str| {
            let text = format!("http {{ disable_symlinks {text}; }}");
            testing::feature::<DisableSymlinks>(&text, &["http"])
        };
        assert!(settings("off").unwrap().is_off());
        let from = settings("if_not_owner from=/a").unwrap();
        assert_eq!(from.policy, Policy::IfNotOwner);
        assert!(from.from.is_some());
        for (text, fault) in [
            ("yes", "invalid parameter \"yes\""),
            (
                "from=/a",
                "\"disable_symlinks\" must have \"off\", \"on\" or \"if_not_owner\" parameter",
            ),
            (
                "on if_not_owner",
                "duplicate parameters \"on if_not_owner\"",
            ),
            (
                "off from=/a",
                "\"from=\" cannot be used with \"off\" parameter",
            ),
        ] {
            assert_eq!(settings(text).map(drop), Err(fault.to_owned()), "{text}");
        }
    }
}
