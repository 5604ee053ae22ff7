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
    let numbers = |handshakes: u64, failed: u64, reused: u64| {
        json!({"handshakes": handshakes, "handshakes_failed": failed, "session_reuses": reused,
            "no_common_protocol": 0, "no_common_cipher": 0, "handshake_timeout": 0,
            "peer_rejected_cert": 0,
            "verify_failures": {"expired_cert": 0, "revoked_cert": 0, "other": 0}})
    };
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
        "tidegate_tls_handshake_faults_total{reason=\"other\"} 1",
    ] {
        assert!(metrics.lines().any(|known| known == line), "{metrics}");
    }
    assert_eq!(change(&server, "DELETE", "/ssl", "").0, 204);
    assert_eq!(
        get(&server, "/ssl?fields=handshakes"),
        json!({"handshakes": 0})
    );
    // A client without a suite in common.
    let suites = [rustls::crypto::aws_lc_rs::cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256];
    let client = Client::new().version(&rustls::version::TLS12);
    let refused = client.offering(&suites).connect(port);
    assert!(refused.is_err());
    wait_for("a failed handshake", || {
        let told = get(&server, "/ssl");
        told["no_common_cipher"] == 1 && told["handshakes_failed"] == 1
    });
    let certificates = get(&server, "/ssl/certificates");
    let [certificate] = certificates.as_array().unwrap().as_slice() else {
        panic!("{certificates}");
    };
    assert_eq!(certificate["certificate"], file("crt"));
    assert!(certificate["days_left"].as_i64() > Some(0), "{certificate}");
    // The time by OpenSSL's reading of the file.
    let shown = std::process::Command::new("openssl")
        .args(["x509", "-noout", "-enddate", "-dateopt", "iso_8601", "-in"])
        .arg(file("crt"))
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let end = shown
        .trim()
        .trim_start_matches("notAfter=")
        .replace(' ', "T");
    assert_eq!(certificate["not_after"], end);
}

/// How much a cache holds, and may hold where that is bounded.
#[test]
fn caches_show_how_large_they_are() {
    if is_nginx() {
        return;
    }
    let a = behind('a');
    let lines = format!(
        "location /api {{ api write=on; }} location / {{ proxy_pass http://{a}; proxy_cache pages; proxy_cache_valid 1h; }}
[http]
proxy_cache_path pages keys_zone=pages:1m max_size=10m; proxy_cache_path others keys_zone=others:1m;"
    );
    let server = Server::start("", &lines);
    let pages = get(&server, "/http/caches/pages");
    let none = json!({"responses": 0, "bytes": 0});
    let fetched = json!({"responses": 0, "bytes": 0, "responses_written": 0, "bytes_written": 0});
    let shown = json!({"size": 0, "max_size": 10 << 20, "cold": false, "hit": none, "stale": none,
        "updating": none, "revalidated": none, "miss": fetched, "expired": fetched,
        "bypass": fetched, "entries": 0});
    wait_for("the folder", || get(&server, "/http/caches/pages") == shown);
    assert_eq!(pages["max_size"], 10 << 20);
    for _ in 0..3 {
        assert_eq!(server.connect().get("/x").unwrap().status, 200);
    }
    wait_for("an entry", || {
        get(&server, "/http/caches/pages?fields=size")["size"].as_u64() > Some(0)
    });
    let all = get(&server, "/http/caches?fields=size");
    assert_eq!(all["others"], json!({"size": 0}));
    let answered = |kind: &str| get(&server, "/http/caches/pages")[kind]["responses"].clone();
    wait_for("answers", || answered("hit") == 2 && answered("miss") == 1);
    let path = "/http/caches/pages/entries";
    assert_eq!(change(&server, "DELETE", path, "").0, 204);
    assert_eq!(get(&server, "/http/caches/pages")["entries"], 0);
    server.wait_for_log("api: 1 entries of cache \"pages\" are purged");
    assert_eq!(change(&server, "DELETE", "/http/caches/pages", "").0, 204);
    assert_eq!((answered("hit"), answered("miss")), (json!(0), json!(0)));
    assert_eq!(server.connect().get("/x").unwrap().status, 200);
    wait_for("an answer", || answered("miss") == 1);
    let missing = (404, "CacheNotFound".to_owned());
    let path = "/http/caches/none/entries";
    assert_eq!(refused(&server, "DELETE", path, ""), missing);
}

/// Bytes that caches have given, that have come from upstreams, and that have been stored; by
/// entries in files and in memory, which are given at once.
#[test]
fn bytes_of_caches_are_counted() {
    if is_nginx() {
        return;
    }
    let lines = "location /api { api write=on; }
        location /page { return 200 0123456789; }
        location /stored { proxy_pass http://itself/page; proxy_cache files; proxy_cache_valid 1h; }
        location /brief {
            proxy_pass http://itself/page; proxy_cache files; proxy_cache_valid 1s;
            proxy_cache_key brief;
        }
        location /asked {
            proxy_pass http://itself/page; proxy_cache files; proxy_cache_valid 1h;
            proxy_cache_bypass $arg_bypass; proxy_no_cache $arg_unstored; proxy_cache_key asked;
        }
        location /memory {
            proxy_pass http://itself/page; proxy_cache memory; proxy_cache_valid 1h;
        }
[http]
upstream itself { server 127.0.0.1:PORT; }
proxy_cache_path files keys_zone=files:1m;
proxy_cache_path memory:memory keys_zone=memory:1m memory=1m;";
    for engine in engines::lines() {
        let server = Server::start(engine, lines);
        let ask = |path: &str| assert_eq!(server.connect().get(path).unwrap().body.len(), 10);
        let shown = |cache: &str, kind: &str| {
            let shown = &get(&server, &format!("/http/caches/{cache}"))[kind];
            let names = ["responses", "bytes", "responses_written", "bytes_written"];
            names.map(|name| shown[name].as_u64().unwrap_or(9999))
        };
        (0..4).for_each(|_| ask("/stored"));
        ask("/asked");
        ask("/asked?bypass=1");
        ask("/asked?bypass=1&unstored=1");
        ask("/asked");
        wait_for("what has been stored", || {
            shown("files", "miss") == [2, 20, 2, 20] && shown("files", "bypass") == [2, 20, 1, 10]
        });
        assert_eq!(shown("files", "hit"), [4, 40, 9999, 9999]);
        ask("/brief");
        std::thread::sleep(std::time::Duration::from_millis(2100));
        ask("/brief");
        wait_for("what has been stored again", || {
            shown("files", "expired") == [1, 10, 1, 10]
        });
        (0..50).for_each(|_| ask("/memory"));
        wait_for("hits", || shown("memory", "hit") == [49, 490, 9999, 9999]);
        assert_eq!(shown("memory", "miss"), [1, 10, 1, 10]);
        assert_eq!(change(&server, "DELETE", "/http/caches/memory", "").0, 204);
        assert_eq!(shown("memory", "hit"), [0, 0, 9999, 9999]);
        assert_eq!(shown("memory", "miss"), [0, 0, 0, 0]);
        ask("/memory");
        assert_eq!(shown("memory", "hit"), [1, 10, 9999, 9999]);
    }
}

/// How long a server was out because it failed, and since when.
#[test]
fn times_of_outages_are_told() {
    if is_nginx() {
        return;
    }
    let (a, gone) = (
        behind('a'),
        format!("127.0.0.1:{}", support::port::free_port()),
    );
    let server = Server::start(
        "",
        &lines(&format!("server {a}; server {gone} fail_timeout=1s;")),
    );
    let peer = |number: usize| get(&server, "/http/upstreams/u")["peers"][number].clone();
    assert_eq!(
        (&peer(1)["downtime"], &peer(1)["downstart"]),
        (&json!(0), &Value::Null)
    );
    all_by(&server);
    let out = peer(1);
    assert_eq!(out["state"], "unavail");
    let start = out["downstart"].as_str().unwrap().to_owned();
    assert!(
        start.ends_with('Z') && start.len() == "2026-01-01T00:00:00.000Z".len(),
        "{start}"
    );
    std::thread::sleep(std::time::Duration::from_millis(300));
    let later = peer(1);
    assert!(later["downtime"].as_u64() >= Some(200), "{later}");
    // It is out for a second, however late somebody looks.
    std::thread::sleep(std::time::Duration::from_millis(1700));
    let back = peer(1);
    assert_eq!(back["state"], "up");
    let downtime = back["downtime"].as_u64().unwrap();
    assert!((900..1300).contains(&downtime), "{back}");
    assert_eq!(peer(1)["downtime"], downtime);
    // The next failure is another outage, which adds to it.
    all_by(&server);
    std::thread::sleep(std::time::Duration::from_millis(200));
    let again = peer(1);
    assert_eq!(again["state"], "unavail");
    assert!(again["downtime"].as_u64().unwrap() > downtime && again["downstart"] != start);
    assert_eq!(
        (&peer(0)["downtime"], &peer(0)["downstart"]),
        (&json!(0), &Value::Null)
    );
    assert_eq!(change(&server, "DELETE", "/http/upstreams/u", "").0, 204);
    assert!(peer(1)["downtime"].as_u64().unwrap() < 900);
}

/// Statuses, times and bytes of each server; those of an old version have no single statuses.
#[test]
fn answers_of_servers_are_counted() {
    if is_nginx() {
        return;
    }
    let a = behind('a');
    let server = Server::start("", &lines(&format!("server {a};")));
    let peer = || get(&server, "/http/upstreams/u")["peers"][0].clone();
    // Not before anybody has asked for it.
    assert_eq!(by(&server), "a");
    let first = peer();
    assert_eq!(
        (&first["requests"], &first["responses"]),
        (&json!(1), &Value::Null)
    );
    for _ in 0..3 {
        assert_eq!(by(&server), "a");
    }
    let responses =
        json!({"1xx": 0, "2xx": 3, "3xx": 0, "4xx": 0, "5xx": 0, "codes": {"200": 3}, "total": 3});
    wait_for("answers", || peer()["responses"] == responses);
    let told = peer();
    // An answer of 39 bytes, a request that names its host.
    assert_eq!(told["received"], 3 * 39, "{told}");
    assert!(told["sent"].as_u64() > Some(60), "{told}");
    assert!(told["selected"].as_str().unwrap().ends_with('Z'), "{told}");
    let path = "/api/6/http/upstreams/u";
    let old = ask(server.port, "GET", path, "", "").json;
    assert_eq!(old["peers"][0]["responses"]["codes"], Value::Null);
    assert_eq!(old["peers"][0]["responses"]["2xx"], 3);
    assert_eq!(change(&server, "DELETE", "/http/upstreams/u", "").0, 204);
    assert_eq!(peer()["responses"]["total"], 0);
}

/// Threads are what workers are there; there is no license to tell of.
#[test]
fn workers_and_license() {
    if is_nginx() {
        return;
    }
    let server = Server::start_workers(2, "", "location /api { api write=on; }");
    let workers = get(&server, "/workers");
    let all = workers.as_array().unwrap();
    assert_eq!(all.len(), 2, "{workers}");
    for (id, worker) in all.iter().enumerate() {
        assert_eq!(worker["id"], id);
        assert_eq!(worker["pid"], get(&server, "/nginx")["pid"]);
        let path = format!("/workers/{id}?fields=id");
        assert_eq!(get(&server, &path), json!({"id": id}));
    }
    let total = || {
        let told = get(&server, "/workers");
        let workers = told.as_array().unwrap().iter();
        workers
            .map(|worker| worker["http"]["requests"]["total"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert!(total() >= 6, "every request is one of a thread's");
    assert_eq!(change(&server, "DELETE", "/workers", "").0, 204);
    assert_eq!(total(), 1);
    for path in ["/workers/2", "/workers/x"] {
        let missing = (404, "WorkerNotFound".to_owned());
        assert_eq!(refused(&server, "GET", path, ""), missing, "{path}");
        assert_eq!(refused(&server, "DELETE", path, ""), missing, "{path}");
    }
    assert_eq!(get(&server, "/license"), json!({}));
    for path in ["/api/8/workers", "/api/8/license"] {
        assert_eq!(ask(server.port, "GET", path, "", "").status, 404, "{path}");
    }
    let root = ask(server.port, "GET", "/api/4", "", "").json;
    let old = [
        "nginx",
        "processes",
        "connections",
        "slabs",
        "http",
        "stream",
        "ssl",
    ];
    assert_eq!(root, json!(old));
    let process = get(&server, "/processes");
    for name in ["memory", "descriptors", "descriptors_max"] {
        assert!(process[name].as_u64() > Some(3), "{process}");
    }
}

/// What a resolver with a zone has asked and been told, over a reload.
#[test]
fn questions_of_resolvers_are_counted() {
    if is_nginx() {
        return;
    }
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut question) {
            // NXDOMAIN (3) to all that begins with "x", else SERVFAIL (2).
            let mut answer = question[..length].to_vec();
            let code = if answer.get(13) == Some(&b'x') { 3 } else { 2 };
            answer[2] |= 0x80;
            answer[3] = 0x80 | code;
            let _ = socket.send_to(&answer, from);
        }
    });
    let lines = format!(
        "location /api {{ api write=on; }} location /x {{ proxy_pass http://x.example$uri; }} location /y {{ proxy_pass http://y.example$uri; }}
[http]
resolver 127.0.0.1:{port} ipv6=off valid=1s status_zone=names;"
    );
    let server = Server::start("", &lines);
    for path in ["/x", "/y"] {
        assert_eq!(server.connect().get(path).unwrap().status, 502, "{path}");
    }
    let expected = json!({"requests": {"name": 2, "srv": 0},
        "responses": {"noerror": 0, "servfail": 1, "nxdomain": 1, "notimp": 0, "refused": 0, "timedout": 0}});
    assert_eq!(get(&server, "/resolvers"), json!({"names": expected}));
    server.reload(&lines);
    wait_for("the new generation", || {
        get(&server, "/nginx")["generation"].as_u64() == Some(2)
    });
    assert_eq!(get(&server, "/resolvers/names"), expected, "counters go on");
    assert_eq!(change(&server, "DELETE", "/resolvers/names", "").0, 204);
    let told = get(&server, "/resolvers/names?fields=requests");
    assert_eq!(told, json!({"requests": {"name": 0, "srv": 0}}));
    let missing = (404, "ResolverZoneNotFound".to_owned());
    for method in ["GET", "DELETE"] {
        assert_eq!(refused(&server, method, "/resolvers/none", ""), missing);
    }
    let old = ask(server.port, "GET", "/api/4/resolvers", "", "");
    assert_eq!(old.status, 404);
}
