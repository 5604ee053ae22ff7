//! What `api` shows of `stream`: sessions by zones, pairs of keys and values, limits. nginx has the
//! API in NGINX Plus alone; the fields are those of its description.

use std::io::Write;
use std::net::UdpSocket;

use support::PATIENCE;
use support::is_nginx;
use support::master::{Master, wait_for};
use support::port::free_port;
use support::tls::Client;

use super::{configure_whole, connect, echo, rest, say};

/// The body of an answer of the API.
fn ask(port: u16, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut client = connect(port);
    let length = body.len();
    let head = format!(
        "{method} /api/9/{path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n"
    );
    client.write_all((head + body).as_bytes()).unwrap();
    let answer = String::from_utf8(rest(&mut client)).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

fn start(engine: &str, api: u16, lines: &str) -> Master {
    let mut master = Master::new();
    configure_whole(
        &master,
        engine,
        lines,
        &format!(
            "http {{ server {{ listen 127.0.0.1:{api};
                location /api {{ api write=on; allow 127.0.0.1; deny all; }} }} }}"
        ),
    );
    master.start();
    master
}

fn sessions_are_counted_by_zones(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let upstream = echo();
    let ports: [u16; 4] = std::array::from_fn(|_| free_port());
    let [api, open, denied, datagrams] = ports;
    let _server = start(
        engine,
        api,
        &format!(
            "server {{ listen 127.0.0.1:{open}; status_zone one; proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{denied}; status_zone one; deny all; return x; }}
             server {{ listen 127.0.0.1:{datagrams} udp; status_zone two; return heard; }}
             server {{ listen 127.0.0.1:{}; return uncounted; }}",
            free_port()
        ),
    );
    let mut client = connect(open);
    say(&mut client, b"hello");
    let (_, shown) = ask(api, "GET", "stream/server_zones/one", "");
    assert_eq!(
        shown,
        r#"{"processing":1,"connections":1,"sessions":{"2xx":0,"4xx":0,"5xx":0,"total":0},"discarded":0,"received":0,"sent":0}"#
    );
    drop(client);
    assert_eq!(rest(&mut connect(denied)), b"");
    let ended = r#"{"processing":0,"connections":2,"sessions":{"2xx":1,"4xx":1,"5xx":0,"total":2},"discarded":0,"received":5,"sent":5}"#;
    wait_for("both sessions' ends", || {
        ask(api, "GET", "stream/server_zones/one", "").1 == ended
    });
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(b"?", ("127.0.0.1", datagrams)).unwrap();
    let mut buffer = [0; 16];
    assert_eq!(socket.recv(&mut buffer).unwrap(), 5);
    let both = format!(
        r#"{{"one":{ended},"two":{{"processing":0,"connections":1,"sessions":{{"2xx":1,"4xx":0,"5xx":0,"total":1}},"discarded":0,"received":1,"sent":5}}}}"#
    );
    wait_for("the datagram's session", || {
        ask(api, "GET", "stream/server_zones", "").1 == both
    });
    assert_eq!(ask(api, "DELETE", "stream/server_zones/one", "").0, 204);
    let (_, shown) = ask(api, "GET", "stream/server_zones/one?fields=connections", "");
    assert_eq!(shown, r#"{"connections":0}"#);
    let (status, shown) = ask(api, "GET", "stream/server_zones/none", "");
    assert!(
        status == 404 && shown.contains("ServerZoneNotFound"),
        "{shown}"
    );
    let (_, shown) = ask(api, "GET", "stream", "");
    assert_eq!(
        shown,
        r#"["upstreams","keyvals","server_zones","limit_conns"]"#
    );
}

support::test_on_each_engine!(sessions_are_counted_by_zones);

fn pairs_steer_sessions(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let (api, port) = (free_port(), free_port());
    let _server = start(
        engine,
        api,
        &format!(
            "keyval_zone zone=pairs:32k; keyval $server_port $said zone=pairs;
             limit_conn_zone $server_port zone=limits:32k;
             server {{ listen 127.0.0.1:{port}; limit_conn limits 1; return [$said]; }}"
        ),
    );
    assert_eq!(rest(&mut connect(port)), b"[]");
    let pair = format!(r#"{{"{port}":"hello"}}"#);
    assert_eq!(ask(api, "POST", "stream/keyvals/pairs", &pair).0, 201);
    assert_eq!(rest(&mut connect(port)), b"[hello]");
    assert_eq!(ask(api, "GET", "stream/keyvals/pairs", "").1, pair);
    // Those of http are others.
    assert_eq!(ask(api, "GET", "http/keyvals", "").1, "{}");
    assert_eq!(ask(api, "GET", "http/keyvals/pairs", "").0, 404);
    let (_, shown) = ask(api, "GET", "stream/limit_conns/limits?fields=passed", "");
    assert_eq!(shown, r#"{"passed":2}"#);
    assert_eq!(ask(api, "GET", "http/limit_conns", "").1, "{}");
}

support::test_on_each_engine!(pairs_steer_sessions);

/// Handshakes of clients, with those that went on with a session of TLS, and those that failed.
fn handshakes_are_counted_by_zones(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");
    let (api, port) = (free_port(), free_port());
    let _server = start(
        engine,
        api,
        &format!(
            "ssl_certificate {folder}/rsa.crt; ssl_certificate_key {folder}/rsa.key;
             server {{ listen 127.0.0.1:{port} ssl; status_zone secure; return heard; }}"
        ),
    );
    let shown = || ask(api, "GET", "stream/server_zones/secure?fields=ssl", "").1;
    assert_eq!(shown(), "{}");
    let client = Client::new()
        .version(&rustls::version::TLS12)
        .keeping_sessions();
    for is_resumed in [false, true] {
        let mut connection = client.connect(port).unwrap();
        assert_eq!(super::tls::all_of(&mut connection), "heard");
        assert_eq!(connection.is_resumed(), is_resumed);
    }
    let mut plain = connect(port);
    plain.write_all(b"no handshake at all").unwrap();
    rest(&mut plain);
    let expected = r#"{"ssl":{"handshakes":2,"handshakes_failed":1,"session_reuses":1}}"#;
    wait_for("all handshakes", || shown() == expected);
    assert_eq!(ask(api, "DELETE", "stream/server_zones/secure", "").0, 204);
    assert_eq!(shown(), "{}");
}

support::test_on_each_engine!(handshakes_are_counted_by_zones);
