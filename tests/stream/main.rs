//! The TCP and UDP proxy from outside: bytes, how sessions end, and what their lines say. On both
//! engines; the lines are those of nginx 1.31, against which TIDEGATE_BINARY checks the test
//! itself.

mod beginnings;
mod behind;
mod bulk;
mod counted;
mod datagrams;
mod groups;
mod health;
mod memcached_server;
mod mqtt;
mod passing;
mod quic;
mod real_servers;
mod sockets;
mod sticky;
mod succession;
mod tls;
mod under_load;
mod values;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use support::master::{Master, wait_for};
use support::port::free_port;
use support::{PATIENCE, engines, is_nginx};

const FORMAT: &str = "log_format session '$remote_addr $protocol $status $bytes_sent \
                      $bytes_received $upstream_addr $upstream_bytes_sent \
                      $upstream_bytes_received'; access_log @/logs/sessions.log session;";

/// The engines to be tested, as lines of `events`; nginx has its own.
fn each_engine() -> Vec<&'static str> {
    if is_nginx() {
        vec![""]
    } else {
        engines::lines()
    }
}

/// A server with these lines in its `stream` block.
fn start(engine: &str, lines: &str) -> Master {
    let mut master = Master::new();
    configure(&master, engine, lines);
    master.start();
    master
}

fn configure(master: &Master, engine: &str, lines: &str) {
    configure_whole(master, engine, lines, "");
}

/// The same with other blocks beside `stream`.
fn configure_whole(master: &Master, engine: &str, lines: &str, others: &str) {
    master.configure(&format!(
        "error_log @/logs/info.log info;\nevents {{ {engine} }}\nstream {{\n{FORMAT}\n{lines}\n}}\n{others}"
    ));
}

/// Has the configuration read again, and waits until it is in force.
fn reload(master: &Master) {
    let (code, said) = master.run(&["-s", "reload"]);
    assert_eq!(code, Some(0), "{said}");
}

fn connect(port: u16) -> TcpStream {
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// Says everything back until its client closes, or says `quit`; the port.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            thread::spawn(move || serve_echo(client.unwrap()));
        }
    });
    port
}

fn serve_echo(mut client: TcpStream) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        if client.write_all(&buffer[..count]).is_err() || buffer.starts_with(b"quit") {
            return;
        }
    }
}

/// What comes until the other end closes, gently or not.
fn rest(client: &mut TcpStream) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 64 * 1024]);
    loop {
        match client.read(&mut buffer) {
            Ok(count @ 1..) => all.extend_from_slice(&buffer[..count]),
            Ok(_) => return all,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return all,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error} after {} bytes", all.len()),
        }
    }
}

/// Says something and hears it said back.
fn say(client: &mut TcpStream, text: &[u8]) {
    client.write_all(text).unwrap();
    let mut heard = vec![0; text.len()];
    client.read_exact(&mut heard).unwrap();
    assert!(heard == text, "other bytes came back");
}

/// The access log once it has so many lines.
fn sessions(master: &Master, count: usize) -> Vec<String> {
    wait_for("session's line", || {
        master.read("logs/sessions.log").lines().count() >= count
    });
    let log = master.read("logs/sessions.log");
    log.lines().map(str::to_owned).collect()
}

/// The error log's line that holds a text, from its `*` on and without it.
fn line_with(master: &Master, text: &str) -> String {
    master.wait_for_text("logs/info.log", text);
    let log = master.read("logs/info.log");
    let line = log.lines().find(|line| line.contains(text)).unwrap();
    let (_, from) = line.split_once('*').unwrap();
    let (_, said) = from.split_once(' ').unwrap();
    said.to_owned()
}

fn bytes_pass_both_ways_until_an_end_closes(engine: &'static str) {
    let upstream = echo();
    let port = free_port();
    let listen = format!("server {{ listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{upstream}; }}");
    let master = start(engine, &listen);
    let mut client = connect(port);
    say(&mut client, b"hi");
    let local = client.local_addr().unwrap();
    drop(client);
    let mut client = connect(port);
    say(&mut client, b"quit");
    assert_eq!(rest(&mut client), b"");
    let big: Vec<u8> = (0..3_000_000_u32).map(|at| (at * 31) as u8).collect();
    let mut client = connect(port);
    let mut writer = client.try_clone().unwrap();
    let sent = big.clone();
    let writing = thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut heard = vec![0; big.len()];
    client.read_exact(&mut heard).unwrap();
    writing.join().unwrap();
    assert!(heard == big, "other bytes came back");
    drop(client);
    let lines = sessions(&master, 3);
    let of =
        |bytes| format!("127.0.0.1 TCP 200 {bytes} {bytes} 127.0.0.1:{upstream} {bytes} {bytes}");
    assert_eq!(lines, [of(2), of(4), of(3_000_000)]);
    assert_eq!(
        line_with(&master, "connected to 127.0.0.1"),
        format!("client {local} connected to 127.0.0.1:{port}")
    );
    assert_eq!(
        line_with(&master, "client disconnected"),
        "client disconnected, bytes from/to client:2/2, bytes from/to upstream:2/2"
    );
    assert_eq!(
        line_with(&master, "upstream disconnected"),
        "upstream disconnected, bytes from/to client:4/4, bytes from/to upstream:4/4"
    );
}

support::test_on_each_engine!(bytes_pass_both_ways_until_an_end_closes);

fn what_cannot_be_connected_to_is_502(engine: &'static str) {
    let dead = free_port();
    let (port, other) = (free_port(), free_port());
    let master = start(
        engine,
        &format!(
            "server {{ listen {port}; proxy_pass 127.0.0.1:{dead}; }}
             server {{ listen 127.0.0.1:{other}; proxy_pass unix:@/missing; }}"
        ),
    );
    assert_eq!(rest(&mut connect(port)), b"");
    assert_eq!(
        sessions(&master, 1),
        [format!("127.0.0.1 TCP 502 0 0 127.0.0.1:{dead} 0 0")]
    );
    assert_eq!(
        line_with(&master, "refused"),
        format!(
            "connect() failed (111: Connection refused) while connecting to upstream, \
             client: 127.0.0.1, server: 0.0.0.0:{port}, upstream: \"127.0.0.1:{dead}\", \
             bytes from/to client:0/0, bytes from/to upstream:0/0"
        )
    );
    assert_eq!(rest(&mut connect(other)), b"");
    let missing = format!("unix:{}/missing", master.folder.display());
    assert_eq!(
        line_with(&master, "No such file"),
        format!(
            "connect() to {missing} failed (2: No such file or directory) while connecting to \
             upstream, client: 127.0.0.1, server: 127.0.0.1:{other}, upstream: \"{missing}\", \
             bytes from/to client:0/0, bytes from/to upstream:0/0"
        )
    );
}

support::test_on_each_engine!(what_cannot_be_connected_to_is_502);

fn access_texts_and_variables(engine: &'static str) {
    let upstream = echo();
    let ports: [u16; 5] = std::array::from_fn(|_| free_port());
    let [denied, returned, mapped, nowhere, nothing] = ports;
    let master = start(
        engine,
        &format!(
            "map $remote_addr $where {{ default {upstream}; }}
             server {{ listen 127.0.0.1:{denied}; deny 127.0.0.1; allow all;
                 proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{returned}; return \"hello $remote_addr\"; }}
             server {{ listen 127.0.0.1:{mapped}; proxy_pass 127.0.0.1:$where; }}
             server {{ listen 127.0.0.1:{nowhere}; proxy_pass $remote_addr; }}
             server {{ listen 127.0.0.1:{nothing}; }}"
        ),
    );
    assert_eq!(rest(&mut connect(denied)), b"");
    assert_eq!(
        line_with(&master, "forbidden"),
        format!(
            "access forbidden by rule while initializing session, client: 127.0.0.1, \
             server: 127.0.0.1:{denied}"
        )
    );
    assert_eq!(rest(&mut connect(returned)), b"hello 127.0.0.1");
    let mut client = connect(mapped);
    say(&mut client, b"hi");
    drop(client);
    sessions(&master, 3);
    assert_eq!(rest(&mut connect(nowhere)), b"");
    sessions(&master, 4);
    assert_eq!(rest(&mut connect(nothing)), b"");
    assert_eq!(
        sessions(&master, 5),
        [
            "127.0.0.1 TCP 403 0 0 - - -".to_owned(),
            "127.0.0.1 TCP 200 15 0 - - -".to_owned(),
            format!("127.0.0.1 TCP 200 2 2 127.0.0.1:{upstream} 2 2"),
            "127.0.0.1 TCP 500 0 0 - - -".to_owned(),
            "127.0.0.1 TCP 500 0 0 - - -".to_owned(),
        ]
    );
}

support::test_on_each_engine!(access_texts_and_variables);

fn silence_ends_a_session_and_half_closed_ends_are_answered(engine: &'static str) {
    let upstream = echo();
    let ports: [u16; 3] = std::array::from_fn(|_| free_port());
    let [short, half, whole] = ports;
    let master = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{short}; proxy_timeout 100ms;
                 proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{half}; proxy_half_close on;
                 proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{whole}; proxy_pass 127.0.0.1:{upstream}; }}"
        ),
    );
    let mut client = connect(short);
    say(&mut client, b"wait");
    assert_eq!(rest(&mut client), b"");
    assert_eq!(
        line_with(&master, "timed out"),
        format!(
            "connection timed out (110: Connection timed out) while proxying connection, \
             client: 127.0.0.1, server: 127.0.0.1:{short}, \
             upstream: \"127.0.0.1:{upstream}\", bytes from/to client:4/4, \
             bytes from/to upstream:4/4"
        )
    );
    // With `proxy_half_close` all is said back to a client that has closed its way to us.
    let mut client = connect(half);
    let text = vec![b'y'; 300_000];
    let mut writer = client.try_clone().unwrap();
    let sent = text.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    assert!(rest(&mut client) == text);
    writing.join().unwrap();
    // Without, such a client's session ends.
    let mut client = connect(whole);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut client), b"");
    assert_eq!(
        sessions(&master, 3)[1..],
        [
            format!("127.0.0.1 TCP 200 300000 300000 127.0.0.1:{upstream} 300000 300000"),
            format!("127.0.0.1 TCP 200 0 0 127.0.0.1:{upstream} 0 0"),
        ]
    );
}

support::test_on_each_engine!(silence_ends_a_session_and_half_closed_ends_are_answered);

/// As in nginx sessions go on by the configuration that they have begun by, and a master that is to
/// quit waits for them.
fn sessions_outlive_reloads(engine: &'static str) {
    let upstream = echo();
    let (kept, gone) = (free_port(), free_port());
    let server =
        |port| format!("server {{ listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{upstream}; }}");
    let mut master = start(engine, &format!("{} {}", server(kept), server(gone)));
    let mut clients = [connect(kept), connect(gone)];
    clients.iter_mut().for_each(|client| say(client, b"before"));
    configure(
        &master,
        engine,
        &format!("server {{ listen 127.0.0.1:{kept}; return new; }}"),
    );
    master.signal("HUP");
    wait_for("closed port", || {
        TcpStream::connect(("127.0.0.1", gone)).is_err()
    });
    assert_eq!(rest(&mut connect(kept)), b"new");
    clients.iter_mut().for_each(|client| say(client, b"after"));
    master.signal("QUIT");
    wait_for("closed port", || {
        TcpStream::connect(("127.0.0.1", kept)).is_err()
    });
    clients
        .iter_mut()
        .for_each(|client| say(client, b"still there"));
    assert!(master.ended().is_none());
    drop(clients);
    assert!(master.wait().success());
}

support::test_on_each_engine!(sessions_outlive_reloads);

/// A client that reads nothing holds up its own session, and no more of it is read than fits.
fn who_does_not_read_is_waited_for(engine: &'static str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = listener.local_addr().unwrap().port();
    let port = free_port();
    let master = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{port} rcvbuf=32k sndbuf=32k; proxy_buffer_size 16k;
                 proxy_pass 127.0.0.1:{upstream}; }}"
        ),
    );
    let mut client = connect(port);
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let block = vec![7; 64 * 1024];
    let mut written = 0;
    while let Ok(count) = peer.write(&block) {
        written += count;
        assert!(written < 64 << 20, "everything is taken");
    }
    // The other way is open.
    client.write_all(b"up").unwrap();
    let mut heard = [0; 2];
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"up");
    drop(peer);
    assert_eq!(rest(&mut client).len(), written);
    let line = sessions(&master, 1).remove(0);
    assert_eq!(
        line,
        format!("127.0.0.1 TCP 200 {written} 2 127.0.0.1:{upstream} 2 {written}")
    );
}

support::test_on_each_engine!(who_does_not_read_is_waited_for);

/// Bytes beyond the rate wait, and the session is not silent meanwhile.
fn rates_hold_bytes_back(engine: &'static str) {
    let upstream = echo();
    let (up, down) = (free_port(), free_port());
    let master = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{up}; proxy_upload_rate 100k; proxy_timeout 600ms;
                 proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{down}; proxy_download_rate 100k; proxy_timeout 600ms;
                 proxy_pass 127.0.0.1:{upstream}; }}"
        ),
    );
    for port in [up, down] {
        let text = vec![b'r'; 300_000];
        let mut client = connect(port);
        let mut writer = client.try_clone().unwrap();
        let sent = text.clone();
        let writing = thread::spawn(move || writer.write_all(&sent).unwrap());
        let mut heard = vec![0; text.len()];
        let began = Instant::now();
        client.read_exact(&mut heard).unwrap();
        // 100 KiB are there in each second from the first on: the last come after one more.
        assert!(began.elapsed() >= Duration::from_millis(900));
        writing.join().unwrap();
    }
    assert!(!master.read("logs/info.log").contains("timed out"));
}

support::test_on_each_engine!(rates_hold_bytes_back);

/// Ours: however busy a session is, it ends.
fn a_session_lives_for_as_long_as_it_may(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let upstream = echo();
    let (short, long) = (free_port(), free_port());
    let master = start(
        engine,
        &format!(
            "proxy_session_time 1h;
             server {{ listen 127.0.0.1:{short}; proxy_session_time 400ms;
                 proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{long}; proxy_pass 127.0.0.1:{upstream}; }}"
        ),
    );
    let (mut client, mut other) = (connect(short), connect(long));
    let began = Instant::now();
    let mut heard = [0; 4];
    while client.write_all(b"busy").is_ok() && client.read_exact(&mut heard).is_ok() {
        assert!(began.elapsed() < PATIENCE);
        say(&mut other, b"busy");
    }
    assert!(began.elapsed() >= Duration::from_millis(390));
    let line = line_with(&master, "session time is over");
    assert!(
        line.starts_with("session time is over while proxying connection, client: 127.0.0.1"),
        "{line}"
    );
    say(&mut other, b"still there");
    drop(other);
    let lines = sessions(&master, 2);
    assert!(lines[0].starts_with("127.0.0.1 TCP 200 "), "{lines:?}");
}

support::test_on_each_engine!(a_session_lives_for_as_long_as_it_may);

/// As in nginx a client that takes nothing of a text for five seconds is closed.
fn who_does_not_take_a_text_is_closed(engine: &'static str) {
    let port = free_port();
    let (word, repeated) = ("x".repeat(4000), "$word".repeat(800));
    let master = start(
        engine,
        &format!(
            "map $remote_addr $word {{ default {word}; }}
             server {{ listen 127.0.0.1:{port} sndbuf=32k; return {repeated}; }}"
        ),
    );
    let client = connect(port);
    let line = line_with(&master, "timed out");
    assert!(
        line.starts_with(
            "connection timed out (110: Connection timed out) while returning text, \
             client: 127.0.0.1, server: 127.0.0.1:"
        ),
        "{line}"
    );
    let line = sessions(&master, 1).remove(0);
    assert!(line.starts_with("127.0.0.1 TCP 200 "), "{line}");
    drop(client);
}

support::test_on_each_engine!(who_does_not_take_a_text_is_closed);
