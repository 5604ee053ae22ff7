//! Answers of upstreams to clients that are slow to take them (`proxy_buffering` and what bounds
//! it), on both engines: what the upstream sees, what lies in memory and in a temporary file, and
//! that what the client gets is what the upstream sent.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use proto::h2::frame;
use support::http2::Client;
use support::master::wait_for;
use support::{Connection, PATIENCE, Server, origin};

/// More than two sockets hold of an answer that nobody reads.
const LARGE: usize = 24 << 20;

/// How long nothing happens that is not to happen.
const MOMENT: Duration = Duration::from_millis(300);

/// An upstream that answers by path, `/HOW/LENGTH`, and tells the paths of the answers whose
/// connections are over.
struct Upstream {
    port: u16,
    over: Receiver<String>,
}

impl Upstream {
    fn start() -> Upstream {
        let (say, over) = channel();
        let port = origin::listen(move |stream| drop(say.send(answer(stream))));
        Upstream { port, over }
    }

    /// Waits until the server has let go of the answer to this path.
    fn wait_for(&self, path: &str) {
        let over = self.over.recv_timeout(PATIENCE);
        assert_eq!(over.as_deref(), Ok(path));
    }

    /// Whether the server is still at it.
    fn is_held(&self) -> bool {
        self.over.recv_timeout(MOMENT).is_err()
    }
}

/// Bytes of which no two parts are alike.
fn body(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        bytes.extend_from_slice(&(state >> 16).to_le_bytes()[..6]);
    }
    bytes.truncate(length);
    bytes
}

/// Answers one request; the path, once the server has closed the connection.
fn answer(mut stream: TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let words: Vec<&str> = path.split('/').collect();
    let length: usize = words.last().and_then(|word| word.parse().ok()).unwrap_or(0);
    let body = body(length);
    let ok = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
    let sent = match words[words.len() - 2] {
        "chunked" => write!(stream, "{ok}Transfer-Encoding: chunked\r\n\r\n").and_then(|()| {
            for part in body.chunks(5000) {
                write!(stream, "{:x}\r\n", part.len())?;
                stream.write_all(part)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\n\r\n")
        }),
        // In parts, with a pause behind each.
        "bursts" => write!(stream, "{ok}Content-Length: {length}\r\n\r\n").and_then(|()| {
            body.chunks(300_000).try_for_each(|part| {
                thread::sleep(Duration::from_millis(3));
                stream.write_all(part)
            })
        }),
        "closed" => write!(stream, "{ok}Connection: close\r\n\r\n")
            .and_then(|()| stream.write_all(&body))
            .and_then(|()| stream.shutdown(std::net::Shutdown::Write)),
        "unbuffered" => write!(
            stream,
            "{ok}X-Accel-Buffering: no\r\nContent-Length: {length}\r\n\r\n"
        )
        .and_then(|()| stream.write_all(&body)),
        "broken" => write!(stream, "{ok}Content-Length: {}\r\n\r\n", length + 1)
            .and_then(|()| stream.write_all(&body))
            .and_then(|()| stream.shutdown(std::net::Shutdown::Write)),
        _ => write!(stream, "{ok}Content-Length: {length}\r\n\r\n")
            .and_then(|()| stream.write_all(&body)),
    };
    if sent.is_ok() {
        let _ = stream.read(&mut byte);
    }
    path
}

/// A server that passes on what begins with `/p/`, with these lines there and these beside it.
fn with_server(engine: &str, lines: &str, beside: &str, check: impl Fn(&Server, &Upstream)) {
    let upstream = Upstream::start();
    let lines = format!(
        "http2 on;
             access_log logs/access.log told;
             location /p/ {{ proxy_pass http://127.0.0.1:{port}; {lines} }}
             {beside}
             [http]
             log_format told '$uri $status $body_bytes_sent $upstream_response_length $upstream_status $request_completion';
             proxy_read_timeout 60s; send_timeout 60s;
             ",
        port = upstream.port,
        beside = beside.replace("UPSTREAM", &format!("127.0.0.1:{}", upstream.port)),
    );
    let lines = lines.replace("             [http]", "[http]");
    let server = Server::start(engine, &lines);
    check(&server, &upstream);
}

/// The open temporary files of the server: their sizes.
fn files(server: &Server) -> Vec<u64> {
    let folder = server.prefix.join("temp");
    let descriptors = server
        .workers()
        .into_iter()
        .flat_map(|pid| {
            fs::read_dir(format!("/proc/{pid}/fd"))
                .into_iter()
                .flatten()
        })
        .flatten();
    let ours = descriptors.filter(|entry| {
        let begin = Instant::now();
        loop {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            let is_gone = target.to_string_lossy().ends_with(" (deleted)");
            if !target.starts_with(&folder) || is_gone {
                return is_gone && target.starts_with(&folder);
            }
            // A file has a name for the moment between two calls.
            assert!(begin.elapsed() < PATIENCE, "{target:?} has a name");
        }
    });
    let sizes = ours.filter_map(|entry| fs::metadata(entry.path()).ok());
    sizes.map(|metadata| metadata.len()).collect()
}

/// Bytes of memory that the server's workers have for themselves.
fn memory(server: &Server) -> usize {
    let of = |pid: u32| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let line = rollup
            .lines()
            .find_map(|line| line.strip_prefix("Pss_Anon:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.unwrap().parse::<usize>().unwrap() * 1024
    };
    server.workers().into_iter().map(of).sum()
}

const WARNING: &str = "an upstream response is buffered to a temporary file ";

/// The names of the files that the log speaks of.
fn named(server: &Server) -> Vec<PathBuf> {
    let log = server.error_log();
    let lines = log.lines().filter_map(|line| line.split_once(WARNING));
    let names = lines.map(|(before, rest)| {
        assert!(before.contains(" [warn] "), "{before}");
        let (name, rest) = rest.split_once(' ').unwrap();
        assert!(
            rest.starts_with("while reading upstream, client: "),
            "{rest}"
        );
        assert!(rest.contains(", upstream: \"http://127.0.0.1:"), "{rest}");
        name.into()
    });
    names.collect()
}

/// Sends a request on a new connection.
fn ask(server: &Server, path: &str) -> Connection {
    let mut connection = server.connect();
    connection.send(path, "").unwrap();
    connection
}

/// All that still comes on a connection of a client's own, behind the head.
fn rest_of(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut part = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = stream.read(&mut part) {
        all.extend_from_slice(&part[..count]);
    }
    let end = all
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap();
    all.split_off(end + 4)
}

/// The same of one that speaks HTTP/1.0, so that the body ends with it.
fn ask_plainly(server: &Server, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
    stream
}

fn an_upstream_is_done_while_its_client_reads_nothing(engine: &'static str) {
    with_server(engine, "", "", |server, upstream| {
        let whole = body(LARGE);
        // Whatever is made once is there.
        ask(server, "/p/plain/100000")
            .receive(Duration::ZERO)
            .unwrap();
        upstream.wait_for("/p/plain/100000");
        let before = memory(server);
        let path = format!("/p/plain/{LARGE}");
        let mut client = ask(server, &path);
        upstream.wait_for(&path);
        let sizes = files(server);
        assert!(matches!(sizes[..], [size] if size > 1 << 20), "{sizes:?}");
        let grown = memory(server).saturating_sub(before);
        assert!(grown < 6 << 20, "{grown} bytes more than before");
        assert_eq!(named(server).len(), 1);
        assert!(client.receive(Duration::ZERO).unwrap().body == whole);
        wait_for("no file", || files(server).is_empty());
        let line = format!("{path} 200 {LARGE} {LARGE} 200 OK");
        server.wait_for_line("access.log", &line);
        // The connection goes on.
        assert_eq!(client.get("/p/plain/5").unwrap().body, whole[..5]);
    });
}

support::test_on_each_engine!(an_upstream_is_done_while_its_client_reads_nothing);

fn every_framing_comes_as_it_was_sent(engine: &'static str) {
    with_server(engine, "", "", |server, upstream| {
        let whole = body(LARGE);
        for how in ["plain", "chunked", "closed"] {
            let path = format!("/p/{how}/{LARGE}");
            let mut client = ask_plainly(server, &path);
            upstream.wait_for(&path);
            assert!(!files(server).is_empty(), "{how}");
            assert!(rest_of(&mut client) == whole, "{how}");
        }
        wait_for("no file", || files(server).is_empty());
        assert_eq!(named(server).len(), 3);
    });
}

support::test_on_each_engine!(every_framing_comes_as_it_was_sent);

/// The client takes a little now and then, so that what is in memory, in the file and on its way
/// changes all the time.
fn a_slow_client_gets_memory_and_file_in_order(engine: &'static str) {
    let lines = "proxy_buffers 6 8k; proxy_busy_buffers_size 24k; sendfile on;";
    for lines in [
        lines.to_owned(),
        lines.replace("sendfile on", "sendfile off"),
    ] {
        with_server(engine, &lines, "", |server, upstream| {
            const LENGTH: usize = 6_000_000;
            let path = format!("/p/bursts/{LENGTH}");
            let mut client = ask(server, &path);
            let got = client.receive(Duration::from_millis(1)).unwrap();
            assert!(got.body == body(LENGTH));
            upstream.wait_for(&path);
        });
    }
}

support::test_on_each_engine!(a_slow_client_gets_memory_and_file_in_order);

fn where_there_is_no_file_the_upstream_waits(engine: &'static str) {
    let beside = "
        location /off/ { proxy_buffering off; proxy_pass http://UPSTREAM; }";
    with_server(
        engine,
        "proxy_max_temp_file_size 0;",
        beside,
        |server, upstream| {
            let whole = body(LARGE);
            for path in ["/p/plain/", "/off/plain/", "/p/unbuffered/"] {
                let path = format!("{path}{LARGE}");
                let mut client = ask(server, &path);
                assert!(upstream.is_held(), "{path}");
                assert_eq!(files(server), []);
                assert!(client.receive(Duration::ZERO).unwrap().body == whole);
                upstream.wait_for(&path);
            }
            assert!(named(server).is_empty());
        },
    );
}

support::test_on_each_engine!(where_there_is_no_file_the_upstream_waits);

fn a_file_that_is_full_lets_the_upstream_wait(engine: &'static str) {
    let lines = "proxy_max_temp_file_size 1000000;";
    with_server(engine, lines, "", |server, upstream| {
        let path = format!("/p/plain/{LARGE}");
        let mut client = ask(server, &path);
        wait_for("a full file", || files(server) == [1_000_000]);
        assert!(upstream.is_held());
        assert!(client.receive(Duration::ZERO).unwrap().body == body(LARGE));
        upstream.wait_for(&path);
        assert_eq!(named(server).len(), 1);
    });
}

support::test_on_each_engine!(a_file_that_is_full_lets_the_upstream_wait);

/// `limit_rate` slows the client down, and not the upstream: what it has sent lies in memory and in
/// the file by then, by what the directives say. No socket takes any of it.
fn each_directive_bounds_what_it_says(engine: &'static str) {
    const LENGTH: usize = 300_000;
    let sizes = |lines: &str| {
        let all = std::cell::RefCell::new(Vec::new());
        let lines = format!("limit_rate 100; {lines}");
        with_server(engine, &lines, "", |server, upstream| {
            let path = format!("/p/plain/{LENGTH}");
            let client = ask(server, &path);
            upstream.wait_for(&path);
            all.borrow_mut()
                .push(files(server).first().copied().unwrap_or(0));
            drop(client);
        });
        all.into_inner()
    };
    let check = |lines: &str, expected: std::ops::RangeInclusive<u64>| {
        let sizes = sizes(lines);
        assert!(
            sizes.iter().all(|size| expected.contains(size)),
            "{lines} {sizes:?}"
        );
    };
    // Number and size.
    check("proxy_buffers 100 4k;", 0..=0);
    check("", 240_000..=290_000);
    check("proxy_buffers 20 4k;", 200_000..=250_000);
    check("proxy_buffers 40 4k;", 110_000..=170_000);
    // What may be on its way is a part of that.
    check("proxy_buffers 100 4k; proxy_busy_buffers_size 64k;", 0..=0);
    check(
        "proxy_buffers 100 4k; proxy_busy_buffers_size 300k;",
        160_000..=220_000,
    );
    // All of a part is written at once.
    check(
        "proxy_buffers 64 4k; proxy_temp_file_write_size 8k;",
        20_000..=80_000,
    );
    check(
        "proxy_buffers 64 4k; proxy_temp_file_write_size 200k;",
        204_800..=204_800,
    );
    // Nothing is written beyond that; the rest has room in memory, also where a receive may be too
    // large for the last of it.
    let full =
        "proxy_buffers 68 4k; proxy_temp_file_write_size 200k; proxy_max_temp_file_size 50000;";
    check(full, 50_000..=50_000);
}

support::test_on_each_engine!(each_directive_bounds_what_it_says);

fn files_lie_where_the_directive_says(engine: &'static str) {
    let lines = "limit_rate 100; proxy_temp_path temp/other 1 2;";
    let beside = "location /q/ { limit_rate 100; proxy_pass http://UPSTREAM; }";
    with_server(engine, lines, beside, |server, upstream| {
        for (path, folder) in [
            ("/p/plain/200000", "temp/other"),
            ("/q/plain/200000", "temp/proxy"),
        ] {
            let client = ask(server, path);
            upstream.wait_for(path);
            wait_for("a file", || !files(server).is_empty());
            drop(client);
            wait_for("no file", || files(server).is_empty());
            server.wait_for_log(&format!(
                "{WARNING}{}",
                server.prefix.join(folder).display()
            ));
        }
        let names = named(server);
        let digits = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let name = digits(&names[0]);
        assert_eq!(name.len(), 10, "{names:?}");
        let levels = format!("temp/other/{}/{}/{name}", &name[9..], &name[7..9]);
        assert_eq!(names[0], server.prefix.join(levels));
        let flat = format!("temp/proxy/{}", digits(&names[1]));
        assert_eq!(names[1], server.prefix.join(flat));
    });
}

support::test_on_each_engine!(files_lie_where_the_directive_says);

fn a_client_that_leaves_leaves_nothing_behind(engine: &'static str) {
    let beside = "location /ignore/ { proxy_ignore_client_abort on; proxy_pass http://UPSTREAM; }";
    let lines = "proxy_max_temp_file_size 2m;";
    with_server(engine, lines, beside, |server, upstream| {
        for path in ["/p/plain/", "/p/chunked/", "/ignore/plain/"] {
            let path = format!("{path}{}", 2 * LARGE);
            let client = ask(server, &path);
            wait_for("a file", || !files(server).is_empty());
            drop(client);
            upstream.wait_for(&path);
            wait_for("no file", || files(server).is_empty());
        }
        assert!(!server.error_log().contains("[alert]"));
    });
}

support::test_on_each_engine!(a_client_that_leaves_leaves_nothing_behind);

fn a_file_that_cannot_be_made_ends_the_response(engine: &'static str) {
    let lines = "limit_rate 1000; proxy_temp_path temp/gone;";
    with_server(engine, lines, "", |server, upstream| {
        let path = "/p/plain/200000";
        fs::remove_dir_all(server.prefix.join("temp/gone")).unwrap();
        let mut client = ask_plainly(server, path);
        upstream.wait_for(path);
        let got = rest_of(&mut client);
        assert!(got.len() < 200_000 && body(200_000).starts_with(&got));
        let log = server.error_log();
        let name = server.prefix.join("temp/gone/0000000001");
        let line = format!(
            "open() \"{}\" failed (2: No such file or directory) while reading upstream, client: 127.0.0.1",
            name.display()
        );
        assert!(log.contains(&line) && log.contains("[crit]"), "{log}");
        server.wait_for_line("access.log", &format!("{path} 200 "));
    });
}

support::test_on_each_engine!(a_file_that_cannot_be_made_ends_the_response);

fn what_came_before_an_upstream_broke_off_is_sent(engine: &'static str) {
    with_server(engine, "", "", |server, upstream| {
        let path = format!("/p/broken/{LARGE}");
        let mut client = ask_plainly(server, &path);
        upstream.wait_for(&path);
        assert!(!files(server).is_empty());
        assert!(rest_of(&mut client) == body(LARGE));
        let line = "upstream prematurely closed connection while reading upstream";
        server.wait_for_log(line);
        wait_for("no file", || files(server).is_empty());
    });
}

support::test_on_each_engine!(what_came_before_an_upstream_broke_off_is_sent);

fn filters_and_included_pages_get_the_same(engine: &'static str) {
    let lines = "sub_filter nowhere-to-be-found x; sub_filter_types *;";
    let beside = "
        location /page { ssi on; ssi_types *; }
        location /q/ { proxy_pass http://UPSTREAM; }";
    with_server(engine, lines, beside, |server, upstream| {
        let whole = body(LARGE);
        let path = format!("/p/plain/{LARGE}");
        let mut client = ask_plainly(server, &path);
        upstream.wait_for(&path);
        assert!(!files(server).is_empty());
        assert!(rest_of(&mut client) == whole);
        // The page waits for what stands before the second one.
        let included = format!("/q/plain/{LARGE}");
        let include = format!("<!--#include virtual=\"{included}\" -->");
        server.write("page", format!("[{include}|{include}]").as_bytes());
        let mut client = ask_plainly(server, "/page");
        upstream.wait_for(&included);
        upstream.wait_for(&included);
        assert_eq!(files(server).len(), 2);
        let got = rest_of(&mut client);
        assert!(got == [b"[", &*whole, b"|", &*whole, b"]"].concat());
        wait_for("no file", || files(server).is_empty());
    });
}

support::test_on_each_engine!(filters_and_included_pages_get_the_same);

fn a_shut_window_does_not_hold_the_upstream_up(engine: &'static str) {
    with_server(engine, "", "", |server, upstream| {
        let mut client = Client::connect_with(server.port, &[(4, 0)]);
        let path = format!("/p/plain/{LARGE}");
        let stream = client.request(&path, &[]);
        upstream.wait_for(&path);
        let sizes = files(server);
        assert!(matches!(sizes[..], [size] if size > 20 << 20), "{sizes:?}");
        let mut out = Vec::new();
        frame::put_window_update(&mut out, 0, 1 << 30);
        frame::put_window_update(&mut out, stream, 1 << 30);
        client.send(&out);
        assert!(client.response(stream).body == body(LARGE));
        wait_for("no file", || files(server).is_empty());
        // A stream that is reset takes its file with it.
        let path = format!("/p/plain/{}", LARGE + 1);
        let stream = client.request(&path, &[]);
        upstream.wait_for(&path);
        assert!(!files(server).is_empty());
        let mut out = Vec::new();
        frame::put_reset(&mut out, stream, proto::h2::ErrorCode::Cancel);
        client.send(&out);
        wait_for("no file", || files(server).is_empty());
    });
}

support::test_on_each_engine!(a_shut_window_does_not_hold_the_upstream_up);

fn a_head_alone_needs_no_file(engine: &'static str) {
    with_server(engine, "", "", |server, upstream| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let path = format!("/p/plain/{LARGE}");
        write!(stream, "HEAD {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        upstream.wait_for(&path);
        assert_eq!(rest_of(&mut stream), b"");
        assert!(named(server).is_empty() && files(server).is_empty());
    });
}

support::test_on_each_engine!(a_head_alone_needs_no_file);

/// Answers one request after the other over each connection: `/who` with the number of that, others
/// with as many bytes as they ask for.
fn keep_answering(listener: TcpListener) {
    thread::spawn(move || {
        for (number, mut stream) in listener.incoming().flatten().enumerate() {
            thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while matches!(stream.read(&mut byte), Ok(1)) {
                    head.push(byte[0]);
                    if !head.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    let text = String::from_utf8_lossy(&head).into_owned();
                    let path = text.split(' ').nth(1).unwrap_or_default();
                    let answer = match path.trim_start_matches('/') {
                        "who" => number.to_string().into_bytes(),
                        length => body(length.parse().unwrap_or(0)),
                    };
                    let length = answer.len();
                    let _ = write!(
                        stream,
                        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
                    )
                    .and_then(|()| stream.write_all(&answer));
                    head.clear();
                }
            });
        }
    });
}

fn a_connection_serves_others_before_its_answer_has_been_read(engine: &'static str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    keep_answering(listener);
    let lines = format!(
        "location / {{ proxy_pass http://kept; }}
            location = /numbers {{ metrics json; }}
[http]
upstream kept {{ zone kept 1m; server 127.0.0.1:{port}; }}"
    );
    let server = Server::start(engine, &lines);
    let mut slow = ask(&server, &format!("/{LARGE}"));
    wait_for("a file", || !files(&server).is_empty());
    let mut other = server.connect();
    wait_for("the end of the answer", || {
        let numbers = other.get("/numbers").unwrap().body;
        String::from_utf8_lossy(&numbers).contains("\"active\":0")
    });
    // Its client has read nothing, and its connection answers others.
    let mut who = || other.get("/who").unwrap().body;
    assert_eq!(who(), b"0");
    assert_eq!(who(), b"0");
    assert!(slow.receive(Duration::ZERO).unwrap().body == body(LARGE));
    assert_eq!(who(), b"0");
    wait_for("no file", || files(&server).is_empty());
}

support::test_on_each_engine!(a_connection_serves_others_before_its_answer_has_been_read);

fn what_is_stored_is_whole_however_slow_its_client_is(engine: &'static str) {
    let lines = "root stored; proxy_store on; proxy_temp_path temp/kept 2;";
    with_server(engine, lines, "", |server, upstream| {
        let folder = server.prefix.join("stored");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let path = format!("/p/plain/{LARGE}");
        let stored = folder.join(&path[1..]);
        let mut client = ask_plainly(server, &path);
        upstream.wait_for(&path);
        assert!(!stored.exists());
        assert!(rest_of(&mut client) == body(LARGE));
        assert!(fs::read(&stored).unwrap() == body(LARGE));
        // One that leaves early does not take it along.
        let path = format!("/p/chunked/{LARGE}");
        let stored = folder.join(&path[1..]);
        let client = ask_plainly(server, &path);
        upstream.wait_for(&path);
        drop(client);
        wait_for("the stored file", || stored.exists());
        assert!(fs::read(&stored).unwrap() == body(LARGE));
    });
}

support::test_on_each_engine!(what_is_stored_is_whole_however_slow_its_client_is);

fn a_limited_upstream_is_read_ahead_of_its_client_at_its_rate(engine: &'static str) {
    with_server(
        engine,
        "proxy_limit_rate 100k; limit_rate 1k;",
        "",
        |server, upstream| {
            let began = Instant::now();
            let path = "/p/closed/250000";
            let client = ask(server, path);
            upstream.wait_for(path);
            let took = began.elapsed();
            assert!(took > Duration::from_millis(1500), "{took:?}");
            assert!(files(server).iter().sum::<u64>() > 100_000);
            drop(client);
            wait_for("no file", || files(server).is_empty());
        },
    );
}

support::test_on_each_engine!(a_limited_upstream_is_read_ahead_of_its_client_at_its_rate);
