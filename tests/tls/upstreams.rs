//! `proxy_ssl_*`, `uwsgi_ssl_*` and `grpc_ssl_*`: what an upstream sees of the connections that
//! come to it. The lines here are those of a proxy; with uwsgi and gRPC they are the same but for
//! the prefix. Expected: nginx's documentation,
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html>. Verification is shown by
//! tests/parity/cases/proxy_ssl.parity.
//!
//! The upstream is rustls's; certificates and keys lie in tests/tls/upstream, made by openssl for a
//! hundred years. TIDEGATE_BINARY puts nginx in the place of Tidegate, to check the tests
//! themselves.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{HandshakeKind, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use support::{Server, is_nginx, origin};

fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tls/upstream");
    folder.join(name)
}

/// What an upstream shows, and wants of clients.
fn upstream_config() -> Arc<ServerConfig> {
    let certificates = |name: &str| -> Vec<CertificateDer<'static>> {
        let all = CertificateDer::pem_file_iter(file(name)).unwrap();
        all.map(Result::unwrap).collect()
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates("ca.crt"));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let clients = clients.allow_unauthenticated().build().unwrap();
    let key = PrivateKeyDer::from_pem_file(file("good.example.key")).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(certificates("good.example.crt"), key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// An upstream that answers every request with a line about its TLS, and then closes. Ends with the
/// test's process.
fn upstream() -> u16 {
    let config = upstream_config();
    // A connection that does not come to an answer shows in the test that made it.
    origin::listen(move |stream| drop(answer(stream, Arc::clone(&config))))
}

fn answer(stream: TcpStream, config: Arc<ServerConfig>) -> std::io::Result<()> {
    let connection = ServerConnection::new(config).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    let length = stream.read(&mut buffer)?;
    if stream.conn.alpn_protocol() == Some(b"h2") {
        return answer_by_http2(stream, buffer[..length].to_vec());
    }
    request.extend_from_slice(&buffer[..length]);
    // A packet of uwsgi has an end like that of a head: see `SPOKEN`.
    let (head, body) = loop {
        if let Some(at) = request.windows(4).position(|end| end == b"\r\n\r\n") {
            break (at, request.len() - at - 4);
        }
        let length = stream.read(&mut buffer)?;
        request.extend_from_slice(&buffer[..length]);
    };
    let head = String::from_utf8_lossy(&request[..head]).to_lowercase();
    let announced = head.split("content-length: ").nth(1);
    let announced = announced.and_then(|rest| rest.lines().next());
    let announced: usize = announced.map_or(0, |length| length.trim().parse().unwrap_or(0));
    let mut left = announced - body;
    while left > 0 {
        left -= stream.read(&mut buffer)?;
    }
    let line = line_about(&stream.conn, announced);
    let length = line.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{line}"
    )?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// What there is to say of a connection, and of the length of a body.
fn line_about(tls: &ServerConnection, body: usize) -> String {
    format!(
        "{:?} {:?} name={} {} certificates={} body={body}\n",
        tls.protocol_version().unwrap(),
        tls.negotiated_cipher_suite().unwrap().suite(),
        tls.server_name().unwrap_or("-"),
        match tls.handshake_kind() {
            Some(HandshakeKind::Resumed) => "resumed",
            _ => "full",
        },
        tls.peer_certificates().map_or(0, <[_]>::len),
    )
}

/// The same for a request of HTTP/2 on the first stream of its connection, of which this much has
/// come. Whatever its length, its body needs no more credit.
fn answer_by_http2(
    mut stream: StreamOwned<ServerConnection, TcpStream>,
    mut input: Vec<u8>,
) -> std::io::Result<()> {
    const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
    // A window of 2^31 - 1 bytes for each stream, and as much for the connection.
    stream.write_all(
        b"\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0",
    )?;
    stream.flush()?;
    let (mut at, mut body, mut buffer) = (PREFACE, 0, [0; 4096]);
    loop {
        while input.len() < at + 9
            || input.len() < at + 9 + usize::from(input[at + 1]) * 256 + usize::from(input[at + 2])
        {
            let length = stream.read(&mut buffer)?;
            if length == 0 {
                return Ok(());
            }
            input.extend_from_slice(&buffer[..length]);
        }
        let length = usize::from(input[at + 1]) * 256 + usize::from(input[at + 2]);
        let (kind, flags) = (input[at + 3], input[at + 4]);
        at += 9 + length;
        if kind == 0 {
            body += length;
        }
        if kind <= 1 && flags & 1 == 1 {
            break;
        }
    }
    let line = line_about(&stream.conn, body);
    let digits = line.len().to_string();
    // 200, and its length: the static table's names 8 and 28.
    let mut answer = vec![0, 0, 4 + digits.len() as u8, 1, 4, 0, 0, 0, 1];
    answer.extend_from_slice(&[0x88, 0x0f, 0x0d, digits.len() as u8]);
    answer.extend_from_slice(digits.as_bytes());
    answer.extend_from_slice(&[0, 0, line.len() as u8, 0, 1, 0, 0, 0, 1]);
    answer.extend_from_slice(line.as_bytes());
    stream.write_all(&answer)?;
    stream.flush()?;
    // The other end says when it is done.
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}

/// How upstreams are spoken to: the prefix of the directives, and the lines that say where requests
/// go. The packets of uwsgi end here as heads of HTTP do, and name the length of the body in the
/// same way, so that one upstream does for both.
const SPOKEN: [(&str, &str); 3] = [
    (
        "proxy_",
        "proxy_pass https://127.0.0.1:PORT; proxy_http_version 1.1;",
    ),
    (
        "uwsgi_",
        "uwsgi_pass suwsgi://127.0.0.1:PORT; uwsgi_param LENGTH 'content-length: $content_length\n'; uwsgi_string '\r\n\r\n';",
    ),
    ("grpc_", "grpc_pass grpcs://127.0.0.1:PORT;"),
];

/// Runs a test with each of them; it gets what makes a server that passes requests on, with these
/// lines in its location.
fn each(test: impl Fn(&dyn Fn(u16, &str) -> Server)) {
    for (prefix, destination) in SPOKEN {
        test(&|port, lines| {
            let destination = destination.replace("PORT", &port.to_string());
            let lines = lines.replace("proxy_", prefix);
            Server::start("", &format!("location / {{ {destination} {lines} }}"))
        });
    }
}

fn asked(server: &Server, path: &str) -> String {
    let response = server.connect().get(path).unwrap();
    assert_eq!(response.status, 200, "{}", server.error_log());
    String::from_utf8(response.body).unwrap()
}

/// Waits for a line of a log. Lines leave when the turn of the loop ends, which no answer waits
/// for.
fn appears(line: &str, log: impl Fn() -> String) {
    let begun = std::time::Instant::now();
    while !log().contains(line) {
        assert!(begun.elapsed() < support::PATIENCE, "{}", log());
        std::thread::yield_now();
    }
}

#[test]
fn sessions_are_resumed() {
    each(|proxy| {
        let port = upstream();
        let server = proxy(port, "");
        assert!(asked(&server, "/").contains(" name=- full certificates=0 body=0"));
        assert!(asked(&server, "/").contains(" resumed "));
        let server = proxy(port, "proxy_ssl_session_reuse off;");
        for _ in 0..3 {
            assert!(asked(&server, "/").contains(" full "));
        }
    });
}

#[test]
fn versions_and_ciphers() {
    each(|proxy| {
        let port = upstream();
        let server = proxy(port, "proxy_ssl_session_reuse off;");
        assert!(asked(&server, "/").starts_with("TLSv1_3 "));
        for (cipher, name) in [
            (
                "ECDHE-ECDSA-AES128-GCM-SHA256",
                "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            ),
            (
                "ECDHE-ECDSA-CHACHA20-POLY1305",
                "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            ),
        ] {
            let lines = format!("proxy_ssl_protocols TLSv1.2; proxy_ssl_ciphers {cipher};");
            let seen = asked(&proxy(port, &lines), "/");
            assert!(seen.starts_with(&format!("TLSv1_2 {name} ")), "{seen}");
        }
    });
}

#[test]
fn names_are_sent() {
    each(|proxy| {
        let port = upstream();
        for (lines, name) in [
            ("proxy_ssl_name a.example;", "-"),
            ("proxy_ssl_server_name on;", "-"), // it is an address
            (
                "proxy_ssl_server_name on; proxy_ssl_name a.example:8443;",
                "a.example",
            ),
            (
                "proxy_ssl_server_name on; proxy_ssl_name $arg_name;",
                "b.example",
            ),
        ] {
            let seen = asked(&proxy(port, lines), "/?name=b.example");
            assert!(seen.contains(&format!(" name={name} ")), "{lines} {seen}");
        }
    });
}

#[test]
fn certificates_are_shown() {
    each(|proxy| {
        let port = upstream();
        let path = |name: &str| file(name).display().to_string();
        let (certificate, key) = (path("client.crt"), path("client.key"));
        let fixed =
            format!("proxy_ssl_certificate {certificate}; proxy_ssl_certificate_key {key};");
        let encrypted = format!(
            "proxy_ssl_certificate {certificate}; proxy_ssl_certificate_key {}; proxy_ssl_password_file {};",
            path("clientenc.key"),
            path("passwords"),
        );
        for lines in [fixed, encrypted] {
            let seen = asked(&proxy(port, &lines), "/");
            assert!(seen.contains(" certificates=1 "), "{seen}");
        }
        let none = asked(&proxy(port, "proxy_ssl_certificate \"\";"), "/");
        assert!(none.contains(" certificates=0 "), "{none}");
    });
}

/// The files must be readable for workers, who are somebody else.
#[test]
fn certificates_by_variables() {
    each(|proxy| {
        let port = upstream();
        for cache in ["off", "max=2 valid=1m inactive=1m"] {
            let server = proxy(
                port,
                &format!(
                    "proxy_ssl_certificate_cache {cache}; proxy_ssl_session_reuse off; \
                 proxy_ssl_certificate $document_root/$arg_name.crt; \
                 proxy_ssl_certificate_key $document_root/$arg_name.key;"
                ),
            );
            for name in ["client.crt", "client.key"] {
                server.write(name, &std::fs::read(file(name)).unwrap());
            }
            for _ in 0..2 {
                let seen = asked(&server, "/?name=client");
                assert!(seen.contains(" certificates=1 "), "{seen}");
            }
            assert_eq!(server.connect().get("/?name=other").unwrap().status, 500);
            appears("cannot load certificate \"", || server.error_log());
            // What is kept is used without its file.
            std::fs::remove_file(server.prefix.join("www/client.key")).unwrap();
            let status = server.connect().get("/?name=client").unwrap().status;
            assert_eq!(status, if cache == "off" { 500 } else { 200 });
        }
    });
}

#[test]
fn bodies_out_of_files() {
    each(|proxy| {
        let server = proxy(
            upstream(),
            "client_body_buffer_size 1k; client_max_body_size 2m;",
        );
        let mut connection = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        connection
            .set_read_timeout(Some(support::PATIENCE))
            .unwrap();
        let body = vec![b'x'; 1_000_000];
        let head = "POST / HTTP/1.0\r\nContent-Length: 1000000\r\n\r\n";
        connection.write_all(head.as_bytes()).unwrap();
        connection.write_all(&body).unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        assert!(response.contains(" body=1000000\n"), "{response}");
    });
}

/// nginx has it with a commercial subscription only.
#[test]
fn secrets_are_logged() {
    each(|proxy| {
        if is_nginx() {
            return;
        }
        let port = upstream();
        let server = proxy(
            port,
            "proxy_ssl_key_log logs/keys; proxy_ssl_conf_command Options Bugs;",
        );
        asked(&server, "/");
        let keys = || std::fs::read_to_string(server.prefix.join("logs/keys")).unwrap_or_default();
        appears("CLIENT_TRAFFIC_SECRET_0 ", keys);
        let found = std::fs::metadata(server.prefix.join("logs/keys")).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
    });
}

/// As nginx, which shuts TLS down before it closes a connection.
fn the_end_of_a_connection_is_announced(engine: &'static str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let upstream = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let connection = ServerConnection::new(upstream_config()).unwrap();
        let mut stream = StreamOwned::new(connection, stream);
        let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
        while !request.ends_with(b"\r\n\r\n") {
            let length = stream.read(&mut buffer).unwrap();
            request.extend_from_slice(&buffer[..length]);
        }
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        stream.write_all(response).unwrap();
        stream.flush().unwrap();
        // An end that nothing announces would be an error.
        stream.read(&mut buffer).map_err(|error| error.to_string())
    });
    let lines = format!("location / {{ proxy_pass https://127.0.0.1:{port}; }}");
    let server = Server::start(engine, &lines);
    assert_eq!(asked(&server, "/"), "ok");
    assert_eq!(upstream.join().unwrap(), Ok(0));
}

support::test_on_each_engine!(the_end_of_a_connection_is_announced);

/// An upstream that answers one request after the other over a connection, with the number of that.
fn keeping() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = upstream_config();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let config = Arc::clone(&config);
            std::thread::spawn(move || {
                let connection = ServerConnection::new(config).unwrap();
                let mut stream = StreamOwned::new(connection, stream);
                let (mut request, mut byte) = (Vec::new(), [0]);
                while matches!(stream.read(&mut byte), Ok(1)) {
                    request.push(byte[0]);
                    if request.ends_with(b"\r\n\r\n") {
                        request.clear();
                        let _ = write!(
                            stream,
                            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}"
                        );
                    }
                }
            });
        }
    });
    port
}

/// nginx's workers begin anew.
#[test]
fn connections_outlive_a_reload_that_changes_nothing_of_theirs() {
    if is_nginx() {
        return;
    }
    let port = keeping();
    let server = Server::start("", "");
    let trusted = server.prefix.join("trusted");
    let authority = std::fs::read(file("ca.crt")).unwrap();
    std::fs::write(&trusted, &authority).unwrap();
    let lines = |beside: &str| {
        let trusted = trusted.display();
        format!(
            "location / {{
                proxy_pass https://kept; proxy_ssl_verify on; proxy_ssl_name good.example;
                proxy_ssl_trusted_certificate {trusted}; {beside}
            }}
[http]
upstream kept {{ server 127.0.0.1:{port}; keepalive 8; }}"
        )
    };
    let reload = |lines: &str| {
        let loaded = server.error_log().matches("exited with code").count();
        server.reload(lines);
        support::master::wait_for("the reload", || {
            server.error_log().matches("exited with code").count() > loaded
        });
    };
    reload(&lines(""));
    assert_eq!(asked(&server, "/"), "0");
    reload(&lines(""));
    assert_eq!(asked(&server, "/"), "0");
    // Whatever decides whom the connection trusts makes it another.
    let other = std::fs::read(file("good.example.crt")).unwrap();
    std::fs::write(&trusted, [authority, other].concat()).unwrap();
    reload(&lines(""));
    assert_eq!(asked(&server, "/"), "1");
    assert_eq!(asked(&server, "/"), "1");
    reload(&lines("proxy_ssl_verify_depth 3;"));
    assert_eq!(asked(&server, "/"), "2");
    let shown = "proxy_ssl_certificate";
    let shown = format!(
        "{shown} {}; {shown}_key {};",
        file("client.crt").display(),
        file("client.key").display()
    );
    reload(&lines(&shown));
    assert_eq!(asked(&server, "/"), "3");
    reload(&lines(&shown));
    assert_eq!(asked(&server, "/"), "3");
}
