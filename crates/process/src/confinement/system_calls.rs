//! The system calls that a worker process may make (seccomp(2)): those that serving needs, and no
//! others.
//!
//! The filter lists the allowed calls. Any other call fails with EPERM, or with ENOSYS if it is
//! newer than Linux 5.1, so that the C library falls back. Since Linux 5.11 the kernel caches which
//! calls a filter allows regardless of arguments, and such calls do not run the filter again.
//!
//! seccomp does not see the operations of an io_uring ring: the engine restricts its rings itself,
//! and no ring can be created once the threads have theirs ([`close_rings`]).
#![allow(unsafe_code)]

use std::io;

use libc::{c_long, sock_filter};

/// The architecture of the system call numbers below; `None` if they are not known for it.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xC000_003E);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xC000_00B7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
/// Offset of the lower half of an argument; both architectures are little-endian.
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// From this number on, calls have the same numbers on all architectures, and are newer than Linux
/// 5.1.
const YOUNG: u32 = 424;

/// Calls that are allowed with any arguments, the most frequent first.
const ALLOWED: &[c_long] = &[
    // Connections and files.
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_readv,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_epoll_ctl,
    libc::SYS_accept4,
    libc::SYS_close,
    libc::SYS_sendfile,
    libc::SYS_statx,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_accept,
    libc::SYS_bind,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_listen,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_socketpair,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_eventfd2,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    libc::SYS_pipe2,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_fadvise64,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fallocate,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fsetxattr,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_linkat,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_readahead,
    libc::SYS_readlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_splice,
    libc::SYS_statfs,
    libc::SYS_symlinkat,
    libc::SYS_sync_file_range,
    libc::SYS_truncate,
    libc::SYS_umask,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    CACHESTAT,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munlock,
    libc::SYS_munmap,
    // Threads, signals within the process, clocks, and information about the process itself.
    libc::SYS_capget,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getitimer,
    libc::SYS_getpgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpriority,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrusage,
    libc::SYS_getsid,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_membarrier,
    libc::SYS_nanosleep,
    libc::SYS_prctl,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getattr,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_yield,
    // To forbid rings once the threads have theirs.
    libc::SYS_seccomp,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_setitimer,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_times,
    libc::SYS_uname,
];

/// Linux 6.5; the same number on all architectures.
const CACHESTAT: c_long = 451;

/// Additional calls of this architecture: older forms of the calls above.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[
    libc::SYS_epoll_wait,
    libc::SYS_poll,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_alarm,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_creat,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_eventfd,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_getrlimit,
    libc::SYS_link,
    libc::SYS_mkdir,
    libc::SYS_pipe,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_symlink,
    libc::SYS_time,
    libc::SYS_unlink,
    libc::SYS_utimes,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[c_long] = &[];

/// The io_uring calls; the same numbers on all architectures.
const RINGS: &[c_long] = &[
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_register,
];

/// Inserts a byte into a terminal's input, as if it had been typed.
const TIOCSTI: u32 = 0x5412;

/// Installs the filter for serving; called by the only thread of the process. Allows io_uring if
/// `rings`. Threads started later inherit the filter.
///
/// # Errors
/// `Unsupported` on an architecture with unknown system call numbers; otherwise those of
/// seccomp(2).
pub(super) fn allow_serving(rings: bool) -> io::Result<()> {
    let Some(architecture) = ARCHITECTURE else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    install(&serving(architecture, rings), libc::SECCOMP_FILTER_FLAG_LOG)?;
    // A separate filter, so that thread starts do not fill the kernel's log.
    let mut filter = Filter::new(architecture);
    filter.answer(libc::SYS_clone3, error(libc::ENOSYS));
    install(&filter.finish(libc::SECCOMP_RET_ALLOW), 0)
}

/// Forbids all threads of this process to create io_uring rings, and to use any unless `keeps` says
/// that they have some.
///
/// # Errors
/// As for [`allow_serving`].
pub(super) fn close_rings(keeps: bool) -> io::Result<()> {
    let Some(architecture) = ARCHITECTURE else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let mut filter = Filter::new(architecture);
    let forbidden = if keeps {
        // invariant: `RINGS` has three elements
        &RINGS[1..2]
    } else {
        RINGS
    };
    for call in forbidden {
        filter.answer(*call, error(libc::EPERM));
    }
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_LOG;
    install(&filter.finish(libc::SECCOMP_RET_ALLOW), flags)
}

fn serving(architecture: u32, rings: bool) -> Vec<sock_filter> {
    let mut filter = Filter::new(architecture);
    let rings = if rings { RINGS } else { &[] };
    // The calls of io_uring come first: an engine with rings waits with `io_uring_enter`, its most
    // frequent call.
    for call in rings.iter().chain(ALLOWED).chain(ALLOWED_HERE) {
        filter.answer(*call, libc::SECCOMP_RET_ALLOW);
    }
    // Threads only, no processes. The flags of clone3() are in memory, where no filter sees them:
    // the C library falls back to clone() if another filter reports clone3() as missing.
    filter.answer(libc::SYS_clone3, libc::SECCOMP_RET_ALLOW);
    filter.answer_if(libc::SYS_clone, |checks| {
        checks.push(load(argument(0)));
        checks.push(unless(jump(libc::BPF_JSET, libc::CLONE_THREAD as u32)));
        checks.push(answer(error(libc::EPERM)));
        checks.push(answer(libc::SECCOMP_RET_ALLOW));
    });
    filter.answer_if(libc::SYS_ioctl, |checks| {
        checks.push(load(argument(1)));
        checks.push(unless(jump(libc::BPF_JEQ, TIOCSTI)));
        checks.push(answer(libc::SECCOMP_RET_ALLOW));
        checks.push(answer(error(libc::EPERM)));
    });
    filter.answer_if(libc::SYS_socket, sockets);
    // Only for this process, and no other of the same user. The process never forks, so its PID
    // does not change.
    for call in [libc::SYS_tgkill, libc::SYS_prlimit64] {
        filter.answer_if(call, |checks| {
            checks.push(load(argument(0)));
            checks.extend(when(0, &[answer(libc::SECCOMP_RET_ALLOW)]));
            checks.extend(when(std::process::id(), &[answer(libc::SECCOMP_RET_ALLOW)]));
            checks.push(answer(error(libc::EPERM)));
        });
    }
    filter.finish(error(libc::EPERM))
}

/// Stream and datagram sockets of the network and of this machine, and the netlink sockets by which
/// the C library reads the machine's addresses. No packet sockets.
fn sockets(checks: &mut Vec<sock_filter>) {
    // Masks the flags out of the type.
    const TYPE: u32 = 0xf;
    checks.push(load(argument(0)));
    checks.extend(when(
        libc::AF_NETLINK as u32,
        &[
            load(argument(2)),
            unless(jump(libc::BPF_JEQ, libc::NETLINK_ROUTE as u32)),
            answer(error(libc::EPERM)),
            answer(libc::SECCOMP_RET_ALLOW),
        ],
    ));
    let mut rest = vec![
        load(argument(1)),
        statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, TYPE),
    ];
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        rest.extend(when(kind as u32, &[answer(libc::SECCOMP_RET_ALLOW)]));
    }
    rest.push(answer(error(libc::EPERM)));
    for family in [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX] {
        checks.extend(when(family as u32, &rest));
    }
    checks.push(answer(error(libc::EPERM)));
}

/// A filter under construction: instructions in execution order.
struct Filter(Vec<sock_filter>);

impl Filter {
    /// A call with another architecture's numbers kills the process: Tidegate makes no such call.
    fn new(architecture: u32) -> Filter {
        Filter(vec![
            load(ARCH),
            when(architecture, &[])[0],
            answer(libc::SECCOMP_RET_KILL_PROCESS),
            load(NUMBER),
        ])
    }

    /// Returns the action `with` for a call, whatever its arguments.
    fn answer(&mut self, call: c_long, with: u32) {
        self.0.extend(when(call as u32, &[answer(with)]));
    }

    /// Decides a call by its arguments: every path through the instructions must return an action.
    fn answer_if(&mut self, call: c_long, write: impl FnOnce(&mut Vec<sock_filter>)) {
        let mut checks = Vec::new();
        write(&mut checks);
        self.0.extend(when(call as u32, &checks));
    }

    /// Ends the filter: every call that it has not decided gets the action `with`. If `with`
    /// forbids calls, calls newer than Linux 5.1 fail with ENOSYS instead.
    fn finish(mut self, with: u32) -> Vec<sock_filter> {
        if with != libc::SECCOMP_RET_ALLOW {
            self.0.push(unless(jump(libc::BPF_JGE, YOUNG)));
            self.0.push(answer(with));
            self.0.push(answer(error(libc::ENOSYS)));
        } else {
            self.0.push(answer(with));
        }
        self.0
    }
}

/// Runs `then` if the loaded value is `value`, and continues after it otherwise.
fn when(value: u32, then: &[sock_filter]) -> Vec<sock_filter> {
    let over = u8::try_from(then.len()).unwrap_or(u8::MAX);
    debug_assert_eq!(
        usize::from(over),
        then.len(),
        "a jump goes over 255 at most"
    );
    let test = match then {
        // The check of the architecture: a match skips the next instruction.
        [] => sock_filter {
            jt: 1,
            jf: 0,
            ..jump(libc::BPF_JEQ, value)
        },
        _ => sock_filter {
            jt: 0,
            jf: over,
            ..jump(libc::BPF_JEQ, value)
        },
    };
    std::iter::once(test).chain(then.iter().copied()).collect()
}

/// Skips the next instruction if the test succeeds.
fn unless(test: sock_filter) -> sock_filter {
    sock_filter {
        jt: 1,
        jf: 0,
        ..test
    }
}

fn jump(kind: u32, value: u32) -> sock_filter {
    statement(libc::BPF_JMP | kind | libc::BPF_K, value)
}

fn load(offset: u32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn answer(with: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, with)
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

fn error(number: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | (number as u32 & libc::SECCOMP_RET_DATA)
}

/// Installs a filter for this thread and those that it starts, and with TSYNC for all existing
/// threads. With LOG, refused calls appear in the kernel's log.
fn install(filter: &[sock_filter], flags: libc::c_ulong) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // Without this flag, kernels before 5.16 disable speculation for the whole process, which costs
    // far more than the filter.
    let flags = flags | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: the program points to as many instructions as it says, which the kernel copies during
    // the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match done {
        0 => Ok(()),
        // TSYNC returns the thread that could not be synchronized.
        1.. => Err(io::Error::other("a thread has a filter of its own")),
        _ => Err(io::Error::last_os_error()),
    }
}
