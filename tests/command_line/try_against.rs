//! `tidegate try --against`: the log of a real nginx, Debian's with its default site, sent to it
//! and to a trial of the same configuration.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take that is not being timed.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many requests the log holds.
const REQUESTS: usize = 1000;

/// What is asked for just once.
const ONCE: &str = "/index.nginx-debian.html?once";

/// Debian's nginx by a copy of its configuration.
struct Nginx {
    child: Child,
    prefix: PathBuf,
    port: u16,
    /// How far a trial moves, to a port that is free.
    offset: u16,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.prefix);
    }
}

impl Nginx {
    fn start(name: &str) -> Nginx {
        let name = format!("tidegate-against-{name}-{}", std::process::id());
        let prefix = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&prefix);
        fs::create_dir_all(prefix.join("log")).unwrap();
        let mut copy = Command::new("cp");
        let copied = copy
            .args(["-rL", "/etc/nginx"])
            .arg(prefix.join("etc"))
            .status();
        assert!(
            copied.unwrap().success(),
            "Debian's nginx-light is installed"
        );
        let (port, other) = (support::port::free_port(), support::port::free_port());
        let (port, free) = (port.min(other), port.max(other));
        let at = prefix.display().to_string();
        change(
            &prefix.join("etc/nginx.conf"),
            &[
                ("/run/nginx.pid", &format!("{at}/nginx.pid")),
                ("/var/log/nginx/", &format!("{at}/log/")),
                ("/etc/nginx/", &format!("{at}/etc/")),
            ],
        );
        change(
            &prefix.join("etc/sites-enabled/default"),
            &[
                (
                    "listen 80 default_server",
                    &format!("listen {port} default_server"),
                ),
                (
                    "listen [::]:80 default_server",
                    &format!("listen [::]:{port} default_server"),
                ),
            ],
        );
        let child = Command::new("/usr/sbin/nginx")
            .arg("-c")
            .arg(prefix.join("etc/nginx.conf"))
            .args(["-g", "daemon off;"])
            .stdin(Stdio::null())
            .stderr(fs::File::create(prefix.join("output")).unwrap())
            .spawn()
            .unwrap();
        let nginx = Nginx {
            child,
            prefix,
            port,
            offset: free - port,
        };
        let begin = Instant::now();
        while !nginx.prefix.join("nginx.pid").exists() {
            assert!(begin.elapsed() < PATIENCE, "nginx starts");
            std::thread::sleep(Duration::from_millis(10));
        }
        nginx
    }

    /// Asks for one path after the other, so that they are in the log.
    fn ask(&self, requests: &[(&str, String)]) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        for (index, (method, path)) in requests.iter().enumerate() {
            let last = if index + 1 == requests.len() {
                "close"
            } else {
                "keep-alive"
            };
            let head = format!(
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test \"{index}\"\r\n\
                 Referer: http://localhost/\r\nConnection: {last}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
        }
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).unwrap();
    }

    /// A trial of a configuration below the prefix against the server.
    fn compare(&self, conf: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("try").arg("-c").arg(self.prefix.join(conf));
        command.args(["--port-offset", &self.offset.to_string(), "--rate", "5000"]);
        command
            .arg("--against")
            .arg(format!("http://localhost:{}", self.port));
        command
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

fn change(file: &Path, changes: &[(&str, &str)]) {
    let mut text = fs::read_to_string(file).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{} holds {from}", file.display());
        text = text.replace(from, to);
    }
    fs::write(file, text).unwrap();
}

/// Requests of many kinds, one of them [`ONCE`].
fn requests() -> Vec<(&'static str, String)> {
    let one = |number: usize| match number % 10 {
        0 => ("GET", "/".to_owned()),
        1 => ("HEAD", "/".to_owned()),
        2 => ("GET", "/index.nginx-debian.html".to_owned()),
        3 => ("GET", format!("/nothing/{number}")),
        4 => ("HEAD", format!("/nothing/{number}.png")),
        5 => (
            "GET",
            format!("/./index.nginx-debian.html?a={number}&b=%22"),
        ),
        6 => ("GET", "/a/%2e%2e/index.nginx-debian.html".to_owned()),
        7 => ("GET", "/..;/x".to_owned()),
        8 => ("GET", "/index.nginx-debian.html/".to_owned()),
        _ => ("GET", "//".to_owned()),
    };
    let once = ("GET", ONCE.to_owned());
    (1..REQUESTS).map(one).chain([once]).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_thousand_requests_are_answered_alike_and_a_planted_difference_is_found() {
    let nginx = Nginx::start("log");
    requests().chunks(50).for_each(|some| nginx.ask(some));
    let log = nginx.prefix.join("log/access.log");
    let logged = || {
        BufReader::new(fs::File::open(&log).unwrap())
            .lines()
            .count()
    };
    let begin = Instant::now();
    while logged() < REQUESTS {
        assert!(begin.elapsed() < PATIENCE, "{} lines", logged());
        std::thread::sleep(Duration::from_millis(10));
    }
    // What nobody may send again, and what is no request at all.
    let mut lines = fs::read(&log).unwrap();
    lines.extend_from_slice(b"::1 - - [x] \"POST / HTTP/1.1\" 405 157 \"-\" \"-\"\n");
    lines.extend_from_slice(b"::1 - - [x] \"\\x16\\x03\\x01\" 400 157 \"-\" \"-\"\n");
    fs::write(&log, &lines).unwrap();
    let copy = nginx.prefix.join("copy.gz");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&lines).unwrap();
    fs::write(&copy, encoder.finish().unwrap()).unwrap();

    // The log that is meant where none is named is that of the running server.
    let output = nginx.compare("etc/nginx.conf", &[]);
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    let expected = "1000 requests: 1000 answered alike, 0 differently, 2 other lines of the log\n";
    assert_eq!(out, expected, "{errors}");
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.contains("Trying "), "{errors}");

    // One planted.
    let site = nginx.prefix.join("etc/sites-enabled/default");
    let planted = "if ($args = once) { add_header X-Planted yes; } try_files";
    change(
        &site,
        &[(
            "try_files $uri $uri/ =404;",
            &format!("{planted} $uri $uri/ =404;"),
        )],
    );
    let output = nginx.compare("etc/nginx.conf", &["--log", copy.to_str().unwrap()]);
    let out = text(&output.stdout);
    let expected = format!(
        "GET {ONCE}\n  X-Planted: (none) → yes\n\
         1000 requests: 999 answered alike, 1 differently, 2 other lines of the log\n"
    );
    assert_eq!(out, expected, "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
    let ignored = [
        "--log",
        copy.to_str().unwrap(),
        "--ignore-header",
        "x-planted",
        "--limit",
        "10",
    ];
    let output = nginx.compare("etc/nginx.conf", &ignored);
    assert!(text(&output.stdout).starts_with("10 requests: 10 answered alike, 0 differently"));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_cannot_be_compared_is_said() {
    let nginx = Nginx::start("nothing");
    let log = nginx.prefix.join("some.log");
    let log = log.to_str().unwrap();
    let refused = |arguments: &[&str]| {
        let output = nginx.compare("etc/nginx.conf", arguments);
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr).lines().last().unwrap().to_owned()
    };
    let expected = format!("tidegate: open() \"{log}\" failed (2: No such file or directory)");
    assert_eq!(refused(&["--log", log]), expected);
    fs::write(log, "{}\n").unwrap();
    let expected = format!(
        "tidegate: {log} holds no GET or HEAD in the format combined or common (1 other lines)"
    );
    assert_eq!(refused(&["--log", log]), expected);

    // Nobody listens there.
    fs::write(log, "::1 - - [x] \"GET / HTTP/1.1\" 200 1\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .arg("try")
        .arg("-c")
        .arg(nginx.prefix.join("etc/nginx.conf"));
    command.args(["--port-offset", &nginx.offset.to_string(), "--log", log]);
    let against = format!("http://127.0.0.1:{}", support::port::free_port());
    let output = command.args(["--against", &against]).output().unwrap();
    assert_eq!(
        text(&output.stdout),
        "GET /\n  the running server gave no answer (111: Connection refused)\n\
         1 requests: 0 answered alike, 0 differently, 1 without an answer\n"
    );
    assert_eq!(output.status.code(), Some(2));
}

/// A site over TLS with two names, of which the log tells, and plain HTTP that leads there.
#[test]
fn a_site_over_tls_is_compared_by_its_names() {
    let prefix = std::env::temp_dir().join(format!("tidegate-against-tls-{}", std::process::id()));
    let _ = fs::remove_dir_all(&prefix);
    fs::create_dir_all(prefix.join("log")).unwrap();
    let names = vec!["a.test".to_owned(), "b.test".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    fs::write(prefix.join("site.crt"), made.cert.pem()).unwrap();
    fs::write(prefix.join("site.key"), made.signing_key.serialize_pem()).unwrap();
    let (plain, secure) = (support::port::free_port(), support::port::free_port());
    let at = prefix.display();
    let server = |name: &str| {
        format!(
            "server {{ listen 127.0.0.1:{secure} ssl; server_name {name}.test; \
             ssl_certificate {at}/site.crt; ssl_certificate_key {at}/site.key; \
             location / {{ return 200 \"this is {name}\"; }} \
             location /up {{ return 200 up; }} }}"
        )
    };
    let configuration = format!(
        "daemon off; pid {at}/nginx.pid; error_log {at}/log/error.log; events {{}}
         http {{
             log_format site escape=json '{{\"host\":\"$host\",\"scheme\":\"$scheme\",'
                 '\"request\":\"$request\",\"agent\":\"$http_user_agent\"}}';
             access_log {at}/log/site.log site; client_body_temp_path {at}/a;
             proxy_temp_path {at}/b; fastcgi_temp_path {at}/c; uwsgi_temp_path {at}/d;
             scgi_temp_path {at}/e;
             server {{ listen 127.0.0.1:{plain}; return 301 https://$host$request_uri; }}
             {} {}
         }}",
        server("a"),
        server("b")
    );
    let conf = prefix.join("nginx.conf");
    fs::write(&conf, configuration).unwrap();
    let child = Command::new("/usr/sbin/nginx")
        .arg("-c")
        .arg(&conf)
        .args(["-e", "stderr"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let nginx = Nginx {
        child,
        prefix: prefix.clone(),
        port: plain,
        // Above what there is: the trial has other ports.
        offset: 65_000,
    };
    let begin = Instant::now();
    while !prefix.join("nginx.pid").exists() {
        assert!(begin.elapsed() < PATIENCE, "nginx starts");
        std::thread::sleep(Duration::from_millis(10));
    }
    let line = |host: &str, scheme: &str, request: &str| {
        format!(
            "{{\"host\":\"{host}\",\"scheme\":\"{scheme}\",\"request\":\"{request}\",\"agent\":\"\\\"x\\\"\"}}\n"
        )
    };
    let log = [
        line("a.test", "http", "GET / HTTP/1.1"),
        line("b.test", "http", "GET /1 HTTP/1.1"),
        line("a.test", "https", "GET / HTTP/1.1"),
        line("b.test", "https", "GET /1 HTTP/2.0"),
        line("a.test", "https", "GET /up HTTP/2.0"),
    ];
    let rotated = prefix.join("log/site.log.1");
    fs::write(&rotated, log.concat()).unwrap();
    let compare = |url: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("try")
            .arg("-c")
            .arg(&conf)
            .args(["--port-offset", &nginx.offset.to_string(), "--rate", "1000"])
            .arg("--log")
            .arg(&rotated)
            .args(["--against", url])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let errors = text(&output.stderr);
        (output.status.code(), text(&output.stdout), errors)
    };
    let text_of_redirects = format!(
        "2 requests: 2 answered alike, 0 differently, 2 of them by the same redirect, \
         3 other lines of the log\n\
         Most answers are the same redirect, which tells little: what it leads to is compared by \
         --against https://127.0.0.1:{secure}\n"
    );
    let (code, out, errors) = compare(&format!("http://127.0.0.1:{plain}"));
    assert_eq!((code, out), (Some(2), text_of_redirects), "{errors}");

    let url = format!("https://127.0.0.1:{secure}");
    let (code, out, errors) = compare(&url);
    let alike = "3 requests: 3 answered alike, 0 differently, 2 other lines of the log\n";
    assert_eq!((code, out.as_str()), (Some(0), alike), "{errors}");

    // The trial has another answer under the second name, and an upstream that is not there.
    let dead = support::port::free_port();
    change(
        &conf,
        &[
            ("this is b", "this is another"),
            (
                "return 200 up;",
                &format!("proxy_pass http://127.0.0.1:{dead};"),
            ),
        ],
    );
    let (code, out, errors) = compare(&url);
    assert_eq!(code, Some(1), "{out}{errors}");
    assert!(out.contains("GET /1 of b.test\n  body: 9 bytes"), "{out}");
    assert!(
        out.contains("GET /up of a.test\n  status: 200 → 502\n"),
        "{out}"
    );
    let logged = "\n  its log: [error] ";
    let reason = "connect() failed (111: Connection refused) while connecting to upstream, ";
    assert!(out.contains(logged) && out.contains(reason), "{out}");
    assert!(
        out.contains("3 requests: 1 answered alike, 2 differently"),
        "{out}"
    );
}
