//! What upstreams are told: heads and bodies as they get them.

use support::http2::Client;
use support::master::wait_for as wait_for_it;
use support::{Server, is_nginx};

use proto::h2::frame::{HEAD_LENGTH, Kind, flags};

use super::upstream::{Asked, Upstream, any, data, headers, plain, whole};
use super::{By, ask, each, get, open, pairs, post, send, server};

/// One server that passes all on, and what an upstream was asked last.
struct Passed {
    server: Server,
    upstream: Upstream,
}

impl Passed {
    fn on(engine: &str, by: By, lines: &str) -> Passed {
        let upstream = Upstream::serve(plain);
        let server = server(engine, by, lines, &upstream);
        Passed { server, upstream }
    }

    fn get(&self, path: &str) -> Asked {
        assert_eq!(get(self.server.port, path).text(), "ok");
        self.upstream.last()
    }

    fn post(&self, path: &str, fields: &str, body: &str) -> Asked {
        assert_eq!(post(self.server.port, path, fields, body).text(), "ok");
        self.upstream.last()
    }

    fn authority(&self) -> String {
        self.upstream.address()
    }
}

fn heads_have_their_pseudo_fields_first_and_then_those_of_the_client(engine: &'static str) {
    each(engine, |engine, by| {
        let passed = Passed::on(engine, by, "location / { by_pass by://UP; }");
        let asked = passed.get("/a%20b?c=d%2F");
        let authority = passed.authority();
        let expected = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/a%20b?c=d%2F"),
            (":authority", &authority),
        ];
        assert_eq!(asked.fields, pairs(&expected));
        let asked = passed.post("/x", "X-Own: A\r\nx-EMPTY:\r\nCookie: a=b; c\r\n", "12345");
        let expected = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/x"),
            (":authority", &authority),
            ("content-length", "5"),
            ("x-own", "A"),
            ("x-empty", ""),
            ("cookie", "a=b; c"),
        ];
        assert_eq!(asked.fields, pairs(&expected));
        assert_eq!(asked.body, b"12345");
        // A method that is not usual, and one that nginx does not know.
        for method in ["PATCH", "OPTIONS", "MKCOL", "QUERY"] {
            let request = format!("{method} /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            assert_eq!(ask(passed.server.port, &request).text(), "ok");
            assert_eq!(passed.upstream.last().field(":method"), method);
        }
        passed.upstream.assert_clean();
    });
}

support::test_on_each_engine!(heads_have_their_pseudo_fields_first_and_then_those_of_the_client);

fn fields_of_the_connection_stay_there(engine: &'static str) {
    each(engine, |engine, by| {
        let passed = Passed::on(engine, by, "location / { by_pass by://UP; }");
        let fields = "Keep-Alive: 5\r\nProxy-Connection: close\r\nUpgrade: h2c\r\nExpect: 100-continue\r\nX-Kept: yes\r\n";
        let asked = passed.post("/", fields, "1");
        let names: Vec<_> = asked.fields.iter().map(|(name, _)| name.as_str()).collect();
        let expected = [
            ":method",
            ":scheme",
            ":path",
            ":authority",
            "content-length",
            "x-kept",
        ];
        assert_eq!(names, expected);
        let request = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        assert_eq!(ask(passed.server.port, request).text(), "ok");
        let asked = passed.upstream.last();
        assert_eq!(asked.field("transfer-encoding"), "");
        assert_eq!(asked.body, b"abcde");
        passed.upstream.assert_clean();
    });
}

support::test_on_each_engine!(fields_of_the_connection_stay_there);

fn trailers_are_asked_for_where_the_client_did(engine: &'static str) {
    each(engine, |engine, by| {
        let passed = Passed::on(engine, by, "location / { by_pass by://UP; }");
        for (line, by_grpc) in [
            ("", ""),
            ("TE: trailers\r\n", "trailers"),
            ("TE: deflate, Trailers;q=1\r\n", "trailers"),
            ("TE: gzip\r\n", ""),
        ] {
            let asked = passed.post("/", line, "1");
            // A proxy leaves the field out.
            let expected = if by == By::Grpc { by_grpc } else { "" };
            assert_eq!(asked.field("te"), expected, "{line}");
        }
        passed.upstream.assert_clean();
    });
}

support::test_on_each_engine!(trailers_are_asked_for_where_the_client_did);

fn fields_can_be_set(engine: &'static str) {
    let lines = "location / { by_pass by://UP; by_set_header Host $arg_host; by_set_header X-Own $arg_own; by_set_header X-Left '';
                     by_set_header X-Two 'a $request_method'; by_set_header User-Agent ''; }
                 location /length { by_pass by://UP; by_set_header Content-Length ''; }
                 location /te { by_pass by://UP; by_set_header TE trailers; }";
    each(engine, |engine, by| {
        let passed = Passed::on(engine, by, lines);
        let fields = "X-Own: client\r\nX-Left: client\r\nUser-Agent: client\r\nX-Kept: client\r\n";
        let asked = passed.post("/?host=other.example&own=1", fields, "1");
        let expected = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/?host=other.example&own=1"),
            (":authority", "other.example"),
            ("x-own", "1"),
            ("x-two", "a POST"),
            ("content-length", "1"),
            ("x-kept", "client"),
        ];
        assert_eq!(asked.fields, pairs(&expected));
        // An empty host is none, and another one is needed.
        let asked = passed.get("/");
        assert_eq!(asked.field(":authority"), passed.authority());
        assert!(
            asked
                .fields
                .iter()
                .all(|(name, _)| name != "host" && name != "x-own")
        );
        assert_eq!(passed.post("/length", "", "1").field("content-length"), "");
        assert_eq!(passed.get("/te").field("te"), "trailers");
        passed.upstream.assert_clean();
    });
}

support::test_on_each_engine!(fields_can_be_set);

fn fields_of_a_connection_that_are_set_are_left_out(engine: &'static str) {
    // RFC 9113, section 8.2.2: a message that has them is malformed. nginx sends them as it is told
    // to.
    if is_nginx() {
        return;
    }
    let lines = "location / { by_pass by://UP; by_set_header Connection upgrade; by_set_header Upgrade $http_upgrade; by_set_header Keep-Alive 5;
                     by_set_header Transfer-Encoding chunked; by_set_header TE gzip; by_set_header X-Kept yes; }";
    each(engine, |engine, by| {
        let passed = Passed::on(engine, by, lines);
        let asked = passed.post("/", "Upgrade: websocket\r\n", "1");
        let names: Vec<_> = asked
            .fields
            .iter()
            .skip(4)
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["x-kept", "content-length"]);
        passed.upstream.assert_clean();
    });
}

support::test_on_each_engine!(fields_of_a_connection_that_are_set_are_left_out);

fn uris_are_those_that_are_in_force(engine: &'static str) {
    let grpc = "location / { by_pass by://UP; }
        location /rewritten { rewrite ^ /new%20name?x=1; rewrite ^ /new%20name?x=1 break; by_pass by://UP; }
        location /internal { try_files /none @named; }
        location @named { by_pass by://UP; }";
    let proxy = "location /as-it-is/ { proxy_pass http://UP; }
        location /replaced/ { proxy_pass http://UP/new/; }
        location /root/ { proxy_pass http://UP/; }
        location /exactly { proxy_pass http://UP/there; }
        location /variable/ { proxy_pass http://UP/$arg_to; }
        location ~ ^/regex/(.*)$ { proxy_pass http://UP/$1?own; }
        location /broken { rewrite ^/broken(.*)$ /after$1 break; proxy_pass http://UP; }";
    each(engine, |engine, by| {
        let passed = Passed::on(engine, by, grpc);
        for (path, expected) in [
            ("/a/../b//c?d", "/a/../b//c?d"),
            ("/%7e%41", "/%7e%41"),
            ("/internal%20x?y", "/internal%20x?y"),
        ] {
            assert_eq!(passed.get(path).path(), expected, "{path}");
        }
        passed.upstream.assert_clean();
    });
    let passed = Passed::on(engine, By::Proxy, proxy);
    for (path, expected) in [
        ("/as-it-is/%41?b", "/as-it-is/%41?b"),
        ("/replaced/%41%20b?c=d", "/new/A%20b?c=d"),
        ("/replaced/x/../y", "/new/y"),
        ("/root/a?b", "/a?b"),
        ("/exactly-so?a", "/there-so?a"),
        ("/variable/x?to=y", "/y"),
        ("/regex/a%20b", "/a b?own"),
        ("/broken/%20?x", "/after/%20?x"),
    ] {
        // nginx passes a decoded space on within the pseudo-field, as it does in a request
        // line.
        assert_eq!(passed.get(path).path(), expected, "{path}");
    }
    passed.upstream.assert_clean();
}

support::test_on_each_engine!(uris_are_those_that_are_in_force);

fn methods_and_bodies_can_be_replaced(engine: &'static str) {
    let lines = "location /put { proxy_pass http://UP; proxy_method PUT; }
        location /named { proxy_pass http://UP; proxy_method $arg_method; }
        location /body { proxy_pass http://UP; proxy_set_body 'body of $uri'; }
        location /empty { proxy_pass http://UP; proxy_set_body ''; }
        location /without { proxy_pass http://UP; proxy_pass_request_body off; }
        location /bare { proxy_pass http://UP; proxy_pass_request_body off; proxy_pass_request_headers off; proxy_set_header Content-Length ''; }";
    let passed = Passed::on(engine, By::Proxy, lines);
    let asked = passed.post("/put", "", "1");
    assert_eq!(
        (asked.field(":method"), &asked.body[..]),
        ("PUT", &b"1"[..])
    );
    assert_eq!(
        passed.get("/named?method=DELETE").field(":method"),
        "DELETE"
    );
    let asked = passed.post("/body", "X-Own: 1\r\n", "of the client");
    assert_eq!(asked.body, b"body of /body");
    assert_eq!(asked.field("content-length"), "13");
    assert_eq!(asked.field("x-own"), "1");
    let asked = passed.get("/body");
    assert_eq!(
        (asked.field(":method"), &asked.body[..]),
        ("GET", &b"body of /body"[..])
    );
    let asked = passed.post("/without", "", "12345");
    assert_eq!(
        (&asked.body[..], asked.field("content-length")),
        (&b""[..], "5")
    );
    let asked = passed.post("/bare", "X-Own: 1\r\n", "12345");
    assert_eq!((&asked.body[..], asked.fields.len()), (&b""[..], 4));
    passed.upstream.assert_clean();
}

support::test_on_each_engine!(methods_and_bodies_can_be_replaced);

fn a_head_is_asked_for_without_a_body(engine: &'static str) {
    each(engine, |engine, by| {
        let upstream = Upstream::serve(|peer, heard| {
            if let super::upstream::Heard::Head(stream, true) = heard {
                let fields = [
                    (":status", "200"),
                    ("content-length", "1000"),
                    ("x-own", "1"),
                ];
                let ends = peer.requests[&stream].field(":method") == "HEAD";
                peer.head(stream, &fields, ends);
                if !ends {
                    peer.data(stream, &[b'x'; 1000], true);
                }
            }
        });
        let lines = "location / { by_pass by://UP; } location /head { proxy_pass http://UP; proxy_method HEAD; }";
        let server = server(engine, by, lines, &upstream);
        let request = "HEAD /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let answer = ask(server.port, request);
        assert_eq!(
            (answer.status, answer.field("content-length")),
            (200, "1000")
        );
        assert_eq!((answer.field("x-own"), answer.text()), ("1", String::new()));
        let mut client = Client::connect(server.port);
        let stream = client.request_with("HEAD", "/x", &[], None);
        let response = client.response(stream);
        assert_eq!(
            (response.status, response.field("content-length")),
            (200, Some("1000"))
        );
        assert!(response.body.is_empty() && response.ended);
        // The same connection goes on.
        assert_eq!(get(server.port, "/x").body.len(), 1000);
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(a_head_is_asked_for_without_a_body);

fn bodies_of_unknown_length_are_told_none(engine: &'static str) {
    let lines = "location / { by_pass by://UP; } location /unbuffered { proxy_pass http://UP; proxy_request_buffering off; }";
    each(engine, |engine, by| {
        let passed = Passed::on(engine, by, lines);
        for path in ["/", "/unbuffered"] {
            let mut client = Client::connect(passed.server.port);
            let is_buffered = by == By::Proxy && path == "/";
            let before = passed.upstream.heads();
            let stream = open(&mut client, path, &[]);
            send(&mut client, stream, b"abc", false);
            // What is all there before anything is sent has a length.
            if !is_buffered {
                wait_for_it("the head", || passed.upstream.heads() > before);
            }
            send(&mut client, stream, b"de", true);
            assert_eq!(client.response(stream).text(), "ok");
            let asked = passed.upstream.last();
            assert_eq!(asked.body, b"abcde");
            let expected = if is_buffered { "5" } else { "" };
            assert_eq!(asked.field("content-length"), expected, "{by:?} {path}");
            // An empty one.
            let stream = open(&mut client, path, &[]);
            send(&mut client, stream, b"", true);
            assert_eq!(client.response(stream).text(), "ok");
            assert_eq!(passed.upstream.last().body, b"");
        }
        passed.upstream.assert_clean();
    });
}

support::test_on_each_engine!(bodies_of_unknown_length_are_told_none);

/// As nginx has it, which sends `$content_length` where that is known.
fn bodies_in_chunks_that_have_come_whole_are_told_their_length(engine: &'static str) {
    let lines = "location / { by_pass by://UP; }
                 location /own { by_pass by://UP; by_set_header Content-Length ''; }";
    each(engine, |engine, by| {
        let passed = Passed::on(engine, by, lines);
        let ask_in_chunks = |path: &str, chunks: &str| {
            let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
            let request = format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
            assert_eq!(ask(passed.server.port, &request).text(), "ok");
            passed.upstream.last()
        };
        let asked = ask_in_chunks("/", "3\r\nabc\r\n2\r\nde\r\n");
        assert_eq!(
            (&asked.body[..], asked.field("content-length")),
            (&b"abcde"[..], "5")
        );
        assert_eq!(ask_in_chunks("/", "").field("content-length"), "0");
        assert_eq!(
            ask_in_chunks("/own", "1\r\na\r\n").field("content-length"),
            ""
        );
        assert_eq!(passed.get("/").field("content-length"), "");
        passed.upstream.assert_clean();
    });
}

support::test_on_each_engine!(bodies_in_chunks_that_have_come_whole_are_told_their_length);

/// Frames of heads and bodies count with all that they are made of. Nothing else does.
fn bytes_of_both_ways_count_as_they_are_framed(engine: &'static str) {
    let lines = "location / { by_pass by://u; access_log logs/bytes.log bytes; }
                 [http]
                 upstream u { server UP; keepalive 4; }
                 log_format bytes '$upstream_bytes_sent $upstream_bytes_received '
                                  '$upstream_response_length';";
    each(engine, |engine, by| {
        let upstream = Upstream::serve(|peer, heard| {
            let Some(stream) = whole(heard) else {
                return;
            };
            peer.send(&answer_in_frames(stream));
        });
        let server = server(engine, by, lines, &upstream);
        // The first on a connection of nginx counts what has opened that.
        for length in [0, 0, 5, 300] {
            let body = "b".repeat(length);
            assert_eq!(post(server.port, "/", "", &body).body.len(), 3500);
        }
        let log = server.prefix.join("logs/bytes.log");
        wait_for_it("four lines", || {
            std::fs::read_to_string(&log).is_ok_and(|text| text.lines().count() == 4)
        });
        let text = std::fs::read_to_string(&log).unwrap();
        let record = upstream.record();
        let received = answer_in_frames(1).len();
        let behind_head = received - headers(1, &[(":status", "200"), ("x-a", "b")], false).len();
        for (line, asked) in text.lines().zip(&record.asked).skip(1) {
            let place = (asked.connection, asked.stream);
            let frames = record.frames.iter();
            let frames = frames.filter(|noted| (noted.connection, noted.head.stream) == place);
            let of_request = |kind| matches!(kind, Kind::Headers | Kind::Continuation | Kind::Data);
            let frames = frames.filter(|noted| of_request(noted.head.kind));
            let sent: usize = frames
                .map(|noted| HEAD_LENGTH + noted.head.length as usize)
                .sum();
            // What gives credit for a body, for its stream and for the connection, counts with
            // nginx alone.
            let credit = if is_nginx() && !asked.body.is_empty() {
                2 * (HEAD_LENGTH + 4)
            } else {
                0
            };
            let received = received + credit;
            assert_eq!(line, format!("{sent} {received} {behind_head}"), "{by:?}");
        }
        drop(record);
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(bytes_of_both_ways_count_as_they_are_framed);

/// A head, a body in three frames, one of which is padded, and trailers.
fn answer_in_frames(stream: u32) -> Vec<u8> {
    let padded = [&[10][..], &[b'p'; 500], &[0; 10]].concat();
    [
        headers(stream, &[(":status", "200"), ("x-a", "b")], false),
        data(stream, &[b'd'; 1000], false),
        any(0, flags::PADDED, stream, &padded),
        data(stream, &[b'd'; 2000], false),
        headers(stream, &[("x-trailer", "1")], true),
    ]
    .concat()
}

fn heads_longer_than_a_frame_are_continued(engine: &'static str) {
    let lines = "large_client_header_buffers 4 64k; location / { by_pass by://UP; }";
    each(engine, |engine, by| {
        let passed = Passed::on(engine, by, lines);
        let long = "v".repeat(40_000);
        let asked = passed.post("/", &format!("X-Long: {long}\r\n"), "1");
        assert_eq!(asked.field("x-long"), long);
        assert_eq!(passed.get("/").field("x-long"), "");
        let record = passed.upstream.record();
        assert!(
            record
                .frames
                .iter()
                .all(|frame| frame.head.length <= 16_384)
        );
        drop(record);
        passed.upstream.assert_clean();
    });
}

support::test_on_each_engine!(heads_longer_than_a_frame_are_continued);
