//! Heads of requests that are larger than an upstream takes, or may be: they hurt no other request
//! on the connection.

use proto::h2::ErrorCode;
use proto::h2::settings::MAX_HEADER_LIST_SIZE;
use support::http2::Client;
use support::{Server, is_nginx};

use super::upstream::{Peer, Upstream, goaway};
use super::{By, each, lines_with, server};

const KEPT: &str = "location / { by_pass by://u; }
    [http]
    upstream u { server UP max_fails=0; keepalive 4; }";

/// A server, and a client with a request under way on a connection whose upstream has these
/// settings.
fn begun(
    engine: &str,
    by: By,
    upstream: &Upstream,
    settings: &[(u16, u32)],
) -> (Server, Client, u32, Peer) {
    let server = server(engine, by, KEPT, upstream);
    let mut client = Client::connect(server.port);
    let first = client.request("/first", &[]);
    let mut peer = upstream.accept();
    peer.settings(settings);
    peer.wait_for_request();
    peer.wait_for_settings();
    (server, client, first, peer)
}

/// Answers the request that comes next, and has its client get that.
fn answer(client: &mut Client, asked: u32, peer: &mut Peer, path: &str) {
    let came = peer.wait_for_request();
    assert_eq!(came.path(), path);
    peer.answer(came.stream, "200", path.as_bytes());
    assert_eq!(client.response(asked).text(), path);
}

/// What servers say of that is an advice (RFC 9113, section 6.5.2): grpcio says 16 KB and takes
/// more.
fn a_head_larger_than_the_upstream_says_that_it_takes_travels_alone(engine: &'static str) {
    if is_nginx() {
        return; // it sends it
    }
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let settings = [(MAX_HEADER_LIST_SIZE, 4096)];
        let (server, mut client, first, mut peer) = begun(engine, by, &upstream, &settings);
        // Bytes of the fields, and what each counts beside: both are looked at.
        let long = "x".repeat(4000);
        let names: Vec<String> = (0..120).map(|n| format!("x-{n}")).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (&name[..], "1")).collect();
        for fields in [&[("x-long", &long[..])][..], &many] {
            let asked = client.request("/large", fields);
            let mut other = upstream.accept();
            other.settings(&settings);
            let stream = other.wait_for_request().stream;
            other.wait_for_settings();
            // Nobody joins it. It may be served, or end its connection.
            let beside = client.request("/beside", &[]);
            answer(&mut client, beside, &mut peer, "/beside");
            other.answer(stream, "200", b"taken");
            assert_eq!(client.response(asked).text(), "taken");
            // Now that nothing is under way there, the next one goes there as well.
            let asked = client.request("/large", fields);
            let stream = other.wait_for_request().stream;
            other.reset(stream, ErrorCode::EnhanceYourCalm);
            assert_eq!(client.response(asked).status, 502);
            other.close();
        }
        let text =
            "is larger than the 4096 bytes that upstream takes while reading response header";
        assert_eq!(lines_with(&server, 0, text, 2), 2);
        // Up to that it is no matter, and those beside go on.
        let long = "x".repeat(3500);
        let asked = client.request("/next", &[("x-long", &long)]);
        answer(&mut client, asked, &mut peer, "/next");
        let stream = *peer.requests.keys().next().unwrap();
        peer.answer(stream, "200", b"first");
        assert_eq!(client.response(first).text(), "first");
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(a_head_larger_than_the_upstream_says_that_it_takes_travels_alone);

/// Two fields of a request, of 12 KB together.
fn large(long: &str) -> [(&str, &str); 2] {
    [("x-one", long), ("x-two", long)]
}

fn large_heads_travel_alone(engine: &'static str) {
    if is_nginx() {
        return; // all do
    }
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let (_server, mut client, first, mut peer) = begun(engine, by, &upstream, &[]);
        let long = "x".repeat(6000);
        let asked = client.request("/large", &large(&long));
        let mut other = upstream.accept();
        other.settings(&[]);
        let large_one = other.wait_for_request();
        assert_eq!(large_one.path(), "/large");
        other.wait_for_settings();
        // Nobody else joins it, nor is hurt if the upstream ends its connection.
        for path in ["/a", "/b"] {
            let beside = client.request(path, &[]);
            answer(&mut client, beside, &mut peer, path);
        }
        other.send(&goaway(large_one.stream, ErrorCode::EnhanceYourCalm));
        other.close();
        assert_ne!(client.response(asked).text(), "ok");
        let beside = client.request("/c", &[]);
        answer(&mut client, beside, &mut peer, "/c");
        let stream = *peer.requests.keys().next().unwrap();
        peer.answer(stream, "200", b"first");
        assert_eq!(client.response(first).text(), "first");
        // Where nothing else is under way there is no need of another connection, before it or
        // behind it.
        let asked = client.request("/large", &large(&long));
        answer(&mut client, asked, &mut peer, "/large");
        let asked = client.request("/d", &[]);
        answer(&mut client, asked, &mut peer, "/d");
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(large_heads_travel_alone);

fn large_heads_share_where_the_upstream_says_that_it_takes_them(engine: &'static str) {
    if is_nginx() {
        return;
    }
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let settings = [(MAX_HEADER_LIST_SIZE, 100_000)];
        let (_server, mut client, _, mut peer) = begun(engine, by, &upstream, &settings);
        let long = "x".repeat(6000);
        for _ in 0..2 {
            let asked = client.request("/large", &large(&long));
            answer(&mut client, asked, &mut peer, "/large");
        }
        assert_eq!(upstream.record().connections, 1);
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(large_heads_share_where_the_upstream_says_that_it_takes_them);

fn none_joins_a_head_that_was_sent_before_the_upstream_said_what_it_takes(engine: &'static str) {
    if is_nginx() {
        return;
    }
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let server = server(engine, by, KEPT, &upstream);
        let mut client = Client::connect(server.port);
        let long = "x".repeat(3000);
        let asked = client.request("/large", &[("x-long", &long)]);
        let mut peer = upstream.accept();
        peer.settings(&[(MAX_HEADER_LIST_SIZE, 2000)]);
        let first = peer.wait_for_request().stream;
        peer.wait_for_settings();
        let beside = client.request("/beside", &[]);
        let mut other = upstream.accept();
        other.settings(&[]);
        answer(&mut client, beside, &mut other, "/beside");
        peer.answer(first, "200", b"large");
        assert_eq!(client.response(asked).text(), "large");
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(
    none_joins_a_head_that_was_sent_before_the_upstream_said_what_it_takes
);
