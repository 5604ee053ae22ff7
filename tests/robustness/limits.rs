//! Limits: too many open files, too many connections.

use std::time::{Duration, Instant};

use crate::client::{Client, wait_until};
use crate::server::{Setup, on_each_engine};

const SITE: &str =
    "server { listen 127.0.0.1:@PORT@; root @ROOT@; location /return { return 200 returned; } }";

#[test]
fn without_descriptors_it_waits_and_goes_on() {
    on_each_engine(|engine| {
        let mut server = Setup::new(engine, SITE)
            .main("worker_processes 1;")
            .open_files(64)
            .start();
        let mut clients: Vec<Client> = (0..80).map(|_| server.connect()).collect();
        wait_until("the limit is met", || {
            server.error_log().contains("(24: Too many open files)")
        });
        // Those it has are served; a file that cannot be opened is an error and no more.
        for client in &mut clients[..10] {
            assert_eq!(client.get("/return").status, 200);
        }
        assert!(matches!(clients[10].get("/a.txt").status, 200 | 500));
        let worker = server.worker();
        server.configure(&SITE.replace("returned", "reloaded"));
        assert!(!server.reload(), "a reload needs descriptors");
        assert_eq!(clients[0].get("/return").body, b"returned");

        let mut last = clients.pop().unwrap();
        drop(clients);
        assert_eq!(
            last.get("/a.txt").status,
            200,
            "it is accepted when there is room"
        );
        assert!(server.reload());
        assert_eq!(server.connect().get("/return").body, b"reloaded");
        assert_eq!(server.worker(), worker);
    });
}

#[test]
fn silent_and_idle_connections_make_room_for_others() {
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE)
            .main("worker_processes 1;")
            .events("worker_connections 32;")
            .start();
        let silent: Vec<Client> = (0..40).map(|_| server.connect()).collect();
        assert_eq!(server.connect().get("/a.txt").status, 200);
        drop(silent);
        let mut kept = Vec::new();
        for _ in 0..80 {
            let mut client = server.connect();
            assert_eq!(client.get("/a.txt").status, 200);
            kept.push(client);
        }
        let text = "32 worker_connections are not enough";
        wait_until("it is told", || server.error_log().contains(text));
    });
}

/// As with nginx; each would wait for minutes.
#[test]
fn connections_that_linger_make_room_for_others() {
    on_each_engine(|engine| {
        let lingering = "lingering_close always; lingering_time 300s; lingering_timeout 300s; root";
        let server = Setup::new(engine, &SITE.replace("root", lingering))
            .main("worker_processes 1;")
            .events("worker_connections 32;")
            .start();
        let mut answered = Vec::new();
        for _ in 0..40 {
            let mut client = server.connect();
            client.send("GET /return HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            assert_eq!(client.response().body, b"returned");
            answered.push(client);
        }
    });
}

#[test]
fn many_connections_come_and_go() {
    const COUNT: usize = 1500;
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE)
            .events(&format!("worker_connections {};", COUNT + 100))
            .start();
        let descriptors = || {
            let worker = server.worker().expect("runs");
            std::fs::read_dir(format!("/proc/{worker}/fd")).map_or(0, Iterator::count)
        };
        assert_eq!(server.connect().get("/a.txt").status, 200);
        let before = descriptors();
        let mut clients: Vec<Client> = (0..COUNT).map(|_| server.connect()).collect();
        for client in clients.iter_mut().step_by(3) {
            assert_eq!(client.get("/a.txt").status, 200);
        }
        for client in clients.iter_mut().step_by(5) {
            client.send("GET /a.txt HTTP/1.1\r\nHost: loc");
        }
        drop(clients);
        wait_until("every descriptor is given back", || {
            descriptors() <= before + 1
        });
        assert_eq!(server.connect().get("/a.txt").status, 200);
    });
}

#[test]
fn slow_heads_are_given_up() {
    on_each_engine(|engine| {
        let http = SITE.replace("root", "client_header_timeout 300ms; root");
        let server = Setup::new(engine, &http).start();
        let mut silent = server.connect();
        let mut slow = server.connect();
        for byte in "GET /a.txt HTTP/1.1\r\n".bytes() {
            slow.send([byte]);
            std::thread::sleep(Duration::from_millis(30));
        }
        assert_eq!(slow.rest().0, b"");
        assert_eq!(silent.rest().0, b"");
        wait_until("it is told", || {
            server.error_log().contains("client timed out")
        });
    });
}

#[test]
fn without_descriptors_for_long_waiting_clients_are_told() {
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE)
            .main("worker_processes 1;")
            .open_files(64)
            .start();
        let begin = Instant::now();
        // Connections in the middle of a head are busy: nobody can take their descriptors away.
        let mut busy: Vec<Client> = (0..80).map(|_| server.connect()).collect();
        for client in &mut busy {
            client.send("GET /return HTTP/1.1\r\nHost: loc");
        }
        let mut waiting = server.connect();
        waiting.send("GET /return HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let told = waiting.response();
        assert_eq!(told.status, 503);
        assert!(told.closes());
        let begun = "accept4() failed (24: Too many open files)";
        wait_until("it is logged", || {
            server.error_log().contains("clients turned away")
        });
        let lines = server.error_log().matches(begun).count();
        let seconds = begin.elapsed().as_secs();
        assert!(lines as u64 <= seconds + 2, "{lines} lines in {seconds} s");
        busy[0].send("alhost\r\n\r\n");
        assert_eq!(busy[0].response().status, 200);
        drop(busy);
        assert_eq!(server.connect().get("/return").status, 200);
    });
}
