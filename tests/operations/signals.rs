//! Signals and what they reach: USR1 and the logs of everything that still serves, `-s` and the
//! process that it finds, signals that come at the wrong moment, and flags that must leave no
//! trace.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use support::master::{Master, wait_for};
use support::port::free_port;
use support::site::{LARGE, Pending, holds, is_root, listens, small};

/// A server whose only file is large; `log` is its access log.
fn site(port: u16, main: &str, log: &str) -> String {
    let user = if is_root() {
        "user nobody nogroup;"
    } else {
        ""
    };
    format!(
        "{user} {main}
         events {{ }}
         http {{ access_log @/logs/{log}; server {{ listen 127.0.0.1:{port}; root @/www; }} }}"
    )
}

fn master(port: u16, main: &str, log: &str) -> Master {
    let mut master = Master::new();
    fs::create_dir(master.folder.join("www")).unwrap();
    fs::write(master.folder.join("www/large"), vec![b'x'; LARGE]).unwrap();
    fs::write(master.folder.join("www/small"), "small").unwrap();
    let world = fs::Permissions::from_mode(0o755);
    for folder in ["", "www"] {
        fs::set_permissions(master.folder.join(folder), world.clone()).unwrap();
    }
    master.configure(&site(port, main, log));
    master.start();
    wait_for("listener", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    master
}

/// Moves logs away, as a script for rotation does before it sends USR1.
fn rotate(master: &Master, names: &[&str]) {
    for name in names {
        let path = master.folder.join("logs").join(name);
        fs::rename(&path, path.with_extension("old")).unwrap();
    }
}

/// Sends USR1 and waits until new files are there.
fn reopen(master: &Master, names: &[&str]) {
    rotate(master, names);
    master.signal("USR1");
    wait_for("log that was opened again", || {
        let exists = |name: &&str| master.folder.join("logs").join(name).exists();
        names.iter().all(exists)
    });
}

/// Waits until no process of the server holds a file that was moved away.
fn wait_until_let_go(master: &Master) {
    wait_for("process that lets the old logs go", || {
        let mut pids = master.workers();
        pids.push(master.pid());
        pids.iter()
            .all(|pid| !holds(*pid, |path| path.ends_with(".old")))
    });
}

#[test]
fn usr1_reaches_draining_generations_and_old_processes() {
    let port = free_port();
    let mut master = master(port, "", "zero.log");
    // Until an old process has heard that it ends, it accepts as well.
    let listening = |master: &Master| {
        let workers = master.workers().into_iter();
        workers.filter(|pid| listens(*pid, port)).count()
    };
    let zeroth = Pending::new(port, "zeroth");
    // It leaves by a signal of its own: what takes its place serves by the same configuration.
    support::signal(master.workers()[0], "QUIT");
    wait_for("another process", || master.workers().len() == 2);
    master.configure(&site(port, "", "one.log"));
    assert_eq!(master.run(&["-s", "reload"]), (Some(0), String::new()));
    wait_for("first process that listens no more", || {
        listening(&master) == 1
    });
    let first = Pending::new(port, "first");
    master.configure(&site(port, "", "two.log"));
    assert_eq!(master.run(&["-s", "reload"]), (Some(0), String::new()));
    let second = Pending::new(port, "second");
    // What the process is given at its start asks for another process.
    master.configure(&site(port, "env NEW=1;", "three.log"));
    assert_eq!(master.run(&["-s", "reload"]), (Some(0), String::new()));
    assert_eq!(master.workers().len(), 3);
    wait_for("old process that listens no more", || {
        listening(&master) == 1
    });
    let third = Pending::new(port, "third");

    let logs = ["zero.log", "one.log", "two.log", "three.log", "error.log"];
    reopen(&master, &logs);
    wait_until_let_go(&master);
    for (request, name, log) in [
        (zeroth, "zeroth", "zero"),
        (first, "first", "one"),
        (second, "second", "two"),
        (third, "third", "three"),
    ] {
        request.finish();
        master.wait_for_text(&format!("logs/{log}.log"), &format!("GET /large?{name} "));
        assert_eq!(master.read(&format!("logs/{log}.old")), "");
    }
    if is_root() {
        let owner = |name: &str| fs::metadata(master.folder.join("logs").join(name)).unwrap();
        let nobody = Command::new("id").args(["-u", "nobody"]).output().unwrap();
        let nobody = String::from_utf8_lossy(&nobody.stdout).trim().to_owned();
        for name in logs {
            assert_eq!(owner(name).uid().to_string(), nobody, "{name}");
        }
        assert_eq!(owner("three.old").uid(), 0);
    }
    // What is over is forgotten: its log does not come again.
    wait_for("end of the old processes", || master.workers().len() == 1);
    rotate(&master, &["zero.log", "one.log"]);
    reopen(&master, &["three.log"]);
    wait_until_let_go(&master);
    small(port, "later");
    master.wait_for_text("logs/three.log", "GET /small?later ");
    for name in ["zero.log", "one.log"] {
        assert!(!master.folder.join("logs").join(name).exists());
    }
    master.signal("TERM");
    assert!(master.wait().success());
}

#[test]
fn the_file_of_e_is_let_go_when_the_configuration_has_its_own() {
    let master = master(free_port(), "", "access.log");
    let mut pids = master.workers();
    pids.push(master.pid());
    for pid in pids {
        assert!(!holds(pid, |path| path.ends_with("start.log")), "{pid}");
    }
}

#[test]
fn quit_then_usr1() {
    let port = free_port();
    let mut master = master(port, "", "access.log");
    let request = Pending::new(port, "last");
    master.signal("QUIT");
    wait_for("closed listener", || {
        TcpStream::connect(("127.0.0.1", port)).is_err()
    });
    reopen(&master, &["access.log", "error.log"]);
    wait_until_let_go(&master);
    request.finish();
    assert!(master.wait().success());
    assert!(master.read("logs/access.log").contains("GET /large?last "));
    assert_eq!(master.read("logs/access.old"), "");
}

#[test]
fn usr1_to_a_worker_opens_the_logs_again() {
    let port = free_port();
    let master = master(port, "", "access.log");
    rotate(&master, &["access.log"]);
    support::signal(master.workers()[0], "USR1");
    wait_until_let_go(&master);
    small(port, "new");
    master.wait_for_text("logs/access.log", "GET /small?new ");
}

#[test]
fn signals_at_the_wrong_moment() {
    let port = free_port();
    let mut master = master(port, "", "access.log");
    // All at once, again and again, while reloads start new processes.
    for round in 0..5 {
        master.configure(&site(port, &format!("env ROUND={round};"), "access.log"));
        rotate(&master, &["access.log"]);
        for signal in ["HUP", "USR1", "HUP", "USR1", "HUP"] {
            master.signal(signal);
        }
        small(port, &format!("during{round}"));
        // The answer to this reload comes after all of them.
        assert_eq!(master.run(&["-s", "reload"]), (Some(0), String::new()));
        wait_until_let_go(&master);
        wait_for("old processes' end", || master.workers().len() == 1);
        let name = format!("after{round}");
        small(port, &name);
        master.wait_for_text("logs/access.log", &format!("GET /small?{name} "));
        fs::remove_file(master.folder.join("logs/access.old")).unwrap();
    }
    // Before a new worker is ready.
    let workers = master.workers();
    support::signal(workers[0], "KILL");
    for signal in ["HUP", "USR1"] {
        master.signal(signal);
    }
    assert_eq!(master.run(&["-s", "reload"]), (Some(0), String::new()));
    small(port, "again");
    for signal in ["HUP", "QUIT", "USR1", "HUP"] {
        master.signal(signal);
    }
    assert!(master.wait().success());
    let log = master.read("logs/error.log");
    let errors: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("[emerg]"))
        .collect();
    assert!(
        errors.iter().all(|line| line.contains("about to end")),
        "{log}"
    );
}

#[test]
fn a_signal_goes_to_a_tidegate_that_serves_and_to_nothing_else() {
    let port = free_port();
    let mut master = master(port, "", "access.log");
    let pid_file = master.folder.join("logs/nginx.pid");
    let of_master = fs::read(&pid_file).unwrap();
    let refused = |name: &str, pid: u32, expected: &str| {
        fs::write(&pid_file, format!("{pid}\n")).unwrap();
        for signal in ["stop", "quit", "reopen", "reload"] {
            let (code, printed) = master.run(&["-s", signal]);
            let path = pid_file.display();
            let line = format!(
                "tidegate: [error] process {pid}, which \"{path}\" names, {expected}: not signalled\n"
            );
            assert_eq!((code, printed), (Some(1), line), "{name}: {signal}");
        }
    };
    let mut sleep = Command::new("sleep").arg("600").spawn().unwrap();
    wait_for("sleep", || {
        fs::read_to_string(format!("/proc/{}/comm", sleep.id())).unwrap() == "sleep\n"
    });
    refused(
        "another program",
        sleep.id(),
        "is \"sleep\" and not Tidegate",
    );
    assert!(sleep.try_wait().unwrap().is_none());
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    let worker = master.workers()[0];
    let expected = format!(
        "is a worker process of Tidegate, whose master is {}",
        master.pid()
    );
    refused("a worker", worker, &expected);
    // Another command of this program, which the signal would end.
    let mut bench = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args([
            "bench",
            "-d",
            "600",
            &format!("http://127.0.0.1:{port}/small"),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let line = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    wait_for("bench", || {
        line(bench.id()).windows(5).any(|part| part == b"bench")
    });
    fs::write(&pid_file, format!("{}\n", bench.id())).unwrap();
    let (code, printed) = master.run(&["-s", "stop"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(
        printed.contains("bench") && printed.ends_with(", which is not a server: not signalled\n"),
        "{printed}"
    );
    assert!(bench.try_wait().unwrap().is_none());
    bench.kill().unwrap();
    bench.wait().unwrap();

    // nginx's own errors.
    fs::write(&pid_file, format!("{}\n", bench.id())).unwrap();
    let expected = format!(
        "tidegate: [alert] kill({}, 15) failed (3: No such process)\n  hint: the server that wrote \"{}\" \
         has ended; without -s it is started\n",
        bench.id(),
        pid_file.display()
    );
    assert_eq!(master.run(&["-s", "stop"]), (Some(1), expected));
    for (text, shown) in [
        ("", ""),
        ("garbage\n", "garbage"),
        ("-1\n", "-1"),
        ("0\n", "0"),
    ] {
        fs::write(&pid_file, text).unwrap();
        let path = pid_file.display();
        let expected = format!("tidegate: [error] invalid PID number \"{shown}\" in \"{path}\"\n");
        assert_eq!(master.run(&["-s", "stop"]), (Some(1), expected), "{text:?}");
    }
    fs::write(&pid_file, of_master).unwrap();
    assert!(master.ended().is_none());
    assert_eq!(master.run(&["-s", "stop"]), (Some(0), String::new()));
    assert!(master.wait().success());
}

#[test]
fn a_running_nginx_is_not_stopped() {
    let nginx = Path::new("/usr/sbin/nginx");
    if !nginx.exists() {
        eprintln!("skipped: no nginx here");
        return;
    }
    let port = free_port();
    let mut theirs = Master::new();
    theirs.use_program(nginx.to_owned());
    theirs.configure(&format!(
        "events {{}} http {{ access_log off; client_body_temp_path @/a; proxy_temp_path @/b; \
         fastcgi_temp_path @/c; uwsgi_temp_path @/d; scgi_temp_path @/e; \
         server {{ listen 127.0.0.1:{port}; }} }}"
    ));
    theirs.start();
    let pid = theirs.pid();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command
            .arg("-p")
            .arg(&theirs.folder)
            .args(["-c", "ours.conf", "-e", "stderr"]);
        let output = command.args(arguments).output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let conf = format!(
        "daemon off; pid logs/nginx.pid; error_log stderr; events {{}} \
         http {{ access_log off; server {{ listen 127.0.0.1:{}; }} }}",
        free_port()
    );
    fs::write(theirs.folder.join("ours.conf"), conf).unwrap();
    for signal in ["stop", "quit", "reload", "reopen"] {
        let (code, printed) = run(&["-s", signal]);
        assert_eq!(code, Some(1));
        assert!(
            printed.contains("is \"nginx\" and not Tidegate: not signalled"),
            "{printed}"
        );
    }
    // Nor does a start take its pid file away.
    let (code, printed) = run(&[]);
    assert_eq!(code, Some(1));
    assert!(
        printed.contains(&format!("names process {pid} (nginx), which is running")),
        "{printed}"
    );
    assert!(theirs.ended().is_none());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    theirs.signal("TERM");
    assert!(theirs.wait().success());
}

/// Under another name, and with another version in the place of the file that runs.
#[test]
fn a_master_is_known_after_its_file_was_replaced() {
    let port = free_port();
    let mut master = Master::new();
    let program = master.folder.join("nginx");
    let copy = |to: &Path| support::copy_program(env!("CARGO_BIN_EXE_tidegate"), to);
    copy(&program);
    master.use_program(program.clone());
    master.configure(&site(port, "", "access.log"));
    master.start();
    let new = master.folder.join("new");
    copy(&new);
    fs::rename(&new, &program).unwrap();
    let link = fs::read_link(format!("/proc/{}/exe", master.pid())).unwrap();
    assert!(
        link.to_string_lossy().ends_with("/nginx (deleted)"),
        "{link:?}"
    );
    assert_eq!(master.run(&["-s", "reload"]), (Some(0), String::new()));
    let symlink = master.folder.join("link");
    std::os::unix::fs::symlink(&program, &symlink).unwrap();
    master.use_program(symlink);
    assert_eq!(master.run(&["-s", "reopen"]), (Some(0), String::new()));
    if is_root() && Command::new("setpriv").arg("--version").output().is_ok() {
        let world = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&master.folder, world).unwrap();
        master.wrap(&[
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
        ]);
        let (code, printed) = master.run(&["-s", "stop"]);
        let expected = format!(
            "kill({}, 15) failed (1: Operation not permitted)",
            master.pid()
        );
        assert_eq!(code, Some(1), "{printed}");
        assert!(printed.contains(&expected), "{printed}");
        master.wrap(&[]);
    }
    assert!(master.ended().is_none());
    assert_eq!(master.run(&["-s", "quit"]), (Some(0), String::new()));
    assert!(master.wait().success());
}

/// Every file below a folder with when it was changed and how long it is.
fn files(folder: &Path) -> BTreeMap<PathBuf, (SystemTime, u64)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let found = fs::symlink_metadata(entry.path()).unwrap();
        all.insert(entry.path(), (found.modified().unwrap(), found.len()));
        if found.is_dir() {
            all.append(&mut files(&entry.path()));
        }
    }
    all
}

#[test]
fn flags_that_only_look_leave_no_trace() {
    let master = Master::new();
    let port = free_port();
    fs::write(master.folder.join("logs/kept.log"), "kept").unwrap();
    let body = format!(
        "events {{}}
         http {{
             access_log @/logs/access.log;
             access_log @/logs/kept.log;
             client_body_temp_path @/body;
             server {{
                 listen 127.0.0.1:{port};
                 listen unix:@/socket;
                 error_log @/logs/server.log;
                 location / {{ root @; }}
             }}
         }}"
    );
    master.configure(&body);
    let before = files(&master.folder);
    let conf = master.folder.join("nginx.conf").display().to_string();
    let url = format!("http://127.0.0.1:{port}/");
    let commands: [&[&str]; 3] = [&["-t"], &["-T"], &["-tq"]];
    for arguments in commands {
        let (code, printed) = master.run(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {printed}");
        assert_eq!(files(&master.folder), before, "{arguments:?}");
    }
    let others: [&[&str]; 2] = [&["explain", "-c", &conf, &url], &["docs", "error_log"]];
    for arguments in others {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        assert_eq!(files(&master.folder), before, "{arguments:?}");
    }
    // What is wrong is found all the same, in nginx's words.
    for (line, expected) in [
        (
            "pid @/none/pid;",
            "open() \"@/none/pid\" failed (2: No such file or directory)",
        ),
        (
            "error_log @/none/log;",
            "open() \"@/none/log\" failed (2: No such file or directory)",
        ),
        (
            "error_log @/logs;",
            "open() \"@/logs\" failed (21: Is a directory)",
        ),
        (
            "error_log @/logs/kept.log/x;",
            "open() \"@/logs/kept.log/x\" failed (20: Not a directory)",
        ),
    ] {
        let text = master.read("nginx.conf");
        let folder = master.folder.display().to_string();
        let (line, expected) = (line.replace('@', &folder), expected.replace('@', &folder));
        let name = line.split(' ').next().unwrap();
        let others: Vec<&str> = text.lines().filter(|one| !one.starts_with(name)).collect();
        fs::write(
            master.folder.join("other.conf"),
            format!("{line}\n{}", others.join("\n")),
        )
        .unwrap();
        let before = files(&master.folder);
        let (code, printed) = master.run(&["-t", "-c", "other.conf"]);
        assert_eq!(code, Some(1), "{line}: {printed}");
        assert!(
            printed.contains(&format!("[emerg] {expected}\n")),
            "{line}: {printed}"
        );
        assert_eq!(files(&master.folder), before, "{line}");
    }
    for (from, to, expected) in [
        (
            // Its only server writes another.
            "client_body_temp_path",
            "error_log @/none/http.log; client_body_temp_path",
            "open() \"@/none/http.log\" failed (2: No such file or directory)",
        ),
        (
            "body;",
            "none/body;",
            "mkdir() \"@/none/body\" failed (2: No such file or directory)",
        ),
        (
            "socket;",
            "none/socket;",
            "bind() to unix:@/none/socket failed (2: No such file or directory)",
        ),
    ] {
        master.configure(&body.replace(from, to));
        let (code, printed) = master.run(&["-t"]);
        let expected = expected.replace('@', &master.folder.display().to_string());
        assert_eq!(code, Some(1), "{printed}");
        assert!(
            printed.contains(&format!("[emerg] {expected}\n")),
            "{printed}"
        );
    }
}

/// A test of the configuration must not take part in what the running server does.
#[test]
fn a_test_takes_no_connection_from_the_server_that_runs() {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("skipped: no strace here");
        return;
    }
    let port = free_port();
    let mut master = Master::new();
    fs::create_dir(master.folder.join("www")).unwrap();
    fs::write(master.folder.join("www/small"), "small").unwrap();
    let world = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&master.folder, world).unwrap();
    master.configure(&format!(
        "worker_processes 2; events {{}} http {{ access_log off; \
         server {{ listen 127.0.0.1:{port} reuseport; root @/www; }} }}"
    ));
    master.start();
    wait_for("listener", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let trace = master.folder.join("trace");
    let words = ["strace", "-f", "-e", "trace=listen", "-o"];
    let words: Vec<&str> = words.into_iter().chain(trace.to_str()).collect();
    master.wrap(&words);
    assert_eq!(master.run(&["-t"]).0, Some(0));
    let calls = fs::read_to_string(&trace).unwrap();
    assert!(!calls.contains("listen("), "{calls}");
    assert!(calls.contains("exited with 0"), "{calls}");
}
