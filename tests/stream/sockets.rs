//! The sockets of connections to servers: where they come from, and how large their buffers are.

use std::io::Write;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::thread;

use rustix::net::sockopt;
use support::PATIENCE;
use support::descriptors::socket_to;
use support::port::free_port;

use super::{connect, rest, sessions, start};

/// Says to each client where it has come from; the port.
fn tell_origins() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let origin = client.peer_addr().unwrap().ip().to_string();
            client.write_all(origin.as_bytes()).unwrap();
        }
    });
    port
}

/// Answers each datagram by where it has come from; the port.
fn tell_origins_of_datagrams() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, client)) = socket.recv_from(&mut buffer) {
            let origin = client.ip().to_string();
            socket.send_to(origin.as_bytes(), client).unwrap();
        }
    });
    port
}

fn ask_by_datagram(port: u16) -> String {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.send_to(b"?", ("127.0.0.1", port)).unwrap();
    let mut buffer = [0; 64];
    let (count, _) = client.recv_from(&mut buffer).unwrap();
    String::from_utf8(buffer[..count].to_vec()).unwrap()
}

fn connections_come_from_the_address_that_is_written(engine: &'static str) {
    let upstream = tell_origins();
    let ports: [u16; 4] = std::array::from_fn(|_| free_port());
    let [plain, off, variable, invalid] = ports;
    let server = start(
        engine,
        &format!(
            "proxy_bind 127.0.0.5;
             server {{ listen 127.0.0.1:{plain}; proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{off}; proxy_bind off; proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{variable}; set $from 127.0.0.6; proxy_bind $from;
                       proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{invalid}; set $from nowhere; proxy_bind $from;
                       proxy_pass 127.0.0.1:{upstream}; }}"
        ),
    );
    let origins = ports.map(|port| String::from_utf8(rest(&mut connect(port))).unwrap());
    assert_eq!(
        origins,
        ["127.0.0.5", "127.0.0.1", "127.0.0.6", "127.0.0.1"]
    );
    server.wait_for_text("logs/info.log", "invalid local address \"nowhere\"");
}

support::test_on_each_engine!(connections_come_from_the_address_that_is_written);

fn datagrams_come_from_the_address_that_is_written(engine: &'static str) {
    let upstream = tell_origins_of_datagrams();
    let (plain, bound) = (free_port(), free_port());
    let _server = start(
        engine,
        &format!(
            "proxy_responses 1;
             server {{ listen 127.0.0.1:{plain} udp; proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{bound} udp; proxy_bind 127.0.0.5;
                       proxy_pass 127.0.0.1:{upstream}; }}"
        ),
    );
    assert_eq!(ask_by_datagram(plain), "127.0.0.1");
    assert_eq!(ask_by_datagram(bound), "127.0.0.5");
}

support::test_on_each_engine!(datagrams_come_from_the_address_that_is_written);

fn a_port_that_is_taken_is_a_fault_of_no_server(engine: &'static str) {
    let upstream = tell_origins();
    let taken = TcpListener::bind("127.0.0.5:0").unwrap();
    let from = taken.local_addr().unwrap();
    let port = free_port();
    let server = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{port}; proxy_bind {from};
                       proxy_pass 127.0.0.1:{upstream}; }}"
        ),
    );
    assert_eq!(rest(&mut connect(port)), b"");
    server.wait_for_text("logs/info.log", "bind(");
    server.wait_for_text("logs/sessions.log", " 500 ");
}

support::test_on_each_engine!(a_port_that_is_taken_is_a_fault_of_no_server);

fn buffers_are_as_large_as_written(engine: &'static str) {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let ports: [u16; 3] = std::array::from_fn(|_| free_port());
    let [plain, receive, send] = ports;
    let server = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{plain}; proxy_pass {address}; }}
             server {{ listen 127.0.0.1:{receive}; proxy_socket_rcvbuf 32k;
                       proxy_pass {address}; }}
             server {{ listen 127.0.0.1:{send}; proxy_socket_sndbuf 48k;
                       proxy_pass {address}; }}"
        ),
    );
    let mut ended = 0;
    let sizes = ports.map(|port| {
        let client = connect(port);
        let (peer, _) = upstream.accept().unwrap();
        let mut workers = server.workers().into_iter();
        let socket = workers.find_map(|pid| socket_to(pid, address)).unwrap();
        let receive = sockopt::socket_recv_buffer_size(socket.as_fd()).unwrap();
        let send = sockopt::socket_send_buffer_size(socket.as_fd()).unwrap();
        drop((peer, client));
        ended += 1;
        sessions(&server, ended);
        (receive, send)
    });
    // The kernel doubles what it is asked for.
    let [(plain_receive, plain_send), (receive, _), (_, send)] = sizes;
    assert_eq!((receive, send), (64 * 1024, 96 * 1024));
    assert_ne!((plain_receive, plain_send), (receive, send));
}

support::test_on_each_engine!(buffers_are_as_large_as_written);
