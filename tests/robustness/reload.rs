//! Reloads: no request is lost by one, and the new configuration binds where it must.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::client::{Client, End, get, wait_until};
use crate::files::{LONG, long_content};
use crate::server::{Setup, on_each_engine};
use crate::upstream;

const SITE: &str = "server { listen 127.0.0.1:@PORT@; root @ROOT@; location /sent/ { alias @ROOT@/; sendfile on; } }";

/// Asks until told to stop, on connections that are kept or made for each request.
fn ask_on(port: u16, kept: bool, stop: &AtomicBool, answered: &AtomicU32) {
    let mut client = None;
    while !stop.load(Ordering::Relaxed) {
        let mut connected: Client = client.take().unwrap_or_else(|| Client::connect(port));
        let response = connected.send(get("/a.txt")).try_response();
        let response = response.unwrap_or_else(|end| panic!("no answer: {end:?}"));
        assert_eq!(
            (response.status, &*response.body),
            (200, &b"0123456789"[..])
        );
        answered.fetch_add(1, Ordering::Relaxed);
        if kept && !response.closes() {
            client = Some(connected);
        }
    }
}

#[test]
fn twenty_reloads_under_load_lose_no_request() {
    const RELOADS: usize = 20;
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        let (stop, answered) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (port, stop, answered) = (server.port, &stop, &answered);
                scope.spawn(move || ask_on(port, number % 2 == 0, stop, answered));
            }
            for _ in 0..RELOADS {
                let before = answered.load(Ordering::Relaxed);
                let reloaded = server.reload();
                // The load is to meet every generation.
                wait_until("requests go on", || {
                    answered.load(Ordering::Relaxed) > before + 20
                });
                if !reloaded {
                    stop.store(true, Ordering::Relaxed);
                    panic!("reload failed");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        wait_until("the replaced generations end", || {
            server.error_log().matches("exited with code 0").count() >= RELOADS
        });
        assert!(
            !server.error_log().contains("[alert]"),
            "{}",
            server.error_log()
        );
    });
}

#[test]
fn a_deny_binds_on_an_old_connection() {
    on_each_engine(|engine| {
        let mut server = Setup::new(engine, SITE).start();
        let mut client = server.connect();
        for _ in 0..4 {
            assert_eq!(client.get("/a.txt").status, 200);
        }
        server.configure(&SITE.replace("root @ROOT@;", "root @ROOT@; deny all;"));
        assert!(server.reload());
        assert_eq!(client.get("/a.txt").status, 403);
        server.configure(SITE);
        assert!(server.reload());
        assert_eq!(client.get("/a.txt").status, 200);
    });
}

/// A head that repeats the last one is answered without another look at anything, but for the
/// generation.
#[test]
fn every_new_rule_binds_on_a_connection_that_repeats_its_request() {
    const RULES: [(&str, u16); 6] = [
        ("deny all;", 403),
        ("auth_basic x; auth_basic_user_file @FOLDER@/users;", 401),
        ("limit_req zone=requests;", 503),
        ("return 410;", 410),
        ("limit_except POST { deny all; }", 403),
        ("internal;", 404),
    ];
    const KEPT: &str =
        "open_file_cache max=10; open_file_cache_valid 600s; open_file_cache_errors on;";
    let site = |kept: &str, rule: &str| {
        format!(
            "limit_req_zone $server_port zone=requests:32k rate=1r/m;
            server {{ listen 127.0.0.1:@PORT@; root @ROOT@; {kept} location / {{ {rule} }} }}"
        )
    };
    on_each_engine(|engine| {
        for kept in ["", KEPT] {
            let mut server = Setup::new(engine, &site(kept, "")).start();
            std::fs::write(server.folder.join("users"), "").unwrap();
            let mut client = server.connect();
            for (rule, status) in RULES {
                server.configure(&site(kept, ""));
                assert!(server.reload());
                // Often enough to be answered from memory, one by one and in a row.
                for _ in 0..4 {
                    assert_eq!(client.get("/a.txt").status, 200, "before {rule}");
                }
                client.send(get("/a.txt").repeat(20));
                for _ in 0..20 {
                    assert_eq!(client.response().status, 200, "before {rule}");
                }
                server.configure(&site(kept, rule));
                assert!(server.reload());
                client.send(get("/a.txt").repeat(2));
                client.response(); // one request a minute is let through
                assert_eq!(client.response().status, status, "{rule} {kept}");
            }
        }
    });
}

#[test]
fn a_download_begun_before_a_reload_ends_well() {
    on_each_engine(|engine| {
        let mut server = Setup::new(engine, SITE).start();
        let content = long_content();
        let file = server.file("long", &content);
        let mut client = server.connect();
        client.send(get("/sent/long"));
        let first = client.take(1000).unwrap();
        for _ in 0..3 {
            server.configure(&SITE.replace("sent", "moved"));
            assert!(server.reload());
        }
        std::fs::remove_file(file).unwrap();
        let head = first.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        let begun = 1000 - head;
        let rest = client.take(LONG - begun).expect("comes whole");
        assert!(
            first[head..] == content[..begun] && rest == content[begun..],
            "other bytes"
        );
        // Its connection follows the new configuration.
        assert_eq!(client.get("/sent/long").status, 404);
        assert_eq!(client.get("/a.txt").status, 200);
    });
}

#[test]
fn a_proxied_request_outlives_a_reload() {
    on_each_engine(|engine| {
        let (go_on, reloaded) = std::sync::mpsc::channel();
        let reloaded = std::sync::Mutex::new(reloaded);
        let upstream = upstream::start(move |mut stream, _| {
            use std::io::Write;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nbef");
            let _ = reloaded
                .lock()
                .unwrap()
                .recv_timeout(Duration::from_secs(60));
            let _ = stream.write_all(b"ore");
        });
        let proxying = format!(
            "server {{ listen 127.0.0.1:@PORT@; location / {{ proxy_pass http://127.0.0.1:{upstream}; proxy_buffering off; }} }}"
        );
        let mut server = Setup::new(engine, &proxying).start();
        let mut client = server.connect();
        client.send(get("/"));
        let head = client.take(20).expect("begins");
        server.configure("server { listen 127.0.0.1:@PORT@; return 200 after; }");
        assert!(server.reload());
        go_on.send(()).unwrap();
        client.put_back(&head);
        assert_eq!(client.response().body, b"before");
        assert_eq!(client.get("/").body, b"after");
    });
}

#[test]
fn a_listener_that_goes_answers_its_connections_once_more() {
    on_each_engine(|engine| {
        let rest = "server { listen 127.0.0.1:@PORT@; return 200 stays; }";
        let http = format!("{rest} server {{ listen 127.0.0.1:@PORT2@; return 200 goes; }}");
        let mut server = Setup::new(engine, &http).start();
        let mut kept = Client::connect(server.port2);
        assert!(!kept.get("/").closes());
        server.configure(rest);
        assert!(server.reload());
        let last = kept.get("/");
        assert_eq!(last.body, b"goes");
        assert!(last.closes());
        assert_eq!(kept.rest().1, End::Closed);
        let gone = ("127.0.0.1", server.port2);
        wait_until("nobody is accepted", || {
            std::net::TcpStream::connect(gone).is_err()
        });
        assert_eq!(server.connect().get("/").body, b"stays");
    });
}

#[test]
fn a_reload_that_is_refused_changes_nothing() {
    on_each_engine(|engine| {
        let mut server = Setup::new(engine, SITE).start();
        let mut client = server.connect();
        assert_eq!(client.get("/a.txt").status, 200);
        let worker = server.worker();
        for broken in [
            "server { listen 127.0.0.1:@PORT@; deny everybody; }",
            "server {",
            "server { listen 192.0.2.1:@PORT@; }",
        ] {
            server.configure(broken);
            assert!(!server.reload(), "{broken}");
            assert_eq!(client.get("/a.txt").status, 200, "{broken}");
            assert_eq!(server.connect().get("/a.txt").status, 200, "{broken}");
        }
        assert_eq!(server.worker(), worker);
    });
}

/// How long the queue of connections that wait at a port may become; `None` where this machine has
/// nothing that tells.
fn backlog(port: u16) -> Option<String> {
    let table = std::process::Command::new("ss")
        .args(["-Hltn", &format!("sport = :{port}")])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&table.stdout).into_owned();
    text.split_whitespace().nth(2).map(str::to_owned)
}

/// How many sockets listen at a port.
fn listening(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("is there");
    let (address, state) = (format!(":{port:04X}"), "0A");
    // The kernel may show a socket twice; its inode tells.
    let inode = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let ours = columns.get(1)?.ends_with(&address) && *columns.get(3)? == state;
        ours.then(|| columns.get(9).map(|inode| inode.to_string()))?
    };
    let inodes: BTreeSet<String> = table.lines().filter_map(inode).collect();
    inodes.len()
}

#[test]
fn new_listen_options_reach_the_open_socket() {
    on_each_engine(|engine| {
        let mut server = Setup::new(engine, SITE).start();
        let Some(length) = backlog(server.port) else {
            return println!("there is no ss here");
        };
        assert_eq!(length, "511");
        server.configure(&SITE.replace("@PORT@;", "@PORT@ backlog=77 deferred rcvbuf=32k;"));
        assert!(server.reload());
        wait_until("the queue is shorter", || {
            backlog(server.port).as_deref() == Some("77")
        });
        assert_eq!(server.connect().get("/a.txt").status, 200);
        server.configure(SITE);
        assert!(server.reload());
        wait_until("the queue is longer", || {
            backlog(server.port).as_deref() == Some("511")
        });
        assert!(!server.error_log().contains("[alert]"));
    });
}

#[test]
fn sockets_of_threads_that_go_are_adopted() {
    on_each_engine(|engine| {
        let spread = SITE.replace("@PORT@;", "@PORT@ reuseport;");
        let mut server = Setup::new(engine, &spread)
            .main("worker_processes 4;")
            .start();
        assert_eq!(listening(server.port), 4);
        let (stop, answered) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let port = server.port;
            for _ in 0..4 {
                let (stop, answered) = (&stop, &answered);
                scope.spawn(move || ask_on(port, false, stop, answered));
            }
            for threads in [1, 3, 2] {
                server.set_main(&format!("worker_processes {threads};"));
                server.configure(&spread);
                let before = answered.load(Ordering::Relaxed);
                let reloaded = server.reload();
                wait_until("requests go on", || {
                    answered.load(Ordering::Relaxed) > before + 100
                });
                if !reloaded {
                    stop.store(true, Ordering::Relaxed);
                    panic!("reload failed");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(listening(server.port), 4, "no queue is closed");
        // Without `reuseport` and with it again: the first socket is shared from then on.
        server.configure(SITE);
        assert!(server.reload());
        assert_eq!(server.connect().get("/a.txt").status, 200);
    });
}

#[test]
fn a_shared_socket_becomes_one_for_each_thread() {
    on_each_engine(|engine| {
        let mut server = Setup::new(engine, SITE).main("worker_processes 2;").start();
        assert_eq!(listening(server.port), 1);
        server.configure(&SITE.replace("@PORT@;", "@PORT@ reuseport;"));
        assert!(server.reload());
        assert_eq!(listening(server.port), 2);
        for _ in 0..50 {
            assert_eq!(server.connect().get("/a.txt").status, 200);
        }
    });
}

/// The threads of a process, without those that come and go: of io_uring, and those that read the
/// disk.
fn lasting_threads(process: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    let names = tasks.flatten().filter_map(name);
    names
        .filter(|name| !name.starts_with("blocking") && !name.starts_with("iou-"))
        .count()
}

#[test]
fn a_shutdown_timeout_ends_what_was_open_before_a_reload() {
    on_each_engine(|engine| {
        // So long that nothing here waits for it.
        let setup = Setup::new(engine, SITE).main("worker_shutdown_timeout 1h;");
        let server = setup.start();
        let mut idle = server.connect();
        assert_eq!(idle.get("/a.txt").status, 200);
        let mut begun = server.connect();
        begun.send("GET /a.txt HTTP/1.1\r\n");
        begun.wait_until_read();
        let worker = server.worker().expect("runs");
        let threads = lasting_threads(worker);
        for _ in 0..5 {
            assert!(server.reload());
        }
        assert_eq!(idle.rest(), (Vec::new(), End::Closed));
        let last = begun.send("Host: localhost\r\n\r\n").response();
        assert!(last.status == 200 && last.closes(), "{last:?}");
        let mut later = server.connect();
        for _ in 0..2 {
            let answer = later.get("/a.txt");
            assert!(answer.status == 200 && !answer.closes(), "{answer:?}");
        }
        wait_until("no thread waits for an hour", || {
            lasting_threads(worker) <= threads
        });
    });
}

#[test]
fn a_protected_idle_connection_outlives_the_order_to_quit() {
    on_each_engine(|engine| {
        let http = SITE.replace(
            "root",
            "location /kept { keepalive_min_timeout 60s; return 200 kept; } root",
        );
        let mut server = Setup::new(engine, &http).start();
        let (mut plain, mut kept) = (server.connect(), server.connect());
        assert_eq!(plain.get("/a.txt").status, 200);
        assert_eq!(kept.get("/kept").status, 200);
        server.signal("QUIT");
        assert_eq!(plain.rest().1, End::Closed);
        let last = kept.get("/kept");
        assert_eq!(last.status, 200, "it was not idle yet");
        assert!(last.closes());
        assert_eq!(kept.rest().1, End::Closed);
        assert!(server.wait(Duration::from_secs(60)).is_some());
    });
}
