//! Signals and what they reach: USR1 and the logs of everything that still serves, `-s` and the process that it finds,
//! signals that come at the wrong moment, and flags that must leave no trace.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use support::PATIENCE;
use support::master::{Master, wait_for};
use support::port::free_port;

/// More than the kernel keeps for a client that does not read.
const LARGE: usize = 24 << 20;

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout == b"0\n")
}

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

/// A request whose answer is under way, and waits for its client.
struct Pending(TcpStream);

impl Pending {
    fn new(port: u16, name: &str) -> Pending {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET /large?{name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_exact(&mut [0; 1]).unwrap();
        Pending(stream)
    }

    /// Reads the rest of the answer.
    fn finish(mut self) {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        assert!(rest.len() > LARGE);
    }
}

/// A whole request.
fn small(port: u16, name: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET /small?{name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("small"), "{answer}");
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

/// Whether a process has a file open.
fn holds(pid: u32, is_it: impl Fn(&str) -> bool) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let links = entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    links.into_iter().any(|link| is_it(&link.to_string_lossy()))
}

/// Whether a process listens on this port.
fn listens(pid: u32, port: u16) -> bool {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let mut sockets = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, state) = (fields.get(1)?, fields.get(3)?);
        let is_it = address.ends_with(&format!(":{port:04X}")) && *state == "0A";
        is_it.then(|| format!("socket:[{}]", fields.get(9).unwrap()))
    });
    sockets.any(|socket| holds(pid, |path| path == socket))
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
    let copy = |to: &Path| assert!(fs::copy(env!("CARGO_BIN_EXE_tidegate"), to).is_ok());
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

/// The end of every process that is named in one of the pid files of a folder.
struct EndOfAll(PathBuf);

impl EndOfAll {
    fn pid(&self, name: &str) -> Option<u32> {
        fs::read_to_string(self.0.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    }
}

impl Drop for EndOfAll {
    fn drop(&mut self) {
        for name in ["nginx.pid", "nginx.pid.oldbin"] {
            if let Some(pid) = self.pid(name) {
                support::signal(pid, "TERM");
            }
        }
    }
}

fn comm(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

fn title(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes)
        .replace('\0', " ")
        .trim_end()
        .to_owned()
}

/// A folder with nginx as `sbin/nginx`, which is to run in the background by `nginx.conf`, beside
/// Tidegate as `tidegate`.
fn beside_nginx(port: u16) -> Option<Master> {
    if !Path::new("/usr/sbin/nginx").exists() {
        eprintln!("skipped: no nginx here");
        return None;
    }
    let master = Master::new();
    let folder = &master.folder;
    for name in ["www", "sbin"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    fs::write(folder.join("www/large"), vec![b'x'; LARGE]).unwrap();
    fs::write(folder.join("www/small"), "small").unwrap();
    for name in ["", "www"] {
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::copy("/usr/sbin/nginx", folder.join("sbin/nginx")).unwrap();
    let program = env!("CARGO_BIN_EXE_tidegate");
    std::os::unix::fs::symlink(program, folder.join("tidegate")).unwrap();
    let user = if is_root() {
        "user nobody nogroup;"
    } else {
        ""
    };
    let at = folder.display();
    let text = format!(
        "{user} pid {at}/nginx.pid; error_log {at}/logs/error.log notice; events {{}} \
         http {{ access_log off; client_body_temp_path {at}/a; proxy_temp_path {at}/b; \
         fastcgi_temp_path {at}/c; uwsgi_temp_path {at}/d; scgi_temp_path {at}/e; \
         server {{ listen 127.0.0.1:{port}; listen unix:{at}/socket; root {at}/www; }} }}"
    );
    fs::write(folder.join("nginx.conf"), text).unwrap();
    Some(master)
}

/// Starts a file of the folder in the background, and returns the number of its master.
fn start_in_background(all: &EndOfAll, program: &str) -> u32 {
    let folder = &all.0;
    let program = folder.join(program);
    let before = all.pid("nginx.pid");
    let status = Command::new(&program)
        .arg("-c")
        .arg(folder.join("nginx.conf"))
        .args(["-e", "stderr"])
        .stdin(Stdio::null())
        .stderr(fs::File::create(folder.join("output")).unwrap())
        .status();
    let output = fs::read_to_string(folder.join("output")).unwrap();
    assert!(status.unwrap().success(), "{}: {output}", program.display());
    wait_for("pid file", || {
        let pid = all.pid("nginx.pid");
        pid.is_some() && pid != before
    });
    all.pid("nginx.pid").unwrap()
}

/// Requests without a pause over TCP and a Unix socket, each on its own connection, until told to
/// end.
struct Requests {
    end: std::sync::Arc<std::sync::atomic::AtomicBool>,
    threads: Vec<std::thread::JoinHandle<Result<u32, String>>>,
}

impl Requests {
    fn begin(port: u16, socket: PathBuf) -> Requests {
        let end = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        type Ask = Box<dyn FnMut() -> std::io::Result<String> + Send>;
        const REQUEST: &[u8] = b"GET /small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        fn ask(mut stream: impl Read + Write) -> std::io::Result<String> {
            stream.write_all(REQUEST)?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        }
        let tcp: Ask = Box::new(move || ask(TcpStream::connect(("127.0.0.1", port))?));
        let unix: Ask = Box::new(move || ask(std::os::unix::net::UnixStream::connect(&socket)?));
        let threads = [tcp, unix].into_iter().map(|mut ask| {
            let end = std::sync::Arc::clone(&end);
            std::thread::spawn(move || {
                let mut count = 0;
                while !end.load(std::sync::atomic::Ordering::Relaxed) {
                    let answer = ask().map_err(|error| format!("request {count}: {error}"))?;
                    if !answer.ends_with("small") {
                        return Err(format!("request {count}: {answer:?}"));
                    }
                    count += 1;
                }
                Ok(count)
            })
        });
        let threads = threads.collect();
        Requests { end, threads }
    }

    fn finish(self) {
        self.end.store(true, std::sync::atomic::Ordering::Relaxed);
        for thread in self.threads {
            let count = thread.join().unwrap().unwrap();
            assert!(count > 0);
        }
    }
}

/// The commands of README.md that have Tidegate take nginx's place, and back, with the paths of a
/// folder.
fn switch_over(folder: &Path) -> [String; 2] {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let commands: Vec<&str> = readme
        .lines()
        .skip_while(|line| !line.starts_with("    cd /usr/sbin"))
        .take_while(|line| line.starts_with("    "))
        .collect();
    let back = readme
        .split('`')
        .find(|text| text.starts_with("cd /usr/sbin") && text.contains("mv nginx-before nginx"));
    let mut there = commands.join("\n");
    let mut back = [&[back.unwrap()], &commands[1..]].concat().join("\n");
    for text in [&mut there, &mut back] {
        let at = folder.display().to_string();
        *text = text.replace("/usr/sbin", &format!("{at}/sbin"));
        *text = text.replace("/run/", &format!("{at}/"));
    }
    [there, back]
}

fn shell(folder: &Path, commands: &str) {
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("timeout")
        .args(["60", "sh", "-e", "-c", commands])
        .env("PATH", format!("{}:{path}", folder.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{commands}: {output:?}");
}

/// The commands of README.md while a download is under way and others ask: none is refused or cut
/// off, on the way there and on the way back.
#[test]
fn the_way_from_nginx_and_back_loses_no_request() {
    let port = free_port();
    let Some(site) = beside_nginx(port) else {
        return;
    };
    let all = EndOfAll(site.folder.clone());
    let [there, back] = switch_over(&site.folder);
    let theirs = start_in_background(&all, "sbin/nginx");
    let requests = Requests::begin(port, site.folder.join("socket"));
    let download = Pending::new(port, "of-nginx");

    shell(&site.folder, &there);
    let ours = all.pid("nginx.pid").unwrap();
    assert_ne!(ours, theirs);
    assert_eq!(comm(theirs), "nginx", "nginx has a request left");
    let server = fs::read_link(format!("/proc/{ours}/exe")).unwrap();
    assert!(server.ends_with("tidegate"), "{server:?}");

    // What a system has for nginx reaches Tidegate's processes.
    let program = site.folder.join("sbin/nginx");
    let of_master = format!(
        "nginx: master process {} -c {}/nginx.conf -e stderr",
        program.display(),
        site.folder.display()
    );
    wait_for("worker process", || {
        let workers = support::children(ours);
        let is_it = |pid: &u32| comm(*pid) == "nginx" && title(*pid) == "nginx: worker process";
        !workers.is_empty() && workers.iter().all(is_it)
    });
    assert_eq!((comm(ours), title(ours)), ("nginx".to_owned(), of_master));
    let pids = Command::new("pidof").arg("nginx").output().unwrap();
    let pids = String::from_utf8(pids.stdout).unwrap();
    let worker = support::children(ours)[0];
    for pid in [ours, worker] {
        assert!(
            pids.split_whitespace().any(|one| one == pid.to_string()),
            "{pid}: {pids}"
        );
    }
    let log = site.folder.join("logs/error.log");
    fs::rename(&log, site.folder.join("logs/rotated")).unwrap();
    for signal in ["USR1", "HUP"] {
        let status = Command::new("start-stop-daemon")
            .args([
                "--stop",
                "--signal",
                signal,
                "--quiet",
                "--name",
                "nginx",
                "--pidfile",
            ])
            .arg(site.folder.join("nginx.pid"))
            .status();
        assert!(status.unwrap().success(), "{signal}");
    }
    wait_for("log that was opened again", || log.exists());
    let signalled = Command::new(&program)
        .arg("-c")
        .arg(site.folder.join("nginx.conf"))
        .args(["-e", "stderr", "-s", "reload"])
        .output()
        .unwrap();
    assert!(signalled.status.success(), "{signalled:?}");

    download.finish();
    wait_for("end of nginx", || {
        !Path::new(&format!("/proc/{theirs}")).exists()
    });
    assert_eq!(all.pid("nginx.pid"), Some(ours));
    let download = Pending::new(port, "of-ours");
    shell(&site.folder, &back);
    let last = all.pid("nginx.pid").unwrap();
    assert_eq!(
        fs::read_link(format!("/proc/{last}/exe")).unwrap(),
        site.folder.join("sbin/nginx")
    );
    download.finish();
    wait_for("end of Tidegate", || {
        !Path::new(&format!("/proc/{ours}")).exists()
    });
    requests.finish();
    assert_eq!(all.pid("nginx.pid"), Some(last));
    assert!(!site.folder.join("nginx.pid.oldbin").exists());
    let log = site.read("logs/error.log") + &site.read("logs/rotated");
    for level in ["[emerg]", "[alert]", "[crit]", "[error]"] {
        assert!(!log.contains(level), "{log}");
    }
}

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

/// A server that has closed its listeners for a last download does not stop a start, and takes no
/// pid file along.
#[test]
fn a_start_beside_a_draining_server_takes_its_place() {
    let port = free_port();
    let Some(site) = beside_nginx(port) else {
        return;
    };
    let all = EndOfAll(site.folder.clone());
    let mut before = start_in_background(&all, "sbin/nginx");
    for _ in ["behind nginx", "behind Tidegate"] {
        let download = Pending::new(port, "last");
        support::signal(before, "QUIT");
        wait_for("end of the listener", || {
            TcpStream::connect(("127.0.0.1", port)).is_err() && !site.folder.join("socket").exists()
        });
        wait_for("master without a listener", || !listens(before, port));
        let next = start_in_background(&all, "tidegate");
        small(port, "of-the-next");
        download.finish();
        wait_for("end of the one before", || {
            !Path::new(&format!("/proc/{before}")).exists()
        });
        wait_for("pid file", || all.pid("nginx.pid") == Some(next));
        // A second one is refused as ever.
        let refused = Command::new(site.folder.join("tidegate"))
            .arg("-c")
            .arg(site.folder.join("nginx.conf"))
            .args(["-e", "stderr"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1));
        assert!(said.contains("(tidegate), which is running"), "{said}");
        before = next;
    }
}
