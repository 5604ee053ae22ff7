//! `grpc_pass` with real clients and servers: Python's grpcio at both ends, which is gRPC's own
//! core, on both engines, in the clear and over TLS on both sides.
//!
//! `client.py` makes the calls and checks what comes; each of its scenarios passes without a proxy
//! between the two as well (the test that says so is the first). `bodies.rs` is about bodies that
//! go on while other things happen, `endings.rs` about calls that come to no good end,
//! `failover.rs` kills servers under load, `health.rs` is about checks of servers. TIDEGATE_BINARY
//! with nginx 1.31 checks those that are about what nginx does, too.

mod bodies;
mod endings;
mod failover;
mod health;
mod process;
mod web;

use support::{Server, is_nginx};

use process::{Python, file, run_client};

/// Kinds of calls, and what they bring both ways.
const CALLS: [&str; 11] = [
    "unary",
    "client_streaming",
    "server_streaming",
    "bidirectional_streaming",
    "both_ways",
    "metadata",
    "statuses",
    "large",
    "health",
    "reflection",
    "cancellation",
];

/// A Tidegate with a server of gRPC behind it.
struct Passed {
    server: Server,
    behind: Python,
    /// Where clients connect, and whom they trust if that is over TLS.
    port: u16,
    authorities: String,
}

impl Passed {
    /// In the clear, or over TLS both to Tidegate and behind it. The server takes so many calls at
    /// once on a connection (0 is no limit); `lines` stand in the location.
    fn start(engine: &str, is_secure: bool, streams: u32, lines: &str) -> Passed {
        let behind = if is_secure {
            Python::start_secure("behind", streams)
        } else {
            Python::start("behind", streams)
        };
        let port = support::port::free_port();
        let (listen, pass, authorities) = if is_secure {
            let (chain, key) = (file("tls/ecdsa.crt"), file("tls/ecdsa.key"));
            let trusted = file("tls/upstream/ca.crt");
            let listen = format!("ssl http2; ssl_certificate {chain}; ssl_certificate_key {key}");
            let pass = format!(
                "grpcs://behind; grpc_ssl_verify on; grpc_ssl_name good.example; grpc_ssl_trusted_certificate {trusted}"
            );
            (listen, pass, chain)
        } else {
            (
                "http2".to_owned(),
                "grpc://behind".to_owned(),
                String::new(),
            )
        };
        let lines = format!(
            "location / {{ return 404; }}
             [http]
             client_max_body_size 0;
             http2_max_concurrent_streams 1000;
             upstream behind {{ zone behind 256k; server 127.0.0.1:{}; keepalive 16; keepalive_requests 1000000; }}
             server {{ listen 127.0.0.1:{port} {listen}; location / {{ {lines} grpc_pass {pass}; }} }}",
            behind.port
        );
        Passed {
            server: Server::start(engine, &lines),
            behind,
            port,
            authorities,
        }
    }

    /// Makes the calls of a scenario; what it prints.
    fn run(&self, scenario: &str, arguments: &[&str]) -> String {
        run_client(self.port, scenario, &self.authorities, arguments).unwrap_or_else(|said| {
            let transport = if self.authorities.is_empty() {
                "clear"
            } else {
                "TLS"
            };
            panic!(
                "{scenario} ({transport}): {said}\n{}",
                self.server.error_log()
            )
        })
    }
}

/// Each engine, in the clear and over TLS.
fn each(engine: &str, check: impl Fn(&str, bool)) {
    for is_secure in [false, true] {
        check(engine, is_secure);
    }
}

#[test]
fn the_same_without_a_proxy() {
    let behind = Python::start("alone", 0);
    for scenario in CALLS.iter().chain(&["deadline"]) {
        if let Err(said) = run_client(behind.port, scenario, "", &[]) {
            panic!("{scenario}: {said}");
        }
    }
    let met = run_client(behind.port, "at_once", "", &["1000"]);
    assert_eq!(met.as_deref(), Ok("connections: 1\n"));
    assert_eq!(
        run_client(behind.port, "late_at_once", "", &["900"]).as_deref(),
        Ok("")
    );
    let pid = behind.pid().to_string();
    let told = run_client(behind.port, "killed", "", &[&pid]).unwrap();
    assert_eq!(told.lines().count(), 42);
    assert!(
        told.lines().all(|line| line.starts_with("UNAVAILABLE")),
        "{told}"
    );
}

fn calls_of_all_kinds(engine: &'static str) {
    each(engine, |engine, is_secure| {
        let passed = Passed::start(engine, is_secure, 0, "");
        for scenario in CALLS {
            passed.run(scenario, &[]);
        }
    });
}

support::test_on_each_engine!(calls_of_all_kinds);

fn deadlines_end_calls_on_both_sides(engine: &'static str) {
    each(engine, |engine, is_secure| {
        let passed = Passed::start(engine, is_secure, 0, "");
        passed.run("deadline", &[]);
        if !is_nginx() {
            // There would be a connection for each.
            passed.run("late_at_once", &["900"]);
        }
    });
}

support::test_on_each_engine!(deadlines_end_calls_on_both_sides);

/// A thousand calls that are all under way at the same time share one connection behind, as they do
/// before.
fn a_thousand_streams_at_once(engine: &'static str) {
    if is_nginx() {
        return; // it has a connection for each
    }
    each(engine, |engine, is_secure| {
        let passed = Passed::start(engine, is_secure, 0, "");
        assert_eq!(passed.run("at_once", &["1000"]), "connections: 1\n");
    });
}

support::test_on_each_engine!(a_thousand_streams_at_once);

/// Where a server takes few calls at once on a connection there are more of them, and none is sent
/// what it would refuse.
fn a_server_that_takes_few_streams_gets_more_connections(engine: &'static str) {
    if is_nginx() {
        return; // see above
    }
    let last = Passed::start(engine, false, 0, "");
    let (port, before) = (support::port::free_port(), support::port::free_port());
    // In the middle stands one that is as strict as can be.
    let lines = format!(
        "location / {{ return 404; }}
             [http]
             upstream last {{ zone last 256k; server 127.0.0.1:{}; keepalive 16; }}
             upstream middle {{ zone middle 256k; server 127.0.0.1:{before}; keepalive 16; }}
             server {{ listen 127.0.0.1:{before} http2; http2_max_concurrent_streams 4; location / {{ grpc_pass last; }} }}
             server {{ listen 127.0.0.1:{port} http2; location / {{ grpc_pass middle; }} }}",
        last.port
    );
    let first = Server::start(engine, &format!("{lines}\n"));
    let met = run_client(port, "at_once", "", &["100"]);
    let log = first.error_log();
    assert_eq!(met.as_deref(), Ok("connections: 1\n"), "{log}");
    assert!(!log.contains("rejected"), "{log}");
}

support::test_on_each_engine!(a_server_that_takes_few_streams_gets_more_connections);

fn a_server_that_is_killed_is_unavailable(engine: &'static str) {
    each(engine, |engine, is_secure| {
        let passed = Passed::start(engine, is_secure, 0, "");
        let pid = passed.behind.pid().to_string();
        let told = passed.run("killed", &[&pid]);
        // Twenty that had not been answered, one that was sending, twenty in the middle of their
        // answers; and the next.
        assert_eq!(told.lines().count(), 42);
        let is_expected = |line: &str| {
            if is_nginx() {
                line.starts_with("UNAVAILABLE") || line.starts_with("INTERNAL")
            } else {
                line == "UNAVAILABLE upstream is unavailable"
            }
        };
        assert!(told.lines().all(is_expected), "{told}");
        let log = passed.server.error_log();
        let port = passed.behind.port;
        let scheme = if is_secure { "grpcs" } else { "grpc" };
        for (doing, method) in [
            ("reading response header from", "Wait"),
            ("reading", "Stay"),
        ] {
            let line = format!(
                "while {doing} upstream, client: 127.0.0.1, server: , request: \"POST /test.Calls/{method} HTTP/2.0\", upstream: \"{scheme}://127.0.0.1:{port}\""
            );
            assert!(log.contains(&line), "{line}\n{log}");
        }
    });
}

support::test_on_each_engine!(a_server_that_is_killed_is_unavailable);
