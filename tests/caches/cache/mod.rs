//! The content cache from outside: what is kept and given again, for all four families.
//!
//! On both engines; TIDEGATE_BINARY with nginx 1.31 checks what is expected. Bodies are compared by
//! their checksums.

mod bad_input;
mod files;
mod index;
mod lock;
mod memory;
mod numbers;
mod operators;
mod purge;
mod revalidation;
mod semantics;
mod sharing;
mod together;
mod update;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use support::application::{Application, Protocol};
use support::{PATIENCE, Server, is_nginx};

/// An upstream that speaks HTTP and keeps what it is asked.
struct Upstream {
    port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    /// Answers each request by what `answer` makes of its head and its number, from 0.
    fn start(answer: impl Fn(&str, usize) -> Vec<u8> + Send + Sync + 'static) -> Upstream {
        Upstream::writing(move |head, number, stream| {
            let _ = stream.write_all(&answer(head, number));
        })
    }

    /// The same where the answer is written part by part.
    fn writing(answer: impl Fn(&str, usize, &mut TcpStream) + Send + Sync + 'static) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let upstream = Upstream {
            port,
            seen: Arc::clone(&seen),
        };
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                thread::spawn(move || serve(stream, &seen, &*answer));
            }
        });
        upstream
    }

    fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// Waits until it has been asked so often.
    fn wait_for(&self, requests: usize) {
        until(|| self.requests() >= requests);
    }

    fn last(&self) -> String {
        self.seen.lock().unwrap().last().unwrap().clone()
    }
}

fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<String>>,
    answer: &dyn Fn(&str, usize, &mut TcpStream),
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.push(head.clone());
        seen.len() - 1
    };
    answer(&head, number, &mut stream);
}

/// Waits until something holds.
fn until(holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(5));
    }
}

/// An answer with these fields, each with its line end, and this body.
fn ok(fields: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// An answer as a client sees it.
#[derive(Debug)]
struct Answer {
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or("")
    }

    /// What `$upstream_cache_status` says.
    fn cache(&self) -> &str {
        self.field("X-Cache").unwrap_or("-")
    }
}

fn ask(server: &Server, request: &str) -> Answer {
    ask_at(server.port, request)
}

fn ask_at(port: u16, request: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head: {}", bytes.escape_ascii()));
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let body = bytes[end + 4..].to_vec();
    let is_chunked = head.contains("\r\nTransfer-Encoding: chunked");
    Answer {
        body: if is_chunked { unchunked(&body) } else { body },
        head,
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = bytes
            .windows(2)
            .position(|window| window == b"\r\n")
            .unwrap();
        let length = std::str::from_utf8(&bytes[..end]).unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + length]);
        bytes = &bytes[end + 4 + length..];
    }
}

/// GET with more fields, each with its line end.
fn get_with(server: &Server, path: &str, fields: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n");
    ask(server, &request)
}

fn get(server: &Server, path: &str) -> Answer {
    get_with(server, path, "")
}

/// A sum over a body that tells apart what differs in a byte or a place.
fn checksum(body: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    body.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Bytes that are the same each time.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// The files below a cache's folder: of entries, and of those that are being written.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(entries(&path));
        } else if entry.file_name().len() >= 32 {
            found.push(path);
        }
    }
    found
}

/// Waits until so many entries are written, and nothing else is.
fn wait_for_entries(folder: &Path, count: usize) {
    until(|| {
        let entries = entries(folder);
        let is_whole = |path: &PathBuf| path.file_name().unwrap().len() == 32;
        entries.len() == count && entries.iter().all(is_whole)
    });
}

/// Starts a server whose locations have a cache. `UP` in `lines` is the upstream's address.
fn start(engine: &str, lines: &str, port: u16) -> Server {
    start_with(engine, lines, "cache levels=1:2 keys_zone=one:1m", port)
}

/// The same with another line of `proxy_cache_path`.
fn start_with(engine: &str, lines: &str, path: &str, port: u16) -> Server {
    let lines = lines.replace("UP", &format!("127.0.0.1:{port}"));
    let lines = format!(
        "add_header X-Cache $upstream_cache_status always;\n{lines}\n[http]\n
         proxy_cache_path {path};"
    );
    Server::start(engine, &lines)
}

/// Who answers beside HTTP servers.
const FAMILIES: [Option<Protocol>; 4] = [
    None,
    Some(Protocol::Fastcgi),
    Some(Protocol::Uwsgi),
    Some(Protocol::Scgi),
];

/// Starts a server of a family, and what it asks, which answers by path and number of the request
/// with fields, without the last line end, and a body. In `lines` is `X_pass APP` for the line that
/// passes on, and `X_` for what the family's lines begin with. The number of requests is counted.
fn start_family(
    engine: &str,
    family: Option<Protocol>,
    lines: &str,
    answer: impl Fn(&str, usize) -> (String, Vec<u8>) + Send + Sync + 'static,
) -> (Server, Arc<AtomicUsize>) {
    let requests = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&requests);
    let number = move || counted.fetch_add(1, Ordering::SeqCst);
    let prefix = family.map_or("proxy_", Protocol::prefix);
    let (params, pass) = match family {
        None => {
            let upstream = Upstream::start(move |head, _| {
                let path = head.split(' ').nth(1).unwrap();
                let (fields, body) = answer(path, number());
                let line_end = if fields.is_empty() { "" } else { "\r\n" };
                ok(&format!("{fields}{line_end}"), &body)
            });
            let pass = format!("proxy_pass http://127.0.0.1:{}", upstream.port);
            (String::new(), pass)
        }
        Some(protocol) => {
            let application = Application::start(protocol, move |seen| {
                let (fields, body) = answer(&seen.uri(), number());
                let line_end = if fields.is_empty() { "" } else { "\r\n" };
                seen.answer(&format!("Status: 200 OK{line_end}{fields}"), &body)
            });
            let params = format!(
                "{prefix}param URI $uri$is_args$args;
                 {prefix}param REQUEST_METHOD $request_method;"
            );
            (params, format!("{prefix}pass {}", application.address()))
        }
    };
    let lines = lines.replace("X_pass APP", &pass).replace("X_", prefix);
    let lines = format!(
        "add_header X-Cache $upstream_cache_status always; {params}
         {prefix}cache one; {prefix}cache_key $uri;
         {lines}
         [http]
         {prefix}cache_path cache levels=1:2 keys_zone=one:1m;"
    );
    (Server::start(engine, &lines), requests)
}

/// Runs a test with a server and its upstream.
fn with_server(
    engine: &'static str,
    lines: &str,
    answer: impl Fn(&str, usize) -> Vec<u8> + Clone + Send + Sync + 'static,
    test: impl Fn(&Server, &Upstream),
) {
    let upstream = Upstream::start(answer);
    let server = start(engine, lines, upstream.port);
    test(&server, &upstream);
}

fn what_was_fetched_once_is_given_again(engine: &'static str) {
    const LENGTHS: [usize; 6] = [0, 1, 1000, 5000, 100_000, 3_000_000];
    let length_of = |head: &str| -> usize {
        let path = head.split(' ').nth(1).unwrap();
        path.trim_start_matches('/').parse().unwrap()
    };
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }",
        move |head, number| {
            ok(
                &format!("X-Number: {number}\r\n"),
                &pattern(length_of(head)),
            )
        },
        |server, upstream| {
            for length in LENGTHS {
                let expected = checksum(&pattern(length));
                let before = upstream.requests();
                for (round, cache) in ["MISS", "HIT", "HIT"].into_iter().enumerate() {
                    let answer = get(server, &format!("/{length}"));
                    assert_eq!(answer.cache(), cache, "{length}, round {round}");
                    assert_eq!(checksum(&answer.body), expected, "{length}, round {round}");
                    let number = before.to_string();
                    assert_eq!(answer.field("X-Number"), Some(number.as_str()));
                }
                assert_eq!(upstream.requests(), before + 1);
            }
        },
    );
}

support::test_on_each_engine!(what_was_fetched_once_is_given_again);

fn what_is_over_is_fetched_anew(engine: &'static str) {
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; }",
        |_, number| {
            ok(
                "Cache-Control: max-age=1\r\n",
                format!("{number}").as_bytes(),
            )
        },
        |server, _| {
            assert_eq!(get(server, "/").cache(), "MISS");
            let started = Instant::now();
            loop {
                let answer = get(server, "/");
                if answer.cache() == "EXPIRED" {
                    assert_eq!(answer.body, b"1");
                    break;
                }
                assert_eq!((answer.cache(), &answer.body[..]), ("HIT", &b"0"[..]));
                assert!(started.elapsed() < PATIENCE);
                thread::sleep(Duration::from_millis(50));
            }
            let answer = get(server, "/");
            assert_eq!((answer.cache(), &answer.body[..]), ("HIT", &b"1"[..]));
        },
    );
}

support::test_on_each_engine!(what_is_over_is_fetched_anew);

fn lines_say_what_is_passed_by_and_what_is_not_kept(engine: &'static str) {
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid any 1h;
             proxy_cache_bypass $arg_bypass; proxy_no_cache $arg_no; proxy_cache_key $uri; }
         location /posted { proxy_pass http://UP; proxy_cache one; proxy_cache_valid any 1h;
             proxy_cache_methods POST; proxy_cache_key $uri; }
         location /seldom { proxy_pass http://UP; proxy_cache one; proxy_cache_valid any 1h;
             proxy_cache_min_uses 2; }
         location /off { proxy_pass http://UP; proxy_cache off; proxy_cache_valid any 1h; }
         location /unbuffered { proxy_pass http://UP; proxy_cache one; proxy_cache_valid any 1h;
             proxy_buffering off; }",
        |_, number| ok("", format!("{number}").as_bytes()),
        |server, _| {
            let caches = |paths: &[&str]| -> Vec<String> {
                let answers = paths.iter().map(|path| get(server, path));
                answers.map(|it| it.cache().to_owned()).collect()
            };
            assert_eq!(caches(&["/a?no=1", "/a?no=1"]), ["MISS", "MISS"]);
            assert_eq!(caches(&["/a?no=0", "/a?no=1"]), ["MISS", "HIT"]);
            let before = get(server, "/a").body;
            assert_eq!(caches(&["/a?bypass=1"]), ["BYPASS"]);
            // What was passed by is kept all the same, once what was kept before is written.
            let started = Instant::now();
            while get(server, "/a").body == before {
                assert!(started.elapsed() < PATIENCE);
            }
            assert_eq!(caches(&["/a?bypass=1&no=1", "/a"]), ["BYPASS", "HIT"]);
            assert_eq!(
                caches(&["/seldom", "/seldom", "/seldom"]),
                ["MISS", "MISS", "HIT"]
            );
            assert_eq!(caches(&["/off", "/off"]), ["-", "-"]);
            assert_eq!(caches(&["/unbuffered", "/unbuffered"]), ["MISS", "MISS"]);
            let post = |path: &str| {
                let request = format!(
                    "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\
                     Connection: close\r\n\r\nx"
                );
                ask(server, &request).cache().to_owned()
            };
            assert_eq!([post("/a"), post("/a")], ["-", "-"]);
            assert_eq!([post("/posted"), post("/posted")], ["MISS", "HIT"]);
        },
    );
}

support::test_on_each_engine!(lines_say_what_is_passed_by_and_what_is_not_kept);

/// What the head of an answer says goes before what lines say.
fn heads_say_what_is_kept(engine: &'static str) {
    for (fields, expected) in [
        ("", "HIT"),
        ("Cache-Control: max-age=100\r\n", "HIT"),
        ("Cache-Control: max-age=0\r\n", "MISS"),
        ("Cache-Control: private\r\n", "MISS"),
        ("Cache-Control: no-store\r\nX-Accel-Expires: 100\r\n", "HIT"),
        ("X-Accel-Expires: 0\r\n", "MISS"),
        ("Expires: Thu, 01 Jan 2015 00:00:00 GMT\r\n", "MISS"),
        ("Expires: Thu, 01 Jan 2099 00:00:00 GMT\r\n", "HIT"),
        ("Set-Cookie: a=b\r\n", "MISS"),
        ("Vary: *\r\n", "MISS"),
    ] {
        with_server(
            engine,
            "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }
             location /ignoring { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
                 proxy_ignore_headers Cache-Control Expires Set-Cookie X-Accel-Expires Vary; }",
            move |_, _| ok(fields, b"x"),
            |server, _| {
                assert_eq!(get(server, "/").cache(), "MISS", "{fields}");
                assert_eq!(get(server, "/").cache(), expected, "{fields}");
                assert_eq!(get(server, "/ignoring").cache(), "MISS", "{fields}");
                assert_eq!(get(server, "/ignoring").cache(), "HIT", "{fields}");
            },
        );
    }
}

support::test_on_each_engine!(heads_say_what_is_kept);

fn statuses_have_their_times(engine: &'static str) {
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one;
             proxy_cache_valid 404 1h; proxy_cache_valid 500 0; proxy_cache_valid any 1h; }
         location /few { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }
         location /intercepted { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 404 1h;
             proxy_intercept_errors on; error_page 404 /page; }
         location = /page { return 200 page; }",
        |head, _| {
            let status = head.split(['=', ' ']).nth(2).unwrap();
            format!("HTTP/1.1 {status} Z\r\nContent-Length: 2\r\n\r\nab").into_bytes()
        },
        |server, upstream| {
            for (path, second) in [
                ("/?s=404", "HIT"),
                ("/?s=500", "MISS"),
                ("/?s=403", "HIT"),
                ("/few?s=404", "MISS"),
                ("/few?s=301", "HIT"),
            ] {
                assert_eq!(get(server, path).cache(), "MISS", "{path}");
                let answer = get(server, path);
                assert_eq!(answer.cache(), second, "{path}");
                assert_eq!(answer.body, b"ab", "{path}");
                assert!(
                    answer
                        .head
                        .starts_with(&format!("HTTP/1.1 {} Z", &path[path.len() - 3..]))
                );
            }
            let before = upstream.requests();
            for _ in 0..3 {
                let answer = get(server, "/intercepted?s=404");
                assert_eq!((answer.status(), &answer.body[..]), ("404", &b"page"[..]));
            }
            assert_eq!(upstream.requests(), before + 1);
        },
    );
}

support::test_on_each_engine!(statuses_have_their_times);

fn variants_lie_beside_each_other(engine: &'static str) {
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }",
        |head, number| {
            let line = head
                .lines()
                .find(|line| line.starts_with("Accept-Language"));
            let body = format!("{number} {}", line.unwrap_or(""));
            ok("Vary: Accept-Language,  X-Other\r\n", body.as_bytes())
        },
        |server, upstream| {
            let ask = |language: &str| {
                let answer = get_with(server, "/", &format!("Accept-Language: {language}\r\n"));
                let body = String::from_utf8(answer.body.clone()).unwrap();
                (answer.cache().to_owned(), body)
            };
            let (cache, german) = ask("de, en");
            assert_eq!(cache, "MISS");
            let (cache, english) = ask("en");
            assert_eq!(cache, "MISS");
            for _ in 0..3 {
                assert_eq!(ask("de,en"), ("HIT".to_owned(), german.clone()));
                assert_eq!(ask("en"), ("HIT".to_owned(), english.clone()));
            }
            assert_eq!(upstream.requests(), 2);
        },
    );
}

support::test_on_each_engine!(variants_lie_beside_each_other);

fn the_whole_is_fetched_and_clients_get_what_they_ask_for(engine: &'static str) {
    const MODIFIED: &str = "Thu, 01 Jan 2015 00:00:00 GMT";
    let body = pattern(10_000);
    let answered = body.clone();
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }
         location /far { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
             proxy_cache_max_range_offset 100; }",
        move |_, _| {
            let fields =
                format!("Accept-Ranges: bytes\r\nETag: \"x\"\r\nLast-Modified: {MODIFIED}\r\n");
            ok(&fields, &answered)
        },
        |server, upstream| {
            let conditional = [
                ("If-None-Match: \"x\"\r\n".to_owned(), "304"),
                (format!("If-Modified-Since: {MODIFIED}\r\n"), "304"),
                ("If-None-Match: \"y\"\r\n".to_owned(), "200"),
                ("If-Match: \"y\"\r\n".to_owned(), "412"),
            ];
            for round in ["MISS", "HIT"] {
                let answer = get_with(server, "/range", "Range: bytes=100-199\r\n");
                assert_eq!((answer.status(), answer.cache()), ("206", round));
                assert_eq!(checksum(&answer.body), checksum(&body[100..200]));
                assert_eq!(answer.field("Content-Range"), Some("bytes 100-199/10000"));
            }
            let several = get_with(server, "/range", "Range: bytes=0-1,5-6\r\n");
            assert_eq!(several.status(), "206");
            for (number, (fields, status)) in conditional.iter().enumerate() {
                for round in ["MISS", "HIT"] {
                    let answer = get_with(server, &format!("/c{number}"), fields);
                    assert_eq!(answer.status(), *status, "{fields}");
                    // nginx keeps nothing of what it answers with an error.
                    let is_kept = *status != "412" || !is_nginx();
                    let expected = if is_kept { round } else { "MISS" };
                    assert_eq!(answer.cache(), expected, "{fields}");
                }
                let answer = get(server, &format!("/c{number}"));
                assert_eq!(checksum(&answer.body), checksum(&body));
            }
            let passed = |name: &str| upstream.last().contains(name);
            assert!(!passed("If-") && !passed("Range"));
            get_with(server, "/far", "Range: bytes=100-\r\n");
            assert!(passed("\r\nRange: bytes=100-\r\n"));
            get_with(server, "/far", "Range: bytes=99-\r\n");
            assert!(!passed("Range: bytes"));
        },
    );
}

support::test_on_each_engine!(the_whole_is_fetched_and_clients_get_what_they_ask_for);

fn heads_are_fetched_with_their_bodies(engine: &'static str) {
    let body = pattern(5000);
    let answered = body.clone();
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }
         location /as-it-is { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
             proxy_cache_convert_head off; proxy_cache_key $uri$request_method; }",
        move |head, _| {
            if head.starts_with("HEAD ") {
                ok("", &answered)[..]
                    .split(|byte| *byte == b'\0')
                    .next()
                    .unwrap()[..40]
                    .to_vec()
            } else {
                ok("", &answered)
            }
        },
        |server, upstream| {
            let head = |path: &str| {
                ask(
                    server,
                    &format!("HEAD {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
                )
            };
            let answer = head("/");
            assert_eq!(
                (answer.cache(), answer.field("Content-Length")),
                ("MISS", Some("5000"))
            );
            assert!(upstream.last().starts_with("GET / "));
            let answer = get(server, "/");
            assert_eq!(answer.cache(), "HIT");
            assert_eq!(checksum(&answer.body), checksum(&body));
            assert_eq!(head("/").cache(), "HIT");
            assert_eq!(head("/as-it-is").cache(), "MISS");
            assert!(upstream.last().starts_with("HEAD /as-it-is "));
        },
    );
}

support::test_on_each_engine!(heads_are_fetched_with_their_bodies);

/// A client that leaves stops nothing.
fn a_fetch_outlives_its_client(engine: &'static str) {
    const LENGTH: usize = 2_000_000;
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }",
        |_, _| ok("", &pattern(LENGTH)),
        |server, upstream| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .unwrap();
            let mut some = [0; 1000];
            stream.read_exact(&mut some).unwrap();
            drop(stream);
            let started = Instant::now();
            loop {
                let answer = get(server, "/");
                assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)));
                if answer.cache() == "HIT" {
                    break;
                }
                assert!(started.elapsed() < PATIENCE);
            }
            assert!(upstream.requests() <= 3, "{}", upstream.requests());
        },
    );
}

support::test_on_each_engine!(a_fetch_outlives_its_client);

/// An answer that is broken off is not kept.
fn halves_are_not_kept(engine: &'static str) {
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }
         location /http10 { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }",
        |_, number| {
            let mut answer = ok("", &pattern(10_000));
            if number == 0 {
                answer.truncate(5000);
            }
            answer
        },
        |server, _| {
            let answer = get(server, "/");
            assert!(answer.body.len() < 10_000);
            let answer = get(server, "/");
            assert_eq!(answer.cache(), "MISS");
            assert_eq!(checksum(&answer.body), checksum(&pattern(10_000)));
            assert_eq!(get(server, "/").cache(), "HIT");
        },
    );
}

support::test_on_each_engine!(halves_are_not_kept);

/// Asks until what is kept is fresh no more; the answer then.
fn until_over(port: u16, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let started = Instant::now();
    loop {
        let answer = ask_at(port, &request);
        if answer.cache() != "HIT" {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(50));
    }
}

/// What is fresh no more stands in for failures, where a line or the answer's own head says so.
fn what_is_over_stands_in_for_failures(engine: &'static str) {
    with_server(
        engine,
        "proxy_cache one; proxy_cache_key $uri;
         location /statuses { proxy_pass http://UP; proxy_cache_use_stale http_500 http_404; }
         location /errors { proxy_pass http://UP; proxy_cache_use_stale error; }
         location /never { proxy_pass http://UP; proxy_cache_use_stale off; }
         location /said { proxy_pass http://UP; }",
        |head, _| {
            let path = head.split(' ').nth(1).unwrap();
            if path.ends_with("?first") {
                let more = if path.starts_with("/said") {
                    ", stale-if-error=100"
                } else {
                    ""
                };
                return ok(&format!("Cache-Control: max-age=1{more}\r\n"), b"first");
            }
            match path.split('?').nth(1) {
                Some("closed") => Vec::new(),
                Some(status) => {
                    format!("HTTP/1.1 {status} Z\r\nContent-Length: 0\r\n\r\n").into_bytes()
                }
                None => Vec::new(),
            }
        },
        |server, _| {
            for (path, failing, expected) in [
                ("/statuses", "500", ("200", "STALE")),
                ("/statuses/b", "404", ("200", "STALE")),
                ("/statuses/c", "503", ("503", "EXPIRED")),
                ("/statuses/d", "closed", ("502", "EXPIRED")),
                ("/errors", "closed", ("200", "STALE")),
                ("/errors/b", "500", ("500", "EXPIRED")),
                ("/never", "closed", ("502", "EXPIRED")),
                ("/said", "closed", ("200", "STALE")),
            ] {
                assert_eq!(get(server, &format!("{path}?first")).cache(), "MISS");
                let answer = until_over(server.port, &format!("{path}?{failing}"));
                assert_eq!(
                    (answer.status(), answer.cache()),
                    expected,
                    "{path} {failing}"
                );
                if expected.1 == "STALE" {
                    assert_eq!(answer.body, b"first", "{path} {failing}");
                }
            }
        },
    );
}

support::test_on_each_engine!(what_is_over_stands_in_for_failures);

/// One request fetches; others get what there is meanwhile, or fetch as well.
fn what_is_over_is_given_while_it_is_fetched(engine: &'static str) {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let receiver = Mutex::new(receiver);
    let upstream = Upstream::start(move |head, number| {
        if head.contains("?slow") {
            let _ = receiver.lock().unwrap().recv();
        }
        ok(
            "Cache-Control: max-age=1\r\n",
            format!("{number}").as_bytes(),
        )
    });
    let server = start(
        engine,
        "proxy_cache one; proxy_cache_key $uri;
         location / { proxy_pass http://UP; proxy_cache_use_stale updating; }
         location = /other { proxy_pass http://UP/; proxy_cache_key /; }",
        upstream.port,
    );
    assert_eq!(get(&server, "/").cache(), "MISS");
    let port = server.port;
    thread::scope(|scope| {
        let slow = scope.spawn(move || until_over(port, "/?slow"));
        let started = Instant::now();
        while !upstream.last().contains("?slow") {
            assert!(started.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(10));
        }
        let answer = get(&server, "/");
        assert_eq!((answer.cache(), &answer.body[..]), ("UPDATING", &b"0"[..]));
        assert_eq!(get(&server, "/other").cache(), "EXPIRED");
        sender.send(()).unwrap();
        let answer = slow.join().unwrap();
        assert_eq!((answer.cache(), &answer.body[..]), ("EXPIRED", &b"1"[..]));
    });
}

support::test_on_each_engine!(what_is_over_is_given_while_it_is_fetched);

/// What the tests of applications have in common: `fastcgi_` stands for each family.
const OF_APPLICATIONS: &str = "add_header X-Cache $upstream_cache_status always;
    fastcgi_cache one; fastcgi_cache_key $uri;
    fastcgi_param URI $uri; fastcgi_param REQUEST_METHOD $request_method;
    fastcgi_param ARGS $args;
    fastcgi_param CONTENT_LENGTH $content_length if_not_empty;
    location / {
        fastcgi_pass APP; fastcgi_cache_bypass $arg_bypass; fastcgi_no_cache $arg_no;
    }
    location /seldom { fastcgi_pass APP; fastcgi_cache_min_uses 2; }
    location /posted { fastcgi_pass APP; fastcgi_cache_methods POST; }
    location /valid { fastcgi_pass APP; fastcgi_cache_valid 203 1h; }
    location /far { fastcgi_pass APP; fastcgi_cache_max_range_offset 100; }
    location /off { fastcgi_pass APP; fastcgi_cache off; }
    location /stale { fastcgi_pass APP; fastcgi_cache_use_stale http_500; }
    location /stale/not { fastcgi_pass APP; fastcgi_cache_use_stale http_403; }
[http]
    fastcgi_cache_path cache keys_zone=one:1m;";

fn applications_are_cached_as_well(engine: &'static str) {
    for protocol in Protocol::ALL {
        let application = Application::start(protocol, |seen| {
            let is_first = seen
                .params
                .iter()
                .any(|pair| pair == &("ARGS".into(), "first".into()));
            let fields = match seen.uri().as_str() {
                path if path.starts_with("/stale") && is_first => "X-Accel-Expires: 1",
                path if path.starts_with("/stale") => "Status: 500 No",
                "/valid" | "/invalid" => "Status: 203 Other\r\nX-Own: 1",
                _ => "Status: 203 Other\r\nX-Own: 1\r\nX-Accel-Expires: 100",
            };
            seen.answer(fields, &pattern(20_000))
        });
        let name = protocol.prefix();
        let lines = OF_APPLICATIONS.replace("fastcgi_", name);
        let lines = lines.replace("APP", &application.address());
        let server = Server::start(engine, &lines);
        let fields = "If-Modified-Since: Thu, 01 Jan 2015 00:00:00 GMT\r\nRange: bytes=0-1\r\n";
        for cache in ["MISS", "HIT", "HIT"] {
            let answer = get_with(&server, "/a", fields);
            assert_eq!((answer.status(), answer.cache()), ("203", cache), "{name}");
            assert_eq!(answer.field("X-Own"), Some("1"), "{name}");
            assert_eq!(answer.field("X-Accel-Expires"), None, "{name}");
            assert_eq!(checksum(&answer.body), checksum(&pattern(20_000)), "{name}");
        }
        assert_eq!(application.requests(), 1, "{name}");
        let is_told = |param: &str| {
            let told = application.last().params;
            told.iter().any(|(name, _)| name == param)
        };
        assert!(
            !is_told("HTTP_RANGE") && !is_told("HTTP_IF_MODIFIED_SINCE"),
            "{name}"
        );
        for (path, caches) in [
            ("/a?bypass=1", ["BYPASS", "BYPASS"]),
            ("/b?no=1", ["MISS", "MISS"]),
            ("/b?no=0", ["MISS", "HIT"]),
            ("/seldom", ["MISS", "MISS"]),
            ("/seldom", ["HIT", "HIT"]),
            ("/valid", ["MISS", "HIT"]),
            ("/invalid", ["MISS", "MISS"]),
            ("/off", ["-", "-"]),
        ] {
            let answers = [get(&server, path), get(&server, path)];
            let seen = [answers[0].cache(), answers[1].cache()];
            assert_eq!(seen, caches, "{name} {path}");
        }
        for (path, expected) in [("/stale", "STALE"), ("/stale/not", "EXPIRED")] {
            assert_eq!(
                get(&server, &format!("{path}?first")).cache(),
                "MISS",
                "{name}"
            );
            assert_eq!(
                until_over(server.port, path).cache(),
                expected,
                "{name} {path}"
            );
        }
        get_with(&server, "/far", "Range: bytes=100-\r\n");
        assert!(is_told("HTTP_RANGE"), "{name}");
        let post = || {
            let request = "POST /posted HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\
                           Connection: close\r\n\r\nx";
            ask(&server, request).cache().to_owned()
        };
        assert_eq!([post(), post()], ["MISS", "HIT"], "{name}");
    }
}

support::test_on_each_engine!(applications_are_cached_as_well);

/// Entries outlive a reload, and a restart.
fn entries_outlive_a_reload(engine: &'static str) {
    const LINES: &str =
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h; }
         location /which { return 200 WHICH; }";
    with_server(
        engine,
        LINES,
        |_, number| ok("", format!("{number}").as_bytes()),
        |server, upstream| {
            assert_eq!(get(server, "/a").cache(), "MISS");
            let address = format!("127.0.0.1:{}", upstream.port);
            let lines = LINES.replace("UP", &address).replace("WHICH", "second");
            server.reload(&format!(
                "add_header X-Cache $upstream_cache_status always;\n{lines}\n[http]\n
                 proxy_cache_path cache levels=1:2 keys_zone=one:1m;"
            ));
            let started = Instant::now();
            while get(server, "/which").body != b"second" {
                assert!(started.elapsed() < PATIENCE);
                thread::sleep(Duration::from_millis(10));
            }
            let answer = get(server, "/a");
            assert_eq!((answer.cache(), &answer.body[..]), ("HIT", &b"0"[..]));
        },
    );
}

support::test_on_each_engine!(entries_outlive_a_reload);

/// The bytes that a request's `Range` names.
fn asked_range(head: &str) -> (usize, usize) {
    let mut lines = head.lines();
    let line = lines.find_map(|line| line.strip_prefix("Range: bytes="));
    let (first, last) = line.unwrap().split_once('-').unwrap();
    (first.parse().unwrap(), last.parse().unwrap())
}

fn a_slice_that_is_of_no_use_is_not_kept(engine: &'static str) {
    const LENGTH: usize = 3000;
    with_server(
        engine,
        "location / { slice 1k; proxy_set_header Range $slice_range; proxy_pass http://UP;
             proxy_cache one; proxy_cache_key $uri$slice_range; proxy_cache_valid 200 206 1h; }",
        |head, number| {
            let (first, last) = asked_range(head);
            let end = LENGTH.min(last + 1);
            // The second slice is once that of another version.
            let etag = if number == 1 { "new" } else { "old" };
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nETag: \"{etag}\"\r\n\
                 Content-Range: bytes {first}-{}/{LENGTH}\r\nContent-Length: {}\r\n\r\n",
                end - 1,
                end - first
            );
            [head.as_bytes(), &pattern(LENGTH)[first..end]].concat()
        },
        |server, upstream| {
            let request = "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut broken = Vec::new();
            let _ = stream.read_to_end(&mut broken);
            assert!(broken.len() < LENGTH, "{}", broken.len());
            // What is refused goes beside the response: the next request may come before that.
            let started = Instant::now();
            while upstream.requests() < 4 {
                assert!(started.elapsed() < PATIENCE);
                let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(request.as_bytes()).unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
            }
            let answer = get(server, "/a");
            assert_eq!((answer.status(), answer.cache()), ("200", "HIT"));
            assert_eq!(checksum(&answer.body), checksum(&pattern(LENGTH)));
        },
    );
}

support::test_on_each_engine!(a_slice_that_is_of_no_use_is_not_kept);

fn what_has_no_head_is_not_kept(engine: &'static str) {
    with_server(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid any 1h; }",
        |_, number| match number {
            0 => b"SSH-2.0-OpenSSH\r\n".to_vec(),
            1 => b"\r\nHTTP/1.1 200 OK\r\nCache-Control: private\r\n\r\nsecret".to_vec(),
            _ => ok("", b"good"),
        },
        |server, _| {
            for _ in 0..2 {
                let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
                let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(request.as_bytes()).unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
            }
            for cache in ["MISS", "HIT"] {
                let answer = get(server, "/");
                assert_eq!((answer.cache(), &answer.body[..]), (cache, &b"good"[..]));
            }
        },
    );
}

support::test_on_each_engine!(what_has_no_head_is_not_kept);
