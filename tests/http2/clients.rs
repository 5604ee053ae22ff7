//! HTTP/2 with the clients that people have: curl, nghttp, h2load, Python's httpx and Chromium, on
//! both engines; over TLS as ALPN agrees, and in the clear.
//!
//! `make test` installs the programs. Without Chromium its tests say so and are skipped; any other
//! program that is missing fails the tests that need it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use support::port::free_port;
use support::{PATIENCE, Server, chromium};

const WORKERS: u32 = 2;

/// What the servers show, and where they take files.
const LOCATIONS: &str = "
    location = /show { return 200 \"$server_protocol $http2 [$ssl_alpn_protocol]\\n\"; }
    location = /connection { return 200 \"$connection\\n\"; }
    location / { dav_methods PUT; client_max_body_size 10m; }
    location /small { dav_methods PUT; client_max_body_size 1m; }
    location = /301 { client_max_body_size 0; return 301 /show; }
    location = /401 { client_max_body_size 0; return 401; }
    location = /403 { client_max_body_size 0; deny all; error_page 403 /denied; }
    location = /denied { client_max_body_size 0; allow all; internal; return 403 \"denied\n\"; }
    location = /413 { client_max_body_size 1k; dav_methods PUT; }
    location = /502 {
        client_max_body_size 0; proxy_request_buffering off; proxy_pass http://127.0.0.1:1;
    }
    location = /503 { client_max_body_size 0; return 503 busy; }";

/// A file of tests.
fn file(name: &str) -> String {
    format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A server with these lines, in the clear and over TLS: itself and what its URLs begin with.
fn start(engine: &str, http: &str, lines: &str) -> (Server, [String; 2]) {
    let port = free_port();
    let (chain, key) = (file("tls/ecdsa.crt"), file("tls/ecdsa.key"));
    let lines = format!("http2 on; server_name localhost; {lines}");
    let tls = format!(
        "server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {chain}; ssl_certificate_key {key}; root www; {lines} }}"
    );
    let all = format!("{lines}\n[http]\n{http}\n{tls}\n");
    let server = Server::start_workers(WORKERS, engine, &all);
    // What is put there is written by workers of another user.
    let www = server.prefix.join("www");
    fs::set_permissions(www, fs::Permissions::from_mode(0o777)).unwrap();
    let urls = [
        format!("http://localhost:{}", server.port),
        format!("https://localhost:{port}"),
    ];
    (server, urls)
}

/// What is shown over this URL.
fn shown(url: &str) -> &'static str {
    if url.starts_with("https") {
        "HTTP/2.0 h2 [h2]\n"
    } else {
        "HTTP/2.0 h2c []\n"
    }
}

/// Runs a program to its end.
fn run(program: &str, package: &str, arguments: &[&str]) -> Output {
    // Whatever it waits for, the test shall end.
    let output = Command::new("timeout")
        .args(["300", program])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_ne!(
        output.status.code(),
        Some(127),
        "{program} is missing; the Debian package {package} has it (tests/install-packages)"
    );
    output
}

/// What a program prints that succeeds.
fn printed(program: &str, package: &str, arguments: &[&str]) -> String {
    let output = run(program, package, arguments);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {printed}\n{said}"
    );
    printed
}

/// A body that is larger than what is in flight at any time, no two parts of which are alike: its
/// file and itself.
fn large(server: &Server) -> (String, Vec<u8>) {
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 5) as u8).collect();
    let path = server.prefix.join("body");
    fs::write(&path, &body).unwrap();
    (path.display().to_string(), body)
}

fn curl(url: &str, more: &[&str]) -> String {
    let authorities = file("tls/ecdsa.crt");
    let mut arguments = vec!["-sS", "--cacert", &authorities, "--noproxy", "*"];
    if url.starts_with("http:") {
        arguments.push("--http2-prior-knowledge");
    }
    arguments.extend_from_slice(more);
    arguments.push(url);
    printed("curl", "curl", &arguments)
}

fn curl_agrees_on_http2(engine: &'static str) {
    let (server, urls) = start(engine, "", LOCATIONS);
    let (path, body) = large(&server);
    for url in &urls {
        let version = ["-w", "%{http_version} %{response_code}"];
        let answer = curl(&format!("{url}/show"), &version);
        assert_eq!(answer, format!("{}2 200", shown(url)));

        // Twenty at once, on one connection. In the clear curl 7.88 fails to go on with one,
        // with any server.
        if url.starts_with("https") {
            let all = format!("{url}/connection?[1-20]");
            let connections = curl(&all, &["--parallel", "--parallel-max", "20"]);
            let mut connections: Vec<&str> = connections.lines().collect();
            assert_eq!(connections.len(), 20);
            connections.dedup();
            assert_eq!(connections.len(), 1, "{connections:?}");
        }

        let up = format!("{url}/up-{}", url.len());
        let status = curl(
            &up,
            &["-T", &path, "-o", "/dev/null", version[0], version[1]],
        );
        assert_eq!(status, "2 201");
        let written = server.prefix.join(format!("www/up-{}", url.len()));
        assert!(fs::read(written).unwrap() == body);
        let back = server.prefix.join("back").display().to_string();
        curl(&up, &["-o", &back]);
        assert!(fs::read(&back).unwrap() == body);

        let one = curl(
            &format!("{url}/show"),
            &["--http1.1", "-w", "%{http_version}"],
        );
        assert!(
            one.starts_with("HTTP/1.1 ") && one.ends_with("1.1"),
            "{one}"
        );
    }
    // Nobody is moved from HTTP/1 to HTTP/2 by `Upgrade: h2c`, as with nginx.
    let output = printed(
        "curl",
        "curl",
        &[
            "-sS",
            "--noproxy",
            "*",
            "--http2",
            &format!("{}/show", urls[0]),
        ],
    );
    assert_eq!(output, "HTTP/1.1  []\n");
}

support::test_on_each_engine!(curl_agrees_on_http2);

fn curl_gets_an_answer_that_comes_before_the_end_of_its_upload(engine: &'static str) {
    let (server, urls) = start(engine, "", LOCATIONS);
    let (large, body) = large(&server);
    let path = server.prefix.join("part");
    let part = path.display().to_string();
    // In the clear curl may find both in one read all the same, where it is slow.
    let urls = urls.iter().filter(|url| url.starts_with("https"));
    for url in urls {
        for length in [20_000, 100_000, body.len()] {
            fs::write(&path, &body[..length]).unwrap();
            let path = if length < body.len() { &part } else { &large };
            for status in ["301", "401", "403", "413", "502", "503"] {
                let url = format!("{url}/{status}");
                let shown = ["-w", "%{response_code}", "-o", "/dev/null"];
                let answer = curl(&url, &[&["-T", path][..], &shown[..]].concat());
                assert_eq!(answer, status, "{url} {length}");
            }
        }
    }
}

support::test_on_each_engine!(curl_gets_an_answer_that_comes_before_the_end_of_its_upload);

fn nghttp_agrees_on_http2(engine: &'static str) {
    let (server, urls) = start(engine, "", LOCATIONS);
    let (path, body) = large(&server);
    server.write(
        "page.html",
        b"<link rel=stylesheet href=style.css><script src=script.js></script><img src=one.png>",
    );
    for name in ["style.css", "script.js", "one.png"] {
        server.write(name, &body[..100_000]);
    }
    for url in &urls {
        let answer = printed("nghttp", "nghttp2-client", &["-y", &format!("{url}/show")]);
        assert_eq!(answer, shown(url));

        let told = printed(
            "nghttp",
            "nghttp2-client",
            &["-nvy", &format!("{url}/show")],
        );
        assert!(told.contains(":status: 200"), "{told}");
        let agreed = told.contains("The negotiated protocol: h2");
        assert_eq!(agreed, url.starts_with("https"), "{told}");

        // A page with all that it names, and a window of little more than a frame.
        let page = format!("{url}/page.html");
        let options = ["-nasy", "-w", "15", "-W", "15", &page];
        let statistics = printed("nghttp", "nghttp2-client", &options);
        for name in ["/page.html", "/style.css", "/script.js", "/one.png"] {
            let line = statistics.lines().find(|line| line.ends_with(name));
            assert!(
                line.is_some_and(|line| line.contains(" 200 ")),
                "{statistics}"
            );
        }

        let up = format!("{url}/up-{}", url.len());
        let options = ["-vny", "-H:method: PUT", "-d", &path, &up];
        let told = printed("nghttp", "nghttp2-client", &options);
        assert!(told.contains(":status: 201"), "{told}");
        let written = server.prefix.join(format!("www/up-{}", url.len()));
        assert!(fs::read(written).unwrap() == body);

        // A larger body than is taken: the answer says so, and the client sends no more.
        let small = format!("{url}/small/up");
        let options = ["-vny", "-H:method: PUT", "-d", &path, &small];
        let told = printed("nghttp", "nghttp2-client", &options);
        assert!(told.contains(":status: 413"), "{told}");
        assert!(told.contains("(error_code=NO_ERROR(0x00))"), "{told}");
        let sent = told.matches("send DATA frame <length=16384").count();
        assert!(sent < body.len() / 16_384, "{sent}: {told}");
    }
}

support::test_on_each_engine!(nghttp_agrees_on_http2);

fn h2load_gets_every_answer(engine: &'static str) {
    let (server, urls) = start(engine, "", LOCATIONS);
    server.write("file", &[b'x'; 20_000]);
    for url in &urls {
        let file = format!("{url}/file");
        let options = ["-n", "2000", "-c", "10", "-m", "20", "-w", "16", &file];
        let report = printed("h2load", "nghttp2-client", &options);
        let protocol = if url.starts_with("https") {
            "Application protocol: h2\n"
        } else {
            "Application protocol: h2c\n"
        };
        for line in [
            protocol,
            "2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout",
            "status codes: 2000 2xx, 0 3xx, 0 4xx, 0 5xx",
            // 2,000 times 20,000 bytes.
            " (40000000) data",
        ] {
            assert!(report.contains(line), "{line}: {report}");
        }
    }
}

support::test_on_each_engine!(h2load_gets_every_answer);

fn httpx_asks_for_much_at_once(engine: &'static str) {
    let (server, [_, url]) = start(engine, "", LOCATIONS);
    let (path, body) = large(&server);
    let (script, authorities) = (file("http2/client.py"), file("tls/ecdsa.crt"));
    let arguments = [&*script, &*url, &*authorities, &*path];
    let said = printed("/usr/bin/python3", "python3-httpx", &arguments);
    let expected = "HTTP/2.0 h2 [h2]\n1 connection 50 responses\n201 200\nthe same\n";
    assert_eq!(said, expected);
    assert!(fs::read(server.prefix.join("www/up")).unwrap() == body);
}

support::test_on_each_engine!(httpx_asks_for_much_at_once);

/// Pictures of the page.
const PICTURES: usize = 200;

/// A page with pictures, which asks for a style sheet and a script when `when` calls the function
/// `urgent`. At its end it says what has come, and how.
fn page(when: &str) -> String {
    let pictures: String = (0..PICTURES)
        .map(|number| format!("<img src=picture-{number}.bmp>"))
        .collect();
    let urgent = "function urgent() { \
                  const style = document.createElement('link'); style.rel = 'stylesheet'; style.href = 'style.css'; \
                  const script = document.createElement('script'); script.fetchPriority = 'high'; script.src = 'script.js'; \
                  document.head.append(style, script); }";
    let report = "const entries = performance.getEntriesByType('resource'), other = entries.filter(entry => entry.nextHopProtocol != 'h2'); \
                  document.body.textContent = 'came: ' + entries.length + ' other: ' + other.length + ' ' + window.script \
                  + ' ' + getComputedStyle(document.body).display;";
    format!(
        "<!doctype html><html><head><script>{urgent} {when}</script></head>\
         <body onload=\"{report}\">{pictures}</body></html>"
    )
}

/// A picture that takes so many bytes: what is none Chromium stops reading. The simplest of BMP, 24
/// bits a point.
fn picture(size: u32) -> Vec<u8> {
    const HEAD: u32 = 54;
    let height = 10;
    let width = (size - HEAD) / (3 * height) / 4 * 4;
    let mut bytes = b"BM".to_vec();
    let words = [HEAD + 3 * width * height, 0, HEAD, 40, width, height];
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend([1, 0, 24, 0]);
    bytes.resize((HEAD + 3 * width * height) as usize, 0);
    bytes
}

/// A request as the log has it.
#[derive(Debug)]
struct Logged {
    connection: u64,
    path: String,
    /// When it came, and when its answer was complete, in milliseconds.
    came: i64,
    complete: i64,
    /// The urgency of its field `priority`, 3 where that says nothing of it.
    urgency: u32,
}

/// Its format.
const LOG_FORMAT: &str = "log_format seen \"$connection $uri $msec $request_time $http_priority\";";

fn read_line(line: &str) -> Logged {
    let parts: Vec<&str> = line.splitn(5, ' ').collect();
    let milliseconds = |text: &str| (text.parse::<f64>().unwrap() * 1000.0).round() as i64;
    let complete = milliseconds(parts[2]);
    let (_, urgency) = parts[4].split_once("u=").unwrap_or(("", "3"));
    Logged {
        connection: parts[0].parse().unwrap(),
        path: parts[1].to_owned(),
        came: complete - milliseconds(parts[3]),
        complete,
        urgency: urgency[..1].parse().unwrap(),
    }
}

/// All requests for the page and what belongs to it, in the order in which their answers were
/// complete.
fn logged(server: &Server) -> Vec<Logged> {
    let begin = Instant::now();
    loop {
        let log = fs::read_to_string(server.prefix.join("logs/clients.log")).unwrap_or_default();
        let lines = log.lines().filter(|line| !line.contains("favicon"));
        let all: Vec<Logged> = lines.map(read_line).collect();
        if all.len() == PICTURES + 3 {
            return all;
        }
        assert!(begin.elapsed() < PATIENCE, "{} requests: {log}", all.len());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Has Chromium load the page, with pictures of so many bytes under these lines: what the log says.
fn load(engine: &str, when: &str, lines: &str, size: u32) -> Vec<Logged> {
    let lines = format!(
        "access_log logs/clients.log seen; http2_max_concurrent_streams 256; \
         types {{ text/html html; text/css css; text/javascript js; image/bmp bmp; }} \
         location / {{ }} location /picture {{ {lines} }}"
    );
    let (server, [_, url]) = start(engine, LOG_FORMAT, &lines);
    server.write("index.html", page(when).as_bytes());
    let with_filler = |text: &str| [text.as_bytes(), b"/*", &vec![b'x'; 600_000], b"*/"].concat();
    server.write("style.css", &with_filler("body { display: flex; }"));
    server.write("script.js", &with_filler("window.script = 'ran';"));
    for number in 0..PICTURES {
        server.write(&format!("picture-{number}.bmp"), &picture(size));
    }
    let shown = chromium::show(&server, &format!("{url}/index.html")).expect("it is there");
    let expected = format!("came: {} other: 0 ran flex", PICTURES + 2);
    assert!(shown.contains(&expected), "{engine}: {shown}");
    let all = logged(&server);
    let connection = all[0].connection;
    assert!(
        all.iter().all(|one| one.connection == connection),
        "{all:?}"
    );
    all
}

/// Less urgent requests that were under way when the one for this path came: how many, and how many
/// of these were complete later.
fn overtaken(all: &[Logged], path: &str) -> (usize, usize) {
    let place = all.iter().position(|one| one.path == path).unwrap();
    let urgent = &all[place];
    let under_way = |one: &&Logged| {
        let meanwhile = one.came <= urgent.came && urgent.came <= one.complete;
        meanwhile && one.urgency > urgent.urgency
    };
    let later = all[place..].iter().filter(under_way);
    (all.iter().filter(under_way).count(), later.count())
}

fn chromium_gets_the_urgent_beside_slow_pictures(engine: &'static str) {
    if !chromium::is_there() {
        return;
    }
    // Each picture takes ten seconds, and all wait at once.
    let all = load(
        engine,
        "setTimeout(urgent, 1000);",
        "limit_rate 8k;",
        90_000,
    );
    for path in ["/style.css", "/script.js"] {
        let (waiting, overtaken) = overtaken(&all, path);
        let said = format!("{engine} {path} overtook {overtaken} of {waiting}: {all:?}");
        assert!(waiting >= PICTURES / 2 && overtaken == waiting, "{said}");
    }
}

support::test_on_each_engine!(chromium_gets_the_urgent_beside_slow_pictures);

fn chromium_gets_the_urgent_first(engine: &'static str) {
    // How often the browser may ask for the urgent so late that most has been sent by then.
    const TRIES: usize = 5;
    if !chromium::is_there() {
        return;
    }
    let mut seen = Vec::new();
    let follows = |_: usize| {
        // Most pictures have been asked for when some have come. What is urgent has more bytes
        // than any of them.
        let when = "let loads = 0; document.addEventListener('load', () => { if (++loads == 20) urgent(); }, true);";
        let all = load(engine, when, "", 300_000);
        let found = ["/style.css", "/script.js"].map(|path| overtaken(&all, path));
        seen.push(found);
        found
            .iter()
            .all(|(waiting, overtaken)| *waiting >= PICTURES / 4 && *overtaken > waiting * 3 / 4)
    };
    let has_followed = (0..TRIES).any(follows);
    assert!(has_followed, "{engine}: {seen:?}");
}

support::test_on_each_engine!(chromium_gets_the_urgent_first);
