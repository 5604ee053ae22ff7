//! `tidegate bench --http2`: against Debian's nginx, against Tidegate, and against servers that are
//! made here, good and bad; its figures beside those of h2load (Debian's package nghttp2-client).

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use proto::h2::ErrorCode;
use proto::h2::frame::{self, Kind, flags};
use proto::h2::hpack::literal::{self, FieldName};
use support::load::{GOOD, answering, bench, number, report, server};
use support::port::free_port;
use support::{PATIENCE, Server};

/// Bytes of a request's body: more than any window at first.
const UPLOAD: usize = 300_000;

/// A file of tests/tls.
fn file(name: &str) -> String {
    format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// What both servers serve, in the clear and by TLS.
fn servers(clear: u16, tls: u16, http2: (&str, &str)) -> String {
    let (of_listen, of_server) = http2;
    let lines = format!(
        "{of_server} location / {{ }} location = /e {{ return 204; }} location = /no {{ return 503; }}\n\
         location = /upload {{ proxy_pass {}; }}",
        taking_uploads()
    );
    format!(
        "server {{ listen 127.0.0.1:{clear}{of_listen}; root www; {lines} }}\n\
         server {{ listen 127.0.0.1:{tls} ssl{of_listen}; root www; ssl_certificate {}; ssl_certificate_key {}; {lines} }}\n",
        file("ecdsa.crt"),
        file("ecdsa.key")
    )
}

/// A server of HTTP/1.0 that answers with how long the request's body was.
fn taking_uploads() -> String {
    server(|mut stream| {
        let (mut received, mut part) = (Vec::new(), [0; 16_384]);
        loop {
            let end = received.windows(4).position(|four| four == b"\r\n\r\n");
            if end.is_some_and(|end| received.len() - end - 4 == UPLOAD) {
                let answer = format!("HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\n{UPLOAD}");
                let _ = stream.write_all(answer.as_bytes());
                return;
            }
            match stream.read(&mut part) {
                Ok(length @ 1..) => received.extend_from_slice(&part[..length]),
                _ => return,
            }
        }
    })
}

/// A page of 1 KB, and a file that takes many frames.
fn files() -> [(&'static str, Vec<u8>); 2] {
    [("page", vec![b'x'; 1024]), ("large", vec![b'y'; 700_000])]
}

/// Debian's nginx in a folder of its own.
struct Nginx {
    prefix: PathBuf,
    child: Child,
    clear: u16,
    tls: u16,
}

impl Nginx {
    /// `None` where there is none.
    fn start(name: &str, lines: &str) -> Option<Nginx> {
        let binary = std::env::var_os("NGINX_BINARY").unwrap_or("/usr/sbin/nginx".into());
        if !PathBuf::from(&binary).exists() {
            eprintln!("skipped: there is no nginx (Debian: nginx-light)");
            return None;
        }
        let folder = format!("tidegate-bench-http2-{name}-{}", std::process::id());
        let prefix = std::env::temp_dir().join(folder);
        let _ = fs::remove_dir_all(&prefix);
        fs::create_dir_all(prefix.join("www")).unwrap();
        for (name, bytes) in files() {
            fs::write(prefix.join("www").join(name), bytes).unwrap();
        }
        let (clear, tls) = (free_port(), free_port());
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path temp_{name};"))
            .concat();
        // The files are read by workers that may be of another user.
        let configuration = format!(
            "daemon off; worker_processes 1; pid nginx.pid; error_log error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; {lines} {temporary}\n{} }}\n",
            servers(clear, tls, (" http2", ""))
        )
        .replace("root www", &format!("root {}/www", prefix.display()));
        fs::write(prefix.join("nginx.conf"), configuration).unwrap();
        let child = Command::new(binary)
            .arg("-p")
            .arg(&prefix)
            .args(["-c", "nginx.conf", "-e", "error.log"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let nginx = Nginx {
            prefix,
            child,
            clear,
            tls,
        };
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", clear)).is_err() {
            let log = fs::read_to_string(nginx.prefix.join("error.log"));
            assert!(begin.elapsed() < PATIENCE, "nginx does not start: {log:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        support::signal(self.child.id(), "TERM");
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.prefix);
    }
}

/// Runs `tidegate bench --http2`, all of whose requests must succeed, and gives its report.
fn good(url: &str, requests: u32, options: &[&str]) -> String {
    let requests_text = requests.to_string();
    let fixed = [url, "--http2", "--insecure", "-n", &requests_text];
    let report = report(&[&fixed[..], options].concat());
    let found = ["succeeded", "failed", "unfinished"].map(|name| number(&report, name));
    assert_eq!(
        found,
        [f64::from(requests), 0.0, 0.0],
        "{url} {options:?}: {report}"
    );
    assert!(report.contains("\"protocol\":\"HTTP/2\""), "{report}");
    report
}

fn every_kind_of_load(clear: u16, tls: u16) {
    let page = format!("http://127.0.0.1:{clear}/page");
    let engine = support::engines::names().pop().unwrap_or("epoll");
    let (agents, cookies) = (header_file("User-Agent: one"), header_file("Accept: x"));
    let digest = digest_of_page();
    for (options, connections) in [
        (&["-c", "3"][..], Some(3.0)),
        (&["-c", "2", "--streams", "20"], Some(2.0)),
        (&["-c", "4", "-t", "2", "--streams", "5"], Some(4.0)),
        (
            &["-c", "2", "--streams", "5", "--engine", engine],
            Some(2.0),
        ),
        (&["-c", "2", "--new-connections"], Some(300.0)),
        (
            &["-c", "2", "--streams", "4", "--think-time", "1ms"],
            Some(2.0),
        ),
        (&["-c", "2", "--streams", "4", "--rate", "3000"], Some(2.0)),
        (
            &[
                "-c",
                "1",
                "--streams",
                "3",
                "--rate",
                "3000",
                "--arrivals",
                "poisson",
            ],
            Some(1.0),
        ),
        (
            &[
                "-c",
                "2",
                "--streams",
                "9",
                "--warmup",
                "50ms",
                "--ramp",
                "10ms",
            ],
            None,
        ),
        (
            &["-c", "2", "--streams", "3", "--expect-sha256", &digest],
            Some(2.0),
        ),
        (
            &[
                "-c",
                "1",
                "--streams",
                "3",
                "--header-file",
                &agents,
                "--header-file",
                &cookies,
                "-H",
                "Cookie: id=[000-999]",
                "--varied",
            ],
            Some(1.0),
        ),
    ] {
        let report = good(&page, 300, options);
        assert_eq!(number(&report, "body_bytes"), 300.0 * 1024.0, "{report}");
        if let Some(connections) = connections {
            let made = number(&report, "connections_made");
            assert_eq!(made, connections, "{options:?}: {report}");
        }
    }
    let secure = format!("https://127.0.0.1:{tls}/page");
    let report = good(&secure, 300, &["-c", "2", "--streams", "10"]);
    assert_eq!(number(&report, "full_handshakes"), 2.0, "{report}");
    good(&secure, 50, &["-c", "2", "--new-connections", "--resume"]);

    let large = format!("http://127.0.0.1:{clear}/large");
    let report = good(&large, 30, &["-c", "2", "--streams", "5"]);
    assert_eq!(number(&report, "body_bytes"), 30.0 * 700_000.0, "{report}");
    let report = good(&large, 30, &["-c", "2", "--streams", "5", "-X", "HEAD"]);
    assert_eq!(number(&report, "body_bytes"), 0.0, "{report}");
    let empty = format!("http://127.0.0.1:{clear}/e");
    good(&empty, 300, &["--streams", "5", "--expect-status", "204"]);
    let body = std::env::temp_dir().join(format!("tidegate-bench-body-{}", std::process::id()));
    fs::write(&body, vec![b'z'; UPLOAD]).unwrap();
    let upload = format!("@{}", body.display());
    let report = good(
        &format!("http://127.0.0.1:{clear}/upload"),
        40,
        &["-c", "2", "--streams", "5", "--body", &upload],
    );
    assert!(
        number(&report, "bytes_sent") > 40.0 * UPLOAD as f64,
        "{report}"
    );
    assert_eq!(number(&report, "body_bytes"), 40.0 * 6.0, "{report}");
    for path in [body, agents.into(), cookies.into()] {
        fs::remove_file(path).unwrap();
    }

    let failing = format!("http://127.0.0.1:{clear}/no");
    let fixed = [&*failing, "--http2", "-n", "30", "--streams", "5"];
    let report = support::load::report(&fixed);
    let found = ["503", "status", "failed"].map(|name| number(&report, name));
    assert_eq!(found, [30.0; 3], "{report}");
}

fn header_file(line: &str) -> String {
    let name = format!(
        "tidegate-bench-{}-{}-{}",
        line.len(),
        std::process::id(),
        free_port()
    );
    let path = std::env::temp_dir().join(name);
    fs::write(&path, line).unwrap();
    path.display().to_string()
}

fn digest_of_page() -> String {
    let path = PathBuf::from(header_file(&"x".repeat(1024)));
    let output = Command::new("sha256sum").arg(&path).output().unwrap();
    fs::remove_file(path).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn nginx_gets_every_kind_of_load() {
    let Some(nginx) = Nginx::start("load", "") else {
        return;
    };
    every_kind_of_load(nginx.clear, nginx.tls);
    // nginx ends a connection after 1,000 requests, in order: nothing is lost by it.
    let page = format!("http://127.0.0.1:{}/page", nginx.clear);
    let report = good(&page, 5000, &["-c", "1", "--streams", "50"]);
    assert!(number(&report, "connections_made") >= 5.0, "{report}");
    // It takes 128 streams at once, which a report says.
    let report = good(&page, 2000, &["-c", "1", "--streams", "500"]);
    assert_eq!(number(&report, "streams_allowed"), 128.0, "{report}");
    assert_eq!(number(&report, "streams"), 500.0, "{report}");
}

#[test]
fn tidegate_gets_every_kind_of_load() {
    let (clear, tls) = (free_port(), free_port());
    let blocks = servers(clear, tls, ("", "http2 on;"));
    let server = Server::start("", &format!("[http]\n{blocks}"));
    for (name, bytes) in files() {
        server.write(name, &bytes);
    }
    every_kind_of_load(clear, tls);
}

/// What h2load prints behind `words`, up to `end`.
fn behind<'a>(text: &'a str, words: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("{text}"));
    rest.split_once(end).unwrap().0
}

#[test]
fn figures_agree_with_those_of_h2load() {
    // h2load makes no second connection where nginx ends one in order.
    let Some(nginx) = Nginx::start("h2load", "keepalive_requests 100000;") else {
        return;
    };
    let page = format!("http://127.0.0.1:{}/page", nginx.clear);
    let run = || {
        let output = Command::new("h2load")
            .args(["-n", "6000", "-c", "4", "-m", "10", &page])
            .output()
            .ok()?;
        Some(String::from_utf8(output.stdout).unwrap())
    };
    // The machine may stand still in either run, so that not every try says something of rates.
    let mut ratios = Vec::new();
    for _ in 0..5 {
        let Some(theirs) = run() else {
            eprintln!("skipped: there is no h2load (Debian: nghttp2-client)");
            return;
        };
        let ours = good(&page, 6000, &["-c", "4", "--streams", "10"]);
        assert_eq!(behind(&theirs, " done, ", " succeeded"), "6000", "{theirs}");
        let data = behind(&theirs, "traffic: ", ") data");
        let data = data.rsplit_once('(').unwrap().1;
        assert_eq!(data, number(&ours, "body_bytes").to_string(), "{theirs}");
        let rate = behind(&theirs, "finished in ", " req/s");
        let rate: f64 = rate.rsplit_once(' ').unwrap().1.parse().unwrap();
        let ratio = number(&ours, "requests_per_second") / rate;
        if (0.1..10.0).contains(&ratio) {
            return;
        }
        ratios.push(ratio);
    }
    panic!("ours / theirs: {ratios:?}");
}

/// A server of HTTP/2 in the clear: `answer` is told of each request's stream, adds to what is
/// sent, and says whether it goes on.
fn http2_server(answer: impl Fn(u32, &mut Vec<u8>) -> bool + Clone + Send + 'static) -> String {
    support::load::http2_server(move || {
        let answer = answer.clone();
        move |head, _, out: &mut Vec<u8>| head.kind != Kind::Headers || answer(head.stream, out)
    })
}

fn put_response(out: &mut Vec<u8>, stream: u32, length: &str, ends: bool) {
    let mut block = Vec::new();
    literal::status(200, &mut block);
    let name = FieldName::of(b"content-length");
    literal::field(name, length.as_bytes(), &mut block);
    frame::put_header_block(out, stream, &block, ends, 16_384);
}

fn put_data(out: &mut Vec<u8>, stream: u32, bytes: &[u8], ends: bool) {
    let flags = if ends { flags::END_STREAM } else { 0 };
    frame::put_head(out, Kind::Data, flags, stream, bytes.len());
    out.extend_from_slice(bytes);
}

#[test]
fn what_servers_do_wrong_is_counted_by_kind() {
    let silent = http2_server(|_, _| true);
    let closes = http2_server(|_, _| false);
    let closes_in_body = http2_server(|stream, out| {
        put_response(out, stream, "3", false);
        put_data(out, stream, b"ab", false);
        false
    });
    let short = http2_server(|stream, out| {
        put_response(out, stream, "3", false);
        put_data(out, stream, b"ab", true);
        true
    });
    let long = http2_server(|stream, out| {
        put_response(out, stream, "3", false);
        put_data(out, stream, b"abcd", true);
        true
    });
    let resets = http2_server(|stream, out| {
        frame::put_reset(out, stream, ErrorCode::InternalError);
        true
    });
    let refuses = http2_server(|stream, out| {
        frame::put_reset(out, stream, ErrorCode::RefusedStream);
        true
    });
    let ends_for_an_error = http2_server(|stream, out| {
        frame::put_goaway(out, stream, ErrorCode::EnhanceYourCalm);
        false
    });
    let pushes = http2_server(|stream, out| {
        frame::put_head(out, Kind::PushPromise, flags::END_HEADERS, stream, 4);
        out.extend_from_slice(&[0, 0, 0, 2]);
        true
    });
    let malformed = http2_server(|stream, out| {
        frame::put_header_block(out, stream, b"", true, 16_384);
        true
    });
    let endless = http2_server(|stream, out| {
        let mut block = Vec::new();
        literal::status(200, &mut block);
        literal::field(FieldName::of(b"a"), &[b'x'; 300_000], &mut block);
        frame::put_header_block(out, stream, &block, true, 16_384);
        true
    });
    let speaks_http1 = answering(GOOD);
    let tls = free_port();
    let block = format!(
        "[http]\nserver {{ listen 127.0.0.1:{tls} ssl; ssl_certificate {}; ssl_certificate_key {}; }}\n",
        file("ecdsa.crt"),
        file("ecdsa.key")
    );
    let _server = Server::start("", &block);
    let agrees_to_http1 = format!("https://127.0.0.1:{tls}/");
    let nobody = format!("http://127.0.0.1:{}/", free_port());
    for (url, kind) in [
        (&silent, "timeout"),
        (&closes, "closed_early"),
        (&closes_in_body, "closed_in_body"),
        (&short, "closed_in_body"),
        (&long, "wrong_length"),
        (&resets, "stream_reset"),
        (&refuses, "stream_refused"),
        (&ends_for_an_error, "goaway"),
        (&pushes, "http2_violation"),
        (&malformed, "garbage_head"),
        (&endless, "head_too_large"),
        (&speaks_http1, "http2_not_spoken"),
        (&agrees_to_http1, "http2_not_spoken"),
        (&nobody, "connect_refused"),
    ] {
        let timeout = if kind == "timeout" { "300ms" } else { "60s" };
        let fixed = ["--http2", "--insecure", "-n", "6", "-c", "2"];
        let options = [&[&**url], &fixed[..], &["--timeout", timeout]].concat();
        let report = report(&options);
        assert_eq!(number(&report, kind), 6.0, "{kind}: {report}");
        assert_eq!(number(&report, "failed"), 6.0, "{kind}: {report}");
        assert_eq!(number(&report, "succeeded"), 0.0, "{kind}: {report}");
    }
}

#[test]
fn what_a_server_did_not_look_at_is_asked_again() {
    // It serves three streams of each connection, and has said so when the others come.
    let url = http2_server(|stream, out| {
        put_response(out, stream, "3", false);
        put_data(out, stream, b"abc", true);
        if stream == 5 {
            frame::put_goaway(out, 5, ErrorCode::NoError);
        }
        stream < 5
    });
    let report = good(&url, 60, &["-c", "1", "--streams", "8"]);
    assert_eq!(number(&report, "connections_made"), 20.0, "{report}");
    // In the open loop their moment has passed.
    let fixed = [&*url, "--http2", "-n", "60", "-c", "1", "--streams", "8"];
    let report = support::load::report(&[&fixed[..], &["--rate", "100000"]].concat());
    let found = ["succeeded", "closed_early"].map(|name| number(&report, name));
    assert_eq!(found[0] + found[1], 60.0, "{report}");
}

#[test]
fn one_stream_that_stalls_does_not_hold_up_the_others() {
    let url = http2_server(|stream, out| {
        if stream != 3 {
            put_response(out, stream, "0", true);
        }
        true
    });
    let options = ["--http2", "-n", "1000", "-c", "1", "--streams", "4"];
    let options = [
        &[&*url],
        &options[..],
        &["--timeout", "500ms", "--rate", "500"],
    ]
    .concat();
    let report = report(&options);
    let found = ["succeeded", "timeout", "connections_made"].map(|name| number(&report, name));
    assert_eq!(found, [999.0, 1.0, 1.0], "{report}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let url = format!("http://127.0.0.1:{}/", free_port());
    for (arguments, code, words) in [
        (&[&*url, "--http2", "--pipeline", "2"][..], 2, "--pipeline"),
        (&[&url, "--streams", "2"], 2, "--http2"),
        (&[&url, "--http2", "--streams", "0"], 2, "--streams"),
        (&[&url, "--http2", "--streams", "2000"], 2, "--streams"),
        (
            &[&url, "--http2", "--streams", "2", "--new-connections"],
            2,
            "--new-connections",
        ),
        (
            &[&url, "--http2", "-H", "Connection: close"],
            1,
            "HTTP/2 has no header field Connection",
        ),
        (
            &["ab", "--http2", &url],
            1,
            "bench ab asks by HTTP/1, as ab does",
        ),
        (&["siege", "--http2", &url], 1, "bench siege asks by HTTP/1"),
    ] {
        let output = bench(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }
}

#[test]
fn comparisons_sweeps_and_saved_runs_speak_it() {
    let good = http2_server(|stream, out| {
        put_response(out, stream, "3", false);
        put_data(out, stream, b"abc", true);
        true
    });
    let other = http2_server(|stream, out| {
        put_response(out, stream, "3", false);
        put_data(out, stream, b"abd", true);
        true
    });
    let resets = http2_server(|stream, out| {
        frame::put_reset(out, stream, ErrorCode::InternalError);
        true
    });
    let http1 = answering(GOOD);
    let options = ["--http2", "--streams", "3", "--rounds", "2", "-n", "20"];
    let compare = |b: &str| {
        let pair = ["compare", "--a", &good, "--b", b, "--warmup", "1ms"];
        let output = bench(&[&pair[..], &options].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), text + &errors)
    };
    let (code, text) = compare(&good);
    assert_eq!(code, Some(0), "{text}");
    for words in [
        "HTTP/2 with 3 streams on each, closed loop",
        "answers are alike: status 200, 3 bytes, SHA-256 ba7816bf",
    ] {
        assert!(text.contains(words), "{text}");
    }
    for (b, words) in [
        (&http1, "the server does not speak HTTP/2"),
        (&other, "differ: the bytes of the body, all 3."),
        (&resets, "the server has reset the stream: InternalError"),
    ] {
        let (code, text) = compare(b);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(words), "{text}");
    }

    let sweep = ["sweep", &good, "--http2", "--streams", "3"];
    let steps = ["-c", "1,2,3", "-d", "50ms", "--pause", "1ms", "--json"];
    let output = bench(&[&sweep[..], &steps].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("HTTP/2"), "{text}");
    assert!(text.contains("3 streams"), "{text}");

    let path = std::env::temp_dir().join(format!("tidegate-http2-run-{}", std::process::id()));
    let path = path.display().to_string();
    let run = [&*good, "--http2", "--streams", "3", "-n", "20"];
    bench(&[&run[..], &["--save", &path]].concat());
    let output = bench(&["merge", &path, &path]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("HTTP/2 with 3 streams on each"), "{text}");
    fs::remove_file(path).unwrap();
}
