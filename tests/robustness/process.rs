//! The end of a worker: by a fault, gracefully, by a time limit; and a life without a master.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::client::{End, get, wait_until};
use crate::files::{LONG, long_content};
use crate::server::{Setup, on_each_engine, signal};

const SITE: &str = "server { listen 127.0.0.1:@PORT@; root @ROOT@; }";

#[test]
fn a_worker_that_crashes_is_replaced_at_once() {
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        assert_eq!(server.connect().get("/a.txt").status, 200);
        let worker = server.worker().expect("runs");
        signal(worker, "SEGV");
        let replaced = || server.worker().is_some_and(|other| other != worker);
        wait_until("another worker is there", replaced);
        // The listener is the master's too: nobody is refused meanwhile.
        assert_eq!(server.connect().get("/a.txt").status, 200);
        wait_until("it is told", || {
            server
                .error_log()
                .contains(&format!("worker process {worker} exited on signal 11"))
        });
    });
}

#[test]
fn an_order_to_quit_lets_requests_end() {
    on_each_engine(|engine| {
        let mut server = Setup::new(engine, SITE).start();
        server.file("long", &long_content());
        let mut download = server.connect();
        download.send(get("/long"));
        let head = download.take(1000).unwrap();
        let body = 1000 - head.windows(4).position(|w| w == b"\r\n\r\n").unwrap() - 4;
        let mut idle = server.connect();
        assert_eq!(idle.get("/a.txt").status, 200);
        let mut begun = server.connect();
        begun.send("GET /a.txt HTTP/1.1\r\n");
        begun.wait_until_read();
        server.signal("QUIT");
        assert_eq!(idle.rest(), (Vec::new(), End::Closed));
        let port = server.port;
        wait_until("nobody is accepted", || {
            TcpStream::connect(("127.0.0.1", port)).is_err()
        });
        let last = begun.send("Host: localhost\r\n\r\n").response();
        assert!(last.status == 200 && last.closes(), "{last:?}");
        assert!(download.take(LONG - body).is_ok());
        let status = server.wait(Duration::from_secs(60)).expect("ends");
        assert!(status.success());
        let log = server.access_log();
        assert_eq!(
            log.lines().filter(|line| line.contains("\" 200 ")).count(),
            3,
            "{log}"
        );
    });
}

#[test]
fn worker_shutdown_timeout_ends_what_does_not_end() {
    on_each_engine(|engine| {
        let setup = Setup::new(engine, SITE).main("worker_shutdown_timeout 500ms;");
        let mut server = setup.start();
        server.file("long", &long_content());
        let mut download = server.connect();
        download.send(get("/long"));
        download.take(200).unwrap();
        server.signal("QUIT");
        let begin = Instant::now();
        assert!(
            server
                .wait(Duration::from_secs(60))
                .expect("ends")
                .success()
        );
        assert!(
            begin.elapsed() >= Duration::from_millis(400),
            "it had its time"
        );
        assert_ne!(download.rest().1, End::Open);
    });
}

#[test]
fn an_abstract_socket_leaves_no_file_to_remove() {
    on_each_engine(|engine| {
        let site = "server { listen 127.0.0.1:@PORT@; listen unix:@tidegate-@PORT@; root @ROOT@; }";
        let mut server = Setup::new(engine, site).start();
        server.signal("QUIT");
        let status = server.wait(Duration::from_secs(60)).expect("ends");
        let log = server.error_log();
        assert!(status.success() && !log.contains("unlink()"), "{log}");
    });
}

#[test]
fn one_process_does_without_a_master() {
    on_each_engine(|engine| {
        let mut server = Setup::new(engine, SITE).main("master_process off;").start();
        assert_eq!(server.worker(), None);
        let mut client = server.connect();
        assert_eq!(client.get("/a.txt").status, 200);
        server.configure(&SITE.replace("root", "deny all; root"));
        assert!(server.reload());
        assert_eq!(client.get("/a.txt").status, 403);
        server.signal("USR1");
        server.configure(SITE);
        assert!(server.reload());
        assert_eq!(client.get("/a.txt").status, 200);
        server.signal("QUIT");
        assert!(
            server
                .wait(Duration::from_secs(60))
                .expect("ends")
                .success()
        );
    });
}

#[test]
fn a_worker_process_is_what_the_configuration_makes_of_it() {
    on_each_engine(|engine| {
        let mut server = Setup::new(engine, SITE)
            .main(
                "worker_priority 5; worker_rlimit_core 1m; working_directory @FOLDER@/temp; \
                 env HOME; env TIDEGATE_TEST=a=b; env TIDEGATE_UNKNOWN;",
            )
            .start();
        assert_eq!(server.connect().get("/a.txt").status, 200);
        let worker = server.worker().expect("runs");
        let read = |file: &str| std::fs::read(format!("/proc/{worker}/{file}")).unwrap_or_default();
        let status = String::from_utf8_lossy(&read("stat")).into_owned();
        // The fields after the name in brackets begin with the third.
        let nice = status
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(16));
        assert_eq!(nice, Some("5"));
        let limits = String::from_utf8_lossy(&read("limits")).into_owned();
        let core = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"));
        assert!(
            core.is_some_and(|line| line.contains("1048576")),
            "{limits}"
        );
        let directory = std::fs::read_link(format!("/proc/{worker}/cwd")).unwrap();
        assert_eq!(directory, server.folder.join("temp"));
        let environment = String::from_utf8_lossy(&read("environ")).into_owned();
        let has = |entry: &str| environment.split('\0').any(|known| known == entry);
        assert!(has("TIDEGATE_TEST=a=b"), "{environment}");
        assert!(!environment.contains("TIDEGATE_UNKNOWN") && !environment.contains("PATH="));
        if let Ok(home) = std::env::var("HOME") {
            assert!(has(&format!("HOME={home}")), "{environment}");
        }

        // What a process cannot change in its life makes a reload start another.
        server.set_main("worker_priority 7;");
        server.configure(SITE);
        assert!(server.reload());
        wait_until("the old one has ended", || {
            server.worker().is_some_and(|now| now != worker)
        });
        assert_eq!(server.connect().get("/a.txt").status, 200);
    });
}
