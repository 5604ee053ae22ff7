//! Both ways at once: an answer begins, and ends, while its request still comes; and trailers.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use proto::h2::frame::{self, Kind, flags};
use proto::h2::{ErrorCode, settings};
use support::http2::{Client, Response};
use support::{PATIENCE, is_nginx};

use super::flow::{bytes, is_still};
use super::upstream::{Heard, INITIAL_WINDOW_SIZE_DEFAULT, Upstream, data, plain, whole};
use super::{By, each, open, pairs, post, send, server, wait_for};

/// Passes all on as it comes.
const AT_ONCE: &str = "location / { by_pass by://u; proxy_buffering off; proxy_request_buffering off; proxy_pass_trailers on; }
    [http]
    upstream u { server UP max_fails=0; keepalive 4; }";

fn both_ways_go_on_beside_each_other(engine: &'static str) {
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let server = server(engine, by, AT_ONCE, &upstream);
        let mut client = Client::connect(server.port);
        let asked = open(&mut client, "/", &[("content-type", "application/grpc")]);
        let mut peer = upstream.accept();
        peer.settings(&[]);
        let stream = peer.wait_for_head();
        // The answer's head before any of the body; then in turn.
        peer.head(stream, &[(":status", "200"), ("x-own", "1")], false);
        let response = wait_for(&mut client, asked, |response| response.status == 200);
        assert_eq!(response.field("x-own"), Some("1"));
        for count in 1..=20 {
            send(&mut client, asked, b"ab", false);
            peer.wait_until(|peer| peer.requests[&stream].body.len() == 2 * count);
            peer.data(stream, b"xyz", false);
            wait_for(&mut client, asked, |response| {
                response.body.len() == 3 * count
            });
        }
        // The client ends first, and the upstream goes on.
        send(&mut client, asked, b"c", true);
        assert_eq!(peer.wait_for_rest(stream).body.len(), 41);
        for count in 21..=25 {
            peer.data(stream, b"xyz", false);
            wait_for(&mut client, asked, |response| {
                response.body.len() == 3 * count
            });
        }
        peer.head(stream, &[("grpc-status", "0"), ("grpc-message", "")], true);
        let response = client.response(asked);
        assert_eq!(
            response.trailers,
            pairs(&[("grpc-status", "0"), ("grpc-message", "")])
        );
        assert!(response.ended && response.reset.is_none());
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(both_ways_go_on_beside_each_other);

/// The same for a client of HTTP/1, whose connection serves the next request then.
fn both_ways_go_on_beside_each_other_for_a_client_of_http1(engine: &'static str) {
    each(engine, |engine, by| {
        if by == By::Grpc {
            return;
        }
        let upstream = Upstream::bind();
        let server = server(engine, by, AT_ONCE, &upstream);
        let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60\r\n\r\n";
        client.write_all(head.as_bytes()).unwrap();
        let mut peer = upstream.accept();
        peer.settings(&[]);
        let stream = peer.wait_for_head();
        peer.head(
            stream,
            &[(":status", "200"), ("content-length", "60")],
            false,
        );
        let mut answer = read_up_to(&mut client, |read| read.ends_with(b"\r\n\r\n"));
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
        for count in 1..=20 {
            client.write_all(b"abc").unwrap();
            peer.wait_until(|peer| peer.requests[&stream].body.len() == 3 * count);
            peer.data(stream, b"xyz", count == 20);
            answer = read_up_to(&mut client, |read| read.len() == 3);
            assert_eq!(answer, b"xyz");
        }
        assert_eq!(peer.wait_for_rest(stream).body, b"abc".repeat(20));
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        let stream = peer.wait_for_head();
        peer.answer(stream, "200", b"ok");
        answer = read_up_to(&mut client, |read| read.ends_with(b"\r\n\r\nok"));
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(both_ways_go_on_beside_each_other_for_a_client_of_http1);

/// A client of HTTP/1 that leaves once its body has come is not waited for, whether the upstream
/// has taken all of that or not.
fn a_client_of_http1_that_leaves_ends_what_waits_to_be_sent(engine: &'static str) {
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let server = server(engine, by, AT_ONCE, &upstream);
        let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\n";
        client.write_all(head.as_bytes()).unwrap();
        let mut peer = upstream.accept();
        // Windows of nothing.
        peer.settings(&[(settings::INITIAL_WINDOW_SIZE, 0)]);
        let stream = peer.wait_for_head();
        client.write_all(b"abcdef").unwrap();
        assert!(is_still(&mut peer));
        drop(client);
        let began = Instant::now();
        if is_nginx() {
            peer.wait_for_end();
        } else {
            peer.wait_for_reset(stream);
        }
        assert!(began.elapsed() < PATIENCE / 2);
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(a_client_of_http1_that_leaves_ends_what_waits_to_be_sent);

/// What comes until it is enough.
fn read_up_to(client: &mut TcpStream, is_enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut read = Vec::new();
    while !is_enough(&read) {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        read.extend(byte);
    }
    read
}

fn an_upstream_may_end_first(engine: &'static str) {
    each(engine, |engine, by| {
        for with_trailers in [false, true] {
            let upstream = Upstream::bind();
            let server = server(engine, by, AT_ONCE, &upstream);
            let mut client = Client::connect(server.port);
            let asked = open(&mut client, "/", &[]);
            send(&mut client, asked, b"ab", false);
            let mut peer = upstream.accept();
            peer.settings(&[]);
            let stream = peer.wait_for_head();
            peer.wait_until(|peer| peer.requests[&stream].body == b"ab");
            peer.head(stream, &[(":status", "200")], false);
            peer.data(stream, b"whole", !with_trailers);
            if with_trailers {
                peer.head(stream, &[("a", "b")], true);
            }
            let response = client.response(asked);
            assert_eq!(
                (response.status, response.text()),
                (200, "whole".to_owned())
            );
            assert!(response.ended, "{response:?}");
            let trailers = if with_trailers {
                pairs(&[("a", "b")])
            } else {
                Vec::new()
            };
            assert_eq!(response.trailers, trailers);
            // The rest of the request is of no use (RFC 9113, section 8.1). nginx closes the
            // connection.
            if is_nginx() {
                peer.wait_for_end();
            } else {
                assert_eq!(peer.wait_for_reset(stream), ErrorCode::NoError);
            }
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(an_upstream_may_end_first);

fn an_early_answer_is_the_answer(engine: &'static str) {
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let server = server(engine, by, AT_ONCE, &upstream);
        let mut client = Client::connect(server.port);
        let asked = open(&mut client, "/", &[]);
        send(&mut client, asked, b"ab", false);
        let mut peer = upstream.accept();
        peer.settings(&[]);
        let stream = peer.wait_for_head();
        peer.head(stream, &[(":status", "413"), ("x-own", "1")], true);
        let response = wait_for(&mut client, asked, |response| response.status != 0);
        assert_eq!((response.status, response.field("x-own")), (413, Some("1")));
        let response = client.response(asked);
        assert!(response.ended, "{response:?}");
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(an_early_answer_is_the_answer);

fn an_interim_head_does_not_end_what_is_sent(engine: &'static str) {
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let server = server(engine, by, AT_ONCE, &upstream);
        let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n";
        client.write_all(head.as_bytes()).unwrap();
        let mut peer = upstream.accept();
        peer.settings(&[]);
        let stream = peer.wait_for_head();
        peer.wait_until(|peer| peer.requests[&stream].body == b"ab");
        peer.head(stream, &[(":status", "103"), ("link", "</a>")], false);
        assert!(is_still(&mut peer));
        client.write_all(b"2\r\ncd\r\n0\r\n\r\n").unwrap();
        assert_eq!(peer.wait_for_rest(stream).body, b"abcd");
        peer.answer(stream, "200", b"ok");
        assert_eq!(super::read_answer(&mut client, false).text(), "ok");
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(an_interim_head_does_not_end_what_is_sent);

fn an_answer_whose_stream_is_reset_without_error_is_whole(engine: &'static str) {
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let server = server(engine, by, AT_ONCE, &upstream);
        let mut client = Client::connect(server.port);
        let asked = open(&mut client, "/", &[]);
        send(&mut client, asked, b"ab", false);
        let mut peer = upstream.accept();
        peer.settings(&[]);
        let stream = peer.wait_for_head();
        peer.answer(stream, "200", b"whole");
        peer.reset(stream, ErrorCode::NoError);
        let response = client.response(asked);
        assert_eq!(
            (response.status, response.text()),
            (200, "whole".to_owned())
        );
        assert!(response.ended, "{response:?}");
    });
}

support::test_on_each_engine!(an_answer_whose_stream_is_reset_without_error_is_whole);

fn trailers_reach_the_client(engine: &'static str) {
    each(engine, |engine, by| {
        let upstream = Upstream::serve(|peer, heard| {
            let Some(stream) = whole(heard) else { return };
            match peer.requests[&stream].path() {
                "/only" => {
                    let fields = [
                        (":status", "200"),
                        ("grpc-status", "5"),
                        ("grpc-message", "none"),
                    ];
                    peer.head(stream, &fields, true);
                }
                "/behind-nothing" => {
                    peer.head(stream, &[(":status", "200")], false);
                    peer.head(stream, &[("grpc-status", "5")], true);
                }
                _ => {
                    peer.head(stream, &[(":status", "200")], false);
                    peer.data(stream, b"some", false);
                    peer.head(stream, &[("grpc-status", "0"), ("x-own", "1")], true);
                }
            }
        });
        let server = server(engine, by, AT_ONCE, &upstream);
        let mut client = Client::connect(server.port);
        let mut ask = |path: &str| -> Response {
            let stream = client.request_with("POST", path, &[("te", "trailers")], Some(b"x"));
            client.response(stream)
        };
        let response = ask("/");
        assert_eq!(response.text(), "some");
        assert_eq!(
            response.trailers,
            pairs(&[("grpc-status", "0"), ("x-own", "1")])
        );
        let response = ask("/behind-nothing");
        assert_eq!(response.trailers, pairs(&[("grpc-status", "5")]));
        let response = ask("/only");
        assert_eq!(response.trailers, []);
        assert_eq!(response.field("grpc-status"), Some("5"));
        assert_eq!(response.field("grpc-message"), Some("none"));
        assert!(response.body.is_empty() && response.ended);
        // By HTTP/1 behind the last chunk.
        let answer = post(server.port, "/", "TE: trailers\r\n", "x");
        assert_eq!((answer.text(), answer.is_whole), ("some".to_owned(), true));
        assert_eq!(
            answer.trailers,
            pairs(&[("grpc-status", "0"), ("x-own", "1")])
        );
        let answer = post(server.port, "/only", "", "x");
        assert_eq!((answer.field("grpc-status"), answer.is_whole), ("5", true));
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(trailers_reach_the_client);

fn trailers_of_a_request_stay_here(engine: &'static str) {
    if is_nginx() {
        return; // it takes none
    }
    each(engine, |engine, by| {
        let upstream = Upstream::serve(plain);
        let server = server(engine, by, AT_ONCE, &upstream);
        let mut client = Client::connect(server.port);
        let stream = open(&mut client, "/", &[]);
        let mut out = data(stream, b"12345", false);
        let block = client.encode(&[("x-own", "1")]);
        frame::put_header_block(&mut out, stream, &block, true, 16_384);
        client.send(&out);
        assert_eq!(client.response(stream).text(), "ok");
        let asked = upstream.last();
        assert_eq!(
            (&asked.body[..], &asked.trailers[..]),
            (&b"12345"[..], &[][..])
        );
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(trailers_of_a_request_stay_here);

/// Sends a body as the server gives credit for it, and reads what comes meanwhile.
fn exchange(client: &mut Client, stream: u32, body: &[u8]) -> Response {
    let (mut of_stream, mut of_all) = (65_535_i64, 65_535_i64);
    let mut parts: VecDeque<&[u8]> = body.chunks(16_384).collect();
    loop {
        while let Some(part) = parts.front().copied() {
            let length = part.len() as i64;
            if of_stream.min(of_all) < length {
                break;
            }
            parts.pop_front();
            (of_stream, of_all) = (of_stream - length, of_all - length);
            send(client, stream, part, parts.is_empty());
        }
        let frame = client.read_frame().expect("the connection goes on");
        let number = |at: usize| {
            let bytes = frame.payload[at..at + 4].try_into().unwrap();
            i64::from(u32::from_be_bytes(bytes))
        };
        match frame.head.kind {
            Kind::WindowUpdate if frame.head.stream == stream => of_stream += number(0),
            Kind::WindowUpdate if frame.head.stream == 0 => of_all += number(0),
            Kind::Settings if !frame.head.has(flags::ACK) => {
                for (at, pair) in frame.payload.chunks(6).enumerate() {
                    if pair[..2] == settings::INITIAL_WINDOW_SIZE.to_be_bytes() {
                        of_stream += number(6 * at + 2) - 65_535;
                    }
                }
            }
            _ => {}
        }
        let response = client.responses.get(&stream);
        if let Some(response) =
            response.filter(|response| response.ended || response.reset.is_some())
        {
            return response.clone();
        }
    }
}

fn what_waits_of_a_body_while_the_answer_begins_is_not_lost(engine: &'static str) {
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let server = server(engine, by, AT_ONCE, &upstream);
        let (port, body) = (server.port, bytes(2 << 20));
        let sent = body.clone();
        let client = thread::spawn(move || {
            let mut client = Client::connect(port);
            let stream = open(&mut client, "/", &[]);
            exchange(&mut client, stream, &sent)
        });
        let mut peer = upstream.accept();
        peer.gives_credit = false;
        peer.settings(&[]);
        let stream = peer.wait_for_head();
        // As much comes as may, and more waits on the way.
        peer.wait_until(|peer| {
            peer.requests[&stream].body.len() == INITIAL_WINDOW_SIZE_DEFAULT as usize
        });
        assert!(is_still(&mut peer));
        peer.head(stream, &[(":status", "200")], false);
        assert!(is_still(&mut peer));
        peer.give(0, 1 << 30);
        peer.give(stream, 1 << 30);
        assert!(peer.wait_for_rest(stream).body == body);
        peer.data(stream, b"whole", true);
        assert_eq!(client.join().unwrap().text(), "whole");
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(what_waits_of_a_body_while_the_answer_begins_is_not_lost);

fn large_bodies_go_both_ways_at_once(engine: &'static str) {
    each(engine, |engine, by| {
        // It sends back what comes, as it comes.
        let upstream = Upstream::serve(|peer, heard| match heard {
            Heard::Head(stream, _) => peer.head(stream, &[(":status", "200")], false),
            Heard::Data(stream, ..) => peer.send_back(stream),
            _ => {}
        });
        let server = server(engine, by, AT_ONCE, &upstream);
        let mut clients = Vec::new();
        for _ in 0..3 {
            let port = server.port;
            clients.push(thread::spawn(move || {
                let mut client = Client::connect(port);
                let body = bytes(10 << 20);
                let stream = open(&mut client, "/", &[]);
                let response = exchange(&mut client, stream, &body);
                let (length, reset) = (response.body.len(), response.reset);
                assert!(response.body == body, "{length} bytes, {reset:?}");
            }));
        }
        let clients: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        assert!(
            clients.iter().all(Result::is_ok),
            "{} {:?}",
            server.error_log(),
            upstream.record().asked
        );
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(large_bodies_go_both_ways_at_once);
