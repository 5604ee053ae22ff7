//! What is FastCGI's own.

use std::time::Duration;

use support::{Server, is_nginx};

use super::{ask, get, on_engine, pairs, plain, status};
use support::application::{Application, Protocol, Seen, end, stderr, stdout};

/// Runs a test on an engine with an application that speaks FastCGI.
fn with_server(
    engine: &str,
    lines: &str,
    answer: impl Fn(&Seen) -> Vec<Vec<u8>> + Clone + Send + Sync + 'static,
    test: impl Fn(&Server, &Application),
) {
    on_engine(engine, Protocol::Fastcgi, lines, answer, test);
}

fn an_application_is_told_what_the_lines_say(engine: &'static str) {
    let lines = "
        location / { fastcgi_pass APP; fastcgi_param A 1; fastcgi_param B $arg_b; fastcgi_param C $arg_c if_not_empty;
            fastcgi_param A 2; }
        location /own/ { fastcgi_pass APP; fastcgi_param HTTP_X_OWN mine; fastcgi_param HTTP_X_GONE '';
            fastcgi_param HTTP_HOST other; }
        location /none/ { fastcgi_pass APP; fastcgi_pass_request_headers off; fastcgi_pass_request_body off; }
        location /script { fastcgi_pass APP; fastcgi_pass_request_headers off; fastcgi_index index.php;
            fastcgi_split_path_info ^(.+?\\.php)(/.*)?$;
            fastcgi_param S $fastcgi_script_name; fastcgi_param P $fastcgi_path_info; }";
    with_server(engine, lines, plain, |server, application| {
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
            ("A", "2"),
            ("HTTP_HOST", "a"),
            ("HTTP_CONNECTION", "close"),
            ("HTTP_X_OWN", "1, 2"),
            ("HTTP_COOKIE", "a=1; b=2"),
        ];
        assert_eq!(seen.params, pairs(&fields));
        assert!(!seen.keeps_connection);
        let seen = told(&format!("GET /x?b=1&c=2 {head}\r\n"));
        assert_eq!(seen.params[1..3], pairs(&[("B", "1"), ("C", "2")]));

        let seen = told(&format!(
            "GET /own/ {head}X-Own: 1\r\nX_Gone: 2\r\nX-Gone: 3\r\n\r\n"
        ));
        let fields = [
            ("HTTP_X_OWN", "mine"),
            ("HTTP_HOST", "other"),
            ("HTTP_CONNECTION", "close"),
        ];
        assert_eq!(seen.params, pairs(&fields));

        let seen = told(&format!("POST /none/ {head}Content-Length: 2\r\n\r\nhi"));
        assert_eq!(seen.params, pairs(&[("HTTP_HOST", "a")]));
        assert_eq!(seen.body, b"");

        for (path, script, info) in [
            ("/script/", "/script/index.php", ""),
            ("/script/a.php", "/script/a.php", ""),
            ("/script/a.php/b/c", "/script/a.php", "/b/c"),
            ("/script/a.txt", "/script/a.txt", ""),
        ] {
            let seen = told(&format!("GET {path} {head}\r\n"));
            let fields = [("S", script), ("P", info), ("HTTP_HOST", "a")];
            assert_eq!(seen.params, pairs(&fields), "{path}");
        }
    });
}

support::test_on_each_engine!(an_application_is_told_what_the_lines_say);

fn bodies_come_in_records(engine: &'static str) {
    let lines = "
        client_max_body_size 10m;
        location / { fastcgi_pass APP; client_body_buffer_size 1m; }
        location /file/ { fastcgi_pass APP; client_body_in_file_only clean; }
        location /stream/ { fastcgi_pass APP; fastcgi_request_buffering off; }";
    with_server(engine, lines, plain, |server, application| {
        let body: String = (0..30_000).map(|number| format!("{number} ")).collect();
        for path in ["/", "/file/", "/stream/"] {
            let length = body.len();
            let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
            let counted = ask(
                server,
                &format!("{head}Content-Length: {length}\r\n\r\n{body}"),
            );
            assert_eq!(status(&counted), 200, "{counted}");
            let seen = application.last();
            assert!(seen.body == body.as_bytes(), "{path} {}", seen.body.len());
            assert!(
                seen.records.iter().all(|length| *length <= 32 * 1024),
                "{:?}",
                seen.records
            );
            assert_eq!(seen.records.last(), Some(&0));
            let chunked = ask(
                server,
                &format!(
                    "{head}Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"
                ),
            );
            assert_eq!(status(&chunked), 200, "{chunked}");
            assert!(application.last().body == body.as_bytes(), "{path}");
            let none = ask(server, &format!("{head}Content-Length: 0\r\n\r\n"));
            assert_eq!(status(&none), 200, "{none}");
            assert_eq!(application.last().records, [0]);
        }
    });
}

support::test_on_each_engine!(bodies_come_in_records);

fn connections_are_kept_where_both_sides_keep_them(engine: &'static str) {
    let lines = "
        location / { fastcgi_pass u; fastcgi_keep_conn on; }
        location /apart/ { fastcgi_pass u; }
        location /http/ { proxy_pass http://u; }
        [http]
        upstream u { server APP; keepalive 4; }";
    with_server(engine, lines, plain, |server, application| {
        for _ in 0..4 {
            assert_eq!(status(&get(server, "/")), 200);
            assert!(application.last().keeps_connection);
        }
        assert_eq!(application.connections(), 1);
        for _ in 0..2 {
            assert_eq!(status(&get(server, "/apart/")), 200);
        }
        let apart = application.connections();
        assert!((2..=3).contains(&apart), "{apart}");
        if !is_nginx() {
            // HTTP is not spoken on a connection that was made for FastCGI.
            assert_eq!(status(&get(server, "/http/")), 502);
            assert_eq!(status(&get(server, "/")), 200);
        }
    });
}

support::test_on_each_engine!(connections_are_kept_where_both_sides_keep_them);

fn heads_of_answers_become_the_responses(engine: &'static str) {
    let answer = |seen: &Seen| {
        let head: &[u8] = match &*seen.uri() {
            "/status" => b"Status: 404 Gone Fishing\r\nContent-Type: text/x\r\n\r\nnothing",
            "/location" => b"Location: /else\r\n\r\n",
            "/bare" => b"X-A: 1\nX-B: 2\n\nbody",
            "/accel" => b"X-Accel-Redirect: /inner\r\nX-A: 1\r\nContent-Type: a/b\r\n\r\n",
            "/intercepted" => b"Status: 500 Broken\r\n\r\nfrom the application",
            "/upgrade" => b"Status: 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
            "/length" => b"Content-Length: 4\r\n\r\nbodyand more",
            "/short" => b"Content-Length: 40\r\n\r\nbody",
            "/named" => b"Server: own/1\r\nDate: today\r\n\r\nbody",
            _ => b"Status: 200 OK\r\n\r\n",
        };
        vec![[stdout(head), stdout(b""), end()].concat()]
    };
    let lines = "
        fastcgi_param URI $uri;
        location / { fastcgi_pass APP; }
        location = /inner { internal; return 200 inner; }
        location = /intercepted { fastcgi_pass APP; fastcgi_intercept_errors on; error_page 500 = /inner; }
        location = /shown { fastcgi_pass APP; fastcgi_param URI /status; fastcgi_pass_header Status; fastcgi_hide_header Content-Type; }";
    with_server(engine, lines, answer, |server, _| {
        let answer = get(server, "/status");
        assert!(
            answer.starts_with("HTTP/1.1 404 Gone Fishing\r\n"),
            "{answer}"
        );
        assert!(
            answer.contains("\r\nContent-Type: text/x\r\n") && answer.contains("nothing"),
            "{answer}"
        );
        assert!(!answer.contains("\r\nStatus:"), "{answer}");
        let answer = get(server, "/shown");
        assert!(
            answer.contains("\r\nStatus: 404 Gone Fishing\r\n"),
            "{answer}"
        );
        assert!(!answer.contains("\r\nContent-Type:"), "{answer}");
        let answer = get(server, "/location");
        assert!(answer.starts_with("HTTP/1.1 302 "), "{answer}");
        // What an application does not say of itself the server says.
        assert!(answer.contains("\r\nServer: "), "{answer}");
        assert!(answer.contains("\r\nDate: "), "{answer}");
        let answer = get(server, "/named");
        assert_eq!(answer.matches("\r\nServer: own/1\r\n").count(), 1);
        assert_eq!(answer.matches("\r\nDate: today\r\n").count(), 1);
        assert_eq!(answer.matches("\r\nServer: ").count(), 1);
        assert_eq!(answer.matches("\r\nDate: ").count(), 1);
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
        if !is_nginx() {
            // nginx sends it on, and serves the next request of the connection.
            assert_eq!(status(&get(server, "/upgrade")), 502);
            server.wait_for_log("upstream sent unexpected 101 response");
        }
        let answer = get(server, "/length");
        assert!(answer.ends_with("\r\n\r\nbody"), "{answer}");
        server.wait_for_log("upstream sent more data than specified in \"Content-Length\" header");
        let answer = get(server, "/short");
        // What has come before the missing end is good.
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.ends_with("\r\n\r\nbody"), "{answer}");
        server.wait_for_log("upstream prematurely closed FastCGI stdout while reading upstream");
    });
}

support::test_on_each_engine!(heads_of_answers_become_the_responses);

fn an_end_that_is_missing_takes_nothing_away(engine: &'static str) {
    let answer = |seen: &Seen| match &*seen.uri() {
        "/page" => vec![
            [
                stdout(b"Content-Type: text/html\r\n\r\nA<!--#include virtual=\"/short\" -->B"),
                stdout(b""),
                end(),
            ]
            .concat(),
        ],
        "/short" => vec![[stdout(b"Content-Length: 50\r\n\r\nshort"), end()].concat()],
        // Behind these the connection is closed.
        "/exact" => vec![stdout(b"Content-Length: 5\r\n\r\nhello"), Vec::new()],
        _ => vec![stdout(b"X-A: 1\r\n\r\nhello"), Vec::new()],
    };
    let lines = "
        fastcgi_param URI $uri; fastcgi_keep_conn on; ssi on;
        location / { fastcgi_pass u; }
        location /open { fastcgi_pass u; fastcgi_buffering off; }
        location /exact { fastcgi_pass u; fastcgi_buffering off; }
        [http]
        upstream u { server APP; keepalive 4; }";
    with_server(engine, lines, answer, |server, _| {
        let answer = get(server, "/short");
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nshort"),
            "{answer}"
        );
        server.wait_for_log("upstream prematurely closed FastCGI request while reading upstream");
        let answer = get(server, "/page");
        let body: String = answer
            .split("\r\n")
            .skip_while(|line| !line.is_empty())
            .collect();
        assert!(
            body.contains('A') && body.contains("short") && body.contains('B'),
            "{answer}"
        );
        assert!(answer.ends_with("0\r\n\r\n"), "{answer}");
        // Where each part leaves at once, the end of the connection is the answer's.
        assert!(get(server, "/open").ends_with("\r\nhello\r\n0\r\n\r\n"));
        assert!(get(server, "/exact").ends_with("\r\n\r\nhello"));
        assert!(
            !server
                .error_log()
                .contains("upstream prematurely closed connection")
        );
    });
}

support::test_on_each_engine!(an_end_that_is_missing_takes_nothing_away);

fn answers_without_a_body_leave_their_connection(engine: &'static str) {
    let answer = |seen: &Seen| {
        let head: &[u8] = match &*seen.uri() {
            "/none" => b"Status: 204 X\r\n\r\n",
            "/same" => b"Status: 304 X\r\nETag: \"a\"\r\nContent-Length: 10\r\n\r\n",
            _ => b"Content-Length: 0\r\n\r\n",
        };
        vec![[stdout(head), end()].concat()]
    };
    let lines = "
        fastcgi_param URI $uri; fastcgi_keep_conn on;
        location / { fastcgi_pass u; }
        location /apart/ { rewrite ^/apart(.*) $1 break; fastcgi_pass u; fastcgi_buffering off; }
        [http]
        upstream u { server APP; keepalive 4; }";
    with_server(engine, lines, answer, |server, application| {
        for (path, wanted) in [
            ("/none", 204),
            ("/same", 304),
            ("/empty", 200),
            ("/none", 204),
            ("/same", 304),
        ] {
            assert_eq!(status(&get(server, path)), wanted);
        }
        assert_eq!(application.connections(), 1);
        if !is_nginx() {
            for (path, wanted) in [
                ("/apart/none", 204),
                ("/apart/same", 304),
                ("/apart/empty", 200),
            ] {
                assert_eq!(status(&get(server, path)), wanted);
            }
        }
    });
}

support::test_on_each_engine!(answers_without_a_body_leave_their_connection);

/// A way to answer badly before the head is whole: its name, what is sent, the status, the line of
/// the error log.
type Bad = (&'static str, fn() -> Vec<u8>, u16, &'static str);

const BAD: &[Bad] = &[
    (
        "nothing",
        Vec::new,
        502,
        "upstream prematurely closed connection while reading response header from upstream",
    ),
    (
        "version",
        || vec![7, 6, 0, 1, 0, 0, 0, 0],
        502,
        "upstream sent unsupported FastCGI protocol version: 7",
    ),
    (
        "type",
        || vec![1, 9, 0, 1, 0, 0, 0, 0],
        502,
        "upstream sent invalid FastCGI record type: 9",
    ),
    (
        "id-high",
        || vec![1, 6, 1, 1, 0, 0, 0, 0],
        502,
        "upstream sent unexpected FastCGI request id high byte: 1",
    ),
    (
        "id-low",
        || vec![1, 6, 0, 2, 0, 0, 0, 0],
        502,
        "upstream sent unexpected FastCGI request id low byte: 2",
    ),
    (
        "no-head",
        || [stdout(b""), end()].concat(),
        502,
        "upstream prematurely closed FastCGI stdout",
    ),
    (
        "end-at-once",
        end,
        502,
        "upstream sent unexpected FastCGI record: 3",
    ),
    (
        "half-a-record",
        || stdout(b"Status: 200 OK\r\n")[..12].to_vec(),
        502,
        "upstream prematurely closed connection",
    ),
    (
        "half-a-head",
        || stdout(b"Status: 200 OK\r\nX-A: 1\r\n"),
        502,
        "upstream prematurely closed connection",
    ),
    (
        "bad-status",
        || stdout(b"Status: abc\r\n\r\n"),
        502,
        "upstream sent invalid status \"abc\"",
    ),
    (
        "bad-line",
        || stdout(b"Status: 200\r\nno colon\r\n\r\n"),
        502,
        "upstream sent invalid header: \"no\\x20...\"",
    ),
    (
        "long-head",
        || stdout(format!("X-A: {}\r\n\r\n", "a".repeat(5000)).as_bytes()),
        502,
        "upstream sent too big header",
    ),
    (
        "long-head-and-end",
        || {
            let head = format!("X-A: {}\r\n", "a".repeat(5000));
            [stdout(head.as_bytes()), stdout(b""), end()].concat()
        },
        502,
        "upstream sent too big header while reading response header from upstream",
    ),
    (
        // 3,500 bytes of fields, and 1,000 of what they are wrapped in.
        "many-records",
        || {
            let field = format!("X-A: {}\r\n", "a".repeat(43));
            let mut bytes = stdout(field.as_bytes()).repeat(70);
            bytes.extend(stdout(b"\r\nok"));
            bytes.extend(stdout(b""));
            bytes.extend(end());
            bytes
        },
        502,
        "upstream sent too big header",
    ),
    (
        "messages-within-the-head",
        || {
            let mut bytes = stdout(b"X-A: 1\r\n");
            bytes.extend(stderr(&[b'm'; 4200]));
            bytes.extend(stdout(b"\r\nok"));
            bytes.extend(stdout(b""));
            bytes.extend(end());
            bytes
        },
        502,
        "upstream sent too big header",
    ),
    (
        "caught",
        || {
            [
                stderr(b"PHP Fatal error: no"),
                stdout(b"\r\nok"),
                stdout(b""),
                end(),
            ]
            .concat()
        },
        502,
        "FastCGI sent in stderr: \"PHP Fatal error: no\"",
    ),
];

fn bad_answers_have_their_status_their_line_and_their_retry(engine: &'static str) {
    let answer = |seen: &Seen| {
        let uri = seen.uri();
        let mut path = uri.split('/').skip(1);
        let name = path.next().unwrap().to_owned();
        let (_, bytes, ..) = BAD.iter().find(|(known, ..)| **known == name).unwrap();
        match path.next() {
            Some("drip") => bytes().chunks(1).map(<[u8]>::to_vec).collect(),
            _ => vec![bytes()],
        }
    };
    let lines = "
        fastcgi_param URI $uri; fastcgi_catch_stderr 'PHP Fatal'; fastcgi_buffer_size 4k; chunked_transfer_encoding off;
        location / { fastcgi_pass u; fastcgi_next_upstream off; }
        location /again/ { rewrite ^/again(.*) $1 break; fastcgi_pass u; fastcgi_next_upstream error invalid_header; }
        [http]
        upstream u { server APP max_fails=0; server GOOD backup; }";
    let bad = Application::start(Protocol::Fastcgi, answer);
    let good = Application::start(Protocol::Fastcgi, plain);
    let lines = lines
        .replace("APP", &bad.address())
        .replace("GOOD", &good.address());
    let server = Server::start(engine, &lines);
    for (name, _, wanted, line) in BAD {
        // A text is looked for in what has come of it at once.
        let manners: &[&str] = if *name == "caught" {
            &[""]
        } else {
            &["", "/drip"]
        };
        for manner in manners {
            let before = server.error_log().len();
            let path = format!("/{name}{manner}");
            let answer = get(&server, &path);
            assert_eq!(
                status(&answer),
                *wanted,
                "{path}: {answer}\n{}",
                &server.error_log()[before..]
            );
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
                std::thread::sleep(Duration::from_millis(10));
            }
            let log = &server.error_log()[before..];
            assert!(log.matches(line).count() >= 2, "{path}: {line}\n{log}");
        }
    }
}

support::test_on_each_engine!(bad_answers_have_their_status_their_line_and_their_retry);

/// As nginx has it, which reads into one buffer: messages before the head take its room, and leave
/// it again where they end what was read.
fn messages_before_a_head_take_its_room(engine: &'static str) {
    let head = |length: usize| {
        let mut bytes = stdout(format!("X-A: {}\r\n\r\nok", "a".repeat(length)).as_bytes());
        bytes.extend(stdout(b""));
        bytes.extend(end());
        bytes
    };
    let answer = move |seen: &Seen| {
        let uri = seen.uri();
        let mut numbers = uri.split('/').skip(1);
        let mut next = || numbers.next().unwrap().parse::<usize>().unwrap();
        let (count, message, head) = (next(), vec![b'm'; next()], head(next()));
        vec![[stderr(&message).repeat(count), head].concat()]
    };
    let lines = "
        fastcgi_param URI $uri; fastcgi_buffer_size 4k; chunked_transfer_encoding off;
        location / { fastcgi_pass APP; }";
    with_server(engine, lines, answer, |server, _| {
        for (path, wanted) in [
            // Beside a message of 3,000 bytes there is room for a head of 1,080.
            ("/1/3000/1060", 200),
            ("/1/3000/1080", 502),
            // The first read ends within the second message, after which the buffer is empty.
            ("/2/3000/1060", 200),
            ("/2/3000/2200", 502),
            ("/2/3000/2100", 200),
            ("/9/8000/1000", 200),
        ] {
            let answer = get(server, path);
            let log = server.error_log();
            let line = log.lines().last().unwrap_or_default();
            assert_eq!(status(&answer), wanted, "{path}: {answer}\n{line}");
            assert_eq!(answer.ends_with("\r\n\r\nok"), wanted == 200, "{path}");
        }
        server.wait_for_log("upstream sent too big header");
    });
}

support::test_on_each_engine!(messages_before_a_head_take_its_room);

fn what_is_split_in_any_way_is_the_same(engine: &'static str) {
    let whole = || {
        let mut bytes = stderr(b"a warning.\r\n");
        bytes.extend(stdout(b"Status: 201 Made\r\nContent-Type: te"));
        bytes.extend(stderr(b"another"));
        bytes.extend(stdout(b"xt/plain\r\n\r\nfirst "));
        bytes.extend(stdout(b"second "));
        bytes.extend(stderr(b"a third"));
        bytes.extend(stdout(b"third"));
        bytes.extend(stdout(b""));
        bytes.extend(end());
        bytes
    };
    let answer = move |seen: &Seen| match seen.uri().strip_prefix("/at/") {
        Some(at) => {
            let bytes = whole();
            let (front, rest) = bytes.split_at(at.parse::<usize>().unwrap().min(bytes.len()));
            vec![front.to_vec(), rest.to_vec()]
        }
        None => whole().chunks(1).map(<[u8]>::to_vec).collect(),
    };
    let lines = "
        fastcgi_param URI $uri;
        location / { fastcgi_pass APP; chunked_transfer_encoding off; }
        location /flush { fastcgi_pass APP; fastcgi_buffering off; chunked_transfer_encoding off; }";
    with_server(engine, lines, answer, |server, _| {
        let length = whole().len();
        let places = (0..=length).map(|at| format!("/at/{at}"));
        for path in places.chain(["/bytes".into(), "/flush".into()]) {
            let answer = get(server, &path);
            assert!(
                answer.starts_with("HTTP/1.1 201 Made\r\n"),
                "{path}: {answer}"
            );
            assert!(
                answer.contains("\r\nContent-Type: text/plain\r\n"),
                "{path}: {answer}"
            );
            assert!(
                answer.ends_with("\r\n\r\nfirst second third"),
                "{path}: {answer}"
            );
        }
        server.wait_for_log(
            "FastCGI sent in stderr: \"a warning\" while reading response header from upstream",
        );
        server.wait_for_log("FastCGI sent in stderr: \"a third\" while reading upstream");
        assert!(!server.error_log().contains("[alert]"));
    });
}

support::test_on_each_engine!(what_is_split_in_any_way_is_the_same);
