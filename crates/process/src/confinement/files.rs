//! The files that a worker process may write, and at the strict level read (Landlock, landlock(7)).
//!
//! A rule applies to an existing folder or file, not to its path: a folder that replaces it later
//! is a different one. Open descriptors, such as the logs that the master passes on, are not
//! restricted.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, AccessFs, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope, make_bitflags,
};

use super::{Confinement, Level, PathAccess, PathRule};

/// The newest Landlock version whose rights have been tested with Tidegate. Version 9 also
/// restricts Unix sockets, which upstreams listen on.
const TRIED: ABI = ABI::V7;

/// Files that the C library and the standard library read by themselves: host and service names,
/// time zones, the number of processors, random bytes, name service modules.
const SYSTEM: &[&str] = &[
    "/dev/null",
    "/dev/urandom",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/services",
    "/lib",
    "/lib64",
    "/proc/cpuinfo",
    "/proc/self",
    "/proc/sys/kernel",
    "/proc/sys/net",
    "/proc/sys/vm",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/usr/lib",
    "/usr/share/zoneinfo",
];

/// The enforced part of Landlock, in words for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Enforcement {
    /// The rules are enforced by this version of Landlock.
    Landlock(i32),
    /// No rule is enforced, for this reason.
    Nothing(&'static str),
}

impl Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Enforcement::Landlock(version) => write!(f, "Landlock {version}{}", lacking(*version)),
            Enforcement::Nothing(why) => f.write_str(why),
        }
    }
}

/// For the log: what an older version of Landlock does not restrict.
fn lacking(version: i32) -> &'static str {
    match version {
        ..=1 => {
            " (older than Linux 6.2: files may be cut off anywhere, and none moved to another folder)"
        }
        2 => " (older than Linux 6.2: files may be cut off anywhere)",
        3 | 4 => " (older than Linux 6.10: devices may be controlled)",
        5 => " (older than Linux 6.12: processes of the same user may be signalled)",
        _ => "",
    }
}

/// The rules of a confinement, prepared while this process may still open every folder.
pub(super) struct Rules(RulesetCreated);

impl Rules {
    /// Opens the folders and files of the rules. Also returns descriptions, for the log, of the
    /// paths that are left out: those that cannot be opened, and those that do not exist although
    /// the worker needs more than to read them.
    ///
    /// # Errors
    /// The kernel's error, if it has Landlock and refuses.
    pub(super) fn of(confinement: &Confinement) -> Result<(Rules, Vec<String>), String> {
        let failed = |error: RulesetError| format!("landlock_create_ruleset() failed: {error}");
        let mut handled = AccessFs::from_write(TRIED) | AccessFs::Execute;
        if confinement.level == Level::Strict {
            handled |= READS;
        }
        let rules = Ruleset::default()
            .handle_access(handled)
            .and_then(|rules| rules.scope(Scope::Signal))
            .and_then(Ruleset::create)
            .map_err(failed)?;
        let (mut rules, mut left_out) = (rules, Vec::new());
        let reads = confinement.level == Level::Strict;
        let system = SYSTEM.iter().filter(|_| reads);
        for path in system {
            // A path that this machine does not have needs no rule.
            if let Ok(folder) = PathFd::new(path) {
                rules = add(rules, folder, Path::new(path), READS).map_err(failed)?;
            }
        }
        if let Ok(null) = PathFd::new("/dev/null") {
            let access = (READS & handled) | AccessFs::WriteFile;
            rules = add(rules, null, Path::new("/dev/null"), access).map_err(failed)?;
        }
        for place in &confinement.places {
            let access = rights(place.access) & handled;
            let Some(path) = granted(place) else {
                if !access.is_empty() && place.access != PathAccess::Read {
                    let (path, line) = (place.path.display(), &place.line);
                    left_out.push(format!("\"{path}\" ({line}) does not exist"));
                }
                continue;
            };
            if access.is_empty() {
                continue;
            }
            match PathFd::new(&path) {
                Ok(folder) => rules = add(rules, folder, &path, access).map_err(failed)?,
                Err(error) => {
                    left_out.push(format!("\"{}\" ({}): {error}", path.display(), place.line));
                }
            }
        }
        Ok((Rules(rules), left_out))
    }

    /// Enforces the rules for this thread and those that it starts.
    pub(super) fn enforce(self) -> Result<Enforcement, String> {
        let status = self.0.restrict_self();
        let status = status.map_err(|error| format!("landlock_restrict_self() failed: {error}"))?;
        Ok(match status.landlock {
            LandlockStatus::NotEnabled => Enforcement::Nothing("Landlock is not enabled"),
            LandlockStatus::NotImplemented => Enforcement::Nothing("this kernel has no Landlock"),
            LandlockStatus::Available { effective_abi, .. } => {
                Enforcement::Landlock(effective_abi as i32)
            }
        })
    }
}

/// Adds a rule for a folder or, with the rights that apply to files, a file.
fn add(
    rules: RulesetCreated,
    opened: PathFd,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let access = if path.is_dir() {
        access
    } else {
        access & AccessFs::from_file(TRIED)
    };
    if access.is_empty() {
        return Ok(rules);
    }
    rules.add_rule(PathBeneath::new(opened, access))
}

const READS: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});

fn rights(access: PathAccess) -> BitFlags<AccessFs> {
    match access {
        PathAccess::Remove => make_bitflags!(AccessFs::{RemoveFile}),
        PathAccess::Read => READS,
        // No truncation, removal or renaming: a file can only grow.
        PathAccess::Append => make_bitflags!(AccessFs::{WriteFile | MakeReg}),
        PathAccess::Write => {
            READS
                | make_bitflags!(AccessFs::{
                    WriteFile | Truncate | RemoveFile | RemoveDir | MakeDir | MakeReg | MakeSym | Refer
                })
        }
    }
}

/// The folder or file to which a rule applies, or the folder in which it will be created if it does
/// not exist. Never the root folder, and `None` for a missing path that is only read.
pub(super) fn granted(place: &PathRule) -> Option<PathBuf> {
    if place.path.exists() {
        return Some(place.path.clone());
    }
    let mut above = place.path.ancestors().skip(1);
    let found = above.find(|above| above.is_dir())?;
    let suits = place.access != PathAccess::Read && found.parent().is_some();
    suits.then(|| found.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_landlock_is_said_with_what_it_does_not_see() {
        let said = |version| Enforcement::Landlock(version).to_string();
        assert_eq!(said(7), "Landlock 7");
        assert_eq!(
            said(2),
            "Landlock 2 (older than Linux 6.2: files may be cut off anywhere)"
        );
        assert!(said(1).contains("none moved to another folder"));
        assert!(said(5).contains("may be signalled"));
    }
}
