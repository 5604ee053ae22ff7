//! What is counted: by zone, by limit, by handshake, by cache.

use super::*;

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
