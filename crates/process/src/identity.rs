//! The identity of a worker process, and how the process assumes it: user, groups, limits.
//!
//! The master, which may still read everything, looks names up; the worker gets numbers.
//! `confinement` drops the worker's other privileges.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fmt::{self, Display};
use std::io;
use std::mem::MaybeUninit;

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities};

/// A user, with everything that a process needs to change to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user's name.
    pub name: String,
    /// The user's number.
    pub user: u32,
    /// The number of the main group.
    pub group: u32,
    /// The numbers of all groups.
    pub groups: Vec<u32>,
    /// Whether the process may connect from addresses that the machine does not have
    /// (`CAP_NET_RAW`).
    pub keeps_raw_network: bool,
}

/// Why a name could not be resolved.
#[derive(Debug)]
pub struct UnknownName {
    /// The lookup call.
    call: &'static str,
    name: String,
    /// The system's error; `None` if the name does not exist.
    error: Option<io::Error>,
}

impl Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}(\"{}\") failed", self.call, self.name);
        match &self.error {
            Some(error) => f.write_str(&crate::log::failure(&text, error)),
            None => f.write_str(&text),
        }
    }
}

impl std::error::Error for UnknownName {}

/// Initial buffer size for an entry of the user or group database, in bytes; a group with very many
/// members may need more, which the lookup reports.
const ENTRY_SIZE_MIN: usize = 4096;
const ENTRY_SIZE_MAX: usize = 16 << 20;

impl Identity {
    /// The identity of a `user` line; without a group, the group has the name of the user.
    pub fn resolve(user: &str, group: Option<&str>) -> Result<Identity, UnknownName> {
        let number = user_number(user)?;
        let group = group_number(group.unwrap_or(user))?;
        Ok(Identity {
            name: user.to_owned(),
            user: number,
            group,
            groups: groups(user, group),
            keeps_raw_network: false,
        })
    }

    /// The identity of a user with the main group that the user database names.
    pub fn of_user(name: &str) -> Result<Identity, UnknownName> {
        let (user, group) = user_numbers(name)?;
        Ok(Identity {
            name: name.to_owned(),
            user,
            group,
            groups: groups(name, group),
            keeps_raw_network: false,
        })
    }

    /// Changes the process permanently to the identity, with all its groups. The error is the
    /// failed call, in nginx's words.
    pub(crate) fn assume(&self) -> Result<(), String> {
        let Identity { user, group, .. } = *self;
        let keeps = self.keeps_raw_network && user != 0;
        let failed = |call: String| crate::log::failure(&call, &io::Error::last_os_error());
        // SAFETY: setgroups reads as many numbers as the slice has; the others take numbers. The
        // C library applies each of them to every thread of the process.
        unsafe {
            if libc::setgroups(self.groups.len(), self.groups.as_ptr()) != 0 {
                return Err(failed(format!("initgroups({}, {group}) failed", self.name)));
            }
            if libc::setgid(group) != 0 {
                return Err(failed(format!("setgid({group}) failed")));
            }
            if keeps {
                set_keep_capabilities(true).map_err(|error| {
                    crate::log::failure("prctl(PR_SET_KEEPCAPS, 1) failed", &error.into())
                })?;
            }
            if libc::setuid(user) != 0 {
                return Err(failed(format!("setuid({user}) failed")));
            }
            if keeps {
                // This is the process's only thread; later threads inherit its capabilities.
                let only = CapabilitySets {
                    effective: CapabilitySet::NET_RAW,
                    permitted: CapabilitySet::NET_RAW,
                    inheritable: CapabilitySet::empty(),
                };
                set_capabilities(None, only)
                    .map_err(|error| crate::log::failure("capset() failed", &error.into()))?;
            }
            if user != 0 && libc::setuid(0) == 0 {
                return Err(format!("setuid({user}) could be undone"));
            }
        }
        Ok(())
    }
}

/// Whether this process may become another user.
pub fn is_superuser() -> bool {
    rustix::process::geteuid().is_root()
}

/// Raises the limit of open files to `wanted`, or without it as far as the system allows. The error
/// is the failed call, in nginx's words; the limit is unchanged then.
pub(crate) fn raise_open_files(wanted: Option<u64>) -> Result<(), String> {
    let now = rustix::process::getrlimit(Resource::Nofile);
    let new = match wanted {
        Some(limit) => Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        },
        None => Rlimit {
            current: now.maximum,
            maximum: now.maximum,
        },
    };
    rustix::process::setrlimit(Resource::Nofile, new).map_err(|error| {
        let limit = wanted.or(now.maximum).unwrap_or(u64::MAX);
        let call = format!("setrlimit(RLIMIT_NOFILE, {limit}) failed");
        crate::log::failure(&call, &error.into())
    })
}

/// The worker process's limit of open files; `None` without a limit. A start raises the limit as
/// far as possible.
#[must_use]
pub fn open_files_max() -> Option<u64> {
    rustix::process::getrlimit(Resource::Nofile).maximum
}

/// Sets the nice value of this thread, and of threads that it starts later; 0 leaves the value
/// unchanged. The error is the failed call, in nginx's words.
pub(crate) fn set_priority(priority: i32) -> Result<(), String> {
    if priority == 0 {
        return Ok(());
    }
    rustix::process::setpriority_process(None, priority).map_err(|error| {
        crate::log::failure(&format!("setpriority({priority}) failed"), &error.into())
    })
}

/// Sets both limits of a core file, in bytes. The error is the failed call.
pub(crate) fn limit_core(wanted: Option<u64>) -> Result<(), String> {
    let Some(bytes) = wanted else { return Ok(()) };
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    rustix::process::setrlimit(Resource::Core, limit).map_err(|error| {
        let call = format!("setrlimit(RLIMIT_CORE, {bytes}) failed");
        crate::log::failure(&call, &error.into())
    })
}

/// Lets the kernel write a core file for a process that has changed its user.
pub(crate) fn allow_core() {
    // The call fails only for values that the kernel does not know.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable);
}

fn user_number(name: &str) -> Result<u32, UnknownName> {
    user_numbers(name).map(|(user, _)| user)
}

/// The numbers of a user and of the user's main group.
fn user_numbers(name: &str) -> Result<(u32, u32), UnknownName> {
    lookup("getpwnam", name, |name, buffer| {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = std::ptr::null_mut();
        // SAFETY: every pointer is valid for the call, and the buffer has the given length. If
        // `found` is not null, it points to `entry`, which is initialized then.
        unsafe {
            let error = libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &mut found,
            );
            let numbers = found.as_ref().map(|entry| (entry.pw_uid, entry.pw_gid));
            (error, numbers)
        }
    })
}

fn group_number(name: &str) -> Result<u32, UnknownName> {
    lookup("getgrnam", name, |name, buffer| {
        let mut entry = MaybeUninit::<libc::group>::uninit();
        let mut found = std::ptr::null_mut();
        // SAFETY: as in `user_numbers`.
        unsafe {
            let error = libc::getgrnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &mut found,
            );
            (error, found.as_ref().map(|entry| entry.gr_gid))
        }
    })
}

/// Looks up a name with a buffer that grows until the entry fits.
fn lookup<T>(
    call: &'static str,
    name: &str,
    get: impl Fn(&CStr, &mut [u8]) -> (i32, Option<T>),
) -> Result<T, UnknownName> {
    let unknown = |error| UnknownName {
        call,
        name: name.to_owned(),
        error,
    };
    let c_name = CString::new(name).map_err(|_| unknown(None))?;
    let mut buffer = vec![0; ENTRY_SIZE_MIN];
    loop {
        match get(&c_name, &mut buffer) {
            (0, Some(found)) => return Ok(found),
            (0, None) => return Err(unknown(None)),
            (libc::EINTR, _) => {}
            (libc::ERANGE, _) if buffer.len() < ENTRY_SIZE_MAX => {
                buffer.resize(buffer.len() * 2, 0);
            }
            (error, _) => return Err(unknown(Some(io::Error::from_raw_os_error(error)))),
        }
    }
}

/// All groups of a user, including the main one.
fn groups(user: &str, group: u32) -> Vec<u32> {
    let Ok(name) = CString::new(user) else {
        return vec![group];
    };
    let mut groups = vec![0; 64];
    loop {
        let mut count = i32::try_from(groups.len()).unwrap_or(i32::MAX);
        // SAFETY: the name ends in a null byte, and at most `count` numbers are written, which is
        // what the vector holds.
        let found =
            unsafe { libc::getgrouplist(name.as_ptr(), group, groups.as_mut_ptr(), &mut count) };
        let count = usize::try_from(count).unwrap_or(0);
        if found >= 0 {
            groups.truncate(count);
            return groups;
        }
        // `count` is the size needed now; if the database grows meanwhile, the loop repeats.
        groups.resize(count.max(groups.len() * 2), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_number_zero() {
        let root = Identity::resolve("root", None).unwrap();
        assert_eq!((root.user, root.group), (0, 0));
        assert!(root.groups.contains(&0));
    }

    #[test]
    fn an_unknown_name_reads_as_nginx_prints_it() {
        let error = Identity::resolve("no-such-user", None).unwrap_err();
        assert_eq!(error.to_string(), "getpwnam(\"no-such-user\") failed");
        let error = Identity::resolve("root", Some("no-such-group")).unwrap_err();
        assert_eq!(error.to_string(), "getgrnam(\"no-such-group\") failed");
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        raise_open_files(None).unwrap();
        let now = rustix::process::getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
    }
}
