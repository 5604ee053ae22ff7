//! Files that change, shrink or cannot be read while they are served.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::client::{Client, End, wait_until};
use crate::server::{Setup, is_root, on_each_engine};

/// Longer than all buffers of a connection, so that its sending waits for the reader.
pub(crate) const LONG: usize = 24 << 20;

const SITE: &str = "server {
    listen 127.0.0.1:@PORT@; root @ROOT@;
    location /copied/ { alias @ROOT@/; sendfile off; }
    location /sent/ { alias @ROOT@/; sendfile on; }
    location /return { return 200 returned; }
}";

pub(crate) fn long_content() -> Vec<u8> {
    (0..LONG).map(|at| (at / 7) as u8).collect()
}

/// Asks for a file and reads the head and a little more, so that its sending is under way.
fn begin(client: &mut Client, path: &str) -> usize {
    client.send(crate::client::get(path));
    let first = client.take(1000).expect("begins");
    let end = first
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .map_or(1000, |at| at + 4);
    std::thread::sleep(Duration::from_millis(50));
    1000 - end
}

/// The end of a response lies in the connection's queue when the next request is awaited: what
/// ends that wait must not cost it.
#[test]
fn a_slow_reader_gets_everything() {
    on_each_engine(|engine| {
        let impatient = SITE.replace("listen", "keepalive_timeout 100ms; listen");
        let server = Setup::new(engine, &impatient).start();
        let content = long_content();
        server.file("long", &content);
        for (path, stops) in [
            ("/sent/long", true),
            ("/sent/long", false),
            ("/copied/long", true),
            ("/copied/long", false),
        ] {
            let mut client = server.connect();
            let begun = begin(&mut client, path);
            if stops {
                client.stop_sending();
            }
            // All but the last buffers, and then nothing for longer than the server waits.
            let most = client.take(LONG - begun - 3_000_000).expect("most of it");
            std::thread::sleep(Duration::from_millis(500));
            let rest = client.take(3_000_000);
            assert!(
                rest.is_ok_and(|rest| content.ends_with(&rest)),
                "{path}, stops: {stops}"
            );
            assert_eq!(client.rest().1, End::Closed);
            drop(most);
        }
    });
}

#[test]
fn a_file_that_shrinks_ends_its_connection_and_nothing_else() {
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        for path in ["/sent/long", "/copied/long"] {
            let file = server.file("long", &long_content());
            let mut client = server.connect();
            let begun = begin(&mut client, path);
            fs::File::options()
                .write(true)
                .open(&file)
                .unwrap()
                .set_len(1000)
                .unwrap();
            let (rest, end) = client.rest();
            assert!(begun + rest.len() < LONG, "{path}: the file had shrunk");
            assert_ne!(
                end,
                End::Open,
                "{path}: the client must see that something is missing"
            );
            assert_eq!(server.connect().get("/return").status, 200);
        }
        wait_until("it is told", || server.error_log().contains("truncated"));
    });
}

#[test]
fn a_file_that_grows_is_sent_as_long_as_it_was() {
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        for path in ["/sent/long", "/copied/long"] {
            let content = long_content();
            let file = server.file("long", &content);
            let mut client = server.connect();
            let begun = begin(&mut client, path);
            use std::io::Write;
            let mut grown = fs::File::options().append(true).open(&file).unwrap();
            grown.write_all(b"more").unwrap();
            let rest = client.take(LONG - begun).expect("comes whole");
            assert!(rest == content[begun..], "{path}: other bytes");
            assert_eq!(client.get("/return").body, b"returned", "{path}");
        }
    });
}

#[test]
fn a_file_put_in_anothers_place_is_served_at_once() {
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        let mut client = server.connect();
        for round in 0..20 {
            let content = format!("round {round}");
            let fresh = server.file("fresh", content.as_bytes());
            fs::rename(fresh, server.folder.join("www/page")).unwrap();
            // Often enough to be kept in memory.
            for _ in 0..4 {
                assert_eq!(client.get("/page").body, content.as_bytes());
            }
        }
        fs::remove_file(server.folder.join("www/page")).unwrap();
        assert_eq!(client.get("/page").status, 404);
    });
}

#[test]
fn what_cannot_be_read_is_refused_and_told() {
    on_each_engine(|engine| {
        let server = Setup::new(engine, SITE).start();
        let secret = server.file("secret", b"secret");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o0)).unwrap();
        fs::create_dir(server.folder.join("www/empty")).unwrap();
        std::os::unix::fs::symlink("loop", server.folder.join("www/loop")).unwrap();
        let mut client = server.connect();
        if is_root() {
            // The worker is nobody; the user of these tests may own the file otherwise.
            assert_eq!(client.get("/secret").status, 403);
            wait_until("it is told", || {
                server.error_log().contains("(13: Permission denied)")
            });
        }
        assert_eq!(client.get("/empty/").status, 403);
        assert_eq!(client.get("/empty").status, 301);
        assert_eq!(client.get("/nothing/").status, 404);
        assert_eq!(client.get("/a.txt/").status, 404);
        assert!(client.get("/loop").status >= 400);
        assert_eq!(client.get(&format!("/{}", "n".repeat(300))).status, 404);
        for path in [
            "/../../etc/passwd",
            "/sent/../../etc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
            "/a%00b",
        ] {
            let mut client = server.connect();
            assert_eq!(client.get(path).status, 400, "{path}");
        }
        for path in ["/..%2f..%2fetc%2fpasswd", "/sent/..%2f..%2fserver.conf"] {
            let mut client = server.connect();
            let response = client.get(path);
            assert!(response.status >= 400, "{path}: {}", response.status);
        }
    });
}
