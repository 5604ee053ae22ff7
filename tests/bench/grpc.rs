//! `tidegate bench --grpc`: against servers that are made here, which answer calls in every way,
//! and against one with Python's grpcio (Debian's package python3-grpcio), which counts what it
//! got; in the clear, and through TLS by a Tidegate before it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use proto::h2::ErrorCode;
use proto::h2::frame::{self, FrameHead, Kind, flags};
use proto::h2::hpack::Decoder;
use proto::h2::hpack::literal::{self, FieldName};
use support::Server;
use support::http2::put_data;
use support::load::{bench, http2_server, number, report};
use support::port::free_port;

/// A file of tests.
fn file(name: &str) -> String {
    format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// One call as a server got it.
#[derive(Default)]
struct Call {
    stream: u32,
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Call {
    fn method(&self) -> &str {
        self.fields[":path"].rsplit('/').next().unwrap()
    }

    /// What a call must look like (the protocol's "Request-Headers"): `None` where it does.
    fn fault(&self) -> Option<String> {
        let expected = [
            (":method", "POST"),
            (":scheme", "http"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ];
        for (name, value) in expected {
            if self.fields.get(name).is_none_or(|found| found != value) {
                return Some(format!("{name}: {:?}", self.fields.get(name)));
            }
        }
        let announced = self.body.get(1..5).map(|four| four.try_into().unwrap());
        let announced = announced.map(u32::from_be_bytes);
        let is_one = self.body.first() == Some(&0) && announced == Some(self.body.len() as u32 - 5);
        (!is_one).then(|| format!("no message: {:?}", self.body))
    }
}

/// A server of HTTP/2 that gives each call, once it is whole, to `answer`.
fn server(answer: impl Fn(&Call, &mut Vec<u8>) -> bool + Clone + Send + 'static) -> String {
    let url = http2_server(move || {
        let answer = answer.clone();
        let (mut decoder, mut calls) = (Decoder::new(), BTreeMap::<u32, Call>::new());
        move |head: FrameHead, payload: Vec<u8>, out: &mut Vec<u8>| {
            if !matches!(head.kind, Kind::Headers | Kind::Data) {
                return true;
            }
            let call = calls.entry(head.stream).or_default();
            call.stream = head.stream;
            if head.kind == Kind::Data {
                call.body.extend_from_slice(&payload);
                if !payload.is_empty() {
                    frame::put_window_update(out, 0, head.length);
                    frame::put_window_update(out, head.stream, head.length);
                }
            } else {
                let mut bytes = Vec::new();
                let text = |span: proto::Span, bytes: &[u8]| {
                    String::from_utf8_lossy(span.of(bytes)).into_owned()
                };
                let found = decoder.decode(&payload, 65_536, &mut bytes, |field, bytes| {
                    let (name, value) = (text(field.name, bytes), text(field.value, bytes));
                    call.fields.insert(name, value);
                });
                found.unwrap();
            }
            if !head.has(flags::END_STREAM) {
                return true;
            }
            let call = calls.remove(&head.stream).unwrap();
            answer(&call, out)
        }
    });
    url.trim_end_matches('/').to_owned()
}

/// The head of an answer with this media type; with `ends` it has a status of gRPC and is all of
/// it.
fn put_head(out: &mut Vec<u8>, stream: u32, status: u16, media_type: &str, ends: Option<&str>) {
    let mut block = Vec::new();
    literal::status(status, &mut block);
    let name = FieldName::of(b"content-type");
    literal::field(name, media_type.as_bytes(), &mut block);
    if let Some(status) = ends {
        let name = FieldName::of(b"grpc-status");
        literal::field(name, status.as_bytes(), &mut block);
    }
    frame::put_header_block(out, stream, &block, ends.is_some(), 16_384);
}

fn put_trailers(out: &mut Vec<u8>, stream: u32, fields: &[(&str, &str)]) {
    let mut block = Vec::new();
    for (name, value) in fields {
        let name = FieldName::of(name.as_bytes());
        literal::field(name, value.as_bytes(), &mut block);
    }
    frame::put_header_block(out, stream, &block, true, 16_384);
}

/// A whole answer: this message, and this status.
fn put_answer(out: &mut Vec<u8>, stream: u32, message: &[u8], status: &str) {
    put_head(out, stream, 200, "application/grpc", None);
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    put_data(out, stream, &[&[0], &length[..], message].concat(), false);
    put_trailers(out, stream, &[("grpc-status", status)]);
}

/// Answers as the method is called; what is no call as it should be has INVALID_ARGUMENT.
fn scripted() -> String {
    server(|call, out| {
        let stream = call.stream;
        if call.fault().is_some() {
            put_head(out, stream, 200, "application/grpc", Some("3"));
            return true;
        }
        match call.method() {
            "Echo" => put_answer(out, stream, &call.body[5..], "0"),
            // The message comes in three frames, in the middle of the prefix, too.
            "Pieces" => {
                put_head(out, stream, 200, "application/grpc+proto", None);
                put_data(out, stream, &[0, 0], false);
                put_data(out, stream, &[0, 0, 3, b'a'], false);
                put_data(out, stream, b"bc", false);
                let fields = [("grpc-message", "fine"), ("grpc-status", "0")];
                put_trailers(out, stream, &fields);
            }
            // Every fifth call, counted by streams, which are odd.
            "Some" if stream % 10 == 9 => {
                put_head(out, stream, 200, "application/grpc", Some("14"))
            }
            "Some" => put_answer(out, stream, b"abc", "0"),
            "Later" => {
                put_head(out, stream, 200, "application/grpc", None);
                put_trailers(out, stream, &[("grpc-status", "5")]);
            }
            "Unnamed" => put_head(out, stream, 200, "application/grpc", Some("99")),
            // As a proxy answers that has no server to ask.
            "Proxy" => put_head(out, stream, 503, "application/grpc", Some("14")),
            "None" => {
                put_head(out, stream, 200, "application/grpc", None);
                put_data(out, stream, &[0; 5], false);
                put_trailers(out, stream, &[("x-other", "0")]);
            }
            "Cut" => {
                put_head(out, stream, 200, "application/grpc", None);
                put_data(out, stream, &[0; 5], true);
            }
            "Word" => put_head(out, stream, 200, "application/grpc", Some("OK")),
            "Page" => {
                put_head(out, stream, 200, "text/html", None);
                put_data(out, stream, &[0; 5], false);
                put_trailers(out, stream, &[("grpc-status", "0")]);
            }
            "Empty" => put_head(out, stream, 200, "application/grpc", Some("0")),
            "Short" => {
                put_head(out, stream, 200, "application/grpc", None);
                put_data(out, stream, &[0, 0, 0, 0, 2, b'a'], false);
                put_trailers(out, stream, &[("grpc-status", "0")]);
            }
            "Two" => {
                put_head(out, stream, 200, "application/grpc", None);
                put_data(out, stream, &[0; 10], false);
                put_trailers(out, stream, &[("grpc-status", "0")]);
            }
            _ => frame::put_reset(out, stream, ErrorCode::Cancel),
        }
        true
    })
}

/// What stands in a report behind a name, in its braces.
fn object<'a>(report: &'a str, name: &str) -> &'a str {
    let (_, rest) = report.split_once(&format!("\"{name}\":{{")).unwrap();
    rest.split_once('}').unwrap().0
}

/// A file that ends with the test.
struct TemporaryFile(String);

impl TemporaryFile {
    fn new(text: &[u8]) -> TemporaryFile {
        let name = format!("tidegate-bench-grpc-{}-{}", std::process::id(), free_port());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, text).unwrap();
        TemporaryFile(path.display().to_string())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn every_answer_counts_by_its_status_and_its_kind() {
    let url = scripted();
    for (method, statuses, failure) in [
        ("Echo", "\"OK\":60", None),
        ("Pieces", "\"OK\":60", None),
        ("Later", "\"NOT_FOUND\":60", Some("grpc_status")),
        ("Unnamed", "\"99\":60", Some("grpc_status")),
        ("Proxy", "\"UNAVAILABLE\":60", Some("grpc_status")),
        ("None", "", Some("not_grpc")),
        ("Cut", "", Some("not_grpc")),
        ("Word", "", Some("not_grpc")),
        ("Page", "", Some("not_grpc")),
        ("Empty", "\"OK\":60", Some("grpc_message")),
        ("Short", "\"OK\":60", Some("grpc_message")),
        ("Two", "\"OK\":60", Some("grpc_message")),
        ("Reset", "", Some("stream_reset")),
    ] {
        let url = format!("{url}/test.Calls/{method}");
        let fixed = ["--grpc", "-n", "60", "-c", "2", "--streams", "4"];
        let report = report(&[&[&*url], &fixed[..]].concat());
        let succeeded = if failure.is_none() { 60.0 } else { 0.0 };
        let found = ["succeeded", "failed"].map(|name| number(&report, name));
        assert_eq!(found, [succeeded, 60.0 - succeeded], "{method}: {report}");
        assert_eq!(object(&report, "grpc_statuses"), statuses, "{method}");
        if let Some(failure) = failure {
            assert_eq!(number(&report, failure), 60.0, "{method}: {report}");
        }
        assert!(report.contains("\"protocol\":\"gRPC\""), "{report}");
    }
}

#[test]
fn statuses_are_counted_apart_and_named() {
    let url = format!("{}/test.Calls/Some", scripted());
    let fixed = [&*url, "--grpc", "-n", "100", "-c", "1", "--streams", "10"];
    let output = bench(&fixed);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for words in [
        "gRPC with 10 streams on each, closed loop",
        "80 as expected, 20 failed",
        "\n  status 200: 100\n  gRPC status 0 OK: 80\n  gRPC status 14 UNAVAILABLE: 20\n  unexpected gRPC status: 20\n",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let expected = ["--expect-status", "14"];
    let report = report(&[&fixed[..], &expected].concat());
    assert_eq!(number(&report, "succeeded"), 20.0, "{report}");
    assert_eq!(
        object(&report, "grpc_statuses"),
        "\"OK\":80,\"UNAVAILABLE\":20"
    );
}

#[test]
fn messages_come_from_a_body_or_a_file() {
    let got = Arc::new(Mutex::new(BTreeMap::new()));
    let counted = Arc::clone(&got);
    let url = server(move |call, out| {
        let mut got = counted.lock().unwrap();
        *got.entry(call.body.clone()).or_insert(0) += 1;
        put_answer(out, call.stream, &call.body[5..], "0");
        true
    });
    let url = format!("{url}/test.Calls/Echo");
    let framed = |message: &[u8]| {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[0], &length[..], message].concat()
    };
    // "", "abc" and three bytes that are no text.
    let messages = TemporaryFile::new(b"\nYWJj\n/wD+\n");
    let one = TemporaryFile::new(&[0xff; 70_000]);
    let of_file = format!("@{}", one.0);
    for (options, expected) in [
        (&[][..], vec![framed(b"")]),
        (&["--body", "abcde"], vec![framed(b"abcde")]),
        (&["--body", &of_file], vec![framed(&[0xff; 70_000])]),
        (
            &["--message-file", &messages.0],
            [&b""[..], b"abc", b"\xff\0\xfe"].map(framed).into(),
        ),
    ] {
        let fixed = [&*url, "--grpc", "-n", "300", "-c", "3", "--streams", "5"];
        let report = report(&[&fixed[..], options].concat());
        assert_eq!(number(&report, "succeeded"), 300.0, "{options:?}: {report}");
        let got = std::mem::take(&mut *got.lock().unwrap());
        assert_eq!(got.values().sum::<u32>(), 300, "{options:?}");
        assert_eq!(got.into_keys().collect::<Vec<_>>(), expected, "{options:?}");
    }
}

#[test]
fn both_loops_and_every_kind_of_connection_call() {
    let url = format!("{}/test.Calls/Echo", scripted());
    let set = TemporaryFile::new(b"x-other: 1");
    for options in [
        &["-c", "3"][..],
        &["-c", "4", "-t", "2", "--streams", "5"],
        &["-c", "2", "--new-connections"],
        &["-c", "2", "--streams", "4", "--think-time", "1ms"],
        &["-c", "2", "--streams", "4", "--rate", "3000"],
        &["-c", "1", "--rate", "3000", "--arrivals", "poisson"],
        &["--http2", "-H", "x-id: [00-99]", "--varied"],
        &["-H", "grpc-timeout: 10S", "--header-file", &set.0],
    ] {
        let fixed = [&*url, "--grpc", "-n", "300", "--body", "abc"];
        let report = report(&[&fixed[..], options].concat());
        let found = ["succeeded", "failed", "unfinished", "body_bytes"];
        let found = found.map(|name| number(&report, name));
        assert_eq!(found, [300.0, 0.0, 0.0, 2400.0], "{options:?}: {report}");
    }
}

/// A Tidegate that passes calls on which come through TLS: itself, and its URL.
fn through_tls(to: &str) -> (Server, String) {
    let port = free_port();
    let to = to.strip_prefix("http://").unwrap();
    let (chain, key) = (file("tls/ecdsa.crt"), file("tls/ecdsa.key"));
    let block = format!(
        "[http]\nserver {{ listen 127.0.0.1:{port} ssl; http2 on; ssl_certificate {chain}; ssl_certificate_key {key};\n\
         location / {{ grpc_pass grpc://{to}; }} }}\n"
    );
    let server = Server::start("", &block);
    (server, format!("https://127.0.0.1:{port}"))
}

#[test]
fn calls_go_through_tls() {
    let (_server, url) = through_tls(&scripted());
    let echo = format!("{url}/test.Calls/Echo");
    let fixed = ["--grpc", "--insecure", "-n", "200", "-c", "2"];
    let more = ["--streams", "5", "--body", "abc"];
    let report = report(&[&[&*echo], &fixed[..], &more].concat());
    let found = ["succeeded", "full_handshakes", "body_bytes"].map(|name| number(&report, name));
    assert_eq!(found, [200.0, 2.0, 1600.0], "{report}");
}

#[test]
fn comparisons_sweeps_and_saved_runs_call() {
    let (one, other) = (scripted(), scripted());
    let compare = |a: &str, b: &str| {
        let (a, b) = (
            format!("{one}/test.Calls/{a}"),
            format!("{other}/test.Calls/{b}"),
        );
        let pair = ["compare", "--a", &a, "--b", &b, "--warmup", "1ms"];
        let load = ["--grpc", "--streams", "3", "--rounds", "2", "-n", "20"];
        let output = bench(&[&pair[..], &load].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), text + &errors)
    };
    let (code, text) = compare("Pieces", "Some");
    assert_eq!(code, Some(0), "{text}");
    for words in [
        "gRPC with 3 streams on each, closed loop",
        // What "\0\0\0\0\x03abc" has by sha256sum(1).
        "answers are alike: status 200, gRPC status 0 OK, 8 bytes, SHA-256 063b1397",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    for (b, words) in [
        (
            "Later",
            "differ: gRPC status OK and NOT_FOUND; 8 and 0 bytes",
        ),
        ("Cut", "what came is no answer of gRPC"),
    ] {
        let (code, text) = compare("Pieces", b);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(words), "{words} in {text}");
    }

    let sweep = |method: &str| {
        let url = format!("{one}/test.Calls/{method}");
        let sweep = ["sweep", &url, "--grpc", "--streams", "3"];
        let steps = ["-c", "1,2,3", "-d", "50ms", "--pause", "1ms", "--json"];
        let output = bench(&[&sweep[..], &steps].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let text = sweep("Echo");
    assert!(
        text.contains("gRPC") && text.contains("3 streams"),
        "{text}"
    );
    assert_eq!(number(&text, "failed"), 0.0, "{text}");
    // UNAVAILABLE is how a call is refused for now.
    let text = sweep("Proxy");
    let shares = ["refused", "failed"].map(|name| number(&text, name));
    assert_eq!(shares, [1.0, 0.0], "{text}");

    let saved = TemporaryFile::new(b"");
    let url = format!("{one}/test.Calls/Later");
    let run = [&*url, "--grpc", "--streams", "3", "-n", "20"];
    bench(&[&run[..], &["--save", &saved.0]].concat());
    let output = bench(&["merge", &saved.0, &saved.0]);
    let text = String::from_utf8(output.stdout).unwrap();
    for words in ["gRPC with 3 streams on each", "gRPC status 5 NOT_FOUND: 40"] {
        assert!(text.contains(words), "{words} in {text}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let url = "http://127.0.0.1:1/test.Calls/Echo";
    let not_base64 = TemporaryFile::new(b"YWJj\n{\"a\": 1}\n");
    let empty = TemporaryFile::new(b"");
    for (arguments, code, words) in [
        (&[url, "--grpc", "--pipeline", "2"][..], 2, "--pipeline"),
        (&[url, "--grpc", "-X", "GET"], 2, "--method"),
        (&[url, "--message-file", "x"], 2, "--grpc"),
        (
            &[url, "--grpc", "--message-file", "x", "--body", "y"],
            2,
            "--body",
        ),
        (
            &["http://127.0.0.1:1/Echo", "--grpc"],
            1,
            "http://127.0.0.1:1/Echo: the path of a call is /PACKAGE.SERVICE/METHOD",
        ),
        (
            &[url, "--grpc", "--message-file", &not_base64.0],
            1,
            "line 2: no message in Base64",
        ),
        (
            &[url, "--grpc", "--message-file", &empty.0],
            1,
            "there is no message",
        ),
        (
            &[url, "--grpc", "--message-file", "/nowhere/x"],
            1,
            "/nowhere/x: No such file",
        ),
        (
            &[url, "--grpc", "--expect-status", "200"],
            1,
            "--expect-status 200 is not a status of gRPC: 0 to 16",
        ),
        (
            &[url, "--expect-status", "14"],
            1,
            "--expect-status 14 is not a status: 200 to 999",
        ),
        (
            &["ab", "--grpc", url],
            1,
            "bench ab asks by HTTP/1, as ab does: --grpc is for",
        ),
    ] {
        let output = bench(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }
}

/// A server with Python's grpcio.
struct Python {
    child: Child,
    output: BufReader<ChildStdout>,
    port: u16,
}

impl Python {
    /// `None` where there is none.
    fn start() -> Option<Python> {
        let python = || {
            let mut command = Command::new("/usr/bin/python3");
            command.stdin(Stdio::null());
            command
        };
        let has_it = python().args(["-c", "import grpc"]).output();
        if !has_it.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: there is no grpcio (Debian: python3-grpcio)");
            return None;
        }
        let mut child = python()
            .arg(file("bench/grpc_server.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut python = Python {
            child,
            output,
            port: 0,
        };
        python.port = python.line().parse().unwrap();
        Some(python)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Calls of Echo and of Missing so far, and bytes of the messages that Echo got.
    fn counted(&mut self) -> [f64; 3] {
        let mut input = self.child.stdin.as_ref().unwrap();
        input.write_all(b"\n").unwrap();
        let line = self.line();
        let numbers = line.split(' ').map(|number| number.parse().unwrap());
        let numbers: Vec<f64> = numbers.collect();
        numbers.try_into().unwrap()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_with_grpcio_counts_as_many_calls() {
    let Some(mut python) = Python::start() else {
        return;
    };
    let clear = format!("http://127.0.0.1:{}", python.port);
    let (_server, secure) = through_tls(&clear);
    let messages = TemporaryFile::new(b"\nYWJj\n/wD+\n");
    let large = TemporaryFile::new(&[0xff; 200_000]);
    let large = format!("@{}", large.0);
    let mut expected = [0.0; 3];
    for url in [&clear, &secure] {
        for (method, options, statuses) in [
            ("Echo", &["--message-file", &*messages.0][..], "\"OK\":400"),
            ("Echo", &["--rate", "2000", "--body", "abc"], "\"OK\":400"),
            ("Echo", &["--body", &large], "\"OK\":400"),
            ("Missing", &["--body", "abc"], "\"NOT_FOUND\":400"),
            ("Unknown", &[], "\"UNIMPLEMENTED\":400"),
        ] {
            let url = format!("{url}/test.Calls/{method}");
            let fixed = ["--grpc", "--insecure", "-n", "400", "-c", "2"];
            let fixed = [&fixed[..], &["--streams", "10"]].concat();
            let report = report(&[&[&*url], &fixed[..], options].concat());
            assert_eq!(object(&report, "grpc_statuses"), statuses, "{report}");
            let succeeded = if method == "Echo" { 400.0 } else { 0.0 };
            assert_eq!(number(&report, "succeeded"), succeeded, "{report}");
            match method {
                "Echo" => {
                    expected[0] += 400.0;
                    expected[2] += number(&report, "body_bytes") - 400.0 * 5.0;
                }
                "Missing" => expected[1] += 400.0,
                _ => {}
            }
            assert_eq!(python.counted(), expected, "{url} {options:?}");
        }
    }
}
