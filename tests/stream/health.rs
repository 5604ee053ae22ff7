//! Health checks of servers that sessions are passed on to. nginx has them in NGINX Plus alone, so
//! that there is no other program to compare with: what is expected is what its manual says.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use support::is_nginx;
use support::master::{Master, wait_for};
use support::port::free_port;

use super::{connect, rest, start};

/// A server that answers every line by its name and `ok`, or by `-` while it is ill.
struct Behind {
    port: u16,
    is_ill: Arc<AtomicBool>,
}

impl Behind {
    fn new(name: &'static str) -> Behind {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_ill = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_ill);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, told) = (client.unwrap(), Arc::clone(&told));
                thread::spawn(move || serve(client, name, &told));
            }
        });
        Behind { port, is_ill }
    }
}

/// Answers a line byte by byte, and closes.
fn serve(mut client: TcpStream, name: &str, is_ill: &AtomicBool) {
    let mut byte = [0];
    while client.read(&mut byte).is_ok_and(|count| count == 1) {
        if byte == *b"\n" {
            let sign = if is_ill.load(Ordering::SeqCst) {
                "-"
            } else {
                "+"
            };
            for byte in format!("{sign}ok {name}\0\n").bytes() {
                if client.write_all(&[byte]).is_err() {
                    return;
                }
            }
            return;
        }
    }
}

/// Which server answers a session.
fn served_by(port: u16) -> String {
    let mut client = connect(port);
    // A session that no server takes ends before this arrives.
    let _ = client.write_all(b"hello\n");
    let answer = String::from_utf8(rest(&mut client)).unwrap();
    let name = answer.split([' ', '\0']).nth(1).unwrap_or_default();
    name.to_owned()
}

fn wait_for_line(master: &Master, text: &str) {
    master.wait_for_text("logs/info.log", text);
}

fn a_server_that_answers_wrongly_gets_no_sessions_until_it_is_well(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let (one, two) = (Behind::new("one"), Behind::new("two"));
    let port = free_port();
    let server = start(
        engine,
        &format!(
            "upstream group {{ zone group 64k; server 127.0.0.1:{}; server 127.0.0.1:{}; }}
             match ping {{ send \"PI\\x4eG\\n\"; expect \"\\x2bok\"; }}
             server {{ listen 127.0.0.1:{port}; proxy_pass group;
                       health_check interval=100ms fails=2 passes=2 match=ping; }}",
            one.port, two.port
        ),
    );
    let both = || {
        let names: Vec<String> = (0..4).map(|_| served_by(port)).collect();
        names.contains(&"one".to_owned()) && names.contains(&"two".to_owned())
    };
    wait_for("both servers", both);
    one.is_ill.store(true, Ordering::SeqCst);
    let about = format!(
        "peer is unhealthy while checking the answer, health check \"ping\" of peer \
         127.0.0.1:{} in upstream \"group\"",
        one.port
    );
    wait_for_line(&server, &about);
    for _ in 0..6 {
        assert_eq!(served_by(port), "two");
    }
    one.is_ill.store(false, Ordering::SeqCst);
    wait_for_line(&server, "peer is healthy while checking the answer");
    wait_for("both servers", both);
}

support::test_on_each_engine!(a_server_that_answers_wrongly_gets_no_sessions_until_it_is_well);

fn a_server_that_cannot_be_connected_to_is_unhealthy(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let well = Behind::new("well");
    let (port, closed) = (free_port(), free_port());
    let server = start(
        engine,
        &format!(
            "upstream group {{ zone group 64k; server 127.0.0.1:{closed} max_fails=0;
                               server 127.0.0.1:{}; }}
             server {{ listen 127.0.0.1:{port}; proxy_pass group; health_check interval=100ms; }}",
            well.port
        ),
    );
    wait_for_line(&server, "peer is unhealthy while connecting to upstream");
    let tried_before = server.read("logs/sessions.log").matches(',').count();
    for _ in 0..4 {
        assert_eq!(served_by(port), "well");
    }
    let log = server.read("logs/sessions.log");
    assert_eq!(log.matches(',').count(), tried_before, "{log}");
    // Something listens there now.
    let _listener = TcpListener::bind(("127.0.0.1", closed)).unwrap();
    wait_for_line(&server, "peer is healthy while connecting to upstream");
}

support::test_on_each_engine!(a_server_that_cannot_be_connected_to_is_unhealthy);

fn a_mandatory_check_comes_before_the_first_session(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let behind = Behind::new("one");
    behind.is_ill.store(true, Ordering::SeqCst);
    let port = free_port();
    let server = start(
        engine,
        &format!(
            "upstream group {{ zone group 64k; server 127.0.0.1:{}; }}
             match ping {{ send \"?\\n\"; expect ~* \"^\\+OK .*\\x00\"; }}
             server {{ listen 127.0.0.1:{port}; proxy_pass group;
                       health_check interval=100ms mandatory match=ping; }}",
            behind.port
        ),
    );
    assert_eq!(served_by(port), "");
    server.wait_for_text("logs/info.log", "no live upstreams");
    behind.is_ill.store(false, Ordering::SeqCst);
    wait_for("a session", || served_by(port) == "one");
}

support::test_on_each_engine!(a_mandatory_check_comes_before_the_first_session);

fn silence_is_a_failure_where_an_answer_is_expected(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let behind = silent.local_addr().unwrap();
    let port = free_port();
    let server = start(
        engine,
        &format!(
            "upstream group {{ zone group 64k; server {behind}; }}
             match banner {{ expect \"220 \"; }}
             health_check_timeout 100ms;
             server {{ listen 127.0.0.1:{port}; proxy_pass group;
                       health_check interval=100ms match=banner; }}"
        ),
    );
    wait_for_line(&server, "peer is unhealthy while reading from upstream");
    wait_for_line(&server, "upstream timed out (110: Connection timed out)");
}

support::test_on_each_engine!(silence_is_a_failure_where_an_answer_is_expected);

fn datagrams_are_a_check_as_well(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let answering = UdpSocket::bind("127.0.0.1:0").unwrap();
    let behind = answering.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((count, client)) = answering.recv_from(&mut buffer) {
            let answer = format!("heard {}", String::from_utf8_lossy(&buffer[..count]));
            answering.send_to(answer.as_bytes(), client).unwrap();
        }
    });
    let (ports, closed) = ([free_port(), free_port()], free_port());
    let server = start(
        engine,
        &format!(
            "upstream both {{ zone both 64k; server {behind}; server 127.0.0.1:{closed}; }}
             upstream other {{ zone other 64k; server {behind}; }}
             match heard {{ expect \"heard nginx health check\"; }}
             match unheard {{ send \"x\"; expect \"heard y\"; }}
             health_check_timeout 300ms;
             server {{ listen 127.0.0.1:{} udp; proxy_pass both;
                       health_check interval=100ms udp match=heard; }}
             server {{ listen 127.0.0.1:{} udp; proxy_pass other;
                       health_check interval=100ms udp match=unheard; }}",
            ports[0], ports[1]
        ),
    );
    let unhealthy = format!(
        "peer is unhealthy while reading from upstream, health check \"heard\" of peer \
         127.0.0.1:{closed} in upstream \"both\""
    );
    wait_for_line(&server, &unhealthy);
    wait_for_line(&server, "health check \"unheard\" of peer");
    let log = server.read("logs/info.log");
    let wrong = format!(
        "peer is unhealthy while reading from upstream, health check \"heard\" of peer {behind}"
    );
    assert!(!log.contains(&wrong), "{log}");
}

support::test_on_each_engine!(datagrams_are_a_check_as_well);

/// A server that says this to who connects, or to what it is asked, and keeps what it was told.
struct Scripted {
    port: u16,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Scripted {
    fn new(speaks_first: bool, says: impl Into<Vec<u8>>) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::<Mutex<Vec<u8>>>::default();
        let (kept, says) = (Arc::clone(&heard), says.into());
        thread::spawn(move || {
            for client in listener.incoming() {
                let (mut client, kept, says) = (client.unwrap(), Arc::clone(&kept), says.clone());
                thread::spawn(move || {
                    let mut bytes = [0; 1024];
                    if speaks_first {
                        let _ = client.write_all(&says);
                    }
                    let mut is_first = !speaks_first;
                    while let Ok(count @ 1..) = client.read(&mut bytes) {
                        kept.lock().unwrap().extend_from_slice(&bytes[..count]);
                        if std::mem::take(&mut is_first) {
                            let _ = client.write_all(&says);
                        }
                    }
                });
            }
        });
        Scripted { port, heard }
    }

    fn has_heard(&self, text: &[u8]) -> bool {
        let heard = self.heard.lock().unwrap();
        heard.windows(text.len()).any(|part| part == text)
    }
}

/// The words are those of the protocols' own manuals.
fn servers_are_asked_in_their_own_protocol(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let error = |state: &str| {
        let fields = format!("SFATAL\0VFATAL\0C{state}\0Mno\0\0");
        let length = (fields.len() as u32 + 4).to_be_bytes();
        [b"E", &length[..], fields.as_bytes()].concat()
    };
    let mysql = b"\x0b\0\0\0\x0a8.0.1\0";
    let mysql_full = b"\x17\0\0\0\xff\x10\x04Too many connections";
    // Of each kind one that is well, one that is not, and what the first is told.
    let kinds = [
        (
            "redis",
            Scripted::new(false, "+PONG\r\n"),
            Scripted::new(false, "-LOADING Redis is loading\r\n"),
            &b"PING\r\nQUIT\r\n"[..],
        ),
        (
            "smtp",
            Scripted::new(true, "220-mail.example.com\r\n220 ready\r\n"),
            Scripted::new(true, "554 no service\r\n"),
            b"QUIT\r\n",
        ),
        (
            "mysql",
            Scripted::new(true, mysql),
            Scripted::new(true, mysql_full),
            b"",
        ),
        (
            "postgres user=me",
            Scripted::new(false, error("28000")),
            Scripted::new(false, error("57P03")),
            b"\0\0\0\x11\0\x03\0\0user\0me\0\0X\0\0\0\x04",
        ),
    ];
    let mut lines = String::new();
    for (number, (kind, well, ill, _)) in kinds.iter().enumerate() {
        lines += &format!(
            "upstream group{number} {{ zone group{number} 64k; server 127.0.0.1:{};
                 server 127.0.0.1:{}; }}
             server {{ listen 127.0.0.1:{}; proxy_pass group{number};
                 health_check interval=100ms type={kind}; }}\n",
            well.port,
            ill.port,
            free_port()
        );
    }
    let server = start(engine, &lines);
    for (_, well, ill, told) in &kinds {
        let about = |port| format!("of peer 127.0.0.1:{port} in upstream");
        wait_for_line(&server, &about(ill.port));
        wait_for("farewell", || told.is_empty() || well.has_heard(told));
        assert!(!server.read("logs/info.log").contains(&about(well.port)));
    }
}

support::test_on_each_engine!(servers_are_asked_in_their_own_protocol);

#[test]
fn what_is_wrong_is_said_with_its_place() {
    if is_nginx() {
        return;
    }
    let wrong = [
        (
            "upstream g { server 127.0.0.1:1; } server { listen 127.0.0.1:1; proxy_pass g; health_check; }",
            "health checks require upstream \"g\" to be in shared memory",
        ),
        (
            "server { listen 127.0.0.1:1; proxy_pass 127.0.0.1:1; health_check; }",
            "\"health_check\" requires \"proxy_pass\" to an upstream in the same server",
        ),
        (
            "server { listen 127.0.0.1:1; return x; health_check; }",
            "\"health_check\" requires \"proxy_pass\" to an upstream in the same server",
        ),
        (
            "upstream g { zone g 64k; server 127.0.0.1:1; } server { listen 127.0.0.1:1; proxy_pass g; health_check match=m; }",
            "unknown match \"m\"",
        ),
        ("match m { send \"\\xg\"; }", "wants two hexadecimal digits"),
        ("match m { expect ^ x; }", "invalid parameter \"^\""),
        ("match m { expect ~ (; }", "missing closing parenthesis"),
        ("match m { } match m { }", "duplicate match \"m\""),
        (
            "upstream g { zone g 64k; server 127.0.0.1:1; } server { listen 127.0.0.1:1; proxy_pass g; health_check uri=/; }",
            "invalid parameter \"uri=/\"",
        ),
        (
            "upstream g { zone g 64k; server 127.0.0.1:1; } server { listen 127.0.0.1:1; proxy_pass g; health_check type=ldap; }",
            "unknown \"type=ldap\" of \"health_check\": mysql, postgres, redis and smtp can be spoken",
        ),
        (
            "upstream g { zone g 64k; server 127.0.0.1:1; } server { listen 127.0.0.1:1; proxy_pass g; health_check type=redis udp; }",
            "\"type\" of \"health_check\" excludes \"match\" and \"udp\"",
        ),
        (
            "upstream g { zone g 64k; server 127.0.0.1:1; } server { listen 127.0.0.1:1; proxy_pass g; health_check type=redis user=a; }",
            "\"user\" of \"health_check\" wants \"type=postgres\"",
        ),
    ];
    for (lines, expected) in wrong {
        let master = Master::new();
        master.configure(&format!("events {{ }} stream {{ {lines} }}"));
        let (code, said) = master.run(&["-t"]);
        assert!(
            code == Some(1) && said.contains(expected),
            "{lines}: {said}"
        );
    }
}
