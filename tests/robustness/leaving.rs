//! Finished responses leave before their connection waits for anything, and together.

use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc;

use crate::client::get;
use crate::server::{Server, Setup, on_each_engine};
use crate::upstream;

/// A server before an upstream that answers `/held` when it is told to.
fn start(engine: &str, upstream: u16) -> Server {
    let http = format!(
        "limit_req_zone $server_name zone=limited:1m rate=1r/m;
        server {{
            listen 127.0.0.1:@PORT@;
            root @ROOT@;
            location = /fast {{ return 200 fast; }}
            location = /held {{ proxy_pass http://127.0.0.1:{upstream}; }}
            location = /limited {{ limit_req zone=limited burst=5; try_files /a.txt =404; }}
            location = /after {{ return 200 after; post_action /held; }}
            location = /mirrored {{ mirror /held; try_files /a.txt =404; }}
        }}"
    );
    Setup::new(engine, &http).start()
}

#[test]
fn before_the_rest_of_a_request_is_awaited() {
    on_each_engine(|engine| {
        let server = start(engine, 1);
        let upload = "POST /held HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n";
        for held in [
            "\r\n",
            "\n",
            "\r\n\r\n\r\n",
            "G",
            "GET /fast HTTP/1.1\r\n",
            upload,
        ] {
            let mut client = server.connect();
            for path in ["/fast", "/a.txt"] {
                client.send(get(path) + held);
                assert_eq!(client.response().status, 200);
                // Whatever it was, it is the beginning of something that goes on.
                if held.trim().is_empty() {
                    assert_eq!(client.get("/fast").body, b"fast");
                } else {
                    client = server.connect();
                }
            }
        }
    });
}

#[test]
fn before_an_upstream_is_awaited() {
    on_each_engine(|engine| {
        let (tell, told) = mpsc::channel::<()>();
        let told = Mutex::new(told);
        let upstream = upstream::start(move |mut stream, _| {
            let _ = told.lock().unwrap().recv();
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nheld");
        });
        let server = start(engine, upstream);
        let mut client = server.connect();
        client.send([get("/fast"), get("/a.txt"), get("/held"), get("/fast")].concat());
        // The upstream answers after these have been read, not before.
        assert_eq!(client.response().body, b"fast");
        assert_eq!(client.response().body, b"0123456789");
        tell.send(()).unwrap();
        assert_eq!(client.response().body, b"held");
        assert_eq!(client.response().body, b"fast");
        // Nor are requests awaited on which the response does not depend.
        for path in ["/after", "/mirrored"] {
            assert_eq!(client.send(get(path)).response().status, 200);
            tell.send(()).unwrap();
        }
    });
}

#[test]
fn before_a_timer_is_awaited() {
    on_each_engine(|engine| {
        let server = start(engine, 1);
        let mut client = server.connect();
        assert_eq!(client.get("/limited").body, b"0123456789");
        // The next one of its kind is held for a minute, the one after it for two.
        let mut other = server.connect();
        other.send(get("/limited")).wait_until_read();
        client.send([get("/fast"), get("/limited")].concat());
        assert_eq!(client.response().body, b"fast");
    });
}

#[test]
fn empty_lines_before_a_request_take_no_memory() {
    on_each_engine(|engine| {
        let server = start(engine, 1);
        let mut client = server.connect();
        client.send(get("/fast")).response();
        let before = server.resident();
        let lines = b"\r\n".repeat(512 * 1024);
        for _ in 0..16 {
            client.send(&lines);
        }
        assert_eq!(client.get("/fast").body, b"fast");
        let grown = server.resident().saturating_sub(before);
        assert!(grown < 4 << 20, "{grown} bytes for 16 MiB of empty lines");
    });
}
