//! `api` from outside: what it shows, what it changes under load, over reloads and by many at once,
//! and whom it refuses. Paths, members, statuses and codes by nginx.org's description of the API;
//! nginx itself has none of it.

mod changes;
mod counters;
mod names;
mod pairs;
mod terminal;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};
use support::load::answering;
use support::master::wait_for;
use support::tls::Client;
use support::{PATIENCE, Server, engines, is_nginx};

/// A response, whose body is JSON or empty.
struct Answer {
    status: u16,
    head: String,
    json: Value,
}

/// Sends a request on a connection of its own.
fn ask(port: u16, method: &str, path: &str, fields: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let host = if fields.contains("Host:") {
        String::new()
    } else {
        format!("Host: 127.0.0.1:{port}\r\n")
    };
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\n{host}{fields}Connection: close\r\n");
    let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    let text = String::from_utf8(received).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect(&text);
    Answer {
        status: head[9..12].parse().unwrap(),
        head: head.to_owned(),
        json: serde_json::from_str(body).unwrap_or(Value::Null),
    }
}

fn get(server: &Server, path: &str) -> Value {
    let answer = ask(server.port, "GET", &format!("/api/9{path}"), "", "");
    assert_eq!(answer.status, 200, "{path}: {}", answer.json);
    assert!(answer.head.contains("Content-Type: application/json"));
    answer.json
}

/// A change, with what is answered.
fn change(server: &Server, method: &str, path: &str, body: &str) -> (u16, Value) {
    let answer = ask(server.port, method, &format!("/api/9{path}"), "", body);
    (answer.status, answer.json)
}

/// The code of the error that a change is answered with.
fn refused(server: &Server, method: &str, path: &str, body: &str) -> (u16, String) {
    let (status, json) = change(server, method, path, body);
    let error = &json["error"];
    assert_eq!(error["status"], status, "{json}");
    assert!(error["text"].is_string() && json["href"].is_string());
    assert_eq!(json["request_id"].as_str().unwrap().len(), 32);
    (status, error["code"].as_str().unwrap().to_owned())
}

/// An upstream that answers with its own letter.
fn behind(letter: char) -> String {
    let text = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{letter}");
    let url = answering(text.into_bytes().leak());
    let address = url.strip_prefix("http://");
    address.unwrap_or(&url).trim_end_matches('/').to_owned()
}

/// Who answers a request.
fn by(server: &Server) -> String {
    let response = server.connect().get("/").unwrap();
    match response.status {
        200 => String::from_utf8(response.body).unwrap(),
        status => status.to_string(),
    }
}

/// Which servers answer some requests.
fn all_by(server: &Server) -> String {
    let seen: BTreeSet<String> = (0..8).map(|_| by(server)).collect();
    seen.into_iter().collect()
}

const LOCATIONS: &str = "server_name site.example *.wide.example;
    location /api { api write=on; } location /read/ { api; } location / { proxy_pass http://u; }";

/// The lines of a server whose group `u` has these lines.
fn lines(group: &str) -> String {
    format!(
        "{LOCATIONS}\n[http]\nupstream u {{ zone u 64k; {group} }} upstream fixed {{ server 127.0.0.1:1; }}"
    )
}

#[test]
fn every_version_shows_the_server() {
    if is_nginx() {
        return;
    }
    let a = behind('a');
    let server = Server::start(
        "",
        &lines(&format!("server {a} weight=3; server {a} backup;")),
    );
    let versions = ask(server.port, "GET", "/api", "", "");
    assert_eq!(versions.json, json!([4, 5, 6, 7, 8, 9]));
    for version in 4..=9 {
        let path = format!("/api/{version}/nginx");
        let nginx = ask(server.port, "GET", &path, "", "").json;
        assert_eq!(nginx["address"], "127.0.0.1");
        assert_eq!(nginx["generation"], 1);
        assert_eq!(nginx["build"], "tidegate");
        let time = nginx["load_timestamp"].as_str().unwrap();
        assert!(time.ends_with('Z') && time.len() == "2026-01-01T00:00:00.000Z".len());
    }
    let named = get(&server, "/nginx?fields=pid,ppid");
    assert_eq!(named.as_object().unwrap().len(), 2);
    assert_eq!(by(&server), "a");
    let group = &get(&server, "/http/upstreams")["u"];
    assert_eq!(group["zone"], "u");
    assert_eq!(group["zombies"], 0);
    let peer = &group["peers"][0];
    assert_eq!(
        (
            &peer["id"],
            &peer["server"],
            &peer["weight"],
            &peer["state"]
        ),
        (&json!(0), &json!(a), &json!(3), &json!("up"))
    );
    assert_eq!(
        (&peer["requests"], &peer["backup"]),
        (&json!(1), &json!(false))
    );
    assert_eq!(group["peers"][1]["backup"], true);
    let names = get(&server, "/http/upstreams?fields=");
    assert_eq!(names, json!({"u": {}, "fixed": {}}));
    let zones = get(&server, "/http/upstreams?fields=zone");
    assert_eq!(zones, json!({"u": {"zone": "u"}, "fixed": {}}));
    let configured = json!({"id": 0, "server": a, "weight": 3, "max_conns": 0, "max_fails": 1,
        "fail_timeout": "10s", "slow_start": "0s", "route": "", "backup": false, "down": false});
    assert_eq!(get(&server, "/http/upstreams/u/servers/0"), configured);
    assert_eq!(get(&server, "/http/upstreams/u/servers/")[0], configured);
    let head = ask(server.port, "HEAD", "/api/9/nginx", "", "");
    assert_eq!((head.status, head.json), (200, Value::Null));
    // There is nothing of that kind.
    for path in ["/slabs", "/resolvers", "/http/caches", "/http/keyvals"] {
        assert_eq!(get(&server, path), json!({}), "{path}");
    }
    for (path, code) in [
        ("/slabs/one", "SlabNotFound"),
        ("/http/caches/one", "CacheNotFound"),
    ] {
        assert_eq!(refused(&server, "GET", path, ""), (404, code.to_owned()));
    }
    let before = get(&server, "/http/requests")["total"].as_u64().unwrap();
    assert_eq!(change(&server, "DELETE", "/http/requests", "").0, 204);
    assert!(get(&server, "/http/requests")["total"].as_u64().unwrap() < before);
    assert_eq!(change(&server, "DELETE", "/connections", "").0, 204);
    let connections = get(&server, "/connections");
    assert_eq!(connections["accepted"], 1, "the one that asks");
    assert_eq!(change(&server, "DELETE", "/http/upstreams/u", "").0, 204);
    assert_eq!(get(&server, "/http/upstreams/u")["peers"][0]["requests"], 0);
}

/// By nginx.org's list of answers.
#[test]
fn errors_have_the_codes_of_nginx_plus() {
    if is_nginx() {
        return;
    }
    let a = behind('a');
    let server = Server::start("", &lines(&format!("server {a};")));
    let u = "/http/upstreams/u/servers";
    let one = r#"{"server":"127.0.0.1:9"}"#;
    let same = format!(r#"{{"server":"{a}"}}"#);
    let format_error = "UpstreamConfFormatError";
    for (method, path, body, status, code) in [
        ("GET", "/x", "", 404, "PathNotFound"),
        ("GET", "/http/upstreams/none", "", 404, "UpstreamNotFound"),
        (
            "GET",
            "/http/upstreams/none/servers",
            "",
            404,
            "UpstreamNotFound",
        ),
        (
            "GET",
            "/http/upstreams/u/servers/x",
            "",
            400,
            "UpstreamBadServerId",
        ),
        (
            "GET",
            "/http/upstreams/u/servers/18446744073709551616",
            "",
            400,
            "UpstreamBadServerId",
        ),
        (
            "GET",
            "/http/upstreams/u/servers/18446744073709551615",
            "",
            404,
            "UpstreamServerNotFound",
        ),
        (
            "PATCH",
            "/http/upstreams/u/servers/7",
            "{}",
            404,
            "UpstreamServerNotFound",
        ),
        (
            "DELETE",
            "/http/upstreams/u/servers/7",
            "",
            404,
            "UpstreamServerNotFound",
        ),
        (
            "POST",
            "/http/upstreams/fixed/servers",
            one,
            400,
            "UpstreamStatic",
        ),
        (
            "POST",
            "/http/upstreams/none/servers",
            one,
            404,
            "UpstreamNotFound",
        ),
        ("POST", u, &same, 409, "EntryExists"),
        ("POST", u, "", 415, "JsonError"),
        ("POST", u, "{}", 400, format_error),
        (
            "POST",
            u,
            r#"{"server":"127.0.0.1:9","id":4}"#,
            400,
            format_error,
        ),
        (
            "POST",
            u,
            r#"{"server":"by-name.example:80"}"#,
            400,
            "UpstreamConfNoResolver",
        ),
        (
            "POST",
            u,
            r#"{"server":"127.0.0.1:99999"}"#,
            400,
            "UpstreamBadAddress",
        ),
        (
            "PATCH",
            "/http/upstreams/u/servers/0",
            r#"{"backup":true}"#,
            400,
            format_error,
        ),
        (
            "PATCH",
            "/http/upstreams/u/servers/0",
            r#"{"weight":-1}"#,
            400,
            "UpstreamBadWeight",
        ),
        ("POST", "/nginx", "", 405, "MethodDisabled"),
        ("DELETE", "/http/upstreams", "", 405, "MethodDisabled"),
        ("PUT", u, "", 405, "MethodDisabled"),
    ] {
        let found = refused(&server, method, path, body);
        assert_eq!(found, (status, code.to_owned()), "{method} {path} {body}");
    }
    for version in ["3", "10", "x"] {
        let path = format!("/api/{version}/nginx");
        let json = ask(server.port, "GET", &path, "", "").json;
        assert_eq!(json["error"]["code"], "UnknownVersion");
    }
    // Without `write=on` nothing is changed.
    let path = "/read/9/http/upstreams/u/servers/0";
    let answer = ask(server.port, "PATCH", path, "", r#"{"down":true}"#);
    assert_eq!(
        (answer.status, &answer.json["error"]["code"]),
        (405, &json!("MethodDisabled"))
    );
    assert!(answer.head.contains("Allow: GET, HEAD"));
    let long = format!("{{\"route\":\"{}\"}}", "x".repeat(20_000));
    let path = "/http/upstreams/u/servers/0";
    assert_eq!(refused(&server, "PATCH", path, &long).0, 413);
    assert_eq!(by(&server), "a");
}

#[test]
fn strangers_are_refused() {
    if is_nginx() {
        return;
    }
    let server = Server::start("", &lines("server 127.0.0.1:9;"));
    let port = server.port;
    // A page whose name was made to lead here is answered nothing, nor is it changed.
    for (host, status) in [
        ("evil.example", 403),
        ("site.example.evil", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("site.example", 200),
        ("SITE.example:80", 200),
        ("a.wide.example", 200),
        ("localhost", 200),
        ("127.0.0.1", 200),
        ("[::1]:8080", 200),
    ] {
        let field = format!("Host: {host}\r\n");
        let answer = ask(port, "GET", "/api/9/nginx", &field, "");
        assert_eq!(answer.status, status, "{host}");
    }
    let own = format!("Origin: http://127.0.0.1:{port}\r\n");
    for (fields, status) in [
        ("Origin: http://evil.example\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Origin: http://127.0.0.1:1\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        ("Sec-Fetch-Site: same-site\r\n", 403),
        ("Sec-Fetch-Site: same-origin\r\n", 200),
        ("Sec-Fetch-Site: none\r\n", 200),
        (own.as_str(), 200),
        ("Content-Type: text/plain\r\n", 200),
    ] {
        let path = "/api/9/http/upstreams/u/servers/0";
        let answer = ask(port, "PATCH", path, fields, r#"{"weight":2}"#);
        assert_eq!(answer.status, status, "{fields}: {}", answer.json);
    }
}

/// The page and what belongs to it come from one place, which says that nothing else is to be
/// asked.
#[test]
fn a_dashboard_of_its_own() {
    if is_nginx() {
        return;
    }
    let lines = "location /live/ { api write=on; } location /status/ { dashboard; }";
    let server = Server::start("", lines);
    let mut connection = server.connect();
    for (path, content_type, text) in [
        (
            "/status/",
            "text/html",
            "data-api=\"/live/\" data-writes=\"on\"",
        ),
        ("/status/app.js", "text/javascript", "fetch(api + path"),
        (
            "/status/style.css",
            "text/css",
            "prefers-color-scheme: dark",
        ),
    ] {
        let response = connection.get(path).unwrap();
        assert_eq!(response.status, 200, "{path}");
        let body = String::from_utf8(response.body.clone()).unwrap();
        assert!(body.contains(text), "{path}: {body}");
        // No foreign address, and nothing that the policy forbids.
        for forbidden in [
            "https://", "<script>", "<style>", "style=\"", "onclick", "eval(",
        ] {
            assert!(!body.contains(forbidden), "{path}: {forbidden}");
        }
        let answer = ask(server.port, "HEAD", path, "", "");
        assert!(
            answer
                .head
                .contains(&format!("Content-Type: {content_type}; charset=utf-8"))
        );
        assert!(
            answer
                .head
                .contains("Content-Security-Policy: default-src 'self'; ")
        );
    }
    assert_eq!(connection.get("/status/other").unwrap().status, 404);
    assert_eq!(connection.get("/status").unwrap().status, 301);
    assert_eq!(ask(server.port, "POST", "/status/", "", "").status, 405);
    // What the script asks for is there.
    let script = String::from_utf8(connection.get("/status/app.js").unwrap().body).unwrap();
    let paths = script.split("const paths = [").nth(1).unwrap();
    let paths = paths
        .split(']')
        .next()
        .unwrap()
        .split('"')
        .skip(1)
        .step_by(2);
    let paths: Vec<&str> = paths.collect();
    assert_eq!(paths.len(), 13);
    for path in paths {
        let answer = ask(server.port, "GET", &format!("/live/9{path}"), "", "");
        assert_eq!(answer.status, 200, "{path}");
    }
}

/// What is too long is refused before it is read, and what comes slowly keeps nobody waiting.
fn long_and_slow_bodies(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let server = Server::start(engine, &lines("server 127.0.0.1:9;"));
    let path = "/api/9/http/upstreams/u/servers/0";
    let open = |fields: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("PATCH {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n");
        stream
            .write_all(format!("{head}{fields}\r\n\r\n").as_bytes())
            .unwrap();
        stream
    };
    let status = |stream: &mut TcpStream| {
        let mut head = [0; 12];
        stream.read_exact(&mut head).unwrap();
        String::from_utf8(head[9..].to_vec()).unwrap()
    };
    // A length alone is enough.
    for length in ["20000", "1000000", "9223372036854775807"] {
        let mut stream = open(&format!("Content-Length: {length}"));
        assert_eq!(status(&mut stream), "413", "{length}");
    }
    // In chunks nothing says how long it is.
    let mut stream = open("Transfer-Encoding: chunked");
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    for _ in 0..300 {
        // The answer may come, and the connection end, before all of it is sent.
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    assert_eq!(status(&mut stream), "413");
    // One byte after the other, while others are answered.
    let body = br#"{"weight":7}"#;
    let mut slow = open(&format!("Content-Length: {}", body.len()));
    slow.set_nodelay(true).unwrap();
    for byte in body {
        assert_eq!(get(&server, "/http/upstreams/u/servers/0")["weight"], 1);
        slow.write_all(&[*byte]).unwrap();
    }
    assert_eq!(status(&mut slow), "200");
    assert_eq!(get(&server, "/http/upstreams/u/servers/0")["weight"], 7);
    // One that leaves in the middle changes nothing.
    let mut leaves = open("Content-Length: 12");
    leaves.write_all(br#"{"weight":9"#).unwrap();
    drop(leaves);
    assert_eq!(get(&server, "/http/upstreams/u/servers/0")["weight"], 7);
}

support::test_on_each_engine!(long_and_slow_bodies);
