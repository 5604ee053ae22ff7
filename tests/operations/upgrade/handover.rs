//! What one program hands on to the next: sockets by their numbers, the environment that `env` lets
//! through, and files of Unix sockets, which go with the last one that listens by them.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::Connection;
use support::master::{Master, wait_for};
use support::port::free_port;
use support::site::{Pending, listens, small};

use crate::upgrade::place::{
    EndOfAll, Kind, end, is_alive, nginx, put, site, start_in_background, started, upgrade,
};

/// Who hands on to whom.
const CHANGES: [(Kind, Kind); 4] = [
    (Kind::Nginx, Kind::Nginx),
    (Kind::Nginx, Kind::Tidegate),
    (Kind::Tidegate, Kind::Nginx),
    (Kind::Tidegate, Kind::Tidegate),
];

/// Every change, each in a folder of its own by the same configuration.
fn for_each_change(
    main: &str,
    servers: impl Fn(u16) -> String,
    test: impl Fn(&Master, &EndOfAll, u16, Kind),
) {
    if nginx().is_none() {
        return;
    }
    for (older, newer) in CHANGES {
        let port = free_port();
        let site = site(main, &servers(port), "");
        let all = EndOfAll(site.folder.clone());
        put(&site.folder, older);
        start_in_background(&all, "sbin/nginx");
        put(&site.folder, newer);
        test(&site, &all, port, newer);
    }
}

/// Changes the configuration that the next program reads.
fn edit(site: &Master, from: &str, to: &str) {
    let conf = site.folder.join("nginx.conf");
    let text = fs::read_to_string(&conf).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(conf, text.replace(from, to)).unwrap();
}

fn on_tcp_and_unix(port: u16) -> String {
    format!("server {{ listen 127.0.0.1:{port}; listen unix:@/socket; root @/www; }}")
}

/// The workers of the older one accept no more, so the newer one answers.
fn leave_to_the_newer(site: &Master, port: u16, older: u32, newer: u32) {
    support::signal(older, "WINCH");
    wait_for("older one whose workers do not listen", || {
        let mut children = support::children(older).into_iter();
        !children.any(|pid| pid != newer && listens(pid, port))
    });
    assert!(site.folder.join("nginx.pid.oldbin").exists());
}

#[test]
fn what_env_lets_through_is_handed_on() {
    let servers = |port| format!("server {{ listen 127.0.0.1:{port}; root @/www; }}");
    for_each_change(
        "env LANG; env SET=value;",
        servers,
        |site, all, _, newer| {
            let older = all.pid("nginx.pid").unwrap();
            let running = fs::read_link(format!("/proc/{older}/exe")).unwrap();
            let was_tidegate = running.ends_with("tidegate");
            // Programs write their titles over their environment, so another one notes it.
            let place = site.folder.join("sbin/nginx");
            let program = fs::read_link(&place).unwrap();
            let noted = site.folder.join("environment");
            let script = format!(
                "#!/bin/sh\nenv > {}\nexec {} \"$@\"\n",
                noted.display(),
                program.display()
            );
            fs::write(site.folder.join("script"), script).unwrap();
            let may_run = fs::Permissions::from_mode(0o755);
            fs::set_permissions(site.folder.join("script"), may_run).unwrap();
            fs::rename(site.folder.join("script"), place).unwrap();
            upgrade(all, older);
            let environment = fs::read_to_string(noted).unwrap();
            let mut names: Vec<&str> = environment
                .lines()
                .filter_map(|entry| entry.split_once('='))
                .map(|(name, _)| name)
                // Of the shell; nginx's room for its title; the zone, which goes along in any case.
                .filter(|name| !["PWD", "_", "SHLVL", "OLDPWD", "SPARE", "TZ"].contains(name))
                .collect();
            names.sort_unstable();
            let has_lang = std::env::var_os("LANG").map(|_| "LANG");
            let mut expected: Vec<&str> = has_lang.into_iter().chain(["NGINX", "SET"]).collect();
            // Where the next program may ask what zones hold; nginx has nothing to be asked for.
            expected.extend(was_tidegate.then_some("TIDEGATE_STATE"));
            assert_eq!(names, expected, "{newer:?}");
        },
    );
}

/// The list of sockets is empty then, and the newer one is none the less the older one's child.
#[test]
fn a_server_without_sockets_is_followed() {
    for_each_change(
        "",
        |_| String::new(),
        |_, all, _, _| {
            let older = all.pid("nginx.pid").unwrap();
            let newer = upgrade(all, older);
            assert!(support::children(older).contains(&newer));
            end(older, "QUIT");
            assert_eq!(all.pid("nginx.pid"), Some(newer));
        },
    );
}

/// A variable of that name that a shell has set for another purpose is not a list of sockets.
#[test]
fn a_variable_without_numbers_is_not_a_list() {
    let port = free_port();
    let site = site("", &on_tcp_and_unix(port), "");
    let all = EndOfAll(site.folder.clone());
    put(&site.folder, Kind::Tidegate);
    let mut command = Command::new(site.folder.join("sbin/nginx"));
    let command = command.arg("-c").arg(site.folder.join("nginx.conf"));
    let status = command
        .args(["-e", "stderr"])
        .env("NGINX", "/usr/sbin/nginx")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    // It has gone to the background, or this would still wait.
    assert!(status.unwrap().success());
    let pid = started(&all);
    small(port, "behind");
    end(pid, "TERM");
}

#[test]
fn a_socket_that_no_line_needs_is_closed() {
    let servers = |port| {
        let others = on_tcp_and_unix(port);
        format!(
            "{others} server {{ listen 127.0.0.1:{}; root @/www; }}",
            free_port()
        )
    };
    for_each_change("", servers, |site, all, port, kind| {
        let older = all.pid("nginx.pid").unwrap();
        edit(site, &format!("listen 127.0.0.1:{port};"), "");
        edit(site, "listen unix:", "#");
        edit(site, "; root", ";\nroot");
        let newer = upgrade(all, older);
        wait_for("worker", || !support::children(newer).is_empty());
        assert!(!listens(newer, port) && listens(older, port), "{kind:?}");
        small(port, "still-there");
        let socket = site.folder.join("socket");
        if kind == Kind::Tidegate {
            // Tidegate leaves the file to the one that listens by it; nginx takes it away.
            assert!(UnixStream::connect(&socket).is_ok());
        }
        end(older, "QUIT");
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        wait_for("end of the file", || !socket.exists());
    });
}

/// The newer one goes back, with a socket of its own.
#[test]
fn a_socket_of_the_newer_one_goes_with_it() {
    for_each_change("", on_tcp_and_unix, |site, all, port, kind| {
        let older = all.pid("nginx.pid").unwrap();
        edit(
            site,
            "listen unix:",
            &format!("listen unix:{}/own; listen unix:", site.folder.display()),
        );
        let newer = upgrade(all, older);
        let own = site.folder.join("own");
        wait_for("socket", || UnixStream::connect(&own).is_ok());
        end(newer, "QUIT");
        assert!(!own.exists(), "{kind:?}");
        wait_for("pid file that is back", || {
            all.pid("nginx.pid") == Some(older)
        });
        assert!(UnixStream::connect(site.folder.join("socket")).is_ok());
        small(port, "again");
    });
}

/// Each sees the other one still at its last request, and the last one takes the file away.
#[test]
fn no_file_stays_where_both_end_at_once() {
    let port = free_port();
    let site = site("", &on_tcp_and_unix(port), "");
    let all = EndOfAll(site.folder.clone());
    put(&site.folder, Kind::Tidegate);
    for last in ["older", "newer"] {
        let older = start_in_background(&all, "sbin/nginx");
        let of_older = Pending::new(port, "of-older");
        let newer = upgrade(&all, older);
        leave_to_the_newer(&site, port, older, newer);
        let of_newer = Pending::new(port, "of-newer");
        for pid in [older, newer] {
            support::signal(pid, "QUIT");
        }
        wait_for("end of all sockets", || {
            !listens(older, port) && !listens(newer, port)
        });
        let (first, second) = if last == "older" {
            ((of_newer, newer), (of_older, older))
        } else {
            ((of_older, older), (of_newer, newer))
        };
        assert!(site.folder.join("socket").exists());
        for (download, pid) in [first, second] {
            download.finish();
            wait_for("end", || !is_alive(pid));
        }
        for name in ["socket", "nginx.pid", "nginx.pid.oldbin"] {
            assert!(!site.folder.join(name).exists(), "{last}: {name}");
        }
    }
}

/// Its client may just be sending the next request. Without a newer program it ends at once.
#[test]
fn an_idle_connection_is_served_once_more() {
    let port = free_port();
    let site = site("", &on_tcp_and_unix(port), "");
    let all = EndOfAll(site.folder.clone());
    put(&site.folder, Kind::Tidegate);
    let older = start_in_background(&all, "sbin/nginx");
    let newer = upgrade(&all, older);
    let open = || {
        let mut connection = Connection::open(port).unwrap();
        assert!(!connection.get("/small").unwrap().closes());
        connection
    };
    // Whichever of both has accepted them.
    let mut connections: Vec<Connection> = (0..20).map(|_| open()).collect();
    for signal in ["WINCH", "QUIT"] {
        support::signal(older, signal);
    }
    wait_for("end of the listener", || {
        let mut children = support::children(older).into_iter();
        !listens(older, port) && !children.any(|pid| pid != newer && listens(pid, port))
    });
    let answers = connections.iter_mut().map(|one| one.get("/small").unwrap());
    let ended = answers.filter(|answer| answer.closes()).count();
    assert!(ended > 0);
    wait_for("end of the older one", || !is_alive(older));
    let mut alone = open();
    support::signal(newer, "QUIT");
    assert!(alone.receive(Duration::ZERO).is_err());
    wait_for("end", || !is_alive(newer));
}

/// A socket that was bound alone gets `SO_REUSEPORT`, or none could be bound beside it.
#[test]
fn a_socket_is_shared_from_then_on() {
    for_each_change(
        "worker_processes 2;",
        on_tcp_and_unix,
        |site, all, port, kind| {
            let older = all.pid("nginx.pid").unwrap();
            edit(
                site,
                &format!("127.0.0.1:{port};"),
                &format!("127.0.0.1:{port} reuseport;"),
            );
            let newer = upgrade(all, older);
            leave_to_the_newer(site, port, older, newer);
            for number in 0..20 {
                small(port, &format!("shared{number}"));
            }
            end(older, "QUIT");
            let alerts = site.read("logs/error.log");
            assert!(
                !alerts.contains("[alert]") && !alerts.contains("[emerg]"),
                "{kind:?}: {alerts}"
            );
            // And the way back: one of several sockets is enough.
            edit(site, " reuseport;", ";");
            let last = upgrade(all, newer);
            end(newer, "QUIT");
            for number in 0..20 {
                small(port, &format!("alone{number}"));
            }
            end(last, "TERM");
        },
    );
}

/// A program that was found in PATH is found there again.
#[test]
fn a_name_without_a_folder_is_looked_up() {
    let port = free_port();
    let site = site("", &on_tcp_and_unix(port), "");
    let all = EndOfAll(site.folder.clone());
    put(&site.folder, Kind::Tidegate);
    let path = |folder: &Path| {
        let others = std::env::var("PATH").unwrap();
        format!("{}:{others}", folder.join("sbin").display())
    };
    let command = format!("nginx -c {}/nginx.conf -e stderr", site.folder.display());
    let status = Command::new("sh")
        .args(["-c", &command])
        .env("PATH", path(&site.folder))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    let older = started(&all);
    let newer = upgrade(&all, older);
    end(older, "QUIT");
    small(port, "found");
    end(newer, "TERM");
}
