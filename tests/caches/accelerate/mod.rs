//! `tidegate accelerate` from outside: in front of Apache, of Python's server, and of one that does
//! what a test says; and what attackers try on a cache.
//!
//! The command is run as people run it, and where a test is for both engines, by the configuration
//! that `--print-configuration` prints.

mod attacks;
mod attacks_over_http2;
mod credentials;
mod freshness;
mod origin;
mod passing;
mod purge;
mod servers;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use origin::{Origin, ok};
use support::{PATIENCE, port, signal};

/// The accelerator, until the value is dropped.
struct Accelerator {
    port: u16,
    /// What it has said at the start.
    said: String,
    prefix: PathBuf,
    child: Child,
}

/// A folder of a test's own.
fn folder() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tidegate-accelerated-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn tidegate() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
}

impl Accelerator {
    /// Runs the command in front of a port of this machine.
    fn start(behind: u16, arguments: &[&str]) -> Accelerator {
        let port = port::free_port();
        let mut command = tidegate();
        command.args(["accelerate", &behind.to_string()]);
        command.args(["--port", &port.to_string()]).args(arguments);
        Accelerator::run(command, port)
    }

    fn run(mut command: Command, port: u16) -> Accelerator {
        let prefix = folder();
        let log = fs::File::create(prefix.join("requests.json")).unwrap();
        command.stdin(Stdio::null()).stdout(log);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        while !said.ends_with("Ctrl-C ends it.\n") {
            let line = lines.next().unwrap_or_else(|| panic!("no start: {said}"));
            said.push_str(&line.unwrap());
            said.push('\n');
        }
        // What it says later is not to stop it.
        thread::spawn(move || lines.for_each(drop));
        Accelerator {
            port,
            said,
            prefix,
            child,
        }
    }

    /// Runs what the command prints, on this engine.
    fn on(engine: &str, behind: u16, arguments: &[&str]) -> Accelerator {
        let port = port::free_port();
        let mut command = tidegate();
        command.args(["accelerate", &behind.to_string(), "--print-configuration"]);
        command.args(["--port", &port.to_string()]).args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let prefix = folder();
        let text = String::from_utf8(output.stdout).unwrap();
        let text = text.replacen("events {", &format!("events {{ {engine}"), 1);
        let text = text.replacen("/dev/stdout", "requests.json", 1);
        let text = text.replacen("error_log stderr error", "error_log error.log info", 1);
        fs::write(prefix.join("nginx.conf"), format!("pid pid;\n{text}")).unwrap();
        let errors = fs::File::create(prefix.join("output")).unwrap();
        let child = tidegate()
            .arg("-p")
            .arg(format!("{}/", prefix.display()))
            .args(["-c", "nginx.conf", "-e", "error.log"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .unwrap();
        let mut running = Accelerator {
            port,
            said: String::new(),
            prefix,
            child,
        };
        until(|| {
            let ended = running.child.try_wait().unwrap();
            let output = fs::read_to_string(running.prefix.join("output"));
            assert!(ended.is_none(), "no start: {output:?}");
            running.prefix.join("pid").exists() && TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        running
    }

    /// What the cache has had of each request for this path so far.
    fn caches(&self, path: &str) -> Vec<String> {
        let log = fs::read_to_string(self.prefix.join("requests.json")).unwrap();
        let of_path = |line: &&str| line.contains(&format!("\"uri\":\"{path}\""));
        let lines = log.lines().filter(of_path);
        lines
            .map(|line| {
                let rest = line.split("\"cache\":\"").nth(1).unwrap();
                rest.split('"').next().unwrap().to_owned()
            })
            .collect()
    }

    fn ask(&self, request: &str) -> Answer {
        ask_at(self.port, request.as_bytes())
    }

    /// GET with more fields, each with its line end.
    fn get_with(&self, path: &str, fields: &str) -> Answer {
        self.ask(&format!(
            "GET {path} HTTP/1.1\r\nHost: a.test\r\n{fields}Connection: close\r\n\r\n"
        ))
    }

    fn get(&self, path: &str) -> Answer {
        self.get_with(path, "")
    }
}

impl Drop for Accelerator {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(self.child.id(), "TERM");
            let started = Instant::now();
            while started.elapsed() < PATIENCE && matches!(self.child.try_wait(), Ok(None)) {
                thread::sleep(Duration::from_millis(5));
            }
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.prefix);
    }
}

/// An answer as a client sees it.
#[derive(Debug)]
struct Answer {
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }

    fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or("")
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn ask_at(port: u16, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head: {}", bytes.escape_ascii()));
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let body = bytes[end + 4..].to_vec();
    let lower = head.to_ascii_lowercase();
    let is_chunked = lower.contains("\r\ntransfer-encoding: chunked");
    Answer {
        body: if is_chunked { unchunked(&body) } else { body },
        head,
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let mut ends = bytes.windows(2);
        let end = ends.position(|window| window == b"\r\n").unwrap();
        let length = std::str::from_utf8(&bytes[..end]).unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + length]);
        bytes = &bytes[end + 4 + length..];
    }
}

/// Waits until something holds.
fn until(mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a test of an accelerator in front of a server that answers by what `answer` makes of the
/// head of a request and its number, from 0.
fn with_server(
    engine: &'static str,
    arguments: &[&str],
    answer: impl Fn(&str, usize) -> Vec<u8> + Clone + Send + Sync + 'static,
    test: impl Fn(&Accelerator, &Origin),
) {
    let origin = Origin::start(answer);
    let accelerator = Accelerator::on(engine, origin.port, arguments);
    test(&accelerator, &origin);
}
