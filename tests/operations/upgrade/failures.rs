//! Upgrades that come to nothing, whatever the reason: the older program goes on.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use support::master::{Master, wait_for};
use support::port::free_port;
use support::site::{is_root, small};

use crate::upgrade::place::{
    EndOfAll, Kind, beside_nginx, comm, end, is_alive, put, site, start_in_background, title,
    upgrade,
};

/// A successor that cannot start changes nothing, and neither does another USR2 in the foreground.
#[test]
fn a_binary_that_cannot_start_leaves_the_older_one() {
    let port = free_port();
    let Some(site) = beside_nginx(port) else {
        return;
    };
    let all = EndOfAll(site.folder.clone());
    let ours = start_in_background(&all, "tidegate");
    assert_eq!(comm(ours), "tidegate");
    assert!(
        title(ours).starts_with("tidegate: master process "),
        "{}",
        title(ours)
    );
    small(port, "before");
    let conf = site.folder.join("nginx.conf");
    let text = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, text.replace("root ", "no_such_directive ")).unwrap();
    support::signal(ours, "USR2");
    site.wait_for_text("logs/error.log", "new binary process");
    site.wait_for_text("logs/error.log", "exited with code 1");
    wait_for("pid file", || all.pid("nginx.pid") == Some(ours));
    assert!(site.folder.join("socket").exists());
    small(port, "behind");
    // The same file again, by a configuration that is whole.
    fs::write(&conf, text).unwrap();
    support::signal(ours, "USR2");
    wait_for("new binary", || {
        all.pid("nginx.pid").is_some_and(|pid| pid != ours)
    });
    let next = all.pid("nginx.pid").unwrap();
    assert_eq!(all.pid("nginx.pid.oldbin"), Some(ours));
    support::signal(next, "QUIT");
    wait_for("pid file that is back", || {
        all.pid("nginx.pid") == Some(ours)
    });
    assert!(site.folder.join("socket").exists());
    small(port, "again");
}

/// A Tidegate in the background, and the folder that it is in.
struct Older {
    all: EndOfAll,
    site: Master,
    port: u16,
    pid: u32,
}

impl Older {
    fn start() -> Older {
        Older::start_with("", |_| ())
    }

    /// One whose folder is prepared first.
    fn start_with(main: &str, prepare: impl Fn(&Path)) -> Older {
        let port = free_port();
        let servers =
            format!("server {{ listen 127.0.0.1:{port}; listen unix:@/socket; root @/www; }}");
        let site = site(main, &servers, "");
        prepare(&site.folder);
        put(&site.folder, Kind::Tidegate);
        let all = EndOfAll(site.folder.clone());
        let pid = start_in_background(&all, "sbin/nginx");
        small(port, "started");
        Older {
            all,
            site,
            port,
            pid,
        }
    }

    fn program(&self) -> PathBuf {
        self.site.folder.join("sbin/nginx")
    }

    /// USR2, and a line of the log that must come of it.
    fn upgrade_in_vain(&self, expected: &str) {
        let count = || self.site.read("logs/error.log").matches(expected).count();
        let before = count();
        support::signal(self.pid, "USR2");
        wait_for(expected, || count() > before);
        self.goes_on();
    }

    /// That nothing is different from before.
    fn goes_on(&self) {
        wait_for("pid file that is back", || {
            self.all.pid("nginx.pid") == Some(self.pid)
        });
        assert!(!self.site.folder.join("nginx.pid.oldbin").exists());
        assert!(self.site.folder.join("socket").exists());
        small(self.port, "goes-on");
    }

    /// That it can be followed all the same.
    fn is_followed(&self) {
        put(&self.site.folder, Kind::Tidegate);
        let newer = upgrade(&self.all, self.pid);
        end(self.pid, "QUIT");
        small(self.port, "followed");
        end(newer, "TERM");
        assert!(!self.site.folder.join("socket").exists());
    }
}

#[test]
fn a_file_that_is_no_program() {
    let older = Older::start();
    let program = older.program();
    let failed = |error: &str| format!("execve() \"{}\" failed ({error})", program.display());
    fs::remove_file(&program).unwrap();
    older.upgrade_in_vain(&failed("2: No such file or directory"));
    fs::write(&program, "text").unwrap();
    older.upgrade_in_vain(&failed("13: Permission denied"));
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    // It is taken for a script.
    older.upgrade_in_vain("exited with code 127");
    fs::remove_file(&program).unwrap();
    symlink("/bin/false", &program).unwrap();
    older.upgrade_in_vain("exited with code 1");
    fs::remove_file(&program).unwrap();
    older.is_followed();
}

/// Another program than a server, which has the sockets for a while.
#[test]
fn a_program_that_crashes_with_the_sockets() {
    let older = Older::start();
    let script = older.site.folder.join("script");
    fs::write(&script, "#!/bin/sh\nsleep 0.1\nkill -SEGV $$\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&script, older.program()).unwrap();
    older.upgrade_in_vain("exited on signal 11");
    older.is_followed();
}

/// A newer server that is killed while it serves: the older one serves again also where it had left
/// that to the newer one.
#[test]
fn a_newer_master_that_is_killed() {
    let older = Older::start();
    for signal in ["KILL", "ABRT"] {
        let newer = upgrade(&older.all, older.pid);
        let workers = support::children(newer);
        support::signal(older.pid, "WINCH");
        wait_for("older one without workers", || {
            support::children(older.pid) == [newer]
        });
        small(older.port, "of-the-newer");
        support::signal(newer, signal);
        older.goes_on();
        // Whose master is gone, ends by itself.
        wait_for("end of its workers", || {
            !workers.iter().any(|worker| is_alive(*worker))
        });
        small(older.port, "of-the-older");
    }
    older.is_followed();
}

#[test]
fn an_older_master_that_is_killed() {
    let older = Older::start();
    let newer = upgrade(&older.all, older.pid);
    let mut workers = support::children(older.pid);
    workers.retain(|pid| *pid != newer);
    support::signal(older.pid, "KILL");
    wait_for("end of its workers", || {
        !workers.iter().any(|worker| is_alive(*worker))
    });
    small(older.port, "of-the-newer");
    assert_eq!(older.all.pid("nginx.pid"), Some(newer));
    // What is left of it is in nobody's way.
    assert_eq!(older.all.pid("nginx.pid.oldbin"), Some(older.pid));
    let last = upgrade(&older.all, newer);
    end(newer, "QUIT");
    small(older.port, "of-the-last");
    end(last, "TERM");
    for name in ["socket", "nginx.pid", "nginx.pid.oldbin"] {
        assert!(!older.site.folder.join(name).exists(), "{name}");
    }
}

/// Workers of the older one start from the file that it was started from, whatever lies there now.
#[test]
fn a_worker_that_crashes_beside_a_newer_program() {
    let older = Older::start();
    fs::remove_file(older.program()).unwrap();
    symlink("/bin/false", older.program()).unwrap();
    let before = support::children(older.pid);
    support::signal(before[0], "SEGV");
    wait_for("another worker", || {
        let workers = support::children(older.pid);
        !workers.is_empty() && workers != before
    });
    older.goes_on();
    older.is_followed();
}

#[test]
fn two_orders_at_once_are_one() {
    let older = Older::start();
    for _ in 0..3 {
        support::signal(older.pid, "USR2");
    }
    older
        .site
        .wait_for_text("logs/error.log", "start new binary process");
    wait_for("new binary", || {
        older
            .all
            .pid("nginx.pid")
            .is_some_and(|pid| pid != older.pid)
    });
    support::signal(older.pid, "USR2");
    older
        .site
        .wait_for_text("logs/error.log", "the changing binary signal is ignored");
    let log = older.site.read("logs/error.log");
    assert_eq!(log.matches("start new binary process").count(), 1);
    end(older.all.pid("nginx.pid").unwrap(), "QUIT");
    older.goes_on();
}

#[test]
fn pid_files_of_others() {
    let older = Older::start();
    let place = |name: &str| older.site.folder.join(name);
    let mut sleep = Command::new("sleep").arg("600").spawn().unwrap();
    let of_sleep = format!("{}\n", sleep.id());
    let ours = fs::read(place("nginx.pid")).unwrap();
    // In the pid file's place: it is not taken away.
    fs::write(place("nginx.pid"), &of_sleep).unwrap();
    support::signal(older.pid, "USR2");
    let refused = format!("names process {}, and not this one", sleep.id());
    older.site.wait_for_text("logs/error.log", &refused);
    assert_eq!(fs::read_to_string(place("nginx.pid")).unwrap(), of_sleep);
    fs::write(place("nginx.pid"), ours).unwrap();
    older.goes_on();
    // In the place that it is put aside to, whatever it is left over from.
    fs::write(place("nginx.pid.oldbin"), &of_sleep).unwrap();
    let newer = upgrade(&older.all, older.pid);
    end(newer, "QUIT");
    older.goes_on();
    fs::create_dir(place("nginx.pid.oldbin")).unwrap();
    support::signal(older.pid, "USR2");
    older
        .site
        .wait_for_text("logs/error.log", "failed (21: Is a directory)");
    fs::remove_dir(place("nginx.pid.oldbin")).unwrap();
    older.goes_on();
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    older.is_followed();
}

/// A folder on a disk of its own that is full.
struct FullDisk(PathBuf);

impl FullDisk {
    fn mount(folder: &Path) -> Option<FullDisk> {
        fs::create_dir(folder).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=16k,mode=755", "tmpfs"])
            .arg(folder)
            .status();
        if !is_root() || !mounted.is_ok_and(|status| status.success()) {
            eprintln!("skipped: no disk may be mounted here");
            return None;
        }
        Some(FullDisk(folder.to_owned()))
    }

    fn fill(&self) {
        let filled = fs::write(self.0.join("filler"), [b'x'; 64 << 10]);
        assert_eq!(filled.unwrap_err().raw_os_error(), Some(28));
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_disk_that_is_full() {
    let port = free_port();
    let servers = format!("server {{ listen 127.0.0.1:{port}; root @/www; }}");
    let site = site("", &servers, "");
    let Some(disk) = FullDisk::mount(&site.folder.join("disk")) else {
        return;
    };
    let conf = site.folder.join("nginx.conf");
    let text = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, text.replace("/nginx.pid;", "/disk/nginx.pid;")).unwrap();
    put(&site.folder, Kind::Tidegate);
    let started = Command::new(site.folder.join("sbin/nginx"))
        .arg("-c")
        .arg(&conf)
        .args(["-e", "stderr"])
        .stderr(fs::File::create(site.folder.join("output")).unwrap())
        .status();
    assert!(started.unwrap().success());
    let pid_file = site.folder.join("disk/nginx.pid");
    wait_for("pid file", || pid_file.exists());
    let pid: u32 = fs::read_to_string(&pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    disk.fill();
    support::signal(pid, "USR2");
    site.wait_for_text("logs/error.log", "No space left on device");
    site.wait_for_text("logs/error.log", "exited with code 1");
    wait_for("pid file that is back", || {
        fs::read_to_string(&pid_file).is_ok_and(|text| text == format!("{pid}\n"))
    });
    let names = fs::read_dir(&disk.0).unwrap().count();
    assert_eq!(names, 2, "the filler and the pid file");
    small(port, "full");
    end(pid, "TERM");
    assert!(!pid_file.exists());
}

#[test]
fn a_process_table_that_is_full() {
    if !is_root() || Command::new("prlimit").arg("-V").output().is_err() {
        eprintln!("skipped: limits of processes are not set here");
        return;
    }
    // Of a user that has no other process: root has no such limit.
    const USER: &str = "54321";
    let port = free_port();
    let servers = format!("server {{ listen 127.0.0.1:{port}; root @/www; }}");
    let site = site("", &servers, "");
    let conf = site.folder.join("nginx.conf");
    let text = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, text.replace("user nobody nogroup;", "")).unwrap();
    let owned = Command::new("chown")
        .args(["-R", USER])
        .arg(&site.folder)
        .status();
    assert!(owned.unwrap().success());
    support::copy_program(
        env!("CARGO_BIN_EXE_tidegate"),
        site.folder.join("sbin/nginx"),
    );
    let all = EndOfAll(site.folder.clone());
    let as_user = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]);
        command
    };
    let started = as_user()
        .arg(site.folder.join("sbin/nginx"))
        .arg("-c")
        .arg(&conf)
        .args(["-e", "stderr"])
        .stderr(fs::File::create(site.folder.join("output")).unwrap())
        .status();
    let output = site.read("output");
    assert!(started.unwrap().success(), "{output}");
    let pid = crate::upgrade::place::started(&all);
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let before = limits
        .lines()
        .find_map(|line| {
            line.strip_prefix("Max processes")?
                .split_whitespace()
                .next()
        })
        .unwrap();
    // The soft one, as the user itself: root may not set limits of others everywhere.
    let limit = |processes: &str| {
        let arguments = ["--pid", &pid.to_string(), &format!("--nproc={processes}:")];
        let set = as_user().arg("prlimit").args(arguments).status();
        assert!(set.unwrap().success());
    };
    limit("1");
    support::signal(pid, "USR2");
    let failed = "failed (11: Resource temporarily unavailable)";
    site.wait_for_text("logs/error.log", failed);
    wait_for("pid file that is back", || {
        all.pid("nginx.pid") == Some(pid)
    });
    small(port, "full");
    limit(before);
    let newer = upgrade(&all, pid);
    end(pid, "QUIT");
    small(port, "followed");
    end(newer, "TERM");
}
