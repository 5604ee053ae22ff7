//! Clients that mean harm, or are broken, before and after the handshake: others are served
//! meanwhile, what is held for them is bounded, and `client_header_timeout` ends those that do not
//! come to the point.
//!
//! How much others wait is measured by benches/tls_floods, not here.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use support::port::free_port;
use support::tls::Client;
use support::{PATIENCE, Server};

/// Clients of each kind.
const CLIENTS: usize = 100;

/// More than a connection in the middle of a handshake may cost, in KiB: a ClientHello, what rustls
/// keeps of it, and its messages in the queue.
const COST_MAX: u64 = 128;

fn start(engine: &str, lines: &str) -> (Server, u16) {
    let port = free_port();
    let file = |name: &str| format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"));
    let (chain, key) = (file("ecdsa.crt"), file("ecdsa.key"));
    let block = format!(
        "[http]\nserver {{ listen 127.0.0.1:{port} ssl; server_name localhost; ssl_certificate {chain}; \
         ssl_certificate_key {key}; error_log logs/tls.log info; {lines}\nlocation / {{ return 200 served; }} }}\n"
    );
    (Server::start(engine, &block), port)
}

/// What a client of TLS 1.2 and 1.3 says first, in one record.
fn hello() -> Vec<u8> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let mut tls = rustls::ClientConnection::new(config.into(), name).unwrap();
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    hello
}

fn open(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Whether the server ends the connection, whatever it says before.
fn is_ended(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

fn is_served(port: u16) {
    let response = Client::new().connect(port).unwrap().get("/").unwrap();
    assert_eq!(response.body, b"served");
}

/// Memory of the server's own that is in use, in KiB.
fn memory(server: &Server) -> u64 {
    let of_process = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    server.workers().into_iter().map(of_process).sum()
}

fn slow_handshakes_end_with_client_header_timeout(engine: &'static str) {
    let (server, port) = start(engine, "client_header_timeout 2s;");
    let hello = hello();
    let mut slow: Vec<TcpStream> = (0..CLIENTS).map(|_| open(port)).collect();
    // A byte at a time; the server may tire of them meanwhile, as it should.
    for byte in hello.iter().take(40) {
        for stream in &mut slow {
            let _ = stream.write_all(&[*byte]);
        }
    }
    is_served(port);
    for stream in &mut slow {
        assert!(is_ended(stream));
    }
    // Nor does a whole hello without anything after it.
    let mut silent = open(port);
    silent.write_all(&hello).unwrap();
    assert!(is_ended(&mut silent));
    support::tls::until("the lines in the log", || {
        let log = std::fs::read_to_string(server.prefix.join("logs/tls.log")).unwrap();
        log.matches("client timed out").count() > CLIENTS
    });
}

support::test_on_each_engine!(slow_handshakes_end_with_client_header_timeout);

/// Bytes that no client of good will sends, and whether the server ends the connection because of
/// them.
fn harmful() -> Vec<(&'static str, Vec<u8>, bool)> {
    let hello = hello();
    let warning = [21, 3, 3, 0, 2, 1, 90];
    let record = |kind: u8, length: u16, content: &[u8]| {
        [&[kind, 3, 3], &length.to_be_bytes()[..], content].concat()
    };
    let mut long_hello = hello.clone();
    // The message says that it has 16 MB.
    long_hello[6..9].copy_from_slice(&[0xff; 3]);
    vec![
        ("half a record", record(22, 4096, &[1; 100]), false),
        ("half a hello", hello[..hello.len() / 2].to_vec(), false),
        (
            "a record that is too long",
            record(22, 0x5000, &[1; 0x5000]),
            true,
        ),
        (
            "the same after a hello",
            [&hello[..], &record(23, 0x5000, &[1; 0x5000])].concat(),
            true,
        ),
        ("a hello that is too long", long_hello, true),
        ("warnings before a hello", warning.repeat(5000), true),
        (
            "warnings after a hello",
            [&hello[..], &warning.repeat(5000)].concat(),
            true,
        ),
        ("empty records", record(22, 0, &[]).repeat(5000), true),
        (
            "empty records after a hello",
            [&hello[..], &record(22, 0, &[]).repeat(5000)].concat(),
            true,
        ),
        (
            "change_cipher_spec again and again",
            [&hello[..], &record(20, 1, &[1]).repeat(5000)].concat(),
            true,
        ),
        ("hellos again and again", hello.repeat(50), true),
        ("an unknown record", record(77, 5, &[0; 5]), false),
    ]
}

fn broken_records_end_their_own_connection(engine: &'static str) {
    let (server, port) = start(engine, "client_header_timeout 1h;");
    is_served(port);
    for (what, bytes, ends) in harmful() {
        let before = memory(&server);
        let mut streams: Vec<TcpStream> = (0..CLIENTS).map(|_| open(port)).collect();
        for stream in &mut streams {
            // The server may have ended the connection before all of it was sent.
            let _ = stream.write_all(&bytes);
        }
        is_served(port);
        if ends {
            for stream in &mut streams {
                assert!(is_ended(stream), "{engine} {what}");
            }
        }
        let grown = memory(&server).saturating_sub(before);
        let most = COST_MAX * CLIENTS as u64;
        assert!(
            grown < most,
            "{engine} {what}: {grown} KiB for {CLIENTS} clients"
        );
        drop(streams);
    }
    is_served(port);
}

support::test_on_each_engine!(broken_records_end_their_own_connection);

/// What can never become a ClientHello is answered with OpenSSL's alert and a line at nginx's
/// level; none of it ends in a panic.
fn what_is_no_hello_gets_an_alert_and_a_line(engine: &'static str) {
    const LINE: &str = "SSL_do_handshake() failed";
    let record = |kind: u8, content: &[u8]| {
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[kind, 3, 1], &length[..], content].concat()
    };
    let half = record(22, &[1, 0, 0, 0x60, 3, 3, 0, 0, 0]);
    let behind = |kind: u8, content: &[u8]| [&half[..], &record(kind, content)].concat();
    let too_long = [&[1, 0xff, 0xff, 0xff][..], &[0; 16_380]].concat();
    // RFC 8446 section 6: unexpected_message, record_overflow, illegal_parameter, decode_error.
    let cases = [
        ("a message that is too long", record(22, &too_long), 47),
        ("another message", record(22, &[2, 0, 0, 1, 0]), 10),
        ("a record that is too long", record(22, &[1; 16_385]), 22),
        ("an alert between", behind(21, &[1, 90]), 10),
        ("change_cipher_spec between", behind(20, &[1]), 10),
        ("data between", behind(23, &[1, 2]), 10),
        ("a longer one between", behind(22, &[1; 16_385]), 22),
        (
            "zeroes",
            record(22, &[&[1, 0, 0, 64][..], &[0; 64]].concat()),
            50,
        ),
        ("nothing", record(22, &[1, 0, 0, 0]), 50),
        ("more than it", record(22, &[1, 0, 0, 0, 1]), 50),
    ];
    let (server, port) = start(engine, "");
    is_served(port);
    let log = server.prefix.join("logs/tls.log");
    let log = || std::fs::read_to_string(&log).unwrap();
    let before = log().matches(LINE).count();
    for (at, (what, bytes, alert)) in cases.iter().enumerate() {
        let mut stream = open(port);
        stream.write_all(bytes).unwrap();
        // The connection may be reset behind the alert, where not all that was sent has been
        // read.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(
            matches!(answer[..], [21, 3, _, 0, 2, 2, sent] if sent == *alert),
            "{engine} {what}: {answer:?}"
        );
        support::tls::until("the line in the log", || {
            log().matches(LINE).count() > before + at
        });
    }
    let log = log();
    assert_eq!(log.matches(LINE).count(), before + cases.len());
    assert!(!log.contains("panicked"), "{log}");
    for line in log.lines().filter(|line| line.contains(LINE)) {
        assert!(line.contains("[info]"), "{line}");
        let client = format!("while SSL handshaking, client: 127.0.0.1, server: 127.0.0.1:{port}");
        assert!(line.ends_with(&client), "{line}");
    }
    is_served(port);
}

support::test_on_each_engine!(what_is_no_hello_gets_an_alert_and_a_line);

/// An answer to a ClientHello costs a signature. What is broken anyway gets none.
fn what_cannot_follow_a_hello_is_refused_without_an_answer(engine: &'static str) {
    let hello = hello();
    let (server, port) = start(engine, "");
    // RFC 8446 section 6: unexpected_message, record_overflow.
    let cases = [
        (&[21, 3, 3, 0, 2, 1, 90][..], 10, "record of type 21"),
        (&[22, 3, 3, 0, 0], 10, "record of type 22"),
        (&[23, 3, 3, 0x50, 0], 22, "record too long"),
    ];
    for (following, alert, line) in cases {
        let mut stream = open(port);
        stream.write_all(&[&hello[..], following].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, [21, 3, 3, 0, 2, 2, alert], "{engine}");
        support::tls::until("the line in the log", || {
            let log = std::fs::read_to_string(server.prefix.join("logs/tls.log")).unwrap();
            log.contains(&format!(
                "{line} behind the ClientHello) while SSL handshaking"
            ))
        });
    }
    is_served(port);
}

support::test_on_each_engine!(what_cannot_follow_a_hello_is_refused_without_an_answer);

fn renegotiation_is_refused(engine: &'static str) {
    let (_server, port) = start(engine, "");
    let address = format!("127.0.0.1:{port}");
    let clients: Vec<_> = (0..10)
        .map(|_| {
            let mut child = Command::new("openssl")
                .args(["s_client", "-connect", &address, "-tls1_2"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            // It renegotiates where a line says R.
            let _ = child.stdin.as_mut().unwrap().write_all(&b"R\n".repeat(20));
            child
        })
        .collect();
    is_served(port);
    for child in clients {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("no renegotiation"), "{said}");
    }
    is_served(port);
}

support::test_on_each_engine!(renegotiation_is_refused);

fn a_client_that_reads_nothing_is_not_sent_much(engine: &'static str) {
    let (server, port) = start(engine, "root www; location = /big {}");
    let big = std::fs::File::create(server.prefix.join("www/big")).unwrap();
    big.set_len(200 << 20).unwrap();
    is_served(port);
    let before = memory(&server);
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let mut connection = Client::new().connect(port).unwrap();
        connection.ask("/big");
        waiting.push(connection);
    }
    for _ in 0..20 {
        is_served(port);
    }
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 20 * 1024, "{engine}: {grown} KiB for 20 clients");
}

support::test_on_each_engine!(a_client_that_reads_nothing_is_not_sent_much);
