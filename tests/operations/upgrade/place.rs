//! A folder in which one program takes another one's place: nginx and Tidegate, by one
//! configuration.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::master::{Master, wait_for};
use support::site::{LARGE, is_root};

/// The end of every process that is named in one of the pid files of a folder.
pub(crate) struct EndOfAll(pub(crate) PathBuf);

impl EndOfAll {
    pub(crate) fn pid(&self, name: &str) -> Option<u32> {
        fs::read_to_string(self.0.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    }
}

impl Drop for EndOfAll {
    fn drop(&mut self) {
        // Before any of them is renamed at the end of the other.
        let pids = ["nginx.pid", "nginx.pid.oldbin"].map(|name| self.pid(name));
        for pid in pids.into_iter().flatten() {
            support::signal(pid, "TERM");
        }
    }
}

pub(crate) fn comm(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

pub(crate) fn title(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes)
        .replace('\0', " ")
        .trim_end()
        .to_owned()
}

/// Whether a process runs, and has not only not been waited for.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// The programs that may follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Nginx,
    Tidegate,
}

/// Makes a program the folder's `sbin/nginx`, in the place of the one that was there.
pub(crate) fn put(folder: &Path, kind: Kind) {
    let program = match kind {
        Kind::Nginx => nginx().unwrap(),
        Kind::Tidegate => env!("CARGO_BIN_EXE_tidegate").into(),
    };
    let link = folder.join("link");
    std::os::unix::fs::symlink(program, &link).unwrap();
    fs::rename(link, folder.join("sbin/nginx")).unwrap();
}

/// Has a master start its successor, and returns that one's number.
pub(crate) fn upgrade(all: &EndOfAll, older: u32) -> u32 {
    support::signal(older, "USR2");
    wait_for("new binary", || {
        all.pid("nginx.pid").is_some_and(|pid| pid != older)
    });
    assert_eq!(all.pid("nginx.pid.oldbin"), Some(older));
    started(all)
}

/// The master that the pid file names, once it has workers: a signal before that, nginx keeps until
/// the next one.
pub(crate) fn started(all: &EndOfAll) -> u32 {
    wait_for("pid file", || all.pid("nginx.pid").is_some());
    let pid = all.pid("nginx.pid").unwrap();
    wait_for("worker", || !support::children(pid).is_empty());
    pid
}

/// Ends a master, and waits for its end.
pub(crate) fn end(pid: u32, signal: &str) {
    support::signal(pid, signal);
    wait_for("end", || !is_alive(pid));
}

/// The nginx that is there.
pub(crate) fn nginx() -> Option<PathBuf> {
    let named = std::env::var_os("NGINX_BINARY").map(PathBuf::from);
    let binary = named.unwrap_or_else(|| "/usr/sbin/nginx".into());
    if binary.exists() {
        return Some(binary);
    }
    eprintln!("skipped: no nginx here");
    None
}

/// A folder with a site and a configuration by which nginx and Tidegate go to the background, `@`
/// in `lines` being the folder.
pub(crate) fn site(main: &str, servers: &str, other_blocks: &str) -> Master {
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
    let user = if is_root() {
        "user nobody nogroup;"
    } else {
        ""
    };
    let text = format!(
        "{user} {main} pid @/nginx.pid; error_log @/logs/error.log notice; events {{}} \
         http {{ access_log off; client_body_temp_path @/a; proxy_temp_path @/b; \
         fastcgi_temp_path @/c; uwsgi_temp_path @/d; scgi_temp_path @/e; {servers} }} \
         {other_blocks}"
    );
    let text = text.replace('@', &folder.display().to_string());
    fs::write(folder.join("nginx.conf"), text).unwrap();
    master
}

/// A folder with nginx as `sbin/nginx` beside Tidegate as `tidegate`.
pub(crate) fn beside_nginx(port: u16) -> Option<Master> {
    let nginx = nginx()?;
    let servers =
        format!("server {{ listen 127.0.0.1:{port}; listen unix:@/socket; root @/www; }}");
    let master = site("", &servers, "");
    let folder = &master.folder;
    support::copy_program(nginx, folder.join("sbin/nginx"));
    let program = env!("CARGO_BIN_EXE_tidegate");
    std::os::unix::fs::symlink(program, folder.join("tidegate")).unwrap();
    Some(master)
}

/// Starts a file of the folder in the background, and returns the number of its master.
pub(crate) fn start_in_background(all: &EndOfAll, program: &str) -> u32 {
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
    started(all)
}
