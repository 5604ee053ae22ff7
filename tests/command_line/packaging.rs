//! What `make install` and the packages put onto a machine, in a folder of the test's: the
//! configuration serves the default page, logrotate rotates its logs, and the manual has every
//! option.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use support::Connection;
use support::master::{Master, wait_for};
use support::port::free_port;
use support::site::is_root;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidegate");

fn install(folder: &Path) {
    let output = Command::new("make")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["--silent", "install"])
        .arg(format!("DESTDIR={}", folder.display()))
        .arg(format!("BINARY={PROGRAM}"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Has a file that was installed name the folder instead of the machine's.
fn put_below(folder: &Path, name: &str, others: &[(&str, String)]) {
    let path = folder.join(name);
    let mut text = fs::read_to_string(&path).unwrap();
    for paths in [
        "/var/log/",
        "/var/lib/",
        "/usr/share/",
        "/usr/sbin/",
        "/run/",
    ] {
        text = text.replace(paths, &format!("{}{paths}", folder.display()));
    }
    for (from, to) in others {
        assert!(text.contains(from), "{name}: {text}");
        text = text.replace(from, to);
    }
    fs::write(path, text).unwrap();
}

#[test]
fn what_is_installed_serves_and_is_rotated() {
    let site = Master::new();
    let folder = &site.folder;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    install(folder);
    fs::create_dir(folder.join("run")).unwrap();
    let port = free_port();
    let user = if is_root() {
        vec![]
    } else {
        vec![("user www-data;", String::new())]
    };
    put_below(folder, "etc/tidegate/tidegate.conf", &user);
    let listen = ("listen 8080", format!("listen 127.0.0.1:{port}"));
    put_below(folder, "etc/tidegate/conf.d/default.conf", &[listen]);
    let conf = folder.join("etc/tidegate/tidegate.conf");
    let program = folder.join("usr/sbin/tidegate");
    let started = Command::new(&program)
        .arg("-c")
        .arg(&conf)
        .args(["-e", "stderr"])
        .stdin(Stdio::null())
        .stderr(fs::File::create(folder.join("output")).unwrap())
        .status();
    assert!(started.unwrap().success(), "{}", site.read("output"));
    wait_for("pid file", || folder.join("run/tidegate.pid").exists());
    let pid: u32 = site.read("run/tidegate.pid").trim().parse().unwrap();
    let response = Connection::open(port).unwrap().get("/").unwrap();
    let page = fs::read(folder.join("usr/share/tidegate/html/index.html")).unwrap();
    assert_eq!(response.body, page);
    assert!(
        response.head.contains("Content-Type: text/html\r\n"),
        "{}",
        response.head
    );
    site.wait_for_text("var/log/tidegate/access.log", "GET / ");

    if is_root() && Command::new("logrotate").arg("--version").output().is_ok() {
        let reopen = format!("{} -c {} -e stderr", program.display(), conf.display());
        let here = format!("{} -e stderr", program.display());
        put_below(
            folder,
            "etc/logrotate.d/tidegate",
            &[(here.as_str(), reopen)],
        );
        let rotated = Command::new("logrotate")
            .arg("--force")
            .arg("--state")
            .arg(folder.join("state"))
            .arg(folder.join("etc/logrotate.d/tidegate"))
            .output()
            .unwrap();
        assert!(rotated.status.success(), "{rotated:?}");
        let old = site.read("var/log/tidegate/access.log.1");
        assert!(old.contains("GET / "), "{old}");
        let found = Connection::open(port).unwrap().get("/behind").unwrap();
        assert_eq!(found.status, 404);
        site.wait_for_text("var/log/tidegate/access.log", "GET /behind ");
    } else {
        eprintln!("no logrotate here, or not root");
    }
    support::signal(pid, "TERM");
    wait_for("end", || !folder.join("run/tidegate.pid").exists());
}

#[test]
fn the_manual_has_every_option_and_command() {
    let manual = include_str!("../../packaging/tidegate.8");
    let shown = |argument: &str| {
        let output = Command::new(PROGRAM).arg(argument).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let help = shown("-h");
    let (_, options) = help.split_once("Options:\n").unwrap();
    let letters = options
        .lines()
        .filter_map(|line| line.trim().strip_prefix('-')?.chars().next());
    let letters: Vec<char> = letters.collect();
    assert!(letters.len() >= 10, "{help}");
    for letter in letters {
        assert!(manual.contains(&format!("\\-{letter}")), "-{letter}");
    }
    let help = shown("--help");
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands = commands.lines().take_while(|line| line.starts_with("  "));
    let names: Vec<&str> = commands
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(names.contains(&"serve"), "{help}");
    for name in names.into_iter().filter(|name| *name != "help") {
        assert!(manual.contains(&format!("\n.B {name}\n")), "{name}");
    }
}
