//! `upstream` blocks in `stream`: which server a session gets, and what becomes of those that fail.

use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;

use support::PATIENCE;
use support::is_nginx;
use support::master::{Master, wait_for};
use support::port::free_port;

use super::{connect, each_engine, echo, line_with, rest, say, sessions, start};

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

/// The port of the server that a session through this one gets; nothing where there is none.
fn asked(port: u16) -> Option<u16> {
    let heard = rest(&mut connect(port));
    String::from_utf8(heard).unwrap().parse().ok()
}

/// How many of so many sessions each of the servers gets.
fn shares<const N: usize>(port: u16, sessions: usize, servers: [u16; N]) -> [usize; N] {
    let asked: Vec<_> = (0..sessions).map(|_| asked(port)).collect();
    servers.map(|server| asked.iter().filter(|asked| **asked == Some(server)).count())
}

fn sessions_are_shared_out_as_the_block_says(engine: &'static str) {
    let [a, b, c] = [(); 3].map(|()| speaker());
    let dead = free_port();
    let ports: [u16; 5] = std::array::from_fn(|_| free_port());
    let [weighted, hashed, named, backed, lost] = ports;
    let master = start(
        engine,
        &format!(
            "upstream weighted {{ server 127.0.0.1:{a} weight=3; server 127.0.0.1:{b};
                 server 127.0.0.1:{c} down; }}
             upstream hashed {{ zone hashed 64k; hash $remote_addr consistent;
                 server 127.0.0.1:{a}; server 127.0.0.1:{b}; server 127.0.0.1:{c}; }}
             upstream backed {{ server 127.0.0.1:{dead} fail_timeout=1h;
                 server 127.0.0.1:{c} backup; }}
             upstream lost {{ server 127.0.0.1:{a} down; server 127.0.0.1:{b} down; }}
             map $server_port $which {{ default WEIGHTED; }}
             server {{ listen 127.0.0.1:{weighted}; proxy_pass weighted; }}
             server {{ listen 127.0.0.1:{hashed}; proxy_pass hashed; }}
             server {{ listen 127.0.0.1:{named}; proxy_pass $which; }}
             server {{ listen 127.0.0.1:{backed}; proxy_pass backed; }}
             server {{ listen 127.0.0.1:{lost}; proxy_pass lost; }}"
        ),
    );
    // Eight of twelve and four of them, whichever thread a session is of.
    assert_eq!(shares(weighted, 12, [a, b, c]), [9, 3, 0]);
    assert_eq!(shares(named, 4, [a, b, c]), [3, 1, 0]);
    let mut by_hash = shares(hashed, 6, [a, b, c]);
    by_hash.sort_unstable();
    assert_eq!(by_hash, [0, 0, 6]);
    // The first session meets the dead server, the next one does not.
    assert_eq!(shares(backed, 2, [c]), [2]);
    let of = |port: u16, servers: &str| format!("127.0.0.1 TCP 200 {} 0 {servers}", digits(port));
    let lines = sessions(&master, 24);
    let (dead, c) = (format!("127.0.0.1:{dead}"), (c, format!("127.0.0.1:{c}")));
    assert_eq!(
        lines[22..],
        [
            of(c.0, &format!("{dead}, {} 0, 0 0, {}", c.1, digits(c.0))),
            of(c.0, &format!("{} 0 {}", c.1, digits(c.0))),
        ]
    );
    assert_eq!(
        line_with(&master, "disabled"),
        format!(
            "upstream server temporarily disabled while connecting to upstream, client: \
             127.0.0.1, server: 127.0.0.1:{backed}, upstream: \"{dead}\", bytes from/to \
             client:0/0, bytes from/to upstream:0/0"
        )
    );
    assert_eq!(asked(lost), None);
    assert_eq!(sessions(&master, 25)[24], "127.0.0.1 TCP 502 0 0 lost 0 0");
    assert_eq!(
        line_with(&master, "no live"),
        format!(
            "no live upstreams while connecting to upstream, client: 127.0.0.1, server: \
             127.0.0.1:{lost}, upstream: \"lost\", bytes from/to client:0/0, bytes from/to \
             upstream:0/0"
        )
    );
}

support::test_on_each_engine!(sessions_are_shared_out_as_the_block_says);

fn digits(port: u16) -> usize {
    port.to_string().len()
}

fn servers_that_have_sessions_are_spared(engine: &'static str) {
    let [a, b] = [(); 2].map(|()| echo());
    let (fewest, full) = (free_port(), free_port());
    let master = start(
        engine,
        &format!(
            "upstream fewest {{ least_conn; server 127.0.0.1:{a}; server 127.0.0.1:{b}; }}
             upstream full {{ zone full 64k; server 127.0.0.1:{a} max_conns=1;
                 server 127.0.0.1:{b} max_conns=1; }}
             server {{ listen 127.0.0.1:{fewest}; proxy_pass fewest; }}
             server {{ listen 127.0.0.1:{full}; proxy_pass full; }}"
        ),
    );
    let opened = |port| {
        let mut client = connect(port);
        say(&mut client, b"hi");
        client
    };
    let peers = |from: usize, count: usize| {
        let lines = sessions(&master, from + count);
        let peer = |line: &String| line.split(' ').nth(5).unwrap().to_owned();
        lines[from..].iter().map(peer).collect::<Vec<_>>()
    };
    // As long as the first one lasts, its server has one more than the other.
    let kept = opened(fewest);
    for number in 0..2 {
        drop(opened(fewest));
        peers(number, 1);
    }
    drop(kept);
    let ended = peers(0, 3);
    assert!(ended[0] == ended[1] && ended[1] != ended[2], "{ended:?}");
    let two = [opened(full), opened(full)];
    assert_eq!(rest(&mut connect(full)), b"");
    assert_eq!(peers(3, 1), ["full"]);
    drop(two);
    peers(4, 2);
    drop(opened(full));
}

support::test_on_each_engine!(servers_that_have_sessions_are_spared);

/// A server that refuses is put out in the group of one block alone.
#[test]
fn groups_of_one_name_in_two_blocks_share_nothing() {
    let (of_stream, dead) = (speaker(), free_port());
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let of_http = web.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in web.incoming() {
            use std::io::Write;
            let mut client = client.unwrap();
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(b"HTTP/1.0 200 OK\r\n\r\nweb");
        }
    });
    for engine in each_engine() {
        let (tcp, http) = (free_port(), free_port());
        let mut master = Master::new();
        master.configure(&format!(
            "error_log @/logs/info.log info;\nevents {{ {engine} }}
             http {{
                 access_log off;
                 upstream back {{ server 127.0.0.1:{dead} weight=9 fail_timeout=1h;
                     server 127.0.0.1:{of_http}; }}
                 server {{ listen 127.0.0.1:{http}; location / {{ proxy_pass http://back;
                     proxy_next_upstream off; }} }}
             }}
             stream {{
                 log_format peers $upstream_addr; access_log @/logs/sessions.log peers;
                 upstream back {{ server 127.0.0.1:{dead} weight=9 fail_timeout=1h;
                     server 127.0.0.1:{of_stream}; }}
                 server {{ listen 127.0.0.1:{tcp}; proxy_pass back; }}
             }}"
        ));
        master.start();
        assert_eq!(asked(tcp), Some(of_stream));
        assert_eq!(asked(tcp), Some(of_stream));
        let one = format!("127.0.0.1:{of_stream}");
        assert_eq!(
            sessions(&master, 2),
            [format!("127.0.0.1:{dead}, {one}"), one]
        );
        // The group of `http` has not heard that the server is dead.
        let status = |port| {
            use std::io::Write;
            let mut client = connect(port);
            client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            let answer = rest(&mut client);
            String::from_utf8_lossy(answer.get(9..12).unwrap_or_default()).into_owned()
        };
        assert_eq!([status(http), status(http)], ["502", "200"]);
    }
}

/// What tells of a server that receives no datagrams puts it out.
#[test]
fn datagrams_go_to_another_server_once_one_has_refused() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let alive = server.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((count, client)) = server.recv_from(&mut buffer) {
            server.send_to(&buffer[..count], client).unwrap();
        }
    });
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
    let dead = closed.local_addr().unwrap().port();
    drop(closed);
    for engine in each_engine() {
        let port = free_port();
        let master = start(
            engine,
            &format!(
                "upstream names {{ server 127.0.0.1:{dead} weight=9 fail_timeout=1h;
                     server 127.0.0.1:{alive}; }}
                 server {{ listen 127.0.0.1:{port} udp; proxy_pass names; proxy_responses 1;
                     proxy_timeout 10s; }}"
            ),
        );
        let ask = || {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.send_to(b"name", ("127.0.0.1", port)).unwrap();
            client
        };
        let _in_vain = ask();
        sessions(&master, 1);
        for _ in 0..3 {
            let mut answer = [0; 512];
            assert_eq!(ask().recv(&mut answer).unwrap(), 4);
        }
        let lines = sessions(&master, 4);
        assert!(
            lines[0].contains(&format!(" 127.0.0.1:{dead} ")),
            "{lines:?}"
        );
        let by_other = |line: &String| line.contains(&format!(" 127.0.0.1:{alive} "));
        assert!(lines[1..].iter().all(by_other), "{lines:?}");
    }
}

/// What nginx does not have: sessions that wait for their turn, and those that may not.
fn sessions_wait_where_the_group_says_so(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let server = echo();
    let (queued, limited) = (free_port(), free_port());
    let master = start(
        engine,
        &format!(
            "upstream queued {{ zone queued 64k; server 127.0.0.1:{server} max_conns=1;
                 queue 1 timeout=1h; }}
             upstream limited {{ server 127.0.0.1:{server}; concurrency_limit 1;
                 queue 1 timeout=1h; }}
             server {{ listen 127.0.0.1:{queued}; proxy_pass queued; }}
             server {{ listen 127.0.0.1:{limited}; proxy_pass limited; }}"
        ),
    );
    for (port, status) in [(queued, 502), (limited, 503)] {
        let mut first = connect(port);
        say(&mut first, b"first");
        let mut second = connect(port);
        // One that has been refused is behind the one that waits.
        let refused = || {
            let mut third = TcpStream::connect(("127.0.0.1", port)).unwrap();
            third.set_read_timeout(Some(PATIENCE)).unwrap();
            rest(&mut third)
        };
        assert_eq!(refused(), b"");
        drop(first);
        say(&mut second, b"second");
        drop(second);
        wait_for("status of the session that was refused", || {
            master
                .read("logs/sessions.log")
                .contains(&format!(" TCP {status} 0 0 "))
        });
    }
    assert!(line_with(&master, "requests under way").starts_with(
        "upstream \"limited\" has 1 requests under way and 1 waiting, refused while \
             connecting to upstream, client: 127.0.0.1"
    ));
}

support::test_on_each_engine!(sessions_wait_where_the_group_says_so);

/// What monitoring is told: of a group of `stream` that it stands there, since one of `http` may
/// have the same name.
fn metrics_tell_of_groups(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let (server, dead) = (speaker(), free_port());
    let (tcp, http) = (free_port(), free_port());
    let mut master = Master::new();
    master.configure(&format!(
        "error_log @/logs/info.log info;\nevents {{ {engine} }}
         http {{ access_log off; upstream back {{ server 127.0.0.1:1; }}
             server {{ listen 127.0.0.1:{http}; metrics; }} }}
         stream {{
             log_format peers $upstream_addr; access_log @/logs/sessions.log peers;
             upstream back {{ zone back 64k; server 127.0.0.1:{dead};
                 server 127.0.0.1:{server} weight=2; }}
             server {{ listen 127.0.0.1:{tcp}; proxy_pass back; }}
         }}"
    ));
    master.start();
    for _ in 0..3 {
        assert_eq!(asked(tcp), Some(server));
    }
    sessions(&master, 3);
    let get = |path: &str| {
        use std::io::Write;
        let mut client = connect(http);
        write!(client, "GET /{path} HTTP/1.0\r\n\r\n").unwrap();
        String::from_utf8(rest(&mut client)).unwrap()
    };
    let of = |name: &str, block: &str, port: u16| {
        format!(
            "{name}{{upstream=\"back\"{block},server=\"127.0.0.1:{port}\",\
             peer=\"127.0.0.1:{port}\"}}"
        )
    };
    let page = get("");
    let stream = ",block=\"stream\"";
    for line in [
        of("tidegate_upstream_requests_total", stream, server) + " 3",
        of("tidegate_upstream_requests_total", "", 1) + " 0",
        of("tidegate_upstream_fails_total", stream, dead) + " 1",
        of("tidegate_upstream_unavailable_total", stream, dead) + " 1",
    ] {
        assert!(
            page.lines().any(|known| known == line),
            "{line} is not in:\n{page}"
        );
    }
}

support::test_on_each_engine!(metrics_tell_of_groups);
