//! Reloads, logs opened again and upgrades under load: no request is refused or lost, on kept
//! connections and on one for each request, and what is open for long stays open.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use support::master::{Master, wait_for};
use support::port::free_port;
use support::site::{LARGE, listens};
use support::{Connection, PATIENCE, http2, tls};

use crate::upgrade::place::{
    EndOfAll, Kind, is_alive, nginx, put, site, start_in_background, upgrade,
};

const RELOADS: usize = 100;
const REOPENINGS: usize = 10;
const UPGRADES: usize = 5;

/// Kept connections, and the threads that ask by them and by new ones.
const KEPT: usize = 256;
const KEEPING_THREADS: usize = 8;
const CONNECTING_THREADS: usize = 4;

/// Requests without a pause until it is told to end.
struct Load {
    end: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

/// Asks for a small file; whether the connection may be asked again.
fn ask(connection: &mut Connection) -> Result<bool, String> {
    let response = connection.receive(Duration::ZERO)?;
    if response.status != 200 || response.body != b"small" {
        return Err(format!("{response:?}"));
    }
    Ok(!response.closes())
}

/// Asks by many connections at a time, and makes a new one for each that the server ends.
fn ask_by_kept(port: u16, load: &(Arc<AtomicBool>, Arc<AtomicU64>)) -> Result<(), String> {
    let open = || Connection::open(port).map_err(|error| format!("connect: {error}"));
    let mut connections = Vec::new();
    for _ in 0..KEPT / KEEPING_THREADS {
        connections.push(open()?);
    }
    while !load.0.load(Ordering::Relaxed) {
        for connection in &mut connections {
            connection.send("/small", "")?;
        }
        for connection in &mut connections {
            if !ask(connection)? {
                *connection = open()?;
            }
            load.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn ask_by_new(port: u16, load: &(Arc<AtomicBool>, Arc<AtomicU64>)) -> Result<(), String> {
    while !load.0.load(Ordering::Relaxed) {
        let connection = Connection::open(port);
        let mut connection = connection.map_err(|error| format!("connect: {error}"))?;
        connection.send("/small", "Connection: close\r\n")?;
        ask(&mut connection)?;
        load.1.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// One way to ask: by kept connections or by new ones.
type Ask = fn(u16, &(Arc<AtomicBool>, Arc<AtomicU64>)) -> Result<(), String>;

impl Load {
    fn by_all(port: u16) -> Load {
        let kept = [ask_by_kept as Ask; KEEPING_THREADS];
        let new = [ask_by_new as Ask; CONNECTING_THREADS];
        Load::by(port, &[&kept[..], &new[..]].concat())
    }

    /// A thread for each way.
    fn by(port: u16, ways: &[Ask]) -> Load {
        let shared = (Arc::new(AtomicBool::new(false)), Arc::default());
        let mut threads = Vec::new();
        for ask in ways.iter().copied() {
            let shared = shared.clone();
            threads.push(thread::spawn(move || ask(port, &shared)));
        }
        let (end, answered) = shared;
        Load {
            end,
            answered,
            threads,
        }
    }

    /// Waits until so many more have been answered, which a thread that has failed would end.
    fn go_on(&self, count: u64) {
        let before = self.answered.load(Ordering::Relaxed);
        wait_for("further answers", || {
            let is_over = self.threads.iter().any(JoinHandle::is_finished);
            is_over || self.answered.load(Ordering::Relaxed) >= before + count
        });
    }

    fn finish(self) -> u64 {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap().unwrap();
        }
        self.answered.load(Ordering::Relaxed)
    }
}

/// An upstream that agrees to everything and says back what it hears.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                read_head(&mut stream);
                let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                            Connection: upgrade\r\n\r\n";
                stream.write_all(head.as_bytes()).unwrap();
                let mut buffer = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    stream.write_all(&buffer[..count]).unwrap();
                }
            });
        }
    });
    port
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

struct WebSocket(TcpStream);

impl WebSocket {
    fn open(port: u16) -> WebSocket {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\
                       Connection: upgrade\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let head = read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        WebSocket(stream)
    }

    fn ping(&mut self) {
        self.0.write_all(b"ping").unwrap();
        let mut answer = [0; 4];
        self.0.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ping");
    }
}

/// What is open for long: downloads whose clients take no more than what comes by itself, and a
/// WebSocket.
struct OpenForLong {
    limited: Connection,
    secure: tls::Connection,
    http2: (http2::Client, u32),
    web_socket: WebSocket,
}

impl OpenForLong {
    fn begin(port: u16, secure_port: u16) -> OpenForLong {
        let mut limited = Connection::open(port).unwrap();
        limited.send("/slow", "").unwrap();
        let mut secure = tls::Client::new()
            .protocol("http/1.1")
            .connect(secure_port)
            .unwrap();
        secure.ask("/large");
        let mut http2 = http2::Client::connect(port);
        let stream = http2.request("/large", &[]);
        while http2
            .responses
            .get(&stream)
            .is_none_or(|response| response.body.is_empty())
        {
            assert!(http2.read_frame().is_some());
        }
        OpenForLong {
            limited,
            secure,
            http2: (http2, stream),
            web_socket: WebSocket::open(port),
        }
    }

    fn finish(mut self) {
        self.web_socket.ping();
        let limited = self.limited.receive(Duration::ZERO).unwrap();
        let secure = self.secure.receive().unwrap();
        let (mut client, stream) = self.http2;
        let http2 = client.response(stream);
        assert!(client.goaway.is_some(), "its server has been told to end");
        for body in [limited.body, secure.body, http2.body] {
            assert!(body.len() == LARGE && body.iter().all(|byte| *byte == b'x'));
        }
    }
}

fn run(site: &Master, arguments: &[&str]) {
    let output = Command::new(site.folder.join("sbin/nginx"))
        .arg("-c")
        .arg(site.folder.join("nginx.conf"))
        .args(["-e", "stderr"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

fn under_load(listen_options: &str) {
    let (port, secure_port, upstream) = (free_port(), free_port(), echo());
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");
    let servers = format!(
        "send_timeout 600s; proxy_read_timeout 600s; keepalive_requests 1000000; http2 on; \
         server {{ listen 127.0.0.1:{port}{listen_options}; root @/www; \
           access_log @/logs/access.log; \
           location = /slow {{ limit_rate 16m; try_files /large =404; }} \
           location = /ws {{ proxy_pass http://127.0.0.1:{upstream}; proxy_http_version 1.1; \
             proxy_set_header Upgrade websocket; proxy_set_header Connection upgrade; }} }} \
         server {{ listen 127.0.0.1:{secure_port} ssl; root @/www; \
           ssl_certificate {folder}/ecdsa.crt; ssl_certificate_key {folder}/ecdsa.key; }}"
    );
    let site = site(
        "worker_processes 2; worker_rlimit_nofile 4096;",
        &servers,
        "",
    );
    let all = EndOfAll(site.folder.clone());
    put(&site.folder, Kind::Tidegate);
    let first = start_in_background(&all, "sbin/nginx");
    let mut long = OpenForLong::begin(port, secure_port);
    let load = Load::by_all(port);
    load.go_on(KEPT as u64 * 2);
    let mut older = first;
    for _ in 0..UPGRADES {
        for number in 0..RELOADS / UPGRADES {
            run(&site, &["-s", "reload"]);
            if number % (RELOADS / REOPENINGS) == 0 {
                let log = site.folder.join("logs/access.log");
                fs::rename(&log, log.with_extension("old")).unwrap();
                run(&site, &["-s", "reopen"]);
                wait_for("log that was opened again", || log.exists());
            }
        }
        load.go_on(KEPT as u64);
        let newer = upgrade(&all, older);
        load.go_on(KEPT as u64);
        support::signal(older, "QUIT");
        wait_for("older one that does not listen", || {
            let mut children = support::children(older).into_iter();
            !listens(older, port) && !children.any(|pid| pid != newer && listens(pid, port))
        });
        long.web_socket.ping();
        // The first one still has what is open for long.
        wait_for("end of the older one", || {
            older == first || !is_alive(older)
        });
        load.go_on(KEPT as u64);
        older = newer;
    }
    let answered = load.finish();
    assert!(answered > 4_000, "{answered}");
    assert!(is_alive(first));
    long.finish();
    wait_for("end of the first one", || !is_alive(first));
    assert_eq!(all.pid("nginx.pid"), Some(older));
    let log = site.read("logs/error.log");
    let faults = |line: &&str| {
        let levels = ["[emerg]", "[alert]", "[crit]", "[error]"];
        levels.iter().any(|level| line.contains(level))
    };
    let faults: Vec<&str> = log.lines().filter(faults).collect();
    assert!(faults.is_empty(), "{faults:?}");
    eprintln!("{answered} requests answered");
}

#[test]
fn no_request_is_lost() {
    under_load("");
}

#[test]
fn no_request_is_lost_by_a_socket_for_each_thread() {
    under_load(" reuseport");
}

/// From nginx to Tidegate and back. An nginx that is told to quit ends idle connections, whatever
/// is on its way by them, so its half is asked by new ones alone.
#[test]
fn no_request_is_lost_on_the_way_there_and_back() {
    if nginx().is_none() {
        return;
    }
    let port = free_port();
    let servers =
        format!("keepalive_requests 1000000; server {{ listen 127.0.0.1:{port}; root @/www; }}");
    let site = site(
        "worker_processes 2; worker_rlimit_nofile 4096;",
        &servers,
        "",
    );
    let all = EndOfAll(site.folder.clone());
    put(&site.folder, Kind::Nginx);
    let mut older = start_in_background(&all, "sbin/nginx");
    let halves: [(Kind, [Ask; 4]); 2] = [
        (Kind::Tidegate, [ask_by_new; 4]),
        (
            Kind::Nginx,
            [ask_by_kept, ask_by_kept, ask_by_new, ask_by_new],
        ),
    ];
    for (next, ways) in halves {
        let load = Load::by(port, &ways);
        load.go_on(200);
        put(&site.folder, next);
        let newer = upgrade(&all, older);
        load.go_on(200);
        support::signal(older, "QUIT");
        wait_for("end of the older one", || !is_alive(older));
        load.go_on(200);
        load.finish();
        older = newer;
    }
}
