//! Debian's own `/etc/nginx`, untouched but for the ports, paths and user that would collide:
//! Tidegate starts with it and answers as Debian's nginx does.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a start or an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Each is sent on a connection of its own, with `Connection: close`.
const REQUESTS: [&str; 8] = [
    "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "GET /index.nginx-debian.html HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n",
    "GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "GET /./index.nginx-debian.html?a=b HTTP/1.1\r\nHost: other\r\nRange: bytes=0-9\r\nConnection: close\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc",
    "GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
];

/// A server that runs a copy of the configuration.
struct Running {
    child: Child,
    prefix: PathBuf,
    port: u16,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.prefix);
    }
}

/// Copies `/etc/nginx` and puts a port and paths of our own into the copy.
fn start(program: &Path, name: &str) -> Running {
    let prefix =
        std::env::temp_dir().join(format!("tidegate-debian-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&prefix);
    fs::create_dir_all(prefix.join("log")).unwrap();
    let copied = Command::new("cp")
        .args(["-rL", "/etc/nginx"])
        .arg(prefix.join("etc"))
        .status();
    assert!(
        copied.unwrap().success(),
        "/etc/nginx is there: Debian's nginx-light is installed"
    );
    let port = support::port::free_port();
    let at = prefix.display().to_string();
    let replace = |file: PathBuf, changes: &[(&str, String)]| {
        let mut text = fs::read_to_string(&file).unwrap();
        for (from, to) in changes {
            assert!(text.contains(from), "{} holds {from}", file.display());
            text = text.replace(from, to);
        }
        fs::write(file, text).unwrap();
    };
    replace(
        prefix.join("etc/nginx.conf"),
        &[
            ("/run/nginx.pid", format!("{at}/nginx.pid")),
            ("/var/log/nginx/", format!("{at}/log/")),
            ("/etc/nginx/", format!("{at}/etc/")),
        ],
    );
    replace(
        prefix.join("etc/sites-enabled/default"),
        &[
            (
                "listen 80 default_server",
                format!("listen 127.0.0.1:{port} default_server"),
            ),
            (
                "listen [::]:80 default_server",
                format!(
                    "listen 127.0.0.1:{} default_server",
                    support::port::free_port()
                ),
            ),
        ],
    );
    let child = Command::new(program)
        .arg("-c")
        .arg(prefix.join("etc/nginx.conf"))
        .args(["-g", "daemon off;"])
        .stdin(Stdio::null())
        .stderr(fs::File::create(prefix.join("output")).unwrap())
        .spawn()
        .unwrap();
    let running = Running {
        child,
        prefix,
        port,
    };
    let begin = Instant::now();
    while !running.prefix.join("nginx.pid").exists() {
        assert!(
            begin.elapsed() < PATIENCE,
            "{name} starts: {}",
            fs::read_to_string(running.prefix.join("output")).unwrap_or_default()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    running
}

/// What must be equal: all of the answer but the date and the servers' names.
fn comparable(answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let named = |line: &str| line.starts_with("Date:") || line.starts_with("Server:");
    let is_page = body.contains("<hr><center>");
    let length = |line: &str| is_page && line.starts_with("Content-Length:");
    let head: Vec<&str> = head
        .lines()
        .filter(|line| !named(line) && !length(line))
        .collect();
    // Two compressors make different bytes of one text; what they mean is compared by the parity
    // cases.
    let body = if head
        .iter()
        .any(|line| line.starts_with("Content-Encoding:"))
    {
        ""
    } else {
        body
    };
    let body: Vec<&str> = body
        .lines()
        .filter(|line| !line.starts_with("<hr><center>"))
        .collect();
    format!("{}\n\n{}", head.join("\n"), body.join("\n"))
}

#[test]
fn debians_configuration_starts_and_answers_as_nginx_does() {
    let ours = start(Path::new(env!("CARGO_BIN_EXE_tidegate")), "tidegate");
    let theirs = start(Path::new("/usr/sbin/nginx"), "nginx");
    for request in REQUESTS {
        let [ours, theirs] = [&ours, &theirs].map(|server| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
            comparable(&answer)
        });
        assert_eq!(ours, theirs, "{request:?}");
    }
}
