//! The addresses of a connection: several on one listener, and that of a client which is gone.

use std::io::Write;
use std::net::TcpStream;

use rustix::net::sockopt::set_socket_linger;

use crate::client::{Client, get, wait_until};
use crate::server::{Setup, on_each_engine};

/// Same bytes, same listener, another address: what is kept of one request must not answer the
/// other.
#[test]
fn a_listener_of_all_addresses_keeps_their_servers_apart() {
    on_each_engine(|engine| {
        let http = "
            server { listen *:@PORT@; root @ROOT@/one; }
            server { listen 127.0.0.2:@PORT@; root @ROOT@/two; }";
        let server = Setup::new(engine, http).main("worker_processes 1;").start();
        server.file("one/f.txt", b"one");
        server.file("two/f.txt", b"two");
        let mut one = server.connect();
        let mut two = Client::connect_to(&format!("127.0.0.2:{}", server.port));
        for _ in 0..8 {
            assert_eq!(one.send(get("/f.txt")).response().body, b"one");
            assert_eq!(two.send(get("/f.txt")).response().body, b"two");
        }
    });
}

/// A client sends a request and resets the connection at once: its address is what the rules go by
/// all the same.
#[test]
fn a_reset_hides_no_address() {
    on_each_engine(|engine| {
        let http = "
            log_format addresses '$remote_addr $request_method $status';
            server {
                listen 127.0.0.1:@PORT@;
                set_real_ip_from unix:;
                access_log logs/access.log addresses;
                location / { deny 127.0.0.0/8; allow all; root @ROOT@; }
            }";
        let server = Setup::new(engine, http).main("worker_processes 1;").start();
        let request = "HEAD /a.txt HTTP/1.1\r\nHost: a\r\nX-Real-IP: 192.0.2.1\r\n\r\n";
        for _ in 0..50 {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            set_socket_linger(&stream, Some(std::time::Duration::ZERO)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
        }
        assert_eq!(server.connect().get("/a.txt").status, 403);
        wait_until("the last request is logged", || {
            server.access_log().contains(" GET ")
        });
        let log = server.access_log();
        for line in log.lines() {
            assert!(
                line.starts_with("127.0.0.1 ") && line.ends_with(" 403"),
                "{line}"
            );
        }
    });
}
