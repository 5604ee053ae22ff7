//! MQTT: what a client's first packet says, in variables, and told to its server in other words.
//! The packets are those of OASIS MQTT 3.1.1 and 5.0, written out by hand.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use support::port::free_port;

use super::{connect, echo, line_with, rest, say, sessions, start};

/// Version 3.1.1 with a clean session and a keep-alive of 60 s: client `c1`, user `bob`.
const CONNECT: &[u8] = b"\x10\x13\0\x04MQTT\x04\x82\0\x3c\0\x02c1\0\x03bob";
/// Version 5.0 without properties: client `c5`, no user.
const CONNECT_5: &[u8] = b"\x10\x0f\0\x04MQTT\x05\x02\0\x3c\0\0\x02c5";

fn variables_know_the_first_packet(engine: &'static str) {
    let upstream = echo();
    let [said, slow, both, small, off] = [(); 5].map(|()| free_port());
    let text = "return \"<$mqtt_preread_clientid> <$mqtt_preread_username>\"";
    let master = start(
        engine,
        &format!(
            "server {{ listen 127.0.0.1:{said}; mqtt_preread on; preread_timeout 300ms; {text}; }}
             server {{ listen 127.0.0.1:{slow}; mqtt_preread on; {text}; }}
             server {{ listen 127.0.0.1:{both}; mqtt_preread on; ssl_preread on;
                 proxy_pass 127.0.0.1:$there; }}
             map $mqtt_preread_clientid $there {{ c1 {upstream}; default 1; }}
             server {{ listen 127.0.0.1:{small}; mqtt_preread on; preread_buffer_size 20;
                 {text}; }}
             server {{ listen 127.0.0.1:{off}; {text}; }}"
        ),
    );
    let answer = |port, bytes: &[u8]| {
        let mut client = connect(port);
        client.write_all(bytes).unwrap();
        String::from_utf8(rest(&mut client)).unwrap()
    };
    assert_eq!(answer(said, CONNECT), "<c1> <bob>");
    assert_eq!(answer(said, CONNECT_5), "<c5> <>");
    assert_eq!(answer(said, b"GET / HTTP/1.0\r\n\r\n"), "<> <>");
    assert_eq!(answer(off, CONNECT), "<> <>");
    // It may come in any number of pieces.
    let mut client = connect(slow);
    client.set_nodelay(true).unwrap();
    for byte in CONNECT.chunks(1) {
        client.write_all(byte).unwrap();
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(rest(&mut client), b"<c1> <bob>");
    // One that says too little in time, and one that says too much.
    assert_eq!(answer(said, &CONNECT[..9]), "");
    assert_eq!(answer(small, CONNECT), "");
    assert!(line_with(&master, "preread buffer full").contains("while prereading client data"));
    assert_eq!(answer(small, CONNECT_5), "<c5> <>");
    // The server behind gets all of it.
    let mut client = connect(both);
    say(&mut client, &[CONNECT, b"\xc0\0"].concat());
    drop(client);
    let lines = sessions(&master, 9);
    assert_eq!(
        lines[8],
        format!("127.0.0.1 TCP 200 23 23 127.0.0.1:{upstream} 23 23")
    );
}

support::test_on_each_engine!(variables_know_the_first_packet);

fn servers_are_told_other_values(engine: &'static str) {
    let upstream = echo();
    let [set, plain, tight, long] = [(); 4].map(|()| free_port());
    let (word, repeated) = ("x".repeat(4000), "$word".repeat(17));
    let master = start(
        engine,
        &format!(
            "map $remote_addr $word {{ default {word}; }}
             mqtt on;
             server {{ listen 127.0.0.1:{set}; proxy_pass 127.0.0.1:{upstream};
                 mqtt_preread on; mqtt_set_connect clientid me-$mqtt_preread_clientid;
                 mqtt_set_connect username $remote_addr; mqtt_set_connect password secret; }}
             server {{ listen 127.0.0.1:{plain}; proxy_pass 127.0.0.1:{upstream};
                 preread_timeout 300ms; }}
             server {{ listen 127.0.0.1:{tight}; proxy_pass 127.0.0.1:{upstream};
                 mqtt_buffers 2 10; mqtt_rewrite_buffer_size 4k;
                 mqtt_set_connect clientid longer; }}
             server {{ listen 127.0.0.1:{long}; proxy_pass 127.0.0.1:{upstream};
                 mqtt_set_connect username {repeated}; }}"
        ),
    );
    let hear = |port, bytes: &[u8], length: usize| {
        let mut client = connect(port);
        client.write_all(bytes).unwrap();
        let mut heard = vec![0; length];
        client.read_exact(&mut heard).unwrap();
        heard
    };
    // What comes behind the packet stays as it is.
    let told = b"\x10\x24\0\x04MQTT\x04\xc2\0\x3c\0\x05me-c1\0\x09127.0.0.1\0\x06secret\xc0\0";
    let heard = hear(set, &[CONNECT, b"\xc0\0"].concat(), told.len());
    assert_eq!(heard, told);
    let told = b"\x10\x25\0\x04MQTT\x05\xc2\0\x3c\0\0\x05me-c5\0\x09127.0.0.1\0\x06secret";
    assert_eq!(hear(set, CONNECT_5, told.len()), told);
    assert_eq!(hear(plain, CONNECT, CONNECT.len()), CONNECT);
    sessions(&master, 3);
    let mut client = connect(plain);
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(rest(&mut client), b"");
    // The bytes behind it are counted as with TCP; nginx Plus' own line is not known.
    let line = line_with(&master, "no MQTT CONNECT");
    let expected = format!(
        "client sent no MQTT CONNECT while reading MQTT CONNECT, client: 127.0.0.1, \
         server: 127.0.0.1:{plain}, bytes from/to client:"
    );
    assert!(line.starts_with(&expected), "{line}");
    sessions(&master, 4);
    // Nothing at all is said in time.
    assert_eq!(rest(&mut connect(plain)), b"");
    sessions(&master, 5);
    let mut client = connect(tight);
    client.write_all(CONNECT).unwrap();
    assert_eq!(rest(&mut client), b"");
    assert!(line_with(&master, "of 21 bytes is too long").contains("MQTT CONNECT"));
    sessions(&master, 6);
    let mut client = connect(tight);
    client.write_all(CONNECT_5).unwrap();
    assert_eq!(rest(&mut client), b"", "17 bytes, and 4 more");
    sessions(&master, 7);
    let mut client = connect(long);
    client.write_all(CONNECT).unwrap();
    assert_eq!(rest(&mut client), b"");
    let lines = sessions(&master, 8);
    let of = |received: usize, sent: usize| {
        format!("127.0.0.1 TCP 200 {sent} {received} 127.0.0.1:{upstream} {sent} {sent}")
    };
    assert_eq!(
        lines,
        [
            of(23, 40),
            of(17, 39),
            of(21, 21),
            "127.0.0.1 TCP 400 0 0 - - -".to_owned(),
            "127.0.0.1 TCP 200 0 0 - - -".to_owned(),
            "127.0.0.1 TCP 400 0 0 - - -".to_owned(),
            "127.0.0.1 TCP 500 0 0 - - -".to_owned(),
            "127.0.0.1 TCP 500 0 0 - - -".to_owned(),
        ]
    );
}

support::test_on_each_engine!(servers_are_told_other_values);
