//! `pass`: connections that another server of the same program goes on with.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};

use support::master::{Master, wait_for};
use support::port::free_port;
use support::tls::Client;

use super::{FORMAT, connect, line_with, rest, sessions};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls");

/// A server with these lines in its blocks `stream` and `http`.
fn start(engine: &str, stream: &str, http: &str) -> Master {
    let mut master = Master::new();
    master.configure(&format!(
        "error_log @/logs/info.log info;\nevents {{ {engine} }}\n\
         stream {{\n{FORMAT}\n{stream}\n}}\nhttp {{\naccess_log off;\n{http}\n}}"
    ));
    master.start();
    master
}

/// What HTTP answers on a connection that begins with these bytes, without its head.
fn answer(port: u16, beginning: &str) -> String {
    let mut client = connect(port);
    let request = format!("{beginning}GET / HTTP/1.0\r\n\r\n");
    client.write_all(request.as_bytes()).unwrap();
    let heard = String::from_utf8(rest(&mut client)).unwrap();
    let (_, body) = heard.split_once("\r\n\r\n").unwrap_or_default();
    body.to_owned()
}

fn http_goes_on_with_connections_that_stream_has_accepted(engine: &'static str) {
    let ports: [u16; 9] = std::array::from_fn(|_| free_port());
    let [
        http,
        https,
        plain,
        variable,
        told,
        by_name,
        secure,
        preread,
        text,
    ] = ports;
    let certificate =
        format!("ssl_certificate {FOLDER}/rsa.crt; ssl_certificate_key {FOLDER}/rsa.key;");
    let of_request = "return 200 \"$scheme $remote_addr $server_addr:$server_port\"";
    let stream = format!(
        "{certificate}
         geo $to {{ default 127.0.0.1:{http}; }}
         server {{ listen 127.0.0.1:{plain}; pass 127.0.0.1:{http}; }}
         server {{ listen 127.0.0.1:{variable}; pass $to; }}
         server {{ listen 127.0.0.1:{told} proxy_protocol; set_real_ip_from 127.0.0.1;
             pass 127.0.0.1:{http}; }}
         server {{ listen 127.0.0.1:{by_name}; ssl_preread on; pass 127.0.0.1:{http}; }}
         server {{ listen 127.0.0.1:{by_name}; server_name some.example;
             pass 127.0.0.1:{https}; }}
         server {{ listen 127.0.0.1:{secure} ssl; pass 127.0.0.1:{http}; }}
         server {{ listen 127.0.0.1:{preread} ssl; ssl_preread on;
             pass 127.0.0.1:{http}; }}
         server {{ listen 127.0.0.1:{text}; return \"$remote_addr\"; }}"
    );
    let http_block = format!(
        "server {{ listen 127.0.0.1:{http}; {of_request}; }}
         server {{ listen 127.0.0.1:{https} ssl; {certificate} {of_request}; }}"
    );
    let master = start(engine, &stream, &http_block);
    let of_http = format!("http 127.0.0.1 127.0.0.1:{http}");
    assert_eq!(answer(plain, ""), of_http);
    assert_eq!(answer(variable, ""), of_http);
    assert_eq!(answer(by_name, ""), of_http);
    let header = "PROXY TCP4 192.0.2.9 192.0.2.1 9 1\r\n";
    assert_eq!(
        answer(told, header),
        format!("http 192.0.2.9 127.0.0.1:{http}")
    );
    let get = |port, name: &str| {
        let client = Client::new().name(name).protocol("http/1.1");
        let response = client.connect(port)?.get("/")?;
        Ok::<_, String>(String::from_utf8(response.body).unwrap())
    };
    assert_eq!(
        get(by_name, "some.example").unwrap(),
        format!("https 127.0.0.1 127.0.0.1:{https}")
    );
    assert_eq!(
        get(secure, "any").unwrap(),
        format!("https 127.0.0.1 127.0.0.1:{http}")
    );
    assert!(get(preread, "any").is_err());
    assert_eq!(
        line_with(&master, "with preread data"),
        format!(
            "cannot pass connection with preread data while passing connection to port, \
             client: 127.0.0.1, server: 127.0.0.1:{preread}"
        )
    );
    // The log of sessions has only what stream has ended itself.
    assert_eq!(rest(&mut connect(text)), b"127.0.0.1");
    assert_eq!(
        sessions(&master, 2),
        ["127.0.0.1 TCP 500 0 0 - - -", "127.0.0.1 TCP 200 9 0 - - -"]
    );
}

support::test_on_each_engine!(http_goes_on_with_connections_that_stream_has_accepted);

fn what_cannot_be_passed(engine: &'static str) {
    let [circle, nowhere, wrong, udp, dead] = [(); 5].map(|()| free_port());
    let stream = format!(
        "server {{ listen 127.0.0.1:{circle}; pass 127.0.0.1:{circle}; }}
         server {{ listen 127.0.0.1:{nowhere}; pass 127.0.0.1:{dead}; }}
         server {{ listen 127.0.0.1:{wrong}; pass $remote_addr; }}
         server {{ listen 127.0.0.1:{udp} udp; pass 127.0.0.1:{circle}; }}"
    );
    let master = start(engine, &stream, "");
    for (port, status, line) in [
        (circle, 500, "stream pass cycle".to_owned()),
        (
            nowhere,
            200,
            format!("port not found for \"127.0.0.1:{dead}\""),
        ),
        (wrong, 500, "no port in pass \"127.0.0.1\"".to_owned()),
    ] {
        let before = master.read("logs/sessions.log").lines().count();
        assert_eq!(rest(&mut connect(port)), b"");
        let expected = format!("127.0.0.1 TCP {status} 0 0 - - -");
        assert_eq!(sessions(&master, before + 1)[before], expected);
        assert_eq!(
            line_with(&master, &line),
            format!(
                "{line} while passing connection to port, client: 127.0.0.1, \
                 server: 127.0.0.1:{port}"
            )
        );
    }
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.send_to(b"one", ("127.0.0.1", udp)).unwrap();
    assert_eq!(sessions(&master, 4)[3], "127.0.0.1 UDP 500 0 3 - - -");
    assert_eq!(
        line_with(&master, "cannot pass udp"),
        format!(
            "cannot pass udp connection while passing connection to port, \
             udp client: 127.0.0.1, server: 127.0.0.1:{udp}"
        )
    );
}

support::test_on_each_engine!(what_cannot_be_passed);

/// As in nginx a connection counts until it ends, whichever connection handler goes on with it.
fn a_connection_that_was_passed_still_counts(engine: &'static str) {
    let [http, once, twice] = [(); 3].map(|()| free_port());
    let stream = format!(
        "limit_conn_zone $server_port zone=one:1m;
         limit_conn_zone $remote_addr zone=other:1m;
         server {{ listen 127.0.0.1:{once}; limit_conn one 1; pass 127.0.0.1:{http}; }}
         server {{ listen 127.0.0.1:{twice}; limit_conn other 1; pass 127.0.0.1:{once}; }}"
    );
    let http_block = format!("server {{ listen 127.0.0.1:{http}; return 200 served; }}");
    let master = start(engine, &stream, &http_block);
    let ask = |client: &mut TcpStream| {
        let _ = client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut heard = Vec::new();
        while !heard.ends_with(b"served") {
            let mut buffer = [0; 4096];
            match client.read(&mut buffer) {
                Ok(count @ 1..) => heard.extend_from_slice(&buffer[..count]),
                _ => return false,
            }
        }
        true
    };
    for port in [once, twice] {
        let mut first = connect(port);
        assert!(ask(&mut first));
        assert!(!ask(&mut connect(port)), "another is refused");
        assert!(ask(&mut first), "the first goes on");
        drop(first);
        wait_for("room for another", || ask(&mut connect(port)));
    }
    let line = line_with(&master, "limiting connections by zone \"other\"");
    assert!(line.contains("while initializing session"), "{line}");
}

support::test_on_each_engine!(a_connection_that_was_passed_still_counts);
