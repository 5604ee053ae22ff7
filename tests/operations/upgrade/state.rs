//! What a worker process knows and the one that takes its place goes on with: after USR2, and after
//! a reload that needs a new process. Each kind of zone is filled by requests, and asked by
//! requests that only the process behind can have answered.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::Connection;
use support::master::{Master, wait_for};
use support::port::free_port;
use support::site::listens;
use support::tls;

use super::place::{
    EndOfAll, Kind, end, is_alive, nginx, put, site, start_in_background, started, upgrade,
};

/// Where the servers of a site listen.
struct Ports {
    all: u16,
    secure: u16,
    /// With sessions that the server keeps.
    stored: u16,
    /// A server of a group, and the other one.
    one: u16,
    two: u16,
    /// Nobody listens there.
    none: u16,
}

impl Ports {
    fn new() -> Ports {
        let [all, secure, stored, one, two, none] = std::array::from_fn(|_| free_port());
        Ports {
            all,
            secure,
            stored,
            one,
            two,
            none,
        }
    }

    /// The lines of the block `http`.
    fn servers(&self) -> String {
        let Ports {
            all,
            secure,
            stored,
            one,
            two,
            none,
        } = self;
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");
        format!(
            "limit_req_zone $arg_client zone=clients:1m rate=1r/m;
             keyval_zone zone=pairs:1m timeout=1h;
             keyval $arg_key $paired zone=pairs;
             dav_ext_lock_zone zone=locks:1m timeout=10m;
             upstream learning {{
                 zone learning 256k;
                 server 127.0.0.1:{one}; server 127.0.0.1:{two};
                 sticky learn create=$upstream_cookie_id lookup=$cookie_id zone=sessions:1m;
             }}
             upstream failing {{
                 zone failing 256k;
                 server 127.0.0.1:{none} fail_timeout=10m;
                 server 127.0.0.1:{one};
             }}
             proxy_cache_path memory:kept keys_zone=kept:1m memory=4m;
             add_header X-Process $pid always;
             server {{ listen 127.0.0.1:{all}; root @/www;
                 location /limited {{ limit_req zone=clients; try_files /small =404; }}
                 location /paired {{ return 200 \"$paired.\"; }}
                 location /api {{ api write=on; }}
                 location /kept {{ proxy_cache kept; proxy_cache_valid 10m;
                     proxy_pass http://127.0.0.1:{one};
                     add_header X-Cache $upstream_cache_status; }}
                 location /learning {{ proxy_pass http://learning; }}
                 location /failing {{ proxy_pass http://failing;
                     add_header X-Process $pid; add_header X-Tried $upstream_addr; }}
                 location /dav/ {{ root @; dav_methods PUT; dav_ext_methods LOCK UNLOCK;
                     dav_ext_lock zone=locks; }} }}
             server {{ listen 127.0.0.1:{secure} ssl; root @/www; ssl_session_cache off;
                 ssl_certificate {folder}/ecdsa.crt; ssl_certificate_key {folder}/ecdsa.key; }}
             server {{ listen 127.0.0.1:{stored} ssl; root @/www; ssl_session_tickets off;
                 ssl_protocols TLSv1.2; ssl_session_cache shared:stored:1m;
                 ssl_certificate {folder}/ecdsa.crt; ssl_certificate_key {folder}/ecdsa.key; }}
             server {{ listen 127.0.0.1:{one};
                 location = /kept {{ return 200 $request_id; }} location / {{
                 add_header Set-Cookie id=$arg_make; return 200 one; }} }}
             server {{ listen 127.0.0.1:{two}; location / {{
                 add_header Set-Cookie id=$arg_make; return 200 two; }} }}"
        )
    }
}

/// A request as it is, on a connection of its own: head and body.
fn exchange(port: u16, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn ask(port: u16, method: &str, path: &str, fields: &str, body: &str) -> (String, String) {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\
         Content-Length: {length}\r\n\r\n{body}"
    );
    exchange(port, &request)
}

fn get(port: u16, path: &str, fields: &str) -> (String, String) {
    ask(port, "GET", path, fields, "")
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

const LOCK: &str = "<?xml version=\"1.0\"?><D:lockinfo xmlns:D='DAV:'><D:lockscope><D:exclusive/>\
    </D:lockscope><D:locktype><D:write/></D:locktype></D:lockinfo>";

/// What requests have come to, and goes on in the next process.
struct Known {
    /// The server that the session was given to.
    server: String,
    token: String,
    sessions: tls::Client,
    stored_sessions: tls::Client,
    /// The answer that the cache in memory has.
    kept: String,
    /// What the API has said of the group with the server that fails.
    requests: u64,
}

impl Known {
    /// Has every zone know something.
    fn fill(ports: &Ports) -> Known {
        let port = ports.all;
        let (head, _) = get(port, "/limited?client=a", "");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let pairs = r#"{"a":"1","b":"2"}"#;
        let json = "Content-Type: application/json\r\n";
        let (head, _) = ask(port, "POST", "/api/9/http/keyvals/pairs", json, pairs);
        assert!(head.starts_with("HTTP/1.1 201 "), "{head}");
        // The session is at the second server, where a new one would begin at the first.
        get(port, "/learning?make=first", "");
        let (_, server) = get(port, "/learning?make=second", "");
        let (head, body) = get(port, "/failing", "");
        assert_eq!(body, "one");
        let both = format!("127.0.0.1:{}, 127.0.0.1:{}", ports.none, ports.one);
        assert_eq!(field(&head, "X-Tried"), Some(&*both), "{head}");
        let (head, _) = ask(port, "LOCK", "/dav/file", "Timeout: Second-500\r\n", LOCK);
        let token = field(&head, "Lock-Token").expect(&head).to_owned();
        let sessions = tls::Client::new().keeping_sessions();
        let mut first = sessions.connect(ports.secure).unwrap();
        assert!(!first.is_resumed());
        assert_eq!(first.get("/small").unwrap().status, 200);
        let stored_sessions = tls::Client::new()
            .version(&rustls::version::TLS12)
            .keeping_sessions();
        let mut first = stored_sessions.connect(ports.stored).unwrap();
        assert!(!first.is_resumed());
        assert_eq!(first.get("/small").unwrap().status, 200);
        let (_, kept) = get(port, "/kept", "");
        Known {
            server,
            token,
            sessions,
            stored_sessions,
            kept,
            requests: requests(port),
        }
    }

    /// Whether the process that serves now knows all of that.
    fn check(self, ports: &Ports) {
        let port = ports.all;
        let (head, _) = get(port, "/limited?client=a", "");
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        let (head, _) = get(port, "/limited?client=b", "");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(get(port, "/paired?key=a", "").1, "1.");
        assert_eq!(get(port, "/paired?key=b", "").1, "2.");
        for _ in 0..4 {
            let (_, server) = get(port, "/learning", "Cookie: id=second\r\n");
            assert_eq!(server, self.server);
        }
        // It is out, and not tried again.
        for _ in 0..4 {
            let (head, _) = get(port, "/failing", "");
            let only = format!("127.0.0.1:{}", ports.one);
            assert_eq!(field(&head, "X-Tried"), Some(&*only), "{head}");
        }
        assert_eq!(requests(port), self.requests + 4);
        let (head, _) = ask(port, "PUT", "/dav/file", "", "text");
        assert!(head.starts_with("HTTP/1.1 423 "), "{head}");
        let token = format!("If: ({})\r\n", self.token);
        let (head, _) = ask(port, "PUT", "/dav/file", &token, "text");
        assert!(head.starts_with("HTTP/1.1 204 "), "{head}");
        let (head, kept) = get(port, "/kept", "");
        assert_eq!(field(&head, "X-Cache"), Some("HIT"), "{head}");
        assert_eq!(kept, self.kept);
        for (sessions, port) in [
            (self.sessions, ports.secure),
            (self.stored_sessions, ports.stored),
        ] {
            let mut resumed = sessions.connect(port).unwrap();
            assert_eq!(resumed.get("/small").unwrap().status, 200);
            assert!(resumed.is_resumed(), "{port}");
        }
    }
}

/// Requests that the group's server which answers has been given in all.
fn requests(port: u16) -> u64 {
    let (_, body) = get(port, "/api/9/http/upstreams/failing", "");
    let told: serde_json::Value = serde_json::from_str(&body).expect(&body);
    let peers = told["peers"].as_array().unwrap();
    let out = peers.iter().filter(|peer| peer["state"] == "unavail");
    assert_eq!(out.count(), 1, "{told}");
    let up = peers.iter().find(|peer| peer["state"] == "up").unwrap();
    up["requests"].as_u64().unwrap()
}

/// A site in the background, and its master.
fn serving(engine: &str) -> (Master, EndOfAll, Ports, u32) {
    let ports = Ports::new();
    let site = site("worker_processes 1;", &ports.servers(), "");
    let folder = &site.folder;
    fs::create_dir(folder.join("dav")).unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder.join("dav"), fs::Permissions::from_mode(0o777)).unwrap();
    edit(&site, "events {}", &format!("events {{ {engine} }}"));
    let all = EndOfAll(folder.clone());
    put(folder, Kind::Tidegate);
    let master = start_in_background(&all, "sbin/nginx");
    (site, all, ports, master)
}

fn edit(site: &Master, from: &str, to: &str) {
    let conf = site.folder.join("nginx.conf");
    let text = fs::read_to_string(&conf).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(conf, text.replace(from, to)).unwrap();
}

/// Waits until no process but these masters' workers answers.
fn leave_to(port: u16, newer: u32, older: u32) {
    support::signal(older, "WINCH");
    wait_for("older one whose workers do not listen", || {
        let mut children = support::children(older).into_iter();
        !children.any(|pid| pid != newer && listens(pid, port))
    });
}

fn another_program_goes_on_with_the_state_of_zones(engine: &'static str) {
    let (site, all, ports, older) = serving(engine);
    let known = Known::fill(&ports);
    let newer = upgrade(&all, older);
    leave_to(ports.all, newer, older);
    known.check(&ports);
    // Both go on for themselves, and a third one with what the second knows.
    end(older, "QUIT");
    let known = Known::requests_of(&ports);
    let last = upgrade(&all, newer);
    leave_to(ports.all, last, newer);
    known(&ports);
    end(newer, "QUIT");
    let log = site.read("logs/error.log");
    let line = "zones go on with the state of the worker before";
    assert_eq!(log.matches(line).count(), 2, "{log}");
    assert!(!log.contains("begins empty"), "{log}");
    end(last, "TERM");
}

support::test_on_each_engine!(another_program_goes_on_with_the_state_of_zones);

impl Known {
    /// What a process behind knows of another client.
    fn requests_of(ports: &Ports) -> impl FnOnce(&Ports) + use<> {
        let (head, _) = get(ports.all, "/limited?client=c", "");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        |ports| {
            for client in ["a", "b", "c"] {
                let (head, _) = get(ports.all, &format!("/limited?client={client}"), "");
                assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
            }
        }
    }
}

#[test]
fn a_new_process_of_a_reload_goes_on_with_the_state_of_zones() {
    let (site, _all, ports, master) = serving("");
    let known = Known::fill(&ports);
    let before = support::children(master);
    edit(&site, "worker_processes 1;", "worker_processes 2;");
    // A zone that is another one now begins empty, and says so.
    edit(
        &site,
        "zone=pairs:1m timeout=1h;",
        "zone=pairs:1m timeout=1h type=prefix;",
    );
    support::signal(master, "HUP");
    wait_for("a new process alone", || {
        let children = support::children(master);
        children.len() == 1 && children != before
    });
    assert_eq!(get(ports.all, "/paired?key=a", "").1, ".");
    let json = "Content-Type: application/json\r\n";
    let pairs = r#"{"a":"1","b":"2"}"#;
    ask(ports.all, "POST", "/api/9/http/keyvals/pairs", json, pairs);
    known.check(&ports);
    let log = site.read("logs/error.log");
    let line = "zone \"pairs\" begins empty: its keys mean something else (\"type\")";
    assert!(log.contains(line), "{log}");
    end(master, "TERM");
}

/// nginx does not ask, and has nothing to hand on.
#[test]
fn nginx_between_two_tidegates_knows_nothing_and_harms_nothing() {
    if nginx().is_none() {
        return;
    }
    let port = free_port();
    let servers = format!(
        "limit_req_zone $arg_client zone=clients:1m rate=1r/m; \
         server {{ listen 127.0.0.1:{port}; root @/www; limit_req zone=clients; }}"
    );
    let site = site("", &servers, "");
    let all = EndOfAll(site.folder.clone());
    put(&site.folder, Kind::Tidegate);
    let first = start_in_background(&all, "sbin/nginx");
    let (mut last, limited) = (first, "/small?client=a");
    for kind in [Kind::Nginx, Kind::Tidegate] {
        assert!(get(port, limited, "").0.starts_with("HTTP/1.1 200 "));
        assert!(get(port, limited, "").0.starts_with("HTTP/1.1 503 "));
        put(&site.folder, kind);
        let next = upgrade(&all, last);
        leave_to(port, next, last);
        end(last, "QUIT");
        last = next;
    }
    let log = site.read("logs/error.log");
    assert!(!log.contains("state of"), "{log}");
    end(last, "TERM");
}

/// A program that stands in the place of the one before, and hands on what it likes.
const OLDER: &str = r#"
import fcntl, os, signal, socket, struct, subprocess, sys, time
how, program, conf = sys.argv[1:]
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
theirs.set_inheritable(True)
environment = {"NGINX": "", "TIDEGATE_STATE": str(theirs.fileno())}
newer = subprocess.Popen([program, "-c", conf, "-e", "stderr"], env=environment, close_fds=False)
theirs.close()
def head(version, since):
    return b"tidegate state\n" + struct.pack("<QQ", version, since)
def text(bytes):
    return struct.pack("<Q", len(bytes)) + bytes
def zone(kind, name, size, version, bytes):
    return text(kind) + text(name) + struct.pack("<QQ", size, version) + text(bytes)
now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
end = text(b"")
whole = head(1, now)
limits = text(b"$arg_client") + bytes(40)
one = text(b"a") + struct.pack("<QQ", 0, 0)
handed_on = {
    "nothing": b"", "noise": os.urandom(100000), "other version": head(7, now) + end,
    "cut short": whole + zone(b"limit_req", b"clients", 1 << 20, 1, limits + one)[:-3],
    "no end": whole + zone(b"limit_req", b"clients", 1 << 20, 1, limits + one),
    "another kind": whole + zone(b"keyval", b"clients", 1 << 20, 1, bytes(8)) + end,
    "another key": whole + zone(b"limit_req", b"clients", 1 << 20, 1,
        text(b"$arg_other") + bytes(40)) + end,
    "another size": whole + zone(b"limit_req", b"clients", 1 << 21, 1, limits) + end,
    "newer kind": whole + zone(b"limit_req", b"clients", 1 << 20, 2, limits) + end,
    "half a bucket": whole + zone(b"limit_req", b"clients", 1 << 20, 1, limits + one[:-1]) + end,
    "long text": whole + zone(b"limit_req", b"clients", 1 << 20, 1, b"\xff" * 8) + end,
    "from the future": head(1, now + 10**15) + zone(b"limit_req", b"clients", 1 << 20, 1,
        limits + text(b"a") + b"\xff" * 16) + end,
    "another name": whole + zone(b"limit_req", b"others", 1 << 20, 1, limits + one) + end,
    "fits": whole + zone(b"limit_req", b"clients", 1 << 20, 1, limits + one) + end,
}
if how == "silent":
    pass
elif how == "gone":
    ours.close()
elif how == "no file":
    ours.recv(8); ours.send(b"?"); ours.close()
else:
    ours.recv(8)
    file = os.memfd_create("state", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if how != "unwritten":
        os.write(file, handed_on[how])
        fcntl.fcntl(file, 1033, 0xf)
    socket.send_fds(ours, [b"?"], [file])
signal.signal(signal.SIGTERM, lambda *_: None)
signal.pause()
newer.send_signal(signal.SIGTERM)
newer.wait()
"#;

#[test]
fn whatever_is_handed_on_the_server_serves() {
    let cases = [
        ("fits", "1 zones go on", true),
        ("nothing", "it is of no version that is known here", false),
        ("noise", "it is of no version that is known here", false),
        (
            "other version",
            "it is of version 7, 1 is known here",
            false,
        ),
        ("cut short", "it ends too early", false),
        ("no end", "it ends too early", false),
        (
            "another kind",
            "what it held is that of \"keyval\", version 1",
            false,
        ),
        (
            "another key",
            "its key is \"$arg_client\" and was \"$arg_other\"",
            false,
        ),
        ("another size", "its size is 1048576 and was 2097152", false),
        (
            "newer kind",
            "what it held is that of \"limit_req\", version 2",
            false,
        ),
        ("half a bucket", "it ends too early", false),
        ("long text", "it ends too early", false),
        ("from the future", "1 zones go on", true),
        ("another name", "0 zones go on", false),
        ("unwritten", "it was not written in 2s", false),
        ("silent", "the state of zones was not handed over", false),
        ("gone", "", false),
        ("no file", "", false),
    ];
    for (how, line, is_known) in cases {
        let port = free_port();
        let servers = format!(
            "limit_req_zone $arg_client zone=clients:1m rate=1r/m; \
             server {{ listen 127.0.0.1:{port}; root @/www; limit_req zone=clients; }}"
        );
        let site = site("", &servers, "");
        let all = EndOfAll(site.folder.clone());
        let mut older = Command::new("python3")
            .args(["-c", OLDER, how, env!("CARGO_BIN_EXE_tidegate")])
            .arg(site.folder.join("nginx.conf"))
            .stdin(Stdio::null())
            .stderr(fs::File::create(site.folder.join("output")).unwrap())
            .spawn()
            .unwrap();
        let newer = started(&all);
        wait_for("server", || Connection::open(port).is_ok());
        let mut connection = Connection::open(port).unwrap();
        connection.send("/small?client=a", "").unwrap();
        let status = connection.receive(Duration::ZERO).unwrap().status;
        let log = site.read("logs/error.log");
        assert_eq!(status, if is_known { 503 } else { 200 }, "{how}: {log}");
        assert!(log.contains(line), "{how}: {log}");
        assert!(
            !log.contains("panicked") && !log.contains("[alert]"),
            "{how}: {log}"
        );
        support::signal(older.id(), "TERM");
        older.wait().unwrap();
        assert!(!is_alive(newer));
    }
}
