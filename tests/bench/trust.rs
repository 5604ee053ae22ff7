//! What makes the load tester's figures trustworthy: many connections that are held and used, runs
//! of several processes as one report, pauses of a server that show, and a tool that says when it
//! was the limit itself.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support::{PATIENCE, Server, signal};

/// A server that writes a line into `logs/access.log` for every request, and its URL. Its queue
/// takes all connections at once.
fn server() -> (Server, String) {
    let probe = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    drop(probe);
    let server = Server::start(
        "",
        &format!(
            "[http]\nserver {{ listen {address} backlog=4096; root www; access_log logs/access.log; }}"
        ),
    );
    server.write("index.html", b"hello");
    (server, format!("http://{address}/"))
}

fn bench(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("bench")
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn report(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The number behind a name of a JSON report.
fn number(report: &str, name: &str) -> f64 {
    let (_, rest) = report
        .split_once(&format!("\"{name}\":"))
        .unwrap_or_else(|| panic!("no {name} in {report}"));
    let end = rest.find([',', '}']).unwrap();
    rest[..end].parse().unwrap()
}

/// A time of the report's `total_us`, in seconds.
fn total(report: &str, name: &str) -> f64 {
    let (_, totals) = report.split_once("\"total_us\":").unwrap();
    number(totals, name) / 1e6
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tidegate-trust-{}-{name}", std::process::id()))
}

#[test]
fn two_processes_hold_and_use_many_connections_and_report_as_one() {
    let (_server, url) = server();
    let files = ["a", "b"].map(file);
    let sources = ["127.0.1.1-127.0.1.4", "127.0.2.1-127.0.2.4"];
    // Each connection sends ten requests and thinks between them, so that all are open before the
    // first has done its part.
    let runs: Vec<Child> = files
        .iter()
        .zip(sources)
        .map(|(file, source)| {
            let load = [
                "-c",
                "400",
                "-n",
                "4000",
                "--think-time",
                "100ms",
                "--ramp",
                "500ms",
                "--timeout",
                "5m",
            ];
            let saved = [
                "--source",
                source,
                "--save",
                file.to_str().unwrap(),
                "--json",
            ];
            bench(&[&[&*url], &load[..], &saved[..]].concat())
        })
        .collect();
    let reports = runs
        .into_iter()
        .map(|run| report(run.wait_with_output().unwrap()));
    let reports: Vec<String> = reports.collect();
    let names = files.each_ref().map(|file| file.to_str().unwrap());
    let merged = bench(&["merge", names[0], names[1], "--json"]);
    let merged = report(merged.wait_with_output().unwrap());
    for (name, expected) in [
        ("processes", 2.0),
        ("connections", 800.0),
        ("connections_open_max", 800.0),
        ("connections_used", 800.0),
        ("succeeded", 8000.0),
        ("failed", 0.0),
    ] {
        assert_eq!(number(&merged, name), expected, "{name}: {merged}");
    }
    for name in ["bytes_received", "connections_made", "count"] {
        let sum: f64 = reports.iter().map(|report| number(report, name)).sum();
        assert_eq!(number(&merged, name), sum, "{name}: {merged}");
    }
    let slowest = reports
        .iter()
        .map(|report| total(report, "max"))
        .fold(0.0, f64::max);
    assert_eq!(total(&merged, "max"), slowest);
    let text = report(
        bench(&["merge", names[0], names[1]])
            .wait_with_output()
            .unwrap(),
    );
    assert!(text.contains(": 2 processes, 800 connections, "), "{text}");

    // What cannot be one report is refused.
    std::fs::write(&files[1], "hello\n").unwrap();
    let refused = bench(&["merge", names[0], names[1]])
        .wait_with_output()
        .unwrap();
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && errors.contains("not a run saved"),
        "{errors}"
    );
    files
        .iter()
        .for_each(|file| std::fs::remove_file(file).unwrap());
}

/// The report of a run with these arguments, during which the server is stopped for two seconds.
fn report_of_a_pause(server: &Server, arguments: &[&str]) -> String {
    let log = server.prefix.join("logs/access.log");
    let logged = || std::fs::metadata(&log).map_or(0, |log| log.len());
    let before = logged();
    let run = bench(arguments);
    let begin = Instant::now();
    while logged() == before {
        assert!(begin.elapsed() < PATIENCE, "no request has come");
        thread::sleep(Duration::from_millis(2));
    }
    let workers = server.workers();
    workers.iter().for_each(|worker| signal(*worker, "STOP"));
    thread::sleep(Duration::from_secs(2));
    workers.iter().for_each(|worker| signal(*worker, "CONT"));
    report(run.wait_with_output().unwrap())
}

#[test]
fn a_server_that_stops_for_two_seconds_shows_in_the_open_loop_only() {
    let (server, url) = server();
    // 200 of 500 requests are to start while nobody answers.
    let open = report_of_a_pause(
        &server,
        &[
            &url,
            "-c",
            "10",
            "--rate",
            "100",
            "-n",
            "500",
            "--timeout",
            "5m",
            "--json",
        ],
    );
    assert!(total(&open, "p99") > 1.0, "{open}");
    assert_eq!(number(&open, "succeeded"), 500.0, "{open}");
    // A client that waits for its answer meets the pause once.
    let closed = report_of_a_pause(
        &server,
        &[
            &url,
            "-c",
            "1",
            "--think-time",
            "10ms",
            // As many as a 99th percentile needs.
            "-n",
            "500",
            "--json",
        ],
    );
    assert!(total(&closed, "max") > 1.9, "{closed}");
    assert!(total(&closed, "p99") < 1.0, "{closed}");
}

#[test]
fn a_tool_without_descriptors_says_so_first() {
    let (_server, url) = server();
    let program = env!("CARGO_BIN_EXE_tidegate");
    let command = format!("ulimit -n 60; exec {program} bench -c 100 -n 300 --timeout 5s {url}");
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let warned = "100 connections need more descriptors than the 60 that this process may have";
    assert!(errors.contains(warned), "{errors}");
    // On a busy machine it may say more than this; all of it comes first.
    let mut limits = text
        .lines()
        .map_while(|line| line.strip_prefix("THE TOOL WAS THE LIMIT: "));
    assert!(
        limits.any(|limit| limit.contains("for lack of descriptors")),
        "{text}"
    );
}

#[test]
fn sources_and_remote_hosts_are_looked_at_before_the_run() {
    for (arguments, words) in [
        (
            &["http://127.0.0.1:1/", "--source", "192.0.2.1"][..],
            "--source 192.0.2.1: ",
        ),
        // RFC 5737 and RFC 3849: for documentation.
        (&["http://192.0.2.1/"], "--allow-remote 192.0.2.1"),
        (&["http://[2001:db8::1]/"], "--allow-remote 2001:db8::1"),
        (
            &["http://192.0.2.1/", "--allow-remote", "192.0.2.2"],
            "--allow-remote 192.0.2.1",
        ),
    ] {
        let output = bench(arguments).wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && errors.contains(words),
            "{errors}"
        );
    }
}
