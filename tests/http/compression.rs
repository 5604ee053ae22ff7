//! Brotli and Zstandard from outside, by the documentation of ngx_brotli and zstd-nginx-module:
//! which responses are compressed and how, which coding wins, precompressed files, event streams.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use support::origin::{Origin, ok};
use support::{PATIENCE, Server};

const TEXT: &str = "a line of text that repeats itself\n";

/// A response that ends with its connection.
struct Response {
    head: String,
    body: Vec<u8>,
}

impl Response {
    fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    fn coding(&self) -> &str {
        self.field("Content-Encoding").unwrap_or("none")
    }

    fn plain(&self) -> String {
        String::from_utf8(plain(self.coding(), &self.body)).unwrap()
    }
}

/// What can be read of a compressed body so far.
fn plain(coding: &str, body: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let _ = match coding {
        "br" => brotli::Decompressor::new(body, 4096).read_to_end(&mut plain),
        "zstd" => zstd::stream::read::Decoder::new(body)
            .unwrap()
            .read_to_end(&mut plain),
        "gzip" => flate2::read::GzDecoder::new(body).read_to_end(&mut plain),
        _ => {
            plain.extend_from_slice(body);
            Ok(0)
        }
    };
    plain
}

fn ask(server: &Server, path: &str, accept: &str) -> Response {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\nAccept-Encoding: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    let end = all.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    Response {
        head: String::from_utf8_lossy(&all[..end]).into_owned(),
        body: all.split_off(end),
    }
}

fn server() -> Server {
    let server = Server::start(
        "",
        "gzip_http_version 1.0; types { text/html html; text/plain txt; }
         location /br/ { alias www/; brotli on; }
         location /br-off/ { alias www/; brotli off; }
         location /br-types/ { alias www/; brotli on; brotli_types text/plain; }
         location /br-min/ { alias www/; brotli on; brotli_min_length 1m; }
         location /br-0/ { alias www/; brotli on; brotli_comp_level 0; brotli_window 1k; }
         location /br-11/ { alias www/; brotli on; brotli_comp_level 11; brotli_buffers 4 8k; }
         location /zstd/ { alias www/; zstd on; }
         location /zstd-off/ { alias www/; zstd off; }
         location /zstd-types/ { alias www/; zstd on; zstd_types text/plain; }
         location /zstd-min/ { alias www/; zstd on; zstd_min_length 1m; }
         location /zstd-19/ { alias www/; zstd on; zstd_comp_level 19; zstd_buffers 4 8k; }
         location /all/ { alias www/; gzip on; brotli on; zstd on; gzip_vary on; }
         location /static/ { alias www/; gzip_static on; brotli_static on; zstd_static on; }
         location /static-off/ { alias www/; brotli_static off; zstd_static off; }
         location /always-br/ { alias www/; brotli_static always; }
         location /always-zstd/ { alias www/; zstd_static always; }",
    );
    server.write("page.html", TEXT.repeat(2000).as_bytes());
    server.write("page.txt", TEXT.repeat(2000).as_bytes());
    server.write("short.html", b"short");
    for (name, text) in [("br", "by br"), ("zst", "by zstd"), ("gz", "by gzip")] {
        server.write(&format!("page.html.{name}"), text.as_bytes());
    }
    server
}

#[test]
fn responses_are_compressed_as_their_directives_say() {
    let server = server();
    let whole = TEXT.repeat(2000);
    for (path, accept, coding) in [
        ("/br/page.html", "br", "br"),
        ("/br/page.html", "gzip", "none"),
        ("/br/page.html", "br;q=0", "none"),
        ("/br/page.txt", "br", "none"),
        ("/br/short.html", "br", "none"),
        ("/br-off/page.html", "br", "none"),
        ("/br-types/page.txt", "br", "br"),
        ("/br-min/page.html", "br", "none"),
        ("/br-0/page.html", "br", "br"),
        ("/br-11/page.html", "br", "br"),
        ("/zstd/page.html", "zstd", "zstd"),
        ("/zstd/page.html", "br", "none"),
        ("/zstd/page.txt", "zstd", "none"),
        ("/zstd-off/page.html", "zstd", "none"),
        ("/zstd-types/page.txt", "zstd", "zstd"),
        ("/zstd-min/page.html", "zstd", "none"),
        ("/zstd-19/page.html", "zstd", "zstd"),
    ] {
        let answer = ask(&server, path, accept);
        assert_eq!(answer.coding(), coding, "{path} {accept}");
        let expected = if path.contains("short") {
            "short"
        } else {
            &whole
        };
        assert!(answer.plain() == expected, "{path} {accept}");
        let etag = answer.field("ETag").unwrap();
        assert_eq!(etag.starts_with("W/"), coding != "none", "{path}");
    }
    let best = ask(&server, "/br-11/page.html", "br").body.len();
    let least = ask(&server, "/br-0/page.html", "br").body.len();
    assert!(best < least && least < whole.len(), "{best} {least}");
    let better = ask(&server, "/zstd-19/page.html", "zstd").body.len();
    let quick = ask(&server, "/zstd/page.html", "zstd").body.len();
    assert!(better <= quick && quick < whole.len(), "{better} {quick}");
}

#[test]
fn the_client_chooses_the_coding() {
    let server = server();
    for (accept, coding) in [
        ("gzip, zstd, br", "br"),
        ("gzip, zstd", "zstd"),
        ("gzip", "gzip"),
        ("br;q=0.5, zstd;q=0.9, gzip", "gzip"),
        ("br;q=0.5, zstd;q=0.9, gzip;q=0.8", "zstd"),
        ("br;q=0, zstd;q=0, gzip", "gzip"),
        ("identity", "none"),
    ] {
        let answer = ask(&server, "/all/page.html", accept);
        assert_eq!(answer.coding(), coding, "{accept}");
        assert_eq!(answer.field("Vary"), Some("Accept-Encoding"), "{accept}");
        assert!(answer.plain() == TEXT.repeat(2000), "{accept}");
    }
}

#[test]
fn precompressed_files() {
    let server = server();
    for (path, accept, coding, body) in [
        ("/static/page.html", "gzip, zstd, br", "br", "by br"),
        ("/static/page.html", "gzip, zstd", "zstd", "by zstd"),
        ("/static/page.html", "gzip, br;q=0.9", "gzip", "by gzip"),
        ("/static/short.html", "br", "none", "short"),
        ("/always-br/page.html", "identity", "br", "by br"),
        ("/always-zstd/page.html", "identity", "zstd", "by zstd"),
    ] {
        let answer = ask(&server, path, accept);
        assert_eq!(answer.coding(), coding, "{path} {accept}");
        assert_eq!(answer.body, body.as_bytes(), "{path} {accept}");
    }
    let answer = ask(&server, "/static-off/page.html", "br, zstd");
    assert_eq!(answer.coding(), "none");
}

/// A record of FastCGI's standard output.
fn record(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[1, 6, 0, 1, length[0], length[1], 0, 0], content].concat()
}

/// An upstream of two events, the second of which waits for a word. It speaks HTTP/1.0, which uwsgi
/// and SCGI take as well, or FastCGI.
fn events(is_fastcgi: bool, may_go_on: Receiver<()>) -> u16 {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = upstream.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let framed = |text: &str| {
            if is_fastcgi {
                record(text.as_bytes())
            } else {
                text.as_bytes().to_vec()
            }
        };
        for stream in upstream.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let line = if is_fastcgi {
                "Status: 200"
            } else {
                "HTTP/1.0 200 OK"
            };
            let head = format!("{line}\r\nContent-Type: text/event-stream\r\n\r\n");
            stream.write_all(&framed(&head)).unwrap();
            stream.write_all(&framed("data: first\n\n")).unwrap();
            may_go_on.recv().unwrap();
            stream.write_all(&framed("data: second\n\n")).unwrap();
            if is_fastcgi {
                let end = [1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                stream
                    .write_all(&[record(b""), end.to_vec()].concat())
                    .unwrap();
            }
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    port
}

/// What an upstream sends at once leaves at once, though it is compressed, and whether it is
/// buffered or not.
fn event_streams_pass_at_once(engine: &'static str) {
    let ((http_go_on, http), (fastcgi_go_on, fastcgi)) = (channel(), channel());
    let (http, fastcgi) = (events(false, http), events(true, fastcgi));
    let lines = format!(
        "gzip on; gzip_types text/event-stream; gzip_http_version 1.0; gzip_proxied any;
         brotli on; brotli_types text/event-stream; zstd on; zstd_types text/event-stream;
         location /unbuffered {{ proxy_pass http://127.0.0.1:{http}; proxy_buffering off; }}
         location /buffered {{ proxy_pass http://127.0.0.1:{http}; }}
         location /left/ {{ proxy_pass http://127.0.0.1:{http}; proxy_ignore_client_abort on; }}
         location /uwsgi {{ uwsgi_pass 127.0.0.1:{http}; }}
         location /scgi {{ scgi_pass 127.0.0.1:{http}; }}
         location /fastcgi {{ fastcgi_pass 127.0.0.1:{fastcgi}; }}"
    );
    let server = Server::start(engine, &lines);
    for path in [
        "/unbuffered",
        "/buffered",
        "/left/",
        "/uwsgi",
        "/scgi",
        "/fastcgi",
    ] {
        let go_on = if path == "/fastcgi" {
            &fastcgi_go_on
        } else {
            &http_go_on
        };
        for coding in ["br", "zstd", "gzip"] {
            pass_at_once(&server, path, coding, go_on);
        }
    }
}

support::test_on_each_engine!(event_streams_pass_at_once);

fn pass_at_once(server: &Server, path: &str, coding: &str, go_on: &Sender<()>) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\nAccept-Encoding: {coding}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = Vec::new();
    let body = |all: &[u8]| {
        let end = all.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
        Some(plain(coding, &all[end..]))
    };
    while body(&all).is_none_or(|body| !body.ends_with(b"first\n\n")) {
        let mut buffer = [0; 4096];
        let length = match stream.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => panic!("{path} {coding}: the first event: {error}"),
        };
        assert!(length > 0, "{path} {coding}");
        all.extend_from_slice(&buffer[..length]);
    }
    go_on.send(()).unwrap();
    stream.read_to_end(&mut all).unwrap();
    let body = body(&all).unwrap();
    assert_eq!(body, b"data: first\n\ndata: second\n\n", "{path} {coding}");
    let head = String::from_utf8_lossy(&all);
    assert!(
        head.contains(&format!("Content-Encoding: {coding}\r\n")),
        "{path}"
    );
}

/// Compressing takes long, and the file is in memory and the client quick: others have their turns
/// nevertheless.
fn a_long_compression_holds_up_nobody(engine: &'static str) {
    if support::is_nginx() {
        return; // it has no brotli, and does not share out its time either
    }
    let server = Server::start(
        engine,
        "access_log logs/order.log;\n\
         location /long { brotli on; brotli_types *; brotli_comp_level 9; }\n\
         location /quick { return 200 q; }",
    );
    let mut state = 1_u32;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    server.write("long", &noise.take(600_000).collect::<Vec<u8>>());
    let mut quick = server.connect();
    let long_before_quick = |log: &str| {
        let at = |path: &str| log.rfind(path).expect("both are logged");
        at("GET /long") < at("GET /quick")
    };
    // Chance may let the second request come too late, but not each time.
    let held_up = (0..20).all(|_| {
        quick.get("/quick").unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let idle = "GET /quick HTTP/1.1\r\nHost: x\r\n\r\n";
        stream.write_all(idle.as_bytes()).unwrap();
        let mut first = Vec::new();
        while !first.ends_with(b"\r\n\r\nq") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            first.extend(byte);
        }
        let long = "GET /long HTTP/1.0\r\nHost: x\r\nAccept-Encoding: br\r\n\r\n";
        stream.write_all(long.as_bytes()).unwrap();
        quick.get("/quick").unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert!(all.len() > 500_000, "noise stays as long as it is");
        let log = std::fs::read_to_string(server.prefix.join("logs/order.log")).unwrap();
        long_before_quick(&log)
    });
    assert!(!held_up, "{engine}");
}

support::test_on_each_engine!(a_long_compression_holds_up_nobody);

/// Text that a stronger compressor makes much shorter.
fn compressible(seed: usize) -> Vec<u8> {
    let word = |at: usize| format!("{} ", (at * (at % 7 + seed)) % 997 * 31);
    (0..8000).flat_map(|at| word(at).into_bytes()).collect()
}

/// An upstream that answers every request with this body.
fn constant_upstream(body: Vec<u8>) -> u16 {
    let fields = "Content-Type: text/html\r\nETag: \"e\"\r\nCache-Control: max-age=3600\r\n";
    Origin::closing(move |_, _| ok(fields, &body)).port
}

/// The head without its date.
fn undated(response: &Response) -> Vec<&str> {
    let lines = response.head.lines();
    lines.filter(|line| !line.starts_with("Date: ")).collect()
}

/// Waits until a body comes shorter than at first, with the same head, and says how long it is.
fn shorter(server: &Server, path: &str, coding: &str, expected: &[u8]) -> usize {
    let first = ask(server, path, coding);
    assert_eq!(first.coding(), coding, "{path}");
    assert_eq!(plain(coding, &first.body), expected, "{path}");
    let started = std::time::Instant::now();
    loop {
        let next = ask(server, path, coding);
        assert_eq!(undated(&next), undated(&first), "{path}");
        assert_eq!(plain(coding, &next.body), expected, "{path}");
        if next.body.len() < first.body.len() {
            return next.body.len();
        }
        assert!(started.elapsed() < PATIENCE, "{path} {coding}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// What is the same for all is compressed more strongly beside service, whatever it comes from; a
/// file that has changed is another.
fn what_is_constant_is_compressed_once_and_more_strongly(engine: &'static str) {
    let (old, new) = (compressible(1), compressible(2));
    let upstream = constant_upstream(old.clone());
    let lines = format!(
        "gzip_http_version 1.0; gzip_vary on; types {{ text/html html; }}
             location /strong/ {{ alias www/; gzip on; brotli on; zstd on; brotli_comp_level 1;
                 compress_static_level gzip=9 br=10 zstd=19; add_header X-Ratio $gzip_ratio; }}
             location /once/ {{ alias www/; gzip on; compress_static_level off; }}
             location /cached {{ gzip on; compress_static_level gzip=9;
                 proxy_pass http://127.0.0.1:{upstream}; proxy_cache one; }}
             [http]
             proxy_cache_path memory:one keys_zone=one:1m memory=8m memory_entry_max=256k;"
    );
    let server = Server::start(engine, &lines);
    server.write("a.html", &old);
    // A file that has just changed might change again unnoticed.
    std::thread::sleep(std::time::Duration::from_millis(3100));
    for coding in ["gzip", "br", "zstd"] {
        shorter(&server, "/strong/a.html", coding, &old);
    }
    let once = [(); 3].map(|()| ask(&server, "/once/a.html", "gzip"));
    assert!(once.iter().all(|next| next.body == once[0].body));
    assert_eq!(plain("gzip", &once[2].body), old);
    assert!(undated(&once[0]).contains(&"Vary: Accept-Encoding"));
    assert!(once[2].field("ETag").unwrap().starts_with("W/"));
    assert_eq!(ask(&server, "/strong/a.html", "identity").body, old);

    assert_eq!(plain("gzip", &ask(&server, "/cached", "gzip").body), old);
    shorter(&server, "/cached", "gzip", &old);

    // From the next request on, with all that has been kept of the file before.
    server.write("a.html", &new);
    for coding in ["gzip", "br", "zstd"] {
        let changed = ask(&server, "/strong/a.html", coding);
        assert_eq!(plain(coding, &changed.body), new);
    }
    assert_eq!(
        plain("gzip", &ask(&server, "/once/a.html", "gzip").body),
        new
    );
}

support::test_on_each_engine!(what_is_constant_is_compressed_once_and_more_strongly);
