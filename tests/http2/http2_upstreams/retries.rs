//! What is sent again, and where: what a server has not looked at, what `*_next_upstream` names,
//! and what may not be sent twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proto::h2::ErrorCode;
use support::http2::Client;
use support::is_nginx;

use super::upstream::{Heard, Peer, Upstream, goaway, plain, whole};
use super::{Answer, By, each, get, lines_with, open, post, send, server};

/// Passes on to a group whose server `UP` comes first; `NEXT` are lines of the location, `OTHER` is
/// another server.
const GROUP: &str = "location / { by_pass by://u; NEXT }
    [http]
    proxy_request_buffering off; proxy_buffering off; upstream u { server UP max_fails=0; OTHER keepalive 4; }";

fn lines(next: &str, other: Option<&Upstream>) -> String {
    let other = other.map(|other| format!("server {} backup;", other.address()));
    GROUP
        .replace("NEXT", next)
        .replace("OTHER", &other.unwrap_or_default())
}

/// Does something for each request that has come whole.
fn each_request(
    act: impl Fn(&mut Peer, u32) + Send + Sync + 'static,
) -> impl Fn(&mut Peer, Heard) + Send + Sync + 'static {
    move |peer, heard| {
        if let Some(stream) = whole(heard) {
            act(peer, stream);
        }
    }
}

fn what_a_goaway_does_not_cover_is_sent_again(engine: &'static str) {
    if is_nginx() {
        return; // it takes that for an invalid head
    }
    each(engine, |engine, by| {
        for code in [ErrorCode::NoError, ErrorCode::EnhanceYourCalm] {
            let upstream = Upstream::bind();
            let server = server(engine, by, &lines("", None), &upstream);
            let mut client = Client::connect(server.port);
            // One that is covered is answered on the old connection, the other on a new one.
            let covered = client.request_with("POST", "/covered", &[], Some(b"first"));
            let mut peer = upstream.accept();
            peer.settings(&[]);
            let first = peer.wait_for_request().stream;
            let not_covered =
                client.request_with("POST", "/again", &[("x-own", "1")], Some(b"second"));
            let second = peer.wait_for_request().stream;
            assert!(second > first);
            peer.send(&goaway(first, code));
            let mut other = upstream.accept();
            other.settings(&[]);
            let again = other.wait_for_request();
            assert_eq!((again.path(), again.field("x-own")), ("/again", "1"));
            assert_eq!(again.body, b"second");
            other.answer(again.stream, "200", b"new");
            assert_eq!(client.response(not_covered).text(), "new");
            // Those that follow do not go on the old one.
            let next = client.request("/next", &[]);
            let asked = other.wait_for_request();
            other.answer(asked.stream, "200", b"next");
            assert_eq!(client.response(next).text(), "next");
            peer.answer(first, "200", b"old");
            assert_eq!(client.response(covered).text(), "old");
            peer.wait_for_end();
            let text = format!(
                "upstream sent goaway with error {} while reading response header",
                code.number()
            );
            assert_eq!(lines_with(&server, 0, &text, 1), 1);
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(what_a_goaway_does_not_cover_is_sent_again);

fn what_is_refused_is_sent_again_a_few_times(engine: &'static str) {
    if is_nginx() {
        return; // it takes that for an invalid head
    }
    each(engine, |engine, by| {
        // So often refused; what comes of it, and how often it was sent.
        for (refusals, by_goaway, status, expected) in [
            (1, false, 200, 2),
            (3, false, 200, 4),
            (usize::MAX, false, 502, 4),
            (1, true, 200, 2),
            (3, true, 200, 4),
            (usize::MAX, true, 502, 4),
        ] {
            let count = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&count);
            let upstream = Upstream::serve(each_request(move |peer, stream| {
                if counted.fetch_add(1, Ordering::SeqCst) < refusals {
                    if by_goaway {
                        peer.send(&goaway(stream.saturating_sub(2), ErrorCode::NoError))
                    } else {
                        peer.reset(stream, ErrorCode::RefusedStream)
                    }
                } else {
                    peer.answer(stream, "200", b"ok")
                }
            }));
            let server = server(engine, by, &lines("", None), &upstream);
            let answer = post(server.port, "/", "", "12345");
            let what = format!("{refusals} {by_goaway}");
            assert_eq!(answer.status, status, "{what}: {}", server.error_log());
            assert_eq!(count.load(Ordering::SeqCst), expected, "{what}");
            assert!(
                upstream
                    .record()
                    .asked
                    .iter()
                    .all(|asked| asked.body == b"12345")
            );
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(what_is_refused_is_sent_again_a_few_times);

fn what_is_refused_is_sent_again_only_where_errors_are(engine: &'static str) {
    if is_nginx() {
        return;
    }
    each(engine, |engine, by| {
        for (next, expected) in [
            ("by_next_upstream off;", 1),
            ("by_next_upstream invalid_header;", 1),
            ("", 4),
        ] {
            let upstream = Upstream::serve(each_request(|peer, stream| {
                peer.reset(stream, ErrorCode::RefusedStream);
            }));
            let server = server(engine, by, &lines(next, None), &upstream);
            assert_eq!(get(server.port, "/").status, 502);
            assert_eq!(upstream.record().asked.len(), expected, "{next}");
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(what_is_refused_is_sent_again_only_where_errors_are);

fn a_body_of_which_some_has_gone_is_sent_again_whole_or_not_at_all(engine: &'static str) {
    if is_nginx() {
        return;
    }
    each(engine, |engine, by| {
        for by_goaway in [false, true] {
            let upstream = Upstream::bind();
            let server = server(engine, by, &lines("", None), &upstream);
            let mut client = Client::connect(server.port);
            let asked = open(&mut client, "/", &[]);
            send(&mut client, asked, b"abc", false);
            let mut peer = upstream.accept();
            peer.settings(&[]);
            let stream = peer.wait_for_head();
            peer.wait_until(|peer| peer.requests[&stream].body == b"abc");
            send(&mut client, asked, b"def", false);
            peer.wait_until(|peer| peer.requests[&stream].body == b"abcdef");
            let mut other = if by_goaway {
                peer.send(&goaway(0, ErrorCode::NoError));
                let mut other = upstream.accept();
                other.settings(&[]);
                other
            } else {
                peer.reset(stream, ErrorCode::RefusedStream);
                peer
            };
            let again = other.wait_for_head();
            other.wait_until(|peer| peer.requests[&again].body == b"abcdef");
            send(&mut client, asked, b"ghi", true);
            assert_eq!(other.wait_for_rest(again).body, b"abcdefghi");
            other.answer(again, "200", b"ok");
            assert_eq!(client.response(asked).text(), "ok");
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(a_body_of_which_some_has_gone_is_sent_again_whole_or_not_at_all);

fn what_is_refused_goes_to_the_same_server_where_no_other_is_left(engine: &'static str) {
    if is_nginx() {
        return; // it takes that for an invalid head
    }
    // Nothing listens there.
    let lines = GROUP
        .replace("NEXT", "")
        .replace("OTHER", "server 127.0.0.1:1;");
    each(engine, |engine, by| {
        for by_goaway in [false, true] {
            let count = AtomicUsize::new(0);
            let upstream = Upstream::serve(each_request(move |peer, stream| {
                match count.fetch_add(1, Ordering::SeqCst) {
                    0 if by_goaway => peer.send(&goaway(0, ErrorCode::NoError)),
                    0 => peer.reset(stream, ErrorCode::RefusedStream),
                    _ => peer.answer(stream, "200", b"ok"),
                }
            }));
            let server = server(engine, by, &lines, &upstream);
            let answer = post(server.port, "/", "", "12345");
            assert_eq!(answer.text(), "ok", "{by_goaway}: {}", server.error_log());
            assert_eq!(upstream.record().asked.len(), 2);
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(what_is_refused_goes_to_the_same_server_where_no_other_is_left);

/// What comes of a request whose first server does this with it.
fn outcome(
    engine: &str,
    by: By,
    next: &str,
    method: &str,
    act: impl Fn(&mut Peer, u32) + Send + Sync + 'static,
) -> (Answer, usize) {
    let first = Upstream::serve(each_request(act));
    let second = Upstream::serve(plain);
    let server = server(engine, by, &lines(next, Some(&second)), &first);
    let answer = match method {
        "POST" => post(server.port, "/", "", "12345"),
        _ => get(server.port, "/"),
    };
    first.wait_for(1);
    let requests = first.record().asked.len();
    if let Some(asked) = second.record().asked.last() {
        let body: &[u8] = if method == "POST" { b"12345" } else { b"" };
        assert_eq!((asked.field(":method"), &asked.body[..]), (method, body));
    }
    (answer, requests)
}

fn causes_are_those_that_are_named(engine: &'static str) {
    type Act = fn(&mut Peer, u32);
    let reset: Act = |peer, stream| peer.reset(stream, ErrorCode::InternalError);
    let close: Act = |peer, _| peer.close();
    let stall: Act = |_, _| {};
    let answer_503: Act = |peer, stream| peer.answer(stream, "503", b"busy");
    let answer_404: Act = |peer, stream| peer.answer(stream, "404", b"none");
    let answer_429: Act = |peer, stream| peer.head(stream, &[(":status", "429")], true);
    each(engine, |engine, by| {
        for (act, next, method, status) in [
            // A reset is an invalid head.
            (reset, "", "GET", 502),
            (reset, "by_next_upstream error timeout;", "GET", 502),
            (reset, "by_next_upstream invalid_header;", "GET", 200),
            (reset, "by_next_upstream invalid_header;", "POST", 502),
            (
                reset,
                "by_next_upstream invalid_header non_idempotent;",
                "POST",
                200,
            ),
            // The end of a connection is an error. What may have been acted upon is not sent twice.
            (close, "", "GET", 200),
            (close, "by_next_upstream off;", "GET", 502),
            (close, "by_next_upstream invalid_header;", "GET", 502),
            (close, "", "POST", 502),
            (close, "by_next_upstream error non_idempotent;", "POST", 200),
            (stall, "by_read_timeout 1s;", "GET", 200),
            (stall, "by_read_timeout 300ms;", "POST", 504),
            (
                stall,
                "by_read_timeout 300ms; by_next_upstream error;",
                "GET",
                504,
            ),
            (
                stall,
                "by_read_timeout 1s; by_next_upstream timeout non_idempotent;",
                "POST",
                200,
            ),
            // For so long another server is tried.
            (
                stall,
                "by_read_timeout 300ms; proxy_next_upstream_timeout 100ms; grpc_next_upstream_timeout 100ms;",
                "GET",
                504,
            ),
            // Statuses.
            (answer_503, "", "GET", 503),
            (answer_503, "by_next_upstream http_503;", "GET", 200),
            (answer_503, "by_next_upstream http_503;", "POST", 503),
            (answer_404, "by_next_upstream http_404;", "GET", 200),
            (answer_404, "by_next_upstream http_503;", "GET", 404),
            (
                answer_429,
                "by_next_upstream http_429 non_idempotent;",
                "POST",
                200,
            ),
            (
                answer_503,
                "by_next_upstream http_503; by_next_upstream_tries 1;",
                "GET",
                503,
            ),
        ] {
            let (answer, requests) = outcome(engine, by, next, method, act);
            assert_eq!(answer.status, status, "{by:?} {next} {method}");
            assert_eq!(requests, 1, "{by:?} {next} {method}");
        }
    });
}

support::test_on_each_engine!(causes_are_those_that_are_named);

fn a_kept_connection_that_has_ended_costs_nothing(engine: &'static str) {
    if is_nginx() {
        return; // what it sends on the new connection has the number of its stream on the old one
    }
    each(engine, |engine, by| {
        // It serves one request, and closes when the next has come.
        let upstream = Upstream::serve(each_request(|peer, stream| match stream {
            1 => peer.answer(stream, "200", b"ok"),
            _ => peer.close(),
        }));
        let server = server(engine, by, &lines("", None), &upstream);
        for _ in 0..4 {
            assert_eq!(get(server.port, "/").text(), "ok");
        }
        // A POST may have been acted upon.
        let answer = post(server.port, "/", "", "12345");
        assert_eq!(answer.status, 502);
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(a_kept_connection_that_has_ended_costs_nothing);

/// It has not ended before they have begun on it, so that each of them has had its try.
fn a_connection_with_others_on_it_is_none_that_was_kept(engine: &'static str) {
    if is_nginx() {
        return; // requests at once have connections of their own
    }
    each(engine, |engine, by| {
        let upstream = Upstream::bind();
        let other = Upstream::serve(plain);
        let lines = lines("by_next_upstream_tries 1;", Some(&other));
        let server = server(engine, by, &lines, &upstream);
        let mut client = Client::connect(server.port);
        let first = client.request("/first", &[]);
        let mut peer = upstream.accept();
        peer.settings(&[]);
        peer.wait_for_request();
        let second = client.request("/second", &[]);
        peer.wait_for_request();
        peer.close();
        for stream in [first, second] {
            assert_eq!(client.response(stream).status, 502);
        }
        assert_eq!((upstream.record().connections, other.heads()), (1, 0));
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(a_connection_with_others_on_it_is_none_that_was_kept);

/// Others may be why it has ended, so that each of them has one more try, on another connection.
fn a_connection_that_others_may_have_had_ended_costs_no_try(engine: &'static str) {
    if is_nginx() {
        return; // requests at once have connections of their own
    }
    each(engine, |engine, by| {
        // By its end, by its end behind a GOAWAY that covers all, and by what is none of the
        // protocol.
        let ends: [fn(&mut Peer); 3] = [
            |peer| peer.close(),
            |peer| {
                peer.send(&goaway(u32::MAX >> 1, ErrorCode::EnhanceYourCalm));
                peer.close();
            },
            |peer| peer.send(&[0xff; 9]),
        ];
        for end in ends {
            let upstream = Upstream::bind();
            let lines = lines("", None);
            let server = server(engine, by, &lines, &upstream);
            let mut client = Client::connect(server.port);
            let first = client.request("/first", &[]);
            let mut peer = upstream.accept();
            peer.settings(&[]);
            peer.wait_for_request();
            let second = client.request("/second", &[]);
            peer.wait_for_request();
            // What may have been acted upon is not sent twice.
            let post = client.request_with("POST", "/post", &[], Some(b"12345"));
            peer.wait_for_request();
            end(&mut peer);
            assert_eq!(client.response(post).status, 502);
            let mut other = upstream.accept();
            other.settings(&[]);
            for _ in 0..2 {
                let stream = other.wait_for_request().stream;
                other.answer(stream, "200", b"again");
            }
            for stream in [first, second] {
                assert_eq!(client.response(stream).text(), "again");
            }
            assert_eq!(upstream.record().connections, 2);
            // Where that is lost as well, they fail.
            let third = client.request("/third", &[]);
            other.wait_for_request();
            other.close();
            let mut last = upstream.accept();
            last.settings(&[]);
            last.wait_for_request();
            last.close();
            assert_eq!(client.response(third).status, 502);
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(a_connection_that_others_may_have_had_ended_costs_no_try);
