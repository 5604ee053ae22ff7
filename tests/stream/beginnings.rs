//! What comes before a session's content: the PROXY header, addresses that it tells, limits, and a
//! look at what the client says first.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use support::is_nginx;
use support::port::free_port;
use support::tls::Client;

use super::{connect, echo, line_with, rest, say, sessions, start};

/// A header of version 2: TCP over IPv4 from 192.0.2.7:700 to 192.0.2.8:800, with ALPN `h2`.
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x11\xc0\0\x02\x07\xc0\0\x02\x08\
                    \x02\xbc\x03\x20\x01\0\x02h2";

/// What a server says after this beginning.
fn answer(port: u16, beginning: &[u8]) -> String {
    let mut client = connect(port);
    client.write_all(beginning).unwrap();
    String::from_utf8(rest(&mut client)).unwrap()
}

fn proxy_headers_tell_who_the_client_is(engine: &'static str) {
    let upstream = echo();
    let [told, trusted, passed] = [(); 3].map(|()| free_port());
    let text = "return \"$remote_addr:$remote_port $realip_remote_addr $proxy_protocol_addr:\
                $proxy_protocol_port $proxy_protocol_server_addr:$proxy_protocol_server_port \
                $proxy_protocol_tlv_alpn\"";
    let master = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{told} proxy_protocol; set_real_ip_from 127.0.0.2;
                 {text}; }}
             server {{ listen 127.0.0.1:{trusted} proxy_protocol;
                 set_real_ip_from 127.0.0.0/8; deny 192.0.2.66; {text}; }}
             server {{ listen 127.0.0.1:{passed} proxy_protocol;
                 proxy_pass 127.0.0.1:{upstream}; }}"
        ),
    );
    let v1 = b"PROXY TCP4 192.0.2.1 192.0.2.2 10 20\r\n";
    let mut client = connect(told);
    let port = client.local_addr().unwrap().port();
    client.write_all(v1).unwrap();
    assert_eq!(
        rest(&mut client),
        format!("127.0.0.1:{port} 127.0.0.1 192.0.2.1:10 192.0.2.2:20 ").as_bytes()
    );
    let of_v1 = "192.0.2.1:10 127.0.0.1 192.0.2.1:10 192.0.2.2:20 ";
    assert_eq!(answer(trusted, v1), of_v1);
    let of_v2 = "192.0.2.7:700 127.0.0.1 192.0.2.7:700 192.0.2.8:800 h2";
    assert_eq!(answer(trusted, V2), of_v2);
    assert_eq!(
        answer(trusted, b"PROXY TCP4 192.0.2.66 192.0.2.2 10 20\r\n"),
        ""
    );
    assert_eq!(answer(trusted, b"GET / HTTP/1.0\r\n\r\n"), "");
    assert_eq!(
        line_with(&master, "broken header"),
        format!(
            "broken header: \"GET / HTTP/1.0\" while reading PROXY protocol, \
             client: 127.0.0.1, server: 127.0.0.1:{trusted}"
        )
    );
    assert_eq!(
        line_with(&master, "forbidden"),
        format!(
            "access forbidden by rule while initializing session, client: 192.0.2.66, \
             server: 127.0.0.1:{trusted}"
        )
    );
    // What comes with the header is the session's; the header itself is not counted.
    let mut client = connect(passed);
    client.write_all(b"PROXY UNKNOWN\r\nhello").unwrap();
    let mut heard = [0; 5];
    client.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"hello");
    drop(client);
    let lines = sessions(&master, 6);
    let of_passed = format!("127.0.0.1 TCP 200 5 5 127.0.0.1:{upstream} 5 5");
    assert_eq!(
        lines[3..],
        [
            "192.0.2.66 TCP 403 0 0 - - -".to_owned(),
            "127.0.0.1 TCP 400 0 0 - - -".to_owned(),
            of_passed.clone(),
        ]
    );
    if is_nginx() {
        return; // it takes what has come first for the whole header
    }
    for at in 1..V2.len() {
        let mut client = connect(trusted);
        client.set_nodelay(true).unwrap();
        client.write_all(&V2[..at]).unwrap();
        thread::sleep(Duration::from_millis(2));
        client.write_all(&V2[at..]).unwrap();
        assert_eq!(
            rest(&mut client),
            of_v2.as_bytes(),
            "in two pieces, {at} first"
        );
    }
}

support::test_on_each_engine!(proxy_headers_tell_who_the_client_is);

fn a_header_that_does_not_come_ends_the_session(engine: &'static str) {
    let port = free_port();
    let master = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{port} proxy_protocol; proxy_protocol_timeout 100ms;
                 return text; }}"
        ),
    );
    assert_eq!(rest(&mut connect(port)), b"");
    assert_eq!(sessions(&master, 1), ["127.0.0.1 TCP 200 0 0 - - -"]);
    assert_eq!(
        line_with(&master, "timed out"),
        format!(
            "client timed out (110: Connection timed out) while reading PROXY protocol, \
             client: 127.0.0.1, server: 127.0.0.1:{port}"
        )
    );
}

support::test_on_each_engine!(a_header_that_does_not_come_ends_the_session);

fn so_many_sessions_as_a_key_may_have(engine: &'static str) {
    let upstream = echo();
    let [one, other, dry] = [(); 3].map(|()| free_port());
    let master = start(
        engine,
        &format!(
            "log_format limits '$limit_conn_status $status $kind';
             access_log @/logs/limits.log limits;
             limit_conn_zone $remote_addr zone=clients:64k;
             limit_conn_log_level warn;
             server {{ listen 127.0.0.1:{one}; set $kind one; limit_conn clients 1;
                 proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{other}; set $kind two; limit_conn clients 2;
                 proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{dry}; set $kind \"dry $kind\"; set $kind \"$kind.\";
                 limit_conn clients 1; limit_conn_dry_run on; return text; }}"
        ),
    );
    let mut first = connect(one);
    say(&mut first, b"first");
    assert_eq!(rest(&mut connect(one)), b"");
    let mut second = connect(other);
    say(&mut second, b"second");
    assert_eq!(rest(&mut connect(other)), b"");
    assert_eq!(rest(&mut connect(dry)), b"text");
    drop((first, second));
    let lines = || master.read("logs/limits.log");
    support::master::wait_for("sessions' ends", || lines().lines().count() == 5);
    let lines = lines();
    let lines: Vec<&str> = lines.lines().collect();
    let refused = ["REJECTED 503 one", "REJECTED 503 two"];
    assert_eq!(lines[..2], refused);
    assert_eq!(lines[2], "REJECTED_DRY_RUN 200 dry .");
    let mut passed = lines[3..].to_vec();
    passed.sort_unstable();
    assert_eq!(passed, ["PASSED 200 one", "PASSED 200 two"]);
    assert_eq!(
        line_with(&master, "limiting connections by"),
        format!(
            "limiting connections by zone \"clients\" while initializing session, \
             client: 127.0.0.1, server: 127.0.0.1:{one}"
        )
    );
    // The places are given back.
    let mut again = connect(one);
    say(&mut again, b"again");
}

support::test_on_each_engine!(so_many_sessions_as_a_key_may_have);

const PREREAD: &str = "return \"$ssl_preread_server_name|$ssl_preread_alpn_protocols|\
                       $ssl_preread_protocol\"";

/// A ClientHello in records that hold so many bytes of the message each.
fn in_records(hello: &[u8], size: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for part in hello[5..].chunks(size) {
        all.extend_from_slice(&[22, 3, 1]);
        all.extend_from_slice(&(part.len() as u16).to_be_bytes());
        all.extend_from_slice(part);
    }
    all
}

/// The ClientHello with an extension of so many bytes that nobody knows, and with GREASE in it.
fn padded(hello: &[u8], more: usize) -> Vec<u8> {
    let mut message = hello[9..].to_vec();
    let session_id = 34;
    let ciphers = session_id + 1 + usize::from(message[session_id]);
    let length = usize::from(u16::from_be_bytes([message[ciphers], message[ciphers + 1]]));
    let compressions = ciphers + 2 + length;
    let extensions = compressions + 1 + usize::from(message[compressions]);
    let before = u16::from_be_bytes([message[extensions], message[extensions + 1]]);
    let mut extra = vec![0x5a, 0x5a, 0, 0, 0xfa, 0xfa];
    extra.extend_from_slice(&(more as u16).to_be_bytes());
    extra.resize(extra.len() + more, 0);
    let total = before + extra.len() as u16;
    message[extensions..extensions + 2].copy_from_slice(&total.to_be_bytes());
    message.splice(extensions + 2..extensions + 2, extra);
    let mut all = vec![22, 3, 1];
    all.extend_from_slice(&(message.len() as u16 + 4).to_be_bytes());
    all.push(1);
    all.extend_from_slice(&(message.len() as u32).to_be_bytes()[1..]);
    all.extend_from_slice(&message);
    all
}

fn the_name_in_a_handshake_is_seen_without_taking_part_in_it(engine: &'static str) {
    let [port, small] = [(); 2].map(|()| free_port());
    let master = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{port}; ssl_preread on; {PREREAD}; }}
             server {{ listen 127.0.0.1:{small}; ssl_preread on; preread_buffer_size 1k;
                 preread_timeout 100ms; {PREREAD}; }}"
        ),
    );
    let client = Client::new().name("some.example");
    let hello = client.hello();
    let seen = "some.example|h2,http/1.1|TLSv1.3";
    assert_eq!(answer(port, &hello), seen);
    let old = Client::new().version(&rustls::version::TLS12).hello();
    // It lists the one version that it speaks; nginx takes every list for TLS 1.3's.
    let version = if is_nginx() { "TLSv1.3" } else { "TLSv1.2" };
    assert_eq!(
        answer(port, &old),
        format!("localhost|h2,http/1.1|{version}")
    );
    for size in [1, 2, 3, 4, 5, 100, hello.len() - 6] {
        assert_eq!(
            answer(port, &in_records(&hello, size)),
            seen,
            "records of {size}"
        );
    }
    for more in [1500, 9000, 14_500] {
        let long = padded(&hello, more);
        assert_eq!(answer(port, &long), seen, "{} bytes", long.len());
        assert_eq!(
            answer(port, &in_records(&long, 700)),
            seen,
            "{} bytes",
            long.len()
        );
    }
    for at in (1..hello.len()).step_by(if is_nginx() { 97 } else { 1 }) {
        let mut client = connect(port);
        client.set_nodelay(true).unwrap();
        client.write_all(&hello[..at]).unwrap();
        if at % 16 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
        client.write_all(&hello[at..]).unwrap();
        let said = String::from_utf8(rest(&mut client)).unwrap();
        assert_eq!(said, seen, "in two pieces, {at} first");
    }
    assert_eq!(answer(port, b"SSH-2.0-test\r\n"), "||");
    assert_eq!(
        answer(port, b"\x16\x03\x01\0\x04\x02\0\0\0"),
        "||",
        "a ServerHello"
    );
    // Too long for the buffer, and too slow.
    assert_eq!(answer(small, &padded(&hello, 1500)), "");
    let mut slow = connect(small);
    slow.write_all(&hello[..40]).unwrap();
    assert_eq!(rest(&mut slow), b"");
    let mut gone = connect(small);
    gone.write_all(&hello[..40]).unwrap();
    gone.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rest(&mut gone), b"");
    // The others have got a text.
    let unanswered = || {
        let log = master.read("logs/sessions.log");
        let lines = log.lines().filter(|line| line.ends_with(" 0 0 - - -"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    support::master::wait_for("sessions' ends", || unanswered().len() == 3);
    assert_eq!(
        unanswered(),
        [
            "127.0.0.1 TCP 400 0 0 - - -",
            "127.0.0.1 TCP 200 0 0 - - -",
            "127.0.0.1 TCP 200 0 0 - - -",
        ]
    );
    assert_eq!(
        line_with(&master, "preread buffer full"),
        format!(
            "preread buffer full while prereading client data, client: 127.0.0.1, \
             server: 127.0.0.1:{small}"
        )
    );
}

support::test_on_each_engine!(the_name_in_a_handshake_is_seen_without_taking_part_in_it);

/// One port for TLS by name, and for what speaks first and is no TLS.
fn what_was_seen_is_passed_on(engine: &'static str) {
    let upstream = echo();
    let port = free_port();
    let dead = free_port();
    let master = start(
        engine,
        &format!(
            "map $ssl_preread_server_name $behind {{ \"\" {upstream}; default {dead}; }}
             server {{ listen 127.0.0.1:{port}; ssl_preread on;
                 proxy_pass 127.0.0.1:$behind; }}
             server {{ listen 127.0.0.1:{port}; server_name *.example; ssl_preread on;
                 proxy_pass 127.0.0.1:{upstream}; }}"
        ),
    );
    let mut client = connect(port);
    say(&mut client, b"SSH-2.0-test\r\n");
    say(&mut client, b"more");
    drop(client);
    let hello = Client::new().name("some.example").hello();
    let mut client = connect(port);
    say(&mut client, &hello);
    drop(client);
    let other = Client::new().name("other.name").hello();
    let mut client = connect(port);
    client.write_all(&other).unwrap();
    assert!(is_closed(&mut client));
    let length = hello.len();
    // nginx may have read what it could not pass on.
    let lines = sessions(&master, 3);
    // The sessions end at the same time, in any order.
    let (refused, passed): (Vec<String>, Vec<String>) =
        lines.into_iter().partition(|line| line.contains(" 502 "));
    let [line] = &refused[..] else {
        panic!("{refused:?} {passed:?}");
    };
    assert!(line.starts_with("127.0.0.1 TCP 502 0 "), "{line}");
    assert!(line.ends_with(&format!(" 127.0.0.1:{dead} 0 0")), "{line}");
    let mut expected = [
        format!("127.0.0.1 TCP 200 18 18 127.0.0.1:{upstream} 18 18"),
        format!("127.0.0.1 TCP 200 {length} {length} 127.0.0.1:{upstream} {length} {length}"),
    ];
    expected.sort();
    let mut passed = passed;
    passed.sort();
    assert_eq!(passed, expected);
}

support::test_on_each_engine!(what_was_seen_is_passed_on);

fn is_closed(client: &mut TcpStream) -> bool {
    match client.read(&mut [0; 16]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}
