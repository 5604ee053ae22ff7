//! Datagrams: which of them make a session, how a session ends, and what its lines say.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::thread;

use support::PATIENCE;
use support::is_nginx;
use support::master::{Master, wait_for};
use support::port::free_port;

use super::{configure, reload, sessions, start};

/// Says each datagram back behind `>`; the port.
fn echo_datagrams() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = vec![0; 65536];
        while let Ok((count, client)) = socket.recv_from(&mut buffer) {
            let answer = [b">", &buffer[..count]].concat();
            // The longest datagram has no room for the sign.
            let answer = if answer.len() > 65507 {
                &answer[1..]
            } else {
                &answer
            };
            socket.send_to(answer, client).unwrap();
        }
    });
    port
}

/// A client whose datagrams go to a port.
fn datagrams_to(port: u16) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

fn receive(client: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65536];
    // A socket with a time limit is interrupted by signals for this process (signal(7)).
    let count = loop {
        match client.recv(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => break received.unwrap(),
        }
    };
    buffer.truncate(count);
    buffer
}

/// A port of UDP that nothing has.
fn closed_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn a_datagram_and_its_answer_make_a_session(engine: &'static str) {
    let (behind, port, other) = (echo_datagrams(), free_port(), free_port());
    let master = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{port} udp; proxy_pass 127.0.0.1:{behind};
                       proxy_responses 1; }}
             server {{ listen 127.0.0.1:{other} udp; return '$protocol $remote_addr'; }}"
        ),
    );
    let client = datagrams_to(port);
    client.send(b"one").unwrap();
    assert_eq!(receive(&client), b">one");
    let empty = datagrams_to(port);
    empty.send(b"").unwrap();
    assert_eq!(receive(&empty), b">");
    let told = datagrams_to(other);
    told.send(b"who").unwrap();
    assert_eq!(receive(&told), b"UDP 127.0.0.1");
    let lines = sessions(&master, 3);
    let upstream = format!("127.0.0.1:{behind}");
    assert_eq!(lines[0], format!("127.0.0.1 UDP 200 4 3 {upstream} 3 4"));
    assert_eq!(lines[1], format!("127.0.0.1 UDP 200 1 0 {upstream} 0 1"));
    assert_eq!(lines[2], "127.0.0.1 UDP 200 13 3 - - -");
    let info = master.read("logs/info.log");
    for line in [
        format!(" connected to 127.0.0.1:{port}\n"),
        format!(" connected to {upstream}\n"),
        "udp done, packets from/to client:1/1, bytes from/to client:3/4, \
         bytes from/to upstream:4/3\n"
            .to_owned(),
    ] {
        assert!(info.contains(&line), "{line} in {info}");
    }
    assert!(info.contains("udp client 127.0.0.1:"), "{info}");
    assert!(info.contains("udp proxy 127.0.0.1:"), "{info}");
}

support::test_on_each_engine!(a_datagram_and_its_answer_make_a_session);

fn a_session_of_datagrams_is_as_long_as_its_counts_say(engine: &'static str) {
    let (behind, port) = (echo_datagrams(), free_port());
    let [twice, silent] = [free_port(), free_port()];
    let master = start(
        engine,
        &format!(
            "proxy_timeout 300ms;
             server {{ listen 127.0.0.1:{port} udp; proxy_pass 127.0.0.1:{behind}; }}
             server {{ listen 127.0.0.1:{twice} udp; proxy_pass 127.0.0.1:{behind};
                       proxy_requests 2; proxy_responses 1; }}
             server {{ listen 127.0.0.1:{silent} udp; proxy_pass 127.0.0.1:{behind};
                       proxy_responses 0; }}"
        ),
    );
    // Without a count a session takes whatever comes until both ends are silent.
    let client = datagrams_to(port);
    for text in ["a", "bc", "def"] {
        client.send(text.as_bytes()).unwrap();
        assert_eq!(receive(&client), format!(">{text}").as_bytes());
    }
    let upstream = format!("127.0.0.1:{behind}");
    let all = sessions(&master, 1);
    assert_eq!(all[0], format!("127.0.0.1 UDP 200 9 6 {upstream} 6 9"));

    // The third datagram of a client is of another session.
    let client = datagrams_to(twice);
    for text in ["1", "2", "3"] {
        client.send(text.as_bytes()).unwrap();
    }
    let mut answers: Vec<_> = (0..3).map(|_| receive(&client)).collect();
    answers.sort_unstable();
    assert_eq!(answers, [b">1", b">2", b">3"]);
    let all = sessions(&master, 3);
    assert_eq!(all[1], format!("127.0.0.1 UDP 200 4 2 {upstream} 2 4"));
    assert_eq!(all[2], format!("127.0.0.1 UDP 200 2 1 {upstream} 1 2"));

    // No answer is expected: the session is over at once.
    let client = datagrams_to(silent);
    client.send(b"log line").unwrap();
    let all = sessions(&master, 4);
    assert_eq!(all[3], format!("127.0.0.1 UDP 200 0 8 {upstream} 8 0"));
}

support::test_on_each_engine!(a_session_of_datagrams_is_as_long_as_its_counts_say);

/// Ours: a client's datagrams are of another session once the time of the first is over.
fn a_session_of_datagrams_lives_for_as_long_as_it_may(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let (behind, port) = (echo_datagrams(), free_port());
    let master = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{port} udp; proxy_pass 127.0.0.1:{behind};
                 proxy_session_time 300ms; }}"
        ),
    );
    let client = datagrams_to(port);
    let count = |master: &Master| master.read("logs/sessions.log").lines().count();
    let mut sent = 0;
    while count(&master) < 2 {
        client.send(b"more").unwrap();
        assert_eq!(receive(&client), b">more");
        sent += 1;
        thread::sleep(std::time::Duration::from_millis(20));
    }
    master.wait_for_text(
        "logs/info.log",
        "udp session time is over, packets from/to client:",
    );
    let lines = sessions(&master, 2);
    assert!(
        lines
            .iter()
            .all(|line| line.starts_with("127.0.0.1 UDP 200 "))
    );
    // Sent every 20 ms for 300 ms, twice.
    assert!(sent < 40, "{sent}");
}

support::test_on_each_engine!(a_session_of_datagrams_lives_for_as_long_as_it_may);

/// Several threads serve: all that one client sends is of one session, written so or not.
fn a_client_stays_with_its_thread(engine: &'static str) {
    for option in ["", " reuseport"] {
        if is_nginx() && option.is_empty() {
            continue; // its processes share the socket
        }
        let (behind, port) = (echo_datagrams(), free_port());
        let mut master = Master::new();
        configure(
            &master,
            engine,
            &format!(
                "server {{ listen 127.0.0.1:{port} udp{option};
                     proxy_pass 127.0.0.1:{behind}; proxy_timeout 500ms; }}"
            ),
        );
        let path = master.folder.join("nginx.conf");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("worker_processes 3;\n{text}")).unwrap();
        master.start();
        let clients: Vec<UdpSocket> = (0..12).map(|_| datagrams_to(port)).collect();
        for number in 0..20_u8 {
            for client in &clients {
                client.send(&[number]).unwrap();
            }
            for client in &clients {
                assert_eq!(receive(client), [b'>', number]);
            }
        }
        // Another program is not joined, and does not join without being asked to.
        assert!(UdpSocket::bind(("127.0.0.1", port)).is_err());
        let lines = sessions(&master, clients.len());
        let line = format!("127.0.0.1 UDP 200 40 20 127.0.0.1:{behind} 20 40");
        assert_eq!(lines, vec![line; clients.len()]);
    }
}

support::test_on_each_engine!(a_client_stays_with_its_thread);

fn a_server_that_does_not_answer_datagrams_is_told_of(engine: &'static str) {
    let (closed, port) = (closed_port(), free_port());
    let [mute, denied] = [free_port(), free_port()];
    let deaf = UdpSocket::bind("127.0.0.1:0").unwrap();
    let deaf_port = deaf.local_addr().unwrap().port();
    let master = start(
        engine,
        &format!(
            "proxy_timeout 200ms; proxy_responses 1;
             server {{ listen 127.0.0.1:{port} udp; proxy_pass 127.0.0.1:{closed}; }}
             server {{ listen 127.0.0.1:{mute} udp; proxy_pass 127.0.0.1:{deaf_port}; }}
             server {{ listen 127.0.0.1:{denied} udp; proxy_pass 127.0.0.1:{deaf_port};
                       deny all; }}"
        ),
    );
    for (number, to) in [port, mute, denied].into_iter().enumerate() {
        datagrams_to(to).send(b"hello").unwrap();
        sessions(&master, number + 1);
    }
    assert_eq!(
        sessions(&master, 3),
        [
            format!("127.0.0.1 UDP 200 0 5 127.0.0.1:{closed} 5 0"),
            format!("127.0.0.1 UDP 502 0 5 127.0.0.1:{deaf_port} 5 0"),
            "127.0.0.1 UDP 403 0 5 - - -".to_owned(),
        ]
    );
    let info = master.read("logs/info.log");
    for line in [
        "recv() failed (111: Connection refused) while proxying and reading from upstream, \
         udp client: 127.0.0.1, server: 127.0.0.1:",
        "upstream timed out (110: Connection timed out) while proxying connection, \
         udp client: 127.0.0.1",
        "access forbidden by rule while initializing session, udp client: 127.0.0.1",
    ] {
        assert!(info.contains(line), "{line} in {info}");
    }
}

support::test_on_each_engine!(a_server_that_does_not_answer_datagrams_is_told_of);

fn datagrams_of_any_length_pass_and_a_reload_cuts_no_session(engine: &'static str) {
    let (behind, port) = (echo_datagrams(), free_port());
    let lines = |comment: &str| {
        format!(
            "{comment} server {{ listen 127.0.0.1:{port} udp; proxy_pass 127.0.0.1:{behind}; }}"
        )
    };
    let master = start(engine, &lines(""));
    let client = datagrams_to(port);
    // nginx cuts what is longer than its buffer of 16 KB.
    let lengths: &[usize] = if is_nginx() {
        &[1, 9000]
    } else {
        &[1, 9000, 40_000, 65_506]
    };
    for length in lengths {
        client.send(&vec![b'x'; *length]).unwrap();
        assert_eq!(receive(&client).len(), length + 1);
    }
    if is_nginx() {
        return;
    }
    let other = free_port();
    let second = format!("server {{ listen 127.0.0.1:{other} udp; return new; }}");
    configure(&master, engine, &lines(&second));
    master.signal("HUP");
    wait_for("the new server", || {
        let probe = datagrams_to(other);
        probe.send(b"?").unwrap();
        let mut answer = [0; 3];
        probe.recv(&mut answer).is_ok()
    });
    client.send(b"still there").unwrap();
    assert_eq!(receive(&client), b">still there");
    let info = master.read("logs/info.log");
    assert_eq!(info.matches("udp proxy").count(), 1, "{info}");
}

support::test_on_each_engine!(datagrams_of_any_length_pass_and_a_reload_cuts_no_session);

#[test]
fn a_line_for_datagrams_refuses_options_of_streams() {
    let options = ["backlog=5", "deferred", "fastopen=3", "so_keepalive=on"];
    for option in options {
        let master = Master::new();
        configure(
            &master,
            "",
            &format!("server {{ listen 127.0.0.1:1 udp {option}; return x; }}"),
        );
        let (_, refused) = master.run(&["-t"]);
        let name = option.split('=').next().unwrap();
        let text = format!("\"{name}\" parameter is incompatible with \"udp\"");
        assert!(refused.contains(&text), "{refused}");
    }
}

/// A session that ends because its peer refuses leaves what has come meanwhile to the next one;
/// nginx does not pass on what follows a refusal.
fn datagrams_behind_a_refusal_are_passed_on(engine: &'static str) {
    const CLIENTS: usize = 5;
    if is_nginx() {
        return;
    }
    let (dead, port) = (closed_port(), free_port());
    // The rate holds a client's second datagram back until the first one has been refused.
    let master = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{port} udp; proxy_pass 127.0.0.1:{dead};
                       proxy_responses 1; proxy_upload_rate 1; }}"
        ),
    );
    for _ in 0..CLIENTS {
        let client = datagrams_to(port);
        client.send(b"four").unwrap();
        client.send(b"more").unwrap();
    }
    let bytes = |place: usize| {
        let log = master.read("logs/sessions.log");
        let of = |line: &str| line.split(' ').nth(place)?.parse::<usize>().ok();
        log.lines().filter_map(of).sum::<usize>()
    };
    wait_for("bytes of all datagrams", || bytes(4) == CLIENTS * 8);
    assert_eq!(
        bytes(6),
        CLIENTS * 8,
        "{}",
        master.read("logs/sessions.log")
    );
}

support::test_on_each_engine!(datagrams_behind_a_refusal_are_passed_on);

/// Sessions whose server does not answer make room for others, those that are silent for longest
/// first.
fn clients_that_get_no_answer_keep_nobody_out(engine: &'static str) {
    if is_nginx() {
        return; // its limit counts listening sockets as well
    }
    let deaf = UdpSocket::bind("127.0.0.1:0").unwrap();
    let deaf_port = deaf.local_addr().unwrap().port();
    let (behind, mute, port) = (echo_datagrams(), free_port(), free_port());
    let master = start(
        &format!("{engine} worker_connections 64;"),
        &format!(
            "server {{ listen 127.0.0.1:{mute} udp; proxy_pass 127.0.0.1:{deaf_port}; }}
             server {{ listen 127.0.0.1:{port} udp; proxy_pass 127.0.0.1:{behind}; }}"
        ),
    );
    let active = datagrams_to(port);
    for _ in 0..100 {
        // Each takes a place for its client and one for its server.
        let crowd: Vec<UdpSocket> = (0..4).map(|_| datagrams_to(mute)).collect();
        crowd.iter().for_each(|one| drop(one.send(b"hello")));
        active.send(b"here").unwrap();
        assert_eq!(receive(&active), b">here");
    }
    let other = datagrams_to(port);
    other.send(b"new").unwrap();
    assert_eq!(receive(&other), b">new");
    let info = master.read("logs/info.log");
    let to_behind = format!(" connected to 127.0.0.1:{behind}\n");
    assert_eq!(info.matches(&to_behind).count(), 2, "active all the time");
    assert!(info.contains("reusing connections"), "{info}");
}

support::test_on_each_engine!(clients_that_get_no_answer_keep_nobody_out);

/// Lengths of datagrams in a burst: equal ones, which may travel together, and all others beside
/// them.
fn burst_lengths() -> Vec<usize> {
    let mut lengths = vec![1200; 20];
    lengths.extend([
        1199, 1200, 1200, 0, 0, 9, 9, 9, 2, 9, 1452, 1452, 1453, 1453,
    ]);
    // nginx cuts what is longer than its buffer of 16 KB.
    lengths.extend([9000, if is_nginx() { 16_000 } else { 65_507 }, 1]);
    lengths
}

/// The datagrams of a burst, each with its place in its bytes.
fn burst() -> Vec<Vec<u8>> {
    let numbered = (1_u8..).zip(burst_lengths());
    numbered
        .map(|(number, length)| vec![number; length])
        .collect()
}

/// Receives a burst; other datagrams may come before it.
fn receive_burst(socket: &UdpSocket) {
    for (number, sent) in burst().into_iter().enumerate() {
        let received = receive(socket);
        assert_eq!(received.len(), sent.len(), "datagram {number}");
        assert_eq!(received, sent, "datagram {number}");
    }
}

fn bursts_arrive_datagram_by_datagram(engine: &'static str) {
    const ROUNDS: usize = 8;
    for responses in ["", "proxy_responses 0;", "proxy_responses 1;"] {
        let behind = UdpSocket::bind("127.0.0.1:0").unwrap();
        behind.set_read_timeout(Some(PATIENCE)).unwrap();
        let (to, port) = (behind.local_addr().unwrap(), free_port());
        let _master = start(
            engine,
            &format!("server {{ listen 127.0.0.1:{port} udp; proxy_pass {to}; {responses} }}"),
        );
        let client = datagrams_to(port);
        for _ in 0..ROUNDS {
            burst().iter().for_each(|one| drop(client.send(one)));
            let mut first = [0; 2000];
            let (count, session) = behind.peek_from(&mut first).unwrap();
            assert_eq!(first[..count], [1; 1200]);
            receive_burst(&behind);
            if responses == "proxy_responses 0;" {
                continue; // the session is over
            }
            for answer in burst() {
                behind.send_to(&answer, session).unwrap();
            }
            receive_burst(&client);
        }
    }
}

support::test_on_each_engine!(bursts_arrive_datagram_by_datagram);

/// What the network says of one datagram does not stop the others of a burst, nor change their
/// order.
fn a_refusal_takes_no_datagram_of_a_burst(engine: &'static str) {
    if is_nginx() {
        return; // it ends the session
    }
    let behind = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (to, port) = (behind.local_addr().unwrap(), free_port());
    let master = start(
        engine,
        &format!("server {{ listen 127.0.0.1:{port} udp; proxy_pass {to}; }}"),
    );
    let client = datagrams_to(port);
    client.send(b"first").unwrap();
    behind.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(receive(&behind), b"first");
    for _ in 0..5 {
        client.send(b"lost").unwrap();
        assert_eq!(receive(&behind), b"lost");
    }
    drop(behind);
    for _ in 0..7 {
        client.send(b"refused").unwrap();
    }
    wait_for("the refusal", || {
        let info = master.read("logs/info.log");
        info.contains("recv() failed (111: Connection refused)")
    });
    let behind = UdpSocket::bind(to).unwrap();
    behind.set_read_timeout(Some(PATIENCE)).unwrap();
    burst().iter().for_each(|one| drop(client.send(one)));
    // Some that were refused may still be on their way.
    let mut first = [0; 2000];
    while behind.peek(&mut first).unwrap() == b"refused".len() {
        receive(&behind);
    }
    receive_burst(&behind);
    let info = master.read("logs/info.log");
    assert_eq!(info.matches("udp proxy").count(), 1, "{info}");
}

support::test_on_each_engine!(a_refusal_takes_no_datagram_of_a_burst);

/// A PROXY protocol header of version 2 for datagrams from 192.0.2.`last`, with a TLV.
fn header(last: u8) -> Vec<u8> {
    let start = *b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x11";
    let addresses = [192, 0, 2, last, 192, 0, 2, 99, 2, 188, 3, 32];
    [&start[..], &addresses, b"\x01\0\x02h3"].concat()
}

fn proxy_headers_of_datagrams_tell_who_the_client_is(engine: &'static str) {
    if is_nginx() {
        return; // it has no headers of datagrams
    }
    let text = "return \"$remote_addr:$remote_port $realip_remote_addr $proxy_protocol_addr:\
                $proxy_protocol_port $proxy_protocol_server_addr:$proxy_protocol_server_port \
                $proxy_protocol_tlv_alpn\"";
    let behind = echo_datagrams();
    let [told, trusted, passed, chain] = [(); 4].map(|()| free_port());
    let master = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{told} udp proxy_protocol;
                 set_real_ip_from 127.0.0.2; {text}; }}
             server {{ listen 127.0.0.1:{trusted} udp proxy_protocol;
                 set_real_ip_from 127.0.0.0/8; deny 192.0.2.66; {text}; }}
             server {{ listen 127.0.0.1:{passed} udp proxy_protocol;
                 set_real_ip_from 127.0.0.0/8; proxy_pass 127.0.0.1:{behind};
                 proxy_responses 1; proxy_requests 2; }}
             server {{ listen 127.0.0.1:{chain} udp;
                 proxy_pass 127.0.0.1:{trusted}; proxy_protocol v2; proxy_responses 1; }}"
        ),
    );
    let answer = |port: u16, beginning: &[u8]| {
        let client = datagrams_to(port);
        client.send(beginning).unwrap();
        let own = client.local_addr().unwrap().port();
        (String::from_utf8(receive(&client)).unwrap(), own)
    };
    let (heard, own) = answer(told, &header(1));
    let expected = format!("127.0.0.1:{own} 127.0.0.1 192.0.2.1:700 192.0.2.99:800 h3");
    assert_eq!(heard, expected);
    let (heard, _) = answer(trusted, &header(7));
    let expected = "192.0.2.7:700 127.0.0.1 192.0.2.7:700 192.0.2.99:800 h3";
    assert_eq!(heard, expected);
    // A proxy of this program's own in front.
    let (heard, own) = answer(chain, b"");
    let expected = format!("127.0.0.1:{own} 127.0.0.1 127.0.0.1:{own} 127.0.0.1:{chain} ");
    assert_eq!(heard, expected);
    // Version 1, and a check of the proxy's own, which names nobody.
    let (heard, _) = answer(trusted, b"PROXY TCP4 192.0.2.1 192.0.2.2 10 20\r\n");
    assert_eq!(heard, "192.0.2.1:10 127.0.0.1 192.0.2.1:10 192.0.2.2:20 ");
    let (heard, own) = answer(trusted, b"\r\n\r\n\0\r\nQUIT\n\x20\x00\0\0");
    assert_eq!(heard, format!("127.0.0.1:{own} 127.0.0.1 : : "));

    // The first datagram of a session has the header, and nothing else is taken for one.
    let client = datagrams_to(passed);
    client.send(&[&header(7)[..], b"one"].concat()).unwrap();
    assert_eq!(receive(&client), b">one");
    client.send(&header(8)).unwrap();
    assert_eq!(receive(&client), [b">", &header(8)[..]].concat());
    let all = sessions(&master, 7);
    // Bytes of the header do not count, as over TCP.
    let line = format!("192.0.2.7 UDP 200 38 36 127.0.0.1:{behind} 36 38");
    assert!(all.contains(&line), "{all:?}");
    // The session is over: what comes now has no header.
    client.send(b"two").unwrap();
    let fault = "broken header: \"two\" while reading PROXY protocol, udp client: 127.0.0.1";
    master.wait_for_text("logs/info.log", fault);
}

support::test_on_each_engine!(proxy_headers_of_datagrams_tell_who_the_client_is);

/// One socket of a proxy may carry the datagrams of many clients.
fn each_datagram_may_have_a_header(engine: &'static str) {
    if is_nginx() {
        return; // it has no headers of datagrams
    }
    let (behind, port) = (echo_datagrams(), free_port());
    let lines = |comment: &str| {
        format!(
            "{comment} set_real_ip_from 127.0.0.1;
             server {{ listen 127.0.0.1:{port} udp proxy_protocol=per_datagram;
                 deny 192.0.2.66; proxy_pass 127.0.0.1:{behind}; proxy_timeout 1s; }}"
        )
    };
    let master = start(engine, &lines(""));
    let proxy = datagrams_to(port);
    let send = |last: u8, text: &str| {
        proxy
            .send(&[&header(last)[..], text.as_bytes()].concat())
            .unwrap();
    };
    let ask = |last: u8, text: &str| {
        send(last, text);
        assert_eq!(receive(&proxy), format!(">{text}").as_bytes());
    };
    ask(1, "a");
    ask(2, "bc");
    ask(1, "def");
    // The denied and the broken ones get no answer, and change nothing for the others.
    send(66, "denied");
    proxy.send(b"no header").unwrap();
    proxy.send(&header(1)[..30]).unwrap();
    proxy.send(b"").unwrap();
    ask(1, "");
    for pair in 0..20 {
        send(1, &"x".repeat(pair));
        send(2, &"x".repeat(pair));
        let mut answers = [receive(&proxy), receive(&proxy)];
        answers.sort_unstable();
        assert_eq!(answers.map(|answer| answer.len()), [pair + 1; 2]);
    }
    configure(&master, engine, &lines("# again"));
    reload(&master);
    ask(2, "after the reload");
    let all = sessions(&master, 6);
    let upstream = format!("127.0.0.1:{behind}");
    let mut served: Vec<_> = all.iter().filter(|line| line.contains(" 200 ")).collect();
    served.sort_unstable();
    assert_eq!(
        served,
        [
            &format!("192.0.2.1 UDP 200 217 194 {upstream} 194 217"),
            &format!("192.0.2.2 UDP 200 230 208 {upstream} 208 230"),
        ]
    );
    let with = |text: &str| all.iter().filter(|line| line.contains(text)).count();
    assert_eq!(with("127.0.0.1 UDP 400 0 0 - - -"), 3, "{all:?}");
    assert_eq!(with("192.0.2.66 UDP 403 0 6 - - -"), 1, "{all:?}");
    let info = master.read("logs/info.log");
    for fault in [
        "broken header: \"no header\"",
        "header is cut off",
        "broken header: \"\"",
    ] {
        let line = format!("{fault} while reading PROXY protocol, udp client: 127.0.0.1");
        assert!(info.contains(&line), "{line} in {info}");
    }
}

support::test_on_each_engine!(each_datagram_may_have_a_header);

#[test]
fn headers_per_datagram_are_for_datagrams() {
    if is_nginx() {
        return; // it has no headers of datagrams
    }
    let master = Master::new();
    let line = "server { listen 127.0.0.1:1 proxy_protocol=per_datagram; return x; }";
    configure(&master, "", line);
    let (_, refused) = master.run(&["-t"]);
    let text = "the \"proxy_protocol=per_datagram\" parameter requires \"udp\"";
    assert!(refused.contains(text), "{refused}");
}
