//! Servers that are added by name: their addresses are looked up from then on, and changes of the
//! name are changes of all of them.

use std::time::Duration;

use support::name_server::NameServer;
use support::port::free_port;

use super::changes::state_of;
use super::*;

/// Servers at 127.0.0.2 to 4, which say so, and a group `u` with these lines and a resolver.
fn lines_with(name_server: &NameServer, group: &str) -> String {
    let at = |last: u8| format!("server {{ listen 127.0.0.{last}:PORT; return 200 {last}; }}\n");
    format!(
        "{LOCATIONS}\n[http]\n{}
         upstream u {{
             zone u 64k; resolver 127.0.0.1:{} valid=1s ipv6=off; resolver_timeout 1s; {group}
         }}",
        (2..5).map(at).collect::<String>(),
        name_server.port
    )
}

/// A folder that the workers' user may write to, and the line for a file in it.
fn state_line(name: &str) -> String {
    let folder = std::env::temp_dir().join(format!(
        "tidegate-names-{name}-{}-{:?}",
        std::process::id(),
        thread::current().id()
    ));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    format!("state {}/servers;", folder.display())
}

const SERVERS: &str = "/http/upstreams/u/servers";

/// Adds a server, whose number it returns.
fn add(server: &Server, body: &Value) -> u64 {
    let (status, json) = change(server, "POST", SERVERS, &body.to_string());
    assert_eq!(status, 201, "{json}");
    json["id"].as_u64().unwrap()
}

fn wait_for_answers(server: &Server, expected: &str) {
    wait_for(expected, || all_by(server) == expected);
}

/// The servers of the group that a name was looked up for, as they are set.
fn children(server: &Server, parent: u64) -> Vec<Value> {
    let all = get(server, SERVERS);
    let children = all.as_array().unwrap().iter();
    let parent = json!(parent.to_string());
    let children = children.filter(|one| one["parent"] == parent);
    children.cloned().collect()
}

fn wait_for_generation(server: &Server, generation: u64) {
    wait_for("the new generation", || {
        get(server, "/nginx")["generation"].as_u64() == Some(generation)
    });
}

fn a_name_stands_for_its_addresses(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let name_server = NameServer::start();
    name_server.says(&[2, 3]);
    let state = state_line("changes");
    let group = lines_with(&name_server, &state);
    let server = Server::start(engine, &group);
    let port = server.port;
    assert_eq!(all_by(&server), "502");
    let name = format!("peers.test:{port}");
    let body = json!({"server": name, "weight": 3, "max_fails": 0});
    let (status, shown) = change(&server, "POST", SERVERS, &body.to_string());
    let expected = json!({"id": 0, "server": name, "weight": 3, "max_conns": 0, "max_fails": 0,
        "fail_timeout": "10s", "slow_start": "0s", "route": "", "backup": false, "down": false});
    assert_eq!((status, &shown), (201, &expected));
    wait_for_answers(&server, "23");
    let all = get(&server, SERVERS);
    assert_eq!(all.as_array().unwrap().len(), 3);
    assert_eq!(all[0], expected);
    let mut child = expected.clone();
    child["id"] = json!(1);
    child["server"] = json!(format!("127.0.0.2:{port}"));
    child["parent"] = json!("0");
    child["host"] = json!("peers.test");
    assert_eq!(all[1], child);
    let one = format!("{SERVERS}/0");
    assert_eq!(get(&server, &one), expected);
    assert_eq!(get(&server, &format!("{SERVERS}/1")), child);
    let peers = get(&server, "/http/upstreams/u")["peers"].clone();
    assert_eq!(
        peers.as_array().unwrap().len(),
        2,
        "only addresses are asked"
    );
    assert_eq!(peers[0]["name"], json!(name));
    // Its addresses are looked up again and again.
    name_server.says(&[3, 4]);
    wait_for_answers(&server, "34");
    // A name server that fails takes nothing away.
    name_server.answers().code = 2;
    server.wait_for_log("peers.test could not be resolved (2: Server failure)");
    assert_eq!(all_by(&server), "34");
    // What is changed of the name is changed of every address, of later ones too.
    let changes = json!({"weight": 5, "max_conns": 9, "route": "r", "server": name});
    let (status, json) = change(&server, "PATCH", &one, &changes.to_string());
    assert_eq!(
        (status, &json["weight"], &json["max_conns"], &json["route"]),
        (200, &json!(5), &json!(9), &json!("r"))
    );
    for child in children(&server, 0) {
        let set = (&child["weight"], &child["max_conns"], &child["route"]);
        assert_eq!(set, (&json!(5), &json!(9), &json!("r")));
    }
    assert_eq!(change(&server, "PATCH", &one, r#"{"down":true}"#).0, 200);
    assert_eq!(all_by(&server), "502");
    name_server.says(&[2]);
    wait_for("another address", || {
        let children = children(&server, 0);
        children.len() == 1 && children[0]["server"] == format!("127.0.0.2:{port}")
    });
    let child = children(&server, 0).remove(0);
    assert_eq!(
        (&child["weight"], &child["route"], &child["down"]),
        (&json!(5), &json!("r"), &json!(true))
    );
    assert_eq!(all_by(&server), "502");
    assert_eq!(change(&server, "PATCH", &one, r#"{"down":false}"#).0, 200);
    assert_eq!(all_by(&server), "2");
    // By the description of the API.
    let child = format!("{SERVERS}/{}", child["id"]);
    let immutable = (400, "UpstreamServerImmutable".to_owned());
    for (method, path, body, expected) in [
        ("DELETE", &child, "", &immutable),
        ("PATCH", &child, r#"{"server":"127.0.0.9:9"}"#, &immutable),
        ("PATCH", &child, r#"{"server":"peers.test:9"}"#, &immutable),
        ("PATCH", &one, r#"{"server":"127.0.0.9:9"}"#, &immutable),
        ("PATCH", &one, r#"{"server":"peers.test:9"}"#, &immutable),
        (
            "PATCH",
            &child,
            r#"{"weight":4}"#,
            &(400, "UpstreamServerWeightImmutable".to_owned()),
        ),
        (
            "PATCH",
            &one,
            r#"{"service":"http"}"#,
            &(400, "UpstreamConfFormatError".to_owned()),
        ),
        (
            "POST",
            &SERVERS.to_owned(),
            &format!(r#"{{"server":"PEERS.test.:{port}"}}"#),
            &(409, "EntryExists".to_owned()),
        ),
        (
            "POST",
            &SERVERS.to_owned(),
            r#"{"server":"peers..test:80"}"#,
            &(400, "UpstreamBadAddress".to_owned()),
        ),
        (
            "POST",
            &SERVERS.to_owned(),
            r#"{"server":"peers.test:80","service":"http"}"#,
            &(400, "UpstreamBadAddress".to_owned()),
        ),
        (
            "POST",
            &SERVERS.to_owned(),
            r#"{"server":"127.0.0.1","service":"http"}"#,
            &(400, "UpstreamBadAddress".to_owned()),
        ),
    ] {
        let found = refused(&server, method, path, body);
        assert_eq!(&found, expected, "{method} {path} {body}");
    }
    assert_eq!(change(&server, "PATCH", &child, r#"{"drain":true}"#).0, 200);
    assert_eq!(all_by(&server), "502");
    // It is written down by its name.
    let line = format!("server {name} weight=5 max_conns=9 max_fails=0 route=r resolve;\n");
    assert_eq!(state_of(&state), line);
    // A reload goes on with the addresses, even where the name server says nothing.
    name_server.answers().is_silent = true;
    let before = get(&server, SERVERS);
    server.reload(&group);
    wait_for_generation(&server, 2);
    assert_eq!(get(&server, SERVERS), before, "numbers as well");
    assert_eq!(all_by(&server), "502", "it still drains");
    let serves = r#"{"drain":false}"#;
    assert_eq!(change(&server, "PATCH", &child, serves).0, 200);
    assert_eq!(all_by(&server), "2");
    // A new worker process has to ask anew.
    let workers = server.workers();
    support::signal(workers[0], "KILL");
    wait_for("another worker", || {
        let now = server.workers();
        let is_up = now.len() == 1 && now != workers;
        is_up && support::Connection::open(server.port).is_ok()
    });
    assert_eq!(all_by(&server), "502");
    assert_eq!(get(&server, SERVERS)[0]["server"], json!(name));
    name_server.says(&[4]);
    wait_for_answers(&server, "4");
    // With the name go all its addresses, and nobody asks for them any more.
    let id = get(&server, SERVERS)[0]["id"].clone();
    let (status, json) = change(&server, "DELETE", &format!("{SERVERS}/{id}"), "");
    assert_eq!((status, json), (200, json!([])));
    assert_eq!(all_by(&server), "502");
    assert_eq!(state_of(&state), "");
    thread::sleep(Duration::from_millis(100));
    let asked = name_server.asked("peers.test");
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(name_server.asked("peers.test"), asked);
}

support::test_on_each_engine!(a_name_stands_for_its_addresses);

fn a_name_may_be_added_before_it_means_anything(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let name_server = NameServer::start();
    name_server.answers().is_silent = true;
    let server = Server::start(engine, &lines_with(&name_server, "server 127.0.0.2:PORT;"));
    let port = server.port;
    assert_eq!(all_by(&server), "2");
    let id = add(
        &server,
        &json!({"server": format!("silent.test:{port}"), "backup": true}),
    );
    assert_eq!(id, 1);
    server.wait_for_log("silent.test could not be resolved (110: Operation timed out)");
    assert_eq!(all_by(&server), "2");
    assert!(children(&server, id).is_empty());
    // One that is known not to be there is looked up again as well.
    name_server.says(&[]);
    name_server.answers().code = 3;
    add(&server, &json!({"server": format!("absent.test:{port}")}));
    server.wait_for_log("absent.test could not be resolved (3: Host not found)");
    assert_eq!(all_by(&server), "2");
    let mut known = std::collections::BTreeMap::new();
    known.insert("silent.test".to_owned(), vec![3]);
    known.insert("absent.test".to_owned(), vec![4]);
    (name_server.answers().by_name, name_server.answers().code) = (known, 0);
    wait_for_answers(&server, "24");
    wait_for("the backup", || children(&server, id).len() == 1);
    assert_eq!(children(&server, id)[0]["backup"], true);
    // A reload says what it takes back, since nothing has written it down.
    server.reload(&lines_with(&name_server, "server 127.0.0.2:PORT;"));
    for name in ["silent.test", "absent.test"] {
        server.wait_for_log(&format!(
            "server {name}:{port} of upstream \"u\" is gone, which the api had added: \
             there is no \"state\" file"
        ));
    }
    wait_for_answers(&server, "2");
}

support::test_on_each_engine!(a_name_may_be_added_before_it_means_anything);

/// Names of the configuration are changed as others are, until a reload.
#[test]
fn a_configured_name_is_changed_until_a_reload() {
    if is_nginx() {
        return;
    }
    let name_server = NameServer::start();
    name_server.says(&[2, 3]);
    let group = lines_with(&name_server, "server peers.test:PORT resolve;");
    let server = Server::start(engines::EPOLL, &group);
    wait_for_answers(&server, "23");
    let one = format!("{SERVERS}/0");
    assert_eq!(change(&server, "PATCH", &one, r#"{"weight":2}"#).0, 200);
    server.reload(&group);
    server.wait_for_log("is as configured, which the api had changed");
    wait_for_generation(&server, 2);
    assert_eq!(get(&server, &one)["weight"], 1);
    assert_eq!(change(&server, "DELETE", &one, "").0, 200);
    assert_eq!(all_by(&server), "502");
    server.reload(&group);
    let name = format!("peers.test:{}", server.port);
    server.wait_for_log(&format!(
        "server {name} of upstream \"u\" is back, which the api had removed"
    ));
    wait_for_answers(&server, "23");
}

#[test]
fn a_service_is_added_by_name() {
    if is_nginx() {
        return;
    }
    let name_server = NameServer::start();
    let state = state_line("service");
    let server = Server::start(engines::EPOLL, &lines_with(&name_server, &state));
    name_server.says(&[3]);
    name_server.answers().services = vec![(1, server.port, "a.peers.test")];
    let id = add(&server, &json!({"server": "peers.test", "service": "http"}));
    let one = format!("{SERVERS}/{id}");
    let shown = get(&server, &one);
    assert_eq!(
        (&shown["server"], &shown["service"]),
        (&json!("peers.test"), &json!("http"))
    );
    wait_for_answers(&server, "3");
    assert_eq!(
        state_of(&state),
        "server peers.test resolve service=http;\n"
    );
    let same = r#"{"service":"http","server":"peers.test","weight":1,"max_fails":2}"#;
    assert_eq!(change(&server, "PATCH", &one, same).0, 200);
    assert_eq!(children(&server, id)[0]["max_fails"], 2);
    assert_eq!(
        refused(&server, "PATCH", &one, r#"{"weight":2}"#),
        (400, "UpstreamServerWeightImmutable".to_owned())
    );
}

#[test]
fn a_server_of_stream_is_added_by_name() {
    if is_nginx() {
        return;
    }
    let name_server = NameServer::start();
    let (port, other) = (free_port(), free_port());
    let stream = format!(
        "stream {{ upstream s {{ zone s 64k; resolver 127.0.0.1:{} valid=1s ipv6=off; }} \
         upstream none {{ zone none 64k; server 127.0.0.1:9; }} \
         server {{ listen 127.0.0.1:{port}; proxy_pass s; }} \
         server {{ listen 127.0.0.2:{other}; return two; }} \
         server {{ listen 127.0.0.3:{other}; return three; }} }}",
        name_server.port
    )
    .replace(
        "upstream s { zone",
        "upstream s { server 127.0.0.9:9 down; zone",
    );
    let server = Server::start(
        "",
        &format!("[main]\n{stream}\n{LOCATIONS}\n[http]\nupstream u {{ server 127.0.0.1:9; }}"),
    );
    let servers = "/stream/upstreams/s/servers";
    assert_eq!(
        refused(&server, "POST", servers, r#"{"server":"peers.test"}"#),
        (400, "UpstreamBadAddress".to_owned())
    );
    let body = format!(r#"{{"server":"peers.test:{other}"}}"#);
    assert_eq!(
        refused(&server, "POST", "/stream/upstreams/none/servers", &body),
        (400, "UpstreamConfNoResolver".to_owned())
    );
    name_server.says(&[2]);
    let (status, json) = change(&server, "POST", servers, &body);
    assert_eq!((status, &json["id"]), (201, &json!(1)));
    let said = || {
        let mut text = String::new();
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.read_to_string(&mut text);
        text
    };
    wait_for("the server", || said() == "two");
    name_server.says(&[3]);
    wait_for("the other server", || said() == "three");
    assert_eq!(
        change(&server, "DELETE", &format!("{servers}/1"), "").0,
        200
    );
    assert_eq!(said(), "");
}

/// Names come and go with many who change them at once, some of them amid reloads: what is in force
/// in the end is what is written, and is looked up.
#[test]
fn a_hundred_names_at_once() {
    if is_nginx() {
        return;
    }
    let name_server = NameServer::start();
    name_server.says(&[2]);
    let state = state_line("many");
    let group = lines_with(&name_server, &state);
    let server = Server::start_workers(2, "", &group);
    let port = server.port;
    let writers: Vec<_> = (0..100)
        .map(|number| {
            thread::spawn(move || {
                let servers = "/api/9/http/upstreams/u/servers";
                let body = format!(r#"{{"server":"name-{number}.test:{port}"}}"#);
                let answer = ask(port, "POST", servers, "", &body);
                assert_eq!(answer.status, 201, "{}", answer.json);
                let id = answer.json["id"].as_u64().unwrap();
                let path = format!("{servers}/{id}");
                let answer = if number % 2 == 0 {
                    ask(port, "DELETE", &path, "", "")
                } else {
                    ask(port, "PATCH", &path, "", r#"{"weight":2}"#)
                };
                assert_eq!(answer.status, 200, "{}", answer.json);
                id
            })
        })
        .collect();
    server.reload(&group);
    wait_for_generation(&server, 2);
    server.reload(&group);
    let ids = writers.into_iter().map(|writer| writer.join().unwrap());
    let ids: BTreeSet<u64> = ids.collect();
    assert_eq!(ids.len(), 100, "no number twice");
    wait_for_generation(&server, 3);
    wait_for("every address", || {
        let peers = &get(&server, "/http/upstreams/u")["peers"];
        peers.as_array().unwrap().len() == 50
    });
    let all = get(&server, SERVERS);
    assert_eq!(all.as_array().unwrap().len(), 100);
    for one in all.as_array().unwrap() {
        assert_eq!(one["weight"], 2);
    }
    let written: BTreeSet<String> = state_of(&state).lines().map(str::to_owned).collect();
    let expected = (0..100).filter(|number| number % 2 == 1);
    let line = |number| format!("server name-{number}.test:{port} weight=2 resolve;");
    assert_eq!(written, expected.map(line).collect());
    assert_eq!(all_by(&server), "2");
    // Those that are gone are looked up no more.
    let asked = name_server.asked("name-0.test");
    wait_for("other lookups", || name_server.asked("name-1.test") > 4);
    assert_eq!(name_server.asked("name-0.test"), asked);
}
