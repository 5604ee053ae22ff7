//! `metrics` from outside, on every engine: what is counted where, in both formats, over reloads.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use support::{Connection, PATIENCE, Response, Server, is_nginx};

const LINES: &str = "server_name site;
    location = /metrics { metrics; }
    location = /prometheus { metrics prometheus; }
    location = /json { metrics json; }
    location /a\"b { return 404; }
    location /refused { deny all; }
    location ~ \\.(txt)$ { }
    location /slow { limit_rate 50k; }";

/// What every sample of a scope carries.
fn scope(server: &Server, location: &str) -> String {
    format!(
        "server=\"site\",listen=\"127.0.0.1:{}\",location=\"{location}\"",
        server.port
    )
}

/// The samples of Prometheus text, after a look at its form: HELP and TYPE before the samples of
/// each family, no family twice.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let (mut family, mut families) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            family = rest.split(' ').next().unwrap().to_owned();
            assert!(!families.contains(&family), "{family} twice");
            families.push(family.clone());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, family);
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
        } else {
            assert!(line.starts_with(&family), "{line} in {family}");
            let (name, number) = line.rsplit_once(' ').unwrap();
            let known = samples.insert(name.to_owned(), number.parse().unwrap());
            assert_eq!(known, None, "{name} twice");
        }
    }
    samples
}

fn text(response: &Response) -> String {
    String::from_utf8(response.body.clone()).unwrap()
}

fn numbers(connection: &mut Connection) -> BTreeMap<String, f64> {
    samples(&text(&connection.get("/prometheus").unwrap()))
}

fn requests(server: &Server, location: &str, class: &str) -> String {
    let scope = scope(server, location);
    format!("tidegate_http_requests_total{{{scope},status=\"{class}\"}}")
}

fn requests_are_counted_by_scope_and_over_reloads(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let server = Server::start(engine, LINES);
    server.write("file.txt", &[b'x'; 1000]);
    let mut connection = server.connect();
    // The first ones go the long way, later ones may be answered from memory.
    std::thread::sleep(Duration::from_millis(10));
    for _ in 0..20 {
        assert_eq!(connection.get("/file.txt").unwrap().status, 200);
    }
    assert_eq!(connection.get("/a%22b").unwrap().status, 404);
    assert_eq!(connection.get("/refused").unwrap().status, 403);
    assert_eq!(connection.get("/none").unwrap().status, 404);

    let check = |numbers: &BTreeMap<String, f64>, files: f64| {
        let txt = "~ \\\\.(txt)$";
        assert_eq!(numbers[&requests(&server, txt, "2xx")], files);
        assert_eq!(numbers[&requests(&server, "/a\\\"b", "4xx")], 1.0);
        assert_eq!(numbers[&requests(&server, "/refused", "4xx")], 1.0);
        assert_eq!(numbers[&requests(&server, "", "4xx")], 1.0, "no location");
        let scope = scope(&server, txt);
        let of = |name: &str| numbers[&format!("tidegate_http_{name}{{{scope}}}")];
        assert!(of("sent_bytes_total") > files * 1000.0);
        assert!(of("received_bytes_total") > files * 30.0);
        assert_eq!(of("request_duration_seconds_count"), files);
        let bucket = |bound: &str| {
            let name = "tidegate_http_request_duration_seconds_bucket";
            numbers[&format!("{name}{{{scope},le=\"{bound}\"}}")]
        };
        assert_eq!(bucket("+Inf"), files);
        assert!(bucket("0.0001") <= bucket("1") && bucket("1") <= bucket("60"));
        assert_eq!(numbers["tidegate_panics_total"], 0.0);
    };
    let before = numbers(&mut connection);
    check(&before, 20.0);
    assert_eq!(before["tidegate_generation"], 1.0);

    server.reload(&format!("{LINES} location /new {{ return 204; }}"));
    let start = Instant::now();
    let mut connection = server.connect();
    while numbers(&mut connection)["tidegate_generation"] < 2.0 {
        assert!(start.elapsed() < PATIENCE, "no reload");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(connection.get("/file.txt").unwrap().status, 200);
    check(&numbers(&mut connection), 21.0);
}

support::test_on_each_engine!(requests_are_counted_by_scope_and_over_reloads);

fn connections_are_counted_by_what_they_do(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let server = Server::start(engine, LINES);
    server.write("slow", &[b'x'; 100_000]);
    let mut connection = server.connect();
    let accepted = numbers(&mut connection)["tidegate_connections_accepted_total"];
    let _idle = server.connect();
    let mut slow = server.connect();
    slow.send("/slow", "").unwrap();
    let start = Instant::now();
    loop {
        let numbers = numbers(&mut connection);
        let state = |name: &str| numbers[&format!("tidegate_connections{{state=\"{name}\"}}")];
        let states = (state("reading"), state("writing"), state("waiting"));
        if numbers["tidegate_connections_active"] == 3.0 && states == (0.0, 2.0, 1.0) {
            let now = numbers["tidegate_connections_accepted_total"];
            assert_eq!(now, accepted + 2.0);
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{states:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

support::test_on_each_engine!(connections_are_counted_by_what_they_do);

fn the_format_is_fixed_or_negotiated(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let server = Server::start(engine, LINES);
    let mut connection = server.connect();
    let mut ask = |path: &str, headers: &str| {
        connection.send(path, headers).unwrap();
        connection.receive(Duration::ZERO).unwrap()
    };
    let prometheus = "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n";
    let json = "Content-Type: application/json\r\n";
    let accept = "Accept: text/html, application/json;q=0.9\r\n";
    for (path, headers, wanted) in [
        ("/metrics", "", prometheus),
        ("/metrics", accept, json),
        ("/metrics?format=json", "", json),
        ("/metrics?a=b&format=prometheus", accept, prometheus),
        ("/metrics?format=other", "", prometheus),
        ("/prometheus?format=json", accept, prometheus),
        ("/json", "Accept: text/plain\r\n", json),
    ] {
        let response = ask(path, headers);
        assert!(response.head.contains(wanted), "{path}: {}", response.head);
        let body = text(&response);
        assert_eq!(body.starts_with('{'), wanted == json, "{path}");
    }
    let body = text(&ask("/json", ""));
    for part in [
        "\"connections\":{\"accepted\":",
        "\"servers\":[{\"server\":\"site\",\"listen\":\"127.0.0.1:",
        "{\"location\":\"= /json\",\"requests\":1,\"statuses\":{\"other\":0,\"1xx\":0,\"2xx\":1,",
    ] {
        assert!(body.contains(part), "no {part} in {body}");
    }
    assert_eq!(
        body.matches(['{', '[']).count(),
        body.matches(['}', ']']).count()
    );
}

support::test_on_each_engine!(the_format_is_fixed_or_negotiated);

/// How servers of groups stand, what they have been given and what their checks have come to.
fn servers_of_groups_are_told_by_their_states(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let [well, ill, gone] = [(); 3].map(|()| support::port::free_port());
    let lines = |checks: &str| {
        format!(
            "location = /prometheus {{ metrics prometheus; }} location = /json {{ metrics json; }}
             location / {{ proxy_pass http://u; {checks} }}
             location /v/ {{ proxy_pass http://v; }}
             [http]
             upstream u {{ zone uz 64k; server 127.0.0.1:{well} weight=3; server 127.0.0.1:{ill}; server 127.0.0.1:1 down;
                 server 127.0.0.1:2 drain; server 127.0.0.1:{well} backup; }}
             upstream v {{ server 127.0.0.1:{gone} fail_timeout=1m id=7; server 127.0.0.1:{well}; }}
             server {{ listen 127.0.0.1:{ill}; return 500 ill; }}
             server {{ listen 127.0.0.1:{well}; return 200 well; }}"
        )
    };
    let [well, ill, gone] = [well, ill, gone].map(|port| format!("127.0.0.1:{port}"));
    let name = |name: &str, group: &str, server: &str, more: &str| {
        let peer = server.replace(" (2)", "");
        let id = if server == gone { ",id=\"7\"" } else { "" };
        format!(
            "tidegate_upstream_{name}{{upstream=\"{group}\",server=\"{server}\",peer=\"{peer}\"{id}{more}}}"
        )
    };
    let state = |numbers: &BTreeMap<String, f64>, group: &str, server: &str| -> &'static str {
        let states = ["up", "down", "unavail", "checking", "unhealthy", "draining"];
        let mut set = states.into_iter().filter(|state| {
            let more = format!(",state=\"{state}\"");
            numbers[&name("server_state", group, server, &more)] == 1.0
        });
        let found = set.next().expect("a state");
        assert_eq!(set.next(), None);
        found
    };
    let server = Server::start(engine, &lines("health_check interval=20ms fails=2;"));
    let mut connection = server.connect();
    let start = Instant::now();
    while state(&numbers(&mut connection), "u", &ill) != "unhealthy" {
        assert!(start.elapsed() < PATIENCE, "unhealthy");
        std::thread::sleep(Duration::from_millis(5));
    }
    for path in ["/", "/", "/", "/v/", "/v/"] {
        assert_eq!(text(&connection.get(path).unwrap()), "well");
    }
    let all = numbers(&mut connection);
    let states = [&*well, "127.0.0.1:1", "127.0.0.1:2"].map(|server| state(&all, "u", server));
    assert_eq!(states, ["up", "down", "unhealthy"]);
    assert_eq!(state(&all, "v", &gone), "unavail");
    assert_eq!(state(&all, "v", &well), "up");
    let number =
        |what: &str, group: &str, server: &str| all.get(&name(what, group, server, "")).copied();
    assert_eq!(number("requests_total", "u", &well), Some(3.0));
    assert_eq!(
        number("requests_total", "u", &format!("{well} (2)")),
        Some(0.0)
    );
    assert_eq!(number("requests_active", "u", &well), Some(0.0));
    assert_eq!(number("requests_total", "v", &gone), Some(1.0));
    assert_eq!(number("fails_total", "v", &gone), Some(1.0));
    assert_eq!(number("unavailable_total", "v", &gone), Some(1.0));
    assert_eq!(number("unavailable_total", "v", &well), Some(0.0));
    let (checks, fails) = (
        number("health_checks_total", "u", &ill),
        number("health_check_fails_total", "u", &ill),
    );
    assert!(
        checks >= Some(2.0) && checks == fails,
        "{checks:?} {fails:?}"
    );
    assert_eq!(number("unhealthy_total", "u", &ill), Some(1.0));
    assert!(number("health_checks_total", "u", &well) >= Some(1.0));
    assert_eq!(number("health_check_fails_total", "u", &well), Some(0.0));
    assert_eq!(number("health_checks_total", "u", "127.0.0.1:1"), Some(0.0));
    assert_eq!(
        number("health_checks_total", "v", &well),
        None,
        "no checks are made"
    );
    let json = text(&connection.get("/json").unwrap());
    for part in [
        format!(
            "\"upstreams\":[{{\"upstream\":\"u\",\"zone\":\"uz\",\"servers\":[{{\"server\":\"{well}\",\"peer\":\"{well}\",\"backup\":false,\"weight\":3,\"state\":\"up\",\"active\":0,\"requests\":3,\"fails\":0,\"unavail\":0,\"health_checks\":{{\"checks\":"
        ),
        "\"backup\":true".to_owned(),
        format!(
            "{{\"upstream\":\"v\",\"servers\":[{{\"server\":\"{gone}\",\"peer\":\"{gone}\",\"id\":7,\"backup\":false,\"weight\":1,\"state\":\"unavail\",\"active\":0,\"requests\":1,\"fails\":1,\"unavail\":1}}"
        ),
    ] {
        assert!(json.contains(&part), "no {part} in {json}");
    }

    // A reload without checks forgets what they have found, and nothing else; and one has to
    // pass where that is mandatory.
    let reload = |generation: f64, checks: &str| {
        server.reload(&lines(checks));
        let mut connection = server.connect();
        while numbers(&mut connection)["tidegate_generation"] < generation {
            std::thread::sleep(Duration::from_millis(10));
        }
        connection
    };
    let all = numbers(&mut reload(2.0, ""));
    assert_eq!(state(&all, "u", &ill), "up");
    assert_eq!(state(&all, "u", "127.0.0.1:2"), "draining");
    assert_eq!(all[&name("requests_total", "u", &well, "")], 3.0);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let all = numbers(&mut reload(
        3.0,
        &format!("health_check mandatory port={port};"),
    ));
    assert_eq!(state(&all, "u", &well), "checking");
}

support::test_on_each_engine!(servers_of_groups_are_told_by_their_states);

/// What one has alarms for: reloads that fail, certificates that end, servers that answer with
/// errors, refusals, and what the process takes.
#[test]
fn what_alarms_are_made_of() {
    if is_nginx() {
        return;
    }
    let file = |end: &str| format!("{}/tests/tls/ecdsa.{end}", env!("CARGO_MANIFEST_DIR"));
    let secure = support::port::free_port();
    let behind = support::port::free_port();
    let lines = format!(
        "location = /prometheus {{ metrics prometheus; }}
location = /json {{ metrics json; }}
location /limited {{ limit_req zone=rates; return 200 x; }}
location /files {{ limit_req zone=rates; }}
location /u {{ proxy_pass http://u; }}
[http]
limit_req_zone $server_port zone=rates:1m rate=1r/m;
upstream u {{ server 127.0.0.1:{behind}; }}
server {{ listen 127.0.0.1:{behind}; location /u/ok {{ return 200 ok; }} }}
server {{ listen 127.0.0.1:{secure} ssl; ssl_certificate {}; ssl_certificate_key {}; }}",
        file("crt"),
        file("key")
    );
    let server = Server::start("", &lines);
    let mut connection = server.connect();
    let now = numbers(&mut connection);
    let one = |now: &BTreeMap<String, f64>, name: &str| {
        *now.get(name)
            .unwrap_or_else(|| panic!("no {name} in {now:#?}"))
    };
    let wall = std::time::SystemTime::now();
    let wall = wall
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    assert!((wall - one(&now, "process_start_time_seconds")).abs() < 120.0);
    assert!(one(&now, "process_resident_memory_bytes") > 1e6);
    assert!(one(&now, "process_open_fds") >= 5.0);
    assert!(one(&now, "process_max_fds") > one(&now, "process_open_fds"));
    let reloaded = "tidegate_config_last_reload_success_timestamp_seconds";
    assert!((wall - one(&now, reloaded)).abs() < 120.0);
    assert_eq!(one(&now, "tidegate_config_last_reload_successful"), 1.0);
    let certificate = format!(
        "tidegate_tls_certificate_expiry_timestamp_seconds{{certificate=\"{}\",name=\"localhost\"}}",
        file("crt")
    );
    let ends = now.iter().find(|(name, _)| {
        name.starts_with("tidegate_tls_certificate_expiry") && name.contains(&file("crt"))
    });
    assert!(
        ends.is_some_and(|(_, ends)| *ends > wall),
        "{certificate}: {now:#?}"
    );

    for (path, status) in [
        ("/u/ok", 200),
        ("/u/none", 404),
        ("/files", 404),
        ("/files", 503),
    ] {
        assert_eq!(connection.get(path).unwrap().status, status, "{path}");
    }
    let now = numbers(&mut connection);
    let peer = format!("upstream=\"u\",server=\"127.0.0.1:{behind}\",peer=\"127.0.0.1:{behind}\"");
    for (name, expected) in [
        (format!("tidegate_upstream_responses_total{{{peer},status=\"200\"}}"), 1.0),
        (format!("tidegate_upstream_responses_total{{{peer},status=\"404\"}}"), 1.0),
        (format!("tidegate_upstream_response_duration_seconds_count{{{peer}}}"), 2.0),
        (
            "tidegate_limit_requests_total{directive=\"limit_req\",zone=\"rates\",outcome=\"rejected\"}"
                .to_owned(),
            1.0,
        ),
    ] {
        assert_eq!(one(&now, &name), expected, "{name}");
    }

    // A mistake that the master finds, then none.
    let failures = "tidegate_config_reloads_total{result=\"failure\"}";
    server.reload(&format!("{lines}\nno_such_directive on;"));
    let begun = Instant::now();
    while one(&numbers(&mut connection), failures) != 1.0 {
        assert!(begun.elapsed() < PATIENCE, "the failure is not told");
        std::thread::sleep(Duration::from_millis(20));
    }
    let now = numbers(&mut connection);
    assert_eq!(one(&now, "tidegate_config_last_reload_successful"), 0.0);
    server.reload(&lines);
    while one(
        &numbers(&mut connection),
        "tidegate_config_last_reload_successful",
    ) != 1.0
    {
        assert!(begun.elapsed() < PATIENCE, "the reload is not told");
        std::thread::sleep(Duration::from_millis(20));
    }
    let now = numbers(&mut connection);
    assert_eq!(
        one(&now, "tidegate_config_reloads_total{result=\"success\"}"),
        2.0
    );
    assert_eq!(one(&now, failures), 1.0);
    let json = connection.get("/json").unwrap().body;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["config"]["failed"], 1);
    assert_eq!(json["limits"][0]["rejected"], 1);
}
