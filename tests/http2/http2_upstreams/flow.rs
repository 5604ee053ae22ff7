//! Credit of both ends, joined end to end: what upstreams let come, and what they may send.

use std::io::Write;
use std::net::TcpStream;
use std::thread;

use proto::h2::{ErrorCode, frame};
use support::http2::Client;
use support::{PATIENCE, Server, is_nginx};

use super::upstream::{
    Heard, INITIAL_WINDOW_SIZE, INITIAL_WINDOW_SIZE_DEFAULT, Peer, Upstream, data, whole,
};
use super::{By, each, get, lines_with, open, send, server, wait_for};

/// Passes on to a group that keeps connections, as it comes.
const KEPT: &str = "location / { by_pass by://u; } location /buffered { proxy_pass http://u; proxy_buffering on; proxy_request_buffering on; }
    [http]
    proxy_buffering off; proxy_request_buffering off; proxy_send_timeout TIMEOUT; grpc_send_timeout TIMEOUT; client_body_buffer_size 1m; upstream u { server UP max_fails=0; keepalive 4; }";

/// Where requests are passed on. nginx cannot have both directives share a group.
fn paths(by: By) -> &'static [&'static str] {
    match by {
        By::Proxy => &["/", "/buffered"],
        By::Grpc => &["/"],
    }
}

/// Bytes that do not repeat soon.
pub(crate) fn bytes(count: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

fn kept_server(engine: &str, by: By, send_timeout: &str, upstream: &Upstream) -> Server {
    server(engine, by, &KEPT.replace("TIMEOUT", send_timeout), upstream)
}

/// A kept connection whose upstream gives no more credit than it says, once that is known.
fn kept(upstream: &Upstream, port: u16, settings: &[(u16, u32)]) -> Peer {
    let mut client = Client::connect(port);
    let stream = client.request("/", &[]);
    let mut peer = upstream.accept();
    peer.gives_credit = false;
    peer.settings(settings);
    let first = peer.wait_for_request().stream;
    peer.wait_for_settings();
    peer.answer(first, "200", b"ok");
    assert_eq!(client.response(stream).text(), "ok");
    peer
}

/// Whether nothing more of a body comes.
pub(crate) fn is_still(peer: &mut Peer) -> bool {
    while let Some(heard) = peer.next_soon() {
        if matches!(heard, Heard::Data(..)) {
            return false;
        }
    }
    true
}

fn a_body_goes_as_far_as_the_window_is_open(engine: &'static str) {
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let server = kept_server(engine, by, "60s", &upstream);
        let mut peer = kept(&upstream, server.port, &[(INITIAL_WINDOW_SIZE, 1)]);
        let mut client = Client::connect(server.port);
        let asked = client.request_with("POST", "/", &[], Some(b"12345"));
        let stream = peer.wait_for_head();
        peer.wait_until(|peer| peer.requests[&stream].body == b"1");
        assert!(is_still(&mut peer));
        peer.give(stream, 2);
        peer.wait_until(|peer| peer.requests[&stream].body == b"123");
        assert!(is_still(&mut peer));
        peer.give(stream, 1000);
        assert_eq!(peer.wait_for_rest(stream).body, b"12345");
        peer.answer(stream, "200", b"ok");
        assert_eq!(client.response(asked).text(), "ok");
        // A window of nothing lets an empty body end; with nginx it does not.
        if is_nginx() {
            return;
        }
        peer.settings(&[(INITIAL_WINDOW_SIZE, 0)]);
        peer.wait_for_settings();
        let asked = client.request_with("POST", "/", &[], Some(b""));
        let second = peer.wait_for_request().stream;
        peer.answer(second, "200", b"ok");
        assert_eq!(client.response(asked).text(), "ok");
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(a_body_goes_as_far_as_the_window_is_open);

fn a_window_that_is_never_opened_is_a_timeout(engine: &'static str) {
    each(engine, |engine, by| {
        // That of the stream, and that of the connection.
        for of_connection in [false, true] {
            let upstream = Upstream::bind();
            let server = kept_server(engine, by, "300ms", &upstream);
            let (window, length) = if of_connection {
                (1 << 20, INITIAL_WINDOW_SIZE_DEFAULT as usize + 1)
            } else {
                (10, 100)
            };
            let mut peer = kept(&upstream, server.port, &[(INITIAL_WINDOW_SIZE, window)]);
            let status = upload(server.port, "/", &bytes(length)).status;
            assert_eq!(status, 504, "{}", server.error_log());
            let text =
                "upstream timed out (110: Connection timed out) while sending request to upstream";
            assert_eq!(lines_with(&server, 0, text, 1), 1);
            let stream = peer.wait_for_head();
            // nginx closes the connection.
            if is_nginx() {
                peer.wait_for_end();
            } else {
                assert_eq!(peer.wait_for_reset(stream), ErrorCode::Cancel);
                peer.give(0, INITIAL_WINDOW_SIZE_DEFAULT as u32);
                peer.settings(&[(INITIAL_WINDOW_SIZE, 1000)]);
                peer.wait_for_settings();
                let mut client = Client::connect(server.port);
                let asked = client.request_with("POST", "/", &[], Some(b"12345"));
                let last = peer.wait_for_request();
                assert_eq!(last.body, b"12345");
                peer.answer(last.stream, "200", b"ok");
                assert_eq!(client.response(asked).text(), "ok");
            }
            let expected = if of_connection { length - 1 } else { 10 };
            assert_eq!(peer.requests[&stream].body.len(), expected);
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(a_window_that_is_never_opened_is_a_timeout);

fn the_end_of_a_body_needs_no_window(engine: &'static str) {
    if is_nginx() {
        return; // it waits for one
    }
    each(engine, |engine, by| {
        // Neither that of the stream, nor that of the connection.
        for of_connection in [false, true] {
            let upstream = Upstream::bind();
            let server = kept_server(engine, by, "60s", &upstream);
            let window = if of_connection { 1 << 20 } else { 4 };
            let mut peer = kept(&upstream, server.port, &[(INITIAL_WINDOW_SIZE, window)]);
            let mut client = Client::connect(server.port);
            let asked = open(&mut client, "/", &[]);
            send(&mut client, asked, b"1234", false);
            let stream = peer.wait_for_head();
            peer.wait_until(|peer| peer.requests[&stream].body == b"1234");
            let rest = if of_connection {
                bytes(INITIAL_WINDOW_SIZE_DEFAULT as usize - 4)
            } else {
                Vec::new()
            };
            if of_connection {
                send(&mut client, asked, &rest, false);
                let at_first = INITIAL_WINDOW_SIZE_DEFAULT as usize;
                peer.wait_until(|peer| peer.requests[&stream].body.len() == at_first);
            }
            send(&mut client, asked, b"", true);
            assert!(peer.wait_for_rest(stream).body == [b"1234", &rest[..]].concat());
            peer.answer(stream, "200", b"ok");
            assert_eq!(client.response(asked).text(), "ok");
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(the_end_of_a_body_needs_no_window);

/// Sends a part of a body and waits for all of it at the upstream.
fn pass(client: &mut Client, asked: u32, peer: &mut Peer, stream: u32, part: &[u8]) {
    let before = peer.requests[&stream].body.len();
    send(client, asked, part, false);
    peer.wait_until(|peer| peer.requests[&stream].body.len() == before + part.len());
}

/// A client must be no hindrance to others, so requests at once have one connection only while its
/// window has room for all.
fn an_upload_that_is_not_read_stops_no_other(engine: &'static str) {
    if is_nginx() {
        return;
    }
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let server = kept_server(engine, by, "60s", &upstream);
        let mut peer = kept(&upstream, server.port, &[(INITIAL_WINDOW_SIZE, 1 << 20)]);
        // One that goes on for long, and is read.
        let mut client = Client::connect(server.port);
        let asked = open(&mut client, "/long", &[]);
        let long = peer.wait_for_head();
        pass(&mut client, asked, &mut peer, long, b"begun");
        // One of which nothing is read.
        let mut attacker = Client::connect(server.port);
        let attack = open(&mut attacker, "/unread", &[]);
        let unread = peer.wait_for_head();
        send(&mut attacker, attack, &bytes(60_000), false);
        let at_first = INITIAL_WINDOW_SIZE_DEFAULT as usize;
        peer.wait_until(|peer| peer.requests[&unread].body.len() > at_first / 2);
        while !is_still(&mut peer) {}
        let taken = peer.requests[&unread].body.len();
        assert!(taken < at_first * 2 / 3, "{taken}");
        // The first goes on, with credit for what it sends and no other.
        for _ in 0..20 {
            pass(&mut client, asked, &mut peer, long, &[b'x'; 2000]);
            peer.give(0, 2000);
            peer.give(long, 2000);
        }
        // Those that come now have another connection.
        let mut beside = Client::connect(server.port);
        let next = beside.request_with("POST", "/next", &[], Some(&[b'y'; 30_000]));
        let mut other = upstream.accept();
        other.settings(&[]);
        let last = other.wait_for_request();
        assert_eq!((last.path(), last.body.len()), ("/next", 30_000));
        other.answer(last.stream, "200", b"next");
        assert_eq!(beside.response(next).text(), "next");
        // With its client an upload ends, and what it had is there for all again.
        let mut out = Vec::new();
        frame::put_reset(&mut out, attack, ErrorCode::Cancel);
        attacker.send(&out);
        assert_eq!(peer.wait_for_reset(unread), ErrorCode::Cancel);
        peer.give(0, taken as u32);
        send(&mut client, asked, &vec![b'z'; taken], true);
        assert_eq!(peer.wait_for_rest(long).body.len(), 5 + 40_000 + taken);
        peer.answer(long, "200", b"long");
        assert_eq!(client.response(asked).text(), "long");
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(an_upload_that_is_not_read_stops_no_other);

/// A POST by HTTP/1.
fn upload(port: u16, path: &str, body: &[u8]) -> super::Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    let mut writer = stream.try_clone().unwrap();
    let bytes = [head.as_bytes(), body].concat();
    let sending = thread::spawn(move || writer.write_all(&bytes));
    let answer = super::read_answer(&mut stream, false);
    let _ = sending.join().unwrap();
    answer
}

fn a_window_may_be_made_smaller_than_what_is_used_of_it(engine: &'static str) {
    each(engine, |engine, by| {
        for path in paths(by) {
            let upstream = Upstream::bind();
            let server = kept_server(engine, by, "60s", &upstream);
            let mut peer = kept(&upstream, server.port, &[]);
            let (body, port) = (bytes(100_000), server.port);
            let sent = body.clone();
            let client = thread::spawn(move || upload(port, path, &sent));
            let stream = peer.wait_for_head();
            let at_first = INITIAL_WINDOW_SIZE_DEFAULT as usize;
            peer.wait_until(|peer| peer.requests[&stream].body.len() == at_first);
            peer.settings(&[(INITIAL_WINDOW_SIZE, 10)]);
            peer.wait_for_settings();
            peer.give(0, 1 << 20);
            peer.give(stream, at_first as u32 - 10);
            assert!(is_still(&mut peer));
            peer.give(stream, 10);
            peer.wait_until(|peer| peer.requests[&stream].body.len() == at_first + 10);
            assert!(is_still(&mut peer));
            // Larger again: as much more as the setting has grown.
            peer.settings(&[(INITIAL_WINDOW_SIZE, 1010)]);
            peer.wait_until(|peer| peer.requests[&stream].body.len() == at_first + 1010);
            assert!(is_still(&mut peer));
            peer.give(stream, 1 << 20);
            assert!(peer.wait_for_rest(stream).body == body);
            peer.answer(stream, "200", b"ok");
            assert_eq!(client.join().unwrap().text(), "ok");
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(a_window_may_be_made_smaller_than_what_is_used_of_it);

/// Gives credit that nothing fills.
fn open_windows(client: &mut Client, stream: u32) {
    let mut out = Vec::new();
    frame::put_window_update(&mut out, stream, 1 << 30);
    frame::put_window_update(&mut out, 0, 1 << 30);
    client.send(&out);
}

/// Sends as much of an answer as there is credit for, until none comes; how much that was.
fn fill(peer: &mut Peer, stream: u32, body: &[u8]) -> usize {
    let mut sent = 0;
    loop {
        let part = peer.may_send(stream).min(16_384).min(body.len() - sent);
        if part > 0 {
            peer.data(stream, &body[sent..sent + part], false);
            sent += part;
        } else if sent == body.len() || peer.next_soon().is_none() {
            return sent;
        }
    }
}

fn an_upstream_gets_no_more_credit_than_its_client_is_slow_by(engine: &'static str) {
    if is_nginx() {
        return; // it gives credit for 2 GB and reads no more than it has room for
    }
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let server = kept_server(engine, by, "60s", &upstream);
        let mut peer = kept(&upstream, server.port, &[]);
        let mut slow = Client::connect_with(server.port, &[(INITIAL_WINDOW_SIZE, 1000)]);
        let asked = slow.request("/slow", &[]);
        let stream = peer.wait_for_head();
        peer.head(stream, &[(":status", "200")], false);
        let body = bytes(8 << 20);
        let sent = fill(&mut peer, stream, &body);
        // A window of 48 KiB, and the two receives that wait for the client.
        assert!((64 << 10..=84 << 10).contains(&sent), "{sent}");
        // It holds up nothing else on the connection.
        let mut fast = Client::connect(server.port);
        let beside = fast.request("/fast", &[]);
        let other = peer.wait_for_head();
        peer.head(other, &[(":status", "200")], false);
        let reading = thread::spawn(move || fast.response(beside));
        peer.send_body(other, &body);
        assert!(reading.join().unwrap().body == body);
        // As the client takes it, more comes.
        open_windows(&mut slow, asked);
        let reading = thread::spawn(move || slow.response(asked));
        peer.send_body(stream, &body[sent..]);
        assert!(reading.join().unwrap().body == body);
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(an_upstream_gets_no_more_credit_than_its_client_is_slow_by);

fn more_than_the_credit_ends_the_stream_alone(engine: &'static str) {
    if is_nginx() {
        return;
    }
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let server = kept_server(engine, by, "60s", &upstream);
        let mut peer = kept(&upstream, server.port, &[]);
        let mut slow = Client::connect_with(server.port, &[(INITIAL_WINDOW_SIZE, 1000)]);
        let asked = slow.request("/slow", &[]);
        let stream = peer.wait_for_head();
        peer.head(stream, &[(":status", "200")], false);
        fill(&mut peer, stream, &bytes(8 << 20));
        assert_eq!(peer.may_send(stream), 0);
        peer.send(&data(stream, b"x", false));
        assert_eq!(peer.wait_for_reset(stream), ErrorCode::FlowControlError);
        let mut beside = Client::connect(server.port);
        let other = beside.request("/", &[]);
        let last = peer.wait_for_request();
        peer.answer(last.stream, "200", b"ok");
        assert_eq!(beside.response(other).text(), "ok");
        open_windows(&mut slow, asked);
        assert!(slow.response(asked).reset.is_some());
        let text = "upstream violated stream flow control, received 1 data frame with window 0 while reading upstream";
        assert_eq!(lines_with(&server, 0, text, 1), 1);
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(more_than_the_credit_ends_the_stream_alone);

fn large_bodies_come_whole_both_ways(engine: &'static str) {
    let lines = "location / { by_pass by://u; } location /buffered { proxy_pass http://u; proxy_buffering on; proxy_request_buffering on; }
        [http]
        proxy_buffering off; proxy_request_buffering off; upstream u { server UP max_fails=0; keepalive 4; }";
    each(engine, |engine, by| {
        let upstream = Upstream::serve(|peer, heard| {
            if let Some(stream) = whole(heard) {
                let body = peer.requests[&stream].body.clone();
                peer.head(stream, &[(":status", "200")], false);
                peer.send_body(stream, &body);
            }
        });
        let server = server(engine, by, lines, &upstream);
        let body = bytes(10 << 20);
        for path in paths(by) {
            let answer = upload(server.port, path, &body);
            let is_whole = answer.status == 200 && answer.is_whole;
            assert!(is_whole, "{by:?} {path} {}", server.error_log());
            // Not `assert_eq`, which would print both.
            assert!(upstream.last().body == body, "what the upstream got");
            assert!(answer.body == body, "what the client got");
        }
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(large_bodies_come_whole_both_ways);

fn a_buffered_answer_does_not_wait_for_its_client(engine: &'static str) {
    let lines = "location / { proxy_pass http://u; } [http] upstream u { server UP max_fails=0; keepalive 4; }".replace("} [http]", "}\n[http]\n");
    let upstream = Upstream::serve(|peer, heard| {
        if let Some(stream) = whole(heard) {
            peer.head(stream, &[(":status", "200")], false);
            peer.send_body(stream, &bytes(4 << 20));
            peer.requests.get_mut(&stream).unwrap().body = b"sent".to_vec();
        }
    });
    let server = server(engine, By::Proxy, &lines, &upstream);
    let mut slow = Client::connect_with(server.port, &[(INITIAL_WINDOW_SIZE, 1000)]);
    let asked = slow.request("/", &[]);
    wait_for(&mut slow, asked, |response| response.body.len() == 1000);
    // The upstream is done with it, and takes another.
    assert_eq!(get(server.port, "/").body.len(), 4 << 20);
    open_windows(&mut slow, asked);
    assert!(slow.response(asked).body == bytes(4 << 20));
    upstream.assert_clean();
}

support::test_on_each_engine!(a_buffered_answer_does_not_wait_for_its_client);
