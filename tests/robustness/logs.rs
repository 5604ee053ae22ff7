//! Logs that cannot be written, or are taken away.

use std::io::{ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::server::{Server, Setup, on_each_engine};

const SITE: &str = "server { listen 127.0.0.1:@PORT@; root @ROOT@; keepalive_requests 1000000; }";

fn ask(client: &mut Client, count: usize) {
    for _ in 0..count {
        assert_eq!(client.get("/a.txt").status, 200);
    }
}

#[test]
fn a_full_device_costs_lines_and_no_requests() {
    on_each_engine(|engine| {
        let http = format!("access_log /dev/full; {SITE}");
        let server = Setup::new(engine, &http).start();
        ask(&mut server.connect(), 1000);
        let log = server.error_log();
        assert_eq!(
            log.matches("write() to \"/dev/full\" failed (28: No space left on device)")
                .count(),
            1,
            "{log}"
        );

        let server = Setup::new(engine, SITE)
            .main("error_log /dev/full info;")
            .start();
        let mut client = server.connect();
        for _ in 0..300 {
            assert_eq!(client.get("/nothing").status, 404);
        }
        assert!(server.access_log().contains("/nothing"));
    });
}

#[test]
fn a_pipe_that_nobody_reads_delays_lines_and_no_requests() {
    const REQUESTS: usize = 3000;
    on_each_engine(|engine| {
        let setup = Setup::new(engine, &format!("access_log @FOLDER@/pipe; {SITE}"));
        let mut server = Server::lay_out(setup.main("worker_processes 1;"));
        let path = server.folder.join("pipe");
        assert!(
            Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        const NONBLOCK: i32 = 0o4000;
        let open = std::fs::File::options()
            .read(true)
            .write(true)
            .custom_flags(NONBLOCK)
            .open(&path);
        let mut pipe = open.unwrap();
        server.launch();
        let begin = Instant::now();
        ask(&mut server.connect(), REQUESTS);
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "requests wait for the log"
        );
        let mut bytes = Vec::new();
        let end = Instant::now() + Duration::from_secs(60);
        let lines = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'\n').count();
        while lines(&bytes) < REQUESTS && Instant::now() < end {
            let mut buffer = [0; 65536];
            match pipe.read(&mut buffer) {
                Ok(length) => bytes.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                Err(error) => panic!("{error}"),
            }
        }
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(
            text.lines()
                .filter(|line| line.contains("\"GET /a.txt HTTP/1.1\" 200 10"))
                .count(),
            REQUESTS
        );
        assert_eq!(text.lines().count(), REQUESTS, "lines come whole");
    });
}

#[test]
fn rotation_under_load_loses_no_line() {
    const ROTATIONS: usize = 5;
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut client = server.connect();
                    while !stop.load(Ordering::Relaxed) {
                        ask(&mut client, 1);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let logs = server.folder.join("logs");
            for number in 0..ROTATIONS {
                std::thread::sleep(Duration::from_millis(100));
                std::fs::rename(logs.join("access.log"), logs.join(format!("old.{number}")))
                    .unwrap();
                server.signal("USR1");
                crate::client::wait_until("the log is there again", || {
                    logs.join("access.log").exists()
                });
            }
            stop.store(true, Ordering::Relaxed);
        });
        let answered = answered.load(Ordering::Relaxed);
        let count = || {
            let files = std::fs::read_dir(server.folder.join("logs")).unwrap();
            let text = |path| std::fs::read_to_string(path).unwrap_or_default();
            let files = files
                .flatten()
                .filter(|file| file.file_name() != "error.log");
            files
                .map(|file| text(file.path()).matches("GET /a.txt").count())
                .sum::<usize>()
        };
        crate::client::wait_until("every request has its line", || count() == answered);
        // The new file may be there before the worker writes to it.
        let mut asked = 0;
        crate::client::wait_until("the new log goes on", || {
            ask(&mut server.connect(), 1);
            asked += 1;
            server.access_log().contains("GET /a.txt")
        });
        crate::client::wait_until("these have theirs, too", || count() == answered + asked);
    });
}

#[test]
fn syslog_servers_get_a_datagram_for_each_line() {
    on_each_engine(|engine| {
        let syslog = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let patience = Duration::from_secs(60);
        syslog.set_read_timeout(Some(patience)).unwrap();
        let at = syslog.local_addr().unwrap();
        let http = format!(
            "log_format short \"$request_uri $status\";
            access_log syslog:server={at},facility=local0,severity=notice,tag=site,nohostname short if=$arg_logged;
            server {{
                listen 127.0.0.1:@PORT@; root @ROOT@;
                location /missing {{ error_log syslog:server={at},nohostname; }}
            }}"
        );
        let server = Setup::new(engine, &http).start();
        let mut buffer = [0; 2048];
        let mut next = || {
            let length = syslog.recv(&mut buffer).expect("a line comes");
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        let mut client = server.connect();
        assert_eq!(client.get("/a.txt").status, 200);
        assert_eq!(client.get("/a.txt?logged=1").status, 200);
        // local0 is 16 and notice 5; local7 is 23 and error 3.
        let line = next();
        assert!(
            line.starts_with("<133>") && line.ends_with(" site: /a.txt?logged=1 200"),
            "{line}"
        );
        assert_eq!(client.get("/missing").status, 404);
        let line = next();
        assert!(
            line.starts_with("<187>") && line.contains(" nginx: "),
            "{line}"
        );
        assert!(
            line.contains("[error]") && line.contains("open() \""),
            "{line}"
        );
    });
}
