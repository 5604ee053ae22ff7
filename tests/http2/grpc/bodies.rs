//! Bodies of calls that go on while other things happen: what a server gets is what the client has
//! sent, byte by byte, or is broken off. Here the server is the test, frame by frame.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use proto::h2::ErrorCode;
use proto::h2::frame::{self, FrameHead, HEAD_LENGTH, Kind, PREFACE, flags};
use support::http2::{Client, put_data};
use support::{PATIENCE, Server, is_nginx};

/// `:status: 200` (RFC 7541, appendix A).
const OK: &[u8] = b"\x88";

/// A connection that has come to a server of the test's own.
struct Accepted {
    stream: TcpStream,
}

impl Accepted {
    /// The next one, whose streams may send so many bytes at first.
    fn next(listener: &TcpListener, window: u32) -> Accepted {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut preface = [0; PREFACE.len()];
        stream.read_exact(&mut preface).unwrap();
        assert_eq!(&preface, PREFACE);
        let mut out = Vec::new();
        frame::put_settings(&mut out, &[(4, window)]);
        stream.write_all(&out).unwrap();
        Accepted { stream }
    }

    fn send(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        put(&mut out);
        self.stream.write_all(&out).unwrap();
    }

    /// The next frame of one of these kinds.
    fn wait_for(&mut self, kinds: &[Kind]) -> (FrameHead, Vec<u8>) {
        loop {
            let mut head = [0; HEAD_LENGTH];
            self.stream.read_exact(&mut head).unwrap();
            let head = FrameHead::read(&head);
            let mut payload = vec![0; head.length as usize];
            self.stream.read_exact(&mut payload).unwrap();
            if kinds.contains(&head.kind) {
                return (head, payload);
            }
        }
    }

    /// So many bytes of the body on this stream, which come next.
    fn take(&mut self, stream: u32, length: usize) -> Vec<u8> {
        let mut got = Vec::new();
        while got.len() < length {
            let (data, bytes) = self.wait_for(&[Kind::Data]);
            assert_eq!(data.stream, stream);
            got.extend(bytes);
        }
        got
    }
}

/// Bytes no two parts of which are alike.
fn body(length: usize) -> Vec<u8> {
    let words = (0_u32..).flat_map(u32::to_be_bytes);
    words.take(length).collect()
}

/// A server that passes on to a listener.
fn start(engine: &str, listener: &TcpListener) -> Server {
    let port = listener.local_addr().unwrap().port();
    Server::start(
        engine,
        &format!(
            "http2 on; client_max_body_size 0; location / {{ grpc_pass behind; }}
             [http]
             upstream behind {{ server 127.0.0.1:{port}; keepalive 16; }}"
        ),
    )
}

/// Begins a call; its number.
fn begin(client: &mut Client, first: &[u8]) -> u32 {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/test.Calls/Chat"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let block = client.encode(&fields);
    let stream = client.next_stream();
    let mut out = Vec::new();
    frame::put_header_block(&mut out, stream, &block, false, 16_384);
    put_data(&mut out, stream, first, false);
    client.send(&out);
    stream
}

/// Sends more of a body.
fn send(client: &mut Client, stream: u32, bytes: &[u8], ends: bool) {
    let mut out = Vec::new();
    put_data(&mut out, stream, bytes, ends);
    client.send(&out);
}

/// Waits until all has been handled that was sent.
fn settle(client: &mut Client) {
    let before = client.pongs;
    let mut out = Vec::new();
    frame::put_ping(&mut out, false, *b"settled?");
    client.send(&out);
    while client.pongs == before {
        client.read_frame().expect("an answer");
    }
}

/// The server answers while it takes no more of the body, of which more has come: that goes on to
/// it once it takes it.
fn a_body_goes_on_whole_behind_the_head_of_its_answer(engine: &'static str) {
    if is_nginx() {
        return; // it has other windows for clients
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = start(engine, &listener);
    let mut client = Client::connect(server.port);
    let body = body(400_000);
    let stream = begin(&mut client, &body[..60_000]);
    let mut behind = Accepted::next(&listener, 1000);
    let (head, _) = behind.wait_for(&[Kind::Headers]);
    // A server that has said nothing yet takes as much.
    let mut got = behind.take(head.stream, 60_000);
    // Of these the first waits to be sent, the second to be read.
    for part in [60_000..160_000, 160_000..300_000] {
        send(&mut client, stream, &body[part], false);
        settle(&mut client);
    }
    behind.send(|out| frame::put_header_block(out, head.stream, OK, false, 16_384));
    while client
        .responses
        .get(&stream)
        .is_none_or(|response| response.status == 0)
    {
        client.read_frame().expect("a head");
    }
    behind.send(|out| {
        frame::put_window_update(out, 0, 1 << 20);
        frame::put_window_update(out, head.stream, 1 << 20);
    });
    let mut take = |behind: &mut Accepted, length: usize| {
        while got.len() < length {
            let (data, bytes) = behind.wait_for(&[Kind::Data]);
            assert_eq!(data.stream, head.stream);
            got.extend(bytes);
            assert_eq!(data.has(flags::END_STREAM), got.len() == body.len());
        }
        let differs = got.iter().zip(&body).position(|(got, sent)| got != sent);
        assert_eq!((differs, got.len()), (None, length));
    };
    take(&mut behind, 300_000);
    send(&mut client, stream, &body[300_000..], true);
    take(&mut behind, 400_000);
    behind.send(|out| put_data(out, head.stream, b"whole", true));
    assert_eq!(client.response(stream).text(), "whole");
}

support::test_on_each_engine!(a_body_goes_on_whole_behind_the_head_of_its_answer);

/// A server that refuses a call is asked again, with all that has gone to it meanwhile; but not
/// where that is more than is kept.
fn a_body_is_sent_again_whole_or_not_at_all(engine: &'static str) {
    if is_nginx() {
        return; // it never asks again
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = start(engine, &listener);
    let mut client = Client::connect(server.port);
    let body = body(200_000);
    let mut accepted = None;

    // Refused before more than the beginning has come, and later.
    for (taken, length) in [(1000, 2000), (2000, 3000)] {
        let stream = begin(&mut client, &body[..1000]);
        let behind = accepted.get_or_insert_with(|| Accepted::next(&listener, 1 << 20));
        behind.send(|out| frame::put_window_update(out, 0, 1 << 20));
        let (first, _) = behind.wait_for(&[Kind::Headers]);
        if taken > 1000 {
            send(&mut client, stream, &body[1000..taken], false);
        }
        assert_eq!(behind.take(first.stream, taken), body[..taken]);
        behind.send(|out| frame::put_reset(out, first.stream, ErrorCode::RefusedStream));
        let (second, _) = behind.wait_for(&[Kind::Headers]);
        assert_ne!(second.stream, first.stream);
        assert_eq!(behind.take(second.stream, taken), body[..taken]);
        send(&mut client, stream, &body[taken..length], true);
        let rest = behind.take(second.stream, length - taken);
        assert_eq!(rest, body[taken..length]);
        behind.send(|out| frame::put_header_block(out, second.stream, OK, false, 16_384));
        behind.send(|out| put_data(out, second.stream, b"whole", true));
        assert_eq!(client.response(stream).text(), "whole");
    }

    let stream = begin(&mut client, &body[..1000]);
    let behind = accepted.as_mut().unwrap();
    let (first, _) = behind.wait_for(&[Kind::Headers]);
    for part in [1000..50_000, 50_000..100_000, 100_000..150_000] {
        send(&mut client, stream, &body[part], false);
        settle(&mut client);
    }
    assert!(behind.take(first.stream, 150_000) == body[..150_000]);
    behind.send(|out| frame::put_reset(out, first.stream, ErrorCode::RefusedStream));
    let response = client.response(stream);
    assert_eq!(response.status, 502);
    assert_eq!(response.field("grpc-status"), Some("14"));
}

support::test_on_each_engine!(a_body_is_sent_again_whole_or_not_at_all);
