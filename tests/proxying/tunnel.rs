//! Tunnels of clients that ask by CONNECT: bytes, back-pressure, and how they end. On both engines;
//! TIDEGATE_BINARY with nginx 1.31 checks the test itself.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use support::{PATIENCE, Server, engines};

/// How a log line of a tunnel looks here.
const LOG: &str = "log_format tunnel '$request $status $bytes_sent $body_bytes_sent $upstream_bytes_received \
                   $upstream_bytes_sent $upstream_addr';\n";

/// What a check finds with each engine, of a server with these lines whose tunnels lead where
/// clients want, and of who listens there.
fn each_server<T>(lines: &str, check: impl Fn(&Server, &TcpListener) -> T) -> Vec<T> {
    let found = engines::lines().into_iter().map(|engine| {
        let lines = format!("error_log logs/error.log info; access_log logs/tunnels.log tunnel; tunnel_pass; {lines}\n[http]\n{LOG}");
        let server = Server::start(engine, &lines);
        let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
        check(&server, &upstream)
    });
    found.collect()
}

/// What asks for a tunnel to somebody.
fn head(upstream: &TcpListener) -> String {
    let address = upstream.local_addr().unwrap();
    format!("CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n\r\n")
}

fn connect(server: &Server) -> TcpStream {
    let client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_nodelay(true).unwrap();
    client
}

/// Reads the head of an answer and not a byte more; its first line.
fn read_head(client: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    head.lines().next().unwrap_or_default().to_owned()
}

/// Both ends of a tunnel.
fn open(server: &Server, upstream: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = connect(server);
    client.write_all(head(upstream).as_bytes()).unwrap();
    let (peer, _) = upstream.accept().unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(read_head(&mut client), "HTTP/1.1 200 OK");
    (client, peer)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31) as u8).collect()
}

/// What comes until the other end closes, gently or not.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 64 * 1024]);
    loop {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => all.extend_from_slice(&buffer[..count]),
            Ok(_) => return all,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return all,
            Err(error) => panic!("{error} after {} bytes", all.len()),
        }
    }
}

/// Writes until the other end has taken nothing for a while; how many bytes it has taken.
fn fill(stream: &mut TcpStream) -> usize {
    stream
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let (chunk, mut taken) = (vec![b'x'; 64 * 1024], 0);
    loop {
        match stream.write(&chunk) {
            Ok(count) => taken += count,
            Err(_) => return taken,
        }
    }
}

#[test]
fn bytes_go_both_ways() {
    each_server("", |server, upstream| {
        let mut client = connect(server);
        // A byte a segment, and what is for the other end right behind the head.
        for byte in format!("{}first", head(upstream)).bytes() {
            client.write_all(&[byte]).unwrap();
        }
        let (mut peer, _) = upstream.accept().unwrap();
        peer.write_all(b"greeting").unwrap();
        let mut five = [0; 5];
        peer.read_exact(&mut five).unwrap();
        assert_eq!(&five, b"first");
        assert_eq!(read_head(&mut client), "HTTP/1.1 200 OK");
        let mut eight = [0; 8];
        client.read_exact(&mut eight).unwrap();
        assert_eq!(&eight, b"greeting");
        // Much at once each way, at the same time.
        let much = pattern(20_000_000);
        let (mut to_client, sent) = (peer.try_clone().unwrap(), much.clone());
        let down = thread::spawn(move || to_client.write_all(&sent).unwrap());
        let (mut to_peer, sent) = (client.try_clone().unwrap(), much.clone());
        let up = thread::spawn(move || to_peer.write_all(&sent).unwrap());
        let (mut of_peer, length) = (peer.try_clone().unwrap(), much.len());
        let up_read = thread::spawn(move || {
            let mut received = vec![0; length];
            of_peer.read_exact(&mut received).unwrap();
            received
        });
        let mut received = vec![0; much.len()];
        client.read_exact(&mut received).unwrap();
        assert!(received == much);
        assert!(up_read.join().unwrap() == much);
        down.join().unwrap();
        up.join().unwrap();
        drop(peer);
        assert_eq!(rest(&mut client), b"");
        let line = format!(" {} {} ", 20_000_008, 20_000_008);
        server.wait_for_line("tunnels.log", &line);
        server.wait_for_line("tunnels.log", " 20000005 127.0.0.1:");
    });
}

#[test]
fn a_side_that_does_not_read_holds_only_its_own_bytes_back() {
    let taken = |size: &str| {
        each_server(
            &format!("tunnel_buffer_size {size};"),
            |server, upstream| {
                let (mut client, mut peer) = open(server, upstream);
                let filled = fill(&mut peer);
                // The other way is free.
                for number in 0..100 {
                    client.write_all(&[number]).unwrap();
                    let mut byte = [0];
                    peer.read_exact(&mut byte).unwrap();
                    assert_eq!(byte[0], number);
                }
                // And when it is read at last, all is there.
                let reading = thread::spawn(move || rest(&mut client).len());
                drop(peer);
                assert_eq!(reading.join().unwrap(), filled);
                filled
            },
        )
    };
    // The rest is the kernel's.
    let (little, much) = (taken("4k"), taken("20m"));
    assert!(little.iter().all(|taken| *taken < 16_000_000), "{little:?}");
    assert!(much.iter().all(|taken| *taken > 20_000_000), "{much:?}");
}

#[test]
fn a_server_that_takes_nothing_ends_the_tunnel_in_time() {
    let ends = |timeout: &str, patience: Duration| {
        let lines = format!("tunnel_send_timeout {timeout};");
        each_server(&lines, |server, upstream| {
            let (mut client, _peer) = open(server, upstream);
            fill(&mut client);
            client.set_read_timeout(Some(patience)).unwrap();
            let ended = client.read(&mut [0]);
            let has_ended = !matches!(&ended, Err(error) if error.kind() == ErrorKind::WouldBlock);
            if has_ended {
                server.wait_for_log(
                    "upstream timed out (110: Connection timed out) while proxying upgraded connection",
                );
            }
            has_ended
        })
    };
    assert!(ends("1s", PATIENCE).iter().all(|ended| *ended));
    let later = ends("1h", Duration::from_secs(3));
    assert!(later.iter().all(|ended| !ended));
}

#[test]
fn the_end_of_one_side_is_the_end_of_both() {
    each_server("", |server, upstream| {
        // A client that has said all: as in nginx its tunnel ends with that.
        let (mut client, mut peer) = open(server, upstream);
        client.write_all(b"last words").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut peer), b"last words");
        assert_eq!(rest(&mut client), b"");
        // A server that has said all.
        let (mut client, mut peer) = open(server, upstream);
        let much = pattern(3_000_000);
        let expected = much.clone();
        let reading = thread::spawn(move || (rest(&mut client) == expected, client));
        peer.write_all(&much).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        assert!(reading.join().unwrap().0);
        assert_eq!(rest(&mut peer), b"");
        // A reset either way.
        let (client, mut peer) = open(server, upstream);
        reset(client);
        assert_eq!(rest(&mut peer), b"");
        let (mut client, peer) = open(server, upstream);
        reset(peer);
        assert_eq!(rest(&mut client), b"");
        server.wait_for_log("[error]");
        server.wait_for_log(
            "recv() failed (104: Connection reset by peer) while proxying upgraded connection",
        );
        // Nothing is left of any of them: all have been logged.
        let lines = || {
            let log = std::fs::read_to_string(server.prefix.join("logs/tunnels.log"));
            log.unwrap_or_default().lines().count()
        };
        support::master::wait_for("the log of every tunnel", || lines() == 4);
    });
}

/// Ends a connection by a reset.
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

#[test]
fn a_client_that_leaves_before_its_answer_ends_the_try() {
    each_server("tunnel_connect_timeout 1h;", |server, _| {
        // Who connects to this one waits for ever.
        let full = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        )
        .unwrap();
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        rustix::net::bind(&full, &any).unwrap();
        rustix::net::listen(&full, 0).unwrap();
        let full = TcpListener::from(full);
        let address = full.local_addr().unwrap();
        let waiting = Duration::from_millis(200);
        let mut held = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, waiting) {
            held.push(stream);
        }
        let mut client = connect(server);
        client.write_all(head(&full).as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(200));
        drop(client);
        server.wait_for_line(
            "tunnels.log",
            &format!("CONNECT {address} HTTP/1.1 499 0 0"),
        );
        server.wait_for_log(
            "client prematurely closed connection, so upstream connection is closed too",
        );
    });
}

fn a_tunnel_counts_as_long_as_it_lives(engine: &'static str) {
    let server = Server::start(
        engine,
        "tunnel_pass; limit_conn tunnels 1; limit_conn_status 429;
             [http]\nlimit_conn_zone $binary_remote_addr zone=tunnels:1m;",
    );
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let (first, _peer) = open(&server, &upstream);
    let mut second = connect(&server);
    second.write_all(head(&upstream).as_bytes()).unwrap();
    assert_eq!(read_head(&mut second), "HTTP/1.1 429 Too Many Requests");
    drop(first);
    let started = Instant::now();
    loop {
        let mut third = connect(&server);
        third.write_all(head(&upstream).as_bytes()).unwrap();
        if read_head(&mut third) == "HTTP/1.1 200 OK" {
            break;
        }
        assert!(started.elapsed() < PATIENCE);
    }
}

support::test_on_each_engine!(a_tunnel_counts_as_long_as_it_lives);

fn a_tunnel_outlives_a_reload_and_a_shutdown_timeout_ends_it(engine: &'static str) {
    let lines = |refusal: &str| {
        format!("[main]\nworker_shutdown_timeout 2s;\nerror_log logs/error.log info; {refusal}")
    };
    let server = Server::start(engine, &lines("tunnel_pass;"));
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut client, mut peer) = open(&server, &upstream);
    server.reload(&lines("location / { return 404; }"));
    // Another client finds no tunnel any more.
    let started = Instant::now();
    loop {
        let mut other = connect(&server);
        other.write_all(head(&upstream).as_bytes()).unwrap();
        match read_head(&mut other).as_str() {
            "HTTP/1.1 405 Not Allowed" => break,
            answer => assert_eq!(answer, "HTTP/1.1 200 OK"),
        }
        assert!(started.elapsed() < PATIENCE);
    }
    let mut echo = |text: &[u8]| -> std::io::Result<()> {
        client.write_all(text)?;
        let mut heard = vec![0; text.len()];
        peer.read_exact(&mut heard)?;
        peer.write_all(&heard)?;
        client.read_exact(&mut heard)?;
        assert_eq!(heard, text);
        Ok(())
    };
    echo(b"after the reload").unwrap();
    let started = Instant::now();
    while echo(b"still there").is_ok() {
        assert!(started.elapsed() < PATIENCE, "it never ends");
        thread::sleep(Duration::from_millis(20));
    }
}

support::test_on_each_engine!(a_tunnel_outlives_a_reload_and_a_shutdown_timeout_ends_it);

/// HTTP/2 has a CONNECT as well, which neither nginx nor we make tunnels for: what it lacks is
/// asked for first.
#[test]
fn there_is_no_connect_over_http2() {
    each_server("http2 on;", |server, _| {
        let mut client = support::http2::Client::connect(server.port);
        let plain = [(":method", "CONNECT"), (":authority", "127.0.0.1:1")];
        let with_path = [plain[0], plain[1], (":scheme", "http"), (":path", "/")];
        for (fields, status) in [(&plain[..], 400), (&with_path[..], 405)] {
            let stream = client.next_stream();
            let block = client.encode(fields);
            let mut out = Vec::new();
            proto::h2::frame::put_header_block(&mut out, stream, &block, true, 16_384);
            client.send(&out);
            assert_eq!(client.response(stream).status, status);
        }
    });
}
