//! HTTP/2 from outside: requests on streams of one connection, in the clear, on both engines.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use proto::h2::ErrorCode;
use proto::h2::frame::{self, Kind, flags};
use support::http2::{Client, put_data};
use support::{PATIENCE, Server};

const ON: &str = "http2 on; ";

fn with_server(engine: &str, lines: &str, check: impl Fn(&Server)) {
    let server = Server::start(engine, &format!("{ON}{lines}"));
    check(&server);
}

fn files_come_from_memory_and_by_the_long_way(engine: &'static str) {
    with_server(engine, "open_file_cache max=10;", |server| {
        server.write_old("small", b"small file");
        let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7) as u8).collect();
        server.write("large", &large);
        let mut client = Client::connect(server.port);
        for _ in 0..5 {
            let response = client.get("/small");
            assert_eq!(response.status, 200, "{response:?}");
            assert_eq!(response.text(), "small file");
            assert_eq!(response.field("content-length"), Some("10"));
            assert_eq!(response.field("connection"), None);
            assert!(response.field("etag").is_some());
        }
        let many: Vec<u32> = (0..50).map(|_| client.request("/small", &[])).collect();
        let large_one = client.request("/large", &[]);
        for stream in many {
            assert_eq!(client.response(stream).text(), "small file");
        }
        assert!(client.response(large_one).body == large);
        assert_eq!(client.get("/missing").status, 404);
        let head = client.request_with("HEAD", "/small", &[], None);
        let head = client.response(head);
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(head.field("content-length"), Some("10"));
    });
}

support::test_on_each_engine!(files_come_from_memory_and_by_the_long_way);

fn answers_from_memory_have_the_date_of_their_second(engine: &'static str) {
    with_server(engine, "location / { return 200 text; }", |server| {
        let mut client = Client::connect(server.port);
        let mut dates = Vec::new();
        let started = Instant::now();
        while dates.len() < 3 {
            let date = client.get("/").field("date").unwrap().to_owned();
            if dates.last() != Some(&date) {
                dates.push(date);
            }
            assert!(started.elapsed() < PATIENCE, "{dates:?}");
        }
        // Each second has its own, and none comes twice.
        dates.sort();
        dates.dedup();
        assert_eq!(dates.len(), 3);
    });
}

support::test_on_each_engine!(answers_from_memory_have_the_date_of_their_second);

fn a_window_that_is_smaller_than_an_answer_from_memory_lets_it_go_in_parts(engine: &'static str) {
    with_server(engine, "open_file_cache max=10;", |server| {
        server.write("file", &[b'x'; 5000]);
        let mut client = Client::connect(server.port);
        // From memory by then.
        for _ in 0..3 {
            assert_eq!(client.get("/file").body.len(), 5000);
        }
        let mut client = Client::connect_with(server.port, &[(4, 1000)]);
        let stream = client.request("/file", &[]);
        for part in 1..=5 {
            while client
                .responses
                .get(&stream)
                .map_or(0, |one| one.body.len())
                < part * 1000
            {
                client.read_frame().unwrap();
            }
            let response = &client.responses[&stream];
            assert_eq!(
                (response.body.len(), response.ended),
                (part * 1000, part == 5)
            );
            let mut out = Vec::new();
            frame::put_window_update(&mut out, stream, 1000);
            client.send(&out);
        }
    });
}

support::test_on_each_engine!(
    a_window_that_is_smaller_than_an_answer_from_memory_lets_it_go_in_parts
);

fn http1_is_spoken_on_the_same_port(engine: &'static str) {
    with_server(
        engine,
        "location / { return 200 \"$server_protocol $http2\"; }",
        |server| {
            let lines = server.lines_for("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            assert_eq!(lines.last().map(String::as_str), Some("HTTP/1.1 "));
            let mut client = Client::connect(server.port);
            for _ in 0..3 {
                assert_eq!(client.get("/").text(), "HTTP/2.0 h2c");
            }
        },
    );
}

support::test_on_each_engine!(http1_is_spoken_on_the_same_port);

fn without_the_directive_a_preface_is_no_request(engine: &'static str) {
    let server = Server::start(engine, "");
    let lines = server.lines_for("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(
        lines[0].starts_with("HTTP/1.1 4") || lines[0].starts_with("HTTP/1.1 5"),
        "{lines:?}"
    );
}

support::test_on_each_engine!(without_the_directive_a_preface_is_no_request);

/// Begins a request whose body does not come with it, and waits for the end of the answer.
fn answer_of_unfinished(client: &mut Client, path: &str) -> (u32, u16) {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
    ];
    let (stream, mut out) = client.frames_of(&fields, None);
    out[4] &= !flags::END_STREAM;
    client.send(&out);
    while !client.responses.get(&stream).is_some_and(|seen| seen.ended) {
        client.read_frame().expect("an answer");
    }
    (stream, client.responses[&stream].status)
}

fn wait_for_reset(client: &mut Client, stream: u32) -> ErrorCode {
    loop {
        match client.responses[&stream].reset {
            Some(code) => return code,
            None => client.read_frame().map(drop).expect("a reset"),
        }
    }
}

/// Waits until all that was sent has been read.
fn ping(client: &mut Client) {
    let before = client.pongs;
    let mut out = Vec::new();
    frame::put_ping(&mut out, false, *b"all read");
    client.send(&out);
    while client.pongs == before {
        client.read_frame().expect("an answer to a ping");
    }
}

const EARLY: &str = "location / { return 403; }
    location /page { error_page 403 /denied; deny all; }
    location = /denied { allow all; return 403 denied; }
    location /gone { proxy_request_buffering off; proxy_pass http://127.0.0.1:1; }
    location /files { deny all; error_page 403 /file; }
    location = /file { allow all; }";

fn an_early_answer_and_the_reset_of_its_stream_are_apart(engine: &'static str) {
    with_server(engine, EARLY, |server| {
        fs::write(server.prefix.join("www/file"), vec![b'x'; 100_000]).unwrap();
        let mut client = Client::connect(server.port);
        for (path, status) in [("/", 403), ("/page", 403), ("/gone", 502), ("/files", 403)] {
            let (stream, seen) = answer_of_unfinished(&mut client, path);
            assert_eq!(seen, status, "{path}");
            // All that was sent in one write has been read with the answer's end.
            assert_eq!(client.responses[&stream].reset, None, "{path}");
            assert!(!client.has_unread_frames(), "{path}");
            // What comes behind it is dropped, earns no credit, and is no fault.
            let mut out = Vec::new();
            put_data(&mut out, stream, &[b'x'; 1000], false);
            client.send(&out);
            let code = wait_for_reset(&mut client, stream);
            assert_eq!(code, ErrorCode::NoError, "{path}");
            client.send(&out);
            ping(&mut client);
        }
    });
}

support::test_on_each_engine!(an_early_answer_and_the_reset_of_its_stream_are_apart);

fn a_client_that_ends_its_request_behind_an_early_answer_hears_of_no_reset(engine: &'static str) {
    with_server(engine, EARLY, |server| {
        let mut client = Client::connect(server.port);
        let mut ended = Vec::new();
        // On a busy machine the reset may be quicker than the client.
        while ended.len() < 3 {
            let (stream, _) = answer_of_unfinished(&mut client, "/");
            let mut out = Vec::new();
            put_data(&mut out, stream, b"the end", true);
            client.send(&out);
            ping(&mut client);
            if client.responses[&stream].reset.is_none() {
                ended.push(stream);
            }
        }
        // By the time that another has been reset, these would have been.
        let (stream, _) = answer_of_unfinished(&mut client, "/");
        wait_for_reset(&mut client, stream);
        for stream in ended {
            assert_eq!(client.responses[&stream].reset, None);
        }
    });
}

support::test_on_each_engine!(
    a_client_that_ends_its_request_behind_an_early_answer_hears_of_no_reset
);

fn streams_that_wait_for_their_resets_make_room_when_their_client_ends_them(engine: &'static str) {
    let lines = "http2_max_concurrent_streams 2; location / { return 200 here; }
        location /denied { deny all; }";
    with_server(engine, lines, |server| {
        let mut client = Client::connect(server.port);
        for by_reset in [false, true].repeat(5) {
            let early = [(); 2].map(|()| answer_of_unfinished(&mut client, "/denied").0);
            let (mut out, mut asked) = (Vec::new(), Vec::new());
            for stream in early {
                if by_reset {
                    frame::put_reset(&mut out, stream, ErrorCode::Cancel);
                } else {
                    put_data(&mut out, stream, b"", true);
                }
            }
            for _ in early {
                let fields = [
                    (":method", "GET"),
                    (":scheme", "http"),
                    (":path", "/"),
                    (":authority", "localhost"),
                ];
                let (stream, frames) = client.frames_of(&fields, None);
                out.extend_from_slice(&frames);
                asked.push(stream);
            }
            client.send(&out);
            for stream in asked {
                let response = client.response(stream);
                assert_eq!((response.status, response.reset), (200, None));
            }
        }
        let log = server.error_log();
        assert!(!log.contains("streams"), "{log}");
    });
}

support::test_on_each_engine!(
    streams_that_wait_for_their_resets_make_room_when_their_client_ends_them
);

fn the_page_of_a_malformed_request_and_its_reset_are_apart(engine: &'static str) {
    with_server(engine, "", |server| {
        let mut client = Client::connect(server.port);
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "localhost"),
            ("connection", "close"),
        ];
        let (stream, mut out) = client.frames_of(&fields, None);
        out[4] &= !flags::END_STREAM;
        client.send(&out);
        while !client.responses.get(&stream).is_some_and(|seen| seen.ended) {
            client.read_frame().expect("an answer");
        }
        let response = &client.responses[&stream];
        assert_eq!((response.status, response.reset), (400, None));
        assert!(!client.has_unread_frames());
        assert_eq!(
            wait_for_reset(&mut client, stream),
            ErrorCode::ProtocolError
        );
    });
}

support::test_on_each_engine!(the_page_of_a_malformed_request_and_its_reset_are_apart);

fn bodies_are_read_by_credit(engine: &'static str) {
    let lines = "client_max_body_size 10m; location / { dav_methods PUT; }
        location /small { client_max_body_size 1k; dav_methods PUT; }";
    with_server(engine, lines, |server| {
        let www = server.prefix.join("www");
        fs::set_permissions(www, fs::Permissions::from_mode(0o777)).unwrap();
        let mut client = Client::connect(server.port);
        let body: Vec<u8> = (0..1_000_000_u32).map(|n| (n / 3) as u8).collect();
        let stream = client.next_stream();
        let fields = [
            (":method", "PUT"),
            (":scheme", "http"),
            (":path", "/up"),
            (":authority", "localhost"),
        ];
        let block = client.encode(&fields);
        let mut out = Vec::new();
        frame::put_header_block(&mut out, stream, &block, false, 16_384);
        client.send(&out);
        // 64 KB may be sent, then as much as the server gives credit for.
        let (mut credit, mut sent) = (65_536, 0);
        while sent < body.len() {
            let part = body[sent..].len().min(credit).min(16_384);
            if part > 0 {
                let mut out = Vec::new();
                let ends = sent + part == body.len();
                put_data(&mut out, stream, &body[sent..sent + part], ends);
                client.send(&out);
                (sent, credit) = (sent + part, credit - part);
                continue;
            }
            let frame = client.read_frame().expect("credit");
            if frame.head.kind == Kind::WindowUpdate && frame.head.stream == stream {
                credit += u32::from_be_bytes(frame.payload.try_into().unwrap()) as usize;
            }
        }
        assert_eq!(client.response(stream).status, 201);
        assert!(fs::read(server.prefix.join("www/up")).unwrap() == body);
        let refused = client.request_with("PUT", "/small/x", &[], Some(&body[..2000]));
        assert_eq!(client.response(refused).status, 413);
        let announced = [("content-length", "2000")];
        let refused = client.request_with("PUT", "/small/x", &announced, Some(&body[..2000]));
        assert_eq!(client.response(refused).status, 413);
        assert_eq!(client.get("/up").status, 200);
    });
}

support::test_on_each_engine!(bodies_are_read_by_credit);

fn malformed_requests_are_answered_and_reset_and_others_go_on(engine: &'static str) {
    with_server(engine, "location / { return 200 fine; }", |server| {
        let mut client = Client::connect(server.port);
        let usual = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "a"),
        ];
        let with = |more: (&'static str, &'static str)| {
            let mut all = usual.to_vec();
            all.push(more);
            all
        };
        for bad in [
            usual[1..].to_vec(),
            with(("connection", "close")),
            with(("transfer-encoding", "chunked")),
            with(("te", "gzip")),
            with((":path", "/")),
            with((":other", "/")),
            with(("Capital", "x")),
            with(("host", "b")),
            with(("content-length", "5")),
        ] {
            let (stream, out) = client.frames_of(&bad, None);
            client.send(&out);
            let mut response = client.response(stream);
            while response.reset.is_none() {
                client.read_frame().expect("a reset");
                response = client.responses[&stream].clone();
            }
            assert_eq!(response.status, 400, "{bad:?}");
            assert_eq!(response.reset, Some(ErrorCode::ProtocolError), "{bad:?}");
        }
        assert_eq!(client.get("/").text(), "fine");
    });
}

support::test_on_each_engine!(malformed_requests_are_answered_and_reset_and_others_go_on);

fn a_violation_ends_the_connection_with_its_code(engine: &'static str) {
    with_server(
        engine,
        "error_log logs/error.log info; location / { return 200 fine; }",
        |server| {
            let mut client = Client::connect(server.port);
            assert_eq!(client.get("/").text(), "fine");
            let mut out = Vec::new();
            frame::put_head(&mut out, Kind::Data, 0, 0, 0);
            client.send(&out);
            client.read_to_end();
            assert_eq!(client.goaway, Some((1, ErrorCode::ProtocolError)));
            server.wait_for_log("client sent DATA frame with incorrect identifier");
        },
    );
}

support::test_on_each_engine!(a_violation_ends_the_connection_with_its_code);

fn windows_that_are_small_are_kept_to(engine: &'static str) {
    with_server(engine, "location / { }", |server| {
        let file: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        server.write("file", &file);
        let mut client = Client::connect_with(server.port, &[(4, 10)]);
        let stream = client.request("/file", &[]);
        let mut credit = 10;
        while !client
            .responses
            .get(&stream)
            .is_some_and(|response| response.ended)
        {
            let frame = client.read_frame().unwrap();
            if frame.head.kind == Kind::Data {
                assert!(frame.payload.len() <= credit);
                credit -= frame.payload.len();
                if credit == 0 {
                    let mut out = Vec::new();
                    frame::put_window_update(&mut out, stream, 9000);
                    frame::put_window_update(&mut out, 0, 9000);
                    client.send(&out);
                    credit = 9000;
                }
            }
        }
        assert!(client.responses[&stream].body == file);
    });
}

support::test_on_each_engine!(windows_that_are_small_are_kept_to);

fn keepalive_requests_end_the_connection(engine: &'static str) {
    with_server(
        engine,
        "keepalive_requests 3; location / { return 200 fine; }",
        |server| {
            let mut client = Client::connect(server.port);
            for _ in 0..3 {
                assert_eq!(client.get("/").text(), "fine");
            }
            client.read_to_end();
            assert_eq!(client.goaway, Some((5, ErrorCode::NoError)));
        },
    );
}

support::test_on_each_engine!(keepalive_requests_end_the_connection);

fn requests_are_numbered_as_they_begin(engine: &'static str) {
    let lines = "keepalive_requests 4; location / { return 200 $connection_requests; }
        location /after { auth_request /ask; return 200 $connection_requests; }
        location /ask { return 204; }";
    with_server(engine, lines, |server| {
        let mut client = Client::connect(server.port);
        // All heads in one buffer, before the work for any of them has begun.
        let (mut streams, mut out) = (Vec::new(), Vec::new());
        for path in ["/", "/after", "/", "/after", "/", "/"] {
            let fields = [
                (":method", "GET"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "a"),
            ];
            let (stream, frames) = client.frames_of(&fields, None);
            streams.push(stream);
            out.extend_from_slice(&frames);
        }
        client.send(&out);
        for (stream, number) in streams.iter().zip(["1", "2", "3", "4"]) {
            assert_eq!(client.response(*stream).text(), number);
        }
        client.read_to_end();
        assert_eq!(client.goaway, Some((streams[3], ErrorCode::NoError)));
        assert!(!client.responses.contains_key(&streams[4]));
    });
}

support::test_on_each_engine!(requests_are_numbered_as_they_begin);

fn the_urgent_goes_first_and_the_slow_hold_up_no_other(engine: &'static str) {
    let lines = "location / { } location /slow { alias www/large; limit_rate 1k; }";
    with_server(engine, lines, |server| {
        let large = vec![b'x'; 1_000_000];
        server.write("large", &large);
        let mut client = Client::connect_with(server.port, &[(4, 8_000_000)]);
        let slow = client.request("/slow", &[]);
        let usual = client.request("/large", &[("priority", "u=5")]);
        let urgent = client.request("/large", &[("priority", "u=1")]);
        // All wait for credit by now.
        let received = |client: &Client| -> usize {
            let responses = client.responses.values();
            responses.map(|response| response.body.len()).sum()
        };
        while received(&client) < 65_535 {
            client.read_frame().unwrap();
        }
        // A slow client gives a little credit after the other.
        let mut credit = 65_535;
        let is_complete = |client: &Client, stream| {
            client
                .responses
                .get(&stream)
                .is_some_and(|response| response.ended)
        };
        while !is_complete(&client, urgent) {
            let mut out = Vec::new();
            frame::put_window_update(&mut out, 0, 16_384);
            client.send(&out);
            credit += 16_384;
            while received(&client) < credit && !is_complete(&client, urgent) {
                client.read_frame().unwrap();
            }
        }
        let usual_then = client.responses[&usual].body.len();
        assert!(usual_then < large.len() / 3, "{usual_then}");
        let mut out = Vec::new();
        frame::put_window_update(&mut out, 0, 20_000_000);
        client.send(&out);
        assert_eq!(client.response(usual).body.len(), large.len());
        assert!(client.responses[&slow].body.len() < 10_000);
    });
}

support::test_on_each_engine!(the_urgent_goes_first_and_the_slow_hold_up_no_other);

fn incremental_responses_take_turns(engine: &'static str) {
    with_server(engine, "location / { }", |server| {
        server.write("file", &vec![b'x'; 1_000_000]);
        let mut client = Client::connect_with(server.port, &[(4, 2_000_000)]);
        let fields = [("priority", "i")];
        let streams: Vec<u32> = (0..3).map(|_| client.request("/file", &fields)).collect();
        while client.turns.len() < 3 {
            client.read_frame().unwrap();
        }
        let mut out = Vec::new();
        frame::put_window_update(&mut out, 0, 8_000_000);
        client.send(&out);
        for stream in &streams {
            assert_eq!(client.response(*stream).body.len(), 1_000_000);
        }
        let turns = &client.turns[8..client.turns.len() / 2];
        let changes = turns.windows(2).filter(|two| two[0] != two[1]).count();
        assert!(changes > turns.len() / 2, "{changes} of {}", turns.len());
    });
}

support::test_on_each_engine!(incremental_responses_take_turns);

fn floods_end_the_connection(engine: &'static str) {
    with_server(engine, "location / { }", |server| {
        server.write("file", &vec![b'x'; 1_000_000]);
        let ends = |what: &str, flood: &dyn Fn(&mut Client, &mut Vec<u8>)| {
            let mut client = Client::connect(server.port);
            let mut out = Vec::new();
            for _ in 0..25_000 {
                flood(&mut client, &mut out);
            }
            client.send(&out);
            client.read_to_end();
            let code = client.goaway.map(|(_, code)| code);
            assert_eq!(code, Some(ErrorCode::EnhanceYourCalm), "{what}");
        };
        ends("resets", &|client, out| {
            let fields = [
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "/file"),
                (":authority", "a"),
            ];
            let (stream, frames) = client.frames_of(&fields, None);
            out.extend_from_slice(&frames);
            frame::put_reset(out, stream, ErrorCode::Cancel);
        });
        ends("settings", &|_, out| frame::put_settings(out, &[]));
        ends("pings", &|_, out| frame::put_ping(out, false, [0; 8]));
        ends("nothing", &|_, out| {
            frame::put_head(out, Kind::Unknown(77), 0, 0, 0)
        });
        let mut client = Client::connect(server.port);
        assert_eq!(client.get("/file").body.len(), 1_000_000);
    });
}

support::test_on_each_engine!(floods_end_the_connection);

fn upstreams_get_requests_that_mean_one_thing(engine: &'static str) {
    // What an upstream has seen, which is a server of the same program.
    let lines = "location / { proxy_pass http://seen; proxy_http_version 1.1; }
        [http]
        upstream seen { server unix:logs/seen; }
        server { listen unix:logs/seen;
            return 200 \"$request|$http_host|$http_cookie|$http_te|$content_length|$http_transfer_encoding\"; }\n";
    let lines = lines.replace(
        "        [http]\n        upstream seen { server unix:logs/seen; }\n",
        "[http]\n",
    );
    // The test on the other engine runs in the same process, at the same time.
    let engine_name = engine.trim_start_matches("use ").trim_end_matches(';');
    let name = format!("tidegate-seen-{engine_name}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = fs::remove_file(&path);
    let socket = format!("unix:{}", path.display());
    let lines = lines.replace("http://seen", &format!("http://{socket}:"));
    let lines = lines.replace("unix:logs/seen", &socket);
    let server = Server::start(engine, &format!("{ON}{lines}"));
    let mut client = Client::connect(server.port);
    let fields = [("cookie", "a=b"), ("cookie", "c=d"), ("te", "trailers")];
    let stream = client.request("/x", &fields);
    let seen = client.response(stream).text();
    assert_eq!(seen, "GET /x HTTP/1.1|localhost|a=b; c=d|||");
    let stream = client.request_with("POST", "/x", &[], Some(b"12345"));
    let seen = client.response(stream).text();
    assert_eq!(seen, "POST /x HTTP/1.1|localhost|||5|");
    for path in ["/a b", "/a\r\nX: y", "a", "http://b/", "*", "/\u{7f}"] {
        let stream = client.request(path, &[]);
        assert_eq!(client.response(stream).status, 400, "{path:?}");
    }
    for authority in ["a/b", "a b", ""] {
        let all = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", authority),
        ];
        let (stream, out) = client.frames_of(&all, None);
        client.send(&out);
        assert_eq!(client.response(stream).status, 400, "{authority:?}");
    }
}

support::test_on_each_engine!(upstreams_get_requests_that_mean_one_thing);

/// An upstream with fields that say how a message is framed wherever they do not belong, and what
/// is right beside them.
fn upstream_with_framing_everywhere() -> u16 {
    let of_framing = "Connection: x\r\nKeep-Alive: x\r\nProxy-Connection: x\r\nUpgrade: x\r\n\
         Content-Length: 7\r\nTE: gzip\r\nTrailer: X-Sum\r\nHost: x\r\n";
    let answer = format!(
        "HTTP/1.1 103 Early Hints\r\n{of_framing}Link: </a>\r\n\r\n\
         HTTP/1.1 200 OK\r\nTE: gzip\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n{of_framing}X-Sum: 5\r\n\r\n"
    );
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = upstream.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in upstream.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    port
}

/// Clients drop a response that has them in its trailers, or TE in any head of HTTP/2: curl says
/// PROTOCOL_ERROR.
fn fields_of_framing_stand_in_heads_alone(engine: &'static str) {
    let lines = format!(
        "location / {{ early_hints 1; proxy_pass_trailers on;
         add_trailer Content-Length 9; add_trailer X-Own own;
         proxy_pass http://127.0.0.1:{}; }}",
        upstream_with_framing_everywhere()
    );
    with_server(engine, &lines, |server| {
        let response = Client::connect(server.port).get("/");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(response.informational, [103]);
        assert_eq!(response.hints, [pair("link", "</a>")]);
        assert_eq!((response.status, &*response.text()), (200, "hello"));
        assert_eq!(response.field("te"), None);
        assert_eq!(
            response.trailers,
            [pair("x-sum", "5"), pair("x-own", "own")]
        );
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n";
        assert!(all.starts_with(hints), "{all}");
        let end = "5\r\nhello\r\n0\r\nX-Sum: 5\r\nX-Own: own\r\n\r\n";
        assert!(all.ends_with(end), "{all}");
    });
}

support::test_on_each_engine!(fields_of_framing_stand_in_heads_alone);

fn chunks_streams_and_windows_are_as_they_are_set(engine: &'static str) {
    with_server(
        engine,
        "http2_chunk_size 1; location / { return 200 body; }",
        |server| {
            let mut client = Client::connect(server.port);
            assert_eq!(client.get("/").text(), "body");
            assert_eq!(client.turns.len(), 4);
        },
    );
    with_server(engine, "location / { return 200 body; }", |server| {
        let mut client = Client::connect(server.port);
        assert_eq!(client.get("/").text(), "body");
        assert_eq!(client.turns.len(), 1);
    });
    let limited = "http2_max_concurrent_streams 1; http2_body_preread_size 100k; location / { }";
    for (lines, streams, window) in [("location / { }", 128, 65_536), (limited, 1, 102_400)] {
        with_server(engine, lines, |server| {
            server.write("file", &vec![b'x'; 100_000]);
            let mut client = Client::connect_with(server.port, &[(4, 10)]);
            let frame = client.read_frame().unwrap();
            assert_eq!(frame.head.kind, Kind::Settings);
            let (settings, _) = frame.payload.as_chunks::<6>();
            let value = |name: u8| {
                let found = settings.iter().find(|setting| setting[1] == name).unwrap();
                u32::from_be_bytes(found[2..].try_into().unwrap())
            };
            assert_eq!((value(3), value(4)), (streams, window));
            // The first waits for credit; a second is refused where one is all.
            client.request("/file", &[]);
            let second = client.request_with("HEAD", "/file", &[], None);
            let response = client.response(second);
            match streams {
                1 => assert_eq!(response.reset, Some(ErrorCode::RefusedStream)),
                _ => assert_eq!(response.status, 200),
            }
        });
    }
}

support::test_on_each_engine!(chunks_streams_and_windows_are_as_they_are_set);

fn a_connection_is_idle_since_its_last_request(engine: &'static str) {
    with_server(engine, "keepalive_timeout 1s;", |server| {
        server.write_old("text", b"text");
        // It is known from here on.
        for _ in 0..3 {
            assert_eq!(Client::connect(server.port).get("/text").text(), "text");
        }
        let mut client = Client::connect(server.port);
        for _ in 0..8 {
            assert_eq!(client.get("/text").text(), "text");
            thread::sleep(Duration::from_millis(250));
        }
        assert_eq!(client.goaway, None);
        client.read_to_end();
        let code = client.goaway.map(|(_, code)| code);
        assert_eq!(code, Some(ErrorCode::NoError));
    });
}

support::test_on_each_engine!(a_connection_is_idle_since_its_last_request);

fn streams_that_the_client_ends_make_room_for_those_behind_them(engine: &'static str) {
    // It takes connections, and answers nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let lines = format!(
        "error_log logs/error.log info;
         location /silent {{ proxy_pass http://127.0.0.1:{port}; }}
         location /lingers {{ proxy_ignore_client_abort on; proxy_pass http://127.0.0.1:{port}; }}
         location / {{ return 200 $connection_requests; }}"
    );
    with_server(engine, &lines, |server| {
        let mut client = Client::connect(server.port);
        // One goes on without its client, and keeps its place.
        let lingers = client.request("/lingers", &[]);
        let mut given_up: Vec<u32> = (0..127).map(|_| client.request("/silent", &[])).collect();
        let mut out = Vec::new();
        frame::put_reset(&mut out, lingers, ErrorCode::Cancel);
        client.send(&out);
        server.wait_for_log("client canceled stream");
        // A page that is left for another, three times, as many requests as there may be each.
        for _ in 0..3 {
            let mut out = Vec::new();
            for stream in given_up.drain(..) {
                frame::put_reset(&mut out, stream, ErrorCode::Cancel);
            }
            let asked: Vec<u32> = (0..127)
                .map(|_| {
                    let (stream, frames) = client.frames_of(
                        &[
                            (":method", "GET"),
                            (":scheme", "http"),
                            (":path", "/"),
                            (":authority", "localhost"),
                        ],
                        None,
                    );
                    out.extend_from_slice(&frames);
                    stream
                })
                .collect();
            client.send(&out);
            for stream in asked {
                let response = client.response(stream);
                assert_eq!((response.status, response.reset), (200, None));
            }
            given_up.extend((0..100).map(|_| client.request("/silent", &[])));
        }
    });
}

support::test_on_each_engine!(streams_that_the_client_ends_make_room_for_those_behind_them);

fn a_reload_changes_streams_and_not_connections(engine: &'static str) {
    with_server(engine, "location / { return 200 before; }", |server| {
        let mut client = Client::connect(server.port);
        assert_eq!(client.get("/").text(), "before");
        server.reload(&format!("{ON}location / {{ return 200 after; }}"));
        let started = Instant::now();
        while client.get("/").text() != "after" {
            assert!(started.elapsed() < PATIENCE);
        }
        assert_eq!(client.goaway, None);
        server.signal("QUIT");
        client.read_to_end();
        assert_eq!(
            client.goaway.map(|(_, code)| code),
            Some(ErrorCode::NoError)
        );
    });
}

support::test_on_each_engine!(a_reload_changes_streams_and_not_connections);

fn a_listener_that_goes_is_told_to_idle_clients(engine: &'static str) {
    let other = support::port::free_port();
    with_server(
        engine,
        &format!("listen 127.0.0.1:{other}; location / {{ return 200 text; }}"),
        |server| {
            let mut idle = Client::connect(other);
            assert_eq!(idle.get("/").text(), "text");
            let mut stays = Client::connect(server.port);
            assert_eq!(stays.get("/").text(), "text");
            server.reload(&format!("{ON}location / {{ return 200 text; }}"));
            // It confirms the first announcement, and hears the second.
            idle.read_to_end();
            assert_eq!(idle.goaway, Some((1, ErrorCode::NoError)));
            assert_eq!(stays.get("/").text(), "text");
            assert_eq!(stays.goaway, None);
        },
    );
}

support::test_on_each_engine!(a_listener_that_goes_is_told_to_idle_clients);

fn a_response_that_is_given_up_ends_at_once_and_is_logged_as_it_was_sent(engine: &'static str) {
    let lines = "limit_conn slots 1; location / { }
        access_log logs/given_up.log given_up;
        [http]
        limit_conn_zone $server_port zone=slots:32k;
        log_format given_up '$request_uri $status $body_bytes_sent [$request_completion]';
        ";
    with_server(engine, lines, |server| {
        // More than could be read within the test.
        let large = fs::File::create(server.prefix.join("www/large")).unwrap();
        large.set_len(1 << 40).unwrap();
        server.write("small", &[b'x'; 5000]);
        let give_up: [fn(&mut Client, u32); 2] = [
            |client, stream| {
                let mut out = Vec::new();
                frame::put_reset(&mut out, stream, ErrorCode::Cancel);
                client.send(&out);
            },
            // A fault for which the server resets it.
            |client, stream| {
                let mut out = Vec::new();
                frame::put_window_update(&mut out, stream, 0);
                client.send(&out);
            },
        ];
        let ways = give_up.into_iter().map(Some).chain([None]);
        for (number, give_up) in ways.enumerate() {
            for path in ["/large", "/small"] {
                let mut client = Client::connect_with(server.port, &[(4, 1000)]);
                let stream = client.request(&format!("{path}?{number}"), &[]);
                while client
                    .responses
                    .get(&stream)
                    .is_none_or(|one| one.body.len() < 1000)
                {
                    client.read_frame().unwrap();
                }
                match give_up {
                    Some(give_up) => give_up(&mut client, stream),
                    None => drop(client),
                }
                let line = format!("{path}?{number} 200 1000 []\n");
                server.wait_for_line("given_up.log", &line);
                // Its slot is free.
                let mut next = Client::connect(server.port);
                assert_eq!(next.get("/small").status, 200);
            }
        }
    });
}

support::test_on_each_engine!(
    a_response_that_is_given_up_ends_at_once_and_is_logged_as_it_was_sent
);

/// The log has a line for it, and the file stays.
fn a_request_that_is_reset_with_its_head_is_not_begun(engine: &'static str) {
    let lines = "access_log logs/reset.log reset; location / { dav_methods DELETE; }
        [http]
        log_format reset '$request_method $uri $status $body_bytes_sent';
        ";
    with_server(engine, lines, |server| {
        let www = server.prefix.join("www");
        fs::set_permissions(&www, fs::Permissions::from_mode(0o777)).unwrap();
        server.write("file", b"kept");
        server.write("other", b"gone");
        let mut client = Client::connect(server.port);
        let delete = |client: &mut Client, path: &'static str| {
            let fields = [
                (":method", "DELETE"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "a"),
            ];
            client.frames_of(&fields, None)
        };
        let (stream, mut out) = delete(&mut client, "/file");
        frame::put_reset(&mut out, stream, ErrorCode::Cancel);
        client.send(&out);
        server.wait_for_line("reset.log", "DELETE /file 499 0\n");
        let (stream, out) = delete(&mut client, "/other");
        client.send(&out);
        assert_eq!(client.response(stream).status, 204);
        assert!(www.join("file").exists() && !www.join("other").exists());
    });
}

support::test_on_each_engine!(a_request_that_is_reset_with_its_head_is_not_begun);
