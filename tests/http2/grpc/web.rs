//! gRPC-Web: what a browser sends and gets, which is curl's part here.
//!
//! <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md>. nginx knows nothing of it.

use std::io::Write;
use std::process::{Command, Stdio};

use proto::base64::{self, Alphabet};
use support::{Server, is_nginx};

use crate::grpc::process::Python;

/// How curl speaks HTTP.
const VERSIONS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

/// An answer.
#[derive(Debug)]
struct Answer {
    status: String,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }

    fn media_type(&self) -> &str {
        self.field("content-type").unwrap_or_default()
    }

    /// The messages of a body, and the lines of its trailers.
    fn frames(&self) -> (Vec<Vec<u8>>, Vec<String>) {
        let decoded = if self.media_type().contains("-text") {
            decode(&self.body)
        } else {
            self.body.clone()
        };
        let (mut messages, mut trailers, mut rest) = (Vec::new(), Vec::new(), &*decoded);
        while let Some((head, behind)) = rest.split_first_chunk::<5>() {
            let [flags, length @ ..] = *head;
            let (frame, behind) = behind.split_at(u32::from_be_bytes(length) as usize);
            assert!(trailers.is_empty(), "trailers are the end: {self:?}");
            match flags {
                0 => messages.push(frame.to_vec()),
                0x80 => trailers = text_lines(frame),
                other => panic!("flags of {other}: {self:?}"),
            }
            rest = behind;
        }
        assert!(rest.is_empty(), "a frame is cut off: {self:?}");
        (messages, trailers)
    }
}

fn text_lines(frame: &[u8]) -> Vec<String> {
    let text = String::from_utf8(frame.to_vec()).unwrap();
    assert!(text.ends_with("\r\n"), "{text:?}");
    text.lines().map(str::to_owned).collect()
}

/// Base64 in pieces, each padded.
fn decode(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    for four in text.chunks(4) {
        assert!(base64::decode(four, Alphabet::Standard, &mut decoded));
    }
    decoded
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat()
}

fn encoded(message: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    base64::encode(&framed(message), &mut text);
    text
}

/// A call.
fn call(version: &str, port: u16, path: &str, fields: &[&str], body: &[u8]) -> Answer {
    let mut command = Command::new("curl");
    command.args([
        "-s",
        "-i",
        version,
        "--max-time",
        "60",
        "--data-binary",
        "@-",
    ]);
    for field in fields {
        command.args(["-H", field]);
    }
    let mut curl = command
        .arg(format!("http://127.0.0.1:{port}{path}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    curl.stdin.take().unwrap().write_all(body).unwrap();
    let output = curl.wait_with_output().unwrap().stdout;
    let end = output.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head: {:?}", output.escape_ascii().to_string()));
    let head = String::from_utf8(output[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
    Answer {
        status,
        head,
        body: output[end + 4..].to_vec(),
    }
}

const BINARY: &str = "Content-Type: application/grpc-web+proto";
const TEXT: &str = "Content-Type: application/grpc-web-text";

fn browsers_make_calls(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let behind = Python::start("behind", 0);
    let lines = format!(
        "http2 on; grpc_web on; client_max_body_size 64k;
             location / {{ grpc_pass 127.0.0.1:{}; }}
             location /off/ {{ grpc_web off; rewrite ^/off(.*) $1 break; grpc_pass 127.0.0.1:{}; }}
             location /shown/ {{ grpc_pass_header X-Accel-Expires; rewrite ^/shown(.*) $1 break; grpc_pass 127.0.0.1:{}; }}
             location /none/ {{ grpc_pass 127.0.0.1:1; }}",
        behind.port, behind.port, behind.port
    );
    let server = Server::start(engine, &lines);
    for version in VERSIONS {
        let call = |path: &str, fields: &[&str], body: &[u8]| {
            call(version, server.port, path, fields, body)
        };
        let status = |lines: &[String], status: u32| {
            let line = format!("grpc-status: {status}");
            assert!(lines.contains(&line), "{version} {lines:?}");
        };

        let echo = call("/test.Calls/Echo", &[BINARY, "x-a: b"], &framed(b"hi"));
        assert_eq!(echo.media_type(), "application/grpc-web+proto", "{echo:?}");
        assert_eq!(echo.field("x-a"), Some("b"), "{echo:?}");
        let (messages, trailers) = echo.frames();
        assert_eq!(messages, [b"hi"], "{echo:?}");
        status(&trailers, 0);
        assert!(trailers.contains(&"y-a: b".to_owned()), "{trailers:?}");

        // The server sends back what it is sent; this is for proxies as a rule.
        let fields = [BINARY, "x-accel-expires: 5"];
        for (path, expected) in [("", None), ("/shown", Some("5"))] {
            let echo = call(&format!("{path}/test.Calls/Echo"), &fields, &framed(b"a"));
            assert_eq!(echo.field("x-accel-expires"), expected, "{echo:?}");
        }

        let echo = call("/test.Calls/Echo", &[TEXT], &encoded(b"text"));
        assert_eq!(echo.media_type(), "application/grpc-web-text", "{echo:?}");
        let (messages, trailers) = echo.frames();
        assert_eq!(messages, [b"text"], "{echo:?}");
        status(&trailers, 0);

        for (kind, body) in [(BINARY, framed(b"3 40000")), (TEXT, encoded(b"3 40000"))] {
            let count = call("/test.Calls/Count", &[kind], &body);
            let (messages, trailers) = count.frames();
            let lengths: Vec<_> = messages.iter().map(Vec::len).collect();
            assert_eq!(lengths, [40_000; 3], "{version} {kind}");
            assert!(messages[2].starts_with(b"2 .."), "{version} {kind}");
            status(&trailers, 0);
        }

        // A status alone is in the head, or in the frame of the trailers.
        let failed = call("/test.Calls/Fail", &[BINARY], &framed(b"5 not there"));
        match failed.field("grpc-status") {
            Some(code) => assert_eq!(code, "5", "{failed:?}"),
            None => status(&failed.frames().1, 5),
        }
        let failed = call("/test.Calls/FailLater", &[TEXT], &encoded(b"7 no"));
        let (messages, trailers) = failed.frames();
        assert_eq!(messages, [b"first"], "{failed:?}");
        status(&trailers, 7);
        assert!(
            trailers.contains(&"y-why: asked".to_owned()),
            "{trailers:?}"
        );

        // What is broken off here.
        let timeout = "grpc-timeout: 300m";
        let late = call("/test.Calls/Stay", &[BINARY, timeout], &framed(b""));
        let (messages, trailers) = late.frames();
        assert_eq!(messages, [b"begun"], "{late:?}");
        status(&trailers, 4);

        // What is answered here.
        let none = call("/none/test.Calls/Echo", &[TEXT], &encoded(b"a"));
        assert_eq!(
            (&*none.status, none.field("grpc-status")),
            ("502", Some("14"))
        );
        assert_eq!(none.media_type(), "application/grpc-web-text", "{none:?}");
        for text in [&b"no base64"[..], b"=", b"====", b"AAAAAAA=AAA"] {
            let wrong = call("/test.Calls/Echo", &[TEXT], text);
            let told = (&*wrong.status, wrong.field("grpc-status"));
            assert_eq!(told, ("400", Some("13")), "{wrong:?}");
        }
        // Over HTTP/2 curl takes an answer before the end of its upload for an error, nginx's
        // as well.
        if version == VERSIONS[0] {
            let large = call("/test.Calls/Echo", &[BINARY], &framed(&[b'a'; 70_000]));
            assert_eq!(
                (&*large.status, large.field("grpc-status")),
                ("413", Some("8"))
            );
            assert_eq!(
                large.media_type(),
                "application/grpc-web+proto",
                "{large:?}"
            );
        }

        // As nginx does: whatever comes is passed on.
        let off = call(
            "/off/test.Calls/Echo",
            &[BINARY, "TE: trailers"],
            &framed(b"hi"),
        );
        assert_eq!(off.media_type(), "application/grpc", "{off:?}");
        // curl shows trailers of HTTP/1 behind the body.
        let is_passed_on = off.body.starts_with(&framed(b"hi")) && !off.body.contains(&0x80);
        assert!(is_passed_on, "no frame follows: {off:?}");
    }
}

support::test_on_each_engine!(browsers_make_calls);
