//! How a pool is found, started, kept and ended.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::master::wait_for;

use super::site::{
    NOBODY, OtherPool, Running, Site, alone, as_nobody, command_line, failure, is_alive, leftovers,
    php_fpm, undisturbed, value, wait_for_socket,
};

#[test]
fn a_pool_of_its_own_ends_with_the_server() {
    let _quiet = undisturbed();
    for signal in ["INT", "TERM", "QUIT", "KILL"] {
        for is_root in [true, false] {
            let site = Site::new();
            let mut running = if is_root {
                site.serve(&["--php"])
            } else {
                site.serve_as_nobody(&["--php"])
            };
            let whose = if is_root { " as user nobody" } else { "" };
            let note = format!("PHP is run by a pool of its own, /usr/sbin/php-fpm8.2{whose}.\n");
            let note = note.replace(
                "/usr/sbin/php-fpm8.2",
                fs::canonicalize(php_fpm()).unwrap().to_str().unwrap(),
            );
            assert!(running.printed.contains(&note), "{}", running.printed);
            let (code, body) = running.get("/");
            assert_eq!(code, 200);
            assert_eq!(value(&body, "user"), NOBODY.0.to_string());
            let php = running.php();
            assert!(!php.children.is_empty());
            let folders = running.folders();
            assert_eq!(folders.len(), 1);
            let mode = fs::metadata(&folders[0]).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, if is_root { 0o711 } else { 0o700 });
            let mode = fs::metadata(folders[0].join("php.sock"))
                .unwrap()
                .permissions()
                .mode()
                & 0o7777;
            assert_eq!(mode, 0o600);
            let code = running.end(signal);
            if signal == "KILL" {
                php.wait_for_end();
                let begin = Instant::now();
                while !leftovers(running.child.id()).is_empty() {
                    assert!(
                        begin.elapsed() < Duration::from_secs(10),
                        "{:?}",
                        running.folders()
                    );
                    std::thread::sleep(Duration::from_millis(10));
                }
            } else {
                assert_eq!(code, Some(0), "{signal}");
                assert!(php.have_ended(), "{signal}");
                assert_eq!(running.folders(), Vec::<PathBuf>::new(), "{signal}");
            }
        }
    }
}

/// PHP has the environment of the user who runs it, but not that of root.
#[test]
fn the_environment_is_the_users_own() {
    let _quiet = undisturbed();
    let site = Site::new();
    for (is_root, expected) in [(true, "(none)"), (false, "mine")] {
        let mut command = site.command(&["--php", "--listen", "127.0.0.1:0", "--password", "ann"]);
        command
            .env("PROBE", "mine")
            .env("TIDEGATE_PASSWORD", "secret");
        if !is_root {
            as_nobody(&mut command);
        }
        let running = Running::start(command);
        let (_, body) = running.ask("GET", "/", "Authorization: Basic YW5uOnNlY3JldA==\r\n", b"");
        let body = String::from_utf8(body).unwrap();
        assert_eq!(value(&body, "probe"), expected);
        assert_eq!(value(&body, "secret"), "(none)");
    }
}

#[test]
fn root_runs_php_as_root_only_where_that_is_said() {
    let _quiet = undisturbed();
    let site = Site::new();
    let running = site.serve(&["--php", "--user", "root"]);
    assert!(
        running
            .printed
            .contains(" as root, who may do everything.\n"),
        "{}",
        running.printed
    );
    assert_eq!(value(&running.get("/").1, "user"), "0");
}

#[test]
fn a_php_fpm_that_dies_is_started_again() {
    let _quiet = undisturbed();
    let site = Site::new();
    let copy = site.program("php-fpm-x", &format!("exec {} \"$@\"", php_fpm().display()));
    let running = site.serve(&[&format!("--php={}", copy.display())]);
    assert_eq!(running.get("/").0, 200);
    let php = running.php();
    support::signal(php.master, "KILL");
    running.wait_for_line("tidegate: php-fpm was ended by signal 9; it is started again\n");
    // Its children would serve on, each with what it has in memory.
    wait_for("the end of its children", || {
        !php.children.iter().any(|pid| is_alive(*pid))
    });
    wait_for("the next php-fpm", || running.get("/").0 == 200);

    // While there is none, the answer is 502.
    fs::rename(&copy, site.beside("away")).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    support::signal(running.php().master, "TERM");
    running.wait_for_line("php-fpm ended with code 0; it is started again");
    running.wait_for_line("php-fpm: it cannot be executed (2: No such file or directory); the next attempt is in 100 ms");
    assert_eq!(running.get("/").0, 502);
    running.wait_for_line("while connecting to upstream");
    fs::rename(site.beside("away"), &copy).unwrap();
    wait_for("php-fpm again", || running.get("/").0 == 200);

    // A worker of it that dies costs its own answer alone.
    site.write("die.php", "<?php posix_kill(posix_getpid(), 9);");
    assert_eq!(running.get("/die.php").0, 502);
    assert_eq!(running.get("/").0, 200);

    // With its keeper php-fpm goes, too.
    let php = running.php();
    support::signal(php.keeper, "KILL");
    php.wait_for_end();
    assert_eq!(running.get("/").0, 502);
}

#[test]
fn two_servers_have_two_pools() {
    let _quiet = undisturbed();
    let (one, other) = (Site::new(), Site::empty());
    other.write("index.php", "<?php echo 'other';");
    let first = one.serve(&["--php"]);
    let second = other.serve_as_nobody(&["--php"]);
    let third = one.serve(&["--php"]);
    assert_eq!(second.get("/"), (200, "other".to_owned()));
    drop(first);
    assert_eq!(second.get("/"), (200, "other".to_owned()));
    drop(second);
    assert_eq!(third.get("/").0, 200);
}

#[test]
fn a_php_fpm_that_does_not_start_is_told() {
    let _quiet = undisturbed();
    let site = Site::new();
    let broken = site.program("broken", "echo some words >&2; exit 7");
    let port = support::port::free_port().to_string();
    let mut command = site.command(&["--listen", &port, &format!("--php={}", broken.display())]);
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let broken = broken.display();
    assert_eq!(
        failure(child.wait_with_output().unwrap()),
        format!("some words\ntidegate: {broken}: it ended with code 7 before it answered\n")
    );
    assert_eq!(leftovers(pid), Vec::<PathBuf>::new());

    // A start that fails behind it takes the pool along: the port has been taken meanwhile.
    let slow = site.program(
        "slow",
        &format!("sleep 1; exec {} \"$@\"", php_fpm().display()),
    );
    let mut command = site.command(&["--listen", &port, &format!("--php={}", slow.display())]);
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let listener = loop {
        // It has bound the port for a moment, to see whether that is free.
        if !support::children(pid).is_empty() {
            break std::net::TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
        }
    };
    let said = failure(child.wait_with_output().unwrap());
    drop(listener);
    assert!(said.contains("Address already in use"), "{said}");
    assert_eq!(leftovers(pid), Vec::<PathBuf>::new());
    assert_eq!(processes(&format!("tidegate-serve-{pid}-")), [0; 0]);
}

/// One that never answers is given up, and a signal meanwhile leaves nothing.
#[test]
fn a_php_fpm_that_never_answers_is_given_up() {
    let _quiet = undisturbed();
    let site = Site::new();
    let mute = site.program(
        "mute",
        "sleep 1000 & trap '' TERM; while :; do sleep 1; done",
    );
    for signal in [None, Some("INT"), Some("TERM"), Some("QUIT"), Some("KILL")] {
        let mut command = site.command(&[
            &format!("--php={}", mute.display()),
            "--listen",
            "127.0.0.1:0",
        ]);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let mark = format!("tidegate-serve-{pid}-");
        // The server, its keeper and the program: all that has the folder among its arguments.
        wait_for("the program", || processes(&mark).len() >= 2);
        match signal {
            None => {
                let said = failure(child.wait_with_output().unwrap());
                let mute = mute.display();
                assert_eq!(
                    said,
                    format!("tidegate: {mute}: it does not answer within 10 s\n")
                );
            }
            Some(signal) => {
                support::signal(pid, signal);
                assert!(!child.wait().unwrap().success());
            }
        }
        wait_for("the end of all", || {
            processes(&mark).is_empty() && leftovers(pid).is_empty()
        });
    }
}

/// Those among whose arguments this stands.
fn processes(mark: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| command_line(*pid).contains(mark))
        .collect()
}

#[test]
fn a_php_fpm_that_can_be_named_is_used() {
    let site = Site::new();
    let (socket, port) = (site.beside("fpm.sock"), support::port::free_port());
    let path = socket.to_str().unwrap();
    let _other = OtherPool::start(
        &site,
        "unix.conf",
        &format!("listen = {path}\nlisten.mode = 0666"),
    );
    let _third = OtherPool::start(&site, "tcp.conf", &format!("listen = 127.0.0.1:{port}"));
    wait_for_socket(&socket);
    wait_for("a port", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    for address in [format!("unix:{path}"), format!("127.0.0.1:{port}")] {
        let running = site.serve_as_nobody(&[&format!("--php={address}")]);
        assert!(
            running
                .printed
                .starts_with(&format!("PHP is run by php-fpm at {address}.\n")),
            "{}",
            running.printed
        );
        assert_eq!(value(&running.get("/").1, "probe"), "other");
        assert!(
            support::children(running.child.id()).len() == 1,
            "the worker and nothing else"
        );
    }
    // A path alone may be a socket, too, and a configuration can name it.
    let mut command = site.command(&[&format!("--php={path}"), "--print-configuration"]);
    let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(
        printed.contains(&format!("server \"unix:{path}\";")),
        "{printed}"
    );

    // A folder that it does not see.
    let closed = Site::new();
    closed.close();
    let running = closed.serve(&["--user", "root", &format!("--php=127.0.0.1:{port}")]);
    let warning = format!("Warning: php-fpm at 127.0.0.1:{port} does not find ");
    assert!(running.printed.starts_with(&warning), "{}", running.printed);
    assert_eq!(running.get("/").0, 404);
    drop(running);

    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).unwrap();
    let named = format!("--php=unix:{path}");
    let text =
        |why: &str| format!("tidegate: {named}: no php-fpm can be used at unix:{path}: {why}\n");
    chown(&socket, "root");
    assert_eq!(
        site.refused(&[&named]),
        text("user nobody may not connect to it")
    );
    let mut command = site.command(&[&named]);
    as_nobody(&mut command);
    assert_eq!(
        failure(command.output().unwrap()),
        text("connect() failed (13: Permission denied)")
    );
    drop(_other);
    let _ = fs::remove_file(&socket);
    assert_eq!(
        site.refused(&[&named]),
        text("connect() failed (2: No such file or directory)")
    );
    // One that takes connections and says nothing.
    let listener = UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(
        site.refused(&[&named]),
        text("it does not answer within 2 s")
    );
    drop(listener);
    assert_eq!(
        site.refused(&[&named]),
        text("connect() failed (111: Connection refused)")
    );
    let said = site.refused(&["--php=nonsense"]);
    assert!(said.starts_with("tidegate: --php=nonsense: "), "{said}");
}

fn chown(path: &Path, user: &str) {
    assert!(
        Command::new("chown")
            .arg(user)
            .arg(path)
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn a_php_fpm_that_runs_is_found_and_one_that_is_not_ours_passed_by() {
    let _alone = alone();
    let site = Site::new();
    fs::create_dir_all("/run/php").unwrap();
    let socket = Path::new("/run/php/php99.9-fpm.sock");
    let _removed = Removed(socket);
    let _ = fs::remove_file(socket);
    let path = socket.display();
    let other = OtherPool::start(
        &site,
        "usual.conf",
        &format!("listen = {path}\nlisten.mode = 0666"),
    );
    wait_for_socket(socket);
    for is_root in [true, false] {
        let running = if is_root {
            site.serve(&["--php"])
        } else {
            site.serve_as_nobody(&["--php"])
        };
        assert!(
            running
                .printed
                .contains(&format!("PHP is run by php-fpm at unix:{path}.\n")),
            "{}",
            running.printed
        );
        assert_eq!(value(&running.get("/").1, "probe"), "other");
    }
    // It is not ours: both users get a pool of their own.
    chown(socket, "root");
    fs::set_permissions(socket, fs::Permissions::from_mode(0o660)).unwrap();
    for (is_root, why) in [
        (true, "user nobody may not connect to it"),
        (false, "connect() failed (13: Permission denied)"),
    ] {
        let running = if is_root {
            site.serve(&["--php"])
        } else {
            site.serve_as_nobody(&["--php"])
        };
        assert!(
            running
                .printed
                .contains(&format!("unix:{path} is not used: {why}.\n")),
            "{}",
            running.printed
        );
        assert!(
            running
                .printed
                .contains("PHP is run by a pool of its own, "),
            "{}",
            running.printed
        );
        assert_eq!(value(&running.get("/").1, "probe"), "(none)");
    }
    // One that may not enter the folder is of no use.
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).unwrap();
    let closed = Site::new();
    closed.close();
    let running = closed.serve(&["--php", "--user", "root"]);
    let note = format!(
        "unix:{path} is not used: it does not find {}.\n",
        closed.folder.display()
    );
    assert!(running.printed.contains(&note), "{}", running.printed);
    assert_eq!(value(&running.get("/").1, "user"), "0");
    drop(running);
    // A socket that a php-fpm has left is nothing.
    drop(other);
    let _ = fs::remove_file(socket);
    drop(UnixListener::bind(socket).unwrap());
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).unwrap();
    let running = site.serve(&["--php"]);
    assert!(!running.printed.contains("99.9"), "{}", running.printed);
    assert_eq!(running.get("/").0, 200);
}

/// A file that goes however the test ends.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.0);
    }
}

/// In a namespace of its own, whose port 9000 is free.
#[test]
fn the_usual_port_is_trusted_only_where_it_is_not_another_users() {
    let _quiet = undisturbed();
    let site = Site::new();
    site.write("index.php", "<?php echo getenv('PROBE') ?: 'own';");
    let conf = site.beside("port.conf");
    let text = "[global]\nerror_log = /dev/null\ndaemonize = no\n[other]\nuser = nobody\ngroup = nogroup\nlisten = 127.0.0.1:9000\n\
                pm = static\npm.max_children = 1\nenv[PROBE] = other\n";
    fs::write(&conf, text).unwrap();
    let script = "ip link set lo up
        $WRAP \"$FPM\" -F -y \"$CONF\" 2> /dev/null & pool=$!
        \"$TIDEGATE\" serve \"$SITE\" --php --listen 127.0.0.1:8080 2> \"$CONF.said\" > /dev/null & server=$!
        until curl -s http://127.0.0.1:8080/; do sleep 0.1; done
        kill $server $pool; wait
        cat \"$CONF.said\"";
    // The pool listens before it is asked for.
    let script = script.replace(
        "pool=$!",
        "pool=$!; until curl -s -m 1 http://127.0.0.1:9000/; [ $? != 7 ]; do sleep 0.1; done",
    );
    for (wrap, expected) in [
        ("", "otherPHP is run by php-fpm at 127.0.0.1:9000.\n"),
        (
            "setpriv --reuid=1 --regid=1 --clear-groups",
            "own127.0.0.1:9000 is not used: it belongs to user 1, who would see everything.\nPHP is run by a pool of its own, ",
        ),
    ] {
        let mut command = Command::new("timeout");
        command.args(["60", "unshare", "--net", "sh", "-c", &script]);
        command
            .env("WRAP", wrap)
            .env("FPM", php_fpm())
            .env("CONF", &conf)
            .env("SITE", &site.folder);
        command
            .env("TIDEGATE", env!("CARGO_BIN_EXE_tidegate"))
            .env_remove("SUDO_USER");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            said.starts_with(expected),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// In a namespace of its own, where /usr/sbin is empty.
#[test]
fn without_any_php_the_error_says_what_to_do() {
    let _quiet = undisturbed();
    let site = Site::new();
    let nothing = site.beside("nothing");
    fs::create_dir(&nothing).unwrap();
    let script =
        "mount --bind \"$0\" /usr/sbin && mount --bind \"$0\" /usr/local/sbin && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(&nothing);
    command
        .arg(env!("CARGO_BIN_EXE_tidegate"))
        .arg("serve")
        .arg(&site.folder)
        .arg("--php");
    let said = failure(command.output().unwrap());
    assert!(
        said.contains("--php finds no PHP: no php-fpm listens at /run/php/php-fpm.sock, "),
        "{said}"
    );
    assert!(
        said.contains(
            "127.0.0.1:9000, and no program php-fpm is in PATH or /usr/sbin. Install it (Debian"
        ),
        "{said}"
    );
    assert!(said.contains("the package php-fpm"), "{said}");
}
