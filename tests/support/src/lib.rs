//! What integration tests share: a server of their own with its folder, its port and signals, and a
//! client that reads one response after the other.
//!
//! A crate, so that each test may take the part that it needs. TIDEGATE_BINARY puts another program
//! in Tidegate's place, nginx for instance, to check the test itself.

pub mod application;
pub mod chromium;
pub mod date;
pub mod descriptors;
pub mod engines;
pub mod http2;
pub mod load;
pub mod master;
pub mod mmdb;
pub mod name_server;
pub mod origin;
pub mod php;
pub mod port;
pub mod site;
pub mod tls;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take that is not being timed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running server in a folder that ends with it.
pub struct Server {
    /// The prefix; the site is in `www`, logs are in `logs`.
    pub prefix: PathBuf,
    /// Where it listens on 127.0.0.1.
    pub port: u16,
    configuration: Box<dyn Fn(&str) -> String>,
    child: Child,
}

impl Server {
    /// Starts a server with these lines in its `events` and its only `server` block; what follows a
    /// line `[http]` stands in the `http` block, with the server's port for `PORT`, and the line
    /// after `[main]`, which comes first, outside of all.
    pub fn start(events: &str, lines: &str) -> Server {
        Server::start_workers(1, events, lines)
    }

    /// The same with so many worker threads.
    pub fn start_workers(workers: u32, events: &str, lines: &str) -> Server {
        let prefix = temporary_path("server");
        let _ = fs::remove_dir_all(&prefix);
        for folder in ["www", "logs", "temp"] {
            fs::create_dir_all(prefix.join(folder)).unwrap();
        }
        let port = port::free_port();
        let configuration = Box::new(configuration(&prefix, port, workers, events));
        fs::write(prefix.join("nginx.conf"), configuration(lines)).unwrap();
        let output = fs::File::create(prefix.join("output")).unwrap();
        let child = Command::new(binary())
            .arg("-p")
            .arg(format!("{}/", prefix.display()))
            .args(["-c", "nginx.conf", "-e", "logs/error.log"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .unwrap();
        let mut server = Server {
            prefix,
            port,
            configuration,
            child,
        };
        server.wait_until_up();
        server
    }

    /// All that comes for these requests, of which the last ends the connection: its lines, but for
    /// dates.
    pub fn lines_for(&self, requests: &str) -> Vec<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(requests.as_bytes()).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        let text = String::from_utf8_lossy(&received);
        let lines = text.lines().filter(|line| !line.starts_with("Date: "));
        lines.map(str::to_owned).collect()
    }

    /// Writes a file of the site.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.prefix.join("www").join(name), bytes).unwrap();
    }

    /// The same of a file that has not changed for a minute, so that it may be answered from
    /// memory.
    pub fn write_old(&self, name: &str, bytes: &[u8]) {
        self.write(name, bytes);
        let file = fs::File::options()
            .write(true)
            .open(self.prefix.join("www").join(name));
        let old = std::time::SystemTime::now() - Duration::from_secs(60);
        file.unwrap().set_modified(old).unwrap();
    }

    /// Puts other lines into the `server` block and asks for a reload.
    pub fn reload(&self, lines: &str) {
        fs::write(self.prefix.join("nginx.conf"), (self.configuration)(lines)).unwrap();
        self.signal("HUP");
    }

    /// Sends a signal to the master process.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// The processes that the master has started.
    pub fn workers(&self) -> Vec<u32> {
        children(self.child.id())
    }

    /// Memory of the server's processes that is no file's, what they share counted by parts, in
    /// bytes. Pages of the program would count for more when another test's server ends.
    pub fn own_memory(&self) -> u64 {
        let size = |pid: u32| {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
            let kilobytes = |name: &str| {
                let line = rollup.lines().find_map(|line| line.strip_prefix(name));
                let number = line.and_then(|line| line.trim().strip_suffix("kB"));
                number.unwrap().trim().parse::<u64>().unwrap()
            };
            (kilobytes("Pss_Anon:") + kilobytes("Pss_Shmem:")) * 1024
        };
        let master = self.child.id();
        self.workers().into_iter().chain([master]).map(size).sum()
    }

    /// Waits until the error log holds this text.
    pub fn wait_for_log(&self, text: &str) {
        self.wait_for_line("error.log", text);
    }

    /// Waits until the log of this name holds this text.
    pub fn wait_for_line(&self, log: &str, text: &str) {
        let started = Instant::now();
        loop {
            let so_far = self.log(log);
            if so_far.contains(text) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{text}: {so_far}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The error log so far.
    pub fn error_log(&self) -> String {
        self.log("error.log")
    }

    /// The log of this name so far.
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.prefix.join("logs").join(name)).unwrap_or_default()
    }

    /// A new connection.
    pub fn connect(&self) -> Connection {
        Connection::open(self.port).expect("connect")
    }

    /// Waits for the pid file, and not only for the socket: before it is there, a signal ends the
    /// program.
    fn wait_until_up(&mut self) {
        let start = Instant::now();
        let pid_file = self.prefix.join("logs/nginx.pid");
        while !pid_file.exists() || TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = self.child.try_wait().unwrap();
            let output = fs::read_to_string(self.prefix.join("output")).unwrap_or_default();
            assert!(
                ended.is_none() && start.elapsed() < PATIENCE,
                "the server does not start: {output}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal("TERM");
        let start = Instant::now();
        while start.elapsed() < PATIENCE && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.prefix);
    }
}

/// The processes that a process has started.
pub fn children(parent: u32) -> Vec<u32> {
    let parent_of = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')')
            .next()?
            .split_whitespace()
            .nth(1)?
            .parse()
            .ok()
    };
    let pids = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// Does something for each item, all at the same time: for what waits more than it computes.
///
/// # Panics
///
/// Where one of them has, after all have ended.
pub fn in_parallel<T: Send>(items: impl IntoIterator<Item = T>, test: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for item in items {
            let test = &test;
            scope.spawn(move || test(item));
        }
    });
}

/// Sends a signal to a process.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args([&format!("-{name}"), &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success(), "kill -{name} {pid}");
}

/// Copies a program that a test runs from there. Another process writes the copy: a child that a
/// test beside this one starts would hold its descriptor, and the program be busy.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let mut copy = Command::new("cp");
    copy.arg(from.as_ref()).arg(to.as_ref());
    assert!(
        copy.status().is_ok_and(|status| status.success()),
        "{copy:?}"
    );
}

/// A path in the folder for temporary files that nothing else has.
pub fn temporary_path(name: &str) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("tidegate-{name}-{}-{number}", std::process::id()))
}

/// Whether the program under test is nginx itself.
pub fn is_nginx() -> bool {
    let output = Command::new(binary()).arg("-v").output().unwrap();
    !String::from_utf8_lossy(&output.stderr).contains("tidegate")
}

fn binary() -> PathBuf {
    std::env::var_os("TIDEGATE_BINARY").map_or_else(built, PathBuf::from)
}

/// The program as it was built with the tests: Cargo puts these into a folder beside it.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("tidegate")
}

fn configuration(
    prefix: &Path,
    port: u16,
    workers: u32,
    events: &str,
) -> impl Fn(&str) -> String + use<> {
    let root = prefix.join("www").display().to_string();
    let user = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    let user = if user { "user nobody nogroup;\n" } else { "" };
    let events = events.to_string();
    move |lines| {
        let main = lines.strip_prefix("[main]\n");
        let (main, lines) = main
            .and_then(|main| main.split_once('\n'))
            .unwrap_or(("", lines));
        let (lines, http) = lines.split_once("[http]\n").unwrap_or((lines, ""));
        let http = http.replace("PORT", &port.to_string());
        format!(
            "daemon off;\n{user}{main}\nworker_processes {workers};\npid logs/nginx.pid;\nerror_log logs/error.log notice;\n\
             events {{ worker_connections 1024; {events} }}\n\
             http {{\naccess_log off;\nclient_body_temp_path temp/body;\nproxy_temp_path temp/proxy;\n\
             keepalive_requests 1000000;\n{http}\n\
             server {{\nlisten 127.0.0.1:{port};\nroot {root};\n{lines}\n}}\n}}\n"
        )
    }
}

/// A client's connection.
pub struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// One response.
#[derive(Debug)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Status line and headers, with the empty line behind them.
    pub head: String,
    /// Its body, as long as `Content-Length` says.
    pub body: Vec<u8>,
}

impl Connection {
    /// Connects to 127.0.0.1.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn open(port: u16) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection {
            stream,
            unread: Vec::new(),
        })
    }

    /// Sends a GET with these further header lines.
    ///
    /// # Errors
    /// In words, when the connection is gone.
    pub fn send(&mut self, path: &str, headers: &str) -> Result<(), String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        self.stream
            .write_all(request.as_bytes())
            .map_err(|error| format!("send: {error}"))
    }

    /// Reads one response with a Content-Length, `pause` before each read.
    ///
    /// # Errors
    /// In words, when it does not come whole.
    pub fn receive(&mut self, pause: Duration) -> Result<Response, String> {
        let head_end = loop {
            if let Some(at) = self
                .unread
                .windows(4)
                .position(|window| window == b"\r\n\r\n")
            {
                break at + 4;
            }
            self.more()?;
        };
        let head = String::from_utf8_lossy(&self.unread[..head_end]).into_owned();
        self.unread.drain(..head_end);
        let lower = head.to_ascii_lowercase();
        let length = lower
            .lines()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let length: usize = length.ok_or(format!("no length: {head}"))?;
        while self.unread.len() < length {
            std::thread::sleep(pause);
            self.more()?;
        }
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|text| text.parse().ok())
            .ok_or(format!("no status: {head}"))?;
        Ok(Response {
            status,
            head,
            body: self.unread.drain(..length).collect(),
        })
    }

    /// One request and its response.
    ///
    /// # Errors
    /// As [`send`](Self::send) and [`receive`](Self::receive).
    pub fn get(&mut self, path: &str) -> Result<Response, String> {
        self.send(path, "")?;
        self.receive(Duration::ZERO)
    }

    fn more(&mut self) -> Result<(), String> {
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer) {
            // A stop and go of this process interrupts a read that has a time limit.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            Ok(0) => Err("the server closed the connection".to_string()),
            Ok(count) => {
                self.unread.extend(&buffer[..count]);
                Ok(())
            }
            Err(error) => Err(format!("receive: {error}")),
        }
    }
}

impl Response {
    /// Whether the server says that this is the connection's last response.
    pub fn closes(&self) -> bool {
        self.head.to_ascii_lowercase().contains("connection: close")
    }
}
