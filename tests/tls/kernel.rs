//! `ssl_conf_command Options KTLS`: files that the kernel encrypts where it can. Here the same
//! bytes must come whether it can or not; that it does, and how, is shown by tests/ktls in a
//! machine of its own.

use support::Server;
use support::engines::EPOLL;
use support::port::free_port;
use support::tls::Client;

/// Somewhat more than a file must have for it, in which no two places look alike.
fn content() -> Vec<u8> {
    (0..150_000_u32).flat_map(u32::to_le_bytes).collect()
}

/// A server with these lines beside its certificate, and the port where it speaks TLS.
fn start(engine: &str, lines: &str) -> (Server, u16) {
    let port = free_port();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");
    let server = Server::start(
        engine,
        &format!(
            "[http]\nserver {{ listen 127.0.0.1:{port} ssl; root www;\n\
             ssl_certificate {folder}/ecdsa.crt; ssl_certificate_key {folder}/ecdsa.key;\n{lines}\n\
             location /agreed {{ return 200 \"$ssl_protocol $ssl_cipher $ssl_curve $ssl_session_reused $ssl_alpn_protocol\"; }} }}\n"
        ),
    );
    server.write("large", &content());
    server.write("small", b"small");
    (server, port)
}

/// What has been said about the configuration.
fn said(server: &Server) -> String {
    std::fs::read_to_string(server.prefix.join("output")).unwrap() + &server.error_log()
}

fn files_are_the_same_whoever_encrypts(engine: &'static str) {
    for lines in ["sendfile on; sendfile_max_chunk 100k;", "sendfile off;"] {
        let lines = format!("ssl_conf_command Options KTLS; {lines}");
        let (_server, port) = start(engine, &lines);
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let mut connection = Client::new().version(version).connect(port).unwrap();
            let agreed = connection.get("/agreed").unwrap().body;
            for _ in 0..2 {
                assert_eq!(connection.get("/small").unwrap().body, b"small");
                assert!(connection.get("/large").unwrap().body == content());
                assert_eq!(connection.get("/none").unwrap().status, 404);
                assert_eq!(connection.get("/agreed").unwrap().body, agreed);
            }
        }
    }
}

support::test_on_each_engine!(files_are_the_same_whoever_encrypts);

/// The warning comes where the kernel has no TLS, and only there.
#[test]
fn a_kernel_that_cannot_is_told_of() {
    let warning = "\"ssl_conf_command Options KTLS\" has no effect: the kernel";
    let (server, _) = start(EPOLL, "ssl_conf_command Options KTLS;");
    let cannot = engine::kernel_tls::probe().is_err();
    assert_eq!(said(&server).contains(warning), cannot, "{}", said(&server));

    let (server, _) = start(EPOLL, "ssl_conf_command Options -KTLS;");
    assert!(!said(&server).contains(warning));
}

/// Of several options the last about a thing counts; what means nothing here is named.
#[test]
fn options_stand_between_commas() {
    let warning = "\"ssl_conf_command Options KTLS\" has no effect";
    let lines =
        "ssl_conf_command Options +ktls,Bugs; ssl_conf_command options -SessionTicket,-KTLS;";
    let (server, _) = start(EPOLL, lines);
    let said = said(&server);
    assert!(!said.contains(warning), "{said}");
    for option in ["Bugs", "-SessionTicket"] {
        let text = format!("\"ssl_conf_command Options {option}\" has no effect here");
        assert!(said.contains(&text), "{said}");
    }
}
