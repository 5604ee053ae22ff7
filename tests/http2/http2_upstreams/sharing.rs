//! How requests share connections: as many at once as the upstream takes streams, for how long
//! connections stay, and what must agree.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use proto::h2::ErrorCode;
use proto::h2::frame::{self, Kind};
use support::http2::Client;
use support::is_nginx;
use support::master::wait_for as wait_for_it;

use super::upstream::{Heard, MAX_CONCURRENT_STREAMS, Peer, Upstream, plain, whole};
use super::{By, each, get, open, send, server, wait_for};

/// Passes on to a group that keeps so many connections.
fn kept(keepalive: &str) -> String {
    format!(
        "location / {{ by_pass by://u; }} location /other {{ by_pass by://u; }}
         [http]
         proxy_buffering off; proxy_request_buffering off; upstream u {{ server UP max_fails=0; {keepalive} }}"
    )
}

/// Whether all connections but so many have ended.
fn are_left(upstream: &Upstream, count: usize) -> bool {
    let record = upstream.record();
    record.connections - record.ended == count
}

fn requests_at_once_are_streams_of_one_connection(engine: &'static str) {
    if is_nginx() {
        return;
    }
    each(engine, |engine, by| {
        // In a group, and where the server is named without one.
        for lines in [
            kept("keepalive 4;"),
            "location / { by_pass by://UP; }".to_owned(),
        ] {
            let upstream = Upstream::bind().serve_with(&[(MAX_CONCURRENT_STREAMS, 100)], |_, _| {});
            let server = server(engine, by, &lines, &upstream);
            let mut client = Client::connect(server.port);
            let streams: Vec<u32> = (0..50)
                .map(|n| client.request(&format!("/{n}"), &[]))
                .collect();
            // None is answered before all have come.
            for asked in upstream.wait_for(50) {
                upstream.answer(&asked, asked.path().as_bytes());
            }
            for (n, stream) in streams.into_iter().enumerate() {
                assert_eq!(client.response(stream).text(), format!("/{n}"));
            }
            let record = upstream.record();
            assert_eq!(record.streams, BTreeMap::from([(0, 50)]));
            drop(record);
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(requests_at_once_are_streams_of_one_connection);

/// Refuses what is too much at once.
fn refuse_beyond_two(peer: &mut Peer, heard: Heard) {
    if let Heard::Head(stream, _) = heard
        && peer.open() > 2
    {
        peer.reset(stream, ErrorCode::RefusedStream);
    }
}

fn there_are_as_many_connections_as_the_upstreams_streams_ask_for(engine: &'static str) {
    if is_nginx() {
        return;
    }
    each(engine, |engine, by| {
        let settings = [(MAX_CONCURRENT_STREAMS, 2)];
        let upstream = Upstream::bind().serve_with(&settings, refuse_beyond_two);
        let server = server(engine, by, &kept("keepalive 40;"), &upstream);
        let mut client = Client::connect(server.port);
        // The first says how many there may be.
        let first = client.request("/first", &[]);
        upstream.answer(&upstream.wait_for(1)[0], b"first");
        assert_eq!(client.response(first).text(), "first");
        let streams: Vec<u32> = (0..40)
            .map(|n| client.request(&format!("/{n}"), &[]))
            .collect();
        let accepted = || {
            let record = upstream.record();
            let asked = record
                .asked
                .iter()
                .skip(1)
                .filter(|asked| !record.is_answered(asked));
            asked.cloned().collect::<Vec<_>>()
        };
        wait_for_it("all requests at once", || accepted().len() == 40);
        let accepted = accepted();
        let mut of_connection = BTreeMap::<usize, usize>::new();
        for asked in &accepted {
            *of_connection.entry(asked.connection).or_default() += 1;
        }
        assert!(
            of_connection.values().all(|count| *count == 2),
            "{of_connection:?}"
        );
        let refused = upstream.record().heads() - 41;
        assert_eq!((of_connection.len(), refused), (20, 0));
        for asked in accepted {
            upstream.answer(&asked, asked.path().as_bytes());
        }
        for (n, stream) in streams.into_iter().enumerate() {
            assert_eq!(client.response(stream).text(), format!("/{n}"));
        }
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(there_are_as_many_connections_as_the_upstreams_streams_ask_for);

fn a_cold_start_finds_out_how_many_streams_there_may_be(engine: &'static str) {
    if is_nginx() {
        return;
    }
    each(engine, |engine, by| {
        // No more than one is sent on a connection before its settings have come.
        let settings = [(MAX_CONCURRENT_STREAMS, 2)];
        let upstream = Upstream::bind().serve_with(&settings, |peer, heard| {
            refuse_beyond_two(peer, heard);
            if let Some(stream) = whole(heard)
                && !peer.is_answered(stream)
            {
                thread::sleep(Duration::from_millis(2));
                let path = peer.requests[&stream].path().to_owned();
                peer.answer(stream, "200", path.as_bytes());
            }
        });
        let server = server(engine, by, &kept("keepalive 40;"), &upstream);
        let mut client = Client::connect(server.port);
        let streams: Vec<u32> = (0..60)
            .map(|n| client.request(&format!("/{n}"), &[]))
            .collect();
        for (n, stream) in streams.into_iter().enumerate() {
            assert_eq!(client.response(stream).text(), format!("/{n}"));
        }
        assert_eq!(upstream.heads(), 60, "none was refused");
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(a_cold_start_finds_out_how_many_streams_there_may_be);

fn a_connection_serves_as_many_requests_as_it_may(engine: &'static str) {
    each(engine, |engine, by| {
        let upstream = Upstream::serve(plain);
        let server = server(
            engine,
            by,
            &kept("keepalive 4; keepalive_requests 3;"),
            &upstream,
        );
        for _ in 0..7 {
            assert_eq!(get(server.port, "/").text(), "ok");
        }
        wait_for_it("end of two connections", || are_left(&upstream, 1));
        let record = upstream.record();
        assert_eq!(record.streams, BTreeMap::from([(0, 3), (1, 3), (2, 1)]));
        drop(record);
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(a_connection_serves_as_many_requests_as_it_may);

fn idle_connections_end_in_time(engine: &'static str) {
    each(engine, |engine, by| {
        for lines in [
            "keepalive 4; keepalive_timeout 50ms;",
            "keepalive 4; keepalive_time 1ms;",
        ] {
            let upstream = Upstream::serve(plain);
            let server = server(engine, by, &kept(lines), &upstream);
            assert_eq!(get(server.port, "/").text(), "ok");
            if lines.contains("timeout") {
                wait_for_it("end of the connection", || are_left(&upstream, 0));
            }
            thread::sleep(Duration::from_millis(5));
            assert_eq!(get(server.port, "/").text(), "ok");
            // One that has had its time ends as soon as it is idle; with nginx behind the next
            // request.
            assert!(upstream.record().connections <= 2);
            if lines.contains("timeout") || !is_nginx() {
                wait_for_it("end of all connections", || are_left(&upstream, 0));
            }
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(idle_connections_end_in_time);

fn no_more_idle_connections_stay_than_are_kept(engine: &'static str) {
    each(engine, |engine, by| {
        let settings = [(MAX_CONCURRENT_STREAMS, 1)];
        let upstream = Upstream::bind().serve_with(&settings, |_, _| {});
        let server = server(engine, by, &kept("keepalive 2;"), &upstream);
        let mut client = Client::connect(server.port);
        // One after the other, so that each has been told of its settings before the next begins.
        let mut streams = Vec::new();
        for n in 1..=5 {
            streams.push(client.request("/", &[]));
            upstream.wait_for(n);
            let holds = |noted: &super::upstream::Noted| {
                noted.head.kind == Kind::Settings
                    && noted.head.length == 0
                    && noted.connection == n - 1
            };
            wait_for_it("the settings to hold", || {
                upstream.record().frames.iter().any(holds)
            });
        }
        for asked in upstream.wait_for(5) {
            upstream.answer(&asked, b"ok");
        }
        for stream in streams {
            assert_eq!(client.response(stream).text(), "ok");
        }
        wait_for_it("end of three connections", || are_left(&upstream, 2));
        // Both serve on.
        for n in 0..2 {
            let stream = client.request("/", &[]);
            upstream.answer(&upstream.wait_for(6 + n)[5 + n], b"ok");
            assert_eq!(client.response(stream).text(), "ok");
        }
        assert_eq!(upstream.record().connections, 5);
        assert!(are_left(&upstream, 2));
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(no_more_idle_connections_stay_than_are_kept);

fn without_a_group_connections_end_with_their_last_request(engine: &'static str) {
    each(engine, |engine, by| {
        for lines in [
            "location / { by_pass by://UP; }".to_owned(),
            kept("keepalive 0;"),
        ] {
            let upstream = Upstream::serve(plain);
            let server = server(engine, by, &lines, &upstream);
            for n in 1..=3 {
                assert_eq!(get(server.port, "/").text(), "ok");
                wait_for_it("end of the connection", || are_left(&upstream, 0));
                assert_eq!(upstream.record().connections, n);
            }
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(without_a_group_connections_end_with_their_last_request);

/// Servers of gRPC end connections over which PINGs come more than once in five minutes without
/// anything of theirs between (<https://github.com/grpc/grpc/blob/master/doc/keepalive.md>).
fn a_server_that_is_alive_is_asked_no_more_for_each_answer_that_does_not_come(
    engine: &'static str,
) {
    if is_nginx() {
        return;
    }
    let lines = "location / { by_pass by://u; by_read_timeout 1300ms; }
        [http]
        upstream u { server UP max_fails=0; keepalive 4; }";
    each(engine, |engine, by| {
        let upstream = Upstream::serve(|peer, heard| {
            if let Some(stream) = whole(heard)
                && peer.requests[&stream].path() == "/answered"
            {
                peer.answer(stream, "200", b"ok");
            }
        });
        let server = server(engine, by, lines, &upstream);
        let silence = || {
            assert_eq!(get(server.port, "/silent").status, 504);
            // What is asked has been answered by then.
            thread::sleep(Duration::from_millis(100));
            let record = upstream.record();
            let frames = record.frames.iter();
            frames.filter(|noted| noted.head.kind == Kind::Ping).count()
        };
        assert_eq!([silence(), silence()], [1, 1]);
        assert_eq!(get(server.port, "/answered").text(), "ok");
        assert_eq!(silence(), 2);
        // Where it may not be asked again, others have not been trusted to it.
        assert_eq!(upstream.record().connections, 2);
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(
    a_server_that_is_alive_is_asked_no_more_for_each_answer_that_does_not_come
);

fn a_client_that_leaves_ends_its_own_stream(engine: &'static str) {
    each(engine, |engine, by| {
        // Before the head, in the body, and with a request that has not ended.
        for (has_head, ends) in [(false, true), (true, true), (false, false), (true, false)] {
            // Clients of HTTP/2 that reset the stream, or close, and of HTTP/1 that close.
            for manner in ["reset", "close", "http1"] {
                // What of a body is left unread hides the end of a connection of HTTP/1.
                if manner == "http1" && has_head && !ends && !is_nginx() {
                    continue;
                }
                let upstream = Upstream::bind();
                let server = server(engine, by, &kept("keepalive 4;"), &upstream);
                let mut client = Some(Client::connect(server.port));
                let mut plain = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
                let mut asked = 0;
                if manner == "http1" {
                    let length = if ends { 1 } else { 9 };
                    let head =
                        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\nx");
                    plain.write_all(head.as_bytes()).unwrap();
                } else if let Some(client) = &mut client {
                    asked = open(client, "/", &[]);
                    send(client, asked, b"x", ends);
                }
                let mut peer = upstream.accept();
                peer.settings(&[]);
                let stream = peer.wait_for_head();
                peer.wait_until(|peer| peer.requests[&stream].body == b"x");
                if has_head {
                    peer.head(stream, &[(":status", "200")], false);
                    peer.data(stream, b"y", false);
                    match manner {
                        "http1" => {
                            plain.set_read_timeout(Some(support::PATIENCE)).unwrap();
                            assert!(plain.peek(&mut [0]).unwrap() > 0);
                        }
                        _ => {
                            let client = client.as_mut().unwrap();
                            wait_for(client, asked, |response| response.body == b"y");
                        }
                    }
                }
                match (manner, &mut client) {
                    ("reset", Some(client)) => {
                        let mut out = Vec::new();
                        frame::put_reset(&mut out, asked, ErrorCode::Cancel);
                        client.send(&out);
                    }
                    ("http1", _) => drop(plain),
                    _ => drop(client.take()),
                }
                // nginx closes the connection.
                if is_nginx() {
                    peer.wait_for_end();
                    continue;
                }
                let code = peer.wait_for_reset(stream);
                assert_eq!(code, ErrorCode::Cancel, "{has_head} {ends} {manner}");
                let mut other = Client::connect(server.port);
                let asked = other.request("/", &[]);
                let next = peer.wait_for_request().stream;
                peer.answer(next, "200", b"ok");
                assert_eq!(other.response(asked).text(), "ok");
                upstream.assert_clean();
            }
        }
    });
}

support::test_on_each_engine!(a_client_that_leaves_ends_its_own_stream);

/// Servers end connections over which many streams are reset (CVE-2023-44487), and with them what
/// others ask.
fn clients_that_go_away_end_no_connection_of_others(engine: &'static str) {
    if is_nginx() {
        return;
    }
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let server = server(engine, by, &kept("keepalive 4;"), &upstream);
        let mut client = Client::connect(server.port);
        let first = client.request("/first", &[]);
        let mut peer = upstream.accept();
        peer.settings(&[]);
        let stays = peer.wait_for_request().stream;
        peer.wait_for_settings();
        let mut resets = 0;
        loop {
            let asked = client.request("/left", &[]);
            let Some(stream) = next_request(&mut peer) else {
                break;
            };
            let mut out = Vec::new();
            frame::put_reset(&mut out, asked, ErrorCode::Cancel);
            client.send(&out);
            assert_eq!(peer.wait_for_reset(stream), ErrorCode::Cancel);
            resets += 1;
            assert!(resets < 100);
        }
        assert!(resets >= 10, "{resets}");
        // What comes now has another connection. What was under way goes on, and then this one
        // ends.
        let mut other = upstream.accept();
        other.settings(&[]);
        assert_eq!(other.wait_for_request().path(), "/left");
        peer.answer(stays, "200", b"first");
        assert_eq!(client.response(first).text(), "first");
        peer.wait_for_end();
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(clients_that_go_away_end_no_connection_of_others);

/// The next request on this connection, if there is one.
fn next_request(peer: &mut Peer) -> Option<u32> {
    while let Some(heard) = peer.next_soon() {
        if let Heard::Head(stream, _) = heard {
            return Some(stream);
        }
    }
    None
}

fn an_upstream_that_is_not_told_of_its_client_goes_on(engine: &'static str) {
    let lines = "location / { proxy_pass http://u; proxy_ignore_client_abort on; }
        [http]
        upstream u { server UP max_fails=0; keepalive 4; }";
    let upstream = Upstream::bind();
    let server = server(engine, By::Proxy, lines, &upstream);
    let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    let mut peer = upstream.accept();
    peer.settings(&[]);
    let stream = peer.wait_for_request().stream;
    drop(client);
    assert!(super::flow::is_still(&mut peer));
    peer.answer(stream, "200", b"ok");
    // The connection serves another.
    let mut other = Client::connect(server.port);
    let asked = other.request("/", &[]);
    let next = peer.wait_for_request();
    assert_eq!(peer.requests[&stream].reset, None);
    peer.answer(next.stream, "200", b"ok");
    assert_eq!(other.response(asked).text(), "ok");
    upstream.assert_clean();
}

support::test_on_each_engine!(an_upstream_that_is_not_told_of_its_client_goes_on);

/// Two requests, the second while the first is under way; over how many connections they go.
fn connections_of(engine: &str, by: By, lines: &str, paths: [&str; 2]) -> usize {
    let upstream = Upstream::bind().serve_with(&[], |_, _| {});
    let server = server(engine, by, lines, &upstream);
    let mut client = Client::connect(server.port);
    let mut streams = Vec::new();
    for (n, path) in paths.into_iter().enumerate() {
        streams.push(client.request(path, &[]));
        upstream.wait_for(n + 1);
    }
    let all = upstream.wait_for(2);
    all.iter().for_each(|asked| upstream.answer(asked, b"ok"));
    for stream in streams {
        assert_eq!(client.response(stream).text(), "ok");
    }
    upstream.assert_clean();
    let connections: BTreeSet<usize> = all.iter().map(|asked| asked.connection).collect();
    connections.len()
}

fn those_share_who_agree_on_what_the_connection_is_made_by(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let group = "upstream u { server UP max_fails=0; KEPT }";
    each(engine, |engine, by| {
        for (a, b, kept, expected) in [
            ("", "", "keepalive 4;", 1),
            ("", "", "keepalive 4 local;", 2),
            // Without connections that stay they are those of their location.
            ("", "", "keepalive 0;", 2),
            (
                "by_bind 127.0.0.2;",
                "by_bind 127.0.0.2;",
                "keepalive 4;",
                1,
            ),
            (
                "by_bind 127.0.0.2;",
                "by_bind 127.0.0.3;",
                "keepalive 4;",
                2,
            ),
            ("by_bind 127.0.0.2;", "", "keepalive 4;", 2),
            ("by_socket_keepalive on;", "", "keepalive 4;", 2),
            (
                "by_set_header X a;",
                "by_set_header X b;",
                "keepalive 4;",
                1,
            ),
            (
                "by_read_timeout 1s;",
                "by_read_timeout 2s;",
                "keepalive 4;",
                1,
            ),
        ] {
            let group = group.replace("KEPT", kept);
            let lines = format!(
                "location /a {{ by_pass by://u; {a} }} location /b {{ by_pass by://u; {b} }}\n[http]\n{group}"
            );
            assert_eq!(
                connections_of(engine, by, &lines, ["/a", "/b"]),
                expected,
                "{a} {b} {kept}"
            );
            assert_eq!(
                connections_of(engine, by, &lines, ["/a", "/a"]),
                1,
                "{a} {kept}"
            );
        }
    });
}

support::test_on_each_engine!(those_share_who_agree_on_what_the_connection_is_made_by);
