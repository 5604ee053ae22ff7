//! TLS towards clients: handshakes, the choice of certificate and server, what `ssl_*` changes.
//! Expected: nginx's documentation, <https://nginx.org/en/docs/http/ngx_http_ssl_module.html>.
//!
//! The client is rustls's; certificates and keys lie in tests/tls, made by openssl for a hundred
//! years. TIDEGATE_BINARY puts nginx in the place of Tidegate, to check the tests themselves.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::Server;
use support::http2;
use support::tls::Client;

/// A port that nobody uses now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A file of tests/tls.
fn file(name: &str) -> String {
    format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The two lines for a certificate.
fn certificate(name: &str) -> String {
    format!(
        "ssl_certificate {};\nssl_certificate_key {};\n",
        file(&format!("{name}.crt")),
        file(&format!("{name}.key"))
    )
}

/// A server of its own on a port for TLS.
fn tls_server(port: u16, options: &str, lines: &str) -> String {
    format!("server {{ listen 127.0.0.1:{port} ssl {options};\n{lines}\n}}\n")
}

thread_local! {
    /// What the servers of a test run on: a line of `events`.
    static ENGINE: Cell<&'static str> = const { Cell::new("") };
}

/// Makes each of these a test on either engine.
macro_rules! on_both_engines {
    ($($test:ident),* $(,)?) => {
        mod on_epoll {
            $(#[test]
            fn $test() {
                super::ENGINE.set("use epoll;");
                super::$test();
            })*
        }

        mod on_io_uring {
            $(#[test]
            fn $test() {
                if support::engines::with_io_uring() {
                    super::ENGINE.set("use io_uring;");
                    super::$test();
                }
            })*
        }
    };
}

on_both_engines!(
    requests_over_both_versions,
    finished_responses_leave_before_anything_is_awaited,
    large_files_and_large_bodies,
    a_plain_request_gets_an_error_page,
    the_name_chooses_server_and_certificate,
    a_client_gets_the_certificate_that_it_can_check,
    encrypted_keys,
    versions_ciphers_and_curves,
    whose_order_of_ciphers_decides,
    refused_handshakes,
    a_refusal_leaves_whole,
    records_are_no_longer_than_asked_for,
    a_reload_changes_the_certificate_and_keeps_connections,
    a_reload_judges_the_clients_of_kept_connections,
    a_reload_adds_the_server_that_a_kept_connection_has_named,
    a_reload_judges_clients_where_no_certificate_is_asked_for,
    a_client_of_http2_that_a_reload_refuses_is_sent_away,
    streams_share_a_look_at_the_certificate,
    what_was_agreed_upon,
    what_the_client_offers,
    sessions_go_on,
    sessions_outlive_a_reload,
    tickets_with_a_key_of_a_file,
    certificates_of_clients,
    chains_and_revoked_certificates,
    early_data,
    a_response_about_the_certificate,
    what_has_no_effect_is_taken,
    certificates_named_with_variables,
    certificates_as_data,
    certificates_sent_compressed,
    sessions_have_numbers,
    secrets_of_clients_are_logged,
    what_a_reload_need_not_read,
    a_server_without_a_certificate_asks_for_one,
);

/// Starts a server with these blocks beside its plain one.
fn start(blocks: &str) -> Server {
    Server::start(ENGINE.get(), &format!("[http]\n{blocks}"))
}

/// Starts a server with one TLS port, and gives the port.
fn start_one(lines: &str) -> (Server, u16) {
    let port = free_port();
    let lines = format!("{}{lines}", certificate("ecdsa"));
    (start(&tls_server(port, "", &lines)), port)
}

const SHOW: &str = "location / { return 200 \"$scheme $https $server_name\\n\"; }";

fn requests_over_both_versions() {
    let (_server, port) = start_one(&format!("server_name localhost; {SHOW}"));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut connection = Client::new().version(version).connect(port).unwrap();
        for _ in 0..3 {
            let response = connection.get("/").unwrap();
            assert_eq!(response.body, b"https on localhost\n");
        }
        assert_eq!(connection.protocol(), Some(b"http/1.1".to_vec()));
    }
}

/// What stands behind a request must not hold back its response: neither an empty line, nor half a
/// request, nor one that an upstream does not answer before the response has been read.
fn finished_responses_leave_before_anything_is_awaited() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let (_server, port) = start_one(&format!(
        "server_name localhost; {SHOW} location = /held {{ proxy_pass http://{address}; }}"
    ));
    let request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for held in ["\r\n", "\r\n\n\r\nG"] {
            let mut connection = Client::new().version(version).connect(port).unwrap();
            connection.send(format!("{request}{held}").as_bytes());
            let response = connection.receive().unwrap();
            assert_eq!(response.body, b"https on localhost\n");
        }
        let mut connection = Client::new().version(version).connect(port).unwrap();
        assert_eq!(connection.get("/").unwrap().status, 200);
        let before = connection.records();
        let held = "GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n";
        connection.send(format!("{request}{request}{request}{held}").as_bytes());
        for _ in 0..3 {
            let response = connection.receive().unwrap();
            assert_eq!(response.body, b"https on localhost\n");
        }
        // Those of a batch leave together.
        assert_eq!(connection.records() - before, 1);
        let (mut asked, _) = upstream.accept().unwrap();
        asked
            .write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nheld")
            .unwrap();
        assert_eq!(connection.receive().unwrap().body, b"held");
    }
}

fn large_files_and_large_bodies() {
    let (server, port) = start_one(
        "root html; location /up { client_max_body_size 10m; proxy_pass http://127.0.0.1:1; error_page 502 =200 /big; }",
    );
    let _ = std::fs::create_dir_all(server.prefix.join("html"));
    let big: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(server.prefix.join("html/big"), &big).unwrap();
    let mut connection = Client::new().connect(port).unwrap();
    assert_eq!(connection.get("/big").unwrap().body, big);
    let body = vec![b'x'; 1_000_000];
    let response = connection.post("/up", &body).unwrap();
    assert_eq!(response.body, big);
    assert_eq!(connection.get("/missing").unwrap().status, 404);
}

fn a_plain_request_gets_an_error_page() {
    let (server, port) = start_one("error_log logs/tls.log info;");
    let mut connection = support::Connection::open(port).unwrap();
    let response = connection.get("/").unwrap();
    assert_eq!(response.status, 400);
    let body = String::from_utf8(response.body.clone()).unwrap();
    assert!(body.contains("The plain HTTP request was sent to HTTPS port"));
    assert!(response.closes());
    support::tls::until("the line in the log", || {
        let log = std::fs::read_to_string(server.prefix.join("logs/tls.log")).unwrap();
        log.contains("client sent plain HTTP request to HTTPS port")
    });
}

fn the_name_chooses_server_and_certificate() {
    let port = free_port();
    let first = format!("server_name first; {SHOW}{}", certificate("ecdsa"));
    let second = format!("server_name *.second; {SHOW}{}", certificate("rsa"));
    let _server = start(&(tls_server(port, "", &first) + &tls_server(port, "", &second)));
    for (name, shown, certificate) in [
        ("first", "first", "ecdsa"),
        ("x.second", "second", "rsa"),
        ("unknown", "first", "ecdsa"),
    ] {
        let mut connection = Client::new().name(name).connect(port).unwrap();
        let response = connection.get_from(name, "/").unwrap();
        let shown = format!(
            "https on {}{shown}\n",
            if name == "x.second" { "*." } else { "" }
        );
        assert_eq!(String::from_utf8_lossy(&response.body), shown);
        assert_eq!(
            connection.certificate(),
            support::tls::certificate(&file(&format!("{certificate}.crt")))
        );
    }
}

fn a_client_gets_the_certificate_that_it_can_check() {
    let (_server, port) = start_one(&certificate("rsa"));
    let shown = |client: Client| client.connect(port).unwrap().certificate();
    let of = |name: &str| support::tls::certificate(&file(name));
    assert_eq!(shown(Client::new()), of("ecdsa.crt"));
    assert_eq!(shown(Client::new().rsa_only()), of("rsa.crt"));
}

fn encrypted_keys() {
    let port = free_port();
    let lines = format!(
        "ssl_certificate {}; ssl_certificate_key {}; ssl_password_file {}; {SHOW}",
        file("ecdsa.crt"),
        file("encrypted.key"),
        file("passwords")
    );
    let _server = start(&tls_server(port, "", &lines));
    assert_eq!(
        Client::new()
            .connect(port)
            .unwrap()
            .get("/")
            .unwrap()
            .status,
        200
    );
}

fn versions_ciphers_and_curves() {
    let port = free_port();
    let server = |port, lines: &str| tls_server(port, "", &(certificate("ecdsa") + lines));
    let (other, curved) = (free_port(), free_port());
    let _server = start(
        &(server(
            port,
            "ssl_protocols TLSv1.2; ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305; ssl_prefer_server_ciphers on;",
        ) + &server(other, "ssl_protocols TLSv1.3;")
            + &server(curved, "ssl_ecdh_curve secp384r1:X25519;")),
    );
    let connection = Client::new().connect(port).unwrap();
    let suite = |connection: &support::tls::Connection| connection.suite();
    assert_eq!(
        suite(&connection),
        rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
    );
    assert!(
        Client::new()
            .version(&rustls::version::TLS13)
            .connect(port)
            .is_err()
    );
    assert!(
        Client::new()
            .version(&rustls::version::TLS12)
            .connect(other)
            .is_err()
    );
    let connection = Client::new().connect(other).unwrap();
    assert_eq!(connection.group(), rustls::NamedGroup::X25519MLKEM768);
    let connection = Client::new().connect(curved).unwrap();
    assert_ne!(connection.group(), rustls::NamedGroup::X25519MLKEM768);
}

/// Ours where nothing is said, but for clients that want ChaCha20 first.
fn whose_order_of_ciphers_decides() {
    use rustls::crypto::aws_lc_rs::cipher_suite::{
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 as OLD_AES_128,
        TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 as OLD_AES_256,
        TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 as OLD_CHACHA20,
        TLS13_AES_128_GCM_SHA256 as AES_128, TLS13_AES_256_GCM_SHA384 as AES_256,
        TLS13_CHACHA20_POLY1305_SHA256 as CHACHA20,
    };
    let reversed = [
        AES_128,
        CHACHA20,
        AES_256,
        OLD_AES_128,
        OLD_CHACHA20,
        OLD_AES_256,
    ];
    let telephone = [
        CHACHA20,
        AES_128,
        AES_256,
        OLD_CHACHA20,
        OLD_AES_128,
        OLD_AES_256,
    ];
    // What the two get, with TLS 1.3 and 1.2.
    for (lines, of_reversed, of_telephone) in [
        ("", [AES_256, OLD_AES_256], [CHACHA20, OLD_CHACHA20]),
        (
            "ssl_prefer_server_ciphers on;",
            [AES_256, OLD_AES_256],
            [AES_256, OLD_AES_256],
        ),
        (
            "ssl_prefer_server_ciphers off;",
            [AES_128, OLD_AES_128],
            [CHACHA20, OLD_CHACHA20],
        ),
    ] {
        let (_server, port) = start_one(lines);
        for (offered, expected) in [(&reversed, of_reversed), (&telephone, of_telephone)] {
            let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
            for (version, expected) in versions.into_iter().zip(expected) {
                let client = Client::new().version(version).offering(offered);
                let found = client.connect(port).unwrap().suite();
                assert_eq!(found, expected.suite(), "{lines} {offered:?}");
            }
        }
    }
}

fn refused_handshakes() {
    let port = free_port();
    let named = format!("server_name known; {SHOW}{}", certificate("ecdsa"));
    let _server = start(
        &(tls_server(port, "default_server", "ssl_reject_handshake on;")
            + &tls_server(port, "", &named)),
    );
    let refused = Client::new().name("other").connect(port).err().unwrap();
    assert!(refused.contains("UnrecognisedName"), "{refused}");
    assert!(Client::new().name("known").connect(port).is_ok());
}

/// Under TLS 1.3 the alert stands behind the server's first message, and both are to leave.
fn a_refusal_leaves_whole() {
    let (_server, port) = start_one(SHOW);
    let client = Client::new().version(&rustls::version::TLS13);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    stream
        .write_all(&client.protocol("strange").hello())
        .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let mut kinds = Vec::new();
    while let [kind, _, _, high, low, rest @ ..] = &answer[..] {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        kinds.push((*kind, length));
        answer = rest[length..].to_vec();
    }
    // RFC 8446 section 5.2: level, description, type and tag.
    assert_eq!(kinds.first().map(|first| first.0), Some(22), "{kinds:?}");
    assert_eq!(kinds.last(), Some(&(23, 2 + 1 + 16)), "{kinds:?}");
}

fn records_are_no_longer_than_asked_for() {
    let (server, port) = start_one("ssl_buffer_size 1k; root html;");
    let _ = std::fs::create_dir_all(server.prefix.join("html"));
    std::fs::write(server.prefix.join("html/file"), vec![7; 100_000]).unwrap();
    let mut connection = Client::new().connect(port).unwrap();
    assert_eq!(connection.get("/file").unwrap().body.len(), 100_000);
    assert!(
        connection.longest_record() <= 1024 + 5 + 1 + 16,
        "{}",
        connection.longest_record()
    );
}

fn a_reload_changes_the_certificate_and_keeps_connections() {
    let (server, port) = start_one(SHOW);
    let mut before = Client::new().connect(port).unwrap();
    assert_eq!(before.get("/").unwrap().status, 200);
    let other = tls_server(port, "", &(certificate("rsa") + SHOW));
    server.reload(&format!("[http]\n{other}"));
    let rsa = support::tls::certificate(&file("rsa.crt"));
    support::tls::until("the new certificate", || {
        Client::new()
            .connect(port)
            .is_ok_and(|new| new.certificate() == rsa)
    });
    assert_eq!(before.get("/").unwrap().status, 200);
}

/// nginx ends kept connections with their worker process.
fn a_reload_judges_the_clients_of_kept_connections() {
    let ca = file("ca.crt");
    let lines = |generation: u32, list: &str| {
        format!(
            "ssl_verify_client on; ssl_trusted_certificate {ca}; ssl_crl {}; \
             add_header Generation {generation} always; {SHOW}",
            file(list)
        )
    };
    let client = || Client::new().identity(&file("client"));
    let (server, port) = start_one(&lines(1, "empty.crl"));
    let mut before = client().connect(port).unwrap();
    assert_eq!(before.get("/").unwrap().status, 200);
    for (generation, list, status) in [(2, "empty.crl", 200), (3, "revoked.crl", 400)] {
        let block = tls_server(port, "", &(certificate("ecdsa") + &lines(generation, list)));
        server.reload(&format!("[http]\n{block}"));
        let current = format!("Generation: {generation}");
        support::tls::until("the new configuration", || {
            let response = client().connect(port).unwrap().get("/").unwrap();
            response.head.contains(&current)
        });
        assert_eq!(before.get("/").unwrap().status, status);
    }
}

/// A name that led nowhere in the handshake is that of a server then.
fn a_reload_adds_the_server_that_a_kept_connection_has_named() {
    let port = free_port();
    let block = |name: &str, authority: &str| {
        let lines = format!(
            "server_name {name}; ssl_verify_client on; ssl_client_certificate {}; {SHOW}{}",
            file(authority),
            certificate("ecdsa")
        );
        tls_server(port, "", &lines)
    };
    let client = Client::new().name("second").identity(&file("client"));
    let connect = || client.connect(port).unwrap();
    let first = block("first", "ca.crt");
    let server = start(&first);
    let mut kept = [connect(), connect()];
    for connection in &mut kept {
        let response = connection.get_from("second", "/").unwrap();
        assert_eq!(response.status, 200);
    }
    let second = block("second", "stranger.crt");
    server.reload(&format!("[http]\n{first}{second}"));
    support::tls::until("the new server", || {
        connect().get_from("second", "/").unwrap().status == 400
    });
    let [mut one, mut other] = kept;
    assert_eq!(one.get_from("second", "/").unwrap().status, 400);
    assert_eq!(other.get_from("first", "/").unwrap().status, 421);
}

fn a_reload_judges_clients_where_no_certificate_is_asked_for() {
    let port = free_port();
    let blocks = |generation: u32, first: &str| {
        let block = |name: &str, lines: &str| {
            let lines = format!(
                "server_name {name}; {lines} add_header Generation {generation}; {}
                 location / {{ return 200 $ssl_client_verify; }}",
                certificate("ecdsa")
            );
            tls_server(port, "", &lines)
        };
        block("first", first) + &block("second", "")
    };
    let by_list = |list: &str| {
        format!(
            "ssl_verify_client optional; ssl_trusted_certificate {}; ssl_crl {};",
            file("ca.crt"),
            file(list)
        )
    };
    let client = Client::new().name("first").identity(&file("client"));
    let server = start(&blocks(1, &by_list("empty.crl")));
    let mut before = client.connect(port).unwrap();
    let mut verdict = || {
        let response = before.get_from("second", "/").unwrap();
        String::from_utf8(response.body).unwrap()
    };
    assert_eq!(verdict(), "SUCCESS");
    for (generation, lines, expected) in [
        (2, by_list("revoked.crl"), "FAILED:certificate revoked"),
        (3, String::new(), "NONE"),
    ] {
        server.reload(&format!("[http]\n{}", blocks(generation, &lines)));
        let current = format!("Generation: {generation}");
        support::tls::until("the new configuration", || {
            let mut now = client.connect(port).unwrap();
            let response = now.get_from("second", "/").unwrap();
            response.head.contains(&current)
        });
        assert_eq!(verdict(), expected);
    }
}

/// The head of a request of HTTP/2.
const FIELDS: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/"),
    (":authority", "localhost"),
];

/// It may shake hands anew, with another certificate.
fn a_client_of_http2_that_a_reload_refuses_is_sent_away() {
    let lines = |list: &str| {
        format!(
            "http2 on; ssl_verify_client on; ssl_trusted_certificate {}; ssl_crl {}; {SHOW}",
            file("ca.crt"),
            file(list)
        )
    };
    let (server, port) = start_one(&lines("empty.crl"));
    let anna = || Client::new().identity(&file("client"));
    let mut client = http2::Client::over(anna().connect(port).unwrap(), &[]);
    let ask = |client: &mut http2::Client| {
        let (stream, frames) = client.frames_of(&FIELDS, None);
        client.send(&frames);
        client.response(stream).status
    };
    assert_eq!(ask(&mut client), 200);
    let block = tls_server(port, "", &(certificate("ecdsa") + &lines("revoked.crl")));
    server.reload(&format!("[http]\n{block}"));
    support::tls::until("the new list", || {
        let mut now = anna().protocol("http/1.1").connect(port).unwrap();
        now.get("/").unwrap().status == 400
    });
    assert_eq!(client.goaway, None);
    assert_eq!(ask(&mut client), 400);
    while client.goaway.is_none() {
        assert!(client.read_frame().is_some());
    }
}

/// After a reload the first request has the responder asked, the others wait for that.
fn streams_share_a_look_at_the_certificate() {
    let responder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = responder.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in responder.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
            drop(stream); // without an answer
        }
    });
    let lines = |generation: u32, more: &str| {
        format!(
            "http2 on; ssl_verify_client on; ssl_client_certificate {}; {more}
             add_header Generation {generation} always; {SHOW}",
            file("ca.crt")
        )
    };
    let (server, port) = start_one(&lines(1, ""));
    let anna = Client::new().identity(&file("client"));
    let mut client = http2::Client::over(anna.connect(port).unwrap(), &[]);
    let ocsp = format!("ssl_ocsp on; ssl_ocsp_responder http://{address};");
    let block = tls_server(port, "", &(certificate("ecdsa") + &lines(2, &ocsp)));
    server.reload(&format!("[http]\n{block}"));
    // The responder is not asked about a client without a certificate.
    support::tls::until("the new configuration", || {
        let mut stranger = Client::new().protocol("http/1.1").connect(port).unwrap();
        let response = stranger.get("/").unwrap();
        response.head.contains("Generation: 2")
    });
    let (mut streams, mut all) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let (stream, frames) = client.frames_of(&FIELDS, None);
        streams.push(stream);
        all.extend_from_slice(&frames);
    }
    client.send(&all);
    for stream in streams {
        assert_eq!(client.response(stream).status, 400);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// The variables of the tests below.
const FACTS: &str = "location / { return 200 \"$ssl_protocol $ssl_cipher $ssl_session_reused $ssl_server_name $ssl_alpn_protocol\\n\"; }";

fn what_was_agreed_upon() {
    let (_server, port) = start_one(FACTS);
    let mut connection = Client::new().connect(port).unwrap();
    let body = connection.get("/").unwrap().body;
    let expected = "TLSv1.3 TLS_AES_256_GCM_SHA384 . localhost http/1.1\n";
    assert_eq!(String::from_utf8_lossy(&body), expected);
}

fn what_the_client_offers() {
    let (_server, port) = start_one(
        "location / { return 200 \"$ssl_ciphers|$ssl_curves|$ssl_sigalgs|$ssl_curve|$ssl_ja4\\n\"; }",
    );
    let mut connection = Client::new().connect(port).unwrap();
    let body = String::from_utf8(connection.get("/").unwrap().body).unwrap();
    let parts: Vec<&str> = body.trim().split('|').collect();
    assert!(
        parts[0].starts_with("TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256:"),
        "{body}"
    );
    assert!(
        parts[1].starts_with("X25519MLKEM768:X25519:prime256v1:secp384r1"),
        "{body}"
    );
    assert!(parts[2].contains("ecdsa_secp256r1_sha256"), "{body}");
    assert_eq!(parts[3], "X25519MLKEM768");
    // TLS 1.3, a name, ALPN that begins with h2, and two digests.
    assert!(
        parts[4].starts_with("t13d") && parts[4].contains("h2_"),
        "{body}"
    );
    assert_eq!(parts[4].len(), 36);
}

/// Whether a second connection goes on with the session of the first.
fn resumes(client: Client, port: u16) -> bool {
    let client = client.keeping_sessions();
    for last in [false, true] {
        let mut connection = client.connect(port).unwrap();
        // What comes before the response's end has been read: the tickets of TLS 1.3 too.
        let body = connection.get("/").unwrap().body;
        if last {
            let shown = String::from_utf8(body).unwrap();
            assert_eq!(shown.contains(" r "), connection.is_resumed(), "{shown}");
            return connection.is_resumed();
        }
    }
    unreachable!()
}

fn sessions_go_on() {
    for (lines, expected) in [
        ("", true),
        ("ssl_session_tickets off;", false),
        (
            "ssl_session_tickets off; ssl_session_cache builtin:100;",
            true,
        ),
        (
            "ssl_session_tickets off; ssl_session_cache shared:one:1m; ssl_session_timeout 1h;",
            true,
        ),
        ("ssl_session_tickets off; ssl_session_cache off;", false),
    ] {
        let (_server, port) = start_one(&format!("{lines} {FACTS}"));
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let resumed = resumes(Client::new().version(version), port);
            assert_eq!(resumed, expected, "{lines} {:?}", version.version);
        }
    }
}

fn sessions_outlive_a_reload() {
    let lines = |number: u32| {
        format!(
            "ssl_session_tickets off; ssl_session_cache shared:kept:1m; add_header Number {number} always; {FACTS}"
        )
    };
    let (server, port) = start_one(&lines(1));
    let client = Client::new().keeping_sessions();
    client.connect(port).unwrap().get("/").unwrap();
    let block = tls_server(port, "", &(certificate("ecdsa") + &lines(2)));
    server.reload(&format!("[http]\n{block}"));
    support::tls::until("the new configuration", || {
        let response = Client::new().connect(port).unwrap().get("/").unwrap();
        response.head.contains("Number: 2")
    });
    assert!(client.connect(port).unwrap().is_resumed());
}

fn tickets_with_a_key_of_a_file() {
    let port = free_port();
    let other = free_port();
    let lines = format!("ssl_session_ticket_key {}; {FACTS}", file("ticket.key"));
    let servers = |first: u16| tls_server(first, "", &(certificate("ecdsa") + &lines));
    let _first = start(&servers(port));
    let _second = start(&servers(other));
    let client = Client::new().keeping_sessions();
    client.connect(port).unwrap().get("/").unwrap();
    // Another process with the same key opens it.
    assert!(client.connect(other).unwrap().is_resumed());
}

/// What requests of clients with these certificates get.
fn asks_for_certificates(lines: &str) -> impl Fn(Option<&str>) -> (u16, String) + use<> {
    let show =
        "location / { return 200 \"$ssl_client_verify $ssl_client_s_dn $ssl_client_serial\\n\"; }";
    let (server, port) = start_one(&format!("{lines} {show}"));
    move |identity| {
        let _ = &server;
        let client = Client::new();
        let client = match identity {
            Some(name) => client.identity(&file(name)),
            None => client,
        };
        let response = client.connect(port).unwrap().get("/").unwrap();
        (response.status, String::from_utf8(response.body).unwrap())
    }
}

fn certificates_of_clients() {
    let ca = format!("ssl_client_certificate {};", file("ca.crt"));
    let anna = "SUCCESS CN=anna,O=Tidegate tests,C=NL 1234ABCD\n";
    let ask = asks_for_certificates(&format!("{ca} ssl_verify_client on;"));
    assert_eq!(ask(Some("client")), (200, anna.to_string()));
    let (status, page) = ask(None);
    assert_eq!(status, 400);
    assert!(
        page.contains("No required SSL certificate was sent"),
        "{page}"
    );
    let (status, page) = ask(Some("stranger"));
    assert_eq!(status, 400);
    assert!(page.contains("The SSL certificate error"), "{page}");

    let ask = asks_for_certificates(&format!("{ca} ssl_verify_client optional;"));
    assert_eq!(ask(Some("client")), (200, anna.to_string()));
    assert_eq!(ask(None), (200, "NONE  \n".to_string()));
    assert_eq!(ask(Some("stranger")).0, 400);

    let ask = asks_for_certificates("ssl_verify_client optional_no_ca;");
    let (status, shown) = ask(Some("stranger"));
    assert_eq!(status, 200);
    assert!(
        shown.starts_with("FAILED:self-signed certificate CN=stranger "),
        "{shown}"
    );
    let ask = asks_for_certificates("ssl_verify_client off;");
    assert_eq!(ask(Some("client")), (200, "NONE  \n".to_string()));
}

fn chains_and_revoked_certificates() {
    let roots = format!(
        "ssl_verify_client on; ssl_trusted_certificate {};",
        file("ca.crt")
    );
    let ask = asks_for_certificates(&roots);
    assert_eq!(ask(Some("client")).0, 200);
    let ask = asks_for_certificates(&format!("{roots} ssl_crl {};", file("revoked.crl")));
    assert_eq!(ask(Some("client")).0, 400);
    let ask = asks_for_certificates(&format!("{roots} ssl_crl {};", file("empty.crl")));
    assert_eq!(ask(Some("client")).0, 200);
    // One certificate stands between this client's and the trusted one.
    let ask = asks_for_certificates(&format!("{roots} ssl_verify_depth 1;"));
    assert_eq!(ask(Some("deep")).0, 200);
    let ask = asks_for_certificates(&format!("{roots} ssl_verify_depth 0;"));
    assert_eq!(ask(Some("deep")).0, 400);
}

fn early_data() {
    for (lines, expected) in [("ssl_early_data on;", "1"), ("ssl_early_data off;", "")] {
        let (_server, port) = start_one(&format!(
            "{lines} location / {{ return 200 \"[$ssl_early_data]\\n\"; }}"
        ));
        let client = Client::new().keeping_sessions();
        let mut first = client.connect(port).unwrap();
        assert_eq!(first.get("/").unwrap().body, b"[]\n");
        let body = client.get_early(port, "/").unwrap().body;
        assert_eq!(String::from_utf8_lossy(&body), format!("[{expected}]\n"));
    }
}

fn a_response_about_the_certificate() {
    let stapled = format!("ssl_stapling_file {};", file("ocsp.der"));
    for (lines, expected) in [("ssl_stapling on;", 5), ("ssl_stapling off;", 0)] {
        let (_server, port) = start_one(&format!("{lines} {stapled}"));
        let client = Client::new();
        client.connect(port).unwrap();
        assert_eq!(client.stapled(), expected);
    }
}

fn what_has_no_effect_is_taken() {
    let lines = "ssl_conf_command Options KTLS; ssl_conf_command Ciphersuites TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_CCM_SHA256; ssl_stapling_verify on; ssl_stapling_responder http://ocsp.example/; ssl_protocols TLSv1 TLSv1.3; ssl_ciphers HIGH:AES128-SHA;";
    let (server, port) = start_one(lines);
    let connection = Client::new().connect(port).unwrap();
    assert_eq!(
        connection.suite(),
        rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
    );
    let said = std::fs::read_to_string(server.prefix.join("output")).unwrap() + &server.error_log();
    for warned in ["TLS_AES_128_CCM_SHA256", "TLSv1", "AES128-SHA"] {
        assert!(
            said.contains(&format!("skipped: {warned}")),
            "{warned}: {said}"
        );
    }
}

fn certificates_named_with_variables() {
    let folder = file("");
    for cache in [
        "",
        "ssl_certificate_cache max=2 valid=1h inactive=1h;",
        "ssl_certificate_cache off;",
    ] {
        let port = free_port();
        let lines = format!(
            "ssl_certificate {folder}$ssl_server_name.crt; ssl_certificate_key {folder}$ssl_server_name.key; {cache}"
        );
        let _server = start(&tls_server(port, "", &lines));
        for _ in 0..2 {
            for name in ["ecdsa", "rsa"] {
                let shown = Client::new()
                    .name(name)
                    .connect(port)
                    .unwrap()
                    .certificate();
                assert_eq!(
                    shown,
                    support::tls::certificate(&file(&format!("{name}.crt")))
                );
            }
        }
        assert!(Client::new().name("missing").connect(port).is_err());
    }
}

fn certificates_as_data() {
    let port = free_port();
    let text = |name: &str| std::fs::read_to_string(file(name)).unwrap();
    let maps = format!(
        "map $ssl_server_name $chain {{ default \"data:{}\"; }}\nmap $ssl_server_name $key {{ default \"data:{}\"; }}\n",
        text("rsa.crt"),
        text("rsa.key")
    );
    let lines = "ssl_certificate $chain; ssl_certificate_key $key;";
    let _server = start(&(maps + &tls_server(port, "", lines)));
    let shown = Client::new().connect(port).unwrap().certificate();
    assert_eq!(shown, support::tls::certificate(&file("rsa.crt")));
}

fn certificates_sent_compressed() {
    use rustls::CertificateCompressionAlgorithm::Zlib;
    for (lines, expected) in [("ssl_certificate_compression on;", 1), ("", 0)] {
        let (_server, port) = start_one(&format!("{lines} {SHOW}"));
        let client = Client::new().reading_compressed(Zlib);
        let connection = client.connect(port).unwrap();
        let chain = support::tls::certificate(&file("ecdsa.crt"));
        assert_eq!(connection.certificate(), chain);
        assert_eq!(client.compressed(), expected, "{lines}");
    }
}

/// 32 bytes in hexadecimal digits; what is resumed by a cache has the same number in TLS 1.2.
fn sessions_have_numbers() {
    let lines = "ssl_session_tickets off; ssl_session_cache builtin; location / { return 200 $ssl_session_id; }";
    let (_server, port) = start_one(lines);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let client = Client::new().version(version).keeping_sessions();
        let number = || client.connect(port).unwrap().get("/").unwrap().body;
        let (first, second) = (number(), number());
        assert_eq!(first.len(), 64);
        assert!(first.iter().all(u8::is_ascii_hexdigit));
        let is_same = first == second;
        assert_eq!(is_same, version.version == rustls::ProtocolVersion::TLSv1_2);
    }
    let (_server, port) = start_one("location / { return 200 [$ssl_session_id]; }");
    let client = Client::new().version(&rustls::version::TLS12);
    let ticket = client.connect(port).unwrap().get("/").unwrap().body;
    assert_eq!(ticket, b"[]", "a ticket has no number");
}

/// nginx has it with a commercial subscription only.
fn secrets_of_clients_are_logged() {
    let (server, port) = start_one(&format!("ssl_key_log logs/keys; {SHOW}"));
    let keys = || std::fs::read_to_string(server.prefix.join("logs/keys")).unwrap_or_default();
    Client::new().connect(port).unwrap().get("/").unwrap();
    support::tls::until("a secret", || keys().contains("CLIENT_TRAFFIC_SECRET_0 "));
    let found = std::fs::metadata(server.prefix.join("logs/keys")).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
}

/// `ssl_object_cache_inheritable`: a file with the same inode and time of change counts as the
/// same.
fn what_a_reload_need_not_read() {
    for (inherits, expected) in [("on", "ecdsa"), ("off", "rsa")] {
        let port = free_port();
        let folder = std::env::temp_dir();
        let folder = folder.join(format!("tidegate-unchanged-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let put = |name: &str| {
            for kind in ["crt", "key"] {
                let path = folder.join(format!("a.{kind}"));
                std::fs::copy(file(&format!("{name}.{kind}")), &path).unwrap();
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
                file.set_modified(time).unwrap();
            }
        };
        put("ecdsa");
        let block = |number: u32| {
            let pair = format!(
                "ssl_certificate {0}/a.crt; ssl_certificate_key {0}/a.key;",
                folder.display()
            );
            let lines = format!("{pair} location / {{ return 200 {number}; }}");
            let block = tls_server(port, "", &lines);
            format!("[main]\nssl_object_cache_inheritable {inherits};\n[http]\n{block}")
        };
        let server = Server::start(ENGINE.get(), &block(1));
        put("rsa");
        server.reload(&block(2));
        support::tls::until("the new configuration", || {
            let response = Client::new().connect(port).unwrap().get("/").unwrap();
            response.body == b"2"
        });
        let shown = Client::new().connect(port).unwrap().certificate();
        assert_eq!(
            shown,
            support::tls::certificate(&file(&format!("{expected}.crt")))
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// Hands are shaken under the settings of the first server; what the other wants of clients counts
/// all the same.
fn a_server_without_a_certificate_asks_for_one() {
    let port = free_port();
    let first = tls_server(
        port,
        "",
        &(certificate("ecdsa") + "server_name first;" + SHOW),
    );
    let second = tls_server(
        port,
        "",
        &format!("server_name localhost; ssl_verify_client on; {SHOW}"),
    );
    let _server = start(&(first + &second));
    let mut connection = Client::new().connect(port).unwrap();
    assert_eq!(connection.get("/").unwrap().status, 400);
    let mut connection = Client::new().name("first").connect(port).unwrap();
    assert_eq!(connection.get_from("first", "/").unwrap().status, 200);
}
