//! Every action of Debian's init script, with nginx and with Tidegate in its place: the script's
//! own paths are the test's folder, and nothing else of it is changed.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use support::master::{Master, wait_for};
use support::port::free_port;
use support::site::small;

use crate::upgrade::place::{EndOfAll, Kind, is_alive, nginx, put, site, started};

const SCRIPT: &str = "/etc/init.d/nginx";

struct InitScript {
    site: Master,
    all: EndOfAll,
    port: u16,
    kind: Kind,
}

impl InitScript {
    fn new(kind: Kind) -> InitScript {
        let port = free_port();
        let servers = format!("server {{ listen 127.0.0.1:{port}; root @/www; }}");
        let site = site("", &servers, "");
        let at = site.folder.display().to_string();
        // The script looks for the pid file here.
        let conf = site.folder.join("nginx.conf");
        let text = fs::read_to_string(&conf).unwrap().replace("; ", ";\n");
        fs::write(&conf, text).unwrap();
        let script = fs::read_to_string(SCRIPT).unwrap();
        let mut changed = script.clone();
        for (from, to) in [
            ("/etc/nginx/nginx.conf", format!("{at}/nginx.conf")),
            ("/etc/default/nginx", format!("{at}/default")),
            ("DAEMON=/usr/sbin/nginx", format!("DAEMON={at}/sbin/nginx")),
        ] {
            assert!(script.contains(from), "{from}");
            changed = changed.replace(from, &to);
        }
        fs::write(site.folder.join("init"), changed).unwrap();
        let options = format!("DAEMON_OPTS=\"-c {at}/nginx.conf -e {at}/logs/start.log\"\n");
        fs::write(site.folder.join("default"), options).unwrap();
        put(&site.folder, kind);
        let all = EndOfAll(site.folder.clone());
        InitScript {
            site,
            all,
            port,
            kind,
        }
    }

    /// Its exit code and what it says.
    fn run(&self, action: &str) -> (Option<i32>, String) {
        let output = Command::new("timeout")
            .args(["60", "sh"])
            .arg(self.site.folder.join("init"))
            .arg(action)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), said)
    }

    fn succeeds(&self, action: &str) {
        let (code, said) = self.run(action);
        assert_eq!(code, Some(0), "{action} of {:?}: {said}", self.kind);
    }

    fn edit(&self, from: &str, to: &str) {
        let conf = self.site.folder.join("nginx.conf");
        let text = fs::read_to_string(&conf).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(conf, text.replace(from, to)).unwrap();
    }

    fn header(&self) -> String {
        let mut connection = support::Connection::open(self.port).unwrap();
        connection.get("/small").unwrap().head
    }
}

fn every_action(kind: Kind) {
    let script = InitScript::new(kind);
    let all = &script.all;
    assert_eq!(script.run("status").0, Some(3));
    script.succeeds("configtest");
    script.succeeds("start");
    let first = started(all);
    small(script.port, "started");
    script.succeeds("status");
    // A second start finds the first.
    script.succeeds("start");
    assert_eq!(all.pid("nginx.pid"), Some(first));

    script.edit("root ", "add_header X-Number one; root ");
    for (action, number) in [("reload", "two"), ("force-reload", "three")] {
        script.edit("X-Number one", &format!("X-Number {number}"));
        script.succeeds(action);
        wait_for("new configuration", || {
            script.header().contains(&format!("X-Number: {number}"))
        });
        script.edit(&format!("X-Number {number}"), "X-Number one");
    }
    // What is wrong is said, and changes nothing.
    script.edit("add_header", "no_such_directive");
    for action in ["configtest", "reload", "restart"] {
        assert_eq!(script.run(action).0, Some(1), "{action}");
        assert_eq!(all.pid("nginx.pid"), Some(first));
        small(script.port, action);
    }
    script.edit("no_such_directive", "add_header");

    let log = script.site.folder.join("logs/error.log");
    fs::rename(&log, log.with_extension("old")).unwrap();
    script.succeeds("rotate");
    wait_for("log that was opened again", || log.exists());

    script.succeeds("upgrade");
    wait_for("end of the older one", || !is_alive(first));
    let second = started(all);
    assert_ne!(second, first);
    small(script.port, "upgraded");
    script.succeeds("status");

    script.succeeds("restart");
    assert!(!is_alive(second));
    let third = started(all);
    small(script.port, "restarted");
    script.succeeds("stop");
    assert!(!is_alive(third));
    assert!(TcpStream::connect(("127.0.0.1", script.port)).is_err());
    assert_eq!(script.run("status").0, Some(3));
    script.succeeds("stop");
    assert_eq!(script.run("upgrade").0, Some(1));
}

fn is_there() -> bool {
    let is_there = nginx().is_some() && Path::new(SCRIPT).exists();
    if !is_there {
        eprintln!("skipped: no init script of Debian's nginx here");
    }
    is_there
}

#[test]
fn debian_starts_nginx() {
    if is_there() {
        every_action(Kind::Nginx);
    }
}

#[test]
fn debian_starts_tidegate_in_its_place() {
    if is_there() {
        every_action(Kind::Tidegate);
    }
}

/// The package has another program now: `upgrade` changes over, and back.
#[test]
fn debian_changes_over_and_back() {
    if !is_there() {
        return;
    }
    let script = InitScript::new(Kind::Nginx);
    script.succeeds("start");
    let mut before = started(&script.all);
    for kind in [Kind::Tidegate, Kind::Nginx] {
        put(&script.site.folder, kind);
        script.succeeds("upgrade");
        wait_for("end of the older one", || !is_alive(before));
        before = started(&script.all);
        let header = script.header();
        assert_eq!(
            header.contains("Server: tidegate"),
            kind == Kind::Tidegate,
            "{header}"
        );
    }
    script.succeeds("stop");
}
