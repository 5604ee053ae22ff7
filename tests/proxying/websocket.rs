//! WebSockets to an HTTP/1.1 upstream, on both engines: from HTTP/2 clients (extended CONNECT, RFC
//! 8441), and many at once from HTTP/1.1 clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use proto::base64;
use proto::h2::ErrorCode;
use proto::h2::frame;
use sha1::{Digest, Sha1};
use support::http2::{Client, Response, put_data};
use support::{PATIENCE, Server, origin};

/// Bytes that the upstream sends on `/ws/much`.
const MUCH: usize = 3_000_000;

/// An upstream that upgrades and then echoes, except on the paths that [`answer`] names. It passes
/// each request head and all bytes behind the head to the test.
struct Upstream {
    port: u16,
    heads: Receiver<String>,
    bodies: Receiver<Vec<u8>>,
}

impl Upstream {
    fn start() -> Upstream {
        let ((head_sender, heads), (body_sender, bodies)) = (channel(), channel());
        let port = origin::listen(move |stream| {
            let body = answer(stream, |head| drop(head_sender.send(head.to_owned())));
            let _ = body_sender.send(body);
        });
        Upstream {
            port,
            heads,
            bodies,
        }
    }

    fn configuration(&self) -> String {
        format!(
            "http2 on; access_log logs/tunnels.log tunnel;
            location / {{ root www; }}
            location /text {{ return 200 text; }}
            location /nothing {{ return 200; }}
            location /sent-on {{ error_page 501 =200 /text; return 200 x; }}
            location = /granted {{ internal; return 204; }}
            location /asked/ {{ auth_request /granted; proxy_pass http://127.0.0.1:{0}/ws/; proxy_http_version 1.1;
                proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade; }}
            location = /judge {{ internal; proxy_pass http://127.0.0.1:{0}/ws/echo; proxy_http_version 1.1;
                proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade; }}
            location /judged {{ auth_request /judge; root www; }}
            location /ws {{ proxy_pass http://127.0.0.1:{0}; proxy_http_version 1.1;
                proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade; }}
            [http]
            map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
            log_format tunnel '$request $status $body_bytes_sent';
            ",
            self.port
        )
    }
}

/// Serves one connection and returns all bytes that came behind the request head. Calls `on_head`
/// with the head.
fn answer(mut stream: TcpStream, on_head: impl Fn(&str)) -> Vec<u8> {
    let mut received = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    let end = loop {
        if let Some(at) = received.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => received.extend_from_slice(&buffer[..count]),
            _ => return Vec::new(),
        }
    };
    let mut body = received.split_off(end);
    let head = String::from_utf8(received).unwrap();
    on_head(&head);
    let key = head
        .lines()
        .find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
    let mut hash = Sha1::new();
    hash.update(key.unwrap_or_default());
    hash.update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let mut accept = Vec::new();
    base64::encode(&hash.finalize(), &mut accept);
    let accept = String::from_utf8(accept).unwrap();
    let path = head.split(' ').nth(1).unwrap();
    let switch = |accept: &str| {
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: chat\r\n\r\n"
        )
    };
    if path == "/ws/last" {
        // Answers only after the proxy has closed its side.
        let _ = stream.write_all(switch(&accept).as_bytes());
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            body.extend_from_slice(&buffer[..count]);
        }
        let _ = stream.write_all(&body);
        return body;
    }
    match path {
        "/ws/wrong" => stream.write_all(switch("AAAA").as_bytes()).unwrap(),
        "/ws/plain" => stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain")
            .unwrap(),
        "/ws/refused" => stream
            .write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
            .unwrap(),
        "/ws/much" => {
            let _ = stream.write_all(switch(&accept).as_bytes());
            let _ = stream.write_all(&much());
            return body;
        }
        _ => {
            stream.write_all(switch(&accept).as_bytes()).unwrap();
            let _ = stream.write_all(&body);
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                body.extend_from_slice(&buffer[..count]);
                let _ = stream.write_all(&buffer[..count]);
            }
        }
    }
    body
}

fn much() -> Vec<u8> {
    (0..MUCH).map(|number| (number * 7) as u8).collect()
}

/// Sends an extended CONNECT without END_STREAM.
fn connect(client: &mut Client, protocol: &str, path: &str) -> u32 {
    let fields = [
        (":method", "CONNECT"),
        (":protocol", protocol),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("sec-websocket-protocol", "chat"),
        ("sec-websocket-version", "13"),
        ("origin", "http://localhost"),
    ];
    let stream = client.next_stream();
    let block = client.encode(&fields);
    let mut out = Vec::new();
    frame::put_header_block(&mut out, stream, &block, false, 16_384);
    client.send(&out);
    stream
}

/// Reads frames until the response on the stream meets the condition.
fn wait(client: &mut Client, stream: u32, is_enough: impl Fn(&Response) -> bool) -> Response {
    loop {
        if let Some(response) = client.responses.get(&stream)
            && is_enough(response)
        {
            return response.clone();
        }
        assert!(client.read_frame().is_some(), "{:?}", client.goaway);
    }
}

fn with_server(engine: &str, check: impl Fn(&Server, &Upstream)) {
    let upstream = Upstream::start();
    let server = Server::start(engine, &upstream.configuration());
    check(&server, &upstream);
}

fn bytes_go_both_ways_until_the_client_ends(engine: &'static str) {
    with_server(engine, |server, upstream| {
        let mut client = Client::connect(server.port);
        let frame = client.read_frame().unwrap();
        let (settings, _) = frame.payload.as_chunks::<6>();
        assert!(
            settings.contains(&[0, 8, 0, 0, 0, 1]),
            "SETTINGS_ENABLE_CONNECT_PROTOCOL is not sent"
        );
        let stream = connect(&mut client, "websocket", "/ws/echo?a=b");
        let response = wait(&mut client, stream, |response| response.status != 0);
        assert_eq!(response.status, 200);
        assert_eq!(response.field("sec-websocket-protocol"), Some("chat"));
        for name in [
            "sec-websocket-accept",
            "upgrade",
            "connection",
            "content-length",
        ] {
            assert_eq!(response.field(name), None, "{name}");
        }
        let head = upstream.heads.recv().unwrap();
        assert!(head.starts_with("GET /ws/echo?a=b HTTP/1.1\r\n"), "{head}");
        let lower = head.to_ascii_lowercase();
        for line in [
            "\r\nupgrade: websocket\r\n",
            "\r\nconnection: upgrade\r\n",
            "\r\nsec-websocket-version: 13\r\n",
            "\r\norigin: http://localhost\r\n",
        ] {
            assert_eq!(lower.matches(line).count(), 1, "{head}");
        }
        assert_eq!(
            lower.matches("\r\nsec-websocket-key: ").count(),
            1,
            "{head}"
        );
        assert!(!lower.contains("content-length") && !lower.contains("protocol: websocket"));
        for number in 1..=100_usize {
            let mut out = Vec::new();
            put_data(&mut out, stream, &vec![b'x'; number * 97], false);
            client.send(&out);
            let all = number * (number + 1) / 2 * 97;
            wait(&mut client, stream, |response| response.body.len() == all);
        }
        // The tunnel does not block other streams of the connection.
        assert_eq!(client.get("/ws/plain").text(), "plain");
        let mut out = Vec::new();
        put_data(&mut out, stream, b"last", true);
        client.send(&out);
        let response = client.response(stream);
        assert!(response.ended, "{response:?}");
        let sent = upstream.bodies.recv().unwrap().len() + upstream.bodies.recv().unwrap().len();
        assert_eq!(sent, 100 * 101 / 2 * 97 + 4);
        assert!(response.body.ends_with(b"last"));
        let bytes = 100 * 101 / 2 * 97 + 4;
        server.wait_for_line(
            "tunnels.log",
            &format!("GET /ws/echo?a=b HTTP/2.0 200 {bytes}\n"),
        );
    });
}

support::test_on_each_engine!(bytes_go_both_ways_until_the_client_ends);

fn all_bytes_arrive_before_the_end_whatever_the_window(engine: &'static str) {
    with_server(engine, |server, _| {
        for window in [1_000, 65_535, 1 << 30] {
            let mut client = Client::connect_with(server.port, &[(4, window)]);
            let stream = connect(&mut client, "websocket", "/ws/much");
            let (mut given, mut taken) = (window.min(65_535) as usize, 0);
            let mut out = Vec::new();
            frame::put_window_update(&mut out, 0, 1 << 30);
            client.send(&out);
            let response = loop {
                let length = client
                    .responses
                    .get(&stream)
                    .map_or(0, |one| one.body.len());
                assert!(length <= given.max(window as usize));
                if length > taken {
                    let mut out = Vec::new();
                    frame::put_window_update(&mut out, stream, (length - taken) as u32);
                    client.send(&out);
                    given += length - taken;
                    taken = length;
                }
                if let Some(response) = client.responses.get(&stream)
                    && (response.ended || response.reset.is_some())
                {
                    break response.clone();
                }
                assert!(client.read_frame().is_some());
            };
            assert!(response.ended);
            assert!(response.body == much(), "{}", response.body.len());
        }
    });
}

support::test_on_each_engine!(all_bytes_arrive_before_the_end_whatever_the_window);

fn a_reset_closes_the_upstream_and_a_gone_upstream_ends_the_stream(engine: &'static str) {
    with_server(engine, |server, upstream| {
        let mut client = Client::connect(server.port);
        let stream = connect(&mut client, "websocket", "/ws/echo");
        wait(&mut client, stream, |response| response.status == 200);
        let mut out = Vec::new();
        frame::put_reset(&mut out, stream, ErrorCode::Cancel);
        client.send(&out);
        assert_eq!(upstream.bodies.recv().unwrap(), b"");
        // The client's connection outlives the reset. A client that closes its whole connection
        // closes the upstream too.
        let stream = connect(&mut client, "websocket", "/ws/echo");
        wait(&mut client, stream, |response| response.status == 200);
        drop(client);
        assert_eq!(upstream.bodies.recv().unwrap(), b"");
    });
}

support::test_on_each_engine!(a_reset_closes_the_upstream_and_a_gone_upstream_ends_the_stream);

fn a_half_closed_client_still_gets_the_response(engine: &'static str) {
    with_server(engine, |server, upstream| {
        let mut client = Client::connect(server.port);
        let stream = connect(&mut client, "websocket", "/ws/last");
        wait(&mut client, stream, |response| response.status == 200);
        // As browsers do: the WebSocket close frame with END_STREAM.
        let mut out = Vec::new();
        put_data(&mut out, stream, &[b'x'; 100_000], false);
        put_data(&mut out, stream, b"close", true);
        client.send(&out);
        let response = client.response(stream);
        assert_eq!(
            (response.body.len(), response.ended, response.reset),
            (100_005, true, None)
        );
        // A client that ends its stream and resets it without waiting for the response.
        let stream = connect(&mut client, "websocket", "/ws/echo");
        wait(&mut client, stream, |response| response.status == 200);
        assert_eq!(upstream.bodies.recv().unwrap().len(), 100_005);
        let mut out = Vec::new();
        put_data(&mut out, stream, b"", true);
        frame::put_reset(&mut out, stream, ErrorCode::Cancel);
        client.send(&out);
        assert_eq!(upstream.bodies.recv().unwrap(), b"");
    });
}

support::test_on_each_engine!(a_half_closed_client_still_gets_the_response);

fn auth_request_may_grant_a_websocket(engine: &'static str) {
    with_server(engine, |server, upstream| {
        let mut client = Client::connect(server.port);
        let stream = connect(&mut client, "websocket", "/asked/echo");
        let response = wait(&mut client, stream, |response| response.status != 0);
        assert_eq!(response.status, 200, "{}", server.error_log());
        let mut out = Vec::new();
        put_data(&mut out, stream, b"text", true);
        client.send(&out);
        assert_eq!(client.response(stream).text(), "text");
        assert_eq!(upstream.bodies.recv().unwrap(), b"text");
    });
}

support::test_on_each_engine!(auth_request_may_grant_a_websocket);

/// As in nginx: the upstream of `auth_request` cannot upgrade the client's connection.
fn a_subrequest_does_not_become_a_tunnel(engine: &'static str) {
    with_server(engine, |server, _| {
        server.write("judged", b"never");
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = "GET /judged HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 500");
        server.wait_for_log("connection upgrade in subrequest");
        let mut client = Client::connect(server.port);
        let stream = connect(&mut client, "websocket", "/judged");
        let response = client.response(stream);
        assert_eq!(response.status, 500);
    });
}

support::test_on_each_engine!(a_subrequest_does_not_become_a_tunnel);

fn no_answer_but_an_upgrade_is_a_success(engine: &'static str) {
    with_server(engine, |server, _| {
        server.write("file", b"a file");
        let mut client = Client::connect(server.port);
        for (path, status, text) in [
            ("/ws/refused", 403, Some("no")),
            ("/ws/plain", 501, None),
            ("/ws/wrong", 502, None),
            ("/file", 501, None),
            ("/file", 501, None),
            ("/text", 501, None),
            ("/nothing", 501, None),
            ("/sent-on", 501, None),
            ("/missing", 404, None),
        ] {
            let stream = connect(&mut client, "websocket", path);
            let response = client.response(stream);
            assert_eq!(response.status, status, "{path}: {response:?}");
            assert!(text.is_none_or(|text| response.text() == text), "{path}");
            // DATA on the refused stream is ignored; it is not a connection error.
            let mut out = Vec::new();
            put_data(&mut out, stream, b"too late", true);
            client.send(&out);
        }
        assert_eq!(client.get("/file").text(), "a file");
        server.wait_for_log("upstream sent invalid \"Sec-WebSocket-Accept\" header");
    });
}

support::test_on_each_engine!(no_answer_but_an_upgrade_is_a_success);

/// Opens a WebSocket over HTTP/1.1 and reads the 101 response.
fn connect_http1(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(
            b"GET /ws/echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    // RFC 6455, section 1.3.
    assert!(head.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
    stream
}

/// Sends a different text on each stream and expects its echo.
fn echo_on_all(streams: &mut [TcpStream], what: &str) {
    for (number, stream) in streams.iter_mut().enumerate() {
        stream
            .write_all(format!("{what} {number}").as_bytes())
            .unwrap();
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let expected = format!("{what} {number}");
        let mut echoed = vec![0; expected.len()];
        stream.read_exact(&mut echoed).unwrap();
        assert_eq!(String::from_utf8(echoed).unwrap(), expected);
    }
}

fn many_websockets_outlive_a_reload(engine: &'static str) {
    const MANY: usize = 200;
    with_server(engine, |server, upstream| {
        let mut streams: Vec<_> = (0..MANY).map(|_| connect_http1(server)).collect();
        echo_on_all(&mut streams, "before");
        server.reload("return 410;");
        let mut client = server.connect();
        while client.get("/missing").unwrap().status != 410 {
            thread::sleep(Duration::from_millis(5));
        }
        echo_on_all(&mut streams, "after");
        // Closing some leaves the others open. The old generation is dropped with the last.
        drop(streams.split_off(MANY / 2));
        echo_on_all(&mut streams, "still");
        assert!(!server.error_log().contains("generation 1 of"));
        drop(streams);
        server.wait_for_log("generation 1 of");
        for _ in 0..MANY {
            let received = upstream.bodies.recv_timeout(PATIENCE).unwrap();
            assert!(received.starts_with(b"before"));
        }
    });
}

support::test_on_each_engine!(many_websockets_outlive_a_reload);

fn a_protocol_other_than_websocket_gets_no_key(engine: &'static str) {
    with_server(engine, |server, upstream| {
        let mut client = Client::connect(server.port);
        let stream = connect(&mut client, "connect-udp", "/ws/echo");
        wait(&mut client, stream, |response| response.status == 200);
        let head = upstream.heads.recv().unwrap().to_ascii_lowercase();
        assert!(head.contains("\r\nupgrade: connect-udp\r\n"), "{head}");
        assert!(!head.contains("sec-websocket-key"), "{head}");
    });
}

support::test_on_each_engine!(a_protocol_other_than_websocket_gets_no_key);
