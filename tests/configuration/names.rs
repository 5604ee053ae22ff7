//! Names of hosts in a configuration, and name servers that fall silent: what the master has
//! learned lasts.
//!
//! Each test has a name server of its own, to which the program is led by an `/etc/resolv.conf` in
//! a mount namespace. That takes root; without it the tests fail and say so, unless
//! TIDEGATE_TEST_WITHOUT_NAMESPACES is set.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use support::Connection;
use support::master::{Master, wait_for};
use support::port::free_port;

/// Questions and answers of a name server.
#[derive(Default)]
struct Zone {
    /// What there is to answer; other names do not exist.
    addresses: BTreeMap<String, Ipv4Addr>,
    /// How often the IPv4 addresses of a name were asked for.
    asked: BTreeMap<String, usize>,
    silent: bool,
}

/// A name server on port 53 of an address of its own.
struct NameServer {
    address: Ipv4Addr,
    zone: Arc<Mutex<Zone>>,
}

impl NameServer {
    /// Starts it; nothing where this process may not, which is said.
    fn start() -> Option<NameServer> {
        static COUNT: AtomicU8 = AtomicU8::new(1);
        let allowed = Command::new("unshare")
            .args(["--mount", "true"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !allowed {
            let is_known = std::env::var_os("TIDEGATE_TEST_WITHOUT_NAMESPACES").is_some();
            assert!(
                is_known,
                "no mount namespace can be made here (root and unshare(1)); \
                 TIDEGATE_TEST_WITHOUT_NAMESPACES=1 skips the test"
            );
            eprintln!("skipped: no mount namespace can be made here");
            return None;
        }
        let [high, low] = (std::process::id() as u16).to_be_bytes();
        // One process, several tests: the second byte tells them apart.
        let number = 80 + COUNT.fetch_add(1, Ordering::Relaxed);
        let address = Ipv4Addr::new(127, number, high, low.max(1));
        let socket = UdpSocket::bind((address, 53)).unwrap();
        let zone = Arc::new(Mutex::new(Zone::default()));
        let server = NameServer {
            address,
            zone: Arc::clone(&zone),
        };
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut buffer) {
                if let Some(answer) = answer(&buffer[..length], &mut zone.lock().unwrap()) {
                    let _ = socket.send_to(&answer, client);
                }
            }
        });
        Some(server)
    }

    fn set(&self, name: &str, address: Ipv4Addr) {
        let mut zone = self.zone.lock().unwrap();
        zone.addresses.insert(name.to_owned(), address);
    }

    fn set_silent(&self, silent: bool) {
        self.zone.lock().unwrap().silent = silent;
    }

    fn asked(&self) -> BTreeMap<String, usize> {
        self.zone.lock().unwrap().asked.clone()
    }

    /// A folder whose program asks this server.
    fn master(&self) -> Master {
        let mut master = Master::new();
        let file = master.folder.join("resolv.conf");
        let text = format!(
            "nameserver {}\noptions timeout:1 attempts:1\n",
            self.address
        );
        fs::write(&file, text).unwrap();
        let script = format!(
            "mount --bind '{}' /etc/resolv.conf && exec \"$@\"",
            file.display()
        );
        master.wrap(&["unshare", "--mount", "sh", "-c", &script, "sh"]);
        master
    }
}

/// The answer to a question, if there is to be one. What is asked for beside IPv4 addresses does
/// not exist.
fn answer(question: &[u8], zone: &mut Zone) -> Option<Vec<u8>> {
    let mut at = 12;
    let mut labels = Vec::new();
    while let Some(&length) = question.get(at).filter(|length| **length > 0) {
        let label = question.get(at + 1..at + 1 + usize::from(length))?;
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at += 1 + usize::from(length);
    }
    let end = at + 5;
    let is_v4 = question.get(at + 1..at + 3)? == [0, 1];
    let name = labels.join(".");
    if is_v4 {
        *zone.asked.entry(name.clone()).or_default() += 1;
    }
    if zone.silent {
        return None;
    }
    let known = zone.addresses.get(&name);
    let found = known.filter(|_| is_v4);
    let code = if known.is_none() { 3 } else { 0 };
    let mut answer = [&question[..2], &[0x81, 0x80 | code, 0, 1, 0]].concat();
    answer.extend([found.is_some().into(), 0, 0, 0, 0]);
    answer.extend(question.get(12..end)?);
    if let Some(address) = found {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}

/// A server that answers every connection with `text`, on one address of the loopback network.
fn upstream(address: Ipv4Addr, port: u16, text: &'static str) {
    let listener = TcpListener::bind((address, port)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            use std::io::Write;
            let _ = stream.read(&mut [0; 4096]);
            let length = text.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n");
            let _ = write!(stream, "{head}Connection: close\r\n\r\n{text}");
        }
    });
}

fn ask(port: u16, path: &str) -> String {
    let mut connection = Connection::open(port).unwrap();
    match connection.get(path) {
        Ok(response) => String::from_utf8_lossy(&response.body).into_owned(),
        Err(error) => error,
    }
}

/// Every place that takes a name of a host, with `listen` on `front.test`.
fn configuration(port: u16, upstream: u16) -> String {
    format!(
        "error_log syslog:server=log.test:{upstream};
         events {{ debug_connection debug.test; }}
         http {{
             access_log syslog:server=log.test:{upstream};
             resolver ns.test;
             upstream group {{ server back.test:{upstream}; }}
             server {{
                 listen front.test:{port};
                 set_real_ip_from trusted.test;
                 location / {{ proxy_pass http://back.test:{upstream}; }}
                 location /a {{ proxy_pass http://back.test:{upstream}/; }}
                 location /group {{ proxy_pass http://group/; }}
             }}
         }}"
    )
}

const NAMES: [&str; 6] = [
    "back.test",
    "debug.test",
    "front.test",
    "log.test",
    "ns.test",
    "trusted.test",
];

#[test]
fn a_crash_and_a_reload_need_no_name_server() {
    let Some(names) = NameServer::start() else {
        return;
    };
    let (port, upstream_port) = (free_port(), free_port());
    for name in NAMES {
        names.set(name, Ipv4Addr::LOCALHOST);
    }
    let moved = Ipv4Addr::new(127, 0, 0, 2);
    upstream(Ipv4Addr::LOCALHOST, upstream_port, "first");
    upstream(moved, upstream_port, "second");
    let mut master = names.master();
    master.configure(&configuration(port, upstream_port));
    master.start();
    let all_answer = |expected: &str| {
        for path in ["/", "/a", "/group"] {
            assert_eq!(ask(port, path), expected, "{path}");
        }
    };
    wait_for("listener", || Connection::open(port).is_ok());
    all_answer("first");
    // Each name once, however often it stands there.
    let once: BTreeMap<String, usize> = NAMES.map(|name| (name.to_owned(), 1)).into();
    assert_eq!(names.asked(), once);

    names.set_silent(true);
    let mut workers = master.workers();
    for signal in ["KILL", "SEGV"] {
        support::signal(workers[0], signal);
        workers = master.wait_for_other_workers(&workers);
        all_answer("first");
        assert_eq!(names.asked(), once, "after {signal}");
    }

    // A reload with a name more, of which nobody tells, changes nothing; one without comes into
    // force.
    let new = configuration(port, upstream_port);
    master.configure(&new.replace("server back", "server new.test; server back"));
    let (code, printed) = master.run(&["-s", "reload"]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(
        printed.contains("[emerg] host not found in upstream \"new.test\" in "),
        "{printed}"
    );
    assert_eq!(names.asked().get("back.test"), Some(&1));
    master.configure(&new.replace("location /a ", "location /b "));
    let (code, printed) = master.run(&["-s", "reload"]);
    assert_eq!((code, printed.as_str()), (Some(0), ""));
    assert_eq!(ask(port, "/b"), "first");
    master.wait_for_text("logs/error.log", "host not found: \"back.test\" keeps");

    // It is asked again after a reload that is in force, and followed where it tells something
    // else.
    names.set_silent(false);
    names.set("back.test", moved);
    master.configure(&new);
    let (code, printed) = master.run(&["-s", "reload"]);
    assert_eq!((code, printed.as_str()), (Some(0), ""));
    let changed = "the addresses of \"back.test\" have changed";
    master.wait_for_text("logs/error.log", changed);
    wait_for("answer of the new address", || ask(port, "/") == "second");
    all_answer("second");

    // And what was learned later outlives a crash as well.
    names.set_silent(true);
    let workers = master.workers();
    support::signal(workers[0], "KILL");
    master.wait_for_other_workers(&workers);
    all_answer("second");
    let (code, printed) = master.run(&["-s", "stop"]);
    assert_eq!((code, printed.as_str()), (Some(0), ""));
    assert!(master.wait().success());
}

#[test]
fn a_test_looks_each_name_up_once() {
    let Some(names) = NameServer::start() else {
        return;
    };
    for name in NAMES {
        names.set(name, Ipv4Addr::LOCALHOST);
    }
    let master = names.master();
    master.configure(&configuration(free_port(), 1));
    let (code, printed) = master.run(&["-t"]);
    assert_eq!(code, Some(0), "{printed}");
    let once: BTreeMap<String, usize> = NAMES.map(|name| (name.to_owned(), 1)).into();
    assert_eq!(names.asked(), once);

    // Without an answer it is nginx's error, and no name is asked for a second time.
    names.set_silent(true);
    let (code, printed) = master.run(&["-t"]);
    assert_eq!(code, Some(1));
    for expected in [
        "[emerg] host not found in upstream \"back.test:1\" in ",
        "[emerg] host not found in \"front.test:",
        "[emerg] host not found in syslog server \"log.test:1\" in ",
        "[emerg] host not found in debug_connection \"debug.test\" in ",
    ] {
        assert!(printed.contains(expected), "{expected} in {printed}");
    }
    let asked = names.asked();
    assert_eq!(asked.get("back.test"), Some(&2));
    assert!(asked.values().all(|count| *count <= 2), "{asked:?}");
}
