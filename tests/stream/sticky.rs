//! `sticky` in `stream`, which nginx does not have: sessions of one client, or of one name, stay
//! with a server, by what a zone remembers or by what variables name; servers that drain keep those
//! that belong to them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, socket};
use support::port::free_port;
use support::tls::Client;
use support::{PATIENCE, is_nginx};

use super::{configure, connect, echo, rest, say, sessions, start};

/// A server that says its port to each client and closes; the port.
fn speaker() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            use std::io::Write;
            let _ = client.unwrap().write_all(port.to_string().as_bytes());
        }
    });
    port
}

/// A server that says its port in answer to each datagram; the port.
fn datagram_speaker() -> u16 {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((_, client)) = server.recv_from(&mut buffer) {
            let _ = server.send_to(port.to_string().as_bytes(), client);
        }
    });
    port
}

/// A connection to a port from an address of this host.
fn connect_from(address: [u8; 4], port: u16) -> TcpStream {
    let client = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&client, &SocketAddr::from((address, 0))).unwrap();
    rustix::net::connect(&client, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    let client = TcpStream::from(client);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// The port of the server that a session from this address gets.
fn asked_from(address: [u8; 4], port: u16) -> u16 {
    let heard = rest(&mut connect_from(address, port));
    String::from_utf8(heard).unwrap().parse().unwrap()
}

const ONE: [u8; 4] = [127, 0, 1, 1];
const OTHER: [u8; 4] = [127, 0, 1, 2];

/// Each client goes on with the server that round robin has given it first, also by another thread
/// and after a reload; until the server cannot be connected to, or nobody has come for `timeout`.
fn clients_stay_with_the_server_that_they_had(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let [a, b] = [(); 2].map(|()| speaker());
    let ports: [u16; 3] = std::array::from_fn(|_| free_port());
    let [kept, short, plain] = ports;
    let servers = format!("server 127.0.0.1:{a}; server 127.0.0.1:{b};");
    let lines = format!(
        "upstream kept {{ {servers} sticky learn lookup=$remote_addr zone=kept:64k; }}
         upstream short {{ {servers}
             sticky learn lookup=$remote_addr zone=short:64k timeout=300ms; }}
         upstream plain {{ {servers} }}
         server {{ listen 127.0.0.1:{kept}; proxy_pass kept; }}
         server {{ listen 127.0.0.1:{short}; proxy_pass short; }}
         server {{ listen 127.0.0.1:{plain}; proxy_pass plain; }}"
    );
    let master = start(engine, &lines);
    let first = asked_from(ONE, kept);
    let second = asked_from(OTHER, kept);
    assert_ne!(first, second, "round robin");
    for _ in 0..3 {
        assert_eq!(asked_from(ONE, kept), first);
        assert_eq!(asked_from(OTHER, kept), second);
    }
    configure(&master, engine, &format!("{lines} log_format more x;"));
    super::reload(&master);
    for _ in 0..3 {
        assert_eq!(asked_from(ONE, kept), first);
    }
    let by_turns = [(); 4].map(|()| asked_from(ONE, plain));
    assert!(by_turns[0] != by_turns[1] && by_turns[0] == by_turns[2]);
    let before = asked_from(ONE, short);
    assert_eq!(asked_from(ONE, short), before);
    thread::sleep(Duration::from_millis(400));
    assert_ne!(
        asked_from(ONE, short),
        before,
        "what has expired is forgotten"
    );
}

support::test_on_each_engine!(clients_stay_with_the_server_that_they_had);

/// What a long session belongs to is remembered from its end on.
fn a_session_counts_until_it_ends(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let [a, b] = [(); 2].map(|()| echo());
    let port = free_port();
    let master = start(
        engine,
        &format!(
            "upstream back {{ server 127.0.0.1:{a}; server 127.0.0.1:{b};
                 sticky learn lookup=$remote_addr zone=back:64k timeout=400ms; }}
             server {{ listen 127.0.0.1:{port}; proxy_pass back; }}"
        ),
    );
    let session = || {
        let mut client = connect(port);
        say(&mut client, b"hi");
        client
    };
    let peers = |count| {
        let lines = sessions(&master, count);
        let peers = lines.iter().map(|line| line.split(' ').nth(5).unwrap());
        peers.map(str::to_owned).collect::<Vec<_>>()
    };
    let long = session();
    thread::sleep(Duration::from_millis(350));
    drop(long);
    peers(1);
    thread::sleep(Duration::from_millis(250));
    drop(session());
    let ended = peers(2);
    assert_eq!(ended[0], ended[1]);
}

support::test_on_each_engine!(a_session_counts_until_it_ends);

/// A server that is out is left for another, with which the client stays from then on.
fn who_finds_the_server_gone_stays_with_the_next(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let [a, b] = [(); 2].map(|()| speaker());
    let (port, gone) = (free_port(), free_port());
    let listener = TcpListener::bind(("127.0.0.1", gone)).unwrap();
    let lines = format!(
        "upstream back {{ server 127.0.0.1:{gone} weight=50 fail_timeout=1s;
             server 127.0.0.1:{a}; server 127.0.0.1:{b};
             sticky learn lookup=$remote_addr zone=back:64k; }}
         server {{ listen 127.0.0.1:{port}; proxy_pass back; }}"
    );
    let _master = start(engine, &lines);
    let client = connect(port);
    drop(listener.accept().unwrap());
    assert_eq!(rest(&mut { client }), b"");
    drop(listener);
    let next = asked_from([127, 0, 0, 1], port);
    assert!(next == a || next == b);
    // The first server may be asked again, and would be by its weight.
    let _listener = TcpListener::bind(("127.0.0.1", gone)).unwrap();
    thread::sleep(Duration::from_millis(1200));
    for _ in 0..4 {
        assert_eq!(asked_from([127, 0, 0, 1], port), next);
    }
}

support::test_on_each_engine!(who_finds_the_server_gone_stays_with_the_next);

/// Variables name the server: by `route`, or by what is looked up; a server that drains gets those
/// who name it, and no one else.
fn servers_that_drain_keep_their_own(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let [a, b] = [(); 2].map(|()| speaker());
    let (routed, learned) = (free_port(), free_port());
    let lines = |drain: &str| {
        format!(
            "map $remote_addr $to {{ 127.0.1.1 left; 127.0.1.2 right; default \"\"; }}
             upstream routed {{ server 127.0.0.1:{a} route=left {drain};
                 server 127.0.0.1:{b} route=right; sticky route $hostless $to; }}
             map $protocol $hostless {{ default \"\"; }}
             upstream learned {{ zone learned 64k; server 127.0.0.1:{a} {drain};
                 server 127.0.0.1:{b};
                 sticky learn create=$to lookup=$to zone=sessions:64k; }}
             server {{ listen 127.0.0.1:{routed}; proxy_pass routed; }}
             server {{ listen 127.0.0.1:{learned}; proxy_pass learned; }}"
        )
    };
    let master = start(engine, &lines(""));
    for _ in 0..3 {
        assert_eq!(asked_from(ONE, routed), a);
        assert_eq!(asked_from(OTHER, routed), b);
    }
    // Who names none is shared out.
    let nobody = [127, 0, 1, 3];
    let mut shared = [(); 2].map(|()| asked_from(nobody, routed));
    shared.sort_unstable();
    let mut both = [a, b];
    both.sort_unstable();
    assert_eq!(shared, both);
    // One of two that come first has the server that is to drain.
    let of = [ONE, OTHER].map(|client| (client, asked_from(client, learned)));
    assert_ne!(of[0].1, of[1].1);
    configure(&master, engine, &lines("drain"));
    super::reload(&master);
    for _ in 0..3 {
        assert_eq!(asked_from(ONE, routed), a);
        assert_eq!(asked_from(nobody, routed), b);
        assert_eq!(asked_from(nobody, learned), b);
        for (client, server) in of {
            assert_eq!(asked_from(client, learned), server);
        }
    }
}

support::test_on_each_engine!(servers_that_drain_keep_their_own);

/// Sessions over UDP as well, and by the name that a ClientHello asks for, whoever asks.
fn datagrams_and_names_stay_too(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let of_datagrams = [(); 2].map(|()| datagram_speaker());
    let of_names = [(); 2].map(|()| speaker());
    let (udp, tls) = (free_port(), free_port());
    let group = |name: &str, servers: [u16; 2], by: &str| {
        format!(
            "upstream {name} {{ server 127.0.0.1:{}; server 127.0.0.1:{};
                 sticky learn lookup={by} zone={name}:64k; }}",
            servers[0], servers[1]
        )
    };
    let _master = start(
        engine,
        &format!(
            "{} {}
             server {{ listen 127.0.0.1:{udp} udp; proxy_pass udp; proxy_responses 1;
                 proxy_requests 1; }}
             server {{ listen 127.0.0.1:{tls}; ssl_preread on; proxy_pass tls; }}",
            group("udp", of_datagrams, "$remote_addr"),
            group("tls", of_names, "$ssl_preread_server_name"),
        ),
    );
    let ask = |address: [u8; 4]| {
        let client = UdpSocket::bind((Ipv4Addr::from(address), 0)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.send_to(b"who", ("127.0.0.1", udp)).unwrap();
        let mut answer = [0; 64];
        let count = client.recv(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..count]).into_owned()
    };
    let (one, other) = (ask(ONE), ask(OTHER));
    assert_ne!(one, other);
    for _ in 0..3 {
        assert_eq!(ask(ONE), one);
        assert_eq!(ask(OTHER), other);
    }
    let ask = |address, name: &str| {
        use std::io::Write;
        let mut client = connect_from(address, tls);
        client.write_all(&Client::new().name(name).hello()).unwrap();
        String::from_utf8(rest(&mut client)).unwrap()
    };
    let (first, second) = (ask(ONE, "a.example"), ask(ONE, "b.example"));
    assert_ne!(first, second);
    for client in [ONE, OTHER] {
        assert_eq!(ask(client, "a.example"), first);
        assert_eq!(ask(client, "b.example"), second);
    }
}

support::test_on_each_engine!(datagrams_and_names_stay_too);
