//! Several addresses on one listener.

use crate::client::{Client, get};
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
