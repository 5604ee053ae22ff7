//! What the sockets are like that connections to upstreams are made with. No client can see it: the
//! kernel is asked, by a copy of the descriptor.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::sockopt;
use support::descriptors::socket_to;
use support::{PATIENCE, Server};

/// What the server's socket to an upstream is like for a request for `path`.
fn looked_at<T>(
    server: &Server,
    upstream: &TcpListener,
    path: &str,
    answer: &[u8],
    look: impl FnOnce(&OwnedFd) -> T,
) -> T {
    let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).unwrap();
    let (mut peer, _) = upstream.accept().unwrap();
    let address = upstream.local_addr().unwrap();
    let mut workers = server.workers().into_iter();
    let found = workers.find_map(|pid| socket_to(pid, address)).unwrap();
    let seen = look(&found);
    drop(found);
    peer.write_all(answer).unwrap();
    drop(peer);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    seen
}

#[test]
fn options_are_set_before_connecting() {
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let lines = "location /plain { proxy_pass http://APP; }
         location /off { proxy_socket_keepalive off; proxy_socket_rcvbuf 0; proxy_socket_sndbuf 0; proxy_pass http://APP; }
         location /keepalive { proxy_socket_keepalive on; proxy_pass http://APP; }
         location /rcvbuf { proxy_socket_rcvbuf 32k; proxy_pass http://APP; }
         location /sndbuf { proxy_socket_sndbuf 48k; proxy_pass http://APP; }";
    options_are_set(lines, answer);
    for prefix in ["uwsgi_", "scgi_"] {
        let lines = lines.replace("proxy_", prefix);
        options_are_set(&lines.replace("http://", ""), answer);
    }
    // SETTINGS, a head that says 200 and a length of 2, and two bytes that end the stream.
    let by_http2 = b"\0\0\0\x04\0\0\0\0\0\0\0\x05\x01\x04\0\0\0\x01\x88\x0f\x0d\x012\0\0\x02\0\x01\0\0\0\x01ok";
    let lines = lines.replace("proxy_", "grpc_");
    options_are_set(&lines.replace("http://", ""), by_http2);
}

#[test]
fn memcached_is_asked_over_connections_that_are_kept_alive() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let lines = "set $memcached_key key;
         location /off { memcached_socket_keepalive off; memcached_pass APP; }
         location /on { memcached_socket_keepalive on; memcached_pass APP; }";
    let address = upstream.local_addr().unwrap().to_string();
    let server = Server::start("", &lines.replace("APP", &address));
    let answer = b"VALUE key 0 2\r\nok\r\nEND\r\n";
    for (path, wanted) in [("/off", false), ("/on", true)] {
        let is_on = looked_at(&server, &upstream, path, answer, |socket| {
            sockopt::socket_keepalive(socket.as_fd()).unwrap()
        });
        assert_eq!(is_on, wanted);
    }
}

#[test]
fn options_are_set_before_applications_are_connected_to() {
    // A head and two bytes, and the end.
    let answer = b"\x01\x06\x00\x01\x00\x17\x00\x00Content-Length: 2\r\n\r\nok\x01\x03\x00\x01\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let lines = "location /plain { fastcgi_pass APP; }
         location /off { fastcgi_socket_keepalive off; fastcgi_socket_rcvbuf 0; fastcgi_socket_sndbuf 0; fastcgi_send_lowat 0;
             fastcgi_pass APP; }
         location /keepalive { fastcgi_socket_keepalive on; fastcgi_pass APP; }
         location /rcvbuf { fastcgi_socket_rcvbuf 32k; fastcgi_pass APP; }
         location /sndbuf { fastcgi_socket_sndbuf 48k; fastcgi_pass APP; }";
    options_are_set(lines, answer);
}

/// `APP` in the lines is where the upstream listens that answers so.
fn options_are_set(lines: &str, answer: &[u8]) {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap().to_string();
    let server = Server::start("", &lines.replace("APP", &address));
    let keepalive = |path| {
        looked_at(&server, &upstream, path, answer, |socket| {
            sockopt::socket_keepalive(socket.as_fd()).unwrap()
        })
    };
    assert!(!keepalive("/plain"));
    assert!(!keepalive("/off"));
    assert!(keepalive("/keepalive"));
    // The kernel doubles what it is asked for.
    let receive = |path| {
        looked_at(&server, &upstream, path, answer, |socket| {
            sockopt::socket_recv_buffer_size(socket.as_fd()).unwrap()
        })
    };
    assert_eq!(receive("/rcvbuf"), 64 * 1024);
    assert_eq!(receive("/off"), receive("/plain"));
    assert_ne!(receive("/plain"), 64 * 1024);
    let send = |path| {
        looked_at(&server, &upstream, path, answer, |socket| {
            sockopt::socket_send_buffer_size(socket.as_fd()).unwrap()
        })
    };
    assert_eq!(send("/sndbuf"), 96 * 1024);
    assert_eq!(send("/off"), send("/plain"));
    assert_ne!(send("/plain"), 96 * 1024);
}

/// The same of a tunnel, whose other end the client asks for.
fn looked_at_tunnel<T>(lines: &str, look: impl FnOnce(&OwnedFd) -> T) -> T {
    let server = Server::start("", &format!("tunnel_pass; {lines}"));
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let request = format!("CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    client.write_all(request.as_bytes()).unwrap();
    let (_peer, _) = upstream.accept().unwrap();
    let mut workers = server.workers().into_iter();
    let found = workers.find_map(|pid| socket_to(pid, address)).unwrap();
    look(&found)
}

#[test]
fn options_are_set_before_a_tunnel_is_made() {
    let keepalive = |lines| {
        looked_at_tunnel(lines, |socket| {
            sockopt::socket_keepalive(socket.as_fd()).unwrap()
        })
    };
    assert!(!keepalive("tunnel_socket_keepalive off;"));
    assert!(keepalive("tunnel_socket_keepalive on;"));
    let receive = |lines| {
        looked_at_tunnel(lines, |socket| {
            sockopt::socket_recv_buffer_size(socket.as_fd()).unwrap()
        })
    };
    assert_eq!(receive("tunnel_socket_rcvbuf 32k;"), 64 * 1024);
    assert_ne!(receive("tunnel_socket_rcvbuf 0;"), 64 * 1024);
    let send = |lines| {
        looked_at_tunnel(lines, |socket| {
            sockopt::socket_send_buffer_size(socket.as_fd()).unwrap()
        })
    };
    assert_eq!(send("tunnel_socket_sndbuf 48k;"), 96 * 1024);
    assert_ne!(send("tunnel_socket_sndbuf 0;"), 96 * 1024);
}

/// Whether this process, and so the server's worker, may have `CAP_NET_RAW`.
fn is_privileged() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = u64::from_str_radix(effective.unwrap_or_default().trim(), 16).unwrap();
    effective >> 13 & 1 == 1
}

/// What 192.0.2.1, which no machine has, means for a request.
#[test]
fn addresses_of_others_take_a_privilege() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = upstream.local_addr().unwrap().port();
    let pass = format!("proxy_connect_timeout 500ms; proxy_pass http://127.0.0.1:{port}");
    let lines = format!(
        "location /foreign {{ proxy_bind 192.0.2.1; {pass}; }}
         location /transparent {{ proxy_bind 192.0.2.1 transparent; {pass}; }}
         location /variable {{ proxy_bind $arg_address transparent; {pass}; }}"
    );
    let server = Server::start("", &lines);
    let status = |path: &str| server.connect().get(path).unwrap().status;
    assert_eq!(status("/foreign"), 500);
    let refused = "[crit]";
    server.wait_for_log(
        "bind(192.0.2.1) failed (99: Cannot assign requested address) while connecting to upstream",
    );
    assert!(server.error_log().contains(refused));
    if is_privileged() {
        // It gets as far as the network, where such a connection comes to nothing.
        assert!(matches!(status("/transparent"), 502 | 504));
        assert!(!server.error_log().contains("TRANSPARENT"));
        assert!(!server.error_log().contains("bind(192.0.2.1) failed (1:"));
        // A copy of the capability is all that worker processes keep.
        for pid in server.workers() {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = |name| status.lines().find_map(|line| line.strip_prefix(name));
            let is_root = line("Uid:").unwrap().trim_start().starts_with("0\t");
            assert!(is_root || line("CapEff:").unwrap().trim() == "0000000000002000");
        }
    } else {
        assert_eq!(status("/transparent"), 500);
        server.wait_for_log("setsockopt(IP_TRANSPARENT) failed (1: Operation not permitted) while connecting to upstream");
        assert_eq!(status("/variable?address=[2001:db8::1]:1"), 500);
        server.wait_for_log("setsockopt(IPV6_TRANSPARENT) failed (1: Operation not permitted)");
    }
}
