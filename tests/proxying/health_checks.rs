//! `health_check`, `match` and `slow_start` on every engine: what an answer must be like, how
//! often, what a reload keeps, servers that say nothing or too little, and how slowly a server
//! begins that is well again. Expected:
//! <https://nginx.org/en/docs/http/ngx_http_upstream_hc_module.html>, which describes NGINX Plus.
//!
//! Servers are threads of the test. A check that they are asked waits for the test to answer it,
//! where the test wants that: the next one comes when what it has found is known.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::{PATIENCE, Response, Server, origin};

/// An answer that passes a check without further tests.
const WELL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// One that fails it.
const ILL: &str = "HTTP/1.1 500 Bad\r\nContent-Length: 3\r\n\r\nbad";

/// A server of a group. Ends with the test's process.
struct Backend {
    port: u16,
    checks: Receiver<Check>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// What requests are answered with.
    letter: Mutex<String>,
    /// What checks are answered with at once; `None` where they wait for the test.
    answer: Mutex<Option<String>>,
    /// Requests that are no checks.
    requests: AtomicUsize,
    /// Checks that have come.
    checks: AtomicUsize,
    /// Connections that have been accepted.
    connections: AtomicUsize,
}

/// A check that waits for its answer.
struct Check {
    head: String,
    stream: TcpStream,
}

impl Check {
    fn answer(mut self, answer: &str) {
        // Who has asked may have given up.
        let _ = self.stream.write_all(answer.as_bytes());
    }
}

impl Backend {
    /// One that answers requests with this letter, and checks at once with this.
    fn answering(letter: &str, answer: &str) -> Backend {
        let backend = Backend::asked(letter);
        backend.answer_all(answer);
        backend
    }

    /// One whose checks the test answers.
    fn asked(letter: &str) -> Backend {
        let shared = Arc::<Shared>::default();
        *shared.letter.lock().unwrap() = letter.to_owned();
        let (sender, checks) = channel();
        let for_threads = Arc::clone(&shared);
        let port = origin::listen(move |stream| {
            for_threads.connections.fetch_add(1, Ordering::SeqCst);
            serve(stream, &for_threads, &sender);
        });
        Backend {
            port,
            checks,
            shared,
        }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Answers all checks that have come and will come.
    fn answer_all(&self, answer: &str) {
        *self.shared.answer.lock().unwrap() = Some(answer.to_owned());
        self.checks
            .try_iter()
            .for_each(|check| check.answer(answer));
    }

    /// The next check.
    fn check(&self) -> Check {
        self.checks.recv_timeout(PATIENCE).expect("a check")
    }

    fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    fn checks(&self) -> usize {
        self.shared.checks.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, shared: &Shared, sender: &Sender<Check>) {
    let (mut unread, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let end = loop {
            if let Some(at) = unread.windows(4).position(|end| end == b"\r\n\r\n") {
                break at + 4;
            }
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(length) => unread.extend_from_slice(&buffer[..length]),
            }
        };
        let head = String::from_utf8_lossy(&unread[..end]).into_owned();
        unread.drain(..end);
        if !head.starts_with("GET /check") {
            shared.requests.fetch_add(1, Ordering::SeqCst);
            let letter = shared.letter.lock().unwrap().clone();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                letter.len()
            );
            let _ = stream.write_all((head + &letter).as_bytes());
            continue;
        }
        shared.checks.fetch_add(1, Ordering::SeqCst);
        let answer = shared.answer.lock().unwrap().clone();
        match answer {
            Some(answer) => {
                let _ = stream.write_all(answer.as_bytes());
                if answer.contains("Connection: close") {
                    return;
                }
            }
            None => drop(sender.send(Check {
                head,
                stream: stream.try_clone().unwrap(),
            })),
        }
    }
}

/// Lines of a server that passes all on to the group `u`.
fn lines(generation: usize, group: &str, location: &str) -> String {
    format!(
        "location / {{ proxy_pass http://u; {location}\n\
         add_header X-Generation {generation} always; add_header X-Tried $upstream_addr always; }}\n\
         [http]\nupstream u {{ zone u 64k; {group} }}\n"
    )
}

fn ask(server: &Server, path: &str) -> Response {
    server.connect().get(path).unwrap()
}

fn status(server: &Server) -> u16 {
    ask(server, "/").status
}

/// Who answers so many times, one after the other.
fn who(server: &Server, count: usize) -> String {
    let mut connection = server.connect();
    let answers = (0..count).map(|_| connection.get("/").unwrap().body);
    String::from_utf8(answers.collect::<Vec<_>>().concat()).unwrap()
}

fn count(text: &str, letter: char) -> usize {
    text.chars().filter(|known| *known == letter).count()
}

/// Waits until this holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(5));
    }
}

/// Waits until this generation serves.
fn wait_for(server: &Server, generation: usize) {
    let field = format!("X-Generation: {generation}\r\n");
    until("a reload", || ask(server, "/").head.contains(&field));
}

/// How often the log says this.
fn said(server: &Server, text: &str) -> usize {
    server.error_log().matches(text).count()
}

/// Every kind of test: an answer passes it, and another does not.
fn what_an_answer_must_be_like(engine: &'static str) {
    const ANSWER: &str = "HTTP/1.1 204 No\r\nX-Kind: a b\r\nX-Two: 1\r\nX-Two: 2\r\n\r\n";
    const PAGE: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nWelc\r\n4;x=y\r\nome!\r\n0\r\n\r\n";
    const CLOSED: &str = "HTTP/1.0 302 Found\r\nLocation: /\r\nConnection: close\r\n\r\n";
    const BROKEN: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n";
    const SWITCHES: &str = "HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n";
    let (status, header) = ("checking status code", "checking header");
    let (body, required) = ("checking body", "checking required variables");
    let cases: &[(&str, &str, bool, &str)] = &[
        ("", ANSWER, true, status),
        ("", ILL, false, status),
        ("", CLOSED, true, status),
        (
            "",
            "well\r\n\r\n",
            false,
            "reading response header from upstream",
        ),
        (
            "body ~ w;",
            "well\r\n\r\n",
            false,
            "reading response header from upstream",
        ),
        ("body ~ x;", BROKEN, false, "reading upstream"),
        ("", BROKEN, true, status),
        ("status 101;", SWITCHES, true, status),
        ("status 204;", ANSWER, true, status),
        ("status 200-203 205;", ANSWER, false, status),
        ("status ! 204;", ANSWER, false, status),
        ("status ! 500-599 400;", ANSWER, true, status),
        ("status 500;", ILL, true, status),
        ("header X-Kind;", ANSWER, true, header),
        ("header x-missing;", ANSWER, false, header),
        ("header ! X-Missing;", ANSWER, true, header),
        ("header ! x-kind;", ANSWER, false, header),
        ("header x-kind = \"a b\";", ANSWER, true, header),
        ("header X-Kind = a;", ANSWER, false, header),
        ("header X-Kind != a;", ANSWER, true, header),
        ("header X-Kind != \"a b\";", ANSWER, false, header),
        ("header X-Missing != a;", ANSWER, false, header),
        ("header X-Two = 2;", ANSWER, true, header),
        ("header X-Two != 2;", ANSWER, false, header),
        ("header X-Kind ~ ^a;", ANSWER, true, header),
        ("header X-Kind ~ ^b;", ANSWER, false, header),
        ("header X-Kind !~ ^b;", ANSWER, true, header),
        ("header X-Kind !~ b$;", ANSWER, false, header),
        ("body ~ ^Welcome!$;", PAGE, true, body),
        ("body ~ Wellcome;", PAGE, false, body),
        ("body !~ Wellcome;", PAGE, true, body),
        ("body !~ come;", PAGE, false, body),
        ("body !~ .;", CLOSED, true, body),
        ("require $upstream_status;", ANSWER, true, required),
        (
            "require $upstream_http_x_kind $is_page;",
            PAGE,
            false,
            required,
        ),
        ("require $is_page;", PAGE, true, required),
        ("require $is_page;", ILL, false, required),
        (
            "status 200; body ~ W; header Transfer-Encoding = chunked;",
            PAGE,
            true,
            body,
        ),
        (
            "status 200; body ~ W; header Location;",
            PAGE,
            false,
            header,
        ),
    ];
    let backends = cases
        .iter()
        .map(|(_, answer, ..)| Backend::answering("x", answer));
    let backends: Vec<_> = backends.collect();
    let (mut locations, mut http) = (String::new(), String::new());
    for (number, ((tests, ..), backend)) in cases.iter().zip(&backends).enumerate() {
        let named = if tests.is_empty() {
            String::new()
        } else {
            http += &format!("match m{number} {{ {tests} }}\n");
            format!("match=m{number}")
        };
        locations += &format!(
            "location /{number}/ {{ proxy_pass http://u{number};\
             health_check mandatory interval=50ms uri=/check{number} {named}; }}\n"
        );
        let address = backend.address();
        http += &format!("upstream u{number} {{ zone u{number} 64k; server {address}; }}\n");
    }
    http += "map $upstream_status $is_page { 200 1; default 0; }";
    let server = Server::start(engine, &format!("{locations}[http]\n{http}"));
    for (number, ((tests, _, passes, doing), backend)) in cases.iter().zip(&backends).enumerate() {
        let (found, status) = if *passes {
            ("healthy", 200)
        } else {
            ("unhealthy", 502)
        };
        let name = if tests.is_empty() {
            String::new()
        } else {
            format!("m{number}")
        };
        server.wait_for_log(&format!(
            "peer is {found} while {doing}, health check \"{name}\" of peer {} in upstream \"u{number}\"\n",
            backend.address()
        ));
        let answer = ask(&server, &format!("/{number}/"));
        assert_eq!(answer.status, status, "{tests}");
    }
}

support::test_on_each_engine!(what_an_answer_must_be_like);

/// Of a long body the first 256k are examined, and nothing behind them is waited for.
fn long_bodies_are_examined_at_their_beginning(engine: &'static str) {
    const LENGTH: usize = 256 * 1024;
    let [within, beyond] = [LENGTH - 3, LENGTH - 2].map(|at| {
        let text = format!("{}end{}", "x".repeat(at), "x".repeat(LENGTH));
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}0\r\n\r\n", text.len());
        Backend::answering("x", &(head + &text))
    });
    let groups = [&within, &beyond].map(|backend| backend.address());
    let [within, beyond] = &groups;
    let server = Server::start(
        engine,
        &format!(
            "location /within {{ proxy_pass http://within; health_check mandatory uri=/check match=end; }}\n\
             location /beyond {{ proxy_pass http://beyond; health_check mandatory uri=/check match=end; }}\n\
             [http]\nmatch end {{ body ~ end; }}\n\
             upstream within {{ zone a 64k; server {within}; }}\n\
             upstream beyond {{ zone b 64k; server {beyond}; }}\n"
        ),
    );
    server.wait_for_log(&format!(
        "peer is healthy while checking body, health check \"end\" of peer {within}"
    ));
    server.wait_for_log(&format!(
        "peer is unhealthy while checking body, health check \"end\" of peer {beyond}"
    ));
}

support::test_on_each_engine!(long_bodies_are_examined_at_their_beginning);

fn results_count_in_a_row(engine: &'static str) {
    let a = Backend::asked("a");
    let group = format!("server {};", a.address());
    let location = "health_check interval=20ms fails=3 passes=2 uri=/check;";
    let server = Server::start(engine, &lines(1, &group, location));
    // Without `mandatory` it gets requests before it has passed.
    let mut next = a.check();
    assert_eq!(status(&server), 200);
    let answered = |check: Check, answer: &str| {
        check.answer(answer);
        let next = a.check();
        (next, status(&server))
    };
    let mut seen = Vec::new();
    for answer in [ILL, ILL, WELL, ILL, ILL, ILL, WELL, ILL, WELL, WELL] {
        let (check, status) = answered(next, answer);
        next = check;
        seen.push(status);
    }
    assert_eq!(seen, [200, 200, 200, 200, 200, 502, 502, 502, 502, 200]);
    assert_eq!(
        said(&server, "peer is unhealthy while checking status code"),
        1
    );
    assert_eq!(
        said(&server, "peer is healthy while checking status code"),
        1
    );
    assert!(said(&server, "no live upstreams while connecting to upstream") >= 4);
}

support::test_on_each_engine!(results_count_in_a_row);

/// What probes are like: the location's fields, the group's name, no more than one at a time.
fn checks_are_asked_by_the_settings_of_the_location(engine: &'static str) {
    let [a, b, c] = ["a", "b", "c"].map(Backend::asked);
    let other = Backend::asked("other");
    let group = format!(
        "server {}; server {} down; server {} drain;",
        a.address(),
        b.address(),
        c.address()
    );
    let location = "proxy_set_header X-Set set; proxy_set_header X-Empty $arg_x;\n\
         health_check interval=50ms uri=/check?x=y;";
    let server = Server::start(engine, &lines(1, &group, location));
    let check = a.check();
    assert_eq!(
        check.head,
        "GET /check?x=y HTTP/1.1\r\nHost: u\r\nX-Set: set\r\nConnection: close\r\n\r\n"
    );
    // A server on its way out is asked, one that is down is not.
    c.check().answer(WELL);
    c.check().answer(WELL);
    assert_eq!(b.checks(), 0);
    // The first has not been answered.
    sleep(Duration::from_millis(200));
    assert_eq!(a.checks(), 1);
    check.answer(WELL);

    // Another port is asked in the place of the servers' own, in one location of two.
    let both = format!(
        "location /b {{ proxy_pass http://u; proxy_http_version 1.0; proxy_set_header Host h;\n\
         health_check interval=50ms uri=/check port={}; }}\n",
        other.port
    );
    a.answer_all(WELL);
    c.answer_all(WELL);
    server.reload(
        &(both
            + &lines(
                2,
                &format!("server {};", a.address()),
                "health_check interval=50ms uri=/check;",
            )),
    );
    wait_for(&server, 2);
    let check = other.check();
    assert_eq!(
        check.head,
        "GET /check HTTP/1.0\r\nHost: h\r\nConnection: close\r\n\r\n"
    );
    check.answer(WELL);
    other.check().answer(ILL);
    // One check that is failed is enough, whatever the other says.
    let line = format!(
        "health check \"\" of peer {} in upstream \"u\", port {}",
        a.address(),
        other.port
    );
    server.wait_for_log(&format!(
        "peer is unhealthy while checking status code, {line}"
    ));
    let (asked, check) = (a.checks(), other.check());
    until("checks of its own port", || a.checks() >= asked + 3);
    assert_eq!(status(&server), 502);
    check.answer(WELL);
    other.check().answer(WELL);
    assert_eq!(status(&server), 200);
}

support::test_on_each_engine!(checks_are_asked_by_the_settings_of_the_location);

fn a_connection_serves_the_checks_of_its_time(engine: &'static str) {
    let [kept, anew] = ["a", "b"].map(|letter| Backend::answering(letter, WELL));
    let server = Server::start(
        engine,
        &format!(
            "location /kept {{ proxy_pass http://kept; health_check interval=20ms uri=/check keepalive_time=1h; }}\n\
             location /anew {{ proxy_pass http://anew; health_check interval=20ms uri=/check keepalive_time=100ms; }}\n\
             [http]\nupstream kept {{ zone a 64k; server {}; }} upstream anew {{ zone b 64k; server {}; }}\n",
            kept.address(),
            anew.address()
        ),
    );
    let connections = |of: &Backend| of.shared.connections.load(Ordering::SeqCst);
    until("checks", || kept.checks() >= 20 && connections(&anew) >= 3);
    assert_eq!(connections(&kept), 1);
    assert!(anew.checks() > connections(&anew));
    // A connection that has been closed meanwhile is no fault of its server.
    let closing = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    kept.answer_all(closing);
    sleep(Duration::from_millis(100));
    assert_eq!(said(&server, "unhealthy"), 0);
}

support::test_on_each_engine!(a_connection_serves_the_checks_of_its_time);

fn a_server_must_pass_first_where_that_is_mandatory(engine: &'static str) {
    let [a, b] = ["a", "b"].map(Backend::asked);
    let group = format!("server {}; server {};", a.address(), b.address());
    let location = "health_check mandatory interval=20ms passes=2 uri=/check;";
    let server = Server::start(engine, &lines(1, &group, location));
    let (of_a, of_b) = (a.check(), b.check());
    assert_eq!(status(&server), 502);
    of_a.answer(WELL);
    let of_a = a.check();
    assert_eq!(who(&server, 4), "aaaa");
    of_b.answer(ILL);
    let of_b = b.check();
    assert_eq!(who(&server, 4), "aaaa");
    server.wait_for_log("peer is unhealthy while checking status code");

    // A reload has it pass again.
    server.reload(&lines(2, &group, location));
    wait_for(&server, 2);
    let again = a.check();
    assert_eq!(status(&server), 502);
    of_b.answer(WELL);
    of_a.answer(ILL);
    again.answer(WELL);
    let again = a.check();
    assert_eq!(who(&server, 3), "aaa");

    // But where that is persistent; what is new has to.
    let c = Backend::asked("c");
    let more = format!("{group} server {};", c.address());
    let persistent = "health_check mandatory persistent interval=20ms uri=/check;";
    server.reload(&lines(3, &more, persistent));
    wait_for(&server, 3);
    let (third, of_c) = (a.check(), c.check());
    again.answer(WELL);
    assert_eq!(who(&server, 4), "aaaa");
    of_c.answer(WELL);
    let _of_c = c.check();
    assert_eq!(count(&who(&server, 6), 'c'), 3);
    third.answer(ILL);
    let _fourth = a.check();
    assert_eq!(who(&server, 3), "ccc");
    assert_eq!(b.requests(), 0);
}

support::test_on_each_engine!(a_server_must_pass_first_where_that_is_mandatory);

/// Without `mandatory` a reload forgets nothing, and nothing that is found by the generation before
/// counts behind it.
fn a_check_that_outlives_its_generation_counts_nowhere(engine: &'static str) {
    let [a, b] = ["a", "b"].map(Backend::asked);
    let group = format!("server {}; server {};", a.address(), b.address());
    let location = "health_check interval=30ms uri=/check;";
    let server = Server::start(engine, &lines(1, &group, location));
    b.answer_all(WELL);
    a.check().answer(ILL);
    let mut before = a.check();
    assert_eq!(who(&server, 3), "bbb");
    for generation in 2..5 {
        server.reload(&lines(generation, &group, location));
        wait_for(&server, generation);
        // It is asked again, and unhealthy still.
        let now = a.check();
        assert_eq!(who(&server, 3), "bbb");
        before.answer(WELL);
        sleep(Duration::from_millis(50));
        assert_eq!(who(&server, 3), "bbb");
        before = now;
    }
    // One prober is at work: it waits for the answer that is due.
    let asked = a.checks();
    sleep(Duration::from_millis(200));
    assert_eq!(a.checks(), asked);
    before.answer(WELL);
    let next = a.check();
    assert_eq!(count(&who(&server, 4), 'a'), 2);
    // A location without checks ends them, and what they have found.
    next.answer(ILL);
    let _held = a.check();
    assert_eq!(who(&server, 3), "bbb");
    server.reload(&lines(5, &group, ""));
    wait_for(&server, 5);
    assert_eq!(count(&who(&server, 4), 'a'), 2);
    // The last one may just be under way.
    sleep(Duration::from_millis(200));
    let (of_a, of_b) = (a.checks(), b.checks());
    sleep(Duration::from_millis(200));
    assert_eq!((a.checks(), b.checks()), (of_a, of_b));
    assert_eq!(said(&server, "peer is unhealthy"), 2);
}

support::test_on_each_engine!(a_check_that_outlives_its_generation_counts_nowhere);

/// A server that accepts and says nothing, one that sends a byte a second, one that resets, and one
/// that is not there.
fn servers_that_do_not_answer(engine: &'static str) {
    let [a, silent, slow, slower] = ["a", "s", "d", "e"].map(Backend::asked);
    a.answer_all(WELL);
    let gone = support::port::free_port();
    let resets = TcpListener::bind("127.0.0.1:0").unwrap();
    let reset_port = resets.local_addr().unwrap().port();
    std::thread::spawn(move || resets.incoming().flatten().for_each(drop));
    let (dripping, drips) = channel::<()>();
    let group = format!(
        "server {}; server {}; server {}; server {}; server 127.0.0.1:{gone} max_fails=0; server 127.0.0.1:{reset_port} max_fails=0;",
        a.address(),
        silent.address(),
        slow.address(),
        slower.address()
    );
    let location = "proxy_read_timeout 1s; proxy_next_upstream off;\n\
         health_check mandatory interval=100ms jitter=50ms uri=/check match=done;";
    let server = Server::start(
        engine,
        &(lines(1, &group, location) + "match done { body ~ k$; }\n"),
    );
    let start = Instant::now();
    let _held = silent.check();
    // One has its head sent whole and drips its body, the other drips its head.
    let whole = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
    let begun = "HTTP/1.1 200 OK\r\nX-Long: ";
    for (mut drip, begin) in [(slow.check(), whole), (slower.check(), begun)] {
        drip.stream.write_all(begin.as_bytes()).unwrap();
        let dripping = dripping.clone();
        std::thread::spawn(move || {
            while drip.stream.write_all(b"k").is_ok() {
                sleep(Duration::from_millis(20));
            }
            let _ = dripping.send(());
        });
    }
    let unhealthy = |doing: &str, port: u16| {
        let line = format!(
            "peer is unhealthy while {doing}, health check \"done\" of peer 127.0.0.1:{port} in"
        );
        server.wait_for_log(&line);
    };
    unhealthy("connecting to upstream", gone);
    unhealthy("reading response header from upstream", reset_port);
    unhealthy("reading response header from upstream", silent.port);
    unhealthy("reading upstream", slow.port);
    unhealthy("reading response header from upstream", slower.port);
    let took = start.elapsed();
    assert!(
        took >= Duration::from_secs(1) && took < Duration::from_secs(5),
        "{took:?}"
    );
    // The connections of those that have taken too long are given up.
    for _ in 0..2 {
        drips.recv_timeout(PATIENCE).unwrap();
    }
    server.wait_for_log(
        "upstream timed out (110: Connection timed out) while reading upstream, health check",
    );
    server.wait_for_log("upstream timed out (110: Connection timed out) while reading response header from upstream, health check");
    // No request has been tried on any of them.
    assert_eq!(who(&server, 20), "a".repeat(20));
    assert_eq!(silent.requests() + slow.requests() + slower.requests(), 0);
}

support::test_on_each_engine!(servers_that_do_not_answer);

/// A server that dies while it serves gets no request once its checks have said so.
fn a_server_that_dies_is_left_alone_in_time(engine: &'static str) {
    let [a, b] = ["a", "b"].map(|letter| Backend::answering(letter, WELL));
    let group = format!(
        "server {} max_fails=0; server {};",
        a.address(),
        b.address()
    );
    let location =
        "proxy_read_timeout 500ms; health_check interval=100ms jitter=50ms fails=2 uri=/check;";
    let server = Server::start(engine, &lines(1, &group, location));
    assert_eq!(count(&who(&server, 8), 'a'), 4);
    *a.shared.answer.lock().unwrap() = None;
    // fails * (interval + jitter + timeout), and some time for a machine that is busy.
    sleep(Duration::from_millis(2 * (100 + 50 + 500) + 700));
    let requests = a.requests();
    assert_eq!(who(&server, 20), "b".repeat(20));
    assert_eq!(a.requests(), requests);
    a.answer_all(WELL);
    server.wait_for_log("peer is healthy while checking status code");
    assert_eq!(count(&who(&server, 8), 'a'), 4);
}

support::test_on_each_engine!(a_server_that_dies_is_left_alone_in_time);

fn servers_that_speak_tls_are_checked_so(engine: &'static str) {
    let secure = support::port::free_port();
    let tls = format!("{}/tests/tls/upstream", env!("CARGO_MANIFEST_DIR"));
    let server = Server::start(
        engine,
        &format!(
            "location / {{ proxy_pass https://u; proxy_ssl_name good.example; proxy_ssl_verify on;\n\
             proxy_ssl_trusted_certificate {tls}/ca.crt; health_check mandatory interval=50ms uri=/check match=named; }}\n\
             location /other {{ proxy_pass https://v; proxy_ssl_name bad.example; proxy_ssl_verify on;\n\
             proxy_ssl_trusted_certificate {tls}/ca.crt; health_check interval=50ms uri=/check match=named; }}\n\
             [http]\nmatch named {{ body ~ \"^secure /check\"; }}\n\
             upstream u {{ zone u 64k; server 127.0.0.1:{secure}; }} upstream v {{ zone v 64k; server 127.0.0.1:{secure}; }}\n\
             server {{ listen 127.0.0.1:{secure} ssl; ssl_certificate {tls}/good.example.crt; ssl_certificate_key {tls}/good.example.key;\n\
             return 200 \"secure $uri\"; }}"
        ),
    );
    server.wait_for_log("peer is healthy while checking body, health check \"named\" of peer");
    assert_eq!(status(&server), 200);
    server.wait_for_log(
        "peer is unhealthy while SSL handshaking to upstream, health check \"named\" of peer",
    );
    server.wait_for_log("in upstream \"v\"");
    assert_eq!(ask(&server, "/other").status, 502);
}

support::test_on_each_engine!(servers_that_speak_tls_are_checked_so);

fn a_server_that_is_well_again_begins_slowly(engine: &'static str) {
    let [a, b] = ["a", "b"].map(|letter| Backend::answering(letter, WELL));
    let location = "health_check interval=20ms uri=/check;";
    let group = |slow: &str| format!("server {} {slow}; server {};", a.address(), b.address());
    let server = Server::start(engine, &lines(1, &group("slow_start=4s"), location));
    let falls = |times: usize| {
        a.answer_all(ILL);
        until("unhealthy", || said(&server, "peer is unhealthy") == times);
        assert_eq!(who(&server, 4), "bbbb");
        a.answer_all(WELL);
        until("healthy", || said(&server, "peer is healthy") == times);
    };
    // What has never been away begins with its whole weight.
    assert_eq!(count(&who(&server, 100), 'a'), 50);
    falls(1);
    let at_once = count(&who(&server, 100), 'a');
    assert!(at_once <= 25, "{at_once}");
    sleep(Duration::from_millis(4100));
    assert_eq!(count(&who(&server, 100), 'a'), 50);

    // Over a reload it goes on where it was.
    server.reload(&lines(2, &group("slow_start=1000s"), location));
    wait_for(&server, 2);
    falls(2);
    let before = count(&who(&server, 100), 'a');
    assert!(before <= 5, "{before}");
    server.reload(&lines(3, &group("slow_start=1000s"), location));
    wait_for(&server, 3);
    let behind = count(&who(&server, 100), 'a');
    assert!(behind <= 5, "{behind}");
    // Without it there is nothing to wait for.
    server.reload(&lines(4, &group(""), location));
    wait_for(&server, 4);
    assert_eq!(count(&who(&server, 100), 'a'), 50);
    falls(3);
    assert_eq!(count(&who(&server, 100), 'a'), 50);
}

support::test_on_each_engine!(a_server_that_is_well_again_begins_slowly);

/// One that is alone, be it in its group or among those that are well, gets everything however
/// slowly it begins.
fn a_slow_start_leaves_no_group_without_a_server(engine: &'static str) {
    let [a, b] = ["a", "b"].map(|letter| Backend::answering(letter, WELL));
    let location = "health_check interval=20ms uri=/check;";
    for others in [
        String::new(),
        format!("server {} backup slow_start=1000s;", b.address()),
    ] {
        let group = format!("server {} slow_start=1000s; {others}", a.address());
        let server = Server::start(engine, &lines(1, &group, location));
        assert_eq!(who(&server, 2), "aa");
        a.answer_all(ILL);
        server.wait_for_log("peer is unhealthy");
        if others.is_empty() {
            assert_eq!(status(&server), 502)
        } else {
            assert_eq!(who(&server, 3), "bbb")
        }
        a.answer_all(WELL);
        server.wait_for_log("peer is healthy");
        assert_eq!(who(&server, 10), "a".repeat(10));
    }
}

support::test_on_each_engine!(a_slow_start_leaves_no_group_without_a_server);

/// Failed tries are followed by a slow start, too, without any check.
fn a_server_that_had_failed_begins_slowly(engine: &'static str) {
    let b = Backend::answering("b", WELL);
    let port = support::port::free_port();
    let group = format!(
        "server 127.0.0.1:{port} fail_timeout=1s slow_start=1000s; server {};",
        b.address()
    );
    let server = Server::start(engine, &lines(1, &group, ""));
    assert_eq!(who(&server, 4), "bbbb");
    server.wait_for_log("upstream server temporarily disabled while connecting to upstream");
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na";
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    sleep(Duration::from_millis(2100));
    let first = who(&server, 4);
    assert_eq!(count(&first, 'a'), 1, "{first}");
    let more = count(&who(&server, 100), 'a');
    assert!(more <= 3, "{more}");
}

support::test_on_each_engine!(a_server_that_had_failed_begins_slowly);

/// Where there is nothing to ask with, that says nothing of the servers.
fn what_is_no_fault_of_a_server_does_not_count(engine: &'static str) {
    let a = Backend::answering("a", WELL);
    let group = format!("server {};", a.address());
    // An address of documentation, which no machine has.
    let location = "health_check interval=20ms uri=/check; proxy_bind $bind;";
    let map = "map $upstream_addr $bind { default 192.0.2.1; } ";
    let server = Server::start(engine, &(lines(1, &group, location) + map));
    until("checks", || {
        said(
            &server,
            "bind(192.0.2.1) failed (99: Cannot assign requested address) while connecting to upstream, health check",
        ) >= 3
    });
    assert_eq!(said(&server, "unhealthy"), 0);
    assert_eq!(status(&server), 500);
}

support::test_on_each_engine!(what_is_no_fault_of_a_server_does_not_count);
