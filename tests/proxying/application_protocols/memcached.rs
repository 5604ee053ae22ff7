//! `memcached_pass`, with a server of our own that answers as the test says, and with memcached
//! itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use support::Server;
use support::master::wait_for;

use super::{ask, get, status};

/// A server of the text protocol: what is asked for, and how many connections there were.
struct Values {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    peers: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl Values {
    /// Answers each line by its key with parts, each of which is sent by itself; behind an empty
    /// one the connection is closed.
    fn start(answer: impl Fn(&str) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Values {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let values = Values {
            port: listener.local_addr().unwrap().port(),
            asked: Arc::default(),
            peers: Arc::default(),
            connections: Arc::default(),
        };
        let (asked, peers) = (Arc::clone(&values.asked), Arc::clone(&values.peers));
        let (connections, answer) = (Arc::clone(&values.connections), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::SeqCst);
                peers
                    .lock()
                    .unwrap()
                    .push(stream.peer_addr().unwrap().ip().to_string());
                let (asked, answer) = (Arc::clone(&asked), Arc::clone(&answer));
                thread::spawn(move || serve(stream, &asked, &*answer));
            }
        });
        values
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn last(&self) -> String {
        self.asked
            .lock()
            .unwrap()
            .last()
            .cloned()
            .unwrap_or_default()
    }
}

fn serve(
    stream: TcpStream,
    asked: &Mutex<Vec<String>>,
    answer: &(dyn Fn(&str) -> Vec<Vec<u8>> + Send + Sync),
) {
    let _ = stream.set_nodelay(true);
    let mut writing = stream.try_clone().unwrap();
    for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        let key = line
            .trim_end()
            .strip_prefix("get ")
            .unwrap_or_default()
            .to_owned();
        asked.lock().unwrap().push(line);
        for part in answer(&key) {
            if part.is_empty() {
                return;
            }
            if writing.write_all(&part).is_err() {
                return;
            }
            thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Runs a test on an engine; `VALUES` in the lines is the server's address.
fn with_server(
    engine: &str,
    lines: &str,
    answer: impl Fn(&str) -> Vec<Vec<u8>> + Clone + Send + Sync + 'static,
    test: impl Fn(&Server, &Values),
) {
    let values = Values::start(answer.clone());
    let server = Server::start(engine, &lines.replace("VALUES", &values.address()));
    test(&server, &values);
}

/// A value whole, with these flags.
fn value(key: &str, flags: u32, bytes: &str) -> Vec<u8> {
    format!("VALUE {key} {flags} {}\r\n{bytes}\r\nEND\r\n", bytes.len()).into_bytes()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

fn values_are_the_answers(engine: &'static str) {
    let answer = |key: &str| match key {
        "/none" => vec![b"END\r\n".to_vec()],
        "/empty.txt" => vec![value(key, 0, "")],
        "/drip" => value(key, 0, "one byte a segment")
            .chunks(1)
            .map(<[u8]>::to_vec)
            .collect(),
        _ => vec![value(key, 0, &format!("the value of {key}"))],
    };
    let lines = "
        types { text/plain txt; } default_type application/x-value;
        location / { set $memcached_key $uri$is_args$args; memcached_pass u; error_page 404 = @made; }
        location /plain/ { set $memcached_key $uri; memcached_pass u; }
        location /escaped/ { set $memcached_key \"a b%c\"; memcached_pass u; }
        location /unset/ { memcached_pass u; }
        location @made { return 200 made; }
        [http]
        upstream u { server VALUES; keepalive 4; }";
    with_server(engine, lines, answer, |server, values| {
        let answer = get(server, "/a.txt?x=1");
        assert!(
            answer.contains("\r\nContent-Type: text/plain\r\n")
                && answer.contains("\r\nContent-Length: 23\r\n"),
            "{answer}"
        );
        assert_eq!(body(&answer), "the value of /a.txt?x=1", "{answer}");
        let answer = get(server, "/b");
        assert!(
            answer.contains("\r\nContent-Type: application/x-value\r\n"),
            "{answer}"
        );
        assert!(!answer.contains("\r\nContent-Encoding"), "{answer}");
        assert_eq!(body(&get(server, "/empty.txt")), "");
        assert_eq!(body(&get(server, "/drip")), "one byte a segment");
        assert_eq!(body(&get(server, "/none")), "made");
        let range = ask(server, "GET /b HTTP/1.0\r\nRange: bytes=4-8\r\n\r\n");
        assert!(status(&range) == 206 && body(&range) == "value", "{range}");
        assert_eq!(values.connections.load(Ordering::SeqCst), 1);
        let head = ask(server, "HEAD /b HTTP/1.0\r\n\r\n");
        assert!(
            head.contains("\r\nContent-Length: 15\r\n") && body(&head).is_empty(),
            "{head}"
        );
        assert_eq!(body(&get(server, "/escaped/")), "the value of a%20b%25c");
        assert_eq!(values.last(), "get a%20b%25c\r");
        assert_eq!(status(&get(server, "/unset/")), 500);
        server.wait_for_log("the \"$memcached_key\" variable is not set");
        let post = ask(server, "POST /b HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi");
        assert_eq!(status(&post), 405);
    });
}

support::test_on_each_engine!(values_are_the_answers);

/// A value has neither a tag nor a time: what a client asks of them is not judged
/// (`disable_not_modified` in `ngx_http_upstream_process_headers`), and it gets the value. Only a
/// range is cut out of it.
fn conditions_of_clients_are_not_judged(engine: &'static str) {
    let lines = "location / { set $memcached_key $uri; memcached_pass VALUES; }";
    let answer = |key: &str| vec![value(key, 0, "the value")];
    with_server(engine, lines, answer, |server, _| {
        for condition in [
            "If-Match: \"x\"",
            "If-Match: *",
            "If-None-Match: *",
            "If-None-Match: \"x\"",
            "If-Unmodified-Since: Thu, 01 Jan 1970 00:00:01 GMT",
            "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT",
        ] {
            for method in ["GET", "HEAD"] {
                let answer = ask(
                    server,
                    &format!("{method} /a HTTP/1.0\r\n{condition}\r\n\r\n"),
                );
                assert_eq!(status(&answer), 200, "{condition}: {answer}");
                assert!(answer.contains("\r\nContent-Length: 9\r\n"), "{answer}");
                let wanted = if method == "GET" { "the value" } else { "" };
                assert_eq!(body(&answer), wanted, "{condition}");
            }
            let head = format!("GET /a HTTP/1.0\r\nRange: bytes=4-8\r\n{condition}\r\n\r\n");
            let range = ask(server, &head);
            assert!(status(&range) == 206 && body(&range) == "value", "{range}");
        }
    });
}

support::test_on_each_engine!(conditions_of_clients_are_not_judged);

fn answers_that_are_none(engine: &'static str) {
    let answer = |key: &str| {
        let name = key.trim_start_matches('/');
        let bytes = match name {
            "error" => "SERVER_ERROR out of memory\r\n",
            "key" => "VALUE other 0 2\r\nok\r\nEND\r\n",
            "length" => "VALUE /length 0 x\r\nok\r\nEND\r\n",
            "flags" => "VALUE /flags x 2\r\nok\r\nEND\r\n",
            "closed" => "",
            "trailer" => "VALUE /trailer 0 2\r\nok\r\nENDING\r\n",
            "more" => "VALUE /more 0 2\r\nok, and more\r\nEND\r\n",
            "short" => "VALUE /short 0 9\r\nok",
            "long" => return vec![[b'x'; 5_000].to_vec(), Vec::new()],
            // Whole in one piece, and beyond its room.
            "whole" => return vec![[&[b'x'; 5_000][..], b"\r\n"].concat(), Vec::new()],
            _ => return vec![value(key, 0, "ok")],
        };
        vec![bytes.as_bytes().to_vec(), Vec::new()]
    };
    let lines = "
        set $memcached_key $uri; memcached_buffer_size 4k;
        location / { memcached_pass u; }
        location /flags { memcached_gzip_flag 2; memcached_pass u; }
        location = /unlooked { set $memcached_key /flags; memcached_pass u; }
        location = /roomy { set $memcached_key /long; memcached_buffer_size 8k; memcached_pass u; }
        [http]
        upstream u { server VALUES max_fails=0; keepalive 4; }";
    with_server(engine, lines, answer, |server, values| {
        for (path, line) in [
            (
                "/error",
                "memcached sent invalid response: \"SERVER_ERROR out of memory\"",
            ),
            (
                "/key",
                "memcached sent invalid key in response \"VALUE other 0 2\" for key \"/key\"",
            ),
            (
                "/length",
                "memcached sent invalid length in response \"VALUE /length 0 x\" for key \"/length\"",
            ),
            (
                "/flags",
                "memcached sent invalid flags in response \"VALUE /flags x 2\" for key \"/flags\"",
            ),
            (
                "/closed",
                "upstream prematurely closed connection while reading response header from upstream",
            ),
            ("/long", "upstream sent too big header"),
            ("/whole", "upstream sent too big header"),
        ] {
            let before = server.error_log().len();
            assert_eq!(status(&get(server, path)), 502, "{path}");
            server.wait_for_log(line);
            assert!(server.error_log()[before..].contains(line), "{path}");
        }
        // Where flags have no meaning they are not looked at.
        assert_eq!(body(&get(server, "/unlooked")), "ok");
        // Here the line has room, and ends where the connection does.
        let before = server.error_log().len();
        assert_eq!(status(&get(server, "/roomy")), 502);
        assert!(!server.error_log()[before..].contains("too big"));
        // All of the value has come: what is wrong behind it costs the connection.
        for path in ["/trailer", "/more"] {
            let before = server.error_log().len();
            assert_eq!(body(&get(server, path)), "ok", "{path}");
            server.wait_for_log(
                "memcached sent invalid trailer while reading response header from upstream",
            );
            assert!(server.error_log()[before..].contains(
                "memcached sent invalid trailer while reading response header from upstream"
            ));
        }
        let answer = get(server, "/short");
        assert!(
            answer.contains("\r\nContent-Length: 9\r\n") && body(&answer) == "ok",
            "{answer}"
        );
        server.wait_for_log("upstream prematurely closed connection while");
        let before = values.connections.load(Ordering::SeqCst);
        assert_eq!(body(&get(server, "/good")), "ok");
        assert_eq!(body(&get(server, "/good")), "ok");
        assert_eq!(values.connections.load(Ordering::SeqCst), before + 1);
    });
}

support::test_on_each_engine!(answers_that_are_none);

fn all_bytes_of_a_value_count(engine: &'static str) {
    let answer = |key: &str| {
        let mut parts = key.split('/').skip(1);
        let length = parts.next().unwrap().parse().unwrap();
        let whole = value(key, 0, &"v".repeat(length));
        match parts.next() {
            Some(at) => {
                let (front, rest) = whole.split_at(at.parse().unwrap());
                vec![front.to_vec(), rest.to_vec()]
            }
            None => vec![whole],
        }
    };
    let lines = "
        set $memcached_key $uri;
        access_log logs/bytes.log bytes;
        location / { memcached_pass VALUES; }
        [http]
        log_format bytes '$uri $upstream_bytes_received $upstream_response_length';";
    with_server(engine, lines, answer, |server, _| {
        for key in [
            "/2",
            "/3000",
            "/16384",
            "/30000",
            "/3000/30",
            "/30000/9000",
            "/30000/10",
        ] {
            let length: usize = key.split('/').nth(1).unwrap().parse().unwrap();
            assert_eq!(body(&get(server, key)).len(), length, "{key}");
            let in_all = value(key, 0, &"v".repeat(length)).len();
            let behind_line = length + "\r\nEND\r\n".len();
            let line = format!("{key} {in_all} {behind_line}\n");
            let log = server.prefix.join("logs/bytes.log");
            wait_for("the line of the log", || {
                std::fs::read_to_string(&log)
                    .is_ok_and(|text| text.ends_with('\n') && text.contains(key))
            });
            let text = std::fs::read_to_string(&log).unwrap();
            assert!(text.ends_with(&line), "{line}{text}");
        }
    });
}

support::test_on_each_engine!(all_bytes_of_a_value_count);

fn flags_tell_what_is_compressed(engine: &'static str) {
    let answer = |key: &str| vec![value(key, 6, "bytes")];
    let lines = "
        set $memcached_key $uri;
        location / { memcached_pass VALUES; }
        location /two { memcached_gzip_flag 2; memcached_pass VALUES; }
        location /one { memcached_gzip_flag 1; memcached_pass VALUES; }";
    with_server(engine, lines, answer, |server, _| {
        for (path, is_compressed) in [("/", false), ("/two", true), ("/one", false)] {
            let answer = get(server, path);
            let says_so = answer.contains("\r\nContent-Encoding: gzip\r\n");
            assert_eq!(says_so, is_compressed, "{answer}");
            assert_eq!(body(&answer), "bytes");
        }
    });
}

support::test_on_each_engine!(flags_tell_what_is_compressed);

fn other_servers_are_asked(engine: &'static str) {
    let bad = |key: &str| match key {
        "/none" => vec![b"END\r\n".to_vec()],
        "/slow" => {
            thread::sleep(Duration::from_millis(400));
            vec![b"END\r\n".to_vec()]
        }
        _ => vec![b"ERROR\r\n".to_vec()],
    };
    let lines = "
        set $memcached_key $arg_key; error_log logs/error.log info;
        location /default { memcached_pass u; }
        location /not_found { memcached_next_upstream not_found; memcached_pass u; }
        location /invalid { memcached_next_upstream invalid_response; memcached_pass u; }
        location /off { memcached_next_upstream off; memcached_pass u; }
        location /one { memcached_next_upstream not_found; memcached_next_upstream_tries 1; memcached_pass u; }
        location /soon { memcached_next_upstream not_found; memcached_next_upstream_timeout 100ms; memcached_pass u; }
        location /later { memcached_next_upstream not_found; memcached_next_upstream_timeout 30s; memcached_pass u; }
        location /short { memcached_read_timeout 100ms; memcached_next_upstream off; memcached_pass u; }
        location /long { memcached_read_timeout 30s; memcached_next_upstream off; memcached_pass u; }
        [http]
        upstream u { server VALUES max_fails=0; server GOOD backup; }";
    let (bad, good) = (
        Values::start(bad),
        Values::start(|key| vec![value(key, 0, "good")]),
    );
    let lines = lines
        .replace("VALUES", &bad.address())
        .replace("GOOD", &good.address());
    let server = Server::start(engine, &lines);
    for (path, wanted) in [
        ("/default?key=/none", 404),
        ("/default?key=/x", 502),
        ("/not_found?key=/none", 200),
        ("/not_found?key=/x", 502),
        ("/invalid?key=/none", 404),
        ("/invalid?key=/x", 200),
        ("/off?key=/x", 502),
        ("/one?key=/none", 404),
        ("/soon?key=/slow", 404),
        ("/later?key=/slow", 200),
        ("/short?key=/slow", 504),
        ("/long?key=/slow", 404),
    ] {
        assert_eq!(status(&get(&server, path)), wanted, "{path}");
    }
    server.wait_for_log(
        "key: \"/none\" was not found by memcached while reading response header from upstream",
    );
}

support::test_on_each_engine!(other_servers_are_asked);

fn addresses_and_time_limits(engine: &'static str) {
    let lines = "
        set $memcached_key $uri;
        location /bound { memcached_bind 127.0.0.2; memcached_pass VALUES; }
        location /unbound { memcached_bind off; memcached_pass VALUES; }";
    with_server(
        engine,
        lines,
        |key| vec![value(key, 0, "ok")],
        |server, values| {
            for (path, wanted) in [("/bound", "127.0.0.2"), ("/unbound", "127.0.0.1")] {
                assert_eq!(body(&get(server, path)), "ok");
                assert_eq!(values.peers.lock().unwrap().last().unwrap(), wanted);
            }
        },
    );
    // A server that accepts nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        waiting.push(stream);
        assert!(waiting.len() < 20_000, "the backlog has no end");
    }
    let lines = "
        set $memcached_key $uri;
        location /short { memcached_connect_timeout 300ms; memcached_pass VALUES; }
        location /long { memcached_connect_timeout 2s; memcached_send_timeout 1ms; memcached_pass VALUES; }";
    let server = Server::start(engine, &lines.replace("VALUES", &address.to_string()));
    let took = |path: &str| {
        let began = Instant::now();
        assert_eq!(status(&get(&server, path)), 504);
        began.elapsed()
    };
    let (short, long) = (took("/short"), took("/long"));
    assert!(
        long >= Duration::from_secs(2) && short < long,
        "{short:?} {long:?}"
    );
}

support::test_on_each_engine!(addresses_and_time_limits);

/// memcached itself, on a port of its own.
struct Memcached {
    process: Child,
    port: u16,
}

impl Memcached {
    fn start() -> Memcached {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let process = Command::new("memcached")
            .args([
                "-l",
                "127.0.0.1",
                "-u",
                "root",
                "-U",
                "0",
                "-p",
                &port.to_string(),
            ])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("memcached is missing: apt-get install memcached");
        let memcached = Memcached { process, port };
        support::master::wait_for("memcached", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        memcached
    }

    fn set(&self, key: &str, bytes: &[u8]) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
        write!(stream, "set {key} 0 0 {}\r\n", bytes.len()).unwrap();
        stream.write_all(bytes).unwrap();
        stream.write_all(b"\r\n").unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"STORED\r\n");
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn values_of_memcached_itself(engine: &'static str) {
    let memcached = Memcached::start();
    let large: String = (0..100_000).map(|number| format!("{number} ")).collect();
    memcached.set("/large.txt", large.as_bytes());
    memcached.set("/page.html", b"a <!--#include virtual=\"/part\" --> b");
    memcached.set("/part", b"part");
    let lines = "
        ssi on; set $memcached_key $uri;
        location / { memcached_pass u; }
        location = /unix { memcached_pass unix:/nowhere/memcached.sock; }
        [http]
        upstream u { server 127.0.0.1:PORT; keepalive 8; }";
    let server = Server::start(engine, &lines.replace("PORT", &memcached.port.to_string()));
    for _ in 0..3 {
        assert!(body(&ask(&server, "GET /large.txt HTTP/1.0\r\n\r\n")) == large);
        assert_eq!(
            body(&ask(&server, "GET /page.html HTTP/1.0\r\n\r\n")),
            "a part b"
        );
        assert_eq!(status(&get(&server, "/missing")), 404);
        let long = "x".repeat(300);
        assert_eq!(status(&get(&server, &format!("/{long}"))), 502);
    }
    server.wait_for_log("memcached sent invalid response: \"CLIENT_ERROR");
    assert_eq!(status(&get(&server, "/unix")), 502);
    server.wait_for_log("connect() to unix:/nowhere/memcached.sock failed (2: No such file or directory) while connecting to upstream");
}

support::test_on_each_engine!(values_of_memcached_itself);
