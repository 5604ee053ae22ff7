//! Connections to upstreams: which are kept and used again, and what becomes of requests that meet
//! one which has ended. On both engines; TIDEGATE_BINARY with nginx 1.31 checks the test itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use support::master::wait_for;
use support::name_server::NameServer;
use support::{PATIENCE, Server, engines, is_nginx, origin};

/// An upstream that numbers its connections from 1, and does what the path of a request says.
struct Upstream {
    port: u16,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    /// Connections that have ended.
    ended: AtomicUsize,
    /// Each request: the connection, method and path, length of the body.
    requests: Mutex<Vec<String>>,
}

impl Upstream {
    fn start() -> Upstream {
        Upstream::with_pause(Duration::ZERO)
    }

    /// One that pauses between head and body of each answer.
    fn with_pause(pause: Duration) -> Upstream {
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        let port = origin::listen(move |stream| {
            let number = shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
            let _ = serve(stream, number, pause, &shared);
            shared.ended.fetch_add(1, Ordering::SeqCst);
        });
        Upstream { port, seen }
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.requests.lock().unwrap())
    }

    fn wait_until_ended(&self, count: usize) {
        wait_for("the end of connections", || {
            self.seen.ended.load(Ordering::SeqCst) == count
        });
    }
}

/// Reads requests of one connection and answers them, as their paths say.
fn serve(
    mut stream: TcpStream,
    number: usize,
    pause: Duration,
    seen: &Seen,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut unread = Vec::new();
    let mut count = 0;
    loop {
        let Some((head, body)) = read_request(&mut stream, &mut unread)? else {
            return Ok(());
        };
        count += 1;
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let line = format!("{number} {method} {path} {}", body.len());
        seen.requests.lock().unwrap().push(line);
        let fine = |more: &str| {
            let body = format!("by {number}");
            format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{more}\r\n{body}",
                body.len()
            )
        };
        // What a connection does that has been used before.
        let again = count > 1;
        match path {
            "/closes" => {
                stream.write_all(fine("Connection: close\r\n").as_bytes())?;
                return Ok(());
            }
            "/old" => {
                stream.write_all(fine("").replace("HTTP/1.1", "HTTP/1.0").as_bytes())?;
            }
            "/chunks" => {
                let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                stream.write_all(text.as_bytes())?;
                thread::sleep(Duration::from_millis(10));
                stream.write_all(format!("4\r\nby {number}\r\n0\r\n\r\n").as_bytes())?;
            }
            "/empty" => stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?,
            "/too-much" => stream.write_all((fine("") + "and more").as_bytes())?,
            "/unasked" => {
                stream.write_all(fine("").as_bytes())?;
                thread::sleep(Duration::from_millis(100));
                stream.write_all(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")?;
            }
            "/then-ends" => {
                stream.write_all(fine("").as_bytes())?;
                thread::sleep(Duration::from_millis(50));
                return Ok(());
            }
            // The connection ends as the request comes, if it has been used before.
            "/ends-silently" if again => return Ok(()),
            "/ends-after-a-byte" if again => {
                stream.write_all(b"H")?;
                return Ok(());
            }
            "/early" => {
                stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")?;
                // The rest is not read: the connection ends with a reset.
                thread::sleep(Duration::from_millis(200));
                return Ok(());
            }
            "/endless" => {
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbegun")?;
                thread::sleep(Duration::from_millis(50));
                return Ok(());
            }
            "/half" => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")?;
                thread::sleep(PATIENCE);
            }
            _ => {
                let head = match method {
                    "HEAD" => fine("").replace(&format!("by {number}"), ""),
                    _ => fine(""),
                };
                let (head, body) = head.split_once("\r\n\r\n").unwrap_or((&head, ""));
                stream.write_all(format!("{head}\r\n\r\n").as_bytes())?;
                thread::sleep(pause);
                stream.write_all(body.as_bytes())?;
            }
        }
    }
}

/// The head and body of the next request; none where the connection has ended.
fn read_request(
    stream: &mut TcpStream,
    unread: &mut Vec<u8>,
) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let mut buffer = [0; 16 * 1024];
    loop {
        if let Some(end) = unread.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&unread[..end]).into_owned();
            // It is answered before its body has come.
            let is_early = head.contains(" /early ");
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok())
                .unwrap_or(0);
            if is_early || unread.len() >= end + 4 + length {
                let length = length.min(unread.len() - end - 4);
                let body = unread.drain(..end + 4 + length).skip(end + 4).collect();
                return Ok(Some((head, body)));
            }
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            count => unread.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Runs `check` with a server whose group `u` has one upstream and these further lines.
fn each(engine: &str, block: &str, check: impl Fn(&Server, &Upstream)) {
    let upstream = Upstream::start();
    let lines = lines(block, upstream.port);
    check(&Server::start(engine, &lines), &upstream);
}

fn lines(block: &str, port: u16) -> String {
    format!(
        "location / {{ proxy_pass http://u; }}
         location /other/ {{ proxy_pass http://u/; }}
         location /unsure/ {{ proxy_pass http://u/; proxy_next_upstream error timeout non_idempotent; }}
         location /streamed/ {{ proxy_pass http://u/; proxy_request_buffering off; }}
         location /plain/ {{ proxy_pass http://127.0.0.1:{port}/; }}
         [http]
         client_max_body_size 10m; client_body_buffer_size 16k;
         upstream u {{ server 127.0.0.1:{port}; {block} }}"
    )
}

fn body_of(server: &Server, path: &str) -> String {
    let response = server.connect().get(path).unwrap();
    format!(
        "{} {}",
        response.status,
        String::from_utf8_lossy(&response.body)
    )
}

fn post(server: &Server, path: &str, length: usize) -> u16 {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b'x'; length]).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8_lossy(&answer);
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

fn a_connection_serves_one_request_after_the_other(engine: &'static str) {
    each(engine, "", |server, upstream| {
        for path in ["/", "/chunks", "/", "/empty"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            assert!(
                server.lines_for(&request)[0].starts_with("HTTP/1.1 20"),
                "{path}"
            );
        }
        assert_eq!(body_of(server, "/"), "200 by 1");
        assert_eq!(upstream.requests().len(), 5);
        // By HEAD it has none, and the connection goes on.
        let head = server.lines_for("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!(head[0], "HTTP/1.1 200 OK");
        assert_eq!(body_of(server, "/"), "200 by 1");
        // Without a block nothing is kept.
        assert_eq!(body_of(server, "/plain/"), "200 by 2");
        assert_eq!(body_of(server, "/plain/"), "200 by 3");
        assert_eq!(server.error_log().matches("[error]").count(), 0);
    });
}

support::test_on_each_engine!(a_connection_serves_one_request_after_the_other);

fn other_locations_share_connections_where_the_group_says_so(engine: &'static str) {
    for (block, other) in [("", 2), ("keepalive 8 local;", 2), ("keepalive 8;", 1)] {
        each(engine, block, |server, _| {
            assert_eq!(body_of(server, "/"), "200 by 1");
            assert_eq!(body_of(server, "/other/"), format!("200 by {other}"));
            assert_eq!(body_of(server, "/"), "200 by 1");
            assert_eq!(body_of(server, "/other/"), format!("200 by {other}"));
        });
    }
}

support::test_on_each_engine!(other_locations_share_connections_where_the_group_says_so);

fn none_is_kept_for_longer_than_it_may_be(engine: &'static str) {
    each(engine, "keepalive 0;", |server, _| {
        assert_eq!(body_of(server, "/"), "200 by 1");
        assert_eq!(body_of(server, "/"), "200 by 2");
    });
    each(engine, "keepalive_requests 2;", |server, _| {
        let bodies = [(); 5].map(|()| body_of(server, "/"));
        let by = [1, 1, 2, 2, 3].map(|number| format!("200 by {number}"));
        assert_eq!(bodies, by);
    });
    each(engine, "keepalive_timeout 100ms;", |server, upstream| {
        assert_eq!(body_of(server, "/"), "200 by 1");
        upstream.wait_until_ended(1);
        assert_eq!(body_of(server, "/"), "200 by 2");
    });
    each(engine, "keepalive_time 50ms;", |server, _| {
        assert_eq!(body_of(server, "/"), "200 by 1");
        thread::sleep(Duration::from_millis(100));
        // It is used again, and not kept after that.
        assert_eq!(body_of(server, "/"), "200 by 1");
        assert_eq!(body_of(server, "/"), "200 by 2");
    });
}

support::test_on_each_engine!(none_is_kept_for_longer_than_it_may_be);

fn the_one_that_was_idle_for_longest_makes_room(engine: &'static str) {
    each(engine, "keepalive 2;", |server, upstream| {
        let mut clients = [(); 3].map(|()| server.connect());
        for client in &mut clients {
            client.send("/half", "").unwrap();
        }
        wait_for("three requests", || {
            upstream.seen.requests.lock().unwrap().len() == 3
        });
        // The clients leave: what is in the middle of an answer is not kept.
        drop(clients);
        thread::sleep(Duration::from_millis(100));
        assert_eq!(body_of(server, "/"), "200 by 4");
        assert_eq!(body_of(server, "/"), "200 by 4");
    });
}

support::test_on_each_engine!(the_one_that_was_idle_for_longest_makes_room);

fn what_an_upstream_ends_or_adds_to_is_not_used_again(engine: &'static str) {
    each(engine, "", |server, upstream| {
        for path in [
            "/closes",
            "/old",
            "/too-much",
            "/unasked",
            "/then-ends",
            "/endless",
        ] {
            let before = upstream.seen.connections.load(Ordering::SeqCst);
            let mut client = server.connect();
            client.send(path, "Connection: close\r\n").unwrap();
            let _ = client.receive(Duration::ZERO);
            upstream.wait_until_ended(before + usize::from(path != "/half"));
            let next = body_of(server, "/closes");
            assert_eq!(next, format!("200 by {}", before + 2), "{path}");
            upstream.wait_until_ended(before + 2);
        }
    });
}

support::test_on_each_engine!(what_an_upstream_ends_or_adds_to_is_not_used_again);

fn a_connection_that_ends_as_the_request_comes_costs_a_request_nothing(engine: &'static str) {
    each(engine, "", |server, upstream| {
        assert_eq!(body_of(server, "/"), "200 by 1");
        // No byte of an answer: it is sent once more, over a connection of its own.
        assert_eq!(body_of(server, "/ends-silently"), "200 by 2");
        let told =
            "upstream prematurely closed connection while reading response header from upstream";
        assert_eq!(server.error_log().matches(told).count(), 1);
        assert_eq!(body_of(server, "/"), "200 by 2");
        // As nginx has it, also where an answer had begun with less than a head.
        assert_eq!(body_of(server, "/ends-after-a-byte"), "200 by 3");
        let requests = upstream.requests();
        assert_eq!(requests.len(), 6, "{requests:?}");
    });
}

support::test_on_each_engine!(a_connection_that_ends_as_the_request_comes_costs_a_request_nothing);

fn what_may_have_changed_something_is_not_sent_twice(engine: &'static str) {
    each(engine, "", |server, upstream| {
        assert_eq!(body_of(server, "/"), "200 by 1");
        assert_eq!(post(server, "/ends-silently", 10), 502);
        assert_eq!(
            upstream.requests(),
            ["1 GET / 0", "1 POST /ends-silently 10"]
        );
        // Unless the configuration says that it may be: from memory, and from a file.
        for (number, length) in [(2, 10), (4, 300_000)] {
            assert_eq!(body_of(server, "/unsure/"), format!("200 by {number}"));
            assert_eq!(post(server, "/unsure/ends-silently", length), 200);
            let after = number + 1;
            let expected = [
                format!("{number} GET / 0"),
                format!("{number} POST /ends-silently {length}"),
                format!("{after} POST /ends-silently {length}"),
            ];
            assert_eq!(upstream.requests(), expected);
            assert_eq!(body_of(server, "/unsure/closes"), format!("200 by {after}"));
            upstream.wait_until_ended(after);
            upstream.requests();
        }
        // Nor is what was passed on as it came.
        assert_eq!(body_of(server, "/streamed/"), "200 by 6");
        assert_eq!(post(server, "/streamed/ends-silently", 10), 502);
    });
}

support::test_on_each_engine!(what_may_have_changed_something_is_not_sent_twice);

fn an_upload_that_is_answered_early_leaves_nothing_behind(engine: &'static str) {
    each(engine, "", |server, upstream| {
        for path in ["/early", "/streamed/early"] {
            let before = upstream.seen.connections.load(Ordering::SeqCst);
            assert_eq!(post(server, path, 3_000_000), 413);
            let next = body_of(server, "/closes");
            assert_eq!(next, format!("200 by {}", before + 2), "{path}");
            upstream.wait_until_ended(before + 2);
        }
    });
}

support::test_on_each_engine!(an_upload_that_is_answered_early_leaves_nothing_behind);

/// nginx's workers begin anew.
fn connections_outlive_a_reload(engine: &'static str) {
    if is_nginx() {
        return;
    }
    each(engine, "", |server, upstream| {
        assert_eq!(body_of(server, "/"), "200 by 1");
        for _ in 0..3 {
            let loaded = server.error_log().matches("exited with code").count();
            server.reload(&lines("", upstream.port));
            wait_for("the reload", || {
                server.error_log().matches("exited with code").count() > loaded
            });
            assert_eq!(body_of(server, "/"), "200 by 1");
        }
        assert_eq!(upstream.seen.connections.load(Ordering::SeqCst), 1);
    });
}

support::test_on_each_engine!(connections_outlive_a_reload);

/// A request under way counts against `max_conns` of the generations after it; failures do as well.
fn what_is_known_of_servers_outlives_a_reload(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let upstream = Upstream::start();
    let gone = support::port::free_port();
    let lines = |comment: &str| {
        format!(
            "location / {{ proxy_pass http://full; }} location /failed {{ proxy_pass http://failing; }}
                 [http]
                 # {comment}
                 upstream full {{ server 127.0.0.1:{} max_conns=1; }}
                 upstream failing {{ server 127.0.0.1:{gone}; server 127.0.0.1:{gone} fail_timeout=1h; }}",
            upstream.port
        )
    };
    let server = Server::start(engine, &lines("first"));
    let mut held = server.connect();
    held.send("/half", "").unwrap();
    wait_for("the request", || {
        !upstream.seen.requests.lock().unwrap().is_empty()
    });
    assert_eq!(body_of(&server, "/failed").split(' ').next(), Some("502"));
    for number in 0..3 {
        server.reload(&lines(&format!("reload {number}")));
        // It serves by the new configuration from the next request on.
        wait_for("the reload", || {
            server.error_log().matches("reconfiguring").count() > number
        });
        assert_eq!(body_of(&server, "/").split(' ').next(), Some("502"));
        body_of(&server, "/failed");
        wait_for("a line for each request", || {
            let log = server.error_log();
            let lines = log
                .lines()
                .filter(|line| line.contains("no live upstreams"));
            lines.filter(|line| line.contains("GET /failed")).count() == number + 1
        });
    }
    drop(held);
    wait_for("its place", || body_of(&server, "/").starts_with("200"));
}

support::test_on_each_engine!(what_is_known_of_servers_outlives_a_reload);

#[test]
fn a_server_has_no_more_requests_than_it_may_have() {
    for (limit, expected) in [("max_conns=2", 0), ("", 3)] {
        for engine in engines::lines() {
            let upstream = Upstream::start();
            let lines = format!(
                "location / {{ proxy_pass http://u; }}
                 [http]
                 upstream u {{ server 127.0.0.1:{} {limit}; }}",
                upstream.port
            );
            let server = Server::start(engine, &lines);
            let mut held = [(); 2].map(|()| server.connect());
            for client in &mut held {
                client.send("/half", "").unwrap();
            }
            wait_for("two requests", || {
                upstream.seen.requests.lock().unwrap().len() == 2
            });
            let answered = (0..3).filter(|_| body_of(&server, "/").starts_with("200"));
            assert_eq!(answered.count(), expected, "{limit}");
            drop(held);
            wait_for("a place", || body_of(&server, "/").starts_with("200"));
        }
    }
}

/// Servers at 127.0.0.2 to 4, which say so, and a group of those that a name stands for.
fn named(server: &str, name_server: &NameServer) -> String {
    let at = |last: u8| format!("server {{ listen 127.0.0.{last}:PORT; return 200 {last}; }}\n");
    format!(
        "location / {{ proxy_pass http://u; }}
         [http]
         {}
         upstream u {{
             zone named 64k; resolver 127.0.0.1:{} valid=1s ipv6=off; resolver_timeout 1s;
             server {server} max_fails=0;
         }}",
        (2..5).map(at).collect::<String>(),
        name_server.port
    )
}

/// All that answer within a few requests.
fn who_answer(server: &Server) -> Vec<String> {
    let mut bodies: Vec<String> = (0..6).map(|_| body_of(server, "/")).collect();
    bodies.sort();
    bodies.dedup();
    bodies
}

fn a_name_is_looked_up_again_and_again(engine: &'static str) {
    let name_server = NameServer::start();
    name_server.says(&[2]);
    let server = Server::start(engine, &named("peers.test:PORT resolve", &name_server));
    let wait = |expected: &[&str]| {
        wait_for("other servers", || who_answer(&server) == expected);
    };
    wait(&["200 2"]);
    name_server.says(&[3, 4]);
    wait(&["200 3", "200 4"]);
    // A name server that fails leaves what is known, also over a reload.
    name_server.answers().code = 2;
    server.wait_for_log("[error]");
    server.wait_for_log("peers.test could not be resolved (2: Server failure)");
    assert_eq!(who_answer(&server), ["200 3", "200 4"]);
    if !is_nginx() {
        server.reload(&named("peers.test:PORT resolve", &name_server));
        server.wait_for_log("exited with code");
        assert_eq!(who_answer(&server), ["200 3", "200 4"]);
    }
    // One that knows of no such name ends it.
    name_server.answers().code = 3;
    wait_for("the end of the name", || {
        body_of(&server, "/").starts_with("502")
    });
    server.wait_for_log("no live upstreams");
    name_server.says(&[2]);
    wait(&["200 2"]);
}

support::test_on_each_engine!(a_name_is_looked_up_again_and_again);

/// Servers that a lookup adds have to pass their checks first, and those that it takes away are
/// checked no more.
fn servers_that_lookups_bring_are_checked(engine: &'static str) {
    if is_nginx() {
        return; // NGINX Plus has it
    }
    let name_server = NameServer::start();
    name_server.says(&[2]);
    let lines = named("peers.test:PORT resolve", &name_server)
        .replace(
            "proxy_pass http://u;",
            "proxy_pass http://u; health_check mandatory interval=50ms uri=/check;",
        )
        .replace(
            "return 200 3;",
            "location = /check { return 500; } location / { return 200 3; }",
        )
        .replace("[http]", "[http]\nlog_format at $server_addr:;")
        .replace(
            "listen 127.0.0.",
            "access_log logs/checks.log at; listen 127.0.0.",
        );
    let server = Server::start(engine, &lines);
    wait_for("the first", || who_answer(&server) == ["200 2"]);
    let checks = |address: &str| {
        let log = std::fs::read_to_string(server.prefix.join("logs/checks.log"));
        log.unwrap_or_default()
            .matches(&format!("{address}:"))
            .count()
    };
    assert!(checks("127.0.0.2") >= 1);
    assert_eq!(checks("127.0.0.3") + checks("127.0.0.4"), 0);
    name_server.says(&[3, 4]);
    wait_for("those that are well", || who_answer(&server) == ["200 4"]);
    server.wait_for_log(&format!(
        "peer is unhealthy while checking status code, health check \"\" of peer 127.0.0.3:{}",
        server.port
    ));
    // The one that has left is checked no more; the others are.
    std::thread::sleep(Duration::from_millis(200));
    let (first, second) = (checks("127.0.0.2"), checks("127.0.0.3"));
    wait_for("checks", || checks("127.0.0.3") > second + 2);
    assert_eq!(checks("127.0.0.2"), first);
    name_server.says(&[2]);
    wait_for("the first again", || who_answer(&server) == ["200 2"]);
}

support::test_on_each_engine!(servers_that_lookups_bring_are_checked);

#[test]
fn a_service_has_servers_of_its_own() {
    let engine = engines::EPOLL;
    let name_server = NameServer::start();
    let server = Server::start(
        engine,
        &named("peers.test resolve service=http", &name_server),
    );
    assert!(body_of(&server, "/").starts_with("502"));
    {
        let says = &mut *name_server.answers();
        says.addresses = vec![2];
        // Two names of one address, one of them standing by, at a port where nobody listens.
        let nobody = support::port::free_port();
        says.services = vec![
            (1, server.port, "a.peers.test"),
            (2, nobody, "b.peers.test"),
        ];
    }
    wait_for("a server", || who_answer(&server) == ["200 2"]);
    // The other way round: the first is the one where nobody listens, and the other answers.
    name_server.answers().services[1].0 = 0;
    wait_for("the one that stands by", || {
        who_answer(&server) == ["200 2"] && server.error_log().contains("Connection refused")
    });
}

/// nginx has no queue; NGINX Plus answers as here where it is full or time is up.
fn requests_wait_for_a_server_in_their_order(engine: &'static str) {
    let upstream = Upstream::start();
    let lines = |queue: &str| {
        format!(
            "location / {{ proxy_pass http://u; }} access_log logs/queue.log queue;
                 [http]
                 log_format queue '$request_uri $status $upstream_queue_time $upstream_addr';
                 upstream u {{ server 127.0.0.1:{} max_conns=1; {queue} }}",
            upstream.port
        )
    };
    let server = Server::start(engine, &lines("queue 2;"));
    let hold = |path: &str| {
        let mut held = server.connect();
        held.send(path, "").unwrap();
        held
    };
    let held = hold("/half");
    wait_for("the first", || !upstream.requests().is_empty());
    let mut second = hold("/second");
    thread::sleep(Duration::from_millis(100));
    let mut third = hold("/third");
    thread::sleep(Duration::from_millis(100));
    // There is room for two.
    assert!(body_of(&server, "/fourth").starts_with("502"));
    assert!(upstream.requests().is_empty());
    drop(held);
    assert_eq!(second.receive(Duration::ZERO).unwrap().status, 200);
    assert_eq!(third.receive(Duration::ZERO).unwrap().status, 200);
    let paths = upstream.requests();
    let paths: Vec<&str> = paths
        .iter()
        .map(|line| line.split(' ').nth(2).unwrap())
        .collect();
    assert_eq!(paths, ["/second", "/third"]);
    server.wait_for_line("queue.log", "/third 200 0.");
    server.wait_for_line("queue.log", "/fourth 502 - u\n");

    // One that leaves while it waits is behind no one's way, and over a reload the places are
    // the same.
    let held = hold("/half");
    wait_for("the first again", || !upstream.requests().is_empty());
    let leaves = hold("/leaves");
    thread::sleep(Duration::from_millis(100));
    let mut stays = hold("/stays");
    thread::sleep(Duration::from_millis(100));
    server.reload(&lines("queue 1 timeout=200ms;"));
    server.wait_for_log("reconfiguring");
    thread::sleep(Duration::from_millis(500));
    let late = body_of(&server, "/late");
    assert!(late.starts_with("502"), "{late}");
    drop(leaves);
    drop(held);
    assert_eq!(stays.receive(Duration::ZERO).unwrap().status, 200);

    // Nor for longer than they may.
    let held = hold("/half");
    wait_for("the first once more", || {
        upstream
            .requests()
            .iter()
            .any(|line| line.contains("/half"))
    });
    assert!(body_of(&server, "/too-late").starts_with("502"));
    server.wait_for_line("queue.log", "/too-late 502 0.");
    drop(held);
    wait_for("a free place", || body_of(&server, "/").starts_with("200"));
}

support::test_on_each_engine!(requests_wait_for_a_server_in_their_order);

/// How many of so many requests each of two servers is given, `method` choosing; bodies of the
/// second come later than their heads.
fn shares(method: &str, requests: usize) -> [usize; 2] {
    let upstreams = [Duration::ZERO, Duration::from_millis(60)].map(Upstream::with_pause);
    let [quick, slow] = [0, 1].map(|at: usize| upstreams[at].port);
    let lines = format!(
        "location / {{ proxy_pass http://u; }}
         [http]
         upstream u {{ zone shares 64k; {method} server 127.0.0.1:{quick}; server 127.0.0.1:{slow}; }}"
    );
    let server = Server::start(engines::EPOLL, &lines);
    let seen = |at: usize| upstreams[at].seen.requests.lock().unwrap().len();
    for _ in 0..requests {
        assert!(body_of(&server, "/").starts_with("200"));
    }
    [seen(0), seen(1)]
}

#[test]
fn a_method_decides_who_is_asked() {
    assert_eq!(shares("", 10), [5, 5]);
    // Heads of both come at once, bodies do not.
    assert_eq!(shares("least_time header;", 10), [5, 5]);
    let [quick, slow] = shares("least_time last_byte;", 10);
    assert!(slow <= 1 && quick >= 9, "{quick} and {slow}");
    let [quick, slow] = shares("random;", 40);
    assert!(quick > 0 && slow > 0 && quick + slow == 40);
    // By a key: the same for the same.
    let of_key = shares("hash $uri;", 10);
    assert!(of_key == [10, 0] || of_key == [0, 10], "{of_key:?}");
    let of_client = shares("ip_hash;", 10);
    assert!(
        of_client == [10, 0] || of_client == [0, 10],
        "{of_client:?}"
    );
}

/// With requests under way at the first server, those that look at that ask the second.
#[test]
fn a_busy_server_is_left_alone() {
    for (method, is_left_alone) in [
        ("", false),
        ("least_conn;", true),
        ("random two least_conn;", true),
    ] {
        let upstreams = [(); 2].map(|()| Upstream::start());
        let [first, second] = [0, 1].map(|at: usize| upstreams[at].port);
        let lines = format!(
            "location / {{ proxy_pass http://u; }}
             [http]
             upstream u {{ zone busy 64k; {method} server 127.0.0.1:{first}; server 127.0.0.1:{second}; }}"
        );
        let server = Server::start(engines::EPOLL, &lines);
        let mut held = server.connect();
        held.send("/half", "").unwrap();
        let requests = |at: usize| upstreams[at].seen.requests.lock().unwrap().len();
        wait_for("the request", || requests(0) + requests(1) == 1);
        let busy = usize::from(requests(1) == 1);
        for _ in 0..10 {
            assert!(body_of(&server, "/").starts_with("200"));
        }
        assert_eq!(requests(busy) == 1, is_left_alone, "{method}");
    }
}
