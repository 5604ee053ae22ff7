//! Who a worker process is, and how it becomes that: user, groups, limits.
//!
//! Names are looked up by the master, which still may read everything; the worker gets numbers.
//! What a worker gives away beside its user is `confinement`'s.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fmt::{self, Display};
use std::io;
use std::mem::MaybeUninit;

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities};

/// A user with everything that a process needs to become that user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user's name of the identity.
    pub name: String,
    /// The user's number of the identity.
    pub user: u32,
    /// The number of the main group.
    pub group: u32,
    /// The numbers of all groups.
    pub groups: Vec<u32>,
    /// Whether it may connect from addresses that the machine does not have (`CAP_NET_RAW`).
    pub keeps_raw_network: bool,
}

/// Why a name is no user's.
#[derive(Debug)]
pub struct UnknownName {
    /// The call that looked it up.
    call: &'static str,
    name: String,
    /// What the system said; nothing where there simply is no such name.
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

/// Bytes for one entry of the user or group database; a group with very many members may need
/// more, and the system says so.
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

    /// Makes this process run as the identity for good, with every group of it. The error is the
    /// call that failed, in nginx's words.
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
                // This is the process's only thread: those to come have what it has.
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

/// Allows this process as many open files as `wanted`, or without a wish as many as the system
/// lets it have. The error is the call that failed, in nginx's words; the limit stays then.
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

/// How many files the worker process may have open at most; `None` without a limit. A start raises
/// the limit as far as it may.
#[must_use]
pub fn open_files_max() -> Option<u64> {
    rustix::process::getrlimit(Resource::Nofile).maximum
}

/// Gives this thread, and those that it starts from now on, a nice value; 0 leaves it as it is. The
/// error is the call that failed, in nginx's words.
pub(crate) fn set_priority(priority: i32) -> Result<(), String> {
    if priority == 0 {
        return Ok(());
    }
    rustix::process::setpriority_process(None, priority).map_err(|error| {
        crate::log::failure(&format!("setpriority({priority}) failed"), &error.into())
    })
}

/// Sets both limits of a core file, in bytes. The error is the call that failed.
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

/// Lets the kernel write a core file of a process that has changed its user.
pub(crate) fn allow_core() {
    // It fails for no other reason than a value that the kernel does not know.
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
        // SAFETY: every pointer is valid for the call and the buffer is as long as is said; where
        // `found` is not null it points to `entry`, which is initialised then.
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
        // SAFETY: as in `user_number`.
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

/// Looks a name up with a buffer that grows until the entry fits.
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

/// Every group of a user, the main one among them.
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
        // `count` is what is needed now; a database that grows meanwhile is asked again.
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
