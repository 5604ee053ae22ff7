//! Collectors that are slow, down or refuse, and spans that are under way when something ends.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use support::Server;

use crate::tracing::process::Collector;

/// A server whose exporter says this.
fn server(engine: &str, exporter: &str, lines: &str) -> Server {
    Server::start(engine, &lines_of(exporter, lines))
}

fn lines_of(exporter: &str, lines: &str) -> String {
    format!(
        "{lines} location /ok {{ otel_trace on; return 200 OK; }}
         [http]
         otel_exporter {{ {exporter} }}"
    )
}

fn ask(server: &Server, count: usize) {
    let mut connection = server.connect();
    for _ in 0..count {
        assert_eq!(connection.get("/ok").unwrap().status, 200);
    }
}

/// How many spans each batch has that has come.
fn sizes(collector: &Collector) -> Vec<usize> {
    let batches = collector.batches();
    let sizes = batches
        .iter()
        .map(|batch| batch["spans"].as_array().unwrap().len());
    sizes.collect()
}

fn batches_are_as_large_and_as_late_as_they_may_be(engine: &'static str) {
    let Some(collector) = Collector::start("takes") else {
        return;
    };
    let port = collector.port;
    let before = sizes(&collector).len();
    let exporter = format!("endpoint 127.0.0.1:{port}; interval 1h; batch_size 3; batch_count 3;");
    let server_of_three = server(engine, &exporter, "");
    ask(&server_of_three, 7);
    let begin = Instant::now();
    while sizes(&collector).len() < before + 2 {
        assert!(begin.elapsed() < support::PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(sizes(&collector)[before..], [3, 3]);
    // What is left comes when the server ends.
    server_of_three.signal("QUIT");
    let begin = Instant::now();
    while sizes(&collector).len() < before + 3 {
        assert!(
            begin.elapsed() < support::PATIENCE,
            "{}",
            server_of_three.error_log()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(sizes(&collector)[before + 2..], [1]);
    drop(server_of_three);
    let exporter = format!("endpoint 127.0.0.1:{port}; interval 300ms;");
    let server_of_many = server(engine, &exporter, "");
    ask(&server_of_many, 7);
    let spans: usize = sizes(&collector)[before + 3..].iter().sum();
    assert!(spans < 7, "nothing is sent before its time");
    collector.wait_for_spans(before + 14);
    let begin = Instant::now();
    while sizes(&collector)[before + 3..].iter().sum::<usize>() < 7 {
        assert!(begin.elapsed() < support::PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
}

support::test_on_each_engine!(batches_are_as_large_and_as_late_as_they_may_be);

/// A collector that takes connections and never reads.
fn what_nobody_takes_is_dropped_and_counted(engine: &'static str) {
    let never_reads = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = never_reads.local_addr().unwrap().port();
    let exporter = format!("endpoint 127.0.0.1:{port}; interval 1h; batch_size 10; batch_count 2;");
    let server = server(engine, &exporter, "");
    ask(&server, 500);
    let log = server.error_log();
    let dropped = |line: &str| {
        let (_, rest) = line.split_once("OTel dropped records: ")?;
        rest.split(',').next()?.parse::<u64>().ok()
    };
    let counts: Vec<_> = log.lines().filter_map(dropped).collect();
    // A line a second, and of 20 spans that there is room for none is lost.
    assert!(!counts.is_empty() && counts.len() <= 30, "{log}");
    assert!(counts.iter().all(|count| *count <= 480), "{log}");
    // The call ends at its deadline, and makes room.
    let begin = Instant::now();
    while !server.error_log().contains("OTel export failure:") {
        assert!(
            begin.elapsed() < support::PATIENCE,
            "{}",
            server.error_log()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = server.error_log();
    assert!(log.contains("10 spans lost"), "{log}");
}

support::test_on_each_engine!(what_nobody_takes_is_dropped_and_counted);

fn a_collector_that_comes_back_gets_what_is_new(engine: &'static str) {
    let Some(mut collector) = Collector::start("takes") else {
        return;
    };
    let port = collector.port;
    let before: usize = sizes(&collector).iter().sum();
    let exporter = format!("endpoint 127.0.0.1:{port}; interval 10ms;");
    let server = server(engine, &exporter, "");
    ask(&server, 1);
    assert_eq!(collector.wait_for_spans(before + 1), before + 1);
    collector.kill();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        ask(&server, 1);
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = server.error_log();
    let told = log.matches("OTel export failure:").count();
    assert!(
        (1..=4).contains(&told),
        "{told} lines in two seconds\n{log}"
    );
    assert!(log.contains("connect() failed (111: Connection refused) while connecting to upstream, otel_exporter: \"127.0.0.1:"), "{log}");
    collector.start_again();
    ask(&server, 1);
    assert!(collector.wait_for_spans(before + 2) >= before + 2);
}

support::test_on_each_engine!(a_collector_that_comes_back_gets_what_is_new);

#[test]
fn what_a_collector_says_of_spans_is_told() {
    for (behaviour, told) in [
        (
            "refuses",
            "OTel export failure: grpc-status 7: who are you?, 1 spans lost, otel_exporter: \"127.0.0.1:",
        ),
        (
            "rejects",
            "OTel export failure: partial success: too old, 1 spans lost, otel_exporter: \"127.0.0.1:",
        ),
    ] {
        let Some(collector) = Collector::start(behaviour) else {
            return;
        };
        let exporter = format!("endpoint 127.0.0.1:{}; interval 10ms;", collector.port);
        let server = server("", &exporter, "");
        ask(&server, 1);
        server.wait_for_log(told);
    }
}

/// A request of the generation before ends long after the reload: its span goes where that
/// generation's go, and so does what was gathered before it.
fn a_reload_loses_no_span(engine: &'static str) {
    let (Some(first), Some(second)) = (Collector::start("takes"), Collector::start("takes")) else {
        return;
    };
    let before: [usize; 2] = [&first, &second].map(|one| sizes(one).iter().sum());
    let slow = "location /slow { otel_trace on; limit_rate 20k; }";
    let exporter = |collector: &Collector| {
        format!(
            "endpoint 127.0.0.1:{}; interval 1h; batch_size 100;",
            collector.port
        )
    };
    let server = server(engine, &exporter(&first), slow);
    server.write("slow", &[b'x'; 30_000]);
    ask(&server, 5);
    let mut under_way = server.connect();
    under_way.send("/slow", "").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    server.reload(&lines_of(&exporter(&second), slow));
    server.wait_for_log("reconfiguring");
    // What had been gathered is sent at once.
    assert_eq!(first.wait_for_spans(before[0] + 5), before[0] + 5);
    ask(&server, 3);
    assert_eq!(
        under_way.receive(Duration::ZERO).unwrap().body.len(),
        30_000
    );
    drop(under_way);
    assert_eq!(first.wait_for_spans(before[0] + 6), before[0] + 6);
    server.signal("QUIT");
    assert_eq!(second.wait_for_spans(before[1] + 3), before[1] + 3);
}

support::test_on_each_engine!(a_reload_loses_no_span);

fn the_collector_must_be_whom_it_claims_to_be(engine: &'static str) {
    let files = ["key", "crt"].map(|kind| {
        format!(
            "{}/tests/tls/upstream/good.example.{kind}",
            env!("CARGO_MANIFEST_DIR")
        )
    });
    let Some(collector) = Collector::start_with("takes", &files) else {
        return;
    };
    let port = collector.port;
    let ca = format!("{}/tests/tls/upstream/ca.crt", env!("CARGO_MANIFEST_DIR"));
    let before: usize = sizes(&collector).iter().sum();
    // The name is that of the endpoint; an upstream block says where it is.
    let trusting = |name: &str, trusted: &str| {
        let exporter = format!("endpoint https://{name}; interval 10ms; {trusted}");
        let lines = lines_of(&exporter, "");
        let upstream = format!("upstream {name} {{ server 127.0.0.1:{port}; }}");
        Server::start(engine, &format!("{lines}\n{upstream}"))
    };
    let trusted = format!("trusted_certificate {ca};");
    let good = trusting("good.example", &trusted);
    ask(&good, 1);
    assert_eq!(
        collector.wait_for_spans(before + 1),
        before + 1,
        "{}",
        good.error_log()
    );
    let other = trusting("other.example", &trusted);
    ask(&other, 1);
    other.wait_for_log("upstream SSL certificate does not match \"other.example\"");
    let unknown = trusting("good.example", "");
    ask(&unknown, 1);
    unknown.wait_for_log("upstream SSL certificate verify error");
    assert_eq!(collector.wait_for_spans(before + 1), before + 1);
}

support::test_on_each_engine!(the_collector_must_be_whom_it_claims_to_be);

/// A certificate that vouches for itself and is for an address.
#[test]
fn the_collector_may_be_known_by_its_address() {
    let folder =
        std::env::temp_dir().join(format!("tidegate-collector-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [key, certificate] = ["key", "crt"].map(|kind| folder.join(kind).display().to_string());
    for (name, told) in [
        ("IP:127.0.0.1", None),
        ("IP:127.0.0.2", Some("does not match \"127.0.0.1\"")),
    ] {
        let made = std::process::Command::new("openssl")
            .args([
                "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
            ])
            .args([
                "-addext",
                &format!("subjectAltName={name}"),
                "-keyout",
                &key,
                "-out",
            ])
            .arg(&certificate)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let files = [key.clone(), certificate.clone()];
        let Some(collector) = Collector::start_with("takes", &files) else {
            return;
        };
        let exporter = format!(
            "endpoint https://127.0.0.1:{}; interval 10ms; trusted_certificate {certificate};",
            collector.port
        );
        let server = server("", &exporter, "");
        ask(&server, 1);
        match told {
            None => assert_eq!(collector.wait_for_spans(1), 1, "{}", server.error_log()),
            Some(told) => server.wait_for_log(told),
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
