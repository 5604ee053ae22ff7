//! What a confined process can still do: `examples/confined.rs` confines itself as a worker is
//! confined, and tries.
//!
//! As root it has become the user `nobody`, to whom every folder here is open: what it cannot do,
//! the confinement keeps it from and not the file system.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Operation not permitted: the filter of system calls, or Landlock about something else than a
/// file.
const EPERM: &str = "1";
/// Function not implemented: the filter, about a call that is younger than Linux 5.1.
const ENOSYS: &str = "38";
/// Permission denied: Landlock about a file.
const EACCES: &str = "13";

struct Folders(PathBuf);

impl Folders {
    fn new(name: &str) -> Folders {
        let folder =
            std::env::temp_dir().join(format!("tidegate-confined-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        for inner in ["", "inside", "outside", "logs"] {
            fs::create_dir_all(folder.join(inner)).unwrap();
            open_to_all(&folder.join(inner), 0o777);
        }
        fs::write(folder.join("outside/file"), "kept").unwrap();
        open_to_all(&folder.join("outside/file"), 0o666);
        Folders(folder)
    }

    /// Runs the program; every attempt with what came of it.
    fn run(&self, words: &[&str]) -> HashMap<String, String> {
        let mut program = std::env::current_exe().unwrap();
        program.pop();
        program.pop();
        // Where the user nobody may run the program. Another process writes the copy: a child that
        // a test beside this one starts would hold its descriptor, and the program be busy.
        let copy = self.0.join("confined");
        let copied = Command::new("cp")
            .arg(program.join("examples/confined"))
            .arg(&copy)
            .status();
        assert!(copied.unwrap().success());
        open_to_all(&copy, 0o755);
        let mut command = Command::new(copy);
        command.args(words);
        command.args(["inside", "outside", "logs"].map(|name| self.0.join(name)));
        let output = command.output().unwrap();
        let (said, printed) = (
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        );
        assert!(output.status.success(), "{said}{printed}");
        let lines = said.lines().filter_map(|line| line.split_once(": "));
        lines
            .map(|(what, came)| (what.to_owned(), came.to_owned()))
            .collect()
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Compares some attempts with what should have come of them.
fn check(said: &HashMap<String, String>, expected: &[(&str, &str)]) {
    let came: Vec<_> = expected
        .iter()
        .map(|(what, _)| (*what, said[*what].as_str()))
        .collect();
    assert_eq!(came, expected, "{said:#?}");
}

const ENGINES: [&str; 2] = ["epoll", "io_uring"];

/// What a confined process cannot do with files, and what it can.
const FILES: &[(&str, &str)] = &[
    ("write inside", "done"),
    ("rename inside", "done"),
    ("write outside", EACCES),
    ("overwrite outside", EACCES),
    ("cut outside", EACCES),
    ("make folder outside", EACCES),
    ("remove outside", EACCES),
    ("move from outside", EACCES),
    ("move outside", EACCES),
    ("write by a link", EACCES),
    ("append to a log", "done"),
    ("cut a log", EACCES),
    ("remove a log", EACCES),
    ("read inside", "done"),
];

/// The outcome of each forbidden and allowed system call in a confined process.
const CALLS: &[(&str, &str)] = &[
    ("run a program", EPERM),
    ("become a program", EPERM),
    ("start a process", EPERM),
    ("trace the parent", EPERM),
    ("kill the parent", EPERM),
    ("kill a thread of the parent", EPERM),
    ("limit the parent", EPERM),
    ("signal a thread of its own", "done"),
    ("limit itself", "done"),
    ("socket 2 524291", EPERM),
    ("socket 17 3", EPERM),
    ("socket 17 2", EPERM),
    ("socket 16 3", EPERM),
    ("socket 2 1", "done"),
    ("socket 1 2", "done"),
    ("load BPF", EPERM),
    ("count events", EPERM),
    ("leave the namespace", EPERM),
    ("mount", EPERM),
    ("load a module", EPERM),
    ("read a process", EPERM),
    ("program in a thread", "true"),
    ("write to a file that is there", "done"),
    ("ring later", EPERM),
];

#[test]
fn it_writes_where_it_may_and_makes_no_other_system_calls() {
    let folders = Folders::new("on");
    for engine in ENGINES {
        let said = folders.run(&["on", engine]);
        check(&said, FILES);
        check(&said, CALLS);
        check(
            &said,
            &[
                ("read outside", "done"),
                ("list outside", "done"),
                ("read the passwords", "done"),
            ],
        );
        // The kernel is asked, and finds the arguments wrong (EFAULT), where rings may be made.
        let ring = if engine == "io_uring" { "14" } else { ENOSYS };
        check(&said, &[("ring", ring)]);
        assert_eq!(fs::read(folders.0.join("outside/file")).unwrap(), b"kept");
        fs::remove_file(folders.0.join("inside/link")).unwrap();
    }
}

#[test]
fn strictly_it_reads_where_it_may_as_well() {
    let folders = Folders::new("strict");
    for engine in ENGINES {
        let said = folders.run(&["strict", engine]);
        check(&said, FILES);
        check(&said, CALLS);
        check(
            &said,
            &[
                ("read outside", EACCES),
                ("list outside", EACCES),
                ("read the passwords", EACCES),
            ],
        );
        fs::remove_file(folders.0.join("inside/link")).unwrap();
    }
}

#[test]
fn without_it_all_of_that_can_be_done() {
    // So that nothing above fails for another reason.
    let folders = Folders::new("off");
    let said = folders.run(&["off", "io_uring"]);
    let done = [
        "write outside",
        "overwrite outside",
        "cut outside",
        "make folder outside",
        "write by a link",
        "cut a log",
        "remove a log",
        "read outside",
        "read the passwords",
        "run a program",
        "remove outside",
        "move outside",
    ];
    check(&said, &done.map(|what| (what, "done")));
    assert_eq!(said["ring"], "14");
    assert_eq!(said["ring later"], "14");
    assert!(said["in force"].contains("not confined"), "{said:?}");
}

#[test]
fn a_kernel_without_landlock_confines_the_rest_and_says_so() {
    let folders = Folders::new("none");
    let said = folders.run(&["without-landlock", "on", "epoll"]);
    check(&said, CALLS);
    check(&said, &[("write outside", "done")]);
    assert!(
        said["in force"]
            .contains("writes anywhere, as this kernel has no Landlock; system calls filtered"),
        "{said:?}"
    );
}
