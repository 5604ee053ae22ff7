//! `sticky`: requests of a session that stay with a server, on every engine: by cookie, by a route,
//! by what is learned; a server that drains, one that fails, one that is gone; and reloads.
//! Expected: <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#sticky>.
//!
//! TIDEGATE_BINARY puts nginx 1.31 in the place of Tidegate, to check the tests themselves. Servers
//! of the groups are of the program under test too, and say who they are in their answers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::port::free_port;
use support::{PATIENCE, Response, Server};

/// Servers `a`, `b` and so on, each with a port of its own.
struct Peers(Vec<u16>);

impl Peers {
    fn new(count: usize) -> Peers {
        Peers((0..count).map(|_| free_port()).collect())
    }

    fn address(&self, place: usize) -> String {
        format!("127.0.0.1:{}", self.0[place])
    }

    /// The blocks of the servers: each answers with its letter, for `/at-LETTER/fails` the named
    /// one closes without an answer, and for `/at-LETTER/STATUS` with that.
    fn blocks(&self) -> String {
        let mut blocks = String::new();
        for (place, port) in self.0.iter().enumerate() {
            let letter = char::from(b'a' + place as u8);
            blocks += &format!(
                "server {{ listen 127.0.0.1:{port}; access_log off; keepalive_timeout 0;\n\
                 location / {{ add_header Set-Cookie id=$arg_make; return 200 {letter}; }}\n\
                 location /at-{letter}/fails {{ return 444; }}\n\
                 location /at-{letter}/404 {{ return 404; }}\n\
                 location /at-{letter}/slow {{ limit_rate_after 1k; limit_rate 10; add_header Set-Cookie id=slow; return 200 {long}; }} }}\n",
                long = "x".repeat(4000),
            );
        }
        blocks
    }
}

/// Lines of a server that passes all on to the group `u`, whose lines are these.
fn lines(generation: usize, peers: &Peers, group: &str, location: &str) -> String {
    format!(
        "location / {{ proxy_pass http://u; {location}\n\
         add_header X-Generation {generation} always; add_header X-Tried $upstream_addr always; }}\n\
         location = /page {{ return 200 page; }}\n\
         [http]\nupstream u {{ {group} }}\n{}",
        peers.blocks()
    )
}

fn ask(server: &Server, path: &str, cookie: &str) -> Response {
    let mut connection = server.connect();
    let field = if cookie.is_empty() {
        String::new()
    } else {
        format!("Cookie: {cookie}\r\n")
    };
    connection.send(path, &field).unwrap();
    connection.receive(Duration::ZERO).unwrap()
}

/// Who answers so many times, one after the other.
fn who(server: &Server, path: &str, cookie: &str, count: usize) -> String {
    let answers = (0..count).map(|_| ask(server, path, cookie).body);
    String::from_utf8(answers.collect::<Vec<_>>().concat()).unwrap()
}

/// Waits until this generation answers, and no worker process of nginx is left that takes
/// connections by the one before.
fn wait_for(server: &Server, generation: usize) {
    let field = format!("X-Generation: {generation}\r\n");
    let (start, mut row) = (Instant::now(), 0);
    while row < 10 {
        row = if ask(server, "/", "").head.contains(&field) {
            row + 1
        } else {
            0
        };
        assert!(start.elapsed() < PATIENCE, "generation {generation} serves");
        sleep(Duration::from_millis(10));
    }
}

/// The values of the fields of this name.
fn fields(response: &Response, name: &str) -> Vec<String> {
    let lines = response.head.lines();
    let values = lines.filter_map(|line| line.strip_prefix(&format!("{name}: ")));
    values.map(str::to_owned).collect()
}

/// What a cookie says of the server.
fn route(response: &Response) -> String {
    let all = fields(response, "Set-Cookie");
    let mut routes = all.iter().filter(|value| value.starts_with("route="));
    let first = routes.next().cloned().unwrap_or_default();
    assert!(routes.next().is_none(), "{all:?}");
    first
}

fn a_cookie_leads_back_to_its_server(engine: &'static str) {
    let peers = Peers::new(3);
    let [a, b, c] = [0, 1, 2].map(|place| peers.address(place));
    let group = format!("server {a}; server {b} route=second; server {c}; sticky cookie route;");
    let next = "proxy_next_upstream error http_404; proxy_connect_timeout 5s;";
    let server = Server::start(engine, &lines(1, &peers, &group, next));
    let mut routes: Vec<(String, String)> = Vec::new();
    for _ in 0..3 {
        let response = ask(&server, "/", "");
        let body = String::from_utf8(response.body.clone()).unwrap();
        routes.push((body, route(&response)));
    }
    routes.sort();
    let names: String = routes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, "abc");
    assert_eq!(routes[1].1, "route=second");
    // The hash of an address, in hexadecimal.
    assert_eq!(routes[0].1.len(), "route=".len() + 32);
    for (name, cookie) in &routes {
        assert_eq!(who(&server, "/", cookie, 4), name.repeat(4));
        // It is told again with each answer.
        assert_eq!(route(&ask(&server, "/", cookie)), *cookie);
    }
    // What names nobody leads to anybody.
    for cookie in ["route=nobody", "route="] {
        let mut all: Vec<char> = who(&server, "/", cookie, 9).chars().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, ['a', 'b', 'c']);
    }
    // Another answers in the place of one that fails, and the cookie is its own from then on.
    for path in ["/at-b/404", "/at-b/fails"] {
        let response = ask(&server, path, "route=second");
        let tried = fields(&response, "X-Tried").concat();
        assert!(tried.starts_with(&format!("{b}, 127.")), "{path}: {tried}");
        assert_ne!(route(&response), "route=second", "{path}");
    }
    // It is out now: sessions go elsewhere.
    assert!(!who(&server, "/", "route=second", 4).contains('b'));
}

support::test_on_each_engine!(a_cookie_leads_back_to_its_server);

/// The field stands in responses that are not the server's, too.
fn a_cookie_is_given_with_pages_of_errors(engine: &'static str) {
    let peers = Peers::new(1);
    let group = format!("server {} route=a; sticky cookie route;", peers.address(0));
    let location = "proxy_intercept_errors on; error_page 404 /page;";
    let server = Server::start(engine, &lines(1, &peers, &group, location));
    let page = ask(&server, "/at-a/404", "");
    assert_eq!((page.status, &*page.body), (404, &b"page"[..]));
    assert_eq!(route(&page), "route=a");
    let failed = ask(&server, "/at-a/fails", "");
    assert_eq!((failed.status, route(&failed)), (502, "route=a".to_owned()));
}

support::test_on_each_engine!(a_cookie_is_given_with_pages_of_errors);

fn a_route_is_named_by_the_first_variable_that_has_one(engine: &'static str) {
    let peers = Peers::new(3);
    for method in [
        "",
        "ip_hash;",
        "hash $uri;",
        "hash $uri consistent;",
        "least_conn;",
        "random;",
    ] {
        let mut group = method.to_owned();
        for (place, name) in ["A", "B", "C"].iter().enumerate() {
            group += &format!("server {} route={name};", peers.address(place));
        }
        group += "sticky route $cookie_route $arg_route;";
        let server = Server::start(engine, &lines(1, &peers, &group, ""));
        for (path, cookie, expected) in [
            ("/?route=B", "", "b"),
            ("/?route=B", "route=C", "c"),
            ("/?route=A", "route=", "a"),
        ] {
            assert_eq!(
                who(&server, path, cookie, 5),
                expected.repeat(5),
                "{method}"
            );
        }
        assert!(route(&ask(&server, "/?route=A", "")).is_empty());
    }
}

support::test_on_each_engine!(a_route_is_named_by_the_first_variable_that_has_one);

/// By turns a server pays for one request of a session and no more.
fn turns_go_on_beside_sessions(engine: &'static str) {
    let peers = Peers::new(3);
    let [a, b, c] = [0, 1, 2].map(|place| peers.address(place));
    let group =
        format!("server {a}; server {b} route=B weight=2; server {c}; sticky route $arg_route;");
    let server = Server::start(engine, &lines(1, &peers, &group, ""));
    assert_eq!(who(&server, "/?route=B", "", 7), "bbbbbbb");
    assert_eq!(
        who(&server, "/", "", 8),
        "acbbacbb",
        "{}",
        server.error_log()
    );
}

support::test_on_each_engine!(turns_go_on_beside_sessions);

fn what_is_learned_leads_back(engine: &'static str) {
    let peers = Peers::new(2);
    let [a, b] = [0, 1].map(|place| peers.address(place));
    let group = |timeout: &str| {
        format!(
            "server {a}; server {b}; sticky learn zone=sessions:32k timeout={timeout}
                 create=$upstream_cookie_id lookup=$cookie_id lookup=$arg_id;"
        )
    };
    let next = "proxy_next_upstream error http_404;";
    // With several threads what one has learned all know.
    let server = Server::start_workers(3, engine, &lines(1, &peers, &group("10m"), next));
    for session in ["one", "two", "three"] {
        let first = who(&server, &format!("/?make={session}"), "", 1);
        assert_eq!(
            who(&server, "/", &format!("id={session}"), 8),
            first.repeat(8)
        );
        assert_eq!(
            who(&server, &format!("/?id={session}"), "", 4),
            first.repeat(4)
        );
    }
    // Sessions that no server has made are those of all.
    let mut strangers: Vec<char> = who(&server, "/", "id=stranger", 6).chars().collect();
    strangers.dedup();
    assert!(strangers.len() > 1);
    // A server that has it not hands it on with the session.
    let held = who(&server, "/", "id=one", 1);
    let other = if held == "a" { "b" } else { "a" };
    let moved = ask(&server, &format!("/at-{held}/404"), "id=one");
    assert!(
        fields(&moved, "X-Tried").concat().contains(", "),
        "{}",
        moved.head
    );
    assert_eq!(who(&server, "/", "id=one", 4), other.repeat(4));
    // Reloads keep it all; but not under the name of another block.
    server.reload(&lines(2, &peers, &group("20m"), next));
    wait_for(&server, 2);
    assert_eq!(who(&server, "/", "id=one", 4), other.repeat(4));
    let renamed = lines(3, &peers, &group("20m"), next).replace("upstream u ", "upstream v ");
    server.reload(&renamed.replace("http://u;", "http://v;"));
    server.wait_for_log(
        "sticky zone \"sessions\" is used in upstream \"v\" while previously it was used in upstream \"u\"",
    );
    assert_eq!(who(&server, "/", "id=one", 4), other.repeat(4));
    // With a timeout that is over, nothing is left of them, whatever is learned later.
    server.reload(&lines(4, &peers, &group("1ms"), next));
    wait_for(&server, 4);
    assert_eq!(who(&server, "/", "id=one", 8).matches('a').count(), 4);
}

support::test_on_each_engine!(what_is_learned_leads_back);

#[test]
fn a_full_zone_forgets_the_session_used_longest_ago() {
    let peers = Peers::new(2);
    let [a, b] = [0, 1].map(|place| peers.address(place));
    let group =
        format!("server {a}; server {b}; sticky learn zone=few:32k create=$arg_id lookup=$arg_id;");
    let server = Server::start("", &lines(1, &peers, &group, ""));
    // nginx 1.31 keeps 80 sessions in 32 KiB.
    let first = who(&server, "/?id=0", "", 1);
    for session in 1..80 {
        who(&server, &format!("/?id={session}"), "", 1);
    }
    assert_eq!(who(&server, "/?id=0", "", 4), first.repeat(4));
    assert!(!server.error_log().contains("could not allocate"));
    who(&server, "/?id=80", "", 1);
    server.wait_for_log("could not allocate node in sticky session zone \"few\", expiring least recently used session");
    assert_eq!(who(&server, "/?id=0", "", 4), first.repeat(4));
}

/// The end of the answer is waited for, unless `header` says otherwise; a client that leaves is an
/// end as well.
fn sessions_are_learned_at_the_end_or_with_the_head(engine: &'static str) {
    for (header, begins) in [("", false), ("header", true)] {
        let peers = Peers::new(2);
        let [a, b] = [0, 1].map(|place| peers.address(place));
        let group = format!(
            "server {a}; server {b} backup; sticky learn zone=z:32k {header}
                 create=$upstream_cookie_id lookup=$arg_id;"
        );
        let location = "proxy_buffering off;";
        let server = Server::start(engine, &lines(1, &peers, &group, location));
        let mut slow = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        slow.set_read_timeout(Some(PATIENCE)).unwrap();
        slow.write_all(b"GET /at-a/slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            slow.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        let head = String::from_utf8_lossy(&head);
        assert!(head.contains("Set-Cookie: id=slow\r\n"), "{head}");
        let drained = group.replace(&format!("server {a};"), &format!("server {a} drain;"));
        server.reload(&lines(2, &peers, &drained, location));
        wait_for(&server, 2);
        // The first server gets only who is bound to it.
        let expected = if begins { "a" } else { "b" };
        assert_eq!(who(&server, "/?id=slow", "", 1), expected);
        drop(slow);
        let start = Instant::now();
        while who(&server, "/?id=slow", "", 1) != "a" {
            assert!(
                start.elapsed() < PATIENCE,
                "learned in the end: {}",
                server.error_log()
            );
            sleep(Duration::from_millis(10));
        }
    }
}

support::test_on_each_engine!(sessions_are_learned_at_the_end_or_with_the_head);

fn a_server_that_drains_keeps_its_sessions(engine: &'static str) {
    let peers = Peers::new(3);
    let group = |of_a: &str| {
        let [a, b, c] = [0, 1, 2].map(|place| peers.address(place));
        format!(
            "server {a} route=A {of_a}; server {b} route=B; server {c} route=C; sticky cookie route;"
        )
    };
    let server = Server::start(engine, &lines(1, &peers, &group(""), ""));
    assert_eq!(who(&server, "/", "route=A", 3), "aaa");
    server.reload(&lines(2, &peers, &group("drain"), ""));
    wait_for(&server, 2);
    assert_eq!(who(&server, "/", "route=A", 6), "aaaaaa");
    assert!(!who(&server, "/", "", 6).contains('a'));
    // Down it is for all.
    server.reload(&lines(3, &peers, &group("down"), ""));
    wait_for(&server, 3);
    assert!(!who(&server, "/", "route=A", 6).contains('a'));
    assert_ne!(route(&ask(&server, "/", "route=A")), "route=A");
    // So it is once its line is gone.
    let gone = format!("server {} route=B; sticky cookie route;", peers.address(1));
    server.reload(&lines(4, &peers, &gone, ""));
    wait_for(&server, 4);
    let response = ask(&server, "/", "route=A");
    assert_eq!(
        (route(&response), &*response.body),
        ("route=B".to_owned(), &b"b"[..])
    );
    // The only server of a group drains as any.
    let alone = format!(
        "server {} route=A drain; sticky cookie route;",
        peers.address(0)
    );
    server.reload(&lines(5, &peers, &alone, ""));
    wait_for(&server, 5);
    assert_eq!(who(&server, "/", "route=A", 2), "aa");
    assert_eq!(ask(&server, "/", "").status, 502);
}

support::test_on_each_engine!(a_server_that_drains_keeps_its_sessions);
