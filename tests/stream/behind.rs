//! What the server behind is told and how it is spoken to: PROXY headers, TLS, and names that are
//! looked up for each session.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::thread;

use support::PATIENCE;
use support::port::free_port;

use super::{connect, line_with, rest, sessions, start};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");

/// Sends back the first bytes of each connection, so many, and closes it.
fn mirror(count: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut bytes = vec![0; count];
            if client.read_exact(&mut bytes).is_ok() {
                let _ = client.write_all(&bytes);
            }
        }
    });
    port
}

/// What nginx writes of version 2 for TCP or UDP from 127.0.0.1 and this port to another.
fn v2(kind: u8, source: u16, destination: u16) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    header.extend_from_slice(&[kind, 0, 19, 127, 0, 0, 1, 127, 0, 0, 1]);
    header.extend_from_slice(&source.to_be_bytes());
    header.extend_from_slice(&destination.to_be_bytes());
    header.extend_from_slice(&[3, 0, 4, 0, 0, 0, 0]);
    let mut rest = u32::MAX;
    for byte in &header {
        rest ^= u32::from(*byte);
        for _ in 0..8 {
            rest = (rest >> 1) ^ (0x82f6_3b78 & (rest & 1).wrapping_neg());
        }
    }
    let at = header.len() - 4;
    header[at..].copy_from_slice(&(!rest).to_be_bytes());
    header
}

fn servers_are_told_who_the_client_is(engine: &'static str) {
    let [text, binary, udp] = [(); 3].map(|()| free_port());
    let line = "PROXY TCP4 127.0.0.1 127.0.0.1 ";
    let length = line.len() + format!("{text} {text}\r\n").len() + 5;
    let (of_text, of_binary) = (mirror(length), mirror(35 + 5));
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let of_udp = server.local_addr().unwrap().port();
    let master = start(
        engine,
        &format!(
            "proxy_protocol on;
             server {{ listen 127.0.0.1:{text}; proxy_pass 127.0.0.1:{of_text}; }}
             server {{ listen 127.0.0.1:{binary}; proxy_protocol v2;
                 proxy_pass 127.0.0.1:{of_binary}; }}
             server {{ listen 127.0.0.1:{udp} udp; proxy_protocol v2; proxy_responses 0;
                 proxy_requests 2; proxy_pass 127.0.0.1:{of_udp}; }}"
        ),
    );
    // The kernel gives clients ports of five digits.
    let mut client = connect(text);
    let port = client.local_addr().unwrap().port();
    client.write_all(b"hello").unwrap();
    let heard = String::from_utf8(rest(&mut client)).unwrap();
    assert_eq!(heard, format!("{line}{port} {text}\r\nhello"));
    let mut client = connect(binary);
    let port = client.local_addr().unwrap().port();
    client.write_all(b"hello").unwrap();
    assert_eq!(
        rest(&mut client),
        [&v2(0x11, port, binary)[..], b"hello"].concat()
    );
    let sent = length;
    assert_eq!(
        sessions(&master, 2),
        [
            format!("127.0.0.1 TCP 200 {sent} 5 127.0.0.1:{of_text} {sent} {sent}"),
            format!("127.0.0.1 TCP 200 40 5 127.0.0.1:{of_binary} 40 40"),
        ]
    );
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = client.local_addr().unwrap().port();
    let mut buffer = [0; 100];
    for round in 0..2 {
        client.send_to(b"one", ("127.0.0.1", udp)).unwrap();
        let count = server.recv(&mut buffer).unwrap();
        let expected = [&v2(0x12, port, udp)[..], b"one"].concat();
        assert_eq!(buffer[..count], expected, "session {round}");
        client.send_to(b"two", ("127.0.0.1", udp)).unwrap();
        let count = server.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"two", "session {round}");
    }
}

support::test_on_each_engine!(servers_are_told_who_the_client_is);

fn servers_are_spoken_to_by_tls(engine: &'static str) {
    let [behind, plain, sent, verified, refused, shown, offered] = [(); 7].map(|()| free_port());
    let master = start(
        engine,
        &format!(
            "ssl_certificate {FOLDER}/rsa.crt; ssl_certificate_key {FOLDER}/rsa.key;
             ssl_client_certificate {FOLDER}/ca.crt;
             server {{ listen 127.0.0.1:{behind} ssl; ssl_verify_client optional;
                 ssl_alpn mqtt redis;
                 return \"$ssl_server_name:$ssl_client_s_dn:$ssl_alpn_protocol\"; }}
             proxy_ssl on; proxy_ssl_session_reuse off; proxy_ssl_trusted_certificate {FOLDER}/rsa.crt;
             server {{ listen 127.0.0.1:{plain}; proxy_pass localhost:{behind}; }}
             server {{ listen 127.0.0.1:{sent}; proxy_pass 127.0.0.1:{behind};
                 proxy_ssl_server_name on; proxy_ssl_name some.name; }}
             server {{ listen 127.0.0.1:{verified}; proxy_pass 127.0.0.1:{behind};
                 proxy_ssl_verify on; proxy_ssl_name localhost; }}
             server {{ listen 127.0.0.1:{refused}; proxy_pass 127.0.0.1:{behind};
                 proxy_ssl_verify on; proxy_ssl_name other.name; }}
             server {{ listen 127.0.0.1:{shown}; proxy_pass 127.0.0.1:{behind};
                 proxy_ssl_certificate {FOLDER}/client.crt;
                 proxy_ssl_certificate_key {FOLDER}/client.key; }}
             server {{ listen 127.0.0.1:{offered}; proxy_pass 127.0.0.1:{behind};
                 proxy_ssl_alpn redis x; }}"
        ),
    );
    let heard = |port| String::from_utf8(rest(&mut connect(port))).unwrap();
    assert_eq!(heard(plain), "::");
    assert_eq!(heard(sent), "some.name::");
    assert_eq!(heard(verified), "::");
    assert_eq!(heard(shown), ":CN=anna,O=Tidegate tests,C=NL:");
    assert_eq!(heard(offered), "::redis");
    assert_eq!(heard(refused), "");
    assert_eq!(
        line_with(&master, "does not match"),
        format!(
            "upstream SSL certificate does not match \"other.name\" while SSL handshaking to \
             upstream, client: 127.0.0.1, server: 127.0.0.1:{refused}, \
             upstream: \"127.0.0.1:{behind}\", bytes from/to client:0/0, \
             bytes from/to upstream:0/0"
        )
    );
    let lines = sessions(&master, 12);
    let of_refused = format!("127.0.0.1 TCP 502 0 0 127.0.0.1:{behind} 0 0");
    assert!(lines.contains(&of_refused), "{lines:?}");
}

support::test_on_each_engine!(servers_are_spoken_to_by_tls);

/// Rates bound what passes in the first second to the byte.
fn a_rate_is_kept_to_the_byte_and_may_be_a_variable(engine: &'static str) {
    let upstream = super::echo();
    let [port, free] = [(); 2].map(|()| free_port());
    let master = start(
        engine,
        &format!(
            "map $server_port $rate {{ {free} 0; default 1000; }}
             server {{ listen 127.0.0.1:{port}; listen 127.0.0.1:{free};
                 proxy_download_rate $rate; proxy_pass 127.0.0.1:{upstream}; }}"
        ),
    );
    let text = vec![b'x'; 1500];
    let mut client = connect(free);
    super::say(&mut client, &text);
    drop(client);
    let mut client = connect(port);
    let began = std::time::Instant::now();
    client.write_all(&text).unwrap();
    let mut first = [0; 1000];
    client.read_exact(&mut first).unwrap();
    let mut others = [0; 500];
    client.read_exact(&mut others).unwrap();
    assert!(began.elapsed() >= std::time::Duration::from_millis(900));
    drop(client);
    sessions(&master, 2);
}

support::test_on_each_engine!(a_rate_is_kept_to_the_byte_and_may_be_a_variable);
