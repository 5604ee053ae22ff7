//! Calls that end otherwise than their server wants, as a client sees it that has no clock and no
//! limits of its own: frame by frame.
//!
//! Statuses: <https://grpc.github.io/grpc/core/md_doc_statuscodes.html>; what clients make of
//! statuses of HTTP: <https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md>.

use std::net::TcpListener;

use proto::h2::frame;
use support::http2::{Client, Response, put_data};
use support::{Server, is_nginx};

use crate::grpc::process::Python;

/// A message as it is framed in a body.
fn message(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    [&[0], &length[..], bytes].concat()
}

/// Begins a call with this message; it `ends` where no other follows.
fn call(
    client: &mut Client,
    host: &str,
    method: &str,
    timeout: Option<&str>,
    bytes: &[u8],
    ends: bool,
) -> u32 {
    let path = format!("/test.Calls/{method}");
    let mut fields = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", &*path),
        (":authority", host),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    fields.extend(timeout.map(|timeout| ("grpc-timeout", timeout)));
    let block = client.encode(&fields);
    let stream = client.next_stream();
    let mut out = Vec::new();
    frame::put_header_block(&mut out, stream, &block, false, 16_384);
    put_data(&mut out, stream, &message(bytes), ends);
    client.send(&out);
    stream
}

/// Waits for the first message of an answer.
fn wait_for_message(client: &mut Client, stream: u32) {
    let has_come = |client: &Client| {
        let response = client.responses.get(&stream);
        response.is_some_and(|response| !response.body.is_empty())
    };
    while !has_come(client) {
        client.read_frame().expect("an answer");
    }
}

/// The status and the words of a list of fields.
fn told(fields: &[(String, String)]) -> (String, String) {
    let value = |name: &str| {
        let found = fields.iter().find(|(known, _)| known == name);
        found.map_or(String::new(), |(_, value)| value.clone())
    };
    (value("grpc-status"), value("grpc-message"))
}

/// An answer that is nothing but a head: its status of HTTP, that of gRPC and its words.
fn of_head(response: &Response) -> (u16, String, String) {
    assert!(response.ended && response.body.is_empty(), "{response:?}");
    assert_eq!(response.field("content-type"), Some("application/grpc"));
    let (status, words) = told(&response.fields);
    (response.status, status, words)
}

/// How an answer ends that had begun.
fn of_trailers(response: &Response, first: &[u8]) -> (String, String) {
    assert!(response.ended, "{response:?}");
    assert_eq!((response.status, &*response.body), (200, &*message(first)));
    told(&response.trailers)
}

fn with_server(engine: &str, check: impl Fn(&Server, &mut Client)) {
    if is_nginx() {
        return; // it knows no deadline, and resets what breaks off
    }
    let behind = Python::start("behind", 0);
    // The server does not hear of deadlines, so that it cannot be quicker.
    let lines = format!(
        "server_name usual; location / {{ grpc_pass behind; }}
             [http]
             http2 on;
             grpc_set_header grpc-timeout \"\";
             upstream behind {{ zone behind 256k; server 127.0.0.1:{}; keepalive 16; }}
             server {{ listen 127.0.0.1:PORT; server_name as-grpc; grpc_errors grpc; location / {{ grpc_pass behind; }} location = /metrics {{ metrics; }} }}
             server {{ listen 127.0.0.1:PORT; server_name small; client_max_body_size 100; location / {{ grpc_pass behind; }} }}
             server {{ listen 127.0.0.1:PORT; server_name impatient; client_body_timeout 200ms; location / {{ grpc_pass behind; }} }}
             server {{ listen 127.0.0.1:PORT; server_name hurried; grpc_read_timeout 200ms; grpc_send_timeout 1h; location / {{ grpc_pass behind; }} }}
             server {{ listen 127.0.0.1:PORT; server_name none; grpc_errors grpc; location / {{ grpc_pass 127.0.0.1:1; }} }}
             server {{ listen 127.0.0.1:PORT; server_name closed; location / {{ deny all; grpc_pass behind; }} }}",
        behind.port
    );
    let server = Server::start(engine, &lines);
    let mut client = Client::connect(server.port);
    check(&server, &mut client);
}

fn what_has_no_answer_has_a_status(engine: &'static str) {
    with_server(engine, |server, client| {
        let mut ask = |host, method, timeout, bytes: &[u8]| {
            let stream = call(client, host, method, timeout, bytes, true);
            of_head(&client.response(stream))
        };
        let of = |http: u16, status: &str, words: &str| (http, status.to_owned(), words.to_owned());
        let late = ask("usual", "Wait", Some("200m"), b"");
        assert_eq!(late, of(504, "4", "deadline exceeded"));
        let late = ask("as-grpc", "Wait", Some("200m"), b"");
        assert_eq!(late, of(200, "4", "deadline exceeded"));
        let silent = ask("hurried", "Wait", None, b"");
        assert_eq!(silent, of(504, "14", "upstream is unavailable"));
        let none = ask("none", "Echo", None, b"");
        assert_eq!(none, of(200, "14", "upstream is unavailable"));
        let large = ask("small", "Echo", None, &[b'a'; 100]);
        assert_eq!(large, of(413, "8", "message is too large"));
        let closed = ask("closed", "Echo", None, b"");
        assert_eq!(closed, of(403, "7", "permission denied"));
        server.wait_for_log("upstream timed out (110: Connection timed out)");
    });
}

support::test_on_each_engine!(what_has_no_answer_has_a_status);

fn what_breaks_off_has_a_status(engine: &'static str) {
    with_server(engine, |_, client| {
        let of = |status: &str, words: &str| (status.to_owned(), words.to_owned());
        let stream = call(client, "usual", "Stay", Some("300m"), b"", false);
        let late = of_trailers(&client.response(stream), b"begun");
        assert_eq!(late, of("4", "deadline exceeded"));
        let stream = call(client, "hurried", "Stay", None, b"", false);
        let silent = of_trailers(&client.response(stream), b"begun");
        assert_eq!(silent, of("14", "upstream is unavailable"));
        // What the client itself does, or leaves.
        let stream = call(client, "impatient", "Chat", None, b"a", false);
        let silent = of_trailers(&client.response(stream), b"heard a");
        assert_eq!(silent, of("14", "request timed out"));
        let stream = call(client, "small", "Chat", None, b"a", false);
        wait_for_message(client, stream);
        let mut out = Vec::new();
        put_data(&mut out, stream, &message(&[b'a'; 100]), false);
        client.send(&out);
        let large = of_trailers(&client.response(stream), b"heard a");
        assert_eq!(large, of("8", "message is too large"));
        // They are counted by what the client has been told.
        let metrics = client.get("/metrics");
        assert_eq!(metrics.status, 200, "{metrics:?}");
        let metrics = String::from_utf8(metrics.body).unwrap();
        let counted: Vec<_> = metrics
            .lines()
            .filter(|line| line.starts_with("tidegate_grpc_calls_total{"))
            .map(|line| {
                let mut texts = line.split('"').skip(1).step_by(2);
                (texts.next().unwrap(), texts.last().unwrap(), line)
            })
            .collect();
        for (host, status) in [
            ("usual", "4"),
            ("hurried", "14"),
            ("impatient", "14"),
            ("small", "8"),
        ] {
            let of_host = counted.iter().filter(|(name, ..)| *name == host);
            let of_host: Vec<_> = of_host.collect();
            assert!(
                matches!(&*of_host, [(_, told, line)] if *told == status && line.ends_with(" 1")),
                "{host} {of_host:?} {metrics}"
            );
        }
    });
}

support::test_on_each_engine!(what_breaks_off_has_a_status);

fn tries_end_in_time(engine: &'static str) {
    // The kernel connects to them, and that is all.
    let silent = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let [first, second] = silent.each_ref().map(|one| one.local_addr().unwrap());
    let lines = format!(
        "http2 on; add_header X-Tried $upstream_addr always;
             grpc_read_timeout 300ms;
             location /test.Calls/All {{ grpc_pass silent; }}
             location /test.Calls/Some {{ grpc_next_upstream_timeout 100ms; grpc_pass silent; }}
             [http]
             upstream silent {{ server {first} max_fails=0; server {second} max_fails=0; }}"
    );
    let server = Server::start(engine, &lines);
    let mut client = Client::connect(server.port);
    let mut tried = |method: &str| {
        let response = client.get(&format!("/test.Calls/{method}"));
        assert_eq!(response.status, 504, "{response:?}");
        let addresses = response.field("x-tried").unwrap();
        addresses.split(", ").count()
    };
    assert_eq!((tried("All"), tried("Some")), (2, 1));
}

support::test_on_each_engine!(tries_end_in_time);
