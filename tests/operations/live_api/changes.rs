//! Servers that are changed while requests are served, and what of that lasts.

use super::*;

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

pub(super) fn state_of(group: &str) -> String {
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

/// No rule of access is asked about a subrequest: it may look, and changes nothing.
#[test]
fn subrequests_change_nothing() {
    if is_nginx() {
        return;
    }
    let lines = "location /api {
            api write=on; allow 127.0.0.1; deny all; log_subrequest on; access_log logs/api.log;
        }
        location /copied { mirror /api/9/http/upstreams/u/servers/0; proxy_pass http://itself/taken; }
        location /taken { return 204; }
[http]
upstream itself { server 127.0.0.1:PORT; }
upstream u { zone u 64k; server 127.0.0.1:9; server 127.0.0.1:10; }";
    let server = Server::start("", lines);
    let servers = "/http/upstreams/u/servers";
    for (method, body) in [("DELETE", ""), ("PATCH", r#"{"down":true}"#)] {
        assert_eq!(ask(server.port, method, "/copied", "", body).status, 204);
        server.wait_for_line("api.log", &format!("\"{method} /copied HTTP/1.1\" 403 "));
        let shown = get(&server, servers);
        let downs = shown
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["down"].clone());
        assert_eq!(Vec::from_iter(downs), [false, false], "{method}");
    }
    let path = format!("{servers}/0");
    assert_eq!(change(&server, "PATCH", &path, r#"{"down":true}"#).0, 200);
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
