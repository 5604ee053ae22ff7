//! `health_check type=grpc`: servers are asked by gRPC's own health service.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use support::{Server, is_nginx};

use crate::grpc::process::Python;

/// Each group has one server and a check of its own: its name, the server's address, what the check
/// says, and what comes of it.
fn groups(port: u16, socket: &str) -> [(&'static str, String, &'static str, &'static str); 7] {
    let inet = format!("127.0.0.1:{port}");
    let gone = format!("127.0.0.1:{}", support::port::free_port());
    [
        ("whole", inet.clone(), "", "up"),
        ("serving", inet.clone(), "grpc_service=test.Calls", "up"),
        (
            "resting",
            inet.clone(),
            "grpc_service=test.Resting",
            "unhealthy",
        ),
        (
            "unknown",
            inet.clone(),
            "grpc_service=test.Unknown",
            "unhealthy",
        ),
        // 5 is NOT_FOUND.
        (
            "refused",
            inet,
            "grpc_service=test.Unknown grpc_status=5",
            "up",
        ),
        (
            "socket",
            format!("unix:{socket}"),
            "grpc_service=test.Calls",
            "up",
        ),
        ("gone", gone, "", "unhealthy"),
    ]
}

/// The states of all servers by the names of their groups.
fn states(server: &Server) -> BTreeMap<String, String> {
    let metrics = server.connect().get("/metrics").unwrap().body;
    let metrics = String::from_utf8(metrics).unwrap();
    let label = |line: &str, name: &str| {
        let (_, value) = line.split_once(&format!("{name}=\"")).unwrap();
        value.split_once('"').unwrap().0.to_owned()
    };
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("tidegate_upstream_server_state{") && line.ends_with(" 1"));
    lines
        .map(|line| (label(line, "upstream"), label(line, "state")))
        .collect()
}

/// Waits until the states are these.
fn wait_for(server: &Server, expected: &BTreeMap<String, String>) {
    let begin = Instant::now();
    loop {
        let states = states(server);
        if states == *expected {
            return;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{states:?} in the place of {expected:?}\n{}",
            server.error_log()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn servers_are_asked_by_the_health_service(engine: &'static str) {
    if is_nginx() {
        return; // it has no such checks
    }
    let name = format!("tidegate-grpc-{}.sock", support::port::free_port());
    let socket = std::env::temp_dir().join(name).display().to_string();
    let mut behind = Python::start("behind", 0);
    let _on_socket = Python::start_at(&format!("unix:{socket}"), "socket");
    let groups = groups(behind.port, &socket);
    let upstreams = groups.iter().map(|(name, address, ..)| {
        format!("upstream {name} {{ zone {name} 256k; server {address}; }}\n")
    });
    let checks = groups.iter().map(|(name, _, check, _)| {
        format!("location /{name} {{ grpc_pass {name}; health_check interval=200ms type=grpc {check}; }}\n")
    });
    let lines = format!(
        "location /metrics {{ metrics; }}
             [http]
             {}
             server {{ listen 127.0.0.1:{} http2; {} }}",
        upstreams.collect::<String>(),
        support::port::free_port(),
        checks.collect::<String>()
    );
    let server = Server::start(engine, &lines);
    let expected = groups
        .iter()
        .map(|(name, _, _, state)| ((*name).to_owned(), (*state).to_owned()));
    let mut expected: BTreeMap<_, _> = expected.collect();
    wait_for(&server, &expected);
    // They go on to be asked.
    behind.kill();
    for name in ["whole", "serving", "refused"] {
        expected.insert(name.to_owned(), "unhealthy".to_owned());
    }
    wait_for(&server, &expected);
    behind.start_again();
    for name in ["whole", "serving", "refused"] {
        expected.insert(name.to_owned(), "up".to_owned());
    }
    wait_for(&server, &expected);
    let log = server.error_log();
    let _ = std::fs::remove_file(&socket);
    for told in [
        "upstream says that it is not serving while reading upstream, health check \"\" of peer 127.0.0.1:",
        "unexpected grpc-status: 5, 0 was expected while reading response header from upstream, health check \"\" of peer 127.0.0.1:",
    ] {
        assert!(log.contains(told), "{told}\n{log}");
    }
}

support::test_on_each_engine!(servers_are_asked_by_the_health_service);
