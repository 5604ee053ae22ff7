//! `tidegate memcached` from outside: sockets, options, and clients of Debian's. Answers to single
//! commands are tested without a network, in the crate.

mod block;
mod clients;
mod features;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use support::PATIENCE;

/// A server with a folder of its own.
struct Server {
    child: Child,
    folder: PathBuf,
    port: u16,
}

fn folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tidegate-memcached-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    fs::create_dir(&folder).unwrap();
    folder
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("memcached");
        Server::start_by(command, folder(), arguments)
    }

    fn start_by(mut command: Command, folder: PathBuf, arguments: &[&str]) -> Server {
        let ports = folder.join("ports");
        let mut child = command
            .args(["-u", "root", "-l", "127.0.0.1", "-p", "-1"])
            .args(arguments)
            .env("MEMCACHED_PORT_FILENAME", &ports)
            .stdin(Stdio::null())
            .stderr(fs::File::create(folder.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        wait_for("it listens", || {
            assert!(child.try_wait().unwrap().is_none(), "it has ended");
            ports.exists()
        });
        let text = fs::read_to_string(&ports).unwrap();
        let first = text.lines().next().unwrap_or_default();
        let port = first.rsplit(' ').next().and_then(|port| port.parse().ok());
        Server {
            child,
            folder,
            port: port.unwrap_or(0),
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// What is answered to all of this, up to where the server closes.
    fn ask(&self, input: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(input).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }

    fn statistic(&self, name: &str) -> u64 {
        let told = self.ask(b"stats\r\n");
        let begin = format!("STAT {name} ");
        let line = told.lines().find_map(|line| line.strip_prefix(&*begin));
        line.unwrap_or_else(|| panic!("{name}: {told}"))
            .parse()
            .unwrap()
    }

    fn end(&mut self, signal: &str) -> Option<i32> {
        support::signal(self.child.id(), signal);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn read_exactly(stream: &mut impl Read, expected: &str) {
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(String::from_utf8(answer).unwrap(), expected);
}

#[test]
fn clients_store_and_read_over_many_connections() {
    let server = Server::start(&["-t", "2"]);
    let mut streams: Vec<TcpStream> = (0..50).map(|_| server.connect()).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        let line = format!("set key{number} {number} 0 3\r\n{number:03}\r\n");
        stream.write_all(line.as_bytes()).unwrap();
        read_exactly(stream, "STORED\r\n");
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let other = (number + 7) % 50;
        stream
            .write_all(format!("get key{other}\r\n").as_bytes())
            .unwrap();
        read_exactly(
            stream,
            &format!("VALUE key{other} {other} 3\r\n{other:03}\r\nEND\r\n"),
        );
    }
    assert_eq!(server.statistic("curr_items"), 50);
    assert_eq!(server.statistic("get_hits"), 50);
    wait_for("connections are counted", || {
        server.statistic("curr_connections") == 51
    });
}

#[test]
fn a_byte_a_segment_and_large_values_come_through() {
    let server = Server::start(&[]);
    let mut stream = server.connect();
    stream.set_nodelay(true).unwrap();
    for byte in b"set a 0 0 3\r\nabc\r\nget a\r\nmg a v\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    read_exactly(
        &mut stream,
        "STORED\r\nVALUE a 0 3\r\nabc\r\nEND\r\nVA 3\r\nabc\r\n",
    );

    let value = "v".repeat(1_000_000);
    let input = format!("set large 7 0 1000000\r\n{value}\r\nget large\r\n");
    let expected = format!("STORED\r\nVALUE large 7 1000000\r\n{value}\r\nEND\r\n");
    assert!(server.ask(input.as_bytes()) == expected);
    // What has come through the network in pieces is as it was, again and again.
    let twice = format!("VALUE large 7 1000000\r\n{value}\r\nEND\r\n").repeat(2);
    assert!(server.ask(b"get large\r\nget large\r\n") == twice);
}

#[test]
fn a_client_that_reads_nothing_is_not_read_either() {
    let server = Server::start(&["-t", "1"]);
    let value = "v".repeat(500_000);
    let input = format!("set a 0 0 500000\r\n{value}\r\n");
    assert_eq!(server.ask(input.as_bytes()), "STORED\r\n");
    let stuck = server.connect();
    (&stuck).write_all(&b"get a\r\n".repeat(10_000)).unwrap(); // five gigabytes of answers
    let memory = || {
        let path = format!("/proc/{}/status", server.child.id());
        let status = fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
        kilobytes.parse::<u64>().unwrap()
    };
    wait_for("the gets are looked at", || {
        server.statistic("get_hits") > 0
    });
    let after = server.statistic("get_hits");
    // Others are served meanwhile, and no more is done for the one that does not read.
    for _ in 0..100 {
        assert_eq!(server.ask(b"get b\r\n"), "END\r\n");
    }
    assert!(server.statistic("get_hits") < after + 100);
    assert!(memory() < 200_000, "{} kB", memory());
    drop(stuck);
    wait_for("it has gone", || server.statistic("curr_connections") == 1);
}

#[test]
fn one_connection_too_many_is_told_so() {
    let server = Server::start(&["-c", "3", "-t", "2"]);
    let mut kept: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    for stream in &mut kept {
        stream.write_all(b"mn\r\n").unwrap();
        read_exactly(stream, "MN\r\n");
    }
    let mut told = String::new();
    server.connect().read_to_string(&mut told).unwrap();
    assert_eq!(told, "ERROR Too many open connections\r\n");
    kept.pop();
    wait_for("there is room again", || {
        let mut stream = server.connect();
        let mut answer = [0; 4];
        let asked = stream
            .write_all(b"mn\r\n")
            .and_then(|()| stream.read_exact(&mut answer));
        asked.is_ok() && answer == *b"MN\r\n"
    });
}

#[test]
fn it_ends_by_signals_and_by_the_command() {
    for signal in ["TERM", "INT", "USR1"] {
        let mut server = Server::start(&[]);
        let idle = server.connect();
        assert_eq!(server.ask(b"mn\r\n"), "MN\r\n");
        assert_eq!(server.end(signal), Some(0), "{signal}");
        drop(idle);
    }
    let mut server = Server::start(&["-A"]);
    server.ask(b"shutdown\r\n");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn called_as_memcached_it_is_memcached_and_a_socket_has_its_mode() {
    let folder = folder();
    let program = folder.join("memcached");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tidegate"), &program).unwrap();
    let socket = folder.join("socket");
    let pid = folder.join("pid");
    // As a run before has left it behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let (at, number) = (socket.display().to_string(), pid.display().to_string());
    let arguments = ["-s", &at, "-a", "0750", "-P", &number, "-m", "100"];
    let mut server = Server::start_by(Command::new(&program), folder, &arguments);
    let mut stream = loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    stream.write_all(b"mn\r\n").unwrap();
    read_exactly(&mut stream, "MN\r\n");
    assert_eq!(
        fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o750
    );
    assert_eq!(
        fs::read_to_string(&pid).unwrap(),
        format!("{}\n", server.child.id())
    );
    assert_eq!(server.end("TERM"), Some(0));
    assert!(!socket.exists() && !pid.exists());
}

fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("memcached")
        .args(arguments)
        .output()
        .unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn what_cannot_be_served_is_refused() {
    let (code, text) = refused(&["-u", "root", "-l", "127.0.0.1", "-Z"]);
    assert!(
        code == Some(1) && text.contains("-Z: TLS needs a certificate and its key"),
        "{text}"
    );
    let (code, text) = refused(&["-u", "no-such-user", "-l", "127.0.0.1", "-p", "-1"]);
    let is_root = Path::new("/root").read_dir().is_ok();
    if is_root {
        let expected = "can't find the user no-such-user to switch to";
        assert!(code == Some(1) && text.contains(expected), "{text}");
    }
    let server = Server::start(&[]);
    let port = server.port.to_string();
    let (code, text) = refused(&["-u", "root", "-l", "127.0.0.1", "-p", &port]);
    assert!(
        code == Some(1) && text.contains("failed to listen on 127.0.0.1:"),
        "{text}"
    );
}

#[test]
fn expired_objects_go_without_being_asked_for() {
    let server = Server::start(&[]);
    let mut input = Vec::new();
    for number in 0..5000 {
        input.extend(format!("set key{number} 0 1 10 noreply\r\n0123456789\r\n").bytes());
    }
    server.ask(&input);
    let begin = Instant::now();
    while server.statistic("curr_items") > 0 {
        assert!(
            begin.elapsed() < PATIENCE,
            "{}",
            server.statistic("curr_items")
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.statistic("reclaimed"), 5000);
}

/// What Debian's python3-pymemcache does with a server.
const PYMEMCACHE: &str = r#"
import sys
from pymemcache.client.base import Client
c = Client(("127.0.0.1", int(sys.argv[1])), default_noreply=False)
assert c.set("a", b"1", expire=100) and c.get("a") == b"1"
assert not c.add("a", b"2") and c.replace("a", b"3") and c.append("a", b"4") and c.prepend("a", b"2")
assert c.get_many(["a", "b"]) == {"a": b"234"}
value, cas = c.gets("a")
assert c.cas("a", b"5", cas) and not c.cas("a", b"6", cas) and c.cas("b", b"6", cas) is None
assert c.incr("a", 10) == 15 and c.decr("a", 20) == 0 and c.incr("b", 1) is None
assert c.touch("a", 10) and not c.touch("b", 10)
# Debian's version has no such call yet.
assert not hasattr(c, "gat") or c.gat("a", 20).strip() == b"0"
assert c.set_many({str(n): b"x" * n for n in range(1000)}) == []
assert sum(len(v) for v in c.get_many([str(n) for n in range(1000)]).values()) == 499500
assert c.delete("a") and not c.delete("a") and c.version().startswith(b"1.6.")
assert c.stats()[b"curr_items"] == 1000 and c.flush_all() and c.get("5") is None
c.quit()
"#;

#[test]
fn pymemcache_gets_along_with_it() {
    let server = Server::start(&[]);
    let output = Command::new("python3")
        .args(["-c", PYMEMCACHE, &server.port.to_string()])
        .output();
    let output = output.expect("python3");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("No module named 'pymemcache'") {
        eprintln!("skipped: the Debian package python3-pymemcache is missing");
        return;
    }
    assert!(output.status.success(), "{said}");
}

#[test]
fn memccapable_finds_both_protocols_whole() {
    let server = Server::start(&[]);
    let port = server.port.to_string();
    let output = Command::new("memccapable")
        .args(["-h", "127.0.0.1", "-p", &port])
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: the Debian package libmemcached-tools is missing");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && !said.contains("[FAIL]"),
        "{said}"
    );
    for protocol in ["ascii", "binary"] {
        let passed = said.lines().filter(|line| line.starts_with(protocol));
        assert!(passed.count() >= 20, "{protocol}: {said}");
    }
}

#[test]
fn datagrams_are_answered_where_a_port_is_written() {
    let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = probe.local_addr().unwrap().port().to_string();
    drop(probe);
    let server = Server::start(&["-U", &port]);
    let ports = fs::read_to_string(server.folder.join("ports")).unwrap();
    assert!(ports.contains(&format!("UDP INET: {port}")), "{ports}");

    let value = "v".repeat(3000);
    let mut stream = server.connect();
    write!(stream, "set a 0 0 3000\r\n{value}\r\nquit\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "STORED\r\n");

    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.connect(format!("127.0.0.1:{port}")).unwrap();
    // What is no request, and one that is said to have two parts, are dropped without a word.
    client.send(b"\0\x01").unwrap();
    client.send(b"\0\x05\0\0\0\x02\0\0get a\r\n").unwrap();
    client.send(b"\0\x07\0\0\0\x01\0\0get a\r\n").unwrap();
    let mut parts = vec![Vec::new(); 3];
    for _ in 0..3 {
        let mut datagram = [0; 2000];
        let length = client.recv(&mut datagram).unwrap();
        let (head, part) = datagram[..length].split_at(8);
        assert_eq!((&head[..2], &head[4..]), (&[0, 7][..], &[0, 3, 0, 0][..]));
        parts[usize::from(head[3])] = part.to_vec();
    }
    let message = String::from_utf8(parts.concat()).unwrap();
    assert_eq!(message, format!("VALUE a 0 3000\r\n{value}\r\nEND\r\n"));
}

/// A field of the process's `status`.
fn status_of(server: &Server, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let mut values = status
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.next().unwrap_or_default().trim().to_owned()
}

/// It gives away what serving does not take, as the worker process of a server does, unless it is
/// told not to. What no call can do then is tried call by call in `crates/process`.
#[test]
fn it_is_confined_unless_it_is_told_not_to_be() {
    let files = folder();
    let (pid_file, socket) = (files.join("pid"), files.join("socket"));
    let arguments = ["-A", "-P", pid_file.to_str().unwrap()];
    let mut server = Server::start(&arguments);
    wait_for("its filter", || status_of(&server, "Seccomp") == "2");
    assert_eq!(status_of(&server, "NoNewPrivs"), "1");
    // Root keeps what root may do with files, as a worker process of `user root` does.
    let kept = u64::from_str_radix(&status_of(&server, "CapEff"), 16).unwrap();
    assert_eq!(kept & !0x40f, 0, "{kept:x}");
    assert_eq!(status_of(&server, "CapBnd"), status_of(&server, "CapEff"));
    let stored = server.ask(b"set a 0 0 1\r\n1\r\nget a\r\nstats\r\n");
    assert!(
        stored.starts_with("STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\nSTAT pid "),
        "{stored}"
    );
    // Threads end the process without a signal, and the file goes with it.
    assert!(pid_file.exists());
    server.ask(b"shutdown\r\n");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert!(!pid_file.exists());

    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["memcached", "-u", "root", "-s", socket.to_str().unwrap()]);
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    wait_for("it listens", || UnixStream::connect(&socket).is_ok());
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"mn\r\n").unwrap();
    read_exactly(&mut stream, "MN\r\n"); // it heeds signals by then
    support::signal(child.id(), "TERM");
    child.wait().unwrap();
    assert!(!socket.exists());

    let mut server = Server::start(&["-A", "-o", "no_drop_privileges"]);
    assert_eq!(
        server.ask(b"version\r\n").split(' ').next(),
        Some("VERSION")
    );
    let kept = ["Seccomp", "NoNewPrivs"].map(|name| status_of(&server, name));
    assert_eq!(kept, ["0", "0"].map(str::to_owned));
    server.ask(b"shutdown graceful\r\n");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let _ = fs::remove_dir_all(&files);
}
