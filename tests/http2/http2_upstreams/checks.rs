//! `health_check` by HTTP/2, be it by a request or by gRPC's own question: which checks have a
//! connection in common, and for how long. Expected:
//! <https://nginx.org/en/docs/http/ngx_http_upstream_hc_module.html#health_check>
//! (`keepalive_time`), of NGINX Plus.

use support::is_nginx;
use support::master::wait_for;

use super::upstream::{Heard, Peer, Upstream, data, headers, whole};
use super::{By, each, server, tls};

/// That a server is serving, as <https://github.com/grpc/grpc/blob/master/doc/health-checking.md>
/// has it.
const SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 1];

/// Answers so that every check is passed.
fn be_well(peer: &mut Peer, heard: Heard) {
    if let Some(stream) = whole(heard) {
        peer.head(stream, &[(":status", "200")], false);
        let rest = [
            data(stream, SERVING, false),
            headers(stream, &[("grpc-status", "0")], true),
        ];
        peer.send(&rest.concat());
    }
}

/// `health_check` with these parameters, for a server that is asked by this directive.
fn check(by: By, parameters: &str) -> String {
    let kind = match by {
        By::Proxy => "http",
        By::Grpc => "grpc",
    };
    format!("health_check interval=20ms type={kind} {parameters};")
}

fn a_connection_serves_the_checks_of_its_time(engine: &'static str) {
    if is_nginx() {
        return; // it makes no checks
    }
    each(engine, |engine, by| {
        // Whatever is said of connections for requests.
        for keepalive in ["", "keepalive 0;", "keepalive 1; keepalive_requests 2;"] {
            let upstream = Upstream::serve(be_well);
            let lines = format!(
                "location / {{ by_pass by://u; {} }}\n[http]\nupstream u {{ zone u 256k; server UP; {keepalive} }}",
                check(by, "keepalive_time=1s")
            );
            let server = server(engine, by, &lines, &upstream);
            wait_for("third connection", || upstream.record().connections > 2);
            let record = upstream.record();
            let streams = [0, 1].map(|number| record.streams[&number]);
            drop(record);
            let log = server.error_log();
            assert!(streams.iter().all(|count| *count > 2), "{streams:?} {log}");
            wait_for("end of two", || upstream.record().ended > 1);
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(a_connection_serves_the_checks_of_its_time);

fn a_check_has_no_connection_of_another(engine: &'static str) {
    if is_nginx() {
        return; // it makes no checks
    }
    let lines = "location /any { by_pass bys://u; CHECK }
        location /verified { by_pass bys://u; by_ssl_verify on; by_ssl_trusted_certificate CA; by_ssl_name other.example; CHECK }
        [http]
        upstream u { zone u 256k; server UP; }"
        .replace("CA;", &format!("{};", tls::file("ca.crt").display()));
    each(engine, |engine, by| {
        let upstream = Upstream::bind()
            .over_tls(tls::config(&["h2"]))
            .serve_with(&[], be_well);
        let lines = lines.replace("CHECK", &check(by, "keepalive_time=1h"));
        let server = server(engine, by, &lines, &upstream);
        // The one that does not ask who the server is passes, and its connection stays.
        let text = "upstream SSL certificate does not match \"other.example\" while SSL handshaking to upstream";
        wait_for("check that fails each time", || {
            server.error_log().matches(text).count() > 4 && upstream.heads() > 4
        });
        let record = upstream.record();
        assert_eq!(record.streams.len(), 1, "{:?}", record.streams);
        drop(record);
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(a_check_has_no_connection_of_another);
