//! Confines itself as a worker process is confined, and then tries what an attacker would try who
//! runs code in a worker. The tests of this crate run it; every line that it prints is an attempt
//! and what came of it.
//!
//! ```text
//! confined on|strict|off epoll|io_uring INSIDE OUTSIDE LOGS
//! confined without-landlock …          # on a kernel that has none, as far as this process can tell
//! ```
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitCode};

use process::confinement::{Confinement, Level, PathAccess, PathRule};
use process::identity::{self, Identity};
use tidegate_process as process;

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments
        .first()
        .is_some_and(|first| first == "without-landlock")
    {
        arguments.remove(0);
        forbid_landlock();
    }
    let [level, engine, inside, outside, logs] = &arguments[..] else {
        eprintln!("usage: confined LEVEL ENGINE INSIDE OUTSIDE LOGS");
        return ExitCode::from(2);
    };
    let place = |path: &str, access| PathRule {
        path: path.into(),
        access,
        line: format!("\"test\" in {path}"),
    };
    let confinement = Confinement {
        level: match level.as_str() {
            "off" => Level::Off,
            "strict" => Level::Strict,
            _ => Level::On,
        },
        places: vec![
            place(inside, PathAccess::Write),
            place(logs, PathAccess::Append),
        ],
        keeps_raw_network: false,
        may_use_rings: engine == "io_uring",
        programs: Vec::new(),
    };
    // As root it becomes the user nobody, as a worker does.
    let nobody = identity::is_superuser().then(|| Identity::resolve("nobody", Some("nogroup")));
    let in_force = match nobody.transpose() {
        Ok(nobody) => process::single::confine_process(nobody.as_ref(), &confinement),
        Err(error) => Err(error.to_string()),
    };
    let in_force = match in_force {
        Ok(in_force) => in_force,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("in force: {in_force}");
    files(Path::new(inside), Path::new(outside), Path::new(logs));
    said("run a program", Command::new("/bin/true").status());
    said("ring", call(libc::SYS_io_uring_setup, [1, 0, 0, 0]));
    if confinement.level != Level::Off {
        // Each would end this process, or the one that has started it, where it is not refused.
        calls();
    }
    in_force.close_rings(engine == "io_uring").unwrap();
    said("ring later", call(libc::SYS_io_uring_setup, [1, 0, 0, 0]));
    ExitCode::SUCCESS
}

fn said<T>(what: &str, outcome: io::Result<T>) {
    match outcome {
        Ok(_) => println!("{what}: done"),
        Err(error) => println!("{what}: {}", error.raw_os_error().unwrap_or(-1)),
    }
}

fn files(inside: &Path, outside: &Path, logs: &Path) {
    said("write inside", std::fs::write(inside.join("new"), "text"));
    said(
        "rename inside",
        std::fs::rename(inside.join("new"), inside.join("other")),
    );
    said("read outside", std::fs::read(outside.join("file")));
    said("list outside", std::fs::read_dir(outside));
    said("write outside", std::fs::write(outside.join("new"), "text"));
    said(
        "overwrite outside",
        OpenOptions::new().write(true).open(outside.join("file")),
    );
    said("cut outside", truncate(&outside.join("file")));
    said(
        "make folder outside",
        std::fs::create_dir(outside.join("folder")),
    );
    said("remove outside", std::fs::remove_file(outside.join("file")));
    let theirs = std::fs::rename(outside.join("file"), inside.join("file"));
    said("move from outside", theirs);
    said(
        "move outside",
        std::fs::rename(inside.join("other"), outside.join("other")),
    );
    let link = std::os::unix::fs::symlink(outside, inside.join("link"));
    link.unwrap();
    said(
        "write by a link",
        std::fs::write(inside.join("link/new"), "text"),
    );
    let append = || {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(logs.join("log"))
    };
    said(
        "append to a log",
        append().and_then(|mut log| log.write_all(b"line\n")),
    );
    said("cut a log", truncate(&logs.join("log")));
    said("remove a log", std::fs::remove_file(logs.join("log")));
    said("read inside", std::fs::read(inside.join("other")));
    said("read the passwords", std::fs::read("/etc/passwd"));
}

fn truncate(path: &Path) -> io::Result<()> {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    call(libc::SYS_truncate, [path.as_ptr() as libc::c_long, 0, 0, 0])
}

fn calls() {
    // Without the fork that would come before it.
    let (path, nothing) = (c"/bin/true", [std::ptr::null::<libc::c_char>()]);
    let program = [
        path.as_ptr() as libc::c_long,
        nothing.as_ptr() as libc::c_long,
        0,
        0,
    ];
    said("become a program", call(libc::SYS_execve, program));
    said(
        "start a process",
        call(
            libc::SYS_clone,
            [libc::c_long::from(libc::SIGCHLD), 0, 0, 0],
        ),
    );
    // SAFETY: it only asks for a number.
    let parent = libc::c_long::from(unsafe { libc::getppid() });
    said(
        "trace the parent",
        call(
            libc::SYS_ptrace,
            [libc::c_long::from(libc::PTRACE_ATTACH as i32), parent, 0, 0],
        ),
    );
    said(
        "kill the parent",
        call(
            libc::SYS_kill,
            [parent, libc::c_long::from(libc::SIGKILL), 0, 0],
        ),
    );
    said(
        "kill a thread of the parent",
        call(libc::SYS_tgkill, [parent, parent, 0, 0]),
    );
    said(
        "limit the parent",
        call(libc::SYS_prlimit64, [parent, 0, 0, 0]),
    );
    let own = libc::c_long::from(std::process::id());
    said(
        "signal a thread of its own",
        call(libc::SYS_tgkill, [own, own, 0, 0]),
    );
    said("limit itself", call(libc::SYS_prlimit64, [0, 0, 0, 0]));
    let socket = |family: i32, kind: i32, protocol: i32| {
        let socket = call(
            libc::SYS_socket,
            [family.into(), kind.into(), protocol.into(), 0],
        );
        said(&format!("socket {family} {kind}"), socket);
    };
    socket(
        libc::AF_INET,
        libc::SOCK_RAW | libc::SOCK_CLOEXEC,
        libc::IPPROTO_TCP,
    );
    socket(libc::AF_PACKET, libc::SOCK_RAW, 0x0300);
    socket(libc::AF_PACKET, libc::SOCK_DGRAM, 0x0300);
    socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT);
    socket(libc::AF_INET, libc::SOCK_STREAM, 0);
    socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0);
    said("load BPF", call(libc::SYS_bpf, [5, 0, 0, 0]));
    said(
        "count events",
        call(libc::SYS_perf_event_open, [0, 0, -1, -1]),
    );
    said(
        "leave the namespace",
        call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0]),
    );
    said("mount", call(libc::SYS_mount, [0, 0, 0, 0]));
    said("load a module", call(libc::SYS_finit_module, [0, 0, 0, 0]));
    said(
        "read a process",
        call(libc::SYS_process_vm_readv, [parent, 0, 0, 0]),
    );
    let thread = std::thread::Builder::new().spawn(|| Command::new("/bin/true").status().is_err());
    let thread = thread.map(std::thread::JoinHandle::join);
    println!("program in a thread: {}", matches!(thread, Ok(Ok(true))));
    said("write to a file that is there", File::create("/dev/null"));
}

/// A system call; whatever it does with its arguments, none is a pointer that it may write to.
fn call(number: libc::c_long, arguments: [libc::c_long; 4]) -> io::Result<()> {
    let [a, b, c, d] = arguments;
    // SAFETY: the pointers that are passed are to constant texts and to lists that end with null;
    // nothing is written.
    match unsafe { libc::syscall(number, a, b, c, d) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Has the calls of Landlock fail as on a kernel that has none.
fn forbid_landlock() {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let compare = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let landlock = libc::SYS_landlock_create_ruleset as u32;
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jt: 0,
            jf: 1,
            ..statement(compare, landlock)
        },
        statement(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    rustix::thread::set_no_new_privs(true).unwrap();
    // SAFETY: the program lives until the call has ended, and is as long as it says.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    assert_eq!(done, 0);
}
