//! What upstreams of HTTP/1 get of requests that came by HTTP/2, and clients of HTTP/2 of their
//! answers, on both engines: the very bytes, so that nothing ambiguous leaves.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use proto::h2::ErrorCode;
use proto::h2::frame::{self, Kind};
use support::http2::{Client, put_data};
use support::{PATIENCE, Server, origin};

/// An upstream that answers by path, and all that it got on each connection.
struct Upstream {
    port: u16,
    got: Receiver<String>,
}

impl Upstream {
    fn start() -> Upstream {
        let (say, got) = channel();
        let port = origin::listen(move |stream| drop(say.send(answer(stream))));
        Upstream { port, got }
    }

    /// What came on the next connection that has ended.
    fn got(&self) -> String {
        self.got
            .recv_timeout(PATIENCE)
            .expect("the upstream was asked")
    }

    /// The same in lower case, and without the fields that are of no matter here.
    fn head(&self) -> String {
        let got = self.got();
        let lines = got.split("\r\n").filter(|line| !line.starts_with("Host: "));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Whether nothing has come.
    fn is_untouched(&self) -> bool {
        self.got.recv_timeout(Duration::from_millis(50)).is_err()
    }
}

/// Reads a request, answers it, and reads what still comes.
fn answer(mut stream: TcpStream) -> String {
    let mut got = Vec::new();
    let mut buffer = vec![0; 16 * 1024];
    let is_whole = |got: &[u8]| {
        let text = String::from_utf8_lossy(got);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            return false;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        match length {
            Some(length) => body.len() >= length.parse().unwrap(),
            None => !head.contains("Transfer-Encoding: chunked") || body.ends_with("0\r\n\r\n"),
        }
    };
    while !is_whole(&got) {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => got.extend_from_slice(&buffer[..count]),
            _ => return String::from_utf8_lossy(&got).into_owned(),
        }
    }
    let text = String::from_utf8_lossy(&got).into_owned();
    let reply = match text.split(' ').nth(1).unwrap() {
        "/switches" => {
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n:status: 200"
        }
        "/fields" => {
            "HTTP/1.1 200 OK\r\nConnection: close, x-hop\r\nKeep-Alive: timeout=5\r\nProxy-Connection: close\r\n\
             Upgrade: h2c\r\nTransfer-Encoding: chunked\r\nX-Kept: yes\r\nTE: trailers\r\nX_Under: yes\r\n\r\n2\r\nok\r\n0\r\n\r\n"
        }
        "/pseudo" => {
            "HTTP/1.1 200 OK\r\n:status: 500\r\nX-Kept: yes\r\nContent-Length: 2\r\n\r\nok"
        }
        _ => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    };
    let _ = stream.write_all(reply.as_bytes());
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        got.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&got).into_owned()
}

/// A server that passes everything on, with these lines beside.
fn with_server(engine: &str, lines: &str, check: impl Fn(&Server, &Upstream)) {
    let upstream = Upstream::start();
    let port = upstream.port;
    let server = Server::start(
        engine,
        &format!("http2 on; {lines} location /text {{ return 200 text; }}
                location / {{ proxy_pass http://127.0.0.1:{port}; proxy_http_version 1.1; }}
                location /old/ {{ proxy_pass http://127.0.0.1:{port}; proxy_http_version 1.0; }}
                location /unbuffered/ {{ proxy_pass http://127.0.0.1:{port}; proxy_http_version 1.1; proxy_request_buffering off; }}
                location /old-unbuffered/ {{ proxy_pass http://127.0.0.1:{port}; proxy_http_version 1.0; proxy_request_buffering off; }}"),
    );
    check(&server, &upstream);
}

/// Sends the head of a POST whose body follows.
fn open(client: &mut Client, path: &str) -> u32 {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
    ];
    let block = client.encode(&fields);
    let stream = client.next_stream();
    let mut out = Vec::new();
    frame::put_header_block(&mut out, stream, &block, false, 16_384);
    client.send(&out);
    stream
}

fn a_body_without_a_length_is_framed_as_the_upstream_can_read_it(engine: &'static str) {
    with_server(engine, "", |server, upstream| {
        let mut client = Client::connect(server.port);
        for (path, framing) in [
            ("/new", "HTTP/1.1\nContent-Length: 5\n\n12345"),
            ("/old/", "HTTP/1.0\nContent-Length: 5\n\n12345"),
            (
                "/unbuffered/",
                "HTTP/1.1\nTransfer-Encoding: chunked\n\n5\n12345\n0\n\n",
            ),
            ("/old-unbuffered/", "HTTP/1.0\nContent-Length: 5\n\n12345"),
        ] {
            let stream = open(&mut client, path);
            // The head has been looked at by itself once another request has its answer.
            assert_eq!(client.get("/text").text(), "text");
            let mut out = Vec::new();
            put_data(&mut out, stream, b"12345", true);
            client.send(&out);
            assert_eq!(client.response(stream).text(), "ok");
            assert_eq!(upstream.head(), format!("POST {path} {framing}"));
        }
        // Of an empty one nothing is said but that.
        let stream = client.request_with("POST", "/new", &[], Some(b""));
        assert_eq!(client.response(stream).text(), "ok");
        assert_eq!(upstream.head(), "POST /new HTTP/1.1\nContent-Length: 0\n\n");
    });
}

support::test_on_each_engine!(a_body_without_a_length_is_framed_as_the_upstream_can_read_it);

fn a_body_of_another_length_than_announced_never_leaves(engine: &'static str) {
    with_server(engine, "", |server, upstream| {
        let mut client = Client::connect(server.port);
        for (length, body) in [
            ("0", &b"GET /smuggled HTTP/1.1\r\n\r\n"[..]),
            ("3", b"12345"),
            ("9", b"12345"),
        ] {
            for path in ["/new", "/unbuffered/", "/old/"] {
                let fields = [("content-length", length)];
                let stream = client.request_with("POST", path, &fields, Some(body));
                let response = client.response(stream);
                assert!(matches!(response.status, 0 | 400), "{response:?}");
                // What has begun to leave unbuffered ends without its end, and with nothing that
                // was not announced.
                if let Ok(got) = upstream.got.recv_timeout(Duration::from_millis(50)) {
                    assert_eq!(path, "/unbuffered/", "{got:?}");
                    let (_, passed_on) = got.split_once("\r\n\r\n").unwrap();
                    assert!(passed_on.len() <= length.parse().unwrap(), "{got:?}");
                    assert!(!got.contains("smuggled"), "{got:?}");
                }
            }
        }
        assert_eq!(client.get("/new").text(), "ok");
    });
}

support::test_on_each_engine!(a_body_of_another_length_than_announced_never_leaves);

fn trailers_that_frame_do_not_leave(engine: &'static str) {
    with_server(engine, "", |server, upstream| {
        let mut client = Client::connect(server.port);
        for path in ["/new", "/unbuffered/"] {
            let stream = open(&mut client, path);
            let mut out = Vec::new();
            put_data(&mut out, stream, b"12345", false);
            let trailers = [("content-length", "50"), ("host", "other")];
            let block = client.encode(&trailers);
            frame::put_header_block(&mut out, stream, &block, true, 16_384);
            client.send(&out);
            assert_eq!(client.response(stream).text(), "ok");
            let got = upstream.got();
            assert!(!got.contains(": 50") && !got.contains("other"), "{got}");
            let body = got.split_once("\r\n\r\n").unwrap().1;
            assert!(matches!(body, "12345" | "5\r\n12345\r\n0\r\n\r\n"), "{got}");
            assert_eq!(body.len() > 5, got.contains("Transfer-Encoding"));
            // What HTTP/2 has no use for is malformed.
            let stream = open(&mut client, path);
            let mut out = Vec::new();
            put_data(&mut out, stream, b"12345", false);
            let block = client.encode(&[("transfer-encoding", "chunked")]);
            frame::put_header_block(&mut out, stream, &block, true, 16_384);
            client.send(&out);
            let reset = client.response(stream).reset;
            assert_eq!(reset, Some(ErrorCode::ProtocolError));
            if let Ok(got) = upstream.got.recv_timeout(Duration::from_millis(50)) {
                assert!(
                    !got.ends_with("0\r\n\r\n"),
                    "it has left as if it were whole: {got}"
                );
            }
        }
    });
}

support::test_on_each_engine!(trailers_that_frame_do_not_leave);

fn what_names_two_things_is_refused(engine: &'static str) {
    with_server(engine, "", |server, upstream| {
        let mut client = Client::connect(server.port);
        let usual = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/new"),
            (":authority", "localhost"),
        ];
        let mut refused = |changed: &[(&'static str, &'static str)]| {
            let mut fields: Vec<(&str, &str)> = usual.to_vec();
            for (name, value) in changed {
                match fields.iter_mut().find(|(known, _)| known == name) {
                    Some(known) => known.1 = value,
                    None => fields.push((name, value)),
                }
            }
            let (stream, out) = client.frames_of(&fields, None);
            client.send(&out);
            let response = client.response(stream);
            assert!(
                matches!(response.status, 400 | 405),
                "{changed:?}: {response:?}"
            );
        };
        refused(&[("host", "other")]);
        refused(&[(":authority", "user@localhost")]);
        refused(&[(":authority", "user:secret@localhost")]);
        refused(&[(":authority", "localhost/x")]);
        refused(&[(":authority", "local host")]);
        refused(&[(":authority", "localhost#x")]);
        refused(&[(":authority", "localhost?x")]);
        refused(&[(":path", "/new#fragment")]);
        refused(&[(":path", "/new?a#b")]);
        refused(&[(":path", "/ne w")]);
        refused(&[(":path", "/new HTTP/1.1\r\nX: y")]);
        refused(&[(":path", "/new\tx")]);
        refused(&[(":path", "*")]);
        refused(&[(":method", "OPTIONS"), (":path", "*x")]);
        refused(&[(":path", "http://other/")]);
        refused(&[(":path", "new")]);
        refused(&[(":method", "CONNECT")]);
        refused(&[(":method", "TRACE")]);
        refused(&[(":method", "GET /smuggled HTTP/1.1\r\nX: y")]);
        refused(&[(":method", "GE T")]);
        refused(&[(":scheme", "http://other/x")]);
        refused(&[("x", "a\r\nsmuggled: yes")]);
        refused(&[("x", "a\0b")]);
        refused(&[("x\r\ny", "a")]);
        refused(&[("x: y", "a")]);
        refused(&[("X", "a")]);
        refused(&[("connection", "close")]);
        refused(&[("transfer-encoding", "chunked")]);
        refused(&[("te", "trailers, chunked")]);
        refused(&[("upgrade", "h2c")]);
        refused(&[("content-length", "+1")]);
        refused(&[("content-length", "1, 1")]);
        assert!(upstream.is_untouched());
        assert_eq!(client.get("/new").text(), "ok");
    });
}

support::test_on_each_engine!(what_names_two_things_is_refused);

fn fields_of_the_upstreams_connection_stay_there(engine: &'static str) {
    with_server(engine, "underscores_in_headers on;", |server, upstream| {
        let mut client = Client::connect(server.port);
        let stream = client.request("/fields", &[("te", "trailers"), ("x-own", "1")]);
        let response = client.response(stream);
        assert_eq!((response.status, response.text()), (200, "ok".to_owned()));
        for name in [
            "connection",
            "keep-alive",
            "proxy-connection",
            "upgrade",
            "transfer-encoding",
        ] {
            assert_eq!(response.field(name), None, "{name}");
        }
        assert_eq!(response.field("x-kept"), Some("yes"));
        assert!(
            response
                .fields
                .iter()
                .all(|(name, _)| *name == name.to_ascii_lowercase())
        );
        assert_eq!(upstream.head(), "GET /fields HTTP/1.1\nx-own: 1\n\n");
        // What would be a pseudo-field is none.
        let response = client.get("/pseudo");
        assert!(matches!(response.status, 200 | 502), "{response:?}");
        assert!(
            response
                .fields
                .iter()
                .all(|(name, _)| !name.starts_with(':'))
        );
    });
}

support::test_on_each_engine!(fields_of_the_upstreams_connection_stay_there);

fn a_101_that_was_not_asked_for_is_a_bad_gateway(engine: &'static str) {
    with_server(engine, "", |server, _| {
        let mut client = Client::connect(server.port);
        let response = client.get("/switches");
        assert_eq!(response.status, 502);
        assert!(response.informational.is_empty(), "{response:?}");
        assert!(!response.text().contains(":status"), "{response:?}");
        assert_eq!(client.get("/new").text(), "ok");
    });
}

support::test_on_each_engine!(a_101_that_was_not_asked_for_is_a_bad_gateway);

fn an_upload_to_a_slow_upstream_holds_at_most_its_window(engine: &'static str) {
    // An upstream that takes the head and then nothing.
    let (say, kept) = channel();
    let port = origin::listen(move |mut stream| {
        let mut buffer = [0; 100];
        let _ = stream.read(&mut buffer);
        let _ = say.send(stream);
    });
    let server = Server::start(
        engine,
        &format!(
            "http2 on; client_max_body_size 0; location / {{ return 200 fine; }}
                location /up {{ proxy_pass http://127.0.0.1:{port}; proxy_http_version 1.1; proxy_request_buffering off; }}"
        ),
    );
    let mut client = Client::connect(server.port);
    let stream = open(&mut client, "/up");
    let (mut credit, mut sent) = (65_536_usize, 0_usize);
    // As much as is given; what the kernel's buffers of the upstream's connection take is given
    // back, and then no more.
    while credit > 0 {
        let part = credit.min(16_384);
        let mut out = Vec::new();
        put_data(&mut out, stream, &vec![b'x'; part], false);
        client.send(&out);
        (credit, sent) = (credit - part, sent + part);
        // A request beside it shows that all before it has been looked at.
        for wait in [0, 100] {
            if credit == 0 {
                thread::sleep(Duration::from_millis(wait));
                let beside = client.request("/", &[]);
                credit += credit_until(&mut client, beside, stream);
            }
        }
        assert!(sent < 64 << 20, "nothing bounds the upload");
    }
    // One more byte is more than was allowed.
    let mut out = Vec::new();
    put_data(&mut out, stream, b"x", false);
    client.send(&out);
    assert_eq!(
        client.response(stream).reset,
        Some(ErrorCode::FlowControlError)
    );
    assert_eq!(client.get("/").text(), "fine");
    drop(kept.recv().unwrap());
}

support::test_on_each_engine!(an_upload_to_a_slow_upstream_holds_at_most_its_window);

/// Reads until a response has ended; the credit that has come for another stream.
fn credit_until(client: &mut Client, ends: u32, stream: u32) -> usize {
    let mut credit = 0;
    while client
        .responses
        .get(&ends)
        .is_none_or(|response| !response.ended)
    {
        let frame = client.read_frame().expect("the connection goes on");
        if frame.head.kind == Kind::WindowUpdate && frame.head.stream == stream {
            credit += u32::from_be_bytes(frame.payload.try_into().unwrap()) as usize;
        }
    }
    credit
}
