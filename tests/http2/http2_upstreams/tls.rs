//! HTTP/2 towards upstreams over TLS: what is offered, what is verified, and which connections are
//! shared. Certificates are those of tests/tls/upstreams.rs, which has the rest.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use support::http2::Client;
use support::is_nginx;

use super::upstream::{Upstream, plain};
use super::{each, get, lines_with, server};

pub(crate) fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/tls/upstream");
    folder.join(name)
}

/// A server for good.example that speaks these protocols.
pub(crate) fn config(protocols: &[&str]) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certificates = CertificateDer::pem_file_iter(file("good.example.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("good.example.key")).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates.map(Result::unwrap).collect(), key)
        .unwrap();
    let protocols = protocols
        .iter()
        .map(|protocol| protocol.as_bytes().to_vec());
    config.alpn_protocols = protocols.collect();
    config
}

fn http2_is_agreed_upon(engine: &'static str) {
    let lines = "location / { by_pass bys://UP; by_ssl_server_name on; by_ssl_name $arg_name; }";
    each(engine, |engine, by| {
        let upstream = Upstream::bind().over_tls(config(&["http/1.1", "h2"]));
        let server = server(engine, by, lines, &upstream);
        let mut client = Client::connect(server.port);
        let asked = client.request("/?name=good.example", &[]);
        let mut peer = upstream.accept();
        assert_eq!(peer.protocol.as_deref(), Some(&b"h2"[..]));
        assert_eq!(peer.server_name.as_deref(), Some("good.example"));
        peer.settings(&[]);
        let request = peer.wait_for_request();
        assert_eq!(request.field(":scheme"), "https");
        assert_eq!(request.field(":authority"), upstream.address());
        peer.answer(request.stream, "200", b"ok");
        assert_eq!(client.response(asked).text(), "ok");
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(http2_is_agreed_upon);

fn servers_that_agree_upon_nothing_are_spoken_to_all_the_same(engine: &'static str) {
    each(engine, |engine, by| {
        let upstream = Upstream::bind()
            .over_tls(config(&[]))
            .serve_with(&[], plain);
        let server = server(engine, by, "location / { by_pass bys://UP; }", &upstream);
        assert_eq!(get(server.port, "/").text(), "ok");
        upstream.assert_clean();
        // One that wants another protocol ends the handshake.
        let upstream = Upstream::bind()
            .over_tls(config(&["http/1.1"]))
            .serve_with(&[], plain);
        let server = super::server(engine, by, "location / { by_pass bys://UP; }", &upstream);
        assert_eq!(get(server.port, "/").status, 502);
    });
}

support::test_on_each_engine!(servers_that_agree_upon_nothing_are_spoken_to_all_the_same);

fn certificates_are_verified(engine: &'static str) {
    let ca = file("ca.crt").display().to_string();
    let lines = format!(
        "location /good {{ by_pass bys://UP; by_ssl_verify on; by_ssl_trusted_certificate {ca}; by_ssl_name good.example; }}
         location /name {{ by_pass bys://UP; by_ssl_verify on; by_ssl_trusted_certificate {ca}; by_ssl_name other.example; }}
         location /trust {{ by_pass bys://UP; by_ssl_verify on; by_ssl_trusted_certificate {}; by_ssl_name good.example; }}
         location /unverified {{ by_pass bys://UP; by_ssl_name other.example; }}",
        file("client.crt").display()
    );
    each(engine, |engine, by| {
        let upstream = Upstream::bind()
            .over_tls(config(&["h2"]))
            .serve_with(&[], plain);
        let server = server(engine, by, &lines, &upstream);
        assert_eq!(get(server.port, "/good").text(), "ok");
        assert_eq!(get(server.port, "/unverified").text(), "ok");
        assert_eq!(get(server.port, "/name").status, 502);
        let text = "upstream SSL certificate does not match \"other.example\" while SSL handshaking to upstream";
        assert_eq!(lines_with(&server, 0, text, 1), 1, "{}", server.error_log());
        assert_eq!(get(server.port, "/trust").status, 502);
        let text = "upstream SSL certificate verify error: (21:unable to verify the first certificate) while SSL handshaking to upstream";
        assert_eq!(lines_with(&server, 0, text, 1), 1, "{}", server.error_log());
        assert_eq!(upstream.heads(), 2);
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(certificates_are_verified);

fn names_and_certificates_are_terms_of_a_connection(engine: &'static str) {
    if is_nginx() {
        return; // requests at once have connections of their own
    }
    let lines = "location / { by_pass bys://u; by_ssl_server_name on; by_ssl_name $arg_name; }
        location /verified { by_pass bys://u; by_ssl_server_name on; by_ssl_name $arg_name; by_ssl_verify on; by_ssl_trusted_certificate CA; }
        [http]
        upstream u { server UP max_fails=0; keepalive 4; }"
        .replace("CA", &file("ca.crt").display().to_string());
    each(engine, |engine, by| {
        let upstream = Upstream::bind().over_tls(config(&["h2"]));
        let server = server(engine, by, &lines, &upstream);
        let mut client = Client::connect(server.port);
        let mut streams = vec![client.request("/?name=good.example", &[])];
        let mut peer = upstream.accept();
        peer.settings(&[]);
        peer.wait_for_request();
        // The same terms: a stream of the same connection.
        streams.push(client.request("/?name=good.example&more", &[]));
        peer.wait_for_request();
        let mut others = Vec::new();
        for path in ["/?name=other.example", "/verified?name=good.example"] {
            streams.push(client.request(path, &[]));
            let mut other = upstream.accept();
            other.settings(&[]);
            assert_eq!(other.wait_for_request().path(), path);
            others.push(other);
        }
        peer.answer(1, "200", b"ok");
        peer.answer(3, "200", b"ok");
        others
            .iter_mut()
            .for_each(|other| other.answer(1, "200", b"ok"));
        for stream in streams {
            assert_eq!(client.response(stream).text(), "ok");
        }
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(names_and_certificates_are_terms_of_a_connection);
