//! headers-more from outside, by the documentation of its module: fields of responses and requests
//! set, appended and cleared, by status, type and wildcard.

use std::io::{Read, Write};
use std::net::TcpStream;

use support::{PATIENCE, Server};

/// The whole answer to a GET with these header lines.
fn ask(server: &Server, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: site\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    all
}

/// The values of a field, joined by `|`.
fn values(answer: &str, name: &str) -> String {
    let head = answer.split("\r\n\r\n").next().unwrap();
    let found = head.lines().filter_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    });
    found.collect::<Vec<_>>().join("|")
}

#[test]
fn fields_of_responses() {
    let server = Server::start(
        "",
        "default_type text/plain; more_set_headers 'X-Server: above';
         location /set { more_set_headers 'X-Uri: $uri' 'Server: mine' 'x-server: below'; return 200 x; }
         location /status { more_set_headers -s '403 404' 'X-Error: yes'; return 404; }
         location /status-not { more_set_headers -s 404 'X-Error: yes'; return 200 x; }
         location /type { more_set_headers -t 'text/html text/plain' 'X-Type: yes'; return 200 x; }
         location /type-not { more_set_headers -t 'text/html' 'X-Type: yes'; return 200 x; }
         location /append { more_set_headers 'X-A: 1' 'X-A: 2'; more_set_headers -a 'X-A: 3'; return 200 x; }
         location /type-set { more_set_headers 'Content-Type: text/other'; return 200 x; }
         location /clear { more_set_headers 'X-Hidden-A: 1' 'X-Hidden-B: 2' 'X-Kept: 3';
             more_clear_headers 'X-Hidden-*' Server Content-Type; return 200 x; }
         location /clear-status { more_clear_headers -s 404 X-Server; return 200 x; }
         location /empty { more_set_headers 'X-Server:'; return 200 x; }
         location /moved { more_set_headers 'Location: http://elsewhere/'; return 302 /here; }
         location /added { more_set_headers 'X-B: more'; add_header X-B added; return 200 x; }
         location /file { alias www/a.txt; more_clear_headers Last-Modified ETag; }",
    );
    server.write("a.txt", b"text");
    for (path, name, expected) in [
        ("/set", "X-Uri", "/set"),
        ("/set", "Server", "mine"),
        ("/set", "X-Server", "below"),
        ("/status", "X-Error", "yes"),
        ("/status", "X-Server", "above"),
        ("/status-not", "X-Error", ""),
        ("/type", "X-Type", "yes"),
        ("/type-not", "X-Type", ""),
        ("/append", "X-A", "2|3"),
        ("/type-set", "Content-Type", "text/other"),
        ("/clear", "X-Hidden-A", ""),
        ("/clear", "X-Hidden-B", ""),
        ("/clear", "X-Kept", "3"),
        ("/clear", "Server", ""),
        ("/clear", "Content-Type", ""),
        ("/clear-status", "X-Server", "above"),
        ("/empty", "X-Server", ""),
        ("/moved", "Location", "http://elsewhere/"),
        ("/added", "X-B", "more|added"),
        ("/file", "Last-Modified", ""),
        ("/file", "ETag", ""),
        ("/file", "Content-Length", "4"),
    ] {
        // Small files are answered from memory from the third time on.
        for _ in 0..3 {
            let answer = ask(&server, path, "");
            assert_eq!(values(&answer, name), expected, "{path}: {answer}");
        }
    }
}

/// The module changes requests behind the rewrite phase: what `return` answers has not seen it,
/// what is passed on has.
#[test]
fn fields_of_requests() {
    let server = Server::start(
        "",
        "more_set_input_headers 'X-Above: above';
         set $upstream http://127.0.0.1:$server_port/echo;
         location /set { more_set_input_headers 'X-A: new $arg_a' 'Host: other'; proxy_pass $upstream; add_header X-Host '$http_host $host'; }
         location /present { more_set_input_headers -r 'X-A: new' 'X-B: new'; proxy_pass $upstream; }
         location /clear { more_clear_input_headers 'X-Secret-*' X-A; proxy_pass $upstream; }
         location /type { more_set_input_headers -t 'text/plain' 'X-A: plain'; proxy_pass $upstream; }
         location /early { more_set_input_headers 'X-A: unseen'; return 200 $http_x_a; }
         location /echo { return 200 '$http_x_a,$http_x_b,$http_x_secret_a$http_x_secret_b,$http_x_above'; }",
    );
    for (path, headers, expected) in [
        ("/set?a=1", "X-A: old\r\nX-A: older\r\n", "new 1,,,above"),
        ("/present", "X-A: old\r\n", "new,,,above"),
        (
            "/clear",
            "X-Secret-A: a\r\nX-A: b\r\nX-Secret-B: c\r\nX-B: d\r\n",
            ",d,,above",
        ),
        (
            "/type",
            "Content-Type: text/plain; charset=x\r\n",
            "plain,,,above",
        ),
        ("/type", "Content-Type: text/html\r\n", ",,,above"),
        ("/early", "X-A: seen\r\n", "seen"),
    ] {
        let answer = ask(&server, path, headers);
        let body = answer.split("\r\n\r\n").nth(1).unwrap();
        assert_eq!(body, expected, "{path}: {answer}");
    }
    let answer = ask(&server, "/set", "");
    assert_eq!(values(&answer, "X-Host"), "other other");
}
