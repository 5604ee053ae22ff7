//! What becomes of more requests than an upstream can do: `concurrency_limit`, `queue`, and Unix
//! sockets with a full backlog. On both engines.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use proto::h2::{ErrorCode, frame};
use support::master::wait_for;
use support::{PATIENCE, Server, http2, origin};

/// An upstream that answers a request when the test lets it, with the path that was asked for.
struct Upstream {
    port: u16,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    /// How many more may be answered.
    open: Mutex<usize>,
    opened: Condvar,
    under_way: AtomicUsize,
    most: AtomicUsize,
    paths: Mutex<Vec<String>>,
}

impl Upstream {
    fn start() -> Upstream {
        let gate = Arc::<Gate>::default();
        let shared = Arc::clone(&gate);
        let port = origin::listen(move |stream| serve(stream, &shared));
        Upstream { port, gate }
    }

    /// Lets so many more answers go.
    fn answer(&self, count: usize) {
        *self.gate.open.lock().unwrap() += count;
        self.gate.opened.notify_all();
    }

    fn answer_all(&self) {
        self.answer(1_000_000);
    }

    fn paths(&self) -> Vec<String> {
        self.gate.paths.lock().unwrap().clone()
    }

    fn wait_for(&self, count: usize) {
        wait_for("requests at the upstream", || self.paths().len() == count);
    }

    fn most(&self) -> usize {
        self.gate.most.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: impl Read + Write, gate: &Gate) {
    let mut head = Vec::new();
    let mut byte = [0];
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let path = String::from_utf8_lossy(&head);
        let path = path.split(' ').nth(1).unwrap().to_owned();
        head.clear();
        let now = gate.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        gate.most.fetch_max(now, Ordering::SeqCst);
        gate.paths.lock().unwrap().push(path.clone());
        let mut open = gate.open.lock().unwrap();
        while *open == 0 {
            open = gate.opened.wait(open).unwrap();
        }
        *open -= 1;
        drop(open);
        gate.under_way.fetch_sub(1, Ordering::SeqCst);
        let length = path.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{path}");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn begin(port: u16, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn end(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn get(server: &Server, path: &str) -> String {
    end(begin(server.port, path))
}

fn status(answer: &str) -> u16 {
    let status = answer.split(' ').nth(1);
    status.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let head = answer.split("\r\n\r\n").next()?;
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let mut named = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
    named.next().map(|(_, value)| value)
}

/// A number of `metrics` about the group `app`, if there is one.
fn find(server: &Server, name: &str) -> Option<u64> {
    let page = get(server, "/metrics");
    let start = format!("tidegate_upstream_{name}{{upstream=\"app\"}} ");
    let line = page.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(line.trim().parse().unwrap())
}

fn number(server: &Server, name: &str) -> u64 {
    find(server, name).unwrap_or_else(|| panic!("no {name}: {}", server.error_log()))
}

fn wait_for_waiting(server: &Server, count: u64) {
    wait_for("requests that wait", || number(server, "waiting") == count);
}

/// A server whose `/` leads to a group of one with these lines.
fn lines(upstream: &Upstream, group: &str, more: &str) -> String {
    let port = upstream.port;
    format!(
        "location / {{ proxy_pass http://app; {more} }}
         location = /metrics {{ metrics prometheus; }}
         location = /static {{ return 200 quick; }}
[http]
         upstream app {{ server 127.0.0.1:{port}; {group} }}"
    )
}

fn so_many_are_under_way_and_the_rest_comes_in_its_turn(engine: &'static str) {
    for limit in [1, 3] {
        let upstream = Upstream::start();
        let group = format!("concurrency_limit {limit}; queue 100 timeout=1h;");
        let server = Server::start_workers(2, engine, &lines(&upstream, &group, ""));
        let mut clients = Vec::new();
        for number in 0..limit {
            clients.push(begin(server.port, &format!("/{number}")));
        }
        upstream.wait_for(limit);
        for number in limit..10 {
            clients.push(begin(server.port, &format!("/{number}")));
            wait_for_waiting(&server, (number + 1 - limit) as u64);
        }
        assert_eq!(number(&server, "limit"), limit as u64);
        assert_eq!(number(&server, "under_way"), limit as u64);
        assert_eq!(status(&get(&server, "/static")), 200);
        for answered in 1..=10 - limit {
            upstream.answer(1);
            upstream.wait_for(limit + answered);
        }
        upstream.answer_all();
        for (number, client) in clients.into_iter().enumerate() {
            let answer = end(client);
            assert!(answer.ends_with(&format!("\r\n/{number}")), "{answer}");
        }
        assert_eq!(upstream.most(), limit);
        let paths = upstream.paths();
        let in_turn: Vec<String> = (limit..10).map(|number| format!("/{number}")).collect();
        assert_eq!(paths[limit..], in_turn);
        wait_for("the end", || number(&server, "under_way") == 0);
        assert_eq!(number(&server, "refused_total"), 0);
    }
}

support::test_on_each_engine!(so_many_are_under_way_and_the_rest_comes_in_its_turn);

fn where_there_is_no_room_the_answer_comes_at_once(engine: &'static str) {
    for room in [1, 2] {
        let upstream = Upstream::start();
        let group = format!("concurrency_limit 1; queue {room} timeout=1h;");
        let more = "error_page 503 /busy; add_header X-Queue $upstream_queue_time always;";
        let text = lines(&upstream, &group, "")
            .replace("location /", &format!("location = /page {{ {more} proxy_pass http://app; }} location = /busy {{ internal; return 503 busy; }} location /"));
        let server = Server::start(engine, &text);
        let first = begin(server.port, "/first");
        upstream.wait_for(1);
        let waiting: Vec<TcpStream> = (1..=room)
            .map(|number| {
                let client = begin(server.port, &format!("/{number}"));
                wait_for_waiting(&server, number);
                client
            })
            .collect();
        let began = Instant::now();
        let answer = get(&server, "/more");
        assert_eq!(status(&answer), 503, "{answer}");
        let seconds = field(&answer, "Retry-After").map(|text| text.parse::<u64>().unwrap());
        assert!((1..=60).contains(&seconds.unwrap()), "{answer}");
        let answer = get(&server, "/page");
        assert!(
            answer.ends_with("busy") && status(&answer) == 503,
            "{answer}"
        );
        assert!(field(&answer, "Retry-After").is_some(), "{answer}");
        assert!(began.elapsed() < Duration::from_secs(5));
        assert_eq!(number(&server, "refused_total"), 2);
        server.wait_for_log(&format!(
            "upstream \"app\" has 1 requests under way and {room} waiting, refused while connecting to upstream"
        ));
        upstream.answer_all();
        assert_eq!(status(&end(first)), 200);
        for client in waiting {
            assert_eq!(status(&end(client)), 200);
        }
        assert_eq!(upstream.paths().len() as u64, 1 + room);
    }
}

support::test_on_each_engine!(where_there_is_no_room_the_answer_comes_at_once);

fn one_that_has_waited_for_too_long_is_never_sent(engine: &'static str) {
    let upstream = Upstream::start();
    let group = "concurrency_limit 1; queue 5 timeout=300ms;";
    let text = lines(&upstream, group, "").replacen(
        "location /",
        "access_log logs/q.log q; location /",
        1,
    ) + "log_format q '$uri $upstream_status $upstream_queue_time';";
    let server = Server::start(engine, &text);
    let first = begin(server.port, "/first");
    upstream.wait_for(1);
    let began = Instant::now();
    let answer = get(&server, "/late");
    assert_eq!(status(&answer), 503, "{answer}");
    assert!(field(&answer, "Retry-After").is_some(), "{answer}");
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(number(&server, "expired_total"), 1);
    server.wait_for_log("it has waited for 0.3 s, refused while connecting to upstream");
    server.wait_for_line("q.log", "/late 503 0.3");
    upstream.answer_all();
    assert_eq!(status(&end(first)), 200);
    assert_eq!(status(&get(&server, "/next")), 200);
    assert_eq!(upstream.paths(), ["/first", "/next"]);
}

support::test_on_each_engine!(one_that_has_waited_for_too_long_is_never_sent);

fn a_client_that_has_gone_is_never_asked_for(engine: &'static str) {
    let upstream = Upstream::start();
    let server = Server::start(
        engine,
        &lines(&upstream, "concurrency_limit 1; queue 100 timeout=1h;", ""),
    );
    let first = begin(server.port, "/first");
    upstream.wait_for(1);
    let gone = begin(server.port, "/gone");
    wait_for_waiting(&server, 1);
    let last = begin(server.port, "/last");
    wait_for_waiting(&server, 2);
    drop(gone);
    wait_for_waiting(&server, 1);
    upstream.answer_all();
    assert_eq!(status(&end(first)), 200);
    assert_eq!(status(&end(last)), 200);
    assert_eq!(upstream.paths(), ["/first", "/last"]);
    // One that leaves while it is under way gives its place back.
    *upstream.gate.open.lock().unwrap() = 0;
    let gone = begin(server.port, "/under-way");
    upstream.wait_for(3);
    let waits = begin(server.port, "/waits");
    wait_for_waiting(&server, 1);
    drop(gone);
    upstream.wait_for(4);
    upstream.answer_all();
    assert_eq!(status(&end(waits)), 200);
    wait_for("the end", || number(&server, "under_way") == 0);
}

support::test_on_each_engine!(a_client_that_has_gone_is_never_asked_for);

fn a_reload_changes_the_limit_at_once_and_forgets_no_one(engine: &'static str) {
    let upstream = Upstream::start();
    let with = |group: &str| lines(&upstream, group, "");
    let server = Server::start(engine, &with("concurrency_limit 1; queue 100 timeout=1h;"));
    let mut clients = vec![begin(server.port, "/0")];
    upstream.wait_for(1);
    for waiting in 1..=5 {
        clients.push(begin(server.port, &format!("/{waiting}")));
        wait_for_waiting(&server, waiting);
    }
    let limited = |limit: u64| {
        server.reload(&with(&format!(
            "concurrency_limit {limit}; queue 100 timeout=1h;"
        )));
        wait_for("the limit", || find(&server, "limit") == Some(limit));
    };
    limited(3);
    upstream.wait_for(3);
    wait_for_waiting(&server, 3);
    // Fewer than are under way: they go on, and no other comes until there is room.
    limited(2);
    upstream.answer(1);
    wait_for("an end", || number(&server, "under_way") == 2);
    assert_eq!(upstream.paths().len(), 3);
    upstream.answer(1);
    upstream.wait_for(4);
    assert_eq!(number(&server, "under_way"), 2);
    // Without a limit all go on.
    server.reload(&with(""));
    upstream.wait_for(6);
    upstream.answer_all();
    for client in clients {
        assert_eq!(status(&end(client)), 200);
    }
    limited(7);
    wait_for("the end", || number(&server, "under_way") == 0);
    server.reload(&with("concurrency_limit adaptive;"));
    wait_for("the limit", || find(&server, "limit") == Some(2));
    assert_eq!(status(&get(&server, "/after")), 200);
}

support::test_on_each_engine!(a_reload_changes_the_limit_at_once_and_forgets_no_one);

fn an_adaptive_limit_grows_with_what_the_servers_can_do(engine: &'static str) {
    let upstream = Upstream::start();
    upstream.answer_all();
    let server = Server::start(engine, &lines(&upstream, "concurrency_limit adaptive;", ""));
    let stop = Arc::new(AtomicUsize::new(0));
    let port = server.port;
    let users: Vec<_> = (0..20)
        .map(|_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut count = 0;
                while stop.load(Ordering::SeqCst) == 0 {
                    let answer = end(begin(port, "/x"));
                    assert_eq!(status(&answer), 200, "{answer}");
                    count += 1;
                }
                count
            })
        })
        .collect();
    wait_for("a limit above the least", || number(&server, "limit") > 3);
    stop.store(1, Ordering::SeqCst);
    let served: usize = users.into_iter().map(|user| user.join().unwrap()).sum();
    assert!(served > 20);
    wait_for("the end", || number(&server, "under_way") == 0);
    assert_eq!(number(&server, "waiting"), 0);
}

support::test_on_each_engine!(an_adaptive_limit_grows_with_what_the_servers_can_do);

fn those_that_hang_do_not_hold_up_the_others(engine: &'static str) {
    let upstream = Upstream::start();
    let server = Server::start(engine, &lines(&upstream, "concurrency_limit adaptive;", ""));
    // Nothing is known of the servers yet: two may be under way.
    let mut clients = vec![begin(server.port, "/0"), begin(server.port, "/1")];
    upstream.wait_for(2);
    clients.push(begin(server.port, "/2"));
    wait_for_waiting(&server, 1);
    upstream.wait_for(3);
    upstream.answer_all();
    for client in clients {
        assert_eq!(status(&end(client)), 200);
    }
    wait_for("the end", || number(&server, "under_way") == 0);
}

support::test_on_each_engine!(those_that_hang_do_not_hold_up_the_others);

fn a_request_counts_once_however_many_servers_it_tries_and_a_tunnel_not_at_all(
    engine: &'static str,
) {
    let upstream = Upstream::start();
    let broken = support::port::free_port(); // nothing listens there
    let port = upstream.port;
    let upgrade = TcpListener::bind("127.0.0.1:0").unwrap();
    let upgrade_port = upgrade.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in upgrade.incoming().flatten() {
            thread::spawn(move || {
                let mut head = [0; 1000];
                let _ = stream.read(&mut head);
                let _ = stream.write_all(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
                );
                let _ = stream.read(&mut head);
            });
        }
    });
    let text = format!(
        "location / {{ proxy_pass http://app; }}
             location /up {{ proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Upgrade x; proxy_set_header Connection upgrade; }}
             location = /metrics {{ metrics prometheus; }}
[http]
         upstream app {{ server 127.0.0.1:{broken} max_fails=0; server 127.0.0.1:{port}; server 127.0.0.1:{broken} backup; concurrency_limit 1; keepalive 4; }}
             upstream up {{ server 127.0.0.1:{upgrade_port}; concurrency_limit 1; }}"
    );
    let server = Server::start(engine, &text);
    upstream.answer_all();
    for _ in 0..10 {
        assert_eq!(status(&get(&server, "/a")), 200);
    }
    wait_for("the end", || number(&server, "under_way") == 0);
    let mut tunnels = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(b"GET /up HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
            .unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 101");
        tunnels.push(stream);
    }
}

support::test_on_each_engine!(
    a_request_counts_once_however_many_servers_it_tries_and_a_tunnel_not_at_all
);

/// What a request asks for beside itself waits for a place that the request itself may have.
fn parts_of_a_page_come_one_after_the_other(engine: &'static str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut head = [0; 2000];
                let length = stream.read(&mut head).unwrap();
                let head = String::from_utf8_lossy(&head[..length]).into_owned();
                let path = head.split(' ').nth(1).unwrap().to_owned();
                let include = "<!--#include virtual=\"/part\" -->";
                let body = match &*path {
                    "/short" => format!("a {include} b {include}"),
                    "/long" => format!("a {include} {} {include}", "x".repeat(3 << 20)),
                    _ => path,
                };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\r\n"
                );
                let _ = stream.write_all((head + &body).as_bytes());
            });
        }
    });
    let text = format!(
        "ssi on; mirror /mirrored;
             location / {{ auth_request /allowed; proxy_pass http://app; }}
             location = /allowed {{ mirror off; proxy_pass http://app; }}
             location = /mirrored {{ internal; mirror off; ssi off; proxy_pass http://app; }}
             location = /metrics {{ mirror off; metrics prometheus; }}
[http]
upstream app {{ server 127.0.0.1:{port}; concurrency_limit 1; }}"
    );
    let server = Server::start(engine, &text);
    for (path, length) in [("/short", 10), ("/long", 3 << 20)] {
        let answer = get(&server, path);
        assert_eq!(status(&answer), 200, "{answer}");
        assert_eq!(
            answer.matches("/part").count(),
            2,
            "{} of {length}",
            answer.len()
        );
    }
    wait_for("the end", || number(&server, "under_way") == 0);
    assert_eq!(
        number(&server, "expired_total"),
        0,
        "{}",
        server.error_log()
    );
}

support::test_on_each_engine!(parts_of_a_page_come_one_after_the_other);

fn streams_of_one_client_wait_and_leave_by_themselves(engine: &'static str) {
    let upstream = Upstream::start();
    let group = "concurrency_limit 1; queue 10 timeout=1h;";
    let server = Server::start(
        engine,
        &lines(&upstream, group, "").replacen("location /", "http2 on; location /", 1),
    );
    let mut client = http2::Client::connect(server.port);
    let first = client.request("/first", &[]);
    upstream.wait_for(1);
    let gone = client.request("/gone", &[]);
    wait_for_waiting(&server, 1);
    let last = client.request("/last", &[]);
    wait_for_waiting(&server, 2);
    let mut reset = Vec::new();
    frame::put_reset(&mut reset, gone, ErrorCode::Cancel);
    client.send(&reset);
    wait_for_waiting(&server, 1);
    upstream.answer_all();
    assert_eq!(client.response(first).status, 200);
    assert_eq!(client.response(last).text(), "/last");
    assert_eq!(upstream.paths(), ["/first", "/last"]);
    // All of them leave with their connection.
    *upstream.gate.open.lock().unwrap() = 0;
    for _ in 0..5 {
        client.request("/never", &[]);
    }
    wait_for_waiting(&server, 4);
    drop(client);
    wait_for_waiting(&server, 0);
    wait_for("the end", || number(&server, "under_way") == 0);
}

support::test_on_each_engine!(streams_of_one_client_wait_and_leave_by_themselves);

fn a_request_may_go_on_without_its_client(engine: &'static str) {
    let upstream = Upstream::start();
    let group = "concurrency_limit 1; queue 10 timeout=1h;";
    let more = "proxy_ignore_client_abort on;";
    let server = Server::start(engine, &lines(&upstream, group, more));
    let first = begin(server.port, "/first");
    upstream.wait_for(1);
    drop(begin(server.port, "/gone"));
    wait_for_waiting(&server, 1);
    upstream.answer_all();
    assert_eq!(status(&end(first)), 200);
    upstream.wait_for(2);
    assert_eq!(upstream.paths(), ["/first", "/gone"]);
    wait_for("the end", || number(&server, "under_way") == 0);
}

support::test_on_each_engine!(a_request_may_go_on_without_its_client);

fn another_answer_in_its_place_does_not_tell_when_to_come_again(engine: &'static str) {
    let upstream = Upstream::start();
    let port = upstream.port;
    let text = format!(
        "location / {{ proxy_pass http://app; error_page 503 = @other; }}
             location @other {{ proxy_pass http://other; }}
             location = /metrics {{ metrics prometheus; }}
[http]
upstream app {{ server 127.0.0.1:{port}; concurrency_limit 1; queue 1 timeout=100ms; }}
upstream other {{ server 127.0.0.1:{port}; }}"
    );
    let server = Server::start(engine, &text);
    let first = begin(server.port, "/first");
    upstream.wait_for(1);
    let other = begin(server.port, "/other");
    upstream.wait_for(2);
    upstream.answer_all();
    assert_eq!(status(&end(first)), 200);
    let answer = end(other);
    assert_eq!(status(&answer), 200);
    assert_eq!(field(&answer, "Retry-After"), None, "{answer}");
}

support::test_on_each_engine!(another_answer_in_its_place_does_not_tell_when_to_come_again);

/// A Unix socket with room for two connections that it has not accepted, which accepts none until
/// it is told to.
struct Socket {
    folder: PathBuf,
    listener: UnixListener,
    filling: Vec<UnixStream>,
}

impl Socket {
    /// One that is full.
    fn full(name: &str) -> Socket {
        let folder = support::temporary_path(&format!("backlog-{name}"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            None,
        )
        .unwrap();
        let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 1).unwrap();
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(&path, permissions).unwrap();
        let filling = [(); 2].map(|()| UnixStream::connect(&path).unwrap());
        Socket {
            folder,
            listener: UnixListener::from(socket),
            filling: filling.into(),
        }
    }

    fn path(&self) -> String {
        self.folder.join("socket").display().to_string()
    }

    /// Accepts, and answers each of so many requests.
    fn accept(&mut self, count: usize) -> Vec<String> {
        self.filling.clear();
        let mut paths = Vec::new();
        while paths.len() < count {
            let (mut stream, _) = self.listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            if let Some(path) = head.split(' ').nth(1) {
                paths.push(path.to_owned());
                let _ = stream.write_all(
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
                );
            }
        }
        paths
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn a_full_backlog_is_waited_for(engine: &'static str) {
    let mut socket = Socket::full("waits");
    let path = socket.path();
    let text = format!(
        "error_log logs/error.log info;
             location / {{ proxy_pass http://unix:{path}:; }}
             location /group {{ proxy_pass http://app; }}
             location /named {{ set $to unix:{path}:; proxy_pass http://$to; }}
             location = /static {{ return 200 quick; }}
[http]
         upstream app {{ server unix:{path} max_fails=1; server 127.0.0.1:1 down; }}"
    );
    let server = Server::start(engine, &text);
    let names = [
        "/0", "/group/1", "/named/2", "/3", "/group/4", "/named/5", "/6",
    ];
    let mut clients = Vec::new();
    for name in names {
        clients.push(begin(server.port, name));
        thread::sleep(Duration::from_millis(30));
    }
    let gone = begin(server.port, "/gone");
    thread::sleep(Duration::from_millis(100));
    drop(gone);
    assert_eq!(status(&get(&server, "/static")), 200);
    server.wait_for_log("client prematurely closed connection, so upstream connection is closed too while connecting to upstream");
    let accepting = thread::spawn(move || (socket.accept(7), socket));
    for client in clients {
        let answer = end(client);
        assert_eq!(status(&answer), 200, "{}", server.error_log());
    }
    let (paths, _socket) = accepting.join().unwrap();
    assert_eq!(paths, names);
    let log = server.error_log();
    assert!(!log.contains("temporarily"), "{log}");
}

support::test_on_each_engine!(a_full_backlog_is_waited_for);

fn a_backlog_that_stays_full_is_a_connection_that_takes_too_long(engine: &'static str) {
    let mut socket = Socket::full("never");
    let path = socket.path();
    let text = format!(
        "location /short {{ fastcgi_connect_timeout 200ms; fastcgi_pass unix:{path}; }}
             location /long {{ fastcgi_connect_timeout 900ms; fastcgi_pass unix:{path}; }}
             location /uwsgi {{ uwsgi_connect_timeout 200ms; uwsgi_pass unix:{path}; }}
             location /scgi {{ scgi_connect_timeout 200ms; scgi_pass unix:{path}; }}
             location /memcached {{ set $memcached_key a; memcached_connect_timeout 200ms; memcached_pass unix:{path}; }}
             location /http {{ proxy_connect_timeout 200ms; proxy_pass http://app; }}
[http]
         upstream app {{ server unix:{path} max_fails=1 fail_timeout=60s; server 127.0.0.1:1 down; }}"
    );
    let server = Server::start(engine, &text);
    let took = |path: &str| {
        let began = Instant::now();
        let answer = get(&server, path);
        assert_eq!(status(&answer), 504, "{answer}");
        began.elapsed()
    };
    let short = took("/short");
    let long = took("/long");
    assert!(short >= Duration::from_millis(200), "{short:?}");
    assert!(long >= Duration::from_millis(900), "{long:?}");
    server.wait_for_log(
        "upstream timed out (110: Connection timed out) while connecting to upstream",
    );
    for path in ["/uwsgi", "/scgi", "/memcached", "/http"] {
        took(path);
    }
    // It has not been given up for that.
    let client = begin(server.port, "/http");
    assert_eq!(socket.accept(1), ["/http"]);
    assert_eq!(status(&end(client)), 200);
    assert!(!server.error_log().contains("disabled"));
}

support::test_on_each_engine!(a_backlog_that_stays_full_is_a_connection_that_takes_too_long);

fn another_server_is_asked_rather_than_a_full_one(engine: &'static str) {
    let socket = Socket::full("other");
    let upstream = Upstream::start();
    upstream.answer_all();
    let (path, port) = (socket.path(), upstream.port);
    let text = format!(
        "location / {{ proxy_pass http://app; }}
             location /off {{ proxy_connect_timeout 200ms; proxy_next_upstream off; proxy_pass http://app; }}
[http]
         upstream app {{ server unix:{path} max_fails=1 fail_timeout=60s; server 127.0.0.1:{port}; }}"
    );
    let server = Server::start(engine, &text);
    for _ in 0..6 {
        assert_eq!(status(&get(&server, "/a")), 200);
    }
    let mut both = [get(&server, "/off"), get(&server, "/off")].map(|answer| status(&answer));
    both.sort_unstable();
    assert_eq!(both, [200, 504]);
    assert!(!server.error_log().contains("disabled"));
}

support::test_on_each_engine!(another_server_is_asked_rather_than_a_full_one);

fn a_full_server_is_waited_for_while_the_others_are_out(engine: &'static str) {
    let mut socket = Socket::full("alone");
    let path = socket.path();
    let text = format!(
        "location / {{ proxy_pass http://app; }}
[http]
         upstream app {{ server 127.0.0.1:1 max_fails=1 fail_timeout=60s; server unix:{path}; }}"
    );
    let server = Server::start(engine, &text);
    let first = begin(server.port, "/0");
    server.wait_for_log("upstream server temporarily disabled");
    let second = begin(server.port, "/1");
    thread::sleep(Duration::from_millis(100));
    let accepting = thread::spawn(move || (socket.accept(2), socket));
    for client in [first, second] {
        assert_eq!(status(&end(client)), 200, "{}", server.error_log());
    }
    let (paths, _socket) = accepting.join().unwrap();
    assert_eq!(paths, ["/0", "/1"]);
}

support::test_on_each_engine!(a_full_server_is_waited_for_while_the_others_are_out);
