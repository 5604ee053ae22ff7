//! Upstreams that err, clients that leave, and tunnels.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use crate::client::{End, get, wait_until};
use crate::server::{Server, Setup, on_each_engine};
use crate::upstream;

const UPGRADE: &str =
    "GET /upgraded HTTP/1.1\r\nHost: localhost\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n";

/// A server before an upstream.
fn proxy(engine: &str, upstream: u16) -> Server {
    let http = format!(
        "proxy_read_timeout 20s; proxy_http_version 1.1;
        server {{
            listen 127.0.0.1:@PORT@;
            location / {{ proxy_pass http://127.0.0.1:{upstream}; }}
            location /streamed {{ proxy_pass http://127.0.0.1:{upstream}; proxy_buffering off; proxy_request_buffering off; }}
            location /impatient {{ proxy_pass http://127.0.0.1:{upstream}; proxy_read_timeout 200ms; }}
            location /upgraded {{
                proxy_pass http://127.0.0.1:{upstream};
                proxy_set_header Upgrade $http_upgrade;
                proxy_set_header Connection upgrade;
            }}
            location /own {{ return 200 own; }}
        }}"
    );
    Setup::new(engine, &http).start()
}

/// Tells when the other side has ended.
fn wait_for_end(mut stream: &TcpStream) -> bool {
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            // A stop and go of this process interrupts a read that has a time limit.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn a_client_that_leaves_ends_its_upstream() {
    on_each_engine(|engine| {
        let (asked, came) = mpsc::channel();
        let (ended, heard) = mpsc::channel();
        let upstream = upstream::start(move |mut stream, head| {
            let _ = asked.send(());
            if upstream::path(&head).ends_with("body") {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc");
            }
            let _ = ended.send(wait_for_end(&stream));
        });
        let server = proxy(engine, upstream);
        for (path, status) in [
            ("/head", 499),
            ("/body", 200),
            ("/streamed/head", 499),
            ("/streamed/body", 200),
        ] {
            let mut left = Vec::new();
            for closes in [true, false] {
                let mut client = server.connect();
                client.send(get(path));
                came.recv_timeout(Duration::from_secs(60))
                    .expect("is asked");
                if path.ends_with("body") {
                    assert!(client.take(10).is_ok());
                }
                // Whoever has only stopped sending counts as gone too, as with nginx.
                if closes {
                    drop(client);
                } else {
                    client.stop_sending();
                    left.push(client);
                }
                let seen = heard.recv_timeout(Duration::from_secs(60));
                assert_eq!(seen, Ok(true), "{path}, closes: {closes}");
            }
            let line = format!("\"GET {path} HTTP/1.1\" {status} ");
            wait_until(&line, || server.access_log().matches(&line).count() == 2);
        }
        assert_eq!(server.connect().get("/own").status, 200);
    });
}

#[test]
fn an_answer_before_the_body_has_come_is_heard() {
    on_each_engine(|engine| {
        let upstream = upstream::start(|mut stream, _| {
            let _ = stream.write_all(b"HTTP/1.1 413 Too Much\r\nContent-Length: 3\r\n\r\nbig");
            wait_for_end(&stream);
        });
        let server = proxy(engine, upstream);
        let mut client = server.connect();
        client.send(
            "POST /streamed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nbegun",
        );
        let answer = client.response();
        assert_eq!((answer.status, &*answer.body), (413, &b"big"[..]));
        // The whole body stands ready here, and the upstream takes none of it.
        let mut client = server.connect();
        client.send("POST /stored HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n");
        client.send(vec![b'x'; 900_000]);
        assert_eq!(client.response().status, 413);
    });
}

/// Neither an interim answer nor a part of a head ends the body, which the upstream waits for.
#[test]
fn what_comes_before_the_answer_does_not_stop_the_body() {
    const LENGTH: usize = 1_000_000;
    on_each_engine(|engine| {
        let upstream = upstream::start(|mut stream, _| {
            let begun =
                b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-";
            let _ = stream.write_all(begun);
            if stream.read_exact(&mut vec![0; LENGTH]).is_ok() {
                let _ = stream.write_all(b"Length: 5\r\n\r\nwhole");
                wait_for_end(&stream);
            }
        });
        let http = format!(
            "proxy_read_timeout 20s; early_hints 1; client_max_body_size 0;
            server {{
                listen 127.0.0.1:@PORT@;
                location /streamed {{ proxy_pass http://127.0.0.1:{upstream}; proxy_request_buffering off; }}
                location /stored {{ proxy_pass http://127.0.0.1:{upstream}; }}
            }}"
        );
        let server = Setup::new(engine, &http).start();
        for path in ["/streamed", "/stored"] {
            let mut client = server.connect();
            client.send(format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LENGTH}\r\n\r\n"
            ));
            client.send(vec![b'x'; LENGTH / 2]);
            if path == "/streamed" {
                assert_eq!(client.response().status, 103);
            }
            client.send(vec![b'x'; LENGTH / 2]);
            if path == "/stored" {
                assert_eq!(client.response().status, 103);
            }
            let answer = client.response();
            assert_eq!(
                (answer.status, &*answer.body),
                (200, &b"whole"[..]),
                "{path}"
            );
        }
    });
}

/// What one upstream has had of a body that is passed on as it comes is gone: no other is told of
/// it, which would take what the next client asks for as the missing part.
#[test]
fn a_body_that_one_upstream_has_had_is_not_announced_to_another() {
    on_each_engine(|engine| {
        let upstream = upstream::start(|mut stream, head| {
            if !head.contains("\r\nX-Second: ") {
                // Breaks off in the middle of the body.
                let _ = stream.read_exact(&mut [0; 5]);
                return;
            }
            let lower = head.to_ascii_lowercase();
            let announced = lower
                .lines()
                .filter(|line| {
                    line.starts_with("content-length: ") || line.starts_with("transfer-encoding: ")
                })
                .collect::<Vec<_>>()
                .join(", ");
            let length = announced.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{announced}");
            let _ = stream.write_all(answer.as_bytes());
            wait_for_end(&stream);
        });
        let http = format!(
            "proxy_http_version 1.1; proxy_request_buffering off;
            server {{
                listen 127.0.0.1:@PORT@;
                location / {{ proxy_pass http://127.0.0.1:{upstream}; error_page 502 = @second; }}
                location /page {{ proxy_pass http://127.0.0.1:{upstream}; error_page 502 =200 /second; }}
                location /limited {{ client_max_body_size 4; proxy_request_buffering on; proxy_pass http://127.0.0.1:{upstream}; error_page 413 = @second; }}
                location @second {{ proxy_set_header X-Second 1; proxy_pass http://127.0.0.1:{upstream}; }}
                location = /second {{ proxy_set_header X-Second 1; proxy_pass http://127.0.0.1:{upstream}; }}
            }}"
        );
        let server = Setup::new(engine, &http).start();
        // A request that goes on with its own method is not done without its body; a page is asked
        // for by GET.
        for (path, status) in [("/", 502), ("/page", 200)] {
            for (head, rest) in [
                ("Content-Length: 10\r\n\r\nbegun", "ended"),
                (
                    "Transfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n",
                    "5\r\nended\r\n0\r\n\r\n",
                ),
            ] {
                let mut client = server.connect();
                client.send(format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{head}"));
                let answer = client.response();
                let told = String::from_utf8_lossy(&answer.body).into_owned();
                assert_eq!(answer.status, status, "{path} {head}");
                let told = if status == 200 { told } else { String::new() };
                assert!(
                    told.is_empty() || told == "content-length: 0",
                    "{path} {head}: {told}"
                );
                client.send(rest);
            }
        }
        // One that is refused is as empty as before for the handler of the page, also where some of
        // it had been read.
        let mut client = server.connect();
        client.send("POST /limited HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n");
        std::thread::sleep(Duration::from_millis(50));
        client.send("8\r\ncdefghij\r\n0\r\n\r\n");
        let answer = client.response();
        assert_eq!(
            (answer.status, &*answer.body),
            (200, &b"content-length: 0"[..])
        );
    });
}

#[test]
fn informational_heads_split_anywhere_leave_the_body_whole() {
    const ANSWER: &str = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
                          HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nabcdefghijklmnopqrst";
    on_each_engine(|engine| {
        let upstream = upstream::start(|mut stream, head| {
            let at = upstream::path(&head)
                .trim_start_matches('/')
                .parse()
                .unwrap();
            let (first, second) = ANSWER.split_at(at);
            let _ = stream.write_all(first.as_bytes());
            std::thread::sleep(Duration::from_millis(3));
            let _ = stream.write_all(second.as_bytes());
        });
        let server = proxy(engine, upstream);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let server = &server;
                scope.spawn(move || {
                    let mut client = server.connect();
                    for at in (1..ANSWER.len()).skip(thread).step_by(4) {
                        assert_eq!(
                            client.get(&format!("/{at}")).body,
                            b"abcdefghijklmnopqrst",
                            "split at {at}"
                        );
                    }
                });
            }
        });
    });
}

#[test]
fn bad_answers_become_502_and_broken_bodies_a_broken_connection() {
    const HEADS: [&str; 8] = [
        "",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nBad Name: x\r\n\r\nok",
        "HTTP/1.1 103 Early Hints\r\n\r\n",
    ];
    const BODIES: [&str; 3] = [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nzz\r\n",
    ];
    on_each_engine(|engine| {
        let upstream = upstream::start(|mut stream, head| {
            let number: usize = upstream::path(&head)
                .trim_start_matches('/')
                .parse()
                .unwrap();
            let answer = HEADS.iter().chain(&BODIES).nth(number).unwrap();
            let _ = stream.write_all(answer.as_bytes());
        });
        let server = proxy(engine, upstream);
        let mut client = server.connect();
        for (number, head) in HEADS.iter().enumerate() {
            assert_eq!(client.get(&format!("/{number}")).status, 502, "{head:?}");
        }
        for (number, body) in BODIES.iter().enumerate() {
            let mut client = server.connect();
            client.send(get(&format!("/{}", HEADS.len() + number)));
            let (bytes, end) = client.rest();
            assert!(
                !String::from_utf8_lossy(&bytes).ends_with("0\r\n\r\n"),
                "{body:?}"
            );
            assert_ne!(end, End::Open, "{body:?}");
        }
    });
}

#[test]
fn a_body_longer_than_announced_is_cut() {
    on_each_engine(|engine| {
        let upstream = upstream::start(|mut stream, _| {
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n\r\nevil",
            );
        });
        let server = proxy(engine, upstream);
        let mut client = server.connect();
        assert_eq!(client.get("/x").body, b"abc");
        assert_eq!(client.get("/own").body, b"own");
    });
}

#[test]
fn an_upstream_that_says_nothing_is_given_up() {
    on_each_engine(|engine| {
        let upstream = upstream::start(|stream, _| {
            wait_for_end(&stream);
        });
        let server = proxy(engine, upstream);
        assert_eq!(server.connect().get("/impatient").status, 504);
    });
}

const SWITCHED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";

#[test]
fn a_tunnel_carries_bytes_and_ends_with_either_side() {
    on_each_engine(|engine| {
        let (ended, heard) = mpsc::channel();
        let upstream = upstream::start(move |mut stream, _| {
            let _ = stream.write_all(SWITCHED);
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                let _ = stream.write_all(&buffer[..length]);
                if buffer[..length].ends_with(b"bye") {
                    return;
                }
            }
            let _ = ended.send(());
        });
        let server = proxy(engine, upstream);
        let open = || {
            let mut client = server.connect();
            // What comes with the head belongs to the tunnel.
            client.send([UPGRADE, "early"].concat());
            assert_eq!(client.response().status, 101);
            assert_eq!(client.take(5).unwrap(), b"early");
            client
        };
        let mut client = open();
        for round in 0..50_u8 {
            let message = vec![round; 1000];
            assert_eq!(client.send(&message).take(1000).unwrap(), message);
        }
        client.send("bye");
        assert_eq!(client.rest(), (b"bye".to_vec(), End::Closed));

        let client = open();
        client.stop_sending();
        assert!(
            heard.recv_timeout(Duration::from_secs(60)).is_ok(),
            "half-closed by the client"
        );
    });
}

/// More than all buffers on the way hold goes both ways, and nobody reads before he has sent: each
/// direction must go on without the other.
#[test]
fn the_two_ways_of_a_tunnel_do_not_wait_for_each_other() {
    const LENGTH: usize = 24 << 20;
    on_each_engine(|engine| {
        let (received, heard) = mpsc::channel();
        let upstream = upstream::start(move |mut stream, _| {
            let _ = stream.write_all(SWITCHED);
            let mut reading = stream.try_clone().unwrap();
            let received = received.clone();
            std::thread::spawn(move || {
                let mut left = LENGTH;
                let mut buffer = vec![0; 65536];
                while left > 0 {
                    match reading.read(&mut buffer) {
                        Ok(length @ 1..) => left -= length,
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        _ => return,
                    }
                }
                let _ = received.send(());
            });
            let _ = stream.write_all(&vec![b'u'; LENGTH]);
            wait_for_end(&stream);
        });
        let server = proxy(engine, upstream);
        let mut client = server.connect();
        client.send(UPGRADE);
        assert_eq!(client.response().status, 101);
        // Reads nothing before everything is sent.
        client.send(vec![b'c'; LENGTH]);
        assert!(
            heard.recv_timeout(Duration::from_secs(60)).is_ok(),
            "the upstream gets all of it"
        );
        assert_eq!(client.take(LENGTH).map(|bytes| bytes.len()), Ok(LENGTH));
    });
}

#[test]
fn a_flood_of_informational_responses_ends() {
    on_each_engine(|engine| {
        let upstream = upstream::start(|mut stream, head| {
            let count = if upstream::path(&head) == "/few" {
                50
            } else {
                usize::MAX
            };
            for _ in 0..count {
                if stream
                    .write_all(b"HTTP/1.1 102 Processing\r\n\r\n")
                    .is_err()
                {
                    return;
                }
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nend");
        });
        let server = proxy(engine, upstream);
        assert_eq!(server.connect().get("/few").body, b"end");
        assert_eq!(server.connect().get("/flood").status, 502);
        wait_until("it is logged", || {
            server
                .error_log()
                .contains("upstream sent too many informational responses")
        });
    });
}

/// Heads of which nothing may reach the client: each is answered with 502, and the log says why.
#[test]
fn broken_heads_of_upstreams() {
    const NO_HEADER: &str = "upstream sent no valid HTTP/1.0 header";
    const HEADS: [(&str, &str); 20] = [
        ("HTTP/1.1 20 OK\r\n", NO_HEADER),
        ("HTTP/1.1 2000 OK\r\n", NO_HEADER),
        ("HTTP/1.1 200OK\r\n", NO_HEADER),
        ("HTTP/1.1 200\tOK\r\n", NO_HEADER),
        ("HTTP/1.1\t200 OK\r\n", NO_HEADER),
        ("HTTP/1.1 abc OK\r\n", NO_HEADER),
        ("HTTP/1 200 OK\r\n", NO_HEADER),
        ("HTTP/2 200 OK\r\n", NO_HEADER),
        ("HTTP/0.9 200 OK\r\n", NO_HEADER),
        ("HTTP/ 200 OK\r\n", NO_HEADER),
        (
            "HTTP/1.1 000 No\r\n",
            "upstream sent invalid status \"000 No\"",
        ),
        (
            "HTTP/1.1 099 No\r\n",
            "upstream sent invalid status \"099 No\"",
        ),
        (
            "HTTP/1.1 600 No\r\n",
            "upstream sent invalid status \"600 No\"",
        ),
        (
            "HTTP/1.1 999 No\r\n",
            "upstream sent invalid status \"999 No\"",
        ),
        ("HTTP/1.1 199 No\r\n", NO_HEADER),
        ("HTTP/1.1 100 Continue\r\nContent-Length: 4\r\n", NO_HEADER),
        (
            "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 700 No\r\n",
            "upstream sent invalid status \"700 No\"",
        ),
        (
            "HTTP/1.1 101 Go\r\nUpgrade: echo\r\n",
            "upstream sent unexpected 101 response",
        ),
        (
            "HTTP/1.1 101 Go\r\nUpgrade: echo\r\nContent-Length: 4\r\n",
            "upstream sent 101 response with \"Content-Length\" header",
        ),
        (
            "HTTP/1.1 101 Go\r\nUpgrade: echo\r\nTransfer-Encoding: chunked\r\n",
            "upstream sent 101 response with \"Transfer-Encoding\" header",
        ),
    ];
    on_each_engine(|engine| {
        let upstream = upstream::start(|mut stream, head| {
            let number = upstream::path(&head).rsplit('/').next().unwrap_or_default();
            let (head, _) = HEADS[number.parse::<usize>().unwrap_or_default()];
            let _ = stream.write_all(format!("{head}Name: value\r\n\r\nbody").as_bytes());
        });
        let server = proxy(engine, upstream);
        for (number, (head, text)) in HEADS.iter().enumerate() {
            for place in ["", "streamed/"] {
                let mut client = server.connect();
                let response = client.get(&format!("/{place}{number}"));
                assert_eq!(response.status, 502, "{head:?}");
                let body = String::from_utf8_lossy(&response.body);
                assert!(
                    !response.head.contains("value"),
                    "{head:?}: {}",
                    response.head
                );
                assert!(!body.contains("value"), "{head:?}: {body}");
                // The connection is as good as before.
                assert_eq!(client.get("/own").body, b"own");
            }
            let logged = format!("{text} while reading response header from upstream");
            wait_until("the log names the cause", || {
                server.error_log().contains(&logged)
            });
        }
    });
}

#[test]
fn only_an_upgrade_that_was_asked_for_is_one() {
    on_each_engine(|engine| {
        let upstream = upstream::start(|mut stream, head| {
            let length = if head.contains("/upgraded/framed") {
                "Content-Length: 0\r\n"
            } else {
                ""
            };
            let answer = format!("HTTP/1.1 101 Go\r\nUpgrade: echo\r\n{length}\r\nthrough");
            let _ = stream.write_all(answer.as_bytes());
        });
        let server = proxy(engine, upstream);
        for (request, status) in [
            (UPGRADE.to_owned(), 101),
            // Its length says that nothing follows.
            (UPGRADE.replace("/upgraded", "/upgraded/framed"), 502),
            // The client has not asked, or the upstream has not been asked.
            (get("/upgraded"), 502),
            (UPGRADE.replace("/upgraded", "/"), 502),
        ] {
            let mut client = server.connect();
            let response = client.send(&request).response();
            assert_eq!(response.status, status, "{request}");
            match status {
                101 => assert_eq!(client.take(7).unwrap(), b"through"),
                _ => assert_eq!(client.get("/own").body, b"own"),
            }
        }
    });
}

#[test]
fn several_informational_responses_come_before_an_answer() {
    on_each_engine(|engine| {
        let upstream = upstream::start(|mut stream, _| {
            let informational = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 199 Soon\r\n\r\n";
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
            let _ = stream.write_all([informational, answer].concat().as_bytes());
        });
        let response = proxy(engine, upstream).connect().get("/");
        assert_eq!((response.status, &response.body[..]), (200, &b"body"[..]));
    });
}
