//! `api` from outside: what it shows, what it changes under load, over reloads and by many at once,
//! and whom it refuses. Paths, members, statuses and codes by nginx.org's description of the API;
//! nginx itself has none of it.

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
use support::{PATIENCE, Server, is_nginx};

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
    let host = match fields.contains("Host:") {
        true => String::new(),
        false => format!("Host: 127.0.0.1:{port}\r\n"),
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
    for path in [
        "/slabs",
        "/resolvers",
        "/http/caches",
        "/http/keyvals",
        "/processes",
    ] {
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

#[test]
fn servers_are_taken_out_and_put_back() {
    if is_nginx() {
        return;
    }
    let [a, b, c] = ['a', 'b', 'c'].map(behind);
    let server = Server::start("", &lines(&format!("server {a}; server {b};")));
    assert_eq!(all_by(&server), "ab");
    let first = "/http/upstreams/u/servers/0";
    let (status, json) = change(&server, "PATCH", first, r#"{"down":true}"#);
    assert_eq!((status, &json["down"]), (200, &json!(true)));
    assert_eq!(all_by(&server), "b");
    assert_eq!(
        get(&server, "/http/upstreams/u")["peers"][0]["state"],
        "down"
    );
    assert_eq!(change(&server, "PATCH", first, r#"{"down":false}"#).0, 200);
    assert_eq!(all_by(&server), "ab");
    assert_eq!(change(&server, "PATCH", first, r#"{"drain":true}"#).0, 200);
    assert_eq!(all_by(&server), "b");
    let group = get(&server, "/http/upstreams/u");
    assert_eq!(group["peers"][0]["state"], "draining");
    assert_eq!(change(&server, "PATCH", first, r#"{"drain":false}"#).0, 200);
    assert_eq!(all_by(&server), "ab");

    let servers = "/http/upstreams/u/servers";
    let new = format!(
        r#"{{"server":"{c}","weight":2,"max_conns":7,"fail_timeout":"1m","slow_start":"1500ms","route":"x"}}"#
    );
    let (status, json) = change(&server, "POST", servers, &new);
    assert_eq!(status, 201);
    let shown = json!({"id": 2, "server": c, "weight": 2, "max_conns": 7, "max_fails": 1,
        "fail_timeout": "60s", "slow_start": "1500ms", "route": "x", "backup": false, "down": false});
    assert_eq!(json, shown);
    assert_eq!(
        change(
            &server,
            "PATCH",
            &format!("{servers}/2"),
            r#"{"slow_start":"0s"}"#
        )
        .0,
        200
    );
    assert_eq!(all_by(&server), "abc");
    let (status, json) = change(&server, "DELETE", first, "");
    assert_eq!(status, 200);
    let ids: Vec<_> = json
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["id"])
        .collect();
    assert_eq!(ids, [1, 2]);
    assert_eq!(all_by(&server), "bc");
    // A number is of one server for good.
    assert_eq!(
        change(&server, "DELETE", &format!("{servers}/2"), "").0,
        200
    );
    let (_, json) = change(&server, "POST", servers, &format!(r#"{{"server":"{c}"}}"#));
    assert_eq!(json["id"], 3);
    // At another address it is the same server.
    let moved = format!(r#"{{"server":"{a}"}}"#);
    let (status, json) = change(&server, "PATCH", &format!("{servers}/1"), &moved);
    assert_eq!(
        (status, &json["id"], &json["server"]),
        (200, &json!(1), &json!(a))
    );
    assert_eq!(all_by(&server), "ac");
    let weight = r#"{"weight":4}"#;
    assert_eq!(
        change(&server, "PATCH", &format!("{servers}/1"), weight).0,
        200
    );
    assert_eq!(get(&server, "/http/upstreams/u")["peers"][0]["weight"], 4);
}

#[test]
fn each_change_is_a_line_of_the_log() {
    if is_nginx() {
        return;
    }
    let a = behind('a');
    let group = lines(&format!("server {a};"));
    let with_log = format!("error_log logs/notice.log notice; {group}");
    let server = Server::start("", &with_log);
    let path = "/http/upstreams/u/servers/0";
    assert_eq!(change(&server, "PATCH", path, r#"{"weight":9}"#).0, 200);
    server.wait_for_line(
        "notice.log",
        &format!(
            "api: server {a} (0) of upstream \"u\" changed by {{\"weight\":9}}, client: 127.0.0.1, "
        ),
    );
    assert_eq!(change(&server, "DELETE", path, "").0, 200);
    server.wait_for_line(
        "notice.log",
        &format!("api: server {a} (0) of upstream \"u\" removed"),
    );
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

#[test]
fn a_reload_undoes_what_is_not_written_down_and_says_so() {
    if is_nginx() {
        return;
    }
    let [a, b, c] = ['a', 'b', 'c'].map(behind);
    let group = lines(&format!("server {a}; server {b};"));
    let server = Server::start("", &group);
    let servers = "/http/upstreams/u/servers";
    for (method, path, body) in [
        ("PATCH", "/0", r#"{"down":true}"#.to_owned()),
        ("DELETE", "/1", String::new()),
        ("POST", "", format!(r#"{{"server":"{c}"}}"#)),
    ] {
        let path = format!("{servers}{path}");
        assert!(change(&server, method, &path, &body).0 < 300);
    }
    assert_eq!(all_by(&server), "c");
    server.reload(&group);
    let told = |name: &str, rest: &str| {
        format!("server {name} of upstream \"u\" {rest}: there is no \"state\" file")
    };
    server.wait_for_log(&told(&a, "is as configured, which the api had changed"));
    server.wait_for_log(&told(&b, "is back, which the api had removed"));
    server.wait_for_log(&told(&c, "is gone, which the api had added"));
    wait_for("the new generation", || all_by(&server) == "ab");
    let ids: Vec<Value> = get(&server, servers)
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].clone())
        .collect();
    assert_eq!(ids[0], 0, "the same server has the same number");
    // What has not been changed since is not told again.
    let before = server.error_log().matches("the api had").count();
    server.reload(&group);
    wait_for("another generation", || {
        get(&server, "/nginx")["generation"].as_u64() == Some(3)
    });
    assert_eq!(server.error_log().matches("the api had").count(), before);
}

/// A group with a file that the workers' user may write.
fn with_state() -> (Server, String) {
    let folder = std::env::temp_dir().join(format!(
        "tidegate-state-{}-{:?}",
        std::process::id(),
        thread::current().id()
    ));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    let group = lines(&format!("state {}/servers;", folder.display()));
    let server = Server::start("", &group);
    (server, group)
}

fn state_of(group: &str) -> String {
    let path = group.split("state ").nth(1).unwrap();
    fs::read_to_string(path.split(';').next().unwrap()).unwrap_or_default()
}

#[test]
fn changes_that_are_written_down_live_on() {
    if is_nginx() {
        return;
    }
    let [a, b] = ['a', 'b'].map(behind);
    let (server, group) = with_state();
    assert_eq!(by(&server), "502");
    let servers = "/http/upstreams/u/servers";
    for name in [&a, &b] {
        let body = format!(r#"{{"server":"{name}"}}"#);
        assert_eq!(change(&server, "POST", servers, &body).0, 201);
    }
    assert_eq!(
        change(
            &server,
            "PATCH",
            &format!("{servers}/1"),
            r#"{"drain":true}"#
        )
        .0,
        200
    );
    assert_eq!(
        state_of(&group),
        format!("server {a};\nserver {b} drain;\n")
    );
    assert_eq!(all_by(&server), "a");
    let before = get(&server, servers);
    server.reload(&group);
    wait_for("the new generation", || {
        get(&server, "/nginx")["generation"].as_u64() == Some(2)
    });
    assert_eq!(get(&server, servers), before, "numbers as well");
    assert_eq!(all_by(&server), "a");
    let requests = get(&server, "/http/upstreams/u")["peers"][0]["requests"].as_u64();
    assert!(requests > Some(8), "counters go on");
    assert!(!server.error_log().contains("the api had"));
    // A worker process that is started again has what has been written since.
    assert_eq!(
        change(&server, "PATCH", &format!("{servers}/0"), r#"{"weight":6}"#).0,
        200
    );
    let workers = server.workers();
    support::signal(workers[0], "KILL");
    wait_for("another worker", || {
        let now = server.workers();
        let is_up = now.len() == 1 && now != workers;
        is_up && support::Connection::open(server.port).is_ok()
    });
    assert_eq!(get(&server, servers)[0]["weight"], 6);
}

/// Whatever order they come in, what is written is what is in force, and no change is lost.
#[test]
fn a_hundred_writers_at_once() {
    if is_nginx() {
        return;
    }
    let (server, group) = with_state();
    let port = server.port;
    let writers = (0..100).map(|number| {
        thread::spawn(move || {
            let servers = "/api/9/http/upstreams/u/servers";
            let body = format!(r#"{{"server":"127.0.0.1:{}"}}"#, 20_000 + number);
            let answer = ask(port, "POST", servers, "", &body);
            assert_eq!(answer.status, 201, "{}", answer.json);
            let id = answer.json["id"].as_u64().unwrap();
            if number % 2 == 0 {
                let path = format!("{servers}/{id}");
                assert_eq!(ask(port, "DELETE", &path, "", "").status, 200);
            }
            id
        })
    });
    let writers: Vec<_> = writers.collect();
    let ids = writers.into_iter().map(|writer| writer.join().unwrap());
    let ids: BTreeSet<u64> = ids.collect();
    assert_eq!(ids.len(), 100, "no number twice");
    let left = get(&server, "/http/upstreams/u/servers");
    assert_eq!(left.as_array().unwrap().len(), 50);
    let written: BTreeSet<String> = state_of(&group).lines().map(str::to_owned).collect();
    let expected = (0..100).filter(|number| number % 2 == 1);
    let expected = expected.map(|number| format!("server 127.0.0.1:{};", 20_000 + number));
    assert_eq!(written, expected.collect());
}

/// A change that meets a reload anywhere is in force behind it, and written down.
#[test]
fn changes_amid_reloads() {
    if is_nginx() {
        return;
    }
    let (server, group) = with_state();
    let servers = "/http/upstreams/u/servers";
    let body = r#"{"server":"127.0.0.1:9"}"#;
    assert_eq!(change(&server, "POST", servers, body).0, 201);
    let mut weight = 1;
    for generation in 2..8 {
        server.reload(&group);
        loop {
            weight += 1;
            let body = format!(r#"{{"weight":{weight}}}"#);
            let (status, json) = change(&server, "PATCH", &format!("{servers}/0"), &body);
            assert_eq!((status, &json["weight"]), (200, &json!(weight)));
            let shown = get(&server, servers);
            assert_eq!(shown[0]["weight"], weight, "generation {generation}");
            if get(&server, "/nginx")["generation"].as_u64() == Some(generation) {
                break;
            }
        }
        assert_eq!(get(&server, servers)[0]["weight"], weight);
        let line = format!("server 127.0.0.1:9 weight={weight};\n");
        assert_eq!(state_of(&group), line);
    }
}

/// A client adds, drains and removes servers while others are served: not one request fails.
#[test]
fn servers_come_and_go_under_load() {
    if is_nginx() {
        return;
    }
    let all: Vec<String> = ('a'..='d').map(behind).collect();
    let server = Server::start_workers(2, "", &lines(&format!("server {};", all[0])));
    let ended = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicUsize::new(0));
    let port = server.port;
    let clients = (0..4).map(|_| {
        let (ended, served) = (Arc::clone(&ended), Arc::clone(&served));
        thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let mut connection = support::Connection::open(port).unwrap();
                for _ in 0..100 {
                    assert_eq!(connection.get("/").unwrap().status, 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    let servers = "/http/upstreams/u/servers";
    for round in 0..12 {
        let name = &all[1 + round % 3];
        let before = served.load(Ordering::Relaxed);
        let (status, json) = change(
            &server,
            "POST",
            servers,
            &format!(r#"{{"server":"{name}"}}"#),
        );
        assert_eq!(status, 201);
        let path = format!("{servers}/{}", json["id"]);
        wait_for("requests", || served.load(Ordering::Relaxed) > before + 50);
        assert_eq!(change(&server, "PATCH", &path, r#"{"drain":true}"#).0, 200);
        wait_for("the end of its requests", || {
            let group = get(&server, "/http/upstreams/u");
            group["peers"][1]["active"] == 0
        });
        assert_eq!(change(&server, "DELETE", &path, "").0, 200);
    }
    ended.store(true, Ordering::Relaxed);
    clients
        .into_iter()
        .for_each(|client| client.join().unwrap());
    assert_eq!(get(&server, "/http/upstreams/u")["zombies"], 0);
}

/// Requests by zone, over a reload and from a reset on. A location within another is counted as
/// that is, unless it says otherwise.
#[test]
fn requests_are_counted_by_zone() {
    if is_nginx() {
        return;
    }
    let lines = "status_zone site; location /api { api write=on; }
        location /files { status_zone files; location /files/in { } location /files/not { status_zone off; } }
        location /limited { limit_req zone=rates; }
        location /counted { limit_conn connections 1; }
        location /tried { limit_req zone=rates; limit_req_dry_run on; }
        [http]
        limit_req_zone $server_port zone=rates:1m rate=1r/m; limit_conn_zone $server_port zone=connections:1m;";
    let lines: Vec<&str> = lines.lines().map(str::trim).collect();
    let lines = lines.join("\n");
    let server = Server::start_workers(2, "", &lines);
    fs::create_dir_all(server.prefix.join("www/files/in")).unwrap();
    for name in [
        "files/a",
        "files/in/a",
        "files/not",
        "limited",
        "counted",
        "tried",
    ] {
        server.write_old(name, b"12345");
    }
    let mut connection = server.connect();
    for (path, status) in [
        ("/files/a", 200),
        ("/files/a", 200),
        ("/files/a", 200),
        ("/files/in/a", 200),
        ("/files/in/none", 404),
        ("/files/not", 200),
        ("/counted", 200),
        ("/limited", 200),
        ("/limited", 503),
        ("/limited", 503),
        ("/tried", 200),
    ] {
        assert_eq!(connection.get(path).unwrap().status, status, "{path}");
    }
    let files = get(&server, "/http/location_zones/files");
    let responses = json!({"1xx": 0, "2xx": 4, "3xx": 0, "4xx": 1, "5xx": 0,
        "codes": {"200": 4, "404": 1}, "total": 5});
    assert_eq!(
        (&files["requests"], &files["responses"]),
        (&json!(5), &responses)
    );
    assert!(files["sent"].as_u64() > Some(500) && files["received"].as_u64() > Some(100));
    assert_eq!(
        get(&server, "/http/location_zones")
            .as_object()
            .unwrap()
            .len(),
        1
    );
    let site = get(&server, "/http/server_zones/site");
    assert_eq!(site["processing"], 1, "the one that asks");
    // Those that have asked before are counted, too, as soon as they have ended.
    assert!(site["responses"]["total"].as_u64() >= Some(13), "{site}");
    assert_eq!(site["responses"]["codes"]["503"], 2);
    let old = ask(
        server.port,
        "GET",
        "/api/6/http/location_zones/files",
        "",
        "",
    )
    .json;
    assert_eq!(old["responses"]["codes"], Value::Null);
    assert_eq!(
        get(&server, "/http/server_zones?fields="),
        json!({"site": {}})
    );
    let limited = json!({"passed": 1, "delayed": 0, "rejected": 2, "delayed_dry_run": 0, "rejected_dry_run": 1});
    assert_eq!(get(&server, "/http/limit_reqs"), json!({"rates": limited}));
    let limited = json!({"passed": 1, "rejected": 0, "rejected_dry_run": 0});
    assert_eq!(get(&server, "/http/limit_conns/connections"), limited);

    server.reload(&lines);
    wait_for("the new generation", || {
        get(&server, "/nginx")["generation"].as_u64() == Some(2)
    });
    assert_eq!(
        get(&server, "/http/location_zones/files"),
        files,
        "counters go on"
    );
    for path in [
        "/http/location_zones/files",
        "/http/server_zones/site",
        "/http/limit_reqs/rates",
    ] {
        assert_eq!(change(&server, "DELETE", path, "").0, 204, "{path}");
    }
    assert_eq!(server.connect().get("/files/a").unwrap().status, 200);
    let files = get(&server, "/http/location_zones/files");
    assert_eq!(
        (&files["requests"], &files["responses"]["codes"]),
        (&json!(1), &json!({"200": 1}))
    );
    assert_eq!(get(&server, "/http/limit_reqs/rates")["rejected"], 0);
    for (path, code) in [
        ("/http/server_zones/none", "ServerZoneNotFound"),
        ("/http/location_zones/none", "LocationZoneNotFound"),
        ("/http/limit_reqs/none", "LimitReqNotFound"),
        ("/http/limit_conns/rates", "LimitConnNotFound"),
    ] {
        for method in ["GET", "DELETE"] {
            assert_eq!(refused(&server, method, path, ""), (404, code.to_owned()));
        }
    }
}

/// A server whose workers may write into a folder beside it.
fn with_pairs() -> (Server, String) {
    let folder = std::env::temp_dir().join(format!("tidegate-pairs-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    let lines = format!(
        "location /api {{ api write=on; }}
location /text {{ return 200 \"$by_text.\"; }}
location /address {{ return 200 \"$by_address.\"; }}
location /prefix {{ return 200 \"$by_prefix.\"; }}
location /short {{ return 200 \"$by_short.\"; }}
[http]
keyval_zone zone=text:32k state={}/text;
keyval_zone zone=address:32k type=ip;
keyval_zone zone=prefix:32k type=prefix;
keyval_zone zone=short:32k timeout=1h;
keyval $arg_key $by_text zone=text;
keyval $arg_key $by_address zone=address;
keyval $arg_key $by_prefix zone=prefix;
keyval $arg_key $by_short zone=short;",
        folder.display()
    );
    let server = Server::start("", &lines);
    (server, lines)
}

/// By nginx.org's description of keyvals, and its page of the module.
#[test]
fn pairs_of_keys_and_values() {
    if is_nginx() {
        return;
    }
    let (server, lines) = with_pairs();
    let value = |path: &str, key: &str| {
        let response = server.connect().get(&format!("/{path}?key={key}")).unwrap();
        String::from_utf8(response.body).unwrap()
    };
    let text = "/http/keyvals/text";
    assert_eq!(value("text", "a"), ".");
    let both = r#"{"a":"1","b":"2"}"#;
    assert_eq!(
        change(&server, "POST", text, both).0,
        201,
        "into an empty zone"
    );
    assert_eq!(
        (value("text", "a"), value("text", "c")),
        ("1.".into(), ".".into())
    );
    assert_eq!(change(&server, "PATCH", text, r#"{"a":"3"}"#).0, 204);
    assert_eq!(value("text", "a"), "3.");
    assert_eq!(change(&server, "PATCH", text, r#"{"b":null}"#).0, 204);
    assert_eq!(change(&server, "POST", text, r#"{"c":"4"}"#).0, 201);
    assert_eq!(get(&server, text), json!({"a": "3", "c": "4"}));
    assert_eq!(get(&server, &format!("{text}?key=c")), json!({"c": "4"}));
    let names = get(&server, "/http/keyvals?fields=");
    assert_eq!(
        names,
        json!({"text": {}, "address": {}, "prefix": {}, "short": {}})
    );
    for (method, path, body, status, code) in [
        ("POST", text, r#"{"a":"1"}"#, 409, "KeyvalKeyExists"),
        (
            "POST",
            text,
            r#"{"x":"1","y":"1"}"#,
            400,
            "KeyvalFormatError",
        ),
        ("POST", text, "{}", 400, "KeyvalFormatError"),
        (
            "POST",
            text,
            r#"{"x":{"value":"1","expire":5}}"#,
            400,
            "KeyvalFormatError",
        ),
        ("POST", text, "x", 415, "JsonError"),
        ("PATCH", text, r#"{"x":"1"}"#, 404, "KeyvalKeyNotFound"),
        (
            "PATCH",
            text,
            r#"{"a":"1","c":"1"}"#,
            400,
            "KeyvalFormatError",
        ),
        (
            "GET",
            "/http/keyvals/text?key=x",
            "",
            404,
            "KeyvalKeyNotFound",
        ),
        ("GET", "/http/keyvals/none", "", 404, "KeyvalNotFound"),
        ("DELETE", "/http/keyvals/none", "", 404, "KeyvalNotFound"),
        ("POST", "/http/keyvals", "{}", 405, "MethodDisabled"),
        (
            "POST",
            "/http/keyvals/address",
            r#"{"x":"1"}"#,
            400,
            "KeyvalFormatError",
        ),
    ] {
        let found = refused(&server, method, path, body);
        assert_eq!(found, (status, code.to_owned()), "{method} {path} {body}");
    }
    let networks = r#"{"10.0.0.0/8":"wide","10.1.0.0/16":"narrow","::1":"one"}"#;
    assert_eq!(
        change(&server, "POST", "/http/keyvals/address", networks).0,
        201
    );
    for (key, expected) in [
        ("10.1.2.3", "narrow."),
        ("10.2.0.1", "wide."),
        ("::1", "one."),
        ("x", "."),
    ] {
        assert_eq!(value("address", key), expected);
    }
    let prefixes = r#"{"/a":"short","/a/b":"long"}"#;
    assert_eq!(
        change(&server, "POST", "/http/keyvals/prefix", prefixes).0,
        201
    );
    for (key, expected) in [("/a/b/c", "long."), ("/a/x", "short."), ("/", ".")] {
        assert_eq!(value("prefix", key), expected);
    }
    let ended = r#"{"x":{"value":"1","expire":0}}"#;
    assert_eq!(change(&server, "POST", "/http/keyvals/short", ended).0, 201);
    assert_eq!(value("short", "x"), ".");
    assert_eq!(
        change(&server, "POST", "/http/keyvals/short", r#"{"x":"2"}"#).0,
        201
    );
    assert_eq!(value("short", "x"), "2.");
    assert_eq!(
        change(
            &server,
            "PATCH",
            "/http/keyvals/short",
            r#"{"x":{"expire":0}}"#
        )
        .0,
        204
    );
    assert_eq!(value("short", "x"), ".");

    let file = lines
        .split("state=")
        .nth(1)
        .unwrap()
        .split(';')
        .next()
        .unwrap();
    assert_eq!(
        fs::read_to_string(file).unwrap(),
        "{\"a\":\"3\",\"c\":\"4\"}\n"
    );
    server.reload(&lines);
    wait_for("the new generation", || {
        get(&server, "/nginx")["generation"].as_u64() == Some(2)
    });
    assert_eq!(value("prefix", "/a/b/c"), "long.", "pairs outlive a reload");
    assert_eq!(change(&server, "DELETE", text, "").0, 204);
    assert_eq!(
        (value("text", "a"), fs::read_to_string(file).unwrap()),
        (".".into(), "{}\n".into())
    );
    // A worker process that is started again finds what has been written since the configuration
    // was read.
    assert_eq!(change(&server, "POST", text, r#"{"s":"kept"}"#).0, 201);
    let workers = server.workers();
    support::signal(workers[0], "KILL");
    wait_for("another worker", || {
        let now = server.workers();
        now.len() == 1 && now != workers
    });
    wait_for("what was written", || {
        let response = support::Connection::open(server.port).ok();
        let response = response.and_then(|mut connection| connection.get("/text?key=s").ok());
        response.is_some_and(|response| response.body == b"kept.")
    });
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
    assert_eq!(paths.len(), 9);
    for path in paths {
        let answer = ask(server.port, "GET", &format!("/live/9{path}"), "", "");
        assert_eq!(answer.status, 200, "{path}");
    }
}

/// Handshakes with clients, failed ones, and those that go on with an earlier session. Who leaves
/// without a word has begun none.
#[test]
fn handshakes_are_counted() {
    if is_nginx() {
        return;
    }
    let port = support::port::free_port();
    let file = |end: &str| format!("{}/tests/tls/ecdsa.{end}", env!("CARGO_MANIFEST_DIR"));
    let lines = format!(
        "location /api {{ api write=on; }} location /metrics {{ metrics; }}
[http]
server {{ listen 127.0.0.1:{port} ssl; server_name localhost;
        ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200 x; }} }}",
        file("crt"),
        file("key")
    );
    let server = Server::start_workers(1, "", &lines);
    let numbers = |handshakes: u64, failed: u64, reused: u64| json!({"handshakes": handshakes, "handshakes_failed": failed, "session_reuses": reused});
    assert_eq!(get(&server, "/ssl"), numbers(0, 0, 0));
    let client = Client::new().keeping_sessions();
    for _ in 0..2 {
        let mut connection = client.connect(port).unwrap();
        assert_eq!(connection.get("/").unwrap().body, b"x");
    }
    drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let mut broken = TcpStream::connect(("127.0.0.1", port)).unwrap();
    broken.set_read_timeout(Some(PATIENCE)).unwrap();
    broken
        .write_all(b"\x16\x03\x01\x00\x04\x01\x00\x00\x00")
        .unwrap();
    let _ = broken.read_to_end(&mut Vec::new());
    wait_for("the handshakes", || {
        get(&server, "/ssl") == numbers(2, 1, 1)
    });
    let metrics = server.connect().get("/metrics").unwrap().body;
    let metrics = String::from_utf8(metrics).unwrap();
    for line in [
        "tidegate_tls_handshakes_total 2",
        "tidegate_tls_sessions_reused_total 1",
        "tidegate_tls_handshakes_failed_total 1",
    ] {
        assert!(metrics.lines().any(|known| known == line), "{metrics}");
    }
    assert_eq!(change(&server, "DELETE", "/ssl", "").0, 204);
    assert_eq!(
        get(&server, "/ssl?fields=handshakes"),
        json!({"handshakes": 0})
    );
}

/// How much a cache holds, and may hold where that is bounded.
#[test]
fn caches_show_how_large_they_are() {
    if is_nginx() {
        return;
    }
    let a = behind('a');
    let lines = format!(
        "location /api {{ api; }} location / {{ proxy_pass http://{a}; proxy_cache pages; proxy_cache_valid 1h; }}
[http]
proxy_cache_path pages keys_zone=pages:1m max_size=10m; proxy_cache_path others keys_zone=others:1m;"
    );
    let server = Server::start("", &lines);
    let pages = get(&server, "/http/caches/pages");
    assert_eq!(pages, json!({"size": 0, "max_size": 10 << 20}));
    assert_eq!(server.connect().get("/x").unwrap().status, 200);
    wait_for("an entry", || {
        get(&server, "/http/caches/pages?fields=size")["size"].as_u64() > Some(0)
    });
    let all = get(&server, "/http/caches");
    assert_eq!(all["others"], json!({"size": 0}));
}
