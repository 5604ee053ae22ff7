//! `keyval`: pairs of keys and values.

use super::*;

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
