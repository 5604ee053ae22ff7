//! `tidegate bench compare` from outside, against servers that are made here: a server beside
//! itself, one that is slower on purpose, and ones that do not answer alike.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";

/// A server that does `serve` with every connection, on a thread of its own; it ends with the test.
fn server(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    format!("http://{address}/")
}

/// Answers every request with `answer` after `pause`.
fn answering(answer: &'static [u8], pause: Duration) -> String {
    server(move |mut stream| {
        while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {
            thread::sleep(pause);
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    })
}

fn compare(a: &str, b: &str, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "compare", "--a", a, "--b", b])
        .args(options)
        .output()
        .unwrap()
}

/// The report, and what was said on standard error where there is none.
fn report(a: &str, b: &str, options: &[&str]) -> String {
    let output = compare(a, b, options);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// What the JSON report says of one metric, up to the next one.
fn finding<'a>(report: &'a str, metric: &str) -> &'a str {
    let (_, rest) = report
        .split_once(&format!("\"metric\":\"{metric}\""))
        .unwrap_or_else(|| panic!("no {metric} in {report}"));
    rest.split("\"metric\"").next().unwrap()
}

/// The number behind a name.
fn number(text: &str, name: &str) -> f64 {
    let (_, rest) = text
        .split_once(&format!("\"{name}\":"))
        .unwrap_or_else(|| panic!("no {name} in {text}"));
    rest[..rest.find([',', '}']).unwrap()].parse().unwrap()
}

#[test]
fn a_server_beside_itself() {
    let url = answering(GOOD, Duration::ZERO);
    let pid = std::process::id().to_string();
    let options = ["--rounds", "8", "-n", "40", "-c", "2", "--warmup", "20ms"];
    let processes = ["--pid-a", &*pid, "--pid-b", &*pid];
    let json = report(
        &url,
        &url,
        &[&options[..], &processes, &["--json"]].concat(),
    );
    for metric in [
        "requests_per_second",
        "requests_per_cpu_second",
        "p50_us",
        "p90_us",
        "p99_us",
        "p99.9_us",
    ] {
        let finding = finding(&json, metric);
        let ends = ["low", "median", "high"].map(|name| number(finding, name));
        assert!(0.0 < ends[0] && ends.is_sorted(), "{metric}: {json}");
        assert!(number(finding, "a") > 0.0, "{metric}: {json}");
        assert!(!finding.contains("\"a_beside_itself\":null"), "{json}");
    }
    assert_eq!(
        json.matches("\"succeeded\":40,\"failed\":0,").count(),
        24,
        "{json}"
    );
    assert!(json.contains("\"answers_differ\":[]"), "{json}");

    // The order can be repeated, and another seed gives another one.
    let orders = |text: &str| -> Vec<String> {
        let fields = text.split("\"order\":\"").skip(1);
        fields.map(|field| field[..3].to_owned()).collect()
    };
    let again = report(&url, &url, &[&options[..], &["--json"]].concat());
    assert_eq!((orders(&json).len(), orders(&json)), (8, orders(&again)));
    let other = report(
        &url,
        &url,
        &[&options[..], &["--json", "--seed", "2"]].concat(),
    );
    assert_ne!(orders(&json), orders(&other));

    let text = report(&url, &url, &options);
    assert!(
        text.contains("order from seed 1 (a is A beside itself):"),
        "{text}"
    );
    assert!(text.contains(&orders(&json).join(" ")), "{text}");
    assert!(
        text.contains("answers are alike: status 200, 3 bytes"),
        "{text}"
    );
    let few = report(&url, &url, &["--rounds", "3", "-n", "5", "--warmup", "1ms"]);
    assert!(few.contains("no verdict: fewer than 6 rounds"), "{few}");
}

#[test]
fn a_slower_server_is_found() {
    let quick = answering(GOOD, Duration::ZERO);
    let slow = answering(GOOD, Duration::from_millis(100));
    let options = [
        "--rounds",
        "8",
        "-n",
        "4",
        "-c",
        "1",
        "--warmup",
        "1ms",
        "--not-beside-itself",
        "--json",
    ];
    for (a, b, verdict) in [
        (&quick, &slow, "\"verdict\":\"a_is_better\""),
        (&slow, &quick, "\"verdict\":\"b_is_better\""),
    ] {
        let report = report(a, b, &options);
        for metric in ["requests_per_second", "p50_us"] {
            let finding = finding(&report, metric);
            assert!(finding.contains(verdict), "{metric}: {report}");
        }
    }
}

#[test]
fn answers_are_compared_first() {
    let abc = answering(GOOD, Duration::ZERO);
    let abd = answering(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabd\r\n0\r\n\r\n",
        Duration::ZERO,
    );
    let missing = answering(
        b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
        Duration::ZERO,
    );
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/", listener.local_addr().unwrap())
    };
    let garbage = answering(b"SSH-2.0-OpenSSH\r\n", Duration::ZERO);
    for (b, words) in [
        (
            &abd,
            "differ: the bytes of the body, all 3. --different-answers",
        ),
        (&missing, "differ: status 200 and 404; 3 and 0 bytes."),
        (&nobody, "no connection:"),
        (&garbage, "what came is no response"),
    ] {
        let output = compare(&abc, b, &["--rounds", "1", "-n", "1"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains(words), "{words}: {errors}");
    }
    let options = [
        "--rounds",
        "2",
        "-n",
        "5",
        "--warmup",
        "1ms",
        "--different-answers",
    ];
    let text = report(&abc, &abd, &options);
    assert!(
        text.contains("ANSWERS DIFFER: the bytes of the body"),
        "{text}"
    );
    let header = "their header fields differ: content-length / transfer-encoding";
    assert!(text.contains(header), "{text}");
    // Each request of B's fails, and nothing is said of it.
    let failing = compare(&abc, &missing, &options);
    let text = String::from_utf8_lossy(&failing.stdout);
    assert_eq!(failing.status.code(), Some(1), "{text}");
    assert!(
        text.contains("no verdict: too many requests failed"),
        "{text}"
    );
}

#[test]
fn accounts_that_are_not_there_are_refused() {
    let url = answering(GOOD, Duration::ZERO);
    for (options, code, words) in [
        (
            &["--pid-a", "4294967295", "--pid-b", "1"][..],
            1,
            "process 4294967295: ",
        ),
        (
            &["--cgroup-a", "/no/such", "--cgroup-b", "/x"],
            1,
            "/no/such: no control group",
        ),
        (&["--pid-a", "1"], 2, "--pid-b"),
        (&["--rounds", "0"], 2, "--rounds"),
    ] {
        let output = compare(&url, &url, options);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {errors}");
        assert!(errors.contains(words), "{options:?}: {errors}");
    }
}

#[test]
fn an_interrupt_prints_what_there_was_until_then() {
    let (sender, receiver) = channel();
    let url = server(move |mut stream| {
        while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {
            // Nobody listens any more after the first.
            let _ = sender.send(());
            if stream.write_all(GOOD).is_err() {
                return;
            }
        }
    });
    let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "compare", "--a", &url, "--b", &url])
        .args(["--rounds", "10000", "-d", "60s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    receiver.recv().unwrap();
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\ninterrupted: "), "{text}");
}
