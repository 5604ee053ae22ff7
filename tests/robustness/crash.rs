//! A worker process that ends by a fault or for want of memory, under load: what is lost is what
//! was under way, and no connection is refused.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::client::{get, wait_until};
use crate::server::{Server, Setup, on_each_engine, signal};

/// Clients that ask without a pause, a connection for each request.
const CLIENTS: u64 = 4;
const CRASHES: u64 = 5;
/// Answers between two crashes.
const BETWEEN: u64 = 100;
/// What a worker process may have where memory is limited, in megabytes; it begins with some 200.
const MEMORY: u32 = 400;

/// What the clients have seen.
#[derive(Default)]
struct Seen {
    answered: AtomicU64,
    lost: AtomicU64,
    refused: AtomicU64,
    is_over: AtomicBool,
}

/// Ends the clients when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Seen {
    fn ask(&self, port: u16) {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let request = get("/a.txt").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        let mut answer = Vec::new();
        let sent = stream.write_all(request.as_bytes());
        let is_whole = sent.and_then(|()| stream.read_to_end(&mut answer)).is_ok()
            && answer.starts_with(b"HTTP/1.1 200 ");
        let seen = if is_whole { &self.answered } else { &self.lost };
        seen.fetch_add(1, Ordering::Relaxed);
    }

    /// Clients ask while `happens` runs, which is given this.
    fn meanwhile(&self, port: u16, happens: impl FnOnce(&Seen)) {
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    while !self.is_over.load(Ordering::Relaxed) {
                        self.ask(port);
                    }
                });
            }
            // The clients end also where what happens fails.
            let _end = End(&self.is_over);
            happens(self);
        });
    }

    fn wait_for_more(&self) {
        let before = self.answered.load(Ordering::Relaxed);
        wait_until("the clients are answered", || {
            self.answered.load(Ordering::Relaxed) >= before + BETWEEN
        });
    }

    /// A client has at most one request under way when a process ends.
    fn check(&self, crashes: u64) {
        let lost = self.lost.load(Ordering::Relaxed);
        assert_eq!(self.refused.load(Ordering::Relaxed), 0);
        assert!(
            lost <= crashes * CLIENTS,
            "{lost} lost by {crashes} crashes"
        );
    }
}

fn replaced(server: &Server, worker: u32) -> bool {
    server.worker().is_some_and(|other| other != worker)
}

#[test]
fn a_fault_loses_what_is_under_way_and_no_more() {
    on_each_engine(|engine| {
        let site = "server { listen 127.0.0.1:@PORT@; root @ROOT@; }";
        let server = Setup::new(engine, site).start();
        let seen = Seen::default();
        seen.meanwhile(server.port, |seen| {
            for _ in 0..CRASHES {
                seen.wait_for_more();
                let worker = server.worker().expect("runs");
                signal(worker, "SEGV");
                wait_until("another worker is there", || replaced(&server, worker));
            }
            seen.wait_for_more();
        });
        seen.check(CRASHES);
    });
}

/// A body fills the memory that a worker process may have; the next one has as much.
#[test]
fn a_limit_of_memory_ends_one_process_and_no_more() {
    on_each_engine(|engine| {
        let site = "client_max_body_size 0; client_body_buffer_size 512m;
            server { listen 127.0.0.1:@PORT@; root @ROOT@;
                location /put { proxy_pass http://127.0.0.1:1; } }";
        let server = Setup::new(engine, site).memory(MEMORY).start();
        let seen = Seen::default();
        seen.meanwhile(server.port, |seen| {
            seen.wait_for_more();
            let worker = server.worker().expect("runs");
            let mut upload = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            let head = "POST /put HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000000\r\n\r\n";
            upload.write_all(head.as_bytes()).unwrap();
            let piece = vec![b'x'; 1 << 20];
            // The process ends before it has taken all of the body.
            let pieces = (0..MEMORY).take_while(|_| upload.write_all(&piece).is_ok());
            assert!(pieces.count() < MEMORY as usize, "{engine}: all was taken");
            wait_until("another worker is there", || replaced(&server, worker));
            seen.wait_for_more();
        });
        seen.check(1);
    });
}
