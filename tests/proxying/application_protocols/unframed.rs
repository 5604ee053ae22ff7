//! What uwsgi and SCGI have of their own: how a request is told, and answers without frames.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use support::{PATIENCE, Server, engines, is_nginx};

use super::{ask, get, on_engine, pairs, plain, status};
use support::application::{Application, Protocol, Seen};

const UNFRAMED: [Protocol; 2] = [Protocol::Uwsgi, Protocol::Scgi];

/// Runs a test with both protocols on an engine; the lines are those of uwsgi.
fn with_server(
    engine: &str,
    lines: &str,
    answer: impl Fn(&Seen) -> Vec<Vec<u8>> + Clone + Send + Sync + 'static,
    test: impl Fn(&Server, &Application, Protocol),
) {
    for protocol in UNFRAMED {
        let lines = lines.replace("uwsgi_", protocol.prefix());
        on_engine(
            engine,
            protocol,
            &lines,
            answer.clone(),
            |server, application| {
                test(server, application, protocol);
            },
        );
    }
}

/// What a request has that tells its length.
fn with_length(
    protocol: Protocol,
    length: usize,
    fields: &[(&str, &str)],
) -> Vec<(String, String)> {
    let mut all = Vec::new();
    if protocol == Protocol::Scgi {
        all.push(("CONTENT_LENGTH".to_owned(), length.to_string()));
    }
    all.extend(pairs(fields));
    all
}

fn an_application_is_told_what_the_lines_say(engine: &'static str) {
    let lines = "
        location / { uwsgi_pass APP; uwsgi_param A 1; uwsgi_param B $arg_b; uwsgi_param C $arg_c if_not_empty; }
        location /own/ { uwsgi_pass APP; uwsgi_param HTTP_X_OWN mine; uwsgi_param HTTP_X_GONE ''; uwsgi_param HTTP_HOST other; }
        location /none/ { uwsgi_pass APP; uwsgi_pass_request_headers off; uwsgi_pass_request_body off; }
        location /variable/ { set $to APP; uwsgi_pass $to; uwsgi_pass_request_headers off; }";
    with_server(engine, lines, plain, |server, application, protocol| {
        let told = |request: &str| {
            let answer = ask(server, request);
            assert_eq!(status(&answer), 200, "{answer}");
            application.last()
        };
        let head = "HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
        let seen = told(&format!(
            "GET /x?b=&c= {head}X-Own: 1\r\nCookie: a=1\r\nX-own: 2\r\nCookie: b=2\r\n\r\n"
        ));
        let fields = [
            ("A", "1"),
            ("B", ""),
            ("HTTP_HOST", "a"),
            ("HTTP_CONNECTION", "close"),
            ("HTTP_X_OWN", "1, 2"),
            ("HTTP_COOKIE", "a=1; b=2"),
        ];
        assert_eq!(seen.params, with_length(protocol, 0, &fields));
        assert_eq!(seen.modifiers, [0, 0]);

        let seen = told(&format!("GET /own/ {head}X-Own: 1\r\nX-Gone: 3\r\n\r\n"));
        let fields = [
            ("HTTP_X_OWN", "mine"),
            ("HTTP_HOST", "other"),
            ("HTTP_CONNECTION", "close"),
        ];
        assert_eq!(seen.params, with_length(protocol, 0, &fields));

        let seen = told(&format!("GET /variable/ {head}\r\n"));
        let fields = [("HTTP_HOST", "a")];
        assert_eq!(seen.params, with_length(protocol, 0, &fields));
        if protocol == Protocol::Uwsgi {
            let seen = told(&format!("POST /none/ {head}Content-Length: 2\r\n\r\nhi"));
            assert_eq!(seen.params, pairs(&[("HTTP_HOST", "a")]));
            assert_eq!(seen.body, b"");
        }
    });
}

support::test_on_each_engine!(an_application_is_told_what_the_lines_say);

/// SCGI is told of a body's length also where the body is kept from it, and would wait.
fn a_body_may_be_kept_from_the_application(engine: &'static str) {
    let lines = "location / { scgi_pass APP; scgi_read_timeout 300ms; }
        location /none/ { scgi_pass APP; scgi_read_timeout 300ms; scgi_pass_request_body off; }";
    on_engine(engine, Protocol::Scgi, lines, plain, |server, _| {
        let post = |path: &str| {
            status(&ask(
                server,
                &format!("POST {path} HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi"),
            ))
        };
        assert_eq!((post("/"), post("/none/")), (200, 504));
    });
}

support::test_on_each_engine!(a_body_may_be_kept_from_the_application);

fn packets_of_uwsgi(engine: &'static str) {
    let lines = "
        location / { uwsgi_pass APP; }
        location /modified { uwsgi_pass uwsgi://APP; uwsgi_modifier1 5; uwsgi_modifier2 255; uwsgi_string '!\\n'; }
        location /long { uwsgi_pass APP; uwsgi_param LONG $arg_long$arg_long$arg_long$arg_long$arg_long$arg_long$arg_long$arg_long$arg_long; }
        large_client_header_buffers 4 16k;";
    on_engine(
        engine,
        Protocol::Uwsgi,
        lines,
        plain,
        |server, application| {
            assert_eq!(status(&get(server, "/")), 200);
            let seen = application.last();
            assert_eq!((seen.modifiers, &*seen.string), ([0, 0], ""));
            assert_eq!(status(&get(server, "/modified")), 200);
            let seen = application.last();
            assert_eq!((seen.modifiers, &*seen.string), ([5, 255], "!\n"));
            assert_eq!(seen.params.first(), Some(&pairs(&[("HTTP_HOST", "a")])[0]));
            // 65,535 bytes are the most: with names and lengths this is less, then more.
            assert_eq!(
                status(&get(server, &format!("/long?long={}", "x".repeat(7_200)))),
                200
            );
            assert_eq!(
                status(&get(server, &format!("/long?long={}", "x".repeat(7_300)))),
                500
            );
            server.wait_for_log("uwsgi request is too big: ");
        },
    );
}

support::test_on_each_engine!(packets_of_uwsgi);

fn bodies_follow_the_head(engine: &'static str) {
    let lines = "
        client_max_body_size 10m;
        location / { uwsgi_pass APP; uwsgi_param CONTENT_LENGTH $content_length; client_body_buffer_size 1m; }
        location /file/ { uwsgi_pass APP; uwsgi_param CONTENT_LENGTH $content_length; client_body_in_file_only clean; }
        location /stream/ { uwsgi_pass APP; uwsgi_param CONTENT_LENGTH $content_length; uwsgi_request_buffering off; }";
    // SCGI is told by itself.
    let scgi = lines.replace("uwsgi_param CONTENT_LENGTH $content_length;", "");
    for (protocol, lines) in UNFRAMED.into_iter().zip([lines, &scgi]) {
        let lines = lines.replace("uwsgi_", protocol.prefix());
        on_engine(engine, protocol, &lines, plain, |server, application| {
            let body: String = (0..30_000).map(|number| format!("{number} ")).collect();
            for path in ["/", "/file/", "/stream/"] {
                let length = body.len();
                let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
                let counted = ask(
                    server,
                    &format!("{head}Content-Length: {length}\r\n\r\n{body}"),
                );
                assert_eq!(status(&counted), 200, "{counted}");
                assert!(application.last().body == body.as_bytes(), "{path}");
                let chunked = format!(
                    "{head}Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"
                );
                let chunked = ask(server, &chunked);
                assert_eq!(status(&chunked), 200, "{chunked}");
                assert!(application.last().body == body.as_bytes(), "{path}");
                let none = ask(server, &format!("{head}Content-Length: 0\r\n\r\n"));
                assert_eq!(status(&none), 200, "{none}");
                assert_eq!(application.last().body, b"");
            }
        });
    }
}

support::test_on_each_engine!(bodies_follow_the_head);

/// A body that is passed on as it comes reaches the application before its end; else it does not.
fn bodies_are_passed_on_as_they_come(engine: &'static str) {
    let lines = "
        location / { uwsgi_pass APP; uwsgi_param CONTENT_LENGTH 2; }
        location /stream/ { uwsgi_pass APP; uwsgi_param CONTENT_LENGTH 2; uwsgi_request_buffering off; }";
    on_engine(
        engine,
        Protocol::Uwsgi,
        lines,
        plain,
        |server, application| {
            for (path, at_once) in [("/", false), ("/stream/", true)] {
                let before = application.requests();
                let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let head = format!("POST {path} HTTP/1.0\r\nContent-Length: 4\r\n\r\nhi");
                stream.write_all(head.as_bytes()).unwrap();
                for _ in 0..if at_once { 500 } else { 30 } {
                    if application.requests() > before {
                        break;
                    }
                    thread::sleep(Duration::from_millis(10));
                }
                assert_eq!(application.requests() > before, at_once, "{path}");
                stream.write_all(b"!!").unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                // The application has gone by now, and may take the end of its answer along.
                assert_eq!(status(&answer), 200, "{answer}");
            }
        },
    );
}

support::test_on_each_engine!(bodies_are_passed_on_as_they_come);

fn heads_of_answers_become_the_responses(engine: &'static str) {
    let answer = |seen: &Seen| {
        let bytes: &[u8] = match &*seen.uri() {
            "/line" => b"HTTP/1.0 404 Gone Fishing\r\nStatus: 500 Other\r\nContent-Type: text/x\r\n\r\nnothing",
            "/status" => b"Status: 404 Gone Fishing\r\nContent-Type: text/x\r\n\r\nnothing",
            "/location" => b"Location: /else\r\n\r\n",
            "/bare" => b"X-A: 1\nX-B: 2\n\nbody",
            "/accel" => b"X-Accel-Redirect: /inner\r\nX-A: 1\r\nContent-Type: a/b\r\n\r\n",
            "/intercepted" => b"Status: 500 Broken\r\n\r\nfrom the application",
            "/length" => b"Content-Length: 4\r\n\r\nbodyand more",
            "/short" => b"Content-Length: 40\r\n\r\nbody",
            "/none" => b"HTTP/1.1 204 No Content\r\n\r\n",
            "/chunks" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            "/own" => b"Date: then\r\nServer: application\r\n\r\nown",
            _ => b"HTTP/1.1 200 OK\r\n\r\n",
        };
        vec![bytes.to_vec()]
    };
    let lines = "
        uwsgi_param URI $uri;
        location / { uwsgi_pass APP; }
        location = /inner { internal; return 200 inner; }
        location = /intercepted { uwsgi_pass APP; uwsgi_intercept_errors on; error_page 500 = /inner; }
        location = /hidden { uwsgi_pass APP; uwsgi_param URI /status; uwsgi_hide_header Status; uwsgi_hide_header Content-Type; }
        location = /shown { uwsgi_pass APP; uwsgi_param URI /status; uwsgi_pass_header Status; }
        location = /accel-shown { uwsgi_pass APP; uwsgi_param URI /own; uwsgi_pass_header X-Accel-Charset; }";
    with_server(engine, lines, answer, |server, _, protocol| {
        let answer = get(server, "/line");
        assert!(
            answer.starts_with("HTTP/1.1 404 Gone Fishing\r\n"),
            "{answer}"
        );
        assert!(answer.contains("\r\nContent-Type: text/x\r\n"), "{answer}");
        assert!(
            answer.contains("\r\nDate: ") && answer.contains("\r\nServer: "),
            "{answer}"
        );
        // Of what uwsgi's answers hold, `Status` is a field like others.
        let shows_status = protocol == Protocol::Uwsgi;
        let answer = get(server, "/status");
        assert!(
            answer.starts_with("HTTP/1.1 404 Gone Fishing\r\n"),
            "{answer}"
        );
        assert_eq!(answer.contains("\r\nStatus: 404"), shows_status, "{answer}");
        let answer = get(server, "/hidden");
        assert!(
            !answer.contains("\r\nStatus:") && !answer.contains("\r\nContent-Type: text/x"),
            "{answer}"
        );
        let answer = get(server, "/shown");
        assert!(
            answer.contains("\r\nStatus: 404 Gone Fishing\r\n"),
            "{answer}"
        );
        let answer = get(server, "/location");
        assert!(answer.starts_with("HTTP/1.1 302 "), "{answer}");
        let answer = get(server, "/bare");
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.contains("\r\nX-A: 1\r\nX-B: 2\r\n"),
            "{answer}"
        );
        let answer = get(server, "/accel");
        assert!(
            answer.contains("\r\nContent-Type: a/b\r\n") && answer.ends_with("inner"),
            "{answer}"
        );
        assert!(get(server, "/intercepted").ends_with("\r\n\r\ninner"));
        let answer = get(server, "/own");
        assert!(
            answer.contains("\r\nDate: then\r\n") && answer.contains("\r\nServer: application\r\n"),
            "{answer}"
        );
        assert_eq!(status(&get(server, "/none")), 204);
        // A body ends with the connection, whatever a field says of chunks.
        assert!(get(server, "/chunks").contains("2\r\nok\r\n0\r\n\r\n"));
        let head = ask(server, "HEAD /length HTTP/1.0\r\n\r\n");
        assert!(
            head.contains("\r\nContent-Length: 4\r\n") && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        let answer = get(server, "/length");
        assert!(answer.ends_with("\r\n\r\nbody"), "{answer}");
        server.wait_for_log("upstream sent more data than specified in \"Content-Length\" header");
        let answer = get(server, "/short");
        assert!(answer.ends_with("\r\n\r\nbody"), "{answer}");
        server.wait_for_log("upstream prematurely closed connection while reading upstream");
    });
}

support::test_on_each_engine!(heads_of_answers_become_the_responses);

/// A way to answer badly before the head is whole: its name, what is sent, and the line of the
/// error log.
const BAD: &[(&str, &[u8], &str)] = &[
    (
        "nothing",
        b"",
        "upstream prematurely closed connection while reading response header from upstream",
    ),
    (
        "half-a-head",
        b"Status: 200 OK\r\nX-A: 1\r\n",
        "upstream prematurely closed connection while reading response header from upstream",
    ),
    (
        "half-a-line",
        b"HTTP/1.1 20",
        "upstream prematurely closed connection while reading response header from upstream",
    ),
    (
        "bad-status",
        b"Status: abc\r\n\r\n",
        "upstream sent invalid status \"abc\"",
    ),
    (
        "bad-line",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "upstream sent invalid header: \"no\\x20...\"",
    ),
    ("long-head", &[b'a'; 5000], "upstream sent too big header"),
];

#[test]
fn bad_answers_have_their_status_their_line_and_their_retry() {
    let answer = |seen: &Seen| {
        let uri = seen.uri();
        let mut path = uri.split('/').skip(1);
        let name = path.next().unwrap().to_owned();
        let (_, bytes, _) = BAD.iter().find(|(known, ..)| **known == name).unwrap();
        match path.next() {
            Some("drip") => bytes.chunks(1).map(<[u8]>::to_vec).collect(),
            _ => vec![bytes.to_vec()],
        }
    };
    let lines = "
        uwsgi_param URI $uri; uwsgi_buffer_size 4k; chunked_transfer_encoding off;
        location / { uwsgi_pass u; uwsgi_next_upstream off; }
        location /again/ { rewrite ^/again(.*) $1 break; uwsgi_pass u; uwsgi_next_upstream error invalid_header; }
        [http]
        upstream u { server APP max_fails=0; server GOOD backup; }";
    let engines = engines::lines().into_iter().cycle();
    for (protocol, engine) in UNFRAMED.into_iter().zip(engines) {
        let bad = Application::start(protocol, answer);
        let good = Application::start(protocol, plain);
        let lines = lines
            .replace("uwsgi_", protocol.prefix())
            .replace("APP", &bad.address())
            .replace("GOOD", &good.address());
        let server = Server::start(engine, &lines);
        for (name, _, line) in BAD {
            for manner in ["", "/drip"] {
                let before = server.error_log().len();
                let path = format!("/{name}{manner}");
                assert_eq!(status(&get(&server, &path)), 502, "{path}");
                let path = format!("/again/{name}{manner}");
                let answer = get(&server, &path);
                assert!(
                    answer.ends_with("ok") && status(&answer) == 200,
                    "{path}: {answer}"
                );
                for _ in 0..200 {
                    if server.error_log()[before..].matches(line).count() >= 2 {
                        break;
                    }
                    thread::sleep(Duration::from_millis(10));
                }
                let log = &server.error_log()[before..];
                assert!(log.matches(line).count() >= 2, "{path}: {line}\n{log}");
            }
        }
    }
}

fn a_head_has_its_room(engine: &'static str) {
    let answer = |seen: &Seen| seen.answer(&format!("X-A: {}", "a".repeat(5_000)), b"ok");
    let lines = "
        add_header X-Seen [$upstream_http_x_a] always;
        location /small { uwsgi_buffer_size 4k; uwsgi_pass APP; }
        location /large { uwsgi_buffer_size 16k; uwsgi_buffers 8 16k; uwsgi_pass APP; }";
    with_server(engine, lines, answer, |server, _, _| {
        let small = get(server, "/small");
        assert_eq!(status(&small), 502);
        // Its line has not come whole, as far as there is room.
        assert!(small.contains("\r\nX-Seen: []\r\n"), "{small}");
        let large = get(server, "/large");
        assert_eq!(status(&large), 200);
        assert!(large.contains("\r\nX-Seen: [aaa"), "{large}");
    });
}

support::test_on_each_engine!(a_head_has_its_room);

fn what_is_split_in_any_way_is_the_same(engine: &'static str) {
    const WHOLE: &[u8] = b"HTTP/1.1 201 Made\r\nContent-Type: text/plain\r\n\r\nfirst second third";
    let answer = |seen: &Seen| match seen.uri().strip_prefix("/at/") {
        Some(at) => {
            let (front, rest) = WHOLE.split_at(at.parse::<usize>().unwrap());
            vec![front.to_vec(), rest.to_vec()]
        }
        None => WHOLE.chunks(1).map(<[u8]>::to_vec).collect(),
    };
    let lines = "
        uwsgi_param URI $uri; chunked_transfer_encoding off;
        location / { uwsgi_pass APP; }
        location /flush { uwsgi_pass APP; uwsgi_buffering off; }";
    with_server(engine, lines, answer, |server, _, _| {
        let places = (1..WHOLE.len()).map(|at| format!("/at/{at}"));
        for path in places.chain(["/bytes".into(), "/flush".into()]) {
            let answer = get(server, &path);
            assert!(
                answer.starts_with("HTTP/1.1 201 Made\r\n")
                    && answer.contains("\r\nContent-Type: text/plain\r\n")
                    && answer.ends_with("\r\n\r\nfirst second third"),
                "{path}: {answer}"
            );
        }
        assert!(!server.error_log().contains("[error]"));
    });
}

support::test_on_each_engine!(what_is_split_in_any_way_is_the_same);

fn protocols_are_switched(engine: &'static str) {
    let answer = |_: &Seen| {
        vec![b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\nhello".to_vec(), b" again".to_vec()]
    };
    let lines = "location / { uwsgi_pass APP; }";
    with_server(engine, lines, answer, |server, _, _| {
        let answer = ask(
            server,
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n",
        );
        assert!(
            answer.starts_with("HTTP/1.1 101 ") && answer.ends_with("\r\n\r\nhello again"),
            "{answer}"
        );
        if !is_nginx() {
            // One that was not asked for is refused: nginx passes it on.
            assert_eq!(status(&get(server, "/")), 502);
            server.wait_for_log("upstream sent unexpected 101 response");
        }
    });
}

support::test_on_each_engine!(protocols_are_switched);

/// A zero byte would end a value, and what follows it would be other parameters.
fn zero_bytes_do_not_reach_scgi(engine: &'static str) {
    if is_nginx() {
        return; // it sends them
    }
    let lines = "location / { scgi_param A $uri; scgi_pass APP; } location /x { scgi_param A 'b'; scgi_pass APP; }";
    on_engine(engine, Protocol::Scgi, lines, plain, |server, _| {
        assert_eq!(status(&get(server, "/x")), 200);
        assert_eq!(status(&get(server, "/%00")), 400); // before it gets anywhere
    });
}

support::test_on_each_engine!(zero_bytes_do_not_reach_scgi);
