//! What upstreams are told of clients by the PROXY protocol, on both engines.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use proto::proxy_protocol::{self, Address};
use support::{PATIENCE, Server, origin};

/// An upstream that reads a header of the PROXY protocol from each connection, says what it has
/// read, and answers every request behind it.
struct Upstream {
    port: u16,
    /// What the beginning of each connection says, `none` where there is no header.
    told: Receiver<String>,
}

impl Upstream {
    fn start() -> Upstream {
        let (tell, told) = channel();
        let port = origin::listen(move |stream| {
            let _ = serve(stream, |text| drop(tell.send(text)));
        });
        Upstream { port, told }
    }

    fn told(&self) -> String {
        self.told.recv_timeout(PATIENCE).unwrap()
    }

    /// Whether another connection has been made.
    fn is_told_more(&self) -> bool {
        self.told.recv_timeout(Duration::from_millis(200)).is_ok()
    }
}

fn serve(mut stream: TcpStream, tell: impl Fn(String)) -> std::io::Result<()> {
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    let mut is_told = false;
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        received.extend_from_slice(&buffer[..count]);
        if !is_told && received.len() >= 4 {
            is_told = true;
            if received.starts_with(b"GET ") {
                tell("none".to_owned());
            } else {
                let header = proxy_protocol::parse(&received, 4096).unwrap().unwrap();
                let version = if received[0] == b'P' { "v1" } else { "v2" };
                let shown = |address: Address<'_>| match address {
                    Address::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
                    Address::Ip(ip) => ip.to_string(),
                };
                let ends = header.told.map(|told| {
                    let (from, to) = (told.source, told.destination);
                    let (from_port, to_port) = (from.port, to.port);
                    let (from, to) = (shown(from.address), shown(to.address));
                    format!("{from} {from_port} {to} {to_port}")
                });
                let length = header.length;
                tell(format!(
                    "{version} {}",
                    ends.as_deref().unwrap_or("unknown")
                ));
                received.drain(..length);
            }
        }
        while let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
            received.drain(..end + 4);
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
        }
    }
}

/// Asks over a connection that goes on, and reads the answer, which ends with `ok`.
fn ask<S: Read + Write>(client: &mut S, path: &str, field: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{field}\r\n");
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    answer
}

fn connect(server: &Server) -> (TcpStream, SocketAddr) {
    let client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = client.local_addr().unwrap();
    (client, address)
}

fn each_connection_begins_with_who_the_client_is(engine: &'static str) {
    let upstream = Upstream::start();
    let port = upstream.port;
    let server = Server::start(
        engine,
        &format!(
            "proxy_protocol v1; set_real_ip_from 127.0.0.1; real_ip_header X-Real-IP;
                 access_log logs/bytes.log bytes;
                 location /v1 {{ proxy_pass http://127.0.0.1:{port}; }}
                 location /v2 {{ proxy_protocol v2; proxy_pass http://127.0.0.1:{port}; }}
                 location /off {{ proxy_protocol off; proxy_pass http://127.0.0.1:{port}; }}
                 [http]\nlog_format bytes '$uri $upstream_bytes_sent';"
        ),
    );
    let own = server.port;
    for version in ["v1", "v2"] {
        let (mut client, address) = connect(&server);
        ask(&mut client, &format!("/{version}"), "");
        let from = format!("{version} 127.0.0.1 {} 127.0.0.1 {own}", address.port());
        assert_eq!(upstream.told(), from);
        let (mut client, _) = connect(&server);
        ask(
            &mut client,
            &format!("/{version}"),
            "X-Real-IP: 192.0.2.9\r\n",
        );
        assert_eq!(
            upstream.told(),
            format!("{version} 192.0.2.9 0 127.0.0.1 {own}")
        );
        let (mut client, _) = connect(&server);
        ask(
            &mut client,
            &format!("/{version}"),
            "X-Real-IP: 2001:db8::1\r\n",
        );
        assert_eq!(
            upstream.told(),
            format!("{version} 2001:db8::1 0 ::ffff:127.0.0.1 {own}")
        );
    }
    let (mut client, _) = connect(&server);
    ask(&mut client, "/off", "");
    assert_eq!(upstream.told(), "none");
    // The header is among what has been sent: 28 bytes of version 2 with IPv4.
    let request = format!("GET /v2 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    server.wait_for_line("bytes.log", &format!("/v2 {}\n", request.len() + 28));
    let request = request.replace("v2", "off");
    server.wait_for_line("bytes.log", &format!("/off {}\n", request.len()));
}

support::test_on_each_engine!(each_connection_begins_with_who_the_client_is);

fn a_kept_connection_is_for_requests_of_the_same_client(engine: &'static str) {
    let upstream = Upstream::start();
    let server = Server::start(
        engine,
        &format!(
            "location / {{ proxy_protocol v2; proxy_pass http://kept; }}
                 location /plain {{ proxy_pass http://kept; }}
                 [http]\nupstream kept {{ server 127.0.0.1:{}; keepalive 8; }}",
            upstream.port
        ),
    );
    let (mut one, address) = connect(&server);
    let told =
        |address: SocketAddr| format!("v2 127.0.0.1 {} 127.0.0.1 {}", address.port(), server.port);
    ask(&mut one, "/", "");
    assert_eq!(upstream.told(), told(address));
    ask(&mut one, "/again", "");
    assert!(!upstream.is_told_more(), "it has not been used again");
    let (mut other, address) = connect(&server);
    ask(&mut other, "/", "");
    assert_eq!(upstream.told(), told(address));
    // Nor for those that no header goes before.
    ask(&mut other, "/plain", "");
    assert_eq!(upstream.told(), "none");
    ask(&mut one, "/plain", "");
    assert!(!upstream.is_told_more(), "it has not been used again");
}

support::test_on_each_engine!(a_kept_connection_is_for_requests_of_the_same_client);

fn clients_of_unix_sockets_are_unknown(engine: &'static str) {
    let upstream = Upstream::start();
    let socket = std::env::temp_dir().join(format!(
        "tidegate-told-{}-{}",
        std::process::id(),
        upstream.port
    ));
    let _ = std::fs::remove_file(&socket);
    let server = Server::start(
        engine,
        &format!(
            "listen unix:{};
                 location /v1 {{ proxy_protocol v1; proxy_pass http://127.0.0.1:{1}; }}
                 location /v2 {{ proxy_protocol v2; proxy_pass http://127.0.0.1:{1}; }}",
            socket.display(),
            upstream.port
        ),
    );
    for version in ["v1", "v2"] {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        ask(&mut client, &format!("/{version}"), "");
        assert_eq!(upstream.told(), format!("{version} unknown"));
    }
    drop(server);
    let _ = std::fs::remove_file(&socket);
}

support::test_on_each_engine!(clients_of_unix_sockets_are_unknown);

/// Every peer that is tried hears it, and it goes before TLS: here the peers are servers of ours.
fn it_goes_before_tls_and_to_each_peer(engine: &'static str) {
    let dead = support::port::free_port();
    let (first, second) = (support::port::free_port(), support::port::free_port());
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");
    let server = Server::start(
        engine,
        &format!(
            "location /v1 {{ proxy_protocol v1; proxy_pass https://peers; }}
                 location /v2 {{ proxy_protocol v2; proxy_pass https://peers; }}
                 [http]
                 upstream peers {{ server 127.0.0.1:{dead}; server 127.0.0.1:{first}; keepalive 4; }}
                 server {{ listen 127.0.0.1:{first} ssl proxy_protocol; ssl_certificate {folder}/ecdsa.crt;
                     ssl_certificate_key {folder}/ecdsa.key; set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;
                     location / {{ proxy_protocol v2; proxy_next_upstream error timeout http_502; proxy_pass http://127.0.0.1:{second}; }} }}
                 server {{ listen 127.0.0.1:{second} proxy_protocol;
                     return 200 \"$proxy_protocol_addr:$proxy_protocol_port to $proxy_protocol_server_port ok\"; }}"
        ),
    );
    for path in ["/v1", "/v2"] {
        let (mut client, address) = connect(&server);
        // The one in the middle has it from the first, and tells it on.
        let expected = format!("127.0.0.1:{} to {first} ok", address.port());
        for _ in 0..3 {
            let answer = ask(&mut client, path, "");
            assert!(answer.ends_with(&expected), "{answer}, not {expected}");
        }
    }
}

support::test_on_each_engine!(it_goes_before_tls_and_to_each_peer);
