//! Servers of gRPC that are killed and started again while calls come.
//!
//! As in nginx a call that has reached a server is given to another only where `grpc_next_upstream`
//! says `non_idempotent`, since every call is a POST.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use support::{Server, is_nginx};

use crate::grpc::process::{Python, client};

/// Channels of the client, each with four calls under way.
const CHANNELS: usize = 6;

/// What clients have been told, and how the servers have done.
struct Outcome {
    /// How many calls were answered, by which server.
    answered: Vec<(String, usize)>,
    /// Calls that have failed, by their statuses and messages.
    failed: Vec<(String, usize)>,
    /// Failures of each server as they were counted, and as the error log has them.
    fails: Vec<(u64, usize)>,
}

/// Kills these servers of three, one after the other, and starts each again, while calls come.
fn kill_under_load(engine: &str, next: &str, killed: usize) -> Outcome {
    let mut behind: Vec<Python> = ["one", "two", "three"]
        .map(|name| Python::start(name, 0))
        .into();
    let ports: Vec<u16> = behind.iter().map(|server| server.port).collect();
    let servers = ports
        .iter()
        .map(|port| format!("server 127.0.0.1:{port} fail_timeout=1s;"));
    let port = support::port::free_port();
    let status = if is_nginx() {
        "return 404;"
    } else {
        "metrics;"
    };
    let lines = format!(
        "location /metrics {{ {status} }}
         [http]
         upstream behind {{ zone behind 256k; {} keepalive 16; }}
         server {{ listen 127.0.0.1:{port} http2; location / {{ grpc_pass behind; {next} }} }}",
        servers.collect::<String>()
    );
    let server = Server::start_workers(2, engine, &lines);

    let mut asking = client(port, "load", "", &[&CHANNELS.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(asking.stdout.take().unwrap());
    let mut begun = String::new();
    output.read_line(&mut begun).unwrap();
    assert_eq!(begun, "begun\n");
    for server in &mut behind[..killed] {
        thread::sleep(Duration::from_millis(300));
        server.kill();
        thread::sleep(Duration::from_millis(400));
        server.start_again();
        thread::sleep(Duration::from_millis(1100));
    }
    drop(asking.stdin.take());
    let mut told = String::new();
    output.read_to_string(&mut told).unwrap();
    assert!(asking.wait().unwrap().success());

    let (mut answered, mut failed) = (Vec::new(), Vec::new());
    for line in told.lines() {
        let (count, outcome) = line.split_once(' ').unwrap();
        let count = count.parse().unwrap();
        match outcome.strip_prefix("OK ") {
            Some(name) => answered.push((name.to_owned(), count)),
            None => failed.push((outcome.to_owned(), count)),
        }
    }
    let metrics = server.connect().get("/metrics").unwrap().body;
    let (metrics, log) = (String::from_utf8(metrics).unwrap(), server.error_log());
    let fails = |port: &u16| {
        let name = format!(
            "tidegate_upstream_fails_total{{upstream=\"behind\",server=\"127.0.0.1:{port}\""
        );
        let line = metrics.lines().find(|line| line.starts_with(&name));
        let counted = line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap());
        let place = format!("upstream: \"grpc://127.0.0.1:{port}\"");
        let named = log
            .lines()
            .filter(|line| line.contains("[error]") && line.contains(&place));
        (counted, named.count())
    };
    Outcome {
        answered,
        failed,
        fails: ports.iter().map(fails).collect(),
    }
}

fn killed_servers_cost_no_call_that_may_be_given_to_another(engine: &'static str) {
    let next = "grpc_next_upstream error timeout non_idempotent;";
    let outcome = kill_under_load(engine, next, 3);
    if is_nginx() {
        return; // it gives to another only what has not been sent
    }
    // But for those of which some had been passed on before the rest came.
    let failed: usize = outcome.failed.iter().map(|(_, count)| count).sum();
    assert!(failed <= 3, "{:?}", outcome.failed);
    assert_eq!(outcome.answered.len(), 3);
    for (counted, named) in outcome.fails {
        assert!(counted > 0);
        assert_eq!(counted, named as u64);
    }
}

support::test_on_each_engine!(killed_servers_cost_no_call_that_may_be_given_to_another);

fn other_calls_fail_with_the_server_that_had_them(engine: &'static str) {
    let outcome = kill_under_load(engine, "", 1);
    assert_eq!(outcome.failed.len(), 1, "{:?}", outcome.failed);
    let (how, count) = &outcome.failed[0];
    let expected = if is_nginx() {
        "UNAVAILABLE Received http2 header with status: 502"
    } else {
        "UNAVAILABLE upstream is unavailable"
    };
    assert_eq!(how, expected);
    assert!(*count <= 4 * CHANNELS, "{count}");
    assert_eq!(outcome.answered.len(), 3);
    if !is_nginx() {
        let (counted, named) = outcome.fails[0];
        assert!(counted >= *count as u64);
        assert_eq!(counted, named as u64);
        assert_eq!(outcome.fails[1..], [(0, 0), (0, 0)]);
    }
}

support::test_on_each_engine!(other_calls_fail_with_the_server_that_had_them);
