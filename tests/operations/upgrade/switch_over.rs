//! The commands of README.md by which Tidegate takes nginx's place, and starts beside a server that
//! serves its last requests.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::master::wait_for;
use support::port::free_port;
use support::site::{Pending, listens, small};

use crate::upgrade::place::{EndOfAll, beside_nginx, comm, start_in_background, title};

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
