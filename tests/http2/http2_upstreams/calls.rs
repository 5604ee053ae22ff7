//! What is gRPC's own in `grpc_pass`: answers of ours that clients of gRPC understand, deadlines of
//! calls, and gRPC-Web. nginx has none of this, so that these tests are Tidegate's alone. Expected:
//! <https://github.com/grpc/grpc/tree/master/doc> (PROTOCOL-HTTP2, PROTOCOL-WEB, statuscodes,
//! http-grpc-status-mapping).

use std::thread;
use std::time::Duration;

use proto::h2::ErrorCode;
use support::http2::{Client, Response};
use support::is_nginx;

use super::upstream::{Peer, Upstream, data, headers, reset, whole};
use super::{By, lines_with, open, pairs, post, send, server, wait_for};

/// A call, and what comes of it.
fn call(client: &mut Client, path: &str, more: &[(&str, &str)]) -> Response {
    let mut fields = vec![
        ("content-type", "application/grpc+proto"),
        ("te", "trailers"),
    ];
    fields.extend_from_slice(more);
    let stream = client.request_with("POST", path, &fields, Some(b"\0\0\0\0\x01x"));
    client.response(stream)
}

/// Checks an answer of ours to a call.
fn check(response: &Response, http: u16, grpc: &str, what: &str) {
    assert_eq!(response.status, http, "{what}: {response:?}");
    assert_eq!(
        response.field("grpc-status"),
        Some(grpc),
        "{what}: {response:?}"
    );
    assert!(!response.field("grpc-message").unwrap().is_empty());
    assert_eq!(response.field("content-type"), Some("application/grpc"));
    // The head is all of it.
    assert!(
        response.body.is_empty() && response.trailers.is_empty(),
        "{what}: {response:?}"
    );
    assert!(response.ended && response.reset.is_none());
}

fn answers_of_ours_to_calls_have_a_status_of_grpc(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let lines = "location /down { by_pass by://127.0.0.1:1; }
        location /resets { by_pass by://UP; }
        location /silent { by_pass by://UP; by_read_timeout 100ms; }
        location /denied { deny all; by_pass by://UP; }
        location /unknown { auth_basic a; auth_basic_user_file /dev/null; by_pass by://UP; }
        location /limited { limit_req zone=z; by_pass by://UP; }
        location /too-many { limit_req zone=z; limit_req_status 429; by_pass by://UP; }
        location /large { client_max_body_size 1; by_pass by://UP; }
        location /returned { if ($arg_x) { return 404; } by_pass by://UP; }
        location /page { error_page 502 /page.html; by_pass by://127.0.0.1:1; }
        location = /page.html { internal; return 200 page; }
        location /http { proxy_pass http://127.0.0.1:1; }
        [http]
        limit_req_zone $server_port zone=z:1m rate=1r/m; grpc_errors WAY;";
    for way in ["http", "grpc"] {
        let upstream = Upstream::serve(|peer, heard| {
            if let Some(stream) = whole(heard) {
                match peer.requests[&stream].path() {
                    "/resets" => peer.reset(stream, ErrorCode::InternalError),
                    "/silent" => {}
                    _ => peer.answer(stream, "200", b"ok"),
                }
            }
        });
        let server = server(engine, By::Grpc, &lines.replace("WAY", way), &upstream);
        let mut client = Client::connect(server.port);
        assert_eq!(call(&mut client, "/limited", &[]).text(), "ok");
        for (path, http, grpc) in [
            ("/down", 502, "14"),
            ("/resets", 502, "13"),
            ("/silent", 504, "14"),
            ("/denied", 403, "7"),
            ("/unknown", 401, "16"),
            ("/limited", 503, "8"),
            ("/too-many", 429, "8"),
            ("/large", 413, "8"),
            ("/returned?x=1", 404, "12"),
        ] {
            let response = call(&mut client, path, &[]);
            let http = if way == "grpc" { 200 } else { http };
            check(&response, http, grpc, path);
        }
        // Where the configuration has a page for it that is the answer.
        let response = call(&mut client, "/page", &[]);
        assert_eq!((response.status, response.text()), (502, "page".to_owned()));
        // By HTTP/1 the same.
        let answer = post(
            server.port,
            "/down",
            "Content-Type: application/grpc\r\n",
            "12345",
        );
        let http = if way == "grpc" { 200 } else { 502 };
        assert_eq!((answer.status, answer.field("grpc-status")), (http, "14"));
        assert_eq!((answer.text(), answer.is_whole), (String::new(), true));
        // What is no call has its page: another media type, another method, another handler.
        let stream = client.request_with(
            "POST",
            "/down",
            &[("content-type", "text/plain")],
            Some(b"x"),
        );
        let others = [
            client.response(stream),
            client.get("/down"),
            call(&mut client, "/http", &[]),
        ];
        for response in others {
            assert_eq!(
                (response.status, response.field("grpc-status")),
                (502, None)
            );
            assert!(
                response.text().contains("<h1>502 Bad Gateway</h1>"),
                "{response:?}"
            );
        }
    }
}

support::test_on_each_engine!(answers_of_ours_to_calls_have_a_status_of_grpc);

/// <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#errors>.
fn a_reset_before_an_answer_has_the_status_of_its_code(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let lines = "location / { by_pass by://UP; }
        location /two/ { by_pass by://two; by_next_upstream invalid_header non_idempotent; }
        [http]
        upstream two { server UP max_fails=0; server 127.0.0.1:1 backup; }";
    let upstream = Upstream::serve(|peer, heard| {
        if let Some(stream) = whole(heard) {
            let path = peer.requests[&stream].path();
            let number = path.rsplit('/').next().unwrap().parse().unwrap();
            peer.reset(stream, ErrorCode::from_number(number));
        }
    });
    let server = server(engine, By::Grpc, lines, &upstream);
    let mut client = Client::connect(server.port);
    for (code, expected) in [
        (ErrorCode::NoError, "13"),
        (ErrorCode::ProtocolError, "13"),
        (ErrorCode::InternalError, "13"),
        (ErrorCode::FlowControlError, "13"),
        (ErrorCode::FrameSizeError, "13"),
        (ErrorCode::RefusedStream, "14"),
        (ErrorCode::Cancel, "1"),
        (ErrorCode::CompressionError, "13"),
        (ErrorCode::ConnectError, "13"),
        (ErrorCode::EnhanceYourCalm, "8"),
        (ErrorCode::InadequateSecurity, "7"),
    ] {
        let path = format!("/{}", code.number());
        check(&call(&mut client, &path, &[]), 502, expected, &path);
    }
    // Where the next server is not there that is what has become of the call.
    check(&call(&mut client, "/two/8", &[]), 502, "14", "/two/8");
    upstream.assert_clean();
}

support::test_on_each_engine!(a_reset_before_an_answer_has_the_status_of_its_code);

fn an_answer_to_a_call_that_has_come_whole_is_not_changed_by_a_reset(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let upstream = Upstream::serve(|peer, heard| {
        let Some(stream) = whole(heard) else { return };
        let answer = match peer.requests[&stream].path() {
            "/only" => headers(stream, &[(":status", "200"), ("grpc-status", "5")], true),
            _ => [
                headers(stream, &[(":status", "200")], false),
                data(stream, &message(b"one"), false),
                headers(stream, &[("grpc-status", "0")], true),
            ]
            .concat(),
        };
        // All at once.
        peer.send(&[answer, reset(stream, ErrorCode::InternalError)].concat());
    });
    let server = server(
        engine,
        By::Grpc,
        "location / { by_pass by://UP; }",
        &upstream,
    );
    let mut client = Client::connect(server.port);
    let response = call(&mut client, "/", &[]);
    assert_eq!((response.status, &response.body), (200, &message(b"one")));
    assert_eq!(response.trailers, pairs(&[("grpc-status", "0")]));
    let response = call(&mut client, "/only", &[]);
    assert_eq!(
        (response.status, response.field("grpc-status")),
        (200, Some("5"))
    );
    assert!(!server.error_log().contains("[error]"));
    upstream.assert_clean();
}

support::test_on_each_engine!(an_answer_to_a_call_that_has_come_whole_is_not_changed_by_a_reset);

/// A length of nothing is that of the body: trailers follow it all the same (RFC 9113, section
/// 8.1).
fn trailers_follow_a_length_of_nothing(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    for is_at_once in [true, false] {
        let upstream = Upstream::serve(move |peer, heard| {
            let Some(stream) = whole(heard) else { return };
            let fields = [
                (":status", "200"),
                ("content-type", "application/grpc"),
                ("content-length", "0"),
            ];
            let head = headers(stream, &fields, false);
            let fields = [("grpc-status", "5"), ("grpc-message", "none")];
            let end = headers(stream, &fields, true);
            if is_at_once {
                return peer.send(&[head, end].concat());
            }
            peer.send(&head);
            thread::sleep(Duration::from_millis(50));
            peer.send(&end);
        });
        let server = server(
            engine,
            By::Grpc,
            "location / { by_pass by://UP; grpc_web on; }",
            &upstream,
        );
        let mut client = Client::connect(server.port);
        let response = call(&mut client, "/", &[]);
        assert!(response.ended && response.body.is_empty(), "{response:?}");
        let expected = pairs(&[("grpc-status", "5"), ("grpc-message", "none")]);
        assert_eq!(response.trailers, expected);
        // To a browser they are a frame of the body.
        let fields = "Content-Type: application/grpc-web+proto\r\n";
        let answer = post(server.port, "/", fields, "\0\0\0\0\x01x");
        let expected = trailers("grpc-status: 5\r\ngrpc-message: none\r\n");
        assert_eq!((answer.status, answer.is_whole), (200, true));
        assert_eq!(answer.body, expected);
        upstream.assert_clean();
    }
}

support::test_on_each_engine!(trailers_follow_a_length_of_nothing);

fn an_error_of_the_server_of_grpc_is_its_own(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let upstream = Upstream::serve(|peer, heard| {
        if let Some(stream) = whole(heard) {
            match peer.requests[&stream].path() {
                "/page" => peer.answer(stream, "503", b"busy"),
                _ => peer.head(stream, &[(":status", "200"), ("grpc-status", "13")], true),
            }
        }
    });
    let server = server(
        engine,
        By::Grpc,
        "location / { by_pass by://UP; grpc_errors grpc; }",
        &upstream,
    );
    let mut client = Client::connect(server.port);
    let response = call(&mut client, "/page", &[]);
    assert_eq!((response.status, response.text()), (503, "busy".to_owned()));
    assert_eq!(response.field("grpc-status"), None);
    let response = call(&mut client, "/status", &[]);
    assert_eq!(
        (response.status, response.field("grpc-status")),
        (200, Some("13"))
    );
    assert_eq!(response.field("grpc-message"), None);
    upstream.assert_clean();
}

support::test_on_each_engine!(an_error_of_the_server_of_grpc_is_its_own);

fn a_call_ends_at_its_deadline(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    for way in ["http", "grpc"] {
        let upstream = Upstream::bind();
        let lines = format!(
            "location / {{ by_pass by://UP; grpc_errors {way}; error_log logs/error.log info; }}"
        );
        let server = server(engine, By::Grpc, &lines, &upstream);
        let mut client = Client::connect(server.port);
        let fields = [
            ("content-type", "application/grpc"),
            ("grpc-timeout", "200m"),
        ];
        let asked = open(&mut client, "/", &fields);
        let mut peer = upstream.accept();
        peer.settings(&[]);
        let stream = peer.wait_for_head();
        assert_eq!(peer.requests[&stream].field("grpc-timeout"), "200m");
        let http = if way == "grpc" { 200 } else { 504 };
        check(&client.response(asked), http, "4", way);
        assert_eq!(peer.wait_for_reset(stream), ErrorCode::Cancel);
        let text = "deadline of the client is over while reading response header from upstream";
        assert_eq!(lines_with(&server, 0, text, 1), 1);
        upstream.assert_clean();
    }
}

support::test_on_each_engine!(a_call_ends_at_its_deadline);

fn a_deadline_holds_for_the_whole_answer(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let upstream = Upstream::bind();
    let lines = "location / { by_pass by://UP; error_log logs/error.log info; }";
    let server = server(engine, By::Grpc, lines, &upstream);
    let mut client = Client::connect(server.port);
    let fields = [("content-type", "application/grpc"), ("grpc-timeout", "1S")];
    let asked = open(&mut client, "/", &fields);
    let mut peer = upstream.accept();
    peer.settings(&[]);
    let stream = peer.wait_for_head();
    peer.head(stream, &[(":status", "200")], false);
    peer.data(stream, b"some", false);
    let response = client.response(asked);
    assert_eq!((response.status, response.text()), (200, "some".to_owned()));
    // What had begun as an answer ends with a status.
    assert!(response.ended && response.reset.is_none(), "{response:?}");
    assert_eq!(response.trailers[0], pairs(&[("grpc-status", "4")])[0]);
    assert_eq!(peer.wait_for_reset(stream), ErrorCode::Cancel);
    let text = "deadline of the client is over while reading upstream";
    assert_eq!(lines_with(&server, 0, text, 1), 1);
    upstream.assert_clean();
}

support::test_on_each_engine!(a_deadline_holds_for_the_whole_answer);

fn what_is_no_deadline_holds_nothing_up(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let upstream = Upstream::serve(|peer, heard| {
        if let Some(stream) = whole(heard) {
            thread::sleep(Duration::from_millis(20));
            peer.answer(stream, "200", b"ok");
        }
    });
    let server = server(
        engine,
        By::Grpc,
        "location / { by_pass by://UP; }",
        &upstream,
    );
    let mut client = Client::connect(server.port);
    for timeout in ["1M", "99999999H", "1", "m", "-1S", "1 S", "999999999n", ""] {
        let response = call(&mut client, "/", &[("grpc-timeout", timeout)]);
        assert_eq!(response.text(), "ok", "{timeout}");
    }
    // Those of no call are not looked at.
    let stream = client.request_with("GET", "/", &[("grpc-timeout", "1m")], None);
    assert_eq!(client.response(stream).text(), "ok");
    upstream.assert_clean();
}

support::test_on_each_engine!(what_is_no_deadline_holds_nothing_up);

/// A message of gRPC.
fn message(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_be_bytes();
    [&[0][..], &length, bytes].concat()
}

/// Answers calls by their path.
fn serve_call(peer: &mut Peer, stream: u32) {
    let fields = [
        (":status", "200"),
        ("content-type", "application/grpc+proto"),
    ];
    match peer.requests[&stream].path() {
        "/only" => {
            let fields = [
                fields[0],
                fields[1],
                ("grpc-status", "5"),
                ("grpc-message", "none"),
            ];
            peer.head(stream, &fields, true);
        }
        _ => {
            peer.head(stream, &fields, false);
            peer.data(stream, &message(b"one"), false);
            peer.data(stream, &message(b"twenty"), false);
            peer.head(
                stream,
                &[
                    ("grpc-status", "0"),
                    ("Grpc-Message".to_lowercase().as_str(), "well"),
                ],
                true,
            );
        }
    }
}

/// The frame of trailers of gRPC-Web.
fn trailers(text: &str) -> Vec<u8> {
    let length = (text.len() as u32).to_be_bytes();
    [&[0x80][..], &length, text.as_bytes()].concat()
}

fn calls_of_browsers_are_passed_on_as_calls(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let upstream = Upstream::serve(|peer, heard| {
        if let Some(stream) = whole(heard) {
            serve_call(peer, stream);
        }
    });
    let server = server(
        engine,
        By::Grpc,
        "location / { by_pass by://UP; grpc_web on; }",
        &upstream,
    );
    let request = String::from_utf8(message(b"asked")).unwrap();
    let expected = [
        message(b"one"),
        message(b"twenty"),
        trailers("grpc-status: 0\r\ngrpc-message: well\r\n"),
    ]
    .concat();
    for format in ["", "+proto", "+json"] {
        let fields = format!(
            "Content-Type: application/grpc-web{format}\r\nAccept: application/grpc-web-text\r\nX-User-Agent: grpc-web\r\nX-Grpc-Web: 1\r\n"
        );
        let answer = post(server.port, "/call", &fields, &request);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(
            answer.field("content-type"),
            format!("application/grpc-web{format}")
        );
        assert_eq!((answer.body, answer.is_whole), (expected.clone(), true));
        assert_eq!(answer.trailers, []);
        let asked = upstream.last();
        assert_eq!(
            asked.field("content-type"),
            format!("application/grpc{format}")
        );
        assert_eq!((asked.field("te"), asked.field("accept")), ("trailers", ""));
        assert_eq!(asked.body, message(b"asked"));
    }
    // Where the head is all there is, it says it.
    let fields = "Content-Type: application/grpc-web+proto\r\n";
    let answer = post(server.port, "/only", fields, &request);
    assert_eq!(
        (answer.field("grpc-status"), answer.field("grpc-message")),
        ("5", "none")
    );
    assert_eq!((answer.text(), answer.is_whole), (String::new(), true));
    // By HTTP/2.
    let mut client = Client::connect(server.port);
    let fields = [("content-type", "application/grpc-web+proto")];
    let stream = client.request_with("POST", "/call", &fields, Some(request.as_bytes()));
    let response = client.response(stream);
    assert_eq!((response.body, response.trailers), (expected, Vec::new()));
    // Others are calls as they are.
    let response = call(&mut client, "/call", &[]);
    assert_eq!(
        response.body,
        [message(b"one"), message(b"twenty")].concat()
    );
    assert_eq!(
        response.trailers,
        pairs(&[("grpc-status", "0"), ("grpc-message", "well")])
    );
    upstream.assert_clean();
}

support::test_on_each_engine!(calls_of_browsers_are_passed_on_as_calls);

/// Base64 in pieces that may be padded each, decoded.
fn decode(text: &[u8]) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    assert!(text.len().is_multiple_of(4), "{}", text.escape_ascii());
    for group in text.chunks(4) {
        let padding = group.iter().filter(|byte| **byte == b'=').count();
        let value = group.iter().fold(0_u32, |value, byte| {
            let at = ALPHABET.iter().position(|known| known == byte);
            (value << 6) | at.unwrap_or_default() as u32
        });
        bytes.extend_from_slice(&value.to_be_bytes()[1..4 - padding]);
    }
    bytes
}

fn calls_of_browsers_may_be_text(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let upstream = Upstream::serve(|peer, heard| {
        if let Some(stream) = whole(heard) {
            serve_call(peer, stream);
        }
    });
    let server = server(
        engine,
        By::Grpc,
        "location / { by_pass by://UP; grpc_web on; }",
        &upstream,
    );
    let expected = [
        message(b"one"),
        message(b"twenty"),
        trailers("grpc-status: 0\r\ngrpc-message: well\r\n"),
    ]
    .concat();
    let fields = "Content-Type: application/grpc-web-text+proto\r\n";
    // `\0\0\0\0\x05asked` in one piece, and in two.
    for request in ["AAAAAAVhc2tlZA==", "AAAAAAU=YXNrZWQ="] {
        let answer = post(server.port, "/call", fields, request);
        assert_eq!(
            answer.field("content-type"),
            "application/grpc-web-text+proto"
        );
        assert_eq!(
            (decode(&answer.body), answer.is_whole),
            (expected.clone(), true)
        );
        let asked = upstream.last();
        assert_eq!(asked.field("content-type"), "application/grpc+proto");
        assert_eq!(asked.body, message(b"asked"));
        // That of the text would be wrong.
        assert!(
            matches!(asked.field("content-length"), "" | "10"),
            "{asked:?}"
        );
    }
    let answer = post(server.port, "/only", fields, "AAAAAAVhc2tlZA==");
    assert_eq!(
        (answer.field("grpc-status"), answer.text()),
        ("5", String::new())
    );
    // What is no base64.
    let heads = upstream.heads();
    for request in ["AAAA*AVhc2tlZA==", "AAAAAAVhc2tlZA", "====", "AAAA===="] {
        let answer = post(server.port, "/call", fields, request);
        let got = (answer.status, answer.field("grpc-status"));
        assert_eq!(got, (400, "13"), "{request}");
    }
    assert_eq!(upstream.heads(), heads);
    upstream.assert_clean();
}

support::test_on_each_engine!(calls_of_browsers_may_be_text);

/// Text that a browser sends is decoded as it comes, byte by byte, whether it is padded in the
/// middle or not.
fn text_of_browsers_is_passed_on_as_it_comes(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let upstream = Upstream::bind();
    let server = server(
        engine,
        By::Grpc,
        "error_log logs/error.log info; location / { by_pass by://UP; grpc_web on; }",
        &upstream,
    );
    let fields = [("content-type", "application/grpc-web-text")];
    let mut client = Client::connect(server.port);
    let asked = open(&mut client, "/", &fields);
    // `\0\0\0\0\x05asked` padded in the middle, and not padded at all behind the first four
    // bytes of the next message.
    let text = b"AAAAAAU=YXNrZWQ=AAAAAAVhc2tlZA==AAAA";
    let begun = [message(b"asked"), message(b"asked"), vec![0; 3]].concat();
    for byte in text {
        send(&mut client, asked, &[*byte], false);
    }
    let mut peer = upstream.accept();
    peer.settings(&[]);
    let stream = peer.wait_for_head();
    peer.wait_until(|peer| peer.requests[&stream].body == begun);
    assert!(!peer.requests[&stream].ended, "the client goes on");
    send(&mut client, asked, b"AAF", false);
    send(&mut client, asked, b"4", true);
    let whole = peer.wait_for_rest(stream);
    assert_eq!(whole.body, [begun, b"\0\x01x".to_vec()].concat());
    peer.head(stream, &[(":status", "200"), ("grpc-status", "0")], true);
    let response = client.response(asked);
    assert_eq!(response.field("grpc-status"), Some("0"), "{response:?}");

    // A large one in parts of all sizes.
    let plain: Vec<u8> = (0..3_000_000_u32).map(|at| (at * 7 % 251) as u8).collect();
    let mut text = Vec::new();
    for piece in plain.chunks(99_998) {
        proto::base64::encode(piece, &mut text);
    }
    let length = text.len();
    let port = server.port;
    let sending = thread::spawn(move || {
        let text = String::from_utf8(text).unwrap();
        post(
            port,
            "/",
            "Content-Type: application/grpc-web-text\r\n",
            &text,
        )
    });
    let mut peer = upstream.accept();
    peer.settings(&[]);
    let asked = peer.wait_for_request();
    assert_eq!(asked.body.len(), plain.len(), "of {length} characters");
    assert!(asked.body == plain);
    peer.head(
        asked.stream,
        &[(":status", "200"), ("grpc-status", "0")],
        true,
    );
    assert_eq!(sending.join().unwrap().field("grpc-status"), "0");

    // What turns out to be none when some of it has been passed on, and what ends too early.
    for (wrong, ends) in [(&b"AA*A"[..], false), (b"AAA", true), (b"A=", false)] {
        let asked = open(&mut client, "/", &fields);
        send(&mut client, asked, b"AAAA", false);
        let mut peer = upstream.accept();
        peer.settings(&[]);
        let stream = peer.wait_for_head();
        peer.wait_until(|peer| peer.requests[&stream].body == [0; 3]);
        send(&mut client, asked, wrong, ends);
        let response = client.response(asked);
        let got = (response.status, response.field("grpc-status"));
        assert_eq!(got, (400, Some("13")), "{}", wrong.escape_ascii());
        // Nobody else is on the connection, which ends with the stream.
        peer.wait_for_end();
        let asked = &peer.requests[&stream];
        assert!(!asked.ended && asked.body == [0; 3], "{asked:?}");
    }
    let text = "client sent a call of gRPC-Web that is not base64";
    assert_eq!(lines_with(&server, 0, text, 3), 3);
}

support::test_on_each_engine!(text_of_browsers_is_passed_on_as_it_comes);

fn calls_of_browsers_are_not_taken_unless_asked_for(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let upstream = Upstream::serve(|peer, heard| {
        if let Some(stream) = whole(heard) {
            serve_call(peer, stream);
        }
    });
    let server = server(
        engine,
        By::Grpc,
        "location / { by_pass by://UP; }",
        &upstream,
    );
    let fields = "Content-Type: application/grpc-web+proto\r\n";
    let answer = post(server.port, "/call", fields, "12345");
    assert_eq!(answer.body, [message(b"one"), message(b"twenty")].concat());
    assert_eq!(
        upstream.last().field("content-type"),
        "application/grpc-web+proto"
    );
}

support::test_on_each_engine!(calls_of_browsers_are_not_taken_unless_asked_for);

fn messages_to_browsers_leave_as_they_come(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    for text in [false, true] {
        let upstream = Upstream::bind();
        let server = server(
            engine,
            By::Grpc,
            "location / { by_pass by://UP; grpc_web on; }",
            &upstream,
        );
        let mut client = Client::connect(server.port);
        let media_type = if text {
            "application/grpc-web-text"
        } else {
            "application/grpc-web"
        };
        let fields = [("content-type", media_type)];
        let asked = client.request_with("POST", "/", &fields, Some(b"AAAAAAA="));
        let mut peer = upstream.accept();
        peer.settings(&[]);
        let stream = peer.wait_for_request().stream;
        peer.head(stream, &[(":status", "200")], false);
        let mut sent = Vec::new();
        for part in [message(b"a"), message(b"bc"), message(b"def")] {
            peer.data(stream, &part, false);
            sent.extend(part);
            let decoded = |response: &Response| {
                if text {
                    decode(&response.body)
                } else {
                    response.body.clone()
                }
            };
            wait_for(&mut client, asked, |response| decoded(response) == sent);
        }
        // An answer that breaks off ends with a status, too.
        peer.reset(stream, ErrorCode::InternalError);
        let response = client.response(asked);
        assert!(response.ended && response.reset.is_none(), "{response:?}");
        let body = if text {
            decode(&response.body)
        } else {
            response.body
        };
        let rest = body.strip_prefix(&sent[..]).unwrap();
        assert_eq!(rest[0], 0x80);
        let status = b"grpc-status: 13\r\n";
        assert!(rest[5..].starts_with(status), "{}", rest.escape_ascii());
        upstream.assert_clean();
    }
}

support::test_on_each_engine!(messages_to_browsers_leave_as_they_come);
